//! Settings of one policy alone: a struct in the policy's folder, and a table of the keys that set its fields.
//!
//! The reader of a config and the reader of a scenario go through these tables, and so do the tables of the docs: no
//! list of a policy's keys stands anywhere else.

use alloc::vec::Vec;
use core::any::TypeId;
use core::fmt;
use core::ops::RangeInclusive;

/// Longest time that most of them take, ns: an hour.
pub const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// Largest number that any of them takes.
pub const COUNT_MAX: u32 = 65_535;

/// A tunable by its key: where its value goes, and which values are allowed.
#[derive(PartialEq, Eq, Debug)]
pub enum Tunable<'a> {
    /// A time, ns.
    Time(&'a mut u64, RangeInclusive<u64>),
    /// A plain number, and its range.
    Count(&'a mut u32, RangeInclusive<u32>),
    /// A size, bytes.
    Size(&'a mut u64, RangeInclusive<u64>),
    /// On or off.
    Flag(&'a mut bool),
}

impl Tunable<'_> {
    /// Sets it to what the reader of its kind makes of the allowed range.
    ///
    /// # Errors
    /// What the reader answers; the value is then as it was.
    pub fn set<E>(
        self,
        time_ns: impl FnOnce(RangeInclusive<u64>) -> Result<u64, E>,
        size_bytes: impl FnOnce(RangeInclusive<u64>) -> Result<u64, E>,
        count: impl FnOnce(RangeInclusive<u32>) -> Result<u32, E>,
        flag: impl FnOnce() -> Result<bool, E>,
    ) -> Result<(), E> {
        match self {
            Tunable::Time(value, allowed) => *value = time_ns(allowed)?,
            Tunable::Size(value, allowed) => *value = size_bytes(allowed)?,
            Tunable::Count(value, allowed) => *value = count(allowed)?,
            Tunable::Flag(value) => *value = flag()?,
        }
        Ok(())
    }

    /// The value as a number; a flag is 0 or 1.
    fn value(&self) -> u64 {
        match self {
            Tunable::Time(value, _) | Tunable::Size(value, _) => **value,
            Tunable::Count(value, _) => u64::from(**value),
            Tunable::Flag(value) => u64::from(**value),
        }
    }

    /// Sets it to what [`Tunable::value`] answered.
    fn put(self, number: u64) {
        match self {
            Tunable::Time(value, _) | Tunable::Size(value, _) => *value = number,
            Tunable::Count(value, _) => *value = number as u32,
            Tunable::Flag(value) => *value = number != 0,
        }
    }
}

/// Text of a key in tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyText {
    /// Its name in configs.
    pub name: &'static str,
    /// Its effect, in Markdown, without a full stop.
    pub meaning: &'static str,
}

/// A key of the options `O`.
pub struct Key<O> {
    /// Its name and meaning.
    pub text: KeyText,
    /// Option that it sets.
    pub at: fn(&mut O) -> Tunable<'_>,
}

impl<O> Key<O> {
    /// The key `name`, which sets what `at` answers.
    pub const fn new(name: &'static str, meaning: &'static str, at: fn(&mut O) -> Tunable<'_>) -> Key<O> {
        Key { text: KeyText { name, meaning }, at }
    }
}

/// The options of one policy alone.
pub trait Tunables: Copy + Eq + core::fmt::Debug + Send + Sync + 'static {
    /// Options that the policy is known with.
    const DEFAULT: Self;

    /// Options of a server unless its config says otherwise.
    const SHIPPED: Self = Self::DEFAULT;

    /// Keys that a config can set.
    const KEYS: &'static [Key<Self>];

    /// Keys that a program can set and a config cannot; they are checked like the others.
    const FIXED: &'static [Key<Self>] = &[];
}

/// The options of a policy without any.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NoOptions;

impl Tunables for NoOptions {
    const DEFAULT: NoOptions = NoOptions;
    const KEYS: &'static [Key<NoOptions>] = &[];
}

/// The keys of a policy's options.
pub(super) fn texts<O: Tunables>() -> Vec<KeyText> {
    O::KEYS.iter().map(|key| key.text).collect()
}

/// Most keys that one policy has, keys that only a program sets included.
const KEYS_MAX: usize = 8;

/// Options that only one policy looks at: their values by the tables of its keys, and their type. Another policy that
/// gets them has its defaults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OwnOptions(Option<(TypeId, [u64; KEYS_MAX])>);

/// The values alone: the type of the options differs between two compilations of one source.
impl fmt::Debug for OwnOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnOptions").field(&self.0.map(|(_, values)| values)).finish()
    }
}

impl OwnOptions {
    /// Options that the policies are known with.
    pub const DEFAULT: OwnOptions = OwnOptions(None);

    /// These options.
    ///
    /// # Panics
    /// More fields than the eight that there is room for.
    pub fn of<O: Tunables>(own: &O) -> OwnOptions {
        if *own == O::DEFAULT {
            return OwnOptions::DEFAULT;
        }
        let (mut own, mut values) = (*own, [0; KEYS_MAX]);
        for (key, value) in O::KEYS.iter().chain(O::FIXED).zip(values.each_mut()) {
            *value = (key.at)(&mut own).value();
        }
        assert!(O::KEYS.len() + O::FIXED.len() <= KEYS_MAX, "a policy has too many keys");
        OwnOptions(Some((TypeId::of::<O>(), values)))
    }

    /// The options of the policy that has `O`.
    pub fn get<O: Tunables>(&self) -> O {
        let mut own = O::DEFAULT;
        if let Some((_, values)) = self.0.filter(|(of, _)| *of == TypeId::of::<O>()) {
            for (key, value) in O::KEYS.iter().chain(O::FIXED).zip(values) {
                (key.at)(&mut own).put(value);
            }
        }
        own
    }

    /// Options of a server whose config sets none.
    pub(super) fn shipped_of<O: Tunables>() -> OwnOptions {
        OwnOptions::of(&O::SHIPPED)
    }

    /// Calls `set` with what `key` sets, if it is one of theirs, and says whether it is.
    pub(super) fn tune_of<O: Tunables>(&mut self, key: &str, set: &mut dyn FnMut(Tunable<'_>)) -> bool {
        let mut own = self.get::<O>();
        let Some(key) = O::KEYS.iter().find(|one| one.text.name == key) else { return false };
        set((key.at)(&mut own));
        *self = OwnOptions::of(&own);
        true
    }
}
