//! Claims, offers, and the channels of leases.

use std::collections::BTreeSet;
use std::sync::Arc;

use orchestrix_core::{LeaseId, TaskId, Term};

use super::{
    BusRig, ended, id, ids, mail, message, name, offer, open, publish, publisher, read, take, texts,
};
use crate::JournalId;
use crate::bus::{
    Budget, Bus, Claimed, Closed, Ended, EntryId, Figures, JobChannel, Offer, Queue, Sent, Stop,
};

pub fn an_offer_is_in_all_its_channels(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 3);
    assert_eq!((publisher.cursor(), publisher.generation()), (EntryId::ZERO, 1));
    let offer = offer(5, 9);
    publish(&mut *publisher, std::slice::from_ref(&offer), 0);
    assert_eq!(publisher.cursor(), id(9));
    for (queue, data) in [(mail(), &offer.dispatch), (Queue::Assigned, &offer.assigned)] {
        let figures = bus.figures(std::slice::from_ref(&queue)).expect("a queue is measured");
        assert_eq!(figures, [Figures { waiting: 1, taken: 0, last: id(9) }]);
        let taken = take(&bus, &queue, "a", 10);
        assert_eq!((ids(&taken), texts(&taken)), (vec![id(9)], vec![&**data]));
        let figures = bus.figures(&[queue]).expect("a queue is measured");
        assert_eq!(figures, [Figures { waiting: 0, taken: 1, last: id(9) }]);
    }
    for channel in [JobChannel::Status(TaskId(5)), JobChannel::Logs(TaskId(5))] {
        let first = read(&bus, channel, EntryId::ZERO);
        assert_eq!((ids(&first), texts(&first)), (vec![id(9)], vec![&*offer.assigned]));
        assert_eq!(read(&bus, channel, id(9)), []);
        let sent = bus.send(&[message(channel, "{}")]).expect("a worker answers");
        let [Sent::Done(sent)] = sent[..] else { panic!("the channel is open: {sent:?}") };
        assert!(sent > id(9));
        assert_eq!(ids(&read(&bus, channel, id(9))), [sent]);
    }
}

pub fn offers_are_published_in_order(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut one = publisher(&bus, 1);
    let in_queue = |lease: u64, queue: &str| Offer { queue: name(queue), ..offer(lease - 1, lease) };
    publish(&mut *one, &[in_queue(10, "mail"), in_queue(20, "video"), in_queue(30, "mail")], 0);
    assert_eq!(one.cursor(), id(30));
    // The cursor is of all queues.
    publish(&mut *one, &[in_queue(25, "video")], 1);
    one.publish(&[in_queue(50, "mail"), in_queue(40, "mail")]).expect_err("they are not in order");
    one.publish(&[in_queue(40, "mail"), in_queue(40, "video")]).expect_err("nor is one twice");
    publish(&mut *one, &[in_queue(40, "video")], 0);
    assert_eq!(ids(&take(&bus, &mail(), "w", 10)), [id(10), id(30)]);
    assert_eq!(ids(&take(&bus, &Queue::Dispatch(name("video")), "w", 10)), [id(20), id(40)]);
    assert_eq!(ids(&take(&bus, &Queue::Assigned, "a", 10)), [id(10), id(20), id(30), id(40)]);
    assert_eq!(publisher(&bus, 1).cursor(), id(40));
    let many: Vec<Offer> = (0..250).map(|at| in_queue(1_000 + 2 * at, "mail")).collect();
    let mut next = publisher(&bus, 2);
    publish(&mut *next, &many, 0);
    publish(&mut *next, &many, 250);
    let longer: Vec<Offer> = (0..300).map(|at| in_queue(1_000 + 2 * at, "mail")).collect();
    publish(&mut *next, &longer, 250);
    assert_eq!(take(&bus, &mail(), "w", 1_000).len(), 300);
}

pub fn a_repeat_is_refused_also_after_it_was_settled(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    let (offer, last) = (offer(5, 9), ended(5, 9));
    publish(&mut *publisher, std::slice::from_ref(&offer), 0);
    publish(&mut *publisher, std::slice::from_ref(&offer), 1);
    for queue in [mail(), Queue::Assigned] {
        assert_eq!(ids(&take(&bus, &queue, "a", 10)), [id(9)]);
        bus.settle(&queue, &[id(9)]).expect("a message is settled");
    }
    publish(&mut *publisher, std::slice::from_ref(&offer), 1);
    assert_eq!(bus.close(&[last]).expect("a channel is closed"), [Closed::Done]);
    publish(&mut *publisher, std::slice::from_ref(&offer), 1);
    let mut next = super::publisher(&bus, 2);
    publish(&mut *next, &[offer], 1);
    for queue in [mail(), Queue::Assigned] {
        assert_eq!(take(&bus, &queue, "a", 10), []);
    }
    assert_eq!(read(&bus, JobChannel::Status(TaskId(5)), EntryId::ZERO), []);
}

