//! `orchestrix bench`, which is a program of its own.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::text;

/// Runs `orchestrix bench` from a folder in which this is `orchestrix-bench`.
fn bench(beside: Option<&str>, options: &[&str]) -> Output {
    // A link would be followed to where the program really is, and a copy may not fit; both names are of one file.
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("orchestrix");
    std::fs::hard_link(env!("CARGO_BIN_EXE_orchestrix"), &program).unwrap();
    if let Some(script) = beside {
        let path = folder.path().join("orchestrix-bench");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    Command::new(program).arg("bench").args(options).output().unwrap()
}

#[test]
fn bench_becomes_the_program_beside_it_with_all_options() {
    let output =
        bench(Some("#!/bin/sh\necho \"$@\"; exit 7\n"), &["--json", "--quick", "--help", "--only", "x"]);
    assert_eq!(text(&output.stdout), "--json --quick --help --only x\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn bench_says_where_the_benchmark_is_if_it_is_not_beside() {
    let output = bench(None, &["--quick"]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("`make bench`") && told.contains("orchestrix-bench"), "{told}");
    let told = bench(None, &["--json"]);
    let told: serde_json::Value = serde_json::from_slice(&[told.stdout, told.stderr].concat()).unwrap();
    assert!(told.to_string().contains("make bench"), "{told}");
}
