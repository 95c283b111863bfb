//! The server as the control plane sees it: the configured document, the values in force, and the one way to change
//! both.
//!
//! ```text
//!   SIGHUP, PUT, PATCH, DELETE ──▶ Running::change ──▶ reader, check ──▶ Reconciler ──▶ ledger, state, event
//!                                  one after the other  refusals         steps
//! ```
//! The start is revision 1. [`saving`] writes changes to the config file, or names those that are not in it.

mod backings;
mod saving;

mod shown;

use crate::config::cached::{CachedConfig, Part, Right};
use crate::config::control::ControlConfig;
use crate::config::{Again, Config, ConfigError, DevicePlan, HeldFiles, KnownFiles, Medium, Plan};
use crate::output::Output;
use crate::reconcile::{Change, Lack, Reconciler, Refusals, Runtime};
use crate::upgrade;
use mqfq_blk::device::Health;
use mqfq_blk::engine::Engine;
use mqfq_config::text::{self, counted, shown};
use mqfq_control::admission::IsOwnName;
use mqfq_control::document::Document;
use mqfq_control::events::Events;
use mqfq_control::journal::Journal;
use mqfq_control::ledger::{Candidate, Ledger};
use mqfq_control::listen::Transport;
use mqfq_control::model::{ConfigFile, Fault, KeyChange};
use mqfq_control::tls;
use mqfq_control::unsaved::{self, Unsaved};
use mqfq_control::{
    Applied, By, Control, Edit, Kind, Listen, Proposal, Refusal, Reload, Route, Server, State, Status, Via,
};
use mqfq_front::socket::SocketAddress;
use mqfq_front::tls::Keys;
use serde_json::{Map, Value, json};
use shown::{one_in_force, owner, state_of, withheld_in_force};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Name of the config in sentences about a document that came over the API.
const DOCUMENT: &str = "config";

/// Clients that may wait for the control plane to accept them.
const BACKLOG: i32 = 128;

/// Least length of a token, bytes, so that it cannot be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Changes that one line of the log names.
const LOST_TOLD: usize = 16;

/// Keys that the event of a change names, and bytes of their values: the last events stay in memory, and a config may
/// have tens of thousands of keys.
const CHANGES_TOLD: usize = 3;
const KEYS_TOLD: usize = 16;
const VALUE_BYTES_TOLD: usize = 256;

/// The files of a server's start.
pub struct Origin {
    /// The config file.
    pub path: PathBuf,
    /// The file's text.
    pub text: String,
    /// `[control]` in it.
    pub control: Option<ControlConfig>,
    /// Addresses of the control plane.
    pub listen: Vec<String>,
}

/// The counters as JSON.
pub type Counters = Box<dyn Fn() -> Value + Send + Sync>;

/// A server that runs.
pub struct Running {
    engine: Arc<Engine>,
    output: Output,
    origin: Origin,
    ready_at: Instant,
    is_draining: AtomicBool,
    counters: Counters,
    /// Held while a change is checked and applied, which may take as long as a device needs to run empty.
    changing: Mutex<Changing>,
    /// Held only for a copy of the contents.
    shown: Mutex<Shown>,
    /// Whether an erase goes on, for [`Running::look`].
    erases: Arc<Erases>,
}

/// The state that a change modifies.
struct Changing {
    reconciler: Reconciler,
    /// Known about the files of the plan.
    known_files: KnownFiles,
    ledger: Ledger,
    /// The document as it was read. `None`: the next change reads it.
    cached: Option<CachedConfig>,
    /// `None`: no control plane listens, so all changes come of the file.
    unsaved: Option<Unsaved>,
    /// `None`: there is none, or it could not be written.
    journal: Option<Journal>,
    /// Each change repeats warnings.
    has_warnings: bool,
}

