//! State of a front-end's session: messages in, answers out, and when a queue has all that it needs to run.
//!
//! Source: the vhost-user specification. Free of I/O: the caller receives messages with their descriptors, stops the
//! queues that [`Session::stops`] names before the message is taken, and starts those that [`Session::ready`] has
//! something for after it. So nothing here changes under a queue that runs.
//!
//! | a queue | from | until |
//! |---|---|---|
//! | is started | SET_VRING_KICK | GET_VRING_BASE, a reset |
//! | is enabled | SET_VRING_ENABLE 1, or always without protocol features | SET_VRING_ENABLE 0, a reset |
//! | runs | started and enabled | either ends |
//!
//! Two negotiations in one connection are common: firmware's, then the kernel's.

use super::disk::{CONFIG_BYTES, Disk, PROTOCOL, QUEUES_MAX, WRITEBACK_AT};
use super::guest::{GuestMemory, REGIONS_MAX, RegionText};
use super::inflight::{self, Areas};
use super::kind;
use super::log::DirtyLog;
use super::ring::{Ring, RingAddresses};
use super::rule::Rule;
use super::run::Start;
use super::split::Split;
use super::wire::{Fields, Message, VRING_INDEX_MASK, VRING_LOG, VRING_NO_FD, feature, protocol};
use mqfq_blk::passed::Passed;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a config message before its data: offset, size, flags.
const CONFIG_HEADER_BYTES: usize = 12;

/// Largest log of dirty pages that is mapped, bytes: 1 TiB of guest memory has one of 32 MiB.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// Queues that stop before a message is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stops {
    /// No queue.
    None,
    /// The queue of this number.
    One(u16),
    /// All queues.
    All,
}

/// Answer to a message.
#[derive(Debug, Default)]
pub struct Answer {
    /// The payload of an answer that the message always has.
    pub payload: Option<Vec<u8>>,
    /// A descriptor that goes with it.
    pub descriptor: Option<OwnedFd>,
}

impl Answer {
    fn of(payload: impl Into<Vec<u8>>) -> Result<Answer, Rule> {
        Ok(Answer { payload: Some(payload.into()), ..Answer::default() })
    }

    fn none() -> Result<Answer, Rule> {
        Ok(Answer::default())
    }
}

/// A queue as the front-end described it.
#[derive(Default)]
struct Vring {
    size: u16,
    base: u16,
    addresses: Option<RingAddresses>,
    kick: Option<Arc<Passed>>,
    call: Option<Arc<Passed>>,
    error: Option<Arc<Passed>>,
    is_enabled: bool,
}

/// One connection's state.
pub struct Session {
    disk: Disk,
    features: u64,
    protocol: u64,
    memory: GuestMemory,
    vrings: Vec<Vring>,
    inflight: Option<Areas>,
    log: Option<DirtyLog>,
    /// Where the server says that the config space is another one.
    backend: Option<Arc<Passed>>,
    writeback: bool,
}

impl Session {
    /// A session about `disk`, without messages yet.
    pub fn new(disk: Disk) -> Session {
        let vrings = (0..QUEUES_MAX).map(|_| Vring::default()).collect();
        Session {
            disk,
            features: 0,
            protocol: 0,
            memory: GuestMemory::default(),
            vrings,
            inflight: None,
            log: None,
            backend: None,
            writeback: true,
        }
    }

    /// The front-end may ask for an answer to any message.
    pub fn acknowledges(&self) -> bool {
        self.protocol & protocol::REPLY_ACK != 0
    }

    /// The channel for messages of ours.
    pub fn backend(&self) -> Option<&Arc<Passed>> {
        self.backend.as_ref()
    }

    /// The front-end reads the config space, and hears of another one.
    pub fn has_config(&self) -> bool {
        self.protocol & protocol::CONFIG != 0
    }

    /// The message leads to no queue: it may be taken while another front-end has the export.
    pub fn is_preamble(message: Message) -> bool {
        matches!(
            message,
            Message::GetFeatures
                | Message::GetProtocolFeatures
                | Message::SetProtocolFeatures
                | Message::GetQueueNum
                | Message::GetMaxMemSlots
                | Message::SetOwner
                | Message::SetBackendReqFd
                | Message::SetVringCall
                | Message::SetVringErr
                | Message::GetConfig
        )
    }

    /// Replaces the disk, and thus the config space.
    pub fn set_disk(&mut self, disk: Disk) {
        self.disk = disk;
    }

