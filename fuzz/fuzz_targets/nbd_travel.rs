//! The state of a connection from another process: no bytes make it panic, and what is taken goes on.
#![no_main]

#[path = "../export.rs"]
mod export;

use export::export;
use libfuzzer_sys::fuzz_target;
use mqfq_blk::state::{StateReader, VERSION};
use mqfq_front::connection_slots::ConnectionSlots;
use mqfq_front::export::{BlockSizes, ExportTable};
use mqfq_front::nbd::{Connection, NAMES, NbdOptions};
use mqfq_front::stats::Stats;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

fuzz_target!(|bytes: &[u8]| {
    let block = BlockSizes { min_bytes: 1, preferred_bytes: 4096, payload_bytes_max: 32768, pages_align_bytes: 0 };
    let export = export(0, 1 << 20, false, block);
    let exports = Arc::new(ExportTable::new([export]).expect("a good export"));
    let options = Arc::new(NbdOptions::default());
    let (socket, _) = UnixStream::pair().expect("a socket");
    let places = ConnectionSlots::new(&exports, &options.listen, Stats::new(&NAMES));
    let place = places.enter_handed_over(socket.into());
    let _ = Connection::unpack(place, exports, options, &mut StateReader::new(VERSION, bytes));
});
