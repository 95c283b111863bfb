//! A server that is changed as a whole while it serves, by the control plane and the reconciler that ship.
//!
//! ```text
//!   propose SEED SPOIL ─▶ wish ─▶ text or one thing ─▶ Running (daemon/src/control.rs) ─▶ reader, reconciler, ledger
//!                          │                                                                      │
//!                          └─▶ what must be there ◀── compared ──▶ what is there ◀── engine, tables, caps
//! ```
//! Most proposals change several things at once, and many of them cannot be had: for a reason that is found before
//! anything is touched, or halfway.
//!
//! | invariant | how it is looked at |
//! |---|---|
//! | I12 | after each proposal all of it is there, or all is as before, the revision and the document too |
//! | I12 | what is in force is what the document says: weights, caps, memory, addresses, owners, what an upgrade hands over |
//! | I12 | a revision is one more than the last if something was changed, else the same |
//! | I11 | each export lets in each user, group and name that the document says, and no other, after each proposal, upgrade and start; its own client comes as one of them |
//! | I11 | what exports hold, through their coming, going and resizing (`oracle.rs`), and that each tenant reads its own bytes or zeroes (`places.rs`) |
//! | I10 | clients of a removed export are disconnected, after its time at the latest, and no others |
//! | I14 | nothing is left under way or held once no client asks; a drive that does not answer holds up its own tenants alone |

mod cut_off;
mod drives;
mod places;
mod wish;

use crate::host::VirtualHost;
use crate::nbd::{Counts, Manners, NbdClient};
use crate::net;
use crate::run::Outcome;
use crate::script::{Config, Script, Step};
use crate::server::SECTORS;
use crate::world::{self, STEPS, World};
use drives::{Drives, Fault};
use mqfq_blk::cap::CapLimits;
use mqfq_blk::engine::{Engine, EngineOptions};
use mqfq_blk::random::Random;
use mqfq_blk::state::VERSION;
use mqfq_blk::worker::WorkerContext;
use mqfq_control::document::Document;
use mqfq_control::{By, Edit, Kind, Proposal, Server as _, Via};
use mqfq_daemon::config::caps::{CapOwner, WatchedCaps};
use mqfq_daemon::config::{Config as FileConfig, KnownFiles, LiveCaps, RealFiles};
use mqfq_daemon::control::{Origin, Running};
use mqfq_daemon::device_errors::DeviceErrorCounts;
use mqfq_daemon::live::{self, Listeners, Owners, Tenants, Trust};
use mqfq_daemon::output::Output;
use mqfq_daemon::ownership::{Ownership, Store};
use mqfq_daemon::reconcile::{Reconciler, Runtime, withhold};
use mqfq_daemon::upgrade::{self, HandoverResult, HandoverState, Serving};
use mqfq_daemon::watch::Watch;
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::ExportTable;
use mqfq_front::front_end::{ExportAddress, ListenOptions};
use places::Place;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use wish::{DEVICES, EXPORTS, Picture, SOCKETS, Spoilt, Wish};

/// `drain-s` of every config here, ns.
const DRAIN_NS: u64 = 1_000_000_000;

/// How long drives hold still in [`Spoilt::Stall`], ns: beyond every patience of one change.
const STALL_NS: u64 = 40 * DRAIN_NS;

/// Longest that everything takes to end once drives move again, ns: the time after which a connection looks at its
/// client, twice.
const SETTLE_NS: u64 = STALL_NS + 120_000_000_000;

/// Changes at most until exports have their bytes, once drives move.
const TRIES: usize = 16;

/// A server.
struct Managed {
    running: Arc<Running>,
    engine: Arc<Engine>,
    serving: Arc<Serving>,
}

