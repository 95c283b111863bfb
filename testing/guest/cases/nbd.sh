# The kernel's own NBD client on `mqfq serve`, both in the guest: two tenants, a file system on each, and their shares.
#
# The device is the kernel's null_blk with 8 requests at a time of 2 ms each, 4000 per second: it is scarce, and the
# guest's CPUs are not.
cat >/tmp/m.toml <<'EOF'
[server]
workers = 2
[device.flash]
kind = "file"
path = "/dev/nullb0"
policy = "POLICY"
[tenant.small]
weight = 100
[tenant.large]
weight = 300
[export.small]
device = "flash"
tenant = "small"
size = "512MiB"
nbd = "unix:/tmp/small"
[export.large]
device = "flash"
tenant = "large"
offset = "512MiB"
size = "512MiB"
nbd = "unix:/tmp/large"
EOF
modprobe null_blk queue_mode=2 submit_queues=1 hw_queue_depth=8 irqmode=2 completion_nsec=2000000 memory_backed=1 gb=1 ||
    fail "this kernel has no null_blk"
modprobe nbd nbds_max=2 || fail "this kernel has no nbd"
modprobe -a crc32c_generic ext4 2>/dev/null

serve() { # POLICY
    sed "s/POLICY/$1/" /tmp/m.toml >/tmp/now.toml
    # No subshell in between: a signal is for the server.
    chroot /host "$MQFQ" serve /tmp/now.toml >/tmp/serve.log 2>&1 &
    server=$!
    await 20 grep -q '^ready' /tmp/serve.log || { cat /tmp/serve.log; fail "mqfq did not get ready"; }
    number=0
    for tenant in small large; do
        host /usr/sbin/nbd-client -unix /tmp/$tenant /dev/nbd$number -N $tenant -C 2 -b 4096 >/tmp/attach.log 2>&1 ||
            { cat /tmp/attach.log /tmp/serve.log; fail "nbd-client could not attach to $tenant"; }
        number=$((number + 1))
    done
}

stop() {
    for number in 0 1; do
        host /usr/sbin/nbd-client -d /dev/nbd$number >/dev/null 2>&1
        await 10 test ! -e /sys/block/nbd$number/pid || fail "the kernel does not let go of /dev/nbd$number"
    done
    kill -TERM $server
    await 20 sh -c "! kill -0 $server" || fail "mqfq did not end"
}

# load NUMBER BLOCK DEPTH JOBS: until it is killed.
load() {
    exec chroot /host fio --name=load --filename=/dev/nbd$1 --rw=randread --bs=$2 --iodepth=$3 --numjobs=$4 --direct=1 \
        --ioengine=libaio --time_based --runtime=600 --thread --group_reporting --norandommap --randrepeat=0 >/tmp/load$1 2>&1
}

# Bytes that the kernel has read from /dev/nbdNUMBER.
bytes() { awk '{ print $3 * 512 }' /sys/block/nbd$1/stat; }

# Whether it reads from both.
both_run() { [ $(bytes 0) -gt $((from0 + 65536)) ] && [ $(bytes 1) -gt $((from1 + 65536)) ]; }

for policy in none mqfq; do
    serve $policy
    for mix in "4k 16 1 4k 16 1" "4k 64 2 4k 8 1" "64k 16 1 4k 16 2"; do
        set -- $mix
        stamp $policy $mix
        from0=$(bytes 0) from1=$(bytes 1)
        load 0 $1 $2 $3 &
        one=$!
        load 1 $4 $5 $6 &
        two=$!
        await 60 both_run || { cat /tmp/load0 /tmp/load1; fail "fio does not read"; }
        # Two seconds in which D is found; then a window in which both read.
        sleep 2
        from0=$(bytes 0) from1=$(bytes 1)
        sleep 3
        small=$(($(bytes 0) - from0)) large=$(($(bytes 1) - from1))
        kill -9 $one $two
        wait $one $two
        [ $small -gt 0 ] || fail "the small tenant got nothing under $policy"
        ratio=$(awk "BEGIN { printf \"%.3f\", $large / $small }")
        result "{\"case\":\"nbd-1:3\",\"policy\":\"$policy\",\"small\":\"$1 x $2 x $3\",\"large\":\"$4 x $5 x $6\",\"bytes_ratio\":$ratio,\"bytes_in_3_s\":$((small + large))}"
    done
    stop
done

serve mqfq
stamp ext4
verifiers=
for number in 0 1; do
    host /sbin/mkfs.ext4 -q -F /dev/nbd$number || fail "mkfs.ext4 failed on /dev/nbd$number"
    mkdir -p /tmp/on$number
    mount -t ext4 /dev/nbd$number /tmp/on$number || fail "/dev/nbd$number cannot be mounted"
done
for number in 0 1; do
    host fio --name=verify$number --directory=/tmp/on$number --rw=randwrite --bsrange=4k-64k --size=48m --ioengine=libaio \
        --direct=1 --iodepth=16 --fsync=32 --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 \
        --output-format=json >/tmp/verify$number.json 2>/tmp/verify$number.err &
    verifiers="$verifiers $!"
done
wait $verifiers
stamp verified
for number in 0 1; do
    [ "$(field jobs.0.error /tmp/verify$number.json)" = 0 ] || fail "data on /dev/nbd$number did not verify"
    umount /tmp/on$number || fail "/dev/nbd$number cannot be unmounted"
    host /sbin/fsck.ext4 -n -f /dev/nbd$number >/tmp/fsck 2>&1 || { cat /tmp/fsck; fail "the file system on /dev/nbd$number is not clean"; }
done
stop
result '{"case":"nbd-ext4","policy":"mqfq","verified":true,"fsck_clean":true}'
