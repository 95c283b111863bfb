//! How does the scheduler get into the kernel, and how does it get out?

use crate::{Options, show};
use libbpf_rs::btf::{Btf, types};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};
use scx_pmqfq::host::{self, Restarts};
use scx_pmqfq::settings::{By, Settings};
use scx_pmqfq::trace;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, unreachable_pub)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/pmqfq.skel.rs"));
}

/// As in `bpf/shared.h`.
const CPUS_MAX: usize = 1024;
const LLCS_MAX: usize = 64;
const TICKETS_MAX: u32 = 4096;

/// `SCX_EXIT_ERROR`: this and more are failures.
const EXIT_ERROR: i32 = 1024;

/// A signal asked for the end.
static IS_OVER: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    // Relaxed: pairs with the load in `run`, and guards nothing else.
    IS_OVER.store(true, Ordering::Relaxed);
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Highest number of a CPU that can ever be there, plus 1.
fn cpus() -> Result<usize, String> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")
        .map_err(|error| format!("/sys/devices/system/cpu/possible: {error}"))?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    let count = last.map(|last| last + 1).ok_or_else(|| format!("no CPUs in {:?}", text.trim()))?;
    if count > CPUS_MAX {
        return Err(format!("this machine has {count} CPUs, allowed is at most {CPUS_MAX}"));
    }
    Ok(count)
}

/// CPUs that share the last cache of `cpu`, as Linux writes a list of them. A cache's `id` does not name it: some
/// virtual machines give one cache a different `id` on each CPU.
fn sharers(cpu: usize) -> Option<String> {
    let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/cache"));
    let caches = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let last = caches.filter_map(|cache| Some((read_number(cache.join("level"))?, cache))).max()?.1;
    std::fs::read_to_string(last.join("shared_cpu_list")).ok()
}

/// The last cache of each CPU, numbered from 0. A machine with more than fit is taken as one.
fn caches(cpus: usize) -> Vec<u8> {
    let mut seen: Vec<Option<String>> = Vec::new();
    let mut of = |cpu: usize| {
        let shared = sharers(cpu);
        seen.iter().position(|known| *known == shared).unwrap_or_else(|| {
            seen.push(shared);
            seen.len() - 1
        })
    };
    let found: Vec<usize> = (0..cpus).map(&mut of).collect();
    if seen.len() > LLCS_MAX { vec![0; cpus] } else { found.into_iter().map(|llc| llc as u8).collect() }
}

/// Callbacks that the running kernel's sched_ext has.
fn callbacks() -> Result<BTreeSet<String>, String> {
    let kernel =
        Btf::from_vmlinux().map_err(|error| format!("the kernel does not describe itself (BTF): {error:#}"))?;
    let ops = kernel.type_by_name::<types::Struct<'_>>("sched_ext_ops");
    let ops = ops.ok_or("the kernel's BTF lacks sched_ext_ops")?;
    Ok(ops.iter().filter_map(|member| Some(member.name?.to_string_lossy().into_owned())).collect())
}

/// Mount point of the cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Time between two looks at what this machine's cgroups ask for in vain.
const LOOK_TIME: Duration = Duration::from_secs(60);

/// Reason for which a scheduler is no longer in force.
enum End {
    /// A signal, or the kernel without an error.
    Asked,
    /// The kernel's reason.
    TakenOut(String),
}

