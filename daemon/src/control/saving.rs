//! How do changes reach the config file, and which are named before they are lost?

use super::{Changing, LOST_TOLD, Running};
use crate::config::Config;
use crate::config::control::Save;
use mqfq_control::Kind;
use mqfq_control::config_file::{self, How};
use mqfq_control::document::Document;
use mqfq_control::journal::Journal;
use mqfq_control::model::KeyChange;
use mqfq_control::unsaved;
use std::path::Path;

impl Running {
    /// Keeps a journal from now on, and says what an earlier server has left in it that the config does not have.
    pub fn keep_journal(&self, mut journal: Journal) {
        let mut changing = self.changing();
        match journal.take() {
            Err(why) => self.output.note(&why),
            Ok(left) => {
                let lost = unsaved::missing(left, &changing.ledger.document());
                for part in lost.chunks(LOST_TOLD) {
                    let told = unsaved::described(part, LOST_TOLD);
                    self.output.note(&format!("changes that an earlier server had and never saved are lost: {told}"));
                }
                changing.journal = Some(journal);
            }
        }
    }

    /// Refuses an end of this process, after which the config file is read again, if that loses changes.
    ///
    /// # Errors
    /// One sentence: the changes.
    pub fn refuse_loss(&self) -> Result<(), String> {
        let lost = self.lost_at_end(&self.changing());
        if lost.is_empty() { Ok(()) } else { Err(unsaved::refusal(&lost, &self.shown().file.path)) }
    }

    /// Changes that the file does not have as it is now.
    pub(super) fn lost_at_end(&self, changing: &Changing) -> Vec<KeyChange> {
        let Some(unsaved) = changing.unsaved.as_ref().filter(|unsaved| unsaved.changes().next().is_some()) else {
            return Vec::new();
        };
        // A file that cannot be read has none of them.
        let file = Config::read_text(&self.origin.path).ok().and_then(|text| Document::parse(&text).ok());
        unsaved.lost_to(&file.unwrap_or_default(), &changing.ledger.document())
    }

    /// Saves a change of `thing`, or of anything, or tells the journal that it is not saved. Returns a sentence if it
    /// should be saved and is not.
    pub(super) fn record(&self, changing: &mut Changing, thing: Option<(Kind, &str)>) -> Option<String> {
        let Changing { ledger, unsaved, journal, .. } = changing;
        let unsaved = unsaved.as_mut()?;
        let document = ledger.document();
        match thing {
            Some(thing) => unsaved.follow(&document, thing),
            None => unsaved.follow_all(&document),
        }
        let saves = self.origin.control.as_ref().is_some_and(|control| control.save == Save::Always);
        let mut warning = None;
        if saves && unsaved.changes().next().is_some() {
            let file = self.shown().file.clone();
            let how = How { force: false, may_chown: false };
            match config_file::save(Path::new(&file.path), &file.text, &document, how) {
                Ok(saved) => {
                    unsaved.read((*document).clone(), &document);
                    self.shown().file.text = saved.text;
                }
                Err(why) => {
                    let why = format!("the change is in force and not saved: {why}");
                    self.output.note(&why);
                    warning = Some(why);
                }
            }
        }
        let written = journal.as_mut().map_or(Ok(()), |journal| journal.follow(unsaved, thing, ledger.revision()));
        if let Err(why) = written {
            // Said once: it is not tried again.
            self.output.note(&why);
            *journal = None;
        }
        self.shown().unsaved = unsaved.changes().count();
        warning
    }

    /// The config file says `text` from now on.
    pub(super) fn file_is(&self, changing: &mut Changing, text: String) {
        let Changing { ledger, unsaved, .. } = changing;
        if let Some(unsaved) = unsaved {
            unsaved.read(Document::parse(&text).unwrap_or_default(), &ledger.document());
        }
        self.shown().file.text = text;
        self.record(changing, None);
    }
}
