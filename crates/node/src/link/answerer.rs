//! The leader's end of a link: asks come in, and each is answered exactly once, unless the link is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use orchestrix_core::{Position, Refusal};

use crate::caller::Caller;
use crate::link::ask_codec::validate;
use crate::link::bus_codec::may_leave;
use crate::link::codec::{decoded, encoded};
use crate::link::frame::{self, Broken, Frame, Kind, PAYLOAD_BYTES_MAX, Received};
use crate::link::hello::Hello;
use crate::link::message::{Answered, AskId, Question, Reply};
use crate::link::outbox::{Outbox, Sending};
use crate::link::pulse::Pulse;
use crate::link::{LONG_ANSWERS_MAX, MESSAGE_BYTES_MAX};
use crate::node::check_named;
use crate::request::{Answer, Ask, Error};
use crate::tasks::Abandoned;

/// The leader's end. `H` is held for each answer until all of it is handed over for sending.
#[derive(Debug)]
pub struct Answerer<H> {
    ours: Hello,
    theirs: Option<Hello>,
    pulse: Pulse,
    received: Received,
    outbox: Outbox<Option<H>>,
    /// The largest number that was seen.
    last: AskId,
    /// Asks that were begun and are not answered.
    open: BTreeMap<AskId, Open>,
    /// Bytes of asks that the loop has not taken.
    untaken_bytes: usize,
    /// How many they are.
    untaken: usize,
    /// Taken since the last frame that said so.
    taken: Vec<AskId>,
    /// How far the journal is durable; goes with every answer.
    position: Position,
    has_gone_away: bool,
}

#[derive(Debug)]
struct Open {
    since: Duration,
    /// What is there of it, until it is whole.
    bytes: Vec<u8>,
    size: usize,
    is_whole: bool,
    is_taken: bool,
}

/// What the follower's end has said.
#[derive(Debug)]
pub enum Asked {
    /// The follower can be answered.
    Ready(Hello),
    /// An ask that is whole and valid. It is to be answered once.
    Ask(AskId, Question),
    /// The caller has disconnected. It is to be answered all the same, with what is known or with
    /// [`Reply::Cancelled`].
    Cancel(AskId),
    /// Leases of an answer that was not taken.
    GiveBack(Abandoned),
}

impl<H> Answerer<H> {
    #[must_use]
    pub fn new(ours: Hello, now: Duration) -> Self {
        let mut outbox = Outbox::new(Kind::Answer, LONG_ANSWERS_MAX);
        ours.write(outbox.control());
        Self {
            ours,
            theirs: None,
            pulse: Pulse::new(now),
            received: Received::default(),
            outbox,
            last: AskId(0),
            open: BTreeMap::new(),
            untaken_bytes: 0,
            untaken: 0,
            taken: Vec::new(),
            position: Position(0),
            has_gone_away: false,
        }
    }

    /// Takes bytes that came.
    ///
    /// # Errors
    /// When the link cannot go on.
    pub fn receive(&mut self, bytes: &[u8], now: Duration, asked: &mut Vec<Asked>) -> Result<(), Broken> {
        if !bytes.is_empty() {
            self.pulse.heard(now);
        }
        let mut received = std::mem::take(&mut self.received);
        let taken = received.take(bytes, |frame| self.frame(&frame, now, asked));
        self.received = received;
        taken
    }

