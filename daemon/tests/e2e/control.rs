//! The control plane of a running server: the API, held against its own document; `mqfq ctl`; curl; and clients that
//! disagree, lie or hang.

use crate::client::{CMD_READ, Client as NbdClient, Request};
use crate::server::{Folder, Server, mqfq, pattern};
use mqfq_control::client::{Address, Ask, Client, Reply};
use mqfq_testing::tools::{need, run_ok};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Output;

/// Two tenants of one device, the second without a weight of its own.
pub const CONFIG: &str = "# what we sell
[server]
workers = 2
[control]
listen = \"unix:@/control.sock\"
[device.d]
kind = \"memory\"
size = \"8MiB\"
# web pays for three
[tenant.web]
weight = 300 # three
[tenant.db]
[export.web]
device = \"d\"
tenant = \"web\"
size = \"4MiB\"
nbd = \"unix:@/web.sock\"
[export.db]
device = \"d\"
tenant = \"db\"
offset = \"4MiB\"
nbd = \"unix:@/db.sock\"
";

pub fn client(server: &Server) -> Client {
    Client { address: Address::Unix(server.join("control.sock")), token: None, trust: None, patience: None }
}

/// Asks, and checks the answer against the document: the route has its status, and the body has its form.
pub fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> (u16, Value) {
    let mut request = Ask::new(method.parse().unwrap(), path);
    for (name, value) in headers {
        request = request.header(name.parse().unwrap(), *value);
    }
    if let Some(body) = body {
        request = match headers.iter().any(|(name, _)| *name == "content-type") {
            true => request.bytes(body),
            false => request.body("application/json", body),
        };
    }
    let reply = client(server).ask(request).unwrap();
    let status = reply.status.as_u16();
    let said: Value = serde_json::from_slice(&reply.body).unwrap_or_else(|error| panic!("{error}: {reply:?}"));
    document::hold(method, path, &reply, &said);
    (status, said)
}

pub fn get(server: &Server, path: &str) -> Value {
    let (status, said) = ask(server, "GET", path, &[], None);
    assert_eq!(status, 200, "{path}: {said}");
    said
}

/// The status and the sentence of a refusal.
pub fn refused((status, said): (u16, Value)) -> (u16, String) {
    (status, said["detail"].as_str().unwrap_or_else(|| panic!("{status}: {said}")).to_owned())
}

/// `mqfq ctl` for this server.
pub fn ctl(server: &Server, args: &[&str]) -> Output {
    let socket = format!("unix:{}", server.join("control.sock").display());
    mqfq(&[&["ctl", "--socket", &socket], args].concat())
}

pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

pub fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks a value against a JSON schema: the parts of JSON Schema that our document uses.
mod document {
    use super::*;
    use std::sync::LazyLock;

    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(mqfq_control::api::OPENAPI).unwrap());

    fn resolved(schema: &Value) -> &Value {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => resolved(DOCUMENT.pointer(&reference[1..]).unwrap()),
            None => schema,
        }
    }

    /// Where `value` is not what `schema` says, in words.
    pub fn differs(schema: &Value, value: &Value, at: &str) -> Option<String> {
        let schema = resolved(schema);
        let is_type = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("boolean") => value.is_boolean(),
            None => true,
            Some(other) => panic!("the test does not know type {other}"),
        };
        if !is_type {
            return Some(format!("{at}: {value} is no {}", schema["type"]));
        }
        if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
            return Some(format!("{at}: {value} is none of {}", schema["enum"]));
        }
        for key in schema["required"].as_array().into_iter().flatten() {
            if value.get(key.as_str().unwrap()).is_none() {
                return Some(format!("{at}: {key} is missing"));
            }
        }
        for (key, inner) in value.as_object().into_iter().flatten() {
            let at = format!("{at}.{key}");
            let of_key = schema["properties"].get(key);
            let found = match (of_key, &schema["additionalProperties"]) {
                (Some(of_key), _) => differs(of_key, inner, &at),
                (None, Value::Bool(false)) => Some(format!("{at} is not in the document")),
                (None, Value::Null) => None,
                (None, others) => differs(others, inner, &at),
            };
            if found.is_some() {
                return found;
            }
        }
        let items = value.as_array().into_iter().flatten().enumerate();
        items.filter_map(|(index, item)| differs(schema.get("items")?, item, &format!("{at}[{index}]"))).next()
    }

    /// Fails if the answer is none that the document has for this request.
    pub fn hold(method: &str, path: &str, reply: &Reply, said: &Value) {
        let path = path.split('?').next().unwrap();
        let one = |kind: &str| path.strip_prefix(kind).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1);
        let kinds = ["/v1/devices", "/v1/groups", "/v1/tenants", "/v1/exports"];
        let known = kinds.iter().find(|kind| one(kind)).map_or(path.to_owned(), |kind| format!("{kind}/{{name}}"));
        let known = if one("/v1/why") { "/v1/why/{tenant}".to_owned() } else { known };
        let known = if path.ends_with("/reopen") { format!("{known}/reopen") } else { known };
        let (status, media_type) = (reply.status.as_str(), reply.headers["content-type"].to_str().unwrap());
        let operation = &DOCUMENT["paths"][&known][method.to_lowercase()];
        let response = match operation["responses"].get(status) {
            Some(response) => resolved(response),
            // The document does not speak of unknown paths.
            None if ["404", "405"].contains(&status) && operation.is_null() => {
                &DOCUMENT["components"]["responses"]["404"]
            }
            None => panic!("{method} {path}: {status} is not in the document: {said}"),
        };
        let content = response["content"].get(media_type);
        let content = content.unwrap_or_else(|| panic!("{method} {path}: {status} with {media_type}: {said}"));
        if let Some(difference) = differs(&content["schema"], said, "answer") {
            panic!("{method} {path}: {difference}");
        }
    }
}

