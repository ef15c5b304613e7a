//! A connection to Redis, on a thread of its own, with the commands of a worker: the only file that knows the driver.
//!
//! **Invariant:** every command may be sent again. What was sent without an answer may still take effect.

use std::fmt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use orchestrix_core::wire::bus::MESSAGE_BYTES_MAX;
use redis::{
    Client, Cmd, Connection, ConnectionLike as _, ErrorKind, FromRedisValue, Pipeline, RedisError, Value, cmd,
};
use tokio::sync::oneshot;

use crate::error::Error;

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long it may take for an answer. Longer than any read that waits.
const ANSWER: Duration = Duration::from_secs(10);
/// Calls in one request. Bounds memory, and what is repeated after a broken connection.
const TOGETHER_MAX: usize = 64;
/// The only field of an entry that is read.
const DATA: &str = "data";
/// The consumer group of all workers.
const GROUP: &str = "workers";

/// A connection. It opens when it is used, and again after a failure.
#[derive(Debug)]
pub(crate) struct Link {
    calls: mpsc::Sender<Call>,
}

struct Call {
    commands: Vec<Cmd>,
    answer: oneshot::Sender<Result<Vec<Value>, Failure>>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The outcome is unknown.
    Silent(String),
    /// The server said no, perhaps to the connection.
    Refused { code: String, what: String },
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Done,
    /// There is no such channel, or no more.
    Closed,
}

/// An entry of a stream.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) channel: String,
    pub(crate) id: String,
    /// None if it has no data, if that is not text, or too long.
    pub(crate) data: Option<String>,
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;
type Streams = Option<Vec<(String, Vec<(String, Option<Fields>)>)>>;

impl Link {
    /// # Errors
    /// When the URL is wrong. It may have a password, so no error shows it.
    pub(crate) fn to(url: &str) -> Result<Self, Error> {
        if url.starts_with("rediss:") {
            return Err(Error::invalid("a worker on a bus does not speak TLS yet: give a URL with redis://"));
        }
        let client =
            Client::open(url).map_err(|error| Error::invalid(format!("the URL of the bus: {error}")))?;
        let (calls, called) = mpsc::channel();
        thread::Builder::new()
            .name("orchestrix-bus".to_owned())
            .spawn(move || serve(&client, &called))
            .map_err(|error| Error::invalid(format!("cannot start a thread for the bus: {error}")))?;
        Ok(Self { calls })
    }

