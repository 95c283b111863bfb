#!/usr/bin/env bash
# Which QEMU runs a guest whose CPUs must advance evenly? Debian's 10.0 of bookworm-backports, unpacked, not installed.
#
#   qemu.sh FOLDER
#
# Under counted instructions QEMU 7.2 lets one virtual CPU run for up to 88 ms while the others stand; 10.0 splits the
# time between them. Leaves FOLDER/usr/bin/qemu-system-x86_64 and FOLDER/complete. A machine that has QEMU 10 or later
# gets a link to it.
set -euo pipefail
folder=$1
[ -e "$folder/complete" ] && exit 0
rm -rf "$folder"
mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/none" "$folder/usr/bin"
cd "$folder"
own=$(command -v qemu-system-x86_64 || true)
if [ -n "$own" ] && [ "$("$own" --version | sed -n 's/.*version \([0-9]*\).*/\1/p')" -ge 10 ]; then
    ln -s "$own" usr/bin/qemu-system-x86_64
    touch complete
    exit 0
fi
mirror=$(apt-get indextargets --format '$(REPO_URI) $(SUITE)' 'Created-By: Packages' |
    sed -n 's/ \(oldstable\|bookworm\)$//p' | awk "NR == 1")
[ -n "$mirror" ] || { echo "this machine has no QEMU 10 and is no Debian 12 that could unpack one" >&2; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm-backports main" >sources.list
apt() { # COMMAND WORDS...
    command=$1
    shift
    "$command" -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts="$folder/none" \
        -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=root "$@"
}
apt apt-get update -q >&2
apt apt-get download qemu-system-x86 qemu-system-data qemu-system-common >&2
for package in *.deb; do dpkg-deb -x "$package" .; done
missing=$(ldd usr/bin/qemu-system-x86_64 | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | tr '\n' ' ')
[ -z "$missing" ] || { echo "QEMU 10 needs libraries that are not here: $missing" >&2; exit 1; }
rm -rf ./*.deb lists cache none sources.list
touch complete
