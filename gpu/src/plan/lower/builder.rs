//! What lowering builds: the operations of a model at one batch size, on tensors that are constant
//! or computed. An operation on constants alone is computed at once.

use super::super::element::{AlignedBytes, ConstantTensor, PlanElement, PlanType};
use super::super::kernels::{self, KernelInput, KernelOutput};
use super::super::operation::{Operation, UnaryFunction};
use std::collections::HashMap;
use std::sync::Arc;

/// The most elements of a constant that is made for one batch size: larger ones are computed when
/// the model runs, so that the weights do not grow with each batch size.
const MAX_FOLDED: usize = 1 << 18;

/// The most bytes of a constant.
const MAX_CONSTANT: usize = 1 << 32;

/// The most bytes of a constant that is known by its content: smaller ones are made anew for each
/// batch size, as a norm's epsilon is.
const MAX_BY_CONTENT: usize = 1 << 10;

/// A tensor of the graph.
#[derive(Clone, Debug)]
pub(in crate::plan) enum PlanValue {
    /// One that is known.
    Constant(ConstantTensor),
    /// One that a step computes, or an input.
    Computed(ComputedTensor),
}

/// The outputs of a node that was lowered; an error is what stands in the way.
pub(in crate::plan) type NodeOutputs = Result<Vec<PlanValue>, String>;

/// A tensor that is known when the model runs.
#[derive(Clone, Debug)]
pub(in crate::plan) struct ComputedTensor {
    /// The number of the buffer that it lies in. Tensors of different shapes may share one.
    pub(in crate::plan) buffer: usize,
    pub(in crate::plan) of: PlanType,
}

impl PlanValue {
    pub(in crate::plan) fn of(&self) -> &PlanType {
        match self {
            PlanValue::Constant(tensor) => &tensor.of,
            PlanValue::Computed(tensor) => &tensor.of,
        }
    }

    pub(in crate::plan) fn shape(&self) -> &[usize] {
        &self.of().shape
    }

    pub(in crate::plan) fn constant(&self) -> Option<&ConstantTensor> {
        match self {
            PlanValue::Constant(tensor) => Some(tensor),
            PlanValue::Computed(_) => None,
        }
    }

    pub(in crate::plan) fn buffer(&self) -> Option<usize> {
        match self {
            PlanValue::Computed(tensor) => Some(tensor.buffer),
            PlanValue::Constant(_) => None,
        }
    }

    /// Returns the same elements in another shape, which has as many.
    ///
    /// Errors: it has not.
    pub(in crate::plan) fn view(&self, shape: Vec<usize>) -> Result<PlanValue, String> {
        let of = PlanType { element: self.of().element, shape };
        if of.elements() != self.of().elements() {
            return Err(format!("{} has not as many elements as {:?}", self.of(), of.shape));
        }
        Ok(match self {
            PlanValue::Constant(ConstantTensor { data, .. }) => {
                PlanValue::Constant(ConstantTensor { of, data: Arc::clone(data) })
            }
            PlanValue::Computed(ComputedTensor { buffer, .. }) => {
                PlanValue::Computed(ComputedTensor { buffer: *buffer, of })
            }
        })
    }
}

/// An operation of the model, before it has places in memory.
#[derive(Clone, Debug)]
pub(in crate::plan) struct LoweredStep {
    pub(in crate::plan) operation: Operation,
    pub(in crate::plan) inputs: Vec<PlanValue>,
    pub(in crate::plan) output: ComputedTensor,
    pub(in crate::plan) activation: Option<UnaryFunction>,
    /// The nodes that it computes.
    pub(in crate::plan) nodes: Vec<String>,
}

/// A constant that was computed, and the data that it was computed of.
struct FoldedConstant {
    result: ConstantTensor,
    /// Kept, since as long as it lives nothing else has its addresses.
    _inputs: Vec<Arc<AlignedBytes>>,
}

/// What tells the data of a constant from other data of its type.
#[derive(PartialEq, Eq, Hash)]
enum ConstantKey {
    Content(Vec<u8>),
    Address(usize),
}

