//! Plans of one operation each, in the forms that its kernels tell apart, with random inputs: what
//! tests of kernels run.

use half::{bf16, f16};
use symphony_gpu::plan::PlanElement::{Bf16, Bool, F16, F32, I32, I64};
use symphony_gpu::plan::{
    AlignedBytes, BatchPlan, BinaryFunction, ImageLayout, Interpolation, Launch, Operand, Operation, PadFill,
    Plan, PlanElement, PlanPort, PlanPrecision, PlanRegion, PlanType, PoolFunction, ReduceFunction,
    ResizeCoordinates, UnaryFunction, WindowSpec,
};

pub(crate) fn of(element: PlanElement, shape: &[usize]) -> PlanType {
    PlanType { element, shape: shape.to_vec() }
}

/// A plan of one operation on inputs of these types, for one row.
pub(crate) fn plan_of(operation: Operation, activation: Option<UnaryFunction>, inputs: &[PlanType]) -> Plan {
    let types: Vec<&PlanType> = inputs.iter().collect();
    let output = operation.result(&types).unwrap_or_else(|why| panic!("{operation:?}: {why}"));
    let is_of = |of: &PlanPrecision| inputs.iter().any(|input| input.element == of.element());
    let precision = [PlanPrecision::Fp16, PlanPrecision::Bf16].into_iter().find(is_of);
    let mut end = 0;
    let mut port = |name: String, row: &PlanType| {
        let offset = usize::next_multiple_of(end, 256);
        end = offset + row.bytes().unwrap();
        PlanPort { name, row: row.clone(), offset }
    };
    let ports: Vec<PlanPort> = inputs.iter().enumerate().map(|(at, of)| port(format!("x{at}"), of)).collect();
    let operand =
        |port: &PlanPort| Operand { region: PlanRegion::Inputs, offset: port.offset, of: port.row.clone() };
    let launch = Launch {
        operation,
        inputs: ports.iter().map(operand).collect(),
        output: Operand { region: PlanRegion::Outputs, offset: 0, of: output.clone() },
        activation,
        nodes: vec!["node".to_owned()],
    };
    Plan {
        precision: precision.unwrap_or_default(),
        input_bytes: end,
        output_bytes: output.bytes().unwrap(),
        outputs: vec![PlanPort { name: "y".to_owned(), row: output, offset: 0 }],
        inputs: ports,
        batches: vec![BatchPlan { rows: 1, workspace_bytes: 0, launches: vec![launch] }],
        weights: AlignedBytes::default(),
        kernels: Vec::new(),
    }
}

fn window(strides: [usize; 2], dilations: [usize; 2], pads: [usize; 4], round_up: bool) -> WindowSpec {
    WindowSpec { strides, dilations, pads, round_up }
}

