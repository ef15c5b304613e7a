//! The follower's end of a link: asks go out within the leader's window, and each ends exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::link::answer_codec::{Wanted, leases_of};
use crate::link::codec::{decoded, encoded};
use crate::link::frame::{self, Broken, Frame, Kind, Received};
use crate::link::hello::Hello;
use crate::link::message::{Answered, AskId, Question, Reply};
use crate::link::outbox::{Outbox, Sending};
use crate::link::pulse::Pulse;
use crate::link::{GIVE_BACK_LEASES_MAX, MESSAGE_BYTES_MAX, PARTIAL_BYTES_MAX};
use crate::request::Ask;
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
    /// Asks that wait for room in the leader's window, oldest first.
    waiting: BTreeMap<AskId, Waits>,
    /// When those that have a deadline are not asked any more.
    deadlines: BTreeSet<(Duration, AskId)>,
    /// Every ask without an answer.
    open: BTreeMap<AskId, Open>,
    /// How many of them do not wait for room.
    begun: usize,
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
    /// It has room in the leader's window.
    has_begun: bool,
    is_taken: bool,
    is_cancelled: bool,
    answer: Vec<u8>,
}

/// An ask that waits for room.
#[derive(Debug)]
struct Waits {
    bytes: Vec<u8>,
    until: Option<Duration>,
}

/// What the leader's end has said.
#[derive(Debug)]
pub enum Heard {
    /// The leader can be asked.
    Ready(Hello),
    /// The one answer to an ask.
    Answer(AskId, Answered),
    /// The leader has answered something that this node cannot read: what came of the ask is not known.
    Unreadable(AskId),
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

/// Why an ask does not go over this link. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAsked {
    /// Too many have no answer yet.
    Full,
    TooLarge,
    /// It is for the leader of this process alone.
    Local,
    /// The leader takes no more.
    GoneAway,
}

impl Asker {
    #[must_use]
    pub fn new(ours: Hello, now: Duration) -> Self {
        let mut outbox = Outbox::new(Kind::Ask, usize::MAX);
        ours.write(outbox.control());
        Self {
            ours,
            theirs: None,
            pulse: Pulse::new(now),
            received: Received::default(),
            outbox,
            next: 1,
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            open: BTreeMap::new(),
            begun: 0,
            untaken_bytes: 0,
            partial_bytes: 0,
            last_taken: None,
        }
    }

    /// Asks. What the ask is to be sent as is made at once; it is sent when the leader has room for it.
    ///
    /// # Errors
    /// When too many have no answer yet, the ask is too large or not for other nodes, or the leader takes no more.
    pub fn ask(&mut self, question: &Question, now: Duration) -> Result<AskId, NotAsked> {
        if matches!(question.ask, Ask::Dispatch(_)) {
            return Err(NotAsked::Local);
        }
        if self.last_taken.is_some() {
            return Err(NotAsked::GoneAway);
        }
        if self.open.len() >= self.asks_max() {
            return Err(NotAsked::Full);
        }
        let bytes = encoded(question);
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(NotAsked::TooLarge);
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
        let until = question.within.map(|within| now + within);
        self.deadlines.extend(until.map(|until| (until, id)));
        self.waiting.insert(id, Waits { bytes, until });
        Ok(id)
    }

    /// One that waits for room does so no longer.
    fn stop_waiting(&mut self, ask: AskId) -> Option<Waits> {
        let waits = self.waiting.remove(&ask)?;
        if let Some(until) = waits.until {
            self.deadlines.remove(&(until, ask));
        }
        Some(waits)
    }

    /// Asks for which there was no room in time. They end here; nothing of them was sent.
    pub fn overdue(&mut self, now: Duration) -> Vec<AskId> {
        let mut overdue = Vec::new();
        while let Some((until, ask)) = self.deadlines.first().copied()
            && until <= now
        {
            self.stop_waiting(ask);
            self.close(ask);
            overdue.push(ask);
        }
        overdue
    }

    fn asks_max(&self) -> usize {
        self.theirs.as_ref().map_or(self.ours.asks_max, |theirs| theirs.asks_max)
    }

    /// The caller has disconnected. One that comes all the same is given back.
    pub fn cancel(&mut self, ask: AskId) {
        if self.open.get(&ask).is_none_or(|open| open.is_cancelled) {
            return;
        }
        let is_unsent = self.stop_waiting(ask).is_some()
            || self.outbox.drop_message(ask).is_some_and(|message| message.is_unsent());
        if is_unsent {
            // The leader has not heard of it, and would not answer.
            self.close(ask);
        } else if let Some(open) = self.open.get_mut(&ask) {
            open.is_cancelled = true;
            frame::write(self.outbox.control(), Kind::Cancel, true, ask.0, &[]);
        }
    }

