//! `mqfq serve` and `mqfq check`: from a config to running listeners, and to an orderly end.
//!
//! ```text
//!  config ─▶ plan ─▶ devices, export tables ─▶ listeners bound ─▶ engine ─▶ ready ─▶ signals ─▶ drain ─▶ end
//!           └─ check ends here ──────────┘    └ nothing is touched before this point
//! ```
//! With `--json` each thing that happens is one object on a line of its own: `{"ready":true,…}`, then the counters
//! (`{"devices":…}`) for each SIGUSR1, `{"tracing":…}` for each SIGUSR2, `{"reloaded":…}` for each SIGHUP,
//! `{"draining":true}`, and the counters once more with `--stats`.
//!
//! | file | step |
//! |---|---|
//! | `options` | with what is it started, and why may it not start? |
//! | `prepare` | the config is read, devices are opened, the engine starts; `mqfq check`: what would be refused? |
//! | `bind` | sockets are bound |
//! | `records` | files beside the config are opened, rights are given up |
//! | `take_over` | another server's place is taken |
//! | `ready` | what was found is reported |
//! | `run`, `tracing` | signals are obeyed, clients drain |

mod bind;
mod options;
mod prepare;
mod ready;
mod records;
mod run;
mod take_over;
mod tracing;

pub use options::ServeOptions;
pub use prepare::check;

use crate::log_format::{About, Level};
use crate::output::{self, LAST_LINES_WAIT, Output};
use crate::signals::Signals;
use crate::upgrade::Received;
use mqfq_blk::engine::Settled;
use options::{Failure, Start};
use records::Records;
use run::Server;
use std::process::ExitCode;

