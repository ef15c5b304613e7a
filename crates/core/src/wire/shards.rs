//! Messages of shard workers and their answers. The field names are those of the ZeroMQ protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Name, Position};

/// A worker registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardRegister {
    /// How many shards the service has, as far as this worker knows. A change of it counts.
    pub max_shard_count: u32,
    /// How many shards this worker takes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The group that the service belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// Distinguishes two processes of one name; the later one wins. Required; over ZeroMQ it is the connection unless
    /// one is named.
    #[cfg_attr(feature = "openapi", schema(required = true, nullable = false))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Name>,
    /// Returned in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The token of the request; it is never part of a message.
    #[serde(skip)]
    pub by: Option<Name>,
}

/// A worker sends a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardHeartbeat {
    pub max_shard_count: u32,
    /// What it serves now.
    pub assigned_shards: Vec<u32>,
    /// The generation of its current assignment. A worker without it gets weaker guarantees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Position>,
    /// Returned in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// As in the registration. Required.
    #[cfg_attr(feature = "openapi", schema(required = true, nullable = false))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Name>,
    /// As in a registration: an unknown worker without shards registers by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The token of the request; it is never part of a message.
    #[serde(skip)]
    pub by: Option<Name>,
}

/// A worker leaves; it no longer serves any shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardDeregister {
    /// The process that leaves. Required.
    #[cfg_attr(feature = "openapi", schema(required = true, nullable = false))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Name>,
    /// Returned in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

/// What a worker should serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    pub assigned_shards: Vec<u32>,
    /// One fencing token for each shard: a later holder has a larger one.
    pub tokens: Vec<Position>,
    /// Larger than that of every assignment before.
    pub generation: Position,
    /// How long it may serve them, counted from when it sent what this answers. Missing in what answers nothing: that
    /// promises no time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lease_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Another process has its name, or its lease has expired: it must stop, and may register again when it serves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_yes(it: &bool) -> bool {
    *it
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A service, its workers and its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceView {
    pub service: Name,
    pub group: String,
    pub shard_count: u32,
    pub generation: Position,
    pub workers: Vec<ShardWorkerView>,
    pub shards: Vec<ShardView>,
    /// Where the next page of shards begins; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardWorkerView {
    pub worker: Name,
    /// Those of the page.
    pub shards: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// A number that no other worker of the service has, from its first shards on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// Milliseconds until its lease expires without a heartbeat.
    pub left_ms: u64,
    /// False if it ignores its assignments; missing otherwise.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub listens: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardView {
    pub shard: u32,
    pub worker: Option<Name>,
    pub token: Option<Position>,
    /// `HELD`, `WITHDRAWN` or `FREE`.
    pub state: String,
}

/// All services, as a summary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceList {
    pub services: Vec<ServiceSummary>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceSummary {
    pub service: Name,
    pub group: String,
    pub shard_count: u32,
    pub workers: u64,
    pub held: u64,
    pub withdrawn: u64,
    pub free: u64,
    /// Shards that a plain worker names although they are not assigned to it. Missing if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overlapping: u64,
}

/// What an operator changes of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceChange {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_count: Option<u32>,
    /// What shards weigh; those that are not named weigh 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<BTreeMap<u32, u32>>,
}
