//! `cargo xtask guest`: what the project does under, or inside, a Linux kernel in a guest.
//!
//! A case is a job in `testing/guest/cases` and a line of [`CASES`]; the machine is [`testing::guest`]'s.

use crate::run::{cargo, run, target};
use crate::tools;
use mqfq_testing::guest::{Guest, Outcome, Time};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Packages that bring the machine.
const PACKAGES: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// What can be run.
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
    patience: Duration,
}

const CASES: &[Case] = &[Case {
    name: "nbd",
    about: "the kernel's NBD client on mqfq: shares of two tenants 1:3, ext4 on each, verified",
    kernels: &["6.12", "6.1", "7.2", "7.3"],
    time: Time::Instructions,
    cpus: 2,
    modules: &["null_blk", "nbd", "crc32c_generic", "ext4"],
    packages: &[
        ("fio", "fio"),
        ("nbd-client", "nbd-client"),
        ("mkfs.ext4", "e2fsprogs"),
        ("python3", "python3-minimal"),
    ],
    job: include_str!("../../testing/guest/cases/nbd.job"),
    patience: Duration::from_secs(600),
}];

/// Options of the command.
#[derive(Default)]
pub struct Options<'a> {
    /// Which case. `None`: they are listed.
    pub case: Option<&'a str>,
    /// Series of the kernel. `None`: the case's first.
    pub kernel: Option<&'a str>,
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
    run(&mut cargo("build --release -p mqfq"))?;
    let folder = target().join("guest").join(name);
    let job = format!("MQFQ={}\n{}", target().join("release/mqfq").display(), case.job);
    let guest = Guest {
        name,
        kernel,
        time: case.time,
        cpus: case.cpus,
        memory_mib: 2048,
        modules: case.modules,
        job: &job,
        arguments: &[],
        patience: case.patience,
    };
    let start = Instant::now();
    let outcome = guest.run(&folder, &mut |line| eprintln!("  {line}"))?;
    let wall_s = start.elapsed().as_secs_f64();
    report(case, &outcome, wall_s, options.json)?;
    match outcome.faults.first().or(outcome.complaints.first()) {
        None => Ok(()),
        Some(fault) => {
            Err(format!("guest {name} on {}: {fault} (log: {})", outcome.kernel, folder.join("console.log").display()))
        }
    }
}

fn report(case: &Case, outcome: &Outcome, wall_s: f64, as_json: bool) -> Result<(), String> {
    let parse = |row: &String| serde_json::from_str(row).map_err(|error| format!("a row is no JSON ({error}): {row}"));
    let rows: Vec<Value> = outcome.rows.iter().map(parse).collect::<Result<_, String>>()?;
    if as_json {
        println!(
            "{}",
            json!({
                "guest": case.name, "kernel": outcome.kernel, "cpus": case.cpus,
                "time": if case.time == Time::Instructions { "instructions" } else { "threads" },
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
