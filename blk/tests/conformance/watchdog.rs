//! Ends the process if a test is stuck, and reports the state of each of its queues and of all threads. A diagnosis and
//! no judgement: a test is stuck when none of its queues has taken or ended a command for [`LIMIT`], however long it
//! takes in all.

use mqfq_blk::device::{Command, Reaped};
use mqfq_blk::tag::Tag;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Far longer than one step on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Most lines of the kernel's report of a ring.
const RING_LINES: usize = 40;

/// State of a queue's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It has something to do, or the test has.
    Running,
    /// In the kernel, for an entry of its ring.
    Waiting,
    /// Until another queue interrupts it: nothing is on its ring.
    Parked,
}

/// A test that is watched.
#[derive(Debug)]
pub struct Test {
    name: &'static str,
    /// Time at which a queue last took or ended a command.
    last_step: Mutex<Instant>,
    queues: Mutex<Vec<Arc<Mutex<State>>>>,
}

/// State of a queue.
#[derive(Debug)]
struct State {
    hctx: u16,
    depth: u16,
    thread: i32,
    doing: Doing,
    /// Entries that were pushed and have not ended.
    on_ring: usize,
    /// By tag: commands that have not ended.
    commands: BTreeMap<u16, String>,
}

/// The tests that are watched, and for how long one may be stuck.
struct Tests {
    running: Vec<Arc<Test>>,
    limit: Duration,
}

static TESTS: Mutex<Tests> = Mutex::new(Tests { running: Vec::new(), limit: LIMIT });

/// Rung when the tests or the limit change.
static CHANGED: Condvar = Condvar::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state after a test's panic is still the best answer to what it did.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches one test until it is dropped.
pub struct Watch(Arc<Test>);

impl Watch {
    /// Watches no test: a wait may be stuck for ever.
    pub fn nobody() -> Watch {
        let (last_step, queues) = (Mutex::new(Instant::now()), Mutex::default());
        Watch(Arc::new(Test { name: "", last_step, queues }))
    }

    /// Watches a test from now on.
    pub fn begin(name: &'static str) -> Watch {
        static THREAD: Once = Once::new();
        THREAD.call_once(|| _ = std::thread::Builder::new().name("watchdog".into()).spawn(watch).unwrap());
        let test = Arc::new(Test { name, last_step: Mutex::new(Instant::now()), queues: Mutex::default() });
        lock(&TESTS).running.push(test.clone());
        CHANGED.notify_all();
        Watch(test)
    }

    pub fn test(&self) -> Arc<Test> {
        self.0.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&TESTS).running.retain(|test| !Arc::ptr_eq(test, &self.0));
    }
}

