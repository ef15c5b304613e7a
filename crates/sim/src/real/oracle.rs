//! Checks a restarted coordinator against every acknowledgement that it gave before.
//!
//! Acknowledged requests are there; requests without an answer are there at most once, and a repeat finds them; no task has two
//! outcomes, and none came from nowhere.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_client::{Client, TaskQuery};
use orchestrix_core::wire::{TaskSummary, TaskView};
use orchestrix_core::{LeaseId, TaskId, TaskState};

use super::ack_log::{AckEntry, AckLog, Acked};
use super::load::{check_payload, completion, output_line, task};
use super::{Checked, Tried, failed};

/// Tasks of each kind that are looked at closely after each start: the latest, which a crash is most likely to hurt.
const LOOKED_AT: usize = 20;

/// What was found beyond that all is well.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Submits without an answer that had been carried out.
    pub(crate) carried_out: u64,
    /// Submits without an answer that had left no trace.
    pub(crate) left_no_trace: u64,
    /// Completions without an answer, asked again.
    pub(crate) repeated: u64,
    pub(crate) acked: Acked,
}

impl Found {
    pub(crate) fn tell(&self, tried: &mut Tried) {
        tried.see("unknown outcomes resolved", self.carried_out + self.left_no_trace + self.repeated);
    }
}

/// Compares what there is with the acknowledgements, and finds out what is unknown. `payload` is that of all tasks.
pub(crate) async fn hold(client: &Client, ack_log: &AckLog, payload: usize) -> Checked<Found> {
    let acked = ack_log.settle()?;
    let tasks = all_tasks(client).await?;
    let by_key = by_key(&tasks)?;
    check_submits(&acked, &by_key)?;
    check_outcomes(&acked, &tasks)?;
    for id in latest(&acked.submitted_order) {
        let view = client.task(id).await.map_err(failed("look at a task"))?;
        check_request(&view, payload)?;
    }
    for id in latest(&acked.completed_order) {
        let view = client.task(id).await.map_err(failed("look at a task"))?;
        check_request(&view, payload)?;
        let lease = acked.completed[&id];
        if acked.shown.contains(&id) { check_lease(&view, lease)? } else { check_one_outcome(&view, lease)? }
    }
    for id in latest(&acked.logged_order) {
        let page = client.logs(id, None, 0, None).await.map_err(failed("read the output of a task"))?;
        let lines: Vec<&str> = page.lines.iter().map(|line| line.text.as_str()).collect();
        check_output(&acked, id, &lines)?;
    }
    resolve(client, ack_log, acked, &by_key, payload).await
}

/// The last of them, each once.
fn latest(order: &[TaskId]) -> BTreeSet<TaskId> {
    let mut latest = BTreeSet::new();
    for id in order.iter().rev() {
        if latest.len() == LOOKED_AT {
            break;
        }
        latest.insert(*id);
    }
    latest
}

/// Repeats every call without an answer; says how many had been carried out.
async fn resolve(
    client: &Client,
    ack_log: &AckLog,
    acked: Acked,
    by_key: &BTreeMap<String, TaskId>,
    payload: usize,
) -> Checked<Found> {
    let mut found = Found::default();
    for key in &acked.submits_unknown {
        let submitted = client.submit(&task(key, payload)).await.map_err(failed("repeat a submit"))?;
        match by_key.get(key) {
            Some(id) if *id != submitted.id => {
                return Err(format!("a repeat of submit {key} made task {} beside {id}", submitted.id));
            }
            Some(_) => found.carried_out += 1,
            None => found.left_no_trace += 1,
        }
        ack_log.note(&AckEntry::Submitted { key: key.clone(), task: submitted.id });
    }
    for (id, lease) in &acked.completes_unknown {
        let (task, lease) = (*id, *lease);
        match client.complete(task, &completion(lease)).await {
            Ok(_) => ack_log.note(&AckEntry::Completed { task, lease }),
            Err(error) if error.code() == "stale_lease" => {
                let view = client.task(task).await.map_err(failed("look at a task"))?;
                if outcomes(&view).contains(&lease) {
                    return Err(format!("task {task} was completed under {lease}; a repeat was refused"));
                }
                ack_log.note(&AckEntry::Stale { task, lease });
            }
            Err(error) => return Err(format!("a repeated completion of task {task} was refused: {error}")),
        }
        found.repeated += 1;
    }
    ack_log.settle()?;
    Ok(Found { acked, ..found })
}

