//! The wanted state of a server, drawn from a seed: a config as a value, as text, and as the state that must follow.
//!
//! Each export lies at one of its drive's places, which it has alone. Another one may have the place after it, of the
//! same tenant or another one, so that it is known whose bytes were there ([`super::places`]).

use crate::script::{Config, policies};
use crate::server::EXPORT_BYTES;
use mqfq_blk::random::Random;
use mqfq_front::identity::{Credentials, Identity, Peer};
use mqfq_testing::Folder;
use mqfq_testing::authority::Authority;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

/// Drives that there may be.
pub const DEVICES: usize = 2;

/// Tenants.
pub const TENANTS: usize = 3;

/// Exports that there may be. Export E lies on drive E modulo [`DEVICES`].
pub const EXPORTS: usize = 6;

/// Places where exports may lie. Place P is on drive P modulo [`DEVICES`].
pub const PLACES: usize = 6;

/// Addresses where exports may be offered.
pub const SOCKETS: usize = 2;

/// Steps of an export's size.
pub const QUARTERS: u64 = 4;

/// Sectors of a quarter of an export.
pub const QUARTER_SECTORS: usize = (EXPORT_BYTES / QUARTERS / 512) as usize;

/// Users, groups and names that an export may be for: a bit for each. The next number, and another name, never get in.
const UIDS: [u32; 2] = [1001, 1002];
const GIDS: [u32; 2] = [2001, 2002];
const NAMES: [&str; 2] = ["dns:a.example", "cn:b"];

/// Peers that try each door: every user with every group, every name, and one without any.
pub fn peers() -> Vec<Peer> {
    let local = |uid, gid| Peer { names: Vec::new(), credentials: Some(Credentials { uid, gid, pid: 1 }) };
    let named = |name: &str| Peer { names: vec![Identity::parse(name).expect("a name")], credentials: None };
    let users = (UIDS[0]..=UIDS[1] + 1).flat_map(|uid| (GIDS[0]..=GIDS[1] + 1).map(move |gid| local(uid, gid)));
    users.chain(NAMES.into_iter().chain(["dns:c.example"]).map(named)).chain([Peer::default()]).collect()
}

/// Files of a section `[tls]`, without which a config may not have names: they are signed once for all runs.
static TRUST: LazyLock<[(&str, Vec<u8>); 3]> = LazyLock::new(|| {
    let folder = Folder::new();
    Authority::new().sign(folder.path(), "server", "localhost");
    let read = |name| (name, std::fs::read(folder.join(name)).expect("it was signed"));
    ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(read)
});

/// Puts them where [`Wish::text`] says that they are.
pub fn put_trust(folder: &Path) {
    TRUST.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).expect("a folder of ours"));
}

/// Peers that an export is for; all of them if every list is empty.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Door {
    uids: u8,
    gids: u8,
    names: u8,
}

/// The entries of a list whose bits are set.
fn chosen<T: Copy>(list: [T; 2], bits: u8) -> impl Iterator<Item = T> {
    list.into_iter().enumerate().filter(move |(at, _)| bits >> at & 1 > 0).map(|(_, one)| one)
}

impl Door {
    /// Whether it lets `peer` in.
    fn admits(self, peer: &Peer) -> bool {
        let Door { uids, gids, names } = self;
        let has_name = || peer.names.iter().any(|name| chosen(NAMES, names).any(|one| name.to_string() == one));
        let has_id = |of: Credentials| {
            chosen(UIDS, uids).any(|uid| of.uid == uid) || chosen(GIDS, gids).any(|gid| of.gid == gid)
        };
        uids | gids | names == 0 || has_name() || peer.credentials.is_some_and(has_id)
    }

    /// As the lines of a section.
    fn text(self) -> String {
        let Door { uids, gids, names } = self;
        let mut text = names_text(names);
        if uids > 0 {
            let _ = writeln!(text, "allow-uids = {:?}", chosen(UIDS, uids).collect::<Vec<_>>());
        }
        if gids > 0 {
            let _ = writeln!(text, "allow-gids = {:?}", chosen(GIDS, gids).collect::<Vec<_>>());
        }
        text
    }
}

