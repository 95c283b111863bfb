//! A scenario before it is read: its keys, their values, and where in the figure's file each one stands.
//!
//! A figure's scenarios differ in a few keys. So each is the base with some keys set anew, written out as the text that
//! `mqfq-lab sim run` takes as well. What the scenario's reader refuses is then told at the line of the figure's file
//! that set it.

use mqfq_config::{ConfigError, Entry, SourceLocation, join};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// Names from the root to a value.
pub type Path = Vec<String>;

/// Sections that name the competitors, one by one.
const MEMBERS: [&str; 2] = ["tenant", "program"];

/// Keys with values that are no tables; only a table without keys stands for itself.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    values: BTreeMap<Path, (Value, SourceLocation)>,
}

impl Keys {
    /// The keys of a table. With `dotted`, a name in quotes is a path as well: `"policy.kind" = "mqfq"`.
    ///
    /// # Errors
    /// It is no table, or holds a date.
    pub fn read(entry: &Entry<'_, '_>, dotted: bool) -> Result<Keys, ConfigError> {
        let mut keys = Keys::default();
        keys.collect(entry, &mut Vec::new(), dotted)?;
        Ok(keys)
    }

    fn collect(&mut self, entry: &Entry<'_, '_>, path: &mut Path, dotted: bool) -> Result<(), ConfigError> {
        for (name, inner) in entry.pairs("a table of keys")? {
            let depth = path.len();
            if dotted {
                path.extend(split(&name))
            } else {
                path.push(name)
            }
            match inner.value()? {
                Value::Table(table) if !table.is_empty() => self.collect(&inner, path, dotted)?,
                value => self.set(path.clone(), value, inner.place()),
            }
            path.truncate(depth);
        }
        Ok(())
    }

    /// Sets one key. A table gives way to a value of its name, and a value to a table.
    pub fn set(&mut self, path: Path, value: Value, place: SourceLocation) {
        self.values.retain(|known, _| !known.starts_with(&path) && !path.starts_with(known));
        self.values.insert(path, (value, place));
    }

    /// These keys, with those of `over` set anew. A key that is set to `"default"` goes: the scenario's reader has its
    /// default.
    #[must_use]
    pub fn with(&self, over: &Keys) -> Keys {
        let mut keys = self.clone();
        for (path, (value, place)) in &over.values {
            match value.as_str() {
                Some("default") => keys.values.retain(|known, _| !known.starts_with(path)),
                _ => keys.set(path.clone(), value.clone(), place.clone()),
            }
        }
        keys
    }

    /// These keys without the tenants or programs other than `one`.
    #[must_use]
    pub fn alone(&self, one: &str) -> Keys {
        let others = |path: &Path| MEMBERS.contains(&path[0].as_str()) && path.get(1).is_none_or(|name| name != one);
        let values = self.values.iter().filter(|(path, _)| !others(path));
        Keys { values: values.map(|(path, value)| (path.clone(), value.clone())).collect() }
    }

    /// Names of the tenants, or of what else `section` names one by one, sorted.
    pub fn names(&self, section: &str) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .values
            .keys()
            .filter(|path| path[0] == section)
            .filter_map(|path| Some(path.get(1)?.as_str()))
            .collect();
        names.dedup();
        names
    }

    /// The scenario as TOML. The same keys and values give the same text, whatever order they were set in.
    pub fn text(&self) -> String {
        let mut root = Table::new();
        for (path, (value, _)) in &self.values {
            let (name, above) = path.split_last().expect("a key has a name");
            let mut table = &mut root;
            for name in above {
                table = match table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new())) {
                    Value::Table(table) => table,
                    _ => unreachable!("no key is both a value and a table"),
                };
            }
            table.insert(name.clone(), value.clone());
        }
        root.to_string()
    }

    /// Where the key stands that the scenario's reader calls `name`: itself, else the nearest of its table.
    pub fn place(&self, name: &str) -> Option<&SourceLocation> {
        let dotted = |path: &Path| path.iter().fold(String::new(), |above, name| join(&above, name));
        let common = |known: &str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
        let (path, (_, place)) =
            self.values.iter().rev().max_by_key(|(path, _)| (dotted(path) == name, common(&dotted(path))))?;
        (!name.is_empty() && common(&dotted(path)) > 0).then_some(place)
    }
}

/// The names of a dotted path.
pub fn split(dotted: &str) -> Path {
    dotted.split('.').map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_config::{Section, Source};

    fn keys(text: &str, dotted: bool) -> Keys {
        let source = Source::new("f.toml", text);
        let root = source.parse().unwrap();
        let root = Section::root(&source, root.get_ref(), &["k"]).unwrap();
        Keys::read(&root.require("k", "").unwrap(), dotted).unwrap()
    }

    #[test]
    fn a_key_set_anew_replaces_the_first_and_leaves_the_rest() {
        let base = keys("[k.policy]\nkind = \"none\"\ndepth = 64\n[k.tenant.a]\n[k.tenant.b]\nweight = 2", false);
        let over = keys("[k]\n\"policy.kind\" = \"mqfq\"\ntenant.a.weight = 3", true);
        let expected = "[policy]\ndepth = 64\nkind = \"mqfq\"\n\n[tenant.a]\nweight = 3\n\n[tenant.b]\nweight = 2\n";
        assert_eq!(base.with(&over).text(), expected);
        assert_eq!(base.with(&over).names("tenant"), ["a", "b"]);
    }

    #[test]
    fn a_key_set_to_its_default_goes() {
        let base = keys("[k.policy]\nkind = \"mqfq\"\nform = \"exact\"", false);
        let over = keys("[k]\npolicy.kind = \"none\"\npolicy.form = \"default\"", true);
        assert_eq!(base.with(&over).text(), "[policy]\nkind = \"none\"\n");
    }

    #[test]
    fn the_order_of_setting_does_not_show() {
        let (a, b) = (keys("[k]\nx.a = 1\nx.b = 2", false), keys("[k]\nx.b = 2\nx.a = 1", false));
        assert_eq!(a.text(), b.text());
    }

    #[test]
    fn alone_a_tenant_keeps_machine_and_policy() {
        let base = keys("[k.policy]\nkind = \"none\"\n[k.tenant.a]\n[k.tenant.\"b c\"]\nweight = 2", false);
        assert_eq!(base.alone("b c").text(), "[policy]\nkind = \"none\"\n\n[tenant.\"b c\"]\nweight = 2\n");
    }

    #[test]
    fn a_refused_key_is_found_where_it_was_set_last() {
        let base = keys("[k.policy]\nkind = \"none\"\n", false).with(&keys("[k]\n\n\n\"policy.depth\" = 0", true));
        let line = |name: &str| base.place(name).unwrap().error("").line;
        assert_eq!(line("policy.depth"), 4);
        assert_eq!(line("policy.kind"), 2);
        assert_eq!(line("policy.kin"), 2, "a key that is missing: the nearest");
        assert!(base.place("machine").is_none() && base.place("").is_none());
    }
}
