//! beanstalkd: put, reserve, delete, with every write synced before its answer.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use orchestrix_testbed::{Place, Recipe, Server, first_line, listens};

use crate::http::number;
use crate::load::{Dialect, Stage, Ticket};
use crate::payload::{PAYLOAD_BYTES, Payloads};

const PROGRAM: &str = "beanstalkd";
/// Seconds that a reserved job is left to us.
const TIME_TO_RUN: u64 = 60;

/// Speaks its lines: one command per task for everything.
#[derive(Debug)]
pub(crate) struct Beanstalkd;

/// When what was written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    BeforeTheAnswer,
    /// Only for filling, where no figure is taken: it syncs each job alone, which takes minutes for a million.
    Never,
}

/// Starts a private server.
///
/// # Errors
/// When it does not start.
pub(crate) fn start(folder: &Path, sync: Sync) -> Result<Server> {
    Ok(Server::start_in(folder, recipe(sync))?)
}

/// Starts a private server on what is in a folder, without waiting for it.
///
/// # Errors
/// When the program cannot be started.
pub(crate) fn spawn(folder: &Path, sync: Sync) -> Result<Server> {
    Ok(Server::spawn_in(folder, recipe(sync))?)
}

fn recipe(sync: Sync) -> Recipe {
    let launch = move |place: &Place| {
        let mut command = Command::new(PROGRAM);
        command.args(["-l", "127.0.0.1", "-p", &place.address.port().to_string(), "-b"]).arg(&place.folder);
        match sync {
            Sync::BeforeTheAnswer => command.args(["-f", "0"]),
            Sync::Never => command.arg("-F"),
        };
        Ok(command)
    };
    Recipe::new("beanstalkd", launch, |place| listens(place.address))
}

pub(crate) fn version() -> Result<String> {
    let line = first_line(Command::new(PROGRAM).arg("-v"))?;
    Ok(line.split_whitespace().last().unwrap_or(&line).to_owned())
}

impl Dialect for Beanstalkd {
    fn submit(&mut self, out: &mut Vec<u8>, payloads: &mut Payloads, count: usize) {
        for _ in 0..count {
            out.extend_from_slice(b"put 0 0 ");
            number(out, TIME_TO_RUN);
            out.push(b' ');
            number(out, PAYLOAD_BYTES as u64);
            out.extend_from_slice(b"\r\n");
            payloads.write(out);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn lease(&mut self, out: &mut Vec<u8>, count: usize) {
        for _ in 0..count {
            out.extend_from_slice(b"reserve\r\n");
        }
    }

    fn complete(&mut self, out: &mut Vec<u8>, tickets: &[Ticket]) {
        for ticket in tickets {
            out.extend_from_slice(b"delete ");
            number(out, ticket.0);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn read(
        &mut self,
        stage: Stage,
        count: usize,
        input: &[u8],
        tickets: &mut Vec<Ticket>,
    ) -> Result<Option<usize>> {
        let (before, mut at) = (tickets.len(), 0);
        for _ in 0..count {
            let Some((ticket, length)) = read_one(stage, &input[at..])? else {
                tickets.truncate(before);
                return Ok(None);
            };
            tickets.extend(ticket);
            at += length;
        }
        Ok(Some(at))
    }
}

/// The job of one answer, if it brings one, and the length of the answer.
fn read_one(stage: Stage, input: &[u8]) -> Result<Option<(Option<Ticket>, usize)>> {
    let Some(line_end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = std::str::from_utf8(&input[..line_end]).context("an answer is not text")?.trim_end();
    let mut words = line.split(' ');
    let length = line_end + 1;
    match (stage, words.next()) {
        (Stage::Submit, Some("INSERTED")) | (Stage::Complete, Some("DELETED")) => Ok(Some((None, length))),
        (Stage::Lease, Some("RESERVED")) => {
            let mut next = || words.next()?.parse::<u64>().ok();
            let (job, bytes) = next().zip(next()).with_context(|| format!("not an answer: {line:?}"))?;
            let length = length + usize::try_from(bytes)? + 2;
            Ok((input.len() >= length).then_some((Some(Ticket(job, 0)), length)))
        }
        _ => bail!("{stage:?} was answered {line:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_read_when_the_answer_is_whole_and_not_before() {
        let input = b"RESERVED 12 5\r\nhello\r\nRESERVED 13 2\r\nhi\r\n";
        let mut tickets = Vec::new();
        for cut in 0..input.len() {
            assert_eq!(Beanstalkd.read(Stage::Lease, 2, &input[..cut], &mut tickets).unwrap(), None, "{cut}");
            assert!(tickets.is_empty());
        }
        assert_eq!(Beanstalkd.read(Stage::Lease, 2, input, &mut tickets).unwrap(), Some(input.len()));
        assert_eq!(tickets, [Ticket(12, 0), Ticket(13, 0)]);
    }

    #[test]
    fn anything_but_the_expected_word_is_a_refusal() {
        let read = |stage, input: &[u8]| Beanstalkd.read(stage, 1, input, &mut Vec::new());
        assert_eq!(read(Stage::Submit, b"INSERTED 7\r\n").unwrap(), Some(12));
        assert_eq!(read(Stage::Complete, b"DELETED\r\n").unwrap(), Some(9));
        assert!(read(Stage::Submit, b"OUT_OF_MEMORY\r\n").is_err());
        assert!(read(Stage::Complete, b"NOT_FOUND\r\n").is_err());
    }

    #[test]
    fn a_put_says_how_long_its_job_is() {
        let mut out = Vec::new();
        Beanstalkd.submit(&mut out, &mut Payloads::new(0), 1);
        assert!(out.starts_with(b"put 0 0 60 200\r\n\""));
        assert!(out.ends_with(b"\"\r\n"));
        assert_eq!(out.len(), 16 + 200 + 2);
    }
}
