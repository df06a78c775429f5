//! ONNX models run by ONNX Runtime: every operator, and the faster kernels. Its library is opened
//! at run time; a machine without it lacks this executor and nothing else.

mod buffer;
mod library;
mod provider;

pub use library::{LIBRARY_VARIABLE, LibraryError, OnnxRuntimeLibrary, SearchedPlace, open_library};

use crate::host::{
    ComputeThread, GroupError, HostGraph, HostModel, LoadError, MAX_STAGED_BYTES, PrefixGroup, RunError,
    SplitModel,
};
use crate::import::{self, BatchDimension, InputDefaults, OnnxSource, SizedFile, TEXT_BYTES};
use crate::signature::{DataType, Signature, TensorSpec};
use buffer::RowBuffer;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{RunOptions, Session, SessionInputValue, SessionInputs, SessionOutputs};
use ort::value::{DynValue, Outlet, ValueType};
use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options of models on ONNX Runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnnxRuntimeOptions {
    /// The library; `None` looks for it.
    pub library: Option<PathBuf>,
    /// The number of threads that compute one batch: the executor's own, and others that run where
    /// the system puts them.
    pub threads: usize,
    /// The GPU that computes, by its number, through the CUDA provider of the library; `None` for
    /// the executor's core. Operators that the provider lacks are computed on the core.
    pub gpu: Option<u32>,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> OnnxRuntimeOptions {
        OnnxRuntimeOptions { library: None, threads: 1, gpu: None }
    }
}

/// Where a session computes.
#[derive(Clone, Copy)]
struct SessionPlace {
    threads: usize,
    gpu: Option<u32>,
}

/// An ONNX model in a session of ONNX Runtime, with the buffers of one batch.
///
/// Every input and output has the batch as its first dimension, which is dynamic in the file, or is
/// made so by the [import]; the model's [`Signature`] describes one row. All types
/// of fixed-size elements are passed unchanged. It computes on the thread that calls
/// [`HostModel::run`].
pub struct OnnxRuntimeModel {
    own: Arc<RunHandle>,
    session: Session,
    inputs: Vec<RowBuffer>,
    outputs: Vec<RowBuffer>,
    /// The outputs of the last run as the library gave them, where other models read them there.
    kept: Vec<DynValue>,
    import_note: Option<String>,
}

/// The part of a model that a session is made of.
struct SessionSource {
    /// The file's bytes, or what they were rewritten to, of which a session can be made again.
    /// External weights stay in their files.
    bytes: Vec<u8>,
    folder: PathBuf,
    environment: OnnxRuntimeLibrary,
    place: SessionPlace,
    /// The most bytes of an element of BYTES.
    text_bytes: u32,
    signature: Signature,
    max_batch: usize,
    weights_bytes: u64,
    defaults: InputDefaults,
}

/// A model as another thread knows it: what it was made of, and how its run is told to end.
struct RunHandle {
    source: Arc<SessionSource>,
    options: RunOptions,
}

impl HostGraph for RunHandle {
    fn make(self: Arc<RunHandle>, _: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        let source = Arc::clone(&self.source);
        let made = caught(|| {
            let session = session(&source.environment, &source.bytes, &source.folder, source.place)?;
            OnnxRuntimeModel::new(session, source)
        });
        Ok(Box::new(made?))
    }

    fn interrupt(&self) {
        // It fails only for want of memory; the thread then runs to its end.
        let _ = self.options.terminate();
    }
}

