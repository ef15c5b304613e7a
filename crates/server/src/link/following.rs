//! The follower's end: a few connections to the leader, kept as long as it leads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use orchestrix_leadership::Candidate;
use orchestrix_node::link::{Answered, AskId, Asker, Fate, Heard, Hello, Question};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::http::{App, address_of};
use crate::link::{Counted, GO_BYTES, Output, PATH, PROTOCOL};

/// Connections to one leader. Few, so that many asks share a packet and a wake-up.
const CONNECTIONS: usize = 2;
/// How long a leader may take to accept a link.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
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
}

#[derive(Debug, Default)]
struct Slot {
    to: Option<mpsc::UnboundedSender<Message>>,
    /// Not connected again before then.
    again: Option<Instant>,
    /// The leader has no link until then.
    without: Option<Instant>,
}

/// What callers say to the task of a connection.
#[derive(Debug)]
enum Message {
    Ask(u64, Box<Question>, oneshot::Sender<Sent>),
    Cancel(u64),
    /// An answer that came and that its caller did not take.
    GiveBack(Box<Answered>),
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
        let Some(address) = address_of(leader) else { return Sent::NotTaken };
        let leader = self.leader(address, epoch);
        let slot = &leader.slots[leader.next.fetch_add(1, Relaxed) % CONNECTIONS];
        let to = match Slot::sender(slot, app, &leader) {
            Ok(to) => to,
            Err(sent) => return sent,
        };
        let number = self.asks.fetch_add(1, Relaxed);
        let (sender, receiver) = oneshot::channel();
        if to.send(Message::Ask(number, Box::new(question), sender)).is_err() {
            return Sent::NotTaken;
        }
        let mut waiting = Waiting { number, to, receiver: Some(receiver) };
        let _counted = Counted::one(&app.links.in_flight);
        let sent = waiting.receive().await;
        if matches!(sent, Sent::NoLink) {
            slot.lock().unwrap_or_else(PoisonError::into_inner).without = Some(Instant::now() + WITHOUT_LINK);
        }
        sent
    }

    /// The connections to this leader. Those to the one before end when the last of their asks does.
    fn leader(&self, address: String, epoch: u64) -> Arc<Leader> {
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        match &*to {
            Some(leader) if leader.epoch == epoch && leader.address == address => Arc::clone(leader),
            Some(_) | None => {
                let slots = std::array::from_fn(|_| Mutex::default());
                let leader = Arc::new(Leader { address, epoch, slots, next: AtomicUsize::new(0) });
                *to = Some(Arc::clone(&leader));
                leader
            }
        }
    }
}

impl Slot {
    fn sender(
        slot: &Mutex<Self>,
        app: &Arc<App>,
        leader: &Leader,
    ) -> Result<mpsc::UnboundedSender<Message>, Sent> {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if slot.without.is_some_and(|until| now < until) {
            return Err(Sent::NoLink);
        }
        if let Some(to) = slot.to.as_ref().filter(|to| !to.is_closed()) {
            return Ok(to.clone());
        }
        if slot.again.is_some_and(|at| now < at) {
            return Err(Sent::NotTaken);
        }
        let (to, messages) = mpsc::unbounded_channel();
        tokio::spawn(connect(Arc::clone(app), leader.address.clone(), messages));
        (slot.to, slot.again) = (Some(to.clone()), Some(now + BACKOFF));
        Ok(to)
    }
}

/// Somebody who waits for an answer.
struct Waiting {
    number: u64,
    to: mpsc::UnboundedSender<Message>,
    /// Not there any more when the answer was taken.
    receiver: Option<oneshot::Receiver<Sent>>,
}

impl Waiting {
    async fn receive(&mut self) -> Sent {
        let Some(receiver) = self.receiver.as_mut() else { return Sent::Unknown };
        let sent = receiver.await;
        self.receiver = None;
        // The task of a connection answers every ask before it ends, unless the process does.
        sent.unwrap_or(Sent::Unknown)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver.close();
        // Where the task has ended there is nothing left to withdraw.
        let _ = match receiver.try_recv() {
            Ok(Sent::Answered(answered)) => self.to.send(Message::GiveBack(answered)),
            Ok(Sent::NotTaken | Sent::Unknown | Sent::NoLink) => Ok(()),
            Err(_) => self.to.send(Message::Cancel(self.number)),
        };
    }
}

/// Connects, and passes asks until the connection is lost or nobody needs it any more.
async fn connect(app: Arc<App>, address: String, mut messages: mpsc::UnboundedReceiver<Message>) {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, upgrade(&app, &address)).await;
    let refused = match connected {
        Ok(Ok(Some(io))) => {
            let counted = Counted::one(&app.links.out);
            let why = Following::new(&app).run(io, &mut messages).await;
            tracing::debug!(address, why, "the link to the leader ended");
            drop(counted);
            app.links.lost.add(1);
            Sent::NotTaken
        }
        Ok(Ok(None)) => {
            tracing::info!(address, "the leader has no node link; requests are passed on by HTTP");
            Sent::NoLink
        }
        Ok(Err(why)) => {
            tracing::debug!(address, why, "the leader does not take a link");
            Sent::NotTaken
        }
        Err(_) => Sent::NotTaken,
    };
    messages.close();
    while let Ok(message) = messages.try_recv() {
        if let Message::Ask(_, _, to) = message {
            let _ = to.send(if matches!(refused, Sent::NoLink) { Sent::NoLink } else { Sent::NotTaken });
        }
    }
}

