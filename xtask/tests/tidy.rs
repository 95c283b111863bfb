//! The tree is tidy, and tidy can tell: for every rule a planted violation is found and its lawful twin is not.

use std::path::Path;
use xtask::tidy::shape::{DOC_WORDS_MAX, FILES_MAX};
use xtask::tidy::tree::Tree;
use xtask::tidy::{RULES, check, check_rule};

#[test]
fn the_working_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository");
    let tree = Tree::read(root).expect("the tree can be read");
    assert!(tree.has("sched/src/lib.rs"), "read the wrong folder, or nothing of it: {}", root.display());
    let findings: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

type Files<'a> = &'a [(&'a str, &'a str)];

/// A rule, a tree that breaks it, and the nearest tree that does not.
struct Planted {
    rule: &'static str,
    broken: Files<'static>,
    lawful: Files<'static>,
}

const WORKSPACE: (&str, &str) = ("Cargo.toml", "[workspace]\nmembers = [\"blk\", \"front\", \"sched\"]\n");
const BLK: (&str, &str) = (
    "blk/Cargo.toml",
    "[package]\nname = \"mqfq-blk\"\n[dependencies]\nmqfq-sched.workspace = true\nmqfq-nvme.workspace = true\n",
);
const ONE_MEMBER: (&str, &str) = ("Cargo.toml", "[workspace]\nmembers = [\"sched\"]\n");