/// The state that is shown while a change is under way.
struct Shown {
    document: Arc<Document>,
    state: Arc<State>,
    file: ConfigFile,
    /// Changes that the file does not have.
    unsaved: usize,
    /// A device that was to be opened anew and could not be. Until it is, nothing else changes.
    closed: Option<String>,
}

/// Whether an erase has begun since the last [`Erases::wait`].
#[derive(Default)]
pub struct Erases {
    has_begun: Mutex<bool>,
    begins: Condvar,
}

impl Erases {
    fn begin(&self) {
        // A flag is whole whatever panicked.
        *self.has_begun.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.begins.notify_all();
    }

    /// Waits for it, or for so long. Whether one has begun.
    pub fn wait(&self, patience: Duration) -> bool {
        let has_begun = self.has_begun.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.begins.wait_timeout_while(has_begun, patience, |has_begun| !*has_begun);
        let (mut has_begun, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *has_begun)
    }
}

/// The changes made, and the result.
type Done = (Vec<Change>, Result<Applied, Refusal>);

impl Running {
    /// A server that runs the plan of `reconciler`, which the config that it was started from says; `known_files` has
    /// the answers that its check was given.
    pub fn new(
        engine: Arc<Engine>,
        output: Output,
        origin: Origin,
        reconciler: Reconciler,
        known_files: KnownFiles,
        counters: Counters,
    ) -> Running {
        let document = Document::parse(&origin.text).expect("the config's reader has read it");
        let ledger = Ledger::new(document, By::via(Via::File), SystemTime::now());
        let state = state_of(&origin, &ledger, &reconciler, &engine);
        let path = std::path::absolute(&origin.path).unwrap_or_else(|_| origin.path.clone());
        let file = ConfigFile { path: path.display().to_string(), text: origin.text.clone() };
        let document = ledger.document();
        let unsaved = origin.control.is_some().then(|| Unsaved::new((*document).clone()));
        let shown = Shown { document, state: Arc::new(state), file, unsaved: 0, closed: None };
        let erases: Arc<Erases> = Arc::default();
        if reconciler.is_erasing() {
            erases.begin();
        }
        Running {
            engine,
            output,
            origin,
            ready_at: Instant::now(),
            is_draining: AtomicBool::new(false),
            counters,
            changing: Mutex::new(Changing {
                has_warnings: !reconciler.plan().warnings.is_empty(),
                reconciler,
                known_files,
                ledger,
                cached: None,
                unsaved,
                journal: None,
            }),
            shown: Mutex::new(shown),
            erases,
        }
    }

    /// Notified when an erase begins.
    pub fn erases(&self) -> Arc<Erases> {
        self.erases.clone()
    }

    /// A change was made, and an erase may have begun with it.
    fn tell_erases(&self, reconciler: &Reconciler) {
        if reconciler.is_erasing() {
            self.erases.begin();
        }
    }

    /// The end was asked for: waits for the change under way, and lets none begin.
    pub fn drains(&self) {
        // Relaxed: a thread that changes something reads it under the lock that is taken next.
        self.is_draining.store(true, Ordering::Relaxed);
        let lost = self.lost_at_end(&self.changing());
        if !lost.is_empty() {
            let (number, file) = (counted(lost.len(), "change"), shown(&self.shown().file.path));
            let lost = unsaved::described(&lost, LOST_TOLD);
            self.output.note(&format!("{number} not in {file} end with this server: {lost}"));
        }
        self.output.events().push(
            "draining",
            "the server drains: requests are answered, then exports are closed",
            Value::Null,
        );
    }

    /// Offers what erases have ended for since the last change, and shows how far those are that go on. True: some go
    /// on.
    pub fn look(&self) -> bool {
        let mut changing = self.changing();
        // Relaxed: see `drains`.
        if self.is_draining.load(Ordering::Relaxed) || !changing.reconciler.is_erasing() {
            return false;
        }
        changing.reconciler.look();
        let reconciler = &changing.reconciler;
        let mut shown = self.shown();
        withheld_in_force(reconciler, Arc::make_mut(&mut shown.state));
        reconciler.is_erasing()
    }

