//! Makes child processes waitable, even if the parent process ignored SIGCHLD.

use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

/// The parent process may have started this one with SIGCHLD ignored. Then the kernel forgets children as soon as they end, and no one
/// learns how they did. A handler takes the place of that, for good; children begin with the usual behaviour again. Call it
/// before the first child.
///
/// # Errors
/// When there can be no handler.
pub fn begin() -> io::Result<()> {
    if Handle::try_current().is_ok() {
        return signal(SignalKind::child()).map(drop);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { signal(SignalKind::child()).map(drop) })
}