/// Starts a server. `handover` is of another one, whose place it takes.
///
/// # Errors
/// One sentence: something of that has no place here.
fn assemble(world: &Rc<World>, folder: &Path, text: &str, handover: Option<HandoverState>) -> Result<Managed, String> {
    let mut store = Store::at(folder.join("owners"));
    store.open().map_err(String::from)?;
    let mut ownership = match &handover {
        Some(handover) => Ownership::unpack(&handover.ownership, Some(store))?,
        None => Ownership::new(Some(store)),
    };
    mqfq_daemon::config::extend(mqfq_daemon::config::Additions::policies(mqfq_policies::REGISTRY));
    let config = FileConfig::parse("vopr", text).unwrap_or_else(|error| panic!("{error}"));
    let control = config.control.clone();
    let plan = config.check(&RealFiles).unwrap_or_else(|error| panic!("{error}"));
    let open = |(slot, plan)| (slot, drives::adopt(plan));
    let devices: BTreeMap<_, _> = plan.devices.iter().map(open).collect();
    let (tenants, caps) = (Tenants::new(&plan).expect("few"), LiveCaps::new(&plan));
    let exports = live::exports(&plan, &tenants, &caps, |slot| devices[&slot].clone());
    let exports = exports.expect("they fit");
    let workers = plan.server.workers.expect("it is set");
    let options = plan.devices.iter().map(|(slot, plan)| live::device_options(plan, devices[&slot].clone(), workers));
    let options = EngineOptions { workers, pin: false, spin_ns: 0, devices: options.collect() };
    let (engine, contexts) = Engine::start_stepped(options, STEPS).expect("an engine starts");
    let engine = Arc::new(engine);
    let table = |slots: &_| Arc::new(ExportTable::new(live::offered(slots, &exports)).expect("names"));
    let tables: Vec<_> = plan.listeners.iter().map(|(address, slots)| (address.clone(), table(slots))).collect();
    let withheld = withhold(&mut ownership, drives::key_of, (&plan, &exports), &tables);
    let named: Vec<_> =
        plan.devices.iter().map(|(slot, plan)| (plan.config.name.clone(), devices[&slot].clone())).collect();
    let result = handover.map(|it| upgrade::install(it, VERSION, false, &named, &tables, |_| ListenOptions::default()));
    let HandoverResult { listeners: mut came, connections, .. } = result.transpose()?.unwrap_or_default();
    let worker = |context: WorkerContext| WorkerContext::worker(VirtualHost::new(world.clone(), context), 64);
    world.employ(contexts.into_iter().map(worker).collect::<Result<_, _>>().expect("workers"));
    let mut listeners = Listeners::new(Arc::new(|_| ListenOptions::default()), Arc::default());
    let mut numbered = BTreeMap::new();
    for (address, table) in tables {
        let key = upgrade::key(&address);
        let listener = came
            .remove(&key)
            .unwrap_or_else(|| listeners.listen(&address, table.clone()).expect("a socket in a folder of ours"));
        numbered.insert(listener.number(), key);
        listeners.add(address, table, &*listener);
        listener.into_clients().into_iter().for_each(|client| engine.attach(client));
    }
    connections.into_iter().for_each(|client| engine.attach(client));
    ownership.commit()?;
    let ownership = Arc::new(Mutex::new(ownership));
    let serving = Arc::new(Serving {
        devices: Mutex::new(named),
        listeners: Mutex::new(numbered),
        sockets: Vec::new(),
        ownership: ownership.clone(),
    });
    let runtime = Runtime {
        open_device: drives::open,
        trust: Trust::new(&plan.trust),
        devices,
        exports,
        tenants,
        owners: Owners::new(&plan),
        caps,
        watched_caps: WatchedCaps::default(),
        listeners,
        device_errors: Arc::new(DeviceErrorCounts::new(Vec::new())),
        watch: Watch::of_nobody(),
        serving: serving.clone(),
        ownership,
        key_of: drives::key_of,
        output: Output::of_nobody(),
    };
    let origin = Origin { path: folder.join("config.toml"), text: text.to_owned(), control, listen: Vec::new() };
    let reconciler = Reconciler::new(plan, engine.clone(), runtime, withheld);
    let nothing = Box::new(|| serde_json::Value::Null);
    let running =
        Arc::new(Running::new(engine.clone(), Output::of_nobody(), origin, reconciler, KnownFiles::default(), nothing));
    Ok(Managed { running, engine, serving })
}

