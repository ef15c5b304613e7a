//! Records of the journal and chunks of a snapshot.

use orchestrix_core::{FORMAT, Records, SnapshotLoader, TaskCommand, encode_record};

use crate::source::Source;

/// What is read is written as the same event, and that is read as the same again.
pub(super) fn events(input: &[u8]) {
    let mut written = Vec::new();
    let mut read = Vec::new();
    for record in Records::new(input) {
        let Ok((at, event)) = record else { break };
        encode_record(FORMAT, at, &event, &mut written);
        read.push((at, event));
    }
    let again: Vec<_> =
        Records::new(&written).map(|record| record.expect("what we write can be read")).collect();
    // Compared as text, in which a number that is none equals itself.
    assert_eq!(format!("{read:?}"), format!("{again:?}"), "an event is read as it was written");
    let mut twice = Vec::new();
    again.iter().for_each(|(at, event)| encode_record(FORMAT, *at, event, &mut twice));
    assert_eq!(written, twice);
}

/// Chunks of lengths that the input says. A state that is loaded can be captured and loaded again, and used.
pub(super) fn snapshot(input: &[u8]) {
    let mut source = Source::new(input);
    let mut loader = SnapshotLoader::new();
    while !source.is_empty() {
        let length = usize::try_from(source.number::<2>()).unwrap_or(0);
        if loader.load(source.take(length)).is_err() {
            return;
        }
    }
    let Ok(mut state) = loader.finish() else { return };
    let fingerprint = state.fingerprint();
    let mut loader = SnapshotLoader::new();
    loader.load(&state.begin_capture()).expect("a header that was captured can be loaded");
    loop {
        let mut chunk = Vec::new();
        let more = state.step_capture(3, 500, &mut chunk);
        loader.load(&chunk).expect("tasks that were captured can be loaded");
        if !more {
            break;
        }
    }
    let mut again = loader.finish().expect("a header was loaded");
    assert_eq!(again.fingerprint(), fingerprint, "a state is loaded as it was captured");
    use_it(&mut again);
}

/// Lets time end everything that it can.
fn use_it(state: &mut orchestrix_core::State) {
    use orchestrix_core::{Command, Decision, Refusal, Timestamp};
    let now = Timestamp(state.at().0.max(1 << 60));
    for _ in 0..64 {
        state.advance(now, |_| {});
        let Some(task) = state.next_end(now) else { break };
        match state.decide(&Command::Task(TaskCommand::Expire { task }), now) {
            Ok(Decision::Event(event)) => drop(state.apply(now, event)),
            Ok(Decision::Already(_) | Decision::Nothing) => panic!("an end that is due is decided"),
            Err(refusal) => assert_ne!(refusal, Refusal::Internal),
        }
    }
}
