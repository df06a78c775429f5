//! The flight recorder: whatever the workload, a recording replays to the same decisions, from the
//! middle of its history as well; what was changed afterwards is found; what is no recording is
//! refused in words.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use symphony::recorder::replay::{Replayed, Wanted, replay};
use symphony::recorder::{ClusterConfig, ModelRecorder, RankRecorder, RecordConfig, RecordError};
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::policy::POLICIES;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, RankInput, RankState, Reservation};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, Ending, NO_DEADLINE, QueueId, Request};

/// How long before a GPU is free it is granted.
const AHEAD: Nanos = Nanos::from_micros(30);

/// Kinds of records, as the file has them in their short forms.
const END: u8 = 0x80 + 2;
const TURN: u8 = 0x80 + 3;
const GRANT: u8 = 0x80 + 17;
const TIMER: u8 = 0x80 + 18;
const CAME: u8 = 0x80 + 20;
const READY: u8 = 0x80 + 32;
const WITHDRAW: u8 = 0x80 + 33;
const REPORT: u8 = 0x80 + 34;
const COMPLETION: u8 = 0x80 + 35;
const MATCH: u8 = 0x80 + 36;
const DISPATCH: u8 = 0x80 + 48;
const DISPATCH_TIMES: u8 = 0x80 + 49;
const GRANTED: u8 = 0x80 + 64;
/// The kind of a record that is always in full.
const ENDED: u8 = 50;

/// A thread's worth of models and a matching, both recorded, on made-up time.
struct World {
    queues: Vec<ModelQueue>,
    models: ModelRecorder,
    rank: RankState,
    matching: RankRecorder,
    slo: Nanos,
    now: Nanos,
    a_turn: u64,
    hurry: Nanos,
    rng: Pcg64Mcg,
    out: Out,
    /// Models of the highest class; the queues after theirs are of others.
    highest: usize,
    /// True once these send reservations.
    reserving: bool,
    /// Completions under way, by when they come.
    completions: BTreeMap<(Nanos, u64), Completion>,
    sent: u64,
    /// Batches whose completions are known.
    placed: usize,
}

#[derive(Default)]
struct Out {
    messages: Vec<RankInput>,
    batches: Vec<(Dispatch, Vec<u64>)>,
    dropped: Vec<u64>,
}

impl ModelSink for Out {
    fn to_rank(&mut self, message: RankInput) {
        self.messages.push(message);
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let ids = requests.0.iter().chain(requests.1).map(|request| request.id).collect();
        self.batches.push((dispatch, ids));
    }

