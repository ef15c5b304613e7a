//! `orchestrix task`: one task in full.

use orchestrix_core::wire::{AttemptView, TaskView};
use orchestrix_core::{TaskId, Timestamp};

use super::fail::Fail;
use super::out::{Style, clean};
use super::table::{Align, Cell, Table};
use super::tasks::state_style;
use super::time::{now, relative, show_duration};
use super::{Context, parse_id};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix task 42
  orchestrix task 42 --json | jq .result")]
pub(crate) struct TaskArgs {
    /// The task
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: TaskId,
}

pub(crate) async fn run(args: &TaskArgs, context: &Context) -> Result<(), Fail> {
    let task = context.client.task(args.id).await?;
    if context.out.is_json() {
        return context.out.json(&task);
    }
    write(context, &task)
}

/// Shows a task to people.
fn write(context: &Context, task: &TaskView) -> Result<(), Fail> {
    let out = context.out;
    let summary = &task.summary;
    let state = out.paint(state_style(summary.state), summary.state.as_str());
    out.line(&format!("{} {} in {}  {state}", out.paint(Style::Bold, "task"), summary.id, summary.queue))?;
    for (name, value) in facts(task, now()) {
        out.line(&format!("  {} {}", out.paint(Style::Dim, &format!("{name:<9}")), clean(&value)))?;
    }
    if task.attempts.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.table(&attempts(&task.attempts))
}

/// Names and values, without those that say nothing.
fn facts(task: &TaskView, now: Timestamp) -> Vec<(&'static str, String)> {
    let summary = &task.summary;
    let moment = |at: Timestamp| relative(at, now);
    let mut facts = vec![
        ("created", moment(summary.created_at)),
        ("attempt", format!("{} of {}, round {}", summary.attempt, summary.max_attempts, summary.round)),
        ("priority", summary.priority.to_string()),
    ];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("key", summary.key.as_ref().map(ToString::to_string));
    add("waits", summary.not_before_at.filter(|at| *at > now).map(moment));
    add("expires", summary.ttl_at.map(moment));
    add("timeout", summary.timeout_ms.map(show_duration));
    if let Some(lease) = &summary.lease {
        add("worker", Some(lease.worker.to_string()));
        add("lease", Some(format!("{}, runs out {}", lease.lease_id, moment(lease.expires_at))));
        let note = lease.note.clone().unwrap_or_default();
        add("progress", lease.progress.map(|percent| format!("{percent}% {note}")));
        add("cancel", lease.cancel_requested.then(|| "requested".to_owned()));
    }
    add("ended", summary.ended_at.map(moment));
    add("reason", summary.reason.clone());
    add("error", summary.error.clone());
    add("payload", Some(task.payload.as_str().to_owned()));
    add("result", task.result.as_ref().map(|result| result.as_str().to_owned()));
    facts
}

fn attempts(attempts: &[AttemptView]) -> Table {
    let mut table = Table::new(&[
        ("ROUND", Align::Right),
        ("ATTEMPT", Align::Right),
        ("LEASE", Align::Right),
        ("WORKER", Align::Left),
        ("TOOK", Align::Right),
        ("OUTCOME", Align::Left),
        ("ERROR", Align::Left),
    ]);
    for attempt in attempts {
        let style = if attempt.outcome == "completed" { Style::Good } else { Style::Bad };
        table.row(vec![
            Cell::from(attempt.round),
            Cell::from(attempt.attempt),
            Cell::from(attempt.lease_id),
            Cell::from(&attempt.worker),
            Cell::from(show_duration(attempt.ended_at.since(attempt.started_at))),
            Cell::styled(&attempt.outcome, style),
            Cell::from(attempt.error.as_deref().unwrap_or_default()),
        ]);
    }
    table
}
