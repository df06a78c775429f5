//! What a seed stands for: an engine, the load on it, and how its threads and its clients behave.

use super::dice::Dice;
use crate::config::{Config, Diagnostics, RepositoryConfig, RepositoryControl, parse_config};
use std::fmt::Write;
use std::path::PathBuf;
use symphony_scheduler::policy;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The share of the GPUs' time that the load would take if all batches were the largest that the
/// SLO allows.
const LOAD: (f64, f64) = (0.2, 0.45);

/// The share of engines of three models or more in which some are run as one.
const GROUPED: f64 = 0.4;

/// A model: l(b) = `alpha` b + `beta`, in milliseconds.
struct ScenarioModel {
    alpha: f64,
    beta: f64,
    slo: f64,
    max_batch: usize,
    priority: usize,
}

impl ScenarioModel {
    fn draw(dice: &mut Dice) -> ScenarioModel {
        ScenarioModel {
            alpha: dice.number(0.005, 0.05),
            beta: dice.number(0.3, 2.0),
            slo: dice.number(20.0, 80.0),
            max_batch: 1 << dice.count(3, 7),
            priority: if dice.chance(0.15) { dice.count(1, 3) } else { 0 },
        }
    }

    /// Returns the requests that a GPU runs in a millisecond, in the largest batches of which two
    /// fit the SLO.
    fn rate_per_gpu(&self) -> f64 {
        let fitting = (self.slo / 2.0 - self.beta) / self.alpha;
        let batch = fitting.clamp(1.0, self.max_batch as f64);
        batch / (self.alpha * batch + self.beta)
    }
}

/// Everything about a simulation but its faults. See the module's description.
pub(super) struct Scenario {
    pub(super) frontends: usize,
    pub(super) model_threads: usize,
    pub(super) rank_threads: usize,
    pub(super) gpus: usize,
    models: Vec<ScenarioModel>,
    /// The number of models, the first ones, that are run as one; 0 for none.
    pub(super) grouped: usize,
    policy: &'static str,
    pub(super) in_flight: usize,
    /// The bytes of a row's input, and of its output.
    pub(super) row_bytes: usize,
    /// The mean time between two duty cycles of a thread.
    pub(super) cycle: Nanos,
    /// The capacity of the rings of messages to RankThreads.
    pub(super) message_ring: usize,
    /// The requests of all clients in a second.
    pub(super) rate: f64,
    /// True if models are loaded and unloaded.
    pub(super) changes: bool,
    /// The shares of requests of several rows, of lower classes, without a deadline, and of those
    /// that are cancelled.
    pub(super) of_rows: f64,
    pub(super) of_classes: f64,
    pub(super) never_due: f64,
    pub(super) cancelled: f64,
    /// The time after its deadline at which a request is ended.
    pub(super) grace: Nanos,
    pub(super) end: ScenarioEnd,
}

/// The end of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScenarioEnd {
    /// No more requests come, and those that came are answered.
    Drained,
    /// The engine is stopped under load.
    Stopped,
    /// A role or an API core dies under load.
    Dead,
}

