//! TLS with clients that are not ours: libnbd (GnuTLS), QEMU, fio; certificates, rotation, users of unix sockets.
//! And the control plane's TCP address with TLS: curl and `mqfq ctl` over it, refused clients, other files in force.

use crate::server::{Folder, Server, arg, mqfq};
use mqfq_control::admission::STRANGERS_MAX;
use mqfq_control::listen::CONNECTIONS_MAX;
use mqfq_testing::authority::Authority;
use mqfq_testing::machine;
use mqfq_testing::tools::{need, run, run_ok, uri};
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const TLS: &str =
    "[tls]\ncertificate = \"@/server-cert.pem\"\nkey = \"@/server-key.pem\"\nclient-ca = \"@/ca-cert.pem\"\n";

/// Exports a and b of tenants with the clients a.example and b.example, by TCP on loopback.
fn exports(more: &str) -> String {
    let mut config = format!("{TLS}{more}[device.d]\nkind = \"memory\"\nsize = \"16MiB\"\n");
    for (name, offset) in [("a", 0), ("b", 8)] {
        config += &format!(
            "[tenant.{name}]\nidentity = \"dns:{name}.example\"\n[export.{name}]\ndevice = \"d\"\ntenant = \"{name}\"\n\
             offset = \"{offset}MiB\"\nsize = \"8MiB\"\nnbd = \"tcp:127.0.0.1:0\"\n"
        );
    }
    config
}

fn server() -> (Server, Authority, PathBuf, PathBuf) {
    let (folder, authority) = (Folder::new(), Authority::new());
    authority.sign(folder.path(), "server", "localhost");
    let (a, b) = (authority.client(&folder, "a"), authority.client(&folder, "b"));
    (Server::start_in(folder, &exports("")), authority, a, b)
}

fn port(server: &Server) -> String {
    let address = server.ready["exports"][0]["nbd"][0].as_str().unwrap();
    address.rsplit_once(':').unwrap().1.to_owned()
}

fn nbds(server: &Server, export: &str, client: &Path) -> String {
    format!("nbds://localhost:{}/{export}?tls-certificates={}", port(server), client.display())
}

/// Number of times that clients broke a rule, at all addresses.
fn broken(stats: &Value, rule: &str) -> u64 {
    let listeners = stats["listeners"].as_array().unwrap();
    listeners.iter().filter_map(|listener| listener["broken_rules"][rule].as_u64()).sum()
}

