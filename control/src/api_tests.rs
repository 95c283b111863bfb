//! The document and the router name the same routes, and the document is whole.

use super::*;
use crate::ledger::Ledger;
use crate::model::{ConfigFile, State as All, Status};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::SystemTime;

/// A server that runs nothing: a ledger alone.
pub(crate) struct OnPaper {
    ledger: Mutex<Ledger>,
    events: crate::events::Events,
    file: Mutex<Option<ConfigFile>>,
    /// What was asked of it and by whom, in words.
    heard: Mutex<Vec<(String, By)>>,
}

impl OnPaper {
    pub(crate) fn new(text: &str) -> Arc<OnPaper> {
        let ledger = Ledger::new(Document::parse(text).unwrap(), By::via(Via::File), SystemTime::UNIX_EPOCH);
        let (ledger, events) = (Mutex::new(ledger), Default::default());
        Arc::new(OnPaper { ledger, events, file: Mutex::default(), heard: Mutex::default() })
    }

    /// It was started with this file.
    pub(crate) fn set_file(&self, file: ConfigFile) {
        *self.file.lock().unwrap() = Some(file);
    }

    fn hear(&self, what: String, by: &By) {
        self.heard.lock().unwrap().push((what, by.clone()));
    }

    /// What was asked of it since the last call.
    pub(crate) fn heard(&self) -> Vec<(String, By)> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

impl Server for OnPaper {
    fn status(&self) -> Status {
        let revision = self.ledger.lock().unwrap().revision();
        let (version, config, things) = (String::new(), None, Default::default());
        let (listen, troubled, draining) = (vec![], Default::default(), false);
        let (pid, uptime_s, workers, unsaved) = (1, 0, 0, 0);
        Status { version, pid, uptime_s, workers, revision, unsaved, draining, config, listen, things, troubled }
    }

    fn state(&self) -> Arc<All> {
        Arc::new(self.ledger.lock().unwrap().state(|_, _| Map::new()))
    }

    fn configured(&self) -> (Arc<Document>, u64) {
        let ledger = self.ledger.lock().unwrap();
        (ledger.document(), ledger.revision())
    }

    fn propose(&self, proposal: &Proposal) -> Result<Applied, Refusal> {
        let (by, only_if, dry_run) = (&proposal.by, &proposal.only_if, proposal.dry_run);
        self.hear(format!("propose {only_if:?}, dry run: {dry_run}"), by);
        let mut ledger = self.ledger.lock().unwrap();
        let candidate = ledger.candidate(proposal)?;
        let (changes, created) = (candidate.changes.clone(), candidate.created);
        ledger.accept(candidate, &proposal.by, SystemTime::UNIX_EPOCH);
        Ok(ledger.applied(changes, created, false))
    }

    fn file(&self) -> Option<ConfigFile> {
        self.file.lock().unwrap().clone()
    }

    fn reload(&self, by: &By, how: Reload) -> Result<Applied, Refusal> {
        self.hear(format!("reload, discard: {}, dry run: {}", how.discard_unsaved, how.dry_run), by);
        Err(Refusal::new(Fault::Broken, "it has no file"))
    }

    fn reopen(&self, _: &str, _: &By) -> Result<Applied, Refusal> {
        Err(Refusal::new(Fault::Missing, "it has no device"))
    }

    fn saved(&self, text: String) {
        self.hear(format!("saved {text}"), &By::via(Via::Http));
    }

    fn counters(&self) -> Value {
        Value::Null
    }

    fn events(&self) -> &crate::events::Events {
        &self.events
    }
}

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

#[test]
fn the_document_has_every_route_and_no_other() {
    let document = document();
    let methods = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().unwrap().keys().map(|method| method.to_uppercase());
        methods.map(|method| format!("{method} {path}")).collect::<Vec<_>>()
    };
    // The crate that watches adds routes of its own, and holds them against the document as well.
    let is_ours = |(_, path): &(&String, &Value)| path["get"]["tags"] != serde_json::json!(["observe"]);
    let documented: BTreeSet<String> =
        document["paths"].as_object().unwrap().iter().filter(is_ours).flat_map(methods).collect();
    let routes = routes(OnPaper::new(""));
    let served: BTreeSet<String> = routes.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    assert_eq!(documented, served);
    assert_eq!(served.len(), routes.len(), "each once");
}

#[test]
fn the_page_for_users_has_every_route() {
    let page = include_str!("../../docs/use/control.md");
    for Route { method, path, .. } in routes(OnPaper::new("")) {
        let kinds = Kind::ALL.iter().map(|kind| format!("/v1/{}", kind.plural()));
        let general = kinds.fold(path.to_owned(), |path, kind| path.replacen(&kind, "/v1/KINDS", 1));
        let row = format!("| `{method} {}` |", general.replace("{name}", "NAME"));
        assert!(page.contains(&row), "docs/use/control.md lacks {row}");
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere_and_every_operation_has_a_name() {
    fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str));
                object.values().for_each(|inner| references(inner, found));
            }
            Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
    }
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let names: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
}

#[test]
fn headers_that_make_no_sense_are_refused_in_a_sentence() {
    let headers =
        |name: header::HeaderName, value: &'static str| HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
    let matched = |value| only_if(&headers(header::IF_MATCH, value)).map_err(|problem| problem.detail);
    assert_eq!(matched("*"), Ok(Some(Match::Revision(None))));
    assert_eq!(matched("\"3\", \"5\""), Ok(Some(Match::Revision(Some(vec![3, 5])))));
    let wrong = "the header If-Match cannot be read, allowed is * or a revision in double quotes, as ETag has it";
    for value in ["3", "W/\"3\"", "\"x\"", ""] {
        assert_eq!(matched(value), Err(wrong.into()), "{value}");
    }
    assert_eq!(only_if(&headers(header::IF_NONE_MATCH, "*")), Ok(Some(Match::Absent)));
    assert!(only_if(&headers(header::IF_NONE_MATCH, "\"3\"")).is_err());
    let typed =
        |value| media_type(&headers(header::CONTENT_TYPE, value), &[JSON, TOML]).map_err(|problem| problem.status);
    assert_eq!(typed("application/JSON; charset=utf-8"), Ok(JSON));
    assert_eq!(typed("application/toml"), Ok(TOML));
    assert_eq!(typed("application/x-www-form-urlencoded"), Err(415));
    assert_eq!(
        (dry_run(None), dry_run(Some("dry-run")), dry_run(Some("dry-run=false"))),
        (Ok(false), Ok(true), Ok(false))
    );
    assert_eq!(
        dry_run(Some("dryrun")).unwrap_err().detail,
        "\"dryrun\" is no parameter of this path, allowed is dry-run"
    );
}
