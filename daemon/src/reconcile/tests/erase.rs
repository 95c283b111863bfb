//! Bytes that change tenants.

use super::*;
use crate::ownership::{Key, Store};
use mqfq_blk::tag::Tag;
use std::cell::Cell;
use std::path::Path;

const KIB: u64 = 1024;

/// An export of 64 KiB at most: its name, its tenant, where it begins and how long it is, in KiB, and more keys.
type Wanted<'a> = (&'a str, &'a str, u64, u64, &'a str);

pub(super) fn plan_of(socket: &Path, exports: &[Wanted<'_>]) -> Plan {
    let path = socket.display();
    let mut text = "[server]\ndrain-s = 1\n[tenant.t]\n[tenant.u]\n[device.d]\nkind = \"memory\"\nsize = \"1MiB\"\n\
                    policy = \"none\"\n"
        .to_owned();
    for (name, tenant, offset, size, more) in exports {
        text += &format!(
            "[export.{name}]\ndevice = \"d\"\ntenant = \"{tenant}\"\noffset = \"{offset}KiB\"\nsize = \"{size}KiB\"\n\
             nbd = \"unix:{path}\"\n{more}\n"
        );
    }
    Config::parse("c.toml", &text).unwrap().check(&RealFiles).unwrap()
}

/// A drive that outlives servers, as a file does.
fn lasts(device: &DevicePlan) -> Option<Key> {
    Some(Key { name: device.config.name.clone(), lasts: true, base: 0 })
}

fn recorded(path: &Path) -> Ownership {
    let mut store = Store::at(path.to_owned());
    store.open().unwrap();
    Ownership::new(Some(store))
}

/// The drive, what is on it, and a folder for the rest.
struct Scene {
    folder: Folder,
    drive: Held,
    /// Servers that were started.
    starts: Cell<u32>,
}

impl Scene {
    fn new() -> Scene {
        let drive = Held::new(&Arc::default());
        Scene { folder: Folder::new(), drive, starts: Cell::new(0) }
    }

    fn plan(&self, exports: &[Wanted<'_>]) -> Plan {
        // A server that was killed here has its socket still.
        plan_of(&self.folder.join(&self.starts.get().to_string()), exports)
    }

    fn start(&self, exports: &[Wanted<'_>]) -> Reconciler {
        self.starts.set(self.starts.get() + 1);
        let ownership = recorded(&self.folder.join("owners"));
        let server = running_on(self.plan(exports), &|_| self.drive.clone(), ownership, lasts);
        server.ownership().commit().unwrap();
        if self.starts.get() == 1 {
            // Bytes that no server has written.
            self.run(Op::Write, 0, &vec![0xaa; 1 << 20]);
        }
        server
    }

    fn run(&self, op: Op, offset_bytes: u64, bytes: &[u8]) -> Vec<u8> {
        let options = self.drive.opened.lock().unwrap().as_ref().expect("a server runs or ran")();
        let mut queue = self.drive.inner.open_queue(options).unwrap();
        let mut buffer = Buffer::new(bytes.len());
        buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        queue.submit(Command::new(Tag(0), op, offset_bytes, bytes.len() as u32, Some(buffer))).unwrap();
        queue.ring_doorbell(0);
        let mut out = Vec::new();
        queue.reap(0, &mut out);
        out.pop().unwrap().buffer.unwrap().as_slice()[..bytes.len()].to_vec()
    }

    /// The only value of the bytes from `start` KiB on.
    fn value(&self, start: u64, length: u64) -> Option<u8> {
        let bytes = self.run(Op::Read, start * KIB, &vec![0; (length * KIB) as usize]);
        bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
    }

    fn fill(&self, start: u64, length: u64, value: u8) {
        self.run(Op::Write, start * KIB, &vec![value; (length * KIB) as usize]);
    }

    fn hold(&self, holds: bool, server: &Reconciler) {
        self.drive.holds.store(holds, Ordering::Relaxed);
        server.engine.wake_workers();
    }
}

fn size_now(server: &Reconciler, name: &str) -> u64 {
    let table = &server.runtime.listeners.of(&server.plan.listeners[0].0).unwrap().table;
    table.lookup(name).map_or(0, |export| export.size_now_bytes() / KIB)
}

fn lack(server: &Reconciler, name: &str) -> String {
    let slot = server.plan.exports.iter().find(|(_, export)| export.name == name).map(|(slot, _)| slot).unwrap();
    server.lack(slot).map_or(String::new(), |lack| lack.sentence)
}

/// Looks until nothing is erased any more.
fn look(server: &mut Reconciler) {
    while server.is_erasing() {
        server.look();
    }
}

const STAY: Wanted<'_> = ("stay", "t", 768, 64, "");
const A: Wanted<'_> = ("a", "t", 0, 64, "");
const B: Wanted<'_> = ("b", "u", 32, 64, "");

#[test]
fn bytes_that_another_tenant_had_are_offered_once_they_are_erased_and_not_before() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    assert_eq!((size_now(&server, "a"), scene.value(0, 64)), (64, Some(0xaa)), "an image that was put there");
    scene.fill(0, 64, 1);
    server.propose(&scene.plan(&[STAY]), false).unwrap();
    server.propose(&scene.plan(&[STAY, A]), false).unwrap();
    assert_eq!((size_now(&server, "a"), scene.value(0, 64)), (64, Some(1)), "its tenant has them again");
    scene.hold(true, &server);
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    assert_eq!(size_now(&server, "b"), 0);
    assert_eq!(lack(&server, "b"), "it is not offered: its bytes are erased first, 0% of 32KiB");
    // Things that do not depend on it change meanwhile, and the erase does not begin anew.
    server.propose(&scene.plan(&[STAY, B, ("c", "t", 512, 4, "")]), false).unwrap();
    assert_eq!((size_now(&server, "b"), size_now(&server, "c")), (0, 4));
    scene.hold(false, &server);
    look(&mut server);
    assert_eq!((size_now(&server, "b"), lack(&server, "b").as_str()), (64, ""));
    assert_eq!([scene.value(0, 32), scene.value(32, 32), scene.value(64, 32)], [Some(1), Some(0), Some(0xaa)]);
}

#[test]
fn bytes_that_a_shrink_gave_up_and_those_that_a_growth_brings_read_as_zero() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    scene.fill(0, 64, 1);
    let sized = |size| ("a", "t", 0, size, "");
    server.propose(&scene.plan(&[STAY, sized(32)]), false).unwrap();
    scene.hold(true, &server);
    server.propose(&scene.plan(&[STAY, sized(128)]), false).unwrap();
    assert_eq!(size_now(&server, "a"), 32, "it has what it had");
    assert_eq!(lack(&server, "a"), "it has 32KiB: its bytes are erased first, 0% of 96KiB");
    // It shrinks while it grows: what was under way ends before the bytes are another's.
    scene.hold(false, &server);
    server.propose(&scene.plan(&[STAY, sized(48)]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "a"), scene.value(0, 32), scene.value(32, 16)), (48, Some(1), Some(0)));
    scene.fill(32, 16, 2);
    server.propose(&scene.plan(&[STAY, sized(128)]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "a"), scene.value(32, 16), scene.value(48, 80)), (128, Some(2), Some(0)));
    let kept = [("a", "t", 0, 256, "keep-data = true")];
    server.propose(&scene.plan(&[STAY, kept[0]]), false).unwrap();
    assert_eq!((size_now(&server, "a"), scene.value(128, 128)), (256, Some(0xaa)));
}