#[test]
fn copies_by_libnbd_and_qemu_are_equal_and_each_client_sees_its_own_export() {
    need!("nbdinfo", "nbdcopy", "qemu-img", "cmp");
    let _machine = machine::shared();
    let (server, authority, a, b) = server();
    let listed = run_ok("nbdinfo", &["--json", "--list", &nbds(&server, "", &a)]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let names: Vec<&str> =
        listed["exports"].as_array().unwrap().iter().filter_map(|export| export["export-name"].as_str()).collect();
    assert_eq!((names, &listed["TLS"]), (vec!["a"], &Value::Bool(true)), "{listed}");

    let source = server.folder().patterned_file("source", 8 << 20, 1);
    let (back, other) = (server.join("back"), server.join("other"));
    run_ok("nbdcopy", &["--flush", arg(&source), &nbds(&server, "a", &a)]);
    run_ok("nbdcopy", &[&nbds(&server, "a", &a), arg(&back)]);
    run_ok("cmp", &[arg(&source), arg(&back)]);
    let credentials = format!("tls-creds-x509,id=t,dir={},endpoint=client", a.display());
    let image = format!("driver=nbd,host=localhost,port={},export=a,tls-creds=t", port(&server));
    run_ok("qemu-img", &["convert", "--object", &credentials, "--image-opts", &image, "-O", "raw", arg(&other)]);
    run_ok("cmp", &[arg(&source), arg(&other)]);

    let none = server.join("none");
    fs::create_dir(&none).unwrap();
    fs::copy(a.join("ca-cert.pem"), none.join("ca-cert.pem")).unwrap();
    let of_another = Authority::new().client(server.folder(), "stranger");
    fs::copy(a.join("ca-cert.pem"), of_another.join("ca-cert.pem")).unwrap();
    drop(authority);
    for (what, at) in [
        ("another's export", nbds(&server, "a", &b)),
        ("an export that there is not", nbds(&server, "c", &b)),
        ("no certificate", nbds(&server, "a", &none)),
        ("a certificate of another authority", nbds(&server, "a", &of_another)),
        ("no TLS", format!("nbd://localhost:{}/a", port(&server))),
    ] {
        let output = run("nbdinfo", &[&at]);
        assert!(!output.status.success(), "{what}: {output:?}");
    }
    let stats = server.terminate();
    assert_eq!(broken(&stats, "forbidden_export").min(1), 1, "{stats}");
    assert_eq!(broken(&stats, "tls_broken"), 2, "{stats}");
    assert_eq!(broken(&stats, "tls_required").min(1), 1, "{stats}");
}

#[test]
fn fio_finds_what_it_wrote_under_tls() {
    need!("fio", "setpriv");
    let _machine = machine::shared();
    let (server, _authority, a, _) = server();
    // libnbd looks into the home of a user other than root, and fio lets no address say otherwise.
    let home = server.join("home/.pki/libnbd");
    fs::create_dir_all(&home).unwrap();
    for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        fs::copy(a.join(file), home.join(file)).unwrap();
        fs::set_permissions(home.join(file), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let mut path = home.clone();
    while path.starts_with(server.folder().path()) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.pop();
    }
    let (job, home) =
        (format!("--uri=nbds://localhost:{}/a", port(&server)), format!("HOME={}/home", arg(server.folder().path())));
    let fio = [
        "env",
        &home,
        "fio",
        "--name=j",
        "--ioengine=nbd",
        &job,
        "--rw=randrw",
        "--bs=4k-64k",
        "--size=4M",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--verify_fatal=1",
        "--thread",
        "--output-format=json",
    ];
    // SAFETY: no memory is involved.
    let is_root = unsafe { libc::geteuid() } == 0;
    let said = match is_root {
        true => run_ok("setpriv", &[&["--reuid=65534", "--regid=65534", "--clear-groups"], &fio[..]].concat()),
        false => run_ok(fio[0], &fio[1..]),
    };
    let json: Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    assert_eq!(json["jobs"][0]["error"], 0, "{said}");
    server.terminate();
}

#[test]
fn other_certificates_are_in_force_from_the_next_connection_and_bad_ones_are_refused_whole() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let (mut server, _old, a, _) = server();
    run_ok("nbdinfo", &["--size", &nbds(&server, "a", &a)]);
    server.signal(libc::SIGHUP);
    assert_eq!(server.next_line()["changes"], Value::Array(vec![]), "the same files");

    let new = Authority::new();
    new.sign(server.folder().path(), "server", "localhost");
    let of_new = new.client(server.folder(), "n");
    new.sign(&of_new, "client", "a.example");
    // In two steps, as files are replaced: a key that is not the certificate's.
    let key = fs::read(server.join("server-key.pem")).unwrap();
    fs::copy(of_new.join("client-key.pem"), server.join("server-key.pem")).unwrap();
    server.signal(libc::SIGHUP);
    let refused = server.next_line();
    assert_eq!(refused["reloaded"], false, "{refused}");
    let why = format!("tls.key: {} is not the key of the certificate", server.join("server-key.pem").display());
    assert!(refused["error"].as_str().unwrap().ends_with(&why), "{refused}");
    run_ok("nbdinfo", &["--size", &nbds(&server, "a", &a)]);

    fs::write(server.join("server-key.pem"), key).unwrap();
    server.signal(libc::SIGHUP);
    let reloaded = server.next_line();
    assert_eq!((&reloaded["reloaded"], &reloaded["changes"][0]["key"]), (&true.into(), &"tls".into()), "{reloaded}");
    run_ok("nbdinfo", &["--size", &nbds(&server, "a", &of_new)]);
    assert!(
        !run("nbdinfo", &["--size", &nbds(&server, "a", &a)]).status.success(),
        "the old authority's is a stranger"
    );
    server.terminate();
}

