//! Raw appends to a server, in its simplest way.
//!
//! Two measures. [`Raw::appends`]: as many bytes as a node appends at once, one append at a time; so what is left between
//! the two is what a node adds. [`Raw::tasks`]: one entry or row for each task, so many in a call as callers of a node
//! put into one; so what is left is what a life cycle costs beside a task that is only stored.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orchestrix_testbed::Store;

use crate::http;
use crate::load::WARM_UP;
use crate::payload::Payloads;
use crate::process::ask;
use crate::redis::Appender;
use crate::sql::Sql;
use crate::stores::Kind;

/// Where the bytes of an append are cut from: letters that no server can make smaller.
const POOL_BYTES: usize = 4 << 20;
/// Far enough from the bytes of the last append, and no divisor of the pool.
const STRIDE: usize = 65_537;

/// Clients that append.
pub(crate) struct Raw {
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
    Sql(Sql),
    SeaweedFs { client: http::Alone, folder: String, next: u64 },
}

impl Raw {
    /// For up to so many callers with so many tasks in a call.
    ///
    /// # Errors
    /// When the server does not let us in.
    pub(crate) fn connect(kind: Kind, store: &Store, callers: usize, batch: usize) -> Result<Self> {
        let client = prepared(connect(kind, store, batch)?, store)?;
        let mut pool = Vec::with_capacity(POOL_BYTES);
        let mut payloads = Payloads::new(7);
        while pool.len() < POOL_BYTES {
            payloads.write(&mut pool);
        }
        let caller = |n: usize| Ok((connect(kind, store, batch)?, Payloads::new(100 + n)));
        let callers = (0..callers).map(caller).collect::<Result<_>>()?;
        Ok(Self { kind, client, pool, at: 0, callers, batch })
    }

    /// Appends so many bytes again and again for a time. Answers how often per second, without the beginning.
    ///
    /// # Errors
    /// When the server refuses something.
    pub(crate) fn appends(&mut self, bytes: usize, window: Duration) -> Result<f64> {
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
    pub(crate) fn tasks(&mut self, callers: usize, window: Duration) -> Result<Option<f64>> {
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
            Self::Sql(client) => client.insert(&[bytes]),
            Self::SeaweedFs { client, folder, next } => {
                *next += 1;
                let (status, said) = client.ask("PUT", &format!("{folder}/{next:020}"), bytes)?;
                ensure!(status == 200, "PUT was answered {status}: {said}");
                Ok(())
            }
        }
    }

    /// Stores as many tasks as a call has.
    fn store(&mut self, tasks: &[&[u8]]) -> Result<()> {
        match self {
            Self::Redis(client) => client.append_all(tasks),
            Self::Sql(client) => client.insert(tasks),
            Self::SeaweedFs { .. } => tasks.iter().try_for_each(|task| self.append(task)),
        }
    }

    /// Forgets what was appended, where it fills the memory of the server. Tables grow, as those of a node do: to empty
    /// one would keep the server busy in the window that follows.
    fn clear(&mut self) -> Result<()> {
        match self {
            Self::Redis(client) => client.clear(),
            Self::Sql(_) | Self::SeaweedFs { .. } => Ok(()),
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
fn prepared(mut client: Client, store: &Store) -> Result<Client> {
    match &mut client {
        Client::Redis(_) => {
            // One window would pay for what was written in another.
            let set = ask(store.address(), b"CONFIG SET auto-aof-rewrite-percentage 0\r\n")?;
            ensure!(set == "+OK", "a setting was answered {set}");
        }
        Client::Sql(client) => client.make_table()?,
        Client::SeaweedFs { .. } => {}
    }
    Ok(client)
}

fn connect(kind: Kind, store: &Store, batch: usize) -> Result<Client> {
    Ok(match kind {
        Kind::Redis => Client::Redis(Appender::connect(store.address())?),
        Kind::MariaDb | Kind::Postgres => Client::Sql(Sql::connect(&store.url(), batch)?),
        Kind::SeaweedFs => {
            let client = http::Alone::connect(store.address())?;
            Client::SeaweedFs { client, folder: store.object("raw"), next: 0 }
        }
    })
}
