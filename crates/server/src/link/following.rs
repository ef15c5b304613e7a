//! The follower's end: a few connections to the leader, kept as long as it leads.
//!
//! **Invariant:** every ask ends: with the leader's answer, or with what is known of it when its connection ends or another
//! node leads. Callers wait for nothing else.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use orchestrix_leadership::Candidate;
use orchestrix_node::link::{Answered, AskId, Asker, Broken, Fate, Heard, Hello, NotAsked, Question};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::http::{App, address_of, replaced};
use crate::link::{Counted, GO_BYTES, Output, PATH, PROTOCOL};

/// Connections to one leader. Few, so that many asks share a packet and a wake-up.
const CONNECTIONS: usize = 2;
/// How long a leader may take to accept a link.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const BACKOFF: Duration = Duration::from_millis(200);
/// How long a leader without link is reached by HTTP before it is asked again.
const WITHOUT_LINK: Duration = Duration::from_secs(30);
/// How long a leader that has said farewell may take to answer what it has taken, once another leads.
const FAREWELL: Duration = Duration::from_millis(500);

/// What became of an ask that was sent to the leader.
#[derive(Debug)]
pub(crate) enum Sent {
    Answered(Box<Answered>),
    /// Certainly not decided.
    NotTaken,
    /// The link has no room for it; nothing was sent.
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
struct Leader {
    address: String,
    epoch: u64,
    slots: [Mutex<Slot>; CONNECTIONS],
    next: AtomicUsize,
    /// It has no link until then.
    without: Mutex<Option<Instant>>,
    /// Another node leads, or this one stops.
    over: CancellationToken,
}

#[derive(Debug, Default)]
struct Slot {
    to: Option<mpsc::UnboundedSender<Message>>,
    /// Not connected again before then.
    again: Option<Instant>,
}

/// What callers say to the task of a connection.
#[derive(Debug)]
enum Message {
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
        let to = match leader.connection(app) {
            Ok(to) => to,
            Err(sent) => return sent,
        };
        let number = self.asks.fetch_add(1, Relaxed);
        let (sender, receiver) = oneshot::channel();
        if to.send(Message::Ask(number, Box::new(question), sender)).is_err() {
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

    /// The same, and whether nobody has asked it before. The connections to the leader before it end.
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
    fn give_back(&self, answered: Box<Answered>) {
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

    /// One of the connections, which is opened if it is not there.
    fn connection(self: &Arc<Self>, app: &Arc<App>) -> Result<mpsc::UnboundedSender<Message>, Sent> {
        let now = Instant::now();
        if self.over.is_cancelled() {
            return Err(Sent::NotTaken);
        }
        if lock(&self.without).is_some_and(|until| now < until) {
            return Err(Sent::NoLink);
        }
        let mut slot = lock(&self.slots[self.next.fetch_add(1, Relaxed) % CONNECTIONS]);
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

/// Somebody who waits for an answer.
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
            Ok(Sent::NotTaken | Sent::Overloaded | Sent::Unreadable | Sent::Unknown | Sent::NoLink) => Ok(()),
            // Where the task has ended there is nothing left to withdraw.
            Err(_) => self.to.send(Message::Cancel(self.number)),
        };
        if let Err(mpsc::error::SendError(Message::GiveBack(answered))) = unsaid {
            self.links.give_back(answered);
        }
    }
}

/// How a connection to the leader ended.
#[derive(Debug)]
enum Ended {
    /// The leader has no link for this node.
    NoLink(String),
    Lost(String),
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Version { .. } | Broken::NotALink => Self::NoLink(broken.to_string()),
            Broken::Protocol(_) | Broken::TooLarge { .. } | Broken::Silent => Self::Lost(broken.to_string()),
        }
    }
}

fn lost(error: impl ToString) -> Ended {
    Ended::Lost(error.to_string())
}

