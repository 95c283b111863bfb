//! The listening socket that a killed server leaves for a moment: waiting for it instead of failing on it.
//!
//! `kill -9` ends a process at once, and a supervisor starts its successor at once. But the kernel first finishes what the
//! dead one's io_uring had in flight, an accept among it, and until then its socket takes connections like that of a server
//! that lives. (The file device meets the same with its lock, and waits for itself.)
//!
//! | socket of | our connection to it |
//! |---|---|
//! | a killed server | is closed with the socket, some milliseconds later |
//! | a server that lives | gets the first byte of its greeting |
//! | somebody who says nothing | neither: time runs out |
//!
//! Whoever lives there is then met again, and refused, by the code that binds.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// Returns when nobody listens on the socket, when a server there sends its greeting, or when time has run out.
pub fn wait_for_socket(path: &Path) {
    let path = path.to_owned();
    within_wait_max(move || {
        let Ok(mut stream) = UnixStream::connect(path) else { return };
        // A server that lives sends the first byte; the socket of a dead one is closed with us in its queue.
        let _ = stream.set_read_timeout(Some(WAIT_MAX)).and_then(|()| stream.read(&mut [0; 1]));
    });
}

/// Runs `wait` on a thread of its own, because connecting to a full backlog has no timeout, and returns when it ends or
/// time has run out. In the second case the thread is left behind; the process ends soon, since the address is taken.
fn within_wait_max(wait: impl FnOnce() + Send + 'static) {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        wait();
        // Nobody listens any more if time has run out.
        let _ = sender.send(());
    });
    let _ = ended.recv_timeout(WAIT_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("mqfq-takeover-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_listener_that_closes_ends_the_wait() {
        let path = path("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || wait_for_socket(&path)
        });
        drop(listener);
        waiter.join().unwrap();
        assert!(UnixStream::connect(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_server_that_greets_is_not_waited_for() {
        let path = path("greeting");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            std::io::Write::write_all(&mut listener.accept().unwrap().0, b"NBDMAGIC").unwrap();
            listener
        });
        wait_for_socket(&path);
        drop(server.join().unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
