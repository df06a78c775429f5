//! The generator: workload number n of either half of the population, or of the mixed workloads
//! beside it, always the same one.

use crate::zoo::{Model, zoo_1080ti, zoo_a100};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use symphony_scheduler::load_phases::{LoadPhase, LoadPhases};
use symphony_scheduler::sim::arrivals::stream_seed;
use symphony_scheduler::sim::goodput::ideal_rate;
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;

/// The version of the generator and of the search for goodputs. Results of another version are of
/// other workloads, or were found in another way.
pub const VERSION: u32 = 4;

/// The seed of all of them.
const SEED: u64 = 1;

/// The number of workloads in each half, and in each list beside them.
pub const HALF: usize = 400;

/// The requests that each model gets at any rate, unless that takes over [`LONGEST`]: of fewer, one
/// or two bad ones are what decides.
const REQUESTS: f64 = 2_000.0;

/// The share of the ideal rate at which a model's requests are counted on: most goodputs are above
/// it.
const EXPECTED: f64 = 0.5;

/// The longest time in which requests count: an hour.
const LONGEST: f64 = 3_600.0;

/// The shortest such time, seconds, and in multiples of the largest SLO: several times what a rule
/// remembers of the load, and what a queue does.
const SHORTEST: (f64, f64) = (3.0, 20.0);

/// The time before it, in the same units: what a rule remembers of the load, and the queues, have
/// settled.
const WARMUP: (f64, f64) = (3.0, 4.0);

/// An SLO is at least this many times l(1): less leaves no time to wait while another batch runs.
const TIGHTEST: f64 = 2.05;

/// The factor on each model's SLO in a mixed workload, beside that on all of them.
const OWN_SLO: (f64, f64) = (0.5, 4.0);

/// The part of the most frequent model's rate that each model of a mixed workload may have.
const OWN_RATE: (f64, f64) = (0.03, 1.0);

/// The lengths of the phases in which rates go up and down, in seconds, and the rates in them, each
/// over the others.
const PHASES: [(f64, f64); 2] = [(0.3, 5.0), (1.0, 4.0)];

/// A run has at least so many rounds of all phases.
const ROUNDS: u64 = 3;

/// A half of the population, or a list of workloads beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Half {
    /// The half on which a rule is found.
    Tune,
    /// The half that is only looked at to report.
    Report,
    /// Workloads of another kind: each model has arrivals, a rate and a tightness of its SLO of its
    /// own. In a third of them all rates go up and down together, in another third each by itself.
    Mixed,
    /// Workloads like those of the halves, on which faults of the default were looked for.
    Faults,
    /// Others like them, to see what holds where nobody had looked.
    Fresh,
}

impl Half {
    /// Both halves, and the lists beside them.
    pub const ALL: [Half; 5] = [Half::Tune, Half::Report, Half::Mixed, Half::Faults, Half::Fresh];

    /// Returns the name in workloads' names and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Half::Tune => "tune",
            Half::Report => "report",
            Half::Mixed => "mixed",
            Half::Faults => "faults",
            Half::Fresh => "fresh",
        }
    }

    /// Returns the number that its first workload has in the order of all that can be drawn.
    fn first(self) -> usize {
        match self {
            Half::Tune => 0,
            Half::Report => HALF,
            Half::Mixed => 2 * HALF,
            Half::Faults => 10_000,
            Half::Fresh => 12_000,
        }
    }

    /// Returns the half of this name.
    pub fn parse(name: &str) -> Option<Half> {
        Half::ALL.into_iter().find(|half| half.name() == name)
    }

    /// Returns workload number `number`, from 0 and below [`HALF`].
    pub fn workload(self, number: usize) -> Workload {
        let seed = stream_seed(SEED, (self.first() + number) as u64);
        let mut draw = Draw(Pcg64Mcg::seed_from_u64(seed));
        let gpus = draw.log_uniform(1.0, 129.0) as usize;
        let count = draw.log_uniform(1.0, 49.0) as usize;
        let mixed = self == Half::Mixed;
        let mut workload = Workload::of_models(gpus, 1.0, draw.models(count, mixed));
        workload.name = format!("{}-{number:03}", self.name());
        workload.seed = seed;
        if mixed {
            draw.mixed_traffic(&mut workload.models);
        } else {
            draw.traffic(&mut workload.models);
        }
        if draw.uniform() < 0.25 {
            draw.network(&mut workload);
        }
        timed(workload)
    }

    /// Returns the workload of this name; `None` if there is none.
    pub fn by_name(name: &str) -> Option<Workload> {
        let (half, number) = name.rsplit_once('-')?;
        let number = number.parse().ok().filter(|&number| number < HALF)?;
        let workload = Half::parse(half)?.workload(number);
        (workload.name == name).then_some(workload)
    }
}

