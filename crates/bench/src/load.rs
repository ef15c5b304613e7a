//! Load from one thread: some connections, each with some lanes, each lane going round submit, lease, complete.
//!
//! All servers get their load from here, so what the client costs is the same for each of them.
//!
//! **Invariant:** a lane asks for a lease only after its own tasks are stored, so a lease call never waits and
//! never comes back empty; and a lane that has begun a life cycle ends it, so nothing is left behind.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use crate::payload::Payloads;

/// Bytes taken from a socket at once: a whole answer to a batch.
const READ_BYTES: usize = 256 << 10;
/// Sockets looked at per turn.
const EVENTS_MAX: usize = 64;
/// Between two looks at what is due.
const PACE_NANOS: i64 = 1_000_000;
/// A server that is silent for so long has stopped.
const SILENCE_MAX: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// The share of a window that is not counted, at its beginning.
pub(crate) const WARM_UP: f64 = 0.15;

/// What a lane asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Submit,
    Lease,
    Complete,
}

/// A leased task, as its server names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) u64, pub(crate) u64);

/// What a server understands: questions are appended to `out`, answers are read from `input`.
pub(crate) trait Dialect {
    fn submit(&mut self, out: &mut Vec<u8>, payloads: &mut Payloads, count: usize);
    fn lease(&mut self, out: &mut Vec<u8>, count: usize);
    fn complete(&mut self, out: &mut Vec<u8>, tickets: &[Ticket]);

    /// Reads the answer to one question and returns its length; none while it is not complete. `count` is how
    /// many tasks the question was about; leased tasks are pushed to `tickets`.
    ///
    /// # Errors
    /// When the server refused, or answered something that was not asked.
    fn read(
        &mut self,
        stage: Stage,
        count: usize,
        input: &[u8],
        tickets: &mut Vec<Ticket>,
    ) -> Result<Option<usize>>;
}

/// How the load is spread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    /// Life cycles that a connection has in flight at the same time.
    pub(crate) lanes: usize,
    /// Tasks per call.
    pub(crate) batch: usize,
}

/// What a window of load came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// All life cycles, those of the warm-up and the last ones included.
    pub(crate) total: u64,
}

/// Runs life cycles for the length of a window; longer if a slow server needs it, because all lanes begin
/// together and what they do comes in waves: at least one whole wave is left out and one is counted.
///
/// # Errors
/// When the server refuses something or goes away.
pub(crate) fn run_cycles<D: Dialect>(
    address: SocketAddr,
    shape: Shape,
    window: Duration,
    dialect: impl Fn(usize) -> D,
) -> Result<Rate> {
    let mut crowd = Crowd::connect(&[address], shape, dialect)?;
    let start = Instant::now();
    let (warm, end) = (start + window.mul_f64(WARM_UP), start + window);
    let round = (shape.connections * shape.lanes * shape.batch) as u64;
    let (mut warmed, mut ended) = (None, None);
    crowd.start(Duty::Cycle)?;
    while crowd.busy() {
        crowd.turn()?;
        let (now, done) = (Instant::now(), crowd.done);
        match (warmed, ended) {
            (None, _) if now >= warm && done >= round => warmed = Some((now, done)),
            (Some((_, before)), None) if now >= end && done >= before + round => {
                ended = Some((now, done));
                crowd.duty = Duty::Stop;
            }
            _ => {}
        }
    }
    let ((from, before), (to, after)) = warmed.zip(ended).context("the load ended before its time")?;
    let seconds = to.duration_since(from).as_secs_f64();
    Ok(Rate { per_second: (after - before) as f64 / seconds, total: crowd.done })
}

/// Runs life cycles for the length of a window, spread over several nodes, no more of them per second than are offered, and says
/// how many there were.
///
/// # Errors
/// When a server refuses something or goes away.
pub(crate) fn run_paced<D: Dialect>(
    addresses: &[SocketAddr],
    shape: Shape,
    per_second: f64,
    window: Duration,
    dialect: impl Fn(usize) -> D,
) -> Result<u64> {
    let mut crowd = Crowd::connect(addresses, shape, dialect)?;
    let (start, step) = (Instant::now(), Timespec { tv_sec: 0, tv_nsec: PACE_NANOS });
    crowd.start(Duty::Pace { left: 0 })?;
    let mut begun = 0;
    while start.elapsed() < window {
        // What is due by now is begun; what the servers are too slow for is left out.
        let due = (start.elapsed().as_secs_f64() * per_second) as usize;
        crowd.duty = Duty::Pace { left: due - begun };
        for (n, lane) in std::mem::take(&mut crowd.free) {
            crowd.submit(n, lane);
            crowd.flush(n)?;
        }
        crowd.wait(&step)?;
        begun = due;
    }
    crowd.duty = Duty::Stop;
    while crowd.busy() {
        crowd.turn()?;
    }
    Ok(crowd.done)
}

