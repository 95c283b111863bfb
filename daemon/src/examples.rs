//! Examples and exit status of each command, at the end of its help and of its man page.

use clap::Command;

/// The path of a command below `mqfq`, and lines as one types them. Each command that does something has a row.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("serve", &["mqfq serve /etc/mqfq/mqfq.toml", "mqfq serve --replace --stats mqfq.toml"]),
    ("check", &["mqfq check /etc/mqfq/mqfq.toml", "mqfq --json check mqfq.toml"]),
    ("calibrate", &["mqfq calibrate /dev/nvme0n1", "mqfq calibrate --scratch /mnt/fast"]),
    ("top", &["mqfq top", "mqfq top unix:/tmp/mqfq-control.sock --record night.jsonl"]),
    ("page", &["mqfq page", "mqfq page tcp:storage:7000 --token-file token --no-open"]),
    ("completions", &["mqfq completions bash > /etc/bash_completion.d/mqfq"]),
    ("man", &["mqfq man /usr/local/share/man/man1"]),
    ("demo", &["mqfq demo --out /tmp", "mqfq demo --device /dev/nvme0n1", "mqfq demo --live"]),
    ("ctl status", &["mqfq ctl status", "mqfq ctl status --socket unix:/tmp/mqfq-control.sock"]),
    ("ctl counters", &["mqfq ctl counters", "mqfq ctl counters -o yaml"]),
    ("ctl why", &["mqfq ctl why web", "mqfq ctl why --watch"]),
    ("ctl events", &["mqfq ctl events", "mqfq ctl events --after 0 --count 10"]),
    ("ctl config", &["mqfq ctl config > running.toml"]),
    ("ctl reload", &["mqfq ctl reload"]),
    ("ctl apply", &["mqfq ctl apply new.toml --dry-run", "mqfq ctl config | sed s/300/400/ | mqfq ctl apply -f -"]),
    ("ctl diff", &["mqfq ctl diff", "mqfq ctl diff -o json"]),
    ("ctl save", &["mqfq ctl save"]),
    ("ctl device list", &["mqfq ctl device list"]),
    ("ctl device show", &["mqfq ctl device show fast"]),
    ("ctl device add", &["mqfq ctl device add spare --kind file --path /dev/nvme1n1"]),
    ("ctl device set", &["mqfq ctl device set fast --expert {depth=64}", "mqfq ctl device set fast --unset expert"]),
    ("ctl device rm", &["mqfq ctl device rm spare"]),
    ("ctl device reopen", &["mqfq ctl device reopen fast"]),
    ("ctl group list", &["mqfq ctl group ls"]),
    ("ctl group show", &["mqfq ctl group show acme"]),
    ("ctl group add", &["mqfq ctl group add acme --weight 300"]),
    ("ctl group set", &["mqfq ctl group set acme --weight 200"]),
    ("ctl group rm", &["mqfq ctl group rm acme"]),
    ("ctl tenant list", &["mqfq ctl tenant list --watch=5", "mqfq ctl tenant ls -o json"]),
    ("ctl tenant show", &["mqfq ctl tenant show web"]),
    ("ctl tenant add", &["mqfq ctl tenant add web --weight 300 --max-iops 20000"]),
    ("ctl tenant set", &["mqfq ctl tenant set web --weight 300", "mqfq ctl tenant set web --unset max-iops --dry-run"]),
    ("ctl tenant rm", &["mqfq ctl tenant rm web"]),
    ("ctl export list", &["mqfq ctl export list"]),
    ("ctl export show", &["mqfq ctl export show web-root"]),
    (
        "ctl export add",
        &[
            "mqfq ctl export add web-root --device fast --tenant web --offset 1GiB --size 1GiB --nbd unix:/run/mqfq/web.sock",
        ],
    ),
    ("ctl export set", &["mqfq ctl export set web-root --read-only true"]),
    ("ctl export rm", &["mqfq ctl export rm web-root"]),
    ("ctl export grow", &["mqfq ctl export grow db"]),
    ("ctl export reopen", &["mqfq ctl export reopen db"]),
    ("ctl export resize", &["mqfq ctl export resize web-root 2GiB"]),
];

/// Commands with exit statuses of their own.
const STATUS: &[(&str, &str)] = &[
    (
        "ctl diff",
        "0 the file says what runs; 1 they differ; 2 it could not be found out, which a sentence on stderr explains",
    ),
    (
        "serve",
        "0 it was asked to end and every request was answered; 1 a sentence on stderr says what was wrong; 2 the \
               command line makes no sense",
    ),
];

