//! Which commands are there, and what does one ask for?
//!
//! The keys of devices, groups, tenants and exports are flags of `add` and `set`. The config's reader knows them and
//! hands them in ([`Keys`]), so that a new key of the config is a flag at once.

use crate::client::{Address, Client};
use crate::ctl::shell;
use crate::model::{Kind, Reload};
use crate::tls::{Files, Trust};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use mqfq_config::text::quoted;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a server listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "unix:/run/mqfq/control.sock";

/// Says where it listens, for all commands of a shell.
pub const SOCKET_VARIABLE: &str = "MQFQ_SOCKET";

/// The keys of a kind, as the config's reader takes them.
pub type Keys = fn(Kind) -> Vec<&'static str>;

/// A request.
#[derive(Clone, PartialEq, Debug)]
pub enum CtlRequest {
    /// State of the process.
    Status,
    /// The counters, as JSON.
    Counters,
    /// Why is this one slow? `None`: all of them.
    Why(Option<String>),
    /// Events after this one, and how many of them.
    Events {
        /// `None`: from now on.
        after: Option<u64>,
        /// `None`: without end.
        count: Option<u64>,
    },
    /// The configured document, as TOML.
    Config,
    /// Have the config file read again.
    Reload(Reload),
    /// Put a whole config in force.
    Apply {
        /// Its file; `-`: stdin.
        file: PathBuf,
        /// How.
        options: Options,
    },
    /// In what do file and server differ?
    Diff,
    /// Write what is configured to the file.
    Save {
        /// Also if it has changed since it was read.
        force: bool,
    },
    /// All of a kind.
    List(Kind),
    /// One.
    Show(Kind, String),
    /// A new one.
    Add(Kind, String, Map<String, Value>, Options),
    /// Other values of one.
    Set(Kind, String, Map<String, Value>, Options),
    /// A device, or the backing of an export, is closed and opened anew.
    Reopen(Kind, String),
    /// An export gets all that its backing has.
    Grow(String),
    /// One less.
    Remove(Kind, String, Options),
}

/// How a change is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Only say what would come of it.
    pub dry_run: bool,
    /// Only if it is at this revision.
    pub revision: Option<u64>,
    /// Write it to the config file as well.
    pub save: bool,
    /// Also if it loses bytes.
    pub yes: bool,
}

/// Form of the answers on stdout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Tables and sentences for people.
    Text,
    /// The server's JSON.
    Json,
    /// The server's JSON as YAML.
    Yaml,
}

/// A server and a request.
#[derive(Clone, Debug)]
pub struct Ctl {
    /// The server.
    pub client: Client,
    /// The request.
    pub asked: CtlRequest,
    /// Form of the printed answer; `None`: as the flag of the whole program says.
    pub form: Option<Form>,
    /// Time between two answers; `None`: one answer is wanted.
    pub watch: Option<Duration>,
}

