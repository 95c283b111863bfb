//! All output of a server: reports on stdout, sentences on stderr. Saying something neither blocks nor panics, whatever
//! the two are connected to.
//!
//! ```text
//!   main, panic hook, trouble ──push──▶ bounded queue ──▶ a thread per stream ──write──▶ descriptor
//!                                  └ full: dropped, counted
//! ```
//! A pipe that is not read blocks its writer; a full disk or a pipe without a reader makes the write fail. Only the
//! threads that write meet that, and tenants are served either way. Lines of one stream keep their order. Where some
//! are missing a line says how many, as soon as something can be written again.
//!
//! Workers say nothing: events of the data path are counted there and told elsewhere (`device_errors.rs`).

use crate::log_format::{About, Journal, Level, LogFormat};
use mqfq_config::text;
use mqfq_control::events::Events;
use serde::Serialize;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Bytes that may wait for a stream before further lines are dropped. One report may be longer: it is taken if less
/// than this waits.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Longest wait at a server's end for its last lines to be written.
pub const LAST_LINES_WAIT: Duration = Duration::from_secs(1);

/// Writes a sentence for people on one line of stderr, which nothing in it can break: for a command that prints and
/// ends. A write that fails is ignored.
pub fn tell(sentence: &str) {
    let _ = writeln!(io::stderr(), "mqfq: {}", text::sentence(sentence));
}

/// [`tell`], and the status of a command that ends with it.
pub fn fail(sentence: &str, status: u8) -> ExitCode {
    tell(sentence);
    ExitCode::from(status)
}

/// Something that waits to be written.
#[derive(Default)]
struct Line {
    text: String,
    /// Lines that stood before it and were dropped.
    dropped_before: u64,
}

/// The lines that wait for one stream.
#[derive(Default)]
struct Queue {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Lines dropped after the last of `lines`.
    dropped: u64,
    /// The thread has taken something and has not written it yet.
    is_writing: bool,
    /// The first error of writing.
    failure: Option<io::ErrorKind>,
}

impl Queue {
    fn is_full(&self) -> bool {
        self.bytes >= WAITING_BYTES_MAX
    }

    fn push(&mut self, text: String) {
        if self.is_full() {
            self.dropped += 1;
            return;
        }
        self.bytes += text.len();
        let dropped_before = std::mem::take(&mut self.dropped);
        self.lines.push_back(Line { text, dropped_before });
    }

    /// Takes the next line to write.
    fn pop(&mut self) -> Option<Line> {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.text.len();
            return Some(line);
        }
        let dropped_before = std::mem::take(&mut self.dropped);
        (dropped_before > 0).then(|| Line { text: String::new(), dropped_before })
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0 && !self.is_writing
    }
}

/// A queue and its thread's side of it.
#[derive(Default)]
struct Stream {
    queue: Mutex<Queue>,
    /// Something was pushed, or something was written.
    changed: Condvar,
}

