//! Lines that were sent, but not taken in time: the log says in their place how many never arrived.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const LEASE: LeaseId = LeaseId(2);

fn after_gap(skipped: u64, offset: u64, texts: &[&str]) -> LogAppend {
    LogAppend { skipped, ..lines(offset, texts) }
}

fn missing(lines: u64) -> String {
    match lines {
        1 => "1 line is missing here: the coordinator did not take it in time".to_owned(),
        _ => format!("{lines} lines are missing here: the coordinator did not take them in time"),
    }
}

#[tokio::test]
async fn the_log_marks_lines_that_were_not_accepted() {
    let engine = MemoryLogs::default();
    let shared = logs(engine.clone());
    let (three, one) = (missing(3), missing(1));
    for _ in 0..2 {
        assert_eq!(shared.append(TASK, 1, after_gap(3, 3, &["b1", "b2"])).await.unwrap().next, 5);
        assert_eq!(texts(&shared).await, [&three, "b1", "b2"]);
    }
    let late = shared.append(TASK, 1, lines(0, &["a1", "a2", "a3"])).await.unwrap();
    assert_eq!((late.next, late.dropped), (5, 0), "they were given up");
    shared.append(TASK, 1, lines(5, &["c"])).await.unwrap();
    shared.append(TASK, 1, after_gap(1, 7, &["e"])).await.unwrap();
    assert_eq!(shared.stats.log_lines.get(), 4, "what says that lines are missing is not a line of the task");
    let expected = [&three, "b1", "b2", "c", &one, "e"];
    assert_eq!(texts(&shared).await, expected);
    let page = shared.read(TASK, 4, 1, None).await.unwrap();
    assert_eq!((page.lines[0].stream, page.dropped), (LogStream::System, 0));
    assert_eq!(texts(&logs(engine)).await, expected, "and so says the next leader");
}

#[tokio::test]
async fn lines_that_arrive_late_are_there_and_not_missing() {
    let logs = logs(MemoryLogs::default());
    // Who sent them asks how far they got, and hears that nothing is there yet.
    assert_eq!(logs.append(TASK, 1, lines(0, &[])).await.unwrap().next, 0);
    logs.append(TASK, 1, lines(0, &["a1", "a2", "a3"])).await.unwrap();
    assert_eq!(logs.append(TASK, 1, after_gap(3, 3, &["b1", "b2"])).await.unwrap().next, 5);
    assert_eq!(texts(&logs).await, ["a1", "a2", "a3", "b1", "b2"]);
    logs.append(TASK, 1, lines(5, &["c"])).await.unwrap();
    logs.append(TASK, 1, after_gap(3, 8, &["f"])).await.unwrap();
    assert_eq!(texts(&logs).await, ["a1", "a2", "a3", "b1", "b2", "c", &missing(2), "f"]);
}

#[tokio::test]
async fn a_gap_at_the_end_needs_no_line_after_it() {
    let engine = MemoryLogs::default();
    let shared = logs(engine.clone());
    shared.append(TASK, 1, lines(0, &["one"])).await.unwrap();
    for _ in 0..2 {
        assert_eq!(shared.append(TASK, 1, after_gap(2, 3, &[])).await.unwrap().next, 3);
    }
    assert_eq!(texts(&shared).await, ["one", &missing(2)]);
    for logs in [shared, logs(engine)] {
        assert_eq!(logs.append(TASK, 1, lines(3, &["four"])).await.unwrap().next, 4);
        assert_eq!(texts(&logs).await, ["one", &missing(2), "four"]);
    }
}

#[tokio::test]
async fn a_gap_wider_than_what_was_skipped_is_refused() {
    let logs = logs(MemoryLogs::default());
    let refused = async |append| {
        let error = logs.append(TASK, 1, append).await.unwrap_err();
        let Error::Refused(Refusal::Invalid { field, .. }) = error else { panic!("{error}") };
        field
    };
    assert_eq!(refused(after_gap(2, 3, &["x"])).await, "offset");
    assert_eq!(refused(after_gap(2, 3, &[])).await, "offset");
    assert_eq!(refused(LogAppend { offset: None, ..after_gap(2, 0, &["x"]) }).await, "skipped");
    assert!(texts(&logs).await.is_empty());
}

