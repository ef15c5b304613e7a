//! `sockets`: a thousand connections that do nothing or trickle, others that break off or read nothing, and JSON made
//! to hurt.
//!
//! Meanwhile ordinary callers are served; afterwards the coordinator has closed unused connections, and its memory and
//! file descriptors are back where they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use orchestrix_core::wire::Submit;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ack_log::AckEntry;
use super::ground::Ground;
use super::load::{Actor, Answered, check_payload, completion, lease_call, name, task};
use super::process::{Coordinator, PATIENCE, eventually};
use super::{Checked, Round, Trial, Tried, failed};

/// Short timeouts, so that a round sees them all.
const OPTIONS: &[&str] = &[
    "--max-connections-per-ip",
    "2000",
    "--header-timeout",
    "1s",
    "--body-timeout",
    "1s",
    "--idle-timeout",
    "2s",
    "--write-timeout",
    "1s",
];
/// A fifth of each kind: more than a thousand that do nothing or trickle.
const CONNECTIONS: u64 = 1_700;
const STUCK_READERS: u64 = 20;
/// More than the buffers of a socket hold.
const EVENTS_MAX: u64 = 60_000;
const EVENTS_PER_CALL: u64 = 1_000;
const PAYLOAD: usize = 20;
/// Tasks of each ordinary caller in a round; each is submitted, leased and completed.
const TASKS: u64 = 200;
const CALLERS: u64 = 4;
/// An ordinary call takes no longer, regardless of other clients.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
/// What may stay after a round: some sixty thousand tasks with their keys, the ring of events, and what the allocator keeps for later.
const MEMORY_BYTES_MAX: u64 = 96 << 20;
const DESCRIPTORS_MAX: u64 = 10;

const MUST: &[&str] = &[
    "idle connections",
    "trickled headers",
    "trickled bodies",
    "half-closed connections",
    "reset connections",
    "JSON bombs refused",
    "stuck readers cut off",
    "ordinary calls served",
];

pub(super) const ENOUGH: u64 = 1;

pub(super) fn run(trial: &Trial<'_>) -> Tried {
    trial.rounds(ENOUGH, MUST, |round| {
        let (mut ground, before) = begin(trial, round)?;
        one(&ground, before, round)?;
        ground.hold(round)?;
        ground.coordinator.kill()?;
        ground.launch_and_hold(round)?;
        Ok(())
    })
}

/// What a process costs.
#[derive(Clone, Copy, Debug)]
struct Usage {
    memory_bytes: u64,
    descriptors: u64,
}

impl Usage {
    fn of(coordinator: &Coordinator) -> Checked<Self> {
        Ok(Self { memory_bytes: coordinator.resident_bytes()?, descriptors: coordinator.descriptors()? })
    }
}

/// A coordinator that has been used once, so that what is made at the first use is there.
fn begin(trial: &Trial<'_>, round: &Round<'_>) -> Checked<(Ground, Usage)> {
    let mut ground = Ground::new(Coordinator::prepare(trial.binary, OPTIONS)?, PAYLOAD)?;
    ground.coordinator.launch()?;
    round.runtime.block_on(call(ground.actor("warm")?))?;
    let usage = Usage::of(&ground.coordinator)?;
    Ok((ground, usage))
}

fn one(ground: &Ground, before: Usage, round: &mut Round<'_>) -> Checked {
    let coordinator = &ground.coordinator;
    let port = coordinator.port();
    let each = CONNECTIONS / 5;
    let seeds: Vec<u64> = (0..CONNECTIONS).map(|_| round.rng.next()).collect();
    let runtime = round.runtime;
    let bad: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let seed = seeds[usize::try_from(n).unwrap_or(0)];
            runtime.spawn(misbehave(port, BAD[usize::try_from(n / each).unwrap_or(0)], seed))
        })
        .collect();
    let cut_off = Arc::new(AtomicU64::new(0));
    let stuck: Vec<_> =
        (0..STUCK_READERS).map(|_| runtime.spawn(read_nothing(port, Arc::clone(&cut_off)))).collect();
    let flood = runtime.spawn(flood(ground.actor("flood")?, cut_off));
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| Ok(runtime.spawn(call(ground.actor(&format!("c{n}-{}", round.number))?))))
        .collect::<Checked<_>>()?;
    let bombs = runtime.spawn(throw_bombs(port));
    round.tried.see("JSON bombs refused", join(runtime, bombs)?);
    for caller in callers {
        let served = join(runtime, caller)?;
        round.tried.see("ordinary calls served", served);
    }
    for (n, part) in bad.into_iter().enumerate() {
        join(runtime, part)?;
        round.tried.see(BAD[n / usize::try_from(each).unwrap_or(1)].name(), 1);
    }
    let events = join(runtime, flood)?;
    round.tried.see("events that nobody read", events);
    for part in stuck {
        join(runtime, part)?;
        round.tried.see("stuck readers cut off", 1);
    }
    round.tried.faults += CONNECTIONS + STUCK_READERS + BOMBS;
    // What ordinary callers keep open is closed when it has been idle for too long.
    let mut now = before;
    let settled = eventually("memory and file descriptors are back", || {
        now = Usage::of(coordinator)?;
        let descriptors = now.descriptors <= before.descriptors + DESCRIPTORS_MAX;
        let memory = now.memory_bytes <= before.memory_bytes + MEMORY_BYTES_MAX;
        let open = coordinator.metric("orchestrix_http_connections")?;
        // The question itself is one.
        Ok((descriptors && memory && open <= 1).then_some(()))
    });
    settled.map_err(|why| format!("{why}: {before:?} before, {now:?} after"))?;
    let highest = round.tried.seen.entry("MiB of memory afterwards, at most").or_default();
    *highest = (*highest).max(now.memory_bytes >> 20);
    Ok(())
}

