//! Changes that the config file does not have: what names them, what loses them and what does not.

use crate::control::{CONFIG, ask, ctl, get, refusal, refused, said};
use crate::server::{Folder, Server, arg};
use serde_json::{Value, json};
use std::process::Command;

/// The change that [`change`] makes, in words.
const CHANGE: &str = "tenant.web.weight 300 -> 400";

fn with_upgrade() -> String {
    CONFIG.replace("workers = 2", "workers = 2\nupgrade = \"unix:@/upgrade.sock\"")
}

fn change(server: &Server) {
    assert_eq!(ask(server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\": 400}")).0, 200);
}

fn text(server: &Server) -> String {
    std::fs::read_to_string(server.join("config.toml")).unwrap()
}

fn weight(server: &Server) -> Value {
    get(server, "/v1/tenants/web")["in_force"]["weight"].clone()
}

/// A refusal that names the change, and what to do.
fn assert_names_it(sentence: &str) {
    let wanted = "config.toml and would be lost: tenant.web.weight 300 -> 400; allowed is mqfq ctl save before, or \
                  --discard-unsaved with mqfq ctl reload or mqfq serve --replace";
    assert!(sentence.contains("1 change is not in ") && sentence.contains(wanted), "{sentence}");
}

#[test]
fn a_reload_that_would_lose_changes_names_them_and_is_refused() {
    let mut server = Server::start(CONFIG);
    change(&server);
    assert_eq!(get(&server, "/v1/status")["unsaved"], 1);
    assert!(said(&ctl(&server, &["status"])).contains("1 change, see mqfq ctl diff and save"));
    server.signal(libc::SIGHUP);
    let reloaded = server.next_line();
    assert_eq!((&reloaded["reloaded"], &reloaded["revision"]), (&false.into(), &2.into()));
    assert_names_it(reloaded["error"].as_str().unwrap());
    assert!(server.note_with("not reloaded: ").contains(CHANGE));
    assert_names_it(&refusal(&ctl(&server, &["reload"])));
    let tried = said(&ctl(&server, &["reload", "--dry-run"]));
    assert_names_it(&tried);
    assert!(tried.contains("tenant.web.weight: 400 -> 300\n"), "{tried}");
    assert_eq!(weight(&server), 400, "nothing was lost");
    // A file that has the change loses nothing of it.
    std::fs::write(server.join("config.toml"), text(&server).replace("300 #", "400 #")).unwrap();
    said(&ctl(&server, &["reload"]));
    assert_eq!(get(&server, "/v1/status")["unsaved"], 0);

    said(&ctl(&server, &["tenant", "set", "web", "--weight", "500"]));
    said(&ctl(&server, &["reload", "--discard-unsaved"]));
    assert_eq!((weight(&server), &get(&server, "/v1/status")["unsaved"]), (json!(400), &json!(0)));
    server.terminate();
}

#[test]
fn a_server_with_changes_that_are_not_saved_is_replaced_only_if_they_may_be_lost() {
    let config = with_upgrade();
    let mut server = Server::start(&config);
    change(&server);
    assert_names_it(&server.fail_to_replace(&config));
    assert!(server.note_with("not replaced: ").contains(CHANGE));
    assert_eq!(weight(&server), 400, "it serves on");
    let mut server = server.replace_with(&config, &["--replace", "--discard-unsaved"]);
    assert_eq!(weight(&server), 300);
    assert!(server.note_with("an earlier server had and never saved are lost: ").contains(CHANGE));
    // Saved changes do not hold a replacement up.
    change(&server);
    said(&ctl(&server, &["save"]));
    let server = server.replace(&config.replace("300 #", "400 #"));
    assert_eq!(weight(&server), 400);
    server.terminate();
}

#[test]
fn what_a_server_had_and_never_saved_is_said_at_its_end_and_by_the_next_one_once() {
    let server = Server::start(CONFIG);
    change(&server);
    said(&ctl(&server, &["tenant", "add", "new", "--weight", "7"]));
    said(&ctl(&server, &["tenant", "set", "db", "--weight", "9"]));
    said(&ctl(&server, &["tenant", "set", "db", "--unset", "weight"]));
    let mut server = Server::start_in(server.kill_nine(), CONFIG);
    let note = server.note_with("changes that an earlier server had and never saved are lost: ");
    assert!(note.ends_with(&format!("tenant.new.weight = 7, {CHANGE}\n")), "{note}");
    change(&server);
    server.signal(libc::SIGTERM);
    let end = server.note_with("end with this server");
    assert!(end.contains("1 change not in ") && end.contains(CHANGE), "{end}");
    let folder = server.kill_nine();
    let mut server = Server::start_in(folder, CONFIG);
    assert!(server.note_with("never saved are lost: ").contains(CHANGE));
    // A file that has it by now has lost nothing; and nothing is said twice.
    change(&server);
    let mut server = Server::start_in(server.kill_nine(), &CONFIG.replace("300 #", "400 #"));
    server.signal(libc::SIGTERM);
    let (status, stderr) = server.wait();
    assert!(status.success() && !stderr.contains("lost"), "{stderr}");
}