/// Connects, and passes asks until the connection is lost or nobody needs it any more.
async fn connect(app: Arc<App>, leader: Arc<Leader>, mut messages: mpsc::UnboundedReceiver<Message>) {
    let address = &leader.address;
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, upgrade(&app, address));
    let connected = tokio::select! {
        connected = connecting => connected.unwrap_or_else(|_| Err(lost("it does not answer"))),
        () = leader.over.cancelled() => Err(lost("another node leads")),
    };
    let ended = match connected {
        Ok(io) => {
            let counted = Counted::one(&app.links.out);
            let ended = Following::new(&app, &leader.over).run(io, &mut messages).await;
            drop(counted);
            app.links.lost.add(1);
            ended
        }
        Err(ended) => ended,
    };
    let has_link = match ended {
        Ended::NoLink(why) => {
            *lock(&leader.without) = Some(Instant::now() + WITHOUT_LINK);
            tracing::info!(address, why, "the leader has no node link; requests are passed on by HTTP");
            false
        }
        Ended::Lost(why) => {
            tracing::debug!(address, why, "the link to the leader ended");
            true
        }
    };
    messages.close();
    while let Ok(message) = messages.try_recv() {
        match message {
            Message::Ask(_, _, to) => {
                let _ = to.send(if has_link { Sent::NotTaken } else { Sent::NoLink });
            }
            Message::GiveBack(answered) => app.leader_links.give_back(answered),
            Message::Cancel(_) => {}
        }
    }
}

/// Asks for a link.
async fn upgrade(app: &App, address: &str) -> Result<Upgraded, Ended> {
    let request =
        Request::get(format!("{address}{PATH}")).header(CONNECTION, "upgrade").header(UPGRADE, PROTOCOL);
    let response = app.leader_client.ask(request).await.map_err(Ended::Lost)?;
    let status = response.status();
    match status {
        StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(response).await.map_err(lost),
        StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::UPGRADE_REQUIRED
        | StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN => Err(Ended::NoLink(format!("it answered {status}"))),
        status => Err(Ended::Lost(format!("it answered {status}"))),
    }
}

struct Following<'a> {
    app: &'a Arc<App>,
    over: &'a CancellationToken,
    start: Instant,
    hello: Hello,
    asker: Asker,
    waiting: HashMap<AskId, (u64, oneshot::Sender<Sent>)>,
    numbers: HashMap<u64, AskId>,
}

impl<'a> Following<'a> {
    fn new(app: &'a Arc<App>, over: &'a CancellationToken) -> Self {
        let (hello, start) = (app.hello(), Instant::now());
        let asker = Asker::new(hello.clone(), start.elapsed());
        Self { app, over, start, hello, asker, waiting: HashMap::new(), numbers: HashMap::new() }
    }

    /// Runs until the connection is lost; everyone who waits then hears what is known. Answers why.
    async fn run(mut self, io: Upgraded, messages: &mut mpsc::UnboundedReceiver<Message>) -> Ended {
        let ended = self.pass(io, messages).await.err().unwrap_or_else(|| lost("nobody needs it"));
        let Self { asker, mut waiting, .. } = self;
        for (ask, fate) in asker.cut() {
            if let Some((_, to)) = waiting.remove(&ask) {
                let _ = to.send(match (fate, &ended) {
                    (Fate::NotTaken, Ended::NoLink(_)) => Sent::NoLink,
                    (Fate::NotTaken, Ended::Lost(_)) => Sent::NotTaken,
                    (Fate::Unknown, _) => Sent::Unknown,
                });
            }
        }
        ended
    }

