//! The script of a run: a config, and steps one after another, as text that can be kept, cut and run again.
//!
//! A step names clients and tenants by number and means the same whatever came before it (a client that is away cannot
//! leave; the step then does nothing), so that any part of a script is a script. A step's random numbers are drawn from
//! a seed in the step; the drives' faults, and the order of turns, from the config's.
//!
//! ```text
//!   config seed 7 workers 2 policy mqfq depth 8 tenants 3 ...
//!   connect 0
//!   io 0 200 4711
//!   power
//!   check
//! ```

use mqfq_blk::PolicyKind;
use mqfq_blk::random::Random;
use std::fmt::Write;

/// Clients of each tenant.
pub const CLIENTS_EACH: usize = 2;

/// Config of the server and its drives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Values by name, all numbers.
    values: Vec<(&'static str, u64)>,
}

/// Each key, and what it may be at most.
const KEYS: &[(&str, u64)] = &[
    ("seed", u64::MAX),
    ("workers", 4),
    ("policy", 7),
    ("depth", 64),
    ("tenants", 8),
    ("guests", 4),
    ("split", 1 << 20),
    ("sq", 1),
    ("cache", 1),
    ("reorder", 16),
    ("error", 65536),
    ("torn", 65536),
    ("stall", 65536),
    ("lose", 65536),
    ("slow", 65536),
    ("abort", 3),
    ("staged", 1024),
    ("memory", 1 << 30),
    (TURN_NS, 1_000_000),
    (MANAGED, 1),
];

/// The key of a server that is changed as a whole (`managed/`).
pub const MANAGED: &str = "managed";

/// The key of the time that a worker's turn takes, ns. The longer, the more has come when the next begins.
pub const TURN_NS: &str = "turn-ns";

/// Defaults of keys that a config may leave out.
const DEFAULTS: &[(&str, u64)] = &[(TURN_NS, 200), (MANAGED, 0)];

/// The policies that need no class queues, in the registry's order.
pub fn policies() -> Vec<PolicyKind> {
    mqfq_policies::ALL.into_iter().filter(|kind| !kind.is_direct()).collect()
}

impl Config {
    /// The value of a key.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn get(&self, name: &str) -> u64 {
        self.values.iter().find(|(key, _)| *key == name).unwrap_or_else(|| panic!("no key {name}")).1
    }

    /// The value of a key, as a size or a count.
    pub fn count(&self, name: &str) -> usize {
        self.get(name) as usize
    }

    /// The policy of a number, which wraps.
    pub fn policy(number: u64) -> PolicyKind {
        let all = policies();
        all[number as usize % all.len()]
    }

    /// Something is wrong with the drive.
    pub fn has_faults(&self) -> bool {
        ["error", "torn", "lose"].into_iter().any(|key| self.get(key) > 0)
    }

    fn draw(seed: u64, random: &mut Random) -> Config {
        let has_faults = random.chance(26000);
        let mut rare = |bound: u64| if has_faults && random.chance(32768) { 1 + random.below(bound) } else { 0 };
        let (error, torn, lose) = (rare(400), rare(400), rare(60));
        let stall = rare(20);
        let mut below = |bound: u64| random.below(bound);
        let values = vec![
            ("seed", seed),
            ("workers", 1 + below(3)),
            ("policy", below(policies().len() as u64)),
            ("depth", 1 << below(6)),
            ("tenants", 1 + below(4)),
            ("guests", below(3)),
            ("split", if below(2) == 0 { 0 } else { 4096 << below(4) }),
            ("sq", u64::from(below(4) == 0)),
            ("cache", u64::from(below(4) > 0)),
            ("reorder", if below(2) == 0 { 0 } else { 2 + below(6) }),
            ("error", error),
            ("torn", torn),
            ("stall", stall),
            ("lose", lose),
            ("slow", below(20_000)),
            ("abort", below(4)),
            ("staged", 1 << below(9)),
            ("memory", if below(4) == 0 { 128 << 10 } else { 64 << 20 }),
            (TURN_NS, [200, 1_000, 5_000][below(3) as usize]),
            (MANAGED, 0),
        ];
        Config { values }
    }

    fn text(&self) -> String {
        let mut text = "config".to_owned();
        for (key, value) in self.values.iter().filter(|value| !DEFAULTS.contains(value)) {
            let _ = write!(text, " {key} {value}");
        }
        text
    }

    fn parse(words: &[&str]) -> Result<Config, String> {
        let mut values = Vec::new();
        for &(key, most) in KEYS {
            let at = words.chunks(2).find(|pair| pair[0] == key);
            if let (None, Some(default)) = (at, DEFAULTS.iter().find(|(name, _)| *name == key)) {
                values.push(*default);
                continue;
            }
            let Some([_, text]) = at else { return Err(format!("the config has no {key}")) };
            let value: u64 = text.parse().map_err(|_| format!("config {key}: {text} is not a number"))?;
            if value > most {
                return Err(format!("config {key}: {value} is out of range, allowed is 0 to {most}"));
            }
            values.push((key, value));
        }
        Ok(Config { values })
    }
}

