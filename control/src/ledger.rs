//! Which revision is it, and who set which value when?
//!
//! A revision numbers the documents that were in force, from 1. Each value and each thing remembers the revision that
//! changed it last, its author and the time. Nothing here waits or looks at a clock.

use crate::document::{Document, key};
use crate::model::{Applied, By, Edit, Fault, KeyChange, Kind, Match, Proposal, Refusal, SetBy, State, Thing};
use crate::time::rfc3339;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// The present document and its history by key.
pub struct Ledger {
    document: Arc<Document>,
    revision: u64,
    /// By the key's full name.
    set_by: BTreeMap<String, Arc<SetBy>>,
    /// By kind and name, the revision that changed it last.
    things: BTreeMap<(Kind, String), u64>,
}

/// A proposal with what it changes.
pub struct Candidate {
    /// The document; where one thing is concerned, a document of this thing alone, and without it if it goes.
    pub document: Document,
    /// Against the present one; empty: there is nothing to do.
    pub changes: Vec<KeyChange>,
    /// The thing of a `Put` is new.
    pub created: bool,
    /// The only thing that is concerned.
    thing: Option<(Kind, String)>,
}

impl Ledger {
    /// Revision 1: `document`, which `by` set at `at`.
    pub fn new(document: Document, by: By, at: SystemTime) -> Ledger {
        let empty = Arc::new(Document::default());
        let mut ledger = Ledger { document: empty, revision: 0, set_by: BTreeMap::new(), things: BTreeMap::new() };
        let changes = ledger.document.changes_to(&document);
        ledger.accept(Candidate { document, changes, created: false, thing: None }, &by, at);
        // Also of a document without a key.
        ledger.revision = 1;
        ledger
    }

    /// The present document.
    pub fn document(&self) -> Arc<Document> {
        self.document.clone()
    }

    /// Its revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns what a proposal would put in force. The price of one thing does not grow with the document.
    ///
    /// # Errors
    /// The revision is another one, or [`Document::edited`].
    pub fn candidate(&self, proposal: &Proposal) -> Result<Candidate, Refusal> {
        self.refuse_stale(proposal)?;
        let Some((kind, name)) = proposal.edit.thing() else {
            let document = self.document.edited(&proposal.edit)?;
            let changes = self.document.changes_to(&document);
            return Ok(Candidate { document, changes, created: false, thing: None });
        };
        let before = self.document.only(kind, name);
        // The whole document has the names that may have been meant.
        let whole = |refusal| self.document.edited(&proposal.edit).err().unwrap_or(refusal);
        let document = before.edited(&proposal.edit).map_err(whole)?;
        let changes = before.changes_to(&document);
        let created = matches!(&proposal.edit, Edit::Put(..)) && !before.has(kind, name);
        Ok(Candidate { document, changes, created, thing: Some((kind, name.to_owned())) })
    }

    /// The whole document once a candidate is in force.
    pub fn whole(&self, candidate: &Candidate) -> Document {
        let Some((kind, name)) = &candidate.thing else { return candidate.document.clone() };
        let mut document = Document::clone(&self.document);
        document.replace(*kind, name, candidate.document.clone());
        document
    }

    fn refuse_stale(&self, proposal: &Proposal) -> Result<(), Refusal> {
        let Some(wanted) = &proposal.only_if else { return Ok(()) };
        let (what, present) = match proposal.edit.thing() {
            None => ("the config".to_owned(), Some(self.revision)),
            Some((kind, name)) => (key(&[kind.section(), name]), self.things.get(&(kind, name.to_owned())).copied()),
        };
        let stale = |why: String| Err(Refusal::new(Fault::Stale, format!("{what}: {why}")));
        match (wanted, present) {
            (Match::Absent, None) | (Match::Revision(None), Some(_)) => Ok(()),
            (Match::Absent, Some(revision)) => stale(format!("it is there already, at revision {revision}")),
            (Match::Revision(_), None) => stale("it is not there".into()),
            (Match::Revision(Some(revisions)), Some(revision)) if revisions.contains(&revision) => Ok(()),
            (Match::Revision(Some(revisions)), Some(revision)) => {
                let wanted: Vec<String> = revisions.iter().map(u64::to_string).collect();
                stale(format!("it is at revision {revision}, the change is about revision {}", wanted.join(" or ")))
            }
        }
    }

