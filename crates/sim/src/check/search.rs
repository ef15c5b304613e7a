//! Is there an order? Looks for one in which every operation on a thing happened at one moment between asking and
//! answering (T13), without the journal, as Wing and Gong do it and Lowe made it fast.
//!
//! What [`super::calls`] shows with the journal as its witness is found here again by search, from another
//! description of a task ([`super::story`]). Two ways that agree are harder to fool than one.

use std::collections::BTreeSet;

/// Something with a state that operations look at and change.
pub(super) trait Thing {
    type State: Clone + Ord;
    type Act: PartialEq;

    /// The states that it may be in after an operation that was answered so; none if that cannot be.
    fn after(&self, state: &Self::State, act: &Self::Act) -> Vec<Self::State>;

    /// Whether an operation that fits and changes nothing could not be needed for a change later.
    fn is_spent(&self, act: &Self::Act) -> bool;

    /// The states that it may come into by itself.
    fn alone(&self, state: &Self::State) -> Vec<Self::State>;
}

/// An operation on the thing.
#[derive(Clone, Debug)]
pub(super) struct Operation<A> {
    pub(super) asked: u64,
    /// Without an answer it happened at any time later, or never.
    pub(super) answered: Option<u64>,
    pub(super) act: A,
}

/// How many situations are looked at before the search gives up: an answer that cannot be had counts as none.
const SITUATIONS_MAX: usize = 200_000;

/// Whether there is an order. Operations are sorted by when they were asked.
pub(super) fn has_order<T: Thing>(thing: &T, start: T::State, operations: &[Operation<T::Act>]) -> bool {
    assert!(
        operations.is_sorted_by_key(|operation| operation.asked),
        "operations are in the order of asking"
    );
    let mut known: BTreeSet<(Done, T::State)> = BTreeSet::new();
    let mut situations = vec![(Done::nothing(operations.len()), start)];
    while let Some((done, state)) = situations.pop() {
        let waiting = || operations.iter().enumerate().skip(done.first).filter(|(n, _)| !done.has(*n));
        let Some(soonest) = waiting().filter_map(|(_, operation)| operation.answered).min() else {
            return true;
        };
        if known.len() >= SITUATIONS_MAX {
            return false;
        }
        let open = || waiting().take_while(|(_, operation)| operation.asked <= soonest);
        // What fits, changes nothing and is not needed later may as well be now: all that was possible still is.
        let is_spent = |act: &T::Act| {
            thing.is_spent(act) && matches!(thing.after(&state, act).as_slice(), [after] if *after == state)
        };
        if let Some((number, _)) = open().find(|(_, operation)| is_spent(&operation.act)) {
            let situation = (done.with(number), state);
            if known.insert(situation.clone()) {
                situations.push(situation);
            }
            continue;
        }
        let possible = closure(thing, &state);
        for (number, operation) in open() {
            // Of several that say the same, the one that has to be first is first.
            let ends = |operation: &Operation<T::Act>| operation.answered.unwrap_or(u64::MAX);
            let rank = (ends(operation), number);
            if open().any(|(other, same)| same.act == operation.act && (ends(same), other) < rank) {
                continue;
            }
            for next in possible.iter().flat_map(|state| thing.after(state, &operation.act)) {
                let situation = (done.with(number), next);
                if known.insert(situation.clone()) {
                    situations.push(situation);
                }
            }
        }
    }
    false
}

fn closure<T: Thing>(thing: &T, state: &T::State) -> BTreeSet<T::State> {
    let mut found = BTreeSet::from([state.clone()]);
    let mut new = vec![state.clone()];
    while let Some(state) = new.pop() {
        for next in thing.alone(&state) {
            if found.insert(next.clone()) {
                new.push(next);
            }
        }
    }
    found
}

/// Which operations have had their moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Done {
    /// All before this one.
    first: usize,
    /// One bit for each from `first` on.
    rest: Vec<u64>,
}

impl Done {
    fn nothing(operations: usize) -> Self {
        Self { first: 0, rest: vec![0; operations.div_ceil(64)] }
    }

    fn has(&self, number: usize) -> bool {
        number < self.first || self.rest[number / 64] >> (number % 64) & 1 == 1
    }

