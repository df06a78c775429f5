//! The types of elements: how the protocol calls them, and their values as bytes, as JSON text and
//! at random.

use bytes::BytesMut;
use half::{bf16, f16};
use rand::{Rng, RngExt};
use serde_json::Value;
use std::fmt::Write;
use symphony_gpu::DataType;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// One of the types of fixed size.
    Fixed(DataType),
    /// BYTES: four bytes of length, little endian, and that many bytes.
    Bytes,
}

impl Element {
    /// The type that the protocol calls so.
    pub fn parse(name: &str) -> Option<Element> {
        if name == "BYTES" { Some(Element::Bytes) } else { DataType::parse(name).map(Element::Fixed) }
    }

    /// The protocol's name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Element::Fixed(datatype) => datatype.name(),
            Element::Bytes => "BYTES",
        }
    }

    /// The size of one, where all have the same.
    pub fn size_bytes(self) -> Option<usize> {
        match self {
            Element::Fixed(datatype) => Some(datatype.size_bytes()),
            Element::Bytes => None,
        }
    }

    /// Appends a random value that every model can take: fractions of 1 (few digits, so that JSON
    /// stays short), whole bytes, short words, and else 0 or 1, which are valid indices.
    pub(super) fn push_random(self, out: &mut BytesMut, rng: &mut impl Rng) {
        let Element::Fixed(datatype) = self else {
            return push_bytes(out, format!("word{}", rng.random_range(0..1_000)).as_bytes());
        };
        match datatype {
            DataType::Uint8 | DataType::Int8 => out.extend_from_slice(&[rng.random()]),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
                let fraction = f64::from(rng.random_range(0..10_000)) / 10_000.0;
                // A fraction fits every one of these types.
                let _ = self.push_json(out, &Value::from(fraction));
            }
            _ => push_integer(out, i128::from(rng.random_range(0..2)), datatype.size_bytes()),
        }
    }

    /// Appends the value that JSON has.
    ///
    /// Errors: what it must be.
    pub(super) fn push_json(self, out: &mut BytesMut, value: &Value) -> Result<(), String> {
        let wrong = |right: &str| Err(format!("`{value}` must be {right}"));
        let Element::Fixed(datatype) = self else {
            return match value.as_str() {
                Some(text) => {
                    push_bytes(out, text.as_bytes());
                    Ok(())
                }
                None => wrong("a string"),
            };
        };
        match (datatype, value) {
            (DataType::Bool, Value::Bool(truth)) => out.extend_from_slice(&[u8::from(*truth)]),
            (DataType::Bool, _) => return wrong("true or false"),
            (DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64, _) => match value.as_f64() {
                Some(number) => push_float(out, number, datatype),
                None => return wrong("a number"),
            },
            _ => match integer(value).filter(|number| integer_range(datatype).contains(number)) {
                Some(number) => push_integer(out, number, datatype.size_bytes()),
                None => return wrong(&format!("a whole number in the range of {datatype}")),
            },
        }
        Ok(())
    }

    /// Writes the elements that `data` holds as the items of a JSON array.
    ///
    /// Errors: bytes that JSON can't express, such as a NaN.
    pub fn write_json(self, data: &[u8], out: &mut String) -> Result<(), String> {
        let Element::Fixed(datatype) = self else { return write_strings(data, out) };
        for (at, element) in data.chunks_exact(datatype.size_bytes()).enumerate() {
            if at > 0 {
                out.push(',');
            }
            let _ = match datatype {
                DataType::Bool => write!(out, "{}", element[0] != 0),
                DataType::Fp16 => write_float(out, f16::from_le_bytes(fixed(element)).to_f32())?,
                DataType::Bf16 => write_float(out, bf16::from_le_bytes(fixed(element)).to_f32())?,
                DataType::Fp32 => write_float(out, f32::from_le_bytes(fixed(element)))?,
                DataType::Fp64 => match f64::from_le_bytes(fixed(element)) {
                    number if number.is_finite() => write!(out, "{number:?}"),
                    number => return Err(unsayable(number)),
                },
                DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
                    write!(out, "{}", signed(element))
                }
                _ => write!(out, "{}", unsigned(element)),
            };
        }
        Ok(())
    }
}

fn fixed<const N: usize>(element: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(element);
    bytes
}

