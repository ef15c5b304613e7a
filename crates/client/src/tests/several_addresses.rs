//! Tests of a client with several addresses, some of which do not answer or fail.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use orchestrix_core::wire::{Complete, Fail, Heartbeat, LeaseQueues, LogAppend, LogStream, LogText, Release};
use orchestrix_core::{Key, LeaseId, Name, Position, TaskId};
use serde_json::{Value, json};

use crate::client::{Client, new_task};
use crate::error::Error;
use crate::feed::FeedEvent;
use crate::tests::fake::{Answer, Asked, Node, client_of, in_time};
use crate::wire::Submit;

/// An answer that fits whatever was asked.
fn well(asked: &Asked) -> Answer {
    let outcome = json!({"id": 7, "state": "WAITING"});
    let path = asked.path.split('?').next().unwrap();
    Answer::ok(match path.rsplit('/').next().unwrap() {
        "batch" => json!({"tasks": [outcome, outcome]}),
        "lease" => json!({"leases": [], "waited_ms": 0}),
        "heartbeat" if path.starts_with("/v1/workers") => {
            json!({"extended": [9], "lost": [], "cancel": [], "lease_ms": 1_000})
        }
        "heartbeat" => json!({"lease_ms": 1_000, "cancel_requested": false}),
        "logs" => json!({"next": 1, "dropped": 0}),
        "queues" => json!({"queues": []}),
        _ => outcome,
    })
}

fn busy(code: &'static str, retry_after: &'static str) -> impl Fn(&Asked) -> Answer {
    move |_| Answer::problem(503, code).header("retry-after", retry_after)
}

fn keyed() -> Submit {
    Submit { key: Some(Key::new("mine").unwrap()), ..keyless() }
}

fn keyless() -> Submit {
    new_task("q", &1).unwrap()
}

#[tokio::test]
async fn an_address_that_refuses_connections_is_left_for_good() {
    let (gone, alive) = (Node::gone(), Node::start(well));
    let client = client_of([&gone, &alive], 1);
    // Nothing was sent, so that also what must not happen twice is sent again.
    in_time(client.submit(&keyless())).await.unwrap();
    let second = Client::builder(client.url()).retries(0).build().unwrap();
    in_time(client.queues()).await.unwrap();
    assert_eq!(alive.paths(), ["/v1/tasks", "/v1/queues"]);
    assert_eq!(
        in_time(second.queues()).await.unwrap_err().code(),
        "unreachable",
        "another client finds out itself"
    );
}

#[tokio::test]
async fn a_node_without_a_leader_is_left_after_its_retry_after() {
    for code in ["no_leader", "overloaded"] {
        let (first, second) = (Node::start(busy(code, "0.3")), Node::start(well));
        let began = Instant::now();
        in_time(client_of([&first, &second], 1).submit(&keyless())).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(300), "{code}");
        assert_eq!((first.asked().len(), second.asked().len()), (1, 1), "{code}");
    }
}

#[tokio::test]
async fn no_wait_for_a_stopping_node_while_others_are_there() {
    for code in ["stopping", "behind"] {
        let (first, second) = (Node::start(busy(code, "30")), Node::start(well));
        let began = Instant::now();
        in_time(client_of([&first, &second], 1).submit(&keyless())).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{code}");
        let alone = client_of([&first], 0);
        let asked = in_time(alone.submit(&keyless())).await.unwrap_err().retry_after();
        assert_eq!(asked, Some(Duration::from_secs(30)), "{code}: who has no other waits");
    }
}

#[tokio::test]
async fn a_limit_of_the_caller_is_not_walked_round() {
    let second = Node::start(well);
    let first = Node::start(|_| Answer::problem(429, "rate_limited").header("retry-after", "0"));
    let error = in_time(client_of([&first, &second], 2).queues()).await.unwrap_err();
    assert_eq!((error.code(), first.asked().len(), second.asked().len()), ("rate_limited", 3, 0));
}

#[tokio::test]
async fn a_refusal_of_any_address_is_final() {
    let second = Node::start(well);
    let first = Node::start(|_| Answer::problem(404, "not_found"));
    let error = in_time(client_of([&first, &second], 5).task(TaskId(7))).await.unwrap_err();
    assert_eq!((error.to_string().as_str(), second.asked().len()), ("not_found", 0));
}

