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
    let mut transcript = Transcript::default();
    journals(connect, &mut transcript);
    truncation(connect, &mut transcript);
    registers(connect, &mut transcript);
    transcript.lines.join("\n") + "\n"
}

#[derive(Default)]
struct Transcript {
    lines: Vec<String>,
    /// Hashes and versions by the order of their appearance.
    names: BTreeMap<String, usize>,
}

impl Transcript {
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
        let (text, version) = match answer {
            Ok(Set::Done(version)) => (format!("done {}", self.name("version", &version.0)), Some(version)),
            Ok(Set::Conflict(cell)) => (format!("conflict {}", self.cell(cell)), None),
            Ok(Set::Unknown) => ("unknown".to_owned(), None),
            Err(error) => (refused(&error), None),
        };
        self.line(what, &text);
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

fn journals(connect: Connect<'_>, transcript: &mut Transcript) {
    let (mut first, mut second) = (journal(connect), journal(connect));
    transcript.line("both handles have the same journal", &(first.id() == second.id()).to_string());
    transcript.read("read an empty journal", first.read(Position(0), 100));
    let one = batch_after(Link::default(), 3, 40);
    transcript.appended("append the first batch", first.append(&one));
    transcript.appended("append it again", first.append(&one));
    transcript.appended("append it again by another handle", second.append(&one));
    transcript.appended("append another first batch", second.append(&batch_after(Link::default(), 2, 40)));
    let end = one.link(first.id());
    transcript.appended("append after the end", second.append(&batch_after(end, 1, 40)));
    transcript.appended("append the first batch after that", first.append(&one));
    let mut other = end;
    other.hash.0[0] ^= 1;
    transcript.appended("append after another hash", first.append(&batch_after(other, 1, 10)));
    let heard = first.end();
    let heard = transcript.link(heard);
    transcript.line("the end that the loser heard of", &heard);
    transcript.appended(
        "append after nothing yet",
        first.append(&batch_after(Link { position: Position(9), ..end }, 1, 10)),
    );
    let end = heard_end(&mut *first);
    transcript.appended("append no events", first.append(&batch_after(end, 0, 10)));
    transcript.read("read all", second.read(Position(0), 1 << 20));
    transcript.read("read with a small limit", second.read(Position(0), 1));
    transcript.read("read from inside a batch", second.read(Position(2), 1 << 20));
    transcript.read("read from the end", second.read(Position(4), 1 << 20));
    transcript.read("read from behind the end", second.read(Position(40), 1 << 20));
}

fn heard_end(journal: &mut dyn Journal) -> Link {
    journal.refresh().expect("the end is asked for")
}

fn truncation(connect: Connect<'_>, transcript: &mut Transcript) {
    let (mut writer, mut late) = (journal(connect), journal(connect));
    let mut batches = Vec::new();
    for number in 0..6 {
        let batch = batch_after(heard_end(&mut *writer), 2, 30);
        transcript.appended("append", writer.append(&batch));
        batches.push(batch);
        if number == 1 || number == 3 {
            take_snapshot(&*writer, &[b"state"]);
        }
        if number == 1 {
            transcript.list("snapshots", writer.snapshots().list());
            transcript.list("truncate with one snapshot", writer.truncate().map(|floor| vec![floor]));
        }
    }
    transcript.list("snapshots", late.snapshots().list());
    transcript.list("truncate", writer.truncate().map(|floor| vec![floor]));
    transcript.read("read from the beginning", late.read(Position(0), 1 << 20));
    transcript.read("read below the floor", late.read(Position(7), 1 << 20));
    transcript.read("read from the floor", late.read(Position(8), 1 << 20));
    transcript.appended("append what was truncated", late.append(&batches[0]));
    let other = Batch { term: orchestrix_core::Term(9), ..batches[0].clone() };
    transcript.appended("append another where it was truncated", late.append(&other));
    transcript.read("read all that is left", late.read(Position(8), 1 << 20));
    take_snapshot(&*writer, &[b"state"]);
    transcript.list("prune", writer.snapshots().prune().map(|()| Vec::<u8>::new()));
    transcript.list("snapshots", late.snapshots().list());
}

fn claim(owner: &str, epoch: u64, held: bool) -> Claim {
    // Long enough that it is not over before the script is.
    let value = format!("{owner} {epoch}").into_bytes();
    Claim { owner: owner.to_owned(), epoch, ttl_ms: 600_000, held, value }
}

fn registers(connect: Connect<'_>, transcript: &mut Transcript) {
    let (first, second) = (connect().register(), connect().register());
    let read =
        |transcript: &mut Transcript, what: &str, register: &dyn Register| match register.read("leader") {
            Ok(cell) => {
                let cell = transcript.cell(cell);
                transcript.line(what, &cell);
            }
            Err(error) => transcript.line(what, &refused(&error)),
        };
    read(transcript, "read a cell that is not there", &*first);
    let strange = Version("9".to_owned());
    transcript.set(
        "replace what is not there",
        first.compare_and_set("leader", Some(&strange), &claim("a", 1, true)),
    );
    let one = transcript.set("take it", first.compare_and_set("leader", None, &claim("a", 1, true)));
    read(transcript, "read it elsewhere", &*second);
    transcript.set("take it again as before", first.compare_and_set("leader", None, &claim("a", 1, true)));
    transcript.set("take it as if it were new", second.compare_and_set("leader", None, &claim("b", 1, true)));
    transcript.set(
        "take it with a strange version",
        second.compare_and_set("leader", Some(&strange), &claim("b", 1, true)),
    );
    let two = transcript.set("renew it", first.compare_and_set("leader", one.as_ref(), &claim("a", 1, true)));
    transcript.set(
        "renew it from an old version",
        first.compare_and_set("leader", one.as_ref(), &claim("a", 1, true)),
    );
    transcript.set(
        "take it from a live owner",
        second.compare_and_set("leader", two.as_ref(), &claim("b", 2, true)),
    );
    let there = second.read("leader").ok().flatten().map(|cell| cell.version);
    let released = Claim { held: false, ..claim("a", 2, true) };
    let three = transcript.set("give it back", first.compare_and_set("leader", there.as_ref(), &released));
    let there = three.or(there);
    let four = transcript
        .set("take what is free", second.compare_and_set("leader", there.as_ref(), &claim("b", 3, true)));
    transcript.set(
        "keep its epoch with the same name",
        second.compare_and_set("leader", four.as_ref(), &claim("b", 3, true)),
    );
    read(transcript, "read it at last", &*first);
    for key in ["nodes/b", "nodes/a", "nodes_c"] {
        transcript.set(key, second.compare_and_set(key, None, &claim(key, 0, true)));
    }
    let keys =
        |prefix| first.list(prefix).map(|cells| cells.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    transcript.list("list nodes/", keys("nodes/"));
    transcript.list("list all", keys(""));
}
