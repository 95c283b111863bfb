//! Takes Rust source apart just far enough for tidy: per line the code (strings and comments blanked out), the comment,
//! and whether the line is part of a test.
//!
//! A lexer of strings, characters and comments, and a counter of braces; no parser. Macros that make modules it cannot
//! know; this project has none.

/// One line of a Rust file.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Line {
    /// The code. The insides of strings, characters and comments are blank.
    pub code: String,
    /// The text of comments on the line, without their slashes.
    pub comment: String,
    /// Part of an item under `#[cfg(test)]`, or of a test file.
    pub test: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    BlockComment { depth: u32 },
    Text,
    RawText { hashes: usize },
}

/// Takes `text` apart, line by line.
pub fn lines(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        let here = chars[at];
        if here == '\n' {
            lines.push(Line::default());
            if state == State::LineComment {
                state = State::Code;
            }
            at += 1;
            continue;
        }
        let line = lines.last_mut().expect("there is always a last line");
        let (next, taken) = step(state, &chars, at, line);
        state = next;
        at += taken;
    }
    if text.ends_with('\n') {
        lines.pop();
    }
    mark_tests(&mut lines);
    lines
}

/// Consumes what starts at `at`: the state after it, and how many characters it took (none of them a line's end).
fn step(state: State, chars: &[char], at: usize, line: &mut Line) -> (State, usize) {
    let here = chars[at];
    let next = chars.get(at + 1).copied().unwrap_or('\n');
    match state {
        State::Code => match here {
            '/' if next == '/' => (State::LineComment, 2),
            '/' if next == '*' => (State::BlockComment { depth: 1 }, 2),
            '"' => {
                line.code.push('"');
                (State::Text, 1)
            }
            'r' if !continues_a_word(chars, at) => match raw_hashes(chars, at + 1) {
                Some(hashes) => {
                    line.code.push('"');
                    (State::RawText { hashes }, hashes + 2)
                }
                None => {
                    line.code.push(here);
                    (state, 1)
                }
            },
            '\'' => {
                let taken = character_length(chars, at);
                line.code.push_str(if taken > 1 { "' '" } else { "'" });
                (state, taken)
            }
            _ => {
                line.code.push(here);
                (state, 1)
            }
        },
        State::LineComment => {
            line.comment.push(here);
            (state, 1)
        }
        State::BlockComment { depth } => match (here, next) {
            ('*', '/') if depth == 1 => (State::Code, 2),
            ('*', '/') => (State::BlockComment { depth: depth - 1 }, 2),
            ('/', '*') => (State::BlockComment { depth: depth + 1 }, 2),
            _ => {
                line.comment.push(here);
                (state, 1)
            }
        },
        State::Text => match here {
            '\\' if next != '\n' => (state, 2),
            '"' => {
                line.code.push('"');
                (State::Code, 1)
            }
            _ => (state, 1),
        },
        State::RawText { hashes } => {
            if here == '"' && chars[at + 1..].iter().take_while(|c| **c == '#').count() >= hashes {
                line.code.push('"');
                return (State::Code, 1 + hashes);
            }
            (state, 1)
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// True if the `r` at `at` is in the middle of a word (and not the second half of `br` or `cr`).
fn continues_a_word(chars: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|index| chars[index]);
    match before(1) {
        Some('b' | 'c') => before(2).is_some_and(is_word),
        Some(c) => is_word(c),
        None => false,
    }
}

/// Number of `#` before a raw string's quote, if one starts here.
fn raw_hashes(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + hashes) == Some(&'"')).then_some(hashes)
}

/// Length of the character literal at `at`, or 1 if the quote begins a lifetime.
fn character_length(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let rest = chars.get(at + 3..).unwrap_or_default();
            let close = rest.iter().take_while(|c| **c != '\n').position(|c| *c == '\'');
            close.map_or(1, |offset| offset + 4)
        }
        (Some(_), Some('\'')) => 3,
        _ => 1,
    }
}

/// A place under `#[cfg(test)]` or the like: the line of the attribute, and where the item after it starts.
struct TestItem {
    first_line: usize,
    last_line: usize,
    /// `mod name;`: the module whose file is a test.
    module: Option<String>,
    /// `#![cfg(test)]`: all of the file.
    whole_file: bool,
}

/// A module in a file of its own that only tests have.
#[derive(Debug, PartialEq, Eq)]
pub struct TestModule {
    /// Its name.
    pub name: String,
    /// Its file, if `#[path]` names one.
    pub path: Option<String>,
}

/// The modules of `text` in files of their own that only tests have; `lines` is `text` taken apart.
pub fn test_modules(text: &str, lines: &[Line]) -> Vec<TestModule> {
    let raw: Vec<&str> = text.lines().collect();
    let items = test_items(lines).into_iter();
    items
        .filter_map(|item| {
            let path = raw[item.first_line..=item.last_line]
                .iter()
                .find_map(|line| line.split_once("#[path = \"")?.1.split('"').next());
            Some(TestModule { name: item.module?, path: path.map(str::to_string) })
        })
        .collect()
}

fn mark_tests(lines: &mut [Line]) {
    for item in test_items(lines) {
        let range = if item.whole_file { 0..lines.len() } else { item.first_line..item.last_line + 1 };
        lines[range].iter_mut().for_each(|line| line.test = true);
    }
}

