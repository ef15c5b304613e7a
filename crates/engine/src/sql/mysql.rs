//! What is particular to MySQL and MariaDB.

use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, MySql, Row as _};

use crate::BATCH_BYTES_MAX;

use super::fault::Failure;
use super::server::{Column, Field, Row, Statements, Value};

/// Below this, not even a chunk of a snapshot fits a statement.
const PACKET_MIN: usize = 5 << 20;

/// What is asked of the server at each connect.
const SETTINGS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'max_allowed_packet', \
     'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog', 'wsrep_on')";

pub(super) const STATEMENTS: Statements = Statements {
    has_schema: "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = 'orchestrix_schema'",
    tables: &[
        "CREATE TABLE IF NOT EXISTS orchestrix_schema (
            name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
            version BIGINT NOT NULL
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS orchestrix_journals (
            domain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
            id BINARY(16) NOT NULL,
            floor_position BIGINT NOT NULL
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS orchestrix_batches (
            domain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            first_position BIGINT NOT NULL,
            last_position BIGINT NOT NULL,
            previous_hash BINARY(16) NOT NULL,
            hash BINARY(16) NOT NULL,
            parcel LONGBLOB NOT NULL,
            PRIMARY KEY (domain, last_position),
            UNIQUE KEY one_follows (domain, first_position)
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS orchestrix_snapshots (
            domain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            at_position BIGINT NOT NULL,
            hash BINARY(16) NOT NULL,
            writing BINARY(16) NOT NULL,
            chunks BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            PRIMARY KEY (domain, at_position)
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS orchestrix_chunks (
            domain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            writing BINARY(16) NOT NULL,
            number BIGINT NOT NULL,
            at_position BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            bytes LONGBLOB NOT NULL,
            stored_at DATETIME(6) NOT NULL,
            PRIMARY KEY (domain, writing, number)
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS orchestrix_logs (
            place BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
            domain VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            task BIGINT NOT NULL,
            lease BIGINT NOT NULL,
            line_offset BIGINT NOT NULL,
            crc BIGINT NOT NULL,
            bytes LONGBLOB NOT NULL,
            number BIGINT,
            UNIQUE KEY once (domain, task, lease, line_offset),
            KEY by_task (domain, task, place),
            UNIQUE KEY one_of_each_number (domain, task, number)
        ) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS helix_locks (
            lock_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
            owner_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
            expires_at DATETIME(6) NOT NULL,
            epoch BIGINT NOT NULL,
            version BIGINT NOT NULL,
            value BLOB NOT NULL,
            status TINYINT NOT NULL,
            created_at DATETIME(6) NOT NULL,
            updated_at DATETIME(6) NOT NULL
        ) ENGINE = InnoDB",
    ],
    upgrades: &[
        // Chunks of output had no numbers.
        &[
            "ALTER TABLE orchestrix_logs ADD COLUMN number BIGINT",
            "ALTER TABLE orchestrix_logs ADD UNIQUE KEY one_of_each_number (domain, task, number)",
        ],
    ],
    schema_begin: &[],
    // Names of locks are the server's, not the database's.
    schema_lock: "SELECT COALESCE(GET_LOCK(CONCAT('orchestrix/', MD5(DATABASE())), 60), 0)",
    schema_end: "DO RELEASE_LOCK(CONCAT('orchestrix/', MD5(DATABASE())))",
    schema_undo: "DO RELEASE_LOCK(CONCAT('orchestrix/', MD5(DATABASE())))",
    // The row of the journal is locked against a floor that rises meanwhile.
    append_first: "INSERT INTO orchestrix_batches
            (domain, first_position, last_position, previous_hash, hash, parcel)
        SELECT j.domain, ?, ?, ?, ?, ? FROM orchestrix_journals j
        WHERE j.domain = ? AND j.id = ? AND j.floor_position <= ?
        LOCK IN SHARE MODE",
    append_next: "INSERT INTO orchestrix_batches
            (domain, first_position, last_position, previous_hash, hash, parcel)
        SELECT j.domain, ?, ?, ?, ?, ? FROM orchestrix_journals j
        WHERE j.domain = ? AND j.id = ? AND j.floor_position <= ?
            AND EXISTS (SELECT 1 FROM orchestrix_batches p
                WHERE p.domain = j.domain AND p.last_position = ? AND p.hash = ?)
        LOCK IN SHARE MODE",
    append_log: "INSERT INTO orchestrix_logs (domain, task, number, lease, line_offset, crc, bytes)
        SELECT ?, ?, ?, ?, ?, ?, ? FROM DUAL
        WHERE (SELECT COUNT(*) FROM orchestrix_logs l WHERE l.domain = ? AND l.task = ?) = ?",
    claim_first: "INSERT INTO helix_locks
            (owner_id, epoch, version, value, status, expires_at, created_at, updated_at, lock_key)
        VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ?)",
    // A new version is never the old one, so a matching row is a changed row, whichever of the two the
    // server counts.
    claim_next: "UPDATE helix_locks
        SET owner_id = ?, epoch = ?, version = ?, value = ?, status = ?,
            expires_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, updated_at = UTC_TIMESTAMP(6)
        WHERE lock_key = ? AND version = ?
            AND (? = 1 OR status = 0 OR owner_id = ? OR expires_at < UTC_TIMESTAMP(6)
                OR updated_at > UTC_TIMESTAMP(6))",
    cells: "SELECT lock_key, owner_id, epoch, version, value, status,
            TIMESTAMPDIFF(MICROSECOND, updated_at, expires_at)
        FROM helix_locks",
};

/// How to reach a server.
pub(super) struct Target {
    options: MySqlConnectOptions,
}

/// A connection that is set up.
pub(super) struct Connected {
    connection: MySqlConnection,
    settings: Vec<(String, String)>,
    pub(super) max_allowed_packet: usize,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        // The driver's own words may quote the URL.
        let options = MySqlConnectOptions::from_str(url).map_err(|_| "it is no URL of a MySQL database")?;
        let options = options.pipes_as_concat(false).no_engine_substitution(false).timezone(None);
        Ok(Self { options: options.disable_statement_logging() })
    }

    pub(super) async fn connect(&self, timeout: Duration) -> Result<Connected, Failure> {
        let connection = MySqlConnection::connect_with(&self.options).await.map_err(failure)?;
        let mut connected = Connected { connection, settings: Vec::new(), max_allowed_packet: 0 };
        let rows = connected.rows(SETTINGS, &[], &[Column::Text, Column::Text]).await?;
        connected.settings = rows.into_iter().map(|mut row| (row.text(), row.text())).collect();
        connected.check()?;
        // In whole seconds, and never without limit.
        let seconds = timeout.as_secs().max(1);
        let limit = if connected.setting("version").contains("MariaDB") {
            format!("max_statement_time = {}", timeout.as_secs_f64().max(0.1))
        } else {
            format!("max_execution_time = {}", timeout.as_millis().max(100))
        };
        let set = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = {seconds}, {limit}, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
        );
        connected.execute(&set, &[]).await?;
        connected.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", &[]).await?;
        Ok(connected)
    }
}

impl Connected {
    fn setting(&self, name: &str) -> &str {
        self.settings.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// A server that cannot keep a journal is refused.
    fn check(&mut self) -> Result<(), Failure> {
        let read_only = self.setting("read_only");
        if !["", "OFF", "0", "NO_LOCK", "NO_LOCK_NO_ADMIN"].contains(&read_only) {
            return Err(Failure::Refused(format!("the server only reads (read_only is {read_only})")));
        }
        self.max_allowed_packet = self.setting("max_allowed_packet").parse().unwrap_or(0);
        if self.max_allowed_packet < PACKET_MIN {
            let why = format!(
                "max_allowed_packet is {} bytes; the least that works is {PACKET_MIN}, and {} takes everything",
                self.max_allowed_packet,
                BATCH_BYTES_MAX + (1 << 20)
            );
            return Err(Failure::Refused(why));
        }
        Ok(())
    }

    pub(super) async fn warnings(&mut self) -> Result<Vec<String>, Failure> {
        let mut warnings = Vec::new();
        let flush = self.setting("innodb_flush_log_at_trx_commit");
        if flush != "1" {
            warnings.push(format!(
                "innodb_flush_log_at_trx_commit is {flush}, not 1: what was acknowledged can be lost in a crash"
            ));
        }
        if self.setting("log_bin") == "ON" && self.setting("sync_binlog") != "1" {
            let sync = self.setting("sync_binlog");
            warnings.push(format!(
                "sync_binlog is {sync}, not 1: replicas can lack what was acknowledged, or have what was not"
            ));
        }
        if self.setting("innodb_doublewrite") == "OFF" {
            warnings.push("innodb_doublewrite is off: a page that was half written is lost".to_owned());
        }
        if self.setting("wsrep_on") == "ON" {
            warnings
                .push("wsrep_on is on: with several nodes that write, a cluster can lose updates".to_owned());
        }
        if self.max_allowed_packet < BATCH_BYTES_MAX + (1 << 20) {
            warnings.push(format!(
                "max_allowed_packet is {} bytes: a larger batch is refused; {} takes everything",
                self.max_allowed_packet,
                BATCH_BYTES_MAX + (1 << 20)
            ));
        }
        Ok(warnings)
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
fn query(sql: &str, values: &[Value<'_>]) -> Query<'static, MySql, MySqlArguments> {
    let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    values.iter().fold(query, |query, value| match value {
        Value::Int(number) => query.bind(*number),
        Value::Text(text) => query.bind(*text),
        Value::Bytes(bytes) => query.bind(*bytes),
    })
}

fn decode(row: &MySqlRow, columns: &[Column]) -> Result<Row, sqlx::Error> {
    // Unchecked, since a text with a binary collation calls itself bytes.
    let field = |(at, column): (usize, &Column)| {
        Ok(match column {
            Column::Int => Field::Int(row.try_get_unchecked(at)?),
            Column::Text => Field::Text(row.try_get_unchecked(at)?),
            Column::Bytes => Field::Bytes(row.try_get_unchecked(at)?),
        })
    };
    let fields: Result<Vec<Field>, sqlx::Error> = columns.iter().enumerate().map(field).collect();
    Ok(Row(fields?.into_iter()))
}

/// What an error proves. Only errors that the server raises before it commits prove that nothing was written.
fn failure(error: sqlx::Error) -> Failure {
    let sqlx::Error::Database(answer) = &error else { return super::session::unanswered(&error) };
    let number = answer.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number);
    let what = format!("{} (error {number})", answer.message());
    match number {
        // ER_DUP_ENTRY, and ER_DUP_FIELDNAME, ER_DUP_KEYNAME for changes of tables.
        1060..=1062 => Failure::Duplicate,
        // ER_DISK_FULL, ER_RECORD_FILE_FULL. The same is sent until there is room.
        1021 | 1114 => Failure::Lost(format!("the store is full: {what}")),
        // ER_OUT_OF_RESOURCES, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED, ER_CHECKREAD, ER_LOCK_WAIT_TIMEOUT,
        // ER_LOCK_DEADLOCK, ER_CON_COUNT_ERROR, and ER_HOST_IS_BLOCKED, which ends
        // when an operator flushes the hosts.
        1041 | 1203 | 1226 | 1020 | 1205 | 1213 | 1040 | 1129 => Failure::Busy(what),
        // No right to the database, the table or a column, no such database, table or column, a text that is no statement, a
        // value that does not fit, a packet that is too large, a server that only reads or cannot
        // log what READ COMMITTED writes.
        1044 | 1045 | 1049 | 1054 | 1064 | 1130 | 1136 | 1142 | 1143 | 1146 | 1153 | 1251 | 1264 | 1290
        | 1366 | 1406 | 1665 | 1698 | 1792 | 1836 => Failure::Refused(what),
        _ => Failure::Lost(what),
    }
}
