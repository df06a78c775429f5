//! A model whose weights lie in two pages, for tests of LOAD and UNLOAD.

use crate::model_rows::run_rows;
use symphony_gpu::CudaModel;
use symphony_gpu::plan::{
    AlignedBytes, BatchPlan, BinaryFunction, Launch, Operand, Operation, Plan, PlanElement, PlanPort,
    PlanPrecision, PlanRegion, PlanType,
};

pub(crate) const PAGE: usize = 16 << 20;

/// The number of floats of a row, and of the weights that are used.
const FLOATS: usize = 128;

/// Where the weights are that are used: across the end of the first page.
const WEIGHTS_AT: usize = PAGE - 256;

/// A model that adds this number to each float of a row. Its weights take two pages.
pub(crate) fn adding(number: f32) -> Plan {
    let row = PlanType { element: PlanElement::F32, shape: vec![FLOATS] };
    let batch = PlanType { element: PlanElement::F32, shape: vec![1, FLOATS] };
    let at = |region, offset, of: &PlanType| Operand { region, offset, of: of.clone() };
    let launch = Launch {
        operation: Operation::Binary(BinaryFunction::Add),
        inputs: vec![at(PlanRegion::Inputs, 0, &batch), at(PlanRegion::Weights, WEIGHTS_AT, &row)],
        output: at(PlanRegion::Outputs, 0, &batch),
        activation: None,
        nodes: vec!["add".to_owned()],
    };
    let mut weights = AlignedBytes::zeroed(PAGE + 256);
    let used = &mut weights.as_bytes_mut()[WEIGHTS_AT..][..4 * FLOATS];
    used.copy_from_slice(&[number; FLOATS].map(f32::to_le_bytes).concat());
    let port = |name: &str| PlanPort { name: name.to_owned(), row: row.clone(), offset: 0 };
    Plan {
        precision: PlanPrecision::Fp32,
        input_bytes: 4 * FLOATS,
        output_bytes: 4 * FLOATS,
        inputs: vec![port("x")],
        outputs: vec![port("y")],
        batches: vec![BatchPlan { rows: 1, workspace_bytes: 0, launches: vec![launch] }],
        weights,
        kernels: Vec::new(),
    }
}

/// Runs a row of ones, and returns whether every float of the answer is this one.
pub(crate) fn gives(model: &mut CudaModel, expected: f32) -> bool {
    let row = [1f32; FLOATS].map(f32::to_le_bytes).concat();
    let answer = run_rows(model, &[row]);
    answer[0] == [expected; FLOATS].map(f32::to_le_bytes).concat()
}
