//! A ModelThread in virtual time: what it takes from its inputs, and when.

use super::*;
use crate::runtime::frontend::{Ask, Frontend, FrontendSetup, ModelInfo, Outcome, SlotState};
use crate::runtime::threads::changes::changes;
use crate::runtime::threads::link;
use crate::runtime::tuning::{TuningOrder, tuning_link};
use proptest::prelude::*;
use std::collections::VecDeque;
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::RankState;
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_scheduler::workload::Network;
use symphony_transport::message::ModelId;
use symphony_transport::ring::ring;

const MODELS: usize = 10;
const SLO: Nanos = Nanos::from_millis(5);

/// Returns the terms of a queue of these tests.
fn config(queue: u32, policy: &str) -> QueueConfig {
    QueueConfig {
        queue: QueueId(queue),
        profile: Profile::linear(Nanos::from_micros(1), Nanos::from_millis(1), 1_024).unwrap(),
        slo: SLO,
        network: Network::default(),
        drop: DropRule::Window,
        deferral: policy::by_name(policy).and_then(policy::Policy::deferral).unwrap(),
        slack: Slack::default(),
        gpus: 8,
    }
}

/// The cost of a duty cycle in these tests, and of each request and selection in it, in ns.
const CYCLE: u64 = 20;
const REQUEST: u64 = 10;
const SELECTION: u64 = 60;

/// Requests for the models in rotation: one each 50 ns, and in a burst one each 8 ns.
struct Steady {
    burst: std::ops::Range<Nanos>,
    next: Nanos,
    id: u64,
    /// The age of the oldest request of the current duty cycle.
    lag: Nanos,
}

impl Intake for Steady {
    fn next(&mut self, now: Nanos) -> Option<Request> {
        let arrival = self.next;
        if arrival > now {
            return None;
        }
        self.lag = self.lag.max(now - arrival);
        self.id += 1;
        self.next += Nanos(if self.burst.contains(&arrival) { 8 } else { 50 });
        let queue = QueueId(self.id as u32 % MODELS as u32);
        Some(Request { id: self.id, arrival, deadline: arrival + SLO, queue, ..Request::default() })
    }
}

struct CountedOutlets {
    batched: usize,
    dropped: usize,
}

impl Outlets for CountedOutlets {
    fn has_room(&mut self, _gpu: GpuId) -> bool {
        true
    }

    fn run(&mut self, _due: Nanos, batch: BatchHeader, _requests: (&[Request], &[Request])) {
        self.batched += batch.size as usize;
    }

    fn end(&mut self, _request: &Request, _ending: Ending, _now: Nanos) {
        self.dropped += 1;
    }
}

/// A ModelThread in virtual time, and a RankThread that has a GPU for every candidate.
struct World {
    thread: ModelThread<Steady, CountedOutlets>,
    messages: Consumer<RankMessage>,
    grants: Producer<GrantMessage>,
    now: Nanos,
}

impl World {
    fn new(burst: std::ops::Range<Nanos>) -> World {
        let (mut models, mut ranks) = link(&[MODELS], 1);
        let (models, mut rank) = (models.remove(0), ranks.remove(0));
        let outlets = CountedOutlets { batched: 0, dropped: 0 };
        let thread = ModelThread {
            queues: (0..MODELS as u32)
                .map(|model| ModelQueue::new(config(model, "symphony-published"), Nanos::ZERO))
                .collect(),
            index_of: (0..MODELS as u32).map(Some).collect(),
            agenda: Agenda::new(MODELS),
            requests: vec![Steady { burst, next: Nanos(1), id: 0, lag: Nanos::ZERO }],
            grants: models.grants,
            outbox: Outbox::new(0, vec![0; MODELS].into(), models.messages, outlets),
            monitor: ModelMonitor::unpublished(),
            changes: None,
            reservations: ReservationProgress::new(MODELS, 1),
            profiles: None,
            tuning: None,
            delays: None,
        };
        World { thread, messages: rank.messages.remove(0), grants: rank.grants.remove(0), now: Nanos::ZERO }
    }

