//! Every decoder of Orchestrix, with arbitrary bytes.
//!
//! [`TARGETS`] is the one table. Its rows are used three ways: the tests replay the committed corpus and mutations
//! of it, the program `fuzz` lets libFuzzer search with coverage as its guide, and `scripts/fuzz` runs that for
//! all of them.
//!
//! **Invariant:** a target panics if and only if something is wrong: it took what it must refuse, changed what it
//! must keep, or used more memory than its input is worth. The same bytes do the same, every time.

mod edit;
pub mod mutate;
mod seal;
mod source;
mod targets;

use std::alloc::System;

use cap::Cap;

pub use targets::TARGETS;

/// Bytes that all inputs together may hold at one time: what runs away ends here and not in swap.
const HEAP_BYTES_MAX: usize = 2 << 30;
/// Bytes that any input may ask for in all, however short it is: folders, buffers, a node.
const FREE_BYTES: usize = 1 << 20;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, HEAP_BYTES_MAX);

/// One decoder, and what must hold for it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// What is read, and what is checked.
    pub about: &'static str,
    /// Bytes that one byte of input may cost, in all allocations together.
    pub bytes_per_byte: usize,
    /// Bytes that every input costs, before `FREE_BYTES` count: what the target itself builds.
    pub bytes_at_once: usize,
    run: fn(&[u8]),
}

impl Target {
    /// Finds a target by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Feeds it.
    ///
    /// # Panics
    /// When something is wrong.
    pub fn run(&self, input: &[u8]) {
        let before = HEAP.total_allocated();
        (self.run)(input);
        let asked = HEAP.total_allocated() - before;
        let worth = FREE_BYTES + self.bytes_at_once + self.bytes_per_byte * input.len();
        assert!(asked <= worth, "{} bytes of input asked for {asked} bytes, {worth} are enough", input.len());
    }
}
