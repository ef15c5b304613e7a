//! The corpus of every target, and mutations of it. What fails here names the target, the file and the seed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use orchestrix_fuzz::mutate::{Rng, mutate};
use orchestrix_fuzz::{TARGETS, Target};

/// Mutations of each target; the whole takes some seconds.
const MUTATIONS: u64 = 2_000;

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(&path).expect("an input can be read")))
        .collect()
}

/// Feeds a target; a panic is told with what it was fed.
fn feed(target: &Target, what: &str, input: &[u8]) {
    let fed = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    assert!(fed.is_ok(), "{} fails with {what}: {}", target.name, input.escape_ascii());
}

#[test]
fn every_target_holds_for_its_corpus_and_for_mutations_of_it() {
    for target in TARGETS {
        let corpus = corpus(target);
        assert!(!corpus.is_empty(), "{} has a corpus", target.name);
        for (path, input) in &corpus {
            feed(target, &path.display().to_string(), input);
        }
        for seed in 0..MUTATIONS {
            let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (_, input) = &corpus[rng.below(corpus.len())];
            let (_, other) = &corpus[rng.below(corpus.len())];
            let mut input = input.clone();
            mutate(&mut rng, &mut input, other);
            feed(target, &format!("mutation {seed}"), &input);
        }
    }
}
