//! A pool over files: shares across backings, live changes under load, faults of one, restarts, upgrades, bad input.

use crate::client::{CMD_FLUSH, CMD_READ, Client, ENOSPC, Handshake, Request};
use crate::control::{ctl, refusal, said};
use crate::server::{Folder, Fuse, MIB, PATIENCE, Server, arg, load, mqfq, pattern};
use crate::why;
use mqfq_testing::tools::{self, need};
use mqfq_testing::{Random, SetAtEnd};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Reads that keep a drive busier than their clients, bytes.
const LARGE: u32 = 64 << 10;

/// A pool of a folder, and a tenant for each export.
const POOL: &str = "[server]
workers = 2
upgrade = \"unix:@/upgrade.sock\"
[control]
listen = \"unix:@/control.sock\"
[device.ssd]
kind = \"pool\"
folders = [\"@/images\"]
expert.depth = 4
[tenant.a]
weight = 300
[tenant.b]
";

fn export(name: &str, more: &str) -> String {
    let keys = format!("device = \"ssd\"\ntenant = \"{name}\"\nnbd = \"unix:@/{name}.sock\"\n");
    format!("[export.{name}]\n{keys}path = \"@/images/{name}\"\n{more}")
}

fn config() -> String {
    format!("{POOL}{}{}", export("a", ""), export("b", ""))
}

/// A folder with images of 2 MiB.
fn folder(images: &[&str]) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("images")).unwrap();
    images.iter().for_each(|image| make(&folder.join(&format!("images/{image}")), 2 * MIB));
    folder
}

fn make(path: &Path, length_bytes: u64) {
    File::create(path).unwrap().set_len(length_bytes).unwrap();
}

fn start() -> Server {
    Server::start_in(folder(&["a", "b", "c"]), &config())
}

fn bytes_at(server: &Server, image: &str, offset_bytes: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(server.join(&format!("images/{image}"))).unwrap().read_exact_at(&mut bytes, offset_bytes).unwrap();
    bytes
}

fn connect(server: &Server, export: &str) -> Client {
    Client::connect(&server.socket(export), export)
}

/// Requests that ended, by tenant.
fn ended(server: &mut Server) -> [f64; 2] {
    let report = server.report();
    let tenants = &report["devices"][0]["tenants"];
    ["a", "b"].map(|name| {
        let tenant = tenants.as_array().unwrap().iter().find(|tenant| tenant["name"] == name);
        tenant.unwrap()["requests"].as_f64().unwrap()
    })
}

#[test]
fn weights_hold_across_the_backings_of_a_pool() {
    // Drives that are slow, and clients that are not: both tenants wait all the time.
    need!("qemu-storage-daemon");
    let folder = folder(&["a", "b"]);
    let _slow = ["images/a", "images/b"].map(|name| Fuse::slow(&folder, name, 2 * MIB));
    let mut server = Server::start_in(folder, &config());
    let (is_over, read) = (AtomicBool::new(false), Request { length_bytes: LARGE, ..Request::of(CMD_READ) });
    let sockets = ["a", "b"].map(|name| (server.socket(name), name));
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        for (socket, name) in &sockets {
            // On both workers.
            for _ in 0..2 {
                scope.spawn(|| read_all_the_time(socket, name, read, &is_over));
            }
        }
        let both = |server: &mut Server, least: f64| loop {
            let now = ended(server);
            if now.iter().all(|ended| *ended >= least) {
                return now;
            }
        };
        let before = both(&mut server, 40.0);
        let after = both(&mut server, before[1] + 150.0);
        let ratio = (after[0] - before[0]) / (after[1] - before[1]);
        // Where each file had a scheduler of its own, it is 1.
        assert!((2.7..=3.3).contains(&ratio), "{ratio}: {before:?} to {after:?}");
    });
    server.terminate();
}

fn read_all_the_time(socket: &Path, name: &str, read: Request, is_over: &AtomicBool) {
    let mut client = Client::connect(socket, name);
    let mut data = [0; LARGE as usize];
    (0..32).for_each(|_| client.send(read, &[]).unwrap());
    while !is_over.load(Relaxed) {
        assert_eq!(client.reply().expect("an answer").error, 0);
        std::io::Read::read_exact(&mut client.stream, &mut data).unwrap();
        client.send(read, &[]).unwrap();
    }
}

