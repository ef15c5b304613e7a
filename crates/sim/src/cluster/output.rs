//! Output in a world with several nodes: workers append lines through the node that they take for the leader, appends are lost,
//! late and unanswered, tasks go from one lease to the next meanwhile, and now and then a client reads. When everything has
//! come to rest, the output of every task is read once more.
//!
//! O9: the lines of a lease that are shown are the ones that it wrote, from the first on, each once and in order; a line
//! keeps its number; and all that were acknowledged are among them, or dropped beyond the cap and counted.
//!
//! Everything here is drawn from a generator of its own.

mod check;
pub(crate) mod plan;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use orchestrix_core::wire::{LogAppend, LogAppended, LogPage, LogStream, LogText};
use orchestrix_core::{Event, LeaseId, Refusal, TaskEvent, TaskId};
use orchestrix_engine::{LogPlace, Logs};
use orchestrix_node::{Error, OutputCall};

use crate::check::Violation;
use crate::cluster::coverage::ClusterCovered;
use crate::cluster::engine::Who;
use crate::cluster::handles::lock;
use crate::cluster::happening::{Doing, Happening};
use crate::cluster::output::check::{Before, TaskOutput};
use crate::cluster::plan::ClusterPlan;
use crate::cluster::record::Fact;
use crate::cluster::world::ClusterWorld;
use crate::rng::Rng;
use crate::world::{MS, SECOND};

/// Lines of one lease. Bounds a world.
const LINES_MAX: u64 = 40;
/// Lines of a page: more than a task ever has here.
const PAGE: usize = 10_000;

pub(crate) struct OutputWorld {
    rng: Rng,
    used: bool,
    /// Events of the journal that were looked at.
    looked: usize,
    writers: BTreeMap<LeaseId, Writer>,
    tasks: BTreeMap<TaskId, TaskOutput>,
    asks: BTreeMap<u64, Ask>,
    calls: BTreeMap<u64, OutputCall>,
    late: BTreeMap<u64, (LogPlace, Vec<u8>)>,
    next: u64,
}

/// A worker that writes under a lease.
pub(crate) struct Writer {
    task: TaskId,
    lines: u64,
    written: u64,
    /// In some request.
    sent: u64,
    /// As it has heard.
    arrived: u64,
    /// As a leader has said, whether that was heard or not.
    acknowledged: u64,
    /// Until when it waits: for an answer, or before it tries again.
    waits: u64,
}

/// A question, before it arrives and until it is answered.
struct Ask {
    what: What,
    at: Option<(Who, Answering)>,
}

