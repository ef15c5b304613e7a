//! The tables of `docs/seeds.md` name files, items and tests of the sources. Each of them must exist.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{root, rust_files};

/// Words that stand before the name of an item where it is defined.
const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "type", "mod", "static"];

#[test]
fn every_name_in_the_seeds_page_is_in_the_sources() {
    let sources = Sources::read();
    let page = fs::read_to_string(root().join("docs/seeds.md")).unwrap();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (number, line) in (1..).zip(page.lines()).filter(|(_, line)| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (code, tests) = match cells[..] {
            [_, code, tests, _] => (code, tests),
            [_, _, code] => (code, ""),
            _ => panic!("line {number} has {} cells", cells.len()),
        };
        let missing = sources.missing_code(code).into_iter().chain(sources.missing_tests(tests));
        wrong.extend(missing.map(|name| format!("line {number}: {name}")));
        seen += quoted(code).count() + quoted(tests).count();
    }
    assert!(seen > 700, "only {seen} names were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All Rust files of the workspace.
struct Sources(HashMap<PathBuf, String>);

impl Sources {
    fn read() -> Self {
        let files = rust_files().into_iter();
        Self(files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect())
    }

    /// A path must exist. A name after a path must be defined in that file, or in a file of that folder.
    fn missing_code(&self, cell: &str) -> Vec<String> {
        let mut missing = Vec::new();
        let mut place = root().join("crates");
        for text in quoted(cell) {
            if let Some(path) = path_of(text) {
                if !path.exists() {
                    missing.push(text.to_owned());
                }
                place = path;
            } else if is_name(text) {
                let name = text.rsplit("::").next().unwrap();
                if !self.within(&place).any(|source| defines(source, name)) {
                    missing.push(format!("{text} in {}", place.display()));
                }
            }
        }
        missing
    }

    fn missing_tests(&self, cell: &str) -> Vec<String> {
        let exists = |text: &str| match path_of(text) {
            Some(path) => path.exists(),
            None => self.0.values().any(|source| source.contains(&format!("fn {text}("))),
        };
        quoted(cell).filter(|text| !exists(text)).map(|text| format!("test {text}")).collect()
    }

    fn within<'a>(&'a self, place: &'a Path) -> impl Iterator<Item = &'a String> {
        self.0.iter().filter(move |(path, _)| path.starts_with(place)).map(|(_, source)| source)
    }
}

/// Texts between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The place of `core/record.rs`, `crates/zmtp`, `docs/link.md` or `scenarios/order.txt`.
fn path_of(text: &str) -> Option<PathBuf> {
    let (first, rest) = text.split_once('/')?;
    let krate = root().join("crates").join(first);
    match first {
        "" => None,
        "crates" | "docs" | "examples" => Some(root().join(text)),
        "scenarios" => Some(root().join("crates/core/tests").join(text)),
        _ if krate.is_dir() => Some(krate.join("src").join(rest)),
        _ => None,
    }
}

/// Whether a text is a name of Rust, as in `Tasks::submit`.
fn is_name(text: &str) -> bool {
    text.split("::").all(|part| {
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    })
}

/// Whether a source has an item, a field, a variant or an event of this name.
fn defines(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let words: Vec<&str> = line
            .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
            .filter(|word| !word.is_empty())
            .collect();
        let Some(at) = words.iter().position(|word| *word == name) else { return false };
        let before = &words[..at];
        before.last().is_some_and(|word| KEYWORDS.contains(word))
            || before.iter().all(|word| {
                matches!(*word, "pub" | "crate" | "super" | "n")
                    || word.bytes().all(|byte| byte.is_ascii_digit())
            })
    })
}
