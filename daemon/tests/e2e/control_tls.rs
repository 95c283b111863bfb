//! The control plane's TCP address with TLS: curl and `mqfq ctl` over it, refused clients, and other files in force
//! without a restart.

use crate::server::{Folder, Server, mqfq};
use mqfq_control::admission::STRANGERS_MAX;
use mqfq_control::listen::CONNECTIONS_MAX;
use mqfq_testing::authority::Authority;
use mqfq_testing::tools::{need, run};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
