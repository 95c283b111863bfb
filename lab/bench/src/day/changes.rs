//! Many changes a second, beside the jobs that verify.
//!
//! Answers: at which rate does a server take changes, and does anything suffer? curl sends a batch each second over one
//! connection: weights that go up by 1% and back, so that the entitlements stay, and in four places of a hundred a
//! tenant that comes and goes with its export.

use super::{Day, EXPORT_MIB, name};
use crate::machine::said;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Changes that bring a tenant with an export and take it away again, and how many changes there are for each such
/// group.
const COME_AND_GO: usize = 4;
const EACH: usize = 100;

/// Outcome of the changes.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Changes that the server took.
    pub(super) taken: u64,
    /// Changes that it answered otherwise.
    pub(super) refused: u64,
    /// Time from the first to the last.
    pub(super) seconds: f64,
}

impl Changes {
    pub(super) fn per_s(&self) -> f64 {
        self.taken as f64 / self.seconds
    }

    pub(super) fn json(&self) -> Value {
        let Changes { taken, refused, seconds } = *self;
        json!({ "taken": taken, "refused": refused, "seconds": seconds, "per_s": self.per_s() })
    }
}

/// A change as curl reads it: a transfer of its own.
pub fn transfer(socket: &Path, method: &str, path: &str, body: Option<Value>) -> String {
    let socket = socket.display();
    let text = format!(
        "next\nsilent\nshow-error\nunix-socket = \"{socket}\"\nurl = \"http://mqfq/v1/{path}\"\n\
         request = {method}\noutput = /dev/null\nwrite-out = \"%{{http_code}}\\n\"\n"
    );
    let Some(body) = body else { return text };
    let body = body.to_string().replace('"', "\\\"");
    text + &format!("header = \"Content-Type: application/json\"\ndata = \"{body}\"\n")
}

impl Day {
    /// Makes `per_s` changes a second, or as many as the server takes, until `is_over`. Weights are as before then.
    pub(super) fn change(&self, per_s: usize, is_over: &AtomicBool) -> Result<Changes, String> {
        let (start, mut all, mut batch) = (Instant::now(), Changes::default(), 0);
        let file = self.folder.join("changes.curl");
        loop {
            // Relaxed: nothing else is read because of it.
            let is_last = is_over.load(Ordering::Relaxed);
            let text = if is_last { self.weights_again() } else { self.batch(per_s, batch * per_s) };
            std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
            let codes = said(Command::new("curl").arg("--config").arg(&file))?;
            let taken = codes.lines().filter(|code| code.starts_with('2')).count() as u64;
            all.taken += taken;
            all.refused += codes.lines().count() as u64 - taken;
            if is_last {
                return Ok(Changes { seconds: start.elapsed().as_secs_f64(), ..all });
            }
            batch += 1;
            let next = start + Duration::from_secs(batch as u64);
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }

    fn transfer(&self, method: &str, path: &str, body: Option<Value>) -> String {
        transfer(&self.folder.join("control.sock"), method, path, body)
    }

    fn weight(&self, tenant: usize, weight: u64) -> String {
        self.transfer("PATCH", &format!("tenants/{}", name(tenant)), Some(json!({ "weight": weight })))
    }

    /// Each weight as it was at first.
    fn weights_again(&self) -> String {
        self.here().into_iter().map(|tenant| self.weight(tenant, self.weights[tenant])).collect()
    }

    /// An extra tenant comes with its export and goes again, so many times.
    pub(super) fn come_and_go(&self, rounds: usize) -> Result<(), String> {
        let file = self.folder.join("churn.curl");
        let text = self.guest().repeat(rounds);
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let codes = said(Command::new("curl").arg("--config").arg(&file))?;
        let taken = codes.lines().filter(|code| code.starts_with('2')).count();
        if taken == rounds * COME_AND_GO { Ok(()) } else { Err(format!("{taken} of {rounds} rounds were taken")) }
    }

    /// The changes of one such round.
    fn guest(&self) -> String {
        let guest = name(self.tenants);
        let (tenant, export) = (format!("tenants/{guest}"), format!("exports/{guest}"));
        let keys = json!({
            "device": "fast",
            "tenant": guest,
            "offset": format!("{}MiB", (2 * self.tenants + 1) * EXPORT_MIB),
            "size": "1MiB",
            "nbd": format!("unix:{}", self.folder.join("nbd.sock").display()),
        });
        [
            self.transfer("PUT", &tenant, Some(json!({ "weight": 100 }))),
            self.transfer("PUT", &export, Some(keys)),
            self.transfer("DELETE", &export, None),
            self.transfer("DELETE", &tenant, None),
        ]
        .concat()
    }

    /// So many changes, of which `before` were made before.
    fn batch(&self, count: usize, before: usize) -> String {
        let here = self.here();
        let mut text = String::new();
        let mut made = 0;
        while made < count {
            if made % EACH == 0 && made + COME_AND_GO <= count {
                text += &self.guest();
                made += COME_AND_GO;
                continue;
            }
            // In every other round through the tenants each weight differs by 1%.
            let (one, round) = (here[(before + made) % here.len()], (before + made) / here.len());
            let more = if round.is_multiple_of(2) { self.weights[one] / 100 } else { 0 };
            text += &self.weight(one, self.weights[one] + more);
            made += 1;
        }
        text
    }
}