    /// The candidate is in force from now on, `at`. What was changed has a new revision; a candidate that changes
    /// nothing leaves the old one. For one thing it takes no time if the document has no other user.
    pub fn accept(&mut self, candidate: Candidate, by: &By, at: SystemTime) {
        let Candidate { document, changes, thing, .. } = candidate;
        if !changes.is_empty() {
            self.mark(&changes, by, at);
        }
        match thing {
            Some(_) if changes.is_empty() => {}
            Some((kind, name)) => {
                let thing = (kind, name.clone());
                match document.has(kind, &name) {
                    true => drop(self.things.insert(thing, self.revision)),
                    false => drop(self.things.remove(&thing)),
                }
                Arc::make_mut(&mut self.document).replace(kind, &name, document);
            }
            // Without changes its text may be another: comments, order.
            None => {
                if !changes.is_empty() {
                    Kind::ALL.into_iter().for_each(|kind| self.mark_changed(kind, &document));
                }
                self.document = Arc::new(document);
            }
        }
    }

    /// The next revision, which has these changes.
    fn mark(&mut self, changes: &[KeyChange], by: &By, at: SystemTime) {
        self.revision += 1;
        let mark = Arc::new(SetBy { by: by.clone(), at: rfc3339(at), revision: self.revision });
        for change in changes {
            match change.to {
                Value::Null => drop(self.set_by.remove(&change.key)),
                _ => drop(self.set_by.insert(change.key.clone(), mark.clone())),
            }
        }
    }

    /// Gives the things of a kind that `new` changes the present revision.
    fn mark_changed(&mut self, kind: Kind, new: &Document) {
        let old = self.document.clone();
        let (before, after): (BTreeMap<&str, _>, BTreeMap<&str, _>) =
            (old.things(kind).collect(), new.things(kind).collect());
        before.keys().filter(|name| !after.contains_key(*name)).for_each(|name| {
            self.things.remove(&(kind, (*name).to_owned()));
        });
        let differs = |(name, keys): &(&&str, &Map<String, Value>)| before.get(**name) != Some(*keys);
        after.iter().filter(differs).for_each(|(name, _)| {
            self.things.insert((kind, (*name).to_owned()), self.revision);
        });
    }

    /// Result of a candidate, before or after it was accepted.
    pub fn applied(&self, changes: Vec<KeyChange>, created: bool, dry_run: bool) -> Applied {
        let changed = !changes.is_empty();
        Applied { revision: self.revision, changed, dry_run, created, changes, done: vec![], warnings: vec![] }
    }

    /// Everything, with `in_force` for each thing that something uses.
    pub fn state(&self, in_force: impl Fn(Kind, &str) -> Map<String, Value>) -> State {
        let thing = |kind, (name, keys): (&str, _)| self.with_marks(kind, name, keys, in_force(kind, name));
        let all = |kind: Kind| self.document.things(kind).map(|named| thing(kind, named)).collect();
        State {
            revision: self.revision,
            things: Kind::ALL.iter().map(|kind| (kind.plural().to_owned(), all(*kind))).collect(),
        }
    }

    /// Brings `state` up to date after any change: `touched` are all things that have changed or have other values in
    /// force.
    pub fn follow<'n>(
        &self,
        state: &mut State,
        touched: impl IntoIterator<Item = (Kind, &'n str)>,
        mut in_force: impl FnMut(Kind, &str) -> Map<String, Value>,
    ) {
        state.revision = self.revision;
        for (kind, name) in touched {
            let things = state.things.entry(kind.plural().to_owned()).or_default();
            let thing = self.document.thing(kind, name);
            let thing = thing.map(|keys| self.with_marks(kind, name, keys, in_force(kind, name)));
            // In the document's order, which is that of names.
            match (things.binary_search_by(|thing| thing.name.as_str().cmp(name)), thing) {
                (Ok(at), Some(thing)) => things[at] = thing,
                (Ok(at), None) => drop(things.remove(at)),
                (Err(at), Some(thing)) => things.insert(at, thing),
                (Err(_), None) => {}
            }
        }
    }

