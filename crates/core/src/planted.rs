//! Bugs for tests of the checkers: each can be planted, and must then be found.
//!
//! Without the feature `planted`, which no program that ships has, nothing can be planted and nothing here costs
//! anything.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug {
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    pub found_by: FoundBy,
}

/// What notices a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// Simulated worlds, by one of these invariants. W11 is a panic: it is named only where an assertion that ships
    /// is what should notice.
    Worlds(&'static [&'static str]),
    /// Simulated worlds with several nodes, by one of these invariants.
    Cluster(&'static [&'static str]),
    /// Simulated worlds with shards, by one of these invariants.
    Shards(&'static [&'static str]),
    /// A test: its crate, its target and its name.
    Test(&'static str, &'static str, &'static str),
}

const fn worlds(name: &'static str, what: &'static str, by: &'static [&'static str]) -> Bug {
    Bug { name, what, found_by: FoundBy::Worlds(by) }
}

const fn cluster(name: &'static str, what: &'static str, by: &'static [&'static str]) -> Bug {
    Bug { name, what, found_by: FoundBy::Cluster(by) }
}

const fn shards(name: &'static str, what: &'static str, by: &'static [&'static str]) -> Bug {
    Bug { name, what, found_by: FoundBy::Shards(by) }
}

const fn test(name: &'static str, what: &'static str, [of, target, test]: [&'static str; 3]) -> Bug {
    Bug { name, what, found_by: FoundBy::Test(of, target, test) }
}

/// Every bug that can be planted.
pub const BUGS: &[Bug] = &[
    worlds("ack-before-sync", "answers are sent before the group is written", &["T13", "W1"]),
    worlds(
        "refusal-before-durable",
        "refusals are sent while what they were decided on is not durable",
        &["T1", "T13"],
    ),
    worlds("sync-skipped", "a batch is acknowledged without a sync", &["W1"]),
    worlds("sync-retried", "a failed sync is tried again and believed", &["W1"]),
    worlds("last-frame-trusted", "a start trusts the last frame as the cache shows it", &["W1"]),
    worlds("delay-never-over", "a delayed task never comes into line", &["TL2"]),
    worlds("floor-too-high", "segments are dropped that the older of two snapshots needs", &["W1"]),
    worlds("capture-misses-changes", "a snapshot shows tasks as they are when they are written", &["W1"]),
    worlds(
        "question-forgotten",
        "now and then a question is taken out of the line and never answered",
        &["R7"],
    ),
    worlds("expiry-uncounted", "an attempt that ends by time does not count", &["T9"]),
    worlds("no-prolonging", "a new term gives leases no more time", &["L3"]),
    worlds("lease-too-short", "a lease is kept for less than what its worker was told", &["L2", "L3"]),
    worlds("told-too-long", "a worker is told twice what its lease is kept for", &["L2", "L8"]),
    worlds("expired-lease-accepted", "a report under a lease that is over is accepted", &["L4"]),
    worlds("completed-by-task-only", "a report is taken from whoever had the task once", &["T13", "W1"]),
    worlds("wall-clock", "rights end by the wall clock", &["L2", "L8"]),
    worlds("key-without-request", "the same key with another request finds the first task", &["T15"]),
    worlds("key-forgotten", "a purge forgets keys at once", &["T7"]),
    worlds("priority-ignored", "tasks are granted in the order of their ids", &["T12"]),
    worlds("granted-early", "a delayed task is granted half a second early", &["T10"]),
    worlds("attempts-unlimited", "a task is tried again and again", &["T9"]),
    worlds("cancel-forgotten", "a task that was to be cancelled goes on when it is given back", &["T11"]),
    worlds("capacity-ignored", "a worker gets more than it wants", &["L7"]),
    worlds("repeat-of-any-queue", "a repeat gets tasks of queues that it does not ask for", &["T16"]),
    worlds(
        "segments-dropped-early",
        "segments are dropped before the snapshot that replaces them has its name",
        &["W1"],
    ),
    worlds("repeat-counted", "a repeated submit counts as a new one", &["R2"]),
    worlds("leased-counted-twice", "leased tasks are shown as waiting, too", &["T14"]),
    worlds("polls-unlimited", "more calls wait for tasks than may", &["R1"]),
    worlds("stop-forgets-callers", "a stop leaves those who wait for tasks without an answer", &["R5"]),
    worlds(
        "abandon-by-group",
        "an answer that nobody took takes a lease back from a repeat in the same group",
        &["L2"],
    ),
    worlds("shortest-for-all", "a worker is told of all its leases what holds for the shortest", &["LL1"]),
    worlds("expiry-implicit", "leases that are over end at a start without an event", &["L1", "T10"]),
    cluster(
        "prolonged-once-only",
        "a second new term counts the time before it against leases",
        &["L2", "L3"],
    ),
    cluster(
        "limit-passed-between-terms",
        "a new term counts the time before it against execution limits",
        &["L2", "L3"],
    ),
    cluster("lease-taken-early", "a leader lease is taken before the time of its holder is over", &["E5"]),
    cluster("ttl-in-seconds", "the time of a leader lease counts in whole seconds", &["E5"]),
    cluster("own-ttl-for-others", "a candidate waits for its own time, not for the holder's", &["E5"]),
    cluster("epoch-bumped-by-renewal", "every renewal has an epoch of its own", &["E7"]),
    cluster("renewal-overwrites", "a renewal overwrites the leader lease of another holder", &["E8"]),
    cluster("epoch-from-own-count", "the epoch is counted by each candidate for itself", &["E2", "E7", "E8"]),
    cluster("trust-with-grace", "a leader acts for a while after its time is over", &["E4", "E5"]),
    cluster("trust-from-reply", "trust counts from the answer, not from the question", &["E4", "E5"]),
    cluster(
        "ambiguous-acquire-believed",
        "a leader lease is used though its acquisition is unknown",
        &["E4"],
    ),
    cluster(
        "ambiguous-acquire-anew",
        "each try to take or renew a leader lease counts from its own time",
        &["E4", "E5"],
    ),
    cluster("epoch-lost-with-data", "whoever accepts a loss of data begins with epoch 1 again", &["E2"]),
    cluster("epoch-not-raised", "a term begins in an epoch that the journal has seen", &["E2", "W4"]),
    cluster("term-unstarted", "a leader decides without a term of its own", &["E3"]),
    cluster("append-untrusted", "a batch is sent by a leader whose time is over", &["E4"]),
    cluster("answer-untrusted", "answers are given by a leader whose time is over", &["E4"]),
    cluster("unknown-append-changed", "other bytes follow a batch whose outcome is unknown", &["W14"]),
    cluster("end-of-handle-trusted", "a term begins where a handle believes that the journal ends", &["W11"]),
    cluster("chain-unchecked-by-follower", "a follower looks at positions only", &["W6"]),
    cluster("floor-unchecked-by-follower", "a follower takes what is truncated for the end", &["EL1", "W6"]),
    cluster("history-unchecked-at-load", "a node begins on whatever history it finds", &["EL1", "W3"]),
    cluster("refusal-ends-a-node", "a refusal that passes is taken for damage", &["W1"]),
    cluster("loss-unnoticed", "a journal that is shorter than what was seen is followed", &["W3", "W6"]),
    cluster(
        "journal-counted-by-term",
        "a new term takes the journal before it for covered by a snapshot",
        &["WL1"],
    ),
    cluster("output-unfenced", "output is appended whatever is stored before it", &["O9"]),
    cluster("output-acknowledged-late", "lines are acknowledged after the end of a term", &["E4", "O9"]),
    cluster(
        "format-raised-unasked",
        "a leader raises the format of the journal whoever is present",
        &["W15"],
    ),
    cluster("drops-forgotten", "lines that are dropped between two marks are not counted", &["O9"]),
    shards("last-word-counts", "a repeat of another number of shards counts as a change", &["H8"]),
    shards("granted-before-let-go", "what is withdrawn is granted at once", &["H2", "H3"]),
    shards("token-of-the-worker", "a worker has one token for all that it is granted", &["H5"]),
    shards("shards-dealt-anew", "shares are dealt as from nothing, whoever has what", &["H6"]),
    shards("shards-beyond-the-number", "shards above a smaller number stay", &["H1", "HL1"]),
    shards("withdrawn-takes-no-room", "what a worker has not let go of yet takes no room", &["H6"]),
    shards("new-name-undoes-orders", "a worker with a new name undoes an operator's number", &["H8"]),
    shards("shard-capacity-ignored", "a worker gets more shards than it takes", &["H6"]),
    shards("new-leader-does-not-wait", "a new term takes silent workers for dead", &["H2", "H3"]),
    shards(
        "own-shard-lease-for-others",
        "a new term waits its own length of a right, not the one that was promised before",
        &["H2", "H3"],
    ),
    shards("workers-clocks-trusted", "a worker whose clock is slow is not waited for", &["H2", "H3"]),
    shards("term-clock-trusted", "a clock that is set forward is not counted in", &["H2", "H3"]),
    shards("second-process-at-once", "a second process of a name takes all from the first", &["H2", "H3"]),
    shards("heartbeat-unheeded", "a heartbeat is answered, and gives no more time", &["H2", "H3"]),
    shards("any-session-believed", "whoever knows the name of a worker speaks for it", &["H7"]),
    shards("former-life-believed", "what a process said before it was replaced counts later", &["H7"]),
    shards("sessions-forgotten", "a new leader does not know which process of a name joined", &["H7"]),
    shards("ended-process-believed", "two plain processes of one name take turns", &["H7"]),
    shards("aware-overruled", "shards are taken from workers that could be asked", &["H3"]),
    shards("any-session-leaves", "whoever knows the name of a worker ends it", &["H2", "H3"]),
    shards(
        "told-to-any-session",
        "a process that was replaced hears what its successor should serve",
        &["H7"],
    ),
    shards("unheard-is-let-go", "a heartbeat without a shard lets go of it, told to or not", &["H3"]),
    shards("old-generation-lets-go", "a heartbeat from before a withdrawal answers it", &["H2", "H3"]),
    shards("silent-worker-kept", "a silent worker keeps its shards", &["HL1"]),
    shards("rounds-without-pause", "every change makes a round of its own", &["HL2"]),
    test(
        "own-without-condition",
        "a node takes a lease from whoever owns it",
        ["orchestrix-core", "scenarios", "every_scenario_leaves_the_trace_that_it_tells"],
    ),
    test(
        "offer-charged",
        "an offer that nobody has started counts as an attempt",
        ["orchestrix-core", "scenarios", "every_scenario_leaves_the_trace_that_it_tells"],
    ),
    test(
        "orphan-only-if-started",
        "a lease that nobody has started is no orphan",
        ["orchestrix-core", "scenarios", "every_scenario_leaves_the_trace_that_it_tells"],
    ),
    test(
        "folder-sync-skipped",
        "segments are used though their names are not durable",
        ["orchestrix-engine", "journal", "crash::nothing_acknowledged_is_lost_wherever_the_power_fails"],
    ),
    test(
        "snapshot-unsynced",
        "a snapshot gets its name before its bytes are durable",
        ["orchestrix-engine", "journal", "crash::nothing_acknowledged_is_lost_wherever_the_power_fails"],
    ),
    test(
        "replayed-twice",
        "the batch that a snapshot ends with is applied again",
        ["orchestrix-engine", "journal", "crash::nothing_acknowledged_is_lost_wherever_the_power_fails"],
    ),
    test(
        "order-ignored",
        "a batch that does not follow the end is appended",
        ["orchestrix-engine", "conformance", "files_on_a_simulated_disk"],
    ),
    test(
        "damage-cut-off",
        "damage is cut off as if a write had been torn",
        ["orchestrix-engine", "journal", "damage::every_flipped_bit_of_a_journal_is_harmless_or_named"],
    ),
    test(
        "bad-record-skipped",
        "a damaged batch is passed over and reading goes on",
        ["orchestrix-engine", "journal", "damage::every_flipped_bit_of_a_journal_is_harmless_or_named"],
    ),
    test(
        "chain-unchecked",
        "a batch only needs the right position to follow",
        ["orchestrix-engine", "journal", "damage::whole_frames_and_segments_of_another_history_are_damage"],
    ),
    test(
        "length-unsummed",
        "the checksum of a frame does not cover its length",
        ["orchestrix-engine", "journal", "damage::without_an_end_mark_a_flipped_bit_costs_one_batch"],
    ),
    test(
        "length-believed",
        "memory is taken for a length before the length is checked",
        ["orchestrix-engine", "journal", "damage::every_flipped_snapshot_bit_falls_back_to_the_one_before"],
    ),
    test(
        "segment-recycled",
        "a used segment is used again as it is, without an id of its own",
        ["orchestrix-engine", "journal", "damage::old_frames_in_a_spare_segment_are_never_read"],
    ),
    test(
        "floor-unchecked",
        "a journal without its beginning is taken for a whole one",
        ["orchestrix-engine", "journal", "damage::a_truncated_journal_does_not_start_without_a_snapshot"],
    ),
    test(
        "events-unbounded",
        "all events are kept for those who watch",
        ["orchestrix-server", "http", "streams::events_that_are_not_kept_any_more_are_a_gap"],
    ),
    test(
        "role-missing",
        "one route asks for no role",
        ["orchestrix-server", "http", "access::every_route_is_for_its_role_and_for_administrators_only"],
    ),
    test(
        "secret-shown",
        "a refusal repeats the token",
        ["orchestrix-server", "http", "access::a_wrong_way_to_show_a_token_is_no_token"],
    ),
];

#[cfg(feature = "planted")]
mod ground {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Names the bug that a process begins with.
    const VARIABLE: &str = "ORCHESTRIX_PLANTED";
    /// The variable was not read yet.
    const UNKNOWN: usize = usize::MAX;

    /// The number of the planted bug, plus one.
    static PLANTED: AtomicUsize = AtomicUsize::new(UNKNOWN);

    /// Plants a bug in this process. Answers whether there is one of this name.
    pub fn plant(name: &str) -> bool {
        let found = number(name);
        PLANTED.store(found, Relaxed);
        found > 0
    }

    /// Whether a bug is planted.
    #[must_use]
    pub fn is_planted(name: &str) -> bool {
        let planted = match PLANTED.load(Relaxed) {
            UNKNOWN => {
                let planted = planted_from_outside();
                PLANTED.store(planted, Relaxed);
                planted
            }
            planted => planted,
        };
        planted > 0 && super::BUGS[planted - 1].name == name
    }

    fn number(name: &str) -> usize {
        super::BUGS.iter().position(|bug| bug.name == name).map_or(0, |number| number + 1)
    }

    fn planted_from_outside() -> usize {
        let Ok(name) = std::env::var(VARIABLE) else { return 0 };
        let found = number(&name);
        assert!(found > 0 || name.is_empty(), "{VARIABLE} is {name:?}, which is no bug");
        found
    }
}

#[cfg(feature = "planted")]
pub use ground::{is_planted, plant};

/// Nothing can be planted in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
pub const fn plant(_: &str) -> bool {
    false
}

/// Nothing is planted in this build.
#[cfg(not(feature = "planted"))]
#[must_use]
#[inline]
pub const fn is_planted(_: &str) -> bool {
    false
}
