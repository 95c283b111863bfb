//! B-WF2Q+: the next to serve among entities with weights and budgets.
//!
//! Source: Valente and Checconi, "High Throughput Disk Scheduling with Fair Bandwidth Distribution", IEEE Transactions
//! on Computers 59(9), 2010, section 4; WF2Q+ is Bennett and Zhang 1997. Difference from the paper: two heaps and not
//! one augmented tree. Virtual time only goes forward, so an entity that has become eligible stays so until it is
//! served, and moves from one heap to the other once.
//!
//! # Shape
//! ```text
//!   waiting:  S > V, by S   ── V reaches S ──▶   eligible: S <= V, by F   ── smallest F ──▶   in service
//!                                  ▲                                                            │
//!                                  └──── S := F of the service it got, F := S + budget / w ◀────┘
//! ```
//! An entity has a virtual start S, and a virtual finish F that says when it would be done if it used its whole budget.
//! The eligible entity of the smallest F is served; its new S is what it *got*, so a budget that was too large costs it
//! nothing later (budgets may be anything, weights hold). V, system virtual time, moves by service over the sum of
//! active weights, and jumps to the smallest S if no entity is eligible.
//!
//! # Invariants
//! B1. V never goes back. S of an active entity never goes back.
//! B2. `weights` is the sum over all active entities, the one in service included.
//! B3. While a tree has active entities and none in service, `select` finds one.
//!
//! # Numbers
//! Virtual time is 128 bits wide with 2^20 units per byte of service at weight 1: it never wraps, so an entity can be
//! idle for as long as it likes. A turn is rounded once, by less than a unit, which is 2^-20 bytes at weight 1 and a
//! hundredth of one at weight 10000.

use super::heap::{Heap, Linked, Links, Order};
use mqfq_sched::sync::touch;

/// Units of virtual time for a byte at weight 1.
const UNITS_PER_BYTE_BITS: u32 = 20;

/// Service that no turn reaches: 2^43 bytes; keeps the arithmetic of a span within 64 bits.
pub(super) const SERVICE_MAX_BYTES: u64 = 1 << 43;

/// How much virtual time `service_bytes` are at a weight.
fn span(service_bytes: u64, weight: u64) -> u128 {
    u128::from((service_bytes.min(SERVICE_MAX_BYTES) << UNITS_PER_BYTE_BITS) / weight)
}

/// Place of an entity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The entity is in neither heap: it asks for no service.
    Out,
    /// Its start is ahead of virtual time.
    Waiting,
    /// It may be served.
    Eligible,
    /// It is served.
    InService,
}

/// A scheduled entity: a queue, or a group of queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity {
    links: Links,
    place: Place,
    start: u128,
    finish: u128,
    weight: u64,
    /// Bytes of service that this turn may use.
    budget_bytes: u64,
    /// Bytes that it has used.
    served_bytes: u64,
}

impl Entity {
    /// Entity that was never active.
    pub(super) const fn new(weight: u64) -> Entity {
        Entity { links: Links::OUT, place: Place::Out, start: 0, finish: 0, weight, budget_bytes: 0, served_bytes: 0 }
    }

    /// Its place.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Budget of this turn.
    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes used in this turn.
    pub(super) fn served_bytes(&self) -> u64 {
        self.served_bytes
    }
}

/// Something with an entity in it.
pub(super) trait Scheduled {
    /// The entity of this element.
    fn entity(&mut self) -> &mut Entity;
    /// Shared reference to the entity of this element.
    fn entity_ref(&self) -> &Entity;
}

impl<N: Scheduled> Linked for N {
    fn links(&mut self) -> &mut Links {
        &mut self.entity().links
    }
}

struct ByStart;

impl<N: Scheduled> Order<N> for ByStart {
    fn is_before(a: &N, b: &N) -> bool {
        a.entity_ref().start < b.entity_ref().start
    }
}

struct ByFinish;

impl<N: Scheduled> Order<N> for ByFinish {
    fn is_before(a: &N, b: &N) -> bool {
        a.entity_ref().finish < b.entity_ref().finish
    }
}

/// The entities of one scheduler that wait for service, by B-WF2Q+. The entities lie in a slab, which the caller passes
/// in.
pub(super) struct ServiceTree {
    waiting: Heap<ByStart>,
    eligible: Heap<ByFinish>,
    virtual_time: u128,
    /// Sum of the weights of the active.
    weights: u64,
    active: u32,
}