#[test]
fn i17_exports_reach_their_own_backings_through_live_changes_restart_and_upgrade() {
    let server = start();
    let mut clients = ["a", "b"].map(|name| connect(&server, name));
    for (client, salt) in clients.iter_mut().zip([1, 2]) {
        assert_eq!(client.size_bytes, 2 * MIB);
        client.write(4096, &pattern(8192, salt)).unwrap();
        client.flush().unwrap();
    }
    let holds = |server: &Server, image: &str, salt: u8| {
        let bytes = bytes_at(server, image, 0, 16384);
        assert!(bytes[4096..12288] == pattern(8192, salt), "{image}");
        assert!(bytes[..4096].iter().chain(&bytes[12288..]).all(|byte| *byte == 0), "{image}: guards");
    };
    holds(&server, "a", 1);
    holds(&server, "b", 2);
    // A third comes, and the first goes, under load of the second.
    let is_over = AtomicBool::new(false);
    let read = Request { length_bytes: 4096, ..Request::of(CMD_READ) };
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| load(&server, "b", 8, read, &is_over));
        let nbd = format!("unix:{}", server.socket("c").display());
        let image = server.join("images/c");
        let add = ["export", "add", "c", "--device", "ssd", "--tenant", "b", "--path", arg(&image), "--nbd", &nbd];
        said(&ctl(&server, &add));
        let mut c = connect(&server, "c");
        c.write(4096, &pattern(8192, 3)).unwrap();
        said(&ctl(&server, &["export", "rm", "a"]));
        assert!(clients[0].is_closed(), "its export is gone");
        // The number of the first is free for another backing.
        make(&server.join("images/d"), MIB);
        let (nbd, image) = (format!("unix:{}", server.socket("d").display()), server.join("images/d"));
        said(&ctl(
            &server,
            &["export", "add", "d", "--device", "ssd", "--tenant", "a", "--path", arg(&image), "--nbd", &nbd],
        ));
        let mut d = connect(&server, "d");
        assert_eq!((d.size_bytes, d.read(4096, 8192)), (MIB, Ok(vec![0; 8192])));
        d.write(4096, &pattern(8192, 4)).unwrap();
        [&mut c, &mut d].into_iter().for_each(|client| client.flush().unwrap());
        said(&ctl(&server, &["export", "show", "d"]));
    });
    [("a", 1), ("b", 2), ("c", 3), ("d", 4)].into_iter().for_each(|(image, salt)| holds(&server, image, salt));
    said(&ctl(&server, &["save"]));
    let text = std::fs::read_to_string(server.join("config.toml")).unwrap();
    // Another process goes on with numbers that a start alone would give otherwise.
    let mut server = server;
    for _ in 0..3 {
        let mut clients = ["b", "c", "d"].map(|name| connect(&server, name));
        server = server.replace(&text);
        for (client, salt) in clients.iter_mut().zip([2, 3, 4]) {
            assert_eq!(client.read(4096, 8192).unwrap(), pattern(8192, salt));
            client.write(4096, &pattern(8192, salt)).unwrap();
            client.flush().unwrap();
        }
    }
    let folder = server.kill_nine();
    let server = Server::start_in(folder, &text);
    for (name, salt) in [("b", 2), ("c", 3), ("d", 4)] {
        assert_eq!(connect(&server, name).read(4096, 8192).unwrap(), pattern(8192, salt));
        holds(&server, name, salt);
    }
    holds(&server, "a", 1);
    server.terminate();
}

/// State of a server of changes at a moment: its exports by name, each with its size and the salt of its first bytes.
type Expected = BTreeMap<String, (u64, u8)>;

