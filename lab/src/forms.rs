//! `token-unit` of a device, and the form of its policy with its numbers.

use mqfq_blk::{PolicyKind, PolicyOptions, VSpan};
use mqfq_config::{ConfigError, Section};
use mqfq_daemon::config::other::OtherOptions;
use mqfq_daemon::config::{DeviceConfig, Profile};
use mqfq_sim::form::{ByHand, FORM_KEYS, FormBounds};
use std::sync::Arc;

/// The unit of D in a profile, bytes of cost.
const PROFILE_UNIT_BYTES: u64 = 4096;

/// Settings of a section, beside those of the product.
#[derive(Clone, Copy, Debug)]
struct Forms {
    /// `token-unit`: 512 B to 1 GiB of cost, or a request (`Some(None)`).
    token_unit_bytes: Option<Option<u32>>,
    /// D to start with in that unit, if it is found.
    depth_start: Option<u32>,
    /// Numbers of the relaxed form. `None`: the exact form, or a policy without forms.
    relaxed: Option<ByHand>,
}

/// The options of the device's policy with these keys; `None`: the section has none of them.
///
/// # Errors
/// A value out of range, or a key that the policy or the form does not have.
pub fn read(section: &Section<'_, '_>, device: &DeviceConfig) -> Result<Option<OtherOptions>, ConfigError> {
    let written = device.policy.written();
    let unit = section.get("token-unit").map(|unit| match unit.text("").as_deref() {
        Ok("request") => Ok(None),
        _ => unit.size(512..=1 << 30).map(|bytes| Some(bytes as u32)),
    });
    let token_unit_bytes = unit.transpose()?;
    let depth_start =
        device.profile.as_ref().and_then(|profile| token_unit_bytes.map(|unit| depth_start(profile, unit)));
    let relaxed = match written.kind.has_window() {
        true => {
            let window = section.inner("expert")?.get("window");
            let found = window.filter(|window| window.text("").is_ok_and(|text| text == "auto"));
            let (token_batch_max, token_share_max) = (PolicyOptions::TOKEN_BATCH_MAX, PolicyOptions::DEPTH_MAX);
            let bounds = FormBounds { token_batch_max, token_share_max };
            ByHand::read(section, written.window.bytes(), found.as_ref(), bounds)?
        }
        false => {
            let allowed = mqfq_policies::REGISTRY.which(PolicyKind::has_window);
            section.refuse(&FORM_KEYS, &format!("is no setting of policy {}, allowed with {allowed}", written.kind))?;
            None
        }
    };
    let forms = Forms { token_unit_bytes, depth_start, relaxed };
    let is_set = token_unit_bytes.is_some() || FORM_KEYS.iter().any(|key| section.get(key).is_some());
    Ok(is_set.then(|| OtherOptions {
        settings: format!("{forms:?}"),
        make: Arc::new(move |written, workers| forms.options(written, workers)),
    }))
}

/// D to start with where a unit is so many bytes of cost, or a request: 1..=65535.
///
/// Example: a knee of 133 units of 4 KiB is 9 of 64 KiB and 1064 of 512 bytes.
fn depth_start(profile: &Profile, token_unit_bytes: Option<u32>) -> u32 {
    let Some(unit_bytes) = token_unit_bytes else { return profile.knee_requests };
    let units = (u64::from(profile.knee_units) * PROFILE_UNIT_BYTES).div_ceil(u64::from(unit_bytes.max(1)));
    units.clamp(1, PolicyOptions::DEPTH_MAX.into()) as u32
}

impl Forms {
    /// The options for so many workers, from those that the product's keys give.
    fn options(&self, written: PolicyOptions, workers: usize) -> PolicyOptions {
        let mut options = written;
        if let Some(unit) = self.token_unit_bytes {
            options.token_unit_bytes = unit;
            options.depth = self.depth_start.filter(|_| options.depth_auto).unwrap_or(options.depth);
        }
        let Some(by_hand) = self.relaxed else { return PolicyOptions { window_least: None, ..options } };
        let relaxed = options.relaxed(workers);
        PolicyOptions {
            window_least: relaxed.window_least.filter(|_| by_hand.follows_window()),
            quantum: by_hand.quantum_bytes.map_or(relaxed.quantum, VSpan::from_bytes),
            lease: by_hand.lease_bytes.map_or(relaxed.lease, VSpan::from_bytes),
            token_batch: by_hand.token_batch.unwrap_or(relaxed.token_batch),
            token_share: by_hand.token_share.unwrap_or(relaxed.token_share),
            tokens_follow_depth: relaxed.tokens_follow_depth && by_hand.follows_depth(),
            ..relaxed
        }
    }
}

#[cfg(test)]
mod tests;