/// A run of such a server.
pub struct Run {
    world: Rc<World>,
    drives: Rc<Drives>,
    folder: PathBuf,
    workers: u64,
    managed: Option<Managed>,
    wish: Wish,
    revision: u64,
    /// Drives hold still until then, ns.
    stalled_until_ns: u64,
    /// Something may have been left to a drive that held still: what is there may be less than what is wanted, until a
    /// change finds it ended.
    is_behind: bool,
    clients: Rc<RefCell<Vec<NbdClient>>>,
    places: Vec<Place>,
    outcome: Outcome,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Run {
    /// A server that begins with the script's config.
    pub fn new(script: &Script) -> Run {
        Run::begin(&script.config, Wish::first(&script.config))
    }

    fn begin(config: &Config, wish: Wish) -> Run {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let world = World::begin(config);
        // Relaxed: only that it is another one matters.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = net::scratch().join(format!("mqfq-vopr-m{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        wish::put_trust(&folder);
        let drives = Drives::begin(config);
        let mut random = Random::new(config.get("seed") ^ 0x5eed);
        let mut places = places::all();
        let client = |number: usize| {
            let oracle = places[number].oracle.clone();
            let manners = Manners {
                structured: random.chance(32768),
                depth: 1 << random.below(6),
                piece_bytes: if random.chance(8192) { 1 + random.below(700) as usize } else { 1 << 20 },
            };
            let (name, export) = (format!("the client of e{number}"), format!("e{number}"));
            let mut client = NbdClient::new(name, export, oracle, (0, SECTORS), manners);
            client.may_fail = true;
            client
        };
        let clients: Vec<NbdClient> = (0..EXPORTS).map(client).collect();
        wish.exports.iter().flatten().for_each(|export| places[export.place].have(export, false));
        let clients = Rc::new(RefCell::new(clients));
        let told = clients.clone();
        world.serve(Box::new(move || {
            told.borrow_mut().iter_mut().fold(false, |has_moved, client| client.turn() | has_moved)
        }));
        let mut run = Run {
            world,
            drives,
            folder,
            workers: config.get("workers"),
            managed: None,
            wish,
            revision: 1,
            stalled_until_ns: 0,
            is_behind: false,
            clients,
            places,
            outcome: Outcome::default(),
        };
        run.start();
        run
    }

    fn start(&mut self) {
        let text = self.wish.text(&self.folder, Spoilt::No);
        self.managed =
            Some(assemble(&self.world, &self.folder, &text, None).expect("it has nothing to find a place for"));
        (self.revision, self.is_behind) = (1, false);
        self.oracles_follow(&self.wish.clone());
        self.assert_begun();
    }

    /// The server is as the config says, but for exports whose bytes are still being erased.
    fn assert_begun(&self) {
        match self.withholds() {
            true => self.assert_no_more(),
            false => assert_eq!(self.picture(), self.wish.picture(), "a server begins with what its config says"),
        }
    }

    /// Some export lacks bytes, and the server says so.
    fn withholds(&self) -> bool {
        !self.withheld().is_empty()
    }

    /// Names of exports that lack bytes.
    fn withheld(&self) -> Vec<String> {
        let state = self.managed().running.state();
        let exports = state.things[Kind::Export.plural()].iter();
        exports.filter(|export| export.in_force.contains_key("withheld")).map(|export| export.name.clone()).collect()
    }

    /// Notes that exports which lack nothing have been erased.
    fn note_whole(&mut self) {
        let withheld = self.withheld();
        for (number, export) in self.wish.exports.iter().enumerate() {
            if let Some(export) = export.as_ref().filter(|_| !withheld.contains(&format!("e{number}"))) {
                self.places[export.place].is_whole(export);
            }
        }
    }

    fn managed(&self) -> &Managed {
        self.managed.as_ref().expect("there is a server between steps")
    }

    /// Sum of the clients' counts.
    pub fn counts(&self) -> Counts {
        self.clients.try_borrow().map_or(Counts::default(), |clients| {
            clients.iter().map(|client| client.counts).fold(Counts::default(), Counts::plus)
        })
    }

    /// Does one step.
    pub fn step(&mut self, step: &Step) {
        let [first, second, third] = step.numbers;
        let client = first as usize % EXPORTS;
        // As the thread does that waits for erases.
        self.managed().running.look();
        match step.name {
            "connect" => self.connect(client),
            "leave" => self.clients.borrow_mut()[client].leave(second > 0),
            "io" => {
                self.clients.borrow_mut()[client].want(second, &mut Random::new(third));
                world::run(1_000);
            }
            "run" => world::run(first),
            "stall" => self.stall(first),
            "silence" => self.silence(first as usize % DEVICES, second),
            "settle" => self.settle(),
            "check" => self.check(),
            "kill" => self.kill(false),
            "power" => self.kill(true),
            "upgrade" => self.upgrade(),
            "propose" => self.propose(first, Spoilt::ALL[second as usize % Spoilt::ALL.len()]),
            _ => {}
        }
        self.world.net.borrow_mut().forget();
    }

    fn connect(&mut self, client: usize) {
        // A socket without a listener refuses, as the kernel does.
        let Some(export) = &self.wish.exports[client] else { return };
        let (is_away, manners) = {
            let clients = self.clients.borrow();
            (clients[client].is_away(), clients[client].manners())
        };
        if is_away {
            let path = self.folder.join(export.socket().to_string());
            let owner = self.wish.welcome(client);
            let pipe = self.world.net.borrow_mut().connect_by(path, manners.piece_bytes, owner);
            self.clients.borrow_mut()[client].connect(pipe);
            world::run(5_000);
        }
    }

    fn stall(&mut self, ns: u64) {
        self.stalled_until_ns = self.stalled_until_ns.max(world::now_ns() + ns);
        self.drives.all().iter().for_each(|drive| drive.stall_until(self.stalled_until_ns));
    }

    /// Sets the limits of requests from now on, of exports in `wish`.
    fn oracles_follow(&self, wish: &Wish) {
        for export in wish.exports.iter().flatten() {
            let mut oracle = self.places[export.place].oracle.borrow_mut();
            if oracle.limited() != export.sectors() {
                oracle.limit(export.sectors());
            }
            oracle.read_only(export.read_only);
        }
    }

    /// Allows the requests that `before` or `after` allows, while one becomes the other.
    fn oracles_allow(&self, before: &Wish, after: &Wish) {
        for export in before.exports.iter().chain(&after.exports).flatten() {
            let mut oracle = self.places[export.place].oracle.borrow_mut();
            if export.sectors() > oracle.limited() {
                oracle.limit(export.sectors());
            }
            if !export.read_only {
                oracle.read_only(false);
            }
        }
    }

    fn propose(&mut self, seed: u64, spoilt: Spoilt) {
        let mut random = Random::new(seed);
        let mut wanted = self.wish.changed(&mut random);
        if seed & 3 == 3 {
            // Nothing else, so that it may go the short way.
            wanted = self.wish.clone();
        }
        if seed & 1 > 0 {
            wanted.change_door(&mut Random::new(seed ^ 0xd005));
        }
        let is_whole = random.chance(20000);
        if spoilt == Spoilt::Stall {
            self.stall(STALL_NS);
        }
        let last_worker = self.workers as u16 - 1;
        self.drives.set_fault(match spoilt {
            Spoilt::Drive => Fault::Drive,
            Spoilt::Queue => Fault::Queue(last_worker),
            _ => Fault::No,
        });
        self.note_whole();
        let before = self.picture();
        let document = Document::parse(&wanted.text(&self.folder, spoilt)).expect("TOML");
        // A document that comes as JSON is kept read, so that a section after it is changed alone.
        let is_json = random.chance(32768);
        let sent = if is_json { Document::from_json(&document.to_json()).expect("JSON") } else { document.clone() };
        let edit = self.edit(&sent, is_whole, random.chance(32768));
        let proposal = Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false };
        self.oracles_allow(&self.wish, &wanted);
        let served: Vec<bool> = self.clients.borrow().iter().map(NbdClient::is_served).collect();
        let gone = Run::gone(&self.wish, &wanted);
        // In its handshake, a client may choose the export that goes or the one that comes under the same name. It asks
        // for nothing until it is known which, because its answers are judged by the one.
        gone.iter().for_each(|client| self.clients.borrow_mut()[*client].hold(!served[*client]));
        let removed = self.offered(&gone);
        let failed_reads = self.failed_reads();
        let start_ns = world::now_ns();
        let (is_stalled, was_behind) = (self.stalled_until_ns > start_ns, self.is_behind);
        let was_withheld = self.withholds();
        let done = self.managed().running.propose(&proposal);
        let took_ns = world::now_ns() - start_ns;
        self.drives.set_fault(Fault::No);
        self.outcome.changes += 1;
        let (configured, revision) = self.managed().running.configured();
        match done {
            Ok(applied) => {
                let before = std::mem::replace(&mut self.wish, wanted.clone());
                let next = self.revision + u64::from(applied.changed);
                assert_eq!(revision, next, "atomic change (I12): {} changes, revision", applied.changes.len());
                assert!(configured.table() == document.table(), "atomic change (I12): another document is in force");
                assert!(!Run::must_fail(spoilt, &before, &wanted), "{spoilt:?} was taken: {:?}", applied.done);
                self.revision = revision;
                // An offer may wait for bytes whose last requests a drive has not ended.
                self.is_behind = (was_behind || is_stalled) && self.picture() != self.wish.picture();
                if !is_stalled && !was_behind && !self.withholds() {
                    assert_eq!(self.picture(), self.wish.picture(), "atomic change (I12): not all of it is there");
                } else {
                    self.assert_no_more();
                }
                let is_gone: Vec<bool> = (0..EXPORTS).map(|client| gone.contains(&client)).collect();
                for client in gone {
                    let mut clients = self.clients.borrow_mut();
                    // It notices that its connection was shut down.
                    clients[client].turn();
                    // A client that had not chosen may have the export that came under the name, and no other: what
                    // was removed has no session, unless requests of an earlier one are on a drive that holds still.
                    let is_new = !served[client] && wanted.exports[client].is_some();
                    let is_rid = removed[&client].iter().all(|export| export.strong_count() == 0);
                    assert!(
                        !clients[client].is_served() || (is_new && (is_rid || is_stalled || was_behind)),
                        "the client of e{client}, which was removed, is still served (I10) after {took_ns} ns"
                    );
                    if let Some(export) = &wanted.exports[client] {
                        clients[client].judge_by(&self.places[export.place].oracle);
                    }
                }
                for client in (0..EXPORTS).filter(|client| served[*client] && !is_gone[*client]) {
                    assert!(
                        self.is_served(client) || self.is_cut_off(client, &before, &failed_reads),
                        "the client of e{client}, which stays, was disconnected (I10)"
                    );
                }
                places::follow(&mut self.places, &before, &wanted);
            }
            Err(refusal) => {
                // Such as a drive that was opened to be read alone.
                let needs_restart = refusal.sentence.ends_with("allowed is a restart")
                    || refusal.sentence.contains("is open to be read alone")
                    || refusal.sentence.ends_with(drives::IN_USE);
                let must_say = wanted.must_say(&self.wish);
                let may_fail = spoilt != Spoilt::No || is_stalled || was_behind || needs_restart || must_say;
                assert!(may_fail, "nothing is wrong with it: {}", refusal.sentence);
                assert!(!refusal.sentence.is_empty());
                assert_eq!(revision, self.revision, "atomic change (I12): refused, {}", refusal.sentence);
                // A part that a stalled drive keeps from being undone stays, and the refusal says so.
                if was_withheld && !is_stalled && !was_behind {
                    // An erase may have ended meanwhile.
                    self.assert_no_more();
                } else if !is_stalled && !was_behind {
                    assert_eq!(self.picture(), before, "atomic change (I12): refused, {}", refusal.sentence);
                    let text = self.wish.text(&self.folder, Spoilt::No);
                    let same = configured.table() == Document::parse(&text).expect("TOML").table();
                    assert!(same, "atomic change (I12): refused, and another document is in force");
                } else {
                    self.is_behind = true;
                }
                self.outcome.refused += 1;
            }
        }
        self.clients.borrow_mut().iter_mut().for_each(|client| client.hold(false));
        self.oracles_follow(&self.wish.clone());
        // Each step of a change has its patience: what goes, what shrinks, each device's flows and policy, each export.
        let steps = (EXPORTS * 3 + wish::DEVICES * 6 + SOCKETS) as u64;
        assert!(took_ns <= steps * DRAIN_NS, "a change took {took_ns} ns, drain-s or not (I10)");
    }

