//! Caps of tenants and exports over real sockets. Ratios of counts of one run: whatever the machine's speed, tenants
//! with caps have requests in proportion to them.

use crate::client::{CMD_READ, Client, Request};
use crate::server::Server;
use crate::server::reload;
use mqfq_testing::machine;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// `a` has caps of its own, `b` one of its exports and one of both together, `c` has none.
const CONFIG: &str = "[server]
workers = 2
[device.d]
kind = \"memory\"
size = \"16MiB\"
[tenant.a]
max-iops = 200
[tenant.b]
max-bytes-per-s = \"2400KiB\"
[tenant.c]
[export.a]
device = \"d\"
tenant = \"a\"
size = \"4MiB\"
nbd = \"unix:@/a.sock\"
[export.slow]
device = \"d\"
tenant = \"b\"
offset = \"4MiB\"
size = \"4MiB\"
max-iops = 100
nbd = \"unix:@/slow.sock\"
[export.b]
device = \"d\"
tenant = \"b\"
offset = \"8MiB\"
size = \"4MiB\"
nbd = \"unix:@/b.sock\"
[export.c]
device = \"d\"
tenant = \"c\"
offset = \"12MiB\"
nbd = \"unix:@/c.sock\"
";

const EXPORTS: [&str; 4] = ["a", "slow", "b", "c"];

/// Requests in flight of one connection: what its cap lets through while its thread waits for a processor.
const DEPTH: u32 = 32;

/// Two connections of each export read 4 KiB, until all but `c` have so many replies together. Replies by export, from
/// when all connections have asked.
fn counts(server: &Server, replies: u64) -> [u64; 4] {
    let counts = [const { AtomicU64::new(0) }; 4];
    let (asking, capped, is_over) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (export, name) in EXPORTS.into_iter().enumerate().flat_map(|of| [of, of]) {
            let (counts, asking, capped, is_over) = (&counts, &asking, &capped, &is_over);
            let mut client = Client::connect(&server.socket(name), name);
            scope.spawn(move || {
                let request = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
                (0..DEPTH).for_each(|_| client.send(request, &[]).unwrap());
                asking.fetch_add(1, Relaxed);
                let mut data = [0; 4096];
                while !is_over.load(Relaxed) {
                    assert_eq!(client.reply().expect("an answer").error, 0);
                    client.stream.read_exact(&mut data).unwrap();
                    if asking.load(Relaxed) == 2 * EXPORTS.len() {
                        counts[export].fetch_add(1, Relaxed);
                        if name != "c" && capped.fetch_add(1, Relaxed) + 1 >= replies {
                            is_over.store(true, Relaxed);
                        }
                    }
                    client.send(request, &[]).unwrap();
                }
            });
        }
    });
    counts.map(AtomicU64::into_inner)
}

/// The counts are as 1 to `ratio`, within a tenth and the few that each connection may have had at the start.
fn assert_ratio(counts: [u64; 4], [one, other]: [usize; 2], ratio: f64) {
    let (one, other) = (counts[one] as f64, counts[other] as f64);
    assert!((other - one * ratio).abs() < one * ratio * 0.1 + 8.0, "1:{:.3}, not 1:{ratio}: {counts:?}", other / one);
}

#[test]
fn capped_tenants_and_exports_have_what_their_caps_say_and_others_the_rest() {
    let _machine = machine::shared();
    let mut server = Server::start(CONFIG);
    // 200 per second; 100 of the 600 of its tenant; the other 500; no end.
    let first = counts(&server, 400);
    assert_ratio(first, [1, 0], 2.0);
    assert_ratio(first, [1, 2], 5.0);
    assert!(first[3] > 10 * first[2], "{first:?}");

    let said = reload(&mut server, |text| text.replace("max-iops = 200", "max-iops = 400"));
    let change = &said["changes"][0];
    assert_eq!(said["reloaded"], true, "{said}");
    assert_eq!((&change["tenant"], &change["key"]), (&"a".into(), &"caps".into()), "{said}");
    assert_eq!((&change["from"], &change["to"]), (&"200 requests/s".into(), &"400 requests/s".into()), "{said}");
    assert_ratio(counts(&server, 500), [1, 0], 4.0);

    // No request waits for a removed cap, nor does the end of the server.
    reload(&mut server, |text| text.replace("max-iops = 400", "").replace("max-iops = 100", "max-iops = 1"));
    let free = counts(&server, 2000);
    assert!(free[0] > 20 * free[1], "{free:?}");
    server.terminate();
}
