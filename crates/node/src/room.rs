//! Which commands are accepted while the disk has little space, or an engine has none.

use orchestrix_core::{Command, TaskCommand};
use orchestrix_engine::{Room, Space};

use crate::request::{Ask, Error};

/// Bytes of an event besides payload, result or error: names and numbers.
const EVENT_BYTES: usize = 256;

/// Whether there is room for commands that are decided together, in a group that has so many bytes. New work does not get
/// what is left for the end of old work; and what ends more than fits waits at its worker, so that less can still end.
pub(crate) fn check(space: Space, group: usize, commands: &[Command]) -> Result<(), Error> {
    let Space::Short(room) = space else { return Ok(()) };
    let bytes: usize = commands.iter().map(stored_bytes).sum();
    let bytes = (group + bytes) as u64;
    if commands.iter().any(is_new_work) && (room.new_work == 0 || bytes > room.new_work) {
        return Err(Error::StorageFull);
    }
    if bytes > room.in_all && commands.iter().any(is_long) {
        return Err(Error::Overloaded);
    }
    Ok(())
}

/// What is left of the room when a group is written.
pub(crate) fn after(space: Space, bytes: usize) -> Space {
    match space {
        Space::Plenty => Space::Plenty,
        Space::Short(room) => Space::Short(Room {
            new_work: room.new_work.saturating_sub(bytes as u64),
            in_all: room.in_all.saturating_sub(bytes as u64),
            batch: room.batch,
        }),
    }
}

/// Whether a question brings new work.
pub(crate) fn has_new_work(ask: &Ask) -> bool {
    commands(ask).iter().any(is_new_work)
}

/// Whether it brings new work that cannot have been accepted before: a repeat is under a key, and has its answer in the
/// state, for which it may have to wait.
pub(crate) fn is_surely_new(ask: &Ask) -> bool {
    let keyless = |command: &Command| matches!(command, Command::Task(TaskCommand::Submit { task, .. }) if task.key.is_none());
    commands(ask).iter().any(keyless)
}

fn commands(ask: &Ask) -> &[Command] {
    match ask {
        Ask::Command(command) => std::slice::from_ref(command),
        Ask::Batch(commands) => commands,
        Ask::Heartbeat(_)
        | Ask::HeartbeatAll { .. }
        | Ask::Lease(_)
        | Ask::Attempt { .. }
        | Ask::Task(_)
        | Ask::Tasks { .. }
        | Ask::Explain(_)
        | Ask::Queues
        | Ask::Workers
        | Ask::Cluster
        | Ask::Shards(_)
        | Ask::Owner(_)
        | Ask::Dispatch(_)
        | Ask::Unknown(_) => &[],
    }
}

fn is_new_work(command: &Command) -> bool {
    matches!(command, Command::Task(TaskCommand::Submit { .. } | TaskCommand::Retry { .. }))
}

/// Whether it has something that may be long. What is short is not kept from ending.
fn is_long(command: &Command) -> bool {
    stored_bytes(command) > 2 * EVENT_BYTES
}

/// About how many bytes of the journal a command takes.
fn stored_bytes(command: &Command) -> usize {
    let Command::Task(command) = command else { return EVENT_BYTES };
    let text = match command {
        TaskCommand::Submit { task, .. } => {
            task.payload.as_str().len() + task.key.as_ref().map_or(0, |key| key.as_str().len())
        }
        TaskCommand::Complete { result, .. } => result.as_ref().map_or(0, |result| result.as_str().len()),
        TaskCommand::Fail { error, .. } => error.len(),
        TaskCommand::Lease(_)
        | TaskCommand::Offer(_)
        | TaskCommand::Start(_)
        | TaskCommand::Extend(_)
        | TaskCommand::Note { .. }
        | TaskCommand::ResumeBus { .. }
        | TaskCommand::Heartbeat { .. }
        | TaskCommand::HeartbeatAll { .. }
        | TaskCommand::Release { .. }
        | TaskCommand::Abandon { .. }
        | TaskCommand::Cancel { .. }
        | TaskCommand::Retry { .. }
        | TaskCommand::Expire { .. }
        | TaskCommand::Purge(_) => 0,
    };
    text + EVENT_BYTES
}
