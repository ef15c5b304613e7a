//! A private SeaweedFS for all tests of a program, others for those that kill theirs, and ways to them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestrix_engine::s3::S3Place;
use orchestrix_engine::{Journal, Shared};
use orchestrix_testbed::{Lasting, Place, Recipe, SeaweedFs, Server, ask_http, certificates, free_port};

/// Longer than any answer takes on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);
/// Short, for tests in which no answer comes.
pub(crate) const HASTY: Duration = Duration::from_millis(300);

pub(crate) const BUCKET: &str = "tests";
pub(crate) const KEY: &str = "testkey";
pub(crate) const SECRET: &str = "testsecret";

/// The actions that the page for operators names, as this store calls them, for one bucket.
fn actions_of_the_page() -> Vec<String> {
    let page = include_str!("../../../../docs/engines/s3.md");
    let policy = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    let named = policy.expect("the page has the policy").split('"').filter(|word| word.starts_with("s3:"));
    let actions: BTreeSet<&str> = named
        .map(|action| match action {
            "s3:ListBucket" => "List",
            "s3:GetObject" => "Read",
            // Here these two are one.
            "s3:PutObject" | "s3:DeleteObject" => "Write",
            other => panic!("{other} is not known to the tests"),
        })
        .collect();
    assert_eq!(actions.len(), 3, "{actions:?}");
    actions.iter().map(|action| format!("{action}:{BUCKET}")).collect()
}

/// A SeaweedFS, and where it speaks S3 in private.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) s3: u16,
    pub(crate) https: u16,
    pub(crate) filer: u16,
}

/// One that lets the user of the page in.
fn store() -> (Store, Recipe) {
    let actions = actions_of_the_page();
    let actions: Vec<&str> = actions.iter().map(String::as_str).collect();
    let seaweedfs = SeaweedFs::new(BUCKET, &[SeaweedFs::identity("tests", KEY, SECRET, &actions)]);
    let https = free_port();
    let tls = move |place: &Place, command: &mut Command| {
        command.arg(format!("-s3.port.https={https}"));
        for (setting, file) in [("cert", "server.crt"), ("key", "server.key")] {
            command.arg(format!("-s3.{setting}.file={}", place.folder.join(file).display()));
        }
    };
    let recipe = seaweedfs.recipe().prepared(|folder| certificates(folder, "0")).with(tls);
    (Store { s3: seaweedfs.s3, https, filer: seaweedfs.filer }, recipe)
}

/// The store that all tests share.
pub(crate) fn shared_store() -> &'static Store {
    &shared_with_folder().0
}

/// Where the certificates of the shared store are.
pub(crate) fn certificates_folder() -> &'static Path {
    shared_with_folder().1.folder()
}

fn shared_with_folder() -> &'static (Store, Lasting) {
    static STORE: OnceLock<(Store, Lasting)> = OnceLock::new();
    STORE.get_or_init(|| {
        let (store, recipe) = store();
        (store, Lasting::start(&recipe).unwrap())
    })
}

/// A store for one test, which may kill it.
pub(crate) fn own_store() -> (Server, Store) {
    let (store, recipe) = store();
    (Server::start(recipe).unwrap(), store)
}

/// A prefix that no other test has.
pub(crate) fn new_prefix() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("place-{}", COUNT.fetch_add(1, SeqCst))
}

pub(crate) fn url(port: u16, prefix: &str) -> String {
    format!("s3://{KEY}:{SECRET}@{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port}")
}

pub(crate) fn place(port: u16, prefix: &str, timeout: Duration) -> S3Place {
    S3Place::connect(&url(port, prefix), timeout).unwrap()
}

pub(crate) fn shared(prefix: &str) -> Arc<dyn Shared> {
    Arc::new(place(shared_store().s3, prefix, PATIENT))
}

pub(crate) fn journal(prefix: &str) -> Box<dyn Journal> {
    shared(prefix).journal().unwrap()
}

/// Objects past the engine.
pub(crate) struct Raw {
    filer: u16,
    prefix: String,
}

impl Raw {
    pub(crate) fn of(prefix: &str) -> Self {
        Self { filer: shared_store().filer, prefix: prefix.to_owned() }
    }

    fn path(&self, name: &str) -> String {
        format!("/buckets/{BUCKET}/{}/{name}", self.prefix)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let (status, body) = ask_http(self.filer, "GET", &self.path(name), b"").unwrap();
        (status == 200).then_some(body)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let (status, body) = ask_http(self.filer, "PUT", &self.path(name), bytes).unwrap();
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
    }

    pub(crate) fn delete(&self, name: &str) {
        let path = format!("{}?recursive=true", self.path(name));
        let (status, _) = ask_http(self.filer, "DELETE", &path, b"").unwrap();
        assert_eq!(status, 204);
    }

    /// Flips a bit of an object.
    pub(crate) fn damage(&self, name: &str, byte: usize) {
        let mut bytes = self.get(name).unwrap();
        bytes[byte] ^= 1;
        self.put(name, &bytes);
    }

    /// The last parts of the names in a folder, in their order.
    pub(crate) fn list(&self, folder: &str) -> Vec<String> {
        let path = format!("{}/?limit=10000&pretty=y", self.path(folder));
        let mut stream = TcpStream::connect(("127.0.0.1", self.filer)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let full = answer.lines().filter_map(|line| line.trim().strip_prefix("\"FullPath\": \""));
        full.map(|path| path.trim_end_matches("\",").rsplit('/').next().unwrap().to_owned()).collect()
    }
}
