//! What a server does when nobody coordinates: the same bytes, appended in the simplest way that it has, one at a time.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::http;
use super::load::WARM_UP;
use super::mysql::{MySql, Statement};
use super::postgres::Postgres;
use super::redis::Appender;
use super::stores::{BUCKET, DATABASE, Kind, Store};

/// Where the bytes of an append are cut from: letters that no server can make smaller.
const POOL_BYTES: usize = 4 << 20;
/// Far enough from the bytes of the last append, and no divisor of the pool.
const STRIDE: usize = 65_537;

/// A client that appends bytes.
pub(super) struct Raw {
    client: Client,
    pool: Vec<u8>,
    at: usize,
}

enum Client {
    Redis(Appender),
    MariaDb(MySql, Statement),
    Postgres(Postgres),
    SeaweedFs(http::Alone, u64),
}

impl Raw {
    /// # Errors
    /// When the server does not let us in.
    pub(super) fn connect(store: &Store) -> Result<Self> {
        let client = connect(store.kind, store.address())?;
        let mut pool = Vec::with_capacity(POOL_BYTES);
        let mut payloads = super::payload::Payloads::new(7);
        while pool.len() < POOL_BYTES {
            payloads.write(&mut pool);
        }
        Ok(Self { client, pool, at: 0 })
    }

    /// Appends so many bytes again and again for a time. Answers how often per second, without the beginning.
    ///
    /// # Errors
    /// When the server refuses something.
    pub(super) fn window(&mut self, bytes: usize, window: Duration) -> Result<f64> {
        ensure!((1..POOL_BYTES / 2).contains(&bytes), "{bytes} bytes cannot be appended at once");
        self.clear()?;
        let start = Instant::now();
        while start.elapsed() < window.mul_f64(WARM_UP) {
            self.append(bytes)?;
        }
        let (counted, mut appends) = (Instant::now(), 0_u32);
        while start.elapsed() < window || appends == 0 {
            self.append(bytes)?;
            appends += 1;
        }
        Ok(f64::from(appends) / counted.elapsed().as_secs_f64())
    }

    fn append(&mut self, bytes: usize) -> Result<()> {
        self.at = (self.at + STRIDE) % (self.pool.len() - bytes);
        let bytes = &self.pool[self.at..self.at + bytes];
        match &mut self.client {
            Client::Redis(client) => client.append(bytes),
            Client::MariaDb(client, insert) => client.execute(*insert, bytes),
            Client::Postgres(client) => client.execute(bytes),
            Client::SeaweedFs(client, next) => {
                *next += 1;
                let (status, said) = client.ask("PUT", &format!("/{BUCKET}/raw/{next:020}"), bytes)?;
                ensure!(status == 200, "PUT was answered {status}: {said}");
                Ok(())
            }
        }
    }

    /// Forgets what was appended, where that is quick, so that a long run does not fill the server.
    fn clear(&mut self) -> Result<()> {
        match &mut self.client {
            Client::Redis(client) => client.clear(),
            Client::MariaDb(client, _) => client.run("TRUNCATE TABLE raw"),
            Client::Postgres(client) => client.run("TRUNCATE TABLE raw"),
            Client::SeaweedFs(..) => Ok(()),
        }
    }
}

fn connect(kind: Kind, address: SocketAddr) -> Result<Client> {
    Ok(match kind {
        Kind::Redis => Client::Redis(Appender::connect(address)?),
        Kind::MariaDb => {
            let mut client = MySql::connect(address)?;
            client.run(&format!("USE {DATABASE}"))?;
            client.run("CREATE TABLE raw (id BIGINT AUTO_INCREMENT PRIMARY KEY, bytes LONGBLOB NOT NULL)")?;
            let insert = client.prepare("INSERT INTO raw (bytes) VALUES (?)")?;
            Client::MariaDb(client, insert)
        }
        Kind::Postgres => {
            let mut client = Postgres::connect(address)?;
            client.run("CREATE TABLE raw (id BIGSERIAL PRIMARY KEY, bytes BYTEA NOT NULL)")?;
            client.prepare("INSERT INTO raw (bytes) VALUES ($1)")?;
            Client::Postgres(client)
        }
        Kind::SeaweedFs => Client::SeaweedFs(http::Alone::connect(address)?, 0),
    })
}
