//! Watches devices while they are served: they are asked once a second, by threads of their own, because a file
//! system may take long to answer, and neither requests nor signals may wait for that.
//!
//! Nor may other devices, or other backings of a pool: a device that has not answered for [`LATE_AFTER`] keeps the
//! thread that asks it, and another thread asks the rest, and it again: it leaves out the backing that keeps the first.
//! It may keep [`LATE_MAX`] threads.

use mqfq_blk::device::Device;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// After this a device holds no other one up: longer than a loaded disk takes to answer.
const LATE_AFTER: Duration = Duration::from_secs(5);

/// A device that is asked, and its name.
// Weak: when the server ends, or a device goes, it is closed by the thread that served it.
type Named = (String, Weak<dyn Device>);

/// Devices to ask, except those that are being asked.
type Devices = Mutex<Vec<Named>>;

/// Most threads that a device may keep: so many of its backings may hang before the others are seen no more.
const LATE_MAX: usize = 8;

/// The devices that are watched; more can be named.
pub struct Watch(Arc<Devices>);

impl Watch {
    /// A watch that asks no device.
    pub fn of_nobody() -> Watch {
        Watch(Arc::default())
    }

    /// Adds a device.
    pub fn add(&self, name: &str, device: &Arc<dyn Device>) {
        lock(&self.0).push((name.to_owned(), Arc::downgrade(device)));
    }
}

fn lock(devices: &Devices) -> MutexGuard<'_, Vec<Named>> {
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a device's name, and a sentence about it.
type Say = dyn Fn(&str, &str) + Send + Sync;

/// Asks `devices`, each with its name, as long as one of them is there or more may come; `say` is given the name and
/// what it answers, one sentence at a time.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    devices: &[(String, Arc<dyn Device>)],
    say: impl Fn(&str, &str) + Send + Sync + 'static,
) -> io::Result<Watch> {
    start_with(devices, PERIOD, LATE_AFTER, say)
}

fn start_with(
    devices: &[(String, Arc<dyn Device>)],
    period: Duration,
    late_after: Duration,
    say: impl Fn(&str, &str) + Send + Sync + 'static,
) -> io::Result<Watch> {
    let watch = Watch(Arc::default());
    devices.iter().for_each(|(name, device)| watch.add(name, device));
    let devices = watch.0.clone();
    let mut rounds = Rounds { asker: None, late: Vec::new(), late_after, say: Arc::new(say) };
    std::thread::Builder::new().name("mqfq-watch".into()).spawn(move || {
        loop {
            let now = std::mem::take(&mut *lock(&devices));
            let mut now = rounds.ask_all(now);
            let is_over = now.is_empty() && rounds.late.is_empty() && Arc::strong_count(&devices) == 1;
            let mut all = lock(&devices);
            all.append(&mut now);
            if is_over && all.is_empty() {
                return;
            }
            drop(all);
            std::thread::park_timeout(period);
        }
    })?;
    Ok(watch)
}

/// State kept from one round of questions to the next.
struct Rounds {
    asker: Option<Asker>,
    /// Askers whose device has not answered yet.
    late: Vec<(Named, Asker)>,
    late_after: Duration,
    say: Arc<Say>,
}

/// A thread that asks one device at a time, and may hang with it. It ends with this.
struct Asker {
    questions: mpsc::Sender<Named>,
    /// Devices that have answered; `None`: it is there no more.
    answers: mpsc::Receiver<Option<Named>>,
}

impl Asker {
    fn start(say: Arc<Say>) -> io::Result<Asker> {
        let (questions, asked) = mpsc::channel::<Named>();
        let (answer, answers) = mpsc::channel();
        std::thread::Builder::new().name("mqfq-ask".into()).spawn(move || {
            for (name, weak) in asked {
                let device = weak.upgrade();
                let is_there = device.is_some();
                let sentences = device.map_or_else(Vec::new, |device| device.check_up());
                sentences.iter().for_each(|sentence| say(&name, &format!("device {name}: {sentence}")));
                // An error: the server ends.
                let _ = answer.send(is_there.then_some((name, weak)));
            }
        })?;
        Ok(Asker { questions, answers })
    }
}

impl Rounds {
    /// Reports late devices that have answered meanwhile.
    fn hear_late(&mut self) {
        let say = &self.say;
        self.late.retain(|((name, _), asker)| match asker.answers.try_recv() {
            Ok(_) => {
                say(name, &format!("device {name}: its file system answers again"));
                false
            }
            Err(TryRecvError::Empty) => true,
            Err(TryRecvError::Disconnected) => false,
        });
    }