impl OnnxRuntimeModel {
    /// Loads an ONNX file for batches of at most `max_batch`. The model is run on zeros
    /// with one row and with two, to find the outputs' shapes and to check that it keeps rows apart
    /// by the first dimension.
    ///
    /// # Errors
    /// If there is no library, if the file cannot be read or is no ONNX model, if its first
    /// dimensions are not the batch's, if another is dynamic and has no size, if an element type is
    /// not supported, or if it fails on zeros.
    pub fn load<'a>(
        file: impl Into<SizedFile<'a>>,
        max_batch: usize,
        options: &OnnxRuntimeOptions,
    ) -> Result<OnnxRuntimeModel, LoadError> {
        let file = file.into();
        let path = file.path;
        let (environment, place) = opened(options, path)?;
        let load = |source, max_batch| Self::load_source(&file, source, max_batch, place, &environment);
        // The import keeps nothing between loads, so a panic leaves nothing half done behind.
        let imported = catch_unwind(AssertUnwindSafe(|| import::load(file, max_batch, load)));
        let (mut model, note) =
            imported.unwrap_or_else(|_| Err(LoadError::Panicked { path: path.into() }))?;
        model.import_note = note;
        Ok(model)
    }

    /// Adds to the model's note: why it is run by this library.
    pub fn with_note(mut self, note: &str) -> OnnxRuntimeModel {
        let before = self.import_note.take().map(|before| before + "; ").unwrap_or_default();
        self.import_note = Some(before + note);
        self
    }

    /// Loads ONNX files that share their first layers, to be run as one in batches of at most
    /// `max_batch` rows.
    ///
    /// # Errors
    /// Those of [`OnnxRuntimeModel::load`] for a file or a part of it; if a file has no batch, if
    /// the files share no layer or have different inputs, or if a row differs from what its file
    /// alone gives.
    pub fn load_group(
        files: &[SizedFile<'_>],
        max_batch: usize,
        options: &OnnxRuntimeOptions,
    ) -> Result<PrefixGroup<OnnxRuntimeModel>, GroupError> {
        let path: PathBuf = files.first().map(|file| file.path.into()).unwrap_or_default();
        let at_first = |error| GroupError { at: 0, error };
        let (environment, place) = opened(options, &path).map_err(at_first)?;
        let part = |file: &SizedFile<'_>, source, max_batch| {
            Self::load_source(file, source, max_batch, place, &environment)
        };
        // As for one file.
        catch_unwind(AssertUnwindSafe(|| PrefixGroup::load(files, max_batch, &part)))
            .unwrap_or_else(|_| Err(at_first(LoadError::Panicked { path })))
    }

    fn load_source(
        file: &SizedFile<'_>,
        mut source: OnnxSource,
        max_batch: usize,
        place: SessionPlace,
        environment: &OnnxRuntimeLibrary,
    ) -> Result<OnnxRuntimeModel, LoadError> {
        let (path, text_bytes) = (file.path, file.text_bytes);
        let folder = source.folder().to_path_buf();
        let bytes = source.rewritten.take().map_or_else(|| std::fs::read(path), Ok);
        let bytes = bytes.map_err(|error| LoadError::from_io(path, error))?;
        let refused = |error: RunError| LoadError::Refused { path: path.into(), reason: error.to_string() };
        let session = caught(|| session(environment, &bytes, &folder, place)).map_err(refused)?;
        let inputs = input_specs(session.inputs(), &source, text_bytes)?;
        check_size("inputs", &inputs, max_batch, path)?;
        check_outputs(session.outputs(), &source)?;
        let has_batch = source.batch != BatchDimension::Absent;
        let signature = Signature { inputs, outputs: Vec::new(), has_batch, has_variant: false };
        let row = import::trial_row(file.defaults, &signature, path)?;
        let source = SessionSource {
            bytes,
            folder,
            environment: environment.clone(),
            place,
            text_bytes,
            signature,
            max_batch,
            weights_bytes: source.weights_bytes,
            defaults: file.defaults.clone(),
        };
        let mut trial = OnnxRuntimeModel::new(session, Arc::new(source)).map_err(refused)?;
        trial.stage(0, &row);
        let outputs = trial.output_specs(path)?;
        check_size("outputs", &outputs, max_batch, path)?;
        let OnnxRuntimeModel { own, session, .. } = trial;
        // Only this function has the handle and the source so far.
        let source = Arc::into_inner(own).and_then(|own| Arc::into_inner(own.source));
        let mut source = source.ok_or_else(|| LoadError::Panicked { path: path.into() })?;
        source.signature.outputs = outputs;
        let mut model = OnnxRuntimeModel::new(session, Arc::new(source)).map_err(refused)?;
        for rows in [1, max_batch.min(2)] {
            model.stage(rows - 1, &row);
            model.run(rows).map_err(|error| trial_error(path, rows, &error))?;
        }
        Ok(model)
    }

    fn new(session: Session, source: Arc<SessionSource>) -> Result<OnnxRuntimeModel, RunError> {
        let buffers = |specs: &[TensorSpec]| -> Vec<RowBuffer> {
            specs.iter().map(|spec| RowBuffer::new(spec, &source.signature, source.max_batch)).collect()
        };
        let (inputs, outputs) = (buffers(&source.signature.inputs), buffers(&source.signature.outputs));
        let own = Arc::new(RunHandle { source, options: RunOptions::new().map_err(failed)? });
        Ok(OnnxRuntimeModel { own, session, inputs, outputs, kept: Vec::new(), import_note: None })
    }

    /// Runs one row of zeros and returns the specs of the outputs, with the shapes that they had.
    fn output_specs(&mut self, path: &Path) -> Result<Vec<TensorSpec>, LoadError> {
        let OnnxRuntimeModel { own, session, inputs, .. } = self;
        let SessionSource { signature, text_bytes, .. } = &*own.source;
        let values = staged(inputs, &signature.inputs, 1).map_err(|error| trial_error(path, 1, &error))?;
        let specs = execute(session, values, &own.options, |outputs| {
            outputs
                .keys()
                .map(|name| output_spec(name, &outputs[name], signature.has_batch, *text_bytes, path))
                .collect::<Result<Vec<_>, _>>()
        });
        let specs = specs.map_err(|error| trial_error(path, 1, &error))??;
        if specs.is_empty() { Err(LoadError::NoOutputs { path: path.into() }) } else { Ok(specs) }
    }
}

