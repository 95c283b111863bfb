//! What becomes of devices while they are served: they are asked once a second, by a thread of its own, because a file
//! system may take long to answer, and neither requests nor signals may wait for that.

use mqfq_blk::device::Device;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Devices that are asked, each with its name.
// Weak: when the server ends, or a device goes, it is closed by whoever serves it.
type Devices = Mutex<Vec<(String, Weak<dyn Device>)>>;

/// Whoever has this may name more devices.
pub struct Watch(Arc<Devices>);

impl Watch {
    /// One that asks nobody.
    pub fn of_nobody() -> Watch {
        Watch(Arc::default())
    }

    /// This one is asked as well.
    pub fn add(&self, name: &str, device: &Arc<dyn Device>) {
        lock(&self.0).push((name.to_owned(), Arc::downgrade(device)));
    }
}

fn lock(devices: &Devices) -> MutexGuard<'_, Vec<(String, Weak<dyn Device>)>> {
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks `devices`, each with its name, as long as one of them is there or more may come; `say` is given the name and
/// what it answers, one sentence at a time.
///
/// # Errors
/// The thread cannot be started.
pub fn start(devices: &[(String, Arc<dyn Device>)], say: impl Fn(&str, &str) + Send + 'static) -> io::Result<Watch> {
    let watch = Watch(Arc::default());
    devices.iter().for_each(|(name, device)| watch.add(name, device));
    let devices = watch.0.clone();
    std::thread::Builder::new().name("mqfq-watch".into()).spawn(move || {
        loop {
            let mut now = std::mem::take(&mut *lock(&devices));
            now.retain(|(name, device)| {
                let Some(device) = device.upgrade() else { return false };
                device.check_up().iter().for_each(|sentence| say(name, &format!("device {name}: {sentence}")));
                true
            });
            let is_over = now.is_empty() && Arc::strong_count(&devices) == 1;
            // Not held while a device is asked, which may take long.
            let mut all = lock(&devices);
            all.append(&mut now);
            if is_over && all.is_empty() {
                return;
            }
            drop(all);
            std::thread::park_timeout(PERIOD);
        }
    })?;
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_blk::device::file::{FileDevice, FileOptions};
    use std::sync::mpsc;

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
