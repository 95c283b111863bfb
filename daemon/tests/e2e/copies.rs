//! Whole disks, copied in and out by tools that compare every byte; and fio, which verifies its writes and shows
//! weights as bandwidth.

use crate::checksums::{MIB, fio, verifies};
use crate::client::Client;
use crate::server::{Server, arg, pattern};
use mqfq_testing::machine;
use mqfq_testing::tools::{need, run_ok, uri};
use serde_json::Value;
use std::os::unix::fs::MetadataExt;

/// The devices that keep their bytes.
fn devices() -> [(&'static str, String); 3] {
    [
        ("memory", "kind = \"memory\"\nsize = \"16MiB\"".into()),
        ("nvme", "kind = \"model\"\npreset = \"flash-460k\"\nsize = \"16MiB\"".into()),
        ("file", "kind = \"file\"\npath = \"@/disk\"".into()),
    ]
}

fn server(device: &str, keys: &str) -> Server {
    let folder = crate::server::Folder::new();
    if device == "file" {
        folder.file("disk", 16 * MIB);
    }
    let mut config = format!("[device.d]\n{keys}\n[tenant.t]\n");
    for (name, offset) in [("a", 0), ("b", 8 * MIB)] {
        config += &format!(
            "[export.{name}]\ndevice = \"d\"\ntenant = \"t\"\noffset = {offset}\nsize = \"8MiB\"\nnbd = \"unix:@/s.sock\"\n"
        );
    }
    Server::start_in(folder, &config)
}

#[test]
fn nbdcopy_brings_every_byte_in_across_and_out() {
    need!("nbdcopy", "cmp");
    let _machine = machine::shared();
    for (device, keys) in devices() {
        let server = server(device, &keys);
        let source = server.folder().patterned_file("source", 8 << 20, 1);
        let (back, socket) = (server.join("back"), server.join("s.sock"));
        run_ok("nbdcopy", &["--flush", arg(&source), &uri(&socket, "a")]);
        run_ok("nbdcopy", &[&uri(&socket, "a"), &uri(&socket, "b")]);
        run_ok("nbdcopy", &[&uri(&socket, "b"), arg(&back)]);
        run_ok("cmp", &[arg(&source), arg(&back)]);
        server.terminate();
    }
}

#[test]
fn qemu_img_converts_in_and_out_and_finds_no_difference() {
    need!("qemu-img");
    let _machine = machine::shared();
    for (device, keys) in devices() {
        let server = server(device, &keys);
        let source = server.folder().patterned_file("source", 8 << 20, 2);
        let (back, socket) = (server.join("back.qcow2"), server.join("s.sock"));
        let (a, b) = (uri(&socket, "a"), uri(&socket, "b"));
        let raw = ["-f", "raw"];
        run_ok("qemu-img", &["convert", "-n", raw[0], raw[1], "-O", "raw", arg(&source), &a]);
        run_ok("qemu-img", &["compare", "-f", "raw", "-F", "raw", arg(&source), &a]);
        run_ok("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &a, arg(&back)]);
        run_ok("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &a, arg(&back)]);
        // The neighbour's bytes are still zero: nothing of the copy went past the export's end.
        run_ok("qemu-img", &["convert", "-f", "raw", "-O", "raw", &b, arg(&server.join("neighbour"))]);
        let neighbour = std::fs::read(server.join("neighbour")).unwrap();
        assert!(neighbour.len() == 8 << 20 && neighbour.iter().all(|byte| *byte == 0));
        server.terminate();
    }
}

#[test]
fn qemu_io_reads_back_what_it_wrote_discarded_and_zeroed() {
    need!("qemu-io");
    let _machine = machine::shared();
    for (device, keys) in devices() {
        let server = server(device, &keys);
        let socket = server.join("s.sock");
        let commands = [
            "write -P 0x5a 0 1M",
            "write -f -P 0xa5 1M 64k",
            "aio_write -P 0x11 2M 256k",
            "aio_write -P 0x22 3M 256k",
            "aio_flush",
            "flush",
            "read -P 0x5a 0 1M",
            "read -P 0xa5 1M 64k",
            "read -P 0x11 2M 256k",
            "read -P 0x22 3M 256k",
            "write -z 64k 64k",
            "read -P 0 64k 64k",
            "read -P 0x5a 0 64k",
            "read -P 0x5a 128k 896k",
            "write -z -u 2M 128k",
            "read -P 0 2M 128k",
            "discard 3M 256k",
            "read -P 0 3M 256k",
            "read -P 0 4M 4M",
        ];
        let uri = uri(&socket, "a");
        let mut args = vec!["-f", "raw", "-d", "unmap"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.push(&uri);
        let output = run_ok("qemu-io", &args);
        assert!(!output.contains("verification failed") && !output.contains("rror"), "{device}: {output}");
        server.terminate();
    }
}

#[test]
fn a_tenant_reads_only_its_own_bytes() {
    let _machine = machine::shared();
    for (device, keys) in devices() {
        let server = server(device, &keys);
        let socket = server.join("s.sock");
        let (mut a, mut b) = (Client::connect(&socket, "a"), Client::connect(&socket, "b"));
        let secret = pattern(64 << 10, 3);
        a.write(8 * MIB - 65_536, &secret).unwrap();
        assert_eq!(a.read(8 * MIB - 65_536, 65_536).unwrap(), secret);
        // Never written: zero, though buffers are recycled between tenants.
        assert!(b.read(0, 1 << 20).unwrap().iter().all(|byte| *byte == 0), "{device}");
        server.terminate();
    }
}

#[test]
fn what_was_written_to_a_file_device_is_in_the_file_after_the_end() {
    let _machine = machine::shared();
    let folder = crate::server::Folder::new();
    let disk = folder.file("disk", MIB);
    let config = "[device.d]\nkind = \"file\"\npath = \"@/disk\"\n[tenant.t]\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\n\
                  offset = \"64KiB\"\nnbd = \"unix:@/s.sock\"\n";
    let server = Server::start_in(folder, config);
    let mut client = Client::connect(&server.join("s.sock"), "e");
    assert_eq!(client.size_bytes, MIB - 65_536);
    let bytes = pattern(8192, 4);
    client.write(4096, &bytes).unwrap();
    client.flush().unwrap();
    // Export byte 4096 is device byte 65536 + 4096.
    let held = std::fs::read(&disk).unwrap();
    assert_eq!(held[69_632..77_824], bytes[..]);
    assert!(held[..69_632].iter().chain(&held[77_824..]).all(|byte| *byte == 0));
    drop(client);
    server.terminate();
}

#[test]
fn fio_finds_every_checksum_on_memory() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"memory\"\nsize = \"32MiB\"", |_| {});
}

#[test]
fn fio_finds_every_checksum_on_a_file() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"file\"\npath = \"@/disk\"", |folder| drop(folder.file("disk", 32 * MIB)));
}

