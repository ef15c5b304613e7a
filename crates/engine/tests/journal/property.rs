//! Any order of appends, rests, snapshots, truncations, restarts and crashes gives the same as a plain list.

use std::sync::Arc;

use proptest::prelude::*;

use crate::common::{History, Node, SMALL, State};
use orchestrix_engine::disk::sim::SimDisk;
use orchestrix_engine::file::Options;
use orchestrix_engine::{Journal, suite};

#[derive(Clone, Debug)]
enum Act {
    Append { count: u32, bytes: usize },
    Rest,
    Snapshot,
    Truncate,
    Restart,
    Crash,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => (1..5_u32, 0..900_usize).prop_map(|(count, bytes)| Act::Append { count, bytes }),
        2 => Just(Act::Rest),
        2 => Just(Act::Snapshot),
        1 => Just(Act::Truncate),
        1 => Just(Act::Restart),
        1 => Just(Act::Crash),
    ];
    prop::collection::vec(act, 1..80)
}

fn restarted(disk: &SimDisk, options: Options, expected: State) -> Node {
    let node = Node::start(Arc::new(disk.clone()), options).unwrap();
    assert_eq!(node.state, expected);
    node
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_is_the_list_of_its_batches(acts in acts(), large in any::<bool>()) {
        let options = Options { segment_bytes: Some(if large { 8192 } else { 1024 }), ..SMALL };
        let mut disk = SimDisk::new(3);
        let mut history = History::new();
        let mut node = restarted(&disk, options, State::default());
        for act in acts {
            let state = node.state;
            match act {
                Act::Append { count, bytes } => {
                    let batch = history.next(&node.journal, count, bytes);
                    node.append(&batch).unwrap();
                }
                Act::Rest => node.journal.rest().unwrap(),
                Act::Snapshot => node.snapshot().unwrap(),
                Act::Truncate => {
                    node.journal.truncate().unwrap();
                    node.journal.snapshots().prune().unwrap();
                }
                Act::Restart => {
                    drop(node);
                    node = restarted(&disk, options, state);
                }
                Act::Crash => {
                    drop(node);
                    disk = disk.crash(&mut || false);
                    node = restarted(&disk, options, state);
                }
            }
            prop_assert_eq!(Some(&node.state), history.states.last());
        }
        let floor = node.journal.truncate().unwrap();
        let read = suite::read_all(&node.journal, floor, 2000);
        prop_assert_eq!(&read[..], &history.batches[history.batches.len() - read.len()..]);
    }
}
