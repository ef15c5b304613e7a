//! Redis Streams as a queue: XADD, XREADGROUP, then XACK and XDEL, with every command synced before its answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orchestrix_testbed as testbed;
use orchestrix_testbed::{SYNCED, Server};

use crate::http::number;
use crate::load::{Dialect, Stage, Ticket};
use crate::payload::Payloads;
use crate::process::ask;

const STREAM: &[u8] = b"bench";
const GROUP: &[u8] = b"workers";
/// A server that is silent for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Speaks RESP: one command per task to submit, one to lease, two to complete.
#[derive(Debug)]
pub(crate) struct Redis {
    consumer: Vec<u8>,
}

/// Starts a private server and makes the consumer group.
///
/// # Errors
/// When it does not start.
pub(crate) fn start(folder: &Path) -> Result<Server> {
    let server = Server::start_in(folder, testbed::redis(&SYNCED))?;
    let reply = ask(server.address(), b"XGROUP CREATE bench workers 0 MKSTREAM\r\n")?;
    ensure!(reply == "+OK", "cannot make a consumer group: {reply}");
    Ok(server)
}

/// Starts a private server on what is in a folder, without waiting for it.
///
/// # Errors
/// When the program cannot be started.
pub(crate) fn spawn(folder: &Path) -> Result<Server> {
    Ok(Server::spawn_in(folder, testbed::redis(&SYNCED))?)
}

impl Redis {
    pub(crate) fn new(consumer: usize) -> Self {
        Self { consumer: format!("c{consumer}").into_bytes() }
    }
}

impl Dialect for Redis {
    fn submit(&mut self, out: &mut Vec<u8>, payloads: &mut Payloads, count: usize) {
        let mut payload = Vec::new();
        for _ in 0..count {
            payload.clear();
            payloads.write(&mut payload);
            command(out, &[b"XADD", STREAM, b"*", b"p", &payload]);
        }
    }

    fn lease(&mut self, out: &mut Vec<u8>, count: usize) {
        let most = count.to_string();
        let parts: [&[u8]; 9] = [
            b"XREADGROUP",
            b"GROUP",
            GROUP,
            &self.consumer,
            b"COUNT",
            most.as_bytes(),
            b"STREAMS",
            STREAM,
            b">",
        ];
        command(out, &parts);
    }

    fn complete(&mut self, out: &mut Vec<u8>, tickets: &[Ticket]) {
        let entries: Vec<Vec<u8>> = tickets.iter().map(entry).collect();
        let acknowledge: [&[u8]; 3] = [b"XACK", STREAM, GROUP];
        let delete: [&[u8]; 2] = [b"XDEL", STREAM];
        for head in [&acknowledge[..], &delete[..]] {
            let parts: Vec<&[u8]> = head.iter().copied().chain(entries.iter().map(Vec::as_slice)).collect();
            command(out, &parts);
        }
    }

    fn read(
        &mut self,
        stage: Stage,
        count: usize,
        input: &[u8],
        tickets: &mut Vec<Ticket>,
    ) -> Result<Option<usize>> {
        match stage {
            Stage::Submit => read_many(input, count, |reply| {
                ensure!(matches!(reply, Reply::Text(_)), "XADD answered {reply:?}");
                Ok(())
            }),
            Stage::Complete => read_many(input, 2, |reply| {
                let done = matches!(reply, Reply::Number(n) if usize::try_from(n) == Ok(count));
                ensure!(done, "XACK or XDEL of {count} answered {reply:?}");
                Ok(())
            }),
            Stage::Lease => read_entries(input, tickets),
        }
    }
}

/// One connection that adds entries to a stream.
#[derive(Debug)]
pub(crate) struct Appender {
    stream: TcpStream,
    out: Vec<u8>,
}

impl Appender {
    /// # Errors
    /// When the connection is refused.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        Ok(Self { stream, out: Vec::new() })
    }

    /// # Errors
    /// When the server refuses it.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_all(&[bytes])
    }

    /// Adds an entry for each of these, all on their way at the same time.
    ///
    /// # Errors
    /// When the server refuses one.
    pub(crate) fn append_all(&mut self, values: &[&[u8]]) -> Result<()> {
        self.out.clear();
        values.iter().for_each(|bytes| command(&mut self.out, &[b"XADD", STREAM, b"*", b"p", bytes]));
        self.ask(values.len())
    }

    /// # Errors
    /// When the server refuses it.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.out.clear();
        command(&mut self.out, &[b"DEL", STREAM]);
        self.ask(1)
    }

    /// Sends what was gathered and waits for so many answers.
    fn ask(&mut self, count: usize) -> Result<()> {
        self.stream.write_all(&self.out)?;
        let (mut input, mut piece) = (Vec::new(), [0; 4096]);
        while read_many(&input, count, |_| Ok(()))?.is_none() {
            let length = self.stream.read(&mut piece)?;
            ensure!(length > 0, "the server closed the connection");
            input.extend_from_slice(&piece[..length]);
        }
        Ok(())
    }
}

/// A part of a reply. An array is given as its parts.
#[derive(Debug, PartialEq, Eq)]
enum Reply<'a> {
    Text(&'a [u8]),
    Number(i64),
    Nothing,
}

