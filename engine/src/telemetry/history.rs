//! The recent past, with which the present is compared: a sample a second of how busy the GPUs
//! were, and of the numbers of good and bad requests.

use super::advice::RecentLoad;
use super::outcome::InferOutcome;
use std::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The interval between two samples.
const SAMPLE_EVERY: Nanos = Nanos::from_secs(1);

/// The number of samples of each GPU's busy time that are kept: one more than the number of seconds
/// that "the last seconds" are.
pub(super) const SAMPLES: usize = 11;

/// The number of seconds of which the dashboard can show the past.
pub(super) const SECONDS: usize = 121;

/// The most models that the dashboard shows, and whose past is kept.
pub(super) const HISTORY_MODELS: usize = 64;

/// The numbers of a model's requests up to a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OutcomeTotals {
    /// The requests answered in time.
    pub(super) good: u64,
    /// The bad requests, whatever the cause.
    pub(super) bad: u64,
}

impl OutcomeTotals {
    /// Returns the totals of these outcomes.
    pub(super) fn of(outcomes: &[u64; InferOutcome::COUNT]) -> OutcomeTotals {
        let bad = InferOutcome::ALL.into_iter().filter(|outcome| outcome.is_bad());
        OutcomeTotals {
            good: outcomes[InferOutcome::Good as usize],
            bad: bad.map(|outcome| outcomes[outcome as usize]).sum(),
        }
    }
}

/// The counts up to a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct HistorySample {
    /// The moment.
    pub(super) at: Nanos,
    /// The time for which all GPUs together had been busy.
    pub(super) busy: Nanos,
    /// The requests of all models together, by outcome.
    pub(super) outcomes: [u64; InferOutcome::COUNT],
    /// The requests of the models that are shown, by id.
    pub(super) models: Vec<(ModelId, OutcomeTotals)>,
}

impl HistorySample {
    /// Returns the totals of a model's requests: zeros before the first one.
    pub(super) fn of(&self, model: ModelId) -> OutcomeTotals {
        let found = self.models.binary_search_by_key(&model, |&(id, _)| id);
        found.map_or(OutcomeTotals::default(), |at| self.models[at].1)
    }
}

/// The history of the load. See the module's description.
#[derive(Debug, Default)]
pub(super) struct LoadHistory {
    seconds: VecDeque<HistorySample>,
    /// The time for which each GPU had been busy, at the last of these seconds.
    busy: VecDeque<Vec<Nanos>>,
}

impl LoadHistory {
    /// Returns true if a sample is due.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.seconds.back().is_none_or(|last| now >= last.at + SAMPLE_EVERY)
    }

    /// Adds a sample: `second`, whose `busy` is the sum of `busy`, the busy time of each GPU.
    pub(super) fn add(&mut self, mut second: HistorySample, busy: Vec<Nanos>) {
        second.busy = busy.iter().fold(Nanos::ZERO, |sum, &busy| sum + busy);
        if self.seconds.len() == SECONDS {
            self.seconds.pop_front();
        }
        if self.busy.len() == SAMPLES {
            self.busy.pop_front();
        }
        self.seconds.push_back(second);
        self.busy.push_back(busy);
    }

    /// Returns the samples, oldest first.
    pub(super) fn seconds(&self) -> &VecDeque<HistorySample> {
        &self.seconds
    }

    /// Returns the share of the last seconds in which each GPU ran batches, 0 to 1. A batch counts
    /// when it ends.
    pub(super) fn utilization(&self) -> Vec<f64> {
        let (Some((from, to)), Some(before), Some(after)) =
            (self.ends(), self.busy.front(), self.busy.back())
        else {
            return Vec::new();
        };
        let seconds = (to.at - from.at).as_secs_f64();
        let share = |(before, after): (&Nanos, &Nanos)| ((*after - *before).as_secs_f64() / seconds).min(1.0);
        before.iter().zip(after).map(share).collect()
    }

    /// Returns the load of the last seconds; `None` before there are two samples.
    pub(super) fn load(&self) -> Option<RecentLoad> {
        let (from, to) = self.ends()?;
        let ended = |outcome: InferOutcome| to.outcomes[outcome as usize] - from.outcomes[outcome as usize];
        let good = ended(InferOutcome::Good);
        let bad: u64 = InferOutcome::ALL.into_iter().filter(|outcome| outcome.is_bad()).map(ended).sum();
        Some(RecentLoad {
            gpus: self.busy.back()?.len(),
            busy: (to.busy - from.busy).as_secs_f64() / (to.at - from.at).as_secs_f64(),
            bad_rate: bad as f64 / (good + bad).max(1) as f64,
        })
    }

    /// Returns the first and the last sample of the last seconds, if these are two.
    fn ends(&self) -> Option<(&HistorySample, &HistorySample)> {
        let from = self.seconds.len() - self.busy.len();
        let (from, to) = (self.seconds.get(from)?, self.seconds.back()?);
        (to.at > from.at).then_some((from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_of_the_last_ten_seconds() {
        let mut past = LoadHistory::default();
        assert!(past.utilization().is_empty() && past.load().is_none());
        let (mut busy, mut outcomes) = (Nanos::ZERO, [0; InferOutcome::COUNT]);
        for second in 0..40 {
            let at = Nanos::from_secs(second);
            assert!(past.is_due(at));
            past.add(HistorySample { at, outcomes, ..HistorySample::default() }, vec![Nanos::ZERO, busy]);
            assert!(!past.is_due(at + Nanos::from_millis(999)));
            busy += Nanos::from_millis(if second < 20 { 900 } else { 250 });
            outcomes[InferOutcome::Good as usize] += if second < 20 { 0 } else { 9 };
            outcomes[InferOutcome::Dropped as usize] += 1;
            outcomes[InferOutcome::Gone as usize] += 7;
        }
        assert_eq!(past.utilization(), [0.0, 0.25]);
        assert_eq!(past.load(), Some(RecentLoad { gpus: 2, busy: 0.25, bad_rate: 0.1 }));
        assert_eq!(past.seconds().len(), 40);
    }

    #[test]
    fn two_minutes_are_kept_and_a_model_has_none_before_its_first_request() {
        let mut past = LoadHistory::default();
        for second in 0..200 {
            let ended = OutcomeTotals { good: second, bad: 0 };
            let models = if second < 150 { Vec::new() } else { vec![(ModelId(3), ended)] };
            past.add(
                HistorySample { at: Nanos::from_secs(second), models, ..HistorySample::default() },
                Vec::new(),
            );
        }
        assert_eq!(past.seconds().len(), SECONDS);
        assert_eq!(past.seconds()[0].of(ModelId(3)), OutcomeTotals::default());
        assert_eq!(past.seconds()[SECONDS - 1].of(ModelId(3)).good, 199);
        assert_eq!(past.seconds()[SECONDS - 1].of(ModelId(2)).good, 0);
    }
}
