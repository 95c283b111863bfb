//! The demo's report: the JSON contract, as types. Keys are stable and carry their unit.
//!
//! `mqfq demo --json` ends with one [`DemoReport`] on stdout, with `--device` one [`DriveReport`]. Further keys may
//! come; none that is here goes or changes its meaning.

use mqfq_report::table::{Align, Table, mb_per_s, ms};
use serde::{Deserialize, Serialize};

/// Result of `mqfq demo`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DemoReport {
    /// One entry per scenario.
    pub scenarios: Vec<SceneReport>,
    /// The device model that both ran on.
    pub device: String,
    /// Where the picture lies; `null`: [`DemoReport::machine_limits`], and nothing is drawn.
    pub svg_path: Option<String>,
    /// Why the numbers are of this machine and not of the drive, as a sentence; `null`: they are of the drive.
    pub machine_limits: Option<String>,
    /// Runs of a scenario under a policy that were measured again, because the cores were the limit.
    #[serde(default)]
    pub measured_again: u32,
    /// The result in words; `null`: [`DemoReport::machine_limits`].
    pub sentence: Option<String>,
    /// Wall-clock time of the whole run, seconds.
    pub elapsed_s: f64,
}

/// Result of `mqfq demo --device`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DriveReport {
    /// One entry per scenario in which the cores were not the limit.
    pub scenarios: Vec<SceneReport>,
    /// Path of the drive or file.
    pub device: String,
    /// Its size, whole blocks of 128 KiB of a file.
    pub size_bytes: u64,
    /// Other conditions of the figures: memory, holes, an elevator, other users, scenarios left out; one sentence each.
    pub notes: Vec<String>,
    /// The modest tenant gets at least a quarter more with fair queueing in a scenario; `null`: there is none.
    pub is_worth_it: Option<bool>,
    /// The result in words.
    pub sentence: String,
    /// Where the picture lies; `null`: no scenario, and nothing is drawn.
    pub svg_path: Option<String>,
    /// Wall-clock time of the whole run, seconds.
    pub elapsed_s: f64,
}

/// One scenario under each policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SceneReport {
    /// Its short name: `moderate`, `shallow`, `commit`.
    pub scenario: String,
    /// One sentence: who does what.
    pub description: String,
    /// The first tenant in words.
    pub modest: String,
    /// Bytes that one commit of the first tenant counts for; `null`: it reads.
    pub commit_bytes: Option<u32>,
    /// One entry per policy, `none` first.
    pub policies: Vec<PolicyReport>,
}

/// One scenario under one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PolicyReport {
    /// As in the configuration: `none`, `mqfq`.
    pub policy: String,
    /// D, in tokens; `null` for a policy without one.
    pub depth: Option<u32>,
    /// Bytes that one token stands for; `null`: a token is one request.
    pub token_unit_bytes: Option<u32>,
    /// T, in bytes at the default weight; `null` for a policy without one.
    pub window_bytes: Option<u64>,
    /// The form that it ran in.
    #[serde(flatten)]
    pub form: FormReport,
    /// All tenants together, while all run.
    pub total_bytes_per_s: f64,
    /// One entry per tenant.
    pub tenants: Vec<TenantReport>,
}

/// The form of a policy, as three keys beside `window_bytes`; `null` for a policy that has but one form.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FormReport {
    /// Step of virtual time, in bytes at the default weight; 0 in the exact form.
    pub quantum_bytes: Option<u64>,
    /// Virtual time that a queue takes from a flow at once, in bytes at the default weight; 0 in the exact form.
    pub lease_bytes: Option<u64>,
    /// Tokens that a queue may take at once; 1 in the exact form.
    pub token_batch: Option<u32>,
}

/// One tenant in one scenario under one policy.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TenantReport {
    /// Name of the tenant.
    pub name: String,
    /// Its weight, 1..=10000.
    pub weight: u16,
    /// Bandwidth while no other tenant runs, under the same policy.
    pub alone_bytes_per_s: f64,
    /// Bandwidth while all run.
    pub shared_bytes_per_s: f64,
    /// `alone_bytes_per_s / shared_bytes_per_s`; at least 1 up to noise. `null` if nothing at all was served.
    pub slowdown: Option<f64>,
    /// 99th percentile of request to completion as the client saw it, while all run.
    pub p99_ns: u64,
    /// 99th percentile while no other tenant runs.
    pub alone_p99_ns: u64,
}

