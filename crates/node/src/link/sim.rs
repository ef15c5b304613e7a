//! Both ends over a pipe that delays and cuts, from seeds, beside a small model of what was decided and what was heard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orchestrix_core::wire::{LeaseQueues, Leased, Leases, Outcome};
use orchestrix_core::{Command, Json, LeaseId, Name, Position, TaskCommand, TaskId, TaskState};

use crate::link::*;
use crate::request::{Answer, Ask, Error, Seen};

/// Steps of a world before everything comes to rest.
const STEPS: u32 = 1_500;
const WINDOW: usize = 2_000;
const LARGEST: usize = 200_000;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 33)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A request of a caller; its token is in the ask and in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Token(u64);

/// What the leader has and will answer.
struct Parked {
    id: AskId,
    token: Token,
    is_lease: bool,
}

struct Wire {
    asker: Asker,
    answerer: Answerer<()>,
    to_leader: VecDeque<u8>,
    to_follower: VecDeque<u8>,
    /// Asks that the leader's loop has not taken yet.
    arrived: Vec<Parked>,
    parked: Vec<Parked>,
    /// Asks of which something was handed over for sending.
    sent: BTreeSet<u64>,
    tokens: BTreeMap<AskId, Token>,
}

struct World {
    rng: Rng,
    now: Duration,
    wire: Wire,
    next: u64,
    /// To be asked, for the first time or again.
    wanted: VecDeque<Token>,
    cancelled: BTreeSet<Token>,
    decided: BTreeSet<Token>,
    heard: BTreeSet<Token>,
    given_back: BTreeSet<Token>,
    leases_answered: BTreeSet<Token>,
    /// Answered with something that the follower cannot use.
    spoilt: BTreeSet<Token>,
    unread: u32,
    /// Cancelled before anything of them was sent.
    withdrawn: u32,
    cuts: u32,
    farewells: u32,
    resent: u32,
    /// Not taken in time, at one of the two ends.
    late: u32,
}

fn is_lease(token: Token) -> bool {
    token.0.is_multiple_of(3)
}

/// Some are given up when there is no room for them in time.
fn question(token: Token) -> Question {
    let within = token.0.is_multiple_of(5).then_some(Duration::from_secs(1));
    Question { within, ..patient(token) }
}

fn patient(token: Token) -> Question {
    let name = |text: String| Name::new(&text).unwrap();
    if is_lease(token) {
        return Question::new(Ask::Lease(LeaseQueues {
            queues: vec![name("q".to_owned())],
            worker: name(format!("w{}", token.0)),
            max: 1,
            lease_ms: 1_000,
            wait_ms: 1_000,
            request_id: None,
            capacity: None,
        }));
    }
    let bytes = if token.0.is_multiple_of(17) { LARGEST } else { 100 };
    let result = Some(Json::parse(&format!("{:?}", "x".repeat(bytes))).unwrap());
    let command = Command::Task(TaskCommand::Complete {
        task: TaskId(token.0),
        lease: LeaseId(1),
        worker: None,
        result,
    });
    Question::new(Ask::Command(command))
}

fn token(question: &Question) -> Token {
    if let Ask::Lease(request) = &question.ask {
        return Token(request.worker.as_str()[1..].parse().unwrap());
    }
    let Ask::Command(Command::Task(TaskCommand::Complete { task, .. })) = &question.ask else {
        panic!("nobody asked {question:?}")
    };
    Token(task.0)
}

fn answer(token: Token, rng: &mut Rng) -> Answer {
    if !is_lease(token) {
        let id = TaskId(token.0);
        let outcome =
            Outcome { id, state: TaskState::Completed, not_before_at: None, cancel_requested: false };
        return Answer::Outcome { outcome, seen: Seen::First };
    }
    let bytes = if rng.one_in(5) { LARGEST } else { 10 };
    let leased = Leased {
        task_id: TaskId(token.0),
        lease_id: LeaseId(token.0),
        queue: Name::new("q").unwrap(),
        attempt: 1,
        payload: Json::parse(&format!("{:?}", "x".repeat(bytes))).unwrap(),
        lease_ms: 1_000,
        timeout_ms: None,
    };
    Answer::Leases { leases: Leases { leases: vec![leased], waited_ms: 0 }, at: Position(token.0 + 1) }
}

