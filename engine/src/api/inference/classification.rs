//! The classification extension: the largest elements of an output, as `VALUE:INDEX` strings.

use half::{bf16, f16};
use symphony_gpu::DataType;

/// Returns the `most` largest elements of one row of an output, largest first and of equal ones the
/// first, each with its index. `row` holds elements as a row has them; NaN and BYTES, which have no
/// order, come last, in their order.
pub(super) fn largest(datatype: DataType, row: &[u8], most: usize) -> Vec<String> {
    match datatype {
        DataType::Bool | DataType::Uint8 => of(row, most, u8::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Uint16 => of(row, most, u16::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Uint32 => of(row, most, u32::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Uint64 => of(row, most, u64::from_le_bytes, |v| v as f64, |v| v.to_string()),
        DataType::Int8 => of(row, most, i8::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Int16 => of(row, most, i16::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Int32 => of(row, most, i32::from_le_bytes, f64::from, |v| v.to_string()),
        DataType::Int64 => of(row, most, i64::from_le_bytes, |v| v as f64, |v| v.to_string()),
        DataType::Fp16 => of(row, most, f16::from_le_bytes, f64::from, six_places),
        DataType::Bf16 => of(row, most, bf16::from_le_bytes, f64::from, six_places),
        DataType::Fp32 => of(row, most, f32::from_le_bytes, f64::from, six_places),
        DataType::Fp64 => of(row, most, f64::from_le_bytes, |v| v, six_places),
        DataType::Bytes(_) => Vec::new(),
    }
}

/// Formats a number as Triton does.
fn six_places<T: Into<f64>>(value: T) -> String {
    format!("{:.6}", value.into())
}

fn of<T: Copy, const N: usize>(
    row: &[u8],
    most: usize,
    element: impl Fn([u8; N]) -> T,
    order: impl Fn(T) -> f64,
    text: impl Fn(T) -> String,
) -> Vec<String> {
    let mut all: Vec<(usize, T)> =
        row.as_chunks::<N>().0.iter().map(|&bytes| element(bytes)).enumerate().collect();
    let rank = |value: T| match order(value) {
        nan if nan.is_nan() => f64::NEG_INFINITY,
        value => value,
    };
    all.sort_by(|a, b| rank(b.1).total_cmp(&rank(a.1)));
    all.truncate(most);
    all.into_iter().map(|(index, value)| format!("{}:{index}", text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_with_their_indices() {
        let row: Vec<u8> =
            [0.25f32, f32::NAN, 0.5, -1.0, 0.5].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(largest(DataType::Fp32, &row, 3), ["0.500000:2", "0.500000:4", "0.250000:0"]);
        assert_eq!(largest(DataType::Fp32, &row, 99).len(), 5);
        assert_eq!(largest(DataType::Int8, &[255, 3], 1), ["3:1"]);
    }
}
