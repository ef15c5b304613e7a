//! A private SeaweedFS for all tests of a program, others for those that kill theirs, and ways to them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orchestrix_engine::s3::S3Place;
use orchestrix_engine::{Journal, Shared};
use orchestrix_ports::free_port;

use crate::certificates::certificates;
use crate::support::lasting::Lasting;
use crate::support::{Server, eventually};

/// Longer than any answer takes on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);
/// Short, for tests in which no answer comes.
pub(crate) const HASTY: Duration = Duration::from_millis(300);

pub(crate) const BUCKET: &str = "tests";
pub(crate) const KEY: &str = "testkey";
pub(crate) const SECRET: &str = "testsecret";

/// A program that `scripts/object-stores` installs.
pub(crate) fn program(name: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/object-stores/bin");
    let path = home.join(name);
    assert!(path.exists(), "{} is missing; `scripts/object-stores` installs it", path.display());
    path
}

/// The actions that the page for operators names, as this store calls them, for one bucket.
fn actions_of_the_page() -> String {
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
    let actions: Vec<_> = actions.iter().map(|action| format!("\"{action}:{BUCKET}\"")).collect();
    actions.join(",")
}

/// The ports of one SeaweedFS.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// Where it speaks S3.
    pub(crate) s3: u16,
    /// Where it speaks S3 in private.
    pub(crate) https: u16,
    /// Where it takes files from anybody.
    pub(crate) filer: u16,
    others: [u16; 6],
}

impl Ports {
    fn draw() -> Self {
        // What speaks gRPC is told; otherwise it is 10,000 above, which may not be a port.
        Self {
            s3: free_port(),
            https: free_port(),
            filer: free_port(),
            others: std::array::from_fn(|_| free_port()),
        }
    }

    fn command(&self, folder: &Path, s3: u16) -> Command {
        let actions = actions_of_the_page();
        let identities = format!(
            r#"{{"identities":[{{"name":"tests","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],
            "actions":[{actions}]}}]}}"#
        );
        std::fs::write(folder.join("identities"), identities).unwrap();
        if !folder.join("ca.crt").exists() {
            certificates(folder, "0");
        }
        let data = folder.join("data");
        std::fs::create_dir_all(&data).unwrap();
        let at = |name: &str| folder.join(name).display().to_string();
        let [master, master_grpc, volume, volume_grpc, filer_grpc, s3_grpc] = self.others;
        let mut command = Command::new(program("weed"));
        command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"]);
        // Alone, it waits for others as long as this when it starts again.
        command.args(["-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]);
        command.args(["-volume.preStopSeconds=1", "-filer", "-s3", "-s3.iam=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        for (flag, port) in [
            ("master.port", master),
            ("master.port.grpc", master_grpc),
            ("volume.port", volume),
            ("volume.port.grpc", volume_grpc),
            ("filer.port", self.filer),
            ("filer.port.grpc", filer_grpc),
            ("s3.port", s3),
            ("s3.port.https", self.https),
            ("s3.port.grpc", s3_grpc),
        ] {
            command.arg(format!("-{flag}={port}"));
        }
        command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", at("identities")));
        command.arg(format!("-s3.cert.file={}", at("server.crt")));
        command.arg(format!("-s3.key.file={}", at("server.key")));
        command.arg(format!("-filer.localSocket={}", at("f"))).arg(format!("-s3.localSocket={}", at("s")));
        command
    }

    fn make_bucket(&self) {
        eventually("there is a bucket", || {
            let made = ask(self.filer, "POST", &format!("/buckets/{BUCKET}/"), b"")?;
            (made.0 == 201).then_some(())
        });
    }
}

/// The store that all tests share.
pub(crate) fn shared_store() -> &'static Ports {
    &shared_with_folder().0
}

/// Where the certificates of the shared store are.
pub(crate) fn certificates_folder() -> &'static Path {
    shared_with_folder().1.folder()
}

fn shared_with_folder() -> &'static (Ports, Lasting) {
    static STORE: OnceLock<(Ports, Lasting)> = OnceLock::new();
    STORE.get_or_init(|| {
        let ports = Ports::draw();
        let lasting = Lasting::start(|folder| ports.command(folder, ports.s3), || is_ready(ports.s3));
        ports.make_bucket();
        (ports, lasting)
    })
}

/// A store for one test, which may kill it.
pub(crate) fn own_store() -> (Server, Ports) {
    let mut ports = Ports::draw();
    let drawn = ports.clone();
    let command = move |folder: &Path, port: u16| drawn.command(folder, port);
    let server = Server::start(tempfile::tempdir().unwrap(), command, is_ready);
    ports.s3 = server.port();
    ports.make_bucket();
    (server, ports)
}

/// Whether the store takes requests.
pub(crate) fn is_ready(port: u16) -> bool {
    ask(port, "GET", "/healthz", b"").is_some_and(|(status, _)| status == 200)
}

/// One request past the engine, to whom nothing needs to be signed.
pub(crate) fn ask(port: u16, method: &str, path: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n").ok()?;
    stream.write_all(body).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let status = std::str::from_utf8(&answer[..end]).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_off(end + 4)))
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
        let (status, body) = ask(self.filer, "GET", &self.path(name), b"").unwrap();
        (status == 200).then_some(body)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        let (status, body) = ask(self.filer, "PUT", &self.path(name), bytes).unwrap();
        assert_eq!(status, 201, "{}", String::from_utf8_lossy(&body));
    }

    pub(crate) fn delete(&self, name: &str) {
        let path = format!("{}?recursive=true", self.path(name));
        let (status, _) = ask(self.filer, "DELETE", &path, b"").unwrap();
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
