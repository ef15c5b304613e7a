//! Checks the rights of the user by doing everything once.
//!
//! A user that lacks a right is refused before anything is written, and not when the right is needed.

use std::collections::BTreeSet;

use super::server::{Failure, Script, Server};
use crate::{Cause, Error};

static RIGHTS: Script = Script::new(include_str!("scripts/rights.lua"));

static BUS_RIGHTS: Script = Script::new(include_str!("scripts/bus_rights.lua"));

/// Tries one key.
static KEY: Script = Script::new(include_str!("scripts/key.lua"));

const DOING: &str = "check the rights of the user";

/// What is needed, and where an operator finds all of it.
pub(super) struct Needs {
    script: &'static Script,
    page: &'static str,
    /// A pattern that covers all keys.
    all_keys: &'static str,
}

/// Of the engine.
pub(super) static ENGINE: Needs =
    Needs { script: &RIGHTS, page: "docs/engines/redis.md", all_keys: "~orchestrix:*" };
/// Of a bus.
pub(super) static BUS: Needs =
    Needs { script: &BUS_RIGHTS, page: "docs/bus.md", all_keys: "~orchestrix:* ~orchestrix.*" };

impl Needs {
    /// Refuses a user that may not run scripts, or lacks a command that they have.
    pub(super) fn check(&'static self, server: &Server, probe: &str) -> Result<(), Error> {
        // In full, and then by its name: these are two commands.
        for _ in 0..2 {
            let answers: Vec<String> = server.get(DOING, &self.script.with(&[probe.to_owned()]))?;
            let denied = answers.chunks(2).filter(|answer| answer.get(1).is_some_and(|error| denies(error)));
            let missing: Vec<_> = denied.map(|answer| format!("+{}", answer[0].to_lowercase())).collect();
            if !missing.is_empty() {
                return Err(self.lacks(server, &missing));
            }
        }
        Ok(())
    }

    /// Refuses a user that may not read and write all keys, given by patterns, each with a key that it has to cover.
    pub(super) fn check_keys(&self, server: &Server, every: &[(String, String)]) -> Result<(), Error> {
        let mut missing: Vec<String> = Vec::new();
        for (pattern, key) in every {
            let denied = match server.ask::<Vec<String>>(&KEY.with(std::slice::from_ref(key))) {
                Ok(errors) => errors.iter().any(|error| denies_key(error)),
                Err(Failure::Refused { code, what }) if code == "NOPERM" && denies_key(&what) => true,
                Err(failure) => return Err(server.error(DOING, failure)),
            };
            let pattern = format!("~{pattern}");
            if denied && !missing.contains(&pattern) {
                missing.push(pattern);
            }
        }
        let patterns: BTreeSet<_> = every.iter().map(|(pattern, _)| pattern).collect();
        match missing.len() {
            0 => Ok(()),
            count if count == patterns.len() => Err(self.lacks(server, &[self.all_keys.to_owned()])),
            _ => Err(self.lacks(server, &missing)),
        }
    }

    fn lacks(&self, server: &Server, missing: &[String]) -> Error {
        let what = format!("the user lacks {}; {} has all rights", missing.join(" "), self.page);
        let source = Cause::Remote { place: server.place().to_owned(), what };
        Error { operation: DOING.to_owned(), retryable: false, source }
    }
}

/// What servers say of a key that the user may not use.
fn denies_key(error: &str) -> bool {
    ["access one of the keys", "can't access at least one of the keys", "access a key"]
        .iter()
        .any(|part| error.contains(part))
}

/// Any other error is of the server, and says nothing about the user. What it says differs between versions.
fn denies(error: &str) -> bool {
    ["can't run this command", "no permissions to run"].iter().any(|part| error.contains(part))
}

/// A refusal for want of a right, with the right that was wanted.
pub(super) fn explain(what: &str) -> String {
    let command = what.split_once("run the '").and_then(|(_, rest)| rest.split_once('\'')).map(|it| it.0);
    match command {
        Some(command) => format!("{what}; the user lacks +{command}"),
        None if what.contains("key") => {
            format!("{what}; the user lacks ~orchestrix:*, or ~orchestrix.* for a bus")
        }
        None => what.to_owned(),
    }
}
