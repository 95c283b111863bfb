//! Generated changes of tenants and exports, right and wrong: the short way of the server says and does what the long
//! one does.

use crate::control::{CONFIG, ask, client, get};
use crate::server::Server;
use mqfq_control::client::Ask;
use serde_json::{Value, json};

/// A server that warns reads and checks everything at each change; one that does not reads the section that is changed.
#[test]
fn generated_changes_say_and_do_the_same_by_either_way() {
    const UNUSED: &str = "[device.unused]\nkind = \"memory\"\nsize = \"1MiB\"\n";
    let [short, long] = ["", UNUSED].map(|more| Server::start(&format!("{CONFIG}{more}")));
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
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..250 {
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
        ]);
        let more = [
            json!({}),
            json!({ "shared": true }),
            json!({ "allow-uids": [0, 7], "description": "some" }),
            json!({ "payload-max": "64KiB", "max-bytes-per-s": "1MiB" }),
            json!({ "weight": 7 }),
        ];
        // Of ten exports one has a weight: with one all changes are the long ones.
        let more = &more[random.of(&[0, 0, 0, 1, 1, 2, 2, 3, 3, 4])];
        let export = |server: &Server, nbd: &[&str]| {
            let nbd: Vec<String> = nbd.iter().map(|path| format!("unix:{}", server.join(path).display())).collect();
            let mut keys = json!({ "device": device, "tenant": whose, "offset": offset, "size": size, "nbd": nbd });
            keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            keys.to_string()
        };
        let nbd = random.of(&[&["web.sock"][..], &["other.sock"], &["own.sock", "web.sock"], &["own.sock"]]);
        let patch = json!({ "size": size, "read-only": random.chance(2), "max-iops": 5000 }).to_string();
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
    // Everybody is told the same of them.
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
