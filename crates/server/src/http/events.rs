//! `GET /v1/events`: a stream of durable events, without payloads and results.

mod public;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use orchestrix_core::Position;
use orchestrix_core::wire::events::{Gap, StreamedEvent};
use orchestrix_node::{Events, Happening};
use serde_json::Value;
use utoipa::openapi::Type;

use self::public::shown;
use crate::http::answer::Reply;
use crate::http::error::Fault;
use crate::http::forward;
use crate::http::handle::Call;
use crate::http::openapi::{RouteDoc, asks};
use crate::http::sse::{self, Piece};
use crate::http::streams::{Gone, Sink};

/// One event of each type and more, as readers see them: programs read these fields. They may be added to, and never
/// taken away.
const SHOWN: &str = include_str!("events/shown.jsonl");

pub(crate) fn doc() -> RouteDoc {
    asks("Stream events")
        .frames::<StreamedEvent, Gap>(
            "Events from now on, or after a position; `gap` where some are missing.",
            examples(),
        )
        .with(&[(
            "after",
            Type::Integer,
            "Start after this position; the header Last-Event-ID overrides it.",
        )])
}

/// The first event of each type, by its name.
fn examples() -> BTreeMap<String, Value> {
    let mut examples = BTreeMap::new();
    for line in SHOWN.lines() {
        let event: Value = serde_json::from_str(line).expect("each line is JSON");
        let name = event["type"].as_str().expect("each event has a type").to_owned();
        examples.entry(name).or_insert(event);
    }
    examples
}

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
        Happening::Event { position, at, event, queues } => {
            piece.frame(None, Some(position.0), &shown(position, at, event, &queues));
        }
        Happening::Gap { until } => piece.frame(Some("gap"), Some(until.0), &Gap { until }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use orchestrix_core::wire::events::Event;
    use orchestrix_core::{Records, State};
    use orchestrix_node::TaskQueues;

    use super::*;

    /// Every kind of event, as it is stored: two lives of a journal.
    const RECORDS: [&str; 2] = [
        include_str!("../../../core/tests/stored/records.txt"),
        include_str!("../../../core/tests/stored/records_2.txt"),
    ];

    #[test]
    fn every_kind_of_event_is_shown_as_ever() {
        let mut lines = SHOWN.lines();
        let mut types = BTreeSet::new();
        for records in RECORDS {
            let mut state = State::new();
            for (n, record) in (1..).zip(records.lines()) {
                let streamed = streamed(&mut state, Position(n), record);
                types.insert(streamed.event.name().to_owned());
                let told = serde_json::to_string(&streamed).unwrap();
                let line = lines.next().unwrap_or_else(|| panic!("there is no line {told}"));
                let expected: Value = serde_json::from_str(line).unwrap();
                assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), expected, "{record}");
                assert_eq!(
                    serde_json::from_str::<StreamedEvent>(line).unwrap(),
                    streamed,
                    "a client reads it"
                );
            }
        }
        assert_eq!(lines.next(), None);
        assert_eq!(types, Event::TYPES.iter().copied().map(str::to_owned).collect());
    }

    /// A stored record, which follows this state, as readers see it.
    fn streamed(state: &mut State, position: Position, line: &str) -> StreamedEvent {
        let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
        let hex = line.rsplit(' ').next().unwrap();
        let record: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        let (at, event) = Records::new(&record).next().unwrap().unwrap();
        let queues = TaskQueues::of(state, &event);
        state.apply(at, event.clone());
        shown(position, at, event, &queues)
    }
}
