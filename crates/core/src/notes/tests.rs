//! An entity that follows the recipe has all functions of an entity.

use std::path::{Path, PathBuf};

use super::*;
use crate::snapshot::WITH_TAGS;
use crate::wire::Submit;
use crate::{Command, Json, Name, Records, SnapshotLoader, Timestamp, encode_record};

/// Decides, writes and applies.
fn does(state: &mut State, command: &Command, journal: &mut Vec<u8>) {
    command.validate().unwrap();
    let Decision::Event(event) = state.decide(command, Timestamp(1)).unwrap() else { panic!("no event") };
    encode_record(crate::FORMAT, Timestamp(1), &event, journal);
    state.apply(Timestamp(1), event);
}

fn write(text: &str) -> Command {
    NoteCommand::Write(text.to_owned()).into()
}

fn submit() -> Command {
    Command::submit(Submit::new(Name::new("mail").unwrap(), Json::null()))
}

fn chunks(state: &mut State) -> Vec<Vec<u8>> {
    let mut chunks = vec![state.begin_capture()];
    loop {
        let mut chunk = Vec::new();
        let more = state.step_capture(1, 1, &mut chunk);
        chunks.push(chunk);
        if !more {
            return chunks;
        }
    }
}

fn loaded(chunks: &[Vec<u8>]) -> Result<State, SnapshotError> {
    let mut loader = SnapshotLoader::new();
    chunks.iter().try_for_each(|chunk| loader.load(chunk))?;
    loader.finish()
}

#[test]
fn an_added_entity_is_decided_written_and_replayed() {
    let (mut state, mut journal) = (State::new(), Vec::new());
    does(&mut state, &write("one"), &mut journal);
    does(&mut state, &submit(), &mut journal);
    assert!(write("ten letters").validate().is_err());
    let mut replayed = State::new();
    for record in Records::new(&journal) {
        let (at, event) = record.unwrap();
        replayed.apply(at, event);
    }
    assert_eq!(replayed.notes.written[0].text, "one");
    assert_eq!(replayed.fingerprint(), state.fingerprint());
}

#[test]
fn a_tagged_section_is_loaded_as_it_was_when_captured() {
    let (mut state, mut journal) = (State::new(), Vec::new());
    [write("one"), submit(), write("two")].iter().for_each(|one| does(&mut state, one, &mut journal));
    let fingerprint = state.fingerprint();
    let header = state.begin_capture();
    does(&mut state, &write("late"), &mut journal);
    let mut chunks = vec![header];
    loop {
        let mut chunk = Vec::new();
        let more = state.step_capture(1, 1, &mut chunk);
        chunks.push(chunk);
        if !more {
            break;
        }
    }
    assert_eq!(loaded(&chunks).unwrap().fingerprint(), fingerprint);
    assert!(loaded(&chunks[..2]).is_err(), "one note is missing");
}

#[test]
fn an_empty_entity_leaves_no_trace_in_a_snapshot() {
    let (mut state, mut journal) = (State::new(), Vec::new());
    does(&mut state, &submit(), &mut journal);
    let before = Header::of(&state);
    assert_eq!(before.snapshot, crate::FIRST_FORMAT);
    let empty = chunks(&mut state)[0].clone();
    assert_eq!(minicbor::Decoder::new(&empty).array().unwrap(), Some(6), "as many fields as ever");
    does(&mut state, &write("one"), &mut journal);
    assert_eq!(Header::of(&state).snapshot, WITH_TAGS, "versions before refuse it");
}

#[test]
fn an_unknown_section_is_refused() {
    let mut header = Header::of(&State::new());
    header.announce(TAG + 1, 1);
    let refused = loaded(&[header.encode()]).unwrap_err();
    assert!(matches!(refused, SnapshotError::UnknownSection(tag) if tag == TAG + 1), "{refused:?}");
}

/// Where something is written in the sources of the workspace, outside of the folder of notes.
fn lines_with(words: &[&str], folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("core/src/notes") {
            lines_with(words, &path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("core/src/notes.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let has = |line: &&str| words.iter().any(|word| line.contains(word));
            found.extend(text.lines().filter(has).map(|line| format!("{}: {line}", path.display())));
        }
    }
}

#[test]
fn an_entity_is_a_folder_and_a_line_in_at_most_five_lists() {
    let crates = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    // The lists of this crate have the entity; those of the others have an arm for every entity.
    lines_with(&["mod notes;", "notes::Notes"], &crates.join("core"), &mut found);
    assert_eq!(found.len(), 2, "{found:#?}");
    let arms =
        ["Event::Shard(event) =>", "Event::Shard(_)", "Command::Shard(command) =>", "Command::Shard(_)"];
    lines_with(&arms, &crates, &mut found);
    assert!((3..=5).contains(&found.len()), "{found:#?}");
}
