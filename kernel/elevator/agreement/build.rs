//! Compiles the elevator's core, without its glue to a kernel, with the harness that drives it.

fn main() {
    let core =
        ["flow", "process", "stage_queue", "mindicator", "token_tree", "ready_set", "throttle_wheel", "scheduler"];
    let controllers = ["depth", "depth_sample", "depth_search", "window_rule", "hierarchy"];
    println!("cargo:rerun-if-changed=..");
    cc::Build::new()
        .files(core.iter().chain(&controllers).map(|name| format!("../{name}.c")))
        .files(["harness.c", "controllers.c", "tree.c", "crowd.c"])
        // Memory comes by way of the harness, which refuses some of it.
        .define("aligned_alloc", "world_aligned_alloc")
        .define("malloc", "world_malloc")
        .define("free", "world_release")
        .include("..")
        .std("gnu11")
        .opt_level(2)
        .warnings_into_errors(true)
        .extra_warnings(true)
        .compile("mqfq_elevator_core");
}