#[test]
fn every_route_answers_as_the_document_says_and_every_refusal_is_a_sentence() {
    let server = Server::start(CONFIG);
    let status = get(&server, "/v1/status");
    assert_eq!((&status["revision"], &status["things"]["exports"]), (&1.into(), &2.into()));
    assert!(get(&server, "/v1/counters")["devices"][0]["tenants"].is_array());
    assert_eq!(get(&server, "/v1/openapi.json")["openapi"], "3.1.0");
    assert!(get(&server, "/v1/why").is_array());
    let missing = ask(&server, "GET", "/v1/why/nobody", &[], None);
    assert!(
        missing.0 == 404 && missing.1["detail"].as_str().unwrap().starts_with("there is no tenant or export nobody")
    );
    for kind in ["devices", "groups", "tenants", "exports"] {
        assert!(get(&server, &format!("/v1/{kind}"))["things"].is_array());
    }
    let web = get(&server, "/v1/tenants/web");
    assert_eq!((&web["configured"]["weight"], &web["in_force"]["weight"]), (&300.into(), &300.into()));
    assert_eq!(web["set_by"]["weight"]["via"], "file");
    assert_eq!(get(&server, "/v1/exports/db")["in_force"]["size"], 4 << 20, "up to the device's end");
    assert_eq!(get(&server, "/v1/devices/d")["in_force"]["policy"], "mqfq");

    let change = |method: &str, path: &str, body: &str| ask(&server, method, path, &[], Some(body));
    let (status, said) = change("PATCH", "/v1/tenants/web", "{\"weight\": 400}");
    assert_eq!((status, &said["revision"]), (200, &2.into()), "{said}");
    assert_eq!(said["done"], json!(["tenant web on device d: weight 300 -> 400"]));
    let (_, again) = change("PATCH", "/v1/tenants/web", "{\"weight\": 400}");
    assert_eq!((&again["revision"], &again["changed"]), (&2.into(), &false.into()), "idempotent");
    let set_by = &get(&server, "/v1/tenants/web")["set_by"]["weight"];
    assert_eq!((&set_by["via"], &set_by["pid"]), (&"ctl".into(), &std::process::id().into()));
    let (status, said) = change("PUT", "/v1/tenants/new", "{\"weight\": 7}");
    assert_eq!((status, &said["created"]), (201, &true.into()), "{said}");
    assert_eq!(get(&server, "/v1/tenants/new")["in_force"], json!({}), "no export uses it");
    assert_eq!(ask(&server, "DELETE", "/v1/tenants/new", &[], None).0, 200);
    let (status, tried) = change("PUT", "/v1/tenants/web?dry-run", "{}");
    assert_eq!((status, &tried["dry_run"], &tried["revision"]), (200, &true.into(), &4.into()));
    assert_eq!(tried["done"], json!(["tenant web on device d: weight 400 -> 100"]));
    assert_eq!(get(&server, "/v1/tenants/web")["in_force"]["weight"], 400);

    let config = get(&server, "/v1/config");
    assert_eq!((&config["revision"], &config["config"]["tenant"]["web"]["weight"]), (&4.into(), &400.into()));
    let (status, same) = change("PUT", "/v1/config", &config["config"].to_string());
    assert_eq!((status, &same["changed"]), (200, &false.into()));
    let file = get(&server, "/v1/config/file")["text"].as_str().unwrap().to_owned();
    let toml: &[(&str, &str)] = &[("content-type", "application/toml")];
    let unsaved = refused(ask(&server, "POST", "/v1/config/reload", &[], None));
    assert!(unsaved.0 == 409 && unsaved.1.contains("tenant.web.weight 300 -> 400"), "{unsaved:?}");
    let (status, back) = ask(&server, "PUT", "/v1/config", toml, Some(&file));
    assert_eq!((status, back["changes"][0]["key"].as_str()), (200, Some("tenant.web.weight")), "{back}");
    assert_eq!(ask(&server, "POST", "/v1/config/reload", &[], None).0, 200);
    let saved = Ask::new("POST".parse().unwrap(), "/v1/config/saved").body("application/toml", "# nothing\n");
    assert_eq!(client(&server).ask(saved).unwrap().status.as_u16(), 204);
    assert_eq!(get(&server, "/v1/config/file")["text"], "# nothing\n");

    for (method, path, headers, body, status, sentence) in [
        (
            "PUT",
            "/v1/tenants/web",
            &[][..],
            "{\"wieght\": 1}",
            400,
            "tenant.web.wieght: unknown key, allowed are weight, group, ",
        ),
        (
            "PATCH",
            "/v1/tenants/web",
            &[],
            "{\"weight\": 0}",
            400,
            "tenant.web.weight: 0 is out of range, allowed is 1 to 10000",
        ),
        (
            "PATCH",
            "/v1/tenants/web",
            &[],
            "{\"weight\": 1, \"weight\": 2}",
            400,
            "weight stands here for the second time at line 1 ",
        ),
        ("PATCH", "/v1/tenants/web", &[], "[1]", 400, "the body is no JSON object, allowed is an object of keys"),
        (
            "PATCH",
            "/v1/tenants/web?force",
            &[],
            "{}",
            400,
            "\"force\" is no parameter of this path, allowed is dry-run",
        ),
        ("PATCH", "/v1/tenants/nobody", &[], "{}", 404, "there is no tenant \"nobody\""),
        ("DELETE", "/v1/tenants/web", &[], "", 409, "tenant web still has export web, allowed is to remove one"),
        ("PUT", "/v1/exports/x", &[], "{\"device\":\"d\",\"tenant\":\"web\",\"nbd\":\"unix:/x\"}", 400, "export.x: "),
        (
            "PATCH",
            "/v1/tenants/web",
            &[("if-match", "\"1\"")],
            "{\"weight\": 1}",
            412,
            "tenant.web: it is at revision 5, the change is about revision 1",
        ),
        (
            "PUT",
            "/v1/tenants/web",
            &[("if-none-match", "*")],
            "{}",
            412,
            "tenant.web: it is there already, at revision 5",
        ),
        (
            "PUT",
            "/v1/tenants/web",
            &[("content-type", "text/plain")],
            "{}",
            415,
            "Content-Type: \"text/plain\" does not go with this path, allowed is application/json",
        ),
        (
            "PUT",
            "/v1/config",
            toml,
            "[tenant.web]\nweight = 0\n",
            400,
            "config:2: tenant.web.weight: 0 is out of range, allowed is 1 to 10000",
        ),
        ("PUT", "/v1/config", toml, "[tenant", 400, "config:1: not valid TOML: "),
        (
            "PUT",
            "/v1/config",
            &[("if-match", "\"1\"")],
            "{}",
            412,
            "the config: it is at revision 5, the change is about revision 1",
        ),
    ] {
        let (got, said) = refused(ask(&server, method, path, headers, Some(body)));
        assert_eq!(got, status, "{method} {path} {body}: {said}");
        assert!(said.starts_with(sentence), "{method} {path}: {said}");
    }
    assert_eq!(refused(ask(&server, "GET", "/v1/none", &[], None)).0, 404);
    assert_eq!(refused(ask(&server, "DELETE", "/v1/status", &[], None)).0, 405);
    let long = format!("{{\"description\": \"{}\"}}", "x".repeat(70_000));
    let (status, said) = refused(ask(&server, "PUT", "/v1/exports/web", &[], Some(&long)));
    assert_eq!((status, said.as_str()), (413, "the body has more than 65536 bytes, which is the most that is allowed"));
    assert_eq!(get(&server, "/v1/status")["revision"], 5, "what was refused changed nothing");
    server.terminate();
}