    /// Queues that stop before this message is taken.
    pub fn stops(&self, message: Message, payload: &[u8]) -> Stops {
        let index = || Fields(payload).u32().map_or(Stops::None, |index| Stops::One(index as u16));
        match message {
            Message::SetVringNum
            | Message::SetVringAddr
            | Message::SetVringBase
            | Message::GetVringBase
            | Message::SetVringEnable
            | Message::SetVringKick
            | Message::SetVringCall
            | Message::SetVringErr => match index() {
                // The index shares its word with a flag in some of them.
                Stops::One(index) => Stops::One(index & VRING_INDEX_MASK as u16),
                other => other,
            },
            Message::SetFeatures
            | Message::SetMemTable
            | Message::AddMemReg
            | Message::RemMemReg
            | Message::SetLogBase
            | Message::SetConfig
            | Message::SetInflightFd
            | Message::ResetOwner
            | Message::ResetDevice => Stops::All,
            _ => Stops::None,
        }
    }

    /// A queue has stopped, here, as GET_VRING_BASE says it.
    pub fn stopped(&mut self, queue: u16, base: u16) {
        self.vrings[usize::from(queue)].base = base;
    }

    /// Takes a message with the descriptors that came with it.
    ///
    /// # Errors
    /// The rule that it breaks; nothing has changed.
    pub fn take(&mut self, message: Message, payload: &[u8], descriptors: Vec<Passed>) -> Result<Answer, Rule> {
        if descriptors.len() > message.descriptors_max() {
            return Err(Rule::BadDescriptors);
        }
        let mut fields = Fields(payload);
        let number = |fields: &mut Fields<'_>| fields.u64().ok_or(Rule::BadPayload);
        match message {
            Message::GetFeatures => Answer::of(self.disk.features().to_ne_bytes()),
            Message::SetFeatures => {
                let features = number(&mut fields)?;
                // A guest that found the disk read-only says so, also when it has come to be writable since.
                if features & !(self.disk.features() | feature::BLK_RO) != 0 {
                    return Err(Rule::UnofferedFeatures);
                }
                self.features = features;
                Answer::none()
            }
            Message::GetProtocolFeatures => Answer::of(PROTOCOL.to_ne_bytes()),
            Message::SetProtocolFeatures => {
                let protocol = number(&mut fields)?;
                if protocol & !PROTOCOL != 0 {
                    return Err(Rule::UnofferedFeatures);
                }
                self.protocol = protocol;
                Answer::none()
            }
            Message::GetQueueNum => Answer::of(u64::from(QUEUES_MAX).to_ne_bytes()),
            Message::GetMaxMemSlots => Answer::of((REGIONS_MAX as u64).to_ne_bytes()),
            Message::SetOwner | Message::SetLogFd => Answer::none(),
            Message::ResetOwner | Message::ResetDevice => {
                self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
                self.writeback = true;
                // Requests of a broken ring are forgotten, also if the area is given again.
                if let Some(areas) = &self.inflight {
                    areas.clear();
                }
                Answer::none()
            }
            Message::SetMemTable => self.set_table(fields, descriptors),
            Message::AddMemReg => {
                let region = single_region(&mut fields)?;
                let [file] = &descriptors[..] else { return Err(Rule::BadDescriptors) };
                self.memory.add(&region, file)?;
                Answer::none()
            }
            Message::RemMemReg => {
                self.memory.remove(&single_region(&mut fields)?)?;
                Answer::none()
            }
            Message::SetLogBase => self.set_log(fields, descriptors),
            Message::SetVringNum => {
                let (vring, size) = self.vring_state(&mut fields)?;
                if !size.is_power_of_two() || size > u32::from(super::wire::QUEUE_SIZE_MAX) {
                    return Err(Rule::BadQueueSize);
                }
                vring.size = size as u16;
                Answer::none()
            }
            Message::SetVringBase => {
                let (vring, base) = self.vring_state(&mut fields)?;
                vring.base = base.try_into().map_err(|_| Rule::BadPayload)?;
                Answer::none()
            }
            Message::GetVringBase => {
                let (vring, _) = self.vring_state(&mut fields)?;
                // Both are given anew when the queue is started again.
                (vring.kick, vring.call) = (None, None);
                let base = u32::from(vring.base).to_ne_bytes();
                Answer::of([&payload[..4], &base[..]].concat())
            }
            Message::SetVringEnable => {
                let (vring, on) = self.vring_state(&mut fields)?;
                vring.is_enabled = on != 0;
                Answer::none()
            }
            Message::SetVringAddr => self.set_addresses(fields),
            Message::SetVringKick | Message::SetVringCall | Message::SetVringErr => {
                self.set_event(message, number(&mut fields)?, descriptors)
            }
            Message::SetBackendReqFd => {
                let descriptor = descriptors.into_iter().next().ok_or(Rule::BadDescriptors)?;
                kind::channel(&descriptor)?;
                self.backend = Some(Arc::new(descriptor));
                Answer::none()
            }
            Message::GetConfig => self.get_config(payload),
            Message::SetConfig => self.set_config(payload),
            Message::GetInflightFd => {
                let (_, _, queues, size) = inflight_text(&mut fields)?;
                let (file, length) = inflight::create(queues, size)?;
                let (memory, _) = self.memory.map_aside(&file, 0, length, Rule::BadInflight)?;
                self.inflight = Some(Areas::new(memory, 0, queues, size)?);
                let sizes = [queues.to_ne_bytes(), size.to_ne_bytes()].concat();
                let payload = [&length.to_ne_bytes()[..], &0u64.to_ne_bytes(), &sizes, &[0; 4]].concat();
                Ok(Answer { payload: Some(payload), descriptor: Some(file) })
            }
            Message::SetInflightFd => {
                let (length, offset, queues, size) = inflight_text(&mut fields)?;
                let [file] = &descriptors[..] else { return Err(Rule::BadDescriptors) };
                // The part that is used, and no more.
                let needed = inflight::length_bytes(queues, size)?;
                if needed > length {
                    return Err(Rule::BadInflight);
                }
                let (memory, start) = self.memory.map_aside(file, offset, needed, Rule::BadInflight)?;
                self.inflight = Some(Areas::new(memory, start, queues, size)?);
                Answer::none()
            }
        }
    }

