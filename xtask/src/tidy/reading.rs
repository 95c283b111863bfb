//! `reading-level`: README.md and the pages for users can be read by people who do not read for a living.
//!
//! Measure: the Flesch-Kincaid grade, 0.39 x words per sentence + 11.8 x syllables per word - 15.59, of a page's
//! sentences: without code, tables, titles and the targets of links, and code in a sentence as one short word. Source:
//! Kincaid, Fishburne, Rogers, Chissom, "Derivation of new readability formulas", 1975. A syllable is a run of vowels,
//! of which a last `e` is none; that is right for nine words of ten, and for the mean of a page.

use super::report::Report;
use super::tree::{File, Tree};

/// Highest grade: a reader of 16 years.
const GRADE_MAX: f64 = 10.0;

/// Fewer words on a page say nothing.
const WORDS_MIN: usize = 20;

/// `reading-level`: see above.
pub fn level(tree: &Tree, report: &mut Report) {
    let pages = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    for page in pages.filter(|page| page.path == "README.md" || page.path.starts_with("docs/use/")) {
        if let Some(grade) = grade(page).filter(|&grade| grade > GRADE_MAX) {
            report.add(&page.path, 0, format!("its sentences have grade {grade:.1}, at most {GRADE_MAX} is allowed"));
        }
    }
}

/// The grade of a page's sentences. `None`: it has too few words.
pub fn grade(page: &File) -> Option<f64> {
    let (mut sentences, mut words, mut syllables) = (0, 0, 0);
    for paragraph in paragraphs(&page.text) {
        for sentence in paragraph.split_inclusive(['.', '!', '?']) {
            let before = words;
            for word in sentence.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(|word| !word.is_empty())
            {
                words += 1;
                syllables += syllables_of(word);
            }
            sentences += usize::from(words > before);
        }
    }
    let per = |count: usize, of: usize| count as f64 / of as f64;
    (words >= WORDS_MIN).then(|| 0.39 * per(words, sentences) + 11.8 * per(syllables, words) - 15.59)
}

/// The paragraphs and list entries of a page, as they are read aloud.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut all, mut fenced) = (vec![String::new()], false);
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let begins = line.trim_start();
        let is_prose = !fence && !fenced && !begins.is_empty() && !begins.starts_with(['#', '|', '!']);
        if !is_prose || begins.starts_with("* ") {
            all.push(String::new());
        }
        if is_prose && let Some(paragraph) = all.last_mut() {
            paragraph.push_str(begins);
            paragraph.push(' ');
        }
    }
    all.iter().map(|paragraph| aloud(paragraph)).collect()
}

/// `paragraph` with its code as the word "it", and links as their words. A dot inside a word or a number ends nothing.
fn aloud(paragraph: &str) -> String {
    let words: Vec<&str> =
        paragraph.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { "it" } else { part }).collect();
    let mut text = String::new();
    let mut rest = words.join("").replace("](", "\u{1}");
    while let Some((before, after)) = rest.split_once('\u{1}') {
        text.push_str(before);
        rest = after.split_once(')').map_or(String::new(), |(_, behind)| behind.to_owned());
    }
    text.push_str(&rest);
    let chars: Vec<char> = text.chars().collect();
    let inside = |at: usize| chars[at] == '.' && chars.get(at + 1).is_some_and(|next| next.is_ascii_alphanumeric());
    (0..chars.len()).map(|at| if inside(at) { '\'' } else { chars[at] }).collect()
}

fn syllables_of(word: &str) -> usize {
    let word = word.to_ascii_lowercase();
    let vowel = |c: char| "aeiouy".contains(c);
    let runs = word.split(|c| !vowel(c)).filter(|run| !run.is_empty()).count();
    let silent = word.ends_with('e') && !word.ends_with("le") && runs > 1;
    (runs - usize::from(silent)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syllables_are_counted_as_they_are_spoken() {
        let words = ["drive", "table", "a", "scheduler", "queue", "device", "byte"];
        assert_eq!(words.map(syllables_of), [1, 2, 1, 3, 1, 2, 1]);
    }

    #[test]
    fn only_sentences_count() {
        let text = "# Title of a page\n\n```sh\nno sentence\n```\n| a | table |\n\nRead [it](a/b.md#c) by `mqfq.toml`, \
                    1.5 times.\n* An entry.\n";
        let said: Vec<String> = paragraphs(text).into_iter().filter(|paragraph| !paragraph.is_empty()).collect();
        assert_eq!(said, ["Read [it by it, 1'5 times. ", "* An entry. "]);
    }
}
