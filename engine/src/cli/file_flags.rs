//! The flags `--size NAME=N` and `--default INPUT=VALUE` of programs that load an ONNX file.

use std::num::NonZeroU32;
use symphony_gpu::plan::PlanPrecision;

/// Reads a size of a dynamic dimension, like `sequence=128`.
///
/// # Errors
/// The sentence that says what it must be.
pub fn read_size_flag(text: &str) -> Result<(String, NonZeroU32), String> {
    let wrong = || format!("\"{text}\" is no dimension and size; give them like sequence=128");
    let (name, size) = text.rsplit_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), size.parse().map_err(|_| wrong())?))
}

/// Reads the precision of a plan: `fp32`, `fp16` or `bf16`.
///
/// # Errors
/// The sentence that says what it must be.
pub fn read_precision(name: &str) -> Result<PlanPrecision, String> {
    PlanPrecision::of_name(name).ok_or_else(|| "it must be fp32, fp16 or bf16".to_owned())
}

/// Reads the value of an input, like `rate=16000`.
///
/// # Errors
/// The sentence that says what it must be.
pub fn read_default_flag(text: &str) -> Result<(String, f64), String> {
    let wrong = || format!("\"{text}\" is no input and value; give them like rate=16000");
    let (input, value) = text.rsplit_once('=').ok_or_else(wrong)?;
    let value: f64 = value.parse().map_err(|_| wrong())?;
    if value.is_finite() { Ok((input.to_owned(), value)) } else { Err(wrong()) }
}
