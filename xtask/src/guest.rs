//! `cargo xtask guest`: what the project does under, or inside, a Linux kernel in a guest.
//!
//! A case is a job in `testing/guest/cases` and an entry of [`CASES`]: kernels, virtual CPUs, modules, packages of its
//! programs. The machine is [`mqfq_testing::guest`]'s. `cases/NAME.sh`, if there is one, first leaves more in the
//! guest's folder. `mount_ext4` mounts below `/tmp`, the one place that programs of this machine see. This file and
//! `plugs.rs` list the lines by which a job asks for changes of a server outside or of disks, and the answers. After a
//! line `GUEST-CUT` the machine is gone at once; the job starts again on the same disks, with the next number in
//! `BOOT`. The bound's checker reads `/share/NAME.trace` of a job.

mod plugs;

use crate::run::{cargo, root, run, target};
use crate::tools;
use mqfq_testing::guest::{self, Guest, Outcome, Time};
use plugs::{Disk, emulated, pluggable};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Packages that bring the machine.
pub(crate) const PACKAGES: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// A case that can be run.
struct Case {
    name: &'static str,
    about: &'static str,
    /// Series of kernels; the first is run unless another is asked for.
    kernels: &'static [&'static str],
    time: Time,
    cpus: u32,
    modules: &'static [&'static str],
    /// More programs, and the packages that bring them.
    packages: &'static [(&'static str, &'static str)],
    job: &'static str,
    /// A folder of the repository with the source of a kernel module, which the job finds as `$MODULE`; such a case has
    /// no use for the server.
    module: Option<&'static str>,
    /// Program that runs outside the guest, if any.
    outside: Option<Outside>,
    /// Disks that QEMU has, beside those of a server.
    emulated: &'static [Disk],
    /// It is about the CPU scheduler: `scx_pmqfq` and a load of threads are built, and not `mqfq`.
    is_of_cpus: bool,
    /// The job runs the laboratory's program, too.
    has_lab: bool,
    patience: Duration,
}

/// A server on this machine, whose exports are the guest's disks.
#[derive(Clone, Copy)]
struct Outside {
    config: &'static str,
    /// Exports, each with a socket of its name.
    disks: &'static [&'static str],
}

/// How often a server is killed while it is written to.
const KILLS: u32 = 100;

/// Defaults of a case: the server in a guest whose time is counted.
const CASE: Case = Case {
    name: "",
    about: "",
    kernels: &[],
    time: Time::Instructions,
    cpus: 2,
    modules: &[],
    packages: &[],
    job: "",
    module: None,
    outside: None,
    emulated: &[],
    is_of_cpus: false,
    has_lab: false,
    patience: Duration::from_secs(1800),
};

/// The scheduler of `cpu/scx`; others of its cases differ in what they say.
const SCX: Case = Case {
    name: "scx",
    about: "CPU time of parallel programs under EEVDF and under scx_pmqfq, on 4 virtual CPUs",
    kernels: &["7.2", "7.3", "6.18", "6.17", "6.16", "6.12-scx"],
    time: Time::Even,
    cpus: 4,
    modules: &[],
    packages: &[("clang-19", "clang-19"), ("gcc", "gcc"), ("hackbench", "rt-tests"), ("chrt", "util-linux")],
    job: concat!(
        include_str!("../../testing/guest/cases/scx.library"),
        include_str!("../../testing/guest/cases/scx.job")
    ),
    is_of_cpus: true,
    patience: Duration::from_secs(3600),
    ..CASE
};

/// The kernel's tests of ublk; those that take their time by the clock have a machine of another time.
const SELFTESTS: Case = Case {
    name: "ublk-selftests",
    about: "the kernel's own tests of ublk with mqfq in their server's place; what a request costs beside theirs",
    // The kernel that the tests came with.
    kernels: &["7.2"],
    time: Time::Instructions,
    cpus: 2,
    modules: &["ublk_drv", "crc32c_generic", "ext4"],
    packages: &[
        ("fio", "fio"),
        ("mkfs.ext4", "e2fsprogs"),
        ("sfdisk", "fdisk"),
        ("gcc", "gcc"),
        // Its header is asked for, by a file that its package brings.
        ("/usr/include/liburing.h", "liburing-dev"),
    ],
    job: include_str!("../../testing/guest/cases/ublk-selftests.job"),
    patience: Duration::from_secs(3600),
    ..CASE
};

