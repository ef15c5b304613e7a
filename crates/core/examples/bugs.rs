//! Prints the bugs that can be planted and that a test finds, one per line: its name, crate, target and name of the
//! test, and what the bug does, with tabs between. For `scripts/bugs`.

#![expect(clippy::print_stdout, reason = "it prints a list")]

use orchestrix_core::{BUGS, FoundBy};

fn main() {
    for bug in BUGS {
        match bug.found_by {
            FoundBy::Worlds(_) | FoundBy::Cluster(_) | FoundBy::Shards(_) => {}
            FoundBy::Test(of, target, test) => {
                println!("{}\t{of}\t{target}\t{test}\t{}", bug.name, bug.what);
            }
        }
    }
}
