//! The engine under the output of tasks: calls to it, deletions in the background, and its end.
//!
//! Most tasks have no output, and a server that is asked to delete nothing has work all the same. So a node that walks over
//! all output at the beginning of a term ([`Sweep`]) knows afterwards which tasks have some.
//!
//! **Invariant:** when [`Store::close`] returns, nothing uses the engine any more: the folder is free for the
//! next node.

use std::collections::BTreeSet;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use orchestrix_core::{Refusal, TaskId};
use orchestrix_engine::{Cause, Clock as _, LogThrottle, Logs, SystemClock};
use tokio::sync::oneshot;

use super::sweep::{Sweep, Swept};
use crate::request::Error;
use crate::sync::mpsc::Sender;

/// Tasks whose output is deleted at one go. Bounds how long a stop waits for that.
const DELETED_MAX: usize = 100;
/// Purged tasks whose output waits to be deleted. Bounds memory (8 bytes for each) while a disk is slow.
const WAITING_TASKS_MAX: usize = 1 << 20;

/// What is asked of the engine, for people.
const CALL: &str = "store or read task output";

/// Where calls of the engine run: they may block.
pub(crate) enum Calls {
    Threads,
    /// A simulation has the other end and runs them.
    Handed(Sender<OutputCall>),
}

/// A call of the engine that waits to be run.
pub struct OutputCall(Box<dyn FnOnce() + Send>);

impl OutputCall {
    pub fn run(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for OutputCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputCall").finish_non_exhaustive()
    }
}

pub(super) struct Store {
    calls: Calls,
    /// `None` once the node has stopped. A caller of the engine holds this, so closing waits for all calls.
    engine: RwLock<Option<Arc<dyn Logs>>>,
    deletions: Mutex<Deletions>,
    /// There is something to delete, or this is the end.
    news: Condvar,
    /// The engine refuses calls.
    throttle: LogThrottle,
}

/// What the thread does next.
enum Next {
    Delete(Vec<TaskId>),
    /// Nothing waits; the sweep may continue.
    Idle,
    End,
}

#[derive(Default)]
struct Deletions {
    waiting: Vec<TaskId>,
    /// Tasks that have output, or are about to: all of them, once a walk has named those that were there before.
    with_output: BTreeSet<TaskId>,
    knows_all: bool,
    /// Begins with the first deletion.
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

impl Store {
    pub(super) fn new(engine: Arc<dyn Logs>, calls: Calls) -> Arc<Self> {
        let engine = RwLock::new(Some(engine));
        let throttle = LogThrottle::new("task output is not available", "task output is available again");
        Arc::new(Self { calls, engine, deletions: Mutex::default(), news: Condvar::new(), throttle })
    }

    fn start_call(&self, call: OutputCall) {
        match &self.calls {
            Calls::Threads => drop(tokio::task::spawn_blocking(|| call.run())),
            // Their thread ended with the node.
            Calls::Handed(calls) => drop(calls.send(call)),
        }
    }