/// Waits for so long, or for a signal.
fn pause(time: Duration) {
    let since = Instant::now();
    // Relaxed: pairs with the store in `end`.
    while since.elapsed() < time && !IS_OVER.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Keeps the scheduler in force until a signal comes. One that the kernel takes out is loaded again, after a pause.
pub fn run(options: &Options, chosen: &Settings) -> Result<(), String> {
    if !chosen.ignores_cpu_max {
        host::refuse_limits(Path::new(CGROUPS))?;
    }
    let mut restarts = Restarts::new(options.restarts);
    loop {
        let since = Instant::now();
        let End::TakenOut(reason) = hold(options, chosen)? else { return Ok(()) };
        let sentence = format!("the kernel took the scheduler out: {reason}");
        let Some(time) = restarts.next(since.elapsed()) else { return Err(sentence) };
        eprintln!("scx_pmqfq: {sentence}; it is loaded again in {} s", time.as_secs());
        pause(time);
        // Relaxed: as in `pause`.
        if IS_OVER.load(Ordering::Relaxed) {
            return Err(sentence);
        }
    }
}

/// Loads the scheduler, and holds it until a signal comes or the kernel takes it out.
fn hold(options: &Options, chosen: &Settings) -> Result<End, String> {
    if !Path::new("/sys/kernel/sched_ext").exists() {
        return Err("this kernel has no sched_ext (CONFIG_SCHED_CLASS_EXT), Linux 6.12 and later can have it".into());
    }
    if !options.trace_events.is_power_of_two() || options.trace_events > 1 << 20 {
        return Err(format!("{} trace events, allowed is a power of 2 up to 1048576", options.trace_events));
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `end` stores to an atomic and does nothing else, which a handler may.
        unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
    }
    let cpus = cpus()?;
    let caches = caches(cpus);
    let events = options.trace.as_ref().map_or(0, |_| options.trace_events);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: libbpf_rs::Error| format!("{what}: {error:#}")
    };
    let mut memory = MaybeUninit::uninit();
    let builder = skeleton::PmqfqSkelBuilder::default();
    let mut open = builder.open(&mut memory).map_err(failed("the scheduler's object cannot be opened"))?;
    let settings = open.maps.rodata_data.as_deref_mut().ok_or("the scheduler's object has no options")?;
    settings.slice_ns = chosen.slice_ns;
    settings.min_slice_ns = chosen.min_slice_ns;
    settings.lag_ns = chosen.lag_ns;
    settings.wait_ns = chosen.wait_ns;
    settings.by_process = chosen.by == By::Process;
    settings.preempts = chosen.preempts;
    settings.nr_programs = options.programs;
    settings.trace_len = events;
    settings.nr_cpus = cpus as u32;
    let nr_llcs = caches.iter().max().map_or(1, |most| u32::from(*most) + 1);
    settings.nr_llcs = nr_llcs;
    settings.llc_of[..cpus].copy_from_slice(&caches);
    let entries = (events * cpus as u32).max(1);
    open.maps.trace.set_max_entries(entries).map_err(failed("the trace has no room"))?;
    let tickets = TICKETS_MAX * cpus as u32;
    open.maps.tickets.set_max_entries(tickets).map_err(failed("the books have no room"))?;
    let ops = open.struct_ops.pmqfq_mut();
    ops.timeout_ms = (chosen.stall_ns / 1_000_000) as u32;
    ops.hotplug_seq = read_number("/sys/kernel/sched_ext/hotplug_seq").unwrap_or(0);
    let callbacks = callbacks()?;
    let (left_out, sentence) = host::left_out(|name| callbacks.contains(name), chosen.by)?;
    for name in left_out {
        *match name {
            "cgroup_init" => &mut ops.cgroup_init,
            "cgroup_exit" => &mut ops.cgroup_exit,
            "cgroup_move" => &mut ops.cgroup_move,
            "cgroup_set_weight" => &mut ops.cgroup_set_weight,
            _ => &mut ops.cgroup_set_idle,
        } = std::ptr::null_mut();
    }
    if let Some(sentence) = sentence {
        eprintln!("scx_pmqfq: {sentence}");
    }
    let mut loaded = open.load().map_err(failed("the kernel refuses the scheduler"))?;
    let link = loaded.maps.pmqfq.attach_struct_ops().map_err(failed(
        "the scheduler cannot be put in force, perhaps another one is (/sys/kernel/sched_ext/root/ops)",
    ))?;
    let pinned = show::pin(&mut loaded.maps.programs);
    if let Err(sentence) = &pinned {
        eprintln!("scx_pmqfq: {sentence}, so `scx_pmqfq top` shows nothing");
    }
    let by = if chosen.by == By::Cgroup { "cgroup" } else { "process" };
    eprintln!("ready: P-MQFQ by {by} on {cpus} CPUs of {nr_llcs} caches");
    let is_out = |maps: &skeleton::PmqfqMaps<'_>| {
        maps.bss_data.as_deref().is_some_and(|data| {
            // SAFETY: the word lies in a mapping that lives as long as `maps`; the kernel may write it meanwhile.
            unsafe { std::ptr::read_volatile(&raw const data.report.is_set) != 0 }
        })
    };
    let (mut said, mut looked) = (BTreeSet::new(), None::<Instant>);
    // Relaxed: pairs with the store in `end`.
    while !IS_OVER.load(Ordering::Relaxed) && !is_out(&loaded.maps) {
        if chosen.by == By::Cgroup && looked.is_none_or(|at| at.elapsed() >= LOOK_TIME) {
            looked = Some(Instant::now());
            for sentence in host::warnings(Path::new(CGROUPS), &mut said) {
                eprintln!("scx_pmqfq: {sentence}");
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(link);
    if options.json {
        println!("{}", show::json(&show::programs(&loaded.maps.programs)?, None));
    }
    if pinned.is_ok() {
        show::unpin();
    }
    if let Some(path) = &options.trace {
        let mut found = Vec::new();
        for at in 0..entries {
            let bytes = loaded.maps.trace.lookup(&at.to_le_bytes(), MapFlags::ANY).map_err(failed("the trace"))?;
            found.extend(bytes.as_deref().and_then(trace::Event::read));
        }
        let head = trace::Head { cpus: cpus as u32, slice_ns: chosen.slice_ns, lag_ns: chosen.lag_ns };
        let file = std::fs::File::create(path);
        file.and_then(|file| trace::write(std::io::BufWriter::new(file), &head, found))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let data = loaded.maps.bss_data.as_deref().ok_or("the scheduler's object has no report")?;
    if data.report.kind >= EXIT_ERROR {
        let text = |bytes: &[i8]| bytes.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect();
        let (reason, message): (String, String) = (text(&data.report.reason), text(&data.report.message));
        return Ok(End::TakenOut(format!("{reason} ({message})")));
    }
    if data.without_slot > 0 {
        eprintln!(
            "scx_pmqfq: {} cgroups or processes shared their parent's place, for want of room",
            data.without_slot
        );
    }
    Ok(End::Asked)
}
