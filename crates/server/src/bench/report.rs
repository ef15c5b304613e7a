//! A run as text: a table for the terminal, JSON for programs, a page for the documents.

use std::fmt::Write;

use serde::Serialize;

use super::figures::{Figures, Goal, Measure, Who};
use super::machine::Machine;

/// A whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) figures: Figures,
    pub(super) goals: Vec<Goal>,
    pub(super) seconds: f64,
}

/// What is compared with peers, in the order of the page.
const COMPARED: [Measure; 6] = [
    Measure::Batches,
    Measure::OneByOne,
    Measure::SubmitP50,
    Measure::SubmitP99,
    Measure::Restart,
    Measure::MemoryPerTask,
];

impl Report {
    pub(super) fn new(machine: Machine, figures: Figures, seconds: f64) -> Self {
        let goals = figures.goals();
        Self { machine, figures, goals, seconds }
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (title, rows) in
            [("GOALS", self.goal_rows()), ("BESIDE PEERS", self.peer_rows()), ("ALL", self.all_rows())]
        {
            if rows.len() > 1 {
                let _ = writeln!(text, "{title}\n{}", aligned(&rows));
            }
        }
        let _ = writeln!(text, "{}", self.facts().map(|(name, fact)| format!("{name}: {fact}")).join("\n"));
        text
    }

    /// For the documents.
    pub(super) fn page(&self) -> String {
        let facts: Vec<Vec<String>> = std::iter::once(("what", "value".to_owned()))
            .chain(self.facts())
            .map(|(name, fact)| vec![name.to_owned(), fact])
            .collect();
        PAGE.replace("{seconds}", &format!("{:.0}", self.seconds))
            .replace("{goals}", &markdown(&self.goal_rows()))
            .replace("{peers}", &markdown(&self.peer_rows()))
            .replace("{all}", &markdown(&self.all_rows()))
            .replace("{facts}", &markdown(&facts))
    }

    fn facts(&self) -> [(&'static str, String); 9] {
        let Machine { processor, cores, memory, kernel, filesystem, idle, orchestrix, redis, beanstalkd } =
            &self.machine;
        let peer = |version: &Option<String>| version.clone().unwrap_or_else(|| "not measured".to_owned());
        [
            ("processor", processor.clone()),
            ("cores", cores.to_string()),
            ("memory", memory.clone()),
            ("kernel", kernel.clone()),
            ("file system", filesystem.clone()),
            ("idle before the run", format!("{:.0} %{}", idle * 100.0, self.warning())),
            ("Orchestrix", orchestrix.clone()),
            ("Redis", peer(redis)),
            ("beanstalkd", peer(beanstalkd)),
        ]
    }

    fn warning(&self) -> &'static str {
        if self.machine.was_quiet() { "" } else { ": too busy with other work to believe these figures" }
    }

    fn goal_rows(&self) -> Vec<Vec<String>> {
        let mut rows = head(&["goal", "wanted", "measured", ""]);
        rows.extend(self.goals.iter().map(|goal| {
            let reached = if goal.reached { "reached" } else { "not reached" };
            vec![goal.what.clone(), goal.wanted.clone(), goal.measured.clone(), reached.to_owned()]
        }));
        rows
    }

    fn peer_rows(&self) -> Vec<Vec<String>> {
        let mut rows =
            head(&["what", "Orchestrix", "Redis Streams", "× Redis", "beanstalkd", "× beanstalkd"]);
        let shown =
            |measure, who| self.figures.best(measure, who).map_or("–".to_owned(), |figure| figure.shown());
        let ratio = |measure, who| {
            self.figures.ratio(measure, who).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        let measured = |measure: &&Measure| {
            [Who::Redis, Who::Beanstalkd].iter().any(|who| self.figures.ratio(**measure, *who).is_some())
        };
        rows.extend(COMPARED.iter().filter(measured).map(|measure| {
            vec![
                measure.label().to_owned(),
                shown(*measure, Who::Orchestrix),
                shown(*measure, Who::Redis),
                ratio(*measure, Who::Redis),
                shown(*measure, Who::Beanstalkd),
                ratio(*measure, Who::Beanstalkd),
            ]
        }));
        rows
    }

    fn all_rows(&self) -> Vec<Vec<String>> {
        let mut rows = head(&["what", "who", "value", "how"]);
        rows.extend(self.figures.all.iter().map(|figure| {
            let who = figure.who.label().to_owned();
            vec![figure.measure.label().to_owned(), who, figure.shown(), figure.note.clone()]
        }));
        rows
    }
}

fn head(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|name| (*name).to_owned()).collect()]
}

/// Columns of equal width, two spaces apart.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    text
}

fn markdown(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if n == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text
}

const PAGE: &str = "\
# Benchmarks

Written by `make bench` (`orchestrix bench --write docs/benchmarks.md`): every number below is from one run
of {seconds} s on one machine. Run it on yours; what carries over is the ratios, not the numbers.

A **life cycle** is submit, lease and complete of one task with a payload of 200 random letters. Everybody
makes everything durable before answering: Orchestrix on its file engine, Redis with
`--appendonly yes --appendfsync always --save ''`, beanstalkd with `-b FOLDER -f 0`, all on the same disk. The
tool refuses folders that are in memory.

