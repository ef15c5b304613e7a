//! Of which queue the tasks are that events name. Events of the journal name a task and not its queue, and once a task is
//! purged nobody knows it any more: so it is noted down when an event is decided or read, and kept as long as the event.

use std::sync::Arc;

use orchestrix_core::{Event, Name, Position, State};

/// The queues of the tasks that one event names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TaskQueues {
    /// It names no task.
    #[default]
    None,
    /// All its tasks are of one queue.
    One(Name),
    /// One for each of its tasks, in their order.
    Each(Arc<[Name]>),
}

impl TaskQueues {
    /// Those of an event that follows this state.
    #[must_use]
    pub fn of(state: &State, event: &Event) -> Self {
        let mut queues = state.queues_of(event);
        let Some(first) = queues.next() else { return Self::None };
        if queues.all(|queue| queue == first) {
            return Self::One(first.clone());
        }
        Self::Each(state.queues_of(event).cloned().collect())
    }

    /// That of the n-th task that the event names.
    #[must_use]
    pub fn get(&self, n: usize) -> Option<&Name> {
        match self {
            Self::None => None,
            Self::One(queue) => Some(queue),
            Self::Each(queues) => queues.get(n),
        }
    }
}

/// The queues of the events of a group. Neighbours of one queue share an entry, which holds up to the next one.
#[derive(Debug, Default)]
pub(crate) struct EventQueues(Vec<(Position, TaskQueues)>);

impl EventQueues {
    /// Notes down those of the event that follows this state.
    pub(crate) fn note(&mut self, state: &State, event: &Event) {
        if let Some((_, TaskQueues::One(last))) = self.0.last()
            && state.queues_of(event).all(|queue| queue == last)
        {
            return;
        }
        match TaskQueues::of(state, event) {
            TaskQueues::None => {}
            queues @ (TaskQueues::One(_) | TaskQueues::Each(_)) => {
                self.0.push((state.position().next(), queues));
            }
        }
    }

    /// Those of the event that stands at a position, if it names tasks.
    pub(crate) fn at(&self, position: Position) -> TaskQueues {
        let after = self.0.partition_point(|(from, _)| *from <= position);
        after.checked_sub(1).map_or(TaskQueues::None, |last| self.0[last].1.clone())
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let of_one = |(_, queues): &(Position, TaskQueues)| match queues {
            TaskQueues::None | TaskQueues::One(_) => 0,
            TaskQueues::Each(queues) => size_of_val(&**queues),
        };
        self.0.len() * size_of::<(Position, TaskQueues)>() + self.0.iter().map(of_one).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{
        Json, Purge, TaskCancelled, TaskCreated, TaskId, TaskPurged, TermStarted, Timestamp,
    };

    use super::*;

    fn created(queue: &str) -> Event {
        let created = TaskCreated {
            queue: Name::new(queue).unwrap(),
            payload: Json::null(),
            priority: 0,
            not_before: Timestamp(0),
            max_attempts: 3,
            key: None,
            timeout_ms: None,
            ttl_at: None,
            backoff: None,
        };
        created.into()
    }

    fn cancelled(task: u64) -> Event {
        let reason = orchestrix_core::CancelReason::Requested;
        TaskCancelled { task: TaskId(task), reason, actor: None }.into()
    }

    /// The queues of these events, noted as they are applied to a state.
    fn noted(events: Vec<Event>) -> EventQueues {
        let (mut noted, mut state) = (EventQueues::default(), State::new());
        for event in events {
            noted.note(&state, &event);
            state.apply(Timestamp(0), event);
        }
        noted
    }

    fn one(queue: &str) -> TaskQueues {
        TaskQueues::One(Name::new(queue).unwrap())
    }

    #[test]
    fn every_event_has_the_queue_of_its_task() {
        let term = TermStarted { epoch: 1, node: "n".to_owned(), actor: None, shard_lease_ms: None };
        let events = vec![
            term.into(),
            created("a"),
            created("b"),
            created("b"),
            cancelled(3),
            cancelled(2),
            cancelled(4),
        ];
        let queues = noted(events);
        let found: Vec<_> = (1..=7).map(|position| queues.at(Position(position))).collect();
        assert_eq!(found, [TaskQueues::None, one("a"), one("b"), one("b"), one("b"), one("a"), one("b")]);
        assert_eq!(queues.bytes(), 4 * size_of::<(Position, TaskQueues)>(), "neighbours share an entry");
    }

    #[test]
    fn an_event_of_many_tasks_has_the_queue_of_each() {
        let purge = |task| Purge { task: TaskId(task), key_until: None };
        let purged = |tasks: &[u64]| -> Event {
            TaskPurged { tasks: tasks.iter().copied().map(purge).collect(), keys_kept: None }.into()
        };
        let queues = noted(vec![
            created("a"),
            created("b"),
            created("b"),
            cancelled(1),
            cancelled(2),
            cancelled(3),
            purged(&[2, 1]),
            purged(&[3]),
        ]);
        let both = queues.at(Position(7));
        let names = [0, 1, 2].map(|n| both.get(n).map(Name::as_str));
        assert_eq!(names, [Some("b"), Some("a"), None]);
        assert_eq!(queues.at(Position(8)), one("b"), "those of the event before are not its own");
    }
}