pub fn a_new_claim_makes_the_older_publisher_stale(rig: &dyn BusRig) {
    let (one, other) = (open(rig, "a"), open(rig, "b"));
    let mut old = publisher(&one, 1);
    publish(&mut *old, &[offer(5, 9)], 0);
    // A later term, then another connection of the same one.
    for (term, lease) in [(4, 19), (4, 29)] {
        let mut new = publisher(&other, term);
        assert!(new.generation() > old.generation());
        let progress = old.publish(&[offer(1, 100), offer(2, 101)]).expect("a stale one is answered");
        let Some(Stop::Stale { term: found, generation }) = progress.stop else { panic!("{progress:?}") };
        assert_eq!((found, generation, progress.published), (Term(term), new.generation(), 0));
        old.publish(&[offer(1, 100)]).expect_err("it has stopped");
        publish(&mut *new, &[offer(6, lease)], 0);
        old = new;
    }
    assert_eq!(ids(&take(&one, &mail(), "w", 10)), [id(9), id(19), id(29)]);
}

pub fn a_claim_for_an_earlier_term_is_stale(rig: &dyn BusRig) {
    let (one, other) = (open(rig, "a"), open(rig, "b"));
    let mut leader = publisher(&one, 8);
    let stale = other.claim(Term(7)).expect("a claim is answered");
    let Claimed::Stale { term: Term(8), generation } = stale else { panic!("stale, not {stale:?}") };
    assert_eq!(generation, leader.generation());
    publish(&mut *leader, &[offer(5, 9)], 0);
}

pub fn an_offer_behind_messages_of_somebody_else_is_refused(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut first = publisher(&bus, 1);
    publish(&mut *first, &[offer(5, 9)], 0);
    rig.send_raw(&mail().into(), &[("data", b"{}")]);
    let video = Offer { queue: name("video"), ..offer(7, 11) };
    let progress = first.publish(&[offer(6, 10), video]).expect("it is answered");
    let Some(Stop::Refused(error)) = progress.stop else { panic!("refused, not {progress:?}") };
    let said = error.to_string();
    assert!(said.contains("job.dispatch.mail") && error.may_pass() && !error.retryable, "{said}");
    assert_eq!(progress.published, 0);
    assert_eq!(ids(&take(&bus, &Queue::Assigned, "a", 10)), [id(9)], "nor was the next one published");
    let mut next = publisher(&bus, 1);
    assert_eq!(next.cursor(), id(9));
    publish(&mut *next, &[Offer { queue: name("video"), ..offer(8, 12) }], 0);
}

pub fn the_offer_of_a_retry_removes_what_the_previous_lease_left(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    publish(&mut *publisher, &[offer(5, 9), offer(6, 10)], 0);
    let status = JobChannel::Status(TaskId(5));
    assert_eq!(ids(&take(&bus, &mail(), "w1", 1)), [id(9)]);
    bus.send(&[message(status, "old")]).expect("a worker reports");
    publish(&mut *publisher, &[Offer { previous: Some(LeaseId(9)), ..offer(5, 20) }], 0);
    assert_eq!(ids(&read(&bus, status, EntryId::ZERO)), [id(20)]);
    let figures = bus.figures(&[mail()]).expect("a queue is measured");
    assert_eq!(figures, [Figures { waiting: 2, taken: 0, last: id(20) }]);
    assert_eq!(ids(&take(&bus, &mail(), "w2", 10)), [id(10), id(20)]);
}

