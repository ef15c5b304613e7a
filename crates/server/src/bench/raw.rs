//! What a server does when nobody coordinates: appends in the simplest way that it has.
//!
//! Two measures. [`Raw::appends`]: as many bytes as a node appends at once, one append at a time; so what is left between
//! the two is what a node adds. [`Raw::tasks`]: one entry or row for each task, so many in a call as callers of a node
//! put into one; so what is left is what a life cycle costs beside a task that is only stored.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::http;
use super::load::WARM_UP;
use super::mysql::{MySql, Statement};
use super::payload::Payloads;
use super::postgres::Postgres;
use super::process::ask;
use super::redis::Appender;
use super::stores::{BUCKET, DATABASE, Kind, Store};

/// Where the bytes of an append are cut from: letters that no server can make smaller.
const POOL_BYTES: usize = 4 << 20;
/// Far enough from the bytes of the last append, and no divisor of the pool.
const STRIDE: usize = 65_537;
/// The statements of PostgreSQL.
const ONE: &str = "one";
const MANY: &str = "many";

/// Clients that append.
pub(super) struct Raw {
    kind: Kind,
    client: Client,
    pool: Vec<u8>,
    at: usize,
    /// Store tasks, each on its own thread.
    callers: Vec<(Client, Payloads)>,
    batch: usize,
}

enum Client {
    Redis(Appender),
    MariaDb { client: MySql, one: Statement, many: Statement },
    Postgres(Postgres),
    SeaweedFs(http::Alone, u64),
}

impl Raw {
    /// For up to so many callers with so many tasks in a call.
    ///
    /// # Errors
    /// When the server does not let us in.
    pub(super) fn connect(store: &Store, callers: usize, batch: usize) -> Result<Self> {
        let (kind, address) = (store.kind, store.address());
        prepare(kind, address)?;
        let client = connect(kind, address, batch)?;
        let mut pool = Vec::with_capacity(POOL_BYTES);
        let mut payloads = Payloads::new(7);
        while pool.len() < POOL_BYTES {
            payloads.write(&mut pool);
        }
        let caller = |n: usize| Ok((connect(kind, address, batch)?, Payloads::new(100 + n)));
        let callers = (0..callers).map(caller).collect::<Result<_>>()?;
        Ok(Self { kind, client, pool, at: 0, callers, batch })
    }

    /// Appends so many bytes again and again for a time. Answers how often per second, without the beginning.
    ///
    /// # Errors
    /// When the server refuses something.
    pub(super) fn appends(&mut self, bytes: usize, window: Duration) -> Result<f64> {
        ensure!((1..POOL_BYTES / 2).contains(&bytes), "{bytes} bytes cannot be appended at once");
        self.client.clear()?;
        let Self { client, pool, at, .. } = self;
        repeat(window, || {
            *at = (*at + STRIDE) % (pool.len() - bytes);
            client.append(&pool[*at..*at + bytes])
        })
    }

    /// Stores tasks for a time, so many callers at once. Answers how many tasks per second, without the beginning; none
    /// where one call cannot store many.
    ///
    /// # Errors
    /// When the server refuses something.
    pub(super) fn tasks(&mut self, callers: usize, window: Duration) -> Result<Option<f64>> {
        if self.kind == Kind::SeaweedFs {
            return Ok(None);
        }
        self.client.clear()?;
        let batch = self.batch;
        let store = |(client, payloads): &mut (Client, Payloads)| {
            let mut bytes = Vec::new();
            repeat(window, || {
                bytes.clear();
                (0..batch).for_each(|_| payloads.write(&mut bytes));
                client.store(&bytes.chunks(bytes.len() / batch).collect::<Vec<_>>())
            })
        };
        let calls: Result<f64> = thread::scope(|scope| {
            let callers = self.callers.iter_mut().take(callers);
            let all: Vec<_> = callers.map(|caller| scope.spawn(|| store(caller))).collect();
            all.into_iter().map(|one| one.join().ok().context("a caller stopped because of a bug")?).sum()
        });
        Ok(Some(calls? * batch as f64))
    }
}

