//! What the RankThread's matching decides, moment by moment.

use super::*;
use alloc::collections::VecDeque;
use proptest::prelude::*;

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

struct Bench {
    rank: RankState,
    grants: Vec<(u32, u32)>,
    /// When the batch of the last grant has to be over.
    until: Nanos,
    /// True if the batch before it was of the same model.
    again: bool,
}

impl Bench {
    fn new(gpus: usize, models: usize) -> Bench {
        let rank = RankState::new(gpus, models, false, Nanos::ZERO);
        Bench { rank, grants: Vec::new(), until: Nanos::ZERO, again: false }
    }

    fn handle(&mut self, now: Nanos, input: RankInput) {
        let Bench { rank, grants, until, again } = self;
        input.apply(rank, now, &mut |g| {
            grants.push((g.queue.0, g.gpu.0));
            (*until, *again) = (g.until, g.again);
        });
    }

    fn ready(&mut self, now: Nanos, model: u32, latest: Nanos, delay: Nanos) {
        let offer = Offer { latest, delay, early: false, ..Offer::default() };
        self.handle(now, RankInput::Ready { queue: QueueId(model), offer });
    }

    fn early(&mut self, now: Nanos, model: u32, latest: Nanos) {
        let offer = Offer { latest, delay: Nanos::ZERO, early: true, ..Offer::default() };
        self.handle(now, RankInput::Ready { queue: QueueId(model), offer });
    }

    fn report(&mut self, now: Nanos, model: u32, gpu: u32, exec_at: Option<Nanos>, free_at: Nanos) {
        let report = GpuReport { queue: QueueId(model), gpu: GpuId(gpu), exec_at, free_at };
        self.handle(now, RankInput::Report(report));
    }

    fn complete(&mut self, now: Nanos, gpu: u32, finished: Nanos) {
        let completion = Completion { gpu: GpuId(gpu), finished, ..Completion::default() };
        self.handle(now, RankInput::Completion(completion));
    }

    fn timer(&mut self, now: Nanos) {
        let grants = &mut self.grants;
        self.rank.on_timer(now, &mut |g| grants.push((g.queue.0, g.gpu.0)));
    }

    /// A bench of the same size whose matching was restored from what is saved of this one's.
    fn restored(&self) -> Bench {
        let mut restored = Bench::new(self.rank.gpus(), self.rank.models());
        restored.rank.restore_longest(self.rank.longest());
        restored.rank.restore_pool(self.rank.horizon(), self.rank.packing(), self.rank.are_all_reserved());
        self.rank.saved_gpus().for_each(|gpu| assert!(restored.rank.restore_gpu(gpu)));
        self.rank.saved_models().for_each(|model| assert!(restored.rank.restore_model(model)));
        self.rank.saved_shares().for_each(|share| assert!(restored.rank.restore_share(share)));
        assert!(restored.rank.saved_models().eq(self.rank.saved_models()));
        assert!(restored.rank.saved_shares().eq(self.rank.saved_shares()));
        restored
    }

    /// Gives `gpu` to `model` and has it run from `now` until `free_at`.
    fn occupy(&mut self, now: Nanos, model: u32, gpu: u32, free_at: Nanos) {
        self.ready(now, model, Nanos::from_secs(1_000), Nanos::ZERO);
        assert_eq!(self.grants.pop(), Some((model, gpu)));
        self.report(now, model, gpu, Some(now), free_at);
    }
}

#[test]
fn a_gpu_whose_host_is_gone_is_granted_to_nobody_until_it_is_back() {
    let mut bench = Bench::new(2, 3);
    let presence = |gpu, is_up| RankInput::Presence { gpu: GpuId(gpu), is_up };
    bench.occupy(ms(0), 0, 0, ms(5));
    bench.handle(ms(1), presence(0, false));
    bench.complete(ms(1), 0, ms(1));
    bench.handle(ms(1), presence(1, false));
    bench.ready(ms(2), 1, ms(50), Nanos::ZERO);
    bench.timer(ms(3));
    assert_eq!((bench.grants.as_slice(), bench.rank.busy_gpus()), (&[][..], 0));
    bench.handle(ms(4), presence(1, true));
    assert_eq!(bench.grants, [(1, 1)]);
    bench.ready(ms(5), 2, ms(50), Nanos::ZERO);
    assert_eq!(bench.grants.len(), 1);
    bench.handle(ms(6), presence(0, true));
    assert_eq!(bench.grants, [(1, 1), (2, 0)]);
}