    fn end(&mut self, request: &Request, ending: Ending, _now: Nanos) {
        if ending == Ending::DroppedInQueue {
            self.dropped.push(request.id);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    seed: u64,
    models: usize,
    /// Queues of lower classes besides.
    lower: usize,
    gpus: usize,
    policy: usize,
    drop: DropRule,
    network: Network,
    /// The largest batch that is worthwhile.
    worthwhile: usize,
    /// Mean time between turns with requests.
    gap: Nanos,
    /// The most requests of such a turn.
    a_turn: u64,
    /// How much earlier than its SLO a request may be due: deadlines are then not in the order of
    /// arrivals.
    hurry: Nanos,
}

const SETTING: Setting = Setting {
    seed: 7,
    models: 3,
    lower: 0,
    gpus: 2,
    policy: 0,
    drop: DropRule::Window,
    network: Network { control: Nanos::ZERO, data_per_request: Nanos::ZERO, result: Nanos::ZERO },
    worthwhile: 24,
    gap: Nanos::from_micros(200),
    a_turn: 1,
    hurry: Nanos::from_millis(22),
};

impl World {
    fn new(folder: &Path, mib: usize, setting: Setting) -> World {
        let config = RecordConfig { folder: folder.to_owned(), mib };
        config.prepare().unwrap();
        let policy =
            POLICIES.iter().filter(|policy| policy.deferral().is_some()).nth(setting.policy).unwrap();
        let slo = Nanos::from_millis(30);
        let queues = setting.models + setting.lower;
        let class = |at: usize| {
            let lower = at.checked_sub(setting.models).map(|lower| 1 + lower % 3);
            Class::new(lower.unwrap_or(0) as u8).unwrap()
        };
        let classes: Vec<Class> = (0..queues).map(class).collect();
        let profile = Profile::linear(Nanos::from_micros(400), Nanos::from_millis(3), 24).unwrap();
        let profile = profile.worthwhile_up_to(setting.worthwhile);
        let terms: Vec<QueueConfig> = (0..queues as u32)
            .map(|queue| QueueConfig {
                queue: QueueId(queue),
                profile: profile.clone(),
                slo,
                network: setting.network,
                drop: setting.drop,
                deferral: policy.deferral().unwrap(),
                slack: Slack { frontrun: Nanos::from_micros(10), latest: Nanos::from_micros(5) },
                gpus: setting.gpus,
            })
            .collect();
        let named = terms.iter().zip(&classes).map(|(terms, &class)| ("a model", class, terms));
        let models = ModelRecorder::create(&config, "model-0", named, 1 << 48).unwrap();
        let keep_late = setting.drop == DropRule::Fcfs;
        let cluster = ClusterConfig {
            gpus: setting.gpus,
            keep_late,
            completion_delay: setting.network.control,
            ahead: AHEAD,
            first_gpu: 0,
        };
        let of_all = if setting.lower > 0 { classes.as_slice() } else { &[] };
        let matching = RankRecorder::create(&config, "rank", queues, of_all, &[cluster]).unwrap();
        let rank =
            RankState::new(setting.gpus, queues, keep_late, setting.network.control).sending_ahead(AHEAD);
        let queue = |(terms, &class): (QueueConfig, &Class)| match class {
            Class::HIGHEST if terms.queue.0 % 4 == 3 => ModelQueue::new(terms, Nanos::ZERO).unexpected(),
            Class::HIGHEST => ModelQueue::new(terms, Nanos::ZERO),
            _ => ModelQueue::new(terms, Nanos::ZERO).below_others(),
        };
        World {
            queues: terms.into_iter().zip(&classes).map(queue).collect(),
            models,
            rank: if setting.lower > 0 { rank.among_classes(classes) } else { rank },
            highest: setting.models,
            reserving: false,
            matching,
            slo,
            now: Nanos::ZERO,
            a_turn: setting.a_turn,
            hurry: setting.hurry,
            rng: Pcg64Mcg::seed_from_u64(setting.seed),
            out: Out::default(),
            completions: BTreeMap::new(),
            sent: 0,
            placed: 0,
        }
    }

    /// Sends so many requests and does what follows.
    fn run(&mut self, requests: u64, gap: Nanos) {
        let until = self.sent + requests;
        while self.sent < until {
            let span = Nanos(self.rng.random_range(0..2 * gap.0));
            self.advance(span);
            let count = self.rng.random_range(1..=self.a_turn).min(until - self.sent);
            self.take_requests(count);
            self.settle();
            self.end_turn();
        }
    }

    /// Applies an event to the queue at `place`, recorded.
    fn apply(&mut self, place: usize, event: ModelEvent<'_>) -> bool {
        self.models.apply(place, &mut self.queues[place], self.now, event, &mut self.out)
    }

    fn end_turn(&mut self) {
        self.models.publish();
        self.matching.publish();
    }

    /// Requests come, and the models that they are for are settled, as a ModelThread does.
    fn take_requests(&mut self, count: u64) {
        let mut touched = Vec::new();
        for _ in 0..count {
            let place = self.rng.random_range(0..self.queues.len());
            let never = place >= self.highest && self.rng.random();
            let due = if never { NO_DEADLINE } else { self.slo };
            let request = Request {
                id: self.sent,
                arrival: self.now,
                deadline: self.now + due - Nanos(self.rng.random_range(0..=self.hurry.0)),
                queue: QueueId(place as u32),
                frontend: 3,
                ..Request::default()
            };
            self.sent += 1;
            let World { models, queues, now, out, .. } = self;
            let queue = &mut queues[place];
            let queued = models.apply(place, queue, *now, ModelEvent::Enqueue(&request), out);
            if queued && !touched.contains(&place) {
                touched.push(place);
            }
        }
        // Some client leaves.
        let place = self.rng.random_range(0..self.queues.len());
        let at = self.rng.random_range(0..8);
        let queue = &mut self.queues[place];
        let cancelled = queue.queued().nth(at).copied();
        if let Some(request) = cancelled {
            let event = ModelEvent::Cancel(&request);
            assert!(self.models.apply(place, queue, self.now, event, &mut self.out));
            touched.extend((!touched.contains(&place)).then_some(place));
        }
        for place in touched {
            self.apply(place, ModelEvent::Settle);
        }
        // Now and then the network's delays are measured anew.
        if self.rng.random_ratio(1, 16) {
            let mut delay = || Nanos(self.rng.random_range(0..=self.slo.0 / 8));
            let [control, data_per_request, result] = [delay(), Nanos(delay().0 / 64), delay()];
            self.apply(place, ModelEvent::Delays(Network { control, data_per_request, result }));
        }
    }

    /// Lets time pass, with the timers and completions that come due.
    fn advance(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let place = (0..self.queues.len()).min_by_key(|&place| self.queues[place].next_timer()).unwrap();
            let timer = self.queues[place].next_timer();
            let completion = self.completions.first_key_value().map_or(Nanos::MAX, |(&(at, _), _)| at);
            let due = timer.min(completion).min(self.rank.next_timer());
            self.end_turn();
            // As a loop does that takes 2 us a turn: a timer may ask to be called again at once.
            let turn = due.max(self.now + Nanos::from_micros(2));
            if turn > end {
                self.now = end;
                return;
            }
            self.now = turn;
            if due == timer {
                self.apply(place, ModelEvent::Timer);
            } else if due == completion {
                let (_, completion) = self.completions.pop_first().unwrap();
                self.out.messages.push(RankInput::Completion(completion));
            } else {
                self.match_waiting();
            }
            self.settle();
        }
    }

    fn settle(&mut self) {
        while !self.out.messages.is_empty() {
            for input in std::mem::take(&mut self.out.messages) {
                self.handle(input);
                if matches!(input, RankInput::Bounds { .. }) && !std::mem::replace(&mut self.reserving, true)
                {
                    self.start_reserving();
                }
            }
            self.match_waiting();
        }
    }

    fn handle(&mut self, input: RankInput) {
        self.matching.input(self.now, 0, input, std::iter::once(&self.rank));
        self.rank.handle(input);
    }

    /// Starts reservations, since the first queue of a lower class has sent its bounds.
    fn start_reserving(&mut self) {
        for place in 0..self.highest {
            self.apply(place, ModelEvent::StartReserving);
        }
        self.out.messages.push(RankInput::AllReserved);
    }

    fn match_waiting(&mut self) {
        let mut grants: Vec<Grant> = Vec::new();
        self.matching.matching(self.now, 0, std::iter::once(&self.rank));
        self.rank.on_timer(self.now, &mut |grant| grants.push(grant));
        grants.iter().for_each(|&grant| self.matching.granted(0, grant));
        for grant in grants {
            let place = grant.queue.0 as usize;
            self.apply(place, ModelEvent::Grant(grant));
        }
        self.send_batches();
    }

    fn send_batches(&mut self) {
        for (dispatch, _) in &self.out.batches[self.placed..] {
            let batch = (1 << 48) + self.placed as u64;
            self.placed += 1;
            let Dispatch { queue, gpu, exec_at, duration, .. } = *dispatch;
            let model = queue.only_model();
            let finished = exec_at + duration + Nanos(self.rng.random_range(0..300_000));
            let completion = Completion { batch, started: exec_at, finished, model, gpu };
            self.completions.insert((finished, batch), completion);
        }
    }
}

fn same(path: &Path) -> Replayed {
    let replayed = replay(path, None).unwrap_or_else(|error| panic!("{error}"));
    if let Some(difference) = &replayed.difference {
        panic!("{}: {difference}", path.display());
    }
    replayed
}

fn files(folder: &Path) -> [PathBuf; 2] {
    ["model-0.symrec", "rank.symrec"].map(|name| folder.join(name))
}

fn settings() -> impl Strategy<Value = Setting> {
    let network = (0u64..1_000, 0u64..100).prop_map(|(control, data)| Network {
        control: Nanos::from_micros(control),
        data_per_request: Nanos::from_micros(data),
        result: Nanos::ZERO,
    });
    let policies = POLICIES.iter().filter(|policy| policy.deferral().is_some()).count();
    let drop = prop::sample::select(DropRule::ALL.map(|rule| rule.0).to_vec());
    let requests = (20u64..3_000, 1u64..40, prop::sample::select(vec![0, 1, 22_000]));
    let models = (1usize..8, prop::sample::select(vec![0, 0, 1, 3, 6]));
    let worthwhile = prop::sample::select(vec![24usize, 24, 6, 1]);
    (any::<u64>(), models, 1usize..8, 0..policies, drop, (network, worthwhile), requests).prop_map(
        |(seed, (models, lower), gpus, policy, drop, (network, worthwhile), (gap, a_turn, hurry))| Setting {
            seed,
            models,
            lower,
            gpus,
            policy,
            drop,
            network,
            worthwhile,
            gap: Nanos::from_micros(gap),
            a_turn,
            hurry: Nanos::from_micros(hurry),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn any_workload_replays_to_the_same_decisions(setting in settings(), requests in 1u64..3_000) {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::new(folder.path(), 4, setting);
        world.run(requests, setting.gap);
        let [models, rank] = files(folder.path());
        let replayed = same(&models);
        prop_assert_eq!(replayed.requests, requests);
        // A few requests may all still be held back.
        prop_assert!(replayed.decisions > 0 || requests < 1_000);
        same(&rank);
    }

    #[test]
    fn history_replays_from_its_middle_once_the_ring_has_turned(setting in settings(), more in 0u64..30_000) {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::new(folder.path(), 4, setting);
        world.run(50_000 + more, setting.gap);
        let replayed = same(&files(folder.path())[0]);
        prop_assert!(replayed.requests > 0);
        same(&files(folder.path())[1]);
    }

    #[test]
    fn no_damage_makes_replay_panic(
        setting in settings(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        in_records in any::<bool>(),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut world = World::new(folder.path(), 4, setting);
        world.run(400, setting.gap);
        for path in files(folder.path()) {
            let mut bytes = std::fs::read(&path).unwrap();
            let from = if in_records { first_record(&bytes) } else { 0 };
            let to = (first_record(&bytes) + 32 * 2_000).min(bytes.len());
            for (at, flip) in &damage {
                bytes[from + at.index(to - from)] ^= flip;
            }
            if let Some(keep) = keep {
                bytes.truncate(keep.index(bytes.len()));
            }
            std::fs::write(&path, &bytes).unwrap();
            let _ = replay(&path, Some(Wanted { id: 3, frontend: None }));
        }
    }
}

/// Where a file's records begin.
fn first_record(bytes: &[u8]) -> usize {
    u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize
}

/// The bytes of each record of this kind, by words of 8 bytes.
fn places_of(bytes: &[u8], kind: u8) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut at = first_record(bytes);
    while bytes[at + 2] != 0 {
        let words = match bytes[at + 2] {
            END | TURN | TIMER | WITHDRAW | MATCH => 1,
            CAME => 1 + 4 * usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])),
            GRANT | READY | REPORT | DISPATCH_TIMES | GRANTED => 2,
            DISPATCH | COMPLETION => 3,
            _ => 4,
        };
        if bytes[at + 2] == kind {
            places.push(at..at + 8 * words);
        }
        at += 8 * words;
    }
    places
}

