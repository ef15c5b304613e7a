//! The server of a bus in memory: streams with groups, and what is noted about claims. It does what the scripts of the bus
//! on Redis do, and nothing by itself.

use std::collections::BTreeMap;

use orchestrix_core::{LeaseId, Name, Term};

use crate::JournalId;
use crate::bus::{
    Budget, Channel, Channels, Closed, Content, Ended, Entry, EntryId, Figures, Found, JobChannel, Left,
    Noted, Offer, OpenJobs, Queue, Topic,
};

/// Channels that one look for leases goes through.
const JOBS_AT_ONCE: usize = 1_000;

/// The fields of an entry.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Everything a server has.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    streams: BTreeMap<String, Stream>,
    /// By the name of the queue of leases that need an owner, of which a domain has one.
    claims: BTreeMap<String, Claims>,
}

#[derive(Clone, Debug)]
struct Claims {
    journal: JournalId,
    noted: Noted,
}

#[derive(Clone, Debug, Default)]
struct Stream {
    entries: BTreeMap<EntryId, Fields>,
    /// The last id ever.
    last: EntryId,
    groups: BTreeMap<&'static str, Group>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    delivered: EntryId,
    pending: BTreeMap<EntryId, Pending>,
}

#[derive(Clone, Debug)]
struct Pending {
    consumer: Name,
    /// When it was delivered, in milliseconds.
    since: u64,
}

/// The claim of a publisher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Right {
    pub(super) journal: JournalId,
    pub(super) term: Term,
    pub(super) generation: u64,
}

pub(super) enum Claiming {
    Done(Noted),
    Stale(Noted),
    Forgotten,
    Foreign(JournalId),
}

pub(super) enum Publishing {
    Done,
    Repeated,
    Stale {
        term: Term,
        generation: u64,
    },
    Forgotten,
    /// This channel has a later id, of somebody else.
    Ahead(String),
    Foreign(JournalId),
}

fn data(text: &str) -> Fields {
    vec![(b"data".to_vec(), text.as_bytes().to_vec())]
}

impl Stream {
    fn add(&mut self, id: EntryId, fields: Fields) {
        assert!(id > self.last, "ids grow");
        self.last = id;
        self.entries.insert(id, fields);
    }

    fn settle(&mut self, group: &str, id: EntryId) {
        self.entries.remove(&id);
        if let Some(group) = self.groups.get_mut(group) {
            group.pending.remove(&id);
        }
    }

    fn entry(&self, id: EntryId) -> Option<Entry> {
        self.entries.get(&id).map(|fields| Entry { id, content: Content::of(fields) })
    }

    /// The lease that a channel belongs to.
    fn lease(&self) -> Option<LeaseId> {
        let (first, _) = self.entries.first_key_value().filter(|(first, _)| first.minor == 0)?;
        Some(LeaseId(first.major))
    }

    fn is_of(&self, lease: LeaseId) -> bool {
        self.entries.first_key_value().is_some_and(|(id, _)| *id == EntryId::from(lease))
    }
}

impl State {
    pub(super) fn noted(&self, channels: &Channels) -> Option<(JournalId, Noted)> {
        let claims = self.claims.get(&channels.queue(&Queue::Assigned))?;
        Some((claims.journal, claims.noted))
    }

    /// What is noted now; or the journal that has it.
    pub(super) fn open(
        &mut self,
        channels: &Channels,
        journal: JournalId,
        node: &Name,
    ) -> Result<Noted, JournalId> {
        let assigned = channels.queue(&Queue::Assigned);
        let new = Claims { journal, noted: Noted::default() };
        let claims = self.claims.entry(assigned).or_insert(new);
        if claims.journal != journal {
            return Err(claims.journal);
        }
        let noted = claims.noted;
        for queue in [Queue::Assigned, Queue::Handoff] {
            let stream = self.streams.entry(channels.queue(&queue)).or_default();
            stream.groups.entry(queue.group()).or_default();
        }
        let own = Topic::HandoffAck(node.clone());
        for topic in [Topic::Cancel, Topic::WorkerHeartbeat, Topic::CoordinatorHeartbeat, own] {
            self.streams.entry(channels.topic(&topic)).or_default();
        }
        Ok(noted)
    }

    /// `used` is the highest generation that the caller knows of.
    pub(super) fn claim(&mut self, channels: &Channels, right: Right, used: u64) -> Claiming {
        let Some((journal, mut noted)) = self.noted(channels) else { return Claiming::Forgotten };
        if journal != right.journal {
            return Claiming::Foreign(journal);
        }
        if right.term < noted.term {
            return Claiming::Stale(noted);
        }
        (noted.term, noted.generation) = (right.term, noted.generation.max(used) + 1);
        self.claims.insert(channels.queue(&Queue::Assigned), Claims { journal, noted });
        Claiming::Done(noted)
    }