const PLANTED: &[Planted] = &[
    Planted {
        rule: "edges",
        broken: &[
            WORKSPACE,
            BLK,
            (
                "front/Cargo.toml",
                "package.name = \"mqfq-front\"\ndependencies = { mqfq-blk = \"1\", mqfq-sched = \"1\" }\n",
            ),
        ],
        lawful: &[
            WORKSPACE,
            BLK,
            ("front/Cargo.toml", "package.name = \"mqfq-front\"\ndependencies = { mqfq-blk = \"1\" }\n"),
        ],
    },
    // The arrow that the picture shows and the manifest lacks.
    Planted {
        rule: "edges",
        broken: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"ublk\"]\n"),
            ("ublk/Cargo.toml", "package.name = \"mqfq-ublk\"\n"),
        ],
        lawful: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"ublk\"]\n"),
            ("ublk/Cargo.toml", "package.name = \"mqfq-ublk\"\ndependencies = { mqfq-blk = \"1\" }\n"),
        ],
    },
    // Crates that ship depend neither on the laboratory nor on the tests' helpers.
    Planted {
        rule: "edges",
        broken: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"daemon\"]\n"),
            ("daemon/Cargo.toml", "package.name = \"mqfq\"\ndependencies = { mqfq-bench = \"1\" }\n"),
        ],
        lawful: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"daemon\"]\n"),
            ("daemon/Cargo.toml", "package.name = \"mqfq\"\ndependencies = { mqfq-demo = \"1\" }\n"),
        ],
    },
    Planted {
        rule: "edges",
        broken: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"daemon\"]\n"),
            ("daemon/Cargo.toml", "package.name = \"mqfq\"\ndependencies = { mqfq-testing = \"1\" }\n"),
        ],
        lawful: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"daemon\"]\n"),
            ("daemon/Cargo.toml", "package.name = \"mqfq\"\n[dev-dependencies]\nmqfq-testing = \"1\"\n"),
        ],
    },
    Planted {
        rule: "edges",
        broken: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"front\"]\n"),
            ("front/Cargo.toml", "package.name = \"mqfq-front\"\ndependencies = { mqfq-testing-devices = \"1\" }\n"),
        ],
        lawful: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"front\"]\n"),
            ("front/Cargo.toml", "package.name = \"mqfq-front\"\n[dev-dependencies]\nmqfq-testing-devices = \"1\"\n"),
        ],
    },
    // Hidden behind another name, behind a target, or in a test.
    Planted {
        rule: "edges",
        broken: &[
            WORKSPACE,
            ("sched/Cargo.toml", "package.name = \"mqfq-sched\"\ndependencies.x = { package = \"mqfq-blk\" }\n"),
        ],
        lawful: &[WORKSPACE, ("sched/Cargo.toml", "package.name = \"mqfq-sched\"\n")],
    },
    Planted {
        rule: "edges",
        broken: &[
            WORKSPACE,
            (
                "sched/Cargo.toml",
                "package.name = \"mqfq-sched\"\n[target.'cfg(unix)'.dependencies]\nmqfq-blk = \"1\"\n",
            ),
        ],
        lawful: &[
            WORKSPACE,
            ("sched/Cargo.toml", "package.name = \"mqfq-sched\"\n[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n"),
        ],
    },
    Planted {
        rule: "edges",
        broken: &[
            WORKSPACE,
            ("sched/Cargo.toml", "package.name = \"mqfq-sched\"\n[dev-dependencies]\nmqfq-bench = \"1\"\n"),
        ],
        lawful: &[
            WORKSPACE,
            ("sched/Cargo.toml", "package.name = \"mqfq-sched\"\n[dev-dependencies]\nproptest = \"1\"\n"),
        ],
    },
    Planted {
        rule: "edges",
        broken: &[
            ("Cargo.toml", "[workspace]\nmembers = [\"extra\"]\n"),
            ("extra/Cargo.toml", "package.name = \"extra\"\n"),
        ],
        lawful: &[("Cargo.toml", "[workspace]\nmembers = []\n"), ("extra/Cargo.toml", "package.name = \"extra\"\n")],
    },
    // An edge that the page does not show, one that it makes up, one that only tests have, and a crate that is gone.
    Planted {
        rule: "no-external",
        broken: &[("sched/Cargo.toml", "[dependencies]\nlibc = \"1\"\n")],
        lawful: &[(
            "sched/Cargo.toml",
            "[target.'cfg(mqfq_loom)'.dependencies]\nloom = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n",
        )],
    },
    Planted {
        rule: "no-external",
        broken: &[("cpu/Cargo.toml", "[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n")],
        lawful: &[("blk/Cargo.toml", "[dependencies]\nlibc = \"1\"\n")],
    },
    Planted {
        rule: "no-external",
        broken: &[("config/Cargo.toml", "[dependencies]\ntoml = \"1\"\nserde = \"1\"\n")],
        lawful: &[("config/Cargo.toml", "[dependencies]\ntoml = \"1\"\n")],
    },
    Planted {
        rule: "no-async-runtime",
        broken: &[(
            "Cargo.lock",
            "[[package]]\nname = \"mqfq-front\"\ndependencies = [\"x 1.0.0\"]\n[[package]]\nname = \"x\"\ndependencies = [\"tokio\"]\n",
        )],
        lawful: &[(
            "Cargo.lock",
            "[[package]]\nname = \"mqfq\"\ndependencies = [\"x 1.0.0\"]\n[[package]]\nname = \"x\"\ndependencies = [\"tokio\"]\n",
        )],
    },
    Planted {
        rule: "manifest",
        broken: &[
            ONE_MEMBER,
            (
                "sched/Cargo.toml",
                "[package]\nedition.workspace = true\nrust-version.workspace = true\npublish = false\ndescription = \"x\"\n[lints]\nworkspace = true\n",
            ),
        ],
        lawful: &[
            ONE_MEMBER,
            (
                "sched/Cargo.toml",
                "[package]\nlicense.workspace = true\nedition.workspace = true\nrust-version.workspace = true\npublish = false\ndescription = \"x\"\n[lints]\nworkspace = true\n",
            ),
        ],
    },
    // Six files: by `use` and by a path, through a module of a crate's name, a name passed on, a parent and a child.
    Planted {
        rule: "circles",
        broken: &[
            ("front/src/lib.rs", "mod a;\npub mod serde;\npub use serde::B;\n"),
            ("front/src/a.rs", "use crate::{other::{self, X}, B as _};\n"),
            ("front/src/serde/mod.rs", "mod c;\npub use c::B;\nstruct Own;\n"),
            ("front/src/serde/c.rs", "fn f() -> super::d::D {}\npub struct B;\n"),
            ("front/src/serde/d.rs", "mod inner;\npub type D = inner::Deep;\n"),
            ("front/src/serde/d/inner.rs", "use super::super::Own;\npub struct Deep;\nfn f() { crate::e::go() }\n"),
            ("front/src/e.rs", "use crate::f::*;\npub fn go() {}\n"),
            ("front/src/f.rs", "fn f(a: crate::a::A) {}\n"),
        ],
        // The last link is a test's, a comment's, or the crate's of that name; five files may name each other.
        lawful: &[
            ("front/src/lib.rs", "mod a;\npub mod serde;\npub use serde::B;\n"),
            ("front/src/a.rs", "use crate::{other::{self, X}, B as _};\n"),
            ("front/src/serde/mod.rs", "mod c;\npub use c::B;\nstruct Own;\n"),
            ("front/src/serde/c.rs", "fn f() -> super::d::D {}\npub struct B;\n"),
            ("front/src/serde/d.rs", "mod inner;\npub type D = inner::Deep;\n"),
            ("front/src/serde/d/inner.rs", "use super::super::Own;\npub struct Deep;\nfn f() { crate::e::go() }\n"),
            ("front/src/e.rs", "use crate::f::*;\npub fn go() {}\n"),
            ("front/src/f.rs", "//! See [`crate::a`].\n#[cfg(test)]\nmod tests { use crate::a::A; }\nuse b::crate_;\n"),
            ("cpu/src/a.rs", "use crate::b::B;\n"),
            ("cpu/src/b.rs", "use crate::c::B;\n"),
            ("cpu/src/c.rs", "use crate::d::B;\n"),
            ("cpu/src/d.rs", "use crate::e::B;\n"),
            ("cpu/src/e.rs", "use crate::a::B;\n"),
        ],
    },
    Planted {
        rule: "clock",
        broken: &[("lab/nvme/src/a.rs", "#[cfg(test)]\nmod tests { fn f() { std::time::Instant::now(); } }\n")],
        lawful: &[
            ("lab/nvme/src/a.rs", "// Instant\nfn f() { \"Instant\"; }\n"),
            ("blk/src/worker/clock.rs", "use std::time::Instant;\n"),
        ],
    },
    Planted {
        rule: "clock",
        broken: &[("blk/src/path/hctx.rs", "use std::time::SystemTime;\n")],
        lawful: &[("demo/src/load.rs", "use std::time::Instant;\n")],
    },
    Planted {
        rule: "threads",
        broken: &[("blk/src/path/hctx.rs", "fn f() { std::thread::spawn(|| ()); }\n")],
        lawful: &[
            ("blk/src/worker/thread.rs", "fn f() { std::thread::Builder::new(); }\n"),
            ("sched/src/a.rs", "#[cfg(all(test, mqfq_loom))]\nmod tests { fn f() { loom::thread::spawn(|| ()); } }\n"),
        ],
    },
    Planted {
        rule: "sleep",
        broken: &[("daemon/tests/a.rs", "use std::thread::sleep;\n")],
        lawful: &[
            ("daemon/tests/a.rs", "fn may_sleep() {}\n"),
            ("demo/src/load.rs", "fn f() { std::thread::sleep(x) }\n"),
        ],
    },
    Planted {
        rule: "sync",
        broken: &[
            ("sched/src/shared/ready_set.rs", "use std::sync::atomic::AtomicU64;\n"),
            ("blk/src/device/file/gate.rs", "use std::sync::{Arc, Mutex};\n"),
        ],
        lawful: &[
            ("sched/src/base/sync.rs", "pub use std::sync::atomic::AtomicU64;\n"),
            ("blk/src/a.rs", "use std::sync::Arc;\n"),
            ("blk/src/device/file/gate.rs", "use std::sync::Arc;\n"),
        ],
    },
    Planted {
        rule: "floats",
        broken: &[("sched/src/base/cost.rs", "fn f(x: f64) {}\n")],
        lawful: &[("sched/src/base/cost.rs", "/// As an f64.\n#[cfg(test)]\nfn f(x: f64) {}\n")],
    },
    Planted {
        rule: "old-compiler",
        broken: &[("sched/src/base/cost.rs", "fn f() { if a && let Some(b) = c {} }\n")],
        lawful: &[
            ("sched/src/base/cost.rs", "fn f() { if let Some(b) = c {} }\n"),
            ("blk/src/a.rs", "fn f() { if a && let Some(b) = c {} }\n"),
        ],
    },
    Planted {
        rule: "front-names-sched",
        broken: &[("front/src/nbd/a.rs", "use mqfq_sched::flow::FlowId;\n")],
        lawful: &[
            ("front/src/nbd/a.rs", "use mqfq_blk::FlowId;\n"),
            ("blk/src/a.rs", "use mqfq_sched::flow::FlowId;\n"),
        ],
    },
    Planted {
        rule: "unsafe",
        broken: &[("front/src/nbd/wire.rs", "fn f(x: *const u8) { unsafe { x.read() }; }\n")],
        lawful: &[
            ("blk/src/edge/buffer.rs", "fn f(x: *const u8) { unsafe { x.read() }; }\n"),
            ("front/src/lib.rs", "#![forbid(unsafe_code)]\n"),
        ],
    },
    Planted {
        rule: "async",
        broken: &[("blk/src/a.rs", "async fn f() {}\n")],
        lawful: &[("blk/src/a.rs", "/// Not async.\nfn asynchronous() {}\n")],
    },
    Planted {
        rule: "orderings",
        broken: &[("sched/src/a.rs", "// Sets the mark.\nx.store(true, Release);\n")],
        lawful: &[("sched/src/a.rs", "// Release: pairs with the Acquire in `g`.\nx.store(true, Release);\n")],
    },
    // An argument for something farther above does not cover this.
    Planted {
        rule: "orderings",
        broken: &[(
            "sched/src/a.rs",
            "// Relaxed: a hint.\na();\nb();\nc();\nd();\ne();\nf();\ng();\nx.load(Relaxed);\n",
        )],
        lawful: &[(
            "sched/src/a.rs",
            "use sync::{\n    AtomicU64, Ordering::Relaxed,\n};\n// Relaxed: a hint.\n// 2\n// 3\n// 4\n// 5\n// 6\n// 7\n// 8\nx.load(Relaxed);\n",
        )],
    },
    Planted {
        rule: "orderings",
        broken: &[("sched/src/a.rs", "// Pairs with the store in `g`.\nx.load(Acquire);\n")],
        lawful: &[("sched/src/a.rs", "// Pairs with the fence in `g`.\nfence(SeqCst);\n")],
    },
    // One argument for a file of counters: not in sched, and not for a stronger ordering.
    Planted {
        rule: "orderings",
        broken: &[("sched/src/a.rs", "// Ordering: every access is Relaxed.\n\n\n\n\n\n\n\nx.load(Relaxed);\n")],
        lawful: &[("front/src/a.rs", "// Ordering: every access is Relaxed.\n\n\n\n\n\n\n\nx.load(Relaxed);\n")],
    },
    Planted {
        rule: "orderings",
        broken: &[("front/src/a.rs", "// Ordering: every access is Relaxed.\n\n\n\n\n\n\n\nx.load(Acquire);\n")],
        lawful: &[("front/src/a.rs", "#[cfg(test)]\nmod tests { fn f() { x.load(Acquire); } }\n")],
    },
    Planted {
        rule: "opening",
        broken: &[("blk/src/a.rs", "use x;\n")],
        lawful: &[
            ("blk/src/a.rs", "//! What it answers.\n#[cfg(test)]\nmod a_tests;\n"),
            ("blk/src/a/a_tests.rs", "use x;\n"),
        ],
    },
    Planted {
        rule: "opening",
        broken: &[(".ci/run", "#!/usr/bin/env bash\nfalse\ntrue\n")],
        lawful: &[(".ci/run", "#!/usr/bin/env bash\nset -euo pipefail\nfalse\ntrue\n")],
    },
    Planted { rule: "white-space", broken: &[("a.md", "x\ty\n")], lawful: &[("a.md", "x y\n")] },
    Planted { rule: "white-space", broken: &[("a.rs", "x \n")], lawful: &[("a.rs", "x\n")] },
    Planted { rule: "white-space", broken: &[("a.toml", "x")], lawful: &[("a.toml", "x\n"), ("empty", "")] },
    Planted {
        rule: "ignored-tests",
        broken: &[("a/src/b.rs", "#[test]\n#[ignore]\nfn f() {}\n")],
        lawful: &[("a/src/b.rs", "#[test]\n#[ignore = \"a minute long; `cargo xtask kill-test`\"]\nfn f() {}\n")],
    },
    Planted {
        rule: "ignored-tests",
        broken: &[("a/src/b.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n")],
        lawful: &[("a/src/b.rs", "fn f() { \"#[ignore]\"; }\n")],
    },
    Planted {
        rule: "doc-tests",
        broken: &[("a/Cargo.toml", "[lib]\ndoctest = false\n"), ("a/src/b.rs", "//! ```\n//! f();\n//! ```\n")],
        lawful: &[("a/Cargo.toml", "[lib]\ndoctest = false\n"), ("a/src/b.rs", "//! ```text\n//! f\n//! ```\n")],
    },
    Planted {
        rule: "file-names",
        broken: &[("daemon/tests/common/mod.rs", "\n")],
        lawful: &[("daemon/tests/commons_hall.rs", "\n")],
    },
    Planted {
        rule: "seeds",
        broken: &[
            (
                ".cargo/config.toml",
                "[env]\nPROPTEST_RNG_SEED = \"random\"\nPROPTEST_DISABLE_FAILURE_PERSISTENCE = \"1\"\n",
            ),
            ("a/src/b.rs", "proptest! {}\n"),
        ],
        lawful: &[
            (".cargo/config.toml", "[env]\nPROPTEST_RNG_SEED = \"7\"\nPROPTEST_DISABLE_FAILURE_PERSISTENCE = \"1\"\n"),
            ("a/src/b.rs", "proptest! {}\n"),
        ],
    },
    Planted {
        rule: "seeds",
        broken: &[(".cargo/config.toml", "[env]\nPROPTEST_RNG_SEED = \"7\"\n"), ("a/src/b.rs", "proptest! {}\n")],
        lawful: &[("a/src/b.rs", "// proptest! {}\n")],
    },
    Planted {
        rule: "seeds",
        broken: &[("a/src/b.rs", "let config = ProptestConfig { rng_seed: x(), ..y() };\n")],
        lawful: &[("a/src/b.rs", "let rng = ChaCha8Rng::seed_from_u64(1);\n")],
    },
    Planted {
        rule: "seeds",
        broken: &[("a/proptest-regressions/b.txt", "cc 1\n")],
        lawful: &[("a/src/regressions.rs", "fn f() {}\n")],
    },
    Planted {
        rule: "one-title",
        broken: &[("docs/a.md", "# One\n\n# Two\n")],
        lawful: &[("docs/a.md", "# One\n\n```sh\n# a comment\n```\n")],
    },
    Planted {
        rule: "links",
        broken: &[("docs/a.md", "# A\n[b](b.md)\n")],
        lawful: &[
            ("docs/a.md", "# A\n[b](../b.md#some-heading) [c](https://example.org) `[d](d.md)`\n"),
            ("b.md", "# B\n## Some heading\n"),
        ],
    },
    Planted {
        rule: "links",
        broken: &[("a.md", "# A\n[b](b.md#other)\n"), ("b.md", "# B\n")],
        lawful: &[("a.md", "# A\n[b](b.md#b)\n"), ("b.md", "# B\n")],
    },
    Planted {
        rule: "pages-named",
        broken: &[("blk/src/a.rs", "//! As DESIGN.md section 3 says.\n")],
        lawful: &[
            (
                "blk/src/a.rs",
                "//! See docs/b.md, and `lab/bench/README.md`. NBD's doc/proto.md is not ours.\nf(\"D.md\");\n",
            ),
            ("docs/b.md", "# B\n"),
            ("lab/bench/README.md", "# B\n"),
        ],
    },
    Planted {
        rule: "linked",
        broken: &[("README.md", "# R\n"), ("docs/a.md", "# A\n")],
        lawful: &[("README.md", "# R\n[a](docs/a.md#a)\n"), ("docs/a.md", "# A\n")],
    },
    Planted {
        rule: "one-meaning",
        broken: &[(
            "GLOSSARY.md",
            "# G\n| term | meaning |\n|---|---|\n| tag | x |\n\n| term | meaning |\n|---|---|\n| word, tag (D2FQ) | y |\n",
        )],
        lawful: &[(
            "GLOSSARY.md",
            "# G\n| term | meaning |\n|---|---|\n| tag | x |\n\n| term | meaning |\n|---|---|\n| word, start tag | y |\n",
        )],
    },
    Planted {
        rule: "tests-named",
        broken: &[
            ("docs/inside/invariants.md", "# A\n| I1 | `nothing_is_ever_lost` |\n"),
            ("a/src/b.rs", "#[test]\nfn nothing_is_lost() {}\n"),
        ],
        lawful: &[
            ("docs/inside/invariants.md", "# A\n| I1 | `nothing_is_ever_lost` |\n"),
            ("a/src/b.rs", "#[test]\nfn nothing_is_ever_lost() {}\n"),
        ],
    },
    Planted {
        rule: "reading-level",
        broken: &[(
            "docs/use/a.md",
            "# A\nNotwithstanding considerations regarding organizational responsibilities, administrators necessarily \
             anticipate substantial configuration complexities, particularly whenever virtualization infrastructures \
             simultaneously accommodate heterogeneous applications, whose unpredictable characteristics occasionally \
             necessitate reconsideration of previously established recommendations.\n",
        )],
        lawful: &[(
            "docs/use/a.md",
            "# A\nA drive has work to do. Each tenant has its share of it. When one of them asks for more, the others \
             wait no longer than before. This is how it should be, and this is how it is.\n",
        )],
    },
    // A sentence that only a test says, and one over two lines of source.
    Planted {
        rule: "log-lines",
        broken: &[
            ("docs/use/troubleshooting.md", "# A\n| the log says | do |\n|---|---|\n| `it is full up` | b |\n"),
            (
                "blk/src/b.rs",
                "const A: &str = \"it is full\";\n#[cfg(test)]\nmod tests { const A: &str = \"it is full up\"; }\n",
            ),
        ],
        lawful: &[
            ("docs/use/troubleshooting.md", "# A\n| the log says | do |\n|---|---|\n| `it is full up` | b |\n"),
            ("blk/src/b.rs", "const A: &str = \"it \\\n    is full up\";\n"),
        ],
    },
    Planted {
        rule: "release-notes",
        broken: &[("CHANGELOG.md", "# C\n\n## [Unreleased]\n\n## [0.1.0] - soon\n")],
        lawful: &[("CHANGELOG.md", "# C\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-30\n")],
    },
    Planted {
        rule: "release-notes",
        broken: &[("Cargo.toml", "version = \"0.2.0\"\n"), ("CHANGELOG.md", "# C\n\n## [0.1.0] - 2026-11-30\n")],
        lawful: &[("Cargo.toml", "version = \"0.1.0\"\n"), ("CHANGELOG.md", "# C\n\n## [0.1.0] - 2026-11-30\n")],
    },
    Planted {
        rule: "config-keys",
        broken: &[
            ("daemon/src/config/mod.rs", "server.get(\"pin\"); server.get(\"drain-s\");\n"),
            ("docs/use/config.md", "# Config\n| `pin` | bind |\n"),
        ],
        lawful: &[
            ("daemon/src/config/mod.rs", "server.get(\"pin\"); device.get(\"cost\"); root.get(\"server\");\n"),
            ("docs/use/config.md", "# Config\n## [server]\n| `pin` | bind |\n## [device.NAME.cost]\n"),
        ],
    },
    Planted {
        rule: "config-keys",
        broken: &[
            ("lab/sim/src/scenario/parse.rs", "run.get(\"seed\"); run.get(\"warm-up\");\n"),
            ("docs/lab/scenarios.md", "# Scenarios\n| `seed` | of all |\n"),
        ],
        lawful: &[
            ("lab/sim/src/scenario/parse.rs", "run.get(\"seed\"); root.get(\"run\");\n"),
            ("docs/lab/scenarios.md", "# Scenarios\n## [run]\n| `seed` | of all |\n"),
        ],
    },
    Planted {
        rule: "policy-pages",
        broken: &[("sched/src/policy/none/mod.rs", "..Descriptor::new(\"none\", \"x\")\n")],
        lawful: &[
            ("sched/src/policy/none/mod.rs", "..Descriptor::new(\"none\", \"x\")\n"),
            ("docs/use/policies.md", "# P\n## none\n"),
        ],
    },
    Planted {
        rule: "policy-pages",
        broken: &[
            ("sched/src/policy/none/mod.rs", "Descriptor::new(\"none\", \"x\")\n"),
            ("docs/use/policies.md", "# P\n## none\n## magic\n"),
        ],
        lawful: &[("docs/use/policies.md", "# P\n## magic\n")],
    },
    Planted {
        rule: "policy-pages",
        broken: &[
            ("sched/src/policy/fifo/mod.rs", "Descriptor::new(\"no-op\", \"x\")\n"),
            ("docs/use/policies.md", "# P\n## no-op\n"),
        ],
        lawful: &[
            ("sched/src/policy/no_op/mod.rs", "Descriptor::new(\n    \"no-op\", \"x\")\n"),
            ("docs/use/policies.md", "# P\n## no-op\n"),
        ],
    },
];

