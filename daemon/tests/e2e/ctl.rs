//! `mqfq ctl` as people type it: other names of commands, other forms of answers, all tenants at once.

use crate::client::Client as NbdClient;
use crate::control::{CONFIG, client, ctl, get, refusal, said};
use crate::server::{Server, mqfq};
use mqfq_control::client::Ask;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

/// `mqfq ctl` of this server with these arguments, not started yet.
fn command(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
    command.args(["ctl", "--socket", server.join("control.sock").to_str().unwrap()]).args(args).stdout(Stdio::piped());
    command
}

fn with_stdin(server: &Server, args: &[&str], text: &str) -> Output {
    let mut child = command(server, args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn ls_get_and_delete_are_list_show_and_rm_and_a_config_comes_from_stdin() {
    let server = Server::start(CONFIG);
    said(&ctl(&server, &["tenant", "add", "new", "--weight", "7"]));
    assert_eq!(said(&ctl(&server, &["group", "ls"])), said(&ctl(&server, &["group", "list"])));
    assert_eq!(said(&ctl(&server, &["tenant", "get", "new"])), said(&ctl(&server, &["tenant", "show", "new"])));
    let config = said(&ctl(&server, &["config"]));
    said(&ctl(&server, &["tenant", "delete", "new"]));
    for from in [&["apply", "-f", "-"][..], &["apply", "-"]] {
        let applied = said(&with_stdin(&server, from, &config));
        assert!(
            applied.contains("tenant.new") && get(&server, "/v1/tenants/new")["configured"]["weight"] == 7,
            "{applied}"
        );
        said(&ctl(&server, &["tenant", "rm", "new"]));
    }
    let refused = with_stdin(&server, &["apply", "-"], "\n[tenant.web]\nweigth = 1\n");
    let refused = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.starts_with("mqfq: stdin:3: tenant.web.weigth: unknown key, "), "{refused}");
    assert!(refused.ends_with("; did you mean weight?\n"), "{refused}");
    let missing = String::from_utf8(ctl(&server, &["tenant", "show", "wbe"]).stderr).unwrap();
    assert_eq!(missing, "mqfq: there is no tenant \"wbe\"; did you mean web?\n");
    server.terminate();
}

#[test]
fn answers_come_as_json_and_as_yaml() {
    let server = Server::start(CONFIG);
    let json = said(&ctl(&server, &["config", "-o", "json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["revision"], &json["config"]["tenant"]["web"]["weight"]), (&1.into(), &300.into()));
    let yaml = said(&ctl(&server, &["config", "--output", "yaml"]));
    let wanted = ["config:", "  tenant:", "    db: {}", "    web:", "      weight: 300", "revision: 1"];
    let mut lines = yaml.lines();
    assert!(wanted.iter().all(|wanted| lines.any(|line| line == *wanted)), "{wanted:?} in this order in\n{yaml}");
    said(&ctl(&server, &["tenant", "set", "web", "--weight", "1"]));
    let event = said(&ctl(&server, &["events", "--after", "0", "--count", "1", "-o", "yaml"]));
    assert!(event.starts_with("---\n") && event.lines().any(|line| line == "kind: change"), "{event}");
    server.terminate();
}

#[test]
fn why_tells_of_all_tenants_and_their_list_has_what_each_received() {
    let server = Server::start(CONFIG);
    let mut web = NbdClient::connect(&server.socket("web"), "web");
    let share = |tenant: &str| {
        let shares = get(&server, "/v1/shares");
        let of = shares["shares"].as_array().unwrap().iter().find(|share| share["tenant"] == tenant);
        of.map_or(Value::Null, |share| share["share"].clone())
    };
    // Readings come once a second: until there are two that the requests lie between.
    while share("web") != 1.0 {
        (0..64).for_each(|n| drop(web.read(n * 4096, 4096).unwrap()));
    }
    assert_eq!(share("db"), 0.0);
    let all = said(&ctl(&server, &["why"]));
    assert!(all.lines().any(|line| line.starts_with("web")) && all.contains("db is idle: "), "{all}");
    let missing = String::from_utf8(ctl(&server, &["why", "wbe"]).stderr).unwrap();
    assert!(missing.ends_with("; did you mean web?\n"), "{missing}");
    let list = said(&ctl(&server, &["tenant", "list"]));
    let row = |tenant: &str| list.lines().find(|line| line.starts_with(tenant)).unwrap().to_owned();
    assert!(row("tenant").contains("received") && row("tenant").contains("entitled"), "{list}");
    assert!(row("web").contains("d 100.0%") && row("db").contains("d 0.0%"), "{list}");
    let history = get(&server, "/v1/history");
    let last = history["points"].as_array().unwrap().last().unwrap();
    assert_eq!(last["devices"][0]["tenants"][0]["name"], "web", "{last}");
    server.terminate();
}

#[test]
fn metrics_come_in_the_format_that_the_client_accepts() {
    let server = Server::start(CONFIG);
    let scrape = |accept: Option<&str>| {
        let ask = Ask::new("GET".parse().unwrap(), "/metrics");
        let ask = accept.into_iter().fold(ask, |ask, accept| ask.header("accept".parse().unwrap(), accept));
        let reply = client(&server).ask(ask).unwrap();
        let kind = reply.headers["content-type"].to_str().unwrap().split(';').next().unwrap().to_owned();
        (kind, String::from_utf8(reply.body).unwrap().ends_with("# EOF\n"))
    };
    let (open, plain) = (("application/openmetrics-text".to_owned(), true), ("text/plain".to_owned(), false));
    assert_eq!(scrape(Some("application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1")), open);
    assert_eq!((scrape(Some("*/*")), scrape(None)), (plain.clone(), plain));
    server.terminate();
}

#[test]
fn what_is_watched_is_asked_again() {
    let server = Server::start(CONFIG);
    let mut child = command(&server, &["tenant", "show", "web", "--watch=1"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut weight = || lines.find(|line| line.starts_with("weight")).unwrap();
    assert!(weight().contains("300"));
    said(&ctl(&server, &["tenant", "set", "web", "--weight", "200"]));
    // The answer after the change, or the one after that.
    assert!((0..3).any(|_| weight().contains("200")));
    child.kill().unwrap();
    child.wait().unwrap();
    server.terminate();
}

#[test]
fn ctl_shows_sizes_in_units_and_what_uses_a_thing() {
    let config = CONFIG.replace("[tenant.web]", "[group.acme]\n[tenant.web]\ngroup = \"acme\"");
    let server = Server::start(&config);
    let list = said(&ctl(&server, &["export", "list"]));
    let rows: Vec<Vec<&str>> = list.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][3], rows[0][6], rows[1][3], rows[1][6]), ("4MiB", "4MiB", "0", "4MiB"), "{list}");
    let tenants = said(&ctl(&server, &["tenant", "list"]));
    assert!(tenants.contains(" 64MiB ") && !tenants.contains("67108864"), "{tenants}");
    for (words, wanted) in [
        (["group", "show", "acme"], "\ntenants: web\nrevision 1\n"),
        (["tenant", "show", "web"], "\nexports: web\nrevision 1\n"),
        (["device", "show", "d"], "\nexports: db, web\nrevision 1\nfree in all: 0 of 8MiB\n"),
    ] {
        let shown = said(&ctl(&server, &words));
        assert!(shown.ends_with(wanted), "{shown}");
    }
    assert_eq!(said(&ctl(&server, &["tenant", "add", "new"])), "tenant.new: added\nrevision 2\n");
    assert_eq!(said(&ctl(&server, &["tenant", "rm", "new"])), "tenant.new: removed\nrevision 3\n");
    for (words, wanted) in [
        (&["tenant", "rm", "web"][..], "tenant web still has export web, allowed is to remove one that nothing uses"),
        (&["device", "rm", "d"], "device d still has exports db, web, allowed is to remove one that nothing uses"),
        (&["group", "rm", "acme"], "group acme still has tenant web, allowed is to remove one that nothing uses"),
        (
            &["tenant", "set", "web", "--weight", "abc"],
            "tenant.web.weight: the string \"abc\" does not fit here, allowed is a whole number, 1 to 10000",
        ),
        (
            &["export", "add", "x", "--device", "d", "--tenant", "web", "--size", "4096", "--offset", "0"],
            "export.x: no address says where it is served, allowed is at least one of nbd, ublk, vhost-user",
        ),
        (
            &["device", "set", "d", "--preset", "zssd"],
            "device.d.preset: is for kind model only, and this device is of kind memory",
        ),
    ] {
        assert_eq!(refusal(&ctl(&server, words)), format!("mqfq: {wanted}\n"));
    }
    let url = mqfq(&["ctl", "status", "--socket", "http://localhost:7000"]);
    let said = String::from_utf8(url.stderr).unwrap();
    assert!(
        said.contains("\"http://localhost:7000\" is not an address, allowed is unix:PATH or tcp:HOST:PORT"),
        "{said}"
    );
    server.terminate();
}
