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
mod tests {
    //! Forms and units, and each refusal to the letter.

    use super::*;
    use crate::devices::ADDITIONS;
    use mqfq_blk::WINDOW_LEAST;
    use mqfq_daemon::config::{Config, extend};

    /// Options of a device with these keys, in lines 3 and following, for so many workers.
    fn read(keys: &str, workers: usize) -> Result<PolicyOptions, String> {
        extend(ADDITIONS);
        let text = format!("[device.d]\nkind = \"memory\"\n{keys}\nsize = \"1MiB\"\n");
        let config = Config::parse("c.toml", &text).map_err(|error| error.to_string())?;
        let policy = &config.devices[0].policy;
        let options = policy.fallback(workers).unwrap_or(policy.options(workers));
        assert_eq!(options.validate(), Ok(()), "{keys}, {workers} workers");
        Ok(options)
    }

    fn options(keys: &str, workers: usize) -> PolicyOptions {
        read(keys, workers).unwrap_or_else(|error| panic!("{keys}: {error}"))
    }

    fn refused(keys: &str) -> String {
        read(keys, 2).expect_err("this config must be refused")
    }

    fn kib(kib: u64) -> VSpan {
        VSpan::from_bytes(kib << 10)
    }

    #[test]
    fn the_exact_form_is_the_papers_and_the_relaxed_one_the_products() {
        for policy in ["mqfq", "mqfq-serial"] {
            let kind = mqfq_policies::REGISTRY.find(policy).unwrap();
            let exact = PolicyOptions { token_unit_bytes: Some(4096), ..PolicyOptions::new(kind) };
            let keys = format!("policy = \"{policy}\"\nexpert.depth = 64\nform = ");
            assert_eq!(options(&(keys + "\"exact\""), 2), exact);
            let keys = format!("policy = \"{policy}\"\n");
            assert_eq!(options(&format!("{keys}form = \"relaxed\""), 4), options(&keys, 4));
        }
    }

    #[test]
    fn each_number_of_the_relaxed_form_can_be_set_by_hand() {
        let default = options("expert.window = \"64KiB\"", 2);
        let set = |keys: &str| options(keys, 2);
        assert_eq!(set("quantum = \"32KiB\""), PolicyOptions { quantum: kib(32), ..default }, "half the window");
        assert_eq!(set("quantum = 1"), PolicyOptions { quantum: VSpan::from_bytes(1), ..default });
        assert_eq!(set("lease = \"32KiB\""), PolicyOptions { lease: kib(32), ..default }, "half the window");
        assert_eq!(set("lease = 4097"), PolicyOptions { lease: VSpan::from_bytes(4097), ..default });
        // A queue's part of D stays if it is set by hand, and T is found.
        let by_hand = PolicyOptions { tokens_follow_depth: false, window_least: Some(WINDOW_LEAST), ..default };
        assert_eq!(set("token-batch = 65535"), PolicyOptions { token_batch: 65_535, ..by_hand });
        let exact =
            PolicyOptions { depth_auto: true, token_unit_bytes: Some(4096), ..PolicyOptions::new(PolicyKind::Mqfq) };
        assert_eq!(set("quantum = 0\nlease = 0\ntoken-batch = 1\ntoken-share = 0"), exact, "as the exact form has it");
        assert_eq!(set("expert.window = 0\nquantum = 0\nlease = 0").window, VSpan(0));
        let fallback = "policy = \"d2fq\"\nwithout-wrr = \"mqfq\"\ntoken-batch = 2";
        assert_eq!(
            (set(fallback).kind, set(fallback).token_batch),
            (PolicyKind::Mqfq, 2),
            "the keys are the fallback's"
        );
    }

    #[test]
    fn the_window_is_found_in_the_relaxed_form_unless_it_or_what_follows_it_is_a_number() {
        for keys in ["", "form = \"relaxed\"\nexpert.window = \"auto\"", "token-share = 16"] {
            assert_eq!(options(keys, 4).window_least, Some(WINDOW_LEAST), "{keys}");
        }
        for keys in ["quantum = \"8KiB\"", "lease = 0", "form = \"exact\"", "policy = \"sfqd\"\ntoken-unit = \"8KiB\""]
        {
            assert_eq!(options(keys, 4).window_least, None, "{keys}");
        }
        assert_eq!(
            refused("form = \"exact\"\nexpert.window = \"auto\""),
            "c.toml:4: device.d.expert.window: \"auto\" is no setting of form = \"exact\", allowed with form = \"relaxed\""
        );
        assert_eq!(
            refused("expert.window = \"auto\"\nlease = \"4KiB\""),
            "c.toml:4: device.d.lease: follows window = \"auto\", allowed with a window that is a size"
        );
    }

