//! Latency profiles: l(b), the time that a batch of b takes. Owned by a model's queue and read at
//! every event, so a profile is a flat table: one load, no arithmetic.

use crate::limits;
use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The upper bounds of the batch sizes that are counted or measured together.
pub const SIZE_BOUNDS: [usize; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, limits::MAX_BATCH];

/// The latency l(b) for b from 1 to the largest batch; it never falls as b grows. A clone shares
/// the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `table[b]` is l(b); `table[0]` is zero. One entry past the largest batch repeats "never".
    table: Arc<[Nanos]>,
}

/// The reason why a table is not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No batch size.
    #[error("a profile needs the latency of at least one batch size")]
    Empty,
    /// More batch sizes than [`limits::MAX_BATCH`].
    #[error("a profile of {0} batch sizes is too long: the limit is {max}", max = limits::MAX_BATCH)]
    TooLong(usize),
    /// The latency of this batch size is zero.
    #[error("the latency of a batch of {0} is zero; it must be positive")]
    Zero(usize),
    /// The latency of this batch size is under that of the size before.
    #[error("the latency of a batch of {0} is under that of {before}; it must not fall as batches grow", before = .0 - 1)]
    Falls(usize),
}

impl Profile {
    /// Returns the linear profile l(b) = alpha * b + beta, for batches up to `max_batch`.
    ///
    /// Errors: those of [`Profile::measured`].
    pub fn linear(alpha: Nanos, beta: Nanos, max_batch: usize) -> Result<Profile, ProfileError> {
        let latencies: Vec<Nanos> =
            (1..=max_batch as u64).map(|b| Nanos(alpha.0.saturating_mul(b)) + beta).collect();
        Profile::measured(&latencies)
    }

    /// Returns the profile whose l(b) is `latencies[b - 1]`.
    ///
    /// Errors: an empty or too long table, a latency of zero, or one that falls.
    pub fn measured(latencies: &[Nanos]) -> Result<Profile, ProfileError> {
        if latencies.is_empty() {
            return Err(ProfileError::Empty);
        }
        if latencies.len() > limits::MAX_BATCH {
            return Err(ProfileError::TooLong(latencies.len()));
        }
        let mut table = Vec::with_capacity(latencies.len() + 2);
        table.push(Nanos::ZERO);
        for (at, &latency) in latencies.iter().enumerate() {
            if latency == Nanos::ZERO {
                return Err(ProfileError::Zero(at + 1));
            }
            if latency < table[at] {
                return Err(ProfileError::Falls(at + 1));
            }
            table.push(latency);
        }
        table.push(Nanos::MAX);
        Ok(Profile { table: table.into() })
    }

    /// Returns the profile of a model slot without a model, which never runs a batch.
    pub fn of_nothing() -> Profile {
        Profile::measured(&[Nanos(1)]).expect("one positive latency is a profile")
    }

    /// Returns the largest batch.
    #[inline]
    pub fn max_batch(&self) -> usize {
        self.table.len() - 2
    }

    /// Returns l(`size`): zero for an empty batch, [`Nanos::MAX`] for one that is too large.
    #[inline]
    pub fn latency(&self, size: usize) -> Nanos {
        self.table[size.min(self.table.len() - 1)]
    }

    /// Returns the profile without its batches over `max_batch` (at least 1).
    pub fn truncated(&self, max_batch: usize) -> Profile {
        let keep = self.max_batch().min(max_batch.max(1));
        Profile::measured(&self.table[1..=keep]).expect("a part of a profile is one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_profile_is_alpha_b_plus_beta_and_ends_at_its_largest_batch() {
        let profile = Profile::linear(Nanos(3), Nanos(10), 4).unwrap();
        assert_eq!(profile.latency(0), Nanos::ZERO);
        assert_eq!(profile.latency(4), Nanos(22));
        assert_eq!(profile.latency(5), Nanos::MAX);
        assert_eq!(profile.latency(5_000_000), Nanos::MAX);
        assert_eq!(profile.max_batch(), 4);
        assert_eq!(profile.truncated(2).latency(3), Nanos::MAX);
    }

    #[test]
    fn a_table_that_is_no_profile_is_refused() {
        assert_eq!(Profile::measured(&[]), Err(ProfileError::Empty));
        assert_eq!(Profile::measured(&[Nanos(0)]), Err(ProfileError::Zero(1)));
        assert_eq!(Profile::measured(&[Nanos(2), Nanos(1)]), Err(ProfileError::Falls(2)));
        assert_eq!(Profile::linear(Nanos(1), Nanos(1), 5_000), Err(ProfileError::TooLong(5_000)));
    }
}
