//! Tunables of `d2fq`.

use super::super::PolicyError;

/// Tunables of `d2fq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct D2fqOptions {}

impl D2fqOptions {
    /// As in the paper.
    pub const DEFAULT: D2fqOptions = D2fqOptions {};

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub const fn validate(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}
