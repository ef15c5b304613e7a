//! Kills the coordinator under load, again and again, and at the entry of every call that matters, and holds it to
//! every word it gave. `make prove` does more of it.

#[path = "../support/campaign.rs"]
mod campaign;

use std::process::Command;

use campaign::{BINARY, holds, run};

#[test]
fn nothing_acknowledged_is_lost_by_kills_at_any_time() {
    holds("kills");
}

#[test]
fn nothing_acknowledged_is_lost_by_a_kill_at_any_named_call() {
    holds("points");
}

#[test]
fn a_coordinator_that_forgets_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let forgetful = folder.path().join("forgetful");
    // `serve --data FOLDER`: it empties the folder at each start. Another process writes it, so that no process that
    // is started here meanwhile has it open: it could not be run then.
    let text = format!("#!/bin/sh\nrm -rf \"$3\"\nexec '{BINARY}' \"$@\"\n");
    let script = r#"printf %s "$2" > "$1" && chmod 700 "$1""#;
    let written = Command::new("sh").args(["-c", script, "sh"]).arg(&forgetful).arg(text).status();
    assert!(written.unwrap().success());
    let tried = run("kills", 10, &forgetful);
    let [(_, violation)] = &tried.violations[..] else { panic!("{tried:#?}") };
    assert!(violation.contains("was acknowledged as task"), "{violation}");
}
