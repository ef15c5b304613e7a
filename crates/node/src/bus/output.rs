//! Where owners store the output of tasks.

use orchestrix_core::TaskId;
use orchestrix_core::wire::{LogAppend, LogAppended};
use orchestrix_engine::bus::EntryId;
use tokio::runtime::Handle;

use crate::node::Node;
use crate::request::Error;

/// Takes the lines of a message, once; waits until they are stored.
pub trait Output: Send + Sync {
    /// # Errors
    /// A refusal, or the reason why they are not stored, or perhaps not.
    fn append(
        &self,
        task: TaskId,
        attempt: u32,
        body: LogAppend,
        entry: EntryId,
    ) -> Result<LogAppended, Error>;
}

/// The output of a node that decides alone.
#[derive(Debug)]
pub struct OutputOf {
    pub node: Node,
    pub runtime: Handle,
}

impl Output for OutputOf {
    fn append(
        &self,
        task: TaskId,
        attempt: u32,
        body: LogAppend,
        entry: EntryId,
    ) -> Result<LogAppended, Error> {
        self.runtime.block_on(self.node.logs.append_once(task, attempt, body, Some(entry.into())))
    }
}
