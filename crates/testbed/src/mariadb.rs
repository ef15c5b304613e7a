//! MariaDB, whose `root` needs no password.

use std::path::Path;
use std::process::Command;

use crate::store::{Kind, give, run};
use crate::{Place, Recipe, Result, listens};

/// A server that syncs what it acknowledges, with these settings, too.
#[must_use]
pub fn mariadb(settings: &[&str]) -> Recipe {
    let ready = |place: &Place| {
        let client = || mariadb_client(place.address.port(), "", "SELECT 1").output();
        listens(place.address) && client().is_ok_and(|output| output.status.success())
    };
    Recipe::new("MariaDB", launch, ready).prepared(install).set(settings)
}

fn launch(place: &Place) -> Result<Command> {
    let folder = &place.folder;
    let mut server = program(folder, "mariadbd");
    server.args([
        &format!("--port={}", place.address.port()),
        &format!("--socket={}", folder.join("socket").display()),
        &format!("--pid-file={}", folder.join("pid").display()),
        "--bind-address=127.0.0.1",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=64M",
        "--innodb-flush-log-at-trx-commit=1",
        "--max-allowed-packet=80M",
        "--max-connections=300",
        // Nodes that are killed and frozen break off more connections than a server takes for decent.
        "--max-connect-errors=1000000",
    ]);
    Ok(server)
}

fn install(folder: &Path) -> Result {
    give(folder, Kind::MariaDb.user())?;
    let mut install = program(folder, "mariadb-install-db");
    run(install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]))
}

fn program(folder: &Path, program: &str) -> Command {
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

/// Runs SQL as the superuser, in a database if one is named; prints the fields, separated by tabs.
#[must_use]
pub fn mariadb_client(port: u16, database: &str, sql: &str) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "-h127.0.0.1", "-uroot", "-N", "-B", &format!("-P{port}"), "-e", sql]);
    if !database.is_empty() {
        command.arg(database);
    }
    command
}
