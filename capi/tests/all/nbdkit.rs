//! The filter in Debian's nbdkit: two exports under load.

use super::{compile, libraries, with_library};
use mqfq_testing::{Folder, arg, tools};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A server of a folder's socket.
struct Nbdkit(Child, PathBuf);

impl Nbdkit {
    fn start(folder: &Folder, words: &[&str]) -> Nbdkit {
        let socket = folder.join("socket");
        let _ = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-U"]).arg(&socket).args(["-P", arg(&folder.join("pid"))]).args(words);
        let mut child = command.env("LD_LIBRARY_PATH", folder.path()).spawn().expect("nbdkit starts");
        // Its file appears when it listens.
        while !folder.join("pid").exists() {
            assert!(child.try_wait().expect("it is ours").is_none(), "nbdkit ended: {words:?}");
            std::thread::yield_now();
        }
        let _ = std::fs::remove_file(folder.join("pid"));
        Nbdkit(child, socket)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection to an export, after the negotiation (protocol of NBD, NBD_OPT_EXPORT_NAME).
fn connect(server: &Nbdkit, export: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&server.1).expect("it listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // Fixed newstyle, no zeroes.
    let mut option = 3u32.to_be_bytes().to_vec();
    option.extend(b"IHAVEOPT");
    option.extend(1u32.to_be_bytes());
    option.extend((export.len() as u32).to_be_bytes());
    option.extend(export.as_bytes());
    stream.write_all(&option).expect("it reads");
    stream.read_exact(&mut [0; 10]).expect("a size and flags");
    stream
}

/// Reads 4 KiB at a time, 64 outstanding, until it is `over`; `each` hears of each reply.
fn load(stream: &mut UnixStream, over: &AtomicBool, each: impl Fn()) {
    let mut number = 0u64;
    let mut ask = |stream: &mut UnixStream| {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0; 4]);
        request.extend(number.to_be_bytes());
        request.extend((number % 1024 * 4096).to_be_bytes());
        request.extend(4096u32.to_be_bytes());
        number += 1;
        stream.write_all(&request).expect("it reads");
    };
    (0..64).for_each(|_| ask(stream));
    let mut reply = [0; 16 + 4096];
    while !over.load(SeqCst) {
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a reply without an error");
        each();
        ask(stream);
    }
}

/// Replies to two clients that always ask, from when both have some until there are `count` more. The server ends
/// before its connections do: nbdkit 1.32 may fail an assertion where one ends with replies under way.
fn counts(server: Nbdkit, count: u64) -> [u64; 2] {
    const SOME: u64 = 100;
    let (over, seen) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let counted = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut streams = ["alice", "bob"].map(|export| connect(&server, export));
    std::thread::scope(|scope| {
        for (at, stream) in streams.iter_mut().enumerate() {
            let (over, seen, counted) = (&over, &seen, &counted);
            scope.spawn(move || {
                // Also where this one fails, so that the other one ends.
                let _ends = mqfq_testing::SetAtEnd(over);
                load(stream, over, || {
                    seen[at].fetch_add(1, SeqCst);
                    if seen.iter().all(|seen| seen.load(SeqCst) > SOME) {
                        counted[at].fetch_add(1, SeqCst);
                        let all: u64 = counted.iter().map(|counted| counted.load(SeqCst)).sum();
                        over.fetch_or(all >= count, SeqCst);
                    }
                });
            });
        }
    });
    drop(server);
    counted.map(AtomicU64::into_inner)
}

/// The filter, built in a folder that has the library.
fn filter(folder: &Folder) -> String {
    let path = folder.join("nbdkit-mqfq-filter.so");
    let words = ["-D_GNU_SOURCE", "-shared", "-fPIC", "nbdkit/filter.c", "-L", arg(folder.path()), "-lmqfq"];
    compile("cc", &words, &path);
    format!("--filter={}", arg(&path))
}

/// A drive of 8 requests at a time, 10 ms each. More threads wait for it than have a turn in 100 ms, so that both
/// clients are backlogged also where they lack the CPU for a moment.
const DRIVE: [&str; 7] = [
    "--threads=64",
    "--filter=delay",
    "memory",
    "64M",
    "rdelay=10ms",
    "mqfq-weights=alice=300,bob=100",
    "mqfq-permits=8",
];

