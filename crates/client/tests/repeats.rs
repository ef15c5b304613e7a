//! What is repeated and what is not: a coordinator that answers by a script, and counts what it is asked.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::time::{Duration, Instant};

use orchestrix_client::wire::{Complete, Fail, LeaseQueues};
use orchestrix_client::{Client, Error, Key, LeaseId, Name, TaskId, new_task};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What the coordinator does with one request.
#[derive(Clone, Copy)]
enum Answer {
    /// An answer with this status, these headers and this body.
    Say(u16, &'static str, &'static str),
    /// Reads the request and hangs up.
    HangUp,
}

const SUBMITTED: Answer = Answer::Say(201, "", r#"{"id":7,"state":"WAITING"}"#);
const UNKNOWN: Answer =
    Answer::Say(503, "", r#"{"code":"outcome_unknown","detail":"who knows","status":503,"title":"Unknown"}"#);
const OVERLOADED: Answer = Answer::Say(
    503,
    "retry-after: 1\r\n",
    r#"{"code":"overloaded","detail":"too much","status":503,"title":"Overloaded"}"#,
);
const STALE: Answer = Answer::Say(
    409,
    "",
    r#"{"code":"stale_lease","detail":"lease 9 of task 7 is not valid","status":409,"title":"No"}"#,
);

/// Starts a coordinator with a script; the handle gives the bodies that it was sent.
async fn scripted(script: Vec<Answer>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let mut bodies = Vec::new();
        for answer in script {
            let (socket, _) = listener.accept().await.unwrap();
            let mut socket = BufReader::new(socket);
            bodies.push(read_body(&mut socket).await);
            if let Answer::Say(status, headers, body) = answer {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
                );
                socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        }
        bodies
    });
    (Client::builder(&url).retries(4).build().unwrap(), serving)
}

async fn read_body(socket: &mut BufReader<tokio::net::TcpStream>) -> String {
    let mut length = 0;
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.unwrap();
    String::from_utf8(body).unwrap()
}

async fn asked(serving: JoinHandle<Vec<String>>) -> Vec<String> {
    tokio::time::timeout(Duration::from_secs(10), serving)
        .await
        .expect("the script is played to its end")
        .unwrap()
}

#[tokio::test]
async fn a_keyless_submit_of_unknown_outcome_is_not_repeated() {
    for unknown in [UNKNOWN, Answer::HangUp] {
        let (client, serving) = scripted(vec![unknown]).await;
        let error: Error = client.submit(&new_task("q", &1).unwrap()).await.unwrap_err();
        assert!(error.is_outcome_unknown() && !error.is_retryable(), "{error}");
        let bodies = asked(serving).await;
        assert!(!bodies[0].contains("key"), "no key was invented: {}", bodies[0]);
    }
}

#[tokio::test]
async fn a_submit_with_a_key_is_repeated_with_the_same_key() {
    let (client, serving) = scripted(vec![UNKNOWN, Answer::HangUp, SUBMITTED]).await;
    let mut task = new_task("q", &1).unwrap();
    task.key = Some(Key::new("mine").unwrap());
    assert_eq!(client.submit(&task).await.unwrap().id, TaskId(7));
    let bodies = asked(serving).await;
    assert!(bodies.iter().all(|body| *body == bodies[0] && body.contains(r#""key":"mine""#)), "{bodies:?}");
}

#[tokio::test]
async fn a_busy_coordinator_is_asked_again_after_retry_after() {
    let (client, serving) = scripted(vec![OVERLOADED, SUBMITTED]).await;
    let began = Instant::now();
    client.submit(&new_task("q", &1).unwrap()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(asked(serving).await.len(), 2);
}

#[tokio::test]
async fn a_lease_request_keeps_its_name_when_it_is_repeated() {
    let leases = Answer::Say(200, "", r#"{"leases":[],"waited_ms":0}"#);
    let (client, serving) = scripted(vec![Answer::HangUp, leases]).await;
    let name = |text| Name::new(text).unwrap();
    let request = LeaseQueues {
        queues: vec![name("q")],
        worker: name("w"),
        max: 1,
        lease_ms: 1_000,
        wait_ms: 0,
        request_id: None,
        capacity: None,
    };
    client.lease(&request).await.unwrap();
    let bodies = asked(serving).await;
    assert!(bodies[0].contains(r#""request_id":""#), "{}", bodies[0]);
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn a_completion_is_repeated_until_it_is_answered() {
    let done = Answer::Say(200, "", r#"{"id":7,"state":"COMPLETED"}"#);
    let (client, serving) = scripted(vec![Answer::HangUp, UNKNOWN, done]).await;
    let complete = Complete { lease_id: LeaseId(9), worker: None, result: None };
    client.complete(TaskId(7), &complete).await.unwrap();
    assert_eq!(asked(serving).await.len(), 3);
}

#[tokio::test]
async fn a_refusal_is_returned_at_once() {
    let (client, serving) = scripted(vec![STALE]).await;
    let fail = Fail { lease_id: LeaseId(9), worker: None, error: "e".to_owned(), retry: true };
    let error = client.fail(TaskId(7), &fail).await.unwrap_err();
    assert_eq!(error.code(), "stale_lease");
    assert!(error.to_string().contains("lease 9 of task 7"), "{error}");
    assert_eq!(asked(serving).await.len(), 1);
}

#[tokio::test]
async fn something_that_is_no_coordinator_is_named_as_such() {
    let (client, serving) = scripted(vec![Answer::Say(404, "", "<html>not here</html>")]).await;
    let error = client.queues().await.unwrap_err();
    assert_eq!(error.code(), "foreign");
    assert!(error.to_string().contains("is this the address of a coordinator?"), "{error}");
    asked(serving).await;
}