/// Runs a server until a signal ends it; its exit status. What there is to say was said.
pub fn serve(options: &ServeOptions) -> ExitCode {
    crate::heap::bound();
    // Before any thread exists: they inherit the mask.
    let signals = Signals::block();
    let output = match Output::of_server(options.json, options.log_format) {
        Ok(output) => output,
        Err(sentence) => return output::fail(&sentence, 1),
    };
    output.end_process_on_panic();
    let result = serve_until_asked(options, &signals, &output);
    match &result {
        Ok(()) => {}
        Err(Failure::Sentence(sentence)) => output.say(Level::Error, About::default(), sentence),
        Err(Failure::Interrupted) => output.note("a signal ended it before it was ready"),
    }
    output.finish(Some(LAST_LINES_WAIT));
    if matches!(result, Err(Failure::Interrupted)) {
        // It is still pending: this ends the process as if it had not been blocked, now that nothing is left behind.
        signals.stop_waits_no_longer();
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve_until_asked(options: &ServeOptions, signals: &Signals, output: &Output) -> Result<(), Failure> {
    let mut received = Received::default();
    let result = start_and_serve(Start { options, signals, output }, &mut received);
    match &result {
        Err(Failure::Sentence(sentence)) => received.give_up(sentence),
        Err(Failure::Interrupted) => received.give_up("a signal ended the new process"),
        Ok(()) => {}
    }
    result
}

fn start_and_serve(start: Start<'_>, received: &mut Received) -> Result<(), Failure> {
    let (prepared, activated) = prepare::prepare(start, received)?;
    let mut bound = bind::bind(start, &prepared, received, &activated)?;
    let records = Records::open(start, &prepared)?;
    records::give_up_rights(start, &prepared, &bound.trust)?;
    let working = prepare::start_engine(start, &prepared)?;
    let engine = working.engine.clone();
    let mut taken = take_over::take_over(start, &prepared, &activated, &mut bound, records, &working, received)?;
    let addresses: Vec<String> = taken.listeners.iter().map(|listener| listener.address()).collect();
    let committed = take_over::commit(start, &bound, &engine, &taken, received)?;
    taken.attach(&engine, &bound.taken);
    let settled: Vec<Settled> = (0..prepared.devices.len()).map(|device| engine.settled(device)).collect();
    prepared.say_settled(&settled, start.output);
    prepared.say(true, &addresses, &settled, committed.replaced.as_ref(), start.output);
    let mut server = Server::new(start, prepared, &mut bound, working, taken, committed)?;
    server.say_ready();
    // After it: systemd's queue is short.
    let notes = start.output.clone();
    received.forget(move |sentence| notes.note(sentence));
    server.run();
    server.end()
}

#[cfg(test)]
mod tests {
    //! A worker that panics ends the server.

    use crate::log_format::LogFormat;
    use crate::output::Output;
    use mqfq_blk::client::{Client, Context};
    use mqfq_blk::device::null::NullDevice;
    use mqfq_blk::engine::{DeviceOptions, Engine, EngineOptions, FlowOptions};
    use mqfq_blk::path_options::PathOptions;
    use mqfq_blk::stage::StageLimits;
    use mqfq_blk::{CostModel, PolicyKind, PolicyOptions, PriorityClass, Weight};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::time::Duration;

    /// Set only for the process that is to end.
    const VICTIM: &str = "MQFQ_TEST_VICTIM_PANIC";

    struct Panicking;

    impl Client for Panicking {
        mqfq_testing::ignores!(event, completed, turn_end, room, drain);

        fn start(&mut self, _: &mut dyn Context) {
            panic!("injected by\nthe test");
        }

        fn is_done(&self) -> bool {
            false
        }
    }

    fn serve_until_a_worker_panics() {
        Output::of_server(false, LogFormat::Text).unwrap().end_process_on_panic();
        let flow = FlowOptions {
            name: "a".into(),
            weight: Weight::DEFAULT,
            class: PriorityClass::default(),
            limits: StageLimits::DEFAULT,
            goal: None,
        };
        let device = DeviceOptions {
            grouping: Default::default(),
            name: "null".into(),
            device: Arc::new(NullDevice::new(1 << 20)),
            policy: PolicyOptions::new(PolicyKind::Mqfq),
            prepare: None,
            queue_depth: 8,
            flows: vec![flow],
            cost: CostModel::FLAT,
            path: PathOptions::default(),
        };
        let devices = vec![device];
        let engine = Engine::start(EngineOptions { workers: 2, pin: false, spin_ns: 0, devices }).unwrap();
        engine.attach_to(1, Box::new(|| Box::new(Panicking)));
        loop {
            std::thread::park();
        }
    }

    /// This test starts itself again as the process whose worker panics, with its stderr as given.
    fn victim(test: &str, stderr: Stdio) -> Child {
        let path = format!("serve::tests::{test}");
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim
            .args(["--exact", "--nocapture", &path])
            .envs([(VICTIM, "1"), ("RUST_BACKTRACE", "0")])
            .stdout(Stdio::null())
            .stderr(stderr);
        victim.spawn().unwrap()
    }

    #[test]
    fn a_worker_that_panics_ends_the_process_with_one_sentence() {
        if std::env::var_os(VICTIM).is_some() {
            serve_until_a_worker_panics();
        }
        let victim = victim("a_worker_that_panics_ends_the_process_with_one_sentence", Stdio::piped());
        let victim = victim.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&victim.stderr);
        assert_eq!(victim.status.code(), Some(1), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let [.., message, last] = &lines[..] else { panic!("{text}") };
        assert!(message.starts_with("mqfq: thread mqfq-worker-1 panicked at "), "{text}");
        assert!(
            message.ends_with(": injected by\\nthe test"),
            "the panic's own message comes first, on one line: {text}"
        );
        assert_eq!(*last, "mqfq: worker 1 panicked, which is a bug in mqfq: all exports are closed", "{text}");
    }

    #[test]
    fn a_worker_that_panics_ends_the_process_whatever_stderr_is() {
        if std::env::var_os(VICTIM).is_some() {
            serve_until_a_worker_panics();
        }
        let (unread, writer) = std::io::pipe().unwrap();
        // Another end of the same pipe, which does not block as the victim's own does.
        let own = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let mut filler = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(own).unwrap();
        while filler.write(&[b'.'; 4096]).is_ok() {}
        while filler.write(b".").is_ok() {}
        let full_disk = File::options().write(true).open("/dev/full").unwrap();
        let (without_reader, without) = std::io::pipe().unwrap();
        drop(without_reader);
        for (name, stderr) in [
            ("a full disk", Stdio::from(full_disk)),
            ("a pipe without a reader", Stdio::from(without)),
            ("a full pipe that nobody reads", Stdio::from(writer)),
            ("nothing", Stdio::null()),
        ] {
            let mut victim = victim("a_worker_that_panics_ends_the_process_whatever_stderr_is", stderr);
            let ended = std::thread::scope(|scope| {
                let (sender, ended) = std::sync::mpsc::channel();
                let id = victim.id() as libc::pid_t;
                scope.spawn(move || sender.send(victim.wait().unwrap()).unwrap());
                ended.recv_timeout(Duration::from_secs(60)).or_else(|_| {
                    // SAFETY: the process is our child and not yet waited for.
                    unsafe { libc::kill(id, libc::SIGKILL) };
                    ended.recv()
                })
            });
            assert_eq!(ended.unwrap().code(), Some(1), "stderr is {name}");
        }
        drop((unread, filler));
    }
}
