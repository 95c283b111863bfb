//! A text that the reader of configs walks: no text makes it panic, and every refusal is a sentence that begins with
//! the file's name and has no control character of the text in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqfq_config::{ConfigError, Section, Source, duration};

const KEYS: &[&str] = &["number", "word", "flag", "size", "auto", "decimal", "table", "text"];
const INNER: &[&str] = &["number", "size"];

fuzz_target!(|text: &str| {
    if let Err(error) = walk(text) {
        let sentence = error.to_string();
        assert!(sentence.starts_with("fuzz.toml"), "{sentence}");
        let is_harmless = |c: char| !c.is_control() || c == '\n';
        assert!(sentence.chars().all(is_harmless), "{sentence:?}");
    }
    if let Some(ns) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::display(ns)), Some(ns), "{text:?}");
    }
});

/// Asks for a key of each kind.
fn walk(text: &str) -> Result<(), ConfigError> {
    let source = Source::new("fuzz.toml", text);
    let parsed = source.parse()?;
    let root = Section::root(&source, parsed.get_ref(), KEYS)?;
    root.get("number").map(|entry| entry.number(1..=1000u32)).transpose()?;
    root.get("word").map(|entry| entry.choice(&["one", "two"])).transpose()?;
    root.get("flag").map(|entry| entry.flag()).transpose()?;
    root.get("size").map(|entry| entry.size(1..=u64::MAX)).transpose()?;
    root.get("auto").map(|entry| entry.size_or("auto", 1..=1 << 40)).transpose()?;
    root.get("decimal").map(|entry| entry.decimal(0.0..=1.0)).transpose()?;
    root.get("text").map(|entry| entry.text("a text")).transpose()?;
    for (_, section) in root.named_tables("table")? {
        let section = section.with_allowed(INNER)?;
        section.require("number", "a number")?.number_or("none", 0..=9u8)?;
    }
    Ok(())
}
