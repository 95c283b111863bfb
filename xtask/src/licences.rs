//! May each crate that we build with be used, by its licence, its name and its source, as `deny.toml` says?
//!
//! cargo-deny answers that and more (advisories, licence texts), and takes minutes to build where it is missing. This
//! reads the same file and the output of `cargo metadata`, needs no tool, and the network only for crates that were
//! never downloaded here; it runs with each `checks` and in the suite.
//!
//! A licence is an expression of names, AND, OR, WITH and parentheses (SPDX 2.3, annex D); an old manifest's `/` is OR.
//! The release that a crate says of itself is believed; its licence text is cargo-deny's to look at.

use crate::run::cargo;
use serde_json::Value;

/// Rules of `deny.toml`.
struct Rules {
    licences: Vec<String>,
    /// By crate: licences that it alone may have besides.
    exceptions: Vec<(String, Vec<String>)>,
    /// Crates that may not be used.
    banned: Vec<String>,
}

impl Rules {
    fn read(text: &str) -> Result<Rules, String> {
        let table: toml::Table = text.parse().map_err(|error| format!("deny.toml: {error}"))?;
        let names = |value: Option<&toml::Value>| -> Vec<String> {
            let all = value.and_then(toml::Value::as_array).into_iter().flatten();
            all.filter_map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let licences = table.get("licenses").ok_or("deny.toml has no [licenses]")?;
        let exceptions = licences.get("exceptions").and_then(toml::Value::as_array).into_iter().flatten();
        let exception = |one: &toml::Value| {
            let name = one.get("crate").and_then(toml::Value::as_str).unwrap_or_default();
            (name.to_owned(), names(one.get("allow")))
        };
        Ok(Rules {
            licences: names(licences.get("allow")),
            exceptions: exceptions.map(exception).collect(),
            banned: names(table.get("bans").and_then(|bans| bans.get("deny"))),
        })
    }

    /// Whether a crate of this name may have this licence by itself.
    fn allows(&self, name: &str, licence: &str) -> bool {
        let own = self.exceptions.iter().filter(|(of, _)| of == name).flat_map(|(_, licences)| licences);
        self.licences.iter().chain(own).any(|allowed| allowed == licence)
    }

    /// Whether one may choose licences of the expression that are all allowed.
    fn admits(&self, name: &str, expression: &str) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = &words[..];
        let admitted = self.any(name, &mut rest);
        admitted && rest.is_empty()
    }

    fn any(&self, name: &str, rest: &mut &[&str]) -> bool {
        let mut is_admitted = self.all(name, rest);
        while let ["OR", after @ ..] = *rest {
            *rest = after;
            // Not short: each side is read.
            is_admitted |= self.all(name, rest);
        }
        is_admitted
    }

    fn all(&self, name: &str, rest: &mut &[&str]) -> bool {
        let mut is_admitted = self.one(name, rest);
        while let ["AND", after @ ..] = *rest {
            *rest = after;
            is_admitted &= self.one(name, rest);
        }
        is_admitted
    }

    fn one(&self, name: &str, rest: &mut &[&str]) -> bool {
        match *rest {
            ["(", after @ ..] => {
                *rest = after;
                let is_admitted = self.any(name, rest);
                let is_closed = rest.first() == Some(&")");
                *rest = &rest[usize::from(is_closed)..];
                is_admitted && is_closed
            }
            [licence, "WITH", exception, after @ ..] => {
                *rest = after;
                self.allows(name, &format!("{licence} WITH {exception}"))
            }
            [licence, after @ ..] => {
                *rest = after;
                self.allows(name, licence)
            }
            [] => false,
        }
    }
}

