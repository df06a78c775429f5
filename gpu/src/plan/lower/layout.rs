//! The layout of images in half precision: convolutions, and what lies between them, get their
//! channels last, so that tensor cores read a pixel's channels side by side. Images are turned
//! around where steps that keep ONNX's order meet others, and nowhere else.

use super::super::element::PlanType;
use super::super::operation::{ImageLayout, Operation, PadFill};
use super::builder::{ComputedTensor, LoweredStep, PlanBuilder, PlanValue};
use std::collections::{HashMap, HashSet};

const LAST: ImageLayout = ImageLayout::ChannelsLast;

/// The channels that are read in one piece: 16 bytes of halves.
const CHANNELS_AT_ONCE: usize = 8;

/// Gives the images of a builder's steps the layout that convolutions are fastest with.
///
/// Errors: a constant can't be computed.
pub(super) fn apply(builder: &mut PlanBuilder<'_>) -> Result<(), String> {
    let steps = std::mem::take(&mut builder.steps);
    let mut images = Images { builder, last: HashMap::new(), only_last: HashSet::new() };
    steps.into_iter().try_for_each(|step| images.add(step))
}

/// The images whose channels come last.
struct Images<'a, 'b> {
    builder: &'a mut PlanBuilder<'b>,
    /// The image with its channels last, and its shape with them first, by the buffer of that.
    last: HashMap<usize, (ComputedTensor, [usize; 4])>,
    /// The buffers that are not written in ONNX's order.
    only_last: HashSet<usize>,
}

/// Returns true if the bytes of an image are the same in either layout.
fn is_same([_, c, h, w]: [usize; 4]) -> bool {
    c == 1 || h * w == 1
}

/// Returns the four sizes of a value that has four.
fn image(value: &PlanValue) -> Option<[usize; 4]> {
    value.shape().try_into().ok()
}

/// Returns where a dimension of ONNX's order lies when the channels come last.
fn moved(axis: usize) -> usize {
    [0, 3, 1, 2][axis]
}

impl Images<'_, '_> {
    fn add(&mut self, step: LoweredStep) -> Result<(), String> {
        step.nodes.join(", ").clone_into(&mut self.builder.node);
        let turned = if step.output.of.element.is_half() { self.turned(&step)? } else { None };
        let Some((operation, inputs)) = turned else {
            let inputs = step.inputs.iter().map(|input| self.first(input)).collect();
            self.builder.steps.push(LoweredStep { inputs, ..step });
            return Ok(());
        };
        let logical = image_of(&step.output.of)?;
        let of = PlanType::new(step.output.of.element, LAST.shape(logical));
        let output = self.builder.computed(of);
        self.last.insert(step.output.buffer, (output.clone(), logical));
        self.only_last.insert(step.output.buffer);
        self.builder.steps.push(LoweredStep { operation, inputs, output, ..step });
        Ok(())
    }

    /// Returns the step as one on images whose channels come last, and its inputs; `None` if it
    /// stays in ONNX's order.
    fn turned(&mut self, step: &LoweredStep) -> Result<Option<(Operation, Vec<PlanValue>)>, String> {
        let is_convolution = matches!(step.operation, Operation::Convolution { .. });
        if step.output.of.shape.len() != 4 || !(is_convolution || self.reads_last(&step.inputs)) {
            return Ok(None);
        }
        let Some(operation) = with_channels_last(&step.operation) else { return Ok(None) };
        let mut inputs = Vec::new();
        for (at, input) in step.inputs.iter().enumerate() {
            inputs.push(match operation {
                // What follows the image belongs to a channel each, and a bias to an output's.
                Operation::Convolution { .. } if at == 2 => input.clone(),
                Operation::Affine { .. } if at > 0 => self.first(input),
                _ => {
                    let shape = input.shape();
                    let whole = [&vec![1; 4 - shape.len().min(4)], shape].concat();
                    self.last(&input.view(whole)?)?
                }
            });
        }
        if let Operation::Convolution { groups: 1, .. } = operation {
            self.widen(&mut inputs)?;
        }
        Ok(Some((operation, inputs)))
    }

    /// Returns true if one of these values is an image whose channels come last.
    fn reads_last(&self, inputs: &[PlanValue]) -> bool {
        let is_last = |input: &PlanValue| {
            let found = input.buffer().and_then(|buffer| self.last.get(&buffer));
            found.is_some_and(|(_, logical)| Some(*logical) == image(input) && !is_same(*logical))
        };
        inputs.iter().any(is_last) && inputs.iter().all(|input| input.shape().len() <= 4)
    }

