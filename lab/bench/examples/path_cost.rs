//! Cost of a request on the data path alone: batches of 32 through one `HwCtx` on the null device, without threads,
//! sockets or a clock. For `perf` and callgrind, and to time two builds beside each other.
//!
//! ```text
//! cargo build --release -p mqfq-bench --example path_cost
//! valgrind --tool=callgrind --toggle-collect='*path_cost_step*' target/release/examples/path_cost none 1000
//! target/release/examples/path_cost mqfq 1000000
//! ```
//! Callgrind counts each flow's first completion, too, which clears 100 KB for its histograms: of 1,000 batches 3 to 24
//! instructions per request, by the CPU, as glibc chooses a `memset` by it and callgrind counts each round of its `rep
//! stos`. So count 1,000 batches and 3,000, and divide the difference by the 64,000 requests between them.
//!
//! `path_cost LAYER BATCHES [FLOWS [GROUPS [auto | beside | pools | reads | BACKINGS]]]`: LAYER is a policy or `raw`;
//! prints nanoseconds per request. BACKINGS: reads of a `file` device (0) or of a pool of so many backings in turn,
//! each answered in place of the kernel. GROUPS, 0 to 3: all flows are in so many groups, one in the other. `auto`: D
//! is found. `beside`: the same flows in no group take turns with those in groups, of 100 batches each, and medians are
//! printed. `pools`: so do a `file` device and pools of 1 and 1,000 backings. `reads`: the same three, answered by the
//! kernel from its page cache, with the kernel's part of the time.

use io_uring::{IoUring, squeue};
use mqfq_blk::buffer::Buffer;
use mqfq_blk::device::file::{Direct, FileDevice, FileOptions, region_of};
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::device::{Device, QueueOptions};
use mqfq_blk::hctx::{Full, HwCtx, HwCtxOptions, Run};
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::{Completion, Op, Submission};
use mqfq_blk::ring::{Pending, device_and_user};
use mqfq_blk::stage::StageLimits;
use mqfq_blk::table::Owner;
use mqfq_blk::tuning::Tuning;
use mqfq_blk::{CostModel, FlowId, HctxId, PolicyKind, PolicyOptions, Topology};
use mqfq_report::print_line;
use mqfq_sched::flow::Weight;
use mqfq_sched::flow::{Group, GroupId, Tree};
use mqfq_sched::policy::AnyPolicy;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Requests per batch: twice a batch is what `bench scale` keeps in flight on a worker.
const BATCH: u32 = 32;

/// Batches of one path before the other has its turn.
const TURN_BATCHES: u32 = 100;

const LENGTH_BYTES: u32 = 4096;

struct Path {
    hctx: HwCtx<AnyPolicy>,
    buffers: Vec<Buffer>,
    completions: Vec<(Owner, Completion)>,
    flows: u32,
    now_ns: u64,
    pending: Pending,
    /// Backings of a pool; 1: a file, and `None`: the null device.
    backings: Option<u16>,
    next: u16,
    /// The kernel's answers; `None`: an entry is answered in its place.
    kernel: Option<IoUring>,
    /// The kernel's part of all batches so far, ns.
    kernel_ns: u64,
}

/// Places that reads come from in turn, so that one file has as much data as many: a backing each, or parts of one.
const PLACES: u16 = 1000;

const PLACE_BYTES: u64 = 1 << 20;

/// A `file` device (0), or a pool of so many backings, over sparse files that have no name any more.
fn files(backings: u16) -> Result<FileDevice, String> {
    let folder = mqfq_testing::Folder::new();
    let options = |number: u16| {
        let path = folder.file(&number.to_string(), u64::from(PLACES / backings.max(1) + 1) * PLACE_BYTES);
        FileOptions { direct: Direct::Never, ..FileOptions::new(&path) }
    };
    if backings == 0 {
        return FileDevice::open(&options(0));
    }
    let pool = FileDevice::pool();
    (0..backings).try_for_each(|number| pool.add(number, &options(number), None).map(drop))?;
    Ok(pool)
}

