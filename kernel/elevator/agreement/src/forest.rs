//! Groups of flows of the elevator, driven from user space.
//!
//! Answers: which shares do flows in groups get of a device with one queue? Invariant: the C side takes numbers as they
//! come, so [`Forest`] checks them.

use std::ptr::NonNull;

#[repr(C)]
struct RawForest {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn forest_new(depth: u32, window: u64, nodes_max: u32) -> Option<NonNull<RawForest>>;
    fn forest_free(forest: NonNull<RawForest>);
    fn forest_add(forest: NonNull<RawForest>, parent: i32, weight: u32) -> u32;
    fn forest_remove(forest: NonNull<RawForest>, node: u32);
    fn forest_set_weight(forest: NonNull<RawForest>, node: u32, weight: u32);
    fn forest_submit(forest: NonNull<RawForest>, node: u32, cost: u64, handle: u64);
    fn forest_grow(forest: NonNull<RawForest>, node: u32, more: u64);
    fn forest_pick(forest: NonNull<RawForest>, handle: &mut u64, units: &mut u32) -> u32;
    fn forest_complete(forest: NonNull<RawForest>, units: u32);
    fn forest_step(forest: NonNull<RawForest>) -> u32;
    fn forest_active(forest: NonNull<RawForest>) -> u32;
    fn forest_effective(forest: NonNull<RawForest>, node: u32) -> u32;
    fn forest_count(forest: NonNull<RawForest>) -> u32;
    fn forest_count_on(forest: NonNull<RawForest>) -> u32;
    fn forest_entitlement(forest: NonNull<RawForest>, node: u32) -> u32;
}

/// Most nodes of a forest.
const NODES_MAX: u32 = 10_100;

/// A device with one queue, and cgroups in cgroups: each is a flow and may be a group.
pub struct Forest {
    raw: NonNull<RawForest>,
    nodes: u32,
}

impl Forest {
    /// D = `depth` units, T = `window` units of virtual time.
    pub fn new(depth: u32, window: u64) -> Forest {
        // SAFETY: it takes numbers and gives an object away.
        let raw = unsafe { forest_new(depth, window, NODES_MAX) };
        Forest { raw: raw.expect("one queue is allowed"), nodes: 0 }
    }

    fn checked(&self, node: u32) -> u32 {
        assert!(node < self.nodes, "there is no node {node}");
        node
    }

    /// A node in another one, or at the top. Its number.
    pub fn add(&mut self, parent: Option<u32>, weight: u32) -> u32 {
        assert!(self.nodes < NODES_MAX, "the forest is full");
        let parent = parent.map_or(-1, |parent| self.checked(parent) as i32);
        self.nodes += 1;
        // SAFETY: the forest is ours and has room; the parent is there.
        unsafe { forest_add(self.raw, parent, weight) }
    }

    /// The node, which has no children, is gone.
    pub fn remove(&mut self, node: u32) {
        // SAFETY: the forest is ours and the node is there.
        unsafe { forest_remove(self.raw, self.checked(node)) }
    }

    /// Another weight among its siblings.
    pub fn set_weight(&mut self, node: u32, weight: u32) {
        // SAFETY: as in `remove`.
        unsafe { forest_set_weight(self.raw, self.checked(node), weight) }
    }

    /// How many nodes a step looks at.
    pub fn active(&self) -> u32 {
        // SAFETY: the forest is ours.
        unsafe { forest_active(self.raw) }
    }

    /// A request of so many bytes; `handle` is what [`Forest::pick`] says.
    pub fn submit(&mut self, node: u32, cost: u64, handle: u64) {
        // SAFETY: as in `remove`.
        unsafe { forest_submit(self.raw, self.checked(node), cost, handle) }
    }

    /// The node's last request, which is staged, costs so much `more`, as after a merge.
    pub fn grow(&mut self, node: u32, more: u64) {
        // SAFETY: as in `remove`.
        unsafe { forest_grow(self.raw, self.checked(node), more) }
    }

    /// The next request for the device, and its units.
    pub fn pick(&mut self) -> Option<(u64, u32)> {
        let (mut handle, mut units) = (0, 0);
        // SAFETY: the forest is ours.
        (unsafe { forest_pick(self.raw, &mut handle, &mut units) } != 0).then_some((handle, units))
    }

    /// A request is done.
    pub fn complete(&mut self, units: u32) {
        // SAFETY: the forest is ours.
        unsafe { forest_complete(self.raw, units) }
    }

    /// One step of the clock; false: further steps are of no use.
    pub fn step(&mut self) -> bool {
        // SAFETY: the forest is ours.
        unsafe { forest_step(self.raw) != 0 }
    }

    /// The weight at which a node's flow competes, 65536ths.
    pub fn effective(&self, node: u32) -> u32 {
        // SAFETY: as in `remove`.
        unsafe { forest_effective(self.raw, self.checked(node)) }
    }

    /// Counts the competing flows and returns the number of pieces that took.
    pub fn count(&mut self) -> u32 {
        // SAFETY: the forest is ours.
        unsafe { forest_count(self.raw) }
    }

    /// A piece of a count; false: another one is needed.
    pub fn count_on(&mut self) -> bool {
        // SAFETY: the forest is ours.
        unsafe { forest_count_on(self.raw) != 0 }
    }

    /// Its part of the device beside those that were counted last, 10000ths.
    pub fn entitlement(&self, node: u32) -> u32 {
        // SAFETY: as in `remove`.
        unsafe { forest_entitlement(self.raw, self.checked(node)) }
    }
}

impl Drop for Forest {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used afterwards.
        unsafe { forest_free(self.raw) }
    }
}