/// The ways in which a first try can end without anybody knowing what became of it.
const UNKNOWN: [fn(&Asked) -> Answer; 3] =
    [|_| Answer::HangUp, |_| Answer::problem(503, "outcome_unknown"), |_| Answer::problem(500, "internal")];

/// Makes one call of a kind; the kinds that may be sent again after an unknown outcome.
async fn repeatable(client: &Client, kind: usize) -> Option<Result<(), Error>> {
    let (task, lease_id, name) = (TaskId(7), LeaseId(9), |text| Name::new(text).unwrap());
    let request = LeaseQueues {
        queues: vec![name("q")],
        worker: name("w"),
        max: 1,
        lease_ms: 1_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    let lines = vec![LogText { text: "line".to_owned(), stream: LogStream::Stdout }];
    let (worker, error, retry) = (None, "e".to_owned(), true);
    Some(match kind {
        0 => client.submit(&keyed()).await.map(drop),
        1 => client.submit_batch(vec![keyed(), keyed()]).await.map(drop),
        2 => client.lease(&request).await.map(drop),
        3 => client.complete(task, &Complete { lease_id, worker, result: None }).await.map(drop),
        4 => client.fail(task, &Fail { lease_id, worker, error, retry }).await.map(drop),
        5 => client.release(task, &Release { lease_id, worker }).await.map(drop),
        6 => {
            let heartbeat = Heartbeat { lease_id, worker, progress: None, note: None };
            client.heartbeat(task, &heartbeat).await.map(drop)
        }
        7 => client.heartbeat_worker(&name("w"), vec![lease_id]).await.map(drop),
        8 => client.cancel(task).await.map(drop),
        9 => client
            .append_logs(task, &LogAppend { lease_id, lines, offset: Some(0), skipped: 0 })
            .await
            .map(drop),
        10 => client.queues().await.map(drop),
        _ => return None,
    })
}

#[tokio::test]
async fn a_harmless_call_is_repeated_at_the_next_address() {
    let mut kinds = 0;
    for unknown in UNKNOWN {
        for kind in 0.. {
            let (first, second) = (Node::start(unknown), Node::start(well));
            let Some(done) = in_time(repeatable(&client_of([&first, &second], 1), kind)).await else { break };
            done.unwrap();
            let (sent, again) = (first.asked(), second.asked());
            assert_eq!((sent.len(), again.len()), (1, 1), "{}", sent[0].path);
            assert_eq!((&sent[0].path, &sent[0].body), (&again[0].path, &again[0].body));
            kinds += 1;
        }
    }
    assert_eq!(kinds, 3 * 11);
}

#[tokio::test]
async fn a_call_that_could_happen_twice_is_not_repeated() {
    let lines = vec![LogText { text: "line".to_owned(), stream: LogStream::Stdout }];
    let append = LogAppend { lease_id: LeaseId(9), lines, offset: None, skipped: 0 };
    for unknown in UNKNOWN {
        for kind in 0..4 {
            let (first, second) = (Node::start(unknown), Node::start(well));
            let client = client_of([&first, &second], 5);
            let error = match kind {
                0 => in_time(client.submit(&keyless())).await.map(drop),
                1 => in_time(client.submit_batch(vec![keyed(), keyless()])).await.map(drop),
                2 => in_time(client.retry(TaskId(7))).await.map(drop),
                _ => in_time(client.append_logs(TaskId(7), &append)).await.map(drop),
            }
            .unwrap_err();
            assert!(error.is_outcome_unknown() && !error.is_retryable(), "{error}");
            assert_eq!((first.asked().len(), second.asked().len()), (1, 0), "{error}");
            in_time(client.queues()).await.unwrap();
            assert_eq!(second.paths(), ["/v1/queues"], "the next call goes elsewhere");
        }
    }
}

#[tokio::test]
async fn a_silent_node_is_left_with_an_unknown_outcome() {
    let (silent, alive) = (Node::start(|_| Answer::Silence), Node::start(well));
    let client = || {
        let addresses = [silent.url(), alive.url()];
        Client::builder_of(addresses).timeout(Duration::from_millis(200)).retries(1).build().unwrap()
    };
    let error = in_time(client().submit(&keyless())).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable(), alive.asked().len()), ("timed_out", false, 0));
    in_time(client().submit(&keyed())).await.unwrap();
    assert_eq!((silent.asked().len(), alive.asked().len()), (2, 1));
}