    /// Makes the group of the workers in these channels, and the channels.
    pub(crate) async fn join(&self, channels: &[String]) -> Result<(), Failure> {
        let create = |channel| {
            let mut create = cmd("XGROUP");
            create.arg("CREATE").arg(channel).arg(GROUP).arg("0").arg("MKSTREAM");
            create
        };
        for answer in self.call(channels.iter().map(create).collect()).await? {
            match done(answer) {
                Err(Failure::Refused { code, .. }) if code == "BUSYGROUP" => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Takes so many entries of each of these channels, and waits for the first one.
    pub(crate) async fn take(
        &self,
        channels: &[String],
        worker: &str,
        each: usize,
        wait: Option<Duration>,
    ) -> Result<Vec<Entry>, Failure> {
        let mut take = cmd("XREADGROUP");
        take.arg("GROUP").arg(GROUP).arg(worker).arg("COUNT").arg(each);
        if let Some(wait) = wait {
            take.arg("BLOCK").arg(millis(wait));
        }
        take.arg("STREAMS").arg(channels).arg(vec![">"; channels.len()]);
        self.entries(take).await
    }

    /// Reads a channel after an entry, and waits for the first one.
    pub(crate) async fn read(
        &self,
        channel: &str,
        after: &str,
        at_most: usize,
        wait: Duration,
    ) -> Result<Vec<Entry>, Failure> {
        let mut read = cmd("XREAD");
        read.arg("COUNT").arg(at_most).arg("BLOCK").arg(millis(wait));
        read.arg("STREAMS").arg(channel).arg(after);
        self.entries(read).await
    }

    /// Adds a message to a channel that is there.
    pub(crate) async fn add(&self, channel: &str, data: &str) -> Result<Added, Failure> {
        let answer = self.call(vec![adding(channel, data)]).await?;
        added(answer.into_iter().next())
    }

    /// The same for the first message about an offer, which is removed from its channel.
    pub(crate) async fn answer(
        &self,
        channel: &str,
        data: &str,
        offered: &str,
        id: &str,
    ) -> Result<Added, Failure> {
        let [ack, delete] = settling(offered, id);
        let mut answers = self.call(vec![adding(channel, data), ack, delete]).await?.into_iter();
        let added = added(answers.next())?;
        answers.try_for_each(|answer| done(answer).map(drop))?;
        Ok(added)
    }

    /// Removes an entry that was taken.
    pub(crate) async fn settle(&self, channel: &str, id: &str) -> Result<(), Failure> {
        let answers = self.call(settling(channel, id).into()).await?;
        answers.into_iter().try_for_each(|answer| done(answer).map(drop))
    }

    async fn entries(&self, command: Cmd) -> Result<Vec<Entry>, Failure> {
        let answer = self.call(vec![command]).await?.into_iter().next().unwrap_or(Value::Nil);
        let streams: Streams = read(done(answer)?)?;
        let all = streams.into_iter().flatten().flat_map(|(channel, entries)| {
            entries.into_iter().map(move |(id, fields)| Entry {
                channel: channel.clone(),
                id,
                data: fields.and_then(data),
            })
        });
        Ok(all.collect())
    }

    async fn call(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, Failure> {
        let (answer, answered) = oneshot::channel();
        let gone = || Failure::Silent("the thread of the connection has ended".to_owned());
        self.calls.send(Call { commands, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl Failure {
    /// Whether a repeat can help only if somebody changes the server.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Silent(_) => false,
            Self::Refused { code, .. } => {
                ["NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE"].contains(&code.as_str())
            }
        }
    }

    /// Whether a group or its channel is missing: the server has forgotten it.
    pub(crate) fn is_no_group(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "NOGROUP")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(what) => f.write_str(what),
            Self::Refused { code, what } => write!(f, "{code}: {what}"),
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let what = error.to_string();
        match error.code() {
            Some(code) => Self::Refused { code: code.to_owned(), what },
            None if error.kind() == ErrorKind::AuthenticationFailed => {
                Self::Refused { code: "NOAUTH".to_owned(), what }
            }
            None => Self::Silent(what),
        }
    }
}

/// Answers calls until there can be no more. Those that wait share a request.
fn serve(client: &Client, calls: &mpsc::Receiver<Call>) {
    let mut connection = None;
    while let Ok(first) = calls.recv() {
        let others = std::iter::from_fn(|| calls.try_recv().ok());
        let calls: Vec<Call> = std::iter::once(first).chain(others.take(TOGETHER_MAX - 1)).collect();
        match ask(client, &mut connection, &calls) {
            Ok(mut values) => {
                for Call { commands, answer } in calls {
                    let rest = values.split_off(commands.len().min(values.len()));
                    drop(answer.send(Ok(std::mem::replace(&mut values, rest))));
                }
            }
            Err(error) => {
                connection = None;
                let failure = Failure::from(error);
                calls.into_iter().for_each(|call| drop(call.answer.send(Err(failure.clone()))));
            }
        }
    }
}

fn ask(
    client: &Client,
    connection: &mut Option<Connection>,
    calls: &[Call],
) -> Result<Vec<Value>, RedisError> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(open(client)?),
    };
    let mut pipeline = Pipeline::new();
    for command in calls.iter().flat_map(|call| &call.commands) {
        pipeline.add_command(command.clone());
    }
    connection.req_packed_commands(&pipeline.get_packed_pipeline(), 0, pipeline.len())
}

fn open(client: &Client) -> Result<Connection, RedisError> {
    let connection = client.get_connection_with_timeout(CONNECT)?;
    connection.set_read_timeout(Some(ANSWER))?;
    connection.set_write_timeout(Some(ANSWER))?;
    Ok(connection)
}

fn adding(channel: &str, data: &str) -> Cmd {
    let mut add = cmd("XADD");
    add.arg(channel).arg("NOMKSTREAM").arg("*").arg(DATA).arg(data);
    add
}

fn settling(channel: &str, id: &str) -> [Cmd; 2] {
    let (mut ack, mut delete) = (cmd("XACK"), cmd("XDEL"));
    ack.arg(channel).arg(GROUP).arg(id);
    delete.arg(channel).arg(id);
    [ack, delete]
}

fn added(answer: Option<Value>) -> Result<Added, Failure> {
    let id: Option<String> = read(done(answer.unwrap_or(Value::Nil))?)?;
    Ok(if id.is_some() { Added::Done } else { Added::Closed })
}

/// What the server did, if it did it.
fn done(answer: Value) -> Result<Value, Failure> {
    answer.extract_error().map_err(Failure::from)
}

fn read<T: FromRedisValue>(answer: Value) -> Result<T, Failure> {
    T::from_redis_value(answer).map_err(|error| Failure::Silent(format!("an answer cannot be read: {error}")))
}

fn data(fields: Fields) -> Option<String> {
    let data = fields.into_iter().find(|(field, _)| field == DATA.as_bytes()).map(|(_, value)| value);
    data.filter(|data| data.len() <= MESSAGE_BYTES_MAX).and_then(|data| String::from_utf8(data).ok())
}

/// Zero would mean to wait for ever.
fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1)
}
