//! A replica that takes over before everything has reached it.

use orchestrix_core::Position;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Cause, Error};

use crate::common::{DURABLE, PATIENT, Raw, journal, redis};
use crate::support::proxy::Proxy;
use orchestrix_testbed::eventually;

fn damaged(error: &Error) -> String {
    assert!(matches!(error.source, Cause::Damaged { .. }) && !error.retryable, "{error}");
    error.to_string()
}

#[test]
fn a_replica_promoted_without_the_tail_is_not_forked() {
    let (mut primary, replica) = (redis(&DURABLE), redis(&DURABLE));
    let address = Proxy::to(primary.port());
    let (mut leader, mut follower) = (journal(address.port(), PATIENT), journal(address.port(), PATIENT));
    let mut batches: Vec<_> = (0..3).map(|_| append_one(&mut *leader, 1, 10).0).collect();
    let mut second = Raw::to(&replica);
    second.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    eventually("the replica has all batches", || {
        (second.ask::<usize>("XLEN orchestrix:default:journal") == 3).then_some(())
    });
    // The replica is promoted, and the primary goes on for a moment: what it acknowledges now is lost with it.
    second.run("REPLICAOF NO ONE");
    batches.extend((0..2).map(|_| append_one(&mut *leader, 1, 10).0));
    let end = leader.end();
    assert_eq!(follower.refresh().unwrap(), end);
    primary.kill();
    address.lead_to(replica.port());

    let next = batch_after(end, 1, 10);
    assert_eq!(leader.append(&next).unwrap(), Appended::Unknown, "the connection broke");
    for _ in 0..2 {
        let told = damaged(&leader.append(&next).unwrap_err());
        assert!(told.contains("ended at 5") && told.contains("ends at 3"), "{told}");
    }
    eventually("whoever follows notices it, too", || {
        let error = follower.refresh().unwrap_err();
        (!error.retryable).then(|| damaged(&error))
    });
    let newcomer = journal(address.port(), PATIENT);
    assert_eq!(read_all(&*newcomer, Position(0), 1 << 20), batches[..3], "and nothing was written");
}
