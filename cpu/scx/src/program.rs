//! A program as the scheduler records it, and the share that is due to it.
//!
//! Source: `struct program` in `bpf/shared.h`, little-endian integers.

use std::collections::HashMap;

/// Slots.
pub const PROGRAMS_MAX: u32 = 32_768;

/// A program as the scheduler has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// Identifier of the cgroup or process. 0: the slot is free.
    pub id: u64,
    /// Finish tag, virtual ns.
    pub finish: u64,
    /// CPU time, ns.
    pub served_ns: u64,
    /// Virtual ns of a ns, 16 bits of fraction.
    pub rate: u64,
    /// Weight among those of the same parent.
    pub weight: u32,
    /// Threads that run or wait.
    pub runnable: i32,
    /// Requests that began.
    pub dispatches: u64,
    /// CPUs that its threads took from others.
    pub preemptions: u64,
    /// CPUs that others took.
    pub preempted: u64,
    /// Requests that began on another CPU than the thread's last.
    pub migrations: u64,
    /// Times that its lag was cut.
    pub cuts: u64,
}

impl Program {
    /// Reads a map's value. `None`: it is too short.
    pub fn read(bytes: &[u8]) -> Option<Program> {
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Program {
            id: u64_at(0)?,
            finish: u64_at(8)?,
            served_ns: u64_at(16)?,
            rate: u64_at(24)?,
            weight: u32_at(36)?,
            runnable: u32_at(48)? as i32,
            dispatches: u64_at(80)?,
            preemptions: u64_at(88)?,
            preempted: u64_at(96)?,
            migrations: u64_at(104)?,
            cuts: u64_at(112)?,
        })
    }
}

/// A program's part of some time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Share {
    /// The program.
    pub program: Program,
    /// Part that is due to it, by weight, of the CPU time of all programs that ran or wanted to.
    pub due_percent: f64,
    /// Part that it got of the CPU time of all programs.
    pub got_percent: f64,
    /// CPU time, ns.
    pub served_ns: u64,
    /// Distance behind the program that is furthest ahead, ns of its own CPU time.
    pub behind_ns: u64,
    /// As in [`Program`], of this time.
    pub dispatches: u64,
    /// As in [`Program`], of this time.
    pub migrations: u64,
    /// As in [`Program`], of this time.
    pub preemptions: u64,
    /// As in [`Program`], of this time.
    pub preempted: u64,
}