const CASES: &[Case] = &[
    Case {
        name: "nbd",
        about: "the kernel's NBD client on mqfq: shares of two tenants 1:3, ext4 on each, verified",
        kernels: &["6.12", "6.1", "7.2", "7.3"],
        modules: &["null_blk", "nbd", "crc32c_generic", "ext4"],
        packages: &[
            ("fio", "fio"),
            ("nbd-client", "nbd-client"),
            ("mkfs.ext4", "e2fsprogs"),
            ("python3", "python3-minimal"),
        ],
        job: include_str!("../../testing/guest/cases/nbd.job"),
        patience: Duration::from_secs(600),
        ..CASE
    },
    Case {
        name: "clients",
        about: "instructions for a read by each front end, beside other servers and fio alone, on three block devices",
        kernels: &["6.12", "7.2"],
        modules: &["null_blk", "brd", "loop"],
        packages: &[
            ("fio", "fio"),
            ("nbdkit", "nbdkit"),
            ("qemu-storage-daemon", "qemu-system-common"),
            ("python3", "python3-minimal"),
        ],
        job: include_str!("../../testing/guest/cases/clients.job"),
        has_lab: true,
        patience: Duration::from_secs(3600),
        ..CASE
    },
    Case {
        name: "ublk",
        about: "block devices in the guest: ext4 while the server is killed, live changes, shares of two tenants 1:3",
        // Debian builds 6.1 without ublk.
        kernels: &["6.12", "7.2", "7.3"],
        modules: &["ublk_drv", "null_blk", "crc32c_generic", "ext4"],
        packages: &[
            ("fio", "fio"),
            ("mkfs.ext4", "e2fsprogs"),
            ("python3", "python3-minimal"),
            ("db_bench", "rocksdb-tools"),
        ],
        job: include_str!("../../testing/guest/cases/ublk.job"),
        ..CASE
    },
    Case {
        name: "ublk-kills",
        about: "ext4 and fio on two ublk devices while the server is killed, or stopped and started again, 50 times",
        kernels: &["6.12", "7.2", "7.3"],
        time: Time::Threads,
        cpus: 2,
        modules: &["ublk_drv", "crc32c_generic", "ext4"],
        packages: &[("fio", "fio"), ("mkfs.ext4", "e2fsprogs"), ("python3", "python3-minimal")],
        job: concat!("[ \"$ONLY\" = restarts ] || ONLY=kills\n", include_str!("../../testing/guest/cases/ublk.job")),
        ..CASE
    },
    Case {
        name: "ublk-pages",
        about: "fio on a ublk device whose payloads stay in the kernel, over three kinds of files, with 50 kills each",
        // 6.16 and later have the feature.
        kernels: &["7.2", "7.3"],
        time: Time::Threads,
        cpus: 2,
        modules: &["ublk_drv", "null_blk", "crc32c_generic", "ext4"],
        packages: &[("fio", "fio"), ("mkfs.ext4", "e2fsprogs"), ("python3", "python3-minimal")],
        job: concat!("PAGES=$ONLY\n", include_str!("../../testing/guest/cases/ublk.job")),
        ..CASE
    },
    Case {
        name: "broken",
        about: "storage that breaks under a server: an NVMe drive is pulled out, device mapper answers errors",
        kernels: &["6.12", "6.1", "7.2"],
        time: Time::Threads,
        cpus: 2,
        modules: &["nvme", "null_blk", "dm-mod"],
        packages: &[("fio", "fio"), ("dmsetup", "dmsetup")],
        job: include_str!("../../testing/guest/cases/broken.job"),
        emulated: &[Disk { name: "nvme", model: "nvme,serial=nvme,max_ioqpairs=4", size_mib: 64 }],
        patience: Duration::from_secs(900),
        ..CASE
    },
    SELFTESTS,
    Case {
        name: "ublk-selftests-long",
        about: "those of the kernel's tests of ublk that run for a while by the clock: load, kills, recovery",
        time: Time::Threads,
        job: concat!(
            "[ \"$ONLY\" = all ] && ONLY=long\n",
            include_str!("../../testing/guest/cases/ublk-selftests.job")
        ),
        ..SELFTESTS
    },
    Case {
        name: "vhost-user-blk",
        about: "virtio disks of a server outside the guest: shares of two tenants 1:3, ext4 while the server is killed",
        kernels: &["6.12", "6.1", "7.2", "7.3"],
        time: Time::Threads,
        cpus: 2,
        modules: &["virtio_blk", "crc32c_generic", "ext4"],
        packages: &[("fio", "fio"), ("mkfs.ext4", "e2fsprogs"), ("python3", "python3-minimal")],
        job: include_str!("../../testing/guest/cases/vhost-user-blk.job"),
        outside: Some(Outside {
            config: include_str!("../../testing/guest/cases/vhost-user-blk.toml"),
            disks: &["small", "large", "first", "second", "spare"],
        }),
        patience: Duration::from_secs(1500),
        ..CASE
    },
    SCX,
    Case {
        name: "scx-8",
        about: "the same on 8 virtual CPUs: a barrier, and hogs",
        cpus: 8,
        job: concat!(
            "ONLY=wide\n",
            include_str!("../../testing/guest/cases/scx.library"),
            include_str!("../../testing/guest/cases/scx.job")
        ),
        ..SCX
    },
    Case {
        name: "scx-programs",
        about: "programs that nobody here wrote, alone, beside hogs and in pairs, under EEVDF and under scx_pmqfq",
        kernels: &["7.2", "7.3"],
        time: Time::Even,
        cpus: 4,
        modules: &[],
        packages: &[
            ("clang-19", "clang-19"),
            ("gcc", "gcc"),
            ("make", "make"),
            ("hackbench", "rt-tests"),
            ("sysbench", "sysbench"),
            ("pigz", "pigz"),
            ("x264", "x264"),
            ("stress-ng", "stress-ng"),
            ("pgbench", "postgresql"),
        ],
        job: concat!(
            include_str!("../../testing/guest/cases/scx.library"),
            include_str!("../../testing/guest/cases/scx-programs.job")
        ),
        is_of_cpus: true,
        patience: Duration::from_secs(3600),
        ..CASE
    },
    Case {
        name: "elevator-disks",
        about: "the elevator on NVMe, virtio, loop and device mapper: shares, disks unplugged under load, races of settings",
        kernels: SOAK_KERNELS,
        time: Time::Threads,
        cpus: 4,
        modules: &[
            "null_blk",
            "nvme",
            "virtio_blk",
            "loop",
            "dm-mod",
            "mq-deadline",
            "configfs",
            "crc32c_generic",
            "ext4",
        ],
        packages: ELEVATOR_PACKAGES,
        job: include_str!("../../testing/guest/cases/elevator-disks.job"),
        module: Some("kernel/elevator"),
        emulated: &[
            Disk { name: "nvme", model: "nvme,serial=nvme,max_ioqpairs=4", size_mib: 64 },
            Disk { name: "virtio", model: "virtio-blk-pci,num-queues=4", size_mib: 64 },
        ],
        ..CASE
    },
    Case {
        name: "elevator-power",
        about: "the elevator under ext4 on an emulated NVMe drive whose machine loses its power: nothing acknowledged is lost",
        kernels: SOAK_KERNELS,
        time: Time::Threads,
        cpus: 4,
        modules: &["nvme", "crc32c_generic", "ext4"],
        packages: ELEVATOR_PACKAGES,
        job: include_str!("../../testing/guest/cases/elevator-power.job"),
        module: Some("kernel/elevator"),
        emulated: &[Disk { name: "nvme", model: "nvme,serial=nvme,max_ioqpairs=4", size_mib: 256 }],
        ..CASE
    },
    Case {
        name: "elevator",
        about: "the elevator in the kernel: its cost, and shares of cgroups, beside none, bfq, kyber and mq-deadline",
        kernels: ELEVATOR_KERNELS,
        modules: ELEVATOR_MODULES,
        packages: ELEVATOR_PACKAGES,
        job: include_str!("../../testing/guest/cases/elevator.job"),
        module: Some("kernel/elevator"),
        patience: Duration::from_secs(3600),
        ..CASE
    },
    Case {
        name: "elevator-soak",
        about: "the elevator under switches, cgroups and devices that come and go, unloading, bad input, ext4",
        kernels: SOAK_KERNELS,
        time: Time::Threads,
        cpus: 4,
        modules: &["null_blk", "nvme", "mq-deadline", "configfs", "crc32c_generic", "ext4"],
        packages: ELEVATOR_PACKAGES,
        job: include_str!("../../testing/guest/cases/elevator-soak.job"),
        module: Some("kernel/elevator"),
        ..CASE
    },
];

