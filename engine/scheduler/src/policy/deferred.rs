//! The scheduler of every deferring policy on one thread: a [`ModelQueue`] per model and one
//! [`RankState`], wired to each other without rings or clocks. The pinned threads of
//! the crate `symphony` run the same two parts on cores of their own; here they meet at one virtual
//! instant, so a decision takes no time.

use super::interface::{Decisions, Scheduler};
use crate::deferral::{Deferral, QueueConfig, Slack};
use crate::drop_rule::DropRule;
use crate::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use crate::rank::min_tree::MinTree;
use crate::rank::{Grant, RankInput, RankState};
use crate::rule_setting::RuleSetting;
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, Ending, GpuId, ModelId, QueueId, Request};

/// How many times the GPUs that there are have to be asked for where a pool counts as overloaded:
/// under load batches become larger than the rates call for.
const OVERLOADED: f64 = 1.2;

/// Multiples of it, less their whole parts, are spread evenly over 0 to 1, however many there are.
const GOLDEN_SECTION: f64 = 0.618_033_988_749_895;

/// The scheduler of a deferring policy.
pub struct Deferred {
    models: Vec<ModelQueue>,
    /// The time of each model's next timer.
    timers: MinTree,
    rank: RankState,
    /// Grants made and not yet delivered to their models.
    grants: Vec<Grant>,
    /// Messages of models that the RankThread has not handled yet.
    words: Vec<RankInput>,
    batches: u64,
}

impl Deferred {
    /// A scheduler for the models and GPUs of `workload`, on a clock that starts at zero.
    pub fn new(
        workload: &Workload,
        drop: DropRule,
        deferral: &'static dyn Deferral,
        setting: RuleSetting,
    ) -> Deferred {
        let has_classes = workload.has_classes();
        let models = workload
            .models
            .iter()
            .enumerate()
            .map(|(index, model)| QueueConfig {
                queue: QueueId(index as u32),
                profile: model.profile.clone(),
                slo: model.slo,
                network: workload.network,
                drop,
                deferral,
                slack: Slack::default(),
                gpus: workload.gpus,
            })
            .map(|terms| {
                let class = workload.models[terms.queue.0 as usize].class;
                let queue = ModelQueue::new(terms, Nanos::ZERO).with_setting(setting);
                match has_classes {
                    false => queue,
                    true if class == Class::HIGHEST => queue.above_others(),
                    true => queue.below_others(),
                }
            })
            .collect::<Vec<_>>();
        let mut rank =
            RankState::new(workload.gpus, models.len(), drop == DropRule::Fcfs, workload.network.control);
        if has_classes {
            rank = rank.among_classes(workload.models.iter().map(|model| model.class).collect());
            for queue in models.iter().filter(|queue| queue.has_classes_below()) {
                let reservation = queue.reservation();
                rank.handle(RankInput::Reserve { queue: queue.config().queue, reservation });
            }
            rank.handle(RankInput::AllReserved);
        }
        Deferred {
            timers: MinTree::new(models.len()),
            rank,
            models,
            grants: Vec::new(),
            words: Vec::new(),
            batches: 0,
        }
    }

    /// Has every model go on with this setting.
    pub fn set(&mut self, now: Nanos, setting: RuleSetting, out: &mut dyn Decisions) {
        for queue in 0..self.models.len() as u32 {
            self.act(now, QueueId(queue), out, |queue, outbox| {
                queue.apply(now, ModelEvent::Set(setting), outbox);
            });
        }
    }

    /// Goes on as if requests had come at these rates until now: requests per second, of each
    /// model. For a scheduler that has done nothing yet.
    ///
    /// If `amid`, they have really come: where they ask more of the GPUs than those can do, all run
    /// batches, whose completions are returned.
    pub fn expect(&mut self, now: Nanos, rates: &[f64], amid: bool) -> Vec<Completion> {
        let mut demands = Vec::with_capacity(rates.len());
        let mut gpus = 0.0;
        for (queue, &rate_rps) in self.models.iter_mut().zip(rates) {
            queue.expect(now, rate_rps);
            let target = queue.target();
            let run = queue.config().profile.latency(target);
            gpus += rate_rps * run.as_secs_f64() / target as f64;
            demands.push((gpus, run));
        }
        self.rank.expect(now, gpus);
        let overloaded = gpus >= OVERLOADED * self.rank.gpus() as f64;
        if amid && overloaded { self.occupy(now, &demands) } else { Vec::new() }
    }

