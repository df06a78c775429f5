//! Random inputs of the right shape and type: JSON bodies for a server, rows for an engine in this process.
//! A few are made for each model before a run, from the run's seed, and sent in turn.

use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::fmt::Write;
use symphony::clock::Nanos;
use symphony::sim::arrivals::stream_seed;
use symphony_gpu::{DataType, Signature, TensorSpec};

/// Different inputs per model.
pub const VARIANTS: u64 = 4;

/// Elements of one input that are still prepared; a larger one would not fit a request anyway.
pub const MAX_ELEMENTS: usize = 16 << 20;

fn rng(seed: u64, model: u64, variant: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(stream_seed(stream_seed(seed, model), variant))
}

/// The body of an infer request in the KServe v2 protocol with random inputs, and the SLO as its time-out.
pub fn json_body(inputs: &[TensorSpec], slo: Option<Nanos>, seed: u64, model: u64, variant: u64) -> String {
    let rng = &mut rng(seed, model, variant);
    let mut body = String::from("{");
    if let Some(slo) = slo {
        // At least one microsecond: zero would mean no limit to some servers.
        let _ = write!(body, "\"parameters\":{{\"timeout\":{}}},", slo.0.div_ceil(1_000));
    }
    body.push_str("\"inputs\":[");
    for (at, input) in inputs.iter().enumerate() {
        let shape: Vec<String> =
            std::iter::once(1).chain(input.shape.iter().copied()).map(|d| d.to_string()).collect();
        let name = serde_json::Value::from(input.name.as_str());
        let (comma, shape) = (if at > 0 { "," } else { "" }, shape.join(","));
        let _ = write!(
            body,
            "{comma}{{\"name\":{name},\"datatype\":\"{}\",\"shape\":[{shape}],\"data\":[",
            input.datatype
        );
        for element in 0..input.elements() {
            if element > 0 {
                body.push(',');
            }
            push_value(&mut body, input.datatype, rng);
        }
        body.push_str("]}");
    }
    body.push_str("]}");
    body
}

/// A value that every model can take: fractions of 1, whole bytes, and else 0 or 1, which are valid indices.
fn push_value(body: &mut String, datatype: DataType, rng: &mut impl Rng) {
    let _ = match datatype {
        DataType::Bool => write!(body, "{}", rng.random::<bool>()),
        DataType::Uint8 => write!(body, "{}", rng.random::<u8>()),
        DataType::Int8 => write!(body, "{}", rng.random::<i8>()),
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => {
            write!(body, "{:.4}", rng.random::<f64>())
        }
        _ => write!(body, "{}", rng.random_range(0..2)),
    };
}

/// An input row in the layout of `signature`, with random values.
pub fn row(signature: &Signature, seed: u64, model: u64, variant: u64) -> Vec<u8> {
    let rng = &mut rng(seed, model, variant);
    let mut row = vec![0; signature.input_bytes()];
    for (at, input) in signature.inputs.iter().enumerate() {
        let size = input.datatype.size_bytes();
        for element in row[signature.input_range(at)].chunks_exact_mut(size) {
            fill_value(element, input.datatype, rng);
        }
    }
    row
}

fn fill_value(element: &mut [u8], datatype: DataType, rng: &mut impl Rng) {
    match datatype {
        DataType::Fp32 => element.copy_from_slice(&rng.random::<f32>().to_le_bytes()),
        DataType::Fp64 => element.copy_from_slice(&rng.random::<f64>().to_le_bytes()),
        // The upper half of an FP32, and about the same number as a half: 0x3800 is 0.5, 0x3bff just under 1.
        DataType::Bf16 => element.copy_from_slice(&rng.random::<f32>().to_le_bytes()[2..]),
        DataType::Fp16 => element.copy_from_slice(&rng.random_range(0x3800_u16..0x3c00).to_le_bytes()),
        DataType::Uint8 | DataType::Int8 => element[0] = rng.random(),
        // 0 or 1, little endian, of any size.
        _ => element[0] = rng.random_range(0..2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, datatype: DataType, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
    }

    #[test]
    fn a_body_is_an_infer_request_of_one_row_with_its_time_out_in_microseconds() {
        let inputs = [tensor("a \"b\"", DataType::Fp32, &[2, 3]), tensor("n", DataType::Int64, &[])];
        let body = json_body(&inputs, Some(Nanos::from_micros(25_000)), 1, 0, 0);
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["parameters"]["timeout"], 25_000);
        assert_eq!(body["inputs"][0]["name"], "a \"b\"");
        assert_eq!(body["inputs"][0]["shape"], serde_json::json!([1, 2, 3]));
        assert_eq!(body["inputs"][0]["data"].as_array().unwrap().len(), 6);
        assert_eq!(body["inputs"][1]["shape"], serde_json::json!([1]));
        assert!(matches!(body["inputs"][1]["data"][0].as_i64(), Some(0 | 1)));
    }

    #[test]
    fn every_type_has_values_that_json_can_say() {
        for datatype in DataType::ALL {
            let body = json_body(&[tensor("x", datatype, &[8])], None, 3, 1, 2);
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["inputs"][0]["datatype"], datatype.name());
            assert!(body.get("parameters").is_none());
            let signature = Signature { inputs: vec![tensor("x", datatype, &[8])], outputs: vec![] };
            assert_eq!(row(&signature, 3, 1, 2).len(), signature.input_bytes());
        }
    }

    #[test]
    fn inputs_follow_from_the_seed() {
        let inputs = [tensor("x", DataType::Fp32, &[16])];
        let body = |seed, model, variant| json_body(&inputs, None, seed, model, variant);
        assert_eq!(body(1, 0, 0), body(1, 0, 0));
        for other in [body(2, 0, 0), body(1, 1, 0), body(1, 0, 1)] {
            assert_ne!(other, body(1, 0, 0));
        }
    }
}