#[derive(Clone)]
enum What {
    Append(LeaseId, u64, u64),
    Read(TaskId, Before),
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
    /// A world has no output if its engine forgets, or nothing goes wrong in it.
    pub(crate) fn new(plan: &ClusterPlan) -> Self {
        Self {
            rng: Rng::new(plan.seed ^ 0x0eaf_1e56),
            used: plan.output.used && !plan.forgets && !plan.calm,
            looked: 0,
            writers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            asks: BTreeMap::new(),
            calls: BTreeMap::new(),
            late: BTreeMap::new(),
            next: 0,
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// All workers have written everything, and all of it was read after that.
    pub(crate) fn is_read(&self) -> bool {
        !self.used || (self.is_written() && self.tasks.values().all(|task| task.read_last))
    }

    fn is_written(&self) -> bool {
        self.writers.values().all(|writer| writer.arrived >= writer.lines)
    }

    fn before(&self, task: TaskId) -> Before {
        let of_task = self.writers.iter().filter(|(_, writer)| writer.task == task);
        Before {
            acknowledged: of_task.map(|(lease, writer)| (*lease, writer.acknowledged)).collect(),
            shown: self.tasks.get(&task).map_or(0, TaskOutput::shown),
        }
    }

    /// A node answers no call any more.
    pub(crate) fn forget(&mut self, who: Who) {
        self.asks.retain(|_, ask| ask.at.as_ref().is_none_or(|(at, _)| *at != who));
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl ClusterWorld {
    /// Workers write and send, and a client reads.
    pub(crate) fn write_output(&mut self) {
        self.find_writers();
        let writing = self.output.writers.iter().filter(|(_, writer)| writer.arrived < writer.lines);
        let writing: Vec<(LeaseId, TaskId)> = writing.map(|(lease, writer)| (*lease, writer.task)).collect();
        for (lease, _) in &writing {
            self.write_lines(*lease);
        }
        let rng = &mut self.output.rng;
        if !self.output.tasks.is_empty() && rng.chance(self.plan.output.reads) {
            // Most often a task that is being written.
            let at_work = !writing.is_empty() && rng.chance(800_000);
            let any = rng.index(if at_work { writing.len() } else { self.output.tasks.len() });
            let task =
                if at_work { Some(writing[any].1) } else { self.output.tasks.keys().nth(any).copied() };
            task.into_iter().for_each(|task| self.read_output(task));
        }
        if self.settled.is_some() && self.output.is_written() {
            let unread = self.output.tasks.iter().filter(|(_, known)| !known.read_last);
            let unread: Vec<TaskId> = unread.map(|(task, _)| *task).collect();
            unread.into_iter().for_each(|task| self.read_output(task));
        }
        if self.faulty || self.settled.is_none() || !self.output.is_read() || !self.is_at_rest() {
            let pause = self.output.rng.range(20 * MS, self.plan.output.pause);
            self.push(self.now + pause, Happening::Write);
        }
    }

    fn read_output(&mut self, task: TaskId) {
        let before = self.output.before(task);
        self.ask_output(What::Read(task, before));
    }

    fn find_writers(&mut self) {
        for entry in &self.mirror.log[self.output.looked..] {
            if let Event::Task(TaskEvent::LeaseGranted(granted)) = &entry.event {
                let lines = self.output.rng.range(1, LINES_MAX);
                let writer = Writer {
                    task: granted.task,
                    lines,
                    written: 0,
                    sent: 0,
                    arrived: 0,
                    acknowledged: 0,
                    waits: 0,
                };
                self.output.writers.insert(LeaseId(entry.position.0), writer);
                self.output.tasks.entry(granted.task).or_default().read_last = false;
            }
        }
        self.output.looked = self.mirror.log.len();
    }

    fn write_lines(&mut self, lease: LeaseId) {
        let plan = &self.plan.output;
        let rng = &mut self.output.rng;
        let some = rng.range(0, 5);
        let Some(writer) = self.output.writers.get_mut(&lease) else { return };
        writer.written = (writer.written + some).min(writer.lines);
        if self.now < writer.waits || writer.arrived >= writer.written {
            return;
        }
        let repeated = if rng.chance(plan.repeats) { rng.range(1, 5) } else { 0 };
        let from = writer.arrived.saturating_sub(repeated);
        // All that there is, or a part of it: what is sent again is cut elsewhere.
        let to = if rng.chance(300_000) { rng.range(from + 1, writer.written) } else { writer.written };
        writer.waits = self.now + plan.patience;
        if self.ask_output(What::Append(lease, from, to)).is_none()
            && let Some(writer) = self.output.writers.get_mut(&lease)
        {
            writer.waits = 0;
        }
    }

    /// Sends a question to a possible leader, if there is one.
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
                let Some(writer) = self.output.writers.get_mut(&lease) else { return };
                writer.sent = writer.sent.max(to);
                let task = writer.task;
                self.output.tasks.entry(task).or_default().unsure += 1;
                let line = |n: u64| LogText { text: format!("{lease} {n}"), stream: LogStream::Stdout };
                let body = LogAppend {
                    lease_id: lease,
                    lines: (from..to).map(line).collect(),
                    offset: Some(from),
                    skipped: 0,
                };
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

    /// When a call is made that was to be made while its process was frozen: with everything else that is due, or before
    /// the process looks at a clock.
    pub(crate) fn thawed_output(&mut self, until: u64) -> u64 {
        if self.output.rng.chance(500_000) { until } else { until - 1 }
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
            let slow = self.faulty && self.output.rng.chance(self.plan.output.slow);
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
            let takes = self.output.rng.range(100 * MS, self.plan.output.latest);
            self.output.late.insert(number, append);
            self.push(self.now + takes, Happening::LateOutput(number));
        }
        self.take_answers(who)
    }

    /// An append arrives long after it was sent: its answer is dropped.
    pub(crate) fn late_output(&mut self, number: u64) {
        let Some((at, bytes)) = self.output.late.remove(&number) else { return };
        let stored = lock(&self.model).output.logs.append(at, &bytes);
        self.coverage.add(match stored {
            Ok(orchestrix_engine::Logged::Stored) => ClusterCovered::LateOutputStored,
            _ => ClusterCovered::LateOutputRefused,
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
            (What::Append(lease, from, to), Answered::Append(answer)) => {
                self.append_answered(who, epoch, (lease, from, to), answer)
            }
            (What::Read(task, before), Answered::Read(Ok(page))) => {
                self.page_shown(who, epoch, task, &before, &page)
            }
            (What::Append(..) | What::Read(..), Answered::Append(_) | Answered::Read(_)) => Ok(()),
        }
    }

    fn append_answered(
        &mut self,
        who: Who,
        epoch: u64,
        (lease, from, to): (LeaseId, u64, u64),
        answer: Result<LogAppended, Error>,
    ) -> Result<(), Violation> {
        self.trace(format_args!("{lease} {from} {to} {answer:?}"));
        self.tell(|| format!("  {who:?} answers to lines of lease {lease} {from} {to} {answer:?}"));
        if answer.is_ok() {
            self.note(Fact::Answered { who, epoch });
        }
        let lost = self.faulty && self.output.rng.chance(self.plan.output.reply_lost);
        let again = self.now + self.output.rng.range(0, self.plan.output.patience);
        let Some(writer) = self.output.writers.get_mut(&lease) else { return Ok(()) };
        let task = writer.task;
        // What was purged while lines waited to be stored has no output any more.
        let acts = self.machines[who.node].acts().is_some() && self.mirror.state.task(task).is_some();
        let wrong = |what: String| Err(Violation::new("O9", format!("lease {lease} of task {task}: {what}")));
        match answer {
            Ok(LogAppended { next, dropped }) => {
                if next < to || next > writer.sent || dropped > to - from {
                    let sent = writer.sent;
                    return wrong(format!(
                        "after lines {from} to {to} of {sent} the next is {next}, {dropped} are dropped"
                    ));
                }
                writer.acknowledged = writer.acknowledged.max(next);
                if !lost {
                    (writer.arrived, writer.waits) = (writer.arrived.max(next), 0);
                }
                let known = self.output.tasks.entry(task).or_default();
                known.terms.insert((who, epoch));
                known.unsure -= 1;
                if self.output.rng.chance(self.plan.output.reads_after) {
                    self.read_output(task);
                }
            }
            Err(Error::Refused(Refusal::Invalid { field, problem })) if acts => {
                return wrong(format!("lines from {from} on are refused: {field} {problem}"));
            }
            // Nothing more is taken under a lease that is over.
            Err(Error::Refused(_)) => writer.lines = writer.arrived,
            Err(_) => writer.waits = again,
        }
        Ok(())
    }

    fn page_shown(
        &mut self,
        who: Who,
        epoch: u64,
        task: TaskId,
        before: &Before,
        page: &LogPage,
    ) -> Result<(), Violation> {
        self.trace(format_args!("{who:?} shows of task {task}: {page:?}"));
        self.tell(|| format!("  {who:?} shows of task {task}: {page:?}"));
        let is_last = self.settled.is_some() && self.output.is_written();
        let OutputWorld { writers, tasks, .. } = &mut self.output;
        let known = tasks.entry(task).or_default();
        // What was purged has no output, and one that does not lead may show less.
        if self.mirror.state.task(task).is_none() {
            known.read_last = is_last;
            return Ok(());
        }
        if self.machines[who.node].acts().is_none() {
            return Ok(());
        }
        known.terms.insert((who, epoch));
        known.read_last = is_last;
        let checked = known.check(task, before, page, writers);
        if page.dropped > 0 {
            self.coverage.add(ClusterCovered::OutputDropped);
        }
        checked.map_err(|what| Violation::new("O9", format!("output of task {task} at {who:?}: {what}")))
    }
}
