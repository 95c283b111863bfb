//! Which system calls does a server make? Those below; any other one ends the process.
//!
//! Two filters, of which the stricter answer counts:
//!
//! | filter | for | answer |
//! |---|---|---|
//! | what a server needs | any call that is not in [`CALLS`], or not with these arguments | SIGSYS: its number is written, and the process ends |
//! | what may be asked for and is refused | clone3, whose arguments no filter sees | ENOSYS: the C library takes clone |
//! | the same, `"strict"` | socket of another family than unix, bind, listen | EACCES: the change that wanted it fails |
//!
//! The list was found by running servers under strace(1) through start, all front ends, TLS, traces, changes, saving,
//! reloading, replacement and end, and has besides what the C library and the runtime may choose instead (stat for
//! newfstatat, epoll_pwait for epoll_wait). What a ring does is no system call: rings have restrictions of their own.

use super::Level;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Of any arguments.
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
    // Rings, and those who wait for descriptors.
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
    // Who and where.
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid,
    libc::SYS_getegid, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom, libc::SYS_prlimit64,
    libc::SYS_getrusage, libc::SYS_times,
];

/// The same by their older names, which some machines have.
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

/// Families of sockets: those of front ends and the control plane, and netlink, by which the C library looks up which
/// addresses this machine has.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// What threads do with prctl: names of theirs and of memory, and the slack of timers.
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

/// From now on no thread of this process makes other calls.
///
/// # Errors
/// One sentence: the kernel takes no filters.
pub(super) fn restrict(level: Level) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot restrict system calls: {error}");
    let filters = filters(level).map_err(|error| failed(&error))?;
    report_refusals();
    filters.iter().try_for_each(|filter| seccompiler::apply_filter_all_threads(filter)).map_err(|error| failed(&error))
}

/// In the order in which they are installed: the last one allows no more of it.
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

/// Names of calls that somebody who is not the server would make, for people.
#[rustfmt::skip]
const NAMES: &[(libc::c_long, &str)] = &[
    (libc::SYS_execve, "execve"), (libc::SYS_execveat, "execveat"), (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_readv, "process_vm_readv"), (libc::SYS_process_vm_writev, "process_vm_writev"),
    (libc::SYS_clone, "clone"), (libc::SYS_socket, "socket"), (libc::SYS_kill, "kill"), (libc::SYS_prctl, "prctl"),
    (libc::SYS_mount, "mount"), (libc::SYS_unshare, "unshare"), (libc::SYS_setns, "setns"), (libc::SYS_bpf, "bpf"),
    (libc::SYS_keyctl, "keyctl"), (libc::SYS_setuid, "setuid"), (libc::SYS_chroot, "chroot"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"), (libc::SYS_perf_event_open, "perf_event_open"),
];

/// Has SIGSYS say which call it was, and end the process with the status of that signal.
fn report_refusals() {
    // SAFETY: all zeroes are a sigaction; the handler makes calls that are safe in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut());
    }
}

/// Where siginfo_t has the number of the call: after signal, errno, code and the call's address. Source:
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
