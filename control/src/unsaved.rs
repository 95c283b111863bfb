//! Which changes does the config file not have?
//!
//! A difference is kept for each thing, so that a change of one thing among ten thousand compares that thing alone.

use crate::document::{Document, json};
use crate::model::{KeyChange, Kind};
use mqfq_config::text::{counted, shown};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A thing by kind and name. `None`: all else in the document.
pub type ThingKey = Option<(Kind, String)>;

/// Changes that a refusal names.
const TOLD_MAX: usize = 16;

/// The file's document, and how the configured document differs from it.
pub struct Unsaved {
    file: Document,
    /// From the file's value to the configured one. No list is empty.
    changes: BTreeMap<ThingKey, Vec<KeyChange>>,
}

impl Unsaved {
    /// The file and the configured document say `file`.
    pub fn new(file: Document) -> Unsaved {
        Unsaved { file, changes: BTreeMap::new() }
    }

    /// The configured document is `document`, after a change of `thing` alone.
    pub fn follow(&mut self, document: &Document, thing: (Kind, &str)) {
        let changes = self.file.only(thing.0, thing.1).changes_to(&document.only(thing.0, thing.1));
        let key = Some((thing.0, thing.1.to_owned()));
        match changes.is_empty() {
            true => drop(self.changes.remove(&key)),
            false => drop(self.changes.insert(key, changes)),
        }
    }

    /// The configured document is `document`, after any change.
    pub fn follow_all(&mut self, document: &Document) {
        self.changes.clear();
        let rest = self.file.without_things().changes_to(&document.without_things());
        if !rest.is_empty() {
            self.changes.insert(None, rest);
        }
        for kind in Kind::ALL {
            let names = |of: &Document| of.names(kind).map(str::to_owned).collect::<BTreeSet<String>>();
            let all = &names(&self.file) | &names(document);
            all.iter().for_each(|name| self.follow(document, (kind, name)));
        }
    }

    /// The file says `file` from now on, and the configured document is `document`.
    pub fn read(&mut self, file: Document, document: &Document) {
        self.file = file;
        self.follow_all(document);
    }

    /// The changes.
    pub fn changes(&self) -> impl Iterator<Item = &KeyChange> {
        self.changes.values().flatten()
    }

    /// The changes of each thing that has any.
    pub fn by_thing(&self) -> &BTreeMap<ThingKey, Vec<KeyChange>> {
        &self.changes
    }

    /// The changes that are lost if `file` takes the place of `document`, which is configured. A file that has a change
    /// loses nothing of it.
    pub fn lost_to(&self, file: &Document, document: &Document) -> Vec<KeyChange> {
        if self.changes.is_empty() {
            return Vec::new();
        }
        let differs: BTreeSet<String> = file.changes_to(document).into_iter().map(|change| change.key).collect();
        self.changes().filter(|change| differs.contains(&change.key)).cloned().collect()
    }
}

/// Returns the `changes` that `document` does not have.
pub fn missing(changes: Vec<KeyChange>, document: &Document) -> Vec<KeyChange> {
    let leaves = document.leaves();
    let has = |KeyChange { key, to, .. }: &KeyChange| match leaves.get(key.as_str()) {
        Some(value) => *to == json(value),
        // A section without keys may have some by now.
        None if to.is_object() => {
            leaves.range(format!("{key}.")..).next().is_some_and(|(at, _)| at.starts_with(&format!("{key}.")))
        }
        None => to.is_null(),
    };
    changes.into_iter().filter(|change| !has(change)).collect()
}

/// Why `lost` are not given up for the config file of this name.
pub fn refusal(lost: &[KeyChange], file: &str) -> String {
    let are = if lost.len() == 1 { "is" } else { "are" };
    format!(
        "{} {are} not in {} and would be lost: {}; allowed is mqfq ctl save before, or --discard-unsaved with mqfq ctl \
         reload or mqfq serve --replace",
        counted(lost.len(), "change"),
        shown(file),
        described(lost, TOLD_MAX)
    )
}

