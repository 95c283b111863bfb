//! A Linux kernel in a QEMU guest, to run the project under, or inside, a kernel other than this machine's.
//!
//! ```text
//!   kernel.sh ──▶ kernel and modules, kept per machine      a case: modules, a job (a shell script), more of a machine
//!                        └──▶ initramfs.sh ──▶ QEMU ◀──────────┘
//!                                               └──▶ lines of its console ──▶ Outcome: rows, faults, kernel's complaints
//! ```
//! The guest's root is this machine's own, which it cannot write: the job runs fio, mkfs or `mqfq` itself as
//! `host PROGRAM ...`. Nothing is installed on this machine but QEMU and a busybox, and no KVM is needed.
//!
//! | [`Time`] | is good for | is not good for |
//! |---|---|---|
//! | `Threads`: each virtual CPU is a thread of this machine | races, kills, soaks | any number of a clock |
//! | `Even`: as `Instructions`, and virtual CPUs advance together | shares of CPU time between programs | absolute costs: a kernel path takes some 16 times as long beside work |
//! | `Instructions`: guest time is counted instructions | cost per request, shares, latencies of modelled devices; the same within some percent on any machine, however busy | races: one virtual CPU runs at a time |
//!
//! The console speaks in lines: `GUEST-READY`, `RESULT {json}` for each row, `GUEST-FAULT sentence`, `GUEST-KERNEL
//! line` for what the kernel complains of, `GUEST-STATUS n` for the job's end, `GUEST-END`. At `GUEST-CUT` the machine
//! loses its power there and then. The scripts are in `testing/guest`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Modules that each guest needs to reach this machine's files.
const MODULES: &[&str] = &["virtio_pci", "9pnet_virtio", "9p"];

/// Source of guest time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// This machine's: virtual CPUs run as threads beside each other.
    Threads,
    /// Instructions, 2 ns each; time in which all virtual CPUs are idle is skipped.
    Instructions,
    /// Instructions, 1 ns each, and no virtual CPU stands for over 0.2 ms while others run: for shares of CPU time.
    /// Takes QEMU 10 (`qemu.sh`).
    Even,
}

/// A machine and what it does.
pub struct Guest<'a> {
    /// Name of its files and its log.
    pub name: &'a str,
    /// Series of the kernel, as `kernel.sh` takes it.
    pub kernel: &'a str,
    /// Source of guest time.
    pub time: Time,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory, MiB. It is shared with other processes (`memory-backend-memfd`), as vhost-user wants it.
    pub memory_mib: u32,
    /// Kernel modules, with those that they need, for the job's `modprobe`.
    pub modules: &'a [&'a str],
    /// A shell script; `testing/guest/library` stands before it. The case's folder is `/share`, for a program of this
    /// machine `/run/share`.
    pub job: &'a str,
    /// More of a machine, in QEMU's words.
    pub arguments: &'a [String],
    /// Time after which it is ended.
    pub patience: Duration,
}

/// Result of a guest's run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Rows of the report, JSON objects.
    pub rows: Vec<String>,
    /// Sentences: what the job found wrong, or why there is no end of it.
    pub faults: Vec<String>,
    /// Lines in which the kernel complains.
    pub complaints: Vec<String>,
    /// `uname -r`. Empty: it did not start.
    pub kernel: String,
    /// Time from the machine's start to the job's, in guest seconds.
    pub ready_s: f64,
    /// The job asked for its power to be cut, and it was.
    pub is_cut: bool,
}

impl Outcome {
    /// Takes a line of the console. Returns whether it was for the harness.
    fn take(&mut self, line: &str) -> bool {
        self.is_cut |= line == "GUEST-CUT";
        let Some((word, rest)) = line.split_once(' ') else { return line == "GUEST-END" || line == "GUEST-CUT" };
        match word {
            "GUEST-READY" => {
                let mut words = rest.split(' ');
                self.ready_s = words.next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
                self.kernel = words.next().unwrap_or_default().to_owned();
            }
            "RESULT" => self.rows.push(rest.to_owned()),
            "GUEST-FAULT" => self.faults.push(rest.to_owned()),
            "GUEST-KERNEL" => self.complaints.push(rest.to_owned()),
            "GUEST-STATUS" if rest == "0" => {}
            "GUEST-STATUS" if self.faults.is_empty() => self.faults.push(format!("the job ended with status {rest}")),
            "GUEST-STATUS" | "GUEST-END" => {}
            _ => return false,
        }
        true
    }
}

