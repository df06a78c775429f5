//! Attention: a softmax of products between others becomes one step, and the products that make its
//! rows of one tensor become one product.
//!
//! ```text
//! q [N, rows, heads, d] ─ 0, 2, 1, 3 ─▶ product ─▶ factor, mask, softmax ─▶ product ─ 0, 2, 1, 3
//! k ───────────────────── 0, 2, 3, 1 ──▶         v ─ 0, 2, 1, 3 ──────────────▶
//! ```
//!
//! Exporters write it in several forms: factors stand before or behind the product, an order is
//! made in one step or two. What is not found stays as it was.

use super::super::element::{ConstantTensor, PlanElement, PlanType};
use super::super::operation::{BinaryFunction, Operation};
use super::super::shapes::AttentionSizes;
use super::builder::{LoweredStep, PlanBuilder, PlanValue};
use super::fuse::{needed, scaled};
use std::collections::HashMap;

/// The order of dimensions in which the rows of a head lie one behind another.
const BY_HEAD: [usize; 4] = [0, 2, 1, 3];

/// The order in which the columns of a head do.
const BY_HEAD_TRANSPOSED: [usize; 4] = [0, 2, 3, 1];

/// The steps of a builder, by the buffers that they write.
struct KnownSteps {
    steps: Vec<LoweredStep>,
    makers: HashMap<usize, usize>,
    /// How often a buffer is read.
    uses: HashMap<usize, usize>,
}

/// Finds attentions among the steps of a builder, whose floats become halves afterwards.
///
/// Errors: a constant can't be computed.
pub(super) fn apply(builder: &mut PlanBuilder<'_>, outputs: &[PlanValue]) -> Result<(), String> {
    let known = KnownSteps::of(std::mem::take(&mut builder.steps), outputs);
    let mut found = Vec::new();
    for step in &known.steps {
        match known.attention(step) {
            Some(attention) => found.extend(known.with_one_product(attention, builder)?),
            None => found.push(step.clone()),
        }
    }
    builder.steps = needed(found, outputs);
    Ok(())
}

/// A product of two tensors.
struct FoundProduct<'a> {
    left: &'a PlanValue,
    right: &'a PlanValue,
    transposed: [bool; 2],
    alpha: f32,
}

/// A tensor in front of steps that bring its dimensions into an order, and what it is multiplied
/// by.
struct Reordered<'a> {
    x: &'a PlanValue,
    factor: f32,
}

impl KnownSteps {
    fn of(steps: Vec<LoweredStep>, outputs: &[PlanValue]) -> KnownSteps {
        let makers = steps.iter().enumerate().map(|(at, step)| (step.output.buffer, at)).collect();
        let mut uses = HashMap::new();
        let read = steps.iter().flat_map(|step| &step.inputs).chain(outputs);
        read.filter_map(PlanValue::buffer).for_each(|buffer| *uses.entry(buffer).or_default() += 1);
        KnownSteps { steps, makers, uses }
    }

    /// Returns the step that computes a tensor of this shape.
    fn maker(&self, value: &PlanValue) -> Option<&LoweredStep> {
        let step = self.any_maker(value)?;
        (step.output.of == *value.of() && step.activation.is_none()).then_some(step)
    }

    /// Returns the step that computes the elements of a tensor, perhaps in another shape.
    fn any_maker(&self, value: &PlanValue) -> Option<&LoweredStep> {
        self.steps.get(*self.makers.get(&value.buffer()?)?)
    }

