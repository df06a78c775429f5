//! A peer's clock, seen from this host: bounds on how much more it reads, from probes
//! ([`TimeProbe`](crate::wire::TimeProbe)). The link maps the instants of a message once, when it
//! comes.
//!
//! A probe that is sent at s and whose answer is seen at e says that the peer's clock reads at most
//! `received` - s more than ours, and at least `answered` - e more. Bounds of later probes are
//! intersected with earlier ones, which widen by [`MAX_DRIFT_PPB`] as they age: the probes with the
//! shortest ways count, whatever the queues that others met. The true difference is between the
//! bounds if the two clocks' rates differ by no more than that.

use crate::Nanos;
use crate::message::NO_DEADLINE;
use crate::wire::TimeAnswer;
use std::ops::RangeInclusive;

/// The most by which the rates of two sound clocks differ, in parts per billion: crystals are good
/// to 100 ppm each.
pub const MAX_DRIFT_PPB: u64 = 200_000;

/// The time over which drift is measured, at least.
const DRIFT_SPAN: Nanos = Nanos::from_secs(10);

const PARTS: i128 = 1_000_000_000;

/// Between which instants of this host's clock an instant of the peer's is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstantBounds {
    /// Not before this.
    pub earliest: Nanos,
    /// Not after this.
    pub latest: Nanos,
}

impl InstantBounds {
    /// Returns the middle: what the instant is if the fastest probe took as long there as back.
    pub fn middle(self) -> Nanos {
        self.earliest + Nanos((self.latest - self.earliest).0 / 2)
    }
}

/// Bounds on the peer's reading minus ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OffsetBounds {
    /// When they hold, by our clock.
    at: Nanos,
    least: i128,
    most: i128,
}

impl OffsetBounds {
    /// The bounds at a later instant.
    fn aged(self, now: Nanos) -> OffsetBounds {
        let more = widening(i128::from((now - self.at).0));
        OffsetBounds { at: self.at.max(now), least: self.least - more, most: self.most + more }
    }
}

/// The most that the difference of two clocks changes in so many nanoseconds.
fn widening(nanos: i128) -> i128 {
    (nanos * i128::from(MAX_DRIFT_PPB) + PARTS - 1) / PARTS
}

/// What is known of a peer's clock. See the module's description.
///
/// ```
/// use symphony_transport::Nanos;
/// use symphony_transport::link::PeerClock;
/// use symphony_transport::wire::TimeAnswer;
///
/// let mut clock = PeerClock::default();
/// // Sent at 100 us and answered at 160 us, 20 us each way: the peer's clock reads 5 ms more.
/// let us = Nanos::from_micros;
/// let answer = TimeAnswer { sent: us(100), received: us(5_120), answered: us(5_140) };
/// assert!(clock.on_answer(answer, us(160)));
/// let exec_at = clock.to_ours(us(5_200), us(160)).unwrap();
/// assert!(exec_at.earliest <= us(200) && us(200) <= exec_at.latest);
/// assert!(exec_at.latest - exec_at.earliest < us(41));
/// ```
#[derive(Clone, Default, Debug)]
pub struct PeerClock {
    bounds: Option<OffsetBounds>,
    /// Bounds as they were some spans ago, the older first.
    anchors: [Option<OffsetBounds>; 2],
    contradictions: u64,
}

impl PeerClock {
    /// Takes in the answer to a probe, which came at `now`. False if no two clocks could have given
    /// it, whatever the network did; it is then ignored.
    pub fn on_answer(&mut self, answer: TimeAnswer, now: Nanos) -> bool {
        let [sent, received, answered, seen] =
            [answer.sent, answer.received, answer.answered, now].map(|instant| i128::from(instant.0));
        if seen < sent || answered < received {
            return false;
        }
        let more = widening(seen - sent);
        let sample = OffsetBounds { at: now, least: answered - seen - more, most: received - sent + more };
        if sample.least > sample.most {
            return false;
        }
        self.bounds = Some(match self.bounds.map(|bounds| bounds.aged(now)) {
            None => sample,
            Some(known) => {
                let (least, most) = (known.least.max(sample.least), known.most.min(sample.most));
                if least <= most {
                    OffsetBounds { at: known.at, least, most }
                } else {
                    // One of the clocks was set, or runs wrong: what is past says nothing.
                    self.contradictions += 1;
                    self.anchors = [None; 2];
                    sample
                }
            }
        });
        if self.anchors[1].is_none_or(|anchor| now - anchor.at >= DRIFT_SPAN) {
            self.anchors = [self.anchors[1], self.bounds];
        }
        true
    }

