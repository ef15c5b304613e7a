//! Bad histories, one for each invariant: the check must find it. And a good one, in which it finds nothing.

use orchestrix_core::{Position, Term};
use orchestrix_engine::{ChainHash, Link};

use super::check;
use crate::cluster::engine::Who;
use crate::cluster::record::{Fact, LeaderCell, Record};

const A: Who = Who { node: 0, life: 1 };
const B: Who = Who { node: 1, life: 1 };
const SECOND: u64 = 1_000_000;

fn leader_cell(by: Who, epoch: u64) -> LeaderCell {
    LeaderCell { by, epoch, held: true }
}

fn link(position: u64) -> Link {
    Link { position: Position(position), hash: ChainHash([u8::try_from(position).unwrap(); 16]) }
}

fn landed(who: Who, epoch: u64, from: u64, term: u64, begins: Option<u64>) -> Fact {
    let previous = if from == 0 { Link::default() } else { link(from) };
    Fact::Landed { who, epoch, previous, link: link(from + 1), term: Term(term), begins }
}

/// A leads for a second, B takes over two seconds later; both write and answer.
fn good() -> Vec<(u64, Fact)> {
    vec![
        (0, Fact::Asked),
        (1, Fact::LeaderCellWritten { was: None, now: leader_cell(A, 1), leads: None }),
        (1, Fact::Entitled { who: A, epoch: 1, until: SECOND }),
        (2, Fact::Elected { who: A, epoch: 1 }),
        (2, Fact::Trusts { who: A, epoch: 1, until: SECOND - 10 }),
        (3, Fact::Begins { who: A, epoch: 1, seen: 0 }),
        (4, Fact::Sent { who: A, epoch: 1, batch: link(1).hash }),
        (5, landed(A, 1, 0, 1, Some(1))),
        (5, Fact::Unknown { who: A }),
        (6, Fact::Sent { who: A, epoch: 1, batch: link(1).hash }),
        (7, Fact::Settled { who: A }),
        (8, Fact::Answered { who: A, epoch: 1 }),
        (9, Fact::Observed { who: B, epoch: 1 }),
        (SECOND, Fact::SteppedDown { who: A, epoch: 1 }),
        (2 * SECOND, Fact::Healed),
        (2 * SECOND, Fact::Asked),
        (
            2 * SECOND,
            Fact::LeaderCellWritten { was: Some(leader_cell(A, 1)), now: leader_cell(B, 2), leads: None },
        ),
        (2 * SECOND, Fact::Entitled { who: B, epoch: 2, until: 3 * SECOND }),
        (2 * SECOND + 1, Fact::Elected { who: B, epoch: 2 }),
        (2 * SECOND + 1, Fact::Trusts { who: B, epoch: 2, until: 3 * SECOND - 10 }),
        (2 * SECOND + 2, Fact::Begins { who: B, epoch: 2, seen: 1 }),
        (2 * SECOND + 2, Fact::Sent { who: B, epoch: 2, batch: link(2).hash }),
        (2 * SECOND + 3, landed(B, 2, 1, 2, Some(2))),
        (2 * SECOND + 4, Fact::Answered { who: B, epoch: 2 }),
    ]
}

/// What is found in the good history with some facts more.
fn found_with(more: impl IntoIterator<Item = (u64, Fact)>) -> Vec<&'static str> {
    found_in(good().into_iter().chain(more))
}

fn found_in(facts: impl IntoIterator<Item = (u64, Fact)>) -> Vec<&'static str> {
    let record = Record { facts: facts.into_iter().collect(), ttl_us: SECOND, ..Record::default() };
    check(&record).iter().map(|violation| violation.invariant).collect()
}

const LATER: u64 = 2 * SECOND + 10;

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(found_with([]), Vec::<&str>::new());
}

#[test]
fn e1_an_epoch_of_two_nodes() {
    assert_eq!(found_with([(LATER, Fact::Elected { who: A, epoch: 2 })]), ["E1"]);
}

#[test]
fn e2_an_epoch_that_is_not_above_all_before_it() {
    let released = LeaderCell { held: false, ..leader_cell(B, 2) };
    let given_back =
        (LATER, Fact::LeaderCellWritten { was: Some(leader_cell(B, 2)), now: released, leads: Some(2) });
    // Another node made the cell anew.
    let taken = (LATER, Fact::LeaderCellWritten { was: None, now: leader_cell(A, 1), leads: None });
    assert_eq!(found_with([given_back, (LATER, Fact::Asked), taken]), ["E2"]);
    assert_eq!(found_with([(LATER, Fact::Begins { who: A, epoch: 2, seen: 2 })]), ["E2"]);
}

#[test]
fn e3_a_write_of_an_old_epoch_or_without_a_term() {
    let (sent, old) = ((10, Fact::Sent { who: A, epoch: 1, batch: link(3).hash }), landed(A, 1, 2, 1, None));
    let mut facts = good();
    facts.insert(12, sent);
    facts.push((LATER, old));
    assert_eq!(found_in(facts), ["E3"]);
    assert_eq!(found_with([(LATER, landed(B, 2, 2, 1, None))]), ["E3"], "it names the term of another");
}

