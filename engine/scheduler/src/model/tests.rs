//! What a model's queue decides, moment by moment.

use super::*;
use crate::deferral::Slack;
use crate::policy::by_name;
use crate::profile::{Profile, ProfileScale, SIZE_BOUNDS, ScaledProfile, TOP_LEVEL};
use crate::rank::Grant;
use crate::workload::Network;

const MS: u64 = 1_000_000;

fn ms(ms: f64) -> Nanos {
    Nanos::from_millis_f64(ms)
}

/// What a queue said, in order.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Ready(Nanos, Nanos),
    Early(Nanos),
    Withdraw,
    Report(Option<Nanos>, Nanos),
    Dispatch { exec_at: Nanos, latest: Nanos, ids: Vec<u64> },
    End(u64, Ending),
    Reserve(Reservation),
    Bounds(BatchBounds),
}

#[derive(Default)]
struct Log(Vec<Said>);

impl ModelSink for Log {
    fn to_rank(&mut self, message: RankInput) {
        self.0.push(match message {
            RankInput::Ready { offer, .. } if offer.early => Said::Early(offer.latest),
            RankInput::Ready { offer, .. } => Said::Ready(offer.latest, offer.delay),
            RankInput::Withdraw(_) => Said::Withdraw,
            RankInput::Report(report) => Said::Report(report.exec_at, report.free_at),
            RankInput::Reserve { reservation, .. } => Said::Reserve(reservation),
            RankInput::Bounds { bounds, .. } => Said::Bounds(bounds),
            RankInput::AllReserved
            | RankInput::Completion(_)
            | RankInput::Presence { .. }
            | RankInput::CompletionDelay(_) => unreachable!("no queue sends it"),
        });
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let ids = requests.0.iter().chain(requests.1).map(|request| request.id).collect();
        self.0.push(Said::Dispatch { exec_at: dispatch.exec_at, latest: dispatch.latest, ids });
    }

    fn end(&mut self, request: &Request, ending: Ending, _now: Nanos) {
        self.0.push(Said::End(request.id, ending));
    }
}

impl Log {
    fn take(&mut self) -> Vec<Said> {
        core::mem::take(&mut self.0)
    }
}

/// l(b) = b + 5 ms, SLO 20 ms, eight GPUs.
pub(crate) fn terms(policy: &str, drop: DropRule) -> QueueConfig {
    QueueConfig {
        queue: QueueId(0),
        profile: Profile::linear(ms(1.0), ms(5.0), 64).unwrap(),
        slo: ms(20.0),
        network: Network::default(),
        drop,
        deferral: by_name(policy).unwrap().deferral().unwrap(),
        slack: Slack::default(),
        gpus: 8,
    }
}

fn symphony() -> ModelQueue {
    ModelQueue::new(terms("symphony-published", DropRule::Window), Nanos::ZERO)
}

fn request(id: u64, arrival: Nanos, deadline: Nanos) -> Request {
    Request { id, arrival, deadline, ..Request::default() }
}

fn grant(free_at: Nanos) -> Grant {
    Grant { queue: QueueId(0), gpu: GpuId(3), free_at, until: Nanos::MAX, again: true }
}

#[test]
fn a_batch_is_no_larger_than_is_worthwhile_also_by_another_profile() {
    // Four requests take 5 ms, five 9 ms.
    let latencies = [5.0, 5.0, 5.0, 5.0, 9.0, 9.0].map(ms);
    let terms = QueueConfig { profile: Profile::measured(&latencies).unwrap(), ..symphony().base_config() };
    let (mut queue, mut log) = (ModelQueue::new(terms, Nanos::ZERO), Log::default());
    let mut served = |queue: &mut ModelQueue, now: Nanos| {
        (0..6).for_each(|id| {
            queue.apply_request(now, &request(id, now, now + ms(20.0)), &mut log);
        });
        log.take();
        queue.apply(now, ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
        let said = log.take();
        let [Said::Dispatch { ids, .. }, Said::Report(_, free_at), ..] = &said[..] else {
            panic!("{said:?}")
        };
        (ids.len(), *free_at - now)
    };
    assert_eq!(served(&mut queue, ms(10.0)), (4, ms(5.0)));
    let mut slower = [0; SIZE_BOUNDS.len() + 1];
    slower[3] = TOP_LEVEL;
    let scaled = ScaledProfile::new(queue.base_profile(), ProfileScale(slower));
    queue.apply(ms(11.0), ModelEvent::Rescale(&scaled), &mut Log::default());
    assert_eq!(served(&mut queue, ms(11.0)).0, 3, "with 20 ms, what takes four times as long is late");
}

/// A queue of requests whose batches of one take 6 ms at most, and 3 ms at best.
fn differing() -> ModelQueue {
    let terms = terms("symphony", DropRule::Exchange);
    let profile = terms.profile.clone().with_best(ms(3.0));
    ModelQueue::new(QueueConfig { profile, ..terms }, Nanos::ZERO)
}

#[test]
fn a_doubtful_request_is_tried_behind_all_that_are_sure_until_it_has_no_chance() {
    let (mut queue, mut log) = (differing(), Log::default());
    queue.apply_request(ms(10.0), &request(1, Nanos::ZERO, ms(15.0)), &mut log);
    // It must start by 15 - 3, and is offered an SLO later.
    assert_eq!(log.take(), [Said::Ready(ms(32.0), Nanos::ZERO)]);
    assert_eq!(queue.next_timer(), ms(12.0) + Nanos(1));
    queue.apply(ms(12.0), ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
    let tried = Said::Dispatch { exec_at: ms(12.0), latest: ms(12.0), ids: vec![1] };
    assert_eq!(log.take()[..2], [tried, Said::Report(Some(ms(12.0)), ms(18.0))]);
    queue.apply_request(ms(10.0), &request(2, Nanos::ZERO, ms(15.0)), &mut log);
    log.take();
    let gone = queue.next_timer();
    queue.apply(gone, ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::End(2, Ending::DroppedInQueue), Said::Withdraw]);
}

#[test]
fn a_doubtful_request_is_given_up_for_one_that_is_sure_or_has_a_better_chance() {
    let (mut queue, mut log) = (differing(), Log::default());
    queue.apply_request(ms(10.0), &request(1, Nanos::ZERO, ms(14.0)), &mut log);
    log.take();
    queue.apply_request(ms(10.0), &request(2, Nanos::ZERO, ms(15.0)), &mut log);
    assert_eq!(log.take(), [Said::End(1, Ending::DroppedInQueue), Said::Ready(ms(32.0), Nanos::ZERO)]);
    queue.apply_request(ms(10.0), &request(3, ms(10.0), ms(30.0)), &mut log);
    assert_eq!(log.take()[0], Said::End(2, Ending::DroppedInQueue));
    assert_eq!(queue.len(), 1);
}

/// What a queue by this drop rule, of which a batch has run, offers for a request that came at
/// 250 ms behind so many others, all late.
fn offered_after(late: u64, drop: DropRule) -> Offer {
    let (mut queue, mut log) = (ModelQueue::new(terms("symphony", drop), Nanos::ZERO), Log::default());
    queue.apply_request(ms(0.0), &request(0, ms(0.0), ms(20.0)), &mut log);
    queue.apply(ms(1.0), ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
    for id in 1..=late {
        queue.apply_request(ms(30.0), &request(id, ms(11.0), ms(31.0)), &mut log);
    }
    queue.apply_request(ms(250.0), &request(99, ms(250.0), ms(270.0)), &mut log);
    queue.apply(queue.next_timer(), ModelEvent::Timer, &mut log);
    queue.offered.unwrap()
}

#[test]
fn what_an_overloaded_model_offers_has_precedence() {
    let [calm, overloaded] = [0, 90].map(|late| offered_after(late, DropRule::Exchange));
    assert_eq!((calm.latest, calm.precedence), (ms(264.0), 0));
    assert!(
        overloaded.precedence > 0 && overloaded == Offer { precedence: overloaded.precedence, ..calm },
        "{overloaded:?}"
    );
    assert_eq!(offered_after(90, DropRule::Window), calm, "by a classic rule a batch goes by its deadline");
}

#[test]
fn rows_of_one_request_are_not_tried() {
    let (mut queue, mut log) = (differing(), Log::default());
    let row = |row: u16| Request { row, rows_after: 1 - row, ..request(1, Nanos::ZERO, ms(15.0)) };
    assert!(queue.apply(ms(10.0), ModelEvent::Enqueue(&row(0)), &mut log));
    queue.apply_request(ms(10.0), &row(1), &mut log);
    assert_eq!(log.take(), [1, 1].map(|id| Said::End(id, Ending::DroppedInQueue)));
}

#[test]
fn a_batch_is_told_of_only_when_one_more_request_could_not_join() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    assert_eq!(log.take(), []);
    // frontrun = D - l(2) = 20 - 7
    assert_eq!(queue.next_timer(), ms(13.0));
    queue.apply(ms(13.0), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(14.0), Nanos::ZERO)]);
}

