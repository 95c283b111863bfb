//! `cargo xtask engine ceph`: shares of two tenants whose RBD images lie on one Ceph cluster, also while an OSD dies
//! and recovers.
//!
//! ```text
//! fio ─▶ NBD ─▶ mqfq, a pool ─▶ file of FUSE ─▶ qemu-storage-daemon, librbd ─▶ 3 OSDs
//! ```
//!
//! All of it lives in namespaces of its own for mounts, the network and processes. However this command ends, the
//! kernel ends every process in them; a shell outside then removes the folder.
//!
//! With `--krbd` a guest's kernel maps the images, the server is in the guest, and `testing/guest/cases/krbd.job` has
//! the steps.

use super::cluster::{ADDRESS, Cluster, OSDS};
use super::{Finding, Ground, conclude, positive};
use crate::databases::ground::{Running, Server, pass};
use crate::databases::measured::{Clocks, dispatched, percentile, served_bytes};
use crate::databases::{load, machine};
use crate::guest::PACKAGES;
use crate::run::{cargo, command, keep, output, run, shown, target};
use crate::tools;
use mqfq_report::panel::{Along, Panel, Series, render};
use mqfq_report::table::{Align, Table};
use mqfq_testing::guest::{self, Guest, Time};
use mqfq_testing::{Folder, arg};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What the command does, in a line.
pub(super) const ABOUT: &str =
    "a cluster of three OSDs: shares beside none, OSDs that are killed, no space; --krbd: in a guest";

/// Options of the command.
struct Options {
    /// Pairs of windows.
    rounds: u32,
    /// Seconds of a window.
    seconds: u32,
    /// How often an OSD is killed.
    kills: u32,
    /// D of the pool: `auto` or units of 4 KiB, one for each window of a round under `mqfq`.
    depths: Vec<String>,
    /// A guest's kernel maps the images.
    krbd: bool,
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

/// More of them for a guest.
const GUEST_PROGRAMS: &[(&str, &str)] = &[("nbdsh", "python3-libnbd"), ("curl", "curl")];

/// Tenants under load: name, weight, requests in flight.
const TENANTS: [(&str, u32, u32); 2] = [("heavy", 300, 48), ("light", 100, 16)];

/// The tenant whose bytes are verified.
const VERIFIED: &str = "verified";

/// Names of the images.
const IMAGES: [&str; 3] = [TENANTS[0].0, TENANTS[1].0, VERIFIED];

/// Size of an image that a guest maps, MiB.
const GUEST_IMAGE_MIB: u32 = 128;

/// The kernel whose rbd maps them.
const GUEST_KERNEL: &str = "6.12";

/// Time after which an image that does not answer hangs: longer than the cluster's look-out for a silent OSD.
const TIMEOUT_S: u32 = 20;

/// Size of an image, MiB.
const IMAGE_MIB: u32 = 512;

/// Seconds before a window in which its policy is in force already: D is found in that time.
const WARM_UP_S: u32 = 6;

/// Seconds of the windows around a kill.
const KILL_WINDOW_S: u32 = 10;

/// Measures, and prints and keeps the results.
///
/// # Errors
/// One sentence if an option is unknown, this is not root, or a program is missing or fails; or if bytes were lost.
pub fn ceph(words: &[&str]) -> Result<(), String> {
    let options = options(words)?;
    let Some(inside) = &options.inside else { return outside(&options, words) };
    let program = options.program.as_deref().ok_or("the server's binary is missing")?;
    if options.krbd {
        return in_guest(program, inside, options.json);
    }
    let samples = measure(&options, program, inside)?;
    let text: String = samples.all().iter().map(|sample| format!("{sample}\n")).collect();
    let folder = target().join("engine");
    keep(&folder.join("ceph.jsonl"), &text)?;
    keep(&folder.join("ceph.svg"), &samples.picture()?)?;
    match options.json {
        true => print!("{text}"),
        false => print!("{}", samples.text()),
    }
    let verified = samples.kills.iter().chain(&samples.full);
    match verified.filter(|row| row["verify_error"] != 0).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} verified loads failed", samples.kills.len() + samples.full.len())),
    }
}

