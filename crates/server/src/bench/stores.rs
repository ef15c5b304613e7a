//! The servers that engines stand on: private, each in a folder of its own, on free ports, gone with their handle.
//!
//! **Invariant:** each server syncs what it acknowledges, except SeaweedFS, which cannot.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::http;
use super::mysql::MySql;
use super::postgres::Postgres;
use super::process::{Server, ask, first_line, free_address};
use super::redis;

const POSTGRES_HOMES: &str = "/usr/lib/postgresql";
pub(super) const DATABASE: &str = "orchestrix";
pub(super) const BUCKET: &str = "bench";
const KEY: &str = "benchkey";
const SECRET: &str = "benchsecret";

/// The kinds of servers that engines stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(super) enum Kind {
    Redis,
    MariaDb,
    Postgres,
    SeaweedFs,
}

/// A running one.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) kind: Kind,
    server: Server,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Redis, Self::MariaDb, Self::Postgres, Self::SeaweedFs];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::MariaDb => "MariaDB",
            Self::Postgres => "PostgreSQL",
            Self::SeaweedFs => "SeaweedFS",
        }
    }

    /// What is appended to the server when nobody coordinates.
    pub(super) fn raw(self) -> &'static str {
        match self {
            Self::Redis => "`XADD`",
            Self::MariaDb | Self::Postgres => "`INSERT`",
            Self::SeaweedFs => "`PUT`",
        }
    }

    /// # Errors
    /// When it is not installed.
    pub(super) fn version(self) -> Result<String> {
        let line = match self {
            Self::Redis => return redis::version(),
            Self::MariaDb => first_line(Command::new("mariadbd").arg("--version"))?,
            Self::Postgres => first_line(Command::new(postgres_program("postgres")?).arg("--version"))?,
            Self::SeaweedFs => first_line(Command::new("weed").arg("version"))?,
        };
        Ok(number_in(&line).with_context(|| format!("{} says {line:?}", self.label()))?.to_owned())
    }

    /// The user that it runs as when root starts it: two of them refuse to be root.
    fn user(self) -> Option<&'static str> {
        let as_root = rustix::process::geteuid().is_root();
        match self {
            Self::Redis | Self::SeaweedFs => None,
            Self::MariaDb => as_root.then_some("mysql"),
            Self::Postgres => as_root.then_some("postgres"),
        }
    }

    /// Makes what the server begins with.
    fn prepare(self, folder: &Path) -> Result<()> {
        let mut command = match self {
            Self::Redis | Self::SeaweedFs => return Ok(()),
            Self::MariaDb => {
                let mut install = mariadb(folder, "mariadb-install-db");
                install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
                install
            }
            Self::Postgres => {
                let mut init = self.postgres(folder, "initdb")?;
                init.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
                init
            }
        };
        if let Some(user) = self.user() {
            let owned = Command::new("chown").arg(user).arg(folder).status().context("cannot run chown")?;
            ensure!(owned.success(), "cannot give {} to {user}", folder.display());
        }
        let made = command.current_dir("/").output().with_context(|| self.missing())?;
        let said = String::from_utf8_lossy(&made.stderr);
        ensure!(made.status.success(), "cannot prepare {}: {said}", self.label());
        Ok(())
    }

    fn command(self, folder: &Path, address: SocketAddr) -> Result<Command> {
        let port = address.port();
        Ok(match self {
            Self::Redis => bail!("Redis has a start of its own"),
            Self::MariaDb => {
                let mut server = mariadb(folder, "mariadbd");
                server.args([
                    &format!("--port={port}"),
                    &format!("--socket={}", folder.join("socket").display()),
                    &format!("--pid-file={}", folder.join("pid").display()),
                    "--bind-address=127.0.0.1",
                    "--skip-log-bin",
                    "--innodb-buffer-pool-size=128M",
                    "--innodb-log-file-size=64M",
                    "--innodb-flush-log-at-trx-commit=1",
                    "--max-allowed-packet=80M",
                ]);
                server
            }
            Self::Postgres => {
                let mut server = self.postgres(folder, "postgres")?;
                server.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(folder);
                server
            }
            Self::SeaweedFs => seaweed(folder, port)?,
        })
    }

    fn postgres(self, folder: &Path, program: &str) -> Result<Command> {
        let program = postgres_program(program)?;
        let mut command = match self.user() {
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg("-D").arg(folder.join("data"));
        Ok(command)
    }

    fn missing(self) -> String {
        format!("cannot start {}; `make bench` installs what is missing", self.label())
    }
}

