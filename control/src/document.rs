//! The configured document as one value: the tables of a config file, without places and comments.
//!
//! Answers: what does an [`Edit`] make of a document, and in which keys do two documents differ? What keys mean is for
//! the config's reader, which gets the text of the result.

use crate::model::{Edit, Fault, KeyChange, Kind, Refusal};
use mqfq_config::join;
use mqfq_config::text::{did_you_mean, quoted};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Why a text is no TOML.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoToml {
    /// The line, from 1.
    pub line: usize,
    /// Why.
    pub why: String,
}

impl fmt::Display for NoToml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: not valid TOML: {}", self.line, self.why)
    }
}

/// Tables, and the text that they were read from.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Document {
    table: toml::Table,
    /// Text of a document that came as text; sentences about it give places in this text.
    text: Option<String>,
}

impl Document {
    /// The document that `text` is.
    ///
    /// # Errors
    /// It is not TOML.
    pub fn parse(text: &str) -> Result<Document, NoToml> {
        let table = text.parse::<toml::Table>().map_err(|error| NoToml {
            line: 1 + text[..error.span().map_or(0, |span| span.start)].matches('\n').count(),
            why: error.message().trim().replace('\n', ", "),
        })?;
        Ok(Document { table, text: Some(text.to_owned()) })
    }

    /// The document that these values are.
    ///
    /// # Errors
    /// A value that TOML has not.
    pub fn from_json(values: &Map<String, Value>) -> Result<Document, Refusal> {
        Ok(Document { table: table(values, "")?, text: None })
    }

