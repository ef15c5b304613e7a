//! Durable events for event streams: a bounded ring of the latest ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use orchestrix_core::{Event, Position, Timestamp, Undecoded, is_planted};
use orchestrix_engine::Batch;
use tokio::sync::watch;

use crate::event_queues::{EventQueues, TaskQueues};

/// Bytes of records that a watcher decodes at one time, plus at most one event. Bounds what a slow one keeps.
const DECODED_BYTES_MAX: usize = 16 << 10;

/// What a watcher sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    Event {
        position: Position,
        at: Timestamp,
        event: Event,
        /// Those of the tasks that it names.
        queues: TaskQueues,
    },
    /// Events from the one asked for up to this one are not kept any more.
    Gap { until: Position },
}

/// The latest events, as they were written. They are decoded only for a stream.
#[derive(Debug)]
pub struct EventFeed {
    ring: Mutex<Ring>,
    durable: watch::Sender<Position>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Ring {
    batches: VecDeque<Published>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Published {
    batch: Arc<Batch>,
    /// Of its events, and perhaps of more than these.
    queues: Arc<EventQueues>,
}

impl Published {
    fn bytes(&self) -> usize {
        self.batch.records.len() + self.queues.bytes()
    }
}

impl EventFeed {
    pub(crate) fn new(durable: Position, bytes_max: usize) -> Self {
        Self { ring: Mutex::default(), durable: watch::Sender::new(durable), bytes_max }
    }

    /// Takes a batch that has become durable, with the queues of its events.
    pub(crate) fn publish(&self, batch: Batch, queues: Arc<EventQueues>) {
        let last = batch.last();
        // A former leader that reads the journal again has published this before.
        if last <= *self.durable.borrow() {
            return;
        }
        let mut ring = self.lock();
        let published = Published { batch: Arc::new(batch), queues };
        ring.bytes += published.bytes();
        ring.batches.push_back(published);
        while ring.bytes > self.bytes_max
            && !is_planted("events-unbounded")
            && let Some(oldest) = ring.batches.pop_front()
        {
            ring.bytes -= oldest.bytes();
        }
        drop(ring);
        self.durable.send_replace(last);
    }

    /// All up to a position is durable, and was read from a snapshot: it is not kept here.
    pub(crate) fn skip_to(&self, position: Position) {
        self.durable.send_if_modified(|durable| {
            let further = *durable < position;
            *durable = position.max(*durable);
            further
        });
    }

    /// Waits until what stands at a position was published.
    pub(crate) async fn reached(&self, position: Position) {
        let mut durable = self.durable.subscribe();
        // The sender lives in this feed, so the wait ends only when it is there.
        let _ = durable.wait_for(|durable| *durable >= position).await;
    }

    pub(crate) fn subscribe(self: &Arc<Self>, after: Option<Position>) -> Events {
        let durable = self.durable.subscribe();
        let after = after.unwrap_or(*durable.borrow());
        Events { feed: Arc::clone(self), durable, after, ready: VecDeque::new(), rest: None, kinds: None }
    }

    pub(crate) fn batches(self: &Arc<Self>, after: Position) -> Batches {
        Batches { feed: Arc::clone(self), durable: self.durable.subscribe(), after }
    }

    /// The batch with the first event after a position, or the first that is kept.
    fn batch_after(&self, after: Position) -> Option<Published> {
        let ring = self.lock();
        let place = ring.batches.partition_point(|published| published.batch.last() <= after);
        ring.batches.get(place).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place within a batch.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// What the batch follows.
    before: Position,
    /// The last position that was decoded or skipped, and where the next record begins.
    position: Position,
    byte: usize,
}

/// One watcher's place in the events.
#[derive(Debug)]
pub struct Events {
    feed: Arc<EventFeed>,
    durable: watch::Receiver<Position>,
    after: Position,
    ready: VecDeque<Happening>,
    /// Where a batch goes on of which a part was decoded.
    rest: Option<Rest>,
    /// Without one, all are wanted.
    kinds: Option<&'static [u8]>,
}

impl Events {
    /// Only events of these kinds, and gaps: no other is decoded.
    #[must_use]
    pub fn only(self, kinds: &'static [u8]) -> Self {
        Self { kinds: Some(kinds), ..self }
    }

    /// All up to here was handed out or is not asked for. Before the first event: where "from now on" begins.
    #[must_use]
    pub fn position(&self) -> Position {
        self.after
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> Happening {
        loop {
            if let Some(happening) = self.ready.pop_front() {
                return happening;
            }
            let durable = *self.durable.borrow_and_update();
            if durable <= self.after {
                // The sender lives in the feed that this watcher holds, so the wait cannot fail.
                let _ = self.durable.changed().await;
                continue;
            }
            match self.feed.batch_after(self.after) {
                Some(published) => self.decode(&published),
                None => self.gap(durable),
            }
        }
    }

    fn decode(&mut self, Published { batch, queues }: &Published) {
        let before = batch.previous.position;
        if before > self.after {
            self.gap(before);
        }
        let begun = self.rest.take().filter(|rest| rest.before == before);
        let mut rest = begun.unwrap_or(Rest { before, position: before, byte: 0 });
        let mut decoded = 0;
        for record in Undecoded::new(&batch.records[rest.byte..]) {
            if decoded >= DECODED_BYTES_MAX {
                self.after = rest.position;
                self.rest = Some(rest);
                return;
            }
            let record = record.expect("we have written it ourselves");
            rest.position = rest.position.next();
            rest.byte += record.bytes();
            let position = rest.position;
            if position > self.after && self.kinds.is_none_or(|kinds| kinds.contains(&record.kind)) {
                let event = record.event().expect("we have written it ourselves");
                let is_of_tasks = matches!(event, Event::Task(_));
                let queues = if is_of_tasks { queues.at(position) } else { TaskQueues::None };
                self.ready.push_back(Happening::Event { position, at: record.at, event, queues });
                decoded += record.bytes();
            }
        }
        self.after = batch.last();
    }

    fn gap(&mut self, until: Position) {
        self.ready.push_back(Happening::Gap { until });
        self.after = until;
    }
}

/// The place of one who takes whole batches.
#[derive(Debug)]
pub struct Batches {
    feed: Arc<EventFeed>,
    durable: watch::Receiver<Position>,
    after: Position,
}

impl Batches {
    /// Waits for the batch that follows. `None` when it is not kept any more: it has to be read from the engine.
    pub async fn next(&mut self) -> Option<Arc<Batch>> {
        let after = self.after;
        // The sender lives in the feed that this reader holds, so the wait ends only when there is something.
        let _ = self.durable.wait_for(|durable| *durable > after).await;
        let Published { batch, .. } = self.feed.batch_after(after)?;
        if batch.previous.position != after {
            return None;
        }
        self.after = batch.last();
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{
        FIRST_FORMAT, TaskCancelled, TaskExpired, TaskId, TaskRetried, Term, encode_record,
    };
    use orchestrix_engine::Link;

    use super::*;

    /// A batch with so many events after a position.
    fn batch(after: u64, count: u32) -> Batch {
        let mut records = Vec::new();
        for task in after..after + u64::from(count) {
            encode_record(
                FIRST_FORMAT,
                Timestamp(task),
                &TaskExpired { task: TaskId(task) }.into(),
                &mut records,
            );
        }
        let previous = Link { position: Position(after), ..Link::default() };
        Batch { previous, term: Term(1), count, records }
    }

    fn publish(feed: &EventFeed, batch: Batch) {
        feed.publish(batch, Arc::default());
    }

    fn task(happening: &Happening) -> u64 {
        match happening {
            Happening::Event { position, .. } => position.0,
            Happening::Gap { until } => panic!("a gap until {until}"),
        }
    }

    #[tokio::test]
    async fn a_watcher_resumes_in_the_middle_of_a_batch() {
        let feed = Arc::new(EventFeed::new(Position(0), 1 << 20));
        publish(&feed, batch(0, 4));
        let mut events = feed.subscribe(Some(Position(2)));
        assert_eq!(task(&events.next().await), 3);
        assert_eq!(task(&events.next().await), 4);
        publish(&feed, batch(4, 1));
        assert_eq!(task(&events.next().await), 5);
    }

    #[tokio::test]
    async fn events_no_longer_kept_are_a_gap() {
        let feed = Arc::new(EventFeed::new(Position(0), batch(0, 1).records.len()));
        publish(&feed, batch(0, 1));
        publish(&feed, batch(1, 1));
        let mut events = feed.subscribe(Some(Position(0)));
        assert_eq!(events.next().await, Happening::Gap { until: Position(1) });
        assert_eq!(task(&events.next().await), 2);
    }

    #[tokio::test]
    async fn a_watcher_keeps_little_of_a_large_batch() {
        const COUNT: u32 = 10_000;
        let feed = Arc::new(EventFeed::new(Position(0), 1 << 20));
        publish(&feed, batch(0, COUNT));
        publish(&feed, batch(u64::from(COUNT), 1));
        let mut events = feed.subscribe(Some(Position(5)));
        let mut seen = Vec::new();
        while seen.last() != Some(&u64::from(COUNT + 1)) {
            seen.push(task(&events.next().await));
            let kept = events.ready.len() * batch(0, 1).records.len();
            assert!(kept <= DECODED_BYTES_MAX, "{kept} bytes of events are decoded at one time");
        }
        assert_eq!(seen, (6..=u64::from(COUNT + 1)).collect::<Vec<_>>(), "each comes once");
    }

    #[tokio::test]
    async fn the_rest_of_a_batch_may_not_be_kept_any_more() {
        const COUNT: u32 = 10_000;
        let feed = Arc::new(EventFeed::new(Position(0), batch(0, COUNT).records.len()));
        publish(&feed, batch(0, COUNT));
        let mut events = feed.subscribe(Some(Position(0)));
        assert_eq!(task(&events.next().await), 1);
        publish(&feed, batch(u64::from(COUNT), 1));
        let mut last = 1;
        let until = loop {
            match events.next().await {
                Happening::Event { position, .. } if position.0 == last + 1 => last += 1,
                Happening::Event { position, .. } => panic!("{position} after {last}"),
                Happening::Gap { until } => break until,
            }
        };
        assert!(last < u64::from(COUNT), "not all was decoded");
        assert_eq!(until, Position(u64::from(COUNT)));
        assert_eq!(task(&events.next().await), u64::from(COUNT) + 1);
    }

    #[tokio::test]
    async fn only_the_wanted_kinds_are_decoded_and_sent() {
        let feed = Arc::new(EventFeed::new(Position(0), 1 << 20));
        let mut events = feed.subscribe(None).only(&[TaskCancelled::KIND, TaskRetried::KIND]);
        let mut some = batch(0, 2);
        let retried = TaskRetried { task: TaskId(7), actor: None }.into();
        encode_record(FIRST_FORMAT, Timestamp(9), &retried, &mut some.records);
        some.count += 1;
        // The body of the first would not be understood.
        some.records[14] = 0xff;
        publish(&feed, some);
        let found = Happening::Event {
            position: Position(3),
            at: Timestamp(9),
            event: TaskRetried { task: TaskId(7), actor: None }.into(),
            queues: TaskQueues::None,
        };
        assert_eq!(events.next().await, found);
    }

    #[tokio::test]
    async fn whole_batches_are_given_as_long_as_the_next_one_is_kept() {
        let feed = Arc::new(EventFeed::new(Position(0), 2 * batch(0, 1).records.len()));
        let (mut early, mut late) = (feed.batches(Position(0)), feed.batches(Position(0)));
        publish(&feed, batch(0, 1));
        assert_eq!(early.next().await.as_deref(), Some(&batch(0, 1)));
        publish(&feed, batch(1, 1));
        publish(&feed, batch(2, 1));
        assert_eq!(early.next().await.as_deref(), Some(&batch(1, 1)));
        assert_eq!(late.next().await, None, "the first one made room for the third");
        assert_eq!(feed.batches(Position(2)).next().await.as_deref(), Some(&batch(2, 1)));
        feed.skip_to(Position(9));
        assert_eq!(feed.batches(Position(3)).next().await, None, "it was read from a snapshot");
    }
}
