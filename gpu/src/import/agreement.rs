//! The proof by example that a rewritten model computes what the file does: random rows in one
//! batch, against each of them alone in the model as the file has it. A batch that a file declares
//! is looked at in the same way, for what its author may not have seen.

use super::defaults::trial_row;
use super::sizes::SizedFile;
use crate::host::HostModel;
use crate::signature::{DataType, LENGTH_BYTES, Signature, TensorSpec};
use half::{bf16, f16};

/// The seed of the rows: a model that differs on them does so at each load.
const SEED: u64 = 1;

/// The rows of a batch that is compared.
pub(crate) const ROWS: usize = 3;

/// How much floats may differ, as a part of the row's largest element.
#[derive(Clone, Copy)]
struct Tolerance {
    /// The part for FP64 and FP32.
    full: f64,
    /// The part for FP16 and BF16.
    half: f64,
}

/// A batch that is added up in another order differs less.
const PROOF: Tolerance = Tolerance { full: 1e-4, half: 1e-2 };

/// What differs more is not rounding, whatever the operators are.
const NOTICE: Tolerance = Tolerance { full: 1e-3, half: 3e-2 };

/// Compares a model on batches with the same model on one row at a time.
///
/// Errors: how their outputs differ, or how one fails.
pub(super) fn compare(
    file: &SizedFile<'_>,
    batched: &mut dyn HostModel,
    alone: &mut dyn HostModel,
) -> Result<(), String> {
    if batched.signature() != alone.signature() {
        return Err("its rows have other shapes in a batch".to_owned());
    }
    let rows = rows_alone(file, alone, batched.max_batch())?;
    run_together(batched, &rows)?;
    difference(batched, &rows, PROOF).map_or(Ok(()), Err)
}

/// Returns how the rows of a batch differ from each alone, in a model whose file declares a batch;
/// `None` if they do not, or if it fails on random rows.
pub(super) fn notice(file: &SizedFile<'_>, model: &mut dyn HostModel) -> Option<String> {
    let max_batch = model.max_batch();
    let rows = rows_alone(file, model, max_batch).ok().filter(|rows| rows.len() > 1)?;
    run_together(model, &rows).ok()?;
    difference(model, &rows, NOTICE)
}

/// Compares the rows of models that are run as one, of these signatures and all in the same
/// batches, with what each model gave alone.
///
/// Errors: the index of a model of which a row differs, and how; or how a batch fails.
pub(crate) fn compare_mixed(
    group: &mut dyn HostModel,
    variants: &[Signature],
    alone: &[Vec<RowAlone>],
) -> Result<(), (usize, String)> {
    let rows_each = alone.iter().map(Vec::len).max().unwrap_or_default();
    let mixed: Vec<(usize, &RowAlone)> = (0..rows_each)
        .flat_map(|row| alone.iter().enumerate().filter_map(move |(of, rows)| Some((of, rows.get(row)?))))
        .collect();
    for batch in mixed.chunks(group.max_batch()) {
        let numbers: Vec<u32> = batch.iter().map(|(variant, _)| *variant as u32).collect();
        group.arrange(&numbers);
        for (at, (variant, row)) in batch.iter().enumerate() {
            let mut input = row.input.clone();
            input.resize(variants[*variant].input_bytes(), 0);
            variants[*variant].set_variant(&mut input, *variant as u32);
            group.stage(at, &input);
        }
        group.run(batch.len()).map_err(|error| (batch[0].0, error.to_string()))?;
        for (at, (variant, row)) in batch.iter().enumerate() {
            if let Some(how) = row_difference(group, &variants[*variant], (at, row), PROOF) {
                return Err((*variant, how));
            }
        }
    }
    Ok(())
}

