//! fio: a foreign load generator that verifies its writes, and that shows weights as bandwidth.

use crate::checksums::{MIB, fio, verifies};
use crate::server::Server;
use mqfq_testing::machine;
use mqfq_testing::tools::{need, uri};

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
