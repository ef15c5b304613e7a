//! Queues, topics, and the channels of jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use orchestrix_core::{LeaseId, TaskId};

use super::{
    BusRig, PLENTY, ended, entries, id, ids, mail, message, name, offer, open, publish, publisher, read,
    take, texts,
};
use crate::bus::{
    Budget, Channel, Closed, Content, ENTRIES_MAX, EntryId, JobChannel, Left, MESSAGE_BYTES_MAX, OFFERS_MAX,
    Offer, Queue, READ_CHANNELS_MAX, Sent, Topic,
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

pub fn two_consumers_never_get_one_message(rig: &dyn BusRig) {
    const MESSAGES: usize = 200;
    let sender = open(rig, "a");
    let all: Vec<_> = (0..MESSAGES).map(|number| message(Queue::Handoff, &number.to_string())).collect();
    sender.send(&all).expect("messages are sent");
    let nodes = ["a", "b", "c", "d"].map(|node| (node, open(rig, node)));
    let got: Vec<EntryId> = std::thread::scope(|scope| {
        let consume = |(node, bus)| {
            scope.spawn(move || {
                let mut got = Vec::new();
                loop {
                    let some = take(bus, &Queue::Handoff, node, 3);
                    if some.is_empty() {
                        return got;
                    }
                    got.extend(ids(&some));
                }
            })
        };
        let consuming: Vec<_> = nodes.iter().map(|(node, bus)| consume((*node, bus))).collect();
        consuming.into_iter().flat_map(|one| one.join().expect("nobody panics")).collect()
    });
    let different: BTreeSet<_> = got.iter().collect();
    assert_eq!((got.len(), different.len()), (MESSAGES, MESSAGES));
}

pub fn a_message_is_reclaimed_only_after_it_was_idle(rig: &dyn BusRig) {
    let (one, other) = (open(rig, "a"), open(rig, "b"));
    let all: Vec<_> = (0..25).map(|number| message(Queue::Handoff, &number.to_string())).collect();
    one.send(&all).expect("messages are sent");
    let taken = take(&one, &Queue::Handoff, "a", 20);
    let reclaim = |idle, at_most| {
        entries(other.reclaim(&Queue::Handoff, &name("b"), idle, at_most).expect("messages are reclaimed"))
    };
    assert_eq!(reclaim(LONG, 10), []);
    assert_eq!(reclaim(Duration::ZERO, 10), taken[..10]);
    assert_eq!(reclaim(Duration::ZERO, 100), taken, "those that nobody took stay where they are");
    other.settle(&Queue::Handoff, &ids(&taken)).expect("messages are settled");
    assert_eq!(reclaim(Duration::ZERO, 100), []);
    assert_eq!(take(&one, &Queue::Handoff, "a", 100).len(), 5);
}

pub fn an_offer_is_never_reclaimed(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    publish(&mut *publisher(&bus, 1), &[offer(5, 9)], 0);
    assert_eq!(ids(&take(&bus, &mail(), "w1", 10)), [id(9)]);
    bus.reclaim(&mail(), &name("w2"), Duration::ZERO, 10).expect_err("two workers would have one lease");
    assert_eq!(take(&bus, &mail(), "w2", 10), []);
}

pub fn a_settled_message_is_gone(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    bus.send(&[message(Queue::Handoff, "1"), message(Queue::Handoff, "2")]).expect("messages are sent");
    let taken = ids(&take(&bus, &Queue::Handoff, "a", 10));
    for _ in 0..2 {
        bus.settle(&Queue::Handoff, &taken[..1]).expect("a message is settled, also twice");
        let figures = bus.figures(&[Queue::Handoff, mail()]).expect("queues are measured");
        assert_eq!([figures[0].waiting, figures[0].taken, figures[1].waiting], [0, 1, 0]);
        assert_eq!(figures[0].last, taken[1]);
    }
    bus.settle(&Queue::Handoff, &[]).expect("nothing is settled");
    let left = bus.reclaim(&Queue::Handoff, &name("b"), Duration::ZERO, 10).expect("the rest is reclaimed");
    assert_eq!(ids(&entries(left)), taken[1..]);
}

pub fn a_consumer_leaves_when_it_holds_nothing(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    bus.send(&[message(Queue::Handoff, "1"), message(Queue::Handoff, "2")]).expect("messages are sent");
    let taken = ids(&take(&bus, &Queue::Handoff, "a", 10));
    assert_eq!(bus.leave(&name("a")).expect("it is answered"), Left::Holding(2));
    assert_eq!(bus.leave(&name("b")).expect("it is answered"), Left::Done);
    let kept = bus.reclaim(&Queue::Handoff, &name("b"), Duration::ZERO, 1).expect("one is reclaimed");
    assert_eq!(ids(&entries(kept)), taken[..1]);
    bus.settle(&Queue::Handoff, &taken).expect("messages are settled");
    for node in ["a", "a", "b"] {
        assert_eq!(bus.leave(&name(node)).expect("it is answered"), Left::Done);
    }
    bus.send(&[message(Queue::Handoff, "3")]).expect("a message is sent");
    assert_eq!(take(&bus, &Queue::Handoff, "a", 10).len(), 1, "a node may come back");
}

pub fn a_closed_channel_refuses(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let never: [Channel; 3] =
        [JobChannel::Status(TaskId(5)).into(), mail().into(), Topic::HandoffAck(name("nobody")).into()];
    let messages = never.map(|channel| message(channel, "{}"));
    let sent = bus.send(&messages).expect("messages are answered");
    assert_eq!(sent, [Sent::Closed, Sent::Closed, Sent::Closed]);
    publish(&mut *publisher(&bus, 1), &[offer(5, 9)], 0);
    let both = [&messages[0], &messages[2]].map(Clone::clone);
    let sent = bus.send(&both).expect("messages are answered");
    assert!(matches!(sent[..], [Sent::Done(_), Sent::Closed]), "{sent:?}");
    bus.close(&[ended(5, 9)]).expect("a channel is closed");
    assert_eq!(bus.send(&both[..1]).expect("messages are answered"), [Sent::Closed]);
    assert_eq!(read(&bus, JobChannel::Status(TaskId(5)), EntryId::ZERO), []);
}

pub fn a_topic_reaches_all(rig: &dyn BusRig) {
    let (one, other) = (open(rig, "a"), open(rig, "b"));
    let topics =
        [Topic::Cancel, Topic::WorkerHeartbeat, Topic::CoordinatorHeartbeat, Topic::HandoffAck(name("b"))];
    for topic in topics {
        let first = message(topic.clone(), "first");
        let sent = one.send(std::slice::from_ref(&first)).expect("a message is sent");
        let [Sent::Done(cursor)] = sent[..] else { panic!("{topic:?}: {sent:?}") };
        one.send(&[message(topic.clone(), "second")]).expect("a message is sent");
        for bus in [&one, &other] {
            assert_eq!(texts(&read(bus, topic.clone(), EntryId::ZERO)), ["first", "second"]);
            assert_eq!(texts(&read(bus, topic.clone(), cursor)), ["second"]);
        }
        // To open it again changes nothing.
        other.open(super::JOURNAL, &name("b")).expect("a bus is opened again");
        assert_eq!(read(&other, topic, EntryId::ZERO).len(), 2);
    }
}

pub fn old_messages_of_topics_are_trimmed(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let (topic, other) = (Topic::WorkerHeartbeat, Topic::Cancel);
    bus.send(&[message(topic.clone(), "1"), message(other.clone(), "2")]).expect("messages are sent");
    bus.trim(&[topic.clone(), other.clone()], LONG).expect("topics are trimmed");
    assert_eq!(read(&bus, topic.clone(), EntryId::ZERO).len(), 1);
    // Until the clock of the server has gone on.
    for _ in 0..1_000_000 {
        bus.trim(std::slice::from_ref(&topic), Duration::ZERO).expect("topics are trimmed");
        if read(&bus, topic.clone(), EntryId::ZERO).is_empty() {
            break;
        }
    }
    assert_eq!(read(&bus, topic.clone(), EntryId::ZERO), []);
    assert_eq!(read(&bus, other, EntryId::ZERO).len(), 1);
    let sent = bus.send(&[message(topic, "3")]).expect("a message is sent");
    assert!(matches!(sent[..], [Sent::Done(_)]), "an empty topic is there");
    bus.trim(&[Topic::HandoffAck(name("nobody"))], LONG).expect("one that is not there is trimmed");
}

pub fn a_deleted_message_is_not_read_again(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    publish(&mut *publisher, &[offer(5, 9)], 0);
    let logs = JobChannel::Logs(TaskId(5));
    bus.send(&["1", "2", "3"].map(|line| message(logs, line))).expect("lines are sent");
    let all = ids(&read(&bus, logs, EntryId::ZERO));
    let delete = |lease: u64, entries: &[EntryId]| {
        bus.delete(logs, LeaseId(lease), entries).expect("messages are deleted")
    };
    assert_eq!(delete(8, &all), Closed::Other);
    // The first entry stays.
    for _ in 0..2 {
        assert_eq!(delete(9, &all[..3]), Closed::Done);
        assert_eq!(ids(&read(&bus, logs, EntryId::ZERO)), [all[0], all[3]]);
    }
    assert_eq!(delete(9, &[]), Closed::Done);
    publish(&mut *publisher, &[Offer { previous: Some(LeaseId(9)), ..offer(5, 20) }], 0);
    assert_eq!(delete(9, &[all[3]]), Closed::Other);
    bus.close(&[ended(5, 20)]).expect("channels are closed");
    assert_eq!(delete(20, &[all[3]]), Closed::Absent);
}

pub fn reads_keep_to_their_budget(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let offers: Vec<Offer> = (0..100).map(|at| offer(1 + 2 * at, 2 + 2 * at)).collect();
    publish(&mut *publisher(&bus, 1), &offers, 0);
    let status = |at: usize| JobChannel::Status(offers[at].task);
    let after: Vec<(Channel, EntryId)> =
        (0..100).map(|at| (status(at).into(), offers[at].lease.into())).collect();
    let none = bus.read(&after, PLENTY).expect("channels are read");
    assert_eq!((none.entries, none.channels), (vec![], 100));
    // Ten bytes each: 20 in the third channel, and one in the last.
    let mut messages: Vec<_> = (0..20).map(|at| message(status(2), &format!("{at:010}"))).collect();
    messages.push(message(status(99), "0000000020"));
    bus.send(&messages).expect("messages are sent");
    let read = |entries, bytes| bus.read(&after, Budget { entries, bytes }).expect("channels are read");
    for (entries, bytes, got, channels) in [
        (100, 1_000, 21, 100),
        (21, 210, 21, 100),
        (20, 1_000, 20, 99),
        (100, 209, 20, 99),
        (100, 199, 19, 2),
        (3, 1_000, 3, 2),
        (100, 29, 2, 2),
        (0, 0, 1, 2),
    ] {
        let found = read(entries, bytes);
        assert_eq!((found.entries.len(), found.channels), (got, channels), "{entries} and {bytes}");
        for (at, (place, entry)) in found.entries.iter().enumerate() {
            assert_eq!((*place, super::text(entry)), (if at < 20 { 2 } else { 99 }, &*format!("{at:010}")));
        }
    }
}

pub fn what_is_no_message_is_malformed(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    publish(&mut *publisher(&bus, 1), &[offer(5, 9)], 0);
    let long = vec![b'x'; MESSAGE_BYTES_MAX + 1];
    let kinds: [(&str, &[u8], Option<usize>); 6] = [
        ("data", b"{}", None),
        ("text", b"{}", Some(2)),
        ("data", b"\xff\xfe", Some(2)),
        ("data", &long[1..], None),
        ("data", &long, Some(MESSAGE_BYTES_MAX + 1)),
        ("data", b"last", None),
    ];
    for channel in [JobChannel::Status(TaskId(5)).into(), Topic::Cancel.into(), Queue::Handoff.into()] {
        for (field, value, _) in kinds {
            rig.send_raw(&channel, &[(field, value)]);
        }
        let found = match &channel {
            Channel::Queue(queue) => take(&bus, queue, "a", 100),
            Channel::Topic(_) => read(&bus, channel.clone(), EntryId::ZERO),
            Channel::Job(_) => read(&bus, channel.clone(), id(9)),
        };
        assert_eq!(found.len(), kinds.len());
        for (entry, (_, value, malformed)) in found.iter().zip(kinds) {
            match &entry.content {
                Content::Malformed { bytes } => assert_eq!(Some(*bytes), malformed, "{channel:?}"),
                Content::Data(data) => assert!(malformed.is_none() && data.as_bytes() == value),
            }
        }
    }
    rig.send_raw(&Topic::Cancel.into(), &[("more", b"later"), ("data", b"known")]);
    let cancels = read(&bus, Topic::Cancel, EntryId::ZERO);
    assert_eq!(cancels.last().map(super::text), Some("known"), "other fields are ignored");
}

pub fn limits_are_kept_at_the_last_and_the_next(rig: &dyn BusRig) {
    let bus = open(rig, "a");
    let mut publisher = publisher(&bus, 1);
    let text = "x".repeat(MESSAGE_BYTES_MAX + 1);
    let long = Offer { dispatch: text[1..].to_owned(), ..offer(1, 2) };
    publish(&mut *publisher, &[long], 0);
    publisher.publish(&[Offer { dispatch: text.clone(), ..offer(3, 4) }]).expect_err("it is too long");
    publisher.publish(&[Offer { assigned: text.clone(), ..offer(3, 4) }]).expect_err("so is this");
    assert_eq!(texts(&take(&bus, &mail(), "w", 1)), [&text[1..]]);
    let offers: Vec<Offer> = (0..=OFFERS_MAX as u64).map(|at| offer(10 + at, 2_000 + at)).collect();
    publisher.publish(&offers).expect_err("they are too many");
    publish(&mut *publisher, &offers[1..], 0);

    let status = JobChannel::Status(TaskId(1));
    let sent = bus.send(&[message(status, &text[1..])]).expect("a long message is sent");
    assert!(matches!(sent[..], [Sent::Done(_)]));
    bus.send(&[message(status, "{}"), message(status, &text)]).expect_err("one is too long");
    assert_eq!(read(&bus, status, id(2)).len(), 1, "so none was sent");
    let some = vec![message(Queue::Handoff, "{}"); ENTRIES_MAX];
    assert_eq!(bus.send(&some).expect("messages are sent").len(), ENTRIES_MAX);
    let more = vec![message(Queue::Handoff, "{}"); ENTRIES_MAX + 1];
    bus.send(&more).expect_err("they are too many");
    bus.take(&Queue::Handoff, &name("a"), ENTRIES_MAX + 1).expect_err("they are too many");
    let taken = ids(&take(&bus, &Queue::Handoff, "a", ENTRIES_MAX));
    assert_eq!(taken.len(), ENTRIES_MAX);
    assert_eq!(take(&bus, &Queue::Handoff, "a", 0), []);
    bus.settle(&Queue::Handoff, &taken).expect("messages are settled");
    let after: Vec<(Channel, EntryId)> = (0..=READ_CHANNELS_MAX)
        .map(|at| (JobChannel::Status(offers[at].task).into(), EntryId::ZERO))
        .collect();
    bus.read(&after, PLENTY).expect_err("they are too many");
    let found = bus.read(&after[1..], PLENTY).expect("channels are read");
    assert_eq!((found.entries.len(), found.channels), (READ_CHANNELS_MAX, READ_CHANNELS_MAX));
    assert_eq!(bus.read(&[], PLENTY).expect("nothing is read").channels, 0);
    let all: Vec<_> = (0..=ENTRIES_MAX as u64).map(|at| ended(10 + at, 2_000 + at)).collect();
    bus.close(&all).expect_err("they are too many");
    let closed = bus.close(&all[1..]).expect("channels are closed");
    assert!(closed.len() == ENTRIES_MAX && closed.iter().all(|one| *one == Closed::Done));
}

pub fn domains_do_not_meet(rig: &dyn BusRig) {
    let buses = ["default", "eu", "7"].map(|domain| rig.connect(domain));
    for (bus, node) in buses.iter().zip([1, 2, 3]) {
        bus.open(crate::JournalId([node; 16]), &name("a")).expect("each domain has a journal");
        bus.send(&[message(Topic::Cancel, &node.to_string())]).expect("a message is sent");
    }
    for (bus, node) in buses.iter().zip(["1", "2", "3"]) {
        publish(&mut *publisher(bus, 1), &[offer(5, 9)], 0);
        assert_eq!(texts(&read(bus, Topic::Cancel, EntryId::ZERO)), [node]);
        assert_eq!(take(bus, &mail(), "w", 10).len(), 1);
    }
    buses[1].close(&[ended(5, 9)]).expect("a channel is closed");
    assert_eq!(read(&buses[0], JobChannel::Status(TaskId(5)), EntryId::ZERO).len(), 1);
}
