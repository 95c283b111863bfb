//! Devices come and go while an engine runs.
//!
//! A device that comes is opened by each worker, on the worker's own ring; clients may name its index when all have.
//! A device that goes has no clients any more; each worker drops its queue when the last request has ended, and its
//! index is free for another. Clients of other devices notice neither.

use super::flows::index;
use super::{DeviceOptions, Engine, Prepared, check_device};
use crate::client::Remains;
use crate::worker::host::Mail;
use std::time::Duration;

impl Engine {
    /// Begins to serve a device as number `device`: a free index, at most the number of devices so far. As at
    /// the start, its class queues are measured first if its policy needs them.
    ///
    /// # Errors
    /// One sentence, and nothing has changed: as [`Engine::start`], or the index is taken.
    pub fn add_device(&self, device: usize, options: &DeviceOptions) -> Result<(), String> {
        let _changing = self.changing();
        check_device(options)?;
        let prepared = Prepared::new(options, &self.topology, Some(self.clock()))?;
        let current = prepared.assemble(self.workers());
        {
            let mut devices = self.current();
            if device > devices.len() || device > usize::from(u16::MAX) {
                return Err(format!(
                    "device {}: {device} is no index for it, there are {}",
                    options.name,
                    devices.len()
                ));
            }
            if let Some(Some(other)) = devices.get(device) {
                return Err(format!("device {}: device {} has not gone yet", options.name, other.name));
            }
            let mut shared = self.shared.devices();
            if device == devices.len() {
                devices.push(None);
                shared.push(None);
            }
            shared[device] = Some(current.shared.clone());
        }
        let opened = self.ask_all(Duration::MAX, |opened| Mail::OpenDevice { device: index(device), opened });
        let opened = opened.and_then(|all| all.into_iter().collect::<Result<Vec<()>, String>>());
        if let Err(error) = opened {
            self.shared.devices()[device] = None;
            // Workers that could not open it have an empty place already, or none.
            let _ = self.ask_all(Duration::MAX, |closed| Mail::CloseDevice { device: index(device), closed });
            return Err(format!("device {}: {error}", options.name));
        }
        self.current()[device] = Some(current);
        Ok(())
    }

    /// Removes a device whose clients are gone. Its index is free when this returns.
    ///
    /// # Errors
    /// One sentence, and the device stays: it did not complete its requests within `patience`. It may be asked again.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn remove_device(&self, device: usize, patience: Duration) -> Result<(), String> {
        let _changing = self.changing();
        let name = self.of(device, |at| at.name.clone());
        self.await_end(device, Remains::All, patience).map_err(|reason| format!("device {name}: {reason}"))?;
        // A worker that has panicked took its queue along.
        let _ = self.ask_all(Duration::MAX, |closed| Mail::CloseDevice { device: index(device), closed });
        self.shared.devices()[device] = None;
        self.current()[device] = None;
        Ok(())
    }

    /// Has every worker use the part of this number of a device as it is now ([`crate::device::DeviceQueue::follow`]).
    ///
    /// # Errors
    /// One sentence: commands of the part before are under way on some worker, which keeps it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn follow(&self, device: usize, number: u16) -> Result<(), String> {
        let _changing = self.changing();
        let name = self.of(device, |at| at.name.clone());
        let all = self.ask_all(Duration::MAX, |followed| Mail::Follow { device: index(device), number, followed })?;
        all.into_iter().collect::<Result<(), String>>().map_err(|why| format!("device {name}: {why}"))
    }
}
