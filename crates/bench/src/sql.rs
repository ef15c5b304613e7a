//! Rows for a database, through the driver that engines use: to measure the server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, PgConnection};
use tokio::runtime::{Builder, Runtime};

/// A server that is silent for so long has stopped.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A connection that inserts one row, or so many as a call has tasks.
pub(crate) struct Sql {
    runtime: Runtime,
    connection: Connection,
    one: Arc<str>,
    many: Arc<str>,
}

enum Connection {
    MariaDb(MySqlConnection),
    Postgres(PgConnection),
}

impl Sql {
    /// # Errors
    /// When the server does not let us in.
    pub(crate) fn connect(url: &str, batch: usize) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let is_mysql = url.starts_with("mysql:");
        let connection = runtime.block_on(within(async {
            Ok(if is_mysql {
                Connection::MariaDb(MySqlConnection::connect(url).await?)
            } else {
                Connection::Postgres(PgConnection::connect(url).await?)
            })
        }))?;
        let placeholder: fn(usize) -> String =
            if is_mysql { |_| "(?)".to_owned() } else { |n| format!("(${n})") };
        let (one, many) = (insert(1, placeholder).into(), insert(batch, placeholder).into());
        Ok(Self { runtime, connection, one, many })
    }

    /// Makes the table for the rows.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(crate) fn make_table(&mut self) -> Result<()> {
        self.runtime.block_on(within(async {
            match &mut self.connection {
                Connection::MariaDb(connection) => {
                    let table =
                        "CREATE TABLE raw (id BIGINT AUTO_INCREMENT PRIMARY KEY, bytes LONGBLOB NOT NULL)";
                    connection.execute(table).await?;
                }
                Connection::Postgres(connection) => {
                    let table = "CREATE TABLE raw (id BIGSERIAL PRIMARY KEY, bytes BYTEA NOT NULL)";
                    connection.execute(table).await?;
                }
            }
            Ok(())
        }))
    }

    /// Inserts a row for each of these in a transaction of its own: one, or as many as a call has.
    ///
    /// # Errors
    /// When the server refuses it.
    pub(crate) fn insert(&mut self, values: &[&[u8]]) -> Result<()> {
        // The driver prepares each text once for a connection.
        let sql = AssertSqlSafe(Arc::clone(if values.len() == 1 { &self.one } else { &self.many }));
        self.runtime.block_on(within(async {
            match &mut self.connection {
                Connection::MariaDb(connection) => {
                    let query = values.iter().fold(sqlx::query(sql), |query, bytes| query.bind(*bytes));
                    query.execute(connection).await?;
                }
                Connection::Postgres(connection) => {
                    let query = values.iter().fold(sqlx::query(sql), |query, bytes| query.bind(*bytes));
                    query.execute(connection).await?;
                }
            }
            Ok(())
        }))
    }
}

async fn within<T>(act: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(SILENCE_MAX, act).await.context("the server does not answer")?
}

fn insert(count: usize, placeholder: fn(usize) -> String) -> String {
    let rows: Vec<String> = (1..=count).map(placeholder).collect();
    format!("INSERT INTO raw (bytes) VALUES {}", rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_row_for_each_task() {
        assert_eq!(insert(1, |_| "(?)".to_owned()), "INSERT INTO raw (bytes) VALUES (?)");
        assert_eq!(insert(2, |n| format!("(${n})")), "INSERT INTO raw (bytes) VALUES ($1), ($2)");
    }
}
