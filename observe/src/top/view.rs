//! Contents of the screen, and the effect of each key.

use crate::live::{DeviceLive, Snapshot, TenantLive};
use std::collections::{HashMap, VecDeque};

/// Seconds of a sparkline.
const SECONDS_MAX: usize = 60;

/// By what tenants are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Share received, largest first.
    Share,
    /// Name.
    Name,
    /// p99 of the time in the queue, longest first.
    Queue,
    /// p99 of the time on the device, longest first.
    Device,
    /// Bytes per second, most first.
    Bytes,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Share, Sort::Name, Sort::Queue, Sort::Device, Sort::Bytes];

    /// As the header shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Sort::Share => "share",
            Sort::Name => "name",
            Sort::Queue => "queue p99",
            Sort::Device => "device p99",
            Sort::Bytes => "MB/s",
        }
    }

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }
}

/// Contents of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Screen {
    /// The tenants of the chosen device; its exports, where those have weights.
    Tenants,
    /// All devices.
    Devices,
}

/// Input under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Nothing.
    None,
    /// A part of a name.
    Filter(String),
    /// A weight for the tenant that was selected when the input began.
    Weight {
        /// Its name.
        tenant: String,
        /// Text typed so far.
        text: String,
    },
}

/// A key, whatever terminal it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A character.
    Char(char),
    /// The selection goes up.
    Up,
    /// The selection goes down.
    Down,
    /// The next device.
    Tab,
    /// Takes what was typed.
    Enter,
    /// Drops what was typed.
    Escape,
    /// Removes what was typed last.
    Backspace,
}

/// Work to be done outside of the view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Leave.
    Quit,
    /// Give a tenant another weight.
    SetWeight {
        /// Name of the tenant.
        tenant: String,
        /// 1 to 10000.
        weight: u16,
    },
}

/// Data of a screen.
#[derive(Debug)]
pub struct View {
    /// The latest.
    pub snapshot: Snapshot,
    /// Which of its devices, by name; it may have gone.
    device: String,
    /// Contents of the screen.
    pub screen: Screen,
    /// How tenants are sorted.
    pub sort: Sort,
    /// Only tenants whose names have it.
    pub filter: String,
    /// Input under way.
    pub input: Input,
    /// The selected tenant, by name.
    selected: String,
    /// Bytes per second of the last seconds, by device and tenant.
    history: HashMap<(String, String), VecDeque<u64>>,
    /// The sentence at the bottom: what came of the last action.
    pub message: String,
    /// The selected tenant's verdict has its own lines.
    pub shows_why: bool,
}

impl Default for View {
    fn default() -> View {
        View {
            snapshot: Snapshot::default(),
            device: String::new(),
            screen: Screen::Tenants,
            sort: Sort::Share,
            filter: String::new(),
            input: Input::None,
            selected: String::new(),
            history: HashMap::new(),
            message: String::new(),
            shows_why: true,
        }
    }
}

impl View {
    /// Shows another second.
    pub fn take(&mut self, snapshot: Snapshot) {
        let mut seen = HashMap::new();
        for device in &snapshot.devices {
            for tenant in &device.tenants {
                let key = (device.name.clone(), tenant.name.clone());
                let mut seconds = self.history.remove(&key).unwrap_or_default();
                if seconds.len() == SECONDS_MAX {
                    seconds.pop_front();
                }
                seconds.push_back(tenant.bytes_per_s as u64);
                seen.insert(key, seconds);
            }
        }
        (self.history, self.snapshot) = (seen, snapshot);
    }

    /// The device that is shown.
    pub fn device(&self) -> Option<&DeviceLive> {
        let devices = &self.snapshot.devices;
        devices.iter().find(|device| device.name == self.device).or(devices.first())
    }

