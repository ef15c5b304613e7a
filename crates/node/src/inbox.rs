//! What callers put to the loop, in the order in which they came.
//!
//! A loop that sleeps is not woken for each of them: that would cost more than to decide it. Whoever is the first to find it asleep
//! is told to wake it a moment later, when those who come at the same time have come along; many wake it at once.
//!
//! **Invariant:** while something lies here and the loop sleeps, somebody holds a [`WakeUp`].

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::runner::Input;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// So many wake the loop at once: a group worth a sync.
const WAKES_AT: usize = 16;
/// What the loop takes at one time.
const TAKEN_MAX: usize = 64;

/// The end of callers.
#[derive(Clone)]
pub(crate) struct Inbox(Arc<Shared>);

/// The end of the loop.
pub(crate) struct Inputs {
    shared: Arc<Shared>,
    /// Taken, and not looked at yet.
    taken: VecDeque<Input>,
}

struct Shared {
    line: Mutex<Line>,
    come: Condvar,
    /// Asks that may wait here; those that the loop has taken do not count.
    max: usize,
}

#[derive(Default)]
struct Line {
    inputs: VecDeque<Input>,
    sleep: Sleep,
    /// The loop is to look around, whatever lies here.
    woken: bool,
    closed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    #[default]
    Awake,
    Asleep,
    /// Somebody will wake it in a moment.
    Called,
}

/// Why nothing was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    /// The loop has ended.
    Closed,
}

/// Wakes the loop when it is dropped, also where its caller gives up.
pub(crate) struct WakeUp<'a>(&'a Inbox);

impl Drop for WakeUp<'_> {
    fn drop(&mut self) {
        let mut line = self.0.0.lock();
        if line.sleep == Sleep::Called {
            self.0.0.rouse(&mut line);
        }
    }
}

/// A line for so many asks, and its other end.
pub(crate) fn inbox(max: usize) -> (Inbox, Inputs) {
    let shared = Arc::new(Shared { line: Mutex::default(), come: Condvar::new(), max });
    (Inbox(Arc::clone(&shared)), Inputs { shared, taken: VecDeque::new() })
}

impl Inbox {
    /// Puts something at the end of the line. Whoever gets a [`WakeUp`] should keep it for a moment.
    pub(crate) fn put(&self, input: Input) -> Result<Option<WakeUp<'_>>, Refused> {
        let mut line = self.0.lock();
        line.check(self.0.max)?;
        line.inputs.push_back(input);
        let called = line.sleep == Sleep::Asleep;
        if called {
            line.sleep = Sleep::Called;
        }
        if line.sleep == Sleep::Called && line.inputs.len() >= WAKES_AT {
            self.0.rouse(&mut line);
            return Ok(None);
        }
        drop(line);
        // Only where it is called: one that is dropped here wakes the loop.
        Ok(called.then(|| WakeUp(self)))
    }

    /// Puts what this node says itself, however long the line is.
    pub(crate) fn put_anyway(&self, input: Input) -> Result<(), Refused> {
        let mut line = self.0.lock();
        line.check(usize::MAX)?;
        line.inputs.push_back(input);
        self.0.rouse(&mut line);
        Ok(())
    }

    /// Has the loop look around.
    pub(crate) fn wake(&self) {
        let mut line = self.0.lock();
        line.woken = true;
        self.0.rouse(&mut line);
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("max", &self.0.max).finish_non_exhaustive()
    }
}

impl Inputs {
    /// The next in line, if there is one.
    pub(crate) fn take(&mut self) -> Option<Input> {
        if self.taken.is_empty() {
            self.shared.lock().take_into(&mut self.taken);
        }
        self.taken.pop_front()
    }

