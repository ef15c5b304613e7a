//! The node link: how a follower passes asks to the leader and takes the answers, as rules without sockets or clocks.
//!
//! [`Asker`] is the follower's end and [`Answerer`] the leader's. Bytes go in, asks and answers come out; asks and answers
//! go in, bytes come out. `docs/link.md` has the layout of the bytes.
//!
//! **Invariants:** an ask gets at most one answer. An ask that is reported as not taken was certainly not decided. A
//! lease in an answer that is not taken is given back under the position of that answer. Nothing that was received is
//! used before it has gone through a checking constructor.

mod answer_codec;
mod answerer;
mod ask_codec;
mod asker;
mod asking;
mod bus_codec;
mod codec;
mod frame;
mod hello;
mod message;
mod outbox;
mod pulse;
mod refusal_codec;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use answerer::{Answerer, Asked};
pub use asker::{Asker, Fate, Heard, NotAsked};
pub use frame::{Broken, FRAME_BYTES_MAX};
pub use hello::Hello;
pub use message::{Answered, AskId, Question, Reply};

/// The versions of the protocol that this program has.
pub const VERSIONS: (u32, u32) = (1, 1);
/// Bytes of one ask or answer. Room for the largest batch and the largest page, with what stands around their payloads.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Answers of more than one frame that are sent at one time; others wait until one has ended.
pub const LONG_ANSWERS_MAX: usize = 8;
/// Bytes of answers that a follower has received in part. Bounds its memory.
pub const PARTIAL_BYTES_MAX: usize = LONG_ANSWERS_MAX * MESSAGE_BYTES_MAX;
/// Leases in one `give back` frame. So many always fit.
const GIVE_BACK_LEASES_MAX: usize = 1_000;
/// Bytes of asks that the leader's loop has not taken yet, for each connection; a larger ask goes alone.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Asks of one connection that have no answer yet, waiting calls included. Bounds memory.
pub const ASKS_MAX: usize = 32_768;
/// How long a peer may be silent before it is asked for a sign of life.
pub const PING_AFTER: Duration = Duration::from_secs(5);
/// How long it may take for that. A leader that was frozen for less goes on where it was.
pub const PONG_WITHIN: Duration = Duration::from_secs(15);
/// How long the first frame of a peer may take.
pub const HELLO_WITHIN: Duration = Duration::from_secs(5);