#[tokio::test]
async fn the_number_of_tries_is_one_for_all_addresses_together() {
    for (retries, tries) in [(2, [1, 1, 1]), (3, [2, 1, 1])] {
        let none = || Node::start(|_| Answer::problem(503, "no_leader"));
        let nodes = [none(), none(), none()];
        let error = in_time(client_of(&nodes, retries).submit(&keyless())).await.unwrap_err();
        assert_eq!(nodes.each_ref().map(|node| node.asked().len()), tries);
        let [a, b, c] = nodes.each_ref().map(Node::url);
        assert_eq!(
            error.to_string(),
            format!(
                "no_leader; try again in a moment; tried {a} (no_leader), {b} (no_leader), {c} (no_leader)"
            )
        );
    }
}

#[tokio::test]
async fn a_call_succeeds_with_just_enough_tries_and_not_one_less() {
    for (retries, succeeds) in [(2, true), (1, false)] {
        let nodes = [Node::gone(), Node::gone(), Node::start(well)];
        let answer = in_time(client_of(&nodes, retries).submit(&keyless())).await;
        assert_eq!(answer.is_ok(), succeeds, "{answer:?}");
        assert_eq!(nodes[2].asked().len(), usize::from(succeeds));
    }
}

#[tokio::test]
async fn an_unreachable_cluster_error_names_every_address() {
    let nodes = [Node::gone(), Node::gone()];
    let error = in_time(client_of(&nodes, 1).queues()).await.unwrap_err();
    let [a, b] = nodes.each_ref().map(Node::url);
    assert_eq!(
        error.to_string(),
        format!(
            "cannot reach {b}: connection refused; is the coordinator running? start it with `orchestrix serve`; \
             tried {a} (connection refused), {b} (connection refused)"
        )
    );
    assert!(error.is_retryable() && !error.is_outcome_unknown());
}

#[tokio::test]
async fn an_outcome_stays_unknown_without_another_address() {
    let nodes = [Node::start(|_| Answer::HangUp), Node::gone()];
    let error = in_time(client_of(&nodes, 1).submit(&keyed())).await.unwrap_err();
    assert_eq!(error.code(), "unreachable");
    assert!(error.is_outcome_unknown() && error.is_retryable());
    assert!(
        error.to_string().ends_with("an earlier try may have been carried out, and a repeat finds it"),
        "{error}"
    );
}

#[tokio::test]
async fn a_read_names_the_highest_position_that_any_answer_had() {
    let nodes = [7, 5, 9].map(|position: u64| {
        Node::start(move |asked| match asked.path.as_str() {
            "/v1/tasks" => well(asked).header("orchestrix-position", position),
            _ => well(asked),
        })
    });
    let client = client_of(&nodes, 3);
    in_time(client.queues()).await.unwrap();
    for (node, highest) in nodes.iter().zip(["7", "7", "9"]) {
        in_time(client.submit(&keyed())).await.unwrap();
        in_time(client.queues()).await.unwrap();
        let named: Vec<_> = node.asked().iter().map(|asked| asked.position()).collect();
        assert_eq!(
            named[named.len() - 2..],
            [None, Some(highest.to_owned())],
            "commands are decided by who leads"
        );
        node.stop().await;
    }
    assert_eq!(nodes[0].asked()[0].position(), None, "nothing was seen yet");
}

#[tokio::test]
async fn nodes_that_are_behind_are_left_and_reported_once() {
    // Both began a new journal, so that nobody will reach what this client has seen.
    let answer = |asked: &Asked| match (asked.path.as_str(), asked.position()) {
        ("/v1/tasks", _) => well(asked).header("orchestrix-position", 1_000),
        (_, Some(_)) => Answer::problem(503, "behind").header("orchestrix-position", 3),
        (_, None) => well(asked),
    };
    let nodes = [Node::start(answer), Node::start(answer)];
    let client = client_of(&nodes, 1);
    in_time(client.submit(&keyed())).await.unwrap();
    assert_eq!(in_time(client.queues()).await.unwrap_err().code(), "behind");
    assert_eq!(nodes.each_ref().map(|node| node.asked().len()), [2, 1]);
    in_time(client.queues()).await.unwrap();
}

