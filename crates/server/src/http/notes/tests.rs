//! Routes that were added by the recipe do all that routes do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use hex::encode;
use orchestrix_node::{Options as NodeOptions, Storage, open};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::http::routes::Verb;
use crate::http::{Options, ROUTES, Serving, openapi_document, start};
use crate::tokens::Tokens;

const SECRET: &str = "orx_0123456789abcdef0123456789abcdef";

fn secret(role: &str) -> String {
    format!("{SECRET}{role}")
}

async fn serving() -> Serving {
    let roles = ["work", "admin", "metrics"];
    let tokens: String = roles
        .iter()
        .map(|role| {
            let digest = encode(Sha256::digest(secret(role)));
            format!("[[token]]\nname = \"{role}\"\nroles = [\"{role}\"]\nsha256 = \"{digest}\"\n")
        })
        .collect();
    let (node, _) = open(&Storage::Memory, NodeOptions::default()).unwrap();
    let options = Options { tokens: Some(Tokens::parse(&tokens).unwrap()), ..Options::default() };
    start(([127, 0, 0, 1], 0).into(), node, options).unwrap()
}

/// Head and body of an answer, as they came.
async fn ask(address: SocketAddr, verb: &str, path: &str, role: &str, body: &str) -> String {
    let request = format!(
        "{verb} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        secret(role),
        body.len()
    );
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    answer.await.unwrap()
}

fn status(answer: &str) -> &str {
    &answer[9..12]
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_with_patch_and_delete_are_served_and_guarded() {
    let serving = serving().await;
    let at = serving.address;
    let (line, note) = ("/v1/notes/a/lines/7", "/v1/notes/a");
    let changed = ask(at, "PATCH", line, "work", r#"{"text":"new"}"#).await;
    assert!(status(&changed) == "200" && changed.ends_with(r#"{"queues":[]}"#), "{changed}");
    let removed = ask(at, "DELETE", note, "admin", "").await;
    assert!(status(&removed) == "200" && removed.ends_with(r#"{"deleted":"a"}"#), "{removed}");

    assert_eq!(status(&ask(at, "DELETE", note, "work", "").await), "403");
    assert_eq!(status(&ask(at, "PATCH", line, "metrics", "{}").await), "403");
    assert_eq!(status(&ask(at, "DELETE", note, "nobody", "").await), "401");
    assert_eq!(status(&ask(at, "PATCH", line, "work", r#"{"text":1}"#).await), "400");
    assert_eq!(status(&ask(at, "DELETE", note, "admin", r#"{"all":true}"#).await), "400");
    assert_eq!(status(&ask(at, "DELETE", "/v1/notes/a%20b", "admin", "").await), "400");
    for (path, allow) in [(line, "PATCH"), (note, "DELETE")] {
        let other = ask(at, "GET", path, "admin", "").await;
        assert!(status(&other) == "405" && other.contains(&format!("\r\nallow: {allow}\r\n")), "{other}");
    }

    let metrics = ask(at, "GET", "/metrics", "metrics", "").await;
    for labels in [
        r#"method="PATCH",route="/v1/notes/{note}/lines/{line}",status="200""#,
        r#"method="DELETE",route="/v1/notes/{note}",status="200""#,
    ] {
        assert!(metrics.contains(&format!("orchestrix_http_requests_total{{{labels}}} 1")), "{metrics}");
    }
    serving.stop().await.unwrap();
}

#[test]
fn rows_with_patch_and_delete_are_in_the_document() {
    let document: Value = serde_json::from_str(&openapi_document()).unwrap();
    let change = &document["paths"]["/v1/notes/{note}/lines/{line}"]["patch"];
    assert_eq!(change["operationId"], "ChangeNote");
    let body = &change["requestBody"]["content"]["application/json"];
    assert_eq!(body["schema"]["$ref"], "#/components/schemas/NoteChange");
    let named = |operation: &Value| -> Vec<String> {
        let parameters = operation["parameters"].as_array().unwrap().iter();
        parameters.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(named(change), ["note", "line"]);
    let delete = &document["paths"]["/v1/notes/{note}"]["delete"];
    assert_eq!((named(delete), &delete["requestBody"]), (vec!["note".to_owned()], &Value::Null));
    assert!(delete["description"].as_str().unwrap().contains("role `admin`"), "{delete}");
}

/// Lines of the sources of this crate with a word, but for the files of notes.
fn lines_with(word: &str, folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("http/notes") {
            lines_with(word, &path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("http/notes.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| line.contains(word));
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }
}

#[test]
fn a_route_is_a_name_and_a_row() {
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for word in ["DeleteNote", "DELETE_NOTE"] {
        lines_with(word, &sources, &mut found);
    }
    assert_eq!(found.len(), 2, "a variant of `Endpoint` and a row: {found:#?}");
    let rows = ROUTES.iter().filter(|row| [Verb::Patch, Verb::Delete].contains(&row.verb));
    assert_eq!(rows.count(), 2);
}
