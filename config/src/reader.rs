//! TOML tables read key by key, with every refusal saying file, line, key, what is wrong and what is allowed.
//!
//! Why not serde: its errors know a position but neither the key's full name nor what would have been right, and a
//! check that involves two keys (an export past its device's end) comes after deserialization, when positions are gone.
//! The spanned tree of the toml crate has both, so a [`Section`] walks that.

use crate::text::{did_you_mean, quoted, sentence, shown};
use crate::{duration, size};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A config that cannot be used; one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file's name as the user gave it.
    pub file: String,
    /// Line, 1-based.
    pub line: usize,
    /// Full name of the key, such as `tenant.alice.weight`; empty if the file is not TOML at all.
    pub key: String,
    /// The mistake, and the allowed values.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", shown(&self.file), self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

/// Where something stands in the file: enough to refuse it later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLocation {
    file: Arc<str>,
    line: usize,
    key: String,
}

impl SourceLocation {
    /// The full name of the key that stands here.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The refusal of the value here. Parts of `message` that come from the file cannot break the line.
    pub fn error(&self, message: impl AsRef<str>) -> ConfigError {
        let message = sentence(message.as_ref());
        ConfigError { file: self.file.to_string(), line: self.line, key: self.key.clone(), message }
    }

    /// The place of `key` inside the table that stands here, for a key that is missing.
    pub fn inside(&self, key: &str) -> SourceLocation {
        SourceLocation { file: self.file.clone(), line: self.line, key: join(&self.key, key) }
    }
}

/// A file's name and text.
pub struct Source<'a> {
    file: Arc<str>,
    text: &'a str,
    /// Where its lines end, in order: the line of a key is found among them instead of counted from the beginning,
    /// which would make reading quadratic.
    line_ends: Vec<usize>,
}

impl<'a> Source<'a> {
    /// The `text` of `file`, which is only its name.
    pub fn new(file: &str, text: &'a str) -> Source<'a> {
        let line_ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        Source { file: file.into(), text, line_ends }
    }

    /// The root table.
    ///
    /// # Errors
    /// The file is not TOML.
    pub fn parse(&self) -> Result<Spanned<DeTable<'a>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| {
            let line = self.line_of(error.span().map_or(0, |span| span.start));
            // The toml crate writes one line per fact; a config error is one sentence.
            let mut message = sentence(&error.message().trim().replace('\n', ", "));
            if let Some(key) = error.span().filter(|_| message == "duplicate key").and_then(|at| self.text.get(at)) {
                message = format!("{} stands here for the second time, allowed is once", shown(key));
            }
            let message = format!("not valid TOML: {message}");
            ConfigError { file: self.file.to_string(), line, key: String::new(), message }
        })
    }

    fn line_of(&self, byte: usize) -> usize {
        1 + self.line_ends.partition_point(|end| *end < byte)
    }

    fn place(&self, byte: usize, key: String) -> SourceLocation {
        SourceLocation { file: self.file.clone(), line: self.line_of(byte), key }
    }
}

/// One table whose keys are known.
pub struct Section<'s, 'a> {
    source: &'s Source<'a>,
    table: &'s DeTable<'a>,
    place: SourceLocation,
    allowed: &'static [&'static str],
}

