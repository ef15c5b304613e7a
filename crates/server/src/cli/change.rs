//! `orchestrix cancel` and `orchestrix retry`: changes many tasks, each separately.

use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use orchestrix_client::{Client, Error, TaskQuery};
use orchestrix_core::wire::Outcome;
use orchestrix_core::{Name, TaskId, TaskState};

use super::fail::{Exit, Fail};
use super::tasks::state_style;
use super::{Context, parse_id};

/// Requests at one time: enough for the coordinator to write them together.
const IN_FLIGHT: usize = 32;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix cancel 42
  orchestrix cancel 42 43 44
  orchestrix tasks --queue old --state WAITING --all --json | jq .id | xargs orchestrix cancel")]
pub(crate) struct CancelArgs {
    /// The tasks
    #[arg(required = true, value_name = "ID", value_parser = parse_id)]
    ids: Vec<TaskId>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix retry 42
  orchestrix retry --all-failed
  orchestrix retry --all-failed --queue mail")]
pub(crate) struct RetryArgs {
    /// The tasks
    #[arg(required_unless_present = "all_failed", value_name = "ID", value_parser = parse_id)]
    ids: Vec<TaskId>,
    /// All tasks that are FAILED now
    #[arg(long, conflicts_with = "ids")]
    all_failed: bool,
    /// Only those of this queue
    #[arg(long, requires = "all_failed", value_parser = Name::new)]
    queue: Option<Name>,
}

pub(crate) async fn cancel(args: CancelArgs, context: &Context) -> Result<(), Fail> {
    each(context, args.ids, |client: Client, id| async move { client.cancel(id).await }).await
}

pub(crate) async fn retry(args: RetryArgs, context: &Context) -> Result<(), Fail> {
    let of_queue = args.queue.as_ref().map(|queue| format!(" of queue {queue}")).unwrap_or_default();
    let ids = if args.all_failed { failed(context, args.queue).await? } else { args.ids };
    if ids.is_empty() {
        context.out.note(&format!("no task{of_queue} is FAILED"));
        return Ok(());
    }
    each(context, ids, |client: Client, id| async move { client.retry(id).await }).await
}

/// The tasks that are dead letters now. Listed before the first one changes, so that none is met twice.
async fn failed(context: &Context, queue: Option<Name>) -> Result<Vec<TaskId>, Fail> {
    let query = TaskQuery { queue, state: Some(TaskState::Failed), ..TaskQuery::default() };
    let mut walk = context.client.all_tasks(query);
    let mut ids = Vec::new();
    while let Some(task) = walk.next().await? {
        ids.push(task.id);
    }
    Ok(ids)
}

/// Acts on each task; one that is refused does not keep the others from it.
async fn each<F>(context: &Context, ids: Vec<TaskId>, act: impl Fn(Client, TaskId) -> F) -> Result<(), Fail>
where
    F: Future<Output = Result<Outcome, Error>> + Send + 'static,
{
    let bar = bar(ids.len());
    let mut worst = Exit::Done;
    // Answers are shown in the order of the tasks.
    let mut outcomes = stream::iter(ids).map(|id| act(context.client.clone(), id)).buffered(IN_FLIGHT);
    while let Some(outcome) = outcomes.next().await {
        bar.inc(1);
        let told = bar.suspend(|| tell(context, outcome))?;
        worst = worst.max(told);
    }
    bar.finish_and_clear();
    if worst == Exit::Done { Ok(()) } else { Err(Fail::silent(worst)) }
}

fn tell(context: &Context, outcome: Result<Outcome, Error>) -> Result<Exit, Fail> {
    let out = context.out;
    match outcome {
        Ok(outcome) if out.is_json() => out.json(&outcome)?,
        Ok(outcome) => {
            let state = out.paint(state_style(outcome.state), outcome.state.as_str());
            let asked = if outcome.cancel_requested { ", its worker is asked to stop" } else { "" };
            out.line(&format!("task {} {state}{asked}", outcome.id))?;
        }
        Err(error) => {
            let fail = Fail::from(error);
            fail.tell(out.format);
            return Ok(fail.exit);
        }
    }
    Ok(Exit::Done)
}

/// A progress bar on stderr, for many items, if stderr is a terminal.
fn bar(length: usize) -> ProgressBar {
    const HANDFUL: usize = 10;
    if length <= HANDFUL {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} tasks, {eta} left");
    ProgressBar::new(length as u64)
        .with_style(style.expect("the template of the progress bar is well formed"))
}
