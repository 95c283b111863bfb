//! Changes while a device hangs.

mod erase;

use super::*;
use crate::config::{Config, KnownFiles, RealFiles};
use crate::control::{Origin, Running};
use crate::heap::in_use;
use crate::log_format::LogFormat;
use crate::watch;
use mqfq_blk::buffer::Buffer;
use mqfq_blk::client::{Client, ClientFilter, Context, DeviceIndex, Label};
use mqfq_blk::device::memory::MemoryDevice;
use mqfq_blk::device::{Command, DeviceInfo, DeviceQueue, QueueFull, QueueOptions, Reaped};
use mqfq_blk::engine::EngineOptions;
use mqfq_blk::request::{Completion, Op, Status, Submission};
use mqfq_control::model::Reload;
use mqfq_control::{By, Edit, Kind, Proposal, Server, Via};
use mqfq_front::export::ExportId;
use mqfq_front::export::Poll;
use mqfq_front::front_end::ListenOptions;
use mqfq_testing::Folder;
use serde_json::{Value, json};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends no command while it holds.
#[derive(Clone)]
struct Held {
    inner: Arc<MemoryDevice>,
    holds: Arc<AtomicBool>,
    /// Writes of zeroes fail.
    fails: Arc<AtomicBool>,
    /// Makes options of a queue like the last that a worker opened.
    opened: Arc<Mutex<Option<MakeOptions>>>,
}

type MakeOptions = Box<dyn Fn() -> QueueOptions + Send>;

impl Held {
    fn new(holds: &Arc<AtomicBool>) -> Held {
        Held {
            inner: Arc::new(MemoryDevice::new(1 << 20)),
            holds: holds.clone(),
            fails: Arc::default(),
            opened: Arc::default(),
        }
    }
}

struct HeldQueue {
    inner: Box<dyn DeviceQueue>,
    held: Held,
}

impl Device for Held {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, String> {
        let (hctx, depth, interrupt) = (options.hctx, options.depth, options.interrupt.clone());
        let same = move || QueueOptions { hctx, depth, ring: None, interrupt: interrupt.clone() };
        *self.opened.lock().unwrap() = Some(Box::new(same));
        Ok(Box::new(HeldQueue { inner: self.inner.open_queue(options)?, held: self.clone() }))
    }
}

impl DeviceQueue for HeldQueue {
    fn submit(&mut self, command: Command) -> Result<(), QueueFull> {
        self.inner.submit(command)
    }

    fn ring_doorbell(&mut self, now_ns: u64) {
        self.inner.ring_doorbell(now_ns);
    }

    fn reap(&mut self, now_ns: u64, out: &mut Vec<Reaped>) {
        if !self.held.holds.load(Ordering::Relaxed) {
            self.inner.reap(now_ns, out);
        }
        let fails = self.held.fails.load(Ordering::Relaxed);
        out.iter_mut().filter(|reaped| fails && reaped.buffer.is_none()).for_each(|it| it.status = Status::Io);
    }