fn test_items(lines: &[Line]) -> Vec<TestItem> {
    let code: Vec<(usize, char)> = lines
        .iter()
        .enumerate()
        .flat_map(|(number, line)| line.code.chars().chain(['\n']).map(move |c| (number, c)))
        .collect();
    let text: String = code.iter().map(|(_, c)| *c).collect();
    // Positions in `text` are bytes and those in `code` characters; code outside strings and comments is ASCII here,
    // and anything else is replaced so that they agree.
    let text: String = text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
    let mut items = Vec::new();
    for (start, opening) in text.match_indices("#[cfg(").chain(text.match_indices("#![cfg(")) {
        let Some(end) = matching(&text, start + opening.len() - 1, '(', ')') else { continue };
        if !asks_for_test(&text[start + opening.len()..end]) {
            continue;
        }
        let whole_file = opening.starts_with("#!");
        let (stop, module) = item_after(&text, end + 2);
        items.push(TestItem {
            first_line: code[start].0,
            last_line: code[stop.min(code.len() - 1)].0,
            module: if whole_file { None } else { module },
            whole_file,
        });
    }
    items
}

/// True for `test`, `all(test, …)`, and not for `not(test)`.
fn asks_for_test(condition: &str) -> bool {
    let words: Vec<&str> = condition.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    words.iter().enumerate().any(|(index, word)| *word == "test" && (index == 0 || words[index - 1] != "not"))
}

/// Position of the bracket that closes the one at `open`.
fn matching(text: &str, open: usize, opening: char, closing: char) -> Option<usize> {
    let mut depth = 0;
    for (offset, c) in text[open..].char_indices() {
        if c == opening {
            depth += 1;
        } else if c == closing {
            depth -= 1;
            if depth == 0 {
                return Some(open + offset);
            }
        }
    }
    None
}

/// Where the item that starts at `from` ends, and its name if it is `mod name;`.
fn item_after(text: &str, from: usize) -> (usize, Option<String>) {
    let from = from.min(text.len());
    let mut at = from;
    // Further attributes belong to the item, and their brackets are not its body.
    while let Some(offset) = text[at..].find(|c: char| !c.is_whitespace()) {
        if !text[at + offset..].starts_with("#[") {
            break;
        }
        match matching(text, at + offset + 1, '[', ']') {
            Some(end) => at = end + 1,
            None => return (text.len(), None),
        }
    }
    let Some(offset) = text[at..].find(['{', ';']) else { return (text.len(), None) };
    let stop = at + offset;
    if text[stop..].starts_with('{') {
        return (matching(text, stop, '{', '}').unwrap_or(text.len()), None);
    }
    let mut words = text[at..stop].split_whitespace().skip_while(|word| *word != "mod");
    words.next();
    (stop, words.next().map(str::to_string))
}

/// True if `code` contains `word` with no word character on either side. `word` may be a path such as `thread::spawn`.
pub fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(start, _)| {
        let before = code[..start].chars().next_back();
        let after = code[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code("let a = \"Instant // \\\" {\"; // Instant"), ["let a = \"\"; "]);
        assert_eq!(code("let a = r#\"x \" y\"#; b"), ["let a = \"\"; b"]);
        assert_eq!(code("a /* b /* c */ d */ e"), ["a  e"]);
        assert_eq!(code("let x = b\"{\"; let y = br\"{\"; str()"), ["let x = b\"\"; let y = b\"\"; str()"]);
        assert_eq!(lines("x; // why")[0].comment, " why");
    }

    #[test]
    fn a_string_may_span_lines() {
        assert_eq!(code("a(\"one\ntwo Instant\nthree\") b"), ["a(\"", "", "\") b"]);
    }

    #[test]
    fn a_lifetime_does_not_open_a_character() {
        assert_eq!(code("fn f<'a>(x: &'a str) { '\"' ; '\\'' ; '{' }"), ["fn f<'a>(x: &'a str) { ' ' ; ' ' ; ' ' }"]);
    }

    #[test]
    fn a_test_module_ends_at_its_brace() {
        let marks: Vec<bool> = lines("fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { \"}\" }\n}\nfn c() {}\n")
            .iter()
            .map(|l| l.test)
            .collect();
        assert_eq!(marks, [false, true, true, true, true, false]);
    }

    #[test]
    fn only_a_condition_that_asks_for_test_marks() {
        assert!(lines("#[cfg(all(test, mqfq_loom))]\nuse x;")[1].test);
        assert!(!lines("#[cfg(not(test))]\nuse x;")[1].test);
        assert!(!lines("#[cfg(feature = \"test\")]\nuse x;")[1].test);
        assert!(lines("//! Text.\n#![cfg(test)]\nfn a() {}")[2].test);
    }

    #[test]
    fn a_module_in_its_own_file_is_named() {
        let text = "#[cfg(test)]\n#[allow(x)]\npub(crate) mod model;\nmod real;\n#[cfg(test)]\n#[path = \"a_tests.rs\"]\nmod t;";
        let module = |name: &str, path: Option<&str>| TestModule { name: name.into(), path: path.map(Into::into) };
        assert_eq!(test_modules(text, &lines(text)), [module("model", None), module("t", Some("a_tests.rs"))]);
    }

    #[test]
    fn a_word_is_not_part_of_a_longer_one() {
        assert!(has_word("Instant::now()", "Instant") && !has_word("Instantly", "Instant"));
        assert!(has_word("std::thread::spawn(|| x)", "thread::spawn"));
        assert!(!has_word("fasleep(1)", "sleep"));
    }
}