#[test]
fn twenty_upgrades_and_twenty_restarts_amid_changes_keep_config_and_bytes() {
    const NAMES: u64 = 6;
    let folder = folder(&["a", "b"]);
    let text = format!("{POOL}{}", export("a", ""));
    let mut server = Server::start_in(folder, &text);
    let mut random = Random::new(50);
    let mut has = Expected::from([("a".to_owned(), (2 * MIB, 0))]);
    let (mut came, mut went, mut grew) = (0, 0, 0);
    for round in 0..40 {
        let (is_over, read) = (AtomicBool::new(false), Request { length_bytes: 4096, ..Request::of(CMD_READ) });
        std::thread::scope(|scope| {
            let _over = SetAtEnd(&is_over);
            scope.spawn(|| load(&server, "a", 4, read, &is_over));
            for _ in 0..3 {
                let (name, salt) = (format!("x{}", random.below(NAMES)), 1 + random.below(200) as u8);
                let image = server.join(&format!("images/{name}"));
                match (has.get(&name).copied(), random.below(3)) {
                    (None, _) => {
                        make(&image, MIB);
                        let nbd = format!("unix:{}", server.socket("a").display());
                        let args = ["--device", "ssd", "--tenant", "b", "--path", arg(&image), "--nbd", &nbd];
                        said(&ctl(&server, &[&["export", "add", &name], &args[..]].concat()));
                        has.insert(name, (MIB, 0));
                        came += 1;
                    }
                    (Some(_), 0) => {
                        said(&ctl(&server, &["export", "rm", &name]));
                        has.remove(&name);
                        went += 1;
                    }
                    (Some((size_bytes, _)), 1) => {
                        let mut client = Client::connect(&server.socket("a"), &name);
                        client.write(4096, &pattern(8192, salt)).unwrap();
                        client.flush().unwrap();
                        has.insert(name, (size_bytes, salt));
                    }
                    (Some((size_bytes, salt)), _) => {
                        File::options().write(true).open(&image).unwrap().set_len(size_bytes + MIB).unwrap();
                        said(&ctl(&server, &["export", "grow", &name]));
                        has.insert(name, (size_bytes + MIB, salt));
                        grew += 1;
                    }
                }
            }
        });
        said(&ctl(&server, &["save"]));
        let config = |server: &Server| -> serde_json::Value {
            let said: serde_json::Value = serde_json::from_str(&said(&ctl(server, &["config", "--json"]))).unwrap();
            said.get("config").unwrap_or(&said).clone()
        };
        let before = config(&server);
        let text = std::fs::read_to_string(server.join("config.toml")).unwrap();
        server = if round % 2 == 0 { server.replace(&text) } else { Server::start_in(server.kill_nine(), &text) };
        let state = config(&server);
        assert_eq!(state, before);
        let exports = state["export"].as_object().unwrap();
        assert!(exports.keys().eq(has.keys()), "{exports:?}");
        for (name, (size_bytes, salt)) in &has {
            let begun = Instant::now();
            // Bytes by which one grew are erased before they are offered.
            while Client::connect(&server.socket("a"), name).size_bytes != *size_bytes {
                assert!(begun.elapsed() < PATIENCE, "{name} has not {size_bytes} bytes");
            }
            let mut expected = vec![0; 16384];
            if *salt > 0 {
                expected[4096..12288].copy_from_slice(&pattern(8192, *salt));
            }
            assert!(Client::connect(&server.socket("a"), name).read(0, 16384).unwrap() == expected, "{name}");
            assert!(bytes_at(&server, name, 0, 16384) == expected, "{name}");
        }
    }
    assert!(came > 10 && went > 10 && grew > 10, "{came} came, {went} went, {grew} grew");
    // Never an export: all its bytes are as they were.
    assert!(bytes_at(&server, "b", 0, 2 << 20).iter().all(|byte| *byte == 0));
    server.terminate();
}

