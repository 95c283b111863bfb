//! Progress on stderr, and only where a person is looking.

use std::io::{IsTerminal, Write};

/// Steps done out of a known number. Writes nothing unless stderr is a terminal.
pub struct Progress {
    shown: bool,
    done: usize,
    steps: usize,
    /// Time that the steps to come take, seconds; 0 if it is not known.
    left_s: f64,
}

impl Progress {
    /// Nothing done of `steps`.
    pub fn new(steps: usize) -> Progress {
        Progress::timed(steps, 0.0)
    }

    /// Nothing done of `steps`, which take `total_s` seconds together.
    pub fn timed(steps: usize, total_s: f64) -> Progress {
        Progress { shown: std::io::stderr().is_terminal(), done: 0, steps, left_s: total_s }
    }

    /// The next step begins.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        self.show(&format!("[{}/{}] {what}", self.done, self.steps));
    }

    /// The next step begins, which takes `step_s` seconds.
    pub fn step_of(&mut self, step_s: f64, what: &str) {
        let line = format!("{what}, {:.0} s left", self.left_s.max(step_s));
        self.left_s -= step_s;
        self.step(&line);
    }

    /// So many more steps are to come, which take `total_s` seconds together.
    pub fn again(&mut self, steps: usize, total_s: f64) {
        self.steps += steps;
        self.left_s += total_s;
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
