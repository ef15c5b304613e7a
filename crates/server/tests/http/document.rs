//! The documents are true: the examples of `docs/protocol.md` are sent in their order and answered as it says,
//! and `docs/operating.md` leaves nothing out.

use std::collections::BTreeSet;

use orchestrix_core::wire::events::Event;
use orchestrix_server::config::ServeArgs;
use orchestrix_server::http::ROUTES;
use orchestrix_server::tokens::{Secret, Tokens};
use serde_json::Value;

use crate::kit::{Server, start};

/// Numbers from here on are times.
const TIME_MIN: f64 = 1e12;

#[tokio::test]
async fn the_examples_of_the_protocol_are_answered_as_written() {
    let text = include_str!("../../../../docs/protocol.md");
    let mut blocks = text.split("```http\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let server = start().await;
    let mut examples = 0;
    while let (Some(request), Some(answer)) = (blocks.next(), blocks.next()) {
        let (head, body) =
            request.split_once("\n\n").map_or((request, None), |(head, body)| (head, Some(body)));
        let (method, path) = head.split_once(' ').unwrap();
        let (status, expected) = answer.split_once("\n\n").unwrap();
        if expected.starts_with("event: ") || expected.starts_with("id: ") {
            check_stream(&server, path, expected).await;
        } else {
            let answer = server.send(method, path, &[], body.map(str::as_bytes)).await;
            assert!(status.starts_with(&format!("HTTP/1.1 {} ", answer.status)), "{head}: {answer:?}");
            let expected = serde_json::from_str(expected).unwrap();
            assert!(
                is_like(&answer.json(), &expected),
                "{head} is answered with {} not {expected}",
                answer.json()
            );
        }
        examples += 1;
    }
    assert_eq!(examples, text.matches("\nHTTP/1.1 ").count());
    server.stop().await;
}

async fn check_stream(server: &Server, path: &str, expected: &str) {
    let mut frames = server.follow(path, &[]).await;
    for written in expected.split("\n\n") {
        let field = |name: &str| written.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let frame = frames.next().await.unwrap();
        assert_eq!(frame.event, field("event").unwrap_or("message"), "{path}");
        assert_eq!(frame.id, field("id").map(|id| id.parse().unwrap()), "{path}");
        let data = serde_json::from_str(field("data").unwrap()).unwrap();
        assert!(is_like(&frame.data, &data), "{path} sends {} not {data}", frame.data);
    }
}

/// The same, but for what differs from one run to the next.
pub(crate) fn is_like(real: &Value, written: &Value) -> bool {
    match (real, written) {
        (Value::Object(real), Value::Object(written)) => {
            real.keys().eq(written.keys())
                && real.iter().zip(written.values()).all(|((name, real), written)| match name.as_str() {
                    "request_id" | "address" | "oldest_ms" | "next_ms" | "waited_ms" | "left_ms" => true,
                    "detail" => before_duration(real) == before_duration(written),
                    name if name.ends_with("_per_s") => true,
                    _ => is_like(real, written),
                })
        }
        (Value::Array(real), Value::Array(written)) => {
            real.len() == written.len()
                && real.iter().zip(written).all(|(real, written)| is_like(real, written))
        }
        (Value::Number(real), Value::Number(written)) if written.as_f64() >= Some(TIME_MIN) => {
            real.as_f64() >= Some(TIME_MIN)
        }
        (real, written) => real == written,
    }
}

/// A sentence up to the duration that it ends with, if it does.
fn before_duration(text: &Value) -> Option<&str> {
    let text = text.as_str()?;
    if !text.ends_with(" ago") {
        return Some(text);
    }
    text.split(|c: char| c.is_ascii_digit()).next()
}

#[test]
fn every_route_is_in_the_protocol() {
    let text = include_str!("../../../../docs/protocol.md");
    for route in ROUTES {
        let written = format!("`{} {}`", route.verb.as_str(), route.path);
        assert!(route.path.starts_with("/dashboard.") || text.contains(&written), "{written} is missing");
    }
}

#[tokio::test]
async fn every_type_of_event_is_in_the_protocol_with_its_fields() {
    let text = include_str!("../../../../docs/protocol.md");
    let server = start().await;
    let document = server.get("/openapi.json").await.json();
    let answer = &document["paths"]["/v1/events"]["get"]["responses"]["200"];
    let examples = answer["content"]["text/event-stream"]["examples"].as_object().unwrap();
    assert!(examples.keys().map(String::as_str).eq(BTreeSet::from_iter(Event::TYPES.iter().copied())));
    for (name, example) in examples {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("{name} is missing"));
        for field in example["value"].as_object().unwrap().keys() {
            let of_all = ["position", "at", "type"].contains(&field.as_str());
            assert!(of_all || row.contains(&format!("`{field}`")), "{field} is not in the row of {name}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn every_setting_and_every_metric_is_in_the_operating_page() {
    let text = include_str!("../../../../docs/operating.md");
    for name in ServeArgs::NAMES {
        let flag = format!("`--{}", name.replace('_', "-"));
        assert!(text.contains(&flag), "{flag} is missing");
    }
    let server = start().await;
    let metrics = server.get("/metrics").await;
    let told = metrics.text().lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    for (name, meaning) in told {
        assert!(text.contains(&format!("| `{name}` |")), "{name} is missing");
        assert!(text.contains(meaning), "{name} is not said to be: {meaning}");
    }
    server.stop().await;
}

#[test]
fn the_tokens_file_of_the_page_is_nobodys() {
    let text = include_str!("../../../../docs/operating.md");
    let (_, rest) = text.split_once("```toml\n[[token]]").unwrap();
    let tokens = Tokens::parse(&format!("[[token]]{}", rest.split("```").next().unwrap())).unwrap();
    for common in
        ["", "password", "secret", "token", "changeme", "admin", "orchestrix", "orx_", "123456", "test"]
    {
        assert!(tokens.find(&Secret::new(common.to_owned())).is_none(), "everybody knows {common:?}");
    }
}
