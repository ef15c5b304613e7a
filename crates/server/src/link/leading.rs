//! The leader's end of one link: asks of a follower's callers, decided here.
//!
//! **Invariant:** what is kept for a follower that takes its answers slowly is bounded, for each caller, each link and in all.
//! Such a link is not read, and reads that find no room are refused. Only a link that takes nothing for too long, or has too
//! much of what cannot be refused, is ended.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_core::{Position, Refusal};
use orchestrix_node::link::{Answerer, AskId, Asked, HELLO_WITHIN, Hello, Question, Reply};
use orchestrix_node::{Ask, Caller, Error, OnTaken, ShardAsk};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::coordinator::LEADER_WAIT;
use crate::http::{App, Fault, Held, SHORT_BYTES_MAX, Unsent};
use crate::link::{Counted, GO_BYTES, Output};

/// How long the follower may wait to hear that an ask was taken. Its window has room for much more than comes in this time.
const TAKEN_WITHIN: Duration = Duration::from_millis(5);

/// Serves a follower until one of the two goes, or the follower's token ends.
pub(crate) async fn serve(io: impl AsyncRead + AsyncWrite, app: Arc<App>, ended: CancellationToken) {
    let _counted = Counted::one(&app.links.taken);
    let served = tokio::select! {
        served = Leading::new(&app).run(io) => served,
        () = ended.cancelled() => Err("the token of the node is no longer valid".to_owned()),
    };
    if let Err(why) = served {
        tracing::debug!(why, "a node link was lost");
    }
}

struct Leading<'a> {
    app: &'a Arc<App>,
    start: Instant,
    hello: Hello,
    answerer: Answerer<Held>,
    /// Every ask that is being decided, and how to withdraw it.
    open: HashMap<AskId, AbortHandle>,
    /// The loop says here which asks it has taken.
    taken: mpsc::UnboundedSender<AskId>,
    kept: Kept<'a>,
}

/// What came of an ask, and under which name its answer counts.
struct Decided {
    ask: AskId,
    reply: Reply,
    caller: Caller,
    changes_nothing: bool,
}

/// Bytes of answers of one link that wait to be sent, among those of all links.
struct Kept<'a> {
    app: &'a App,
    bytes: usize,
}

impl Kept<'_> {
    /// Bytes of one link at which it is ended: half of what all may have.
    fn link_max(&self) -> usize {
        self.app.limits.unsent_bytes / 2
    }

    /// Bytes of one link at which no more asks are read.
    fn read_max(&self) -> usize {
        self.link_max() / 16
    }

    fn set(&mut self, bytes: usize) {
        // Adds what is more, and takes off what is less.
        let difference = (bytes as u64).wrapping_sub(self.bytes as u64);
        self.app.links.unsent_bytes.fetch_add(difference, Relaxed);
        self.bytes = bytes;
    }

    /// Makes room for the answer to a read: it is refused, so that the link does not end for all.
    fn hold_read(&self, client: String, bytes: usize) -> Result<Option<Held>, Fault> {
        let all = usize::try_from(self.app.links.unsent_bytes.load(Relaxed)).unwrap_or(usize::MAX);
        if !has_room((self.bytes, self.link_max()), (all, self.app.limits.unsent_bytes), bytes) {
            return Err(Fault::Node(Error::Overloaded));
        }
        let is_long = bytes > SHORT_BYTES_MAX;
        is_long.then(|| Unsent::hold(&self.app.unsent, client, bytes)).transpose()
    }

    fn is_much(&self) -> bool {
        self.bytes > self.read_max()
    }

    /// Whether this link has more than it may have. Where all links together have too much, those are ended that have
    /// much.
    fn is_too_much(&self) -> bool {
        let all = self.app.links.unsent_bytes.load(Relaxed);
        self.bytes > self.link_max() || self.is_much() && all > self.app.limits.unsent_bytes as u64
    }
}

