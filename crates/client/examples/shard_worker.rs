//! A worker that divides the shards of a service with others, over ZeroMQ or HTTP.
//!
//!     cargo run -p orchestrix-client --example shard_worker -- tcp://127.0.0.1:5555 orders worker-1 10
//!
//! It prints a line of JSON when it begins to serve a shard, whenever it does something with one, and when it has
//! stopped.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orchestrix_client::{Shard, ShardWorker};
use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often something is done with every shard.
const TICK: Duration = Duration::from_millis(20);

/// What is served. Whoever holds the lock works; so whoever takes a shard out of it knows that nobody does any more.
type Serving = Arc<Mutex<BTreeMap<u32, Shard>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    serve(&arguments).await
}

/// Serves until it is told to stop.
pub(crate) async fn serve(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [address, service, worker, shards] = arguments else {
        return Err("usage: shard_worker ADDRESS SERVICE WORKER SHARDS".into());
    };
    let serving = Serving::default();
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! {
                _ = terminate.recv() => stop.cancel(),
                _ = interrupt.recv() => stop.cancel(),
            }
        }
    });
    tokio::spawn(work(Arc::clone(&serving)));

    let (begins, ends) = (Arc::clone(&serving), serving);
    ShardWorker::new(address, service, shards.parse()?)
        .name(worker)
        .on_assigned(move |shards| {
            let mut serving = begins.lock().unwrap_or_else(PoisonError::into_inner);
            for shard in shards {
                tell("serve", &shard);
                serving.insert(shard.number(), shard);
            }
            std::future::ready(())
        })
        .on_revoked(move |shards| {
            let mut serving = ends.lock().unwrap_or_else(PoisonError::into_inner);
            for shard in shards {
                serving.remove(&shard.number());
                tell("stop", &shard);
            }
            std::future::ready(())
        })
        .run(stop)
        .await?;
    Ok(())
}

/// Does something with every shard, over and over.
async fn work(serving: Serving) {
    loop {
        tokio::time::sleep(TICK).await;
        let serving = serving.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in serving.values() {
            // We may have slept, and another may serve what was ours.
            if shard.is_held() {
                tell("use", shard);
            }
        }
    }
}

fn tell(event: &str, shard: &Shard) {
    let now = clock_gettime(ClockId::Monotonic);
    let (at, shard, token) = (now.tv_sec * 1_000_000_000 + now.tv_nsec, shard.number(), shard.token());
    let line = format!("{{\"at\":{at},\"event\":\"{event}\",\"shard\":{shard},\"token\":{token}}}\n");
    // A reader that has gone misses nothing else.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