#[test]
fn a_segment_may_begin_within_a_turn() {
    let folder = tempfile::tempdir().unwrap();
    // DutyCycles so long that most segments begin in the middle of one, before some of its models
    // are settled.
    let setting = Setting {
        models: 7,
        gpus: 1,
        a_turn: 5_000,
        gap: Nanos::from_millis(3),
        hurry: Nanos::ZERO,
        ..SETTING
    };
    let mut world = World::new(folder.path(), 4, setting);
    world.run(400_000, setting.gap);
    let replayed = same(&files(folder.path())[0]);
    assert!(replayed.forgotten > 0 && replayed.states > 0, "{replayed:?}");
}

#[test]
fn a_ring_that_has_turned_has_forgotten_its_first_segments_and_checked_the_states_of_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path(), 4, SETTING);
    world.run(300_000, SETTING.gap);
    let replayed = same(&files(folder.path())[0]);
    assert!(replayed.forgotten > 0 && replayed.states > 0, "{replayed:?}");
    assert!(replayed.requests > 1_000 && replayed.requests < 300_000);
    let replayed = same(&files(folder.path())[1]);
    assert!(replayed.states > 0, "{replayed:?}");
}

#[test]
fn every_flipped_byte_of_a_decision_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut world =
        World::new(folder.path(), 4, Setting { gap: Nanos::from_micros(50), policy: 1, ..SETTING });
    world.run(5_000, Nanos::from_micros(50));
    let [models, rank] = files(folder.path());
    let kinds = [READY, REPORT, DISPATCH, DISPATCH_TIMES, ENDED].map(|kind| (&models, kind));
    for (path, kind) in kinds.into_iter().chain([(&rank, GRANTED)]) {
        let good = std::fs::read(path).unwrap();
        let places = places_of(&good, kind);
        assert!(places.len() > 10, "{} records of kind {kind}", places.len());
        let place = places[places.len() / 2].clone();
        let at = (place.start - first_record(&good)) / 8;
        for byte in place {
            let mut bad = good.clone();
            bad[byte] ^= 1;
            std::fs::write(path, &bad).unwrap();
            match replay(path, None) {
                Ok(replayed) => {
                    let difference = replayed.difference.expect("a changed decision is noticed");
                    assert_eq!(difference.record, at, "{difference}");
                }
                Err(RecordError::Corrupt(..)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        std::fs::write(path, &good).unwrap();
        same(path);
    }
}

#[test]
fn what_is_no_whole_recording_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path(), 4, SETTING);
    world.run(1_000, SETTING.gap);
    let path = &files(folder.path())[0];
    let good = std::fs::read(path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(path, bytes).unwrap();
        replay(path, None).unwrap_err().to_string()
    };
    assert!(refused(&good[..good.len() / 2]).contains("cut short"));
    assert!(refused(&good[..50]).contains("too short for a recording's header"));
    assert!(refused(b"").contains("too short for a recording's header"));
    assert!(refused(&[7; 5_000]).contains("does not begin as a recording does"));
    let mut newer = good.clone();
    newer[7] += 1;
    assert!(refused(&newer).contains(&format!("version {}", newer[7])));
    let mut garbled = good.clone();
    garbled[200] = b'!';
    assert!(refused(&garbled).contains("description is damaged"));
    assert!(replay(Path::new("/nowhere.symrec"), None).unwrap_err().to_string().contains("can't read"));
}

