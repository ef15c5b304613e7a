//! The password of a URL is never said: not by an error, not by what names the place, not by what is logged.
//!
//! Alone in its program: what is logged is collected for the whole of it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "it serves the other tests on Redis, too")]
#[path = "redis/common.rs"]
mod common;
#[expect(dead_code, unreachable_pub, reason = "it serves the tests of several engines")]
mod support;

use common::{FORGETFUL, HASTY, Raw, redis};
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::batch_after;
use orchestrix_engine::{Appended, Claim, Error, Set, Shared};
use support::logged::Logged;
use support::proxy::{Proxy, Wire};

fn refused(url: &str) -> Error {
    RedisPlace::connect(url, HASTY).map(|_| ()).unwrap_err()
}

const CANARY: &str = "c4n4ry p@ss/wörd";
const ENCODED: &str = "c4n4ry%20p%40ss%2Fw%C3%B6rd";

fn silent_about_secrets(text: &str) {
    for part in ["c4n4ry", CANARY, ENCODED, "p@ss", "p%40ss"] {
        assert!(!text.contains(part), "{text} has a part of the password");
    }
}

#[test]
fn the_password_is_never_said() {
    let logged = Logged::default();
    tracing::subscriber::set_global_default(logged.clone()).unwrap();
    say_everything();
    let logged = logged.text();
    assert!(logged.contains("write outcome unknown, retrying"), "{logged}");
    assert!(logged.contains("write a cell"), "{logged}");
    silent_about_secrets(&logged);
}

fn say_everything() {
    let server = redis(&FORGETFUL);
    let wire = Proxy::to(server.port());
    let mut raw = Raw::to(&server);
    let user: &[u8] = format!(">{CANARY}").leak().as_bytes();
    let _: redis::Value =
        raw.ask_with(&[b"ACL", b"SETUSER", b"careful", b"on", user, b"~*", b"&*", b"+@all"]);
    let address = format!("127.0.0.1:{}", wire.port());
    let url = format!("redis://careful:{ENCODED}@{address}");
    let shared = RedisPlace::connect(&url, HASTY).unwrap();
    silent_about_secrets(&format!("{shared:?} {} {:?}", shared.place(), shared.warnings()));
    assert!(shared.place().contains(&address), "{}", shared.place());

    // Two, so that each has a connection when the wire stalls.
    let other = RedisPlace::connect(&url, HASTY).unwrap();
    let (mut journal, register) = (shared.journal().unwrap(), other.register());
    let batch = batch_after(journal.end(), 1, 10);
    let claim = Claim::default();
    wire.set(Wire::Stalls);
    assert_eq!(journal.append(&batch).unwrap(), Appended::Unknown);
    assert_eq!(register.compare_and_set("leader", None, &claim).unwrap(), Set::Unknown);
    let mut errors = vec![journal.refresh().unwrap_err()];
    wire.set(Wire::Cut);
    errors.push(journal.refresh().unwrap_err());
    errors.push(refused(&url));
    wire.set(Wire::Good);
    // The user may do nothing any more; then it is gone.
    raw.run("ACL SETUSER careful -@all");
    errors.push(register.read("leader").unwrap_err());
    raw.run("ACL DELUSER careful");
    errors.push(register.read("leader").unwrap_err());
    let wrong = refused(&url);
    assert!(wrong.to_string().contains("did not accept the password") && !wrong.retryable, "{wrong}");
    errors.push(wrong);
    for url in [
        format!("redis://careful:{ENCODED}@{address}/name"),
        format!("redis://careful:{ENCODED}@host:port"),
        format!("redis://careful:{ENCODED}@"),
        format!("rediss://careful:{ENCODED}@{address}"),
        format!("redis://careful:{CANARY}@{address}"),
        format!("redis://{address}?protocol={ENCODED}"),
        format!("redis+unix:///no/such/socket?pass={ENCODED}"),
        format!("redis://careful:{ENCODED}@no-such-host.invalid"),
    ] {
        errors.push(refused(&url));
    }
    for error in &errors {
        silent_about_secrets(&format!("{error} {error:?}"));
    }
}
