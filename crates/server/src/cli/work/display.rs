//! What `orchestrix work` shows: a line when a task begins and one when it ends.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use orchestrix_client::{LeaseId, Notice, Noticed};
use orchestrix_core::{TaskState, Timestamp};
use serde_json::json;

use super::printing::Printing;
use crate::cli::out::{Out, Style, clean, escape};
use crate::cli::time::{millis, now, show_duration};

/// Shows the tasks of one worker.
#[derive(Debug)]
pub(super) struct Display {
    out: Out,
    printing: Printing,
    began: Mutex<BTreeMap<LeaseId, Instant>>,
}

/// How a line about the end of a task looks.
struct Ending {
    mark: &'static str,
    style: Style,
    word: &'static str,
    state: Option<TaskState>,
    detail: Option<String>,
}

impl Display {
    pub(super) fn new(out: Out, printing: Printing) -> Self {
        Self { out, printing, began: Mutex::default() }
    }

    pub(super) fn begin(&self, queues: &[String], concurrency: usize, url: &str) {
        let tasks = if concurrency == 1 {
            "one task at a time".to_owned()
        } else {
            format!("{concurrency} at a time")
        };
        self.printing.note(&format!("working on {} of {url}, {tasks}; stop with Ctrl-C", queues.join(", ")));
    }

    pub(super) fn notice(&self, notice: &Notice) {
        let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let line = match ending(&notice.what, now()) {
            None => {
                began.insert(notice.lease, Instant::now());
                self.line_of_beginning(notice)
            }
            Some(ending) => {
                let took =
                    began.remove(&notice.lease).map(|began| millis(began.elapsed())).unwrap_or_default();
                self.line_of_end(notice, &ending, took)
            }
        };
        self.printing.line(&line);
    }

    fn line_of_beginning(&self, notice: &Notice) -> String {
        let Notice { task, lease, queue, attempt, .. } = notice;
        if self.out.is_json() {
            let line = json!({"event": "began", "task_id": task, "lease_id": lease, "queue": queue, "attempt": attempt});
            return escape(&line.to_string());
        }
        let mark = self.out.paint(Style::Busy, "▶");
        format!("{mark} task {task} ({queue}) attempt {attempt} begins")
    }

    fn line_of_end(&self, notice: &Notice, ending: &Ending, took: u64) -> String {
        let Notice { task, lease, queue, attempt, .. } = notice;
        let Ending { mark, style, word, state, detail } = ending;
        if self.out.is_json() {
            let line = json!({
                "event": word, "task_id": task, "lease_id": lease, "queue": queue, "attempt": attempt,
                "state": state, "took_ms": took, "detail": detail,
            });
            return escape(&line.to_string());
        }
        let detail = detail.as_ref().map(|detail| format!(": {}", clean(detail))).unwrap_or_default();
        let head = self.out.paint(*style, &format!("{mark} task {task} {word}"));
        format!("{head} after {}{detail}", show_duration(took))
    }
}

/// How a notice about an end looks; none for a beginning.
fn ending(noticed: &Noticed, now: Timestamp) -> Option<Ending> {
    let ending = match noticed {
        Noticed::Began => return None,
        Noticed::Completed { state } => {
            Ending { mark: "✔", style: Style::Good, word: "completed", state: Some(*state), detail: None }
        }
        Noticed::Failed { error, state, not_before_at } => {
            let next = match (state, not_before_at) {
                (TaskState::Waiting, Some(at)) => format!(" (again in {})", show_duration(at.since(now))),
                (TaskState::Waiting, None) => " (again now)".to_owned(),
                (TaskState::Failed, _) => " (no attempts left)".to_owned(),
                (TaskState::Leased | TaskState::Completed | TaskState::Cancelled, _) => String::new(),
            };
            let word = if *state == TaskState::Cancelled { "cancelled" } else { "failed" };
            Ending {
                mark: "✘",
                style: Style::Bad,
                word,
                state: Some(*state),
                detail: Some(format!("{error}{next}")),
            }
        }
        Noticed::Released { state } => {
            Ending { mark: "↩", style: Style::Wait, word: "released", state: Some(*state), detail: None }
        }
        Noticed::Lost => {
            let detail = Some("its lease is over, another worker may have it".to_owned());
            Ending { mark: "✘", style: Style::Bad, word: "lost", state: None, detail }
        }
        Noticed::TimedOut => {
            let detail = Some("the time limit of this attempt was reached".to_owned());
            Ending { mark: "✘", style: Style::Bad, word: "timeout", state: None, detail }
        }
        Noticed::Untold { error } => {
            let detail = Some(error.to_string());
            Ending { mark: "✘", style: Style::Bad, word: "refused", state: None, detail }
        }
    };
    Some(ending)
}

#[cfg(test)]
mod tests {
    use orchestrix_core::TaskId;

    use super::*;
    use crate::cli::out::{Color, Format};

    #[test]
    fn json_has_nothing_that_a_terminal_acts_upon() {
        let out = Out::new(Format::Json, Color::Never);
        let display = Display::new(out, Printing::start(out).unwrap());
        let error = "a\u{9b}2J\u{7f}\u{202e}b".to_owned();
        let what = Noticed::Failed { error, state: TaskState::Failed, not_before_at: None };
        let ending = ending(&what, Timestamp(0)).unwrap();
        let queue = orchestrix_core::Name::new("q").unwrap();
        let notice = Notice { task: TaskId(1), lease: LeaseId(2), queue, attempt: 1, what };
        let line = display.line_of_end(&notice, &ending, 5);
        assert!(line.contains(r"a\u009b2J\u007f\u202eb"), "{line}");
    }

    #[test]
    fn a_failure_says_when_it_is_tried_again() {
        let failed =
            |state, not_before_at| Noticed::Failed { error: "exit code 3".to_owned(), state, not_before_at };
        let detail = |noticed| ending(&noticed, Timestamp(1_000)).unwrap().detail.unwrap();
        assert_eq!(detail(failed(TaskState::Waiting, Some(Timestamp(6_500)))), "exit code 3 (again in 5.5s)");
        assert_eq!(detail(failed(TaskState::Failed, None)), "exit code 3 (no attempts left)");
        assert_eq!(ending(&failed(TaskState::Cancelled, None), Timestamp(0)).unwrap().word, "cancelled");
    }
}