impl ConstantKey {
    fn of(data: &Arc<AlignedBytes>) -> ConstantKey {
        match data.as_bytes() {
            bytes if bytes.len() <= MAX_BY_CONTENT => ConstantKey::Content(bytes.to_vec()),
            _ => ConstantKey::Address(Arc::as_ptr(data).addr()),
        }
    }
}

/// Constants that were computed for one batch size and may be needed for the next, by the operation
/// with its inputs' types and their data.
#[derive(Default)]
pub(in crate::plan) struct FoldedConstants {
    known: HashMap<(String, Vec<ConstantKey>), FoldedConstant>,
    /// Vectors of one number, by their length and its bits.
    filled: HashMap<(usize, u32), ConstantTensor>,
    /// Floats that were rounded to halves, by the address of those, which are kept.
    rounded: HashMap<usize, (Arc<AlignedBytes>, ConstantTensor)>,
}

/// The steps of a model at one batch size.
pub(in crate::plan) struct PlanBuilder<'a> {
    pub(in crate::plan) steps: Vec<LoweredStep>,
    /// How many buffers there are.
    buffers: usize,
    /// The node that is lowered at present.
    pub(in crate::plan) node: String,
    /// Constants of earlier batch sizes; `None` while what all of them share is folded.
    folded: Option<&'a mut FoldedConstants>,
}