    /// Runs a duty cycle, which takes the time that its work costs. Returns the age
    /// of the oldest request.
    fn cycle(&mut self) -> Nanos {
        let counted = |tally: &crate::runtime::counters::ModelTally| {
            (tally.requests, tally.settled + tally.timers + tally.grants)
        };
        let before = counted(&self.thread.monitor.counting.tally);
        self.thread.requests[0].lag = Nanos::ZERO;
        self.thread.poll(self.now);
        let after = counted(&self.thread.monitor.counting.tally);
        while let Some(message) = self.messages.pop() {
            if let RankInput::Ready { queue, .. } = message.input() {
                let (free_at, until) = (self.now, Nanos::MAX);
                let grant = Grant { queue, gpu: GpuId(0), free_at, until, again: true };
                self.grants.push(grant.into()).unwrap();
            }
        }
        self.now += Nanos(CYCLE + (after.0 - before.0) * REQUEST + (after.1 - before.1) * SELECTION);
        self.thread.requests[0].lag
    }

    /// Works until then. Returns the age of the oldest request of any duty cycle.
    fn work_until(&mut self, until: Nanos) -> Nanos {
        let mut worst = Nanos::ZERO;
        while self.now < until {
            worst = worst.max(self.cycle());
        }
        worst
    }
}

#[test]
fn models_are_selected_once_a_cycle_so_more_requests_are_taken_than_selections_could_be_made() {
    let mut world = World::new(Nanos::ZERO..Nanos::ZERO);
    let worst = world.work_until(Nanos::from_millis(50));
    assert!(worst < Nanos::from_micros(5), "{worst:?}");
    let tally = world.thread.monitor.counting.tally;
    assert!(tally.requests * (REQUEST + SELECTION) > world.now.0, "a selection for each would have fit, too");
    assert!(tally.settled < tally.requests && world.thread.outbox.outlets().dropped == 0, "{tally:?}");
}

#[test]
fn a_thread_that_fell_behind_catches_up_once_fewer_requests_come() {
    let burst = Nanos::from_millis(20)..Nanos::from_millis(21);
    let mut world = World::new(burst.clone());
    world.work_until(burst.start);
    let worst = world.work_until(burst.end);
    assert!(worst > Nanos::from_micros(100), "the burst was no overload: {worst:?}");
    world.work_until(burst.end + Nanos::from_millis(2));
    let worst = world.work_until(burst.end + Nanos::from_millis(30));
    assert!(worst < Nanos::from_micros(5), "{worst:?}");
    let CountedOutlets { batched, dropped } = *world.thread.outbox.outlets();
    let waiting: usize = world.thread.queues.iter().map(ModelQueue::len).sum();
    assert_eq!((batched + waiting) as u64, world.thread.monitor.counting.tally.requests);
    assert_eq!(dropped, 0);
}

/// Requests that the test puts there.
impl Intake for VecDeque<Request> {
    fn next(&mut self, _now: Nanos) -> Option<Request> {
        self.pop_front()
    }
}

/// More requests than any thread can take; their number so far.
impl Intake for u64 {
    fn next(&mut self, now: Nanos) -> Option<Request> {
        *self += 1;
        let queue = QueueId((*self % MODELS as u64) as u32);
        Some(Request { id: *self, arrival: now, deadline: now + SLO, queue, ..Request::default() })
    }
}

/// Returns a ModelThread of these queues and the other ends of its rings to and from a RankThread,
/// which hold `messages` messages.
fn thread<I>(
    queues: Vec<ModelQueue>,
    requests: Vec<I>,
    messages: usize,
) -> (ModelThread<I, CountedOutlets>, Consumer<RankMessage>, Producer<GrantMessage>) {
    let count = queues.len();
    let (to_rank, from_model) = ring(messages);
    let (to_model, from_rank) = ring(count + 1);
    let outlets = CountedOutlets { batched: 0, dropped: 0 };
    let thread = ModelThread {
        index_of: (0..count as u32).map(Some).collect(),
        agenda: Agenda::new(count),
        queues,
        requests,
        grants: vec![from_rank],
        outbox: Outbox::new(0, vec![0; count].into(), vec![to_rank], outlets),
        monitor: ModelMonitor::unpublished(),
        changes: None,
        reservations: ReservationProgress::new(count, 1),
        profiles: None,
        tuning: None,
        delays: None,
    };
    (thread, from_model, to_model)
}