impl<'s, 'a> Section<'s, 'a> {
    /// The root table.
    ///
    /// # Errors
    /// A key that is not `allowed`.
    pub fn root(
        source: &'s Source<'a>,
        table: &'s DeTable<'a>,
        allowed: &'static [&'static str],
    ) -> Result<Self, ConfigError> {
        Section { source, table, place: source.place(0, String::new()), allowed: &[] }.with_allowed(allowed)
    }

    /// This table with another list of allowed keys.
    ///
    /// # Errors
    /// A key that is not `allowed`.
    pub fn with_allowed(self, allowed: &'static [&'static str]) -> Result<Self, ConfigError> {
        for key in self.table.keys() {
            if !allowed.contains(&key.get_ref().as_ref()) {
                let place = self.source.place(key.span().start, join(&self.place.key, key.get_ref()));
                let hint = did_you_mean(key.get_ref(), allowed.iter().copied());
                return Err(place.error(format!("unknown key, allowed are {}{hint}", allowed.join(", "))));
            }
        }
        Ok(Section { allowed, ..self })
    }

    /// Where the table begins.
    pub fn place(&self) -> &SourceLocation {
        &self.place
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &'static str) -> Option<Entry<'s, 'a>> {
        assert!(self.allowed.is_empty() || self.allowed.contains(&key), "{key} is read but not in the allowed list");
        let (name, value) = self.table.get_key_value(key)?;
        let place = self.source.place(name.span().start, join(&self.place.key, key));
        Some(Entry { source: self.source, place, value: value.get_ref() })
    }

    /// None of `keys` is there.
    ///
    /// # Errors
    /// `why`, at the first such key.
    pub fn refuse(&self, keys: &[&'static str], why: &str) -> Result<(), ConfigError> {
        match keys.iter().find_map(|key| self.get(key)) {
            Some(entry) => Err(entry.place().error(why)),
            None => Ok(()),
        }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// It is missing; `allowed` says what to write.
    pub fn require(&self, key: &'static str, allowed: &str) -> Result<Entry<'s, 'a>, ConfigError> {
        let missing = || self.place.inside(key).error(format!("this key is missing, allowed is {allowed}"));
        self.get(key).ok_or_else(missing)
    }

    /// The table of `key` with any keys; if it is not there, a table without keys.
    ///
    /// # Errors
    /// `key` is no table.
    pub fn inner(&self, key: &'static str) -> Result<Section<'s, 'a>, ConfigError> {
        static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);
        let empty = || Section { source: self.source, table: &EMPTY, place: self.place.inside(key), allowed: &[] };
        self.get(key).map_or_else(|| Ok(empty()), |entry| entry.table(&[]))
    }

    /// The sub-tables of `key`, whose names are the user's, in the file's order.
    ///
    /// # Errors
    /// `key` or something in it is no table.
    pub fn named_tables(&self, key: &'static str) -> Result<Vec<(String, Section<'s, 'a>)>, ConfigError> {
        let Some(entry) = self.get(key) else { return Ok(Vec::new()) };
        let tables = entry.table(&[])?;
        let mut named = Vec::new();
        for (name, value) in tables.table {
            let place = self.source.place(name.span().start, join(&tables.place.key, name.get_ref()));
            let entry = Entry { source: self.source, place, value: value.get_ref() };
            named.push((name.span().start, name.get_ref().to_string(), entry.table(&[])?));
        }
        named.sort_by_key(|(start, ..)| *start);
        Ok(named.into_iter().map(|(_, name, section)| (name, section)).collect())
    }
}

/// One value and where it stands.
pub struct Entry<'s, 'a> {
    source: &'s Source<'a>,
    place: SourceLocation,
    value: &'s DeValue<'a>,
}

impl<'s, 'a> Entry<'s, 'a> {
    /// Where the key stands.
    pub fn place(&self) -> SourceLocation {
        self.place.clone()
    }

    fn wrong_type(&self, allowed: &str) -> ConfigError {
        if let Some(text) = self.value.as_str() {
            return self.place.error(format!("the string {} does not fit here, allowed is {allowed}", quoted(text)));
        }
        let article = if self.value.type_str().starts_with(['a', 'i']) { "an" } else { "a" };
        self.place.error(format!("{article} {} does not fit here, allowed is {allowed}", self.value.type_str()))
    }

    /// A string.
    ///
    /// # Errors
    /// Another type.
    pub fn text(&self, allowed: &str) -> Result<String, ConfigError> {
        self.value.as_str().map(str::to_owned).ok_or_else(|| self.wrong_type(allowed))
    }

    /// One of `choices`.
    ///
    /// # Errors
    /// Anything else.
    pub fn choice(&self, choices: &[&str]) -> Result<String, ConfigError> {
        let allowed = choices.join(", ");
        let text = self.text(&allowed)?;
        if !choices.contains(&text.as_str()) {
            return Err(self.place.error(format!("{} is not known, allowed are {allowed}", quoted(&text))));
        }
        Ok(text)
    }

    /// true or false.
    ///
    /// # Errors
    /// Another type.
    pub fn flag(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// A whole number in `range`.
    ///
    /// # Errors
    /// Another type, or out of range; never a clamp.
    pub fn number<T>(&self, range: RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display + TryFrom<u64>,
    {
        let allowed = format!("{} to {}", range.start(), range.end());
        self.number_within(range, &allowed)
    }

    fn number_within<T>(&self, range: RangeInclusive<T>, allowed: &str) -> Result<T, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display + TryFrom<u64>,
    {
        let integer = self.value.as_integer().ok_or_else(|| self.wrong_type(&format!("a whole number, {allowed}")))?;
        let number =
            u64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|wide| T::try_from(wide).ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            self.place.error(format!("{} is out of range, allowed is {allowed}", shown(&integer.to_string())))
        })
    }