async fn all_tasks(client: &Client) -> Checked<BTreeMap<TaskId, TaskSummary>> {
    let mut tasks = BTreeMap::new();
    let mut walk = client.all_tasks(TaskQuery { limit: Some(1_000), ..TaskQuery::default() });
    while let Some(task) = walk.next().await.map_err(failed("list tasks"))? {
        tasks.insert(task.id, task);
    }
    Ok(tasks)
}

fn by_key(tasks: &BTreeMap<TaskId, TaskSummary>) -> Checked<BTreeMap<String, TaskId>> {
    let mut by_key = BTreeMap::new();
    for task in tasks.values() {
        let key = task.key.as_ref().map(ToString::to_string);
        let key = key.ok_or_else(|| format!("task {} has lost its key", task.id))?;
        if let Some(other) = by_key.insert(key.clone(), task.id) {
            return Err(format!("key {key} has two tasks: {other} and {}", task.id));
        }
    }
    Ok(by_key)
}

fn check_submits(acked: &Acked, by_key: &BTreeMap<String, TaskId>) -> Checked {
    for (key, id) in &acked.submitted {
        let found = by_key.get(key);
        if found != Some(id) {
            return Err(format!("submit {key} was acknowledged as task {id}; there is {found:?}"));
        }
    }
    let asked = |key: &String| acked.submitted.contains_key(key) || acked.submits_unknown.contains(key);
    match by_key.keys().find(|key| !asked(key)) {
        Some(key) => Err(format!("nobody asked for the task with key {key}")),
        None => Ok(()),
    }
}

fn check_outcomes(acked: &Acked, tasks: &BTreeMap<TaskId, TaskSummary>) -> Checked {
    for (id, lease) in &acked.completed {
        let state = tasks.get(id).map(|task| task.state);
        if state != Some(TaskState::Completed) {
            return Err(format!(
                "task {id} was acknowledged as completed under {lease}; now it is {state:?}"
            ));
        }
    }
    // A report that was refused is no report.
    let reported: BTreeSet<TaskId> = acked.completes_unknown.iter().map(|(task, _)| *task).collect();
    let completed = tasks.values().filter(|task| task.state == TaskState::Completed);
    for task in completed {
        if !acked.completed.contains_key(&task.id) && !reported.contains(&task.id) {
            return Err(format!("nobody reported task {}, but it is completed", task.id));
        }
    }
    Ok(())
}

/// A task is what its key was submitted with.
fn check_request(view: &TaskView, payload: usize) -> Checked {
    let TaskSummary { id, key, .. } = &view.summary;
    check_payload(*id, &view.payload, payload)?;
    let key = key.as_ref().map(ToString::to_string).unwrap_or_default();
    if task(&key, payload).payload == view.payload {
        return Ok(());
    }
    Err(format!("task {id} has the key {key} and the payload of another one"))
}

/// What was acknowledged under a lease is there once, in order, as it was written.
fn check_output(acked: &Acked, id: TaskId, found: &[&str]) -> Checked {
    for ((_, lease), lines) in acked.logged.range((id, LeaseId(0))..=(id, LeaseId(u64::MAX))) {
        let ending = format!(" under {lease}");
        let there: Vec<&str> = found.iter().copied().filter(|line| line.ends_with(&ending)).collect();
        let expected: Vec<String> = (0..*lines).map(|n| output_line(*lease, n)).collect();
        if there != expected {
            return Err(format!("{expected:?} of task {id} were acknowledged, {there:?} are there"));
        }
    }
    Ok(())
}

/// A completed task has one attempt that completed it, under the acknowledged lease, with its result.
pub(crate) fn check_one_outcome(view: &TaskView, lease: LeaseId) -> Checked {
    check_lease(view, lease)?;
    let result = view.result.as_ref().map(|result| result.as_str().to_owned());
    if result != Some(lease.to_string()) {
        let id = view.summary.id;
        return Err(format!("task {id} was completed under {lease}; it has the result {result:?}"));
    }
    Ok(())
}

/// The same, with any result.
fn check_lease(view: &TaskView, lease: LeaseId) -> Checked {
    let ended = outcomes(view);
    if ended != [lease] {
        return Err(format!("task {} was completed under {lease}; it says {ended:?}", view.summary.id));
    }
    Ok(())
}