    /// As a change of one thing, where it is one and the draw says so.
    fn edit(&self, document: &Document, is_whole: bool, patches: bool) -> Edit {
        let (now, _) = self.managed().running.configured();
        let things = |document: &Document| -> Vec<_> {
            let all = Kind::ALL.into_iter().flat_map(|kind| {
                document.things(kind).map(|(name, keys)| (kind, name.to_owned(), keys)).collect::<Vec<_>>()
            });
            all.collect()
        };
        let (before, after) = (things(&now), things(document));
        let mut come = after.iter().filter(|thing| !before.contains(thing));
        let is_there = |kind: Kind, name: &str| after.iter().any(|(other, own, _)| (*other, &**own) == (kind, name));
        let mut go = before.iter().filter(|(kind, name, _)| !is_there(*kind, name));
        let is_rest_same = now.table().get("server") == document.table().get("server");
        match (come.next(), come.next(), go.next(), go.next()) {
            (Some((kind, name, keys)), None, None, _) if !is_whole && is_rest_same => {
                let old = before.iter().find(|(other, own, _)| (other, own) == (kind, name)).map(|(.., keys)| keys);
                let Some(old) = old.filter(|_| patches) else { return Edit::Put(*kind, name.clone(), keys.clone()) };
                Edit::Patch(*kind, name.clone(), merge_patch(old, keys))
            }
            (None, _, Some((kind, name, _)), None) if !is_whole && is_rest_same => Edit::Delete(*kind, name.clone()),
            _ => Edit::Whole(document.clone()),
        }
    }