    fn next_event_ns(&self) -> Option<u64> {
        self.inner.next_event_ns().filter(|_| !self.held.holds.load(Ordering::Relaxed))
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// A client with one write under way, which is done when that has ended.
struct Writer {
    id: u64,
    device: DeviceIndex,
    flow: mqfq_blk::FlowId,
    offset_bytes: u64,
    is_draining: bool,
    is_written: bool,
}

impl Client for Writer {
    mqfq_testing::ignores!(event, turn_end, room);

    fn start(&mut self, context: &mut dyn Context) {
        let submission = Submission {
            flow: self.flow,
            op: Op::Write,
            offset_bytes: self.offset_bytes,
            length_bytes: 512,
            fua: false,
            buffer: Some(Buffer::new(512)),
            cookie: 0,
        };
        context.submit(self.device, submission).expect("there is room");
    }

    fn completed(&mut self, _: &mut dyn Context, _: Completion) {
        self.is_written = true;
    }

    fn drain(&mut self, _: &mut dyn Context) {
        self.is_draining = true;
    }
    fn is_done(&self) -> bool {
        self.is_draining && self.is_written
    }
    fn label(&self) -> Label {
        Label { client: None, export: Some(self.id) }
    }
}

fn plan(folder: &Folder, exports: &[(&str, &str, &str, &str)]) -> Plan {
    plan_at("nbd", folder, exports)
}

fn plan_at(front_end: &str, folder: &Folder, exports: &[(&str, &str, &str, &str)]) -> Plan {
    let path = folder.join("s").display().to_string();
    let mut text = "[server]\ndrain-s = 1\n[tenant.t]\n[tenant.u]\n".to_owned();
    let devices: BTreeSet<&str> = exports.iter().map(|(_, device, ..)| *device).collect();
    for device in devices {
        text += &format!("[device.{device}]\nkind = \"memory\"\nsize = \"1MiB\"\npolicy = \"none\"\n");
    }
    for (name, device, offset, size) in exports {
        text += &format!(
            "[export.{name}]\ndevice = \"{device}\"\ntenant = \"t\"\noffset = \"{offset}\"\nsize = \"{size}\"\n\
             {front_end} = \"unix:{path}\"\n"
        );
    }
    Config::parse("c.toml", &text).unwrap().check(&RealFiles).unwrap()
}

/// A server of `plan`, whose devices end no request while `holds`.
fn running(plan: Plan, holds: &Arc<AtomicBool>) -> Reconciler {
    let server = running_on(plan, &|_| Held::new(holds), Ownership::default(), crate::ownership::key_of);
    for (slot, export) in &server.runtime.exports {
        let (id, device, flow) = (ExportId(*slot).number(), export.device, export.flow);
        let writer =
            Writer { id, device, flow, offset_bytes: export.offset_bytes, is_draining: false, is_written: false };
        server.engine.attach(Box::new(move || Box::new(writer)));
    }
    server
}

/// A server of `plan` on these devices, which hold what `ownership` says.
fn running_on(plan: Plan, held: &dyn Fn(&str) -> Held, mut ownership: Ownership, key_of: KeyOf) -> Reconciler {
    let held = |(slot, plan): (Slot, &DevicePlan)| {
        let device: Arc<dyn Device> = Arc::new(held(&plan.config.name));
        (slot, device)
    };
    let devices: BTreeMap<Slot, Arc<dyn Device>> = plan.devices.iter().map(held).collect();
    let (tenants, caps) = (Tenants::new(&plan).unwrap(), LiveCaps::new(&plan));
    let exports = live::exports(&plan, &tenants, &caps, |slot| devices[&slot].clone()).unwrap();
    let options = |(slot, plan): (Slot, &DevicePlan)| live::device_options(plan, devices[&slot].clone(), 2);
    let options =
        EngineOptions { workers: 2, pin: false, spin_ns: 0, devices: plan.devices.iter().map(options).collect() };
    let engine = Arc::new(Engine::start(options).unwrap());
    let mut listeners = Listeners::new(Arc::new(|_| ListenOptions::default()), Arc::default());
    let table = |slots: &_| Arc::new(ExportTable::new(live::offered(slots, &exports)).unwrap());
    let tables: Vec<_> = plan.listeners.iter().map(|(address, slots)| (address.clone(), table(slots))).collect();
    let withheld = withhold(&mut ownership, key_of, (&plan, &exports), &tables);
    let mut numbered = BTreeMap::new();
    for (address, table) in &tables {
        let listener = listeners.listen(address, table.clone()).unwrap();
        numbered.insert(listener.number(), upgrade::key(address));
        listeners.add(address.clone(), table.clone(), &*listener);
        listener.into_clients().into_iter().for_each(|client| engine.attach(client));
    }
    let trust = Trust::new(&plan.trust);
    let ownership = Arc::new(Mutex::new(ownership));
    let runtime = Runtime {
        open_device: crate::devices::open,
        trust,
        devices,
        exports,
        tenants,
        owners: Owners::new(&plan),
        caps,
        watched_caps: WatchedCaps::default(),
        listeners,
        device_errors: Arc::new(DeviceErrorCounts::new(Vec::new())),
        watch: watch::start(&[], |_, _| ()).unwrap(),
        serving: Arc::new(Serving {
            devices: Mutex::default(),
            listeners: Mutex::new(numbered),
            sockets: Vec::new(),
            ownership: ownership.clone(),
        }),
        ownership,
        key_of,
        output: Output::of_server(false, LogFormat::Text).unwrap(),
    };
    Reconciler::new(plan, engine, runtime, withheld)
}

fn offers(reconciler: &Reconciler, name: &str) -> bool {
    reconciler.runtime.listeners.of(&reconciler.plan.listeners[0].0).unwrap().table.lookup(name).is_some()
}

#[test]
fn a_device_that_hangs_keeps_its_index_and_its_bytes_and_holds_nothing_else_up() {
    let folder = Folder::new();
    let holds = Arc::new(AtomicBool::new(true));
    let stay = ("stay", "d", "768KiB", "256KiB");
    let before = [stay, ("gone", "d", "0", "256KiB"), ("given", "d", "256KiB", "256KiB"), ("other", "e", "0", "1MiB")];
    let mut server = running(plan(&folder, &before), &holds);
    // One goes, the bytes of one are another's in the same step, and a device goes.
    let after = [stay, ("heir", "d", "256KiB", "256KiB")];
    server.propose(&plan(&folder, &after), false).expect("a change does not fail");
    assert!(offers(&server, "stay") && !offers(&server, "gone"));
    assert!(!offers(&server, "heir"), "a write of another's may still come there");
    // Things that do not depend on it change.
    let device = ("new", "f", "0", "1MiB");
    server.propose(&plan(&folder, &[stay, after[1], device]), false).expect("another device");
    assert_eq!(server.plan.devices.iter().map(|(slot, _)| slot.place()).collect::<Vec<_>>(), [0, 2]);
    assert!(offers(&server, "new") && !offers(&server, "heir"));
    let taker = ("taker", "d", "0", "4KiB");
    let all = [stay, after[1], device, taker];
    let Refusals(refused) = server.propose(&plan(&folder, &all), false).unwrap_err();
    assert!(refused[0].contains("requests that export gone had may still write to bytes 0 to 262143"), "{refused:?}");

    holds.store(false, Ordering::Relaxed);
    server.engine.wake_workers();
    // It may take the workers a while; a proposal made again succeeds once they are done.
    while server.propose(&plan(&folder, &all), false).is_err() || !offers(&server, "heir") {}
    assert!(offers(&server, "taker"));
    while !server.pending_io.places().is_empty() {
        server.look_again(false);
    }
    let again = [stay, after[1], device, taker, ("again", "g", "0", "1MiB")];
    server.propose(&plan(&folder, &again), false).unwrap();
    assert_eq!(server.plan.devices.iter().map(|(slot, _)| slot.place()).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(server.engine.drain_some(ClientFilter::Export(u64::MAX), Duration::from_secs(60)), "the engine is as ever");
}

#[test]
fn another_front_end_at_a_socket_is_a_change_and_not_one_that_is_taken_and_forgotten() {
    let folder = Folder::new();
    let export = [("a", "d", "0", "1MiB")];
    let mut server = running(plan(&folder, &export), &Arc::default());
    let words: Vec<String> = server
        .propose(&plan_at("vhost-user", &folder, &export), true)
        .expect("nobody looks at the socket yet")
        .iter()
        .map(Change::sentence)
        .collect();
    let at = folder.join("s").display().to_string();
    let expected = format!("export a of tenant t on device d: addresses nbd at unix:{at} -> vhost-user at unix:{at}");
    assert_eq!(words, [expected]);
    let Refusals(refused) = server.propose(&plan_at("vhost-user", &folder, &export), false).unwrap_err();
    assert!(refused[0].contains(&at), "{refused:?}");
    assert!(server.propose(&plan(&folder, &export), false).expect("it is as before").is_empty());
    let elsewhere = Folder::new();
    server.propose(&plan(&elsewhere, &export), false).expect("first somewhere else");
    server.propose(&plan_at("vhost-user", &folder, &export), false).expect("then there");
    assert!(offers(&server, "a"));
}

#[test]
fn a_client_in_its_handshake_is_closed_with_the_address_that_it_came_by() {
    let (folder, elsewhere, export) = (Folder::new(), Folder::new(), [("a", "d", "0", "1MiB")]);
    let mut server = running_on(
        plan(&folder, &export),
        &|_| Held::new(&Arc::default()),
        Ownership::default(),
        crate::ownership::key_of,
    );
    let mut client = UnixStream::connect(folder.join("s")).unwrap();
    // The server's greeting: the client has a place.
    client.read_exact(&mut [0; 18]).unwrap();
    server.propose(&plan(&elsewhere, &export), false).unwrap();
    client.set_nonblocking(true).unwrap();
    let more = client.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(more, Ok(0), "it cannot go on at another address");
}

#[test]
fn bytes_that_a_shrunk_export_may_still_write_to_are_nobodys_until_it_has_ended() {
    let (folder, holds) = (Folder::new(), Arc::new(AtomicBool::new(true)));
    let long = [("long", "d", "256KiB", "256KiB")];
    let mut server =
        running_on(plan(&folder, &long), &|_| Held::new(&holds), Ownership::default(), crate::ownership::key_of);
    let (slot, export) = server.runtime.exports.first_key_value().unwrap();
    let (id, device, flow, offset_bytes) = (ExportId(*slot).number(), export.device, export.flow, 384 << 10);
    let writer = Writer { id, device, flow, offset_bytes, is_draining: false, is_written: false };
    server.engine.attach(Box::new(move || Box::new(writer)));
    let short = ("long", "d", "256KiB", "128KiB");
    server.propose(&plan(&folder, &[short]), false).expect("a change does not fail");
    let both = plan(&folder, &[short, ("taker", "d", "384KiB", "128KiB")]);
    let Refusals(refused) = server.propose(&both, false).unwrap_err();
    assert!(refused[0].contains("export long had may still write to bytes 393216 to 524287"), "{refused:?}");
    holds.store(false, Ordering::Relaxed);
    server.engine.wake_workers();
    while server.propose(&both, false).is_err() {}
}

#[test]
fn places_at_an_address_follow_the_number_of_connections_and_of_tenants() {
    let folder = Folder::new();
    let (one, two) = (("a", "t", 0, 64, ""), ("b", "u", 64, 64, ""));
    let wanted = |exports: &[_], connections_max| {
        let mut plan = erase::plan_of(&folder.join("s"), exports);
        plan.server.connections_max = connections_max;
        plan
    };
    let mut server = running(wanted(&[one], 9), &Arc::default());
    for (exports, connections_max, of_one) in [(&[one][..], 1, 1), (&[one], 4, 4), (&[one, two], 4, 3), (&[one], 4, 4)]
    {
        server.propose(&wanted(exports, connections_max), false).unwrap();
        let listener = server.runtime.listeners.of(&server.plan.listeners[0].0).unwrap();
        let places = listener.places.as_ref().unwrap();
        let (_, export) = server.runtime.exports.first_key_value().unwrap();
        let mut clients: Vec<_> = (0..5).map(|_| places.enter(UnixStream::pair().unwrap().0.into())).collect();
        let come = clients.iter_mut().map(|client| client.choose(export)).filter(|has_come| *has_come).count();
        assert_eq!(come, of_one, "of {connections_max}, {} tenants", exports.len());
    }
}

/// A config of one export and a control plane, with its sockets in `folder`.
fn small(folder: &Folder) -> String {
    let at = folder.path().display();
    format!(
        "[control]\nlisten = \"unix:{at}/c\"\n[device.d]\nkind = \"memory\"\nsize = \"1MiB\"\n[tenant.t]\n[export.a]\n\
         device = \"d\"\ntenant = \"t\"\nsize = \"64KiB\"\nnbd = \"unix:{at}/s\"\n"
    )
}

/// A server that `text` says, of a file in `folder`, with a control plane; and what it runs.
fn controlled(folder: &Folder, text: &str) -> (Running, Arc<Engine>) {
    controlled_by(folder, text, |plan| running(plan, &Arc::default()))
}

/// As [`controlled`], with the reconciler that `run` makes of the plan.
fn controlled_by(folder: &Folder, text: &str, run: impl FnOnce(Plan) -> Reconciler) -> (Running, Arc<Engine>) {
    let config = Config::parse("c.toml", text).unwrap();
    let control = config.control.clone();
    let reconciler = run(config.check(&RealFiles).unwrap());
    let (engine, output) = (reconciler.engine.clone(), reconciler.runtime.output.clone());
    let origin = Origin { path: folder.join("c.toml"), text: text.to_owned(), control, listen: Vec::new() };
    (Running::new(engine.clone(), output, origin, reconciler, KnownFiles::default(), Box::new(|| Value::Null)), engine)
}

#[test]
fn a_file_that_was_read_again_is_shown_and_the_next_change_is_checked_against_it() {
    let folder = Folder::new();
    let before = small(&folder);
    let (server, _) = controlled(&folder, &before);
    let put = |kind, keys: Value| {
        let edit = Edit::Put(kind, "guest".to_owned(), keys.as_object().unwrap().clone());
        server.propose(&Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false })
    };
    put(Kind::Tenant, json!({})).unwrap();
    let after = before.replace("64KiB", "128KiB") + "[tenant.guest]\n";
    std::fs::write(folder.join("c.toml"), &after).unwrap();
    server.reload(&By::via(Via::Sighup), Reload::default()).unwrap();
    assert_eq!(server.file().unwrap().text, after);
    let at = folder.path().display();
    let keys = json!({ "device": "d", "tenant": "guest", "offset": "64KiB", "nbd": format!("unix:{at}/own") });
    let refused = put(Kind::Export, keys).unwrap_err();
    assert!(refused.sentence.contains("overlap"), "{}", refused.sentence);
}

#[test]
fn poll_of_an_export_is_in_force_at_its_start_and_changes_under_its_clients() {
    let folder = Folder::new();
    let guest = format!("vhost-user = \"unix:{}/guest\"\n", folder.path().display());
    let with =
        |poll: &str| Config::parse("c.toml", &(small(&folder) + &guest + poll)).unwrap().check(&RealFiles).unwrap();
    let mut server = running(with("poll = \"never\"\n"), &Arc::default());
    let export = server.runtime.exports.values().next().unwrap().clone();
    assert_eq!(export.poll(), Poll::For(0));
    for (text, poll) in [("poll = \"50us\"\n", Poll::For(50_000)), ("", Poll::Auto)] {
        server.propose(&with(text), false).expect("a change does not fail");
        assert_eq!(export.poll(), poll);
    }
}

/// Rounds of one kind are as many as a channel's block has messages, so that each ends where it began.
const ROUNDS: usize = 31 * 8;

#[test]
fn rounds_of_churn_leave_no_byte_behind() {
    if !in_use::alone("reconcile::tests::rounds_of_churn_leave_no_byte_behind") {
        return;
    }
    let folder = Folder::new();
    let at = folder.path().display();
    let text = small(&folder);
    let (server, engine) = controlled(&folder, &text);
    let keys = |value: Value| value.as_object().unwrap().clone();
    let guest = || "guest".to_owned();
    let change = |edit: Edit| {
        let proposal = Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false };
        assert!(server.propose(&proposal).unwrap().changed);
    };
    let round = |socket: &str| {
        let nbd = format!("unix:{at}/{socket}");
        change(Edit::Put(Kind::Tenant, guest(), keys(json!({ "weight": 7 }))));
        let export = json!({ "device": "d", "tenant": "guest", "offset": "128KiB", "size": "64KiB", "nbd": nbd });
        change(Edit::Put(Kind::Export, guest(), keys(export)));
        change(Edit::Patch(Kind::Tenant, guest(), keys(json!({ "weight": 9, "memory": "1MiB" }))));
        change(Edit::Patch(Kind::Export, guest(), keys(json!({ "size": "32KiB", "max-iops": 9 }))));
        change(Edit::Delete(Kind::Export, guest()));
        change(Edit::Delete(Kind::Tenant, guest()));
    };
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The first ones fill what is kept of the past: events.
    let mut looks = Vec::new();
    for _ in 0..3 {
        (0..ROUNDS).for_each(|n| round(["s", "own"][n % 2]));
        let expected = looks.last().copied();
        let look = || {
            // A worker that has answered has taken its mail, and frees it next.
            assert!(engine.drain_some(ClientFilter::Export(u64::MAX), Duration::from_secs(60)));
            (in_use::now(), files())
        };
        let mut seen = look();
        for _ in 0..1000 {
            if expected.is_none_or(|expected| expected == seen) {
                break;
            }
            seen = look();
        }
        looks.push(seen);
    }
    // Erases answer by mail whose number depends on when they are looked at, so a channel may stand one block on. The
    // least that can be left in each round, a word, is more than that.
    let (once, again) = (looks[1], looks[2]);
    let left_bytes = again.0 - once.0;
    assert!(
        left_bytes < 8 * ROUNDS as i64 && once.1 == again.1,
        "bytes and descriptors after {ROUNDS}, twice and three times as many rounds: {looks:?}"
    );
}
