//! The follower's end: a few connections to the leader, kept as long as it leads. `passing` is the task of one of them.
//!
//! **Invariant:** every ask ends: with the leader's answer, or with what is known of it when its connection ends or another
//! node leads. Callers wait for nothing else.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orchestrix_leadership::Candidate;
use orchestrix_node::link::{Answered, Question};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::{App, address_of, replaced};
use crate::link::Counted;
use crate::link::passing::connect;

/// Connections to one leader. Few, so that many asks share a packet and a wake-up.
const CONNECTIONS: usize = 2;
/// Between two attempts to connect.
const BACKOFF: Duration = Duration::from_millis(200);
/// How long a leader without link is reached by HTTP before it is asked again.
const WITHOUT_LINK: Duration = Duration::from_secs(30);

/// What became of an ask that was sent to the leader.
#[derive(Debug)]
pub(crate) enum Sent {
    Answered(Box<Answered>),
    /// Certainly not decided.
    NotTaken,
    /// The connection has no room for it; nothing was sent.
    Full(Box<Question>),
    /// No connection has room for it, or there was none in time; nothing was sent.
    Overloaded,
    /// The leader has answered, and this node cannot read it.
    Unreadable,
    Unknown,
    /// The leader does not have the link; nothing was sent.
    NoLink,
}

/// The connections of this node to the leader.
#[derive(Debug, Default)]
pub(crate) struct Links {
    to: Mutex<Option<Arc<Leader>>>,
    asks: AtomicU64,
}

/// The connections to one leader of one epoch.
#[derive(Debug)]
pub(super) struct Leader {
    pub(super) address: String,
    epoch: u64,
    slots: [Mutex<Slot>; CONNECTIONS],
    next: AtomicUsize,
    /// It has no link until then.
    without: Mutex<Option<Instant>>,
    /// Another node leads, or this one stops.
    pub(super) over: CancellationToken,
}

#[derive(Debug, Default)]
struct Slot {
    to: Option<mpsc::UnboundedSender<Message>>,
    /// Not connected again before then.
    again: Option<Instant>,
}

