//! The laboratory: the simulator and the measurements. It runs the product's source, and the product needs nothing of
//! it.
//!
//! Exit status: 0 done, 1 it could not be done (one sentence on stderr says why), 2 the command line makes no sense.

mod cli;
mod sim;

use cli::{Bench, Cli, Command, Sim};
use mqfq_bench::blkmq::{self, BlkmqOptions};
use mqfq_bench::bound::{self, BoundOptions};
use mqfq_bench::d2fq::{self, D2fqBenchOptions};
use mqfq_bench::elevators::{self, ElevatorsOptions};
use mqfq_bench::fairness::{self, FairnessOptions};
use mqfq_bench::file::{self, FileBenchOptions};
use mqfq_bench::kernel::{self, KernelOptions};
use mqfq_bench::nbd_record::{self, NbdRecordOptions};
use mqfq_bench::overhead::{self, OverheadOptions};
use mqfq_bench::scale::load::Fixed;
use mqfq_bench::scale::{self, ScaleOptions};
use mqfq_bench::schedulers::{self, SchedulersOptions};
use mqfq_bench::structures::{self, StructuresOptions};
use mqfq_bench::transfers::{self, TransfersOptions};
use mqfq_bench::validate::{self, ValidateOptions};
pub(crate) use mqfq_report::plain;
use sim::{FigureOptions, ReportOptions, RunOptions};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match mqfq_report::command_line::arguments::<Cli>("mqfq-lab") {
        Ok(cli) => cli,
        Err(sentence) => return fail(&sentence, 2),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => fail(&sentence, 1),
    }
}

fn run(cli: Cli) -> Result<(), String> {
    let json = cli.json;
    match cli.command {
        Command::Bench(Bench::Fairness { nbd, seconds }) => {
            fairness::run(&FairnessOptions { json, nbd, measured_ms: seconds * 1000 })
        }
        Command::Bench(Bench::Bound { out, seed, scale, case }) => {
            bound::run(&BoundOptions { json, out: Some(out), seed, scale, case })
        }
        Command::Bench(Bench::File { file, size, rounds, milliseconds }) => {
            file::run(&FileBenchOptions { file, size_bytes: size, rounds, measured_ms: milliseconds, json })
        }
        Command::Bench(Bench::Elevators { kernel, record, host }) => {
            elevators::run(&ElevatorsOptions { kernel, record, host, json })
        }
        Command::Bench(Bench::Kernel { device, rounds, milliseconds, record, host }) => {
            kernel::run(&KernelOptions { device, rounds, measured_ms: milliseconds, record, host, json })
        }
        Command::Bench(Bench::Nbd { rounds, milliseconds, record, host }) => {
            let options = NbdRecordOptions { json, rounds, measured_ms: milliseconds, record, host, mqfq: None };
            nbd_record::run(&options)
        }
        Command::Bench(Bench::Overhead { rounds, window_kib, relaxations, no_instructions, probe }) => {
            let (window_bytes, instructions) = (window_kib << 10, !no_instructions);
            let options = OverheadOptions { json, rounds, window_bytes, relaxations, instructions, mqfq: None };
            if probe { overhead::probe(&options) } else { overhead::run(&options) }
        }
        Command::Bench(Bench::Scale {
            workers,
            flows,
            rounds,
            milliseconds,
            window_kib,
            depth,
            writes,
            relaxations,
            out,
            record,
            host,
        }) => {
            let window_bytes = window_kib << 10;
            let fixed = Fixed { measured_ms: milliseconds, window_bytes, depth_per_worker: depth, writes };
            scale::run(&ScaleOptions { json, workers, flows, relaxations, rounds, fixed, out, record, host })
        }
        Command::Bench(Bench::Blkmq { workers, rounds, milliseconds, out, record, host }) => {
            blkmq::run(&BlkmqOptions { json, workers, rounds, measured_ms: milliseconds, out, record, host })
        }
        Command::Bench(Bench::Schedulers {
            device,
            write,
            confirm_data_loss: _,
            preset: presets,
            quick,
            rounds,
            milliseconds: measured_ms,
            ns_per_instruction,
            out,
            record,
            host,
            probe,
        }) => {
            let options = SchedulersOptions {
                device,
                write,
                presets,
                quick,
                rounds,
                measured_ms,
                ns_per_instruction,
                out,
                record,
                host,
                json,
                ..SchedulersOptions::default()
            };
            if probe { schedulers::probe(&options) } else { schedulers::run(&options) }
        }
        Command::Bench(Bench::D2fq {
            quick,
            no_figures,
            rounds,
            milliseconds: measured_ms,
            ns_per_instruction,
            out,
            record,
            host,
            probe,
        }) => {
            let figures = !no_figures;
            let options = D2fqBenchOptions {
                mqfq: None,
                quick,
                figures,
                rounds,
                measured_ms,
                ns_per_instruction,
                out,
                record,
                host,
                json,
            };
            if probe { d2fq::probe(&options) } else { d2fq::run(&options) }
        }
        Command::Bench(Bench::Structures { workers, queues, rounds, milliseconds, out }) => {
            let (workers, queues) = (workers.map(usize::from), queues.map(usize::from));
            structures::run(&StructuresOptions { json, out, workers, queues, rounds, milliseconds })
        }
        Command::Bench(Bench::Transfers { workers }) => {
            transfers::run(&TransfersOptions { json, workers_max: workers.into() })
        }
        Command::Bench(Bench::Validate { workers, rounds, milliseconds, relaxations, check, out, record, host }) => {
            let measured_ms = milliseconds;
            validate::run(&ValidateOptions {
                workers,
                relaxations,
                rounds,
                measured_ms,
                check,
                out,
                record,
                host,
                json,
            })
        }
        Command::Sim(Sim::Figure { figure, out, jobs, quick, check }) => {
            sim::figure(&FigureOptions { figure, out, jobs, quick, check, json })
        }
        Command::Sim(Sim::Run { scenario, out, alone, scheduler }) => {
            sim::run(&RunOptions { scenario, out, alone, scheduler, json })
        }
        Command::Sim(Sim::Report { out, jobs, quick }) => sim::report(&ReportOptions { out, jobs, quick, json }),
        Command::Sim(Sim::List) => sim::list(json),
    }
}

fn fail(sentence: &str, status: u8) -> ExitCode {
    eprintln!("mqfq-lab: {sentence}");
    ExitCode::from(status)
}