fn names_text(names: u8) -> String {
    match names {
        0 => String::new(),
        _ => format!("identity = {:?}\n", chosen(NAMES, names).collect::<Vec<_>>()),
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Device {
    policy: u64,
    depth: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Tenant {
    weight: u64,
    max_iops: Option<u64>,
    /// Names let in to its exports that have none of their own.
    names: u8,
    /// `memory`, MiB.
    memory_mib: u64,
}

/// `memory` of the server.
const MEMORY_BYTES: u64 = 256 << 20;

/// An export that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Owner of the export.
    pub tenant: usize,
    /// Below [`PLACES`], on the export's drive.
    pub place: usize,
    /// `keep-data`.
    pub keeps: Option<bool>,
    /// 1 to [`QUARTERS`].
    pub quarters: u64,
    /// It may not be written to.
    pub read_only: bool,
    /// `max-bytes-per-s`, in MiB.
    max_mib_per_s: Option<u64>,
    /// A bit for each address.
    pub sockets: u8,
    door: Door,
}

impl Export {
    /// Its size.
    pub fn sectors(&self) -> usize {
        self.quarters as usize * QUARTER_SECTORS
    }

    /// Some address where it is offered.
    pub fn socket(&self) -> usize {
        self.sockets.trailing_zeros() as usize
    }
}

/// Fault of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoilt {
    /// Nothing.
    No,
    /// An export that ends beyond its device: the config's reader refuses it.
    Beyond,
    /// An address at which no server can listen.
    Address,
    /// A drive that comes cannot be opened.
    Drive,
    /// The last worker cannot open its queue of a drive that comes: the others have.
    Queue,
    /// A key that only a restart changes, and everything else besides.
    Restart,
    /// Drives hold still for longer than a change waits.
    Stall,
}

impl Spoilt {
    /// All of them, by the number of a step.
    pub const ALL: [Spoilt; 7] =
        [Spoilt::No, Spoilt::Beyond, Spoilt::Address, Spoilt::Drive, Spoilt::Queue, Spoilt::Restart, Spoilt::Stall];
}

/// A config.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    workers: u64,
    devices: [Device; DEVICES],
    tenants: [Tenant; TENANTS],
    /// By number; `None`: there is none.
    pub exports: [Option<Export>; EXPORTS],
}

/// State of a server: by a wish, or as it runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Picture {
    /// By device: its policy, and its tenants' weights.
    pub devices: BTreeMap<String, (&'static str, BTreeMap<String, u64>)>,
    /// By address: name, first byte, bytes and whether it may not be written to, of each export.
    pub offered: BTreeMap<usize, BTreeSet<(String, u64, u64, bool)>>,
    /// By address and export: which of [`peers`] it lets in.
    pub doors: BTreeMap<(usize, String), Vec<bool>>,
    /// Requests and bytes per second, of each tenant with an export, and of each export.
    pub caps: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// Caps as watchers see them.
    pub watched: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// By tenant with an export: payload that is guaranteed to it, and that it may hold at most, bytes.
    pub memory: BTreeMap<String, (u64, u64)>,
    /// Owner of each export, for lines about its clients.
    pub owners: BTreeMap<String, String>,
    /// Addresses that another process would take over.
    pub handed_over: BTreeSet<usize>,
}

impl Wish {
    /// The wish with which a server begins.
    pub fn first(config: &Config) -> Wish {
        let device = Device { policy: config.get("policy"), depth: config.get("depth") };
        let export = |number: usize| Export {
            tenant: number % TENANTS,
            place: number,
            keeps: None,
            quarters: 4,
            read_only: false,
            max_mib_per_s: None,
            sockets: 1,
            door: Door::default(),
        };
        Wish {
            workers: config.get("workers"),
            devices: [device.clone(), device],
            tenants: [100, 200, 300].map(|weight| Tenant { weight, max_iops: None, names: 0, memory_mib: 64 }),
            exports: std::array::from_fn(|number| (number < config.count("tenants")).then(|| export(number))),
        }
    }

    /// Another one, by so many changes that the seed draws.
    pub fn changed(&self, random: &mut Random) -> Wish {
        let mut wish = self.clone();
        for _ in 0..[1, 1, 2, 3, 6][random.below(5) as usize] {
            wish.change(random);
        }
        wish
    }