/// Each operation in the forms that its kernel tells apart.
fn operations(layout: ImageLayout) -> Vec<(Operation, Vec<PlanType>)> {
    let f32s = |shapes: &[&[usize]]| shapes.iter().map(|shape| of(F32, shape)).collect::<Vec<_>>();
    let image = || f32s(&[&layout.shape([2, 8, 9, 7])]);
    let mut all = vec![
        (Operation::Unary(UnaryFunction::Gelu), f32s(&[&[3, 5]])),
        (Operation::Unary(UnaryFunction::Clip { least: -0.5, most: 0.25 }), f32s(&[&[300, 3]])),
        (Operation::Unary(UnaryFunction::Neg), vec![of(I64, &[4])]),
        (Operation::Unary(UnaryFunction::Not), vec![of(Bool, &[4])]),
        (Operation::Select, vec![of(Bool, &[3, 1]), of(I64, &[1, 4]), of(I64, &[2, 3, 4])]),
        (Operation::Affine { axis: 1 }, f32s(&[&[2, 6, 9, 7], &[6], &[6]])),
        (Operation::Softmax { axis: 1, logarithm: false }, f32s(&[&[4, 5, 3]])),
        (Operation::Softmax { axis: 2, logarithm: true }, f32s(&[&[4, 5, 3]])),
        (Operation::LayerNorm { axis: 1, epsilon: 1e-5, adds: false }, f32s(&[&[4, 5, 3], &[5, 3], &[5, 3]])),
        (Operation::LayerNorm { axis: 2, epsilon: 1e-3, adds: false }, f32s(&[&[4, 5, 3], &[3]])),
        (
            Operation::LayerNorm { axis: 1, epsilon: 1e-5, adds: true },
            f32s(&[&[3, 24], &[24], &[24], &[3, 24]]),
        ),
        (
            Operation::LayerNorm { axis: 1, epsilon: 1e-5, adds: true },
            f32s(&[&[2, 1200], &[1200], &[2, 1200]]),
        ),
        (Operation::Softmax { axis: 1, logarithm: false }, f32s(&[&[9, 136]])),
        (Operation::LocalResponseNorm { axis: 1, size: 3, alpha: 0.1, beta: 0.75, bias: 1.0 }, image()),
        (Operation::Concat { axis: 1 }, f32s(&[&[2, 3, 4], &[2, 0, 4], &[2, 1, 4], &[2, 5, 4]])),
        (Operation::Softmax { axis: 1, logarithm: true }, f32s(&[&[2, 1500]])),
        (Operation::LayerNorm { axis: 1, epsilon: 1e-5, adds: false }, f32s(&[&[2, 1200], &[1200]])),
        (Operation::Affine { axis: 2 }, f32s(&[&[2, 3, 16], &[16], &[16]])),
        (Operation::Concat { axis: 0 }, vec![of(Bool, &[3]), of(Bool, &[5])]),
        (Operation::Gather { axis: 1 }, vec![of(F32, &[2, 3, 4]), of(I64, &[2, 2])]),
        (Operation::Gather { axis: 0 }, vec![of(Bool, &[3, 5]), of(I32, &[4])]),
    ];
    for to in [F32, I64, I32, Bool] {
        all.extend([F32, I64, I32, Bool].map(|from| (Operation::Cast { to }, vec![of(from, &[7])])));
    }
    for function in [BinaryFunction::Add, BinaryFunction::LessOrEqual, BinaryFunction::Prelu] {
        all.push((Operation::Binary(function), f32s(&[&[2, 1, 4], &[3, 1]])));
        all.push((Operation::Binary(function), f32s(&[&[2, 3, 16], &[16]])));
        all.push((Operation::Binary(function), f32s(&[&[1], &[5, 5]])));
        all.push((Operation::Binary(function), f32s(&[&[2, 3, 4], &[3, 1]])));
        all.push((Operation::Binary(function), f32s(&[&[2, 1, 1, 8], &[2, 3, 2, 8]])));
        all.push((Operation::Binary(function), vec![of(I32, &[4]), of(I32, &[3, 4])]));
        all.push((Operation::Binary(function), vec![of(I64, &[1]), of(I64, &[3, 4])]));
    }
    all.push((Operation::Binary(BinaryFunction::Xor), vec![of(Bool, &[2, 1]), of(Bool, &[1, 3])]));
    for (window, groups, channels, weights) in [
        (window([1, 1], [1, 1], [1, 1, 1, 1], false), 1, 6, [20, 6, 3, 3]),
        (window([2, 1], [1, 2], [1, 2, 1, 2], false), 1, 24, [70, 24, 3, 3]),
        (window([1, 1], [1, 1], [0, 0, 0, 0], false), 2, 16, [34, 8, 1, 1]),
        (window([1, 2], [1, 1], [1, 1, 1, 1], false), 16, 16, [16, 1, 3, 3]),
        (window([2, 3], [1, 2], [0, 2, 1, 0], false), 2, 6, [40, 3, 2, 3]),
        (window([2, 1], [2, 1], [3, 0, 0, 2], false), 6, 6, [12, 1, 3, 1]),
        (window([2, 2], [1, 1], [0, 1, 1, 0], false), 8, 8, [8, 1, 3, 3]),
    ] {
        let (image, kernels) = (layout.shape([2, channels, 9, 7]), layout.shape(weights));
        for inputs in [vec![&image[..], &kernels], vec![&image[..], &kernels, &weights[..1]]] {
            all.push((Operation::Convolution { layout, window, groups }, f32s(&inputs)));
        }
    }
    for (transposed, shapes) in [
        ([false, false], [&[3, 4, 5][..], &[5, 6]]),
        ([true, false], [&[2, 1, 5, 4], &[3, 5, 6]]),
        ([false, true], [&[4, 5], &[2, 6, 5]]),
        ([true, true], [&[5, 4], &[6, 5]]),
        ([false, false], [&[2, 35, 72], &[72, 136]]),
        ([false, true], [&[2, 70, 40], &[2, 72, 40]]),
        ([true, false], [&[2, 40, 72], &[1, 40, 24]]),
        ([true, true], [&[97, 66], &[67, 97]]),
    ] {
        let operation = Operation::MatrixProduct { transposed, alpha: 0.5 };
        all.push((operation.clone(), f32s(&shapes)));
        let columns = shapes[1][shapes[1].len() - if transposed[1] { 2 } else { 1 }];
        all.push((operation, f32s(&[shapes[0], shapes[1], &[columns]])));
    }
    for function in [PoolFunction::Max, PoolFunction::Mean, PoolFunction::MeanWithPads] {
        for window in
            [window([2, 2], [1, 1], [0, 0, 0, 0], true), window([1, 2], [2, 1], [1, 0, 1, 1], false)]
        {
            all.push((Operation::Pool { layout, function, size: [3, 2], window }, image()));
        }
    }
    for (function, axes) in [
        (ReduceFunction::Mean, vec![2, 3]),
        (ReduceFunction::Max, vec![0]),
        (ReduceFunction::LogSumExp, vec![1, 3]),
        (ReduceFunction::Sum, vec![0, 1, 2, 3]),
        (ReduceFunction::L2, vec![]),
    ] {
        all.push((Operation::Reduce { function, axes: axes.clone() }, image()));
        all.push((Operation::Reduce { function, axes: axes.clone() }, f32s(&[&[1, 4, 1, 3]])));
        all.push((Operation::Reduce { function, axes }, vec![of(I64, &[2, 3, 1, 4])]));
    }
    for element in [F32, I64, Bool] {
        // Rows of neighbours, which are copied in pieces.
        let (walked, strides) = (vec![3, 2, 16], vec![16, 48, 1]);
        let operation = Operation::StridedCopy { walked, strides, offset: 16, shape: vec![6, 16] };
        all.push((operation, vec![of(element, &[7, 16])]));
        let (walked, strides) = (vec![4, 2, 3], vec![1, 12, -4]);
        let operation = Operation::StridedCopy { walked, strides, offset: 8, shape: vec![8, 3] };
        all.push((operation, vec![of(element, &[2, 3, 4])]));
        for fill in [PadFill::Constant(1.0), PadFill::Edge, PadFill::Reflect] {
            let (begins, ends) = (vec![1, -1, 2], vec![0, 2, -1]);
            all.push((Operation::Pad { begins, ends, fill }, vec![of(element, &[2, 3, 4])]));
        }
    }
    for (interpolation, coordinates) in [
        (Interpolation::NearestDown, ResizeCoordinates::HalfPixel),
        (Interpolation::NearestUp, ResizeCoordinates::AlignCorners),
        (Interpolation::Floor, ResizeCoordinates::Asymmetric),
        (Interpolation::Ceil, ResizeCoordinates::PytorchHalfPixel),
        (Interpolation::Linear, ResizeCoordinates::HalfPixel),
    ] {
        let (size, scales) = ([12, 5], [12.0 / 9.0, 5.0 / 7.0]);
        all.push((Operation::Resize { layout, size, scales, interpolation, coordinates }, image()));
    }
    all
}

