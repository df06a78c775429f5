//! A model's inputs and outputs, from the metadata of either protocol.

use crate::loadgen::inputs::{Element, InputSpec};
use symphony_transport::Nanos;

/// A model as its server describes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Description {
    /// One row of each input.
    pub(super) inputs: Vec<InputSpec>,
    /// One row of each output; `None` where a dimension is open or a type unknown, so that its size
    /// is not known.
    pub(super) outputs: Vec<(String, Option<InputSpec>)>,
    /// True if a request's tensors begin with a batch dimension.
    pub(super) batched: bool,
    /// The model's SLO at the server, if it states one.
    pub(super) slo: Option<Nanos>,
}

/// A tensor as the metadata have it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DescribedTensor {
    pub(super) name: String,
    pub(super) datatype: String,
    pub(super) shape: Vec<i64>,
}

impl Description {
    /// The description that metadata give. An open first dimension of every input is the batch
    /// dimension; other open dimensions of inputs become 1.
    ///
    /// Errors: a type for which no input can be made.
    pub(super) fn new(
        inputs: &[DescribedTensor],
        outputs: &[DescribedTensor],
    ) -> Result<Description, String> {
        let batched = inputs.iter().all(|tensor| matches!(tensor.shape[..], [..0, ..]));
        let row =
            |tensor: &DescribedTensor| tensor.shape[usize::from(batched).min(tensor.shape.len())..].to_vec();
        let input = |tensor: &DescribedTensor| {
            let DescribedTensor { name, datatype, .. } = tensor;
            let element = Element::parse(datatype).ok_or_else(|| {
                format!("input \"{name}\" is of type {datatype}, for which no input can be made")
            })?;
            let shape = row(tensor).into_iter().map(|d| usize::try_from(d).unwrap_or(1)).collect();
            Ok(InputSpec { name: name.clone(), element, shape })
        };
        let output = |tensor: &DescribedTensor| {
            let shape: Option<Vec<usize>> =
                row(tensor).into_iter().map(|d| usize::try_from(d).ok()).collect();
            let element = Element::parse(&tensor.datatype);
            let spec = shape.zip(element).map(|(shape, element)| InputSpec {
                name: tensor.name.clone(),
                element,
                shape,
            });
            (tensor.name.clone(), spec)
        };
        let inputs = inputs.iter().map(input).collect::<Result<_, String>>()?;
        Ok(Description { inputs, outputs: outputs.iter().map(output).collect(), batched, slo: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[i64], datatype: &str) -> DescribedTensor {
        DescribedTensor { name: "x".into(), datatype: datatype.into(), shape: shape.to_vec() }
    }

    #[test]
    fn an_open_first_dimension_is_the_batch() {
        let of = |shape: &[i64]| {
            let description = Description::new(&[tensor(shape, "FP32")], &[tensor(shape, "FP32")]).unwrap();
            let output = description.outputs[0].1.as_ref().map(|spec| spec.shape.clone());
            (description.batched, description.inputs[0].shape.clone(), output)
        };
        assert_eq!(of(&[-1, 3, 4]), (true, vec![3, 4], Some(vec![3, 4])));
        assert_eq!(of(&[-1, 3, -1]), (true, vec![3, 1], None));
        assert_eq!(of(&[3, 4]), (false, vec![3, 4], Some(vec![3, 4])));
    }

    #[test]
    fn a_type_that_no_input_can_be_made_for_is_named() {
        let error = Description::new(&[tensor(&[-1], "COMPLEX64")], &[]).unwrap_err();
        assert_eq!(error, "input \"x\" is of type COMPLEX64, for which no input can be made");
    }
}
