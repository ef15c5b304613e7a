//! The follower's end of a link: asks go out within the leader's window, and each ends exactly once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::link::answer_codec::{Wanted, leases_of};
use crate::link::codec::{decoded, encoded};
use crate::link::frame::{self, Broken, Frame, Kind, Received};
use crate::link::hello::Hello;
use crate::link::message::{Answered, AskId, Question, Reply};
use crate::link::outbox::{Outbox, Sending};
use crate::link::pulse::Pulse;
use crate::link::{MESSAGE_BYTES_MAX, PARTIAL_BYTES_MAX};
use crate::tasks::Abandoned;

/// The follower's end.
#[derive(Debug)]
pub struct Asker {
    ours: Hello,
    theirs: Option<Hello>,
    pulse: Pulse,
    received: Received,
    outbox: Outbox<()>,
    next: u64,
    /// Asks that have not begun to be sent, oldest first.
    waiting: VecDeque<Sending<()>>,
    /// Every ask without an answer.
    open: BTreeMap<AskId, Open>,
    /// Bytes of asks that were begun and that the leader's loop has not taken, as far as known.
    untaken_bytes: usize,
    /// Bytes of answers that are here in part.
    partial_bytes: usize,
    /// Asks with a larger number are not taken.
    last_taken: Option<AskId>,
}

#[derive(Debug)]
struct Open {
    wanted: Wanted,
    bytes: usize,
    has_begun: bool,
    is_taken: bool,
    is_cancelled: bool,
    answer: Vec<u8>,
}

/// What the leader's end has said.
#[derive(Debug)]
pub enum Heard {
    /// The leader can be asked.
    Ready(Hello),
    /// The one answer to an ask.
    Answer(AskId, Answered),
    /// These asks were certainly not taken, and this link takes no more.
    GoAway(Vec<AskId>),
}

/// What is known of an ask whose link was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Certainly not decided.
    NotTaken,
    /// It may have been decided.
    Unknown,
}

/// There is no room for another ask on this link. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overfull;

impl Asker {
    #[must_use]
    pub fn new(ours: Hello, now: Duration) -> Self {
        let mut outbox = Outbox::new(Kind::Ask);
        ours.write(outbox.control());
        Self {
            ours,
            theirs: None,
            pulse: Pulse::new(now),
            received: Received::default(),
            outbox,
            next: 1,
            waiting: VecDeque::new(),
            open: BTreeMap::new(),
            untaken_bytes: 0,
            partial_bytes: 0,
            last_taken: None,
        }
    }