#[test]
fn every_planted_violation_is_found_and_its_lawful_twin_is_not() {
    for Planted { rule, broken, lawful } in PLANTED {
        let found = check_rule(&Tree::of(broken), rule);
        assert_eq!(found.len(), 1, "{rule}: one finding expected in {broken:?}, got {found:?}");
        let found = check_rule(&Tree::of(lawful), rule);
        assert!(found.is_empty(), "{rule}: none expected in {lawful:?}, got {found:?}");
    }
}

/// Marks and paths that must not stand in this file either: planted from halves.
#[test]
fn planted_marks_and_paths_are_found() {
    for mark in [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]] {
        let text = format!("x = 1 # {}: later\n", mark.concat());
        assert_eq!(check_rule(&Tree::of(&[("a.toml", &text)]), "unfinished").len(), 1, "{mark:?}");
    }
    for stub in [["to", "do!()"], ["unimple", "mented!(\"x\")"]] {
        let text = format!("fn f() {{ {} }}\n", stub.concat());
        assert_eq!(check_rule(&Tree::of(&[("a/src/b.rs", &text)]), "unfinished").len(), 1, "{stub:?}");
    }
    assert!(check_rule(&Tree::of(&[("a.md", "TODOS and a mastodon\n")]), "unfinished").is_empty());
    let sides = ["<", "=", ">"].map(|mark| mark.repeat(7));
    let merged = format!("{} HEAD\nthis\n{}\nthat\n{} other\n", sides[0], sides[1], sides[2]);
    assert_eq!(check_rule(&Tree::of(&[("a.md", &merged)]), "unfinished").len(), 3);
    assert!(check_rule(&Tree::of(&[("a.md", "Title\n========\n")]), "unfinished").is_empty());
    let path = ["see /wo", "rk/main/x\n"].concat();
    assert_eq!(check_rule(&Tree::of(&[("a.md", &path)]), "machine-paths").len(), 1);
    assert!(
        check_rule(&Tree::of(&[("a.md", "daemon/work/x, https://example.org/home/x\n")]), "machine-paths").is_empty()
    );
}

