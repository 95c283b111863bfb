//! Golden figures: every figure's claims, in its quick extent, and its bytes, which are the same in another process.
//!
//! Limits, tolerances and the reasons for them stand in the figures' files (lab/sim/figures): a claim that does not
//! hold fails here, and so does one that holds though its file says that it does not. In virtual time nothing depends
//! on the machine that runs the test. So a figure has the bytes of `golden.txt`, which another process once wrote: its
//! memory lay elsewhere, allocation by allocation. A figure that has other bytes is simulated once more, in such a
//! process with another environment, to tell a change of the code from a dependence on memory.
//!
//! `MQFQ_BLESS=1 cargo test --release -p mqfq-sim --test all golden` writes `golden.txt` again, after a change that is
//! meant to change figures.

use crate::placement;

use mqfq_sim::any;
use mqfq_sim::embedded;
use mqfq_sim::figure::{Extent, Figure, Rows};
use mqfq_sim::workload::random::fnv;
use std::fmt::Write;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Name, length and FNV-1a of each figure's bytes, a line each, in the order of [`embedded::FIGURES`].
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");

/// Set to write [`GOLDEN`].
const BLESS: &str = "MQFQ_BLESS";

/// Set in the other process.
const OTHER_PROCESS: &str = "MQFQ_OTHER_PROCESS";
/// Beginning of the other process's line with the figure's bytes.
const BYTES: &str = "bytes of the figure: ";

/// A figure of the program, simulated.
fn simulated(name: &str) -> Rows {
    let text = embedded::figure(name).expect("a figure of the program");
    let figure = Figure::read(name, &embedded::figure_file(name), text, Extent::Quick, &any::check)
        .unwrap_or_else(|error| panic!("{error}"));
    let outcomes = figure
        .jobs()
        .iter()
        .map(|job| any::run(&job.file, &job.scenario).unwrap_or_else(|error| panic!("{}: {error}", job.label)));
    figure.assemble(&outcomes.collect::<Vec<_>>())
}

