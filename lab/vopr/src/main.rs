//! `cargo xtask vopr`: runs seeds until one fails, and then says what is enough for that.

use mqfq_blk::random::Random;
use mqfq_vopr::run::{Failure, Outcome, run};
use mqfq_vopr::script::Script;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str = "\
mqfq-vopr --seed N        one seed; its script first, if it fails
mqfq-vopr --for S         seeds from --seed on (default 1) for so many seconds
mqfq-vopr --core S        the same, for so many seconds of a core
mqfq-vopr --seeds N       so many seeds
mqfq-vopr --cuts N        seeds until the power was cut N times, each time in the middle of requests
mqfq-vopr --script FILE   a script that was printed
  --steps N               steps of a script (default 60)
  --managed               servers that are changed as a whole, by the reconciler
  --no-shrink             do not look for a shorter one
";

/// Cuts of power in each script of `--cuts`.
const CUTS_EACH: usize = 25;

/// Runs that looking for a shorter script may take.
const SHRINKING_RUNS: usize = 400;

#[derive(Default)]
struct Options {
    seed: Option<u64>,
    steps: Option<usize>,
    seconds: Option<u64>,
    core_s: Option<u64>,
    seeds: Option<u64>,
    script: Option<String>,
    keeps: bool,
    managed: bool,
    cuts: Option<u64>,
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{word}: {text} is not a number"))
        };
        match word.as_str() {
            "--seed" => options.seed = Some(number()?),
            "--steps" => options.steps = Some(number()? as usize),
            "--for" => options.seconds = Some(number()?),
            "--core" => options.core_s = Some(number()?),
            "--seeds" => options.seeds = Some(number()?),
            "--cuts" => options.cuts = Some(number()?),
            "--no-shrink" => options.keeps = true,
            "--managed" => options.managed = true,
            "--script" => options.script = Some(words.next().ok_or("--script needs a file")?),
            _ => return Err(format!("{word} is no option\n\n{USAGE}")),
        }
    }
    Ok(options)
}

fn say(failure: &Failure, script: &Script, keeps: bool) {
    println!("FAILED at step {} after {} requests: {}", failure.step, failure.requests, failure.what);
    if keeps {
        print!("{}", script.text());
        return;
    }
    let (short, runs) = shrink(script, failure, SHRINKING_RUNS);
    println!("# {} of {} steps are enough ({runs} runs)", short.steps.len(), script.steps.len());
    print!("{}", short.text());
}

