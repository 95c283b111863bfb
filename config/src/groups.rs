//! `[group.NAME]`: groups of tenants, in groups.
//!
//! Answers: which groups are there, each after the group that it is in? A group has no keys besides `weight`, `group`
//! and, where there are latency goals, `latency`; the caller decides which sections may say `group = "NAME"`.

use crate::text::{did_you_mean, list, quoted};
use crate::{ConfigError, Entry, Section, SourceLocation};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// One group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// NAME.
    pub name: String,
    /// Where its section begins.
    pub place: SourceLocation,
    /// `weight`. `None`: the key is missing.
    pub weight: Option<u64>,
    /// `group`: its parent's number in [`Groups`], smaller than its own.
    pub parent: Option<usize>,
    /// `latency`, ns.
    pub latency_ns: Option<u64>,
}

/// All groups of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Groups(Vec<Group>);

/// Keys of `[group.NAME]`.
pub const KEYS: &[&str] = &["weight", "group", "latency"];

/// Values that `group = ...` may have, for errors.
const ALLOWED: &str = "the name of a [group.NAME] section";

impl Groups {
    /// The groups below `root`, which allows the key `group`: weights in this range, at most `depth_max` groups in
    /// each other, and latency goals in this range, ns; `None`: there are no goals.
    ///
    /// # Errors
    /// A key that is unknown or out of range, or a group that is missing, inside itself, or too deep.
    pub fn read(
        root: &Section<'_, '_>,
        weights: RangeInclusive<u64>,
        depth_max: usize,
        latencies_ns: Option<RangeInclusive<u64>>,
    ) -> Result<Self, ConfigError> {
        let mut read = Vec::new();
        let keys = if latencies_ns.is_some() { KEYS } else { &KEYS[..2] };
        for (name, section) in root.named_tables("group")? {
            let section = section.with_allowed(keys)?;
            let weight = section.get("weight").map(|weight| weight.number(weights.clone())).transpose()?;
            let parent = section.get("group").map(|entry| Ok((entry.text(ALLOWED)?, entry.place()))).transpose()?;
            let latency = latencies_ns.clone().and_then(|range| Some((section.get("latency")?, range)));
            let latency_ns = latency.map(|(latency, range)| latency.duration_ns(range)).transpose()?;
            read.push((name, section.place().clone(), weight, latency_ns, parent));
        }
        let by_name: BTreeMap<&str, usize> = read.iter().map(|(name, ..)| name.as_str()).zip(0..).collect();
        // By the number in the file, the parent's.
        let mut parents = Vec::new();
        for (.., parent) in &read {
            let of = |(name, place): &(String, SourceLocation)| {
                by_name.get(name.as_str()).copied().ok_or_else(|| unknown(place, name, by_name.keys().copied()))
            };
            parents.push(parent.as_ref().map(of).transpose()?);
        }
        let mut depths = Vec::new();
        for (start, (_, place, ..)) in read.iter().enumerate() {
            let (mut at, mut depth) = (start, 1);
            while let Some(parent) = parents[at] {
                (at, depth) = (parent, depth + 1);
                if depth > read.len() {
                    let message = "the groups that it is in are in each other in a circle, allowed is a tree";
                    return Err(place.inside("group").error(message));
                }
            }
            if depth > depth_max {
                let message = format!("it lies {depth} groups deep, allowed are {depth_max} groups in each other");
                return Err(place.inside("group").error(message));
            }
            depths.push(depth);
        }
        let mut order: Vec<usize> = (0..read.len()).collect();
        order.sort_by_key(|group| depths[*group]);
        let mut number = vec![0; read.len()];
        order.iter().enumerate().for_each(|(new, old)| number[*old] = new);
        let group = |old: &usize| {
            let (name, place, weight, latency_ns, _) = read[*old].clone();
            Group { name, place, weight, parent: parents[*old].map(|parent| number[parent]), latency_ns }
        };
        Ok(Groups(order.iter().map(group).collect()))
    }

    /// All groups; each comes after the group that it is in.
    pub fn all(&self) -> &[Group] {
        &self.0
    }

    /// The group that `group = "NAME"` names, by its number.
    ///
    /// # Errors
    /// No group has this name.
    pub fn find(&self, entry: &Entry<'_, '_>) -> Result<usize, ConfigError> {
        let name = entry.text(ALLOWED)?;
        let found = self.0.iter().position(|group| group.name == name);
        found.ok_or_else(|| {
            let names: BTreeMap<&str, ()> = self.0.iter().map(|group| (group.name.as_str(), ())).collect();
            unknown(&entry.place(), &name, names.keys().copied())
        })
    }
}

