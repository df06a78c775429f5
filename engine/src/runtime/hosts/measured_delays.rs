//! What a host measures of the network for the scheduler: the delays of frames on their way to it
//! (d_ctrl, d_resp), and at a backend the times of fetches (d_data), as high percentiles. Symphony,
//! section 5.5: the tail costs goodput.

use symphony_transport::Nanos;
use symphony_transport::link::{DelayWindow, HostLink};
use symphony_transport::wire::MeasuredDelays;

/// The share of delays that are not longer than what is told.
const SHARE: f64 = 0.99;

/// Fetches of a range of sizes before its times are told.
const LEAST_FETCHES: u64 = 16;

/// The time after which the tail of few fetches says nothing any more: a backend that an outage has
/// slowed, and that then gets few batches or none, would else tell of it for as long.
const STALE_AFTER: Nanos = Nanos::from_secs(1);

/// Ranges of sizes: up to 1 KiB, and one for each octave above, up to 1 GiB and more.
const RANGES: usize = 21;

/// The time between two tellings.
const TELL_EVERY: Nanos = Nanos::from_millis(250);

/// Returns the high percentile of the delays of the peer's frames on a link that is up, once enough
/// have come.
pub(super) fn way_here(link: &HostLink) -> Option<Nanos> {
    link.is_up().then(|| link.one_way().tail(SHARE))?
}

/// When a host tells the scheduler next.
#[derive(Default)]
pub(super) struct TellingTime {
    next: Nanos,
}

impl TellingTime {
    /// Returns true if it is time to tell; the next time is set.
    pub(super) fn has_come(&mut self, now: Nanos) -> bool {
        let has_come = now >= self.next;
        if has_come {
            self.next = now + TELL_EVERY;
        }
        has_come
    }
}

/// The times that a backend takes to fetch the inputs of its batches, by the bytes of a batch: in
/// 32 KiB, whatever the number of models.
pub(super) struct FetchTimes {
    ranges: Vec<DelayWindow>,
    /// When the last fetch ended, and when the present epoch of all ranges began.
    last: Nanos,
    since: Nanos,
}

impl Default for FetchTimes {
    fn default() -> FetchTimes {
        FetchTimes {
            ranges: vec![DelayWindow::new(LEAST_FETCHES); RANGES],
            last: Nanos::ZERO,
            since: Nanos::ZERO,
        }
    }
}

/// The range of sizes that so many bytes are in.
fn range_of(bytes: usize) -> usize {
    match (bytes as u64 >> 10).checked_ilog2() {
        None => 0,
        Some(octave) => (octave as usize + 1).min(RANGES - 1),
    }
}

/// The least KiB of a range.
fn least_kib(range: usize) -> u64 {
    range.checked_sub(1).map_or(0, |octave| 1 << octave)
}

impl FetchTimes {
    /// Takes in that the inputs of a batch, so many bytes, were fetched in this time. All ranges
    /// forget together: one that sees no batch any more would else keep what it knew in worse days.
    pub(super) fn record(&mut self, bytes: usize, time: Nanos, now: Nanos) {
        self.forget_stale(now);
        self.last = now;
        let range = range_of(bytes);
        if self.ranges[range].is_over(now) {
            self.ranges.iter_mut().for_each(|range| range.begin_epoch(now));
            self.since = now;
        }
        self.ranges[range].record(time, now);
    }

    /// Forgets the tails of ranges of which few fetches, or none, have ended for long.
    fn forget_stale(&mut self, now: Nanos) {
        if now <= self.since + STALE_AFTER {
            return;
        }
        let is_idle = now > self.last + STALE_AFTER;
        for range in &mut self.ranges {
            if range.has_enough() && !is_idle {
                range.begin_epoch(now);
            } else {
                range.forget_tail();
            }
        }
        self.since = now;
    }

