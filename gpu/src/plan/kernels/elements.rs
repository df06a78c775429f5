//! Kernels that compute each element by itself.

use super::super::element::PlanElement;
use super::super::operation::{BinaryFunction, UnaryFunction};
use super::operand::{KernelInput, KernelOutput, around};
use super::walk::{runs, stretched_strides};
use bytemuck::Pod;
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

pub(super) fn unary(function: UnaryFunction, x: KernelInput<'_>, output: &mut KernelOutput<'_>) {
    match x.of.element {
        PlanElement::I64 => map(x, output, |x: i64| of_whole(function, x)),
        PlanElement::I32 => map(x, output, |x: i32| of_whole(function, i64::from(x)) as i32),
        PlanElement::Bool => map(x, output, |x: u8| u8::from(x == 0)),
        // Halves were widened.
        _ => map(x, output, |x: f32| of_float(function, x)),
    }
}

fn map<A: Pod, B: Pod>(x: KernelInput<'_>, output: &mut KernelOutput<'_>, function: impl Fn(A) -> B) {
    output.elements::<B>().iter_mut().zip(x.elements::<A>()).for_each(|(to, &x)| *to = function(x));
}

fn of_whole(function: UnaryFunction, x: i64) -> i64 {
    match function {
        UnaryFunction::Abs => x.wrapping_abs(),
        UnaryFunction::Neg => x.wrapping_neg(),
        _ => x.signum(),
    }
}

