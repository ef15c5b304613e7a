//! Where a member stores the output of tasks that it owns: straight on the engine, whoever leads.

use std::sync::Arc;

use orchestrix_core::TaskId;
use orchestrix_core::wire::{LogAppend, LogAppended};
use orchestrix_engine::bus::EntryId;
use tokio::runtime::Handle;

use super::{Member, NodeRole};
use crate::bus::Output;
use crate::logs::TaskLogs;
use crate::request::Error;

/// The output of a member, whether it leads or not.
struct OutputOfMember {
    member: Member,
    runtime: Handle,
}

impl Member {
    /// Stores the output of tasks of the bus. Must not be used on a thread of the runtime.
    #[must_use]
    pub fn output(&self, runtime: Handle) -> Arc<dyn Output> {
        Arc::new(OutputOfMember { member: self.clone(), runtime })
    }
}

impl Output for OutputOfMember {
    fn append(
        &self,
        task: TaskId,
        attempt: u32,
        body: LogAppend,
        entry: EntryId,
    ) -> Result<LogAppended, Error> {
        // A leader counts what it stores itself, and so need not count it again.
        let logs: Arc<TaskLogs> = match self.member.role() {
            NodeRole::Leads(node) => node.logs,
            NodeRole::Follows => Arc::clone(&self.member.inner.output),
        };
        self.runtime.block_on(logs.append_once(task, attempt, body, Some(entry.into())))
    }
}
