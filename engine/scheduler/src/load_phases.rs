//! A load that goes up and down: phases of a length each, one after the other and over again, in
//! which what is on average 1 is more or less than that. A workload's rates and the numbers of
//! items of its queries' stages may have them: they change within an epoch of a scheduler that
//! plans by means.

use alloc::sync::Arc;
use symphony_transport::Nanos;

/// Phases of one list at most.
pub const MAX_PHASES: usize = 64;

/// A time in which a load is a number of times its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadPhase {
    /// The length of the phase.
    pub lasts: Nanos,
    /// The load over its mean.
    pub factor: f64,
}

/// Phases that begin with the run, repeat, and have a mean of 1 over time; none for a load that
/// does not change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadPhases(Arc<[LoadPhase]>);

/// The reason why phases make no load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PhasesError {
    /// The load is 0 in every phase, or a phase has no length.
    #[error("no phase has a load")]
    NoLoad,
}

impl LoadPhases {
    /// Returns phases in proportion to these, with a mean of 1.
    ///
    /// Errors: phases that make no load.
    pub fn new(phases: &[LoadPhase]) -> Result<LoadPhases, PhasesError> {
        let whole: f64 = phases.iter().map(|phase| phase.lasts.0 as f64).sum();
        let load: f64 = phases.iter().map(|phase| phase.lasts.0 as f64 * phase.factor).sum();
        let mean = load / whole;
        if !(mean > 0.0 && mean.is_finite()) || phases.iter().any(|phase| phase.lasts == Nanos::ZERO) {
            return Err(PhasesError::NoLoad);
        }
        Ok(LoadPhases(
            phases.iter().map(|phase| LoadPhase { factor: phase.factor / mean, ..*phase }).collect(),
        ))
    }

    /// Returns true if the load does not change.
    pub fn is_steady(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the largest load over the mean.
    pub fn highest(&self) -> f64 {
        self.0.iter().map(|phase| phase.factor).reduce(f64::max).unwrap_or(1.0)
    }

    /// Returns the load at a time over the mean.
    pub fn factor(&self, now: Nanos) -> f64 {
        let Some(mut left) = now.0.checked_rem(self.cycle().0) else { return 1.0 };
        for phase in &*self.0 {
            if left < phase.lasts.0 {
                return phase.factor;
            }
            left -= phase.lasts.0;
        }
        1.0
    }

    /// Returns the time, ns, by which there was as much load as a steady one has by `steady_ns`:
    /// arrivals of a steady rate become arrivals of a rate with these phases.
    pub fn time_of(&self, steady_ns: f64) -> f64 {
        let cycle = self.cycle().0 as f64;
        if cycle == 0.0 {
            return steady_ns;
        }
        // A cycle has as much load as a steady one, so whole cycles stay.
        let cycles = (steady_ns / cycle).max(0.0) as u64 as f64;
        let (mut at, mut left) = (cycles * cycle, steady_ns - cycles * cycle);
        for phase in &*self.0 {
            let load = phase.lasts.0 as f64 * phase.factor;
            if left < load {
                return at + left / phase.factor;
            }
            left -= load;
            at += phase.lasts.0 as f64;
        }
        at
    }

    /// Returns the phases in order.
    pub fn iter(&self) -> impl Iterator<Item = &LoadPhase> {
        self.0.iter()
    }

    /// Returns the length of all phases together, after which they repeat.
    pub fn cycle(&self) -> Nanos {
        Nanos(self.0.iter().map(|phase| phase.lasts.0).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn phases() -> impl Strategy<Value = LoadPhases> {
        let phase = (1_u64..5_000_000_000, 0.0_f64..10.0);
        let phase = phase.prop_map(|(ns, factor)| LoadPhase { lasts: Nanos(ns), factor });
        proptest::collection::vec(phase, 1..6).prop_filter_map("no load", |all| LoadPhases::new(&all).ok())
    }

    #[test]
    fn a_load_of_two_phases_has_its_factors_and_its_mean() {
        let phase = |ms, factor| LoadPhase { lasts: Nanos::from_millis(ms), factor };
        let load = LoadPhases::new(&[phase(3_000, 1.0), phase(1_000, 5.0)]).unwrap();
        let factors = [0, 2_999, 3_000, 3_999, 4_000, 7_500].map(|ms| load.factor(Nanos::from_millis(ms)));
        assert_eq!(factors, [0.5, 0.5, 2.5, 2.5, 0.5, 2.5]);
        assert_eq!(load.highest(), 2.5);
        // 3 s at a half are as 1.5 s of a steady load.
        let times = [0.0, 1.5e9, 4e9, 5.5e9, 6.75e9].map(|ns| load.time_of(ns));
        assert_eq!(times, [0.0, 3e9, 4e9, 7e9, 7.5e9]);
    }

    #[test]
    fn a_steady_load_changes_nothing_and_none_is_made_of_no_load() {
        let steady = LoadPhases::default();
        assert!(steady.is_steady());
        assert_eq!((steady.factor(Nanos(7)), steady.highest(), steady.time_of(7.5)), (1.0, 1.0, 7.5));
        let none = [LoadPhase { lasts: Nanos(1), factor: 0.0 }];
        assert_eq!(LoadPhases::new(&none), Err(PhasesError::NoLoad));
        let short =
            [LoadPhase { lasts: Nanos(1), factor: 1.0 }, LoadPhase { lasts: Nanos::ZERO, factor: 1.0 }];
        assert_eq!(LoadPhases::new(&short), Err(PhasesError::NoLoad));
        assert_eq!(LoadPhases::new(&[]), Err(PhasesError::NoLoad));
    }

    proptest! {
        #[test]
        fn times_never_go_back_and_as_many_arrive_in_a_cycle(
            load in phases(),
            mut steady in proptest::collection::vec(0.0_f64..1e12, 2..50),
        ) {
            steady.sort_by(f64::total_cmp);
            let times: Vec<f64> = steady.iter().map(|&ns| load.time_of(ns)).collect();
            prop_assert!(times.windows(2).all(|two| two[0] <= two[1]), "{times:?}");
            let cycle = load.cycle().0 as f64;
            for (ns, time) in steady.iter().zip(times) {
                prop_assert!((time - ns).abs() <= cycle * 1.000_001, "{ns} {time}");
            }
        }
    }
}