impl Stream {
    /// The queue is whole at each unlock, even if a thread panicked.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, text: String) {
        self.queue().push(text);
        self.changed.notify_all();
    }

    /// Waits for room first: for a command that has nothing else to do.
    fn push_patiently(&self, text: String) {
        let room = self.changed.wait_while(self.queue(), |queue| queue.is_full());
        room.unwrap_or_else(PoisonError::into_inner).push(text);
        self.changed.notify_all();
    }

    /// The thread's whole life: it ends with the process.
    fn write_to(&self, mut out: impl Write, lost_line: impl Fn(u64) -> String) {
        let (mut lost, mut is_torn) = (0, false);
        loop {
            let nothing = |queue: &mut Queue| queue.lines.is_empty() && queue.dropped == 0;
            let mut queue = self.changed.wait_while(self.queue(), nothing).unwrap_or_else(PoisonError::into_inner);
            let line = queue.pop().unwrap_or_default();
            queue.is_writing = true;
            drop(queue);
            self.changed.notify_all();

            lost += line.dropped_before;
            let mut result = Ok(());
            if lost > 0 {
                result = write_whole(&mut out, &lost_line(lost), &mut is_torn);
                lost = if result.is_ok() { 0 } else { lost };
            }
            if !line.text.is_empty() {
                result = result.and_then(|()| write_whole(&mut out, &line.text, &mut is_torn));
                lost += u64::from(result.is_err());
            }
            let mut queue = self.queue();
            queue.is_writing = false;
            queue.failure = queue.failure.or(result.err().map(|error| error.kind()));
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits until all was written or lost, but not beyond `deadline`.
    fn finish(&self, deadline: Option<Instant>) {
        let mut queue = self.queue();
        while !queue.is_idle() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            // Without a deadline it looks again after an hour.
            let waited = self.changed.wait_timeout(queue, left.unwrap_or(Duration::from_secs(3600)));
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Writes `text`; after a line that was cut off by an error, on a line of its own.
fn write_whole(out: &mut impl Write, text: &str, is_torn: &mut bool) -> io::Result<()> {
    if *is_torn {
        out.write_all(b"\n")?;
        *is_torn = false;
    }
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                rest = &rest[written..];
                *is_torn = !rest.is_empty();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A descriptor that may be in non-blocking mode, which is not ours to change: the terminal's other users share it.
struct Descriptor(File);

impl Descriptor {
    fn of(stream: BorrowedFd<'_>) -> io::Result<Descriptor> {
        Ok(Descriptor(stream.try_clone_to_owned()?.into()))
    }
}

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut room = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                    // SAFETY: one pollfd is there to be read and written.
                    unsafe { libc::poll(&raw mut room, 1, -1) };
                }
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Stdout and stderr of a process. Clones write to the same ones.
#[derive(Clone)]
pub struct Output {
    out: Arc<Stream>,
    err: Arc<Stream>,
    is_json: bool,
    is_patient: bool,
    log_format: LogFormat,
    events: Arc<Events>,
}

impl Output {
    /// For a server, whose tenants come first: a line that has no room is dropped. The threads begin here, so signals
    /// must be blocked already.
    ///
    /// # Errors
    /// A thread or a descriptor could not be had, or the journal is not there.
    pub fn of_server(is_json: bool, log_format: LogFormat) -> Result<Output, String> {
        Output::start(is_json, false, log_format)
    }

    /// For a command whose output is all that it does: a caller with a line to write waits for room.
    ///
    /// # Errors
    /// As [`Output::of_server`].
    pub fn of_command(is_json: bool) -> Result<Output, String> {
        Output::start(is_json, true, LogFormat::Text)
    }

    /// For a server without a reader: its lines are dropped once the room for them is full.
    pub fn of_nobody() -> Output {
        let [out, err] = [Arc::default(), Arc::default()];
        let events = Arc::new(Events::default());
        Output { out, err, is_json: false, is_patient: false, log_format: LogFormat::Text, events }
    }

    fn start(is_json: bool, is_patient: bool, log_format: LogFormat) -> Result<Output, String> {
        let lost_report = if is_json { lost_json } else { lost_text };
        let failed = |error: io::Error| format!("cannot start a thread that writes: {}", mqfq_report::plain(&error));
        let out = stream("mqfq-stdout", Descriptor::of(io::stdout().as_fd()).map_err(failed)?, lost_report);
        let lost = move |lost| log_format.lost(lost);
        let err = match log_format {
            LogFormat::Text | LogFormat::Json => {
                stream("mqfq-stderr", Descriptor::of(io::stderr().as_fd()).map_err(failed)?, lost)
            }
            LogFormat::Journald => stream("mqfq-journal", Journal::open()?, lost),
        };
        let events = Arc::new(Events::default());
        Ok(Output { out: out.map_err(failed)?, err: err.map_err(failed)?, is_json, is_patient, log_format, events })
    }

    /// Reports are JSON, one object on a line.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// Says text, of one or more whole lines, on stdout.
    pub fn report(&self, text: impl Into<String>) {
        self.push(&self.out, text.into());
    }

    /// Says an object, on a line, on stdout.
    pub fn report_json(&self, report: &impl Serialize) {
        match serde_json::to_string(report) {
            Ok(line) => self.report(line + "\n"),
            Err(error) => self.note(&format!("a report cannot be put in JSON, which is a bug in mqfq: {error}")),
        }
    }

    /// Says a sentence on stderr, on one line.
    pub fn note(&self, sentence: &str) {
        self.say(Level::Notice, About::default(), sentence);
    }

    /// Says a sentence about something that has names.
    pub fn say(&self, level: Level, about: About<'_>, sentence: &str) {
        self.push(&self.err, self.line(level, about, sentence));
        let kind = match level {
            Level::Warning => "trouble",
            Level::Notice => "note",
            // The process ends: no reader is left.
            Level::Error => return,
        };
        self.events.push(kind, text::sentence(sentence), serde_json::json!(about));
    }

    /// Events for readers of the control plane: all sentences, and those that others add.
    pub fn events(&self) -> &Events {
        &self.events
    }

    fn line(&self, level: Level, about: About<'_>, sentence: &str) -> String {
        self.log_format.line(level, about, &text::sentence(sentence), SystemTime::now())
    }

    fn push(&self, stream: &Stream, text: String) {
        if self.is_patient { stream.push_patiently(text) } else { stream.push(text) }
    }

    /// Waits until all that was said is written, but not longer than `patience`; `None`: as long as it takes.
    pub fn finish(&self, patience: Option<Duration>) {
        let deadline = patience.map(|patience| Instant::now() + patience);
        self.out.finish(deadline);
        self.err.finish(deadline);
    }

    /// Fails if writing to stdout failed.
    ///
    /// # Errors
    /// One sentence.
    pub fn check_reports(&self) -> Result<(), String> {
        match self.out.queue().failure {
            Some(kind) => Err(format!("cannot write to stdout: {kind}")),
            None => Ok(()),
        }
    }

    /// From here on a panic, on whichever thread, ends the process with status 1: at once, before anything is unwound,
    /// and whatever stderr leads to. The panic's own message and a sentence are said before.
    ///
    /// A server with a thread less would go on half dead: the tenants of a worker wait for ever, and soon the others'.
    /// Bytes that a client was told to be stable are, as after a kill; the rest it sees as a lost connection.
    pub fn end_process_on_panic(&self) {
        let output = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            let message = panic.payload_as_str().unwrap_or("no message");
            let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
            let error = |sentence: &str| output.err.push(output.line(Level::Error, About::default(), sentence));
            error(&format!("thread {name} panicked{place}: {}", text::sentence(message)));
            let backtrace = Backtrace::capture();
            if backtrace.status() == BacktraceStatus::Captured {
                match output.log_format {
                    LogFormat::Text => output.err.push(format!("{backtrace}")),
                    LogFormat::Json | LogFormat::Journald => format!("{backtrace}").lines().for_each(error),
                }
            }
            let who = name.strip_prefix("mqfq-worker-").map_or(format!("thread {name}"), |n| format!("worker {n}"));
            error(&format!("{who} panicked, which is a bug in mqfq: all exports are closed"));
            output.finish(Some(LAST_LINES_WAIT));
            std::process::exit(1);
        }));
    }
}