    pub(super) fn publish(
        &mut self,
        channels: &Channels,
        right: Right,
        after: EntryId,
        offer: &Offer,
    ) -> Publishing {
        let Some((journal, mut noted)) = self.noted(channels) else { return Publishing::Forgotten };
        if journal != right.journal {
            return Publishing::Foreign(journal);
        }
        match (noted.term, noted.generation).cmp(&(right.term, right.generation)) {
            std::cmp::Ordering::Greater => {
                return Publishing::Stale { term: noted.term, generation: noted.generation };
            }
            std::cmp::Ordering::Less => return Publishing::Forgotten,
            std::cmp::Ordering::Equal => {}
        }
        let id = EntryId::from(offer.lease);
        if noted.last >= id {
            return Publishing::Repeated;
        }
        if noted.last < after {
            return Publishing::Forgotten;
        }
        let assigned = channels.queue(&Queue::Assigned);
        match self.streams.get(&assigned) {
            None => return Publishing::Forgotten,
            Some(stream) if stream.last >= id => return Publishing::Ahead(assigned),
            Some(_) => {}
        }
        let queue = Queue::Dispatch(offer.queue.clone());
        let name = channels.queue(&queue);
        let dispatch = self.streams.entry(name.clone()).or_default();
        if dispatch.last >= id {
            return Publishing::Ahead(name);
        }
        if let Some(previous) = offer.previous {
            dispatch.settle(queue.group(), previous.into());
        }
        dispatch.add(id, data(&offer.dispatch));
        for channel in [JobChannel::Status(offer.task), JobChannel::Logs(offer.task)] {
            let mut stream = Stream::default();
            stream.add(id, data(&offer.assigned));
            self.streams.insert(channels.job(channel), stream);
        }
        self.streams.entry(assigned.clone()).or_default().add(id, data(&offer.assigned));
        noted.last = id;
        self.claims.insert(assigned, Claims { journal, noted });
        Publishing::Done
    }

    pub(super) fn close(&mut self, channels: &Channels, ended: &Ended) -> Closed {
        if let Some(queue) = &ended.offered_in {
            let queue = Queue::Dispatch(queue.clone());
            if let Some(stream) = self.streams.get_mut(&channels.queue(&queue)) {
                stream.settle(queue.group(), ended.lease.into());
            }
        }
        let mut closed = Closed::Absent;
        for channel in [JobChannel::Status(ended.task), JobChannel::Logs(ended.task)] {
            let name = channels.job(channel);
            match self.streams.get(&name) {
                Some(stream) if stream.is_of(ended.lease) => {
                    self.streams.remove(&name);
                    closed = Closed::Done;
                }
                Some(_) if closed == Closed::Absent => closed = Closed::Other,
                Some(_) | None => {}
            }
        }
        closed
    }

    /// Adds an entry under the next id, if the channel is there.
    pub(super) fn send(&mut self, channel: &str, fields: Fields, now: u64) -> Option<EntryId> {
        let stream = self.streams.get_mut(channel)?;
        let EntryId { major, minor } = stream.last;
        let id =
            if now > major { EntryId { major: now, minor: 0 } } else { EntryId { major, minor: minor + 1 } };
        stream.add(id, fields);
        Some(id)
    }

    /// `None` if a queue for nodes is not there.
    pub(super) fn take(
        &mut self,
        channels: &Channels,
        queue: &Queue,
        consumer: &Name,
        (at_most, now): (usize, u64),
    ) -> Option<Vec<Entry>> {
        let name = channels.queue(queue);
        if matches!(queue, Queue::Dispatch(_)) {
            self.streams.entry(name.clone()).or_default().groups.entry(queue.group()).or_default();
        }
        let stream = self.streams.get_mut(&name)?;
        let after = stream.groups.get(queue.group())?.delivered;
        let ids = stream.entries.range(after..).map(|(id, _)| *id).filter(|id| *id > after);
        let ids: Vec<_> = ids.take(at_most).collect();
        let entries = ids.iter().filter_map(|id| stream.entry(*id)).collect();
        let group = stream.groups.get_mut(queue.group())?;
        for id in ids {
            group.delivered = id;
            group.pending.insert(id, Pending { consumer: consumer.clone(), since: now });
        }
        Some(entries)
    }

