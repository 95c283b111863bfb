//! Which system calls does a server make? Those in this file; any other one ends the process.
//!
//! Two filters, of which the stricter answer counts:
//!
//! | filter | for | answer |
//! |---|---|---|
//! | calls that a server needs | any call that is not in [`CALLS`], or not with these arguments | SIGSYS: its number is written, and the process ends |
//! | calls that are refused | clone3, whose arguments no filter sees | ENOSYS: the C library takes clone |
//! | the same, `"strict"` | socket of another family than unix, bind, listen | EACCES: the change that wanted it fails |
//!
//! The list was found by running servers under strace(1) through start, all front ends, TLS, traces, changes, saving,
//! reloading, replacement and end, and has besides the calls that the C library and the runtime may choose instead
//! (stat for newfstatat, epoll_pwait for epoll_wait). Operations of a ring are not calls: rings are restricted by
//! themselves.

use crate::config::Level;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Calls with any arguments.
#[rustfmt::skip]
const CALLS: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk, libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise,
    libc::SYS_mincore, libc::SYS_msync, libc::SYS_mlock, libc::SYS_munlock, libc::SYS_memfd_create,
    libc::SYS_membarrier,
    // Threads, time, signals of its own.
    libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_get_robust_list, libc::SYS_rseq, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_restart_syscall, libc::SYS_sched_yield, libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity, libc::SYS_getcpu, libc::SYS_nanosleep, libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime, libc::SYS_clock_getres, libc::SYS_gettimeofday, libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending, libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // Rings, and waits for descriptors.
    libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll, libc::SYS_pselect6,
    libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_pidfd_open,
    // Files.
    libc::SYS_openat, libc::SYS_close, libc::SYS_close_range, libc::SYS_read, libc::SYS_write, libc::SYS_readv,
    libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2,
    libc::SYS_pwritev2, libc::SYS_lseek, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_fallocate,
    libc::SYS_ftruncate, libc::SYS_flock, libc::SYS_fcntl, libc::SYS_ioctl, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_pipe2, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs,
    libc::SYS_getdents64, libc::SYS_readlinkat, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_getcwd,
    libc::SYS_unlinkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_umask,
    libc::SYS_copy_file_range,
    // Sockets.
    libc::SYS_socketpair, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4, libc::SYS_connect,
    libc::SYS_shutdown, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendmmsg,
    libc::SYS_recvmmsg, libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt,
    // Identity and environment.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom, libc::SYS_prlimit64,
    libc::SYS_getrusage, libc::SYS_times,
];

/// Older names of these calls, which some machines have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLDER: &[libc::c_long] = &[
    libc::SYS_epoll_wait, libc::SYS_epoll_create, libc::SYS_poll, libc::SYS_select, libc::SYS_open, libc::SYS_stat,
    libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_unlink, libc::SYS_rename, libc::SYS_chmod,
    libc::SYS_dup2, libc::SYS_pipe, libc::SYS_eventfd, libc::SYS_arch_prctl, libc::SYS_time, libc::SYS_getrlimit,
    libc::SYS_setrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Families of sockets: those of front ends and the control plane, and netlink, by which the C library looks up the
/// addresses of this machine.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Operations of prctl that threads use: names of theirs and of memory, and the slack of timers.
const PRCTL: [libc::c_int; 4] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_SET_TIMERSLACK];

/// Namespaces of a new process or thread.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Argument `place`, of 32 bits, is to `value` as `how` says.
fn rule(place: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(place, SeccompCmpArgLen::Dword, how, value)?])
}

fn equal(place: u8, value: libc::c_int) -> Result<SeccompRule, seccompiler::BackendError> {
    rule(place, SeccompCmpOp::Eq, u64::from(value as u32))
}

/// Keeps all threads of this process from other calls.
///
/// # Errors
/// One sentence: the kernel takes no filters.
pub(super) fn restrict(level: Level) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot restrict system calls: {error}");
    let filters = filters(level).map_err(|error| failed(&error))?;
    report_refusals();
    filters.iter().try_for_each(|filter| seccompiler::apply_filter_all_threads(filter)).map_err(|error| failed(&error))
}

