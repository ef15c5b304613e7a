//! One script for every engine that several nodes use, and what each kind answered.
//!
//! The answers of a kind are kept here. Tests run the script on a real server, and on the model that simulations
//! have of it: both must say what is written, or the simulation is about something else.

use std::collections::BTreeMap;
use std::fmt::Debug;

use orchestrix_core::Position;

use crate::suite::{Connect, batch_after, take_snapshot};
use crate::{Appended, Batch, Cell, Claim, Error, Journal, Link, Read, Register, Set, Version};

/// What Redis answers to [`transcript`].
pub const REDIS_ANSWERS: &str = include_str!("answers/redis.txt");

/// What MySQL, MariaDB and PostgreSQL answer to [`transcript`].
pub const SQL_ANSWERS: &str = include_str!("answers/sql.txt");

/// What S3 answers to [`transcript`].
pub const S3_ANSWERS: &str = include_str!("answers/s3.txt");

/// Runs the script on a new, empty place. One line for each answer, without what is random.
pub fn transcript(connect: Connect<'_>) -> String {
    let mut told = Told::default();
    journals(connect, &mut told);
    truncation(connect, &mut told);
    registers(connect, &mut told);
    told.lines.join("\n") + "\n"
}

#[derive(Default)]
struct Told {
    lines: Vec<String>,
    /// Hashes and versions by the order of their appearance.
    names: BTreeMap<String, usize>,
}

impl Told {
    fn line(&mut self, what: &str, answer: &str) {
        self.lines.push(format!("{what}: {answer}"));
    }

    fn name(&mut self, kind: &str, text: &str) -> String {
        let next = self.names.keys().filter(|key| key.starts_with(kind)).count() + 1;
        let number = *self.names.entry(format!("{kind} {text}")).or_insert(next);
        format!("{kind}{number}")
    }

    fn link(&mut self, link: Link) -> String {
        let hash = self.name("hash", &link.hash.to_string());
        format!("{} {hash}", link.position)
    }

    fn appended(&mut self, what: &str, answer: Result<Appended, Error>) {
        let answer = match answer {
            Ok(Appended::Done(link)) => format!("done {}", self.link(link)),
            Ok(Appended::Conflict(link)) => format!("conflict {}", self.link(link)),
            Ok(Appended::Unknown) => "unknown".to_owned(),
            Err(error) => refused(&error),
        };
        self.line(what, &answer);
    }

    fn read(&mut self, what: &str, answer: Result<Read, Error>) {
        let answer = match answer {
            Ok(Read::Batches(batches)) => {
                let shown = |batch: &Batch| format!("{}+{}", batch.previous.position, batch.count);
                batches.iter().map(shown).collect::<Vec<_>>().join(" ")
            }
            Ok(Read::End) => "end".to_owned(),
            Ok(Read::Truncated(floor)) => format!("truncated {floor}"),
            Err(error) => refused(&error),
        };
        self.line(what, &answer);
    }

    fn cell(&mut self, cell: Option<Cell>) -> String {
        let Some(Cell { version, claim }) = cell else { return "nothing".to_owned() };
        let version = self.name("version", &version.0);
        format!("{version} of {} epoch {} held {}", claim.owner, claim.epoch, claim.held)
    }

    fn set(&mut self, what: &str, answer: Result<Set, Error>) -> Option<Version> {
        let (told, version) = match answer {
            Ok(Set::Done(version)) => (format!("done {}", self.name("version", &version.0)), Some(version)),
            Ok(Set::Conflict(cell)) => (format!("conflict {}", self.cell(cell)), None),
            Ok(Set::Unknown) => ("unknown".to_owned(), None),
            Err(error) => (refused(&error), None),
        };
        self.line(what, &told);
        version
    }

    fn list<T: Debug>(&mut self, what: &str, answer: Result<Vec<T>, Error>) {
        let answer = answer.map_or_else(|error| refused(&error), |found| format!("{found:?}"));
        self.line(what, &answer);
    }
}

fn refused(error: &Error) -> String {
    format!("error, retryable {}", error.retryable)
}

fn journal(connect: Connect<'_>) -> Box<dyn Journal> {
    connect().journal().expect("a journal is opened")
}

fn journals(connect: Connect<'_>, told: &mut Told) {
    let (mut first, mut second) = (journal(connect), journal(connect));
    told.line("both handles have the same journal", &(first.id() == second.id()).to_string());
    told.read("read an empty journal", first.read(Position(0), 100));
    let one = batch_after(Link::default(), 3, 40);
    told.appended("append the first batch", first.append(&one));
    told.appended("append it again", first.append(&one));
    told.appended("append it again by another handle", second.append(&one));
    told.appended("append another first batch", second.append(&batch_after(Link::default(), 2, 40)));
    let end = one.link(first.id());
    told.appended("append after the end", second.append(&batch_after(end, 1, 40)));
    told.appended("append the first batch after that", first.append(&one));
    let mut other = end;
    other.hash.0[0] ^= 1;
    told.appended("append after another hash", first.append(&batch_after(other, 1, 10)));
    let heard = first.end();
    let heard = told.link(heard);
    told.line("the end that the loser heard of", &heard);
    told.appended(
        "append after nothing yet",
        first.append(&batch_after(Link { position: Position(9), ..end }, 1, 10)),
    );
    let end = heard_end(&mut *first);
    told.appended("append no events", first.append(&batch_after(end, 0, 10)));
    told.read("read all", second.read(Position(0), 1 << 20));
    told.read("read with a small limit", second.read(Position(0), 1));
    told.read("read from inside a batch", second.read(Position(2), 1 << 20));
    told.read("read from the end", second.read(Position(4), 1 << 20));
    told.read("read from behind the end", second.read(Position(40), 1 << 20));
}

