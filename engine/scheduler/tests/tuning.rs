//! The settings of the default rule, and their tuner: the corners of the settings are the classic
//! rules, a look knows only the past, it finds what is better, and then stays with it.

use proptest::prelude::*;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits::RATE_SAMPLE;
use symphony_scheduler::policy::tuning::Tuner;
use symphony_scheduler::policy::tuning::replay::{ReplayOutcome, ReplayedRequests, ReplayedRule, replay};
use symphony_scheduler::policy::{PolicyOptions, by_name, deferral};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rule_setting::{Prefer, RuleSetting};
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::{Fault, Observer, simulate, simulate_observed};
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Class, Ending, Request};

const TUNED: Option<Prefer> = Some(Prefer::Efficiency);

fn model(alpha_ms: f64, beta_ms: f64, slo_ms: f64, arrival: Arrival) -> WorkloadModel {
    let profile = Profile::linear(Nanos::from_millis_f64(alpha_ms), Nanos::from_millis_f64(beta_ms), 64);
    WorkloadModel { arrival, ..WorkloadModel::new("m", profile.unwrap(), Nanos::from_millis_f64(slo_ms)) }
}

/// A model whose requests come in bursts, on eight GPUs: dropping some for larger batches is in
/// vain there.
fn bursty(rate_rps: f64, seconds: u64) -> Workload {
    let models = vec![model(1.0, 5.0, 40.0, Arrival::Gamma(0.05))];
    Workload { duration: Nanos::from_secs(seconds), ..Workload::of_models(8, rate_rps, models) }
}

fn run(workload: &Workload, name: &str, options: &PolicyOptions) -> Report {
    simulate(workload, by_name(name).unwrap(), options).unwrap()
}

/// What a report says of the requests and the GPUs.
fn said(report: &Report) -> String {
    let counts: Vec<_> = report.models.iter().map(|of| (of.good, of.dropped, of.late, of.rejected)).collect();
    format!("{counts:?} {:?} {:?}", report.gpu_busy, report.batch_histogram)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn the_corners_of_the_settings_are_the_classic_rules(
        gpus in 1usize..6,
        models in prop::collection::vec((0.1f64..3.0, 0.5f64..8.0, 2.1f64..6.0), 1..5),
        control_us in prop_oneof![Just(0u64), 1u64..400],
        load in 0.1f64..1.5,
        seed in any::<u64>(),
    ) {
        let models = models.into_iter().map(|(alpha, beta, slack)| {
            model(alpha, beta, slack * (alpha + beta) + 1.0, Arrival::Gamma(0.3))
        });
        let workload = Workload::of_models(gpus, 1.0, models.collect());
        let workload = Workload {
            rate_rps: load * symphony_scheduler::sim::goodput::ideal_rate(&workload),
            duration: Nanos::from_secs(2),
            network: Network { control: Nanos::from_micros(control_us), ..Network::default() },
            seed,
            ..workload
        };
        for (policy, drop, corner) in [
            ("symphony-published", DropRule::Window, "inf/inf/0"),
            ("symphony-published", DropRule::Timeout, "0/inf/0"),
            ("work-conserving", DropRule::Window, "inf/0/0/spread"),
            ("work-conserving", DropRule::Timeout, "0/0/0/spread"),
        ] {
            let setting: RuleSetting = corner.parse().unwrap();
            let own = PolicyOptions { setting, ..PolicyOptions::default() };
            let classic = PolicyOptions::from(drop);
            let ours = run(&workload, "symphony", &PolicyOptions { drop: Some(drop), ..own.clone() });
            prop_assert_eq!(said(&ours), said(&run(&workload, policy, &classic)), "{} {:?}", policy, drop);
            // By the default's own drop rule overloaded models have precedence: from the end of the
            // sample of their rate in which the first request was dropped, at the earliest.
            let all = decided(&workload, policy, &classic, Nanos::MAX);
            let first = all.ended.first().map_or(Nanos::MAX, |ended| ended.0);
            let before = Nanos((first.0 / RATE_SAMPLE.0 + 1).saturating_mul(RATE_SAMPLE.0));
            let ours = decided(&workload, "symphony", &own, before);
            prop_assert_eq!(ours, decided(&workload, policy, &classic, before), "{} {:?}", policy, drop);
        }
    }
}