    /// Clients of exports that go, or that are others from now on.
    fn gone(before: &Wish, wanted: &Wish) -> Vec<usize> {
        (0..EXPORTS).filter(|number| wanted.is_another(before, *number)).collect()
    }

    fn must_fail(spoilt: Spoilt, before: &Wish, wanted: &Wish) -> bool {
        if wanted.must_say(before) {
            return true;
        }
        match spoilt {
            Spoilt::No | Spoilt::Stall => false,
            Spoilt::Beyond | Spoilt::Address | Spoilt::Restart => true,
            Spoilt::Drive | Spoilt::Queue => wanted.brings_a_drive(before),
        }
    }

    /// No export is offered that is not wanted, nor to other peers.
    fn assert_no_more(&self) {
        let (is, wanted) = (self.picture(), self.wish.picture());
        for (at, lets_in) in &is.doors {
            assert_eq!(Some(lets_in), wanted.doors.get(at), "isolation (I11): who may enter {at:?}");
        }
        for (socket, offered) in &is.offered {
            let wanted = wanted.offered.get(socket).cloned().unwrap_or_default();
            for (name, offset_bytes, size_bytes, read_only) in offered {
                let fits = wanted.iter().any(|(other, offset, most, only)| {
                    (other, offset, only) == (name, offset_bytes, read_only) && size_bytes <= most
                });
                assert!(fits, "isolation (I11): {name} has {size_bytes} bytes at {socket}, wanted is {wanted:?}");
            }
        }
    }

