//! Measures a model's execution time by batch size on the calling thread: the executor's at load,
//! or that of the command `profile`. It is not called while requests are served.

use crate::host::{HostModel, RunError};
use crate::import::put_defaults;
use crate::signature::{DataType, LENGTH_BYTES};
use crate::table::{ProfileRow, ProfileTable};
use fastrand::Rng;
use half::f16;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};
use symphony_transport::Nanos;

/// Up to this size every batch size is measured; above it, eight sizes for each doubling.
const EVERY_SIZE_UP_TO: usize = 16;

/// Options of [`measure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasureOptions {
    /// The time for all batch sizes together, without the warm-up. A slow model takes longer: as
    /// long as `least_runs` of every size.
    pub budget: Duration,
    /// The minimum number of runs of each batch size.
    pub least_runs: usize,
    /// The maximum number of runs of each batch size.
    pub most_runs: usize,
    /// The seed of the random inputs.
    pub seed: u64,
    /// The clock that times a run.
    pub by: MeasuredBy,
}

/// A clock to time runs by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeasuredBy {
    /// The wall clock, for a thread with a core of its own.
    WallTime,
    /// The CPU time of the calling thread, on which the model must compute, for a thread that
    /// shares its core.
    CpuTime,
}

impl MeasuredBy {
    fn now(self) -> Nanos {
        let clock = match self {
            MeasuredBy::WallTime => ClockId::Monotonic,
            MeasuredBy::CpuTime => ClockId::ThreadCPUTime,
        };
        let now = clock_gettime(clock);
        Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }
}

impl Default for MeasureOptions {
    fn default() -> MeasureOptions {
        MeasureOptions {
            budget: Duration::from_secs(2),
            least_runs: 5,
            most_runs: 1000,
            seed: 1,
            by: MeasuredBy::WallTime,
        }
    }
}

/// Measures `model` at every batch size up to 16 and at eight sizes for each doubling above, its
/// largest included; [`ProfileTable::latency`] interpolates between them.
///
/// A run is what an executor does with a batch: staging, running and taking the outputs. Each size
/// is run once, or more often for as long as a tenth of the budget allows, as a warm-up; then all
/// sizes are run round by round, so that a disturbance of the machine is spread over many sizes.
/// With fewer than 100 runs of a size, the p99 is the slowest of them. Inputs are random: some
/// kernels are faster on zeros. Floats are in -1 to 1; INT32 and INT64 are 0 or 1, as they are
/// often indices into something of unknown size; 8-bit integers take all values. Inputs that have a
/// default have that.
///
/// `progress` is called with the number of runs that are done and their total, which may shrink.
///
/// # Errors
/// If the model fails on such inputs.
pub fn measure(
    model: &mut dyn HostModel,
    options: &MeasureOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ProfileTable, RunError> {
    let mut timed = TimedModel::new(model, options);
    let sizes = batch_sizes(timed.model.max_batch());
    let round = timed.warm_up(&sizes, options.budget / 10)?;
    let rounds = rounds(round, options);
    let mut samples = vec![Vec::with_capacity(rounds); sizes.len()];
    let start = Instant::now();
    for done in 0..rounds {
        if done >= options.least_runs && start.elapsed() >= options.budget {
            break;
        }
        for (index, (&size, samples)) in sizes.iter().zip(&mut samples).enumerate() {
            samples.push(timed.time(size)?);
            progress(done * sizes.len() + index + 1, rounds * sizes.len());
        }
    }
    let done: usize = samples.iter().map(Vec::len).sum();
    progress(done, done);
    let rows = sizes.iter().zip(samples).map(|(&batch, samples)| summarise(batch, samples)).collect();
    Ok(ProfileTable::from_rows(rows).expect("sizes rise, and a p99 is not below its p50"))
}

/// Returns the sizes that [`measure`] measures for a largest batch of `max_batch`, rising.
pub fn batch_sizes(max_batch: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=max_batch.min(EVERY_SIZE_UP_TO)).collect();
    let mut size = EVERY_SIZE_UP_TO;
    while size < max_batch {
        let step = (1 << size.ilog2()) / 8;
        size = (size + step).min(max_batch);
        sizes.push(size);
    }
    sizes
}

/// Random inputs for the rows of a batch.
pub struct RandomRows(Vec<Vec<u8>>);

impl RandomRows {
    /// Makes rows for a model, by a seed.
    pub fn new(model: &dyn HostModel, seed: u64) -> RandomRows {
        let (rows, mut rng) = (model.max_batch().min(DISTINCT_ROWS), Rng::with_seed(seed));
        RandomRows((0..rows).map(|_| random_row(model, &mut rng)).collect())
    }

    /// Returns the inputs of a row.
    pub fn row(&self, at: usize) -> &[u8] {
        &self.0[at % self.0.len()]
    }

    fn row_mut(&mut self, at: usize) -> &mut [u8] {
        let rows = self.0.len();
        &mut self.0[at % rows]
    }
}

/// A model whose runs are timed, with random inputs for its rows.
struct TimedModel<'a> {
    model: &'a mut dyn HostModel,
    inputs: RandomRows,
    output: Vec<u8>,
    by: MeasuredBy,
}