/// Whether more bytes fit beside those of a link, and of all links. One answer alone always does.
fn has_room(link: (usize, usize), all: (usize, usize), bytes: usize) -> bool {
    let fits = |(kept, max): (usize, usize)| kept.saturating_add(bytes) <= max;
    link.0 == 0 || fits(link) && fits(all)
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl<'a> Leading<'a> {
    fn new(app: &'a Arc<App>) -> Self {
        let (hello, start) = (app.hello(), Instant::now());
        let answerer = Answerer::new(hello.clone(), start.elapsed());
        let (taken, _) = mpsc::unbounded_channel();
        Self { app, start, hello, answerer, open: HashMap::new(), taken, kept: Kept { app, bytes: 0 } }
    }

    async fn run(mut self, io: impl AsyncRead + AsyncWrite) -> Result<(), String> {
        let (mut from, mut to) = tokio::io::split(io);
        let mut output = Output::new();
        let served = self.pass(&mut from, &mut to, &mut output).await;
        // A follower that is refused hears why: it reads our versions, and whether we have tokens.
        output.flush(&mut to, HELLO_WITHIN).await;
        served
    }

    async fn pass(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        output: &mut Output,
    ) -> Result<(), String> {
        let mut input = Vec::with_capacity(GO_BYTES);
        let mut deciding = FuturesUnordered::new();
        let (told, mut taken) = mpsc::unbounded_channel();
        self.taken = told;
        let (mut stop, mut stops) = (pin!(self.app.stop.cancelled()), false);
        let mut alarm = pin!(sleep_until(self.start));
        let write_timeout = self.app.limits.write_timeout;
        let mut taken_due = None;
        loop {
            for is_last in [false, true] {
                while let Some(Some(decided)) = deciding.next().now_or_never() {
                    self.decided(decided);
                }
                if is_last || self.answerer.unsent() == 0 || !output.is_empty() || deciding.is_empty() {
                    break;
                }
                // Answers of one commit group become ready one by one: those of a moment share a write.
                tokio::task::yield_now().await;
            }
            // `taken` goes with an answer, or when none comes for a while.
            if self.answerer.unsent() > 0 || taken_due.is_some_and(|due| due <= Instant::now()) {
                while let Ok(ask) = taken.try_recv() {
                    self.answerer.taken(ask);
                }
                taken_due = None;
            }
            if taken_due.is_none() && self.answerer.untaken() > 0 {
                taken_due = Some(Instant::now() + TAKEN_WITHIN);
            }
            output.refill(|bytes, enough| self.answerer.send(bytes, enough));
            self.check_kept(output.is_stuck(write_timeout))?;
            if self.answerer.is_done() && output.is_empty() {
                return Ok(());
            }
            // A follower that does not read its answers sends no more asks. It is alive as long as it reads some.
            let reads = !self.kept.is_much();
            let silent_at = reads.then(|| self.start + self.answerer.next_due());
            let dues = [silent_at, output.stuck_at(write_timeout), taken_due];
            let due = dues.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + write_timeout);
            if alarm.deadline() != due {
                alarm.as_mut().reset(due);
            }
            tokio::select! {
                Some(decided) = deciding.next() => self.decided(decided),
                written = output.write(to), if !output.is_empty() => {
                    written.map_err(|error| error.to_string())?;
                }
                read = from.read_buf(&mut input), if reads => {
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Ok(());
                    }
                    for decides in self.received(&input)? {
                        deciding.push(decides);
                    }
                    input.clear();
                }
                () = &mut stop, if !stops => {
                    stops = true;
                    self.answerer.go_away();
                }
                () = &mut alarm => {
                    if reads {
                        // Does nothing before its own time.
                        self.answerer.tick(self.start.elapsed()).map_err(|broken| broken.to_string())?;
                    }
                }
            }
        }
    }

    fn check_kept(&mut self, is_stuck: bool) -> Result<(), String> {
        self.kept.set(self.answerer.unsent_bytes());
        // One answer alone is sent, however long it is.
        if is_stuck || self.kept.is_too_much() && self.answerer.unsent() > 1 {
            self.app.links.slow.add(1);
            let (bytes, node) = (self.kept.bytes, self.answerer.node().unwrap_or_default());
            tracing::warn!(node, bytes, "a follower does not take its answers; its link is ended");
            return Err("the follower does not take its answers".to_owned());
        }
        Ok(())
    }

    /// Takes what came, and answers what is to be decided.
    fn received(&mut self, bytes: &[u8]) -> Result<Vec<impl Future<Output = Decided> + use<>>, String> {
        let (mut asked, mut deciding) = (Vec::new(), Vec::new());
        let received = self.answerer.receive(bytes, self.start.elapsed(), &mut asked);
        received.map_err(|broken| broken.to_string())?;
        for asked in asked {
            match asked {
                Asked::Ready(theirs) => self.compare(&theirs)?,
                Asked::Ask(ask, question) => {
                    self.app.links.asks_taken.add(1);
                    let (withdraw, withdrawn) = AbortHandle::new_pair();
                    self.open.insert(ask, withdraw);
                    let (told, caller) = (self.taken.clone(), question.caller.clone());
                    let changes_nothing = question.ask.changes_nothing();
                    let on_taken: OnTaken = Box::new(move || {
                        // The link may be gone.
                        let _ = told.send(ask);
                    });
                    let decides = caught(decide(Arc::clone(self.app), question, on_taken));
                    let decides = Abortable::new(decides, withdrawn);
                    deciding.push(async move {
                        let reply = decides.await.unwrap_or(Reply::Cancelled);
                        Decided { ask, reply, caller, changes_nothing }
                    });
                }
                Asked::Cancel(ask) => {
                    if let Some(withdraw) = self.open.get(&ask) {
                        withdraw.abort();
                    }
                }
                Asked::GiveBack(abandoned) => {
                    if let Some(node) = self.app.coordinator.decides() {
                        node.give_back(abandoned);
                    }
                }
            }
        }
        Ok(deciding)
    }

    fn compare(&self, theirs: &Hello) -> Result<(), String> {
        if self.hello.knows_other_tokens(theirs) {
            tracing::warn!(
                node = theirs.node,
                "this node and the follower have different token files; give all nodes the same"
            );
        }
        if !theirs.may_vouch_to(&self.hello) {
            return Err("the follower runs without tokens, and cannot vouch for callers".to_owned());
        }
        Ok(())
    }

    fn decided(&mut self, Decided { ask, reply, caller, changes_nothing }: Decided) {
        self.open.remove(&ask);
        // The answer is at least as new as what it tells of.
        self.answerer.reached(Position(self.app.coordinator.stats().durable.get()));
        self.kept.set(self.answerer.unsent_bytes());
        let kept = &self.kept;
        let hold = |bytes| match changes_nothing {
            true => kept.hold_read(client(&caller), bytes).map_err(refused),
            // What was decided is not refused any more: leases would be lost with their answer.
            false => Ok((bytes > SHORT_BYTES_MAX)
                .then(|| Unsent::hold_anyway(&kept.app.unsent, client(&caller), bytes))),
        };
        self.answerer.answer_holding(ask, reply, hold);
    }
}

