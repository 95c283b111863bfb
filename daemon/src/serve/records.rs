//! Records beside the config, and rights that the server gives up.

use super::options::{Failure, Start};
use super::prepare::Prepared;
use crate::config::control::Save;
use crate::live::Trust;
use crate::output::Output;
use crate::ownership::record::{self, Fault};
use crate::ownership::{self, Store};
use crate::{files, privilege};
use mqfq_config::text::shown;
use mqfq_control::config_file;
use mqfq_control::journal::{self, Journal};
use std::path::Path;

/// Files that are written while the server runs.
pub(super) struct Records {
    /// Changes that are not saved.
    pub(super) journal: Option<Journal>,
    /// Owners of the devices' data.
    pub(super) store: Store,
    /// Data of at least one device outlasts the process.
    pub(super) lasts: bool,
}

impl Records {
    /// Opens them.
    pub(super) fn open(start: Start<'_>, prepared: &Prepared) -> Result<Records, Failure> {
        let Start { options, output, .. } = start;
        let journal = prepared.control.as_ref().and_then(|_| open_journal(&options.config, output));
        let mut store = Store::at(record::path_for(&options.config, std::env::var("STATE_DIRECTORY").ok().as_deref()));
        let mut kept = prepared.plan.exports.values();
        let lasts = kept.any(|export| {
            let device = &prepared.plan.devices[export.device];
            ownership::key_for(ownership::key_of, device, export).is_some_and(|key| key.lasts)
        });
        if lasts {
            store.open().or_else(|fault| match fault {
                Fault::Closed(sentence) => {
                    output.note(&format!("{sentence}: exports that come to files wait"));
                    Ok(())
                }
                Fault::Damaged(sentence) => Err(sentence),
            })?;
        }
        Ok(Records { journal, store, lasts })
    }
}

/// The journal of changes that are not saved; without one the server says so and goes on.
fn open_journal(config: &Path, output: &Output) -> Option<Journal> {
    let folder = std::env::var(journal::STATE_DIRECTORY).ok();
    let path = journal::path_of(config, folder.as_deref());
    let opened = files::open_own(&path).map_err(|why| format!("cannot open {}: {why}", shown(&path.to_string_lossy())));
    let without = |why: String| output.note(&format!("unsaved changes are in no journal, {why}"));
    opened.and_then(Journal::new).map_err(without).ok()
}

/// Gives up the rights that the config says. All threads that do the server's work come after this.
pub(super) fn give_up_rights(start: Start<'_>, prepared: &Prepared, trust: &Trust) -> Result<(), Failure> {
    let super::options::ServeOptions { config, trace, .. } = start.options;
    let (plan, control) = (&prepared.plan, prepared.control.as_ref());
    let grants = privilege::Grants::new(config, trace, control, plan);
    let has_keys = plan.trust.material.is_some() || trust.control().is_some();
    for note in privilege::enter(&plan.server.privilege, &grants, has_keys)? {
        start.output.note(&note);
    }
    if control.is_some_and(|control| control.save == Save::Always) {
        config_file::try_beside(config).map_err(|why| format!("control.save: {why}"))?;
    }
    Ok(())
}