impl TimedModel<'_> {
    fn new<'a>(model: &'a mut dyn HostModel, options: &MeasureOptions) -> TimedModel<'a> {
        let inputs = RandomRows::new(model, options.seed);
        let output = vec![0; model.signature().output_bytes()];
        TimedModel { model, inputs, output, by: options.by }
    }

    /// Runs all sizes at least once, and again until `budget` is over; returns the duration of the
    /// last round.
    fn warm_up(&mut self, sizes: &[usize], budget: Duration) -> Result<Duration, RunError> {
        let start = Instant::now();
        loop {
            let round_start = Instant::now();
            for &size in sizes {
                self.time(size)?;
            }
            if start.elapsed() >= budget {
                return Ok(round_start.elapsed());
            }
        }
    }

    fn time(&mut self, size: usize) -> Result<Nanos, RunError> {
        let signature = self.model.signature().clone();
        let variants: Vec<u32> = (0..size).map(|row| self.model.slowest_variant(row)).collect();
        let start = self.by.now();
        if signature.has_variant {
            self.model.arrange(&variants);
        }
        for (row, &variant) in variants.iter().enumerate() {
            let input = self.inputs.row_mut(row);
            signature.set_variant(input, variant);
            self.model.stage(row, input);
        }
        self.model.run(size)?;
        for row in 0..size {
            self.model.unstage(row, &mut self.output);
        }
        // A clock too coarse to see the run must not make it free.
        Ok((self.by.now() - start).max(Nanos(1)))
    }
}

/// The number of random rows that are used cyclically: enough to differ, few enough to make
/// quickly.
const DISTINCT_ROWS: usize = 16;

fn rounds(round: Duration, options: &MeasureOptions) -> usize {
    let fitting = options.budget.as_secs_f64() / round.as_secs_f64().max(1e-9);
    let least = options.least_runs.max(1);
    (fitting as usize).clamp(least, options.most_runs.max(least))
}

fn summarise(batch: usize, mut samples: Vec<Nanos>) -> ProfileRow {
    let Percentiles { p50, p99 } = percentiles(&mut samples);
    ProfileRow { batch, p50, p99 }
}

/// A median and a 99th percentile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Percentiles {
    /// The median.
    pub p50: Nanos,
    /// The 99th percentile.
    pub p99: Nanos,
}

/// Sorts samples, at least one, and returns the median and the 99th percentile, which are samples.
pub(crate) fn percentiles(samples: &mut [Nanos]) -> Percentiles {
    samples.sort_unstable();
    let at = |share: f64| samples[((samples.len() as f64 * share).ceil() as usize).max(1) - 1];
    Percentiles { p50: at(0.5), p99: at(0.99) }
}

fn random_row(model: &dyn HostModel, rng: &mut Rng) -> Vec<u8> {
    let signature = model.signature();
    let mut row = vec![0; signature.input_bytes()];
    for (index, spec) in signature.inputs.iter().enumerate() {
        let bytes = &mut row[signature.input_range(index)];
        for element in bytes.chunks_exact_mut(spec.datatype.size_bytes()) {
            fill_element(element, spec.datatype, rng);
        }
    }
    put_defaults(model.defaults(), signature, &mut row);
    row
}

/// The letters of a text.
const TEXT_LETTERS: u32 = 8;

fn fill_element(element: &mut [u8], datatype: DataType, rng: &mut Rng) {
    let float = rng.f32() * 2.0 - 1.0;
    match datatype {
        DataType::Fp32 => element.copy_from_slice(&float.to_le_bytes()),
        DataType::Fp64 => element.copy_from_slice(&f64::from(float).to_le_bytes()),
        DataType::Fp16 => element.copy_from_slice(&f16::from_f32(float).to_le_bytes()),
        DataType::Bf16 => element.copy_from_slice(&half::bf16::from_f32(float).to_le_bytes()),
        DataType::Int8 | DataType::Uint8 => element[0] = rng.u8(..),
        DataType::Bytes(most) => {
            let (length, text) = element.split_at_mut(LENGTH_BYTES);
            let letters = most.min(TEXT_LETTERS);
            length.copy_from_slice(&letters.to_le_bytes());
            text[..letters as usize].fill_with(|| rng.u8(b'a'..=b'z'));
        }
        // Little endian: 0 or 1 is in the first byte, the others stay 0.
        _ => element[0] = rng.u8(0..2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_to_sixteen_and_eight_for_each_doubling_are_measured() {
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(16), (1..=16).collect::<Vec<_>>());
        assert_eq!(batch_sizes(19), (1..=16).chain([18, 19]).collect::<Vec<_>>());
        let sizes = batch_sizes(100);
        assert_eq!(
            sizes[16..],
            [18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 100]
        );
        assert_eq!(batch_sizes(65_536).len(), 16 + 12 * 8);
    }

    #[test]
    fn percentiles_are_samples_and_few_samples_give_the_slowest() {
        let row = summarise(3, [5, 1, 4, 2, 3].map(Nanos).to_vec());
        assert_eq!(row, ProfileRow { batch: 3, p50: Nanos(3), p99: Nanos(5) });
        let row = summarise(3, (1..=200).map(Nanos).collect());
        assert_eq!(row, ProfileRow { batch: 3, p50: Nanos(100), p99: Nanos(198) });
    }

    #[test]
    fn the_number_of_rounds_keeps_to_the_budget_and_to_its_bounds() {
        let options = MeasureOptions::default();
        assert_eq!(rounds(Duration::from_millis(20), &options), 100);
        assert_eq!(rounds(Duration::from_secs(9), &options), options.least_runs);
        assert_eq!(rounds(Duration::ZERO, &options), options.most_runs);
    }
}
