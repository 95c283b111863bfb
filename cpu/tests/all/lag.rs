//! Equation 3 of P-MQFQ against what schedulers do with the program that it is about.

use mqfq_cpu::fair_queue::{FairQueue, FairQueueKind};
use mqfq_cpu::ideal::{Ideal, IdealOptions, Preemption};
use mqfq_cpu::lag::{Model, signed_lag};

const QUANTUM: u64 = 1_000_000;

fn model(cores: u16, non_critical_permille: u64, critical_permille: u64) -> Model {
    let of_quantum = |permille| permille * QUANTUM / 1000;
    Model {
        cores,
        quantum_ns: QUANTUM,
        non_critical_ns: of_quantum(non_critical_permille),
        critical_ns: of_quantum(critical_permille),
    }
}

fn fair_queue(model: &Model, kind: FairQueueKind, rounds: u64) -> f64 {
    let mut scheduler = FairQueue::new(&model.machine(), &model.tasks(), kind, QUANTUM).unwrap();
    model.run(&mut scheduler, rounds).signed_lag()
}

fn ideal(model: &Model, rounds: u64) -> f64 {
    let options = IdealOptions { quantum_ns: QUANTUM, min_slice_ns: 0, preemption: Preemption::OnArrival };
    let mut scheduler = Ideal::new(&model.machine(), &model.tasks(), options).unwrap();
    model.run(&mut scheduler, rounds).signed_lag()
}

const NON_CRITICAL: [u64; 9] = [10, 20, 50, 100, 200, 400, 600, 800, 900];

#[test]
fn the_lag_under_min_sfq_is_that_of_equation_3_where_the_parallel_program_is_first() {
    let mut compared = 0;
    for cores in [3, 4, 6, 8, 16, 32, 64] {
        for model in NON_CRITICAL.map(|permille| model(cores, permille, 1000)).into_iter().filter(Model::is_first) {
            let measured = fair_queue(&model, FairQueueKind::MinSfqD, 20);
            let off = (measured - model.lag()).abs();
            // 10% is what was asked for.
            assert!(off <= 0.01 * model.lag() + 0.001, "{measured}, equation {}, {model:?}", model.lag());
            compared += 1;
        }
    }
    assert!(compared >= 45, "{compared} points");
}

#[test]
fn where_the_equation_gives_the_parallel_program_more_than_half_it_does_not_get_it() {
    // D = 2, all lengths; and from l_nc = l_max (1 - 2/D) on. The equation's absolute value hides that it is the hogs
    // that would lag.
    for (cores, permille) in [(2, 20), (2, 200), (2, 1000), (4, 800), (4, 1500), (8, 1000), (8, 1500), (16, 1500)] {
        let model = model(cores, permille, 1000);
        assert!(!model.is_first());
        assert!(signed_lag(cores, permille as f64 / 1000.0) < 0.0);
        let measured = fair_queue(&model, FairQueueKind::MinSfqD, 200);
        assert!(measured >= -0.02, "{measured}, {model:?}");
    }
    // Even, where the equation has a lag of 0.5 and 0.3.
    for (cores, permille) in [(2, 1000), (8, 1500)] {
        let model = model(cores, permille, 1000);
        assert!(model.lag() > 0.29 && fair_queue(&model, FairQueueKind::MinSfqD, 200).abs() <= 0.02, "{model:?}");
    }
    // And 0.149, where the equation has -0.167: an even program is not always first. Once a round began late, quanta
    // and rounds are out of phase, and each round waits for the hog that began last.
    let lag = fair_queue(&model(4, 800, 1000), FairQueueKind::MinSfqD, 200);
    assert!((0.13..=0.17).contains(&lag), "{lag}");
}

#[test]
fn starvation_is_worse_under_sfq_and_fsfq() {
    for cores in [4, 8, 16] {
        for model in [50, 200, 600].map(|permille| model(cores, permille, 1000)).into_iter().filter(Model::is_first) {
            let least = fair_queue(&model, FairQueueKind::MinSfqD, 60);
            for kind in [FairQueueKind::SfqD, FairQueueKind::FsfqD] {
                let lag = fair_queue(&model, kind, 60);
                assert!(lag > least + 0.02, "{}: {lag}, Min-SFQ(D): {least}, {model:?}", kind.name());
            }
        }
    }
}

#[test]
fn with_a_critical_section_of_a_quantum_the_lag_is_the_programs_own() {
    // No scheduler can put D threads on D cores while one of them holds what the others wait for: preemption does not
    // help.
    for model in [50, 200, 600].map(|permille| model(8, permille, 1000)) {
        assert!((ideal(&model, 60) - model.lag()).abs() <= 0.01 * model.lag() + 0.001, "{model:?}");
    }
}

#[test]
fn with_a_short_critical_section_the_equation_is_the_least_that_is_lost_and_preemption_loses_nothing() {
    // l_c = l_max/100. The hogs keep their cores for a quantum all the same. "At best", says the paper: l_max/100 later
    // the quanta are not over.
    for cores in [4, 8, 16] {
        for model in [200, 400].map(|permille| model(cores, permille, 10)) {
            for kind in FairQueueKind::ALL {
                let lag = fair_queue(&model, kind, 100);
                assert!(lag >= model.lag() - 0.001, "{}: {lag}, equation {}, {model:?}", kind.name(), model.lag());
            }
            let lag = ideal(&model, 400);
            assert!(lag.abs() <= 0.02, "{lag}, {model:?}");
        }
    }
}