#[test]
fn fio_finds_every_checksum_on_the_software_controller() {
    need!("fio");
    let _machine = machine::shared();
    verifies("kind = \"model\"\npreset = \"flash-460k\"\nsize = \"32MiB\"", |_| {});
}

/// Two tenants that both ask for more than the drive has get bandwidth by weight: 1:3. One run measures both at the
/// same time, so the machine's speed cancels out.
///
/// Each has 2 connections of depth 256. The drive (45,000 reads a second for weight 3) is 11 ms behind that, so neither
/// runs dry while the system does not schedule its fio thread: a tenant without requests has no claim to its share.
#[test]
fn two_saturating_tenants_of_weight_1_and_3_share_1_to_3() {
    need!("fio");
    let _machine = machine::alone();
    let server = Server::start(
        r#"
[server]
workers = 2

[device.d]
kind = "model"
preset = "flash-60k"
size = "128MiB"
expert = { depth = 64, window = "64KiB" }

[tenant.one]
weight = 100

[tenant.three]
weight = 300

[export.one]
device = "d"
tenant = "one"
size = "64MiB"
nbd = "unix:@/one.sock"

[export.three]
device = "d"
tenant = "three"
offset = "64MiB"
size = "64MiB"
nbd = "unix:@/three.sock"
"#,
    );
    let job = |name: &str| format!("[{name}]\nuri={}\n", uri(&server.socket(name), name));
    let report = fio(
        server.folder(),
        &format!(
            "[global]\nioengine=nbd\nthread\nrw=randread\nbs=4k\niodepth=256\nsize=64m\nnumjobs=2\nnorandommap\n\
             randrepeat=0\ntime_based\nruntime=8\nramp_time=1\n{}{}",
            job("one"),
            job("three")
        ),
    );
    let bytes = |name: &str| {
        let jobs = report["jobs"].as_array().unwrap().iter().filter(|job| job["jobname"] == name);
        jobs.map(|job| job["read"]["io_bytes"].as_f64().unwrap()).sum::<f64>()
    };
    let (one, three) = (bytes("one"), bytes("three"));
    let ratio = three / one;
    println!("weights 1:3 gave 1:{ratio:.3} ({one} and {three} bytes)");
    assert!((ratio / 3.0 - 1.0).abs() <= 0.05, "1:3 came out as 1:{ratio:.3}");
}

