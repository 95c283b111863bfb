//! Loop of `mqfq top`: a thread reads snapshots, the terminal reports keys, and each of both causes a redraw.

use crate::live::Snapshot;
use crate::top::draw::draw;
use crate::top::view::{Action, Key, View};
use axum::http::Method;
use mqfq_control::client::{Ask, Client, encoded};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

/// How long a key may wait for a snapshot, and a snapshot for a key.
const LOOK: Duration = Duration::from_millis(50);

/// Between two snapshots of a recording.
const SECOND: Duration = Duration::from_secs(1);

/// Options of `mqfq top`.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// The server.
    pub client: Client,
    /// Appends each snapshot to this file, one JSON object to a line.
    pub record: Option<PathBuf>,
    /// Shows what such a file has, and asks no server.
    pub replay: Option<PathBuf>,
}

type Source = Receiver<Result<Snapshot, String>>;

/// Shows a server until the user leaves or the server ends.
///
/// # Errors
/// One sentence: no server, no terminal, or a file that cannot be read or written.
pub fn top(options: &TopOptions) -> Result<(), String> {
    // A server that cannot be asked is reported before the screen is taken.
    if options.replay.is_none() {
        options.client.ask(Ask::new(Method::GET, "/v1/status"))?.good().map_err(|problem| problem.detail)?;
    }
    let snapshots = match &options.replay {
        Some(file) => replayed(file)?,
        None => live(&options.client),
    };
    let mut record = options.record.as_deref().map(open).transpose()?;
    let mut terminal = ratatui::try_init().map_err(|error| format!("there is no terminal to draw on: {error}"))?;
    let result = show(&mut terminal, options, &snapshots, record.as_mut());
    ratatui::restore();
    result
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    options: &TopOptions,
    snapshots: &Source,
    mut record: Option<&mut (File, PathBuf)>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal: {error}");
    let (mut view, mut is_lost) = (View::default(), false);
    loop {
        terminal.draw(|frame| draw(frame, &view)).map_err(failed)?;
        if event::poll(LOOK).map_err(failed)?
            && let Event::Key(pressed) = event::read().map_err(failed)?
            && let Some(key) = key_of(pressed)
        {
            match view.key(key) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::SetWeight { .. }) if options.replay.is_some() => {
                    view.message = "a recording has no server to change".to_owned();
                }
                Some(Action::SetWeight { tenant, weight }) => {
                    // An export's flow has its tenant's name before the stroke.
                    let name = tenant.split('/').next().unwrap_or(&tenant);
                    view.message = match set_weight(&options.client, name, weight) {
                        Ok(()) => format!("the weight of {name} is {weight} now"),
                        Err(sentence) => sentence,
                    };
                }
                None => {}
            }
        }
        loop {
            match snapshots.try_recv() {
                Ok(Ok(snapshot)) => {
                    if let Some((file, path)) = &mut record {
                        write(file, &snapshot)
                            .map_err(|error| format!("cannot write to {}: {error}", path.display()))?;
                    }
                    view.take(snapshot);
                    if std::mem::take(&mut is_lost) {
                        view.message.clear();
                    }
                }
                Ok(Err(sentence)) => (view.message, is_lost) = (sentence, true),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
    }
}

fn key_of(pressed: KeyEvent) -> Option<Key> {
    if !matches!(pressed.kind, KeyEventKind::Press | KeyEventKind::Repeat) {
        return None;
    }
    match pressed.code {
        KeyCode::Char('c') if pressed.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Char('q')),
        KeyCode::Char(typed) => Some(Key::Char(typed)),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::Tab => Some(Key::Tab),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        _ => None,
    }
}

/// Snapshots of a server.
fn live(client: &Client) -> Source {
    let (client, (sender, snapshots)) = (client.clone(), mpsc::channel());
    thread::spawn(move || {
        // Another server may take the place of one that has ended (`serve --replace`).
        loop {
            let each = |snapshot: Snapshot| Ok(sender.send(Ok(snapshot)).is_ok());
            let Err(sentence) = client.events(Ask::new(Method::GET, "/v1/live"), each) else { return };
            if sender.send(Err(sentence)).is_err() {
                return;
            }
            thread::park_timeout(SECOND);
        }
    });
    snapshots
}

/// Gives a tenant another weight.
fn set_weight(client: &Client, tenant: &str, weight: u16) -> Result<(), String> {
    let ask = Ask::new(Method::PATCH, format!("/v1/tenants/{}", encoded(tenant)));
    let reply = client.ask(ask.body("application/json", format!("{{\"weight\":{weight}}}")))?;
    reply.good().map(drop).map_err(|problem| problem.detail)
}

/// Snapshots of a recording, one a second.
fn replayed(path: &Path) -> Result<Source, String> {
    let all = read(path)?;
    let (sender, snapshots) = mpsc::channel();
    thread::spawn(move || {
        for snapshot in all {
            if sender.send(Ok(snapshot)).is_err() {
                return;
            }
            thread::park_timeout(SECOND);
        }
        // A reader that is gone needs no word of the end.
        let _ = sender.send(Err("the recording has ended".to_owned()));
    });
    Ok(snapshots)
}

/// The snapshots of a recording.
///
/// # Errors
/// One sentence: it cannot be read, or a line of it is no snapshot.
pub fn read(path: &Path) -> Result<Vec<Snapshot>, String> {
    let name = path.display();
    let file = File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let lines = BufReader::new(file).lines().enumerate();
    let snapshot = |(at, line): (usize, std::io::Result<String>)| {
        let line = line.map_err(|error| format!("cannot read {name}: {error}"))?;
        serde_json::from_str(&line)
            .map_err(|_| format!("{name}:{}: this is no snapshot, allowed is what --record has written", at + 1))
    };
    lines.map(snapshot).collect()
}

/// One more snapshot for a recording.
///
/// # Errors
/// The file cannot be written.
pub fn write(file: &mut impl Write, snapshot: &Snapshot) -> std::io::Result<()> {
    let line = serde_json::to_string(snapshot).map_err(std::io::Error::other)?;
    writeln!(file, "{line}")
}

fn open(path: &Path) -> Result<(File, PathBuf), String> {
    let file = File::options().create(true).append(true).open(path);
    file.map(|file| (file, path.to_owned())).map_err(|error| format!("cannot write to {}: {error}", path.display()))
}
