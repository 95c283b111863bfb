//! `cargo lab price`: what a change costs a server that has many tenants.
//!
//! Answers: how much processor time does one change take, and does it grow with the tenants? A server is started with
//! so many tenants, an export each, on a device that answers at once; no client connects. curl makes changes of a kind
//! one after the other, in one process and over one connection; the processor time of all threads of the server before
//! and after is the kernel's (`schedstat`), so that other processes of the machine do not count.

use crate::clients::server::Running;
use crate::day::transfer;
use crate::machine::product;
use mqfq_report::print_line;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of a measurement.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub struct PriceOptions {
    /// Tenants of a server; one is started for each number.
    #[arg(long, default_values_t = [200, 10_000])]
    pub tenants: Vec<usize>,
    /// Changes of a kind.
    #[arg(long, default_value_t = 200)]
    pub changes: usize,
    /// The program `mqfq`, if not the one beside this one.
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
}

/// A kind of change: what it is called, and the change of this number in words of curl.
type Kind = (&'static str, fn(&Server, usize) -> String);

const KINDS: [Kind; 10] = [
    ("weight of a tenant", |server, n| server.patch_tenant(n, &json!({ "weight": 101 + n % 50 }))),
    ("cap of a tenant", |server, n| server.patch_tenant(n, &json!({ "max-iops": 1000 + n }))),
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
    running: Running,
    tenants: usize,
}

/// Prints a table, or JSON.
///
/// # Errors
/// One sentence: a server that does not start, or a change that was refused.
pub fn run(options: &PriceOptions, as_json: bool) -> Result<(), String> {
    let program = options.program.clone().map_or_else(product, Ok)?;
    let mut columns = Vec::new();
    for &tenants in &options.tenants {
        let server = Server::start(&program, tenants)?;
        // The first change allocates data that stay, so it is not counted.
        server.make(&server.patch_tenant(0, &json!({ "weight": 100 })), 1)?;
        let mut column = Vec::new();
        for (name, change) in KINDS {
            let text: String = (0..options.changes).map(|n| change(&server, n)).collect();
            let before_ns = server.running.on_cpu_ns("")?;
            server.make(&text, options.changes)?;
            column.push((name, (server.running.on_cpu_ns("")? - before_ns) / options.changes as u64));
        }
        columns.push((tenants, column));
    }
    if as_json {
        let one = |(tenants, column): &(usize, Vec<(&str, u64)>)| {
            let changes: serde_json::Map<String, Value> =
                column.iter().map(|(name, ns)| ((*name).to_owned(), json!(ns))).collect();
            json!({ "tenants": tenants, "cpu_ns_per_change": changes })
        };
        let servers: Vec<Value> = columns.iter().map(one).collect();
        return print_line(json!({ "changes": options.changes, "servers": servers }));
    }
    let head: String = columns.iter().map(|(tenants, _)| format!(" {tenants} tenants |")).collect();
    print_line(format_args!("| processor time of one of {} changes, us |{head}", options.changes))?;
    print_line(format_args!("|---|{}", "--:|".repeat(columns.len())))?;
    for (at, (name, _)) in KINDS.iter().enumerate() {
        let cells: String = columns.iter().map(|(_, column)| format!(" {} |", (column[at].1 + 500) / 1000)).collect();
        print_line(format_args!("| {name} |{cells}"))?;
    }
    Ok(())
}

impl Server {
    fn start(program: &Path, tenants: usize) -> Result<Server, String> {
        let config = |folder: &Path| {
            let at = folder.display();
            let mut config = format!(
                "[server]\nworkers = 2\n[control]\nlisten = \"unix:{at}/control.sock\"\n[device.fast]\n\
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
            config
        };
        Ok(Server { running: Running::serve(program, config, &["control.sock"])?, tenants })
    }

    /// Name of an existing tenant, spread over all of them.
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
        format!("unix:{}", self.running.path(&format!("{name}.sock")).display())
    }

    fn change(&self, method: &str, path: &str, body: Option<Value>) -> String {
        transfer(&self.running.path("control.sock"), method, path, body)
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
        let path = self.running.path("changes.curl");
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        let curl = Command::new("curl").arg("--config").arg(&path).stderr(Stdio::inherit()).output();
        let output = curl.map_err(|error| format!("curl: {error}"))?;
        let codes = String::from_utf8_lossy(&output.stdout).into_owned();
        let taken = codes.lines().filter(|code| code.starts_with('2')).count();
        if taken == count { Ok(()) } else { Err(format!("{taken} of {count} changes were taken")) }
    }
}
