//! The description of a recorded thread: everything that is fixed about its state machines, so that
//! replay can build them again. JSON, written once.

use serde::{Deserialize, Serialize};
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, QueueId};

/// The longest network delay that is believed, an hour: what a configuration may give is far below.
pub(super) const MAX_DELAY_NS: u64 = 3_600_000_000_000;

/// The description of any recorded thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Description {
    /// A ModelThread.
    Models(ModelsDescription),
    /// A RankThread.
    Rank(RankDescription),
}

/// The description of a ModelThread. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ModelsDescription {
    /// The name of the models' deferral.
    deferral: String,
    drop: String,
    control_ns: u64,
    data_per_request_ns: u64,
    result_ns: u64,
    /// Each distinct profile, once: l(1), l(2), …
    profiles: Vec<Vec<u64>>,
    pub(super) models: Vec<ModelDescription>,
}

/// The description of a queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ModelDescription {
    pub(super) id: u32,
    pub(super) name: String,
    slo_ns: u64,
    frontrun_slack_ns: u64,
    latest_slack_ns: u64,
    /// The index of the queue's profile in `profiles`.
    profile: usize,
    /// The largest batch that is worthwhile.
    worthwhile: usize,
    /// The number of GPUs of the queue's sub-cluster.
    gpus: usize,
    /// The class of the queue's requests, from 0.
    pub(super) class: u8,
}

/// The description of a RankThread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RankDescription {
    pub(super) models: usize,
    /// The class of each queue, from 0; empty where there is only one class.
    pub(super) classes: Vec<u8>,
    pub(super) clusters: Vec<ClusterDescription>,
}

/// The description of a sub-cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ClusterDescription {
    pub(super) gpus: usize,
    pub(super) keep_late: bool,
    pub(super) completion_delay_ns: u64,
    /// Zero in recordings of 0.1.0.
    #[serde(default)]
    pub(super) ahead_ns: u64,
    /// The engine's number of the first GPU.
    pub(super) first_gpu: u32,
}

impl ModelsDescription {
    /// Describes the ModelThread that owns queues of these names, classes and configurations.
    pub(super) fn new<'a>(
        models: impl Iterator<Item = (&'a str, Class, &'a QueueConfig)>,
    ) -> ModelsDescription {
        let mut made = ModelsDescription {
            deferral: String::new(),
            drop: String::new(),
            control_ns: 0,
            data_per_request_ns: 0,
            result_ns: 0,
            profiles: Vec::new(),
            models: Vec::new(),
        };
        for (name, class, config) in models {
            // These are the same for all of an engine's models.
            made.deferral = config.deferral.name().to_owned();
            made.drop = config.drop.name().to_owned();
            made.control_ns = config.network.control.0;
            made.data_per_request_ns = config.network.data_per_request.0;
            made.result_ns = config.network.result.0;
            let table: Vec<u64> =
                (1..=config.profile.max_batch()).map(|size| config.profile.latency(size).0).collect();
            let known = made.profiles.iter().position(|profile| *profile == table);
            let profile = known.unwrap_or(made.profiles.len());
            if known.is_none() {
                made.profiles.push(table);
            }
            made.models.push(ModelDescription {
                id: config.queue.0,
                name: name.to_owned(),
                slo_ns: config.slo.0,
                frontrun_slack_ns: config.slack.frontrun.0,
                latest_slack_ns: config.slack.latest.0,
                profile,
                worthwhile: config.profile.worthwhile().max_batch(),
                gpus: config.gpus,
                class: class.number(),
            });
        }
        made
    }

    /// Returns the queues' configurations, in the same order; or what is wrong with the
    /// description.
    pub(super) fn queue_configs(&self) -> Result<Vec<QueueConfig>, String> {
        let drop = DropRule::parse(&self.drop).ok_or_else(|| format!("unknown drop rule {:?}", self.drop))?;
        let deferral = policy::deferral(&self.deferral)
            .ok_or_else(|| format!("deferral {:?} is not one of this program's", self.deferral))?;
        let delays = [self.control_ns, self.data_per_request_ns, self.result_ns];
        if delays.iter().any(|&delay| delay > MAX_DELAY_NS) {
            return Err(format!("a network delay beyond {MAX_DELAY_NS} ns"));
        }
        let network = Network {
            control: Nanos(self.control_ns),
            data_per_request: Nanos(self.data_per_request_ns),
            result: Nanos(self.result_ns),
        };
        let profile = |model: &ModelDescription| -> Result<Profile, String> {
            let table = self.profiles.get(model.profile).ok_or("a model without a profile")?;
            let table: Vec<Nanos> = table.iter().copied().map(Nanos).collect();
            let profile = Profile::measured(&table).map_err(|error| error.to_string())?;
            let (most, whole) = (model.worthwhile, profile.max_batch());
            if !(1..=whole).contains(&most) {
                return Err(format!("a largest batch of {most} for a profile up to {whole}"));
            }
            Ok(profile.worthwhile_up_to(most))
        };
        self.models
            .iter()
            .map(|model| {
                Ok(QueueConfig {
                    queue: QueueId(model.id),
                    profile: profile(model)?,
                    slo: Nanos(model.slo_ns),
                    network,
                    drop,
                    deferral,
                    slack: Slack {
                        frontrun: Nanos(model.frontrun_slack_ns),
                        latest: Nanos(model.latest_slack_ns),
                    },
                    gpus: model.gpus,
                })
            })
            .collect()
    }
}
