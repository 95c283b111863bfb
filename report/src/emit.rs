//! A report as one line of JSON, and an error of the system as words.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// A report as the one line that `--json` prints.
///
/// # Errors
/// One sentence: a value that JSON cannot hold.
pub fn json(report: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(report).map_err(|error| format!("cannot write JSON: {error}"))
}

/// An operating system's error as words: without the number that Rust adds, which says nothing to a user.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" (os error ") {
        // A sentence that goes on after another error's number stays whole.
        Some((words, number)) if number.find(')') == Some(number.len() - 1) => words.to_owned(),
        _ => text,
    }
}

/// Writes a line to stdout. A reader that has seen enough (`| head`) is no error: the rest goes nowhere.
///
/// # Errors
/// One sentence: stdout cannot be written for another reason.
pub fn print_line(line: impl Display) -> Result<(), String> {
    write_line(&mut io::stdout().lock(), line)
}

fn write_line(to: &mut impl Write, line: impl Display) -> Result<(), String> {
    match writeln!(to, "{line}").and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {}", plain(&error)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_left_is_no_error_and_a_full_disk_is() {
        assert_eq!(write_line(&mut Broken(io::ErrorKind::BrokenPipe), "a"), Ok(()));
        let full = write_line(&mut Broken(io::ErrorKind::StorageFull), "a").unwrap_err();
        assert!(full.starts_with("cannot write to stdout: "), "{full}");
        let mut written = Vec::new();
        assert_eq!(write_line(&mut written, "a"), Ok(()));
        assert_eq!(written, b"a\n");
    }

    #[test]
    fn the_number_of_an_error_goes_and_a_sentence_after_it_stays() {
        assert_eq!(plain(&io::Error::from_raw_os_error(2)), "No such file or directory");
        let other = io::Error::other("no file (os error 2), allowed is another");
        assert_eq!(plain(&other), "no file (os error 2), allowed is another");
    }
}
