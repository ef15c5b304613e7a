//! Every subcommand against a real coordinator: what it prints, what it changes, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use orchestrix_testbed::eventually;
use serde_json::json;

use crate::support::{Coordinator, text};

fn code(output: &std::process::Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn a_submitted_task_is_printed_for_people_and_for_programs() {
    let coordinator = Coordinator::start();
    let people = coordinator.run(&["submit", "mail", r#"{"to":"ada"}"#]);
    assert_eq!(code(&people), Some(0));
    let line = text(&people.stdout);
    assert!(line.starts_with("task ") && line.ends_with(" WAITING\n"), "{line}");
    let programs = coordinator.json(&["submit", "mail", "1"]);
    assert_eq!(programs[0]["state"], "WAITING");
    assert!(programs[0]["id"].is_u64());
}

#[test]
fn every_option_of_submit_reaches_the_task() {
    let coordinator = Coordinator::start();
    let options = [
        ["--key", "bill-7"],
        ["--priority", "-5"],
        ["--delay", "1h"],
        ["--max-attempts", "7"],
        ["--timeout", "2m"],
        ["--ttl", "3h"],
        ["--backoff", "100ms"],
        ["--backoff-factor", "3"],
        ["--backoff-max", "5s"],
    ];
    let id = coordinator.submit(&[&["bill", "{}"][..], options.as_flattened()].concat());
    let task = coordinator.task(&id);
    assert_eq!((&task["key"], &task["priority"]), (&json!("bill-7"), &json!(-5)));
    assert_eq!((&task["max_attempts"], &task["timeout_ms"]), (&json!(7), &json!(120_000)));
    assert_eq!(task["backoff"], json!({"base_ms": 100, "factor": 3.0, "max_ms": 5_000}));
    let time = |name: &str| task[name].as_u64().unwrap();
    assert_eq!(time("not_before_at") - time("created_at"), 3_600_000);
    assert_eq!(time("ttl_at") - time("created_at"), 10_800_000);
}

#[test]
fn a_payload_can_come_from_stdin() {
    let coordinator = Coordinator::start();
    let mut command = coordinator.command(&["submit", "mail", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"[1, 2]\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let submitted: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(coordinator.task(&submitted["id"].to_string())["payload"], json!([1, 2]));
}

#[test]
fn a_payload_that_is_no_json_shows_how_to_quote() {
    let coordinator = Coordinator::prepared();
    let output = coordinator.run(&["submit", "mail", "hello"]);
    assert_eq!(code(&output), Some(2));
    assert!(text(&output.stderr).contains(r#"'"hello"'"#), "{}", text(&output.stderr));
}

#[test]
fn a_key_finds_its_task_and_refuses_another_request() {
    let coordinator = Coordinator::start();
    let first = coordinator.submit(&["mail", "1", "--key", "k"]);
    assert_eq!(coordinator.submit(&["mail", "1", "--key", "k"]), first);
    let other = coordinator.run(&["submit", "mail", "2", "--key", "k", "--json"]);
    assert_eq!(code(&other), Some(1));
    let problem: serde_json::Value = serde_json::from_slice(&other.stderr).unwrap();
    assert_eq!(problem["code"], "key_conflict");
}

#[test]
fn an_absent_coordinator_is_exit_3_with_advice() {
    let coordinator = Coordinator::prepared();
    for arguments in [&["queues"][..], &["submit", "mail", "1"], &["task", "1"], &["logs", "1", "-f"]] {
        let output = coordinator.run(arguments);
        assert_eq!(code(&output), Some(3), "{arguments:?}");
        let told = text(&output.stderr);
        assert!(told.contains("connection refused") && told.contains("orchestrix serve"), "{told}");
        assert!(told.lines().count() <= 2, "{told}");
    }
}

#[test]
fn a_task_that_is_not_there_ends_with_4() {
    let coordinator = Coordinator::start();
    for command in ["task", "logs", "explain", "cancel", "retry"] {
        let output = coordinator.run(&[command, "4242"]);
        assert_eq!(code(&output), Some(4), "{command}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("4242"));
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let coordinator = Coordinator::prepared();
    let wrong = [
        &["no-such-command"][..],
        &["submit", "no spaces", "1"],
        &["submit", "mail", "1", "--delay", "5"],
        &["task", "abc"],
        &["tasks", "--state", "DONE"],
        &["cancel"],
        &["retry"],
        &["work", "mail"],
        &["work", "mail", "--", "no-such-program-here"],
        &["queues", "--url", "nonsense"],
        &["queues", "--url", "http://a,,http://b"],
        &["queues", "--url", "http://a,http://a"],
        &["queues", "--token-file", "/no/such/file"],
    ];
    for arguments in wrong {
        assert_eq!(code(&coordinator.run(arguments)), Some(2), "{arguments:?}");
    }
}

#[test]
fn a_list_of_addresses_needs_only_one_that_answers() {
    let (gone, coordinator) = (Coordinator::prepared(), Coordinator::start());
    let id = coordinator.submit(&["mail", "1"]);
    let list = format!("{},{}", gone.url(), coordinator.url());
    let output = coordinator.run(&["task", &id, "--url", &list]);
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    let other = Coordinator::prepared();
    let output = coordinator.run(&["task", &id, "--url", &format!("{},{}", gone.url(), other.url())]);
    let told = text(&output.stderr);
    assert_eq!(code(&output), Some(3), "{told}");
    assert!(told.contains(&gone.url()) && told.contains(&other.url()) && told.contains("--url"), "{told}");
}

#[test]
fn tasks_are_listed_by_queue_and_state_with_a_limit_or_all() {
    let coordinator = Coordinator::start();
    let mail: Vec<String> = (0..5).map(|_| coordinator.submit(&["mail", "1"])).collect();
    let other = coordinator.submit(&["other", "1"]);
    coordinator.run(&["cancel", &mail[0]]);
    let ids = |arguments: &[&str]| -> Vec<String> {
        coordinator
            .json(&[&["tasks"], arguments].concat())
            .iter()
            .map(|task| task["id"].to_string())
            .collect()
    };
    assert_eq!(ids(&["--queue", "other"]), [other]);
    assert_eq!(ids(&["--queue", "mail", "--state", "waiting"]), mail[1..]);
    assert_eq!(ids(&["--limit", "2"]), mail[..2]);
    assert_eq!(ids(&["--all"]).len(), 6);
    let people = coordinator.run(&["tasks", "--limit", "2"]);
    assert_eq!(text(&people.stdout).lines().count(), 3);
    assert!(text(&people.stdout).contains("CANCELLED"));
    assert!(text(&people.stderr).contains("--all"), "{}", text(&people.stderr));
}

#[test]
fn one_task_is_shown_with_what_is_known_of_it() {
    let coordinator = Coordinator::start();
    let id = coordinator.submit(&["mail", r#"{"to":"ada"}"#, "--key", "first"]);
    let shown = text(&coordinator.run(&["task", &id]).stdout);
    for part in [&id, "mail", "WAITING", "first", r#"{"to":"ada"}"#, "0 of 3"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
}

#[test]
fn cancelling_names_every_task_and_goes_on_after_a_refusal() {
    let coordinator = Coordinator::start();
    let (first, second) = (coordinator.submit(&["mail", "1"]), coordinator.submit(&["mail", "1"]));
    let output = coordinator.run(&["cancel", &first, "4242", &second]);
    assert_eq!(code(&output), Some(4));
    assert_eq!(
        (coordinator.state(&first).as_str(), coordinator.state(&second).as_str()),
        ("CANCELLED", "CANCELLED")
    );
    assert_eq!(code(&coordinator.run(&["cancel", &first])), Some(0), "a repeat is harmless");
}

#[test]
fn a_waiting_task_is_explained() {
    let coordinator = Coordinator::start();
    let delayed = coordinator.submit(&["mail", "1", "--delay", "1h"]);
    assert_eq!(coordinator.json(&["explain", &delayed])[0]["code"], "delayed");
    let ready = coordinator.submit(&["mail", "1"]);
    assert_eq!(coordinator.json(&["explain", &ready])[0]["code"], "no_worker");
    let people = text(&coordinator.run(&["explain", &ready]).stdout);
    assert!(people.starts_with(&format!("task {ready} WAITING no_worker: ")), "{people}");
}

#[test]
fn queues_workers_and_nodes_are_listed() {
    let coordinator = Coordinator::start();
    assert!(text(&coordinator.run(&["queues"]).stderr).contains("orchestrix submit"));
    assert!(text(&coordinator.run(&["workers"]).stderr).contains("orchestrix work"));
    coordinator.submit(&["mail", "1"]);
    let queues = coordinator.json(&["queues"]);
    assert_eq!((&queues[0]["queue"], &queues[0]["ready"]), (&json!("mail"), &json!(1)));
    let table = text(&coordinator.run(&["queues"]).stdout);
    assert!(table.starts_with("QUEUE") && table.contains("\nmail "), "{table}");
    let nodes = coordinator.json(&["nodes"]);
    assert_eq!(nodes[0]["leader"], nodes[0]["nodes"][0]["name"]);
    assert!(text(&coordinator.run(&["nodes"]).stdout).contains("ACTIVE"));
}

#[test]
fn colours_are_for_terminals_or_for_who_asks_for_them() {
    let coordinator = Coordinator::start();
    coordinator.submit(&["mail", "1"]);
    assert!(!text(&coordinator.run(&["tasks"]).stdout).contains('\x1b'));
    assert!(text(&coordinator.run(&["tasks", "--color", "always"]).stdout).contains("\x1b[33mWAITING"));
}

#[test]
fn a_reader_who_goes_away_ends_the_command_quietly() {
    let coordinator = Coordinator::prepared();
    let mut child = coordinator
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn events_of_a_queue_are_printed_as_they_happen() {
    let coordinator = Coordinator::start();
    let first = coordinator.submit(&["mail", "1"]);
    let follow = |arguments: &[&str]| {
        let mut command = coordinator.command(&["events", "--after", "0", "--queue", "mail"]);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        (BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap), child)
    };
    let (mut people, mut one) = follow(&[]);
    let (mut programs, mut other) = follow(&["--json"]);
    let line = people.next().unwrap();
    assert!(line.contains("TaskCreated") && line.contains(r#"queue="mail""#), "{line}");
    let event: serde_json::Value = serde_json::from_str(&programs.next().unwrap()).unwrap();
    assert_eq!((event["type"].as_str(), event["task"].to_string()), (Some("TaskCreated"), first.clone()));
    coordinator.submit(&["sms", "1"]);
    coordinator.run(&["cancel", &first]);
    assert!(people.next().unwrap().contains("TaskCancelled"), "the task of the other queue is left out");
    let event: serde_json::Value = serde_json::from_str(&programs.next().unwrap()).unwrap();
    assert_eq!((event["type"].as_str(), event["queue"].as_str()), (Some("TaskCancelled"), Some("mail")));
    for child in [&mut one, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn completions_are_written_for_every_shell() {
    let coordinator = Coordinator::prepared();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = coordinator.run(&["completions", shell]);
        assert!(code(&output) == Some(0) && text(&output.stdout).contains("orchestrix"), "{shell}");
    }
}

#[test]
fn a_journal_in_use_is_verified_and_dumped() {
    let mut coordinator = Coordinator::start();
    let id = coordinator.submit(&["mail", r#"{"to":"ada"}"#]);
    let folder = coordinator.data().to_str().unwrap().to_owned();
    let report = coordinator.json(&["journal", "verify", &folder]).remove(0);
    assert_eq!((&report["sound"], &report["damage"]), (&json!(true), &json!(null)));
    assert!(report["holder"].is_string(), "{report}");
    coordinator.kill();
    let events = coordinator.json(&["journal", "dump", &folder]);
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(types, ["TermStarted", "FormatRaised", "TaskCreated"]);
    assert_eq!((events[2]["position"].to_string(), &events[2]["payload"]), (id, &json!({"to": "ada"})));
    let people = coordinator.run(&["journal", "dump", &folder]);
    assert_eq!(text(&people.stdout).lines().count(), 3);
    assert!(text(&coordinator.run(&["journal", "verify", &folder]).stdout).ends_with("sound\n"));
}

#[test]
fn a_damaged_journal_is_not_sound_and_ends_with_1() {
    let mut coordinator = Coordinator::start();
    coordinator.submit(&["mail", "0"]);
    coordinator.submit(&["mail", r#""a text that can be found in the file""#]);
    coordinator.submit(&["mail", "1"]);
    let data = coordinator.data().to_str().unwrap().to_owned();
    let all = coordinator.json(&["journal", "dump", &data]).len();
    coordinator.kill();
    let is_segment =
        |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "journal");
    let files = std::fs::read_dir(coordinator.data()).unwrap().map(|entry| entry.unwrap().path());
    let mut damaged = 0;
    for file in files.filter(is_segment) {
        let mut bytes = std::fs::read(&file).unwrap();
        let Some(place) = bytes.windows(6).position(|window| window == b"a text") else { continue };
        bytes[place] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        damaged += 1;
    }
    assert_eq!(damaged, 1);
    let output = coordinator.run(&["journal", "verify", coordinator.data().to_str().unwrap()]);
    assert_eq!(code(&output), Some(1));
    assert!(text(&output.stdout).contains("DAMAGED") && text(&output.stdout).contains(".journal at byte"));
    let dump = coordinator.run(&["journal", "dump", &data]);
    let (events, told) = (text(&dump.stdout).lines().count(), text(&dump.stderr));
    assert!(code(&dump) == Some(1) && events > 0 && events < all, "{events} of {all}");
    assert!(told.contains("DAMAGED") && told.contains("the events after position"), "{told}");
}

#[test]
fn damage_before_the_first_event_is_not_called_an_empty_folder() {
    // The records of the first batch come after the headers of segment and batch.
    const FIRST_RECORD: usize = 128 + 64;
    let mut coordinator = Coordinator::start();
    coordinator.submit(&["mail", "1"]);
    let data = coordinator.data().to_str().unwrap().to_owned();
    coordinator.kill();
    let files = std::fs::read_dir(coordinator.data()).unwrap().map(|entry| entry.unwrap().path());
    for file in files.filter(|path| path.extension().is_some_and(|extension| extension == "journal")) {
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[FIRST_RECORD] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    for command in ["verify", "dump"] {
        let output = coordinator.run(&["journal", command, &data]);
        let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(code(&output), Some(1), "{told}");
        assert!(told.contains("DAMAGED") && !told.contains("1 to 0"), "{told}");
        assert!(!told.contains("there is no journal"), "{told}");
    }
}

#[test]
fn a_new_token_is_json_and_a_wrong_date_gets_an_example() {
    let nobody = Coordinator::prepared();
    let made = nobody.json(&["token", "new", "--name", "me", "--role", "read"]).remove(0);
    assert!(made["token"].as_str().unwrap().starts_with("orx_"), "{made}");
    assert!(made["name"] == "me" && made["lines"].as_str().unwrap().starts_with("[[token]]"), "{made}");
    let wrong = nobody.run(&["token", "new", "--name", "me", "--role", "read", "--expires", "tomorrow"]);
    let told = text(&wrong.stderr);
    assert!(code(&wrong) == Some(2) && told.contains("2027-01-31T00:00:00Z"), "{told}");
}

#[test]
fn a_task_that_is_submitted_but_not_followed_is_named() {
    let mut coordinator = Coordinator::prepared();
    let made = coordinator.json(&["token", "new", "--name", "in", "--role", "submit"]).remove(0);
    let tokens = coordinator.data().join("test-tokens.toml");
    std::fs::write(&tokens, made["lines"].as_str().unwrap()).unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    coordinator.launch_with(&["--tokens", tokens.to_str().unwrap()]);
    let mut submit = coordinator.command(&["submit", "mail", "1", "--wait"]);
    let output = submit.env("ORCHESTRIX_TOKEN", made["token"].as_str().unwrap()).output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(code(&output), Some(1), "{told}");
    assert!(
        told.starts_with("orchestrix: task ") && told.contains(" was submitted, but not followed: "),
        "{told}"
    );
}

#[test]
fn answers_about_many_tasks_come_in_their_order() {
    let coordinator = Coordinator::start();
    let ids: Vec<String> = (0..8).map(|_| coordinator.submit(&["mail", "1"])).collect();
    let mut arguments = vec!["cancel", "--json"];
    arguments.extend(ids.iter().rev().map(String::as_str));
    let output = coordinator.run(&arguments);
    let answered: Vec<String> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].to_string())
        .collect();
    assert_eq!(answered, ids.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn a_folder_without_a_journal_is_named_as_such() {
    let coordinator = Coordinator::prepared();
    let folder = coordinator.data().to_str().unwrap();
    for command in ["verify", "dump"] {
        let output = coordinator.run(&["journal", command, folder]);
        assert_eq!(code(&output), Some(1));
        assert!(text(&output.stderr).contains("there is no journal in"), "{}", text(&output.stderr));
    }
}

#[test]
fn a_token_comes_from_a_file_or_the_environment() {
    let mut coordinator = Coordinator::prepared();
    let made = text(&coordinator.run(&["token", "new", "--name", "reader", "--role", "read"]).stdout);
    let token = made.split_whitespace().find(|word| word.starts_with("orx_")).unwrap();
    let known = made.split_once("[[token]]").unwrap().1;
    let file = |name: &str, content: &str| {
        let path = coordinator.data().with_extension(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (tokens, mine) = (file("tokens", &format!("[[token]]{known}")), file("token", token));
    coordinator.launch_with(&["--tokens", &tokens]);
    let without = coordinator.run(&["queues"]);
    assert_eq!(code(&without), Some(1));
    assert!(text(&without.stderr).contains("--token-file"), "{}", text(&without.stderr));
    assert_eq!(code(&coordinator.run(&["queues", "--token-file", &mine])), Some(0));
    let by_environment = coordinator.command(&["queues"]).env("ORCHESTRIX_TOKEN", token).output().unwrap();
    assert_eq!(code(&by_environment), Some(0));
    let refused = coordinator.run(&["submit", "mail", "1", "--token-file", &mine]);
    assert_eq!(code(&refused), Some(1), "{}", text(&refused.stderr));
    for path in [tokens, mine] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn help_has_examples_and_the_exit_codes() {
    let coordinator = Coordinator::prepared();
    assert!(text(&coordinator.run(&["--help"]).stdout).contains("EXIT CODES"));
    assert!(text(&coordinator.run(&["work", "--help"]).stdout).contains("EXAMPLES"));
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_listed_by_group() {
    let coordinator = Coordinator::start();
    let stop = tokio_util::sync::CancellationToken::new();
    let worker = |service, group| {
        let worker = orchestrix_client::ShardWorker::new(coordinator.url(), service, 4).group(group);
        tokio::spawn(worker.run(stop.clone()))
    };
    let workers = [worker("bills", "billing"), worker("letters", "mail")];
    let held = |listed: &[serde_json::Value]| listed.iter().all(|service| service["held"] == 4);
    let mut listed = eventually("both have their shards", || {
        Some(coordinator.json(&["shards"])).filter(|listed| listed.len() == 2 && held(listed))
    });
    listed.retain(|service| service["group"] == "billing");
    assert_eq!(listed[0]["service"], "bills");
    assert_eq!(coordinator.json(&["shards", "--group", "billing"]), listed);
    assert!(coordinator.json(&["shards", "--group", "nobodys"]).is_empty());
    let people = text(&coordinator.run(&["shards", "--group", "mail"]).stdout);
    assert!(people.contains("letters") && !people.contains("bills"), "{people}");
    stop.cancel();
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
}

/// A server that answers everything with this.
fn server_that_says(status: &'static str, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            // The whole request comes at once; what it says does not matter.
            let _ = stream.read(&mut head);
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn an_error_of_a_hostile_server_cannot_act_on_the_terminal() {
    let evil = "a\u{1b}]0;title\u{7}b\u{1b}[8mgone\u{202e}c\u{9b}2J\r\nd";
    let problem = json!({"code": "finished", "detail": evil, "status": 409, "title": "t"}).to_string();
    let refuses = server_that_says("409 Conflict", problem);
    let explains = server_that_says(
        "200 OK",
        json!({"id": 7, "state": "WAITING", "code": "x", "detail": evil}).to_string(),
    );
    for (url, arguments) in [
        (&refuses, &["explain", "7"][..]),
        (&refuses, &["explain", "7", "--json"]),
        (&refuses, &["cancel", "7"]),
        (&refuses, &["queues"]),
        (&explains, &["explain", "7"]),
        (&explains, &["explain", "7", "--json"]),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orchestrix"));
        let output = command.args(arguments).args(["--url", url]).output().unwrap();
        let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(shown.contains("title") && shown.contains("gone"), "{arguments:?}: {shown:?}");
        let acts = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(acts), "{arguments:?}: {shown:?}");
        assert_eq!(shown.lines().count(), 1, "{arguments:?}: {shown:?}");
    }
}

/// What the command line prints when a server says this.
fn shown(said: serde_json::Value, arguments: &[&str]) -> String {
    let url = server_that_says("200 OK", said.to_string());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orchestrix"));
    let output = command.args(arguments).args(["--url", &url, "--color", "never"]).output().unwrap();
    assert_eq!(code(&output), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The words of the line that has this one.
fn words_of<'a>(shown: &'a str, word: &str) -> Vec<&'a str> {
    let words = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.into_iter().find(|words| words.contains(&word)).unwrap_or_else(|| panic!("no {word}: {shown}"))
}

#[test]
fn a_worker_of_shards_is_shown_by_its_own_letter() {
    let shard = |shard: u32, worker: &str| json!({"shard": shard, "worker": worker, "state": "HELD"});
    let said = json!({
        "service": "orders", "group": "default", "shard_count": 3, "generation": 7,
        "workers": [
            {"worker": "ada", "shards": [0], "place": 2, "left_ms": 9_000},
            {"worker": "bob", "shards": [1, 2], "place": 0, "left_ms": 9_000, "listens": false},
        ],
        "shards": [shard(0, "ada"), shard(1, "bob"), shard(2, "bob")],
    });
    let shown = shown(said, &["shards", "orders"]);
    assert!(shown.contains("0  CAA\n"), "{shown}");
    assert_eq!(words_of(&shown, "ada")[..2], ["C", "ada"], "the first in the list is not A");
    assert_eq!(words_of(&shown, "bob")[..2], ["A", "bob"]);
    let marked: Vec<&str> = shown.lines().filter(|line| line.contains("does not listen")).collect();
    assert!(matches!(marked[..], [line] if line.contains("bob")), "{shown}");
}

#[test]
fn a_queue_is_shown_with_its_oldest_task_and_the_next() {
    let said = json!({"queues": [{
        "queue": "mail", "ready": 2, "delayed": 0, "leased": 0, "completed": 0, "failed": 0, "cancelled": 0,
        "submitted_per_s": 0.0, "completed_per_s": 0.0, "failed_per_s": 0.0, "polls": 0,
        "oldest_ms": 61_000, "oldest": 1, "next_ms": 1_000, "next": 2,
    }]});
    let shown = shown(said, &["queues"]);
    let names: Vec<&str> = shown.lines().next().unwrap().split_whitespace().collect();
    let words = words_of(&shown, "mail");
    let of = |name: &str| words[names.iter().position(|known| *known == name).unwrap()];
    assert_eq!((of("OLDEST"), of("NEXT")), ("1m01s", "1.0s"), "{shown}");
}

#[test]
fn the_view_of_a_leader_has_an_age() {
    let node = json!({
        "name": "a", "role": "leader", "state": "ACTIVE", "load": 0, "position": 9, "lag": 0, "seen_ms": 2_500,
    });
    let mut said = json!({"leader": "a", "term": 1, "epoch": 1, "position": 9, "leader_seen_ms": 1_500, "nodes": [node]});
    let listed = shown(said.clone(), &["nodes"]);
    assert!(listed.contains("2.5s ago"), "{listed}");
    let well = shown(said.clone(), &["nodes", "--why"]);
    assert_eq!(well, "healthy: a is the leader; last seen 1.5s ago\n");
    said["why"] = json!(["the last sign is \u{1b}[8mold\u{202e}"]);
    assert_eq!(shown(said, &["nodes", "--why"]), "the last sign is \u{fffd}[8mold\u{fffd}\n", "cleaned, too");
}
