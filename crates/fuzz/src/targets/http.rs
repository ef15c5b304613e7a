//! Bytes on a connection, answered by the server that ships: hyper, routes, decision loop, journal. Without
//! threads, so that the same bytes do the same.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file;
use orchestrix_node::{Clock, Stepped};
use orchestrix_server::http::{Options, fuzz_api};
use orchestrix_server::tokens::Tokens;
use tokio::io::{AsyncRead, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::runtime::Runtime;

/// Rounds in which nothing came after which nothing will.
const QUIET_ROUNDS: u32 = 12;
/// Rounds of one input. Bounds its time.
const ROUNDS_MAX: u32 = 4_000;
/// A token of every role, `secret`; and one that is limited to a queue, `narrow`.
const TOKENS: &str = r#"
[[token]]
name = "all"
roles = ["admin"]
sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
[[token]]
name = "narrow"
roles = ["submit", "work", "read"]
sha256 = "5eda958e9ddee7721fb71e7a7618c64dbf20cc77b06ba4e4d2269d6c3e50655b"
queues = ["q"]
"#;

/// The first byte says whether tokens are needed; the rest is what the peer sends.
pub(super) fn connection(input: &[u8]) {
    let Some((&choice, sent)) = input.split_first() else { return };
    let answered = runtime().block_on(serve(sent, choice & 1 == 1));
    let text = String::from_utf8_lossy(&answered);
    assert!(answered.is_empty() || text.starts_with("HTTP/1."), "an answer is HTTP");
    assert!(!text.contains("HTTP/1.1 500"), "a handler met a bug: {text}");
}

async fn serve(sent: &[u8], guarded: bool) -> Vec<u8> {
    let clock = Arc::new(StillClock::default());
    let files = file::Options { segment_bytes: Some(4 << 10), prepare: file::Prepare::Inline };
    let opened =
        Stepped::open(Arc::new(SimDisk::new(1)), files, node_options(), Arc::clone(&clock) as Arc<dyn Clock>);
    let (node, mut stepped, _) = opened.expect("an empty disk is a node");
    let tokens = guarded.then(|| Tokens::parse(TOKENS).expect("the tokens of the fuzzer can be read"));
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let mut serving = pin!(fuzz_api::serve(server, node, Options { tokens, ..Options::default() }));
    let room = sent.len().min(1 << 19);
    client.write_all(&sent[..room]).await.expect("the pipe has room");
    let (mut answered, mut quiet, mut open) = (Vec::new(), 0, Some(client));
    for _ in 0..ROUNDS_MAX {
        let done = poll_once(serving.as_mut()).await.is_ready();
        tokio::task::yield_now().await;
        clock.0.fetch_add(1, Relaxed);
        assert!(stepped.decide().is_ok(), "the loop goes on");
        assert!(stepped.write().is_ok(), "a disk without faults takes everything");
        let came = open.as_mut().map_or(0, |client| read_ready(client, &mut answered));
        if done {
            return answered;
        }
        quiet = if came > 0 { 0 } else { quiet + 1 };
        if quiet % 4 == 2 {
            // Output of tasks is stored on a thread beside the loop: whoever stands in line behind it knows it done.
            tokio::task::spawn_blocking(|| {}).await.expect("nothing cannot fail");
        }
        // The peer hangs up. What does not notice is ended by its clock (a wait, a sign of life), and that stands
        // still here.
        if quiet == QUIET_ROUNDS {
            open = None;
        } else if quiet == 2 * QUIET_ROUNDS {
            break;
        }
    }
    answered
}

fn node_options() -> orchestrix_node::Options {
    orchestrix_node::Options {
        queue_max: 64,
        polls_max: 16,
        event_ring_bytes: 64 << 10,
        ..Default::default()
    }
}

async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Takes what is there, without waiting for more.
fn read_ready(client: &mut DuplexStream, into: &mut Vec<u8>) -> usize {
    let before = into.len();
    loop {
        let mut space = [0; 4096];
        let mut buffer = ReadBuf::new(&mut space);
        let read =
            std::pin::Pin::new(&mut *client).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
        if !matches!(read, Poll::Ready(Ok(()))) || buffer.filled().is_empty() {
            return into.len() - before;
        }
        into.extend_from_slice(buffer.filled());
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let built =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build();
        built.expect("a runtime without sockets can be made")
    })
}

/// A clock that goes on by a millisecond a round.
#[derive(Debug, Default)]
struct StillClock(AtomicU64);

impl Clock for StillClock {
    fn boot(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        Duration::from_millis(1_700_000_000_000 + self.0.load(Relaxed))
    }

    fn pause(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap_or(0), Relaxed);
    }
}
