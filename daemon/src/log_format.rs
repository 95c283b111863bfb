//! Forms of a sentence on stderr: a line for people, an object for a collector of logs, or an entry of the journal with
//! fields.
//!
//! | `--log-format` | a sentence becomes |
//! |---|---|
//! | `text` | `mqfq: SENTENCE`, on stderr |
//! | `json` | `{"time":…,"level":…,"message":…,"tenant":…}` on a line of stderr, with its subject |
//! | `journald` | a datagram to the journal's socket: MESSAGE, PRIORITY, MQFQ_DEVICE, MQFQ_TENANT and so on |
//!
//! Source of the last: systemd, "Native Journal Protocol".
//!
//! All three go through the queue of `output.rs`, which no thread of a server waits for. Libraries of structured logs
//! write where an event happens, or bring a queue and a thread of their own; here events are a dozen kinds of
//! sentences, and their queue is bounded, counts lost lines, and is emptied before the process ends.

use mqfq_config::text;
use mqfq_control::time::rfc3339;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::time::SystemTime;

/// Path of the journal's socket.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// An object on a line.
    Json,
    /// An entry of systemd's journal, past stderr.
    Journald,
}

/// Severity, by syslog's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The server ends, or does not start.
    Error = 3,
    /// A client is not served as it should be.
    Warning = 4,
    /// Any other event worth a line.
    Notice = 5,
}

/// The subject of a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct About<'a> {
    /// A device, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'a str>,
    /// A tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<&'a str>,
    /// An export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<&'a str>,
    /// The address of its clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<&'a str>,
}

impl<'a> About<'a> {
    /// A device.
    pub fn device(device: &'a str) -> About<'a> {
        About { device: Some(device), ..About::default() }
    }
}

#[derive(Serialize)]
struct Record<'a> {
    time: String,
    level: Level,
    message: &'a str,
    #[serde(flatten)]
    about: About<'a>,
}

impl LogFormat {
    /// A sentence, already on one line, as it is written.
    pub fn line(self, level: Level, about: About<'_>, sentence: &str, at: SystemTime) -> String {
        match self {
            LogFormat::Text => format!("mqfq: {sentence}\n"),
            LogFormat::Json => {
                let record = Record { time: rfc3339(at), level, message: sentence, about };
                serde_json::to_string(&record).unwrap_or_else(|_| format!("{{\"message\":{sentence:?}}}")) + "\n"
            }
            LogFormat::Journald => {
                let mut entry = format!("MESSAGE={sentence}\nPRIORITY={}\nSYSLOG_IDENTIFIER=mqfq\n", level as u8);
                let About { device, tenant, export, address } = about;
                let fields = [("DEVICE", device), ("TENANT", tenant), ("EXPORT", export), ("ADDRESS", address)];
                for (field, value) in fields.into_iter().filter_map(|(field, value)| Some((field, value?))) {
                    // Names are the config's, and may hold anything; a line of the protocol ends with its value.
                    let _ = writeln!(entry, "MQFQ_{field}={}", text::sentence(value));
                }
                entry
            }
        }
    }

    /// Says that so many lines could not be written.
    pub fn lost(self, lost: u64) -> String {
        let sentence = format!("{lost} lines could not be written here and are lost");
        self.line(Level::Warning, About::default(), &sentence, SystemTime::now())
    }
}

/// The journal's socket: each write is an entry.
pub struct Journal(UnixDatagram);

impl Journal {
    /// Connects to it.
    ///
    /// # Errors
    /// One sentence: no process listens there.
    pub fn open() -> Result<Journal, String> {
        Journal::at(JOURNAL_SOCKET).map_err(|error| {
            let why = mqfq_report::plain(&error);
            format!("cannot log to the journal at {JOURNAL_SOCKET}: {why}, allowed are --log-format text and json")
        })
    }

    fn at(path: &str) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Journal(socket))
    }
}

impl Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        self.0.send(entry)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line(format: LogFormat) -> String {
        let about = About { tenant: Some("web"), export: Some("a\nb"), ..About::default() };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_370_400_123);
        format.line(Level::Warning, about, "it's \"a\"", at)
    }

    #[test]
    fn a_sentence_has_its_fields_in_each_form() {
        assert_eq!(line(LogFormat::Text), "mqfq: it's \"a\"\n");
        assert_eq!(
            line(LogFormat::Json),
            "{\"time\":\"2026-11-22T18:00:00.123Z\",\"level\":\"warning\",\"message\":\"it's \\\"a\\\"\",\"tenant\":\"web\",\
             \"export\":\"a\\nb\"}\n"
        );
        assert_eq!(
            line(LogFormat::Journald),
            "MESSAGE=it's \"a\"\nPRIORITY=4\nSYSLOG_IDENTIFIER=mqfq\nMQFQ_TENANT=web\nMQFQ_EXPORT=a\\nb\n"
        );
        assert_eq!(LogFormat::Text.lost(3), "mqfq: 3 lines could not be written here and are lost\n");
    }

    #[test]
    fn each_entry_of_the_journal_is_a_datagram() {
        let path = std::env::temp_dir().join(format!("mqfq-journal-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut journal = Journal::at(path.to_str().unwrap()).unwrap();
        for format in [LogFormat::Journald, LogFormat::Text] {
            journal.write_all(line(format).as_bytes()).unwrap();
            let mut entry = [0; 512];
            let bytes = receiver.recv(&mut entry).unwrap();
            assert_eq!(entry[..bytes], *line(format).as_bytes());
        }
        std::fs::remove_file(path).unwrap();
    }
}
