//! The rows of a model on a GPU, in memory of ours: pinned memory of the host, and device memory to
//! which each batch size is bound once, as a graph has its addresses. Copies and runs follow each
//! other on the session's stream.

use super::buffer::element_type;
use super::call::{caught, failed};
use super::provider::{DeviceTensor, ProviderGpu, TensorRole, bind};
use super::session::PlacedSession;
use crate::cuda::driver::{DevicePointer, Event, Pinned, Stream};
use crate::cuda::{DriverResult, LOAD_PATIENCE, OpenDevice, Owned};
use crate::host::RunError;
use crate::signature::{DataType, Signature, TensorSpec};
use ort::session::{IoBinding, RunOptions, Session};
use std::sync::Arc;

/// What the place of each tensor is a multiple of, bytes.
const ALIGNMENT: usize = 256;

/// The rows of a full batch. See the module's description.
pub(super) struct DeviceRows {
    /// The tensors that each batch size reads and writes. They go before the memory.
    bindings: Vec<IoBinding>,
    stream: Stream,
    device: Arc<OpenDevice>,
    memory: Owned<DevicePointer>,
    pinned: Owned<Pinned>,
    /// Reached when the outputs have left.
    left: Owned<Event>,
    inputs: Vec<RowsOfTensor>,
    outputs: Vec<RowsOfTensor>,
    bytes: usize,
}

/// The rows of one tensor, at the same place on the device and on the host.
struct RowsOfTensor {
    start: usize,
    row_bytes: usize,
    is_bool: bool,
}

impl DeviceRows {
    /// Makes the rows of a model with this signature, whose `session` computes on `stream`.
    ///
    /// Errors: a tensor is of strings, which lie on the host, or the driver or the library refuses.
    pub(super) fn new(
        gpu: &ProviderGpu,
        of: &PlacedSession,
        stream: Stream,
        signature: &Signature,
        max_batch: usize,
    ) -> Result<DeviceRows, RunError> {
        let noted = |error| RunError::Failed { reason: gpu.device.note(error).to_string() };
        let mut bytes = 0;
        let mut place =
            |specs: &[TensorSpec]| specs.iter().map(|spec| rows(spec, max_batch, &mut bytes)).collect();
        let (inputs, outputs) = (place(&signature.inputs), place(&signature.outputs));
        let (device, calls) = (&gpu.device, gpu.device.calls());
        let mut made = DeviceRows {
            bindings: Vec::new(),
            stream,
            memory: Owned::new(device, calls.allocate(bytes).map_err(noted)?),
            pinned: Owned::new(device, calls.allocate_pinned(bytes).map_err(noted)?),
            left: Owned::new(device, calls.create_event().map_err(noted)?),
            device: Arc::clone(device),
            inputs,
            outputs,
            bytes,
        };
        for rows in 1..=max_batch {
            let mut binding = of.session.create_binding().map_err(failed)?;
            made.bind(&mut binding, gpu.number, signature, rows).map_err(failed)?;
            made.bindings.push(binding);
        }
        Ok(made)
    }

    /// Has runs of a binding use so many rows.
    fn bind(&self, binding: &mut IoBinding, gpu: u32, signature: &Signature, rows: usize) -> ort::Result<()> {
        let inputs = signature.inputs.iter().zip(&self.inputs).map(|of| (TensorRole::Input, of));
        let outputs = signature.outputs.iter().zip(&self.outputs).map(|of| (TensorRole::Output, of));
        for (role, (spec, of)) in inputs.chain(outputs) {
            let strings = || ort::Error::new("a tensor is of strings, which a GPU does not take");
            let element = element_type(spec.datatype).ok_or_else(strings)?;
            let shape: Vec<i64> =
                signature.batch_shape(spec, rows).into_iter().map(|size| size as i64).collect();
            let at = DevicePointer(self.memory.get().0 + of.start as u64);
            let bytes = rows * of.row_bytes;
            let tensor = DeviceTensor { name: &spec.name, element, shape: &shape, at, bytes };
            // SAFETY: the bindings go before the memory, which has room for the rows.
            unsafe { bind(binding, gpu, role, &tensor)? };
        }
        Ok(())
    }

    /// Returns the bytes that it takes on the device, and as many on the host.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the inputs of a row to where the device reads them.
    ///
    /// Errors: the driver's.
    pub(super) fn stage(&self, signature: &Signature, row: usize, input: &[u8]) -> DriverResult<()> {
        for (at, of) in self.inputs.iter().enumerate() {
            let bytes = &input[signature.input_range(at)];
            let start = of.start + row * of.row_bytes;
            if of.is_bool {
                let bytes: Vec<u8> = bytes.iter().map(|&byte| u8::from(byte != 0)).collect();
                self.device.calls().write_pinned(self.pinned.get(), start, &bytes)?;
            } else {
                self.device.calls().write_pinned(self.pinned.get(), start, bytes)?;
            }
        }
        Ok(())
    }

    /// Copies the outputs of a row that was run.
    ///
    /// Errors: the driver's.
    pub(super) fn unstage(&self, signature: &Signature, row: usize, output: &mut [u8]) -> DriverResult<()> {
        for (at, of) in self.outputs.iter().enumerate() {
            let to = &mut output[signature.output_range(at)];
            self.device.calls().read_pinned(self.pinned.get(), of.start + row * of.row_bytes, to)?;
        }
        Ok(())
    }

    /// Runs the rows that are staged, and waits until their outputs have left.
    ///
    /// Errors: the driver's or the library's. No copy is under way any more then, or the device is
    /// given up.
    pub(super) fn run(
        &self,
        session: &mut Session,
        options: &RunOptions,
        rows: usize,
    ) -> Result<(), RunError> {
        let noted = |error| RunError::Failed { reason: self.device.note(error).to_string() };
        let ran = self.arrive(rows).map_err(noted).and_then(|()| {
            let binding = &self.bindings[rows - 1];
            caught(|| session.run_binding_with_options(binding, options).map(drop).map_err(failed))?;
            self.leave(rows).map_err(noted)
        });
        let calls = self.device.calls();
        let ended =
            calls.record(self.left.get(), self.stream).map_err(|error| self.device.note(error).to_string());
        let ended = ended.and_then(|()| self.device.wait_for(self.left.get(), LOAD_PATIENCE));
        ran.and(ended.map_err(|reason| RunError::Failed { reason }))
    }

    fn arrive(&self, rows: usize) -> DriverResult<()> {
        self.inputs.iter().try_for_each(|of| {
            let range = of.start..of.start + rows * of.row_bytes;
            let to = DevicePointer(self.memory.get().0 + of.start as u64);
            self.device.calls().copy_in(self.pinned.get(), range, to, self.stream)
        })
    }

    fn leave(&self, rows: usize) -> DriverResult<()> {
        self.outputs.iter().try_for_each(|of| {
            let range = of.start..of.start + rows * of.row_bytes;
            let from = DevicePointer(self.memory.get().0 + of.start as u64);
            self.device.calls().copy_out(from, self.pinned.get(), range, self.stream)
        })
    }
}

/// Places the rows of a tensor behind the first `bytes`.
fn rows(spec: &TensorSpec, max_batch: usize, bytes: &mut usize) -> RowsOfTensor {
    let (start, row_bytes) = (*bytes, spec.bytes());
    *bytes = (start + max_batch * row_bytes).next_multiple_of(ALIGNMENT);
    RowsOfTensor { start, row_bytes, is_bool: spec.datatype == DataType::Bool }
}