/// The batches and drops decided before a time.
#[derive(Default, PartialEq, Debug)]
struct Decided {
    before: Nanos,
    batches: Vec<(Nanos, u64, u32, Nanos)>,
    ended: Vec<(Nanos, u64)>,
}

impl Observer for Decided {
    fn arrived(&mut self, _: &Request) {}

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        _: (&[Request], &[Request]),
        _: Option<Nanos>,
        _: Nanos,
    ) {
        if now < self.before {
            self.batches.push((now, batch.batch, batch.size, batch.exec_at));
        }
    }

    fn preempted(&mut self, _: &BatchHeader, _: &[Request], _: Nanos) {}

    fn ended(&mut self, request: &Request, _: Ending, now: Nanos) {
        if now < self.before {
            self.ended.push((now, request.id));
        }
    }
}

/// Returns what is decided before a time.
fn decided(workload: &Workload, policy: &str, options: &PolicyOptions, before: Nanos) -> Decided {
    let mut decided = Decided { before, ..Decided::default() };
    let policy = by_name(policy).unwrap();
    simulate_observed(workload, policy, options, Fault::default(), &mut decided).unwrap();
    decided
}

#[test]
fn what_is_decided_depends_on_the_past_alone() {
    let until = Nanos::from_secs(3);
    let with_later = |later_gap_us: u64| {
        let bursts = (0..3_000u64).map(|n| Nanos::from_micros(n * 1_000 - n % 40 * 900));
        let later = (0..3_000u64).map(|n| until + Nanos::from_micros(n * later_gap_us));
        let mut arrivals: Vec<Nanos> = bursts.chain(later).collect();
        arrivals.sort_unstable();
        let models = vec![model(1.0, 5.0, 25.0, Arrival::Trace(arrivals.into()))];
        let workload = Workload { duration: Nanos::from_secs(5), ..Workload::of_models(3, 1_000.0, models) };
        let options = PolicyOptions { tuning: TUNED, ..PolicyOptions::default() };
        decided(&workload, "symphony", &options, until)
    };
    let (calm, flood) = (with_later(2_000), with_later(20));
    assert!(calm.batches.len() > 100);
    assert_eq!(calm, flood);
}

#[test]
fn what_is_better_is_found() {
    let workload = bursty(4_500.0, 20);
    let untuned = run(&workload, "symphony", &PolicyOptions::default());
    let tuned = run(&workload, "symphony", &PolicyOptions { tuning: TUNED, ..PolicyOptions::default() });
    assert!(tuned.bad_rate < 0.9 * untuned.bad_rate, "{} of {}", tuned.bad_rate, untuned.bad_rate);
}

/// The default drops by what the next batch would drop where a model has the only GPU to itself,
/// with its tuner and without.
#[test]
fn who_has_the_only_gpu_loses_fewer_than_by_dropping_all_or_nothing_in_the_way() {
    for (model, rate_rps) in [
        (model(0.57, 14.348, 35.929, Arrival::Poisson), 260.0),
        (model(2.438, 9.095, 55.827, Arrival::Gamma(0.5)), 175.0),
    ] {
        let workload =
            Workload { duration: Nanos::from_secs(40), ..Workload::of_models(1, rate_rps, vec![model]) };
        let bad = |tuning, setting: &str| {
            let setting = setting.parse().unwrap();
            run(&workload, "symphony", &PolicyOptions { tuning, setting, ..PolicyOptions::default() })
                .bad_rate
        };
        let classic = bad(None, "inf/1/1").min(bad(None, "0/1/1"));
        for (tuning, setting) in [(None, "1/1/1"), (TUNED, "1/1/1")] {
            let own = bad(tuning, setting);
            assert!(own < 0.8 * classic && classic > 0.005, "{own} of {classic}");
        }
    }
}

