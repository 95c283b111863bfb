//! Nearness of hardware contexts: data, so that two sockets can be tested on a laptop.
//!
//! Two things follow from it:
//!
//! * the *distance* of two hctxs (own queue, same core, same socket, elsewhere), by which a dispatch token is handed on
//!   (MQFQ section 3.3, "pre-computed proximity matrix"; here the order of bits in the ready set);
//! * the *tree* of machine, sockets, cores and hctxs on which the mindicator and the token tree live. Source: MQFQ
//!   figure 3. Levels that would have one child per group are left out (a core with one hctx is that hctx), so a walk
//!   from a leaf to the root touches only nodes that combine something.

use alloc::boxed::Box;
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// Names one hardware context (a device queue and the worker that owns it): an index, 0-based, dense.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HctxId(pub u16);

impl HctxId {
    /// The index, for tables that have one entry per hctx.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Most hctxs that one device may have. Sizes the bitmasks of the throttle wheel and the ready set: 16 words of 64,
/// one padded cache line.
pub const HCTXS_MAX: usize = 1024;

/// Place where the worker of one hctx runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuPlace {
    /// Socket (package) of the machine.
    pub socket: u16,
    /// Core within that socket: core 0 of socket 0 and core 0 of socket 1 are two cores.
    pub core: u16,
}

/// Distance of two hctxs; nearer is less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Distance {
    /// The two are one hctx.
    Own,
    /// Hardware threads of one core.
    Core,
    /// Cores of one socket.
    Socket,
    /// Different sockets.
    Machine,
}

/// The hctxs of one device and where they run.
#[derive(Clone, PartialEq, Eq)]
pub struct Topology {
    places: Box<[CpuPlace]>,
}

impl Topology {
    /// `hctxs` hctxs, each on a core of its own, on one socket. 1..=[`HCTXS_MAX`].
    pub fn flat(hctxs: usize) -> Topology {
        Topology::new(1, hctxs, 1)
    }

    /// A regular machine. Hctxs are numbered core by core, socket by socket, as in MQFQ figure 3.
    ///
    /// # Panics
    /// If the product is not in 1..=[`HCTXS_MAX`].
    pub fn new(sockets: usize, cores_per_socket: usize, hctxs_per_core: usize) -> Topology {
        let mut places = Vec::new();
        for socket in 0..sockets {
            for core in 0..cores_per_socket {
                places.extend(vec![CpuPlace { socket: socket as u16, core: core as u16 }; hctxs_per_core]);
            }
        }
        Topology::from_places(&places)
    }

    /// Hctx `i` runs at `places[i]`. Sockets and cores may have any numbers, in any order.
    ///
    /// # Panics
    /// If there are none or more than [`HCTXS_MAX`].
    pub fn from_places(places: &[CpuPlace]) -> Topology {
        let count = places.len();
        assert!((1..=HCTXS_MAX).contains(&count), "a topology has 1 to {HCTXS_MAX} hctxs, not {count}");
        Topology { places: places.into() }
    }

    /// Number of hctxs, 1..=[`HCTXS_MAX`].
    pub fn hctx_count(&self) -> usize {
        self.places.len()
    }

    /// Place where `hctx` runs.
    pub fn place(&self, hctx: HctxId) -> CpuPlace {
        self.places[hctx.index()]
    }

    /// Distance of two hctxs.
    pub fn distance(&self, a: HctxId, b: HctxId) -> Distance {
        let (here, there) = (self.place(a), self.place(b));
        if a == b {
            Distance::Own
        } else if here == there {
            Distance::Core
        } else if here.socket == there.socket {
            Distance::Socket
        } else {
            Distance::Machine
        }
    }

    /// All hctxs, those of one core beside each other and the cores of one socket beside each other.
    pub(crate) fn by_place(&self) -> Vec<HctxId> {
        let mut hctxs: Vec<HctxId> = (0..self.hctx_count() as u16).map(HctxId).collect();
        hctxs.sort_by_key(|&hctx| self.place(hctx));
        hctxs
    }
}

impl core::fmt::Debug for Topology {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the table that follows from the places: it has a million entries for 1,024 hctxs.
        f.debug_struct("Topology").field("places", &self.places).finish_non_exhaustive()
    }
}