    async fn pass(
        &mut self,
        io: Upgraded,
        messages: &mut mpsc::UnboundedReceiver<Message>,
    ) -> Result<(), Ended> {
        let (mut from, mut to) = tokio::io::split(TokioIo::new(io));
        let (mut input, mut output) = (Vec::with_capacity(GO_BYTES), Output::new());
        let (mut more, mut hears) = (Vec::new(), true);
        let mut over = pin!(self.over.cancelled());
        let mut leave_at = None;
        let mut alarm = pin!(sleep_until(self.start));
        loop {
            output.refill(|bytes, enough| self.asker.send(bytes, enough));
            let is_needed = hears && self.asker.is_open() || self.asker.open() > 0;
            if !is_needed && output.is_empty() {
                return Ok(());
            }
            if output.is_stuck(self.app.limits.write_timeout) {
                return Err(lost("the leader takes no asks"));
            }
            let stuck_at = output.stuck_at(self.app.limits.write_timeout);
            let dues = [Some(self.start + self.asker.next_due()), stuck_at, leave_at];
            let due = dues.into_iter().flatten().min().unwrap_or(self.start);
            if alarm.deadline() != due {
                alarm.as_mut().reset(due);
            }
            tokio::select! {
                read = from.read_buf(&mut input) => {
                    if read.map_err(lost)? == 0 {
                        return Err(lost("the leader closed the link"));
                    }
                    self.received(&input)?;
                    input.clear();
                }
                count = messages.recv_many(&mut more, 1_024), if hears => {
                    hears = count > 0;
                    more.drain(..).for_each(|message| self.said(message));
                }
                written = output.write(&mut to), if !output.is_empty() => written.map_err(lost)?,
                // A leader that has said farewell is there, and answers what it has taken.
                () = &mut over, if leave_at.is_none() => {
                    let patience = if self.asker.is_open() { Duration::ZERO } else { FAREWELL };
                    leave_at = Some(Instant::now() + patience);
                }
                () = &mut alarm => {
                    if leave_at.is_some_and(|at| at <= Instant::now()) {
                        return Err(lost("another node leads"));
                    }
                    self.asker.tick(self.start.elapsed())?;
                }
            }
        }
    }

    fn said(&mut self, message: Message) {
        match message {
            Message::Ask(number, question, to) => match self.asker.ask(&question) {
                Ok(ask) => {
                    self.app.links.asks_sent.add(1);
                    self.numbers.insert(number, ask);
                    self.waiting.insert(ask, (number, to));
                }
                Err(why) => {
                    let _ = to.send(match why {
                        NotAsked::Full => Sent::Overloaded,
                        NotAsked::TooLarge => Sent::NoLink,
                        NotAsked::GoneAway => Sent::NotTaken,
                    });
                }
            },
            Message::Cancel(number) => {
                if let Some(ask) = self.numbers.remove(&number) {
                    self.waiting.remove(&ask);
                    self.asker.cancel(ask);
                }
            }
            Message::GiveBack(answered) => self.asker.give_back(&answered),
        }
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let mut heard = Vec::new();
        let received = self.asker.receive(bytes, self.start.elapsed(), &mut heard);
        for heard in heard {
            match heard {
                Heard::Ready(theirs) => self.compare(&theirs)?,
                Heard::Answer(ask, answered) => self.answer(ask, Sent::Answered(Box::new(answered))),
                Heard::Unreadable(ask) => {
                    tracing::warn!("the leader answered an ask with what this node cannot read");
                    self.answer(ask, Sent::Unreadable);
                }
                Heard::GoAway(asks) => asks.into_iter().for_each(|ask| self.answer(ask, Sent::NotTaken)),
            }
        }
        Ok(received?)
    }

    fn compare(&self, theirs: &Hello) -> Result<(), Ended> {
        if self.hello.knows_other_tokens(theirs) {
            tracing::warn!(
                node = theirs.node,
                "this node and the leader have different token files; give all nodes the same"
            );
        }
        if !self.hello.may_vouch_to(theirs) {
            return Err(Ended::NoLink("it has tokens, and this node checks none".to_owned()));
        }
        Ok(())
    }

    fn answer(&mut self, ask: AskId, sent: Sent) {
        let Some((number, to)) = self.waiting.remove(&ask) else { return };
        self.numbers.remove(&number);
        if let Err(Sent::Answered(answered)) = to.send(sent) {
            self.asker.give_back(&answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
