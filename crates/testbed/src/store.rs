//! The servers that engines stand on, each with a user and a place for nodes.
//!
//! **Invariant:** each server syncs what it acknowledges, except SeaweedFS, which cannot.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::error::failed;
use crate::server::missing;
use crate::{
    Error, Recipe, Result, SYNCED, SeaweedFs, Server, first_line, mariadb, mariadb_client, postgres,
    postgres_client, redis, seaweedfs,
};

/// What nodes show to a server.
pub const USER: &str = "nodes";
/// And the secret that goes with it.
pub const PASSWORD: &str = "secret";
/// The database, or the bucket, of the nodes.
pub const PLACE: &str = "orchestrix";

/// The kinds of servers that engines stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `redis-server`
    Redis,
    /// `mariadbd`
    MariaDb,
    /// `postgres`
    Postgres,
    /// `weed server`, for S3
    SeaweedFs,
}

/// A server, running or not, with a place for nodes.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    /// The process.
    pub server: Server,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Redis, Self::MariaDb, Self::Postgres, Self::SeaweedFs];

    /// As its makers write it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::MariaDb => "MariaDB",
            Self::Postgres => "PostgreSQL",
            Self::SeaweedFs => "SeaweedFS",
        }
    }

    /// # Errors
    /// When it is not installed.
    pub fn version(self) -> Result<String> {
        let mut command = match self {
            Self::Redis => Command::new("redis-server"),
            Self::MariaDb => Command::new("mariadbd"),
            Self::Postgres => Command::new(crate::postgres::program("postgres")?),
            Self::SeaweedFs => Command::new(seaweedfs::program("weed")?),
        };
        let line = first_line(command.arg(if self == Self::SeaweedFs { "version" } else { "--version" }))?;
        let none = || Error::new(format!("{} says {line:?} when it is asked for its version", self.label()));
        Ok(version_in(&line).ok_or_else(none)?.to_owned())
    }

    /// The user that it runs as when root starts it: two of them refuse to be root.
    pub(crate) fn user(self) -> Option<&'static str> {
        let as_root = rustix::process::geteuid().is_root();
        match self {
            Self::Redis | Self::SeaweedFs => None,
            Self::MariaDb => as_root.then_some("mysql"),
            Self::Postgres => as_root.then_some("postgres"),
        }
    }

    /// How a server with a user for nodes is started.
    #[must_use]
    pub fn recipe(self) -> Recipe {
        match self {
            Self::Redis => {
                redis(&SYNCED).set(&["--user", USER, "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"])
            }
            Self::MariaDb => mariadb(&[]),
            Self::Postgres => postgres(&[]),
            Self::SeaweedFs => SeaweedFs::new(PLACE, &[Self::bucket_user(PASSWORD)]).recipe(),
        }
    }

    /// The user of the nodes in a bucket, with this secret.
    #[must_use]
    pub fn bucket_user(secret: &str) -> String {
        SeaweedFs::identity(USER, USER, secret, &["Admin", "Read", "Write", "List", "Tagging"])
    }

    /// Makes the user and the place of the nodes.
    fn sql_of_nodes(self) -> Vec<String> {
        match self {
            Self::Redis | Self::SeaweedFs => Vec::new(),
            Self::MariaDb => vec![
                format!("CREATE DATABASE {PLACE}"),
                format!("CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'"),
                format!("GRANT ALL ON {PLACE}.* TO {USER}@'%'"),
            ],
            Self::Postgres => vec![
                format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"),
                format!("CREATE DATABASE {PLACE} OWNER {USER}"),
            ],
        }
    }
}

impl Store {
    /// Starts one in a folder that goes away with it.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(kind: Kind) -> Result<Self> {
        Self::furnished(kind, Server::start(kind.recipe())?)
    }

    /// Starts one in an empty folder that stays, with this recipe.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start_in(folder: &Path, kind: Kind, recipe: Recipe) -> Result<Self> {
        Self::furnished(kind, Server::start_in(folder, recipe)?)
    }

    /// Starts Redis at another address, under another program.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start_redis_at(host: IpAddr, under: impl Fn() -> Command + Send + Sync + 'static) -> Result<Self> {
        let recipe = Kind::Redis.recipe().at(host).under(under);
        Self::furnished(Kind::Redis, Server::start(recipe)?)
    }

    fn furnished(kind: Kind, server: Server) -> Result<Self> {
        let store = Self { kind, server };
        for sql in kind.sql_of_nodes() {
            store.sql(&sql)?;
        }
        Ok(store)
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Where nodes find it, and as whom.
    #[must_use]
    pub fn url(&self) -> String {
        let address = self.server.address();
        match self.kind {
            Kind::Redis => format!("redis://{USER}:{PASSWORD}@{address}"),
            Kind::MariaDb => format!("mysql://{USER}:{PASSWORD}@{address}/{PLACE}"),
            Kind::Postgres => format!("postgres://{USER}:{PASSWORD}@{address}/{PLACE}"),
            Kind::SeaweedFs => format!("s3://{USER}:{PASSWORD}@{PLACE}/nodes?endpoint=http://{address}"),
        }
    }

    /// Where an object of the bucket is.
    #[must_use]
    pub fn object(&self, key: &str) -> String {
        format!("/{PLACE}/{key}")
    }

    /// Runs a statement as the superuser; answers what it prints.
    ///
    /// # Errors
    /// When the server refuses it, or has no SQL.
    pub fn sql(&self, statement: &str) -> Result<String> {
        let port = self.server.port();
        let mut client = match self.kind {
            Kind::MariaDb => mariadb_client(port, "", statement),
            Kind::Postgres => postgres_client(port, "", statement),
            Kind::Redis | Kind::SeaweedFs => {
                return Err(Error::new(format!("{} has no SQL", self.kind.label())));
            }
        };
        output_of(&mut client)
    }
}

/// Gives a folder to a user, if there is one.
pub(crate) fn give(folder: &Path, user: Option<&str>) -> Result {
    user.map_or(Ok(()), |user| run(Command::new("chown").arg(user).arg(folder)))
}

/// Runs a program that has to succeed.
pub(crate) fn run(command: &mut Command) -> Result {
    output_of(command.current_dir("/")).map(drop)
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| missing(command, &error))?;
    if !output.status.success() {
        let program = command.get_program().display();
        return Err(failed(format!("run {program}"))(String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first version in a line: `8000GB` is none.
fn version_in(line: &str) -> Option<&str> {
    let words = line.split_whitespace().map(|word| word.strip_prefix("v=").unwrap_or(word));
    words.into_iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_say_of_themselves() {
        assert_eq!(version_in("version 8000GB 4.48 b0f7b93 linux amd64"), Some("4.48"));
        assert_eq!(version_in("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some("15.18"));
        assert_eq!(version_in("mariadbd  Ver 10.11.19-MariaDB for Linux"), Some("10.11.19-MariaDB"));
        assert_eq!(version_in("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"), Some("7.0.15"));
        assert_eq!(version_in("no such thing"), None);
    }
}
