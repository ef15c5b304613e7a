//! Bodies of requests: read within limits, then understood as JSON, with errors that name field and place.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http_body_util::BodyExt;
use orchestrix_core::is_deeper;
use orchestrix_core::limits::JSON_DEPTH_MAX;
use orchestrix_core::wire::Object;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::http::App;
use crate::http::access::Client;
use crate::http::connection::RequestBody;
use crate::http::error::Fault;
use crate::http::incoming::{Incoming, Room, SHORT_BODY_BYTES_MAX};
use crate::http::json_error;

/// Levels of a request around the JSON of a caller: a batch, its list, the item.
const ENVELOPE_LEVELS: usize = 3;

/// How long a refused caller may send on, so that the refusal is not lost with a reset connection.
const SKIP_TIMEOUT: Duration = Duration::from_secs(1);

/// A body that is here, with the room that it takes if it is long.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) _room: Option<Room>,
}

/// Reads a body of bounded size in bounded time. A long one is read when there is room for it.
pub(crate) async fn read(
    headers: &HeaderMap,
    mut body: RequestBody,
    app: &App,
    client: &Client,
) -> Result<Received, Fault> {
    check_media_type(headers)?;
    check_encoding(headers)?;
    let max = app.limits.body_bytes;
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(too_large(&mut body, max, TimeLeft(app.limits.body_timeout)).await);
    }
    let (mut gathered, mut time) = (Gathered::default(), TimeLeft(app.limits.body_timeout));
    let is_announced_long = announced.is_some_and(|length| length > SHORT_BODY_BYTES_MAX);
    let short_max = SHORT_BODY_BYTES_MAX.min(max);
    if !is_announced_long && time.within(gathered.gather(&mut body, short_max)).await? {
        return Ok(Received { bytes: gathered.bytes(), _room: None });
    }
    // Most bodies are short: what long ones need is put elsewhere, as a future is moved with all that it may hold. The length
    // of one in chunks is known when all of it is here.
    Box::pin(read_long(gathered, body, time, app, client, announced.unwrap_or(max))).await
}

async fn read_long(
    mut gathered: Gathered,
    mut body: RequestBody,
    mut time: TimeLeft,
    app: &App,
    client: &Client,
    expected: usize,
) -> Result<Received, Fault> {
    let max = app.limits.body_bytes;
    let room = match Incoming::room(&app.incoming, client.name(), expected).await {
        Ok(room) => room,
        Err(fault) => {
            let _ = tokio::time::timeout(SKIP_TIMEOUT, skip(&mut body, max)).await;
            return Err(fault);
        }
    };
    if !time.within(gathered.gather(&mut body, max)).await? {
        return Err(too_large(&mut body, max, time).await);
    }
    Ok(Received { bytes: gathered.bytes(), _room: Some(room) })
}

/// The refusal of a body that is too large, when some of the rest was taken. One that sends slowly hears another.
async fn too_large(body: &mut RequestBody, max: usize, mut time: TimeLeft) -> Fault {
    let skipped = time.within(async {
        skip(body, max).await;
        Ok(())
    });
    skipped.await.err().unwrap_or(Fault::BodyTooLarge { max })
}

/// What is left of the time that a body may take. All its parts share it; a wait for room has a time of its own.
struct TimeLeft(Duration);

impl TimeLeft {
    /// Ends what takes longer than a body may.
    async fn within<T>(&mut self, reading: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let mut reading = pin!(reading);
        // Most bodies come with their headers, and need no clock.
        if let Some(read) = reading.as_mut().now_or_never() {
            return read;
        }
        let begun = Instant::now();
        let read = Box::pin(tokio::time::timeout(self.0, reading)).await;
        self.0 = self.0.saturating_sub(begun.elapsed());
        read.unwrap_or(Err(Fault::Timeout))
    }
}

/// What is there of a body. One that comes in one piece is not copied.
#[derive(Default)]
struct Gathered {
    first: Bytes,
    all: Option<BytesMut>,
}

impl Gathered {
    fn len(&self) -> usize {
        self.all.as_ref().map_or(self.first.len(), BytesMut::len)
    }

