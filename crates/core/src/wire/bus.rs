//! Messages of the bus, channel by channel. The names of their fields are those that workers know: `JobId` is the id of a
//! task, `HistoryId` that of a lease; both are written as decimal text, which every language reads exactly.
//!
//! Unknown fields are ignored. What workers send is checked where it is used.

mod channels;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{LogStream, Object};
use crate::limits::ID_MAX;
use crate::{Json, LeaseId, Name, Position, TaskId};

pub use channels::*;

/// The longest message, in bytes: the longest payload, result or chunk of lines with its fields. Bounds memory.
pub const MESSAGE_BYTES_MAX: usize = 300 << 10;

/// Derives what every message has: JSON both ways, with the names of the bus.
macro_rules! messages {
    ($($(#[$doc:meta])* pub struct $name:ident { $($body:tt)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "PascalCase")]
        pub struct $name { $($body)* }
    )*};
}

messages! {
    /// `job.dispatch.{queue}`: a lease for the worker that takes it.
    pub struct Dispatch {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        pub queue: Name,
        pub payload: Json,
        pub attempt: u32,
        /// How long the lease lasts after a heartbeat that names it.
        pub lease_ms: u64,
    }

    /// `job.assigned`: a lease that needs an owner. The channels of a task begin with it, too.
    pub struct Assigned {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
    }

    /// `job.{jobId}.status`: what a worker says of its lease.
    pub struct JobStatus {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        pub worker_id: Name,
        pub status: Status,
        /// 0 to 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub progress: Option<u8>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub result: Option<Json>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub error: Option<String>,
        /// Whether a failed task may be tried again; true by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retry: Option<bool>,
    }

    /// `job.{jobId}.logs`: lines of output.
    pub struct JobLogs {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        pub lines: Vec<Line>,
        /// How many lines of this lease came before: what is missing becomes a marker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub offset: Option<u64>,
    }

    /// One line of output.
    pub struct Line {
        pub text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stream: Option<LogStream>,
    }

    /// `job.cancel`: a worker should stop.
    pub struct JobCancel {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        pub worker_id: Name,
        pub reason: CancelCause,
    }

    /// `job.handoff`: a lease that needs another owner.
    pub struct Handoff {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        /// The node that owned it.
        pub node_id: Name,
        /// Its owner token.
        pub owner: Position,
        pub reason: HandoffReason,
    }

    /// `job.handoff.ack.{nodeId}`: a lease has another owner now.
    pub struct HandoffAck {
        #[serde(with = "decimal")]
        pub job_id: TaskId,
        #[serde(with = "decimal")]
        pub history_id: LeaseId,
        pub new_owner: Name,
    }

    /// `worker.heartbeat`: a worker is there, and works on these leases.
    pub struct WorkerHeartbeat {
        pub worker_id: Name,
        pub queues: Vec<Name>,
        /// How many leases it takes at a time. With 0 it leaves.
        pub capacity: u32,
        #[serde(with = "decimals")]
        pub jobs: Vec<LeaseId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timestamp: Option<u64>,
    }

    /// `coordinator.heartbeat`: a node is there, and owns so many leases.
    pub struct CoordinatorHeartbeat {
        pub node_id: Name,
        pub job_count: u64,
        /// For people only: clocks of nodes are never compared.
        pub timestamp: u64,
        pub state: NodeState,
    }
}

/// What a worker says of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    Running,
    Completed,
    Failed,
    /// The worker gives it back.
    Released,
}

/// Why a worker should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelCause {
    /// Somebody asked for it.
    Requested,
    /// The lease is not the task's any more.
    Stale,
}

/// Why a lease needs another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandoffReason {
    Shutdown,
    NodeCrash,
    Rebalance,
}

/// What a node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum NodeState {
    Active,
    Draining,
}

/// Reads a message that must be an object.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn read<T: DeserializeOwned>(data: &str) -> Result<T, String> {
    serde_json::from_str(data).map(|Object(message)| message).map_err(|error| error.to_string())
}

/// Writes a message.
///
/// # Panics
/// Never: every message can be written.
pub fn write<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("a message has no maps with keys that are not text")
}

/// An id as decimal text.
mod decimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{ID_MAX, LeaseId, TaskId};

    pub(super) trait Id: Copy {
        fn number(self) -> u64;
        fn of(number: u64) -> Self;
    }

    impl Id for TaskId {
        fn number(self) -> u64 {
            self.0
        }

        fn of(number: u64) -> Self {
            Self(number)
        }
    }

    impl Id for LeaseId {
        fn number(self) -> u64 {
            self.0
        }

        fn of(number: u64) -> Self {
            Self(number)
        }
    }

    /// Without a sign or a zero in front: an id is written in one way.
    pub(super) fn parse<T: Id>(text: &str) -> Result<T, String> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        let number = text.parse().ok().filter(|number| plain && *number <= ID_MAX);
        number
            .map(T::of)
            .ok_or_else(|| format!("{text:?} is not an id: ids are text of digits, such as \"42\""))
    }

    pub(super) fn serialize<T: Id, S: Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
        id.number().to_string().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Id, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Several ids as decimal texts.
mod decimals {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{LeaseId, decimal};