    /// A whole number in `range`, or `None` if it is the string `word`.
    ///
    /// # Errors
    /// Another string or type, or out of range.
    pub fn number_or<T>(&self, word: &str, range: RangeInclusive<T>) -> Result<Option<T>, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display + TryFrom<u64>,
    {
        let allowed = format!("{} to {} or {}", range.start(), range.end(), quoted(word));
        match self.value {
            DeValue::String(text) if text == word => Ok(None),
            DeValue::String(text) => {
                Err(self.place.error(format!("{} is not known, allowed is {allowed}", quoted(text))))
            }
            _ => self.number_within(range, &allowed).map(Some),
        }
    }

    /// A whole or decimal number in `range`.
    ///
    /// # Errors
    /// Another type, or out of range.
    pub fn decimal(&self, range: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let allowed = format!("{} to {}", range.start(), range.end());
        let text = match self.value {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            _ => return Err(self.wrong_type(&format!("a number, {allowed}"))),
        };
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.place.error(format!("{} is out of range, allowed is {allowed}", shown(text))))
    }

    /// A size in bytes, in `range`.
    ///
    /// # Errors
    /// Another type, not a size, or out of range.
    pub fn size(&self, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let (text, bytes) = match self.value {
            DeValue::String(text) if !size::is_size(text) => {
                let (text, why) = (quoted(text), spaced(text));
                return Err(self.place.error(format!("{text} is not a size{why}, allowed is {}", size::ALLOWED)));
            }
            DeValue::String(text) => (quoted(text), size::parse(text)),
            DeValue::Integer(integer) => {
                (shown(&integer.to_string()), u64::from_str_radix(integer.as_str(), integer.radix()).ok())
            }
            _ => return Err(self.wrong_type(size::ALLOWED)),
        };
        bytes.filter(|bytes| range.contains(bytes)).ok_or_else(|| {
            let (least, most) = (size::display(*range.start()), size::display(*range.end()));
            self.place.error(format!("{text} is out of range, allowed is {least} to {most}"))
        })
    }

    /// A size in bytes, in `range`, or `None` if it is the string `word`, which is no size.
    ///
    /// # Errors
    /// Another type, another string, or out of range.
    pub fn size_or(&self, word: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ConfigError> {
        match self.value {
            DeValue::String(text) if text == word => Ok(None),
            DeValue::String(text) if size::parse(text).is_none() => {
                let (least, most) = (size::display(*range.start()), size::display(*range.end()));
                let (text, word) = (quoted(text), quoted(word));
                Err(self.place.error(format!("{text} is not known, allowed is {least} to {most} or {word}")))
            }
            _ => self.size(range).map(Some),
        }
    }

    /// A size in bytes, in `range` and a multiple of `step`, as `of_bytes` has it; or what one of `words` stands for,
    /// none of which is a size.
    ///
    /// # Errors
    /// Another type, another string, out of range, or between two steps.
    pub fn size_or_one_of<T: Copy>(
        &self,
        words: &[(&str, T)],
        range: RangeInclusive<u64>,
        step: u64,
        of_bytes: impl Fn(u64) -> T,
    ) -> Result<T, ConfigError> {
        let named = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        let (text, bytes) = match self.value {
            DeValue::String(text) => match named(text) {
                Some(value) => return Ok(value),
                None => (quoted(text), size::parse(text)),
            },
            DeValue::Integer(integer) => {
                let bytes = u64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(u64::MAX);
                (shown(&integer.to_string()), Some(bytes))
            }
            _ => (String::new(), None),
        };
        let names: Vec<_> = words.iter().map(|(word, _)| quoted(word)).collect();
        let (least, most) = (size::display(*range.start()), size::display(*range.end()));
        let allowed = format!("{} or {least} to {most} in steps of {}", names.join(", "), size::display(step));
        let why = match bytes {
            Some(bytes) if range.contains(&bytes) && bytes.is_multiple_of(step) => return Ok(of_bytes(bytes)),
            Some(bytes) if range.contains(&bytes) => format!("is no multiple of {}", size::display(step)),
            Some(_) => "is out of range".to_owned(),
            None if text.is_empty() => return Err(self.wrong_type(&allowed)),
            None => "is not known".to_owned(),
        };
        Err(self.place.error(format!("{text} {why}, allowed is {allowed}")))
    }

    /// A duration in nanoseconds, in `range`.
    ///
    /// # Errors
    /// Another type, not a duration, or out of range.
    pub fn duration_ns(&self, range: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let text = self.text(duration::ALLOWED)?;
        let (ns, text) = (duration::parse(&text), quoted(&text));
        let ns = ns.ok_or_else(|| {
            let why = spaced(&text);
            self.place.error(format!("{text} is not a duration{why}, allowed is {}", duration::ALLOWED))
        })?;
        if !range.contains(&ns) {
            let (least, most) = (duration::display(*range.start()), duration::display(*range.end()));
            return Err(self.place.error(format!("{text} is out of range, allowed is {least} to {most}")));
        }
        Ok(ns)
    }

    /// Each value of a list, at the list's place.
    ///
    /// # Errors
    /// Another type.
    pub fn items(&self, allowed: &str) -> Result<Vec<Entry<'s, 'a>>, ConfigError> {
        let array = self.value.as_array().ok_or_else(|| self.wrong_type(allowed))?;
        let item = |value: &'s Spanned<DeValue<'a>>| {
            let place = SourceLocation { line: self.source.line_of(value.span().start), ..self.place.clone() };
            Entry { source: self.source, place, value: value.get_ref() }
        };
        Ok(array.iter().map(item).collect())
    }

    /// Each value of a list; any other value as a list of itself.
    pub fn items_or_one(&self) -> Vec<Entry<'s, 'a>> {
        self.items("a list").unwrap_or_else(|_| vec![self.with(self.value)])
    }

    /// The keys and values of a table whose keys are the user's, in the file's order.
    ///
    /// # Errors
    /// Another type.
    pub fn pairs(&self, allowed: &str) -> Result<Vec<(String, Entry<'s, 'a>)>, ConfigError> {
        let table = self.value.as_table().ok_or_else(|| self.wrong_type(allowed))?;
        let mut pairs: Vec<_> = table.iter().collect();
        pairs.sort_by_key(|(key, _)| key.span().start);
        let pair = |(key, value): (&'s Spanned<_>, &'s Spanned<DeValue<'a>>)| {
            let key: &Spanned<std::borrow::Cow<'a, str>> = key;
            let place = self.source.place(key.span().start, join(&self.place.key, key.get_ref()));
            (key.get_ref().to_string(), Entry { source: self.source, place, value: value.get_ref() })
        };
        Ok(pairs.into_iter().map(pair).collect())
    }

    /// A string, or a list of at least one string.
    ///
    /// # Errors
    /// Anything else.
    pub fn texts(&self, allowed: &str) -> Result<Vec<String>, ConfigError> {
        let Some(array) = self.value.as_array() else { return Ok(vec![self.text(allowed)?]) };
        let texts: Option<Vec<_>> = array.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
        texts
            .filter(|texts| !texts.is_empty())
            .ok_or_else(|| self.place.error(format!("this list does not fit here, allowed is {allowed}")))
    }

    /// The value as it stands, for a caller that passes it on without knowing its meaning.
    ///
    /// # Errors
    /// A date, or a number that does not fit.
    pub fn value(&self) -> Result<toml::Value, ConfigError> {
        let allowed = "a string, a number, true, false, a list or a table";
        Ok(match self.value {
            DeValue::String(text) => toml::Value::String(text.to_string()),
            DeValue::Boolean(flag) => toml::Value::Boolean(*flag),
            DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(number) => toml::Value::Integer(number),
                Err(_) => {
                    return Err(self.place.error(format!("{} does not fit 64 bits", shown(&integer.to_string()))));
                }
            },
            DeValue::Float(float) => match float.as_str().parse() {
                Ok(number) => toml::Value::Float(number),
                Err(_) => return Err(self.wrong_type(allowed)),
            },
            DeValue::Array(array) => {
                let inner = |item: &'s Spanned<DeValue<'a>>| self.with(item.get_ref()).value();
                toml::Value::Array(array.iter().map(inner).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => {
                let inner = |(name, value): (&'s Spanned<_>, &'s Spanned<DeValue<'a>>)| {
                    let name: &std::borrow::Cow<'_, str> = Spanned::get_ref(name);
                    Ok((name.to_string(), self.with(value.get_ref()).value()?))
                };
                toml::Value::Table(table.iter().map(inner).collect::<Result<_, ConfigError>>()?)
            }
            DeValue::Datetime(_) => return Err(self.wrong_type(allowed)),
        })
    }

    /// An entry for a value inside this one, at the place of this one.
    fn with(&self, value: &'s DeValue<'a>) -> Entry<'s, 'a> {
        Entry { source: self.source, place: self.place.clone(), value }
    }

    /// A table with keys from `allowed` (empty: any).
    ///
    /// # Errors
    /// Another type, or a key that is not allowed.
    pub fn table(&self, allowed: &'static [&'static str]) -> Result<Section<'s, 'a>, ConfigError> {
        let table = self.value.as_table().ok_or_else(|| self.wrong_type("a table"))?;
        let section = Section { source: self.source, table, place: self.place.clone(), allowed: &[] };
        if allowed.is_empty() { Ok(section) } else { section.with_allowed(allowed) }
    }
}

