//! Chooses the counting atomics (`sched/src/sync.rs`) for this package alone.

fn main() {
    println!("cargo::rustc-cfg=counted");
    println!("cargo::rerun-if-changed=build.rs");
}
