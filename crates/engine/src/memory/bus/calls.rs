//! The contract, by calls to the server.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_core::{LeaseId, Name, Term};

use super::publisher::MemoryPublisher;
use super::server::{Claiming, Fields, Right, State};
use super::{Failure, MemoryBus, PLACE, error, is_foreign};
use crate::bus::{
    Budget, Bus, Channel, Checked, Claimed, Closed, DATA, Ended, EntryId, Figures, Found, JobChannel, Left,
    Message, Noted, OpenJobs, Queue, Sent, Taken, Topic, check_channels, check_count, check_messages,
    check_reclaimed,
};
use crate::{Error, JournalId};

impl Bus for MemoryBus {
    fn open(&self, journal: JournalId, node: &Name) -> Result<(), Error> {
        let doing = "open the bus";
        let (channels, own) = (self.channels.clone(), node.clone());
        let found = self.get(doing, move |state, _| state.open(&channels, journal, &own))?;
        let found = found.map_err(|other| is_foreign(doing, other, journal))?;
        self.seen().opened(journal, node, found);
        Ok(())
    }

    fn claim(&self, term: Term) -> Result<Claimed, Error> {
        let doing = "claim the bus";
        let (journal, used, before) = {
            let seen = self.seen();
            if seen.is_rolled_back() {
                return Ok(Claimed::RolledBack);
            }
            (seen.journal(doing)?, seen.used(), seen.newest())
        };
        let (channels, right) = (self.channels.clone(), Right { journal, term, generation: 0 });
        match self.get(doing, move |state, _| state.claim(&channels, right, used))? {
            Claiming::Foreign(other) => Err(is_foreign(doing, other, journal)),
            Claiming::Stale(Noted { term, generation, .. }) => Ok(Claimed::Stale { term, generation }),
            Claiming::Forgotten => {
                self.seen().forgotten();
                Ok(Claimed::RolledBack)
            }
            Claiming::Done(noted) => {
                if !self.seen().learn(before, Some(noted)) {
                    return Ok(Claimed::RolledBack);
                }
                let bus = Self { own: Arc::clone(&self.own), ..self.connect() };
                let right = Right { generation: noted.generation, ..right };
                Ok(Claimed::Done(Box::new(MemoryPublisher::new(bus, right, noted.last))))
            }
        }
    }

    fn check(&self) -> Result<Checked, Error> {
        let doing = "check the bus";
        let (journal, before) = {
            let seen = self.seen();
            (seen.journal(doing)?, seen.newest())
        };
        let channels = self.channels.clone();
        let found = self.get(doing, move |state, _| state.noted(&channels))?;
        if let Some((other, _)) = found.filter(|(found, _)| *found != journal) {
            return Err(is_foreign(doing, other, journal));
        }
        let sound = self.seen().learn(before, found.map(|(_, noted)| noted));
        Ok(if sound { Checked::Sound } else { Checked::RolledBack })
    }

    fn close(&self, ended: &[Ended]) -> Result<Vec<Closed>, Error> {
        check_count("close channels", ended.len())?;
        let one = |ended: &Ended| {
            let (channels, ended) = (self.channels.clone(), ended.clone());
            self.get("close channels", move |state, _| state.close(&channels, &ended))
        };
        ended.iter().map(one).collect()
    }

    fn send(&self, messages: &[Message]) -> Result<Vec<Sent>, Error> {
        let doing = "send a message";
        check_messages(doing, messages)?;
        let (mut results, mut lost) = (Vec::with_capacity(messages.len()), None);
        for message in messages {
            let (name, data) = (self.channels.name(&message.channel), message.data.clone().into_bytes());
            let fields: Fields = vec![(DATA.as_bytes().to_vec(), data)];
            let fate = lost.or_else(|| self.fate());
            match self.call_so(fate, move |state, now| state.send(&name, fields, now)) {
                Ok(Some(id)) => results.push(Sent::Done(id)),
                Ok(None) => results.push(Sent::Closed),
                Err(Failure::Lost(fault)) => {
                    lost = Some(fault);
                    results.push(Sent::Unknown);
                }
                Err(Failure::Refused) => results.push(Sent::Refused),
            }
        }
        if !results.is_empty() && results.iter().all(|sent| *sent == Sent::Refused) {
            return Err(error(doing, Failure::Refused));
        }
        Ok(results)
    }

    fn take(&self, queue: &Queue, consumer: &Name, at_most: usize) -> Result<Taken, Error> {
        let doing = "take messages";
        check_count(doing, at_most)?;
        let (channels, queue, consumer) = (self.channels.clone(), queue.clone(), consumer.clone());
        let taken = self.call(move |state, now| state.take(&channels, &queue, &consumer, (at_most, now)));
        self.taken(doing, taken)
    }

    fn reclaim(
        &self,
        queue: &Queue,
        consumer: &Name,
        idle: Duration,
        at_most: usize,
    ) -> Result<Taken, Error> {
        let doing = "reclaim messages";
        check_count(doing, at_most)?;
        check_reclaimed(doing, queue)?;
        let (channels, queue, consumer) = (self.channels.clone(), queue.clone(), consumer.clone());
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let act = move |state: &mut State, now: u64| {
            state.reclaim(&channels, &queue, &consumer, (idle, at_most, now))
        };
        self.taken(doing, self.call(act))
    }

    fn settle(&self, queue: &Queue, entries: &[EntryId]) -> Result<(), Error> {
        check_count("settle messages", entries.len())?;
        let (channels, queue, entries) = (self.channels.clone(), queue.clone(), entries.to_vec());
        self.get("settle messages", move |state, _| state.settle(&channels, &queue, &entries))
    }

    fn jobs(&self, from: u64) -> Result<OpenJobs, Error> {
        let channels = self.channels.clone();
        self.get("look for channels", move |state, _| state.jobs(&channels, from))
    }

    fn read(&self, after: &[(Channel, EntryId)], budget: Budget) -> Result<Found, Error> {
        check_channels("read channels", after.len())?;
        let (channels, after) = (self.channels.clone(), after.to_vec());
        self.get("read channels", move |state, _| state.read(&channels, &after, budget))
    }

    fn delete(&self, channel: JobChannel, lease: LeaseId, entries: &[EntryId]) -> Result<Closed, Error> {
        check_count("delete messages", entries.len())?;
        let (channels, entries) = (self.channels.clone(), entries.to_vec());
        self.get("delete messages", move |state, _| state.delete(&channels, channel, lease, &entries))
    }

    fn trim(&self, topics: &[Topic], keep: Duration) -> Result<(), Error> {
        let (channels, topics) = (self.channels.clone(), topics.to_vec());
        let keep = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        self.get("trim topics", move |state, now| state.trim(&channels, &topics, now.saturating_sub(keep)))
    }

    fn leave(&self, consumer: &Name) -> Result<Left, Error> {
        let (channels, consumer) = (self.channels.clone(), consumer.clone());
        self.get("leave the bus", move |state, _| state.leave(&channels, &consumer))
    }

    fn figures(&self, queues: &[Queue]) -> Result<Vec<Figures>, Error> {
        let (channels, queues) = (self.channels.clone(), queues.to_vec());
        let all = move |state: &mut State, _| {
            queues.iter().map(|queue| state.figures(&channels, queue)).collect::<Vec<_>>()
        };
        self.get("measure queues", all)
    }

    fn place(&self) -> String {
        PLACE.to_owned()
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}
