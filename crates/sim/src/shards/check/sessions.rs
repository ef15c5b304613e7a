//! H7 for every kind of worker: a process that another took the place of is believed again only when it came anew. After a
//! change of leader connections are not known any more, and each may be believed once; sessions that were named are known.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::shards::is_named;
use orchestrix_core::wire::Assignment;
use orchestrix_core::{Event, Name, Position, TermEvent};
use orchestrix_node::ShardAsk;

use crate::check::Violation;
use crate::history::{Answer, Call, History, Question};

/// A service, a worker, and one session of a process.
type Session<'a> = (&'a Name, &'a Name, &'a Name);

pub(super) fn check(history: &History) -> Vec<Violation> {
    let is_term = |event: &Event| matches!(event, Event::Term(TermEvent::TermStarted(_)));
    let terms: BTreeSet<Position> =
        history.log.iter().filter(|entry| is_term(&entry.event)).map(|entry| entry.position).collect();
    let mut look = Look { coming: coming(history), speaks: BTreeMap::new(), ended: BTreeMap::new() };
    let mut found = Vec::new();
    for call in &history.calls {
        let (Question::Shards { ask, .. }, Ok(Answer::Assignment(assignment))) =
            (&call.question, &call.answer)
        else {
            continue;
        };
        let term = terms.range(..=call.durable_after).next_back().copied().unwrap_or_default();
        found.extend(look.at(call, ask, assignment, term).err());
    }
    found
}

struct Look<'a> {
    /// When each session was asked to come, and answered.
    coming: BTreeMap<Session<'a>, Vec<(u64, u64)>>,
    /// Who was last believed, and in which term.
    speaks: BTreeMap<(&'a Name, &'a Name), (Position, &'a Name)>,
    /// When another was believed instead, and in which term.
    ended: BTreeMap<Session<'a>, (Position, u64)>,
}

impl<'a> Look<'a> {
    fn at(
        &mut self,
        call: &'a Call,
        ask: &'a ShardAsk,
        assignment: &Assignment,
        term: Position,
    ) -> Result<(), Violation> {
        let Some(session) = session_of(ask).filter(|_| assignment.lease_ms > 0 && !assignment.fenced) else {
            return Ok(());
        };
        let (service, worker, name) = session;
        let before = self.speaks.insert((service, worker), (term, name));
        // The current leader knows a process that sent a message in its term.
        let counts = |in_term: Position, session: &Name| in_term == term || is_named(session);
        if let Some((_, before)) = before.filter(|(at, before)| *before != name && counts(*at, before)) {
            self.ended.insert((service, worker, before), (term, call.answered_us));
        }
        let ended = self.ended.remove(&session).filter(|(in_term, _)| counts(*in_term, name));
        let Some((_, at)) = ended.filter(|_| serves(ask)) else { return Ok(()) };
        let came = |(asked, answered): &(u64, u64)| *asked <= call.answered_us && *answered > at;
        if self.coming.get(&session).is_some_and(|coming| coming.iter().any(came)) {
            return Ok(());
        }
        let what = format!("{name} of {worker} is believed again though another spoke at {at} µs");
        Err(Violation::new("H7", what))
    }
}

fn coming(history: &History) -> BTreeMap<Session<'_>, Vec<(u64, u64)>> {
    let mut coming: BTreeMap<Session<'_>, Vec<(u64, u64)>> = BTreeMap::new();
    let answered = history.calls.iter().map(|call| (&call.question, call.asked_us, call.answered_us));
    let unanswered = history.unanswered.iter().map(|(question, asked)| (question, *asked, u64::MAX));
    for (question, asked, answered) in answered.chain(unanswered) {
        let Question::Shards { ask, .. } = question else { continue };
        if let Some(session) = session_of(ask).filter(|_| !serves(ask)) {
            coming.entry(session).or_default().push((asked, answered));
        }
    }
    coming
}

/// Whether a process says that it serves something.
fn serves(ask: &ShardAsk) -> bool {
    match ask {
        ShardAsk::Heartbeat { body, .. } => !body.assigned_shards.is_empty(),
        ShardAsk::Register { .. }
        | ShardAsk::Deregister { .. }
        | ShardAsk::Change { .. }
        | ShardAsk::Assignment { .. }
        | ShardAsk::Service(_)
        | ShardAsk::Services { .. } => false,
    }
}

/// Who comes or stays.
fn session_of(ask: &ShardAsk) -> Option<Session<'_>> {
    let (service, worker, session) = match ask {
        ShardAsk::Register { service, worker, body } => (service, worker, body.session.as_ref()),
        ShardAsk::Heartbeat { service, worker, body } => (service, worker, body.session.as_ref()),
        ShardAsk::Deregister { .. }
        | ShardAsk::Change { .. }
        | ShardAsk::Assignment { .. }
        | ShardAsk::Service(_)
        | ShardAsk::Services { .. } => return None,
    };
    session.map(|session| (service, worker, session))
}
