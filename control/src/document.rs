//! What is configured, as one value: the tables of a config file, without places and comments.
//!
//! Answers: what does an [`Edit`] make of a document, and in which keys do two documents differ? What keys mean is for
//! the config's reader, which gets the text of the result.

use crate::model::{Edit, Fault, KeyChange, Kind, Refusal};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Tables, and the text that they were read from.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Document {
    table: toml::Table,
    /// Of a document that came as text: its places are those of the sentences about it.
    text: Option<String>,
}

impl Document {
    /// The document that `text` is.
    ///
    /// # Errors
    /// It is not TOML. (The config's reader says it better: it names the line.)
    pub fn parse(text: &str) -> Result<Document, String> {
        let table = text.parse::<toml::Table>().map_err(|error| error.message().trim().replace('\n', ", "))?;
        Ok(Document { table, text: Some(text.to_owned()) })
    }

    /// The document that these values are.
    ///
    /// # Errors
    /// A value that TOML has not.
    pub fn from_json(values: &Map<String, Value>) -> Result<Document, Refusal> {
        Ok(Document { table: table(values, "")?, text: None })
    }

    /// The text that the config's reader is to read, and whether it is somebody's own (its lines mean something).
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

    /// There is such a thing.
    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.table.get(kind.section()).and_then(toml::Value::as_table).is_some_and(|table| table.contains_key(name))
    }

    /// What `edit` makes of it.
    ///
    /// # Errors
    /// A value that TOML has not, or a thing that is to be changed or deleted and is not there.
    pub fn edited(&self, edit: &Edit) -> Result<Document, Refusal> {
        let missing = |kind: Kind, name: &str| {
            let refusal = format!("there is no {} {}", kind.section(), quoted(name));
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
        keys.into_iter().map(change).filter(|change| change.from != change.to).collect()
    }

    /// Every value that is no table, and every table without keys, by its full name.
    pub(crate) fn leaves(&self) -> BTreeMap<String, &toml::Value> {
        fn walk<'t>(table: &'t toml::Table, under: &str, leaves: &mut BTreeMap<String, &'t toml::Value>) {
            for (name, value) in table {
                let full = if under.is_empty() { bare(name) } else { format!("{under}.{}", bare(name)) };
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

/// The full name of a key, as TOML writes it.
pub fn key(path: &[&str]) -> String {
    path.iter().map(|part| bare(part)).collect::<Vec<_>>().join(".")
}

/// A part of a key: in quotes where it is not a bare key.
fn bare(part: &str) -> String {
    let is_bare =
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_bare { part.to_owned() } else { quoted(part) }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
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
        let full = format!("{under}.{}", bare(name));
        match (value, into.get_mut(name)) {
            (Value::Null, _) => drop(into.remove(name)),
            (Value::Object(inner), Some(toml::Value::Table(table))) => merge(table, inner, &full)?,
            _ => drop(into.insert(name.clone(), toml_of(value, &full)?)),
        }
    }
    Ok(())
}

fn table(values: &Map<String, Value>, under: &str) -> Result<toml::Table, Refusal> {
    let full = |name: &str| if under.is_empty() { bare(name) } else { format!("{under}.{}", bare(name)) };
    values.iter().map(|(name, value)| Ok((name.clone(), toml_of(value, &full(name))?))).collect()
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

fn json(value: &toml::Value) -> Value {
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
