//! Clients of other projects, driven from tables: nbdcopy, nbdkit's filters over its plugin `nbd`, fio.
//!
//! Each case starts its own server: ours, or nbdkit's `memory` as the control.

use super::stand_in::wait_until;
use super::{Outcome, Server, Suite};
use mqfq_testing::arg;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of an export and of the pattern that is copied.
const SIZE_BYTES: usize = 8 << 20;

/// A server of this case with two exports, or two servers with one each.
struct Served {
    children: Vec<Child>,
    sockets: [PathBuf; 2],
}

impl Served {
    fn start(server: &Server) -> Result<Served, String> {
        let sockets = ["a.sock", "b.sock"].map(|name| server.folder.join(name));
        let mut served = Served { children: Vec::new(), sockets: sockets.clone() };
        let mut start = |command: &mut Command| {
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(server.open_log()?).spawn();
            served.children.push(child.map_err(|error| format!("{command:?}: {error}"))?);
            Ok::<_, String>(())
        };
        match &server.program {
            Some(program) => {
                let file = server.folder.join("exports.toml");
                let size_bytes = SIZE_BYTES;
                let export = |at: usize| {
                    format!(
                        "[device.d{at}]\nkind = \"memory\"\nsize = {size_bytes}\n\
                         [export.e{at}]\ndevice = \"d{at}\"\ntenant = \"t\"\nsize = {size_bytes}\nnbd = \"unix:{}\"\n",
                        sockets[at].display()
                    )
                };
                let text = format!("[server]\nworkers = 2\npin = false\n[tenant.t]\n{}{}", export(0), export(1));
                std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
                start(Command::new(program).arg("serve").arg(&file))?;
                server.note_served();
            }
            None => {
                for socket in &sockets {
                    let size_bytes = SIZE_BYTES.to_string();
                    start(Command::new("nbdkit").args(["-f", "-U", arg(socket), "memory", &size_bytes]))?;
                }
            }
        }
        if !wait_until(|| sockets.iter().all(|socket| UnixStream::connect(socket).is_ok())) {
            return Err("a server does not listen".into());
        }
        Ok(served)
    }

