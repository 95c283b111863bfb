//! Which rights does the process give up before it serves its first client?
//!
//! ```text
//!  devices open, sockets bound ─▶ root ─▶ core dumps ─▶ files ─▶ system calls ─▶ workers, control plane
//!                               (user.rs)             (files.rs)  (calls.rs)
//! ```
//! Each step holds for all threads that start after it; rings are restricted by themselves (`blk/src/ring/mod.rs`).
//!
//! | `sandbox` | files (Landlock) | system calls (seccomp) | changes while it serves |
//! |---|---|---|---|
//! | `"off"` | all | all | all |
//! | `"live"` | in the folders of the configured paths, and in `paths` | those that a server needs | all, within those folders |
//! | `"strict"` | the configured paths | the same, without new sockets | those that need no new file or socket |
//!
//! A file or socket that is refused is an error of the change that wanted it. A system call that no server makes ends
//! the process, with its number on stderr: its caller is not the server.

mod calls;
mod files;
#[cfg(test)]
mod tests;
mod user;

pub use files::Grants;

use crate::config::{Level, PrivilegeConfig};
use std::io;

/// Checks that the user and the group of `config` are there, and that this process may become them.
///
/// # Errors
/// One sentence: one of them is not, or it may not.
pub fn look_up(config: &PrivilegeConfig) -> Result<(), String> {
    user::could_become(config.user.as_deref(), config.group.as_deref())
}

/// Gives up what `config` says. `has_keys`: secrets are in memory, which must not reach a disk. Sentences about what
/// this kernel cannot do.
///
/// # Errors
/// One sentence. Rights given up until then are gone.
pub fn enter(config: &PrivilegeConfig, grants: &Grants, has_keys: bool) -> Result<Vec<String>, String> {
    let PrivilegeConfig { sandbox, paths, user, group } = config;
    user::become_user(user.as_deref(), group.as_deref())?;
    // After the change of user, which makes the process as dumpable as fs.suid_dumpable says, which may be 2.
    if has_keys || *sandbox != Level::Off {
        refuse_dumps().map_err(|error| format!("cannot switch core dumps off: {error}"))?;
    }
    if *sandbox == Level::Off {
        return Ok(Vec::new());
    }
    // SAFETY: prctl with these arguments touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(format!("cannot give up new privileges: {}", io::Error::last_os_error()));
    }
    let note = grants.restrict(*sandbox, paths)?;
    calls::restrict(*sandbox)?;
    Ok(note.into_iter().collect())
}

/// No core file, and no other process of the same user may look into this one.
fn refuse_dumps() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: prctl with these arguments touches no memory; setrlimit reads a struct of ours.
    let results = unsafe {
        [libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0), libc::setrlimit(libc::RLIMIT_CORE, &raw const none)]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}
