//! What is particular to PostgreSQL.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgListener, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Postgres, Row as _};

use super::fault::Failure;
use super::server::{Column, Field, Row, Statements, Value};

/// The channel of append notifications; the payload is the domain.
const CHANNEL: &str = "orchestrix_journal";

/// No second index of batches begins with the domain: while the table is small it would look as good as the first for
/// finding a batch by its end, and the plan that is then kept would read all batches at every append.
///
/// Batches are not compressed: that takes several times longer than to store them, and every append would wait for it.
pub(super) const STATEMENTS: Statements = Statements {
    has_schema: "SELECT COUNT(*) FROM pg_class WHERE oid = to_regclass('orchestrix_schema')",
    tables: &[
        "CREATE TABLE IF NOT EXISTS orchestrix_schema (
            name VARCHAR(64) COLLATE \"C\" NOT NULL PRIMARY KEY,
            version BIGINT NOT NULL
        )",
        "CREATE TABLE IF NOT EXISTS orchestrix_journals (
            domain VARCHAR(64) COLLATE \"C\" NOT NULL PRIMARY KEY,
            id BYTEA NOT NULL,
            floor_position BIGINT NOT NULL
        )",
        "CREATE TABLE IF NOT EXISTS orchestrix_batches (
            domain VARCHAR(64) COLLATE \"C\" NOT NULL,
            first_position BIGINT NOT NULL,
            last_position BIGINT NOT NULL,
            previous_hash BYTEA NOT NULL,
            hash BYTEA NOT NULL,
            parcel BYTEA NOT NULL,
            PRIMARY KEY (domain, last_position),
            UNIQUE (first_position, domain)
        )",
        "ALTER TABLE orchestrix_batches ALTER COLUMN parcel SET STORAGE EXTERNAL",
        "CREATE TABLE IF NOT EXISTS orchestrix_snapshots (
            domain VARCHAR(64) COLLATE \"C\" NOT NULL,
            at_position BIGINT NOT NULL,
            hash BYTEA NOT NULL,
            writing BYTEA NOT NULL,
            chunks BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            PRIMARY KEY (domain, at_position)
        )",
        "CREATE TABLE IF NOT EXISTS orchestrix_chunks (
            domain VARCHAR(64) COLLATE \"C\" NOT NULL,
            writing BYTEA NOT NULL,
            number BIGINT NOT NULL,
            at_position BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            bytes BYTEA NOT NULL,
            stored_at TIMESTAMPTZ NOT NULL,
            PRIMARY KEY (domain, writing, number)
        )",
        "ALTER TABLE orchestrix_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL",
        "CREATE TABLE IF NOT EXISTS orchestrix_logs (
            place BIGSERIAL PRIMARY KEY,
            domain VARCHAR(64) COLLATE \"C\" NOT NULL,
            task BIGINT NOT NULL,
            lease BIGINT NOT NULL,
            line_offset BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            bytes BYTEA NOT NULL,
            number BIGINT,
            UNIQUE (domain, task, lease, line_offset)
        )",
        "CREATE INDEX IF NOT EXISTS orchestrix_logs_by_task ON orchestrix_logs (domain, task, place)",
        "CREATE TABLE IF NOT EXISTS helix_locks (
            lock_key VARCHAR(255) COLLATE \"C\" NOT NULL PRIMARY KEY,
            owner_id VARCHAR(255) COLLATE \"C\" NOT NULL,
            expires_at TIMESTAMPTZ(6) NOT NULL,
            epoch BIGINT NOT NULL,
            version BIGINT NOT NULL,
            value BYTEA NOT NULL,
            status SMALLINT NOT NULL,
            created_at TIMESTAMPTZ(6) NOT NULL,
            updated_at TIMESTAMPTZ(6) NOT NULL
        )",
    ],
    upgrades: &[
        // The second index of batches began with the domain.
        &[
            "CREATE UNIQUE INDEX IF NOT EXISTS orchestrix_batches_first_position_domain_key
                ON orchestrix_batches (first_position, domain)",
            "ALTER TABLE orchestrix_batches DROP CONSTRAINT IF EXISTS orchestrix_batches_domain_first_position_key",
        ],
        // Chunks were compressed, which took more of a processor than all batches; and in the oldest tables, so were batches.
        &[
            "ALTER TABLE orchestrix_batches ALTER COLUMN parcel SET STORAGE EXTERNAL",
            "ALTER TABLE orchestrix_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL",
        ],
        // Chunks of output had no numbers.
        &[
            "ALTER TABLE orchestrix_logs ADD COLUMN IF NOT EXISTS number BIGINT",
            "CREATE UNIQUE INDEX IF NOT EXISTS orchestrix_logs_domain_task_number_key
                ON orchestrix_logs (domain, task, number)",
        ],
    ],
    // A session that waits for a table lock blocks all later ones: so the wait is short.
    schema_begin: &["BEGIN", "SET LOCAL lock_timeout = '5s'"],
    schema_lock: "SELECT length(CAST(pg_advisory_xact_lock(8245914735310692975) AS TEXT)) + 1",
    schema_end: "COMMIT",
    schema_undo: "ROLLBACK",
    // The row of the journal is locked against a floor that rises meanwhile. A waiting session is notified by the same
    // statement: never without a batch, and never a batch without a word.
    append_first: "WITH written AS (
            INSERT INTO orchestrix_batches
                (domain, first_position, last_position, previous_hash, hash, parcel)
            SELECT j.domain, ?, ?, ?, ?, ? FROM orchestrix_journals j
            WHERE j.domain = ? AND j.id = ? AND j.floor_position <= ?
            FOR SHARE OF j
            ON CONFLICT DO NOTHING RETURNING domain)
        SELECT pg_notify('orchestrix_journal', domain) FROM written",
    append_next: "WITH written AS (
            INSERT INTO orchestrix_batches
                (domain, first_position, last_position, previous_hash, hash, parcel)
            SELECT j.domain, ?, ?, ?, ?, ? FROM orchestrix_journals j
            WHERE j.domain = ? AND j.id = ? AND j.floor_position <= ?
                AND EXISTS (SELECT 1 FROM orchestrix_batches p
                    WHERE p.domain = j.domain AND p.last_position = ? AND p.hash = ?)
            FOR SHARE OF j
            ON CONFLICT DO NOTHING RETURNING domain)
        SELECT pg_notify('orchestrix_journal', domain) FROM written",
    append_log: "INSERT INTO orchestrix_logs (domain, task, number, lease, line_offset, crc, bytes)
        SELECT ?, CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT), CAST(? AS BIGINT),
            CAST(? AS BYTEA)
        WHERE (SELECT COUNT(*) FROM orchestrix_logs l WHERE l.domain = ? AND l.task = ?) = ?
        ON CONFLICT DO NOTHING",
    // `now()` is one time for the whole statement, so the length of a claim can be read back exactly.
    claim_first: "INSERT INTO helix_locks
            (owner_id, epoch, version, value, status, expires_at, created_at, updated_at, lock_key)
        VALUES (?, ?, ?, ?, CAST(? AS BIGINT), now() + ? * INTERVAL '1 microsecond', now(), now(), ?)",
    claim_next: "UPDATE helix_locks
        SET owner_id = ?, epoch = ?, version = ?, value = ?, status = CAST(? AS BIGINT),
            expires_at = now() + ? * INTERVAL '1 microsecond', updated_at = now()
        WHERE lock_key = ? AND version = ?
            AND (? = 1 OR status = 0 OR owner_id = ? OR expires_at < now() OR updated_at > now())",
    cells: "SELECT lock_key, owner_id, epoch, version, value, status,
            CAST(extract(epoch FROM expires_at - updated_at) * 1000000 AS BIGINT)
        FROM helix_locks",
};