#[test]
fn a_certificate_is_revoked_by_a_reload_and_a_list_that_is_none_changes_nothing() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let (folder, authority) = (Folder::new(), Authority::new());
    authority.sign(folder.path(), "server", "localhost");
    let (a, b) = (authority.client(&folder, "a"), authority.client(&folder, "b"));
    let list = folder.join("revoked.pem");
    authority.revoke(&list, &[]);
    let mut server = Server::start_in(folder, &exports("client-crl = \"@/revoked.pem\"\n"));
    let comes_in = |server: &Server, export: &str, client: &Path| {
        run("nbdinfo", &["--size", &nbds(server, export, client)]).status.success()
    };
    assert!(comes_in(&server, "a", &a) && comes_in(&server, "b", &b));
    authority.revoke(&list, &["a.example"]);
    server.signal(libc::SIGHUP);
    let reloaded = server.next_line();
    assert_eq!((&reloaded["reloaded"], &reloaded["changes"][0]["key"]), (&true.into(), &"tls".into()), "{reloaded}");
    assert!(!comes_in(&server, "a", &a) && comes_in(&server, "b", &b));
    fs::write(&list, "no list").unwrap();
    server.signal(libc::SIGHUP);
    let refused = server.next_line();
    let why = format!("tls.client-crl: {} holds no list of revoked certificates in PEM form", list.display());
    assert!(refused["error"].as_str().unwrap().ends_with(&why), "{refused}");
    assert!(!comes_in(&server, "a", &a) && comes_in(&server, "b", &b), "all is as before");
    server.terminate();
}

#[test]
fn a_reload_of_identities_reaches_the_door_under_tls() {
    need!("nbdinfo");
    let _machine = machine::shared();
    let (mut server, _authority, a, b) = server();
    let comes_in =
        |server: &Server, client: &Path| run("nbdinfo", &["--size", &nbds(server, "a", client)]).status.success();
    assert!(comes_in(&server, &a) && !comes_in(&server, &b));
    // In turn the second client comes in, both, neither, the first.
    for (keys, both) in [
        ("identity = [\"cn:x\", \"dns:b.example\"]", [false, true]),
        ("identity = [\"dns:a.example\", \"dns:b.example\"]", [true, true]),
        ("allow-uids = 7\nidentity = \"dns:c.example\"", [false, false]),
        ("", [true, false]),
    ] {
        let text = exports("").replacen("tenant = \"a\"\n", &format!("tenant = \"a\"\n{keys}\n"), 1);
        fs::write(server.join("config.toml"), text.replace('@', arg(server.folder().path()))).unwrap();
        server.signal(libc::SIGHUP);
        let said = server.next_line();
        assert_eq!((&said["reloaded"], &said["changes"][0]["key"]), (&true.into(), &"clients".into()), "{said}");
        assert_eq!([comes_in(&server, &a), comes_in(&server, &b)], both, "{keys}");
    }
    server.terminate();
}

#[test]
fn an_export_takes_the_users_it_names_and_is_not_there_for_others() {
    need!("nbdinfo");
    let _machine = machine::shared();
    // SAFETY: no memory is involved.
    let own = unsafe { libc::geteuid() };
    let mut config = "[device.d]\nkind = \"memory\"\nsize = \"16MiB\"\n[tenant.t]\n".to_owned();
    for (name, offset, uids) in [("mine", 0, own), ("other", 8, own + 1)] {
        config += &format!(
            "[export.{name}]\ndevice = \"d\"\ntenant = \"t\"\noffset = \"{offset}MiB\"\nsize = \"8MiB\"\n\
             nbd = \"unix:@/s.sock\"\nallow-uids = {uids}\n"
        );
    }
    let mut server = Server::start(&config);
    let socket = server.join("s.sock");
    assert_eq!(run_ok("nbdinfo", &["--size", &uri(&socket, "mine")]).trim(), "8388608");
    let said = server.note_with("has export \"mine\"");
    assert!(said.contains(&format!("of user {own}, group ")), "{said}");
    assert!(!run("nbdinfo", &["--size", &uri(&socket, "other")]).status.success());
    let listed: Value = serde_json::from_str(&run_ok("nbdinfo", &["--json", "--list", &uri(&socket, "")])).unwrap();
    assert_eq!(listed["exports"].as_array().unwrap().len(), 1, "{listed}");
    let stats = server.terminate();
    assert_eq!(broken(&stats, "forbidden_export").min(1), 1, "{stats}");
}

const TOKEN: &str = "0123456789abcdef";