fn join<T>(runtime: &tokio::runtime::Runtime, part: tokio::task::JoinHandle<Checked<T>>) -> Checked<T> {
    runtime.block_on(part).map_err(|error| format!("a caller stopped: {error}"))?
}

/// An ordinary client. Every call is answered in time.
async fn call(actor: Actor) -> Checked<u64> {
    let Actor { client, ack_log, name, .. } = &actor;
    let mut served = 0;
    for count in 0..TASKS {
        let began = Instant::now();
        if actor.submit(count).await? == Answered::No {
            return Err("an ordinary caller was not answered".to_owned());
        }
        let leases = client.lease(&lease_call(name, 60_000)).await.map_err(failed("lease"))?.leases;
        served += 2;
        for leased in leases {
            let (task, lease) = (leased.task_id, leased.lease_id);
            ack_log.note(&AckEntry::Granted { lease });
            check_payload(task, &leased.payload, PAYLOAD)?;
            client.complete(task, &completion(lease)).await.map_err(failed("complete"))?;
            ack_log.note(&AckEntry::Completed { task, lease });
            served += 1;
        }
        if began.elapsed() > SERVED_WITHIN {
            return Err(format!("an ordinary caller waited {:?}", began.elapsed()));
        }
    }
    Ok(served)
}

/// Makes thousands of events, until streams that read none of them are closed.
async fn flood(actor: Actor, cut_off: Arc<AtomicU64>) -> Checked<u64> {
    let (began, mut events) = (Instant::now(), 0);
    while cut_off.load(Relaxed) < STUCK_READERS {
        if began.elapsed() > PATIENCE {
            return Err(format!("{events} events came, and somebody who reads nothing is not cut off"));
        }
        if events == EVENTS_MAX {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        let keys: Vec<String> =
            (0..EVENTS_PER_CALL).map(|n| format!("{}-{}", actor.name, events + n)).collect();
        let flood = |key: &String| Submit { queue: name("flood"), ..task(key, PAYLOAD) };
        let submitted = actor.client.submit_batch(keys.iter().map(flood).collect()).await;
        for (key, task) in keys.into_iter().zip(submitted.map_err(failed("submit a batch"))?) {
            let task = task.map_err(failed("submit a task of a batch"))?.id;
            actor.ack_log.note(&AckEntry::Submitted { key, task });
        }
        events += EVENTS_PER_CALL;
    }
    Ok(events)
}

/// What is wrong with a connection.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Idle,
    TrickleHeaders,
    TrickleBody,
    HalfClosed,
    Reset,
}

const BAD: [Bad; 5] = [Bad::Idle, Bad::TrickleHeaders, Bad::TrickleBody, Bad::HalfClosed, Bad::Reset];

impl Bad {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle connections",
            Self::TrickleHeaders => "trickled headers",
            Self::TrickleBody => "trickled bodies",
            Self::HalfClosed => "half-closed connections",
            Self::Reset => "reset connections",
        }
    }
}

async fn misbehave(port: u16, how: Bad, seed: u64) -> Checked {
    let mut socket = connect(port).await?;
    let post =
        format!("POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n");
    match how {
        Bad::Idle => until_closed(&mut socket).await,
        Bad::TrickleHeaders => trickle(socket, "GET /health HTTP/1.1\r\nX-A: ", seed).await,
        Bad::TrickleBody => {
            trickle(socket, &format!("{post}Content-Length: 100000\r\n\r\n{{\"queue\":\""), seed).await
        }
        Bad::HalfClosed => {
            // Answered or not, the other half is closed too.
            let request = format!("GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
            socket.write_all(request.as_bytes()).await.map_err(failed("send a request"))?;
            socket.shutdown().await.map_err(failed("close one half"))?;
            until_closed(&mut socket).await
        }
        Bad::Reset => {
            // Part of a request, some time, then a reset.
            let part = format!("{post}Content-Length: 50\r\n\r\n{{");
            socket.write_all(part.as_bytes()).await.map_err(failed("send a part"))?;
            tokio::time::sleep(Duration::from_millis(seed % 500)).await;
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).map_err(failed("set linger"))
        }
    }
}

