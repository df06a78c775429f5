//! The leases of the places in a peer's landing, held by whoever writes there: a place is leased
//! before it is written to, and given back by the peer once it has copied the bytes.

use std::collections::VecDeque;

/// Places start on a cache line.
const ALIGN: u32 = 64;

/// The leases of a landing, which is used as a ring: places are given back in the order in which
/// they were leased. Pure: it has no memory, only offsets.
#[derive(Clone, Debug)]
pub struct LandingLeases {
    bytes: u32,
    /// The offset of the next place, if there is room behind the last.
    next: u32,
    /// The first byte of each leased place, oldest first.
    leased: VecDeque<u32>,
}

impl LandingLeases {
    /// Makes the leases of a landing of so many bytes, none of which is leased.
    pub fn new(bytes: u32) -> LandingLeases {
        LandingLeases { bytes, next: 0, leased: VecDeque::new() }
    }

    /// Leases a place of `bytes` and returns its offset. `None` if there is none free now, or the
    /// landing is smaller.
    pub fn lease(&mut self, bytes: u32) -> Option<u32> {
        // One of no bytes is a place too: it is given back like any other.
        let needed = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let fits = |from: u32, to: u32| to.checked_sub(from).is_some_and(|room| room >= needed);
        let place = match self.leased.front() {
            None => fits(0, self.bytes).then_some(0),
            // What is leased lies between `first` and `next`.
            Some(&first) if first < self.next => {
                let behind = fits(self.next, self.bytes).then_some(self.next);
                behind.or_else(|| fits(0, first).then_some(0))
            }
            // It goes on at the beginning.
            Some(&first) => fits(self.next, first).then_some(self.next),
        }?;
        self.next = place + needed;
        self.leased.push_back(place);
        Some(place)
    }

    /// Gives the `places` oldest leases back. Returns false, and does nothing, if there are fewer.
    pub fn give_back(&mut self, places: usize) -> bool {
        let has = places <= self.leased.len();
        if has {
            self.leased.drain(..places);
        }
        has
    }

    /// Returns the number of places that are leased.
    pub fn leased(&self) -> usize {
        self.leased.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_go_round_and_the_oldest_is_given_back_first() {
        let mut leases = LandingLeases::new(256);
        assert_eq!([100, 64, 65].map(|bytes| leases.lease(bytes)), [Some(0), Some(128), None]);
        assert_eq!((leases.lease(64), leases.lease(1)), (Some(192), None));
        assert!(leases.give_back(1));
        assert_eq!((leases.lease(129), leases.lease(128), leases.lease(0)), (None, Some(0), None));
        assert!(!leases.give_back(4) && leases.give_back(3));
        assert_eq!((leases.leased(), leases.lease(256), leases.lease(257)), (0, Some(0), None));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_place_overlaps_another_and_an_empty_landing_takes_all_that_fits(
            bytes in 64_u32..4_096,
            steps in proptest::collection::vec(prop_oneof![(0_u32..1_500).prop_map(Ok), (1_usize..4).prop_map(Err)], 1..200),
        ) {
            let mut leases = LandingLeases::new(bytes);
            let mut live: VecDeque<(u32, u32)> = VecDeque::new();
            for step in steps {
                match step {
                    Ok(wanted) => {
                        let place = leases.lease(wanted);
                        if let Some(at) = place {
                            let end = at + wanted.max(1);
                            prop_assert!(end <= bytes && at % ALIGN == 0);
                            prop_assert!(live.iter().all(|&(from, to)| to <= at || end <= from));
                            live.push_back((at, end));
                        } else if live.is_empty() {
                            prop_assert!(wanted.max(1).next_multiple_of(ALIGN) > bytes);
                        }
                    }
                    Err(places) => {
                        let has = places <= live.len();
                        prop_assert_eq!(leases.give_back(places), has);
                        if has {
                            live.drain(..places);
                        }
                    }
                }
                prop_assert_eq!(leases.leased(), live.len());
            }
        }
    }
}
