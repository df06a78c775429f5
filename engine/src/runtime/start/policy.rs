//! The thread of a policy that schedules as a whole, and the workload that the policy is told of: a
//! model for each that backends run, the classes of whose applications it sees as applications.
//!
//! How long an application's requests take is not known at the start. Its batches take what its
//! profile says, so with c0 the least intercept of the model's profiles, a request takes the slope
//! that is left (Yu's dissertation, equations 4.3 and 4.4), and its distribution is log-normal
//! around that, wide enough that a scale that is wrong by four lies in it. The policy learns the
//! rest from batches.

use super::builder::EngineBuilder;
use super::findings::Findings;
use super::rings::{EngineRings, ModelThreadRings};
use super::sub_clusters::SubClusterSpec;
use crate::runtime::frontend::{ModelInfo, SlotState};
use crate::runtime::profiling::ProfileKeeper;
use crate::runtime::threads::completions::CheckedCompletions;
use crate::runtime::threads::model_thread::RingOutlets;
use crate::runtime::threads::policy_thread::{
    PolicyCluster, PolicyCounting, PolicyModel, PolicyOutbox, PolicyQueue, PolicyThread,
};
use std::sync::Arc;
use symphony_scheduler::policy::{Policy, PolicyOptions};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::run_time::{Application, RunTimeEstimate, RunTimeHistogram, VaryingModel};
use symphony_scheduler::workload::{Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, Request};
use symphony_transport::ring::Consumer;

/// The standard deviation of the logarithm of an application's run times, before any batch has run:
/// one request in a thousand takes more than 4.7 times the median.
const SPREAD: f64 = 0.5;

/// The least run time of a request, ms, where a profile leaves none beside its intercept.
const LEAST_MS: f64 = 1e-3;

impl EngineBuilder {
    /// Makes the thread of a policy that schedules as a whole.
    pub(super) fn policy_thread(
        &self,
        policy: &dyn Policy,
        findings: &Findings,
        rings: &mut EngineRings,
        earlier: &ProfileKeeper,
    ) -> PolicyThread<Consumer<Request>, CheckedCompletions, RingOutlets> {
        let models = &findings.models;
        let queue_ids = self.queue_ids();
        let cluster_of = self.sub_clusters.index_on_rank();
        let mut of_slots: Vec<Option<PolicyQueue>> = vec![None; models.len()];
        let mut clusters = Vec::new();
        for (index, group) in self.sub_clusters.of_rank(0).enumerate() {
            let own = models.iter().filter(|model| {
                let is_run = model.state == SlotState::Serving && model.queue_slot() == model.id;
                is_run && cluster_of[model.id.0 as usize] as usize == index
            });
            let mut grouped: Vec<Vec<&ModelInfo>> = Vec::new();
            for model in own {
                match grouped.iter_mut().find(|group| is_application_beside(group[0], model)) {
                    Some(group) => group.push(model),
                    None => grouped.push(vec![model]),
                }
            }
            for (at, classes) in grouped.iter_mut().enumerate() {
                classes.sort_by_key(|model| model.application.as_ref().map(|of| of.at));
                for (application, class) in classes.iter().enumerate() {
                    of_slots[class.id.0 as usize] = Some(PolicyQueue {
                        cluster: index,
                        model: ModelId(at as u32),
                        application: application as u8,
                        slo: ModelInfo::planned_for(models, class.id).0,
                    });
                }
            }
            clusters.push(self.policy_cluster(policy, findings, group, (&grouped, earlier)));
        }
        let ModelThreadRings { requests, outlets, .. } = rings.model_thread(0, findings.largest_batch());
        let (_, completions) = rings.rank_thread(0);
        PolicyThread {
            clusters,
            queues: queue_ids.each(&of_slots).to_vec(),
            cluster_of,
            requests,
            completions,
            outbox: PolicyOutbox::new(outlets),
            counting: PolicyCounting { models: rings.counters.of_models(0), rank: rings.counters.of_rank(0) },
            learned: (Arc::clone(rings.counters.run_times()), Nanos::ZERO),
        }
    }

    /// Makes a sub-cluster of these models, each with the classes of its applications, of which an
    /// `earlier` engine may have learnt something.
    fn policy_cluster(
        &self,
        policy: &dyn Policy,
        Findings { models, profiles, .. }: &Findings,
        group: &SubClusterSpec,
        (grouped, earlier): (&[Vec<&ModelInfo>], &ProfileKeeper),
    ) -> PolicyCluster {
        let profile = |class: &ModelInfo| &profiles[class.id.0 as usize];
        let of_policy = grouped.iter().map(|classes| {
            let (slo, _) = ModelInfo::planned_for(models, classes[0].id);
            let known = |class: &&ModelInfo| (profile(class), earlier.earlier_run_times(class));
            policy_model(&classes[0].label(), slo, &classes.iter().map(known).collect::<Vec<_>>())
        });
        let slots = |classes: &Vec<&ModelInfo>| PolicyModel {
            slots: classes.iter().map(|class| (class.id, profile(class).clone())).collect(),
        };
        let workload = Workload {
            network: self.config.network,
            ..Workload::of_models(group.gpus.len(), 0.0, of_policy.collect())
        };
        let drop = policy.options().contains(&"drop").then_some(self.config.drop);
        let options = PolicyOptions { drop, ..PolicyOptions::default() };
        PolicyCluster::new(
            policy.scheduler(&workload, &options),
            grouped.iter().map(slots).collect(),
            group.gpus.start,
            group.gpus.len(),
        )
    }
}