    fn address(&self, socket: usize) -> ExportAddress {
        let nbd = *FRONT_ENDS.iter().find(|front_end| front_end.name() == "nbd").expect("it is registered");
        ExportAddress::parse(nbd, &format!("unix:{}", self.folder.join(socket.to_string()).display())).expect("a path")
    }

    /// State of the running server.
    fn picture(&self) -> Picture {
        let Managed { running, engine, .. } = self.managed();
        let (mut picture, peers) = (Picture::default(), wish::peers());
        for device in engine.stats().devices {
            let flows = device.flows.iter().map(|flow| (flow.name.clone(), u64::from(flow.weight.get()))).collect();
            picture.devices.insert(device.name, (device.policy, flows));
        }
        running.with_runtime(|runtime| {
            for socket in 0..SOCKETS {
                let Some(listener) = runtime.listeners.of(&self.address(socket)) else { continue };
                let offered = listener.table.all().into_iter().map(|export| {
                    (export.name.clone(), export.offset_bytes, export.size_now_bytes(), export.is_read_only())
                });
                picture.offered.insert(socket, offered.collect());
                for export in listener.table.all() {
                    let lets_in = peers.iter().map(|peer| export.state.admits(peer)).collect();
                    picture.doors.insert((socket, export.name.clone()), lets_in);
                }
            }
            let both = |limits: CapLimits| (limits.iops, limits.bytes_per_s);
            for export in runtime.exports.values() {
                // Caps that its clients pass, and memory that they take from.
                let Some(tenant) = runtime.owners.of(&export.name) else { continue };
                let [own, tenants] = export.caps.limits();
                picture.caps.extend([(export.name.clone(), both(own)), (tenant.clone(), both(tenants))]);
                picture.memory.insert(tenant.clone(), export.memory.limits());
                picture.owners.insert(export.name.clone(), tenant);
            }
            let watched = runtime.watched_caps.limits().into_iter().map(|(owner, (_, limits))| match owner {
                CapOwner::Tenant(name) | CapOwner::Export(name) => (name, both(limits)),
            });
            picture.watched.extend(watched);
            let numbered = runtime.serving.listeners.lock().expect("nobody panics with it").clone();
            for socket in 0..SOCKETS {
                let listener = runtime.listeners.of(&self.address(socket)).map(|listener| listener.number);
                if listener.is_some_and(|number| numbered.get(&number) == Some(&upgrade::key(&self.address(socket)))) {
                    picture.handed_over.insert(socket);
                }
            }
        });
        picture
    }

