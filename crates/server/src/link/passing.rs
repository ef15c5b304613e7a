//! The task of one connection to the leader: it sends asks of callers and receives answers.
//!
//! **Invariant:** every ask ends: with the leader's answer, or with what is known of it when the connection ends.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{Request, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use orchestrix_node::link::{AskId, Asker, Broken, Fate, Heard, Hello, NotAsked};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::http::App;
use crate::link::following::{Leader, Message, Sent};
use crate::link::{Counted, GO_BYTES, Output, PATH, PROTOCOL};

/// How long a leader may take to accept a link.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a leader that has said farewell may take to answer what it has taken, once another leads.
const FAREWELL: Duration = Duration::from_millis(500);

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

/// Connects, and passes asks until the connection is lost or not needed any more.
pub(super) async fn connect(
    app: Arc<App>,
    leader: Arc<Leader>,
    mut messages: mpsc::UnboundedReceiver<Message>,
) {
    let address = &leader.address;
    let connecting = tokio::time::timeout(CONNECT_TIMEOUT, upgrade(&app, address));
    let connected = tokio::select! {
        connected = connecting => connected.unwrap_or_else(|_| Err(lost("it does not answer"))),
        () = leader.over.cancelled() => Err(lost("another node became leader")),
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
            leader.has_no_link();
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
        let ended = self.pass(io, messages).await.err().unwrap_or_else(|| lost("it is no longer needed"));
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
                        return Err(lost("another node became leader"));
                    }
                    let now = self.start.elapsed();
                    self.asker.overdue(now).into_iter().for_each(|ask| self.answer(ask, Sent::Overloaded));
                    self.asker.tick(now)?;
                }
            }
        }
    }

    fn said(&mut self, message: Message) {
        match message {
            Message::Ask(number, question, to) => match self.asker.ask(&question, self.start.elapsed()) {
                Ok(ask) => {
                    self.app.links.asks_sent.add(1);
                    self.numbers.insert(number, ask);
                    self.waiting.insert(ask, (number, to));
                }
                Err(why) => {
                    let _ = to.send(match why {
                        NotAsked::Full => Sent::Full(question),
                        NotAsked::TooLarge | NotAsked::Local => Sent::NoLink,
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
