//! The command line of `scale`, from which each run gets its [`Plan`].

use super::plan::{Plan, Watch};
use super::run::arrivals::MIN_RATE;
use clap::Parser;
use std::path::PathBuf;
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// Runs the scheduler's own threads on pinned cores, with generated requests and without GPUs, and
/// measures the cost of a request. A run passes if 95 % of arrivals were taken up within 2 ms and
/// at most 1 % of requests were bad, the machine's stalls aside; what it had been with them is
/// printed too.
#[derive(Clone, Debug, Parser)]
#[command(name = "scale", version)]
pub struct Options {
    /// ModelThreads, one core each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub model_threads: usize,
    /// RankThreads, one core each; models and GPUs are split evenly among them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rank_threads: usize,
    /// Models in all [default: 10 a ModelThread]
    #[arg(long, value_name = "M")]
    pub models: Option<usize>,
    /// GPUs in all [default: a quarter more than the rate needs]
    #[arg(long, value_name = "G")]
    pub gpus: Option<usize>,
    /// Requests per second in all
    #[arg(long, value_name = "R", conflicts_with = "max", default_value_t = 1e6)]
    pub rate: f64,
    /// Search for the highest rate that passes, to about 1 %
    #[arg(long)]
    pub max: bool,
    /// Search N times; passes if the rates found agree within 15 %
    #[arg(long, value_name = "N", requires = "max", conflicts_with_all = ["compare", "sweep_model_threads"])]
    pub searches: Option<usize>,
    /// Run another process meanwhile that takes this share of a core, such as 0.1
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub disturb: Option<f64>,
    /// Be that process
    #[arg(long, value_name = "SHARE", hide = true, value_parser = share)]
    pub be_busy: Option<f64>,
    /// Each model's SLO, in milliseconds
    #[arg(long, value_name = "S", default_value_t = 100.0)]
    pub slo_ms: f64,
    /// Time that one more request adds to a batch, in milliseconds
    #[arg(long, value_name = "A", default_value_t = 1.053)]
    pub alpha_ms: f64,
    /// Time of a batch that does not depend on its size, in milliseconds
    #[arg(long, value_name = "B", default_value_t = 5.072)]
    pub beta_ms: f64,
    /// The largest batch
    #[arg(long, value_name = "B", default_value_t = limits::MAX_BATCH)]
    pub max_batch: usize,
    /// Duration of each run's measurement, after half a second of warm-up
    #[arg(long, value_name = "T", default_value_t = 2.0)]
    pub seconds: f64,
    /// Most runs at one rate until one passes: other programs on the machine can fail a run too
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub attempts: usize,
    /// Seed of the arrivals
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Keep flight recordings of all threads in this folder
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Publish no counters: the threads then run without counters and recorder
    #[arg(long, conflicts_with = "record")]
    pub unwatched: bool,
    /// Run N times with recorder and counters and N times without, alternately, and compare
    #[arg(long, value_name = "N", requires = "record")]
    pub compare: Option<usize>,
    /// Print one JSON object (with a sweep, a list of them) and nothing else
    #[arg(long)]
    pub json: bool,
    /// Search for the highest rate with each of these numbers of ModelThreads, such as 1,2,4; stops
    /// at the number of the machine's cores
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub sweep_model_threads: Vec<usize>,
    /// File for a sweep's chart
    #[arg(long, value_name = "FILE", requires = "sweep_model_threads")]
    pub svg: Option<PathBuf>,
}

