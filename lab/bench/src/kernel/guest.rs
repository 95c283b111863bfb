//! A kernel in a guest whose time counts instructions.
//!
//! # Shape
//! ```text
//!   initramfs: busybox, an init script, a few modules ── 9p, read only ── the host's root, for fio and its libraries
//!              │
//!              └─ null block device, one queue; per elevator, operation and depth: fio for a second of the guest's time
//! ```
//! The guest writes a line per run on its console, which is this process's pipe. Nothing of the host is written.

use super::elevators::Counted;
use crate::machine::has_program;
use mqfq_demo::scratch::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The guest's time for an instruction: `-icount shift=1`, 2^1 ns.
const NS_PER_INSTRUCTION: f64 = 2.0;

/// Longest that the guest may take, seconds; it takes one to two minutes.
const GUEST_S_MAX: u32 = 500;

/// Modules of the kernel that the guest needs, each with its dependencies.
const MODULES: [&str; 7] = ["virtio_pci", "9pnet_virtio", "9p", "null_blk", "mq-deadline", "kyber-iosched", "bfq"];

/// Programs without which nothing can be counted, and the Debian packages that have them.
const TOOLS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("modprobe", "kmod"),
    ("fio", "fio"),
];

/// Elevators of Linux.
const ELEVATORS: &str = "none mq-deadline kyber bfq";

/// The guest's first program. `DEPTHS` is replaced.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
for m in $(cat /mod/order); do case $m in null_blk) ;; *) insmod /mod/$m.ko 2>/dev/null ;; esac; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose hostroot /host || echo "FAILED the host's root cannot be mounted"
for d in proc sys dev dev/shm tmp; do mount --bind /$d /host/$d 2>/dev/null; done
insmod /mod/null_blk.ko queue_mode=2 submit_queues=1 nr_devices=1 hw_queue_depth=256 irqmode=1 gb=4 || echo "FAILED no null_blk"
for d in DEPTHS; do for op in read write; do for s in ELEVATORS; do
  echo $s > /sys/block/nullb0/queue/scheduler || { echo "FAILED the kernel has no $s"; continue; }
  chroot /host /usr/bin/env fio --name=x --filename=/dev/nullb0 --rw=rand$op --bs=4k --direct=1 --ioengine=io_uring --iodepth=$d \
    --time_based --runtime=1 --norandommap --randrepeat=0 --thread --gtod_reduce=1 --output-format=json > /tmp/o 2>/tmp/e \
    || echo "FAILED fio: $(head -1 /tmp/e)"
  n=$(tr -d ' \n' < /tmp/o | sed "s/.*\"$op\":{[^{]*\"iops\":\([0-9.]*\).*/\1/")
  echo "COUNTED $s $op $d $n"
done; done; done
poweroff -f
"#;

/// A kernel package, unpacked, and what else is needed.
pub struct Guest {
    root: PathBuf,
    image: PathBuf,
    release: String,
}

impl Guest {
    /// In a folder.
    ///
    /// # Errors
    /// Why there is nothing to count with: one sentence.
    pub fn find(root: &Path) -> Result<Guest, String> {
        for (tool, package) in TOOLS {
            if !has_program(Path::new(tool)) {
                return Err(format!("{tool} is not installed (Debian: {package})"));
            }
        }
        let boot = root.join("boot");
        let how = "a kernel package, unpacked, is wanted (apt-get download linux-image-VERSION; dpkg-deb -x it FOLDER)";
        let entries =
            std::fs::read_dir(&boot).map_err(|error| format!("cannot read {}: {error}; {how}", boot.display()))?;
        let mut images: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("vmlinuz-"))
            .collect();
        images.sort();
        let image = images.pop().ok_or_else(|| format!("{} has no vmlinuz-*", boot.display()))?;
        let release = image.trim_start_matches("vmlinuz-").to_string();
        Ok(Guest { root: root.to_owned(), image: boot.join(&image), release })
    }

    /// Its release.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Counts every elevator, reads and writes, at these depths.
    ///
    /// # Errors
    /// One sentence.
    pub fn count(&self, depths: &[u16]) -> Result<Vec<Counted>, String> {
        let scratch = Scratch::new()?;
        let initramfs = self.initramfs(scratch.path(), depths)?;
        let output = Command::new("timeout")
            .arg(GUEST_S_MAX.to_string())
            .args(["qemu-system-x86_64", "-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off", "-cpu", "max"])
            .args(["-smp", "1", "-m", "1G", "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"])
            .arg("-no-reboot")
            .arg("-kernel")
            .arg(&self.image)
            .arg("-initrd")
            .arg(&initramfs)
            .args(["-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable"])
            .args(["-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("the guest does not start: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the guest ended with {}: {}", output.status, why.trim().replace('\n', "; ")));
        }
        parse(&said)
    }

    fn initramfs(&self, folder: &Path, depths: &[u16]) -> Result<PathBuf, String> {
        let failed =
            |what: &str, error: &dyn std::fmt::Display| format!("cannot make the guest's initramfs: {what}: {error}");
        let root = folder.join("root");
        for name in ["bin", "proc", "sys", "dev", "tmp", "host", "mod"] {
            std::fs::create_dir_all(root.join(name)).map_err(|error| failed(name, &error))?;
        }
        let depths: Vec<String> = depths.iter().map(u16::to_string).collect();
        let init = INIT.replace("DEPTHS", &depths.join(" ")).replace("ELEVATORS", ELEVATORS);
        std::fs::write(root.join("init"), init).map_err(|error| failed("init", &error))?;
        std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))
            .map_err(|error| failed("init", &error))?;
        let script = r#"set -e