    /// The vring that a payload names, and the number behind it.
    fn vring_state(&mut self, fields: &mut Fields<'_>) -> Result<(&mut Vring, u32), Rule> {
        let (index, number) = (fields.u32().ok_or(Rule::BadPayload)?, fields.u32().ok_or(Rule::BadPayload)?);
        let vring = self.vrings.get_mut(index as usize).ok_or(Rule::NoSuchQueue)?;
        Ok((vring, number))
    }

    fn set_table(&mut self, mut fields: Fields<'_>, descriptors: Vec<Passed>) -> Result<Answer, Rule> {
        let count = fields.u32().ok_or(Rule::BadPayload)? as usize;
        fields.u32().ok_or(Rule::BadPayload)?;
        if count != descriptors.len() {
            return Err(Rule::BadDescriptors);
        }
        let mut memory = self.memory.emptied();
        for file in &descriptors {
            memory.add(&RegionText::read(&mut fields).ok_or(Rule::BadPayload)?, file)?;
        }
        self.memory = memory;
        Answer::none()
    }

    fn set_log(&mut self, mut fields: Fields<'_>, descriptors: Vec<Passed>) -> Result<Answer, Rule> {
        let (length, offset) = (fields.u64().ok_or(Rule::BadPayload)?, fields.u64().ok_or(Rule::BadPayload)?);
        let [file] = &descriptors[..] else { return Err(Rule::BadDescriptors) };
        if length > LOG_BYTES_MAX {
            return Err(Rule::BadRegion);
        }
        let (memory, start) = self.memory.map_aside(file, offset, length, Rule::BadRegion)?;
        self.log = Some(DirtyLog::new(memory, start, length as usize));
        // The front-end waits until the log is in use.
        Answer::of([length.to_ne_bytes(), offset.to_ne_bytes()].concat())
    }

    fn set_addresses(&mut self, mut fields: Fields<'_>) -> Result<Answer, Rule> {
        let (vring, flags) = self.vring_state(&mut fields)?;
        let mut next = || fields.u64().ok_or(Rule::BadPayload);
        let (descriptors, used, avail, log) = (next()?, next()?, next()?, next()?);
        let log = (flags & VRING_LOG != 0).then_some(log);
        vring.addresses = Some(RingAddresses { descriptors, avail, used, log });
        Answer::none()
    }

