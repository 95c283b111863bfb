//! `mqfq demo --live`: three tenants on a modelled drive, until the user stops it.
//!
//! Starts this program once more as a server in a scratch folder, loads it over its NBD sockets, and shows it with
//! `mqfq top`; without a terminal it says where the page is. A newcomer selects a tenant, presses `+`, types a weight,
//! and sees the shares move.

use mqfq_control::client::Client;
use mqfq_control::ctl::command_line;
use mqfq_demo::load::{Load, Window};
use mqfq_demo::load_nbd::NbdTenant;
use mqfq_demo::scratch::Scratch;
use mqfq_observe::top::run::{TopOptions, top};
use std::fmt::Write;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

/// A load starts anew after so long: a run's counts grow with its length, and are not read here.
const RUN_MS: u64 = 60_000;

/// Name, weight, requests under way, and bytes of each. The first two ask for more than the drive can do.
const TENANTS: [(&str, u16, u16, u32); 3] = [("web", 300, 192, 4096), ("batch", 100, 64, 16_384), ("db", 100, 1, 4096)];

/// A server that ends with its owner, also if that is killed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id().cast_signed()) {
            // A server that has ended needs no signal.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Serves, loads and shows until the user leaves.
///
/// # Errors
/// One sentence: no scratch folder, or the server does not come up.
pub fn run() -> Result<(), String> {
    let scratch = Scratch::new()?;
    let folder = scratch.path();
    let config = folder.join("live.toml");
    std::fs::write(&config, text(folder))
        .map_err(|error| format!("{}: {}", config.display(), mqfq_report::plain(&error)))?;
    let _server = serve(&config)?;
    let client =
        command_line::client_at(Some(&format!("unix:{}", control(folder).display())), None, &Default::default())?;

    for (name, _, depth, request_bytes) in TENANTS {
        let tenant = NbdTenant::attach(&socket(folder, name), name, &Load::random_reads(1, depth, request_bytes))?;
        // It ends when the server does, or with the process.
        thread::spawn(move || drive(tenant));
    }
    watch(client, &control(folder))
}

/// Loads a tenant until its server is gone.
fn drive(mut tenant: NbdTenant) {
    while tenant.run(Instant::now(), Window::from_ms(0, RUN_MS)).is_ok() {}
}

fn watch(client: Client, socket: &Path) -> Result<(), String> {
    if std::io::stdout().is_terminal() {
        return top(&TopOptions { client, record: None, replay: None });
    }
    let socket = socket.display();
    mqfq_report::print_line(format_args!(
        "the page: ssh -N -L 9118:{socket} localhost, then http://127.0.0.1:9118/\n\
         a weight: mqfq ctl tenant set batch --weight 300 --socket unix:{socket}\n\
         why:      mqfq ctl why web --socket unix:{socket}\n\
         Enter, or the end of stdin, ends it"
    ))?;
    let mut line = String::new();
    // The end of stdin, an error too, ends it as well.
    let _ = std::io::stdin().read_line(&mut line);
    Ok(())
}

fn serve(config: &Path) -> Result<Server, String> {
    let failed = |error: std::io::Error| format!("cannot start a server: {}", mqfq_report::plain(&error));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["--json", "serve"]).arg(config).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let owner = rustix::process::getpid();
    let end_with_owner = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        // If its owner has died already, the signal will not come.
        if rustix::process::getppid() == Some(owner) { Ok(()) } else { Err(std::io::ErrorKind::Interrupted.into()) }
    };
    // SAFETY: between fork and exec it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(end_with_owner) };
    let mut child = command.spawn().map_err(failed)?;
    let said = child.stdout.take().map(BufReader::new);
    let server = Server(child);
    let mut lines = said.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
    match lines.find(|line| line.starts_with("{\"ready\":true")) {
        Some(_) => {
            // So that it never waits for a reader.
            thread::spawn(move || lines.for_each(drop));
            Ok(server)
        }
        None => Err(format!("the server did not come up: mqfq serve {} says why", config.display())),
    }
}

fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}

fn control(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// The config of the server.
fn text(folder: &Path) -> String {
    let mut text = format!("[control]\nlisten = \"unix:{}\"\n", control(folder).display());
    text += "[device.fast]\nkind = \"model\"\npreset = \"flash-60k\"\nsize = \"768MiB\"\npolicy = \"mqfq\"\n";
    for (number, (name, weight, ..)) in TENANTS.into_iter().enumerate() {
        let (offset, socket) = (number * 256, socket(folder, name));
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "[tenant.{name}]\nweight = {weight}\n[export.{name}]\ndevice = \"fast\"\ntenant = \"{name}\"\n\
             offset = \"{offset}MiB\"\nsize = \"256MiB\"\nnbd = \"unix:{}\"\n",
            socket.display()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, RealFiles};

    #[test]
    fn its_config_is_one_that_a_server_takes() {
        let plan = Config::parse("live.toml", &text(Path::new("/tmp"))).unwrap().check(&RealFiles).unwrap();
        assert_eq!((plan.exports.values().count(), plan.devices.values().count()), (3, 1));
    }
}
