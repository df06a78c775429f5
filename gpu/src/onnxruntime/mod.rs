//! ONNX models run by ONNX Runtime: every operator, and the faster kernels. Its library is opened
//! at run time; a machine without it lacks this executor and nothing else.

mod buffer;
mod call;
mod device_rows;
mod library;
mod provider;
mod session;

pub use library::{LIBRARY_VARIABLE, LibraryError, OnnxRuntimeLibrary, SearchedPlace, open_library};
pub use session::OnnxRuntimeOptions;

use crate::cuda::OpenDevice;
use crate::host::{
    ComputeThread, GroupError, HostGraph, HostModel, LoadError, MAX_STAGED_BYTES, PrefixGroup, RunError,
    SplitModel,
};
use crate::import::{self, BatchDimension, InputDefaults, OnnxSource, SizedFile, TEXT_BYTES};
use crate::signature::{DataType, Signature, TensorSpec};
use buffer::RowBuffer;
use call::{caught, failed};
use device_rows::DeviceRows;
use ort::session::{RunOptions, Session, SessionInputValue, SessionInputs, SessionOutputs};
use ort::value::{DynValue, Outlet, ValueType};
use provider::ProviderUse;
use session::{PlacedSession, SessionPlace, opened, session};
use std::borrow::Cow;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An ONNX model in a session of ONNX Runtime, with the buffers of one batch.
///
/// Every input and output has the batch as its first dimension, which is dynamic in the file, or is
/// made so by the [import]; the model's [`Signature`] describes one row. All types
/// of fixed-size elements are passed unchanged. It computes on the thread that calls
/// [`HostModel::run`].
pub struct OnnxRuntimeModel {
    own: Arc<RunHandle>,
    /// Where rows lie on a GPU; `None` where the library has its values in the buffers. It goes
    /// before the session's stream.
    on_gpu: Option<DeviceRows>,
    session: PlacedSession,
    inputs: Vec<RowBuffer>,
    outputs: Vec<RowBuffer>,
    /// The outputs of the last run as the library gave them, where other models read them there.
    kept: Vec<DynValue>,
    /// The driver's error for a row, until the rows are run.
    staging: Result<(), RunError>,
    import_note: Option<String>,
}

/// The part of a model that a session is made of.
struct SessionSource {
    /// The file's bytes, or what they were rewritten to, of which a session can be made again.
    /// External weights stay in their files.
    bytes: Arc<[u8]>,
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
    /// The options of a run on the library's own values; behind them, those of each batch size that
    /// has a graph.
    options: Vec<RunOptions>,
}

impl RunHandle {
    fn options(&self, rows: usize) -> &RunOptions {
        self.options.get(rows).unwrap_or(&self.options[0])
    }
}

impl HostGraph for RunHandle {
    fn make(self: Arc<RunHandle>, _: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        let source = Arc::clone(&self.source);
        let session = session(&source.environment, &source.bytes, &source.folder, &source.place)?;
        let mut model = OnnxRuntimeModel::new(session, source)?;
        let SessionSource { signature, defaults, folder, .. } = &*self.source;
        let row = import::trial_row(defaults, signature, folder);
        model.capture(&row.map_err(|error| RunError::Failed { reason: error.to_string() })?)?;
        Ok(Box::new(model))
    }

    fn interrupt(&self) {
        // It fails only for want of memory; the thread then runs to its end.
        self.options.iter().for_each(|options| drop(options.terminate()));
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
        Self::load_on(file.into(), max_batch, options, None)
    }