#[tokio::test]
async fn how_nodes_feel_is_asked_whatever_they_know() {
    let node = Node::start(|asked| match asked.path.as_str() {
        "/health" => Answer::Say(503, json!({"status": "unhealthy"})),
        _ => well(asked).header("orchestrix-position", 7),
    });
    let client = client_of([&node], 0);
    in_time(client.queues()).await.unwrap();
    drop(in_time(client.health()).await);
    drop(in_time(client.cluster()).await);
    let asked: Vec<_> = node.asked().iter().map(|asked| (asked.path.clone(), asked.position())).collect();
    assert_eq!(asked[1..], [("/health".to_owned(), None), ("/v1/cluster".to_owned(), None)]);
}

#[tokio::test]
async fn events_resume_at_another_address_after_the_last_seen() {
    let first = Node::start(|_| {
        Answer::Stream("orchestrix-position: 40", "id: 41\ndata: {\"position\":41,\"at\":7}\n\n")
    });
    let second = Node::start(|_| {
        Answer::Stream("orchestrix-position: 43", "id: 42\ndata: {\"position\":42,\"at\":7}\n\n")
    });
    let mut feed = client_of([&first, &second], 3).events(None);
    for expected in [41, 42] {
        let event = in_time(feed.next()).await.unwrap();
        assert!(
            matches!(event, FeedEvent::Event { position: Position(p), .. } if p == expected),
            "{event:?}"
        );
    }
    let asked = &second.asked()[0];
    assert_eq!((asked.header("last-event-id"), asked.position().as_deref()), (Some("41"), Some("41")));
    assert_eq!(first.asked().len(), 1);
}

#[tokio::test]
async fn only_a_stream_that_lived_may_break_without_end() {
    let quiet = || Answer::Stream("x: y", ": still here\n\n");
    let breaks = Mutex::new(0);
    let nodes = [
        Node::start(move |_| quiet()),
        Node::start(move |_| {
            let mut breaks = breaks.lock().unwrap();
            *breaks += 1;
            if *breaks <= 3 {
                quiet()
            } else {
                Answer::Stream("x: y", "id: 42\ndata: {\"position\":42,\"at\":7}\n\n")
            }
        }),
    ];
    in_time(client_of(&nodes, 1).events(None).next()).await.unwrap();
    assert_eq!(nodes.each_ref().map(|node| node.asked().len()), [4, 4]);
    let empty = [(), ()].map(|()| Node::start(|_| Answer::Stream("x: y", "")));
    let error = in_time(client_of(&empty, 1).events(None).next()).await.unwrap_err();
    assert!(empty.iter().all(|node| error.to_string().contains(&node.url())), "{error}");
}

#[tokio::test]
async fn lines_resume_at_another_address_after_the_last_seen() {
    let first = Node::start(|_| {
        Answer::Stream(
            "x: y",
            "data: {\"n\":0,\"attempt\":1,\"at\":1,\"stream\":\"stdout\",\"text\":\"a\"}\n\n",
        )
    });
    let rest = json!({"n": 1, "attempt": 1, "at": 2, "stream": "stdout", "text": "b"});
    let second = Node::start(move |asked| match asked.path.as_str() {
        "/v1/tasks/7" => Answer::ok(running_task()),
        "/v1/tasks/7/logs?offset=1&limit=1" => {
            Answer::ok(json!({"lines": [rest], "next_offset": 2, "dropped": 0}))
        }
        "/v1/tasks/7/logs?offset=1&follow=true" => Answer::Stream(
            "x: y",
            "data: {\"n\":1,\"attempt\":1,\"at\":2,\"stream\":\"stdout\",\"text\":\"b\"}\n\nevent: end\ndata: {}\n\n",
        ),
        other => panic!("nobody should ask for {other}"),
    });
    let mut feed = client_of([&first, &second], 3).follow_logs(TaskId(7), None, 0);
    let mut lines = Vec::new();
    while let Some(line) = in_time(feed.next()).await.unwrap() {
        lines.push(line.text);
    }
    assert_eq!(lines, ["a", "b"]);
    assert_eq!(first.paths(), ["/v1/tasks/7/logs?offset=0&follow=true"]);
}

