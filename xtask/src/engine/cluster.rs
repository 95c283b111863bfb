//! A Ceph cluster of one monitor, one manager and three OSDs in the network namespace of this process; and what is
//! asked of it: images, on the host or for a guest, an OSD killed, no space left.

use crate::databases::ground::{Running, pass};
use crate::run::{command, run, shown};
use mqfq_testing::arg;
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Address of the cluster in its network namespace.
pub(super) const ADDRESS: &str = "10.77.0.1";

pub(super) const OSDS: u32 = 3;

/// From the kill of an OSD to its return.
const DEAD: Duration = Duration::from_secs(3);

/// Patience with a cluster that starts or recovers.
const RECOVERY: Duration = Duration::from_secs(300);

/// Requests that FUSE lets be under way, in place of 12.
const MAX_BACKGROUND: u32 = 256;

/// The cluster. Its daemons are children of this process.
pub(super) struct Cluster {
    folder: PathBuf,
    osds: RefCell<Vec<Option<Running>>>,
    _others: Vec<Running>,
}

/// A config for one machine and little memory.
fn config(folder: &Path, id: &str) -> String {
    let at = folder.display();
    format!(
        "[global]\nfsid = {id}\nmon_host = [v2:{ADDRESS}:3300,v1:{ADDRESS}:6789]\npublic_addr = {ADDRESS}\n\
         cluster_addr = {ADDRESS}\nms_bind_ipv6 = false\nauth_cluster_required = none\nauth_service_required = none\n\
         auth_client_required = none\nmon_warn_on_insecure_global_id_reclaim_allowed = false\n\
         auth_allow_insecure_global_id_reclaim = false\nrun_dir = {at}\nadmin_socket = {at}/$name.asok\n\
         log_file = {at}/$name.log\ncrash_dir = {at}\nkeyring = {at}/keyring\nmon_data = {at}/mon\nmgr_data = {at}/mgr\n\
         osd_data = {at}/osd.$id\nosd_journal =\nosd_pool_default_size = 2\nosd_pool_default_min_size = 1\n\
         osd_pool_default_pg_autoscale_mode = off\nosd_crush_chooseleaf_type = 0\n\
         mon_warn_on_pool_no_redundancy = false\nmon_data_avail_warn = 1\nmon_data_avail_crit = 1\n\
         mgr_initial_modules =\nosd_heartbeat_interval = 1\nosd_heartbeat_grace = 5\n\
         [mon]\nmon_osd_min_down_reporters = 1\nmon_osd_adjust_heartbeat_grace = false\nmon_memory_target = 268435456\n\
         [client]\nadmin_socket =\nlog_file =\nrbd_cache = false\n\
         [osd]\nosd_objectstore = bluestore\nbluestore_block_size = 8589934592\nbluestore_block_wal_create = false\n\
         bluestore_block_db_create = false\nbluestore_cache_autotune = false\nbluestore_cache_size = 67108864\n\
         osd_memory_target = 939524096\nosd_class_update_on_start = false\nosd_op_num_shards = 2\n\
         osd_op_num_threads_per_shard = 1\nosd_recovery_sleep = 0\nosd_recovery_sleep_hdd = 0\n\
         osd_recovery_sleep_ssd = 0\nosd_max_scrubs = 0\n"
    )
}

impl Cluster {
    pub(super) fn start(folder: &Path) -> Result<Cluster, String> {
        let begun = Instant::now();
        run(&mut command("ip", ["link", "set", "lo", "up"]))?;
        run(&mut command("ip", ["address", "add", &format!("{ADDRESS}/32"), "dev", "lo"]))?;
        let uuid = || std::fs::read_to_string("/proc/sys/kernel/random/uuid").map(|id| id.trim().to_owned());
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let id = uuid().map_err(failed)?;
        for name in ["mon", "mgr", "osd.0", "osd.1", "osd.2", "backings"] {
            std::fs::create_dir_all(folder.join(name)).map_err(failed)?;
        }
        std::fs::write(folder.join("keyring"), "").map_err(failed)?;
        std::fs::write(folder.join("ceph.conf"), config(folder, &id)).map_err(failed)?;
        let map = folder.join("monmap");
        let addresses = format!("[v2:{ADDRESS}:3300,v1:{ADDRESS}:6789]");
        let mut tool = command("monmaptool", ["--create", "--fsid", &id, "--addv", "a", &addresses]);
        tool.args(["--enable-all-features", "--set-min-mon-release", "pacific", arg(&map)]);
        run(tool.stdout(Stdio::null()))?;
        let mut cluster = Cluster { folder: folder.into(), osds: RefCell::default(), _others: Vec::new() };
        run(&mut cluster.program("ceph-mon", &["-i", "a", "--mkfs", "--monmap", arg(&map)]))?;
        let mon = cluster.daemon("ceph-mon", "a")?;
        cluster._others.push(mon);
        cluster.ceph(&["mon", "enable-msgr2"])?;
        let mgr = cluster.daemon("ceph-mgr", "x")?;
        cluster._others.push(mgr);
        for osd in 0..OSDS {
            let (id, osd) = (uuid().map_err(failed)?, osd.to_string());
            cluster.ceph(&["osd", "new", &id])?;
            run(&mut cluster.program("ceph-osd", &["-i", &osd, "--mkfs", "--osd-uuid", &id]))?;
            let running = cluster.daemon("ceph-osd", &osd)?;
            cluster.osds.borrow_mut().push(Some(running));
        }
        cluster.ceph(&["osd", "pool", "create", "rbd", "32", "32"])?;
        cluster.ceph(&["osd", "pool", "application", "enable", "rbd", "rbd"])?;
        cluster.wait_until_clean()?;
        eprintln!("healthy after {:.0} s", begun.elapsed().as_secs_f64());
        Ok(cluster)
    }

