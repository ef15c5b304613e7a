//! A server on a free port with a folder of its own, and a client that sends exactly what it is told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use orchestrix_node::{Node, Options as NodeOptions, Storage, open};
use orchestrix_server::http::{self, Options, Serving};
use orchestrix_server::tokens::Tokens;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Where requests go.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
}

/// A node with a folder, behind a door.
pub(crate) struct Server {
    door: Door,
    pub(crate) node: Node,
    serving: Serving,
    _folder: TempDir,
}

impl std::ops::Deref for Server {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

pub(crate) async fn start() -> Server {
    start_with(Options::default(), NodeOptions::default()).await
}

pub(crate) async fn start_with(options: Options, node_options: NodeOptions) -> Server {
    let folder = tempfile::tempdir().unwrap();
    let (node, _) = open(&Storage::File(folder.path().join("data")), node_options).unwrap();
    until("the term begins", || node.stats().durable.get() == 2).await;
    let serving = http::start(([127, 0, 0, 1], 0).into(), node.clone(), options).unwrap();
    Server { door: Door { address: serving.address }, node, serving, _folder: folder }
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn code(&self) -> String {
        let json = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(json["status"], self.status);
        assert_eq!(json["request_id"].as_str(), self.headers.get("x-request-id").map(String::as_str));
        json["code"].as_str().unwrap().to_owned()
    }
}

impl Door {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], Some(body.to_string().as_bytes()))
            .await
    }

    /// Posts and expects success.
    pub(crate) async fn done(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert!(answer.status < 300, "{path} {body}: {answer:?}");
        answer.json()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            request.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body.unwrap_or_default());
        self.send_raw(&bytes).await
    }

    /// Sends bytes and reads the answer to the end of the connection.
    pub(crate) async fn send_raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        // A server may refuse before it has read everything.
        let _ = stream.write_all(bytes).await;
        read_answer(&mut stream).await
    }

    /// Sends bytes that cannot be a request: the status of the answer, or none when the connection just ends.
    pub(crate) async fn send_nonsense(&self, bytes: &[u8]) -> Option<u16> {
        let mut stream = self.connect().await;
        // A server may refuse before it has read everything, and then the answer may be lost.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        (!answer.is_empty()).then(|| parse_answer(&answer).status)
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Submits a task and gives its id.
    pub(crate) async fn submit(&self, queue: &str, payload: Value) -> u64 {
        let body = serde_json::json!({ "queue": queue, "payload": payload });
        self.done("/v1/tasks", &body).await["id"].as_u64().unwrap()
    }

    /// Leases one task and gives its id and the lease's.
    pub(crate) async fn lease(&self, queue: &str, worker: &str) -> (u64, u64) {
        let body = serde_json::json!({ "worker": worker });
        let leases = self.done(&format!("/v1/queues/{queue}/lease"), &body).await;
        let leased = &leases["leases"][0];
        (leased["task_id"].as_u64().unwrap(), leased["lease_id"].as_u64().unwrap())
    }
}

impl Server {
    pub(crate) fn position(&self) -> u64 {
        self.node.stats().position.get()
    }

    pub(crate) fn replace_tokens(&self, tokens: Tokens) {
        self.serving.replace_tokens(tokens);
    }

    pub(crate) async fn stop(self) {
        within(self.serving.stop()).await.unwrap();
    }
}

/// Reads one answer to the end of the connection.
pub(crate) async fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer does not take the answer back.
    let _ = within(stream.read_to_end(&mut bytes)).await;
    parse_answer(&bytes)
}

pub(crate) fn parse_answer(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Answer { status, headers, body: bytes[end + 4..].to_vec() }
}

/// Waits, but not for ever.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future).await.expect("it took too long")
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A stream of server-sent events, frame by frame.
pub(crate) struct Frames {
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// One frame: its event, its id and its data.
#[derive(Debug, PartialEq)]
pub(crate) struct Frame {
    pub(crate) event: String,
    pub(crate) id: Option<u64>,
    pub(crate) data: Value,
}

impl Door {
    pub(crate) async fn follow(&self, path: &str, headers: &[(&str, &str)]) -> Frames {
        let mut stream = self.connect().await;
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let address = self.address;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut frames = Frames { stream, bytes: Vec::new() };
        let head = within(frames.take_until(b"\r\n\r\n")).await.unwrap();
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        frames
    }
}

impl Frames {
    /// The next frame that is not a comment; none at the end of the stream. Comments go on for ever, this does not.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        within(self.read_next()).await
    }

    async fn read_next(&mut self) -> Option<Frame> {
        loop {
            let chunk = self.take_until(b"\n\n").await?;
            let text = String::from_utf8(chunk).unwrap();
            let mut frame = Frame { event: "message".to_owned(), id: None, data: Value::Null };
            let mut has_data = false;
            for line in text.lines() {
                if let Some(event) = line.strip_prefix("event: ") {
                    frame.event = event.to_owned();
                } else if let Some(id) = line.strip_prefix("id: ") {
                    frame.id = id.parse().ok();
                } else if let Some(data) = line.strip_prefix("data: ") {
                    frame.data = serde_json::from_str(data).unwrap();
                    has_data = true;
                }
            }
            if has_data {
                return Some(frame);
            }
        }
    }

    /// Bytes up to a mark. Lengths of chunks are lines of their own and look like comments.
    async fn take_until(&mut self, mark: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.bytes.windows(mark.len()).position(|window| window == mark) {
                let rest = self.bytes.split_off(end + mark.len());
                return Some(std::mem::replace(&mut self.bytes, rest));
            }
            let mut more = [0; 4096];
            match self.stream.read(&mut more).await {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.bytes.extend_from_slice(&more[..read]),
            }
        }
    }
}
