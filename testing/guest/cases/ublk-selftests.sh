#!/usr/bin/env bash
# Where do the kernel's own tests of ublk come from? Linux' tools/testing/selftests/ublk, of Debian's linux-source.
#
#   ublk-selftests.sh CACHE SHARE
#
# The tests and their server, kublk, are fetched and built once into CACHE/selftests (or from the linux-source-*.tar.xz
# that $MQFQ_LINUX_SOURCE names); SHARE/selftests gets them, with kublk called `peer` and ../selftests/kublk in its place.
set -euo pipefail
cache=$(realpath -m "$1")/selftests share=$(realpath -m "$2")/selftests here=$(realpath "$(dirname "$0")/../selftests")
series=7.2

if [ ! -e "$cache/complete" ]; then
    rm -rf "$cache"
    mkdir -p "$cache/lists/partial" "$cache/apt/archives/partial" "$cache/none" "$cache/include/linux/io_uring"
    cd "$cache"
    source=${MQFQ_LINUX_SOURCE:-}
    if [ -z "$source" ]; then
        mirror=$(apt-get indextargets --format '$(REPO_URI) $(SUITE)' 'Created-By: Packages' |
            sed -n 's/ \(oldstable\|stable\|bookworm\|trixie\)$//p' | awk "NR == 1")
        [ -n "$mirror" ] || { echo "this machine has no Debian mirror in its package lists" >&2; exit 1; }
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie-backports main" >sources.list
        options="-o Dir::Etc::sourcelist=$cache/sources.list -o Dir::Etc::sourceparts=$cache/none
            -o Dir::State::lists=$cache/lists -o Dir::Cache=$cache/apt -o APT::Sandbox::User=root"
        apt-get $options update -q >&2
        apt-get $options download -q "linux-source-$series" >&2
        dpkg-deb -x linux-source-*.deb .
        source=usr/src/linux-source-$series.tar.xz
    fi
    tar xf "$source" --strip-components=1 --wildcards '*/tools/testing/selftests/ublk' '*/include/uapi/linux/ublk_cmd.h' \
        '*/include/uapi/linux/fs.h' '*/include/uapi/linux/io_uring.h' '*/include/uapi/linux/io_uring'
    cp include/uapi/linux/*.h include/linux/
    cp include/uapi/linux/io_uring/*.h include/linux/io_uring/
    mv tools/testing/selftests/ublk tests
    sources=$(find tests -name '*.c' ! -name metadata_size.c)
    gcc -D_GNU_SOURCE -O2 -I include -c -o liburing.o "$here/liburing.c"
    gcc -D_GNU_SOURCE -DHEADER -include "$here/liburing.c" -O2 -I include -o tests/peer $sources liburing.o -luring \
        -lpthread -lm
    gcc -O2 -I include -o tests/metadata_size tests/metadata_size.c
    rm -rf usr lists apt none sources.list ./*.deb tools
    touch complete
fi
rm -rf "$share"
mkdir -p "$(dirname "$share")"
cp -r "$cache/tests" "$share"
cp "$here/kublk" "$share"
# A guest has no udev: the kernel makes the devices' files by itself, and there is nothing to wait for.
printf '#!/bin/sh\nexit 0\n' >"$share/udevadm"
chmod 755 "$share/udevadm"