#[test]
fn docs_of_60001_words_and_a_file_too_many_are_found() {
    let words = |count: usize| Tree::of(&[("a.md", &"w ".repeat(count)), ("lab/record/a.md", "no word of docs")]);
    assert_eq!(check_rule(&words(DOC_WORDS_MAX + 1), "budget").len(), 1);
    assert!(check_rule(&words(DOC_WORDS_MAX), "budget").is_empty());
    let files = |count: usize| {
        let paths: Vec<String> = (0..count).map(|number| format!("{number}.c")).collect();
        Tree::of(&paths.iter().map(|path| (path.as_str(), "")).collect::<Vec<_>>())
    };
    assert_eq!(check_rule(&files(FILES_MAX + 1), "budget").len(), 1);
    assert!(check_rule(&files(FILES_MAX), "budget").is_empty());
}

#[test]
fn a_file_of_801_lines_is_found_and_one_of_800_is_not() {
    let lines = |count: usize| "//\n".repeat(count);
    assert_eq!(check_rule(&Tree::of(&[("a.rs", &lines(801))]), "length").len(), 1);
    let long = [("a.rs", &*lines(800)), ("Cargo.lock", &*lines(9000)), ("lab/record/h/d/a.md", &*lines(9000))];
    assert!(check_rule(&Tree::of(&long), "length").is_empty());
}

