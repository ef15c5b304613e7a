//! Messages of workers and their answers: a type, and data.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderValue;
use orchestrix_core::Name;
use orchestrix_core::wire::{Assignment, Problem};
use orchestrix_node::ShardAsk;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::http::{Fault, Route, SHARD_DEREGISTER, SHARD_HEARTBEAT, SHARD_REGISTER, plain};

/// What a worker says.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) service: Name,
    pub(super) worker: Name,
    pub(super) kind: Kind,
    /// The token that it shows, as HTTP has it.
    pub(super) token: Option<HeaderValue>,
    data: Value,
}

impl Message {
    /// The question that it is.
    pub(super) fn ask(&self) -> Result<ShardAsk, Fault> {
        let (service, worker) = (self.service.clone(), self.worker.clone());
        Ok(match self.kind {
            Kind::Register => ShardAsk::Register { service, worker, body: understand(&self.data)? },
            Kind::Heartbeat => ShardAsk::Heartbeat { service, worker, body: understand(&self.data)? },
            Kind::Deregister => ShardAsk::Deregister { service, worker, body: understand(&self.data)? },
        })
    }

    /// Where the same would be asked over HTTP, for the log.
    pub(super) fn path(&self) -> String {
        let (service, worker, kind) = (&self.service, &self.worker, self.kind.as_str());
        format!("/v1/services/{service}/workers/{worker}/{kind}")
    }
}

fn understand<'a, T: Deserialize<'a>>(data: &'a Value) -> Result<T, Fault> {
    serde_path_to_error::deserialize(data).map_err(|error| invalid(plain(error.path(), error.inner())))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Register,
    Heartbeat,
    Deregister,
}

/// The outer form of every message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    data: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
enum Answer<'a> {
    Assignment(&'a Assignment),
    Error { code: &'a str, message: &'a str },
}

impl Kind {
    const ALL: [Self; 3] = [Self::Register, Self::Heartbeat, Self::Deregister];

    /// The row of the table of routes that says who may say it.
    pub(super) fn route(self) -> &'static Route {
        match self {
            Self::Register => &SHARD_REGISTER,
            Self::Heartbeat => &SHARD_HEARTBEAT,
            Self::Deregister => &SHARD_DEREGISTER,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Heartbeat => "heartbeat",
            Self::Deregister => "deregister",
        }
    }
}

/// What one or two parts say; the first of two is empty, as some sockets send it. `session` speaks unless the worker
/// names another.
pub(super) fn parse(parts: &[Bytes], session: &Name) -> Result<Message, Fault> {
    let body = match parts {
        [body] => body,
        [delimiter, body] if delimiter.is_empty() => body,
        _ => {
            let parts = parts.len();
            return Err(invalid(format!(
                "a message is one part, or an empty part and another; this one has {parts}"
            )));
        }
    };
    let envelope: Envelope<'_> = serde_json::from_slice(body)
        .map_err(|error| invalid(format!("a message is JSON with `type` and `data`: {error}")))?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == envelope.kind).ok_or_else(|| {
        invalid(format!(
            "the type {:?} is not known; it is register, heartbeat or deregister",
            cut(&envelope.kind)
        ))
    })?;
    let mut data = envelope.data;
    let (service, worker) = (name(&mut data, "serviceName")?, name(&mut data, "workerId")?);
    let token = match data.remove("token") {
        Some(Value::String(token)) => Some(token),
        Some(_) => return Err(invalid("`token` must be a string".to_owned())),
        None => None,
    };
    if kind == Kind::Deregister {
        // The same fields as before are fine, and mean nothing here.
        data.retain(|name, _| name == "session" || name == "seq");
    }
    let named = data.get("session").is_some_and(|session| !session.is_null());
    if !named {
        data.insert("session".to_owned(), Value::String(session.as_str().to_owned()));
    }
    let token = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}"))).transpose();
    let token = token.map_err(|_| invalid("`token` has characters that no token has".to_owned()))?;
    Ok(Message { service, worker, kind, token, data: Value::Object(data) })
}

fn name(data: &mut Map<String, Value>, field: &str) -> Result<Name, Fault> {
    match data.remove(field) {
        Some(Value::String(text)) => {
            Name::new(&text).map_err(|why| invalid(format!("`{field}` is {:?}: {why}", cut(&text))))
        }
        Some(_) => Err(invalid(format!("`{field}` must be a string"))),
        None => Err(invalid(format!("`{field}` is missing in `data`"))),
    }
}

fn invalid(why: String) -> Fault {
    Fault::Invalid(why)
}

/// Enough of a text to know it again.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

pub(super) fn assignment(assignment: &Assignment) -> Bytes {
    written(&Answer::Assignment(assignment))
}