    /// As [`State::take`].
    pub(super) fn reclaim(
        &mut self,
        channels: &Channels,
        queue: &Queue,
        consumer: &Name,
        (idle, at_most, now): (u64, usize, u64),
    ) -> Option<Vec<Entry>> {
        let stream = self.streams.get_mut(&channels.queue(queue))?;
        let group = stream.groups.get_mut(queue.group())?;
        let is_idle = |pending: &Pending| now.saturating_sub(pending.since) >= idle;
        let ids = group.pending.iter().filter(|(_, pending)| is_idle(pending)).map(|(id, _)| *id);
        let ids: Vec<_> = ids.take(at_most).collect();
        for id in &ids {
            group.pending.insert(*id, Pending { consumer: consumer.clone(), since: now });
        }
        Some(ids.into_iter().filter_map(|id| stream.entry(id)).collect())
    }

    pub(super) fn settle(&mut self, channels: &Channels, queue: &Queue, entries: &[EntryId]) {
        if let Some(stream) = self.streams.get_mut(&channels.queue(queue)) {
            entries.iter().for_each(|id| stream.settle(queue.group(), *id));
        }
    }

    pub(super) fn read(&self, channels: &Channels, after: &[(Channel, EntryId)], budget: Budget) -> Found {
        let mut found = Found::default();
        let mut bytes = 0_usize;
        for (place, (channel, cursor)) in after.iter().enumerate() {
            let Some(stream) = self.streams.get(&channels.name(channel)) else { continue };
            for (id, fields) in stream.entries.range(cursor..).filter(|(id, _)| *id > cursor) {
                let content = Content::of(fields);
                bytes += content.len();
                let full = found.entries.len() >= budget.entries || bytes > budget.bytes;
                if full && !found.entries.is_empty() {
                    return Found { channels: place, ..found };
                }
                found.entries.push((place, Entry { id: *id, content }));
            }
        }
        Found { channels: after.len(), ..found }
    }

    pub(super) fn delete(
        &mut self,
        channels: &Channels,
        channel: JobChannel,
        lease: LeaseId,
        entries: &[EntryId],
    ) -> Closed {
        match self.streams.get_mut(&channels.job(channel)) {
            None => Closed::Absent,
            Some(stream) if !stream.is_of(lease) => Closed::Other,
            Some(stream) => {
                for id in entries.iter().filter(|id| **id != EntryId::from(lease)) {
                    stream.entries.remove(id);
                }
                Closed::Done
            }
        }
    }

    /// Removes entries of topics before a time.
    pub(super) fn trim(&mut self, channels: &Channels, topics: &[Topic], before: u64) {
        let first = EntryId { major: before, minor: 0 };
        for topic in topics {
            if let Some(stream) = self.streams.get_mut(&channels.topic(topic)) {
                stream.entries = stream.entries.split_off(&first);
            }
        }
    }

    pub(super) fn leave(&self, channels: &Channels, consumer: &Name) -> Left {
        let holds = |queue: &Queue| {
            let stream = self.streams.get(&channels.queue(queue));
            let group = stream.and_then(|stream| stream.groups.get(queue.group()));
            group.map_or(0, |group| group.pending.values().filter(|it| it.consumer == *consumer).count())
        };
        match [Queue::Assigned, Queue::Handoff].iter().map(holds).sum() {
            0 => Left::Done,
            holding => Left::Holding(holding),
        }
    }

    pub(super) fn figures(&self, channels: &Channels, queue: &Queue) -> Figures {
        let Some(stream) = self.streams.get(&channels.queue(queue)) else { return Figures::default() };
        let taken = stream.groups.get(queue.group()).map_or(0, |group| group.pending.len());
        Figures { waiting: stream.entries.len().saturating_sub(taken), taken, last: stream.last }
    }

    /// The names of all channels.
    /// Some leases that have channels; `from` counts channels.
    pub(super) fn jobs(&self, channels: &Channels, from: u64) -> OpenJobs {
        let skip = usize::try_from(from).unwrap_or(usize::MAX);
        let some: Vec<_> = self.streams.iter().skip(skip).take(JOBS_AT_ONCE).collect();
        let lease = |(name, stream): &(&String, &Stream)| {
            let (JobChannel::Status(task) | JobChannel::Logs(task)) = channels.job_of(name)?;
            Some((task, stream.lease()?))
        };
        let leases = some.iter().filter_map(lease).collect();
        let next = (some.len() == JOBS_AT_ONCE).then_some(from + JOBS_AT_ONCE as u64);
        OpenJobs { leases, next }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.streams.keys().cloned().collect()
    }
}