fn running_task() -> Value {
    json!({
        "id": 7, "queue": "q", "state": "LEASED", "attempt": 1, "round": 1, "payload": null, "priority": 0, "attempts": [],
        "max_attempts": 3, "created_at": 1, "backoff": {"base_ms": 1, "factor": 2, "max_ms": 1}
    })
}

#[test]
fn a_client_is_made_of_a_list_in_either_form() {
    let [a, b] = ["http://a:1", "http://b:2"];
    let listed = Client::new("http://a:1, http://b:2/").unwrap();
    let given = Client::builder_of([a, b]).build().unwrap();
    assert_eq!((listed.addresses(), listed.url()), (given.addresses(), "http://a:1,http://b:2"));
    assert!(Client::builder_of(Vec::<String>::new()).build().is_err());
}

/// A node that has no leader for the first so many calls.
fn leaderless_for(calls: usize, then: fn(&Asked) -> Answer) -> Node {
    let count = Mutex::new(0);
    Node::start(move |asked| {
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count <= calls {
            Answer::problem(503, "no_leader").header("retry-after", "0")
        } else {
            then(asked)
        }
    })
}

fn patient<'a>(nodes: impl IntoIterator<Item = &'a Node>, patience: Duration) -> Client {
    let builder = Client::builder_of(nodes.into_iter().map(Node::url)).retries(1);
    builder.wait_for_leader(patience).build().unwrap()
}

#[tokio::test]
async fn a_call_waits_for_a_leader_beyond_its_retries() {
    let (gone, node) = (Node::gone(), leaderless_for(6, well));
    // No leader means that nothing was done, so that also what must not happen twice is sent again.
    in_time(patient([&gone, &node], Duration::from_secs(45)).submit(&keyless())).await.unwrap();
    assert_eq!(node.asked().len(), 7);
    let never = Node::start(|_| Answer::problem(503, "no_leader").header("retry-after", "0"));
    let error = in_time(patient([&never], Duration::from_millis(300)).submit(&keyless())).await.unwrap_err();
    assert_eq!(error.code(), "no_leader");
    assert!(never.asked().len() > 2, "it went on for its time");
}

#[tokio::test]
async fn no_call_waits_for_a_leader_at_dead_addresses() {
    let nodes = [Node::gone(), Node::gone()];
    let began = Instant::now();
    let error = in_time(patient(&nodes, Duration::from_secs(45)).submit(&keyless())).await.unwrap_err();
    assert_eq!(error.code(), "unreachable");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_missing_leader_is_named_before_a_dead_address() {
    let none = || Node::start(|_| Answer::problem(503, "no_leader").header("retry-after", "0"));
    for nodes in [[none(), Node::gone()], [Node::gone(), none()]] {
        let error = in_time(client_of(&nodes, 1).submit(&keyless())).await.unwrap_err();
        let told = error.to_string();
        assert!(error.code() == "no_leader" && told.starts_with("no_leader; "), "{told}");
        assert!(nodes.iter().all(|node| told.contains(&node.url())), "{told}");
    }
}

#[tokio::test]
async fn lines_are_followed_for_as_long_as_it_takes_to_elect() {
    const LINE: &str = "data: {\"n\":0,\"attempt\":1,\"at\":9,\"stream\":\"stdout\",\"text\":\"hello\"}\n\n";
    let node = leaderless_for(6, |_| Answer::Stream("x: y", LINE));
    let mut feed = client_of([&node], 1).follow_logs(TaskId(7), None, 0);
    assert_eq!(in_time(feed.next()).await.unwrap().unwrap().text, "hello");
}

#[tokio::test]
async fn the_owner_of_a_client_hears_that_it_waits_for_a_leader() {
    let (node, heard) = (leaderless_for(2, well), std::sync::Arc::new(Mutex::new(0)));
    let builder = Client::builder(&node.url()).observe_leader_waits({
        let heard = std::sync::Arc::clone(&heard);
        move || *heard.lock().unwrap() += 1
    });
    in_time(builder.build().unwrap().queues()).await.unwrap();
    assert_eq!(*heard.lock().unwrap(), 2);
}
