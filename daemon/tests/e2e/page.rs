//! The page in a browser: headless Chromium looks at the page of `mqfq demo --live`, in light, in dark and as wide as a
//! phone.
//!
//! `MQFQ_BLESS=1 cargo test --release -p mqfq --test e2e page::` waits a minute and writes the pictures of
//! `docs/use/page.md`; otherwise pictures are taken and thrown away.

use crate::server::mqfq;
use mqfq_testing::browser::Browser;
use mqfq_testing::tools::need;
use std::io::{BufRead, BufReader, copy};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;

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

/// What ssh is to a user: a port of loopback that leads to the socket, for as long as the test runs.
fn forward(socket: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, socket) = (listener.local_addr().unwrap().port(), socket.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&socket) else { return };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                // One that breaks off is as good as one that ends.
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            thread::spawn(move || back(server, client));
        }
    });
    port
}

fn back(mut server: UnixStream, mut client: TcpStream) {
    // As above.
    let _ = copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
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
    let port = forward(&demo.socket);
    let origin = format!("http://127.0.0.1:{port}/");
    let mut browser = Browser::start();
    browser.size(1180, 800, false);
    browser.colours("light");
    browser.go(&origin);
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

    // A change of somebody else comes by itself: the list, the mark in the chart, the weight in the table.
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
        if is_blessing {
            let path = format!("{}/../docs/use/page-{name}.png", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, &picture).unwrap();
        }
        pictures.push(picture);
    }
    assert_ne!(pictures[0], pictures[1], "dark is another picture");

    // It is one file, and its figures come from where it came from.
    assert_eq!(browser.errors(), Vec::<String>::new());
    let mut requests = browser.requests();
    requests.retain(|url| !url.starts_with("data:"));
    requests.sort();
    requests.dedup();
    assert_eq!(requests, [origin.clone(), format!("{origin}v1/events?after=0"), format!("{origin}v1/live")]);
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
