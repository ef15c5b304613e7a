//! The replication feed from the leader to followers: both ends of `GET /v1/cluster/batches`.
//!
//! A message is the length of a batch frame in 4 bytes, little-endian, and the frame; a length of 0 is a sign of life. What
//! comes is a hint: the member checks that it follows, and the engine is the truth.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use orchestrix_core::Position;
use orchestrix_engine::batch_frame::{BATCH_FRAME_OVERHEAD_BYTES, pack, unpack_any};
use orchestrix_engine::{BATCH_BYTES_MAX, JournalId};
use orchestrix_leadership::Candidate;
use orchestrix_node::{Batches, Member, NodeRole};

use crate::http::App;
use crate::http::accept::ConnectionPermits;
use crate::http::answer::{BYTES, Reply};
use crate::http::error::Fault;
use crate::http::forward::{address_of, replaced};
use crate::http::handle::Call;
use crate::http::streams::{self, Gone, Sink};
use crate::http::views::member;

/// Between two signs of life of a leader that has nothing to tell.
const SIGN_EVERY: Duration = Duration::from_millis(500);
/// A leader that is silent for so long is left alone for a while.
const SILENCE: Duration = Duration::from_secs(2);
/// How long it is left alone; longer when it does not know this node.
const PAUSE: Duration = Duration::from_millis(200);
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The leader's end: whole batches after a position, as long as this node leads and has kept them.
pub(crate) fn tell(call: &Call<'_>) -> Result<Reply, Fault> {
    let query = call.query(&["after"])?;
    let after = query.number("after")?.ok_or_else(|| {
        Fault::Invalid("the parameter after is missing: the position that this node has reached".to_owned())
    })?;
    let member = member(call)?.clone();
    if matches!(member.role(), NodeRole::Follows) {
        return Err(Fault::NoLeader(format!("{} does not lead", member.name())));
    }
    let (batches, journal) = (member.batches(Position(after)), member.journal_id());
    let address = ConnectionPermits::node_at(&call.app.permits, call.peer);
    streams::reply(call, BYTES, |sink| async move {
        let _address = address;
        let mut roles = member.roles();
        tokio::select! {
            told = fill(sink, batches, journal) => told,
            // The member is here, so the wait ends only when it leads no more.
            _ = roles.wait_for(|role| matches!(role, NodeRole::Follows)) => Ok(()),
        }
    })
}

async fn fill(sink: Sink, mut batches: Batches, journal: JournalId) -> Result<(), Gone> {
    sink.send(frame(&[])).await?;
    loop {
        let waited = tokio::select! {
            waited = tokio::time::timeout(SIGN_EVERY, batches.next()) => waited,
            () = sink.gone() => return Err(Gone),
        };
        match waited {
            Ok(Some(batch)) => sink.send(frame(&pack(journal, &batch))).await?,
            Ok(None) => return Ok(()),
            Err(_) => sink.send(frame(&[])).await?,
        }
    }
}

fn frame(batch: &[u8]) -> Bytes {
    let length = u32::try_from(batch.len()).expect("a batch was checked to be below its limit");
    let mut frame = BytesMut::with_capacity(4 + batch.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(batch);
    frame.freeze()
}

/// Takes a whole frame off the beginning, if there is one.
fn take_frame(read: &mut BytesMut) -> Result<Option<Bytes>, String> {
    let Some(length) = read.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > BATCH_BYTES_MAX + BATCH_FRAME_OVERHEAD_BYTES {
        return Err(format!("{length} bytes are too many for a batch"));
    }
    if read.len() < 4 + length {
        return Ok(None);
    }
    read.advance(4);
    Ok(Some(read.split_to(length).freeze()))
}

/// The other end: reads from the leader, as long as this node is a follower.
pub(crate) async fn take(app: Arc<App>) {
    let Some(member) = app.coordinator.member() else { return };
    loop {
        let taken = tokio::select! {
            taken = take_from_leader(&app, member) => taken,
            () = app.stop.cancelled() => return,
        };
        member.unheard_of_leader();
        let pause = match taken {
            Ok(()) => PAUSE,
            Err(Refused(why)) => {
                tracing::warn!(
                    why,
                    "leader rejected the replication feed; this node reads the engine instead. Give it --node-token"
                );
                REFUSED_PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The leader does not know this node.
struct Refused(String);

async fn take_from_leader(app: &App, member: &Member) -> Result<(), Refused> {
    let Some((leader, epoch)) = member.leadership().leader() else { return Ok(()) };
    if member.is_me(&leader) {
        return Ok(());
    }
    tokio::select! {
        taken = take_from(app, member, &leader) => taken.unwrap_or_else(|why| {
            tracing::debug!(leader = leader.name, why, "the replication feed ended");
            Ok(())
        }),
        () = replaced(member, epoch) => Ok(()),
    }
}

async fn take_from(app: &App, member: &Member, leader: &Candidate) -> Result<Result<(), Refused>, String> {
    let Some(address) = address_of(leader) else { return Ok(Ok(())) };
    let at = member.stats().durable.get();
    let request = Request::get(format!("{address}/v1/cluster/batches?after={at}"));
    let response = tokio::time::timeout(SILENCE, app.leader_client.ask(request)).await;
    let response = response.map_err(|_| "it does not answer".to_owned())??;
    match response.status() {
        StatusCode::OK => {}
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            return Ok(Err(Refused(format!("{} answered {status}", leader.name))));
        }
        status => return Err(format!("it answered {status}")),
    }
    hear(member, response.into_body()).await.map(Ok)
}

async fn hear(member: &Member, mut body: Incoming) -> Result<(), String> {
    let mut read = BytesMut::new();
    loop {
        let piece = tokio::time::timeout(SILENCE, body.frame()).await;
        let piece = piece.map_err(|_| "it is silent".to_owned())?;
        let Some(piece) = piece.transpose().map_err(|error| error.to_string())? else { return Ok(()) };
        if let Ok(bytes) = piece.into_data() {
            read.extend_from_slice(&bytes);
        }
        while let Some(frame) = take_frame(&mut read)? {
            if is_applied(member, &frame).await? {
                member.heard_of_leader();
            }
        }
    }
}

/// Whether this node has the batch.
async fn is_applied(member: &Member, frame: &[u8]) -> Result<bool, String> {
    if frame.is_empty() {
        return Ok(true);
    }
    let (journal, batch) = unpack_any(frame).map_err(|error| error.to_string())?;
    let last = batch.last();
    let at = member.hint(journal, batch).await.ok_or("this node does not follow")?;
    Ok(at >= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_however_they_are_cut() {
        let sent: Vec<Bytes> = [&b"one"[..], b"", b"three"].map(frame).to_vec();
        let bytes = sent.concat();
        for cut in 0..=bytes.len() {
            let (mut read, mut taken) = (BytesMut::new(), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                read.extend_from_slice(part);
                while let Some(frame) = take_frame(&mut read).unwrap() {
                    taken.push(frame);
                }
            }
            assert_eq!(taken, [&b"one"[..], b"", b"three"], "cut at {cut}");
        }
    }

    #[test]
    fn a_frame_longer_than_any_batch_is_refused_before_it_is_kept() {
        let max = u32::try_from(BATCH_BYTES_MAX + BATCH_FRAME_OVERHEAD_BYTES).unwrap();
        let mut read = BytesMut::from(&max.to_le_bytes()[..]);
        assert_eq!(take_frame(&mut read), Ok(None));
        let mut read = BytesMut::from(&(max + 1).to_le_bytes()[..]);
        assert!(take_frame(&mut read).unwrap_err().contains("too many"));
    }
}
