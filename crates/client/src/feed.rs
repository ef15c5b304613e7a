//! What happens, as it happens: the lines of a task and the events of the journal. A broken stream is taken
//! up again where it broke, at the next address if there are several.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use orchestrix_core::wire::events::{Event, Gap, StreamedEvent};
use orchestrix_core::wire::{LogLine, LogPage};
use orchestrix_core::{Position, TaskId, Timestamp};

use crate::addresses::At;
use crate::call::Call;
use crate::client::Client;
use crate::error::Error;
use crate::retry::Backoff;
use crate::sse::{Frame, Parser};
use crate::transport::{Opened, Transport};

/// A stream that brought nothing for so long, not even a sign of life, is taken for broken.
const SILENCE: Duration = Duration::from_secs(60);

/// One thing of the event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedEvent {
    /// Something that happened. What a newer coordinator sends and this client does not know is [`Event::Unknown`].
    Event { position: Position, at: Timestamp, event: Event },
    /// Events up to this position are missing: they are older than what the coordinator keeps in memory, or this
    /// client cannot read the event at this position.
    Gap { until: Position },
}

/// The events of the journal as they become durable.
#[derive(Debug)]
pub struct EventFeed {
    transport: Arc<Transport>,
    after: Option<Position>,
    stream: Option<Stream>,
    backoff: Backoff,
}

impl EventFeed {
    pub(crate) fn new(transport: Arc<Transport>, after: Option<Position>) -> Self {
        let backoff = transport.backoff();
        Self { transport, after, stream: None, backoff }
    }

    /// The next event. Waits as long as it takes.
    ///
    /// # Errors
    /// When the coordinator refuses, or could not be reached for as many tries as the client makes.
    pub async fn next(&mut self) -> Result<FeedEvent, Error> {
        loop {
            match self.frame().await {
                Ok(frame) => {
                    self.backoff.reset();
                    if let Some(event) = self.understand(&frame) {
                        return Ok(event);
                    }
                }
                Err(error) => {
                    forget(&mut self.stream, &mut self.backoff);
                    self.transport.pause(&mut self.backoff, &events(), error).await?;
                }
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        let call = events();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed @ None => {
                let resume = self.after.map(|after| ("last-event-id", after.to_string()));
                let opened = Stream::open(&self.transport, &call, resume.as_slice()).await?;
                // "From now on" means from the first answer on, also for a stream that breaks before its first
                // event.
                self.after = self.after.or(opened.position);
                closed.insert(opened)
            }
        };
        let frame = stream.next(&self.transport, &call).await?;
        let at = stream.at;
        frame.ok_or_else(|| self.transport.broken(at, &call, "the stream ended".to_owned()))
    }

    fn understand(&mut self, frame: &Frame) -> Option<FeedEvent> {
        let position = Position(frame.id.as_ref()?.parse().ok()?);
        self.after = Some(position);
        // A later call about this event is answered by a node that knows it.
        self.transport.saw(position);
        if frame.event == "gap" {
            let gap = serde_json::from_str(&frame.data);
            return Some(FeedEvent::Gap { until: gap.map_or(position, |Gap { until }| until) });
        }
        if frame.event != "message" {
            return None;
        }
        Some(match serde_json::from_str(&frame.data) {
            Ok(StreamedEvent { position, at, event }) => FeedEvent::Event { position, at, event },
            Err(error) => {
                tracing::warn!(%position, %error, "an event is not readable");
                FeedEvent::Gap { until: position }
            }
        })
    }
}

/// The lines of one task, from the first on, and those to come until the task ends.
#[derive(Debug)]
pub struct LogFeed {
    client: Client,
    task: TaskId,
    attempt: Option<u32>,
    offset: u64,
    stream: Option<Stream>,
    backoff: Backoff,
}

impl LogFeed {
    pub(crate) fn new(client: Client, task: TaskId, attempt: Option<u32>, offset: u64) -> Self {
        // Who follows a task does so until it ends, through every change of leader.
        let backoff = Backoff::new(client.transport().retries, Duration::MAX);
        Self { client, task, attempt, offset, stream: None, backoff }
    }

    /// The next line; none when the task has ended and all its lines were given out.
    ///
    /// # Errors
    /// When there is no such task, or the coordinator could not be reached for as many tries as the client
    /// makes. While nodes answer that there is no leader, it continues.
    pub async fn next(&mut self) -> Result<Option<LogLine>, Error> {
        loop {
            let error = match self.step().await {
                Ok(Step::Line(line)) => {
                    self.backoff.reset();
                    self.offset = line.n + 1;
                    return Ok(Some(line));
                }
                Ok(Step::Ended) => return Ok(None),
                Ok(Step::Other) => continue,
                Err(error) => error,
            };
            forget(&mut self.stream, &mut self.backoff);
            let call = self.call();
            self.client.transport().pause(&mut self.backoff, &call, error).await?;
        }
    }

    fn call(&self) -> Call {
        Call::get(log_path(self.task, self.attempt, self.offset, Some("follow=true")))
    }

    async fn step(&mut self) -> Result<Step, Error> {
        let call = self.call();
        let transport = self.client.transport();
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed @ None => closed.insert(Stream::open(transport, &call, &[]).await?),
        };
        match stream.next(transport, &call).await? {
            Some(frame) => Ok(Step::of(&frame)),
            None => {
                let ended = transport.broken(stream.at, &call, "the stream ended".to_owned());
                self.after_the_stream(ended).await
            }
        }
    }