impl Store {
    /// Starts one in an empty folder and waits until it takes requests.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub(super) fn start(kind: Kind, folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        // Those who are not root have to get through to their folder.
        if let Some(parent) = folder.parent().filter(|_| kind.user().is_some()) {
            fs::set_permissions(parent, fs::Permissions::from_mode(0o711))?;
        }
        kind.prepare(folder)?;
        let server = match kind {
            Kind::Redis => redis::spawn(folder)?,
            Kind::MariaDb | Kind::Postgres | Kind::SeaweedFs => {
                let address = free_address();
                let mut command = kind.command(folder, address)?;
                command.current_dir("/");
                Server::spawn(kind.label(), command, address, folder)?
            }
        };
        server.wait_until_open()?;
        let store = Self { kind, server };
        store.server.wait_for(|| Ok(store.greet().ok()))?;
        Ok(store)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Where nodes find it.
    pub(super) fn url(&self) -> String {
        let address = self.server.address;
        match self.kind {
            Kind::Redis => format!("redis://{address}"),
            Kind::MariaDb => format!("mysql://root@{address}/{DATABASE}"),
            Kind::Postgres => format!("postgres://postgres@{address}/postgres"),
            Kind::SeaweedFs => format!("s3://{KEY}:{SECRET}@{BUCKET}/ours?endpoint=http://{address}"),
        }
    }

    /// Makes the place that nodes and raw clients write to; fails while the server is not ready.
    fn greet(&self) -> Result<()> {
        let address = self.server.address;
        match self.kind {
            Kind::Redis => {
                let reply = ask(address, b"PING\r\n")?;
                ensure!(reply == "+PONG", "PING was answered {reply}");
                Ok(())
            }
            Kind::MariaDb => {
                MySql::connect(address)?.run(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))
            }
            Kind::Postgres => Postgres::connect(address)?.run("SELECT 1"),
            Kind::SeaweedFs => {
                let made = http::Alone::connect(address)?.ask("PUT", &format!("/{BUCKET}"), b"")?;
                ensure!(matches!(made.0, 200 | 409), "no bucket: {} {}", made.0, made.1);
                Ok(())
            }
        }
    }
}

/// The first word of a line that is a version: `8000GB` is none.
fn number_in(line: &str) -> Option<&str> {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    line.split_whitespace().find(is_version)
}

/// Debian keeps the programs of each version in a folder; the newest is used.
fn postgres_program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir(POSTGRES_HOMES).into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    Ok(newest.context("PostgreSQL is not installed; `make bench` installs it")?.join(name))
}

fn mariadb(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-defaults", &format!("--datadir={}", folder.join("data").display())]);
    // What the kernel has for this is for all servers of a machine together.
    command.arg("--innodb-use-native-aio=0");
    if let Some(user) = Kind::MariaDb.user() {
        command.arg(format!("--user={user}"));
    }
    command
}

/// Its S3 takes requests with our key, and unsigned ones from the raw client.
fn seaweed(folder: &Path, s3: u16) -> Result<Command> {
    let identities = format!(
        r#"{{"identities":[{{"name":"bench","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],
        "actions":["Admin","Read","Write","List","Tagging"]}},
        {{"name":"anonymous","actions":["Admin","Read","Write","List"]}}]}}"#
    );
    fs::write(folder.join("identities"), identities)?;
    let data = folder.join("data");
    fs::create_dir_all(&data)?;
    let mut command = Command::new("weed");
    command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
    command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=40"]);
    command.args(["-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]);
    command.args(["-volume.preStopSeconds=1", "-filer", "-s3", "-s3.iam=false"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
    command.arg(format!("-s3.port={s3}")).arg(format!("-dir={}", data.display()));
    // What speaks gRPC is told its port; otherwise it is 10,000 above, which may not be one.
    for flag in ["master.port", "volume.port", "filer.port"] {
        command.arg(format!("-{flag}={}", free_address().port()));
        command.arg(format!("-{flag}.grpc={}", free_address().port()));
    }
    command.arg(format!("-s3.port.grpc={}", free_address().port()));
    let at = |name: &str| folder.join(name).display().to_string();
    command.arg(format!("-s3.config={}", at("identities")));
    command.arg(format!("-filer.localSocket={}", at("f"))).arg(format!("-s3.localSocket={}", at("s")));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say_of_themselves() {
        assert_eq!(number_in("version 8000GB 4.48 b0f7b93 linux amd64"), Some("4.48"));
        assert_eq!(number_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some("15.18"));
        assert_eq!(number_in("mariadbd  Ver 10.11.19-MariaDB for Linux"), Some("10.11.19-MariaDB"));
        assert_eq!(number_in("no such thing"), None);
    }
}
