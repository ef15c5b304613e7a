//! `orchestrix submit`: submits a task, and waits for its end with `--wait`.

use std::io::Read;
use std::time::Duration;

use orchestrix_core::wire::{Backoff, Submit};
use orchestrix_core::{Json, Key, Name, TaskId, TaskState};

use super::Context;
use super::fail::{Exit, Fail};
use super::logs;
use super::out::Style;
use super::tasks::state_style;
use super::time::{millis, parse_duration};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  orchestrix submit mail '{\"to\": \"ada@example.com\"}'
  orchestrix submit mail '\"a string has quotes of its own\"'
  orchestrix submit report - < report.json
  orchestrix submit bill '{\"month\": 7}' --key bill-7 --delay 5m --max-attempts 10
  orchestrix submit build '{}' --wait && echo built")]
pub(crate) struct SubmitArgs {
    /// Queue of the task
    #[arg(value_parser = Name::new)]
    queue: Name,
    /// JSON for the worker; - reads it from stdin
    #[arg(allow_negative_numbers = true)]
    payload: String,
    /// Idempotency key: a repeat with the same key finds the first task
    #[arg(long, value_parser = Key::new)]
    key: Option<Key>,
    /// A higher priority is first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_name = "N")]
    priority: i32,
    /// Wait this long before the first attempt
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    delay: Option<Duration>,
    /// Attempts before the task is a dead letter
    #[arg(long, default_value_t = 3, value_name = "N")]
    max_attempts: u32,
    /// Longest time of one attempt; its command is stopped a moment before
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    timeout: Option<Duration>,
    /// Cancel the task when it still waits after this time
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    ttl: Option<Duration>,
    /// Wait after the first failed attempt
    #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "TIME")]
    backoff: Duration,
    /// Factor of each further wait
    #[arg(long, default_value_t = 2.0, value_name = "X")]
    backoff_factor: f64,
    /// Longest wait between two attempts
    #[arg(long, value_parser = parse_duration, default_value = "10m", value_name = "TIME")]
    backoff_max: Duration,
    /// Show the output of the task until it ends; the exit code has its outcome
    #[arg(long)]
    wait: bool,
}

pub(crate) async fn run(args: SubmitArgs, context: &Context) -> Result<(), Fail> {
    let out = context.out;
    let wait = args.wait;
    let submitted = context.client.submit(&task(args)?).await?;
    if wait {
        let followed = follow_to_the_end(context, submitted.id).await;
        return followed
            .map_err(|fail| fail.about(&format!("task {} was submitted, but not followed", submitted.id)));
    }
    if out.is_json() {
        return out.json(&submitted);
    }
    let state = out.paint(state_style(submitted.state), submitted.state.as_str());
    out.line(&format!("task {} {state}", out.paint(Style::Bold, &submitted.id.to_string())))
}

fn task(args: SubmitArgs) -> Result<Submit, Fail> {
    let text = if args.payload == "-" { read_stdin()? } else { args.payload };
    let payload = parse_payload(&text)?;
    let factor = args.backoff_factor;
    let backoff = Backoff { base_ms: millis(args.backoff), factor, max_ms: millis(args.backoff_max) };
    Ok(Submit {
        key: args.key,
        priority: args.priority,
        delay_ms: args.delay.map_or(0, millis),
        max_attempts: args.max_attempts,
        timeout_ms: args.timeout.map(millis),
        ttl_ms: args.ttl.map(millis),
        backoff,
        ..Submit::new(args.queue, payload)
    })
}

fn read_stdin() -> Result<String, Fail> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Fail::new(Exit::Usage, format!("cannot read the payload from stdin: {error}")))?;
    Ok(text)
}

fn parse_payload(text: &str) -> Result<Json, Fail> {
    if text.trim().is_empty() {
        let why = "the payload is empty; write null for none, or {\"a\": 1}";
        return Err(Fail::new(Exit::Usage, why));
    }
    Json::parse(text).map_err(|why| {
        let hint = match serde_json::to_string(text.trim()) {
            Ok(quoted) if text.len() < 60 && !text.trim_start().starts_with(['{', '[', '"']) => {
                format!("a string is written with quotes of its own: '{quoted}'")
            }
            Ok(_) | Err(_) => {
                "keep it in single quotes so that the shell leaves it alone: '{\"a\": 1}'".to_owned()
            }
        };
        Fail::new(Exit::Usage, format!("the payload is not JSON: {why}\n  {hint}"))
    })
}

/// Waits for the end of a task; its state decides about the exit code.
async fn follow_to_the_end(context: &Context, id: TaskId) -> Result<(), Fail> {
    let out = context.out;
    let task = loop {
        // Programs get the task, people what it writes, too.
        if out.is_json() {
            let mut feed = context.client.follow_logs(id, None, 0);
            while feed.next().await?.is_some() {}
        } else {
            logs::follow(context, id, None).await?;
        }
        let task = context.client.task(id).await?;
        if task.summary.state.is_terminal() {
            break task;
        }
    };
    let state = task.summary.state;
    if out.is_json() {
        out.json(&task)?;
    } else {
        let why = task.summary.error.or(task.summary.reason).map(|why| format!(": {why}"));
        out.note_in_parts(&[
            (Style::Plain, &format!("task {id} ")),
            (state_style(state), state.as_str()),
            (Style::Plain, &why.unwrap_or_default()),
        ]);
    }
    match state {
        TaskState::Completed => Ok(()),
        TaskState::Failed => Err(Fail::silent(Exit::TaskFailed)),
        TaskState::Cancelled => Err(Fail::silent(Exit::TaskCancelled)),
        TaskState::Waiting | TaskState::Leased => unreachable!("the task has ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> String {
        let fail = parse_payload(text).unwrap_err();
        assert_eq!(fail.exit, Exit::Usage);
        format!("{fail:?}")
    }

    #[test]
    fn a_payload_that_is_no_json_is_refused_with_a_way_to_quote_it() {
        assert!(
            hint("hello").contains(r#"'\\\"hello\\\"'"#) || hint("hello").contains("hello"),
            "{}",
            hint("hello")
        );
        assert!(hint("{a:1}").contains("single quotes"));
        assert!(hint("").contains("write null"));
    }

    #[test]
    fn json_of_every_kind_is_taken() {
        for text in ["{}", "[1]", "\"hello\"", "-5", "null", " true\n"] {
            assert!(parse_payload(text).is_ok(), "{text}");
        }
    }
}
