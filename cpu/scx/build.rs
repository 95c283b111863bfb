//! Builds the object that the loader loads: clang compiles `bpf/pmqfq.bpf.c`, if the `bpf` feature is on.

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    #[cfg(feature = "bpf")]
    skeleton();
}

#[cfg(feature = "bpf")]
fn skeleton() {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("pmqfq.skel.rs");
    let clang = std::env::var_os("BPF_CLANG").unwrap_or_else(|| "clang-19".into());
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    libbpf_cargo::SkeletonBuilder::new()
        .source("bpf/pmqfq.bpf.c")
        .clang(clang)
        .clang_args(["-Ibpf", "-mcpu=v3", "-Wall", "-Werror"])
        .build_and_generate(out)
        .unwrap_or_else(|error| {
            panic!("the BPF object cannot be built, clang-19 and libelf-dev are needed: {error:#}")
        });
}