pub fn a_channel_is_closed_only_for_its_lease(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    publish(&mut *publisher, &[offer(5, 9)], 0);
    publish(&mut *publisher, &[Offer { previous: Some(LeaseId(9)), ..offer(5, 20) }], 0);
    let status = JobChannel::Status(TaskId(5));
    let sent = bus.send(&[message(status, "result")]).expect("a worker reports");
    let [Sent::Done(result)] = sent[..] else { panic!("{sent:?}") };
    let closed = bus.close(&[ended(5, 9), ended(7, 8), ended(5, 21)]).expect("channels are closed");
    assert_eq!(closed, [Closed::Other, Closed::Absent, Closed::Other]);
    assert_eq!(ids(&read(&bus, status, id(20))), [result], "it is of the second attempt");
    let closed = bus.close(&[ended(5, 20), ended(5, 20)]).expect("channels are closed");
    assert_eq!(closed, [Closed::Done, Closed::Absent]);
    for channel in [status, JobChannel::Logs(TaskId(5))] {
        assert_eq!(bus.send(&[message(channel, "late")]).expect("it is answered"), [Sent::Closed]);
    }
}

pub fn a_withdrawn_offer_is_not_taken(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    publish(&mut *publisher, &[offer(5, 9), offer(6, 10), offer(7, 11)], 0);
    assert_eq!(ids(&take(&bus, &mail(), "w", 1)), [id(9)], "it is taken, and no word of it came");
    let withdrawn = [9, 10].map(|lease| Ended { offered_in: Some(name("mail")), ..ended(lease - 4, lease) });
    let closed = bus.close(&withdrawn).expect("offers are withdrawn");
    assert_eq!(closed, [Closed::Done, Closed::Done]);
    let figures = bus.figures(&[mail()]).expect("a queue is measured");
    assert_eq!(figures, [Figures { waiting: 1, taken: 0, last: id(11) }]);
    assert_eq!(ids(&take(&bus, &mail(), "w", 10)), [id(11)]);
    let status = JobChannel::Status(TaskId(5));
    let running = bus.send(&[message(status, "running")]).expect("it is answered");
    assert_eq!(running, [Sent::Closed], "so the worker knows");
    publish(&mut *publisher, &[offer(6, 10)], 1);
}

pub fn a_bus_of_another_journal_is_refused(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    publish(&mut *publisher(&bus, 1), &[offer(5, 9)], 0);
    let (other, foreign): (Arc<dyn Bus>, _) = (rig.connect("default"), JournalId([8; 16]));
    let error = other.open(foreign, &name("b")).expect_err("it belongs to another journal");
    let said = error.to_string();
    assert!(!error.retryable && said.contains(&foreign.to_string()), "{said}");
    assert!(said.contains(&super::JOURNAL.to_string()) && said.contains("delete"), "{said}");
    other.claim(Term(9)).map(|claimed| format!("{claimed:?}")).expect_err("it was not opened");
    publish(&mut *publisher(&bus, 1), &[offer(6, 10)], 0);
}

pub fn an_unopened_bus_is_refused(rig: &dyn BusRig) {
    let bus = rig.connect("default");
    bus.claim(Term(1)).map(|claimed| format!("{claimed:?}")).expect_err("it was not opened");
    bus.check().expect_err("nor is there anything to compare with");
    let budget = Budget { entries: 1, bytes: 1 };
    assert_eq!(bus.read(&[(mail().into(), EntryId::ZERO)], budget).expect("nothing is read").entries, []);
    let figures = bus.figures(&[Queue::Assigned]).expect("nothing is measured");
    assert_eq!(figures, [Figures::default()]);
}

pub fn all_leases_with_channels_are_found(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    assert_eq!(found_jobs(&*bus), []);
    let mut publisher = publisher(&bus, 1);
    let offers: Vec<Offer> = (1..=300).map(|n| offer(n, 1_000 + n)).collect();
    publish(&mut *publisher, &offers, 0);
    let all: Vec<_> = offers.iter().map(|offer| (offer.task, offer.lease)).collect();
    assert_eq!(found_jobs(&*bus), all);
    bus.close(&[ended(7, 1_007)]).expect("a channel is closed");
    let left: Vec<_> = all.into_iter().filter(|(task, _)| task.0 != 7).collect();
    assert_eq!(found_jobs(&*bus), left);
    let other = rig.connect("other");
    other.open(super::JOURNAL, &name("a")).expect("another domain is opened");
    assert_eq!(found_jobs(&*other), []);
}

/// All leases that have channels, each once.
fn found_jobs(bus: &dyn Bus) -> Vec<(TaskId, LeaseId)> {
    let (mut found, mut from) = (BTreeSet::new(), Some(0));
    while let Some(at) = from {
        let some = bus.jobs(at).expect("channels are looked for");
        found.extend(some.leases);
        from = some.next;
    }
    found.into_iter().collect()
}