fn unknown<'a>(
    place: &SourceLocation,
    name: &str,
    known: impl ExactSizeIterator<Item = &'a str> + Clone,
) -> ConfigError {
    let hint = did_you_mean(name, known.clone());
    let known = if known.len() == 0 { "none is defined".to_owned() } else { format!("defined are {}", list(known)) };
    place.error(format!("there is no group {}, {known}{hint}", quoted(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn read(text: &str) -> Result<Groups, String> {
        let source = Source::new("c.toml", text);
        let root = source.parse().unwrap();
        let root = Section::root(&source, root.get_ref(), &["group"]).unwrap();
        Groups::read(&root, 1..=10_000, 2, Some(1000..=9000)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_group_comes_after_the_one_that_it_is_in() {
        let groups = read("[group.team]\ngroup = \"company\"\nweight = 7\n[group.company]\n[group.other]\n").unwrap();
        let told: Vec<_> = groups.all().iter().map(|group| (group.name.as_str(), group.weight, group.parent)).collect();
        assert_eq!(told, [("company", None, None), ("other", None, None), ("team", Some(7), Some(0))]);
        assert_eq!(read("").unwrap(), Groups::default());
        // Numbers follow the order, also where a group's section stands before its parent's.
        let groups = read("[group.team]\ngroup = \"company\"\n[group.other]\n[group.company]\n").unwrap();
        let told: Vec<_> = groups.all().iter().map(|group| (group.name.as_str(), group.parent)).collect();
        assert_eq!(told, [("other", None), ("company", None), ("team", Some(1))]);
    }

    #[test]
    fn a_latency_goal_is_a_key_where_there_are_goals() {
        let groups = read("[group.a]\nlatency = \"2us\"\n[group.b]\n").unwrap();
        assert_eq!(groups.all().iter().map(|group| group.latency_ns).collect::<Vec<_>>(), [Some(2000), None]);
        let source = Source::new("c.toml", "[group.a]\nlatency = \"2us\"\n");
        let root = source.parse().unwrap();
        let root = Section::root(&source, root.get_ref(), &["group"]).unwrap();
        let refused = Groups::read(&root, 1..=10_000, 2, None).unwrap_err().to_string();
        assert_eq!(refused, "c.toml:2: group.a.latency: unknown key, allowed are weight, group");
    }

    #[test]
    fn a_group_is_found_by_its_name_and_another_name_is_refused_with_all_that_there_are() {
        let groups = read("[group.b]\n[group.a]\n").unwrap();
        let find = |name: &str| {
            let text = format!("group = \"{name}\"\n");
            let source = Source::new("c.toml", &text);
            let root = source.parse().unwrap();
            let root = Section::root(&source, root.get_ref(), &["group"]).unwrap();
            groups.find(&root.get("group").unwrap()).map_err(|error| error.to_string())
        };
        assert_eq!([find("b"), find("a")], [Ok(0), Ok(1)]);
        let refused = find("else").unwrap_err();
        assert_eq!(refused, "c.toml:1: group: there is no group \"else\", defined are a, b");
    }

    #[test]
    fn what_is_no_tree_is_refused_in_a_sentence() {
        for (text, sentence) in [
            (
                "[group.a]\ngroup = \"b\"\n[group.b]\ngroup = \"a\"\n",
                "c.toml:1: group.a.group: the groups that it is in are in each other in a circle, allowed is a tree",
            ),
            (
                "[group.a]\ngroup = \"a\"\n",
                "c.toml:1: group.a.group: the groups that it is in are in each other in a circle, allowed is a tree",
            ),
            ("[group.a]\ngroup = \"b\"\n", "c.toml:2: group.a.group: there is no group \"b\", defined are a"),
            (
                "[group.a]\n[group.b]\ngroup = \"a\"\n[group.c]\ngroup = \"b\"\n",
                "c.toml:4: group.c.group: it lies 3 groups deep, allowed are 2 groups in each other",
            ),
            ("[group.a]\nweight = 0\n", "c.toml:2: group.a.weight: 0 is out of range, allowed is 1 to 10000"),
            ("[group.a]\nclass = 1\n", "c.toml:2: group.a.class: unknown key, allowed are weight, group, latency"),
        ] {
            assert_eq!(read(text), Err(sentence.to_owned()));
        }
    }
}