    /// The text for the config's reader, and whether a user wrote it (then its lines mean something).
    pub fn text(&self) -> (String, bool) {
        match &self.text {
            Some(text) => (text.clone(), true),
            None => (self.table.to_string(), false),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Map<String, Value> {
        self.table.iter().map(|(key, value)| (key.clone(), json(value))).collect()
    }

    /// The tables.
    pub fn table(&self) -> &toml::Table {
        &self.table
    }

    /// Things of a kind: name and keys.
    pub fn things(&self, kind: Kind) -> impl Iterator<Item = (&str, Map<String, Value>)> {
        let section = self.table.get(kind.section()).and_then(toml::Value::as_table);
        section.into_iter().flatten().map(|(name, keys)| {
            let keys = keys.as_table().into_iter().flatten().map(|(key, value)| (key.clone(), json(value)));
            (name.as_str(), keys.collect())
        })
    }

    /// The things that name this one: by a key that is called as its section, as all sections name each other.
    pub fn users(&self, kind: Kind, name: &str) -> Vec<(Kind, &str)> {
        let named = |keys: &toml::Value| keys.get(kind.section()).and_then(toml::Value::as_str) == Some(name);
        let of = |user: Kind| {
            let things = self.table.get(user.section()).and_then(toml::Value::as_table).into_iter().flatten();
            things.filter(move |(_, keys)| named(keys)).map(move |(name, _)| (user, &**name))
        };
        Kind::ALL.into_iter().flat_map(of).collect()
    }

    /// Names of things of a kind.
    pub(crate) fn names(&self, kind: Kind) -> impl Iterator<Item = &str> {
        self.table.get(kind.section()).and_then(toml::Value::as_table).into_iter().flatten().map(|(name, _)| &**name)
    }

    /// All but the things.
    pub(crate) fn without_things(&self) -> Document {
        let is_rest = |key: &str| Kind::ALL.iter().all(|kind| kind.section() != key);
        let rest = self.table.iter().filter(|(key, _)| is_rest(key));
        Document { table: rest.map(|(key, value)| (key.clone(), value.clone())).collect(), text: None }
    }

    /// There is such a thing.
    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.table.get(kind.section()).and_then(toml::Value::as_table).is_some_and(|table| table.contains_key(name))
    }

    /// One thing of a kind, if it is there.
    pub(crate) fn thing(&self, kind: Kind, name: &str) -> Option<Map<String, Value>> {
        let keys = self.table.get(kind.section())?.as_table()?.get(name)?.as_table()?;
        Some(keys.iter().map(|(key, value)| (key.clone(), json(value))).collect())
    }

    /// A thing is as it is in `from`: with these keys, or not there.
    pub(crate) fn replace(&mut self, kind: Kind, name: &str, mut from: Document) {
        let keys = from.table.get_mut(kind.section()).and_then(toml::Value::as_table_mut);
        let keys = keys.and_then(|things| things.remove(name));
        // The reader has accepted this document, so each section is a table.
        if let Ok(things) = section(&mut self.table, kind) {
            match keys {
                Some(keys) => drop(things.insert(name.to_owned(), keys)),
                None => drop(things.remove(name)),
            }
            if things.is_empty() {
                self.table.remove(kind.section());
            }
        }
        self.text = None;
    }

    /// Returns a document of this one thing alone; a change of the thing is found by it in a document of ten thousand.
    pub(crate) fn only(&self, kind: Kind, name: &str) -> Document {
        let thing = self.table.get(kind.section()).and_then(toml::Value::as_table).and_then(|things| things.get(name));
        let named = |thing: &toml::Value| toml::Table::from_iter([(name.to_owned(), thing.clone())]);
        let section = |thing| (kind.section().to_owned(), toml::Value::Table(named(thing)));
        Document { table: thing.map(section).into_iter().collect(), text: None }
    }

    /// Returns the document after `edit`.
    ///
    /// # Errors
    /// A value that TOML has not, or a thing that is to be changed or deleted and is not there.
    pub fn edited(&self, edit: &Edit) -> Result<Document, Refusal> {
        let missing = |kind: Kind, name: &str| {
            let things = self.table.get(kind.section()).and_then(toml::Value::as_table);
            let hint = did_you_mean(name, things.into_iter().flat_map(|things| things.keys().map(String::as_str)));
            let refusal = format!("there is no {} {}{hint}", kind.section(), quoted(name));
            Refusal { key: Some(key(&[kind.section(), name])), ..Refusal::new(Fault::Missing, refusal) }
        };
        let mut tables = self.table.clone();
        match edit {
            Edit::Whole(document) => return Ok(document.clone()),
            Edit::Put(kind, name, keys) => {
                let keys = table(keys, &key(&[kind.section(), name]))?;
                section(&mut tables, *kind)?.insert(name.clone(), toml::Value::Table(keys));
            }
            Edit::Patch(kind, name, patch) => {
                let thing = section(&mut tables, *kind)?.get_mut(name).and_then(toml::Value::as_table_mut);
                merge(thing.ok_or_else(|| missing(*kind, name))?, patch, &key(&[kind.section(), name]))?;
            }
            Edit::Delete(kind, name) => {
                let things = section(&mut tables, *kind)?;
                things.remove(name).ok_or_else(|| missing(*kind, name))?;
                if things.is_empty() {
                    tables.remove(kind.section());
                }
            }
        }
        Ok(Document { table: tables, text: None })
    }

    /// The keys in which `new` differs, by their full names.
    pub fn changes_to(&self, new: &Document) -> Vec<KeyChange> {
        let (old, new) = (self.leaves(), new.leaves());
        let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        let value = |leaves: &BTreeMap<String, &toml::Value>, key: &String| {
            leaves.get(key).map_or(Value::Null, |value| json(value))
        };
        let change = |name: &String| KeyChange { key: name.clone(), from: value(&old, name), to: value(&new, name) };
        // A table that has keys now and had none, or had and has none, is told by its keys.
        let inside = |leaves: &BTreeMap<String, &toml::Value>, name: &String| {
            let under = format!("{name}.");
            leaves.range(under.clone()..).next().is_some_and(|(next, _)| next.starts_with(&under))
        };
        let is_told = |change: &KeyChange| match (&change.from, &change.to) {
            (Value::Object(_), Value::Null) => inside(&new, &change.key),
            (Value::Null, Value::Object(_)) => inside(&old, &change.key),
            _ => false,
        };
        let changes = keys.into_iter().map(change).filter(|change| change.from != change.to);
        changes.filter(|change| !is_told(change)).collect()
    }

    /// Every value that is no table, and every table without keys, by its full name.
    pub(crate) fn leaves(&self) -> BTreeMap<String, &toml::Value> {
        fn walk<'t>(table: &'t toml::Table, under: &str, leaves: &mut BTreeMap<String, &'t toml::Value>) {
            for (name, value) in table {
                let full = join(under, name);
                match value {
                    toml::Value::Table(inner) if !inner.is_empty() => walk(inner, &full, leaves),
                    _ => drop(leaves.insert(full, value)),
                }
            }
        }
        let mut leaves = BTreeMap::new();
        walk(&self.table, "", &mut leaves);
        leaves
    }
}

