//! Chooses the atomics that tell a watcher (`sched/src/base/sync.rs`) for this package alone.

fn main() {
    println!("cargo::rustc-cfg=watched");
    println!("cargo::rerun-if-changed=build.rs");
}
