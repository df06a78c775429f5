//! The type of an operation's output by those of its inputs. A plan is made with it, and one that
//! is read is checked with it: kernels rely on what is refused here.

use super::element::{PlanElement, PlanType};
use super::operation::{ImageLayout, Operation, UnaryFunction, WindowSpec};

/// The largest stride, pad or size of a window or a coordinate: products then fit.
const MAX_STEP: usize = 1 << 24;

impl Operation {
    /// Returns the type of the output.
    ///
    /// # Errors
    /// If the operation does not take inputs of these types; the text says what it takes.
    pub fn result(&self, inputs: &[&PlanType]) -> Result<PlanType, String> {
        let result = match self {
            Operation::Unary(function) => unary(*function, inputs)?,
            Operation::Cast { to } => {
                let [x] = exactly(inputs)?;
                PlanType::new(*to, x.shape.clone())
            }
            Operation::Binary(function) => {
                let [left, right] = exactly(inputs)?;
                same_elements(left, right)?;
                let logic = function.is_logic();
                if logic != (left.element == PlanElement::Bool) {
                    return Err(format!("{function:?} does not take {}", left.element));
                }
                let element = if function.is_comparison() { PlanElement::Bool } else { left.element };
                PlanType::new(element, broadcast(&left.shape, &right.shape)?)
            }
            Operation::Select => {
                let [condition, left, right] = exactly(inputs)?;
                same_elements(left, right)?;
                if condition.element != PlanElement::Bool {
                    return Err(format!("its condition is {condition}"));
                }
                let shape = broadcast(&broadcast(&condition.shape, &left.shape)?, &right.shape)?;
                PlanType::new(left.element, shape)
            }
            Operation::Affine { axis } => {
                let [x, scale, shift] = exactly(inputs)?;
                all_floats(inputs)?;
                let channels = [*x.shape.get(*axis).ok_or("it has no such dimension")?];
                expect(scale, &channels)?;
                expect(shift, &channels)?;
                x.clone()
            }
            Operation::Convolution { layout, window, groups } => {
                convolution(*layout, window, *groups, inputs)?
            }
            Operation::MatrixProduct { transposed, .. } => matrix_product(*transposed, inputs)?,
            Operation::Pool { layout, size, window, .. } => {
                let [x] = exactly(inputs)?;
                all_floats(inputs)?;
                let [n, c, h, w] = image(*layout, x)?;
                let [h, w] = window.outputs([h, w], *size)?;
                PlanType::new(x.element, layout.shape([n, c, h, w]))
            }
            Operation::Reduce { axes, .. } => {
                let [x] = exactly(inputs)?;
                if x.element == PlanElement::Bool {
                    return Err("it does not take bool".to_owned());
                }
                let mut shape = x.shape.clone();
                for &axis in axes {
                    *shape.get_mut(axis).ok_or("it has no such dimension")? = 1;
                }
                if !axes.is_sorted_by(|a, b| a < b) || x.elements() == Some(0) {
                    return Err("its dimensions do not rise, or there are no elements".to_owned());
                }
                PlanType::new(x.element, shape)
            }
            Operation::Softmax { axis, .. } => {
                let [x] = exactly(inputs)?;
                all_floats(inputs)?;
                x.shape.get(*axis).ok_or("it has no such dimension")?;
                x.clone()
            }
            Operation::LayerNorm { axis, adds, .. } => {
                all_floats(inputs)?;
                let (x, scales) = match inputs {
                    [x, scales @ .., added] if *adds => {
                        expect(added, &x.shape)?;
                        (x, scales)
                    }
                    [x, scales @ ..] => (x, scales),
                    [] => return Err("it has no input".to_owned()),
                };
                let of = x.shape.get(*axis..).ok_or("it has no such dimension")?;
                if scales.is_empty() || scales.len() > 2 {
                    return Err(format!("it has {} inputs", inputs.len()));
                }
                scales.iter().try_for_each(|scale| expect(scale, of))?;
                (*x).clone()
            }
            Operation::Attention { heads, packed, .. } => {
                let AttentionSizes { batches, queries, hidden, .. } =
                    AttentionSizes::of(*heads, *packed, inputs)?;
                PlanType::new(inputs[0].element, [batches, queries, hidden])
            }
            Operation::LocalResponseNorm { axis, size, .. } => {
                let [x] = exactly(inputs)?;
                all_floats(inputs)?;
                if x.shape.len() <= *axis || !(1..MAX_STEP).contains(size) {
                    return Err("it takes a dimension of channels, and a size above 0".to_owned());
                }
                x.clone()
            }
            Operation::Concat { axis } => concat(*axis, inputs)?,
            Operation::Gather { axis } => {
                let [data, indices] = exactly(inputs)?;
                if !matches!(indices.element, PlanElement::I64 | PlanElement::I32) {
                    return Err(format!("its indices are {indices}"));
                }
                let (before, after) = data.shape.split_at_checked(*axis).ok_or("it has no such dimension")?;
                let (_, after) = after.split_first().ok_or("it has no such dimension")?;
                PlanType::new(data.element, [before, &indices.shape, after].concat())
            }
            Operation::StridedCopy { walked, strides, offset, shape } => {
                let [x] = exactly(inputs)?;
                let result = PlanType::new(x.element, shape.clone());
                check_walk(x, walked, strides, *offset, &result)?;
                result
            }
            Operation::Pad { begins, ends, .. } => pad(begins, ends, inputs)?,
            Operation::Resize { layout, size, scales, .. } => {
                let [x] = exactly(inputs)?;
                all_floats(inputs)?;
                let [n, c, ..] = image(*layout, x)?;
                let sound = scales.iter().all(|scale| scale.is_finite() && *scale > 0.0);
                if !sound || size.iter().any(|&size| size > MAX_STEP) {
                    return Err(format!("it makes {size:?} by {scales:?} of {x}"));
                }
                PlanType::new(x.element, layout.shape([n, c, size[0], size[1]]))
            }
        };
        result.bytes().map(|_| ()).ok_or_else(|| format!("{result} is too large"))?;
        Ok(result)
    }
}