/// Asks for a link; `None` if the other node does not have it.
async fn upgrade(app: &App, address: &str) -> Result<Option<Upgraded>, String> {
    let request =
        Request::get(format!("{address}{PATH}")).header(CONNECTION, "upgrade").header(UPGRADE, PROTOCOL);
    let response = app.leader_client.ask(request).await?;
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {
            hyper::upgrade::on(response).await.map(Some).map_err(|error| error.to_string())
        }
        StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::UPGRADE_REQUIRED
        | StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN => Ok(None),
        status => Err(format!("it answered {status}")),
    }
}

struct Following<'a> {
    app: &'a Arc<App>,
    start: Instant,
    hello: Hello,
    asker: Asker,
    waiting: HashMap<AskId, (u64, oneshot::Sender<Sent>)>,
    numbers: HashMap<u64, AskId>,
}

impl<'a> Following<'a> {
    fn new(app: &'a Arc<App>) -> Self {
        let name = app.coordinator.member().map_or("", |member| member.name());
        let hello = Hello::new(name, app.tokens_hash());
        let start = Instant::now();
        let asker = Asker::new(hello.clone(), start.elapsed());
        Self { app, start, hello, asker, waiting: HashMap::new(), numbers: HashMap::new() }
    }

    /// Runs until the connection is lost; everyone who waits then hears what is known. Answers why.
    async fn run(mut self, io: Upgraded, messages: &mut mpsc::UnboundedReceiver<Message>) -> String {
        let ended = self.pass(io, messages).await;
        let Self { asker, mut waiting, .. } = self;
        for (ask, fate) in asker.cut() {
            if let Some((_, to)) = waiting.remove(&ask) {
                let _ = to.send(match fate {
                    Fate::NotTaken => Sent::NotTaken,
                    Fate::Unknown => Sent::Unknown,
                });
            }
        }
        ended.err().unwrap_or_default()
    }

    async fn pass(
        &mut self,
        io: Upgraded,
        messages: &mut mpsc::UnboundedReceiver<Message>,
    ) -> Result<(), String> {
        let (mut from, mut to) = tokio::io::split(TokioIo::new(io));
        let (mut input, mut output) = (Vec::with_capacity(GO_BYTES), Output::new());
        let (mut more, mut hears) = (Vec::new(), true);
        loop {
            output.refill(|bytes, enough| self.asker.send(bytes, enough));
            if !self.asker.is_open() && self.asker.open() == 0 && output.is_empty() {
                return Ok(());
            }
            let due = self.start + self.asker.next_due();
            let takes_more = self.asker.is_open();
            tokio::select! {
                read = from.read_buf(&mut input) => {
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Err("the leader closed the link".to_owned());
                    }
                    self.received(&input)?;
                    input.clear();
                }
                count = messages.recv_many(&mut more, 1_024), if hears => {
                    if count == 0 && self.asker.is_open() {
                        return Ok(());
                    }
                    hears = count > 0;
                    more.drain(..).for_each(|message| self.said(message));
                }
                written = output.write(&mut to), if !output.is_empty() => {
                    written.map_err(|error| error.to_string())?;
                }
                () = sleep_until(due) => {
                    self.asker.tick(self.start.elapsed()).map_err(|broken| broken.to_string())?;
                    if output.is_stuck(self.app.limits.write_timeout) {
                        return Err("the leader takes no asks".to_owned());
                    }
                }
            }
            if takes_more && !self.asker.is_open() {
                messages.close();
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
                Err(_) => {
                    let _ = to.send(Sent::NotTaken);
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

    fn received(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut heard = Vec::new();
        let received = self.asker.receive(bytes, self.start.elapsed(), &mut heard);
        for heard in heard {
            match heard {
                Heard::Ready(theirs) => self.compare(&theirs),
                Heard::Answer(ask, answered) => self.answer(ask, Sent::Answered(Box::new(answered))),
                Heard::GoAway(asks) => asks.into_iter().for_each(|ask| self.answer(ask, Sent::NotTaken)),
            }
        }
        received.map_err(|broken| broken.to_string())
    }

    fn compare(&self, theirs: &Hello) {
        if self.hello.knows_other_tokens(theirs) {
            tracing::warn!(
                node = theirs.node,
                "this node and the leader have different token files; give all nodes the same"
            );
        }
    }

    fn answer(&mut self, ask: AskId, sent: Sent) {
        let Some((number, to)) = self.waiting.remove(&ask) else { return };
        self.numbers.remove(&number);
        if let Err(Sent::Answered(answered)) = to.send(sent) {
            self.asker.give_back(&answered);
        }
    }
}