    /// The cluster stands for other machines. So it takes no core from the server and the load, whose threads have a
    /// real-time priority: a client that waits for a core does not keep its requests in flight.
    fn program(&self, name: &str, words: &[&str]) -> Command {
        let mut program = command("chrt", ["--other", "0", name, "-c", arg(&self.folder.join("ceph.conf"))]);
        program.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        program
    }

    fn daemon(&self, name: &str, id: &str) -> Result<Running, String> {
        Running::start(&mut self.program(name, &["-f", "-i", id]), "-KILL")
    }

    /// Kills an OSD, and starts it again after [`DEAD`].
    pub(super) fn restart(&self, osd: u32) -> Result<(), String> {
        let mut osds = self.osds.borrow_mut();
        let place = &mut osds[osd as usize];
        *place = None;
        let again = self.program("ceph-osd", &["-f", "-i", &osd.to_string()]);
        let mut later = command("sh", ["-c", "sleep \"$1\"; shift; exec \"$@\"", "sh", &DEAD.as_secs().to_string()]);
        later.arg(again.get_program()).args(again.get_args()).stdout(Stdio::null()).stderr(Stdio::null());
        *place = Some(Running::start(&mut later, "-KILL")?);
        Ok(())
    }

    /// Output of `ceph`. A client waits for a lost monitor for 300 s.
    pub(super) fn ceph(&self, words: &[&str]) -> Result<String, String> {
        let mut ceph = command("timeout", ["100", "ceph", "-c", arg(&self.folder.join("ceph.conf"))]);
        ceph.args(words).stderr(Stdio::piped());
        let output = ceph.output().map_err(|error| format!("{}: {error}", shown(&ceph)))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{}: {}", shown(&ceph), String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Waits until every OSD is up and every placement group clean.
    pub(super) fn wait_until_clean(&self) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < RECOVERY {
            let status: Value = serde_json::from_str(&self.ceph(&["-s", "-f", "json"])?).unwrap_or_default();
            if is_clean(&status) {
                return Ok(());
            }
            pass(Duration::from_millis(500));
        }
        Err(format!("the cluster is not clean after {} s:\n{}", RECOVERY.as_secs(), self.ceph(&["health", "detail"])?))
    }

    /// Makes images of so many MiB.
    pub(super) fn make_images(&self, names: &[&str], size_mib: u32) -> Result<(), String> {
        let size = size_mib.to_string();
        let make = |name: &&str| self.rbd(&["create", "--size", &size, "--image-feature", "layering", name]);
        names.iter().try_for_each(make)
    }

    /// A command of `rbd`.
    fn rbd(&self, words: &[&str]) -> Result<(), String> {
        run(command("timeout", ["100", "rbd", "-c", arg(&self.folder.join("ceph.conf"))]).args(words))
    }

