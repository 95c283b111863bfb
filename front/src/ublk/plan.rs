//! Owner of the ublk device of a number, and the plan for it.
//!
//! A device outlives a server that was killed: with recovery it waits for the next one, without it remains as a number
//! without a block device. The device's server stands in its stamp, which the driver keeps: a word of ours and a hash
//! of the export's name. So a mounted device never shows another export's data.
//!
//! | there is | stamp | state | who | what is done |
//! |---|---|---|---|---|
//! | no device | | | | it is added |
//! | a device | another's | any | any | refused |
//! | | ours | live | alive | refused, or waited for if this process takes that one's place |
//! | | ours | live | gone | waited for: the kernel has not noticed yet |
//! | | ours | not served | | taken over |
//! | | ours | dead, no recovery | alive | refused: it is being added there |
//! | | ours | dead, no recovery | gone | deleted, and added |

use mqfq_ublk::abi::{DevInfo, feature, state};

/// The upper half of a stamp: "mqfq".
const STAMP: u64 = 0x6d71_6671;

/// Plan for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// Add it.
    Add,
    /// Take it over.
    Recover,
    /// Delete its remains, and add it.
    Replace,
    /// Look again soon.
    Wait,
    /// It belongs to another owner.
    Refuse(DeviceOwner),
}

/// Owner of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceOwner {
    /// Another ublk server, or another export.
    Others,
    /// Another process of ours.
    Process(i32),
}

impl DeviceOwner {
    /// Reason why it is not ours to serve: the rest of a sentence about the device.
    pub fn why(self) -> String {
        match self {
            DeviceOwner::Others => "it is there already, and of another ublk server or of another export".to_owned(),
            DeviceOwner::Process(pid) => format!("it is served by process {pid}"),
        }
    }
}

/// Stamp of an export's device.
pub fn stamp(export: &str) -> u64 {
    // FNV-1a of 32 bits: names of one config are few, and a collision costs what no stamp would.
    let hash = export.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    STAMP << 32 | u64::from(hash)
}

/// Plan for a device that is there. `export`: its intended export, `None` if not known yet; `is_alive`: the process of
/// its [`DevInfo::pid`] runs; `replaces`: this process takes the place of that one.
pub fn plan(info: &DevInfo, export: Option<&str>, is_alive: bool, replaces: bool) -> Plan {
    let is_ours = match export {
        Some(export) => info.stamp == stamp(export),
        None => info.stamp >> 32 == STAMP,
    };
    if !is_ours {
        return Plan::Refuse(DeviceOwner::Others);
    }
    match info.state {
        state::LIVE if is_alive && !replaces => Plan::Refuse(DeviceOwner::Process(info.pid)),
        state::LIVE => Plan::Wait,
        state::QUIESCED | state::FAIL_IO if info.flags & feature::USER_RECOVERY != 0 => Plan::Recover,
        _ if is_alive => Plan::Refuse(DeviceOwner::Process(info.pid)),
        _ => Plan::Replace,
    }
}

/// The process of this number runs, and is not merely unburied.
pub fn is_alive(pid: i32) -> bool {
    // The state stands behind the name, which is in brackets and may hold any byte. Source: proc_pid_stat(5).
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_taken_over_from_a_server_of_ours_that_is_gone_and_from_nobody_else() {
        let info = |state, flags| DevInfo { state, flags, pid: 7, stamp: stamp("data"), ..DevInfo::default() };
        let recovery = feature::USER_RECOVERY;
        let of = |state, flags, is_alive| plan(&info(state, flags), Some("data"), is_alive, false);
        assert_eq!(of(state::QUIESCED, recovery, false), Plan::Recover);
        assert_eq!(of(state::FAIL_IO, recovery, false), Plan::Recover);
        assert_eq!(of(state::LIVE, recovery, false), Plan::Wait);
        assert_eq!(of(state::LIVE, recovery, true), Plan::Refuse(DeviceOwner::Process(7)));
        for state in [state::DEAD, state::QUIESCED, state::FAIL_IO] {
            assert_eq!(of(state, 0, false), Plan::Replace, "without recovery nobody can take it over");
            assert_eq!(of(state, 0, true), Plan::Refuse(DeviceOwner::Process(7)));
        }
        let live = info(state::LIVE, recovery);
        assert_eq!(plan(&live, Some("data"), true, true), Plan::Wait, "it takes that one's place");
        for replaces in [false, true] {
            assert_eq!(plan(&live, Some("other"), false, replaces), Plan::Refuse(DeviceOwner::Others));
            let foreign = DevInfo { stamp: 0, ..live };
            assert_eq!(plan(&foreign, Some("data"), false, replaces), Plan::Refuse(DeviceOwner::Others));
            assert_eq!(plan(&foreign, None, false, replaces), Plan::Refuse(DeviceOwner::Others));
        }
        assert_eq!(plan(&info(state::QUIESCED, recovery), None, false, false), Plan::Recover);
    }

    #[test]
    fn this_process_runs_and_no_process_of_no_number_does() {
        assert!(is_alive(std::process::id() as i32));
        assert!(!is_alive(-1) && !is_alive(0) && !is_alive(i32::MAX));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        // It is unburied from its end on until it is waited for.
        while is_alive(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn a_stamp_is_the_same_for_every_version() {
        // FNV-1a of 32 bits, as its authors list it.
        for (name, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(stamp(name), 0x6d71_6671_0000_0000 | hash, "{name:?}");
        }
    }
}
