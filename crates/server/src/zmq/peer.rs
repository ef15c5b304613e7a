//! One connection: its greeting, its messages, and the answers to them.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use orchestrix_core::Name;
use orchestrix_core::shards::CONNECTION_SESSION;
use orchestrix_core::wire::{Assignment, Problem};
use orchestrix_node::{Answer, Ask};
use orchestrix_zmtp::{Broken, Connection, Error, Incoming, Limits, Reader, SocketType, Writer};
use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::Front;
use super::message::{self, Kind, Message};
use crate::coordinator::{Decided, Question};
use crate::http::{App, Carried, Fault, Seen, assignment, authorize};
use crate::tokens::Token;

/// Bytes of a message of a peer that has not shown a token that is accepted, where there are tokens. Longer ones share
/// [`Strangers`].
const STRANGER_BYTES_MAX: usize = 64 << 10;
/// How long a long message of such a peer may wait for room, and may take in all.
const STRANGER_ROOM_TIME: Duration = Duration::from_secs(5);
const STRANGER_MESSAGE_TIME: Duration = Duration::from_secs(10);
/// Messages that wait for such a peer to take them.
const STRANGER_OUTBOX_MAX: usize = 64;
/// How long a peer may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Messages of one connection that are being decided; more wait in the peer's own buffers.
const IN_FLIGHT_MAX: usize = 256;
/// Messages that wait for a peer to take them, and their bytes. One that takes none is left.
const OUTBOX_MAX: usize = 1_024;
const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// A peer that is silent for so long is asked whether it is there, and left when it does not answer that often.
const SILENCE: Duration = Duration::from_secs(30);
const SILENCES_MAX: u32 = 3;
/// How long a connection that is to end waits for its last messages to be taken.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Room for long messages of peers that have not shown a token that is accepted: all of them together have so much. A
/// worker that comes back may have many shards to tell of in its first message.
#[derive(Debug)]
pub(super) struct Strangers {
    bytes: Arc<Semaphore>,
    max: usize,
}

impl Strangers {
    pub(super) fn new(bytes: usize) -> Self {
        let max = bytes.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Self { bytes: Arc::new(Semaphore::new(max)), max }
    }

    /// Waits for room, but not for long; none if there is not so much at all.
    async fn room(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes as usize <= self.max)?;
        let room = Arc::clone(&self.bytes).acquire_many_owned(bytes);
        tokio::time::timeout(STRANGER_ROOM_TIME, room).await.ok()?.ok()
    }
}

/// The way to a peer.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Outgoing>,
    /// What waits.
    waiting: Arc<Waiting>,
    /// A message of the peer was let in: it may say and hear more from now on.
    accepted: CancellationToken,
    /// A REQ hears only answers.
    socket: SocketType,
    end: End,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    /// One of them was taken.
    taken: Notify,
}

impl Waiting {
    /// Until there are few: a stranger is read no faster than it reads.
    async fn are_few(&self) {
        while self.messages.load(Relaxed) >= STRANGER_OUTBOX_MAX {
            self.taken.notified().await;
        }
    }
}

/// Ends a connection.
#[derive(Clone, Debug)]
struct End {
    token: CancellationToken,
    app: Arc<App>,
}

impl End {
    /// The peer does not read its messages.
    fn stuck(&self) {
        if !self.token.is_cancelled() {
            self.app.zmq.stuck.add(1);
            self.token.cancel();
        }
    }
}

#[derive(Debug)]
enum Outgoing {
    Message { delimited: bool, body: Bytes },
    Ping,
    Pong(Bytes),
}

