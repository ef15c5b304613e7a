//! PostgreSQL. It trusts its superuser, `postgres`; all other users need a password.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::failed;
use crate::store::{Kind, give, run};
use crate::{Error, Place, Recipe, Result, listens};

/// Where Debian has the programs of each version.
const HOMES: &str = "/usr/lib/postgresql";
const ACCESS: &str = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A server that syncs what it acknowledges, with these settings (`NAME=VALUE`), too.
#[must_use]
pub fn postgres(settings: &[&str]) -> Recipe {
    let ready = |place: &Place| {
        let client = || postgres_client(place.address.port(), "", "SELECT 1").output();
        listens(place.address) && client().is_ok_and(|output| output.status.success())
    };
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["-c", setting]).collect();
    Recipe::new("PostgreSQL", launch, ready).prepared(init).set(&settings)
}

fn launch(place: &Place) -> Result<Command> {
    let mut server = command(&place.folder, "postgres")?;
    server.args(["-h", "127.0.0.1", "-p", &place.address.port().to_string(), "-k"]).arg(&place.folder);
    server.args(["-c", "max_connections=300"]);
    Ok(server)
}

fn init(folder: &Path) -> Result {
    give(folder, Kind::Postgres.user())?;
    let mut init = command(folder, "initdb")?;
    run(init.args(["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]))?;
    std::fs::write(folder.join("data/pg_hba.conf"), ACCESS).map_err(failed("write pg_hba.conf"))
}

fn command(folder: &Path, name: &str) -> Result<Command> {
    let program = program(name)?;
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

/// A program of the newest version that is installed.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir(HOMES).into_iter().flatten().flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    let missing = || Error::new("PostgreSQL is not installed; `make test` and `make bench` install it");
    Ok(newest.ok_or_else(missing)?.join(name))
}

/// Runs SQL as the superuser, in a database if one is named; prints the fields, separated by tabs.
#[must_use]
pub fn postgres_client(port: u16, database: &str, sql: &str) -> Command {
    let database = if database.is_empty() { "postgres" } else { database };
    let mut command = Command::new("psql");
    command.args([
        "-X",
        "-q",
        "-t",
        "-A",
        "-F\t",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        "127.0.0.1",
        "-U",
        "postgres",
    ]);
    command.args(["-p", &port.to_string(), "-d", database, "-c", sql]);
    command
}