/// Each program's share since `before`. A slot with another program since then counts from that one's beginning.
pub fn shares(now: &[(u32, Program)], before: Option<&HashMap<u32, Program>>) -> Vec<Share> {
    let since = |slot: &u32, program: &Program| {
        before.and_then(|before| before.get(slot)).copied().filter(|old| old.id == program.id).unwrap_or_default()
    };
    let ran = |(slot, program): &(u32, Program)| program.served_ns.saturating_sub(since(slot, program).served_ns);
    let wants = |entry: &(u32, Program)| ran(entry) > 0 || entry.1.runnable > 0;
    // A rate of a nested program is 1 over its part of the whole; so is that of any other, in the same unit.
    let part = |program: &Program| if program.rate == 0 { 0.0 } else { 1.0 / program.rate as f64 };
    let parts: f64 = now.iter().filter(|entry| wants(entry)).map(|(_, program)| part(program)).sum();
    let served: u64 = now.iter().map(ran).sum();
    let first = now.iter().filter(|entry| wants(entry)).map(|(_, program)| program.finish).max().unwrap_or(0);
    let share = |entry: &(u32, Program)| {
        let (slot, program) = entry;
        let old = since(slot, program);
        let percent = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        let behind = u128::from(first.saturating_sub(program.finish)) << 16;
        Share {
            program: *program,
            due_percent: if wants(entry) { percent(part(program), parts) } else { 0.0 },
            got_percent: percent(ran(entry) as f64, served as f64),
            served_ns: ran(entry),
            behind_ns: if wants(entry) { (behind / u128::from(program.rate.max(1))) as u64 } else { 0 },
            dispatches: program.dispatches.saturating_sub(old.dispatches),
            migrations: program.migrations.saturating_sub(old.migrations),
            preemptions: program.preemptions.saturating_sub(old.preemptions),
            preempted: program.preempted.saturating_sub(old.preempted),
        }
    };
    now.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_is_by_weight_among_those_that_want_and_got_is_what_ran() {
        let of = |id, rate, served_ns, finish| Program { id, rate, served_ns, finish, ..Program::default() };
        let before = HashMap::from([(1, of(10, 2 << 16, 100, 0)), (3, of(12, 1 << 16, 50, 0))]);
        // Slot 3 stands still, slot 2 is new.
        let now = [(1, of(10, 2 << 16, 200, 40)), (2, of(11, 1 << 16, 300, 100)), (3, of(12, 1 << 16, 50, 0))];
        let found = shares(&now, Some(&before));
        let numbers = |share: &Share| (share.due_percent.round(), share.got_percent.round(), share.behind_ns);
        assert_eq!(found.iter().map(numbers).collect::<Vec<_>>(), [(33.0, 25.0, 30), (67.0, 75.0, 0), (0.0, 0.0, 0)]);
    }

    #[test]
    fn what_a_program_had_is_counted_since_it_has_its_slot() {
        let of = |id, times: u64| Program {
            id,
            rate: 1 << 16,
            served_ns: 10 * times,
            dispatches: times,
            preemptions: 2 * times,
            preempted: 3 * times,
            migrations: 4 * times,
            ..Program::default()
        };
        // Slot 1 went on, slot 2 has another program, slot 3 is new, and slot 4 has run before and only waits.
        let before = HashMap::from([(1, of(10, 100)), (2, of(11, 100)), (4, of(13, 100))]);
        let waiting = Program { runnable: 1, ..of(13, 100) };
        let now = [(1, of(10, 150)), (2, of(21, 30)), (3, of(12, 20)), (4, waiting)];
        let counts =
            |share: &Share| (share.served_ns, [share.dispatches, share.preemptions, share.preempted, share.migrations]);
        let times = |n: u64| (10 * n, [n, 2 * n, 3 * n, 4 * n]);
        let found = shares(&now, Some(&before));
        assert_eq!(found.iter().map(counts).collect::<Vec<_>>(), [50, 30, 20, 0].map(times));
        // At equal rates each program that ran or waits is due a quarter.
        assert_eq!(found.iter().map(|share| share.due_percent).collect::<Vec<_>>(), [25.0; 4]);
        assert_eq!(found.iter().map(|share| share.got_percent).collect::<Vec<_>>(), [50.0, 30.0, 20.0, 0.0]);
        assert_eq!(shares(&now, None).iter().map(counts).collect::<Vec<_>>(), [150, 30, 20, 100].map(times));
    }

    #[test]
    fn a_value_of_the_map_is_read_by_its_offsets() {
        // Each word of 4 bytes is its number in the record, in both halves of 8 bytes too.
        let bytes: Vec<u8> = (0..30u32).flat_map(|word| (word | 0x8000_0000).to_le_bytes()).collect();
        let u64_of = |word: u64| (word | 0x8000_0000) | ((word + 1) | 0x8000_0000) << 32;
        let expected = Program {
            id: u64_of(0),
            finish: u64_of(2),
            served_ns: u64_of(4),
            rate: u64_of(6),
            weight: 9 | 0x8000_0000,
            runnable: i32::MIN | 12,
            dispatches: u64_of(20),
            preemptions: u64_of(22),
            preempted: u64_of(24),
            migrations: u64_of(26),
            cuts: u64_of(28),
        };
        assert_eq!(Program::read(&bytes), Some(expected));
        (0..120).for_each(|length| assert_eq!(Program::read(&bytes[..length]), None, "{length} bytes"));
    }
}
