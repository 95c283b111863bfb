//! The load generator against a server of another author.

use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_nbd::NbdTenant;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server in a directory of its own; both end with the test.
struct Nbdkit {
    child: Child,
    folder: PathBuf,
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Nbdkit {
    /// `None`, with the reason printed, where nbdkit is missing; in CI that fails the test.
    fn start(name: &str) -> Option<Nbdkit> {
        let folder = std::env::temp_dir().join(format!("mqfq-bench-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let child = Command::new("nbdkit")
            .args(["--foreground", "--newstyle", "--unix"])
            .arg(folder.join("socket"))
            .args(["memory", "64M"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Nbdkit { child, folder }),
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "nbdkit is missing in CI: {error}");
                println!("skipped: nbdkit does not start here ({error})");
                None
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

/// Attaches as soon as the server listens; nothing tells when that is, so it is tried again for ten seconds.
fn attach(socket: &Path, load: &Load) -> NbdTenant {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        match NbdTenant::attach(socket, "", load) {
            Ok(tenant) => return tenant,
            Err(error) if Instant::now() > give_up => panic!("{error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn every_request_of_a_mixed_load_is_answered_without_error() {
    let Some(server) = Nbdkit::start("mixed") else { return };
    let load = Load { write_percent: 50, ..Load::random_reads(3, 8, 16 * 1024) };
    let mut tenant = attach(&server.socket(), &load);
    // Two runs on the same connections: a run leaves nothing in flight behind.
    for _ in 0..2 {
        let counted = tenant.run(Instant::now(), Window::from_ms(20, 100)).unwrap();
        assert_eq!(counted.errors, 0);
        assert!(counted.requests > 24, "three connections of depth 8 answered at least once: {}", counted.requests);
        assert_eq!(counted.bytes, counted.requests * 16 * 1024);
        assert!(counted.p99_ns() > 0);
    }
    tenant.detach();
}

#[test]
fn an_export_that_is_not_there_is_one_sentence() {
    let error = NbdTenant::attach(Path::new("/nonexistent/socket"), "", &Load::random_reads(1, 1, 4096)).err().unwrap();
    assert!(error.starts_with("cannot connect to /nonexistent/socket: "), "{error}");
}