/// The filters, in the order of their installation: the last one forbids further ones.
fn filters(level: Level) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let mut needed: BTreeMap<i64, Vec<SeccompRule>> = CALLS.iter().chain(OLDER).map(|call| (*call, vec![])).collect();
    let families = FAMILIES.iter().map(|family| equal(0, *family)).collect::<Result<_, _>>()?;
    needed.insert(libc::SYS_socket, families);
    needed.insert(libc::SYS_prctl, PRCTL.iter().map(|option| equal(0, *option)).collect::<Result<_, _>>()?);
    // Signals to itself alone.
    let own = std::process::id() as libc::c_int;
    needed.insert(libc::SYS_kill, vec![equal(0, own)?]);
    needed.insert(libc::SYS_tgkill, vec![equal(0, own)?]);
    // Threads that give way to others, each for itself.
    let itself = |place, value| SeccompCondition::new(place, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    let gives_way = SeccompRule::new(vec![itself(0, libc::PRIO_PROCESS as u64)?, itself(1, 0)?])?;
    needed.insert(libc::SYS_setpriority, vec![gives_way]);
    // Threads, and no processes.
    let (mask, thread) = ((NAMESPACES | libc::CLONE_THREAD) as u32, libc::CLONE_THREAD as u64);
    needed.insert(libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(mask.into()), thread)?]);
    // The other filter answers.
    needed.insert(libc::SYS_clone3, vec![]);
    let needed = SeccompFilter::new(needed, SeccompAction::Trap, SeccompAction::Allow, arch)?;

    let answered = |calls: BTreeMap<i64, Vec<SeccompRule>>, errno: libc::c_int| {
        SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)?.try_into()
    };
    let mut filters = vec![answered(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS)?];
    if level == Level::Strict {
        let elsewhere = vec![rule(0, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?];
        let sockets = [(libc::SYS_socket, elsewhere), (libc::SYS_bind, vec![]), (libc::SYS_listen, vec![])];
        filters.push(answered(sockets.into(), libc::EACCES)?);
    }
    filters.push(needed.try_into()?);
    Ok(filters)
}