    fn with(&self, number: usize) -> Self {
        let mut with = self.clone();
        with.rest[number / 64] |= 1 << (number % 64);
        while with.first < with.rest.len() * 64 && with.has(with.first) {
            with.first += 1;
        }
        with
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// A cell that holds a number, and now and then goes from 2 to 0 by itself.
    struct Cell;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Act {
        Put(u8),
        Saw(u8),
        /// Put the second if it held the first; it did or it did not.
        Swapped(u8, u8, bool),
    }

    impl Thing for Cell {
        type State = u8;
        type Act = Act;

        fn after(&self, state: &u8, act: &Act) -> Vec<u8> {
            match *act {
                Act::Put(value) => vec![value],
                Act::Saw(value) if value == *state => vec![value],
                Act::Swapped(from, to, true) if from == *state => vec![to],
                Act::Swapped(from, _, false) if from != *state => vec![*state],
                Act::Saw(_) | Act::Swapped(..) => Vec::new(),
            }
        }

        fn is_spent(&self, act: &Act) -> bool {
            matches!(act, Act::Saw(_) | Act::Swapped(_, _, false))
        }

        fn alone(&self, state: &u8) -> Vec<u8> {
            if *state == 2 { vec![0] } else { Vec::new() }
        }
    }

    /// Tries every order of every choice of what happened, one after the other.
    fn has_order_by_trying(operations: &[Operation<Act>], left: &[usize], state: u8) -> bool {
        if left.iter().all(|n| operations[*n].answered.is_none()) {
            return true;
        }
        let states = if state == 2 { vec![2, 0] } else { vec![state] };
        left.iter().any(|n| {
            let before =
                |other: &usize| operations[*other].answered.is_some_and(|at| at < operations[*n].asked);
            if left.iter().any(before) {
                return false;
            }
            let rest: Vec<usize> = left.iter().copied().filter(|other| other != n).collect();
            let after = states.iter().flat_map(|state| Cell.after(state, &operations[*n].act));
            after.collect::<Vec<u8>>().into_iter().any(|state| has_order_by_trying(operations, &rest, state))
        })
    }

    fn random_history(rng: &mut Rng) -> Vec<Operation<Act>> {
        let mut operations: Vec<Operation<Act>> = (0..rng.range(1, 6))
            .map(|_| {
                let (a, b) = (rng.range(0, 2) as u8, rng.range(0, 2) as u8);
                let act = match rng.range(0, 3) {
                    0 => Act::Put(a),
                    1 => Act::Saw(a),
                    2 => Act::Swapped(a, b, true),
                    _ => Act::Swapped(a, b, false),
                };
                let asked = rng.range(0, 10);
                let answered = (!rng.chance(150_000)).then(|| asked + rng.range(0, 4));
                Operation { asked, answered, act }
            })
            .collect();
        operations.sort_by_key(|operation| operation.asked);
        operations
    }

    #[test]
    fn the_search_agrees_with_trying_every_order() {
        let mut rng = Rng::new(11);
        let (mut with, mut without) = (0, 0);
        for _ in 0..30_000 {
            let history = random_history(&mut rng);
            let all: Vec<usize> = (0..history.len()).collect();
            let expected = has_order_by_trying(&history, &all, 0);
            assert_eq!(has_order(&Cell, 0, &history), expected, "{history:?}");
            if expected { with += 1 } else { without += 1 }
        }
        assert!(with > 5_000 && without > 5_000, "{with} with an order, {without} without");
    }

    #[test]
    fn many_that_say_the_same_at_once_are_no_trouble() {
        let at_once = |act| Operation { asked: 1, answered: Some(100), act };
        let mut history: Vec<Operation<Act>> = (0..40).map(|_| at_once(Act::Saw(1))).collect();
        let maybe = Operation { asked: 1, answered: None, act: Act::Swapped(0, 1, true) };
        history.extend((0..40).map(|_| maybe.clone()));
        assert!(has_order(&Cell, 0, &history));
        history.extend((0..40).map(|_| at_once(Act::Saw(2))));
        assert!(!has_order(&Cell, 0, &history));
    }

    #[test]
    fn many_operations_one_after_the_other_are_no_trouble() {
        let step =
            |n: u64| Operation { asked: 2 * n, answered: Some(2 * n + 1), act: Act::Put((n % 2) as u8) };
        let mut history: Vec<Operation<Act>> = (0..500).map(step).collect();
        assert!(has_order(&Cell, 0, &history));
        history.push(Operation { asked: 2_000, answered: Some(2_001), act: Act::Saw(0) });
        assert!(!has_order(&Cell, 0, &history));
    }
}
