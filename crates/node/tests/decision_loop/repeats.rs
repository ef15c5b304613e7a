//! Lease calls that are made again under their name, and answers with the same lease that nobody takes.

use orchestrix_core::Name;
use orchestrix_core::wire::LeaseQueues;
use orchestrix_node::Ask;

use crate::common::{Answered, World, abandoned, first_lease, request};

/// A call under a name.
fn call() -> LeaseQueues {
    LeaseQueues { request_id: Some(Name::new("r-1").unwrap()), ..request("w", "mail", 0) }
}

/// A world in which these callers made the same call, and what they were answered in one group.
fn same_group(callers: &[&'static str]) -> (World, Vec<Answered>) {
    let mut world = World::new();
    world.submit("mail");
    for caller in callers {
        world.ask(caller, Ask::Lease(call()));
    }
    let (answers, events) = world.commit();
    assert_eq!((events[0], events.len()), ("LeaseGranted", callers.len()), "{events:?}");
    let lease = |(_, answer): &Answered| abandoned(answer).leases;
    assert!(answers.iter().all(|answer| lease(answer) == lease(&answers[0])), "{answers:?}");
    (world, answers)
}

#[test]
fn a_repeat_in_the_same_group_keeps_the_lease() {
    let (mut world, answers) = same_group(&["first", "repeat"]);
    world.lost(&answers, "first");
    assert_eq!(world.commit().1, [""; 0], "the repeat has it");
}

#[test]
fn a_repeat_in_a_later_group_keeps_the_lease() {
    let (mut world, answers) = same_group(&["first"]);
    let durable = world.decisions.state().position();
    world.ask("repeat", Ask::Lease(call()));
    world.decisions.abandon(&[abandoned(&answers[0].1)], durable, world.now);
    let (again, events) = world.commit();
    assert_eq!(events, ["LeaseExtended"], "the repeat has it");
    assert_eq!(first_lease(again, "repeat").lease_id, first_lease(answers, "first").lease_id);
}

#[test]
fn a_lease_is_given_back_when_no_answer_with_it_was_taken() {
    let (mut world, answers) = same_group(&["first", "second", "third"]);
    world.lost_all(&answers, &["first", "second", "third"]);
    assert_eq!(world.commit().1, ["LeaseReleased"]);
    assert_eq!(world.stats.abandoned.get(), 1);
}

#[test]
fn a_repeat_that_is_lost_later_gives_the_lease_back() {
    let (mut world, answers) = same_group(&["first"]);
    let durable = world.decisions.state().position();
    world.ask("repeat", Ask::Lease(call()));
    world.decisions.abandon(&[abandoned(&answers[0].1)], durable, world.now);
    let (again, _) = world.commit();
    world.lost(&again, "repeat");
    assert_eq!(world.commit().1, ["LeaseReleased"], "nobody has it");
}

#[test]
fn a_lost_repeat_takes_nothing_from_an_answer_that_was_taken() {
    let (mut world, answers) = same_group(&["first", "repeat"]);
    world.lost(&answers, "repeat");
    assert_eq!(world.commit().1, [""; 0], "the first has it");
    // The same when the first was taken long before.
    world.ask("again", Ask::Lease(call()));
    let (answers, events) = world.commit();
    assert_eq!(events, ["LeaseExtended"]);
    world.lost(&answers, "again");
    assert_eq!(world.commit().1, [""; 0], "the first still has it");
}

#[test]
fn a_repeat_is_answered_with_no_more_than_it_asks_for() {
    let mut world = World::new();
    ["mail", "pay"].into_iter().for_each(|queue| _ = world.submit(queue));
    let mut ask = call();
    for queue in ["mail", "pay"] {
        ask.queues = vec![Name::new(queue).unwrap()];
        world.ask("w", Ask::Lease(ask.clone()));
    }
    assert_eq!(world.leased(), [("w", vec![1]), ("w", vec![2])]);
    ask.queues.push(Name::new("mail").unwrap());
    world.ask("w", Ask::Lease(ask.clone()));
    assert_eq!(world.leased(), [("w", vec![1])], "the oldest, and one as asked");
    ask.max = 2;
    world.ask("w", Ask::Lease(ask));
    assert_eq!(world.leased(), [("w", vec![1, 2])]);
}

#[test]
fn a_lease_that_another_node_did_not_deliver_is_given_back() {
    let (mut world, answers) = same_group(&["first"]);
    world.decisions.give_back(&abandoned(&answers[0].1), world.now);
    assert_eq!(world.commit().1, ["LeaseReleased"]);
}

#[test]
fn a_late_abandon_keeps_a_lease_granted_again() {
    let (mut world, answers) = same_group(&["first"]);
    let first = abandoned(&answers[0].1);
    world.ask("repeat", Ask::Lease(call()));
    let (again, _) = world.commit();
    // Everything is durable and was taken, as far as this node knows.
    let durable = world.decisions.state().position();
    world.decisions.abandon(&[], durable, world.now);
    world.decisions.give_back(&first, world.now);
    assert_eq!(world.commit().1, [""; 0], "the repeat has it");
    world.decisions.give_back(&abandoned(&again[0].1), world.now);
    assert_eq!(world.commit().1, ["LeaseReleased"], "nobody has it");
}

#[test]
fn answers_given_back_in_another_order_release_the_lease() {
    let (mut world, answers) = same_group(&["first"]);
    world.ask("repeat", Ask::Lease(call()));
    let (again, _) = world.commit();
    world.decisions.give_back(&abandoned(&again[0].1), world.now);
    assert_eq!(world.commit().1, [""; 0], "the first may have it");
    world.decisions.give_back(&abandoned(&answers[0].1), world.now);
    assert_eq!(world.commit().1, ["LeaseReleased"], "nobody has it");
}

#[test]
fn a_repeat_after_a_lost_repeat_keeps_the_lease() {
    let (mut world, answers) = same_group(&["first"]);
    world.ask("repeat", Ask::Lease(call()));
    let (again, _) = world.commit();
    world.decisions.give_back(&abandoned(&again[0].1), world.now);
    world.ask("third", Ask::Lease(call()));
    let (third, _) = world.commit();
    world.decisions.give_back(&abandoned(&answers[0].1), world.now);
    assert_eq!(world.commit().1, [""; 0], "the third has it");
    world.decisions.give_back(&abandoned(&third[0].1), world.now);
    assert_eq!(world.commit().1, ["LeaseReleased"], "nobody has it");
}

#[test]
fn an_abandon_of_an_earlier_term_is_ignored() {
    let (mut world, answers) = same_group(&["first"]);
    world.decisions.start_term(2, None, world.now);
    world.commit();
    world.decisions.give_back(&abandoned(&answers[0].1), world.now);
    assert_eq!(world.commit().1, [""; 0]);
}