/// Where kernels are kept, for all checkouts of a user: `$MQFQ_GUEST_CACHE`, else `mqfq/guest` among the user's caches.
///
/// # Errors
/// One sentence if there is no such folder.
pub fn cache() -> Result<PathBuf, String> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    of("MQFQ_GUEST_CACHE")
        .or_else(|| Some(of("XDG_CACHE_HOME")?.join("mqfq/guest")))
        .or_else(|| Some(of("HOME")?.join(".cache/mqfq/guest")))
        .ok_or_else(|| {
            "there is no folder to keep kernels in: HOME, XDG_CACHE_HOME and MQFQ_GUEST_CACHE are not set".into()
        })
}

/// The folder of a kernel of this series, fetched the first time.
///
/// # Errors
/// One sentence: what could not be fetched.
pub fn fetch(series: &str, watch: &mut dyn FnMut(&str)) -> Result<PathBuf, String> {
    let kernel = cache()?.join(series);
    if !kernel.join("version").exists() {
        watch(&format!("fetching a kernel of series {series} into {}", kernel.display()));
        bash("kernel.sh", &[], &[series, &kernel.to_string_lossy()])?;
    }
    Ok(kernel)
}

/// Builds the kernel module of `source` for a guest's kernel, and leaves `mqfq.ko` in `out`. The kernel's headers
/// are fetched the first time and kept beside the kernel.
///
/// # Errors
/// One sentence: what could not be fetched or compiled.
pub fn build_module(series: &str, source: &Path, out: &Path, watch: &mut dyn FnMut(&str)) -> Result<(), String> {
    let kernel = fetch(series, watch)?;
    watch(&format!("building {} for kernel {series}", source.display()));
    bash("module.sh", &[], &[series, &kernel.to_string_lossy(), &source.to_string_lossy(), &out.to_string_lossy()])
}

/// Runs `cases/NAME.sh`, if the case has such a script: it leaves what the job needs in `share`. NAME-long has that of
/// NAME.
///
/// # Errors
/// One sentence: what could not be fetched or compiled.
pub fn prepare(name: &str, share: &Path) -> Result<(), String> {
    let script = format!("cases/{}.sh", name.trim_end_matches("-long"));
    if scripts().join(&script).exists() { bash(&script, &[&cache()?, share], &[]) } else { Ok(()) }
}

/// Says of which file an error is.
fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

fn bash(script: &str, arguments: &[&Path], words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("bash");
    command.arg(scripts().join(script)).args(arguments).args(words);
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run bash: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{script} failed ({}): {}", output.status, text.trim().lines().last().unwrap_or_default()))
}

/// Socket of QEMU's monitor, in the case's folder.
const MONITOR: &str = "monitor";

/// Lets no virtual CPU run for more than 0.2 ms on end, by a timer that raises no interrupt in the guest. It is begun
/// when the guest is ready: a boot takes several times as long with it.
fn take_turns(monitor: &Path) -> Result<(), String> {
    command(monitor, "object_add filter-buffer,id=turn,netdev=turns,queue=rx,interval=200")
}

/// QEMU does `words`, a command of its monitor, which listens on the socket `monitor`.
///
/// # Errors
/// One sentence: it does not answer, or with an error.
pub fn command(monitor: &Path, words: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("QEMU's monitor: {error}");
    let mut monitor = UnixStream::connect(monitor).map_err(failed)?;
    monitor.set_read_timeout(Some(Duration::from_secs(60))).map_err(failed)?;
    writeln!(monitor, "{words}").map_err(failed)?;
    // The prompt comes once at the beginning, and once when the command is done.
    let (mut text, mut byte) = (String::new(), [0]);
    while text.matches("(qemu)").count() < 2 {
        monitor.read_exact(&mut byte).map_err(failed)?;
        text.push(char::from(byte[0]));
    }
    if text.contains("Error") { Err(format!("QEMU refuses {words:?}: {}", text.trim())) } else { Ok(()) }
}

