//! Generated changes of tenants and exports, right and wrong: the server's short way says and does the same as the long
//! one.

use crate::client::Handshake;
use crate::control::{CONFIG, ask, client, get};
use crate::server::{Folder, Server};
use mqfq_control::client::Ask;
use mqfq_testing::authority::Authority;
use mqfq_testing::user;
use serde_json::{Value, json};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

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
