//! A worker that has nothing but a Redis client, with the commands that such clients send.

use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::bus::{Budget, Bus, Closed, Content, Ended, EntryId, JobChannel, Message, Topic};
use orchestrix_testbed::Server;

use crate::bus::{claimed, name, offer};
use crate::common::{FORGETFUL, Raw, redis, url_for_a_bus};

const PLENTY: Budget = Budget { entries: 100, bytes: 1 << 20 };

type Entry = (String, Vec<(String, String)>);
type Streams = Option<Vec<(String, Vec<Entry>)>>;

/// A worker as the user of the page.
fn worker(server: &Server, user: &str) -> Raw {
    Raw::at(&url_for_a_bus(server, server.port(), user, ""))
}

/// As `xadd(channel, {"data": …}, nomkstream=True)`.
fn put(worker: &mut Raw, channel: &str, data: &str) -> Option<String> {
    worker.ask(&format!("XADD {channel} NOMKSTREAM * data {data}"))
}

fn texts(bus: &impl Bus, channel: JobChannel, after: EntryId) -> Vec<String> {
    let found = bus.read(&[(channel.into(), after)], PLENTY).unwrap();
    let text = |entry: orchestrix_engine::bus::Entry| match entry.content {
        Content::Data(data) => data,
        Content::Malformed { bytes } => panic!("{bytes} bytes"),
    };
    found.entries.into_iter().map(|(_, entry)| text(entry)).collect()
}

fn works(user: &str) {
    let server = redis(&FORGETFUL);
    let mut worker = worker(&server, user);
    // Before the first offer, and before any node.
    worker.run("XGROUP CREATE orchestrix.job.dispatch.mail workers 0 MKSTREAM");
    let (bus, mut publisher) = claimed(&server, "");
    assert!(
        worker.refusal("XGROUP CREATE orchestrix.job.dispatch.mail workers 0 MKSTREAM").contains("BUSYGROUP")
    );
    assert!(put(&mut worker, "orchestrix.worker.heartbeat", "{}").is_some());

    publisher.publish(&[offer(5, 9), offer(6, 10)]).unwrap();
    let ask = "XREADGROUP GROUP workers py-1 COUNT 1 BLOCK 5000 STREAMS orchestrix.job.dispatch.mail >";
    let got: Streams = worker.ask(ask);
    let (_, entries) = got.unwrap().remove(0);
    let [(at, fields)] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((&**at, &fields[0].0[..], &fields[0].1), ("9-0", "data", &offer(5, 9).dispatch));
    let status = "orchestrix.job.5.status";
    assert!(put(&mut worker, status, "running").is_some());
    assert_eq!(worker.ask::<u64>("XACK orchestrix.job.dispatch.mail workers 9-0"), 1);
    assert_eq!(worker.ask::<u64>("XDEL orchestrix.job.dispatch.mail 9-0"), 1);
    assert!(put(&mut worker, "orchestrix.job.5.logs", "line").is_some());
    assert!(put(&mut worker, status, "completed").is_some());
    assert_eq!(texts(&bus, JobChannel::Status(TaskId(5)), LeaseId(9).into()), ["running", "completed"]);
    assert_eq!(texts(&bus, JobChannel::Logs(TaskId(5)), LeaseId(9).into()), ["line"]);

    // What it says last it repeats until the channel is gone.
    assert!(put(&mut worker, status, "completed").is_some());
    let ended = Ended { task: TaskId(5), lease: LeaseId(9), offered_in: None };
    assert_eq!(bus.close(&[ended]).unwrap(), [Closed::Done]);
    assert_eq!(put(&mut worker, status, "completed"), None);

    // An offer that is withdrawn while the worker takes it.
    let got: Streams = worker.ask(ask);
    assert_eq!(got.unwrap()[0].1[0].0, "10-0");
    let ended = Ended { task: TaskId(6), lease: LeaseId(10), offered_in: Some(name("mail")) };
    assert_eq!(bus.close(&[ended]).unwrap(), [Closed::Done]);
    assert_eq!(put(&mut worker, "orchestrix.job.6.status", "running"), None);

    let read = |from: &str| format!("XREAD BLOCK 5000 STREAMS orchestrix.job.cancel {from}");
    let cancel = Message { channel: Topic::Cancel.into(), data: "{}".to_owned() };
    bus.send(&[cancel]).unwrap();
    let got: Streams = worker.ask(&read("0"));
    assert_eq!(got.unwrap()[0].1.len(), 1);
}

#[test]
fn a_worker_needs_only_a_redis_client() {
    works("worker");
}

#[test]
fn a_worker_of_an_older_server_needs_only_a_redis_client() {
    works("worker-6");
}

#[test]
fn a_worker_may_not_do_what_only_nodes_do() {
    let server = redis(&FORGETFUL);
    let (_bus, mut publisher) = claimed(&server, "");
    publisher.publish(&[offer(5, 9)]).unwrap();
    let both = [
        "HGETALL orchestrix:bus",
        "HSET orchestrix:bus generation 9",
        "XADD orchestrix.job.assigned * data {}",
        "XADD orchestrix.job.handoff * data {}",
        "XADD orchestrix.job.handoff.ack.a * data {}",
        "XADD orchestrix.coordinator.heartbeat * data {}",
        "XREADGROUP GROUP coordinators me STREAMS orchestrix.job.assigned >",
        "XREAD STREAMS orchestrix.job.assigned 0",
        "XAUTOCLAIM orchestrix.job.dispatch.mail workers me 0 0",
        "XTRIM orchestrix.job.dispatch.mail MAXLEN 0",
        "XGROUP DESTROY orchestrix.job.dispatch.mail workers",
        "DEL orchestrix.job.5.status",
        "KEYS *",
        "EVAL return 0",
        "ACL LIST",
    ];
    let selected = [
        "XADD orchestrix.job.dispatch.mail * data {}",
        "XADD orchestrix.job.dispatch.5.status * data {}",
        "XADD orchestrix.job.cancel * data {}",
        "XDEL orchestrix.job.cancel 1-0",
        "XREAD STREAMS orchestrix.job.5.status 0",
        "XDEL orchestrix.job.5.status 9-0",
    ];
    for (user, words) in [("worker", &[&both[..], &selected].concat()), ("worker-6", &both.to_vec())] {
        let mut worker = worker(&server, user);
        for command in words {
            let said = worker.refusal(command);
            assert!(said.contains("NOPERM") || said.contains("permissions"), "{user}, {command}: {said}");
        }
    }
}