#[test]
fn a_line_of_121_columns_is_found_and_one_of_120_is_not() {
    let words = |count: usize| "word ".repeat(count / 5 + 1)[..count - 1].to_string() + ".";
    for (start, indent) in [("//! ", ""), ("/// ", "    "), ("// ", "        "), ("let x = ", "    ")] {
        let line = |columns: usize| format!("{indent}{start}{}\n", words(columns - indent.len() - start.len()));
        assert_eq!(check_rule(&Tree::of(&[("blk/src/a.rs", &line(121))]), "columns").len(), 1, "{start}");
        assert!(check_rule(&Tree::of(&[("blk/src/a.rs", &line(120))]), "columns").is_empty(), "{start}");
    }
    let beside = format!("f();  // {}\n", words(130));
    assert_eq!(check_rule(&Tree::of(&[("blk/src/a.rs", &beside)]), "columns").len(), 1);
    // A message, a row, a picture with a line after it, an address; and columns are characters, not bytes.
    let picture = |after: &str| format!("// ```text\n// {}\n// ```\n// {after}\n", words(150));
    let lawful = [
        format!("f(\"{}\");\n", words(150)),
        format!("//! | {} |\n", words(150)),
        picture("x"),
        format!("// https://example.org/{}\n", "x".repeat(150)),
        format!("// {} {}\n", "\u{2500}".repeat(50), "\u{2500}".repeat(50)),
    ];
    for text in &lawful {
        assert!(check_rule(&Tree::of(&[("blk/src/a.rs", text)]), "columns").is_empty(), "{text}");
    }
    assert_eq!(check_rule(&Tree::of(&[("blk/src/a.rs", &picture(&words(150)))]), "columns").len(), 1);
}

#[test]
fn every_rule_has_been_seen_to_fail() {
    let elsewhere = ["unfinished", "machine-paths", "budget", "length", "columns"];
    for (rule, _) in RULES {
        let planted = PLANTED.iter().any(|planted| planted.rule == *rule);
        assert!(planted || elsewhere.contains(rule), "no violation of {rule} is planted");
    }
}

#[test]
fn a_module_that_only_tests_have_is_a_test_in_its_own_file_too() {
    let tree = Tree::of(&[
        ("sched/src/lib.rs", "//! x\n#[cfg(test)]\nmod model;\n"),
        ("sched/src/model.rs", "fn f(x: f64) {}\n"),
    ]);
    assert!(check_rule(&tree, "floats").is_empty());
}
