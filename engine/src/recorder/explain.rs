//! Explains why a request was batched, dropped or late, from what replay saw of it, in a few lines.
//! Filled by replay's sink, shown by `symphony replay --request`.

use super::record::{Millis, Named};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::selection::Finish;
use symphony_scheduler::model::{Dispatch, ModelEvent};
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, Ending, Request};

/// The request to explain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The request's id, unique among its frontend's.
    pub id: u64,
    /// The request's frontend; any, if none is named.
    pub frontend: Option<u32>,
}

impl Wanted {
    fn is(self, request: &Request) -> bool {
        request.id == self.id && self.frontend.is_none_or(|frontend| frontend == u32::from(request.frontend))
    }
}

/// The kind of event after which a queue decided something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    Request,
    Grant { free_at: Nanos },
    Timer,
    Stop,
}

impl From<ModelEvent<'_>> for Cause {
    fn from(event: ModelEvent<'_>) -> Cause {
        match event {
            ModelEvent::Grant(grant) => Cause::Grant { free_at: grant.free_at },
            ModelEvent::Timer => Cause::Timer,
            ModelEvent::Stop => Cause::Stop,
            ModelEvent::Enqueue(_)
            | ModelEvent::Cancel(_)
            | ModelEvent::Settle
            | ModelEvent::Set(_)
            | ModelEvent::Rescale(_)
            | ModelEvent::Delays(_)
            | ModelEvent::StartReserving => Cause::Request,
        }
    }
}

/// The batch that a request was in, by which the RankThread's recording has its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestBatch {
    /// The number of the batch.
    pub batch: u64,
    /// The deadline of the request's result.
    pub deadline: Nanos,
}

/// The explanation of the wanted request.
#[derive(Clone, Debug, Default)]
pub(super) struct Explanation {
    pub(super) wanted: Option<Wanted>,
    pub(super) lines: Vec<String>,
    pub(super) batches: Vec<RequestBatch>,
}

impl Explanation {
    fn about(&self, request: &Request) -> bool {
        self.wanted.is_some_and(|wanted| wanted.is(request))
    }

    fn note(&mut self, request: &Request, now: Nanos, text: String) {
        self.lines.push(format!("{}: at {}: {text}", Named(request), Millis(now.0)));
    }

    /// Notes that the request has come, and that `waiting` requests were there before it.
    pub(super) fn came(&mut self, request: &Request, now: Nanos, model: &str, waiting: usize) {
        if self.about(request) {
            let Request { arrival, deadline, .. } = request;
            let text = format!(
                "came to the queue of {model}, where {waiting} waited; taken in by its frontend at {}, to be \
                 finished by {}",
                Millis(arrival.0),
                Millis(deadline.0)
            );
            self.note(request, now, text);
        }
    }

    /// Notes that the request was waiting already when the recording's history begins.
    pub(super) fn waited(&mut self, request: &Request, now: Nanos, model: &str) {
        if self.about(request) {
            let text = format!(
                "waits in the queue of {model}, where this recording's history begins; to be finished by {}",
                Millis(request.deadline.0)
            );
            self.note(request, now, text);
        }
    }

    /// Notes that the request is in this batch. `ready` is the time at which the batch became
    /// schedulable, and its cause.
    pub(super) fn batched(
        &mut self,
        request: &Request,
        dispatch: Dispatch,
        batch: u64,
        size: usize,
        ready: Option<(Nanos, Cause)>,
    ) {
        if !self.about(request) {
            return;
        }
        let finish = dispatch.exec_at + dispatch.duration;
        let why = match ready {
            None => "the model's batch was schedulable before this history begins".to_owned(),
            Some((at, cause)) => {
                let cause = match cause {
                    Cause::Timer => "its frontrun had come: it could not wait for one more",
                    Cause::Request => "with the request that came then it could not grow any more in time",
                    Cause::Grant { .. } => "it was left when the batch before it was sent, its frontrun past",
                    Cause::Stop => "the engine stopped",
                };
                format!("its batch last changed as a schedulable one at {}, since {cause}", Millis(at.0))
            }
        };
        let margin = if finish <= request.deadline {
            format!("{} before", Millis((request.deadline - finish).0))
        } else {
            format!("{} after", Millis((finish - request.deadline).0))
        };
        let text = format!(
            "in batch {batch}, of {size}, to GPU {}: starts at {}, should finish at {}, {margin} its deadline; {why}; \
             the GPU was granted now",
            dispatch.gpu.0,
            Millis(dispatch.exec_at.0),
            Millis(finish.0)
        );
        self.note(request, dispatch.batched, text);
        self.batches.push(RequestBatch { batch, deadline: request.deadline });
    }

    /// Notes that the request ended without having run. `target` is the batch size that the model's
    /// rate called for.
    pub(super) fn ended(
        &mut self,
        request: &Request,
        ending: Ending,
        now: Nanos,
        cause: Cause,
        queue_config: &QueueConfig,
        target: usize,
    ) {
        if !self.about(request) {
            return;
        }
        let text = match ending {
            Ending::DroppedInQueue => why_dropped(request, now, cause, queue_config, target),
            Ending::Overloaded => "refused: its model's queue was full".to_owned(),
            Ending::Withdrawn => "ended: its client took it back".to_owned(),
            Ending::Stopped => "ended: the engine was stopped".to_owned(),
            other => format!("ended: {other:?}"),
        };
        self.note(request, now, text);
    }
}

fn why_dropped(
    request: &Request,
    now: Nanos,
    cause: Cause,
    queue_config: &QueueConfig,
    target: usize,
) -> String {
    let gpu_free_at = match cause {
        Cause::Grant { free_at } => free_at,
        _ => Nanos::ZERO,
    };
    let finish = Finish { terms: queue_config, now, gpu_free_at };
    let (deadline, alone) = (Millis(request.deadline.0), finish.at(1));
    if alone > request.deadline {
        return format!(
            "dropped: even alone it could finish at {} at the earliest; its deadline is {deadline}",
            Millis(alone.0)
        );
    }
    let wanted = if queue_config.drop == DropRule::Window { target } else { 1 };
    format!(
        "dropped: it kept the model from batches of {wanted}, which its rate calls for; one could finish at {} at \
         the earliest (alone: {}), its deadline is {deadline}, and those behind it can make one in time",
        Millis(finish.at(wanted).0),
        Millis(alone.0)
    )
}

/// Describes the batch's completion, in a line.
pub fn completed(of: RequestBatch, completion: Completion) -> String {
    let Completion { batch, started, finished, gpu, .. } = completion;
    if started == finished {
        return format!("batch {batch} was cancelled at {}: it could not start in time", Millis(finished.0));
    }
    let verdict = if finished <= of.deadline {
        format!("in time, by {}", Millis((of.deadline - finished).0))
    } else {
        format!("late by {}", Millis((finished - of.deadline).0))
    };
    format!(
        "batch {batch} ran on GPU {} from {} to {}: {verdict}",
        gpu.0,
        Millis(started.0),
        Millis(finished.0)
    )
}