#[test]
fn a_gpu_that_goes_while_it_is_granted_is_hidden_after_its_report() {
    let mut bench = Bench::new(1, 2);
    bench.ready(ms(0), 0, ms(50), Nanos::ZERO);
    bench.handle(ms(1), RankInput::Presence { gpu: GpuId(0), is_up: false });
    // Whoever has the link refuses the batch, so that its completion overtakes the report.
    bench.complete(ms(1), 0, ms(1));
    bench.report(ms(1), 0, 0, Some(ms(1)), ms(5));
    bench.ready(ms(2), 1, ms(50), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0)]);
    bench.handle(ms(3), RankInput::Presence { gpu: GpuId(0), is_up: true });
    assert_eq!(bench.grants, [(0, 0), (1, 0)]);
}

#[test]
fn a_grant_says_whether_the_last_batch_was_of_the_same_model() {
    let mut bench = Bench::new(1, 2);
    let mut is_again = |at, model, runs: bool| {
        bench.ready(ms(at), model, ms(1_000), Nanos::ZERO);
        let again = bench.again;
        let exec_at = runs.then_some(ms(at));
        bench.report(ms(at), model, 0, exec_at, ms(at + if runs { 5 } else { 0 }));
        if runs {
            bench.complete(ms(at + 5), 0, ms(at + 5));
        }
        bench = bench.restored();
        again
    };
    assert!(is_again(0, 1, true), "no batch has run");
    assert!(is_again(10, 1, true));
    assert!(!is_again(20, 0, false));
    assert!(is_again(20, 1, true), "the other model gave the GPU back unused");
    assert!(!is_again(30, 0, true));
    assert!(is_again(40, 0, true));
    assert!(!is_again(50, 1, true));
}

#[test]
fn the_lowest_numbered_idle_gpu_is_granted() {
    let mut bench = Bench::new(3, 3);
    bench.ready(ms(1), 0, ms(5), Nanos::ZERO);
    bench.ready(ms(1), 1, ms(5), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0), (1, 1)]);
    bench.report(ms(1), 0, 0, Some(ms(1)), ms(2));
    bench.complete(ms(2), 0, ms(2));
    bench.ready(ms(3), 2, ms(5), Nanos::ZERO);
    assert_eq!(bench.grants[2], (2, 0));
}

#[test]
fn a_gpu_that_will_be_free_by_the_start_counts_as_free() {
    let mut bench = Bench::new(2, 3);
    bench.occupy(ms(1), 0, 0, ms(10));
    bench.ready(ms(8), 1, ms(20), ms(2));
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn a_batch_is_sent_ahead_of_the_end_of_the_one_before_it() {
    let mut bench = Bench::new(1, 3);
    bench.rank = bench.rank.sending_ahead(ms(2));
    bench.occupy(ms(1), 0, 0, ms(10));
    bench.ready(ms(3), 1, ms(50), Nanos::ZERO);
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (0, ms(8)));
    bench.timer(ms(8));
    assert_eq!(bench.grants, [(1, 0)]);
    bench.report(ms(8), 1, 0, Some(ms(10)), ms(30));
    // One batch: the next goes when this one is about to end, also if the first ends late.
    bench.ready(ms(8), 2, ms(60), Nanos::ZERO);
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (1, ms(28)));
    bench.complete(ms(14), 0, ms(14));
    bench.timer(ms(28));
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (1, ms(32)));
    bench.timer(ms(32));
    assert_eq!(bench.grants, [(1, 0), (2, 0)]);
}

#[test]
fn a_gpu_that_idles_is_granted_before_one_that_will_be_free() {
    let mut bench = Bench::new(2, 3);
    bench.rank = bench.rank.sending_ahead(ms(2));
    bench.occupy(ms(1), 0, 0, ms(10));
    bench.ready(ms(9), 1, ms(50), Nanos::ZERO);
    bench.ready(ms(9), 2, ms(50), Nanos::ZERO);
    assert_eq!(bench.grants, [(1, 1), (2, 0)]);
}