    fn frame(&mut self, frame: &Frame<'_>, now: Duration, asked: &mut Vec<Asked>) -> Result<(), Broken> {
        if self.theirs.is_none() {
            let theirs = self.ours.read(frame)?;
            self.pulse.met();
            self.theirs = Some(theirs.clone());
            asked.push(Asked::Ready(theirs));
            return Ok(());
        }
        match frame.kind {
            Kind::Ask => self.ask(frame, now, asked),
            Kind::Cancel => {
                self.cancel(AskId(frame.ask), asked);
                Ok(())
            }
            Kind::GiveBack => {
                let abandoned = decoded(frame.payload);
                asked.push(Asked::GiveBack(
                    abandoned.map_err(|_| Broken::Protocol("leases that cannot be read"))?,
                ));
                Ok(())
            }
            Kind::Ping => {
                self.outbox.pong();
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::Hello | Kind::Answer | Kind::Taken | Kind::GoAway => {
                Err(Broken::Protocol("a follower does not send this frame"))
            }
        }
    }

    fn ask(&mut self, frame: &Frame<'_>, now: Duration, asked: &mut Vec<Asked>) -> Result<(), Broken> {
        let id = AskId(frame.ask);
        if id > self.last && self.has_gone_away {
            return Ok(());
        }
        if id > self.last {
            self.begin(id, now)?;
        }
        let Some(open) = self.open.get_mut(&id).filter(|open| !open.is_whole) else {
            // What was still on its way when the ask was refused or cancelled.
            return Ok(());
        };
        open.bytes.extend_from_slice(frame.payload);
        open.size += frame.payload.len();
        self.untaken_bytes += frame.payload.len();
        if open.size > MESSAGE_BYTES_MAX {
            return Err(Broken::TooLarge { what: "one ask", max: MESSAGE_BYTES_MAX });
        }
        if self.untaken_bytes > self.ours.window_bytes && self.untaken > 1 {
            return Err(Broken::TooLarge { what: "asks beyond the window", max: self.ours.window_bytes });
        }
        if frame.is_last {
            self.whole(id, now, asked);
        }
        Ok(())
    }

    fn begin(&mut self, id: AskId, now: Duration) -> Result<(), Broken> {
        // The follower counts an ask until all of its answer is there.
        if self.open.len() + self.outbox.len() >= self.ours.asks_max {
            return Err(Broken::TooLarge { what: "asks without an answer", max: self.ours.asks_max });
        }
        self.last = id;
        self.untaken += 1;
        let open = Open { since: now, bytes: Vec::new(), size: 0, is_whole: false, is_taken: false };
        self.open.insert(id, open);
        Ok(())
    }

    fn whole(&mut self, id: AskId, now: Duration, asked: &mut Vec<Asked>) {
        let open = self.open.get_mut(&id).expect("its last piece just came");
        open.is_whole = true;
        let (bytes, since) = (std::mem::take(&mut open.bytes), open.since);
        let refused = |refusal| Reply::Done(Err(Error::Refused(refusal)));
        match decoded::<Question>(&bytes) {
            Err(_) => self.answer(id, refused(Refusal::Internal), None),
            Ok(question) => match check(&question) {
                Err(refusal) => self.answer(id, refused(refusal), None),
                Ok(()) if question.within.is_some_and(|within| now >= since + within) => {
                    self.answer(id, Reply::Done(Err(Error::Overloaded)), None);
                }
                Ok(()) => asked.push(Asked::Ask(id, question)),
            },
        }
    }

    fn cancel(&mut self, id: AskId, asked: &mut Vec<Asked>) {
        match self.open.get(&id) {
            // Its answer is on its way.
            None => {}
            Some(open) if open.is_whole => asked.push(Asked::Cancel(id)),
            Some(_) => self.answer(id, Reply::Cancelled, None),
        }
    }

    /// The loop has an ask; its bytes no longer count against the window.
    pub fn taken(&mut self, id: AskId) {
        if let Some(open) = self.open.get_mut(&id)
            && !open.is_taken
        {
            open.is_taken = true;
            self.untaken_bytes -= open.size;
            self.untaken -= 1;
            self.taken.push(id);
        }
    }

    /// Answers an ask, once. `held` is dropped when the answer is handed over for sending.
    pub fn answer(&mut self, id: AskId, reply: Reply, held: Option<H>) {
        self.answer_holding(id, reply, |_| Ok(held));
    }

    /// The same, with something held that depends on the bytes of the answer. Where there is no room for so many, `hold`
    /// says what is answered instead.
    pub fn answer_holding(
        &mut self,
        id: AskId,
        reply: Reply,
        hold: impl FnOnce(usize) -> Result<Option<H>, Reply>,
    ) {
        let Some(open) = self.open.remove(&id) else { return };
        if !open.is_taken {
            self.untaken_bytes -= open.size;
            self.untaken -= 1;
        }
        let is_local = matches!(&reply, Reply::Done(Ok(Answer::Bus(answer))) if !may_leave(answer));
        // No question has such an answer; if one had, its ask would have no other end.
        let reply = if is_local { Reply::Done(Err(Error::Refused(Refusal::Internal))) } else { reply };
        let mut bytes = encoded(&Answered { reply, position: self.position });
        if bytes.len() > MESSAGE_BYTES_MAX {
            // The same.
            let reply = Reply::Done(Err(Error::Refused(Refusal::Internal)));
            bytes = encoded(&Answered { reply, position: self.position });
        }
        let held = hold(bytes.len()).unwrap_or_else(|reply| {
            bytes = encoded(&Answered { reply, position: self.position });
            None
        });
        self.outbox.push(id, Sending::new(bytes, held));
    }

    /// How far the journal is durable.
    pub fn reached(&mut self, position: Position) {
        self.position = self.position.max(position);
    }

    /// No ask after those that were begun is taken; these are answered.
    pub fn go_away(&mut self) {
        if !std::mem::replace(&mut self.has_gone_away, true) {
            frame::write(self.outbox.control(), Kind::GoAway, true, self.last.0, &[]);
        }
    }

    /// Whether it went away, and everything is answered and handed over for sending.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.has_gone_away && self.open.is_empty() && self.outbox.is_empty()
    }