    fn change(&mut self, random: &mut Random) {
        let number = random.below(EXPORTS as u64) as usize;
        let is_last = self.exports.iter().flatten().count() == 1;
        let is_free = |place: &usize| !self.exports.iter().flatten().any(|export| export.place == *place);
        let free: Vec<usize> = (number % DEVICES..PLACES).step_by(DEVICES).filter(is_free).collect();
        let keeps = [None, None, Some(true), Some(false)][random.below(4) as usize];
        match (random.below(12), &mut self.exports[number]) {
            (0..3, Some(_)) if !is_last => self.exports[number] = None,
            (0..3, Some(_)) => {}
            (0..5, here @ None) => {
                let (tenant, quarters) = (random.below(TENANTS as u64) as usize, 1 + random.below(QUARTERS));
                let sockets = 1 + random.below((1 << SOCKETS) - 1) as u8;
                let place = free[random.below(free.len() as u64) as usize];
                let (read_only, door) = (random.chance(8192), Door::default());
                let max_mib_per_s = random.chance(16384).then_some(200);
                *here = Some(Export { tenant, place, keeps, quarters, read_only, max_mib_per_s, sockets, door });
            }
            (3, Some(export)) => export.quarters = 1 + random.below(QUARTERS),
            (4, Some(export)) => export.read_only = !export.read_only,
            (5, Some(export)) => export.sockets = 1 + random.below((1 << SOCKETS) - 1) as u8,
            (6, Some(export)) => {
                export.tenant = random.below(TENANTS as u64) as usize;
                export.keeps = keeps;
            }
            (10, Some(export)) => export.max_mib_per_s = [None, Some(100), Some(200)][random.below(3) as usize],
            (11, _) => self.tenants[number % TENANTS].memory_mib = 1 << random.below(8),
            (7, _) => self.tenants[number % TENANTS].weight = 1 + random.below(1000),
            (8, _) => self.tenants[number % TENANTS].max_iops = [None, Some(5_000)][random.below(2) as usize],
            _ => {
                let device = &mut self.devices[number % DEVICES];
                (device.policy, device.depth) = (random.below(policies().len() as u64), 1 << random.below(6));
            }
        }
    }

    /// Some export is for others, or some tenant has other names.
    pub fn change_door(&mut self, random: &mut Random) {
        let mut bits = || random.below(1 << UIDS.len()) as u8;
        let [uids, gids, names, of_tenant] = [bits(), bits(), bits(), bits()];
        let number = random.below(EXPORTS as u64) as usize;
        match &mut self.exports[number] {
            Some(export) if random.chance(49_152) => {
                // Lists of all kinds, and of some.
                let mut has = || if random.chance(32_768) { u8::MAX } else { 0 };
                export.door = Door { uids: uids & has(), gids: gids & has(), names: names & has() };
            }
            _ => self.tenants[number % TENANTS].names = of_tenant,
        }
    }

    /// Whom an export is for.
    fn door(&self, export: &Export) -> Door {
        match export.door {
            Door { names: 0, uids, gids } => Door { names: self.tenants[export.tenant].names, uids, gids },
            own => own,
        }
    }

    /// User and group of a process that export `number` is for, if it is for processes.
    pub fn welcome(&self, number: usize) -> Option<(u32, u32)> {
        let door = self.door(self.exports[number].as_ref()?);
        peers().iter().filter(|peer| door.admits(peer)).find_map(|peer| peer.credentials).map(|of| (of.uid, of.gid))
    }

    /// This wish with another weight.
    pub fn nudged(&self) -> Wish {
        let mut wish = self.clone();
        wish.tenants[0].weight += 1;
        wish
    }

    /// As the config file has it. `folder`: where its sockets are.
    pub fn text(&self, folder: &Path, spoilt: Spoilt) -> String {
        let workers = self.workers + u64::from(spoilt == Spoilt::Restart);
        let memory_mib = MEMORY_BYTES >> 20;
        let mut text =
            format!("[server]\nworkers = {workers}\npin = false\ndrain-s = 1\nmemory = \"{memory_mib}MiB\"\n\n");
        // Changes of one thing are read alone where there is a control socket.
        let _ = write!(text, "[control]\nlisten = \"unix:{}\"\n\n", folder.join("control").display());
        let path = |name: &str| folder.join(name).display().to_string();
        let [certificate, key, ca] = ["server-cert.pem", "server-key.pem", "ca-cert.pem"].map(path);
        let _ = write!(text, "[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nclient-ca = {ca:?}\n\n");
        for (number, Device { policy, depth }) in self.devices.iter().enumerate() {
            let kind = Config::policy(*policy);
            let size_bytes = PLACES.div_ceil(DEVICES) as u64 * EXPORT_BYTES;
            let _ = write!(
                text,
                "[device.d{number}]\nkind = \"memory\"\nsize = {size_bytes}\npolicy = \"{}\"\n",
                kind.name()
            );
            if kind.has_depth() {
                let _ = writeln!(text, "expert.depth = {depth}");
            }
            text.push_str("expert.queue-depth = 32\n\n");
        }
        for (number, Tenant { weight, max_iops, names, memory_mib }) in self.tenants.iter().enumerate() {
            let names = names_text(*names);
            let _ = write!(text, "[tenant.t{number}]\nweight = {weight}\nmemory = \"{memory_mib}MiB\"\n{names}");
            if let Some(max_iops) = max_iops {
                let _ = writeln!(text, "max-iops = {max_iops}");
            }
            text.push('\n');
        }
        for (number, export) in self.exports.iter().enumerate() {
            let Some(export) = export else { continue };
            let Export { tenant, place, keeps, quarters, read_only, max_mib_per_s, sockets, door } = export;
            let (device, offset_bytes) = at(*place);
            let is_last = self.exports[number + 1..].iter().all(Option::is_none);
            let beyond_bytes = if spoilt == Spoilt::Beyond && is_last { 1 << 40 } else { 0 };
            let size_bytes = quarters * EXPORT_BYTES / QUARTERS + beyond_bytes;
            let mut addresses: Vec<String> = (0..SOCKETS)
                .filter(|socket| sockets >> socket & 1 > 0)
                .map(|socket| format!("\"unix:{}\"", folder.join(socket.to_string()).display()))
                .collect();
            if spoilt == Spoilt::Address && is_last {
                addresses.push(format!("\"unix:{}\"", folder.join("nowhere/s").display()));
            }
            let _ = write!(
                text,
                "[export.e{number}]\ndevice = \"d{device}\"\ntenant = \"t{tenant}\"\noffset = {offset_bytes}\n\
                 size = {size_bytes}\nread-only = {read_only}\nnbd = [{}]\n{}",
                addresses.join(", "),
                door.text()
            );
            if let Some(keeps) = keeps {
                let _ = writeln!(text, "keep-data = {keeps}");
            }
            if let Some(mib) = max_mib_per_s {
                let _ = writeln!(text, "max-bytes-per-s = \"{mib}MiB\"");
            }
            text.push('\n');
        }
        text
    }