#[test]
fn of_those_that_wait_the_earliest_latest_goes_first() {
    let mut bench = Bench::new(1, 4);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(1), 1, ms(30), Nanos::ZERO);
    bench.ready(ms(2), 2, ms(20), Nanos::ZERO);
    assert_eq!(bench.rank.next_timer(), ms(10));
    bench.complete(ms(10), 0, ms(10));
    assert_eq!(bench.grants, [(2, 0)]);
}

#[test]
fn a_candidate_that_can_no_longer_start_in_time_leaves() {
    let mut bench = Bench::new(1, 3);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(1), 1, ms(9), Nanos::ZERO);
    bench.ready(ms(1), 2, ms(12), Nanos::ZERO);
    bench.complete(ms(10), 0, ms(10));
    bench.timer(ms(10));
    assert_eq!(bench.grants, [(2, 0)]);
}

#[test]
fn an_early_completion_frees_its_gpu_early() {
    let mut bench = Bench::new(1, 2);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(1), 1, ms(8), Nanos::ZERO);
    assert_eq!(bench.grants, []);
    bench.complete(ms(7), 0, ms(7));
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn an_overdue_gpu_gets_nothing_until_it_says_that_it_is_done() {
    let mut bench = Bench::new(1, 2);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(11), 1, ms(40), Nanos::ZERO);
    bench.timer(ms(12));
    assert_eq!(bench.grants, []);
    bench.complete(ms(15), 0, ms(15));
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn a_gpu_is_overdue_once_its_completion_takes_longer_than_the_network_does() {
    let mut bench = Bench::new(1, 3);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.handle(ms(1), RankInput::CompletionDelay(ms(2)));
    bench.ready(ms(11), 1, ms(40), Nanos::ZERO);
    assert_eq!(bench.grants.pop(), Some((1, 0)), "its completion may be on its way");
    bench.report(ms(11), 1, 0, Some(ms(11)), ms(20));
    bench.handle(ms(12), RankInput::CompletionDelay(ms(1)));
    bench.ready(ms(22), 2, ms(60), Nanos::ZERO);
    assert_eq!(bench.grants, [], "it is 2 ms late");
}

#[test]
fn a_completion_may_overtake_the_report_of_its_batch() {
    let mut bench = Bench::new(1, 2);
    bench.ready(ms(1), 0, ms(5), Nanos::ZERO);
    bench.complete(ms(2), 0, ms(2));
    bench.report(ms(2), 0, 0, Some(ms(1)), ms(30));
    bench.ready(ms(3), 1, ms(9), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0), (1, 0)]);
}

#[test]
fn a_granted_model_is_not_heard_until_it_reports() {
    let mut bench = Bench::new(2, 1);
    bench.ready(ms(1), 0, ms(5), Nanos::ZERO);
    bench.ready(ms(1), 0, ms(6), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0)]);
    bench.report(ms(1), 0, 0, Some(ms(1)), ms(3));
    bench.ready(ms(1), 0, ms(6), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0), (0, 1)]);
}

#[test]
fn a_withdrawn_candidate_is_not_granted() {
    let mut bench = Bench::new(1, 2);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(1), 1, ms(30), Nanos::ZERO);
    RankInput::Withdraw(QueueId(1)).apply(&mut bench.rank, ms(2), &mut |_| panic!("nothing to grant"));
    bench.complete(ms(10), 0, ms(10));
    assert_eq!(bench.grants, []);
    assert_eq!(bench.rank.next_timer(), Nanos::MAX);
}

#[test]
fn a_gpu_given_back_unused_is_granted_again_at_once() {
    let mut bench = Bench::new(1, 2);
    bench.ready(ms(1), 0, ms(5), Nanos::ZERO);
    bench.ready(ms(1), 1, ms(5), Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0)]);
    bench.report(ms(1), 0, 0, None, Nanos::ZERO);
    assert_eq!(bench.grants, [(0, 0), (1, 0)]);
}