/// Bursts at half again of what twenty GPUs serve: settings that drop nothing collapse, but only
/// after seconds, which replays of a few SLOs do not show.
#[test]
fn a_collapse_that_takes_seconds_is_left() {
    for seed in [5, 6, 10] {
        let models = vec![model(17.656, 18.952, 384.683, Arrival::Gamma(0.05))];
        let warmup = Nanos::from_secs(10);
        let workload =
            Workload { seed, warmup, duration: warmup, ..Workload::of_models(20, 1_399.0, models) };
        let bad = |tuning, setting: &str| {
            let setting = setting.parse().unwrap();
            run(&workload, "symphony", &PolicyOptions { tuning, setting, ..PolicyOptions::default() })
                .bad_rate
        };
        let [tuned, stays] = [bad(TUNED, "1/1/1"), bad(None, "0/0/0/spread")];
        assert!(stays > 0.45 && tuned < 0.35, "seed {seed}: {tuned} {stays}");
    }
}

#[test]
fn batches_that_become_brief_are_found_where_long_ones_keep_the_only_gpu_from_who_is_in_a_hurry() {
    let models = vec![model(1.0, 4.0, 40.0, Arrival::Poisson), model(2.0, 10.0, 600.0, Arrival::Gamma(0.05))];
    let workload = Workload { duration: Nanos::from_secs(20), ..Workload::of_models(1, 120.0, models) };
    let worst = |setting: &str, tuning| {
        let setting = setting.parse().unwrap();
        run(&workload, "symphony", &PolicyOptions { setting, tuning, ..PolicyOptions::default() })
            .worst_bad_rate
    };
    let [long, brief] = ["0/0/0/spread", "0/0/0/spread/brief=35"].map(|setting| worst(setting, None));
    assert!(brief < 0.01 && long > 0.03, "{brief} {long}");
    let tuned = worst("1/1/1", TUNED);
    assert!(tuned < 0.01, "{tuned}");
}

/// Feeds a tuner with requests of the workload's model, `gap` apart, between two times. Returns the
/// settings that it changes to.
fn feed(tuner: &mut Tuner, workload: &Workload, [from, to]: [Nanos; 2], gap: Nanos) -> Vec<RuleSetting> {
    let (mut now, mut changes) = (from, Vec::new());
    for id in 0.. {
        if now >= to {
            break;
        }
        while tuner.next_look() <= now {
            changes.extend(tuner.look(now));
        }
        let deadline = now + workload.models[0].slo;
        tuner.note(&Request { id, arrival: now, deadline, ..Request::default() });
        now += gap;
    }
    changes
}

#[test]
fn under_a_steady_load_it_settles_and_looks_are_rare() {
    let workload = bursty(1.0, 1);
    let rule = deferral("symphony").unwrap();
    for prefer in Prefer::ALL.map(|prefer| prefer.0) {
        let mut tuner = Tuner::new(&workload, DropRule::Exchange, rule, RuleSetting::default(), prefer);
        assert_eq!(tuner.next_look(), Nanos::MAX, "without a request there is nothing to look at");
        let minutes = [Nanos::ZERO, Nanos::from_secs(180)];
        let changes = feed(&mut tuner, &workload, minutes, Nanos::from_millis(3));
        // What saves GPU time has to prove itself on ever more requests before it is taken.
        assert!(changes.len() <= 3, "{changes:?}");
        let next = [Nanos::from_secs(180), Nanos::from_secs(300)];
        let later = feed(&mut tuner, &workload, next, Nanos::from_millis(3));
        assert!(later.is_empty(), "{later:?}");
        // Half of the GPU time at most is what waiting saves, and waiting is what latency costs.
        let waits = changes.last().copied().unwrap_or_default().patience > 1.0;
        assert_eq!(waits, prefer == Prefer::Efficiency, "{changes:?}");
        assert!(tuner.next_look() > Nanos::from_secs(300), "the pauses have grown");
    }
}

