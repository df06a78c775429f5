//! The work of a RankThread for a batch: receiving the candidate, finding its GPU, receiving the
//! report of the batch that was sent and its completion. It has no work for a single request.

use super::{Operation, Repeat};
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, RankInput, RankState, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, GpuId, ModelId, QueueId};

/// The time between two batches.
const GAP: Nanos = Nanos::from_micros(1);

/// The number of models whose batches find idle GPUs.
const MODELS: usize = 1_024;

pub(super) fn operations() -> Vec<Operation> {
    let mut operations = Vec::new();
    for gpus in [16, 1_024, 65_536] {
        operations.push(Operation::new(
            format!("rank_idle_{gpus}_gpus"),
            "a batch of one of 1,024 models finds an idle GPU, half of which are busy",
            move || idle(RankState::new(gpus, MODELS, false, Nanos::ZERO), gpus),
        ));
        operations.push(Operation::new(
            format!("rank_idle_{gpus}_gpus_lower_waiting"),
            "the same, and a lower class waits in vain for what the models leave",
            move || idle(lower_waiting(gpus), gpus),
        ));
        for waiting in [16, 256, 4_096] {
            operations.push(Operation::new(
                format!("rank_match_{gpus}_gpus_{waiting}_waiting"),
                "a GPU becomes free, the most urgent of the waiting models gets it, and waits again",
                move || all_busy(gpus, waiting),
            ));
        }
    }
    operations
}

/// Makes the message of a candidate that is due.
fn ready(queue: QueueId, latest: Nanos) -> RankInput {
    RankInput::Ready { queue, offer: Offer { latest, ..Offer::default() } }
}

fn report(Grant { queue, gpu, .. }: Grant, exec_at: Nanos, free_at: Nanos) -> GpuReport {
    GpuReport { queue, gpu, exec_at: Some(exec_at), free_at }
}

fn completion(report: GpuReport) -> Completion {
    let GpuReport { queue, gpu, exec_at, free_at } = report;
    let model = queue.only_model();
    Completion { batch: 0, started: exec_at.unwrap_or(free_at), finished: free_at, model, gpu }
}

/// Makes a matching in which the batch of a lower class waits that would take a second: each model
/// has reserved a GPU until then for batch after batch.
fn lower_waiting(gpus: usize) -> RankState {
    let (lower, now) = (QueueId(MODELS as u32), Nanos::from_secs(1));
    let class = |queue| Class::new(u8::from(queue == MODELS)).unwrap_or_default();
    let state = RankState::new(gpus, MODELS + 1, false, Nanos::ZERO);
    let mut state = state.among_classes((0..=MODELS).map(class).collect());
    let mut take = |input: RankInput| input.apply(&mut state, now, &mut |_| ());
    take(RankInput::Bounds {
        queue: lower,
        bounds: BatchBounds { shortest: now, longest: now, patience: now },
    });
    for model in 0..MODELS as u32 {
        let reservation = Reservation { at: now, silent: false, every: Nanos::from_millis(1) };
        take(RankInput::Reserve { queue: QueueId(model), reservation });
    }
    take(RankInput::AllReserved);
    take(ready(lower, Nanos::MAX));
    state
}

/// Keeps half of the GPUs busy; one batch finishes and one starts at each [`GAP`].
fn idle(mut state: RankState, gpus: usize) -> Repeat {
    let duration = Nanos(GAP.0 * (gpus / 2) as u64);
    let mut running = std::collections::VecDeque::with_capacity(gpus);
    let mut now = Nanos::from_secs(1);
    let mut model = 0;
    Box::new(move |times| {
        for _ in 0..times {
            now += GAP;
            model = (model + 1) % MODELS;
            let mut given = None;
            let id = QueueId(model as u32);
            ready(id, now + Nanos::from_millis(1)).apply(&mut state, now, &mut |grant| given = Some(grant));
            let sent = report(given.expect("a GPU is idle"), now, now + duration);
            RankInput::Report(sent).apply(&mut state, now, &mut |_| ());
            running.push_back(sent);
            if running.front().is_some_and(|first: &GpuReport| first.free_at <= now) {
                let over = running.pop_front().expect("it was just looked at");
                RankInput::Completion(completion(over)).apply(&mut state, now, &mut |_| ());
            }
        }
    })
}

/// Keeps all GPUs busy while `waiting` models wait; one GPU becomes free at each [`GAP`].
fn all_busy(gpus: usize, waiting: usize) -> Repeat {
    let mut state = RankState::new(gpus, waiting, false, Nanos::ZERO);
    let mut now = Nanos::from_secs(1);
    let round = Nanos(GAP.0 * gpus as u64);
    let window = Nanos(GAP.0 * 2 * waiting as u64);
    for gpu in 0..gpus as u64 {
        let mut given = None;
        let queue = QueueId((gpu % waiting as u64) as u32);
        ready(queue, now + window).apply(&mut state, now, &mut |grant| given = Some(grant));
        let free_at = now + Nanos(GAP.0 * (gpu + 1));
        RankInput::Report(report(given.expect("all GPUs are idle"), now, free_at)).apply(
            &mut state,
            now,
            &mut |_| (),
        );
    }
    for model in 0..waiting as u32 {
        let latest = now + window + Nanos(u64::from(model));
        ready(QueueId(model), latest).apply(&mut state, now, &mut |_| ());
    }
    let mut gpu = 0;
    Box::new(move |times| {
        for _ in 0..times {
            now += GAP;
            let over = Completion {
                batch: 0,
                started: now - round,
                finished: now,
                model: ModelId(0),
                gpu: GpuId(gpu as u32),
            };
            let mut given = None;
            RankInput::Completion(over).apply(&mut state, now, &mut |grant| given = Some(grant));
            let grant = given.expect("a model waits");
            RankInput::Report(report(grant, now, now + round)).apply(&mut state, now, &mut |_| ());
            ready(grant.queue, now + window).apply(&mut state, now, &mut |_| ());
            gpu = (gpu + 1) % gpus;
        }
    })
}
