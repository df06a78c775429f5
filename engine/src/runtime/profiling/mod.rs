//! Profiles that follow the batches. A thread below the priority of all others reads the batches
//! that ran, moves each model's rolling profile
//! ([`symphony_scheduler::rolling_profile`]), and has the ModelThreads schedule by it where the
//! model's configuration says so.
//!
//! ```text
//!  backend threads ──▶ executions ──▶ profile keeper ──ScaledProfile──▶ ModelThread
//!  (batches that ran, in memory)            │        ◀───── back ──────   (a ring each way)
//!                                           ▼
//!                                    RollingProfiles, for metrics and the tuner;
//!                                    the file of learned profiles, for the next engine
//! ```
//!
//! Bounds: one change of each model is under way at most. A profile that a queue may still have is
//! kept alive here until its successor has come back, so that a ModelThread frees nothing. A keeper
//! that hangs or ends leaves the profiles as they are. The file is written once a minute at most,
//! and at the end.

mod learned_profiles;
mod profile_keeper;

pub(crate) use learned_profiles::LearnedProfiles;
pub(crate) use learned_profiles::LearnedProfilesError;
pub(crate) use profile_keeper::{KeeperPlan, ProfileKeeper};