    pub(super) fn serialize<S: Serializer>(ids: &[LeaseId], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(|id| id.0.to_string()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LeaseId>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| decimal::parse(text)).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// A message is written as the text, and the text is read as the message.
    #[track_caller]
    fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, text: &str) {
        assert_eq!(write(message), text);
        assert_eq!(read::<T>(text).as_ref(), Ok(message));
    }

    #[test]
    fn every_message_has_the_fields_of_its_channel() {
        let (job_id, history_id) = (TaskId(7), LeaseId(9));
        let (worker_id, node_id) = (name("py-1"), name("coord-2"));
        let dispatch = Dispatch {
            job_id,
            history_id,
            queue: name("mail"),
            payload: Json::parse(r#"{"seconds": 12345678901234567890}"#).unwrap(),
            attempt: 2,
            lease_ms: 60_000,
        };
        same(
            &dispatch,
            r#"{"JobId":"7","HistoryId":"9","Queue":"mail","Payload":{"seconds": 12345678901234567890},"Attempt":2,"LeaseMs":60000}"#,
        );
        same(&Assigned { job_id, history_id }, r#"{"JobId":"7","HistoryId":"9"}"#);
        let failed = JobStatus {
            job_id,
            history_id,
            worker_id: worker_id.clone(),
            status: Status::Failed,
            progress: Some(40),
            note: Some("half".to_owned()),
            result: None,
            error: Some("no".to_owned()),
            retry: Some(false),
        };
        same(
            &failed,
            r#"{"JobId":"7","HistoryId":"9","WorkerId":"py-1","Status":"Failed","Progress":40,"Note":"half","Error":"no","Retry":false}"#,
        );
        let lines = vec![
            Line { text: "one".to_owned(), stream: None },
            Line { text: "two".to_owned(), stream: Some(LogStream::Stderr) },
        ];
        same(
            &JobLogs { job_id, history_id, lines, offset: Some(3) },
            r#"{"JobId":"7","HistoryId":"9","Lines":[{"Text":"one"},{"Text":"two","Stream":"stderr"}],"Offset":3}"#,
        );
        let cancel =
            JobCancel { job_id, history_id, worker_id: worker_id.clone(), reason: CancelCause::Requested };
        same(&cancel, r#"{"JobId":"7","HistoryId":"9","WorkerId":"py-1","Reason":"Requested"}"#);
        let handoff = Handoff {
            job_id,
            history_id,
            node_id: node_id.clone(),
            owner: Position(5),
            reason: HandoffReason::NodeCrash,
        };
        same(&handoff, r#"{"JobId":"7","HistoryId":"9","NodeId":"coord-2","Owner":5,"Reason":"NodeCrash"}"#);
        same(
            &HandoffAck { job_id, history_id, new_owner: node_id.clone() },
            r#"{"JobId":"7","HistoryId":"9","NewOwner":"coord-2"}"#,
        );
        let heartbeat = WorkerHeartbeat {
            worker_id,
            queues: vec![name("mail")],
            capacity: 4,
            jobs: vec![LeaseId(9), LeaseId(12)],
            timestamp: None,
        };
        same(&heartbeat, r#"{"WorkerId":"py-1","Queues":["mail"],"Capacity":4,"Jobs":["9","12"]}"#);
        let heartbeat = CoordinatorHeartbeat {
            node_id,
            job_count: 50,
            timestamp: 1_700_000_000_000,
            state: NodeState::Draining,
        };
        same(
            &heartbeat,
            r#"{"NodeId":"coord-2","JobCount":50,"Timestamp":1700000000000,"State":"DRAINING"}"#,
        );
    }

    #[test]
    fn a_message_of_another_program_is_read_with_what_it_adds() {
        let status = r#"{"JobId": "7", "HistoryId": "9", "WorkerId": "py-1", "Status": "Completed", "Result": null, "Host": "a"}"#;
        let status: JobStatus = read(status).unwrap();
        assert_eq!((status.status, status.retry), (Status::Completed, None));
    }

    #[test]
    fn an_id_is_text_of_digits() {
        let of = |id: &str| read::<Assigned>(&format!(r#"{{"JobId":{id},"HistoryId":"1"}}"#));
        assert_eq!(of(&format!("\"{ID_MAX}\"")).unwrap().job_id, TaskId(ID_MAX));
        let beyond = format!("\"{}\"", ID_MAX + 1);
        for id in
            ["7", "\"\"", "\"0\"", "\"07\"", "\"+7\"", "\"-7\"", "\"7.0\"", "\" 7\"", "null", "[]", &beyond]
        {
            of(id).unwrap_err();
        }
        let why = read::<Assigned>(r#"{"JobId":"x","HistoryId":"1"}"#).unwrap_err();
        assert!(why.starts_with("\"x\" is not an id: ids are text of digits"), "{why}");
    }

    #[test]
    fn a_list_of_fields_is_no_message() {
        read::<Assigned>(r#"["7","9"]"#).unwrap_err();
        read::<Assigned>(r#"{"JobId":"7","HistoryId":"9"} {}"#).unwrap_err();
        read::<Assigned>(r#"{"JobId":"7","JobId":"8","HistoryId":"9"}"#).unwrap_err();
    }
}
