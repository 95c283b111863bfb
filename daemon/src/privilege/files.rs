//! Which files may a server touch? Those that its config names, by Landlock.
//!
//! | | `"live"` | `"strict"` |
//! |---|---|---|
//! | devices' files | everything in their folders; in /dev, the devices there | the files |
//! | unix sockets | everything in their folders | their folders, to make and remove sockets |
//! | the config, certificates, tokens | everything in their folders | their folders, to be read |
//! | the config, with `save = "always"` | the same | the folder, to make, write, rename and remove files |
//! | the trace | everything in its folder | the same |
//! | `paths` | everything | nothing |
//! | /proc, /sys, what looking up a name needs | to be read | to be read |
//!
//! `/` is never such a folder, unless `paths` names it. Nothing may be executed. Open files stay open. Source:
//! landlock(7); rights of its third version, which Linux 6.2 has. An older kernel does what it can, and a note says so.

use crate::config::Level;
use crate::config::control::Save;
use crate::config::{ControlConfig, Medium, Plan};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use mqfq_front::socket::SocketAddress;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Paths read by the C library to look up a host, and by us to learn of drives and processors.
const READ: [&str; 15] = [
    // For the descriptor kept in reserve.
    "/dev/null",
    "/proc",
    "/sys",
    "/usr/lib",
    "/lib",
    "/lib64",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/run/systemd/resolve",
];

const VERSION: ABI = ABI::V3;

/// The paths of a config.
#[derive(Default, Debug)]
pub struct Grants {
    devices: BTreeSet<PathBuf>,
    /// Folders of what front ends and pools open while they serve.
    folders: BTreeSet<PathBuf>,
    sockets: BTreeSet<PathBuf>,
    /// Files that are read again when they change.
    texts: BTreeSet<PathBuf>,
    /// The config, if the server saves changes in it.
    saved: Option<PathBuf>,
    trace: PathBuf,
}

impl Grants {
    /// The paths of a server.
    pub fn new(config: &Path, trace: &Path, control: Option<&ControlConfig>, plan: &Plan) -> Grants {
        let mut grants = Grants { trace: trace.to_owned(), ..Grants::default() };
        grants.texts.insert(config.to_owned());
        grants.saved = control.filter(|control| control.save == Save::Always).map(|_| config.to_owned());
        for device in plan.devices.values() {
            match &device.config.medium {
                Medium::File { path, .. } => drop(grants.devices.insert(path.value.clone())),
                // In /dev names are links: see `config/pools.rs`.
                Medium::Pool { folders, .. } => grants.folders.extend(folders.iter().map(|folder| match folder {
                    folder if folder.starts_with("/dev") => PathBuf::from("/dev"),
                    folder => folder.clone(),
                })),
                _ => {}
            }
        }
        let folders = plan.listeners.iter().flat_map(|(address, _)| address.address().folders());
        grants.folders.extend(folders.map(PathBuf::from));
        let claims = plan.listeners.iter().filter_map(|(address, _)| address.address().claim());
        grants.sockets.extend(claims.filter_map(|claim| claim.strip_prefix("unix:").map(PathBuf::from)));
        let listen = control.iter().flat_map(|control| &control.listen).chain(&plan.server.upgrade);
        grants.sockets.extend(listen.filter_map(|address| match address {
            SocketAddress::Unix(path) => Some(path.clone()),
            SocketAddress::Tcp { .. } => None,
        }));
        grants.texts.extend(control.and_then(|control| control.token_file.as_ref()).map(|file| file.value.clone()));
        for files in plan.trust.files.iter().chain(plan.trust.control.iter().map(|(files, _)| files)) {
            grants.texts.extend([files.certificate.clone(), files.key.clone()]);
            grants.texts.extend(files.client_ca.iter().chain(&files.client_crl).cloned());
        }
        grants
    }

    /// One path of each kind, for tests.
    #[cfg(test)]
    pub(super) fn of_paths(device: &Path, socket: &Path, config: &Path) -> Grants {
        let one = |path: &Path| BTreeSet::from([path.to_owned()]);
        let trace = socket.with_file_name("trace");
        Grants { devices: one(device), sockets: one(socket), texts: one(config), trace, ..Grants::default() }
    }

