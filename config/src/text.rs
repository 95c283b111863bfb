//! Text of users inside sentences of ours: on one line, in printable characters, and no longer than a reader needs.
//!
//! A config value may hold anything: a line break that forges a log line, an escape code that recolours the terminal, a
//! megabyte. [`quoted`] and [`shown`] make a value harmless where a sentence is built; [`sentence`] does it once more
//! for a whole sentence where it is printed, so that a place that forgot the first is not dangerous.

/// Characters of a value that a sentence shows; of a longer one the beginning. Longer than any socket's path.
const VALUE_CHARS_MAX: usize = 256;

/// Characters of a sentence that are printed.
const SENTENCE_CHARS_MAX: usize = 4096;

/// Longest word for which a similar one is looked for, characters.
const SUGGESTED_CHARS_MAX: usize = 64;

/// Names in a list of what there is.
const NAMES_MAX: usize = 16;

/// Where `text` is to be cut so that it has `chars_max` characters; `None`: it has no more.
fn cut(text: &str, chars_max: usize) -> Option<usize> {
    text.char_indices().nth(chars_max).map(|(byte, _)| byte)
}

/// `text` in quotes, with escapes for what is not printable; of a long one the beginning and the number of bytes.
pub fn quoted(text: &str) -> String {
    match cut(text, VALUE_CHARS_MAX) {
        Some(end) => format!("{:?}... ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

/// `text` as it is if that is harmless, otherwise [`quoted`]: for names, paths and numbers.
pub fn shown(text: &str) -> String {
    let is_harmless = !text.is_empty() && cut(text, VALUE_CHARS_MAX).is_none() && text.chars().all(is_printable);
    if is_harmless { text.to_owned() } else { quoted(text) }
}

/// Not a control character, a line separator or another that Rust escapes; quotes and backslashes are printable.
fn is_printable(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1
}

/// The text of a file that was read as `bytes`.
///
/// # Errors
/// The bytes are not text: a message that follows "cannot read PATH: ".
pub fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let (good, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} is no text, allowed is UTF-8")
    })
}

/// `number` things, in words: "1 key", "2 keys".
pub fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// `names`, with commas; of many the first ones and how many more there are.
pub fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMES_MAX);
    let first: Vec<String> = names.take(NAMES_MAX).map(shown).collect();
    let first = first.join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// The end of a refusal of `word`: `"; did you mean NAME?"` with the nearest of `known`, empty if none is near.
///
/// Near is one wrong, missing, extra or swapped character in each three of `word`.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let length = word.chars().count();
    let most = length / 3;
    if !(3..=SUGGESTED_CHARS_MAX).contains(&length) {
        return String::new();
    }
    let is_near = |name: &&str| name.len() <= 4 * SUGGESTED_CHARS_MAX && name.chars().count().abs_diff(length) <= most;
    let candidates = known.into_iter().filter(is_near);
    let nearest = candidates.map(|name| (strsim::damerau_levenshtein(word, name), name)).min();
    match nearest {
        Some((distance, name)) if (1..=most).contains(&distance) => format!("; did you mean {}?", shown(name)),
        _ => String::new(),
    }
}

/// `text` as one printable line: escapes for what is not printable, without the numbers that Rust adds to an operating
/// system's errors (`" (os error 2)"`, which say nothing to a user), and not longer than a few lines of a terminal.
pub fn sentence(text: &str) -> String {
    let end = cut(text, SENTENCE_CHARS_MAX);
    let mut rest = &text[..end.unwrap_or(text.len())];
    let mut line = String::with_capacity(rest.len());
    let mut put = |part: &str| {
        for c in part.chars() {
            if is_printable(c) { line.push(c) } else { line.extend(c.escape_debug()) }
        }
    };
    const NUMBER: &str = " (os error ";
    while let Some(start) = rest.find(NUMBER) {
        let (before, number) = (&rest[..start], &rest[start + NUMBER.len()..]);
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && number[digits..].starts_with(')') {
            put(before);
            rest = &number[digits + 1..];
        } else {
            put(&rest[..start + NUMBER.len()]);
            rest = number;
        }
    }
    put(rest);
    if end.is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_printable_line_of_bounded_length() {
        assert_eq!(quoted("alice"), "\"alice\"");
        assert_eq!(quoted("a\nb\u{1b}[31m\"\\"), r#""a\nb\u{1b}[31m\"\\""#);
        let long = "é".repeat(1 << 20);
        assert_eq!(quoted(&long), format!("\"{}\"... (2097152 bytes)", "é".repeat(VALUE_CHARS_MAX)));
        assert_eq!(quoted(&"n".repeat(VALUE_CHARS_MAX)), format!("\"{}\"", "n".repeat(VALUE_CHARS_MAX)));
    }

    #[test]
    fn a_file_that_is_no_text_is_refused_with_the_line() {
        assert_eq!(utf8("é\n".into()), Ok("é\n".to_owned()));
        assert_eq!(utf8(b"ab\nb\n\xffc".to_vec()), Err("line 3 is no text, allowed is UTF-8".to_owned()));
        assert_eq!(utf8(b"\xc3".to_vec()), Err("line 1 is no text, allowed is UTF-8".to_owned()));
    }

    #[test]
    fn a_harmless_value_is_shown_as_it_is() {
        for text in ["alice", "/srv/it's \"here\"/disk", "C:\\disk", "Zoë"] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown(""), "\"\"");
        assert_eq!(shown("a\r\nready"), r#""a\r\nready""#);
        assert_eq!(shown("right\u{202e}left"), r#""right\u{202e}left""#, "no text that runs backwards");
        assert!(shown(&"n".repeat(VALUE_CHARS_MAX + 1)).ends_with("\"... (257 bytes)"));
    }

    #[test]
    fn a_long_list_says_how_many_more_there_are() {
        assert_eq!(list(["a", "b\n"].into_iter()), r#"a, "b\n""#);
        let many: Vec<String> = (0..10_000).map(|number| format!("t{number}")).collect();
        let listed = list(many.iter().map(String::as_str));
        assert!(listed.starts_with("t0, t1, ") && listed.ends_with(", t15 and 9984 more"), "{listed}");
    }

    #[test]
    fn a_word_that_is_nearly_a_name_is_answered_with_the_name() {
        let known = ["weight", "group", "class", "web", "db", "weights"];
        let answer = |word| did_you_mean(word, known);
        assert_eq!(answer("weigth"), "; did you mean weight?");
        assert_eq!(answer("wieght"), "; did you mean weight?");
        assert_eq!(answer("weightss"), "; did you mean weights?");
        assert_eq!(answer("wbe"), "; did you mean web?");
        for far in ["", "x", "ab", "port", "weight", &"weight".repeat(100)] {
            assert_eq!(answer(far), "", "{far}");
        }
        assert_eq!(did_you_mean("a\nbcd", ["a\tbcd"]), "; did you mean \"a\\tbcd\"?");
    }

    #[test]
    fn a_sentence_has_no_numbers_of_errors_and_no_control_characters() {
        assert_eq!(sentence("No such file (os error 2); again (os error 13)"), "No such file; again");
        assert_eq!(
            sentence("a (os error x) b (os error ) c (os error 7"),
            "a (os error x) b (os error ) c (os error 7"
        );
        assert_eq!(sentence("it's \"a\"\nmqfq: b\u{7}"), "it's \"a\"\\nmqfq: b\\u{7}");
        let long = sentence(&"x".repeat(1 << 20));
        assert_eq!(long.len(), SENTENCE_CHARS_MAX + 3);
    }
}
