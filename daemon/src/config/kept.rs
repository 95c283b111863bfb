//! A config that stays read: one section of it becomes another without the others being read again.
//!
//! Answers: which config is it that the control plane's document says, after a change of one tenant or one export? The
//! checks of everything together ([`Config::check`]) are made as of any config.
//!
//! Invariant: it is what the reader makes of the whole document, but for the lines
//! (`a_section_after_the_other_is_the_same_as_all_of_them_at_once`).

use super::{Config, ExportConfig, TenantConfig};
use mqfq_control::Kind;

/// Of a document that was written from tables, so that its sections are in the order of their names.
pub struct Kept(Config);

/// One section, or that there is none of this name.
pub enum Part {
    /// `[tenant.NAME]`.
    Tenant(String, Option<Box<TenantConfig>>),
    /// `[export.NAME]`.
    Export(String, Option<Box<ExportConfig>>),
}

impl Part {
    /// What a document of this thing alone has of it. `None`: it is of another kind.
    pub fn of(kind: Kind, name: &str, alone: Config) -> Option<Part> {
        match kind {
            Kind::Tenant => Some(Part::Tenant(name.to_owned(), alone.tenants.into_iter().next().map(Box::new))),
            Kind::Export => Some(Part::Export(name.to_owned(), alone.exports.into_iter().next().map(Box::new))),
            Kind::Device | Kind::Group => None,
        }
    }
}

impl Kept {
    /// `None`: it has groups, which are known by their numbers, or another order.
    pub fn new(config: &Config) -> Option<Kept> {
        let is_in_order = config.tenants.is_sorted_by(|one, other| one.name < other.name)
            && config.exports.is_sorted_by(|one, other| one.name < other.name);
        (is_in_order && config.groups.all().is_empty()).then(|| Kept(config.clone()))
    }

    /// All of it.
    pub fn config(&self) -> &Config {
        &self.0
    }

    /// A section is another one; what undoes that.
    pub fn set(&mut self, part: Part) -> Part {
        match part {
            Part::Tenant(name, new) => {
                let old = replace(&mut self.0.tenants, &name, |tenant| &tenant.name, new);
                Part::Tenant(name, old)
            }
            Part::Export(name, new) => {
                let old = replace(&mut self.0.exports, &name, |export| &export.name, new);
                Part::Export(name, old)
            }
        }
    }
}

/// The one of this name, which is there no more.
fn replace<T>(all: &mut Vec<T>, name: &str, name_of: impl Fn(&T) -> &String, new: Option<Box<T>>) -> Option<Box<T>> {
    match (all.binary_search_by(|one| name_of(one).as_str().cmp(name)), new) {
        (Ok(at), Some(new)) => Some(Box::new(std::mem::replace(&mut all[at], *new))),
        (Ok(at), None) => Some(Box::new(all.remove(at))),
        (Err(at), Some(new)) => {
            all.insert(at, *new);
            None
        }
        (Err(_), None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::RealFiles;
    use super::*;
    use mqfq_control::Edit;
    use mqfq_control::document::Document;
    use mqfq_testing::Random;
    use serde_json::{Map, Value, json};

    /// Two devices, and an export that stays, for there must be one.
    const START: &str = "[device.d]
kind = \"memory\"
size = \"1MiB\"
[device.e]
kind = \"memory\"
size = \"1MiB\"
[tenant.base]
[export.base]
device = \"d\"
tenant = \"base\"
offset = \"512KiB\"
nbd = \"unix:/base\"
";

    fn keys(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// An edit of one of a few tenants and exports, right or wrong: names that are missing, ranges that overlap, keys
    /// that there are not.
    fn edit(random: &mut Random) -> Edit {
        let mut one_of = |most: u64| random.below(most);
        let name = ["a", "b", "c.d", "z"][one_of(4) as usize].to_owned();
        let tenants =
            [json!({ "weight": 7 }), json!({}), json!({ "class": "idle", "max-iops": 9 }), json!({ "no": 1 })];
        let tenant = keys(tenants[one_of(4) as usize].clone());
        let (device, whose) = (["d", "e"][one_of(2) as usize], ["a", "b", "c.d", "none"][one_of(4) as usize]);
        let (offset, size) = (one_of(8) * 4096, (1 + one_of(3)) * 4096);
        let export = keys(json!({
            "device": device, "tenant": whose, "offset": offset, "size": size, "nbd": format!("unix:/{}", one_of(3)),
        }));
        match one_of(6) {
            0 => Edit::Put(Kind::Tenant, name, tenant),
            1 => Edit::Patch(Kind::Tenant, name, tenant),
            2 => Edit::Delete(Kind::Tenant, name),
            3 => Edit::Put(Kind::Export, name, export),
            4 => Edit::Patch(Kind::Export, name, keys(json!({ "size": size, "read-only": one_of(2) == 0 }))),
            _ => Edit::Delete(Kind::Export, name),
        }
    }

    /// What a value shows, without the lines where it stands.
    fn without_lines(text: &str) -> String {
        let mut parts = text.split("line: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| all + part.trim_start_matches(|digit: char| digit.is_ascii_digit()))
    }

    #[test]
    fn a_section_after_the_other_is_the_same_as_all_of_them_at_once() {
        let read = |document: &Document| Config::parse("config", &document.text().0);
        let mut document = Document::from_json(&Document::parse(START).unwrap().to_json()).unwrap();
        let mut kept = Kept::new(&read(&document).unwrap()).unwrap();
        let mut random = Random::new(7);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..400 {
            let edit = edit(&mut random);
            let (kind, name) = edit.thing().unwrap();
            let Ok(whole) = document.edited(&edit) else { continue };
            let mut alone = Document::default();
            if let Some((_, keys)) = whole.things(kind).find(|(one, _)| *one == name) {
                alone = alone.edited(&Edit::Put(kind, name.to_owned(), keys)).unwrap();
            }
            let (alone, all) = (read(&alone), read(&whole));
            assert_eq!(alone.is_ok(), all.is_ok(), "what is wrong with a section is wrong with it alone");
            let (Ok(alone), Ok(all)) = (alone, all) else { continue };
            let before = format!("{:?}", kept.config());
            let undo = kept.set(Part::of(kind, name, alone).unwrap());
            assert_eq!(without_lines(&format!("{:?}", kept.config())), without_lines(&format!("{all:?}")));
            let checked = [kept.config().clone(), all].map(|config| config.check(&RealFiles));
            match checked {
                [Ok(one), Ok(other)] => {
                    assert_eq!(without_lines(&format!("{one:?}")), without_lines(&format!("{other:?}")));
                    document = whole;
                    taken += 1;
                }
                [Err(one), Err(other)] => {
                    assert_eq!((one.key, one.message), (other.key, other.message));
                    kept.set(undo);
                    assert_eq!(format!("{:?}", kept.config()), before);
                    refused += 1;
                }
                other => panic!("{edit:?}: {other:?}"),
            }
        }
        assert!(taken > 40 && refused > 40, "{taken} were right and {refused} wrong");
    }
}
