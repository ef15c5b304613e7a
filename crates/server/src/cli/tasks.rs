//! `orchestrix tasks`: lists of tasks.

use clap::builder::RangedU64ValueParser;
use orchestrix_client::TaskQuery;
use orchestrix_core::limits::PAGE_MAX;
use orchestrix_core::wire::TaskSummary;
use orchestrix_core::{Name, TaskState, Timestamp};

use super::Context;
use super::fail::Fail;
use super::out::Style;
use super::table::{Align, Cell, Table};
use super::time::{now, relative};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix tasks --state FAILED
  orchestrix tasks --queue mail --limit 10
  orchestrix tasks --all --json | jq -r .id")]
pub(crate) struct TasksArgs {
    /// Only tasks of this queue
    #[arg(long, value_parser = Name::new)]
    queue: Option<Name>,
    /// Only tasks in this state
    #[arg(long, value_parser = parse_state, value_name = "WAITING|LEASED|COMPLETED|FAILED|CANCELLED")]
    state: Option<TaskState>,
    /// At most so many, lowest id first
    #[arg(long, default_value_t = 50, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    limit: usize,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub(crate) async fn run(args: TasksArgs, context: &Context) -> Result<(), Fail> {
    let limit = if args.all { usize::MAX } else { args.limit };
    let query = TaskQuery {
        queue: args.queue,
        state: args.state,
        // One more than is shown tells whether there are more.
        limit: Some(limit.saturating_add(1).min(PAGE_MAX)),
        cursor: None,
    };
    let mut walk = context.client.all_tasks(query);
    let mut shown = 0;
    let mut page = Vec::new();
    while let Some(task) = walk.next().await? {
        if shown == limit {
            write(context, &std::mem::take(&mut page))?;
            context
                .out
                .note(&format!("there are more than {limit}; see them with --all or a larger --limit"));
            return Ok(());
        }
        shown += 1;
        page.push(task);
        if page.len() == PAGE_MAX {
            write(context, &std::mem::take(&mut page))?;
        }
    }
    if shown == 0 && !context.out.is_json() {
        context.out.note("no such tasks");
    }
    write(context, &page)
}

/// Reads a state, in any case.
fn parse_state(text: &str) -> Result<TaskState, String> {
    let upper = text.to_ascii_uppercase();
    let found = TaskState::ALL.into_iter().find(|state| state.as_str() == upper);
    found.ok_or_else(|| "states are WAITING, LEASED, COMPLETED, FAILED and CANCELLED".to_owned())
}

pub(crate) fn state_style(state: TaskState) -> Style {
    match state {
        TaskState::Waiting => Style::Wait,
        TaskState::Leased => Style::Busy,
        TaskState::Completed => Style::Good,
        TaskState::Failed => Style::Bad,
        TaskState::Cancelled => Style::Dim,
    }
}

fn write(context: &Context, tasks: &[TaskSummary]) -> Result<(), Fail> {
    let out = context.out;
    if out.is_json() {
        return tasks.iter().try_for_each(|task| out.json(task));
    }
    if tasks.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("QUEUE", Align::Left),
        ("STATE", Align::Left),
        ("ATTEMPT", Align::Right),
        ("PRIORITY", Align::Right),
        ("CREATED", Align::Left),
        ("DETAIL", Align::Left),
    ]);
    let now = now();
    for task in tasks {
        table.row(vec![
            Cell::styled(task.id.to_string(), Style::Bold),
            Cell::from(&task.queue),
            Cell::styled(task.state.as_str(), state_style(task.state)),
            Cell::from(format!("{}/{}", task.attempt, task.max_attempts)),
            Cell::from(task.priority),
            Cell::from(relative(task.created_at, now)),
            Cell::from(detail(task, now)),
        ]);
    }
    out.table(&table)
}

/// The one thing that is worth knowing about a task in its state.
fn detail(task: &TaskSummary, now: Timestamp) -> String {
    if let Some(lease) = &task.lease {
        let progress = lease.progress.map(|percent| format!(" {percent}%")).unwrap_or_default();
        let note = lease.note.as_ref().map(|note| format!(" {note}")).unwrap_or_default();
        let cancel = if lease.cancel_requested { " (cancel requested)" } else { "" };
        return format!("{}{progress}{note}{cancel}", lease.worker);
    }
    let error = task.error.clone().or_else(|| task.reason.clone()).unwrap_or_default();
    match (task.state, task.not_before_at) {
        (TaskState::Waiting, Some(at)) if at > now => {
            format!("{} {error}", relative(at, now)).trim().to_owned()
        }
        (TaskState::Waiting | TaskState::Leased | TaskState::Failed | TaskState::Cancelled, _) => error,
        (TaskState::Completed, _) => task.ended_at.map(|at| relative(at, now)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_ignore_case_and_wrong_ones_get_the_list() {
        assert_eq!(parse_state("failed"), Ok(TaskState::Failed));
        assert!(parse_state("done").unwrap_err().contains("COMPLETED"));
    }
}