proptest! {
    /// A queue says at most once that it has a candidate, and in the end whether it has one.
    #[test]
    fn requests_and_cancellations_cause_no_more_messages_than_there_is_room_for(
        room in 3usize..40,
        frontends in 1usize..6,
        // Of each: the frontend, the model, whether it is cancelled, and what happens then.
        steps in prop::collection::vec((0usize..5, 0u32..10, any::<bool>(), 0u8..20), 1..300),
    ) {
        let queue = |model| ModelQueue::new(config(model, "work-conserving"), Nanos::ZERO).above_others();
        let intakes = vec![VecDeque::<Request>::new(); frontends];
        let (mut thread, mut messages, _grants) =
            thread((0..MODELS as u32).map(queue).collect(), intakes, room);
        let (mut offered, mut sent, mut cancelled) = ([false; MODELS], 0, 0);
        let mut read = |messages: &mut Consumer<RankMessage>, most| {
            messages.drain(most, |message| match message.input() {
                RankInput::Ready { queue, .. } => offered[queue.0 as usize] = true,
                RankInput::Withdraw(queue) => offered[queue.0 as usize] = false,
                _ => {}
            })
        };
        for (id, (frontend, model, is_cancelled, then)) in steps.into_iter().enumerate() {
            let intake = &mut thread.requests[frontend % frontends];
            let (id, frontend, queue) = (id as u64, (frontend % frontends) as u8, QueueId(model));
            let request = Request { id, queue, frontend, deadline: SLO, ..Request::default() };
            intake.push_back(request);
            sent += 1;
            if is_cancelled {
                intake.push_back(Request { takes_back: 1, ..request });
                cancelled += 1;
            }
            if then < 4 {
                thread.poll(Nanos(1));
            }
            if then == 0 {
                read(&mut messages, room / 2);
            }
        }
        loop {
            let read = read(&mut messages, usize::MAX);
            if thread.poll(Nanos(1)) + read == 0 {
                break;
            }
        }
        let waiting: Vec<bool> = thread.queues.iter().map(|queue| !queue.is_empty()).collect();
        prop_assert_eq!(&offered[..], &waiting[..]);
        prop_assert_eq!(thread.monitor.counting.tally.requests, sent);
        prop_assert_eq!(thread.outbox.outlets().dropped, cancelled);
    }
}

#[test]
fn a_saturated_thread_serves_its_frontends_in_turn() {
    const FRONTENDS: usize = 13;
    let queue = |model| ModelQueue::new(config(model, "work-conserving"), Nanos::ZERO);
    for room in [4_096, 64] {
        let (mut thread, mut messages, _grants) =
            thread((0..MODELS as u32).map(queue).collect(), vec![0u64; FRONTENDS], room);
        for cycle in 1..=100 {
            thread.poll(Nanos(cycle));
            messages.drain(room, drop);
        }
        let (least, most) = (thread.requests.iter().min().unwrap(), thread.requests.iter().max().unwrap());
        assert!(*least > 0 && most - least <= limits::REQUESTS_PER_CYCLE as u64, "{:?}", thread.requests);
    }
}

#[test]
fn an_unloaded_model_leaves_no_reservation_behind() {
    let of_slot = || QueueIds::new(1);
    let queue = |class: Class| {
        let queue = ModelQueue::new(config(u32::from(class.number()), "work-conserving"), Nanos::ZERO);
        if class == Class::HIGHEST { queue } else { queue.below_others() }
    };
    let queues = QueueIds::classes().map(queue).collect();
    let (mut thread, mut messages, mut grants) = thread(queues, vec![VecDeque::new()], 64);
    (thread.index_of, thread.reservations) = (vec![Some(0)], ReservationProgress::new(1, 1));
    let (mut control, changes) = changes();
    thread.changes = Some(changes);
    let classes = of_slot().class_of_each();
    let mut rank = RankState::new(1, classes.len(), false, Nanos::ZERO).among_classes(classes);
    let mut read = |thread: &mut ModelThread<_, _>, now| {
        thread.poll(now);
        messages.drain(64, |message| rank.handle(message.input()));
        rank.saved_reservations().count()
    };
    for class in [1, 2] {
        let queue = of_slot().of(ModelId(0), Class::new(class).unwrap());
        thread.requests[0].push_back(Request { deadline: SLO, queue, ..Request::default() });
    }
    grants.push(GrantMessage::start_reserving()).unwrap();
    assert_eq!(read(&mut thread, Nanos(1)), 3);
    let vacant = QueueIds::classes().map(|class| {
        Some(ModelQueue::of_nothing(config(u32::from(class.number()), "work-conserving"), Nanos(1)))
    });
    let vacant: SlotQueues = vacant.collect::<Vec<_>>().try_into().ok().unwrap();
    control.send(0, Box::new(vacant)).ok().unwrap();
    assert_eq!(read(&mut thread, Nanos::from_millis(2)), 0);
}