    /// Lets everything end that can, and what has ended be offered.
    fn settle_erases(&self) {
        loop {
            let is_over = world::settle(SETTLE_NS);
            assert!(is_over, "nobody is silent after {SETTLE_NS} ns");
            if !self.managed().running.look() {
                return;
            }
        }
    }

    /// Lets all requests end that can; no client waits after that.
    fn settle(&mut self) {
        self.settle_erases();
        for client in self.clients.borrow().iter() {
            let left = client.under_way();
            assert!(client.is_away() || left == 0, "nobody waits for ever (I10): {left} requests of {client}");
        }
        self.places.iter().for_each(|place| place.oracle.borrow_mut().rest());
        self.world.look(|at, worker| {
            for hctx in worker.hctxs() {
                let left = (hctx.staged(), hctx.admitted(), hctx.in_flight());
                assert!(left == (0, 0, 0), "worker {at}: {left:?} staged, admitted, in flight (I10)");
            }
        });
        let held: u64 = self
            .managed()
            .running
            .with_runtime(|runtime| runtime.exports.values().map(|export| export.memory.held_bytes()).sum());
        assert!(held == 0, "{held} bytes of payload are held and nobody asks for anything (I14)");
        // An erase that a drive made fail is tried again with the next change, and so is what waits for a drive.
        if self.is_behind || self.withholds() {
            self.catch_up();
        }
    }

    /// Drives have ended what they had: a change that changes nothing of what is wanted brings the rest about.
    fn catch_up(&mut self) {
        // A drive may fail an erase now and then.
        for _ in 0..TRIES {
            for wish in [self.wish.nudged(), self.wish.clone()] {
                let edit = Edit::Whole(Document::parse(&wish.text(&self.folder, Spoilt::No)).expect("TOML"));
                let proposal = Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false };
                let done = self.managed().running.propose(&proposal);
                assert!(done.is_ok(), "nothing is in its way any more: {done:?}");
                self.settle_erases();
            }
            if !self.withholds() {
                break;
            }
        }
        self.revision = self.managed().running.configured().1;
        self.is_behind = false;
        assert_eq!(self.picture(), self.wish.picture(), "atomic change (I12): not all of it is there at last");
    }

    /// Every client reads everything.
    fn check(&mut self) {
        self.settle();
        for client in 0..EXPORTS {
            if self.wish.exports[client].is_some() {
                self.connect(client);
                self.clients.borrow_mut()[client].want_all();
            }
        }
        self.settle();
    }

    fn kill(&mut self, with_power: bool) {
        self.world.net.borrow_mut().end_all();
        drop(self.world.dismiss());
        drop(self.managed.take());
        self.clients.borrow_mut().iter_mut().for_each(|client| _ = client.turn());
        self.places.iter().for_each(|place| place.oracle.borrow_mut().rest());
        if with_power {
            self.cut();
        }
        self.outcome.kills += 1;
        self.start();
    }

    /// Another server takes the place of this one, with the config that is in force, as `--replace` has it.
    fn upgrade(&mut self) {
        let old = self.managed.take().expect("there is a server between steps");
        let held = old.serving.pack(&old.engine, VERSION).and_then(|handover| {
            let (bytes, descriptors) = handover.encode(VERSION);
            let (handover, _) = HandoverState::decode(&bytes, descriptors)?;
            let old_workers = self.world.dismiss();
            let text = self.wish.text(&self.folder, Spoilt::No);
            let new = assemble(&self.world, &self.folder, &text, Some(handover));
            if new.is_err() {
                self.world.employ(old_workers);
            }
            new
        });
        match held {
            Ok(new) => self.managed = Some(new),
            Err(why) => {
                let may_fail = self.is_behind || self.stalled_until_ns > world::now_ns();
                assert!(may_fail, "nothing is in the way of an upgrade: {why}");
                // It goes on where it held still.
                old.engine.resume();
                self.managed = Some(old);
                return;
            }
        }
        drop(old);
        self.world.net.borrow().hang_up();
        self.outcome.upgrades += 1;
        (self.revision, self.is_behind) = (1, false);
        self.assert_begun();
    }

    fn cut(&mut self) {
        for (number, place) in self.places.iter().enumerate() {
            let mut oracle = place.oracle.borrow_mut();
            self.outcome.uncovered += oracle.uncovered() as u64;
            let (device, offset_bytes) = wish::at(number);
            let drive = &self.drives.all()[device];
            oracle.cut(|sector, bytes| drive.may_lose(offset_bytes + sector as u64 * 512, bytes));
        }
        self.drives.all().iter().for_each(|drive| drive.power_cut());
        self.outcome.cuts += 1;
    }

    /// The end of the script.
    pub fn end(mut self) -> Outcome {
        let counts = self.counts();
        self.world.net.borrow_mut().end_all();
        drop(self.world.dismiss());
        drop(self.managed.take());
        Outcome { counts, turns: self.world.steps(), now_ns: world::now_ns(), ..self.outcome }
    }
}

