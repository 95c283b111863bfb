//! The upper edge, which tenants attach to. Protocols live here and nowhere else; scheduling does not live here at all.
//!
//! A front end is a folder of this crate and a line of the registry below. [`front_end`] is its interface to the rest
//! of the product.

#![forbid(unsafe_code)]

pub mod connection_slots;
pub mod export;
#[cfg(test)]
mod fake;
pub mod front_end;
pub mod identity;
pub mod listen_options;
pub mod listener;
pub mod memory;
pub mod socket;
pub mod stats;
pub mod takeover;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
pub mod tls;

/// Makes the module of each front end, and the list of all.
macro_rules! front_ends {
    ($($folder:ident: $front_end:expr,)*) => {
        $(pub mod $folder;)*

        /// Every front end; the first is the one that an export without an address is told of.
        pub static FRONT_ENDS: &[&dyn front_end::FrontEnd] = &[$(&$front_end),*];
    };
}

// The registry: a line for each front end, its folder and what implements `FrontEnd`. (`cargo fmt` does not see folders
// that are named here alone: use `cargo xtask fmt`.)
front_ends! {
    nbd: nbd::Nbd,
    ublk: ublk::Ublk,
    vhost_user_blk: vhost_user_blk::VhostUser,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_front_end_has_a_key_of_its_own_and_says_what_it_takes() {
        let names: BTreeSet<&str> = FRONT_ENDS.iter().map(|front_end| front_end.name()).collect();
        assert_eq!(names.len(), FRONT_ENDS.len());
        for front_end in FRONT_ENDS {
            assert!(!front_end.addresses().is_empty());
            assert!(front_end.parse("").is_err(), "{}", front_end.name());
        }
    }
}
