//! What all parts of a run share: sizes, folders and the progress that people see.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::figures::Who;
use crate::stores::Kind;

/// Between two pictures of the spinner.
const TICK: Duration = Duration::from_millis(120);

/// How a run is done.
#[derive(Debug)]
pub(crate) struct Setup {
    /// A folder on a real disk that is removed at the end.
    pub(crate) data: PathBuf,
    /// The binary whose `serve` is measured.
    pub(crate) program: PathBuf,
    pub(crate) peers: bool,
    /// Servers that engines are measured on.
    pub(crate) stores: Vec<Kind>,
    /// How long one window of load is.
    pub(crate) window: Duration,
    /// Windows per server and shape.
    pub(crate) rounds: usize,
    /// Calls of one client alone.
    pub(crate) samples: usize,
    /// Tasks of the long queue.
    pub(crate) backlog: usize,
    /// Changes of leader of each kind.
    pub(crate) handovers: usize,
    progress: ProgressBar,
}

/// How large a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) window: Duration,
    pub(crate) rounds: usize,
    pub(crate) samples: usize,
    pub(crate) backlog: usize,
    pub(crate) handovers: usize,
}

impl Setup {
    pub(crate) fn new(
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
    pub(crate) fn folder(&self, part: &str, who: Who) -> Result<PathBuf> {
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
    pub(crate) fn step(&self, what: &str) {
        self.progress.unset_length();
        if let Ok(style) = step_style() {
            self.progress.set_style(style);
        }
        self.progress.set_message(what.to_owned());
    }

    /// The step goes to a known number.
    pub(crate) fn count(&self, total: u64) {
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed_precise} {bar:30} {human_pos}/{human_len} {msg}")
        {
            self.progress.set_style(style);
        }
        self.progress.set_length(total);
        self.progress.set_position(0);
    }

    pub(crate) fn counted(&self, done: u64) {
        self.progress.set_position(done);
    }

    pub(crate) fn finish(&self) {
        self.progress.finish_and_clear();
    }
}

fn step_style() -> Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("{elapsed_precise} {spinner} {msg}")?)
}
