//! Batches of `symphony serve` under load: Clockwork's Figure 10. The server's flight recorder has
//! for each batch when it was to start and how long it was to take, and when it started and ended.
//!
//! ```text
//! prediction error = (finished - started) - l(b)          what the profile was off by
//! completion error = finished - (exec_at + l(b))          what the schedule was off by
//! ```
//!
//! A batch that ends earlier than expected is overpredicted, a later one underpredicted.

use super::{SortedTimes, TimePercentiles};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use symphony::recorder::{RecordedBatches, batches, recordings};
use symphony_transport::Nanos;
use symphony_transport::message::Completion;

use crate::MeasureError;
use crate::api::loadgen::{self, LoadgenRun};
use crate::api::process::{Binaries, Server};

/// The size of the recorder's files, MiB: minutes of thousands of batches a second.
const RECORDING_MIB: &str = "256";

/// The load that is asked for.
#[derive(Clone, Debug)]
pub struct ServedOptions {
    /// The server's CONFIG.
    pub config: PathBuf,
    /// The workload that `loadgen` sends.
    pub workload: PathBuf,
    /// The rate in place of the workload's, requests per second.
    pub rate: Option<f64>,
    /// The duration in place of the workload's, seconds.
    pub duration: Option<f64>,
}

/// The batches of a run.
pub struct ServedBatches {
    /// The figures of `loadgen`.
    pub load: LoadgenRun,
    /// The errors of all batches that ran.
    pub prediction: SignedErrors,
    /// The errors of their ends.
    pub completion: SignedErrors,
    /// The batches of each model.
    pub models: BTreeMap<String, usize>,
    /// The batches that were sent and did not run: cancelled, failed or cut off by the end.
    pub not_run: usize,
}

/// Errors by their signs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedErrors {
    /// What was expected to take longer, or to end later.
    pub over: SortedTimes,
    /// What took longer, or ended later, than expected.
    pub under: SortedTimes,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Served {
    /// The server's CONFIG.
    pub config: String,
    /// The workload.
    pub workload: String,
    /// The batches that ran.
    pub batches: usize,
    /// The batches that were sent and did not run.
    pub not_run: usize,
    /// The batches of each model that ran.
    pub models: BTreeMap<String, usize>,
    /// The error of the execution's duration, where it was shorter than predicted.
    pub overpredicted: TimePercentiles,
    /// The error of the execution's duration, where it was longer than predicted.
    pub underpredicted: TimePercentiles,
    /// The error of the end, where it was earlier than predicted.
    pub completed_early: TimePercentiles,
    /// The error of the end, where it was later than predicted.
    pub completed_late: TimePercentiles,
    /// The figures of `loadgen`.
    pub load: LoadgenRun,
}

/// Serves under load and reads the recording.
///
/// # Errors
/// The server or `loadgen` fails, or the recording can't be read.
pub fn measure(options: &ServedOptions) -> Result<ServedBatches, MeasureError> {
    let io = |error: std::io::Error| MeasureError::Failed(error.to_string());
    let binaries = Binaries::beside_this()?;
    let folder = tempfile::tempdir().map_err(io)?;
    let mut serve = Command::new(binaries.path("symphony"));
    serve.arg("serve").arg(&options.config).args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    serve.args(["--log-level", "warn", "--record-mib", RECORDING_MIB, "--record"]).arg(folder.path());
    let server = Server::start("symphony", serve, None)?;
    let mut load = Command::new(binaries.path("loadgen"));
    load.arg("--url").arg(format!("http://{}", server.grpc)).args(["--protocol", "grpc", "--json"]);
    load.arg("--workload").arg(&options.workload).stdin(Stdio::null());
    options.rate.iter().for_each(|rate| {
        load.args(["--rate", &rate.to_string()]);
    });
    options.duration.iter().for_each(|duration| {
        load.args(["--duration", &duration.to_string()]);
    });
    let load = loadgen::run(load)?;
    server.stop()?;
    read(folder.path(), load)
}

