//! A queue's checkpoint: a queue that is restored from it, before whatever event and after whatever
//! silence, decides as the one that it was taken of and reaches the same state.

use proptest::prelude::*;
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::policy::POLICIES;
use symphony_scheduler::profile::{Profile, ProfileScale, ScaledProfile, TOP_LEVEL};
use symphony_scheduler::rank::{Grant, RankInput};
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, GpuId, QueueId, Request};

/// What a queue said, in order.
#[derive(Default, PartialEq, Debug)]
struct Log {
    messages: Vec<RankInput>,
    batches: Vec<(Dispatch, Vec<Request>)>,
    ends: Vec<(u64, Ending)>,
}

impl ModelSink for Log {
    fn to_rank(&mut self, message: RankInput) {
        self.messages.push(message);
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        self.batches.push((dispatch, [requests.0, requests.1].concat()));
    }

    fn end(&mut self, request: &Request, ending: Ending, _now: Nanos) {
        self.ends.push((request.id, ending));
    }
}

/// What happens to a queue.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Requests come, each with this much less time than the SLO allows.
    Come {
        count: u64,
        hurry: Nanos,
    },
    CancelHead,
    Grant {
        again: bool,
    },
    StartReserving,
    Set(RuleSetting),
    Rescale(ProfileScale),
    Stop,
}

fn steps() -> impl Strategy<Value = Vec<(Nanos, Step)>> {
    let step = prop_oneof![
        8 => (1u64..40, 0u64..20_000).prop_map(|(count, hurry)| Step::Come {
            count,
            hurry: Nanos::from_micros(hurry),
        }),
        2 => Just(Step::CancelHead),
        8 => any::<bool>().prop_map(|again| Step::Grant { again }),
        1 => Just(Step::StartReserving),
        1 => Just(Step::Stop),
        1 => (0u8..3, 0u8..3, 0u8..3, any::<bool>(), 0u64..20, any::<bool>()).prop_map(|(price, patience, lead, spread, ms, brief)| {
            let factor = |of: u8| [0.0, 0.5, f32::INFINITY][usize::from(of)];
            let [price, patience, lead] = [price, patience, lead].map(factor);
            let reserve = if ms < 10 { Nanos::from_millis(ms) } else { Nanos::MAX };
            Step::Set(RuleSetting { price, patience, lead, spread, reserve, brief })
        }),
        1 => prop::array::uniform21(any::<i8>().prop_map(|level| level.max(-TOP_LEVEL)))
            .prop_map(|levels| Step::Rescale(ProfileScale(levels))),
    ];
    // Mostly milliseconds; at times seconds, so that the rate meter's window goes by.
    let span = prop_oneof![
        6 => (0u64..30_000).prop_map(Nanos::from_micros),
        1 => (0u64..20_000).prop_map(Nanos::from_millis),
    ];
    prop::collection::vec((span, step), 1..80)
}

/// How a queue stands to those of other classes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Role {
    Alone,
    Above,
    Below,
    Unexpected,
}

/// A profile up to 24 whose batches are worthwhile up to this size.
fn profile(worthwhile: u64) -> Profile {
    let latency =
        |size: u64| Nanos::from_micros(3_000 + 400 * size + 5_000 * size.saturating_sub(worthwhile));
    let profile = Profile::measured(&(1..=24).map(latency).collect::<Vec<_>>()).unwrap();
    assert_eq!(profile.worthwhile().max_batch() as u64, worthwhile);
    profile
}

