//! A lean HTTP/1.1 client: it shares the processor with the server it measures, so it does only what is
//! needed: requests with a length, answers with a length, and a look for what was refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Dialect, Stage, Ticket};
use crate::payload::Payloads;

pub(crate) const QUEUE: &str = "bench";
const HEAD_BYTES_MAX: usize = 16 << 10;
const GET_TIMEOUT: Duration = Duration::from_secs(30);

/// Speaks to Orchestrix: alone for one task, in batches for more.
#[derive(Debug)]
pub(crate) struct Http {
    worker: usize,
    body: Vec<u8>,
}

/// One whole answer at the beginning of what was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// Bytes of head and body.
    pub(crate) length: usize,
}

impl Http {
    pub(crate) fn new(worker: usize) -> Self {
        Self { worker, body: Vec::new() }
    }

    fn post(&self, out: &mut Vec<u8>, path: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(b"POST ");
        path(out);
        out.extend_from_slice(
            b" HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ",
        );
        number(out, self.body.len() as u64);
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(&self.body);
    }

    fn task(&mut self, payloads: &mut Payloads) {
        self.body.extend_from_slice(b"{\"queue\":\"");
        self.body.extend_from_slice(QUEUE.as_bytes());
        self.body.extend_from_slice(b"\",\"payload\":");
        payloads.write(&mut self.body);
        self.body.push(b'}');
    }
}

impl Dialect for Http {
    fn submit(&mut self, out: &mut Vec<u8>, payloads: &mut Payloads, count: usize) {
        self.body.clear();
        if count == 1 {
            self.task(payloads);
            return self.post(out, |out| out.extend_from_slice(b"/v1/tasks"));
        }
        self.body.extend_from_slice(b"{\"tasks\":[");
        for n in 0..count {
            if n > 0 {
                self.body.push(b',');
            }
            self.task(payloads);
        }
        self.body.extend_from_slice(b"]}");
        self.post(out, |out| out.extend_from_slice(b"/v1/tasks/batch"));
    }

    fn lease(&mut self, out: &mut Vec<u8>, count: usize) {
        self.body.clear();
        self.body.extend_from_slice(b"{\"worker\":\"bench-");
        number(&mut self.body, self.worker as u64);
        self.body.extend_from_slice(b"\",\"max\":");
        number(&mut self.body, count as u64);
        self.body.push(b'}');
        self.post(out, |out| {
            out.extend_from_slice(b"/v1/queues/");
            out.extend_from_slice(QUEUE.as_bytes());
            out.extend_from_slice(b"/lease");
        });
    }

    fn complete(&mut self, out: &mut Vec<u8>, tickets: &[Ticket]) {
        self.body.clear();
        if let [Ticket(task, lease)] = tickets {
            self.body.extend_from_slice(b"{\"lease_id\":");
            number(&mut self.body, *lease);
            self.body.push(b'}');
            return self.post(out, |out| {
                out.extend_from_slice(b"/v1/tasks/");
                number(out, *task);
                out.extend_from_slice(b"/complete");
            });
        }
        self.body.extend_from_slice(b"{\"items\":[");
        for (n, Ticket(task, lease)) in tickets.iter().enumerate() {
            self.body.extend_from_slice(if n == 0 { b"{\"task_id\":" } else { b",{\"task_id\":" });
            number(&mut self.body, *task);
            self.body.extend_from_slice(b",\"lease_id\":");
            number(&mut self.body, *lease);
            self.body.push(b'}');
        }
        self.body.extend_from_slice(b"]}");
        self.post(out, |out| out.extend_from_slice(b"/v1/tasks/complete/batch"));
    }

    fn read(
        &mut self,
        stage: Stage,
        count: usize,
        input: &[u8],
        tickets: &mut Vec<Ticket>,
    ) -> Result<Option<usize>> {
        let Some(Answer { status, body, length }) = read_answer(input)? else { return Ok(None) };
        ensure!((200..300).contains(&status), "{stage:?}: {status} {}", String::from_utf8_lossy(body));
        match stage {
            Stage::Submit | Stage::Complete => {
                let state: &[u8] = if stage == Stage::Submit { b"\"WAITING\"" } else { b"\"COMPLETED\"" };
                let done = count_of(body, state);
                ensure!(done == count, "{stage:?}: {done} of {count}: {}", String::from_utf8_lossy(body));
            }
            Stage::Lease => read_leases(body, tickets)?,
        }
        Ok(Some(length))
    }
}

/// One connection that asks one thing at a time.
#[derive(Debug)]
pub(crate) struct Alone {
    stream: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Alone {
    /// # Errors
    /// When the connection is refused.
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GET_TIMEOUT))?;
        Ok(Self { stream, out: Vec::new(), input: Vec::new() })
    }

    /// The status and the text of an answer, whatever they are.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, String)> {
        self.out.clear();
        self.input.clear();
        let length = body.len();
        write!(self.out, "{method} {path} HTTP/1.1\r\nhost: localhost\r\n")?;
        write!(self.out, "content-type: application/json\r\ncontent-length: {length}\r\n\r\n")?;
        self.out.extend_from_slice(body);
        self.stream.write_all(&self.out)?;
        let mut piece = [0; 4096];
        loop {
            let length = self.stream.read(&mut piece)?;
            ensure!(length > 0, "{path}: the connection was closed before the answer was whole");
            self.input.extend_from_slice(&piece[..length]);
            if let Some(Answer { status, body, .. }) = read_answer(&self.input)? {
                return Ok((status, String::from_utf8_lossy(body).into_owned()));
            }
        }
    }
}