/// Adds the commands to `command`.
pub fn augment(command: Command, keys: Keys) -> Command {
    let connection = |name| Arg::new(name).long(name).global(true).help_heading("Connection");
    let socket = connection("socket").value_name("ADDRESS").help(
        "Where the server listens: unix:PATH or tcp:HOST:PORT [default: $MQFQ_SOCKET, or unix:/run/mqfq/control.sock]",
    );
    let token = connection("token-file").value_name("FILE");
    let token = token.value_parser(value_parser!(PathBuf)).help("File with the token that a TCP address wants");
    let file_of = |name, help| {
        let file = connection(name).value_name("FILE");
        file.value_parser(value_parser!(PathBuf)).help(help)
    };
    let tls = [
        file_of("ca", "Authority of the certificate of a TCP address, in PEM form: connections are encrypted with TLS"),
        file_of("cert", "Certificate to come with, in PEM form"),
        file_of("key", "Its key"),
    ];
    let form = Arg::new("output").short('o').long("output").value_name("FORM").global(true);
    let form = form.value_parser(["text", "json", "yaml"]).help("Form of the answer [default: text]");
    let plain = |name, about| Command::new(name).about(about);
    let number =
        |name, about| Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u64).range(1..)).help(about);
    let after = Arg::new("after").long("after").value_name("N").value_parser(value_parser!(u64));
    let file = Arg::new("file").value_name("FILE").value_parser(value_parser!(PathBuf));
    let named = Arg::new("from").short('f').long("file").value_name("FILE").value_parser(value_parser!(PathBuf));
    let named = named.conflicts_with("file").required_unless_present("file").help("The same");
    let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let of_all = [
        plain("status", "What the server is: version, process, revision, number of things").arg(watch()),
        plain("counters", "The counters, as JSON"),
        plain("why", "Say why a tenant or export is slow; without a name: each of them")
            .args([shell::name(Kind::Tenant, "Tenant or export"), watch()]),
        plain("events", "Print changes, refusals, trouble and notes as they come")
            .arg(after.help("Begin after event N of those that are kept, 0 or more; 0: with the oldest"))
            .arg(number("count", "End after so many, 1 or more")),
        plain("config", "Print what is configured, as TOML"),
        plain("reload", "Have the config file read again, as SIGHUP does")
            .arg(flag("dry-run", "Only say what would come of it"))
            .arg(flag("discard-unsaved", "Lose changes that the file does not have")),
        options(plain("apply", "Put the config in FILE in force").args([file.help("A whole config; -: stdin"), named])),
        plain("diff", "Print in what the config file and the server differ, and who set it").arg(watch()),
        plain("save", "Write what is configured to the config file, and keep its comments")
            .arg(flag("force", "Also if the file has changed since the server read it")),
    ];
    let command =
        command.arg(form).arg(socket).arg(token).args(tls).subcommand_required(true).arg_required_else_help(true);
    command.subcommands(of_all).subcommands(Kind::ALL.map(|kind| of_kind(kind, keys(kind))))
}

fn watch() -> Arg {
    let watch = Arg::new("watch").long("watch").value_name("SECONDS").num_args(0..=1).default_missing_value("2");
    let watch = watch.require_equals(true).value_parser(value_parser!(u64).range(1..=86_400));
    watch.help("Ask again after so many seconds, 1 to 86400, until it is interrupted [default without a number: 2]")
}

/// `ctl tenant ...` and the like.
fn of_kind(kind: Kind, known: Vec<&'static str>) -> Command {
    let section = kind.section();
    let a = if kind == Kind::Export { "an" } else { "a" };
    let name = || shell::name(kind, "Its name").required(true);
    let flag = |key: &'static str| {
        Arg::new(key)
            .long(key)
            .value_name("VALUE")
            .action(ArgAction::Append)
            .allow_hyphen_values(true)
            .help_heading("Keys of the config")
            .help(help(kind, key).unwrap_or_else(|| format!("`{key}` of [{section}.NAME] in the config")))
    };
    let flags: Vec<Arg> = known.iter().copied().map(flag).collect();
    let unset = Arg::new("unset").long("unset").value_name("KEY").action(ArgAction::Append);
    let unset = unset.value_parser(clap::builder::PossibleValuesParser::new(known));
    let sub = |name, about: String| Command::new(name).about(about);
    // The name of a new one is not completed.
    let new_name = Arg::new("name").value_name("NAME").required(true).help("Its name");
    let add = options(sub("add", format!("Add {a} {section}")).arg(new_name).args(flags.clone()));
    let set = options(sub("set", format!("Change keys of {a} {section}")).arg(name()).args(flags));
    let set = set.arg(unset.help("Take the key away: its default holds"));
    let set = if kind == Kind::Export { set.arg(yes()) } else { set };
    let mut commands = vec![
        sub("list", format!("List all {}", kind.plural())).visible_alias("ls").arg(watch()),
        sub("show", format!("Print {a} {section}: configured, in force, who set it"))
            .visible_alias("get")
            .args([name(), watch()]),
        add,
        set,
        options(sub("rm", format!("Remove {a} {section}")).visible_alias("delete").arg(name())),
    ];
    if kind == Kind::Export {
        let size = Arg::new("new-size").value_name("SIZE").required(true);
        let size = size.help("Its new size, such as 512MiB: 1 B to what the device has");
        let keep = Arg::new("keep").long("keep-data").action(ArgAction::SetTrue);
        let keep = keep.help("Show what is there in bytes that it gets, instead of zeroes");
        let about = "Change the size of an export: it grows by zeroes, and what it loses is lost";
        commands.push(options(sub("resize", about.to_owned()).args([name(), size, yes(), keep])));
        let about = "Give an export of a pool all that its backing has by now";
        commands.push(sub("grow", about.to_owned()).arg(name()));
        let about = "Disconnect the clients of an export of a pool, close its backing and open it anew";
        commands.push(sub("reopen", about.to_owned()).arg(name()));
    }
    if kind == Kind::Device {
        let about = "Disconnect its clients, close it and open it anew, such as one that has failed";
        commands.push(sub("reopen", about.to_owned()).arg(name()));
    }
    let about = format!("List, print, add, change and remove {}", kind.plural());
    Command::new(section).about(about).subcommands(commands).subcommand_required(true).arg_required_else_help(true)
}