    /// Calls `of` with the plan in force.
    pub fn with_plan<T>(&self, of: impl FnOnce(&Plan) -> T) -> T {
        of(self.changing().reconciler.plan())
    }

    /// See [`Reconciler::close_idle_devices`].
    pub fn close_idle_devices(&self) {
        self.changing().reconciler.close_idle_devices();
    }

    /// Calls `of` with the running things of the plan.
    pub fn with_runtime<T>(&self, of: impl FnOnce(&Runtime) -> T) -> T {
        of(self.changing().reconciler.runtime())
    }

    /// Reads the config file again, as SIGHUP asks: the changes, the revision after them, and why there are none.
    pub fn reload_for_signal(&self) -> (Vec<Change>, u64, Option<String>) {
        let (changes, result) = self.reload_by(&By::via(Via::Sighup), Reload::default());
        (changes, self.shown().state.revision, result.err().map(|refusal| refusal.sentence))
    }

    fn reload_by(&self, by: &By, how: Reload) -> Done {
        let name = self.origin.path.display().to_string();
        // Locked before the file is read: of two reloads, the later one has the later text in force.
        let mut changing = self.changing();
        if let Err(refusal) = self.refuse_at_end() {
            return (Vec::new(), Err(refusal));
        }
        let read = Config::read_text(&self.origin.path).and_then(|text| {
            // The reader's sentence, with file and line.
            let config = Config::parse(&name, &text).map_err(|error| error.to_string())?;
            let document = Document::parse(&text).map_err(|fault| format!("{name}:{fault}"))?;
            Ok((config, document, text))
        });
        let (config, document, text) = match read {
            Ok(read) => read,
            Err(sentence) => return self.tell(by, (Vec::new(), Err(Refusal::new(Fault::Bad, sentence)))),
        };
        let unsaved = changing.unsaved.as_ref();
        let lost = unsaved.map(|unsaved| unsaved.lost_to(&document, &changing.ledger.document())).unwrap_or_default();
        let refusal = (!lost.is_empty() && !how.discard_unsaved).then(|| unsaved::refusal(&lost, &name));
        if let Some(sentence) = refusal.clone().filter(|_| !how.dry_run) {
            return self.tell(by, (Vec::new(), Err(Refusal::new(Fault::Conflict, sentence))));
        }
        let proposal = Proposal { edit: Edit::Whole(document), by: by.clone(), only_if: None, dry_run: how.dry_run };
        let candidate = changing.ledger.candidate(&proposal);
        let candidate = match candidate {
            Ok(candidate) => candidate,
            Err(refusal) => return (Vec::new(), Err(refusal)),
        };
        let mut done = self.change(&mut changing, candidate, config, true, &proposal, &|error| error.to_string());
        match &mut done.1 {
            Ok(applied) if how.dry_run => applied.warnings.extend(refusal),
            Ok(_) => self.file_is(&mut changing, text),
            Err(_) => {}
        }
        self.tell(by, done)
    }