impl Wire {
    fn new(now: Duration) -> Self {
        let leader = Hello { window_bytes: WINDOW, asks_max: 64, ..Hello::new("a", None) };
        Self {
            asker: Asker::new(Hello::new("b", None), now),
            answerer: Answerer::new(leader, now),
            to_leader: VecDeque::new(),
            to_follower: VecDeque::new(),
            arrived: Vec::new(),
            parked: Vec::new(),
            sent: BTreeSet::new(),
            tokens: BTreeMap::new(),
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let now = Duration::from_secs(1);
        Self {
            rng: Rng(seed),
            now,
            wire: Wire::new(now),
            next: 0,
            wanted: VecDeque::new(),
            cancelled: BTreeSet::new(),
            decided: BTreeSet::new(),
            heard: BTreeSet::new(),
            given_back: BTreeSet::new(),
            leases_answered: BTreeSet::new(),
            spoilt: BTreeSet::new(),
            unread: 0,
            withdrawn: 0,
            cuts: 0,
            farewells: 0,
            resent: 0,
            late: 0,
        }
    }

    fn run(mut self) -> Self {
        for _ in 0..STEPS {
            self.step();
        }
        self.rest();
        self
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..15 => {
                self.next += 1;
                self.wanted.push_back(Token(self.next));
            }
            15..19 => self.cancel_one(),
            19..35 => self.take_one(),
            35..45 => self.answer_one(),
            45..46 => self.cut(),
            46..47 => {
                self.farewells += 1;
                self.wire.answerer.go_away();
            }
            47..50 => self.pass_time(),
            _ => self.move_bytes(),
        }
        self.ask_wanted();
        self.check();
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(500);
        for id in self.wire.asker.overdue(self.now) {
            assert!(!self.wire.sent.contains(&id.0), "{id:?} was sent");
            self.too_late(id);
        }
    }

    fn too_late(&mut self, id: AskId) {
        self.late += 1;
        self.not_taken(id);
    }

    fn ask_wanted(&mut self) {
        while self.wire.asker.is_open()
            && let Some(token) = self.wanted.front().copied()
        {
            match self.wire.asker.ask(&question(token), self.now) {
                Ok(id) => {
                    self.wanted.pop_front();
                    self.wire.tokens.insert(id, token);
                }
                Err(NotAsked::Full | NotAsked::GoneAway) => break,
                Err(NotAsked::TooLarge | NotAsked::Local) => panic!("{token:?} may be sent and fits"),
            }
        }
    }

    fn cancel_one(&mut self) {
        let awaited = self.wire.tokens.iter().filter(|(_, token)| !self.heard.contains(token));
        let awaited: Vec<_> = awaited.map(|(id, token)| (*id, *token)).collect();
        if awaited.is_empty() {
            return;
        }
        let (id, token) = awaited[self.rng.below(awaited.len())];
        self.cancelled.insert(token);
        self.withdrawn += u32::from(!self.wire.sent.contains(&id.0));
        self.wire.asker.cancel(id);
    }

    /// The leader's loop takes an ask.
    fn take_one(&mut self) {
        if self.wire.arrived.is_empty() {
            return;
        }
        let at = self.rng.below(self.wire.arrived.len());
        let parked = self.wire.arrived.swap_remove(at);
        self.wire.answerer.taken(parked.id);
        self.wire.parked.push(parked);
    }

    fn answer_one(&mut self) {
        if self.wire.parked.is_empty() {
            return;
        }
        let at = self.rng.below(self.wire.parked.len());
        let Parked { id, token, is_lease } = self.wire.parked.swap_remove(at);
        let answer = if self.rng.one_in(20) {
            self.spoilt.insert(token);
            Answer::Attempt(1)
        } else {
            answer(token, &mut self.rng)
        };
        if is_lease && !self.spoilt.contains(&token) {
            self.leases_answered.insert(token);
        }
        self.wire.answerer.answer(id, Reply::Done(Ok(answer)), None);
    }

