//! Output in a world with several nodes: workers append lines through whoever they take for the leader, appends are lost,
//! late and unheard, and now and then somebody reads.
//!
//! O9: the lines of a lease that are shown are the ones that it wrote, from the first on, each once and in order; and all
//! that were acknowledged are among them.
//!
//! Everything here is drawn from a generator of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use orchestrix_core::wire::{LogAppend, LogAppended, LogPage, LogStream, LogText};
use orchestrix_core::{Event, LeaseId, TaskId};
use orchestrix_engine::{LogPlace, Logs};
use orchestrix_node::{Error, OutputCall};

use crate::check::Violation;
use crate::cluster::engine::Who;
use crate::cluster::handles::lock;
use crate::cluster::plan::ClusterPlan;
use crate::cluster::record::Fact;
use crate::cluster::sights::ClusterSight;
use crate::cluster::world::{ClusterWorld, Doing, Happening};
use crate::rng::Rng;
use crate::world::{MS, SECOND};

/// Lines of one lease. Bounds a world.
const LINES_MAX: u64 = 40;
/// Lines of a page: more than a task ever has here.
const PAGE: usize = 10_000;
/// How long a worker waits for an answer before it sends its lines again.
const PATIENCE: u64 = SECOND;

pub(crate) struct OutputWorld {
    rng: Rng,
    used: bool,
    pub(crate) faults: [u32; 3],
    /// Events of the journal that were looked at.
    looked: usize,
    writers: BTreeMap<LeaseId, Writer>,
    asks: BTreeMap<u64, Ask>,
    calls: BTreeMap<u64, OutputCall>,
    late: BTreeMap<u64, (LogPlace, Vec<u8>)>,
    next: u64,
}

/// A worker that writes under a lease.
struct Writer {
    task: TaskId,
    lines: u64,
    written: u64,
    /// As it has heard.
    arrived: u64,
    /// As a leader has said, whether that was heard or not.
    acknowledged: u64,
    /// Sent, and not answered yet; until when it waits.
    waits: Option<(u64, u64)>,
}

/// A question, before it arrives and until it is answered.
struct Ask {
    what: What,
    at: Option<(Who, Answering)>,
}

enum What {
    Append(LeaseId, u64, u64),
    /// With what was acknowledged of each lease of the task when it was asked.
    Read(TaskId, BTreeMap<LeaseId, u64>),
}

enum Answering {
    Append(Pin<Box<dyn Future<Output = Result<LogAppended, Error>>>>),
    Read(Pin<Box<dyn Future<Output = Result<LogPage, Error>>>>),
}

enum Answered {
    Append(Result<LogAppended, Error>),
    Read(Result<LogPage, Error>),
}

