//! Random rows. They follow from the run's seed, the model's place in the run and the row's number.

use super::{InputSpec, Row};
use bytes::BytesMut;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use symphony_scheduler::sim::arrivals::stream_seed;

/// Different requests per model.
const VARIANTS: usize = 4;

/// Rows for requests of `per_request` rows each.
pub(super) fn rows(specs: &[InputSpec], seed: u64, model: u64, per_request: usize) -> Vec<Row> {
    let row = |variant: usize| {
        let rng = &mut Pcg64Mcg::seed_from_u64(stream_seed(stream_seed(seed, model), variant as u64));
        let input = |spec: &InputSpec| {
            let mut data = BytesMut::new();
            (0..spec.elements()).for_each(|_| spec.element.push_random(&mut data, rng));
            data.freeze()
        };
        specs.iter().map(input).collect()
    };
    (0..VARIANTS * per_request).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Element;
    use super::*;
    use symphony_gpu::DataType;

    #[test]
    fn rows_follow_from_the_seed() {
        let spec = InputSpec { name: "x".into(), element: Element::Fixed(DataType::Fp32), shape: vec![16] };
        let of = |seed, model| rows(std::slice::from_ref(&spec), seed, model, 1);
        assert_eq!(of(1, 0), of(1, 0));
        assert_eq!((of(1, 0).len(), of(1, 0)[0][0].len()), (VARIANTS, 64));
        for other in [&of(2, 0)[0], &of(1, 1)[0], &of(1, 0)[1]] {
            assert_ne!(*other, of(1, 0)[0]);
        }
    }
}