    /// Asks each once, save those that keep as many threads as they may; returns those that are still there.
    fn ask_all(&mut self, devices: Vec<Named>) -> Vec<Named> {
        let mut there = Vec::new();
        self.hear_late();
        for named in devices {
            if self.late.iter().filter(|((_, late), _)| late.ptr_eq(&named.1)).count() >= LATE_MAX {
                there.push(named);
                continue;
            }
            let asker = match self.asker.take() {
                Some(asker) => asker,
                None => match Asker::start(self.say.clone()) {
                    Ok(asker) => asker,
                    // No thread is to be had now; perhaps in the next round.
                    Err(_) => {
                        there.push(named);
                        continue;
                    }
                },
            };
            let name = named.0.clone();
            // Its thread ends after this alone.
            let _ = asker.questions.send(named.clone());
            match asker.answers.recv_timeout(self.late_after) {
                Ok(named) => {
                    there.extend(named);
                    self.asker = Some(asker);
                }
                Err(RecvTimeoutError::Timeout) => {
                    // Its answer to an earlier question is reported first.
                    self.hear_late();
                    let late = self.late_after.as_secs_f64();
                    let sentence = format!("device {name}: its file system has not answered for {late} s");
                    (self.say)(&name, &sentence);
                    there.push(named.clone());
                    self.late.push((named, asker));
                }
                // The thread panicked: the device is not asked again.
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::device::file::{FileDevice, FileOptions};
    use mqfq_blk::device::{DeviceInfo, DeviceQueue, QueueOptions};

    /// For what must come; it is waited for in full only if the test fails.
    const LIMIT: Duration = Duration::from_secs(60);

    /// A device with so many parts whose file systems do not answer until they are told to.
    struct Silent(Vec<Mutex<mpsc::Receiver<()>>>);

    impl Device for Silent {
        fn info(&self) -> DeviceInfo {
            mqfq_blk::device::null::NullDevice::new(4096).info()
        }

        fn check_up(&self) -> Vec<String> {
            let Some(part) = self.0.iter().find_map(|part| part.try_lock().ok()) else { return Vec::new() };
            let _ = part.recv();
            vec!["answered".into()]
        }

        fn open_queue(&self, _options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
            Err("nobody opens it".into())
        }
    }

    #[test]
    fn a_device_that_does_not_answer_holds_no_other_one_up_and_is_asked_again_when_it_has_answered() {
        let path = std::env::temp_dir().join(format!("mqfq-watch-late-{}", std::process::id()));
        std::fs::File::create(&path).and_then(|file| file.set_len(8192)).unwrap();
        let (answer, answers) = mpsc::channel();
        let silent: Arc<dyn Device> = Arc::new(Silent(vec![Mutex::new(answers)]));
        let good: Arc<dyn Device> = Arc::new(FileDevice::open(&FileOptions::new(&path)).unwrap());
        let (sender, said) = mpsc::channel();
        let devices = [("silent".into(), silent.clone()), ("good".into(), good.clone())];
        let say = move |_: &str, line: &str| sender.send(line.to_owned()).unwrap();
        let watch = start_with(&devices, Duration::from_millis(1), Duration::from_millis(20), say).unwrap();
        let said_next = || said.recv_timeout(LIMIT).expect("something is said");
        let late = "device silent: its file system has not answered for 0.02 s";
        assert_eq!(said_next(), late);
        std::fs::remove_file(&path).unwrap();
        let line = said_next();
        assert!(line.starts_with(&format!("device good: {}: was removed or replaced", path.display())), "{line}");
        for _ in 0..2 {
            answer.send(()).unwrap();
            assert_eq!(said_next(), "device silent: answered");
            // Its thread may be delayed until the next one is late.
            let mut both = [said_next(), said_next()];
            both.sort_unstable();
            assert_eq!(both, ["device silent: its file system answers again", late]);
        }
        drop((devices, silent, good, answer, watch));
        let rest: Vec<String> = said.iter().collect();
        assert!(rest.iter().all(|line| line.starts_with("device silent: ")), "{rest:?}");
    }

    #[test]
    fn a_device_is_asked_on_beside_its_parts_that_do_not_answer_by_a_bounded_number_of_threads() {
        let (answer, answers): (Vec<_>, Vec<_>) = (0..LATE_MAX + 2).map(|_| mpsc::channel()).unzip();
        let silent: Arc<dyn Device> = Arc::new(Silent(answers.into_iter().map(Mutex::new).collect()));
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let said = count.clone();
        let say = move |_: &str, line: &str| {
            assert!(line.ends_with("has not answered for 0.001 s"), "{line}");
            said.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let late_after = Duration::from_millis(1);
        let mut rounds = Rounds { asker: None, late: Vec::new(), late_after, say: Arc::new(say) };
        let mut devices = vec![("silent".to_owned(), Arc::downgrade(&silent))];
        for round in 1..LATE_MAX + 3 {
            devices = rounds.ask_all(devices);
            let late = round.min(LATE_MAX);
            assert_eq!((devices.len(), rounds.late.len()), (1, late));
            assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), late);
        }
        drop(answer);
    }

    #[test]
    fn what_a_device_says_is_said_with_its_name_and_the_watch_ends_with_the_device() {
        let path = std::env::temp_dir().join(format!("mqfq-watch-{}", std::process::id()));
        std::fs::File::create(&path).and_then(|file| file.set_len(8192)).unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&FileOptions::new(&path)).unwrap());
        let (sender, said) = mpsc::channel();
        start(&[("fast".into(), device.clone())], move |_, line| sender.send(line.to_owned()).unwrap())
            .map(drop)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let line = said.recv().unwrap();
        assert!(line.starts_with(&format!("device fast: {}: was removed or replaced", path.display())), "{line}");
        drop(device);
        assert!(said.recv().is_err(), "the thread has ended, and nothing was said twice");
    }
}
