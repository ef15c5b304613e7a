//! A run as text: a table for the terminal, JSON for programs, a page for the documents.

use std::fmt::Write;

use serde::Serialize;

use crate::figures::{Figures, Goal, Measure, Who};
use crate::links::LinkFigures;
use crate::machine::Machine;
use crate::page::PAGE;
use crate::requests::RequestFigures;
use crate::shards::ShardFigures;
use crate::{engines, failover};

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) figures: Figures,
    pub(crate) goals: Vec<Goal>,
    pub(crate) seconds: f64,
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

/// The programs whose versions are in the report.
const SERVERS: [&str; 6] = ["Redis", "beanstalkd", "MariaDB", "PostgreSQL", "SeaweedFS", "etcd"];

impl Report {
    pub(crate) fn new(machine: Machine, figures: Figures, seconds: f64) -> Self {
        let goals = figures.goals();
        Self { machine, figures, goals, seconds }
    }

    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (title, rows) in [
            ("GOALS", self.goal_rows()),
            ("BESIDE PEERS", self.peer_rows()),
            ("ON ENGINES", engines::rows(&self.figures.engines)),
            ("CHANGES OF LEADER", failover::rows(&self.figures.failovers)),
            ("LINKS", self.link_rows()),
            ("REQUESTS", self.request_rows()),
            ("SHARDS", self.shard_rows()),
            ("ALL", self.all_rows()),
        ] {
            if rows.len() > 1 {
                let _ = writeln!(text, "{title}\n{}", aligned(&rows));
            }
        }
        let _ = writeln!(
            text,
            "{}",
            self.facts().iter().map(|(name, fact)| format!("{name}: {fact}")).collect::<Vec<_>>().join("\n")
        );
        text
    }

    /// For the documents.
    pub(crate) fn page(&self) -> String {
        let facts: Vec<Vec<String>> = std::iter::once(("what", "value".to_owned()))
            .chain(self.facts())
            .map(|(name, fact)| vec![name.to_owned(), fact])
            .collect();
        PAGE.replace("{seconds}", &format!("{:.0}", self.seconds))
            .replace("{goals}", &markdown(&self.goal_rows()))
            .replace("{peers}", &markdown(&self.peer_rows()))
            .replace("{engines}", &measured(&engines::rows(&self.figures.engines)))
            .replace("{failovers}", &measured(&failover::rows(&self.figures.failovers)))
            .replace("{links}", &measured(&self.link_rows()))
            .replace("{requests}", &measured(&self.request_rows()))
            .replace("{shards}", &measured(&self.shard_rows()))
            .replace("{all}", &markdown(&self.all_rows()))
            .replace("{facts}", &markdown(&facts))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Machine { processor, cores, memory, kernel, filesystem, idle, orchestrix, versions } =
            &self.machine;
        let mut facts = vec![
            ("processor", processor.clone()),
            ("cores", cores.to_string()),
            ("memory", memory.clone()),
            ("kernel", kernel.clone()),
            ("file system", filesystem.clone()),
            ("idle before the run", format!("{:.0} %{}", idle * 100.0, self.warning())),
            ("Orchestrix", orchestrix.clone()),
        ];
        facts.extend(SERVERS.map(|name| {
            let version = versions.iter().find(|(server, _)| *server == name);
            (name, version.map_or("not measured".to_owned(), |(_, version)| version.clone()))
        }));
        facts
    }

    fn warning(&self) -> &'static str {
        if self.machine.was_quiet() { "" } else { ": too busy with other work to believe these figures" }
    }

    fn link_rows(&self) -> Vec<Vec<String>> {
        self.figures.links.as_ref().map(LinkFigures::rows).unwrap_or_default()
    }

    fn request_rows(&self) -> Vec<Vec<String>> {
        self.figures.requests.as_ref().map(RequestFigures::rows).unwrap_or_default()
    }

    fn shard_rows(&self) -> Vec<Vec<String>> {
        self.figures.shards.as_ref().map(ShardFigures::rows).unwrap_or_default()
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

/// A table, or that there is none.
fn measured(rows: &[Vec<String>]) -> String {
    if rows.len() > 1 { markdown(rows) } else { "Not measured in this run.\n".to_owned() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Figure, MILLION};

    fn report() -> Report {
        let machine = Machine {
            processor: "a processor".to_owned(),
            cores: 2,
            memory: "8.0 GiB".to_owned(),
            kernel: "Linux 6".to_owned(),
            filesystem: "ext4 on /dev/x".to_owned(),
            idle: 0.5,
            orchestrix: "0.1.0".to_owned(),
            versions: vec![("Redis", "7.0".to_owned())],
        };
        let all = vec![
            Figure::new(Measure::Batches, Who::Orchestrix, 120_000.0, "8 connections"),
            Figure::new(Measure::Batches, Who::Redis, 100_000.0, "8 connections"),
            Figure::new(Measure::OneByOne, Who::Orchestrix, 19_000.0, "64 connections"),
        ];
        Report::new(machine, Figures { backlog: MILLION, all, ..Figures::default() }, 12.0)
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