    /// Checks and applies a candidate that `config` is read from; it is a user's own text if it `is_own`. `say` makes a
    /// sentence of the reader's refusal.
    fn change(
        &self,
        changing: &mut Changing,
        candidate: Candidate,
        config: Config,
        is_own: bool,
        proposal: &Proposal,
        say: &dyn Fn(&ConfigError) -> String,
    ) -> Done {
        let refused = |fault, sentence: String| (Vec::new(), Err(Refusal::new(fault, sentence)));
        let is_same = match (&config.control, &self.origin.control) {
            (Some(new), Some(old)) => new.says(old),
            (new, old) => new.is_none() && old.is_none(),
        };
        if !is_same {
            let sentence = "[control] cannot change while serving, allowed is to change it by a restart";
            return refused(Fault::Conflict, sentence.to_owned());
        }
        // The sections of an own text are in another order.
        let cached = if is_own || proposal.dry_run { None } else { Some(config.clone()) };
        let files = held(&changing.reconciler, Again::Nothing, &changing.known_files);
        let mut new = match config.check(&files) {
            Ok(new) => new,
            Err(error) => return (Vec::new(), Err(refusal(&error, &proposal.edit, say(&error)))),
        };
        let warnings = std::mem::take(&mut new.warnings);
        if !proposal.dry_run {
            warnings.iter().for_each(|warning| self.output.note(warning));
        }
        let done = changing.reconciler.propose(&new, proposal.dry_run);
        self.tell_erases(&changing.reconciler);
        let done = match done {
            Ok(done) => done,
            Err(Refusals(sentences)) => return refused(Fault::Conflict, sentences.join("; ")),
        };
        if proposal.dry_run {
            let sentences = done.iter().map(Change::sentence).collect();
            let applied = changing.ledger.applied(candidate.changes, candidate.created, true);
            return (done, Ok(Applied { done: sentences, warnings, ..applied }));
        }
        changing.known_files.keep(changing.reconciler.names());
        let files = held(&changing.reconciler, Again::Nothing, &changing.known_files);
        let cached = cached.and_then(|config| CachedConfig::new(config, &new, &files));
        (changing.has_warnings, changing.cached) = (!warnings.is_empty(), cached);
        let all = |changing: &Changing, state: &mut State| {
            *state = state_of(&self.origin, &changing.ledger, &changing.reconciler, &self.engine);
        };
        let applied = self.accept(changing, candidate, &proposal.by, &done, all);
        (done, Ok(Applied { warnings, ..applied }))
    }

    /// Accepts a candidate that is in force: the ledger has it, and the shown state `follows`.
    fn accept(
        &self,
        changing: &mut Changing,
        candidate: Candidate,
        by: &By,
        done: &[Change],
        follows: impl FnOnce(&Changing, &mut State),
    ) -> Applied {
        let (changes, created) = (candidate.changes.clone(), candidate.created);
        let mut shown = self.shown();
        // A second owner would have it copied.
        shown.document = Arc::default();
        changing.ledger.accept(candidate, by, SystemTime::now());
        (shown.document, shown.closed) = (changing.ledger.document(), None);
        follows(changing, Arc::make_mut(&mut shown.state));
        let done = done.iter().map(Change::sentence).collect();
        Applied { done, ..changing.ledger.applied(changes, created, false) }
    }

    /// A change of one tenant or export, which may come or go, at a price that does not grow with the config: the
    /// reader reads that section alone, it is checked with those that it names, and only a part of the shown state
    /// changes.
    ///
    /// # Errors
    /// The candidate: it is another change, would be refused or warned about, and nothing was done.
    fn propose_section(
        &self,
        changing: &mut Changing,
        candidate: Candidate,
        proposal: &Proposal,
    ) -> Result<Done, Candidate> {
        let Changing { reconciler, known_files, cached, has_warnings, .. } = changing;
        let is_plain = !proposal.dry_run && !*has_warnings && self.origin.control.is_some();
        // While a device is closed every change is to open it, or is refused.
        let cached = cached.as_mut().filter(|_| is_plain && self.shown().closed.is_none());
        let (Some(cached), Some((kind, name))) = (cached, proposal.edit.thing()) else { return Err(candidate) };
        let alone = Config::parse(DOCUMENT, &candidate.document.text().0).ok();
        let Some(part) = alone.and_then(|alone| Part::of(kind, name, alone)) else { return Err(candidate) };
        let right = cached.check(&part, &held(reconciler, Again::Nothing, known_files));
        let Some(right) = right else { return Err(candidate) };
        let (before, withheld) = (owner(reconciler, kind, name), reconciler.is_withholding());
        let done = match &right {
            Right::Alone(plan) => reconciler.propose_part(Some(plan), None),
            Right::Nothing => reconciler.propose_part(None, (kind == Kind::Export).then_some(name)),
        };
        self.tell_erases(reconciler);
        let done = match done {
            None => return Err(candidate),
            Some(Err(Refusals(sentences))) => {
                return Ok((Vec::new(), Err(Refusal::new(Fault::Conflict, sentences.join("; ")))));
            }
            Some(Ok(done)) => done,
        };
        cached.set(part, &right, &held(reconciler, Again::Nothing, known_files));
        let after = owner(reconciler, kind, name);
        // The values in force of an export's tenants may begin or end with it.
        let owners = before.iter().chain(&after).map(|tenant| (Kind::Tenant, &**tenant));
        let touched: BTreeSet<(Kind, &str)> = owners.chain([(kind, name)]).collect();
        let follow = |Changing { ledger, reconciler, .. }: &Changing, state: &mut State| {
            ledger.follow(state, touched.iter().copied(), |kind, name| one_in_force(reconciler, kind, name));
            let withholds = reconciler.is_withholding();
            if withheld || withholds {
                withheld_in_force(reconciler, state);
            }
            // An erase that goes on has erased more in the meantime.
            let whole = || state_of(&self.origin, ledger, reconciler, &self.engine);
            debug_assert!(withholds || *state == whole(), "{:?}", proposal.edit);
        };
        let applied = self.accept(changing, candidate, &proposal.by, &done, follow);
        Ok((done, Ok(applied)))
    }