#[test]
fn a_turn_that_was_not_over_is_not_seen() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path(), 4, SETTING);
    world.run(1_000, SETTING.gap);
    let seen = same(&files(folder.path())[0]);
    // A process that dies here leaves an event without its head.
    let request = Request { id: 1, queue: QueueId(0), deadline: Nanos::MAX, ..Request::default() };
    let (queue, now) = (&mut world.queues[0], world.now + Nanos(1));
    assert!(world.models.apply(0, queue, now, ModelEvent::Enqueue(&request), &mut world.out));
    world.models.apply(0, queue, now, ModelEvent::Settle, &mut world.out);
    assert_eq!(same(&files(folder.path())[0]), seen);
    world.models.publish();
    assert_eq!(same(&files(folder.path())[0]).requests, seen.requests + 1);
}

#[test]
fn a_request_can_be_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::new(folder.path(), 4, Setting { gap: Nanos::from_micros(50), ..SETTING });
    world.run(3_000, Nanos::from_micros(50));
    let path = &files(folder.path())[0];
    let ask = |id| replay(path, Some(Wanted { id, frontend: Some(3) })).unwrap();
    let dropped = world.out.dropped[world.out.dropped.len() / 2];
    let explanation = ask(dropped).explanation.join("\n");
    assert!(
        explanation.contains("came to the queue of a model") && explanation.contains("dropped: "),
        "{explanation}"
    );
    let (dispatch, ids) = &world.out.batches[world.out.batches.len() / 2];
    let replayed = ask(ids[0]);
    let explanation = replayed.explanation.join("\n");
    assert!(explanation.contains(&format!("of {}, to GPU {}", ids.len(), dispatch.gpu.0)), "{explanation}");
    assert_eq!(replayed.batches.len(), 1);
    assert!(ask(1 << 60).explanation.is_empty());
    let other = replay(path, Some(Wanted { id: ids[0], frontend: Some(4) })).unwrap();
    assert!(other.explanation.is_empty());
    let ends = replay(&files(folder.path())[1], Some(Wanted { id: ids[0], frontend: None })).unwrap();
    assert!(ends.completions.iter().any(|completion| completion.batch == replayed.batches[0].batch));
}

