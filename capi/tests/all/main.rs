//! libmqfq as a C program meets it: mqfq.h against the code, programs under sanitizers, a filter in nbdkit, a
//! server of another project.

mod nbdkit;

use mqfq_testing::{Folder, arg};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HEADER: &str = include_str!("../../mqfq.h");

/// Folder of the libraries of this build: beside the test.
fn libraries() -> PathBuf {
    // A use of the crate, so that it is built.
    assert_eq!(mqfq::Code::ALL.len(), 11);
    let test = std::env::current_exe().expect("a test is a file");
    test.parent().expect("it lies in a folder").to_path_buf()
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles with warnings as errors.
fn compile(compiler: &str, words: &[&str], output: &Path) {
    let mut command = Command::new(compiler);
    let language = if words.contains(&"c++") { "-std=c++17" } else { "-std=c11" };
    command.args([language, "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-I"]).arg(package());
    let run = command.args(words).arg("-o").arg(output).current_dir(package()).output().expect(compiler);
    assert!(run.status.success(), "{compiler} {words:?}: {}", String::from_utf8_lossy(&run.stderr));
}

/// A folder with the library under the name that programs look for.
fn with_library() -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(libraries().join("libmqfq.so"), folder.join("libmqfq.so.0")).expect("a link");
    std::os::unix::fs::symlink("libmqfq.so.0", folder.join("libmqfq.so")).expect("a link");
    folder
}

/// The compilers that there are: Rust links by `cc`; clang with the runtimes of its sanitizers.
fn compilers(folder: &Folder) -> Vec<&'static str> {
    let source = folder.join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    let works = |name: &&str| {
        ["address,undefined", "thread"].into_iter().all(|sanitizer| {
            let mut compile = Command::new(name);
            compile.arg(format!("-fsanitize={sanitizer}")).arg(&source).arg("-o").arg(folder.join("empty"));
            compile.output().is_ok_and(|run| run.status.success())
        })
    };
    let found: Vec<&str> = ["clang", "clang-19"].into_iter().filter(works).collect();
    if found.is_empty() {
        println!("skipped: the same by clang, which is not there with its sanitizers");
    }
    ["cc"].into_iter().chain(found).collect()
}

/// Runs a program of a folder: under a sanitizer for threads at fixed addresses where it refuses others. That sanitizer
/// does not see the library's locks, so what the library copies under them is left out.
fn run(folder: &Folder, program: &Path) -> Output {
    let suppressions = folder.join("suppressions");
    std::fs::write(&suppressions, "called_from_lib:libmqfq.so\n").expect("a file");
    let run = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("300").args(words).arg(program).env("LD_LIBRARY_PATH", folder.path());
        command.env("TSAN_OPTIONS", format!("suppressions={}", arg(&suppressions)));
        command.output().expect("timeout runs")
    };
    let output = run(&[]);
    if !String::from_utf8_lossy(&output.stderr).contains("unexpected memory mapping") {
        return output;
    }
    run(&["setarch", "-R"])
}

