#!/usr/bin/env bash
# How does the elevator become a package? dkms compiles it on the machine where it is installed, for each kernel there.
#
#   package.sh VERSION OUT_FOLDER SERIES=HEADERS_FOLDER...
#
# A HEADERS_FOLDER has the block layer's own headers of that series. Leaves OUT_FOLDER/mqfq-dkms_VERSION_all.deb.
set -euo pipefail
version=$1 out=$(realpath -m "$2")
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
to=$tree/usr/src/mqfq-$version
examples=$tree/usr/share/doc/mqfq-dkms/examples
mkdir -p "$to" "$tree/DEBIAN" "$examples" "$tree/usr/lib/systemd/system" "$out"
cp ./*.c ./*.h Kbuild layouts.sh "$to"
sed "s/@VERSION@/$version/" dkms.conf >"$to/dkms.conf"
for one in "$@"; do
    mkdir "$to/private-${one%%=*}"
    cp "${one#*=}"/*.h "$to/private-${one%%=*}"
done
cp ../../LICENSE-GPL-2.0 "$tree/usr/share/doc/mqfq-dkms/copyright"
cat >"$examples/60-mqfq.rules" <<END
# An example: NVMe drives and virtio disks get the elevator as they appear. Copy it to /etc/udev/rules.d/.
ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", KERNEL=="nvme*n*|vd*", ATTR{queue/scheduler}="mqfq"
END
install -D -m 755 io-weights.sh "$tree/usr/libexec/mqfq-io-weights"
cat >"$tree/usr/lib/systemd/system/mqfq-io-weights.service" <<END
# Not enabled by itself: systemctl enable --now mqfq-io-weights

[Unit]
Description=IOWeight and IODeviceWeight of units, for the elevator mqfq
After=systemd-modules-load.service

[Service]
ExecStart=/usr/libexec/mqfq-io-weights 5
Restart=on-failure
RestartSec=10
ProtectHome=yes
PrivateNetwork=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
END
cat >"$tree/DEBIAN/control" <<END
Package: mqfq-dkms
Version: $version
Architecture: all
Maintainer: the mqfq developers <mqfq@localhost>
Depends: dkms, pahole
Section: kernel
Priority: optional
Description: multi-queue fair queueing for block devices, with cgroup weights
 A blk-mq elevator for Linux 6.1, 6.12 and 7.2: device time of fast drives is
 shared by io.mqfq.weight of each cgroup. Compiled by dkms for each kernel.
END
cat >"$tree/DEBIAN/postinst" <<END
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    dkms add -m mqfq -v $version --rpm_safe_upgrade || true
    # For the running kernel; others get it when they are installed or started.
    dkms autoinstall || echo "mqfq-dkms: not built for this kernel: are its headers installed?" >&2
fi
END
cat >"$tree/DEBIAN/prerm" <<END
#!/bin/sh
set -e
dkms remove -m mqfq -v $version --all || true
END
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm"
dpkg-deb --root-owner-group --build "$tree" "$out/mqfq-dkms_${version}_all.deb"