/// Applies an event to the queue, and to one restored from the queue's state just before it.
fn apply_to_both(queue: &mut ModelQueue, role: Role, now: Nanos, event: ModelEvent<'_>) -> (bool, Log) {
    let saved = queue.saved(now, 0);
    let queued: Vec<Request> = queue.queued().copied().collect();
    let mut restored =
        ModelQueue::restore(queue.base_config(), role == Role::Below, &saved, &queued).unwrap();
    let (mut said, mut said_again) = (Log::default(), Log::default());
    let changed = queue.apply(now, event, &mut said);
    assert_eq!(changed, restored.apply(now, event, &mut said_again), "{event:?}");
    if changed {
        queue.apply(now, ModelEvent::Settle, &mut said);
        restored.apply(now, ModelEvent::Settle, &mut said_again);
    }
    assert_eq!(said, said_again, "what follows from {event:?}");
    // A reservation alone selects no batch, and a checkpoint holds no timer: replay reads the timer
    // events from the recording.
    if event != ModelEvent::StartReserving {
        assert_eq!(queue.next_timer(), restored.next_timer(), "the timer after {event:?}");
    }
    // A silence that both sleep through leaves them in the same state.
    let later = now + Nanos::from_secs(7);
    assert_eq!(queue.saved(later, 0), restored.saved(later, 0), "the state after {event:?}");
    (changed, said)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_restored_queue_goes_on_as_the_one_it_was_saved_of(
        policy in 0usize..POLICIES.len(),
        drop in prop::sample::select(DropRule::ALL.map(|rule| rule.0).to_vec()),
        role in prop::sample::select(vec![Role::Alone, Role::Above, Role::Below, Role::Unexpected]),
        gpus in prop::sample::select(vec![1usize, 3]),
        worthwhile in prop::sample::select(vec![6u64, 24]),
        steps in steps(),
    ) {
        let Some(deferral) = POLICIES[policy].deferral() else { return Ok(()) };
        let slo = Nanos::from_millis(30);
        let config = QueueConfig {
            queue: QueueId(0),
            profile: profile(worthwhile),
            slo,
            network: Network::default(),
            drop,
            deferral,
            slack: Slack { frontrun: Nanos::from_micros(10), latest: Nanos::from_micros(5) },
            gpus,
        };
        let queue = ModelQueue::new(config, Nanos::ZERO);
        let mut queue = match role {
            Role::Alone => queue,
            Role::Above => queue.above_others(),
            Role::Below => queue.below_others(),
            Role::Unexpected => queue.unexpected(),
        };
        let (mut now, mut sent) = (Nanos::ZERO, 0);
        for (span, step) in steps {
            let until = now + span;
            while queue.next_timer() <= until {
                // As on a loop that takes 2 us a duty cycle.
                now = queue.next_timer().max(now + Nanos::from_micros(2));
                apply_to_both(&mut queue, role, now, ModelEvent::Timer);
            }
            now = now.max(until);
            match step {
                Step::Come { count, hurry } => (0..count).for_each(|_| {
                    let deadline = now + slo - hurry;
                    let request = Request { id: sent, arrival: now, deadline, ..Request::default() };
                    sent += 1;
                    apply_to_both(&mut queue, role, now, ModelEvent::Enqueue(&request));
                }),
                Step::CancelHead => {
                    let head = queue.queued().next().copied();
                    if let Some(head) = head {
                        let (found, _) = apply_to_both(&mut queue, role, now, ModelEvent::Cancel(&head));
                        prop_assert!(found);
                    }
                }
                Step::Grant { again } => {
                    let until = Nanos::MAX;
                    let grant = Grant { queue: QueueId(0), gpu: GpuId(1), free_at: now, until, again };
                    apply_to_both(&mut queue, role, now, ModelEvent::Grant(grant));
                }
                Step::StartReserving => {
                    apply_to_both(&mut queue, role, now, ModelEvent::StartReserving);
                }
                Step::Set(setting) => {
                    apply_to_both(&mut queue, role, now, ModelEvent::Set(setting));
                }
                Step::Rescale(scale) => {
                    let scaled = ScaledProfile::new(queue.base_profile(), scale);
                    apply_to_both(&mut queue, role, now, ModelEvent::Rescale(&scaled));
                    prop_assert_eq!(&queue.config().profile, &scaled.profile.worthwhile());
                }
                Step::Stop => {
                    apply_to_both(&mut queue, role, now, ModelEvent::Stop);
                    prop_assert!(queue.is_empty());
                }
            }
        }
    }
}
