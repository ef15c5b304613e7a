//! The table of `prove`: one row for each campaign.

use std::fmt::Write as _;
use std::time::Duration;

use crate::cluster::ClusterOutcome;
use crate::coverage::Coverable;
use crate::damage::DamageOutcome;
use crate::prove::Outcome;
use crate::real::Tried;

/// Characters of the column that says what was seen.
const SEEN_WIDTH: usize = 70;

/// In so many seconds every campaign has its time to see everything.
const ENOUGH: Duration = Duration::from_secs(150);

/// How long all of it ran, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Too few rounds are a failure.
    Enough,
    /// Too few rounds are what was asked for; a warning says so.
    Short,
}

impl Length {
    #[must_use]
    pub fn of(time: Duration) -> Self {
        if time >= ENOUGH { Self::Enough } else { Self::Short }
    }
}

/// What was tried, what it met, and what came of it.
#[derive(Debug, Default)]
pub struct Row {
    pub name: String,
    /// How often: worlds, rounds, inputs.
    pub tried: u64,
    pub faults: u64,
    /// Answers that were checked.
    pub answers: u64,
    /// What was seen how often.
    pub seen: Vec<(String, u64)>,
    /// What had to be seen and was not.
    pub missing: Vec<String>,
    /// How often is enough to demand that everything is seen.
    pub enough: u64,
    /// What was broken, and the command that shows it again.
    pub failures: Vec<Failure>,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    /// The command that shows it again.
    pub again: String,
}

impl Row {
    /// The row of simulated worlds of a kind, and the command that runs one of them.
    #[must_use]
    pub fn of_worlds<S: Coverable>(name: &str, command: &str, outcome: &Outcome<S>) -> Self {
        let mut seen = vec![
            ("simulated hours".to_owned(), outcome.simulated_seconds / 3_600),
            ("run twice".to_owned(), outcome.repeated),
        ];
        seen.extend(outcome.coverage.all().map(|(item, count)| (words(&format!("{item:?}")), count)));
        let failures = outcome.failed.iter().map(|(seed, violation)| Failure {
            what: format!("seed {seed}: {violation}"),
            again: format!("{command} --seed {seed} --shrink --tell"),
        });
        Self {
            name: name.to_owned(),
            tried: outcome.worlds,
            faults: outcome.coverage.faults(),
            answers: outcome.calls,
            seen,
            enough: 0,
            missing: outcome.coverage.missing().iter().map(|item| words(&format!("{item:?}"))).collect(),
            failures: failures.collect(),
        }
    }

    /// The row of days in which nothing goes wrong.
    #[must_use]
    pub fn of_calm(outcome: &ClusterOutcome) -> Self {
        let again = "prove --only calm --first".to_owned();
        let failures = outcome.failed.iter().map(|(seed, violation)| Failure {
            what: format!("seed {seed}: {violation}"),
            again: format!("{again} {seed} --worlds 1"),
        });
        let failures = failures.collect();
        Self { missing: Vec::new(), failures, ..Self::of_worlds("calm", "", outcome) }
    }

    /// The row of disks that were damaged.
    #[must_use]
    pub fn of_damage(outcome: &DamageOutcome) -> Self {
        let done = outcome.flips + outcome.cuts + outcome.sectors + outcome.erasures + outcome.crashes;
        let seen = [
            ("lives gone through", outcome.seeds),
            ("flips", outcome.flips),
            ("cuts", outcome.cuts),
            ("sector operations", outcome.sectors),
            ("files that end in zeros", outcome.erasures),
            ("operations before a loss of power", outcome.crash_points),
            ("disks that it left", outcome.crashes),
            ("harmless", outcome.harmless),
            ("refused by name", outcome.refused),
            ("cut off behind the last mark", outcome.excluded),
            ("bytes of that", outcome.excluded_bytes),
            ("last frames erased", outcome.erased),
            ("snapshots passed over", outcome.passed_over),
        ];
        let failures = outcome.violations.iter().map(|(seed, violation)| Failure {
            what: format!("seed {seed}: {violation}"),
            again: format!("prove --only damage --seed {seed}"),
        });
        Self {
            name: "damage".to_owned(),
            tried: done,
            faults: done,
            answers: outcome.events,
            seen: seen.into_iter().map(|(what, count)| (what.to_owned(), count)).collect(),
            failures: failures.collect(),
            ..Self::default()
        }
    }

    /// The row of a campaign against the real binary.
    #[must_use]
    pub fn of_real(tried: &Tried, binary: &std::path::Path, seed: u64) -> Self {
        let failures = tried.violations.iter().map(|(round, violation)| Failure {
            what: format!("round {round}: {violation}"),
            again: format!(
                "prove --binary {} --only {} --seed {seed} --rounds {round}",
                binary.display(),
                tried.name
            ),
        });
        Self {
            name: tried.name.to_owned(),
            tried: tried.rounds,
            faults: tried.faults,
            answers: tried.acknowledged,
            seen: tried.seen.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
            enough: tried.enough,
            missing: tried.missing.iter().map(|what| (*what).to_owned()).collect(),
            failures: failures.collect(),
        }
    }

