//! ONNX models on a CPU core, run by rten a batch at a time. An executor thread owns a [`CpuModel`]
//! per model that it serves and, for all of them, one [`ComputeThread`]: it stages the rows of a
//! batch, runs them, and takes the rows' outputs.

mod buffer;

use crate::host::{
    ComputeThread, GroupError, HostGraph, HostModel, LoadError, MAX_STAGED_BYTES, PrefixGroup, RunError,
    SplitModel,
};
use crate::import::{self, BatchDimension, DeclaredTypes, ElementType, InputDefaults, OnnxSource, SizedFile};
use crate::signature::{DataType, Signature, TensorSpec};
use buffer::{Carrier, InputBuffer};
use rten::{
    Dimension, LoadErrorKind, Model, ModelOptions, NodeId, RunOptions, Value, ValueOrView, ValueType,
};
use rten_tensor::Layout;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// A loaded ONNX model with the buffers of one batch.
///
/// Every input and output has the batch as its first dimension, which is dynamic in the file, or is
/// made so by the [import]; the model's [`Signature`] describes one row. FP32,
/// INT32, INT8 and UINT8 are passed on unchanged. INT64 and BOOL are computed as INT32 (values
/// outside its range become the nearest that is inside), FP64 and FP16 as FP32: rten has no other
/// types.
///
/// Weights are kept twice, as they are and in the order in which the kernels read them. So a model
/// takes about twice its file in memory, besides the memory of a batch.
pub struct CpuModel {
    graph: Arc<OnnxGraph>,
    thread: ComputeThread,
    inputs: Vec<StagedInput>,
    outputs: Vec<Value>,
    import_note: Option<String>,
}

/// The part of a loaded model that a run only reads: its operators and weights.
struct OnnxGraph {
    model: Model,
    signature: Signature,
    max_batch: usize,
    output_ids: Vec<NodeId>,
    weights_bytes: u64,
    defaults: InputDefaults,
}

struct StagedInput {
    id: NodeId,
    buffer: InputBuffer,
    /// The shape, of which each run sets the first dimension where that is the batch's.
    shape: Vec<usize>,
    has_batch: bool,
}

impl CpuModel {
    /// Loads an ONNX file for batches of at most `max_batch`, with a [`ComputeThread`]
    /// of its own: pin the calling thread first.
    ///
    /// # Errors
    /// Those of [`CpuModel::load_on`].
    pub fn load<'a>(file: impl Into<SizedFile<'a>>, max_batch: usize) -> Result<CpuModel, LoadError> {
        CpuModel::load_on(&ComputeThread::new(), file, max_batch)
    }

    /// Loads an ONNX file for batches of at most `max_batch`, to compute on `thread`.
    /// The model is run on zeros with one row and with two, to find the outputs' shapes and to
    /// check that it keeps rows apart by the first dimension.
    ///
    /// # Errors
    /// If the file cannot be read or is no ONNX model, if it has an operator or an element type
    /// that is not supported, if its first dimensions are not the batch's, if another is dynamic
    /// and has no size, or if it fails on zeros.
    /// A file that makes the loader panic is an error too.
    pub fn load_on<'a>(
        thread: &ComputeThread,
        file: impl Into<SizedFile<'a>>,
        max_batch: usize,
    ) -> Result<CpuModel, LoadError> {
        let file = file.into();
        let import = || {
            let (mut model, note) =
                import::load(file, max_batch, |source, max_batch| load(thread, &file, source, max_batch))?;
            model.import_note = note;
            Ok(model)
        };
        let load = || thread.run(import);
        // rten keeps nothing between loads, so a panic leaves nothing half done behind.
        catch_unwind(AssertUnwindSafe(load))
            .unwrap_or_else(|_| Err(LoadError::Panicked { path: file.path.into() }))
    }

    /// Loads ONNX files that share their first layers, to be run as one on `thread` in batches of
    /// at most `max_batch` rows.
    ///
    /// # Errors
    /// Those of [`CpuModel::load_on`] for a file or a part of it; if a file has no batch, if the
    /// files share no layer or have different inputs, or if a row differs from what its file alone
    /// gives.
    pub fn load_group(
        thread: &ComputeThread,
        files: &[SizedFile<'_>],
        max_batch: usize,
    ) -> Result<PrefixGroup<CpuModel>, GroupError> {
        let part = |file: &SizedFile<'_>, source, max_batch| load(thread, file, source, max_batch);
        let load = || thread.run(|| PrefixGroup::load(files, max_batch, &part));
        // As for one file.
        catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|_| {
            let path = files.first().map(|file| file.path.into()).unwrap_or_default();
            Err(GroupError { at: 0, error: LoadError::Panicked { path } })
        })
    }

    /// Keeps the outputs of a run of `rows` rows.
    ///
    /// Errors: one is not as the signature says.
    fn keep(&mut self, outputs: Vec<Value>, rows: usize) -> Result<(), RunError> {
        let signature = &self.graph.signature;
        for (output, spec) in outputs.iter().zip(&signature.outputs) {
            check_output(output, signature, spec, rows)?;
        }
        self.outputs = outputs;
        Ok(())
    }
}