/// Extents as a client tells them: first byte, length, and whether it reads as zero.
fn zeroes(told: &str, is_zero: impl Fn(&Value) -> bool) -> Vec<(u64, u64, bool)> {
    let map: Vec<Value> = serde_json::from_str(told).unwrap();
    let mut all: Vec<(u64, u64, bool)> = Vec::new();
    for extent in &map {
        let at = extent["offset"].as_u64().or(extent["start"].as_u64()).unwrap_or_else(|| panic!("{extent}"));
        let (length, is_zero) = (extent["length"].as_u64().unwrap(), is_zero(extent));
        match all.last_mut() {
            Some((_, before, was_zero)) if *was_zero == is_zero => *before += length,
            _ => all.push((at, length, is_zero)),
        }
    }
    all
}

#[test]
fn holes_are_told_after_writes_trims_and_zeroes_and_clients_skip_them() {
    need!("nbdinfo", "nbdcopy", "qemu-img", "qemu-io", "cmp");
    let _machine = machine::shared();
    for (device, keys) in devices() {
        let folder = crate::server::Folder::new();
        std::fs::File::create(folder.join("disk")).unwrap().set_len(16 * MIB).unwrap();
        let config = format!(
            "[device.d]\n{keys}\n[tenant.t]\n[export.a]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/s.sock\"\n"
        );
        let server = Server::start_in(folder, &config);
        let a = uri(&server.join("s.sock"), "a");
        let info = || {
            let told = run_ok("nbdinfo", &["--map", "--json", &a]);
            zeroes(&told, |extent| extent["type"].as_u64().is_some_and(|flags| flags & 2 != 0))
        };
        let map = || {
            let told = run_ok("qemu-img", &["map", "-f", "raw", "--output=json", &a]);
            zeroes(&told, |extent| extent["zero"] == true)
        };
        let (hole, data) = (true, false);
        let io = |commands: &[&str]| {
            let commands = commands.iter().flat_map(|command| ["-c", *command]);
            run_ok("qemu-io", &["-f", "raw"].into_iter().chain(commands).chain([&*a]).collect::<Vec<_>>());
        };
        assert_eq!(info(), [(0, 16 * MIB, hole)], "{device}");
        io(&["write -P 7 1M 1M", "write -P 7 4M 4M", "flush"]);
        let written = [(0, MIB, hole), (MIB, MIB, data), (2 * MIB, 2 * MIB, hole), (4 * MIB, 4 * MIB, data)];
        let written = [&written[..], &[(8 * MIB, 8 * MIB, hole)]].concat();
        assert_eq!((info(), map()), (written.clone(), written), "{device}");
        io(&["discard 5M 1M", "write -z -u 6M 1M", "write -z -n -u 7M 512k"]);
        let cleared = [(MIB, MIB, data), (2 * MIB, 2 * MIB, hole), (4 * MIB, MIB, data), (5 * MIB, 5 * MIB / 2, hole)];
        let told = info();
        assert_eq!(told[1..5], cleared, "{device}");
        let (back, whole) = (server.join("back"), server.join("whole"));
        run_ok("nbdcopy", &[&a, arg(&back)]);
        run_ok("qemu-img", &["convert", "-f", "raw", "-O", "raw", &a, arg(&whole)]);
        run_ok("cmp", &[arg(&back), arg(&whole)]);
        let stored_bytes = std::fs::metadata(&back).unwrap().blocks() * 512;
        assert!(stored_bytes <= 3 * MIB, "{device}: {stored_bytes} bytes of a copy of {} of data", 5 * MIB / 2);
        server.terminate();
    }
}