impl TenantReport {
    /// `alone / shared`, or `None` if the tenant got nothing.
    pub fn slowdown_of(alone_bytes_per_s: f64, shared_bytes_per_s: f64) -> Option<f64> {
        (shared_bytes_per_s > 0.0).then(|| alone_bytes_per_s / shared_bytes_per_s)
    }
}

/// A policy as the setting that it is to a reader.
pub fn setting(policy: &str) -> String {
    match policy {
        "none" => "without mqfq".into(),
        "mqfq" => "with mqfq".into(),
        other => format!("with {other}"),
    }
}

/// Part of the first tenant of each scene without fair queueing and with it, and work of the drive: one sentence.
pub fn sentence(scenes: &[SceneReport]) -> Option<String> {
    let mut parts = Vec::new();
    let mut least_work = f64::INFINITY;
    for scene in scenes {
        let tenants = scene.first_tenants()?;
        let [without, with] = tenants.map(|tenant| scene.amount(tenant.shared_bytes_per_s));
        let alone = scene.amount(tenants[1].alone_bytes_per_s);
        parts.push(format!("{} got {without} and {with} {} ({alone} alone)", scene.modest, scene.unit()));
        least_work = least_work.min(scene.work()?);
    }
    let parts = parts.join(", ");
    Some(format!(
        "Beside a greedy neighbour, without mqfq and with it, {parts}; with it the drive did at least {:.0}% of the work.",
        100.0 * least_work
    ))
}

impl SceneReport {
    /// The entry of `policy`.
    pub fn policy(&self, policy: &str) -> Option<&PolicyReport> {
        self.policies.iter().find(|entry| entry.policy == policy)
    }

    /// A bandwidth of the first tenant in words, without its unit: MB/s, or commits per second.
    fn amount(&self, bytes_per_s: f64) -> String {
        match self.commit_bytes {
            Some(bytes) => format!("{:.0}", bytes_per_s / f64::from(bytes)),
            None => mb_per_s(bytes_per_s),
        }
    }