impl WindowSpec {
    /// Returns the height and the width of the output for an image and a window of these sizes.
    ///
    /// # Errors
    /// If the window does not fit into the image.
    pub fn outputs(&self, image: [usize; 2], size: [usize; 2]) -> Result<[usize; 2], String> {
        let WindowSpec { strides, dilations, pads, round_up } = *self;
        let mut outputs = [0; 2];
        for (at, output) in outputs.iter_mut().enumerate() {
            let steps = [strides[at], dilations[at], size[at]];
            let fits = steps.iter().all(|step| (1..MAX_STEP).contains(step))
                && [pads[at], pads[at + 2], image[at]].iter().all(|&step| step < MAX_STEP);
            let padded = image[at] + pads[at].min(MAX_STEP) + pads[at + 2].min(MAX_STEP);
            let reach = if fits { dilations[at] * (size[at] - 1) + 1 } else { usize::MAX };
            let room = padded.checked_sub(reach).ok_or_else(|| {
                format!("a window of {size:?} with {self:?} does not fit into an image of {image:?}")
            })?;
            let count = if round_up { room.div_ceil(strides[at]) } else { room / strides[at] };
            // A window that is rounded up begins in the image or in front of it.
            let begins_behind = round_up && count * strides[at] >= image[at] + pads[at];
            *output = count + 1 - usize::from(begins_behind && count > 0);
        }
        Ok(outputs)
    }
}

/// The sizes of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttentionSizes {
    /// The size of the batch.
    pub batches: usize,
    /// The rows of q.
    pub queries: usize,
    /// The rows of k and v.
    pub keys: usize,
    /// The elements of a row, of all heads.
    pub hidden: usize,
}

/// The most elements of a head's row, a multiple of [`HEAD_STEP`].
const MOST_OF_HEAD: usize = 128;

/// What a head's elements are a multiple of: as many halves as are copied at once.
const HEAD_STEP: usize = 8;