impl ServiceTree {
    /// Tree without active entities.
    pub(super) const EMPTY: ServiceTree =
        ServiceTree { waiting: Heap::EMPTY, eligible: Heap::EMPTY, virtual_time: 0, weights: 0, active: 0 };

    /// Entities that are waiting, eligible or in service.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// An entity becomes active, with a budget for its first turn. It gets no credit for having been idle.
    pub(super) fn activate<N: Scheduled>(&mut self, nodes: &mut [N], place: u32, weight: u64, budget_bytes: u64) {
        let entity = nodes[place as usize].entity();
        debug_assert_eq!(entity.place, Place::Out, "an active entity is activated");
        entity.start = entity.finish.max(self.virtual_time);
        self.active += 1;
        self.stand(nodes, place, weight, budget_bytes);
    }

    /// Sets a new budget for an entity that is not in service; it matters as far as `F`.
    pub(super) fn rebudget<N: Scheduled>(&mut self, nodes: &mut [N], place: u32, budget_bytes: u64) {
        let entity = nodes[place as usize].entity();
        let weight = entity.weight;
        match entity.place {
            _ if entity.budget_bytes == budget_bytes => return,
            Place::Waiting => self.waiting.remove(nodes, place),
            Place::Eligible => self.eligible.remove(nodes, place),
            Place::Out | Place::InService => unreachable!("who is out or in service has no budget to come"),
        }
        self.weights -= weight;
        self.stand(nodes, place, weight, budget_bytes);
    }

    /// Takes its place by its start.
    fn stand<N: Scheduled>(&mut self, nodes: &mut [N], place: u32, weight: u64, budget_bytes: u64) {
        touch(nodes, place as usize);
        let entity = nodes[place as usize].entity();
        entity.weight = weight;
        entity.budget_bytes = budget_bytes;
        entity.served_bytes = 0;
        entity.finish = entity.start + span(budget_bytes, weight);
        self.weights += weight;
        if entity.start <= self.virtual_time {
            entity.place = Place::Eligible;
            self.eligible.insert(nodes, place);
        } else {
            entity.place = Place::Waiting;
            self.waiting.insert(nodes, place);
        }
    }

    /// Entity that would be served next.
    pub(super) fn next<N: Scheduled>(&mut self, nodes: &mut [N]) -> Option<u32> {
        if self.eligible.first().is_none()
            && let Some(first) = self.waiting.first()
        {
            self.virtual_time = self.virtual_time.max(nodes[first as usize].entity().start);
        }
        while let Some(first) = self.waiting.first() {
            touch(nodes, first as usize);
            if nodes[first as usize].entity().start > self.virtual_time {
                break;
            }
            self.waiting.remove(nodes, first);
            nodes[first as usize].entity().place = Place::Eligible;
            self.eligible.insert(nodes, first);
        }
        self.eligible.first()
    }

    /// Begins the turn of the entity that [`ServiceTree::next`] names.
    pub(super) fn select<N: Scheduled>(&mut self, nodes: &mut [N]) -> Option<u32> {
        let next = self.next(nodes)?;
        self.eligible.remove(nodes, next);
        nodes[next as usize].entity().place = Place::InService;
        Some(next)
    }

    /// Adds service to the entity in service.
    pub(super) fn serve<N: Scheduled>(&mut self, nodes: &mut [N], place: u32, bytes: u64) {
        touch(nodes, place as usize);
        let entity = nodes[place as usize].entity();
        debug_assert_eq!(entity.place, Place::InService, "who is not in service is served");
        entity.served_bytes = (entity.served_bytes + bytes).min(SERVICE_MAX_BYTES);
        self.virtual_time += span(bytes, self.weights);
    }

    /// The turn ends. With a budget for the next one if it stays active, at this weight from now on.
    pub(super) fn end_turn<N: Scheduled>(&mut self, nodes: &mut [N], place: u32, weight: u64, next_bytes: Option<u64>) {
        touch(nodes, place as usize);
        let entity = nodes[place as usize].entity();
        debug_assert_eq!(entity.place, Place::InService, "a turn ends that has not begun");
        self.weights -= entity.weight;
        entity.finish = entity.start + span(entity.served_bytes, entity.weight);
        match next_bytes {
            Some(budget_bytes) => {
                entity.start = entity.finish;
                self.stand(nodes, place, weight, budget_bytes);
            }
            None => {
                entity.place = Place::Out;
                entity.served_bytes = 0;
                self.active -= 1;
            }
        }
    }
}

#[cfg(all(test, not(mqfq_loom)))]
mod tests {
    use super::*;