    /// Opens a device as it is configured: one that a failed attempt has left closed is in the document alone.
    fn reopen_device(&self, changing: &mut Changing, device: &str) -> Result<Applied, Refusal> {
        let Changing { reconciler, ledger, known_files, cached, .. } = changing;
        // Files may be others.
        *cached = None;
        let conflict = |sentence: String| Refusal::new(Fault::Conflict, sentence);
        let text = ledger.document().text().0;
        let config =
            Config::parse(DOCUMENT, &text).map_err(|error| conflict(without_place(&error.to_string()).into()))?;
        let name = shown(device);
        let Some(known) = config.devices.iter().find(|known| known.name == device) else {
            return Err(Refusal::new(Fault::Missing, format!("there is no device {device:?}")));
        };
        if !matches!(known.medium, Medium::File { .. } | Medium::Pool { .. }) {
            let allowed = "allowed is to reopen one of kind \"file\" or \"pool\"";
            return Err(conflict(format!("device {name} would lose the bytes that it has in memory, {allowed}")));
        }
        let plan = config
            .check(&held(reconciler, Again::Device(device), known_files))
            .map_err(|error| conflict(without_place(&error.to_string()).into()))?;
        if !plan.devices.values().any(|known| known.config.name == device) {
            return Err(conflict(format!("device {name} has no export, so it is not open")));
        }
        let reopened = reconciler.reopen(device, &plan);
        self.tell_erases(reconciler);
        let state = Arc::new(state_of(&self.origin, ledger, reconciler, &self.engine));
        let is_there = reconciler.plan().devices.values().any(|known| known.config.name == device);
        {
            let mut shown = self.shown();
            (shown.state, shown.closed) = (state, (!is_there).then(|| device.to_owned()));
        }
        reopened.map_err(|Refusals(sentences)| {
            let why = without_place(&sentences.join("; ")).to_owned();
            conflict(if is_there {
                why
            } else {
                format!("device {name} serves nobody until it can be reopened: {why}")
            })
        })?;
        let done = vec![format!("device {name} was closed and opened anew")];
        Ok(Applied { changed: true, done, ..ledger.applied(Vec::new(), false, false) })
    }

    /// Refuses changes once the end was asked for. Called under the lock of a change.
    fn refuse_at_end(&self) -> Result<(), Refusal> {
        // Relaxed: see `drains`.
        match self.is_draining.load(Ordering::Relaxed) {
            true => Err(Refusal::new(Fault::Conflict, "the server drains, and takes no change any more")),
            false => Ok(()),
        }
    }