/// A weight and caps go a short way where they can; clients see the same as after the long one.
#[test]
fn a_change_of_one_tenant_says_and_does_the_same_by_either_way() {
    let [short, long] = [(); 2].map(|()| Server::start(CONFIG));
    let all = |server: &Server| {
        let mut said = get(server, "/v1/tenants");
        for thing in said["things"].as_array_mut().unwrap() {
            for set_by in thing["set_by"].as_object_mut().unwrap().values_mut() {
                set_by.as_object_mut().unwrap().remove("at");
            }
        }
        said
    };
    for (patch, put) in [
        (json!({ "weight": 40 }), json!({ "weight": 40 })),
        (json!({ "max-iops": 500, "weight": 41 }), json!({ "max-iops": 500, "weight": 41 })),
        (json!({ "max-iops": null, "max-bytes-per-s": "1MiB" }), json!({ "weight": 41, "max-bytes-per-s": "1MiB" })),
        (json!({ "weight": null }), json!({ "max-bytes-per-s": "1MiB" })),
    ] {
        let (patch, put) = (patch.to_string(), put.to_string());
        let one = ask(&short, "PATCH", "/v1/tenants/web", &[], Some(&patch));
        let other = ask(&long, "PUT", "/v1/tenants/web", &[], Some(&put));
        assert_eq!((one.0, &one), (200, &other));
        assert_eq!(all(&short), all(&long));
    }
    let wrong = |server: &Server| refused(ask(server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\":0}")));
    assert_eq!(wrong(&short), wrong(&long));
    // The next change of everything finds all of it.
    let memory = "{\"memory\":\"1MiB\"}";
    let one = ask(&short, "PATCH", "/v1/tenants/db", &[], Some(memory));
    assert_eq!(one, ask(&long, "PATCH", "/v1/tenants/db", &[], Some(memory)));
}