pub(super) fn error(problem: &Problem) -> Bytes {
    written(&Answer::Error { code: &problem.code, message: &problem.detail })
}

/// The answer to a worker whose name another process has taken, or whose lease has expired.
pub(super) fn fenced() -> Bytes {
    let message = "another process has this name, or the lease has expired: stop serving, and register when you serve nothing";
    written(&Answer::Error { code: "fenced", message })
}

fn written(answer: &Answer<'_>) -> Bytes {
    serde_json::to_vec(answer).expect("an answer is plain JSON").into()
}

#[cfg(test)]
mod tests {
    use orchestrix_core::Position;

    use super::*;
    use crate::http::of_shards;

    fn message(text: &str) -> Result<Message, String> {
        let session = Name::new("zmq-1").unwrap();
        parse(&[Bytes::copy_from_slice(text.as_bytes())], &session)
            .map_err(|fault| fault.problem("id").problem.detail)
    }

    #[test]
    fn the_messages_of_a_worker_are_questions() {
        let register = r#"{"type":"register","data":{"serviceName":"s","workerId":"w","maxShardCount":10}}"#;
        let heartbeat = r#"{"type":"heartbeat","data":{"serviceName":"s","workerId":"w","maxShardCount":10,
            "assignedShards":[1,2],"generation":7,"seq":3,"session":"mine","token":"secret"}}"#;
        let deregister = r#"{"type":"deregister","data":{"serviceName":"s","workerId":"w"}}"#;
        for (text, path, body) in [
            (register, "/v1/services/s/workers/w/register", r#"{"maxShardCount":10,"session":"zmq-1"}"#),
            (
                heartbeat,
                "/v1/services/s/workers/w/heartbeat",
                r#"{"assignedShards":[1,2],"generation":7,"maxShardCount":10,"seq":3,"session":"mine"}"#,
            ),
            (deregister, "/v1/services/s/workers/w/deregister", r#"{"session":"zmq-1"}"#),
        ] {
            let message = message(text).unwrap();
            let (asked, given) = of_shards(&message.ask().unwrap()).unwrap();
            assert_eq!((asked.as_str(), message.path().as_str()), (path, path));
            let given: Value = serde_json::from_slice(&given).unwrap();
            assert_eq!(given, serde_json::from_str::<Value>(body).unwrap());
            let token = message.token.as_ref().map(|token| token.to_str().unwrap());
            assert_eq!(token, (text == heartbeat).then_some("Bearer secret"));
        }
    }

    #[test]
    fn an_empty_part_may_come_first_and_nothing_else() {
        let session = Name::new("zmq-1").unwrap();
        let text = Bytes::from_static(br#"{"type":"deregister","data":{"serviceName":"s","workerId":"w"}}"#);
        assert!(parse(&[Bytes::new(), text.clone()], &session).is_ok());
        for parts in [vec![text.clone(), text.clone()], vec![Bytes::new(), Bytes::new(), text], vec![]] {
            assert!(parse(&parts, &session).is_err());
        }
    }

    #[test]
    fn a_bad_message_is_refused_with_its_field() {
        for (text, named) in [
            ("", "JSON"),
            ("[]", "JSON"),
            ("{\"type\":\"register\"}", "data"),
            ("{\"type\":\"register\",\"data\":{},\"more\":1}", "more"),
            (&format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), "JSON"),
            (r#"{"type":"steal","data":{}}"#, "steal"),
            (r#"{"type":"register","data":{"workerId":"w"}}"#, "serviceName"),
            (r#"{"type":"register","data":{"serviceName":"s","workerId":7}}"#, "workerId"),
            (r#"{"type":"register","data":{"serviceName":"s/../t","workerId":"w"}}"#, "serviceName"),
            (r#"{"type":"register","data":{"serviceName":"s","workerId":"w","token":1}}"#, "token"),
            (r#"{"type":"register","data":{"serviceName":"s","workerId":"w","token":"a\nb"}}"#, "token"),
        ] {
            let why = message(text).unwrap_err();
            assert!(why.contains(named), "{text:.80}: {why}");
        }
    }

    #[test]
    fn an_answer_has_the_names_that_workers_know() {
        let given = Assignment {
            assigned_shards: vec![4, 5],
            tokens: vec![Position(9), Position(11)],
            generation: Position(11),
            lease_ms: 15_000,
            seq: Some(3),
            fenced: false,
        };
        assert_eq!(
            assignment(&given),
            r#"{"type":"assignment","data":{"assignedShards":[4,5],"tokens":[9,11],"generation":11,"leaseMs":15000,"seq":3}}"#
        );
    }
}
