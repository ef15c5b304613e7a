//! Every engine of this crate does what the suite says.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use orchestrix_core::{LeaseId, Name, TaskId, Term};
use orchestrix_engine::bus::{Bus, Channel, Checked, Claimed, Offer, Publisher, Queue, Stop};
use orchestrix_engine::disk::RealDisk;
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::{FileJournal, FileLogs, Options, Prepare};
use orchestrix_engine::memory::{Fault, MemoryBus, MemoryJournal, MemoryLogs, MemoryPlace, MemoryRegister};
use orchestrix_engine::suite::{BusRig, Replies, Switch};
use orchestrix_engine::{Clock, Journal, JournalId, Register, Shared, suite};

const SMALL: Options = Options { segment_bytes: Some(4096), prepare: Prepare::Inline };

#[test]
fn memory() {
    suite::journal(&mut || Box::new(MemoryJournal::new(JournalId([1; 16]))));
    suite::snapshots(&mut || Box::new(MemoryJournal::new(JournalId([1; 16]))));
    suite::logs(&mut || Box::new(MemoryLogs::default()));
    suite::register(&mut |handles| {
        let register: Arc<dyn Register> = Arc::new(MemoryRegister::default());
        vec![register; handles]
    });
    suite::shared(&mut || {
        let place = MemoryPlace::new(JournalId([1; 16]));
        Box::new(move || -> Arc<dyn Shared> { Arc::new(place.clone()) })
    });
}

/// Goes on whenever somebody looks.
#[derive(Debug, Default)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn boot(&self) -> Duration {
        self.wall()
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        Duration::from_millis(1_700_000_000_000 + self.0.fetch_add(1, SeqCst))
    }

    fn pause(&self, _: Duration) {}
}

struct MemoryRig(MemoryBus);

impl BusRig for MemoryRig {
    fn connect(&self, domain: &str) -> Arc<dyn Bus> {
        Arc::new(self.0.connect().in_domain(domain).unwrap())
    }

    fn send_raw(&self, channel: &Channel, fields: &[(&str, &[u8])]) {
        self.0.send_raw(channel, fields).unwrap();
    }

    fn losing(&self) -> (Arc<dyn Bus>, Switch) {
        let bus = Arc::new(self.0.connect());
        let switch = Arc::clone(&bus);
        let set = move |replies| {
            switch.fail_always((replies == Replies::AreLost).then_some(Fault::LoseReply));
        };
        (bus, Box::new(set))
    }

    fn moment(&self) -> Box<dyn FnOnce() + '_> {
        let moment = self.0.moment();
        Box::new(move || self.0.roll_back(&moment))
    }
}

#[test]
fn a_bus_in_memory() {
    suite::bus(&mut || Box::new(MemoryRig(MemoryBus::new(Arc::new(Ticking::default())))));
}

/// A bus with an offer each in two tasks, and its publisher.
fn published(bus: &MemoryBus) -> Box<dyn Publisher> {
    bus.open(JournalId([1; 16]), &name("a")).unwrap();
    let Claimed::Done(mut publisher) = bus.claim(Term(1)).unwrap() else { panic!("it is claimed") };
    assert_eq!(publisher.publish(&[offer(2), offer(4)]).unwrap().published, 2);
    publisher
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn offer(lease: u64) -> Offer {
    let (task, lease, queue) = (TaskId(lease - 1), LeaseId(lease), name("mail"));
    Offer { task, lease, queue, dispatch: "{}".to_owned(), assigned: "{}".to_owned(), previous: None }
}

#[test]
fn an_offer_that_arrives_after_the_next_claim_is_refused() {
    let bus = MemoryBus::new(Arc::new(Ticking::default()));
    let mut publisher = published(&bus);
    bus.fail_next(Fault::Stall);
    let progress = publisher.publish(&[offer(6), offer(8)]).unwrap();
    assert!(matches!(progress.stop, Some(Stop::Unknown)), "{progress:?}");
    let Claimed::Done(next) = bus.claim(Term(1)).unwrap() else { panic!("it is claimed") };
    bus.resume();
    let figures = bus.figures(&[Queue::Dispatch(name("mail")), Queue::Assigned]).unwrap();
    assert!(figures.iter().all(|queue| queue.waiting == 2 && queue.last == LeaseId(4).into()), "{figures:?}");
    assert_eq!(next.cursor(), LeaseId(4).into());
}

#[test]
fn nothing_is_published_after_an_offer_that_is_refused_or_lost() {
    for (fault, done) in [(Fault::Refuse, 3), (Fault::LoseRequest, 3), (Fault::LoseReply, 5)] {
        let bus = MemoryBus::new(Arc::new(Ticking::default()));
        let mut publisher = published(&bus);
        bus.fail_after(1, fault);
        let progress = publisher.publish(&[offer(6), offer(8), offer(10)]).unwrap();
        assert_eq!((progress.published, progress.stop.is_some()), (1, true));
        let figures = bus.figures(&[Queue::Assigned]).unwrap();
        assert_eq!(figures[0].waiting, done, "{fault:?}");
        assert_eq!(bus.check().unwrap(), Checked::Sound);
    }
}

#[test]
fn files_on_a_simulated_disk() {
    let mut make =
        || -> Box<dyn Journal> { Box::new(FileJournal::open(Arc::new(SimDisk::new(1)), SMALL).unwrap()) };
    suite::journal(&mut make);
    suite::snapshots(&mut make);
    for bytes in [200, 1 << 20] {
        suite::logs(&mut || Box::new(FileLogs::open_with(Arc::new(SimDisk::new(1)), bytes).unwrap()));
    }
}

#[test]
fn files_on_a_real_disk() {
    for prepare in [Prepare::Thread, Prepare::Inline] {
        let mut folders = Vec::new();
        let mut make = || -> Box<dyn Journal> {
            let folder = tempfile::tempdir().unwrap();
            let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
            folders.push(folder);
            Box::new(FileJournal::open(disk, Options { segment_bytes: Some(16384), prepare }).unwrap())
        };
        suite::journal(&mut make);
        suite::snapshots(&mut make);
    }
    let mut folders = Vec::new();
    suite::logs(&mut || {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
        folders.push(folder);
        Box::new(FileLogs::open(disk).unwrap())
    });
}
