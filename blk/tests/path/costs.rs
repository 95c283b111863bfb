//! Charges that follow a device's cost of writes.

use crate::harness::{Rig, Setup};
use mqfq_blk::device::null::NullDevice;
use mqfq_blk::path_options::PathOptions;
use mqfq_blk::request::Op;
use mqfq_blk::{CostModel, HctxId};
use mqfq_policies::SFQD;
use mqfq_sched::write_cost::WriteCost;
use std::sync::Arc;

const BLOCK: u32 = 4096;

#[test]
fn a_reader_and_a_writer_share_the_time_of_a_device_that_takes_three_times_as_long_for_a_write() {
    // Equal weights, one command at a time, and both flows always have another request waiting.
    const READ_NS: u64 = 40_000;
    const WRITE_NS: u64 = 3 * READ_NS;
    let cost = Arc::new(WriteCost::new(CostModel::FLAT, 1));
    let setup = Setup { kind: SFQD, weights: vec![100, 100], depth: 1, ..Setup::plain(PathOptions::TIMELESS) };
    let mut rig = Rig::new(&setup, &NullDevice::new(1 << 30));
    rig.hctxs = rig.hctxs.into_iter().map(|hctx| hctx.with_write_cost(cost.clone())).collect();
    let ask = |rig: &mut Rig, op| rig.ask((op == Op::Write).into(), op, 0, BLOCK, 1);
    [Op::Read, Op::Write, Op::Read, Op::Write].into_iter().for_each(|op| ask(&mut rig, op));
    let mut of_each_ns = [0; 2];
    // About 512 requests are a phase, and nine phases a round of the estimate.
    for n in 0..60_000 {
        rig.hctxs[0].run(rig.now_ns, &mut |_: HctxId| panic!("nobody else is there"));
        for ended in rig.reap(0) {
            let op = ended.asked.op;
            let took_ns = if op == Op::Write { WRITE_NS } else { READ_NS };
            rig.now_ns += took_ns;
            if n >= 30_000 {
                of_each_ns[usize::from(op == Op::Write)] += took_ns;
            }
            ask(&mut rig, op);
        }
    }
    let found = cost.estimate_256ths();
    assert!(found.abs_diff(3 * 256) < 40, "{found} is not 768");
    let [read_ns, write_ns] = of_each_ns;
    assert!(read_ns.abs_diff(write_ns) < (read_ns + write_ns) / 50, "{read_ns} and {write_ns} ns");
}
