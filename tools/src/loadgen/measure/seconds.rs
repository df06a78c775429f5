//! A run second by second, by the time at which requests were meant to be sent.

use super::histogram::nanoseconds;
use super::outcome::End;
use hdrhistogram::Histogram;
use symphony_transport::Nanos;

/// Seconds that are kept apart; what comes later is counted with the last: a week.
const MAX_SECONDS: usize = 7 * 24 * 3_600;

/// The counts of one second.
#[derive(Clone, Debug)]
pub struct Second {
    /// Requests whose time came.
    pub offered: u64,
    /// Requests that went out.
    pub sent: u64,
    /// Ended requests, by [`End`].
    pub ends: [u64; End::COUNT],
    /// Latency from the intended send time to the answer, of good and late requests, ns; exact to 1
    /// %.
    pub latency: Histogram<u32>,
}

impl Second {
    fn new() -> Second {
        Second { offered: 0, sent: 0, ends: [0; End::COUNT], latency: nanoseconds(2) }
    }

    /// Returns the number of requests that ended so.
    pub fn ended(&self, end: End) -> u64 {
        self.ends[end as usize]
    }

    /// Returns the number of requests that were not good.
    pub fn bad(&self) -> u64 {
        self.offered.saturating_sub(self.ended(End::Good))
    }
}

/// The seconds of a run, from the end of its warm-up.
#[derive(Clone, Debug, Default)]
pub struct Seconds {
    seconds: Vec<Second>,
}

impl Seconds {
    /// The second that `at` (from the end of the warm-up) lies in.
    pub(super) fn at(&mut self, at: Nanos) -> &mut Second {
        let index = (at.as_secs_f64() as usize).min(MAX_SECONDS - 1);
        if self.seconds.len() <= index {
            self.seconds.resize_with(index + 1, Second::new);
        }
        &mut self.seconds[index]
    }

    pub(super) fn merge(&mut self, other: &Seconds) {
        for (index, theirs) in other.seconds.iter().enumerate() {
            let ours = self.at(Nanos::from_secs(index as u64));
            ours.offered += theirs.offered;
            ours.sent += theirs.sent;
            ours.ends.iter_mut().zip(theirs.ends).for_each(|(a, b)| *a += b);
            ours.latency.add(&theirs.latency).expect("a histogram that grows takes what another has");
        }
    }

    /// An empty histogram that takes what those of seconds have.
    pub fn histogram() -> Histogram<u32> {
        nanoseconds(2)
    }

    /// Iterates over the seconds in order; where nothing was offered the second is empty.
    pub fn iter(&self) -> std::slice::Iter<'_, Second> {
        self.seconds.iter()
    }

    /// Returns the number of seconds.
    pub fn len(&self) -> usize {
        self.seconds.len()
    }

    /// True if nothing was offered at all.
    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }
}
