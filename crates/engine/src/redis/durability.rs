//! The durability of the server, from its settings.

use super::server::{Command, Failure, Server};
use crate::{Cause, Error};

const DOING: &str = "ask Redis what it promises";

/// A setting, how it should be, and what happens otherwise.
type Wanted = (&'static str, &'static str, &'static str);

/// Why the server promises less than a journal should have, as sentences.
pub(super) fn warnings(server: &Server) -> Result<Vec<String>, Error> {
    let wanted = [
        ("appendonly", "yes", "nothing is on disk and a restart loses everything"),
        ("appendfsync", "always", "a crash of the server may lose what was acknowledged in its last second"),
        ("no-appendfsync-on-rewrite", "no", "while the server rewrites its file, nothing is synced"),
        ("maxmemory-policy", "noeviction", "a full server may drop parts of the journal"),
    ];
    warnings_of(server, &wanted)
}

/// Why the server promises less than a bus should have, as sentences.
pub(super) fn bus_warnings(server: &Server) -> Result<Vec<String>, Error> {
    let wanted = [
        ("appendonly", "yes", "a restart loses all messages, and offers are made anew"),
        ("maxmemory-policy", "noeviction", "a full server may drop whole channels"),
    ];
    warnings_of(server, &wanted)
}

fn warnings_of(server: &Server, wanted: &[Wanted]) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    let unasked = |setting: &str, what: &str| format!("Redis does not tell its {setting} ({what})");
    for (setting, good, otherwise) in wanted {
        match config(server, setting)? {
            Ok(Some(found)) if found == *good => {}
            Ok(Some(found)) => {
                warnings.push(format!("Redis has {setting} {found}, not {good}: {otherwise}"));
            }
            Ok(None) => warnings.push(unasked(setting, "it does not know it")),
            Err(what) => {
                let all: Vec<String> =
                    wanted.iter().map(|(setting, good, _)| format!("{setting} {good}")).collect();
                let what = format!("{what}; could not be checked: {}", all.join(", "));
                warnings.push(unasked("settings", &what));
                break;
            }
        }
    }
    match replication(server)? {
        Ok(info) if has(&info, "role", "slave") => {
            let what = "it is a replica; connect to its primary".to_owned();
            let source = Cause::Remote { place: server.place().to_owned(), what };
            return Err(Error { operation: "connect to Redis".to_owned(), retryable: false, source });
        }
        Ok(info) if has(&info, "connected_slaves", "0") => {}
        Ok(_) => warnings.push(
            "Redis has replicas, which lag: a failover may lose what was acknowledged. Nodes notice it"
                .to_owned(),
        ),
        Err(what) => warnings.push(unasked("role", &what)),
    }
    Ok(warnings)
}

/// A setting; or why it could not be read.
fn config(server: &Server, setting: &str) -> Result<Result<Option<String>, String>, Error> {
    let mut command = Command::new("CONFIG");
    command.arg("GET").arg(setting);
    let answer: Result<Vec<String>, String> = told(server, server.ask(&command))?;
    Ok(answer.map(|pair| pair.into_iter().nth(1)))
}

fn replication(server: &Server) -> Result<Result<String, String>, Error> {
    let mut command = Command::new("INFO");
    command.arg("replication");
    told(server, server.ask(&command))
}

/// Not to be allowed to ask is an answer, and so is a server that hides the command. Anything else is none.
fn told<T>(server: &Server, answer: Result<T, Failure>) -> Result<Result<T, String>, Error> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(Failure::Refused { code, what }) if code == "NOPERM" || what.contains("unknown command") => {
            Ok(Err(what))
        }
        Err(failure) => Err(server.error(DOING, failure)),
    }
}

fn has(info: &str, field: &str, value: &str) -> bool {
    info.lines().any(|line| line.trim_end().split_once(':') == Some((field, value)))
}
