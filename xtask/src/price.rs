//! `cargo xtask price`: what a change costs a server that has many tenants.
//!
//! Answers: how much processor time does one change take, and does it grow with the tenants? A server is started with
//! so many tenants, an export each, on a device that answers at once; nobody is served. curl makes changes of a kind
//! one after the other, in one process and over one connection; the processor time of all threads of the server before
//! and after is the kernel's (`schedstat`), so that other processes of the machine do not count.

use crate::day::transfer;
use crate::run::{cargo, run, target};
use mqfq_testing::Folder;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is measured.
pub struct Options {
    /// Numbers of tenants, a server for each.
    pub tenants: Vec<usize>,
    /// Changes of a kind.
    pub changes: usize,
    /// The binary of the server; `None`: a release build.
    pub program: Option<PathBuf>,
    /// Print JSON alone on stdout.
    pub json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { tenants: vec![200, 10_000], changes: 200, program: None, json: false }
    }
}

/// For a server of ten thousand tenants to be ready.
const READY_MAX: Duration = Duration::from_secs(60);

/// A kind of change: what it is called, and the change of this number in words of curl.
type Kind = (&'static str, fn(&Server, usize) -> String);

const KINDS: [Kind; 11] = [
    ("weight of a tenant", |server, n| server.patch_tenant(n, &json!({ "weight": 101 + n % 50 }))),
    ("cap of a tenant", |server, n| server.patch_tenant(n, &json!({ "max-iops": 1000 + n }))),
    ("class of a tenant", |server, n| {
        server.patch_tenant(n, &json!({ "class": if server.is_second(n) { "best-effort" } else { "idle" } }))
    }),
    ("memory of a tenant", |server, n| server.patch_tenant(n, &json!({ "memory": (2 << 20) + (n << 12) }))),
    ("size of an export", |server, n| {
        let size = if server.is_second(n) { 1 << 20 } else { 1 << 19 };
        server.change("PATCH", &format!("exports/{}", server.old(n)), Some(json!({ "size": size })))
    }),
    ("a tenant comes", |server, n| server.change("PUT", &format!("tenants/{}", server.newcomer(n)), Some(json!({})))),
    ("its export comes", |server, n| server.put_export(n, &server.socket("nbd"))),
    ("its export goes", |server, n| server.change("DELETE", &format!("exports/{}", server.newcomer(n)), None)),
    ("an export comes with a socket", |server, n| server.put_export(n, &server.socket(&format!("own-{n}")))),
    ("it goes with its socket", |server, n| server.change("DELETE", &format!("exports/{}", server.newcomer(n)), None)),
    ("a tenant goes", |server, n| server.change("DELETE", &format!("tenants/{}", server.newcomer(n)), None)),
];

struct Server {
    folder: Folder,
    child: Child,
    tenants: usize,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a table, or JSON.
///
/// # Errors
/// One sentence: a server that does not start, or a change that was refused.
pub fn price(options: &Options) -> Result<(), String> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => {
            run(cargo("build --release -p mqfq").stdout(std::io::stderr()))?;
            target().join("release/mqfq")
        }
    };
    let mut columns = Vec::new();
    for &tenants in &options.tenants {
        let server = Server::start(&program, tenants)?;
        // What is made at the first change stays.
        server.make(&server.patch_tenant(0, &json!({ "class": "idle" })), 1)?;
        let mut column = Vec::new();
        for (name, change) in KINDS {
            let text: String = (0..options.changes).map(|n| change(&server, n)).collect();
            let before_ns = server.on_cpu_ns()?;
            server.make(&text, options.changes)?;
            column.push((name, (server.on_cpu_ns()? - before_ns) / options.changes as u64));
        }
        columns.push((tenants, column));
    }
    if options.json {
        let one = |(tenants, column): &(usize, Vec<(&str, u64)>)| {
            let changes: serde_json::Map<String, Value> =
                column.iter().map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
            json!({ "tenants": tenants, "cpu_ns_per_change": changes })
        };
        println!("{}", json!({ "changes": options.changes, "servers": columns.iter().map(one).collect::<Vec<_>>() }));
        return Ok(());
    }
    let head: String = columns.iter().map(|(tenants, _)| format!(" {tenants} tenants |")).collect();
    println!("| processor time of one of {} changes, us |{head}", options.changes);
    println!("|---|{}", "--:|".repeat(columns.len()));
    for (at, (name, _)) in KINDS.iter().enumerate() {
        let cells: String = columns.iter().map(|(_, column)| format!(" {} |", (column[at].1 + 500) / 1000)).collect();
        println!("| {name} |{cells}");
    }
    Ok(())
}