#[test]
fn another_load_is_looked_at_soon() {
    let workload = bursty(1.0, 1);
    let rule = deferral("symphony").unwrap();
    let mut tuner =
        Tuner::new(&workload, DropRule::Exchange, rule, RuleSetting::default(), Prefer::Efficiency);
    let at = |s: u64| Nanos::from_secs(s);
    feed(&mut tuner, &workload, [at(0), at(100)], Nanos::from_millis(3));
    assert!(tuner.next_look() - at(100) > at(5));
    // The load that is found at the next look makes those that follow early again.
    let next = tuner.next_look() + Nanos::from_millis(1);
    feed(&mut tuner, &workload, [at(100), next], Nanos::from_micros(300));
    feed(&mut tuner, &workload, [next, next + Nanos::from_millis(2)], Nanos::from_millis(1));
    assert!(tuner.next_look() - next < at(1), "{:?} {next:?}", tuner.next_look());
}

#[test]
fn where_requests_follow_answers_waiting_is_given_up_and_not_soon_tried_again() {
    let workload = bursty(1.0, 1);
    let (rule, slo) = (deferral("symphony").unwrap(), workload.models[0].slo);
    let mut tuner =
        Tuner::new(&workload, DropRule::Exchange, rule, RuleSetting::default(), Prefer::Efficiency);
    // Two clients, each of which waits for an answer: after its run, or after all of the SLO.
    let (mut now, mut setting, mut waits) = (Nanos::ZERO, RuleSetting::default(), Vec::new());
    while now < Nanos::from_secs(500) {
        while tuner.next_look() <= now {
            setting = tuner.look(now).unwrap_or(setting);
            if setting.patience > 1.0 {
                waits.push(now);
            }
        }
        for id in 0..2 {
            tuner.note(&Request { id, arrival: now, deadline: now + slo, ..Request::default() });
        }
        now += if setting.patience > 1.0 { slo } else { workload.models[0].profile.latency(1) };
    }
    assert_eq!(waits.len(), 1, "{waits:?}");
}

#[test]
fn a_look_replays_long_slos_for_longer_and_lower_classes_not_at_all() {
    let rule = deferral("symphony").unwrap();
    let tuner_of = |workload: &Workload| {
        Tuner::new(workload, DropRule::Exchange, rule, RuleSetting::default(), Prefer::Efficiency)
    };
    let mut workload = bursty(1.0, 1);
    workload.models[0].slo = Nanos::from_millis(25);
    let tuner = tuner_of(&workload);
    assert_eq!((tuner.replayed(1e3), tuner.replayed(1e6), tuner.replayed(1e8)), (20_000, 150_000, 200_000));
    // Two hundred thousand requests of 2 ms: nothing is concluded from less than two SLOs.
    let mut flooded = tuner_of(&workload);
    let changes = feed(&mut flooded, &workload, [Nanos::ZERO, Nanos::from_millis(260)], Nanos(10));
    assert!(changes.is_empty() && flooded.next_look() > Nanos::from_millis(700), "{changes:?}");
    workload.models[0].class = Class::LOWEST;
    let mut lower = tuner_of(&workload);
    feed(&mut lower, &workload, [Nanos::ZERO, Nanos::from_secs(10)], Nanos::from_millis(3));
    assert_eq!(lower.next_look(), Nanos::MAX);
}

/// The default rule at its starting setting, with this drop rule.
fn replayed(drop: DropRule) -> ReplayedRule {
    ReplayedRule { drop, deferral: deferral("symphony").unwrap(), setting: RuleSetting::default() }
}

/// Returns so many requests at this rate, the first one at `from`, each with this time until its
/// deadline.
fn even_requests(count: u64, from: Nanos, rate_rps: f64, budget: Nanos) -> Vec<Request> {
    let request = |id: u64| {
        let arrival = from + Nanos::from_secs_f64(id as f64 / rate_rps);
        Request { id, arrival, deadline: arrival + budget, ..Request::default() }
    };
    (0..count).map(request).collect()
}