    /// Reads until the end, or until there are more bytes than `max`. Answers whether it is the end.
    async fn gather(&mut self, body: &mut RequestBody, max: usize) -> Result<bool, Fault> {
        while self.len() <= max {
            let more = next(body).await.transpose();
            let more = more.map_err(|error| Fault::Invalid(format!("the body cannot be read: {error}")))?;
            match more {
                None => return Ok(true),
                Some(more) if self.len() == 0 => self.first = more,
                Some(more) => {
                    let first = &self.first;
                    self.all.get_or_insert_with(|| BytesMut::from(&first[..])).extend_from_slice(&more);
                }
            }
        }
        Ok(false)
    }

    fn bytes(self) -> Bytes {
        self.all.map_or(self.first, BytesMut::freeze)
    }
}

/// Takes some of what a caller still sends, so that the refusal is not lost with a reset connection.
async fn skip(body: &mut RequestBody, max: usize) {
    let mut skipped = 0;
    while skipped <= max
        && let Some(Ok(more)) = next(body).await
    {
        skipped += more.len();
    }
}

async fn next(body: &mut RequestBody) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match body.frame().await? {
            Ok(frame) => {
                if let Ok(bytes) = frame.into_data() {
                    return Some(Ok(bytes));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Types that are taken for JSON: what says so, and what simple tools put there without being asked. Forms of
/// foreign pages use those too; the origin distinguishes them.
const SIMPLE_TOOLS: [&str; 2] = ["application/x-www-form-urlencoded", "text/plain"];

/// A missing type is taken for JSON; one that says something else is a mistake.
fn check_media_type(headers: &HeaderMap) -> Result<(), Fault> {
    let Some(given) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let given = given.to_str().unwrap_or("not readable");
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if SIMPLE_TOOLS.contains(&essence.as_str())
        || essence == "application/json"
        || essence.starts_with("application/") && essence.ends_with("+json")
    {
        return Ok(());
    }
    let hint = "send the body with `content-type: application/json`";
    Err(Fault::MediaType(format!("the content type is {given:?}; {hint}")))
}

/// Bodies are taken as they are; one that says that it is packed would only be misunderstood.
fn check_encoding(headers: &HeaderMap) -> Result<(), Fault> {
    for given in headers.get_all(CONTENT_ENCODING) {
        let given = given.to_str().unwrap_or("not readable");
        if given.split(',').any(|coding| !coding.trim().eq_ignore_ascii_case("identity")) {
            return Err(Fault::MediaType(format!(
                "the content encoding is {given:?}; send the body as it is, without one"
            )));
        }
    }
    Ok(())
}

/// Understands a body. How deep it is nested is looked at only where it is refused: our types know what they nest, and
/// payloads and results are looked at one by one when they are taken.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    if body.is_empty() {
        return Err(Fault::Invalid("the body is empty; JSON is expected".to_owned()));
    }
    let understood = serde_json::from_slice(body).map(|Object(understood)| understood);
    understood.map_err(|error| Fault::Invalid(explain::<T>(body, &error)))
}

/// Understands a body that has nothing to say: none, or an empty object.
pub(crate) fn parse_nothing(body: &[u8]) -> Result<(), Fault> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    if body.is_empty() {
        return Ok(());
    }
    parse::<Nothing>(body).map(|Nothing {}| ())
}