fn path(layer: &str, flows: u32, groups: u32, depth_auto: bool, backings: Option<u16>) -> Result<Path, String> {
    let named = || mqfq_policies::REGISTRY.find(layer).map_err(|error| format!("argument 1: {error}, or raw"));
    let kind: PolicyKind = if layer == "raw" { PolicyKind::None } else { named()? };
    let options = PolicyOptions { depth: 64, depth_auto, ..PolicyOptions::new(kind) }.relaxed(1);
    let tuning = Tuning::new(&options, 1);
    let weights = vec![Weight::DEFAULT; flows as usize];
    // So that each flow has the effective weight that it has without groups.
    let sum = Weight::new(100 * u64::from(flows).min(100)).expect("in range");
    let group = |number: u32| Group { weight: sum, parent: number.checked_sub(1).map(GroupId) };
    let tree = Tree {
        groups: (0..groups).map(group).collect(),
        of_flow: vec![groups.checked_sub(1).map(GroupId); flows as usize],
    };
    let policy = AnyPolicy::with_tree(&options, &Topology::flat(1), &weights, &tree);
    let policy = policy.map_err(|error| error.to_string())?;
    let pending = Pending::default();
    let options = QueueOptions { hctx: HctxId(0), depth: 64, ring: Some(pending.door(0)), interrupt: Arc::new(|_| ()) };
    let device = match backings {
        None => NullDevice::new(1 << 30).open_queue(options)?,
        Some(backings) => files(backings)?.open_queue(options)?,
    };
    let mut hctx = HwCtx::new(HwCtxOptions {
        id: HctxId(0),
        policy: Arc::new(policy),
        device,
        queue_depth: 64,
        limits: vec![StageLimits::DEFAULT; flows as usize],
        cost: CostModel::FLAT,
        path: PathOptions::default(),
    });
    hctx.set_tuning(tuning, 0);
    Ok(Path {
        hctx: if layer == "raw" { hctx.raw() } else { hctx },
        buffers: (0..BATCH).map(|_| Buffer::new(LENGTH_BYTES as usize)).collect(),
        completions: Vec::with_capacity(64),
        flows,
        now_ns: 1,
        pending,
        backings: backings.map(|backings| backings.max(1)),
        next: 0,
        kernel: None,
        kernel_ns: 0,
    })
}

// Functions of their own, never inlined: callgrind collects inside them, so that the load around them is not counted.

#[inline(never)]
fn path_cost_step_submit(hctx: &mut HwCtx<AnyPolicy>, submission: Submission, now_ns: u64) -> Result<(), Full> {
    hctx.submit(Owner(0), submission, now_ns, &mut |_| ())
}

#[inline(never)]
fn path_cost_step_run(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64) -> Run {
    hctx.run(now_ns, &mut |_| ())
}

#[inline(never)]
fn path_cost_step_reap(hctx: &mut HwCtx<AnyPolicy>, now_ns: u64, out: &mut Vec<(Owner, Completion)>) -> usize {
    hctx.reap(now_ns, &mut |_| (), out)
}

#[inline(never)]
fn path_cost_step_event(hctx: &mut HwCtx<AnyPolicy>, user: u32) {
    hctx.device_mut().ring_event(user, LENGTH_BYTES as i32);
}

impl Path {
    fn batches(&mut self, batches: u32) {
        let Path { hctx, buffers, completions, flows, now_ns, pending, backings, next, kernel, kernel_ns } = self;
        for _ in 0..batches {
            for number in 0..BATCH {
                let start = backings.map_or(0, |backings| {
                    *next = if *next + 1 < PLACES.max(backings) { *next + 1 } else { 0 };
                    region_of(*next % backings) + u64::from(*next / backings) * PLACE_BYTES
                });
                let submission = Submission {
                    flow: FlowId(number % *flows),
                    op: if backings.is_some() { Op::Read } else { Op::Write },
                    offset_bytes: start + u64::from(number) * 8192,
                    length_bytes: LENGTH_BYTES,
                    fua: false,
                    buffer: buffers.pop(),
                    cookie: number.into(),
                };
                path_cost_step_submit(hctx, submission, *now_ns).expect("room for a batch");
            }
            path_cost_step_run(hctx, *now_ns);
            let entries = pending.take();
            match kernel {
                None => entries.iter().for_each(|entry| {
                    path_cost_step_event(hctx, device_and_user(entry.get_user_data()).1);
                }),
                Some(ring) => {
                    *kernel_ns += answered(ring, &entries);
                    for end in ring.completion() {
                        assert_eq!(end.result(), LENGTH_BYTES as i32, "a read brings its bytes");
                        path_cost_step_event(hctx, device_and_user(end.user_data()).1);
                    }
                }
            }
            path_cost_step_reap(hctx, *now_ns, completions);
            assert_eq!(completions.len() as u32, BATCH, "a batch goes through at once");
            buffers.extend(completions.drain(..).filter_map(|(_, completion)| completion.buffer));
            *now_ns += 1000;
        }
    }
}

