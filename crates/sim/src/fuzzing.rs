//! The row of the fuzzer: another program searches for inputs that decoders cannot bear; this reads its table.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::report::{Failure, Row};

/// Runs the script for so long, after its build. Counts targets in `done` while they end.
#[must_use]
pub fn fuzz(script: &Path, time: Duration, done: &AtomicU64) -> Row {
    let mut row = Row { name: "fuzz".to_owned(), ..Row::default() };
    if let Err(why) = run(script, time, done, &mut row) {
        row.failures.push(Failure { what: why, again: script.display().to_string() });
    }
    if row.failures.is_empty() && row.tried == 0 {
        row.missing.push("an execution".to_owned());
    }
    row
}

fn run(script: &Path, time: Duration, done: &AtomicU64, row: &mut Row) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot run {}: {error}", script.display());
    let mut child = Command::new(script)
        .env("SECONDS_IN_ALL", time.as_secs().max(1).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let output = child.stdout.take().ok_or("the fuzzer has no output")?;
    for line in BufReader::new(output).lines() {
        take(&line.map_err(cannot)?, row);
        done.store(row.seen.len() as u64, Relaxed);
    }
    let ended = child.wait().map_err(cannot)?;
    if ended.success() || !row.failures.is_empty() {
        Ok(())
    } else {
        Err(format!("the fuzzer ended with {ended}"))
    }
}

/// A line of the table: target, executions, per second, new, coverage, crashes. Below one that crashed stands how to
/// see it again.
fn take(line: &str, row: &mut Row) {
    if let Some(again) = line.trim().strip_prefix("again with: ") {
        let target = row.seen.last().map_or("", |(target, _)| target).to_owned();
        row.failures.push(Failure { what: format!("{target} crashes"), again: again.to_owned() });
        return;
    }
    let columns: Vec<&str> = line.split_whitespace().collect();
    if let [target, executions, _, _, _, _] = columns.as_slice()
        && let Ok(executions) = executions.parse::<u64>()
    {
        row.tried += executions;
        row.seen.push(((*target).to_owned(), executions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_fuzzer_becomes_a_row() {
        let mut row = Row::default();
        for line in [
            "target       executions     per-s     new  coverage  crashes",
            "json             120000     60000      12       345        0",
            "commands            500       250       1        99        1",
            "    again with: ORCHESTRIX_FUZZ=commands fuzz input",
        ] {
            take(line, &mut row);
        }
        assert_eq!((row.tried, row.seen.len()), (120_500, 2));
        assert_eq!(row.failures[0].what, "commands crashes");
        assert_eq!(row.failures[0].again, "ORCHESTRIX_FUZZ=commands fuzz input");
    }
}