#[test]
fn recordings_of_the_run_before_are_kept_once() {
    let folder = tempfile::tempdir().unwrap();
    drop(World::new(folder.path(), 4, SETTING));
    drop(World::new(folder.path(), 4, SETTING));
    assert!(folder.path().join("rank.symrec.old").is_file());
    assert!(folder.path().join("rank.symrec").is_file());
}

#[test]
fn a_size_that_holds_too_little_history_is_refused_with_the_least_that_does() {
    let folder = tempfile::tempdir().unwrap();
    let config = RecordConfig { folder: folder.path().to_owned(), mib: 1 };
    let cluster = ClusterConfig {
        gpus: limits::MAX_GPUS,
        keep_late: false,
        completion_delay: Nanos::ZERO,
        ahead: Nanos::ZERO,
        first_gpu: 0,
    };
    let class = |lane| Class::new((lane / limits::MAX_MODELS) as u8).unwrap();
    let classes: Vec<Class> = (0..limits::MAX_QUEUES).map(class).collect();
    let create = |config: &RecordConfig| {
        RankRecorder::create(config, "rank", limits::MAX_QUEUES, &classes, &[cluster])
    };
    let refused = create(&config).err().unwrap();
    let RecordError::TooSmall { least, .. } = refused else { panic!("{refused}") };
    let config = RecordConfig { folder: folder.path().to_owned(), mib: least };
    let mut recorder = create(&config).unwrap();
    let state = RankState::new(limits::MAX_GPUS, limits::MAX_QUEUES, false, Nanos::ZERO);
    let mut state = state.among_classes(classes.clone());
    // Everything in use, so that a segment begins with as much state as there can be.
    let mut grants = Vec::new();
    let mut handle = |now: Nanos, input: RankInput, grants: &mut Vec<Grant>| {
        recorder.input(now, 0, input, std::iter::once(&state));
        state.handle(input);
        recorder.matching(now, 0, std::iter::once(&state));
        state.on_timer(now, &mut |grant| grants.push(grant));
        for &grant in grants.iter() {
            recorder.granted(0, grant);
        }
        recorder.publish();
    };
    let offer = Offer { latest: Nanos(u64::MAX / 4), delay: Nanos(1), ..Offer::default() };
    for (lane, &class) in classes.iter().enumerate() {
        let queue = QueueId(lane as u32);
        if class > Class::HIGHEST {
            let bounds = BatchBounds { shortest: Nanos(1), longest: Nanos(2), patience: Nanos(3) };
            handle(Nanos(0), RankInput::Bounds { queue, bounds }, &mut grants);
            handle(Nanos(0), RankInput::Ready { queue, offer }, &mut grants);
        } else {
            let reservation = Reservation { at: Nanos(1), silent: true, every: Nanos(2) };
            handle(Nanos(0), RankInput::Reserve { queue, reservation }, &mut grants);
        }
    }
    for round in 0..20 * limits::MAX_GPUS as u64 {
        let queue = QueueId((round % limits::MAX_MODELS as u64) as u32);
        let now = Nanos(round * 1_000);
        handle(now, RankInput::Ready { queue, offer }, &mut grants);
        for Grant { queue, gpu, .. } in std::mem::take(&mut grants) {
            let report = GpuReport { queue, gpu, exec_at: Some(now), free_at: now + Nanos(1 << 40) };
            handle(now, RankInput::Report(report), &mut grants);
        }
    }
    let replayed = same(&folder.path().join("rank.symrec"));
    assert!(replayed.forgotten > 0 && replayed.inputs > 0, "{replayed:?}");
    assert_eq!(state.busy_gpus(), limits::MAX_GPUS);
}
