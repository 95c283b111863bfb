//! DRBD in a guest: two resources of one kernel, each the other's peer. The steps are in
//! `testing/guest/cases/drbd.job`.

use super::{Engine, Ground, Measured};
use mqfq_report::panel::{Panel, Series};
use std::time::Duration;

pub(super) const DRBD: Engine = Engine {
    name: "drbd",
    about: "DRBD: verified writes while the peer goes away and comes back",
    programs: &[("drbdmeta", "drbd-utils"), ("fio", "fio"), ("python3", "python3-minimal")],
    measure,
};

const MODULES: &[&str] = &["null_blk", "configfs", "drbd", "crc32c_generic"];

fn measure(ground: &Ground<'_>) -> Result<Measured, String> {
    let job = include_str!("../../../testing/guest/cases/drbd.job");
    let findings = ground.in_guest("drbd", MODULES, job, Duration::from_secs(3600))?;
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