#[test]
fn a_request_that_joins_brings_frontrun_forward() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..3 {
        queue.apply_request(ms(id as f64), &request(id, ms(id as f64), ms(20.0 + id as f64)), &mut log);
    }
    assert_eq!(queue.next_timer(), ms(20.0 - 9.0));
}

#[test]
fn work_conserving_tells_of_a_batch_at_once() {
    let mut queue = ModelQueue::new(terms("work-conserving", DropRule::Window), Nanos::ZERO);
    let mut log = Log::default();
    queue.apply_request(ms(1.0), &request(1, ms(1.0), ms(21.0)), &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(15.0), Nanos::ZERO)]);
}

#[test]
fn a_grant_sends_the_batch_reports_the_gpu_and_starts_the_next_candidate() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    queue.apply(ms(13.0), ModelEvent::Timer, &mut log);
    log.take();
    queue.apply(ms(13.0), ModelEvent::Grant(grant(ms(2.0))), &mut log);
    let said = log.take();
    assert_eq!(
        said,
        [
            Said::Dispatch { exec_at: ms(13.0), latest: ms(14.0), ids: vec![1] },
            Said::Report(Some(ms(13.0)), ms(19.0)),
        ]
    );
    assert!(queue.is_empty());
    assert_eq!(queue.next_timer(), Nanos::MAX);
}

#[test]
fn a_batch_is_finalised_for_the_time_at_which_its_gpu_is_free() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..8 {
        queue.apply_request(Nanos::ZERO, &request(id, Nanos::ZERO, ms(20.0)), &mut log);
    }
    log.take();
    // From 10 ms on, 20 - 10 = l(5): five of the eight fit, and the other three can't run alone
    // after them.
    queue.apply(ms(7.0), ModelEvent::Grant(grant(ms(10.0))), &mut log);
    let ids = log.take().into_iter().find_map(|said| match said {
        Said::Dispatch { exec_at, ids, .. } => Some((exec_at, ids)),
        _ => None,
    });
    assert_eq!(ids, Some((ms(10.0), vec![0, 1, 2, 3, 4])));
}

#[test]
fn a_request_that_cannot_finish_alone_is_dropped() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(5.9)), &mut log);
    assert_eq!(log.take(), [Said::End(1, Ending::DroppedInQueue)]);
    queue.apply_request(Nanos::ZERO, &request(2, Nanos::ZERO, ms(6.0)), &mut log);
    assert_eq!(log.take(), [Said::Ready(Nanos::ZERO, Nanos::ZERO)]);
}

#[test]
fn a_waiting_batch_is_reselected_the_moment_after_its_latest() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    queue.apply(ms(13.0), ModelEvent::Timer, &mut log);
    log.take();
    assert_eq!(queue.next_timer(), Nanos(14 * MS + 1));
    queue.apply(Nanos(14 * MS + 1), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::End(1, Ending::DroppedInQueue), Said::Withdraw]);
}