    /// Calls the engine where blocking is allowed. A call that has begun ends, even if its caller is gone.
    pub(super) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn Logs) -> Result<T, orchestrix_engine::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = Arc::clone(self);
        let (done, result) = oneshot::channel();
        self.start_call(OutputCall(Box::new(move || {
            let answer = store.with_engine(call);
            // The engine is free when the caller hears of it. The caller may be gone.
            drop(store);
            drop(done.send(answer));
        })));
        match result.await {
            Ok(Some(Ok(value))) => {
                self.throttle.succeeded(SystemClock.boot(), CALL);
                Ok(value)
            }
            Ok(Some(Err(error))) => {
                self.throttle.failed(SystemClock.boot(), CALL, &error.source.to_string());
                let full = matches!(error.source, Cause::Full { .. });
                let otherwise =
                    if error.retryable { Error::Unavailable } else { Error::Refused(Refusal::Internal) };
                Err(if full { Error::StorageFull } else { otherwise })
            }
            Ok(None) => Err(Error::Stopping),
            Err(_) => Err(Error::Refused(Refusal::Internal)),
        }
    }

    /// A task is about to have output.
    pub(super) fn expect_output(&self, task: TaskId) {
        self.deletions().with_output.insert(task);
    }

    /// Lets a thread delete the output of tasks: that may sync and write whole files anew, and no call waits for
    /// it. What it does not get to is deleted at the next start, or by the next leader.
    pub(super) fn delete(self: &Arc<Self>, mut tasks: Vec<TaskId>) {
        let mut deletions = self.deletions();
        let Deletions { with_output, knows_all, .. } = &mut *deletions;
        tasks.retain(|task| with_output.remove(task) || !*knows_all);
        if deletions.closed || tasks.is_empty() {
            return;
        }
        if matches!(self.calls, Calls::Handed(_)) {
            let store = Arc::clone(self);
            self.start_call(OutputCall(Box::new(move || store.delete_now(&tasks))));
            return;
        }
        if deletions.waiting.len() + tasks.len() > WAITING_TASKS_MAX {
            let tasks = tasks.len();
            tracing::warn!(
                tasks,
                "the output of purged tasks is deleted only at the next start, or by the next leader: too much waits"
            );
            return;
        }
        deletions.waiting.extend(tasks);
        self.news.notify_one();
        if deletions.thread.is_none() {
            self.start(&mut deletions, None);
        }
    }

    /// Lets the thread sweep beside the requested deletions. Called once, before anything is deleted.
    pub(super) fn sweep(self: &Arc<Self>, sweep: Sweep) {
        let mut deletions = self.deletions();
        if deletions.thread.is_none() && !deletions.closed {
            self.start(&mut deletions, Some(sweep));
        }
    }

    fn start(self: &Arc<Self>, deletions: &mut Deletions, sweep: Option<Sweep>) {
        let store = Arc::clone(self);
        let name = "orchestrix-output".to_owned();
        match thread::Builder::new().name(name).spawn(move || store.work(sweep)) {
            Ok(thread) => deletions.thread = Some(thread),
            Err(error) => tracing::warn!(%error, "the output of purged tasks waits to be deleted"),
        }
    }

    /// Ends all use of the engine: lets calls that have begun end, and refuses others. What waits to be deleted is left
    /// for the next start, or the next leader: a stop does not wait for it.
    pub(super) fn close(&self) {
        let mut deletions = self.deletions();
        deletions.closed = true;
        self.news.notify_one();
        let left = mem::take(&mut deletions.waiting).len();
        if left > 0 {
            tracing::info!(tasks = left, "left the output of purged tasks to be deleted later");
        }
        let thread = deletions.thread.take();
        drop(deletions);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("deleting the output of purged tasks stopped because of a bug");
        }
        drop(self.engine.write().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn work(&self, mut sweep: Option<Sweep>) {
        loop {
            match self.next(sweep.is_some()) {
                Next::Delete(tasks) => self.delete_now(&tasks),
                Next::Idle => {
                    let swept = sweep.as_mut().and_then(|sweep| self.sweep_on(sweep));
                    match swept {
                        Some(Swept::Pause(pause)) => self.pause(pause),
                        Some(Swept::Over | Swept::GivenUp) | None => sweep = None,
                    }
                }
                Next::End => return,
            }
        }
    }

    fn sweep_on(&self, sweep: &mut Sweep) -> Option<Swept> {
        let note = |tasks: &[TaskId]| self.deletions().with_output.extend(tasks);
        let swept = self.with_engine(|engine| sweep.step(engine, note))?;
        if swept == Swept::Over {
            self.deletions().knows_all = true;
        }
        Some(swept)
    }

    fn delete_now(&self, tasks: &[TaskId]) {
        if let Some(Err(error)) = self.with_engine(|engine| engine.delete(tasks)) {
            tracing::warn!(
                %error,
                "cannot delete the output of purged tasks; it is tried again at the next start, or by the next leader"
            );
        }
    }

    /// Waits until there is something to delete, unless there is something to sweep.
    fn next(&self, sweeps: bool) -> Next {
        let idle = |deletions: &mut Deletions| deletions.waiting.is_empty() && !deletions.closed && !sweeps;
        let mut deletions =
            self.news.wait_while(self.deletions(), idle).unwrap_or_else(PoisonError::into_inner);
        if deletions.closed {
            return Next::End;
        }
        let some = deletions.waiting.len().min(DELETED_MAX);
        let tasks: Vec<TaskId> = deletions.waiting.drain(..some).collect();
        if tasks.is_empty() { Next::Idle } else { Next::Delete(tasks) }
    }

    /// Waits so long, or until this is the end. What is to be deleted waits with it.
    fn pause(&self, pause: Duration) {
        let open = |deletions: &mut Deletions| !deletions.closed;
        drop(self.news.wait_timeout_while(self.deletions(), pause, open));
    }

    /// `None` if the engine is gone.
    fn with_engine<T>(&self, call: impl FnOnce(&dyn Logs) -> T) -> Option<T> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.as_deref().map(call)
    }

    fn deletions(&self) -> MutexGuard<'_, Deletions> {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use orchestrix_core::{LeaseId, Position};
    use orchestrix_engine::memory::MemoryLogs;
    use orchestrix_engine::{Bookmark, LogChunk, LogPlace, Logged};

    use super::*;

    /// Output in memory that is deleted when the other end of its gate is let go of, and what it was asked to delete.
    struct GatedLogs {
        logs: MemoryLogs,
        gate: Mutex<Receiver<()>>,
        deleted: Mutex<Vec<TaskId>>,
    }

    /// With output of some tasks; and the other end of its gate.
    fn gated(tasks: impl IntoIterator<Item = u64>) -> (Arc<GatedLogs>, Sender<()>) {
        let (shut, gate) = channel();
        let logs = MemoryLogs::default();
        for task in tasks {
            logs.append(LogPlace::first(TaskId(task), LeaseId(9)), b"line").unwrap();
        }
        (Arc::new(GatedLogs { logs, gate: Mutex::new(gate), deleted: Mutex::default() }), shut)
    }

    impl Logs for GatedLogs {
        fn append(&self, at: LogPlace, bytes: &[u8]) -> Result<Logged, orchestrix_engine::Error> {
            self.logs.append(at, bytes)
        }

        fn read(
            &self,
            task: TaskId,
            skip: usize,
            limit_bytes: usize,
        ) -> Result<Vec<LogChunk>, orchestrix_engine::Error> {
            self.logs.read(task, skip, limit_bytes)
        }

        fn some_tasks(
            &self,
            from: Bookmark,
            about: usize,
        ) -> Result<(Vec<TaskId>, Option<Bookmark>), orchestrix_engine::Error> {
            self.logs.some_tasks(from, about)
        }

        fn delete(&self, tasks: &[TaskId]) -> Result<(), orchestrix_engine::Error> {
            self.gate.lock().unwrap().recv().unwrap_err();
            self.deleted.lock().unwrap().extend(tasks);
            self.logs.delete(tasks)
        }
    }

    /// Waits until all that waited was deleted, so much in all.
    fn until_deleted(engine: &GatedLogs, count: usize) {
        for _ in 0..10_000 {
            if engine.deleted.lock().unwrap().len() >= count {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{count} tasks are not deleted in time");
    }

    #[test]
    fn a_stop_waits_for_one_deletion_and_leaves_the_others() {
        let all = 3 * DELETED_MAX;
        let (engine, shut) = gated(1..=all as u64);
        let store = Store::new(engine.clone(), Calls::Threads);
        store.delete((1..=all as u64).map(TaskId).collect());
        let taken = |store: &Store| store.deletions().waiting.len() == all - DELETED_MAX;
        while !taken(&store) {
            thread::yield_now();
        }
        let closing = thread::spawn({
            let store = Arc::clone(&store);
            move || store.close()
        });
        while !store.deletions().closed {
            thread::yield_now();
        }
        drop(shut);
        closing.join().unwrap();
        assert_eq!(engine.deleted.lock().unwrap().len(), DELETED_MAX);
        assert_eq!(engine.tasks().unwrap().len(), all - DELETED_MAX, "the next start deletes them");
    }

    #[test]
    fn deletion_delays_no_call() {
        let (engine, shut) = gated(1..=3);
        let store = Store::new(engine.clone(), Calls::Threads);
        let (done, deleted) = channel();
        let deleting = Arc::clone(&store);
        thread::spawn(move || {
            (1..=3).for_each(|task| deleting.delete(vec![TaskId(task)]));
            drop(deleting);
            done.send(()).unwrap();
        });
        deleted.recv_timeout(Duration::from_secs(10)).expect("nobody waits for a deletion");
        assert_eq!(engine.tasks().unwrap().len(), 3);
        drop(shut);
        until_deleted(&engine, 3);
        store.close();
        assert!(engine.tasks().unwrap().is_empty());
        assert_eq!((Arc::strong_count(&engine), Arc::strong_count(&store)), (1, 1), "the thread is gone");
        store.delete(vec![TaskId(4)]);
        store.close();
    }

    #[test]
    fn deletions_beyond_the_limit_wait_for_the_next_start() {
        let (engine, shut) = gated([1, 2]);
        let store = Store::new(engine.clone(), Calls::Threads);
        store.delete(vec![TaskId(1)]);
        store.delete(vec![TaskId(2); WAITING_TASKS_MAX + 1]);
        drop(shut);
        until_deleted(&engine, 1);
        store.close();
        assert_eq!(engine.tasks().unwrap(), [TaskId(2)]);
    }

    #[test]
    fn an_engine_is_not_asked_to_delete_what_is_not_there() {
        // What was stored before the term began.
        let (engine, shut) = gated([1]);
        drop(shut);
        let store = Store::new(engine.clone(), Calls::Threads);
        // Until then it deletes the output of all purged tasks.
        store.delete(vec![TaskId(2)]);
        let mut sweep = Sweep::new(Position(10), Box::new(|_| Some(Vec::new())));
        while store.sweep_on(&mut sweep) != Some(Swept::Over) {}
        store.expect_output(TaskId(20));
        engine.append(LogPlace::first(TaskId(20), LeaseId(9)), b"stored since").unwrap();
        store.delete((1..=30).map(TaskId).collect());
        store.delete((1..=30).map(TaskId).collect());
        until_deleted(&engine, 3);
        store.close();
        assert_eq!(*engine.deleted.lock().unwrap(), [TaskId(2), TaskId(1), TaskId(20)]);
        assert!(engine.tasks().unwrap().is_empty());
    }

    #[test]
    fn incomplete_scan_deletes_all_purged() {
        // What was stored before the term began.
        let (engine, shut) = gated([1]);
        drop(shut);
        let store = Store::new(engine.clone(), Calls::Threads);
        let mut sweep = Sweep::new(Position(10), Box::new(|_| None));
        assert_eq!(store.sweep_on(&mut sweep), Some(Swept::GivenUp));
        store.delete(vec![TaskId(1), TaskId(2)]);
        until_deleted(&engine, 2);
        store.close();
        assert_eq!(*engine.deleted.lock().unwrap(), [TaskId(1), TaskId(2)]);
    }

    #[tokio::test]
    async fn closing_waits_for_calls_that_have_begun_and_refuses_others() {
        for _ in 0..20 {
            let engine = Arc::new(MemoryLogs::default());
            let store = Store::new(engine.clone(), Calls::Threads);
            let ((begins, begun), (shut, gate)) = (channel(), channel::<()>());
            let call = tokio::spawn({
                let store = Arc::clone(&store);
                async move {
                    let hold = move |engine: &dyn Logs| {
                        begins.send(()).unwrap();
                        gate.recv().unwrap_err();
                        engine.tasks()
                    };
                    store.call(hold).await
                }
            });
            while begun.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            let (starts, started) = channel();
            let closing = thread::spawn({
                let (store, engine) = (Arc::clone(&store), Arc::clone(&engine));
                move || {
                    starts.send(()).unwrap();
                    store.close();
                    Arc::strong_count(&engine)
                }
            });
            started.recv().unwrap();
            thread::yield_now();
            drop(shut);
            assert_eq!(closing.join().unwrap(), 2, "only this test has the engine");
            assert_eq!(call.await.unwrap(), Ok(Vec::new()));
            assert_eq!(store.call(|engine| engine.tasks()).await, Err(Error::Stopping));
        }
    }
}
