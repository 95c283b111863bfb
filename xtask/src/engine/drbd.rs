//! DRBD in a guest: two resources of one kernel, each the other's peer; `testing/guest/cases/drbd.job` says what is done.

use super::{Engine, Finding, Ground};
use mqfq_report::panel::Panel;
use std::time::Duration;

pub(super) const DRBD: Engine = Engine {
    name: "drbd",
    about: "DRBD: verified writes while the peer goes away and comes back",
    programs: &[("drbdmeta", "drbd-utils"), ("fio", "fio")],
    measure,
};

const MODULES: &[&str] = &["null_blk", "configfs", "drbd", "crc32c_generic"];

fn measure(ground: &Ground<'_>) -> Result<(Vec<Finding>, Vec<Panel>), String> {
    let job = include_str!("../../../testing/guest/cases/drbd.job");
    Ok((ground.in_guest("drbd", MODULES, job, Duration::from_secs(1800))?, Vec::new()))
}
