//! The kernel elevator's core, driven from user space: is it the scheduler that `sched` is?
//!
//! `build.rs` compiles the same C files that the module is made of over `shim.h`'s other half; [`World`] is one device
//! with its flows. The tests hold it against `sched`'s oracle and controllers. Nothing that ships depends on this.
//!
//! # Invariants
//! The C side takes queue and flow numbers as they come, so [`World`] checks them.

pub mod controllers;
pub mod crowd;
pub mod forest;

use mqfq_sched::cost::Cost;
use mqfq_sched::flow::{FlowId, Weight};
use mqfq_sched::topology::HctxId;
use mqfq_sched::vtime::{VSpan, VTime};
use std::ptr::NonNull;

#[repr(C)]
struct RawWorld {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn world_new(
        hctxs: u32,
        socket_of: *const u16,
        depth: u32,
        window: u64,
        flows: u32,
        weights: *const u32,
        error: &mut i32,
    ) -> Option<NonNull<RawWorld>>;
    fn world_free(world: NonNull<RawWorld>);
    fn world_submit(world: NonNull<RawWorld>, hctx: u32, flow: u32, cost: u64, handle: u64);
    fn world_enter(world: NonNull<RawWorld>, hctx: u32, flow: u32, cost: u64, handle: u64, units: &mut u32) -> u32;
    fn world_pick(world: NonNull<RawWorld>, hctx: u32, handle: &mut u64, units: &mut u32) -> u32;
    fn world_settle(world: NonNull<RawWorld>, hctx: u32) -> u32;
    fn world_complete(world: NonNull<RawWorld>, hctx: u32, units: u32);
    fn world_has_work(world: NonNull<RawWorld>, hctx: u32) -> u32;
    fn world_kicked(world: NonNull<RawWorld>, hctx: u32) -> u32;
    fn world_set_weight(world: NonNull<RawWorld>, flow: u32, weight: u32);
    fn world_set_depth(world: NonNull<RawWorld>, depth: u32);
    fn world_set_window(world: NonNull<RawWorld>, window: u64);
    fn world_refresh(world: NonNull<RawWorld>);
    fn world_gvt(world: NonNull<RawWorld>) -> u64;
    fn world_free_units(world: NonNull<RawWorld>) -> i64;
    fn world_refuse(nth: u64);
    fn world_is_refusing() -> u32;
    fn world_pieces() -> i64;
    fn world_largest() -> u64;
    fn world_lanes(hctxs: u32) -> i32;
}

/// Refuses the n-th piece of memory, from 1 on, that this thread's worlds ask for from now on; 0: none.
pub fn refuse_memory(nth: u64) {
    // SAFETY: it sets a number of this thread.
    unsafe { world_refuse(nth) }
}

/// Whether that refusal is yet to come.
pub fn is_refusing() -> bool {
    // SAFETY: it reads a number of this thread.
    unsafe { world_is_refusing() != 0 }
}

/// Pieces of memory that this thread's worlds have taken and not given back.
pub fn pieces_held() -> i64 {
    // SAFETY: it reads a number of this thread.
    unsafe { world_pieces() }
}

/// Size of the largest piece of memory that this thread has asked for since [`refuse_memory`], bytes.
pub fn largest_piece_bytes() -> u64 {
    // SAFETY: it reads a number of this thread.
    unsafe { world_largest() }
}

/// Makes a flow's lanes for so many queues and frees them. Returns the core's error, or 0.
pub fn make_lanes(hctxs: u32) -> i32 {
    // SAFETY: it uses memory of its own alone.
    unsafe { world_lanes(hctxs) }
}

/// Result of a pick, or of a look at the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// A request goes, with its handle and units of D; of a look: one would.
    Dispatch(u64, u32),
    /// Nothing is staged.
    Idle,
    /// The first request is too far ahead; the queue will be kicked.
    Throttled,
    /// No token is free; the queue will be kicked.
    NoToken,
}

/// A device with its flows, as the C core has them.
pub struct World {
    raw: NonNull<RawWorld>,
    hctxs: usize,
    flows: usize,
}

impl World {
    /// Queue i is on socket `sockets[i]`; one flow per weight; T = `window`.
    ///
    /// # Panics
    /// If the core refuses the number of queues, or there is no memory.
    pub fn new(sockets: &[u16], depth: u32, window: VSpan, weights: &[Weight]) -> World {
        World::try_new(sockets, depth, window, weights).expect("the core takes so many queues")
    }

