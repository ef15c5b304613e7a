//! `GET /v1/events`: what becomes durable, as it does. Payloads and results are not told.

use std::time::Duration;

use futures_util::FutureExt;
use orchestrix_core::{Event, Json, Position, TaskEvent, Timestamp};
use orchestrix_node::{Events, Happening};
use serde_json::{Value, json};

use crate::http::answer::Reply;
use crate::http::error::Fault;
use crate::http::forward;
use crate::http::handle::Call;
use crate::http::sse::{self, Piece};
use crate::http::streams::{Gone, Sink};

pub(crate) async fn follow(call: &Call<'_>) -> Result<Reply, Fault> {
    let query = call.query(&["after"])?;
    let asked = query.number("after")?;
    let after = sse::last_event_id(&call.head.headers)?.or(asked);
    let durable = call.app.coordinator.stats().durable.get();
    if let Some(after) = after.filter(|after| *after > durable) {
        if call.app.coordinator.member().is_none() {
            return Err(Fault::Invalid(format!(
                "position {after} is not reached yet; the journal is at {durable}"
            )));
        }
        // It was seen at another node.
        call.app.coordinator.reach(after).await?;
    }
    let mut events = call.app.coordinator.events(after.map(Position));
    let seen = forward::position(call)?.filter(|seen| *seen > events.position().0);
    if let Some(seen) = seen {
        // This node does not know yet what the caller has seen: "from now on" begins after that.
        call.app.coordinator.reach(seen).await?;
        events = call.app.coordinator.events(Some(Position(after.unwrap_or(seen))));
    }
    let (keep_alive, begins) = (call.app.limits.keep_alive, events.position().0);
    // The reader goes on from there if the stream breaks before its first event; what this node has written since it
    // was asked comes after that.
    Ok(sse::reply(call, |sink| fill(sink, events, begins, keep_alive))?.at(begins))
}

async fn fill(sink: Sink, mut events: Events, begins: u64, keep_alive: Duration) -> Result<(), Gone> {
    // Tells the reader at once that it is connected, and after which position.
    sink.send(Piece::beginning(begins)).await?;
    loop {
        let waited = tokio::select! {
            waited = tokio::time::timeout(keep_alive, events.next()) => waited,
            () = sink.gone() => return Err(Gone),
        };
        let piece = match waited {
            Ok(first) => gather(first, &mut events),
            Err(_) => Piece::comment(),
        };
        sink.send(piece).await?;
    }
}

/// Puts all that is at hand into one piece.
fn gather(first: Happening, events: &mut Events) -> Piece {
    let mut piece = Piece::default();
    let mut next = Some(first);
    while let Some(happening) = next {
        tell(&mut piece, happening);
        next = if piece.is_full() { None } else { events.next().now_or_never() };
    }
    piece
}

fn tell(piece: &mut Piece, happening: Happening) {
    match happening {
        Happening::Event { position, at, event } => {
            piece.frame(None, Some(position.0), &body(position, at, event));
        }
        Happening::Gap { until } => piece.frame(Some("gap"), Some(until.0), &json!({ "until": until })),
    }
}

/// An event as readers see it. Ids that are the event's own position are told too.
fn body(position: Position, at: Timestamp, event: Event) -> Value {
    let (event, hidden, named) = match event {
        Event::Task(TaskEvent::TaskCreated(mut created)) => {
            created.payload = Json::null();
            (Event::Task(TaskEvent::TaskCreated(created)), Some("payload"), Some("task"))
        }
        Event::Task(TaskEvent::TaskCompleted(mut completed)) => {
            completed.result = None;
            (Event::Task(TaskEvent::TaskCompleted(completed)), Some("result"), None)
        }
        granted @ Event::Task(TaskEvent::LeaseGranted(_)) => (granted, None, Some("lease")),
        other @ (Event::Term(_) | Event::Task(_) | Event::Shard(_)) => (other, None, None),
    };
    let mut body = serde_json::to_value(&event).expect("events are plain JSON");
    if let Some(fields) = body.as_object_mut() {
        hidden.and_then(|field| fields.remove(field));
        fields.retain(|_, value| !value.is_null());
        if let Some(field) = named {
            fields.insert(field.to_owned(), position.0.into());
        }
        fields.insert("position".to_owned(), position.0.into());
        fields.insert("at".to_owned(), at.0.into());
    }
    body
}

#[cfg(test)]
mod tests {
    use orchestrix_core::{LeaseId, Name, TaskCompleted, TaskCreated, TaskId};

    use super::*;

    #[test]
    fn payloads_and_results_are_not_told() {
        let created = TaskCreated {
            queue: Name::new("mail").unwrap(),
            payload: Json::parse("\"secret\"").unwrap(),
            priority: 0,
            not_before: Timestamp(5),
            max_attempts: 3,
            key: None,
            timeout_ms: None,
            ttl_at: None,
            backoff: None,
        };
        let told = body(Position(9), Timestamp(5), created.into());
        assert_eq!(
            told,
            json!({"position":9,"at":5,"type":"TaskCreated","task":9,"queue":"mail","priority":0,
                   "not_before":5,"max_attempts":3})
        );
        let completed =
            TaskCompleted { task: TaskId(9), lease: LeaseId(10), result: Some(Json::parse("1").unwrap()) };
        let told = body(Position(11), Timestamp(6), completed.into());
        assert_eq!(told, json!({"position":11,"at":6,"type":"TaskCompleted","task":9,"lease":10}));
    }

    /// Every kind of event, as it is stored.
    const RECORDS: &str = include_str!("../../../core/tests/stored/records.txt");
    /// The same as readers see them: programs read these fields. They may be added to, and never taken away.
    const SHOWN: &str = include_str!("events/shown.jsonl");

    #[test]
    fn every_kind_of_event_is_shown_as_ever() {
        let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
        let mut shown = SHOWN.lines();
        for (n, line) in (1..).zip(RECORDS.lines()) {
            let hex = line.rsplit(' ').next().unwrap();
            let record: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
            let (at, event) = orchestrix_core::Records::new(&record).next().unwrap().unwrap();
            let told = body(Position(n), at, event);
            let expected: Value = serde_json::from_str(shown.next().expect("a line for each")).unwrap();
            assert_eq!(told, expected, "{line}");
        }
        assert_eq!(shown.next(), None);
    }
}