#[test]
fn two_controllers_at_once_never_mix_and_the_slower_is_told() {
    let server = Server::start(CONFIG);
    const ROUNDS: u64 = 40;
    // Each reads, adds one, and writes only if the revision is the same: no addition is lost.
    let controller = |_: usize| {
        let (mut done, mut stale) = (0, 0);
        while done < ROUNDS {
            let web = get(&server, "/v1/tenants/web");
            let (weight, tag) = (web["configured"]["weight"].as_u64().unwrap(), format!("\"{}\"", web["revision"]));
            let body = json!({ "weight": weight + 1 }).to_string();
            match ask(&server, "PATCH", "/v1/tenants/web", &[("if-match", &tag)], Some(&body)) {
                (200, _) => done += 1,
                (412, _) => stale += 1,
                other => panic!("{other:?}"),
            }
        }
        stale
    };
    let stale: u64 = std::thread::scope(|scope| {
        let controllers = [0, 1].map(|number| scope.spawn(move || controller(number)));
        controllers.map(|controller| controller.join().unwrap()).into_iter().sum()
    });
    let web = get(&server, "/v1/tenants/web");
    assert_eq!(web["configured"]["weight"], 300 + 2 * ROUNDS, "{stale} changes came too late");
    assert_eq!(web["in_force"]["weight"], 300 + 2 * ROUNDS);
    assert_eq!(get(&server, "/v1/status")["revision"], 1 + 2 * ROUNDS);
    server.terminate();
}

#[test]
fn of_a_thousand_streams_as_many_are_open_as_fit_and_the_others_give_their_places_back() {
    let server = Server::start(CONFIG);
    let open = |path: &str| {
        let mut stream = UnixStream::connect(server.join("control.sock")).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        (stream, String::from_utf8(begin.to_vec()).unwrap())
    };
    let mut streams = Vec::new();
    for number in 0..1000 {
        let (mut stream, said) = open("/v1/live");
        if said == "HTTP/1.1 200" {
            streams.push(stream);
        } else {
            let mut rest = String::new();
            // To its end: nothing is kept for it.
            stream.read_to_string(&mut rest).unwrap();
            assert!(
                said == "HTTP/1.1 503" && rest.contains("16 streams of figures are open"),
                "{number}: {said} {rest}"
            );
        }
    }
    assert_eq!(streams.len(), 16);
    assert!(said(&ctl(&server, &["status"])).contains("revision"));
    server.terminate();
}

#[test]
fn clients_that_hang_and_lie_cost_nobody_else_anything() {
    let server = Server::start(CONFIG);
    // As many as there are places but one, some silent, some in the middle of a header or a body.
    let begun: [&[u8]; 4] = [
        b"",
        b"GET /v1/sta",
        b"PUT /v1/tenants/web HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00garbage",
    ];
    let hanging: Vec<UnixStream> = (0..mqfq_control::listen::CONNECTIONS_MAX - 1)
        .map(|number| {
            let mut stream = UnixStream::connect(server.join("control.sock")).unwrap();
            stream.write_all(begun[number % begun.len()]).unwrap();
            stream
        })
        .collect();
    assert_eq!(get(&server, "/v1/status")["revision"], 1);
    assert_eq!(ask(&server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\": 5}")).0, 200);
    let mut tenant = NbdClient::connect(&server.socket("web"), "web");
    let bytes = pattern(8192, 7);
    tenant.write(4096, &bytes).unwrap();
    assert_eq!(tenant.read(4096, 8192).unwrap(), bytes);
    drop((tenant, hanging));
    server.terminate();
}

