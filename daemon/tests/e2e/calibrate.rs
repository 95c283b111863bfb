//! `mqfq calibrate`: `check` takes its config, it only reads unless told otherwise, and it ends cleanly.

use crate::server::{Folder, Server, arg, mqfq, pattern};
use mqfq_testing::machine;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// The rest of a config whose device is called `d`.
const REST: &str = "[tenant.t]\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\nnbd = \"unix:@/e.sock\"\n";

/// `mqfq calibrate` with these arguments and its picture in `folder`.
fn calibrate(folder: &Folder, args: &[&str]) -> Output {
    mqfq(&[&["calibrate", "--out", arg(folder.path())], args].concat())
}

/// The JSON of [`calibrate`], which must end well.
fn found(folder: &Folder, args: &[&str]) -> Value {
    let output = calibrate(folder, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// Fails with this sentence.
fn refuses(folder: &Folder, args: &[&str], sentence: &str) {
    let output = calibrate(folder, args);
    // Sentences about the drive below may come first.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().last(), Some(format!("mqfq: {sentence}").as_str()), "{args:?}");
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
}

#[test]
fn the_config_of_a_calibration_is_one_that_check_takes() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let found = found(&folder, &["--preset", "optane", "--quick", "--name", "d"]);
    let sections = found["config"].as_str().unwrap();
    let device = "[device.d]\nkind = \"model\"\npreset = \"optane\"\nsize = \"1GiB\"\n";
    let config = folder.join("config.toml");
    let text = format!("{device}\n{sections}\n{}", REST.replace('@', arg(folder.path())));
    std::fs::write(&config, &text).unwrap();
    let check = mqfq(&["check", arg(&config)]);
    assert!(check.status.success(), "{}\n{text}", String::from_utf8_lossy(&check.stderr));
    assert!(sections.contains("write = { base = "), "writes of a modelled drive hurt nobody: {sections}");
    assert_eq!((&found["virtual_time"], &found["notes"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    let picture = std::fs::read_to_string(found["svg_path"].as_str().unwrap()).unwrap();
    assert_eq!(picture.matches("requests in flight").count(), 4, "throughput and latency, of reads and of writes");
    // A calibration of the device by its config, which is complete now.
    let by_config = self::found(&folder, &["--config", arg(&config), "d", "--quick"]);
    assert_eq!(by_config["config"], found["config"]);
}

#[test]
fn a_file_is_only_read_unless_it_may_be_destroyed() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let file = folder.join("disk");
    let bytes = pattern(4 << 20, 1);
    std::fs::write(&file, &bytes).unwrap();
    let read = found(&folder, &[arg(&file), "--buffered", "--step", "1ms"]);
    assert!(std::fs::read(&file).unwrap() == bytes, "the file was changed");
    assert_eq!((&read["write"], &read["profile"]["write_latency_ns"]), (&Value::Null, &Value::Null));
    let notes = read["notes"].as_array().unwrap();
    assert!(notes.contains(&"writes were not measured, so there is no cost of a write".into()), "{notes:?}");
    let config = read["config"].as_str().unwrap();
    assert!(config.contains("[device.disk.profile]\nknee = ") && !config.contains("write ="), "{config}");
    let written = found(&folder, &[arg(&file), "--buffered", "--step", "1ms", "--destructive"]);
    assert!(std::fs::read(&file).unwrap() != bytes, "the file is as it was");
    assert!(written["profile"]["write_latency_ns"].as_u64().unwrap() > 0);
    assert_eq!(written["terms"].as_array().unwrap().len(), 4);
}

#[test]
fn a_scratch_file_is_gone_after_an_interrupt() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
    command.args(["calibrate", "--scratch", arg(folder.path()), "--out", arg(folder.path())]);
    // SAFETY: between fork and exec it calls what is allowed there: the signal stays pending until it is asked for.
    unsafe {
        command.pre_exec(|| {
            let mut stop = std::mem::zeroed();
            libc::sigemptyset(&raw mut stop);
            libc::sigaddset(&raw mut stop, libc::SIGINT);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const stop, std::ptr::null_mut());
            libc::raise(libc::SIGINT);
            Ok(())
        });
    }
    let output = command.output().expect("the binary is built");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "mqfq: interrupted\n", "before the file is opened as a device");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something is left");
}

#[test]
fn what_cannot_be_calibrated_is_refused_in_one_sentence() {
    let _machine = machine::shared();
    let folder = Folder::new();
    let here = arg(folder.path()).to_string();
    let none = folder.join("none");
    refuses(&folder, &[arg(&none)], &format!("{here}/none: no such file or block device"));
    refuses(&folder, &[&here], &format!("{here}: is a directory, not a file or block device"));
    refuses(
        &folder,
        &["--preset", "p3700"],
        "unknown preset \"p3700\": choose one of flash-460k, flash-60k, optane, nvmf-dram, zssd",
    );
    let small = folder.join("small");
    std::fs::write(&small, [7; 4096]).unwrap();
    refuses(&folder, &[arg(&small)], &format!("{here}/small: holds 4096 bytes, allowed are 1048576 or more"));
    let config = folder.join("c.toml");
    std::fs::write(&config, "[device.d]\nkind = \"null\"\nsize = \"1GiB\"\n").unwrap();
    refuses(
        &folder,
        &["--config", arg(&config), "e"],
        &format!("{here}/c.toml: has no [device.NAME] \"e\", allowed is \"d\""),
    );
    refuses(
        &folder,
        &["x", "--step", "1h"],
        "invalid value '1h' for '--step <DURATION>': it is not a duration from 1ms to 2s, such as 600ms: 1h, see mqfq --help",
    );
}

#[test]
fn a_device_that_is_served_is_left_alone() {
    let _machine = machine::shared();
    let folder = Folder::new();
    std::fs::write(folder.join("disk"), pattern(4 << 20, 1)).unwrap();
    let server = Server::start_in(folder, &format!("[device.d]\nkind = \"file\"\npath = \"@/disk\"\n{REST}"));
    let disk = server.join("disk");
    let output = calibrate(server.folder(), &[arg(&disk), "--destructive"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let sentence = stderr.lines().last().unwrap_or_default();
    assert!(sentence.starts_with(&format!("mqfq: {}: is", arg(&disk))), "{sentence}");
    assert!(!output.status.success());
    assert!(std::fs::read(&disk).unwrap() == pattern(4 << 20, 1), "it was written");
    server.terminate();
}

#[test]
fn a_followed_cost_of_writes_is_reported() {
    let _machine = machine::shared();
    for (keys, expected) in [("cost = \"auto\"", Value::from(1.0)), ("cost = \"bytes\"", Value::Null)] {
        let device = format!("[device.d]\nkind = \"memory\"\nsize = \"1MiB\"\n{keys}\n");
        let mut server = Server::start(&format!("{device}{REST}"));
        assert_eq!(server.report()["devices"][0]["write_cost_times"], expected, "nothing was asked for yet");
        server.terminate();
    }
}