    /// Maps an instant of the peer's clock to this host's; `None` before the first answer. Zero and
    /// what is not before [`NO_DEADLINE`] are no instants, and stay as they are.
    pub fn to_ours(&self, theirs: Nanos, now: Nanos) -> Option<InstantBounds> {
        let OffsetBounds { least, most, .. } = self.bounds?.aged(now);
        if theirs == Nanos::ZERO || theirs >= NO_DEADLINE {
            return Some(InstantBounds { earliest: theirs, latest: theirs });
        }
        let (theirs, now) = (i128::from(theirs.0), i128::from(now.0));
        // The bounds hold now, and widen by the drift over the distance to the instant. That
        // distance is uncertain by its own drift: twice that is more than it can be.
        let distance = (theirs - most - now).abs().max((theirs - least - now).abs());
        let more = widening(distance + 2 * widening(distance));
        let nanos = |instant: i128| Nanos(instant.clamp(0, i128::from(u64::MAX)) as u64);
        Some(InstantBounds { earliest: nanos(theirs - most - more), latest: nanos(theirs - least + more) })
    }

    /// Returns how much more the peer's clock reads than ours at `now`, in nanoseconds, by the
    /// middle of its bounds.
    pub fn offset_ns(&self, now: Nanos) -> Option<i64> {
        let OffsetBounds { least, most, .. } = self.bounds?.aged(now);
        Some(((least + most) / 2).clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Returns the most that an instant of `now` is wrong by if the middle of its bounds is taken.
    pub fn error(&self, now: Nanos) -> Option<Nanos> {
        let OffsetBounds { least, most, .. } = self.bounds?.aged(now);
        Some(Nanos(((most - least + 1) / 2).min(i128::from(u64::MAX)) as u64))
    }

    /// Returns how many parts per billion the peer's clock is faster than ours, between bounds,
    /// over the last 10 s or more; `None` until then.
    pub fn drift_ppb(&self) -> Option<RangeInclusive<i64>> {
        let (bounds, anchor) = (self.bounds?, self.anchors[0]?);
        let span = i128::from((bounds.at - anchor.at).0);
        let slowest = (bounds.least - anchor.most) * PARTS / span - 1;
        let fastest = (bounds.most - anchor.least) * PARTS / span + 1;
        let ppb = |parts: i128| parts.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Some(ppb(slowest)..=ppb(fastest))
    }

    /// Returns how often an answer contradicted what was known, so that that was forgotten.
    pub fn contradictions(&self) -> u64 {
        self.contradictions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The peer's reading at an instant of ours.
    fn reading(offset: u64, drift_ppb: i128, ours: Nanos) -> Nanos {
        let drift = i128::from(ours.0) * drift_ppb / PARTS;
        Nanos((i128::from(offset) + i128::from(ours.0) + drift) as u64)
    }

    /// One probe: how long after the one before it is sent, its ways there and back, and how long
    /// the peer takes to answer, in nanoseconds.
    type Probe = (u64, u64, u64, u64);

    fn probe() -> impl Strategy<Value = Probe> {
        // One way in four meets a queue.
        let way = || prop_oneof![3 => 10_000u64..60_000, 1 => 60_000u64..20_000_000];
        (1_000_000u64..2_000_000_000, way(), way(), 0u64..5_000_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 512 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn an_instant_is_within_its_bounds_whatever_delays_and_drift(
            offset in 0u64..1 << 60,
            drift_ppb in -100_000i128..=100_000,
            probes in proptest::collection::vec(probe(), 1..40),
            other in 0u64..100_000_000_000,
        ) {
            let mut clock = PeerClock::default();
            let mut now = Nanos::from_secs(1);
            for (pause, there, back, think) in probes {
                let sent = now + Nanos(pause);
                let (came, left) = (sent + Nanos(there), sent + Nanos(there) + Nanos(think));
                now = left + Nanos(back);
                let theirs = |ours| reading(offset, drift_ppb, ours);
                let answer = TimeAnswer { sent, received: theirs(came), answered: theirs(left) };
                prop_assert!(clock.on_answer(answer, now));
                for ours in [now, Nanos(other), now + Nanos(other)] {
                    let bounds = clock.to_ours(theirs(ours), now).unwrap();
                    // Two nanoseconds: `reading` cuts its fractions off.
                    prop_assert!(bounds.earliest <= ours + Nanos(2) && ours <= bounds.latest + Nanos(2));
                }
                prop_assert!(clock.error(now).unwrap().0 <= (there + back) / 2 + 2_000_000);
            }
            prop_assert_eq!(clock.contradictions(), 0);
            if let Some(drift) = clock.drift_ppb() {
                prop_assert!(drift.contains(&(drift_ppb as i64)), "{drift:?}");
            }
        }

        #[test]
        fn no_answer_makes_it_panic(answers in proptest::collection::vec(any::<[u64; 5]>(), 1..9)) {
            let mut clock = PeerClock::default();
            for [sent, received, answered, now, theirs] in answers {
                let (sent, received, answered) = (Nanos(sent), Nanos(received), Nanos(answered));
                clock.on_answer(TimeAnswer { sent, received, answered }, Nanos(now));
                let bounds = clock.to_ours(Nanos(theirs), Nanos(now));
                prop_assert!(bounds.is_none_or(|bounds| bounds.earliest <= bounds.latest));
                clock.drift_ppb();
                clock.error(Nanos(now));
            }
        }
    }

    /// Answers probes over a quiet network, 20 us each way, every 100 ms.
    fn probe_quietly(clock: &mut PeerClock, offset: u64, from: Nanos, count: u64) -> Nanos {
        let mut now = from;
        for _ in 0..count {
            let sent = now + Nanos::from_millis(100);
            let came = reading(offset, 100_000, sent + Nanos::from_micros(20));
            now = sent + Nanos::from_micros(40);
            assert!(clock.on_answer(TimeAnswer { sent, received: came, answered: came }, now));
        }
        now
    }

    #[test]
    fn a_fast_answer_counts_for_longer_than_slow_ones() {
        let mut clock = PeerClock::default();
        let now = probe_quietly(&mut clock, 1 << 40, Nanos::ZERO, 1);
        let sent = now + Nanos::from_millis(10);
        let came = reading(1 << 40, 100_000, sent + Nanos::from_millis(5));
        let seen = sent + Nanos::from_millis(10);
        assert!(clock.on_answer(TimeAnswer { sent, received: came, answered: came }, seen));
        assert!(clock.error(seen).unwrap() < Nanos::from_micros(25), "{:?}", clock.error(seen));
    }

    #[test]
    fn drift_is_measured_to_a_few_ppm_in_twenty_seconds() {
        let mut clock = PeerClock::default();
        probe_quietly(&mut clock, 1 << 40, Nanos::ZERO, 50);
        assert_eq!(clock.drift_ppb(), None);
        probe_quietly(&mut clock, 1 << 40, Nanos::from_secs(5), 200);
        let drift = clock.drift_ppb().unwrap();
        assert!(drift.contains(&100_000) && drift.end() - drift.start() < 10_000, "{drift:?}");
    }

    #[test]
    fn a_clock_that_was_set_is_learnt_anew() {
        let mut clock = PeerClock::default();
        let now = probe_quietly(&mut clock, 1 << 40, Nanos::ZERO, 9);
        let now = probe_quietly(&mut clock, 1 << 50, now, 1);
        assert_eq!(clock.contradictions(), 1);
        let bounds = clock.to_ours(reading(1 << 50, 100_000, now), now).unwrap();
        assert!(bounds.earliest <= now && now <= bounds.latest);
    }

    #[test]
    fn an_answer_that_no_clocks_give_is_refused() {
        let mut clock = PeerClock::default();
        let answer = |sent, received, answered| TimeAnswer {
            sent: Nanos(sent),
            received: Nanos(received),
            answered: Nanos(answered),
        };
        assert!(!clock.on_answer(answer(10, 5, 4), Nanos(20)), "answered before it came");
        assert!(!clock.on_answer(answer(10, 5, 6), Nanos(9)), "seen before it was sent");
        assert!(!clock.on_answer(answer(10, 5, 900), Nanos(20)), "answered for longer than it was away");
        assert_eq!(clock.to_ours(Nanos(5), Nanos(20)), None);
    }

    #[test]
    fn what_is_no_instant_stays_as_it_is() {
        let mut clock = PeerClock::default();
        let now = probe_quietly(&mut clock, 1 << 40, Nanos::ZERO, 1);
        for none in [Nanos::ZERO, NO_DEADLINE, Nanos::MAX] {
            assert_eq!(clock.to_ours(none, now), Some(InstantBounds { earliest: none, latest: none }));
        }
    }
}
