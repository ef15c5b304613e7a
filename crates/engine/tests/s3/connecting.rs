//! Coming in: wrong addresses, wrong keys, stores that will not do, and what is said about those that will.

use std::time::{Duration, Instant};

use orchestrix_engine::s3::S3Place;
use orchestrix_engine::{Error, Shared};
use orchestrix_testbed::{Server, free_port, rclone};

use crate::common::{BUCKET, HASTY, KEY, PATIENT, SECRET, journal, new_prefix, place, shared_store, url};
use crate::support::http::{Asked, Fate, Front};

fn refused(url: &str, timeout: Duration) -> Error {
    S3Place::connect(url, timeout).map(|_| ()).unwrap_err()
}

#[test]
fn a_wrong_url_is_refused_with_its_right_form() {
    for url in ["", "bucket", "http://bucket", "s3://", "s3://k:s@", "s3://k:s@buck et"] {
        let error = refused(url, HASTY);
        assert!(error.to_string().contains("s3://[key:secret@]bucket[/prefix]"), "{url}: {error}");
        assert!(!error.retryable);
    }
    let error = refused("s3://k:s@bucket?endpoint=127.0.0.1:1", HASTY).to_string();
    assert!(error.contains("endpoint must be http://host"), "{error}");
}

#[test]
fn an_unreachable_store_is_an_error_that_names_it() {
    let port = free_port();
    let error = refused(&url(port, "p"), PATIENT);
    assert!(error.retryable);
    let text = error.to_string();
    assert!(text.contains(&format!("s3://{BUCKET}/p at http://127.0.0.1:{port}")), "{text}");
    assert!(text.contains("Connection refused"), "{text}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let began = Instant::now();
    let error = refused(&url(silent.local_addr().unwrap().port(), "p"), HASTY).to_string();
    assert!(error.contains("no answer within 300ms"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn wrong_keys_are_refused_at_the_door() {
    let port = shared_store().s3;
    let end = format!("@{BUCKET}?endpoint=http://127.0.0.1:{port}");
    for (url, said) in [
        (format!("s3://{KEY}:wrong{end}"), "SignatureDoesNotMatch"),
        (format!("s3://wrong:{SECRET}{end}"), "InvalidAccessKeyId"),
    ] {
        let error = refused(&url, PATIENT);
        assert!(!error.retryable && error.to_string().contains(said), "{error}");
    }
}

#[test]
fn keys_may_be_parameters() {
    let (prefix, port) = (new_prefix(), shared_store().s3);
    let url = format!(
        "s3://{BUCKET}/{prefix}?endpoint=http%3A%2F%2F127.0.0.1%3A{port}&access_key={KEY}&secret_key={SECRET}"
    );
    let id = S3Place::connect(&url, PATIENT).unwrap().journal().unwrap().id();
    assert_eq!(journal(&prefix).id(), id);
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let server = Server::start(rclone(BUCKET, KEY, SECRET)).unwrap();
    let error = refused(&url(server.port(), "p"), PATIENT);
    let text = error.to_string();
    assert!(!error.retryable, "{text}");
    assert!(
        text.contains("this store cannot hold a journal: it ignores the condition If-None-Match: *"),
        "{text}"
    );
    assert!(text.contains(&format!("127.0.0.1:{}", server.port())), "{text}");
}

#[test]
fn a_store_that_keeps_only_some_conditions_is_refused() {
    let front = Front::to(shared_store().s3);
    let connect = || refused(&url(front.port(), &new_prefix()), PATIENT).to_string();
    let mut updates = 0;
    front.rule(move |asked| {
        updates += usize::from(asked.has("if-match"));
        if asked.has("if-match") && updates == 2 { Fate::Say(200) } else { Fate::Pass }
    });
    let text = connect();
    assert!(text.contains("it ignores the condition If-Match"), "{text}");
    front.rule(|asked| if asked.has("if-match") { Fate::Say(501) } else { Fate::Pass });
    let text = connect();
    assert!(text.contains("501 Said by the test"), "{text}");
    front.rule(|asked| if asked.has("if-match") { Fate::Say(412) } else { Fate::Pass });
    let text = connect();
    assert!(text.contains("refuses If-Match with the ETag that it gave"), "{text}");
    let mut updates = 0;
    front.rule(move |asked| {
        updates += usize::from(asked.has("if-match"));
        if asked.has("if-match") && updates == 1 { Fate::Say(200) } else { Fate::Pass }
    });
    let text = connect();
    assert!(text.contains("this store cannot hold a journal"), "{text}");
}

#[test]
fn what_cannot_be_checked_is_a_warning() {
    let warnings = place(shared_store().s3, &new_prefix(), PATIENT).warnings().join("\n");
    assert!(warnings.contains("cannot be asked whether every read sees the last write"), "{warnings}");
    assert!(!warnings.contains("encrypted"), "nobody listens inside a machine: {warnings}");
}

#[test]
fn nothing_is_left_of_trying() {
    let prefix = new_prefix();
    drop(place(shared_store().s3, &prefix, PATIENT));
    assert_eq!(crate::common::Raw::of(&prefix).list("probe"), Vec::<String>::new());
}

/// An action, and the requests that it allows.
type Denied = (&'static str, fn(&Asked) -> bool);

/// What this store has no action for is denied on the way.
#[test]
fn a_key_that_lacks_an_action_is_refused_at_the_start() {
    let front = Front::to(shared_store().s3);
    let denied: [Denied; 4] = [
        ("put", |asked| asked.method == "PUT"),
        ("get", |asked| asked.method == "GET" && !asked.path.contains("list-type")),
        ("delete", |asked| asked.method == "POST"),
        ("list", |asked| asked.path.contains("list-type")),
    ];
    for (action, is_denied) in denied {
        front.rule(move |asked| if is_denied(asked) { Fate::Say(403) } else { Fate::Pass });
        let place = S3Place::connect(&url(front.port(), &new_prefix()), PATIENT);
        let error = place.and_then(|place| place.journal().map(drop)).expect_err(action);
        assert!(!error.retryable && error.to_string().contains("docs/engines/s3.md"), "{action}: {error}");
    }
}