/// The folder of a QEMU that lets virtual CPUs advance together, fetched the first time.
fn even_qemu(watch: &mut dyn FnMut(&str)) -> Result<PathBuf, String> {
    let folder = cache()?.join("qemu-10");
    if !folder.join("complete").exists() {
        watch(&format!("fetching QEMU 10 into {}", folder.display()));
        bash("qemu.sh", &[&folder], &[])?;
    }
    Ok(folder)
}

impl Guest<'_> {
    /// Starts the machine and reads its console until it is off. Each line goes to the log in `folder`, each line that
    /// is no harness line to `watch` too, so that a person sees it work. Kernel and modules are fetched the first time.
    ///
    /// # Errors
    /// One sentence if there was no machine: no kernel, no QEMU. What went wrong inside is in the [`Outcome`].
    pub fn run(&self, folder: &Path, watch: &mut dyn FnMut(&str)) -> Result<Outcome, String> {
        let kernel = fetch(self.kernel, watch)?;
        let share = folder.join("share");
        std::fs::create_dir_all(&share).map_err(at(&share))?;
        let library = scripts().join("library");
        let library = std::fs::read_to_string(&library).map_err(at(&library))?;
        let job = share.join("job.sh");
        std::fs::write(&job, format!("{library}\n{}", self.job)).map_err(at(&job))?;
        let initramfs = folder.join("initramfs");
        let modules: Vec<&str> = MODULES.iter().chain(self.modules).copied().collect();
        bash("initramfs.sh", &[&kernel, &initramfs, &scripts().join("init")], &modules)?;
        let qemu = match self.time {
            Time::Even => Some(even_qemu(watch)?),
            // Under QEMU 7.2 the second CPU of Linux 6.1.192 never comes up.
            Time::Instructions if self.kernel == "6.1" => Some(even_qemu(watch)?),
            Time::Threads | Time::Instructions => None,
        };
        let log = folder.join("console.log");
        let mut log = std::fs::File::create(&log).map_err(at(&log))?;
        let mut qemu = self.qemu(qemu.as_deref(), &folder.join(MONITOR), &kernel, &initramfs, &share);
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start qemu-system-x86_64: {error}"))?;
        let (console, errors) = (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let mut outcome = Outcome::default();
        let mut ended = false;
        let turns = (self.time == Time::Even).then(|| folder.join(MONITOR));
        let died = std::thread::scope(|scope| {
            let errors = scope.spawn(move || std::io::read_to_string(errors).unwrap_or_default());
            let (over, watchdog) = std::sync::mpsc::channel::<()>();
            let (pid, deadline) = (child.id(), Instant::now() + self.patience);
            let late = scope.spawn(move || {
                let waited = watchdog.recv_timeout(deadline.saturating_duration_since(Instant::now()));
                let late = matches!(waited, Err(std::sync::mpsc::RecvTimeoutError::Timeout));
                if late {
                    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
                }
                late
            });
            for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end_matches('\r');
                let _ = writeln!(log, "{line}");
                ended |= line.starts_with("GUEST-END");
                if let Some(Err(sentence)) =
                    turns.as_ref().filter(|_| line.starts_with("GUEST-READY")).map(|at| take_turns(at))
                {
                    watch(&sentence);
                    outcome.faults.push(sentence);
                }
                if !outcome.take(line) {
                    watch(line);
                }
                if outcome.is_cut {
                    let _ = child.kill();
                    break;
                }
            }
            drop(over);
            let status = child.wait();
            let late = late.join().unwrap_or(false);
            let text = errors.join().unwrap_or_default();
            (late, status, text)
        });
        let (late, status, text) = died;
        if late {
            outcome.faults.push(format!("it had not ended after {} s and was killed", self.patience.as_secs()));
        } else if !ended && !outcome.is_cut {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            let said = text.trim().lines().last().unwrap_or("the console's log says more").to_owned();
            outcome.faults.push(format!("the machine went off before its job had ended ({status}): {said}"));
        }
        Ok(outcome)
    }

    fn qemu(&self, unpacked: Option<&Path>, monitor: &Path, kernel: &Path, initramfs: &Path, share: &Path) -> Command {
        let program = unpacked.map(|folder| folder.join("usr/bin/qemu-system-x86_64"));
        let mut qemu = Command::new(program.as_deref().unwrap_or(Path::new("qemu-system-x86_64")));
        if let Some(data) = unpacked.map(|folder| folder.join("usr/share/qemu")).filter(|data| data.exists()) {
            qemu.arg("-L").arg(data).args(["-L", "/usr/share/seabios"]);
        }
        match self.time {
            Time::Even => qemu
                .args(["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"])
                .args(["-netdev", "hubport,id=turns,hubid=0"])
                .args(["-chardev", &format!("socket,id=monitor,path={},server=on,wait=off", monitor.display())])
                .args(["-mon", "chardev=monitor"]),
            Time::Threads => qemu.args(["-accel", "tcg,thread=multi"]),
            Time::Instructions => qemu.args(["-accel", "tcg,thread=single", "-icount", "shift=1,sleep=off"]),
        };
        let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", self.memory_mib);
        qemu.args(["-machine", "q35,memory-backend=memory", "-object", &memory])
            .args(["-m", &format!("{}M", self.memory_mib), "-smp", &self.cpus.to_string(), "-cpu", "max"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]);
        qemu.arg("-kernel").arg(kernel.join("vmlinuz")).arg("-initrd").arg(initramfs);
        // Where a virtual CPU waits for this machine's, nothing stalls for longer than this.
        let stalls = "rcupdate.rcu_cpu_stall_timeout=300";
        let append =
            format!("console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check {stalls}");
        qemu.args(["-append", &append]);
        let files = |path: &Path, tag: &str, more: &str| {
            let path = path.to_string_lossy().replace(',', ",,");
            format!("local,path={path},mount_tag={tag},security_model=none{more}")
        };
        qemu.args(["-virtfs", &files(Path::new("/"), "hostroot", ",readonly=on,multidevs=remap")]);
        qemu.args(["-virtfs", &files(share, "share", "")]).args(self.arguments);
        qemu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> (Outcome, Vec<String>) {
        let mut outcome = Outcome::default();
        let others = lines.iter().filter(|line| !outcome.take(line)).map(|line| (*line).to_owned()).collect();
        (outcome, others)
    }

    #[test]
    fn rows_and_faults_are_taken_from_a_console_and_the_rest_is_shown() {
        let (outcome, others) = of(&[
            "GUEST-READY 3.70 6.12.117+deb12-amd64 4",
            "RESULT {\"case\":\"a\"}",
            "mke2fs 1.47",
            "GUEST-KERNEL [    5.1] WARNING: CPU: 0",
            "GUEST-STATUS 0",
            "GUEST-END 5.62",
        ]);
        assert_eq!(outcome.rows, ["{\"case\":\"a\"}"]);
        assert_eq!((outcome.kernel.as_str(), outcome.ready_s), ("6.12.117+deb12-amd64", 3.7));
        assert_eq!(outcome.complaints, ["[    5.1] WARNING: CPU: 0"]);
        assert_eq!((outcome.faults, others), (vec![], vec!["mke2fs 1.47".to_owned()]));
    }

    #[test]
    fn a_job_asks_for_its_power_to_be_cut_by_a_line_of_its_own() {
        assert!(of(&["GUEST-CUT"]).0.is_cut);
        let (outcome, others) = of(&["after GUEST-CUT", "GUEST-CUT soon"]);
        assert_eq!((outcome.is_cut, others.len()), (false, 2));
    }

    #[test]
    fn a_job_that_fails_is_a_fault_once() {
        assert_eq!(of(&["GUEST-STATUS 3"]).0.faults, ["the job ended with status 3"]);
        let (outcome, _) = of(&["GUEST-FAULT no device came up", "GUEST-STATUS 1"]);
        assert_eq!(outcome.faults, ["no device came up"]);
    }
}