/// Reads `count` replies and gives their parts to `each`.
fn read_many(
    input: &[u8],
    count: usize,
    mut each: impl FnMut(Reply<'_>) -> Result<()>,
) -> Result<Option<usize>> {
    let mut at = 0;
    for _ in 0..count {
        let Some(end) = read_reply(input, at, &mut each)? else { return Ok(None) };
        at = end;
    }
    Ok(Some(at))
}

/// The answer is stream, then id, field and value of every entry: `[[stream, [[id, [field, value]], …]]]`.
fn read_entries(input: &[u8], tickets: &mut Vec<Ticket>) -> Result<Option<usize>> {
    let (before, mut n) = (tickets.len(), 0_usize);
    let read = read_many(input, 1, |part| {
        if let Reply::Text(text) = part
            && n % 3 == 1
        {
            tickets.push(parse_entry(text)?);
        }
        n += 1;
        Ok(())
    })?;
    if read.is_none() {
        tickets.truncate(before);
    }
    Ok(read)
}

/// Where the reply that begins at `at` ends; none while it is not whole.
fn read_reply(
    input: &[u8],
    at: usize,
    each: &mut impl FnMut(Reply<'_>) -> Result<()>,
) -> Result<Option<usize>> {
    let rest = &input[at..];
    let Some(line_end) = rest.iter().position(|byte| *byte == b'\r').filter(|end| end + 1 < rest.len())
    else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&rest[..line_end]).context("a reply is not text")?;
    let (kind, value) = line.split_at_checked(1).context("an empty reply")?;
    let after = at + line_end + 2;
    let length = || value.parse::<i64>().with_context(|| format!("not a reply: {line:?}"));
    match kind {
        "+" => each(Reply::Text(value.as_bytes())).map(|()| Some(after)),
        ":" => each(Reply::Number(length()?)).map(|()| Some(after)),
        "-" => bail!("refused: {value}"),
        "$" | "*" if length()? < 0 => each(Reply::Nothing).map(|()| Some(after)),
        "$" => {
            let end = after + usize::try_from(length()?)?;
            if input.len() < end + 2 {
                return Ok(None);
            }
            each(Reply::Text(&input[after..end])).map(|()| Some(end + 2))
        }
        "*" => {
            let mut at = after;
            for _ in 0..length()? {
                let Some(end) = read_reply(input, at, each)? else { return Ok(None) };
                at = end;
            }
            Ok(Some(at))
        }
        _ => bail!("not a reply: {line:?}"),
    }
}

fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    out.push(b'*');
    number(out, parts.len() as u64);
    for part in parts {
        out.extend_from_slice(b"\r\n$");
        number(out, part.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
}

/// Entries are named by milliseconds and a count.
fn entry(ticket: &Ticket) -> Vec<u8> {
    format!("{}-{}", ticket.0, ticket.1).into_bytes()
}

fn parse_entry(text: &[u8]) -> Result<Ticket> {
    let text = std::str::from_utf8(text)?;
    let (ms, n) = text.split_once('-').with_context(|| format!("not the id of an entry: {text:?}"))?;
    Ok(Ticket(ms.parse()?, n.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: &[u8] = b"*1\r\n*2\r\n$5\r\nbench\r\n*2\r\n\
        *2\r\n$3\r\n7-0\r\n*2\r\n$1\r\np\r\n$4\r\n\"x-\"\r\n\
        *2\r\n$3\r\n7-1\r\n*2\r\n$1\r\np\r\n$3\r\n1-2\r\n";

    fn read(stage: Stage, count: usize, input: &[u8], tickets: &mut Vec<Ticket>) -> Result<Option<usize>> {
        Redis::new(0).read(stage, count, input, tickets)
    }

    #[test]
    fn entries_are_read_when_the_reply_is_whole_and_not_before() {
        let mut tickets = Vec::new();
        for cut in 0..ENTRIES.len() {
            assert_eq!(read(Stage::Lease, 2, &ENTRIES[..cut], &mut tickets).unwrap(), None, "{cut}");
            assert!(tickets.is_empty());
        }
        assert_eq!(read(Stage::Lease, 2, ENTRIES, &mut tickets).unwrap(), Some(ENTRIES.len()));
        assert_eq!(tickets, [Ticket(7, 0), Ticket(7, 1)]);
    }

    #[test]
    fn no_entries_is_an_answer_without_tickets() {
        let mut tickets = Vec::new();
        assert_eq!(read(Stage::Lease, 1, b"*-1\r\n", &mut tickets).unwrap(), Some(5));
        assert!(tickets.is_empty());
    }

    #[test]
    fn a_pipelined_answer_ends_after_its_last_reply() {
        let replies = b"$3\r\n1-1\r\n$3\r\n1-2\r\n:9\r\n";
        assert_eq!(read(Stage::Submit, 2, replies, &mut Vec::new()).unwrap(), Some(18));
        assert_eq!(read(Stage::Submit, 2, &replies[..17], &mut Vec::new()).unwrap(), None);
    }

    #[test]
    fn refusals_and_short_counts_are_noticed() {
        assert!(read(Stage::Submit, 1, b"-MISCONF disk\r\n", &mut Vec::new()).is_err());
        assert!(read(Stage::Complete, 2, b":2\r\n:1\r\n", &mut Vec::new()).is_err());
        assert_eq!(read(Stage::Complete, 2, b":2\r\n:2\r\n", &mut Vec::new()).unwrap(), Some(8));
    }

    #[test]
    fn commands_are_arrays_of_counted_texts() {
        let mut out = Vec::new();
        Redis::new(0).complete(&mut out, &[Ticket(5, 6)]);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "*4\r\n$4\r\nXACK\r\n$5\r\nbench\r\n$7\r\nworkers\r\n$3\r\n5-6\r\n*3\r\n$4\r\nXDEL\r\n$5\r\nbench\r\n$3\r\n5-6\r\n"
        );
    }
}