    /// Asks. What the ask is to be sent as is made at once; it is sent when the leader has room for it.
    ///
    /// # Errors
    /// When too many have no answer yet, the ask is too large, or the leader takes no more.
    pub fn ask(&mut self, question: &Question) -> Result<AskId, Overfull> {
        let asks_max = self.theirs.as_ref().map_or(self.ours.asks_max, |theirs| theirs.asks_max);
        if self.open.len() >= asks_max || self.last_taken.is_some() {
            return Err(Overfull);
        }
        let bytes = encoded(question);
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Overfull);
        }
        let id = AskId(self.next);
        self.next += 1;
        let open = Open {
            wanted: Wanted::by(&question.ask),
            bytes: bytes.len(),
            has_begun: false,
            is_taken: false,
            is_cancelled: false,
            answer: Vec::new(),
        };
        self.open.insert(id, open);
        self.waiting.push_back(Sending::new(id, bytes, ()));
        Ok(id)
    }

    /// Nobody waits for the answer any more. One that comes all the same is given back.
    pub fn cancel(&mut self, ask: AskId) {
        let Some(open) = self.open.get_mut(&ask) else { return };
        if !open.has_begun {
            self.open.remove(&ask);
            self.waiting.retain(|message| message.ask != ask);
        } else if !open.is_cancelled {
            open.is_cancelled = true;
            self.outbox.drop_message(ask);
            frame::write(self.outbox.control(), Kind::Cancel, true, ask.0, &[]);
        }
    }

    /// An answer with leases was not taken by its caller.
    pub fn give_back(&mut self, answered: &Answered) {
        if let Reply::Done(Ok(answer)) = &answered.reply
            && let Some(abandoned) = leases_of(answer)
        {
            self.give_back_leases(&abandoned);
        }
    }

    fn give_back_leases(&mut self, abandoned: &Abandoned) {
        frame::write(self.outbox.control(), Kind::GiveBack, true, 0, &encoded(abandoned));
    }

    /// Asks without an answer, waiting calls included.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether more can be asked.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.last_taken.is_none()
    }

    /// Takes bytes that came.
    ///
    /// # Errors
    /// When the link cannot go on.
    pub fn receive(&mut self, bytes: &[u8], now: Duration, heard: &mut Vec<Heard>) -> Result<(), Broken> {
        if !bytes.is_empty() {
            self.pulse.heard(now);
        }
        let mut received = std::mem::take(&mut self.received);
        let taken = received.take(bytes, |frame| self.frame(&frame, heard));
        self.received = received;
        taken
    }

    fn frame(&mut self, frame: &Frame<'_>, heard: &mut Vec<Heard>) -> Result<(), Broken> {
        if self.theirs.is_none() {
            let theirs = self.ours.read(frame)?;
            self.pulse.met();
            self.theirs = Some(theirs.clone());
            heard.push(Heard::Ready(theirs));
            return Ok(());
        }
        match frame.kind {
            Kind::Answer => self.answer(frame, heard),
            Kind::Taken => self.taken(frame),
            Kind::GoAway => self.go_away(AskId(frame.ask), heard),
            Kind::Ping => {
                frame::write(self.outbox.control(), Kind::Pong, true, 0, &[]);
                Ok(())
            }
            Kind::Pong => Ok(()),
            Kind::Hello | Kind::Ask | Kind::Cancel | Kind::GiveBack => {
                Err(Broken::Protocol("a leader does not send this frame"))
            }
        }
    }

    fn answer(&mut self, frame: &Frame<'_>, heard: &mut Vec<Heard>) -> Result<(), Broken> {
        let id = AskId(frame.ask);
        let open = self.open.get_mut(&id).filter(|open| open.has_begun);
        let open = open.ok_or(Broken::Protocol("an answer to nothing that was asked"))?;
        if !open.is_taken {
            open.is_taken = true;
            self.untaken_bytes -= open.bytes;
        }
        open.answer.extend_from_slice(frame.payload);
        self.partial_bytes += frame.payload.len();
        if open.answer.len() > MESSAGE_BYTES_MAX {
            return Err(Broken::TooLarge { what: "one answer", max: MESSAGE_BYTES_MAX });
        }
        if self.partial_bytes > PARTIAL_BYTES_MAX {
            return Err(Broken::TooLarge { what: "answers in part", max: PARTIAL_BYTES_MAX });
        }
        if !frame.is_last {
            return Ok(());
        }
        let open = self.open.remove(&id).expect("it was just found");
        self.partial_bytes -= open.answer.len();
        // A leader answers before it has all of an ask only if it will not take it.
        self.outbox.drop_message(id);
        let answered: Answered =
            decoded(&open.answer).map_err(|_| Broken::Protocol("an answer that cannot be read"))?;
        if let Reply::Done(Ok(answer)) = &answered.reply
            && !open.wanted.is(answer)
        {
            return Err(Broken::Protocol("an answer of another kind than the ask"));
        }
        if open.is_cancelled {
            self.give_back(&answered);
        } else {
            heard.push(Heard::Answer(id, answered));
        }
        Ok(())
    }

    fn taken(&mut self, frame: &Frame<'_>) -> Result<(), Broken> {
        let (ids, rest) = frame.payload.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Broken::Protocol("a list of asks is cut off"));
        }
        for id in ids {
            // Its answer may have come before.
            if let Some(open) = self.open.get_mut(&AskId(u64::from_le_bytes(*id)))
                && open.has_begun
                && !open.is_taken
            {
                open.is_taken = true;
                self.untaken_bytes -= open.bytes;
            }
        }
        Ok(())
    }

    fn go_away(&mut self, last: AskId, heard: &mut Vec<Heard>) -> Result<(), Broken> {
        if self.last_taken.is_some_and(|before| before != last) || last.0 >= self.next {
            return Err(Broken::Protocol("a second farewell"));
        }
        self.last_taken = Some(last);
        self.waiting.clear();
        let not_taken = self.open.split_off(&AskId(last.0 + 1));
        for (id, open) in &not_taken {
            self.outbox.drop_message(*id);
            if open.has_begun && !open.is_taken {
                self.untaken_bytes -= open.bytes;
            }
            self.partial_bytes -= open.answer.len();
        }
        // Those up to it that were never begun are not taken either.
        let unbegun = self.open.extract_if(.., |_, open| !open.has_begun).map(|(id, _)| id);
        let mut ids: Vec<AskId> = unbegun.collect();
        ids.extend(not_taken.into_iter().filter(|(_, open)| !open.is_cancelled).map(|(id, _)| id));
        heard.push(Heard::GoAway(ids));
        Ok(())
    }

    /// Moves what is to be sent into a buffer, until that has about `enough` bytes.
    pub fn send(&mut self, buffer: &mut Vec<u8>, enough: usize) {
        self.begin_asks();
        self.outbox.fill(buffer, enough);
    }

    /// Whether there is something to send now.
    #[must_use]
    pub fn wants_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.fits_next()
    }

    /// One that is larger than the window goes alone.
    fn fits_next(&self) -> bool {
        let (Some(theirs), Some(next)) = (&self.theirs, self.waiting.front()) else { return false };
        self.untaken_bytes == 0 || self.untaken_bytes + next.bytes.len() <= theirs.window_bytes
    }

    fn begin_asks(&mut self) {
        while self.fits_next()
            && let Some(message) = self.waiting.pop_front()
        {
            let open = self.open.get_mut(&message.ask).expect("an ask that waits to be sent is open");
            open.has_begun = true;
            self.untaken_bytes += open.bytes;
            self.outbox.push(message);
        }
    }

    /// Time has passed.
    ///
    /// # Errors
    /// When the leader's end has given no sign of life in time.
    pub fn tick(&mut self, now: Duration) -> Result<(), Broken> {
        if self.pulse.tick(now)? {
            frame::write(self.outbox.control(), Kind::Ping, true, 0, &[]);
        }
        Ok(())
    }

    /// When [`Asker::tick`] has something to do next.
    #[must_use]
    pub fn next_due(&self) -> Duration {
        self.pulse.next_due()
    }

    /// Bytes of asks that were begun and not taken.
    #[cfg(test)]
    pub(super) fn untaken_bytes(&self) -> usize {
        self.untaken_bytes
    }

    /// The link is lost: what is known of each ask that somebody still waits for.
    #[must_use]
    pub fn cut(self) -> Vec<(AskId, Fate)> {
        let fate = |open: &Open| if open.has_begun { Fate::Unknown } else { Fate::NotTaken };
        let awaited = self.open.iter().filter(|(_, open)| !open.is_cancelled);
        awaited.map(|(id, open)| (*id, fate(open))).collect()
    }
}
