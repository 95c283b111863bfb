//! How loaded has a core or thread been lately?
//!
//! An exponentially decaying average of a level that changes in steps: the weight of what was runnable. After
//! [`HALF_LIFE_NS`] a level counts half. (Documented of Linux's per-entity load tracking: a geometric series over
//! periods of 1024 us whose 32nd term counts half.)
//!
//! # Shape
//! The value as of the last update and the level since. Between two updates the level is constant, so a step of any
//! length is one multiplication: `value = value * f + level * (1 - f)` with `f = 2^(-dt / half life)`. In integers, so
//! that it is the same everywhere.

/// 32 periods of 2^20 ns.
pub const HALF_LIFE_NS: u64 = 32 << 20;

/// Fraction bits of a value: a thread of the default weight that always runs has the value 1024 << SHIFT.
const SHIFT: u32 = 16;

/// 2^(-n/32) in units of 2^-32. Beyond 32 steps: a shift.
const POWERS: [u64; 32] = powers();

/// 2^(-1/32) in units of 2^-62: the only constant; its 32nd power is 1/2, which a test checks.
const STEP: u128 = 4_512_867_096_753_504_462;

const fn powers() -> [u64; 32] {
    let mut all = [0; 32];
    let (mut power, mut n): (u128, usize) = (1 << 62, 0);
    while n < 32 {
        all[n] = ((power + (1 << 29)) >> 30) as u64;
        power = (power * STEP) >> 62;
        n += 1;
    }
    all
}

/// ln 2 / 32 in units of 2^-32.
const LOG_STEP: u64 = 93_032_640;

/// 2^(-dt / half life) in units of 2^-32; within a period the first three terms of the series, which are at most
/// 0.0002% off.
fn factor(dt_ns: u64) -> u64 {
    let periods = dt_ns >> 20;
    if periods >= 32 * 32 {
        return 0;
    }
    let x = (LOG_STEP * (dt_ns & ((1 << 20) - 1))) >> 20;
    let within = (1 << 32) - x + ((x * x) >> 33);
    let product = u128::from(POWERS[(periods % 32) as usize]) * u128::from(within);
    (product >> 32) as u64 >> (periods / 32)
}

/// The average.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decay {
    value: u64,
    level: u64,
    at_ns: u64,
}

impl Decay {
    /// Brings the value up to `now_ns`.
    pub fn update(&mut self, now_ns: u64) {
        if now_ns > self.at_ns {
            self.value = self.value_at(now_ns);
            self.at_ns = now_ns;
        }
    }

    fn value_at(&self, now_ns: u64) -> u64 {
        let f = factor(now_ns.saturating_sub(self.at_ns));
        let level = u128::from(self.level << SHIFT);
        let value = u128::from(self.value) * u128::from(f) + level * u128::from((1 << 32) - f);
        ((value + (1 << 31)) >> 32) as u64
    }

    /// The average, in units of the level.
    pub fn load(&self, now_ns: u64) -> u64 {
        self.value_at(now_ns) >> SHIFT
    }

    /// Sets the level that holds since `now_ns`.
    pub fn set_level(&mut self, level: u64, now_ns: u64) {
        self.update(now_ns);
        self.level = level;
    }

    /// The level.
    pub fn level(&self) -> u64 {
        self.level
    }

    /// Adds `part`, level and past, because it has moved to this core.
    pub fn add(&mut self, part: &mut Decay, now_ns: u64) {
        self.update(now_ns);
        part.update(now_ns);
        self.value += part.value;
        self.level += part.level;
    }

    /// Takes `part` out again. Rounding may have made it a little larger than the whole.
    pub fn subtract(&mut self, part: &mut Decay, now_ns: u64) {
        self.update(now_ns);
        part.update(now_ns);
        self.value = self.value.saturating_sub(part.value);
        self.level -= part.level;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_left_after_the_half_life_and_nothing_after_long() {
        let exact = |dt_ns: u64| f64::exp2(-(dt_ns as f64) / HALF_LIFE_NS as f64);
        for dt_ns in (0..8 * HALF_LIFE_NS).step_by(777_777) {
            let ours = factor(dt_ns) as f64 / (1u64 << 32) as f64;
            assert!((ours - exact(dt_ns)).abs() < 3e-6, "{dt_ns}: {ours} for {}", exact(dt_ns));
        }
        assert_eq!(factor(0), 1 << 32);
        assert!(factor(HALF_LIFE_NS).abs_diff(1 << 31) <= 16, "{}", factor(HALF_LIFE_NS));
        assert_eq!(factor(u64::MAX), 0);
    }

    #[test]
    fn an_average_goes_to_its_level_however_often_it_is_updated() {
        let mut once = Decay::default();
        once.set_level(1024, 0);
        let mut often = once;
        (0..HALF_LIFE_NS).step_by(50_000).for_each(|now| often.update(now));
        assert_eq!(once.load(HALF_LIFE_NS), 512);
        assert!(often.load(HALF_LIFE_NS).abs_diff(512) <= 1, "{}", often.load(HALF_LIFE_NS));
        assert_eq!(once.load(100 * HALF_LIFE_NS), 1024);
        once.set_level(0, 100 * HALF_LIFE_NS);
        assert_eq!(once.load(101 * HALF_LIFE_NS), 512);
    }

    #[test]
    fn what_moves_takes_its_past_along() {
        let (mut thread, mut from, mut to) = (Decay::default(), Decay::default(), Decay::default());
        for average in [&mut thread, &mut from] {
            average.set_level(1000, 0);
        }
        from.subtract(&mut thread, HALF_LIFE_NS);
        to.add(&mut thread, HALF_LIFE_NS);
        assert_eq!((from.load(HALF_LIFE_NS), to.load(HALF_LIFE_NS)), (0, 500));
        assert_eq!((from.level(), to.level()), (0, 1000));
    }
}