/// A stream, and the thread that writes its lines to `out`.
fn stream(
    name: &str,
    out: impl Write + Send + 'static,
    lost_line: impl Fn(u64) -> String + Send + 'static,
) -> io::Result<Arc<Stream>> {
    let stream = Arc::new(Stream::default());
    let of_thread = stream.clone();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || of_thread.write_to(out, lost_line))?;
    Ok(stream)
}

fn lost_json(lost: u64) -> String {
    format!("{{\"lost_reports\":{lost}}}\n")
}

fn lost_text(lost: u64) -> String {
    format!("lost: {lost} reports that could not be written here\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{self, Receiver, Sender};

    /// A descriptor under the test's control: it reports the text of each write and waits for the result.
    struct Directed {
        asked: Sender<String>,
        answers: Receiver<io::Result<usize>>,
    }

    impl Write for Directed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            // At the end of the test the thread stays here.
            self.answers.recv().unwrap_or_else(|_| {
                loop {
                    std::thread::park()
                }
            })
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Test {
        stream: Arc<Stream>,
        asked: Receiver<String>,
        answers: Sender<io::Result<usize>>,
    }

    impl Test {
        fn start() -> Test {
            let ((asked, is_asked), (answers, answered)) = (mpsc::channel(), mpsc::channel());
            let stream = Arc::new(Stream::default());
            let of_thread = stream.clone();
            std::thread::spawn(move || {
                of_thread.write_to(Directed { asked, answers: answered }, |lost| LogFormat::Text.lost(lost))
            });
            Test { stream, asked: is_asked, answers }
        }

        /// The next thing to be written is `text`; `answer` of it comes through.
        fn writes(&self, text: &str, answer: io::Result<usize>) {
            assert_eq!(self.asked.recv().unwrap(), text);
            self.answers.send(answer).unwrap();
        }

        fn writes_all(&self, text: &str) {
            self.writes(text, Ok(text.len()));
        }
    }

    #[test]
    fn lines_keep_their_order_and_one_that_is_written_in_parts_stays_whole() {
        let test = Test::start();
        ["first\n", "second\n", "third\n"].into_iter().for_each(|line| test.stream.push(line.into()));
        test.writes_all("first\n");
        test.writes("second\n", Ok(3));
        test.writes("ond\n", Err(io::ErrorKind::Interrupted.into()));
        test.writes_all("ond\n");
        test.writes_all("third\n");
        test.stream.finish(None);
    }

    #[test]
    fn what_finds_no_room_is_counted_where_it_is_missing() {
        let test = Test::start();
        test.stream.push("a\n".into());
        assert_eq!(test.asked.recv().unwrap(), "a\n");
        // The pipe is not read now. One report may be longer than all that may wait.
        let long = "l".repeat(WAITING_BYTES_MAX + 1);
        test.stream.push(long.clone());
        for _ in 0..3 {
            test.stream.push("dropped\n".into());
        }
        assert_eq!(test.stream.queue().lines.len(), 1, "the queue is bounded");
        test.answers.send(Ok(2)).unwrap();
        assert_eq!(test.asked.recv().unwrap(), long);
        // Taken out of the queue, and not written yet: there is room behind it.
        test.stream.push("b\n".into());
        test.answers.send(Ok(long.len())).unwrap();
        test.writes_all("mqfq: 3 lines could not be written here and are lost\n");
        test.writes_all("b\n");
        test.stream.finish(None);
    }

    #[test]
    fn what_was_dropped_last_is_told_without_another_line() {
        let test = Test::start();
        test.stream.push("l".repeat(WAITING_BYTES_MAX));
        test.asked.recv().unwrap();
        test.stream.push("l".repeat(WAITING_BYTES_MAX));
        test.stream.push("dropped\n".into());
        test.answers.send(Ok(WAITING_BYTES_MAX)).unwrap();
        assert_eq!(test.asked.recv().unwrap().len(), WAITING_BYTES_MAX);
        test.answers.send(Ok(WAITING_BYTES_MAX)).unwrap();
        test.writes_all("mqfq: 1 lines could not be written here and are lost\n");
        test.stream.finish(None);
    }

    #[test]
    fn lines_lost_to_errors_are_told_when_writing_works_again() {
        let test = Test::start();
        let full = || Err(io::ErrorKind::StorageFull.into());
        test.stream.push("first\n".into());
        test.writes("first\n", full());
        test.stream.push("second\n".into());
        test.writes("mqfq: 1 lines could not be written here and are lost\n", full());
        test.stream.finish(None);
        test.stream.push("third\n".into());
        test.writes("mqfq: 2 lines could not be written here and are lost\n", Ok(5));
        test.writes(" 2 lines could not be written here and are lost\n", full());
        test.stream.push("fourth\n".into());
        // A line that was cut off in the middle ends before the next line begins.
        test.writes_all("\n");
        test.writes_all("mqfq: 3 lines could not be written here and are lost\n");
        test.writes_all("fourth\n");
        test.stream.finish(None);
        assert_eq!(test.stream.queue().failure, Some(io::ErrorKind::StorageFull));
    }

    #[test]
    fn the_end_waits_for_lines_that_can_be_written_and_not_for_others() {
        let test = Test::start();
        test.stream.push("a\n".into());
        assert_eq!(test.asked.recv().unwrap(), "a\n");
        // The pipe is not read: this returns, which is all that can be said without a clock.
        test.stream.finish(Some(Instant::now()));
        assert!(!test.stream.queue().is_idle());
        test.answers.send(Ok(2)).unwrap();
        test.stream.finish(None);
        assert!(test.stream.queue().is_idle());
    }
}