#[test]
fn ctl_writes_a_change_to_the_file_with_save() {
    let server = Server::start(CONFIG);
    let file = server.join("config.toml").display().to_string();
    let set = said(&ctl(&server, &["tenant", "set", "web", "--weight", "400", "--save"]));
    assert!(set.ends_with(&format!("revision 2\n{file}: 1 key written, revision 2\n")), "{set}");
    assert!(text(&server).contains("weight = 400 # three\n"), "{}", text(&server));
    said(&ctl(&server, &["tenant", "add", "new", "--weight", "7", "--save"]));
    said(&ctl(&server, &["export", "resize", "web", "2MiB", "--yes", "--save"]));
    said(&ctl(&server, &["tenant", "rm", "new", "--save"]));
    let saved = text(&server);
    assert!(saved.contains("size = \"2MiB\"") && !saved.contains("tenant.new"), "{saved}");
    let whole = server.join("whole.toml");
    std::fs::write(&whole, saved.replace("weight = 400", "weight = 500")).unwrap();
    said(&ctl(&server, &["apply", arg(&whole), "--save"]));
    assert!(text(&server).contains("weight = 500 # three\n"));
    assert_eq!(get(&server, "/v1/status")["unsaved"], 0);
    let both = ctl(&server, &["tenant", "set", "web", "--weight", "1", "--save", "--dry-run"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    // The change is in force, and a file that was edited meanwhile stays as it is.
    std::fs::write(server.join("config.toml"), text(&server).replace("weight = 500", "weight = 600")).unwrap();
    let refused = refusal(&ctl(&server, &["tenant", "set", "web", "--weight", "700", "--save"]));
    assert!(refused.contains("the change is in force and not saved: ") && refused.contains("has changed"), "{refused}");
    assert!(text(&server).contains("weight = 600") && weight(&server) == 700);
    server.terminate();
}

#[test]
fn a_server_that_saves_always_writes_each_change_to_its_file_in_every_sandbox() {
    for level in ["off", "live", "strict"] {
        let folder = Folder::new();
        // In a folder of its own: a server may write where its trace is.
        let path = folder.join("etc/config.toml");
        std::fs::create_dir(folder.join("etc")).unwrap();
        let config = CONFIG.replace("[control]", "[control]\nsave = \"always\"");
        let config = config.replace("[server]", &format!("[server]\nsandbox = \"{level}\""));
        let config = config.replace('@', arg(folder.path()));
        std::fs::write(&path, &config).unwrap();
        let text = || std::fs::read_to_string(&path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
        command.args(["serve", "--json", "--stats", "--trace"]).arg(folder.join("trace.json")).arg(&path);
        let server = Server::start_by(folder, command);
        change(&server);
        assert_eq!(text(), config.replace("300 # three", "400 # three"), "{level}");
        let (_, applied) = ask(&server, "PUT", "/v1/tenants/new", &[], Some("{\"weight\": 7}"));
        assert_eq!(applied["warnings"], json!([]), "{level}");
        assert!(text().contains("[tenant.new]\nweight = 7\n"), "{level}: {}", text());
        assert_eq!(ask(&server, "DELETE", "/v1/tenants/new", &[], None).0, 200);
        assert_eq!(text(), config.replace("300 # three", "400 # three"), "{level}");
        assert_eq!(get(&server, "/v1/status")["unsaved"], 0, "{level}");
        assert_eq!(ask(&server, "POST", "/v1/config/reload", &[], None).0, 200, "{level}: nothing is lost");
        let files = std::fs::read_dir(path.parent().unwrap()).unwrap().flatten().map(|file| file.file_name());
        let mut files: Vec<_> = files.collect();
        files.sort();
        assert_eq!(files, [".config.toml.unsaved", "config.toml"], "{level}");

        // A file that was edited meanwhile is not overwritten, and the client is told.
        std::fs::write(&path, text().replace("400 #", "600 #")).unwrap();
        let (status, applied) = ask(&server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\": 700}"));
        let warning = applied["warnings"][0].as_str().unwrap();
        assert!(status == 200 && warning.contains("not saved") && warning.contains("has changed since"), "{warning}");
        assert_eq!((text().contains("600 #"), weight(&server)), (true, json!(700)));
        assert_eq!(get(&server, "/v1/status")["unsaved"], 1);
        let (status, sentence) = refused(ask(&server, "POST", "/v1/config/reload", &[], None));
        assert!(status == 409 && sentence.contains("tenant.web.weight 400 -> 700"), "{sentence}");
        server.terminate();
    }
}

#[test]
fn a_server_that_saves_always_and_cannot_does_not_start() {
    // SAFETY: the call touches no memory and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become another user");
    }
    let folder = Folder::new();
    let config = CONFIG.replace("[control]", "[control]\nsave = \"always\"");
    let config = config.replace("[server]", "[server]\nuser = \"nobody\"");
    let mut command = crate::server::command(&folder, &config);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("control.save: cannot write beside ") && stderr.contains("ermission denied"), "{stderr}");
}
