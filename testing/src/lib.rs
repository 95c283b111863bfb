//! What tests of several crates share. Never a dependency of what ships.
//!
//! | file | answers |
//! |---|---|
//! | [`folder`] | where does a test put its files? |
//! | [`machine`] | who may use the machine? |
//! | [`tools`] | is a foreign tool there, and what does it print? |

pub mod folder;
pub mod machine;
pub mod tools;

pub use folder::{Folder, arg, pattern};
