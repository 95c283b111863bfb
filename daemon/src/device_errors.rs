//! The log, on stderr, of devices whose commands take too long: at most a line per device and second, whatever their
//! number.
//!
//! The workers that find out only count; a thread of its own looks at the counts once a second and says what is new. So
//! a worker neither takes a lock nor allocates nor enters the kernel for a line, and a stderr that is not read does not
//! hold it up.

use crate::log_format::{About, Level};
use crate::output::Output;
use mqfq_blk::stats::Trouble;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two lines about one device.
const PAUSE: Duration = Duration::from_secs(1);

/// Devices of which troubles are told apart. What those behind them have is counted for the last one.
const DEVICES_MAX: usize = 4096;

/// Counts of one device that have not been told.
#[derive(Default)]
struct Untold {
    timeouts: AtomicU64,
    resets: AtomicU64,
    stuck: AtomicU64,
}

/// Counts of the devices, by index, and names for the log.
pub struct DeviceErrorCounts {
    untold: Box<[Untold]>,
    names: Mutex<BTreeMap<usize, String>>,
}

impl DeviceErrorCounts {
    /// Counts of devices of these names, all zero.
    pub fn new(names: Vec<String>) -> DeviceErrorCounts {
        let untold = (0..DEVICES_MAX).map(|_| Untold::default()).collect();
        DeviceErrorCounts { untold, names: Mutex::new(names.into_iter().enumerate().collect()) }
    }

    /// Names the device of this index; returns the last line of the device that had another name before, if there is
    /// one. Counts of that one do not pass to the next.
    #[must_use = "it is told nowhere else"]
    pub fn name(&self, device: usize, name: &str) -> Option<(String, String)> {
        let place = device.min(DEVICES_MAX - 1);
        let before = self.names().insert(place, name.to_owned()).filter(|before| before != name)?;
        self.line(place, before)
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note, on a worker's thread.
    pub fn add(&self, device: usize, trouble: Trouble) {
        let Untold { timeouts, resets, stuck } = &self.untold[device.min(DEVICES_MAX - 1)];
        // Relaxed: sums that nothing else is ordered by; `take` adds each count to one line, whichever it is.
        timeouts.fetch_add(trouble.timeouts, Ordering::Relaxed);
        resets.fetch_add(trouble.resets, Ordering::Relaxed);
        stuck.fetch_add(trouble.stuck, Ordering::Relaxed);
    }

    /// A line for each device of which there is something new.
    fn take(&self) -> impl Iterator<Item = (String, String)> {
        let names = self.names().clone();
        names.into_iter().filter_map(|(device, name)| self.line(device, name))
    }

    /// The news of the device in this place, which is called `name`.
    fn line(&self, device: usize, name: String) -> Option<(String, String)> {
        let untold = &self.untold[device.min(DEVICES_MAX - 1)];
        // Relaxed: see `add`.
        let [timeouts, resets, stuck] =
            [&untold.timeouts, &untold.resets, &untold.stuck].map(|count| count.swap(0, Ordering::Relaxed));
        let parts = [(timeouts, "timed out"), (stuck, "are stuck, the device can neither abort nor reset them")];
        let commands: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} commands {what}"))
            .chain((resets > 0).then(|| format!("its queue was reset {resets} times")))
            .collect();
        (!commands.is_empty()).then(|| (name.clone(), format!("device {name}: {}", commands.join(", "))))
    }
}

/// Backings of pools that hang: the name of the device and the path, and words for the pool that a backing is of.
pub type Hanging = BTreeMap<(String, String), Option<String>>;

/// A line for each backing that hangs now and did not, or did and does no more.
fn changed<'a>(before: &'a Hanging, now: &'a Hanging) -> impl Iterator<Item = (String, String)> + 'a {
    let line =
        |(device, path): &(String, String), what: &str| (device.clone(), format!("device {device}: {path}: {what}"));
    let begun = now.iter().filter(|(one, _)| !before.contains_key(*one)).map(move |(one, pool)| {
        let what = "does not answer: requests that are longer under way than `timeout` wait, others fail until it does";
        match pool {
            Some(pool) => line(one, &format!("{what}; it is {pool}: is that full?")),
            None => line(one, what),
        }
    });
    let ended = before.keys().filter(|one| !now.contains_key(*one)).map(move |one| line(one, "answers again"));
    begun.chain(ended)
}