    /// Both ends put a little into the pipes and take a little out of them.
    fn move_bytes(&mut self) {
        let mut bytes = Vec::new();
        // Often there is no room for all, and messages wait in the outbox.
        let some = [0, 1, 200, 1 + self.rng.below(100_000)][self.rng.below(4)];
        self.wire.asker.send(&mut bytes, some);
        self.wire.sent.extend(asks_in(&bytes));
        self.wire.to_leader.extend(bytes.drain(..));
        self.wire.answerer.send(&mut bytes, some);
        self.wire.to_follower.extend(bytes);
        let most = if self.rng.one_in(3) { 7 } else { 300_000 };
        let to_leader = self.rng.below(most).min(self.wire.to_leader.len());
        let to_follower = self.rng.below(most).min(self.wire.to_follower.len());
        self.leader_receives(to_leader);
        self.follower_receives(to_follower);
        if self.wire.answerer.is_done() && self.wire.to_follower.is_empty() {
            self.cut();
        }
    }

    fn leader_receives(&mut self, bytes: usize) {
        let bytes: Vec<u8> = self.wire.to_leader.drain(..bytes).collect();
        let mut asked = Vec::new();
        self.wire.answerer.receive(&bytes, self.now, &mut asked).unwrap();
        for asked in asked {
            match asked {
                Asked::Ready(_) => {}
                Asked::Ask(id, question) => {
                    let token = token(&question);
                    assert!(self.decided.insert(token), "{token:?} is decided twice");
                    self.wire.arrived.push(Parked { id, token, is_lease: is_lease(token) });
                }
                Asked::Cancel(id) => {
                    self.wire.arrived.retain(|parked| parked.id != id);
                    self.wire.parked.retain(|parked| parked.id != id);
                    self.wire.answerer.answer(id, Reply::Cancelled, None);
                }
                Asked::GiveBack(abandoned) => {
                    let [(task, _)] = abandoned.leases[..] else { panic!("one lease") };
                    assert_eq!(abandoned.at, Position(task.0 + 1));
                    assert!(self.given_back.insert(Token(task.0)), "given back twice");
                }
            }
        }
    }

    fn follower_receives(&mut self, bytes: usize) {
        let bytes: Vec<u8> = self.wire.to_follower.drain(..bytes).collect();
        let mut heard = Vec::new();
        self.wire.asker.receive(&bytes, self.now, &mut heard).unwrap();
        for heard in heard {
            match heard {
                Heard::Ready(_) => {}
                Heard::Answer(id, Answered { reply: Reply::Done(Err(Error::Overloaded)), .. }) => {
                    self.too_late(id);
                }
                Heard::Answer(id, answered) => self.hear(id, &answered),
                Heard::Unreadable(id) => {
                    let token = self.wire.tokens[&id];
                    assert!(self.spoilt.contains(&token) && !self.cancelled.contains(&token));
                    assert!(self.heard.insert(token), "{token:?} was answered twice");
                    self.unread += 1;
                }
                Heard::GoAway(ids) => ids.into_iter().for_each(|id| self.not_taken(id)),
            }
        }
    }

    fn hear(&mut self, id: AskId, answered: &Answered) {
        let token = self.wire.tokens[&id];
        let Reply::Done(Ok(answer)) = &answered.reply else { panic!("{token:?} heard {answered:?}") };
        let said = if let Answer::Leases { leases, .. } = answer {
            leases.leases[0].task_id.0
        } else if let Answer::Outcome { outcome, .. } = answer {
            outcome.id.0
        } else {
            panic!("{token:?} heard {answer:?}")
        };
        assert_eq!(token, Token(said), "the answer is to another ask");
        assert!(self.decided.contains(&token), "{token:?} was answered and not decided");
        assert!(!self.cancelled.contains(&token), "nobody waits for {token:?}");
        assert!(self.heard.insert(token), "{token:?} was answered twice");
    }

