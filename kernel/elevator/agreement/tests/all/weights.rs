//! `io-weights.sh`: io.mqfq.weight gets the weights of a service manager's units.

use mqfq_testing::Folder;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

/// A block device of this machine that is no partition, if it has one: its path and its number.
fn device() -> Option<(PathBuf, String)> {
    let all = std::fs::read_dir("/sys/block").ok()?.flatten();
    all.filter_map(|entry| {
        let path = PathBuf::from("/dev").join(entry.file_name());
        let number = std::fs::read_to_string(entry.path().join("dev")).ok()?;
        std::fs::metadata(&path).ok()?.file_type().is_block_device().then(|| (path, number.trim().to_owned()))
    })
    .next()
}

/// A machine with units of a service manager.
struct Machine {
    folder: Folder,
}

impl Machine {
    fn new(cgroups: &[&str]) -> Machine {
        let folder = Folder::new();
        for cgroup in cgroups {
            std::fs::create_dir_all(folder.join("cgroups").join(cgroup)).unwrap();
        }
        std::fs::write(folder.join("systemctl"), "#!/bin/sh\nexec cat \"$(dirname \"$0\")/units\"\n").unwrap();
        std::fs::set_permissions(folder.join("systemctl"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Machine { folder };
        cgroups.iter().for_each(|cgroup| machine.new_cgroup(cgroup));
        machine
    }

    fn new_cgroup(&self, cgroup: &str) {
        std::fs::write(self.folder.join("cgroups").join(cgroup).join("io.mqfq.weight"), "").unwrap();
    }

    /// One look at these units. Returns what was written to the cgroup's file since it was made.
    fn look(&self, units: &str, cgroup: &str) -> String {
        std::fs::write(self.folder.join("units"), units).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../io-weights.sh");
        let status = Command::new("bash")
            .arg(script)
            .env("MQFQ_CGROUPS", self.folder.join("cgroups"))
            .env("MQFQ_STATE", self.folder.join("state"))
            .env("MQFQ_SYSTEMCTL", self.folder.join("systemctl"))
            .status();
        assert!(status.unwrap().success());
        std::fs::read_to_string(self.folder.join("cgroups").join(cgroup).join("io.mqfq.weight")).unwrap()
    }
}

#[test]
fn a_units_weight_is_its_cgroups_until_the_unit_has_none() {
    let machine = Machine::new(&["a.slice", "a.slice/b\\x2dc.service", "d.service"]);
    let units = "ControlGroup=/a.slice\nIOWeight=300\n\n\
        IOWeight=[not set]\nControlGroup=/d.service\n\n\
        ControlGroup=\nIOWeight=200\n\n\
        IOWeight=50\nControlGroup=/a.slice/b\\x2dc.service\n\n\
        ControlGroup=/gone.service\nIOWeight=70\n\n\
        ControlGroup=/d.service\nIOWeight=18446744073709551615\n";
    assert_eq!(machine.look(units, "a.slice"), "default 300\n");
    assert_eq!(machine.look(units, "d.service"), "", "a unit without a weight leaves what stands there");
    assert_eq!(machine.look(units, "a.slice/b\\x2dc.service").lines().last(), Some("default 50"));
    let without = "ControlGroup=/a.slice\nIOWeight=[not set]\n\nControlGroup=/d.service\nIOWeight=1\n";
    assert_eq!(machine.look(without, "a.slice").lines().last(), Some("default 100"));
    assert_eq!(machine.look(without, "d.service"), "default 1\n", "a weight that stands there is not written again");
    machine.new_cgroup("d.service");
    assert_eq!(machine.look(without, "d.service"), "default 1\n", "a unit that was started again has it again");
    assert_eq!(machine.look(without, "a.slice").lines().filter(|line| line.ends_with(" 100")).count(), 1);
    assert_eq!(machine.look("", "d.service").lines().last(), Some("default 100"));
}

#[test]
fn a_units_weight_on_a_device_is_written_with_the_devices_number() {
    let Some((path, number)) = device() else { return eprintln!("skipped: this machine has no block device") };
    let machine = Machine::new(&["a.slice"]);
    let with = format!(
        "ControlGroup=/a.slice\nIOWeight=300\nIODeviceWeight={} 40\nIODeviceWeight=/dev/no-such 7\n",
        path.display()
    );
    assert_eq!(machine.look(&with, "a.slice"), format!("default 300\n{number} 40\n"));
    let found = machine.look("ControlGroup=/a.slice\nIOWeight=300\n", "a.slice");
    assert_eq!(found, format!("default 300\n{number} 40\n{number} default\n"));
}