impl AttentionSizes {
    /// Returns the sizes of an attention of inputs of these types.
    ///
    /// # Errors
    /// If there is no such attention; the text says what it takes.
    pub fn of(heads: usize, packed: bool, inputs: &[&PlanType]) -> Result<AttentionSizes, String> {
        all_floats(inputs)?;
        let wrong = || {
            let given: Vec<String> = inputs.iter().map(ToString::to_string).collect();
            format!("it takes rows of {heads} heads, and perhaps a mask, not {}", given.join(", "))
        };
        let rows = |of: &PlanType| <[usize; 3]>::try_from(&of.shape[..]).map_err(|_| wrong());
        let (sizes, mask) = match inputs {
            [qkv, mask @ ..] if packed => {
                let [batches, queries, all] = rows(qkv)?;
                let hidden = if all.is_multiple_of(3) { all / 3 } else { 0 };
                (AttentionSizes { batches, queries, keys: queries, hidden }, mask)
            }
            [q, k, v, mask @ ..] if !packed => {
                let ([batches, queries, hidden], [of, keys, width]) = (rows(q)?, rows(k)?);
                if k.shape != v.shape || [of, width] != [batches, hidden] {
                    return Err(wrong());
                }
                (AttentionSizes { batches, queries, keys, hidden }, mask)
            }
            _ => return Err(wrong()),
        };
        let AttentionSizes { batches, queries, keys, hidden } = sizes;
        let of_head = if heads > 0 && hidden.is_multiple_of(heads) { hidden / heads } else { 0 };
        let fits = (1..=MOST_OF_HEAD).contains(&of_head) && of_head.is_multiple_of(HEAD_STEP) && keys > 0;
        let scores = [batches, heads, queries, keys];
        let stretched = match mask {
            [] => true,
            [mask] => broadcast(&mask.shape, &scores).is_ok_and(|shape| shape == scores),
            _ => false,
        };
        if fits && stretched && inputs[0].element.is_half() { Ok(sizes) } else { Err(wrong()) }
    }
}

/// Returns the shape to which two are stretched: sizes of 1 become the other's.
pub(super) fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>, String> {
    let rank = left.len().max(right.len());
    let size =
        |shape: &[usize], at: usize| (at + shape.len()).checked_sub(rank).map_or(1, |index| shape[index]);
    let sizes = (0..rank).map(|at| match (size(left, at), size(right, at)) {
        (l, r) if l == r || r == 1 => Ok(l),
        (1, r) => Ok(r),
        _ => Err(format!("the shapes {left:?} and {right:?} can't be stretched to each other")),
    });
    sizes.collect()
}

fn exactly<'a, const N: usize>(inputs: &[&'a PlanType]) -> Result<[&'a PlanType; N], String> {
    inputs.try_into().map_err(|_| format!("it takes {N} inputs, not {}", inputs.len()))
}

fn same_elements(left: &PlanType, right: &PlanType) -> Result<(), String> {
    if left.element == right.element { Ok(()) } else { Err(format!("{left} meets {right}")) }
}

fn all_floats(inputs: &[&PlanType]) -> Result<(), String> {
    let Some(first) = inputs.first() else { return Ok(()) };
    match inputs.iter().find(|input| !input.element.is_float()) {
        Some(input) => Err(format!("it takes floats, not {input}")),
        None => inputs.iter().try_for_each(|input| same_elements(first, input)),
    }
}

fn expect(input: &PlanType, shape: &[usize]) -> Result<(), String> {
    if input.shape == shape { Ok(()) } else { Err(format!("it takes the shape {shape:?}, not {input}")) }
}

/// Returns the sizes N, C, H and W.
fn image(layout: ImageLayout, input: &PlanType) -> Result<[usize; 4], String> {
    match input.shape[..].try_into() {
        Ok(shape) if !input.shape.contains(&0) => Ok(layout.sizes(shape)),
        _ => Err(format!("it takes an image of 4 dimensions with elements, not {input}")),
    }
}

fn unary(function: UnaryFunction, inputs: &[&PlanType]) -> Result<PlanType, String> {
    let [x] = exactly(inputs)?;
    let takes = match function {
        UnaryFunction::Not => x.element == PlanElement::Bool,
        UnaryFunction::Abs | UnaryFunction::Neg | UnaryFunction::Sign => x.element != PlanElement::Bool,
        _ => x.element.is_float(),
    };
    if takes { Ok(x.clone()) } else { Err(format!("{function:?} does not take {x}")) }
}

fn convolution(
    layout: ImageLayout,
    window: &WindowSpec,
    groups: usize,
    inputs: &[&PlanType],
) -> Result<PlanType, String> {
    all_floats(inputs)?;
    let (x, kernels, bias) = match inputs {
        [x, kernels] => (x, kernels, None),
        [x, kernels, bias] => (x, kernels, Some(bias)),
        _ => return Err(format!("it takes 2 or 3 inputs, not {}", inputs.len())),
    };
    let ([n, c, h, w], [m, of_group, height, width]) = (image(layout, x)?, image(layout, kernels)?);
    let fits = groups > 0 && m.is_multiple_of(groups) && of_group.checked_mul(groups) == Some(c);
    if !fits {
        return Err(format!("kernels {kernels} in {groups} groups do not fit {x}"));
    }
    bias.map_or(Ok(()), |bias| expect(bias, &[m]))?;
    let [h, w] = window.outputs([h, w], [height, width])?;
    Ok(PlanType::new(x.element, layout.shape([n, m, h, w])))
}

