//! Which disks does the machine of a guest have by QEMU alone, and how does a job have them pulled out and put back?
//!
//! Each lies over a file of the case's folder, in a slot of its own, so that it can go while it is used.

use mqfq_testing::guest;
use std::fs::File;
use std::path::Path;

/// A disk that QEMU has, over a file of the case's folder. The job may ask for it to be unplugged and plugged in again,
/// by `HOST NUMBER unplug NAME` and `HOST NUMBER plug NAME`.
pub struct Disk {
    /// Name in the job.
    pub name: &'static str,
    /// Model in QEMU.
    pub model: &'static str,
    /// Size of its file, MiB.
    pub size_mib: u64,
}

/// Socket of QEMU's monitor, in the case's folder.
const MONITOR: &str = "plugs";

/// The device of a disk, in QEMU's words, in a slot of its own.
fn device(disk: &Disk) -> String {
    let (model, name) = (disk.model, disk.name);
    format!("{model},drive=file-{name},bus=slot-{name},id={name}")
}

/// QEMU's arguments that make these disks of the machine; their files are made anew.
///
/// # Errors
/// One sentence if a file cannot be made.
pub fn emulated(disks: &[Disk], folder: &Path) -> Result<Vec<String>, String> {
    let mut arguments = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let (name, path) = (disk.name, folder.join(format!("{}.disk", disk.name)));
        let file = File::create(&path).and_then(|file| file.set_len(disk.size_mib << 20));
        file.map_err(|error| format!("{}: {error}", path.display()))?;
        let file =
            format!("driver=raw,node-name=file-{name},discard=unmap,file.driver=file,file.filename={}", path.display());
        let slot = format!("pcie-root-port,id=slot-{name},chassis={},slot={}", number + 1, number + 1);
        let words = ["-blockdev".into(), file, "-device".into(), slot, "-device".into(), device(disk)];
        arguments.extend(words);
    }
    if !disks.is_empty() {
        let socket = format!("socket,id=plugs,path={},server=on,wait=off", folder.join(MONITOR).display());
        arguments.extend(["-chardev".into(), socket, "-mon".into(), "chardev=plugs".into()]);
    }
    Ok(arguments)
}

/// Does what a job asks of its disks by `NUMBER unplug NAME` and `NUMBER plug NAME`, and answers by the number.
pub fn pluggable(disks: &[Disk], folder: &Path, asked: &str) {
    let words: Vec<&str> = asked.split(' ').collect();
    let known = |name: &str| disks.iter().find(|disk| disk.name == name);
    let done = match words[..] {
        [number, "unplug", name] if known(name).is_some() => Ok((number, format!("device_del {name}"))),
        [number, "plug", name] => {
            known(name).map(|disk| (number, format!("device_add {}", device(disk)))).ok_or("there is no such disk")
        }
        _ => Err("nobody here knows how"),
    };
    let answer = |number: &str| std::fs::write(folder.join("share/answer"), number).map_err(|error| error.to_string());
    let done = done.map_err(|why| format!("a guest asks for {asked:?}: {why}"));
    // The guest waits in vain, and says so.
    if let Err(sentence) =
        done.and_then(|(number, command)| guest::command(&folder.join(MONITOR), &command).and_then(|()| answer(number)))
    {
        eprintln!("  {sentence}");
    }
}