/// Names of steps, and how many numbers follow each.
const STEPS: &[(&str, usize)] = &[
    ("connect", 1),
    ("leave", 2),
    ("io", 3),
    ("stable", 3),
    ("run", 1),
    ("settle", 0),
    ("check", 0),
    ("policy", 2),
    ("weight", 2),
    ("cap", 2),
    ("resize", 2),
    ("readonly", 2),
    ("remove", 1),
    ("add", 1),
    ("kill", 0),
    ("power", 0),
    ("cut", 0),
    ("stall", 1),
    ("upgrade", 0),
    ("hostile", 2),
    ("guest", 1),
    ("drive", 3),
    ("unplug", 1),
    ("propose", 2),
    ("silence", 2),
];

/// One step: its name, and its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// As in the text.
    pub name: &'static str,
    /// The step's numbers.
    pub numbers: [u64; 3],
}

impl Step {
    fn of(name: &str, numbers: &[u64]) -> Result<Step, String> {
        let known = STEPS.iter().find(|(known, _)| *known == name);
        let Some(&(name, count)) = known else { return Err(format!("there is no step {name}")) };
        if numbers.len() != count {
            return Err(format!("step {name} has {} numbers, allowed are {count}", numbers.len()));
        }
        let mut all = [0; 3];
        all[..count].copy_from_slice(numbers);
        Ok(Step { name, numbers: all })
    }

    fn text(&self) -> String {
        let count = STEPS.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, count)| *count);
        self.numbers[..count].iter().fold(self.name.to_owned(), |text, number| format!("{text} {number}"))
    }
}

/// A config and what happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The server at the start.
    pub config: Config,
    /// Steps, in their order.
    pub steps: Vec<Step>,
}

impl Script {
    /// The script of a seed, of about so many steps.
    pub fn draw(seed: u64, length: usize) -> Script {
        let mut random = Random::new(seed);
        let config = Config::draw(seed, &mut random);
        let (tenants, guests) = (config.get("tenants"), config.get("guests"));
        let clients = tenants * CLIENTS_EACH as u64;
        let mut steps: Vec<Step> = Vec::new();
        let mut add = |name: &str, numbers: &[u64]| steps.push(Step::of(name, numbers).expect("a step of the list"));
        // Where changes are the subject, and where requests are.
        let is_lively = random.chance(32768);
        (0..clients).for_each(|client| add("connect", &[client]));
        (0..guests).for_each(|guest| add("guest", &[guest]));
        for _ in 0..length {
            let some = 1 + random.below(120);
            match random.below(if is_lively { 100 } else { 70 }) {
                0..34 => add("io", &[random.below(clients), some, random.next_u64() >> 32]),
                34..50 if guests > 0 => add("drive", &[random.below(guests), some, random.next_u64() >> 32]),
                34..50 => add("io", &[random.below(clients), some, random.next_u64() >> 32]),
                50..58 => add("run", &[random.below(2_000_000)]),
                58..60 => add("settle", &[]),
                60..64 => add("connect", &[random.below(clients)]),
                64..66 => add("leave", &[random.below(clients), random.below(2)]),
                66..68 => add("hostile", &[random.next_u64() >> 32, random.below(5)]),
                68..70 => add("check", &[]),
                70..75 => add("policy", &[random.below(policies().len() as u64), 1 << random.below(6)]),
                75..79 => add("weight", &[random.below(tenants), 1 + random.below(1000)]),
                79..82 => add("cap", &[random.below(tenants), random.below(3)]),
                82..85 => add("resize", &[random.below(tenants), random.below(4)]),
                85..87 => add("readonly", &[random.below(tenants), random.below(2)]),
                87..89 => {
                    let tenant = random.below(tenants);
                    add("remove", &[tenant]);
                    add("run", &[random.below(500_000)]);
                    add("add", &[tenant]);
                }
                89..91 => add("upgrade", &[]),
                91..93 => add("kill", &[]),
                93..95 => {
                    // In the middle of requests, which a flush has not covered.
                    (0..clients).for_each(|client| add("io", &[client, 40, random.next_u64() >> 32]));
                    add("run", &[random.below(1_000_000)]);
                    add("power", &[]);
                }
                95..96 => add("cut", &[]),
                96..97 => add("stall", &[random.below(3_000_000)]),
                97..99 if guests > 0 => {
                    let guest = random.below(guests);
                    add("unplug", &[guest]);
                    add("guest", &[guest]);
                }
                _ => (0..clients).for_each(|client| add("connect", &[client])),
            }
        }
        add("check", &[]);
        Script { config, steps }
    }