#[tokio::test]
async fn a_late_append_of_another_leader_fills_a_gap_or_is_left_out() {
    for late_first in [true, false] {
        let engine = MemoryLogs::default();
        let (leader, deposed) = (logs(engine.clone()), logs(engine.clone()));
        for logs in [&deposed, &leader] {
            assert!(texts(logs).await.is_empty());
        }
        let late = async || deposed.append(TASK, 1, lines(0, &["a1", "a2"])).await.unwrap();
        if late_first {
            late().await;
        }
        assert_eq!(leader.append(TASK, 1, after_gap(2, 2, &["b"])).await.unwrap().next, 3);
        if !late_first {
            assert_eq!(late().await.next, 3);
        }
        let two = missing(2);
        let expected = if late_first { vec!["a1", "a2", "b"] } else { vec![two.as_str(), "b"] };
        assert_eq!(texts(&leader).await, expected);
        assert_eq!(texts(&logs(engine)).await, expected);
    }
}

#[tokio::test]
async fn a_part_that_cannot_be_read_keeps_out_no_lines_after_a_gap() {
    let engine = MemoryLogs::default();
    engine.append(LogPlace::first(TASK, LEASE), b"?").unwrap();
    let shared = logs(engine.clone());
    shared.append(TASK, 1, after_gap(3, 3, &[])).await.unwrap();
    assert_eq!(shared.append(TASK, 1, after_gap(3, 3, &["b"])).await.unwrap().next, 4);
    for logs in [shared, logs(engine)] {
        assert_eq!(texts(&logs).await, [MISSING, "b"]);
    }
}

#[tokio::test]
async fn past_the_cap_what_never_arrived_counts_as_dropped() {
    let engine = MemoryLogs::default();
    let shared = capped(engine.clone(), 4);
    shared.append(TASK, 1, lines(0, &["1234", "5"])).await.unwrap();
    let appended = shared.append(TASK, 1, after_gap(7, 9, &["x"])).await.unwrap();
    assert_eq!((appended.next, appended.dropped), (10, 1));
    let full = |lines| format!("{lines} lines were dropped: the output of this task has reached 4 bytes");
    assert_eq!(texts(&shared).await, ["1234", &full(1), &full(9)]);
    let most = after_gap(u64::MAX, u64::MAX, &["far", "away"]);
    for logs in [shared, capped(engine, 4)] {
        for _ in 0..3 {
            assert_eq!(logs.append(TASK, 1, most.clone()).await.unwrap().next, u64::MAX);
        }
        assert_eq!(logs.read(TASK, 0, 10, None).await.unwrap().dropped, u64::MAX);
        assert_eq!(texts(&logs).await, ["1234", &full(1), &full(9), &full(u64::MAX)]);
    }
}

fn capped(engine: MemoryLogs, task_bytes: u64) -> TaskLogs {
    TaskLogs { task_bytes, ..logs(engine) }
}

/// What becomes of a batch that a worker sends.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// It is stored, but the answer does not come in time.
    Unheard,
    Lost,
    /// It arrives after so many others.
    Late(usize),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Answered),
        1 => Just(Fate::Unheard),
        1 => Just(Fate::Lost),
        1 => (0_usize..3).prop_map(Fate::Late),
    ]
}

/// Who sends lines, and never puts others in the place of those that were not answered.
#[derive(Default)]
struct Sender {
    place: u64,
    skipped: u64,
    answered: BTreeSet<u64>,
    late: Vec<(usize, LogAppend)>,
}

