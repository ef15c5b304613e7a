//! Publishes offers, as if all of a call were sent at once.

use super::server::{Publishing, Right};
use super::{Failure, MemoryBus, PLACE, error, is_foreign};
use crate::Error;
use crate::bus::{EntryId, Noted, Offer, Progress, Publisher, Stop, ahead, check_offers};
use crate::fault::invalid;

pub(super) struct MemoryPublisher {
    bus: MemoryBus,
    right: Right,
    cursor: EntryId,
    stopped: bool,
}

impl MemoryPublisher {
    pub(super) fn new(bus: MemoryBus, right: Right, cursor: EntryId) -> Self {
        Self { bus, right, cursor, stopped: false }
    }
}

impl Publisher for MemoryPublisher {
    fn generation(&self) -> u64 {
        self.right.generation
    }

    fn cursor(&self) -> EntryId {
        self.cursor
    }

    fn publish(&mut self, offers: &[Offer]) -> Result<Progress, Error> {
        let doing = "publish offers";
        check_offers(doing, offers)?;
        if self.stopped {
            return Err(invalid(doing, "this publisher has stopped"));
        }
        let mut progress = Progress { published: 0, repeated: 0, stop: None };
        let mut lost = None;
        for offer in offers {
            let fate = lost.or_else(|| self.bus.fate());
            let (channels, right, after) = (self.bus.channels.clone(), self.right, self.cursor);
            let sent = offer.clone();
            let result =
                self.bus.call_so(fate, move |state, _| state.publish(&channels, right, after, &sent));
            let stop = match result {
                Err(Failure::Lost(fault)) => {
                    // What was sent with it may be done, too: each follows the one before it.
                    (lost, self.cursor) = (Some(fault), offer.lease.into());
                    progress.stop = Some(Stop::Unknown);
                    continue;
                }
                Err(Failure::Refused) => Stop::Refused(error(doing, Failure::Refused)),
                Ok(Publishing::Done) => {
                    progress.published += 1;
                    self.cursor = offer.lease.into();
                    continue;
                }
                Ok(Publishing::Repeated) => {
                    progress.published += 1;
                    progress.repeated += 1;
                    continue;
                }
                Ok(Publishing::Stale { term, generation }) => Stop::Stale { term, generation },
                Ok(Publishing::Forgotten) => {
                    self.bus.seen().forgotten();
                    Stop::RolledBack
                }
                Ok(Publishing::Ahead(channel)) => Stop::Refused(ahead(doing, PLACE, offer, &channel)),
                Ok(Publishing::Foreign(other)) => Stop::Refused(is_foreign(doing, other, self.right.journal)),
            };
            progress.stop = Some(stop);
            break;
        }
        self.stopped = progress.stop.is_some();
        let before = self.bus.seen().newest();
        let found = Noted { last: self.cursor.max(before.last), ..before };
        if !self.stopped {
            self.bus.seen().learn(before, Some(found));
        }
        Ok(progress)
    }
}