/// Changes in words: the first `most`, and how many more there are.
pub fn described(changes: &[KeyChange], most: usize) -> String {
    let text = |value: &Value| shown(&value.to_string());
    let of = |KeyChange { key, from, to }: &KeyChange| match (from, to) {
        (Value::Null, to) => format!("{key} = {}", text(to)),
        (from, Value::Null) => format!("{key} is gone (was {})", text(from)),
        (from, to) => format!("{key} {} -> {}", text(from), text(to)),
    };
    let first: Vec<String> = changes.iter().take(most).map(of).collect();
    let more = changes.len().saturating_sub(most);
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Edit;
    use serde_json::{Map, json};

    const FILE: &str = "[server]\npin = true\n[tenant.web]\nweight = 300\n[tenant.db]\n";

    fn keys(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn document(text: &str) -> Document {
        Document::parse(text).unwrap()
    }

    /// Any order of changes, one by one, leaves the same as a look at everything.
    #[test]
    fn changes_one_by_one_are_those_of_everything_at_once() {
        let tenant = |name: &str| (Kind::Tenant, name.to_owned());
        let patch = |name: &str, value| Edit::Patch(Kind::Tenant, name.into(), keys(value));
        let put = |name: &str, value| Edit::Put(Kind::Tenant, name.into(), keys(value));
        let (mut unsaved, mut now) = (Unsaved::new(document(FILE)), document(FILE));
        for (edit, (kind, name), wanted) in [
            (patch("web", json!({ "weight": 400 })), tenant("web"), "tenant.web.weight 300 -> 400"),
            (put("new", json!({})), tenant("new"), "tenant.new = {}, tenant.web.weight 300 -> 400"),
            (
                patch("new", json!({ "weight": 7 })),
                tenant("new"),
                "tenant.new.weight = 7, tenant.web.weight 300 -> 400",
            ),
            (patch("web", json!({ "weight": 300 })), tenant("web"), "tenant.new.weight = 7"),
            (Edit::Delete(Kind::Tenant, "new".into()), tenant("new"), ""),
            (Edit::Delete(Kind::Tenant, "db".into()), tenant("db"), "tenant.db is gone (was {})"),
        ] {
            now = now.edited(&edit).unwrap();
            unsaved.follow(&now, (kind, &name));
            let told_now = |unsaved: &Unsaved| described(&unsaved.changes().cloned().collect::<Vec<_>>(), 9);
            assert_eq!(told_now(&unsaved), wanted);
            let mut whole = Unsaved::new(document(FILE));
            whole.follow_all(&now);
            assert_eq!(whole.by_thing(), unsaved.by_thing());
        }
        now = document("[server]\npin = false\n[tenant.web]\nweight = 300\n");
        unsaved.follow_all(&now);
        assert_eq!(unsaved.by_thing()[&None][0].key, "server.pin");
    }

    #[test]
    fn changes_of_an_earlier_server_are_missing_where_the_document_says_something_else() {
        let change = |key: &str, to: Value| KeyChange { key: key.into(), from: Value::Null, to };
        let all = vec![
            change("tenant.web.weight", json!(300)),
            change("tenant.web.class", json!("idle")),
            change("tenant.web", json!({})),
            change("tenant.db", json!({})),
            change("tenant.new", json!({})),
            change("tenant.old", Value::Null),
            change("server.pin", Value::Null),
        ];
        let missing: Vec<String> = missing(all, &document(FILE)).into_iter().map(|change| change.key).collect();
        assert_eq!(missing, ["tenant.web.class", "tenant.new", "server.pin"]);
    }

    #[test]
    fn a_file_that_has_a_change_loses_nothing_of_it() {
        let now = document(&FILE.replace("300", "400").replace("[tenant.db]\n", "[tenant.db]\nclass = \"idle\"\n"));
        let mut unsaved = Unsaved::new(document(FILE));
        unsaved.follow_all(&now);
        let lost = |text: &str| {
            let lost = unsaved.lost_to(&document(text), &now);
            lost.into_iter().map(|change| change.key).collect::<Vec<_>>()
        };
        assert_eq!(lost(FILE), ["tenant.db.class", "tenant.web.weight"]);
        assert_eq!(lost(&FILE.replace("300", "400")), ["tenant.db.class"]);
        assert_eq!(lost(&now.text().0), [] as [&str; 0]);
        assert_eq!(lost("[tenant.web]\nweight = 5\n"), ["tenant.db.class", "tenant.web.weight"]);
        unsaved.read(now.clone(), &now);
        assert_eq!(unsaved.changes().count(), 0);
    }
}