/// Random bytes of a row's inputs, small whole numbers and floats around 0.
pub(crate) fn random_row(plan: &Plan, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let signature = plan.signature();
    let mut row = vec![0; signature.input_bytes()];
    for (at, port) in plan.inputs.iter().enumerate() {
        let bytes = &mut row[signature.input_range(at)];
        bytes.chunks_exact_mut(port.row.element.bytes()).for_each(|to| match port.row.element {
            F32 => to.copy_from_slice(&(rng.f32() * 4.0 - 2.0).to_le_bytes()),
            F16 => to.copy_from_slice(&f16::from_f32(rng.f32() * 4.0 - 2.0).to_le_bytes()),
            Bf16 => to.copy_from_slice(&bf16::from_f32(rng.f32() * 4.0 - 2.0).to_le_bytes()),
            I64 => to.copy_from_slice(&rng.i64(-2..2).to_le_bytes()),
            I32 => to.copy_from_slice(&rng.i32(-2..2).to_le_bytes()),
            Bool => to[0] = u8::from(rng.bool()),
        });
    }
    row
}

/// Random inputs whose whole numbers are indices of any table.
pub(crate) fn random_indices(plan: &Plan, seed: u64) -> Vec<u8> {
    let mut row = random_row(plan, seed);
    let signature = plan.signature();
    for (at, port) in plan.inputs.iter().enumerate() {
        if matches!(port.row.element, I64 | I32) {
            row[signature.input_range(at)].fill(0);
        }
    }
    row
}