/// Asks for a page over a connection of its own.
///
/// # Errors
/// When there is no answer, or not 200.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<String> {
    let (status, text) = Alone::connect(address)?.ask("GET", path, b"")?;
    ensure!(status == 200, "{path}: {status} {text}");
    Ok(text)
}

/// The value of a metric without labels.
pub(crate) fn metric(page: &str, name: &str) -> Result<f64> {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.with_context(|| format!("/metrics has no {name}"))?;
    value.trim().parse().with_context(|| format!("{name} is {value:?}"))
}

/// # Errors
/// When this is not an answer, or one without a length.
pub(crate) fn read_answer(input: &[u8]) -> Result<Option<Answer<'_>>> {
    let Some(head_length) = find(input, b"\r\n\r\n").map(|at| at + 4) else {
        ensure!(input.len() <= HEAD_BYTES_MAX, "the head of an answer does not end");
        return Ok(None);
    };
    let head = std::str::from_utf8(&input[..head_length]).context("the head of an answer is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let Some(status) = status else { bail!("not an answer: {:?}", head.lines().next()) };
    let body_length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let body_length = body_length.context("an answer has no content-length")?;
    let length = head_length + body_length;
    Ok(input.get(head_length..length).map(|body| Answer { status, body, length }))
}

fn read_leases(body: &[u8], tickets: &mut Vec<Ticket>) -> Result<()> {
    let mut rest = body;
    while let Some((task, after)) = number_after(rest, b"\"task_id\":") {
        let lease = number_after(after, b"\"lease_id\":").context("a lease has no lease_id")?;
        tickets.push(Ticket(task, lease.0));
        rest = lease.1;
    }
    Ok(())
}

fn number_after<'a>(text: &'a [u8], label: &[u8]) -> Option<(u64, &'a [u8])> {
    let rest = &text[find(text, label)? + label.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let value = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    Some((value, &rest[digits..]))
}

fn count_of(text: &[u8], what: &[u8]) -> usize {
    let (mut rest, mut count) = (text, 0);
    while let Some(at) = find(rest, what) {
        count += 1;
        rest = &rest[at + what.len()..];
    }
    count
}

/// Where a short text begins. Skips to its first byte, which is rare in what we search.
fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].iter().position(|byte| *byte == what[0])?;
        if text[at..].starts_with(what) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Appends a number in decimal.
pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    write!(out, "{value}").expect("writing to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_it_is_whole_and_not_before() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhelloHTTP/1.1 404";
        for cut in 0..text.len() - 12 {
            assert_eq!(read_answer(&text[..cut]).unwrap(), None, "{cut}");
        }
        let answer = read_answer(text).unwrap().unwrap();
        assert_eq!((answer.status, answer.body, answer.length), (200, &b"hello"[..], text.len() - 12));
    }

    #[test]
    fn an_answer_without_a_length_is_refused() {
        assert!(read_answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(read_answer(b"SSH-2.0\r\n\r\n").is_err());
    }

    #[test]
    fn requests_are_what_the_server_reads() {
        let (mut http, mut out) = (Http::new(3), Vec::new());
        http.submit(&mut out, &mut Payloads::new(0), 2);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /v1/tasks/batch HTTP/1.1\r\n"));
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let batch: orchestrix_core::wire::SubmitBatch = serde_json::from_str(body).unwrap();
        assert_eq!(batch.tasks.len(), 2);

        let mut out = Vec::new();
        http.complete(&mut out, &[Ticket(1, 2), Ticket(3, 4)]);
        let text = String::from_utf8(out).unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let batch: orchestrix_core::wire::CompleteBatch = serde_json::from_str(body).unwrap();
        assert_eq!(batch.items[1].lease_id.0, 4);

        let mut out = Vec::new();
        http.lease(&mut out, 256);
        let text = String::from_utf8(out).unwrap();
        let body = text.split_once("\r\n\r\n").unwrap().1;
        let lease: orchestrix_core::wire::LeaseQueue = serde_json::from_str(body).unwrap();
        assert_eq!(lease.max, 256);
    }

    fn answer(body: &str) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[test]
    fn leases_are_found_in_an_answer() {
        let body = r#"{"leases":[{"task_id":12,"lease_id":34,"queue":"bench"},{"task_id":5,"lease_id":6}],"waited_ms":0}"#;
        let mut tickets = Vec::new();
        let read = Http::new(0).read(Stage::Lease, 2, &answer(body), &mut tickets).unwrap();
        assert_eq!(read, Some(answer(body).len()));
        assert_eq!(tickets, [Ticket(12, 34), Ticket(5, 6)]);
    }

    #[test]
    fn a_refused_item_of_a_batch_is_noticed() {
        let body = r#"{"tasks":[{"id":1,"state":"WAITING"},{"code":"storage_full","detail":"…"}]}"#;
        let read = |count| Http::new(0).read(Stage::Submit, count, &answer(body), &mut Vec::new());
        assert!(read(2).is_err());
        assert!(read(1).is_ok());
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP a_b x\na_b_total 3\na_b{x=\"1\"} 4\na_b 0.25\n";
        assert_eq!(metric(page, "a_b").unwrap(), 0.25);
        assert!(metric(page, "a").is_err());
    }
}