impl Sender {
    async fn send(&mut self, logs: &TaskLogs, count: u64, fate: Fate, damaged: bool) {
        let texts: Vec<String> = (self.place..self.place + count).map(|n| n.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let append = after_gap(self.skipped, self.place, &texts);
        let begin = self.place;
        self.place += count;
        match fate {
            Fate::Answered => {
                let asks_only = count + self.skipped == 0;
                let next = logs.append(TASK, 1, append).await.unwrap().next;
                assert!(asks_only || damaged || next == self.place, "{next} instead of {}", self.place);
                self.answered.extend(begin..self.place);
                self.skipped = 0;
                return;
            }
            Fate::Unheard => drop(logs.append(TASK, 1, append).await.unwrap()),
            Fate::Lost => {}
            Fate::Late(after) => self.late.push((after, append)),
        }
        self.skipped += count;
    }

    async fn bring_late(&mut self, logs: &TaskLogs) {
        self.late.iter_mut().for_each(|(after, _)| *after = after.saturating_sub(1));
        for (_, append) in self.late.extract_if(.., |(after, _)| *after == 0).collect::<Vec<_>>() {
            logs.append(TASK, 1, append).await.unwrap();
        }
    }
}

/// Each line, or how many are missing.
fn covered(page: &LogPage) -> Vec<Result<u64, u64>> {
    let told = |line: &LogLine| line.text.split(' ').next().unwrap().parse().unwrap();
    let of_cap = |line: &&LogLine| !line.text.contains("dropped");
    let line =
        |line: &LogLine| if line.stream == LogStream::System { Err(told(line)) } else { Ok(told(line)) };
    page.lines.iter().filter(of_cap).map(line).collect()
}

/// The time of a part that cannot be read is when it was counted.
fn numbered(page: &LogPage) -> Vec<(u64, LogStream, &str)> {
    page.lines.iter().map(|line| (line.n, line.stream, line.text.as_str())).collect()
}

proptest! {
    #[test]
    fn no_line_goes_without_a_word_and_counts_stay_the_same(
        sends in prop::collection::vec((0_u64..4, fate(), any::<bool>()), 1..20),
        cap in prop_oneof![Just(u64::MAX), 1_u64..400],
        restarts: bool,
        damage in prop::option::of(0_usize..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let engine = MemoryLogs::default();
            let (mut logs, mut sender) = (capped(engine.clone(), cap), Sender::default());
            let mut damaged = false;
            for (n, (count, fate, restart)) in sends.into_iter().enumerate() {
                if damage == Some(n) {
                    let number = engine.read(TASK, 0, usize::MAX).unwrap().len();
                    engine.append(LogPlace::nth(TASK, LeaseId(9), number), b"?").unwrap();
                    (logs, damaged) = (capped(engine.clone(), cap), true);
                }
                sender.send(&logs, count, fate, damaged).await;
                sender.bring_late(&logs).await;
                let anew = capped(engine.clone(), cap);
                let (page, again) =
                    (logs.read(TASK, 0, 1_000, None).await.unwrap(), anew.read(TASK, 0, 1_000, None).await.unwrap());
                assert_eq!(numbered(&page), numbered(&again));
                if page.dropped == 0 {
                    let asked = async |logs: &TaskLogs| logs.append(TASK, 1, lines(0, &[])).await.unwrap().next;
                    assert_eq!(asked(&logs).await, asked(&anew).await);
                }
                if restart && restarts {
                    logs = anew;
                }
            }
            sender.send(&logs, 0, Fate::Answered, damaged).await;
            if damaged {
                return;
            }
            let page = logs.read(TASK, 0, 1_000, None).await.unwrap();
            let mut next = 0;
            let mut answered = sender.answered;
            for line in covered(&page) {
                match line {
                    Ok(n) => {
                        assert_eq!(n, next, "{page:?}");
                        answered.remove(&n);
                        next += 1;
                    }
                    Err(missing) => next += missing,
                }
            }
            if page.dropped == 0 {
                assert_eq!(next, sender.place, "{page:?}");
                assert!(answered.is_empty(), "{answered:?} of {page:?}");
            } else if !restarts {
                assert_eq!(next + page.dropped, sender.place, "{page:?}");
            }
        });
    }
}