#[test]
fn an_export_grows_with_its_backing_by_itself_or_when_asked_and_shrinks_never() {
    let server = start();
    let mut kept = connect(&server, "a");
    let lengthen = |image: &str, length_bytes| {
        let image = File::options().write(true).open(server.join(&format!("images/{image}"))).unwrap();
        image.set_len(length_bytes).unwrap();
    };
    let size_is = |export: &str, size_bytes| connect(&server, export).size_bytes == size_bytes;
    lengthen("a", 4 * MIB);
    let begun = Instant::now();
    while !size_is("a", 4 * MIB) {
        assert!(begun.elapsed() < PATIENCE, "it does not grow");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    kept.write(3 * MIB, &pattern(4096, 7)).unwrap();
    assert_eq!(bytes_at(&server, "a", 3 * MIB, 4096), pattern(4096, 7));
    lengthen("b", 3 * MIB);
    said(&ctl(&server, &["export", "grow", "b"]));
    let begun = Instant::now();
    while !size_is("b", 3 * MIB) {
        assert!(begun.elapsed() < PATIENCE, "its bytes are erased");
    }
    assert!(refusal(&ctl(&server, &["export", "grow", "none"])).contains("there is no export \"none\""));
    // One that was cut keeps its size, and does not answer for what is gone; the other is as it was.
    lengthen("b", MIB);
    said(&ctl(&server, &["export", "grow", "b"]));
    let mut b = connect(&server, "b");
    assert_eq!(b.size_bytes, 3 * MIB);
    assert!(b.read(2 * MIB, 4096).is_err() && b.flush().is_err());
    assert!(kept.read(0, 4096).is_ok() && kept.flush().is_ok());
    lengthen("b", 3 * MIB);
    let reopened = said(&ctl(&server, &["export", "reopen", "b"]));
    assert!(reopened.contains("the backing of export b was closed and opened anew"), "{reopened}");
    assert!(b.is_closed() && kept.flush().is_ok(), "its own clients alone are disconnected");
    connect(&server, "b").flush().unwrap();
    server.terminate();
}

/// Asks until the answer has `words`.
fn until(words: &str, ask: impl Fn() -> String) -> String {
    let begun = Instant::now();
    loop {
        let said = ask();
        if said.contains(words) {
            return said;
        }
        assert!(begun.elapsed() < PATIENCE, "no {words:?} in {said:?}");
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// FUSE lets 12 requests be under way and puts the thread to sleep that submits another one: here more come on each
/// worker, and writes and flushes among them.
#[test]
fn i17_a_backing_on_fuse_that_is_stopped_hangs_alone_is_named_and_goes_on_where_it_was() {
    need!("qemu-storage-daemon");
    let folder = folder(&["a"]);
    let fuse = Fuse::start(&folder, "images/b", 2 * MIB);
    let text = config().replace("expert.depth = 4", "timeout = \"1s\"\nexpert.depth = 64");
    let mut server = Server::start_in(folder, &text);
    server.note_with("/max_background lets more");
    // Two on each worker.
    let mut well: Vec<Client> = (0..4).map(|_| connect(&server, "a")).collect();
    let mut hung: Vec<Client> = (0..4).map(|_| connect(&server, "b")).collect();
    well[0].write(4096, &pattern(8192, 1)).unwrap();
    hung[0].write(4096, &pattern(8192, 2)).unwrap();
    hung[0].flush().unwrap();
    fuse.signal(libc::SIGSTOP);
    const EACH: u64 = 20;
    for client in &mut hung {
        for cookie in 0..EACH {
            let read = Request { cookie, offset_bytes: 4096, length_bytes: 8192, ..Request::of(CMD_READ) };
            let flush = Request { cookie, ..Request::of(CMD_FLUSH) };
            client.send(if cookie % 5 == 4 { flush } else { read }, &[]).unwrap();
        }
    }
    let image = server.join("images/b");
    let hangs = format!("b waits: its backing {} has left a request unanswered for ", image.display());
    until(&hangs, || why::said(&server, "b"));
    let name = format!("ssd: {}", image.display());
    let status = said(&ctl(&server, &["status", "--json"]));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["troubled"][&name], "hanging");
    server.note_with(&format!("{}: does not answer: ", image.display()));
    // Its clients hear of it at once, and those of the other backing of nothing.
    assert!(connect(&server, "b").read(0, 4096).is_err());
    for _ in 0..100 {
        for client in &mut well {
            assert_eq!(client.read(4096, 8192).unwrap(), pattern(8192, 1));
            client.write(4096, &pattern(8192, 1)).unwrap();
            client.flush().unwrap();
        }
    }
    assert!(!why::said(&server, "a").contains("images"), "{}", why::said(&server, "a"));
    until(&hangs, || why::said(&server, "b"));
    // So do changes.
    make(&server.join("images/c"), MIB);
    let (nbd, image) = (format!("unix:{}", server.socket("a").display()), server.join("images/c"));
    said(&ctl(
        &server,
        &["export", "add", "c", "--device", "ssd", "--tenant", "a", "--path", arg(&image), "--nbd", &nbd],
    ));
    Client::connect(&server.socket("a"), "c").write(0, &pattern(4096, 3)).unwrap();
    // A look at it holds up none at the others: one grows, and another is seen to be cut.
    let lengthen = |length_bytes| File::options().write(true).open(&image).unwrap().set_len(length_bytes).unwrap();
    lengthen(2 * MIB);
    until(&(2 * MIB).to_string(), || Client::connect(&server.socket("a"), "c").size_bytes.to_string());
    lengthen(4096);
    server.note_with(&format!("{}: was cut to 4096 bytes", image.display()));
    said(&ctl(&server, &["export", "rm", "c"]));
    fuse.signal(libc::SIGCONT);
    for client in &mut hung {
        let mut cookies: Vec<u64> = (0..EACH)
            .map(|_| {
                let reply = client.reply().expect("an answer");
                if reply.cookie % 5 != 4 && reply.error == 0 {
                    let mut data = vec![0; 8192];
                    std::io::Read::read_exact(&mut client.stream, &mut data).unwrap();
                    assert_eq!(data, pattern(8192, 2));
                }
                reply.cookie
            })
            .collect();
        cookies.sort();
        assert_eq!(cookies, (0..EACH).collect::<Vec<_>>(), "each is answered once");
    }
    server.note_with("answers again");
    assert!(!said(&ctl(&server, &["status", "--json"])).contains("hanging"));
    assert_eq!(hung[0].read(0, 16384).unwrap(), [vec![0; 4096], pattern(8192, 2), vec![0; 4096]].concat());
    hung[0].flush().unwrap();
    server.terminate();
}

#[test]
fn a_strict_sandbox_opens_for_the_folders_of_a_pool_alone_now_and_later() {
    let text = config().replace("workers = 2", "workers = 2\nsandbox = \"strict\"");
    let folder = folder(&["a", "b", "c"]);
    make(&folder.join("outside"), MIB);
    let server = Server::start_in(folder, &text);
    let add = |path: &str| {
        let path = server.join(path);
        ctl(
            &server,
            &[
                "export",
                "add",
                "c",
                "--device",
                "ssd",
                "--tenant",
                "b",
                "--path",
                arg(&path),
                "--nbd",
                &format!("unix:{}", server.socket("b").display()),
            ],
        )
    };
    assert!(refusal(&add("outside")).contains("lies outside of the folders of its pool"));
    said(&add("images/c"));
    let mut c = Client::connect(&server.socket("b"), "c");
    c.write(0, &pattern(4096, 5)).unwrap();
    c.flush().unwrap();
    assert_eq!(bytes_at(&server, "c", 0, 4096), pattern(4096, 5));
    assert_eq!(bytes_at(&server, "b", 0, 4096), [0; 4096]);
    drop(c);
    server.terminate();
}

#[test]
fn what_cannot_be_a_backing_is_refused_in_one_sentence_at_a_start_and_live() {
    let folder = folder(&["a", "b", "c"]);
    make(&folder.join("outside"), MIB);
    make(&folder.join("images/empty"), 0);
    std::fs::create_dir(folder.join("images/folder")).unwrap();
    for (link, to) in [("images/out", "outside"), ("images/in", "images/c"), ("linked", "images/c")] {
        std::os::unix::fs::symlink(folder.join(to), folder.join(link)).unwrap();
    }
    std::fs::hard_link(folder.join("images/a"), folder.join("images/hard")).unwrap();
    let here = arg(folder.path()).to_owned();
    let place = |name: &str| format!("{here}/{name}");
    let outside = |said: String| {
        format!("export.x.path: {said} lies outside of the folders of its pool, allowed are {here}/images")
    };
    let cases = [
        ("outside", "", outside(place("outside"))),
        ("images/../outside", "", outside(format!("{} leads to {} and", place("images/../outside"), place("outside")))),
        ("images/out", "", outside(format!("{} leads to {} and", place("images/out"), place("outside")))),
        ("images/none", "", format!("export.x.path: cannot open {}: No such file or directory", place("images/none"))),
        (
            "images/folder",
            "",
            format!(
                "export.x.path: cannot open {}: it is a directory, allowed is a regular file or a block device",
                place("images/folder")
            ),
        ),
        (
            "images/empty",
            "",
            format!("export.x.path: {} is empty, allowed is a file that has its full size", place("images/empty")),
        ),
        (
            "images/a",
            "",
            format!("export.x.path: {} is the backing of export.a already, allowed is one of them", place("images/a")),
        ),
        (
            "images/hard",
            "",
            format!(
                "export.x.path: {} is the backing of export.a already, allowed is one of them",
                place("images/hard")
            ),
        ),
        (
            "images/c",
            "size = \"3MiB\"\n",
            format!("export.x.size: 3145728 bytes is more than {} has, allowed is 1 to 2097152", place("images/c")),
        ),
        (
            "images/c",
            "offset = 4096\n",
            "export.x.offset: is not for an export of a pool, which has all of its backing from byte 0 on".to_owned(),
        ),
    ];
    let x = |path: &str, more: &str| {
        format!("[export.x]\ndevice = \"ssd\"\ntenant = \"a\"\nnbd = \"unix:@/x.sock\"\npath = \"@/{path}\"\n{more}")
    };
    for (path, more, expected) in &cases {
        let file = folder.join("bad.toml");
        std::fs::write(&file, format!("{}{}", config(), x(path, more)).replace('@', &here)).unwrap();
        for command in ["serve", "check"] {
            let output = mqfq(&[command, arg(&file)]);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{path}: {stderr}");
        }
    }
    let relative = mqfq_config_refusal(&folder, &config().replace("@/images/a", "images/a"));
    assert!(
        relative.contains("export.a.path: images/a is no absolute path, allowed is one that begins with /"),
        "{relative}"
    );
    let of_file = config().replace("kind = \"pool\"\nfolders = [\"@/images\"]", "kind = \"memory\"\nsize = \"1MiB\"");
    let of_file = mqfq_config_refusal(&folder, &of_file);
    assert!(
        of_file.contains("export.a.path: device ssd is no pool, allowed is path with a device of kind"),
        "{of_file}"
    );
    let server = Server::start_in(folder, &config());
    for (path, more, expected) in &cases {
        let path = format!("{here}/{path}");
        let nbd = format!("unix:{here}/x.sock");
        let mut args = vec!["export", "add", "x", "--device", "ssd", "--tenant", "a", "--path", &path, "--nbd", &nbd];
        let more = more.trim().replace(['"', ' '], "");
        let key_and_value = more.split_once('=').map(|(key, value)| (format!("--{key}"), value.to_owned()));
        if let Some((key, value)) = &key_and_value {
            args.extend([key.as_str(), value.as_str()]);
        }
        let refused = refusal(&ctl(&server, &args));
        assert!(refused.contains(expected.as_str()), "{path}: {refused}");
    }
    // A server has each file alone, by its lock.
    let other = Folder::new();
    let text = POOL.replace("@/images", &format!("{here}/images"));
    let taken = format!("{text}{}", export("a", "").replace("@/images", &format!("{here}/images")));
    let taken = mqfq_config_refusal(&other, &taken);
    assert!(
        taken.contains(&format!("export.a.path: {here}/images/a: is served by process {}", server.id())),
        "{taken}"
    );
    assert!(Handshake::start(&server.socket("a")).try_go("a").is_ok());
    server.terminate();
}

/// Runs a tool of root's; its output, or `None` where it may not do that.
fn as_root(tool: &str, args: &[&str]) -> Option<String> {
    let done = tools::run(tool, args);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !done.status.success() {
        eprintln!("left out: {tool} {args:?}: {}", said(&done.stderr));
    }
    done.status.success().then(|| said(&done.stdout))
}

/// A file system in memory.
struct Small(String);

impl Small {
    fn mount(folder: &Path, options: &str) -> Option<Small> {
        std::fs::create_dir(folder).unwrap();
        as_root("mount", &["-t", "tmpfs", "-o", options, "none", arg(folder)])?;
        Some(Small(arg(folder).to_owned()))
    }

    fn remount(&self, options: &str) {
        as_root("mount", &["-o", &format!("remount,{options}"), &self.0]).expect("it was mounted");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        as_root("umount", &["--lazy", &self.0]);
    }
}

/// A loop device over a file.
struct Loop(String);

impl Loop {
    fn over(file: &Path, more: &[&str]) -> Option<Loop> {
        as_root("losetup", &[&["--find", "--show"], more, &[arg(file)]].concat()).map(Loop)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        as_root("losetup", &["--detach", &self.0]);
    }
}

#[test]
fn a_backing_without_space_fails_writes_of_its_own_exports_and_goes_on_when_it_has_some() {
    let folder = folder(&["a"]);
    let Some(small) = Small::mount(&folder.join("images/full"), "size=1m") else { return };
    make(&folder.join("images/full/b"), 4 * MIB);
    let text = format!("{POOL}{}{}", export("a", ""), export("b", "").replace("images/b", "images/full/b"));
    let server = Server::start_in(folder, &text);
    let [mut a, mut b] = ["a", "b"].map(|name| connect(&server, name));
    let block = pattern(64 << 10, 2);
    let written = (0..64).take_while(|at| b.write(at * (64 << 10), &block).is_ok()).count() as u64;
    assert!((1..=16).contains(&written), "{written} of 16 blocks fit");
    assert_eq!(b.write(written * (64 << 10), &block), Err(ENOSPC));
    b.flush().unwrap();
    // The old bytes are there, and the other backing has never heard of it.
    for at in 0..written {
        assert_eq!(b.read(at * (64 << 10), 64 << 10).unwrap(), block);
        a.write(at * 4096, &pattern(4096, 1)).unwrap();
        a.flush().unwrap();
    }
    assert!(!said(&ctl(&server, &["status", "--json"])).contains("images"), "it has not failed");
    small.remount("size=8m");
    b.write(written * (64 << 10), &block).unwrap();
    b.flush().unwrap();
    assert_eq!(b.read(written * (64 << 10), 64 << 10).unwrap(), block);
    assert_eq!(bytes_at(&server, "a", 0, 4096), pattern(4096, 1));
    server.terminate();
}

#[test]
fn block_devices_that_others_use_and_backings_that_cannot_be_written_are_refused_in_one_sentence() {
    need!("losetup");
    let folder = folder(&["a", "b"]);
    for name in ["behind", "behind-read-only"] {
        make(&folder.join(name), 4 * MIB);
    }
    let Some(used) = Loop::over(&folder.join("behind"), &[]) else { return };
    let Some(read_only) = Loop::over(&folder.join("behind-read-only"), &["--read-only"]) else { return };
    let Some(small) = Small::mount(&folder.join("images/ro"), "size=1m") else { return };
    make(&folder.join("images/ro/c"), MIB);
    small.remount("ro");
    std::os::unix::fs::symlink(&used.0, folder.join("images/volume")).unwrap();
    let here = arg(folder.path()).to_owned();
    let text = config().replace("[\"@/images\"]", "[\"@/images\", \"/dev\"]");
    let allowed = "allowed is an export with read-only = true";
    let in_use = "is in use: mounted, part of another device, or perhaps served by another server";
    let file = format!("{here}/images/ro/c");
    let cases = [
        (&used.0, format!("export.x.path: {}: {in_use}", used.0)),
        (&read_only.0, format!("export.x.path: cannot write to {}: it is a read-only device, {allowed}", read_only.0)),
        (&file, format!("export.x.path: cannot write to {file}: Read-only file system, {allowed}")),
    ];
    let x = |path: &str| export("x", "").replace("tenant = \"x\"", "tenant = \"a\"").replace("@/images/x", path);
    // Another program has it for itself, as a mount does.
    let user = File::options().read(true).custom_flags(libc::O_EXCL).open(&used.0).unwrap();
    for (path, expected) in &cases {
        let refused = mqfq_config_refusal(&folder, &format!("{text}{}", x(path)));
        assert!(refused.contains(expected) && refused.lines().count() == 1, "{refused}");
    }
    let server = Server::start_in(folder, &text);
    let nbd = format!("unix:{here}/x.sock");
    let add = |name: &str, path: &str, more: &[&str]| {
        let args = ["export", "add", name, "--device", "ssd", "--tenant", "a", "--path", path, "--nbd", &nbd];
        ctl(&server, &[&args, more].concat())
    };
    for (path, expected) in &cases {
        let refused = refusal(&add("x", path, &[]));
        assert!(refused.contains(expected), "{refused}");
    }
    for (name, path) in [("r", &read_only.0), ("s", &file)] {
        said(&add(name, path, &["--read-only", "true"]));
        assert_eq!(Client::connect(&server.socket("x"), name).read(0, 4096).unwrap(), [0; 4096]);
    }
    drop(user);
    said(&add("x", &used.0, &[]));
    let mut client = Client::connect(&server.socket("x"), "x");
    client.write(4096, &pattern(4096, 3)).unwrap();
    client.flush().unwrap();
    let taken = File::options().read(true).custom_flags(libc::O_EXCL).open(&used.0).map(drop);
    assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EBUSY), "the server has it alone");
    let refused = refusal(&add("y", &format!("{here}/images/volume"), &[]));
    assert!(refused.contains("/images/volume is the backing of export.x already, allowed is one of them"), "{refused}");
    drop(client);
    server.terminate();
}

/// The sentence of a server that does not start.
fn mqfq_config_refusal(folder: &Folder, config: &str) -> String {
    let file = folder.join("refused.toml");
    std::fs::write(&file, config.replace('@', arg(folder.path()))).unwrap();
    let output = mqfq(&["serve", arg(&file)]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}