#[test]
fn the_window_rule_gives_up_a_head_that_keeps_the_target_from_forming() {
    // Without a rate the target is the largest b with l(b) <= SLO/2: 5.
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(0, Nanos::ZERO, ms(12.0)), &mut log);
    for id in 1..8 {
        queue.apply_request(ms(3.0), &request(id, ms(3.0), ms(23.0)), &mut log);
    }
    // At 3 ms the head leaves 9 ms, l(4). Batches of 3 and 4 become schedulable with it; a batch of
    // 5, the target, can't have it, so it goes, and the other seven form one that can still wait.
    let ready = |latest| Said::Ready(ms(latest), Nanos::ZERO);
    assert_eq!(log.take(), [ready(4.0), ready(3.0), Said::End(0, Ending::DroppedInQueue), Said::Withdraw]);
    assert_eq!(queue.len(), 7);
}

#[test]
fn the_timeout_rule_serves_the_head_whatever_it_costs() {
    let mut queue = ModelQueue::new(terms("symphony-published", DropRule::Timeout), Nanos::ZERO);
    let mut log = Log::default();
    queue.apply_request(Nanos::ZERO, &request(0, Nanos::ZERO, ms(12.0)), &mut log);
    for id in 1..8 {
        queue.apply_request(ms(3.0), &request(id, ms(3.0), ms(23.0)), &mut log);
    }
    // 12 - 3 = l(4): the head and three more, and no drop when a fifth comes.
    assert_eq!(queue.len(), 8);
    assert_eq!(log.take(), [Said::Ready(ms(4.0), Nanos::ZERO), Said::Ready(ms(3.0), Nanos::ZERO)]);
}

#[test]
fn the_fcfs_rule_drops_nothing_and_runs_late() {
    let mut queue = ModelQueue::new(terms("symphony-published", DropRule::Fcfs), Nanos::ZERO);
    let mut log = Log::default();
    queue.apply_request(Nanos::ZERO, &request(0, Nanos::ZERO, ms(1.0)), &mut log);
    log.take();
    queue.apply(ms(40.0), ModelEvent::Grant(grant(ms(40.0))), &mut log);
    let Said::Dispatch { exec_at, latest, ids } = log.take().remove(0) else { panic!("nothing was sent") };
    assert_eq!((exec_at, latest, ids), (ms(40.0), Nanos::MAX, vec![0]));
}

#[test]
fn a_grant_with_nothing_left_gives_the_gpu_back() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    queue.apply(ms(19.0), ModelEvent::Grant(grant(ms(2.0))), &mut log);
    assert_eq!(log.take(), [Said::End(1, Ending::DroppedInQueue), Said::Report(None, ms(2.0))]);
}

#[test]
fn requests_are_served_by_deadline_whatever_their_order_of_arrival() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for (id, deadline) in [(1, 20.0), (2, 18.0), (3, 19.0), (4, 20.0)] {
        queue.apply_request(Nanos::ZERO, &request(id, Nanos::ZERO, ms(deadline)), &mut log);
    }
    queue.apply(ms(9.0), ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
    assert!(log.take().contains(&Said::Dispatch {
        exec_at: ms(9.0),
        latest: ms(9.0),
        ids: vec![2, 3, 1, 4]
    }));
}

#[test]
fn a_full_queue_answers_overloaded_and_keeps_what_it_has() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..limits::MAX_QUEUE_LENGTH as u64 {
        queue.apply_request(Nanos::ZERO, &request(id, Nanos::ZERO, ms(1_000.0)), &mut log);
    }
    log.take();
    queue.apply_request(Nanos::ZERO, &request(99_999, Nanos::ZERO, ms(1_000.0)), &mut log);
    assert_eq!(log.take(), [Said::End(99_999, Ending::Overloaded)]);
    assert_eq!(queue.len(), limits::MAX_QUEUE_LENGTH);
}

#[test]
fn the_networks_delays_bring_the_decision_forward() {
    let network = Network { control: ms(0.5), data_per_request: ms(0.25), result: Nanos::ZERO };
    let mut queue = ModelQueue::new(
        QueueConfig { network, ..terms("symphony-published", DropRule::Window) },
        Nanos::ZERO,
    );
    let mut log = Log::default();
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    // frontrun = 20 - l(2) - d_data = 12.75, decided delay(1) = 0.75 before.
    assert_eq!(queue.next_timer(), ms(12.0));
    queue.apply(ms(12.0), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(14.0), ms(0.75))]);
}

#[test]
fn slack_is_taken_off_what_is_decided_and_not_off_what_the_backend_may_do() {
    let slack = Slack { frontrun: ms(0.5), latest: ms(0.25) };
    let mut queue =
        ModelQueue::new(QueueConfig { slack, ..terms("symphony-published", DropRule::Window) }, Nanos::ZERO);
    let mut log = Log::default();
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    assert_eq!(queue.next_timer(), ms(12.5));
    queue.apply(ms(12.5), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(13.75), Nanos::ZERO)]);
    queue.apply(ms(12.5), ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
    let expected = Said::Dispatch { exec_at: ms(12.5), latest: ms(14.0), ids: vec![1] };
    assert_eq!(log.take()[0], expected);
}

#[test]
fn a_flat_profile_leaves_time_between_frontrun_and_latest() {
    let profile = Profile::linear(Nanos::ZERO, ms(5.0), 64).unwrap();
    let slack = Slack { frontrun: ms(0.5), latest: ms(0.25) };
    let terms = QueueConfig { profile, slack, ..terms("symphony-published", DropRule::Window) };
    let (mut queue, mut log) = (ModelQueue::new(terms, Nanos::ZERO), Log::default());
    queue.apply_request(Nanos::ZERO, &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    assert_eq!(queue.next_timer(), ms(14.5));
    queue.apply(ms(14.5), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(14.75), Nanos::ZERO)]);
}

#[test]
fn a_stopped_queue_ends_every_request() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..3 {
        queue.apply_request(Nanos::ZERO, &request(id, Nanos::ZERO, ms(20.0)), &mut log);
    }
    queue.apply(ms(1.0), ModelEvent::Stop, &mut log);
    assert_eq!(log.take(), (0..3).map(|id| Said::End(id, Ending::Stopped)).collect::<Vec<_>>());
}

mod target {
    use super::*;
    use crate::model::selection::target_batch;

    /// (1.053, 5.072) ms and 25 ms: Symphony's Table 4.
    fn resnet() -> QueueConfig {
        QueueConfig {
            profile: Profile::linear(ms(1.053), ms(5.072), 64).unwrap(),
            slo: ms(25.0),
            ..terms("symphony-published", DropRule::Window)
        }
    }