    /// A stream that ended says nothing about the task: it may be over, or the coordinator is restarting.
    async fn after_the_stream(&self, broken: Error) -> Result<Step, Error> {
        let ended = self.client.task(self.task).await?.summary.state.is_terminal();
        let rest: LogPage = self.client.logs(self.task, self.attempt, self.offset, Some(1)).await?;
        if ended && rest.lines.is_empty() {
            return Ok(Step::Ended);
        }
        Err(broken)
    }
}

/// Drops a stream that broke. One that brought anything, be it a sign of life, went well: a quiet stream may break
/// as often as nodes are restarted.
fn forget(stream: &mut Option<Stream>, backoff: &mut Backoff) {
    if stream.take().is_some_and(|stream| stream.lived) {
        backoff.reset();
    }
}

fn events() -> Call {
    Call::get("/v1/events")
}

/// What one frame of a log stream means.
enum Step {
    Line(LogLine),
    Ended,
    Other,
}

impl Step {
    fn of(frame: &Frame) -> Self {
        if frame.event == "end" {
            return Self::Ended;
        }
        serde_json::from_str(&frame.data).map_or(Self::Other, Self::Line)
    }
}

pub(crate) fn log_path(task: TaskId, attempt: Option<u32>, offset: u64, more: Option<&str>) -> String {
    let mut path = format!("/v1/tasks/{task}/logs?offset={offset}");
    if let Some(attempt) = attempt {
        path.push_str(&format!("&attempt={attempt}"));
    }
    if let Some(more) = more {
        path.push('&');
        path.push_str(more);
    }
    path
}

/// An open stream of frames.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Where it comes from.
    pub(crate) at: At,
    /// How far the journal was when the stream began.
    position: Option<Position>,
    body: Incoming,
    parser: Parser,
    /// It has brought something.
    lived: bool,
}

impl Stream {
    pub(crate) async fn open(
        transport: &Transport,
        call: &Call,
        headers: &[(&'static str, String)],
    ) -> Result<Self, Error> {
        let Opened { at, position, body } = transport.open(call, headers).await?;
        Ok(Self { at, position, body, parser: Parser::default(), lived: false })
    }

    /// The next frame; none at the end of the stream.
    pub(crate) async fn next(&mut self, transport: &Transport, call: &Call) -> Result<Option<Frame>, Error> {
        let at = self.at;
        let broken = |why: String| transport.broken(at, call, why);
        loop {
            if let Some(frame) = self.parser.next() {
                return Ok(Some(frame));
            }
            let more = tokio::time::timeout(SILENCE, self.body.frame()).await;
            let more = more.map_err(|_| broken(format!("silent for {SILENCE:?}")))?;
            let Some(piece) = more else { return Ok(None) };
            let piece = piece.map_err(|error| broken(error.to_string()))?;
            if let Some(bytes) = piece.data_ref() {
                self.lived = true;
                self.parser.push(bytes).map_err(|_| broken("a frame without end".to_owned()))?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::tests::fake::{Answer, coordinator, in_time};

    #[tokio::test]
    async fn a_live_stream_broken_before_its_first_event_loses_nothing() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let client = coordinator({
            let asked = Arc::clone(&asked);
            move |request| {
                let mut asked = asked.lock().unwrap();
                asked.push(request.header("last-event-id").map(str::to_owned));
                match asked.len() {
                    1 => Answer::Stream("orchestrix-position: 41", ": still here\n\n"),
                    // What happened in the meantime is not what was asked for at first.
                    2 => Answer::Stream("orchestrix-position: 50", ""),
                    _ => Answer::Stream(
                        "orchestrix-position: 50",
                        "id: 42\ndata: {\"position\":42,\"at\":7,\"type\":\"Tick\"}\n\n",
                    ),
                }
            }
        })
        .await;
        let mut feed = Client::builder(client.url()).retries(5).build().unwrap().events(None);
        let event = in_time(feed.next()).await.unwrap();
        assert!(matches!(event, FeedEvent::Event { position: Position(42), .. }), "{event:?}");
        assert_eq!(*asked.lock().unwrap(), [None, Some("41".to_owned()), Some("41".to_owned())]);
    }

    #[tokio::test]
    async fn an_event_that_is_not_readable_is_a_gap() {
        let client = coordinator(|_| {
            Answer::Stream(
                "orchestrix-position: 41",
                "id: 41\n\nid: 42\ndata: {\"type\":\"Tick\"}\n\nid: 43\ndata: {\"position\":43,\"at\":7,\"type\":\"Tick\"}\n\n",
            )
        })
        .await;
        let mut feed = client.events(None);
        assert_eq!(in_time(feed.next()).await.unwrap(), FeedEvent::Gap { until: Position(42) });
        let event = in_time(feed.next()).await.unwrap();
        assert!(matches!(event, FeedEvent::Event { position: Position(43), .. }), "{event:?}");
    }

    #[test]
    fn a_log_stream_is_asked_for_from_where_the_last_one_broke() {
        assert_eq!(
            log_path(TaskId(7), Some(2), 40, Some("follow=true")),
            "/v1/tasks/7/logs?offset=40&attempt=2&follow=true"
        );
        assert_eq!(log_path(TaskId(7), None, 0, None), "/v1/tasks/7/logs?offset=0");
    }

    #[test]
    fn frames_that_are_no_lines_are_passed_over() {
        let frame =
            |event: &str, data: &str| Frame { event: event.to_owned(), id: None, data: data.to_owned() };
        assert!(matches!(Step::of(&frame("message", "{\"new\":1}")), Step::Other));
        assert!(matches!(Step::of(&frame("end", "{}")), Step::Ended));
        let line = "{\"n\":3,\"attempt\":1,\"at\":9,\"stream\":\"stdout\",\"text\":\"hello\"}";
        assert!(matches!(Step::of(&frame("line", line)), Step::Line(line) if line.n == 3));
    }
}
