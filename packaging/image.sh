#!/usr/bin/env bash
# Makes the root of an image: image.sh PROGRAM FOLDER. The Containerfile runs it, and so does a test.
set -euo pipefail
program=$1 root=$2
mkdir -p "$root/usr/bin" "$root/etc/mqfq" "$root/run/mqfq" "$root/var/lib/mqfq" "$root/tmp"
cp "$program" "$root/usr/bin/mqfq"
# Libraries and the loader, where the program looks for them.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
echo 'mqfq:x:65532:65532::/var/lib/mqfq:/sbin/nologin' > "$root/etc/passwd"
echo 'mqfq:x:65532:' > "$root/etc/group"
cat > "$root/etc/mqfq/mqfq.toml" <<'CONFIG'
# An example in memory. Mount a config of your own over it, and a drive or a folder of images.
# The port is open to the container's network: publish it on 127.0.0.1, or set up [tls].

[server]
sandbox = "live"

[control]
listen = "unix:/run/mqfq/control.sock"

[address."tcp:0.0.0.0:10809"]
insecure = true

[device.example]
kind = "memory"
size = "64MiB"

[tenant.gold]
weight = 300

[tenant.silver]
weight = 100

[export.gold]
device = "example"
tenant = "gold"
size = "32MiB"
nbd = ["unix:/run/mqfq/gold.sock", "tcp:0.0.0.0:10809"]

[export.silver]
device = "example"
tenant = "silver"
offset = "32MiB"
nbd = ["unix:/run/mqfq/silver.sock", "tcp:0.0.0.0:10809"]
CONFIG
# Builders may give what they copy to root.
chmod 1777 "$root/run/mqfq" "$root/var/lib/mqfq" "$root/tmp"
