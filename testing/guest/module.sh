#!/usr/bin/env bash
# How does a module get built for a guest's kernel? Against Debian's headers of that very version, unpacked beside it.
#
#   module.sh SERIES KERNEL_FOLDER SOURCE_FOLDER OUT_FOLDER
#
# KERNEL_FOLDER is what kernel.sh left. KERNEL_FOLDER/headers keeps the headers, and in block/ those of the block layer
# alone, which only the kernel's source has; the debug kernel's are those that it was built with. For 7.2, whose
# compiler Debian 12 has not, the build runs in a trixie of its own (debootstrap), which needs root. OUT_FOLDER gets
# mqfq.ko.
set -euo pipefail
series=$1 folder=$(realpath "$2") source=$(realpath "$3") out=$(realpath -m "$4")
version=$(cat "$folder/version")
headers=$folder/headers

fetch() { # into the current folder, from the machine's own lists
    apt-get -o APT::Sandbox::User=root download -q "$@" >&2
}

if [ ! -e "$headers/complete" ]; then
    rm -rf "$headers"
    mkdir -p "$headers/packages" "$headers/block"
    cd "$headers/packages"
    case $series in
    debug | kcsan) ;;
    6.1 | 6.12)
        more=$(apt-cache depends "linux-headers-$version" |
            sed -n 's/^ *Depends: \(linux-headers-.*-common\|linux-kbuild-.*\)$/\1/p')
        fetch "linux-headers-$version" $more "linux-source-$series"
        for package in linux-headers-* linux-kbuild-*; do dpkg-deb -x "$package" "$headers"; done
        # The one absolute path in them.
        sed -i "s|^include /usr/src/|include $headers/usr/src/|" "$headers/usr/src/linux-headers-$version/Makefile"
        ;;
    *)
        [ "$(id -u)" = 0 ] || { echo "a module for $series is built in a trixie of its own, which needs root" >&2; exit 1; }
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | awk 'NR == 1')
        debootstrap --variant=minbase --include=make,gcc-14,xz-utils,libelf1t64,pahole trixie "$headers/trixie" "$mirror" >&2
        echo "deb $mirror trixie-backports main" >"$headers/trixie/etc/apt/sources.list.d/backports.list"
        chroot "$headers/trixie" apt-get update -q >&2
        chroot "$headers/trixie" apt-get install -q -y --no-install-recommends -t trixie-backports \
            "linux-headers-$version" >&2
        chroot "$headers/trixie" apt-get -o APT::Sandbox::User=root download -q "linux-source-$series" >&2
        mv "$headers/trixie"/linux-source-* .
        ;;
    esac
    if [ -e "$folder/build" ]; then
        cp "$folder"/source/block/*.h "$headers/block"
    else
        dpkg-deb -x linux-source-* source
        tar xf source/usr/src/linux-source-*.tar.xz -C "$headers/block" --strip-components=2 --wildcards \
            'linux-source-*/block/*.h'
    fi
    rm -rf "$headers/packages"
    touch "$headers/complete"
fi

mkdir -p "$out"
if [ -e "$headers/trixie" ]; then root=$headers/trixie; else root=; fi
build=$root/$(mktemp -u "${root:+/}tmp/elevator.XXXXXX")
build=${build//\/\//\/}
# As the module's Kbuild names it.
private=$build/private-$(echo "$version" | cut -d. -f1,2)
mkdir -p "$private"
trap 'rm -rf "$build"' EXIT
cp "$source"/*.c "$source"/*.h "$source/Kbuild" "$build"
cp "$headers"/block/*.h "$private"
if [ -n "$root" ]; then
    # objtool reads /proc.
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
    chroot "$root" make -C "/usr/src/linux-headers-$version" M="${build#"$root"}" modules >"$out/build.log" 2>&1 ||
        { tail -n 20 "$out/build.log" >&2; exit 1; }
    umount "$root/proc"
else
    if [ -e "$folder/build" ]; then tree=$folder/build; else tree=$headers/usr/src/linux-headers-$version; fi
    make -C "$tree" M="$build" modules >"$out/build.log" 2>&1 ||
        { tail -n 20 "$out/build.log" >&2; exit 1; }
fi
cp "$build/mqfq.ko" "$source/io-weights.sh" "$out"