impl Outbox {
    /// Whether two are the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.sender.same_channel(&other.sender)
    }

    /// Whether the connection is over, or soon will be.
    pub(super) fn is_over(&self) -> bool {
        self.end.token.is_cancelled()
    }

    /// Sends a push. A peer that does not read is disconnected.
    pub(super) fn push(&self, body: Bytes) {
        if self.socket != SocketType::Req {
            self.put(Outgoing::Message { delimited: false, body });
        }
    }

    fn put(&self, outgoing: Outgoing) {
        let bytes = outgoing.bytes();
        let before = self.waiting.bytes.fetch_add(bytes, Relaxed);
        self.waiting.messages.fetch_add(1, Relaxed);
        // A message that is longer than that is taken when it is the only one.
        let is_long = before > 0 && before + bytes > OUTBOX_BYTES_MAX;
        if is_long || matches!(self.sender.try_send(outgoing), Err(TrySendError::Full(_))) {
            self.end.stuck();
        }
    }
}

impl Outgoing {
    fn bytes(&self) -> usize {
        match self {
            Self::Message { body, .. } | Self::Pong(body) => body.len(),
            Self::Ping => 0,
        }
    }
}

/// Speaks with a peer until it goes, breaks the rules, takes nothing any more, or the coordinator stops.
pub(super) async fn serve(stream: TcpStream, address: IpAddr, front: &Arc<Front>) {
    let (app, metrics) = (&front.app, &front.app.zmq);
    let (message_bytes, message_time) = (app.limits.body_bytes, Some(app.limits.body_timeout));
    let limits = Limits { message_bytes, message_time, ..Limits::default() };
    let strangers = match app.tokens {
        Some(_) => Limits { message_bytes: message_bytes.min(STRANGER_BYTES_MAX), ..limits },
        None => limits,
    };
    let greeted = Connection::greet(stream, SocketType::Router, b"", strangers);
    let connection = match tokio::time::timeout(GREETING_TIME, greeted).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(Error::Closed | Error::Io(_))) => return,
        Ok(Err(Error::Broken(why))) => {
            tracing::debug!(%why, "a ZeroMQ peer is refused");
            return metrics.broken.add(1);
        }
        Err(_) => return metrics.broken.add(1),
    };
    let (sender, outgoing) = mpsc::channel(OUTBOX_MAX);
    let (peer, token) = (connection.peer().clone(), CancellationToken::new());
    let end = End { token: token.clone(), app: Arc::clone(app) };
    // However this ends, the other half does, too.
    let _ended = token.clone().drop_guard();
    let (reader, writer) = connection.split();
    let waiting = Arc::<Waiting>::default();
    let writing =
        tokio::spawn(write(writer, outgoing, Arc::clone(&waiting), app.limits.write_timeout, end.clone()));
    let accepted = CancellationToken::new();
    if app.tokens.is_none() {
        accepted.cancel();
    }
    let outbox = Outbox { sender, waiting, accepted, socket: peer.socket, end };
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let session = Arc::new(Session {
        front: Arc::clone(front),
        peer: address,
        name: session_name(),
        outbox,
        tokens: Mutex::default(),
    });
    let ended = tokio::select! {
        ended = read(reader, &session, &in_flight, [strangers, limits], peer.minor > 0) => ended,
        () = token.cancelled() => None,
        () = app.stop.cancelled() => {
            // What was asked before is answered.
            let all = u32::try_from(IN_FLIGHT_MAX).expect("it is a small number");
            let _ = tokio::time::timeout(app.limits.stop_grace, in_flight.acquire_many(all)).await;
            None
        }
    };
    if let Some(Error::Broken(why)) = ended {
        metrics.broken.add(1);
        let is_stranger = !session.outbox.accepted.is_cancelled();
        let advice = if is_stranger && matches!(why, Broken::TooLong { .. }) {
            "; show a token in a short message first: register"
        } else {
            ""
        };
        session.refuse(&problem(Fault::Invalid(format!("{why}{advice}"))), false);
    }
    token.cancel();
    front.pushes.left(&session.outbox);
    // A panic in there has been reported, and ends nothing else.
    let _ = writing.await;
}

/// A name that no other connection has, on any node.
fn session_name() -> Name {
    let (high, low) = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
    Name::new(&format!("{CONNECTION_SESSION}{high:016x}{low:016x}")).expect("hexadecimal digits are a name")
}