fn heard_end(journal: &mut dyn Journal) -> Link {
    journal.refresh().expect("the end is asked for")
}

fn truncation(connect: Connect<'_>, told: &mut Told) {
    let (mut writer, mut late) = (journal(connect), journal(connect));
    let mut batches = Vec::new();
    for number in 0..6 {
        let batch = batch_after(heard_end(&mut *writer), 2, 30);
        told.appended("append", writer.append(&batch));
        batches.push(batch);
        if number == 1 || number == 3 {
            take_snapshot(&*writer, &[b"state"]);
        }
        if number == 1 {
            told.list("snapshots", writer.snapshots().list());
            told.list("truncate with one snapshot", writer.truncate().map(|floor| vec![floor]));
        }
    }
    told.list("snapshots", late.snapshots().list());
    told.list("truncate", writer.truncate().map(|floor| vec![floor]));
    told.read("read from the beginning", late.read(Position(0), 1 << 20));
    told.read("read below the floor", late.read(Position(7), 1 << 20));
    told.read("read from the floor", late.read(Position(8), 1 << 20));
    told.appended("append what was truncated", late.append(&batches[0]));
    let other = Batch { term: orchestrix_core::Term(9), ..batches[0].clone() };
    told.appended("append another where it was truncated", late.append(&other));
    told.read("read all that is left", late.read(Position(8), 1 << 20));
    take_snapshot(&*writer, &[b"state"]);
    told.list("prune", writer.snapshots().prune().map(|()| Vec::<u8>::new()));
    told.list("snapshots", late.snapshots().list());
}

fn claim(owner: &str, epoch: u64, held: bool) -> Claim {
    // Long enough that it is not over before the script is.
    let value = format!("{owner} {epoch}").into_bytes();
    Claim { owner: owner.to_owned(), epoch, ttl_ms: 600_000, held, value }
}

fn registers(connect: Connect<'_>, told: &mut Told) {
    let (first, second) = (connect().register(), connect().register());
    let read = |told: &mut Told, what: &str, register: &dyn Register| match register.read("leader") {
        Ok(cell) => {
            let cell = told.cell(cell);
            told.line(what, &cell);
        }
        Err(error) => told.line(what, &refused(&error)),
    };
    read(told, "read a cell that is not there", &*first);
    let strange = Version("9".to_owned());
    told.set(
        "replace what is not there",
        first.compare_and_set("leader", Some(&strange), &claim("a", 1, true)),
    );
    let one = told.set("take it", first.compare_and_set("leader", None, &claim("a", 1, true)));
    read(told, "read it elsewhere", &*second);
    told.set("take it again as before", first.compare_and_set("leader", None, &claim("a", 1, true)));
    told.set("take it as if it were new", second.compare_and_set("leader", None, &claim("b", 1, true)));
    told.set(
        "take it with a strange version",
        second.compare_and_set("leader", Some(&strange), &claim("b", 1, true)),
    );
    let two = told.set("renew it", first.compare_and_set("leader", one.as_ref(), &claim("a", 1, true)));
    told.set(
        "renew it from an old version",
        first.compare_and_set("leader", one.as_ref(), &claim("a", 1, true)),
    );
    told.set(
        "take it from a live owner",
        second.compare_and_set("leader", two.as_ref(), &claim("b", 2, true)),
    );
    let there = second.read("leader").ok().flatten().map(|cell| cell.version);
    let released = Claim { held: false, ..claim("a", 2, true) };
    let three = told.set("give it back", first.compare_and_set("leader", there.as_ref(), &released));
    let there = three.or(there);
    let four =
        told.set("take what is free", second.compare_and_set("leader", there.as_ref(), &claim("b", 3, true)));
    told.set(
        "keep its epoch with the same name",
        second.compare_and_set("leader", four.as_ref(), &claim("b", 3, true)),
    );
    read(told, "read it at last", &*first);
    for key in ["nodes/b", "nodes/a", "nodes_c"] {
        told.set(key, second.compare_and_set(key, None, &claim(key, 0, true)));
    }
    let keys =
        |prefix| first.list(prefix).map(|cells| cells.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    told.list("list nodes/", keys("nodes/"));
    told.list("list all", keys(""));
}
