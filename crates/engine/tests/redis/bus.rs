//! The bus on real servers: what every bus must do, and what is peculiar to this one.

use std::sync::Arc;

use orchestrix_core::{LeaseId, Name, TaskId, Term};
use orchestrix_engine::bus::{Bus, Channel, Channels, Checked, Claimed, Offer, Publisher, Queue, Stop};
use orchestrix_engine::redis::{RedisBus, RedisPlace};
use orchestrix_engine::suite::{self, BusRig, Replies, Switch};
use orchestrix_engine::{Cause, Error, JournalId, Shared};
use orchestrix_testbed::{Server, eventually};

use crate::common::{DURABLE, FORGETFUL, HASTY, PATIENT, Raw, redis, url, url_for_a_bus, url_of_the_page};
use crate::support::proxy::{Proxy, Wire};

/// A server that is empty at first.
struct Rig {
    server: Arc<Server>,
    user: &'static str,
}

impl BusRig for Rig {
    fn connect(&self, domain: &str) -> Arc<dyn Bus> {
        let url = url_for_a_bus(&self.server, self.server.port(), self.user, "");
        Arc::new(RedisBus::connect(&url, PATIENT).unwrap().in_domain(domain).unwrap())
    }

    fn send_raw(&self, channel: &Channel, fields: &[(&str, &[u8])]) {
        let name = Channels::default().name(channel);
        let mut words: Vec<&[u8]> = vec![b"XADD", name.as_bytes(), b"*"];
        words.extend(fields.iter().flat_map(|(field, value)| [field.as_bytes(), value]));
        let _: String = Raw::to(&self.server).ask_with(&words);
    }

    fn losing(&self) -> (Arc<dyn Bus>, Switch) {
        let wire = Proxy::to(self.server.port());
        let url = url_for_a_bus(&self.server, wire.port(), self.user, "");
        let bus = Arc::new(RedisBus::connect(&url, PATIENT).unwrap());
        let set = move |replies| match replies {
            Replies::Arrive => wire.set(Wire::Good),
            Replies::AreLost => wire.set(Wire::LosesAnswers),
        };
        (bus, Box::new(set))
    }

    fn moment(&self) -> Box<dyn FnOnce() + '_> {
        let mut raw = Raw::to(&self.server);
        let keys: Vec<String> = raw.ask("KEYS *");
        let dumped: Vec<(String, Vec<u8>)> = keys
            .into_iter()
            .map(|key| {
                let bytes = raw.ask(&format!("DUMP {key}"));
                (key, bytes)
            })
            .collect();
        Box::new(move || {
            raw.run("FLUSHALL");
            for (key, bytes) in dumped {
                let _: redis::Value = raw.ask_with(&[b"RESTORE", key.as_bytes(), b"0", &bytes]);
            }
        })
    }
}

fn does_what_every_bus_must_do(user: &'static str) {
    let server = Arc::new(redis(&FORGETFUL));
    suite::bus(&mut || {
        Raw::to(&server).run("FLUSHALL");
        Box::new(Rig { server: Arc::clone(&server), user })
    });
    let mut raw = Raw::to(&server);
    for key in raw.ask::<Vec<String>>("KEYS *") {
        let left: i64 = raw.ask_with(&[b"TTL", key.as_bytes()]);
        assert_eq!(left, -1, "{key} has a time to live");
    }
}