#[test]
fn an_erase_that_fails_keeps_the_export_back_until_a_change_finds_the_drive_well() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    scene.drive.fails.store(true, Ordering::Relaxed);
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    look(&mut server);
    let failed = "it is not offered: its bytes could not be erased, the next change tries again";
    assert_eq!((size_now(&server, "b"), lack(&server, "b").as_str()), (0, failed));
    scene.drive.fails.store(false, Ordering::Relaxed);
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "b"), scene.value(32, 32)), (64, Some(0)));
}

#[test]
fn a_server_that_was_killed_in_an_erase_goes_on_with_it_and_offers_nothing_before() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    scene.fill(0, 64, 1);
    scene.hold(true, &server);
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    // The process is gone: what it had under way may have come to the drive, or not.
    std::mem::forget(server);
    let mut next = scene.start(&[STAY, B]);
    assert_eq!((size_now(&next, "b"), scene.value(32, 32)), (0, Some(1)));
    assert!(lack(&next, "b").starts_with("it is not offered: its bytes are erased first"));
    scene.hold(false, &next);
    look(&mut next);
    assert_eq!((size_now(&next, "b"), scene.value(0, 32), scene.value(32, 32)), (64, Some(1), Some(0)));
    // It is written to before the next kill, and not erased again.
    scene.fill(32, 64, 2);
    std::mem::forget(next);
    let again = scene.start(&[STAY, B]);
    assert_eq!((size_now(&again, "b"), scene.value(32, 64)), (64, Some(2)));
}

#[test]
fn a_config_that_was_changed_while_no_server_ran_is_asked_about_and_neither_shows_nor_erases() {
    let scene = Scene::new();
    drop(scene.start(&[STAY, A]));
    scene.fill(0, 64, 1);
    let mut server = scene.start(&[STAY, B]);
    let asked = "it is not offered: its bytes are tenant t's and it is tenant u's: allowed are keep-data = false, which \
                 erases them, and keep-data = true, which shows them to u";
    assert_eq!((size_now(&server, "b"), lack(&server, "b").as_str()), (0, asked));
    server.propose(&scene.plan(&[STAY, B, ("c", "t", 512, 4, "")]), false).unwrap();
    assert_eq!((size_now(&server, "b"), scene.value(0, 64)), (0, Some(1)), "nothing was said of it");
    let dropped = ("b", "u", 32, 64, "keep-data = false");
    server.propose(&scene.plan(&[STAY, dropped]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "b"), scene.value(0, 32), scene.value(32, 32)), (64, Some(1), Some(0)));
}