    /// Unit of [`SceneReport::amount`].
    fn unit(&self) -> &'static str {
        if self.commit_bytes.is_some() { "commits/s" } else { "MB/s" }
    }

    /// Each tenant's result under `policy`, in words.
    pub fn labels(&self, policy: &PolicyReport) -> Vec<String> {
        let label = |(at, tenant): (usize, &TenantReport)| {
            let [shared, alone] = [tenant.shared_bytes_per_s, tenant.alone_bytes_per_s];
            let (shared, alone, unit) = match at {
                0 => (self.amount(shared), self.amount(alone), self.unit()),
                _ => (mb_per_s(shared), mb_per_s(alone), "MB/s"),
            };
            format!("{}: {shared} {unit}, {alone} alone", tenant.name)
        };
        policy.tenants.iter().enumerate().map(label).collect()
    }

    /// The first tenant's bandwidth with fair queueing over that without it. `None`: it got nothing without.
    pub fn gain(&self) -> Option<f64> {
        let [without, with] = self.first_tenants()?.map(|tenant| tenant.shared_bytes_per_s);
        (without > 0.0).then(|| with / without)
    }

    /// Work of the drive with fair queueing over that without it.
    pub fn work(&self) -> Option<f64> {
        let [none, mqfq] = [self.policy("none")?, self.policy("mqfq")?];
        (none.total_bytes_per_s > 0.0).then(|| mqfq.total_bytes_per_s / none.total_bytes_per_s)
    }

    /// The first tenant without fair queueing and with it.
    fn first_tenants(&self) -> Option<[&TenantReport; 2]> {
        Some([self.policy("none")?.tenants.first()?, self.policy("mqfq")?.tenants.first()?])
    }

    /// The table that the demo prints: one line per policy and tenant.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("policy", Align::Left),
            ("tenant", Align::Left),
            ("weight", Align::Right),
            ("alone MB/s", Align::Right),
            ("shared MB/s", Align::Right),
            ("slowdown", Align::Right),
            ("p99 ms", Align::Right),
            ("total MB/s", Align::Right),
            ("of none's", Align::Right),
        ]);
        let none_bytes_per_s = self.policy("none").map(|none| none.total_bytes_per_s);
        for policy in &self.policies {
            for (at, tenant) in policy.tenants.iter().enumerate() {
                let first = at == 0;
                let of_none = none_bytes_per_s.filter(|&none| none > 0.0).map(|none| policy.total_bytes_per_s / none);
                table.row(vec![
                    if first { policy.policy.clone() } else { String::new() },
                    tenant.name.clone(),
                    tenant.weight.to_string(),
                    mb_per_s(tenant.alone_bytes_per_s),
                    mb_per_s(tenant.shared_bytes_per_s),
                    tenant.slowdown.map_or("starved".into(), |slowdown| format!("{slowdown:.2}")),
                    ms(tenant.p99_ns),
                    if first { mb_per_s(policy.total_bytes_per_s) } else { String::new() },
                    of_none.filter(|_| first).map_or(String::new(), |share| format!("{share:.3}")),
                ]);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo() -> DemoReport {
        let policy = |name: &str, shared: f64| PolicyReport {
            policy: name.into(),
            depth: (name != "none").then_some(64),
            token_unit_bytes: None,
            window_bytes: (name != "none").then_some(65_536),
            form: FormReport { token_batch: (name != "none").then_some(32), ..FormReport::default() },
            total_bytes_per_s: 240e6,
            tenants: vec![TenantReport {
                name: "reader".into(),
                weight: 100,
                alone_bytes_per_s: 80e6,
                shared_bytes_per_s: shared,
                slowdown: TenantReport::slowdown_of(80e6, shared),
                p99_ns: 1_234_567,
                alone_p99_ns: 900_000,
            }],
        };
        DemoReport {
            scenarios: vec![SceneReport {
                scenario: "moderate".into(),
                description: "a reader against a crowd".into(),
                modest: "a reader".into(),
                commit_bytes: None,
                policies: vec![policy("none", 0.0), policy("mqfq", 64e6)],
            }],
            device: "flash-60k".into(),
            svg_path: Some("mqfq-demo.svg".into()),
            machine_limits: None,
            measured_again: 0,
            sentence: Some("A reader got more.".into()),
            elapsed_s: 24.0,
        }
    }

    #[test]
    fn the_demo_speaks_the_json_that_is_promised() {
        let json = serde_json::to_value(demo()).unwrap();
        let policy = &json["scenarios"][0]["policies"][1];
        assert_eq!(json["scenarios"][0]["scenario"], "moderate");
        assert_eq!(policy["policy"], "mqfq");
        assert_eq!(policy["total_bytes_per_s"], 240e6);
        let tenant = &policy["tenants"][0];
        assert_eq!(tenant["name"], "reader");
        assert_eq!(tenant["weight"], 100);
        assert_eq!(tenant["alone_bytes_per_s"], 80e6);
        assert_eq!(tenant["shared_bytes_per_s"], 64e6);
        assert_eq!(tenant["slowdown"], 1.25, "80 / 64");
        assert_eq!(tenant["p99_ns"], 1_234_567);
    }

    #[test]
    fn a_starved_tenant_has_no_number_instead_of_infinity() {
        let json = serde_json::to_value(demo()).unwrap();
        assert!(json["scenarios"][0]["policies"][0]["tenants"][0]["slowdown"].is_null());
        assert!(demo().scenarios[0].table().render().contains("starved"));
    }

    #[test]
    fn what_is_written_can_be_read_again() {
        let text = serde_json::to_string(&demo()).unwrap();
        assert!(!text.contains('\n'), "one object, one line");
        assert_eq!(serde_json::from_str::<DemoReport>(&text).unwrap(), demo());
    }

    #[test]
    fn the_sentence_says_what_each_first_tenant_got_and_what_the_drive_did() {
        let scenes = demo().scenarios;
        let mut database = scenes[0].clone();
        database.modest = "a database".into();
        database.commit_bytes = Some(800_000);
        database.policies[0].tenants[0].shared_bytes_per_s = 1.6e6;
        database.policies[1].total_bytes_per_s = 0.97 * 240e6;
        assert_eq!((scenes[0].gain(), database.gain()), (None, Some(40.0)));
        let said = sentence(&[scenes[0].clone(), database.clone()]).unwrap();
        let expected = "Beside a greedy neighbour, without mqfq and with it, a reader got 0.00 and 64.0 MB/s (80.0 alone), \
                        a database got 2 and 80 commits/s (100 alone); with it the drive did at least 97% of the work.";
        assert_eq!(said, expected);
        assert_eq!(database.labels(&database.policies[0]), ["reader: 2 commits/s, 100 alone"]);
    }

    #[test]
    fn the_table_has_a_line_per_policy_and_tenant() {
        let text = demo().scenarios[0].table().render();
        assert_eq!(text.lines().count(), 4, "header, rule, none, mqfq");
        let mqfq = text.lines().last().unwrap();
        assert_eq!(
            mqfq.split_whitespace().collect::<Vec<_>>(),
            ["mqfq", "reader", "100", "80.0", "64.0", "1.25", "1.235", "240.0", "1.000"]
        );
    }
}
