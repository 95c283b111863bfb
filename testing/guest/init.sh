#!/bin/busybox sh
# The first process of a guest: it mounts, runs /share/job.sh, tells how that ended, and turns the machine off.
#
# /host is this machine's own root, which cannot be written, so that each program of it runs in the guest by
# `host PROGRAM ...`; /share is a folder of the case, which can. A line that begins with RESULT is a row of the report.
export PATH=/bin:/sbin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
mount -t cgroup2 cgroup /cgroup 2>/dev/null
for module in virtio_pci 9pnet_virtio 9p; do modprobe $module 2>/dev/null; done
options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $options,ro,cache=loose hostroot /host || echo "GUEST-FAULT the host's root cannot be mounted"
mount -t 9p -o $options share /share || echo "GUEST-FAULT the case's folder cannot be mounted"
for folder in proc sys dev dev/shm tmp; do mount --bind /$folder /host/$folder; done
mount -t tmpfs run /host/run
mkdir -p /host/run/share
mount --bind /share /host/run/share
ip link set lo up
echo "GUEST-READY $(cut -d' ' -f1 /proc/uptime) $(uname -r) $(nproc)"
sh /share/job.sh 2>&1
echo "GUEST-STATUS $?"
dmesg | grep -E 'BUG:|WARNING:|Oops|Call Trace|KASAN|KCSAN|UBSAN|hung task|blocked for more than|I/O error|corrupt' |
    sed 's/^/GUEST-KERNEL /'
sync
echo "GUEST-END $(cut -d' ' -f1 /proc/uptime)"
poweroff -f