    /// Returns an image in ONNX's order.
    fn first(&mut self, value: &PlanValue) -> PlanValue {
        let PlanValue::Computed(tensor) = value else { return value.clone() };
        if !self.only_last.contains(&tensor.buffer) {
            return value.clone();
        }
        let Some((last, logical)) = self.last.get(&tensor.buffer).cloned() else { return value.clone() };
        if is_same(logical) {
            return PlanValue::Computed(ComputedTensor { buffer: last.buffer, of: tensor.of.clone() });
        }
        let [n, c, h, w] = logical;
        let operation = Operation::StridedCopy {
            walked: vec![n, c, h, w],
            strides: [h * w * c, 1, w * c, c].map(|stride| stride as i64).to_vec(),
            offset: 0,
            shape: vec![n, c, h, w],
        };
        self.builder.steps.push(LoweredStep {
            operation,
            inputs: vec![PlanValue::Computed(last)],
            output: ComputedTensor {
                buffer: tensor.buffer,
                of: PlanType::new(tensor.of.element, [n, c, h, w]),
            },
            activation: None,
            nodes: vec![self.builder.node.clone()],
        });
        self.only_last.remove(&tensor.buffer);
        value.clone()
    }

    /// Returns an image with its channels last.
    ///
    /// Errors: it is none, or a constant that can't be computed.
    fn last(&mut self, value: &PlanValue) -> Result<PlanValue, String> {
        let logical @ [n, c, h, w] = image_of(value.of())?;
        let known = value.buffer().and_then(|buffer| self.last.get(&buffer));
        if let Some((last, _)) = known.filter(|(_, shape)| *shape == logical) {
            return Ok(PlanValue::Computed(last.clone()));
        }
        let first = self.first(value);
        if is_same(logical) {
            return first.view(LAST.shape(logical).to_vec());
        }
        let operation = Operation::StridedCopy {
            walked: LAST.shape(logical).to_vec(),
            strides: [c * h * w, w, 1, h * w].map(|stride| stride as i64).to_vec(),
            offset: 0,
            shape: vec![n, h, w, c],
        };
        let last = self.builder.emit(operation, &[&first])?;
        if let (Some(buffer), PlanValue::Computed(last)) = (value.buffer(), &last) {
            self.last.insert(buffer, (last.clone(), logical));
        }
        Ok(last)
    }

    /// Gives the image and the kernels of a convolution channels of zeros, where they have fewer
    /// than are read in one piece: the three colours of a picture.
    ///
    /// Errors: a constant can't be computed.
    fn widen(&mut self, inputs: &mut [PlanValue]) -> Result<(), String> {
        let channels = inputs[0].shape()[3];
        if channels >= CHANNELS_AT_ONCE || inputs[1].constant().is_none() {
            return Ok(());
        }
        let more = (CHANNELS_AT_ONCE - channels) as i64;
        let (begins, ends, fill) = (vec![0; 4], vec![0, 0, 0, more], PadFill::Constant(0.0));
        let operation = Operation::Pad { begins, ends, fill };
        for input in &mut inputs[..2] {
            *input = self.builder.emit(operation.clone(), &[&*input])?;
        }
        Ok(())
    }
}

fn image_of(of: &PlanType) -> Result<[usize; 4], String> {
    of.shape[..].try_into().map_err(|_| format!("{of} is no image"))
}

/// Returns an operation on images for channels that come last; `None` if it keeps ONNX's order.
fn with_channels_last(operation: &Operation) -> Option<Operation> {
    let mut turned = operation.clone();
    match &mut turned {
        Operation::Convolution { layout, .. }
        | Operation::Pool { layout, .. }
        | Operation::Resize { layout, .. } => *layout = LAST,
        Operation::Unary(_) | Operation::Binary(_) | Operation::Select => {}
        Operation::Affine { axis }
        | Operation::LocalResponseNorm { axis, .. }
        | Operation::Concat { axis }
        | Operation::Softmax { axis, .. } => *axis = moved(*axis),
        Operation::Reduce { axes, .. } => {
            axes.iter_mut().for_each(|axis| *axis = moved(*axis));
            axes.sort_unstable();
        }
        Operation::Pad { begins, ends, .. } => {
            for pads in [begins, ends] {
                if let [n, c, h, w] = pads[..] {
                    *pads = vec![n, h, w, c];
                }
            }
        }
        _ => return None,
    }
    Some(turned)
}