#[test]
fn a_request_sent_after_a_threads_last_look_ends_at_its_frontend() {
    let model = ModelInfo { state: SlotState::Serving, slo: SLO, ..ModelInfo::vacant(ModelId(0), 0) };
    let setup = FrontendSetup::of_models(Arc::new([model]));
    let accepting = Arc::clone(&setup.accepting);
    let (mut frontend, peer) = Frontend::new(setup).unwrap();
    let queues = vec![ModelQueue::new(config(0, "work-conserving"), Nanos::ZERO)];
    let (mut thread, _messages, _grants) = thread(queues, peer.requests, 64);
    frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    thread.stop(Nanos(1));
    assert_eq!(thread.outbox.outlets().dropped, 1);
    // It read that requests are accepted just before that was taken back.
    let late = frontend.submit(&Ask { rows: 3, ..Ask::one(ModelId(0)) }, |_, _| ()).unwrap();
    frontend.cancel(late);
    accepting.store(false, std::sync::atomic::Ordering::Relaxed);
    let mut ended = Vec::new();
    for _ in 0..3 {
        frontend.poll(|ticket, answer| ended.push((ticket, answer.outcome, answer.rows)));
    }
    assert_eq!(ended, [(late, Outcome::Bad(Ending::Stopped), 3)]);
}

#[test]
fn a_rank_thread_without_room_does_not_keep_a_thread_from_ending_its_requests() {
    let model = ModelInfo { state: SlotState::Serving, slo: SLO, ..ModelInfo::vacant(ModelId(0), 0) };
    let (mut frontend, peer) = Frontend::new(FrontendSetup::of_models(Arc::new([model]))).unwrap();
    let queues = vec![ModelQueue::new(config(0, "work-conserving"), Nanos::ZERO)];
    let (mut thread, _messages, _grants) = thread(queues, peer.requests, 64);
    frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    assert!(thread.poll(Nanos(1)) > 0);
    while thread.outbox.ranks[0].write(RankInput::AllReserved.into()).is_ok() {}
    thread.stop(Nanos(2));
    assert_eq!(thread.outbox.outlets().dropped, 1);
}

#[test]
fn a_setting_reaches_all_queues_of_its_sub_cluster_a_few_at_a_time() {
    const QUEUES: usize = 2 * QUEUES_SET_PER_CYCLE + 10;
    let of = |queue| ModelQueue::new(config(queue as u32, "symphony"), Nanos::ZERO);
    let (mut thread, _messages, _grants) =
        thread((0..QUEUES).map(of).collect(), Vec::<u64>::new(), 4 * QUEUES);
    // Every tenth model is of another sub-cluster.
    let group_of: Arc<[u32]> = (0..QUEUES).map(|model| u32::from(model % 10 == 9)).collect();
    let (mut tuner, tuned) = tuning_link(2, Arc::clone(&group_of));
    thread.tune_by(tuned);
    let setting = RuleSetting { price: 0.0, ..RuleSetting::default() };
    assert!(tuner.order(TuningOrder::Set { group: 0, setting }));
    let mut set = 0;
    for cycle in 1.. {
        thread.poll(Nanos(cycle));
        let before = set;
        set = thread.queues.iter().filter(|queue| queue.setting() == setting).count();
        assert!(set - before <= QUEUES_SET_PER_CYCLE);
        if set == before {
            break;
        }
    }
    for (queue, group) in thread.queues.iter().zip(&*group_of) {
        assert_eq!(queue.setting() == setting, *group == 0);
    }
}

#[test]
fn the_arrivals_that_the_tuner_wants_are_sent_and_no_others() {
    let queue = |id| ModelQueue::new(config(id, "symphony"), Nanos::ZERO);
    let (mut thread, _messages, _grants) =
        thread((0..MODELS as u32).map(queue).collect(), vec![0u64], 4 * MODELS);
    let (mut tuner, tuned) = tuning_link(1, [0; MODELS].into());
    thread.tune_by(tuned);
    thread.poll(Nanos(1));
    assert!(tuner.next_arrival().is_none());
    assert!(tuner.order(TuningOrder::Sample { group: 0, count: 3 }));
    // It polls for orders once a millisecond, after it has taken requests.
    for millisecond in 1..5 {
        thread.poll(Nanos::from_millis(millisecond));
    }
    let sent: Vec<Nanos> = std::iter::from_fn(|| tuner.next_arrival()).map(|one| one.arrival).collect();
    assert_eq!(sent, vec![Nanos::from_millis(3); 3]);
}
