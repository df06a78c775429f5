//! The queues and the matching as they really meet: over rings, each in order, but one ring's
//! messages ahead of another's by any amount. Whatever the interleaving, no request is lost, no GPU
//! and no model is forgotten.

use proptest::prelude::*;
use std::collections::VecDeque;
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::policy::by_name;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::{Grant, RankInput, RankState};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Class, Completion, Ending, NO_DEADLINE, QueueId, Request};

const SLO: Nanos = Nanos::from_millis(20);

#[derive(Default)]
struct Rings {
    messages: VecDeque<RankInput>,
    grants: VecDeque<Grant>,
    /// True while the message that starts reservations is under way, false once it has arrived.
    start_reserving: Option<bool>,
    batches: VecDeque<(BatchHeader, usize)>,
    completions: VecDeque<Completion>,
    ended: usize,
    served: usize,
}

impl ModelSink for Rings {
    fn to_rank(&mut self, message: RankInput) {
        self.messages.push_back(message);
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let size = requests.0.len() + requests.1.len();
        self.batches.push_back((dispatch.header(dispatch.queue.only_model(), 0, size), size));
    }

    fn end(&mut self, _request: &Request, _ending: Ending, _now: Nanos) {
        self.ended += 1;
    }
}

struct Engine {
    now: Nanos,
    /// The queue of each model's highest class, then the queue of a lower class of each.
    models: Vec<ModelQueue>,
    rank: RankState,
    rings: Rings,
    gpu_free_at: Vec<Nanos>,
}

impl Engine {
    fn new(policy: &str, models: u32, gpus: usize, ahead: Nanos) -> Engine {
        let terms = |model| QueueConfig {
            queue: QueueId(model),
            profile: Profile::linear(Nanos::from_micros(200), Nanos::from_millis(1), 32).unwrap(),
            slo: SLO,
            network: Network::default(),
            drop: DropRule::Window,
            deferral: by_name(policy).unwrap().deferral().unwrap(),
            // More than a step of `settle`, so that a thread that runs late by one is no reason to
            // drop.
            slack: Slack { frontrun: Nanos::from_millis(2), latest: Nanos::from_millis(1) },
            gpus,
        };
        let lower = |queue| Class::new(1 + (queue % 3) as u8).unwrap();
        let class = |queue| if queue < models { Class::HIGHEST } else { lower(queue) };
        let queue = |queue| match class(queue) {
            Class::HIGHEST => ModelQueue::new(terms(queue), Nanos::ZERO),
            _ => ModelQueue::new(terms(queue), Nanos::ZERO).below_others(),
        };
        let rank = RankState::new(gpus, 2 * models as usize, false, Nanos::ZERO).sending_ahead(ahead);
        Engine {
            now: Nanos::ZERO,
            models: (0..2 * models).map(queue).collect(),
            rank: rank.among_classes((0..2 * models).map(class).collect()),
            rings: Rings::default(),
            gpu_free_at: vec![Nanos::ZERO; gpus],
        }
    }

    /// Enqueues a request. Every other request of a lower queue has no deadline.
    fn request(&mut self, model: u32) {
        let is_lower = model as usize >= self.models.len() / 2;
        let never = is_lower && self.now.0.is_multiple_of(2);
        let request = Request {
            arrival: self.now,
            deadline: self.now + if never { NO_DEADLINE } else { SLO },
            queue: QueueId(model),
            ..Request::default()
        };
        self.models[model as usize].apply_request(self.now, &request, &mut self.rings);
    }

    /// Runs one duty cycle of the thread that the test chooses.
    fn duty_cycle(&mut self, thread: u8) {
        let Engine { now, models, rank, rings, gpu_free_at } = self;
        match thread % 6 {
            0 => {
                for model in models.iter_mut().filter(|model| model.next_timer() <= *now) {
                    model.apply(*now, ModelEvent::Timer, rings);
                }
            }
            1 => {
                if let Some(grant) = rings.grants.pop_front() {
                    models[grant.queue.0 as usize].apply(*now, ModelEvent::Grant(grant), rings);
                }
            }
            2 => {
                let mut grant = |grant| rings.grants.push_back(grant);
                if let Some(message) = rings.messages.pop_front() {
                    if matches!(message, RankInput::Bounds { .. }) {
                        rings.start_reserving.get_or_insert(true);
                    }
                    message.apply(rank, *now, &mut grant);
                }
                if rank.next_timer() <= *now {
                    rank.on_timer(*now, &mut grant);
                }
            }
            3 => {
                if let Some((header, size)) = rings.batches.pop_front() {
                    let free_at = &mut gpu_free_at[header.gpu.0 as usize];
                    let started = header.exec_at.max(*free_at).max(*now);
                    if started <= header.latest {
                        *free_at = started + header.duration;
                        rings.served += size;
                    } else {
                        rings.ended += size;
                    }
                    let (model, gpu) = (header.model, header.gpu);
                    let finished = *free_at;
                    rings.completions.push_back(Completion { model, gpu, started, finished, batch: 0 });
                }
            }
            4 => {
                if rings.start_reserving == Some(true) {
                    rings.start_reserving = Some(false);
                    let highest = models.len() / 2;
                    for model in &mut models[..highest] {
                        model.apply(*now, ModelEvent::StartReserving, rings);
                    }
                    rings.messages.push_back(RankInput::AllReserved);
                }
            }
            // A completion does not come before its batch is over.
            _ => {
                if rings.completions.front().is_some_and(|completion| completion.finished <= *now)
                    && let Some(completion) = rings.completions.pop_front()
                {
                    RankInput::Completion(completion)
                        .apply(rank, *now, &mut |grant| rings.grants.push_back(grant));
                }
            }
        }
    }

    /// Lets time pass, with every thread running, until nothing is under way.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.now += Nanos::from_micros(500);
            (0..120).for_each(|thread| self.duty_cycle(thread));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn nothing_is_lost_or_forgotten_whichever_thread_runs_when(
        policy in prop::sample::select(vec!["symphony-published", "work-conserving"]),
        models in 1u32..4,
        gpus in 1usize..4,
        ahead in 0u64..900,
        // Of the first models only, whose queues may then all be of the highest class.
        queues in 1u32..8,
        steps in prop::collection::vec((any::<u8>(), 0u64..400), 1..600),
    ) {
        let mut engine = Engine::new(policy, models, gpus, Nanos::from_micros(ahead));
        let mut sent = 0;
        for (step, micros) in steps {
            engine.now += Nanos::from_micros(micros);
            if step < 60 {
                engine.request(u32::from(step) % queues.min(2 * models));
                sent += 1;
            } else {
                engine.duty_cycle(step);
            }
        }
        engine.settle();
        // Lower queues are held up by those above that have lost requests, until that has faded.
        engine.now += Nanos::from_secs(60);
        engine.settle();
        prop_assert_eq!(engine.rings.ended + engine.rings.served, sent);
        prop_assert_eq!(engine.rank.busy_gpus(), 0);
        // Every queue can still be served, on GPUs that all are idle.
        for model in 0..2 * models {
            let served = engine.rings.served;
            engine.request(model);
            engine.settle();
            prop_assert_eq!(engine.rings.served, served + 1, "model {} is forgotten", model);
        }
    }
}
