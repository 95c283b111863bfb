//! The image of the Containerfile: its last stage, made and started here without a registry.

use crate::server::{Folder, arg};
use mqfq_testing::tools::{need, run_ok};
use mqfq_testing::{machine, user};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The text behind `instruction` in the Containerfile's last stage.
fn instruction<'a>(containerfile: &'a str, instruction: &str) -> &'a str {
    let (_, last) = containerfile.rsplit_once("\nFROM ").expect("it has stages");
    assert!(last.starts_with("scratch\n"), "nothing but what is copied is in it");
    let line = last.lines().find_map(|line| line.strip_prefix(instruction));
    line.unwrap_or_else(|| panic!("the last stage has no {instruction}")).trim()
}

/// The words of an instruction in its form of JSON.
fn words(text: &str) -> Vec<String> {
    serde_json::from_str(text).expect("a list of strings")
}

/// A server in the image, killed if it is not waited for.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_serves_as_its_own_user() {
    need!("nbdinfo", "ldd");
    if !user::is_root() {
        eprintln!("skipped: chroot needs root");
        return;
    }
    let _machine = machine::shared();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let containerfile = std::fs::read_to_string(repository.join("Containerfile")).expect("it is there");
    let folder = Folder::new();
    let image = folder.path().join("image");
    // The step of the Containerfile, with this build's program.
    let step = "RUN bash packaging/image.sh target/release/mqfq /image\n";
    assert!(containerfile.contains(step), "the image is made by {step}");
    assert_eq!(instruction(&containerfile, "COPY "), "--from=build /image /");
    let steps = repository.join("packaging/image.sh");
    run_ok("bash", &[arg(&steps), env!("CARGO_BIN_EXE_mqfq"), arg(&image)]);
    // Options that every runtime adds.
    std::fs::create_dir_all(image.join("dev")).unwrap();
    run_ok("mknod", &["-m", "666", arg(&image.join("dev/null")), "c", "1", "3"]);
    // A port that is free on this machine, in place of the one that is exposed.
    let config = image.join("etc/mqfq/mqfq.toml");
    let port = instruction(&containerfile, "EXPOSE ");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(&format!("tcp:0.0.0.0:{port}")), "the exposed port is served");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(&config, text.replace(&format!("0.0.0.0:{port}"), &format!("127.0.0.1:{free}"))).unwrap();

    let user = instruction(&containerfile, "USER ");
    assert!(!user.starts_with('0'), "it is not root");
    let mut serve = Command::new("chroot");
    serve.arg(format!("--userspec={user}")).arg(&image).args(words(instruction(&containerfile, "ENTRYPOINT ")));
    serve
        .arg("--json")
        .args(words(instruction(&containerfile, "CMD ")))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdout(Stdio::piped());
    let (variable, value) = instruction(&containerfile, "ENV ").split_once('=').expect("NAME=VALUE");
    let mut serving = Serving(serve.env(variable, value).spawn().expect("chroot is there"));
    let mut ready = String::new();
    BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.contains("\"ready\":true"), "{ready}");
    let socket = |name: &str| format!("nbd+unix:///{name}?socket={}/run/mqfq/{name}.sock", image.display());
    for uri in [socket("gold"), socket("silver"), format!("nbd://127.0.0.1:{free}/gold")] {
        let info = run_ok("nbdinfo", &["--json", &uri]);
        assert!(info.contains("\"export-size\": 33554432"), "{uri}: {info}");
    }
    run_ok("kill", &["-TERM", &serving.0.id().to_string()]);
    assert!(serving.0.wait().unwrap().success());
}
