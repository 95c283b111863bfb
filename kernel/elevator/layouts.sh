#!/usr/bin/env bash
# Do the structures of the packed private headers lie in memory as the kernel has them?
#
#   layouts.sh MODULE KERNEL
#
# MODULE is mqfq.ko as compiled, with debug information. KERNEL is a release (of /boot/vmlinuz-RELEASE, or the running
# one), or a file: a vmlinuz, or raw type information. A distribution may change a structure within a series, and a
# module that was compiled with another one writes where the kernel has something else. So a difference is an error,
# and so is a kernel that says nothing of its structures.
set -euo pipefail
module=$1 kernel=$2
fail() { echo "mqfq: $*" >&2; exit 1; }
command -v pahole >/dev/null || fail "pahole is missing, which compares the module's structures with the kernel's"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A vmlinuz is code of its own and a kernel that one of these programs unpacks.
unpack() {
    for try in 'unxz \xFD7zXZ\x00' 'unzstd \x28\xB5\x2F\xFD' 'gunzip \x1F\x8B\x08' 'unlz4 \x02\x21\x4C\x18' \
        'bunzip2 BZh' 'unlzma \x5D\x00\x00\x00'; do
        program=${try%% *}
        command -v "$program" >/dev/null || continue
        for at in $(LC_ALL=C grep -abo -P "${try#* }" "$1" | cut -d: -f1); do
            tail -c +$((at + 1)) "$1" | "$program" >"$2" 2>/dev/null || true
            LC_ALL=C head -c 4 "$2" | grep -q ELF && return 0
        done
    done
    return 1
}

if [ -f "$kernel" ]; then
    image=$kernel
elif [ "$kernel" = "$(uname -r)" ] && [ -r /sys/kernel/btf/vmlinux ]; then
    image=/sys/kernel/btf/vmlinux
else
    image=/boot/vmlinuz-$kernel
    [ -r "$image" ] || fail "neither type information of kernel $kernel nor $image is there to compare structures with"
fi
types=$image
case $(LC_ALL=C head -c 2 "$image") in
MZ) types=$work/vmlinux; unpack "$image" "$types" || fail "$image: holds no kernel that can be unpacked here" ;;
esac

# Name, offset and size of each member, whatever the spelling of its type.
members() {
    { pahole -C "$1" "$2" 2>/dev/null || true; } | awk '
        /\/\* size: / { sub(/,.*/, ""); sub(/.*size: /, ""); print "size " $0 }
        /; +\/\* +[0-9]/ {
            place = $0; sub(/.*\/\* */, "", place); sub(/ *\*\/.*/, "", place)
            name = $0; sub(/;.*/, "", name); sub(/ *__attribute__.*/, "", name)
            if (!sub(/.*\(\*/, "", name)) sub(/(\[.*)?( *:.*)?$/, "", name)
            sub(/\).*/, "", name); sub(/.*[ *]/, "", name)
            sub(/: */, ".", place); sub(/ +/, " of ", place); print name " at " place
        }'
}

structures=$({ pahole --show_decl_info "$module" 2>/dev/null || true; } |
    awk '/^\/\* </ { private = /\/private-/ } /^(struct|union) / { if (private) print $2; private = 0 }' | sort -u)
[ -n "$structures" ] || fail "$module: has no debug information, so its structures cannot be compared"
compared=0
for name in $structures; do
    members "$name" "$module" >"$work/ours"
    members "$name" "$types" >"$work/theirs"
    # A structure that the kernel's own code never uses is not among its types.
    [ -s "$work/theirs" ] || continue
    if ! difference=$(diff "$work/theirs" "$work/ours"); then
        fail "struct $name is another one in $kernel than in the packed headers: the kernel has" \
            "$(echo "$difference" | sed -n 's/^< //p' | head -n 3 | paste -sd, -)"
    fi
    compared=$((compared + 1))
done
[ "$compared" -ge 8 ] || fail "only $compared structures of $module are among the types of $image, too few to compare"
echo "mqfq: $compared structures of the packed headers are those of $kernel"