    /// Its tenants, filtered and sorted.
    pub fn tenants(&self) -> Vec<&TenantLive> {
        let Some(device) = self.device() else { return Vec::new() };
        let mut all: Vec<&TenantLive> =
            device.tenants.iter().filter(|tenant| tenant.name.contains(&self.filter)).collect();
        let by = |of: fn(&TenantLive) -> f64| move |a: &&TenantLive, b: &&TenantLive| of(b).total_cmp(&of(a));
        match self.sort {
            Sort::Share => all.sort_by(by(|tenant| tenant.share_1s)),
            Sort::Name => all.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Queue => all.sort_by(by(|tenant| tenant.queue_p99_ns as f64)),
            Sort::Device => all.sort_by(by(|tenant| tenant.device_p99_ns as f64)),
            Sort::Bytes => all.sort_by(by(|tenant| tenant.bytes_per_s)),
        }
        all
    }

    /// Where the selection is among [`View::tenants`].
    pub fn selection(&self) -> usize {
        self.tenants().iter().position(|tenant| tenant.name == self.selected).unwrap_or(0)
    }

    /// Bytes per second of a tenant of the shown device over the last seconds, the latest last.
    pub fn seconds(&self, tenant: &str) -> Vec<u64> {
        let key = self.device().map(|device| (device.name.clone(), tenant.to_owned()));
        key.and_then(|key| self.history.get(&key)).into_iter().flatten().copied().collect()
    }

    /// A key was pressed.
    pub fn key(&mut self, key: Key) -> Option<Action> {
        match std::mem::replace(&mut self.input, Input::None) {
            Input::None => self.command(key),
            Input::Filter(text) => {
                match edited(text, key) {
                    Edit::Going(text) => {
                        self.filter.clone_from(&text);
                        self.input = Input::Filter(text);
                    }
                    Edit::Done(text) => self.filter = text,
                    Edit::Dropped => self.filter.clear(),
                }
                None
            }
            Input::Weight { tenant, text } => match edited(text, key) {
                Edit::Going(text) => {
                    self.input = Input::Weight { tenant, text };
                    None
                }
                Edit::Done(text) => self.weight(tenant, &text),
                Edit::Dropped => None,
            },
        }
    }

    fn weight(&mut self, tenant: String, text: &str) -> Option<Action> {
        match text.parse() {
            Ok(weight @ 1..=10_000) => Some(Action::SetWeight { tenant, weight }),
            _ => {
                self.message = format!("{text} is no weight, allowed is 1 to 10000");
                None
            }
        }
    }

    fn command(&mut self, key: Key) -> Option<Action> {
        self.message.clear();
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('/') => self.input = Input::Filter(String::new()),
            Key::Char('w') => self.shows_why = !self.shows_why,
            Key::Char('d') => {
                self.screen = if self.screen == Screen::Devices { Screen::Tenants } else { Screen::Devices };
            }
            Key::Char('+') => {
                let tenant = self.tenants().get(self.selection())?.name.clone();
                self.input = Input::Weight { tenant, text: String::new() };
            }
            Key::Up | Key::Char('k') => self.select(-1),
            Key::Down | Key::Char('j') => self.select(1),
            Key::Tab => self.next_device(),
            Key::Enter if self.screen == Screen::Devices => self.screen = Screen::Tenants,
            _ => {}
        }
        None
    }

    fn select(&mut self, by: isize) {
        if self.screen == Screen::Devices {
            return self.next_device();
        }
        let (tenants, at) = (self.tenants(), self.selection());
        let to = at.saturating_add_signed(by).min(tenants.len().saturating_sub(1));
        if let Some(tenant) = tenants.get(to) {
            self.selected = tenant.name.clone();
        }
    }

    fn next_device(&mut self) {
        let names = || self.snapshot.devices.iter().map(|device| &device.name);
        let shown = self.device().map(|device| device.name.clone());
        let next = names().skip_while(|name| Some(*name) != shown.as_ref()).nth(1).or(names().next());
        self.device = next.cloned().unwrap_or_default();
    }
}

enum Edit {
    Going(String),
    Done(String),
    Dropped,
}

fn edited(mut text: String, key: Key) -> Edit {
    match key {
        Key::Char(typed) => text.push(typed),
        Key::Backspace => drop(text.pop()),
        Key::Enter => return Edit::Done(text),
        Key::Escape => return Edit::Dropped,
        Key::Up | Key::Down | Key::Tab => {}
    }
    Edit::Going(text)
}