pub(super) fn of_float(function: UnaryFunction, x: f32) -> f32 {
    use UnaryFunction::*;
    match function {
        Abs => x.abs(),
        Acos => x.acos(),
        Acosh => x.acosh(),
        Asin => x.asin(),
        Asinh => x.asinh(),
        Atan => x.atan(),
        Atanh => x.atanh(),
        Ceil => x.ceil(),
        Celu { alpha } => x.max(0.0) + (alpha * (x / alpha).exp_m1()).min(0.0),
        // Unlike f32::clamp it takes bounds in any order, of which ONNX puts the upper one last.
        Clip { least, most } => x.max(least).min(most),
        Cos => x.cos(),
        Cosh => x.cosh(),
        Elu { alpha } => {
            if x < 0.0 {
                alpha * x.exp_m1()
            } else {
                x
            }
        }
        Erf => erf(x),
        Exp => x.exp(),
        Floor => x.floor(),
        Gelu => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
        GeluTanh => 0.5 * x * (1.0 + (FRAC_2_SQRT_PI / SQRT_2 * (x + 0.044_715 * x * x * x)).tanh()),
        HardSigmoid { alpha, beta } => (alpha * x + beta).clamp(0.0, 1.0),
        HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        LeakyRelu { alpha } => {
            if x < 0.0 {
                alpha * x
            } else {
                x
            }
        }
        Log => x.ln(),
        Mish => x * softplus(x).tanh(),
        Neg => -x,
        Not => f32::from(u8::from(x == 0.0)),
        Reciprocal => 1.0 / x,
        // NaN stays NaN, unlike in f32::max.
        Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Round => x.round_ties_even(),
        Selu { alpha, gamma } => gamma * if x > 0.0 { x } else { alpha * x.exp_m1() },
        Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Sign => {
            if x == 0.0 {
                0.0
            } else {
                x.signum()
            }
        }
        Sin => x.sin(),
        Sinh => x.sinh(),
        Softplus => softplus(x),
        Softsign => x / (1.0 + x.abs()),
        Sqrt => x.sqrt(),
        Tan => x.tan(),
        Tanh => x.tanh(),
        ThresholdedRelu { alpha } => {
            if x > alpha {
                x
            } else {
                0.0
            }
        }
    }
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The error function: its Taylor series near 0, a continued fraction further out (Abramowitz and
/// Stegun, 7.1.6 and 7.1.14). Both are exact to the last digits of f32.
fn erf(x: f32) -> f32 {
    const SERIES_BELOW: f64 = 2.5;
    const TERMS: i32 = 40;
    let a = f64::from(x).abs();
    let square = a * a;
    let scale = (-square).exp() * f64::from(FRAC_2_SQRT_PI);
    let value = if a < SERIES_BELOW {
        let step = |(term, sum): (f64, f64), n: i32| {
            let term = term * 2.0 * square / f64::from(2 * n + 1);
            (term, sum + term)
        };
        std::f64::consts::FRAC_2_SQRT_PI * (-square).exp() * (1..TERMS).fold((a, a), step).1
    } else {
        let fraction = (1..TERMS).rev().fold(a, |below, n| a + f64::from(n) / 2.0 / below);
        1.0 - scale / 2.0 / fraction
    };
    if x.is_nan() { x } else { (value as f32).copysign(x) }
}

pub(super) fn cast(x: KernelInput<'_>, output: &mut KernelOutput<'_>) {
    use PlanElement::{Bool, F32, I32, I64};
    // `as` rounds floats to zero and takes the nearest number in range.
    match (x.of.element, output.of.element) {
        (F32, I64) => map(x, output, |x: f32| x as i64),
        (F32, I32) => map(x, output, |x: f32| x as i32),
        (F32, Bool) => map(x, output, |x: f32| u8::from(x != 0.0)),
        (I64, F32) => map(x, output, |x: i64| x as f32),
        (I64, I32) => map(x, output, |x: i64| x as i32),
        (I64, Bool) => map(x, output, |x: i64| u8::from(x != 0)),
        (I32, F32) => map(x, output, |x: i32| x as f32),
        (I32, I64) => map(x, output, |x: i32| i64::from(x)),
        (I32, Bool) => map(x, output, |x: i32| u8::from(x != 0)),
        (Bool, F32) => map(x, output, |x: u8| f32::from(u8::from(x != 0))),
        (Bool, I64) => map(x, output, |x: u8| i64::from(x != 0)),
        (Bool, I32) => map(x, output, |x: u8| i32::from(x != 0)),
        // Of the same type: halves were widened.
        _ => output.bytes.copy_from_slice(x.bytes),
    }
}

pub(super) fn binary(
    function: BinaryFunction,
    left: KernelInput<'_>,
    right: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) -> Result<(), String> {
    use BinaryFunction::{Div, Mod};
    let whole = |x: KernelInput<'_>| match x.of.element {
        PlanElement::I64 => x.elements::<i64>().contains(&0),
        PlanElement::I32 => x.elements::<i32>().contains(&0),
        _ => false,
    };
    if matches!(function, Div | Mod) && whole(right) {
        return Err("a whole number is divided by 0".to_owned());
    }
    match (left.of.element, function.is_comparison()) {
        (PlanElement::I64, true) => pairs(left, right, output, |a: i64, b| compare(function, a, b)),
        (PlanElement::I32, true) => pairs(left, right, output, |a: i32, b| compare(function, a, b)),
        (PlanElement::I64, false) => pairs(left, right, output, |a, b| whole_pair(function, a, b)),
        (PlanElement::I32, false) => {
            pairs(left, right, output, |a: i32, b: i32| {
                whole_pair(function, i64::from(a), i64::from(b)) as i32
            });
        }
        (PlanElement::Bool, _) => pairs(left, right, output, |a: u8, b: u8| match function {
            BinaryFunction::And => a & b,
            BinaryFunction::Or => a | b,
            _ => a ^ b,
        }),
        // Halves were widened.
        (_, true) => pairs(left, right, output, |a: f32, b| compare(function, a, b)),
        (_, false) => float_pairs(function, left, right, output),
    }
    Ok(())
}

/// Computes floats; the frequent functions have a loop of their own.
fn float_pairs(
    function: BinaryFunction,
    left: KernelInput<'_>,
    right: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    use BinaryFunction::*;
    match function {
        Add => pairs(left, right, output, |a: f32, b: f32| a + b),
        Sub => pairs(left, right, output, |a: f32, b: f32| a - b),
        Mul => pairs(left, right, output, |a: f32, b: f32| a * b),
        Div => pairs(left, right, output, |a: f32, b: f32| a / b),
        Pow => pairs(left, right, output, f32::powf),
        Max => pairs(left, right, output, f32::max),
        Min => pairs(left, right, output, f32::min),
        Mod => pairs(left, right, output, |a: f32, b: f32| a % b),
        _ => pairs(left, right, output, |a: f32, b: f32| if a < 0.0 { a * b } else { a }),
    }
}

fn compare<T: PartialOrd>(function: BinaryFunction, a: T, b: T) -> u8 {
    u8::from(match function {
        BinaryFunction::Equal => a == b,
        BinaryFunction::Greater => a > b,
        BinaryFunction::GreaterOrEqual => a >= b,
        BinaryFunction::Less => a < b,
        _ => a <= b,
    })
}

fn whole_pair(function: BinaryFunction, a: i64, b: i64) -> i64 {
    use BinaryFunction::*;
    match function {
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        Mul => a.wrapping_mul(b),
        Div => a.wrapping_div(b),
        Pow => u32::try_from(b).map_or(0, |b| a.wrapping_pow(b)),
        Max => a.max(b),
        Min => a.min(b),
        // The result has the divisor's sign.
        Mod => match a.wrapping_rem(b) {
            rest if rest != 0 && (rest < 0) != (b < 0) => rest + b,
            rest => rest,
        },
        _ => {
            if a < 0 {
                a.wrapping_mul(b)
            } else {
                a
            }
        }
    }
}

fn pairs<A: Pod, B: Pod>(
    left: KernelInput<'_>,
    right: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
    function: impl Fn(A, A) -> B,
) {
    let shape = &output.of.shape;
    let strides = [left, right].map(|of| stretched_strides(of.shape(), shape));
    let (length, step) = inner(shape, [&strides[0], &strides[1]]);
    let (a, b) = (left.elements::<A>(), right.elements::<A>());
    let mut rows = output.elements::<B>().chunks_exact_mut(length);
    runs(shape, [&strides[0], &strides[1]], [0, 0], |[l, r]| {
        let (l, r) = (&a[l as usize..], &b[r as usize..]);
        let row = rows.next().into_iter().flatten();
        match step {
            [0, _] => row.zip(r).for_each(|(to, &r)| *to = function(l[0], r)),
            [_, 0] => row.zip(l).for_each(|(to, &l)| *to = function(l, r[0])),
            _ => row.zip(l.iter().zip(r)).for_each(|(to, (&l, &r))| *to = function(l, r)),
        }
    });
}

/// Returns the length of the last dimension and the distances of neighbours along it.
fn inner<const N: usize>(shape: &[usize], strides: [&[i64]; N]) -> (usize, [i64; N]) {
    (shape.last().map_or(1, |&size| size), strides.map(|strides| strides.last().map_or(1, |&step| step)))
}

pub(super) fn select(
    condition: KernelInput<'_>,
    left: KernelInput<'_>,
    right: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    match left.of.element.bytes() {
        1 => select_sized::<u8>(condition, left, right, output),
        2 => select_sized::<u16>(condition, left, right, output),
        4 => select_sized::<u32>(condition, left, right, output),
        _ => select_sized::<u64>(condition, left, right, output),
    }
}

fn select_sized<T: Pod>(
    condition: KernelInput<'_>,
    left: KernelInput<'_>,
    right: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let shape = &output.of.shape;
    let strides = [condition, left, right].map(|of| stretched_strides(of.shape(), shape));
    let strides = [&strides[0][..], &strides[1], &strides[2]];
    let (length, step) = inner(shape, strides);
    let (c, a, b) = (condition.elements::<u8>(), left.elements::<T>(), right.elements::<T>());
    let mut rows = output.elements::<T>().chunks_exact_mut(length);
    runs(shape, strides, [0; 3], |at| {
        for (index, to) in rows.next().into_iter().flatten().enumerate() {
            let place = |of: usize| (at[of] + step[of] * index as i64) as usize;
            *to = if c[place(0)] != 0 { a[place(1)] } else { b[place(2)] };
        }
    });
}

pub(super) fn affine(
    axis: usize,
    x: KernelInput<'_>,
    scale: KernelInput<'_>,
    shift: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let [_, channels, inner] = around(x.shape(), axis);
    let (scale, shift) = (scale.elements::<f32>(), shift.elements::<f32>());
    let (from, to) =
        (x.elements::<f32>().chunks_exact(inner), output.elements::<f32>().chunks_exact_mut(inner));
    for (at, (from, to)) in from.zip(to).enumerate() {
        let (scale, shift) = (scale[at % channels], shift[at % channels]);
        to.iter_mut().zip(from).for_each(|(to, x)| *to = x * scale + shift);
    }
}