#[test]
fn sighup_goes_the_way_of_all_changes() {
    let mut server = Server::start(CONFIG);
    let path = server.join("config.toml");
    let edit = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&path).unwrap().replace(from, to);
        std::fs::write(&path, text).unwrap();
    };
    assert_eq!(ask(&server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\": 400}")).0, 200);
    // The file has this change, and another one.
    edit("weight = 300", "weight = 400");
    edit("[tenant.db]", "[tenant.db]\nweight = 7\nmax-iops = 900000");
    server.signal(libc::SIGHUP);
    let reloaded = server.next_line();
    assert_eq!((&reloaded["reloaded"], &reloaded["revision"]), (&true.into(), &3.into()), "{reloaded}");
    assert_eq!(reloaded["changes"][0]["to"], "7");
    let db = get(&server, "/v1/tenants/db");
    assert_eq!((&db["in_force"]["weight"], &db["set_by"]["weight"]["via"]), (&7.into(), &"sighup".into()));
    let mut seen = Vec::new();
    let each = |event: mqfq_control::events::Event| {
        let told = event.data["changes"].as_array().unwrap().len();
        assert_eq!(event.data["keys"], told, "{}", event.data);
        seen.push((event.kind, event.data["by"]["via"].clone(), event.data["revision"].clone(), told));
        Ok(seen.len() < 2)
    };
    client(&server).events(Ask::new("GET".parse().unwrap(), "/v1/events?after=0"), each).unwrap();
    let change = |via: &str, revision: u64, keys| ("change".to_owned(), Value::from(via), Value::from(revision), keys);
    assert_eq!(seen, [change("ctl", 2, 1), change("sighup", 3, 2)]);
    edit("control.sock", "other.sock");
    server.signal(libc::SIGHUP);
    let refused = "[control] cannot change while serving, allowed is to change it by a restart";
    assert_eq!(server.next_line()["error"], refused);
    server.terminate();
}

#[test]
fn what_the_server_says_of_trouble_is_an_event_of_the_documents_form() {
    let folder = mqfq_testing::Folder::new();
    let file = folder.join("disk");
    std::fs::File::create(&file).and_then(|file| file.set_len(8 << 20)).unwrap();
    let config = CONFIG.replace("kind = \"memory\"\nsize = \"8MiB\"", "kind = \"file\"\npath = \"@/disk\"");
    let server = Server::start_in(folder, &config);
    std::fs::remove_file(&file).unwrap();
    let mut trouble = None;
    let each = |event: mqfq_control::events::Event| {
        let value = serde_json::to_value(&event).unwrap();
        assert_eq!(document::differs(&json!({ "$ref": "#/components/schemas/Event" }), &value, "event"), None);
        trouble = (event.kind == "trouble").then_some(event);
        Ok(trouble.is_none())
    };
    client(&server).events(Ask::new("GET".parse().unwrap(), "/v1/events?after=0"), each).unwrap();
    let trouble = trouble.unwrap();
    assert!(trouble.sentence.starts_with("device d: ") && trouble.sentence.contains("was removed"), "{trouble:?}");
    assert_eq!(trouble.data["device"], "d");
    let last = said(&ctl(&server, &["events", "--after", "0", "--count", "1"]));
    assert!(last.ends_with('\n') && last.contains(" 1 "), "{last}");
    server.terminate();
}

#[test]
fn a_server_that_drains_answers_and_takes_no_change() {
    let mut server = Server::start(CONFIG);
    let mut tenant = NbdClient::connect(&server.socket("web"), "web");
    let request = Request { length_bytes: 1 << 20, ..Request::of(CMD_READ) };
    tenant.send(request, &[]).unwrap();
    // Its bytes are more than a socket holds, so the drain waits until they are read.
    assert_eq!(tenant.reply().unwrap().error, 0);
    server.signal(libc::SIGTERM);
    assert_eq!(server.next_line()["draining"], true);
    while get(&server, "/v1/status")["draining"] != true {}
    let (status, said) = refused(ask(&server, "PATCH", "/v1/tenants/web", &[], Some("{\"weight\": 1}")));
    assert_eq!((status, said.as_str()), (409, "the server drains, and takes no change any more"));
    for path in ["/v1/config/reload", "/v1/devices/d/reopen"] {
        let (status, said) = refused(ask(&server, "POST", path, &[], None));
        assert_eq!((status, said.as_str()), (409, "the server drains, and takes no change any more"), "{path}");
    }
    server.note_with("draining: waits up to 30 s for clients to take their replies");
    tenant.stream.read_exact(&mut vec![0; 1 << 20]).unwrap();
    assert!(tenant.reply().is_none(), "it is closed");
    let tenants = server.next_line()["devices"][0]["tenants"].clone();
    let web = tenants.as_array().unwrap().iter().find(|tenant| tenant["name"] == "web").unwrap().clone();
    assert_eq!(web["transferred_bytes"], 1 << 20);
    assert!(server.wait().0.success());
}

