//! How a command ends when it does not do what was asked: an exit code for scripts, and one or two lines
//! for people that say what to do next.

use orchestrix_client::Error;

use super::out::{Format, note, plain};

/// The exit codes, as `--help` and the documentation list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Done = 0,
    Refused = 1,
    Usage = 2,
    Unreachable = 3,
    NotFound = 4,
    TaskFailed = 5,
    TaskCancelled = 6,
}

/// The table of exit codes at the end of `--help`.
pub(crate) const EXIT_CODES: &str = "\
EXIT CODES
  0  success
  1  refused or failed
  2  wrong usage
  3  the coordinator cannot be reached, or did not answer
  4  no such task, service or route
  5  submit --wait: the task FAILED
  6  submit --wait: the task was CANCELLED
`work` exits with 0 when a signal stops it, whatever the outcome of its tasks.";

/// A command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) exit: Exit,
    code: String,
    /// Empty if the error was already printed, or there is no reader.
    text: String,
}

impl Fail {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Done => "done",
            Exit::Refused => "refused",
            Exit::Usage => "usage",
            Exit::Unreachable => "unreachable",
            Exit::NotFound => "not_found",
            Exit::TaskFailed => "task_failed",
            Exit::TaskCancelled => "task_cancelled",
        };
        Self { exit, code: code.to_owned(), text: text.into() }
    }

    /// Ends the program without a word.
    pub(crate) fn quiet() -> Self {
        Self::silent(Exit::Done)
    }

    /// Everything has been said already.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// The same, after what was done before; silent if it is.
    pub(crate) fn about(self, done: &str) -> Self {
        let text = if self.text.is_empty() { self.text } else { format!("{done}: {}", self.text) };
        Self { text, ..self }
    }

    /// Tells people or programs, on stderr.
    pub(crate) fn tell(&self, format: Format) {
        if let Some(words) = self.words(format) {
            note(&words);
        }
    }

    /// What there is to tell.
    pub(crate) fn words(&self, format: Format) -> Option<String> {
        let words = match format {
            Format::People => format!("orchestrix: {}", self.text),
            Format::Json => serde_json::json!({"code": self.code, "detail": self.text}).to_string(),
        };
        (!self.text.is_empty()).then_some(words)
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let exit = match error.code() {
            "unreachable" | "interrupted" | "timed_out" | "foreign" => Exit::Unreachable,
            "not_found" => Exit::NotFound,
            _ => Exit::Refused,
        };
        let hint = match error.code() {
            "unauthorized" | "forbidden" => " (--token-file FILE or ORCHESTRIX_TOKEN)",
            "unreachable" => "\n  or point to another one with --url URL or ORCHESTRIX_URL",
            _ => "",
        };
        // Only what this program says itself has several lines.
        let said = match error.code() {
            "unreachable" => error.to_string(),
            _ => plain(&error.to_string()),
        };
        Self { exit, code: error.code().to_owned(), text: format!("{said}{hint}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_coordinator_is_exit_3_with_advice() {
        let client = orchestrix_client::Client::builder("http://127.0.0.1:1").retries(0).build().unwrap();
        let fail = Fail::from(client.queues().await.unwrap_err());
        assert_eq!(fail.exit, Exit::Unreachable);
        assert!(fail.text.contains("orchestrix serve") && fail.text.contains("--url"), "{}", fail.text);
    }

    #[test]
    fn every_exit_code_is_documented() {
        let all = [
            Exit::Done,
            Exit::Refused,
            Exit::Usage,
            Exit::Unreachable,
            Exit::NotFound,
            Exit::TaskFailed,
            Exit::TaskCancelled,
        ];
        for exit in all {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", exit as u8)), "{exit:?}");
        }
    }
}
