//! Another process enters the sandbox, tries what is forbidden, and is refused or ended. It is this test's own binary,
//! which runs the one test that does what MQFQ_SANDBOX_TRY names.

use super::*;
use mqfq_testing::Folder;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

const TRY: &str = "MQFQ_SANDBOX_TRY";

/// `ok`, or the errno.
fn said(result: libc::c_long) -> String {
    if result >= 0 { "ok".to_owned() } else { io::Error::last_os_error().raw_os_error().unwrap_or(0).to_string() }
}

fn opened<T>(result: io::Result<T>) -> String {
    result.map_or_else(|error| error.raw_os_error().unwrap_or(0).to_string(), |_| "ok".to_owned())
}

/// What is tried, in `folder`.
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
            other => unreachable!("{other}"),
        }
    }
}

/// Does nothing unless another test has started it for that.
#[test]
fn the_other_process() {
    let Ok(asked) = std::env::var(TRY) else { return };
    let [level, what, folder] = <[&str; 3]>::try_from(asked.split(' ').collect::<Vec<_>>()).unwrap();
    let folder = Path::new(folder);
    let sandbox = Level::ALL.into_iter().find(|known| known.name() == level).unwrap();
    let grants =
        Grants::of_paths(&folder.join("devices/disk"), &folder.join("sockets/s"), &folder.join("config/config.toml"));
    let config = PrivilegeConfig { sandbox, paths: vec![folder.join("more")], ..PrivilegeConfig::default() };
    enter(&config, &grants, true).unwrap();
    let result = attempt(what, folder);
    eprintln!("tried: {result}.");
}

fn try_out(level: Level, what: &str) -> Output {
    let folder = Folder::new();
    for name in ["devices", "sockets", "more", "config"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    for name in ["devices/disk", "devices/other", "config/config.toml"] {
        fs::write(folder.join(name), "").unwrap();
    }
    Command::new(std::env::current_exe().unwrap())
        .args(["privilege::tests::the_other_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(TRY, format!("{} {what} {}", level.name(), folder.path().display()))
        .output()
        .unwrap()
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
    ] {
        for (level, expected) in [(Level::Off, "ok"), (Level::Live, live), (Level::Strict, strict)] {
            let output = try_out(level, what);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(stderr.contains(&format!("tried: {expected}.")), "{what}, {}: {stderr}", level.name());
        }
    }
}
