#!/usr/bin/env bash
# What does a guest start from? A busybox, its init, and some modules of its kernel, without compression.
#
#   initramfs.sh KERNEL_FOLDER OUT INIT MODULE...
#
# Modules come with those that they need; one that the kernel has built in, or has not at all, is left out, and the
# guest's `modprobe` says so.
set -euo pipefail
kernel=$1 out=$2 init=$3
shift 3
version=$(cat "$kernel/version")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/proc" "$work/sys" "$work/dev" "$work/host" "$work/share" "$work/tmp" "$work/run" \
    "$work/cgroup" "$work/lib/modules/$version"
cp "$(command -v busybox)" "$work/bin/busybox"
{ echo "#!/bin/busybox sh"; cat "$init"; } >"$work/init"
chmod +x "$work/init"
for module in "$@"; do
    modprobe -d "$kernel" -S "$version" --show-depends "$module" 2>/dev/null || true
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r path; do
    name=${path##*/}
    to="$work/lib/modules/$version/${name%%.ko*}.ko"
    case $name in
    *.xz) xz -dc "$path" >"$to" ;;
    *.zst) zstd -qdc "$path" >"$to" ;;
    *.gz) gzip -dc "$path" >"$to" ;;
    *) cp "$path" "$to" ;;
    esac
done
cp "$kernel/lib/modules/$version/modules.builtin" "$work/lib/modules/$version/" 2>/dev/null || true
cp "$kernel/lib/modules/$version/modules.order" "$work/lib/modules/$version/" 2>/dev/null || true
depmod -b "$work" "$version" 2>/dev/null
(cd "$work" && find . | cpio -o -H newc --quiet | gzip -1) >"$out.new"
mv "$out.new" "$out"
