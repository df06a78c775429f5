//! The contents of requests: rows of tensors, random or from files, made before a run and sent in
//! turn. Targets turn them into bodies; [`Inputs`] has their sources.

mod element;
mod files;
mod random;
mod tensor;

pub use element::Element;
pub use tensor::{InputSpec, Row, Tensor};

use bytes::{Bytes, BytesMut};
use std::path::PathBuf;

/// Elements of one input that are still prepared; a larger one would not fit a request anyway.
pub const MAX_ELEMENTS: usize = 16 << 20;

/// Bytes of all requests prepared for one model.
const MAX_PREPARED_BYTES: usize = 1 << 30;

/// The sources of requests' rows.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Files or folders of all models that are not named below.
    pub all: Option<PathBuf>,
    /// Files or folders by model.
    pub by_model: Vec<(String, PathBuf)>,
    /// Rows in each request.
    pub rows: usize,
    /// Seed of random inputs.
    pub seed: u64,
}

impl Inputs {
    /// Returns the rows to send to a model, the `index`-th of the run, in turn.
    ///
    /// Errors: a file that can't be read, or that does not fit the model.
    pub fn rows_for(&self, model: &str, index: u64, specs: &[InputSpec]) -> Result<Vec<Row>, String> {
        if let Some(large) = specs.iter().find(|spec| spec.elements() > MAX_ELEMENTS) {
            return Err(format!(
                "input \"{}\" has over {MAX_ELEMENTS} elements: too many to send",
                large.name
            ));
        }
        let named = self.by_model.iter().find(|(name, _)| name == model).map(|(_, path)| path);
        match named.or(self.all.as_ref()) {
            Some(path) => files::read(path, specs),
            None => Ok(random::rows(specs, self.seed, index, self.rows)),
        }
    }

    /// Returns the requests that these rows make, in turn, each with `rows` of them. Without a
    /// batch dimension, each is a row.
    ///
    /// Errors: more than fits in memory; several rows for a model without a batch dimension.
    pub fn requests(
        &self,
        rows: &[Row],
        specs: &[InputSpec],
        batched: bool,
    ) -> Result<Vec<Vec<Tensor>>, String> {
        if !batched && self.rows > 1 {
            return Err(format!("it has no batch dimension, so --rows can't be {}; leave it out", self.rows));
        }
        let requests = rows.len().div_ceil(self.rows);
        let row_bytes = rows.iter().map(|row| row.iter().map(Bytes::len).sum::<usize>()).max().unwrap_or(0);
        if row_bytes.saturating_mul(self.rows).saturating_mul(requests) > MAX_PREPARED_BYTES {
            return Err(format!(
                "its {} different inputs of {row_bytes} bytes are too many to hold in memory (up to {MAX_PREPARED_BYTES} \
                 bytes): give fewer files or fewer --rows",
                rows.len()
            ));
        }
        let request = |at: usize| {
            let chosen = (0..self.rows).map(|k| &rows[(at * self.rows + k) % rows.len()]);
            let tensor = |(input, spec): (usize, &InputSpec)| {
                let mut data = BytesMut::new();
                chosen.clone().for_each(|row| data.extend_from_slice(&row[input]));
                let batch = batched.then_some(self.rows);
                let shape = batch.into_iter().chain(spec.shape.iter().copied()).collect();
                Tensor { name: spec.name.clone(), element: spec.element, shape, data: data.freeze() }
            };
            specs.iter().enumerate().map(tensor).collect()
        };
        Ok((0..requests).map(request).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_gpu::DataType;

    #[test]
    fn rows_go_out_in_turn_and_as_many_in_a_request_as_asked_for() {
        let spec = InputSpec { name: "x".into(), element: Element::Fixed(DataType::Uint8), shape: vec![2] };
        let rows: Vec<Row> = (0..3_u8).map(|k| vec![Bytes::from(vec![k, k])]).collect();
        let inputs = Inputs { rows: 2, ..Inputs::default() };
        let requests = inputs.requests(&rows, std::slice::from_ref(&spec), true).unwrap();
        let data: Vec<&[u8]> = requests.iter().map(|tensors| &tensors[0].data[..]).collect();
        assert_eq!(data, [[0, 0, 1, 1], [2, 2, 0, 0]]);
        assert_eq!(requests[0][0].shape, [2, 2]);
        let error = inputs.requests(&rows, &[spec], false).unwrap_err();
        assert_eq!(error, "it has no batch dimension, so --rows can't be 2; leave it out");
    }
}