#[test]
fn a_late_completion_moves_the_batch_behind_it() {
    let mut bench = Bench::new(1, 3);
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.ready(ms(9), 1, ms(30), ms(1));
    assert_eq!(bench.grants.pop(), Some((1, 0)));
    bench.report(ms(9), 1, 0, Some(ms(10)), ms(18));
    bench.ready(ms(11), 2, ms(30), Nanos::ZERO);
    // The first batch ends 4 ms late: the second, of 8 ms, now ends at 22 instead of 18. Matching
    // looks at it the largest delay, 1 ms, before, and then when the candidate at hand needs it.
    bench.complete(ms(14), 0, ms(14));
    assert_eq!(bench.rank.next_timer(), ms(21));
    bench.timer(ms(21));
    assert_eq!(bench.rank.next_timer(), ms(22));
}

#[test]
fn a_gpu_is_given_no_more_batches_than_the_limit() {
    let mut bench = Bench::new(1, 1);
    for batch in 0..limits::MAX_OUTSTANDING_BATCHES as u64 {
        bench.ready(ms(batch), 0, ms(1_000), ms(500));
        assert_eq!(bench.grants.pop(), Some((0, 0)));
        bench.report(ms(batch), 0, 0, Some(ms(batch + 500)), ms(batch + 501));
    }
    bench.ready(ms(9), 0, ms(1_000), ms(500));
    assert_eq!(bench.grants, []);
    bench.complete(ms(501), 0, ms(501));
    assert_eq!(bench.grants, [(0, 0)]);
}

#[test]
fn an_early_candidate_gets_one_of_the_gpus_that_the_load_needs() {
    // Of 12 that nobody has used, that is one.
    let mut bench = Bench::new(12, 12);
    bench.early(ms(1), 0, Nanos::from_secs(2_000));
    bench.early(ms(1), 1, Nanos::from_secs(2_001));
    assert_eq!(bench.grants, [(0, 0)]);
    bench.ready(ms(1), 2, Nanos::from_secs(2_002), Nanos::ZERO);
    assert_eq!(bench.grants[1..], [(2, 1)], "a due one may have any, and need not wait behind an early one");
    bench.report(ms(1), 0, 0, Some(ms(1)), ms(9_000));
    bench.report(ms(1), 2, 1, Some(ms(1)), ms(5_000));
    // Two have been busy for five seconds: two are needed.
    bench.complete(ms(5_000), 1, ms(5_000));
    assert_eq!(bench.grants[2..], [(1, 1)]);
}

#[test]
fn an_early_candidate_waits_for_the_gpus_that_it_may_have() {
    let mut bench = Bench::new(12, 3);
    bench.occupy(ms(0), 1, 0, ms(10));
    let offer = Offer { latest: ms(30), delay: ms(2), early: true, ..Offer::default() };
    bench.handle(ms(1), RankInput::Ready { queue: QueueId(0), offer });
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (0, ms(8)), "eleven others idle");
    bench.timer(ms(8));
    assert_eq!(bench.grants, [(0, 0)]);
}

#[test]
fn of_early_and_due_candidates_the_earlier_latest_goes_first() {
    let mut bench = Bench::new(1, 4);
    bench.occupy(ms(0), 3, 0, ms(10));
    bench.early(ms(1), 0, ms(20));
    bench.ready(ms(1), 1, ms(25), Nanos::ZERO);
    bench.complete(ms(10), 0, ms(10));
    assert_eq!(bench.grants, [(0, 0)]);
    bench.report(ms(10), 0, 0, Some(ms(10)), ms(12));
    bench.early(ms(10), 2, ms(30));
    bench.complete(ms(12), 0, ms(12));
    assert_eq!(bench.grants, [(0, 0), (1, 0)]);
}

#[test]
fn a_candidate_is_early_or_due_but_not_both() {
    let mut bench = Bench::new(1, 2);
    bench.occupy(ms(0), 1, 0, ms(10));
    bench.early(ms(1), 0, ms(20));
    bench.ready(ms(2), 0, ms(18), Nanos::ZERO);
    bench.handle(ms(3), RankInput::Withdraw(QueueId(0)));
    bench.complete(ms(10), 0, ms(10));
    assert_eq!(bench.grants, []);
}

/// An offer of a batch that leaves the last GPU that is free within 2 ms.
fn long(latest: Nanos, early: bool) -> Offer {
    Offer { latest, delay: Nanos::ZERO, early, leaves: ms(2), ..Offer::default() }
}

