//! O9: the shown output of a task is compared with the sent and the acknowledged lines.

use std::collections::{BTreeMap, BTreeSet};

use orchestrix_core::wire::{LogPage, LogStream};
use orchestrix_core::{LeaseId, TaskId};

use crate::cluster::engine::Who;
use crate::cluster::output::Writer;

/// What is known of the output of one task.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskOutput {
    /// The lines that were shown to a client, by their numbers.
    lines: Vec<String>,
    /// Who has stored or shown some of it, and in which epoch.
    pub(crate) terms: BTreeSet<(Who, u64)>,
    /// Appends that reached a node and were not acknowledged, or not yet.
    pub(crate) unsure: u64,
    /// It was read when everything had come to rest.
    pub(crate) read_last: bool,
}

/// What held when a page was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// Lines of each lease that were acknowledged.
    pub(crate) acknowledged: BTreeMap<LeaseId, u64>,
    /// Lines that were shown to a client.
    pub(crate) shown: usize,
}

impl TaskOutput {
    pub(crate) fn shown(&self) -> usize {
        self.lines.len()
    }

    /// Says what is wrong with a whole page of a leader, or keeps what it shows.
    ///
    /// Each lease has its first lines, each once and in order; a line keeps its number; what was acknowledged or shown
    /// before is there, unless it is beyond the cap and counted.
    pub(crate) fn check(
        &mut self,
        task: TaskId,
        before: &Before,
        page: &LogPage,
        writers: &BTreeMap<LeaseId, Writer>,
    ) -> Result<(), String> {
        let (shown, marks) = read(page)?;
        for (n, (line, known)) in page.lines.iter().zip(&self.lines).enumerate() {
            if line.text != *known {
                return Err(format!("line {n} was {known:?} and is {:?}", line.text));
            }
        }
        if page.lines.len() < before.shown {
            return Err(format!("{} lines are shown, and {} were before", page.lines.len(), before.shown));
        }
        let new = page.lines.iter().skip(self.lines.len());
        self.lines.extend(new.map(|line| line.text.clone()));
        for (lease, lines) in &shown {
            let sent =
                writers.get(lease).filter(|writer| writer.task == task).map_or(0, |writer| writer.sent);
            if *lines > sent {
                return Err(format!("{lines} lines of lease {lease} are shown, {sent} were sent"));
            }
        }
        let there = |lease: &LeaseId| shown.get(lease).copied().unwrap_or(0);
        if page.dropped == 0 {
            for (lease, lines) in &before.acknowledged {
                let there = there(lease);
                if there < *lines {
                    return Err(format!(
                        "{lines} lines of lease {lease} were acknowledged, {there} are shown, and none dropped"
                    ));
                }
            }
        }
        let missing =
            before.acknowledged.iter().map(|(lease, lines)| lines.saturating_sub(there(lease))).sum();
        let of_task = writers.iter().filter(|(_, writer)| writer.task == task);
        let unstored = of_task.map(|(lease, writer)| writer.sent.saturating_sub(there(lease))).sum();
        self.check_drops(&marks, page.dropped, missing, unstored)
    }

    /// Marks tell of each doubling, the number is not lower than the last one of them, and it is right: between what was
    /// acknowledged and what was sent. A new count knows only the last mark, and may miss as much as that says.
    fn check_drops(&self, marks: &[u64], dropped: u64, missing: u64, unstored: u64) -> Result<(), String> {
        let doubled = marks.windows(2).all(|pair| pair[1] >= 2 * pair[0]);
        let last = marks.last().copied().unwrap_or(0);
        if !doubled || marks.contains(&0) || dropped < last || dropped >= (2 * last).max(1) {
            return Err(format!("{dropped} lines are dropped, and the marks say {marks:?}"));
        }
        if dropped > unstored {
            return Err(format!("{dropped} lines are dropped, and {unstored} that were sent are not shown"));
        }
        let counts = 2 * self.unsure + (self.terms.len() as u64).saturating_sub(1);
        if missing > dropped + counts * dropped.saturating_sub(1) {
            return Err(format!(
                "{missing} lines were acknowledged and are not shown, and {dropped} are dropped; it was counted anew \
                 {counts} times at most"
            ));
        }
        Ok(())
    }
}

/// How many lines of each lease a page shows, and the numbers that the marks about dropped lines say.
fn read(page: &LogPage) -> Result<(BTreeMap<LeaseId, u64>, Vec<u64>), String> {
    let mut shown: BTreeMap<LeaseId, u64> = BTreeMap::new();
    let mut marks = Vec::new();
    for (n, line) in (0..).zip(&page.lines) {
        let mut words = line.text.split(' ');
        let first = words.next().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(second)) = (first, words.next()) else {
            return Err(format!("{line:?} was never written"));
        };
        if line.n != n {
            return Err(format!("{line:?} comes as number {n}"));
        }
        if line.stream == LogStream::System && second == "lines" {
            marks.push(first);
            continue;
        }
        let next = shown.entry(LeaseId(first)).or_default();
        if second.parse() != Ok(*next) || !marks.is_empty() {
            let marked = if marks.is_empty() { "" } else { ", and after lines were dropped" };
            return Err(format!("{line:?} comes where line {next} of the lease is due{marked}"));
        }
        *next += 1;
    }
    Ok((shown, marks))
}