impl Scenario {
    /// Draws a scenario. Whether models are run as one is drawn by dice of its own, `of_groups`.
    pub(super) fn draw(dice: &mut Dice, of_groups: &mut Dice) -> Scenario {
        let (gpus, models) = (dice.count(2, 12), dice.count(2, 6));
        let mut models: Vec<ScenarioModel> = (0..models).map(|_| ScenarioModel::draw(dice)).collect();
        // One model at least is by itself: the control thread loads copies of it.
        let grouped = if models.len() > 2 && of_groups.chance(GROUPED) {
            of_groups.count(2, models.len() - 1)
        } else {
            0
        };
        if let Some((first, others)) = models[..grouped].split_first_mut() {
            for model in others {
                let (slo, priority) = (model.slo, model.priority);
                *model = ScenarioModel { slo, priority, ..*first };
            }
        }
        let time: f64 =
            models.iter().map(|model| 1.0 / model.rate_per_gpu()).sum::<f64>() / models.len() as f64;
        let rate = (dice.number(LOAD.0, LOAD.1) * gpus as f64 / time * 1e3).min(200_000.0);
        let frontends = dice.count(1, 3);
        let served = policy::deferring();
        let mut share = |most| if dice.chance(0.5) { dice.number(0.0, most) } else { 0.0 };
        let (of_rows, of_classes, never_due, cancelled) = (share(0.1), share(0.2), share(0.05), share(0.2));
        Scenario {
            frontends,
            model_threads: dice.count(1, 3),
            rank_threads: dice.count(1, 2),
            gpus,
            policy: if dice.chance(0.7) { served[0] } else { served[dice.below(served.len())] },
            in_flight: ((rate / frontends as f64 * 0.2) as usize).clamp(256, 16_384),
            models,
            grouped,
            row_bytes: 8 << dice.count(0, 4),
            cycle: dice.time(Nanos::from_micros(20), Nanos::from_micros(200)),
            message_ring: 64 << dice.count(0, 6),
            rate,
            changes: dice.chance(0.5),
            of_rows,
            of_classes,
            never_due,
            cancelled,
            grace: Nanos::from_millis(dice.count(5, 300) as u64),
            end: match dice.below(8) {
                0..=2 => ScenarioEnd::Drained,
                3..=5 => ScenarioEnd::Stopped,
                _ => ScenarioEnd::Dead,
            },
        }
    }

    /// Returns the number of models that are served from the start to the end.
    pub(super) fn models(&self) -> usize {
        self.models.len()
    }

    /// Returns true if the model is served from the start to the end.
    pub(super) fn is_of_the_start(&self, model: ModelId) -> bool {
        (model.0 as usize) < self.models.len()
    }

    /// Returns the largest SLO.
    pub(super) fn largest_slo(&self) -> Nanos {
        let largest = self.models.iter().map(|model| model.slo).fold(0.0, f64::max);
        Nanos((largest * 1e6) as u64)
    }

    /// Returns the configuration of the scenario's engine.
    ///
    /// Errors: the configuration is refused.
    pub(super) fn config(&self) -> Result<Config, Diagnostics> {
        let Scenario { policy, gpus, model_threads, rank_threads, in_flight, grace, .. } = self;
        let grace = grace.0 / 1_000_000;
        // No thread runs beside the simulation.
        let tuning =
            if *policy == symphony_scheduler::policy::POLICIES[0].name() { "tuning = \"off\"\n" } else { "" };
        let mut text = format!(
            "policy = \"{policy}\"\n{tuning}[http]\nmax_in_flight = {in_flight}\n[cores]\n\
             model_threads = {model_threads}\nrank_threads = {rank_threads}\n\
             [faults]\ngrace_ms = {grace}\n\
             [[executors]]\nkind = \"emulated\"\ncount = {gpus}\n"
        );
        for (at, model) in self.models.iter().enumerate() {
            text += &self.section(&format!("m{at}"), model);
            text += if at < self.grouped { "prefix_group = \"g\"\n" } else { "" };
        }
        let mut config = parse_config(&text)?;
        if self.changes {
            let location = config.models[0].locations.slo.clone();
            let repository = RepositoryConfig::at(PathBuf::new(), location);
            let control = RepositoryControl::Explicit;
            let (max_versions, max_row_bytes) = (self.models.len() + 4, 1 << 12);
            config.repository = Some(RepositoryConfig { control, max_versions, max_row_bytes, ..repository });
        }
        Ok(config)
    }

    fn section(&self, name: &str, model: &ScenarioModel) -> String {
        let ScenarioModel { alpha, beta, slo, max_batch, priority } = model;
        let mut text = format!(
            "[[models]]\nname = \"{name}\"\nexecutor = \"emulated\"\nslo_ms = {slo:.3}\n\
             profile = {{ alpha_ms = {alpha:.4}, beta_ms = {beta:.3} }}\nmax_batch = {max_batch}\n\
             priority = {priority}\n"
        );
        for (tensors, tensor) in [("inputs", "x"), ("outputs", "y")] {
            let bytes = self.row_bytes;
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "{tensors} = [{{ name = \"{tensor}\", datatype = \"UINT8\", shape = [{bytes}] }}]"
            );
        }
        text
    }
}