    #[test]
    fn without_a_rate_two_batches_fit_the_slo() {
        assert_eq!(target_batch(&resnet(), 0.0), 7);
    }

    #[test]
    fn eight_staggered_gpus_call_for_the_papers_batch_of_16() {
        assert_eq!(target_batch(&resnet(), 5839.0), 16);
    }

    #[test]
    fn a_trickle_calls_for_what_arrives_within_the_slo() {
        // l(1) + 1/60 s = 22.8 ms fits, l(2) + 2/60 s does not.
        assert_eq!(target_batch(&resnet(), 60.0), 1);
    }

    #[test]
    fn the_network_takes_its_part_of_the_budget() {
        let network = Network { control: ms(0.1), data_per_request: ms(0.05), result: ms(2.0) };
        assert!(target_batch(&QueueConfig { network, ..resnet() }, 5839.0) < 16);
    }

    proptest::proptest! {
        #[test]
        fn what_it_was_before_makes_no_difference(
            rate_rps in 0.0f64..9_000.0,
            before in 1usize..80,
            slo_ms in 3.0f64..60.0,
        ) {
            let terms = QueueConfig { slo: ms(slo_ms), ..resnet() };
            let expected = target_batch(&terms, rate_rps);
            for before in [before, expected, expected + 1, (expected - 1).max(1)] {
                proptest::prop_assert_eq!(target_batch_near(&terms, rate_rps, before), expected);
            }
        }
    }
}

/// A model of `symphony` on 8 GPUs with 100 requests a second, its last batch started at 9,990 ms.
fn underway() -> (ModelQueue, Log) {
    let mut queue = ModelQueue::new(terms("symphony", DropRule::Exchange), Nanos::ZERO);
    let mut log = Log::default();
    for id in 0..1_000u64 {
        let now = ms(id as f64 * 10.0);
        queue.apply_request(now, &request(id, now, now + ms(20.0)), &mut log);
        queue.apply(now, ModelEvent::Grant(grant(now)), &mut log);
    }
    log.take();
    (queue, log)
}

#[test]
fn a_batch_is_offered_early_once_waiting_no_longer_pays_for_an_idle_gpu() {
    let (mut queue, mut log) = underway();
    // The fixed cost is 5 ms, and 1.2 times that has passed since the last batch started.
    queue.apply_request(ms(10_001.0), &request(3_000, ms(10_001.0), ms(10_021.0)), &mut log);
    assert_eq!(log.take(), [Said::Early(ms(10_015.0))]);
    // frontrun = D - l(2)
    assert_eq!(queue.next_timer(), ms(10_014.0));
    queue.apply(ms(10_014.0), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(10_015.0), Nanos::ZERO)]);
}

#[test]
fn an_early_offer_that_only_grows_is_told_anew_when_it_takes_a_third_longer() {
    let (mut queue, mut log) = underway();
    for id in 0..8 {
        queue.apply_request(ms(10_001.0), &request(3_000 + id, ms(10_001.0), ms(10_021.0)), &mut log);
    }
    // l(1) = 6, then l(4) = 9 as the first that 6 is too far from, then l(8) = 13.
    let offers = [10_015.0, 10_012.0, 10_008.0].map(|latest| Said::Early(ms(latest)));
    assert_eq!(log.take(), offers);
}

#[test]
fn requests_are_dropped_only_where_as_many_more_can_join() {
    let finish = |terms| Finish { terms, now: Nanos::ZERO, gpu_free_at: Nanos::ZERO };
    let terms = terms("symphony", DropRule::Exchange);
    let select = |rule, deadlines: &[f64]| {
        select(rule, finish(&terms), 8, 1.0, deadlines.len(), |at| ms(deadlines[at]))
    };
    // One that leaves room for two against six that can join without it.
    let one_late = [7.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0];
    assert_eq!(select(DropRule::Exchange, &one_late), Selection { dropped: 1, size: 8 });
    // Five that leave room for five against three more.
    let five_late = [10.0, 10.0, 10.0, 10.0, 10.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0];
    assert_eq!(select(DropRule::Window, &five_late), Selection { dropped: 5, size: 8 });
    assert_eq!(select(DropRule::Exchange, &five_late), Selection { dropped: 0, size: 5 });
}

#[test]
fn the_price_of_gpu_time_says_how_many_may_be_dropped_for_one_that_joins() {
    let terms = terms("symphony", DropRule::Exchange);
    let finish = Finish { terms: &terms, now: Nanos::ZERO, gpu_free_at: Nanos::ZERO };
    // Five that leave room for five against three more.
    let late = [10.0, 10.0, 10.0, 10.0, 10.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0, 13.0];
    let at = |rule, price| select(rule, finish, 8, price, late.len(), |at| ms(late[at])).dropped;
    let dropped = [0.0, 1.0, 1.6, 1.7, f32::INFINITY].map(|price| at(DropRule::Exchange, price));
    assert_eq!(dropped, [0, 0, 0, 5, 5]);
    assert_eq!([DropRule::Timeout, DropRule::Window].map(|rule| at(rule, 1.0)), [0, 5]);
}

#[test]
fn for_the_only_gpu_requests_are_dropped_once_it_is_granted_and_for_what_the_next_batch_serves() {
    // Heads that leave room for two. If they run, those behind them are too late.
    for (behind, dropped) in [(7, 2), (2, 0)] {
        for (gpus, again) in [(1, true), (1, false), (2, true)] {
            let terms = QueueConfig { gpus, ..terms("symphony", DropRule::Exchange) };
            let (mut queue, mut log) = (ModelQueue::new(terms, Nanos::ZERO), Log::default());
            // Another queue's batch comes before its own, or none does.
            queue.apply(Nanos::ZERO, ModelEvent::Grant(Grant { again, ..grant(Nanos::ZERO) }), &mut log);
            let deadlines = [7.1, 7.1].into_iter().chain((0..behind).map(|_| 12.6));
            for (id, deadline) in (0..).zip(deadlines) {
                queue.apply_request(Nanos(1), &request(id, Nanos(1), ms(deadline)), &mut log);
            }
            let ended = |log: &mut Log| {
                log.take().iter().filter(|one| matches!(one, Said::End(_, Ending::DroppedInQueue))).count()
            };
            let before = ended(&mut log);
            queue.apply(Nanos(1), ModelEvent::Grant(Grant { again, ..grant(Nanos(1)) }), &mut log);
            assert_eq!(before + ended(&mut log), dropped, "{behind} on {gpus}, {again}");
            let looks_ahead = gpus == 1 && again;
            assert_eq!(before, if looks_ahead { 0 } else { dropped }, "{behind} on {gpus}, {again}");
        }
    }
}