fn yes() -> Arg {
    Arg::new("yes").long("yes").action(ArgAction::SetTrue).help("Also if it shrinks and loses bytes")
}

fn options(command: Command) -> Command {
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    let revision = Arg::new("revision").long("revision").value_name("N").value_parser(value_parser!(u64));
    let save = Arg::new("save").long("save").action(ArgAction::SetTrue).conflicts_with("dry-run");
    command
        .arg(dry_run.help("Only say what would come of it"))
        .arg(revision.help("Only if it is at revision N, 1 or more, which the answer to `show` or `status` has"))
        .arg(save.help("Write all that is configured to the config file afterwards, as `mqfq ctl save` does"))
}

/// Reads the arguments. `variable`: the value of [`SOCKET_VARIABLE`].
///
/// # Errors
/// One sentence: an address, a value or a token that cannot be read.
pub fn read(matches: &ArgMatches, keys: Keys, variable: Option<&str>) -> Result<Ctl, String> {
    let (name, inner) = matches.subcommand().ok_or("no command is given")?;
    let asked = match name {
        "status" => CtlRequest::Status,
        "counters" => CtlRequest::Counters,
        "why" => CtlRequest::Why(inner.get_one("name").cloned()),
        "events" => {
            CtlRequest::Events { after: inner.get_one("after").copied(), count: inner.get_one("count").copied() }
        }
        "config" => CtlRequest::Config,
        "reload" => CtlRequest::Reload(Reload {
            discard_unsaved: inner.get_flag("discard-unsaved"),
            dry_run: inner.get_flag("dry-run"),
        }),
        "apply" => {
            let file = inner.get_one::<PathBuf>("file").or(inner.get_one("from")).cloned().unwrap_or_default();
            CtlRequest::Apply { file, options: read_options(inner) }
        }
        "diff" => CtlRequest::Diff,
        "save" => CtlRequest::Save { force: inner.get_flag("force") },
        section => {
            let kind = Kind::ALL.into_iter().find(|kind| kind.section() == section);
            of_kind_asked(kind.ok_or("no such command")?, inner, keys)?
        }
    };
    let deepest = deepest(matches);
    let form = match deepest.get_one::<String>("output").map(String::as_str) {
        None => None,
        Some("json") => Some(Form::Json),
        Some("yaml") => Some(Form::Yaml),
        Some(_) => Some(Form::Text),
    };
    let watch = deepest.try_get_one("watch").ok().flatten().copied().map(Duration::from_secs);
    Ok(Ctl { client: client(deepest, variable)?, asked, form, watch })
}

