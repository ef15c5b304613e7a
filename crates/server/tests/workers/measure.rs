//! Whether two workers used one shard at a time, by their own lines.
//!
//! A worker has a shard from its `serve` to its `stop`. While it is frozen it does nothing, and it cannot tell that it
//! has stopped: what counts then is what it did last before, and what it does first after. The same is true of one that
//! did nothing for many ticks, because the machine did not let it.

use std::collections::BTreeMap;
use std::fmt;

use crate::process::{Event, Line};

/// A worker that uses nothing for so long does not run: many of its ticks. In nanoseconds.
const STARVED: u64 = 200_000_000;

/// A worker from its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) lines: Vec<Line>,
    /// When it was frozen, and when it was not any more.
    pub(crate) frozen: Vec<(u64, u64)>,
    pub(crate) ended: u64,
}

/// A time in which a worker used a shard, or may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    to: u64,
    life: usize,
    token: u64,
}

/// What all lives came to.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) uses: usize,
    /// Shards that began to be served by another life than before.
    pub(crate) moves: usize,
    /// Ends that were told late, by workers that did not run when they should have told them.
    pub(crate) late_stops: usize,
    /// Times that two lives had one shard.
    pub(crate) overlaps: Vec<String>,
    pub(crate) overlap_ms: u64,
    pub(crate) longest_ms: u64,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uses, moves, late_stops, overlaps, overlap_ms, longest_ms } = self;
        write!(f, "{uses} uses, {moves} moves, {late_stops} ends told late, ")?;
        write!(f, "{} overlaps of {overlap_ms} ms, the longest {longest_ms} ms", overlaps.len())
    }
}

pub(crate) fn measure(lives: &[Life]) -> Measured {
    let mut measured = Measured::default();
    let mut shards: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for (place, life) in lives.iter().enumerate() {
        measured.uses += life.lines.iter().filter(|line| line.event == Event::Use).count();
        for (shard, span) in spans(place, life, &mut measured.late_stops) {
            shards.entry(shard).or_default().push(span);
        }
    }
    for (shard, mut spans) in shards {
        spans.sort_by_key(|span| span.from);
        measured.moves += spans.windows(2).filter(|pair| pair[0].life != pair[1].life).count();
        for (place, early) in spans.iter().enumerate() {
            let late = spans[place + 1..].iter().take_while(|late| late.from < early.to);
            for late in late.filter(|late| late.life != early.life) {
                let (from, to) = (late.from, late.to.min(early.to));
                let ms = (to - from) / 1_000_000;
                measured.overlap_ms += ms;
                measured.longest_ms = measured.longest_ms.max(ms);
                let (one, other) = (&lives[early.life].name, &lives[late.life].name);
                measured.overlaps.push(format!(
                    "shard {shard}: {one} with {} and {other} with {} for {} us",
                    early.token,
                    late.token,
                    (to - from) / 1_000
                ));
            }
        }
    }
    measured
}

/// The times in which a life had each shard, without those in which it was frozen.
fn spans(place: usize, life: &Life, late_stops: &mut usize) -> Vec<(u32, Span)> {
    let mut open: BTreeMap<u32, Span> = BTreeMap::new();
    let mut spans = Vec::new();
    let mut frozen = life.frozen.iter().peekable();
    for line in &life.lines {
        while let Some((from, _)) = frozen.next_if(|(_, to)| *to <= line.at) {
            // Whatever it had, it is not known to have any more; its next use says so.
            for (shard, span) in std::mem::take(&mut open) {
                spans.push((shard, Span { to: span.to.max(*from), ..span }));
            }
        }
        match line.event {
            Event::Serve | Event::Use => {
                let begun = Span { from: line.at, to: line.at, life: place, token: line.token };
                open.entry(line.shard).or_insert(begun).to = line.at;
            }
            Event::Stop => {
                if let Some(span) = open.remove(&line.shard) {
                    let is_late = line.at - span.to > STARVED;
                    *late_stops += usize::from(is_late);
                    let to = if is_late { span.to } else { line.at };
                    spans.push((line.shard, Span { to, ..span }));
                }
            }
        }
    }
    // One that was killed did something up to its end; one that was killed while it was frozen, up to that.
    let end = frozen.next().map_or(life.ended, |(from, _)| *from);
    spans.extend(open.into_iter().map(|(shard, span)| (shard, Span { to: span.to.max(end), ..span })));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn line(at: u64, event: Event) -> Line {
        Line { at: at * MS, event, shard: 1, token: at }
    }

    fn life(lines: &[Line], frozen: &[(u64, u64)], ended: u64) -> Life {
        let frozen = frozen.iter().map(|(from, to)| (from * MS, to * MS)).collect();
        Life { name: String::new(), lines: lines.to_vec(), frozen, ended: ended * MS }
    }

    fn overlap(one: Life, other: Life) -> (usize, u64) {
        let measured = measure(&[one, other]);
        (measured.overlaps.len(), measured.overlap_ms)
    }

    #[test]
    fn two_that_take_turns_do_not_overlap_and_two_that_do_not_do() {
        let first = life(&[line(0, Event::Serve), line(5, Event::Use), line(10, Event::Stop)], &[], 99);
        let next = |from| life(&[line(from, Event::Serve), line(20, Event::Stop)], &[], 99);
        assert_eq!(overlap(first.clone(), next(10)), (0, 0));
        assert_eq!(overlap(first, next(7)), (1, 3));
    }

    #[test]
    fn one_that_is_frozen_has_nothing_until_it_does_something() {
        let next = life(&[line(20, Event::Serve), line(90, Event::Stop)], &[], 99);
        let stops = life(&[line(0, Event::Serve), line(80, Event::Stop)], &[(10, 70)], 99);
        assert_eq!(overlap(stops, next.clone()), (0, 0));
        let goes_on =
            life(&[line(0, Event::Serve), line(75, Event::Use), line(80, Event::Stop)], &[(10, 70)], 99);
        assert_eq!(overlap(goes_on, next), (1, 5));
    }

    #[test]
    fn one_that_does_not_run_has_nothing_until_it_does_something() {
        let next = [line(20, Event::Serve), line(400, Event::Use), line(500, Event::Stop)];
        let next = life(&next, &[], 999);
        let starved =
            |used| life(&[line(0, Event::Serve), line(used, Event::Use), line(400, Event::Stop)], &[], 999);
        assert_eq!(overlap(starved(15), next.clone()), (0, 0));
        assert_eq!(overlap(starved(30), next.clone()), (1, 10));
        assert_eq!(overlap(starved(200), next), (1, 380));
    }

    #[test]
    fn one_that_is_killed_has_what_it_had_up_to_then() {
        let next = life(&[line(20, Event::Serve), line(90, Event::Stop)], &[], 99);
        let killed = |at, frozen: &[(u64, u64)]| life(&[line(0, Event::Serve)], frozen, at);
        assert_eq!(overlap(killed(20, &[]), next.clone()), (0, 0));
        assert_eq!(overlap(killed(30, &[]), next.clone()), (1, 10));
        assert_eq!(overlap(killed(30, &[(15, 30)]), next), (0, 0));
    }
}
