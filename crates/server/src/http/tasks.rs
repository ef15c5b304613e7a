//! Routes of clients: submit, read, cancel, retry.

use http::StatusCode;
use orchestrix_core::limits::{PAGE_BYTES_MAX, PAGE_MAX};
use orchestrix_core::wire::{Item, Submitted, SubmittedBatch, TaskPage, TaskSummary};
use orchestrix_core::{Command, Filter, TaskCommand, TaskId, TaskState};
use orchestrix_node::{Answer, Ask, Seen};

use crate::http::answer::{Reply, taken};
use crate::http::body::{parse, parse_nothing};
use crate::http::cursor;
use crate::http::defaults::PAGE_DEFAULT;
use crate::http::error::{Fault, item_problem};
use crate::http::handle::Call;
use crate::http::query::{Query, task_id};

pub(crate) fn submit(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Command(Command::submit(parse(&call.body)?)))
}

pub(crate) fn submitted(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    let (outcome, seen) = taken!(answer, Answer::Outcome { outcome, seen } => (outcome, seen));
    let status = match seen {
        Seen::First => StatusCode::CREATED,
        Seen::Repeat => StatusCode::OK,
    };
    Reply::json(status, &Submitted { id: outcome.id, state: outcome.state })
}

pub(crate) fn submit_batch(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::submit_batch(parse(&call.body)?)?)
}

pub(crate) fn submitted_batch(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    let outcomes = taken!(answer, Answer::Batch(outcomes) => outcomes);
    let tasks = outcomes.iter().map(|outcome| match outcome {
        Ok(outcome) => Item::Done(Submitted { id: outcome.id, state: outcome.state }),
        Err(refusal) => Item::Refused(item_problem(refusal)),
    });
    Reply::ok(&SubmittedBatch { tasks: tasks.collect() })
}

const LIST: [&str; 5] = ["queue", "state", "owner", "limit", "cursor"];

pub(crate) fn list(call: &Call<'_>) -> Result<Ask, Fault> {
    let query = call.query(&LIST)?;
    let limit = query.bounded("limit", 1, PAGE_MAX, PAGE_DEFAULT)?;
    let queue = query.name("queue")?;
    let state = query.text("state").map(task_state).transpose()?;
    let list = list_name(&query);
    let from = |text: &str| cursor::read(&list, text).ok_or_else(|| foreign_cursor(text));
    let after = query.text("cursor").map(from).transpose()?;
    Ok(Ask::Tasks { filter: Filter { queue, state }, after, limit })
}

pub(crate) fn page(call: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    let (mut tasks, next) = taken!(answer, Answer::Tasks { tasks, next } => (tasks, next));
    let query = call.query(&LIST)?;
    // Only tasks that were handed out over a bus have owners, and this node hands out none that way.
    if query.text("owner").is_some() {
        return Reply::ok(&TaskPage { tasks: Vec::new(), next_cursor: None });
    }
    let next = keep_what_fits(&mut tasks).or(next);
    let next_cursor = next.map(|after| cursor::write(&list_name(&query), after));
    Reply::ok(&TaskPage { tasks, next_cursor })
}

pub(crate) fn task(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Task(task_id(call.part)?))
}

pub(crate) fn view(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Task(task) => task))
}

pub(crate) fn explain(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    Ok(Ask::Explain(task_id(call.part)?))
}

pub(crate) fn explanation(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(taken!(&answer, Answer::Explanation(explanation) => explanation))
}

pub(crate) fn cancel(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    parse_nothing(&call.body)?;
    Ok(Ask::Command(Command::Task(TaskCommand::Cancel { task: task_id(call.part)?, actor: None })))
}

pub(crate) fn cancelled(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    let outcome = taken!(answer, Answer::Outcome { outcome, .. } => outcome);
    let status = if outcome.cancel_requested { StatusCode::ACCEPTED } else { StatusCode::OK };
    Reply::json(status, &outcome)
}

pub(crate) fn retry(call: &Call<'_>) -> Result<Ask, Fault> {
    call.no_query()?;
    parse_nothing(&call.body)?;
    Ok(Ask::Command(Command::Task(TaskCommand::Retry { task: task_id(call.part)?, actor: None })))
}

/// What became of a task.
pub(crate) fn outcome(_: &Call<'_>, answer: Answer) -> Result<Reply, Fault> {
    Reply::ok(&taken!(answer, Answer::Outcome { outcome, .. } => outcome))
}

impl<'a> Call<'a> {
    pub(crate) fn query(&self, known: &[&str]) -> Result<Query<'a>, Fault> {
        Query::parse(self.head.uri.query(), known)
    }

    pub(crate) fn no_query(&self) -> Result<(), Fault> {
        self.query(&[]).map(drop)
    }
}

fn task_state(text: &str) -> Result<TaskState, Fault> {
    let known = TaskState::ALL.map(TaskState::as_str);
    let found = TaskState::ALL.into_iter().find(|state| state.as_str() == text);
    found.ok_or_else(|| {
        Fault::Invalid(format!("parameter state is one of {}, not {text:?}", known.join(", ")))
    })
}

/// Drops what does not fit into a page, but never the first; answers after which task the next page begins then.
fn keep_what_fits(tasks: &mut Vec<TaskSummary>) -> Option<TaskId> {
    let mut bytes = 0;
    let fits = tasks.iter().take_while(|task| {
        bytes += serde_json::to_vec(task).map_or(0, |json| json.len() + 1);
        bytes <= PAGE_BYTES_MAX
    });
    let fits = fits.count().max(1);
    if fits >= tasks.len() {
        return None;
    }
    tasks.truncate(fits);
    tasks.last().map(|last| last.id)
}

/// What a list shows; a cursor leads only into the list that it came from.
fn list_name(query: &Query<'_>) -> String {
    let part = |name| query.text(name).unwrap_or_default();
    format!("queue={}&state={}&owner={}", part("queue"), part("state"), part("owner"))
}

fn foreign_cursor(text: &str) -> Fault {
    Fault::Invalid(format!("parameter cursor is {text:?}, which is not the next_cursor of this list"))
}
