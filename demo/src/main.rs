//! `mqfq-demo`: `mqfq demo` as a program by itself, for a first look: no TLS, no control plane, no terminal.

use clap::Parser;
use mqfq_demo::demo::{self, DemoOptions};
use mqfq_demo::on_drive::{self, DriveOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Fair sharing of one device: two tenants on a modelled drive, without and with it.
#[derive(Parser)]
#[command(name = "mqfq-demo", version)]
struct Arguments {
    /// Measure this block device or file, which is only read, in place of the modelled drive.
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    /// Folder for the picture.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    out: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

fn run(arguments: Arguments) -> Result<(), String> {
    let Arguments { device, out, json } = arguments;
    match device {
        Some(path) => on_drive::run(&DriveOptions { json, out, ..DriveOptions::new(path) }),
        None => demo::run(&DemoOptions { json, out, ..DemoOptions::default() }),
    }
}

fn main() -> ExitCode {
    let (sentence, status) = match mqfq_report::command_line::arguments("mqfq-demo") {
        Ok(arguments) => match run(arguments) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(sentence) => (sentence, 1),
        },
        Err(sentence) => (sentence, 2),
    };
    eprintln!("mqfq-demo: {sentence}");
    ExitCode::from(status)
}
