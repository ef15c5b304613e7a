//! Tests of a node whose journal fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use orchestrix_core::wire::{LeaseQueues, Submit};
use orchestrix_core::{
    Event, FIRST_FORMAT, Json, Key, Name, Term, TermEvent, TermStarted, Timestamp, encode_record,
};
use orchestrix_engine::{Appended, Batch, Cause, Read, Snapshots, Space};

use super::*;
use crate::Error;

type Answered = Result<Appended, orchestrix_engine::Error>;

/// A journal that does something else before it appends or truncates.
struct Scripted {
    inner: MemoryJournal,
    /// Whether the batch is kept from the journal, and with which answer.
    append: Box<dyn FnMut() -> Option<Answered> + Send>,
    truncate: Box<dyn FnMut() + Send>,
}

impl Scripted {
    fn new() -> Self {
        let inner = MemoryJournal::new(JournalId([7; 16]));
        Self { inner, append: Box::new(|| None), truncate: Box::new(|| ()) }
    }

    fn start(self, options: Options) -> Node {
        self.start_at(Arc::new(SystemClock), options)
    }

    fn start_at(self, clock: Arc<dyn Clock>, options: Options) -> Node {
        let stored = Stored { end: self.inner.end(), journal: Box::new(self), ..open_memory() };
        begin_at(clock, stored, options)
    }
}

impl Journal for Scripted {
    fn id(&self) -> JournalId {
        self.inner.id()
    }
    fn end(&self) -> Link {
        self.inner.end()
    }
    fn append(&mut self, batch: &Batch) -> Answered {
        (self.append)().unwrap_or_else(|| self.inner.append(batch))
    }
    fn read(&self, after: Position, limit_bytes: usize) -> Result<Read, orchestrix_engine::Error> {
        self.inner.read(after, limit_bytes)
    }
    fn rest(&mut self) -> Result<(), orchestrix_engine::Error> {
        self.inner.rest()
    }
    fn space(&self) -> Space {
        self.inner.space()
    }
    fn snapshots(&self) -> Box<dyn Snapshots> {
        self.inner.snapshots()
    }
    fn truncate(&mut self) -> Result<Position, orchestrix_engine::Error> {
        (self.truncate)();
        self.inner.truncate()
    }
}

fn begin(stored: Stored, options: Options) -> Node {
    begin_at(Arc::new(SystemClock), stored, options)
}

fn begin_at(clock: Arc<dyn Clock>, stored: Stored, options: Options) -> Node {
    let surroundings = Surroundings::new(clock, stored.recovered.position, &options);
    start_node(stored, options, WriteGuard::default(), surroundings).unwrap()
}

async fn until(check: impl Fn() -> bool) {
    let waiting = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it does not come");
}

#[tokio::test]
async fn the_loop_goes_on_deciding_while_old_segments_are_dropped() {
    let (begun, has_begun) = channel();
    let (let_go, go_on) = channel();
    // A truncation takes until it is let go.
    let truncate = Box::new(move || {
        begun.send(()).unwrap();
        go_on.recv().unwrap();
    });
    let journal = Scripted { truncate, ..Scripted::new() };
    let node = journal.start(Options { snapshot_bytes: 1, ..Options::default() });
    tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();

    let asked = node.clone();
    let submitted = tokio::spawn(async move { asked.submit(submit()).await });
    until(|| node.stats().submitted.get() == 1).await;
    let asked = node.clone();
    let request = LeaseQueues {
        queues: vec![Name::new("other").unwrap()],
        worker: Name::new("w").unwrap(),
        max: 1,
        lease_ms: 1_000,
        wait_ms: 60_000,
        request_id: None,
        capacity: None,
    };
    let waiting = tokio::spawn(async move { asked.lease(request).await });
    until(|| node.stats().polls.get() == 1).await;
    assert!(!submitted.is_finished(), "nothing is answered before it is written");
    let_go.send(()).unwrap();
    submitted.await.unwrap().unwrap();
    // A later truncation would find nothing that lets it go on.
    drop(let_go);
    waiting.abort();
}

fn submit() -> Submit {
    Submit::new(Name::new("q").unwrap(), Json::null())
}

#[tokio::test]
async fn a_node_stops_after_a_foreign_write_to_its_journal() {
    let mut shared = MemoryJournal::new(JournalId([7; 16]));
    let stored = Stored { end: shared.end(), journal: Box::new(shared.clone()), ..open_memory() };
    let node = begin(stored, Options::default());
    node.submit(submit()).await.unwrap();

    let mut records = Vec::new();
    let event = Event::Term(TermEvent::TermStarted(TermStarted {
        epoch: 2,
        node: "other".to_owned(),
        actor: None,
        shard_lease_ms: None,
    }));
    encode_record(FIRST_FORMAT, Timestamp(1), &event, &mut records);
    let batch = Batch { previous: shared.end(), term: Term(9), count: 1, records };
    shared.append(&batch).unwrap();
    let end = shared.end();

    assert_eq!(node.submit(submit()).await, Err(Error::OutcomeUnknown));
    let failure = node.stopped().await.unwrap_err().to_string();
    assert!(failure.contains("another node wrote to the journal first"), "{failure}");
    assert_eq!(shared.end(), end, "it added nothing");
    assert_eq!(node.submit(submit()).await, Err(Error::Stopping));
}

