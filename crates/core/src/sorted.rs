//! An ordered collection for millions of small things that mostly come and go in order.
//!
//! Items stand in leaves, leaves in branches, both of bounded size: finding, adding and taking an item are
//! O(log n). Items that arrive in order fill their leaves to the last place (a B-tree would leave them half
//! empty; in any other order they are left as full as there), and a walk in order can stop and go on anywhere.

use std::cell::Cell;
use std::collections::VecDeque;

/// Items of one leaf. Small enough that moving half a leaf costs less than a cache miss or two.
const LEAF_MAX: usize = 64;
/// Leaves of one branch.
const BRANCH_MAX: usize = 128;

/// Something with an order.
pub(crate) trait Keyed {
    type Key: Ord + Copy + std::fmt::Debug;
    fn key(&self) -> Self::Key;
}

/// The collection.
#[derive(Debug)]
pub(crate) struct Sorted<T: Keyed> {
    branches: VecDeque<Branch<T>>,
    len: usize,
    /// Where an item was last found, added or taken: one event looks for its task several times, and the next one for
    /// its neighbour. Only a hint: the user compares the key.
    found: Cell<Place>,
}

/// Branch, leaf, and place in the leaf.
type Place = (usize, usize, usize);

/// Some neighbouring leaves; there is at least one, and none is empty.
#[derive(Debug)]
struct Branch<T: Keyed> {
    /// The first of the bounds, here so that finding a branch does not leave the directory.
    first: T::Key,
    /// A lower bound of the keys of each leaf, above all keys of the leaf before it.
    bounds: Vec<T::Key>,
    /// Open at both ends: most things leave in the order in which they came.
    leaves: Vec<VecDeque<T>>,
}

impl<T: Keyed> Default for Sorted<T> {
    fn default() -> Self {
        Self { branches: VecDeque::new(), len: 0, found: Cell::new((0, 0, 0)) }
    }
}

impl<T: Keyed> Sorted<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: T::Key) -> Option<&T> {
        if let Some(item) = self.at(self.found.get()).filter(|item| item.key() == key) {
            return Some(item);
        }
        let (branch, leaf, at) = self.place(key)?;
        Some(&self.branches[branch].leaves[leaf][at])
    }

    pub(crate) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        let (branch, leaf, at) = self.place(key)?;
        Some(&mut self.branches[branch].leaves[leaf][at])
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.branches.front()?.leaves.first()?.front()
    }

    /// Adds an item whose key is not there yet.
    ///
    /// # Panics
    /// When the key is there: two things of one name would be a bug.
    pub(crate) fn insert(&mut self, item: T) {
        self.len += 1;
        let index = self.branch_of(item.key());
        let Some(branch) = self.branches.get_mut(index) else {
            self.branches.push_back(Branch::of(item));
            return;
        };
        let (leaf, at) = branch.insert(item);
        self.found.set((index, leaf, at));
        if branch.leaves.len() > BRANCH_MAX {
            let last = index + 1 == self.branches.len();
            let keep = if last { BRANCH_MAX } else { BRANCH_MAX / 2 };
            let upper = self.branches[index].split_off(keep);
            self.branches.insert(index + 1, upper);
        }
    }

    pub(crate) fn remove(&mut self, key: T::Key) -> Option<T> {
        // Its successor is mostly searched next.
        let (index, leaf, at) = self.place(key)?;
        let branch = &mut self.branches[index];
        let item = branch.remove(leaf, at);
        self.len -= 1;
        if branch.leaves.is_empty() {
            self.branches.remove(index);
        } else if branch.leaves.len() < BRANCH_MAX / 4 {
            self.merge(index);
        }
        Some(item)
    }

    /// All items in order, from the first whose key is greater than `after`.
    pub(crate) fn after(&self, after: Option<T::Key>) -> impl Iterator<Item = &T> {
        let (branch, leaf) = after.map_or((0, 0), |key| {
            let branch = self.branch_of(key);
            (branch, self.branches.get(branch).map_or(0, |branch| branch.leaf_of(key)))
        });
        let rest = self.branches.get(branch).map_or(&[][..], |branch| &branch.leaves[leaf..]);
        let others = self.branches.iter().skip(branch + 1).flat_map(|branch| &branch.leaves);
        rest.iter()
            .chain(others)
            .flatten()
            .skip_while(move |item| after.is_some_and(|after| item.key() <= after))
    }

    /// How many items stand before `key`.
    pub(crate) fn rank(&self, key: T::Key) -> usize {
        let index = self.branch_of(key);
        let Some(branch) = self.branches.get(index) else { return 0 };
        let leaf = branch.leaf_of(key);
        let branches = self.branches.iter().take(index).flat_map(|branch| &branch.leaves);
        let before: usize = branches.chain(&branch.leaves[..leaf]).map(VecDeque::len).sum();
        before + branch.leaves[leaf].partition_point(|item| item.key() < key)
    }

    fn place(&self, key: T::Key) -> Option<Place> {
        let (branch, leaf, at) = self.found.get();
        for near in [(branch, leaf, at), (branch, leaf, at + 1), (branch, leaf + 1, 0)] {
            if self.at(near).is_some_and(|item| item.key() == key) {
                self.found.set(near);
                return Some(near);
            }
        }
        let index = self.branch_of(key);
        let branch = self.branches.get(index)?;
        let leaf = branch.leaf_of(key);
        let at = branch.leaves[leaf].binary_search_by_key(&key, Keyed::key).ok()?;
        self.found.set((index, leaf, at));
        Some((index, leaf, at))
    }

    fn at(&self, (branch, leaf, at): Place) -> Option<&T> {
        self.branches.get(branch)?.leaves.get(leaf)?.get(at)
    }

    /// The branch where a key is, or would be.
    fn branch_of(&self, key: T::Key) -> usize {
        match self.branches.back() {
            // Most things are new, and new things are the last.
            Some(last) if last.first <= key => self.branches.len() - 1,
            Some(_) | None => self.branches.partition_point(|branch| branch.first <= key).saturating_sub(1),
        }
    }

    /// Joins a small branch with a neighbour, if the two fill one branch at most by half.
    fn merge(&mut self, index: usize) {
        for lower in [Some(index), index.checked_sub(1)].into_iter().flatten() {
            let Some(upper) = self.branches.get(lower + 1) else { continue };
            if self.branches[lower].leaves.len() + upper.leaves.len() <= BRANCH_MAX / 2 {
                let upper = self.branches.remove(lower + 1).expect("the neighbour that was just seen");
                let lower = &mut self.branches[lower];
                lower.bounds.extend(upper.bounds);
                lower.leaves.extend(upper.leaves);
                return;
            }
        }
    }
}