#[test]
fn another_tenant_of_an_export_is_refused_until_it_is_said_what_becomes_of_the_bytes() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    scene.fill(0, 64, 1);
    let other = |more| ("a", "u", 0, 64, more);
    let Refusals(refused) = server.propose(&scene.plan(&[STAY, other("")]), false).unwrap_err();
    assert!(refused[0].contains("its bytes are tenant t's and it is tenant u's: allowed are keep-data"), "{refused:?}");
    assert_eq!(size_now(&server, "a"), 64, "nothing was done");
    server.propose(&scene.plan(&[STAY, other("keep-data = true")]), false).unwrap();
    assert_eq!((size_now(&server, "a"), scene.value(0, 64)), (64, Some(1)));
    server.propose(&scene.plan(&[STAY, ("a", "t", 0, 64, "keep-data = false")]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "a"), scene.value(0, 64)), (64, Some(0)));
}

#[test]
fn exports_that_share_bytes_are_erased_once_and_not_under_the_hands_of_the_first() {
    let scene = Scene::new();
    let mut server = scene.start(&[STAY, A]);
    scene.hold(true, &server);
    let shared = |name| (name, "u", 0, 64, "shared = true");
    server.propose(&scene.plan(&[STAY, shared("b"), shared("c")]), false).unwrap();
    assert_eq!((size_now(&server, "b"), size_now(&server, "c")), (0, 0));
    scene.hold(false, &server);
    look(&mut server);
    assert_eq!(size_now(&server, "b"), 64);
    scene.fill(0, 64, 3);
    server.propose(&scene.plan(&[STAY, shared("b"), shared("c")]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "c"), scene.value(0, 64)), (64, Some(3)));
}

#[test]
fn what_cannot_be_recorded_is_not_offered() {
    let scene = Scene::new();
    let nowhere = Ownership::new(Some(Store::at(scene.folder.join("none/owners"))));
    let mut server = running_on(scene.plan(&[STAY, A]), &|_| scene.drive.clone(), nowhere, lasts);
    scene.fill(0, 1024, 0xaa);
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    assert!(lack(&server, "b").contains("whose data devices hold cannot be kept in"), "{}", lack(&server, "b"));
    assert_eq!((size_now(&server, "b"), scene.value(32, 32)), (0, Some(0xaa)));
    std::fs::create_dir(scene.folder.join("none")).unwrap();
    server.propose(&scene.plan(&[STAY, B]), false).unwrap();
    look(&mut server);
    assert_eq!((size_now(&server, "b"), scene.value(32, 32)), (64, Some(0)));
}

#[test]
fn a_change_of_another_thing_shows_what_an_export_lacks_since_then() {
    let (folder, drive) = (Folder::new(), Held::new(&Arc::default()));
    let run = |plan| running_on(plan, &|_| drive.clone(), Ownership::default(), crate::ownership::key_of);
    let (server, _) = controlled_by(&folder, &small(&folder), run);
    // An erase that takes longer than a change waits is looked at until it has ended.
    let change = |edit: Edit| {
        server.propose(&Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false }).unwrap();
        while server.look() {}
    };
    let put = |kind, name: &str, keys: Value| {
        change(Edit::Put(kind, name.to_owned(), keys.as_object().unwrap().clone()));
    };
    let export = |tenant, offset| {
        let nbd = format!("unix:{}/s", folder.path().display());
        json!({ "device": "d", "tenant": tenant, "offset": offset, "size": "64KiB", "nbd": nbd })
    };
    let shown = || {
        let state = server.state();
        let export = state.things[Kind::Export.plural()].iter().find(|export| export.name == "heir").unwrap();
        export.in_force.get("withheld").map(|why| why.as_str().unwrap().to_owned())
    };
    put(Kind::Tenant, "u", json!({}));
    put(Kind::Export, "stay", export("t", "512KiB"));
    change(Edit::Delete(Kind::Export, "a".to_owned()));
    drive.fails.store(true, Ordering::Relaxed);
    put(Kind::Export, "heir", export("u", "0"));
    let failed = Some("it is not offered: its bytes could not be erased, the next change tries again".to_owned());
    assert_eq!(shown(), failed);
    put(Kind::Tenant, "t", json!({ "weight": 2 }));
    assert_eq!(shown(), failed);
    drive.fails.store(false, Ordering::Relaxed);
    put(Kind::Tenant, "t", json!({ "weight": 3 }));
    assert_eq!(shown(), None, "it has its bytes by the change of a weight");
}
