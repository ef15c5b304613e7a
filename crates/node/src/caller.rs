//! Who asks, and the queues that it is limited to.
//!
//! **Invariant:** a caller who is limited learns nothing of another queue that it did not name: a task of one is answered
//! as a task that is not there. The loop checks this with the decision, so it costs no second question, and nothing can
//! change in between.

use std::net::IpAddr;
use std::sync::Arc;

use orchestrix_core::{Command, Forbidden, Name, Refusal, State, TaskCommand, TaskId};

use crate::request::Ask;
use crate::shards::ShardAsk;

/// The caller, as the wire has authenticated it. By default a caller with all rights and without a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The name of its token.
    pub name: Option<Name>,
    /// The queues that it is limited to, if so.
    pub queues: Option<Arc<[Name]>>,
    /// Where it is, for the log.
    pub address: Option<IpAddr>,
}

impl Caller {
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.queues.is_some()
    }
}

impl Ask {
    /// Says who asks, where the journal keeps it.
    pub(crate) fn sign(&mut self, caller: &Caller) {
        if caller.name.is_none() {
            return;
        }
        match self {
            Self::Command(Command::Task(
                TaskCommand::Cancel { actor, .. } | TaskCommand::Retry { actor, .. },
            )) => {
                actor.clone_from(&caller.name);
            }
            Self::Shards(ask) => match &mut **ask {
                ShardAsk::Register { body, .. } => body.by.clone_from(&caller.name),
                ShardAsk::Heartbeat { body, .. } => body.by.clone_from(&caller.name),
                ShardAsk::Deregister { .. }
                | ShardAsk::Change { .. }
                | ShardAsk::Assignment { .. }
                | ShardAsk::Service(_)
                | ShardAsk::Services { .. } => {}
            },
            Self::Command(_)
            | Self::Batch(_)
            | Self::Heartbeat(_)
            | Self::HeartbeatAll { .. }
            | Self::Lease(_)
            | Self::Attempt { .. }
            | Self::Task(_)
            | Self::Tasks { .. }
            | Self::Explain(_)
            | Self::Queues
            | Self::Workers
            | Self::Cluster
            | Self::Owner(_)
            | Self::Dispatch(_)
            | Self::Unknown(_) => {}
        }
    }
}

/// Refuses what names a queue outside `own`, or concerns all queues.
pub(crate) fn check_named(ask: &Ask, own: &[Name]) -> Result<(), Refusal> {
    let everything = Err(Refusal::Forbidden(Forbidden::Everything));
    match ask {
        Ask::Command(command) => check_submit(command, own),
        Ask::Batch(commands) => commands.iter().try_for_each(|command| check_submit(command, own)),
        Ask::Lease(request) => request.queues.iter().try_for_each(|queue| check_queue(queue, own)),
        Ask::Tasks { filter, .. } => match &filter.queue {
            Some(queue) => check_queue(queue, own),
            None => Err(Refusal::Forbidden(Forbidden::AnyQueue)),
        },
        Ask::Workers | Ask::Cluster | Ask::Shards(_) | Ask::Owner(_) | Ask::Dispatch(_) | Ask::Unknown(_) => {
            everything
        }
        Ask::Heartbeat(_)
        | Ask::HeartbeatAll { .. }
        | Ask::Attempt { .. }
        | Ask::Task(_)
        | Ask::Explain(_)
        | Ask::Queues => Ok(()),
    }
}

fn check_submit(command: &Command, own: &[Name]) -> Result<(), Refusal> {
    // No other command can be requested from outside this crate.
    let foreign = Err(Refusal::Forbidden(Forbidden::Everything));
    let Command::Task(command) = command else { return foreign };
    match command {
        TaskCommand::Submit { task, .. } => check_queue(&task.queue, own),
        TaskCommand::Heartbeat { .. }
        | TaskCommand::HeartbeatAll { .. }
        | TaskCommand::Complete { .. }
        | TaskCommand::Fail { .. }
        | TaskCommand::Release { .. }
        | TaskCommand::Cancel { .. }
        | TaskCommand::Retry { .. } => Ok(()),
        TaskCommand::Lease(_)
        | TaskCommand::Offer(_)
        | TaskCommand::Start(_)
        | TaskCommand::Extend(_)
        | TaskCommand::Note { .. }
        | TaskCommand::ResumeBus { .. }
        | TaskCommand::Abandon { .. }
        | TaskCommand::Expire { .. }
        | TaskCommand::Purge(_) => foreign,
    }
}

fn check_queue(queue: &Name, own: &[Name]) -> Result<(), Refusal> {
    if own.contains(queue) {
        return Ok(());
    }
    Err(Refusal::Forbidden(Forbidden::Queue(queue.clone())))
}

/// Refuses what is outside of a caller's queues, by name or by task. Items of a batch are looked at one by one, with
/// [`check_task`].
pub(crate) fn check(state: &State, ask: &Ask, own: &[Name]) -> Result<(), Refusal> {
    check_named(ask, own)?;
    match ask {
        Ask::Command(command) | Ask::Heartbeat(command) => check_task(state, command, own),
        Ask::Attempt { task, .. } | Ask::Task(task) | Ask::Explain(task) => check_there(state, *task, own),
        Ask::Batch(_)
        | Ask::HeartbeatAll { .. }
        | Ask::Lease(_)
        | Ask::Tasks { .. }
        | Ask::Queues
        | Ask::Workers
        | Ask::Cluster
        | Ask::Shards(_)
        | Ask::Owner(_)
        | Ask::Dispatch(_)
        | Ask::Unknown(_) => Ok(()),
    }
}

/// Hides the task of a command that is in another queue.
pub(crate) fn check_task(state: &State, command: &Command, own: &[Name]) -> Result<(), Refusal> {
    let Command::Task(command) = command else { return Ok(()) };
    match command {
        TaskCommand::Heartbeat { task, .. }
        | TaskCommand::Complete { task, .. }
        | TaskCommand::Fail { task, .. }
        | TaskCommand::Release { task, .. }
        | TaskCommand::Cancel { task, .. }
        | TaskCommand::Retry { task, .. }
        | TaskCommand::Abandon { task, .. }
        | TaskCommand::Note { task, .. }
        | TaskCommand::Expire { task } => check_there(state, *task, own),
        TaskCommand::Submit { .. }
        | TaskCommand::Lease(_)
        | TaskCommand::Offer(_)
        | TaskCommand::Start(_)
        | TaskCommand::Extend(_)
        | TaskCommand::ResumeBus { .. }
        | TaskCommand::HeartbeatAll { .. }
        | TaskCommand::Purge(_) => Ok(()),
    }
}

fn check_there(state: &State, task: TaskId, own: &[Name]) -> Result<(), Refusal> {
    match state.task(task).is_some_and(|found| own.contains(&found.queue)) {
        true => Ok(()),
        false => Err(Refusal::NotFound(task)),
    }
}