    /// Makes images of so many MiB, written all over, and shows them by FUSE as files in the folder `backings`.
    pub(super) fn images(&self, names: &[&str], size_mib: u32) -> Result<Running, String> {
        self.make_images(names, size_mib)?;
        let conf = self.folder.join("ceph.conf");
        let mut daemon = command("chrt", ["--other", "0", "qemu-storage-daemon"]);
        let file = |name: &str| self.folder.join("backings").join(name);
        for name in names {
            std::fs::write(file(name), "").map_err(|error| format!("{name}: {error}"))?;
            let (image, at) = (format!("pool=rbd,image={name},conf={}", conf.display()), file(name));
            daemon.args(["--blockdev", &format!("driver=rbd,node-name={name},{image},cache.direct=on")]);
            daemon.args([
                "--export",
                &format!("fuse,id=e-{name},node-name={name},mountpoint={},writable=on", at.display()),
            ]);
        }
        let mut running = Running::start(&mut daemon, "-TERM")?;
        let size = u64::from(size_mib) << 20;
        let is_there = |name: &&str| std::fs::metadata(file(name)).is_ok_and(|file| file.len() == size);
        running.wait_until("qemu-storage-daemon", || names.iter().all(is_there))?;
        let control = self.folder.join("control");
        std::fs::create_dir_all(&control).map_err(|error| format!("{}: {error}", control.display()))?;
        run(&mut command("mount", ["-t", "fusectl", "none", arg(&control)]))?;
        for name in names {
            use std::os::unix::fs::MetadataExt;
            let device = std::fs::metadata(file(name)).map_err(|error| format!("{name}: {error}"))?.dev();
            let limit = control.join(minor(device).to_string()).join("max_background");
            std::fs::write(&limit, MAX_BACKGROUND.to_string())
                .map_err(|error| format!("{}: {error}", limit.display()))?;
            // A read of bytes that were never written reaches no OSD.
            let mut fill =
                command("fio", ["--name=fill", "--ioengine=io_uring", "--direct=1", "--rw=write", "--bs=1m"]);
            fill.args(["--iodepth=4", &format!("--filename={}", file(name).display()), &format!("--size={size_mib}m")]);
            run(fill.stdout(Stdio::null()))?;
        }
        Ok(running)
    }

    /// The images' pool is full from now on, by its quota, or has space again.
    pub(super) fn set_full(&self, is_full: bool) -> Result<(), String> {
        self.ceph(&["osd", "pool", "set-quota", "rbd", "max_bytes", if is_full { "1" } else { "0" }])?;
        let begun = Instant::now();
        while begun.elapsed() < RECOVERY {
            let status: Value = serde_json::from_str(&self.ceph(&["-s", "-f", "json"])?).unwrap_or_default();
            if status["health"]["checks"]["POOL_FULL"].is_object() == is_full {
                return Ok(());
            }
            pass(Duration::from_millis(500));
        }
        Err(format!("the pool does not become {}", if is_full { "full" } else { "as it was" }))
    }

    /// Does what a guest asks by a line of its console: a number, then one of `kill OSD`, `clean`, `full`, `room` and
    /// `resize IMAGE MIB`. The number is the answer, in `share/answer` of the guest's folder.
    pub(super) fn answer(&self, asked: &str, folder: &Path) {
        let mut words = asked.split(' ');
        let number = words.next().unwrap_or_default();
        let done = match words.collect::<Vec<_>>()[..] {
            ["kill", osd] => self.restart(osd.parse().unwrap_or(0)),
            ["clean"] => self.wait_until_clean(),
            ["full"] => self.set_full(true),
            ["room"] => self.set_full(false),
            ["resize", image, mib] => self.rbd(&["resize", "--no-progress", "--size", mib, image]),
            _ => Err(format!("a guest asks for {asked:?}, allowed are kill, clean, full, room and resize")),
        };
        let answer = folder.join("share/answer");
        // Without an answer the guest waits in vain, and says so.
        if let Err(sentence) = done.and_then(|()| std::fs::write(answer, number).map_err(|error| error.to_string())) {
            eprintln!("  {sentence}");
        }
    }
}

/// The minor number of a device: the name of a connection of FUSE.
fn minor(device: u64) -> u64 {
    device & 0xff | device >> 12 & 0xfff_ff00
}

fn is_clean(status: &Value) -> bool {
    let states = status["pgmap"]["pgs_by_state"].as_array();
    let are_clean = states.is_some_and(|states| states.iter().all(|state| state["state_name"] == "active+clean"));
    are_clean && status["pgmap"]["num_pgs"].as_u64() >= Some(32) && status["osdmap"]["num_up_osds"] == OSDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cluster_is_clean_with_all_of_its_groups_and_osds() {
        let status = |state: &str, osds: u32| {
            json!({ "pgmap": { "num_pgs": 32, "pgs_by_state": [{ "state_name": state, "count": 32 }] },
                    "osdmap": { "num_up_osds": osds } })
        };
        assert!(is_clean(&status("active+clean", 3)));
        assert!(!is_clean(&status("active+clean", 2)) && !is_clean(&status("active+undersized", 3)));
        assert!(!is_clean(&json!({})));
    }

    #[test]
    fn a_minor_number_has_two_parts() {
        assert_eq!([0x2f, 0x10_002f, 0x801].map(minor), [0x2f, 0x12f, 1]);
    }
}