/// Returns the file of a workload of the population, as `simulate` reads it. Times are rounded to a
/// nanosecond and the seed to what TOML can hold, so a run of the file is like one of the workload,
/// not the same.
pub fn toml(workload: &Workload) -> String {
    let Workload { gpus, seed, rate_rps, network, models, .. } = workload;
    let [warmup, duration] = [workload.warmup, workload.duration].map(Nanos::as_secs_f64);
    let us = |time: Nanos| time.0 as f64 / 1e3;
    let mut text = format!(
        "gpus = {gpus}\nseed = {}\nwarmup_s = {warmup:?}\nduration_s = {duration:?}\nrate_rps = {rate_rps:?}\n\n\
         [network]\ncontrol_us = {:?}\ndata_us_per_request = {:?}\nresult_us = {:?}\n",
        seed >> 1,
        us(network.control),
        us(network.data_per_request),
        us(network.result),
    );
    for model in models {
        let WorkloadModel { name, slo, share, arrival, .. } = model;
        let (alpha, beta) = workload_profile(model);
        let (process, phases) = match arrival {
            Arrival::Phased(process, phases) => (&**process, Some(phases)),
            process => (process, None),
        };
        let arrival = match process {
            Arrival::Gamma(shape) => format!("gamma:{shape}"),
            Arrival::Uniform => "uniform".to_owned(),
            _ => "poisson".to_owned(),
        };
        text += &format!(
            "\n[[models]]\nname = {name:?}\nalpha_ms = {:?}\nbeta_ms = {:?}\nslo_ms = {:?}\nshare = {share:?}\n\
             arrival = {arrival:?}\n",
            alpha.as_millis_f64(),
            beta.as_millis_f64(),
            slo.as_millis_f64(),
        );
        if let Some(phases) = phases {
            let phase = |LoadPhase { lasts, factor }: &LoadPhase| {
                format!("{{ for_s = {:?}, factor = {factor:?} }}", lasts.as_secs_f64())
            };
            let phases: Vec<String> = phases.iter().map(phase).collect();
            text += &format!("phases = [{}]\n", phases.join(", "));
        }
    }
    text
}

/// Returns alpha and beta of a model of the population.
pub(super) fn workload_profile(model: &WorkloadModel) -> (Nanos, Nanos) {
    let profile = &model.profile;
    let [one, two] = [1, 2].map(|size| profile.latency(size.min(profile.max_batch())));
    let alpha = if profile.max_batch() > 1 { two - one } else { Nanos(one.0 / 2) };
    (alpha, one - alpha)
}

/// Returns the workload with its times and a rate in the middle.
fn timed(workload: Workload) -> Workload {
    let at_least = |(seconds, slos): (f64, f64)| {
        let slos = workload.models.iter().map(|model| slos * model.slo.as_secs_f64());
        Nanos::from_secs_f64(slos.fold(seconds, f64::max))
    };
    let [warmup, duration] = [WARMUP, SHORTEST].map(at_least);
    let rounds = |model: &WorkloadModel| match &model.arrival {
        Arrival::Phased(_, phases) => Nanos(ROUNDS * phases.cycle().0),
        _ => Nanos::ZERO,
    };
    let duration = workload.models.iter().map(rounds).fold(duration, Nanos::max);
    let rate_rps = EXPECTED * ideal_rate(&workload);
    at_rate(&Workload { warmup, duration, ..workload }, rate_rps)
}

/// Returns the workload at another rate: it lasts as long as before, or longer if a model needs
/// that for [`REQUESTS`] requests.
pub(super) fn at_rate(workload: &Workload, rate_rps: f64) -> Workload {
    let least = workload.models.iter().map(|model| model.share).fold(1.0, f64::min);
    let needed = Nanos::from_secs_f64((REQUESTS / (least * rate_rps)).min(LONGEST));
    Workload { rate_rps, duration: workload.duration.max(needed), ..workload.clone() }
}

/// The random choices of one workload.
struct Draw(Pcg64Mcg);