    fn product(&self, value: &PlanValue) -> Option<FoundProduct<'_>> {
        let step = self.maker(value)?;
        match (&step.operation, &step.inputs[..]) {
            (&Operation::MatrixProduct { transposed, alpha }, [left, right]) => {
                Some(FoundProduct { left, right, transposed, alpha })
            }
            _ => None,
        }
    }

    /// Returns what stands in front of factors of a tensor, and their product.
    fn without_factors<'a>(&'a self, mut value: &'a PlanValue) -> (&'a PlanValue, f32) {
        let mut product = 1.0;
        while let Some((x, factor)) = self.maker(value).and_then(scaled) {
            (value, product) = (x, product * factor);
        }
        (value, product)
    }

    /// Returns the product of scores and its factor, and the mask that is added behind.
    fn scores<'a>(&'a self, value: &'a PlanValue) -> Option<(FoundProduct<'a>, Option<&'a PlanValue>)> {
        let product = |value: &'a PlanValue| {
            let (value, factor) = self.without_factors(value);
            let product = self.product(value)?;
            Some(FoundProduct { alpha: product.alpha * factor, ..product })
        };
        if let Some(found) = product(value) {
            return Some((found, None));
        }
        let added = self.maker(value)?;
        match (&added.operation, &added.inputs[..]) {
            (Operation::Binary(BinaryFunction::Add), [left, right]) => {
                let found = product(left).map(|found| (found, Some(right)));
                found.or_else(|| product(right).map(|found| (found, Some(left))))
            }
            _ => None,
        }
    }

    /// Returns a tensor of which this is the one with its dimensions in this order.
    fn reordered<'a>(&'a self, mut value: &'a PlanValue, wanted: [usize; 4]) -> Option<Reordered<'a>> {
        let (mut order, mut factor) = ([0, 1, 2, 3], 1.0);
        while order != wanted {
            let step = self.maker(value)?;
            if let Some(inner) = order_of(step) {
                (value, order) = (&step.inputs[0], order.map(|axis| inner[axis]));
            } else {
                let (x, by) = scaled(step)?;
                (value, factor) = (x, factor * by);
            }
        }
        Some(Reordered { x: value, factor })
    }

    /// Returns the attention whose result a step writes; `None` if it is no last step of one.
    fn attention(&self, step: &LoweredStep) -> Option<LoweredStep> {
        if order_of(step)? != BY_HEAD {
            return None;
        }
        let mixed = self.product(&step.inputs[0]).filter(|mixed| mixed.transposed == [false; 2])?;
        let softmax = self.maker(mixed.left)?;
        let Operation::Softmax { axis: 3, logarithm: false } = softmax.operation else { return None };
        let (scores, mask) = self.scores(&softmax.inputs[0])?;
        let [_, keys_turned] = scores.transposed;
        let q = self.reordered(scores.left, BY_HEAD)?;
        let k = self.reordered(scores.right, if keys_turned { BY_HEAD } else { BY_HEAD_TRANSPOSED })?;
        let v = self.reordered(mixed.right, BY_HEAD)?;
        if scores.transposed[0] || mixed.alpha * v.factor != 1.0 {
            return None;
        }
        let heads = q.x.shape()[2];
        let joined = |of: &PlanValue| {
            let [n, rows, _, size] = <[usize; 4]>::try_from(of.shape()).ok()?;
            of.view(vec![n, rows, heads * size]).ok()
        };
        let mut inputs = vec![joined(q.x)?, joined(k.x)?, joined(v.x)?];
        inputs.extend(mask.cloned());
        let halves: Vec<PlanType> =
            inputs.iter().map(|input| PlanType::new(PlanElement::F16, input.shape())).collect();
        AttentionSizes::of(heads, false, &halves.iter().collect::<Vec<_>>()).ok()?;
        let scale = scores.alpha * q.factor * k.factor;
        let nodes = [&softmax.nodes[..], &step.nodes].concat();
        let mut output = step.output.clone();
        output.of.shape = inputs[0].shape().to_vec();
        let operation = Operation::Attention { heads, scale, packed: false };
        Some(LoweredStep { operation, inputs, output, activation: None, nodes })
    }

    /// Returns an attention, behind one product if its rows are made by three of one tensor.
    ///
    /// Errors: the weights can't be put side by side.
    fn with_one_product(
        &self,
        mut attention: LoweredStep,
        builder: &mut PlanBuilder<'_>,
    ) -> Result<Vec<LoweredStep>, String> {
        let Some(products) = self.products_of_one(&attention.inputs[..3]) else {
            return Ok(vec![attention]);
        };
        let product = joined(&products, builder)?;
        let [n, rows, hidden] = [0, 1, 2].map(|axis| attention.inputs[0].shape()[axis]);
        let packed = PlanValue::Computed(product.output.clone()).view(vec![n, rows, 3 * hidden])?;
        attention.inputs.splice(..3, [packed]);
        if let Operation::Attention { packed, .. } = &mut attention.operation {
            *packed = true;
        }
        Ok(vec![product, attention])
    }

    /// Returns the products of one tensor with constants that make these rows and nothing else;
    /// `None` if they are made otherwise.
    fn products_of_one(&self, rows: &[PlanValue]) -> Option<Vec<&LoweredStep>> {
        let products: Vec<&LoweredStep> =
            rows.iter().map(|rows| self.any_maker(rows)).collect::<Option<_>>()?;
        let [first, ..] = products[..] else { return None };
        let Operation::MatrixProduct { transposed: [false, _], .. } = first.operation else { return None };
        let alike = |step: &&LoweredStep| {
            let x = |step: &LoweredStep| (step.inputs[0].buffer(), step.inputs[0].of().clone());
            step.operation == first.operation
                && x(step) == x(first)
                && step.inputs.len() == first.inputs.len()
                && step.output.of == first.output.of
        };
        let of_constants = |step: &&LoweredStep| {
            let read_once = self.uses.get(&step.output.buffer) == Some(&1) && step.activation.is_none();
            let constants = step.inputs[1..].iter().all(|input| input.constant().is_some());
            read_once && constants && step.inputs[1].shape().len() == 2
        };
        products.iter().all(|step| alike(step) && of_constants(step)).then_some(products)
    }
}

