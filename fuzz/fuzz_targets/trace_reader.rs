//! A trace of requests (fio's iolog, blkparse): no text makes the reader panic, a refusal names a line of it, and every
//! request that it takes lies on the device.
//!
//! Behind a feature, because what is watched by the simulator is compiled without debug assertions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mqfq_sim::workload::trace;

const DEVICE_BYTES: u64 = 1 << 40;

fuzz_target!(|input: (u8, String)| {
    let (kind, text) = input;
    // Most texts have a right beginning.
    let text = ["", "fio version 2 iolog\n", "fio version 3 iolog\n", "  8,0    3        1     0.000000000   697  "]
        [usize::from(kind % 4)]
    .to_owned()
        + &text;
    match trace::parse(&text, DEVICE_BYTES) {
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.lines().count().max(1), "line {}", error.line);
            let sentence = error.to_string();
            assert!(sentence.chars().all(|c| !c.is_control()), "{sentence:?}");
        }
        Ok(trace) => {
            assert!(!trace.requests.is_empty());
            for request in trace.requests.iter() {
                assert!(request.length_bytes > 0);
                assert!(request.offset_bytes + u64::from(request.length_bytes) <= DEVICE_BYTES);
            }
        }
    }
});