fn expect_success(what: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{what}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn programs_run_clean_under_sanitizers() {
    let folder = with_library();
    let library = arg(folder.path());
    for compiler in compilers(&folder) {
        for sanitizer in ["address,undefined", "thread"] {
            let sanitize = format!("-fsanitize={sanitizer}");
            for (source, end) in [("tests/all/misuse.c", "all as mqfq.h says\n"), ("examples/threads.c", "")] {
                let program = folder.join("program");
                let words = [&*sanitize, "-fno-sanitize-recover=all", source, "-L", library, "-lmqfq", "-lpthread"];
                compile(compiler, &words, &program);
                let printed = expect_success(&format!("{source}, {compiler} {sanitizer}"), &run(&folder, &program));
                assert!(printed.ends_with(end) && printed.contains("a ratio of"), "{printed}");
            }
        }
    }
}

#[test]
fn a_program_links_with_the_archive_alone() {
    let folder = Folder::new();
    let program = folder.join("program");
    let archive = libraries().join("libmqfq.a");
    // The line of the package's file.
    let description = include_str!("../../mqfq.pc");
    let private = description.lines().find_map(|line| line.strip_prefix("Libs: -L${libdir} -lmqfq ")).expect("a line");
    let words: Vec<&str> = ["tests/all/misuse.c", arg(&archive)].into_iter().chain(private.split(' ')).collect();
    compile("cc", &words, &program);
    expect_success("linked with the archive", &run(&folder, &program));
    assert!(description.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")), "{description}");
}

/// `text` without comments, and each run of white space as one blank.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = after.split_once("*/").expect("a comment ends").1;
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A type of lib.rs in C.
fn in_c(name: &str, rust: &str) -> String {
    let of_name = if name.contains("tenant") || name.contains("permit") { &name[..6] } else { "" };
    match rust {
        "c_int" => "int",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "*mut u32" => "uint32_t *",
        "*mut u64" => "uint64_t *",
        "*mut i64" => "int64_t *",
        "*const c_char" => "const char *",
        "*mut c_void" => "void *",
        "*mut *mut c_void" => "void **",
        "*const Options" => "const mqfq_options *",
        "*const Root" => "mqfq_scheduler *",
        "*mut *const Root" => "mqfq_scheduler **",
        "*const WorkerCell" => "mqfq_worker *",
        "*mut *const WorkerCell" => "mqfq_worker **",
        "*mut CountersOut" => "mqfq_counters *",
        "JobName" => "mqfq_job",
        "*mut JobName" => "mqfq_job *",
        "Name" => return format!("mqfq_{of_name}"),
        "*mut Name" => return format!("mqfq_{of_name} *"),
        "Option<unsafe extern \"C\" fn(*mut c_void)>" => "void (*)(void *)",
        "Option<unsafe extern \"C\" fn(*mut c_void, *mut c_void)>" => "void (*)(void *, void *)",
        other => panic!("{name}: {other} has no type in C here"),
    }
    .to_owned()
}

/// Prototypes of lib.rs in C, by function: a redeclaration that differs from mqfq.h does not compile.
fn prototypes() -> BTreeMap<String, String> {
    let source = include_str!("../../src/lib.rs");
    let functions = source.split("extern \"C\" fn mqfq_").skip(1).map(|rest| {
        let (name, rest) = rest.split_once('(').expect("arguments");
        let (arguments, rest) = rest.split_once(") -> ").expect("a result");
        let result = rest.split_once(" {").expect("a body").0;
        let flat = arguments.split_whitespace().collect::<Vec<_>>().join(" ");
        let typed = flat.trim_end_matches(',').split(", ").fold(Vec::new(), |mut all: Vec<String>, part| {
            // A comma inside a function's type parts no arguments.
            match all.last_mut().filter(|last| last.contains("fn(") && !last.contains(")>")) {
                Some(last) => last.push_str(&format!(", {part}")),
                None => all.push(part.to_owned()),
            }
            all
        });
        let each = typed.iter().map(|argument| argument.split_once(": ").expect("name: type"));
        let each: Vec<String> = each.map(|(name, rust)| in_c(name, rust)).collect();
        (format!("mqfq_{name}"), format!("{} mqfq_{name}({});", in_c("", result), each.join(", ")))
    });
    functions.collect()
}

#[test]
fn the_header_is_the_code() {
    let header = plain(HEADER);
    let prototypes = prototypes();
    for name in prototypes.keys() {
        assert!(header.contains(&format!("{name}(")), "mqfq.h lacks {name}");
        let is_in_page = include_str!("../../mqfq.3").contains(name.as_str());
        assert!(is_in_page, "mqfq(3) lacks {name}");
    }
    let is_function = |part: &&str| part.trim_start().starts_with("int mqfq_") || part.contains("*mqfq_strerror(");
    assert_eq!(header.split(';').filter(is_function).count(), prototypes.len(), "mqfq.h declares others");

    let mut program = String::from("#include <mqfq.h>\n#include <stddef.h>\n");
    prototypes.values().for_each(|prototype| program.push_str(&format!("{prototype}\n")));
    let mut check = |what: String| program.push_str(&format!("_Static_assert({what}, \"{what}\");\n"));
    for (code, name) in mqfq::Code::ALL.into_iter().zip([
        "NULL",
        "RANGE",
        "TENANT_FULL",
        "PLACE_FULL",
        "GONE",
        "OTHER",
        "TENANTS_FULL",
        "PLACE_TAKEN",
        "BUSY",
        "TIMEOUT",
        "INTERNAL",
    ]) {
        check(format!("MQFQ_{name} == {}", code as i32));
    }
    macro_rules! layout {
        ($($rust:ident is $c:ident { $($field:ident)+ })+) => {$(
            check(format!("sizeof({}) == {}", stringify!($c), size_of::<mqfq::$rust>()));
            $(check(format!(
                "offsetof({}, {}) == {}",
                stringify!($c),
                stringify!($field),
                std::mem::offset_of!(mqfq::$rust, $field)
            ));)+
        )+};
    }
    layout! {
        Options is mqfq_options {
            places permits tenants jobs tenant_jobs find_permits typical_cost away_after_ns reserved
        }
        Name is mqfq_tenant { scheduler number }
        Name is mqfq_permit { scheduler number }
        JobName is mqfq_job { word }
        CountersOut is mqfq_counters { served served_cost waiting under_way held_by_window held_by_permits }
    }
    let folder = Folder::new();
    let source = folder.join("header.c");
    std::fs::write(&source, program).expect("a file");
    compile("cc", &["-c", arg(&source)], &folder.join("header.o"));
    // And C++ takes it.
    compile("cc", &["-fsyntax-only", "-x", "c++", "mqfq.h"], &folder.join("none"));
}

#[test]
fn the_example_is_short() {
    assert!(include_str!("../../examples/threads.c").lines().count() <= 60);
}