/// Where clap leaves the values of flags that all commands have.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, inner)| deepest(inner))
}

fn client(matches: &ArgMatches, variable: Option<&str>) -> Result<Client, String> {
    let socket = matches.get_one::<String>("socket").map(String::as_str).or(variable);
    let file = |name| matches.get_one::<PathBuf>(name);
    let files = Files { ca: file("ca").cloned(), certificate: file("cert").cloned(), key: file("key").cloned() };
    client_at(socket, file("token-file").map(PathBuf::as_path), &files)
}

/// Client of the server at `socket`; `None`: at [`DEFAULT_SOCKET`].
///
/// # Errors
/// One sentence: an address, a token or a file of TLS that cannot be read, or TLS on a unix socket, which has none.
pub fn client_at(socket: Option<&str>, token_file: Option<&Path>, tls: &Files) -> Result<Client, String> {
    let socket = socket.unwrap_or(DEFAULT_SOCKET);
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("cannot read {}: {}", path.display(), mqfq_report::plain(&error)))?;
        Ok::<_, String>(text.trim().to_owned())
    };
    let token = token_file.map(read).transpose()?;
    let (address, trust) = (Address::parse(socket)?, Trust::read(tls)?);
    if trust.is_some() && matches!(address, Address::Unix(_)) {
        return Err(format!("{address} has no TLS, allowed is --ca with tcp:HOST:PORT"));
    }
    Ok(Client { address, token, trust, patience: None })
}

fn of_kind_asked(kind: Kind, matches: &ArgMatches, keys: Keys) -> Result<CtlRequest, String> {
    let (name, inner) = matches.subcommand().ok_or("no command is given")?;
    let thing = || text(inner, "name");
    Ok(match name {
        "list" => CtlRequest::List(kind),
        "show" => CtlRequest::Show(kind, thing()),
        "add" => CtlRequest::Add(kind, thing(), values(inner, keys(kind))?, read_options(inner)),
        "rm" => CtlRequest::Remove(kind, thing(), read_options(inner)),
        "reopen" => CtlRequest::Reopen(kind, thing()),
        "grow" => CtlRequest::Grow(thing()),
        "resize" => {
            let mut keys = Map::from_iter([("size".to_owned(), value(&text(inner, "new-size"))?)]);
            if inner.get_flag("keep") {
                keys.insert("keep-data".to_owned(), true.into());
            }
            CtlRequest::Set(kind, thing(), keys, read_options(inner))
        }
        _ => {
            let mut values = values(inner, keys(kind))?;
            for key in inner.get_many::<String>("unset").into_iter().flatten() {
                if values.insert(key.clone(), Value::Null).is_some() {
                    return Err(format!("--{key} and --unset {key} exclude each other, allowed is one of them"));
                }
            }
            if values.is_empty() {
                return Err(format!("nothing is set, allowed are flags such as --{} VALUE", keys(kind)[0]));
            }
            CtlRequest::Set(kind, thing(), values, read_options(inner))
        }
    })
}

fn text(matches: &ArgMatches, name: &str) -> String {
    matches.get_one::<String>(name).cloned().unwrap_or_default()
}

fn read_options(matches: &ArgMatches) -> Options {
    let (dry_run, save) = (matches.get_flag("dry-run"), matches.get_flag("save"));
    let yes = matches.try_get_one("yes").ok().flatten().copied().unwrap_or(false);
    Options { dry_run, revision: matches.get_one("revision").copied(), save, yes }
}

/// The keys that are given; one that is given several times is a list.
fn values(matches: &ArgMatches, keys: Vec<&'static str>) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    for key in keys {
        let Some(texts) = matches.get_many::<String>(key) else { continue };
        let mut all = texts.map(|text| value(text)).collect::<Result<Vec<_>, _>>()?;
        let value = if all.len() == 1 { all.remove(0) } else { Value::Array(all) };
        values.insert(key.to_owned(), value);
    }
    Ok(values)
}