async fn connect(port: u16) -> Checked<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).await.map_err(failed("connect"))
}

/// Sends a byte now and then, until the coordinator has had enough.
async fn trickle(mut socket: TcpStream, beginning: &str, seed: u64) -> Checked {
    let began = Instant::now();
    socket.write_all(beginning.as_bytes()).await.map_err(failed("send a beginning"))?;
    let (mut reading, mut writing) = socket.split();
    let closed = until_closed(&mut reading);
    tokio::pin!(closed);
    let pause = Duration::from_millis(50 + seed % 200);
    loop {
        tokio::select! {
            ended = &mut closed => return ended,
            () = tokio::time::sleep(pause) => {
                // A byte that is not accepted any more: the end is about to be read.
                let _ = writing.write_all(b"x").await;
            }
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("one byte every {pause:?} keeps a connection open for ever"));
        }
    }
}

/// Reads everything, until the coordinator closes the connection.
async fn until_closed(socket: &mut (impl tokio::io::AsyncRead + Unpin)) -> Checked {
    let mut bytes = [0; 1_024];
    let read = async {
        // A reset is an end too.
        while socket.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
    };
    let ended = tokio::time::timeout(PATIENCE, read).await;
    ended.map_err(|_| "a connection that nobody uses is not closed".to_owned())
}

/// Asks for events and reads none of them, until it is cut off.
async fn read_nothing(port: u16, cut_off: Arc<AtomicU64>) -> Checked {
    let socket = tokio::net::TcpSocket::new_v4().map_err(failed("make a socket"))?;
    // Little room, so that the coordinator soon cannot send more.
    socket.set_recv_buffer_size(4 << 10).map_err(failed("make the buffer small"))?;
    let mut socket = socket.connect(([127, 0, 0, 1], port).into()).await.map_err(failed("connect"))?;
    let request =
        format!("GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n");
    socket.write_all(request.as_bytes()).await.map_err(failed("ask for events"))?;
    // Writes begin to fail when the coordinator has gone; a line more or less means nothing to it before.
    let began = Instant::now();
    while socket.write_all(b"\r\n").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if began.elapsed() > 2 * PATIENCE {
            return Err("somebody who reads nothing is not cut off".to_owned());
        }
    }
    cut_off.fetch_add(1, Relaxed);
    Ok(())
}

const BOMBS: u64 = 8;

/// JSON within the size of a body, made to cost stack, memory or time.
fn bombs() -> [String; 8] {
    let task = |payload: &str| format!(r#"{{"queue":"bomb","payload":{payload}}}"#);
    let keys: Vec<String> = (0..60_000).map(|n| format!(r#""k{n}":0"#)).collect();
    [
        task(&"[".repeat(500_000)),
        task(&format!("{}{}", "[".repeat(200_000), "]".repeat(200_000))),
        task(&format!("{}1{}", r#"{"a":"#.repeat(65), "}".repeat(65))),
        task(&"9".repeat(900_000)),
        task(&format!("\"{}\"", "x".repeat(900_000))),
        task(&format!("\"{}", "\\u0000".repeat(100_000))),
        format!("{{{}}}", keys.join(",")),
        format!(r#"{{"queue":"bomb","payload":1,"priority":1e{}}}"#, "9".repeat(400_000)),
    ]
}

/// Every bomb is refused by name, and the connection after it is served.
async fn throw_bombs(port: u16) -> Checked<u64> {
    let mut refused = 0;
    for bomb in bombs() {
        let mut socket = connect(port).await?;
        let head = format!(
            "POST /v1/tasks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            bomb.len()
        );
        // An early refusal may not read all of it.
        let sent = async {
            socket.write_all(head.as_bytes()).await?;
            socket.write_all(bomb.as_bytes()).await
        };
        let _ = sent.await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(SERVED_WITHIN, socket.read_to_end(&mut answer)).await;
        let start: String = bomb.chars().take(40).collect();
        read.map_err(|_| format!("no answer to {start}…"))?.map_err(failed("read an answer"))?;
        if !answer.starts_with(b"HTTP/1.1 4") {
            return Err(format!("{start}… was answered {:?}", String::from_utf8_lossy(&answer)));
        }
        refused += 1;
    }
    Ok(refused)
}
