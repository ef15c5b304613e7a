//! `orchestrix events`: what happens, as it does.

use orchestrix_client::FeedEvent;
use orchestrix_core::wire::events::{Gap, StreamedEvent};
use orchestrix_core::{Name, Position};
use serde_json::Value;

use super::Context;
use super::fail::Fail;
use super::journal::fields_in_words;
use super::out::{Out, Style, clean};
use super::time::{now, relative};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix events
  orchestrix events --queue mail --after 0
  orchestrix events --json | jq 'select(.type == \"TaskFailed\")'")]
pub(crate) struct EventsArgs {
    /// Begin after this position instead of now
    #[arg(long, value_name = "POSITION")]
    after: Option<u64>,
    /// Only events of tasks of this queue
    #[arg(long, value_name = "QUEUE", value_parser = Name::new)]
    queue: Option<Name>,
}

/// Writes events as they come, until somebody ends the program.
pub(crate) async fn run(args: &EventsArgs, context: &Context) -> Result<(), Fail> {
    let mut feed = context.client.events(args.after.map(Position));
    loop {
        match feed.next().await? {
            FeedEvent::Event { position, at, event } => {
                let wanted = args.queue.as_ref().is_none_or(|queue| event.queues().any(|it| it == queue));
                if wanted {
                    write(context.out, &StreamedEvent { position, at, event })?;
                }
            }
            FeedEvent::Gap { until } if context.out.is_json() => context.out.json(&Gap { until })?,
            FeedEvent::Gap { until } => {
                context.out.note(&format!("events up to position {until} are not kept any more"));
            }
        }
    }
}

fn write(out: Out, event: &StreamedEvent) -> Result<(), Fail> {
    if out.is_json() {
        return out.json(event);
    }
    let fields = serde_json::to_value(event).unwrap_or(Value::Null);
    let name = out.paint(Style::Bold, &clean(event.event.name()));
    let (position, age) = (event.position, relative(event.at, now()));
    out.line(&format!("{position:>10}  {age:>8}  {name} {}", clean(&fields_in_words(&fields))))
}
