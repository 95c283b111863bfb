//! `cargo xtask engine ceph`: shares of two tenants whose RBD images lie on one Ceph cluster, also while an OSD dies
//! and recovers.
//!
//! ```text
//! fio ─▶ NBD ─▶ mqfq, a pool ─▶ file of FUSE ─▶ qemu-storage-daemon, librbd ─▶ 3 OSDs
//! ```
//!
//! All of it lives in namespaces of its own for mounts, the network and processes. However this command ends, the
//! kernel ends every process in them; a shell outside then removes the folder.

use super::positive;
use crate::databases::ground::{Running, Server, pass};
use crate::databases::measured::{Clocks, dispatched, percentile, served_bytes};
use crate::databases::{load, machine};
use crate::run::{cargo, command, keep, output, run, shown, target};
use crate::tools;
use mqfq_report::panel::{Along, Panel, Series, render};
use mqfq_report::table::{Align, Table};
use mqfq_testing::{Folder, arg};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the command does, in a line.
pub(super) const ABOUT: &str = "a cluster of three OSDs: shares beside none, and OSDs that are killed";

/// Options of the command.
struct Options {
    /// Pairs of windows.
    rounds: u32,
    /// Seconds of a window.
    seconds: u32,
    /// How often an OSD is killed.
    kills: u32,
    /// D of the pool: `auto`, or units of 4 KiB.
    depth: String,
    /// The binary of the server; `None`: a release build.
    program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    json: bool,
    /// The working folder, of this process in its own namespaces; `None`: it is not in them.
    inside: Option<PathBuf>,
}

/// Programs, or files, and their Debian packages.
const PROGRAMS: &[(&str, &str)] = &[
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("ceph", "ceph-common"),
    ("qemu-storage-daemon", "qemu-system-common"),
    // qemu-storage-daemon loads its driver for RBD from there.
    ("/usr/share/doc/qemu-block-extra/copyright", "qemu-block-extra"),
    ("fio", "fio"),
    ("ip", "iproute2"),
    ("chrt", "util-linux"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// Address of the cluster in its network namespace.
const ADDRESS: &str = "10.77.0.1";

const OSDS: u32 = 3;

/// Tenants under load: name, weight, requests in flight.
const TENANTS: [(&str, u32, u32); 2] = [("heavy", 300, 48), ("light", 100, 16)];

/// The tenant whose bytes are verified.
const VERIFIED: &str = "verified";

/// Size of an image, MiB.
const IMAGE_MIB: u32 = 512;

/// Seconds before a window in which its policy is in force already: D is found in that time.
const WARM_UP_S: u32 = 6;

/// Seconds of the windows around a kill.
const KILL_WINDOW_S: u32 = 10;

/// From the kill of an OSD to its return.
const DEAD: Duration = Duration::from_secs(3);

/// Patience with a cluster that starts or recovers.
const RECOVERY: Duration = Duration::from_secs(300);

/// Requests that FUSE lets be under way, in place of 12.
const MAX_BACKGROUND: u32 = 256;

/// Measures, and prints and keeps the results.
///
/// # Errors
/// One sentence if an option is unknown, this is not root, or a program is missing or fails; or if bytes were lost.
pub fn ceph(words: &[&str]) -> Result<(), String> {
    let options = options(words)?;
    let Some(inside) = &options.inside else { return outside(&options, words) };
    let program = options.program.as_deref().ok_or("the server's binary is missing")?;
    let samples = measure(&options, program, inside)?;
    let text: String = samples.all().iter().map(|sample| format!("{sample}\n")).collect();
    let folder = target().join("engine");
    keep(&folder.join("ceph.jsonl"), &text)?;
    keep(&folder.join("ceph.svg"), &samples.picture()?)?;
    match options.json {
        true => print!("{text}"),
        false => print!("{}", samples.text()),
    }
    match samples.kills.iter().filter(|kill| kill["verify_error"] != 0).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} verified loads failed", samples.kills.len())),
    }
}

