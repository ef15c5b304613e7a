//! Publishes offers, one script for each, many in one message.
//!
//! **Invariant:** each offer names the one before it, and is refused if that is not there. So a message stops by itself at
//! the first offer that is refused.

use std::sync::Arc;

use orchestrix_core::Term;
use redis::Connection;

use super::replies::Noting;
use super::{PUBLISH, RedisBus};
use crate::bus::{EntryId, JobChannel, Noted, Offer, Progress, Publisher, Queue, Stop, ahead, check_offers};
use crate::fault::invalid;
use crate::redis::server::{Command, Failure, heard};
use crate::{Error, JournalId};

const DOING: &str = "publish offers";
/// Offers in one message. Bounds how long it blocks the server for others.
const MESSAGE_OFFERS_MAX: usize = 100;
/// Bounds the memory of a message here, and twice that in the server.
const MESSAGE_BYTES: usize = 4 << 20;

pub(super) struct RedisPublisher {
    bus: RedisBus,
    /// For this claim alone: what is sent over an older one is of an older generation.
    connection: Option<Connection>,
    journal: JournalId,
    term: Term,
    generation: u64,
    cursor: EntryId,
    stopped: bool,
}

impl RedisPublisher {
    pub(super) fn new(bus: &RedisBus, journal: JournalId, noted: Noted) -> Self {
        let bus = RedisBus {
            server: Arc::clone(&bus.server),
            keys: Arc::clone(&bus.keys),
            channels: bus.channels.clone(),
            seen: Arc::clone(&bus.seen),
            warnings: Vec::new(),
        };
        let Noted { term, generation, last: cursor } = noted;
        Self { bus, connection: None, journal, term, generation, cursor, stopped: false }
    }

    fn command(&self, after: u64, offer: &Offer) -> Command {
        let channels = &self.bus.channels;
        let mut command = PUBLISH.with(&[
            self.bus.keys.bus(),
            channels.queue(&Queue::Assigned),
            channels.queue(&Queue::Dispatch(offer.queue.clone())),
            channels.job(JobChannel::Status(offer.task)),
            channels.job(JobChannel::Logs(offer.task)),
        ]);
        command.arg(self.journal.to_string()).arg(self.term.0).arg(self.generation).arg(after);
        command.arg(offer.lease.0).arg(offer.previous.map(|lease| lease.0.to_string()).unwrap_or_default());
        command.arg(&offer.dispatch).arg(&offer.assigned);
        command
    }

    /// Sends some offers. The first with the text of the script, which a server that was restarted has forgotten.
    fn message(&mut self, offers: &[Offer], progress: &mut Progress) -> Result<(), Stop> {
        let server = Arc::clone(&self.bus.server);
        let unknown = |failure| {
            server.unknown(DOING, &why(failure));
            Stop::Unknown
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let opened = server.open();
                opened.map_err(|failure| Stop::Refused(self.bus.error(DOING, failure)))?
            }
        };
        let mut after = self.cursor.major;
        let mut commands = Vec::with_capacity(offers.len());
        for offer in offers {
            let command = self.command(after, offer);
            commands.push(if commands.is_empty() { command.with_text() } else { command });
            after = after.max(offer.lease.0);
        }
        server.say(&mut connection, &commands).map_err(unknown)?;
        let (mut stop, mut forgotten) = (None, false);
        for offer in offers {
            let [answer] = server.hear(&mut connection).map_err(unknown)?;
            if stop.is_some() || forgotten {
                continue;
            }
            match heard(answer) {
                Ok(answer) => stop = self.taken(offer, answer, progress),
                // It was not run, and those after it are refused: they are sent again.
                Err(Failure::Refused { code, .. }) if code == "NOSCRIPT" => forgotten = true,
                Err(failure) => stop = Some(Stop::Refused(self.bus.error(DOING, failure))),
            }
        }
        self.connection = Some(connection);
        stop.map_or(Ok(()), Err)
    }

    /// What became of one offer.
    fn taken(&mut self, offer: &Offer, answer: redis::Value, progress: &mut Progress) -> Option<Stop> {
        match self.bus.noted(DOING, answer, self.journal) {
            Ok(Noting::Done) => {
                self.cursor = offer.lease.into();
                progress.published += 1;
                None
            }
            Ok(Noting::Repeated) => {
                progress.published += 1;
                progress.repeated += 1;
                None
            }
            Ok(Noting::Ahead(channel)) => {
                let place = self.bus.server.place();
                Some(Stop::Refused(ahead(DOING, place, offer, &channel)))
            }
            Ok(Noting::Stale { term, generation }) => Some(Stop::Stale { term, generation }),
            Ok(Noting::Gone | Noting::Here(_)) => {
                self.bus.seen().forgotten();
                Some(Stop::RolledBack)
            }
            Err(error) => Some(Stop::Refused(error)),
        }
    }

    /// Tells the other threads of this node what is published.
    fn tell(&self) {
        let mut seen = self.bus.seen();
        let before = seen.newest();
        if !seen.is_rolled_back() && before.last < self.cursor {
            seen.learn(before, Some(Noted { last: self.cursor, ..before }));
        }
    }
}

/// So many from the front fit one message.
fn fitting(offers: &[Offer]) -> usize {
    let lengths = offers.iter().map(|offer| offer.dispatch.len() + 3 * offer.assigned.len());
    crate::limit::fitting(lengths.take(MESSAGE_OFFERS_MAX), MESSAGE_BYTES)
}

fn why(failure: Failure) -> String {
    match failure {
        Failure::Unsent { what, .. } | Failure::Refused { what, .. } | Failure::Lost(what) => what,
    }
}

impl Publisher for RedisPublisher {
    fn generation(&self) -> u64 {
        self.generation
    }

    fn cursor(&self) -> EntryId {
        self.cursor
    }

    fn publish(&mut self, offers: &[Offer]) -> Result<Progress, Error> {
        check_offers(DOING, offers)?;
        if self.stopped {
            return Err(invalid(DOING, "this publisher has stopped"));
        }
        let mut progress = Progress { published: 0, repeated: 0, stop: None };
        while progress.published < offers.len() && progress.stop.is_none() {
            let rest = &offers[progress.published..];
            progress.stop = self.message(&rest[..fitting(rest)], &mut progress).err();
        }
        self.stopped = progress.stop.is_some();
        self.tell();
        if !self.stopped {
            self.bus.server.settled(DOING);
        }
        Ok(progress)
    }
}
