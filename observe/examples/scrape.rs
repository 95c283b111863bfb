//! How long does a scrape take, and how much memory do counters take, with so many tenants that are all served? One
//! object of JSON on stdout; wall-clock figures are those of the machine at that moment.
//!
//! ```text
//! cargo run --release -p mqfq-observe --example scrape -- 10000
//! ```
//! Two workers, `mqfq` on the null device, and on each a client that keeps 64 requests of 4 KiB under way, of one
//! tenant after the other. Scrapes begin when every tenant has been served on every worker.
//!
//! Then phases of a second, with one scrape and without, take turns in the same run: processor time of the
//! workers for each request, and p99 of the requests, are compared as ratios of neighbours.

use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, Context, DeviceIndex, Event};
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
use mqfq_blk::latencies::Latencies;
use mqfq_blk::request::{Completion, Op, Submission};
use mqfq_blk::{FlowId, PolicyKind, PolicyOptions};
use mqfq_observe::metrics::Format;
use mqfq_observe::source::Running;
use mqfq_observe::watcher::{Watcher, give_way};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WORKERS: usize = 2;
const REQUEST_BYTES: u32 = 4096;

/// Submission to completion, of a worker's requests.
type Took = Arc<Mutex<Latencies>>;

/// Serves one tenant after the other until it is told to drain.
struct Rounds {
    took: Took,
    tenants: u32,
    next: u32,
    under_way: u32,
    is_over: bool,
}

impl Rounds {
    fn submit(&mut self, context: &mut dyn Context, buffer: Buffer) {
        if self.is_over {
            return;
        }
        let (op, flow) = (Op::Read, FlowId(self.next));
        let submission = Submission {
            flow,
            op,
            offset_bytes: 0,
            length_bytes: REQUEST_BYTES,
            fua: false,
            buffer: Some(buffer),
            cookie: 0,
        };
        self.next = (self.next + 1) % self.tenants;
        context.submit(DeviceIndex(0), submission).expect("a tenant has room for two requests");
        self.under_way += 1;
    }
}

impl Client for Rounds {
    fn start(&mut self, context: &mut dyn Context) {
        (0..64.min(self.tenants)).for_each(|_| self.submit(context, Buffer::new(REQUEST_BYTES as usize)));
    }

    fn event(&mut self, _: &mut dyn Context, event: Event) {
        unreachable!("it asks for nothing, yet got {event:?}")
    }

    fn completed(&mut self, context: &mut dyn Context, completion: Completion) {
        self.under_way -= 1;
        let mut took = self.took.lock().expect("nobody panics with it");
        took.record_n(completion.queued_ns + completion.device_ns, 1);
        drop(took);
        self.submit(context, completion.buffer.expect("a read's buffer comes back"));
    }

    fn turn_end(&mut self, _: &mut dyn Context) {}

    fn room(&mut self, _: &mut dyn Context) {
        unreachable!("no tenant is ever at its bound")
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.is_over = true;
    }

    fn is_done(&self) -> bool {
        self.is_over && self.under_way == 0
    }
}

/// Time that this thread has had a core.
fn on_cpu_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) / 1000
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Pairs of phases, and how long each phase is.
const PAIRS: usize = 20;
const PHASE: Duration = Duration::from_secs(1);

/// A while with scrapes or without.
struct Phase {
    cpu_ps_per_request: u64,
    p50_ns: u64,
    p99_ns: u64,
}

impl Phase {
    fn run(scrapes: bool, watcher: &Watcher, took: &[Took]) -> Phase {
        let taken = || {
            let mut all = Latencies::default();
            took.iter().for_each(|took| all.add(&took.lock().expect("nobody panics with it")));
            all
        };
        let (before, cpu_ns, end) = (taken(), workers_on_cpu_ns(), Instant::now() + PHASE);
        if scrapes {
            assert!(scrape(watcher).bytes > 0);
        }
        // The end of the thread that scrapes may have left a token.
        while Instant::now() < end {
            std::thread::park_timeout(end.saturating_duration_since(Instant::now()));
        }
        let (cpu_ns, all) = (workers_on_cpu_ns() - cpu_ns, taken().since(&before));
        let cpu_ps_per_request = cpu_ns * 1000 / all.len().max(1);
        Phase { cpu_ps_per_request, p50_ns: all.at_millionths(500_000), p99_ns: all.at_millionths(990_000) }
    }
}

/// A scrape on a thread as the server has one for it.
struct Scraped {
    bytes: usize,
    on_cpu_us: u64,
}

fn scrape(watcher: &Watcher) -> Scraped {
    let render = || {
        give_way();
        let before_us = on_cpu_us();
        let (mut text, mut slice, mut bytes) = (watcher.scrape(Format::OpenMetrics), Vec::new(), 0);
        while text.slice(&mut slice) {
            bytes += std::mem::take(&mut slice).len();
        }
        drop(text);
        Scraped { bytes, on_cpu_us: on_cpu_us() - before_us }
    };
    std::thread::scope(|scope| scope.spawn(render).join().expect("it does not panic"))
}