impl Server {
    fn start(program: &Path, tenants: usize) -> Result<Server, String> {
        let folder = Folder::new();
        let at = folder.path().display();
        let mut config = format!(
            "[server]\nworkers = 2\nspin-us = 0\n[control]\nlisten = \"unix:{at}/control.sock\"\n[device.fast]\n\
             kind = \"null\"\nsize = \"{}MiB\"\npolicy = \"mqfq\"\n",
            2 * tenants + 1024
        );
        for n in 0..tenants {
            config += &format!("[tenant.tenant-{n:05}]\n");
        }
        for n in 0..tenants {
            config += &format!(
                "[export.tenant-{n:05}]\ndevice = \"fast\"\ntenant = \"tenant-{n:05}\"\noffset = \"{n}MiB\"\nsize = \
                 \"1MiB\"\nnbd = \"unix:{at}/nbd.sock\"\n"
            );
        }
        let (path, ready) = (folder.join("price.toml"), folder.join("ready"));
        std::fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
        let said = std::fs::File::create(&ready).map_err(|error| format!("{}: {error}", ready.display()))?;
        let mut command = Command::new(program);
        let child = command.args(["--json", "serve"]).arg(&path).stdout(said).spawn();
        let child = child.map_err(|error| format!("{}: {error}", program.display()))?;
        let mut server = Server { folder, child, tenants };
        let until = Instant::now() + READY_MAX;
        while !std::fs::read_to_string(&ready).is_ok_and(|text| text.starts_with('{') && text.contains('\n')) {
            if server.child.try_wait().ok().flatten().is_some() || Instant::now() > until {
                return Err(format!("a server of {tenants} tenants was not ready within {READY_MAX:?}"));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Of those that are there, spread over all of them.
    fn old(&self, n: usize) -> String {
        format!("tenant-{:05}", n * 7919 % self.tenants)
    }

    /// The change of this number meets a tenant that one before has met.
    fn is_second(&self, n: usize) -> bool {
        n / self.tenants % 2 == 1
    }

    /// Between those that are there.
    fn newcomer(&self, n: usize) -> String {
        format!("tenant-{:05}-{n}", n * 7919 % self.tenants)
    }

    fn socket(&self, name: &str) -> String {
        format!("unix:{}", self.folder.join(&format!("{name}.sock")).display())
    }

    fn change(&self, method: &str, path: &str, body: Option<Value>) -> String {
        transfer(&self.folder.join("control.sock"), method, path, body)
    }

    fn patch_tenant(&self, n: usize, keys: &Value) -> String {
        self.change("PATCH", &format!("tenants/{}", self.old(n)), Some(keys.clone()))
    }

    fn put_export(&self, n: usize, nbd: &str) -> String {
        let name = self.newcomer(n);
        let offset = (self.tenants + n) << 20;
        let keys = json!({ "device": "fast", "tenant": name, "offset": offset, "size": 1 << 20, "nbd": nbd });
        self.change("PUT", &format!("exports/{name}"), Some(keys))
    }

    fn make(&self, text: &str, count: usize) -> Result<(), String> {
        let path = self.folder.join("changes.curl");
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        let curl = Command::new("curl").arg("--config").arg(&path).stderr(Stdio::inherit()).output();
        let output = curl.map_err(|error| format!("curl: {error}"))?;
        let codes = String::from_utf8_lossy(&output.stdout).into_owned();
        let taken = codes.lines().filter(|code| code.starts_with('2')).count();
        if taken == count { Ok(()) } else { Err(format!("{taken} of {count} changes were taken")) }
    }

    /// Time that all threads of the server have had a core, ns; none of them ends meanwhile but those that wait for
    /// changes, which live for seconds.
    fn on_cpu_ns(&self) -> Result<u64, String> {
        let folder = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let tasks = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let on_cpu = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(tasks.flatten().map(on_cpu).sum())
    }
}
