#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges that happen to have one")]

use super::record::{path_for, paths};
use super::*;
use mqfq_testing::{Folder, Random};
use std::path::Path;

const LASTING: &str = "file /d";

fn key(lasts: bool) -> Key {
    Key { name: LASTING.to_owned(), lasts }
}

fn opened(path: &Path) -> Ownership {
    let mut store = Store::at(path.to_owned());
    store.open().unwrap();
    Ownership::new(Some(store))
}

fn claim(range: Range<u64>, tenant: &str) -> Claim<'_> {
    Claim { device: Some(key(true)), range, tenant, is_shared: false, keep_data: None, is_grown: false }
}

fn erase(range: Range<u64>, whose: Option<&str>) -> Verdict {
    Verdict::Erase(vec![range], whose.map(str::to_owned))
}

#[test]
fn bytes_that_change_tenants_are_erased_and_those_that_come_back_are_not() {
    let mut ownership = Ownership::default();
    assert_eq!(ownership.verdict(&claim(0..100, "a")), Verdict::Ready, "an image that was put there");
    ownership.hold(&claim(0..100, "a"));
    ownership.release(Some(&key(true)), &(0..100));
    assert_eq!(ownership.verdict(&claim(0..100, "a")), Verdict::Ready);
    assert_eq!(ownership.verdict(&claim(50..150, "b")), erase(50..100, Some("a")));
    let kept = Claim { keep_data: Some(true), ..claim(50..150, "b") };
    assert_eq!(ownership.verdict(&kept), Verdict::Ready);
    let blank = Claim { keep_data: Some(false), ..claim(90..150, "b") };
    assert_eq!(ownership.verdict(&blank), Verdict::Erase(vec![90..100, 100..150], Some("a".into())));
    ownership.hold(&kept);
    assert_eq!(ownership.verdict(&claim(0..100, "a")), erase(50..100, Some("b")), "they were b's meanwhile");
}

#[test]
fn an_export_that_grows_reads_zeroes_there_and_a_device_in_memory_has_them_already() {
    let mut ownership = Ownership::default();
    ownership.hold(&claim(0..100, "a"));
    let grown = Claim { is_grown: true, ..claim(100..200, "a") };
    assert_eq!(ownership.verdict(&grown), erase(100..200, None));
    let in_memory = Claim { device: Some(Key { name: "memory d".into(), lasts: false }), ..grown.clone() };
    assert_eq!(ownership.verdict(&in_memory), Verdict::Ready);
    // It shrinks and grows again: the bytes are not even its own.
    ownership.release(Some(&key(true)), &(50..100));
    ownership.give_up(Some(&key(true)), &(50..100));
    let again = Claim { is_grown: true, ..claim(50..100, "a") };
    assert_eq!(ownership.verdict(&again), erase(50..100, None));
    assert_eq!(ownership.verdict(&claim(50..100, "a")), erase(50..100, None));
}

#[test]
fn exports_that_share_bytes_all_have_them_until_the_last_is_gone() {
    let mut ownership = Ownership::default();
    let shared = |tenant| Claim { is_shared: true, ..claim(0..100, tenant) };
    ownership.hold(&shared("a"));
    assert_eq!(ownership.verdict(&shared("b")), Verdict::Ready);
    ownership.hold(&shared("b"));
    ownership.release(Some(&key(true)), &(0..100));
    ownership.give_up(Some(&key(true)), &(0..100));
    assert_eq!(ownership.verdict(&shared("c")), Verdict::Ready, "one of them is still there");
    ownership.release(Some(&key(true)), &(0..100));
    assert_eq!(ownership.verdict(&shared("c")), erase(0..100, Some("a")));
    assert_eq!(ownership.verdict(&shared("b")), Verdict::Ready);
}

#[test]
fn a_start_asks_about_bytes_that_were_held_and_erases_what_was_left() {
    let folder = Folder::new();
    let path = folder.join("owners");
    let opened = || opened(&path);
    let mut ownership = opened();
    ["a", "b"].iter().zip([0..100, 100..200]).for_each(|(tenant, range)| ownership.hold(&claim(range, tenant)));
    ownership.release(Some(&key(true)), &(100..200));
    ownership.commit().unwrap();
    for whose in [Some("b"), None] {
        let mut next = opened();
        let verdicts = next.start(&[claim(0..100, "c"), claim(100..150, "c"), claim(150..300, "b")]);
        assert_eq!(verdicts, [Verdict::Ask(vec![0..100], "a".into()), erase(100..150, whose), Verdict::Ready]);
        // It asks again at the next start.
        next.commit().unwrap();
        let kept = Claim { keep_data: Some(true), ..claim(0..100, "c") };
        assert_eq!(next.verdict(&kept), Verdict::Ready);
    }
    let mut same = opened();
    assert_eq!(same.start(&[claim(0..100, "a")]), [Verdict::Ready]);
    let told = Claim { keep_data: Some(false), ..claim(0..100, "c") };
    assert_eq!(opened().start(&[told]), [erase(0..100, Some("a"))], "it was said");
}

