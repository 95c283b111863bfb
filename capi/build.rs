//! Names the shared library as programs look for it: with the number that a break of the interface changes.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmqfq.so.0");
}
