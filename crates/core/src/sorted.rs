//! An ordered collection for millions of small things that mostly arrive in order.
//!
//! Items stand in leaves of bounded size under an ordered directory: every operation is O(log n), items that
//! arrive in order fill their leaves to the last place (a B-tree would leave them half empty), and a walk in
//! order can stop and go on anywhere.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Items of one leaf. Small enough that moving half a leaf costs less than a cache miss or two.
const LEAF_MAX: usize = 64;

/// Something with an order.
pub(crate) trait Keyed {
    type Key: Ord + Copy;
    fn key(&self) -> Self::Key;
}

/// The collection.
#[derive(Clone, Debug)]
pub(crate) struct Sorted<T: Keyed> {
    /// Each leaf under a lower bound of its keys; no leaf is empty.
    leaves: BTreeMap<T::Key, Vec<T>>,
    len: usize,
}

impl<T: Keyed> Default for Sorted<T> {
    fn default() -> Self {
        Self { leaves: BTreeMap::new(), len: 0 }
    }
}

impl<T: Keyed> Sorted<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, key: T::Key) -> Option<&T> {
        let (_, leaf) = self.leaves.range(..=key).next_back()?;
        leaf.binary_search_by_key(&key, Keyed::key).ok().map(|at| &leaf[at])
    }

    pub(crate) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        let (_, leaf) = self.leaves.range_mut(..=key).next_back()?;
        leaf.binary_search_by_key(&key, Keyed::key).ok().map(|at| &mut leaf[at])
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.leaves.values().next()?.first()
    }

    /// Adds an item whose key is not there yet.
    ///
    /// # Panics
    /// When the key is there: two things of one name would be a bug.
    pub(crate) fn insert(&mut self, item: T) {
        self.len += 1;
        let key = item.key();
        let Some((&bound, leaf)) = self.leaves.range_mut(..=key).next_back() else {
            return self.insert_first(item);
        };
        if leaf.last().is_none_or(|last| last.key() < key) && leaf.len() == LEAF_MAX {
            self.leaves.insert(key, leaf_of(item));
            return;
        }
        insert_in(leaf, item);
        if leaf.len() > LEAF_MAX {
            self.split(bound);
        }
    }

    pub(crate) fn remove(&mut self, key: T::Key) -> Option<T> {
        let (&bound, leaf) = self.leaves.range_mut(..=key).next_back()?;
        let at = leaf.binary_search_by_key(&key, Keyed::key).ok()?;
        let item = leaf.remove(at);
        self.len -= 1;
        if leaf.is_empty() {
            self.leaves.remove(&bound);
        } else if leaf.len() < LEAF_MAX / 4 {
            self.merge(bound);
        }
        Some(item)
    }

    /// All items in order, from the first whose key is greater than `after`.
    pub(crate) fn after(&self, after: Option<T::Key>) -> impl Iterator<Item = &T> {
        let bound = after.and_then(|key| self.leaves.range(..=key).next_back()).map(|(bound, _)| *bound);
        self.leaves
            .range((bound.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded))
            .flat_map(|(_, leaf)| leaf)
            .skip_while(move |item| after.is_some_and(|after| item.key() <= after))
    }

    /// How many items stand before `key`.
    pub(crate) fn rank(&self, key: T::Key) -> usize {
        let mut before = self.leaves.range(..=key);
        let within = before.next_back().map_or(0, |(_, leaf)| leaf.partition_point(|item| item.key() < key));
        before.map(|(_, leaf)| leaf.len()).sum::<usize>() + within
    }

    fn insert_first(&mut self, item: T) {
        let key = item.key();
        match self.leaves.pop_first() {
            Some((_, mut leaf)) if leaf.len() < LEAF_MAX => {
                insert_in(&mut leaf, item);
                self.leaves.insert(key, leaf);
            }
            Some((bound, leaf)) => {
                self.leaves.insert(bound, leaf);
                self.leaves.insert(key, leaf_of(item));
            }
            None => {
                self.leaves.insert(key, leaf_of(item));
            }
        }
    }

    fn split(&mut self, bound: T::Key) {
        let leaf = self.leaves.get_mut(&bound).expect("the leaf that was just filled");
        let mut upper = Vec::with_capacity(LEAF_MAX + 1);
        upper.extend(leaf.drain(leaf.len() / 2..));
        let first = upper.first().expect("half of a full leaf").key();
        self.leaves.insert(first, upper);
    }

    /// Joins a small leaf with a neighbour, if the two fill one leaf at most by half.
    fn merge(&mut self, bound: T::Key) {
        let next =
            self.leaves.range((Bound::Excluded(bound), Bound::Unbounded)).next().map(|(next, _)| *next);
        let before = self.leaves.range(..bound).next_back().map(|(before, _)| *before);
        let pairs = [next.map(|next| (bound, next)), before.map(|before| (before, bound))];
        for (lower, upper) in pairs.into_iter().flatten() {
            if self.leaves[&lower].len() + self.leaves[&upper].len() <= LEAF_MAX / 2 {
                let moved = self.leaves.remove(&upper).expect("the neighbour that was just seen");
                self.leaves.get_mut(&lower).expect("the leaf that was just seen").extend(moved);
                return;
            }
        }
    }
}

fn leaf_of<T>(item: T) -> Vec<T> {
    let mut leaf = Vec::with_capacity(LEAF_MAX + 1);
    leaf.push(item);
    leaf
}

fn insert_in<T: Keyed>(leaf: &mut Vec<T>, item: T) {
    match leaf.binary_search_by_key(&item.key(), Keyed::key) {
        Ok(_) => panic!("a key is added once"),
        Err(at) => leaf.insert(at, item),
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

    #[test]
    fn items_in_order_fill_their_leaves() {
        let mut sorted = Sorted::default();
        (0..6_400_u32).for_each(|n| sorted.insert(n));
        assert_eq!(sorted.leaves.len(), 100);
    }

    #[test]
    fn few_survivors_do_not_keep_many_leaves() {
        let mut sorted = Sorted::default();
        (0..64_000_u32).for_each(|n| sorted.insert(n));
        (0..64_000).filter(|n| n % 64 != 7).for_each(|n| assert!(sorted.remove(n).is_some()));
        assert!(
            sorted.leaves.len() <= 1_000 / (LEAF_MAX / 4),
            "{} leaves for 1,000 items",
            sorted.leaves.len()
        );
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_set(steps in prop::collection::vec((any::<bool>(), 0_u32..500), 0..3_000)) {
            let (mut sorted, mut model) = (Sorted::default(), BTreeSet::new());
            for (add, n) in steps {
                if !add {
                    prop_assert_eq!(sorted.remove(n).is_some(), model.remove(&n));
                } else if model.insert(n) {
                    sorted.insert(n);
                }
                prop_assert_eq!(sorted.len(), model.len());
                prop_assert_eq!(sorted.first(), model.first());
                prop_assert_eq!(sorted.get(n).is_some(), model.contains(&n));
                prop_assert_eq!(sorted.rank(n), model.range(..n).count());
            }
            prop_assert!(sorted.after(None).eq(model.iter()));
            prop_assert!(sorted.after(Some(250)).eq(model.range(251..)));
        }
    }
}
