//! Real servers that nodes share: private, on a free port, in a folder of their own, gone when their owner is.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::process::eventually;
use super::{Checked, failed};

/// The kinds of servers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    MariaDb,
    Postgres,
}

/// A server, running or not.
pub(crate) struct Server {
    kind: Kind,
    child: Option<Child>,
    port: u16,
    folder: TempDir,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::MariaDb => "mariadb",
            Self::Postgres => "postgres",
        }
    }

    /// The user that a server runs as when root starts it: two of them refuse to be root.
    fn user(self) -> Option<&'static str> {
        let as_root = rustix::process::geteuid().is_root();
        match self {
            Self::Redis => None,
            Self::MariaDb => as_root.then_some("mysql"),
            Self::Postgres => as_root.then_some("postgres"),
        }
    }

    /// Makes what the server begins with.
    fn prepare(self, folder: &Path) -> Checked {
        let mut command = match self {
            Self::Redis => return Ok(()),
            Self::MariaDb => {
                let mut install = mariadb(folder, "mariadb-install-db");
                install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
                install
            }
            Self::Postgres => {
                let mut init = postgres(folder, "initdb")?;
                init.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
                init
            }
        };
        if let Some(user) = self.user() {
            let owned = Command::new("chown").arg(user).arg(folder).status().map_err(failed("run chown"))?;
            if !owned.success() {
                return Err(format!("cannot give a folder to {user}"));
            }
        }
        let made = command.current_dir("/").output().map_err(failed("prepare a server"))?;
        if made.status.success() {
            return Ok(());
        }
        Err(format!("cannot prepare {}: {}", self.name(), String::from_utf8_lossy(&made.stderr)))
    }

    /// Every server syncs what it acknowledges.
    fn command(self, folder: &Path, port: u16) -> Checked<Command> {
        Ok(match self {
            Self::Redis => {
                let mut redis = Command::new("redis-server");
                redis.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
                redis.args(["--appendfsync", "always", "--port", &port.to_string(), "--dir"]).arg(folder);
                redis
            }
            Self::MariaDb => {
                let mut mariadbd = mariadb(folder, "mariadbd");
                mariadbd.args([
                    &format!("--port={port}"),
                    &format!("--socket={}", folder.join("socket").display()),
                    &format!("--pid-file={}", folder.join("pid").display()),
                    "--bind-address=127.0.0.1",
                    "--innodb-buffer-pool-size=64M",
                    "--innodb-log-file-size=64M",
                    "--innodb-flush-log-at-trx-commit=1",
                    "--max-allowed-packet=80M",
                ]);
                mariadbd
            }
            Self::Postgres => {
                let mut server = postgres(folder, "postgres")?;
                server.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(folder);
                server
            }
        })
    }

    /// Whether it has recovered and answers.
    fn answers(self, port: u16) -> bool {
        let port_text = port.to_string();
        let mut client = match self {
            Self::Redis => return answers_ping(port),
            Self::MariaDb => {
                let mut client = Command::new("mariadb");
                client.args(["--no-defaults", "-h127.0.0.1", "-uroot", "-P", &port_text, "-e"]);
                client.arg("CREATE DATABASE IF NOT EXISTS orchestrix");
                client
            }
            Self::Postgres => {
                let mut client = Command::new("psql");
                client.args(["-X", "-h", "127.0.0.1", "-U", "postgres", "-p", &port_text, "-c", "SELECT 1"]);
                client
            }
        };
        TcpStream::connect(("127.0.0.1", port)).is_ok()
            && client.output().is_ok_and(|output| output.status.success())
    }
}

impl Server {
    /// Starts one and waits until it answers.
    pub(crate) fn start(kind: Kind) -> Checked<Self> {
        let folder = TempDir::new().map_err(failed("make a folder"))?;
        kind.prepare(folder.path())?;
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("find a free port"))?;
        let port = listener.local_addr().map_err(failed("find a free port"))?.port();
        drop(listener);
        let mut server = Self { kind, child: None, port, folder };
        server.launch()?;
        Ok(server)
    }

    /// Starts it again, on what it left in its folder.
    pub(crate) fn launch(&mut self) -> Checked {
        let log = std::fs::File::create(self.log_file()).map_err(failed("make a file"))?;
        let errors = log.try_clone().map_err(failed("make a file"))?;
        let mut command = self.kind.command(self.folder.path(), self.port)?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
        let mut child = command.spawn().map_err(|error| {
            format!("cannot start {}: {error}; `make test` installs what is needed", self.kind.name())
        })?;
        let (kind, port) = (self.kind, self.port);
        eventually(&format!("{} answers", kind.name()), || {
            if let Some(status) = child.try_wait().map_err(failed("look at a server"))? {
                let said = std::fs::read_to_string(self.log_file()).unwrap_or_default();
                return Err(format!("{} ended with {status}: {said}", kind.name()));
            }
            Ok(kind.answers(port).then_some(()))
        })?;
        self.child = Some(child);
        Ok(())
    }

    /// Kills it without a warning.
    pub(crate) fn kill(&mut self) -> Checked {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().map_err(failed("kill a server"))?;
        child.wait().map(drop).map_err(failed("wait for a server"))
    }

    /// Where nodes find it.
    pub(crate) fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Redis => format!("redis://127.0.0.1:{port}"),
            Kind::MariaDb => format!("mysql://root@127.0.0.1:{port}/orchestrix"),
            Kind::Postgres => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever cannot be killed is gone already.
        let _ = self.kill();
    }
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

fn postgres(folder: &Path, program: &str) -> Checked<Command> {
    // Debian keeps the programs of each version in a folder; the newest is used.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    let program = newest.ok_or("there is no PostgreSQL; `make test` installs what is needed")?.join(program);
    let mut command = match Kind::Postgres.user() {
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

fn answers_ping(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut answer = [0; 5];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"+PONG"
}