impl Options {
    /// Makes the plan of a run of `model_threads` at `rate` requests per second.
    ///
    /// Errors: a sentence that names the option or limit at fault.
    pub fn plan(&self, model_threads: usize, rate: f64) -> Result<Plan, String> {
        let profile = self.profile()?;
        let slo = millis("--slo-ms", self.slo_ms)?;
        let alone = profile.latency(1);
        if alone > slo {
            let (slo, alone) = (self.slo_ms, alone.as_millis_f64());
            return Err(format!("--slo-ms {slo}: one request alone takes {alone} ms; give more than that"));
        }
        let models = self.models.unwrap_or(10 * model_threads);
        within("--model-threads", model_threads, 1, limits::MAX_MODEL_THREADS)?;
        within("--models", models, model_threads, limits::MAX_MODELS)?;
        within("--rank-threads", self.rank_threads, 1, models.min(limits::MAX_RANK_THREADS))?;
        within("--attempts", self.attempts, 1, 100)?;
        within("--searches", self.searches.unwrap_or(1), 1, 100)?;
        within("--compare", self.compare.unwrap_or(1), 1, 1_000)?;
        let lowest = MIN_RATE * model_threads as f64;
        if !(lowest..=1e9).contains(&rate) {
            return Err(format!("--rate {rate}: give {lowest} to 1e9 requests per second"));
        }
        if !(0.1..=3_600.0).contains(&self.seconds) {
            return Err(format!("--seconds {}: give 0.1 to 3600", self.seconds));
        }
        let most = limits::MAX_GPUS * self.rank_threads;
        let gpus = self.gpus.unwrap_or_else(|| enough_gpus(&profile, slo, models, rate).min(most));
        within("--gpus", gpus, self.rank_threads, most)?;
        Ok(Plan {
            model_threads,
            rank_threads: self.rank_threads,
            models,
            gpus,
            rate,
            slo,
            profile,
            duration: Nanos::from_secs_f64(self.seconds),
            seed: self.seed,
            watch: match &self.record {
                Some(folder) => Watch::Recorder(folder.clone()),
                None if self.unwatched => Watch::Nothing,
                None => Watch::Counters,
            },
        })
    }

    fn profile(&self) -> Result<Profile, String> {
        let (alpha, beta) = (millis("--alpha-ms", self.alpha_ms)?, millis("--beta-ms", self.beta_ms)?);
        within("--max-batch", self.max_batch, 1, limits::MAX_BATCH)?;
        Profile::linear(alpha, beta, self.max_batch)
            .map_err(|error| format!("--alpha-ms, --beta-ms: {error}"))
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| (0.01..=0.9).contains(share));
    share.ok_or_else(|| "give 0.01 to 0.9 of a core".to_owned())
}

fn millis(option: &str, value: f64) -> Result<Nanos, String> {
    if (0.0..=1e6).contains(&value) {
        Ok(Nanos::from_secs_f64(value / 1e3))
    } else {
        Err(format!("{option} {value}: give 0 to 1000000 ms"))
    }
}

fn within(option: &str, value: usize, least: usize, most: usize) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{option}: {value} asked for; the limits are {least} and {most}"))
    }
}

/// Returns a quarter more GPUs than the rate needs with the batches that the SLO allows, plus one
/// for each model.
fn enough_gpus(profile: &Profile, slo: Nanos, models: usize, rate: f64) -> usize {
    let gather = |size: usize| size as f64 * models as f64 / rate;
    let fits = |&size: &usize| profile.latency(size).as_secs_f64() + gather(size) <= slo.as_secs_f64();
    let size = (1..=profile.max_batch()).take_while(fits).last().unwrap_or(1);
    let needed = rate * profile.latency(size).as_secs_f64() / size as f64;
    (1.25 * needed) as usize + models
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::parse_from(line.split(' '))
    }

    #[test]
    fn gpus_are_enough_for_the_rate_unless_given() {
        let plan = options("scale --slo-ms 100").plan(2, 1e7).unwrap();
        assert_eq!(plan.models, 20);
        // 1e7 requests/s in batches of 90, 99.8 ms each, keep 11,094 GPUs busy.
        assert!((13_000..15_000).contains(&plan.gpus), "{}", plan.gpus);
        assert_eq!(options("scale --gpus 7").plan(1, 1e7).unwrap().gpus, 7);
    }

    #[test]
    fn a_wrong_option_is_named_with_its_limits() {
        let wrong = |line: &str| options(line).plan(1, 1e6).unwrap_err();
        assert_eq!(wrong("scale --models 20000"), "--models: 20000 asked for; the limits are 1 and 16384");
        assert_eq!(
            wrong("scale --slo-ms 2"),
            "--slo-ms 2: one request alone takes 6.125 ms; give more than that"
        );
        assert!(wrong("scale --gpus 70000").starts_with("--gpus: 70000 asked for"));
        assert_eq!(
            options("scale --models 300").plan(256, 1e6).unwrap_err(),
            "--model-threads: 256 asked for; the limits are 1 and 255"
        );
        let many = wrong("scale --models 300 --rank-threads 17");
        assert_eq!(many, "--rank-threads: 17 asked for; the limits are 1 and 16");
        assert!(wrong("scale --beta-ms=-1").starts_with("--beta-ms -1: give"));
        assert!(options("scale").plan(1, 5.0).unwrap_err().starts_with("--rate 5: give 100"));
    }
}
