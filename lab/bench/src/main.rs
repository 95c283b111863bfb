//! The two measurements of `mqfq-lab bench` that count instructions, as a program that needs neither daemon nor
//! simulator: callgrind runs it for `tests/counted.rs`. It prints JSON.

use clap::{Parser, Subcommand};
use mqfq_bench::overhead::{self, OverheadOptions};
use mqfq_bench::schedulers::{SchedulersOptions, print_counts};
use std::process::ExitCode;

#[derive(Parser)]
enum Counted {
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    Overhead(OverheadOptions),
    Schedulers(SchedulersOptions),
}

fn main() -> ExitCode {
    let Counted::Bench(bench) = Counted::parse();
    let done = match bench {
        Bench::Overhead(options) => overhead::run(&options, true),
        Bench::Schedulers(options) => print_counts(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}