/// A value as one writes it in a shell: a number, a flag, a list, table or quoted string of TOML; all else is a string.
fn value(text: &str) -> Result<Value, String> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"-._".contains(&byte));
    let is_toml = is_number || text.starts_with(['[', '{', '"', '\'']) || text == "true" || text == "false";
    if !is_toml {
        return Ok(text.into());
    }
    let table: Result<toml::Table, _> = format!("value = {text}").parse();
    match table.ok().and_then(|mut table| table.remove("value").filter(|_| table.is_empty())) {
        Some(value) => serde_json::to_value(value).map_err(|error| error.to_string()),
        // Such as 10.0.0.1.
        None if is_number => Ok(text.into()),
        None => Err(format!("{} cannot be read as TOML, allowed is a value as in the config", quoted(text))),
    }
}

const PAGE: &str = include_str!("../../../docs/use/config.md");

/// Help of a key: its meaning, the allowed values and the default. `None`: the page has no row for it.
pub fn help(kind: Kind, key: &str) -> Option<String> {
    let head = format!("\n## [{}.NAME]\n", kind.section());
    let section = PAGE.split_once(&head)?.1;
    let section = section.split("\n## ").next()?;
    let cells = |line: &'static str| -> Vec<&'static str> {
        let row = line.trim_start_matches('|').trim_end_matches('|');
        row.split('|').map(str::trim).collect()
    };
    let (mut columns, mut found) = (Vec::new(), None);
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let row = cells(line);
        if row[0] == "key" {
            columns = row;
        } else if row[0].split(", ").any(|name| name.trim_matches('`') == key) && columns.contains(&"meaning") {
            let cell = |name| columns.iter().position(|column| *column == name).and_then(|at| row.get(at)).copied();
            let said = |name| cell(name).map(plain).filter(|text| !text.is_empty());
            let range = said("range").map(|range| format!(" [range: {range}]")).unwrap_or_default();
            let default = said("default").map(|default| format!(" [default: {default}]")).unwrap_or_default();
            found = found.or(said("meaning").map(|meaning| format!("{meaning}{range}{default}")));
        }
    }
    let table = || {
        let head = format!("[{}.NAME.{key}]", kind.section());
        let is_there = PAGE.contains(&format!("\n### {head}\n"));
        is_there.then(|| format!("A table, '{{ KEY = VALUE }}': docs/use/config.md has its keys under {head}"))
    };
    found.or_else(table)
}

