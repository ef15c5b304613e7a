//! One run of the command: a process group of its own, with payload in and lines out.
//!
//! **Invariant:** the group is signalled only while its first process has not been reaped, so its number cannot
//! belong to another process; and it is killed when this value is dropped.

use std::mem;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use orchestrix_client::{Job, JobError};
use orchestrix_core::wire::LogStream;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::STREAMS;

/// Bytes of one line; longer ones become several.
const LINE_BYTES_MAX: usize = 16 << 10;
/// How long output may take to arrive after the end of the command, and how much there may be: more than a pipe holds. What
/// comes later is of a process that left the group.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
const LAST_OUTPUT_BYTES_MAX: usize = 2 << 20;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
}

/// A running command.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Option<Pid>,
    /// The first process of the group has ended, and was not reaped.
    ended: CancellationToken,
}

/// The readers of both streams of a command.
#[derive(Debug)]
pub(super) struct Lines {
    stdout: AbortOnDropHandle<String>,
    stderr: AbortOnDropHandle<String>,
    /// The command has ended.
    ended: CancellationToken,
}

impl Process {
    pub(super) fn start(command: &[String], job: &Job) -> Result<Self, JobError> {
        let (program, arguments) = command.split_first().expect("the command line asks for a command");
        let mut child = Command::new(program)
            .args(arguments)
            .env("ORCHESTRIX_TASK_ID", job.task_id().to_string())
            .env("ORCHESTRIX_LEASE_ID", job.lease_id().to_string())
            .env("ORCHESTRIX_ATTEMPT", job.attempt().to_string())
            .env("ORCHESTRIX_QUEUE", job.queue().as_str())
            // The worker's own secret is not the command's.
            .env_remove("ORCHESTRIX_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| JobError::new(format!("cannot start {program}: {error}")))?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = id.expect("a child that was not waited for has an id");
        let ended = watch(group).inspect_err(|_| signal_group(group, Signal::KILL))?;
        if let Some(stdin) = child.stdin.take() {
            tokio::spawn(feed(stdin, job.payload().as_str().to_owned()));
        }
        Ok(Self { child, group: Some(group), ended })
    }

    /// Sends what the command writes to the log of the task.
    pub(super) fn stream_output(&mut self, job: &Job) -> Lines {
        let [stdout, stderr] = STREAMS;
        let out = self.child.stdout.take().expect("stdout of the command is a pipe, and taken once");
        let err = self.child.stderr.take().expect("stderr of the command is a pipe, and taken once");
        let ended = CancellationToken::new();
        Lines {
            stdout: AbortOnDropHandle::new(tokio::spawn(read(out, stdout, job.clone(), ended.clone()))),
            stderr: AbortOnDropHandle::new(tokio::spawn(read(err, stderr, job.clone(), ended.clone()))),
            ended,
        }
    }

    /// Waits for the end, and kills what the command left behind in its group.
    pub(super) async fn wait(&mut self) -> Result<Ended, JobError> {
        self.ended.cancelled().await;
        self.kill();
        self.group = None;
        let status = self.child.wait().await?;
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(Ended::Code(code)),
            (None, signal) => Ok(Ended::Signal(signal.unwrap_or_default())),
        }
    }

    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            signal_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Lines {
    /// Waits for the last output, however long the log takes for it; answers the last line of stderr. A process that left
    /// the group may hold the pipe open for ever: it is not waited for.
    pub(super) async fn finish(self) -> String {
        self.ended.cancel();
        let (_, stderr) = tokio::join!(self.stdout, self.stderr);
        stderr.unwrap_or_default()
    }
}

/// Waits for the end of a process on a thread of its own, because nothing else waits without reaping.
fn watch(process: Pid) -> std::io::Result<CancellationToken> {
    let ended = CancellationToken::new();
    let end = ended.clone().drop_guard();
    thread::Builder::new().name("wait".to_owned()).stack_size(64 << 10).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(process), options), Err(Errno::INTR)) {}
        drop(end);
    })?;
    Ok(ended)
}

fn signal_group(group: Pid, signal: Signal) {
    if let Err(error) = kill_process_group(group, signal) {
        // A group that is gone needs no signal.
        tracing::debug!(%error, "cannot signal a process group");
    }
}

/// Writes the payload; a command that does not read it is free not to.
async fn feed(mut stdin: ChildStdin, payload: String) {
    let written = stdin.write_all(payload.as_bytes()).await;
    drop(written.and(stdin.shutdown().await));
}

/// Logs line by line; answers the last line that was not empty. After the end of the command only what the pipe holds is
/// waited for.
async fn read(pipe: impl AsyncRead + Unpin, stream: LogStream, job: Job, ended: CancellationToken) -> String {
    let mut reader = BufReader::new(pipe);
    let mut last = String::new();
    let mut log = async |line: String| {
        job.log_from(stream, &line).await;
        if !line.trim().is_empty() {
            last = line;
        }
    };
    let mut begun = Vec::new();
    while let Some(next) = ended.run_until_cancelled(next_line(&mut reader, &mut begun)).await {
        match next {
            Some(line) => log(line).await,
            None => return last.trim().to_owned(),
        }
    }
    let (mut left, mut bytes) = (LAST_OUTPUT, LAST_OUTPUT_BYTES_MAX);
    loop {
        let waits = Instant::now();
        let next = tokio::time::timeout(left, next_line(&mut reader, &mut begun)).await;
        let Ok(Some(line)) = next else { break };
        // The time that the log takes does not count.
        left = left.saturating_sub(waits.elapsed());
        let Some(more) = bytes.checked_sub(line.len() + 1) else { break };
        bytes = more;
        log(line).await;
    }
    if !begun.is_empty() {
        log(text(&begun)).await;
    }
    last.trim().to_owned()
}

/// The next line without its end, or a piece of one that is too long; none at the end of the stream. Can be dropped at any
/// time: what was read of a line is in `line`.
async fn next_line(reader: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> Option<String> {
    loop {
        // An error of a pipe is its end.
        let available = reader.fill_buf().await.unwrap_or_default();
        if available.is_empty() {
            return (!line.is_empty()).then(|| text(&mem::take(line)));
        }
        let room = LINE_BYTES_MAX - line.len();
        let some = &available[..available.len().min(room)];
        match some.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                line.extend_from_slice(&some[..end]);
                reader.consume(end + 1);
                return Some(text(&mem::take(line)));
            }
            None => {
                line.extend_from_slice(some);
                let taken = some.len();
                reader.consume(taken);
                if line.len() == LINE_BYTES_MAX {
                    return Some(text(&mem::take(line)));
                }
            }
        }
    }
}

fn text(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(bytes: &[u8]) -> Vec<String> {
        let mut reader = BufReader::with_capacity(7, bytes);
        let (mut lines, mut begun) = (Vec::new(), Vec::new());
        while let Some(line) = next_line(&mut reader, &mut begun).await {
            lines.push(line);
        }
        lines
    }

    #[tokio::test]
    async fn output_becomes_lines_also_without_a_last_newline() {
        assert_eq!(
            lines(b"one\r\n\nthree is longer than the buffer\nlast").await,
            ["one", "", "three is longer than the buffer", "last"]
        );
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_replaced_and_do_not_end_the_log() {
        assert_eq!(lines(b"a\xff\nb\n").await, ["a\u{fffd}", "b"]);
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_into_pieces() {
        let cut = lines(&vec![b'x'; LINE_BYTES_MAX * 2 + 5]).await;
        assert_eq!(cut.iter().map(String::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, LINE_BYTES_MAX, 5]);
    }
}