/// An operation with the types of its inputs, and an activation.
#[derive(Clone, Debug)]
pub(crate) struct OperationCase {
    pub(crate) operation: Operation,
    pub(crate) activation: Option<UnaryFunction>,
    pub(crate) inputs: Vec<PlanType>,
}

/// Returns every operation in the forms that its kernels tell apart: in each precision, in both
/// layouts, with and without an activation.
pub(crate) fn operation_cases() -> Vec<OperationCase> {
    let mut cases: Vec<OperationCase> = Vec::new();
    for layout in [ImageLayout::ChannelsFirst, ImageLayout::ChannelsLast] {
        for precision in PlanPrecision::ALL {
            for (operation, inputs) in operations(layout) {
                let cast = |of: PlanElement| if of == F32 { precision.element() } else { of };
                let inputs: Vec<PlanType> =
                    inputs.iter().map(|of| PlanType { element: cast(of.element), ..of.clone() }).collect();
                let operation = match operation {
                    Operation::Cast { to } => Operation::Cast { to: cast(to) },
                    other => other,
                };
                let types: Vec<&PlanType> = inputs.iter().collect();
                let is_float = operation.result(&types).is_ok_and(|of| of.element.is_float());
                let activated = is_float && operation.takes_activation();
                let activations =
                    [None, Some(UnaryFunction::LeakyRelu { alpha: 0.5 }), Some(UnaryFunction::Relu)];
                for activation in activations.into_iter().take(if activated { 3 } else { 1 }) {
                    let case =
                        OperationCase { operation: operation.clone(), activation, inputs: inputs.clone() };
                    let is_known = |known: &OperationCase| format!("{known:?}") == format!("{case:?}");
                    if layout == ImageLayout::ChannelsFirst || !cases.iter().any(is_known) {
                        cases.push(case);
                    }
                }
            }
        }
    }
    for element in [F16, Bf16] {
        for (heads, packed, shapes) in [
            (2, true, &[&[2, 5, 48][..]][..]),
            (1, true, &[&[1, 130, 192], &[1, 1, 1, 130]]),
            (3, false, &[&[2, 19, 48], &[2, 70, 48], &[2, 70, 48], &[2, 1, 19, 70]]),
            (1, false, &[&[1, 140, 104], &[1, 33, 104], &[1, 33, 104]]),
            (2, false, &[&[1, 3, 256], &[1, 65, 256], &[1, 65, 256], &[65]]),
        ] {
            let operation = Operation::Attention { heads, scale: 0.25, packed };
            let inputs = shapes.iter().map(|shape| of(element, shape)).collect();
            cases.push(OperationCase { operation, activation: None, inputs });
        }
    }
    for (from, to) in [(F16, F32), (Bf16, F32), (F32, F16), (F32, Bf16), (F16, Bf16), (Bf16, F16)] {
        let inputs = vec![of(from, &[19])];
        cases.push(OperationCase { operation: Operation::Cast { to }, activation: None, inputs });
    }
    cases
}
