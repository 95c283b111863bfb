//! How does an answer look? Tables and sentences for people.

use crate::events::Event;
use crate::model::{Applied, KeyChange, Kind, SetBy, Status, Thing, Via};
use mqfq_config::size;
use mqfq_config::text::{counted, list, sentence, shown};
use mqfq_report::table::{Align, Table};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Service that tenants receive, as the server answers.
#[derive(Deserialize)]
pub(super) struct Shares {
    pub(super) shares: Vec<Share>,
}

/// Parts of one device's service over the last seconds.
#[derive(Deserialize)]
pub(super) struct Share {
    pub(super) device: String,
    /// `TENANT/EXPORT` if exports have weights.
    pub(super) tenant: String,
    pub(super) share: f64,
    pub(super) entitled: f64,
}

/// A value as one writes it on the command line; `-`: there is none.
pub(super) fn value(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => shown(text),
        Some(Value::Array(items)) => items.iter().map(|item| self::value(Some(item))).collect::<Vec<_>>().join(" "),
        Some(other) => sentence(&other.to_string()),
    }
}

/// Keys whose numbers are bytes.
const OF_BYTES: [&str; 6] = ["max-bytes-per-s", "memory", "offset", "payload-max", "size", "staged-bytes"];

/// The value of a key; bytes in units.
fn value_of(key: &str, of_key: Option<&Value>) -> String {
    match of_key.and_then(Value::as_u64).filter(|_| OF_BYTES.contains(&key)) {
        Some(bytes) => size::display(bytes),
        None => value(of_key),
    }
}

/// A change of a key in words. A table without keys comes or goes with its thing.
fn change(KeyChange { key, from, to }: &KeyChange) -> String {
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    match (from, to) {
        (Value::Null, to) if is_empty(to) => format!("{key}: added"),
        (from, Value::Null) if is_empty(from) => format!("{key}: removed"),
        (from, to) => format!("{key}: {} -> {}", value(Some(from)), value(Some(to))),
    }
}

