#!/usr/bin/env bash
# Which kernel complains of the most? Builds Debian's 6.12 source with the options of debug.config.
#
#   debug.sh FOLDER
#
# Leaves what kernel.sh leaves, FOLDER/source, and FOLDER/build, which modules are built against. Without FOLDER/version
# it goes on where an earlier run ended: some 1,450 files are compiled.
set -euo pipefail
folder=$1
config=$(realpath "$(dirname "$0")/debug.config")
mkdir -p "$folder"
cd "$folder"
if [ ! -e source/complete ]; then
    rm -rf source packages
    mkdir -p source packages
    (cd packages && apt-get -o APT::Sandbox::User=root download -q linux-source-6.12 >&2)
    dpkg-deb -x packages/linux-source-6.12_*.deb packages/root
    tar xf packages/root/usr/src/linux-source-6.12.tar.xz -C source --strip-components=1
    rm -rf packages
    touch source/complete
fi
kernel() { make -C source O="$folder/build" "$@"; }
if ! cmp -s "$config" build/options; then
    kernel tinyconfig >&2
    (cd source && scripts/kconfig/merge_config.sh -O ../build -m ../build/.config "$config" >&2)
    kernel olddefconfig >&2
    # An option that needs another one is dropped without a word.
    while read -r option; do
        grep -qxF "$option" build/.config || { echo "the kernel's source does not take $option" >&2; exit 1; }
    done < <(grep = "$config")
    cp "$config" build/options
fi
kernel -j"$(nproc)" bzImage modules >build.log 2>&1 || { grep -E ' error|Error' build.log | tail -n 1 >&2; exit 1; }
version=$(cat build/include/config/kernel.release)
rm -rf lib
kernel INSTALL_MOD_PATH="$folder" modules_install >>build.log 2>&1
cp build/arch/x86/boot/bzImage vmlinuz
echo "$version" >version