/// What callers say to the task of a connection.
#[derive(Debug)]
pub(super) enum Message {
    Ask(u64, Box<Question>, oneshot::Sender<Sent>),
    Cancel(u64),
    /// An answer that came and that its caller did not take.
    GiveBack(Box<Answered>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Links {
    /// Asks the leader. A caller who drops the future withdraws the ask, and gives back what it got.
    pub(crate) async fn ask(
        &self,
        app: &Arc<App>,
        leader: &Candidate,
        epoch: u64,
        question: Question,
    ) -> Sent {
        let Some(leader) = address_of(leader).and_then(|address| self.leader(app, address, epoch)) else {
            return Sent::NotTaken;
        };
        let (first, mut question) = (leader.next.fetch_add(1, Relaxed), Box::new(question));
        let mut refused = Sent::Overloaded;
        for slot in 0..CONNECTIONS {
            let to = match leader.connection(app, first.wrapping_add(slot)) {
                Ok(to) => to,
                Err(sent) => {
                    // There may be a connection soon.
                    refused = sent;
                    continue;
                }
            };
            let sent = self.ask_over(app, to, question).await;
            if let Sent::Full(back) = sent {
                question = back;
            } else {
                return sent;
            }
        }
        refused
    }

    async fn ask_over(&self, app: &App, to: mpsc::UnboundedSender<Message>, question: Box<Question>) -> Sent {
        let number = self.asks.fetch_add(1, Relaxed);
        let (sender, receiver) = oneshot::channel();
        if to.send(Message::Ask(number, question, sender)).is_err() {
            return Sent::NotTaken;
        }
        let mut waiting = Waiting { links: self, number, to, receiver: Some(receiver) };
        let _counted = Counted::one(&app.links.in_flight);
        waiting.receive().await
    }

    /// The connections to this leader; none if a later one is known.
    fn leader(&self, app: &Arc<App>, address: String, epoch: u64) -> Option<Arc<Leader>> {
        let (leader, is_new) = self.known(address, epoch)?;
        if is_new {
            tokio::spawn(end_with_epoch(Arc::clone(app), epoch, leader.over.clone()));
        }
        Some(leader)
    }

    /// The same, and whether this is its first ask. The connections to the leader before it end.
    fn known(&self, address: String, epoch: u64) -> Option<(Arc<Leader>, bool)> {
        let mut to = lock(&self.to);
        match &*to {
            Some(leader) if leader.epoch > epoch => return None,
            Some(leader) if leader.epoch == epoch && leader.address == address => {
                return Some((Arc::clone(leader), false));
            }
            Some(before) => before.over.cancel(),
            None => {}
        }
        let leader = Arc::new(Leader::new(address, epoch));
        *to = Some(Arc::clone(&leader));
        Some((leader, true))
    }

    /// Gives back leases over any connection to the leader, when the one that they came over has ended. The leader
    /// ignores those of an earlier term.
    pub(super) fn give_back(&self, answered: Box<Answered>) {
        let leader = lock(&self.to).clone();
        let Some(leader) = leader else { return };
        let is_there = |to: &mpsc::UnboundedSender<Message>| !to.is_closed();
        let mut there = leader.slots.iter().filter_map(|slot| lock(slot).to.clone().filter(is_there));
        if let Some(to) = there.next() {
            // Best effort: without it, the tasks wait for the end of their leases.
            let _ = to.send(Message::GiveBack(answered));
        }
    }
}

/// Ends the connections to a leader when another leads, or this node stops. One look for all who wait.
async fn end_with_epoch(app: Arc<App>, epoch: u64, over: CancellationToken) {
    let Some(member) = app.coordinator.member() else { return };
    tokio::select! {
        () = replaced(member, epoch) => {}
        () = app.stop.cancelled() => {}
        () = over.cancelled() => {}
    }
    over.cancel();
}

impl Leader {
    fn new(address: String, epoch: u64) -> Self {
        let slots = std::array::from_fn(|_| Mutex::default());
        let (next, without, over) = (AtomicUsize::new(0), Mutex::default(), CancellationToken::new());
        Self { address, epoch, slots, next, without, over }
    }

    /// It is reached by HTTP for a while.
    pub(super) fn has_no_link(&self) {
        *lock(&self.without) = Some(Instant::now() + WITHOUT_LINK);
    }

    /// One of the connections, which is opened if it is not there.
    fn connection(
        self: &Arc<Self>,
        app: &Arc<App>,
        slot: usize,
    ) -> Result<mpsc::UnboundedSender<Message>, Sent> {
        let now = Instant::now();
        if self.over.is_cancelled() {
            return Err(Sent::NotTaken);
        }
        if lock(&self.without).is_some_and(|until| now < until) {
            return Err(Sent::NoLink);
        }
        let mut slot = lock(&self.slots[slot % CONNECTIONS]);
        if let Some(to) = slot.to.as_ref().filter(|to| !to.is_closed()) {
            return Ok(to.clone());
        }
        if slot.again.is_some_and(|at| now < at) {
            return Err(Sent::NotTaken);
        }
        let (to, messages) = mpsc::unbounded_channel();
        tokio::spawn(connect(Arc::clone(app), Arc::clone(self), messages));
        (slot.to, slot.again) = (Some(to.clone()), Some(now + BACKOFF));
        Ok(to)
    }
}

/// A caller that waits for an answer.
struct Waiting<'a> {
    links: &'a Links,
    number: u64,
    to: mpsc::UnboundedSender<Message>,
    /// Not there any more when the answer was taken.
    receiver: Option<oneshot::Receiver<Sent>>,
}

impl Waiting<'_> {
    async fn receive(&mut self) -> Sent {
        let Some(receiver) = self.receiver.as_mut() else { return Sent::Unknown };
        let sent = receiver.await;
        self.receiver = None;
        // The task of a connection answers every ask before it ends, unless the process does.
        sent.unwrap_or(Sent::Unknown)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver.close();
        let unsaid = match receiver.try_recv() {
            Ok(Sent::Answered(answered)) => self.to.send(Message::GiveBack(answered)),
            Ok(
                Sent::NotTaken
                | Sent::Full(_)
                | Sent::Overloaded
                | Sent::Unreadable
                | Sent::Unknown
                | Sent::NoLink,
            ) => Ok(()),
            // Where the task has ended there is nothing left to withdraw.
            Err(_) => self.to.send(Message::Cancel(self.number)),
        };
        if let Err(mpsc::error::SendError(Message::GiveBack(answered))) = unsaid {
            self.links.give_back(answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::Position;
    use orchestrix_node::link::Reply;

    use super::*;

    #[test]
    fn a_give_back_goes_over_another_connection() {
        let links = Links::default();
        let (leader, _) = links.known("http://a:1".to_owned(), 3).unwrap();
        let (open, mut said) = mpsc::unbounded_channel();
        lock(&leader.slots[1]).to = Some(open);
        // The connection of the answer ended after the farewell of its leader.
        let (to, ended) = mpsc::unbounded_channel();
        lock(&leader.slots[0]).to = Some(to.clone());
        drop(ended);
        let (answers, receiver) = oneshot::channel();
        let waiting = Waiting { links: &links, number: 1, to, receiver: Some(receiver) };
        let answered = Answered { reply: Reply::Cancelled, position: Position(7) };
        answers.send(Sent::Answered(Box::new(answered))).unwrap();
        drop(waiting);
        let Ok(Message::GiveBack(answered)) = said.try_recv() else { panic!("it is given back") };
        assert_eq!(answered.position, Position(7));
    }

    #[test]
    fn one_look_for_a_new_leader_serves_all_asks() {
        let links = Links::default();
        let looks =
            |epoch| (0..1_000).filter(|_| links.known("http://a:1".to_owned(), epoch).unwrap().1).count();
        assert_eq!((looks(3), looks(3), looks(4)), (1, 0, 1));
    }

    #[test]
    fn an_older_epoch_does_not_replace_the_leader() {
        let links = Links::default();
        let known = |epoch| links.known(format!("http://node-{epoch}:1"), epoch);
        let (first, is_new) = known(3).unwrap();
        assert!(is_new && !known(3).unwrap().1);
        assert!(known(2).is_none() && !first.over.is_cancelled());
        let (second, is_new) = known(4).unwrap();
        assert!(is_new && first.over.is_cancelled() && !second.over.is_cancelled());
        assert!(known(3).is_none());
    }
}