    /// The allowed accesses, by path.
    fn rules(&self, level: Level, paths: &[PathBuf]) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
        let read = AccessFs::from_read(VERSION) & !AccessFs::Execute;
        let all = AccessFs::from_all(VERSION) & !AccessFs::Execute;
        let files = AccessFs::from_file(VERSION) & !AccessFs::Execute;
        let sockets = AccessFs::ReadDir | AccessFs::RemoveFile | AccessFs::MakeSock;
        let mut rules: Vec<(PathBuf, BitFlags<AccessFs>)> = READ.iter().map(|path| (path.into(), read)).collect();
        rules.push((folder(&self.trace), all));
        rules.extend(self.folders.iter().map(|folder| (folder.clone(), files)));
        match level {
            Level::Off => {}
            Level::Live => {
                let named = self.devices.iter().chain(&self.sockets).chain(&self.texts);
                rules.extend(named.map(|path| folder(path)).map(|folder| {
                    let of_folder = if folder == Path::new("/dev") { files } else { all };
                    (folder, of_folder)
                }));
                rules.extend(paths.iter().map(|path| (path.clone(), all)));
            }
            Level::Strict => {
                rules.extend(self.devices.iter().map(|path| (path.clone(), files)));
                rules.extend(self.sockets.iter().map(|path| (folder(path), sockets)));
                rules.extend(self.texts.iter().map(|path| (folder(path), read)));
                let write = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
                rules.extend(self.saved.iter().map(|path| (folder(path), read | write)));
            }
        }
        rules
    }

    /// Keeps this thread, and those that it starts, from all other files. Returns a sentence if the kernel cannot do
    /// that.
    ///
    /// # Errors
    /// One sentence: the rules could not be made.
    pub(super) fn restrict(&self, level: Level, paths: &[PathBuf]) -> Result<Option<String>, String> {
        if level == Level::Off {
            return Ok(None);
        }
        let mut rules = self.rules(level, paths);
        let failed = |error: &dyn std::error::Error| format!("cannot restrict the files that it may touch: {error}");
        // A server that was started in / with a relative path would have everything.
        let is_root = |path: &Path| std::fs::canonicalize(path).is_ok_and(|path| path == Path::new("/"));
        rules.retain(|(path, _)| !is_root(path) || paths.contains(path));
        let rules = rules.into_iter().flat_map(|(path, access)| path_beneath_rules([path], access));
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(VERSION))
            .and_then(Ruleset::create)
            .and_then(|ruleset| ruleset.add_rules(rules))
            .and_then(|ruleset| ruleset.restrict_self())
            .map_err(|error| failed(&error))?;
        Ok(match status.ruleset {
            RulesetStatus::FullyEnforced => None,
            RulesetStatus::PartiallyEnforced => {
                Some("sandbox: this kernel is older than 6.2 and restricts files in part".to_owned())
            }
            RulesetStatus::NotEnforced => {
                Some("sandbox: this kernel has no Landlock, so files are as open as the user may".to_owned())
            }
        })
    }
}

/// The folder of a path.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        None => path.to_owned(),
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rights beneath the folder of the config, which has nothing else.
    fn of_config(level: Level, saved: bool) -> BitFlags<AccessFs> {
        let config = PathBuf::from("/config/c.toml");
        let grants = Grants::of_paths(Path::new("/dev/x"), Path::new("/sockets/s"), &config);
        let grants = Grants { saved: saved.then_some(config), ..grants };
        let rules = grants.rules(level, &[]).into_iter().filter(|(path, _)| path == Path::new("/config"));
        rules.map(|(_, rights)| rights).fold(BitFlags::EMPTY, |all, rights| all | rights)
    }

    #[test]
    fn beside_the_config_a_strict_sandbox_writes_only_if_the_server_saves_there() {
        let needed = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
        assert!(of_config(Level::Strict, true).contains(needed | AccessFs::ReadFile));
        assert!(!of_config(Level::Strict, true).intersects(AccessFs::Execute | AccessFs::MakeSock | AccessFs::MakeSym));
        assert!(!of_config(Level::Strict, false).intersects(needed));
        assert!(of_config(Level::Live, true).contains(needed));
    }

    /// The rights of each path, in its order; the paths that every server reads are left out.
    fn table(level: Level) -> Vec<(String, BitFlags<AccessFs>)> {
        let two = |paths: [&str; 2]| paths.map(PathBuf::from).into();
        let grants = Grants {
            devices: two(["/dev/x", "/disks/y"]),
            folders: two(["/ublk", "/ublk2"]),
            sockets: two(["/run/a/s", "/run/b/s"]),
            texts: two(["/etc/m/c.toml", "/keys/k.pem"]),
            saved: Some(PathBuf::from("/etc/m/c.toml")),
            trace: PathBuf::from("/trace/t"),
        };
        let paths = ["/more", "/most"].map(PathBuf::from);
        let rules = grants.rules(level, &paths);
        let own = rules.into_iter().filter(|(path, _)| !READ.iter().any(|read| path == Path::new(read)));
        own.map(|(path, rights)| (path.display().to_string(), rights)).collect()
    }

    #[test]
    fn each_level_gives_each_kind_of_path_the_rights_of_the_table() {
        let read = AccessFs::from_read(VERSION) & !AccessFs::Execute;
        let all = AccessFs::from_all(VERSION) & !AccessFs::Execute;
        let files = AccessFs::from_file(VERSION) & !AccessFs::Execute;
        let sockets = AccessFs::ReadDir | AccessFs::RemoveFile | AccessFs::MakeSock;
        let save = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile;
        let always = [("/trace", all), ("/ublk", files), ("/ublk2", files)];
        let live = [
            [("/dev", files), ("/disks", all)],
            [("/run/a", all), ("/run/b", all)],
            [("/etc/m", all), ("/keys", all)],
            [("/more", all), ("/most", all)],
        ];
        let strict = [("/dev/x", files), ("/disks/y", files), ("/run/a", sockets), ("/run/b", sockets)];
        let strict = [&strict[..], &[("/etc/m", read), ("/keys", read), ("/etc/m", save)]].concat();
        let expected = [(Level::Off, vec![]), (Level::Live, live.concat()), (Level::Strict, strict)];
        for (level, rights) in expected {
            let rights = always.into_iter().chain(rights).map(|(path, rights)| (path.to_owned(), rights));
            assert_eq!(table(level), rights.collect::<Vec<_>>(), "{level:?}");
        }
        let grants = Grants::of_paths(Path::new("/dev/x"), Path::new("/s/s"), Path::new("/c/c"));
        let rules = grants.rules(Level::Strict, &[]);
        READ.iter().for_each(|path| assert!(rules.contains(&(PathBuf::from(path), read)), "{path}"));
    }
}
