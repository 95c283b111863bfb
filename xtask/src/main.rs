//! `cargo xtask`: the project's chores. Every command that it runs is printed first.

use std::process::ExitCode;
use std::time::Duration;
use xtask::engine::positive;
use xtask::run::run_unless_known;
use xtask::{chores, databases, engine, guest, mutants, package, release, size, soak, suites, tools, vopr};

const USAGE: &str = "\
cargo xtask COMMAND

  test [--again]             the whole test suite; installs the test tools that it lacks when it may; models and
                             simulations whose very program passed before are left out, unless --again
  ci                         checks, smoke and test: what .ci/run runs
  checks                     formatting, tidy, clippy, rustdoc; licences, bans and sources of all crates with cargo-deny
  smoke                      the demo, and a look at its report
  fmt [--check]              formats everything, the policies' folders too, which cargo fmt does not find
  size [--json]              lines by crate, files, words of docs
  tidy                       the rules that no compiler knows
  loom                       the model checks of the lock-free code
  histories [--steps N] [--seed S]
                             N steps (default 10 million) of generated histories against the oracle, from seed S (default 1)
  miri                       tests of the core in the interpreter; needs a nightly toolchain with miri
  soak [--seconds N | --minutes N] [--seed S]
                             the generated tests with new seeds, for 60 s if not told otherwise, from seed S if told
  vopr [--seed N | --for S | --cuts N | --script FILE] [--steps N] [--seeds N] [--no-shrink] [--managed]
                             the whole server in virtual time, from one seed; a seed that fails is made shorter; or
                             until the power was cut N times; or of a server that is changed as a whole
  vopr --planted [NAME]      the same with bugs that are planted, in a copy: how soon does a seed find each?
  mutants [--list] [--only MODULE] [--kinds KINDS] [--every N] [--minutes M]
                             changes the product in one place at a time: which change does no test notice? KINDS are
                             operators (what a change gets wrong), effects (what it forgets) or all (default); of N
                             mutants one is drawn (default 1); after M minutes of a crate it ends, and goes on there
                             the next time
  mutants --planted [NAME]   mutants by hand, in a copy: does the test that is named with each fail?
  kill-test [--rounds N] [--front F]
                             kills the daemon under load over nbd (or F: vhost-user; or ublk, in a guest) N times (default
                             50), looks for lost bytes and requests
  suites [SUITE]... [--short] [--only WORD] [--program P] [--json]
                             test suites of libnbd, nbd and QEMU, nbdkit's filters, nbdcopy and fio, each against our
                             server and its own; --short: a sample of the last three, as in the test suite
  databases [--rounds N] [--seconds N] [--scene NAME]... [--goal TIME] [--program P] [--json]
                             PostgreSQL and RocksDB beside greedy neighbours, under none, mqfq and mqfq with a goal
                             (default 2ms): N rounds (default 10) with N seconds (default 10) for each figure; as root
  engine [NAME] [--only PART] [--program P] [--json]
                             a pool over a real storage engine, which is installed: shares, faults, healing; without a
                             name: the list of them
  engine ceph [--rounds N] [--seconds N] [--kills N] [--depth D] [--krbd] [--program P] [--json]
                             the same on a Ceph cluster of this machine: N pairs (default 10) of windows of N seconds
                             (default 30) of none and mqfq; N kills (default 3) of an OSD under a verified load, a full
                             pool; --krbd: correctness alone, by the rbd of a guest's kernel; as root
  tools                      installs what tests, fuzzing and a release need besides Rust
  package                    the Debian package, checked and installed in a clean system; needs cargo-deb,
                             cargo-auditable and cargo-cyclonedx
  package --as-built         the same of the program that lies in target/release, which is not built again
  package --crate            the archive of mqfq-sched for crates.io: it builds and passes its tests by itself
  package --library          libmqfq-dev alone, and a program built with it; needs cargo-deb
  package --dkms             the package of the kernel's elevator, after it was built for each kernel it is for
  deny                       licences, bans, sources and advisories of all crates; needs cargo-deny
  sbom                       what is in the program, as target/package/mqfq.cdx.json; needs cargo-cyclonedx
  reproducible               builds the released program in two folders: are the bytes the same? needs cargo-auditable
  guest [CASE] [--kernel S] [--only WORD] [--kills N] [--json]
                             a case in a Linux kernel of its own, with N kills or restarts of its server; without a
                             case: the list of them
  sanitize [--thread]        the tests of blk under AddressSanitizer, or of blk and sched under ThreadSanitizer
  fuzz TARGET [--seconds N]  a fuzz target for N seconds (default 60); needs cargo-fuzz
  fuzz --keep                packs the inputs in fuzz/corpus into the archive that is committed
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<(), String> {
    match words {
        ["test"] => chores::test(false),
        ["test", "--again"] => chores::test(true),
        // Cargo starts this for each test program: `cargo_unless_known`.
        ["known", folders, program, args @ ..] => run_unless_known(folders, program, args),
        ["ci"] => chores::ci(),
        ["checks"] => chores::checks(),
        ["smoke"] => chores::smoke(),
        ["fmt"] => chores::fmt(false),
        ["fmt", "--check"] => chores::fmt(true),
        ["size"] => size::size(false),
        ["size", "--json"] => size::size(true),
        ["tidy"] => chores::tidy(),
        ["loom"] => chores::loom(),
        ["histories", options @ ..] => {
            let (mut steps, mut seed) = (10_000_000, 1);
            for pair in options.chunks(2) {
                match pair {
                    ["--steps", text] => steps = number(text)?,
                    ["--seed", text] => seed = number(text)?,
                    other => return Err(format!("histories takes --steps N and --seed S, not {}", other.join(" "))),
                }
            }
            chores::histories(steps, seed)
        }
        ["soak", options @ ..] => {
            let (mut limit, mut seed) = (Duration::from_secs(60), None);
            for pair in options.chunks(2) {
                match pair {
                    ["--seconds", text] => limit = Duration::from_secs(positive(text)?.into()),
                    ["--minutes", text] => limit = Duration::from_secs(60 * u64::from(positive(text)?)),
                    ["--seed", text] => seed = Some(number(text)?),
                    other => {
                        return Err(format!(
                            "soak takes --seconds N or --minutes N, and --seed S, not {}",
                            other.join(" ")
                        ));
                    }
                }
            }
            soak::soak(limit, seed)
        }
        ["vopr", "--planted"] => vopr::planted(None),
        ["vopr", "--planted", name] => vopr::planted(Some(name)),
        ["vopr", options @ ..] => vopr::vopr(options),
        ["miri"] => chores::miri(),
        ["tools"] => tools::tools(),
        ["mutants", "--planted"] => mutants::planted(None),
        ["mutants", "--planted", name] => mutants::planted(Some(name)),
        ["mutants", words @ ..] => {
            let mut options = mutants::Options::default();
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match *word {
                    "--list" => options.is_list = true,
                    "--only" => options.only = Some(words.next().ok_or("--only needs a part of a module's path")?),
                    "--kinds" => {
                        options.kinds = Some(words.next().ok_or("--kinds needs operators, effects or all")?);
                    }
                    "--every" => options.every = positive(words.next().ok_or("--every needs a number")?)?,
                    "--minutes" => {
                        options.minutes = Some(positive(words.next().ok_or("--minutes needs a number")?)?);
                    }
                    other => {
                        return Err(format!(
                            "mutants takes --list, --only MODULE, --kinds KINDS, --every N and --minutes M, not {other}"
                        ));
                    }
                }
            }
            mutants::mutants(&options)
        }
        ["kill-test", options @ ..] => {
            let (mut rounds, mut front) = (50, "nbd");
            for pair in options.chunks(2) {
                match pair {
                    ["--rounds", text] => rounds = positive(text)?,
                    ["--front", name] => front = name,
                    other => return Err(format!("kill-test takes --rounds N and --front F, not {}", other.join(" "))),
                }
            }
            chores::kill_test(rounds, front)
        }
        ["databases", words @ ..] => {
            let mut options = databases::Options::default();
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match *word {
                    "--json" => options.json = true,
                    "--in-namespace" => options.is_inside = true,
                    "--rounds" => options.rounds = positive(words.next().ok_or("--rounds needs a number")?)?,
                    "--seconds" => options.seconds = positive(words.next().ok_or("--seconds needs a number")?)?,
                    "--goal" => options.goal = words.next().ok_or("--goal needs a time, such as 2ms")?,
                    "--scene" => options.scenes.push(words.next().ok_or("--scene needs a name")?),
                    "--program" => options.program = Some(words.next().ok_or("--program needs a path")?.into()),
                    other => {
                        return Err(format!(
                            "databases takes --rounds N, --seconds N, --scene NAME, --goal TIME, --program P and --json, not {other}"
                        ));
                    }
                }
            }
            databases::databases(&options)
        }
        ["engine", "ceph", words @ ..] => engine::ceph(words),
        ["engine", words @ ..] => {
            let mut options = engine::Options::default();
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match *word {
                    "--json" => options.json = true,
                    "--only" => options.only = Some(words.next().ok_or("--only needs a part of the run")?),
                    "--program" => options.program = Some(words.next().ok_or("--program needs a path")?.into()),
                    name if !name.starts_with('-') && options.engine.is_none() => options.engine = Some(name),
                    other => {
                        return Err(format!("engine takes a name, --only PART, --program P and --json, not {other}"));
                    }
                }
            }
            engine::engine(&options)
        }
        ["package"] => package::package(false),
        ["package", "--crate"] => package::crate_archive(),
        ["package", "--library"] => package::library_alone(),
        ["package", "--as-built"] => package::package(true),
        ["package", "--dkms"] => package::dkms(),
        ["deny"] => match release::deny(true)? {
            true => Ok(()),
            false => Err("cargo-deny is missing: cargo xtask tools".into()),
        },
        ["sbom"] => release::sbom().map(drop),
        ["reproducible"] => release::reproducible(),
        ["guest", words @ ..] => {
            let mut options = guest::Options::default();
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match *word {
                    "--json" => options.json = true,
                    "--kernel" => options.kernel = Some(words.next().ok_or("--kernel needs a series, such as 6.12")?),
                    "--only" => options.only = Some(words.next().ok_or("--only needs a part of the case")?),
                    "--kills" => options.kills = Some(positive(words.next().ok_or("--kills needs a number")?)?),
                    name if !name.starts_with('-') && options.case.is_none() => options.case = Some(name),
                    other => {
                        return Err(format!(
                            "guest takes a case, --kernel S, --only WORD, --kills N and --json, not {other}"
                        ));
                    }
                }
            }
            guest::guest(&options)
        }
        ["suites", words @ ..] => {
            let mut options = suites::Options::default();
            let mut words = words.iter();
            while let Some(word) = words.next() {
                match *word {
                    "--short" => options.is_short = true,
                    "--json" => options.json = true,
                    "--only" => options.only = Some(words.next().ok_or("--only needs a part of a case's name")?),
                    "--program" => options.program = Some(words.next().ok_or("--program needs a path")?.into()),
                    name if !name.starts_with('-') => options.suites.push(name),
                    other => {
                        return Err(format!(
                            "suites takes suites, --short, --only WORD, --program P and --json, not {other}"
                        ));
                    }
                }
            }
            suites::suites(&options)
        }
        ["stand-in", "announce", kind, place, file, pid] => {
            suites::stand_in::announce_when_ready(kind, place, file, pid)
        }
        ["stand-in", program, words @ ..] => {
            // Suites look at the status of the server that they started.
            std::process::exit(suites::stand_in::stand_in(program, words)?)
        }
        ["sanitize"] => chores::sanitize(false),
        ["sanitize", "--thread"] => chores::sanitize(true),
        ["fuzz", "--keep"] => chores::keep_corpora(),
        ["fuzz", target] => chores::fuzz(target, Duration::from_secs(60)),
        ["fuzz", target, "--seconds", seconds] => {
            chores::fuzz(target, Duration::from_secs(u64::from(positive(seconds)?)))
        }
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("there is no such command: {}\n\n{USAGE}", words.join(" "))),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}
