//! Faults of the real servers that nodes share: kills, refusals, changed passwords.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use orchestrix_testbed::{Kind, PASSWORD, SeaweedFs, Store, USER};
use rustix::process::Signal;

use super::{Checked, failed};

/// What a server wants while the password of nodes is another one.
const OTHER_PASSWORD: &str = "another";

/// Refuses every client from now on, connected ones included: no room for a client, or a server that
/// only reads. It stays so until what is given back is asked to end it.
pub(crate) fn refuse(store: &Store) -> Checked<Refusal<'_>> {
    let talk = match store.kind() {
        Kind::Redis => {
            let mut talk = TcpStream::connect(store.address()).map_err(failed("reach Redis"))?;
            say(&mut talk, "CONFIG SET maxclients 1")?;
            say(&mut talk, "CLIENT KILL TYPE normal SKIPME yes")?;
            Some(talk)
        }
        Kind::MariaDb => {
            store.sql("SET GLOBAL read_only = 1")?;
            end_sessions(store)?;
            None
        }
        Kind::Postgres => {
            store.sql("ALTER SYSTEM SET default_transaction_read_only = on")?;
            store.sql("SELECT pg_reload_conf()")?;
            end_sessions(store)?;
            None
        }
        Kind::SeaweedFs => return Err("a bucket has no such limit".to_owned()),
    };
    Ok(Refusal { store, talk })
}

/// Wants another password of the nodes from now on, also of those that are connected.
pub(crate) fn change_password(store: &Store) -> Checked {
    set_password(store, OTHER_PASSWORD)?;
    end_sessions(store)
}

/// Wants the password again that nodes have.
pub(crate) fn restore_password(store: &Store) -> Checked {
    set_password(store, PASSWORD)
}

fn set_password(store: &Store, password: &str) -> Checked {
    match store.kind() {
        Kind::Redis => redis(store, &format!("ACL SETUSER {USER} resetpass >{password}")),
        Kind::MariaDb => {
            store.sql(&format!("ALTER USER {USER}@'%' IDENTIFIED BY '{password}'"))?;
            Ok(())
        }
        Kind::Postgres => {
            store.sql(&format!("ALTER ROLE {USER} PASSWORD '{password}'"))?;
            Ok(())
        }
        Kind::SeaweedFs => {
            SeaweedFs::write_identities(store.server.folder(), &[Kind::bucket_user(password)])?;
            Ok(store.server.signal(Signal::HUP)?)
        }
    }
}

/// Ends the connections of nodes; a session that is gone already need not be ended.
fn end_sessions(store: &Store) -> Checked {
    match store.kind() {
        Kind::Redis => redis(store, &format!("CLIENT KILL USER {USER}")),
        Kind::MariaDb => {
            let sessions = format!(
                "SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = '{USER}'"
            );
            for kill in store.sql(&sessions)?.lines() {
                let _ = store.sql(kill);
            }
            Ok(())
        }
        Kind::Postgres => {
            store.sql(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
            ))?;
            Ok(())
        }
        // Every request shows what it may.
        Kind::SeaweedFs => Ok(()),
    }
}

/// A server that refuses.
pub(crate) struct Refusal<'a> {
    store: &'a Store,
    /// The one connection for which there is room.
    talk: Option<TcpStream>,
}

impl Refusal<'_> {
    /// From now on it answers as before.
    pub(crate) fn end(self) -> Checked {
        match (self.talk, self.store.kind()) {
            (Some(mut talk), _) => say(&mut talk, "CONFIG SET maxclients 10000"),
            (None, Kind::Postgres) => {
                self.store.sql("ALTER SYSTEM RESET default_transaction_read_only")?;
                self.store.sql("SELECT pg_reload_conf()")?;
                Ok(())
            }
            (None, Kind::Redis | Kind::MariaDb | Kind::SeaweedFs) => {
                self.store.sql("SET GLOBAL read_only = 0")?;
                Ok(())
            }
        }
    }
}

fn redis(store: &Store, command: &str) -> Checked {
    let mut talk = TcpStream::connect(store.address()).map_err(failed("reach Redis"))?;
    say(&mut talk, command)
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