#[test]
fn a_long_batch_leaves_the_last_gpu_that_is_free_soon() {
    let mut bench = Bench::new(3, 5);
    let offer = |model, offer| RankInput::Ready { queue: QueueId(model), offer };
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.handle(ms(1), offer(1, long(ms(30), false)));
    assert_eq!(bench.grants, [(1, 1)], "one more is free");
    bench.report(ms(1), 1, 1, Some(ms(1)), ms(50));
    bench.handle(ms(1), offer(2, long(ms(20), false)));
    bench.handle(ms(1), offer(3, long(ms(25), true)));
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (1, ms(8)), "GPU 0 is free within 2 ms then");
    bench.ready(ms(2), 4, ms(40), Nanos::ZERO);
    assert_eq!(bench.grants[1..], [(4, 2)], "a short one need not wait behind them");
    bench.report(ms(2), 4, 2, Some(ms(2)), ms(4));
    bench.complete(ms(4), 2, ms(4));
    bench.timer(ms(8));
    assert_eq!(bench.grants[2..], [(2, 2)]);
    bench.report(ms(8), 2, 2, Some(ms(8)), ms(9));
    bench.handle(ms(8), RankInput::Withdraw(QueueId(3)));
    bench.complete(ms(9), 2, ms(9));
    bench.complete(ms(10), 0, ms(10));
    assert_eq!(bench.grants.len(), 3, "none waits any more");
}

#[test]
fn a_batch_that_shrinks_takes_the_last_gpu_for_as_long_as_others_can_wait() {
    let mut bench = Bench::new(3, 4);
    let offer = |model, latest| {
        let offer = Offer { shrinks: true, ..long(ms(latest), false) };
        RankInput::Ready { queue: QueueId(model), offer }
    };
    bench.occupy(ms(0), 0, 0, ms(10));
    bench.handle(ms(1), offer(1, 30));
    assert_eq!((bench.grants.as_slice(), bench.until), (&[(1, 1)][..], Nanos::MAX), "one more is free");
    bench.report(ms(1), 1, 1, Some(ms(1)), ms(50));
    bench.handle(ms(1), offer(2, 20));
    assert_eq!((bench.grants[1], bench.until), ((2, 2), ms(3)), "no other is within 2 ms");
    bench.report(ms(1), 2, 2, Some(ms(1)), ms(9));
    bench.handle(ms(9), offer(3, 30));
    bench.complete(ms(9), 2, ms(9));
    assert_eq!((bench.grants[2], bench.until), ((3, 2), Nanos::MAX), "GPU 0 is free at 10 ms");
}

#[test]
fn long_batches_that_wait_are_saved_and_restored() {
    let mut bench = Bench::new(2, 4);
    bench.occupy(ms(0), 0, 0, ms(10));
    for (model, early) in [(1, false), (2, true)] {
        let offer = long(ms(30), early);
        bench.handle(ms(1), RankInput::Ready { queue: QueueId(model), offer });
    }
    let mut restored = bench.restored();
    restored.timer(ms(2));
    assert_eq!((restored.grants.as_slice(), restored.rank.next_timer()), (&[][..], ms(8)));
    restored.timer(ms(8));
    assert_eq!(restored.grants, [(1, 1)]);
}

#[test]
fn precedence_goes_before_others_by_a_part_of_the_longest_batch_and_waits() {
    let mut bench = Bench::new(1, 4);
    let preceding = |model, latest, part| {
        let offer = Offer { latest, precedence: WHOLE_PRECEDENCE / part, ..Offer::default() };
        RankInput::Ready { queue: QueueId(model), offer }
    };
    // A batch of 16 ms.
    bench.occupy(ms(0), 0, 0, ms(16));
    bench.ready(ms(1), 1, ms(20), Nanos::ZERO);
    bench.handle(ms(1), preceding(2, ms(25), 2));
    bench.handle(ms(1), preceding(3, ms(23), 4));
    let restored = bench.restored();
    for mut bench in [bench, restored] {
        bench.complete(ms(16), 0, ms(16));
        assert_eq!(bench.grants, [(2, 0)], "25 - 8 is before 23 - 4 and 20");
        bench.report(ms(16), 2, 0, Some(ms(16)), ms(18));
        bench.complete(ms(18), 0, ms(18));
        assert_eq!(bench.grants[1..], [(3, 0)]);
        bench.report(ms(18), 3, 0, Some(ms(18)), ms(24));
        bench.handle(ms(19), preceding(2, ms(22), 2));
        bench.ready(ms(20), 3, ms(40), Nanos::ZERO);
        bench.complete(ms(24), 0, ms(24));
        assert_eq!(bench.grants[2..], [(2, 0)], "it has waited, though its batch is late then");
        bench.report(ms(24), 2, 0, None, ms(24));
        assert_eq!(bench.grants[3..], [(3, 0)], "that of model 1 was late at 24 ms, and forgotten");
    }
}