/// b + 5 ms for a batch of b quick requests, application 0; 4 b + 5 ms for slow ones, application
/// 1; at best half of that.
fn of_two_applications() -> QueueConfig {
    let own = [1.0, 4.0].map(|alpha| {
        let profile = Profile::linear(ms(alpha), ms(5.0), 64).unwrap();
        let half = Nanos(profile.latency(1).0 / 2);
        profile.with_best(half)
    });
    let profile = own[1].clone().of_applications(own.into());
    QueueConfig { profile, ..terms("symphony", DropRule::Exchange) }
}

#[test]
fn a_batch_takes_as_long_as_that_of_the_slowest_of_its_applications() {
    let mut queue = ModelQueue::new(of_two_applications(), Nanos::ZERO);
    let mut log = Log::default();
    for (id, application) in [(1, 0), (2, 0), (3, 1)] {
        let request = Request { application, ..request(id, Nanos::ZERO, ms(15.0)) };
        queue.apply_request(Nanos::ZERO, &request, &mut log);
    }
    assert_eq!(queue.len(), 3, "quick ones do not wait in vain");
    log.take();
    // Three would take 17 ms. Two quick ones take 7.
    queue.apply(Nanos::ZERO, ModelEvent::Grant(grant(Nanos::ZERO)), &mut log);
    let two = Said::Dispatch { exec_at: Nanos::ZERO, latest: ms(8.0), ids: vec![1, 2] };
    assert_eq!(log.take()[..2], [two, Said::Report(Some(Nanos::ZERO), ms(7.0))]);
    // A slow one takes 9 ms by itself, 4.5 ms at best: it is doubtful from 6 ms on, when a quick
    // one would not be.
    queue.apply(ms(8.0), ModelEvent::Timer, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(15.0 - 4.5 + 20.0), Nanos::ZERO)]);
    let quick = Request { application: 0, ..request(4, ms(8.0), ms(15.0)) };
    queue.apply_request(ms(8.0), &quick, &mut log);
    assert_eq!(log.take()[0], Said::End(3, Ending::DroppedInQueue));
}

proptest::proptest! {
    /// What is selected for the only GPU drops the least by now and for the next batch, which is
    /// selected from what is left and has come by then.
    #[test]
    fn looking_ahead_drops_the_least_by_now_and_the_next_batch(
        waiting in proptest::collection::vec(6_000u64..25_000, 1..30),
        target in 1usize..12,
        rate_rps in 0.0f64..2_000.0,
        price in 0.5f32..2.0,
    ) {
        let terms = terms("symphony", DropRule::Exchange);
        let mut deadlines: Vec<Nanos> = waiting.into_iter().map(Nanos::from_micros).collect();
        deadlines.sort_unstable();
        let len = deadlines.len();
        let now = ms(0.5);
        let starting = |now| Finish { terms: &terms, now, gpu_free_at: now };
        let finish = starting(now);
        let all = select(DropRule::Timeout, finish, target, 1.0, len, |at| deadlines[at]);
        let outlook =
            Outlook { price, target, now, deadline: now + terms.slo, rate_per_ns: rate_rps / 1e9 };
        let found = look_ahead(all, finish, outlook, len, |at| deadlines[at]);
        let cost = |one: Selection| {
            let over = finish.at(one.size);
            let come = (rate_rps / 1e9 * (over - now).0 as f64) as usize;
            let gaps = (0..come).map(|at| Nanos(((at as f64 + 0.5) * 1e9 / rate_rps) as u64));
            let left = deadlines[one.dropped + one.size..].iter().copied();
            let next: Vec<Nanos> = left.chain(gaps.map(|gap| outlook.deadline + gap)).collect();
            let dropped = select(DropRule::Window, starting(over), target, 1.0, next.len(), |at| next[at]).dropped;
            one.dropped as f32 + price * dropped as f32
        };
        proptest::prop_assert!(found.dropped >= all.dropped && found.dropped + found.size <= len);
        if found.size == 0 {
            proptest::prop_assert_eq!(found, all);
            return Ok(());
        }
        proptest::prop_assert!(finish.at(found.size) <= deadlines[found.dropped]);
        proptest::prop_assert!(cost(found) <= cost(all));
        // Of every number that it compares, with the largest batch behind it.
        let largest = |dropped: usize| {
            let fits = |&size: &usize| finish.at(size) <= deadlines[dropped];
            let size = (1..=len - dropped).take_while(fits).last().unwrap_or(0);
            Selection { dropped, size }
        };
        let every: Vec<_> = (all.dropped..len).map(largest).collect();
        let most = every.iter().find(|one| one.dropped + one.size == len).unwrap().dropped;
        if most - all.dropped <= 16 {
            for &one in every.iter().take_while(|one| one.dropped <= most) {
                proptest::prop_assert!(cost(found) <= cost(one), "{:?} {:?}", found, one);
            }
        }
    }

    /// A selection by applications is the one that trying each head in turn finds, and its batch
    /// is in time.
    #[test]
    fn a_selection_among_applications_is_the_first_that_fits(
        waiting in proptest::collection::vec((0u64..60, 0u8..2), 1..30),
        target in 1usize..12,
    ) {
        let terms = of_two_applications();
        let mut deadlines: Vec<u64> = waiting.iter().map(|one| one.0).collect();
        deadlines.sort_unstable();
        let requests = deadlines.iter().zip(&waiting).map(|(&at, &(_, application))| {
            Request { application, ..request(at, Nanos::ZERO, Nanos::from_millis(at)) }
        });
        let queue: VecDeque<Request> = requests.collect();
        let start = Finish { terms: &terms, now: Nanos::ZERO, gpu_free_at: ms(1.0) };
        let applications = terms.profile.applications().unwrap();
        let finish = FinishByApplication { finish: start, applications, queue: &queue };
        let deadline = |at: usize| queue[at].deadline;
        let fits = |from: usize, size: usize| {
            from + size <= queue.len() && finish.of(from, size) <= deadline(from)
        };
        let whole = (0..queue.len()).find(|&from| fits(from, queue.len() - from));
        let wanted = target.min(whole.map_or(1, |from| queue.len() - from));
        let found = select(DropRule::Window, finish, target, 1.0, queue.len(), deadline);
        match (0..queue.len()).find(|&from| fits(from, wanted)) {
            None => proptest::prop_assert_eq!(found, Selection { dropped: queue.len(), size: 0 }),
            Some(from) => {
                let size = (wanted..).take_while(|&size| fits(from, size)).last().unwrap();
                proptest::prop_assert_eq!(found, Selection { dropped: from, size });
            }
        }
        for size in 1..=queue.len() {
            let all = 0..=queue.len() - size;
            proptest::prop_assert!(all.into_iter().all(|from| finish.of(from, size) >= finish.least(size)));
        }
    }
}