    /// The next in line, as soon as there is one; none when there is none for so long, or sometimes sooner.
    pub(crate) fn wait(&mut self, longest: Duration) -> Option<Input> {
        if let Some(input) = self.taken.pop_front() {
            return Some(input);
        }
        let mut line = self.shared.lock();
        if line.inputs.is_empty() && !line.woken {
            line.sleep = Sleep::Asleep;
            line = self.shared.come.wait_timeout(line, longest).unwrap_or_else(PoisonError::into_inner).0;
        }
        line.sleep = Sleep::Awake;
        let woken = std::mem::take(&mut line.woken);
        line.take_into(&mut self.taken);
        self.taken.pop_front().or(woken.then_some(Input::Wake))
    }
}

impl Drop for Inputs {
    /// Callers whose asks are still here hear that the outcome is unknown.
    fn drop(&mut self) {
        let mut line = self.shared.lock();
        line.closed = true;
        let left = std::mem::take(&mut line.inputs);
        drop(line);
        drop(left);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rouse(&self, line: &mut Line) {
        if line.sleep != Sleep::Awake {
            line.sleep = Sleep::Awake;
            self.come.notify_one();
        }
    }
}

impl Line {
    fn check(&self, max: usize) -> Result<(), Refused> {
        match (self.closed, self.inputs.len() < max) {
            (true, _) => Err(Refused::Closed),
            (false, false) => Err(Refused::Full),
            (false, true) => Ok(()),
        }
    }

    fn take_into(&mut self, taken: &mut VecDeque<Input>) {
        let count = self.inputs.len().min(TAKEN_MAX);
        taken.extend(self.inputs.drain(..count));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Waits until the loop sleeps.
    fn until_asleep(inbox: &Inbox) {
        let start = Instant::now();
        while inbox.0.lock().sleep != Sleep::Asleep {
            assert!(start.elapsed() < LONG, "the loop does not sleep");
            thread::yield_now();
        }
    }

    fn is_awake(inbox: &Inbox) -> bool {
        inbox.0.lock().sleep == Sleep::Awake
    }

    #[test]
    fn a_line_is_full_at_its_limit_and_not_before() {
        let (inbox, mut inputs) = inbox(3);
        for _ in 0..3 {
            assert!(inbox.put(Input::Wake).is_ok_and(|call| call.is_none()), "the loop does not sleep");
        }
        assert_eq!(inbox.put(Input::Wake).err(), Some(Refused::Full));
        assert!(inbox.put_anyway(Input::Stop).is_ok());
        for _ in 0..3 {
            assert!(matches!(inputs.take(), Some(Input::Wake)));
        }
        assert!(matches!(inputs.take(), Some(Input::Stop)));
        drop(inputs);
        assert_eq!(inbox.put(Input::Wake).err(), Some(Refused::Closed));
    }

    #[test]
    fn the_first_to_find_the_loop_asleep_wakes_it_later() {
        let (inbox, mut inputs) = inbox(100);
        let waits = thread::spawn(move || (inputs.wait(LONG).is_some(), inputs.take().is_some()));
        until_asleep(&inbox);
        let first = inbox.put(Input::Wake).unwrap_or_default();
        assert!(first.is_some() && inbox.put(Input::Wake).is_ok_and(|second| second.is_none()));
        assert!(!is_awake(&inbox), "it sleeps until it is called");
        drop(first);
        assert_eq!(waits.join().ok(), Some((true, true)), "it finds both");
    }

    #[test]
    fn many_wake_the_loop_at_once() {
        let (inbox, mut inputs) = inbox(100);
        let waits = thread::spawn(move || inputs.wait(LONG).is_some());
        until_asleep(&inbox);
        let first = inbox.put(Input::Wake);
        for n in 2..=WAKES_AT {
            assert!(!is_awake(&inbox), "{n}");
            assert!(inbox.put(Input::Wake).is_ok());
        }
        assert_eq!(waits.join().ok(), Some(true));
        assert!(is_awake(&inbox));
        drop(first);
    }

    #[test]
    fn a_wake_up_before_the_loop_sleeps_is_not_lost() {
        let (inbox, mut inputs) = inbox(1);
        inbox.wake();
        assert!(matches!(inputs.wait(LONG), Some(Input::Wake)));
        assert!(inputs.wait(Duration::from_millis(1)).is_none());
    }
}
