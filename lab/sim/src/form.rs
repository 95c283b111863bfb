//! The keys of a policy that has an exact and a relaxed form, for scenarios and the laboratory's server.
//!
//! Answers: is the policy relaxed, and what is set by hand of that form? What a key does says the policy's own page;
//! which policies have forms, how many tokens there can be, and what is left unset are the caller's. Sizes are in bytes
//! at the default weight.

use mqfq_config::{ConfigError, Entry, Section, size};

/// Names of the forms, the default first.
pub const FORMS: [&str; 2] = ["relaxed", "exact"];

/// All keys; all but the first are of the relaxed form only.
pub const FORM_KEYS: [&str; 5] = ["form", "quantum", "lease", "token-batch", "token-share"];

/// Keys that follow a window that is found.
const FOLLOWERS: [&str; 2] = ["quantum", "lease"];

/// The most that two of the keys allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormBounds {
    /// Tokens of a batch.
    pub token_batch_max: u32,
    /// Requests of a share.
    pub token_share_max: u32,
}

/// Keys of the relaxed form that are set by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByHand {
    /// `quantum`: 0 or a power of two, up to half the window, bytes.
    pub quantum_bytes: Option<u64>,
    /// `lease`: up to half the window, bytes.
    pub lease_bytes: Option<u64>,
    /// `token-batch`: 1 and more.
    pub token_batch: Option<u32>,
    /// `token-share`: 0 and more.
    pub token_share: Option<u32>,
}

impl ByHand {
    /// Reads the keys of a policy with forms, whose window is so long. `found`: the entry that says that the window is
    /// found, if one does. `None`: the form is the exact one.
    ///
    /// # Errors
    /// A value out of range, a key that the form does not have, or one that follows a window that is found.
    pub fn read(
        section: &Section<'_, '_>,
        window_bytes: u64,
        found: Option<&Entry<'_, '_>>,
        bounds: FormBounds,
    ) -> Result<Option<ByHand>, ConfigError> {
        let form = section.get("form").map(|form| form.choice(&FORMS)).transpose()?;
        if form.as_deref() == Some(FORMS[1]) {
            section.refuse(&FORM_KEYS[1..], "is fixed by form = \"exact\", allowed with form = \"relaxed\"")?;
            let refused = |entry: &Entry<'_, '_>| {
                let why = "\"auto\" is no setting of form = \"exact\", allowed with form = \"relaxed\"";
                Err(entry.place().error(why))
            };
            return found.map_or(Ok(None), refused);
        }
        if found.is_some() {
            section.refuse(&FOLLOWERS, "follows window = \"auto\", allowed with a window that is a size")?;
        }
        let half_bytes = window_bytes / 2;
        let half = size::display(half_bytes);
        let quantum = |entry: Entry<'_, '_>| {
            let fits = |bytes: u64| bytes == 0 || bytes.is_power_of_two() && bytes <= half_bytes;
            within_window(&entry, fits, &format!("0 or a power of two up to {half}"))
        };
        let lease = |entry: Entry<'_, '_>| within_window(&entry, |bytes| bytes <= half_bytes, &format!("0 to {half}"));
        let token_batch = |entry: Entry<'_, '_>| entry.number(1..=bounds.token_batch_max);
        let token_share = |entry: Entry<'_, '_>| entry.number(0..=bounds.token_share_max);
        Ok(Some(ByHand {
            quantum_bytes: section.get("quantum").map(quantum).transpose()?,
            lease_bytes: section.get("lease").map(lease).transpose()?,
            token_batch: section.get("token-batch").map(token_batch).transpose()?,
            token_share: section.get("token-share").map(token_share).transpose()?,
        }))
    }

    /// Neither quantum nor lease is set, so both may follow the window.
    pub fn follows_window(&self) -> bool {
        (self.quantum_bytes, self.lease_bytes) == (None, None)
    }

    /// Neither batch nor share is set, so both may follow the depth.
    pub fn follows_depth(&self) -> bool {
        (self.token_batch, self.token_share) == (None, None)
    }
}

/// A size whose bound is half the window.
fn within_window(entry: &Entry<'_, '_>, fits: impl Fn(u64) -> bool, allowed: &str) -> Result<u64, ConfigError> {
    let bytes = entry.size(0..=u64::MAX)?;
    if !fits(bytes) {
        let bytes = size::display(bytes);
        return Err(entry.place().error(format!("{bytes} is out of range, allowed is {allowed}, half the window")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqfq_config::Source;

    const ALLOWED: [&str; 6] = ["window", "form", "quantum", "lease", "token-batch", "token-share"];

    fn read(text: &str) -> Result<Option<ByHand>, String> {
        let source = Source::new("f.toml", text);
        let root = source.parse().unwrap();
        let section = Section::root(&source, root.get_ref(), &ALLOWED).unwrap();
        let bounds = FormBounds { token_batch_max: 7, token_share_max: 9 };
        ByHand::read(&section, 64 << 10, section.get("window").as_ref(), bounds).map_err(|error| error.to_string())
    }

    #[test]
    fn the_relaxed_form_is_the_default_and_has_numbers_that_the_exact_one_has_not() {
        assert_eq!(read("").unwrap(), Some(ByHand::default()));
        assert_eq!(read("form = \"exact\"").unwrap(), None);
        let all = read("quantum = \"8KiB\"\nlease = \"32KiB\"\ntoken-batch = 7\ntoken-share = 0").unwrap().unwrap();
        let (quantum_bytes, lease_bytes) = (Some(8 << 10), Some(32 << 10));
        assert_eq!(all, ByHand { quantum_bytes, lease_bytes, token_batch: Some(7), token_share: Some(0) });
        assert!(!all.follows_window() && !all.follows_depth());
        let none = read("window = \"auto\"").unwrap().unwrap();
        assert!(none.follows_window() && none.follows_depth());
    }

    #[test]
    fn what_does_not_go_together_is_refused_in_a_sentence() {
        for (text, sentence) in [
            ("form = \"loose\"", "1: form: \"loose\" is not known, allowed are relaxed, exact"),
            ("form = \"exact\"\nlease = 0", "2: lease: is fixed by form = \"exact\", allowed with form = \"relaxed\""),
            (
                "form = \"exact\"\nwindow = \"auto\"",
                "2: window: \"auto\" is no setting of form = \"exact\", allowed with form = \"relaxed\"",
            ),
            (
                "quantum = 0\nwindow = \"auto\"",
                "1: quantum: follows window = \"auto\", allowed with a window that is a size",
            ),
            (
                "quantum = \"12KiB\"",
                "1: quantum: 12KiB is out of range, allowed is 0 or a power of two up to 32KiB, half the window",
            ),
            ("lease = \"33KiB\"", "1: lease: 33KiB is out of range, allowed is 0 to 32KiB, half the window"),
            ("token-batch = 0", "1: token-batch: 0 is out of range, allowed is 1 to 7"),
            ("token-share = 10", "1: token-share: 10 is out of range, allowed is 0 to 9"),
        ] {
            assert_eq!(read(text), Err(format!("f.toml:{sentence}")));
        }
    }
}