    fn set_event(&mut self, message: Message, value: u64, descriptors: Vec<Passed>) -> Result<Answer, Rule> {
        let vring = self.vrings.get_mut((value & VRING_INDEX_MASK) as usize).ok_or(Rule::NoSuchQueue)?;
        let descriptor = descriptors.into_iter().next();
        if descriptor.is_some() == (value & VRING_NO_FD != 0) {
            return Err(Rule::BadDescriptors);
        }
        if let Some(descriptor) = &descriptor {
            kind::eventfd(descriptor)?;
            // A signal never waits for a reader.
            let flags = rustix::fs::fcntl_getfl(descriptor).map_err(|_| Rule::BadDescriptors)?;
            rustix::fs::fcntl_setfl(descriptor, flags | rustix::fs::OFlags::NONBLOCK)
                .map_err(|_| Rule::BadDescriptors)?;
        }
        let descriptor = descriptor.map(Arc::new);
        match message {
            // Without one the queue would have to be polled for ever.
            Message::SetVringKick => vring.kick = Some(descriptor.ok_or(Rule::BadDescriptors)?),
            Message::SetVringCall => vring.call = descriptor,
            _ => vring.error = descriptor,
        }
        Answer::none()
    }

    fn get_config(&mut self, payload: &[u8]) -> Result<Answer, Rule> {
        let (offset, size) = config_text(payload)?;
        let mut config = self.disk.config(self.writeback).to_vec();
        // Front-ends ask for as much as they know of: later fields read as 0.
        config.resize(CONFIG_BYTES.max(offset + size), 0);
        let mut answer = payload.to_vec();
        answer[CONFIG_HEADER_BYTES..].copy_from_slice(&config[offset..offset + size]);
        Answer::of(answer)
    }

    fn set_config(&mut self, payload: &[u8]) -> Result<Answer, Rule> {
        let (offset, size) = config_text(payload)?;
        let data = &payload[CONFIG_HEADER_BYTES..];
        if self.features & feature::BLK_CONFIG_WCE == 0 || (offset, size) != (WRITEBACK_AT, 1) || data[0] > 1 {
            return Err(Rule::BadConfig);
        }
        self.writeback = data[0] == 1;
        Answer::none()
    }

    /// Parts that a queue needs to run, if it shall and may.
    ///
    /// # Errors
    /// The rule that its ring breaks: it cannot run.
    pub fn ready(&self, queue: u16) -> Result<Option<Start>, Rule> {
        let vring = &self.vrings[usize::from(queue)];
        let is_enabled = vring.is_enabled || self.features & feature::PROTOCOL_FEATURES == 0;
        let (Some(kick), Some(addresses), true) = (&vring.kick, &vring.addresses, is_enabled) else { return Ok(None) };
        let has = |bit: u64| self.features & bit != 0;
        let memory = self.memory.view();
        let (size, base, has_events) = (vring.size, vring.base, has(feature::EVENT_IDX));
        let (areas, has_indirect) = (self.inflight.as_ref(), has(feature::INDIRECT));
        let split = Split::new(&memory, addresses, size, base, has_events)?;
        let area = areas.map_or(Ok(None), |areas| areas.queue(queue, size))?;
        let ring = Ring::new(split, area, has_indirect);
        let log = self.log.clone().filter(|_| has(feature::LOG_ALL)).map(|log| (log, addresses.log));
        Ok(Some(Start {
            ring,
            memory,
            is_writethrough: !self.is_writeback(),
            kick: kick.clone(),
            call: vring.call.clone(),
            error: vring.error.clone(),
            log,
        }))
    }

    /// The guest flushes what it wants to be stable. Source: VIRTIO 1.2, section 5.2.5.2: a driver that can say which
    /// it is says so; one that cannot flush never will.
    fn is_writeback(&self) -> bool {
        let has = |bit: u64| self.features & bit != 0;
        if has(feature::BLK_CONFIG_WCE) { self.writeback } else { has(feature::BLK_FLUSH) }
    }
}

fn single_region(fields: &mut Fields<'_>) -> Result<RegionText, Rule> {
    fields.u64().ok_or(Rule::BadPayload)?;
    RegionText::read(fields).ok_or(Rule::BadPayload)
}

/// Length, offset, queues, size of a queue.
fn inflight_text(fields: &mut Fields<'_>) -> Result<(u64, u64, u16, u16), Rule> {
    let mut read = || Some((fields.u64()?, fields.u64()?, fields.u16()?, fields.u16()?));
    read().ok_or(Rule::BadPayload)
}

/// Offset and size of a config message, whose data are that long, and inside what a config space may have.
fn config_text(payload: &[u8]) -> Result<(usize, usize), Rule> {
    let mut fields = Fields(payload);
    let mut read = || Some((fields.u32()? as usize, fields.u32()? as usize, fields.u32()?));
    let (offset, size, _) = read().ok_or(Rule::BadPayload)?;
    let is_whole = payload.len() == CONFIG_HEADER_BYTES + size && size > 0 && offset + size <= 256;
    is_whole.then_some((offset, size)).ok_or(Rule::BadPayload)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
