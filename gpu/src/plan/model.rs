//! A plan as a model that a thread of the host computes, by the interpreter: what tests compare
//! with ONNX Runtime, row by row and in batches.

use super::compile::compile_source;
use super::interpreter::PlanMemory;
use super::program::{Plan, PlanPort};
use crate::host::{ComputeThread, HostGraph, HostModel, LoadError, RunError};
use crate::import::{self, InputDefaults, SizedFile};
use crate::signature::Signature;
use std::sync::Arc;

/// A plan with the memory of one batch.
pub struct PlanModel {
    graph: Arc<PlanGraph>,
    memory: PlanMemory,
    import_note: Option<String>,
}

/// The part of a model that a run only reads.
struct PlanGraph {
    plan: Plan,
    signature: Signature,
    defaults: InputDefaults,
}

impl PlanModel {
    /// Compiles an ONNX file for batches of at most `max_batch` rows. Where the import makes a
    /// batch dynamic, rows are compared with each alone.
    ///
    /// # Errors
    /// Those of [`compile()`](super::compile()).
    pub fn load<'a>(file: impl Into<SizedFile<'a>>, max_batch: usize) -> Result<PlanModel, LoadError> {
        let file = file.into();
        let (mut model, note) = import::load(file, max_batch, |source, max_batch| {
            let plan = compile_source(source, max_batch)?.plan;
            Ok(PlanModel::of_checked(plan, file.defaults.clone()))
        })?;
        model.import_note = note;
        Ok(model)
    }

    /// Makes a model of a plan.
    ///
    /// # Errors
    /// If [`Plan::check`] refuses it.
    pub fn new(plan: Plan) -> Result<PlanModel, String> {
        plan.check()?;
        Ok(PlanModel::of_checked(plan, InputDefaults::new()))
    }

    fn of_checked(plan: Plan, defaults: InputDefaults) -> PlanModel {
        let (memory, signature) = (PlanMemory::new(&plan), plan.signature());
        PlanModel { graph: Arc::new(PlanGraph { plan, signature, defaults }), memory, import_note: None }
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.graph.plan
    }
}

/// Returns the first byte of a row, and the bytes that it has, in the region of a port.
fn row_of(port: &PlanPort, row: usize) -> (usize, usize) {
    let bytes = port.range(1).map_or(0, |range| range.len());
    (port.offset + row * bytes, bytes)
}

impl HostModel for PlanModel {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn max_batch(&self) -> usize {
        self.graph.plan.max_batch()
    }

    fn weights_bytes(&self) -> u64 {
        self.graph.plan.weights.as_bytes().len() as u64
    }

    fn memory_bytes(&self) -> u64 {
        let plan = &self.graph.plan;
        self.weights_bytes() + (plan.input_bytes + plan.output_bytes + plan.workspace_bytes()) as u64
    }

    /// Does nothing: the interpreter computes on the calling thread.
    fn compute_on(&mut self, _: &ComputeThread) {}

    fn stage(&mut self, row: usize, input: &[u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        let PlanGraph { plan, signature, .. } = &*self.graph;
        for (at, port) in plan.inputs.iter().enumerate() {
            let (start, bytes) = row_of(port, row);
            self.memory.inputs_mut()[start..start + bytes].copy_from_slice(&input[signature.input_range(at)]);
        }
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let max_batch = self.max_batch();
        if rows == 0 || rows > max_batch {
            return Err(RunError::Rows { rows, max_batch });
        }
        self.memory.run(&self.graph.plan, rows).map_err(|reason| RunError::Failed { reason })
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        let PlanGraph { plan, signature, .. } = &*self.graph;
        for (at, port) in plan.outputs.iter().enumerate() {
            let (start, bytes) = row_of(port, row);
            output[signature.output_range(at)].copy_from_slice(&self.memory.outputs()[start..start + bytes]);
        }
    }

    fn defaults(&self) -> &InputDefaults {
        &self.graph.defaults
    }

    fn import_note(&self) -> Option<&str> {
        self.import_note.as_deref()
    }

    fn graph(&self) -> Arc<dyn HostGraph> {
        Arc::clone(&self.graph) as Arc<dyn HostGraph>
    }
}

impl HostGraph for PlanGraph {
    fn make(self: Arc<PlanGraph>, _: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        let memory = PlanMemory::new(&self.plan);
        Ok(Box::new(PlanModel { graph: self, memory, import_note: None }))
    }
}
