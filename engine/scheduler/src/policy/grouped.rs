//! Groups of applications of a model that are best served together. Apart, short requests run with
//! short ones; together, batches are larger and the fixed cost of a batch is paid less often. In a
//! group requests are still told apart: a batch takes as long as that of the slowest application of
//! its requests.

use crate::profile::Profile;
use crate::run_time::{AT_BEST_PERCENT, Application, RunTimeEstimate, VaryingModel, WITHIN_PERCENT};
use crate::workload::WorkloadModel;
use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// Applications of a model that are served together.
#[derive(Clone, Debug)]
pub(super) struct ApplicationGroup {
    /// The indices of the applications.
    pub(super) members: Vec<usize>,
    /// The group as a model whose only applications they are.
    pub(super) varying: VaryingModel,
    /// What batches of it take: what [`WITHIN_PERCENT`] of them do not exceed. With those of all
    /// of the model's applications, where the group has several.
    pub(super) profile: Profile,
    /// The group's part of the model's requests.
    pub(super) part: f64,
}

impl ApplicationGroup {
    fn new(model: &WorkloadModel, varying: &VaryingModel, members: Vec<usize>) -> ApplicationGroup {
        let applications: Vec<Application> =
            members.iter().map(|&at| varying.applications[at].clone()).collect();
        let own = VaryingModel { applications: applications.into(), ..varying.clone() };
        let within = RunTimeEstimate::Quantile(WITHIN_PERCENT as f64 / 100.0);
        let at_best = own.batch_ms(1, own.mixture().quantile(AT_BEST_PERCENT as f64 / 100.0));
        let profile = own
            .profile(within, model.profile.max_batch())
            .map(|profile| profile.with_best(Nanos::from_millis_f64(at_best)))
            // Run times that have no profile are served as the model is.
            .unwrap_or_else(|_| model.profile.clone());
        ApplicationGroup { members, part: own.shares() / varying.shares(), varying: own, profile }
    }

    fn with(&self, model: &WorkloadModel, varying: &VaryingModel, other: &ApplicationGroup) -> Self {
        let members = self.members.iter().chain(&other.members).copied().collect();
        ApplicationGroup::new(model, varying, members)
    }

    /// Returns the size of its batches of `whole` requests of the model, and what one takes, ms.
    fn batch(&self, whole: usize) -> (f64, f64) {
        let size = ((self.part * whole as f64).round() as usize).clamp(1, self.profile.max_batch());
        (size as f64, self.profile.latency(size).as_millis_f64())
    }
}

/// Returns the applications of a model in groups that are served together: from each by itself on,
/// the two neighbours by run time whose union takes the least GPU time are joined, and of all these
/// divisions the one is taken that takes the least.
pub(super) fn groups_of(model: &WorkloadModel, varying: &VaryingModel, gpus: usize) -> Vec<ApplicationGroup> {
    let mut groups: Vec<ApplicationGroup> =
        (0..varying.applications.len()).map(|at| ApplicationGroup::new(model, varying, vec![at])).collect();
    let alone: Arc<[Profile]> = groups.iter().map(|group| group.profile.clone()).collect();
    let mean = |group: &ApplicationGroup| group.varying.applications[0].run_times.mean();
    groups.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    let slo_ms = model.slo.as_millis_f64();
    let (mut chosen, mut chosen_ms) = (groups.clone(), ms_per_request(&groups, slo_ms, gpus));
    while groups.len() > 1 {
        let joined = |at: usize| {
            let mut joined = groups.clone();
            let next = joined.remove(at + 1);
            joined[at] = joined[at].with(model, varying, &next);
            (ms_per_request(&joined, slo_ms, gpus), joined)
        };
        let all = (0..groups.len() - 1).map(joined);
        let Some((ms, best)) = all.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
        groups = best;
        if ms < chosen_ms {
            (chosen, chosen_ms) = (groups.clone(), ms);
        }
    }
    let of_several = chosen.iter_mut().filter(|group| group.members.len() > 1);
    of_several.for_each(|group| group.profile = group.profile.clone().of_applications(alone.clone()));
    chosen
}

/// Returns the GPU time that a request takes on average where groups take turns on the GPUs, in ms:
/// each with a batch in proportion to its part, as large as the SLO allows for. A request waits for
/// the batches of the other groups. If no such turn fits, requests are taken to run one by one.
fn ms_per_request(groups: &[ApplicationGroup], slo_ms: f64, gpus: usize) -> f64 {
    let turn = |whole: usize| {
        let batches = || groups.iter().map(|group| (group.part, group.batch(whole)));
        let turn: f64 = batches().map(|(part, (size, ms))| (part * whole as f64 / size).max(1.0) * ms).sum();
        let longest = batches().map(|(_, (_, ms))| ms).fold(0.0, f64::max);
        (longest + (turn - longest) / gpus as f64 <= slo_ms).then_some(turn / whole as f64)
    };
    let one_by_one = groups.iter().map(|group| group.part * group.profile.latency(1).as_millis_f64()).sum();
    let most: usize = groups.iter().map(|group| group.profile.max_batch()).sum();
    let fitting = (groups.len()..=most).map_while(turn);
    fitting.fold(one_by_one, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_time::{Mode, RunTimeHistogram};

    /// Returns the groups of applications of these mean run times, ms, with this c0 and SLO, on
    /// this many GPUs.
    fn groups(means_ms: &[f64], fixed_ms: u64, slo_ms: u64, gpus: usize) -> Vec<Vec<usize>> {
        let application = |&mean_ms: &f64| Application {
            share: 1.0,
            run_times: RunTimeHistogram::of_modes(&[Mode {
                weight: 1.0,
                mean_ms,
                deviation_ms: mean_ms / 20.0,
            }])
            .expect("a distribution"),
            costs: None,
        };
        let applications: Vec<Application> = means_ms.iter().map(application).collect();
        let fixed = Nanos::from_millis(fixed_ms);
        let varying = VaryingModel { fixed, per_request: 1.0, applications: applications.into() };
        let profile = varying.profile(RunTimeEstimate::Mean, 16).expect("a profile");
        let model = WorkloadModel::new("m", profile, Nanos::from_millis(slo_ms));
        groups_of(&model, &varying, gpus).into_iter().map(|group| group.members).collect()
    }

    #[test]
    fn applications_are_apart_where_their_own_time_is_most_of_a_batch_and_else_together() {
        assert_eq!(groups(&[50.0, 5.0], 1, 400, 1), [vec![1], vec![0]]);
        assert_eq!(groups(&[5.0, 4.0], 100, 250, 1), [vec![1, 0]]);
    }

    #[test]
    fn what_is_alike_is_together_and_what_is_far_off_by_itself() {
        assert_eq!(groups(&[5.0, 100.0, 6.0], 50, 300, 1), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn more_gpus_leave_more_apart() {
        let means_ms = [2.0, 6.0, 12.0, 20.0];
        let counts = [1, 4, 64].map(|gpus| groups(&means_ms, 60, 400, gpus).len());
        assert!(counts.is_sorted() && counts[0] < counts[2], "{counts:?}");
    }
}
