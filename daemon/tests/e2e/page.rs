//! The page in a browser: headless Chromium looks at the page of `mqfq demo --live`, in light, in dark and as wide as a
//! phone.
//!
//! `MQFQ_BLESS=1 cargo test --release -p mqfq --test e2e page::` waits a minute and writes the pictures of
//! `docs/use/watch.md`; otherwise pictures are taken and thrown away.

use crate::control::{CONFIG, get};
use crate::server::{Folder, Server, mqfq};
use mqfq_testing::browser::Browser;
use mqfq_testing::tools::{need, run};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// Seconds of figures in the pictures of the docs.
const BLESSED_SECONDS: usize = 60;

/// `mqfq demo --live` without a terminal. Its stdin ends with this, and so does it.
struct Demo {
    child: Child,
    socket: String,
}

impl Demo {
    fn start() -> Demo {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
        command.args(["demo", "--live"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        // The last line, so that it has begun to wait for its end.
        lines.map_while(Result::ok).find(|line| line.starts_with("Enter")).unwrap();
        let socket = first.split("9118:").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
        Demo { child, socket }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Already ended is as good.
        let _ = self.child.wait();
    }
}

/// `mqfq page` of a server, without a browser; killed at the end.
struct Page {
    child: Child,
    /// The address with its key.
    address: String,
}

impl Page {
    fn start(args: &[&str]) -> Page {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
        command.args(["page", "--no-open"]).args(args);
        Page::started(command)
    }

    fn started(mut command: Command) -> Page {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Page { child, address: address.trim().to_owned() }
    }

    /// Without the key.
    fn origin(&self) -> &str {
        self.address.split("?key=").next().unwrap()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Width and height of a PNG. Source: its specification, chunk IHDR.
fn size(png: &[u8]) -> (u32, u32) {
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn the_page_shows_figures_and_bars_live_in_light_and_dark_and_on_a_phone() {
    need!("chromium");
    let demo = Demo::start();
    let page = Page::start(&[&format!("unix:{}", demo.socket)]);
    let origin = page.origin().to_owned();
    let mut browser = Browser::start();
    browser.size(1180, 800, false);
    browser.colours("light");
    browser.go(&page.address);
    browser.wait("document.querySelector('#state')?.textContent === 'live'");

    // Numbers of every tenant, a bar as long as its share, and a line of at least three seconds.
    let row = "[...document.querySelectorAll('tr.row')]";
    let cell = "((row, name) => parseFloat(row.querySelector(`[data-name='${name}']`).textContent))";
    browser.wait(&format!(
        "{row}.length === 3 && {row}.every((row) => {cell}(row, 'received') > 0 && {cell}(row, 'requests/s') > 0 \
         && {cell}(row, 'device p99') > 0 && row.querySelector('.track i').style.width !== '0%') \
         && (document.querySelector('#shares path[stroke-width=\"2.2\"]')?.getAttribute('d').match(/L/g) ?? []).length >= 2"
    ));
    let widths = browser.value(&format!(
        "{row}.map((row) => [row.cells[0].textContent, {cell}(row, 'received'), \
         parseFloat(row.querySelector('.track i').style.width), row.querySelector('.track u').style.left])"
    ));
    for row in widths.as_array().unwrap() {
        let (received, width) = (row[1].as_f64().unwrap(), row[2].as_f64().unwrap());
        assert!((received - width).abs() <= 0.05 && row[3].as_str().unwrap().starts_with("calc("), "{row}");
    }
    // Latencies have bars as well, in both colours, and each tenant has its verdict.
    browser.wait("document.querySelectorAll('#latencies rect').length === 6");
    browser.wait("[...document.querySelectorAll('td.why')].every((why) => why.textContent.length > 10)");

    // Another client's change comes by itself: the list, the mark in the chart, the weight in the table.
    let ctl = |words: &[&str]| {
        let socket = format!("unix:{}", demo.socket);
        let done = mqfq(&[&["ctl", "--socket", &socket][..], words].concat());
        assert!(done.status.success(), "{done:?}");
    };
    ctl(&["tenant", "set", "batch", "--weight", "300"]);
    browser.wait("document.querySelector('#events').textContent.includes('tenant.batch.weight 100 -> 300')");
    browser.wait("document.querySelector('#shares line[stroke-dasharray=\"1 3\"]') !== null");
    browser.wait(&format!("{row}.some((row) => row.textContent.startsWith('batch') && {cell}(row, 'weight') === 300)"));

    let is_blessing = std::env::var_os("MQFQ_BLESS").is_some();
    if is_blessing {
        browser.wait(&format!("history.length >= {}", BLESSED_SECONDS / 2));
        ctl(&["tenant", "set", "batch", "--weight", "100"]);
        browser.wait(&format!("history.length >= {BLESSED_SECONDS}"));
    }
    let mut pictures = Vec::new();
    let background = "getComputedStyle(document.body).backgroundColor";
    for (name, scheme, width, height, is_phone) in
        [("light", "light", 1180, 800, false), ("dark", "dark", 1180, 800, false), ("phone", "light", 390, 844, true)]
    {
        browser.colours(scheme);
        browser.size(width, height, is_phone);
        // The chart is drawn anew for its width.
        browser.wait("document.querySelector('#shares svg').viewBox.baseVal.width <= document.querySelector('#shares').clientWidth + 1");
        assert_eq!(browser.value("document.documentElement.scrollWidth"), width, "{name}: nothing is wider than it");
        assert_eq!(browser.value("getComputedStyle(document.querySelector('thead')).display === 'none'"), is_phone);
        let colour = browser.value(background);
        let wanted = if scheme == "dark" { "rgb(16, 20, 27)" } else { "rgb(246, 247, 249)" };
        assert_eq!(colour, wanted, "{name}");
        let picture = browser.picture(is_phone);
        assert!(
            size(&picture).0 == width && picture.len() > 10_000,
            "{name}: {:?}, {} bytes",
            size(&picture),
            picture.len()
        );
        if is_blessing && name == "light" {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/use/page-light.png"), &picture).unwrap();
        }
        pictures.push(picture);
    }
    assert_ne!(pictures[0], pictures[1], "dark is another picture");

    // It is one file, and its figures come from where it came from.
    assert_eq!(browser.errors(), Vec::<String>::new());
    let mut requests = browser.requests();
    requests.retain(|url| !url.starts_with("data:") && *url != page.address);
    requests.sort();
    requests.dedup();
    assert_eq!(
        requests,
        [
            origin.clone(),
            format!("{origin}v1/events?after=0"),
            format!("{origin}v1/history"),
            format!("{origin}v1/live")
        ]
    );
    // Opened anew, it shows what the server has seen before as well; the mark of the change, too.
    browser.go(&origin);
    let is_live = "document.querySelector('#state')?.textContent === 'live'";
    browser.wait(&format!("{is_live} && history.length > taken + 3 && taken > 0"));
    browser.wait("document.querySelector('#shares line[stroke-dasharray=\"1 3\"]') !== null");
    for (at, text) in [(1, "-10 min"), (2, "-1 h"), (0, "-2 min")] {
        browser.value(&format!("document.querySelectorAll('#spans button')[{at}].click()"));
        let text = text.replace("-1 h", "-60 min");
        browser
            .wait(&format!("[...document.querySelectorAll('#shares text')].some((it) => it.textContent === '{text}')"));
    }

    // And nothing in it could ask elsewhere: the policy that comes with it forbids that.
    for (what, directive) in [
        ("fetch('http://127.0.0.1:1/x').catch(() => {})", "connect-src"),
        ("document.body.append(Object.assign(new Image(), { src: 'http://127.0.0.1:1/x' }))", "img-src"),
        (
            "document.body.append(Object.assign(document.createElement('script'), { src: 'http://127.0.0.1:1/x' }))",
            "script-src-elem",
        ),
    ] {
        let refused = browser.value(&format!(
            "new Promise((done) => {{ document.addEventListener('securitypolicyviolation', \
             (event) => done(event.effectiveDirective), {{ once: true }}); {what}; }})"
        ));
        assert_eq!(refused, directive);
    }
}

#[test]
fn the_page_of_an_address_with_a_token_is_for_who_has_the_printed_address_and_changes_nothing() {
    need!("curl");
    let folder = Folder::new();
    std::fs::write(folder.join("token"), "0123456789abcdef").unwrap();
    std::fs::set_permissions(folder.join("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let control = "listen = [\"unix:@/control.sock\", \"tcp:127.0.0.1:0\"]\ntoken-file = \"@/token\"";
    let server = Server::start_in(folder, &CONFIG.replace("listen = \"unix:@/control.sock\"", control));
    let address = get(&server, "/v1/status")["listen"][1].as_str().unwrap().to_owned();
    let token = server.join("token");
    let page = Page::start(&[&address, "--token-file", token.to_str().unwrap()]);
    let jar = server.join("cookies");
    let curl = |args: &[&str]| {
        let jar = jar.to_str().unwrap();
        let fixed = ["-sS", "--max-time", "60", "-b", jar, "-c", jar, "-w", "\n%{http_code}"];
        let output = run("curl", &[&fixed[..], args].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        let (body, status) = said.rsplit_once('\n').unwrap_or_else(|| panic!("{:?}", output.stderr));
        (status.parse::<u16>().unwrap(), body.to_owned())
    };
    let at = |path: &str| format!("{}{path}", page.origin());
    assert_eq!(curl(&[&at("v1/tenants")]).0, 403, "another user of this machine has no key");
    let (status, html) = curl(&["-L", &page.address]);
    assert!(status == 200 && html.starts_with("<!doctype html>"), "{status} {html}");
    let (status, tenants) = curl(&[&at("v1/tenants")]);
    assert!(status == 200 && tenants.contains("\"web\""), "{status} {tenants}");
    assert_eq!(curl(&["-H", "Host: evil.example", &at("v1/tenants")]).0, 403);
    let set = ["-X", "PATCH", "--json", "{\"weight\": 1}", &at("v1/tenants/web")];
    assert_eq!((curl(&set).0, &get(&server, "/v1/tenants/web")["in_force"]["weight"]), (405, &300.into()));
    // Events come as they happen: the first is that of a change, which the stream waits for.
    assert_eq!(
        crate::control::said(&crate::control::ctl(&server, &["tenant", "set", "web", "--weight", "2"])).lines().count(),
        3
    );
    let (_, events) = curl(&["--max-time", "2", &at("v1/events?after=0")]);
    assert!(events.contains("tenant.web.weight 300 -> 2"), "{events}");
    drop(page);
    server.terminate();
}

#[test]
fn a_browser_is_opened_where_there_is_a_display_with_a_key_that_counts_once() {
    need!("curl");
    let server = Server::start(CONFIG);
    let opener = server.join("xdg-open");
    // In place of a browser: it says which address it was given, by a FIFO, whose reader waits for it.
    std::fs::write(&opener, "#!/bin/sh\necho \"$1\" > \"${0%/*}/opened\"\n").unwrap();
    std::fs::set_permissions(&opener, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run("mkfifo", &[server.join("opened").to_str().unwrap()]).status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqfq"));
    command.args(["page", server.join("control.sock").to_str().unwrap()]).env("DISPLAY", ":9");
    command.env("PATH", format!("{}:/usr/bin:/bin", server.folder().path().display()));
    let page = Page::started(command);
    let opened = run("cat", &[server.join("opened").to_str().unwrap()]).stdout;
    let opened = String::from_utf8(opened).unwrap().trim().to_owned();
    assert!(opened.starts_with(page.origin()) && opened != page.address, "{opened}, printed {}", page.address);
    let status = |address: &str| {
        let curl = run("curl", &["-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", address]);
        String::from_utf8(curl.stdout).unwrap()
    };
    let all = [&opened, &opened, &page.address, &page.address].map(|address| status(address));
    assert_eq!(all, ["303", "403", "303", "303"], "the process list shows the first, so it counts once");
    drop(page);
    server.terminate();
}