/// Output of a process in which `test` alone runs, among other allocations and with a larger environment.
fn bytes_in_another_process(test: &str) -> String {
    let own = std::env::current_exe().expect("a test has a file");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(OTHER_PROCESS, "x".repeat(30_000))
        .output()
        .unwrap_or_else(|error| panic!("{test} in another process: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let bytes = stdout.lines().find_map(|line| line.strip_prefix(BYTES));
    bytes.unwrap_or_else(|| panic!("{test} in another process said\n{stdout}{stderr}")).to_owned()
}

/// The line of [`GOLDEN`] for a figure of these bytes.
fn line_of(name: &str, bytes: &str) -> String {
    format!("{name} {} {:016x}", bytes.len(), fnv(bytes.as_bytes()))
}

/// The line of [`GOLDEN`] that stands there.
fn golden_line(text: &str, name: &str) -> Option<String> {
    text.lines().find(|line| line.split(' ').next() == Some(name)).map(str::to_owned)
}

/// Writes the figure's line; the others stay.
fn bless(name: &str, line: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let mut after = String::new();
    for (figure, _) in embedded::FIGURES {
        let kept = if *figure == name { Some(line.to_owned()) } else { golden_line(&before, figure) };
        kept.into_iter().for_each(|line| writeln!(after, "{line}").expect("a string takes everything"));
    }
    std::fs::write(GOLDEN, after).unwrap_or_else(|error| panic!("{GOLDEN}: {error}"));
}

/// Fails if the figure does not have the bytes that [`GOLDEN`] says, and says on what they depend.
fn is_as_it_was(test: &str, name: &str, bytes: &str) {
    let text = std::fs::read_to_string(GOLDEN).unwrap_or_else(|error| panic!("{GOLDEN}: {error}"));
    let (line, golden) = (line_of(name, bytes), golden_line(&text, name));
    if golden.as_ref() == Some(&line) {
        return;
    }
    let others = bytes_in_another_process(test);
    let first = bytes.bytes().zip(others.bytes()).position(|(own, other)| own != other);
    assert!(bytes == others, "{name}: from byte {first:?} on another process gets\n{others}\nand this one\n{bytes}");
    let golden = golden.unwrap_or_else(|| "nothing".into());
    panic!(
        "{name} has changed, in this process and in another: golden.txt has `{golden}`, the figure is `{line}`. If the \
         change is meant: {BLESS}=1 cargo test --release -p mqfq-sim --test all golden"
    );
}

fn turns_out_as_its_file_says(test: &str, name: &str) {
    let is_other_process = std::env::var_os(OTHER_PROCESS).is_some();
    let blesses = std::env::var_os(BLESS).is_some();
    placement::choose(if is_other_process || blesses { 2 } else { 1 });
    let rows = simulated(name);
    let bytes = serde_json::to_string(&rows).expect("rows are numbers and names");
    if is_other_process {
        // Behind whatever the harness has begun a line with.
        return println!("\n{BYTES}{bytes}");
    }
    if blesses {
        bless(name, &line_of(name, &bytes));
    } else {
        is_as_it_was(test, name, &bytes);
    }
    assert!(!rows.claims.is_empty(), "the quick extent of {name} leaves nothing to look at");
    let told = |claim: &mqfq_sim::figure::ClaimRow| {
        format!("{} ({}): found {:?}, allowed {}", claim.claim, claim.held, claim.value, claim.limits())
    };
    let surprises: Vec<String> = rows.surprises().map(told).collect();
    assert!(surprises.is_empty(), "{name}: {surprises:#?}\n{:#?}", rows.rows);
}

macro_rules! golden {
    ($($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            turns_out_as_its_file_says(concat!("golden::", stringify!($test)), $name);
        })*

        #[test]
        fn every_figure_of_the_program_is_tested() {
            let tested = [$($name),*];
            assert!(embedded::FIGURES.iter().map(|(name, _)| *name).eq(tested));
        }
    };
}

golden! {
    figure_5_fio_against_fio "mqfq/5",
    figure_6_flashx_against_fio "mqfq/6",
    figure_7_aerospike_against_fio "mqfq/7",
    figure_8_throughput_over_cores "mqfq/8",
    figure_9_virtual_time "mqfq/9",
    figure_10_unthrottling "mqfq/10",
    figure_11_dispatch_tokens "mqfq/11",
    blkmq_figure_4_one_queue "blkmq/4",
    blkmq_figure_6_throughput "blkmq/6",
    blkmq_figure_7_latency "blkmq/7",
    blkmq_figure_8_libaio "blkmq/8",
    blkmq_figure_9_one_software_queue "blkmq/9",
    blkmq_figure_10_software_queues_per_core "blkmq/10",
    d2fq_figure_5_ratio_and_tail "d2fq/5",
    d2fq_figure_6_fixed_and_found_ratio "d2fq/6",
    d2fq_figure_7_threshold_and_sharing "d2fq/7",
    d2fq_figure_8_threshold_and_tail "d2fq/8",
    d2fq_figure_11_bandwidth "d2fq/11",
    d2fq_figure_12_cores "d2fq/12",
    d2fq_figure_13_latency "d2fq/13",
    d2fq_figure_14_windows_of_10_ms "d2fq/14",
    d2fq_figure_15_flows_that_come "d2fq/15",
    d2fq_figure_16_a_tenant_alone "d2fq/16",
    d2fq_figure_17_global_virtual_time "d2fq/17",
    d2fq_figure_18_ycsb_bandwidth "d2fq/18",
    d2fq_figure_19_ycsb_latency "d2fq/19",
    our_own_scaling "ours/scale",
    our_own_window "ours/window",
    depth_under_five_loads "depth/loads",
    depth_while_things_change "depth/changes",
    depth_that_stays "depth/stays",
    companies_and_teams "ours/hierarchy",
    tokens_go_to_who_is_due "ours/due",
    large_requests_in_parts "ours/split",
    gaps_of_two_databases "ours/two-databases",
    figure_of_latency_goals "ours/goal",
    commits_beside_bulk "ours/chain",
    flushes_beside_others "ours/flush",
    pmqfq_figure_1_unfairness "p-mqfq/1",
    pmqfq_figure_3_allocation_on_linux "p-mqfq/3",
    pmqfq_figure_4_allocation_of_parsec "p-mqfq/4",
    pmqfq_figure_4_on_stock_bases "p-mqfq/4-stock",
    pmqfq_figure_5_allocation_of_npb "p-mqfq/5",
    pmqfq_figure_6_performance_on_linux "p-mqfq/6",
    pmqfq_figure_7_performance_of_parsec "p-mqfq/7",
    pmqfq_figure_8_performance_of_npb "p-mqfq/8",
    pmqfq_figure_9_weighted_speedup_on_linux "p-mqfq/9",
    pmqfq_figure_10_weighted_speedup_of_parsec "p-mqfq/10",
    pmqfq_figure_11_weighted_speedup_of_npb "p-mqfq/11",
    pmqfq_table_1_weights "p-mqfq/table-1",
    pmqfq_table_1_on_stock_bases "p-mqfq/table-1-stock",
    pmqfq_equation_3 "p-mqfq/equation-3",
    pmqfq_practical_against_ideal "p-mqfq/ideal",
}