    /// Forgets an ask, with what it counted for.
    fn close(&mut self, ask: AskId) -> Option<Open> {
        let open = self.open.remove(&ask)?;
        self.begun -= usize::from(open.has_begun);
        if open.has_begun && !open.is_taken {
            self.untaken_bytes -= open.bytes;
        }
        self.partial_bytes -= open.answer.len();
        Some(open)
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
        for leases in abandoned.leases.chunks(GIVE_BACK_LEASES_MAX) {
            let part = Abandoned { at: abandoned.at, leases: leases.to_vec() };
            frame::write(self.outbox.control(), Kind::GiveBack, true, 0, &encoded(&part));
        }
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
                self.outbox.pong();
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
        let Open { wanted, is_cancelled, answer, .. } = self.close(id).expect("it was just found");
        // A leader answers before it has all of an ask only if it will not take it.
        self.outbox.drop_message(id);
        let is_wanted = |answered: &Answered| match &answered.reply {
            Reply::Done(Ok(answer)) => wanted.is(answer),
            Reply::Done(Err(_))
            | Reply::NotTaken
            | Reply::Limited(_)
            | Reply::Behind { .. }
            | Reply::Cancelled => true,
        };
        match decoded::<Answered>(&answer).ok().filter(is_wanted) {
            Some(answered) if is_cancelled => self.give_back(&answered),
            Some(answered) => heard.push(Heard::Answer(id, answered)),
            None if is_cancelled => {}
            None => heard.push(Heard::Unreadable(id)),
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
        // An ask that waits for space is not taken either, whatever its number.
        let is_not_taken = |(id, open): (&AskId, &Open)| (*id > last || !open.has_begun).then_some(*id);
        let not_taken: Vec<AskId> = self.open.iter().filter_map(is_not_taken).collect();
        self.waiting.clear();
        self.deadlines.clear();
        let mut awaited = Vec::new();
        for id in not_taken {
            self.outbox.drop_message(id);
            if self.close(id).is_some_and(|open| !open.is_cancelled) {
                awaited.push(id);
            }
        }
        heard.push(Heard::GoAway(awaited));
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
        let (Some(theirs), Some((_, next))) = (&self.theirs, self.waiting.first_key_value()) else {
            return false;
        };
        let has_room =
            self.untaken_bytes == 0 || self.untaken_bytes + next.bytes.len() <= theirs.window_bytes;
        has_room && self.begun < theirs.asks_max
    }

    fn begin_asks(&mut self) {
        while self.fits_next()
            && let Some(ask) = self.waiting.keys().next().copied()
            && let Some(waits) = self.stop_waiting(ask)
        {
            let open = self.open.get_mut(&ask).expect("an ask that waits to be sent is open");
            open.has_begun = true;
            self.begun += 1;
            self.untaken_bytes += open.bytes;
            self.outbox.push(ask, Sending::new(waits.bytes, ()));
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

    /// When [`Asker::tick`] or [`Asker::overdue`] has something to do next.
    #[must_use]
    pub fn next_due(&self) -> Duration {
        let pulse = self.pulse.next_due();
        self.deadlines.first().map_or(pulse, |(until, _)| pulse.min(*until))
    }

    /// Bytes of asks that were begun and not taken.
    #[cfg(test)]
    pub(super) fn untaken_bytes(&self) -> usize {
        self.untaken_bytes
    }

    /// Answers that are here in part.
    #[cfg(test)]
    pub(super) fn partial(&self) -> usize {
        self.open.values().filter(|open| !open.answer.is_empty()).count()
    }

    /// The link is lost: what is known of each ask with a waiting caller.
    #[must_use]
    pub fn cut(self) -> Vec<(AskId, Fate)> {
        let is_unsent =
            |id: AskId, open: &Open| !open.has_begun || self.outbox.get(id).is_some_and(Sending::is_unsent);
        let fate = |id, open| if is_unsent(id, open) { Fate::NotTaken } else { Fate::Unknown };
        let awaited = self.open.iter().filter(|(_, open)| !open.is_cancelled);
        awaited.map(|(id, open)| (*id, fate(*id, open))).collect()
    }
}
