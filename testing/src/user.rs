//! Which user is a client? A thread of the test becomes another one, so that the kernel says so of its sockets.
//!
//! The calls below change the ids of one thread, where those of the C library change all threads of the process.

use rustix::process::{Gid, Uid};

/// Whether a test may be another user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Calls `act` on a thread of its own, whose user and group are these. Sockets that it makes or connects have them as
/// SO_PEERCRED.
///
/// # Panics
/// If the test is not root's, and if `act` panics.
pub fn as_user<T: Send>(uid: u32, gid: u32, act: impl FnOnce() -> T + Send) -> T {
    let become_user = move || {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_groups(&[]).expect("root may give groups up");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may become any group");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may become any user");
        act()
    };
    std::thread::scope(|scope| scope.spawn(become_user).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