fn options(words: &[&str]) -> Result<Options, String> {
    let mut options =
        Options { rounds: 10, seconds: 30, kills: 3, depth: "auto".into(), program: None, json: false, inside: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match *word {
            "--rounds" => options.rounds = positive(value()?)?,
            "--seconds" => options.seconds = positive(value()?)?,
            "--kills" => options.kills = value()?.parse().map_err(|_| "--kills needs a number".to_string())?,
            "--depth" => options.depth = value()?.to_string(),
            "--program" => options.program = Some(value()?.into()),
            "--inside" => options.inside = Some(value()?.into()),
            "--json" => options.json = true,
            other => {
                return Err(format!(
                    "ceph takes --rounds N, --seconds N, --kills N, --depth D, --program P and --json, not {other}"
                ));
            }
        }
    }
    Ok(options)
}

/// This command again in namespaces of its own, below a shell that cleans up after it.
fn outside(options: &Options, words: &[&str]) -> Result<(), String> {
    if output(&mut command("id", ["-u"]))?.trim() != "0" {
        return Err("a cluster needs namespaces and mounts: run it as root".into());
    }
    tools::ensure_programs(PROGRAMS)?;
    let program = match &options.program {
        Some(program) => std::path::absolute(program).map_err(|error| format!("{}: {error}", program.display()))?,
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let folder = Folder::new();
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    // The shell gets SIGTERM when this process ends, whatever ends it. `unshare` takes the process with number 1 along,
    // and the kernel the whole namespace with that.
    let script = "end() { kill -KILL $child 2>/dev/null; wait $child; rm -rf \"$folder\"; exit $1; }\n\
                  folder=$1; shift; trap 'end 130' INT; trap 'end 143' TERM HUP\n\
                  TMPDIR=$folder setpriv --pdeathsig KILL chrt --fifo 1 unshare --mount --propagation private --net --pid --fork \
                  --kill-child=KILL --mount-proc \"$@\" & child=$!\n\
                  wait $child; end $?";
    let mut again = command("setpriv", ["--pdeathsig", "TERM", "sh", "-c", script, "sh", arg(folder.path())]);
    again.arg(own).args(["engine", "ceph"]).args(words);
    again.args(["--program", arg(&program), "--inside", arg(folder.path())]);
    eprintln!("$ engine ceph, in namespaces of its own, in {}", folder.path().display());
    let status = again.status().map_err(|error| format!("setpriv: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("engine ceph failed ({status})")) }
}

/// What was measured.
#[derive(Default)]
struct Samples {
    windows: Vec<Value>,
    kills: Vec<Value>,
    /// Readings of each second.
    seconds: Vec<Value>,
    about: Value,
}

/// The cluster. Its daemons are children of this process.
struct Cluster {
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
    fn start(folder: &Path) -> Result<Cluster, String> {
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
    fn restart(&self, osd: u32) -> Result<(), String> {
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
    fn ceph(&self, words: &[&str]) -> Result<String, String> {
        let mut ceph = command("timeout", ["100", "ceph", "-c", arg(&self.folder.join("ceph.conf"))]);
        ceph.args(words).stderr(Stdio::piped());
        let output = ceph.output().map_err(|error| format!("{}: {error}", shown(&ceph)))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{}: {}", shown(&ceph), String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Waits until every OSD is up and every placement group clean.
    fn wait_until_clean(&self) -> Result<(), String> {
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

    /// Images as files that FUSE shows in the folder `backings`.
    fn images(&self) -> Result<Running, String> {
        let conf = self.folder.join("ceph.conf");
        let mut daemon = command("chrt", ["--other", "0", "qemu-storage-daemon"]);
        let file = |name: &str| self.folder.join("backings").join(name);
        let names = TENANTS.map(|(name, ..)| name).into_iter().chain([VERIFIED]);
        for name in names.clone() {
            let size = IMAGE_MIB.to_string();
            run(&mut command(
                "timeout",
                ["100", "rbd", "-c", arg(&conf), "create", "--size", &size, "--image-feature", "layering", name],
            ))?;
            std::fs::write(file(name), "").map_err(|error| format!("{name}: {error}"))?;
            let (image, at) = (format!("pool=rbd,image={name},conf={}", conf.display()), file(name));
            daemon.args(["--blockdev", &format!("driver=rbd,node-name={name},{image},cache.direct=on")]);
            daemon.args([
                "--export",
                &format!("fuse,id=e-{name},node-name={name},mountpoint={},writable=on", at.display()),
            ]);
        }
        let mut running = Running::start(&mut daemon, "-TERM")?;
        let size = u64::from(IMAGE_MIB) << 20;
        let is_there = |name: &str| std::fs::metadata(file(name)).is_ok_and(|file| file.len() == size);
        running.wait_until("qemu-storage-daemon", || names.clone().all(is_there))?;
        let control = self.folder.join("control");
        std::fs::create_dir_all(&control).map_err(|error| format!("{}: {error}", control.display()))?;
        run(&mut command("mount", ["-t", "fusectl", "none", arg(&control)]))?;
        for name in names {
            use std::os::unix::fs::MetadataExt;
            let device = std::fs::metadata(file(name)).map_err(|error| format!("{name}: {error}"))?.dev();
            let limit = control.join(minor(device).to_string()).join("max_background");
            std::fs::write(&limit, MAX_BACKGROUND.to_string())
                .map_err(|error| format!("{}: {error}", limit.display()))?;
            // What was never written is read from no OSD.
            let mut fill =
                command("fio", ["--name=fill", "--ioengine=io_uring", "--direct=1", "--rw=write", "--bs=1m"]);
            fill.args([
                "--iodepth=4",
                &format!("--filename={}", file(name).display()),
                &format!("--size={IMAGE_MIB}m"),
            ]);
            run(fill.stdout(Stdio::null()))?;
        }
        Ok(running)
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

/// The server's config: a pool of the folder, an export and a tenant for each image.
fn server_config(sockets: &Folder, backings: &Path, depth: &str) -> String {
    // `none` knows no D that is found, so it is not named.
    let depth = if depth == "auto" { String::new() } else { format!("expert.depth = {depth}\n") };
    let at = |name: &str| sockets.join(name).display().to_string();
    let mut text = format!(
        "[server]\nworkers = 1\n[control]\nlisten = \"unix:{}\"\n[device.ceph]\nkind = \"pool\"\nfolders = [\"{}\"]\n{depth}",
        at("control.sock"),
        backings.display()
    );
    for (name, weight) in TENANTS.map(|(name, weight, _)| (name, weight)).into_iter().chain([(VERIFIED, 100)]) {
        text += &format!(
            "[tenant.{name}]\nweight = {weight}\n[export.{name}]\ndevice = \"ceph\"\ntenant = \"{name}\"\n\
             path = \"{}\"\nnbd = \"unix:{}\"\n",
            backings.join(name).display(),
            at(&format!("{name}.sock"))
        );
    }
    text
}

/// Counts of the server at one time.
struct Reading {
    at: Instant,
    /// Bytes of each of [`TENANTS`].
    bytes: [f64; 2],
    dispatched: f64,
    /// CPU time of the server's process.
    cpu_s: f64,
    /// D as chosen, units of 4 KiB.
    depth: Option<u64>,
}

impl Reading {
    fn now(server: &Server) -> Result<Reading, String> {
        let counters = server.counters()?;
        Ok(Reading {
            at: Instant::now(),
            bytes: TENANTS.map(|(name, ..)| served_bytes(&counters, name)),
            dispatched: dispatched(&counters),
            cpu_s: cpu_s(&std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap_or_default()),
            depth: counters["in_force"]["depth"]["units"].as_u64(),
        })
    }
}

/// CPU time in `/proc/PID/stat`: 100 ticks to the second, in the fields 14 and 15.
fn cpu_s(stat: &str) -> f64 {
    let after = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    after.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Bytes of a request of the load.
const REQUEST_BYTES: f64 = 4096.0;

/// The server under load.
struct Bench {
    // Dropped first.
    loads: Vec<Running>,
    server: Server,
    begun: Instant,
    /// Readings of each second.
    seconds: Vec<Value>,
}

impl Bench {
    /// Reads the server each second for `seconds`; the figures of all.
    fn window(&mut self, policy: &str, seconds: u32) -> Result<Value, String> {
        let rates = |from: &Reading, to: &Reading| {
            let length_s = (to.at - from.at).as_secs_f64();
            [0, 1].map(|tenant| (to.bytes[tenant] - from.bytes[tenant]) / REQUEST_BYTES / length_s)
        };
        let (first, clients) = (Reading::now(&self.server)?, self.clients());
        let (mut before, mut depths) = (None, Vec::new());
        for second in 1..=seconds {
            pass((Duration::from_secs(second.into())).saturating_sub(first.at.elapsed()));
            let now = Reading::now(&self.server)?;
            let [heavy, light] = rates(before.as_ref().unwrap_or(&first), &now);
            self.seconds.push(json!({ "kind": "second", "at_s": self.begun.elapsed().as_secs_f64(), "policy": policy,
                                      "heavy": heavy, "light": light, "depth": now.depth }));
            depths.extend(now.depth);
            before = Some(now);
        }
        let last = before.ok_or("a window has no second")?;
        let [heavy, light] = rates(&first, &last);
        let length_s = (last.at - first.at).as_secs_f64();
        let later = self.clients();
        let waited = later.iter().zip(&clients).map(|(now, then)| now.since(then, length_s, 1).waited);
        let why = TENANTS.iter().map(|(name, ..)| self.server.ctl(&["why", name]).map(|said| said.trim().to_owned()));
        Ok(json!({ "policy": policy, "heavy": heavy, "light": light, "ratio": heavy / light, "total": heavy + light,
                   "cpu_us": (last.cpu_s - first.cpu_s) * 1e6 / (last.dispatched - first.dispatched).max(1.0),
                   "waited": waited.fold(0.0, f64::max), "depths": depths, "load": load(),
                   "why": why.collect::<Result<Vec<_>, _>>()? }))
    }

    /// Clocks of the clients, and of the server.
    fn clients(&self) -> Vec<Clocks> {
        let pids = self.loads.iter().map(Running::pid).chain([self.server.pid()]);
        pids.map(Clocks::now).collect()
    }
}

fn fio(server: &Server, name: &str, words: &[&str]) -> Command {
    let mut fio = command("fio", ["--ioengine=nbd", "--bs=4k", "--output-format=json"]);
    fio.args([format!("--name={name}"), format!("--uri={}", server.uri(name))]).args(words);
    // fio leaves a state file in its folder when it is interrupted.
    fio.current_dir(server.folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    fio
}

/// What `mqfq calibrate` says of an image.
fn calibrate(program: &Path, folder: &Path) -> Result<Value, String> {
    let image = folder.join("backings").join(TENANTS[0].0);
    let mut calibrate = command(arg(program), ["calibrate", "--quick", "--json", "--workers", "1", "--out"]);
    let text = output(calibrate.args([folder, &image]))?;
    let said: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", shown(&calibrate)))?;
    for note in said["notes"].as_array().into_iter().flatten() {
        eprintln!("calibrate: {}", note.as_str().unwrap_or_default());
    }
    Ok(json!({ "notes": said["notes"], "profile": said["profile"] }))
}

fn measure(options: &Options, program: &Path, folder: &Path) -> Result<Samples, String> {
    let mut samples = Samples::default();
    let cluster = Cluster::start(folder)?;
    let _images = cluster.images()?;
    let calibrated = calibrate(program, folder)?;
    let sockets = Folder::new();
    let text = server_config(&sockets, &folder.join("backings"), &options.depth);
    let names = [TENANTS[0].0, TENANTS[1].0, VERIFIED];
    let server = Server::with(program, sockets, &text, &names)?;
    let read = |(name, _, depth): (&str, u32, u32)| {
        let words = ["--rw=randread", "--time_based", "--runtime=1d", &format!("--size={IMAGE_MIB}m")];
        Running::start(fio(&server, name, &words).arg(format!("--iodepth={depth}")), "-KILL")
    };
    let loads = TENANTS.map(read).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut bench = Bench { loads, server, begun: Instant::now(), seconds: Vec::new() };
    samples.about = json!({ "kind": "about", "machine": machine(), "rounds": options.rounds,
                            "seconds": options.seconds, "depth": options.depth, "warm_up_s": WARM_UP_S,
                            "calibrate": calibrated });
    for round in 1..=options.rounds {
        for policy in ["none", "mqfq"] {
            bench.server.ctl(&["device", "set", "ceph", "--policy", policy])?;
            bench.window(policy, WARM_UP_S)?;
            let mut row = bench.window(policy, options.seconds)?;
            row["kind"] = "window".into();
            row["round"] = round.into();
            eprintln!("round {round} of {}, {}", options.rounds, line(&row));
            samples.windows.push(row);
        }
    }
    for kill in 1..=options.kills {
        let row = one_kill(&cluster, &mut bench, kill)?;
        eprintln!("kill {kill} of {}: {}", options.kills, kill_line(&row));
        samples.kills.push(row);
    }
    samples.seconds = std::mem::take(&mut bench.seconds);
    Ok(samples)
}

/// Kills an OSD under a verified load and beside the reads, starts it again, and waits for the recovery and the load.
fn one_kill(cluster: &Cluster, bench: &mut Bench, kill: u32) -> Result<Value, String> {
    let osd = (kill - 1) % OSDS;
    let words = ["--rw=randwrite", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=512"];
    let mut verified = fio(&bench.server, VERIFIED, &words);
    verified.args([format!("--randseed={kill}"), "--size=32m".into(), "--fsync=64".into()]).stdout(Stdio::piped());
    let verified = verified.spawn().map_err(|error| format!("{}: {error}", shown(&verified)))?;
    pass(Duration::from_secs(2));
    let begun = Instant::now();
    cluster.restart(osd)?;
    let mut row = bench.window("mqfq, kill", KILL_WINDOW_S)?;
    cluster.wait_until_clean()?;
    let recovered_s = begun.elapsed().as_secs_f64();
    let ended = verified.wait_with_output().map_err(|error| format!("fio: {error}"))?;
    let text = String::from_utf8_lossy(&ended.stdout);
    let report: Value = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok()).unwrap_or_default();
    row["kind"] = "kill".into();
    row["osd"] = osd.into();
    row["recovered_s"] = recovered_s.into();
    row["verified_writes"] = report["jobs"][0]["write"]["total_ios"].clone();
    row["verified_reads"] = report["jobs"][0]["read"]["total_ios"].clone();
    row["longest_write_s"] = (report["jobs"][0]["write"]["clat_ns"]["max"].as_f64().unwrap_or(f64::NAN) * 1e-9).into();
    // A report without an answer is an error, too.
    let error = report["jobs"][0]["error"].as_i64().unwrap_or(-1);
    row["verify_error"] = if ended.status.success() { error } else { error.min(-1) }.into();
    Ok(row)
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or(f64::NAN)
}

/// The median of some rows; NaN of none.
fn median(rows: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = rows.filter(|value| value.is_finite()).collect();
    if values.is_empty() { f64::NAN } else { percentile(&mut values, 0.5) }
}

/// One window as it comes.
fn line(row: &Value) -> String {
    let depths: Vec<String> = row["depths"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let depth = if depths.is_empty() { String::new() } else { format!(", D {}", depths.join(" ")) };
    format!(
        "{}: {:.0} and {:.0} reads/s, {:.2} to 1, {:.0} us of the server each, waited {:.0}%, load {:.1}{depth}",
        row["policy"].as_str().unwrap_or_default(),
        number(row, "heavy"),
        number(row, "light"),
        number(row, "ratio"),
        number(row, "cpu_us"),
        number(row, "waited") * 100.0,
        number(row, "load"),
    )
}

fn kill_line(row: &Value) -> String {
    let verified = match row["verify_error"].as_i64() {
        Some(0) => format!("{} writes verified", row["verified_writes"]),
        _ => format!("VERIFY FAILED ({})", row["verify_error"]),
    };
    format!(
        "{}; OSD {} clean again after {:.0} s, longest write {:.1} s, {verified}",
        line(row),
        row["osd"],
        number(row, "recovered_s"),
        number(row, "longest_write_s")
    )
}

impl Samples {
    /// A line of JSON each.
    fn all(&self) -> Vec<&Value> {
        [&self.about].into_iter().chain(&self.windows).chain(&self.kills).chain(&self.seconds).collect()
    }

    fn of<'a>(&'a self, policy: &'a str) -> impl Iterator<Item = &'a Value> {
        self.windows.iter().filter(move |row| row["policy"] == policy)
    }

    /// Total of `mqfq` over that of `none` in each pair.
    fn totals(&self) -> Vec<f64> {
        let pairs = self.of("none").zip(self.of("mqfq"));
        pairs.map(|(none, mqfq)| number(mqfq, "total") / number(none, "total")).collect()
    }

    /// Medians of both policies, and of the windows around a kill.
    fn text(&self) -> String {
        let right = |name| (name, Align::Right);
        let mut table = Table::new(&[
            ("", Align::Left),
            right("windows"),
            right("heavy, 1/s"),
            right("light, 1/s"),
            right("ratio"),
            right("total"),
            right("of none"),
            right("server, us each"),
            right("waited, %"),
            right("D"),
            right("load"),
        ]);
        let kills = self.kills.iter().collect();
        for (name, rows) in [("none", self.of("none").collect()), ("mqfq", self.of("mqfq").collect()), ("kill", kills)]
        {
            let rows: Vec<&Value> = rows;
            if rows.is_empty() {
                continue;
            }
            let of = |key: &str| median(rows.iter().map(|row| number(row, key)));
            let depths = || rows.iter().flat_map(|row| row["depths"].as_array().into_iter().flatten());
            let depths = || depths().filter_map(Value::as_u64);
            let depth = depths().min().zip(depths().max()).map_or("-".into(), |(min, max)| format!("{min}-{max}"));
            let of_none = match name {
                "mqfq" => format!("{:.2}", median(self.totals().into_iter())),
                _ => "-".into(),
            };
            table.row(vec![
                name.into(),
                rows.len().to_string(),
                format!("{:.0}", of("heavy")),
                format!("{:.0}", of("light")),
                format!("{:.2}", of("ratio")),
                format!("{:.0}", of("total")),
                of_none,
                format!("{:.1}", of("cpu_us")),
                format!("{:.0}", of("waited") * 100.0),
                depth,
                format!("{:.1}", of("load")),
            ]);
        }
        let kills = self.kills.iter().zip(1..).map(|(row, kill)| format!("kill {kill}: {}\n", kill_line(row)));
        table.render() + &kills.collect::<String>()
    }

    /// Reads of both tenants over time, their ratio in each window, and D.
    fn picture(&self) -> Result<String, String> {
        let lines = |title: &str, unit: &str, keys: &[&str]| {
            let of = |(at, key): (usize, &&str)| {
                let points = self.seconds.iter().filter(|row| row[*key].is_number());
                Series::new(*key, at, points.map(|row| (number(row, "at_s"), number(row, key))))
            };
            Panel::lines(title, Along::Time, "time, s", unit).with(keys.iter().enumerate().map(of).collect())
        };
        let ratio = |(at, policy): (usize, &str)| {
            Series::new(policy, at, self.of(policy).map(|row| (number(row, "round") - 1.0, number(row, "ratio"))))
        };
        let rounds = (1..=self.of("mqfq").count()).map(|round| round.to_string()).collect();
        let ratios = Panel::bars_at("Ratio of the two in each pair of windows", rounds, "to 1");
        let ratios = ratios.with(["none", "mqfq"].into_iter().enumerate().map(ratio).collect());
        let panels = [
            lines("Reads, under none and mqfq in turn, then with OSDs killed", "per second", &["heavy", "light"]),
            Panel { ideal: Some(3.0), ..ratios },
            lines("D as found", "units", &["depth"]),
        ];
        render("Two tenants with weights 3:1 on one Ceph cluster", &panels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let window = |kind: &str, round: u32, policy: &str, heavy: f64, light: f64, depths: &[u64]| {
            json!({ "kind": kind, "round": round, "policy": policy, "heavy": heavy, "light": light,
                    "ratio": heavy / light, "total": heavy + light, "cpu_us": 20.0, "waited": 0.05, "depths": depths, "load": 3.0,
                    "osd": 1, "recovered_s": 20.0, "longest_write_s": 2.5, "verified_writes": 8192, "verify_error": 0 })
        };
        let windows = [(1, 2000.0), (2, 1000.0), (3, 4000.0)].map(|(round, all)| {
            let mqfq = all * 0.9;
            [
                window("window", round, "none", all * 0.6, all * 0.4, &[]),
                window("window", round, "mqfq", mqfq * 0.75, mqfq * 0.25, &[33, 49]),
            ]
        });
        let seconds = vec![json!({ "kind": "second", "at_s": 1.0, "heavy": 3.0, "light": 1.0, "depth": null })];
        let kills = vec![window("kill", 0, "mqfq, kill", 300.0, 100.0, &[33])];
        Samples { windows: windows.concat(), kills, seconds, about: json!({ "kind": "about" }) }
    }

    #[test]
    fn totals_are_compared_pair_by_pair_and_rows_are_medians() {
        let text = samples().text();
        let row = text.lines().find(|line| line.starts_with("mqfq")).unwrap();
        for part in [" 3 ", " 1350 ", " 450 ", " 3.00 ", " 0.90 ", " 33-49 "] {
            assert!(row.contains(part), "{part} in {row}");
        }
        assert!(text.contains("1.50") && text.ends_with("longest write 2.5 s, 8192 writes verified\n"), "{text}");
    }

    #[test]
    fn a_verified_load_that_failed_is_told_and_the_picture_has_each_pair() {
        let mut samples = samples();
        samples.kills[0]["verify_error"] = 84.into();
        assert!(samples.text().ends_with("VERIFY FAILED (84)\n"));
        assert_eq!(samples.all().len(), 9);
        let picture = samples.picture().unwrap();
        for part in ["heavy", "light", "none", "mqfq", "D as found"] {
            assert!(picture.contains(part), "{part}");
        }
    }

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

    #[test]
    fn time_of_the_cpu_is_read_behind_the_name_of_the_program() {
        assert_eq!(cpu_s("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20"), 3.0);
        assert_eq!(cpu_s(""), 0.0);
    }

    #[test]
    fn each_image_is_an_export_and_a_depth_that_is_found_is_not_named() {
        let folder = Folder::new();
        let config = |depth| server_config(&folder, Path::new("/images"), depth);
        assert!(config("24").contains("folders = [\"/images\"]\nexpert.depth = 24\n"));
        let text = config("auto");
        assert!(!text.contains("depth"), "{text}");
        assert_eq!(text.matches("path = \"/images/").count(), 3);
    }

    #[test]
    fn options_are_read_and_others_refused() {
        let read = options(&["--rounds", "2", "--seconds", "6", "--kills", "0", "--json"]).unwrap();
        assert_eq!((read.rounds, read.seconds, read.kills, read.json), (2, 6, 0, true));
        assert_eq!(options(&["--rounds"]).err().unwrap(), "--rounds needs a value");
        assert!(options(&["--loud"]).err().unwrap().ends_with("not --loud"));
    }
}
