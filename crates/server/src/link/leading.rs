//! The leader's end of one link: asks of a follower's callers, decided here.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use orchestrix_core::Position;
use orchestrix_core::limits::{LEASE_PAYLOAD_BYTES_MAX, PAGE_BYTES_MAX};
use orchestrix_node::link::{Answerer, AskId, Asked, Broken, Hello, Question, Reply};
use orchestrix_node::{Ask, Caller, Error, ShardAsk};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::coordinator::LEADER_WAIT;
use crate::http::{App, Fault, Held, SHORT_BYTES_MAX, Unsent};
use crate::link::{Counted, GO_BYTES, Output};

/// Serves a follower until one of the two goes, or the follower's token ends.
pub(crate) async fn serve(io: impl AsyncRead + AsyncWrite, app: Arc<App>, ended: CancellationToken) {
    let _counted = Counted::one(&app.links.taken);
    let served = tokio::select! {
        served = Leading::new(&app).run(io) => served,
        () = ended.cancelled() => Err("the token of the node has ended".to_owned()),
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
}

/// What came of an ask, and under which name its answer counts.
struct Decided {
    ask: AskId,
    reply: Reply,
    client: String,
}

impl<'a> Leading<'a> {
    fn new(app: &'a Arc<App>) -> Self {
        let name = app.coordinator.member().map_or("", |member| member.name());
        let hello = Hello::new(name, app.tokens_hash());
        let start = Instant::now();
        let answerer = Answerer::new(hello.clone(), start.elapsed());
        Self { app, start, hello, answerer, open: HashMap::new() }
    }

    async fn run(mut self, io: impl AsyncRead + AsyncWrite) -> Result<(), String> {
        let (mut from, mut to) = tokio::io::split(io);
        let (mut input, mut output) = (Vec::with_capacity(GO_BYTES), Output::new());
        let mut deciding = FuturesUnordered::new();
        let mut stops = false;
        loop {
            while let Some(Some(decided)) = deciding.next().now_or_never() {
                self.decided(decided);
            }
            self.answerer.reached(Position(self.app.coordinator.stats().durable.get()));
            output.refill(|bytes, enough| self.answerer.send(bytes, enough));
            if self.answerer.is_done() && output.is_empty() {
                let _ = to.shutdown().await;
                return Ok(());
            }
            let due = self.start + self.answerer.next_due();
            tokio::select! {
                Some(decided) = deciding.next() => self.decided(decided),
                written = output.write(&mut to), if !output.is_empty() => {
                    written.map_err(|error| error.to_string())?;
                }
                read = from.read_buf(&mut input) => {
                    if read.map_err(|error| error.to_string())? == 0 {
                        return Ok(());
                    }
                    for decides in self.received(&input).map_err(|broken| broken.to_string())? {
                        deciding.push(decides);
                    }
                    input.clear();
                }
                () = self.app.stop.cancelled(), if !stops => {
                    stops = true;
                    self.answerer.go_away();
                }
                () = sleep_until(due) => {
                    self.answerer.tick(self.start.elapsed()).map_err(|broken| broken.to_string())?;
                    if output.is_stuck(self.app.limits.write_timeout) {
                        return Err("the follower takes no answers".to_owned());
                    }
                }
            }
        }
    }

    /// Takes what came, and answers what is to be decided.
    fn received(&mut self, bytes: &[u8]) -> Result<Vec<impl Future<Output = Decided> + use<>>, Broken> {
        let (mut asked, mut deciding) = (Vec::new(), Vec::new());
        self.answerer.receive(bytes, self.start.elapsed(), &mut asked)?;
        for asked in asked {
            match asked {
                Asked::Ready(theirs) => self.compare(&theirs),
                Asked::Ask(ask, question) => {
                    self.app.links.asks_taken.add(1);
                    let (withdraw, withdrawn) = AbortHandle::new_pair();
                    self.open.insert(ask, withdraw);
                    self.answerer.taken(ask);
                    let client = client(&question.caller);
                    let deciding_one = Abortable::new(decide(Arc::clone(self.app), question), withdrawn);
                    deciding.push(async move {
                        let reply = deciding_one.await.unwrap_or(Reply::Cancelled);
                        Decided { ask, reply, client }
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

    fn compare(&self, theirs: &Hello) {
        if self.hello.knows_other_tokens(theirs) {
            tracing::warn!(
                node = theirs.node,
                "this node and the follower have different token files; give all nodes the same"
            );
        }
    }

    fn decided(&mut self, Decided { ask, reply, client }: Decided) {
        self.open.remove(&ask);
        let unsent = &self.app.unsent;
        let hold = |bytes| (bytes > SHORT_BYTES_MAX).then(|| Unsent::hold_anyway(unsent, client, bytes));
        self.answerer.answer_holding(ask, reply, hold);
    }
}

/// What the answers of a caller are counted under.
fn client(caller: &Caller) -> String {
    match (&caller.name, caller.address) {
        (Some(name), _) => name.as_str().to_owned(),
        (None, Some(address)) => address.to_string(),
        (None, None) => String::new(),
    }
}

async fn decide(app: Arc<App>, question: Question) -> Reply {
    try_decide(&app, question).await.unwrap_or_else(|fault| {
        if let Fault::RateLimited(why) = fault {
            Reply::Limited(why)
        } else if let Fault::Behind { asked, at } = fault {
            Reply::Behind { asked, at }
        } else {
            Reply::Done(Err(Error::Overloaded))
        }
    })
}

async fn try_decide(app: &Arc<App>, question: Question) -> Result<Reply, Fault> {
    let Question { caller, ask, position, request_id, within: _ } = question;
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
    Ok(Reply::Done(node.ask(&caller, ask).await))
}
