//! How does a server that was started as root become another user?
//!
//! By groups, group, user, in this order, each for all three ids (setresuid(2)): there is no way back. glibc does it on
//! every thread. Files that are opened later, such as a key that is read again, are opened as that user.

use mqfq_config::text::quoted;
use std::ffi::CString;
use std::io;

/// Room for an entry of the user database, bytes.
const ENTRY_BYTES: usize = 64 << 10;

/// Becomes this user and group, by name or number, if given.
///
/// # Errors
/// One sentence: there is no such user, or this process may not become it.
pub fn become_user(user: Option<&str>, group: Option<&str>) -> Result<(), String> {
    let Found { uid, gid } = find(user, group)?;
    let refused = |what: &str, name: &str| Err(cannot_become(what, name, &io::Error::last_os_error()));
    // SAFETY: these calls touch no memory: the list of groups is empty.
    unsafe {
        let is_root = libc::geteuid() == 0;
        if gid.is_some() && is_root && libc::setgroups(0, std::ptr::null()) != 0 {
            return refused("group", group.or(user).unwrap_or_default());
        }
        if let Some(gid) = gid
            && libc::setresgid(gid, gid, gid) != 0
        {
            return refused("group", group.or(user).unwrap_or_default());
        }
        if let Some(uid) = uid
            && libc::setresuid(uid, uid, uid) != 0
        {
            return refused("user", user.unwrap_or_default());
        }
    }
    Ok(())
}

/// Checks that [`become_user`] can succeed.
///
/// # Errors
/// One sentence, as of [`become_user`].
pub fn could_become(user: Option<&str>, group: Option<&str>) -> Result<(), String> {
    let Found { uid, gid } = find(user, group)?;
    let own = rustix::process::geteuid().as_raw();
    // Root may become any user; another user only what it is already.
    if own != 0 {
        let refused = || io::Error::from_raw_os_error(libc::EPERM);
        if gid.is_some_and(|gid| gid != rustix::process::getegid().as_raw()) {
            return Err(cannot_become("group", group.or(user).unwrap_or_default(), &refused()));
        }
        if uid.is_some_and(|uid| uid != own) {
            return Err(cannot_become("user", user.unwrap_or_default(), &refused()));
        }
    }
    Ok(())
}

fn cannot_become(what: &str, name: &str, error: &io::Error) -> String {
    let why = mqfq_report::plain(error);
    format!("server.{what}: cannot become {what} {}: {why}, allowed is to start it as root", quoted(name))
}

/// The new user and group.
pub struct Found {
    /// `None`: the same user.
    uid: Option<u32>,
    /// `None`: the same group.
    gid: Option<u32>,
}

/// A user, and a group or else the user's own, by name or number.
///
/// # Errors
/// One sentence: there is no such user or group.
pub fn find(user: Option<&str>, group: Option<&str>) -> Result<Found, String> {
    let user = user.map(find_user).transpose()?;
    let group = group.map(find_group).transpose()?;
    Ok(Found { uid: user.map(|(uid, _)| uid), gid: group.or(user.map(|(_, gid)| gid)) })
}

/// A user and its own group.
fn find_user(name: &str) -> Result<(u32, u32), String> {
    let text = c_string("user", name)?;
    // SAFETY: all zeroes are a passwd with null pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut room = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: a C string, and an entry and a buffer of ours of the length that is said, for the duration of the call.
    unsafe { libc::getpwnam_r(text.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found) };
    match (found.is_null(), name.parse()) {
        (false, _) => Ok((entry.pw_uid, entry.pw_gid)),
        // A number without a name has the group of the same number.
        (true, Ok(uid)) => Ok((uid, uid)),
        (true, Err(_)) => Err(format!("server.user: there is no user {}, allowed is a name or a number", quoted(name))),
    }
}

fn find_group(name: &str) -> Result<u32, String> {
    let text = c_string("group", name)?;
    // SAFETY: all zeroes are a group with null pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let mut room = vec![0; ENTRY_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: a C string, and an entry and a buffer of ours of the length that is said, for the duration of the call.
    unsafe { libc::getgrnam_r(text.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found) };
    match (found.is_null(), name.parse()) {
        (false, _) => Ok(entry.gr_gid),
        (true, Ok(gid)) => Ok(gid),
        (true, Err(_)) => {
            Err(format!("server.group: there is no group {}, allowed is a name or a number", quoted(name)))
        }
    }
}

fn c_string(what: &str, name: &str) -> Result<CString, String> {
    CString::new(name).map_err(|_| format!("server.{what}: the name holds a NUL character"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        assert_eq!(find_user("root"), Ok((0, 0)));
        assert_eq!(find_user("4000000"), Ok((4_000_000, 4_000_000)));
        assert_eq!(find_group("root"), Ok(0));
        let none = "server.user: there is no user \"no such user\", allowed is a name or a number";
        assert_eq!(find_user("no such user"), Err(none.to_owned()));
        assert!(find_group("no such group").is_err() && find_user("a\0").is_err());
        assert_eq!(become_user(None, None), Ok(()), "nobody is asked for");
    }
}