impl Draw {
    fn uniform(&mut self) -> f64 {
        self.0.random()
    }

    fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        from * (to / from).powf(self.uniform())
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())]
    }

    /// Draws the models: copies of one, those of a zoo, or random ones. All SLOs are as much
    /// tighter or looser than their own, and in mixed workloads each by a factor of its own too.
    fn models(&mut self, count: usize, mixed: bool) -> Vec<WorkloadModel> {
        let zoo = self.one_of(&[zoo_1080ti as fn() -> _, zoo_a100])();
        let drawn: Vec<Model<'_>> = match self.one_of(&["equal", "zoo", "random"]) {
            "equal" => {
                let model = if self.uniform() < 0.5 { self.one_of(&zoo) } else { self.random_model() };
                vec![model; count]
            }
            "zoo" => (0..count).map(|_| self.one_of(&zoo)).collect(),
            _ => (0..count).map(|_| self.random_model()).collect(),
        };
        let factor = self.log_uniform(0.75, 3.0);
        let scaled = drawn.iter().map(|model| {
            let own = if mixed { self.log_uniform(OWN_SLO.0, OWN_SLO.1) } else { 1.0 };
            model.with_slo((model.slo_ms * factor * own).max(TIGHTEST * model.latency_ms(1.0)))
        });
        scaled
            .enumerate()
            .map(|(at, model)| {
                let slo = Nanos::from_millis_f64(model.slo_ms);
                WorkloadModel::new(&format!("{}-{}", model.name, at + 1), model.profile(), slo)
            })
            .collect()
    }

    fn random_model(&mut self) -> Model<'static> {
        let alpha_ms = self.log_uniform(0.05, 5.0);
        let beta_ms = alpha_ms * self.log_uniform(0.5, 60.0);
        let slo_ms = (alpha_ms + beta_ms) * self.log_uniform(2.0, 12.0);
        Model { name: "random", alpha_ms, beta_ms, slo_ms }
    }

    /// Draws the models' shares and how their requests arrive.
    fn traffic(&mut self, models: &mut [WorkloadModel]) {
        let arrival = self.one_of(&[1.0, 0.5, 0.2, 0.05]);
        let exponent = self.one_of(&[0.0, 0.5, 0.9, 1.2]);
        let sum: f64 = (1..=models.len()).map(|rank| (rank as f64).powf(-exponent)).sum();
        for (at, model) in models.iter_mut().enumerate() {
            model.share = (at as f64 + 1.0).powf(-exponent) / sum;
            model.arrival = if arrival == 1.0 { Arrival::Poisson } else { Arrival::Gamma(arrival) };
        }
    }

    /// Draws a share and a way to arrive for each model, and phases for all or each or none.
    fn mixed_traffic(&mut self, models: &mut [WorkloadModel]) {
        let common = self.phases();
        let phased = self.one_of(&["none", "all", "each"]);
        for model in models.iter_mut() {
            model.share = self.log_uniform(OWN_RATE.0, OWN_RATE.1);
            let process = match self.one_of(&[None, Some(1.0), Some(0.5), Some(0.2), Some(0.05)]) {
                None => Arrival::Uniform,
                Some(1.0) => Arrival::Poisson,
                Some(shape) => Arrival::Gamma(shape),
            };
            model.arrival = match phased {
                "none" => process,
                "all" => Arrival::Phased(process.into(), common.clone()),
                _ => Arrival::Phased(process.into(), self.phases()),
            };
        }
        let sum: f64 = models.iter().map(|model| model.share).sum();
        models.iter_mut().for_each(|model| model.share /= sum);
    }

    /// Draws phases of a load that goes up and down.
    fn phases(&mut self) -> LoadPhases {
        let [lasts, factors] = PHASES;
        let count = self.one_of(&[2, 3, 4]);
        let phases: Vec<LoadPhase> = (0..count)
            .map(|_| {
                let lasts = Nanos::from_secs_f64(self.log_uniform(lasts.0, lasts.1));
                LoadPhase { lasts, factor: self.log_uniform(factors.0, factors.1) }
            })
            .collect();
        LoadPhases::new(&phases).expect("each has a length and a load")
    }

    /// Draws the network's delays. What a batch of one needs of them comes on top of each SLO.
    fn network(&mut self, workload: &mut Workload) {
        let mut between = |from, to| Nanos::from_millis_f64(self.log_uniform(from, to));
        workload.network = Network {
            control: between(0.02, 0.5),
            data_per_request: between(0.001, 0.05),
            result: between(0.02, 2.0),
        };
        for model in &mut workload.models {
            model.slo += workload.network.delay(1) + workload.network.result;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use symphony::config::read_workload;

    fn all() -> impl Iterator<Item = Workload> {
        Half::ALL.into_iter().flat_map(|half| (0..HALF).map(move |number| half.workload(number)))
    }

    #[test]
    fn a_workload_is_the_same_each_time_and_no_two_are_alike() {
        let seeds: HashSet<u64> = all().map(|workload| workload.seed).collect();
        assert_eq!(seeds.len(), Half::ALL.len() * HALF);
        for name in ["tune-000", "report-399", "mixed-007", "faults-120", "fresh-003"] {
            assert_eq!(Half::by_name(name), Half::by_name(name));
            assert_eq!(Half::by_name(name).unwrap().name, name);
        }
        for name in ["tune-400", "tune-7", "other-001", "tune"] {
            assert_eq!(Half::by_name(name), None, "{name}");
        }
    }

    #[test]
    fn its_file_is_the_workload() {
        let folder = tempfile::tempdir().unwrap();
        let tune = (0..40).map(|number| Half::Tune.workload(number));
        for workload in tune.chain((0..20).map(|number| Half::Mixed.workload(number))) {
            let file = folder.path().join(format!("{}.toml", workload.name));
            std::fs::write(&file, toml(&workload)).unwrap();
            let read = read_workload(&file).unwrap();
            assert_eq!(
                (&read.name, read.gpus, read.network),
                (&workload.name, workload.gpus, workload.network)
            );
            for (read, drawn) in read.models.iter().zip(&workload.models) {
                assert_eq!((&read.name, read.slo), (&drawn.name, drawn.slo));
                assert_same_arrivals(&read.arrival, &drawn.arrival);
                assert_eq!(read.profile.latency(1), drawn.profile.latency(1));
                assert!((read.share - drawn.share).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn the_population_spans_what_it_is_said_to_span() {
        for workload in all() {
            assert!((1..=128).contains(&workload.gpus) && (1..=48).contains(&workload.models.len()));
            let shares: f64 = workload.models.iter().map(|model| model.share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{}: {shares}", workload.name);
            for model in &workload.models {
                let alone = model.profile.latency(1).as_secs_f64();
                assert!(workload.warmup.as_secs_f64() > 3.9 * model.slo.as_secs_f64());
                assert!(model.slo.as_secs_f64() > 2.04 * alone, "{}: {}", workload.name, model.name);
                let requests = workload.rate_rps * model.share * workload.duration.as_secs_f64();
                let enough =
                    requests > 0.999 * REQUESTS || workload.duration >= Nanos::from_secs_f64(LONGEST);
                assert!(enough, "{}: {requests}", workload.name);
            }
        }
        let share = |of: &dyn Fn(&Workload) -> bool| {
            all().filter(of).count() as f64 / (Half::ALL.len() * HALF) as f64
        };
        assert!((share(&|workload| workload.network != Network::default()) - 0.25).abs() < 0.06);
        assert!((share(&|workload| workload.gpus < 12) - 0.5).abs() < 0.08);
        assert!((share(&|workload| workload.models.len() < 7) - 0.5).abs() < 0.08);
    }

    /// Asserts that two arrivals are the same, but for the last digits of factors.
    fn assert_same_arrivals(read: &Arrival, drawn: &Arrival) {
        let (Arrival::Phased(read, phases), Arrival::Phased(drawn, drawn_phases)) = (read, drawn) else {
            assert_eq!(read, drawn);
            return;
        };
        assert_eq!((read, phases.iter().count()), (drawn, drawn_phases.iter().count()));
        for (read, drawn) in phases.iter().zip(drawn_phases.iter()) {
            assert_eq!(read.lasts, drawn.lasts);
            assert!((read.factor - drawn.factor).abs() < 1e-9, "{read:?} {drawn:?}");
        }
    }

    #[test]
    fn models_differ_in_mixed_workloads() {
        let differs = |workload: &Workload| {
            workload.models.iter().any(|model| model.arrival != workload.models[0].arrival)
        };
        for workload in all().filter(|workload| workload.models.len() > 10) {
            assert_eq!(differs(&workload), workload.name.starts_with("mixed"), "{}", workload.name);
        }
    }
}
