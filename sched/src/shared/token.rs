//! A unit of depth that is held: where it comes from, and that it goes back.

/// Permission for requests on the device (the paper's "slot"): must go back by
/// [`Policy::complete`](crate::policy::Policy::complete).
///
/// Holding one means that its units are counted out of the depth D. A policy without a depth hands out 0 units.
/// Dropping one that holds units is a bug: debug builds panic.
#[must_use = "a dispatch token that is not given back shrinks the device's depth for ever"]
#[derive(PartialEq, Eq, Debug)]
pub struct DispatchToken {
    units: u32,
}

impl DispatchToken {
    /// A token of `units` units of depth. Only for policies and their tests: the units must come out of a count.
    #[inline]
    pub const fn new(units: u32) -> Self {
        DispatchToken { units }
    }

    /// Units of depth held.
    #[inline]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Gives the units back to the caller, who must put them into a count.
    #[inline]
    pub fn into_units(mut self) -> u32 {
        core::mem::take(&mut self.units)
    }
}

impl Drop for DispatchToken {
    fn drop(&mut self) {
        debug_assert!(
            self.units == 0 || crate::sync::is_unwinding(),
            "a dispatch token of {} units was lost",
            self.units
        );
    }
}