    /// An event about the result of a proposal.
    fn tell(&self, by: &By, done: Done) -> Done {
        match &done.1 {
            Err(refusal) => self.output.events().push("refused", refusal.sentence.clone(), json!({ "by": by })),
            Ok(applied) if applied.changed && !applied.dry_run => {
                let told: Vec<Value> = applied.changes.iter().take(KEYS_TOLD).map(short).collect();
                let data = json!({
                    "by": by,
                    "revision": applied.revision,
                    "keys": applied.changes.len(),
                    "changes": told,
                });
                self.output.events().push("change", unsaved::described(&applied.changes, CHANGES_TOLD), data);
            }
            Ok(_) => {}
        }
        done
    }

    /// Records the result of a proposal in an event, and in the file or the journal.
    fn tell_and_record(&self, changing: &mut Changing, proposal: &Proposal, done: Done) -> Result<Applied, Refusal> {
        let mut applied = self.tell(&proposal.by, done).1?;
        if applied.changed && !applied.dry_run {
            applied.warnings.extend(self.record(changing, proposal.edit.thing()));
        }
        Ok(applied)
    }

    fn changing(&self) -> MutexGuard<'_, Changing> {
        // A panic ends the process.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server for Running {
    fn status(&self) -> Status {
        let health = self.engine.health().into_iter().filter(|(_, health)| *health != Health::Well);
        let shown = self.shown();
        let closed = shown.closed.iter().map(|device| (device.clone(), "closed".to_owned()));
        let ailing = self.engine.ailing().into_iter();
        let ailing = ailing.map(|(device, ailing)| (format!("{device}: {}", ailing.part), ailing.state.to_owned()));
        let troubled = health.map(|(device, health)| (device, health.name().to_owned())).chain(ailing).chain(closed);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.ready_at.elapsed().as_secs(),
            workers: self.engine.workers(),
            revision: shown.state.revision,
            unsaved: shown.unsaved,
            // Relaxed: see `drains`.
            draining: self.is_draining.load(Ordering::Relaxed),
            config: Some(shown.file.path.clone()),
            listen: self.origin.listen.clone(),
            things: shown.state.things.iter().map(|(kind, things)| (kind.clone(), things.len())).collect(),
            troubled: troubled.collect(),
        }
    }

    fn state(&self) -> Arc<State> {
        self.shown().state.clone()
    }

    fn configured(&self) -> (Arc<Document>, u64) {
        let shown = self.shown();
        (shown.document.clone(), shown.state.revision)
    }

    fn propose(&self, proposal: &Proposal) -> Result<Applied, Refusal> {
        let mut changing = self.changing();
        self.refuse_at_end()?;
        let candidate = changing.ledger.candidate(proposal)?;
        if candidate.changes.is_empty() {
            return Ok(changing.ledger.applied(Vec::new(), false, proposal.dry_run));
        }
        let ((done, mut result), is_own) = match self.propose_section(&mut changing, candidate, proposal) {
            Ok(done) => (done, false),
            Err(candidate) => {
                let (text, is_own) = changing.ledger.whole(&candidate).text();
                // The lines of a document that we have written say nothing.
                let say = move |error: &ConfigError| match is_own {
                    true => error.to_string(),
                    false if error.key.is_empty() => error.message.clone(),
                    false => format!("{}: {}", error.key, error.message),
                };
                let done = match Config::parse(DOCUMENT, &text) {
                    Ok(config) => self.change(&mut changing, candidate, config, is_own, proposal, &say),
                    Err(error) => (Vec::new(), Err(refusal(&error, &proposal.edit, say(&error)))),
                };
                (done, is_own)
            }
        };
        if let (Err(refusal), Edit::Delete(kind, name)) = (&mut result, &proposal.edit)
            && let Some(sentence) = still_used(&changing.ledger.document(), *kind, name)
        {
            refusal.sentence = sentence;
        }
        if let Err(refusal) = &mut result
            && !is_own
        {
            refusal.line = None;
            refusal.sentence = without_place(&refusal.sentence).to_owned();
        }
        self.tell_and_record(&mut changing, proposal, (done, result))
    }

    fn file(&self) -> Option<ConfigFile> {
        Some(self.shown().file.clone())
    }

    fn reload(&self, by: &By, how: Reload) -> Result<Applied, Refusal> {
        self.reload_by(by, how).1
    }

    fn grow(&self, export: &str, by: &By) -> Result<Applied, Refusal> {
        self.grow_asked(export, by)
    }

    fn reopen(&self, kind: Kind, name: &str, by: &By) -> Result<Applied, Refusal> {
        let mut changing = self.changing();
        self.refuse_at_end()?;
        let result = match kind {
            Kind::Export => self.reopen_backing(&mut changing, name),
            _ => self.reopen_device(&mut changing, name),
        };
        match &result {
            Ok(applied) => self.output.events().push("reopened", applied.done[0].clone(), json!({ "by": by })),
            Err(refusal) => self.output.events().push("refused", refusal.sentence.clone(), json!({ "by": by })),
        }
        result
    }

    fn saved(&self, text: String) {
        self.file_is(&mut self.changing(), text);
    }

    fn give_memory_back(&self) {
        crate::heap::give_back();
    }

    fn counters(&self) -> Value {
        (self.counters)()
    }

    fn events(&self) -> &Events {
        self.output.events()
    }
}

