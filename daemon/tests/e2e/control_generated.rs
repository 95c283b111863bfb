//! Generated changes of tenants and exports, right and wrong: the server's short way says and does the same as the long
//! one. And changes that the config file does not have: what names them, what loses them and what does not.

use crate::client::Handshake;
use crate::control::{CONFIG, ask, client, ctl, get, refusal, refused, said};
use crate::server::{Folder, Server, arg};
use mqfq_control::client::Ask;
use mqfq_testing::authority::Authority;
use mqfq_testing::user;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of exports that there may be, and sockets where they may be offered.
const NAMES: [&str; 4] = ["web", "db", "new", "a.b"];
const SOCKETS: [&str; 4] = ["web.sock", "other.sock", "own.sock", "db.sock"];

/// Users and groups that try each door: some are in no list, and none has a certificate.
const USERS: [(u32, u32); 4] = [(0, 0), (7, 1), (9, 8), (1, 7)];

/// The size that a process of this user is told of an export at a socket. `None`: it does not get in.
fn enters(socket: &Path, name: &str, (uid, gid): (u32, u32)) -> Option<u64> {
    let enter = || Handshake::start(socket).try_go(name).ok().map(|client| client.size_bytes);
    if user::is_root() { user::as_user(uid, gid, enter) } else { enter() }
}

/// The values of a key, one or a list.
fn listed(keys: &Value, key: &str) -> Vec<Value> {
    match &keys[key] {
        Value::Null => Vec::new(),
        Value::Array(all) => all.clone(),
        one => vec![one.clone()],
    }
}

/// Each user tries each export where it is offered, one user everywhere else, and they get in where the document that
/// is in force says so. How many got in, and how many did not.
fn try_doors(server: &Server) -> [usize; 2] {
    let config = &get(server, "/v1/config")["config"];
    let offered_at = |name: &str| -> Vec<PathBuf> {
        listed(&config["export"][name], "nbd").iter().map(|at| at.as_str().unwrap()[5..].into()).collect()
    };
    let mut counts = [0, 0];
    for socket in SOCKETS.map(|socket| server.join(socket)) {
        if !NAMES.iter().any(|name| offered_at(name).contains(&socket)) {
            assert!(UnixStream::connect(&socket).is_err(), "nothing is offered at {socket:?}");
            continue;
        }
        for name in NAMES {
            let export = &config["export"][name];
            let [identities, uids, gids] = ["identity", "allow-uids", "allow-gids"].map(|key| listed(export, key));
            let of_tenant = listed(&config["tenant"][export["tenant"].as_str().unwrap_or_default()], "identity");
            let is_open = [&identities, &of_tenant, &uids, &gids].iter().all(|list| list.is_empty());
            let is_here = offered_at(name).contains(&socket);
            for (uid, gid) in USERS.into_iter().take(if user::is_root() && is_here { USERS.len() } else { 1 }) {
                let is_named = is_open || uids.contains(&uid.into()) || gids.contains(&gid.into());
                let entered = enters(&socket, name, (uid, gid));
                counts[usize::from(entered.is_none())] += 1;
                let who = format!("user {uid}, group {gid}: {name} at {socket:?}: {export}");
                assert_eq!(entered.is_some(), is_named && is_here, "{who}");
                assert!(export["size"].as_u64().is_none_or(|size| entered.is_none_or(|told| told == size)), "{who}");
            }
        }
    }
    counts
}