/// Says so if a space is why `text` cannot be read.
fn spaced(text: &str) -> &'static str {
    if text.contains(char::is_whitespace) { ", because of its space" } else { "" }
}

/// `key` under `path`, quoted as TOML wants it where it is not a bare key; of a very long key the beginning.
pub fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    let key = if bare { shown(key) } else { quoted(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_names_comes_in_the_order_of_the_file() {
        let source = Source::new("c.toml", "[t.zebra]\n[t.ant]\n[v]\nyard = 1\nbox = 2\nmile = 3\n");
        let tree = source.parse().unwrap();
        let root = Section::root(&source, tree.get_ref(), &["t", "v"]).unwrap();
        let tables: Vec<_> = root.named_tables("t").unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(tables, ["zebra", "ant"]);
        let pairs = root.get("v").unwrap().pairs("numbers").unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(name, entry)| (name.as_str(), entry.place().line)).collect();
        assert_eq!(pairs, [("yard", 4), ("box", 5), ("mile", 6)]);
    }

    #[test]
    fn a_table_that_is_not_there_has_no_keys() {
        let source = Source::new("c.toml", "[t]\nu = { v = 1 }\nw = 2\n");
        let tree = source.parse().unwrap();
        let root = Section::root(&source, tree.get_ref(), &["t"]).unwrap();
        let table = root.inner("t").unwrap();
        assert!(table.inner("u").unwrap().get("v").is_some());
        let empty = table.inner("x").unwrap().with_allowed(&["v"]).unwrap();
        assert_eq!((empty.place().key(), empty.get("v").is_none()), ("t.x", true));
        let refused = table.inner("w").map(|_| ()).unwrap_err().to_string();
        assert_eq!(refused, "c.toml:3: t.w: an integer does not fit here, allowed is a table");
    }

    /// Reads a value under the key `k` in line 2 with `of`: the result, or the error's sentence.
    fn read<T: fmt::Debug>(value: &str, of: impl Fn(&Entry<'_, '_>) -> Result<T, ConfigError>) -> String {
        let text = format!("# a comment\nk = {value}\n");
        let source = Source::new("c.toml", &text);
        let tree = source.parse().unwrap();
        let root = Section::root(&source, tree.get_ref(), &["k"]).unwrap();
        match of(&root.get("k").unwrap()) {
            Ok(read) => format!("{read:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_value_is_what_its_key_allows_or_a_sentence_with_what_is_allowed() {
        let number = |value: &str| read(value, |entry| entry.number_or("auto", 1..=9u8));
        assert_eq!(["1", "9", "\"auto\""].map(number), ["Some(1)", "Some(9)", "None"]);
        let allowed = "allowed is 1 to 9 or \"auto\"";
        assert_eq!(number("10"), format!("c.toml:2: k: 10 is out of range, {allowed}"));
        assert_eq!(number("\"aut\""), format!("c.toml:2: k: \"aut\" is not known, {allowed}"));
        let decimal = |value: &str| read(value, |entry| entry.decimal(0.5..=9.0));
        assert_eq!(["1", "0.5"].map(decimal), ["1.0", "0.5"]);
        assert_eq!(decimal("9.5"), "c.toml:2: k: 9.5 is out of range, allowed is 0.5 to 9");
        assert!(decimal("0x5").ends_with("allowed is a number, 0.5 to 9"), "{}", decimal("0x5"));
        let size = |value: &str| read(value, |entry| entry.size(4096..=1 << 20));
        assert_eq!(["4096", "\"1MiB\""].map(size), ["4096", "1048576"]);
        assert_eq!(size("4095"), "c.toml:2: k: 4095 is out of range, allowed is 4KiB to 1MiB");
        assert!(size("\"4 KiB\"").starts_with("c.toml:2: k: \"4 KiB\" is not a size, because of its space"));
        assert!(size("\"much\"").starts_with("c.toml:2: k: \"much\" is not a size, allowed"));
        let size_or = |value: &str| read(value, |entry| entry.size_or("all", 4096..=1 << 20));
        assert_eq!(["\"all\"", "\"8KiB\"", "4096"].map(size_or), ["None", "Some(8192)", "Some(4096)"]);
        assert_eq!(size_or("\"al\""), "c.toml:2: k: \"al\" is not known, allowed is 4KiB to 1MiB or \"all\"");
        let words = [("off", 0), ("auto", 1)];
        let one_of = |value: &str| read(value, |entry| entry.size_or_one_of(&words, 4096..=16384, 4096, |bytes| bytes));
        assert_eq!(["\"off\"", "\"auto\"", "\"8KiB\"", "12288"].map(one_of), ["0", "1", "8192", "12288"]);
        let allowed = "allowed is \"off\", \"auto\" or 4KiB to 16KiB in steps of 4KiB";
        for (value, why) in [("5000", "is no multiple of 4KiB"), ("0", "is out of range"), ("20480", "is out of range")]
        {
            assert_eq!(one_of(value), format!("c.toml:2: k: {value} {why}, {allowed}"));
        }
        assert_eq!(one_of("\"of\""), format!("c.toml:2: k: \"of\" is not known, {allowed}"));
        assert!(one_of("true").contains("\"off\", \"auto\" or 4KiB") && !one_of("true").contains("not known"));
        let duration = |value: &str| read(value, |entry| entry.duration_ns(1_000..=1_000_000));
        assert_eq!(["\"1us\"", "\"1ms\""].map(duration), ["1000", "1000000"]);
        assert_eq!(duration("\"2ms\""), "c.toml:2: k: \"2ms\" is out of range, allowed is 1us to 1ms");
        assert!(duration("\"1x\"").starts_with("c.toml:2: k: \"1x\" is not a duration, allowed is "));
    }

    #[test]
    fn a_list_is_all_of_its_values_each_in_its_line() {
        let texts = |value: &str| read(value, |entry| entry.texts("a name"));
        assert_eq!(["\"a\"", "[\"a\", \"b\"]"].map(texts), ["[\"a\"]", "[\"a\", \"b\"]"]);
        for value in ["[]", "[\"a\", 1]"] {
            assert_eq!(texts(value), "c.toml:2: k: this list does not fit here, allowed is a name");
        }
        let items = |entry: &Entry<'_, '_>| {
            let items = entry.items("a list")?;
            items
                .iter()
                .map(|item| Ok((item.place().line, item.text("a name")?)))
                .collect::<Result<Vec<_>, ConfigError>>()
        };
        assert_eq!(read("[\"a\",\n\n \"b\"]", items), "[(2, \"a\"), (4, \"b\")]");
        let value = |value: &str| read(value, |entry| entry.value().map(|value| value.to_string()));
        let whole = "[1, \"b\", true, 2.5]";
        assert_eq!(value(whole), format!("{whole:?}"));
        assert_eq!(value("{ a = 1, b = { c = 2, d = 3 } }"), format!("{:?}", "{ a = 1, b = { c = 2, d = 3 } }"));
    }

    #[test]
    fn what_is_no_toml_or_no_key_is_a_sentence_with_its_line() {
        let refused = |text: &str| {
            let source = Source::new("c.toml", text);
            let tree = match source.parse() {
                Err(error) => return error.to_string(),
                Ok(tree) => tree,
            };
            let root = Section::root(&source, tree.get_ref(), &["a", "b"]);
            root.map(|root| root.allowed.join(" ")).unwrap_or_else(|error| error.to_string())
        };
        assert_eq!(refused("a = 1\nb = 2\n"), "a b", "its keys are kept");
        let twice = "c.toml:3: not valid TOML: a stands here for the second time, allowed is once";
        assert_eq!(refused("a = 1\nb = 2\na = 3\n"), twice);
        assert!(refused("a = 1\nb = \n").starts_with("c.toml:2: not valid TOML: "), "{}", refused("a = 1\nb = \n"));
        let unknown = "c.toml:2: bb: unknown key, allowed are a, b";
        assert!(refused("a = 1\nbb = 2\n").starts_with(unknown), "{}", refused("a = 1\nbb = 2\n"));
        let names = ["plain-key_1", "", "a.b", "\u{e4}"].map(|key| join("t", key));
        assert_eq!(names, ["t.plain-key_1", "t.\"\"", "t.\"a.b\"", "t.\"\u{e4}\""]);
    }
}