/// Names of calls that an intruder would make, for people.
#[rustfmt::skip]
const NAMES: &[(libc::c_long, &str)] = &[
    (libc::SYS_execve, "execve"), (libc::SYS_execveat, "execveat"), (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_readv, "process_vm_readv"), (libc::SYS_process_vm_writev, "process_vm_writev"),
    (libc::SYS_clone, "clone"), (libc::SYS_socket, "socket"), (libc::SYS_kill, "kill"), (libc::SYS_prctl, "prctl"),
    (libc::SYS_mount, "mount"), (libc::SYS_unshare, "unshare"), (libc::SYS_setns, "setns"), (libc::SYS_bpf, "bpf"),
    (libc::SYS_keyctl, "keyctl"), (libc::SYS_setuid, "setuid"), (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"), (libc::SYS_perf_event_open, "perf_event_open"),
];

/// Has SIGSYS write the call's number and end the process with that signal's status.
fn report_refusals() {
    // SAFETY: all zeroes are a sigaction; the handler makes calls that are safe in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
}

/// Offset of the call's number in siginfo_t: after signal, errno, code and the call's address. Source:
/// include/uapi/asm-generic/siginfo.h, `_sigsys`.
const SIGINFO_CALL_BYTES: usize = 24;

extern "C" fn refused(_signal: libc::c_int, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    // SAFETY: the kernel gives a siginfo_t of 128 bytes, aligned to 8, of which SIGSYS fills these.
    let call = unsafe { info.cast::<u8>().add(SIGINFO_CALL_BYTES).cast::<libc::c_int>().read() };
    let mut digits = [0; 10];
    let mut first = digits.len();
    let mut left = call.unsigned_abs();
    loop {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let name = NAMES.iter().find(|(known, _)| *known == libc::c_long::from(call)).map_or("", |(_, name)| name);
    let parts: [&[u8]; 5] =
        [b"mqfq: the sandbox refused system call ", &digits[first..], b" ", name.as_bytes(), b": the server ends\n"];
    for part in parts {
        // SAFETY: write and _exit may be called in a handler; the bytes are there for the call.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: as above.
    unsafe { libc::_exit(128 + libc::SIGSYS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of the loaded filters to a call, by the kernel's rule: the strictest one counts. Source: seccomp(2),
    /// "Return values"; the instructions are those that `seccompiler` writes.
    fn answer(filters: &[BpfProgram], call: u32, arguments: [u64; 6]) -> u32 {
        let arch = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
        let mut data = [call, arch, 0, 0].map(u32::to_ne_bytes).concat();
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let of = |program: &BpfProgram| {
            let (mut accumulator, mut at) = (0u32, 0);
            loop {
                let instruction = &program[at];
                let (k, [yes, no]) = (instruction.k, [instruction.jt, instruction.jf].map(usize::from));
                at += 1;
                let is_so = match instruction.code {
                    0x06 => return k,
                    0x20 => {
                        let from = k as usize;
                        accumulator = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                        continue;
                    }
                    0x54 => {
                        accumulator &= k;
                        continue;
                    }
                    0x05 => {
                        at += k as usize;
                        continue;
                    }
                    0x15 => accumulator == k,
                    0x25 => accumulator > k,
                    0x35 => accumulator >= k,
                    other => panic!("no instruction of these filters: {other:#x}"),
                };
                at += if is_so { yes } else { no };
            }
        };
        filters.iter().map(of).min().unwrap()
    }

    const ALLOWED: u32 = 0x7fff_0000;
    const ENDS: u32 = 0x0003_0000;
    const FAILS: u32 = 0x0005_0000;

    /// A number above those of all calls.
    const CALLS_END: u32 = 1024;

    /// Calls that are allowed whatever their arguments, by number. A change of the list of calls is a change of this
    /// one too.
    #[cfg(target_arch = "x86_64")]
    const AGREED: &str = "0-28 32-33 35 39 42-55 60 63 72-75 77 79 82 87 89-91 95-100 102 104 107-108 110 127-128 131 137-138 \
        149-150 158 160 186 201-204 213 217 219 228-233 257 262-264 267-271 273-274 281 283-286 288 290-293 \
        295-296 299 302 307 309 316 318-319 324 326-328 332 334 425-427 434 436 439 441";

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_filters_allow_the_calls_that_were_agreed_on_and_end_the_process_at_every_other() {
        for level in [Level::Live, Level::Strict] {
            let loaded = filters(level).unwrap();
            let answer = |call, arguments| answer(&loaded, call, arguments);
            let some = [[0; 6], [u64::MAX; 6]];
            let always = |answer_is: u32| {
                let is_so = |call: &u32| some.iter().all(|arguments| answer(*call, *arguments) == answer_is);
                (0..CALLS_END).filter(is_so).collect::<Vec<_>>()
            };
            let number = |text: &str| text.parse::<u32>().unwrap();
            let range = |text: &'static str| {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                number(first)..=number(last)
            };
            let mut agreed: Vec<u32> = AGREED.split_whitespace().flat_map(range).collect();
            let numbers = |calls: &[libc::c_long]| calls.iter().map(|call| *call as u32).collect::<Vec<_>>();
            let by_argument = numbers(&[
                libc::SYS_socket,
                libc::SYS_kill,
                libc::SYS_tgkill,
                libc::SYS_prctl,
                libc::SYS_clone,
                libc::SYS_setpriority,
            ]);
            let mut refused = numbers(&[libc::SYS_clone3]);
            if level == Level::Strict {
                let unbound = numbers(&[libc::SYS_bind, libc::SYS_listen]);
                agreed.retain(|call| !unbound.contains(call));
                refused.extend(unbound);
            }
            assert_eq!(always(ALLOWED), agreed, "{level:?}");
            let others = |call: &u32| !agreed.contains(call) && !refused.contains(call) && !by_argument.contains(call);
            for call in (0..CALLS_END).filter(others) {
                // With the bit of x32 as well.
                for call in [call, call | 0x4000_0000] {
                    assert!(some.iter().all(|arguments| answer(call, *arguments) == ENDS), "{level:?}: {call}");
                }
            }
            for call in refused {
                assert_eq!(answer(call, [0; 6]) & 0xffff_0000, FAILS, "{level:?}: {call}");
            }
        }
    }

    #[test]
    fn calls_that_depend_on_their_arguments_are_allowed_with_those_of_a_server_alone() {
        let own = u64::from(std::process::id());
        let acces = FAILS | libc::EACCES as u32;
        for level in [Level::Live, Level::Strict] {
            let loaded = filters(level).unwrap();
            let of =
                |call: libc::c_long, first: u64, second: u64| answer(&loaded, call as u32, [first, second, 0, 0, 0, 0]);
            let elsewhere = if level == Level::Strict { acces } else { ALLOWED };
            for family in 0..64 {
                let expected = match family as libc::c_int {
                    libc::AF_UNIX => ALLOWED,
                    libc::AF_INET | libc::AF_INET6 | libc::AF_NETLINK => elsewhere,
                    _ => ENDS,
                };
                assert_eq!(of(libc::SYS_socket, family, 0), expected, "{level:?}: family {family}");
            }
            let named = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_SET_TIMERSLACK];
            for option in (0..128).chain([libc::PR_SET_VMA, libc::PR_SET_PTRACER]) {
                let expected = if named.contains(&option) { ALLOWED } else { ENDS };
                assert_eq!(of(libc::SYS_prctl, option as u64, 0), expected, "{level:?}: option {option}");
            }
            for call in [libc::SYS_kill, libc::SYS_tgkill] {
                assert_eq!(of(call, own, 0), ALLOWED);
                for other in [0, 1, own + 1, u64::from(u32::MAX)] {
                    assert_eq!(of(call, other, 0), ENDS, "{level:?}: process {other}");
                }
            }
            for (which, who) in [(0, 0), (0, 1), (1, 0), (2, 0)] {
                let expected = if (which, who) == (0, 0) { ALLOWED } else { ENDS };
                assert_eq!(of(libc::SYS_setpriority, which, who), expected, "{level:?}: {which} {who}");
            }
            let thread = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND) as u64;
            assert_eq!(of(libc::SYS_clone, thread, 0), ALLOWED);
            assert_eq!(of(libc::SYS_clone, (libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0), ENDS);
            let namespaces = [
                libc::CLONE_NEWNS,
                libc::CLONE_NEWCGROUP,
                libc::CLONE_NEWUTS,
                libc::CLONE_NEWIPC,
                libc::CLONE_NEWUSER,
                libc::CLONE_NEWPID,
                libc::CLONE_NEWNET,
            ];
            for namespace in namespaces {
                assert_eq!(of(libc::SYS_clone, thread | namespace as u64, 0), ENDS, "{level:?}: {namespace:#x}");
            }
            assert_eq!(of(libc::SYS_clone3, 0, 0), FAILS | libc::ENOSYS as u32);
            for call in [libc::SYS_bind, libc::SYS_listen] {
                assert_eq!(of(call, 3, 0), elsewhere, "{level:?}: {call}");
            }
        }
    }
}
