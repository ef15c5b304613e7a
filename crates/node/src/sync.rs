//! Locks and channels between callers, loop and writer. With the feature `shuttle` these are its own, so that a test can try the orders in
//! which threads reach them (`tests/interleavings.rs`).

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool, mpsc};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool, mpsc};
