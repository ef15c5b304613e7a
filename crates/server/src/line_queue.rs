//! Lines on their way to a pipe, a file or a terminal that may not take them.
//!
//! Standard output and standard error may be pipes without a reader. A thread that writes to a full one blocks
//! until it is read, so a thread with other work never writes there itself: it puts its lines into a queue, and a thread
//! of the queue's own writes them. When the queue is full, lines are dropped and counted, and a line says how many are
//! missing as soon as lines are taken again.
//!
//! **Invariant:** [`LineQueue::push`] never waits for the reader of the lines, and [`LineQueue::flush`] only for a limited time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use orchestrix_node::Counter;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

/// Lines that wait to be written. Bounds memory; some thousand lines of a log.
pub const WAITING_BYTES_MAX: usize = 1 << 20;

/// Says, in a line, how many lines are missing.
pub type Notice = Box<dyn Fn(u64) -> String + Send>;

/// The end that takes lines. Cheap to clone.
#[derive(Clone)]
pub struct LineQueue {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// Everything is written.
    drained: Condvar,
    /// Dropped lines of all queues that count here.
    dropped: Arc<Counter>,
    /// A line could not be written, and no line will be: the reader is gone.
    unread: CancellationToken,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Entry>,
    bytes: usize,
    /// Lines that were dropped since the last notice.
    missing: u64,
    /// The thread is at something that it took out of the queue.
    writing: bool,
    /// The last line could not be written: the next one shows whether that has changed.
    failing: bool,
}

enum Entry {
    Lines(Vec<u8>),
    /// So many lines are missing here.
    Missing(u64),
}

impl std::fmt::Debug for LineQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LineQueue").finish_non_exhaustive()
    }
}

impl LineQueue {
    /// A queue before standard output. Nothing else may write there any more.
    ///
    /// # Errors
    /// When there is no standard output, or no thread.
    pub fn stdout(dropped: Arc<Counter>, notice: Notice) -> io::Result<Self> {
        Self::start("stdout", io::stdout().as_fd(), dropped, notice)
    }

    /// A queue before standard error. Nothing else may write there any more.
    ///
    /// # Errors
    /// When there is no standard error, or no thread.
    pub fn stderr(dropped: Arc<Counter>, notice: Notice) -> io::Result<Self> {
        Self::start("stderr", io::stderr().as_fd(), dropped, notice)
    }

    /// A queue before anything; the handle is copied, so no buffer of this process is in between.
    ///
    /// # Errors
    /// When the handle cannot be copied, or there is no thread.
    pub fn start(name: &str, to: BorrowedFd<'_>, dropped: Arc<Counter>, notice: Notice) -> io::Result<Self> {
        let to = File::from(to.try_clone_to_owned()?);
        let (queue, filled, drained) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { queue, filled, drained, dropped, unread: CancellationToken::new() });
        let thread = std::thread::Builder::new().name(format!("orchestrix-{name}"));
        let writer = Arc::clone(&shared);
        thread.spawn(move || writer.write_all(&to, &notice))?;
        Ok(Self { shared })
    }

    /// Takes whole lines, or drops them when too much waits.
    pub fn push(&self, lines: Vec<u8>) {
        let mut queue = self.shared.lock();
        if !queue.waiting.is_empty() && queue.bytes + lines.len() > WAITING_BYTES_MAX {
            queue.missing += 1;
            self.shared.dropped.add(1);
            return;
        }
        if queue.missing > 0 {
            let missing = std::mem::take(&mut queue.missing);
            queue.waiting.push_back(Entry::Missing(missing));
        }
        queue.bytes += lines.len();
        queue.waiting.push_back(Entry::Lines(lines));
        self.shared.filled.notify_one();
    }

    /// Fires when a line cannot be written because its reader is gone. A disk that is full is not a reader that is gone.
    #[must_use]
    pub fn unread(&self) -> CancellationToken {
        self.shared.unread.clone()
    }

    /// Waits until everything is written, but not longer than this. Answers whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut queue = self.shared.lock();
        while queue.is_busy() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            let waited = self.shared.drained.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Each write is whole lines, as a subscriber of `tracing` writes them.
impl Write for LineQueue {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push(lines.to_vec());
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    /// Whether there is a notice to write although no line comes behind it.
    fn owes_notice(&self) -> bool {
        self.missing > 0 && !self.failing
    }

