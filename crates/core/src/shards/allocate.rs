//! Allocation of shards: even shares, with as few moves as possible.
//!
//! Pure arithmetic over numbers: workers are counted in the order of their names, shards from 0. What comes out is a
//! wish; how a shard gets from one worker to the next is a matter of rounds.
//!
//! **Invariant:** a shard whose worker has no more than its share stays where it is.

use std::collections::BTreeSet;

/// One worker: how many shards it takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub capacity: Option<u32>,
}

/// What would make shares even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Shards that their worker has to give up, in the order in which that helps most.
    pub withdraw: Vec<u32>,
    /// Free shards, and the worker that each is for.
    pub give: Vec<(u32, usize)>,
}

/// Loads up to this many hundredths of the mean are even enough. Less would move shards for ever to and fro when weights
/// change a little.
const TOLERATED: u64 = 110;
/// When they are not even enough, shards move until they are so even.
const WANTED: u64 = 105;

/// Plans with a weight for each shard; all weigh the same if none are given.
///
/// `holders` has the worker of each shard. A moving shard is free, but cannot be granted yet: it is not among
/// those that are `free`.
#[must_use]
pub fn plan(
    places: &[Place],
    holders: &[Option<usize>],
    weights: Option<&[u32]>,
    is_free: impl Fn(u32) -> bool,
) -> Plan {
    if places.is_empty() {
        return Plan::default();
    }
    let mut wish = match weights {
        Some(weights) => Weighing::new(places, holders, weights).wish(),
        None => even(places, holders),
    };
    wish.give.retain(|(shard, _)| is_free(*shard));
    wish
}

/// A planted bug: shares as in a first assignment.
pub(super) fn dealt_anew(places: &[Place], holders: &[Option<usize>], is_free: impl Fn(u32) -> bool) -> Plan {
    let wish = plan(places, &vec![None; holders.len()], None, |_| true).give;
    let other = |(shard, to): &(u32, usize)| {
        holders[*shard as usize].is_some_and(|holder| holder != *to).then_some(*shard)
    };
    let withdraw = wish.iter().filter_map(other).collect();
    let give = wish.iter().filter(|(shard, _)| is_free(*shard)).copied().collect();
    Plan { withdraw, give }
}

/// How many shards each worker should have, so that none has two more than another that could take one.
fn quotas(places: &[Place], held: &[u32], shards: u32) -> Vec<u32> {
    let capacity = |place: &Place| place.capacity.unwrap_or(u32::MAX);
    let at_level = |level: u32| places.iter().map(|place| u64::from(capacity(place).min(level))).sum::<u64>();
    // The highest level that there are shards for.
    let (mut low, mut high) = (0, shards);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if at_level(middle) <= u64::from(shards) { low = middle } else { high = middle - 1 }
    }
    let mut quotas: Vec<u32> = places.iter().map(|place| capacity(place).min(low)).collect();
    let mut rest = u64::from(shards) - at_level(low);
    // One more for workers that already have more, then in the order of names.
    for has_more in [true, false] {
        for (index, quota) in quotas.iter_mut().enumerate() {
            if rest > 0 && (held[index] > low) == has_more && capacity(&places[index]) > low {
                *quota += 1;
                rest -= 1;
            }
        }
    }
    quotas
}

fn even(places: &[Place], holders: &[Option<usize>]) -> Plan {
    let shards = u32::try_from(holders.len()).expect("shards are counted in 32 bits");
    let mut held = vec![0; places.len()];
    holders.iter().flatten().for_each(|worker| held[*worker] += 1);
    let quotas = quotas(places, &held, shards);
    let mut plan = Plan::default();
    // From the highest on, so that what stays is what a start from nothing would give.
    let mut surplus: Vec<u32> =
        held.iter().zip(&quotas).map(|(held, quota)| held.saturating_sub(*quota)).collect();
    for (shard, worker) in numbered(holders).rev() {
        if let Some(worker) = worker
            && surplus[worker] > 0
        {
            surplus[worker] -= 1;
            plan.withdraw.push(shard);
        }
    }
    let mut wanting = (0..places.len())
        .flat_map(|worker| std::iter::repeat_n(worker, quotas[worker].saturating_sub(held[worker]) as usize));
    let given = numbered(holders).filter(|(_, worker)| worker.is_none());
    plan.give = given.map_while(|(shard, _)| Some((shard, wanting.next()?))).collect();
    plan
}

