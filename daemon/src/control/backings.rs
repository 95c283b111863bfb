//! Exports of pools grow and are opened anew.

use super::*;

impl Running {
    /// The document as a plan, which has an export of a pool of this name.
    fn plan_of_backing(&self, changing: &Changing, export: &str) -> Result<Plan, Refusal> {
        let conflict = |sentence: String| Refusal::new(Fault::Conflict, sentence);
        let said = |error: ConfigError| conflict(without_place(&error.to_string()).into());
        let config = Config::parse(DOCUMENT, &changing.ledger.document().text().0).map_err(said)?;
        let Some(known) = config.exports.iter().find(|known| known.name == export) else {
            return Err(Refusal::new(Fault::Missing, format!("there is no export {export:?}")));
        };
        if known.path.is_none() {
            let name = shown(export);
            return Err(conflict(format!("export {name} has no backing of its own, allowed is an export of a pool")));
        }
        let files = held(&changing.reconciler, Again::Export(export), &changing.known_files);
        config.check(&files).map_err(said)
    }

    /// Opens the backing of an export anew.
    pub(super) fn reopen_backing(&self, changing: &mut Changing, export: &str) -> Result<Applied, Refusal> {
        let plan = self.plan_of_backing(changing, export)?;
        let reopened = changing.reconciler.reopen_backing(export, &plan);
        // It may be another file.
        changing.cached = None;
        self.tell_erases(&changing.reconciler);
        let Changing { reconciler, ledger, .. } = changing;
        let state = Arc::new(state_of(&self.origin, ledger, reconciler, &self.engine));
        let is_there = reconciler.names().exports.contains_key(export);
        let name = shown(export);
        {
            let mut shown = self.shown();
            (shown.state, shown.closed) = (state, (!is_there).then(|| format!("export {name}")));
        }
        reopened.map_err(|Refusals(sentences)| {
            let why = without_place(&sentences.join("; ")).to_owned();
            let gone = format!("export {name} serves nobody until its backing can be opened: {why}");
            Refusal::new(Fault::Conflict, if is_there { why } else { gone })
        })?;
        let done = vec![format!("the backing of export {name} was closed and opened anew")];
        Ok(Applied { changed: true, done, ..ledger.applied(Vec::new(), false, false) })
    }

    /// Exports of pools whose size is not configured get all that their backings have by now.
    fn grow_backings(&self, changing: &mut Changing, plan: &Plan) -> Result<Applied, Refusal> {
        let done = changing.reconciler.propose(plan, false);
        self.tell_erases(&changing.reconciler);
        let done =
            done.map_err(|Refusals(sentences)| Refusal::new(Fault::Conflict, without_place(&sentences.join("; "))))?;
        let Changing { reconciler, ledger, .. } = changing;
        self.shown().state = Arc::new(state_of(&self.origin, ledger, reconciler, &self.engine));
        let done: Vec<String> = done.iter().map(Change::sentence).collect();
        Ok(Applied { changed: !done.is_empty(), done, ..ledger.applied(Vec::new(), false, false) })
    }

    /// Grows exports whose backings were seen to have grown.
    pub fn look_at_growth(&self) {
        let mut changing = self.changing();
        // Relaxed: see `drains`.
        if self.is_draining.load(Ordering::Relaxed) {
            return;
        }
        let Some(export) = changing.reconciler.grown_backing() else { return };
        let grown = self.plan_of_backing(&changing, &export);
        let grown = grown.and_then(|plan| self.grow_backings(&mut changing, &plan));
        match grown {
            Ok(applied) => applied.done.iter().for_each(|done| {
                self.output.note(&format!("its backing has grown: {done}"));
                self.output.events().push("grown", done.clone(), Value::Null);
            }),
            Err(refusal) => {
                self.output.note(&format!("an export does not grow with its backing: {}", refusal.sentence))
            }
        }
    }

    /// As [`Server::grow`].
    pub(super) fn grow_asked(&self, export: &str, by: &By) -> Result<Applied, Refusal> {
        let mut changing = self.changing();
        self.refuse_at_end()?;
        let plan = self.plan_of_backing(&changing, export)?;
        let result = self.grow_backings(&mut changing, &plan);
        if let Ok(applied) = &result {
            let events = self.output.events();
            applied.done.iter().for_each(|done| events.push("grown", done.clone(), json!({ "by": by })));
        }
        result
    }
}