/// The rows of a request, taken in together.
fn take_in(queue: &mut ModelQueue, now: Nanos, first: Request, rows: u16, log: &mut Log) {
    for row in 0..rows {
        queue.apply(now, ModelEvent::Enqueue(&Request { row, rows_after: rows - 1 - row, ..first }), log);
    }
    queue.apply(now, ModelEvent::Settle, log);
}

/// The ids of the batch that a grant sends.
fn batch_at(queue: &mut ModelQueue, now: Nanos, free_at: Nanos) -> Vec<u64> {
    let mut log = Log::default();
    queue.apply(now, ModelEvent::Grant(grant(free_at)), &mut log);
    let sent = log.take().into_iter().find_map(|said| match said {
        Said::Dispatch { ids, .. } => Some(ids),
        _ => None,
    });
    sent.unwrap_or_default()
}

#[test]
fn a_request_that_does_not_fit_whole_waits_for_the_next_batch() {
    let (mut queue, mut log) = (symphony(), Log::default());
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 6, &mut log);
    // l(15) = 20: nine of the second's ten rows would fit beside the first's six.
    take_in(&mut queue, Nanos::ZERO, request(2, Nanos::ZERO, ms(20.0)), 10, &mut log);
    assert_eq!(log.take(), [Said::Ready(ms(9.0), Nanos::ZERO)], "nothing could join, so it is due at once");
    assert_eq!(batch_at(&mut queue, Nanos::ZERO, Nanos::ZERO), [1; 6]);
    assert_eq!(batch_at(&mut queue, Nanos::ZERO, Nanos::ZERO), [2; 10]);
}

#[test]
fn frontrun_leaves_time_for_as_many_rows_as_the_last_request_had() {
    let (mut queue, mut log) = (symphony(), Log::default());
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 4, &mut log);
    // D - l(4 + 4) = 20 - 13
    assert_eq!(queue.next_timer(), ms(7.0));
}

#[test]
fn a_request_that_fits_no_batch_in_time_is_split() {
    let (mut queue, mut log) = (symphony(), Log::default());
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 20, &mut log);
    assert_eq!(batch_at(&mut queue, Nanos::ZERO, Nanos::ZERO), [1; 15]);
    assert_eq!(batch_at(&mut queue, Nanos::ZERO, Nanos::ZERO), [1; 5]);
}

#[test]
fn a_late_request_is_not_split_while_it_fits_a_batch() {
    let mut queue = ModelQueue::new(terms("work-conserving", DropRule::Fcfs), Nanos::ZERO);
    let mut log = Log::default();
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 30, &mut log);
    assert_eq!(batch_at(&mut queue, ms(16.0), Nanos::ZERO), [1; 30]);
}

#[test]
fn a_request_is_dropped_whole() {
    let (mut queue, mut log) = (symphony(), Log::default());
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 3, &mut log);
    queue.apply(ms(15.0), ModelEvent::Timer, &mut log);
    assert_eq!(log.take().iter().filter(|&said| *said == Said::End(1, Ending::DroppedInQueue)).count(), 3);
    assert!(queue.is_empty());
}

#[test]
fn a_request_whose_rows_do_not_all_fit_the_queue_is_refused_whole() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..limits::MAX_QUEUE_LENGTH as u64 - 2 {
        queue.apply(Nanos::ZERO, ModelEvent::Enqueue(&request(id, Nanos::ZERO, ms(20.0))), &mut log);
    }
    let waiting = queue.len();
    take_in_only(&mut queue, request(99_999, Nanos::ZERO, ms(20.0)), 3, &mut log);
    assert_eq!(log.take(), vec![Said::End(99_999, Ending::Overloaded); 3]);
    assert_eq!(queue.len(), waiting);
    take_in_only(&mut queue, request(99_998, Nanos::ZERO, ms(10.0)), 2, &mut log);
    assert_eq!((log.take(), queue.len()), (vec![], limits::MAX_QUEUE_LENGTH));
}

#[test]
fn a_request_that_is_taken_back_leaves_with_all_its_rows_and_no_others() {
    let (mut queue, mut log) = (symphony(), Log::default());
    for id in 0..3 {
        take_in(&mut queue, Nanos::ZERO, request(id, Nanos::ZERO, ms(20.0)), 2, &mut log);
    }
    let cancelled = request(1, Nanos::ZERO, ms(20.0));
    assert!(queue.apply(ms(1.0), ModelEvent::Cancel(&cancelled), &mut log));
    queue.apply(ms(1.0), ModelEvent::Settle, &mut log);
    assert_eq!(log.take(), vec![Said::End(1, Ending::Withdrawn); 2]);
    assert_eq!(queue.next_timer(), ms(20.0 - 11.0), "the batch has become smaller: D - l(4 + 2)");
    assert!(!queue.apply(ms(1.0), ModelEvent::Cancel(&cancelled), &mut log), "it is not there any more");
    assert!(
        !queue.apply(ms(1.0), ModelEvent::Cancel(&request(0, Nanos::ZERO, ms(19.0))), &mut log),
        "of another deadline"
    );
    assert_eq!(batch_at(&mut queue, ms(1.0), Nanos::ZERO), [0, 0, 2, 2]);
}