impl<T: Keyed> Branch<T> {
    fn of(item: T) -> Self {
        Self { first: item.key(), bounds: vec![item.key()], leaves: vec![leaf_with(item)] }
    }

    /// The leaf where a key is, or would be.
    fn leaf_of(&self, key: T::Key) -> usize {
        match self.bounds.last() {
            Some(last) if *last <= key => self.bounds.len() - 1,
            Some(_) | None => self.bounds.partition_point(|bound| *bound <= key).saturating_sub(1),
        }
    }

    /// Answers its leaf and its place there.
    fn insert(&mut self, item: T) -> (usize, usize) {
        let key = item.key();
        let index = self.leaf_of(key);
        let leaf = &mut self.leaves[index];
        self.bounds[index] = self.bounds[index].min(key);
        self.first = self.bounds[0];
        let in_order = leaf.back().is_none_or(|last| last.key() < key);
        if in_order && leaf.len() >= LEAF_MAX {
            match self.leaves.get_mut(index + 1) {
                Some(next) if next.len() < LEAF_MAX => {
                    next.push_front(item);
                    self.bounds[index + 1] = key;
                }
                Some(_) | None => self.add_leaf(index + 1, leaf_with(item)),
            }
            return (index + 1, 0);
        }
        if leaf.len() >= LEAF_MAX {
            let mut upper = VecDeque::with_capacity(LEAF_MAX);
            upper.extend(leaf.drain(LEAF_MAX / 2..));
            self.add_leaf(index + 1, upper);
            return self.insert(item);
        }
        let at = if in_order { leaf.len() } else { leaf.partition_point(|other| other.key() < key) };
        assert!(leaf.get(at).is_none_or(|other| other.key() != key), "{key:?} is there already");
        leaf.insert(at, item);
        (index, at)
    }

    fn add_leaf(&mut self, index: usize, leaf: VecDeque<T>) {
        self.bounds.insert(index, leaf.front().expect("a leaf is not empty").key());
        self.leaves.insert(index, leaf);
    }

    fn remove(&mut self, index: usize, at: usize) -> T {
        let leaf = &mut self.leaves[index];
        let item = leaf.remove(at).expect("an item that was just found");
        if leaf.is_empty() {
            self.remove_leaf(index);
        } else if leaf.len() < LEAF_MAX / 4 {
            self.merge(index);
        }
        item
    }

    fn remove_leaf(&mut self, index: usize) -> VecDeque<T> {
        self.bounds.remove(index);
        self.first = self.bounds.first().copied().unwrap_or(self.first);
        self.leaves.remove(index)
    }

    /// Joins a small leaf with a neighbour, if the two fill one leaf at most by half.
    fn merge(&mut self, index: usize) {
        for lower in [Some(index), index.checked_sub(1)].into_iter().flatten() {
            let Some(upper) = self.leaves.get(lower + 1) else { continue };
            if self.leaves[lower].len() + upper.len() <= LEAF_MAX / 2 {
                let upper = self.remove_leaf(lower + 1);
                self.leaves[lower].extend(upper);
                return;
            }
        }
    }

