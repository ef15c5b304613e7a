//! Life cycles through the library, with nothing between the callers and the node.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use orchestrix_core::wire::{Complete, CompleteItem, LeaseQueues, Leased, Submit};
use orchestrix_core::{Json, Name};
use orchestrix_node::{Node, Options, Storage, open};

use crate::figures::{Figure, Measure, Who};
use crate::http::QUEUE;
use crate::load::Rate;
use crate::payload::Payloads;

/// Callers at the same time, and tasks per call: always 256 in flight.
const SHAPES: [(usize, usize); 3] = [(256, 1), (8, 32), (1, 256)];

/// Measures every shape on a fresh folder.
///
/// # Errors
/// When the node refuses something or fails.
pub(crate) fn measure(data: &Path, window: Duration, mut step: impl FnMut(&str)) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (callers, batch) in SHAPES {
        let shape = format!("{callers} × {batch}");
        step(&format!("in process, {shape}"));
        let folder = data.join(format!("in-process-{callers}"));
        let (rate, per_sync) = run_shape(&folder, callers, batch, window)
            .with_context(|| format!("in process, {callers} callers"))?;
        let note = format!("{callers} at the same time × {batch} per call, {per_sync:.0} events per sync");
        figures.push(Figure::new(Measure::InProcess, Who::Orchestrix, rate, note));
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(figures)
}

/// Life cycles per second, and events per sync.
fn run_shape(folder: &Path, callers: usize, batch: usize, window: Duration) -> Result<(f64, f64)> {
    // The node has two threads of its own; callers need no more than one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (node, _) = open(&Storage::File(folder.to_owned()), Options::default())?;
    runtime.block_on(async {
        let rate = run_callers(&node, callers, batch, window).await?;
        let stats = node.stats();
        let per_sync = stats.position.get() as f64 / stats.batches.get().max(1) as f64;
        node.stop().await?;
        Ok((rate.per_second, per_sync))
    })
}

/// Runs life cycles for the length of a window, so many callers at once with so many tasks per call.
///
/// # Errors
/// When the node refuses something or fails.
pub(crate) async fn run_callers(node: &Node, callers: usize, batch: usize, window: Duration) -> Result<Rate> {
    let done = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut running = Vec::with_capacity(callers);
    for n in 0..callers {
        let caller = Caller::new(node.clone(), n, batch)?;
        running.push(tokio::spawn(caller.run(start + window, Arc::clone(&done))));
    }
    for caller in running {
        caller.await??;
    }
    let total = done.load(Relaxed);
    Ok(Rate { per_second: total as f64 / start.elapsed().as_secs_f64(), total })
}

/// Submits, leases and completes until the time is over.
struct Caller {
    node: Node,
    queue: Name,
    worker: Name,
    batch: usize,
    payloads: Payloads,
}

impl Caller {
    fn new(node: Node, n: usize, batch: usize) -> Result<Self> {
        let name = |text: &str| Name::new(text).map_err(|error| anyhow!("{error}"));
        let (queue, worker) = (name(QUEUE)?, name(&format!("bench-{n}"))?);
        Ok(Self { node, queue, worker, batch, payloads: Payloads::new(n) })
    }

    async fn run(mut self, end: Instant, done: Arc<AtomicU64>) -> Result<()> {
        while Instant::now() < end {
            self.submit().await?;
            let leases = self.lease().await?;
            let count = leases.len() as u64;
            self.complete(leases).await?;
            done.fetch_add(count, Relaxed);
        }
        Ok(())
    }

    async fn submit(&mut self) -> Result<()> {
        if self.batch == 1 {
            let task = self.task()?;
            self.node.submit(task).await?;
            return Ok(());
        }
        let tasks = (0..self.batch).map(|_| self.task()).collect::<Result<_>>()?;
        for answer in self.node.submit_batch(tasks).await? {
            answer?;
        }
        Ok(())
    }

    fn task(&mut self) -> Result<Submit> {
        let payload = Json::parse(&self.payloads.text()).map_err(|error| anyhow!(error))?;
        Ok(Submit::new(self.queue.clone(), payload))
    }

    async fn lease(&self) -> Result<Vec<Leased>> {
        let request = LeaseQueues {
            queues: vec![self.queue.clone()],
            worker: self.worker.clone(),
            max: self.batch,
            lease_ms: 30_000,
            wait_ms: 0,
            request_id: None,
            capacity: None,
        };
        let leases = self.node.lease(request).await?.leases;
        if leases.is_empty() {
            bail!("a lease call came back empty although tasks wait");
        }
        Ok(leases)
    }

    async fn complete(&self, leases: Vec<Leased>) -> Result<()> {
        if let [Leased { task_id, lease_id, .. }] = leases[..] {
            self.node.complete(task_id, Complete { lease_id, worker: None, result: None }).await?;
            return Ok(());
        }
        let item =
            |lease: Leased| CompleteItem { task_id: lease.task_id, lease_id: lease.lease_id, result: None };
        for answer in self.node.complete_batch(leases.into_iter().map(item).collect()).await? {
            answer?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_measured_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let figures = measure(folder.path(), Duration::from_millis(200), |_| {}).unwrap();
        assert_eq!(figures.len(), SHAPES.len());
        assert!(figures.iter().all(|figure| figure.value > 0.0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
