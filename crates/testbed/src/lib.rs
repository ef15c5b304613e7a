//! Private servers for tests, campaigns and measurements: each on a free port, in a folder of its own, gone with its
//! handle.
//!
//! A [`Recipe`] says how a program is started and when it is ready; [`redis`], [`mariadb`], [`postgres`], [`SeaweedFs`] and
//! [`rclone`] make those that engines are tried on. A [`Server`] runs one for as long as it is kept, [`Lasting`] for as
//! long as the whole program. A [`Store`] is one of these servers with a user and a place for nodes.
//!
//! **Invariant:** nothing that ships depends on this crate.

mod certificates;
mod error;
mod lasting;
mod mariadb;
mod ports;
mod postgres;
mod process;
mod recipe;
mod redis;
mod seaweedfs;
mod server;
mod store;

pub use certificates::certificates;
pub use error::{Error, Result};
pub use lasting::Lasting;
pub use mariadb::{mariadb, mariadb_client};
pub use ports::free_port;
pub use postgres::{postgres, postgres_client};
pub use process::{Process, end_all};
pub use recipe::{Place, Recipe};
pub use redis::{SYNCED, redis};
pub use seaweedfs::{SeaweedFs, ask_http, rclone};
pub use server::{Server, eventually, first_line, listens};
pub use store::{Kind, PASSWORD, PLACE, Store, USER};
