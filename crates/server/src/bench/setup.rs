//! What all parts of a run share: sizes, folders and the progress that people see.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::figures::Who;
use super::stores::Kind;

/// Between two pictures of the spinner.
const TICK: Duration = Duration::from_millis(120);

/// How a run is done.
#[derive(Debug)]
pub(super) struct Setup {
    /// A folder on a real disk that is removed at the end.
    pub(super) data: PathBuf,
    /// The binary whose `serve` is measured.
    pub(super) program: PathBuf,
    pub(super) peers: bool,
    /// Servers that engines are measured on.
    pub(super) stores: Vec<Kind>,
    /// How long one window of load is.
    pub(super) window: Duration,
    /// Windows per server and shape.
    pub(super) rounds: usize,
    /// Calls of one client alone.
    pub(super) samples: usize,
    /// Tasks of the long queue.
    pub(super) backlog: usize,
    /// Changes of leader of each kind.
    pub(super) handovers: usize,
    progress: ProgressBar,
}

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) window: Duration,
    pub(super) rounds: usize,
    pub(super) samples: usize,
    pub(super) backlog: usize,
    pub(super) handovers: usize,
}

impl Setup {
    pub(super) fn new(
        data: PathBuf,
        program: PathBuf,
        peers: bool,
        stores: Vec<Kind>,
        size: Size,
    ) -> Result<Self> {
        let Size { window, rounds, samples, backlog, handovers } = size;
        // On stderr, and only on a terminal.
        let progress = ProgressBar::new_spinner();
        progress.set_style(step_style()?);
        progress.enable_steady_tick(TICK);
        Ok(Self { data, program, peers, stores, window, rounds, samples, backlog, handovers, progress })
    }

    /// An empty folder for one server in one part.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn folder(&self, part: &str, who: Who) -> Result<PathBuf> {
        let name = match who {
            Who::Orchestrix => "orchestrix",
            Who::Redis => "redis",
            Who::Beanstalkd => "beanstalkd",
            Who::Machine => "machine",
        };
        let folder = self.data.join(format!("{part}-{name}"));
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Says what is being measured now.
    pub(super) fn step(&self, what: &str) {
        self.progress.unset_length();
        if let Ok(style) = step_style() {
            self.progress.set_style(style);
        }
        self.progress.set_message(what.to_owned());
    }

    /// The step goes to a known number.
    pub(super) fn count(&self, total: u64) {
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed_precise} {bar:30} {human_pos}/{human_len} {msg}")
        {
            self.progress.set_style(style);
        }
        self.progress.set_length(total);
        self.progress.set_position(0);
    }

    pub(super) fn counted(&self, done: u64) {
        self.progress.set_position(done);
    }

    pub(super) fn finish(&self) {
        self.progress.finish_and_clear();
    }
}

fn step_style() -> Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("{elapsed_precise} {spinner} {msg}")?)
}