#[test]
fn a_bus_on_redis_does_what_every_bus_must_do() {
    does_what_every_bus_must_do("orchestrix");
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn offer(task: u64, lease: u64) -> Offer {
    Offer {
        task: TaskId(task),
        lease: LeaseId(lease),
        queue: name("mail"),
        dispatch: format!("{{\"JobId\":\"{task}\",\"HistoryId\":\"{lease}\",\"Payload\":{{}}}}"),
        assigned: format!("{{\"JobId\":\"{task}\",\"HistoryId\":\"{lease}\"}}"),
        previous: None,
    }
}

/// A bus as the user of the page, with these rights more or less, and a claim.
pub(crate) fn claimed(server: &Server, changed: &str) -> (RedisBus, Box<dyn Publisher>) {
    let url = url_for_a_bus(server, server.port(), "orchestrix", changed);
    let bus = RedisBus::connect(&url, PATIENT).unwrap();
    bus.open(JournalId([7; 16]), &name("a")).unwrap();
    let publisher = claim(&bus);
    (bus, publisher)
}

fn claim(bus: &RedisBus) -> Box<dyn Publisher> {
    let Claimed::Done(publisher) = bus.claim(Term(1)).unwrap() else { panic!("it is claimed") };
    publisher
}

/// Publishes offers that are all taken, so many of them again.
fn publish(publisher: &mut dyn Publisher, offers: &[Offer], repeated: usize) {
    let progress = publisher.publish(offers).unwrap();
    assert_eq!((progress.published, progress.repeated), (offers.len(), repeated), "{progress:?}");
}

/// The error of the first offer that the server refuses.
fn refused(publisher: &mut dyn Publisher, offers: &[Offer]) -> Error {
    let progress = publisher.publish(offers).unwrap();
    match progress.stop {
        Some(Stop::Refused(error)) if progress.published == 0 => error,
        other => panic!("{} published, then {other:?}", progress.published),
    }
}

fn lengths(server: &Server) -> [u64; 4] {
    let channels = ["job.dispatch.mail", "job.assigned", "job.5.status", "job.5.logs"];
    let mut raw = Raw::to(server);
    channels.map(|channel| raw.ask(&format!("XLEN orchestrix.{channel}")))
}

#[test]
fn a_repeat_is_refused_also_after_a_kill() {
    let mut server = redis(&DURABLE);
    let (bus, mut publisher) = claimed(&server, "");
    let offers = [offer(5, 9), offer(6, 10)];
    publish(&mut *publisher, &offers, 0);
    for queue in [Queue::Dispatch(name("mail")), Queue::Assigned] {
        bus.take(&queue, &name("a"), 10).unwrap();
        bus.settle(&queue, &[LeaseId(9).into(), LeaseId(10).into()]).unwrap();
    }
    Raw::to(&server).run("BGREWRITEAOF");
    eventually("the file is written anew", || {
        let told: String = Raw::to(&server).ask("INFO persistence");
        told.contains("aof_rewrite_in_progress:0").then_some(())
    });
    server.kill();
    server.launch().unwrap();
    let lost = publisher.publish(&offers).unwrap();
    assert!(matches!(lost.stop, Some(Stop::Unknown)), "{lost:?}");
    // Users are not in that file.
    let (bus, mut publisher) = {
        let url = url_for_a_bus(&server, server.port(), "orchestrix", "");
        let again = RedisBus::connect(&url, PATIENT).unwrap();
        again.open(JournalId([7; 16]), &name("a")).unwrap();
        assert_eq!(bus.check().unwrap(), Checked::Sound, "nothing was lost");
        let publisher = claim(&again);
        (again, publisher)
    };
    assert_eq!(publisher.cursor(), LeaseId(10).into());
    publish(&mut *publisher, &offers, 2);
    publish(&mut *publisher, &[offer(7, 11)], 0);
    assert_eq!(bus.figures(&[Queue::Assigned]).unwrap()[0].waiting, 1);
}

#[test]
fn an_offer_that_lands_after_the_next_claim_is_refused() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let (direct, _) = claimed(&server, "");
    let url = url_for_a_bus(&server, wire.port(), "orchestrix", "");
    let stalled = RedisBus::connect(&url, HASTY).unwrap();
    stalled.open(JournalId([7; 16]), &name("b")).unwrap();
    let mut old = claim(&stalled);
    publish(&mut *old, &[offer(1, 2)], 0);
    wire.set(Wire::Stalls);
    let progress = old.publish(&[offer(5, 9)]).unwrap();
    assert!(matches!(progress.stop, Some(Stop::Unknown)), "{progress:?}");
    let mut new = claim(&direct);
    let scripts = |raw: &mut Raw| -> u64 {
        let told: String = raw.ask("INFO commandstats");
        let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    let mut raw = Raw::to(&server);
    let before = scripts(&mut raw);
    wire.set(Wire::Good);
    eventually("the late offer lands", || (scripts(&mut raw) > before).then_some(()));
    assert_eq!(lengths(&server), [1, 1, 0, 0]);
    publish(&mut *new, &[offer(5, 10)], 0);
}

#[test]
fn a_server_that_forgot_its_scripts_publishes_all() {
    let server = redis(&FORGETFUL);
    let (bus, mut publisher) = claimed(&server, "");
    for at in 0..4_u64 {
        Raw::to(&server).run("SCRIPT FLUSH");
        let offers: Vec<_> = (0..3).map(|more| offer(100 + at, 10 * at + more + 1)).collect();
        publish(&mut *publisher, &offers, 0);
        Raw::to(&server).run("SCRIPT FLUSH");
        let figures = bus.figures(&[Queue::Assigned, Queue::Handoff]).unwrap();
        assert_eq!(figures[0].waiting as u64, 3 * (at + 1));
    }
}

#[test]
fn a_full_server_refuses_an_offer_whole() {
    let server = redis(&FORGETFUL);
    let (bus, mut publisher) = claimed(&server, "");
    publish(&mut *publisher, &[offer(1, 2)], 0);
    let before = lengths(&server);
    Raw::to(&server).run("CONFIG SET maxmemory 1");
    let error = refused(&mut *publisher, &[offer(5, 9), offer(6, 10)]);
    assert!(matches!(error.source, Cause::Full { .. }) && error.retryable, "{error}");
    Raw::to(&server).run("CONFIG SET maxmemory 0");
    assert_eq!(lengths(&server), before, "nothing is left of it");
    publisher.publish(&[offer(6, 10)]).expect_err("it has stopped");
    let mut next = claim(&bus);
    assert_eq!(next.cursor(), LeaseId(2).into());
    publish(&mut *next, &[offer(5, 9), offer(6, 10)], 0);
}

#[test]
fn an_offer_is_refused_whole_when_a_right_is_withdrawn() {
    for right in ["-xadd", "-unlink", "-xack", "-xdel", "-hset", "-hmget", "-evalsha -eval"] {
        let server = redis(&FORGETFUL);
        let (_, mut publisher) = claimed(&server, "");
        Raw::to(&server).run(&format!("ACL SETUSER orchestrix {right}"));
        let retry = Offer { previous: Some(LeaseId(3)), ..offer(5, 9) };
        let error = refused(&mut *publisher, &[retry, offer(6, 10)]);
        let said = error.to_string();
        assert!(!error.retryable, "{right}: {said}");
        assert!(
            said.contains("the user lacks") || said.contains("can't run this command"),
            "{right}: {said}"
        );
        assert_eq!(lengths(&server), [0; 4], "{right}");
    }
}

#[test]
fn offers_of_somebody_else_are_an_error_that_names_the_channel() {
    let server = redis(&FORGETFUL);
    let (bus, mut publisher) = claimed(&server, "");
    Raw::to(&server).run("XADD orchestrix.job.dispatch.mail * data {}");
    let error = refused(&mut *publisher, &[offer(5, 9), offer(6, 10)]);
    let said = error.to_string();
    assert!(!error.retryable && said.contains("orchestrix.job.dispatch.mail"), "{said}");
    assert_eq!(lengths(&server), [1, 0, 0, 0]);
    Raw::to(&server).run("DEL orchestrix.job.dispatch.mail");
    let mut next = claim(&bus);
    assert_eq!(next.cursor(), LeaseId(0).into());
    publish(&mut *next, &[offer(5, 11)], 0);
    assert_eq!(lengths(&server), [1; 4]);
    Raw::to(&server).run("XADD orchestrix.job.assigned 20-0 data {}");
    let said = refused(&mut *next, &[offer(6, 20), offer(7, 21)]).to_string();
    assert!(said.contains("orchestrix.job.assigned"), "{said}");
    assert_eq!(lengths(&server), [1, 2, 1, 1]);
    Raw::to(&server).run("DEL orchestrix.job.assigned");
    let gone = claim(&bus).publish(&[offer(8, 22)]).unwrap();
    assert!(matches!(gone.stop, Some(Stop::RolledBack)), "{gone:?}");
    assert_eq!(lengths(&server), [1, 0, 1, 1]);
}

#[test]
fn a_right_that_lacks_is_named_at_the_start() {
    let server = redis(&FORGETFUL);
    let every = [
        "eval",
        "evalsha",
        "exists",
        "hset",
        "hget",
        "hmget",
        "time",
        "unlink",
        "xack",
        "xadd",
        "xautoclaim",
        "xdel",
        "xgroup",
        "xinfo",
        "xlen",
        "xpending",
        "xrange",
        "xread",
        "xreadgroup",
        "xtrim",
    ];
    for command in every {
        let url = url_for_a_bus(&server, server.port(), "orchestrix", &format!("+@all -{command}"));
        let error = RedisBus::connect(&url, PATIENT).expect_err(command);
        let said = error.to_string();
        assert!(said.contains(&format!("+{command}")) && !error.retryable, "{command}: {said}");
    }
    let keys = [
        ("~orchestrix:bus", "~orchestrix.*"),
        ("~orchestrix.*", "~orchestrix:bus"),
        ("~orchestrix.*", "~orchestrix:bus ~orchestrix.job.* ~orchestrix.probe"),
        ("~orchestrix:* ~orchestrix.*", "~other:*"),
    ];
    for (missing, there) in keys {
        let changed = format!("+@all resetkeys {there}");
        let url = url_for_a_bus(&server, server.port(), "orchestrix", &changed);
        let error = RedisBus::connect(&url, PATIENT).expect_err(missing);
        let said = error.to_string();
        assert!(said.contains(&format!("lacks {missing};")) && said.contains("docs/bus.md"), "{said}");
    }
    assert_eq!(Raw::to(&server).ask::<Vec<String>>("KEYS *"), Vec::<String>::new(), "nothing is left");
}

#[test]
fn an_engine_carries_a_bus_if_its_user_may() {
    let server = redis(&DURABLE);
    let connect = |changed: &str| RedisPlace::connect(&url_of_the_page(&server, changed), PATIENT).unwrap();
    let error = connect("").bus().map(drop).expect_err("the user lacks the channels");
    assert!(error.to_string().contains("~orchestrix.*"), "{error}");
    let place = connect("~orchestrix.* +time");
    let (bus, journal) = (place.bus().unwrap().unwrap(), place.journal().unwrap());
    bus.open(journal.id(), &name("a")).unwrap();
    assert_eq!((bus.check().unwrap(), bus.place()), (Checked::Sound, place.place()));
    let keys: Vec<String> = Raw::to(&server).ask("KEYS orchestrix:bus");
    assert_eq!(keys.len(), 1);
    let other = connect("").in_domain("eu").unwrap();
    other.bus().unwrap().unwrap().open(other.journal().unwrap().id(), &name("a")).unwrap();
    let keys: Vec<String> = Raw::to(&server).ask("KEYS orchestrix:eu:bus");
    assert_eq!(keys.len(), 1);
}

#[test]
fn a_bus_warns_of_a_server_that_forgets() {
    let server = redis(&FORGETFUL);
    let warnings = RedisBus::connect(&url(server.port()), PATIENT).unwrap().warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("appendonly"), "{warnings:?}");
    let server = redis(&["--appendonly", "yes"]);
    let bus = RedisBus::connect(&url(server.port()), PATIENT).unwrap();
    assert_eq!(bus.warnings(), Vec::<String>::new(), "to sync every second is enough");
}