fn numbered(holders: &[Option<usize>]) -> impl DoubleEndedIterator<Item = (u32, Option<usize>)> {
    let count = u32::try_from(holders.len()).expect("shards are counted in 32 bits");
    (0..count).zip(holders.iter().copied())
}

/// Shares by weight. There is no quick way to the best plan, so the heaviest go first to the worker with the least.
struct Weighing<'a> {
    places: &'a [Place],
    holders: &'a [Option<usize>],
    weights: &'a [u32],
    target: Vec<Option<usize>>,
    /// Workers by what they have to carry.
    by_load: BTreeSet<(u64, usize)>,
    loads: Vec<u64>,
    /// The shards of each worker by weight.
    shards: Vec<BTreeSet<(u32, u32)>>,
}

impl<'a> Weighing<'a> {
    fn new(places: &'a [Place], holders: &'a [Option<usize>], weights: &'a [u32]) -> Self {
        let mut weighing = Self {
            places,
            holders,
            weights,
            target: vec![None; holders.len()],
            by_load: (0..places.len()).map(|worker| (0, worker)).collect(),
            loads: vec![0; places.len()],
            shards: vec![BTreeSet::new(); places.len()],
        };
        for (shard, worker) in numbered(holders) {
            if let Some(worker) = worker {
                weighing.put(shard, worker);
            }
        }
        weighing
    }

    fn wish(mut self) -> Plan {
        let mut homeless: Vec<u32> =
            numbered(self.holders).filter(|(_, worker)| worker.is_none()).map(|(shard, _)| shard).collect();
        for worker in 0..self.places.len() {
            while self.is_over(worker) {
                let (_, lightest) = *self.shards[worker].first().expect("whoever has too many has one");
                self.take(lightest, worker);
                homeless.push(lightest);
            }
        }
        homeless.sort_by_key(|shard| (std::cmp::Reverse(self.weight(*shard)), *shard));
        for shard in homeless {
            let Some(worker) = self.least_loaded() else { break };
            self.put(shard, worker);
        }
        if !self.is_even(TOLERATED) {
            while !self.is_even(WANTED) && self.move_one() {}
        }
        self.plan()
    }

    fn weight(&self, shard: u32) -> u32 {
        self.weights.get(shard as usize).copied().unwrap_or(1)
    }

    fn is_over(&self, worker: usize) -> bool {
        self.places[worker].capacity.is_some_and(|most| self.shards[worker].len() > most as usize)
    }

    fn has_room(&self, worker: usize) -> bool {
        self.places[worker].capacity.is_none_or(|most| self.shards[worker].len() < most as usize)
    }

    fn least_loaded(&self) -> Option<usize> {
        self.by_load.iter().map(|(_, worker)| *worker).find(|worker| self.has_room(*worker))
    }

    fn is_even(&self, hundredths: u64) -> bool {
        let total: u64 = self.loads.iter().sum();
        let most = self.by_load.last().map_or(0, |(load, _)| *load);
        most * 100 * self.loads.len() as u64 <= total * hundredths
    }

    /// Moves a shard from the worker with the most to the one with the least, if that reduces the difference.
    fn move_one(&mut self) -> bool {
        let (Some((most, from)), Some(to)) = (self.by_load.last().copied(), self.least_loaded()) else {
            return false;
        };
        let gap = most - self.loads[to];
        let up_to = |weight: u64| (u32::try_from(weight).unwrap_or(u32::MAX), u32::MAX);
        let half = self.shards[from].range(..=up_to(gap / 2)).next_back();
        let less = || self.shards[from].first().filter(|(weight, _)| u64::from(*weight) < gap);
        let Some((_, shard)) = half.or_else(less).copied() else { return false };
        self.take(shard, from);
        self.put(shard, to);
        true
    }