const ELEVATOR_KERNELS: &[&str] = &["6.12", "6.1", "7.2"];
const ELEVATOR_MODULES: &[&str] =
    &["null_blk", "nvme", "bfq", "kyber-iosched", "mq-deadline", "configfs", "crc32c_generic", "ext4", "xfs"];

/// The last two complain of far more, and are slow.
const SOAK_KERNELS: &[&str] = &["6.12", "6.1", "7.2", "debug", "kcsan"];

const ELEVATOR_PACKAGES: &[(&str, &str)] = &[
    ("fio", "fio"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("python3", "python3-minimal"),
    ("gcc-12", "gcc-12"),
    ("pahole", "pahole"),
    ("make", "make"),
    ("debootstrap", "debootstrap"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
];

/// Options of the command.
#[derive(Default)]
pub struct Options<'a> {
    /// Which case. `None`: they are listed.
    pub case: Option<&'a str>,
    /// Series of the kernel. `None`: the case's first.
    pub kernel: Option<&'a str>,
    /// Part of the case, if its job has parts. `None`: all.
    pub only: Option<&'a str>,
    /// How often a server is killed, or stopped and started again. `None`: as the case has it.
    pub kills: Option<u32>,
    /// One JSON object on stdout instead of a table.
    pub json: bool,
}

/// Runs a case, with progress on stderr and the report on stdout.
///
/// # Errors
/// One sentence: there is no such case or kernel, or the guest found something wrong. A machine without QEMU where none
/// can be installed is no error outside CI: the case is skipped, and the reason said.
pub fn guest(options: &Options<'_>) -> Result<(), String> {
    let names = || CASES.iter().map(|case| case.name).collect::<Vec<_>>().join(", ");
    let Some(name) = options.case else {
        CASES
            .iter()
            .for_each(|case| println!("{:<12} {} (kernels {})", case.name, case.about, case.kernels.join(", ")));
        return Ok(());
    };
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| format!("there is no guest case {name}, allowed is {}", names()))?;
    let kernel = options.kernel.unwrap_or(case.kernels[0]);
    if !case.kernels.contains(&kernel) {
        return Err(format!("guest {name} does not run on kernel {kernel}, allowed is {}", case.kernels.join(", ")));
    }
    let packages: Vec<(&str, &str)> = PACKAGES.iter().chain(case.packages).copied().collect();
    if let Err(missing) = tools::ensure_programs(&packages) {
        if tools::in_ci() {
            return Err(format!("CI skips nothing: {missing}"));
        }
        println!("skipped: {missing}");
        return Ok(());
    }
    let folder = target().join("guest").join(name);
    std::fs::create_dir_all(folder.join("share")).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mqfq = target().join("release/mqfq");
    if let Some(source) = case.module {
        let source = root().join(source);
        guest::build_module(kernel, &source, &folder.join("share"), &mut |line| eprintln!("  {line}"))?;
    } else if case.is_of_cpus {
        build_scheduler(&folder.join("share"))?;
    } else {
        run(&mut cargo(if case.has_lab { "build --release -p mqfq -p mqfq-lab" } else { "build --release -p mqfq" }))?;
    }
    guest::prepare(name, &folder.join("share"))?;
    let only = options.only.unwrap_or("all");
    if !only.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter)) {
        return Err(format!("a part of a case is letters, digits, - and _, not {only:?}"));
    }
    let kills = options.kills.map_or(String::new(), |kills| kills.to_string());
    // Each costs a recovery in guest time.
    let patience = case.patience + options.kills.unwrap_or(0) * Duration::from_secs(20);
    let server = case.outside.map(|outside| Server::start(outside, &folder, mqfq.clone())).transpose()?;
    let mut arguments = case.outside.map(|outside| disks(outside.disks, &folder)).unwrap_or_default();
    arguments.extend(emulated(case.emulated, &folder)?);
    let start = Instant::now();
    for trace in traces(&folder.join("share"))? {
        std::fs::remove_file(&trace).map_err(|error| format!("{}: {error}", trace.display()))?;
    }
    let mut server = server;
    let mut outcome = Outcome::default();
    // Once, and again after each loss of power.
    for boot in 1..=BOOTS_MAX {
        // Jobs begin to count at 1 in each boot.
        let _ = std::fs::remove_file(folder.join("share/answer"));
        let job = format!(
            "MQFQ={}\nKILLS={KILLS}\nKILLS_ASKED={kills}\nMODULE=/share/mqfq.ko\nONLY={only}\nBOOT={boot}\n{}",
            mqfq.display(),
            case.job
        );
        let guest = Guest {
            name,
            kernel,
            time: case.time,
            cpus: case.cpus,
            memory_mib: 2048,
            modules: case.modules,
            job: &job,
            arguments: &arguments,
            // Also where others keep the machine busy.
            patience: patience * if ["debug", "kcsan"].contains(&kernel) { 2 } else { 1 },
        };
        let more = guest.run(&folder, &mut |line| match (line.strip_prefix("HOST "), &mut server) {
            (Some(asked), Some(server)) => server.answer(asked),
            (Some(asked), None) => pluggable(case.emulated, &folder, asked),
            _ => eprintln!("  {line}"),
        })?;
        outcome.rows.extend(more.rows);
        outcome.faults.extend(more.faults);
        outcome.complaints.extend(more.complaints);
        (outcome.kernel, outcome.ready_s) = (more.kernel, more.ready_s);
        if !more.is_cut {
            break;
        }
        let log = |name: &str| folder.join(name);
        let kept = std::fs::rename(log("console.log"), log(&format!("console-{boot}.log")));
        kept.map_err(|error| format!("{}: {error}", folder.display()))?;
        if boot == BOOTS_MAX {
            outcome.faults.push(format!("the job still cuts its power at boot {boot}"));
        }
    }
    let wall_s = start.elapsed().as_secs_f64();
    judge_traces(&folder.join("share"), &mut outcome)?;
    if outcome.rows.is_empty() && outcome.faults.is_empty() {
        outcome.faults.push(format!("nothing was run: {name} has no part {only:?}"));
    }
    report(case, &outcome, wall_s, options.json)?;
    match outcome.faults.first().or(outcome.complaints.first()) {
        None => Ok(()),
        Some(fault) => {
            Err(format!("guest {name} on {}: {fault} (log: {})", outcome.kernel, folder.join("console.log").display()))
        }
    }
}

