//! Coordinators for tests: each listens on a loopback socket, answers as a test says, reports its requests, and
//! can go away and come back.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Client;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// In lower case, `name: value`.
    headers: Vec<String>,
    /// `null` when there is none.
    pub(crate) body: Value,
}

/// What becomes of one request.
#[derive(Debug)]
pub(crate) enum Answer {
    Say(u16, Value),
    /// The same, with headers: lines that end as those of HTTP do.
    With(String, u16, Value),
    /// The beginning of a stream with this header, these frames, and the end of the connection.
    Stream(&'static str, &'static str),
    HangUp,
    /// Nothing is heard, but the connection stays.
    Silence,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// How far the one who asks wants the answer to be.
    pub(crate) fn position(&self) -> Option<String> {
        self.header("orchestrix-position").map(str::to_owned)
    }
}

impl Answer {
    pub(crate) fn ok(body: Value) -> Self {
        Self::Say(200, body)
    }

    pub(crate) fn problem(status: u16, code: &str) -> Self {
        Self::Say(status, json!({"code": code, "detail": code, "status": status, "title": code}))
    }

    /// The same answer with one more header.
    pub(crate) fn header(self, name: &str, value: impl std::fmt::Display) -> Self {
        let line = format!("{name}: {value}\r\n");
        match self {
            Self::Say(status, body) => Self::With(line, status, body),
            Self::With(lines, status, body) => Self::With(lines + &line, status, body),
            other @ (Self::Stream(..) | Self::HangUp | Self::Silence) => other,
        }
    }

    fn text(&self) -> Option<String> {
        let whole = |headers: &str, status: &u16, body: &Value| {
            let body = body.to_string();
            let length = body.len();
            Some(format!(
                "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n\
                 {body}"
            ))
        };
        match self {
            Self::Say(status, body) => whole("", status, body),
            Self::With(headers, status, body) => whole(headers, status, body),
            Self::Stream(header, frames) => Some(format!(
                "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n{header}\r\nconnection: close\r\n\r\n{frames}"
            )),
            Self::HangUp | Self::Silence => None,
        }
    }
}

/// A coordinator at an address of its own. It ends with its runtime.
pub(crate) struct Node {
    address: SocketAddr,
    answer: Arc<dyn Fn(&Asked) -> Answer + Send + Sync>,
    asked: Arc<Mutex<Vec<Asked>>>,
    line: Mutex<Line>,
}

/// Whether a node listens at an address.
enum Line {
    /// Until this is cancelled.
    Up(CancellationToken),
    /// The port is kept, so that no other process gets it, but connections are refused.
    Down(TcpSocket),
}

impl Node {
    pub(crate) fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let node = Self::new(answer);
        node.restart();
        node
    }

    /// An address without a listener.
    pub(crate) fn gone() -> Self {
        Self::new(|_| Answer::HangUp)
    }

    fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let socket = bound("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        let line = Mutex::new(Line::Down(socket));
        Self { address, answer: Arc::new(answer), asked: Arc::default(), line }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The paths that it was asked for.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.path).collect()
    }

    /// Breaks all connections and takes no more.
    pub(crate) async fn stop(&self) {
        if let Line::Up(up) = &*self.line.lock().unwrap() {
            up.cancel();
        }
        let socket = loop {
            match bound(self.address) {
                Ok(socket) => break socket,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        *self.line.lock().unwrap() = Line::Down(socket);
    }

    /// Listens at the same address as ever.
    pub(crate) fn restart(&self) {
        let up = CancellationToken::new();
        let line = std::mem::replace(&mut *self.line.lock().unwrap(), Line::Up(up.clone()));
        let Line::Down(socket) = line else { panic!("a node is stopped before it is started") };
        let listener = socket.listen(128).unwrap();
        let (answer, asked) = (Arc::clone(&self.answer), Arc::clone(&self.asked));
        let listening = async move {
            // Connections end with the one who accepted them.
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(serve(socket, Arc::clone(&answer), Arc::clone(&asked)));
            }
        };
        tokio::spawn(up.run_until_cancelled_owned(listening));
    }
}

fn bound(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Connections of the one before may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A client of these nodes, in this order.
pub(crate) fn client_of<'a>(nodes: impl IntoIterator<Item = &'a Node>, retries: u32) -> Client {
    let builder = Client::builder_of(nodes.into_iter().map(Node::url)).retries(retries);
    builder.wait_for_leader(Duration::ZERO).build().unwrap()
}

/// Starts a coordinator; answers a client of it that repeats nothing by itself.
pub(crate) async fn coordinator(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Client {
    client_of([&Node::start(answer)], 0)
}

/// One lease of the queue `q`, for as long as a test runs.
pub(crate) fn lease(task: u64) -> Value {
    json!({
        "task_id": task, "lease_id": task + 1_000, "queue": "q", "attempt": 1, "payload": null,
        "lease_ms": 60_000,
    })
}

/// Waits, but not for ever.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

/// Answers one request after the other. The caller may disconnect at any moment.
async fn serve(
    socket: TcpStream,
    answer: Arc<dyn Fn(&Asked) -> Answer + Send + Sync>,
    heard: Arc<Mutex<Vec<Asked>>>,
) {
    let mut socket = BufReader::new(socket);
    while let Some(asked) = read(&mut socket).await {
        heard.lock().unwrap().push(asked.clone());
        let answer = answer(&asked);
        if let Some(text) = answer.text() {
            drop(socket.write_all(text.as_bytes()).await);
        }
        match answer {
            Answer::Say(..) | Answer::With(..) => {}
            Answer::Silence => return drop(socket.read(&mut [0]).await),
            Answer::Stream(..) | Answer::HangUp => return,
        }
    }
}

async fn read(socket: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let path = lines[0].split(' ').nth(1)?.to_owned();
    let headers = lines[1..].iter().map(|line| line.to_lowercase()).collect();
    let mut asked = Asked { path, headers, body: Value::Null };
    let length = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    asked.body = serde_json::from_slice(&body).unwrap_or_default();
    Some(asked)
}