/// The full name of a key.
pub fn key(path: &[&str]) -> String {
    path.iter().fold(String::new(), |full, part| join(&full, part))
}

/// The table of a kind's things, made if there is none.
fn section(tables: &mut toml::Table, kind: Kind) -> Result<&mut toml::Table, Refusal> {
    let section = tables.entry(kind.section()).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    let wrong = || Refusal::new(Fault::Broken, format!("{} is no table", kind.section()));
    section.as_table_mut().ok_or_else(wrong)
}

/// Source: RFC 7396.
fn merge(into: &mut toml::Table, patch: &Map<String, Value>, under: &str) -> Result<(), Refusal> {
    for (name, value) in patch {
        let full = join(under, name);
        match (value, into.get_mut(name)) {
            (Value::Null, _) => drop(into.remove(name)),
            (Value::Object(inner), Some(toml::Value::Table(table))) => merge(table, inner, &full)?,
            _ => drop(into.insert(name.clone(), toml_of(value, &full)?)),
        }
    }
    Ok(())
}

fn table(values: &Map<String, Value>, under: &str) -> Result<toml::Table, Refusal> {
    values.iter().map(|(name, value)| Ok((name.clone(), toml_of(value, &join(under, name))?))).collect()
}

fn toml_of(value: &Value, full: &str) -> Result<toml::Value, Refusal> {
    let wrong = |what: String| Refusal {
        key: Some(full.to_owned()),
        ..Refusal::new(
            Fault::Bad,
            format!("{full}: {what}, allowed is a string, a number, true, false, a list or a table"),
        )
    };
    Ok(match value {
        Value::Null => return Err(wrong("null does not fit here".into())),
        Value::Bool(flag) => toml::Value::Boolean(*flag),
        Value::String(text) => toml::Value::String(text.clone()),
        Value::Number(number) => match (number.as_i64(), number.as_f64().filter(|_| number.is_f64())) {
            (Some(number), _) => toml::Value::Integer(number),
            (None, Some(number)) => toml::Value::Float(number),
            (None, None) => return Err(wrong(format!("{number} does not fit 64 bits"))),
        },
        Value::Array(items) => {
            toml::Value::Array(items.iter().map(|item| toml_of(item, full)).collect::<Result<_, _>>()?)
        }
        Value::Object(inner) => toml::Value::Table(table(inner, full)?),
    })
}