fn unsigned(element: &[u8]) -> u64 {
    element.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn signed(element: &[u8]) -> i64 {
    let unused = 64 - 8 * element.len() as u32;
    ((unsigned(element) << unused) as i64) >> unused
}

fn write_float(out: &mut String, number: f32) -> Result<std::fmt::Result, String> {
    if number.is_finite() { Ok(write!(out, "{number:?}")) } else { Err(unsayable(number.into())) }
}

fn unsayable(number: f64) -> String {
    format!("it holds {number}, which JSON can't express: send it with --tensors binary")
}

fn write_strings(mut data: &[u8], out: &mut String) -> Result<(), String> {
    let mut first = true;
    while let Some((length, rest)) = data.split_first_chunk::<4>() {
        let length = (u32::from_le_bytes(*length) as usize).min(rest.len());
        let (text, rest) = rest.split_at(length);
        let text = std::str::from_utf8(text)
            .map_err(|_| "it holds bytes that are not UTF-8: send it with --tensors binary")?;
        let _ = write!(out, "{}{}", if first { "" } else { "," }, Value::from(text));
        (data, first) = (rest, false);
    }
    Ok(())
}

fn push_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn push_integer(out: &mut BytesMut, number: i128, size: usize) {
    out.extend_from_slice(&number.to_le_bytes()[..size]);
}

fn push_float(out: &mut BytesMut, number: f64, datatype: DataType) {
    match datatype {
        DataType::Fp16 => out.extend_from_slice(&f16::from_f64(number).to_le_bytes()),
        DataType::Bf16 => out.extend_from_slice(&bf16::from_f64(number).to_le_bytes()),
        DataType::Fp64 => out.extend_from_slice(&number.to_le_bytes()),
        _ => out.extend_from_slice(&(number as f32).to_le_bytes()),
    }
}

fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
}

fn integer_range(datatype: DataType) -> std::ops::RangeInclusive<i128> {
    let bits = 8 * datatype.size_bytes() as u32;
    match datatype {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            -(1 << (bits - 1))..=(1 << (bits - 1)) - 1
        }
        _ => 0..=(1 << bits) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;
    use serde_json::json;

    fn all() -> impl Iterator<Item = Element> {
        DataType::ALL.into_iter().filter(|d| d.name() != "BYTES").map(Element::Fixed).chain([Element::Bytes])
    }

    #[test]
    fn every_random_value_survives_the_way_to_json_and_back() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for element in all() {
            assert_eq!(Element::parse(element.name()), Some(element));
            let mut data = BytesMut::new();
            (0..20).for_each(|_| element.push_random(&mut data, &mut rng));
            let mut text = String::from("[");
            element.write_json(&data, &mut text).unwrap();
            let values: Vec<Value> = serde_json::from_str(&(text + "]")).unwrap();
            assert_eq!(values.len(), 20, "{element:?}");
            let mut again = BytesMut::new();
            values.iter().for_each(|value| element.push_json(&mut again, value).unwrap());
            assert_eq!(again, data, "{element:?}");
        }
    }

    #[test]
    fn negative_and_large_numbers_keep_their_value() {
        for (datatype, value) in [
            (DataType::Int8, json!(-128)),
            (DataType::Int16, json!(-2)),
            (DataType::Int64, json!(i64::MIN)),
            (DataType::Uint64, json!(u64::MAX)),
            (DataType::Fp32, json!(-1.5)),
        ] {
            let (mut data, mut text) = (BytesMut::new(), String::new());
            Element::Fixed(datatype).push_json(&mut data, &value).unwrap();
            Element::Fixed(datatype).write_json(&data, &mut text).unwrap();
            assert_eq!(text, value.to_string(), "{datatype}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_refused_in_words() {
        let refused = |element: Element, value| element.push_json(&mut BytesMut::new(), &value).unwrap_err();
        let fixed = Element::Fixed;
        assert_eq!(refused(fixed(DataType::Bool), json!(1)), "`1` must be true or false");
        assert_eq!(
            refused(fixed(DataType::Uint8), json!(256)),
            "`256` must be a whole number in the range of UINT8"
        );
        assert_eq!(
            refused(fixed(DataType::Int8), json!(1.5)),
            "`1.5` must be a whole number in the range of INT8"
        );
        assert_eq!(refused(fixed(DataType::Fp32), json!("x")), "`\"x\"` must be a number");
        assert_eq!(refused(Element::Bytes, json!(1)), "`1` must be a string");
        let nan = fixed(DataType::Fp32).write_json(&f32::NAN.to_le_bytes(), &mut String::new()).unwrap_err();
        assert!(nan.starts_with("it holds NaN, which JSON can't express"), "{nan}");
    }
}
