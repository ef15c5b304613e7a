//! Lost replies, and servers that forget.

use std::time::Duration;

use orchestrix_core::{TaskId, Term};

use super::{
    BusRig, JOURNAL, Replies, entries, id, ids, mail, message, name, offer, open, publish, publisher, read,
    take, texts,
};
use crate::bus::{Checked, Claimed, EntryId, JobChannel, Queue, Sent, Stop, Taken, Topic};

pub fn a_lost_reply_to_an_offer_is_unknown(rig: &dyn BusRig) {
    let (bus, replies) = rig.losing();
    bus.open(JOURNAL, &name("a")).expect("a bus is opened");
    let mut first = publisher(&bus, 1);
    publish(&mut *first, &[offer(5, 9)], 0);
    replies(Replies::AreLost);
    let progress = first.publish(&[offer(6, 10), offer(7, 11)]).expect("it is sent");
    assert!(matches!(progress.stop, Some(Stop::Unknown)) && progress.published == 0, "{progress:?}");
    let lost = bus.claim(Term(1)).map(|claimed| format!("{claimed:?}")).expect_err("nothing is heard");
    assert!(lost.retryable, "{lost}");
    replies(Replies::Arrive);
    first.publish(&[offer(8, 12)]).expect_err("it has stopped");
    let mut next = publisher(&bus, 1);
    assert!(next.generation() > first.generation());
    assert_eq!(next.cursor(), id(11), "the claim says what was done");
    publish(&mut *next, &[offer(6, 10), offer(7, 11), offer(8, 12)], 2);
    assert_eq!(ids(&take(&bus, &mail(), "w", 10)), [id(9), id(10), id(11), id(12)]);
    assert_eq!(bus.check().expect("it is answered"), Checked::Sound);
}

pub fn a_lost_reply_to_a_message_is_unknown(rig: &dyn BusRig) {
    let (bus, replies) = rig.losing();
    bus.open(JOURNAL, &name("a")).expect("a bus is opened");
    publish(&mut *publisher(&bus, 1), &[offer(5, 9)], 0);
    let status = JobChannel::Status(TaskId(5));
    replies(Replies::AreLost);
    let sent = bus.send(&[message(status, "1"), message(status, "2")]).expect("it is sent");
    assert_eq!(sent, [Sent::Unknown, Sent::Unknown]);
    replies(Replies::Arrive);
    assert_eq!(texts(&read(&bus, status, id(9))), ["1", "2"]);
    replies(Replies::AreLost);
    let taken = bus.take(&Queue::Assigned, &name("a"), 10).expect("it is sent");
    assert_eq!(taken, Taken::Unknown);
    replies(Replies::Arrive);
    assert_eq!(take(&bus, &Queue::Assigned, "b", 10), [], "the other consumer has it");
    let found = bus.reclaim(&Queue::Assigned, &name("b"), Duration::ZERO, 10).expect("it is reclaimed");
    assert_eq!(ids(&entries(found)), [id(9)]);
    replies(Replies::AreLost);
    let error = bus.settle(&Queue::Assigned, &[id(9)]).expect_err("nothing is heard");
    assert!(error.retryable, "{error}");
    replies(Replies::Arrive);
    bus.settle(&Queue::Assigned, &[id(9)]).expect("a repeat does no harm");
    assert_eq!(bus.check().expect("it is answered"), Checked::Sound);
}

pub fn a_bus_that_was_rolled_back_is_noticed(rig: &dyn BusRig) {
    let (leader, follower) = (open(rig, "a"), open(rig, "b"));
    let mut first = publisher(&leader, 1);
    publish(&mut *first, &[offer(5, 9)], 0);
    let back = rig.moment();
    publish(&mut *first, &[offer(6, 10)], 0);
    for bus in [&leader, &follower] {
        assert_eq!(bus.check().expect("it is answered"), Checked::Sound);
    }
    back();
    // The claim is there, and the last offer is not.
    let progress = first.publish(&[offer(7, 11), offer(8, 12)]).expect("it is answered");
    assert!(matches!(progress.stop, Some(Stop::RolledBack)) && progress.published == 0, "{progress:?}");
    assert_eq!(take(&follower, &mail(), "w", 10).len(), 1, "nothing was published");
    for bus in [&leader, &follower] {
        assert_eq!(bus.check().expect("it is answered"), Checked::RolledBack);
        let claimed = bus.claim(Term(1)).expect("it is answered");
        assert!(matches!(claimed, Claimed::RolledBack), "{claimed:?}");
        bus.open(JOURNAL, &name("a")).expect("it is opened again");
        assert_eq!(bus.check().expect("it is answered"), Checked::Sound);
    }
    let mut second = publisher(&leader, 1);
    assert_eq!(second.cursor(), id(9));
    // The claim is forgotten, too.
    let back = rig.moment();
    let mut third = publisher(&leader, 2);
    publish(&mut *third, &[offer(7, 11)], 0);
    back();
    let progress = third.publish(&[offer(8, 12)]).expect("it is answered");
    assert!(matches!(progress.stop, Some(Stop::RolledBack)), "{progress:?}");
    leader.open(JOURNAL, &name("a")).expect("it is opened again");
    let mut fourth = publisher(&leader, 2);
    assert!(fourth.generation() > third.generation(), "no generation is used twice");
    publish(&mut *fourth, &[offer(8, 12)], 0);
    let progress = second.publish(&[offer(9, 13)]).expect("it is answered");
    assert!(matches!(progress.stop, Some(Stop::Stale { .. })), "{progress:?}");
}

pub fn a_bus_that_was_wiped_is_noticed(rig: &dyn BusRig) {
    let wipe = rig.moment();
    let (leader, follower) = (open(rig, "a"), open(rig, "b"));
    let mut publisher = publisher(&leader, 1);
    publish(&mut *publisher, &[offer(5, 9)], 0);
    wipe();
    let taken = follower.take(&Queue::Assigned, &name("b"), 10).expect("it is answered");
    assert_eq!(taken, Taken::RolledBack);
    let reclaimed = leader.reclaim(&Queue::Handoff, &name("a"), Duration::ZERO, 1).expect("it is answered");
    assert_eq!(reclaimed, Taken::RolledBack);
    let sent = leader.send(&[message(Topic::CoordinatorHeartbeat, "{}")]).expect("it is answered");
    assert_eq!(sent, [Sent::Closed]);
    let progress = publisher.publish(&[offer(6, 10)]).expect("it is answered");
    assert!(matches!(progress.stop, Some(Stop::RolledBack)), "{progress:?}");
    for bus in [&leader, &follower] {
        assert_eq!(bus.check().expect("it is answered"), Checked::RolledBack);
    }
    leader.open(JOURNAL, &name("a")).expect("it is opened again");
    let mut next = super::publisher(&leader, 1);
    assert_eq!((next.cursor(), next.generation()), (EntryId::ZERO, 2));
    publish(&mut *next, &[offer(6, 10)], 0);
    assert_eq!(follower.check().expect("it is answered"), Checked::RolledBack, "until it opens it again");
    follower.open(JOURNAL, &name("b")).expect("it is opened again");
    assert_eq!(ids(&take(&follower, &Queue::Assigned, "b", 10)), [id(10)]);
}
