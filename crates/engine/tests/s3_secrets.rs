//! The credentials of a URL are never said: not by an error, not by what names the place, not by what is logged.
//!
//! Alone in its program: what is logged is collected for the whole of it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "it serves the other tests on S3, too")]
#[path = "s3/common.rs"]
mod common;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use std::time::Duration;

use common::{BUCKET, HASTY, KEY, PATIENT, SECRET, shared_store};
use orchestrix_core::{LeaseId, TaskId};
use orchestrix_engine::s3::S3Place;
use orchestrix_engine::suite::batch_after;
use orchestrix_engine::{Appended, Claim, Error, LogPlace, Set, Shared};
use support::http::{Fate, Front};
use support::logged::Logged;
use support::proxy::{Proxy, Wire};

fn refused(url: &str, timeout: Duration) -> Error {
    S3Place::connect(url, timeout).map(|_| ()).unwrap_err()
}

const CANARY: &str = "c4n4ry s/cret+wörd";
const ENCODED: &str = "c4n4ry%20s%2Fcret+w%C3%B6rd";

fn silent_about_secrets(text: &str) {
    for part in ["c4n4ry", CANARY, ENCODED, "s/cret", "s%2Fcret", KEY, SECRET] {
        assert!(!text.contains(part), "{text} has a part of the credentials");
    }
}

#[test]
fn credentials_are_never_said() {
    let logged = Logged::default();
    tracing::subscriber::set_global_default(logged.clone()).unwrap();
    say_everything();
    let logged = logged.text();
    assert!(logged.contains("write outcome unknown, retrying"), "{logged}");
    assert!(logged.contains("write a cell"), "{logged}");
    silent_about_secrets(&logged);
}

fn say_everything() {
    let store = shared_store().s3;
    let (wire, front) = (Proxy::to(store), Front::to(store));
    let url = |port: u16| format!("s3://{KEY}:{SECRET}@{BUCKET}/p?endpoint=http://127.0.0.1:{port}");
    let mut errors = Vec::new();

    let shared = S3Place::connect(&url(front.port()), PATIENT).unwrap();
    silent_about_secrets(&format!("{shared:?} {} {:?}", shared.place(), shared.warnings()));
    assert!(shared.place().contains(&format!("127.0.0.1:{}", front.port())), "{}", shared.place());
    let (mut journal, register, logs) = (shared.journal().unwrap(), shared.register(), shared.logs());
    let batch = batch_after(journal.end(), 1, 10);
    front.rule(|_| Fate::Say(500));
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(register.compare_and_set("leader", None, &Claim::default()).unwrap(), Set::Unknown);
    errors.push(logs.append(LogPlace::first(TaskId(1), LeaseId(1)), b"a line").unwrap_err());
    for status in [301, 400, 403, 404, 409, 412, 503] {
        front.rule(move |_| Fate::Say(status));
        errors.extend(journal.refresh().err());
        errors.extend(register.read("leader").err());
        errors.push(refused(&url(front.port()), PATIENT));
    }

    let hasty = S3Place::connect(&url(wire.port()), PATIENT).unwrap();
    wire.set(Wire::Cut);
    errors.push(hasty.register().read("leader").unwrap_err());
    errors.push(refused(&url(wire.port()), HASTY));
    wire.set(Wire::Stalls);
    errors.push(refused(&url(wire.port()), HASTY));

    // Wrong credentials, which the store explains at length.
    let at = format!("{BUCKET}/p?endpoint=http://127.0.0.1:{store}");
    for url in [
        format!("s3://{KEY}:{ENCODED}@{at}"),
        format!("s3://{ENCODED}:{SECRET}@{at}"),
        format!("s3://{at}&access_key={KEY}&secret_key={ENCODED}"),
        format!("s3://{at}&access_key={KEY}&secret_key={SECRET}&session_token={ENCODED}"),
        format!("s3://{KEY}:{CANARY}@{at}"),
        format!("s3://{ENCODED}@{at}"),
        format!("s3://{KEY}:{ENCODED}@"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}/{ENCODED}?"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}?password={ENCODED}"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}?endpoint=http://{KEY}:{ENCODED}@127.0.0.1"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}?region={ENCODED}"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}?endpoint=http://no-such-host.invalid"),
        format!("s3://{KEY}:{ENCODED}@{BUCKET}?endpoint=https://127.0.0.1:{store}"),
    ] {
        match S3Place::connect(&url, PATIENT) {
            // Some stores do not look at a token that they did not give.
            Ok(place) => silent_about_secrets(&format!("{place:?}")),
            Err(error) => errors.push(error),
        }
    }
    assert!(errors.len() > 25, "{}", errors.len());
    for error in &errors {
        silent_about_secrets(&format!("{error} {error:?}"));
    }
}
