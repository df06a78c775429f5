//! The encoding of records in a file: one to four words of 64 bits. A record about a batch has a
//! short form, where its times are near the duty cycle's; every record can be written in full. Used
//! by the journal, in both directions. Requests, of which there are most, are neither: they follow
//! a [`Kind::Came`] as four plain words each.
//!
//! A record in full is its own 32 bytes. The third byte is the record's kind, in a short form with
//! [`SHORT`] added, and every bit of a short form means something or is zero, so a bit that is
//! flipped in a file is a record that is changed.

use super::record::{FULL, Kind, Record};
use symphony_transport::Nanos;

/// The bit that a short form adds to its kind.
const SHORT: u8 = 0x80;

/// The words of an encoded record.
pub(super) enum Words {
    One([u64; 1]),
    Two([u64; 2]),
    Three([u64; 3]),
    Four([u64; FULL]),
}

/// The largest distance between the duty cycle's time and an instant in a short form, either way:
/// 2.1 s.
const NEAR: u64 = 1 << 31;

/// Returns the distance of `at` from `now`; 2^32 or more where it is not near.
#[inline(always)]
fn near(at: u64, now: u64) -> u64 {
    at.wrapping_sub(now).wrapping_add(NEAR)
}

#[inline(always)]
fn from_near(distance: u64, now: u64) -> u64 {
    now.wrapping_add(distance & u64::from(u32::MAX)).wrapping_sub(NEAR)
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Returns `bits` bits of `word` from bit `at` on.
#[inline(always)]
fn bits(word: u64, at: u32, bits: u32) -> u64 {
    word >> at & mask(bits)
}

/// The position of a record's kind in its first word, in bits.
const KIND_AT: u32 = 16;

impl Record {
    /// Returns the record's words, in a duty cycle at `now`. The kind is mostly a constant where
    /// this is called, so most of it is decided by the compiler.
    #[inline(always)]
    pub(super) fn words(&self, now: Nanos) -> Words {
        let now = now.0;
        let Record { flag, small, model, a, b, c, .. } = *self;
        let (model, flag, small) = (u64::from(model), u64::from(flag), u64::from(small));
        let kind = u64::from(self.code() | SHORT) << KIND_AT;
        // The beginning of every record, and the same where the model's number is short and leaves
        // an upper half.
        let head = small | kind | flag << 24 | model << 32;
        let with_upper = |upper: u64| model | kind | flag << 24 | upper << 32;
        match self.kind() {
            Some(Kind::Cycle) if a >> 56 == 0 => Words::One([a & mask(16) | kind | a >> 16 << 24]),
            Some(Kind::Timer | Kind::Came | Kind::Withdraw | Kind::Match | Kind::End) => Words::One([head]),
            Some(Kind::Ready | Kind::Early) => {
                // Mostly it may have any GPU and has no precedence, which is zero.
                let latest = near(a, now);
                if latest >> 32 | model >> 16 | c | small != 0 {
                    return self.in_full();
                }
                Words::Two([with_upper(latest), b])
            }
            Some(Kind::Grant | Kind::Granted) => {
                // Mostly no time is given by which the batch has to be over.
                if a >> 32 | model >> 16 | !c != 0 {
                    return self.in_full();
                }
                Words::Two([with_upper(a), b])
            }
            Some(Kind::Report) if small == 1 => {
                let (exec_at, length) = (near(a, now), b.wrapping_sub(a));
                if exec_at >> 32 | length >> 32 | c >> 32 | model >> 16 != 0 {
                    return self.in_full();
                }
                Words::Two([with_upper(c), exec_at | length << 32])
            }
            Some(Kind::Dispatch) => {
                let exec_at = near(b, now);
                if exec_at >> 32 | c >> 32 != 0 {
                    return self.in_full();
                }
                Words::Three([head, a, exec_at | c << 32])
            }
            Some(Kind::DispatchTimes) => {
                let latest = near(a, now);
                if latest >> 32 | model >> 16 | (c ^ now) != 0 {
                    return self.in_full();
                }
                Words::Two([with_upper(latest), b])
            }
            Some(Kind::Completion) => {
                let (started, finished) = (near(b, now), near(c, now));
                if started >> 32 | finished >> 32 != 0 {
                    return self.in_full();
                }
                Words::Three([head, a, started | finished << 32])
            }
            _ => self.in_full(),
        }
    }

    #[inline(always)]
    fn in_full(&self) -> Words {
        Words::Four(bytemuck::cast(*self))
    }

    /// Returns the record that `words` begin with, in a duty cycle at `now`, and the number of
    /// words that it takes. `None` if the words are no record, or are cut short.
    pub(super) fn read(words: &[u64], now: Nanos) -> Option<(Record, usize)> {
        let first = *words.first()?;
        let now = now.0;
        let code = (first >> KIND_AT) as u8;
        if code & SHORT == 0 {
            let full: [u64; FULL] = words.get(..FULL)?.try_into().ok()?;
            return Some((bytemuck::cast(full), FULL));
        }
        let kind = Kind::of(code & !SHORT)?;
        let (small, flag, model) = (bits(first, 0, 16), bits(first, 24, 8), first >> 32);
        let head = Record::with(kind, flag, small, model, [0; 3]);
        let (short_model, upper) = (small, model);
        let second = || words.get(1).copied();
        let third = || words.get(2).copied();
        Some(match kind {
            Kind::Cycle => (Record::cycle(Nanos(first >> 24 << 16 | small)), 1),
            Kind::Timer | Kind::Came | Kind::Withdraw | Kind::Match | Kind::End => (head, 1),
            Kind::Ready | Kind::Early => {
                let latest = from_near(upper, now);
                (Record::with(kind, flag, 0, short_model, [latest, second()?, 0]), 2)
            }
            Kind::Grant | Kind::Granted => {
                (Record::with(kind, flag, 0, short_model, [upper, second()?, u64::MAX]), 2)
            }
            Kind::Report => {
                let second = second()?;
                let exec_at = from_near(second, now);
                let free_at = exec_at.wrapping_add(second >> 32);
                (Record::with(kind, flag, 1, short_model, [exec_at, free_at, upper]), 2)
            }
            Kind::Dispatch => {
                let third = third()?;
                (Record::with(kind, flag, small, model, [second()?, from_near(third, now), third >> 32]), 3)
            }
            Kind::DispatchTimes => {
                (Record::with(kind, flag, 0, short_model, [from_near(upper, now), second()?, now]), 2)
            }
            Kind::Completion => {
                let third = third()?;
                let times = [second()?, from_near(third, now), from_near(third >> 32, now)];
                (Record::with(kind, flag, small, model, times), 3)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(words: Words) -> Vec<u64> {
        match words {
            Words::One(words) => words.to_vec(),
            Words::Two(words) => words.to_vec(),
            Words::Three(words) => words.to_vec(),
            Words::Four(words) => words.to_vec(),
        }
    }

    /// A record as constructors make it: fields that its kind does not have are zero.
    fn records() -> impl Strategy<Value = (Record, Nanos)> {
        let now = prop::sample::select(vec![0, 5, 1 << 33, 1 << 60]);
        let any_time =
            |now: u64| {
                let far = prop::sample::select(vec![0, 1, NEAR - 1, NEAR, NEAR + 1, u64::MAX / 2, u64::MAX]);
                (any::<bool>(), far).prop_map(move |(after, far)| {
                    if after { now.wrapping_add(far) } else { now.wrapping_sub(far) }
                })
            };
        let number = |bits: u32| {
            prop::sample::select(vec![0, 1, mask(8), mask(8) + 1, mask(16), mask(16) + 1, mask(32)])
                .prop_map(move |number| number & mask(bits))
        };
        let kind = prop::sample::select((0..=255).filter_map(Kind::of).collect::<Vec<_>>());
        (kind, now).prop_flat_map(move |(kind, now)| {
            let times = [any_time(now), any_time(now), any_time(now)];
            (number(8), number(16), number(32), times).prop_map(move |(flag, small, model, [a, b, c])| {
                let (now, wide) = (Nanos(now), 1 << 41);
                let record = match kind {
                    Kind::Cycle => Record::cycle(Nanos(a)),
                    Kind::Timer | Kind::Came | Kind::Withdraw | Kind::Match | Kind::End => {
                        Record::with(kind, flag, small, model, [0; 3])
                    }
                    Kind::Ready | Kind::Early => {
                        let leaves = if c % 2 == 0 { 0 } else { c };
                        let small = if c % 3 == 0 { small } else { 0 };
                        Record::with(kind, flag, small, model, [a, b, leaves])
                    }
                    Kind::Grant | Kind::Granted => {
                        let until = if c % 2 == 0 { u64::MAX } else { c };
                        Record::with(kind, flag, 0, model, [a % wide, b, until])
                    }
                    Kind::Report => Record::with(kind, flag, small % 2, model, [a, b, c % wide]),
                    Kind::Dispatch => Record::with(kind, flag, small, model, [a, b, c % wide]),
                    Kind::DispatchTimes => Record::with(kind, flag, 0, model, [a, b, now.0]),
                    _ => Record::with(kind, flag, small, model, [a, b, c]),
                };
                (record, now)
            })
        })
    }

    proptest! {
        #[test]
        fn every_record_is_read_as_it_was_written((record, now) in records()) {
            let mut words = all(record.words(now));
            let count = words.len();
            words.push(u64::MAX);
            prop_assert_eq!(Record::read(&words, now), Some((record, count)));
            for short in 0..count {
                prop_assert_eq!(Record::read(&words[..short], now), None);
            }
        }

        #[test]
        fn each_bit_of_a_record_counts((record, now) in records(), flipped in any::<prop::sample::Index>()) {
            let mut words = all(record.words(now));
            let count = words.len();
            let bit = flipped.index(64 * words.len());
            words[bit / 64] ^= 1 << (bit % 64);
            words.resize(FULL, 0);
            prop_assert_ne!(Record::read(&words, now), Some((record, count)));
        }
    }
}
