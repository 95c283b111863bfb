//! Where the knee of D lies for the demo's scenarios; lab/bench/README.md, "How D was chosen", has the result.
//!
//! `cargo run --release -p mqfq-bench --example knee`. Virtual time, so it prints the same everywhere.

use mqfq_bench::model;
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_demo::load::Window;
use mqfq_demo::scenes::{self, Scene};
use mqfq_report::table::{Align, Table};

/// Workers of the model.
const WORKERS: usize = 2;

/// The reader's bandwidth alone over shared, and the total together.
fn measure(scenario: &Scene, policy: PolicyOptions, think_ns: u64) -> (f64, f64) {
    let run = |who: &[usize]| {
        let options = model::ModelOptions { policy, tenants: &scenario.tenants, workers: WORKERS, think_ns };
        model::run(&options, who, Window::from_ms(300, 3_000)).expect("the options are in range")
    };
    let shared = run(&[0, 1]);
    let total = shared.iter().map(|tenant| tenant.bytes_per_s).sum();
    (run(&[0])[0].bytes_per_s / shared[0].bytes_per_s, total)
}

fn main() {
    let [moderate, shallow] = scenes::reads(scenes::GREEDY_REQUESTS);
    for (scenario, depths) in
        [(moderate, &[48, 56, 60, 64, 68, 72, 80, 96][..]), (shallow, &[96, 128, 129, 136, 160, 192, 224, 256][..])]
    {
        let mut table = Table::new(&[
            ("D", Align::Right),
            ("slowdown", Align::Right),
            ("total of none's", Align::Right),
            ("slowdown, 100 us of sockets", Align::Right),
            ("total of none's", Align::Right),
        ]);
        for &depth in depths {
            let mut cells = vec![depth.to_string()];
            for think_ns in [0, 100_000] {
                let (_, none_total) = measure(&scenario, scenario.policy(PolicyKind::None, WORKERS), think_ns);
                let policy = PolicyOptions { depth, ..scenario.policy(PolicyKind::Mqfq, WORKERS) };
                let (slowdown, total) = measure(&scenario, policy, think_ns);
                cells.extend([format!("{slowdown:.2}"), format!("{:.3}", total / none_total)]);
            }
            table.row(cells);
        }
        println!("{}:\n{}", scenario.name, table.render());
    }
}