#[test]
fn a_candidate_whose_only_request_is_taken_back_is_withdrawn() {
    let (mut queue, mut log) = (symphony(), Log::default());
    queue.apply_request(ms(1.0), &request(1, Nanos::ZERO, ms(20.0)), &mut log);
    queue.apply(ms(13.0), ModelEvent::Timer, &mut log);
    log.take();
    assert!(queue.apply(ms(13.5), ModelEvent::Cancel(&request(1, Nanos::ZERO, ms(20.0))), &mut log));
    queue.apply(ms(13.5), ModelEvent::Settle, &mut log);
    assert_eq!(log.take(), [Said::End(1, Ending::Withdrawn), Said::Withdraw]);
    assert_eq!(queue.next_timer(), Nanos::MAX);
}

fn take_in_only(queue: &mut ModelQueue, first: Request, rows: u16, log: &mut Log) {
    for row in 0..rows {
        queue.apply(
            Nanos::ZERO,
            ModelEvent::Enqueue(&Request { row, rows_after: rows - 1 - row, ..first }),
            log,
        );
    }
}

proptest::proptest! {
    /// A batch that holds some of a request's rows and not the others holds nothing else, and could
    /// not have run them all by the request's deadline.
    #[test]
    fn a_request_is_never_split_without_need(
        requests in proptest::collection::vec((1u16..40, 0u64..4_000, 0u64..8_000, 0u64..9_000), 1..60),
    ) {
        let (mut queue, mut log) = (symphony(), Log::default());
        let mut now = Nanos::ZERO;
        for (at, (rows, gap, hurry, free_in)) in requests.into_iter().enumerate() {
            now += Nanos::from_micros(gap);
            while queue.next_timer() <= now {
                queue.apply(queue.next_timer(), ModelEvent::Timer, &mut log);
            }
            let deadline = now + ms(20.0) - Nanos::from_micros(hurry);
            take_in(&mut queue, now, request(at as u64, now, deadline), rows, &mut log);
            if at % 3 > 0 {
                continue;
            }
            let free_at = now + Nanos::from_micros(free_in);
            let batch = batch_at(&mut queue, now, free_at);
            let Some((&last, rest)) = batch.last().zip(queue.queued().next()) else { continue };
            if rest.id == last {
                proptest::prop_assert!(batch.iter().all(|&id| id == last), "{batch:?} is cut");
                let whole = batch.len() + usize::from(rest.rows_after) + 1;
                let done = free_at + symphony_profile().latency(whole);
                proptest::prop_assert!(done > rest.deadline, "{whole} rows would be done at {done:?}");
            }
        }
    }
}

fn symphony_profile() -> Profile {
    terms("symphony-published", DropRule::Window).profile
}

/// The parameters of a queue with a slack of 2 ms off frontrun and 1 ms off latest.
fn late_threads() -> QueueConfig {
    let slack = Slack { frontrun: ms(2.0), latest: ms(1.0) };
    QueueConfig { slack, ..terms("symphony-published", DropRule::Window) }
}

#[test]
fn a_backlogged_queue_offers_what_a_grant_can_still_reach() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO), Log::default());
    let mut offered = None;
    for id in 0..200 {
        // A request each half millisecond, and no GPU.
        let now = ms(id as f64 / 2.0);
        queue.apply_request(now, &request(id, now, now + ms(20.0)), &mut log);
        while queue.next_timer() <= now {
            queue.apply(now, ModelEvent::Timer, &mut log);
        }
        for said in log.take() {
            offered = match said {
                Said::Ready(latest, _) => Some(latest),
                Said::Withdraw => None,
                _ => continue,
            };
        }
        // A grant takes 1 ms of the 2 ms from frontrun to the batch's start.
        assert!(offered.is_none_or(|latest| latest >= now + ms(1.0)), "{offered:?} is offered at {now:?}");
    }
    assert!(offered.is_some(), "the queue is backlogged");
}

#[test]
fn a_queue_that_foretells_tells_of_each_head_once_and_allows_for_late_threads() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO), Log::default());
    queue.apply(Nanos::ZERO, ModelEvent::StartReserving, &mut log);
    // The target is 5, so one request more, and two for a burst: l(8) = 13 ms, of 20 ms less 2 ms.
    let silent = Said::Reserve(Reservation { at: ms(5.0), silent: true, every: Nanos::MAX });
    assert_eq!(log.take(), [silent]);
    queue.apply_request(ms(1.0), &request(1, ms(1.0), ms(21.0)), &mut log);
    queue.apply_request(ms(1.5), &request(2, ms(1.5), ms(21.5)), &mut log);
    let head = Said::Reserve(Reservation { at: ms(6.0), silent: false, every: Nanos::MAX });
    assert_eq!(log.take(), [head]);
    // A client in more of a hurry leaves less time.
    queue.apply_request(ms(2.0), &request(3, ms(2.0), ms(18.0)), &mut log);
    let head = Said::Reserve(Reservation { at: ms(3.0), silent: false, every: Nanos::MAX });
    assert_eq!(log.take(), [head]);
}

#[test]
fn a_queue_below_others_says_how_it_stands_once_and_holds_nothing_back() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO).below_others(), Log::default());
    let never = NO_DEADLINE + ms(1.0);
    queue.apply_request(ms(1.0), &request(1, ms(1.0), never), &mut log);
    let bounds = BatchBounds { shortest: ms(8.0), longest: ms(69.0), patience: ms(5.0) };
    let ready = Said::Ready(never - ms(7.0), Nanos::ZERO);
    assert_eq!(log.take(), [Said::Bounds(bounds), ready]);
    queue.apply_request(ms(2.0), &request(2, ms(2.0), NO_DEADLINE + ms(2.0)), &mut log);
    assert!(log.take().is_empty(), "the head is the same");
    assert_eq!(queue.next_timer(), Nanos::MAX, "it can wait for ever");
}