/// How to reach a server.
pub(super) struct Target {
    options: PgConnectOptions,
}

/// A connection that is set up.
pub(super) struct Connected {
    connection: PgConnection,
}

/// A connection that hears of appends.
pub(super) struct Listening {
    listener: PgListener,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        // The driver's own words may quote the URL.
        let options = PgConnectOptions::from_str(url).map_err(|_| "it is no URL of a PostgreSQL database")?;
        Ok(Self { options: options.disable_statement_logging() })
    }

    pub(super) async fn connect(&self, timeout: Duration) -> Result<Connected, Failure> {
        let millis = timeout.as_millis().max(1);
        let settings = [
            ("statement_timeout", millis.to_string()),
            ("lock_timeout", millis.to_string()),
            ("default_transaction_isolation", "read committed".to_owned()),
            ("timezone", "UTC".to_owned()),
            ("client_min_messages", "warning".to_owned()),
        ];
        let options = self.options.clone().options(settings);
        let connection = PgConnection::connect_with(&options).await.map_err(failure)?;
        let mut connected = Connected { connection };
        let read_only = "SELECT CASE WHEN pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN 1 ELSE 0 END";
        let mut rows = connected.rows(read_only, &[], &[Column::Int]).await?;
        if rows.first_mut().is_none_or(|row| row.int() == 1) {
            let why = "the server only reads (it is a standby, or transaction_read_only is on)";
            return Err(Failure::Refused(why.to_owned()));
        }
        Ok(connected)
    }

    pub(super) async fn listen(&self) -> Result<Listening, Failure> {
        let pool = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let pool =
            pool.test_before_acquire(false).connect_with(self.options.clone()).await.map_err(failure)?;
        let mut listener = PgListener::connect_with(&pool).await.map_err(failure)?;
        listener.listen(CHANNEL).await.map_err(failure)?;
        Ok(Listening { listener })
    }
}