/// Time that the workers have had a core.
fn workers_on_cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it").flatten();
    let is_worker = |folder: &std::path::PathBuf| {
        std::fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.starts_with("mqfq-worker"))
    };
    let on_cpu = |folder: std::path::PathBuf| {
        let text = std::fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.map(|task| task.path()).filter(is_worker).map(on_cpu).sum()
}

fn main() {
    let tenants: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10_000).max(64);
    let flows = (0..tenants).map(|n| FlowOptions::new(&format!("tenant-{n}"))).collect();
    let device = DeviceOptions::new(
        "fast",
        Arc::new(NullDevice::new(1 << 30)),
        PolicyOptions::new(PolicyKind::Mqfq).relaxed(WORKERS),
        flows,
    );
    let options = EngineOptions { workers: WORKERS, pin: false, spin_ns: 0, devices: vec![device] };
    let engine = Arc::new(Engine::start(options).unwrap_or_else(|error| panic!("{error}")));
    let (idle_kib, idle_requests) = (resident_kib(), requests(&engine));
    let took: Vec<Took> = (0..WORKERS).map(|_| Took::default()).collect();
    for (worker, took) in took.iter().enumerate() {
        let client = Rounds { took: took.clone(), tenants, next: 0, under_way: 0, is_over: false };
        engine.attach_to(worker, Box::new(move || Box::new(client)));
    }
    while requests(&engine) < idle_requests + 4 * WORKERS as u64 * u64::from(tenants) {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let served_kib = resident_kib();
    let (export, exports) = (|_: &str| None, |_: &str| Vec::new());
    let watcher = Watcher::new(Arc::new(Running { engine: engine.clone(), limited: Vec::new, export, exports }));
    let timed = |action: &mut dyn FnMut()| {
        let start = Instant::now();
        action();
        start.elapsed().as_micros() as u64
    };
    let ticks: Vec<u64> = (0..61).map(|_| timed(&mut || watcher.tick())).collect();
    let history_kib = resident_kib();
    let (mut bytes, mut all_us) = (0, 0);
    let mut one = || {
        let scraped = scrape(&watcher);
        (bytes, all_us) = (scraped.bytes, all_us + scraped.on_cpu_us);
    };
    let scrapes: Vec<u64> = (0..5).map(|_| timed(&mut one)).collect();
    let scrape_cpu_us_mean = all_us / scrapes.len() as u64;
    let scraped_kib = resident_kib();
    let middle = |mut all: Vec<u64>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let phases: Vec<[Phase; 2]> =
        (0..PAIRS).map(|_| [false, true].map(|scrapes| Phase::run(scrapes, &watcher, &took))).collect();
    // In thousandths of the phase before it.
    let ratio = |of: &dyn Fn(&Phase) -> u64| middle(phases.iter().map(|[off, on]| of(on) * 1000 / of(off)).collect());
    let all = |on: usize, of: &dyn Fn(&Phase) -> u64| middle(phases.iter().map(|pair| of(&pair[on])).collect());
    let (scrape_us_max, scrape_us_median) = (scrapes.iter().max().copied(), middle(scrapes.clone()));
    println!(
        "{}",
        serde_json::json!({
            "tenants": tenants, "workers": WORKERS,
            "scrape_cpu_us_mean": scrape_cpu_us_mean, "scrape_us_median": scrape_us_median, "scrape_us_max": scrape_us_max, "scrape_bytes": bytes,
            "tick_us_median": middle(ticks),
            "pairs_of_phases": PAIRS, "phase_ms": PHASE.as_millis() as u64,
            "worker_cpu_ps_per_request_without": all(0, &|phase| phase.cpu_ps_per_request),
            "worker_cpu_ps_per_request_with": all(1, &|phase| phase.cpu_ps_per_request),
            "worker_cpu_per_request_with_over_without_thousandths": ratio(&|phase| phase.cpu_ps_per_request),
            "p50_ns_without": all(0, &|phase| phase.p50_ns), "p50_ns_with": all(1, &|phase| phase.p50_ns),
            "p99_ns_without": all(0, &|phase| phase.p99_ns), "p99_ns_with": all(1, &|phase| phase.p99_ns),
            "p99_with_over_without_thousandths": ratio(&|phase| phase.p99_ns),
            "resident_idle_kib": idle_kib, "resident_all_served_kib": served_kib,
            "resident_with_a_minute_of_history_kib": history_kib, "resident_after_scrapes_kib": scraped_kib,
        })
    );
    engine.drain(Duration::from_secs(5));
}

fn requests(engine: &Engine) -> u64 {
    engine.sums().devices[0].flows.iter().map(|flow| flow.stats.requests()).sum()
}
