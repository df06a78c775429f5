//! Models by their linear profile, and the two zoos of Symphony's appendix. Read by the population
//! of random workloads and by the experiments in `perf/papers`.

use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// A model: l(b) = alpha b + beta, milliseconds, and its SLO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The time that each request adds to a batch, ms.
    pub alpha_ms: f64,
    /// The time of a batch that does not depend on its size, ms.
    pub beta_ms: f64,
    /// The latency SLO, ms.
    pub slo_ms: f64,
}

impl Model<'_> {
    /// Returns the model with another SLO, ms.
    pub fn with_slo(self, slo_ms: f64) -> Self {
        Model { slo_ms, ..self }
    }

    /// Returns l(b) in ms.
    pub fn latency_ms(&self, batch: f64) -> f64 {
        self.alpha_ms * batch + self.beta_ms
    }

    /// Returns the profile, with batches up to the largest that fits in the SLO.
    pub fn profile(&self) -> Profile {
        let largest = ((self.slo_ms - self.beta_ms) / self.alpha_ms).clamp(1.0, limits::MAX_BATCH as f64);
        let ms = Nanos::from_millis_f64;
        Profile::linear(ms(self.alpha_ms), ms(self.beta_ms), largest as usize)
            .expect("the papers' profiles take time and have at least one batch size")
    }
}

/// Returns the models of Symphony's Table 5, measured on a GTX 1080 Ti.
pub fn zoo_1080ti() -> Vec<Model<'static>> {
    zoo(include_str!("../workloads/zoo_1080ti.csv"))
}

/// Returns the models of Symphony's Table 6, measured on an A100.
pub fn zoo_a100() -> Vec<Model<'static>> {
    zoo(include_str!("../workloads/zoo_a100.csv"))
}

fn zoo(csv: &'static str) -> Vec<Model<'static>> {
    let model = |line: &'static str| {
        let mut cells = line.split(',');
        let name = cells.next()?;
        let mut number = || cells.next()?.trim().parse().ok();
        Some(Model { name, alpha_ms: number()?, beta_ms: number()?, slo_ms: number()? })
    };
    csv.lines().skip(1).filter_map(model).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zoos_have_the_models_of_the_papers_tables() {
        assert_eq!((zoo_1080ti().len(), zoo_a100().len()), (35, 37));
        let first = Model { name: "NASNetMobile", alpha_ms: 0.570, beta_ms: 14.348, slo_ms: 33.0 };
        assert_eq!(zoo_1080ti()[0], first);
    }
}