#[test]
fn ctl_changes_shows_and_saves_and_the_file_keeps_its_comments() {
    let server = Server::start(CONFIG);
    let path = server.join("config.toml");
    let text = || std::fs::read_to_string(&path).unwrap();
    let before = text();
    let set = said(&ctl(&server, &["tenant", "set", "web", "--weight", "400"]));
    assert_eq!(set, "tenant.web.weight: 300 -> 400\nin force: tenant web on device d: weight 300 -> 400\nrevision 2\n");
    let shown = said(&ctl(&server, &["tenant", "show", "web"]));
    assert!(shown.lines().any(|line| line.starts_with("weight           400         400       ctl uid")), "{shown}");
    assert!(!shown.contains("class"), "no policy of this program has classes: {shown}");
    assert_eq!(
        said(&ctl(&server, &["tenant", "add", "new", "--weight", "7", "--memory", "1MiB"])).lines().last(),
        Some("revision 3")
    );
    let diff = ctl(&server, &["diff"]);
    assert_eq!((diff.status.code(), &diff.stderr[..]), (Some(1), &[][..]), "as of diff(1): they differ");
    let diff = String::from_utf8(diff.stdout).unwrap();
    let rows: Vec<Vec<&str>> = diff.lines().skip(2).map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(
        rows,
        [["tenant.new.memory", "-", "1MiB"], ["tenant.new.weight", "-", "7"], ["tenant.web.weight", "300", "400"]]
    );
    let file = path.display();
    assert_eq!(said(&ctl(&server, &["save"])), format!("{file}: 3 keys written, revision 3\n"));
    let wanted = before
        .replace("300 # three", "400 # three")
        .replace("[tenant.db]\n", "[tenant.db]\n\n[tenant.new]\nmemory = \"1MiB\"\nweight = 7\n");
    assert_eq!(text(), wanted);
    assert_eq!(said(&ctl(&server, &["diff"])), format!("{file} says what runs\n"));

    // Another process edits the file: a comment harms nothing, a value must not be lost.
    std::fs::write(&path, text().replace("# what we sell", "# sold")).unwrap();
    said(&ctl(&server, &["tenant", "rm", "new"]));
    said(&ctl(&server, &["save"]));
    assert!(text().starts_with("# sold\n") && !text().contains("tenant.new"), "{}", text());
    std::fs::write(&path, text().replace("size = \"4MiB\"", "size = \"4096KiB\"").replace("400 #", "200 #")).unwrap();
    said(&ctl(&server, &["tenant", "set", "web", "--weight", "500"]));
    let refused = refusal(&ctl(&server, &["save"]));
    assert!(
        refused.contains("has changed since the server read it, and differs from what runs in 2 keys"),
        "{refused}"
    );
    assert!(text().contains("200 #"), "nothing was written");
    let tried = said(&ctl(&server, &["apply", path.to_str().unwrap(), "--dry-run"]));
    assert!(tried.contains("\nwould be in force: tenant web on device d: weight 500 -> 200\n"), "{tried}");
    assert!(tried.ends_with("only tried: still revision 5\n") && !tried.contains("\nin force"), "{tried}");
    said(&ctl(&server, &["save", "--force"]));
    assert!(text().contains("500 # three"), "{}", text());
    let bad = server.join("bad.toml");
    std::fs::write(&bad, "\n[tenant.web]\nweight = 0\n").unwrap();
    let refused = refusal(&ctl(&server, &["apply", bad.to_str().unwrap()]));
    let wanted = format!("mqfq: {}:3: tenant.web.weight: 0 is out of range, allowed is 1 to 10000\n", bad.display());
    assert_eq!(refused, wanted);
    server.terminate();
}

#[test]
fn ctl_without_a_server_and_with_a_name_that_is_not_there_says_so() {
    let server = Server::start(CONFIG);
    let refused = refusal(&ctl(&server, &["export", "rm", "none"]));
    assert_eq!(refused, "mqfq: there is no export \"none\"\n");
    let refused = refusal(&ctl(&server, &["tenant", "set", "web", "--weight", "1", "--revision", "9"]));
    assert_eq!(refused, "mqfq: tenant.web: it is at revision 1, the change is about revision 9\n");
    let gone = server.join("gone.sock");
    let diff = mqfq(&["ctl", "diff", "--socket", gone.to_str().unwrap()]);
    assert_eq!(diff.status.code(), Some(2), "nobody knows whether they differ");
    let refused = refusal(&mqfq(&["ctl", "status", "--socket", gone.to_str().unwrap()]));
    let wanted = format!(
        "mqfq: cannot reach a server at unix:{}: No such file or directory; it listens where [control] of its config says\n",
        gone.display()
    );
    assert_eq!(refused, wanted);
    server.terminate();
}

