//! A coordinator for tests: it listens on a loopback socket, answers as a test says, and tells what it was
//! asked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

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
}

impl Answer {
    pub(crate) fn ok(body: Value) -> Self {
        Self::Say(200, body)
    }

    pub(crate) fn problem(status: u16, code: &str) -> Self {
        Self::Say(status, json!({"code": code, "detail": code, "status": status, "title": code}))
    }

    fn text(&self) -> Option<String> {
        match self {
            Self::Say(status, body) => {
                let body = body.to_string();
                Some(format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                     connection: close\r\n\r\n{body}",
                    body.len()
                ))
            }
            Self::Stream(header, frames) => Some(format!(
                "HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\n{header}\r\nconnection: close\r\n\r\n{frames}"
            )),
            Self::HangUp | Self::Silence => None,
        }
    }
}

/// Starts a coordinator, which ends with its runtime; answers a client of it that repeats nothing by itself.
pub(crate) async fn coordinator(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(socket, Arc::clone(&answer)));
        }
    });
    Client::builder(&url).retries(0).build().unwrap()
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

/// Answers one request. Whoever asks may be gone at any moment.
async fn serve(socket: TcpStream, answer: Arc<impl Fn(&Asked) -> Answer>) {
    let mut socket = BufReader::new(socket);
    let Some(asked) = read(&mut socket).await else { return };
    let answer = answer(&asked);
    if let Some(text) = answer.text() {
        drop(socket.write_all(text.as_bytes()).await);
    }
    if matches!(answer, Answer::Silence) {
        drop(socket.read(&mut [0]).await);
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
