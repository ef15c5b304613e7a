//! Every limit of the rules, with its unit and its reason. A value at the limit is accepted, one more is
//! refused with a sentence that names the field.

/// Bytes of a queue, worker or request name. Bounds index keys and keeps names printable in tables.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of an idempotency key. Room for a URL or two digests.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of a payload or result, as JSON text. Larger things belong in a store, with a reference here.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Bytes of an error text of a failed attempt. Twenty of them are kept per task.
pub const ERROR_BYTES_MAX: usize = 16 << 10;
/// Bytes of a progress note.
pub const NOTE_BYTES_MAX: usize = 1 << 10;
/// Levels of arrays and objects in any JSON. Bounds the stack of its reader.
pub const JSON_DEPTH_MAX: usize = 64;
/// Largest priority, either sign.
pub const PRIORITY_MAX: i32 = 1_000_000;
/// Attempts per round. Bounds what a poison task can cost.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Attempts that a task remembers. Bounds its memory.
pub const ATTEMPTS_KEPT: usize = 20;
/// Releases per round that do not count as an attempt; the next one does, so that no task circles for ever.
pub const FREE_RELEASES: u32 = 10;
/// Milliseconds: the longest delay, ttl and backoff (366 days).
pub const DELAY_MS_MAX: u64 = 366 * 86_400_000;
/// Milliseconds: the longest execution limit of one attempt (30 days).
pub const TIMEOUT_MS_MAX: u64 = 30 * 86_400_000;
/// Milliseconds: the shortest lease. Anything shorter is over before its answer arrives.
pub const LEASE_MS_MIN: u64 = 10;
/// Milliseconds: the longest lease (24 h). Bounds how long a dead worker's task waits.
pub const LEASE_MS_MAX: u64 = 86_400_000;
/// Milliseconds that a task is offered over the bus, also after a change of leader. So long a dead bus keeps it from others.
pub const OFFER_MS: u64 = 15_000;
/// Leases that change their owner with one event. Bounds the pause of the loop.
pub const OWNED_LEASES_MAX: usize = 500;
/// Nodes that are there at one time. Bounds the state, and what a heartbeat costs.
pub const NODES_MAX: usize = 1_000;
/// Bytes of the address of a node: a host name, a port and some room.
pub const NODE_ADDRESS_BYTES_MAX: usize = 512;
/// Milliseconds: the longest long poll. Shorter than what proxies tolerate.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Largest growth of the wait from one attempt to the next.
pub const BACKOFF_FACTOR_MAX: f64 = 100.0;
/// Items of one batch call, leases of one lease call, leases of one heartbeat. Bounds the time that one
/// caller holds the decision loop.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// Bytes of payloads or results of one batch call. Bounds what is written to the journal in one go.
pub const BATCH_PAYLOAD_BYTES_MAX: usize = 32 << 20;
/// Queues named by one lease call.
pub const LEASE_QUEUES_MAX: usize = 100;
/// Queues that have tasks, at one time. Bounds the answer of `GET /v1/queues` and the labels of metrics.
pub const QUEUES_MAX: usize = 10_000;
/// Tasks of one page of a list.
pub const PAGE_MAX: usize = 1_000;
/// Bytes of one page of tasks or of output, in JSON; one item is sent however long it is. Bounds what a slow reader holds.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// Tasks looked at for one page. Bounds the pause of the loop when a filter matches little.
pub const PAGE_SCAN_MAX: usize = 20_000;
/// Delayed tasks that come into line at one go. Bounds the pause of the loop after a long silence.
pub const ADVANCE_TASKS_MAX: usize = 1_000;
/// Tasks purged by one event. Bounds the pause of the loop.
pub const PURGE_TASKS_MAX: usize = 500;
/// Keys of purged tasks that one event forgets because there are too many. Bounds the pause of the loop; more than are
/// remembered by one event, so that fewer are left each time.
pub const KEYS_FORGOTTEN_MAX: usize = 2 * PURGE_TASKS_MAX;
/// The largest id that a JSON number carries exactly.
pub const ID_MAX: u64 = (1 << 53) - 1;
/// Bytes of payload that one lease call hands out, unless a single task has more. Bounds the answer.
pub const LEASE_PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Services that have shards. Bounds the state.
pub const SERVICES_MAX: usize = 10_000;
/// Services that workers with one token make. So one token leaves space for others.
pub const SERVICES_PER_TOKEN_MAX: usize = 1_000;
/// Milliseconds that a service without workers is kept, unless an operator made it (10 minutes). To come again costs a worker
/// nothing.
pub const SERVICE_KEPT_MS: u64 = 600_000;
/// Shards of all services together. Bounds memory.
pub const SHARDS_TOTAL_MAX: usize = 1_000_000;
/// Shards granted by one event. Bounds the pause of the loop.
pub const SHARD_GRANTS_MAX: usize = 10_000;
/// Shards of one service. Bounds a round and the message to one worker.
pub const SHARDS_MAX: u32 = 100_000;
/// Workers of one service. Bounds a round, and with what they said the bytes of a service in a snapshot.
pub const SHARD_WORKERS_MAX: usize = 2_000;
/// Workers, gone ones included, whose word about the number of shards is remembered.
pub const SHARD_WORDS_MAX: usize = 2 * SHARD_WORKERS_MAX;
/// The largest weight of a shard. Sums of all stay far from the end of 64 bits.
pub const SHARD_WEIGHT_MAX: u32 = 1_000_000;
