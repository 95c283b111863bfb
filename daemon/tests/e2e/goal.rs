//! Latency goals over real sockets: set, held, told and taken away while requests are under way.

use crate::client::{CMD_READ, Client, Request};
use crate::control::{client, ctl, get, said};
use crate::server::{PATIENCE, Server, load};
use crate::why;
use mqfq_control::client::Ask;
use mqfq_testing::SetAtEnd;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const CONFIG: &str = "[server]
workers = 1
[control]
listen = \"unix:@/control.sock\"
[device.d]
kind = \"model\"
preset = \"flash-60k\"
size = \"16MiB\"
throughput-floor = 0.5
[tenant.db]
[tenant.bulk]
[export.db]
device = \"d\"
tenant = \"db\"
size = \"8MiB\"
nbd = \"unix:@/db.sock\"
[export.bulk]
device = \"d\"
tenant = \"bulk\"
offset = \"8MiB\"
nbd = \"unix:@/bulk.sock\"
";

fn metrics(server: &Server) -> String {
    let reply = client(server).ask(Ask::new("GET".parse().unwrap(), "/metrics")).unwrap();
    String::from_utf8(reply.body).unwrap()
}

/// Value of a metric; `None`: it is missing.
fn metric(server: &Server, name: &str) -> Option<f64> {
    let text = metrics(server);
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_goal_is_set_held_told_and_taken_away_while_both_tenants_are_served() {
    let server = Server::start(CONFIG);
    let is_over = AtomicBool::new(false);
    let large = Request { length_bytes: 64 << 10, ..Request::of(CMD_READ) };
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| load(&server, "bulk", 32, large, &is_over));
        let mut db = Client::connect(&server.socket("db"), "db");
        let mut read_until = |is_so: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is_so() {
                assert!(begun.elapsed() < PATIENCE, "{}", metrics(&server));
                (0..32).for_each(|page| drop(db.read(page * 4096, 4096).unwrap()));
            }
        };
        let cap = || metric(&server, "mqfq_device_depth_cap_units");
        assert_eq!((cap(), metric(&server, "mqfq_tenant_latency_goal_seconds")), (None, None));
        // No request of a drive takes so little: D is held as low as the floor allows.
        let set = said(&ctl(&server, &["tenant", "set", "db", "--latency", "10us"]));
        assert!(set.contains("tenant db on device d: latency none -> 10us"), "{set}");
        assert_eq!(get(&server, "/v1/tenants/db")["in_force"]["latency"], "10us");
        read_until(&|| cap().is_some());
        let [goal, met] = ["mqfq_tenant_latency_goal_seconds", "mqfq_tenant_latency_goal_met"];
        assert_eq!((metric(&server, goal), metric(&server, met)), (Some(0.00001), Some(0.0)));
        // Nothing is known of a tenant until two readings have it.
        read_until(&|| why::said(&server, "db").contains("; its goal of 10.0 us is "));
        // Each takes less than this: it is met, and nothing is held down for it.
        said(&ctl(&server, &["tenant", "set", "db", "--latency", "10s"]));
        read_until(&|| cap().is_none() && metric(&server, met) == Some(1.0));
        let floor = said(&ctl(&server, &["device", "set", "d", "--throughput-floor", "0.9"]));
        assert!(floor.contains("device d: throughput-floor 0.5 -> 0.9"), "{floor}");
        said(&ctl(&server, &["tenant", "set", "db", "--unset", "latency"]));
        assert_eq!((cap(), metric(&server, goal)), (None, None));
    });
    server.terminate();
}