/// The shape of a tree over a topology: each node's parent. It holds no counts and no tags; a structure keeps one word
/// per node, indexed by node number.
///
/// Leaves come first (node `i` is hctx `i`), each parent has a higher number than its children, the root is the last.
/// The root is never a leaf, even with one hctx.
#[derive(Debug)]
pub(crate) struct TreeShape {
    parents: Box<[u32]>,
    /// Part of `children` of each inner node.
    child_ranges: Box<[Range<u32>]>,
    children: Box<[u32]>,
    leaf_count: usize,
}

impl TreeShape {
    /// The tree of `topology`. No node has more than `fanout_max` children (at least 2): wider groups are split evenly
    /// into an additional level.
    pub(crate) fn new(topology: &Topology, fanout_max: usize) -> TreeShape {
        let mut builder = TreeBuilder::new(topology.hctx_count(), fanout_max);
        let by_place = topology.by_place();
        let sockets = by_place.chunk_by(|&a, &b| topology.place(a).socket == topology.place(b).socket);
        let sockets: Vec<u32> = sockets
            .map(|socket| {
                let cores = socket.chunk_by(|&a, &b| topology.place(a) == topology.place(b));
                let cores: Vec<u32> =
                    cores.map(|core| builder.group(core.iter().map(|hctx| u32::from(hctx.0)).collect())).collect();
                builder.group(cores)
            })
            .collect();
        let top = builder.group(sockets);
        builder.finish(top)
    }

    /// Number of nodes, leaves included.
    pub(crate) fn node_count(&self) -> usize {
        self.parents.len()
    }

    /// The root: the last node.
    pub(crate) fn root(&self) -> usize {
        self.parents.len() - 1
    }

    /// The node of `hctx`.
    pub(crate) fn leaf(&self, hctx: HctxId) -> usize {
        assert!(hctx.index() < self.leaf_count, "{hctx:?} of a topology of {} hctxs", self.leaf_count);
        hctx.index()
    }

    /// True if the node is an hctx's own.
    pub(crate) fn is_leaf(&self, node: usize) -> bool {
        node < self.leaf_count
    }

    /// Parent of a node other than the root.
    pub(crate) fn parent(&self, node: usize) -> usize {
        debug_assert!(node != self.root(), "the root has no parent");
        self.parents[node] as usize
    }

    /// Children of an inner node.
    pub(crate) fn children(&self, node: usize) -> &[u32] {
        let range = &self.child_ranges[node - self.leaf_count];
        &self.children[range.start as usize..range.end as usize]
    }

    /// The nodes from the leaf of `hctx` up to the root, both included.
    #[cfg(all(test, not(mqfq_loom)))]
    pub(crate) fn path(&self, hctx: HctxId) -> impl Iterator<Item = usize> + '_ {
        core::iter::successors(Some(self.leaf(hctx)), |&node| (node != self.root()).then(|| self.parent(node)))
    }

    /// The lowest node whose subtree has both hctxs; the leaf itself if they are the same.
    pub(crate) fn lowest_common_ancestor(&self, a: HctxId, b: HctxId) -> usize {
        let (mut a, mut b) = (self.leaf(a), self.leaf(b));
        // A parent has the higher number, so the lower of two different nodes cannot be an ancestor of the other.
        while a != b {
            if a < b { a = self.parent(a) } else { b = self.parent(b) }
        }
        a
    }
}

struct TreeBuilder {
    parents: Vec<u32>,
    child_ranges: Vec<Range<u32>>,
    children: Vec<u32>,
    leaf_count: usize,
    fanout_max: usize,
}

impl TreeBuilder {
    fn new(leaf_count: usize, fanout_max: usize) -> TreeBuilder {
        assert!(fanout_max >= 2, "a fan-out of {fanout_max} never gets to a root");
        let parents = vec![u32::MAX; leaf_count];
        TreeBuilder { parents, child_ranges: Vec::new(), children: Vec::new(), leaf_count, fanout_max }
    }

    /// The node that stands for all of `members`: the member itself if there is only one.
    fn group(&mut self, mut members: Vec<u32>) -> u32 {
        while members.len() > self.fanout_max {
            let parts = members.len().div_ceil(self.fanout_max);
            let even = |part: usize| part * members.len() / parts;
            members = (0..parts).map(|part| self.inner(&members[even(part)..even(part + 1)])).collect();
        }
        if members.len() == 1 { members[0] } else { self.inner(&members) }
    }