    fn split_off(&mut self, keep: usize) -> Self {
        let bounds = self.bounds.split_off(keep);
        Self { first: bounds[0], bounds, leaves: self.leaves.split_off(keep) }
    }
}

/// A leaf with room for all it may hold, so that it never moves.
fn leaf_with<T>(item: T) -> VecDeque<T> {
    let mut leaf = VecDeque::with_capacity(LEAF_MAX);
    leaf.push_back(item);
    leaf
}

#[cfg(test)]
impl<T: Keyed + PartialEq> PartialEq for Sorted<T> {
    fn eq(&self, other: &Self) -> bool {
        self.after(None).eq(other.after(None))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Keyed for u32 {
        type Key = u32;
        fn key(&self) -> u32 {
            *self
        }
    }

    fn leaves(sorted: &Sorted<u32>) -> usize {
        sorted.branches.iter().map(|branch| branch.leaves.len()).sum()
    }

    #[test]
    fn items_in_order_fill_their_leaves() {
        let mut sorted = Sorted::default();
        (0..6_400_u32).for_each(|n| sorted.insert(n));
        assert_eq!(leaves(&sorted), 100);
    }

    #[test]
    fn items_against_the_order_behind_a_full_leaf_share_leaves() {
        let mut sorted = Sorted::default();
        (0..64_u32).for_each(|n| sorted.insert(n));
        (1_000..7_400_u32).rev().for_each(|n| sorted.insert(n));
        assert!(leaves(&sorted) <= 202, "{} leaves for 6,464 items", leaves(&sorted));
    }

    #[test]
    fn few_survivors_do_not_keep_many_leaves() {
        let mut sorted = Sorted::default();
        (0..64_000_u32).for_each(|n| sorted.insert(n));
        (0..64_000).filter(|n| n % 64 != 7).for_each(|n| assert!(sorted.remove(n).is_some()));
        assert!(leaves(&sorted) <= 1_000 / (LEAF_MAX / 4), "{} leaves for 1,000 items", leaves(&sorted));
        let survivors = (0..64_000).filter(|n| n % 64 == 7);
        assert!(sorted.after(None).copied().eq(survivors.clone()));
        for (rank, n) in survivors.enumerate() {
            assert_eq!((sorted.get(n), sorted.get(n + 1), sorted.rank(n)), (Some(&n), None, rank));
        }
    }

    #[test]
    #[should_panic(expected = "100 is there already")]
    fn a_key_is_added_once() {
        let mut sorted = Sorted::default();
        (0..200_u32).for_each(|n| sorted.insert(n));
        sorted.insert(100);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn it_is_an_ordered_set(steps in prop::collection::vec((0_u8..5, 0_u32..40_000), 0..20_000)) {
            let (mut sorted, mut model) = (Sorted::default(), BTreeSet::new());
            for (kind, n) in steps {
                let n = if kind == 0 { n / 100 } else { n };
                if kind > 3 {
                    prop_assert_eq!(sorted.remove(n).is_some(), model.remove(&n));
                } else if model.insert(n) {
                    sorted.insert(n);
                }
                prop_assert_eq!(sorted.len(), model.len());
                prop_assert_eq!(sorted.first(), model.first());
                // The last match, and its neighbours.
                for near in [n, n + 1, n, n.saturating_sub(1)] {
                    prop_assert_eq!(sorted.get(near).copied(), model.get(&near).copied());
                }
            }
            prop_assert_eq!(sorted.rank(20_000), model.range(..20_000).count());
            prop_assert!(sorted.after(None).eq(model.iter()));
            prop_assert!(sorted.after(Some(250)).eq(model.range(251..)) && sorted.after(Some(39_999)).next().is_none());
        }

        #[test]
        fn it_is_emptied_in_any_order_and_filled_again(
            items in prop::collection::btree_set(0_u32..100_000, 0..20_000),
            order in 0..3,
            kept in 0..100_usize,
        ) {
            let mut going: Vec<u32> = items.iter().copied().collect();
            match order {
                0 => {}
                1 => going.reverse(),
                _ => going.sort_by_key(|n| n.wrapping_mul(0x9e37_79b9)),
            }
            going.truncate(items.len().saturating_sub(kept));
            let (mut sorted, mut model) = (Sorted::default(), items.clone());
            items.iter().for_each(|n| sorted.insert(*n));
            for n in &going {
                prop_assert_eq!(sorted.remove(*n), Some(*n));
                prop_assert_eq!(sorted.remove(*n), None);
                model.remove(n);
                prop_assert_eq!((sorted.len(), sorted.first()), (model.len(), model.first()));
            }
            prop_assert!(sorted.after(None).eq(&model));
            going.iter().for_each(|n| sorted.insert(*n));
            prop_assert!(sorted.after(None).eq(&items));
        }
    }
}