/// The thread that tells; dropping it tells the rest and ends it.
pub struct DeviceErrorLog {
    thread: Option<JoinHandle<()>>,
    is_ending: Arc<AtomicBool>,
}

impl DeviceErrorLog {
    /// Starts it; `hanging` answers at any time.
    ///
    /// # Errors
    /// One sentence: the thread cannot be started.
    pub fn start(
        counts: Arc<DeviceErrorCounts>,
        output: Output,
        hanging: impl Fn() -> Hanging + Send + 'static,
    ) -> Result<DeviceErrorLog, String> {
        let is_ending = Arc::new(AtomicBool::new(false));
        let of_thread = is_ending.clone();
        let mut told = Hanging::new();
        let tell = move || loop {
            // Acquire: pairs with the Release in `drop`, so that the last look sees what was counted before it.
            let is_last = of_thread.load(Ordering::Acquire);
            counts.take().for_each(|(device, line)| output.say(Level::Warning, About::device(&device), &line));
            if is_last {
                return;
            }
            let now = hanging();
            changed(&told, &now).for_each(|(device, line)| output.say(Level::Warning, About::device(&device), &line));
            told = now;
            std::thread::park_timeout(PAUSE);
        };
        let thread = std::thread::Builder::new().name("mqfq-trouble".into()).spawn(tell);
        let thread = thread.map_err(|error| format!("cannot start a thread: {}", mqfq_report::plain(&error)))?;
        Ok(DeviceErrorLog { thread: Some(thread), is_ending })
    }
}

impl Drop for DeviceErrorLog {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `start`.
        self.is_ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It cannot have panicked: that ends the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_count_is_told_once_by_device_and_nothing_is_left_out() {
        let counts = DeviceErrorCounts::new(vec!["fast".into(), "slow".into()]);
        let timeouts = |timeouts| Trouble { timeouts, ..Trouble::default() };
        let lines = || counts.take().map(|(_, line)| line).collect::<Vec<_>>();
        counts.add(0, timeouts(3));
        assert_eq!(lines(), ["device fast: 3 commands timed out"]);
        assert!(lines().is_empty(), "nothing is new");
        counts.add(0, timeouts(2));
        counts.add(1, Trouble { stuck: 1, resets: 2, timeouts: 0 });
        counts.add(0, timeouts(4));
        let slow = "device slow: 1 commands are stuck, the device can neither abort nor reset them, its queue was reset 2 times";
        assert_eq!(lines(), ["device fast: 6 commands timed out", slow]);
        counts.add(1, timeouts(7));
        let told = counts.name(1, "next").map(|(_, line)| line);
        assert_eq!(told.as_deref(), Some("device slow: 7 commands timed out"), "the next one has not had them");
        counts.add(1, timeouts(1));
        assert_eq!((counts.name(1, "next"), lines()), (None, vec!["device next: 1 commands timed out".to_owned()]));
    }

    #[test]
    fn a_backing_that_hangs_is_told_once_and_so_is_its_answer() {
        let pool = |path: &str| path.starts_with("/dev").then(|| "a volume of the thin pool vg/pool".to_owned());
        let hanging = |paths: &[&str]| -> Hanging {
            paths.iter().map(|path| (("ssd".to_owned(), (*path).to_owned()), pool(path))).collect()
        };
        let lines = |before: &[&str], now: &[&str]| -> Vec<String> {
            changed(&hanging(before), &hanging(now)).map(|(_, line)| line).collect()
        };
        assert!(lines(&["/a"], &["/a"]).is_empty());
        let begun =
            "/b: does not answer: requests that are longer under way than `timeout` wait, others fail until it does";
        let begun = format!("device ssd: {begun}");
        assert_eq!(lines(&["/a"], &["/b"]), [&begun, "device ssd: /a: answers again"]);
        let thin = begun.replace("/b", "/dev/t1") + "; it is a volume of the thin pool vg/pool: is that full?";
        assert_eq!(lines(&[], &["/dev/t1"]), [thin]);
    }
}
