//! Errors of a model file or of a run, written for the author of the configuration.

use crate::signature::DataType;
use std::path::{Path, PathBuf};

/// An error that keeps a model from being loaded. Each names the file, what was found and what
/// would be right.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say they are")]
pub enum LoadError {
    /// `max_batch` was 0.
    #[error("{path}: max_batch is 0; give at least 1", path = path.display())]
    MaxBatch { path: PathBuf },
    /// The file is not there.
    #[error("{path}: there is no such file; give the path of an ONNX model", path = path.display())]
    Missing { path: PathBuf },
    /// The file is there and cannot be read.
    #[error("{path}: cannot be read ({source}); give a regular file that this user may read",
            path = path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The file's name does not end in `.onnx`.
    #[error("{path}: is not named as an ONNX model; give a file that ends in .onnx", path = path.display())]
    Extension { path: PathBuf },
    /// The file's bytes are not an ONNX model.
    #[error("{path}: is not an ONNX model or is damaged ({reason}); export it again, or copy it again",
            path = path.display())]
    Corrupt { path: PathBuf, reason: String },
    /// The model has an operator, or a form of one, that rten does not have.
    #[error("{path}: an operator is not supported by the executor \"cpu\" ({reason}); run the model on an \
             executor of kind \"onnxruntime\", which has all, or export it without the operator",
            path = path.display())]
    Operator { path: PathBuf, reason: String },
    /// The model can't be lowered to a plan.
    #[error("{path}: can't become a plan ({reason}); run the model on an executor of kind \"onnxruntime\", \
             which has all operators, or export it without the operator", path = path.display())]
    Lowering { path: PathBuf, reason: String },
    /// The model can't be lowered to a plan, nor run on its GPU by ONNX Runtime.
    #[error("{path}: can't become a plan ({reason}), and ONNX Runtime can't run it on the GPU either \
             ({library}); run the model on an executor of kind \"onnxruntime\", which has all operators, or \
             export it without the operator", path = path.display())]
    OnGpu { path: PathBuf, reason: String, library: String },
    /// The model can't be put on its GPU.
    #[error("{path}: can't be put on the GPU ({reason}); unload another model, lower max_batch, or run it on \
             an executor of another kind", path = path.display())]
    Device { path: PathBuf, reason: String },
    /// The file of a plan can't be read, is damaged, or is not what the model is configured for.
    #[error("{reason}")]
    PlanFile { reason: String },
    /// ONNX Runtime refuses the model.
    #[error("{path}: ONNX Runtime does not take the model ({reason}); export it again", path = path.display())]
    Refused { path: PathBuf, reason: String },
    /// The library of ONNX Runtime is not there.
    #[error("{path}: {reason}", path = path.display())]
    Library { path: PathBuf, reason: String },
    /// The model keeps weights in another file, which could not be read.
    #[error("{path}: the file with its weights cannot be read ({reason}); put it beside the model under \
             the name that the model was exported with", path = path.display())]
    ExternalData { path: PathBuf, reason: String },
    /// The model has no inputs.
    #[error("{path}: has no inputs; a request needs at least one", path = path.display())]
    NoInputs { path: PathBuf },
    /// The model has no outputs.
    #[error("{path}: has no outputs; an answer needs at least one", path = path.display())]
    NoOutputs { path: PathBuf },
    /// An input's shape is not declared.
    #[error("{path}: input `{tensor}` has no shape; export the model with a shape whose first dimension is \
             dynamic and whose others are fixed", path = path.display())]
    NoShape { path: PathBuf, tensor: String },
    /// A first dimension is not the batch's.
    #[error("{path}: {role} `{tensor}` has the shape {shape}, whose first dimension is not a dynamic batch \
             dimension; export with a dynamic first dimension", path = path.display())]
    BatchDimension { path: PathBuf, role: &'static str, tensor: String, shape: String },
    /// A dimension other than the first is not fixed.
    #[error("{path}: dimension {index} of input `{tensor}` is {found}; export with every dimension but the \
             first fixed and above 0", path = path.display())]
    Dimension { path: PathBuf, tensor: String, index: usize, found: String },
    /// A dynamic dimension beyond the batch has no size.
    #[error("{path}: dimension {index} of input `{tensor}` is dynamic, with the name \"{name}\", and has no \
             size; give it one in sizes = [{{ dimension = \"{name}\", size = 128 }}], or export with it fixed",
            path = path.display())]
    Unsized { path: PathBuf, tensor: String, index: usize, name: String },
    /// A size is given for a dimension that the inputs do not have.
    #[error("{path}: has no dynamic dimension \"{name}\" beyond the batch, for which a size is given; its \
             inputs have {known:?}", path = path.display())]
    NoDimension { path: PathBuf, name: String, known: Vec<String> },
    /// A default is given for an input that the model does not have.
    #[error("{path}: has no input \"{input}\", for which a default is given; its inputs are {known:?}",
            path = path.display())]
    NoInput { path: PathBuf, input: String, known: Vec<String> },
    /// A default is no value of its input's type.
    #[error("{path}: the default of input \"{input}\" is {value}, which no {datatype} is; give another",
            path = path.display())]
    Default { path: PathBuf, input: String, value: f64, datatype: DataType },
    /// An element type is not supported by the executor.
    #[error("{path}: tensor `{tensor}` has {found}; export with one of {supported}", path = path.display())]
    DataType { path: PathBuf, tensor: String, found: String, supported: String },
    /// The inputs or outputs of a full batch are too large.
    #[error("{path}: a row of its {role} has {row} bytes, and {max_batch} of them pass the limit of {limit}; \
             lower max_batch, or export with smaller {role}", path = path.display())]
    TooLarge { path: PathBuf, role: &'static str, row: usize, max_batch: usize, limit: usize },
    /// The model failed on zeros.
    #[error("{path}: failed on a batch of {rows} rows of zeros ({reason}); export with a dynamic first \
             dimension that every operator keeps", path = path.display())]
    Trial { path: PathBuf, rows: usize, reason: String },
    /// The model has no batch that its rows could share with another's.
    #[error("{path}: can't be run as one with other models ({reason}); leave it out of the group", path = path.display())]
    NoSharedBatch { path: PathBuf, reason: String },
    /// The model shares no layer with another.
    #[error("{path}: shares no layer with {with}: from their inputs on, no node is the same in all models; \
             `symphony inspect` with these files says what they share", path = path.display(), with = with.display())]
    NothingShared { path: PathBuf, with: PathBuf },
    /// The model has other inputs than another.
    #[error("{path}: its inputs are {own}, and those of {with} {others}; models that are run as one have the \
             same", path = path.display(), with = with.display())]
    OtherInputs { path: PathBuf, with: PathBuf, own: String, others: String },
    /// The model can't be cut after the layers that it shares.
    #[error("{path}: can't be cut after the layers that it shares ({reason}); leave it out of the group",
            path = path.display())]
    Split { path: PathBuf, reason: String },
    /// The loader panicked, which a damaged file can make it do.
    #[error("{path}: made the ONNX loader fail in a way that it did not foresee; it is probably damaged: \
             export it again, or copy it again", path = path.display())]
    Panicked { path: PathBuf },
}

impl LoadError {
    /// Converts the operating system's error when the file was opened or read.
    pub(crate) fn from_io(path: &Path, source: std::io::Error) -> LoadError {
        match source.kind() {
            std::io::ErrorKind::NotFound => LoadError::Missing { path: path.into() },
            _ => LoadError::Unreadable { path: path.into(), source },
        }
    }
}

/// An error that leaves a batch without outputs.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say they are")]
pub enum RunError {
    /// The batch could not start by its `latest`, and was not run.
    #[error("the batch could not start in time")]
    Late,
    /// The batch's size is not one that the model was loaded for.
    #[error("a batch of {rows} rows was asked for; give 1 to {max_batch}")]
    Rows { rows: usize, max_batch: usize },
    /// The library refused an input or an operator failed.
    #[error("the model failed: {reason}")]
    Failed { reason: String },
    /// An output does not match the signature.
    #[error(
        "output `{tensor}` is {found} where {expected} was expected: shapes must not depend on the values, \
             and the first dimension must be the batch's where there is one"
    )]
    Output { tensor: String, expected: String, found: String },
    /// The library panicked.
    #[error("the model failed in a way that the ONNX runtime did not foresee")]
    Panicked,
}