/// Where crates come from that are not ours.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A sentence for each crate of `metadata` that `rules` do not allow.
fn breaches(metadata: &Value, rules: &Rules) -> Result<Vec<String>, String> {
    let packages = metadata["packages"].as_array().filter(|all| !all.is_empty());
    let packages = packages.ok_or("cargo metadata names no crate")?;
    let mut found = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str();
        let name = text("name").unwrap_or("a crate without a name");
        let named = format!("{name} {}", text("version").unwrap_or_default());
        match text("license") {
            None => found.push(format!("{named} states no licence, allowed are those of deny.toml")),
            Some(licence) if !rules.admits(name, licence) => {
                found.push(format!("{named} has the licence {licence}, allowed are those of deny.toml"));
            }
            Some(_) => {}
        }
        if rules.banned.iter().any(|banned| banned == name) {
            found.push(format!("{named} is banned by deny.toml"));
        }
        if let Some(source) = text("source").filter(|source| *source != REGISTRY) {
            found.push(format!("{named} comes from {source}, allowed is {REGISTRY}"));
        }
    }
    Ok(found)
}

/// Holds all crates of the workspace against `deny.toml`.
///
/// # Errors
/// One sentence: which crates are at fault, or what could not be read.
pub fn check() -> Result<(), String> {
    let deny = crate::run::root().join("deny.toml");
    let text = std::fs::read_to_string(&deny).map_err(|error| format!("{}: {error}", deny.display()))?;
    // Only crates that this machine builds: those of other systems need not lie here.
    let host = cargo("-vV").output().map_err(|error| format!("cargo: {error}"))?;
    let host =
        String::from_utf8_lossy(&host.stdout).lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned));
    let mut metadata = cargo("metadata --locked --quiet --all-features --format-version 1 --filter-platform");
    let output = metadata.arg(host.ok_or("cargo does not say which machine this is")?).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    match breaches(&metadata, &Rules::read(&text)?)? {
        none if none.is_empty() => Ok(()),
        found => Err(found.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules() -> Rules {
        Rules::read(
            "[licenses]\nallow = [\"MIT\", \"Apache-2.0\", \"Apache-2.0 WITH LLVM-exception\", \"ISC\"]\n\
             exceptions = [{ allow = [\"GPL-2.0-only\"], crate = \"ours\" }]\n[bans]\ndeny = [\"slow\"]\n",
        )
        .unwrap()
    }

    #[test]
    fn an_expression_is_admitted_if_some_choice_of_it_is() {
        for (expression, is_admitted) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("MIT AND ISC OR GPL-3.0", true),
            ("GPL-3.0 AND MIT OR ISC", true),
            ("GPL-3.0 AND (MIT OR ISC)", false),
            ("(GPL-3.0 OR MIT) AND ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
            ("MIT WITH LLVM-exception", false),
            ("(MIT", false),
            ("MIT ISC", false),
            ("", false),
        ] {
            assert_eq!(rules().admits("a", expression), is_admitted, "{expression}");
        }
        let ours = "(MIT OR Apache-2.0) AND GPL-2.0-only";
        assert_eq!((rules().admits("ours", ours), rules().admits("theirs", ours)), (true, false));
    }

    #[test]
    fn each_breach_is_a_sentence() {
        let package = |name: &str, licence: Value, source: Value| {
            let version = "1.0.0";
            json!({ "name": name, "version": version, "license": licence, "source": source })
        };
        let all = json!({ "packages": [
            package("good", "MIT".into(), REGISTRY.into()),
            package("bare", Value::Null, Value::Null),
            package("slow", "MIT".into(), REGISTRY.into()),
            package("far", "GPL-3.0".into(), "git+https://example.com/far".into()),
        ]});
        assert_eq!(
            breaches(&all, &rules()).unwrap(),
            [
                "bare 1.0.0 states no licence, allowed are those of deny.toml".to_owned(),
                "slow 1.0.0 is banned by deny.toml".to_owned(),
                "far 1.0.0 has the licence GPL-3.0, allowed are those of deny.toml".to_owned(),
                format!("far 1.0.0 comes from git+https://example.com/far, allowed is {REGISTRY}"),
            ]
        );
        assert!(breaches(&json!({}), &rules()).is_err());
    }

    #[test]
    fn all_crates_that_we_build_with_are_allowed() {
        check().unwrap();
    }
}