/// Returns true if the two are classes of one model for different applications.
fn is_application_beside(one: &ModelInfo, other: &ModelInfo) -> bool {
    let sizes = |of: &ModelInfo| of.sizes.as_ref().map(|sizes| sizes.text(of.id));
    let is_of = |of: &ModelInfo| of.application.is_some();
    is_of(one)
        && is_of(other)
        && (&one.name, one.version, sizes(one)) == (&other.name, other.version, sizes(other))
}

/// What is known of an application at the start: its profile, and what was learnt of its requests'
/// run times.
type Known<'a> = (&'a Profile, Option<&'a RunTimeHistogram>);

/// Returns a model as a policy is told of it, from what is known of each of its applications.
fn policy_model(name: &str, slo: Nanos, applications: &[Known<'_>]) -> WorkloadModel {
    let max_batch = applications.iter().map(|(profile, _)| profile.max_batch()).min().unwrap_or(1);
    let [(first, _), others @ ..] = applications else {
        return WorkloadModel::new(name, Profile::of_nothing(), slo);
    };
    if others.is_empty() {
        return WorkloadModel::new(name, (*first).clone(), slo);
    }
    let varying = varying(applications, max_batch);
    // Run times that have no profile are served as those of the first application.
    let profile = varying.as_ref().and_then(|of| of.profile(RunTimeEstimate::Mean, max_batch).ok());
    let profile = profile.unwrap_or_else(|| first.truncated(max_batch));
    WorkloadModel { varying, ..WorkloadModel::new(name, profile, slo) }
}

/// Returns how long batches take of requests of applications of which this is known; see the
/// module's description. `None` where numbers of a profile make no distribution.
fn varying(applications: &[Known<'_>], max_batch: usize) -> Option<VaryingModel> {
    let ms = |profile: &Profile, size: usize| profile.latency(size).as_millis_f64();
    let intercept = |(profile, _): &Known<'_>| {
        let slope = (ms(profile, max_batch) - ms(profile, 1)) / (max_batch.max(2) - 1) as f64;
        (ms(profile, 1) - slope).max(0.0)
    };
    let least = applications.iter().map(intercept).fold(f64::INFINITY, f64::min);
    let fixed_ms = if max_batch > 1 { least } else { 0.0 };
    let application = |&(profile, learned): &Known<'_>| {
        let run_time_ms = ((ms(profile, max_batch) - fixed_ms) / max_batch as f64).max(LEAST_MS);
        let assumed = || RunTimeHistogram::log_normal(run_time_ms, SPREAD).ok();
        let run_times = learned.cloned().or_else(assumed)?;
        Some(Application { share: 1.0, run_times, costs: None })
    };
    let applications: Option<Vec<Application>> = applications.iter().map(application).collect();
    Some(VaryingModel {
        fixed: Nanos::from_millis_f64(fixed_ms),
        per_request: 1.0,
        applications: applications?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_an_application_take_about_what_its_profile_says() {
        let base = Profile::linear(Nanos::from_millis(2), Nanos::from_millis(5), 8).unwrap();
        let long = base.times(4.0);
        let model = policy_model("m", Nanos::from_millis(200), &[(&base, None), (&long, None)]);
        let varying = model.varying.unwrap();
        for (application, profile) in varying.applications.iter().zip([&base, &long]) {
            let median = application.run_times.quantile(0.5);
            for size in [4, 8] {
                let ratio = varying.batch_ms(size, median) / profile.latency(size).as_millis_f64();
                assert!((0.75..1.05).contains(&ratio), "{size}: {ratio}");
            }
            assert!(application.run_times.highest_ms() > 4.0 * median);
        }
        assert!(model.profile.latency(8) > base.latency(8));
        let learned = RunTimeHistogram::log_normal(7.0, 0.1).unwrap();
        let again = policy_model("m", Nanos::ZERO, &[(&base, None), (&long, Some(&learned))]);
        assert_eq!(again.varying.unwrap().applications[1].run_times, learned);
        assert_eq!(policy_model("m", Nanos::ZERO, &[(&base, None)]).varying, None);
    }
}