    impl Scheduled for Entity {
        fn entity(&mut self) -> &mut Entity {
            self
        }
        fn entity_ref(&self) -> &Entity {
            self
        }
    }

    /// Runs turns in which each always uses its budget, and returns what each got.
    fn turns(weights: &[u64], budgets: &[u64], turns: usize) -> Vec<u64> {
        let mut nodes: Vec<Entity> = weights.iter().map(|&weight| Entity::new(weight)).collect();
        let mut tree = ServiceTree::EMPTY;
        for place in 0..weights.len() {
            tree.activate(&mut nodes, place as u32, weights[place], budgets[place]);
        }
        let mut got = vec![0; weights.len()];
        for _ in 0..turns {
            let place = tree.select(&mut nodes).expect("somebody is active");
            let at = place as usize;
            tree.serve(&mut nodes, place, budgets[at]);
            got[at] += budgets[at];
            tree.end_turn(&mut nodes, place, weights[at], Some(budgets[at]));
        }
        got
    }

    #[test]
    fn service_is_by_weight_whatever_the_budgets() {
        // Weights 1:2:3, budgets 8:1:4 KiB. Against each other two entities are off by at most a budget each, over
        // their weights.
        for budgets in [[8192, 1024, 4096], [1024, 1024, 1024], [1024, 8192, 65_536]] {
            let got = turns(&[1, 2, 3], &budgets, 6000);
            for a in 0..3 {
                for b in 0..3 {
                    let (wa, wb) = (a as u64 + 1, b as u64 + 1);
                    let off = (got[a] * wb).abs_diff(got[b] * wa);
                    let bound = budgets[a] * wb + budgets[b] * wa;
                    assert!(off <= bound, "{got:?} with {budgets:?}: {a} against {b} is off by {off}, allowed {bound}");
                }
            }
        }
    }

    #[test]
    fn the_smaller_budget_goes_first_and_nobody_runs_ahead() {
        // WF2Q+ and not WFQ: weight 10 beside ten of weight 1, equal budgets. WFQ would serve the heavy one ten times
        // in a row; here it alternates, because its next turn is not eligible before the fluid system would have begun
        // it.
        let mut weights = vec![10];
        weights.extend([1; 10]);
        let mut nodes: Vec<Entity> = weights.iter().map(|&weight| Entity::new(weight)).collect();
        let mut tree = ServiceTree::EMPTY;
        for (place, &weight) in weights.iter().enumerate() {
            tree.activate(&mut nodes, place as u32, weight, 1000);
        }
        let mut in_a_row = 0;
        let mut longest = 0;
        for _ in 0..1000 {
            let place = tree.select(&mut nodes).expect("somebody is active");
            in_a_row = if place == 0 { in_a_row + 1 } else { 0 };
            longest = longest.max(in_a_row);
            tree.serve(&mut nodes, place, 1000);
            tree.end_turn(&mut nodes, place, weights[place as usize], Some(1000));
        }
        assert!(longest <= 2, "{longest} turns of the heavy one in a row");
        // If two start level, the one with less to ask for goes first.
        let mut nodes = [Entity::new(1), Entity::new(1)];
        let mut tree = ServiceTree::EMPTY;
        tree.activate(&mut nodes, 0, 1, 4096);
        tree.activate(&mut nodes, 1, 1, 512);
        assert_eq!(tree.select(&mut nodes), Some(1));
    }

    #[test]
    fn who_was_idle_gets_no_credit_and_who_left_a_turn_pays_what_it_used() {
        let mut nodes = [Entity::new(1), Entity::new(1)];
        let mut tree = ServiceTree::EMPTY;
        tree.activate(&mut nodes, 0, 1, 1000);
        for _ in 0..100 {
            let place = tree.select(&mut nodes).unwrap();
            // Half of each budget is used, and half is what it pays.
            tree.serve(&mut nodes, place, 500);
            tree.end_turn(&mut nodes, place, 1, Some(1000));
        }
        assert_eq!(nodes[0].start, span(100 * 500, 1));
        tree.activate(&mut nodes, 1, 1, 1000);
        assert_eq!(nodes[1].start, tree.virtual_time, "it starts now, not at 0");
        let got = {
            let mut got = [0u64; 2];
            for _ in 0..100 {
                let place = tree.select(&mut nodes).unwrap();
                tree.serve(&mut nodes, place, 1000);
                got[place as usize] += 1;
                tree.end_turn(&mut nodes, place, 1, Some(1000));
            }
            got
        };
        assert_eq!(got, [50, 50]);
    }
}