impl Client {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Redis(client) => client.append(bytes),
            Self::MariaDb { client, one, .. } => client.execute(*one, &[bytes]),
            Self::Postgres(client) => client.execute(ONE, &[bytes]),
            Self::SeaweedFs(client, next) => {
                *next += 1;
                let (status, said) = client.ask("PUT", &format!("/{BUCKET}/raw/{next:020}"), bytes)?;
                ensure!(status == 200, "PUT was answered {status}: {said}");
                Ok(())
            }
        }
    }

    /// Stores as many tasks as a call has.
    fn store(&mut self, tasks: &[&[u8]]) -> Result<()> {
        match self {
            Self::Redis(client) => client.append_all(tasks),
            Self::MariaDb { client, many, .. } => client.execute(*many, tasks),
            Self::Postgres(client) => client.execute(MANY, tasks),
            Self::SeaweedFs(..) => tasks.iter().try_for_each(|task| self.append(task)),
        }
    }

    /// Forgets what was appended, where it fills the memory of the server. Tables grow, as those of a node do: to empty
    /// one would keep the server busy in the window that follows.
    fn clear(&mut self) -> Result<()> {
        match self {
            Self::Redis(client) => client.clear(),
            Self::MariaDb { .. } | Self::Postgres(_) | Self::SeaweedFs(..) => Ok(()),
        }
    }
}

/// Acts again and again for a time. Answers how often per second, without the beginning.
fn repeat(window: Duration, mut act: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    while start.elapsed() < window.mul_f64(WARM_UP) {
        act()?;
    }
    let (counted, mut times) = (Instant::now(), 0_u32);
    while start.elapsed() < window || times == 0 {
        act()?;
        times += 1;
    }
    Ok(f64::from(times) / counted.elapsed().as_secs_f64())
}

/// Makes what the clients write to, and has the server write its file anew at no time.
fn prepare(kind: Kind, address: SocketAddr) -> Result<()> {
    match kind {
        Kind::Redis => {
            // One window would pay for what was written in another.
            let set = ask(address, b"CONFIG SET auto-aof-rewrite-percentage 0\r\n")?;
            ensure!(set == "+OK", "a setting was answered {set}");
            Ok(())
        }
        Kind::SeaweedFs => Ok(()),
        Kind::MariaDb => MySql::connect(address)?.run(&format!(
            "CREATE TABLE {DATABASE}.raw (id BIGINT AUTO_INCREMENT PRIMARY KEY, bytes LONGBLOB NOT NULL)"
        )),
        Kind::Postgres => Postgres::connect(address)?
            .run("CREATE TABLE raw (id BIGSERIAL PRIMARY KEY, bytes BYTEA NOT NULL)"),
    }
}

fn connect(kind: Kind, address: SocketAddr, batch: usize) -> Result<Client> {
    let insert = |row: fn(usize) -> String, count: usize| {
        let rows: Vec<String> = (1..=count).map(row).collect();
        format!("INSERT INTO raw (bytes) VALUES {}", rows.join(", "))
    };
    Ok(match kind {
        Kind::Redis => Client::Redis(Appender::connect(address)?),
        Kind::MariaDb => {
            let mut client = MySql::connect(address)?;
            client.run(&format!("USE {DATABASE}"))?;
            let one = client.prepare(&insert(|_| "(?)".to_owned(), 1), 1)?;
            let many = client.prepare(&insert(|_| "(?)".to_owned(), batch), batch)?;
            Client::MariaDb { client, one, many }
        }
        Kind::Postgres => {
            let mut client = Postgres::connect(address)?;
            client.prepare(ONE, &insert(|n| format!("(${n})"), 1))?;
            client.prepare(MANY, &insert(|n| format!("(${n})"), batch))?;
            Client::Postgres(client)
        }
        Kind::SeaweedFs => Client::SeaweedFs(http::Alone::connect(address)?, 0),
    })
}