fn matrix_product(transposed: [bool; 2], inputs: &[&PlanType]) -> Result<PlanType, String> {
    all_floats(inputs)?;
    let (left, right, bias) = match inputs {
        [left, right] => (left, right, None),
        [left, right, bias] => (left, right, Some(bias)),
        _ => return Err(format!("it takes 2 or 3 inputs, not {}", inputs.len())),
    };
    let matrix = |of: &PlanType, transposed: bool| match of.shape[..] {
        [ref before @ .., a, b] => Ok((before.to_vec(), if transposed { (b, a) } else { (a, b) })),
        _ => Err(format!("{of} is no matrix")),
    };
    let (before, (m, k)) = matrix(left, transposed[0])?;
    let (others, (of, n)) = matrix(right, transposed[1])?;
    if k != of {
        return Err(format!("{left} and {right} have no product"));
    }
    bias.map_or(Ok(()), |bias| expect(bias, &[n]))?;
    let mut shape = broadcast(&before, &others)?;
    shape.extend([m, n]);
    Ok(PlanType::new(left.element, shape))
}

fn concat(axis: usize, inputs: &[&PlanType]) -> Result<PlanType, String> {
    let [first, others @ ..] = inputs else { return Err("it has no inputs".to_owned()) };
    let mut result = (*first).clone();
    let without = |shape: &[usize]| -> Option<(usize, Vec<usize>)> {
        let size = *shape.get(axis)?;
        Some((size, [&shape[..axis], &shape[axis + 1..]].concat()))
    };
    let (mut total, rest) = without(&first.shape).ok_or("it has no such dimension")?;
    for other in others {
        same_elements(first, other)?;
        match without(&other.shape) {
            Some((size, of)) if of == rest => total = total.saturating_add(size),
            _ => return Err(format!("{first} and {other} differ beyond dimension {axis}")),
        }
    }
    result.shape[axis] = total;
    Ok(result)
}

/// Checks that a strided copy reads within its input and writes its whole output.
fn check_walk(
    x: &PlanType,
    walked: &[usize],
    strides: &[i64],
    offset: usize,
    result: &PlanType,
) -> Result<(), String> {
    let wrong = || format!("a copy of {walked:?} by {strides:?} from {offset} does not fit {x}");
    let elements = PlanType::new(x.element, walked).elements().ok_or_else(wrong)?;
    if walked.len() != strides.len() || result.elements() != Some(elements) {
        return Err(wrong());
    }
    if elements == 0 {
        return Ok(());
    }
    let mut range = [i64::try_from(offset).map_err(|_| wrong())?; 2];
    for (&size, &stride) in walked.iter().zip(strides) {
        let reach = i64::try_from(size - 1).ok().and_then(|steps| steps.checked_mul(stride));
        let end = &mut range[usize::from(stride > 0)];
        *end = reach.and_then(|reach| end.checked_add(reach)).ok_or_else(wrong)?;
    }
    let inside = range[0] >= 0 && usize::try_from(range[1]).ok() < x.elements();
    if inside { Ok(()) } else { Err(wrong()) }
}

fn pad(begins: &[i64], ends: &[i64], inputs: &[&PlanType]) -> Result<PlanType, String> {
    let [x] = exactly(inputs)?;
    let wrong = || format!("pads of {begins:?} and {ends:?} do not fit {x}");
    if begins.len() != x.shape.len() || ends.len() != x.shape.len() || x.elements().is_none() {
        return Err(wrong());
    }
    let limit = MAX_STEP as i64;
    let mut shape = Vec::new();
    for ((&begin, &end), &size) in begins.iter().zip(ends).zip(&x.shape) {
        if size == 0 || [begin, end].iter().any(|pad| !(-limit..limit).contains(pad)) {
            return Err(wrong());
        }
        shape.push(usize::try_from(size as i64 + begin + end).map_err(|_| wrong())?);
    }
    Ok(PlanType::new(x.element, shape))
}
