//! A scenario of either kind: tenants on a device, or programs on cores. Its text says which by itself.
//!
//! Callers for which both kinds are alike (figures, the command line) run scenarios here.

use crate::{cpu, outcome, run, scenario};
use mqfq_config::ConfigError;

/// A scenario, checked.
pub enum AnyScenario {
    /// Tenants on a device.
    Block(Box<scenario::Scenario>),
    /// Programs on cores.
    Cpu(Box<cpu::Scenario>),
}

/// Outcome of either kind.
#[derive(Clone, PartialEq, Debug)]
pub enum AnyOutcome {
    /// Tenants on a device.
    Block(Box<outcome::Outcome>),
    /// Programs on cores.
    Cpu(Box<cpu::Outcome>),
}

impl AnyScenario {
    /// Reads `text`; `file` is its name. A scenario of programs says so with `kind = "cpu"`.
    ///
    /// # Errors
    /// As the scenario's own reader.
    pub fn parse(file: &str, text: &str) -> Result<AnyScenario, ConfigError> {
        match cpu::parse::is_cpu(text) {
            true => Ok(AnyScenario::Cpu(Box::new(cpu::Scenario::parse(file, text)?))),
            false => Ok(AnyScenario::Block(Box::new(scenario::Scenario::parse(file, text)?))),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// One sentence.
    pub fn run(&self) -> Result<AnyOutcome, String> {
        Ok(match self {
            AnyScenario::Block(scenario) => run::run(scenario)?.into(),
            AnyScenario::Cpu(scenario) => cpu::run(scenario)?.into(),
        })
    }
}

/// Says what is wrong with a scenario, as [`crate::figure::Check`] wants it.
///
/// # Errors
/// As [`AnyScenario::parse`].
pub fn check(file: &str, text: &str) -> Result<(), ConfigError> {
    AnyScenario::parse(file, text).map(drop)
}

/// Reads and runs one.
///
/// # Errors
/// One sentence.
pub fn run(file: &str, text: &str) -> Result<AnyOutcome, String> {
    AnyScenario::parse(file, text).map_err(|error| error.to_string())?.run()
}

impl From<outcome::Outcome> for AnyOutcome {
    fn from(outcome: outcome::Outcome) -> AnyOutcome {
        AnyOutcome::Block(Box::new(outcome))
    }
}

impl From<cpu::Outcome> for AnyOutcome {
    fn from(outcome: cpu::Outcome) -> AnyOutcome {
        AnyOutcome::Cpu(Box::new(outcome))
    }
}
