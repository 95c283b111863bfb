//! Instructions per request, exactly: this program again under `valgrind --tool=callgrind`.
//!
//! # Shape
//! The program is started with a flag that makes it run [`probe`]: for each case some turns to warm up, a call of
//! [`overhead_boundary`], the turns that count, and the function again. Callgrind ends a part of its profile at each
//! such call, so that of two parts the second holds nothing but the turns that count; start-up, construction and
//! warm-up are in others. In it stands how often each of the three step functions was called, and how many instructions
//! were executed inside them. One process measures all cases, and nothing is estimated.
//!
//! # What it cannot see
//! Instructions are not time: an atomic read-modify-write is one of them and costs as much as twenty others, and a line
//! that another core wrote last costs a hundred.

use super::turn::{Case, TURN, Turns};
use mqfq_demo::scratch::Scratch;
use std::path::Path;
use std::process::{Command, Stdio};

/// Turns before those that count. Enough for flows of the largest case to have been served once.
const WARM_UP_TURNS: u32 = 20;

/// Turns that count: the small ups and downs of a heap even out.
const COUNTED_TURNS: u32 = 50;

/// Instructions per request of each step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Instructions {
    /// Instructions of `Policy::submit`.
    pub submit: f64,
    /// Instructions of `Policy::pick`, the refused one at the end of each turn included.
    pub pick: f64,
    /// Instructions of `Policy::complete`.
    pub complete: f64,
}

/// Callgrind ends a part here.
#[inline(never)]
pub fn overhead_boundary() {
    std::hint::black_box(());
}

/// Work of the program under callgrind.
///
/// # Errors
/// One sentence: a policy cannot be built so.
pub fn probe(cases: &[Case], window_bytes: u64) -> Result<(), String> {
    for &case in cases {
        let mut turns = Turns::new(case, window_bytes)?;
        turns.run(WARM_UP_TURNS);
        overhead_boundary();
        turns.run(COUNTED_TURNS);
        overhead_boundary();
    }
    Ok(())
}

/// Counts, or says why not. `arguments` make `program` call [`probe`] for the same cases.
///
/// # Errors
/// One sentence, for the report: nothing else depends on it.
pub fn count(program: &Path, arguments: &[String], cases: &[Case]) -> Result<Vec<Instructions>, String> {
    counted(&profile(program, arguments)?, cases.len())
}

/// The profile of `program` with `arguments`, a part for all that was executed up to each [`overhead_boundary`].
///
/// # Errors
/// One sentence.
pub(crate) fn profile(program: &Path, arguments: &[String]) -> Result<String, String> {
    let scratch = Scratch::new()?;
    let profile = scratch.path().join("callgrind");
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(&profile);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--combine-dumps=yes", "--compress-strings=no", "--compress-pos=no"])
        .arg("--dump-before=*overhead_boundary*")
        .arg(out_file)
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "valgrind is not installed".to_string(),
            _ => format!("valgrind does not start: {error}"),
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("valgrind failed: {}", said.trim().lines().last().unwrap_or_default()));
    }
    std::fs::read_to_string(&profile).map_err(|error| format!("callgrind left no profile: {error}"))
}

/// Returns the second of each pair of parts of a profile: the part between the boundaries of each case.
pub(crate) fn between_boundaries(profile: &str, cases: usize) -> Result<Vec<&str>, String> {
    // The head comes before the first part, the end of the program after the last boundary.
    let parts: Vec<&str> = profile.split("\npart: ").skip(1).collect();
    if parts.len() < 2 * cases {
        return Err(format!(
            "callgrind's profile has {} parts instead of {}: the program lacks symbols",
            parts.len(),
            2 * cases
        ));
    }
    Ok((0..cases).map(|case| parts[2 * case + 1]).collect())
}

fn counted(profile: &str, cases: usize) -> Result<Vec<Instructions>, String> {
    between_boundaries(profile, cases)?.into_iter().map(of_part).collect()
}

fn of_part(part: &str) -> Result<Instructions, String> {
    Ok(Instructions {
        submit: per_request(part, "overhead_submit")?,
        pick: per_request(part, "overhead_pick")?,
        complete: per_request(part, "overhead_complete")?,
    })
}

/// Instructions inside `function` over the requests of the turns that count.
fn per_request(part: &str, function: &str) -> Result<f64, String> {
    let (calls, instructions) = inside(part, function)?;
    if calls != u64::from(COUNTED_TURNS) {
        return Err(format!("callgrind saw {calls} calls of {function} instead of {COUNTED_TURNS}"));
    }
    Ok(instructions as f64 / (calls * TURN as u64) as f64)
}

/// Calls of `function` in a part, and instructions inside them. Of a call the profile has three lines: the callee,
/// `calls=COUNT LINE`, and `LINE INSTRUCTIONS`, those of the callee's callees included.
pub(crate) fn inside(part: &str, function: &str) -> Result<(u64, u64), String> {
    let (mut calls, mut instructions) = (0u64, 0u64);
    let mut lines = part.lines();
    while let Some(line) = lines.next() {
        if !line.strip_prefix("cfn=").is_some_and(|callee| callee.contains(function)) {
            continue;
        }
        let count = lines.find_map(|line| line.strip_prefix("calls=")).and_then(|rest| rest.split(' ').next());
        let cost = lines.next().and_then(|line| line.split(' ').nth(1));
        let (Some(Ok(count)), Some(Ok(cost))) = (count.map(str::parse::<u64>), cost.map(str::parse::<u64>)) else {
            return Err(format!("callgrind's profile cannot be read at {line}"));
        };
        calls += count;
        instructions += cost;
    }
    Ok((calls, instructions))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile as callgrind writes it, shortened: `costs` of submit, pick and complete in each part.
    fn profile(parts: &[[u64; 3]]) -> String {
        let mut text = "# callgrind format\nversion: 1\ncreator: callgrind\n".to_string();
        for (number, [submit, pick, complete]) in parts.iter().enumerate() {
            text += &format!(
                "\npart: {}\npositions: line\nevents: Ir\nfn=mqfq_bench::overhead::turn::Turns::run\n",
                number + 1
            );
            text += "12 400\n";
            for (name, cost) in [("submit", submit), ("pick", pick), ("complete", complete)] {
                text +=
                    &format!("cfi=turn.rs\ncfn=mqfq_bench::overhead::turn::overhead_{name}\ncalls=50 7\n13 {cost}\n");
            }
            text += "\nfn=mqfq_bench::overhead::turn::overhead_submit\n7 99\ncfn=other\ncalls=1 2\n8 11\n";
        }
        text
    }

    #[test]
    fn the_second_part_of_each_case_counts() {
        // 50 turns of 64: 3,200 requests.
        let warm = [1, 2, 3];
        let text = profile(&[warm, [3_200, 6_400, 1_600], warm, [320_000, 0, 32_000], warm]);
        let found = counted(&text, 2).unwrap();
        assert_eq!(found[0], Instructions { submit: 1.0, pick: 2.0, complete: 0.5 });
        assert_eq!(found[1], Instructions { submit: 100.0, pick: 0.0, complete: 10.0 });
    }

    #[test]
    fn a_profile_without_the_functions_is_refused() {
        assert!(counted(&profile(&[[1, 2, 3]]), 1).unwrap_err().contains("lacks symbols"));
        let other = profile(&[[1, 2, 3], [1, 2, 3]]).replace("overhead_pick", "something");
        assert!(counted(&other, 1).unwrap_err().contains("0 calls of overhead_pick"));
    }
}
