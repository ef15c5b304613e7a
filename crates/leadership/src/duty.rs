//! Work that only a leader does. It starts with the election, ticks during the term, and ends with it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::election::Reason;

/// The future of a duty's work.
pub type Work<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One leadership, as its duties see it.
#[derive(Clone, Debug)]
pub struct Term {
    /// The fencing token. Send it with every write, and let the store refuse a lower one than it has seen.
    pub epoch: u64,
    /// Cancelled when the term ends, before another candidate may lead.
    pub over: CancellationToken,
    /// Who requested the change of leader that began this term, if anyone did.
    pub asked_by: Option<String>,
}

/// Work that only a leader does.
pub trait Duty: Send + Sync + 'static {
    /// Its name in events and logs.
    fn name(&self) -> &str;

    /// How often [`Duty::tick`] is called. A tick that takes longer puts off the next.
    fn tick_every(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Called when this candidate becomes leader.
    fn on_elected<'a>(&'a self, term: &'a Term) -> Work<'a> {
        let _ = term;
        Box::pin(std::future::ready(()))
    }

    /// The repeated work. Dropped when the term is over.
    fn tick<'a>(&'a self, term: &'a Term) -> Work<'a>;

    /// Called when this candidate has lost leadership. The term was over before.
    fn on_deposed(&self, reason: Reason) -> Work<'_> {
        let _ = reason;
        Box::pin(std::future::ready(()))
    }
}

/// Runs a duty during one term. A panic ends the call, not the duty.
pub(crate) async fn run(duty: Arc<dyn Duty>, term: Term) {
    guarded(&*duty, "on_elected", &term.over, duty.on_elected(&term)).await;
    let mut due = tokio::time::interval(duty.tick_every().max(Duration::from_millis(1)));
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = term.over.cancelled() => return,
            _ = due.tick() => {}
        }
        let began = tokio::time::Instant::now();
        guarded(&*duty, "tick", &term.over, duty.tick(&term)).await;
        let took = began.elapsed();
        if took > duty.tick_every() {
            tracing::warn!(duty = duty.name(), ?took, every = ?duty.tick_every(), "duty tick took longer than its interval");
        }
    }
}

/// Runs the work until it is done or the term is over.
async fn guarded(duty: &dyn Duty, what: &str, over: &CancellationToken, work: Work<'_>) {
    let caught = futures_catch(work);
    tokio::select! {
        biased;
        () = over.cancelled() => {}
        ended = caught => {
            if ended.is_err() {
                tracing::error!(duty = duty.name(), what, "duty panicked, continuing with its next tick");
            }
        }
    }
}

pub(crate) async fn deposed(duty: &dyn Duty, reason: Reason) {
    if futures_catch(duty.on_deposed(reason)).await.is_err() {
        tracing::error!(duty = duty.name(), "duty panicked after leadership was lost");
    }
}

/// Turns a panic of the future into an error.
async fn futures_catch(mut work: Work<'_>) -> Result<(), ()> {
    std::future::poll_fn(move |context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(_) => std::task::Poll::Ready(Err(())),
        }
    })
    .await
}