pub(crate) fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text.as_str()),
        toml::Value::Integer(number) => Value::from(*number),
        toml::Value::Float(number) => Value::from(*number),
        toml::Value::Boolean(flag) => Value::from(*flag),
        // No key of the config is a date; the reader refuses it.
        toml::Value::Datetime(date) => Value::from(date.to_string()),
        toml::Value::Array(items) => items.iter().map(json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.iter().map(|(key, inner)| (key.clone(), json(inner))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(text: &str) -> Document {
        Document::parse(text).unwrap()
    }

    fn changes(old: &str, new: &str) -> Vec<(String, Value, Value)> {
        let changes = document(old).changes_to(&document(new)).into_iter();
        changes.map(|KeyChange { key, from, to }| (key, from, to)).collect()
    }

    #[test]
    fn documents_differ_in_values_and_not_in_comments_or_order() {
        assert_eq!(changes("[t.a]\nx = 1\n[t.b]\n", "# c\n[t.b]\n[t]\na = { x = 1 }\n"), []);
        let changed = changes("[t.a]\nx = 1\ny = 2\n", "[t.a]\nx = \"1\"\n[t.\"b c\"]\nz = [1]\n");
        let wanted = [
            ("t.\"b c\".z".to_owned(), Value::Null, json!([1])),
            ("t.a.x".to_owned(), json!(1), json!("1")),
            ("t.a.y".to_owned(), json!(2), Value::Null),
        ];
        assert_eq!(changed, wanted);
    }

    #[test]
    fn a_section_without_keys_is_told_by_its_name_alone() {
        assert_eq!(changes("", "[t.a]\n"), [("t.a".to_owned(), Value::Null, json!({}))]);
        assert_eq!(changes("[t.a]\n", "[t.a]\nx = 1\n"), [("t.a.x".to_owned(), Value::Null, json!(1))]);
        assert_eq!(changes("[t.a]\nx = 1\n", "[t.a]\n"), [("t.a.x".to_owned(), json!(1), Value::Null)]);
        assert_eq!(changes("[t.a]\n[t.b]\n", "[t.b]\n"), [("t.a".to_owned(), json!({}), Value::Null)]);
    }

    #[test]
    fn a_thing_is_used_by_those_that_name_it() {
        let text = "[group.a]\n[group.b]\ngroup = \"a\"\n[tenant.a]\ngroup = \"a\"\n[tenant.t]\ngroup = \"b\"\n\
                    [export.x]\ntenant = \"a\"\ndevice = \"a\"\n";
        let document = document(text);
        assert_eq!(document.users(Kind::Group, "a"), [(Kind::Group, "b"), (Kind::Tenant, "a")]);
        assert_eq!(document.users(Kind::Tenant, "a"), [(Kind::Export, "x")]);
        assert_eq!(document.users(Kind::Device, "a"), [(Kind::Export, "x")]);
        assert_eq!(document.users(Kind::Tenant, "t"), []);
    }

    #[test]
    fn what_is_edited_is_read_again_as_the_same() {
        let keys = json!({ "size": "1GiB", "nbd": ["unix:/a", "unix:/b"], "cost": { "write": { "per-byte": 2.5 } } });
        let put = Edit::Put(Kind::Export, "a \"b\".c".into(), keys.as_object().unwrap().clone());
        let edited = document("[export.x]\nsize = 1\n").edited(&put).unwrap();
        let read = document(&edited.text().0);
        assert_eq!(read.changes_to(&edited), []);
        assert_eq!(read.things(Kind::Export).map(|(name, _)| name.to_owned()).collect::<Vec<_>>(), ["a \"b\".c", "x"]);
    }

    #[test]
    fn every_value_of_every_list_and_table_is_there_in_both_forms() {
        let text = "drain = 1\nwait = \"2\"\n[server]\nworkers = 2\nlist = [1, [2, 3]]\n[tenant.a]\nweight = 1\nmemory = \"1\"\n";
        let read = document(text);
        assert_eq!(read.text(), (text.to_owned(), true), "a user's text stays as it is");
        let values = json!({
            "drain": 1, "wait": "2", "server": { "workers": 2, "list": [1, [2, 3]] },
            "tenant": { "a": { "weight": 1, "memory": "1" } }
        });
        let values = values.as_object().unwrap();
        assert_eq!(read.to_json(), *values);
        let made = Document::from_json(values).unwrap();
        assert_eq!((made.to_json(), made.text().1), (values.clone(), false));
        assert_eq!(made.thing(Kind::Tenant, "a").as_ref(), values["tenant"]["a"].as_object());
        let rest: Vec<String> = made.without_things().to_json().into_iter().map(|(key, _)| key).collect();
        assert_eq!(rest, ["drain", "server", "wait"]);
        let patch = json!({ "weight": 2, "memory": null, "max-iops": 3 });
        let patched = made.edited(&Edit::Patch(Kind::Tenant, "a".into(), patch.as_object().unwrap().clone())).unwrap();
        assert_eq!(Value::Object(patched.thing(Kind::Tenant, "a").unwrap()), json!({ "weight": 2, "max-iops": 3 }));
    }

    #[test]
    fn what_is_not_toml_is_named_by_its_line_or_its_key() {
        let fault = Document::parse("[tenant.a]\nweight = 1\nweight = 2\n").unwrap_err();
        assert_eq!(fault.line, 3);
        assert!(fault.to_string().contains("duplicate key"), "{fault}");
        let values = json!({ "tenant": { "a": { "weight": null } } });
        let refusal = Document::from_json(values.as_object().unwrap()).unwrap_err();
        assert_eq!(refusal.key.as_deref(), Some("tenant.a.weight"));
    }
}