impl OutputWorld {
    /// Two worlds of three have output, unless their engine forgets.
    pub(crate) fn new(plan: &ClusterPlan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x0eaf_1e55);
        let used = rng.chance(666_000) && !plan.forgets && !plan.calm;
        let mut rate = |high: u64| u32::try_from(rng.skewed(1_000, high)).unwrap_or(0);
        let faults = [rate(100_000), rate(200_000), rate(300_000)];
        Self {
            rng,
            used,
            faults,
            looked: 0,
            writers: BTreeMap::new(),
            asks: BTreeMap::new(),
            calls: BTreeMap::new(),
            late: BTreeMap::new(),
            next: 0,
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// A node answers nobody any more.
    pub(crate) fn forget(&mut self, who: Who) {
        self.asks.retain(|_, ask| ask.at.as_ref().is_none_or(|(at, _)| *at != who));
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl ClusterWorld {
    /// Workers write and send, and somebody reads.
    pub(crate) fn write_output(&mut self) {
        self.find_writers();
        let leases: Vec<LeaseId> = self.output.writers.keys().copied().collect();
        for lease in leases {
            self.write_lines(lease);
        }
        let tasks: Vec<TaskId> = self.output.writers.values().map(|writer| writer.task).collect();
        if !tasks.is_empty() && self.output.rng.chance(400_000) {
            let task = tasks[self.output.rng.index(tasks.len())];
            let of_task = self.output.writers.iter().filter(|(_, writer)| writer.task == task);
            let acknowledged = of_task.map(|(lease, writer)| (*lease, writer.acknowledged)).collect();
            self.ask_output(What::Read(task, acknowledged));
        }
        if self.faulty || self.output.writers.values().any(|writer| writer.arrived < writer.lines) {
            let pause = self.output.rng.range(20 * MS, 500 * MS);
            self.push(self.now + pause, Happening::Write);
        }
    }

    fn find_writers(&mut self) {
        for entry in &self.mirror.log[self.output.looked..] {
            if let Event::LeaseGranted(granted) = &entry.event {
                let lines = self.output.rng.range(1, LINES_MAX);
                let writer = Writer {
                    task: granted.task,
                    lines,
                    written: 0,
                    arrived: 0,
                    acknowledged: 0,
                    waits: None,
                };
                self.output.writers.insert(LeaseId(entry.position.0), writer);
            }
        }
        self.output.looked = self.mirror.log.len();
    }

    fn write_lines(&mut self, lease: LeaseId) {
        let some = self.output.rng.range(0, 5);
        let Some(writer) = self.output.writers.get_mut(&lease) else { return };
        writer.written = (writer.written + some).min(writer.lines);
        let waits = writer.waits.is_some_and(|(_, until)| self.now < until);
        if waits || writer.arrived >= writer.written {
            return;
        }
        let (from, to) = (writer.arrived, writer.written);
        let number = self.ask_output(What::Append(lease, from, to));
        if let Some(writer) = self.output.writers.get_mut(&lease) {
            writer.waits = number.map(|number| (number, self.now + PATIENCE));
        }
    }

    /// Sends a question to whoever may lead, if anybody does.
    fn ask_output(&mut self, what: What) -> Option<u64> {
        let who = self.output_target()?;
        let number = self.output.number();
        let takes = self.output.rng.range(20, 500);
        self.output.asks.insert(number, Ask { what, at: None });
        self.after(takes, who, Doing::Output(number));
        Some(number)
    }

    fn output_target(&mut self) -> Option<Who> {
        let leads = |node: &usize| self.machines[*node].process.as_ref().is_some_and(|it| it.leads.is_some());
        let believers: Vec<usize> = (0..self.machines.len()).filter(leads).collect();
        let any = *believers.get(self.output.rng.index(believers.len().max(1)))?;
        let acting = believers.into_iter().find(|node| self.machines[*node].acts().is_some());
        let stale = self.faulty && self.output.rng.chance(200_000);
        self.who(acting.filter(|_| !stale).unwrap_or(any))
    }

    /// A question about output arrives at a node.
    pub(crate) fn output_arrives(&mut self, who: Who, number: u64) {
        let Some(leads) = &self.process(who).leads else {
            self.output.asks.remove(&number);
            return;
        };
        let node = leads.node.clone();
        let Some(ask) = self.output.asks.get_mut(&number) else { return };
        let answering = match ask.what {
            What::Append(lease, from, to) => {
                let Some(writer) = self.output.writers.get(&lease) else { return };
                let task = writer.task;
                let line = |n: u64| LogText { text: format!("{lease} {n}"), stream: LogStream::Stdout };
                let body =
                    LogAppend { lease_id: lease, lines: (from..to).map(line).collect(), offset: Some(from) };
                Answering::Append(Box::pin(async move { node.append_logs(task, body).await }))
            }
            What::Read(task, _) => {
                Answering::Read(Box::pin(async move { node.logs(task, 0, PAGE, None).await }))
            }
        };
        ask.at = Some((who, answering));
        let takes = self.output.rng.range(1, 100);
        self.decide_after(who, takes);
    }

    /// Takes the answers that a node has given, and lets its calls of the engine be made.
    pub(crate) fn poll_output(&mut self, who: Who, epoch: u64) -> Result<(), Violation> {
        if !self.output.is_used() {
            return Ok(());
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut answers = Vec::new();
        for (number, ask) in &mut self.output.asks {
            let Some((at, answering)) = &mut ask.at else { continue };
            if *at != who {
                continue;
            }
            let answered = match answering {
                Answering::Append(future) => future.as_mut().poll(&mut context).map(Answered::Append),
                Answering::Read(future) => future.as_mut().poll(&mut context).map(Answered::Read),
            };
            if let Poll::Ready(answered) = answered {
                answers.push((*number, answered));
            }
        }
        for (number, answered) in answers {
            self.output_answered(who, epoch, number, answered)?;
        }
        while let Some(call) = self.process(who).leads.as_mut().and_then(|leads| leads.stepped.output_call())
        {
            let number = self.output.number();
            let slow = self.faulty && self.output.rng.chance(100_000);
            let takes = self.output.rng.range(100, if slow { 3 * SECOND } else { 5 * MS });
            self.output.calls.insert(number, call);
            self.after(takes, who, Doing::CallOutput(number));
        }
        Ok(())
    }

    /// A call reaches the engine, or gets lost on the way there.
    pub(crate) fn call_output(&mut self, who: Who, number: u64) -> Result<(), Violation> {
        if let Some(call) = self.output.calls.remove(&number) {
            call.run();
        }
        let late = std::mem::take(&mut lock(&self.model).output.late);
        for append in late {
            let number = self.output.number();
            let takes = self.output.rng.range(100 * MS, 10 * SECOND);
            self.output.late.insert(number, append);
            self.push(self.now + takes, Happening::LateOutput(number));
        }
        self.take_answers(who)
    }

    /// An append arrives long after it was sent: whatever becomes of it, nobody hears.
    pub(crate) fn late_output(&mut self, number: u64) {
        let Some((at, bytes)) = self.output.late.remove(&number) else { return };
        let stored = lock(&self.model).output.logs.append(at, &bytes);
        self.sights.add(match stored {
            Ok(orchestrix_engine::Logged::Stored) => ClusterSight::LateOutputStored,
            _ => ClusterSight::LateOutputRefused,
        });
    }

    fn output_answered(
        &mut self,
        who: Who,
        epoch: u64,
        number: u64,
        answered: Answered,
    ) -> Result<(), Violation> {
        let Some(ask) = self.output.asks.remove(&number) else { return Ok(()) };
        match (ask.what, answered) {
            (What::Append(lease, ..), Answered::Append(answer)) => {
                if answer.is_ok() {
                    self.note(Fact::Answered { who, epoch });
                }
                let lost = self.faulty && self.output.rng.chance(100_000);
                let Some(writer) = self.output.writers.get_mut(&lease) else { return Ok(()) };
                match answer {
                    Ok(appended) => {
                        writer.acknowledged = writer.acknowledged.max(appended.next);
                        if !lost {
                            writer.arrived = writer.arrived.max(appended.next);
                            writer.waits = None;
                        }
                    }
                    // Nothing more is taken under a lease that is over.
                    Err(Error::Refused(_)) => writer.lines = writer.arrived,
                    Err(_) => writer.waits = None,
                }
                Ok(())
            }
            (What::Read(task, acknowledged), Answered::Read(Ok(page))) => {
                self.check_output(who, task, &acknowledged, &page)
            }
            (What::Append(..) | What::Read(..), Answered::Append(_) | Answered::Read(_)) => Ok(()),
        }
    }

    /// O9.
    fn check_output(
        &self,
        who: Who,
        task: TaskId,
        acknowledged: &BTreeMap<LeaseId, u64>,
        page: &LogPage,
    ) -> Result<(), Violation> {
        // What was purged has no output, and one that does not lead may show less.
        if self.mirror.state.task(task).is_none() || self.machines[who.node].acts().is_none() {
            return Ok(());
        }
        let wrong =
            |what: String| Err(Violation::new("O9", format!("output of task {task} at {who:?}: {what}")));
        let mut shown: BTreeMap<LeaseId, u64> = BTreeMap::new();
        for (n, line) in (0..).zip(&page.lines) {
            let mut words = line.text.split(' ').map(str::parse::<u64>);
            let (Some(Ok(lease)), Some(Ok(number))) = (words.next(), words.next()) else {
                return wrong(format!("{line:?} was never written"));
            };
            let next = shown.entry(LeaseId(lease)).or_default();
            if line.n != n || number != *next {
                return wrong(format!("{line:?} comes where line {next} of the lease is due, as number {n}"));
            }
            *next += 1;
        }
        for (lease, lines) in acknowledged {
            let there = shown.get(lease).copied().unwrap_or(0);
            if there < *lines {
                return wrong(format!("{lines} lines of lease {lease} were acknowledged, {there} are shown"));
            }
        }
        Ok(())
    }
}
