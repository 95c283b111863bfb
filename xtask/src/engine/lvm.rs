//! LVM, thick and thin, in a guest. The steps are in `testing/guest/cases/lvm.job`.

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
    measure,
};

const MODULES: &[&str] = &["null_blk", "configfs", "dm-mod", "dm-thin-pool", "crc32c_generic"];

fn measure(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../../testing/guest/cases/lvm.job");
    let findings = ground.in_guest("lvm", MODULES, job, Duration::from_secs(3600))?;
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
