//! QEMU with `reconnect-delay`, an NBD client that comes back: it repeats a request whose connection broke, and hands
//! an error reply to its guest. `qemu-img bench` ends at the first error. `MQFQ_RESTARTS=50` has as many rounds.

use crate::server::{Folder, Server, arg, ended};
use mqfq_testing::authority::Authority;
use mqfq_testing::machine;
use mqfq_testing::tools::need;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Requests after which the server goes, in each round. The bench has [`IN_FLIGHT`] under way then.
const REQUESTS: u64 = 100;

const IN_FLIGHT: &str = "16";

fn rounds() -> u64 {
    std::env::var("MQFQ_RESTARTS").map_or(2, |rounds| rounds.parse().expect("a number"))
}

/// One export at `address`, of a tenant whose cap keeps the bench from ending too early.
fn config(address: &str, more: &str) -> String {
    format!(
        "{more}[server]\nworkers = 2\nupgrade = \"unix:@/upgrade.sock\"\n[device.d]\nkind = \"file\"\npath = \"@/disk\"\n\
         [tenant.t]\nmax-iops = 1000\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"{address}\"\n"
    )
}

fn with_disk() -> Folder {
    let folder = Folder::new();
    drop(folder.file("disk", 16 << 20));
    folder
}

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    running: Running,
    said: PathBuf,
}

impl Bench {
    /// Writes until it has met so many `rounds` and more, at 1,000 requests per second.
    fn start(folder: &Folder, image: &str, rounds: u64) -> Bench {
        let said = folder.join("bench");
        let out = File::create(&said).unwrap();
        let mut bench = Command::new("qemu-img");
        bench.args(["bench", "-w", "-t", "none", "-s", "4096", "-d", IN_FLIGHT]);
        bench.args(["-c", &((rounds + 2) * 8 * REQUESTS).to_string(), "--image-opts", image]);
        let running = Running(bench.stderr(out.try_clone().unwrap()).stdout(out).spawn().unwrap());
        Bench { running, said }
    }

    /// The bench has had [`REQUESTS`] answers from this server, and is not at its end.
    fn goes_on(&mut self, server: &mut Server) {
        let served = |server: &mut Server| server.report()["devices"][0]["tenants"][0]["writes"].as_u64().unwrap();
        let before = served(server);
        while served(server) < before + REQUESTS {
            assert!(self.running.0.try_wait().unwrap().is_none(), "it has ended: {}", self.said());
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap()
    }

    fn ends_well(mut self) {
        assert!(ended(&mut self.running.0).success(), "{}", self.said());
    }
}

#[test]
fn qemu_sees_no_error_of_a_server_that_is_stopped_and_started_again() {
    need!("qemu-img");
    let _machine = machine::shared();
    let config = config("unix:@/s.sock", "");
    let mut server = Server::start_in(with_disk(), &config);
    let socket = server.join("s.sock");
    let image = format!("driver=nbd,server.type=unix,server.path={},export=e,reconnect-delay=100", arg(&socket));
    let mut bench = Bench::start(server.folder(), &image, rounds());
    for _ in 0..rounds() {
        bench.goes_on(&mut server);
        server.signal(libc::SIGTERM);
        server = Server::start_in(server.leaves().1, &config);
    }
    bench.goes_on(&mut server);
    bench.ends_well();
    server.terminate();
}

/// A session of TLS cannot travel, so it ends, and its client comes back to the next process.
#[test]
fn qemu_sees_no_error_of_a_server_that_is_replaced_under_tls() {
    need!("qemu-img", "qemu-storage-daemon");
    let _machine = machine::shared();
    let (folder, authority) = (with_disk(), Authority::new());
    authority.sign(folder.path(), "server", "localhost");
    let client = authority.client(&folder, "a");
    let tls = "[tls]\ncertificate = \"@/server-cert.pem\"\nkey = \"@/server-key.pem\"\nclient-ca = \"@/ca-cert.pem\"\n";
    // The port is not known before, and the next process has the socket of the one before.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(&format!("tcp:127.0.0.1:{port}"), tls);
    let mut server = Server::start_in(folder, &config);
    // The bench takes no certificate, so it writes through QEMU's own server, which has one.
    let credentials = format!("tls-creds-x509,id=t,dir={},endpoint=client", client.display());
    let node = format!(
        "driver=nbd,node-name=n,server.type=inet,server.host=localhost,server.port={port},export=e,tls-creds=t,\
         reconnect-delay=100"
    );
    let socket = server.join("proxy.sock");
    let listen = format!("addr.type=unix,addr.path={}", arg(&socket));
    let mut proxy = Command::new("qemu-storage-daemon");
    proxy.args(["--object", &credentials, "--blockdev", &node, "--nbd-server", &listen]);
    proxy.args(["--export", "type=nbd,id=x,node-name=n,name=e,writable=on"]);
    let _proxy = Running(proxy.stdout(Stdio::null()).spawn().unwrap());
    let image = format!("driver=nbd,server.type=unix,server.path={},export=e,open-timeout=60", arg(&socket));
    let mut bench = Bench::start(server.folder(), &image, rounds());
    for _ in 0..rounds() {
        bench.goes_on(&mut server);
        server = server.replace(&config);
    }
    bench.goes_on(&mut server);
    bench.ends_well();
    server.terminate();
}