impl HostModel for OnnxRuntimeModel {
    fn signature(&self) -> &Signature {
        &self.own.source.signature
    }

    fn max_batch(&self) -> usize {
        self.own.source.max_batch
    }

    fn weights_bytes(&self) -> u64 {
        self.own.source.weights_bytes
    }

    fn memory_bytes(&self) -> u64 {
        let SessionSource { weights_bytes, bytes, .. } = &*self.own.source;
        let buffers = self.inputs.iter().chain(&self.outputs).map(RowBuffer::bytes).sum::<usize>();
        weights_bytes + (bytes.len() + buffers) as u64
    }

    /// Does nothing: it computes on the thread that calls [`HostModel::run`].
    fn compute_on(&mut self, _: &ComputeThread) {}

    fn stage(&mut self, row: usize, input: &[u8]) {
        let signature = &self.own.source.signature;
        for (index, buffer) in self.inputs.iter_mut().enumerate() {
            buffer.stage(row, &input[signature.input_range(index)]);
        }
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let OnnxRuntimeModel { own, session, inputs, outputs, .. } = self;
        let SessionSource { signature, max_batch, .. } = &*own.source;
        if rows == 0 || rows > *max_batch {
            return Err(RunError::Rows { rows, max_batch: *max_batch });
        }
        let values = staged(inputs, &signature.inputs, rows)?;
        execute(session, values, &own.options, |values| take(values, signature, rows, outputs))?
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        let signature = &self.own.source.signature;
        for (index, buffer) in self.outputs.iter().enumerate() {
            output[signature.output_range(index)].copy_from_slice(buffer.row(row));
        }
    }

    fn defaults(&self) -> &InputDefaults {
        &self.own.source.defaults
    }

    fn import_note(&self) -> Option<&str> {
        self.import_note.as_deref()
    }

    fn graph(&self) -> Arc<dyn HostGraph> {
        Arc::clone(&self.own) as Arc<dyn HostGraph>
    }
}

impl SplitModel for OnnxRuntimeModel {
    fn become_prefix(&mut self) {
        self.outputs.clear();
    }

    fn become_suffix(&mut self) {
        self.inputs.clear();
    }

    fn run_prefix(&mut self, rows: usize) -> Result<(), RunError> {
        let OnnxRuntimeModel { own, session, inputs, kept, .. } = self;
        let SessionSource { signature, .. } = &*own.source;
        kept.clear();
        let values = staged(inputs, &signature.inputs, rows)?;
        let outputs = execute(session, values, &own.options, |outputs| {
            let names: Vec<String> = outputs.keys().map(str::to_owned).collect();
            names.iter().filter_map(|name| outputs.remove(name)).collect::<Vec<DynValue>>()
        })?;
        if outputs.len() != signature.outputs.len() {
            return Err(RunError::Panicked);
        }
        for (value, spec) in outputs.iter().zip(&signature.outputs) {
            check_output(value, signature, spec, rows)?;
        }
        *kept = outputs;
        Ok(())
    }

    fn run_suffix(
        &mut self,
        prefix: &OnnxRuntimeModel,
        sources: &[usize],
        rows: Range<usize>,
    ) -> Result<(), RunError> {
        let OnnxRuntimeModel { own, session, outputs, .. } = self;
        let SessionSource { signature, .. } = &*own.source;
        let values = signature.inputs.iter().zip(sources).map(|(spec, &source)| {
            let from = prefix.kept.get(source).ok_or(RunError::Panicked)?;
            let shape = signature.batch_shape(spec, rows.len());
            let value = buffer::rows_of(from, spec.datatype, &shape, rows.clone()).map_err(failed)?;
            Ok((Cow::Borrowed(spec.name.as_str()), value))
        });
        let values = values.collect::<Result<Vec<_>, RunError>>()?;
        execute(session, values, &own.options, |values| take(values, signature, rows.len(), outputs))?
    }