#[test]
fn a_model_that_has_had_far_more_than_an_overloaded_one_is_sent_ahead_no_farther() {
    let mut bench = Bench::new(2, 3);
    bench.occupy(ms(0), 0, 0, ms(30));
    bench.occupy(ms(0), 1, 1, ms(12));
    bench.complete(ms(12), 1, ms(12));
    bench.occupy(ms(12), 2, 1, ms(30));
    // Model 2 has had 18 ms, model 0 30, and model 1, which is overloaded, 12.
    let overloaded = Offer { latest: ms(22), delay: ms(2), precedence: 1, ..Offer::default() };
    bench.handle(ms(20), RankInput::Ready { queue: QueueId(1), offer: overloaded });
    bench.handle(ms(21), RankInput::Withdraw(QueueId(1)));
    bench.ready(ms(22), 0, ms(40), ms(5));
    bench.ready(ms(22), 2, ms(50), ms(5));
    let restored = bench.restored();
    for mut bench in [bench, restored] {
        bench.timer(ms(25));
        assert_eq!((bench.grants.as_slice(), bench.rank.next_timer()), (&[][..], ms(28)));
        bench.timer(ms(28));
        assert_eq!(bench.grants, [(0, 0), (2, 1)]);
    }
}

#[test]
fn a_model_is_sent_ahead_again_once_none_is_overloaded() {
    let mut bench = Bench::new(1, 2);
    bench.occupy(ms(0), 0, 0, ms(30));
    let overloaded = Offer { latest: ms(90), delay: ms(5), precedence: 1, ..Offer::default() };
    bench.handle(ms(1), RankInput::Ready { queue: QueueId(1), offer: overloaded });
    bench.handle(ms(2), RankInput::Withdraw(QueueId(1)));
    bench.complete(ms(30), 0, ms(30));
    bench.occupy(ms(30), 0, 0, ms(60));
    bench.ready(ms(31), 0, ms(90), ms(5));
    bench.timer(ms(55));
    assert_eq!(
        bench.grants,
        [(0, 0)],
        "the last offer of model 1 is longer ago than the longest batch takes"
    );
}

#[test]
fn a_long_batch_has_the_only_gpu() {
    let mut bench = Bench::new(2, 1);
    bench.handle(ms(0), RankInput::Presence { gpu: GpuId(0), is_up: false });
    bench.handle(ms(1), RankInput::Ready { queue: QueueId(0), offer: long(ms(30), false) });
    assert_eq!(bench.grants, [(0, 1)]);
}

#[test]
fn a_long_candidate_that_becomes_short_may_have_the_last_gpu() {
    let mut bench = Bench::new(2, 2);
    bench.occupy(ms(0), 0, 0, ms(100));
    bench.handle(ms(1), RankInput::Ready { queue: QueueId(1), offer: long(ms(30), false) });
    bench.timer(ms(2));
    assert_eq!(bench.grants, []);
    bench.ready(ms(3), 1, ms(30), Nanos::ZERO);
    assert_eq!(bench.grants, [(1, 1)]);
}

/// A bench of `models` queues, of which the last is of class 1.
fn with_a_lower(gpus: usize, models: usize) -> Bench {
    let class = |model| if model + 1 == models { Class::new(1).unwrap() } else { Class::HIGHEST };
    let mut bench = Bench::new(gpus, models);
    bench.rank = bench.rank.among_classes((0..models).map(class).collect());
    bench
}

