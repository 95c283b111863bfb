//! Large requests against small ones on few tags: the worth of a share of the tags to a tenant that needs one.
//!
//! Source: K. Busch's test of Linux's fair sharing of tags (linux-block, May 2024): 128 KiB at depth 256 against 512
//! bytes at depth 1, 63 tags for both. With fair sharing the small one had 2,726 I/Os per second and 327 us on average,
//! without it 1,841 and 504: 1.48 times.
//!
//! # Why no share of tags brings it back to what it has alone
//! Tags are counted in requests, and a drive works in bytes. Of 63 tags 62 may hold 128 KiB each, 7.75 MiB that are in
//! front of the next request, whichever tenant gets the last one. D in units of 4 KiB bounds that: it is what `form` =
//! `work` shows beside `requests`. What is left then is one large request under way, and the drive's own time.

use super::path::{PathOptions, Seen, Until};
use crate::schedulers::count::Costs;
use crate::schedulers::workload::{REQUEST_BYTES, Tenant, policy};
use mqfq_blk::{PolicyKind, PolicyOptions};
use mqfq_blkmq::BlockLayer;
use mqfq_demo::harness::as_shipped;
use mqfq_demo::load::Load;
use mqfq_nvme::Preset;

/// Tags of the device, for both tenants together.
pub const TAGS: u16 = 63;

/// Unit of the policy's D.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Requests, as in the paper: D = 64.
    Requests,
    /// Units of 4 KiB: so many.
    Work(u32),
}

impl Form {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Form::Requests => "requests",
            Form::Work(_) => "work",
        }
    }

    fn of(self, kind: PolicyKind) -> PolicyOptions {
        match self {
            Form::Requests => policy(kind, 1),
            Form::Work(depth) => as_shipped(
                PolicyOptions { depth, token_unit_bytes: Some(REQUEST_BYTES), ..PolicyOptions::new(kind) },
                1,
            ),
        }
    }
}

/// The small tenant's, alone and beside the large one; and the large one's then.
#[derive(Clone, PartialEq, Debug)]
pub struct Tags {
    /// The small tenant alone.
    pub alone: Seen,
    /// The small tenant beside the large one.
    pub small: Seen,
    /// The large tenant.
    pub large: Seen,
}

/// Runs it: one queue, so that all tags are of one set.
///
/// # Errors
/// One sentence.
pub fn run(drive: Preset, kind: PolicyKind, form: Form, costs: Costs, ns: u64) -> Result<Tags, String> {
    let small = Tenant { load: Load::random_reads(1, 1, 512), think_ns: 0 };
    let large = Tenant { load: Load { seed: 2, ..Load::random_reads(1, 256, 32 * REQUEST_BYTES) }, think_ns: 0 };
    let (policy, layer, workers) = (form.of(kind), BlockLayer::Mq, 1);
    let run = |tenants: &[Tenant]| {
        let path = PathOptions { drive, policy, layer, queue_depth: TAGS, tenants, workers, costs };
        path.run(Until::Ns(ns))
    };
    let alone = run(&[small])?.remove(0);
    let mut both = run(&[small, large])?;
    let large = both.remove(1);
    Ok(Tags { alone, small: both.remove(0), large })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Costs = Costs { to_device_ps: 0, back_ps: 0 };

    fn on(preset: &str, kind: PolicyKind, form: Form) -> Tags {
        run(Preset::by_name(preset).unwrap(), kind, form, FREE, 400_000_000).unwrap()
    }

    #[test]
    fn mqfq_gives_the_small_tenant_half_as_much_again_as_none_at_the_least() {
        // Linux's fair sharing of tags gave 1.48 times. Under none 256 requests are in front of the small one; in
        // requests 63 are, in work a few.
        for preset in ["flash-460k", "optane"] {
            let none = on(preset, PolicyKind::None, Form::Requests);
            let requests = on(preset, PolicyKind::Mqfq, Form::Requests);
            let work = on(preset, PolicyKind::Mqfq, Form::Work(160));
            let over = |tags: &Tags| tags.small.iops / none.small.iops;
            assert!(over(&requests) >= 1.5, "{preset}: {}", over(&requests));
            assert!(over(&work) >= 1.5 * over(&requests), "{preset}: {} and {}", over(&work), over(&requests));
            assert!(work.small.iops < work.alone.iops, "{preset}: a large request under way cannot be called back");
            // Nothing of it is taken from the drive: 160 units of 4 KiB are five large requests.
            let kept = work.large.bytes_per_s / none.large.bytes_per_s;
            assert!(kept > 0.95, "{preset}: {kept}");
        }
    }

    #[test]
    fn in_requests_what_is_in_front_of_the_small_one_is_the_tags_and_in_work_d() {
        // 2.8 GB/s: a large request is 711 ns + 131072 / 2.8 = 47.5 us of the link. 62 of them are 2.9 ms, and the mean
        // wait lies between half of that and all of it and the drive's own time.
        let requests = on("flash-460k", PolicyKind::Mqfq, Form::Requests).small.mean_ns;
        assert!((1_450_000.0..3_300_000.0).contains(&requests), "{requests}");
        // 160 units: five large requests, 238 us, and 100 us of flash.
        let work = on("flash-460k", PolicyKind::Mqfq, Form::Work(160)).small.mean_ns;
        assert!((119_000.0..450_000.0).contains(&work), "{work}");
    }
}
