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

#[cfg(test)]
mod tests {
    //! Another process enters the sandbox, tries what is forbidden, and is refused or ended. It is this test's own
    //! binary, which runs the one test that does what MQFQ_SANDBOX_TRY names.

    use super::*;
    use mqfq_testing::{Folder, user};
    use std::fs::{self, File};
    use std::path::Path;
    use std::process::{Command, Output};

    const TRY: &str = "MQFQ_SANDBOX_TRY";
    const USER: &str = "MQFQ_SANDBOX_USER";
    const GROUP: &str = "MQFQ_SANDBOX_GROUP";
    const NO_KEYS: &str = "MQFQ_SANDBOX_NO_KEYS";

    /// `ok`, or the errno.
    fn said(result: libc::c_long) -> String {
        if result >= 0 { "ok".to_owned() } else { io::Error::last_os_error().raw_os_error().unwrap_or(0).to_string() }
    }

    fn opened<T>(result: io::Result<T>) -> String {
        result.map_or_else(|error| error.raw_os_error().unwrap_or(0).to_string(), |_| "ok".to_owned())
    }

    /// Makes an attempt, in `folder`.
    fn attempt(what: &str, folder: &Path) -> String {
        // SAFETY: calls with numbers, null pointers and strings of ours; those that were dangerous do not return.
        unsafe {
            match what {
                "execve" => {
                    let arguments = [c"true".as_ptr(), std::ptr::null()];
                    said(libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()).into())
                }
                "fork" => said(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
                "ptrace" => said(libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)),
                "unshare" => said(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)),
                "setuid" => said(libc::syscall(libc::SYS_setuid, 0)),
                "kill" => said(libc::syscall(libc::SYS_kill, 1, 0)),
                "dumpable" => said(libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
                "packet" => said(libc::syscall(libc::SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, 0)),
                "inet" => said(libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)),
                "listen" => opened(std::os::unix::net::UnixListener::bind(folder.join("sockets/new"))),
                "thread" => opened(std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join())),
                "outside" => opened(File::open("/etc/passwd")),
                "device" => opened(File::options().read(true).write(true).open(folder.join("devices/disk"))),
                "beside" => opened(File::open(folder.join("devices/other"))),
                "paths" => opened(File::create(folder.join("more/new"))),
                "config" => opened(fs::read(folder.join("config/config.toml"))),
                "save" => opened(fs::write(folder.join("config/config.new"), "")),
                "another device" => opened(File::open("/dev/zero")),
                "new in dev" => {
                    let path = format!("/dev/mqfq-sandbox-{}", std::process::id());
                    opened(File::create(&path).and_then(|_| fs::remove_file(&path)))
                }
                "root" | "root by name" | "root by paths" => opened(File::open("/etc/passwd")),
                "core" => {
                    let mut limit = libc::rlimit { rlim_cur: 9, rlim_max: 9 };
                    libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit);
                    format!("{} {}", limit.rlim_cur, limit.rlim_max)
                }
                "dumpable now" => libc::prctl(libc::PR_GET_DUMPABLE).to_string(),
                "ids" => {
                    let status = fs::read_to_string("/proc/self/status").unwrap();
                    let ids =
                        status.lines().filter(|line| ["Uid:", "Gid:", "Groups:"].iter().any(|id| line.starts_with(id)));
                    ids.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
                }
                other => unreachable!("{other}"),
            }
        }
    }

    /// The rights that a server gives up, for an attempt in `folder`: its config, its files, and whether it has keys.
    fn given_up(sandbox: Level, what: &str, folder: &Path) -> (PrivilegeConfig, Grants, bool) {
        let of = |device: &Path, folder: &Path| {
            Grants::of_paths(device, &folder.join("sockets/s"), &folder.join("config/config.toml"))
        };
        let grants = match what {
            "another device" | "new in dev" => of(Path::new("/dev/null"), folder),
            "root" | "root by paths" => {
                let [device, socket, config] = ["/disk", "/s", "/config.toml"].map(Path::new);
                Grants::of_paths(device, socket, config)
            }
            // A server that was started in /, with relative paths.
            "root by name" => Grants::of_paths(Path::new("disk"), Path::new("s"), Path::new("config.toml")),
            _ => of(&folder.join("devices/disk"), folder),
        };
        let paths = vec![if what == "root by paths" { "/".into() } else { folder.join("more") }];
        (PrivilegeConfig { sandbox, paths, ..PrivilegeConfig::default() }, grants, true)
    }

    /// Does nothing unless another test has started it for that.
    #[test]
    fn the_other_process() {
        let Ok(asked) = std::env::var(TRY) else { return };
        let [level, what, folder] = <[&str; 3]>::try_from(asked.split(',').collect::<Vec<_>>()).unwrap();
        let folder = Path::new(folder);
        let sandbox = Level::ALL.into_iter().find(|known| known.name() == level).unwrap();
        let (mut config, grants, mut has_keys) = given_up(sandbox, what, folder);
        let given = |name: &str| std::env::var(name).ok();
        (config.user, config.group) = (given(USER), given(GROUP));
        has_keys &= given(NO_KEYS).is_none();
        // SAFETY: these calls read a struct and a list of ours. That one of them is not permitted is seen by the test.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 512, rlim_max: 1024 });
            libc::setgroups(2, [7, 8].as_ptr());
        }
        enter(&config, &grants, has_keys).unwrap();
        let result = attempt(what, folder);
        eprintln!("tried: {result}.");
    }

    /// Another process is at `level` and tries `what`; with these more in its environment.
    fn try_with(level: Level, what: &str, more: &[(&str, &str)]) -> Output {
        let folder = Folder::new();
        for name in ["devices", "sockets", "more", "config"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        for name in ["devices/disk", "devices/other", "config/config.toml"] {
            fs::write(folder.join(name), "").unwrap();
        }
        Command::new(std::env::current_exe().unwrap())
            .args(["privilege::tests::the_other_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(TRY, format!("{},{what},{}", level.name(), folder.path().display()))
            .envs(more.iter().copied())
            .current_dir("/")
            .output()
            .unwrap()
    }

    fn try_out(level: Level, what: &str) -> Output {
        try_with(level, what, &[])
    }

    /// The result of the attempt, as printed.
    fn tried(output: &Output) -> String {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let said = stderr.lines().find_map(|line| line.split_once("tried: ")?.1.strip_suffix('.'));
        said.unwrap_or_else(|| panic!("{stderr}")).to_owned()
    }

    #[test]
    fn what_no_server_does_ends_the_process_and_says_the_call() {
        for (what, call) in [
            ("execve", "59 execve"),
            ("fork", "56 clone"),
            ("ptrace", "101 ptrace"),
            ("unshare", "272 unshare"),
            ("setuid", "105 setuid"),
            ("kill", "62 kill"),
            ("dumpable", "157 prctl"),
            ("packet", "41 socket"),
        ] {
            for level in [Level::Live, Level::Strict] {
                let output = try_out(level, what);
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(128 + libc::SIGSYS), "{what}: {stderr}");
                let sentence = "mqfq: the sandbox refused system call ";
                assert!(stderr.contains(sentence), "{what}: {stderr}");
                if cfg!(target_arch = "x86_64") {
                    assert!(stderr.contains(&format!("{sentence}{call}: the server ends")), "{what}: {stderr}");
                }
            }
        }
    }

    #[test]
    fn files_and_sockets_are_those_of_the_config_and_a_refusal_is_an_error() {
        let acces = libc::EACCES.to_string();
        for (what, live, strict) in [
            ("outside", acces.as_str(), acces.as_str()),
            ("device", "ok", "ok"),
            ("beside", "ok", &acces),
            ("paths", "ok", &acces),
            ("config", "ok", "ok"),
            ("save", "ok", &acces),
            ("inet", "ok", &acces),
            ("listen", "ok", &acces),
            ("thread", "ok", "ok"),
            // A device in /dev opens no way to others' names there.
            ("another device", "ok", &acces),
            ("new in dev", &acces, &acces),
            // Files in / open no way to everything, but for a server that asks for it.
            ("root", &acces, &acces),
            ("root by name", &acces, &acces),
            ("root by paths", "ok", "ok"),
        ] {
            if what == "new in dev" && !user::is_root() {
                continue;
            }
            for (level, expected) in [(Level::Off, "ok"), (Level::Live, live), (Level::Strict, strict)] {
                assert_eq!(tried(&try_out(level, what)), expected, "{what}, {}", level.name());
            }
        }
    }

    #[test]
    fn a_server_with_keys_or_a_sandbox_leaves_no_core_and_another_one_as_it_was_started() {
        for (level, has_keys, core) in [
            (Level::Off, false, "512 1024"),
            (Level::Off, true, "0 0"),
            (Level::Live, false, "0 0"),
            (Level::Live, true, "0 0"),
            (Level::Strict, false, "0 0"),
        ] {
            let more: &[_] = if has_keys { &[] } else { &[(NO_KEYS, "1")] };
            assert_eq!(tried(&try_with(level, "core", more)), core, "{}, keys: {has_keys}", level.name());
            // In a sandbox even the question is refused.
            if level == Level::Off {
                let expected = if has_keys { "0" } else { "1" };
                assert_eq!(tried(&try_with(level, "dumpable now", more)), expected, "keys: {has_keys}");
            }
        }
    }

    #[test]
    fn a_server_of_root_keeps_no_id_and_no_group_but_those_that_its_config_says() {
        if !user::is_root() {
            return eprintln!("skipped: only root can become another user");
        }
        let ids = |uid: u32, gid: u32, groups: &str| {
            let four = |id: u32| [id.to_string(), id.to_string(), id.to_string(), id.to_string()].join(" ");
            format!("Uid: {} Gid: {} Groups:{groups}", four(uid), four(gid))
        };
        for (more, expected) in [
            (&[][..], ids(0, 0, " 7 8")),
            (&[(USER, "4000000")], ids(4_000_000, 4_000_000, "")),
            (&[(GROUP, "4000001")], ids(0, 4_000_001, "")),
            (&[(USER, "4000000"), (GROUP, "4000001")], ids(4_000_000, 4_000_001, "")),
            (&[(USER, "nobody")], ids(65_534, 65_534, "")),
        ] {
            assert_eq!(tried(&try_with(Level::Off, "ids", more)), expected, "{more:?}");
        }
    }
}