kernel=$1; release=$2; root=$3; out=$4; shift 4
tree=$(mktemp -d); trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lib"; modules=$kernel/lib/modules; [ -d "$modules/$release" ] || modules=$kernel/usr/lib/modules
cp -a "$modules" "$tree/lib/"; depmod -b "$tree" "$release"
: > "$root/mod/order"
for m in "$@"; do modprobe -d "$tree" -S "$release" --show-depends "$m" 2>/dev/null | sed -n 's/^insmod //p'; done | awk '!seen[$0]++' |
while read -r path rest; do
  name=$(basename "$path"); name=${name%%.ko*}
  case $path in *.xz) xz -dc "$path" ;; *.zst) zstd -qdc "$path" ;; *) cat "$path" ;; esac > "$root/mod/$name.ko"
  echo "$name" >> "$root/mod/order"
done
cp "$(command -v busybox)" "$root/bin/busybox"
cd "$root"; find . | cpio -o -H newc --quiet > "$out""#;
        let out = folder.join("initramfs");
        let kernel = self.root.canonicalize().map_err(|error| failed("kernel", &error))?;
        let output = Command::new("bash")
            .args(["-c", script, "initramfs"])
            .arg(kernel)
            .arg(&self.release)
            .arg(&root)
            .arg(&out)
            .args(MODULES)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| failed("bash", &error))?;
        match output.status.success() {
            true => Ok(out),
            false => Err(failed("its script", &String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; "))),
        }
    }
}

/// The lines of the guest: elevator, operation, depth, requests per second.
fn parse(said: &str) -> Result<Vec<Counted>, String> {
    if let Some(why) = said.lines().find_map(|line| line.trim().strip_prefix("FAILED ")) {
        return Err(format!("in the guest: {}", why.trim()));
    }
    let mut found = Vec::new();
    for line in said.lines().filter_map(|line| line.trim().strip_prefix("COUNTED ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [policy, op, depth, iops] = words[..] else { return Err(format!("the guest said: {line}")) };
        let (Ok(depth), Ok(iops)) = (depth.parse(), iops.parse::<f64>()) else {
            return Err(format!("the guest said: {line}"));
        };
        let op = if op == "read" { "read" } else { "write" };
        if iops <= 0.0 {
            return Err(format!("fio made no request in the guest: {line}"));
        }
        found.push(Counted { policy: policy.into(), op, depth, instructions: 1e9 / iops / NS_PER_INSTRUCTION });
    }
    if found.is_empty() {
        return Err("the guest counted nothing".into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_the_guests_time_are_instructions() {
        // 50,000 per second are 20 us each, 10,000 instructions at 2 ns.
        let found = parse("hello\r\nCOUNTED none read 1 50000.5\r\nCOUNTED bfq write 64 25000\r\n").unwrap();
        assert!((found[0].instructions - 10_000.0).abs() < 1.0);
        assert_eq!(
            (found[1].policy.as_str(), found[1].op, found[1].depth, found[1].instructions),
            ("bfq", "write", 64, 20_000.0)
        );
    }

    #[test]
    fn a_guest_that_failed_says_why() {
        assert_eq!(parse("FAILED no null_blk\n"), Err("in the guest: no null_blk".to_string()));
        assert!(parse("").unwrap_err().contains("nothing"));
        assert!(parse("COUNTED none read 1\n").unwrap_err().contains("the guest said"));
        assert!(parse("COUNTED none read 1 0\n").unwrap_err().contains("no request"));
    }

    #[test]
    fn without_a_kernel_it_says_how_to_get_one() {
        let reason = Guest::find(Path::new("/nowhere")).err().unwrap();
        assert!(reason.contains("dpkg-deb -x") || reason.contains("is not installed"), "{reason}");
    }
}