fn options(words: &[&str]) -> Result<Options, String> {
    let mut options = Options {
        rounds: 10,
        seconds: 30,
        kills: 3,
        depths: vec!["auto".into()],
        krbd: false,
        program: None,
        json: false,
        inside: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match *word {
            "--rounds" => options.rounds = positive(value()?)?,
            "--seconds" => options.seconds = positive(value()?)?,
            "--kills" => options.kills = value()?.parse().map_err(|_| "--kills needs a number".to_string())?,
            "--depth" => options.depths = value()?.split(',').map(str::to_owned).collect(),
            "--program" => options.program = Some(value()?.into()),
            "--inside" => options.inside = Some(value()?.into()),
            "--krbd" => options.krbd = true,
            "--json" => options.json = true,
            other => {
                return Err(format!(
                    "ceph takes --rounds N, --seconds N, --kills N, --depth D[,D...], --krbd, --program P and --json, not {other}"
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
    if options.krbd {
        // Inside there is no network to fetch anything by.
        tools::ensure_programs(PACKAGES)?;
        tools::ensure_programs(GUEST_PROGRAMS)?;
        guest::fetch(GUEST_KERNEL, &mut |line| eprintln!("  {line}"))?;
    }
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
                  folder=$1; class=$2; shift 2; trap 'end 130' INT; trap 'end 143' TERM HUP\n\
                  TMPDIR=$folder setpriv --pdeathsig KILL chrt $class unshare --mount --propagation private --net --pid --fork \
                  --kill-child=KILL --mount-proc \"$@\" & child=$!\n\
                  wait $child; end $?";
    // Virtual CPUs that never wait would leave the cluster nothing.
    let class = if options.krbd { "--other 0" } else { "--fifo 1" };
    let mut again = command("setpriv", ["--pdeathsig", "TERM", "sh", "-c", script, "sh", arg(folder.path()), class]);
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
    /// At most one row.
    full: Vec<Value>,
    /// Readings of each second.
    seconds: Vec<Value>,
    about: Value,
}

/// The server's config: a pool of the folder, an export and a tenant for each image.
fn server_config(sockets: &Folder, backings: &Path) -> String {
    let at = |name: &str| sockets.join(name).display().to_string();
    let mut text = format!(
        "[server]\nworkers = 1\n[control]\nlisten = \"unix:{}\"\n[device.ceph]\nkind = \"pool\"\nfolders = [\"{}\"]\n\
         timeout = \"{TIMEOUT_S}s\"\n",
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
    let _images = cluster.images(&IMAGES, IMAGE_MIB)?;
    let calibrated = calibrate(program, folder)?;
    let sockets = Folder::new();
    let text = server_config(&sockets, &folder.join("backings"));
    let server = Server::with(program, sockets, &text, &IMAGES)?;
    let read = |(name, _, depth): (&str, u32, u32)| {
        let words = ["--rw=randread", "--time_based", "--runtime=1d", &format!("--size={IMAGE_MIB}m")];
        Running::start(fio(&server, name, &words).arg(format!("--iodepth={depth}")), "-KILL")
    };
    let loads = TENANTS.map(read).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut bench = Bench { loads, server, begun: Instant::now(), seconds: Vec::new() };
    samples.about = json!({ "kind": "about", "machine": machine(), "rounds": options.rounds,
                            "seconds": options.seconds, "depth": options.depths, "warm_up_s": WARM_UP_S,
                            "calibrate": calibrated });
    for round in 1..=options.rounds {
        for (label, change) in windows(&options.depths) {
            let set = ["device", "set", "ceph"].into_iter().map(str::to_owned).chain(change).collect::<Vec<_>>();
            bench.server.ctl(&set.iter().map(String::as_str).collect::<Vec<_>>())?;
            bench.window(&label, WARM_UP_S)?;
            let mut row = bench.window(&label, options.seconds)?;
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
    let row = full(&cluster, &mut bench)?;
    eprintln!("{}", full_line(&row));
    samples.full.push(row);
    samples.seconds = std::mem::take(&mut bench.seconds);
    Ok(samples)
}

/// Windows of a round: a label each, and what changes at the device before it.
fn windows(depths: &[String]) -> Vec<(String, Vec<String>)> {
    let set = |policy: &str| vec!["--policy".to_owned(), policy.to_owned()];
    let under_mqfq = depths.iter().map(|depth| {
        // A fixed D would stay in force in the window after it.
        let (label, expert) = match depth.as_str() {
            "auto" => ("mqfq".to_owned(), ["--unset".into(), "expert".into()]),
            depth => (format!("mqfq, D = {depth}"), ["--expert".into(), format!("{{depth={depth}}}")]),
        };
        (label, [set("mqfq"), expert.into()].concat())
    });
    [("none".to_owned(), set("none"))].into_iter().chain(under_mqfq).collect()
}

/// Backings that ail, as `ctl status` has them: PATH STATE.
fn ailing(server: &Server) -> Result<Vec<String>, String> {
    let text = server.ctl(&["status"])?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("device")?.trim().strip_prefix("ceph: "));
    let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    Ok(lines.map(words).collect())
}

/// Waits until `is_so`; the seconds that it took.
fn wait_until(what: &str, is_so: impl Fn() -> Result<bool, String>) -> Result<f64, String> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("{what}: not within 120 s"));
        }
        pass(Duration::from_millis(200));
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Takes the cluster's space away under verified writes and beside the reads, until the image hangs; gives it back, and
/// waits for the image and the writes.
fn full(cluster: &Cluster, bench: &mut Bench) -> Result<Value, String> {
    cluster.set_full(true)?;
    let verified = verified(&bench.server, OSDS)?;
    let hangs = |server: &Server| Ok(!ailing(server)?.is_empty());
    let hangs_s = wait_until("no image hangs", || hangs(&bench.server))?;
    let of_hanging = ailing(&bench.server)?;
    let mut row = bench.window("mqfq, full", KILL_WINDOW_S)?;
    let log = std::fs::read_to_string(bench.server.folder.join("mqfq.log")).unwrap_or_default();
    let begun = Instant::now();
    cluster.set_full(false)?;
    wait_until("the image hangs for ever", || Ok(!hangs(&bench.server)?))?;
    row["kind"] = "full".into();
    row["hangs_s"] = hangs_s.into();
    row["hanging"] = of_hanging.into();
    row["said"] = log.lines().filter(|line| line.contains("does not answer")).collect::<Vec<_>>().into();
    row["answers_s"] = begun.elapsed().as_secs_f64().into();
    // Requests beside the one that hung have failed, so the first load has ended: another one goes well.
    verified.wait_with_output().map_err(|error| format!("fio: {error}"))?;
    let ended = self::verified(&bench.server, OSDS + 1)?.wait_with_output().map_err(|error| format!("fio: {error}"))?;
    judge(&mut row, &ended);
    Ok(row)
}

/// The steps of `krbd.job`, in a guest.
fn in_guest(program: &Path, folder: &Path, json: bool) -> Result<(), String> {
    let cluster = Cluster::start(folder)?;
    cluster.make_images(&IMAGES, GUEST_IMAGE_MIB)?;
    let job = include_str!("../../../testing/guest/cases/krbd.job");
    let ground = Ground { folder: target().join("engine/krbd"), program: program.into(), only: "all" };
    ground.clear()?;
    let machine = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"].map(str::to_owned);
    let guest = Guest {
        name: "krbd",
        kernel: GUEST_KERNEL,
        // The cluster's.
        time: Time::Threads,
        cpus: 2,
        memory_mib: 2048,
        modules: &["virtio_net", "rbd", "crc32c_generic"],
        job: &format!("ADDRESS={ADDRESS}\n{job}"),
        arguments: &machine,
        patience: Duration::from_secs(3600),
    };
    let findings: Vec<Finding> = ground.run(guest, &mut |line| match line.strip_prefix("HOST ") {
        Some(asked) => cluster.answer(asked, &ground.folder),
        None => eprintln!("  {line}"),
    })?;
    conclude("krbd", ABOUT, &ground.folder, (&findings, &[]), json)
}

/// Kills an OSD under a verified load and beside the reads, starts it again, and waits for the recovery and the load.
fn one_kill(cluster: &Cluster, bench: &mut Bench, kill: u32) -> Result<Value, String> {
    let osd = (kill - 1) % OSDS;
    let verified = verified(&bench.server, kill)?;
    pass(Duration::from_secs(2));
    let begun = Instant::now();
    cluster.restart(osd)?;
    let mut row = bench.window("mqfq, kill", KILL_WINDOW_S)?;
    cluster.wait_until_clean()?;
    let recovered_s = begun.elapsed().as_secs_f64();
    let ended = verified.wait_with_output().map_err(|error| format!("fio: {error}"))?;
    row["kind"] = "kill".into();
    row["osd"] = osd.into();
    row["recovered_s"] = recovered_s.into();
    judge(&mut row, &ended);
    Ok(row)
}

/// Writes of 32 MiB, read again.
fn verified(server: &Server, seed: u32) -> Result<Child, String> {
    let words = ["--rw=randwrite", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=512"];
    let mut fio = fio(server, VERIFIED, &words);
    fio.args([format!("--randseed={seed}"), "--size=32m".into(), "--fsync=64".into()]).stdout(Stdio::piped());
    fio.spawn().map_err(|error| format!("{}: {error}", shown(&fio)))
}

/// Takes the figures of such a load, which has ended, into its row.
fn judge(row: &mut Value, ended: &Output) {
    let text = String::from_utf8_lossy(&ended.stdout);
    let report: Value = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok()).unwrap_or_default();
    row["verified_writes"] = report["jobs"][0]["write"]["total_ios"].clone();
    row["verified_reads"] = report["jobs"][0]["read"]["total_ios"].clone();
    row["longest_write_s"] = (report["jobs"][0]["write"]["clat_ns"]["max"].as_f64().unwrap_or(f64::NAN) * 1e-9).into();
    // A report without an answer is an error, too.
    let error = report["jobs"][0]["error"].as_i64().unwrap_or(-1);
    row["verify_error"] = if ended.status.success() { error } else { error.min(-1) }.into();
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
    let [heavy, light, ratio, cpu_us] = ["heavy", "light", "ratio", "cpu_us"].map(|name| number(row, name));
    let reads = if ratio.is_finite() {
        format!("{heavy:.0} and {light:.0} reads/s, {ratio:.2} to 1, {cpu_us:.0} us of the server each")
    } else {
        format!("{heavy:.0} and {light:.0} reads/s")
    };
    let waited = number(row, "waited") * 100.0;
    format!(
        "{}: {reads}, waited {waited:.0}%, load {:.1}{depth}",
        row["policy"].as_str().unwrap_or_default(),
        number(row, "load"),
    )
}

fn verified_line(row: &Value) -> String {
    match row["verify_error"].as_i64() {
        Some(0) => format!("{} writes verified", row["verified_writes"]),
        _ => format!("VERIFY FAILED ({})", row["verify_error"]),
    }
}

fn full_line(row: &Value) -> String {
    format!(
        "full: {}; {} after {:.0} s, answers {:.0} s after there is space, {}",
        line(row),
        row["hanging"],
        number(row, "hangs_s"),
        number(row, "answers_s"),
        verified_line(row),
    )
}

fn kill_line(row: &Value) -> String {
    let verified = verified_line(row);
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
        [&self.about]
            .into_iter()
            .chain(&self.windows)
            .chain(&self.kills)
            .chain(&self.full)
            .chain(&self.seconds)
            .collect()
    }

    fn of<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Value> {
        self.windows.iter().filter(move |row| row["policy"] == label)
    }

    /// Labels of the windows of a round.
    fn labels(&self) -> Vec<&str> {
        let round = self.windows.iter().take_while(|row| row["round"] == self.windows[0]["round"]);
        round.filter_map(|row| row["policy"].as_str()).collect()
    }

    /// Total of the windows with a label over that of `none` in each round.
    fn totals(&self, label: &str) -> Vec<f64> {
        let pairs = self.of("none").zip(self.of(label));
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
        let rows = self.labels().into_iter().map(|label| (label, self.of(label).collect::<Vec<_>>()));
        for (name, rows) in rows.chain([("kill", self.kills.iter().collect())]) {
            if rows.is_empty() {
                continue;
            }
            let of = |key: &str| median(rows.iter().map(|row| number(row, key)));
            let depths = || rows.iter().flat_map(|row| row["depths"].as_array().into_iter().flatten());
            let depths = || depths().filter_map(Value::as_u64);
            let depth = depths().min().zip(depths().max()).map_or("-".into(), |(min, max)| format!("{min}-{max}"));
            let of_none = match name {
                "none" | "kill" => "-".into(),
                label => format!("{:.2}", median(self.totals(label).into_iter())),
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
        let full = self.full.iter().map(|row| full_line(row) + "\n");
        table.render() + &kills.chain(full).collect::<String>()
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
        let ratio = |(at, label): (usize, &str)| {
            Series::new(label, at, self.of(label).map(|row| (number(row, "round") - 1.0, number(row, "ratio"))))
        };
        let rounds = (1..=self.of("none").count()).map(|round| round.to_string()).collect();
        let ratios = Panel::bars_at("Ratio of the two in each pair of windows", rounds, "to 1");
        let ratios = ratios.with(self.labels().into_iter().enumerate().map(ratio).collect());
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
        Samples { windows: windows.concat(), kills, full: Vec::new(), seconds, about: json!({ "kind": "about" }) }
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
    fn time_of_the_cpu_is_read_behind_the_name_of_the_program() {
        assert_eq!(cpu_s("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20"), 3.0);
        assert_eq!(cpu_s(""), 0.0);
    }

    #[test]
    fn each_image_is_an_export_and_each_depth_has_a_window() {
        let words = |depths: &[&str]| {
            let depths: Vec<String> = depths.iter().map(|&depth| depth.into()).collect();
            let all = windows(&depths).into_iter().map(|(label, change)| format!("{label}: {}", change.join(" ")));
            all.collect::<Vec<_>>()
        };
        assert_eq!(
            words(&["auto", "31"]),
            [
                "none: --policy none",
                "mqfq: --policy mqfq --unset expert",
                "mqfq, D = 31: --policy mqfq --expert {depth=31}"
            ]
        );
        let text = server_config(&Folder::new(), Path::new("/images"));
        assert!(text.contains("folders = [\"/images\"]\ntimeout = \"20s\"\n[tenant"), "{text}");
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
