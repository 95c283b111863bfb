//! What becomes of devices while they are served: they are asked once a second, by a thread of its own, because a file
//! system may take long to answer, and neither requests nor signals may wait for that.

use mqfq_blk::device::Device;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Asks `devices`, each with its name, as long as one of them is there; `say` is given the name and
/// what it answers, one sentence at a time.
///
/// # Errors
/// The thread cannot be started.
pub fn start(devices: &[(String, Arc<dyn Device>)], say: impl Fn(&str, &str) + Send + 'static) -> io::Result<()> {
    // Weak: when the server ends, a device is closed by whoever serves it.
    let mut devices: Vec<(String, Weak<dyn Device>)> =
        devices.iter().map(|(name, device)| (name.clone(), Arc::downgrade(device))).collect();
    std::thread::Builder::new().name("mqfq-watch".into()).spawn(move || {
        while !devices.is_empty() {
            devices.retain(|(name, device)| {
                let Some(device) = device.upgrade() else { return false };
                device.check_up().iter().for_each(|sentence| say(name, &format!("device {name}: {sentence}")));
                true
            });
            std::thread::park_timeout(PERIOD);
        }
    })?;
    Ok(())
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
        start(&[("fast".into(), device.clone())], move |_, line| sender.send(line.to_owned()).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let line = said.recv().unwrap();
        assert!(line.starts_with(&format!("device fast: {}: was removed or replaced", path.display())), "{line}");
        drop(device);
        assert!(said.recv().is_err(), "the thread has ended, and nothing was said twice");
    }
}
