//! What `mqfq ctl why` says over real sockets, of loads of which the truth is known.

use crate::client::{CMD_READ, CMD_WRITE_ZEROES, Client, FLAG_NO_HOLE, Request};
use crate::server::{Server, mqfq};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Each export has another name than its tenant.
const CONFIG: &str = "[server]
workers = 1
[control]
listen = \"unix:@/control.sock\"
[device.d]
kind = \"memory\"
size = \"16MiB\"
[tenant.busy]
[tenant.capped]
max-iops = 20
[tenant.quiet]
[export.pages]
device = \"d\"
tenant = \"busy\"
size = \"8MiB\"
nbd = \"unix:@/pages.sock\"
[export.root]
device = \"d\"
tenant = \"capped\"
offset = \"8MiB\"
size = \"4MiB\"
nbd = \"unix:@/root.sock\"
[export.spare]
device = \"d\"
tenant = \"quiet\"
offset = \"12MiB\"
nbd = \"unix:@/spare.sock\"
";

/// A verdict is of ten seconds at most, on a machine that may do something else meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends what runs beside a test, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Keeps so many of these requests in flight.
fn load(server: &Server, export: &str, depth: u32, request: Request, is_over: &AtomicBool) {
    let mut client = Client::connect(&server.socket(export), export);
    let mut data = vec![0; if request.command == CMD_READ { request.length_bytes as usize } else { 0 }];
    (0..depth).for_each(|_| client.send(request, &[]).unwrap());
    while !is_over.load(Relaxed) {
        assert_eq!(client.reply().expect("an answer").error, 0);
        client.stream.read_exact(&mut data).unwrap();
        client.send(request, &[]).unwrap();
    }
}

#[test]
fn why_takes_an_export_and_tells_a_cap_from_the_servers_cores_and_from_silence() {
    let server = Server::start(CONFIG);
    let is_over = AtomicBool::new(false);
    let socket = format!("unix:{}", server.join("control.sock").display());
    let said = |name: &str| {
        let done = mqfq(&["ctl", "--socket", &socket, "why", name]);
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    // The worker fills 4 MiB of memory, which is there already, for each 28 bytes that the client sends.
    let fill = Request { length_bytes: 4 << 20, flags: FLAG_NO_HOLE, ..Request::of(CMD_WRITE_ZEROES) };
    Client::connect(&server.socket("pages"), "pages").write(0, &vec![1; 4 << 20]).unwrap();
    let read = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
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