/// A server with TLS at a TCP address of its control plane, which `keys` say more of; certificates of a client in the
/// same folder.
fn start(keys: &str) -> (Server, Authority, String) {
    let (folder, authority) = (Folder::new(), Authority::new());
    authority.sign(folder.path(), "server", "localhost");
    authority.sign(folder.path(), "ops", "ops.example");
    std::fs::write(folder.join("token"), TOKEN).unwrap();
    std::fs::set_permissions(folder.join("token"), PermissionsExt::from_mode(0o600)).unwrap();
    let config = format!(
        "[control]\nlisten = [\"unix:@/control.sock\", \"tcp:127.0.0.1:0\"]\ncertificate = \"@/server-cert.pem\"\n\
         key = \"@/server-key.pem\"\n{keys}\n[device.d]\nkind = \"memory\"\nsize = \"1MiB\"\n[tenant.web]\n\
         [export.web]\ndevice = \"d\"\ntenant = \"web\"\nnbd = \"unix:@/web.sock\"\n"
    );
    let server = Server::start_in(folder, &config);
    let status = mqfq(&["--json", "ctl", "status", "--socket", &unix(&server)]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let port = status["listen"][1].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    (server, authority, port)
}

fn unix(server: &Server) -> String {
    format!("unix:{}", server.join("control.sock").display())
}

/// The output of `mqfq ctl` over TLS, both streams, and whether it succeeded.
fn ctl(server: &Server, port: &str, ca: &Path, flags: &[&str], words: &[&str]) -> (bool, String) {
    let path = |name: &str| server.join(name).display().to_string();
    let files = flags.iter().map(|flag| match *flag {
        "--cert" => vec!["--cert".to_owned(), path("ops-cert.pem"), "--key".to_owned(), path("ops-key.pem")],
        _ => vec!["--token-file".to_owned(), path("token")],
    });
    let files: Vec<String> = files.flatten().collect();
    let at = format!("tcp:localhost:{port}");
    let mut all = vec!["ctl", "--socket", &at, "--ca", ca.to_str().unwrap()];
    all.extend(files.iter().map(String::as_str).chain(words.iter().copied()));
    let output = mqfq(&all);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap().trim().to_owned())
}