/// Reads until the connection is over; why, if it was not silence.
async fn read(
    mut reader: Reader<TcpStream>,
    session: &Arc<Session>,
    in_flight: &Arc<Semaphore>,
    [strangers, limits]: [Limits; 2],
    answers_pings: bool,
) -> Option<Error> {
    let accepted = &session.outbox.accepted;
    let (mut silences, mut is_stranger) = (0, true);
    // Room for a long message of a stranger, until it is answered.
    let mut room = None;
    loop {
        let next = tokio::select! {
            biased;
            () = accepted.cancelled(), if is_stranger => {
                is_stranger = false;
                reader.set_limits(limits);
                continue;
            }
            next = tokio::time::timeout(SILENCE, reader.next()) => next,
        };
        let incoming = match next {
            Ok(Ok(incoming)) => incoming,
            Ok(Err(Error::Broken(Broken::TooLong { bytes, max })))
                if is_stranger && bytes <= limits.message_bytes as u64 =>
            {
                // Another part of the same message needs room for all of it.
                drop(room.take());
                tokio::select! {
                    found = session.front.strangers.room(bytes) => match found {
                        Some(found) => room = Some(found),
                        None => return Some(Error::Broken(Broken::TooLong { bytes, max })),
                    },
                    () = accepted.cancelled() => continue,
                }
                let message_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                let message_time = limits.message_time.map(|time| time.min(STRANGER_MESSAGE_TIME));
                reader.set_limits(Limits { message_bytes, message_time, ..limits });
                continue;
            }
            Ok(Err(error)) => return Some(error),
            Err(_) if silences == SILENCES_MAX => return None,
            Err(_) => {
                silences += 1;
                if answers_pings {
                    session.outbox.put(Outgoing::Ping);
                }
                continue;
            }
        };
        silences = 0;
        if is_stranger {
            session.outbox.waiting.are_few().await;
        }
        match incoming {
            Incoming::Message(parts) => {
                session.front.app.zmq.messages.add(1);
                let place = Arc::clone(in_flight).acquire_owned().await.expect("nobody closes it");
                let session = Arc::clone(session);
                let room = room.take();
                if room.is_some() && is_stranger {
                    reader.set_limits(strangers);
                }
                let mut answering = Box::pin(async move {
                    let _kept = (place, room);
                    session.answer(parts).await;
                });
                // It is asked before the next message is looked at: where the leader is, what was said first is decided
                // first.
                if futures_util::poll!(&mut answering).is_pending() {
                    tokio::spawn(answering);
                }
            }
            Incoming::Ping(context) => session.outbox.put(Outgoing::Pong(context)),
            Incoming::Pong => {}
        }
    }
}

