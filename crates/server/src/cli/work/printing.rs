//! What `orchestrix work` prints: lines about tasks on standard output, everything else on standard error.
//!
//! **Invariant:** nothing waits for the reader. A worker that blocks on a full pipe would lose the leases
//! of commands that run.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orchestrix_node::Counter;
use orchestrix_server::line_queue::{LineQueue, Notice};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::fail::{Exit, Fail};
use crate::cli::out::{Format, Out};

/// How long an exit waits until all that was printed is taken.
const FLUSH: Duration = Duration::from_secs(1);

/// Both ends.
#[derive(Clone, Debug)]
pub(super) struct Printing {
    stdout: LineQueue,
    stderr: LineQueue,
    out: Out,
}

impl Printing {
    pub(super) fn start(out: Out) -> Result<Self, Fail> {
        let failed = |error: io::Error| Fail::new(Exit::Refused, format!("cannot print: {error}"));
        let stdout = LineQueue::stdout(Arc::new(Counter::default()), notice(out.format)).map_err(failed)?;
        let stderr = LineQueue::stderr(Arc::new(Counter::default()), notice(out.format)).map_err(failed)?;
        Ok(Self { stdout, stderr, out })
    }

    /// Shows warnings from now on, those of a panic included, as the options for output say.
    pub(super) fn show_warnings(&self) {
        let lines = self.stderr.clone();
        let warnings = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || lines.clone())
            .without_time()
            .with_target(false)
            .log_internal_errors(false);
        let begun = match self.out.format {
            Format::People => warnings.with_ansi(self.out.notes_are_colored()).try_init(),
            Format::Json => warnings.with_ansi(false).json().flatten_event(true).try_init(),
        };
        // Other code of this process may have set one before; that one stays.
        if begun.is_ok() {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
    }

    pub(super) fn line(&self, text: &str) {
        self.stdout.push(format!("{text}\n").into_bytes());
    }

    /// What is not about a task.
    pub(super) fn note(&self, text: &str) {
        match self.out.format {
            Format::People => self.complain(text),
            Format::Json => self.complain(&json!({"level": "INFO", "message": text}).to_string()),
        }
    }

    /// Words that have their form already.
    pub(super) fn complain(&self, words: &str) {
        self.stderr.push(format!("{words}\n").into_bytes());
    }

    /// Fires when the lines about tasks have no reader any more.
    pub(super) fn unread(&self) -> CancellationToken {
        self.stdout.unread()
    }

    /// Before an exit: waits for readers, but not for one who does not read.
    pub(super) fn flush(&self) {
        let began = Instant::now();
        self.stdout.flush(FLUSH);
        self.stderr.flush(FLUSH.saturating_sub(began.elapsed()));
    }
}

/// Says how many lines are missing.
fn notice(format: Format) -> Notice {
    Box::new(move |missing| match format {
        Format::People => format!("{missing} lines were dropped here: the reader was too slow\n"),
        Format::Json => format!("{}\n", json!({"event": "dropped", "lines": missing})),
    })
}