#[test]
fn curl_and_ctl_reach_it_over_tls_and_nobody_without_certificate_or_token() {
    need!("curl");
    let (server, _, port) = start("client-ca = \"@/ca-cert.pem\"\ntoken-file = \"@/token\"");
    let path = |name: &str| server.join(name).display().to_string();
    let (ca, certificate, key) = (path("ca-cert.pem"), path("ops-cert.pem"), path("ops-key.pem"));
    let (own, bearer) = (["--cert", &certificate, "--key", &key], format!("Authorization: Bearer {TOKEN}"));
    let token = ["--header", &bearer];
    let curl = |scheme: &str, flags: &[&str]| {
        let url = format!("{scheme}://localhost:{port}/v1/status");
        let fixed = ["-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let output = run("curl", &[&fixed[..], flags].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let trusting = ["--cacert", &ca];
    // While more than fit have begun a handshake that never goes on.
    let hanging: Vec<TcpStream> = (0..CONNECTIONS_MAX + STRANGERS_MAX)
        .map(|_| TcpStream::connect(format!("localhost:{port}")).unwrap())
        .collect();
    for version in ["1.2", "1.3"] {
        let all = [&trusting[..], &own, &token, &["--tls-max", version]].concat();
        assert_eq!(curl("https", &all), (0, "200".to_owned()), "TLS {version}");
    }
    drop(hanging);
    assert_eq!(curl("https", &[&trusting[..], &own].concat()), (0, "401".to_owned()), "no token");
    for (what, scheme, flags) in [
        ("no certificate", "https", [&trusting[..], &token].concat()),
        ("a server that nobody vouches for", "https", [&own[..], &token].concat()),
        ("in the clear", "http", token.to_vec()),
    ] {
        let (code, status) = curl(scheme, &flags);
        assert!(code != 0 && status == "000", "{what}: {code} {status}");
    }

    let ca = server.join("ca-cert.pem");
    let (is_done, said) =
        ctl(&server, &port, &ca, &["--cert", "--token-file"], &["tenant", "set", "web", "--weight", "7"]);
    assert!(is_done && said.ends_with("revision 2"), "{said}");
    let (is_done, said) = ctl(&server, &port, &ca, &["--cert"], &["status"]);
    assert!(
        !is_done && said.starts_with("mqfq: this address wants the token") && said.contains("--token-file"),
        "{said}"
    );
    // The alert comes, also to a client that is in the middle of a long request.
    std::fs::write(server.join("long.toml"), "# a comment\n".repeat(50_000)).unwrap();
    for _ in 0..20 {
        let (is_done, said) = ctl(&server, &port, &ca, &["--token-file"], &["apply", &path("long.toml")]);
        let wanted = format!(
            "mqfq: the connection to tcp:localhost:{port} broke: received fatal alert: CertificateRequired; the server \
             wants --cert and --key"
        );
        assert_eq!((is_done, said), (false, wanted));
    }
    let (is_done, said) = ctl(&server, &port, &server.join("ops-cert.pem"), &["--cert"], &["status"]);
    let wanted = format!("mqfq: no TLS with tcp:localhost:{port}: invalid peer certificate: UnknownIssuer");
    assert_eq!((is_done, said), (false, wanted));
    let (is_done, said) = ctl(&server, "1", &ca, &[], &["status"]);
    assert!(!is_done && said.starts_with("mqfq: cannot reach a server at tcp:localhost:1: "), "{said}");
    let in_the_clear = mqfq(&["ctl", "--socket", &unix(&server), "--ca", ca.to_str().unwrap(), "status"]);
    let said = String::from_utf8(in_the_clear.stderr).unwrap();
    let wanted = format!("mqfq: {} has no TLS, allowed is --ca with tcp:HOST:PORT, see mqfq --help\n", unix(&server));
    assert_eq!(said, wanted);
    server.terminate();
}

/// A browser that has a client certificate sends it with requests of any page.
#[test]
fn requests_that_another_site_forges_are_refused_also_with_a_certificate() {
    need!("curl");
    let (server, _, port) = start("client-ca = \"@/ca-cert.pem\"");
    let path = |name: &str| server.join(name).display().to_string();
    let files = ["--cacert", &path("ca-cert.pem"), "--cert", &path("ops-cert.pem"), "--key", &path("ops-key.pem")];
    let reload = |headers: &[&str]| {
        let url = format!("https://localhost:{port}/v1/config/reload");
        let fixed = ["-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", &url];
        let headers = headers.iter().flat_map(|header| ["--header", header]);
        let output = run("curl", &fixed.into_iter().chain(files).chain(headers).collect::<Vec<_>>());
        String::from_utf8(output.stdout).unwrap()
    };
    let own = format!("Origin: https://localhost:{port}");
    assert_eq!((reload(&[]), reload(&[&own])), ("200".into(), "200".into()));
    for header in ["Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Host: evil.example"] {
        assert_eq!(reload(&[header]), "403", "{header}");
    }
    assert_eq!(reload(&["Host: OPS.example"]), "403", "a name of the client's certificate is none of the server's");
    server.terminate();
}

#[test]
fn other_files_are_in_force_after_a_reload_and_wrong_ones_change_nothing() {
    let (server, old, port) = start("client-ca = \"@/ca-cert.pem\"");
    let old_ca = server.join("old-ca.pem");
    std::fs::copy(server.join("ca-cert.pem"), &old_ca).unwrap();
    let reload = || mqfq(&["ctl", "--socket", &unix(&server), "reload"]);
    let (is_done, said) = ctl(&server, &port, &old_ca, &["--cert"], &["status"]);
    assert!(is_done, "certificates of clients are enough, without a token: {said}");

    std::fs::write(server.join("server-key.pem"), "no key").unwrap();
    let refused = String::from_utf8(reload().stderr).unwrap();
    assert!(refused.contains("control.key") && refused.contains("holds no private key in PEM form"), "{refused}");
    assert!(ctl(&server, &port, &old_ca, &["--cert"], &["status"]).0, "all is as before");

    drop(old);
    let new = Authority::new();
    new.sign(server.folder().path(), "server", "localhost");
    new.sign(server.folder().path(), "ops", "ops.example");
    let done = reload();
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && said.contains("control-tls as read before -> as read now"), "{said}");
    assert!(!ctl(&server, &port, &old_ca, &["--cert"], &["status"]).0, "the old authority is nobody's any more");
    let (is_done, said) = ctl(&server, &port, &server.join("ca-cert.pem"), &["--cert"], &["status"]);
    assert!(is_done, "{said}");
    server.terminate();
}