    /// Adds what is known of fetches: the line through the percentile of the least range that was
    /// measured, of the least slope at which no other range's is above it.
    pub(super) fn add_to(&mut self, delays: &mut MeasuredDelays, now: Nanos) {
        self.forget_stale(now);
        let mut points = self
            .ranges
            .iter()
            .enumerate()
            .filter_map(|(range, times)| Some((least_kib(range), times.tail(SHARE)?)));
        let Some((first_kib, fetch)) = points.next() else { return };
        let slope = |(kib, time): (u64, Nanos)| (time - fetch).0.div_ceil(kib - first_kib);
        (delays.fetch, delays.fetch_per_kib) = (fetch, Nanos(points.map(slope).max().unwrap_or(0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(fetches: &mut FetchTimes, now: Nanos) -> (Nanos, Nanos) {
        let mut delays = MeasuredDelays::UNKNOWN;
        fetches.add_to(&mut delays, now);
        (delays.fetch, delays.fetch_per_kib)
    }

    #[test]
    fn no_range_of_sizes_takes_longer_than_the_line_says() {
        let (mut fetches, now) = (FetchTimes::default(), Nanos::ZERO);
        assert_eq!(told(&mut fetches, now), (Nanos::MAX, Nanos::MAX));
        // 100 us, and 2 us for each KiB: of 600 bytes, 64 KiB and 1 MiB.
        let time = |bytes: usize| Nanos::from_micros(100 + 2 * (bytes as u64 >> 10));
        for bytes in [600, 64 << 10, 1 << 20] {
            (0..LEAST_FETCHES - 1).for_each(|_| fetches.record(bytes, time(bytes), Nanos::ZERO));
        }
        assert_eq!(told(&mut fetches, now), (Nanos::MAX, Nanos::MAX), "too few");
        fetches.record(600, time(600), Nanos::ZERO);
        let (fetch, per_kib) = told(&mut fetches, now);
        assert!(Nanos::from_micros(100) <= fetch && fetch < Nanos::from_micros(115), "{fetch:?}");
        assert_eq!(per_kib, Nanos::ZERO, "of one range nothing is known but its own time");
        [64 << 10, 1 << 20].into_iter().for_each(|bytes| fetches.record(bytes, time(bytes), Nanos::ZERO));
        let (fetch, per_kib) = told(&mut fetches, now);
        for bytes in [600, 64 << 10, 1 << 20] {
            let line = fetch + Nanos(per_kib.0 * (bytes as u64 >> 10));
            assert!(time(bytes) <= line && line.0 < time(bytes).0 * 4 / 3, "{bytes} bytes: {line:?}");
        }
    }

    #[test]
    fn a_range_without_batches_forgets_with_the_others() {
        let mut fetches = FetchTimes::default();
        let mut now = Nanos::ZERO;
        let mut record = |bytes: usize, time: Nanos| {
            (0..100).for_each(|_| fetches.record(bytes, time, now));
            let told = told(&mut fetches, now);
            now += Nanos::from_secs(1);
            told
        };
        let (_, per_kib) =
            [(600, 1), (64 << 10, 300)].map(|(bytes, ms)| record(bytes, Nanos::from_millis(ms)))[1];
        assert!(per_kib > Nanos::from_millis(4), "{per_kib:?}");
        let forgotten = [1; 3].map(|ms| record(600, Nanos::from_millis(ms)).1);
        assert_eq!(forgotten[2], Nanos::ZERO);
    }

    #[test]
    fn a_backend_with_few_batches_forgets_the_tail_of_an_outage() {
        let mut fetches = FetchTimes::default();
        let (usual, slow) = (Nanos::from_micros(300), Nanos::from_millis(45));
        // Ten in a second, of which one is slow.
        let tenth = |at: u64| Nanos::from_millis(100 * at);
        (1..40).for_each(|at| fetches.record(600, if at == 5 { slow } else { usual }, tenth(at)));
        let (fetch, _) = told(&mut fetches, tenth(39));
        assert!(usual <= fetch && fetch < usual + usual, "{fetch:?}");
    }

    #[test]
    fn a_backend_without_batches_forgets_the_tail_of_an_outage() {
        let mut fetches = FetchTimes::default();
        let (usual, slow) = (Nanos::from_micros(300), Nanos::from_millis(45));
        (0..20).for_each(|_| fetches.record(600, usual, Nanos::ZERO));
        fetches.record(600, slow, Nanos::ZERO);
        assert!(told(&mut fetches, STALE_AFTER).0 > slow);
        let later = STALE_AFTER + STALE_AFTER;
        assert!(told(&mut fetches, later).0 < usual + usual, "while it has no batches");
        fetches.record(600, usual, later + STALE_AFTER);
        assert!(told(&mut fetches, later + STALE_AFTER).0 < usual + usual, "nor once it has some");
    }

    #[test]
    fn the_largest_batches_are_of_the_last_range() {
        assert_eq!([0, 1023, 1024, 2048, usize::MAX].map(range_of), [0, 0, 1, 2, RANGES - 1]);
        assert_eq!([0, 1, 2, 3].map(least_kib), [0, 1, 2, 4]);
    }
}
