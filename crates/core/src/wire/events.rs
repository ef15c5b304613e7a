//! Events as `GET /v1/events` shows them. Not those of the journal: these stay as they are when the journal changes.
//!
//! Fields and types may be added. A reader keeps what it does not know as [`Event::Unknown`].

mod parts;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use self::parts::*;
use super::Backoff;
use crate::{LeaseId, Name, OwnerToken, Position, TaskId, Timestamp};

/// Defines the types of events and the enum of them. Fields behind the semicolon may be missing.
macro_rules! public_events {
    ($(
        $(#[$doc:meta])* $name:ident {
            $($(#[$about:meta])* $field:ident: $of:ty),*
            $(; $($(#[$may_about:meta])* $may:ident: $may_of:ty),+)?
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
            pub struct $name {
                $($(#[$about])* pub $field: $of,)*
                $($(
                    $(#[$may_about])*
                    #[serde(default, skip_serializing_if = "Option::is_none")]
                    pub $may: Option<$may_of>,
                )+)?
            }
        )*

        /// What has happened.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "type")]
        #[non_exhaustive]
        pub enum Event {
            $($(#[$doc])* $name($name),)*
            /// An event that this version cannot read, as it was sent: of a type or with a value that it does not know.
            #[serde(untagged)]
            Unknown(Value),
        }

        impl Event {
            /// The types that this version knows.
            pub const TYPES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// Its type, as in the field `type`.
            #[must_use]
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                    Self::Unknown(event) => event["type"].as_str().unwrap_or_default(),
                }
            }

            fn known(event: &Value) -> Option<Self> {
                match event["type"].as_str()? {
                    $(stringify!($name) => $name::deserialize(event).ok().map(Self::$name),)*
                    _ => None,
                }
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for Event {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let kinds = utoipa::openapi::OneOfBuilder::new().description(Some("What has happened, by its `type`."));
                kinds$(.item(schema::typed::<$name>(stringify!($name))))*.into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for Event {
            fn schemas(schemas: &mut schema::Schemas) {
                $(schema::described::<$name>(schemas);)*
            }
        }
    };
}

public_events! {
    /// A node became the leader.
    TermStarted {
        epoch: u64,
        node: String;
        /// The token that asked for a change of leader.
        actor: Name,
        /// How long workers of services keep their shards in this term without a heartbeat.
        shard_lease_ms: u64
    }

    /// From here on, the journal may have records of this format.
    FormatRaised { format: u8 }

    /// Nothing happened for a while.
    Tick {}

    /// The engine lost some positions, and an operator accepted that. No id of them is given out again.
    PositionsSkipped { count: u32 }

    /// A task was accepted.
    TaskCreated {
        task: TaskId,
        queue: Name,
        priority: i32,
        /// When the task may be leased.
        not_before: Timestamp,
        max_attempts: u32;
        key: EventKey,
        timeout_ms: u64,
        /// When the task is cancelled if it still waits.
        ttl_at: Timestamp,
        backoff: Backoff
    }

    /// A worker got a task.
    LeaseGranted {
        task: TaskId,
        queue: Name,
        lease: LeaseId,
        worker: Name,
        attempt: u32,
        length_ms: u64,
        expires_at: Timestamp;
        /// When the time limit of the attempt ends it.
        timeout_at: Timestamp,
        request_id: Name
    }

    /// A worker keeps its tasks.
    LeaseExtended {
        extended: Vec<ExtendedLease>;
        /// 0 to 100.
        progress: u8,
        note: String
    }

    /// A worker gave a task back.
    LeaseReleased {
        task: TaskId,
        queue: Name,
        lease: LeaseId,
        /// Whether it counts as an attempt.
        charged: bool,
        next: NextStep;
        /// No worker had the task: the answer with the lease was not delivered, or nobody has started what was offered.
        undelivered: bool,
        /// The worker, if it has started the lease in the same moment.
        worker: Name
    }

    /// A lease ended by time.
    LeaseExpired { task: TaskId, queue: Name, lease: LeaseId, reason: ExpiryReason, next: NextStep }

    /// A worker did the task.
    TaskCompleted {
        task: TaskId,
        queue: Name,
        lease: LeaseId;
        /// The worker, if it has started the lease in the same moment.
        worker: Name
    }

    /// An attempt failed.
    TaskFailed {
        task: TaskId,
        queue: Name,
        lease: LeaseId,
        error: String,
        next: NextStep;
        /// The worker, if it has started the lease in the same moment.
        worker: Name
    }

    /// A task was cancelled.
    TaskCancelled {
        task: TaskId,
        queue: Name,
        reason: CancelReason;
        /// The token that asked for it.
        actor: Name
    }

    /// The worker of a task is asked to stop.
    CancelRequested {
        task: TaskId,
        queue: Name,
        /// When the task is cancelled even if the worker does nothing.
        cancel_at: Timestamp;
        /// The token that asked for it.
        actor: Name
    }

    /// A task was cancelled because it waited longer than its time to live.
    TaskExpired { task: TaskId, queue: Name }

    /// A failed task was retried.
    TaskRetried {
        task: TaskId,
        queue: Name;
        /// The token that asked for it.
        actor: Name
    }

    /// Ended tasks were deleted.
    TaskPurged {
        tasks: Vec<PurgedTask>;
        /// How many keys of purged tasks are kept; the oldest are forgotten.
        keys_kept: u64
    }

    /// A task is offered to workers over the bus. The lease has no worker until one starts it.
    LeaseOffered {
        task: TaskId,
        queue: Name,
        lease: LeaseId,
        attempt: u32,
        /// How long the lease lasts without a heartbeat, once it is started.
        length_ms: u64,
        /// When the offer ends.
        expires_at: Timestamp
    }

    /// Workers have started leases that were offered over the bus.
    LeasesStarted { started: Vec<StartedLease> }

    /// The bus answers again.
    BusResumed {
        /// Since when it was silent.
        silent_since: Timestamp
    }

    /// A process of a node joined the cluster. `position` is its owner token.
    NodeJoined { node: String, incarnation: String, address: String }

    /// A process of a node left the cluster. Nobody owns the leases that it owned.
    NodeLeft {
        /// Its owner token.
        node: OwnerToken,
        reason: NodeLeftReason
    }

    /// A process of a node takes no more leases, and gives away those that it owns.
    NodeDraining {
        /// Its owner token.
        node: OwnerToken
    }

    /// A node owns these leases from here on: it reads what their workers report over the bus.
    OwnersAssigned {
        /// Its owner token.
        node: OwnerToken,
        leases: Vec<LeaseId>
    }

    /// A node gave these leases away, and no other has taken them yet.
    OwnersReleased {
        /// Its owner token.
        node: OwnerToken,
        leases: Vec<LeaseId>
    }

    /// A worker joined a service.
    ShardWorkerJoined {
        service: Name,
        worker: Name;
        group: Name,
        /// The new number of shards, if the worker changed it.
        count: u32,
        /// How many shards the worker takes at most.
        capacity: u32,
        /// The number of shards that the worker asked for, if an operator has set another.
        said: u32,
        /// The token that created the service.
        by: Name
    }

    /// A worker left a service.
    ShardWorkerLeft { service: Name, worker: Name, reason: LeaveReason }

    /// The number of shards changed.
    ShardCountSet {
        service: Name,
        count: u32;
        /// The worker that changed it; without one, an operator did.
        worker: Name
    }

    /// The weights of shards changed; shards that are not named weigh 1.
    ShardWeightsSet { service: Name, weights: BTreeMap<u32, u32> }

    /// A worker released shards.
    ShardsLetGo {
        service: Name,
        worker: Name,
        shards: Vec<ShardRun>;
        /// The worker was asked to release them and did not confirm it.
        overruled: bool
    }

    /// Shards of a service were withdrawn from workers, or granted to them. `position` is the fencing token of the grants.
    ShardsMoved {
        service: Name,
        withdrawn: Vec<ShardRun>,
        granted: Vec<ShardGrant>;
        /// A worker changed its capacity.
        capacity: CapacityChange
    }
}

impl Event {
    /// The queues of the tasks that it is about: none, one, or one for each task.
    pub fn queues(&self) -> impl Iterator<Item = &Name> {
        let mut started: &[StartedLease] = &[];
        let (one, extended, purged): (Option<&Name>, &[ExtendedLease], &[PurgedTask]) = match self {
            Self::TaskCreated(TaskCreated { queue, .. })
            | Self::LeaseGranted(LeaseGranted { queue, .. })
            | Self::LeaseReleased(LeaseReleased { queue, .. })
            | Self::LeaseExpired(LeaseExpired { queue, .. })
            | Self::TaskCompleted(TaskCompleted { queue, .. })
            | Self::TaskFailed(TaskFailed { queue, .. })
            | Self::TaskCancelled(TaskCancelled { queue, .. })
            | Self::CancelRequested(CancelRequested { queue, .. })
            | Self::TaskExpired(TaskExpired { queue, .. })
            | Self::TaskRetried(TaskRetried { queue, .. }) => (Some(queue), &[], &[]),
            Self::LeaseOffered(LeaseOffered { queue, .. }) => (Some(queue), &[], &[]),
            Self::LeasesStarted(event) => {
                started = &event.started;
                (None, &[], &[])
            }
            Self::LeaseExtended(event) => (None, &event.extended, &[]),
            Self::TaskPurged(event) => (None, &[], &event.tasks),
            Self::TermStarted(_)
            | Self::FormatRaised(_)
            | Self::Tick(_)
            | Self::PositionsSkipped(_)
            | Self::BusResumed(_)
            | Self::NodeJoined(_)
            | Self::NodeLeft(_)
            | Self::NodeDraining(_)
            | Self::OwnersAssigned(_)
            | Self::OwnersReleased(_)
            | Self::ShardWorkerJoined(_)
            | Self::ShardWorkerLeft(_)
            | Self::ShardCountSet(_)
            | Self::ShardWeightsSet(_)
            | Self::ShardsLetGo(_)
            | Self::ShardsMoved(_)
            | Self::Unknown(_) => (None, &[], &[]),
        };
        let extended = extended.iter().map(|lease| &lease.queue);
        let extended = extended.chain(started.iter().map(|lease| &lease.queue));
        one.into_iter().chain(extended).chain(purged.iter().map(|task| &task.queue))
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let event = Value::deserialize(deserializer)?;
        Ok(Self::known(&event).unwrap_or(Self::Unknown(event)))
    }
}

/// One event of the stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamedEvent {
    /// Its position in the journal; the `id` of its frame.
    pub position: Position,
    pub at: Timestamp,
    #[serde(flatten)]
    pub event: Event,
}

/// Events are missing: they are older than what the node keeps in memory. A frame of the name `gap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gap {
    /// The position of the last one that is missing.
    pub until: Position,
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::ToSchema;
    use utoipa::openapi::{AllOfBuilder, ObjectBuilder, Ref, RefOr, Schema, Type};

    pub(super) type Schemas = Vec<(String, RefOr<Schema>)>;

    /// A type with the `type` that says which it is.
    pub(super) fn typed<T: ToSchema>(name: &str) -> RefOr<Schema> {
        let name = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([name]));
        let tag = ObjectBuilder::new().property("type", name).required("type");
        AllOfBuilder::new().item(Ref::from_schema_name(T::name())).item(tag).into()
    }

    pub(super) fn described<T: ToSchema>(schemas: &mut Schemas) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// Events of the journal that are not shown, and why.
    const HIDDEN: [(&str, &str); 1] = [("NoteWritten", "only tests have notes")];

    #[test]
    fn every_journal_event_is_public_or_hidden_on_purpose() {
        let journal: BTreeSet<&str> = crate::Event::NAMES.concat().into_iter().collect();
        let hidden = HIDDEN.map(|(name, _)| name);
        let known: BTreeSet<&str> = Event::TYPES.iter().copied().chain(hidden).collect();
        assert_eq!(known, journal);
        assert_eq!(known.len(), Event::TYPES.len() + hidden.len(), "none is both");
    }

    #[test]
    fn an_unknown_event_is_kept_as_it_was_sent() {
        let newer = [
            json!({"position": 7, "at": 5, "type": "MoonRose", "over": "Genoa"}),
            json!({"position": 7, "at": 5, "type": "TaskExpired", "task": "seven", "queue": "mail"}),
            json!({"position": 7, "at": 5}),
        ];
        for (sent, name) in newer.into_iter().zip(["MoonRose", "TaskExpired", ""]) {
            let read: StreamedEvent = serde_json::from_value(sent.clone()).unwrap();
            assert!(matches!(read.event, Event::Unknown(_)), "{read:?}");
            assert_eq!((read.position, read.event.name()), (Position(7), name));
            assert_eq!(serde_json::to_value(&read).unwrap(), sent);
        }
    }

    #[test]
    fn a_known_event_may_have_fields_of_later_versions() {
        let sent = json!({"position": 7, "at": 5, "type": "TaskExpired", "task": 3, "queue": "mail", "moon": "full"});
        let read: StreamedEvent = serde_json::from_value(sent).unwrap();
        let queue = Name::new("mail").unwrap();
        assert_eq!(read.event, Event::TaskExpired(TaskExpired { task: TaskId(3), queue }));
        assert_eq!(read.event.name(), "TaskExpired");
    }
}
