//! The scheduler's host: the queues, the matching and the frontends that a ModelThread, a
//! RankThread and API cores would own, and a remote backend for each host.

use super::super::dice::Dice;
use super::process::BackendPlan;
use super::{HostClock, MAX_BATCH, terms};
use crate::runtime::hosts::{RemoteBackend, RemoteSink};
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::policy::{POLICIES, by_name};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::{Grant, RankInput, RankState};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId, QueueId, Request, Response};
use symphony_transport::wire::HostRole;

/// The SLO of all models.
const SLO: Nanos = Nanos::from_millis(80);

/// The delay of a grant to a backend, and of an answer from there, that the scheduler allows for.
const DELAY: Nanos = Nanos::from_micros(400);

/// The most rows of a request.
const MOST_ROWS: usize = 3;

/// What became of the rows that were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RowCounts {
    /// Sent by a frontend.
    pub sent: u64,
    /// Answered with an output in time.
    pub good: u64,
    /// Answered with an output later.
    pub late: u64,
    /// Dropped from the queue or by a backend.
    pub dropped: u64,
    /// Failed, since some rows of the request were lost and others not.
    pub failed: u64,
    /// Queued again after their backend was lost, or had granted too few credits.
    pub again: u64,
}

impl RowCounts {
    /// Returns the number of rows that have ended.
    pub fn ended(&self) -> u64 {
        self.good + self.late + self.dropped + self.failed
    }
}

/// The frontends of the host: what was sent and has not ended.
#[derive(Default)]
struct Frontends {
    /// Whether each row has ended, by its slot.
    ended: Vec<bool>,
    counts: RowCounts,
    /// The first thing that does not hold.
    broken: Option<String>,
}

impl Frontends {
    fn end(&mut self, request: &Request, ending: Ending, finished: Nanos) {
        let slot: u64 = bytemuck::cast(request.slot);
        if std::mem::replace(&mut self.ended[slot as usize], true) {
            let what = format!("row {} of request {} was answered twice", request.row, request.id);
            self.broken.get_or_insert(what);
        }
        let counts = &mut self.counts;
        *match ending {
            Ending::Done if finished <= request.deadline + DELAY => &mut counts.good,
            Ending::Done => &mut counts.late,
            Ending::Failed => &mut counts.failed,
            _ => &mut counts.dropped,
        } += 1;
    }
}

/// What follows from the messages of a turn.
#[derive(Default)]
struct TurnOutputs {
    to_rank: Vec<RankInput>,
    again: Vec<Request>,
    frontends: Frontends,
}

impl RemoteSink for TurnOutputs {
    fn to_rank(&mut self, input: RankInput) {
        self.to_rank.push(input);
    }

    fn answer(&mut self, request: &Request, response: Response) {
        let ending = Ending::from_code(response.ending).unwrap_or(Ending::Failed);
        self.frontends.end(request, ending, response.finished);
    }

    fn again(&mut self, request: &Request) {
        self.frontends.counts.again += 1;
        self.again.push(*request);
    }
}

/// Where a queue's decisions go.
struct QueueSink<'a> {
    now: Nanos,
    outbox: &'a mut TurnOutputs,
    remotes: &'a mut [RemoteBackend],
    /// The backend of each GPU.
    backend_of: &'a [usize],
    batches: &'a mut u64,
}

impl ModelSink for QueueSink<'_> {
    fn to_rank(&mut self, message: RankInput) {
        self.outbox.to_rank.push(message);
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        *self.batches += 1;
        let size = requests.0.len() + requests.1.len();
        let header = dispatch.header(ModelId(dispatch.queue.0), *self.batches, size);
        let remote = &mut self.remotes[self.backend_of[header.gpu.0 as usize]];
        remote.dispatch(self.now, header, requests, self.outbox);
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.outbox.frontends.end(request, ending, now);
    }
}

/// The scheduler's host. See the module's description.
pub(super) struct SchedulerHost {
    pub(super) clock: HostClock,
    queues: Vec<ModelQueue>,
    rank: RankState,
    pub(super) remotes: Vec<RemoteBackend>,
    backend_of: Vec<usize>,
    outbox: TurnOutputs,
    batches: u64,
    requests: u64,
}