    /// Whether nothing is broken, and everything was seen that had to be.
    #[must_use]
    pub fn is_good(&self, length: Length) -> bool {
        let long_enough = length == Length::Short || !self.is_too_short();
        self.failures.is_empty() && self.missing.is_empty() && long_enough
    }

    /// Whether it ended, by itself, before it could have seen everything.
    fn is_too_short(&self) -> bool {
        self.tried < self.enough && self.failures.is_empty()
    }
}

/// `TornTailCut` as people say it.
fn words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// The whole table, and below it what failed and how to see it again.
#[must_use]
pub fn table(rows: &[Row], length: Length) -> String {
    let mut text = String::new();
    let mut line = |cells: [&str; 5], seen: &str| {
        let [name, tried, faults, answers, broken] = cells;
        let row = format!("{name:<10} {tried:>9} {faults:>9} {answers:>11} {broken:>10}  {seen}");
        text.push_str(row.trim_end());
        text.push('\n');
    };
    line(["what", "tried", "faults", "answers", "violations"], "seen");
    for row in rows {
        let numbers = [row.tried, row.faults, row.answers, row.failures.len() as u64].map(thousands);
        let seen = wrapped(&row.seen);
        let first = seen.first().map_or("", String::as_str);
        line([&row.name, &numbers[0], &numbers[1], &numbers[2], &numbers[3]], first);
        for more in seen.iter().skip(1) {
            line([""; 5], more);
        }
    }
    let sum = |number: fn(&Row) -> u64| thousands(rows.iter().map(number).sum());
    let broken = sum(|row| row.failures.len() as u64);
    line(["all", "", &sum(|row| row.faults), &sum(|row| row.answers), &broken], "");
    for row in rows {
        for failure in &row.failures {
            let Failure { what, again } = failure;
            write!(text, "\nFAILED {}: {what}\n       again with: {again}\n", row.name)
                .expect("a string takes everything");
        }
        if row.is_too_short() {
            let word = match length {
                Length::Enough => "FAILED",
                Length::Short => "WARNING",
            };
            let Row { name, tried, enough, .. } = row;
            writeln!(
                text,
                "\n{word}: TOO SHORT for {name}: {tried} rounds, and it sees everything in {enough}"
            )
            .expect("a string takes everything");
        }
        if !row.missing.is_empty() {
            writeln!(text, "\nNEVER SEEN in {}: {}", row.name, row.missing.join(", "))
                .expect("a string takes everything");
        }
    }
    text
}

/// What was seen, in lines that fit the column.
fn wrapped(seen: &[(String, u64)]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (what, count) in seen {
        let item = format!("{} {what}", thousands(*count));
        match lines.last_mut() {
            Some(line) if line.len() + item.len() + 2 <= SEEN_WIDTH => {
                line.push_str(", ");
                line.push_str(&item);
            }
            _ => lines.push(item),
        }
    }
    lines
}

/// 1234567 as 1,234,567.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_and_how_to_repeat_a_failure() {
        let failure = Failure { what: "round 3: lost".to_owned(), again: "prove --only kills".to_owned() };
        let good = Row {
            name: "worlds".to_owned(),
            tried: 12_345,
            faults: 7,
            answers: 1_000,
            seen: vec![("kills".to_owned(), 5), ("x".repeat(SEEN_WIDTH), 1)],
            ..Row::default()
        };
        let bad = Row { name: "kills".to_owned(), tried: 3, failures: vec![failure], ..Row::default() };
        assert!(good.is_good(Length::Enough) && !bad.is_good(Length::Short));
        let text = table(&[good, bad], Length::Enough);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "what           tried    faults     answers violations  seen");
        assert_eq!(lines[1], "worlds        12,345         7       1,000          0  5 kills");
        assert!(lines[2].ends_with(&"x".repeat(SEEN_WIDTH)), "{text}");
        assert_eq!(lines[3], "kills              3         0           0          1");
        assert_eq!(lines[4], "all                          7       1,000          1");
        assert!(
            text.ends_with("FAILED kills: round 3: lost\n       again with: prove --only kills\n"),
            "{text}"
        );
    }

    #[test]
    fn missing_coverage_is_named() {
        let row = Row { name: "full".to_owned(), missing: vec!["full disks".to_owned()], ..Row::default() };
        assert!(!row.is_good(Length::Short));
        assert!(table(&[row], Length::Short).ends_with("NEVER SEEN in full: full disks\n"));
        assert_eq!(words("TornTailCut"), "torn tail cut");
    }

    #[test]
    fn too_few_rounds_fail_only_a_long_run() {
        let rows = [Row { name: "full".to_owned(), tried: 1, enough: 3, ..Row::default() }];
        let told = "TOO SHORT for full: 1 rounds, and it sees everything in 3\n";
        let (short, long) = (Length::of(Duration::from_secs(149)), Length::of(Duration::from_secs(150)));
        assert!(rows[0].is_good(short) && !rows[0].is_good(long));
        assert!(table(&rows, short).ends_with(&format!("WARNING: {told}")));
        assert!(table(&rows, long).ends_with(&format!("FAILED: {told}")));
    }
}
