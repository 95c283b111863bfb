//! Helpers that tests of several crates share. Never a dependency of a crate that ships.
//!
//! | file | answers |
//! |---|---|
//! | [`allocations`] | does a stretch of code take memory? |
//! | [`authority`] | who signs certificates? |
//! | [`browser`] | what does a page show, and what did it ask for? |
//! | [`ignores!`] | which calls does a client of a test do nothing about? |
//! | [`folder`] | where does a test put its files? |
//! | [`guest`] | what happens under a Linux kernel of its own? |
//! | [`machine`] | who may use the machine? |
//! | [`oracle`] | what may a scheduler do next, by the paper? |
//! | [`random`] | which numbers look random, and are the same on every machine? |
//! | [`SetAtEnd`] | how does a load beside a test end? |
//! | [`rig`] | what do the workers of a policy do in virtual time? |
//! | [`stranger`] | which descriptors does a stranger pass? |
//! | [`tools`] | is a foreign tool there, and what does it print? |
//! | [`user`] | which user is a client? |

pub mod allocations;
#[cfg(feature = "authority")]
pub mod authority;
pub mod browser;
pub mod folder;
pub mod guest;
pub mod machine;
pub mod oracle;
// There, because the package of that crate has its tests along.
#[path = "../../sched/src/base/random.rs"]
pub mod random;
pub mod rig;
pub mod stranger;
pub mod tools;
pub mod user;

pub use folder::{Folder, arg, pattern};
pub use random::Random;

use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the load that runs beside a test, however the test ends: the flag is set when this goes. A failed assertion
/// would otherwise wait for the load for ever.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        // Relaxed: a flag that guards no other data.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Methods of `mqfq_blk`'s trait `Client` that do nothing, by their names, in an implementation of it.
///
/// ```text
/// impl Client for Silent {
///     mqfq_testing::ignores!(start, event, completed, turn_end, room, drain);
///
///     fn is_done(&self) -> bool {
///         false
///     }
/// }
/// ```
#[macro_export]
macro_rules! ignores {
    ($($name:ident),+) => {
        $($crate::ignores!(@ $name);)+
    };
    (@ event) => {
        fn event(&mut self, _: &mut dyn ::mqfq_blk::client::Context, _: ::mqfq_blk::client::Event) {}
    };
    (@ completed) => {
        fn completed(&mut self, _: &mut dyn ::mqfq_blk::client::Context, _: ::mqfq_blk::request::Completion) {}
    };
    (@ $name:ident) => {
        fn $name(&mut self, _: &mut dyn ::mqfq_blk::client::Context) {}
    };
}
