//! Stores that speak S3: SeaweedFS, and rclone, which ignores conditions.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::failed;
use crate::{Error, Place, Recipe, Result, free_port, listens};

/// A folder to take the programs from instead of the one that `scripts/object-stores` fills.
const HOME: &str = "ORCHESTRIX_OBJECT_STORES";
/// A server that says nothing for so long is not ready.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A SeaweedFS before it is started: its ports, and who may do what in which bucket.
#[derive(Clone, Debug)]
pub struct SeaweedFs {
    /// Where it speaks S3.
    pub s3: u16,
    /// Where it takes files from anybody.
    pub filer: u16,
    bucket: String,
    identities: Vec<String>,
    others: [u16; 6],
}

impl SeaweedFs {
    /// One with a bucket, and these identities in its own notation.
    #[must_use]
    pub fn new(bucket: &str, identities: &[String]) -> Self {
        Self {
            s3: free_port(),
            filer: free_port(),
            bucket: bucket.to_owned(),
            identities: identities.to_vec(),
            others: std::array::from_fn(|_| free_port()),
        }
    }

    /// Somebody with a key who may do these things.
    #[must_use]
    pub fn identity(name: &str, key: &str, secret: &str, actions: &[&str]) -> String {
        let actions: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
        format!(
            r#"{{"name":"{name}","credentials":[{{"accessKey":"{key}","secretKey":"{secret}"}}],"actions":[{}]}}"#,
            actions.join(",")
        )
    }

    /// Those who show no key, and may do these things.
    #[must_use]
    pub fn anonymous(actions: &[&str]) -> String {
        let actions: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
        format!(r#"{{"name":"anonymous","actions":[{}]}}"#, actions.join(","))
    }

    /// Lets others in from the next start or SIGHUP on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_identities(folder: &Path, identities: &[String]) -> Result {
        let text = format!(r#"{{"identities":[{}]}}"#, identities.join(","));
        std::fs::write(folder.join("identities"), text).map_err(failed("write identities"))
    }

    /// How it is started. It is ready when there is its bucket.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        let (launched, asked, identities) = (self.clone(), self.clone(), self.identities.clone());
        let prepare = move |folder: &Path| {
            std::fs::create_dir_all(folder.join("data")).map_err(failed("make a folder"))?;
            Self::write_identities(folder, &identities)
        };
        let recipe = Recipe::new("SeaweedFS", move |place| launched.launch(place), move |_| asked.is_ready());
        recipe.on_port(self.s3).prepared(prepare)
    }

    fn launch(&self, place: &Place) -> Result<Command> {
        let at = |name: &str| place.folder.join(name).display().to_string();
        let mut command = Command::new(program("weed")?);
        command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
        command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"]);
        // Alone, it waits for others as long as this when it starts again.
        command.args(["-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]);
        command.args(["-volume.preStopSeconds=1", "-filer", "-s3", "-s3.iam=false"]);
        command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.args([format!("-dir={}", at("data")), format!("-s3.config={}", at("identities"))]);
        command.args([format!("-filer.localSocket={}", at("f")), format!("-s3.localSocket={}", at("s"))]);
        let [master, master_grpc, volume, volume_grpc, filer_grpc, s3_grpc] = self.others;
        // What speaks gRPC is told its port; otherwise it is 10,000 above, which may not be one.
        for (flag, port) in [
            ("master.port", master),
            ("master.port.grpc", master_grpc),
            ("volume.port", volume),
            ("volume.port.grpc", volume_grpc),
            ("filer.port", self.filer),
            ("filer.port.grpc", filer_grpc),
            ("s3.port", self.s3),
            ("s3.port.grpc", s3_grpc),
        ] {
            command.arg(format!("-{flag}={port}"));
        }
        Ok(command)
    }

    /// It says that it is healthy before it can keep anything; a bucket shows that it can.
    fn is_ready(&self) -> bool {
        let path = format!("/buckets/{}/", self.bucket);
        let status = |port, method, path| ask_http(port, method, path, b"").map(|(status, _)| status);
        matches!(status(self.filer, "POST", &path), Some(201 | 409))
            && status(self.s3, "GET", "/healthz") == Some(200)
    }
}

/// A store that ignores conditions, with a bucket and a key.
#[must_use]
pub fn rclone(bucket: &str, key: &str, secret: &str) -> Recipe {
    let (bucket, keys) = (bucket.to_owned(), format!("{key},{secret}"));
    let launch = move |place: &Place| {
        let root = place.folder.join("root");
        std::fs::create_dir_all(root.join(&bucket)).map_err(failed("make a folder"))?;
        let mut command = Command::new(program("rclone")?);
        command.args(["serve", "s3", "--auth-key", &keys, "--config", "/dev/null"]);
        command.args(["--addr", &place.address.to_string()]).arg(root);
        Ok(command)
    };
    Recipe::new("rclone", launch, |place| listens(place.address))
}

/// One plain request to a port of this machine: the status of the answer, and its body.
#[must_use]
pub fn ask_http(port: u16, method: &str, path: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    stream.set_read_timeout(Some(SILENCE_MAX)).ok()?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n").ok()?;
    stream.write_all(body).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let status = std::str::from_utf8(&answer[..end]).ok()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_off(end + 4)))
}

/// A program that `scripts/object-stores` installs.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/object-stores/bin");
    let path = std::env::var_os(HOME).map_or_else(installed, PathBuf::from).join(name);
    let missing =
        || Error::new(format!("{} is missing; `scripts/object-stores` installs it", path.display()));
    if path.exists() { Ok(path) } else { Err(missing()) }
}