const STATUS_OF_OTHERS: &str =
    "0 done; 1 it could not be done, which a sentence on stderr explains; 2 the command line makes no sense";

/// Examples and exit status of the command with this path; `None`: it only has others in it.
pub fn of(path: &str) -> Option<(&'static [&'static str], &'static str)> {
    let (_, examples) = EXAMPLES.iter().find(|(of, _)| *of == path)?;
    let status = STATUS.iter().find(|(of, _)| *of == path).map_or(STATUS_OF_OTHERS, |(_, status)| status);
    Some((examples, status))
}

/// `command` with both at the end of the help of each command in it.
pub fn teach(command: Command) -> Command {
    taught(command, "")
}

fn taught(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| {
        let path = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command.mut_subcommand(name, |inner| taught(inner, &path))
    });
    match of(path) {
        Some((examples, status)) => {
            command.after_help(format!("Examples:\n  {}\n\nExit status:\n  {status}", examples.join("\n  ")))
        }
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Paths of all commands that have no others in them.
    fn leaves(command: &Command, path: &str) -> Vec<String> {
        let of = |inner: &Command| leaves(inner, format!("{path} {}", inner.get_name()).trim_start());
        let inside: Vec<String> = command.get_subcommands().flat_map(of).collect();
        if inside.is_empty() { vec![path.to_owned()] } else { inside }
    }

    #[test]
    fn every_command_has_examples_that_can_be_typed_and_no_other_has() {
        let mut leaves = leaves(&Cli::command(), "");
        let mut told: Vec<&str> = EXAMPLES.iter().map(|(path, _)| *path).collect();
        leaves.sort();
        told.sort();
        assert_eq!(leaves, told);
        for (path, lines) in EXAMPLES {
            for line in *lines {
                let commands = line.split(['|', '>']).map(str::trim).filter(|part| part.starts_with("mqfq "));
                for command in commands {
                    let read = teach(Cli::command()).try_get_matches_from(command.split_whitespace());
                    assert!(read.is_ok(), "{path}: {command}: {}", read.unwrap_err());
                }
            }
        }
    }

    #[test]
    fn help_says_examples_exit_status_ranges_and_defaults_with_keys_apart_from_the_connection() {
        let mut command = teach(Cli::command());
        command.build();
        let path = ["ctl", "tenant", "set"];
        let set = path.iter().try_fold(&mut command, |command, name| command.find_subcommand_mut(name)).unwrap();
        let help = set.render_help().to_string();
        let at = |part: &str| help.find(part).unwrap_or_else(|| panic!("{part} is not in\n{help}"));
        assert!(at("Keys of the config:") < at("Connection:") && at("Connection:") < at("Examples:"));
        assert!(at("--weight <VALUE>") < at("Connection:") && at("--socket <ADDRESS>") > at("Connection:"));
        assert!(at("[range: 1 to 10000] [default: 100]") < at("Connection:"));
        assert!(at("mqfq ctl tenant set web --weight 300") < at("Exit status:"));
        for shown in ["completions", "man"] {
            assert!(teach(Cli::command()).render_help().to_string().contains(shown), "{shown}");
        }
    }

    #[test]
    fn every_number_says_its_range() {
        fn look(command: &Command, path: &str) {
            for arg in command.get_arguments() {
                let is_number =
                    |name: &clap::builder::Str| ["N", "SIZE", "DURATION", "SECONDS", "PORT"].contains(&name.as_str());
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                if arg.get_value_names().is_some_and(|names| names.iter().any(is_number)) {
                    let says = help.contains(" to ") || help.contains("or more");
                    assert!(says, "{path} {}: {help}", arg.get_id());
                }
            }
            command.get_subcommands().for_each(|inner| look(inner, &format!("{path} {}", inner.get_name())));
        }
        look(&Cli::command(), "mqfq");
    }

    #[test]
    fn every_key_has_its_meaning_and_range_in_the_help() {
        for kind in mqfq_control::Kind::ALL {
            for key in crate::config::keys(kind) {
                // Tests know the policies of the laboratory too, and its page has their keys.
                let is_of_the_laboratory = include_str!("../../docs/lab/serve.md").contains(&format!("`{key}"));
                assert!(
                    mqfq_control::ctl::command_line::help(kind, key).is_some() || is_of_the_laboratory,
                    "docs/use/config.md has no row of {kind:?} {key}"
                );
            }
        }
    }
}