    fn put(&mut self, shard: u32, worker: usize) {
        self.target[shard as usize] = Some(worker);
        let weight = self.weight(shard);
        self.shards[worker].insert((weight, shard));
        self.carry(worker, self.loads[worker] + u64::from(weight));
    }

    fn take(&mut self, shard: u32, worker: usize) {
        self.target[shard as usize] = None;
        let weight = self.weight(shard);
        self.shards[worker].remove(&(weight, shard));
        self.carry(worker, self.loads[worker] - u64::from(weight));
    }

    fn carry(&mut self, worker: usize, load: u64) {
        self.by_load.remove(&(self.loads[worker], worker));
        self.loads[worker] = load;
        self.by_load.insert((load, worker));
    }

    fn plan(self) -> Plan {
        let mut plan = Plan::default();
        for ((shard, holder), target) in numbered(self.holders).zip(&self.target) {
            match (holder, target) {
                (Some(holder), target) if *target != Some(holder) => plan.withdraw.push(shard),
                (None, Some(worker)) => plan.give.push((shard, *worker)),
                (Some(_), _) | (None, None) => {}
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: Place = Place { capacity: None };

    /// Applies a plan at once, as if no worker had to release first. Returns how many shards moved.
    fn settle(places: &[Place], holders: &mut [Option<usize>], weights: Option<&[u32]>) -> usize {
        let moves = plan(places, holders, weights, |_| true).withdraw;
        for shard in &moves {
            holders[*shard as usize] = None;
        }
        for (shard, worker) in plan(places, holders, weights, |_| true).give {
            holders[shard as usize] = Some(worker);
        }
        let again = plan(places, holders, weights, |_| true);
        assert!(again.withdraw.is_empty(), "what was settled moves again: {again:?}");
        moves.len()
    }

    fn counts(workers: usize, holders: &[Option<usize>]) -> Vec<u32> {
        let mut counts = vec![0; workers];
        holders.iter().flatten().for_each(|worker| counts[*worker] += 1);
        counts
    }

    #[test]
    fn from_nothing_the_split_is_the_one_that_is_written_down() {
        let plan = plan(&[ANY; 3], &[None; 10], None, |_| true);
        let workers: Vec<usize> = plan.give.iter().map(|(_, worker)| *worker).collect();
        assert_eq!(workers, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert!(plan.withdraw.is_empty());
    }

    #[test]
    fn no_workers_no_shards_and_few_shards_are_allocated() {
        assert_eq!(plan(&[], &[None; 4], None, |_| true), Plan::default());
        assert_eq!(plan(&[ANY; 3], &[], None, |_| true), Plan::default());
        assert_eq!(plan(&[ANY; 5], &[None; 2], None, |_| true).give, [(0, 0), (1, 1)]);
        assert_eq!(plan(&[Place { capacity: Some(0) }], &[Some(0)], None, |_| true).withdraw, [0]);
    }

    #[test]
    fn a_moving_shard_is_not_granted() {
        let holders = [Some(0), Some(0), None, None];
        let plan = plan(&[ANY; 2], &holders, None, |shard| shard == 3);
        assert_eq!((plan.withdraw, plan.give), (vec![], vec![(3, 1)]));
    }

    /// The numbers of a worker that joins or leaves, at 1,024 shards.
    #[test]
    fn joins_and_leaves_move_no_more_than_they_must() {
        for workers in [10, 100] {
            let mut holders = vec![None; 1_024];
            settle(&vec![ANY; workers], &mut holders, None);
            // One more, the last by name: it gets its share, and no other worker gets anything.
            assert_eq!(settle(&vec![ANY; workers + 1], &mut holders, None), 1_024 / (workers + 1));
            // The first leaves: only what was its own finds a new place.
            let share = counts(workers + 1, &holders)[0];
            for holder in &mut holders {
                *holder = holder.and_then(|worker| worker.checked_sub(1));
            }
            assert_eq!(holders.iter().filter(|holder| holder.is_none()).count(), share as usize);
            assert_eq!(settle(&vec![ANY; workers], &mut holders, None), 0);
            let counts = counts(workers, &holders);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
        }
    }

    /// The fewest moves that lead to even shares, by trying all.
    fn fewest_moves(places: &[Place], holders: &[Option<usize>]) -> usize {
        let shards = holders.len() as u32;
        let held = counts(places.len(), holders);
        let mut best = usize::MAX;
        let mut quotas = vec![0; places.len()];
        each_split(places, shards, 0, &mut quotas, &mut |quotas| {
            let moves: u32 = held.iter().zip(quotas).map(|(held, quota)| held.saturating_sub(*quota)).sum();
            best = best.min(moves as usize);
        });
        best
    }

    /// All ways to assign as many shards as possible, so that no worker has two more than one with free capacity.
    fn each_split(
        places: &[Place],
        left: u32,
        at: usize,
        quotas: &mut Vec<u32>,
        found: &mut impl FnMut(&[u32]),
    ) {
        let most = |worker: usize| places[worker].capacity.unwrap_or(u32::MAX);
        if at < places.len() {
            for quota in 0..=left.min(most(at)) {
                quotas[at] = quota;
                each_split(places, left - quota, at + 1, quotas, found);
            }
            return;
        }
        let full = (0..places.len()).all(|worker| quotas[worker] == most(worker));
        let room = |worker: usize| quotas[worker] < most(worker);
        let even = (0..places.len())
            .all(|one| (0..places.len()).all(|other| !room(one) || quotas[other] <= quotas[one] + 1));
        if even && (left == 0 || full) {
            found(quotas);
        }
    }

    fn places() -> impl Strategy<Value = Vec<Place>> {
        let capacity = prop_oneof![3 => Just(None), 1 => (0..6_u32).prop_map(Some)];
        prop::collection::vec(capacity.prop_map(|capacity| Place { capacity }), 1..5)
    }

    /// Some workers, and who of them has which shard.
    fn fields() -> impl Strategy<Value = (Vec<Place>, Vec<Option<usize>>)> {
        places().prop_flat_map(|places| {
            let holders = prop::collection::vec(prop::option::of(0..places.len()), 0..9);
            (Just(places), holders)
        })
    }

    proptest! {
        #[test]
        fn no_plan_moves_less((places, mut holders) in fields()) {
            let fewest = fewest_moves(&places, &holders);
            prop_assert_eq!(settle(&places, &mut holders, None), fewest);
        }

        #[test]
        fn no_shard_is_unassigned_while_a_worker_has_room((places, mut holders) in fields()) {
            settle(&places, &mut holders, None);
            let counts = counts(places.len(), &holders);
            let room = |worker: usize| places[worker].capacity.is_none_or(|most| counts[worker] < most);
            for (worker, count) in counts.iter().enumerate() {
                prop_assert!(places[worker].capacity.is_none_or(|most| *count <= most));
                prop_assert!(!room(worker) || counts.iter().all(|other| *other <= count + 1));
            }
            prop_assert!(holders.iter().all(Option::is_some) || !(0..places.len()).any(room));
        }

        #[test]
        fn weights_are_shared_as_evenly_as_ten_in_a_hundred(
            weights in prop::collection::vec(1..20_u32, 200..400),
            workers in 2..8_usize,
            seed in any::<u64>(),
        ) {
            let places = vec![ANY; workers];
            // Begin with something uneven.
            let mut holders: Vec<Option<usize>> =
                (0..weights.len()).map(|shard| Some((seed.rotate_left(shard as u32 % 64) % workers as u64) as usize)).collect();
            settle(&places, &mut holders, Some(&weights));
            let mut loads = vec![0_u64; workers];
            holders.iter().zip(&weights).for_each(|(holder, weight)| loads[holder.unwrap()] += u64::from(*weight));
            let mean = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>() as f64 / workers as f64;
            prop_assert!(*loads.iter().max().unwrap() as f64 <= 1.1 * mean, "{:?} {}", loads, mean);
        }

        #[test]
        fn a_little_change_of_weights_moves_nothing(workers in 2..6_usize, at in 0..300_usize) {
            let places = vec![ANY; workers];
            let mut weights = vec![10; 300];
            let mut holders = vec![None; 300];
            settle(&places, &mut holders, Some(&weights));
            weights[at] += 5;
            prop_assert_eq!(settle(&places, &mut holders, Some(&weights)), 0);
        }
    }
}