/// Returns one product in place of those of one tensor: their columns side by side.
///
/// Errors: the weights can't be put side by side.
fn joined(products: &[&LoweredStep], builder: &mut PlanBuilder<'_>) -> Result<LoweredStep, String> {
    let first = products[0];
    let turned = matches!(first.operation, Operation::MatrixProduct { transposed: [_, true], .. });
    let mut inputs = vec![first.inputs[0].clone()];
    for at in 1..first.inputs.len() {
        let parts: Vec<&ConstantTensor> =
            products.iter().filter_map(|step| step.inputs[at].constant()).collect();
        let types: Vec<&PlanType> = parts.iter().map(|part| &part.of).collect();
        let side_by_side = Operation::Concat { axis: usize::from(at == 1 && !turned) };
        let of = side_by_side.result(&types)?;
        inputs.push(PlanValue::Constant(builder.fold(&side_by_side, &parts, of)?));
    }
    let mut of = first.output.of.clone();
    of.shape.last_mut().into_iter().for_each(|columns| *columns *= products.len());
    let nodes = products.iter().flat_map(|step| step.nodes.clone()).collect();
    let output = builder.computed(of);
    Ok(LoweredStep { operation: first.operation.clone(), inputs, output, activation: None, nodes })
}

/// Returns the order into which a step brings the dimensions of a tensor of four; `None` if it does
/// something else.
fn order_of(step: &LoweredStep) -> Option<[usize; 4]> {
    let Operation::StridedCopy { walked, strides, offset: 0, .. } = &step.operation else { return None };
    let shape = <[usize; 4]>::try_from(step.inputs[0].shape()).ok()?;
    let result = <[usize; 4]>::try_from(&step.output.of.shape[..]).ok()?;
    let dense = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1];
    // Where dimensions of one element lie makes no difference.
    let moved = |sizes: &[usize], strides: &[i64]| -> Vec<(usize, i64)> {
        let pairs = sizes.iter().copied().zip(strides.iter().copied());
        pairs.filter(|(size, _)| *size != 1).collect()
    };
    let found = moved(walked, strides);
    [BY_HEAD, BY_HEAD_TRANSPOSED, [0, 1, 3, 2]].into_iter().find(|order| {
        let sizes = order.map(|axis| shape[axis]);
        sizes == result && moved(&sizes, &order.map(|axis| dense[axis] as i64)) == found
    })
}
