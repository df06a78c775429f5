//! What was, as far as the present is to be compared with it: how busy the GPUs were in the last seconds.

use crate::clock::Nanos;
use crate::runtime::executions::Executions;
use std::collections::VecDeque;

/// Between two samples.
const SAMPLE_EVERY: Nanos = Nanos::from_secs(1);

/// Samples of the GPUs' busy times that are kept: utilization is that of so many seconds less one.
const SAMPLES: usize = 6;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// When, and how long each GPU had been busy then; oldest first.
    busy: VecDeque<(Nanos, Vec<Nanos>)>,
}

impl Past {
    /// Takes a sample, if it is time to.
    pub(super) fn add(&mut self, now: Nanos, executions: &Executions) {
        if self.busy.back().is_some_and(|&(last, _)| now < last + SAMPLE_EVERY) {
            return;
        }
        if self.busy.len() == SAMPLES {
            self.busy.pop_front();
        }
        self.busy.push_back((now, executions.of_gpus().map(|gpu| gpu.busy).collect()));
    }

    /// By GPU, the share of the time between the first and the last sample in which it ran batches, 0 to 1. A batch counts
    /// when it ends.
    pub(super) fn utilization(&self) -> Vec<f64> {
        let (Some((from, before)), Some((to, after))) = (self.busy.front(), self.busy.back()) else {
            return Vec::new();
        };
        let seconds = (*to - *from).as_secs_f64();
        let share = |(before, after): (&Nanos, &Nanos)| {
            if seconds > 0.0 { ((*after - *before).as_secs_f64() / seconds).min(1.0) } else { 0.0 }
        };
        before.iter().zip(after).map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::message::{BatchHeader, GpuId};

    #[test]
    fn utilization_is_of_the_last_seconds() {
        let executions = Executions::new([0..1, 1..2].into_iter());
        let mut second = executions.of_backend(1);
        let mut past = Past::default();
        assert!(past.utilization().is_empty());
        let header = BatchHeader { gpu: GpuId(1), size: 1, ..BatchHeader::default() };
        for n in 0..20 {
            past.add(Nanos::from_secs(n), &executions);
            past.add(Nanos::from_secs(n) + Nanos(1), &executions);
            let busy = Nanos::from_millis(if n < 10 { 900 } else { 250 });
            second.ran(&header, Nanos::ZERO, busy);
        }
        assert_eq!(past.utilization(), [0.0, 0.25]);
    }
}