#[test]
fn a_lower_batch_is_as_large_as_can_be_over_in_time_on_late_threads() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO).below_others(), Log::default());
    for id in 0..9 {
        queue.apply_request(ms(1.0), &request(id, ms(1.0), NO_DEADLINE), &mut log);
    }
    log.take();
    queue.apply(ms(2.0), ModelEvent::Grant(Grant { until: ms(11.5), ..grant(ms(2.0)) }), &mut log);
    // l(3) = 8 ms, and 1 ms for its late start; with one more it would be over at 11 ms and not in
    // time.
    assert!(matches!(&log.take()[0], Said::Dispatch { ids, .. } if *ids == [0, 1, 2]));
    queue.apply(ms(20.0), ModelEvent::Grant(Grant { until: ms(26.5), ..grant(ms(20.0)) }), &mut log);
    assert!(matches!(&log.take()[0], Said::Report(None, _)), "not even one");
}

#[test]
fn a_long_batch_becomes_brief_for_the_last_gpu_and_takes_no_request_apart() {
    let brief = |within: f64| RuleSetting { reserve: ms(within), brief: true, ..RuleSetting::default() };
    let take_five = |reserve| {
        let mut queue = symphony().with_setting(brief(reserve));
        let mut log = Log::default();
        for id in 0..5 {
            queue.apply_request(Nanos::ZERO, &request(id, Nanos::ZERO, ms(20.0)), &mut log);
        }
        // l(6) = 11 ms, so it is due at 9 ms, and all five have to start by 10 ms.
        queue.apply(ms(9.0), ModelEvent::Timer, &mut log);
        (queue, log.take())
    };
    let (mut queue, said) = take_five(8.0);
    assert_eq!(said, [Said::Ready(ms(12.0), Nanos::ZERO)], "three of them, which take 8 ms, by 12 ms");
    let until = Grant { until: ms(17.0), ..grant(ms(9.0)) };
    let mut log = Log::default();
    queue.apply(ms(9.0), ModelEvent::Grant(until), &mut log);
    assert!(matches!(&log.take()[0], Said::Dispatch { ids, .. } if *ids == [0, 1, 2]));
    assert_eq!(batch_at(&mut take_five(8.0).0, ms(9.0), ms(9.0)), [0, 1, 2, 3, 4], "another GPU is free");
    // Not even a batch of one is as brief as that.
    assert_eq!(take_five(5.5).1, [Said::Ready(ms(10.0), Nanos::ZERO)]);
    let mut queue = symphony().with_setting(brief(8.0));
    take_in(&mut queue, Nanos::ZERO, request(1, Nanos::ZERO, ms(20.0)), 4, &mut log);
    take_in(&mut queue, Nanos::ZERO, request(2, Nanos::ZERO, ms(20.0)), 1, &mut log);
    log.take();
    queue.apply(ms(9.0), ModelEvent::Grant(until), &mut log);
    assert!(matches!(&log.take()[0], Said::Dispatch { ids, .. } if *ids == [1; 4]));
}

#[test]
fn a_queue_that_expects_no_requests_foretells_from_its_first_one_on() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO).unexpected(), Log::default());
    queue.apply(Nanos::ZERO, ModelEvent::StartReserving, &mut log);
    assert_eq!(log.take(), [Said::Reserve(Reservation::NEVER)]);
    queue.apply_request(ms(1.0), &request(1, ms(1.0), ms(21.0)), &mut log);
    assert_eq!(log.take(), [Said::Reserve(Reservation { at: ms(6.0), silent: false, every: Nanos::MAX })]);
}

#[test]
fn a_queue_that_has_lost_requests_reserves_sooner_until_that_has_faded() {
    let (mut queue, mut log) = (ModelQueue::new(late_threads(), Nanos::ZERO), Log::default());
    queue.apply(Nanos::ZERO, ModelEvent::StartReserving, &mut log);
    let silent = |at| Said::Reserve(Reservation { at, silent: true, every: Nanos::MAX });
    assert_eq!((log.take(), queue.next_timer()), (vec![silent(ms(5.0))], Nanos::MAX));
    // A client without the time for a batch says nothing.
    queue.apply_request(ms(1.0), &request(1, ms(1.0), ms(6.0)), &mut log);
    assert_eq!((log.take(), queue.next_timer()), (vec![Said::End(1, Ending::DroppedInQueue)], Nanos::MAX));
    // One that has come too late; no head has changed, so the loss tells after a window.
    queue.apply_request(ms(20.0), &request(2, ms(1.0), ms(21.0)), &mut log);
    assert_eq!(log.take(), [Said::End(2, Ending::DroppedInQueue)]);
    let mut sent = Vec::new();
    while queue.next_timer() < Nanos::MAX {
        let now = queue.next_timer();
        queue.apply(now, ModelEvent::Timer, &mut log);
        let said = log.take();
        let [Said::Reserve(Reservation { at, silent: true, .. })] = said[..] else { panic!("{said:?}") };
        sent.push((now, at));
    }
    let (last, hurried) = sent.split_last().unwrap();
    assert!(hurried.iter().all(|&(_, at)| at < ms(0.1)) && !hurried.is_empty(), "{sent:?}");
    assert!(last.1 == ms(5.0) && last.0 < Nanos::from_secs(20), "{sent:?}");
    // One that lost some before there was anybody to reserve against looks again too.
    let mut queue = ModelQueue::new(late_threads(), Nanos::ZERO);
    queue.apply_request(ms(20.0), &request(2, ms(1.0), ms(21.0)), &mut log);
    queue.apply(ms(30.0), ModelEvent::StartReserving, &mut log);
    let said = log.take();
    let [_, Said::Reserve(Reservation { at, silent: true, .. })] = said[..] else { panic!("{said:?}") };
    assert_eq!((at < ms(0.1), queue.next_timer()), (true, ms(30.0) + limits::RATE_WINDOW));
    // A timer that nobody has seen yet stays, or its offer would not be made.
    let mut queue = ModelQueue::new(late_threads(), Nanos::ZERO);
    queue.apply_request(ms(1.0), &request(3, ms(1.0), ms(31.0)), &mut log);
    let early = queue.next_timer();
    assert!(early < ms(31.0) && log.take().is_empty());
    queue.apply(early + Nanos(9), ModelEvent::StartReserving, &mut log);
    assert_eq!((log.take().len(), queue.next_timer()), (1, early));
}