    /// Has each GPU run a batch, of the models in proportion to the GPUs that they ask for. These
    /// batches end evenly over what they take. `demands` has what one of each model takes, behind
    /// the GPUs that it and those before it ask for.
    fn occupy(&mut self, now: Nanos, demands: &[(f64, Nanos)]) -> Vec<Completion> {
        let count = self.rank.gpus();
        let asked = demands.last().map_or(0.0, |last| last.0);
        let run = |index: usize| {
            let at = (index as f64 + 0.5) / count as f64 * asked;
            let model = demands.partition_point(|demand| demand.0 <= at).min(demands.len() - 1);
            let left = (index as f64 * GOLDEN_SECTION + 0.5) % 1.0;
            let finished = now + Nanos((demands[model].1.0 as f64 * left) as u64);
            let gpu = GpuId(index as u32);
            self.rank.occupy(gpu, now, finished);
            Completion { batch: index as u64, started: now, finished, model: ModelId(model as u32), gpu }
        };
        (0..count).map(run).collect()
    }

    /// Lets one model act, then everything that follows from it.
    fn act(
        &mut self,
        now: Nanos,
        queue: QueueId,
        out: &mut dyn Decisions,
        event: impl FnOnce(&mut ModelQueue, &mut DecisionSink<'_>),
    ) {
        self.act_alone(queue, out, event);
        self.settle(now, out);
    }

    fn act_alone(
        &mut self,
        queue: QueueId,
        out: &mut dyn Decisions,
        event: impl FnOnce(&mut ModelQueue, &mut DecisionSink<'_>),
    ) {
        let at = queue.0 as usize;
        let mut outbox = DecisionSink { words: &mut self.words, batches: &mut self.batches, out };
        event(&mut self.models[at], &mut outbox);
        self.timers.set(at, self.models[at].next_timer());
    }

    /// Delivers messages to the RankThread and grants to the models until there are none left.
    fn settle(&mut self, now: Nanos, out: &mut dyn Decisions) {
        loop {
            let grants = &mut self.grants;
            let mut grant = |given: Grant| grants.push(given);
            for word in self.words.drain(..) {
                word.apply(&mut self.rank, now, &mut grant);
            }
            let Some(granted) = self.grants.pop() else { return };
            self.act_alone(granted.queue, out, |queue, outbox| {
                queue.apply(now, ModelEvent::Grant(granted), outbox);
            });
        }
    }
}

impl Scheduler for Deferred {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        self.act(now, request.queue, out, |queue, outbox| queue.apply_request(now, &request, outbox));
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        let grants = &mut self.grants;
        RankInput::Completion(completion).apply(&mut self.rank, now, &mut |grant| grants.push(grant));
        self.settle(now, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while let Some((_, queue)) = self.timers.min().filter(|&(due, _)| due <= now) {
            self.act(now, QueueId(queue as u32), out, |queue, outbox| {
                queue.apply(now, ModelEvent::Timer, outbox);
            });
        }
        if self.rank.next_timer() <= now {
            let grants = &mut self.grants;
            self.rank.on_timer(now, &mut |grant| grants.push(grant));
            self.settle(now, out);
        }
    }

    fn next_timer(&self) -> Nanos {
        self.timers.min_key().min(self.rank.next_timer())
    }
}

/// The sink of a model's decisions: keeps messages for the RankThread and passes on the rest.
struct DecisionSink<'a> {
    words: &'a mut Vec<RankInput>,
    batches: &'a mut u64,
    out: &'a mut dyn Decisions,
}

impl ModelSink for DecisionSink<'_> {
    fn to_rank(&mut self, message: RankInput) {
        self.words.push(message);
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let header =
            dispatch.header(dispatch.queue.only_model(), *self.batches, requests.0.len() + requests.1.len());
        *self.batches += 1;
        self.out.run(header, requests);
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.out.end(request, ending, now);
    }
}