## Goals

{goals}
## Beside peers

A ratio above 1 is in favour of Orchestrix: more per second, or less time or memory.

{peers}
## The machine

{facts}
## All figures

{all}
## How it is measured

- **One client for all.** The load comes from one thread with one event loop, the same for each server; only
  the words differ: HTTP/1.1 with JSON, RESP, beanstalkd's lines. Client and servers share the processor, so
  a dear client or a wordy protocol costs throughput, ours included.
- **In turns.** Windows of the servers alternate and the median window counts; one client alone, its peers,
  the synced write and the round trip take turns every ten calls. A slow minute of the machine hits all.
- **In process** there is no protocol: callers await the methods of a `Node` in the same program.
- **Batches**: 8 connections, each with one call of 256 tasks in flight. Redis: 256 pipelined `XADD`, one
  `XREADGROUP COUNT 256`, one `XACK` and one `XDEL` of 256 entries.
- **One by one**: every task is its own submit, its own lease and its own completion; 256 life cycles are in
  flight, over 64 connections with 4 calls on the way or over 256 connections; the better one counts. All
  three servers take the calls of one connection one after the other.
- **Memory** is VmRSS after filling, less that right after the start, by the number of tasks.
- **Start after kill -9** is from starting the process to holding the first task. beanstalkd is filled without
  syncing, because it syncs each job alone and would take minutes; it reads the same file afterwards.
- **A long queue costs** what the server's own processor time per life cycle says, beside a second server
  with 1,000 waiting tasks under the same load, in turns.
- **The pause for a snapshot** is the longest time that a snapshot of the long queue kept the decision loop from
  deciding, beginning one or handing out a piece, in processor time: on a loaded machine every thread waits too.
- **The longest turn** is how long the loop decided without a look at new questions; up to 512 events are one turn, plus one request's worth.

## What limits it

On a machine with two cores the load, the loop, the writer and the disk's interrupts share them, and three things
decide, as profiles and the figures above say:

- **In process, 256 in flight.** All 256 wait for the same sync, so one round is a sync, plus about as long for what
  the loop decides, plus two wake-ups of a sleeping thread; the processors are idle half of the time. More in flight
  gives more. No function stands out in the profile; handing over half a round earlier, so that the sync of one half
  overlaps with deciding the other, gained nothing, because a sync of half as much takes as long.
- **One by one over HTTP** is bound by the processor: about half of the server's time is the kernel's TCP, the rest is
  spread over HTTP, JSON and wake-ups.
- **One client alone** waits for two wake-ups of threads more than a server of one thread does: the runtime wakes the
  loop, the loop wakes the runtime. The loop syncs itself when one caller waits; spinning for the next question
  instead of sleeping made it slower here.

Redis and beanstalkd promise less than a coordinator does, which is what makes them a good measure: neither
refuses every report of a worker that lost its task: a late `XACK` is taken from anyone, a late `delete` as long
as nobody has reserved the job again.
";

#[cfg(test)]
mod tests {
    use super::super::figures::{Figure, MILLION};
    use super::*;

    fn report() -> Report {
        let machine = Machine {
            processor: "a processor".to_owned(),
            cores: 2,
            memory: "8.0 GiB".to_owned(),
            kernel: "Linux 6".to_owned(),
            filesystem: "ext4 on /dev/x".to_owned(),
            idle: 0.5,
            orchestrix: "0.1.0".to_owned(),
            redis: Some("7.0".to_owned()),
            beanstalkd: None,
        };
        let all = vec![
            Figure::new(Measure::Batches, Who::Orchestrix, 120_000.0, "8 connections"),
            Figure::new(Measure::Batches, Who::Redis, 100_000.0, "8 connections"),
            Figure::new(Measure::OneByOne, Who::Orchestrix, 19_000.0, "64 connections"),
        ];
        Report::new(machine, Figures { backlog: MILLION, all }, 12.0)
    }

    #[test]
    fn the_page_says_of_every_goal_whether_it_is_reached() {
        let page = report().page();
        assert!(page.contains(
            "| life cycles over HTTP in batches, relative to Redis Streams | ≥ 1.00 × | 1.20 × | reached |"
        ));
        assert!(page.contains("| ≥ 20,000/s | 19,000/s | not reached |"), "{page}");
        assert!(page.contains("| beanstalkd | not measured |"));
        assert!(
            page.contains(
                "| idle before the run | 50 %: too busy with other work to believe these figures |"
            )
        );
        assert!(!page.contains('{'), "everything is filled in");
    }

    #[test]
    fn peers_stand_beside_us_with_a_ratio() {
        let rows = report().peer_rows();
        assert_eq!(rows[1][1..], ["120,000/s", "100,000/s", "1.20", "–", "–"]);
        assert_eq!(rows.len(), 2, "what has no peer is not compared");
    }

    #[test]
    fn the_columns_of_the_table_are_aligned() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["µs".to_owned(), "c".to_owned()]];
        assert_eq!(aligned(&rows), "  a   b\n  µs  c\n");
    }

    #[test]
    fn programs_get_everything_as_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["goals"][0]["reached"], true);
        assert_eq!(json["figures"]["all"][1]["who"], "redis");
        assert_eq!(json["figures"]["all"][0]["measure"], "batches");
    }
}
