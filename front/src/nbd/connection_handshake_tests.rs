//! A client that asks in its handshake and does not read the answers.

use super::*;

#[test]
fn a_handshake_that_does_not_read_its_answers_is_not_read_from() {
    // Each list is answered with 25 + 20 bytes and a description of 4096; a thousand are below the limit of options.
    const ANSWER_BYTES: usize = 45 + 4096;
    let exports = table();
    let export = Export { description: "d".repeat(4096), ..Export::clone(&exports.lookup("a").unwrap()) };
    let exports = Arc::new(ExportTable::new([export]).unwrap());
    let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
    peer.reads = false;
    peer.say(&[vec![0, 0, 0, 3], option(option::LIST, b"").repeat(1000)].concat());
    // A receive brings 4 KiB of options, of which some sixteen are answered.
    assert_eq!(peer.incoming.len(), 1000 * option(option::LIST, b"").len() + 4 - 4096, "one receive");
    let unsent = peer.fake.send.as_ref().unwrap().0.iter().map(|part| part.as_slice().len()).sum::<usize>();
    assert!(unsent <= (16 << 10) + ANSWER_BYTES, "{unsent} bytes unsent");
    peer.reads = true;
    peer.run();
    assert_eq!(peer.read.len(), 18 + 1000 * ANSWER_BYTES);
}

#[test]
fn a_list_of_any_number_of_exports_waits_in_the_memory_of_a_few() {
    let of = |number: u32| {
        let id = crate::export::ExportId(mqfq_blk::slots::Slot::first(number));
        let (name, description) = (format!("{number:04096}"), "d".repeat(4096));
        Export { id, name, description, ..Export::clone(&table().all()[0]) }
    };
    let exports = Arc::new(ExportTable::new((0..500).map(of)).unwrap());
    let mut peer = connect_to(exports, NbdOptions::default(), &Stats::new(&NAMES));
    peer.ask(&[0, 0, 0, 3]);
    peer.reads = false;
    peer.say(&option(option::LIST, b""));
    let sent: usize = peer.fake.send.as_ref().unwrap().0.iter().map(|part| part.as_slice().len()).sum();
    let waits = peer.client.replies.append(|out| out.len());
    assert!(sent + waits <= 2 * ((16 << 10) + 3 * 4096), "{sent} bytes are being sent, {waits} wait");
    peer.reads = true;
    peer.run();
    assert_eq!(peer.read.len(), 500 * (20 + 4 + 2 * 4096) + 20, "the whole list");
}
