//! Claims of the profiles of programs: how they synchronise, and how much of 48 cores they use alone.

use mqfq_sim::any::{self, AnyOutcome};
use mqfq_sim::cpu::body::{Body, Step};
use mqfq_sim::cpu::profiles::{self, Parameters};
use mqfq_sim::embedded;
use mqfq_sim::figure::{Extent, Figure};

/// Objects that threads of a program wait for.
#[derive(PartialEq, Eq, Debug, Default)]
struct Kind {
    mutex: bool,
    barrier: bool,
    semaphore: bool,
}

fn kind_of(body: &Body) -> Kind {
    fn look(steps: &[Step], kind: &mut Kind) {
        for step in steps {
            match step {
                Step::Lock { .. } => kind.mutex = true,
                Step::Barrier(_) => kind.barrier = true,
                Step::Down(_) => kind.semaphore = true,
                Step::Repeat(_, inner) => look(inner, kind),
                _ => {}
            }
        }
    }
    let mut kind = Kind::default();
    body.roles.iter().for_each(|role| look(&role.steps, &mut kind));
    kind
}

/// Cores that it uses alone on 48 under CFS, with as many threads.
fn cores_alone(profile: &str) -> f64 {
    let text = format!(
        "kind = \"cpu\"\nrun = {{ warm-up = \"100ms\", measured = \"400ms\" }}\nmachine = {{ cores = 48 }}\n\
         scheduler = {{ kind = \"cfs\" }}\n[program.app]\nprofile = \"{profile}\"\n"
    );
    match any::run("s.toml", &text) {
        Ok(AnyOutcome::Cpu(outcome)) => outcome.programs[0].cores_used,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_program_waits_for_what_its_suite_says_and_uses_alone_what_is_stated() {
    // Name; mutex, barrier, semaphore (pipelines); cores of 48 that it uses alone.
    let all: &[(&str, [bool; 3], std::ops::RangeInclusive<f64>)] = &[
        ("blackscholes", [false, true, false], 40.0..=48.0),
        ("bodytrack", [true, true, false], 29.0..=48.0),
        // P-MQFQ section 4.2: canneal and streamcluster cannot use half of the machine even alone; streamcluster
        // uses 14.
        ("canneal", [true, true, false], 17.0..=23.9),
        ("dedup", [true, false, true], 38.0..=48.0),
        ("facesim", [false, true, false], 34.0..=48.0),
        ("ferret", [true, false, true], 42.0..=48.0),
        ("fluidanimate", [true, true, false], 38.0..=48.0),
        ("raytrace", [true, true, false], 42.0..=48.0),
        ("streamcluster", [true, true, false], 12.5..=15.5),
        ("swaptions", [false, false, false], 47.9..=48.0),
        ("vips", [true, false, false], 46.0..=48.0),
        ("x264", [false, false, true], 46.0..=48.0),
        ("bt", [false, true, false], 40.0..=48.0),
        ("cg", [true, true, false], 38.0..=48.0),
        // "Embarrassingly parallel and uses no synchronization."
        ("ep", [false, false, false], 47.9..=48.0),
        ("ft", [false, true, false], 40.0..=48.0),
        ("is", [false, true, false], 40.0..=48.0),
        ("lu", [false, true, false], 40.0..=48.0),
        ("mg", [false, true, false], 40.0..=48.0),
        ("sp", [false, true, false], 40.0..=48.0),
        ("ua", [true, true, false], 40.0..=48.0),
    ];
    for (name, [mutex, barrier, semaphore], cores) in all {
        let body = profiles::find(name).expect("a profile").body(Parameters::of(48));
        let expected = Kind { mutex: *mutex, barrier: *barrier, semaphore: *semaphore };
        assert_eq!(kind_of(&body), expected, "{name}");
        let used = cores_alone(name);
        assert!(cores.contains(&used), "{name}: {used}, not in {cores:?}");
    }
}

#[test]
fn a_figure_of_programs_comes_out_the_same_to_the_last_byte() {
    let once = || {
        let text = embedded::figure("p-mqfq/1").unwrap();
        let figure = Figure::read("p-mqfq/1", "1.toml", text, Extent::Quick, &any::check).unwrap();
        let outcomes = figure.jobs().iter().map(|job| any::run(&job.file, &job.scenario).unwrap());
        figure.assemble(&outcomes.collect::<Vec<_>>()).csv().unwrap()
    };
    let first = once();
    assert!(first.lines().count() > 4);
    assert_eq!(first, once());
}

#[test]
fn a_metric_of_programs_is_refused_of_tenants_and_of_programs_that_are_not_there() {
    let refusal = |metric: &str| {
        let text = format!(
            "[figure]\ntitle = \"t\"\nsource = \"s\"\ny-label = \"y\"\n[scenario]\nkind = \"cpu\"\nmachine = {{ cores = 2 }}\n\
             scheduler = {{ kind = \"cfs\" }}\n[scenario.program.app]\nprofile = \"hog\"\n[x]\nkeys = [\"machine.cores\"]\nvalues = [2]\n\
             [[series]]\nname = \"a\"\nmetric = {metric}\n"
        );
        Figure::read("f", "f.toml", &text, Extent::Full, &any::check).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("{ name = \"of-fair\", program = \"hogs\" }"),
        "f.toml:14: series: there is no program \"hogs\", there are app"
    );
    assert_eq!(
        refusal("{ name = \"of-fair\" }"),
        "f.toml:14: series: the metric of-fair needs a program, none is named"
    );
    assert_eq!(
        refusal("{ name = \"of-fair\", tenant = \"app\" }"),
        "f.toml:14: series: the metric of-fair is that of a program, and \"app\" is named as a tenant"
    );
    assert_eq!(
        refusal("{ name = \"bytes-per-s\" }"),
        "f.toml:14: series: the metric bytes-per-s is of tenants, and the scenario has none"
    );
}
