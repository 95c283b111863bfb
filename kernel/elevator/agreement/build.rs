//! Compiles the elevator's core, without its glue to a kernel, with the harness that drives it.

fn main() {
    let core = ["flow", "stage_queue", "mindicator", "token_tree", "ready_set", "throttle_wheel", "scheduler"];
    println!("cargo:rerun-if-changed=..");
    cc::Build::new()
        .files(core.map(|name| format!("../{name}.c")))
        .file("harness.c")
        .include("..")
        .std("gnu11")
        .opt_level(2)
        .warnings_into_errors(true)
        .extra_warnings(true)
        .compile("mqfq_elevator_core");
}