/// The kernel answers all entries; the time of that, ns.
fn answered(ring: &mut IoUring, entries: &[squeue::Entry]) -> u64 {
    let start = Instant::now();
    // SAFETY: buffers and descriptors of an entry stay with the device's queue until its end is reported.
    unsafe { ring.submission().push_multiple(entries) }.expect("the ring has room for a batch");
    ring.submit_and_wait(entries.len()).expect("the kernel takes a batch");
    start.elapsed().as_nanos() as u64
}

fn main() -> ExitCode {
    match measure(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("path_cost: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &[String]) -> Result<(), String> {
    let layer = arguments.first().map_or("none", String::as_str);
    let number = |at: usize, default: u32| {
        let number = arguments.get(at).map_or(Ok(default), |text| text.parse());
        let number = number.ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("argument {} is no number from 1 to {}", at + 1, u32::MAX))
    };
    let (batches, flows) = (number(1, 100_000)?, number(2, 8)?);
    let groups = match arguments.get(3).map_or(Ok(0), |text| text.parse()) {
        Ok(groups) if groups <= Tree::DEPTH_MAX as u32 => groups,
        _ => return Err(format!("argument 4 is no number from 0 to {}", Tree::DEPTH_MAX)),
    };
    let plain = |groups| path(layer, flows, groups, false, None);
    let mut path = match arguments.get(4).map(String::as_str) {
        None => plain(groups)?,
        Some("auto") => path(layer, flows, groups, true, None)?,
        Some("beside") => return beside([("in no group", plain(0)?), ("in groups", plain(groups)?)], batches),
        Some(kind @ ("pools" | "reads")) => {
            let of = |backings| {
                let kernel =
                    if kind == "reads" { Some(IoUring::new(2 * BATCH).map_err(|e| e.to_string())?) } else { None };
                Ok::<_, String>(Path { kernel, ..path(layer, flows, groups, false, Some(backings))? })
            };
            return beside([("a file", of(0)?), ("a pool of 1", of(1)?), ("a pool of 1,000", of(1000)?)], batches);
        }
        Some(backings) => {
            let backings = backings
                .parse()
                .map_err(|_| "argument 5 is neither auto, beside, pools, reads nor a number".to_string())?;
            path(layer, flows, groups, false, Some(backings))?
        }
    };
    let ns = ns_per_request(&mut path, batches);
    print_line(format_args!("{layer}: {ns:.2} ns per request"))
}

fn ns_per_request(path: &mut Path, batches: u32) -> f64 {
    let start = Instant::now();
    path.batches(batches);
    start.elapsed().as_nanos() as f64 / (f64::from(batches) * f64::from(BATCH))
}

/// Nanoseconds of a request of each path, and the kernel's part of them.
type Round<const N: usize> = [(f64, f64); N];

/// All in turns, so that the machine is the same for each: medians, also of each beside the first in a round.
fn beside<const N: usize>(mut paths: [(&str, Path); N], batches: u32) -> Result<(), String> {
    let mut rounds: Vec<Round<N>> = Vec::new();
    for round in 0..batches.div_ceil(TURN_BATCHES) as usize {
        let mut each = [(0.0, 0.0); N];
        (0..N).for_each(|at| {
            let at = (at + round) % N;
            let path = &mut paths[at].1;
            path.kernel_ns = 0;
            let whole = ns_per_request(path, TURN_BATCHES);
            each[at] = (whole, path.kernel_ns as f64 / f64::from(TURN_BATCHES * BATCH));
        });
        rounds.push(each);
    }
    let median = |of: &dyn Fn(&Round<N>) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for (at, (name, path)) in paths.iter().enumerate() {
        let ns = median(&|round| round[at].0);
        let (more, ratio) = (median(&|round| round[at].0 - round[0].0), median(&|round| round[at].0 / round[0].0));
        let kernel = match path.kernel {
            None => String::new(),
            Some(_) => format!(
                "; {:.2} of them the kernel's, {:.2} more per round",
                median(&|round| round[at].1),
                median(&|round| round[at].1 - round[0].1)
            ),
        };
        print_line(format_args!(
            "{name}: {ns:.2} ns per request; {more:.2} more per round, {ratio:.4} of the first{kernel}"
        ))?;
    }
    Ok(())
}