    /// URI of one of the two exports, with the name that our server has for it; nbdkit takes any name.
    fn uri(&self, at: usize) -> String {
        format!("nbd+unix:///e{at}?socket={}", self.sockets[at].display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

fn passed(is_good: bool) -> Outcome {
    if is_good { Outcome::Passed } else { Outcome::Failed }
}

fn equal(one: &Path, other: &Path) -> Result<bool, String> {
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    Ok(read(one)? == read(other)?)
}

/// A file in which holes, zeroes and data take turns, so that `--sparse` and `--allocated` have work.
fn holey(server: &Server, name: &str) -> PathBuf {
    let path = server.folder.patterned_file(name, SIZE_BYTES, 7);
    let mut bytes = std::fs::read(&path).expect("just written");
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        bytes[at..at + (300 << 10)].fill(0);
    }
    std::fs::write(&path, bytes).expect("just written");
    path
}

/// nbdcopy in every combination of direction, connections, request size and options.
pub struct Copies {
    /// Every 41st.
    pub is_short: bool,
}

const DIRECTIONS: &[&str] = &["in", "out", "across", "in-twice", "over", "same-server", "round"];
const CONNECTIONS: &[&str] = &["1", "2", "8"];
const REQUEST_SIZES: &[&str] = &["4096", "65536", "262144", "1048576"];
const COPY_OPTIONS: &[&str] = &[
    "--requests=1",
    "--requests=64",
    "--sparse=0",
    "--allocated",
    "--synchronous",
    "--flush --sparse=4096",
    "--no-extents --flush",
];

impl Suite for Copies {
    fn name(&self) -> &'static str {
        "copies"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        let mut cases = Vec::new();
        for direction in DIRECTIONS {
            for connections in CONNECTIONS {
                for size in REQUEST_SIZES {
                    let case =
                        |options| format!("{direction} --connections={connections} --request-size={size} {options}");
                    cases.extend(COPY_OPTIONS.iter().map(case));
                }
            }
        }
        // 41 is prime to the tables' lengths, so the sample has each direction and each option.
        let step = if self.is_short { 41 } else { 1 };
        Ok(cases.into_iter().step_by(step).collect())
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let served = Served::start(server)?;
        let mut words = case.split(' ');
        let direction = words.next().unwrap_or_default();
        let options: Vec<&str> = words.collect();
        let source = holey(server, "source");
        let back = server.folder.file("back", SIZE_BYTES as u64);
        let copy = |from: &str, to: &str| server.succeeds(server.command("nbdcopy")?.args(&options).args([from, to]));
        let (a, b) = (served.uri(0), served.uri(1));
        let (source, sink) = (arg(&source), arg(&back));
        let steps: &[(&str, &str)] = match direction {
            "in" => &[(source, &a)],
            "out" => &[(source, &a), (&a, sink)],
            "across" => &[(source, &a), (&a, &b), (&b, sink)],
            "in-twice" => &[(source, &b), (source, &b)],
            // Zeroes of the source must cover older data.
            "over" => &[(sink, &a), (source, &a), (&a, sink)],
            "same-server" => &[(source, &a), (&a, &b)],
            _ => &[(source, &b), (&b, &a), (&a, &b), (&b, sink)],
        };
        for (from, to) in steps {
            if !copy(from, to)? {
                return Ok(Outcome::Failed);
            }
        }
        let last = steps.last().expect("not empty").1;
        if last != sink {
            // Another client reads back.
            let mut convert = server.command("qemu-img")?;
            convert.args(["convert", "-f", "raw", "-O", "raw", last, sink]);
            if !server.succeeds(&mut convert)? {
                return Ok(Outcome::Failed);
            }
        }
        Ok(passed(equal(Path::new(source), Path::new(sink))?))
    }
}

/// Filters of nbdkit over its plugin `nbd`, with what each needs.
const FILTERS: &[(&str, &[&str])] = &[
    ("blocksize", &["minblock=4096", "maxlen=64k"]),
    ("blocksize-policy", &["blocksize-minimum=512", "blocksize-preferred=4096"]),
    ("cache", &["cache=writethrough"]),
    ("cacheextents", &[]),
    ("cow", &[]),
    ("delay", &["delay-read=1ms", "delay-write=1ms"]),
    ("error", &["error-rate=0%"]),
    ("exitlast", &[]),
    ("exitwhen", &[]),
    ("exportname", &["exportname-strict=false"]),
    ("fua", &["fuamode=emulate"]),
    ("ip", &["allow=all"]),
    ("limit", &["limit=8"]),
    ("log", &["logfile=/dev/null"]),
    ("multi-conn", &["multi-conn-mode=plugin"]),
    ("nocache", &["cachemode=emulate"]),
    ("noextents", &[]),
    ("nofilter", &[]),
    ("noparallel", &["serialize=requests"]),
    ("nozero", &["zeromode=emulate"]),
    ("offset", &["offset=0"]),
    ("protect", &[]),
    ("rate", &["rate=1G"]),
    ("readahead", &[]),
    ("retry", &["retries=1"]),
    ("retry-request", &["retry-request-retries=1"]),
    ("scan", &[]),
    ("stats", &["statsfile=/dev/null"]),
    ("swab", &["swab-bits=16"]),
    ("tls-fallback", &[]),
    ("truncate", &["truncate=8388608"]),
];

/// Copies in and out through each filter.
pub struct Filters {
    /// Every fifth.
    pub is_short: bool,
}

impl Suite for Filters {
    fn name(&self) -> &'static str {
        "filters"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        let step = if self.is_short { 5 } else { 1 };
        Ok(FILTERS.iter().map(|(name, _)| name.to_string()).step_by(step).collect())
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let served = Served::start(server)?;
        let (_, parameters) = FILTERS.iter().find(|(name, _)| *name == case).ok_or(format!("no filter {case}"))?;
        let source = server.folder.patterned_file("source", SIZE_BYTES, 3);
        let back = server.folder.file("back", SIZE_BYTES as u64);
        // One server for both copies: some filters keep what was written.
        let script = format!("nbdcopy '{}' \"$uri\" && nbdcopy \"$uri\" '{}'", source.display(), back.display());
        // The real program: this is the client, not the server under test.
        let mut nbdkit = server.command("/usr/bin/nbdkit")?;
        nbdkit.args(["-U", "-", &format!("--filter={case}"), "nbd"]);
        nbdkit.arg(format!("uri={}", served.uri(0))).arg("shared=true").args(*parameters).args(["--run", &script]);
        // The filter `exitlast` ends nbdkit when the first copy has disconnected, with the status of a signal.
        let is_good = match case {
            "exitlast" => {
                nbdkit.env_remove(super::stand_in::SERVER);
                let script = format!("nbdcopy '{}' \"$uri\"", source.display());
                let mut nbdkit = server.command("/usr/bin/nbdkit")?;
                nbdkit.args([
                    "-U",
                    "-",
                    "--filter=exitlast",
                    "nbd",
                    &format!("uri={}", served.uri(0)),
                    "--run",
                    &script,
                ]);
                let _ = server.succeeds(&mut nbdkit)?;
                server.succeeds(server.command("nbdcopy")?.args([&served.uri(0), arg(&back)]))?
            }
            // Without TLS this filter shows a disk that says so, and none of the bytes behind it.
            "tls-fallback" => {
                let script = "nbdinfo --size \"$uri\"";
                let mut nbdkit = server.command("/usr/bin/nbdkit")?;
                nbdkit.args(["-U", "-", "--tls=on", "--tls-psk=/dev/null", "--filter=tls-fallback", "nbd"]);
                nbdkit.arg(format!("uri={}", served.uri(0))).args(["--run", script]);
                return Ok(passed(server.succeeds(&mut nbdkit)?));
            }
            _ => server.succeeds(&mut nbdkit)?,
        };
        Ok(passed(is_good && equal(&source, &back)?))
    }
}

/// Verify jobs.
pub struct Fio {
    /// Every seventh.
    pub is_short: bool,
}

impl Suite for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn cases(&self) -> Result<Vec<String>, String> {
        let mut cases = Vec::new();
        for pattern in ["write", "randwrite", "randrw"] {
            for size in ["--bs=4k", "--bs=64k", "--bs=1m", "--bsrange=4k-256k"] {
                for depth in ["1", "32"] {
                    cases.push(format!("--rw={pattern} {size} --iodepth={depth}"));
                }
            }
        }
        let step = if self.is_short { 7 } else { 1 };
        Ok(cases.into_iter().step_by(step).collect())
    }

    fn run(&self, case: &str, server: &Server) -> Result<Outcome, String> {
        let served = Served::start(server)?;
        let mut fio = server.command("fio")?;
        fio.current_dir(server.folder.path()).args(["--name=v", "--ioengine=nbd", "--verify=crc32c", "--do_verify=1"]);
        fio.args([
            "--verify_fatal=1",
            "--randseed=1",
            &format!("--size={SIZE_BYTES}"),
            &format!("--uri={}", served.uri(0)),
        ]);
        Ok(passed(server.succeeds(fio.args(case.split(' ')))?))
    }
}