    /// State of a server in which this wish is in force.
    pub fn picture(&self) -> Picture {
        let mut picture = Picture::default();
        for (number, export) in self.exports.iter().enumerate() {
            let Some(export) = export else { continue };
            let (device, offset_bytes) = at(export.place);
            let tenant = &self.tenants[export.tenant];
            let name = format!("t{}", export.tenant);
            let export_name = format!("e{number}");
            picture.caps.insert(name.clone(), (tenant.max_iops, None));
            picture.caps.insert(export_name.clone(), (None, export.max_mib_per_s.map(|mib| mib << 20)));
            picture.memory.insert(name.clone(), (0, tenant.memory_mib << 20));
            picture.owners.insert(export_name, name.clone());
            picture.handed_over.extend((0..SOCKETS).filter(|socket| export.sockets >> socket & 1 > 0));
            let policy = Config::policy(self.devices[device].policy).name();
            let flows = &mut picture.devices.entry(format!("d{device}")).or_insert((policy, BTreeMap::new())).1;
            flows.insert(name, tenant.weight);
            for socket in (0..SOCKETS).filter(|socket| export.sockets >> socket & 1 > 0) {
                let size_bytes = export.quarters * EXPORT_BYTES / QUARTERS;
                let offered = (format!("e{number}"), offset_bytes, size_bytes, export.read_only);
                picture.offered.entry(socket).or_default().insert(offered);
                let door = self.door(export);
                let lets_in = peers().iter().map(|peer| door.admits(peer)).collect();
                picture.doors.insert((socket, format!("e{number}")), lets_in);
            }
        }
        // Half of the server's memory is guaranteed, in equal parts of whole 16 KiB.
        let part = (MEMORY_BYTES / 2 / picture.memory.len().max(1) as u64) >> 14 << 14;
        picture.memory.values_mut().for_each(|(guaranteed, most)| *guaranteed = part.min(*most));
        picture.watched = picture.caps.clone();
        picture
    }

    /// An export of it is another one than in `before`, whose clients go: other bytes, or another tenant's.
    pub fn is_another(&self, before: &Wish, number: usize) -> bool {
        let of = |wish: &Wish| wish.exports[number].as_ref().map(|export| (export.tenant, export.place));
        of(self) != of(before)
    }

    /// It says of an export that it is another tenant's now, and not what becomes of the bytes.
    pub fn must_say(&self, before: &Wish) -> bool {
        let both = self.exports.iter().zip(&before.exports);
        both.filter_map(|(new, old)| new.as_ref().zip(old.as_ref()))
            .any(|(new, old)| new.tenant != old.tenant && new.place == old.place && new.keeps.is_none())
    }

    /// A drive is used in it that is not in `before`.
    pub fn brings_a_drive(&self, before: &Wish) -> bool {
        let used =
            |wish: &Wish, device| (device..EXPORTS).step_by(DEVICES).any(|number| wish.exports[number].is_some());
        (0..DEVICES).any(|device| used(self, device) && !used(before, device))
    }
}

/// Where a place is: its drive, and its first byte there.
pub fn at(place: usize) -> (usize, u64) {
    (place % DEVICES, (place / DEVICES) as u64 * EXPORT_BYTES)
}