    fn not_taken(&mut self, id: AskId) {
        let token = self.wire.tokens.remove(&id).expect("it was asked");
        assert!(!self.decided.contains(&token), "{token:?} was decided");
        self.resent += 1;
        self.wanted.push_back(token);
    }

    /// The connection is lost, with all that is in the pipes; the leader's loop drops what it has of it.
    fn cut(&mut self) {
        self.cuts += 1;
        let now = self.now;
        let lost = std::mem::replace(&mut self.wire, Wire::new(now));
        for (id, fate) in lost.asker.cut() {
            let token = lost.tokens[&id];
            let is_sent = lost.sent.contains(&id.0);
            assert_eq!(fate, if is_sent { Fate::Unknown } else { Fate::NotTaken }, "{token:?}");
            if fate == Fate::NotTaken {
                assert!(!self.decided.contains(&token), "{token:?} was decided");
                self.resent += 1;
                self.wanted.push_back(token);
            }
        }
    }

    fn check(&self) {
        let untaken = self.wire.asker.untaken_bytes();
        assert!(untaken <= WINDOW || untaken > LARGEST, "{untaken} bytes are not taken");
        assert!(self.wire.answerer.kept_bytes() <= WINDOW + LARGEST + 1_000);
        assert!(self.wire.asker.partial() <= LONG_ANSWERS_MAX);
        assert!(self.given_back.is_disjoint(&self.heard), "a lease that was taken is given back");
        assert!(self.given_back.is_subset(&self.leases_answered));
    }

    /// Without faults, everything that is asked is answered.
    fn rest(&mut self) {
        for _ in 0..100_000 {
            self.ask_wanted();
            self.take_one();
            self.answer_one();
            self.move_bytes();
            let wire = &self.wire;
            let is_quiet = wire.to_leader.is_empty() && wire.to_follower.is_empty();
            if is_quiet && self.wanted.is_empty() && wire.asker.open() == 0 && wire.parked.is_empty() {
                assert_eq!((wire.answerer.open(), wire.answerer.unsent_bytes()), (0, 0));
                assert_eq!(wire.asker.untaken_bytes(), 0, "the window leaks");
                return;
            }
        }
        panic!("{} asks are never answered", self.wire.asker.open());
    }
}

/// The numbers of the asks of which there are pieces among whole frames.
fn asks_in(mut frames: &[u8]) -> Vec<u64> {
    let mut asks = Vec::new();
    while !frames.is_empty() {
        let (head, rest) = frames.split_at(12);
        if head[0] == 2 {
            asks.push(u64::from_le_bytes(head[4..].try_into().unwrap()));
        }
        frames = &rest[usize::from(u16::from_le_bytes([head[2], head[3]]))..];
    }
    asks
}

#[test]
fn worlds_with_cuts_cancels_and_farewells_keep_the_rules() {
    let (mut heard, mut given_back, mut cuts, mut farewells, mut resent) = (0, 0, 0, 0, 0);
    let (mut unread, mut withdrawn, mut late) = (0, 0, 0);
    for seed in 0..60 {
        let world = World::new(seed).run();
        heard += world.heard.len();
        given_back += world.given_back.len();
        (unread, withdrawn) = (unread + world.unread, withdrawn + world.withdrawn);
        late += world.late;
        (cuts, farewells, resent) = (cuts + world.cuts, farewells + world.farewells, resent + world.resent);
    }
    assert!(heard > 3_000, "{heard}");
    assert!(unread > 100 && withdrawn > 100 && late > 100, "{unread} {withdrawn} {late}");
    assert!(
        given_back > 5 && cuts > 600 && farewells > 300 && resent > 100,
        "{given_back} {cuts} {farewells} {resent}"
    );
}

#[test]
fn the_same_seed_makes_the_same_world() {
    let (one, other) = (World::new(7).run(), World::new(7).run());
    assert_eq!(one.heard, other.heard);
    assert_eq!((one.cuts, one.resent, one.now), (other.cuts, other.resent, other.now));
}