impl Listening {
    pub(super) async fn heard(&mut self, domain: &str) -> Result<(), Failure> {
        loop {
            match self.listener.try_recv().await.map_err(failure)? {
                Some(word) if word.payload() != domain => {}
                // Nothing: the connection broke, and words may be lost.
                Some(_) | None => return Ok(()),
            }
        }
    }
}

impl Connected {
    pub(super) async fn warnings(&mut self) -> Result<Vec<String>, Failure> {
        let asked = "SELECT name, setting FROM pg_settings
            WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off' ORDER BY name";
        let rows = self.rows(asked, &[], &[Column::Text, Column::Text]).await?;
        let warning = |mut row: Row| {
            let name = row.text();
            let what = match name.as_str() {
                "fsync" => "a loss of power can destroy the database",
                "full_page_writes" => "a page that was half written is lost",
                _ => "what was acknowledged can be lost in a crash",
            };
            format!("{name} is off: {what}")
        };
        Ok(rows.into_iter().map(warning).collect())
    }

    pub(super) async fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Failure> {
        let done = query(sql, values).execute(&mut self.connection).await.map_err(failure)?;
        Ok(done.rows_affected())
    }

    pub(super) async fn rows(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
        columns: &[Column],
    ) -> Result<Vec<Row>, Failure> {
        let rows = query(sql, values).fetch_all(&mut self.connection).await.map_err(failure)?;
        rows.iter().map(|row| decode(row, columns).map_err(failure)).collect()
    }
}

/// The text is one of ours: what comes from outside is in the values.
fn query(sql: &str, values: &[Value<'_>]) -> Query<'static, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(numbered(sql)));
    values.iter().fold(query, |query, value| match value {
        Value::Int(number) => query.bind(*number),
        Value::Text(text) => query.bind(*text),
        Value::Bytes(bytes) => query.bind(*bytes),
    })
}

/// Writes `?` as this server does: `$1`, `$2` and so on.
fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(1..).fold(first, |text, (part, number)| format!("{text}${number}{part}"))
}

fn decode(row: &PgRow, columns: &[Column]) -> Result<Row, sqlx::Error> {
    let field = |(at, column): (usize, &Column)| {
        Ok(match column {
            // Unchecked, since numbers have several widths.
            Column::Int => Field::Int(row.try_get_unchecked(at)?),
            Column::Text => Field::Text(row.try_get_unchecked(at)?),
            Column::Bytes => Field::Bytes(row.try_get(at)?),
        })
    };
    let fields: Result<Vec<Field>, sqlx::Error> = columns.iter().enumerate().map(field).collect();
    Ok(Row(fields?.into_iter()))
}

/// What an error proves. Only errors that the server raises before it commits prove that nothing was written.
fn failure(error: sqlx::Error) -> Failure {
    let sqlx::Error::Database(answer) = &error else { return super::session::unanswered(&error) };
    let code = answer.code().unwrap_or_default().into_owned();
    let what = format!("{} (error {code})", answer.message());
    match code.as_str() {
        "23505" => Failure::Duplicate,
        // disk_full. The same is sent until there is room.
        "53100" => Failure::Lost(format!("the store is full: {what}")),
        // serialization_failure, deadlock_detected, lock_not_available, too_many_connections, cannot_connect_now
        "40001" | "40P01" | "55P03" | "53300" | "57P03" => Failure::Busy(what),
        _ => match code.get(..2) {
            // Not enough memory or connections.
            Some("53") => Failure::Busy(what),
            // Data, constraints, a transaction that only reads, who one is, no such database, syntax, rights and limits.
            Some("22" | "23" | "25" | "28" | "3D" | "42" | "54") => Failure::Refused(what),
            _ => Failure::Lost(what),
        },
    }
}
