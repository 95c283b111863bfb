//! The elevator's controllers of D and T, driven from user space.
//!
//! Answers: what do the C files `depth*.c` and `window_rule.c` say to a history of samples? Invariant: what a call
//! gives away lives as long as the object that it belongs to.

use mqfq_sched::depth::{CLASSES, Sample};
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// As `struct mqfq_sample`.
#[repr(C)]
struct RawSample {
    now_ns: u64,
    work: [[u64; 2]; CLASSES],
    device_unit_ns: u64,
    system_unit_ns: u64,
    waiting_ns: u64,
    silence_ns: u64,
    out_units: u64,
}

/// As `struct findings`.
#[repr(C)]
#[derive(Default)]
struct RawFindings {
    depth: u32,
    chosen: u32,
    reason: u32,
    step: u32,
    epoch: u32,
    chosen_ns: u64,
    phases: u64,
}

#[repr(C)]
struct RawController {
    _private: [u8; 0],
}

#[repr(C)]
struct RawRule {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn controller_new(depth: u32, depth_max: u32) -> NonNull<RawController>;
    fn controller_free(controller: NonNull<RawController>);
    fn controller_step(controller: NonNull<RawController>, sample: &RawSample, findings: &mut RawFindings);
    fn controller_reason(reason: u32) -> NonNull<c_char>;
    fn rule_new(window_bytes: u64) -> NonNull<RawRule>;
    fn rule_free(rule: NonNull<RawRule>);
    fn rule_step(rule: NonNull<RawRule>, depth: u32, waiting: u32) -> u64;
}

/// Findings of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Findings {
    /// D to be in force, units.
    pub depth: u32,
    /// D as chosen, units.
    pub chosen: u32,
    /// Why, as one word.
    pub reason: &'static str,
    /// Step of the grid, units.
    pub step: u32,
    /// How often measuring has begun.
    pub epoch: u32,
    /// Time at which D was chosen, ns.
    pub chosen_ns: u64,
    /// Phases measured.
    pub phases: u64,
}

/// The controller of D.
pub struct Controller {
    raw: NonNull<RawController>,
}

impl Controller {
    /// A controller that starts at D = `depth`, 1 to `depth_max`.
    pub fn new(depth: u32, depth_max: u32) -> Controller {
        // SAFETY: it takes two numbers and gives an object away.
        Controller { raw: unsafe { controller_new(depth, depth_max) } }
    }

    /// Takes in a sample.
    pub fn step(&mut self, sample: &Sample) -> Findings {
        let raw = RawSample {
            now_ns: sample.now_ns,
            work: sample.work.map(|work| [work.units, work.requests]),
            device_unit_ns: sample.device_unit_ns,
            system_unit_ns: sample.system_unit_ns,
            waiting_ns: sample.waiting_ns,
            silence_ns: sample.silence_ns,
            out_units: sample.out_units,
        };
        let mut found = RawFindings::default();
        // SAFETY: the controller is ours; the others are read and written during the call alone.
        unsafe { controller_step(self.raw, &raw, &mut found) }
        // SAFETY: the name of a reason is a constant of the C code.
        let reason = unsafe { CStr::from_ptr(controller_reason(found.reason).as_ptr()) };
        Findings {
            depth: found.depth,
            chosen: found.chosen,
            reason: reason.to_str().expect("it is ASCII"),
            step: found.step,
            epoch: found.epoch,
            chosen_ns: found.chosen_ns,
            phases: found.phases,
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used afterwards.
        unsafe { controller_free(self.raw) }
    }
}

/// The rule for T.
pub struct WindowRule {
    raw: NonNull<RawRule>,
}

impl WindowRule {
    /// A rule that begins with so many bytes.
    pub fn new(window_bytes: u64) -> WindowRule {
        // SAFETY: it takes a number and gives an object away.
        WindowRule { raw: unsafe { rule_new(window_bytes) } }
    }

    /// T in bytes, for D units and so many flows that wait.
    pub fn step(&mut self, depth: u32, waiting: u32) -> u64 {
        // SAFETY: the rule is ours.
        unsafe { rule_step(self.raw, depth, waiting) }
    }
}

impl Drop for WindowRule {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used afterwards.
        unsafe { rule_free(self.raw) }
    }
}