#[test]
fn a_start_counts_the_exports_of_each_device_anew() {
    let keys = ["file /d", "file /e", "file /f"].map(|name| Key { name: name.to_owned(), lasts: true });
    let of = |key: &Key, tenant| Claim { device: Some(key.clone()), is_shared: true, ..claim(0..100, tenant) };
    // As an upgrade hands them over: held by the exports of the server before.
    let mut next = Ownership::default();
    keys.iter().for_each(|key| next.hold(&of(key, "a")));
    assert_eq!(next.start(&keys.each_ref().map(|key| of(key, "a"))), [Verdict::Ready, Verdict::Ready, Verdict::Ready]);
    for key in &keys {
        next.release(Some(key), &(0..100));
        // Were it still held, an export that may share bytes would have them as they are.
        assert_eq!(next.verdict(&of(key, "b")), erase(0..100, Some("a")), "{}", key.name);
    }
}

#[test]
fn an_upgrade_hands_over_the_bytes_of_each_device_and_each_stays_in_the_record() {
    let folder = Folder::new();
    let path = folder.join("owners");
    let of =
        |name: &str, tenant| Claim { device: Some(Key { name: name.into(), lasts: true }), ..claim(0..100, tenant) };
    let mut old = opened(&path);
    let names = ["file /d", "file /e"];
    names.iter().for_each(|name| old.hold(&of(name, "a")));
    old.commit().unwrap();
    let bytes = old.pack();
    drop(old);
    let mut store = Store::at(path.clone());
    store.open().unwrap();
    let mut new = Ownership::unpack(&bytes, Some(store)).unwrap();
    names.iter().for_each(|name| assert_eq!(new.verdict(&of(name, "b")), erase(0..100, Some("a")), "{name}"));
    new.commit().unwrap();
    drop(new);
    let next = opened(&path);
    names.iter().for_each(|name| assert_eq!(next.verdict(&of(name, "b")), erase(0..100, Some("a")), "{name}"));
}

#[test]
fn a_file_is_known_by_its_path_and_lasts_and_memory_by_its_name_and_does_not() {
    let folder = Folder::new();
    let disk = folder.join("disk");
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let export = |name: &str| format!("[export.{name}]\ndevice = \"{name}\"\ntenant = \"t\"\nnbd = \"unix:/{name}\"\n");
    let text = format!(
        "[device.f]\nkind = \"file\"\npath = {disk:?}\n[device.m]\nkind = \"memory\"\nsize = \"1MiB\"\n[tenant.t]\n{}{}",
        export("f"),
        export("m")
    );
    let plan = crate::config::Config::parse("c.toml", &text).unwrap().check(&crate::config::RealFiles).unwrap();
    let keys: Vec<Option<Key>> = plan.devices.values().map(key_of).collect();
    let file = Key { name: format!("file {}", disk.display()), lasts: true };
    assert_eq!(keys, [Some(file), Some(Key { name: "memory m".into(), lasts: false })]);
}

#[test]
fn a_start_lets_exports_share_that_say_so_and_no_other() {
    let mut ownership = Ownership::default();
    ownership.hold(&claim(0..100, "a"));
    let shared = |tenant| Claim { is_shared: true, ..claim(0..100, tenant) };
    let mut both = Ownership { devices: ownership.devices.clone(), ..Ownership::default() };
    assert_eq!(both.start(&[shared("b"), shared("a")]), [Verdict::Ready, Verdict::Ready]);
    let mut one = Ownership { devices: ownership.devices.clone(), ..Ownership::default() };
    assert_eq!(one.start(&[shared("b")]), [Verdict::Ask(vec![0..100], "a".into())]);
}

