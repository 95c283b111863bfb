//! Finding beside truth: the modelled drives, whose parameters are known, in virtual time.
//!
//! `cargo test -p mqfq-calibrate --test presets -- --nocapture` prints both.

use mqfq_blk::device::model::presets::{ALL as PRESETS, Preset};
use mqfq_calibrate::bench::ModelBench;
use mqfq_calibrate::finding::Finding;
use mqfq_calibrate::sweep::{self, Extent, Kind, Plan};

/// The finding of a drive whose random numbers, and whose requests', begin at `seed`.
fn found(preset: Preset, seed: u64) -> Finding {
    let mut bench = ModelBench::new(preset, seed).unwrap();
    let plan = Plan {
        sizes_bytes: Plan::SIZES_BYTES.to_vec(),
        depth_max: Plan::DEPTH_MAX,
        extent: Extent::Requests(600),
        writes: true,
        seed,
    };
    Finding::of(sweep::run(&mut bench, &plan, &mut |_| Ok(())).unwrap())
}

/// `finding` is within `share` of `truth`; prints both.
fn beside(what: &str, truth: f64, finding: f64, share: f64) {
    println!("  {what:<34} {truth:>14.3} {finding:>14.3} {:>+7.1}%", (finding / truth - 1.0) * 100.0);
    assert!((finding / truth - 1.0).abs() <= share, "{what}: {finding} beside {truth}, allowed is {share} of it");
}

fn is_as_it_is(preset: Preset) {
    println!("{:<36} {:>14} {:>14}", preset.name, "truth", "finding");
    let media = preset.media;
    let finding = found(preset, 1);
    for (kind, link) in [
        (Kind::RandomRead, media.read_link),
        (Kind::SequentialRead, media.read_link),
        (Kind::RandomWrite, media.write_link),
        (Kind::SequentialWrite, media.write_link),
    ] {
        let line = finding.terms.iter().find(|terms| terms.kind == kind).unwrap().line;
        // Where a request has next to no time of its own, a hundredth of the smallest request's time is close enough.
        let (truth_ns, smallest_ns) = (link.command_ns as f64, 1e9 / link.commands_per_s(4096) as f64);
        let share = (0.02 * smallest_ns / truth_ns).max(0.02);
        beside(&format!("{}, ns per request", kind.name()), truth_ns, line.per_request_ns, share);
        beside(
            &format!("{}, ns per KiB", kind.name()),
            1024e9 / link.bytes_per_s as f64,
            line.per_byte_ns * 1024.0,
            0.02,
        );
        assert!(line.residual_share < 0.02, "the model is a line");
    }
    let alone_ns = |die_ns: u64, per_s: u64| die_ns as f64 + 1e9 / per_s as f64;
    let profile = finding.profile;
    let read_ns = alone_ns(media.read_ns, media.read_link.commands_per_s(4096));
    beside("latency of a read, ns", read_ns, profile.latency_ns as f64, 0.02);
    let write_ns = alone_ns(media.write_ns, media.write_link.commands_per_s(4096));
    beside("latency of a write, ns", write_ns, profile.write_latency_ns.unwrap() as f64, 0.02);
    let bandwidth = |per_s: u64| (per_s * (128 << 10)) as f64;
    let read_bytes_per_s = bandwidth(media.read_link.commands_per_s(128 << 10));
    beside("bandwidth of reads, bytes/s", read_bytes_per_s, profile.bandwidth_bytes_per_s as f64, 0.02);
    // The knee is certainly not below 97% of the product of bandwidth and latency, and some way above it
    // dies no longer collide; the presets' own words ("full at D") are of that kind, within a step of a factor 1.5.
    let knee = f64::from(finding.curves[0].knee_depth.unwrap());
    let product = 0.97 * read_ns * media.read_link.commands_per_s(4096) as f64 * 1e-9;
    println!("  {:<34} {product:>14.1} {knee:>14}", "4 KiB reads, knee, at least");
    assert!((product - 1.0..=product * 1.6 + 2.0).contains(&knee), "{knee} beside {product}");
    // Another drive of the same make, and requests to other places.
    let again = found(preset, 2);
    println!("  {:<34} {:>14} {:>14}", "again: knee, units", profile.knee_units, again.profile.knee_units);
    let close = |one: f64, other: f64| (one / other - 1.0).abs() <= 0.1;
    for (one, other) in finding.terms.iter().zip(&again.terms) {
        assert!(close(one.line.per_byte_ns, other.line.per_byte_ns), "{one:?} {other:?}");
    }
    let [one, other] =
        [&finding, &again].map(|finding| (finding.read.unwrap(), finding.write.unwrap(), finding.profile));
    // Cost of 4 KiB, in which a small base counts for what it is.
    for (one, other) in [(one.0, other.0), (one.1, other.1)] {
        assert!(close(one.term().cost(4096).0 as f64, other.term().cost(4096).0 as f64), "{one:?} {other:?}");
    }
    assert!(close(one.2.knee_units.into(), other.2.knee_units.into()), "{one:?} {other:?}");
    assert!(close(one.2.latency_ns as f64, other.2.latency_ns as f64));
    assert!(close(one.2.bandwidth_bytes_per_s as f64, other.2.bandwidth_bytes_per_s as f64));
}

#[test]
fn the_finding_of_each_modelled_drive_is_the_truth_and_repeats() {
    PRESETS.into_iter().for_each(is_as_it_is);
}

#[test]
fn the_same_seed_gives_the_same_finding() {
    let [one, other] = [(); 2].map(|()| found(PRESETS[2], 7));
    assert_eq!(one, other);
}