/// Text without its marks: links are their words, code is itself.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        text += before;
        text += words;
        rest = after;
    }
    (text + rest).replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn keys(kind: Kind) -> Vec<&'static str> {
        if kind == Kind::Export { vec!["device", "size", "nbd"] } else { vec!["weight", "class"] }
    }

    fn ctl(args: &[&str], variable: Option<&str>) -> Result<Ctl, String> {
        let command = augment(Command::new("ctl"), keys);
        command.clone().debug_assert();
        let matches = command.try_get_matches_from([&["ctl"], args].concat()).map_err(|error| error.to_string())?;
        read(&matches, keys, variable)
    }

    #[test]
    fn keys_of_the_config_are_flags_and_values_are_those_of_toml() {
        let asked = |args: &[&str]| ctl(args, None).unwrap().asked;
        let none = Options::default();
        let map = |value: Value| value.as_object().unwrap().clone();
        let keys = map(json!({ "weight": 300, "class": null }));
        let set = asked(&["tenant", "set", "web", "--weight", "300", "--unset", "class"]);
        assert_eq!(set, CtlRequest::Set(Kind::Tenant, "web".into(), keys, none.clone()));
        let keys = map(json!({ "device": "7up", "size": "1GiB", "nbd": ["unix:/a", "unix:/b"] }));
        let add = ["export", "add", "x", "--device", "7up", "--size", "1GiB", "--nbd", "unix:/a", "--nbd", "unix:/b"];
        assert_eq!(asked(&add), CtlRequest::Add(Kind::Export, "x".into(), keys, none));
        let keys = map(json!({ "size": 4096 }));
        let options = Options { dry_run: true, revision: Some(7), save: false, yes: false };
        let resize = asked(&["export", "resize", "x", "4096", "--dry-run", "--revision", "7"]);
        assert_eq!(resize, CtlRequest::Set(Kind::Export, "x".into(), keys, options));
        for (text, wanted) in [
            ("true", json!(true)),
            ("1.5", json!(1.5)),
            ("10.0.0.1", json!("10.0.0.1")),
            ("\"300\"", json!("300")),
            ("[1, 2]", json!([1, 2])),
            ("{ write = { per-byte = 2 } }", json!({ "write": { "per-byte": 2 } })),
        ] {
            assert_eq!(value(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn the_page_for_users_has_every_command() {
        let page = include_str!("../../../docs/use/control.md");
        let command = augment(Command::new("ctl"), keys);
        for command in command.get_subcommands() {
            let name = command.get_name();
            let is_there = |row: &str| assert!(page.contains(row), "docs/use/control.md lacks {row}");
            if !command.has_subcommands() {
                is_there(&format!("| `mqfq ctl {name}"));
            }
            for sub in command.get_subcommands().map(Command::get_name) {
                is_there(&if ["grow", "reopen", "resize"].contains(&sub) {
                    format!("| `mqfq ctl {name} {sub}")
                } else {
                    format!("| `mqfq ctl KIND {sub}")
                });
            }
        }
    }

    #[test]
    fn the_socket_is_that_of_the_flag_then_of_the_environment_then_the_default() {
        let address = |args: &[&str], variable| ctl(args, variable).unwrap().client.address.to_string();
        assert_eq!(address(&["status"], None), DEFAULT_SOCKET);
        assert_eq!(address(&["status"], Some("tcp:a:1")), "tcp:a:1");
        assert_eq!(address(&["tenant", "list", "--socket", "/s"], Some("tcp:a:1")), "unix:/s");
        assert_eq!(address(&["--socket", "unix:/s", "tenant", "list"], None), "unix:/s");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_a_sentence() {
        let refusal = |args: &[&str]| ctl(args, None).unwrap_err();
        assert_eq!(refusal(&["tenant", "set", "a"]), "nothing is set, allowed are flags such as --weight VALUE");
        let both = refusal(&["tenant", "set", "a", "--weight", "1", "--unset", "weight"]);
        assert_eq!(both, "--weight and --unset weight exclude each other, allowed is one of them");
        let list = refusal(&["tenant", "set", "a", "--weight", "[1"]);
        assert_eq!(list, "\"[1\" cannot be read as TOML, allowed is a value as in the config");
    }

    #[test]
    fn a_key_has_its_row_of_the_page() {
        let weight = "share relative to its siblings that compete [range: 1 to 10000] [default: 100]";
        assert_eq!(help(Kind::Group, "weight").unwrap(), weight);
        let kind = "storage of the bytes [range: null, memory, file, pool, model]";
        assert!(help(Kind::Device, "kind").unwrap().starts_with(kind));
        assert!(help(Kind::Device, "cost").unwrap().ends_with("has its keys under [device.NAME.cost]"));
        assert!(help(Kind::Export, "nbd").unwrap().starts_with("where it is served: \"unix:PATH\""));
        // The last key of a row of three.
        assert!(help(Kind::Export, "allow-gids").unwrap().starts_with("which clients may have it [range: names; "));
        // A row without a range.
        assert_eq!(help(Kind::Tenant, "group").unwrap(), "name of a [group.NAME] section [default: none]");
        assert_eq!(help(Kind::Export, "port"), None);
    }
}