#[test]
fn a_write_of_the_record_that_is_cut_short_leaves_the_one_before() {
    let folder = Folder::new();
    let path = folder.join("owners");
    let mut ownership = opened(&path);
    for tenant in ["a", "b"] {
        ownership.hold(&claim(0..100, tenant));
        ownership.commit().unwrap();
    }
    let newest = |files: [std::path::PathBuf; 2]| {
        files.into_iter().max_by_key(|file| std::fs::read_to_string(file).unwrap().contains("\"b\"")).unwrap()
    };
    let newest = newest(paths(&path));
    let whole = std::fs::read(&newest).unwrap();
    let verdict = || opened(&path).verdict(&claim(0..100, "a"));
    assert_eq!(verdict(), erase(0..100, Some("b")));
    for length in 0..whole.len() {
        std::fs::write(&newest, &whole[..length]).unwrap();
        assert_eq!(verdict(), Verdict::Ready, "{length} bytes: the record before is a's");
    }
    paths(&path).iter().for_each(|file| std::fs::write(file, "[").unwrap());
    assert!(String::from(Record::open(&path).err().unwrap()).contains("are damaged: allowed is to remove both"));
}

#[test]
fn the_record_is_in_the_folder_that_systemd_gives_or_beside_the_config() {
    let at = |folders| path_for(Path::new("/etc/mqfq/a.toml"), folders);
    assert_eq!(at(None), Path::new("/etc/mqfq/a.toml.owners"));
    assert_eq!(at(Some("/var/lib/mqfq:/var/lib/other")), Path::new("/var/lib/mqfq/a.toml.owners"));
    assert_eq!(path_for(Path::new("a.toml"), Some("")), Path::new("a.toml.owners"));
}

/// The state of each byte, the obvious way.
#[derive(Clone, PartialEq, Debug, Default)]
struct Byte {
    tenants: Vec<String>,
    held: u32,
    is_known: bool,
}

#[test]
fn generated_claims_are_judged_as_byte_by_byte() {
    const BYTES: u64 = 24;
    let mut erased = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut bytes = vec![Byte::default(); BYTES as usize];
        let mut ownership = Ownership::default();
        let mut held: Vec<(Range<u64>, bool)> = Vec::new();
        for step in 0..60 {
            let start = random.below(BYTES - 1);
            let range = start..start + 1 + random.below(BYTES - start);
            let at = range.start as usize..range.end as usize;
            let tenant = ["a", "b", "c"][random.below(3) as usize];
            if random.below(3) == 0 && !held.is_empty() {
                let (range, gives_up) = held.swap_remove(random.below(held.len() as u64) as usize);
                ownership.release(Some(&key(true)), &range);
                if gives_up {
                    ownership.give_up(Some(&key(true)), &range);
                }
                for byte in &mut bytes[range.start as usize..range.end as usize] {
                    byte.held -= 1;
                    if gives_up && byte.held == 0 {
                        byte.tenants.clear();
                    }
                }
                continue;
            }
            let is_shared = random.below(2) == 0;
            if bytes[at.clone()].iter().any(|byte| byte.held > 0) && !is_shared {
                continue;
            }
            let claim = Claim { is_shared, is_grown: random.below(2) == 0, ..claim(range.clone(), tenant) };
            let is_good = |byte: &Byte| match byte.is_known {
                false => !claim.is_grown,
                true => byte.tenants.contains(&tenant.to_owned()) || is_shared && byte.held > 0,
            };
            let bad: Vec<u64> = range.clone().filter(|at| !is_good(&bytes[*at as usize])).collect();
            match ownership.verdict(&claim) {
                Verdict::Ready => assert_eq!(bad, [0; 0], "seed {seed}, step {step}"),
                Verdict::Erase(ranges, _) => {
                    assert_eq!(ranges.into_iter().flatten().collect::<Vec<_>>(), bad, "seed {seed}, step {step}");
                    erased += 1;
                }
                Verdict::Ask(..) => panic!("only a start asks"),
            }
            ownership.hold(&claim);
            for byte in &mut bytes[at] {
                if !(is_shared && byte.held > 0) {
                    (byte.tenants, byte.held) = (Vec::new(), 0);
                }
                if !byte.tenants.contains(&tenant.to_owned()) {
                    byte.tenants.push(tenant.to_owned());
                }
                (byte.held, byte.is_known) = (byte.held + 1, true);
            }
            held.push((range, random.below(2) == 0));
        }
        let areas = &ownership.devices[LASTING].0;
        let pairs = areas.iter().zip(areas.iter().skip(1));
        pairs.for_each(|((_, one), (start, other))| assert!(one.end < *start || !one.is_like(other), "{areas:?}"));
    }
    assert!(erased > 1000, "{erased} claims needed an erase");
}