/// Time that this process had on a core, s.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn add(sum: &mut Outcome, one: &Outcome) {
    sum.counts = sum.counts.plus(one.counts);
    for (sum, one) in [
        (&mut sum.turns, one.turns),
        (&mut sum.now_ns, one.now_ns),
        (&mut sum.kills, one.kills),
        (&mut sum.cuts, one.cuts),
        (&mut sum.uncovered, one.uncovered),
        (&mut sum.upgrades, one.upgrades),
        (&mut sum.changes, one.changes),
        (&mut sum.refused, one.refused),
    ] {
        *sum += one;
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    // Panics print nothing: the runs that look for a shorter script would repeat the message.
    std::panic::set_hook(Box::new(|_| ()));
    let length = options.steps.unwrap_or(60);
    if let Some(path) = &options.script {
        let script = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let script = script.and_then(|text| Script::parse(&text));
        return match script.map(|script| (run(&script), script)) {
            Err(why) => {
                eprintln!("{path}: {why}");
                ExitCode::FAILURE
            }
            Ok((Err(failure), script)) => {
                say(&failure, &script, options.keeps);
                ExitCode::FAILURE
            }
            Ok((Ok(outcome), _)) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
        };
    }
    let (start, cpu) = (Instant::now(), cpu_s());
    let (mut sum, mut runs) = (Outcome::default(), 0u64);
    let first = options.seed.unwrap_or(1);
    let is_timed = options.seconds.is_some() || options.core_s.is_some();
    let most = options.seeds.unwrap_or(if is_timed || options.cuts.is_some() { u64::MAX } else { 1 });
    let cuts = options.cuts.unwrap_or(u64::MAX);
    let limit = options.seconds.map_or(Duration::MAX, Duration::from_secs);
    let core_s = options.core_s.map_or(f64::INFINITY, |seconds| seconds as f64);
    let mut seed = first;
    while runs < most && sum.cuts < cuts && (runs == 0 || (start.elapsed() < limit && cpu_s() - cpu < core_s)) {
        let script = match options.cuts {
            Some(_) => Script::draw_power(seed, CUTS_EACH),
            None if options.managed => Script::draw_managed(seed, length),
            None => Script::draw(seed, length),
        };
        match run(&script) {
            Ok(outcome) => add(&mut sum, &outcome),
            Err(failure) => {
                println!("seed {seed} ({runs} seeds, {:.1} s of a core before it)", cpu_s() - cpu);
                say(&failure, &script, options.keeps);
                return ExitCode::FAILURE;
            }
        }
        runs += 1;
        seed = if is_timed { Random::new(seed).next_u64() } else { seed + 1 };
    }
    let seconds = start.elapsed().as_secs_f64();
    let Outcome { counts, turns, now_ns, kills, cuts, uncovered, upgrades, changes, refused } = sum;
    let requests = counts.good + counts.failed + counts.forsaken;
    println!("{runs} seeds from {first}, {length} steps each, {seconds:.1} s, {:.1} s virtual", now_ns as f64 / 1e9);
    println!(
        "{requests} requests ({} failed, {} forsaken), {} sessions, {turns} turns",
        counts.failed, counts.forsaken, counts.sessions
    );
    println!(
        "{changes} changes ({refused} refused), {kills} kills, {cuts} power cuts ({uncovered} values at risk), {upgrades} upgrades"
    );
    let cpu_s = cpu_s() - cpu;
    println!("{:.0} requests per second of one core ({cpu_s:.1} s of it)", requests as f64 / cpu_s.max(1e-9));
    ExitCode::SUCCESS
}

// Which steps of a script that fails are enough to fail?
//
// Steps are left out in runs, the longest first, as long as what is left fails with the same words; then numbers of
// what remains are made smaller. Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
// TSE 2002 (ddmin without its complements).

/// Two failures are the same if they say the same up to their first number.
fn kind(failure: &Failure) -> &str {
    failure.what.split(|c: char| c.is_ascii_digit()).next().unwrap_or("")
}

/// A script that fails as `script` does, in which no single step can be left out, found in at most `runs_max` runs.
pub fn shrink(script: &Script, failure: &Failure, runs_max: usize) -> (Script, usize) {
    let mut best =
        Script { steps: script.steps[..=failure.step.min(script.steps.len() - 1)].to_vec(), ..script.clone() };
    let mut runs = 0;
    let fails = |candidate: &Script, runs: &mut usize| {
        *runs += 1;
        *runs <= runs_max && run(candidate).is_err_and(|other| kind(&other) == kind(failure))
    };
    if !fails(&best, &mut runs) {
        return (script.clone(), runs);
    }
    let mut length = best.steps.len().next_power_of_two() / 2;
    while length > 0 && runs < runs_max {
        let mut from = 0;
        while from < best.steps.len() && runs < runs_max {
            let to = (from + length).min(best.steps.len());
            let mut shorter = best.clone();
            shorter.steps.drain(from..to);
            if fails(&shorter, &mut runs) { best = shorter } else { from = to }
        }
        length /= 2;
    }
    for at in 0..best.steps.len() {
        while matches!(best.steps[at].name, "io" | "drive") && best.steps[at].numbers[1] > 1 && runs < runs_max {
            let mut smaller = best.clone();
            smaller.steps[at].numbers[1] /= 2;
            if !fails(&smaller, &mut runs) {
                break;
            }
            best = smaller;
        }
    }
    (best, runs)
}