#[test]
fn exports_share_a_plugin_by_weight() {
    tools::need!("nbdkit");
    if !tools::require_file("/usr/include/nbdkit-filter.h") {
        return;
    }
    let folder = with_library();
    let filter = filter(&folder);
    let server = Nbdkit::start(&folder, &[&[&*filter], &DRIVE[..]].concat());
    let [alice, bob] = counts(server, 2000);
    let ratio = alice as f64 / bob as f64;
    println!("{alice} requests to {bob}, a ratio of {ratio:.3}");
    assert!((2.91..=3.09).contains(&ratio), "{alice} requests to {bob}: {ratio}");
    // Without a weight they are one tenant of two connections.
    let server = Nbdkit::start(&folder, &[&filter, "--filter=delay", "memory", "64M", "rdelay=10ms"]);
    let [alice, bob] = counts(server, 600);
    assert!(alice > 150 && bob > 150, "{alice} requests to {bob}");
}

#[test]
fn a_filter_refuses_what_it_does_not_understand() {
    tools::need!("nbdkit");
    if !tools::require_file("/usr/include/nbdkit-filter.h") {
        return;
    }
    let folder = with_library();
    let filter = filter(&folder);
    for (wrong, sentence) in [
        ("mqfq-weights=alice", "EXPORT=WEIGHT,... is expected"),
        ("mqfq-weights=alice=0", "mqfq-weights: a number is out of range"),
        ("mqfq-weights=alice=x", "expected a number"),
        ("mqfq-permits=65536", "mqfq-permits: a number is out of range"),
    ] {
        let mut run = Command::new("timeout");
        run.args(["60", "nbdkit", "-f", "-U"]).arg(folder.join("socket")).args([&filter, "memory", "1M", wrong]);
        let output = run.env("LD_LIBRARY_PATH", folder.path()).stdout(Stdio::null()).output().expect("nbdkit runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(sentence), "{wrong}: {} {said}", output.status);
    }
}

/// Requests per second of two clients together in fio.
fn throughput(folder: &Folder, words: &[&str]) -> u64 {
    let server = Nbdkit::start(folder, words);
    let uri = |export: &str| format!("--uri=nbd+unix:///{export}?socket={}", arg(&server.1));
    let general = ["--output-format=terse", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=32"];
    let time = ["--size=32m", "--time_based", "--runtime=15", "--ramp_time=1"];
    let (alice, bob) = (uri("alice"), uri("bob"));
    let printed = tools::run_ok("fio", &[&general[..], &time, &["--name=alice", &alice, "--name=bob", &bob]].concat());
    let rows = printed.lines().filter(|line| line.starts_with("3;"));
    // Field 8 of the terse output: read IOPS.
    rows.map(|row| row.split(';').nth(7).and_then(|iops| iops.parse::<u64>().ok()).expect("a number")).sum()
}

#[test]
#[ignore = "a measurement; cargo test --release -p mqfq-c --test all -- --ignored --nocapture measured"]
fn measured_beside_no_filter_and_the_rate_filter() {
    let folder = with_library();
    let filter = filter(&folder);
    assert!(libraries().join("libmqfq.so").exists());
    let rows = [
        ("memory", vec!["memory", "64M"], vec![&*filter, "memory", "64M", "mqfq-weights=alice=300,bob=100"]),
        (
            "delay 20 ms",
            vec!["--filter=delay", "memory", "64M", "rdelay=20ms"],
            vec![&filter, "--filter=delay", "memory", "64M", "rdelay=20ms"],
        ),
        (
            "rate 200 Mbit/s",
            vec!["--filter=rate", "memory", "64M", "rate=200M"],
            vec![&filter, "--filter=rate", "memory", "64M", "rate=200M"],
        ),
    ];
    for (name, without, with) in rows {
        // In turn, so that a busy machine is busy for both; medians of three.
        let mut rounds: Vec<[u64; 2]> =
            (0..3).map(|_| [&without, &with].map(|words| throughput(&folder, words))).collect();
        let [without, with] = [0, 1].map(|at| {
            rounds.sort_by_key(|round| round[at]);
            rounds[1][at]
        });
        rounds.sort_by_key(|[without, with]| with * 1_000_000 / without);
        let part = rounds[1][1] as f64 / rounds[1][0] as f64;
        println!("{{\"plugin\": \"{name}\", \"without_iops\": {without}, \"with_iops\": {with}, \"part\": {part:.3}}}");
    }
}