/// Writes until the connection is to end, and then what was said before.
async fn write(
    mut writer: Writer<TcpStream>,
    mut outgoing: mpsc::Receiver<Outgoing>,
    waiting: Arc<Waiting>,
    patience: Duration,
    end: End,
) {
    let last_words = async {
        end.token.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::pin!(last_words);
    loop {
        let next = tokio::select! {
            biased;
            next = outgoing.recv() => next,
            () = end.token.cancelled() => None,
        };
        let Some(next) = next else { return };
        let written = async {
            match &next {
                Outgoing::Message { delimited: true, body } => writer.send(&[b"", body]).await,
                Outgoing::Message { delimited: false, body } => writer.send(&[body]).await,
                Outgoing::Ping => writer.ping().await,
                Outgoing::Pong(context) => writer.pong(context).await,
            }
        };
        let written = tokio::select! {
            written = tokio::time::timeout(patience, written) => written,
            () = &mut last_words => return,
        };
        match written {
            Ok(Ok(())) => {
                waiting.bytes.fetch_sub(next.bytes(), Relaxed);
                waiting.messages.fetch_sub(1, Relaxed);
                waiting.taken.notify_one();
            }
            Ok(Err(_)) => return end.token.cancel(),
            Err(_) => return end.stuck(),
        }
    }
}

/// Who speaks through a connection, and how it is answered.
struct Session {
    front: Arc<Front>,
    peer: IpAddr,
    name: Name,
    outbox: Outbox,
    /// All that have spoken through it.
    tokens: Mutex<Vec<Arc<Token>>>,
}

impl Session {
    async fn answer(&self, parts: Vec<Bytes>) {
        let delimited = parts.len() == 2;
        let message = match message::parse(&parts, &self.name) {
            Ok(message) => message,
            Err(fault) => return self.refuse(&problem(fault), delimited),
        };
        drop(parts);
        let pushes = &self.front.pushes;
        let decided = tokio::select! {
            decided = self.decide(&message) => decided,
            // A disconnected worker does not wait for its registration any more; but its deregistration still counts.
            () = self.outbox.end.token.cancelled(), if message.kind != Kind::Deregister => return,
        };
        match decided {
            Ok(assignment) => {
                self.outbox.accepted.cancel();
                if assignment.fenced || message.kind == Kind::Deregister {
                    pushes.goes(&message.service, &message.worker, &self.outbox);
                } else {
                    pushes.note(&message.service, &message.worker, &self.outbox, &assignment);
                }
                if assignment.fenced {
                    self.say(message::fenced(), delimited);
                }
                self.say(message::assignment(&assignment), delimited);
            }
            Err(problem) => self.refuse(&problem, delimited),
        }
    }

    /// What the coordinator makes of it, here or at the leader.
    async fn decide(&self, message: &Message) -> Result<Assignment, Problem> {
        let (app, route) = (&self.front.app, message.kind.route());
        let mut seen = Seen { route: Some((0, route)), ..Seen::default() };
        let decided = self.ask(message, &mut seen).await;
        let tell = |result| seen.tell(app, self.peer, (&Method::POST, || message.path()), result);
        match decided {
            Ok(
                Decided::Answer(Answer::Assignment(assignment))
                | Decided::Linked(Answer::Assignment(assignment), _),
            ) => {
                tell(Ok(StatusCode::OK));
                Ok(assignment)
            }
            Ok(Decided::Answer(_) | Decided::Linked(..)) => Err(problem(Fault::Internal)),
            // The deciding node has logged it.
            Ok(Decided::Passed(response)) => assignment(response).await,
            Err(fault) => {
                tell(Err(&fault));
                Err(problem(fault))
            }
        }
    }

    async fn ask(&self, message: &Message, seen: &mut Seen) -> Result<Decided<Answer>, Fault> {
        let (app, route) = (&self.front.app, message.kind.route());
        let client = authorize(app, self.peer, message.token.as_ref(), route, seen)?;
        let _in_flight = client.enter(app)?;
        let ask = message.ask()?;
        let carried = Carried::Made(&ask, message.token.as_ref());
        let question =
            Question { app, client: &client, position: None, changes_nothing: false, by_link: true, carried };
        let asking = app.coordinator.ask(&question, || Ok(Ask::Shards(Box::new(ask.clone()))));
        let decided = client.wait(route.pace, asking).await?;
        self.ends_with(client.token.as_ref());
        Ok(decided)
    }

    /// The connection does not outlive a token that spoke through it: pushes would go on without one.
    fn ends_with(&self, token: Option<&Arc<Token>>) {
        let Some(token) = token else { return };
        let mut spoke = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if spoke.iter().any(|known| Arc::ptr_eq(known, token)) {
            return;
        }
        spoke.push(Arc::clone(token));
        let (outbox, ended) = (self.outbox.clone(), token.ended().clone());
        tokio::spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {
                    let why = Fault::Unauthorized("this token has expired or was removed".to_owned());
                    outbox.push(message::error(&problem(why)));
                    outbox.end.token.cancel();
                }
                () = outbox.end.token.cancelled() => {}
            }
        });
    }

    fn refuse(&self, problem: &Problem, delimited: bool) {
        self.front.app.zmq.refused.add(1);
        self.say(message::error(problem), delimited);
    }

    fn say(&self, body: Bytes, delimited: bool) {
        self.outbox.put(Outgoing::Message { delimited, body });
    }
}

fn problem(fault: Fault) -> Problem {
    fault.problem("").problem
}