#[test]
fn a_tcp_address_wants_the_token_of_its_file() {
    let folder = mqfq_testing::Folder::new();
    std::fs::write(folder.join("token"), "0123456789abcdef\n").unwrap();
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(folder.join("token"), mode(0o600)).unwrap();
    let control = "listen = [\"unix:@/control.sock\", \"tcp:127.0.0.1:0\"]\ntoken-file = \"@/token\"";
    let config = CONFIG.replace("listen = \"unix:@/control.sock\"", control);
    let server = Server::start_in(folder, &config);
    // Port 0: the state tells which one it became.
    let address = get(&server, "/v1/status")["listen"][1].as_str().unwrap().to_owned();
    let ask = |token: Option<&str>| {
        let (address, token) = (Address::parse(&address).unwrap(), token.map(str::to_owned));
        let client = Client { address, token, trust: None, patience: None };
        client.ask(Ask::new("GET".parse().unwrap(), "/v1/tenants")).unwrap().status.as_u16()
    };
    assert_eq!((ask(None), ask(Some("0123456789abcdeg")), ask(Some("0123456789abcdef"))), (401, 401, 200));
    let token = server.join("token");
    let token = ["--socket", &address, "--token-file", token.to_str().unwrap()];
    let set = said(&mqfq(&[&["ctl", "tenant", "set", "web", "--weight", "2"][..], &token].concat()));
    assert!(set.ends_with("revision 2\n"), "{set}");
    let set_by = &get(&server, "/v1/tenants/web")["set_by"]["weight"];
    assert!(set_by["address"].as_str().unwrap().starts_with("127.0.0.1:") && set_by["uid"].is_null(), "{set_by}");
    server.terminate();
}

#[test]
fn curl_speaks_to_it_over_the_socket() {
    need!("curl");
    let server = Server::start(CONFIG);
    let socket = server.join("control.sock");
    let curl = |args: &[&str]| {
        let fixed = ["-sS", "--max-time", "60", "--unix-socket", socket.to_str().unwrap()];
        run_ok("curl", &[&fixed[..], args].concat())
    };
    let set = curl(&["-X", "PUT", "--json", "{\"weight\": 500}", "http://mqfq/v1/tenants/web"]);
    assert_eq!(serde_json::from_str::<Value>(&set).unwrap()["revision"], 2, "{set}");
    let stale = curl(&[
        "-o",
        "-",
        "-w",
        "\n%{http_code} %{content_type}",
        "-X",
        "DELETE",
        "-H",
        "If-Match: \"1\"",
        "http://mqfq/v1/tenants/web",
    ]);
    assert!(stale.ends_with("\n412 application/problem+json"), "{stale}");
    // A stream of what has happened, until curl has had enough bytes.
    let (_, set_by) = (curl(&["http://mqfq/v1/tenants"]), curl(&["http://mqfq/v1/tenants/web"]));
    assert!(set_by.contains("\"via\":\"http\""), "{set_by}");
    server.terminate();
}

#[test]
fn the_shell_completes_commands_flags_and_the_names_that_are_there() {
    let server = Server::start(CONFIG);
    let socket = format!("--socket=unix:{}", server.join("control.sock").display());
    let complete = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mqfq"));
        let index = words.len().to_string();
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index).env("_CLAP_IFS", "\n");
        let output = command.args([&["--", "mqfq"], words].concat()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["ctl", &socket, "tenant", "set", ""])[..2], ["db", "web"]);
    assert_eq!(complete(&["ctl", &socket, "export", "rm", "w"]), ["web"]);
    assert_eq!(complete(&["ctl", "tenant", "set", "web", "--we"]), ["--weight"]);
    assert_eq!(complete(&["ctl", "sta"]), ["status"]);
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&mqfq(&["completions", shell]));
        assert!(script.contains("COMPLETE") && script.contains("mqfq"), "{script}");
    }
    let pages = server.join("man");
    said(&mqfq(&["man", pages.to_str().unwrap()]));
    let page = std::fs::read_to_string(pages.join("mqfq-ctl-tenant-set.1")).unwrap();
    assert!(page.contains("\\-\\-weight"), "{page}");
    let status = page.find(".SH \"EXIT STATUS\"\n0 done; 1 it could not be done");
    let example = page.find(".SH EXAMPLES\n.nf\nmqfq ctl tenant set web \\-\\-weight 300\n");
    assert!(status.is_some() && example > status, "{page}");
    server.terminate();
}

