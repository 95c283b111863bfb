#!/usr/bin/env bash
# Which kernel does a guest run? Unpacks one of Debian's, with its modules, and installs nothing.
#
#   kernel.sh SERIES FOLDER      SERIES: 6.1, 6.12, 6.16, 6.17, 6.18, 7.2, 7.3, debug, kcsan, 6.12-scx
#
# Leaves FOLDER/vmlinuz, FOLDER/version and FOLDER/lib/modules/VERSION. A folder that has a version is complete.
# 6.1 and 6.12 come from the machine's own package lists (bookworm). The others come from trixie-backports on the same
# mirror, by lists of their own: the machine's stay as they are. A series is its newest kernel that is there today.
# `debug`, `kcsan` and `6.12-scx` are built from 6.12's source with their options of built.config. `debug` complains of the
# most. `kcsan` reports data races and nothing else: KASAN excludes it, and checks of each lock hide races. `6.12-scx` has
# sched_ext, which Debian's 6.12 lacks. They leave FOLDER/source too, a link to the source of all, and FOLDER/build, which
# modules are built against. Without FOLDER/version it goes on where an earlier run ended; 1,120 to 1,450 files are
# compiled.
set -euo pipefail
series=$1 folder=$2
[ -e "$folder/version" ] && exit 0

build() {
    config=$(realpath "$(dirname "$0")/built.config")
    mkdir -p "$folder/build"
    cd "$folder"
    if [ ! -e source/complete ]; then
        source=$(dirname "$folder")/source-6.12
        if [ ! -e "$source/complete" ]; then
            rm -rf "$source"
            mkdir -p "$source" packages
            (cd packages && apt-get -o APT::Sandbox::User=root download -q linux-source-6.12 >&2)
            dpkg-deb -x packages/linux-source-6.12_*.deb packages/root
            tar xf packages/root/usr/src/linux-source-6.12.tar.xz -C "$source" --strip-components=1
            rm -rf packages
            touch "$source/complete"
        fi
        ln -sfn "$source" source
    fi
    make_kernel() { make -C source O="$folder/build" "$@"; }
    awk -v own=" $series " -F: '/^## / { is_of = $1 == "## all" || index($1 " ", own); next } is_of' "$config" >options
    if ! cmp -s options build/options; then
        make_kernel tinyconfig >&2
        (cd source && scripts/kconfig/merge_config.sh -O "$folder/build" -m "$folder"/{build/.config,options} >&2)
        make_kernel olddefconfig >&2
        # An option that needs another one is dropped without a word.
        while read -r option; do
            grep -qxF "$option" build/.config || { echo "the kernel's source does not take $option" >&2; exit 1; }
        done < <(grep = options)
        cp options build/options
    fi
    make_kernel -j"$(nproc)" bzImage modules >build.log 2>&1 || { grep -E ' error|Error' build.log | tail -n 1 >&2; exit 1; }
    version=$(cat build/include/config/kernel.release)
    rm -rf lib
    make_kernel INSTALL_MOD_PATH="$folder" modules_install >>build.log 2>&1
    cp build/arch/x86/boot/bzImage vmlinuz
    echo "$version" >version
}
case $series in
debug | kcsan | 6.12-scx)
    build
    exit
    ;;
esac
rm -rf "$folder"
mkdir -p "$folder/packages" "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/none"
cd "$folder"

apt() { # COMMAND WORDS...
    command=$1
    shift
    if [ -e "$folder/sources.list" ]; then
        "$command" -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts="$folder/none" \
            -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@"
    else
        "$command" -o APT::Sandbox::User=root "$@"
    fi
}

case $series in
6.1) meta=linux-image-amd64 ;;
6.12) meta=linux-image-6.12-amd64 ;;
6.16 | 6.17 | 6.18 | 7.2 | 7.3)
    # The mirror that this machine already uses for Debian itself.
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(SUITE)' 'Created-By: Packages' |
        sed -n 's/ \(oldstable\|stable\|bookworm\|trixie\)$//p' | awk "NR == 1")
    [ -n "$mirror" ] || { echo "this machine has no Debian mirror in its package lists" >&2; exit 1; }
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$key] $mirror trixie-backports main" >sources.list
    apt apt-get update -q >&2
    meta=$(apt apt-cache pkgnames "linux-image-$series." | grep -E '^linux-image-[0-9.]+\+deb13-amd64$' | sort -V | tail -n 1 || true)
    [ -n "$meta" ] || { echo "trixie-backports has no kernel of series $series today" >&2; exit 1; }
    ;;
*) echo "there is no kernel series $series here, allowed is 6.1, 6.12, 6.16, 6.17, 6.18, 7.2, 7.3, debug, kcsan and 6.12-scx" >&2; exit 1 ;;
esac

# A meta package names the image of today; what an image needs of its own version comes along.
names=$meta seen=
while [ -n "$names" ]; do
    more=
    for name in $names; do
        case " $seen " in *" $name "*) continue ;; esac
        seen="$seen $name"
        more="$more $(apt apt-cache depends "$name" |
            sed -n 's/^ *Depends: \(linux-\(image\|binary\|modules\|base\)-[0-9][^ ]*\)$/\1/p' | tr '\n' ' ')"
    done
    names=${more%"${more##*[! ]}"}
done
packages=
for name in $seen; do
    case $name in linux-image-amd64 | linux-image-6.12-amd64) ;; *) packages="$packages $name" ;; esac
done
[ -n "$packages" ] || { echo "no package has the kernel of $meta: apt-get update may be needed" >&2; exit 1; }
(cd packages && apt apt-get download $packages >&2)
for package in packages/*.deb; do dpkg-deb -x "$package" root; done

if [ -d root/usr/lib/modules ]; then modules=root/usr/lib/modules; else modules=root/lib/modules; fi
version=$(ls "$modules" | awk "NR == 1")
mkdir -p lib/modules
mv "$modules/$version" lib/modules/
if [ -e "lib/modules/$version/vmlinuz" ]; then
    mv "lib/modules/$version/vmlinuz" vmlinuz
else
    mv "root/boot/vmlinuz-$version" vmlinuz
fi
rm -rf root packages lists cache none sources.list
depmod -b "$folder" "$version"
echo "$version" >version
