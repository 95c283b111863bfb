//! Engines of one kernel, in a guest: LVM, thick and thin; and DRBD, two resources, each the other's peer. The steps
//! are in `testing/guest/cases/lvm.job` and `drbd.job`.

use super::{Engine, Finding, Ground, Measured};
use mqfq_report::panel::{Panel, Series};
use std::time::Duration;

pub(super) const LVM: Engine = Engine {
    name: "lvm",
    about: "LVM: shares of four volumes, a full thin pool, growth",
    programs: &[
        ("lvm", "lvm2"),
        ("thin_check", "thin-provisioning-tools"),
        ("dmsetup", "dmsetup"),
        ("fio", "fio"),
        ("nbdsh", "python3-libnbd"),
        ("curl", "curl"),
    ],
    measure: measure_lvm,
};

/// Modules that the steps need.
const OF_LVM: &[&str] = &["null_blk", "configfs", "dm-mod", "dm-thin-pool", "crc32c_generic"];

fn measure_lvm(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../../testing/guest/cases/lvm.job");
    let findings = ground.in_guest("lvm", OF_LVM, job, Duration::from_secs(3600))?;
    Ok((findings.clone(), pictured(&findings)))
}

/// Shares of each mix beside the weights.
fn pictured(findings: &[Finding]) -> Vec<Panel> {
    let of_mixes: Vec<&Finding> = findings.iter().filter(|finding| finding.case.starts_with("shares, ")).collect();
    let mut mixes: Vec<&str> = of_mixes.iter().map(|finding| finding.case.as_str()).collect();
    mixes.dedup();
    let panel = |mix: &&str| {
        let shares: Vec<(&str, f64)> = of_mixes
            .iter()
            .filter(|finding| finding.case == **mix && finding.what.starts_with("weight "))
            .filter_map(|finding| Some((finding.what.as_str(), finding.value.as_f64()?)))
            .collect();
        let places = shares.iter().map(|(what, _)| (*what).to_owned()).collect();
        let found = (0..).zip(&shares).map(|(at, (_, share))| (f64::from(at), *share));
        let wanted = (0..shares.len()).map(|at| (at as f64, (at + 1) as f64 / 10.0));
        let series = vec![Series::new("found", 0, found), Series::new("by weight", 1, wanted)];
        Panel::bars_at(*mix, places, "part of all bytes").with(series)
    };
    mixes.iter().map(panel).collect()
}

pub(super) const DRBD: Engine = Engine {
    name: "drbd",
    about: "DRBD: verified writes while the peer goes away and comes back",
    programs: &[("drbdmeta", "drbd-utils"), ("fio", "fio"), ("python3", "python3-minimal")],
    measure: measure_drbd,
};

/// Modules that the steps need.
const OF_DRBD: &[&str] = &["null_blk", "configfs", "drbd", "crc32c_generic"];

fn measure_drbd(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../../testing/guest/cases/drbd.job");
    let findings = ground.in_guest("drbd", OF_DRBD, job, Duration::from_secs(3600))?;
    // One bar for each time that the peer was away.
    let rounds: Vec<(String, f64)> = findings
        .iter()
        .filter_map(|finding| {
            let (round, _) = finding.what.split_once(": missing at the peer")?;
            Some((round.to_owned(), finding.value.as_f64()?))
        })
        .collect();
    let places = rounds.iter().map(|(round, _)| round.clone()).collect();
    let missing = (0..).zip(&rounds).map(|(at, (_, kib))| (f64::from(at), *kib));
    let series = Series::new("missing before it came back", 0, missing);
    let panel = Panel::bars_at("The peer was away for 2 s", places, "KiB").with(vec![series]);
    Ok((findings, vec![panel]))
}