#[test]
fn e4_an_act_after_the_time_is_over() {
    let act = |fact| (3 * SECOND, fact);
    assert_eq!(found_with([act(Fact::Answered { who: B, epoch: 2 })]), ["E4"]);
    assert_eq!(found_with([act(Fact::Sent { who: B, epoch: 2, batch: link(3).hash })]), ["E4"]);
    assert_eq!(found_with([(LATER, Fact::Answered { who: B, epoch: 3 })]), ["E4"], "it was never entitled");
}

#[test]
fn e5_two_at_once() {
    let both = (LATER, Fact::Trusts { who: A, epoch: 1, until: LATER + 1 });
    assert_eq!(found_with([both]), ["E5"]);
    let over = (LATER, Fact::Distrusts { who: B, epoch: 2 });
    let next = (LATER, Fact::Trusts { who: A, epoch: 3, until: LATER + 1 });
    assert_eq!(found_with([over, next]), Vec::<&str>::new(), "whoever was deposed acts no more");
}

#[test]
fn e6_an_act_after_stepping_down() {
    let gone = (LATER, Fact::SteppedDown { who: B, epoch: 2 });
    assert_eq!(found_with([gone, (LATER + 1, Fact::Answered { who: B, epoch: 2 })]), ["E6"]);
}

#[test]
fn e7_renewals_keep_the_epoch_and_acquisitions_change_it() {
    let asked = (LATER, Fact::Asked);
    let write = |now, leads| (LATER, Fact::LeaderCellWritten { was: Some(leader_cell(B, 2)), now, leads });
    assert_eq!(found_with([write(leader_cell(B, 2), Some(2))]), Vec::<&str>::new(), "a renewal");
    assert_eq!(found_with([asked.clone(), write(leader_cell(B, 3), Some(2))]), ["E7"]);
    assert_eq!(found_with([asked, write(leader_cell(B, 2), None)]), ["E7"]);
}

#[test]
fn e8_a_cell_that_another_holds() {
    let write = |now| (LATER, Fact::LeaderCellWritten { was: Some(leader_cell(B, 2)), now, leads: Some(1) });
    let released = LeaderCell { held: false, ..leader_cell(A, 2) };
    assert_eq!(found_with([write(released)]), ["E8"], "given back by somebody else");
    assert!(found_with([write(leader_cell(A, 1))]).contains(&"E8"), "renewed over somebody else");
}

#[test]
fn e9_a_leader_lease_unknown_to_its_holder() {
    let taken = (
        LATER,
        Fact::LeaderCellWritten { was: Some(leader_cell(B, 2)), now: leader_cell(A, 3), leads: None },
    );
    let much_later = (LATER + 10 * SECOND, Fact::Asked);
    assert_eq!(found_with([(LATER, Fact::Asked), taken.clone(), much_later.clone()]), ["E9"]);
    let known = (LATER + 1, Fact::Elected { who: A, epoch: 3 });
    assert_eq!(found_with([(LATER, Fact::Asked), taken, known, much_later]), Vec::<&str>::new());
}

#[test]
fn e10_an_older_leader_after_a_newer_one() {
    let seen = |epoch| (LATER, Fact::Observed { who: A, epoch });
    assert_eq!(found_with([seen(2), seen(1)]), ["E10"]);
    let mut facts = good();
    facts[2].1 = Fact::Entitled { who: A, epoch: 1, until: 9 * SECOND };
    facts.remove(13);
    facts.push((LATER, Fact::Answered { who: A, epoch: 1 }));
    assert_eq!(found_in(facts), ["E10"]);
}

#[test]
fn e11_an_epoch_that_was_not_counted() {
    let taken = (
        LATER,
        Fact::LeaderCellWritten { was: Some(leader_cell(B, 2)), now: leader_cell(A, 1_790_000), leads: None },
    );
    assert_eq!(found_with([(LATER, Fact::Asked), taken]), ["E11"]);
}

#[test]
fn w3_a_batch_that_does_not_follow() {
    let other = Link { hash: ChainHash([9; 16]), ..link(2) };
    let fork = Fact::Landed { who: B, epoch: 2, previous: other, link: link(3), term: Term(2), begins: None };
    assert_eq!(found_with([(LATER, fork)]), ["W3"]);
    assert_eq!(found_with([(LATER, landed(B, 2, 1, 2, None))]), ["W3"], "after what is not the end");
}

#[test]
fn w14_another_batch_while_the_first_is_unknown() {
    let sent = |n| (LATER, Fact::Sent { who: B, epoch: 2, batch: link(n).hash });
    let unknown = (LATER, Fact::Unknown { who: B });
    assert_eq!(found_with([sent(3), unknown.clone(), sent(4)]), ["W14"]);
    assert_eq!(found_with([sent(3), unknown.clone(), sent(3)]), Vec::<&str>::new());
    let settled = (LATER, Fact::Settled { who: B });
    assert_eq!(found_with([sent(3), unknown, sent(3), settled, sent(4)]), Vec::<&str>::new());
}

#[test]
fn el2_a_change_of_leader_where_nothing_goes_wrong() {
    let record = Record { facts: good(), calm: true, ttl_us: SECOND, ..Record::default() };
    assert_eq!(check(&record).iter().map(|violation| violation.invariant).collect::<Vec<_>>(), ["EL2"]);
}
