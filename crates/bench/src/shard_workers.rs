//! Workers with shards, played over ZeroMQ: as many as asked for, on one thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use orchestrix_core::wire::Assignment;
use orchestrix_zmtp::{Connection, Incoming, Limits, Reader, SocketType, Writer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Without a message for so long, something is broken.
const GIVE_UP: Duration = Duration::from_secs(60);

/// One worker on one socket.
pub(crate) struct Worker {
    pub(crate) name: String,
    shards: u32,
    reader: Reader<TcpStream>,
    writer: Writer<TcpStream>,
    /// Its last assignment.
    pub(crate) told: Assignment,
    seq: u64,
}

#[derive(Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
enum Heard {
    Assignment(Assignment),
    Error { code: String, message: String },
}

impl Worker {
    /// # Errors
    /// When there is no ZeroMQ peer at the address.
    pub(crate) async fn connect(address: SocketAddr, name: String, shards: u32) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let limits = Limits { message_bytes: 16 << 20, parts: 2, ..Limits::default() };
        let connection = Connection::greet(stream, SocketType::Dealer, b"", limits).await?;
        let (reader, writer) = connection.split();
        Ok(Self { name, shards, reader, writer, told: Assignment::default(), seq: 0 })
    }

    async fn say(&mut self, kind: &str, mut data: Value) -> Result<()> {
        data["serviceName"] = "bench".into();
        data["workerId"] = self.name.as_str().into();
        let message = json!({ "type": kind, "data": data }).to_string();
        Ok(self.writer.send(&[message.as_bytes()]).await?)
    }

    /// The next assignment: an answer or a push.
    ///
    /// # Errors
    /// When that is an error, or nothing.
    pub(crate) async fn hear(&mut self) -> Result<&Assignment> {
        loop {
            let incoming =
                tokio::time::timeout(GIVE_UP, self.reader.next()).await.context("no message arrived")??;
            let Incoming::Message(parts) = incoming else { continue };
            let last = parts.last().context("a message has a part")?;
            match serde_json::from_slice(last)? {
                Heard::Assignment(told) => {
                    self.told = told;
                    return Ok(&self.told);
                }
                Heard::Error { code, message } => bail!("{} got an error, {code}: {message}", self.name),
            }
        }
    }

    /// Asks and waits for the answer: what has a time in it.
    async fn answered(&mut self) -> Result<()> {
        while self.hear().await?.lease_ms == 0 {}
        Ok(())
    }

    /// # Errors
    /// When it is refused.
    pub(crate) async fn register(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.say("register", json!({ "maxShardCount": self.shards })).await?;
        self.answered().await?;
        Ok(began.elapsed())
    }

    /// Sends a heartbeat with the shards of its assignment.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn heartbeat(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.seq += 1;
        let data = json!({ "maxShardCount": self.shards, "assignedShards": self.told.assigned_shards,
            "generation": self.told.generation, "seq": self.seq });
        self.say("heartbeat", data).await?;
        while self.told.seq != Some(self.seq) {
            self.hear().await?;
        }
        Ok(began.elapsed())
    }

    /// # Errors
    /// When the connection is over.
    pub(crate) async fn leave(&mut self) -> Result<()> {
        self.say("deregister", json!({})).await
    }
}
