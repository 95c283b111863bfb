//! Progress on stderr, and only where a person is looking.

use std::io::{IsTerminal, Write};

/// Steps done out of a known number. Writes nothing unless stderr is a terminal.
pub struct Progress {
    shown: bool,
    done: usize,
    steps: usize,
}

impl Progress {
    /// Nothing done of `steps`.
    pub fn new(steps: usize) -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), done: 0, steps }
    }

    /// The next step begins.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        self.show(&format!("[{}/{}] {what}", self.done, self.steps));
    }

    /// All is done: the line goes.
    pub fn finish(&mut self) {
        self.show("");
    }

    fn show(&self, line: &str) {
        if self.shown {
            let mut stderr = std::io::stderr().lock();
            // To the line's start, the text, and the rest cleared. Nothing depends on its being seen.
            let _ = write!(stderr, "\r{line}\x1b[K");
            let _ = stderr.flush();
        }
    }
}