    #[test]
    fn a_unit_of_the_depth_is_bytes_or_a_request() {
        for policy in ["mqfq", "mqfq-serial", "sfqd"] {
            let found = options(&format!("policy = \"{policy}\"\ntoken-unit = \"request\""), 4);
            assert_eq!((found.depth_auto, found.token_unit_bytes), (true, None));
            let set = options(&format!("policy = \"{policy}\"\nexpert.depth = 54\ntoken-unit = \"request\""), 4);
            assert_eq!((set.depth, set.token_unit_bytes), (54, None));
        }
        let unit = |size: &str| read(&format!("token-unit = \"{size}\""), 1).map(|options| options.token_unit_bytes);
        assert_eq!((unit("512B"), unit("1GiB")), (Ok(Some(512)), Ok(Some(1 << 30))));
        for size in ["256B", "1073741825B"] {
            let sentence = format!("c.toml:3: device.d.token-unit: \"{size}\" is out of range, allowed is 512 to 1GiB");
            assert_eq!(unit(size), Err(sentence));
        }
    }

    #[test]
    fn the_depth_to_start_with_counts_in_the_units_of_the_device() {
        let depth = |keys: &str| options(&format!("profile = {{ knee = 133, knee-requests = 54 }}\n{keys}"), 1).depth;
        assert_eq!(depth("token-unit = \"request\""), 54);
        let units = ["4KiB", "64KiB", "512B", "1GiB", "16KiB"];
        assert_eq!(units.map(|unit| depth(&format!("token-unit = \"{unit}\""))), [133, 9, 1064, 1, 34]);
        assert_eq!(depth("token-unit = \"16KiB\"\nexpert.depth = 7"), 7);
    }

    #[test]
    fn a_number_of_the_relaxed_form_that_does_not_fit_is_refused() {
        let quantum = "is out of range, allowed is 0 or a power of two up to 32KiB, half the window";
        assert_eq!(refused("quantum = \"64KiB\""), format!("c.toml:3: device.d.quantum: 64KiB {quantum}"));
        assert_eq!(refused("quantum = \"12KiB\""), format!("c.toml:3: device.d.quantum: 12KiB {quantum}"));
        let lease = "is out of range, allowed is 0 to 32KiB, half the window";
        assert_eq!(refused("lease = 32769"), format!("c.toml:3: device.d.lease: 32769 {lease}"));
        // The window is the device's own, wherever it stands in the section.
        assert_eq!(
            refused("lease = \"8KiB\"\nexpert.window = \"15KiB\""),
            "c.toml:3: device.d.lease: 8KiB is out of range, allowed is 0 to 7680, half the window"
        );
        assert_eq!(
            refused("expert.window = 0\nlease = 1"),
            "c.toml:4: device.d.lease: 1 is out of range, allowed is 0 to 0, half the window"
        );
        assert_eq!(
            refused("lease = \"half\""),
            "c.toml:3: device.d.lease: \"half\" is not a size, allowed is bytes (4096), or a whole number followed by \
         KiB, MiB, GiB or TiB (\"64KiB\")"
        );
        for batch in ["0", "65536"] {
            let sentence = format!("c.toml:3: device.d.token-batch: {batch} is out of range, allowed is 1 to 65535");
            assert_eq!(refused(&format!("token-batch = {batch}")), sentence);
        }
        assert_eq!(
            refused("form = \"faithful\""),
            "c.toml:3: device.d.form: \"faithful\" is not known, allowed are relaxed, exact"
        );
    }

    #[test]
    fn a_key_that_the_policy_or_the_form_does_not_have_is_refused() {
        const KEYS: [(&str, &str); 5] =
            [("form", "\"exact\""), ("quantum", "0"), ("lease", "0"), ("token-batch", "1"), ("token-share", "1")];
        for policy in ["none", "sfqd", "mq-deadline", "d2fq"] {
            for (key, value) in KEYS {
                assert_eq!(
                    refused(&format!("policy = \"{policy}\"\n{key} = {value}")),
                    format!(
                        "c.toml:4: device.d.{key}: is no setting of policy {policy}, allowed with mqfq and mqfq-serial"
                    )
                );
            }
        }
        for (key, value) in &KEYS[1..] {
            assert_eq!(
                refused(&format!("form = \"exact\"\n{key} = {value}")),
                format!("c.toml:4: device.d.{key}: is fixed by form = \"exact\", allowed with form = \"relaxed\"")
            );
        }
    }
}
