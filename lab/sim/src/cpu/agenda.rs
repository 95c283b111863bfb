//! Which core has something to do first?
//!
//! A tournament over the next event of each core: the winner is known, and a change plays the log2 n games on its way.
//! No memory is taken after construction, nothing becomes stale, and of two at the same instant the smaller core comes
//! first.

/// Time of an event that will not happen.
pub const NEVER: u64 = u64::MAX;

/// The next event of each core.
pub struct Agenda {
    /// Leaves from `leaves` on; inner nodes hold the smaller of their two children.
    nodes: Vec<u64>,
    leaves: usize,
}

impl Agenda {
    /// No core has an event.
    pub fn new(cores: usize) -> Agenda {
        let leaves = cores.next_power_of_two();
        Agenda { nodes: vec![NEVER; 2 * leaves], leaves }
    }

    /// The next event of `core` is at `at_ns`.
    pub fn set(&mut self, core: usize, at_ns: u64) {
        let mut node = self.leaves + core;
        self.nodes[node] = at_ns;
        while node > 1 {
            node /= 2;
            let least = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
            if self.nodes[node] == least {
                break;
            }
            self.nodes[node] = least;
        }
    }

    /// The first event of all and whose it is.
    pub fn first(&self) -> (u64, usize) {
        let at_ns = self.nodes[1];
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.nodes[2 * node] != at_ns);
        }
        (at_ns, node - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::random::Random;

    #[test]
    fn the_first_is_the_least_of_all_and_of_equals_the_smallest_core() {
        for cores in [1, 2, 3, 7, 64, 100] {
            let (mut agenda, mut plain) = (Agenda::new(cores), vec![NEVER; cores]);
            let mut random = Random::of(1, 0, 0, cores as u32);
            for _ in 0..2_000 {
                let core = random.below(cores as u64) as usize;
                let at_ns = if random.percent(20) { NEVER } else { random.below(50) };
                agenda.set(core, at_ns);
                plain[core] = at_ns;
                let least = *plain.iter().min().unwrap();
                let first = plain.iter().position(|at_ns| *at_ns == least).unwrap();
                assert_eq!(agenda.first(), (least, first), "{cores} cores");
            }
        }
    }
}
