//! A population of random workloads on which scheduling rules are compared: 400 to find a rule on,
//! and 400 others that are looked at only to report. The command `population` calls it;
//! docs/population.md describes it.
//!
//! [`generator`] draws the workloads, [`rules`] names what is compared, [`search`] finds the
//! goodput of a rule on a workload, [`run`] does so for all of them, [`results`] is the file that
//! keeps what was found, [`summary`] and [`chart`] show it. [`loads`] compares GPU time below the
//! goodput. [`clairvoyant`] is the limit for one GPU and one model: what a scheduler that knew all
//! arrivals could serve; [`rollout`] knows how they come, but not when. [`bound`] is a limit for
//! all workloads, and higher. [`on_threads`] runs a workload in real time.

pub mod bound;
pub mod chart;
pub mod clairvoyant;
pub mod generator;
pub mod loads;
pub mod on_threads;
pub mod results;
pub mod rollout;
pub mod rules;
pub mod run;
pub mod search;
pub mod summary;
