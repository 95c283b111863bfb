//! Reading of the counters, and its times.
//!
//! One thread reads the sums once a second and keeps them ([`History`]). While a client watches ([`Watcher::watch`]) it
//! reads the latencies too and makes a [`Snapshot`]. A scrape and a *why* read on the thread that asks.
//!
//! # Threads that give way
//! Long work runs on threads of [`NICE`], which the kernel lets on a core of their own or between workers: the
//! reading once a second, and each scrape. No thread here is bound to a core.

use crate::history::History;
use crate::live::{self, Received, Snapshot, Until};
use crate::metrics::{Format, Scrape, Text};
use crate::past::{Past, Point};
use crate::source::{Limited, Source};
use crate::why::{self, Verdict};
use mqfq_blk::engine::EngineStats;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};
use tokio::sync::watch;

/// Between two readings.
const PERIOD: Duration = Duration::from_secs(1);

/// Niceness of threads that give way to workers: where both want a core, the kernel gives it to a worker for nine parts
/// of ten.
pub const NICE: i32 = 10;

/// This thread gives way to workers from now on.
pub fn give_way() {
    // Where it may not, it is as urgent as the others.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Looks at a source.
pub struct Watcher {
    source: Arc<dyn Source>,
    state: Mutex<State>,
    live: watch::Sender<Arc<Snapshot>>,
}

#[derive(Default)]
struct State {
    history: History,
    /// The last hour.
    past: Past,
    /// Latencies as of the last snapshot, while a client watches.
    until: Until,
    /// Limits at each of the last readings, as many as a verdict goes back.
    limited: VecDeque<Vec<Limited>>,
}

impl Watcher {
    /// Looks at `source` from now on, until it is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(source: Arc<dyn Source>) -> io::Result<Arc<Watcher>> {
        let watcher = Arc::new(Watcher::new(source));
        let weak = Arc::downgrade(&watcher);
        thread::Builder::new().name("mqfq-observe".into()).spawn(move || {
            give_way();
            while let Some(watcher) = weak.upgrade() {
                watcher.tick();
                drop(watcher);
                thread::park_timeout(PERIOD);
            }
        })?;
        Ok(watcher)
    }

    /// A watcher that reads when it is told.
    pub fn new(source: Arc<dyn Source>) -> Watcher {
        Watcher { source, state: Mutex::default(), live: watch::Sender::default() }
    }

    /// Takes a reading.
    pub fn tick(&self) {
        let is_watched = self.live.receiver_count() > 0;
        let (limited, stats) =
            (self.source.limited(), if is_watched { self.source.stats() } else { self.source.sums() });
        let mut state = self.state();
        state.history.push(&stats);
        let State { history, past, .. } = &mut *state;
        past.push(history);
        if state.limited.len() as u64 > why::SECONDS {
            state.limited.pop_front();
        }
        state.limited.push_back(limited);
        if !is_watched {
            // Up to 3.7 KB for each tenant, not needed while no client watches.
            state.until = Until::new();
            return;
        }
        let snapshot = state.snapshot(&stats, &|device| self.source.exports(device));
        state.until = live::until(&stats);
        drop(state);
        if let Some(snapshot) = snapshot {
            self.live.send_replace(Arc::new(snapshot));
        }
    }

    /// Changes with each snapshot.
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.live.subscribe()
    }

    /// The text of `/metrics`, of which nothing is rendered yet.
    pub fn scrape(&self, format: Format) -> Text {
        let stats = self.source.stats();
        let state = self.state();
        // Tenants may have come or gone since the last reading.
        let over = |seconds| state.history.over(seconds).map(|interval| interval.of(&stats));
        let intervals = [("1s", over(1)), ("60s", over(60))];
        drop(state);
        let intervals = intervals.into_iter().filter_map(|(label, interval)| Some((label, interval?))).collect();
        Scrape { stats, intervals }.into_text(format)
    }

    /// The points of the last hour, the oldest first.
    pub fn past(&self) -> Vec<Arc<Point>> {
        self.state().past.points()
    }

    /// Service of each tenant by each device over the last [`why::SECONDS`].
    pub fn received(&self) -> Vec<Received> {
        let interval = self.state().history.over(why::SECONDS);
        interval.as_ref().map(live::received).unwrap_or_default()
    }

    /// Why the tenants wait, or the tenant or export of this name does: over the last [`why::SECONDS`]. A tenant hides
    /// exports of its name.
    pub fn why(&self, wanted: Option<&str>) -> Vec<Verdict> {
        let (stats, export) = (self.source.stats(), wanted.and_then(|name| self.source.export(name)));
        let of = |is_meant: &dyn Fn(&str, &str) -> bool| {
            let mut found = self.state().verdicts(&stats, &|device, flow| {
                let device = &stats.devices[device];
                device.flows.get(flow).is_some_and(|flow| is_meant(&device.name, &flow.name))
            });
            why::name_backings(&mut found, &stats, &|device| self.source.exports(device));
            found
        };
        match (of(&|_, flow| wanted.is_none_or(|tenant| why::is_of(flow, tenant))), export) {
            (found, Some((its_device, its_flow))) if found.is_empty() => {
                of(&|device, flow| device == its_device && flow == its_flow)
            }
            (found, _) => found,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A reading that panicked is not in it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn verdicts(&self, stats: &EngineStats, wanted: &dyn Fn(usize, usize) -> bool) -> Vec<Verdict> {
        let Some(interval) = self.history.over(why::SECONDS) else { return Vec::new() };
        // Tenants may have come or gone since the last reading.
        let interval = interval.of(stats);
        let (first, last) = (self.limited.front(), self.limited.back());
        let of = |limits: Option<&Vec<Limited>>| limits.cloned().unwrap_or_default();
        why::verdicts(stats, &interval, &of(last), &of(first), wanted)
    }

    fn snapshot(&self, stats: &EngineStats, exports: &dyn Fn(&str) -> Vec<(String, u64)>) -> Option<Snapshot> {
        let (second, minute) = (self.history.over(1)?, self.history.over(60)?);
        let shown: Vec<Vec<usize>> =
            stats.devices.iter().enumerate().map(|(at, device)| live::shown(at, device.flows.len(), &minute)).collect();
        let mut verdicts = self.verdicts(stats, &|device, flow| shown[device].binary_search(&flow).is_ok());
        why::name_backings(&mut verdicts, stats, exports);
        Some(live::snapshot(stats, &self.until, &second, &minute, &verdicts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::{stats, tenant};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each full reading and each of sums is counted; a second passes between two of either.
    #[derive(Default)]
    struct Counted {
        second: AtomicU64,
        full: AtomicU64,
    }

    impl Source for Counted {
        fn limited(&self) -> Vec<Limited> {
            // Held "batch" back for 5 s at first, 1 s from the 10th to the 11th, and 3 s from the 17th on.
            // Relaxed: the test has one thread.
            let second = self.second.load(Ordering::Relaxed);
            let waited_s = second.min(5) + u64::from(second > 10) + second.saturating_sub(17);
            let waited_ns = waited_s * 1_000_000_000;
            vec![Limited { tenant: "batch".into(), export: None, key: "max-iops".into(), waited_ns }]
        }

        fn export(&self, name: &str) -> Option<(String, String)> {
            // Device and flow: "web" has one weight for all its exports, the exports of "db" have weights.
            let (device, flow) = match name {
                "page" => ("fast", "web"),
                "web" => ("fast", "db/root"),
                "root" => ("fast", "db/root"),
                "elsewhere" => ("slow", "web"),
                _ => return None,
            };
            Some((device.to_owned(), flow.to_owned()))
        }

        fn exports(&self, device: &str) -> Vec<(String, u64)> {
            if device == "fast" { vec![("web".to_owned(), 1 << 48)] } else { Vec::new() }
        }

        fn stats(&self) -> EngineStats {
            // Relaxed: the test has one thread.
            self.full.fetch_add(1, Ordering::Relaxed);
            self.sums()
        }

        fn sums(&self) -> EngineStats {
            // Relaxed: as above.
            let second = self.second.fetch_add(1, Ordering::Relaxed);
            stats(
                second,
                vec![
                    tenant("web", 100, second * 1000, 3_100_000, 300_000),
                    tenant("db/root", 100, 0, 0, 0),
                    tenant("batch", 100, 0, 0, 0),
                ],
            )
        }
    }

    #[test]
    fn latencies_are_read_only_while_somebody_watches() {
        let source = Arc::new(Counted::default());
        let watcher = Watcher::new(source.clone());
        watcher.tick();
        watcher.tick();
        // Relaxed: as above.
        assert_eq!(source.full.load(Ordering::Relaxed), 0);
        let watch = watcher.watch();
        watcher.tick();
        watcher.tick();
        // Relaxed: as above.
        assert_eq!(source.full.load(Ordering::Relaxed), 2);
        let web = watch.borrow().devices[0].tenants[0].clone();
        assert_eq!((web.name.as_str(), web.requests_per_s, web.share_1s), ("web", 1000.0, 1.0));
        assert!(
            web.why.starts_with("web waits 3.1 of 3.4 ms in the queue: it has the device to itself"),
            "{}",
            web.why
        );
        drop(watch);
        watcher.tick();
        // Relaxed: as above.
        assert_eq!(source.full.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_limit_counts_for_as_long_as_a_verdict_goes_back() {
        let watcher = Watcher::new(Arc::new(Counted::default()));
        (0..=20).for_each(|_| watcher.tick());
        let [verdict] = &watcher.why(Some("batch"))[..] else { panic!("one device has it") };
        assert_eq!(verdict.sentence, "batch is limited by its own max-iops: that held it back for 40% of the time");
    }

    #[test]
    fn latencies_for_the_next_second_are_kept_while_somebody_watches_alone() {
        let watcher = Watcher::new(Arc::new(Counted::default()));
        let watch = watcher.watch();
        watcher.tick();
        assert_eq!(watcher.state().until["fast"].len(), 3);
        drop(watch);
        watcher.tick();
        assert!(watcher.state().until.is_empty());
    }

    #[test]
    fn why_finds_a_tenant_by_its_name_and_an_export_by_its_own() {
        let watcher = Watcher::new(Arc::new(Counted::default()));
        assert!(watcher.why(None).is_empty(), "one reading is no interval");
        (0..3).for_each(|_| watcher.tick());
        let of = |name| watcher.why(Some(name)).into_iter().map(|verdict| verdict.tenant).collect::<Vec<_>>();
        assert_eq!(
            ["web", "db", "root", "page", "we", "oot", "elsewhere"].map(of).map(|found| found.join(" ")),
            ["web", "db/root", "db/root", "web", "", "", ""]
        );
        assert_eq!(watcher.why(None).len(), 3);
        let received = watcher.received();
        let of = |at: usize| (received[at].tenant.as_str(), received[at].share, received[at].requests_per_s);
        assert_eq!((of(0), of(1)), (("web", 1.0, 1000.0), ("db/root", 0.0, 0.0)));
        assert_eq!(watcher.past().len(), 2, "a point for each pair of readings");
        let (mut text, mut metrics) = (watcher.scrape(Format::OpenMetrics), Vec::new());
        while text.slice(&mut metrics) {}
        let metrics = String::from_utf8(metrics).unwrap();
        assert!(
            metrics.contains("window=\"60s\"")
                && metrics.contains("mqfq_tenant_share_ratio{device=\"fast\",tenant=\"web\",window=\"1s\"} 1.0")
        );
    }

    /// The source of [`Counted`] with a second device that has the same tenants.
    #[derive(Default)]
    struct Twice(Counted);

    impl Twice {
        fn twice(mut stats: EngineStats) -> EngineStats {
            let mut other = stats.devices[0].clone();
            other.name = "slow".into();
            stats.devices.push(other);
            stats
        }
    }

    impl Source for Twice {
        fn limited(&self) -> Vec<Limited> {
            self.0.limited()
        }

        fn export(&self, name: &str) -> Option<(String, String)> {
            self.0.export(name)
        }

        fn exports(&self, device: &str) -> Vec<(String, u64)> {
            self.0.exports(device)
        }

        fn stats(&self) -> EngineStats {
            Twice::twice(self.0.stats())
        }

        fn sums(&self) -> EngineStats {
            Twice::twice(self.0.sums())
        }
    }

    #[test]
    fn each_device_is_shown_with_its_tenants_and_their_verdicts() {
        let watcher = Watcher::new(Arc::new(Twice::default()));
        let watch = watcher.watch();
        (0..3).for_each(|_| watcher.tick());
        for (device, name) in watch.borrow().devices.iter().zip(["fast", "slow"]) {
            assert_eq!((device.name.as_str(), device.tenants.len()), (name, 3));
            assert!(device.tenants[0].why.starts_with("web waits 3.1 of 3.4 ms"), "{name}: {}", device.tenants[0].why);
        }
    }

    #[test]
    fn a_watcher_that_is_started_reads_its_source_on_a_thread_that_gives_way() {
        let source = Arc::new(Counted::default());
        let _watcher = Watcher::start(source.clone()).unwrap();
        // Relaxed: only that it changes matters.
        while source.second.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let niceness_of_thread = thread::spawn(move || {
            let before = niceness();
            give_way();
            (before, niceness())
        });
        let (before, after) = niceness_of_thread.join().unwrap();
        assert_eq!(after, before.max(NICE).min(if rustix::process::geteuid().is_root() { NICE } else { i32::MAX }));
    }
}