/// Traces of the elevator that a job has left, NAME.trace each.
fn traces(share: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", share.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(share).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "trace"));
    found.sort();
    Ok(found)
}

/// Holds each trace against the bound: a row each, and a fault if it is broken.
fn judge_traces(share: &Path, outcome: &mut Outcome) -> Result<(), String> {
    let traces = traces(share)?;
    if traces.is_empty() {
        return Ok(());
    }
    run(&mut cargo("build --release -p mqfq-lab"))?;
    for trace in traces {
        let mut bound = Command::new(target().join("release/mqfq-lab"));
        bound.args(["bench", "bound", "--json", "--trace"]).arg(&trace);
        let output = bound.output().map_err(|error| format!("mqfq-lab: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            outcome.faults.push(said.trim().lines().last().unwrap_or("mqfq-lab failed").to_owned());
        }
        let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else { continue };
        let row = &report["rows"][0];
        let name = trace.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let row = json!({
            "case": format!("bound-{name}"), "scheduler": "mqfq", "flows": row["flows"], "queues": row["hctxs"],
            "events": row["steps"], "intervals": row["intervals"], "of_tight_bound": row["largest_share_of_tight_bound"],
            "of_dispatch_bound": row["largest_share_of_dispatch_bound"], "broken": row["broken"],
        });
        outcome.rows.push(row.to_string());
    }
    Ok(())
}

/// Builds `scx_pmqfq`, and a load of threads and its observer that need no library, into the guest's folder.
fn build_scheduler(share: &Path) -> Result<(), String> {
    run(&mut cargo("build --release -p scx_pmqfq --features bpf"))?;
    let built = target().join("release/scx_pmqfq");
    std::fs::copy(&built, share.join("scx_pmqfq")).map_err(|error| format!("{}: {error}", built.display()))?;
    for program in ["load", "watch"] {
        let source = root().join(format!("testing/guest/load/{program}.c"));
        let mut gcc = Command::new("gcc");
        run(gcc.args(["-O2", "-static", "-pthread", "-Wall", "-o"]).arg(share.join(program)).arg(source))?;
    }
    Ok(())
}

fn report(case: &Case, outcome: &Outcome, wall_s: f64, as_json: bool) -> Result<(), String> {
    let parse = |row: &String| serde_json::from_str(row).map_err(|error| format!("a row is no JSON ({error}): {row}"));
    let rows: Vec<Value> = outcome.rows.iter().map(parse).collect::<Result<_, String>>()?;
    if as_json {
        println!(
            "{}",
            json!({
                "guest": case.name, "kernel": outcome.kernel, "cpus": case.cpus,
                "time": match case.time {
                    Time::Instructions => "instructions",
                    Time::Even => "even",
                    Time::Threads => "threads",
                },
                "rows": rows, "faults": outcome.faults, "kernel_complaints": outcome.complaints,
                "ready_s": outcome.ready_s, "wall_s": (wall_s * 10.0).round() / 10.0,
            })
        );
        return Ok(());
    }
    println!("guest {} on Linux {}, {} CPUs: {wall_s:.0} s in all", case.name, outcome.kernel, case.cpus);
    for row in rows.iter().filter_map(Value::as_object) {
        let cells = row.iter().map(|(key, value)| match value {
            Value::String(text) => format!("{key} {text}"),
            other => format!("{key} {other}"),
        });
        println!("  {}", cells.collect::<Vec<_>>().join("   "));
    }
    outcome.faults.iter().for_each(|fault| println!("  wrong: {fault}"));
    outcome.complaints.iter().for_each(|line| println!("  kernel: {line}"));
    Ok(())
}

/// A job that cuts its power has so many boots.
const BOOTS_MAX: u32 = 9;

/// QEMU's arguments that make the exports disks of the machine.
fn disks(names: &[&str], folder: &Path) -> Vec<String> {
    let disk = |name: &&str| {
        let socket = format!("socket,id={name},path={},reconnect=1", folder.join(name).display());
        let device = format!("vhost-user-blk-pci,chardev={name},num-queues=2,queue-size=256");
        ["-chardev".to_owned(), socket, "-device".to_owned(), device]
    };
    names.iter().flat_map(disk).collect()
}

/// A server that runs beside the guest. The guest asks by lines of its console, `HOST NUMBER` and one of `policy NAME`,
/// `resize`, `attached`, `kill`, `restart`, `remove EXPORT`, `report` and `window TENANT TENANT`. The number is written
/// to the guest's folder when that is done.
struct Server {
    outside: Outside,
    folder: PathBuf,
    mqfq: PathBuf,
    policy: String,
    is_resized: bool,
    child: Child,
}

/// Most time for a hypervisor to connect to a server again.
const ATTACH_TIME: Duration = Duration::from_secs(50);

/// Time from one look at a server's counters to the next.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// A window: so many looks at the server's counters, so far apart.
const WINDOW_LOOKS: u32 = 12;
const WINDOW_LOOK_TIME: Duration = Duration::from_secs(1);

/// The metrics of the server whose control socket is at `path`.
fn metrics(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(failed)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: mqfq\r\nConnection: close\r\n\r\n").map_err(failed)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(failed)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Metric of a tenant on device `flash`, over all operations; 0 where there is none yet.
fn metric(text: &str, name: &str, tenant: &str) -> f64 {
    let of_tenant = format!("tenant=\"{tenant}\"");
    let rows = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    let of_both = rows.filter(|(labels, _)| labels.contains("device=\"flash\"") && labels.contains(&of_tenant));
    of_both.filter_map(|(_, value)| value.split(' ').next()?.parse::<f64>().ok()).sum()
}

impl Server {
    fn start(outside: Outside, folder: &Path, mqfq: PathBuf) -> Result<Server, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        File::create(folder.join("disk")).and_then(|disk| disk.set_len(288 << 20)).map_err(failed)?;
        let (folder, policy) = (folder.to_owned(), "mqfq".to_owned());
        write_config(outside, &folder, &policy, false)?;
        let child = spawn(&mqfq, &folder)?;
        Ok(Server { outside, folder, mqfq, policy, is_resized: false, child })
    }

    fn answer(&mut self, asked: &str) {
        let (number, what) = asked.split_once(' ').unwrap_or((asked, ""));
        let done = match what.split_once(' ') {
            None if what == "kill" => self.kill().and_then(|()| self.start_again()),
            None if what == "restart" => self.stop().and_then(|()| self.start_again()),
            // Counters, in the server's log.
            None if what == "report" => self.signal("-USR1"),
            None if what == "attached" => self.attached(),
            None if what == "resize" => {
                self.is_resized = true;
                self.reload()
            }
            Some(("remove", export)) => self.remove(export),
            Some(("window", tenants)) => self.window(tenants),
            Some(("policy", name)) => {
                self.policy = name.to_owned();
                self.reload()
            }
            _ => Err(format!("a guest asks for {what:?}, which nobody here knows")),
        };
        let answer = self.folder.join("share/answer");
        match done.and_then(|()| std::fs::write(answer, number).map_err(|error| error.to_string())) {
            Ok(()) => {}
            // The guest waits in vain, and says so.
            Err(sentence) => eprintln!("  {sentence}"),
        }
    }

    fn reload(&self) -> Result<(), String> {
        write_config(self.outside, &self.folder, &self.policy, self.is_resized)?;
        self.signal("-HUP")
    }

    fn signal(&self, signal: &str) -> Result<(), String> {
        run(Command::new("kill").args([signal, &self.child.id().to_string()]))
    }

    /// Waits until each disk's front-end has its export: QEMU before 9.1 loses a disk whose server is killed earlier
    /// (`docs/use/vhost-user-blk.md`, "A fault of QEMU").
    fn attached(&self) -> Result<(), String> {
        let log = self.folder.join("server.log");
        let read = || std::fs::read(&log).map_err(|error| format!("{}: {error}", log.display()));
        let (before, start) = (read()?.len(), Instant::now());
        let ready = format!(", pid {}\n", self.child.id());
        while start.elapsed() < ATTACH_TIME {
            // A process that does not handle signals yet would end by this one.
            if String::from_utf8_lossy(&read()?).contains(&ready) {
                self.signal("-USR1")?;
            }
            std::thread::park_timeout(LOOK_TIME);
            let text = String::from_utf8_lossy(&read()?[before..]).into_owned();
            let is_attached = |disk: &&str| {
                let listener = format!("unix:{}: ", self.folder.join(disk).display());
                let last = text.lines().rfind(|line| line.starts_with(&listener));
                last.is_some_and(|line| !line[listener.len()..].starts_with("0 "))
            };
            if self.outside.disks.iter().all(is_attached) {
                return Ok(());
            }
        }
        Err(format!("not all disks were connected within {} s", ATTACH_TIME.as_secs()))
    }

    /// Measures the bytes of two tenants of device `flash`, and whether they wait. Leaves a line in the guest's folder:
    /// bytes of the first and of the second, how many looks there were, in how many of them both waited, and the mean
    /// numbers of waiting requests. Under a policy in which requests wait, the bytes are of those looks alone: a tenant
    /// without requests has no share.
    fn window(&self, tenants: &str) -> Result<(), String> {
        let (first, second) = tenants.split_once(' ').ok_or("a window is for two tenants")?;
        let look = || {
            let text = metrics(&self.folder.join("control"))?;
            let of = |name: &str, tenant: &str| metric(&text, name, tenant);
            let each = |name: &str| [of(name, first), of(name, second)];
            Ok::<_, String>((each("mqfq_tenant_transferred_bytes_total"), each("mqfq_tenant_queue_seconds_sum")))
        };
        let (mut bytes, mut waiting_s, mut both) = ([0.0; 2], [0.0; 2], 0);
        let (mut before, begin) = (look()?, Instant::now());
        let mut at = begin;
        for _ in 0..WINDOW_LOOKS {
            std::thread::park_timeout(WINDOW_LOOK_TIME);
            let (now, elapsed_s) = (look()?, at.elapsed().as_secs_f64());
            at = Instant::now();
            let waited_s = [0, 1].map(|tenant| now.1[tenant] - before.1[tenant]);
            // A mean of at least one request all the time.
            let is_both = waited_s.iter().all(|waited_s| *waited_s >= elapsed_s);
            both += u32::from(is_both);
            for tenant in 0..2 {
                waiting_s[tenant] += waited_s[tenant];
                if is_both || self.policy == "none" {
                    bytes[tenant] += now.0[tenant] - before.0[tenant];
                }
            }
            before = now;
        }
        let waiting = waiting_s.map(|waited_s| waited_s / begin.elapsed().as_secs_f64());
        let line = format!("{:.0} {:.0} {WINDOW_LOOKS} {both} {:.1} {:.1}", bytes[0], bytes[1], waiting[0], waiting[1]);
        std::fs::write(self.folder.join("share/window"), line).map_err(|error| format!("share/window: {error}"))
    }

    fn start_again(&mut self) -> Result<(), String> {
        self.child = spawn(&self.mqfq, &self.folder)?;
        Ok(())
    }

    /// Stops it as an operator does.
    fn stop(&mut self) -> Result<(), String> {
        self.signal("-TERM")?;
        let status = self.child.wait().map_err(|error| format!("mqfq: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("mqfq ended with {status} after SIGTERM")) }
    }

    /// Removes an export until the server starts again, since the config keeps it.
    fn remove(&self, export: &str) -> Result<(), String> {
        let socket = format!("unix:{}", self.folder.join("control").display());
        run(Command::new(&self.mqfq).args(["ctl", "--socket", &socket, "export", "rm", export]))
    }

    fn kill(&mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).map_err(|error| format!("mqfq: {error}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

fn write_config(outside: Outside, folder: &Path, policy: &str, is_resized: bool) -> Result<(), String> {
    let size = if is_resized { "128MiB" } else { "96MiB" };
    let text = outside.config.replace("FOLDER", &folder.to_string_lossy());
    let text = text.replace("POLICY", policy).replace("RESIZED", size);
    std::fs::write(folder.join("server.toml"), text).map_err(|error| format!("{}: {error}", folder.display()))
}

fn spawn(mqfq: &Path, folder: &Path) -> Result<Child, String> {
    let log = File::options().create(true).append(true).open(folder.join("server.log"));
    let log = log.and_then(|log| Ok((log.try_clone()?, log))).map_err(|error| format!("server.log: {error}"))?;
    let mut serve = Command::new(mqfq);
    serve.arg("serve").arg(folder.join("server.toml")).stdin(Stdio::null()).stdout(log.0).stderr(log.1);
    serve.spawn().map_err(|error| format!("{}: {error}", mqfq.display()))
}

#[cfg(test)]
mod tests {
    //! Tests of how the harness reads a server's metrics.

    use super::*;

    #[test]
    fn a_tenants_metric_is_summed_over_operations_and_over_nothing_else() {
        let text = "# TYPE bytes counter\n\
                bytes_total{device=\"flash\",tenant=\"small\",operation=\"read\"} 100\n\
                bytes_total{device=\"flash\",tenant=\"small\",operation=\"write\"} 20 # {} 1\n\
                bytes_total{device=\"disk\",tenant=\"small\",operation=\"read\"} 3\n\
                bytes_total{device=\"flash\",tenant=\"large\",operation=\"read\"} 4000\n\
                bytes_total_more{device=\"flash\",tenant=\"small\",operation=\"read\"} 50000\n";
        let of = |tenant| metric(text, "bytes_total", tenant);
        assert_eq!([of("small"), of("large"), of("nobody")], [120.0, 4000.0, 0.0]);
    }
}
