//! What a user may do, and that nothing is written without a fence whatever that is.

use orchestrix_core::Position;
use orchestrix_engine::redis::RedisPlace;
use orchestrix_engine::suite::{append_one, batch_after, read_all};
use orchestrix_engine::{Appended, Journal, Shared};

use crate::common::{DURABLE, FORGETFUL, PATIENT, Raw, redis, url_of_the_page};
use orchestrix_testbed::Server;

fn journal(url: &str) -> Box<dyn Journal> {
    RedisPlace::connect(url, PATIENT).unwrap().journal().unwrap()
}

/// How often a command was run outside of scripts and of transactions, or inside.
fn calls(server: &Server, command: &str) -> usize {
    let stats: String = Raw::to(server).ask("INFO commandstats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// A handle that goes on after another has written must not write, with whatever rights.
fn is_fenced(changed: &str) {
    let server = redis(&FORGETFUL);
    let url = url_of_the_page(&server, changed);
    let (mut stale, mut other) = (journal(&url), journal(&url));
    let mut all: Vec<_> = (0..3).map(|_| append_one(&mut *stale, 1, 10).0).collect();
    let end = stale.end();
    other.refresh().unwrap();
    all.push(append_one(&mut *other, 1, 10).0);
    // Its name would be above that of the other's batch, so that a server that is not asked to compare takes it.
    let forked = stale.append(&batch_after(end, 3, 10)).unwrap();
    assert_eq!(forked, Appended::Conflict(other.end()), "with {changed:?}");
    assert_eq!(read_all(&*journal(&url), Position(0), 1 << 20), all, "with {changed:?}");
}

#[test]
fn a_stale_handle_is_fenced_with_transactions() {
    is_fenced("");
}

#[test]
fn a_stale_handle_is_fenced_without_transactions() {
    for changed in ["-@transaction", "-multi", "-watch", "-exec", "-unwatch", "-discard", "-multi -exec"] {
        is_fenced(changed);
    }
}

#[test]
fn rights_withdrawn_meanwhile_leave_no_append_bare() {
    for changed in ["-@transaction", "-multi", "-watch", "-exec"] {
        let server = redis(&FORGETFUL);
        let url = url_of_the_page(&server, "");
        let (mut stale, mut other) = (journal(&url), journal(&url));
        let mut all: Vec<_> = (0..3).map(|_| append_one(&mut *stale, 1, 10).0).collect();
        Raw::to(&server).run(&format!("ACL SETUSER orchestrix {changed}"));
        all.extend((0..3).map(|_| append_one(&mut *stale, 1, 10).0));
        let end = stale.end();
        other.refresh().unwrap();
        all.push(append_one(&mut *other, 1, 10).0);
        let forked = stale.append(&batch_after(end, 3, 10)).unwrap();
        assert_eq!(forked, Appended::Conflict(other.end()), "{changed}");
        assert_eq!(read_all(&*journal(&url), Position(0), 1 << 20), all, "{changed}");
    }
}

/// So the test above would find a way that is no longer taken.
#[test]
fn a_handle_that_may_takes_the_short_way() {
    let server = redis(&DURABLE);
    let mut journal = journal(&url_of_the_page(&server, ""));
    (0..5).for_each(|_| drop(append_one(&mut *journal, 1, 10)));
    assert_eq!(calls(&server, "exec"), 4, "the first goes by a script");
}

#[test]
fn a_missing_right_to_fence_is_named() {
    let server = redis(&FORGETFUL);
    let every = [
        "eval",
        "evalsha",
        "hset",
        "hget",
        "hmget",
        "hdel",
        "hlen",
        "hexists",
        "hgetall",
        "xadd",
        "xtrim",
        "xrange",
        "xrevrange",
        "xread",
        "zadd",
        "zscore",
        "zrangebylex",
        "zrem",
        "incr",
        "sadd",
        "srem",
        "sismember",
        "smembers",
        "sscan",
        "exists",
        "unlink",
    ];
    for command in every {
        let url = url_of_the_page(&server, &format!("+@all -{command}"));
        let opened = RedisPlace::connect(&url, PATIENT).and_then(|place| place.journal().map(drop));
        let error = opened.expect_err(command);
        let (said, right) = (error.to_string(), format!("+{command}"));
        assert!(said.contains(&right) && said.contains("user") && !error.retryable, "{command}: {said}");
    }
    let url = url_of_the_page(&server, "+@all resetkeys ~other:*");
    let opened = RedisPlace::connect(&url, PATIENT).and_then(|place| place.journal().map(drop));
    let error = opened.expect_err("no key").to_string();
    assert!(error.contains("~orchestrix:*"), "{error}");
    assert_eq!(Raw::to(&server).ask::<Vec<String>>("KEYS *"), Vec::<String>::new(), "nothing is left");
}

#[test]
fn a_key_that_the_user_may_not_use_is_refused_with_its_pattern() {
    let server = redis(&FORGETFUL);
    let every = ["~orchestrix:default:*", "~orchestrix:register:*", "~orchestrix:coordinator:leader"];
    for missing in every {
        for read_only in ["", "%R"] {
            let there = every.iter().filter(|pattern| **pattern != missing);
            let there: Vec<String> = there.map(|pattern| (*pattern).to_owned()).collect();
            let partly = if read_only.is_empty() { String::new() } else { format!(" {read_only}{missing}") };
            let url = url_of_the_page(&server, &format!("+@all resetkeys {}{partly}", there.join(" ")));
            let error = RedisPlace::connect(&url, PATIENT).map(drop).expect_err(missing);
            let said = error.to_string();
            assert!(said.contains(missing) && !error.retryable, "{missing}{partly}: {said}");
            assert!(there.iter().all(|pattern| !said.contains(pattern.as_str())), "{missing}: {said}");
        }
    }
    let keys = Raw::to(&server).ask::<Vec<String>>("KEYS *");
    assert_eq!(keys, Vec::<String>::new(), "nothing is left");
    let url = url_of_the_page(&server, &format!("+@all resetkeys {}", every.join(" ")));
    let place = RedisPlace::connect(&url, PATIENT).unwrap();
    append_one(&mut *place.journal().unwrap(), 1, 10);
    assert!(
        place.register().read("leader").unwrap().is_none() && place.register().list("").unwrap().is_empty()
    );
}