/// Reads the batches of a folder of recordings.
fn read(folder: &Path, load: LoadgenRun) -> Result<ServedBatches, MeasureError> {
    let failed = |error: String| MeasureError::Failed(error);
    let mut all = RecordedBatches::default();
    for file in recordings(folder).map_err(|error| failed(error.to_string()))? {
        let found = batches(&file).map_err(|error| failed(error.to_string()))?;
        all.sent.extend(found.sent);
        all.completions.extend(found.completions);
    }
    Ok(compare(all, load))
}

/// Compares what was expected of batches with what came.
fn compare(all: RecordedBatches, load: LoadgenRun) -> ServedBatches {
    let ended: HashMap<u64, Completion> = all.completions.iter().map(|of| (of.batch, *of)).collect();
    let (mut prediction, mut completion) = (Vec::new(), Vec::new());
    let (mut models, mut not_run) = (BTreeMap::new(), 0);
    for sent in all.sent {
        // One that was cancelled has started when it ended.
        let Some(of) = ended.get(&sent.batch).filter(|of| of.finished > of.started) else {
            not_run += 1;
            continue;
        };
        let signed = |at: Nanos, expected: Nanos| at.0 as i64 - expected.0 as i64;
        prediction.push(signed(of.finished - of.started, sent.duration));
        completion.push(signed(of.finished, sent.exec_at + sent.duration));
        *models.entry(sent.model).or_default() += 1;
    }
    let (prediction, completion) = (SignedErrors::new(&prediction), SignedErrors::new(&completion));
    ServedBatches { load, prediction, completion, models, not_run }
}

impl SignedErrors {
    /// Sorts errors by their signs; nanoseconds, above 0 where it took longer than expected.
    pub fn new(errors: &[i64]) -> SignedErrors {
        let of = |under: bool| {
            let side = errors.iter().filter(|&&error| (error > 0) == under);
            SortedTimes::new(side.map(|error| Nanos(error.unsigned_abs())).collect())
        };
        SignedErrors { over: of(false), under: of(true) }
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.over.as_slice().len() + self.under.as_slice().len()
    }
}

/// Summarises a run.
pub fn summary(options: &ServedOptions, run: &ServedBatches) -> Served {
    Served {
        config: options.config.display().to_string(),
        workload: options.workload.display().to_string(),
        batches: run.prediction.count(),
        not_run: run.not_run,
        models: run.models.clone(),
        overpredicted: run.prediction.over.percentiles(),
        underpredicted: run.prediction.under.percentiles(),
        completed_early: run.completion.over.percentiles(),
        completed_late: run.completion.under.percentiles(),
        load: run.load.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::loadgen::{LatencyMs, LatenessMs};
    use symphony::recorder::DispatchedBatch;
    use symphony_transport::message::{GpuId, ModelId};

    #[test]
    fn errors_are_of_the_duration_and_of_the_end() {
        let ms = Nanos::from_millis;
        let sent = |batch, exec_at| DispatchedBatch {
            batch,
            model: "model".to_owned(),
            size: 1,
            exec_at: ms(exec_at),
            duration: ms(10),
        };
        let end = |batch, started, finished| Completion {
            batch,
            started: ms(started),
            finished: ms(finished),
            model: ModelId(0),
            gpu: GpuId(0),
        };
        // One takes 2 ms less; one starts 3 ms late and takes 1 ms more; one is cancelled; one is
        // still running.
        let all = RecordedBatches {
            sent: vec![sent(1, 100), sent(2, 200), sent(3, 300), sent(4, 400)],
            completions: vec![end(1, 100, 108), end(2, 203, 214), end(3, 305, 305)],
        };
        let load = LoadgenRun {
            good: 2,
            bad: 2,
            good_rps: 1.0,
            bad_rate: 0.5,
            latency_ms: LatencyMs { p50: 1.0, p99: 1.0, max: 1.0 },
            mean_batch: 1.0,
            lateness_ms: LatenessMs { p99: 0.0, max: 0.0 },
        };
        let run = compare(all, load);
        assert_eq!(run.prediction, SignedErrors::new(&[-2_000_000, 1_000_000]));
        assert_eq!(run.completion, SignedErrors::new(&[-2_000_000, 4_000_000]));
        assert_eq!((run.models["model"], run.not_run), (2, 2));
    }
}
