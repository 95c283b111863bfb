//! Weighted round robin keeps its rules whatever comes when: W1 to W4, R1 and A1.

use mqfq_nvme::ArbClass::{self, High, Low, Medium, Urgent};
use mqfq_nvme::arbitration::round_robin::RoundRobin;
use mqfq_nvme::arbitration::weighted::WeightedRoundRobin;
use proptest::prelude::*;

const WEIGHTED: [ArbClass; 3] = [High, Medium, Low];

fn weights() -> impl Strategy<Value = [u32; 3]> {
    // Small ones, where turns are cut often, and any.
    prop_oneof![[1..6u32, 1..6u32, 1..6u32], [1..=256u32, 1..=256u32, 1..=256u32]]
}

fn burst() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![1, 2, 4, 8, 16, 32, 64, u32::MAX])
}

/// Queues of the three weighted classes, each of which always has commands: the arbiter, and the class of each.
fn backlogged(counts: [usize; 3]) -> (WeightedRoundRobin, Vec<usize>) {
    let classes: Vec<usize> = (0..3).flat_map(|class| vec![class; counts[class]]).collect();
    let mut arbiter = WeightedRoundRobin::new(classes.len());
    classes.iter().enumerate().for_each(|(queue, &class)| arbiter.set_candidate(queue, WEIGHTED[class], true));
    (arbiter, classes)
}

/// One step of a history: a queue gets commands, or the drive has room for so many.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive { queue: usize, commands: u32 },
    Grant { count: u32 },
}

fn steps(queues: usize) -> impl Strategy<Value = Vec<Step>> {
    let arrive = (0..queues, 1..40u32).prop_map(|(queue, commands)| Step::Arrive { queue, commands });
    let step = prop_oneof![arrive, (1..30u32).prop_map(|count| Step::Grant { count })];
    prop::collection::vec(step, 1..120)
}

/// Eight queues: two urgent, two of each class.
const CLASSES: [ArbClass; 8] = [Urgent, Urgent, High, High, Medium, Medium, Low, Low];

proptest! {
    /// W1, and W4: in a class no queue is ahead of another by more than a turn.
    #[test]
    fn backlogged_classes_share_each_round_by_their_weights_exactly(
        counts in [1..4usize, 1..4usize, 1..4usize], weights in weights(), burst in burst(), rounds in 1..6u32,
    ) {
        let (mut arbiter, classes) = backlogged(counts);
        let mut by_queue = vec![0u32; classes.len()];
        for round in 1..=rounds {
            for _ in 0..weights.iter().sum() {
                by_queue[arbiter.pick(burst, weights).unwrap()] += 1;
            }
            for (class, &weight) in weights.iter().enumerate() {
                let in_class = by_queue.iter().zip(&classes).filter(|&(_, of)| *of == class);
                let of_class: Vec<u32> = in_class.map(|(&granted, _)| granted).collect();
                prop_assert_eq!(of_class.iter().sum::<u32>(), round * weight);
                let apart = of_class.iter().max().unwrap() - of_class.iter().min().unwrap();
                prop_assert!(apart <= burst.min(weight), "{:?}", of_class);
            }
        }
    }

    /// A1: a turn ends when the weight that holds at its end says so, and not before.
    #[test]
    fn weights_that_change_at_any_moment_hold_from_the_next_fetch_on(
        counts in [1..3usize, 1..3usize, 1..3usize],
        phases in prop::collection::vec((weights(), burst(), 1..300u32), 1..12),
    ) {
        let (mut arbiter, classes) = backlogged(counts);
        let (mut class, mut granted) = (0, 0);
        for (weights, burst, picks) in phases {
            for _ in 0..picks {
                let of = classes[arbiter.pick(burst, weights).unwrap()];
                if of == class && granted < weights[class] {
                    granted += 1;
                    continue;
                }
                prop_assert!(granted >= weights[class], "turn of class {} ended after {} of {}", class, granted, weights[class]);
                prop_assert_eq!(of, (class + 1) % 3);
                (class, granted) = (of, 1);
            }
        }
    }

    /// Strict urgency, W2, the burst, and that no command is lost or made up, over queues that come and go.
    #[test]
    fn no_class_starves_but_by_urgent_and_no_queue_exceeds_its_burst(
        steps in steps(CLASSES.len()), weights in weights(), burst in burst(),
    ) {
        let mut arbiter = WeightedRoundRobin::new(CLASSES.len());
        let mut waiting = [0u32; CLASSES.len()];
        // Grants of other weighted classes since this one had one, or had no command.
        let mut passed_over = [0u32; 3];
        // By class (urgent first): the queue of its last grant, and how many in a row it had while another waited.
        let mut run = [(usize::MAX, 0u32); 4];
        for step in steps {
            let count = match step {
                Step::Arrive { queue, commands } => {
                    waiting[queue] += commands;
                    arbiter.set_candidate(queue, CLASSES[queue], true);
                    continue;
                }
                Step::Grant { count } => count,
            };
            for _ in 0..count {
                let Some(queue) = arbiter.pick(burst, weights) else {
                    prop_assert_eq!(waiting.iter().sum::<u32>(), 0);
                    break;
                };
                prop_assert!(waiting[queue] > 0);
                let class = CLASSES[queue];
                if class == Urgent {
                    prop_assert!(queue < 2);
                } else {
                    prop_assert_eq!(waiting[0] + waiting[1], 0, "urgent commands wait");
                    let own = WEIGHTED.iter().position(|&of| of == class).unwrap();
                    for other in 0..3 {
                        let waits = waiting[2 + 2 * other] + waiting[3 + 2 * other] > 0;
                        passed_over[other] = if other == own || !waits { 0 } else { passed_over[other] + 1 };
                        let limit = weights.iter().sum::<u32>() - weights[other];
                        prop_assert!(passed_over[other] <= limit, "class {} waited for {}", other, passed_over[other]);
                    }
                }
                let neighbour_waits = waiting[queue ^ 1] > 0;
                let (last, in_a_row) = &mut run[queue / 2];
                *in_a_row = if *last == queue { *in_a_row } else { 0 } + u32::from(neighbour_waits);
                *last = queue;
                let turn = if class == Urgent { burst } else { burst.min(weights[queue / 2 - 1]) };
                prop_assert!(*in_a_row <= turn, "queue {} had {} in a row", queue, in_a_row);
                if !neighbour_waits {
                    *in_a_row = 0;
                }
                waiting[queue] -= 1;
                arbiter.set_candidate(queue, class, waiting[queue] > 0);
            }
        }
    }

    /// W3.
    #[test]
    fn with_one_class_it_is_round_robin(
        steps in steps(5), weight in 1..=256u32, burst in burst(), class in 0..3usize,
    ) {
        let mut weighted = WeightedRoundRobin::new(5);
        let mut plain = RoundRobin::new(5);
        let mut weights = [1; 3];
        weights[class] = weight;
        let mut waiting = [0u32; 5];
        for step in steps {
            match step {
                Step::Arrive { queue, commands } => {
                    waiting[queue] += commands;
                    weighted.set_candidate(queue, WEIGHTED[class], true);
                    plain.set_candidate(queue, true);
                }
                Step::Grant { count } => {
                    for _ in 0..count {
                        let granted = weighted.pick(burst, weights);
                        prop_assert_eq!(granted, plain.pick(burst.min(weight)));
                        let Some(queue) = granted else { break };
                        waiting[queue] -= 1;
                        weighted.set_candidate(queue, WEIGHTED[class], waiting[queue] > 0);
                        plain.set_candidate(queue, waiting[queue] > 0);
                    }
                }
            }
        }
    }
}
