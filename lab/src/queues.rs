//! `block-layer`, `software-queues` and `hardware-queues` of a device: which queues its workers share.

use mqfq_blk::PolicyKind;
use mqfq_blkmq::{BlockLayer, HardwareQueues, QueueLayout, Spread};
use mqfq_config::text::{quoted, shown};
use mqfq_config::{ConfigError, Section};

const KEYS: [&str; 3] = ["block-layer", "software-queues", "hardware-queues"];

/// Values of `hardware-queues`.
const HARDWARE: &str = "\"per-core\", \"per-socket\", \"single\", or a number of queues";

/// The layout that a device's section asks for, if each of the policies that it may get can run on it.
///
/// # Errors
/// An unknown name; a number of queues with a block layer that has no choice; a policy that cannot.
pub fn read(
    section: &Section<'_, '_>,
    mut policies: impl Iterator<Item = PolicyKind>,
) -> Result<QueueLayout, ConfigError> {
    let names = BlockLayer::ALL.map(BlockLayer::name);
    let layer = section.get("block-layer").map(|entry| entry.choice(&names)).transpose()?;
    let mut layout = match layer.as_deref() {
        Some("sq") => QueueLayout::SQ,
        Some("raw") => QueueLayout::RAW,
        Some("low-latency") => QueueLayout { layer: BlockLayer::LowLatency, ..QueueLayout::default() },
        _ => QueueLayout::default(),
    };
    for key in &KEYS[1..] {
        if let Some(entry) = section.get(key).filter(|_| layout.layer != BlockLayer::Mq) {
            let layer = layout.layer.name();
            return Err(entry.place().error(format!("is fixed by block-layer = \"{layer}\", allowed with \"mq\"")));
        }
    }
    if let Some(entry) = section.get("software-queues") {
        let chosen = entry.choice(&Spread::ALL.map(Spread::name))?;
        layout.software =
            Spread::ALL.into_iter().find(|spread| spread.name() == chosen).expect("a choice of all names");
    }
    if let Some(entry) = section.get("hardware-queues") {
        let value = entry.value()?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let value = value.as_str().map_or_else(|| shown(&text), quoted);
        let wrong = |()| entry.place().error(format!("{value} is not known, allowed are {HARDWARE} from 1 to 65535"));
        layout.hardware = text.parse::<HardwareQueues>().map_err(wrong)?;
    }
    let chosen = KEYS.iter().find_map(|key| section.get(key));
    match (policies.try_for_each(|policy| layout.check_policy(policy)), chosen) {
        (Err(why), Some(entry)) => Err(entry.place().error(why)),
        _ => Ok(layout),
    }
}
