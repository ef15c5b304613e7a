//! `orchestrix logs`: the output of a task.

use orchestrix_core::TaskId;
use orchestrix_core::wire::{LogLine, LogStream};

use super::fail::Fail;
use super::out::{Out, Style};
use super::{Context, parse_id};

/// Lines of one page.
const PAGE_LINES: usize = 1_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix logs 42
  orchestrix logs 42 --follow
  orchestrix logs 42 --attempt 2 --json")]
pub(crate) struct LogsArgs {
    /// The task
    #[arg(value_name = "ID", value_parser = parse_id)]
    id: TaskId,
    /// Follow new lines until the task ends
    #[arg(short, long)]
    follow: bool,
    /// Only lines of this attempt
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
}

pub(crate) async fn run(args: &LogsArgs, context: &Context) -> Result<(), Fail> {
    if args.follow {
        return follow(context, args.id, args.attempt).await;
    }
    let mut offset = 0;
    loop {
        let page = context.client.logs(args.id, args.attempt, offset, Some(PAGE_LINES)).await?;
        page.lines.iter().try_for_each(|line| write(context.out, line))?;
        if page.lines.is_empty() || page.next_offset <= offset {
            if page.dropped > 0 {
                context.out.note(&format!("{} more lines were beyond the limit and not kept", page.dropped));
            }
            return Ok(());
        }
        offset = page.next_offset;
    }
}

/// Writes lines as they come, until the task has ended.
pub(crate) async fn follow(context: &Context, task: TaskId, attempt: Option<u32>) -> Result<(), Fail> {
    let mut feed = context.client.follow_logs(task, attempt, 0);
    while let Some(line) = feed.next().await? {
        write(context.out, &line)?;
    }
    Ok(())
}

fn write(out: Out, line: &LogLine) -> Result<(), Fail> {
    if out.is_json() {
        return out.json(line);
    }
    let style = match line.stream {
        LogStream::Stdout => Style::Plain,
        LogStream::Stderr => Style::Wait,
        LogStream::System => Style::Dim,
    };
    out.foreign_line(&line.text, style)
}