    fn forget_outputs(&mut self) {
        self.kept.clear();
    }
}

/// Copies the outputs of a run of `rows` rows.
///
/// Errors: one is not as the signature says.
fn take(
    values: &SessionOutputs<'_>,
    signature: &Signature,
    rows: usize,
    buffers: &mut [RowBuffer],
) -> Result<(), RunError> {
    let specs = &signature.outputs;
    let mut taken = 0;
    for ((name, spec), buffer) in values.keys().zip(specs).zip(buffers) {
        let value = &values[name];
        check_output(value, signature, spec, rows)?;
        buffer.take(rows, value).map_err(failed)?;
        taken += 1;
    }
    if taken == specs.len() { Ok(()) } else { Err(RunError::Panicked) }
}

/// Opens the library, for the model of a file, and sees that it has what the options ask for.
fn opened(
    options: &OnnxRuntimeOptions,
    path: &Path,
) -> Result<(OnnxRuntimeLibrary, SessionPlace), LoadError> {
    let lacking = |reason| LoadError::Library { path: path.into(), reason };
    let library = open_library(options.library.as_deref()).map_err(|error| lacking(error.to_string()))?;
    provider::check(&library, options.gpu).map_err(lacking)?;
    Ok((library, SessionPlace { threads: options.threads, gpu: options.gpu }))
}

/// Makes a session of a file's bytes; its external weights are looked for in `folder`.
fn session(
    library: &OnnxRuntimeLibrary,
    bytes: &[u8],
    folder: &Path,
    SessionPlace { threads, gpu }: SessionPlace,
) -> Result<Session, RunError> {
    /// The key under which ONNX Runtime takes the folder of external weights.
    const FOLDER: &str = "session.model_external_initializers_file_folder_path";
    let unset = |error: ort::Error<SessionBuilder>| RunError::Failed { reason: error.to_string() };
    let builder = Session::builder(&library.environment).map_err(failed)?;
    let builder = match gpu {
        Some(gpu) => builder.with_execution_providers([provider::cuda(gpu)]).map_err(unset)?,
        None => builder,
    };
    let builder = builder.with_optimization_level(GraphOptimizationLevel::All).map_err(unset)?;
    let builder = builder.with_intra_threads(threads).map_err(unset)?;
    let builder = builder.with_inter_threads(1).map_err(unset)?;
    let builder = builder.with_intra_op_spinning(false).map_err(unset)?;
    let mut builder = builder.with_config_entry(FOLDER, folder.to_string_lossy()).map_err(unset)?;
    if threads > 1 {
        // The others would all run on the core that this one is pinned to.
        let every = every_core();
        let others = vec![every.as_str(); threads - 1].join(";");
        builder = builder.with_config_entry("session.intra_op_thread_affinities", others).map_err(unset)?;
    }
    builder.commit_from_memory(bytes).map_err(failed)
}

/// Returns the machine's cores as ONNX Runtime lists them, counted from 1.
fn every_core() -> String {
    // As 0-3,8: the calling thread may be pinned, so its own cores are not all.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let next = |core: &str| core.trim().parse::<usize>().map_or(1, |core| core + 1).to_string();
    let range = |cores: &str| cores.split('-').map(next).collect::<Vec<_>>().join("-");
    online.split(',').map(range).collect::<Vec<_>>().join(",")
}

/// The inputs of a run, by their names.
type NamedInputs<'a> = Vec<(Cow<'a, str>, SessionInputValue<'a>)>;

/// Returns the first `rows` rows of the staged inputs.
fn staged<'a>(
    inputs: &'a mut [RowBuffer],
    specs: &'a [TensorSpec],
    rows: usize,
) -> Result<NamedInputs<'a>, RunError> {
    let values = inputs
        .iter_mut()
        .zip(specs)
        .map(|(input, spec)| Ok((Cow::Borrowed(spec.name.as_str()), input.input(rows).map_err(failed)?)));
    values.collect()
}

