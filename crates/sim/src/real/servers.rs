//! Real servers that nodes share: private, on a free port, in a folder of their own, gone when their owner is.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use orchestrix_ports::free_port;
use rustix::process::Signal;
use tempfile::TempDir;

use super::process::{Under, eventually};
use super::{Checked, failed};

/// What nodes show to a server, and what the server wants while their password is another one.
const USER: &str = "nodes";
const PASSWORD: &str = "secret";
const OTHER_PASSWORD: &str = "another";
const BUCKET: &str = "nodes";

/// The ports of SeaweedFS beside the one of S3. What speaks gRPC is told; otherwise it is 10,000 above, which may not be
/// a port.
const SEAWEEDFS_PORTS: [&str; 7] = [
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
];

/// The kinds of servers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    MariaDb,
    Postgres,
    SeaweedFs,
}

/// A server, running or not.
pub(crate) struct Server {
    kind: Kind,
    child: Option<Child>,
    host: IpAddr,
    port: u16,
    folder: TempDir,
    /// What it is started under, if not by itself.
    under: Option<Under>,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::MariaDb => "mariadb",
            Self::Postgres => "postgres",
            Self::SeaweedFs => "seaweedfs",
        }
    }

    /// The user that a server runs as when root starts it: two of them refuse to be root.
    fn user(self) -> Option<&'static str> {
        let as_root = rustix::process::geteuid().is_root();
        match self {
            Self::Redis | Self::SeaweedFs => None,
            Self::MariaDb => as_root.then_some("mysql"),
            Self::Postgres => as_root.then_some("postgres"),
        }
    }

    /// Makes what the server begins with.
    fn prepare(self, folder: &Path) -> Checked {
        let mut command = match self {
            Self::Redis => return Ok(()),
            Self::SeaweedFs => return prepare_seaweedfs(folder),
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
        if !made.status.success() {
            return Err(format!("cannot prepare {}: {}", self.name(), String::from_utf8_lossy(&made.stderr)));
        }
        if self == Self::Postgres {
            let access = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
            std::fs::write(folder.join("data/pg_hba.conf"), access).map_err(failed("write a file"))?;
        }
        Ok(())
    }

    /// Makes the user of the nodes; to do so again changes nothing.
    fn user_of_nodes(self) -> String {
        match self {
            Self::Redis | Self::SeaweedFs => String::new(),
            Self::MariaDb => format!(
                "CREATE DATABASE IF NOT EXISTS orchestrix; \
                 CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{PASSWORD}'; \
                 GRANT ALL ON orchestrix.* TO {USER}@'%'"
            ),
            Self::Postgres => format!(
                "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{USER}') THEN \
                 CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON SCHEMA public TO {USER}; \
                 END IF; END $$"
            ),
        }
    }

    /// Every server syncs what it acknowledges. Only one is ever elsewhere than at this machine's own address.
    fn command(self, folder: &Path, host: IpAddr, port: u16) -> Checked<Command> {
        Ok(match self {
            Self::Redis => {
                let mut redis = Command::new("redis-server");
                redis.args(["--bind", &host.to_string(), "--save", "", "--appendonly", "yes"]);
                redis.args(["--protected-mode", if host.is_loopback() { "yes" } else { "no" }]);
                redis.args(["--appendfsync", "always", "--port", &port.to_string(), "--dir"]).arg(folder);
                redis.args(["--user", USER, "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"]);
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
                    // Nodes that are killed and frozen break off more connections than a server takes for decent.
                    "--max-connect-errors=1000000",
                ]);
                mariadbd
            }
            Self::Postgres => {
                let mut server = postgres(folder, "postgres")?;
                server.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(folder);
                server
            }
            Self::SeaweedFs => seaweedfs(folder, port)?,
        })
    }

    /// Whether it has recovered and answers.
    fn answers(self, folder: &Path, host: IpAddr, port: u16) -> bool {
        let port_text = port.to_string();
        let mut client = match self {
            Self::Redis => {
                return asks(host, port, "PING\r\n").is_some_and(|answer| answer.starts_with("+PONG"));
            }
            Self::SeaweedFs => {
                // It says that it is healthy before it can keep anything; a bucket shows that it can.
                let filer = std::fs::read_to_string(folder.join("ports")).unwrap_or_default();
                let filer = filer.lines().nth(4).and_then(|port| port.parse().ok());
                let request =
                    format!("POST /buckets/{BUCKET}/ HTTP/1.0\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
                let made = filer.and_then(|filer| asks(host, filer, &request));
                let healthy = asks(host, port, "GET /healthz HTTP/1.0\r\n\r\n");
                return made.is_some_and(|answer| answer.contains(" 201 ") || answer.contains(" 409 "))
                    && healthy.is_some_and(|answer| answer.contains(" 200 "));
            }
            Self::MariaDb => {
                let mut client = Command::new("mariadb");
                client.args(["--no-defaults", "-h127.0.0.1", "-uroot", "-P", &port_text, "-e"]);
                client.arg(self.user_of_nodes());
                client
            }
            Self::Postgres => {
                let mut client = Command::new("psql");
                client.args(["-X", "-h", "127.0.0.1", "-U", "postgres", "-p", &port_text, "-c"]);
                client.arg(self.user_of_nodes());
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
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut server = Self { kind, child: None, host, port: free_port(), folder, under: None };
        server.launch()?;
        Ok(server)
    }

    /// Starts Redis at another address, under another program.
    pub(crate) fn start_redis_at(host: IpAddr, under: Under) -> Checked<Self> {
        let folder = TempDir::new().map_err(failed("make a folder"))?;
        let (kind, under) = (Kind::Redis, Some(under));
        let mut server = Self { kind, child: None, host, port: free_port(), folder, under };
        server.launch()?;
        Ok(server)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Starts it again, on what it left in its folder.
    pub(crate) fn launch(&mut self) -> Checked {
        let log = std::fs::File::create(self.log_file()).map_err(failed("make a file"))?;
        let errors = log.try_clone().map_err(failed("make a file"))?;
        let server = self.kind.command(self.folder.path(), self.host, self.port)?;
        let mut command = match &self.under {
            Some(under) => {
                let mut command = under();
                command.arg(server.get_program()).args(server.get_args());
                command
            }
            None => server,
        };
        command.stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/");
        let mut child = command.spawn().map_err(|error| {
            format!("cannot start {}: {error}; `make test` installs what is needed", self.kind.name())
        })?;
        let (kind, host, port) = (self.kind, self.host, self.port);
        eventually(&format!("{} answers", kind.name()), || {
            if let Some(status) = child.try_wait().map_err(failed("look at a server"))? {
                let said = std::fs::read_to_string(self.log_file()).unwrap_or_default();
                return Err(format!("{} ended with {status}: {said}", kind.name()));
            }
            Ok(kind.answers(self.folder.path(), host, port).then_some(()))
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

    /// Answers everybody with a refusal from now on, also those that are connected: no room for a client, or a server that
    /// only reads. It stays so until what is given back is asked to end it.
    pub(crate) fn refuse(&self) -> Checked<Refusal<'_>> {
        let talk = match self.kind {
            Kind::Redis => {
                let mut talk = TcpStream::connect((self.host, self.port)).map_err(failed("reach Redis"))?;
                say(&mut talk, "CONFIG SET maxclients 1")?;
                say(&mut talk, "CLIENT KILL TYPE normal SKIPME yes")?;
                Some(talk)
            }
            Kind::MariaDb => {
                self.sql(&["SET GLOBAL read_only = 1"])?;
                self.end_sessions()?;
                None
            }
            Kind::Postgres => {
                let only_read = "ALTER SYSTEM SET default_transaction_read_only = on";
                self.sql(&[only_read, "SELECT pg_reload_conf()"])?;
                self.end_sessions()?;
                None
            }
            Kind::SeaweedFs => return Err("a bucket has no such limit".to_owned()),
        };
        Ok(Refusal { server: self, talk })
    }

    /// Wants another password of the nodes from now on, also of those that are connected.
    pub(crate) fn change_password(&self) -> Checked {
        self.set_password(OTHER_PASSWORD)?;
        self.end_sessions()
    }

    /// Wants the password again that nodes have.
    pub(crate) fn restore_password(&self) -> Checked {
        self.set_password(PASSWORD)
    }

    fn set_password(&self, password: &str) -> Checked {
        match self.kind {
            Kind::Redis => self.redis(&format!("ACL SETUSER {USER} resetpass >{password}")),
            Kind::MariaDb => {
                self.sql(&[&format!("ALTER USER {USER}@'%' IDENTIFIED BY '{password}'")]).map(drop)
            }
            Kind::Postgres => self.sql(&[&format!("ALTER ROLE {USER} PASSWORD '{password}'")]).map(drop),
            Kind::SeaweedFs => {
                write_identities(self.folder.path(), password)?;
                let child = self.child.as_ref().ok_or("the server does not run")?;
                rustix::process::kill_process(rustix::process::Pid::from_child(child), Signal::HUP)
                    .map_err(|error| format!("cannot signal a server: {error}"))
            }
        }
    }

    /// Ends the connections of nodes; a session that is gone already need not be ended.
    fn end_sessions(&self) -> Checked {
        match self.kind {
            Kind::Redis => self.redis(&format!("CLIENT KILL USER {USER}")),
            Kind::MariaDb => {
                let sessions = format!(
                    "SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = '{USER}'"
                );
                for kill in self.sql(&[&sessions])?.lines() {
                    let _ = self.sql(&[kill]);
                }
                Ok(())
            }
            Kind::Postgres => {
                let end = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
                );
                self.sql(&[&end]).map(drop)
            }
            // Every request shows what it may.
            Kind::SeaweedFs => Ok(()),
        }
    }

    fn redis(&self, command: &str) -> Checked {
        let mut talk = TcpStream::connect((self.host, self.port)).map_err(failed("reach Redis"))?;
        say(&mut talk, command)
    }

    /// Runs statements as the superuser.
    fn sql(&self, statements: &[&str]) -> Checked<String> {
        let port = self.port.to_string();
        let mut client = match self.kind {
            Kind::MariaDb => {
                let mut client = Command::new("mariadb");
                client.args(["--no-defaults", "-N", "-B", "-h127.0.0.1", "-uroot", "-P", &port]);
                client.args(["-e", &statements.join("; ")]);
                client
            }
            Kind::Postgres => {
                let mut client = Command::new("psql");
                client.args(["-X", "-q", "-h", "127.0.0.1", "-U", "postgres", "-p", &port]);
                for sql in statements {
                    client.args(["-c", sql]);
                }
                client
            }
            Kind::Redis | Kind::SeaweedFs => return Err(format!("{} has no SQL", self.kind.name())),
        };
        let output = client.output().map_err(failed("run a client"))?;
        if !output.status.success() {
            return Err(format!("{statements:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Where nodes find it.
    pub(crate) fn url(&self) -> String {
        let port = self.port;
        match self.kind {
            Kind::Redis => format!("redis://{USER}:{PASSWORD}@{}:{port}", self.host),
            Kind::MariaDb => format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/orchestrix"),
            Kind::Postgres => format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"),
            Kind::SeaweedFs => {
                format!("s3://{USER}:{PASSWORD}@{BUCKET}/campaign?endpoint=http://127.0.0.1:{port}")
            }
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

/// A server that refuses.
pub(crate) struct Refusal<'a> {
    server: &'a Server,
    /// The one connection for which there is room.
    talk: Option<TcpStream>,
}

impl Refusal<'_> {
    /// From now on it answers as before.
    pub(crate) fn end(self) -> Checked {
        match (self.talk, self.server.kind) {
            (Some(mut talk), _) => say(&mut talk, "CONFIG SET maxclients 10000"),
            (None, Kind::Postgres) => {
                let reset = "ALTER SYSTEM RESET default_transaction_read_only";
                self.server.sql(&[reset, "SELECT pg_reload_conf()"]).map(drop)
            }
            (None, Kind::Redis | Kind::MariaDb | Kind::SeaweedFs) => {
                self.server.sql(&["SET GLOBAL read_only = 0"]).map(drop)
            }
        }
    }
}

/// One command to Redis that must not be refused.
fn say(talk: &mut TcpStream, command: &str) -> Checked {
    talk.set_read_timeout(Some(Duration::from_secs(5))).map_err(failed("set a timeout"))?;
    talk.write_all(format!("{command}\r\n").as_bytes()).map_err(failed("ask Redis"))?;
    let mut answer = [0; 256];
    let length = talk.read(&mut answer).map_err(failed("hear Redis"))?;
    match &answer[..length] {
        [] | [b'-', ..] => Err(format!("{command}: {}", String::from_utf8_lossy(&answer[..length]))),
        _ => Ok(()),
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
    // A server that starts removes the temporary tables of others from the folder that they share.
    command.env("TMPDIR", folder);
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

/// The beginning of what a server answers to a line.
fn asks(host: IpAddr, port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect((host, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

fn write_identities(folder: &Path, password: &str) -> Checked {
    let identities = format!(
        r#"{{"identities":[{{"name":"nodes","credentials":[{{"accessKey":"{USER}","secretKey":"{password}"}}],
        "actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
    );
    std::fs::write(folder.join("identities"), identities).map_err(failed("write a file"))
}

fn prepare_seaweedfs(folder: &Path) -> Checked {
    write_identities(folder, PASSWORD)?;
    let ports = SEAWEEDFS_PORTS.map(|_| free_port().to_string());
    std::fs::write(folder.join("ports"), ports.join("\n")).map_err(failed("write a file"))?;
    std::fs::create_dir_all(folder.join("data")).map_err(failed("make a folder"))
}

fn seaweedfs(folder: &Path, port: u16) -> Checked<Command> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/object-stores/bin/weed");
    if !program.exists() {
        return Err(format!("{} is missing; `scripts/object-stores` installs it", program.display()));
    }
    let at = |name: &str| folder.join(name).display().to_string();
    let mut command = Command::new(program);
    command.args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]);
    command.args(["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=20"]);
    // Alone, it waits for others as long as this when it starts again.
    command.args(["-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"]);
    command.args(["-volume.preStopSeconds=1", "-filer", "-s3", "-s3.iam=false"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0", &format!("-s3.port={port}")]);
    command.args([format!("-dir={}", at("data")), format!("-s3.config={}", at("identities"))]);
    command
        .args([format!("-filer.localSocket={}", at("f.sock")), format!("-s3.localSocket={}", at("s.sock"))]);
    let ports = std::fs::read_to_string(folder.join("ports")).map_err(failed("read the ports"))?;
    for (flag, port) in SEAWEEDFS_PORTS.into_iter().zip(ports.lines()) {
        command.arg(format!("-{flag}={port}"));
    }
    Ok(command)
}