/// The merge patch (RFC 7396) that makes `new` of `old`.
fn merge_patch(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let changed = changed.map(|(key, value)| match (old.get(key), value) {
        (Some(Value::Object(old)), Value::Object(new)) => (key.clone(), merge_patch(old, new).into()),
        _ => (key.clone(), value.clone()),
    });
    changed.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of the crowd, which send nothing.
    const CROWD: usize = 300;

    /// Turns of the only worker until a client of one address is served, beside a crowd that connects to another
    /// address; and how many of the crowd were accepted by then.
    fn turns(crowd: usize) -> (u64, usize) {
        let script = Script::draw_managed(1, 0);
        let text = script.text().replace("workers 2", "workers 1").replace("workers 3", "workers 1");
        let config = Script::parse(&text).expect("a script").config;
        let mut wish = Wish::first(&config);
        for (number, export) in wish.exports.iter_mut().enumerate().take(2) {
            let mut one = Wish::first(&config).exports[0].clone().expect("there is one");
            (one.sockets, one.place) = (1 << number, number);
            *export = Some(one);
        }
        let run = Run::begin(&config, wish);
        let connect = |socket: usize| run.world.net.borrow_mut().connect(run.folder.join(socket.to_string()), 1 << 20);
        let pipes: Vec<_> = (0..crowd).map(|_| connect(0)).collect();
        let pipe = connect(1);
        run.clients.borrow_mut()[1].connect(pipe);
        let before = run.world.steps();
        while run.counts().sessions == 0 {
            assert!(world::go_on(u64::MAX), "nobody serves it");
        }
        let accepted = pipes.iter().filter(|pipe| !pipe.borrow().to_client.is_empty()).count();
        (run.world.steps() - before, accepted)
    }

    #[test]
    fn a_crowd_at_one_address_is_let_in_one_in_a_turn_and_delays_no_client_of_another_by_more_than_two_turns() {
        let (alone, _) = turns(0);
        let (beside, accepted) = turns(CROWD);
        assert!(beside <= alone + 2, "{beside} turns beside a crowd, {alone} alone");
        assert!(accepted as u64 <= beside && accepted < CROWD / 2, "{accepted} of the crowd in {beside} turns");
    }

    /// Another server once took such a client for one of an export that is gone, and refused to take over.
    #[test]
    fn an_upgrade_takes_clients_to_where_their_export_is_offered_now() {
        let config = Script::draw_managed(1, 0).config;
        let mut run = Run::begin(&config, Wish::first(&config));
        run.connect(0);
        assert_eq!(run.counts().sessions, 1);
        // The first seed that moves the export to other addresses and leaves it the same otherwise; of those that
        // change no door.
        let came_by = 1 << run.wish.exports[0].as_ref().expect("it is there").socket();
        let is_withdrawn = |after: &Wish| {
            let sockets = after.exports[0].as_ref().map_or(came_by, |export| export.sockets);
            !after.is_another(&run.wish, 0) && sockets & came_by == 0
        };
        let seed = (0..1000).step_by(4).find(|&seed| is_withdrawn(&run.wish.changed(&mut Random::new(seed))));
        run.propose(seed.expect("one in a few dozen does"), Spoilt::No);
        run.upgrade();
        let outcome = run.end();
        assert_eq!((outcome.upgrades, outcome.counts.sessions, outcome.refused), (1, 1, 0), "{outcome:?}");
    }
}