pub(super) fn status(status: &Status, address: &str) -> String {
    let mut table = Table::new(&[("mqfq", Align::Left), (address, Align::Left)]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("version", status.version.clone());
    row("pid", status.pid.to_string());
    row("up", uptime(status.uptime_s));
    row("workers", status.workers.to_string());
    row("config", status.config.as_deref().map_or("-".to_owned(), shown));
    row("revision", status.revision.to_string());
    if status.unsaved > 0 {
        row("unsaved", format!("{}, see mqfq ctl diff and save", counted(status.unsaved, "change")));
    }
    row("listens", status.listen.join(" "));
    for (kind, number) in &status.things {
        row(kind, number.to_string());
    }
    for (device, state) in &status.troubled {
        row(&format!("device {}", shown(device)), shown(state));
    }
    if status.draining {
        row("state", "draining".to_owned());
    }
    table.render()
}

fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// As [`things`], with the parts of devices that each tenant received and was entitled to.
pub(super) fn tenants(tenants: &[Thing], shares: &[Share]) -> String {
    let of = |tenant: &str, part: fn(&Share) -> f64| {
        let mut by_device: BTreeMap<&str, f64> = BTreeMap::new();
        let is_its = |share: &&Share| share.tenant.split('/').next() == Some(tenant);
        for share in shares.iter().filter(is_its) {
            *by_device.entry(&share.device).or_default() += part(share);
        }
        let shown = by_device.iter().map(|(device, part)| format!("{} {:.1}%", shown(device), part * 100.0));
        let all = shown.collect::<Vec<_>>().join(", ");
        if all.is_empty() { "-".to_owned() } else { all }
    };
    rows(
        Kind::Tenant,
        tenants,
        &[
            ("received", &|thing| of(&thing.name, |share| share.share)),
            ("entitled", &|thing| of(&thing.name, |share| share.entitled)),
        ],
    )
}

/// A row for each thing: what is in force, or configured if nothing uses it.
pub(super) fn things(kind: Kind, things: &[Thing]) -> String {
    rows(kind, things, &[])
}

/// A column more: its name, and what it has of a thing.
type Column<'a> = (&'static str, &'a dyn Fn(&Thing) -> String);

fn rows(kind: Kind, things: &[Thing], more: &[Column<'_>]) -> String {
    let keys: BTreeSet<&String> =
        things.iter().flat_map(|thing| thing.in_force.keys().chain(thing.configured.keys())).collect();
    let mut columns = vec![(kind.section(), Align::Left)];
    columns.extend(keys.iter().map(|key| (key.as_str(), Align::Left)));
    columns.extend(more.iter().map(|(name, _)| (*name, Align::Left)));
    columns.extend([("in use", Align::Left), ("revision", Align::Right)]);
    let mut table = Table::new(&columns);
    for thing in things {
        let mut row = vec![shown(&thing.name)];
        let of = |key: &&String| value_of(key, thing.in_force.get(*key).or(thing.configured.get(*key)));
        row.extend(keys.iter().map(of));
        row.extend(more.iter().map(|(_, of)| of(thing)));
        let is_used = if thing.in_force.is_empty() { "no" } else { "yes" };
        row.extend([is_used.to_owned(), thing.revision.to_string()]);
        table.row(row);
    }
    table.render()
}

/// A row for each key: configured, in force, author. `users`: the things that name it.
pub(super) fn thing(thing: &Thing, users: &[(Kind, &str)]) -> String {
    let columns = ["key", "configured", "in force", "set by", "at"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    let keys: BTreeSet<&String> = thing.in_force.keys().chain(thing.configured.keys()).collect();
    for key in keys {
        let set_by = thing.set_by.get(key);
        table.row(vec![
            key.clone(),
            value_of(key, thing.configured.get(key)),
            value_of(key, thing.in_force.get(key)),
            set_by.map_or("default".to_owned(), who),
            set_by.map_or("-".to_owned(), |set_by| set_by.at.clone()),
        ]);
    }
    let used = if thing.in_force.is_empty() { "; no export uses it" } else { "" };
    let mut text = table.render();
    for user in Kind::ALL {
        let names: Vec<&str> = users.iter().filter(|(kind, _)| *kind == user).map(|(_, name)| *name).collect();
        if !names.is_empty() {
            text += &format!("{}: {}\n", user.plural(), list(names.into_iter()));
        }
    }
    text + &format!("revision {}{used}\n", thing.revision)
}

/// Author of a value, as text.
pub(super) fn who(SetBy { by, .. }: &SetBy) -> String {
    let way = match by.via {
        Via::File => "file",
        Via::Sighup => "SIGHUP",
        Via::Ctl => "ctl",
        Via::Http => "http",
    };
    let parts = [
        Some(way.to_owned()),
        by.uid.map(|uid| format!("uid {uid}")),
        by.pid.map(|pid| format!("pid {pid}")),
        by.address.as_deref().map(shown),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

pub(super) fn applied(applied: &Applied) -> String {
    let mut lines: Vec<String> = applied.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
    lines.extend(applied.changes.iter().map(change));
    let tense = if applied.dry_run { "would be in force" } else { "in force" };
    lines.extend(applied.done.iter().map(|done| format!("{tense}: {done}")));
    lines.push(match (applied.changed, applied.dry_run) {
        (false, _) => format!("nothing is different, revision {}", applied.revision),
        (true, true) => format!("only tried: still revision {}", applied.revision),
        (true, false) => format!("revision {}", applied.revision),
    });
    lines.iter().map(|line| format!("{}\n", sentence(line))).collect()
}

pub(super) fn event(Event { id, at, kind, sentence: said, data }: &Event) -> String {
    let by = data.get("by").and_then(|by| serde_json::from_value(by.clone()).ok());
    let by = by.map_or(String::new(), |by| format!(" ({})", who(&SetBy { by, at: String::new(), revision: 0 })));
    sentence(&format!("{at} {id} {kind}: {said}{by}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tenants_has_what_each_received_and_was_entitled_to_of_each_device() {
        let share = |device: &str, tenant: &str, share, entitled| Share {
            device: device.to_owned(),
            tenant: tenant.to_owned(),
            share,
            entitled,
        };
        let shares = [
            share("fast", "web", 0.52, 0.38),
            share("slow", "web", 1.0, 1.0),
            // Exports that have weights are of their tenant.
            share("fast", "db/a", 0.1, 0.2),
            share("fast", "db/b", 0.15, 0.25),
        ];
        let thing = |name: &str| Thing {
            name: name.to_owned(),
            revision: 1,
            configured: Default::default(),
            in_force: Default::default(),
            set_by: Default::default(),
        };
        let text = tenants(&["web", "db", "idle"].map(thing), &shares);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").filter(|it| !it.is_empty()).map(str::trim).collect()).collect();
        assert_eq!(rows[0][..3], ["tenant", "received", "entitled"], "{text}");
        assert_eq!(rows[2][..3], ["web", "fast 52.0%, slow 100.0%", "fast 38.0%, slow 100.0%"], "{text}");
        assert_eq!(rows[3][..3], ["db", "fast 25.0%", "fast 45.0%"], "{text}");
        assert_eq!(rows[4][..3], ["idle", "-", "-"], "{text}");
    }
}
