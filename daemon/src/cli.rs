//! The command line.

use crate::calibrate::CalibrateOptions;
use crate::config;
use crate::log_format::LogFormat;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use mqfq_control::client::Client;
use mqfq_control::ctl::command_line;
use mqfq_control::tls::Files;
use std::path::PathBuf;

/// Fair sharing of one fast multi-queue device between many tenants, at device speed, in user space.
#[derive(Parser, Debug)]
#[command(name = "mqfq", version)]
pub struct Cli {
    /// Print JSON on stdout: one object, or for `serve` one object per line as things happen.
    #[arg(long, global = true)]
    pub json: bool,

    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve devices to tenants, as CONFIG says, until SIGTERM or SIGINT (which drain; a second one exits at once).
    /// SIGUSR1 prints the counters, SIGUSR2 begins and ends a trace, SIGHUP reads CONFIG again and changes what is
    /// different.
    Serve {
        /// TOML file with [device.NAME], [tenant.NAME] and [export.NAME] sections.
        config: PathBuf,
        /// Take the place of the server that listens at CONFIG's server.upgrade: its clients stay connected.
        #[arg(long)]
        replace: bool,
        /// With --replace: lose changes that the server has and its config file does not.
        #[arg(long, requires = "replace")]
        discard_unsaved: bool,
        /// Print the counters at the end.
        #[arg(long)]
        stats: bool,
        /// Where the second SIGUSR2 writes what was traced since the first: for ui.perfetto.dev or chrome://tracing.
        #[arg(long, value_name = "FILE", default_value = "mqfq-trace.json")]
        trace: PathBuf,
        /// Requests that a trace keeps, the last ones, of each worker on each device: 1 to 4194304.
        #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = trace_requests)]
        trace_requests: usize,
        /// The form of what is said on stderr; `journald` goes to the journal instead, with fields.
        #[arg(long, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
    /// Check CONFIG as `serve` would, without listening.
    Check {
        /// As for `serve`.
        config: PathBuf,
    },
    /// Measure a device: cost of requests, latency, knee and bandwidth, for the config. One to two minutes; reads only,
    /// unless told otherwise.
    Calibrate(CalibrateOptions),
    /// Ask a running server, and change it: its config needs a section `[control]`.
    Ctl(Ctl),
    /// Show in the terminal who gets what of each device, and why: shares, latencies in the queue and on the device.
    Top {
        #[command(flatten)]
        server: Where,
        /// Append what is shown to FILE, one object of JSON a second.
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
        /// Show what --record has written; no server is asked.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["address", "record"])]
        replay: Option<PathBuf>,
    },
    /// Open the page of a running server in a browser, or print its address: a proxy on the loopback of this machine,
    /// until it is interrupted. It lets in who has the key in the address, and changes nothing.
    Page {
        #[command(flatten)]
        server: Where,
        /// The proxy's port on 127.0.0.1, 0 to 65535; 0: any that is free.
        #[arg(long, value_name = "PORT", default_value_t = 0)]
        port: u16,
        /// Only print the address, also where there is a display.
        #[arg(long)]
        no_open: bool,
    },
    /// Print the script that teaches a shell to complete mqfq: bash, zsh, fish, elvish or powershell.
    Completions {
        /// The shell.
        shell: String,
    },
    /// Write the man pages to FOLDER.
    Man {
        /// It is made if it is not there.
        folder: PathBuf,
    },
    /// Show what fair queueing does: tenants alone and together, under none and mqfq. Needs nothing, takes under 20
    /// seconds; with --device under 40.
    Demo {
        /// Measure this block device or file, which is only read, in place of the modelled drive.
        #[arg(long, value_name = "PATH", conflicts_with = "live")]
        device: Option<PathBuf>,
        /// Folder for the picture.
        #[arg(long, default_value = ".")]
        out: PathBuf,
        /// Instead of measuring: three tenants under load, in `mqfq top`, until you leave. Press +, type a weight, and
        /// see the shares move.
        #[arg(long, conflicts_with = "out")]
        live: bool,
    },
}

/// A server that is asked, and how.
#[derive(Args, Debug)]
pub struct Where {
    /// Where the server listens: unix:PATH or tcp:HOST:PORT [default: $MQFQ_SOCKET, or unix:/run/mqfq/control.sock].
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
    /// A file with the token that the server wants on TCP.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    token_file: Option<PathBuf>,
    /// Authority of the certificate of a TCP address, in PEM form: the connection is encrypted with TLS.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    ca: Option<PathBuf>,
    /// Certificate to come with, in PEM form.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    key: Option<PathBuf>,
}

impl Where {
    /// The client of that server.
    ///
    /// # Errors
    /// One sentence, as of [`command_line::client_at`].
    pub fn client(self) -> Result<Client, String> {
        let Where { address, token_file, ca, cert, key } = self;
        let address = address.or_else(|| std::env::var(command_line::SOCKET_VARIABLE).ok());
        let tls = Files { ca, certificate: cert, key };
        command_line::client_at(address.as_deref(), token_file.as_deref(), &tls)
    }
}

/// `mqfq ctl`, whose commands are of the control plane; their flags are the config's keys.
#[derive(Debug)]
pub struct Ctl(pub command_line::Ctl);

impl Args for Ctl {
    fn augment_args(command: clap::Command) -> clap::Command {
        command_line::augment(command, config::keys)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Ctl::augment_args(command)
    }
}

impl FromArgMatches for Ctl {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Ctl, clap::Error> {
        let variable = std::env::var(command_line::SOCKET_VARIABLE).ok();
        let read = command_line::read(matches, config::keys, variable.as_deref());
        read.map(Ctl).map_err(|sentence| clap::Error::raw(clap::error::ErrorKind::ValueValidation, sentence))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Ctl::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A number of requests that a trace keeps.
fn trace_requests(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(requests) if (1..=mqfq_blk::trace::TRACE_RECORDS_MAX).contains(&requests) => Ok(requests),
        _ => Err(format!("{text} is not a number from 1 to {}", mqfq_blk::trace::TRACE_RECORDS_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_may_stand_before_or_after_the_command() {
        for args in [["mqfq", "--json", "check", "c.toml"], ["mqfq", "check", "c.toml", "--json"]] {
            assert!(Cli::try_parse_from(args).unwrap().json);
        }
    }

    #[test]
    fn bad_arguments_are_one_sentence() {
        let refusal =
            |args: &[&str]| mqfq_report::command_line::sentence(&Cli::try_parse_from(args).unwrap_err(), "mqfq");
        assert_eq!(
            refusal(&["mqfq", "serve"]),
            "the following required arguments were not provided: <CONFIG>, see mqfq serve --help"
        );
        assert_eq!(refusal(&["mqfq", "demo", "--fast"]), "unexpected argument '--fast' found, see mqfq demo --help");
        assert_eq!(
            refusal(&["mqfq", "calibrate"]),
            "the following required arguments were not provided: <TARGET|--scratch <FOLDER>|--preset <NAME>|--config <FILE> <DEVICE>>, see mqfq calibrate --help"
        );
        assert_eq!(
            refusal(&["mqfq", "calibrate", "/dev/x", "--preset", "optane"]),
            "the argument '[TARGET]' cannot be used with '--preset <NAME>', see mqfq calibrate --help"
        );
        assert_eq!(
            refusal(&["mqfq", "ctl", "tenant", "rm"]),
            "the following required arguments were not provided: <NAME>, see mqfq ctl tenant rm --help"
        );
        assert_eq!(refusal(&["mqfq", "dance"]), "unrecognized subcommand 'dance', see mqfq --help");
        for (args, meant) in [
            (
                &["mqfq", "ctl", "statsu"][..],
                "unrecognized subcommand 'statsu', see mqfq ctl --help; did you mean status?",
            ),
            (
                &["mqfq", "ctl", "tenat", "list"],
                "unrecognized subcommand 'tenat', see mqfq ctl --help; did you mean tenant?",
            ),
            (
                &["mqfq", "ctl", "tenant", "set", "web", "--weigth", "3"],
                "unexpected argument '--weigth' found, see mqfq ctl tenant set --help; did you mean --weight?",
            ),
            (
                &["mqfq", "ctl", "status", "-o", "jsn"],
                "invalid value 'jsn' for '--output <FORM>' [possible values: text, json, yaml], see mqfq --help; did you mean \
                 json?",
            ),
        ] {
            assert_eq!(refusal(args), meant);
        }
    }
}