    fn inner(&mut self, members: &[u32]) -> u32 {
        let node = self.parents.len() as u32;
        self.parents.push(u32::MAX);
        let start = self.children.len() as u32;
        self.children.extend_from_slice(members);
        self.child_ranges.push(start..self.children.len() as u32);
        for &member in members {
            self.parents[member as usize] = node;
        }
        node
    }

    fn finish(mut self, top: u32) -> TreeShape {
        if (top as usize) < self.leaf_count {
            self.inner(&[top]);
        }
        TreeShape {
            parents: self.parents.into(),
            child_ranges: self.child_ranges.into(),
            children: self.children.into(),
            leaf_count: self.leaf_count,
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    const SIZES: [usize; 5] = [1, 2, 16, 100, 1024];

    #[test]
    fn distances_are_own_core_socket_and_the_rest() {
        // 2 sockets of 2 cores of 2 hctxs: 0 1 | 2 3 || 4 5 | 6 7.
        let topology = Topology::new(2, 2, 2);
        let distances: Vec<Distance> = (0..8).map(|other| topology.distance(HctxId(5), HctxId(other))).collect();
        use Distance::*;
        assert_eq!(distances, [Machine, Machine, Machine, Machine, Core, Own, Socket, Socket]);
    }

    #[test]
    fn the_same_core_number_on_two_sockets_is_two_cores() {
        let places =
            [CpuPlace { socket: 0, core: 0 }, CpuPlace { socket: 1, core: 0 }, CpuPlace { socket: 0, core: 0 }];
        let topology = Topology::from_places(&places);
        assert_eq!(topology.distance(HctxId(0), HctxId(1)), Distance::Machine);
        assert_eq!(topology.distance(HctxId(0), HctxId(2)), Distance::Core);
    }

    #[test]
    #[should_panic(expected = "1 to 1024 hctxs, not 1025")]
    fn more_hctxs_than_the_bitmasks_hold_are_refused() {
        Topology::flat(1025);
    }

    #[test]
    fn levels_with_one_child_are_left_out() {
        // 1 hctx: leaf and root. 4 cores of 1 hctx on 1 socket: 4 leaves and the root.
        assert_eq!(TreeShape::new(&Topology::flat(1), 8).node_count(), 2);
        assert_eq!(TreeShape::new(&Topology::flat(4), 8).node_count(), 5);
        // 2 sockets x 4 cores x 2 hctxs (MQFQ figure 3): 16 + 8 + 2 + 1.
        assert_eq!(TreeShape::new(&Topology::new(2, 4, 2), 8).node_count(), 27);
    }

    #[test]
    fn wide_groups_are_split_evenly() {
        // 100 leaves, at most 8 children: 13 groups of 7 or 8, those in 2 groups of 6 and 7, and the root: 116.
        let shape = TreeShape::new(&Topology::flat(100), 8);
        assert_eq!(shape.node_count(), 100 + 13 + 2 + 1);
        for node in 100..shape.node_count() {
            assert!((2..=8).contains(&shape.children(node).len()));
        }
    }

    #[test]
    fn every_leaf_reaches_the_root_and_every_inner_node_has_its_children() {
        for size in SIZES {
            for topology in
                [Topology::flat(size), Topology::new(if size % 2 == 0 { 2 } else { 1 }, size.div_ceil(2), 1)]
            {
                let shape = TreeShape::new(&topology, 8);
                for hctx in 0..topology.hctx_count() {
                    let path: Vec<usize> = shape.path(HctxId(hctx as u16)).collect();
                    assert_eq!((path[0], *path.last().unwrap()), (hctx, shape.root()));
                    for step in path.windows(2) {
                        assert!(shape.children(step[1]).contains(&(step[0] as u32)));
                    }
                }
            }
        }
    }

    #[test]
    fn common_ancestor_is_the_core_then_the_socket_then_the_root() {
        let shape = TreeShape::new(&Topology::new(2, 4, 2), 8);
        let lca = |a: u16, b: u16| shape.lowest_common_ancestor(HctxId(a), HctxId(b));
        assert_eq!(lca(3, 3), 3);
        assert_eq!(lca(2, 3), shape.parent(2));
        assert_eq!(lca(0, 7), shape.parent(shape.parent(0)));
        assert_eq!(lca(7, 8), shape.root());
    }
}
