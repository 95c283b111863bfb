//! Descriptor of `none`.

use crate::policy::descriptor::Descriptor;

pub const ABOUT: Descriptor = Descriptor::new("none", "first in, first out on each worker; no scheduling");