/// Runs so many life cycles.
///
/// # Errors
/// When the server refuses something or goes away.
pub(crate) fn run_counted<D: Dialect>(
    address: SocketAddr,
    shape: Shape,
    total: usize,
    dialect: impl Fn(usize) -> D,
) -> Result<()> {
    let mut crowd = Crowd::connect(&[address], shape, dialect)?;
    crowd.start(Duty::Pace { left: total })?;
    while crowd.busy() {
        crowd.turn()?;
    }
    ensure!(crowd.done == total as u64, "{} of {total} tasks were completed", crowd.done);
    Ok(())
}

/// Submits tasks that no worker leases, and prints its progress.
///
/// # Errors
/// When the server refuses something or goes away.
pub(crate) fn fill<D: Dialect>(
    address: SocketAddr,
    shape: Shape,
    total: usize,
    dialect: impl Fn(usize) -> D,
    mut tell: impl FnMut(u64),
) -> Result<()> {
    let mut crowd = Crowd::connect(&[address], shape, dialect)?;
    crowd.start(Duty::Fill { left: total })?;
    while crowd.busy() {
        crowd.turn()?;
        tell(crowd.done);
    }
    ensure!(crowd.done == total as u64, "{} of {total} tasks were stored", crowd.done);
    Ok(())
}

/// What lanes do when they are free.
#[derive(Clone, Copy, Debug)]
enum Duty {
    Cycle,
    Fill {
        left: usize,
    },
    /// So many life cycles are begun; other lanes stay free.
    Pace {
        left: usize,
    },
    /// What has begun is ended.
    Stop,
}

/// All connections to one server.
struct Crowd<D> {
    poll: OwnedFd,
    members: Vec<Member<D>>,
    batch: usize,
    duty: Duty,
    /// Tasks completed, or stored when filling.
    done: u64,
    /// Lanes that begin when more is due, each with its member.
    free: Vec<(usize, usize)>,
    scratch: Vec<u8>,
}

struct Member<D> {
    stream: TcpStream,
    dialect: D,
    payloads: Payloads,
    lanes: Vec<Lane>,
    /// Lanes that wait for an answer, in the order of their questions.
    asked: VecDeque<usize>,
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// The socket takes nothing at the moment.
    blocked: bool,
}

struct Lane {
    stage: Stage,
    /// Tasks that the question in flight is about.
    count: usize,
    tickets: Vec<Ticket>,
}

