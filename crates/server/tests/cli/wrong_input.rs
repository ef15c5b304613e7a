//! Wrong input on the command line: it is refused before anything is asked, in words that say what to write instead.

use crate::support::{Coordinator, text};

/// Runs a command without a coordinator that could answer, and says how it ended.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Coordinator::prepared().run(arguments);
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn numbers_that_cannot_be_are_wrong_usage() {
    let wrong: [(&[&str], &str); 4] = [
        (&["task", "0"], "whole number from 1"),
        (&["logs", "2", "--follow", "--attempt", "0"], "1.."),
        (&["tasks", "--limit", "0"], "1.."),
        (&["work", "q", "--concurrency", "0", "--", "true"], "1..=1000"),
    ];
    for (arguments, said) in wrong {
        let (code, told) = refused(arguments);
        assert!(
            code == Some(2) && told.contains(said) && !told.contains("working on"),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn the_first_numbers_that_can_be_are_taken() {
    let coordinator = Coordinator::start();
    let id = coordinator.submit(&["q", "1"]);
    assert_eq!(coordinator.run(&["logs", &id, "--attempt", "1"]).status.code(), Some(0));
    assert_eq!(coordinator.run(&["tasks", "--limit", "1"]).status.code(), Some(0));
    assert_eq!(coordinator.run(&["task", "1"]).status.code(), Some(4), "it is a term, and no task");
}

#[test]
fn an_empty_payload_is_called_empty() {
    let (code, told) = refused(&["submit", "q", " "]);
    assert!(code == Some(2) && told.contains("the payload is empty") && !told.contains("EOF"), "{told}");
}

#[test]
fn a_token_that_is_over_already_is_not_made() {
    let (code, told) =
        refused(&["token", "new", "--name", "a", "--role", "read", "--expires", "2020-01-01T00:00:00Z"]);
    assert!(code == Some(2) && told.contains("is in the past") && !told.contains("orx_"), "{told}");
}

#[test]
fn a_folder_that_is_not_there_is_named_once() {
    for command in ["verify", "dump"] {
        let (code, told) = refused(&["journal", command, "/no-such-folder"]);
        assert!(code == Some(1) && told.matches("/no-such-folder").count() == 1, "{told}");
    }
}

#[test]
fn nothing_found_names_what_was_asked_for() {
    let coordinator = Coordinator::start();
    let told = |arguments: &[&str]| text(&coordinator.run(arguments).stderr);
    assert!(
        told(&["retry", "--all-failed", "--queue", "nosuch"]).contains("no task of queue nosuch is FAILED")
    );
    assert!(told(&["shards", "--group", "nosuch"]).contains("no services of group nosuch"));
}