impl<'a> PlanBuilder<'a> {
    pub(in crate::plan) fn new(folded: Option<&'a mut FoldedConstants>) -> PlanBuilder<'a> {
        PlanBuilder { steps: Vec::new(), buffers: 0, node: String::new(), folded }
    }

    /// Makes a tensor with a buffer of its own.
    pub(in crate::plan) fn computed(&mut self, of: PlanType) -> ComputedTensor {
        self.buffers += 1;
        ComputedTensor { buffer: self.buffers - 1, of }
    }

    /// Adds an operation, or computes it where its inputs are known.
    ///
    /// Errors: the operation does not take such inputs, or can't be computed.
    pub(in crate::plan) fn emit(
        &mut self,
        operation: Operation,
        inputs: &[&PlanValue],
    ) -> Result<PlanValue, String> {
        let types: Vec<&PlanType> = inputs.iter().map(|input| input.of()).collect();
        let of = operation.result(&types)?;
        let constants: Option<Vec<&ConstantTensor>> = inputs.iter().map(|input| input.constant()).collect();
        if let Some(constants) = constants {
            let fits = of.elements().is_some_and(|elements| elements <= MAX_FOLDED);
            let input_size = constants.iter().filter_map(|tensor| tensor.of.elements()).max();
            // What does not grow is as large as the weights already are.
            if self.folded.is_none() || fits || of.elements() <= input_size {
                return self.fold(&operation, &constants, of).map(PlanValue::Constant);
            }
        }
        Ok(self.push(operation, inputs, of))
    }

    /// Adds an operation whose result is of this type, to be computed when the model runs.
    pub(in crate::plan) fn push(
        &mut self,
        operation: Operation,
        inputs: &[&PlanValue],
        of: PlanType,
    ) -> PlanValue {
        let output = self.computed(of);
        self.steps.push(LoweredStep {
            operation,
            inputs: inputs.iter().map(|&input| input.clone()).collect(),
            output: output.clone(),
            activation: None,
            nodes: vec![self.node.clone()],
        });
        PlanValue::Computed(output)
    }

    /// Returns a constant of floats as halves of this type.
    pub(in crate::plan) fn rounded(
        &mut self,
        tensor: &ConstantTensor,
        element: PlanElement,
    ) -> ConstantTensor {
        let Some(folded) = &mut self.folded else { return tensor.rounded(element) };
        let make = || (Arc::clone(&tensor.data), tensor.rounded(element));
        let (_, known) = folded.rounded.entry(Arc::as_ptr(&tensor.data).addr()).or_insert_with(make);
        ConstantTensor { of: PlanType { element, ..tensor.of.clone() }, data: Arc::clone(&known.data) }
    }

    /// Returns a vector of one number.
    pub(in crate::plan) fn filled(&mut self, length: usize, value: f32) -> ConstantTensor {
        let make = || ConstantTensor::of_f32(&[length], &vec![value; length]);
        match &mut self.folded {
            Some(folded) => folded.filled.entry((length, value.to_bits())).or_insert_with(make).clone(),
            None => make(),
        }
    }

    /// Computes an operation on constants.
    ///
    /// Errors: an index is out of range, or a divisor is 0.
    pub(in crate::plan) fn fold(
        &mut self,
        operation: &Operation,
        inputs: &[&ConstantTensor],
        of: PlanType,
    ) -> Result<ConstantTensor, String> {
        let types: Vec<&PlanType> = inputs.iter().map(|input| &input.of).collect();
        let text = if self.folded.is_some() { format!("{operation:?} {types:?}") } else { String::new() };
        let key = (text, inputs.iter().map(|input| ConstantKey::of(&input.data)).collect());
        if let Some(known) = self.folded.as_ref().and_then(|folded| folded.known.get(&key)) {
            return Ok(known.result.clone());
        }
        let bytes = of.bytes().filter(|&bytes| bytes <= MAX_CONSTANT);
        let bytes = bytes.ok_or_else(|| format!("a constant would be {of}, of over {MAX_CONSTANT} bytes"))?;
        let mut data = AlignedBytes::zeroed(bytes);
        let read: Vec<KernelInput<'_>> =
            inputs.iter().map(|input| KernelInput { of: &input.of, bytes: input.data.as_bytes() }).collect();
        kernels::run(operation, None, &read, &mut KernelOutput { of: &of, bytes: data.as_bytes_mut() })?;
        let result = ConstantTensor { of, data: Arc::new(data) };
        if let Some(folded) = &mut self.folded {
            let _inputs = inputs.iter().map(|input| Arc::clone(&input.data)).collect();
            folded.known.insert(key, FoldedConstant { result: result.clone(), _inputs });
        }
        Ok(result)
    }

    /// Returns a constant of whole numbers.
    pub(in crate::plan) fn whole_numbers(values: &[i64]) -> PlanValue {
        PlanValue::Constant(ConstantTensor::of_i64(&[values.len()], values))
    }

    /// Returns a number as a constant of the same type as another tensor.
    pub(in crate::plan) fn number(like: PlanElement, value: f64) -> Result<PlanValue, String> {
        let whole = ConstantTensor::of_i64(&[], &[value as i64]);
        Ok(PlanValue::Constant(match like {
            PlanElement::F32 => ConstantTensor::of_f32(&[], &[value as f32]),
            PlanElement::I64 => whole,
            other => PlanBuilder::new(None).fold(
                &Operation::Cast { to: other },
                &[&whole],
                PlanType::new(other, []),
            )?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::BinaryFunction;

    /// Adds a number that is made anew to many floats that stay, as lowering does for each batch
    /// size.
    fn sum(builder: &mut PlanBuilder<'_>, many: &ConstantTensor, number: f32) -> Arc<AlignedBytes> {
        let number = ConstantTensor::of_f32(&[], &[number]);
        let operation = Operation::Binary(BinaryFunction::Add);
        builder.fold(&operation, &[many, &number], many.of.clone()).unwrap().data
    }

    #[test]
    fn a_small_constant_that_is_made_anew_is_the_one_from_before() {
        let many = ConstantTensor::of_f32(&[1_000], &vec![1.0; 1_000]);
        let mut folded = FoldedConstants::default();
        let first = sum(&mut PlanBuilder::new(Some(&mut folded)), &many, 0.5);
        let again = sum(&mut PlanBuilder::new(Some(&mut folded)), &many, 0.5);
        let other = sum(&mut PlanBuilder::new(Some(&mut folded)), &many, 0.25);
        assert!(Arc::ptr_eq(&first, &again));
        assert!(first.as_bytes() != other.as_bytes());
    }
}