impl<D: Dialect> Crowd<D> {
    fn connect(addresses: &[SocketAddr], shape: Shape, dialect: impl Fn(usize) -> D) -> Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut members = Vec::with_capacity(shape.connections);
        for n in 0..shape.connections {
            let address = addresses[n % addresses.len()];
            let stream =
                TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&poll, &stream, EventData::new_u64(n as u64), EventFlags::IN)?;
            let lane = || Lane { stage: Stage::Submit, count: 0, tickets: Vec::new() };
            members.push(Member {
                stream,
                dialect: dialect(n),
                payloads: Payloads::new(n),
                lanes: (0..shape.lanes).map(|_| lane()).collect(),
                asked: VecDeque::new(),
                out: Vec::new(),
                sent: 0,
                input: Vec::new(),
                blocked: false,
            });
        }
        Ok(Self {
            poll,
            members,
            batch: shape.batch,
            duty: Duty::Stop,
            done: 0,
            free: Vec::new(),
            scratch: vec![0; READ_BYTES],
        })
    }

    fn busy(&self) -> bool {
        self.members.iter().any(|member| !member.asked.is_empty())
    }

    fn start(&mut self, duty: Duty) -> Result<()> {
        self.duty = duty;
        for n in 0..self.members.len() {
            for lane in 0..self.members[n].lanes.len() {
                self.submit(n, lane);
            }
            self.flush(n)?;
        }
        Ok(())
    }

    /// Waits for answers and follows them up.
    fn turn(&mut self) -> Result<()> {
        if !self.wait(&SILENCE_MAX)? {
            bail!("the server has been silent for {} s", SILENCE_MAX.tv_sec);
        }
        Ok(())
    }

    /// The same, for some time: whether something came.
    fn wait(&mut self, time: &Timespec) -> Result<bool> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.poll, spare_capacity(&mut events), Some(time)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let n = usize::try_from(event.data.u64()).expect("it was a place in the list");
            // A copy: the kernel's struct is packed.
            let flags = event.flags;
            if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
                self.receive(n)?;
            }
            self.flush(n)?;
        }
        Ok(true)
    }

    fn receive(&mut self, n: usize) -> Result<()> {
        let member = &mut self.members[n];
        match member.stream.read(&mut self.scratch) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(length) => member.input.extend_from_slice(&self.scratch[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut taken = 0;
        while let Some(lane) = self.members[n].asked.front().copied() {
            let Member { dialect, lanes, input, .. } = &mut self.members[n];
            let Lane { stage, count, tickets } = &mut lanes[lane];
            let Some(length) = dialect.read(*stage, *count, &input[taken..], tickets)? else { break };
            taken += length;
            self.members[n].asked.pop_front();
            self.go_on(n, lane)?;
        }
        self.members[n].input.drain(..taken);
        Ok(())
    }

    /// The question of a lane was answered: asks the next.
    fn go_on(&mut self, n: usize, lane: usize) -> Result<()> {
        let Member { dialect, lanes, out, asked, .. } = &mut self.members[n];
        let Lane { stage, count, tickets } = &mut lanes[lane];
        match (*stage, self.duty) {
            (Stage::Submit, Duty::Fill { .. }) => {
                self.done += *count as u64;
                self.submit(n, lane);
            }
            (Stage::Submit, Duty::Cycle | Duty::Pace { .. } | Duty::Stop) => {
                *stage = Stage::Lease;
                dialect.lease(out, *count);
                asked.push_back(lane);
            }
            (Stage::Lease, _) => {
                ensure!(!tickets.is_empty(), "a lease call came back empty although tasks wait");
                (*stage, *count) = (Stage::Complete, tickets.len());
                dialect.complete(out, tickets);
                asked.push_back(lane);
            }
            (Stage::Complete, _) => {
                self.done += *count as u64;
                tickets.clear();
                self.submit(n, lane);
            }
        }
        Ok(())
    }

    /// A free lane submits, as far as there is something to do.
    fn submit(&mut self, n: usize, lane: usize) {
        let count = match &mut self.duty {
            Duty::Cycle => self.batch,
            Duty::Stop => 0,
            Duty::Fill { left } | Duty::Pace { left } => {
                let count = self.batch.min(*left);
                *left -= count;
                count
            }
        };
        if count == 0 {
            self.free.push((n, lane));
            return;
        }
        let Member { dialect, lanes, out, asked, payloads, .. } = &mut self.members[n];
        (lanes[lane].stage, lanes[lane].count) = (Stage::Submit, count);
        dialect.submit(out, payloads, count);
        asked.push_back(lane);
    }

    fn flush(&mut self, n: usize) -> Result<()> {
        let member = &mut self.members[n];
        let was_blocked = member.blocked;
        member.blocked = false;
        while member.sent < member.out.len() {
            match member.stream.write(&member.out[member.sent..]) {
                Ok(written) => member.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    member.blocked = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !member.blocked {
            member.out.clear();
            member.sent = 0;
        }
        if member.blocked != was_blocked {
            let flags = if member.blocked { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.poll, &member.stream, EventData::new_u64(n as u64), flags)?;
        }
        Ok(())
    }
}

/// One connection that asks one thing at a time.
pub(crate) struct Alone<D> {
    stream: TcpStream,
    dialect: D,
    payloads: Payloads,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl<D: Dialect> Alone<D> {
    /// # Errors
    /// When the connection is refused.
    pub(crate) fn connect(address: SocketAddr, dialect: D) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(SILENCE_MAX.tv_sec.unsigned_abs())))?;
        Ok(Self { stream, dialect, payloads: Payloads::new(0), out: Vec::new(), input: Vec::new() })
    }

    /// Submits one task and returns how long that took.
    pub(crate) fn submit(&mut self) -> Result<Duration> {
        self.out.clear();
        self.dialect.submit(&mut self.out, &mut self.payloads, 1);
        let start = Instant::now();
        self.ask(Stage::Submit)?;
        Ok(start.elapsed())
    }

    /// Leases one task, if there is one.
    pub(crate) fn lease(&mut self) -> Result<Option<Ticket>> {
        self.out.clear();
        self.dialect.lease(&mut self.out, 1);
        Ok(self.ask(Stage::Lease)?.pop())
    }

    fn ask(&mut self, stage: Stage) -> Result<Vec<Ticket>> {
        self.stream.write_all(&self.out)?;
        self.input.clear();
        let (mut tickets, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let length = self.stream.read(&mut piece)?;
            ensure!(length > 0, "the server closed the connection");
            self.input.extend_from_slice(&piece[..length]);
            if self.dialect.read(stage, 1, &self.input, &mut tickets)?.is_some() {
                return Ok(tickets);
            }
        }
    }
}
