//! Settings of cgroups that have no effect under the scheduler, callbacks that an older kernel lacks, and the time
//! after which a scheduler that was taken out comes back.

use crate::settings::By;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest pause before a scheduler that was taken out is loaded again.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A scheduler that was in force for so long has not failed at once: the next pause is a second again.
const LONG: Duration = Duration::from_secs(600);

/// Times that the kernel took the scheduler out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restarts {
    most: u32,
    failed: u32,
}

impl Restarts {
    /// At most `most` restarts on end.
    pub fn new(most: u32) -> Restarts {
        Restarts { most, failed: 0 }
    }

    /// The kernel took the scheduler out after that time. Returns the pause before it is loaded again: 1 s, then twice
    /// as long each time up to 60 s; `None`: it is not.
    pub fn next(&mut self, in_force: Duration) -> Option<Duration> {
        if in_force >= LONG {
            self.failed = 0;
        }
        self.failed += 1;
        (self.failed <= self.most).then(|| PAUSE_MAX.min(Duration::from_secs(1 << (self.failed - 1).min(6))))
    }
}

/// Callbacks about cgroups; some kernels lack them, or the last one.
pub const OF_CGROUPS: [&str; 5] = ["cgroup_init", "cgroup_exit", "cgroup_move", "cgroup_set_weight", "cgroup_set_idle"];

/// Callbacks that a kernel lacks, and a sentence about what does not work for that reason.
///
/// # Errors
/// One sentence: the scheduler is of no use on this kernel.
pub fn left_out(has: impl Fn(&str) -> bool, by: By) -> Result<(Vec<&'static str>, Option<&'static str>), String> {
    let lacks: Vec<&str> = OF_CGROUPS.into_iter().filter(|name| !has(name)).collect();
    match (by, lacks.as_slice()) {
        (By::Process, _) | (By::Cgroup, []) => Ok((lacks, None)),
        (By::Cgroup, ["cgroup_set_idle"]) => {
            let sentence =
                "Linux before 6.19 tells of no change of cpu.idle: one counts once the scheduler is loaded again";
            Ok((lacks, Some(sentence)))
        }
        (By::Cgroup, _) => {
            Err("this kernel's sched_ext knows no cgroups (CONFIG_EXT_GROUP_SCHED), `--by process` needs none".into())
        }
    }
}

/// Files of the cgroups below `root` that set an upper limit, in order.
fn limits(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        let inside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        open.extend(inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
        let path = folder.join("cpu.max");
        let max = std::fs::read_to_string(&path).unwrap_or_default();
        if max.split_whitespace().next().is_some_and(|quota| quota != "max") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// # Errors
/// One sentence: a cgroup below `root` has an upper limit, which the scheduler does not enforce.
pub fn refuse_limits(root: &Path) -> Result<(), String> {
    let found = limits(root);
    let Some(first) = found.first() else { return Ok(()) };
    let others = if found.len() > 1 { format!(" and {} more set", found.len() - 1) } else { " sets".into() };
    Err(format!(
        "{}{others} an upper limit, and this scheduler enforces none: write `max` there, or use `--ignore-cpu-max`",
        first.display()
    ))
}

/// Sentences about the cgroups below `root` that a user should know, without those in `said`, to which they are added.
pub fn warnings(root: &Path, said: &mut BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    let enabled = std::fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    if !enabled.split_whitespace().any(|word| word == "cpu") {
        let path = root.join("cgroup.subtree_control");
        found.push(format!(
            "no cgroup has the cpu controller (`echo +cpu > {}`), so all processes are one program",
            path.display()
        ));
    }
    let of = |path: &PathBuf| format!("{} has no effect: this scheduler sets no upper limit", path.display());
    found.extend(limits(root).iter().map(of));
    found.sort();
    found.retain(|sentence| said.insert(sentence.clone()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_anew_after_ten_minutes_in_force() {
        let mut restarts = Restarts::new(8);
        let pauses: Vec<u64> =
            (0..8).filter_map(|_| restarts.next(Duration::from_secs(3))).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(restarts.next(Duration::from_secs(599)), None);
        assert_eq!(restarts.next(LONG), Some(Duration::from_secs(1)));
        assert_eq!(Restarts::new(0).next(LONG), None);
    }

    #[test]
    fn an_older_kernel_is_told_what_it_lacks_or_refused() {
        let all = |_: &str| true;
        assert_eq!(left_out(all, By::Cgroup), Ok((vec![], None)));
        let (lacks, sentence) = left_out(|name| name != "cgroup_set_idle", By::Cgroup).unwrap();
        assert_eq!(lacks, ["cgroup_set_idle"]);
        assert!(sentence.unwrap().contains("6.19"), "{sentence:?}");
        let none = |name: &str| !name.starts_with("cgroup_");
        assert!(left_out(none, By::Cgroup).unwrap_err().contains("CONFIG_EXT_GROUP_SCHED"));
        assert_eq!(left_out(none, By::Process), Ok((OF_CGROUPS.to_vec(), None)));
    }

    #[test]
    fn limits_are_refused_and_what_has_no_effect_is_said_once() {
        let root = std::env::temp_dir().join(format!("scx-pmqfq-host-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cgroup.subtree_control", "cpuset memory\n");
        write("a/cpu.max", "max 100000\n");
        write("a/b/cpu.max", "50000 100000\n");
        let mut said = BTreeSet::new();
        let first = warnings(&root, &mut said);
        assert_eq!(first.len(), 2, "{first:?}");
        assert!(first[0].contains("a/b/cpu.max has no effect: this scheduler sets no upper limit"), "{first:?}");
        assert!(first[1].ends_with("so all processes are one program"), "{first:?}");
        assert!(warnings(&root, &mut said).is_empty());
        let refusal = refuse_limits(&root).unwrap_err();
        assert!(
            refusal.contains("a/b/cpu.max sets an upper limit") && refusal.contains("--ignore-cpu-max"),
            "{refusal}"
        );
        write("cgroup.subtree_control", "cpuset cpu memory\n");
        write("d/cpu.max", "1000 100000\n");
        assert_eq!(warnings(&root, &mut said).len(), 1);
        assert!(refuse_limits(&root).unwrap_err().contains("a/b/cpu.max and 1 more set"));
        write("a/b/cpu.max", "max 100000\n");
        write("d/cpu.max", "max 100000\n");
        assert_eq!(refuse_limits(&root), Ok(()));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