/// The deadline of a query's stage may be a goal: what is dropped for it is asked for again, in a
/// replay as in the pool.
#[test]
fn a_request_that_is_dropped_for_its_goal_is_made_once_more_in_replays() {
    let workload = Workload::of_models(1, 1.0, vec![model(1.0, 9.0, 30.0, Arrival::Poisson)]);
    let rule = replayed(DropRule::Exchange);
    let bad = |again_us: u32| {
        // One request takes 10 ms, and two 11.
        let deadline = Nanos::from_millis(5);
        let requests = [0, 1, 2].map(|id| Request { id, deadline, again_us, ..Request::default() });
        let replayed = ReplayedRequests {
            requests: requests.to_vec().into(),
            rates: vec![1.0].into(),
            counted: Nanos::ZERO..Nanos::from_millis(100),
            amid: false,
        };
        let outcome = replay(&workload, &rule, &replayed, |_| false);
        assert_eq!(outcome.offered(), 3.0);
        outcome.models[0].bad
    };
    assert_eq!([0, 4_000, 5_000, 20_000].map(bad), [3.0, 3.0, 2.0, 0.0]);
    let mut tuner = Tuner::new(&workload, rule.drop, rule.deferral, rule.setting, Prefer::Efficiency);
    let first = Request { again_us: 5_000, ..Request::default() };
    tuner.note(&first.again().unwrap());
    assert_eq!(tuner.next_look(), Nanos::MAX, "nothing to replay");
    tuner.note(&first);
    assert!(tuner.next_look() < Nanos::MAX);
}

/// What ends early knows already how many requests are to come, so shares of what it found are no
/// higher than in the whole replay.
#[test]
fn a_replay_ends_once_enough_is_bad() {
    let workload = Workload::of_models(1, 1.0, vec![model(1.0, 9.0, 30.0, Arrival::Poisson)]);
    let rule = replayed(DropRule::Window);
    let replayed = ReplayedRequests {
        requests: even_requests(1_000, Nanos::ZERO, 2_000.0, Nanos::from_millis(25)).into(),
        rates: vec![2_000.0].into(),
        counted: Nanos::from_millis(50)..Nanos::from_millis(500),
        amid: false,
    };
    let until = |bad_rate: f64| {
        replay(&workload, &rule, &replayed, |found: &ReplayOutcome| found.bad_rate() > bad_rate)
    };
    let [early, whole] = [until(0.1), until(1.0)];
    assert_eq!([early.offered(), whole.offered()], [900.0; 2]);
    assert!((0.1..0.13).contains(&early.bad_rate()) && whole.bad_rate() > 0.3, "{early:?} {whole:?}");
    assert!(early.busy_s < whole.busy_s);
}

/// What a replay begins with decides what it finds if it is brief.
#[test]
fn a_pool_with_too_many_requests_is_busy_where_a_replay_begins_amid_them() {
    let workload = Workload::of_models(4, 1.0, vec![model(1.0, 9.0, 30.0, Arrival::Poisson)]);
    let bad = |rate_rps: f64, amid: bool| {
        let counted = Nanos::from_secs(1)..Nanos::from_millis(1_010);
        let count = (rate_rps * (counted.end - counted.start).as_secs_f64()) as u64;
        let requests = even_requests(count, counted.start, rate_rps, Nanos::from_millis(30));
        let rates = vec![rate_rps].into();
        let came = ReplayedRequests { requests: requests.into(), rates, counted, amid };
        replay(&workload, &replayed(DropRule::Window), &came, |_| false).bad_rate()
    };
    // Four GPUs serve some 2,700 a second.
    let [idle, busy] = [false, true].map(|amid| bad(9_000.0, amid));
    assert!(busy > idle + 0.1, "{idle} {busy}");
    assert_eq!(bad(1_500.0, true), bad(1_500.0, false));
}