impl SchedulerHost {
    pub(super) fn new(
        plans: &[BackendPlan],
        clock: HostClock,
        dice: &mut Dice,
    ) -> Result<SchedulerHost, String> {
        let now = clock.read(Nanos::ZERO);
        let (models, gpus) = (plans[0].models, plans[0].all_gpus);
        let policy = if dice.chance(0.5) { "symphony-published" } else { POLICIES[0].name() };
        let policy =
            by_name(policy).and_then(|policy| policy.deferral()).ok_or("the policy does not defer")?;
        let mut queues = Vec::new();
        for model in 0..models as u32 {
            // Large batches run for longer than a link is down: they end on the next connection.
            let alpha = dice.time(Nanos::from_micros(50), Nanos::from_micros(500));
            let beta = dice.time(Nanos::from_millis(1), Nanos::from_millis(8));
            let profile = Profile::linear(alpha, beta, MAX_BATCH as usize);
            let terms = QueueConfig {
                queue: QueueId(model),
                profile: profile.map_err(|error| error.to_string())?,
                slo: SLO,
                network: Network { control: DELAY, result: DELAY, ..Network::default() },
                drop: DropRule::Window,
                deferral: policy,
                slack: Slack { frontrun: Nanos::from_millis(2), latest: Nanos::from_millis(1) },
                gpus,
            };
            queues.push(ModelQueue::new(terms, now));
        }
        let mut rank = RankState::new(gpus, models, false, Nanos::from_millis(4));
        // No GPU is there before its host has said so.
        for gpu in 0..gpus as u32 {
            rank.handle(RankInput::Presence { gpu: symphony_transport::message::GpuId(gpu), is_up: false });
        }
        let remote = |plan: &BackendPlan| {
            let terms = terms(HostRole::Scheduler, plan.number, (0, 0), 1, plan.credits);
            RemoteBackend::new(terms, plan.first_gpu, plan.gpus as usize, now)
        };
        let backend_of = plans.iter().enumerate();
        let backend_of =
            backend_of.flat_map(|(at, plan)| std::iter::repeat_n(at, plan.gpus as usize)).collect();
        let (remotes, outbox) = (plans.iter().map(remote).collect(), TurnOutputs::default());
        Ok(SchedulerHost { clock, queues, rank, remotes, backend_of, outbox, batches: 0, requests: 0 })
    }

    /// Returns what became of the rows so far.
    pub(super) fn counts(&self) -> RowCounts {
        self.outbox.frontends.counts
    }

    /// Returns the number of GPUs that are granted or have a batch.
    pub(super) fn busy_gpus(&self) -> usize {
        self.rank.busy_gpus()
    }

    /// Sends a request of a frontend to its queue.
    pub(super) fn ask(&mut self, time: Nanos, dice: &mut Dice) {
        let now = self.clock.read(time);
        let rows = if dice.chance(0.1) { dice.count(2, MOST_ROWS) } else { 1 };
        let queue = dice.below(self.queues.len());
        self.requests += 1;
        let mut requests = Vec::with_capacity(rows);
        for row in 0..rows {
            let ended = &mut self.outbox.frontends.ended;
            let slot = bytemuck::cast(ended.len() as u64);
            ended.push(false);
            requests.push(Request {
                id: self.requests,
                slot,
                arrival: now,
                deadline: now + SLO - DELAY,
                queue: QueueId(queue as u32),
                row: row as u16,
                rows_after: (rows - row - 1) as u16,
                ..Request::default()
            });
        }
        self.outbox.frontends.counts.sent += rows as u64;
        self.enqueue(now, &requests);
    }

    /// Enqueues the rows of requests of one queue.
    fn enqueue(&mut self, now: Nanos, rows: &[Request]) {
        let at = rows[0].queue.0 as usize;
        for row in rows {
            self.apply(now, at, ModelEvent::Enqueue(row));
        }
        self.apply(now, at, ModelEvent::Settle);
    }

    fn apply(&mut self, now: Nanos, at: usize, event: ModelEvent<'_>) {
        let SchedulerHost { queues, outbox, remotes, backend_of, batches, .. } = self;
        queues[at].apply(now, event, &mut QueueSink { now, outbox, remotes, backend_of, batches });
    }

    /// Takes in what has come from a backend. Returns true if the connection is over.
    pub(super) fn poll(&mut self, time: Nanos, backend: usize) -> bool {
        self.remotes[backend].poll(self.clock.read(time), &mut self.outbox)
    }

    /// Notes that the connection to a backend was closed, or could not be made.
    pub(super) fn disconnect(&mut self, time: Nanos, backend: usize) {
        self.remotes[backend].disconnect(self.clock.read(time), &mut self.outbox);
    }

    /// Runs one duty cycle of the queues and of the matching, in the order in which their threads
    /// poll their inputs.
    ///
    /// Errors: something that must hold does not.
    pub(super) fn turn(&mut self, time: Nanos) -> Result<(), String> {
        let now = self.clock.read(time);
        let again = std::mem::take(&mut self.outbox.again);
        again.chunk_by(|a, b| a.queue == b.queue).for_each(|rows| self.enqueue(now, rows));
        for at in 0..self.queues.len() {
            if self.queues[at].next_timer() <= now {
                self.apply(now, at, ModelEvent::Timer);
            }
        }
        let mut grants: Vec<Grant> = Vec::new();
        for input in std::mem::take(&mut self.outbox.to_rank) {
            self.rank.handle(input);
        }
        self.rank.on_timer(now, &mut |grant| grants.push(grant));
        for grant in grants {
            self.check_grant(grant)?;
            self.apply(now, grant.queue.0 as usize, ModelEvent::Grant(grant));
        }
        self.outbox.frontends.broken.take().map_or(Ok(()), Err)
    }

    /// Checks that a GPU is granted only while its host is there.
    fn check_grant(&self, grant: Grant) -> Result<(), String> {
        let backend = self.backend_of[grant.gpu.0 as usize];
        if self.remotes[backend].gpus_up() > 0 {
            return Ok(());
        }
        Err(format!("GPU {} of backend {backend} was granted, though that is gone", grant.gpu.0))
    }
}
