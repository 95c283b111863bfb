//! Keys that only some of several things have, of which a section chooses one: a policy's own keys, say.
//!
//! This crate does not know the things; a reader names them and says how a value of the chosen one is read.

use crate::{ConfigError, Entry, Section};

/// A choice of a section, and the keys that it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its name, as users write it.
    pub name: &'static str,
    /// Its keys.
    pub keys: Vec<&'static str>,
}

/// Hands `read` each key of the section that the chosen owner has. `choice` is the name of the key that chose, for
/// messages.
///
/// # Errors
/// An error of `read`, or a key that other owners have and the chosen one does not.
pub fn read_owned<'s, 'a>(
    section: &Section<'s, 'a>,
    choice: &str,
    chosen: &str,
    owners: &[Owner],
    mut read: impl FnMut(&'static str, Entry<'s, 'a>) -> Result<(), ConfigError>,
) -> Result<(), ConfigError> {
    let has = |name: &str, key: &str| owners.iter().any(|owner| owner.name == name && owner.keys.contains(&key));
    for owner in owners {
        for &key in &owner.keys {
            let Some(entry) = section.get(key) else { continue };
            if owner.name == chosen {
                read(key, entry)?;
            } else if !has(chosen, key) {
                let others: Vec<&str> = owners.iter().map(|owner| owner.name).filter(|name| has(name, key)).collect();
                let others = others.join(" or ");
                return Err(entry.place().error(format!("is no setting of {choice} {chosen}, allowed with {others}")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn owners() -> [Owner; 3] {
        [("a", vec!["x", "both"]), ("b", vec!["both", "y"]), ("c", vec![])].map(|(name, keys)| Owner { name, keys })
    }

    /// The keys that are read of `text` with `chosen`.
    fn keys(text: &str, chosen: &str) -> Result<Vec<&'static str>, String> {
        let source = Source::new("f.toml", text);
        let root = source.parse().unwrap();
        let section = Section::root(&source, root.get_ref(), &["x", "both", "y"]).unwrap();
        let mut seen = Vec::new();
        let read = |key, entry: Entry<'_, '_>| {
            seen.push(key);
            entry.number(0..=9).map(drop)
        };
        read_owned(&section, "letter", chosen, &owners(), read).map_err(|error| error.to_string())?;
        Ok(seen)
    }

    #[test]
    fn the_keys_of_the_chosen_one_are_read_once_each() {
        assert_eq!(keys("x = 1\nboth = 2", "a"), Ok(vec!["x", "both"]));
        assert_eq!(keys("y = 1\nboth = 2", "b"), Ok(vec!["both", "y"]));
        assert_eq!(keys("", "c"), Ok(vec![]));
        assert_eq!(keys("x = 10", "a"), Err("f.toml:1: x: 10 is out of range, allowed is 0 to 9".into()));
    }

    #[test]
    fn a_key_of_another_is_refused_and_who_has_it_is_named() {
        assert_eq!(keys("x = 1", "b"), Err("f.toml:1: x: is no setting of letter b, allowed with a".into()));
        assert_eq!(
            keys("\nboth = 1", "c"),
            Err("f.toml:2: both: is no setting of letter c, allowed with a or b".into())
        );
    }
}