    /// Loads an ONNX file as [`OnnxRuntimeModel::load`] does, for the GPU of the options, which is
    /// open already.
    ///
    /// # Errors
    /// Those of [`OnnxRuntimeModel::load`].
    pub fn load_on(
        file: SizedFile<'_>,
        max_batch: usize,
        options: &OnnxRuntimeOptions,
        device: Option<&Arc<OpenDevice>>,
    ) -> Result<OnnxRuntimeModel, LoadError> {
        let path = file.path;
        let (environment, place) = opened(options, device, path)?;
        let load = |source, max_batch| Self::load_source(&file, source, max_batch, &place, &environment);
        // The import keeps nothing between loads, so a panic leaves nothing half done behind.
        let imported = catch_unwind(AssertUnwindSafe(|| import::load(file, max_batch, load)));
        let (mut model, note) =
            imported.unwrap_or_else(|_| Err(LoadError::Panicked { path: path.into() }))?;
        model.import_note = match (note, model.import_note.take()) {
            (Some(import), Some(place)) => Some(format!("{import}; {place}")),
            (import, place) => import.or(place),
        };
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
        let (environment, place) = opened(options, None, &path).map_err(at_first)?;
        // Parts read each other's values where the library has them.
        let place = place.with_use(ProviderUse::Own);
        let part = |file: &SizedFile<'_>, source, max_batch| {
            Self::load_source(file, source, max_batch, &place, &environment)
        };
        // As for one file.
        catch_unwind(AssertUnwindSafe(|| PrefixGroup::load(files, max_batch, &part)))
            .unwrap_or_else(|_| Err(at_first(LoadError::Panicked { path })))
    }

    /// Loads a file with as much of ours as the provider takes, on a GPU.
    fn load_source(
        file: &SizedFile<'_>,
        mut source: OnnxSource,
        max_batch: usize,
        place: &SessionPlace,
        environment: &OnnxRuntimeLibrary,
    ) -> Result<OnnxRuntimeModel, LoadError> {
        let bytes = source.rewritten.take().map_or_else(|| std::fs::read(file.path), Ok);
        let bytes: Arc<[u8]> = bytes.map_err(|error| LoadError::from_io(file.path, error))?.into();
        let (mut place, mut why) = (place.clone(), None);
        loop {
            let content = (&source, Arc::clone(&bytes));
            let error = match Self::load_content(file, content, max_batch, place.clone(), environment) {
                Ok(model) => return Ok(OnnxRuntimeModel { import_note: why, ..model }),
                Err(error @ (LoadError::Refused { .. } | LoadError::Trial { .. })) => error,
                Err(error) => return Err(error),
            };
            let next = place.provider_use().and_then(ProviderUse::next);
            let Some((next, how)) = next.filter(|_| place.is_usable()) else { return Err(error) };
            (place, why) = (place.with_use(next), Some(format!("{how} ({})", reason_of(&error))));
        }
    }

    fn load_content(
        file: &SizedFile<'_>,
        (source, bytes): (&OnnxSource, Arc<[u8]>),
        max_batch: usize,
        place: SessionPlace,
        environment: &OnnxRuntimeLibrary,
    ) -> Result<OnnxRuntimeModel, LoadError> {
        let (path, text_bytes) = (file.path, file.text_bytes);
        let folder = source.folder().to_path_buf();
        let refused = |error: RunError| LoadError::Refused { path: path.into(), reason: error.to_string() };
        let session = session(environment, &bytes, &folder, &place).map_err(refused)?;
        let inputs = input_specs(session.session.inputs(), source, text_bytes)?;
        check_size("inputs", &inputs, max_batch, path)?;
        check_outputs(session.session.outputs(), source)?;
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
        model.capture(&row).map_err(refused)?;
        Ok(model)
    }

    fn new(session: PlacedSession, source: Arc<SessionSource>) -> Result<OnnxRuntimeModel, RunError> {
        let buffers = |specs: &[TensorSpec]| -> Vec<RowBuffer> {
            specs.iter().map(|spec| RowBuffer::new(spec, &source.signature, source.max_batch)).collect()
        };
        let (inputs, outputs) = (buffers(&source.signature.inputs), buffers(&source.signature.outputs));
        let on_gpu = match (&source.place.gpu, &session.stream) {
            // The first run finds the outputs.
            (Some((gpu, _)), Some(stream)) if !source.signature.outputs.is_empty() => {
                let SessionSource { signature, max_batch, .. } = &*source;
                Some(DeviceRows::new(gpu, &session, stream.get(), signature, *max_batch)?)
            }
            _ => None,
        };
        let graphs = source.place.provider_use() == Some(ProviderUse::Graphs);
        let sizes = if graphs { source.max_batch } else { 0 };
        let options = |graph: usize| match graphs {
            true => provider::options_of_graph((graph > 0).then_some(graph)),
            false => RunOptions::new(),
        };
        let options = (0..=sizes).map(options).collect::<ort::Result<_>>().map_err(failed)?;
        let own = Arc::new(RunHandle { source, options });
        let (kept, staging, import_note) = (Vec::new(), Ok(()), None);
        Ok(OnnxRuntimeModel { own, on_gpu, session, inputs, outputs, kept, staging, import_note })
    }

    /// Has the provider make the graph of each batch size, if it makes any, from rows like this
    /// one.
    fn capture(&mut self, row: &[u8]) -> Result<(), RunError> {
        let SessionSource { place, max_batch, .. } = &*self.own.source;
        if place.provider_use() != Some(ProviderUse::Graphs) {
            return Ok(());
        }
        (1..=*max_batch).for_each(|rows| self.stage(rows - 1, row));
        (1..=self.max_batch()).try_for_each(|rows| self.run(rows))
    }

    /// Runs one row of zeros and returns the specs of the outputs, with the shapes that they had.
    fn output_specs(&mut self, path: &Path) -> Result<Vec<TensorSpec>, LoadError> {
        let OnnxRuntimeModel { own, session, inputs, .. } = self;
        let SessionSource { signature, text_bytes, .. } = &*own.source;
        let values = staged(inputs, &signature.inputs, 1).map_err(|error| trial_error(path, 1, &error))?;
        let specs = execute(&mut session.session, values, own.options(0), |outputs| {
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
        let on_gpu = self.on_gpu.as_ref().map_or(0, |rows| 2 * rows.bytes());
        weights_bytes + (bytes.len() + buffers + on_gpu) as u64
    }

    /// Does nothing: it computes on the thread that calls [`HostModel::run`].
    fn compute_on(&mut self, _: &ComputeThread) {}

    fn stage(&mut self, row: usize, input: &[u8]) {
        let signature = &self.own.source.signature;
        if let Some(rows) = &self.on_gpu {
            let staged = rows.stage(signature, row, input);
            let staged = staged.map_err(|error| RunError::Failed { reason: error.to_string() });
            self.staging = std::mem::replace(&mut self.staging, Ok(())).and(staged);
            return;
        }
        for (index, buffer) in self.inputs.iter_mut().enumerate() {
            buffer.stage(row, &input[signature.input_range(index)]);
        }
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let OnnxRuntimeModel { own, on_gpu, session, inputs, outputs, staging, .. } = self;
        let SessionSource { signature, max_batch, .. } = &*own.source;
        if rows == 0 || rows > *max_batch {
            return Err(RunError::Rows { rows, max_batch: *max_batch });
        }
        std::mem::replace(staging, Ok(()))?;
        if let Some(on_gpu) = on_gpu {
            return on_gpu.run(&mut session.session, own.options(rows), rows);
        }
        let values = staged(inputs, &signature.inputs, rows)?;
        execute(&mut session.session, values, own.options(0), |values| {
            take(values, signature, rows, outputs)
        })?
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        let signature = &self.own.source.signature;
        if let Some(rows) = &self.on_gpu {
            // A fault leaves zeros, as pinned memory can be read whatever the device does.
            return rows.unstage(signature, row, output).unwrap_or_else(|_| output.fill(0));
        }
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
        let outputs = execute(&mut session.session, values, own.options(0), |outputs| {
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
        let session = &mut session.session;
        execute(session, values, own.options(0), |values| take(values, signature, rows.len(), outputs))?
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

/// Returns the library's own words of a refusal.
fn reason_of(error: &LoadError) -> String {
    match error {
        LoadError::Refused { reason, .. } | LoadError::Trial { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
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
