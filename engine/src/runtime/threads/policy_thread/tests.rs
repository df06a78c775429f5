//! A PolicyThread in virtual time, between generated requests and GPUs whose batches take other
//! times than was expected: each row ends once, whatever the policy.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use symphony_scheduler::policy::{self, Policy, PolicyOptions};
use symphony_scheduler::run_time::{Application, RunTimeHistogram, VaryingModel};
use symphony_scheduler::workload::{Workload, WorkloadModel};

const GPUS: usize = 3;
const FIRST_GPU: u32 = 5;
/// The model slots: two applications of the first model, and the second model.
const SLOTS: u32 = 3;
const SLO: Nanos = Nanos::from_millis(40);
const CYCLE: Nanos = Nanos::from_micros(100);

/// The number of a row among all of a run.
type Row = (u8, u64, u16);

/// The batches that a GPU has been sent, and since when the first of them runs.
#[derive(Clone, Default)]
struct WorldGpu {
    batches: VecDeque<(BatchHeader, Vec<Request>)>,
    since: Option<Nanos>,
}

/// What is around the thread.
#[derive(Default)]
struct World {
    arrivals: VecDeque<Request>,
    gpus: Vec<WorldGpu>,
    completed: VecDeque<Completion>,
    /// How often each row ended.
    ended: HashMap<Row, u32>,
    ran: u64,
    asked_for_room: u64,
}

impl World {
    fn end(&mut self, request: &Request) {
        *self.ended.entry((request.frontend, request.id, request.row)).or_default() += 1;
    }

    /// Starts and ends batches by `now`.
    fn advance(&mut self, now: Nanos) {
        for at in 0..self.gpus.len() {
            let WorldGpu { batches, since } = &mut self.gpus[at];
            let Some((batch, _)) = batches.front() else { continue };
            let batch = *batch;
            let started = *since.get_or_insert(now.max(batch.exec_at));
            let late = started > batch.latest;
            let takes = Nanos(batch.duration.0 / 2 + batch.duration.0 * (batch.batch % 4) / 3);
            let finished = if late { started } else { started + takes };
            if finished > now {
                continue;
            }
            let (_, requests) = batches.pop_front().unwrap();
            *since = None;
            self.ran += if late { 0 } else { requests.len() as u64 };
            let BatchHeader { batch, model, gpu, .. } = batch;
            self.completed.push_back(Completion { batch, started, finished, model, gpu });
            requests.iter().for_each(|request| self.end(request));
        }
    }
}

#[derive(Clone)]
struct Shared(Rc<RefCell<World>>);

impl Intake for Shared {
    fn next(&mut self, now: Nanos) -> Option<Request> {
        let mut world = self.0.borrow_mut();
        world.arrivals.pop_front_if(|request| request.arrival <= now)
    }
}

impl Completions for Shared {
    fn next(&mut self) -> Option<Completion> {
        self.0.borrow_mut().completed.pop_front()
    }
}

impl Outlets for Shared {
    fn has_room(&mut self, _: GpuId) -> bool {
        let mut world = self.0.borrow_mut();
        world.asked_for_room += 1;
        !world.asked_for_room.is_multiple_of(5)
    }

    fn run(&mut self, _due: Nanos, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let requests = [requests.0, requests.1].concat();
        assert_eq!((batch.size as usize, requests.is_empty()), (requests.len(), false));
        let is_of = |queue: QueueId| (queue.0 % SLOTS == 2) == (batch.model.0 == 2);
        assert!(requests.iter().all(|request| is_of(request.queue)), "{batch:?} {requests:?}");
        let of_slot = |request: &&Request| request.queue.0 % SLOTS == batch.model.0;
        assert!(requests.iter().any(|request| of_slot(&request)), "none is of the slot that runs");
        let longest = requests.iter().map(|request| request.queue.0 % SLOTS).max().unwrap();
        assert_eq!(batch.duration, profile_of(longest).latency(requests.len()), "of the slowest of its own");
        let mut world = self.0.borrow_mut();
        let WorldGpu { batches, .. } = &mut world.gpus[(batch.gpu.0 - FIRST_GPU) as usize];
        batches.push_back((batch, requests));
        assert!(batches.len() <= limits::MAX_OUTSTANDING_BATCHES);
    }

    fn end(&mut self, request: &Request, _: Ending, _: Nanos) {
        self.0.borrow_mut().end(request);
    }
}