/// A server that warns reads and checks everything at each change; one that does not reads only the changed section.
#[test]
fn generated_changes_say_and_do_the_same_by_either_way() {
    const UNUSED: &str = "[device.unused]\nkind = \"memory\"\nsize = \"1MiB\"\n";
    let [short, long] = ["", UNUSED].map(|more| {
        let folder = Folder::new();
        Authority::new().sign(folder.path(), "server", "localhost");
        let open = CONFIG.replace("workers = 2\n", "workers = 2\nsocket-mode = \"0666\"\n");
        let tls = "[tls]\ncertificate = \"@/server-cert.pem\"\nkey = \"@/server-key.pem\"\n\
                   client-ca = \"@/ca-cert.pem\"\n";
        Server::start_in(folder, &format!("{open}{tls}{more}"))
    });
    // Each has its own folder, and warns of its own.
    let plain = |server: &Server, said: &Value| {
        let text = said.to_string().replace(server.folder().path().to_str().unwrap(), "@").replace(", unused", "");
        let mut said: Value = serde_json::from_str(&text).unwrap();
        if let Some(said) = said.as_object_mut() {
            said.remove("warnings");
        }
        for thing in said["things"].as_array_mut().into_iter().flatten() {
            for set_by in thing["set_by"].as_object_mut().unwrap().values_mut() {
                set_by.as_object_mut().unwrap().remove("at");
            }
        }
        said
    };
    let mut random = mqfq_testing::Random::new(11);
    let (mut taken, mut refused, mut entered, mut turned_away) = (0, 0, 0, 0);
    for _ in 0..200 {
        let name = random.of(&["web", "db", "new", "a.b"]);
        let (device, whose) = (random.of(&["d", "d", "d", "e"]), random.of(&["web", "db", "new", "none"]));
        let (offset, size) = (random.below(8) << 20, random.of(&[1u64 << 19, 1 << 20, 1 << 21]));
        let tenant = random.of(&[
            "{\"weight\":7}",
            "{\"class\":\"idle\",\"max-iops\":900}",
            "{\"class\":null}",
            "{}",
            "{\"memory\":\"8MiB\",\"weight\":null}",
            "{\"weight\":0}",
            "{\"staged-requests\":9,\"class\":\"realtime\"}",
            "{\"max-bytes-per-s\":\"1MiB\",\"staged-bytes\":\"64KiB\"}",
            "{\"group\":\"none\"}",
            "{\"identity\":[\"dns:a.example\",\"cn:b\"]}",
            "{\"identity\":null}",
            "{\"identity\":null,\"weight\":9}",
        ]);
        let more = [
            json!({}),
            json!({ "shared": true }),
            json!({ "allow-uids": [0, 7], "description": "some" }),
            json!({ "allow-uids": [7, 9], "allow-gids": [8, 7], "identity": "dns:c.example" }),
            json!({ "payload-max": "64KiB", "max-bytes-per-s": "1MiB" }),
            json!({ "weight": 7 }),
        ];
        // One of ten exports has a weight: with one, all changes are the long ones.
        let more = &more[random.of(&[0, 0, 1, 1, 2, 2, 3, 3, 4, 5])];
        let export = |server: &Server, nbd: &[&str]| {
            let nbd: Vec<String> = nbd.iter().map(|path| format!("unix:{}", server.join(path).display())).collect();
            let mut keys = json!({ "device": device, "tenant": whose, "offset": offset, "size": size, "nbd": nbd });
            keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            keys.to_string()
        };
        let nbd = random.of(&[&["web.sock"][..], &["other.sock"], &["own.sock", "web.sock"], &["own.sock"]]);
        let patches = [
            json!({ "size": size, "read-only": random.chance(2), "max-iops": 5000 }),
            json!({ "allow-uids": [9, 0] }),
            json!({ "allow-uids": null, "allow-gids": [1, 8] }),
            json!({ "allow-uids": null, "allow-gids": null, "identity": null }),
        ];
        let patch = patches[random.below(4) as usize].to_string();
        let (path_of, kind) = (|kind: &str| format!("/v1/{kind}/{name}"), random.below(8));
        let revision = format!("\"{}\"", random.below(60));
        let headers = if random.chance(4) { vec![("if-match", &*revision)] } else { Vec::new() };
        let [one, other] = [&short, &long].map(|server| {
            let (method, path, body) = match kind {
                0 => ("PUT", path_of("tenants"), Some(tenant.to_owned())),
                1 | 2 => ("PATCH", path_of("tenants"), Some(tenant.to_owned())),
                3 => ("DELETE", path_of("tenants"), None),
                4 | 5 => ("PUT", path_of("exports"), Some(export(server, nbd))),
                6 => ("PATCH", path_of("exports"), Some(patch.clone())),
                _ => ("DELETE", path_of("exports"), None),
            };
            let (status, said) = ask(server, method, &path, &headers, body.as_deref());
            (status, plain(server, &said))
        });
        assert_eq!(one, other);
        *(if one.0 < 300 { &mut taken } else { &mut refused }) += 1;
        if one.0 < 300 {
            // In turns: what one of them has forgotten is still so after the next change.
            let [in_, out] = try_doors([&short, &long][taken % 2]);
            (entered, turned_away) = (entered + in_, turned_away + out);
        }
        for path in ["/v1/tenants", "/v1/exports"] {
            assert_eq!(plain(&short, &get(&short, path)), plain(&long, &get(&long, path)));
        }
        let config = |server: &Server| {
            let mut said = plain(server, &get(server, "/v1/config"));
            said["config"]["device"].as_object_mut().unwrap().remove("unused");
            said["config"].as_object_mut().unwrap().remove("control");
            said
        };
        assert_eq!(config(&short), config(&long));
    }
    assert!(taken > 30 && refused > 30, "{taken} were taken, {refused} refused");
    assert!(entered > 30 && turned_away > 30, "{entered} got in, {turned_away} did not");
    // Both servers tell the same of them.
    let events = |server: &Server| {
        let last = get(server, "/v1/status")["revision"].clone();
        let mut told = Vec::new();
        let each = |event: Value| {
            let is_last = event["data"]["revision"] == last;
            if event["kind"] != "note" {
                let event = plain(server, &event);
                told.push(json!([event["kind"], event["sentence"], event["data"]["changes"]]));
            }
            Ok(!is_last)
        };
        client(server).events(Ask::new("GET".parse().unwrap(), "/v1/events?after=0"), each).unwrap();
        told
    };
    assert_eq!(events(&short), events(&long));
    for server in [short, long] {
        server.terminate();
    }
}

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