/// Reads once more, this time keeping track of where it is.
fn explain<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> String {
    if let Err(error) = std::str::from_utf8(body) {
        return format!("the body is not UTF-8 from byte {} on", error.valid_up_to());
    }
    if is_deeper(body, JSON_DEPTH_MAX + ENVELOPE_LEVELS) {
        return format!("the body is nested deeper than {JSON_DEPTH_MAX} levels");
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, Object<T>>(&mut reader) {
        Err(located) => json_error::plain(located.path(), located.inner()),
        Ok(_) => format!("this is not JSON: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use orchestrix_core::wire::{CompleteBatch, Submit, SubmitBatch};

    use super::*;

    fn complaint<T: DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
        match parse::<T>(body.as_bytes()) {
            Err(Fault::Invalid(detail)) => detail,
            other => panic!("{body} gave {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_parts_of_a_body_share_its_time() {
        let mut time = TimeLeft(Duration::from_secs(10));
        let takes = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(())
        };
        assert!(time.within(takes(6)).await.is_ok());
        assert!(time.within(takes(3)).await.is_ok());
        assert!(matches!(time.within(takes(2)).await, Err(Fault::Timeout)));
    }

    #[test]
    fn a_complaint_names_the_field() {
        let unknown = complaint::<Submit>(r#"{"queue":"q","payload":1,"prioritty":1}"#);
        assert!(unknown.starts_with("prioritty: unknown field; expected one of `queue`"), "{unknown}");
        let wrong = complaint::<Submit>(r#"{"queue":"q","payload":1,"delay_ms":"soon"}"#);
        assert_eq!(wrong, "delay_ms: must be a whole number, 0 or more, not \"soon\"");
        let deep =
            complaint::<SubmitBatch>(r#"{"tasks":[{"queue":"q","payload":1},{"queue":"a b","payload":1}]}"#);
        assert!(deep.starts_with("tasks[1].queue: a name has only letters"), "{deep}");
        let trailing = complaint::<Submit>(r#"{"queue":"q","payload":1} x"#);
        assert_eq!(trailing, "this is not JSON: trailing characters at line 1 column 27");
    }

    #[test]
    fn a_list_of_fields_is_no_object() {
        let list = complaint::<Submit>(r#"["q",1]"#);
        assert!(list.contains("must be an object, not a list"), "{list}");
        let batch = complaint::<SubmitBatch>(r#"{"tasks":[{"queue":"q","payload":1},["q",1]]}"#);
        assert!(batch.starts_with("tasks[1]: must be an object"), "{batch}");
        let backoff = complaint::<Submit>(r#"{"queue":"q","payload":1,"backoff":[1,2,3]}"#);
        assert!(backoff.starts_with("backoff: must be an object"), "{backoff}");
        let items = complaint::<CompleteBatch>(r#"{"items":[[1,2]]}"#);
        assert!(items.starts_with("items[0]: must be an object"), "{items}");
    }

    #[test]
    fn a_payload_may_be_nested_to_its_limit_in_every_request() {
        let payload = "[".repeat(JSON_DEPTH_MAX) + &"]".repeat(JSON_DEPTH_MAX);
        assert!(
            parse::<SubmitBatch>(format!(r#"{{"tasks":[{{"queue":"q","payload":{payload}}}]}}"#).as_bytes())
                .is_ok()
        );
        let deeper = complaint::<Submit>(&format!(r#"{{"queue":"q","payload":[{payload}]}}"#));
        assert!(deeper.contains("nested deeper than 64 levels"), "{deeper}");
    }

    #[test]
    fn nesting_without_end_is_refused_wherever_it_stands() {
        let bomb = "[".repeat(1_000_000);
        let closed = bomb.clone() + &"]".repeat(1_000_000);
        for nested in [&bomb, &closed, &bomb.replace('[', "{\"a\":")] {
            let submit = [
                nested.clone(),
                format!(r#"{{"queue":{nested},"payload":1}}"#),
                format!(r#"{{"queue":"q","payload":1,"backoff":{nested}}}"#),
                format!(r#"{{"queue":"q","payload":1,"other":{nested}}}"#),
                format!(r#"{{"queue":"q","payload":{nested}}}"#),
            ];
            let complaints = submit.iter().map(|body| complaint::<Submit>(body));
            let result = format!(r#"{{"items":[{{"task_id":1,"lease_id":2,"result":{nested}}}]}}"#);
            for complaint in complaints.chain([
                complaint::<SubmitBatch>(nested),
                complaint::<SubmitBatch>(&format!(r#"{{"tasks":{nested}}}"#)),
                complaint::<CompleteBatch>(&result),
            ]) {
                assert!(complaint.contains("nested deeper than 64 levels"), "{complaint}");
            }
        }
    }

    #[test]
    fn nothing_is_an_empty_body_or_an_empty_object() {
        assert!(parse_nothing(b"").is_ok());
        assert!(parse_nothing(b"{}").is_ok());
        assert!(parse_nothing(b"{\"force\":true}").is_err());
        assert!(parse_nothing(b"null").is_err());
    }
}
