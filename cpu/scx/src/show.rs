//! The table of programs and their CPU time, as text for people and as JSON.

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapMut};
use scx_pmqfq::program::{self, Program};
use scx_pmqfq::{check, trace};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the table is while a scheduler is in force.
const FOLDER: &str = "/sys/fs/bpf/scx_pmqfq";

fn pinned() -> PathBuf {
    Path::new(FOLDER).join("programs")
}

/// Puts the table where `top` finds it. One of a process that was killed is replaced.
pub fn pin(map: &mut MapMut<'_>) -> Result<(), String> {
    unpin();
    std::fs::create_dir_all(FOLDER).map_err(|error| format!("{FOLDER}: {error}"))?;
    map.pin(pinned()).map_err(|error| format!("{}: {error:#}", pinned().display()))
}

/// Takes it away.
pub fn unpin() {
    let _ = std::fs::remove_file(pinned());
    let _ = std::fs::remove_dir(FOLDER);
}

/// The programs that there are, by slot.
pub fn programs(map: &impl MapCore) -> Result<Vec<(u32, Program)>, String> {
    let mut found = Vec::new();
    for slot in 0..program::PROGRAMS_MAX {
        let bytes =
            map.lookup(&slot.to_le_bytes(), MapFlags::ANY).map_err(|error| format!("the programs: {error:#}"))?;
        let program = bytes.as_deref().and_then(Program::read);
        found.extend(program.filter(|program| program.id != 0).map(|program| (slot, program)));
    }
    Ok(found)
}

/// A look as one JSON object: each program's share since `before`, or since it began.
pub fn json(now: &[(u32, Program)], before: Option<(&HashMap<u32, Program>, f64)>) -> Value {
    let names = names();
    let rows = program::shares(now, before.map(|(before, _)| before));
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "program": name(&names, row.program.id), "id": row.program.id, "weight": row.program.weight,
                "share_due_percent": row.due_percent, "share_percent": row.got_percent, "cpu_ns": row.served_ns,
                "behind_ns": row.behind_ns, "dispatches": row.dispatches, "migrations": row.migrations,
                "preemptions": row.preemptions, "preempted": row.preempted, "lag_cuts": row.program.cuts,
            })
        })
        .collect();
    json!({ "version": 1, "seconds": before.map(|(_, seconds)| seconds), "programs": rows })
}

/// Folders of cgroups by id, relative to their root.
fn names() -> HashMap<u64, String> {
    let root = Path::new("/sys/fs/cgroup");
    let mut found = HashMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        if let Ok(about) = folder.metadata() {
            let name = folder.strip_prefix(root).unwrap_or(&folder).display().to_string();
            found.insert(about.ino(), format!("/{name}"));
        }
        let inside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        open.extend(inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    found
}

fn name(cgroups: &HashMap<u64, String>, id: u64) -> String {
    let process = || std::fs::read_to_string(format!("/proc/{id}/comm")).ok().map(|name| name.trim().to_owned());
    cgroups.get(&id).cloned().or_else(process).unwrap_or_else(|| id.to_string())
}

/// `scx_pmqfq top`.
pub fn top(interval_s: u64, count: u64, as_json: bool) -> Result<(), String> {
    let map = MapHandle::from_pinned_path(pinned())
        .map_err(|_| format!("no scheduler of this name is in force, or /sys/fs/bpf is not mounted ({FOLDER})"))?;
    let mut before: HashMap<u32, Program> = programs(&map)?.into_iter().collect();
    let mut since = Instant::now();
    let mut looks = 0;
    while count == 0 || looks < count {
        std::thread::sleep(Duration::from_secs(interval_s));
        let now = programs(&map)?;
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        if as_json {
            println!("{}", json(&now, Some((&before, seconds))));
        } else {
            table(&now, &before, seconds);
        }
        before = now.into_iter().collect();
        looks += 1;
    }
    Ok(())
}

fn table(now: &[(u32, Program)], before: &HashMap<u32, Program>, seconds: f64) {
    let names = names();
    let mut rows = program::shares(now, Some(before));
    rows.retain(|row| row.served_ns > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.served_ns));
    println!(
        "{:<28} {:>6} {:>6} {:>6} {:>6} {:>10} {:>10} {:>11}",
        "program", "weight", "due %", "got %", "cores", "behind ms", "migrations", "preemptions"
    );
    for row in rows {
        println!(
            "{:<28} {:>6} {:>6.1} {:>6.1} {:>6.2} {:>10.1} {:>10} {:>11}",
            name(&names, row.program.id),
            row.program.weight,
            row.due_percent,
            row.got_percent,
            row.served_ns as f64 / 1e9 / seconds,
            row.behind_ns as f64 / 1e6,
            row.migrations,
            row.preemptions
        );
    }
    println!();
}

/// `scx_pmqfq check`.
pub fn check(path: &Path, as_json: bool) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (head, events) = trace::read(&bytes).map_err(|sentence| format!("{}: {sentence}", path.display()))?;
    let found = check::check(&head, &events);
    if as_json {
        println!("{}", found.json());
    } else {
        println!("{found}");
    }
    found.verdict()
}

/// The manual page, of the options as they are.
pub fn man() -> Result<(), String> {
    use clap::CommandFactory;
    let page = clap_mangen::Man::new(crate::Command::command());
    page.render(&mut std::io::stdout()).map_err(|error| error.to_string())
}
