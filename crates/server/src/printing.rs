//! What `orchestrix serve` prints: its greeting on standard output, its log and complaints on standard error. None of it
//! waits for the reader.

use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestrix_node::Counter;
use serde_json::json;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{LogFormat, Settings};
use crate::line_queue::LineQueue;

/// How long an exit waits until all that was printed is taken.
const FLUSH: Duration = Duration::from_secs(1);

/// Both ends, and how lines look.
#[derive(Debug)]
pub(crate) struct Printing {
    stdout: LineQueue,
    stderr: LineQueue,
    format: Arc<OnceLock<LogFormat>>,
    /// Dropped lines.
    pub(crate) dropped: Arc<Counter>,
}

impl Printing {
    pub(crate) fn start() -> io::Result<Self> {
        let (dropped, format) = (Arc::new(Counter::default()), Arc::new(OnceLock::new()));
        let notice = || {
            let format = Arc::clone(&format);
            Box::new(move |missing| notice(missing, format.get().copied().unwrap_or(LogFormat::Text)))
        };
        let stdout = LineQueue::stdout(Arc::clone(&dropped), notice())?;
        let stderr = LineQueue::stderr(Arc::clone(&dropped), notice())?;
        Ok(Self { stdout, stderr, format, dropped })
    }

    /// Begins the log. One that was begun before is used on.
    pub(crate) fn start_log(&self, settings: &Settings) -> Result<(), String> {
        let filter = log_filter(&settings.log)?;
        let _ = self.format.set(settings.log_format);
        let lines = self.stderr.clone();
        let log =
            tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(move || lines.clone());
        let started = match settings.log_format {
            LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).finish().with(filter).try_init(),
            LogFormat::Json => log.json().finish().with(filter).try_init(),
        };
        if started.is_ok() {
            std::panic::set_hook(Box::new(tell_panic));
        }
        Ok(())
    }

    pub(crate) fn greet(&self, block: String) {
        self.stdout.push(block.into_bytes());
    }

    pub(crate) fn complain(&self, why: &str) {
        self.stderr.push(format!("orchestrix: {why}\n").into_bytes());
    }

    /// Before an exit: waits for readers, but not for one who does not read.
    pub(crate) fn flush(&self) {
        let took = std::time::Instant::now();
        self.stdout.flush(FLUSH);
        self.stderr.flush(FLUSH.saturating_sub(took.elapsed()));
    }
}

/// What is logged. A word that is no level would be taken for a module, and everything else be left out.
fn log_filter(text: &str) -> Result<Targets, String> {
    let unusable = |why: String| {
        format!("the log level {text:?} cannot be used: {why}; choose error, warn, info, debug or trace")
    };
    let is_known = |part: &&str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    if let Some(word) = text.split(',').find(|part| !is_known(part)) {
        return Err(unusable(format!("{word:?} is no level")));
    }
    text.parse().map_err(|error| unusable(format!("{error}")))
}

/// A thread that panics has to get on with it: what waits for it hears of it only then.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let (thread, backtrace) = (thread.name().unwrap_or("unnamed"), std::backtrace::Backtrace::capture());
    tracing::error!(thread, %backtrace, "{panic}");
}

/// Says how many lines are missing, as the log would.
fn notice(missing: u64, format: LogFormat) -> String {
    const WHAT: &str = "log lines were dropped: the reader was too slow";
    let mut at = String::new();
    // A time that cannot be written is left out.
    let _ = SystemTime.format_time(&mut Writer::new(&mut at));
    match format {
        LogFormat::Text => format!("{at}  WARN orchestrix: {WHAT} dropped={missing}\n"),
        LogFormat::Json => {
            let fields = json!({ "message": WHAT, "dropped": missing });
            let line = json!({ "timestamp": at, "level": "WARN", "fields": fields, "target": "orchestrix" });
            format!("{line}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_does_not_silence_the_log() {
        for good in ["info", "WARN", "info,orchestrix_node=debug", "orchestrix_server=trace,error", "off"] {
            assert!(log_filter(good).is_ok(), "{good}");
        }
        for wrong in ["inof", "verbose", "info,orchestrix_node", "info;debug", "loud=very=much"] {
            let why = log_filter(wrong).unwrap_err();
            assert!(why.contains(wrong) && why.contains("choose error, warn"), "{why}");
        }
    }

    #[test]
    fn a_notice_looks_like_a_line_of_the_log() {
        let text = notice(7, LogFormat::Text);
        assert!(text.contains("Z  WARN orchestrix: log lines were dropped") && text.ends_with("dropped=7\n"));
        let json: serde_json::Value = serde_json::from_str(&notice(7, LogFormat::Json)).unwrap();
        assert_eq!((&json["fields"]["dropped"], &json["level"]), (&json!(7), &json!("WARN")));
    }
}