#[test]
fn a_device_whose_file_was_cut_is_shown_and_comes_back_by_reopen_while_others_are_served() {
    const MIB: u64 = 1 << 20;
    const EIO: u32 = 5;
    let folder = Folder::new();
    let (path, other) = (folder.file("disk", MIB), folder.file("other", MIB));
    let config = format!("{CONFIG}[device.f]\nkind = \"file\"\npath = \"@/disk\"\non-failure = \"read-only\"\n")
        + "[export.e]\ndevice = \"f\"\ntenant = \"web\"\nnbd = [\"unix:@/e.sock\", \"unix:@/web.sock\"]\n";
    let server = Server::start_in(folder, &config);
    let reopen = || refused(ask(&server, "POST", "/v1/devices/f/reopen", &[], None));
    let connect = |name: &str| NbdClient::connect(&server.socket(name), name);
    let (mut bystander, mut client) = (connect("web"), connect("e"));
    client.write(MIB / 2, &pattern(4096, 3)).unwrap();
    client.flush().unwrap();
    assert_eq!(get(&server, "/v1/status")["troubled"], Value::Null);
    let resize = |bytes| std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    resize(MIB / 4);
    assert_eq!(client.read(MIB / 2, 4096), Err(EIO));
    assert_eq!(get(&server, "/v1/status")["troubled"], json!({ "f": "cut" }));
    let shown = said(&ctl(&server, &["status"]));
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["device", "f", "cut"])), "{shown}");

    // A file that is not there is refused before a client is disconnected.
    std::fs::rename(&path, server.join("aside")).unwrap();
    let (status, sentence) = reopen();
    assert_eq!((status, sentence.starts_with("device.f.path: cannot open ")), (409, true), "{sentence}");
    std::fs::rename(server.join("aside"), &path).unwrap();
    client.read(0, 4096).unwrap();
    let missing = refused(ask(&server, "POST", "/v1/devices/x/reopen", &[], None));
    assert_eq!(missing, (404, "there is no device \"x\"".to_owned()));

    let (status, sentence) = refused(ask(&server, "POST", "/v1/devices/d/reopen", &[], None));
    assert_eq!((status, sentence.starts_with("device d would lose the bytes")), (409, true), "{sentence}");

    // The file is whole again: only clients that relied on the lost bytes are disconnected.
    resize(MIB);
    assert_eq!(client.flush(), Err(EIO), "it does not help before");
    assert_eq!(
        said(&ctl(&server, &["device", "reopen", "f"])),
        "in force: device f was closed and opened anew\nrevision 1\n"
    );
    assert!(client.is_closed());
    let mut client = connect("e");
    assert_eq!(client.read(MIB / 2, 4096).unwrap(), [0; 4096], "what was cut off is gone");
    client.write(0, &pattern(4096, 5)).unwrap();
    client.flush().unwrap();
    assert_eq!(get(&server, "/v1/status")["troubled"], Value::Null);
    bystander.write(0, &pattern(4096, 7)).unwrap();

    // Another file under the name is served then.
    std::fs::rename(other, &path).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), pattern(4096, 5));
    let (status, applied) = ask(&server, "POST", "/v1/devices/f/reopen", &[], None);
    assert_eq!((status, &applied["changed"]), (200, &json!(true)), "{applied}");
    let mut client = connect("e");
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096]);
    assert_eq!(bystander.read(0, 4096).unwrap(), pattern(4096, 7));
    drop((client, bystander));
    server.terminate();
}

#[test]
fn a_reopen_whose_second_step_fails_leaves_a_closed_device_that_the_next_one_opens() {
    const MIB: u64 = 1 << 20;
    let folder = Folder::new();
    let (path, other) = (folder.file("disk", MIB), folder.file("other", MIB));
    let config = format!("{CONFIG}[device.f]\nkind = \"file\"\npath = \"@/disk\"\n")
        + "[export.e]\ndevice = \"f\"\ntenant = \"web\"\nnbd = \"unix:@/e.sock\"\n";
    let server = Server::start_in(folder, &config);
    let reopen = || ask(&server, "POST", "/v1/devices/f/reopen", &[], None);
    let mut bystander = NbdClient::connect(&server.socket("web"), "web");
    let mut client = NbdClient::connect(&server.socket("e"), "e");
    client.write(0, &pattern(4096, 3)).unwrap();
    // The file of that name looks right, but another process has its lock: it shows when it is opened.
    let lock = std::fs::File::open(&other).unwrap();
    lock.lock().unwrap();
    std::fs::rename(&other, &path).unwrap();
    for _ in 0..2 {
        let (status, sentence) = refused(reopen());
        assert_eq!(status, 409, "{sentence}");
        assert!(sentence.starts_with("device f serves nobody until it can be reopened: "), "{sentence}");
        assert_eq!(get(&server, "/v1/status")["troubled"], json!({ "f": "closed" }));
        bystander.write(0, &pattern(4096, 7)).unwrap();
    }
    assert!(client.is_closed());
    for (method, tenant) in [("PUT", "late"), ("PATCH", "web")] {
        let (status, _) = refused(ask(&server, method, &format!("/v1/tenants/{tenant}"), &[], Some("{\"weight\":7}")));
        assert_ne!(status, 200, "a change would open it as well, and cannot");
    }
    drop(lock);
    assert_eq!(reopen().0, 200);
    assert_eq!(get(&server, "/v1/status")["troubled"], Value::Null);
    let mut client = NbdClient::connect(&server.socket("e"), "e");
    assert_eq!(client.read(0, 4096).unwrap(), [0; 4096], "the file that has the name now");
    client.write(0, &pattern(4096, 5)).unwrap();
    client.flush().unwrap();
    assert_eq!(bystander.read(0, 4096).unwrap(), pattern(4096, 7));
    drop((client, bystander));
    server.terminate();
}