fn workload() -> Workload {
    let profile = Profile::linear(Nanos::from_micros(500), Nanos::from_millis(2), 16).unwrap();
    let application = |ms| Application {
        share: 1.0,
        run_times: RunTimeHistogram::log_normal(ms, 0.5).unwrap(),
        costs: None,
    };
    let varying = VaryingModel {
        fixed: Nanos::from_millis(2),
        per_request: 1.0,
        applications: [application(0.5), application(2.0)].into(),
    };
    let model = WorkloadModel::new("plain", profile, SLO);
    Workload::of_models(GPUS, 0.0, vec![WorkloadModel { varying: Some(varying), ..model.clone() }, model])
}

/// Returns what batches of a slot take: the more, the later it is.
fn profile_of(slot: u32) -> Profile {
    Profile::linear(Nanos::from_micros(500 * (u64::from(slot) + 1)), Nanos::from_millis(2), 16).unwrap()
}

fn thread(policy: &dyn Policy, world: &Shared) -> PolicyThread<Shared, Shared, Shared> {
    let slots = |of: &[u32]| PolicyModel {
        slots: of.iter().map(|&slot| (ModelId(slot), profile_of(slot))).collect(),
    };
    let scheduler = policy.scheduler(&workload(), &PolicyOptions::default());
    let queue =
        |model, application| Some(PolicyQueue { cluster: 0, model: ModelId(model), application, slo: SLO });
    let of_class = [queue(0, 0), queue(0, 1), queue(1, 0)];
    PolicyThread {
        clusters: vec![PolicyCluster::new(scheduler, vec![slots(&[0, 1]), slots(&[2])], FIRST_GPU, GPUS)],
        queues: of_class.repeat(Class::COUNT),
        cluster_of: [0; SLOTS as usize].into(),
        requests: vec![world.clone()],
        completions: vec![world.clone()],
        outbox: PolicyOutbox::new(world.clone()),
        counting: PolicyCounting { models: Counting::unpublished(), rank: Counting::unpublished() },
        learned: (Arc::default(), Nanos::ZERO),
    }
}

/// The names of the policies that schedule as a whole.
fn whole() -> Vec<&'static str> {
    let deferring = policy::deferring();
    policy::served().into_iter().filter(|name| !deferring.contains(name)).collect()
}

/// Returns requests of one to three rows with these gaps.
fn arrivals(gaps: &[(u64, u32, u16)]) -> VecDeque<Request> {
    let mut arrival = Nanos::ZERO;
    let rows = gaps.iter().enumerate().flat_map(|(id, &(gap, queue, rows))| {
        arrival += Nanos::from_micros(gap);
        let first = Request {
            id: id as u64 / 2,
            frontend: (id % 2) as u8,
            arrival,
            deadline: if gap == 7 { NO_DEADLINE } else { arrival + SLO },
            queue: QueueId(queue),
            ..Request::default()
        };
        (0..rows).map(move |row| Request { row, rows_after: rows - 1 - row, ..first })
    });
    rows.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn each_row_ends_once_under_every_policy_that_schedules_as_a_whole(
        name in proptest::sample::select(whole()),
        gaps in prop::collection::vec((0u64..1_000, 0..SLOTS * Class::COUNT as u32, 1u16..4), 50..400),
        stopped_after in 0u64..400,
    ) {
        let world = Shared(Rc::default());
        let arrivals = arrivals(&gaps);
        let (rows, last) = (arrivals.len(), arrivals.back().unwrap().arrival);
        *world.0.borrow_mut() =
            World { arrivals, gpus: vec![WorldGpu::default(); GPUS], ..World::default() };
        let mut thread = thread(policy::by_name(name).unwrap(), &world);
        let mut now = Nanos::ZERO;
        let end = last + Nanos::from_millis(stopped_after);
        while now < end {
            now += CYCLE;
            world.0.borrow_mut().advance(now);
            thread.poll(now);
        }
        world.0.borrow_mut().arrivals.iter_mut().for_each(|request| request.arrival = Nanos::ZERO);
        thread.stop(now);
        for _ in 0..limits::MAX_OUTSTANDING_BATCHES {
            now += SLO;
            world.0.borrow_mut().advance(now);
            now += SLO;
            world.0.borrow_mut().advance(now);
        }
        let world = world.0.borrow();
        prop_assert_eq!(world.ended.len(), rows);
        prop_assert!(world.ended.values().all(|&times| times == 1), "{}: {:?}", name, world.ended);
        prop_assert!(stopped_after < 100 || world.ran > 0, "{} ran nothing", name);
    }
}