/// Runs the model on these inputs, and has `take` read the outputs.
fn execute<R>(
    session: &mut Session,
    inputs: NamedInputs<'_>,
    options: &RunOptions,
    take: impl FnOnce(&mut SessionOutputs<'_>) -> R,
) -> Result<R, RunError> {
    caught(|| {
        let outputs = session.run_with_options(SessionInputs::<'_, '_, 0>::ValueMap(inputs), options);
        Ok(take(&mut outputs.map_err(failed)?))
    })
}

/// Calls ONNX Runtime; a panic is an error.
fn caught<R>(call: impl FnOnce() -> Result<R, RunError>) -> Result<R, RunError> {
    // A session is only read by a run, so a panic leaves nothing half done behind.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(RunError::Panicked))
}

fn failed(error: ort::Error) -> RunError {
    RunError::Failed { reason: error.to_string() }
}

fn trial_error(path: &Path, rows: usize, error: &RunError) -> LoadError {
    LoadError::Trial { path: path.into(), rows, reason: error.to_string() }
}

fn input_specs(
    inputs: &[Outlet],
    source: &OnnxSource,
    text_bytes: u32,
) -> Result<Vec<TensorSpec>, LoadError> {
    if inputs.is_empty() {
        return Err(LoadError::NoInputs { path: source.path.clone() });
    }
    inputs.iter().map(|input| input_spec(input, source, text_bytes)).collect()
}

fn input_spec(input: &Outlet, source: &OnnxSource, text_bytes: u32) -> Result<TensorSpec, LoadError> {
    let (path, name) = (source.path.clone(), input.name().to_owned());
    let ValueType::Tensor { ty, shape, .. } = input.dtype() else {
        let found = input.dtype().to_string();
        return Err(LoadError::DataType { path, tensor: name, found, supported: supported() });
    };
    let Some(datatype) = buffer::datatype(*ty, text_bytes) else {
        let found = format!("elements of type {ty}");
        return Err(LoadError::DataType { path, tensor: name, found, supported: supported() });
    };
    let shape = source.row_shape(&name, &fixed_sizes(shape))?;
    Ok(TensorSpec { name, datatype, shape })
}

/// Returns the sizes of declared dimensions, `None` for dynamic ones.
fn fixed_sizes(shape: &[i64]) -> Vec<Option<usize>> {
    shape.iter().map(|&size| usize::try_from(size).ok()).collect()
}

fn check_outputs(outputs: &[Outlet], source: &OnnxSource) -> Result<(), LoadError> {
    for output in outputs {
        // One without dimensions may have none that are known.
        if let ValueType::Tensor { shape, .. } = output.dtype()
            && !shape.is_empty()
        {
            source.check_batch("output", output.name(), &fixed_sizes(shape))?;
        }
    }
    Ok(())
}

/// Returns the spec of an output, of which this is the value for a batch of one, or for none.
fn output_spec(
    name: &str,
    value: &DynValue,
    has_batch: bool,
    text_bytes: u32,
    path: &Path,
) -> Result<TensorSpec, LoadError> {
    let (path, name) = (path.to_path_buf(), name.to_owned());
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        let found = value.dtype().to_string();
        return Err(LoadError::DataType { path, tensor: name, found, supported: supported() });
    };
    let Some(datatype) = buffer::datatype(*ty, text_bytes) else {
        let found = format!("elements of type {ty}");
        return Err(LoadError::DataType { path, tensor: name, found, supported: supported() });
    };
    if has_batch && shape.first() != Some(&1) {
        let shape = format!("{:?} for a batch of one", &shape[..]);
        return Err(LoadError::BatchDimension { path, role: "output", tensor: name, shape });
    }
    let shape = shape.iter().skip(usize::from(has_batch)).map(|&size| size as usize).collect();
    Ok(TensorSpec { name, datatype, shape })
}

fn check_size(
    role: &'static str,
    specs: &[TensorSpec],
    max_batch: usize,
    path: &Path,
) -> Result<(), LoadError> {
    let row = specs.iter().fold(0usize, |total, spec| total.saturating_add(spec.bytes()));
    if row.saturating_mul(max_batch) > MAX_STAGED_BYTES {
        return Err(LoadError::TooLarge { path: path.into(), role, row, max_batch, limit: MAX_STAGED_BYTES });
    }
    Ok(())
}

fn check_output(
    value: &DynValue,
    signature: &Signature,
    spec: &TensorSpec,
    rows: usize,
) -> Result<(), RunError> {
    let expected = signature.batch_shape(spec, rows);
    let is_expected = match value.dtype() {
        ValueType::Tensor { ty, shape, .. } => {
            let text_bytes = if let DataType::Bytes(most) = spec.datatype { most } else { TEXT_BYTES };
            buffer::datatype(*ty, text_bytes) == Some(spec.datatype)
                && shape.iter().copied().eq(expected.iter().map(|&size| size as i64))
        }
        _ => false,
    };
    if is_expected {
        return Ok(());
    }
    Err(RunError::Output {
        tensor: spec.name.clone(),
        expected: format!("{} {expected:?}", spec.datatype),
        found: value.dtype().to_string(),
    })
}

/// Lists the supported types, for error messages.
fn supported() -> String {
    DataType::ALL.map(DataType::name).join(", ") + ", BYTES"
}