/// The thread of the watchdog.
fn watch() {
    let mut tests = lock(&TESTS);
    loop {
        let limit = tests.limit;
        let steps = tests.running.iter().map(|test| *lock(&test.last_step));
        match look_again_after(steps, limit, Instant::now()) {
            None => tests = CHANGED.wait(tests).unwrap_or_else(PoisonError::into_inner),
            Some(Duration::ZERO) => {
                let shown = shown_of_all(&tests.running, limit);
                // Not by the macros: a test's output is kept back until it ends.
                _ = std::io::stderr().write_all(shown.as_bytes());
                std::process::abort();
            }
            Some(wait) => {
                tests = CHANGED.wait_timeout(tests, wait).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// How long until one of the tests that last made these steps is stuck: zero if one is. `None`: there is no test.
fn look_again_after(last_steps: impl Iterator<Item = Instant>, limit: Duration, now: Instant) -> Option<Duration> {
    last_steps.map(|step| limit.saturating_sub(now.saturating_duration_since(step))).min()
}

impl Test {
    /// One of its queues, opened by this thread.
    pub fn queue(self: &Arc<Test>, hctx: u16, depth: u16) -> Queue {
        // SAFETY: no memory is involved.
        let thread = unsafe { libc::gettid() };
        let state = State { hctx, depth, thread, doing: Doing::Running, on_ring: 0, commands: BTreeMap::new() };
        let state = Arc::new(Mutex::new(state));
        lock(&self.queues).push(state.clone());
        Queue { test: self.clone(), state }
    }

    fn step(&self) {
        *lock(&self.last_step) = Instant::now();
    }
}

/// A queue's entry in the books.
pub struct Queue {
    test: Arc<Test>,
    state: Arc<Mutex<State>>,
}

impl Queue {
    pub fn does(&self, doing: Doing, on_ring: usize) {
        let mut state = lock(&self.state);
        (state.doing, state.on_ring) = (doing, on_ring);
    }

    pub fn submitted(&self, Tag(tag): Tag, shown: String) {
        lock(&self.state).commands.insert(tag, shown);
        self.test.step();
    }

    pub fn reaped(&self, ended: &[Reaped]) {
        let mut state = lock(&self.state);
        for Reaped { tag, .. } in ended {
            state.commands.remove(&tag.0);
            self.test.step();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        lock(&self.test.queues).retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

/// A command in the books.
pub fn shown(command: &Command) -> String {
    let Command { op, offset_bytes, length_bytes, fua, .. } = command;
    format!("{op:?} {offset_bytes}+{length_bytes}{}", if *fua { " FUA" } else { "" })
}

fn shown_of_all(tests: &[Arc<Test>], limit: Duration) -> String {
    let mut out =
        format!("\nSTUCK: a test has made no step for {} s. All that run, and all threads:\n", limit.as_secs_f64());
    tests.iter().for_each(|test| show_test(test, &mut out));
    show_process(&mut out);
    out
}

fn show_test(test: &Test, out: &mut String) {
    _ = writeln!(out, "test {}, last step {:.3} s ago", test.name, lock(&test.last_step).elapsed().as_secs_f64());
    for state in &*lock(&test.queues) {
        let State { hctx, depth, thread, doing, on_ring, commands } = &*lock(state);
        let doing = match doing {
            Doing::Running => "runs",
            Doing::Waiting => "waits for its ring",
            Doing::Parked => "is parked until another queue interrupts it",
        };
        _ = write!(out, "  queue of hctx {hctx}, depth {depth}: thread {thread} {doing}; ");
        _ = writeln!(out, "{} in flight, {on_ring} entries on its ring", commands.len());
        for (tag, command) in commands {
            _ = writeln!(out, "    tag {tag}: {command}");
        }
    }
}

/// The kernel's view of the threads, and of their rings. Files that it does not show are left out.
fn show_process(out: &mut String) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let entries = |path: &str| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable_by_key(|name| name.parse::<u64>().unwrap_or(0));
        names
    };
    for thread in entries("/proc/self/task") {
        let of = |what: &str| read(&format!("/proc/self/task/{thread}/{what}"));
        let stat = of("stat");
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).unwrap_or("?");
        _ = writeln!(
            out,
            "thread {thread} {}: {state}, {}, call {}",
            of("comm").trim(),
            of("wchan"),
            of("syscall").trim()
        );
        of("stack").lines().for_each(|line| _ = writeln!(out, "    {line}"));
    }
    for fd in entries("/proc/self/fd") {
        let is_ring =
            std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|it| it.ends_with("anon_inode:[io_uring]"));
        if is_ring {
            _ = writeln!(out, "ring {fd}");
            let info = read(&format!("/proc/self/fdinfo/{fd}"));
            info.lines().take(RING_LINES).for_each(|line| _ = writeln!(out, "    {line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Rig, write};
    use mqfq_blk::device::{Device, DeviceInfo, DeviceQueue, QueueFull, QueueOptions};
    use mqfq_blk::request::Status;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// Ends nothing before it is told to.
    #[derive(Default)]
    struct Stubborn(Arc<AtomicBool>);

    struct StubbornQueue(Arc<AtomicBool>, Vec<Reaped>);

    impl Device for Stubborn {
        fn info(&self) -> DeviceInfo {
            mqfq_blk::device::null::NullDevice::new(1 << 20).info()
        }

        fn open_queue(&self, _options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
            Ok(Box::new(StubbornQueue(self.0.clone(), Vec::new())))
        }
    }

    impl DeviceQueue for StubbornQueue {
        fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
            self.1.push(command.ended(Status::Ok));
            Ok(())
        }

        fn ring_doorbell(&mut self, _now_ns: u64) {}

        fn reap(&mut self, _now_ns: u64, out: &mut Vec<Reaped>) {
            if self.0.load(SeqCst) {
                out.append(&mut self.1);
            }
        }

        fn next_event_ns(&self) -> Option<u64> {
            None
        }

        fn in_flight(&self) -> usize {
            self.1.len()
        }
    }

    #[test]
    fn the_dump_names_the_test_its_queues_and_what_each_waits_for() {
        let ends = Arc::new(AtomicBool::new(false));
        let rig = Rig::new(Stubborn(ends.clone())).watched("stubborn::a_claim");
        let (opener, test) = (rig.opener(), rig.test());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(move || {
                let mut driver = opener(3, 8);
                driver.submit(Command { fua: true, ..write(5, 512, &[1; 1024]) }).unwrap();
                driver.ring_doorbell();
                assert_eq!(driver.wait_all().len(), 1);
            });
            let is_parked = || lock(&test.queues).first().is_some_and(|queue| lock(queue).doing == Doing::Parked);
            while !is_parked() {
                std::thread::yield_now();
            }
            let thread = lock(&lock(&test.queues)[0]).thread;
            let dump = shown_of_all(std::slice::from_ref(&test), LIMIT);
            let parked = "is parked until another queue interrupts it; 1 in flight, 0 entries on its ring\n";
            for line in [
                "STUCK: a test has made no step for 120 s.",
                "test stubborn::a_claim, last step ",
                &format!("  queue of hctx 3, depth 8: thread {thread} {parked}    tag 5: Write 512+1024 FUA\n"),
                &format!("\nthread {thread} "),
                "\nring ",
            ] {
                assert!(dump.contains(line), "without {line:?}: {dump}");
            }
            ends.store(true, SeqCst);
            waiter.thread().unpark();
        });
        assert!(lock(&test.queues).is_empty(), "a queue that is gone is in no dump");
        drop(rig);
        assert!(!lock(&TESTS).running.iter().any(|running| Arc::ptr_eq(running, &test)));
    }

    #[test]
    fn a_test_is_stuck_at_the_limit_after_its_last_step_and_not_before() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let after = |steps: &[u64], now| look_again_after(steps.iter().map(|&step| at(step)), LIMIT, at(now));
        assert_eq!(after(&[], 500), None);
        assert_eq!(after(&[10, 30], 40), Some(Duration::from_secs(90)));
        assert_eq!(after(&[30, 10], 129), Some(Duration::from_secs(1)));
        assert_eq!(after(&[30, 10], 130), Some(Duration::ZERO));
        // A step from another thread, after this one has looked at the clock.
        assert_eq!(after(&[41], 40), Some(LIMIT));
    }

    /// Set only for the victim.
    const VICTIM: &str = "MQFQ_TEST_STUCK_VICTIM";

    #[test]
    fn a_stuck_test_ends_the_process_with_a_dump() {
        if std::env::var_os(VICTIM).is_some() {
            let rig = Rig::new(Stubborn::default()).watched("stubborn::victim");
            let mut driver = rig.open(0, 4);
            driver.submit(write(2, 4096, &[1; 512])).unwrap();
            lock(&TESTS).limit = Duration::from_millis(1);
            CHANGED.notify_all();
            driver.wait_all();
        }
        let victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "watchdog::tests::a_stuck_test_ends_the_process_with_a_dump"])
            .env(VICTIM, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&victim.stderr);
        assert_eq!(victim.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("test stubborn::victim, last step "), "{said}");
        assert!(said.contains("\n    tag 2: Write 4096+512\n"), "{said}");
    }
}