/// The files of what a reconciler runs.
fn held<'p>(reconciler: &'p Reconciler, again: Again<'p>, known_files: &'p KnownFiles) -> HeldFiles<'p> {
    HeldFiles::new(reconciler.plan(), reconciler.names(), again, known_files)
}

/// The reader's refusal of a document. The rest was right before a deletion: it needs the deleted thing.
fn refusal(error: &ConfigError, edit: &Edit, sentence: String) -> Refusal {
    let fault = if matches!(edit, Edit::Delete(..)) { Fault::Conflict } else { Fault::Bad };
    let key = (!error.key.is_empty()).then(|| error.key.clone());
    Refusal { key, line: Some(error.line), ..Refusal::new(fault, sentence) }
}

/// The sentence that refuses to delete a used thing.
fn still_used(document: &Document, kind: Kind, name: &str) -> Option<String> {
    let users = document.users(kind, name);
    let (first, _) = users.first()?;
    let names: Vec<&str> = users.iter().filter(|(user, _)| user == first).map(|(_, name)| *name).collect();
    let kinds = if names.len() == 1 { first.section() } else { first.plural() };
    let names = text::list(names.into_iter());
    Some(format!(
        "{} {} still has {kinds} {names}, allowed is to remove one that nothing uses",
        kind.section(),
        shown(name)
    ))
}

/// A sentence without the name and the line of a document that we have written.
fn without_place(sentence: &str) -> &str {
    let rest = sentence.strip_prefix(DOCUMENT).and_then(|rest| rest.strip_prefix(':'));
    let rest = rest.and_then(|rest| rest.split_once(": ")).filter(|(line, _)| line.bytes().all(|b| b.is_ascii_digit()));
    rest.map_or(sentence, |(_, rest)| rest)
}

/// A change as an event has it: of a long value its beginning.
fn short(KeyChange { key, from, to }: &KeyChange) -> Value {
    let short = |value: &Value| match value.to_string() {
        text if text.len() <= VALUE_BYTES_TOLD => value.clone(),
        text => shown(&text).into(),
    };
    json!({ "key": key, "from": short(from), "to": short(to) })
}

