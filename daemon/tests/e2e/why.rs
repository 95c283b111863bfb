//! Answers of `mqfq ctl why` over real sockets, about loads of which the truth is known.

use crate::client::{CMD_READ, CMD_WRITE_ZEROES, Client, FLAG_NO_HOLE, Request};
use crate::server::{PATIENCE, Server, load, mqfq, paced};
use mqfq_testing::SetAtEnd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Each export has another name than its tenant.
const CONFIG: &str = "[server]
workers = 1
[control]
listen = \"unix:@/control.sock\"
[device.d]
kind = \"memory\"
size = \"80MiB\"
[tenant.busy]
[tenant.capped]
max-iops = 20
[tenant.quiet]
[export.pages]
device = \"d\"
tenant = \"busy\"
size = \"64MiB\"
nbd = \"unix:@/pages.sock\"
[export.root]
device = \"d\"
tenant = \"capped\"
offset = \"64MiB\"
size = \"4MiB\"
nbd = \"unix:@/root.sock\"
[export.spare]
device = \"d\"
tenant = \"quiet\"
offset = \"68MiB\"
nbd = \"unix:@/spare.sock\"
";

/// Answer about a tenant or an export.
pub fn said(server: &Server, name: &str) -> String {
    let socket = format!("unix:{}", server.join("control.sock").display());
    let done = mqfq(&["ctl", "--socket", &socket, "why", name]);
    String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
}

#[test]
fn why_takes_an_export_and_tells_a_cap_from_the_servers_cores_and_from_silence() {
    let server = Server::start(CONFIG);
    let is_over = AtomicBool::new(false);
    let said = |name: &str| said(&server, name);
    // The worker fills 32 MiB of memory, which is there already and fits no cache, for each 28 bytes that the client
    // sends.
    let fill = Request { length_bytes: 32 << 20, flags: FLAG_NO_HOLE, ..Request::of(CMD_WRITE_ZEROES) };
    Client::connect(&server.socket("pages"), "pages").write(0, &vec![1; 32 << 20]).unwrap();
    let read = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| load(&server, "pages", 16, fill, &is_over));
        scope.spawn(|| load(&server, "root", 2, read, &is_over));
        let begun = Instant::now();
        let expected = [
            ("pages", "the server's cores are the limit"),
            ("root", "limited by its own max-iops"),
            ("spare", "quiet is idle"),
        ];
        for (export, words) in expected {
            while !said(export).contains(words) {
                assert!(begun.elapsed() < PATIENCE, "{export}: {}", said(export));
            }
        }
    });
    let tenants = [("busy", "pages"), ("capped", "root")];
    tenants.iter().for_each(|(tenant, export)| assert!(said(export).contains(tenant), "{}", said(export)));
    assert!(said("roo").contains("there is no tenant or export roo"), "{}", said("roo"));
}

/// A drive with a shallow tenant and a deep one, whose requests all find a place on it.
const NEIGHBOURS: &str = "[server]
workers = 1
[control]
listen = \"unix:@/control.sock\"
[device.d]
kind = \"model\"
preset = \"flash-60k\"
size = \"16MiB\"
expert = { depth = 1200, slowed = 20 }
[tenant.db]
[tenant.bulk]
[export.db]
device = \"d\"
tenant = \"db\"
size = \"4MiB\"
nbd = \"unix:@/db.sock\"
[export.bulk]
device = \"d\"
tenant = \"bulk\"
offset = \"4MiB\"
nbd = \"unix:@/bulk.sock\"
";

#[test]
fn why_names_the_neighbour_behind_whose_requests_a_shallow_tenant_waits() {
    let server = Server::start(NEIGHBOURS);
    let is_over = AtomicBool::new(false);
    let small = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    let large = Request { length_bytes: 128 << 10, ..Request::of(CMD_READ) };
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| load(&server, "db", 1, small, &is_over));
        let reaches = |words: &str| {
            let begun = Instant::now();
            while !said(&server, "db").contains(words) {
                assert!(begun.elapsed() < PATIENCE, "{}", said(&server, "db"));
            }
        };
        reaches("client keeps one request in flight");
        // Some seconds alone are known.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            assert!(!said(&server, "db").contains("bulk"), "{}", said(&server, "db"));
        }
        scope.spawn(|| load(&server, "bulk", 32, large, &is_over));
        reaches(
            "behind bulk's requests on the device (D = 1200); D is a number, so a latency goal would change nothing",
        );
        let sentence = said(&server, "db");
        assert!(sentence.contains("db waits ") && !sentence.contains("at least"), "{sentence}");
    });
}

/// Modelled drives, slowed so that the server's cores are never the limit.
fn drives() -> String {
    let mut config = String::from(
        "[server]\nworkers = 1\n[control]\nlisten = \"unix:@/control.sock\"\n[group.gold]\n\
         [tenant.deep]\n[tenant.shallow]\nweight = 300\n[tenant.calm]\n\
         [tenant.single]\n[tenant.pausing]\n\
         [tenant.first]\ngroup = \"gold\"\n[tenant.second]\ngroup = \"gold\"\n",
    );
    for (device, tenants) in
        [("a", &["deep", "shallow"][..]), ("b", &["calm", "single", "pausing"]), ("c", &["first", "second"])]
    {
        config += &format!(
            "[device.{device}]\nkind = \"model\"\npreset = \"flash-60k\"\nsize = \"16MiB\"\n\
             expert = {{ depth = 64, slowed = 20 }}\n"
        );
        for (number, tenant) in tenants.iter().enumerate() {
            config += &format!(
                "[export.{tenant}]\ndevice = \"{device}\"\ntenant = \"{tenant}\"\noffset = \"{}MiB\"\nsize = \"4MiB\"\n\
                 nbd = \"unix:@/{tenant}.sock\"\n",
                4 * number
            );
        }
    }
    config
}

#[test]
fn why_tells_a_full_drive_a_short_depth_a_group_no_wait_one_request_in_flight_and_a_pause_apart() {
    let server = Server::start(&drives());
    let (is_over, is_shallow_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let read = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    let all = [
        "its share while shallow uses its own",
        "has the device to itself",
        "client keeps 2.0 requests of 4 KiB in flight, which bring",
        "its group gold has one share, which",
        "is served as it asks",
        "client keeps one request in flight",
        "client asks for no more: nothing of it is under way",
    ];
    std::thread::scope(|scope| {
        let _over = (SetAtEnd(&is_over), SetAtEnd(&is_shallow_over));
        for (export, depth) in [("deep", 256), ("calm", 2), ("first", 256), ("second", 256)] {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || load(server, export, depth, read, is_over));
        }
        scope.spawn(|| load(&server, "shallow", 2, read, &is_shallow_over));
        scope.spawn(|| load(&server, "single", 1, read, &is_over));
        scope.spawn(|| paced(&server, "pausing", 1, read, Duration::from_millis(50), &is_over));
        let reaches = |export: &str, words: &str| {
            let begun = Instant::now();
            loop {
                let verdict = said(&server, export);
                if verdict.contains(words) {
                    let others = all.iter().filter(|other| **other != words && verdict.contains(**other)).count();
                    assert_eq!(others, 0, "{export}: {verdict}");
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "{export}: {verdict}");
            }
        };
        let of = [("deep", 0), ("shallow", 2), ("first", 3), ("second", 3), ("calm", 4), ("single", 5), ("pausing", 6)];
        of.iter().for_each(|&(export, number)| reaches(export, all[number]));
        is_shallow_over.store(true, Relaxed);
        reaches("deep", all[1]);
    });
}