/// A row, and the outputs that it has alone.
pub(crate) struct RowAlone {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Runs random rows, [`ROWS`] at most, each alone.
pub(crate) fn rows_alone(
    file: &SizedFile<'_>,
    model: &mut dyn HostModel,
    max_batch: usize,
) -> Result<Vec<RowAlone>, String> {
    let signature = model.signature().clone();
    let mut random = fastrand::Rng::with_seed(SEED);
    let rows = ROWS.min(max_batch);
    let run = |row: usize| {
        let mut input = trial_row(file.defaults, &signature, file.path).map_err(|error| error.to_string())?;
        let given = signature.inputs.iter().enumerate();
        for (at, spec) in given.filter(|(_, spec)| !file.defaults.contains_key(&spec.name)) {
            // Rows of noise of the same size may look the same to a model.
            let most = 1.0 - row as f32 / rows as f32;
            randomise(spec, &mut input[signature.input_range(at)], most, &mut random);
        }
        model.stage(0, &input);
        model.run(1).map_err(|error| error.to_string())?;
        let mut output = vec![0; signature.output_bytes()];
        model.unstage(0, &mut output);
        Ok(RowAlone { input, output })
    };
    (0..rows).map(run).collect()
}

fn run_together(model: &mut dyn HostModel, rows: &[RowAlone]) -> Result<(), String> {
    rows.iter().enumerate().for_each(|(at, row)| model.stage(at, &row.input));
    model.run(rows.len()).map_err(|error| error.to_string())
}

/// Returns how the outputs of the last run differ from those of each row alone.
fn difference(model: &dyn HostModel, rows: &[RowAlone], tolerance: Tolerance) -> Option<String> {
    rows.iter().enumerate().find_map(|row| row_difference(model, model.signature(), row, tolerance))
}

/// Returns how the outputs of a row of the last run, of this signature, differ from those that it
/// has alone.
fn row_difference(
    model: &dyn HostModel,
    signature: &Signature,
    (row, RowAlone { output, .. }): (usize, &RowAlone),
    tolerance: Tolerance,
) -> Option<String> {
    let mut found = vec![0; signature.output_bytes()];
    model.unstage(row, &mut found);
    signature.outputs.iter().enumerate().find_map(|(at, spec)| {
        let range = signature.output_range(at);
        let differs = agree(spec, &output[range.clone()], &found[range], tolerance).err()?;
        Some(format!("row {row} of output `{}` differs in a batch: {differs}", spec.name))
    })
}

/// Compares two rows of an output. A batch may be added up in another order, so floats may differ
/// by a part of the largest of the row.
fn agree(spec: &TensorSpec, expected: &[u8], found: &[u8], tolerance: Tolerance) -> Result<(), String> {
    let tolerance = match spec.datatype {
        DataType::Fp64 | DataType::Fp32 => tolerance.full,
        DataType::Fp16 | DataType::Bf16 => tolerance.half,
        _ if expected == found => return Ok(()),
        _ => return Err("whole numbers".to_owned()),
    };
    let (expected, found) = (floats(spec.datatype, expected), floats(spec.datatype, found));
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0f64, |most, x| most.max(x.abs()));
    // Some kernels compute a sigmoid near 0 to no more than this.
    let most = (tolerance * largest).max(1e-6);
    let agrees = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= most;
    match expected.iter().zip(&found).find(|(alone, batched)| !agrees(**alone, **batched)) {
        None => Ok(()),
        Some((alone, batched)) => Err(format!("{batched} where it is {alone} alone")),
    }
}

fn floats(datatype: DataType, bytes: &[u8]) -> Vec<f64> {
    match datatype {
        DataType::Fp64 => bytes.as_chunks().0.iter().map(|&x| f64::from_le_bytes(x)).collect(),
        DataType::Fp32 => bytes.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect(),
        DataType::Fp16 => bytes.as_chunks().0.iter().map(|&x| f16::from_le_bytes(x).to_f64()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&x| bf16::from_le_bytes(x).to_f64()).collect(),
    }
}

/// Writes random elements: floats from 0 to `most`, and the whole numbers 0 and 1, which are
/// indices that models take.
fn randomise(spec: &TensorSpec, bytes: &mut [u8], most: f32, random: &mut fastrand::Rng) {
    for element in bytes.chunks_exact_mut(spec.datatype.size_bytes()) {
        let (fraction, whole) = (most * random.f32(), u8::from(random.bool()));
        match spec.datatype {
            DataType::Fp64 => element.copy_from_slice(&f64::from(fraction).to_le_bytes()),
            DataType::Fp32 => element.copy_from_slice(&fraction.to_le_bytes()),
            DataType::Fp16 => element.copy_from_slice(&f16::from_f32(fraction).to_le_bytes()),
            DataType::Bf16 => element.copy_from_slice(&bf16::from_f32(fraction).to_le_bytes()),
            DataType::Bytes(_) => {
                element[0] = 1;
                element[LENGTH_BYTES] = b'a' + whole % 26;
            }
            _ => element[0] = whole,
        }
    }
}