/// The leases under which a task was completed: never more than one.
pub(crate) fn outcomes(view: &TaskView) -> Vec<LeaseId> {
    let completed = view.attempts.iter().filter(|attempt| attempt.outcome == "completed");
    completed.map(|attempt| attempt.lease_id).collect()
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{Json, Timestamp};

    use super::*;
    use crate::real::load::name;

    fn acked(words: Vec<AckEntry>) -> Acked {
        let folder = tempfile::tempdir().unwrap();
        let ack_log = AckLog::create(folder.path().join("ack-log")).unwrap();
        words.iter().for_each(|word| ack_log.note(word));
        ack_log.settle().unwrap()
    }

    fn found(id: u64, state: TaskState) -> BTreeMap<TaskId, TaskSummary> {
        let summary = TaskSummary {
            id: TaskId(id),
            queue: name("q"),
            state,
            priority: 0,
            key: task(&format!("k{id}"), 0).key,
            attempt: 1,
            max_attempts: 3,
            round: 1,
            created_at: Timestamp(0),
            not_before_at: None,
            ttl_at: None,
            timeout_ms: None,
            lease: None,
            ended_at: None,
            reason: None,
            cancelled_by: None,
            error: None,
        };
        BTreeMap::from([(TaskId(id), summary)])
    }

    fn submitted(id: u64) -> AckEntry {
        AckEntry::Submitted { key: format!("k{id}"), task: TaskId(id) }
    }

    #[test]
    fn a_submit_that_is_lost_changed_or_from_nowhere_is_found() {
        let there = by_key(&found(2, TaskState::Waiting)).unwrap();
        assert_eq!(check_submits(&acked(vec![submitted(2)]), &there), Ok(()));
        assert_eq!(
            check_submits(&acked(vec![AckEntry::SubmitUnknown { key: "k2".to_owned() }]), &there),
            Ok(())
        );
        let lost = check_submits(&acked(vec![submitted(2), submitted(3)]), &there).unwrap_err();
        assert!(lost.contains("submit k3 was acknowledged as task 3"), "{lost}");
        let other = AckEntry::Submitted { key: "k2".to_owned(), task: TaskId(9) };
        assert!(check_submits(&acked(vec![other]), &there).is_err());
        let nobody = check_submits(&acked(vec![]), &there).unwrap_err();
        assert!(nobody.contains("nobody asked"), "{nobody}");
    }

    #[test]
    fn a_completion_that_is_lost_or_from_nowhere_is_found() {
        let completed = AckEntry::Completed { task: TaskId(2), lease: LeaseId(3) };
        let unknown = AckEntry::CompleteUnknown { task: TaskId(2), lease: LeaseId(3) };
        let (done, open) = (found(2, TaskState::Completed), found(2, TaskState::Waiting));
        assert_eq!(check_outcomes(&acked(vec![completed.clone()]), &done), Ok(()));
        assert_eq!(check_outcomes(&acked(vec![unknown.clone()]), &done), Ok(()));
        assert_eq!(check_outcomes(&acked(vec![unknown]), &open), Ok(()));
        assert!(check_outcomes(&acked(vec![completed]), &open).is_err(), "it is lost");
        assert!(check_outcomes(&acked(vec![]), &done).is_err(), "nobody reported it");
        let stale = AckEntry::Stale { task: TaskId(2), lease: LeaseId(3) };
        assert!(check_outcomes(&acked(vec![stale]), &done).is_err(), "its only report was refused");
    }

    #[test]
    fn another_payload_and_other_output_are_found() {
        let payload = task("k2", 5).payload;
        assert_eq!(check_payload(TaskId(2), &payload, 5), Ok(()));
        for other in [r#"["k2","xxxxy"]"#, r#"["k2","xxxx"]"#, r#"["k2"]"#, "1"] {
            assert!(check_payload(TaskId(2), &Json::parse(other).unwrap(), 5).is_err(), "{other}");
        }
        let acked = acked(vec![AckEntry::Logged { task: TaskId(2), lease: LeaseId(3), lines: 2 }]);
        let check = |found: &[&str]| check_output(&acked, TaskId(2), found);
        assert_eq!(check(&["line 0 under 3", "line 0 under 4", "line 1 under 3"]), Ok(()));
        assert!(check(&["line 0 under 3"]).is_err(), "one is lost");
        assert!(check(&["line 0 under 3", "line 0 under 3"]).is_err(), "one took the place of another");
        assert!(check(&["line 0 under 3", "line 1 under 3", "line 1 under 3"]).is_err(), "one is doubled");
    }
}