    /// The script of a seed with `cuts` cuts of power, of the whole machine or of its drive alone, each amid requests.
    pub fn draw_power(seed: u64, cuts: usize) -> Script {
        let mut random = Random::new(seed ^ 0x7265_776f_7021);
        let mut config = Config::draw(seed, &mut random);
        config.values.iter_mut().filter(|(key, _)| *key == "cache").for_each(|(_, value)| *value = 1);
        let (clients, guests) = (config.get("tenants") * CLIENTS_EACH as u64, config.get("guests"));
        let mut steps: Vec<Step> = Vec::new();
        let mut add = |name: &str, numbers: &[u64]| steps.push(Step::of(name, numbers).expect("a step of the list"));
        (0..guests).for_each(|guest| add("guest", &[guest]));
        for _ in 0..cuts {
            (0..clients).for_each(|client| add("connect", &[client]));
            // In one of three another server ends what this one was asked for.
            let travels = random.below(3) == 0;
            let asks = if travels { "stable" } else { "io" };
            (0..clients).for_each(|client| add(asks, &[client, 1 + random.below(20), random.next_u64() >> 32]));
            (0..guests).for_each(|guest| add("drive", &[guest, 1 + random.below(20), random.next_u64() >> 32]));
            if travels {
                add("run", &[random.below(100_000)]);
                add("upgrade", &[]);
            }
            add("run", &[random.below(600_000)]);
            add(if random.chance(49152) { "power" } else { "cut" }, &[]);
            if travels || random.chance(16384) {
                add("check", &[]);
            }
        }
        add("check", &[]);
        Script { config, steps }
    }

    /// The script of a seed for a server that is changed as a whole.
    pub fn draw_managed(seed: u64, length: usize) -> Script {
        let mut random = Random::new(seed ^ 0x0067_6570_6f72_7021);
        let mut config = Config::draw(seed, &mut random);
        for (key, value) in &mut config.values {
            match *key {
                MANAGED => *value = 1,
                // A drive that loses commands is another subject, and where queues are shared too.
                "lose" | "sq" | "guests" => *value = 0,
                _ => {}
            }
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut add = |name: &str, numbers: &[u64]| steps.push(Step::of(name, numbers).expect("a step of the list"));
        (0..6).for_each(|client| add("connect", &[client]));
        for _ in 0..length {
            match random.below(66) {
                0..20 => {
                    let spoilt = if random.chance(24_000) { 1 + random.below(6) } else { 0 };
                    add("propose", &[random.next_u64() >> 32, spoilt]);
                }
                20..44 => add("io", &[random.below(6), 1 + random.below(60), random.next_u64() >> 32]),
                44..50 => add("run", &[random.below(2_000_000)]),
                50..58 => (0..6).for_each(|client| add("connect", &[client])),
                58..60 => add("check", &[]),
                60 => add("leave", &[random.below(6), random.below(2)]),
                61 if random.chance(32768) => add("silence", &[random.below(2), random.next_u64() >> 32]),
                61 => add("stall", &[random.below(3_000_000)]),
                62 => add("power", &[]),
                63 => add("kill", &[]),
                _ => add("upgrade", &[]),
            }
        }
        add("check", &[]);
        Script { config, steps }
    }

    /// Reads it back.
    ///
    /// # Errors
    /// One sentence: line, fault, allowed values.
    pub fn parse(text: &str) -> Result<Script, String> {
        let (mut config, mut steps) = (None, Vec::new());
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let failed = |why: String| format!("line {}: {why}", number + 1);
            match words.split_first() {
                // Lines that are printed above a script.
                None | Some((&("seed" | "FAILED"), _)) => {}
                Some((&"config", rest)) => config = Some(Config::parse(rest).map_err(failed)?),
                Some((name, rest)) => {
                    let numbers = rest.iter().map(|text| text.parse().map_err(|_| format!("{text} is no number")));
                    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().map_err(failed)?;
                    steps.push(Step::of(name, &numbers).map_err(failed)?);
                }
            }
        }
        Ok(Script { config: config.ok_or("there is no line that begins with config")?, steps })
    }

    /// As text.
    pub fn text(&self) -> String {
        self.steps.iter().fold(self.config.text() + "\n", |text, step| text + &step.text() + "\n")
    }

    /// Something in it lets requests fail that are right.
    pub fn may_fail(&self) -> bool {
        let breaks = ["kill", "power", "cut", "resize", "readonly", "remove", "add", "upgrade", "stall", "unplug"];
        self.config.has_faults() || self.steps.iter().any(|step| breaks.contains(&step.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_reads_as_it_was_written() {
        for seed in 0..50 {
            for script in [Script::draw(seed, 40), Script::draw_managed(seed, 40), Script::draw_power(seed, 9)] {
                assert_eq!(Script::parse(&script.text()), Ok(script));
            }
        }
    }

    #[test]
    fn a_script_that_is_wrong_says_where() {
        let good = Script::draw(1, 3).text();
        let error = |text: &str| Script::parse(text).unwrap_err();
        assert_eq!(error(&format!("{good}dance 3\n")).split(": ").nth(1), Some("there is no step dance"));
        assert!(error(&format!("{good}io 3\n")).ends_with("step io has 1 numbers, allowed are 3"));
        assert!(error("connect 1").contains("no line that begins with config"));
        let many = good.replacen("workers ", "workers 9", 1);
        assert!(error(&many).starts_with("line 1: config workers: 9") && error(&many).ends_with("allowed is 0 to 4"));
    }
}