/// How model 1, of class 1, stands: a batch of one takes 5 ms.
fn bounds() -> RankInput {
    let bounds = BatchBounds { shortest: ms(5), longest: ms(50), patience: ms(90) };
    RankInput::Bounds { queue: QueueId(1), bounds }
}

fn reserve(at: Nanos, silent: bool) -> RankInput {
    RankInput::Reserve { queue: QueueId(0), reservation: Reservation { at, silent, every: Nanos::MAX } }
}

#[test]
fn a_lower_class_waits_until_all_that_those_above_will_need_is_foretold() {
    let mut bench = with_a_lower(2, 2);
    bench.handle(ms(1), bounds());
    bench.ready(ms(1), 1, ms(100), Nanos::ZERO);
    bench.handle(ms(2), reserve(ms(1_000), false));
    assert!(bench.grants.is_empty(), "others may start sooner");
    bench.handle(ms(3), RankInput::AllReserved);
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn a_lower_class_that_has_not_said_how_long_it_takes_gets_nothing() {
    let mut bench = with_a_lower(1, 2);
    bench.handle(ms(1), RankInput::AllReserved);
    bench.ready(ms(1), 1, ms(100), Nanos::ZERO);
    assert!(bench.grants.is_empty());
    bench.handle(ms(2), bounds());
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn a_lower_class_gets_a_gpu_whose_completion_is_of_a_moment_after_the_threads_clock() {
    let mut bench = with_a_lower(1, 2);
    bench.handle(ms(1), bounds());
    bench.handle(ms(1), RankInput::Reserve { queue: QueueId(0), reservation: Reservation::NEVER });
    bench.handle(ms(1), RankInput::AllReserved);
    bench.occupy(ms(1), 1, 0, ms(6));
    bench.ready(ms(2), 1, ms(1_000), Nanos::ZERO);
    bench.complete(ms(7), 0, ms(7) + Nanos(1));
    assert_eq!((bench.grants.len(), bench.rank.next_timer()), (0, ms(7) + Nanos(1)));
    bench.timer(ms(7) + Nanos(1));
    assert_eq!(bench.grants, [(1, 0)]);
}

#[test]
fn a_place_without_a_model_needs_no_gpu() {
    let mut bench = with_a_lower(1, 2);
    bench.handle(ms(1), bounds());
    bench.handle(ms(1), reserve(ms(4), true));
    bench.handle(ms(1), RankInput::AllReserved);
    bench.ready(ms(1), 1, ms(100), Nanos::ZERO);
    assert!(bench.grants.is_empty(), "a request that comes now needs the GPU in 4 ms");
    bench.handle(ms(2), RankInput::Reserve { queue: QueueId(0), reservation: Reservation::NEVER });
    assert_eq!(bench.grants, [(1, 0)]);
}

/// A bench of 600 idle GPUs, where a batch of model 1, of class 1, waits until 100 ms, and a look
/// ahead finds after 512 starts of model 0 that it can't run.
fn with_long_looks() -> Bench {
    let mut bench = with_a_lower(600, 2);
    bench.handle(ms(1), bounds());
    let often = Reservation { at: ms(2), silent: false, every: Nanos::from_micros(1) };
    bench.handle(ms(1), RankInput::Reserve { queue: QueueId(0), reservation: often });
    bench.handle(ms(1), RankInput::AllReserved);
    bench.ready(ms(1), 1, ms(100), Nanos::ZERO);
    bench
}

#[test]
fn a_lower_class_that_waits_in_vain_costs_few_steps_for_each_matching_and_each_microsecond() {
    let mut bench = with_long_looks();
    let paid_by = |bench: &Bench| bench.rank.looks_paid_by().unwrap();
    let (mut now, mut steps) = (ms(1), 0);
    for _ in 0..10_000 {
        now += Nanos(100);
        let still_owed = paid_by(&bench) - now - Nanos::from_micros(2);
        bench.timer(now);
        steps += (paid_by(&bench) - now - still_owed).0 / 2_000;
    }
    // One for each matching, one for each of 500 times 2 us, and two looks.
    assert!(bench.grants.is_empty() && (9_000..11_600).contains(&steps), "{steps} steps");
}

#[test]
fn a_lower_class_that_can_run_gets_its_gpu_once_its_looks_are_paid_for() {
    let mut bench = with_long_looks();
    for _ in 0..5 {
        bench.timer(ms(1));
    }
    bench.handle(ms(1), RankInput::Reserve { queue: QueueId(0), reservation: Reservation::NEVER });
    assert!(bench.grants.is_empty(), "no look is paid for");
    let next_look = bench.rank.next_timer();
    assert!(ms(1) < next_look && next_look < ms(3), "{next_look:?}");
    bench.timer(next_look);
    assert_eq!((bench.grants, bench.rank.next_timer()), (vec![(1, 0)], Nanos::MAX));
}

/// A GPU and the rings from it: a batch is a planned start, a planned duration, and a real finish.
#[derive(Default)]
struct DelayedGpu {
    report: Option<GpuReport>,
    /// The batches whose completions have not arrived.
    batches: VecDeque<(Nanos, Nanos, Nanos)>,
    /// When it really finished the batches whose completions have arrived, and when it finishes
    /// all.
    completed: Nanos,
    finishes: Nanos,
}

impl DelayedGpu {
    /// Uses a grant for a batch of `duration` that really takes `real`, or gives it back.
    fn use_grant(&mut self, now: Nanos, grant: Grant, batch: Option<(Nanos, Nanos)>) {
        let exec_at = now.max(grant.free_at);
        let free_at = exec_at + batch.map_or(Nanos::ZERO, |(duration, _)| duration);
        let sent = batch.map(|_| exec_at);
        self.report = Some(GpuReport { queue: grant.queue, gpu: grant.gpu, exec_at: sent, free_at });
        if let Some((duration, real)) = batch {
            self.finishes = exec_at.max(self.finishes) + real;
            self.batches.push_back((exec_at, duration, self.finishes));
        }
    }

    /// When the GPU is free as far as anyone can know once its report has arrived; `None` if it has
    /// several batches.
    fn known_free_at(&self) -> Option<Nanos> {
        match self.batches.iter().next_back() {
            None => Some(self.completed),
            Some(&(exec_at, duration, _)) if self.batches.len() == 1 => {
                Some(exec_at.max(self.completed) + duration)
            }
            Some(_) => None,
        }
    }
}

proptest! {
    /// Reports and completions of a GPU come on rings of their own, delayed by any amount.
    #[test]
    fn a_report_that_comes_late_leaves_what_completions_have_said(
        steps in prop::collection::vec((0u8..4, 0u64..9, 0u64..9, any::<bool>()), 1..200),
    ) {
        let (mut rank, mut now) = (RankState::new(1, 1, false, Nanos::from_secs(1)), ms(1));
        let mut gpu = DelayedGpu::default();
        for (step, a, b, used) in steps {
            match step {
                0 => now += ms(a),
                1 => {
                    let offer = Offer { latest: Nanos::from_secs(1_000), delay: ms(a), early: false, ..Offer::default() };
                    let batch = used.then_some((ms(1 + a), ms(1 + b)));
                    let mut granted = None;
                    let ready = RankInput::Ready { queue: QueueId(0), offer };
                    ready.apply(&mut rank, now, &mut |grant| granted = Some(grant));
                    granted.into_iter().for_each(|grant| gpu.use_grant(now, grant, batch));
                    // Nothing waits: a grant that follows from another input would be lost here.
                    RankInput::Withdraw(QueueId(0)).apply(&mut rank, now, &mut |_| ());
                }
                2 => {
                    let report = gpu.report.take().map(RankInput::Report);
                    report.into_iter().for_each(|report| report.apply(&mut rank, now, &mut |_| ()));
                }
                _ => {
                    if let Some((_, _, finished)) = gpu.batches.pop_front_if(|batch| batch.2 <= now) {
                        gpu.completed = finished;
                        let completion = Completion { finished, ..Completion::default() };
                        RankInput::Completion(completion).apply(&mut rank, now, &mut |_| ());
                    }
                }
            }
            if gpu.report.is_none()
                && let (Some(known), Some(saved)) = (gpu.known_free_at(), rank.saved_gpus().next())
            {
                prop_assert_eq!(saved.free_at, known);
            }
        }
    }
}