    /// Asks that were begun and are not answered.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Bytes of answers that are not handed over for sending.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// How many they are.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// Asks that the loop has not taken, as far as [`Answerer::taken`] said.
    #[must_use]
    pub fn untaken(&self) -> usize {
        self.untaken
    }

    /// The name of the follower, as it says.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.theirs.as_ref().map(|theirs| theirs.node.as_str())
    }

    /// Moves what is to be sent into a buffer, until that has about `enough` bytes.
    pub fn send(&mut self, buffer: &mut Vec<u8>, enough: usize) {
        let open = &self.open;
        // An answer says that its ask was taken.
        self.taken.retain(|id| open.contains_key(id));
        for ids in self.taken.chunks(PAYLOAD_BYTES_MAX / 8) {
            let payload: Vec<u8> = ids.iter().flat_map(|id| id.0.to_le_bytes()).collect();
            frame::write(self.outbox.control(), Kind::Taken, true, 0, &payload);
        }
        self.taken.clear();
        self.outbox.fill(buffer, enough);
    }

    /// Bytes of asks that are kept for the loop.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.open.values().map(|open| open.bytes.len()).sum()
    }

    /// Whether there is something to send now.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        !self.outbox.is_empty() || !self.taken.is_empty()
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When the follower's end has given no sign of life in time.
    pub fn tick(&mut self, now: Duration) -> Result<(), Broken> {
        if self.pulse.tick(now)? {
            frame::write(self.outbox.control(), Kind::Ping, true, 0, &[]);
        }
        Ok(())
    }

    /// When [`Answerer::tick`] has something to do next.
    #[must_use]
    pub fn next_due(&self) -> Duration {
        self.pulse.next_due()
    }
}

/// The leader refuses a queue that is not the caller's before anything else that is wrong, also for its own callers.
fn check(question: &Question) -> Result<(), Refusal> {
    if matches!(question.ask, Ask::Owner(_)) && question.caller != Caller::default() {
        // A node asks for itself, and never for a caller.
        return Err(Refusal::Internal);
    }
    validate(&question.ask).or_else(|refusal| {
        check_named(&question.caller, &question.ask)?;
        Err(refusal)
    })
}
