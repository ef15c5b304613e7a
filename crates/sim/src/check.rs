//! Checks a journal and the answers to the actors against the invariants.
//!
//! [`model`] walks the journal and says whether each event may follow those before it, [`calls`] says whether each
//! answer is explained by the journal at a place between asking and answering, [`story`] finds an order of what was
//! heard of each task without the journal, [`counts`] holds numbers against it, and [`executions`] says whether two honest workers were ever at work on one task. None of them uses the rules'
//! own code: what is wrong there must not be wrong here too.

mod asked;
mod calls;
mod counts;
mod model;
mod search;
mod story;

use std::collections::BTreeMap;

use orchestrix_core::TaskId;

use crate::coverage::Coverage;
use crate::history::{Execution, History};

/// An invariant that does not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// As in the list of invariants: a letter and a number.
    pub invariant: &'static str,
    pub what: String,
}

impl Violation {
    pub(crate) fn new(invariant: &'static str, what: String) -> Self {
        Self { invariant, what }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// All that does not hold; nothing when all is well.
pub(crate) fn check(history: &History, coverage: &mut Coverage) -> Vec<Violation> {
    let mut found = Vec::new();
    match model::walk(history, coverage) {
        Ok(model) => found.extend(calls::check(history, &model)),
        Err(violation) => found.push(violation),
    }
    found.extend(asked::check(history));
    found.extend(story::check(history));
    found.extend(counts::counters(history));
    found.extend(counts::lost_leases(history));
    found.extend(executions(&history.executions));
    found
}

/// L2: workers that stop when they no longer trust their lease are never two on one task.
fn executions(executions: &[Execution]) -> Option<Violation> {
    let mut by_task: BTreeMap<TaskId, Vec<&Execution>> = BTreeMap::new();
    for execution in executions {
        by_task.entry(execution.task).or_default().push(execution);
    }
    for (task, mut of_task) in by_task {
        of_task.sort_by_key(|execution| execution.from_us);
        let mut latest: Option<&Execution> = None;
        for next in of_task {
            if let Some(before) = latest
                && next.lease != before.lease
                && next.from_us < before.to_us
            {
                let (by, first, second) = (before.to_us - next.from_us, before.lease, next.lease);
                let what =
                    format!("task {task} was executed under leases {first} and {second} at once for {by} µs");
                return Some(Violation::new("L2", what));
            }
            if latest.is_none_or(|before| next.to_us > before.to_us) {
                latest = Some(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