/// What a node says, and who waits hears, that is stopped while its journal answers the n-th try like this.
async fn stopped_while(answer: fn(u64) -> Answered) -> (String, Error) {
    let (troubled, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let append = Box::new({
        let (troubled, tries) = (Arc::clone(&troubled), Arc::clone(&tries));
        move || troubled.load(Relaxed).then(|| answer(tries.fetch_add(1, Relaxed) + 1))
    });
    let node = Scripted { append, ..Scripted::new() }.start(Options::default());
    node.submit(submit()).await.unwrap();
    troubled.store(true, Relaxed);
    let asked = node.clone();
    let submitted = tokio::spawn(async move { asked.submit(submit()).await });
    until(|| tries.load(Relaxed) >= 2).await;
    let failure = node.stop().await.unwrap_err().to_string();
    (failure, submitted.await.unwrap().unwrap_err())
}

fn full() -> Answered {
    let source = Cause::Full { path: PathBuf::from("data") };
    Err(orchestrix_engine::Error { operation: "append".to_owned(), retryable: true, source })
}

#[tokio::test]
async fn a_node_stopped_while_waiting_answers_its_open_calls() {
    let (told, answer) = stopped_while(|_| full()).await;
    assert!(told.ends_with("what was not answered was not accepted"), "{told}");
    assert_eq!(answer, Error::StorageFull);
    let unknown = "what was not answered may have been accepted";
    let (told, answer) = stopped_while(|_| Ok(Appended::Unknown)).await;
    assert!(told.ends_with(unknown), "{told}");
    assert_eq!(answer, Error::OutcomeUnknown);
    // A full disk later does not tell what became of the first try.
    let (told, answer) = stopped_while(|tried| if tried == 1 { Ok(Appended::Unknown) } else { full() }).await;
    assert!(told.ends_with(unknown), "{told}");
    assert_eq!(answer, Error::OutcomeUnknown);
}

#[tokio::test]
async fn new_work_is_refused_at_once_while_the_engine_is_full() {
    let is_full = Arc::new(AtomicBool::new(false));
    let append = Box::new({
        let is_full = Arc::clone(&is_full);
        move || is_full.load(Relaxed).then(full)
    });
    let node = Scripted { append, ..Scripted::new() }.start(Options::default());
    node.submit(submit()).await.unwrap();
    assert_eq!(node.unwritten(), None);
    is_full.store(true, Relaxed);
    let asked = node.clone();
    let first = tokio::spawn(async move { asked.submit(submit()).await });
    until(|| node.unwritten().is_some()).await;
    assert_eq!(node.unwritten().unwrap(), "the engine is full and refuses writes: no space left in data");
    assert_eq!(node.submit(submit()).await, Err(Error::StorageFull));
    assert_eq!(node.submit_batch(vec![submit(), submit()]).await, Err(Error::StorageFull));
    // What has a key may have been accepted before: its answer is not known here.
    let asked = node.clone();
    let keyed = Submit { key: Some(Key::new("once").unwrap()), ..submit() };
    let keyed = tokio::spawn(async move { asked.submit(keyed).await });
    is_full.store(false, Relaxed);
    first.await.unwrap().unwrap();
    keyed.await.unwrap().unwrap();
    until(|| node.unwritten().is_none()).await;
    node.submit(submit()).await.unwrap();
}

/// The clocks of this machine, some seconds ahead.
#[derive(Debug, Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn boot(&self) -> Duration {
        SystemClock.boot() + Duration::from_secs(self.0.load(Relaxed))
    }
    fn busy(&self) -> Duration {
        SystemClock.busy()
    }
    fn wall(&self) -> Duration {
        SystemClock.wall() + Duration::from_secs(self.0.load(Relaxed))
    }
    fn pause(&self, time: Duration) {
        SystemClock.pause(time);
    }
}

#[tokio::test]
async fn a_node_that_cannot_write_repeats_what_the_engine_said() {
    let (refuses, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let append = Box::new({
        let (refuses, tries) = (Arc::clone(&refuses), Arc::clone(&tries));
        move || {
            refuses.load(Relaxed).then(|| {
                tries.fetch_add(1, Relaxed);
                let (place, what) = ("there".to_owned(), "no room for a client".to_owned());
                let source = Cause::Remote { place, what };
                Err(orchestrix_engine::Error { operation: "append".to_owned(), retryable: true, source })
            })
        }
    });
    let clock = Arc::new(Ahead::default());
    let node = Scripted { append, ..Scripted::new() }.start_at(clock.clone(), Options::default());
    node.submit(submit()).await.unwrap();
    refuses.store(true, Relaxed);
    let asked = node.clone();
    let submitted = tokio::spawn(async move { asked.submit(submit()).await });
    // By the second try the answer to the first was heard.
    until(|| tries.load(Relaxed) >= 2).await;
    clock.0.store(60, Relaxed);
    let told = node.unwritten().unwrap();
    assert!(told.starts_with("nothing could be written to the journal for 60 s: "), "{told}");
    assert!(told.ends_with("no room for a client"), "{told}");
    refuses.store(false, Relaxed);
    submitted.await.unwrap().unwrap();
    until(|| node.unwritten().is_none()).await;
}
