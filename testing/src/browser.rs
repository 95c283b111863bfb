//! A browser that a test looks through: headless Chromium, asked over a pipe.
//!
//! Answers: what does a page show, which requests did it make, and what went wrong in it? Source: the Chrome DevTools
//! Protocol, spoken over descriptors 3 and 4 (`--remote-debugging-pipe`), one JSON object after the other with a zero
//! byte behind each.
//!
//! Invariant: the browser ends with its owner. It ends by itself when the pipe does.

use crate::Folder;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The program.
pub const CHROMIUM: &str = "chromium";

/// Longest life of one, s: a browser that hangs fails a test instead of hanging it.
const LIFE_MAX_S: u32 = 300;

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    session: String,
    last: u64,
    /// Its messages besides answers.
    events: Vec<Value>,
    /// Its profile.
    _folder: Folder,
}

impl Browser {
    /// Starts it with an empty page. No name but numbers of loopback is found: nothing outside can be reached.
    ///
    /// # Panics
    /// It does not come up.
    pub fn start() -> Browser {
        let folder = Folder::new();
        let profile = format!("--user-data-dir={}", folder.path().display());
        let life = LIFE_MAX_S.to_string();
        let words = ["timeout", "--kill-after=5", &life, CHROMIUM, "--headless=new", "--remote-debugging-pipe"];
        let rest = [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &profile,
            "about:blank",
        ];
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"]).args(words).args(rest);
        command.env("HOME", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh is there");
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("it is piped")));
        let (session, events) = (String::new(), Vec::new());
        let mut browser = Browser { child, to, from, session, last: 0, events, _folder: folder };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Goes to an address.
    pub fn go(&mut self, url: &str) {
        let gone = self.ask("Page.navigate", json!({ "url": url }));
        assert!(gone.get("errorText").is_none(), "{url}: {gone}");
    }

    /// Size of the window, in pixels of CSS, and whether it is a phone's.
    pub fn size(&mut self, width: u32, height: u32, is_phone: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets the user's preferred colours: `light` or `dark`.
    pub fn colours(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// The value of an expression of JavaScript, or of the promise that it is.
    ///
    /// # Panics
    /// It throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let question = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", question);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns once a condition of JavaScript holds; it is asked again at each change of the page.
    pub fn wait(&mut self, condition: &str) {
        self.value(&format!(
            "new Promise((done) => {{ const look = () => {{ if ({condition}) done(true); }};
             new MutationObserver(look).observe(document, {{ subtree: true, childList: true, attributes: true }});
             look(); }})"
        ));
    }

    /// A picture of the whole page, or of the window, as PNG.
    pub fn picture(&mut self, whole: bool) -> Vec<u8> {
        let picture = self.ask("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": whole }));
        from_base64(picture["data"].as_str().expect("a picture"))
    }

    /// Addresses that the page has asked for so far.
    pub fn requests(&self) -> Vec<String> {
        let of = |event: &&Value| event["method"] == "Network.requestWillBeSent";
        let url = |event: &Value| event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned();
        self.events.iter().filter(of).map(url).collect()
    }

    /// Errors that the page or the browser has told of it so far.
    pub fn errors(&self) -> Vec<String> {
        let is_error = |event: &&Value| {
            event["method"] == "Runtime.exceptionThrown"
                || (event["method"] == "Log.entryAdded" && event["params"]["entry"]["level"] == "error")
        };
        self.events.iter().filter(is_error).map(Value::to_string).collect()
    }

    /// A command, and its result.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let to = self.to.as_mut().expect("it is open until the end");
        to.write_all(format!("{message}\0").as_bytes()).unwrap_or_else(|error| panic!("{CHROMIUM}: {error}"));
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).expect("a pipe");
            assert_eq!(bytes.pop(), Some(0), "{CHROMIUM} has ended before it answered {method}");
            let said: Value = serde_json::from_slice(&bytes).expect("JSON");
            if said["id"] == self.last {
                assert!(said.get("error").is_none(), "{method}: {said}");
                return said["result"].clone();
            }
            self.events.push(said);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends when its input is closed.
        drop(self.to.take());
        // It may have ended already.
        let _ = self.child.wait();
    }
}

/// Source: RFC 4648, section 4.
fn from_base64(text: &str) -> Vec<u8> {
    let sextet = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let sextets: Vec<u8> = text.bytes().filter_map(sextet).collect();
    let group = |group: &[u8]| {
        let bits = group.iter().enumerate().fold(0u32, |bits, (at, sextet)| bits | u32::from(*sextet) << (18 - 6 * at));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    sextets.chunks(4).flat_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")] {
            assert_eq!(from_base64(text), bytes.as_bytes());
        }
        assert_eq!(from_base64("+/8A"), [251, 255, 0]);
    }
}