    /// As [`World::new`].
    ///
    /// # Errors
    /// The core's, a number below 0 as the kernel has them, or 0: no memory for what the test itself keeps.
    pub fn try_new(sockets: &[u16], depth: u32, window: VSpan, weights: &[Weight]) -> Result<World, i32> {
        let numbers: Vec<u32> = weights.iter().map(|weight| weight.get().into()).collect();
        let (hctxs, flows, mut error) = (sockets.len(), weights.len(), 0);
        // SAFETY: both arrays are as long as is said, and are only read during the call.
        let raw = unsafe {
            world_new(hctxs as u32, sockets.as_ptr(), depth, window.0, flows as u32, numbers.as_ptr(), &mut error)
        };
        raw.map(|raw| World { raw, hctxs, flows }).ok_or(error)
    }

    fn hctx(&self, hctx: HctxId) -> u32 {
        assert!(hctx.index() < self.hctxs, "there is no {hctx:?}");
        hctx.0.into()
    }

    fn flow(&self, flow: FlowId) -> u32 {
        assert!((flow.0 as usize) < self.flows, "there is no {flow:?}");
        flow.0
    }

    /// Stages a request.
    pub fn submit(&mut self, hctx: HctxId, flow: FlowId, cost: Cost, handle: u64) {
        // SAFETY: the world is ours and both numbers are in range.
        unsafe { world_submit(self.raw, self.hctx(hctx), self.flow(flow), cost.0, handle) }
    }

    /// Submits a request that goes at once if it may; then these are its units.
    pub fn enter(&mut self, hctx: HctxId, flow: FlowId, cost: Cost, handle: u64) -> Option<u32> {
        let mut units = 0;
        // SAFETY: as in `submit`.
        let gone = unsafe { world_enter(self.raw, self.hctx(hctx), self.flow(flow), cost.0, handle, &mut units) };
        (gone != 0).then_some(units)
    }

    /// The next request for the device.
    pub fn pick(&mut self, hctx: HctxId) -> State {
        let (mut handle, mut units) = (0, 0);
        // SAFETY: the world is ours and the number is in range.
        let state = unsafe { world_pick(self.raw, self.hctx(hctx), &mut handle, &mut units) };
        State::of(state, handle, units)
    }

    /// Whether the next pick would find something.
    pub fn settle(&mut self, hctx: HctxId) -> State {
        // SAFETY: as in `pick`.
        State::of(unsafe { world_settle(self.raw, self.hctx(hctx)) }, 0, 0)
    }

    /// The device finished a request of `hctx`.
    pub fn complete(&mut self, hctx: HctxId, units: u32) {
        // SAFETY: as in `pick`.
        unsafe { world_complete(self.raw, self.hctx(hctx), units) }
    }

    /// Whether a kernel would pick; its kick is forgotten.
    pub fn has_work(&mut self, hctx: HctxId) -> bool {
        // SAFETY: as in `pick`.
        unsafe { world_has_work(self.raw, self.hctx(hctx)) != 0 }
    }

    /// Whether the queue was kicked since [`World::has_work`] was asked.
    pub fn is_kicked(&self, hctx: HctxId) -> bool {
        // SAFETY: as in `pick`.
        unsafe { world_kicked(self.raw, self.hctx(hctx)) != 0 }
    }

    /// Another weight.
    pub fn set_weight(&mut self, flow: FlowId, weight: Weight) {
        // SAFETY: as in `submit`.
        unsafe { world_set_weight(self.raw, self.flow(flow), weight.get().into()) }
    }

    /// Another D.
    pub fn set_depth(&mut self, depth: u32) {
        // SAFETY: the world is ours.
        unsafe { world_set_depth(self.raw, depth) }
    }

    /// Another T.
    pub fn set_window(&mut self, window: VSpan) {
        // SAFETY: the world is ours.
        unsafe { world_set_window(self.raw, window.0) }
    }

    /// Keeps idle flows comparable.
    pub fn refresh(&mut self) {
        // SAFETY: the world is ours.
        unsafe { world_refresh(self.raw) }
    }

    /// Global virtual time.
    pub fn global_vtime(&self) -> VTime {
        // SAFETY: the world is ours.
        VTime::from_raw(unsafe { world_gvt(self.raw) })
    }

    /// Units of D that are free.
    pub fn free_units(&self) -> i64 {
        // SAFETY: the world is ours.
        unsafe { world_free_units(self.raw) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used afterwards.
        unsafe { world_free(self.raw) }
    }
}

impl State {
    fn of(state: u32, handle: u64, units: u32) -> State {
        match state {
            0 => State::Dispatch(handle, units),
            1 => State::Idle,
            2 => State::Throttled,
            3 => State::NoToken,
            other => panic!("the core answered {other}"),
        }
    }
}