    /// A thing with the authors of its values.
    fn with_marks(
        &self,
        kind: Kind,
        name: &str,
        configured: Map<String, Value>,
        in_force: Map<String, Value>,
    ) -> Thing {
        let mark = |key_: &String| {
            let full = key(&[kind.section(), name, key_]);
            // For a key with a table inside, the latest of its inner keys.
            let inner =
                self.set_by.range(format!("{full}.")..).take_while(|(at, _)| at.starts_with(&format!("{full}.")));
            let latest = inner.map(|(_, mark)| mark).chain(self.set_by.get(&full)).max_by_key(|mark| mark.revision);
            Some((key_.clone(), SetBy::clone(latest?)))
        };
        Thing {
            name: name.to_owned(),
            revision: self.things.get(&(kind, name.to_owned())).copied().unwrap_or(self.revision),
            set_by: configured.keys().filter_map(mark).collect(),
            in_force,
            configured,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Via;
    use serde_json::json;

    const START: &str = "[tenant.web]\nweight = 300\n[tenant.db]\n[device.d.profile]\nknee = 7\n";

    fn ledger() -> Ledger {
        Ledger::new(Document::parse(START).unwrap(), By::via(Via::File), SystemTime::UNIX_EPOCH)
    }

    fn change(ledger: &mut Ledger, edit: Edit, only_if: Option<Match>) -> Result<u64, Refusal> {
        let proposal = Proposal { edit, by: By { uid: Some(7), ..By::via(Via::Ctl) }, only_if, dry_run: false };
        let candidate = ledger.candidate(&proposal)?;
        ledger.accept(candidate, &proposal.by, SystemTime::UNIX_EPOCH);
        Ok(ledger.revision())
    }

    fn keys(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn tenant(name: &str, value: Value) -> Edit {
        Edit::Patch(Kind::Tenant, name.into(), keys(value))
    }

    fn thing(ledger: &Ledger, kind: Kind, name: &str) -> Thing {
        let state = ledger.state(|_, _| Map::new());
        state.things[kind.plural()].iter().find(|thing| thing.name == name).unwrap().clone()
    }

    #[test]
    fn a_value_tells_who_set_it_last_and_a_thing_the_revision_that_changed_it() {
        let mut ledger = ledger();
        assert_eq!(change(&mut ledger, tenant("web", json!({ "class": "idle" })), None), Ok(2));
        let web = thing(&ledger, Kind::Tenant, "web");
        assert_eq!((web.revision, thing(&ledger, Kind::Tenant, "db").revision), (2, 1));
        assert_eq!((web.set_by["weight"].by.via, web.set_by["weight"].revision), (Via::File, 1));
        assert_eq!((web.set_by["class"].by.uid, web.set_by["class"].revision), (Some(7), 2));
        let profile = &thing(&ledger, Kind::Device, "d").set_by["profile"];
        assert_eq!(profile.revision, 1, "a key that is a table was set when something in it was");
    }

    #[test]
    fn another_document_gives_what_differs_its_revision_and_forgets_what_is_gone() {
        let mut ledger = ledger();
        assert_eq!(ledger.revision(), 1);
        let other = Document::parse("[tenant.db]\nweight = 5\n[tenant.new]\n[group.g]\n").unwrap();
        assert_eq!(change(&mut ledger, Edit::Whole(other.clone()), None), Ok(2));
        assert_eq!(*ledger.document(), other);
        let revision = |ledger: &Ledger, kind, name| ledger.things.get(&(kind, String::from(name))).copied();
        let all = [(Kind::Tenant, "db"), (Kind::Tenant, "new"), (Kind::Group, "g")];
        assert_eq!(all.map(|(kind, name)| revision(&ledger, kind, name)), [Some(2); 3]);
        assert_eq!(ledger.things.len(), 3, "web and d are gone: {:?}", ledger.things);
        let weight = &thing(&ledger, Kind::Tenant, "db").set_by["weight"];
        assert_eq!((weight.at.as_str(), weight.revision), ("1970-01-01T00:00:00.000Z", 2));
        // Both may come anew, and then are there; a thing that is gone once more may come once more.
        for (kind, name, at) in [(Kind::Tenant, "web", 3), (Kind::Device, "d", 4), (Kind::Tenant, "web", 6)] {
            let put = || Edit::Put(kind, name.into(), keys(json!({ "x": at })));
            assert_eq!(change(&mut ledger, put(), Some(Match::Absent)), Ok(at));
            let refused = change(&mut ledger, put(), Some(Match::Absent)).unwrap_err().sentence;
            assert!(refused.contains(&format!("it is there already, at revision {at}")), "{refused}");
            if at == 4 {
                assert_eq!(change(&mut ledger, Edit::Delete(Kind::Tenant, "web".into()), None), Ok(5));
            }
        }
        let wanted = Some(Match::Revision(Some(vec![1, 5])));
        let refused = change(&mut ledger, tenant("web", json!({ "x": 1 })), wanted).unwrap_err().sentence;
        assert!(refused.ends_with("it is at revision 6, the change is about revision 1 or 5"), "{refused}");
        let in_force = |_: Kind, name: &str| keys(json!({ "served": name }));
        let state = ledger.state(in_force);
        assert!(state.things["tenants"].iter().all(|thing| thing.in_force == in_force(Kind::Tenant, &thing.name)));
        let little = Document::parse("[group.g]\n").unwrap();
        assert_eq!(change(&mut ledger, Edit::Whole(little), None), Ok(7));
        assert_eq!(ledger.things.len(), 1, "three tenants and d are gone: {:?}", ledger.things);
    }

    #[test]
    fn a_proposal_says_what_it_creates_and_what_it_would_change() {
        let ledger = ledger();
        let of = |edit| Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false };
        let created = |edit| ledger.candidate(&of(edit)).unwrap().created;
        assert!(created(Edit::Put(Kind::Tenant, "new".into(), Map::new())));
        assert!(!created(Edit::Put(Kind::Tenant, "web".into(), Map::new())));
        assert!(!created(tenant("web", json!({ "weight": 4 }))));
        let changes = ledger.candidate(&of(tenant("web", json!({ "weight": 4 })))).unwrap().changes;
        let applied = ledger.applied(changes.clone(), true, true);
        assert_eq!((applied.revision, applied.changed, applied.dry_run, applied.created), (1, true, true, true));
        assert_eq!(applied.changes, changes);
        let nothing = ledger.applied(Vec::new(), false, false);
        assert_eq!((nothing.changed, nothing.dry_run, nothing.created), (false, false, false));
    }

    #[test]
    fn a_state_follows_every_thing_that_was_touched() {
        let mut ledger = ledger();
        let in_force = |kind: Kind, name: &str| keys(json!({ "of": format!("{}/{name}", kind.plural()) }));
        let mut state = ledger.state(in_force);
        for edit in [
            Edit::Delete(Kind::Tenant, "web".into()),
            tenant("db", json!({ "weight": 9 })),
            Edit::Put(Kind::Tenant, "new".into(), Map::new()),
        ] {
            change(&mut ledger, edit, None).unwrap();
        }
        let touched = ["web", "db", "new"].map(|name| (Kind::Tenant, name));
        ledger.follow(&mut state, touched, in_force);
        assert_eq!(state, ledger.state(in_force));
        let db = thing(&ledger, Kind::Tenant, "db");
        assert_eq!((&db.configured, db.revision), (&keys(json!({ "weight": 9 })), 3));
    }

    #[test]
    fn an_edit_of_one_thing_is_told_and_ends_as_that_of_the_whole_document_and_copies_nothing() {
        let mut ledger = ledger();
        for edit in [
            tenant("web", json!({ "weight": null, "cost": { "a.b": 1 } })),
            Edit::Put(Kind::Tenant, "new".into(), Map::new()),
            Edit::Put(Kind::Group, "g".into(), keys(json!({ "weight": 3 }))),
            Edit::Delete(Kind::Tenant, "web".into()),
            Edit::Delete(Kind::Group, "g".into()),
            Edit::Put(Kind::Device, "d".into(), keys(json!({ "profile": { "knee": 8 } }))),
        ] {
            let whole = ledger.document.changes_to(&ledger.document.edited(&edit).unwrap());
            let proposal = Proposal { edit, by: By::via(Via::Http), only_if: None, dry_run: false };
            let candidate = ledger.candidate(&proposal).unwrap();
            assert_eq!(candidate.changes, whole);
            let document = ledger.document.edited(&proposal.edit).unwrap();
            assert_eq!(ledger.whole(&candidate), document);
            let before = Arc::as_ptr(&ledger.document);
            ledger.accept(candidate, &proposal.by, SystemTime::UNIX_EPOCH);
            assert_eq!(*ledger.document, document);
            assert_eq!(Arc::as_ptr(&ledger.document), before, "nothing is copied that nobody else has");
        }
        assert_eq!((ledger.revision(), thing(&ledger, Kind::Device, "d").revision), (7, 7));
        assert_eq!(thing(&ledger, Kind::Tenant, "db").revision, 1);
    }

    #[test]
    fn a_change_that_changes_nothing_leaves_the_revision() {
        let mut ledger = ledger();
        assert_eq!(change(&mut ledger, tenant("web", json!({ "weight": 300, "class": null })), None), Ok(1));
        let put = |keys_: Value| Edit::Put(Kind::Tenant, "web".into(), keys(keys_));
        assert_eq!(change(&mut ledger, put(json!({ "weight": 300 })), None), Ok(1));
        assert_eq!(change(&mut ledger, put(json!({})), None), Ok(2));
        assert!(thing(&ledger, Kind::Tenant, "web").configured.is_empty());
    }

    #[test]
    fn a_change_about_another_revision_is_refused_and_changes_nothing() {
        let mut ledger = ledger();
        let at = |revision| Some(Match::Revision(Some(vec![revision])));
        assert_eq!(change(&mut ledger, tenant("db", json!({ "weight": 5 })), at(1)), Ok(2));
        // Another thing keeps its revision.
        assert_eq!(change(&mut ledger, tenant("web", json!({ "weight": 5 })), at(1)), Ok(3));
        let stale = change(&mut ledger, tenant("web", json!({ "weight": 9 })), at(1)).unwrap_err();
        assert_eq!(stale.fault, Fault::Stale);
        assert_eq!(stale.sentence, "tenant.web: it is at revision 3, the change is about revision 1");
        let put = |name: &str| Edit::Put(Kind::Tenant, name.into(), Map::new());
        let there = change(&mut ledger, put("web"), Some(Match::Absent)).unwrap_err();
        assert_eq!(there.sentence, "tenant.web: it is there already, at revision 3");
        assert_eq!(change(&mut ledger, put("new"), Some(Match::Absent)), Ok(4));
        let gone = change(&mut ledger, put("none"), Some(Match::Revision(None))).unwrap_err();
        assert_eq!(gone.sentence, "tenant.none: it is not there");
        let whole = Edit::Whole(Document::parse("").unwrap());
        assert_eq!(change(&mut ledger, whole.clone(), at(3)).unwrap_err().fault, Fault::Stale);
        assert_eq!(change(&mut ledger, whole, at(4)), Ok(5));
    }

    #[test]
    fn what_is_not_there_cannot_be_changed_or_deleted() {
        let mut ledger = ledger();
        let refusal = change(&mut ledger, Edit::Delete(Kind::Export, "a b".into()), None).unwrap_err();
        assert_eq!((refusal.fault, refusal.sentence.as_str()), (Fault::Missing, "there is no export \"a b\""));
        assert_eq!(refusal.key.as_deref(), Some("export.\"a b\""));
        assert_eq!(change(&mut ledger, tenant("x", json!({})), None).unwrap_err().fault, Fault::Missing);
        let null = Edit::Put(Kind::Tenant, "x".into(), keys(json!({ "list": [null] })));
        assert_eq!(
            change(&mut ledger, null, None).unwrap_err().sentence,
            "tenant.x.list: null does not fit here, allowed is a string, a number, true, false, a list or a table"
        );
        assert_eq!(ledger.revision(), 1);
    }
}
