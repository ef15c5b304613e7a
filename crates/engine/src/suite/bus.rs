//! What every bus must do.

mod failures;
mod messages;
mod offers;

use std::sync::Arc;

use orchestrix_core::{LeaseId, Name, TaskId, Term};

use crate::JournalId;
use crate::bus::{
    Budget, Bus, Channel, Claimed, Content, Ended, Entry, EntryId, Message, Offer, Publisher, Queue, Taken,
};

pub use failures::*;
pub use messages::*;
pub use offers::*;

/// A new, empty server for buses, as a test needs it.
pub trait BusRig {
    /// Connects once more. The domain `default` is new and empty at first.
    fn connect(&self, domain: &str) -> Arc<dyn Bus>;

    /// Sends an entry with any fields to a channel of the domain `default`, as a program that keeps to nothing.
    fn send_raw(&self, channel: &Channel, fields: &[(&str, &[u8])]);

    /// A connection, and a switch: while it is on, the server does what it is asked to and no reply arrives.
    fn losing(&self) -> (Arc<dyn Bus>, Switch);

    /// Remembers what the server has, and later takes it back to that.
    fn moment(&self) -> Box<dyn FnOnce() + '_>;
}

/// Sets whether replies arrive.
pub type Switch = Box<dyn Fn(Replies)>;

/// Whether replies arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    Arrive,
    AreLost,
}

/// Makes a new rig.
pub type MakeBus<'a> = &'a mut dyn FnMut() -> Box<dyn BusRig>;

/// All sentences about buses.
pub fn bus(make: MakeBus<'_>) {
    let sentences: [fn(&dyn BusRig); 29] = [
        an_offer_is_in_all_its_channels,
        offers_are_published_in_order,
        a_repeat_is_refused_also_after_it_was_settled,
        a_new_claim_makes_the_older_publisher_stale,
        a_claim_for_an_earlier_term_is_stale,
        an_offer_behind_messages_of_somebody_else_is_refused,
        the_offer_of_a_retry_removes_what_the_previous_lease_left,
        a_channel_is_closed_only_for_its_lease,
        a_withdrawn_offer_is_not_taken,
        all_leases_with_channels_are_found,
        a_bus_of_another_journal_is_refused,
        an_unopened_bus_is_refused,
        two_consumers_never_get_one_message,
        a_message_is_reclaimed_only_after_it_was_idle,
        an_offer_is_never_reclaimed,
        a_settled_message_is_gone,
        a_consumer_leaves_when_it_holds_nothing,
        a_closed_channel_refuses,
        a_topic_reaches_all,
        old_messages_of_topics_are_trimmed,
        a_deleted_message_is_not_read_again,
        reads_keep_to_their_budget,
        what_is_no_message_is_malformed,
        limits_are_kept_at_the_last_and_the_next,
        domains_do_not_meet,
        a_lost_reply_to_an_offer_is_unknown,
        a_lost_reply_to_a_message_is_unknown,
        a_bus_that_was_rolled_back_is_noticed,
        a_bus_that_was_wiped_is_noticed,
    ];
    for sentence in sentences {
        sentence(&*make());
    }
}

const JOURNAL: JournalId = JournalId([7; 16]);
const PLENTY: Budget = Budget { entries: 10_000, bytes: 64 << 20 };

pub(super) fn name(text: &str) -> Name {
    Name::new(text).expect("a test has valid names")
}

/// Connects and opens for the journal of the tests.
pub(super) fn open(rig: &dyn BusRig, node: &str) -> Arc<dyn Bus> {
    let bus = rig.connect("default");
    bus.open(JOURNAL, &name(node)).expect("a bus is opened");
    bus
}

pub(super) fn publisher(bus: &Arc<dyn Bus>, term: u64) -> Box<dyn Publisher> {
    match bus.claim(Term(term)).expect("a bus is claimed") {
        Claimed::Done(publisher) => publisher,
        other @ (Claimed::Stale { .. } | Claimed::RolledBack) => panic!("claimed, not {other:?}"),
    }
}

/// The first offer of a task in the queue `mail`.
pub(super) fn offer(task: u64, lease: u64) -> Offer {
    Offer {
        task: TaskId(task),
        lease: LeaseId(lease),
        queue: name("mail"),
        dispatch: format!("{{\"JobId\":\"{task}\",\"HistoryId\":\"{lease}\",\"Payload\":1}}"),
        assigned: format!("{{\"JobId\":\"{task}\",\"HistoryId\":\"{lease}\"}}"),
        previous: None,
    }
}

/// Publishes offers that must all be taken, of which so many are repeats.
pub(super) fn publish(publisher: &mut dyn Publisher, offers: &[Offer], repeated: usize) {
    let progress = publisher.publish(offers).expect("offers are published");
    assert!(progress.stop.is_none(), "{:?}", progress.stop);
    assert_eq!((progress.published, progress.repeated), (offers.len(), repeated));
}

pub(super) fn mail() -> Queue {
    Queue::Dispatch(name("mail"))
}

pub(super) fn ended(task: u64, lease: u64) -> Ended {
    Ended { task: TaskId(task), lease: LeaseId(lease), offered_in: None }
}

pub(super) fn message(channel: impl Into<Channel>, data: &str) -> Message {
    Message { channel: channel.into(), data: data.to_owned() }
}

pub(super) fn take(bus: &Arc<dyn Bus>, queue: &Queue, consumer: &str, at_most: usize) -> Vec<Entry> {
    entries(bus.take(queue, &name(consumer), at_most).expect("messages are taken"))
}

pub(super) fn entries(taken: Taken) -> Vec<Entry> {
    match taken {
        Taken::Entries(entries) => entries,
        other @ (Taken::Unknown | Taken::RolledBack) => panic!("entries, not {other:?}"),
    }
}

pub(super) fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

pub(super) fn id(lease: u64) -> EntryId {
    LeaseId(lease).into()
}

/// All that is in one channel after a cursor.
pub(super) fn read(bus: &Arc<dyn Bus>, channel: impl Into<Channel>, after: EntryId) -> Vec<Entry> {
    let found = bus.read(&[(channel.into(), after)], PLENTY).expect("a channel is read");
    assert_eq!(found.channels, 1);
    found.entries.into_iter().map(|(_, entry)| entry).collect()
}

pub(super) fn texts(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(text).collect()
}

fn text(entry: &Entry) -> &str {
    match &entry.content {
        Content::Data(data) => data,
        Content::Malformed { bytes } => panic!("{} is malformed, with {bytes} bytes", entry.id),
    }
}