/// The sockets of `[control]`, which listen from now on; those of TCP encrypt with `keys`. `inherited` sockets are
/// another process's.
///
/// # Errors
/// One sentence: an address that cannot be listened on, or a token that cannot be read.
pub fn listen(
    control: &ControlConfig,
    keys: Option<Arc<Keys>>,
    inherited: &mut dyn FnMut(&SocketAddress) -> Option<OwnedFd>,
) -> Result<Vec<Listen>, String> {
    let token: Option<Arc<str>> = token_of(control)?.map(Arc::from);
    let hosts: BTreeSet<String> = control.listen.iter().filter_map(host).collect();
    let certificate = keys.clone();
    let is_certified = move |name: &str| certificate.as_ref().is_some_and(|keys| keys.is_for(name));
    let names: IsOwnName = Arc::new(move |name| hosts.contains(&name.to_ascii_lowercase()) || is_certified(name));
    let tls: Option<tls::Present> = keys.map(|keys| Arc::new(move || keys.now()) as tls::Present);
    let listen = |address: &SocketAddress| {
        let listening = upgrade::listen(address, control.socket_mode, BACKLOG, inherited(address))?;
        let transport = match address {
            SocketAddress::Tcp { .. } => {
                Transport::Tcp { token: token.clone(), tls: tls.clone(), names: names.clone() }
            }
            SocketAddress::Unix(_) => Transport::Unix,
        };
        let (socket, address, file) = listening.into_parts();
        Ok(Listen { socket, address: address.to_string(), transport, keep: Box::new(file) })
    };
    control.listen.iter().map(listen).collect()
}

/// The host of a TCP address, in lower case.
fn host(address: &SocketAddress) -> Option<String> {
    match address {
        SocketAddress::Tcp { host, .. } => Some(host.to_ascii_lowercase()),
        SocketAddress::Unix(_) => None,
    }
}

/// The token that clients of TCP must know, if there is one.
///
/// # Errors
/// One sentence: the file cannot be read, others can read it, or it holds no token.
pub fn token_of(control: &ControlConfig) -> Result<Option<String>, String> {
    let Some(located) = &control.token_file else { return Ok(None) };
    token(&located.value).map(Some).map_err(|why| located.place.error(why).to_string())
}

/// The token in the file at `path`: its text without the white space around it.
fn token(path: &Path) -> Result<String, String> {
    let name = shown(&path.to_string_lossy());
    let text = crate::files::read_text(path, 4096).map_err(|why| format!("cannot read {name}: {why}"))?;
    let mode =
        std::fs::metadata(path).map_err(|error| format!("cannot read {name}: {}", mqfq_report::plain(&error)))?.mode();
    if mode & 0o077 != 0 {
        let mode = mode & 0o777;
        return Err(format!("{name} has mode {mode:o}: others can read it, allowed is at most 600"));
    }
    let token = text.trim().to_owned();
    let fits = token.len() >= TOKEN_BYTES_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
    let wrong = || {
        format!("{name} holds no token, allowed are at least {TOKEN_BYTES_MIN} printable ASCII characters, no space")
    };
    if fits { Ok(token) } else { Err(wrong()) }
}

/// Starts the control plane on sockets that [`listen`] has made, with `more` routes.
///
/// # Errors
/// One sentence.
pub fn start(sockets: Vec<Listen>, running: Arc<Running>, more: Vec<Route>) -> Result<Control, String> {
    mqfq_control::start(sockets, running, more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_that_anyone_but_its_owner_can_use_is_refused() {
        let path = std::env::temp_dir().join(format!("mqfq-token-{}", std::process::id()));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            token(&path)
        };
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(read(mode), Ok("0123456789abcdef".to_owned()), "{mode:o}");
        }
        for mode in [0o640, 0o620, 0o610, 0o604, 0o602, 0o601] {
            assert!(read(mode).is_err_and(|why| why.contains(&format!("has mode {mode:o}: "))), "{mode:o}");
        }
        for text in ["0123456789 abcdef", "0123456789abcde", "0123456789abcde\u{e9}"] {
            std::fs::write(&path, text).unwrap();
            assert!(read(0o600).is_err_and(|why| why.contains("holds no token")), "{text}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