    fn is_busy(&self) -> bool {
        self.writing || !self.waiting.is_empty() || self.owes_notice()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes, as long as the process runs.
    fn write_all(&self, to: &File, notice: &Notice) {
        loop {
            let entry = self.next();
            let written = match &entry {
                Entry::Lines(lines) => write(to, lines),
                Entry::Missing(missing) => write(to, notice(*missing).as_bytes()),
            };
            let mut queue = self.lock();
            queue.writing = false;
            queue.failing = written.is_err();
            if written.as_ref().is_err_and(is_unread) {
                self.unread.cancel();
            }
            match (written, entry) {
                (Ok(()), _) => {}
                (Err(_), Entry::Lines(_)) => {
                    queue.missing += 1;
                    self.dropped.add(1);
                }
                (Err(_), Entry::Missing(missing)) => queue.missing += missing,
            }
            if !queue.is_busy() {
                self.drained.notify_all();
            }
        }
    }

    fn next(&self) -> Entry {
        let mut queue = self.lock();
        loop {
            if let Some(entry) = queue.waiting.pop_front() {
                if let Entry::Lines(lines) = &entry {
                    queue.bytes -= lines.len();
                }
                queue.writing = true;
                return entry;
            }
            if queue.owes_notice() {
                queue.writing = true;
                return Entry::Missing(std::mem::take(&mut queue.missing));
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Whether there is no reader any more: the other end of a pipe is closed, or a terminal is gone.
fn is_unread(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe || error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// Writes all of it. Another process may have made the pipe one that does not wait: then this waits.
fn write(mut to: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(to, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn queue() -> (PipeReader, LineQueue, Arc<Counter>) {
        let (reader, writer) = io::pipe().unwrap();
        let dropped = Arc::new(Counter::default());
        let notice = Box::new(|missing| format!("{missing} are missing\n"));
        let queue = LineQueue::start("test", writer.as_fd(), Arc::clone(&dropped), notice).unwrap();
        (reader, queue, dropped)
    }

    /// Waits until the thread stands before a pipe that takes no more.
    fn fill(queue: &LineQueue) -> usize {
        let line = || vec![b'\n'; 4096];
        let pipe = std::iter::repeat_with(line).take_while(|line| {
            queue.push(line.clone());
            queue.flush(Duration::from_millis(200))
        });
        pipe.count() + 1
    }

    /// Reads until a line has come.
    fn read_to(reader: &mut PipeReader, line: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(line.as_bytes()) {
            let mut more = [0; 4096];
            let read = reader.read(&mut more).unwrap();
            text.extend_from_slice(&more[..read]);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn lines_come_out_in_their_order() {
        let (mut reader, queue, dropped) = queue();
        (0..100).for_each(|n| queue.push(format!("{n}\n").into_bytes()));
        assert!(queue.flush(LONG));
        let expected: String = (0..100).map(|n| format!("{n}\n")).collect();
        assert_eq!(read_to(&mut reader, "\n99\n"), expected);
        assert_eq!(dropped.get(), 0);
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_marked() {
        let (mut reader, queue, dropped) = queue();
        fill(&queue);
        // The thread has the last line of the filling; the queue itself is empty.
        queue.push(vec![b'a'; WAITING_BYTES_MAX - 2]);
        queue.push(b"b\n".to_vec());
        assert_eq!(dropped.get(), 0, "exactly as much as fits");
        queue.push(b"\n".to_vec());
        queue.push(b"\n".to_vec());
        assert_eq!(dropped.get(), 2);
        assert!(!queue.flush(Duration::from_millis(10)), "nobody reads");
        let text = read_to(&mut reader, "2 are missing\n");
        assert!(text.ends_with("ab\n2 are missing\n"));
        queue.push(b"c\n".to_vec());
        assert_eq!(read_to(&mut reader, "c\n"), "c\n", "told once");
        assert!(queue.flush(LONG));
    }

    #[test]
    fn one_line_longer_than_the_limit_is_taken_alone() {
        let (mut reader, queue, dropped) = queue();
        queue.push([vec![b'x'; 2 * WAITING_BYTES_MAX], b"\n".to_vec()].concat());
        assert_eq!(read_to(&mut reader, "\n").len(), 2 * WAITING_BYTES_MAX + 1);
        assert_eq!(dropped.get(), 0);
    }

    #[test]
    fn a_closed_reader_blocks_nothing() {
        let (reader, queue, dropped) = queue();
        drop(reader);
        for _ in 0..10 {
            queue.push(b"x\n".to_vec());
            assert!(queue.flush(LONG));
        }
        assert_eq!(dropped.get(), 10);
        assert!(queue.unread().is_cancelled());
    }

    #[test]
    fn a_full_disk_is_not_a_reader_that_is_gone() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let dropped = Arc::new(Counter::default());
        let queue = LineQueue::start("test", full.as_fd(), Arc::clone(&dropped), Box::new(|_| String::new()));
        let queue = queue.unwrap();
        for _ in 0..10 {
            queue.push(b"x\n".to_vec());
            assert!(queue.flush(LONG));
        }
        assert_eq!(dropped.get(), 10);
        assert!(!queue.unread().is_cancelled());
    }

    #[test]
    fn a_pipe_that_does_not_wait_gets_everything() {
        let (mut reader, writer) = io::pipe().unwrap();
        fcntl_setfl(writer.as_fd(), fcntl_getfl(writer.as_fd()).unwrap() | OFlags::NONBLOCK).unwrap();
        let dropped = Arc::new(Counter::default());
        let queue =
            LineQueue::start("test", writer.as_fd(), Arc::clone(&dropped), Box::new(|_| String::new()));
        let queue = queue.unwrap();
        queue.push([vec![b'x'; 300_000], b"\n".to_vec()].concat());
        assert_eq!(read_to(&mut reader, "\n").len(), 300_001);
        assert_eq!(dropped.get(), 0);
    }
}