/// A bug in one ask is its answer, and ends nothing else.
async fn caught(decides: impl Future<Output = Reply>) -> Reply {
    AssertUnwindSafe(decides).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("an ask of a follower stopped because of a bug");
        Reply::Done(Err(Error::Refused(Refusal::Internal)))
    })
}

/// What the answers of a caller are counted under.
fn client(caller: &Caller) -> String {
    match (&caller.name, caller.address) {
        (Some(name), _) => name.as_str().to_owned(),
        (None, Some(address)) => address.to_string(),
        (None, None) => String::new(),
    }
}

async fn decide(app: Arc<App>, question: Question, on_taken: OnTaken) -> Reply {
    try_decide(&app, question, on_taken).await.unwrap_or_else(refused)
}

fn refused(fault: Fault) -> Reply {
    if let Fault::RateLimited(why) = fault {
        Reply::Limited(why)
    } else if let Fault::Behind { asked, at } = fault {
        Reply::Behind { asked, at }
    } else {
        Reply::Done(Err(Error::Overloaded))
    }
}

async fn try_decide(app: &Arc<App>, question: Question, on_taken: OnTaken) -> Result<Reply, Fault> {
    let Question { caller, ask, position, request_id, within } = question;
    let late_at = within.map(|within| Instant::now() + within);
    tracing::trace!(request_id, caller = ?caller.name, "an ask came by link");
    // A name's limits hold over all links, and over HTTP.
    let _in_flight = caller.name.as_ref().map(|name| app.quotas.enter(name.as_str())).transpose()?;
    if matches!(ask, Ask::Lease(_)) {
        app.unsent.admit(&client(&caller), LEASE_PAYLOAD_BYTES_MAX)?;
    } else if matches!(&ask, Ask::Shards(ask) if matches!(**ask, ShardAsk::Service(_))) {
        app.unsent.admit(&client(&caller), PAGE_BYTES_MAX)?;
    }
    let Some(node) = app.coordinator.decides() else { return Ok(Reply::NotTaken) };
    if let Some(position) = position
        && !app.coordinator.reaches(position, LEADER_WAIT).await
    {
        return Err(Fault::Behind { asked: position.0, at: app.coordinator.stats().durable.get() });
    }
    if late_at.is_some_and(|at| at <= Instant::now()) {
        return Err(Fault::Node(Error::Overloaded));
    }
    Ok(Reply::Done(node.ask_telling(&caller, ask, Some(on_taken)).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_fit_up_to_the_limit_of_link_and_of_all() {
        assert!(has_room((60, 100), (60, 500), 40) && !has_room((60, 100), (60, 500), 41));
        assert!(has_room((60, 100), (160, 200), 40) && !has_room((60, 100), (161, 200), 40));
        assert!(has_room((0, 100), (200, 200), 101), "one alone is sent");
    }

    #[tokio::test]
    async fn a_bug_in_one_ask_is_its_answer() {
        let reply = caught(async { panic!("a bug") }).await;
        assert!(matches!(reply, Reply::Done(Err(Error::Refused(Refusal::Internal)))), "{reply:?}");
    }
}