impl HostModel for CpuModel {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn max_batch(&self) -> usize {
        self.graph.max_batch
    }

    fn weights_bytes(&self) -> u64 {
        self.graph.weights_bytes
    }

    fn memory_bytes(&self) -> u64 {
        2 * self.graph.weights_bytes
            + self.inputs.iter().map(|input| input.buffer.bytes() as u64).sum::<u64>()
    }

    fn compute_on(&mut self, thread: &ComputeThread) {
        self.thread = thread.clone();
    }

    fn stage(&mut self, row: usize, input: &[u8]) {
        stage(&mut self.inputs, &self.graph.signature, row, input);
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let OnnxGraph { model, max_batch, output_ids, .. } = &*self.graph;
        if rows == 0 || rows > *max_batch {
            return Err(RunError::Rows { rows, max_batch: *max_batch });
        }
        self.outputs.clear();
        let outputs = execute_staged(model, &self.thread, &mut self.inputs, output_ids, rows)?;
        self.keep(outputs, rows)
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        let signature = &self.graph.signature;
        assert_eq!(self.outputs.len(), signature.outputs.len(), "no run has succeeded");
        for (index, (value, spec)) in self.outputs.iter().zip(&signature.outputs).enumerate() {
            buffer::unstage(value, row, spec, &mut output[signature.output_range(index)]);
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

impl SplitModel for CpuModel {
    /// Does nothing: outputs are kept where rten has put them.
    fn become_prefix(&mut self) {}

    fn become_suffix(&mut self) {
        for (input, spec) in self.inputs.iter_mut().zip(&self.graph.signature.inputs) {
            input.buffer = InputBuffer::new(spec, 0);
        }
    }

    fn run_prefix(&mut self, rows: usize) -> Result<(), RunError> {
        self.run(rows)
    }

    fn run_suffix(
        &mut self,
        prefix: &CpuModel,
        sources: &[usize],
        rows: Range<usize>,
    ) -> Result<(), RunError> {
        let OnnxGraph { model, output_ids, .. } = &*self.graph;
        self.outputs.clear();
        let values = self.inputs.iter_mut().zip(sources).map(|(input, &source)| {
            input.shape[0] = rows.len();
            let from = prefix.outputs.get(source).ok_or(RunError::Panicked)?;
            Ok((input.id, ValueOrView::from(buffer::rows_of(from, rows.clone(), &input.shape))))
        });
        let values = values.collect::<Result<Vec<_>, RunError>>()?;
        let outputs = execute(model, &self.thread, values, output_ids)?;
        self.keep(outputs, rows.len())
    }

    fn forget_outputs(&mut self) {
        self.outputs.clear();
    }
}

impl HostGraph for OnnxGraph {
    fn make(self: Arc<OnnxGraph>, thread: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        let inputs = staged_inputs(&self.model, &self.signature, self.max_batch);
        Ok(Box::new(CpuModel {
            graph: self,
            thread: thread.clone(),
            inputs,
            outputs: Vec::new(),
            import_note: None,
        }))
    }
}

/// Converts rten's error when it loaded the file.
fn load_error(path: &Path, error: &rten::LoadError) -> LoadError {
    let path = path.to_path_buf();
    let reason = error.to_string();
    match error.kind() {
        // What it computes of constants when it loads is optimisation to it.
        LoadErrorKind::OperatorInvalid | LoadErrorKind::OptimizeError => LoadError::Operator { path, reason },
        LoadErrorKind::ExternalDataError => LoadError::ExternalData { path, reason },
        _ => LoadError::Corrupt { path, reason },
    }
}

/// Loads the graph of a file as it is or, where it was rewritten, that.
fn load_graph(source: &mut OnnxSource) -> Result<Model, LoadError> {
    // Packed once here and not in each run: 20 times as fast for wide fully connected models.
    let mut options = ModelOptions::with_all_ops();
    options.prepack_weights(true);
    let path = &source.path;
    let loaded = match source.rewritten.take() {
        None => options.load_file(path),
        Some(bytes) => {
            for location in &source.weights {
                let weights = std::fs::read(source.folder().join(location)).map_err(|error| {
                    LoadError::ExternalData { path: path.clone(), reason: format!("{location}: {error}") }
                })?;
                options.external_data(location, weights);
            }
            options.load(bytes)
        }
    };
    loaded.map_err(|error| load_error(path, &error))
}

fn load(
    thread: &ComputeThread,
    file: &SizedFile<'_>,
    mut source: OnnxSource,
    max_batch: usize,
) -> Result<CpuModel, LoadError> {
    let model = load_graph(&mut source)?;
    let OnnxSource { path, declared, batch, weights_bytes, .. } = &source;
    let path = path.as_path();
    let inputs = input_specs(&model, &source)?;
    check_size(&inputs, max_batch, path)?;
    check_output_dimensions(&model, &source)?;
    let has_batch = *batch != BatchDimension::Absent;
    let mut signature = Signature { inputs, outputs: Vec::new(), has_batch, has_variant: false };
    let mut staged = staged_inputs(&model, &signature, max_batch);
    let rows = max_batch.min(2);
    let row = import::trial_row(file.defaults, &signature, path)?;
    (0..rows).for_each(|at| stage(&mut staged, &signature, at, &row));
    let output_ids = model.output_ids().to_vec();
    let failed = |rows, error: RunError| trial_error(path, rows, &error);
    let trial = |staged: &mut [StagedInput], rows| {
        execute_staged(&model, thread, staged, &output_ids, rows).map_err(|error| failed(rows, error))
    };
    signature.outputs = output_specs(&model, declared, &signature, &trial(&mut staged, 1)?, path)?;
    for (value, spec) in trial(&mut staged, rows)?.iter().zip(&signature.outputs) {
        check_output(value, &signature, spec, rows).map_err(|error| failed(rows, error))?;
    }
    let (thread, weights_bytes, defaults) = (thread.clone(), *weights_bytes, file.defaults.clone());
    let graph = Arc::new(OnnxGraph { model, signature, max_batch, output_ids, weights_bytes, defaults });
    Ok(CpuModel { graph, thread, inputs: staged, outputs: Vec::new(), import_note: None })
}

/// Runs `rows` rows of the staged inputs and returns the outputs, each contiguous.
fn execute_staged(
    model: &Model,
    thread: &ComputeThread,
    inputs: &mut [StagedInput],
    output_ids: &[NodeId],
    rows: usize,
) -> Result<Vec<Value>, RunError> {
    let values = inputs.iter_mut().map(|input| {
        if input.has_batch {
            input.shape[0] = rows;
        }
        (input.id, ValueOrView::from(input.buffer.view(&input.shape)))
    });
    execute(model, thread, values.collect(), output_ids)
}

/// Runs the model on these inputs and returns the outputs, each contiguous.
fn execute(
    model: &Model,
    thread: &ComputeThread,
    values: Vec<(NodeId, ValueOrView<'_>)>,
    output_ids: &[NodeId],
) -> Result<Vec<Value>, RunError> {
    let options = RunOptions::default().with_thread_pool(Some(thread.pool()));
    // The model is only read by a run, so a panic leaves it as it was.
    let outputs = catch_unwind(AssertUnwindSafe(|| model.run(values, output_ids, Some(options))))
        .map_err(|_| RunError::Panicked)?
        .map_err(|e| RunError::Failed { reason: e.to_string() })?;
    Ok(outputs.into_iter().map(buffer::contiguous).collect())
}

fn input_specs(model: &Model, source: &OnnxSource) -> Result<Vec<TensorSpec>, LoadError> {
    let path = source.path.as_path();
    let specs = model.input_ids().iter().map(|&id| {
        let name = node_name(model, id);
        let dimensions = model.node_info(id).and_then(|node| node.shape());
        let dimensions =
            dimensions.ok_or_else(|| LoadError::NoShape { path: path.into(), tensor: name.clone() })?;
        let shape = source.row_shape(&name, &fixed_sizes(&dimensions))?;
        let datatype = source.declared.input(&name).ok_or_else(|| no_datatype(path, &name))?;
        let datatype = supported(path, &name, datatype)?;
        Ok(TensorSpec { name, datatype, shape })
    });
    let specs: Vec<TensorSpec> = specs.collect::<Result<_, _>>()?;
    if specs.is_empty() {
        return Err(LoadError::NoInputs { path: path.into() });
    }
    Ok(specs)
}

/// Returns the outputs' specs: types as declared, shapes as found by the run of one row.
fn output_specs(
    model: &Model,
    declared: &DeclaredTypes,
    signature: &Signature,
    trial: &[Value],
    path: &Path,
) -> Result<Vec<TensorSpec>, LoadError> {
    let ids = model.output_ids();
    let specs = ids.iter().zip(trial).enumerate().map(|(at, (&id, value))| {
        let declared_name = declared.output_name(at, ids.len()).map(str::to_owned);
        let name = declared_name.unwrap_or_else(|| node_name(model, id));
        let computed = Carrier::of(value.dtype()).map(Carrier::own_datatype);
        let datatype = match declared.output(&name) {
            Some(element_type) => supported(path, &name, element_type)?,
            None => computed.ok_or_else(|| no_datatype(path, &name))?,
        };
        let shape = value.shape().iter().skip(usize::from(signature.has_batch)).copied().collect();
        let spec = TensorSpec { name, datatype, shape };
        check_output(value, signature, &spec, 1).map_err(|error| trial_error(path, 1, &error))?;
        Ok(spec)
    });
    let specs: Vec<TensorSpec> = specs.collect::<Result<_, _>>()?;
    if specs.is_empty() {
        return Err(LoadError::NoOutputs { path: path.into() });
    }
    Ok(specs)
}

fn staged_inputs(model: &Model, signature: &Signature, max_batch: usize) -> Vec<StagedInput> {
    let staged_input = |(&id, spec): (&NodeId, &TensorSpec)| StagedInput {
        id,
        buffer: InputBuffer::new(spec, max_batch),
        shape: signature.batch_shape(spec, 1),
        has_batch: signature.has_batch,
    };
    model.input_ids().iter().zip(&signature.inputs).map(staged_input).collect()
}

/// Copies a row of inputs into the row `at` of the staged ones.
fn stage(staged: &mut [StagedInput], signature: &Signature, at: usize, row: &[u8]) {
    for (index, (staged, spec)) in staged.iter_mut().zip(&signature.inputs).enumerate() {
        staged.buffer.stage(at, spec, &row[signature.input_range(index)]);
    }
}

fn trial_error(path: &Path, rows: usize, error: &RunError) -> LoadError {
    LoadError::Trial { path: path.into(), rows, reason: error.to_string() }
}

fn check_size(inputs: &[TensorSpec], max_batch: usize, path: &Path) -> Result<(), LoadError> {
    let row = inputs.iter().fold(0usize, |total, spec| total.saturating_add(spec.bytes()));
    let bytes = row.saturating_mul(max_batch);
    if bytes > MAX_STAGED_BYTES {
        return Err(LoadError::TooLarge {
            path: path.into(),
            role: "inputs",
            row,
            max_batch,
            limit: MAX_STAGED_BYTES,
        });
    }
    Ok(())
}

fn check_output_dimensions(model: &Model, source: &OnnxSource) -> Result<(), LoadError> {
    for &id in model.output_ids() {
        if let Some(dimensions) = model.node_info(id).and_then(|node| node.shape()) {
            source.check_batch("output", &node_name(model, id), &fixed_sizes(&dimensions))?;
        }
    }
    Ok(())
}

/// Returns the sizes of dimensions, `None` for dynamic ones.
fn fixed_sizes(dimensions: &[Dimension]) -> Vec<Option<usize>> {
    let size = |of: &Dimension| if let Dimension::Fixed(size) = of { Some(*size) } else { None };
    dimensions.iter().map(size).collect()
}

fn supported(path: &Path, name: &str, element: ElementType) -> Result<DataType, LoadError> {
    element.datatype().filter(|&datatype| Carrier::for_datatype(datatype).is_some()).ok_or_else(|| {
        LoadError::DataType {
            path: path.into(),
            tensor: name.to_string(),
            found: element.to_string(),
            supported: format!("{}, or run the model on the executor \"onnxruntime\"", Carrier::supported()),
        }
    })
}

fn no_datatype(path: &Path, name: &str) -> LoadError {
    LoadError::DataType {
        path: path.into(),
        tensor: name.to_string(),
        found: "no element type".to_string(),
        supported: Carrier::supported(),
    }
}

fn check_output(
    value: &Value,
    signature: &Signature,
    spec: &TensorSpec,
    rows: usize,
) -> Result<(), RunError> {
    let (shape, expected) = (value.shape(), signature.batch_shape(spec, rows));
    let carried = Carrier::of(value.dtype()) == Carrier::for_datatype(spec.datatype);
    let is_tensor = matches!(value.dtype(), ValueType::Tensor(_));
    if is_tensor && carried && shape[..] == expected[..] {
        return Ok(());
    }
    Err(RunError::Output {
        tensor: spec.name.clone(),
        expected: format!("{} {expected:?}", spec.datatype),
        found: format!("{} {:?}", value.dtype(), &shape[..]),
    })
}

fn node_name(model: &Model, id: NodeId) -> String {
    model.node_info(id).and_then(|node| node.name()).unwrap_or_default().to_string()
}
