//! The import of ONNX files as people have them. The file is checked before a library sees it; a
//! first dimension that is fixed to 1 becomes the batch's where every operator keeps rows apart,
//! and the model then computes the same; else the model runs one row at a time. Where the tensors
//! have no such dimension, or the model does not keep it, a run takes one request, whole.
//!
//! ```text
//! file ─▶ checked ─▶ batch found ─▶ rewritten ─▶ loaded ─▶ 3 rows as each alone? ─▶ batches
//!             │          └─────────────── no ──────────────────────┴──────────────▶ one row
//!             └──▶ no dimension for it ─▶ loaded with whole shapes ───────────────▶ one request
//! ```

mod agreement;
mod batch;
mod declared;
mod defaults;
mod effect;
mod facts;
mod file;
mod grouping;
mod known;
mod number;
mod prefix;
mod proto;
mod rewrite;
mod rules;
mod sizes;
mod source;
mod split;
mod structure;
mod summary;

pub(crate) use agreement::{ROWS, RowAlone, compare_mixed, rows_alone};
pub(crate) use declared::{DeclaredTypes, ElementType};
pub(crate) use defaults::trial_row;
pub use defaults::{InputDefaults, put_defaults};
pub(crate) use facts::is_standard;
pub use grouping::{SharingGroup, sharing_groups};
pub use prefix::{PrefixedModel, SharedPrefix};
pub use sizes::{DimensionSizes, SizedFile, TEXT_BYTES};
pub(crate) use source::{BatchDimension, OnnxSource};
pub(crate) use split::{SplitError, SplitFiles};
pub use summary::{OnnxSummary, OperatorCount, TensorSummary, size_text, summarise};

use crate::host::{HostModel, LoadError};
use batch::FirstDimension;
use file::OnnxFile;
use rten_onnx::onnx::ModelProto;
use source::InputShapes;

/// Loads a file for batches of at most `max_batch` by `load`, and returns the model
/// with a note about its batch, where there is something to say.
///
/// Errors: the file can't be read, a dynamic dimension beyond the batch has no size, a size no
/// dimension, or `load` refuses the file.
pub(crate) fn load<M: HostModel>(
    file: SizedFile<'_>,
    max_batch: usize,
    load: impl Fn(OnnxSource, usize) -> Result<M, LoadError>,
) -> Result<(M, Option<String>), LoadError> {
    let Prepared { unchanged, batch } = Prepared::of(file, max_batch)?;
    match batch {
        PreparedBatch::Declared => match load(unchanged, max_batch) {
            Ok(mut model) => {
                let note = agreement::notice(&file, &mut model).map(|how| depends(&how));
                Ok((model, note))
            }
            Err(error) => load_whole(file, error, load),
        },
        PreparedBatch::Absent(why) => Ok((load(unchanged, 1)?, Some(absent(&why)))),
        PreparedBatch::Fixed(why) => match load(unchanged, 1) {
            Ok(model) => Ok((model, Some(fixed(&why)))),
            Err(error) => load_whole(file, error, load),
        },
        PreparedBatch::Dynamic(changed) => {
            let mut alone = match load(unchanged, 1) {
                Ok(model) => model,
                Err(error) => return load_whole(file, error, load),
            };
            let batched = load(*changed, max_batch);
            let compared = batched.map_err(|error| error.to_string()).and_then(|mut batched| {
                agreement::compare(&file, &mut batched, &mut alone)?;
                Ok(batched)
            });
            Ok(match compared {
                Ok(batched) => (batched, Some(made_dynamic(max_batch))),
                Err(why) => (alone, Some(fixed(&why))),
            })
        }
    }
}

/// Loads a file of which `error` says that it does not keep a batch as a model without one. Returns
/// the error if it is another, or if the file is refused so too.
fn load_whole<M>(
    file: SizedFile<'_>,
    error: LoadError,
    load: impl Fn(OnnxSource, usize) -> Result<M, LoadError>,
) -> Result<(M, Option<String>), LoadError> {
    let why = match &error {
        LoadError::BatchDimension { role, tensor, shape, .. } => {
            format!("{role} `{tensor}` has the shape {shape}")
        }
        LoadError::Trial { rows, reason, .. } => format!("a batch of {rows} rows fails: {reason}"),
        _ => return Err(error),
    };
    let read = OnnxFile::read(file.path)?;
    match Prepared::without_batch(read, file).and_then(|source| load(source, 1)) {
        Ok(model) => Ok((model, Some(absent(&why)))),
        Err(_) => Err(error),
    }
}

/// Loads a file as [`load`] does, and does not run it: a batch is made dynamic where the rules find
/// that every operator keeps rows apart and `load` takes the rewritten file.
///
/// Errors: those of [`load`].
pub(crate) fn load_by_rules<T>(
    file: SizedFile<'_>,
    max_batch: usize,
    load: impl Fn(OnnxSource, usize) -> Result<T, LoadError>,
) -> Result<(T, Option<String>), LoadError> {
    let Prepared { unchanged, batch } = Prepared::of(file, max_batch)?;
    match batch {
        PreparedBatch::Declared => Ok((load(unchanged, max_batch)?, None)),
        PreparedBatch::Absent(why) => Ok((load(unchanged, 1)?, Some(absent(&why)))),
        PreparedBatch::Fixed(why) => Ok((load(unchanged, 1)?, Some(fixed(&why)))),
        PreparedBatch::Dynamic(changed) => match load(*changed, max_batch) {
            Ok(loaded) => Ok((loaded, Some(MADE_DYNAMIC_BY_RULES.to_owned()))),
            Err(why) => Ok((load(unchanged, 1)?, Some(fixed(&why.to_string())))),
        },
    }
}

/// A file of which rows share batches with another's: for batches of any size, and as it is loaded
/// to run one row alone.
pub(crate) struct SharedBatchFile {
    pub(crate) batched: OnnxSource,
    pub(crate) alone: OnnxSource,
}

impl SharedBatchFile {
    /// Reads a file.
    ///
    /// Errors: those of [`load`]; the file has no batch of more than one request.
    pub(crate) fn read(file: SizedFile<'_>, max_batch: usize) -> Result<SharedBatchFile, LoadError> {
        let Prepared { unchanged, batch } = Prepared::of(file, max_batch)?;
        let no_batch = |reason| Err(LoadError::NoSharedBatch { path: file.path.into(), reason });
        match batch {
            PreparedBatch::Declared => Ok(SharedBatchFile { alone: unchanged.clone(), batched: unchanged }),
            PreparedBatch::Dynamic(changed) => Ok(SharedBatchFile { alone: unchanged, batched: *changed }),
            PreparedBatch::Absent(why) => no_batch(absent(&why)),
            PreparedBatch::Fixed(why) => no_batch(fixed(&why)),
        }
    }
}

/// A file that is ready to be loaded. What was read of it besides is given up by then.
struct Prepared {
    /// The file with the batch that it declares, or one row at a time.
    unchanged: OnnxSource,
    batch: PreparedBatch,
}

/// The batch of a file that is ready to be loaded.
enum PreparedBatch {
    /// A batch as the file declares it.
    Declared,
    /// No batch, for this reason.
    Absent(String),
    /// A batch of one, and what stands in the way of more.
    Fixed(String),
    /// A batch of any size, in the file as it was rewritten for it.
    Dynamic(Box<OnnxSource>),
}

impl Prepared {
    fn of(sized: SizedFile<'_>, max_batch: usize) -> Result<Prepared, LoadError> {
        let SizedFile { path, sizes, .. } = sized;
        if max_batch == 0 {
            return Err(LoadError::MaxBatch { path: path.into() });
        }
        let file = OnnxFile::read(path)?;
        let found = batch::find(&file.model);
        if let FirstDimension::Absent(why) = found {
            let unchanged = Prepared::without_batch(file, sized)?;
            return Ok(Prepared { unchanged, batch: PreparedBatch::Absent(why) });
        }
        let sizes = sizes::changes(&file.model, sizes, path)?;
        let source = |rewritten, batch| OnnxSource {
            path: path.into(),
            rewritten,
            declared: DeclaredTypes::of(&file.model),
            weights: file.weights.clone(),
            weights_bytes: file.weights_bytes,
            batch,
            shapes: InputShapes::new(),
        };
        let rewritten = |batch| rewritten(&file.bytes, &file.model, batch, &sizes);
        let unchanged = |batch| source(rewritten(None), batch);
        Ok(match found {
            FirstDimension::Declared | FirstDimension::Absent(_) => {
                Prepared { unchanged: unchanged(BatchDimension::Dynamic), batch: PreparedBatch::Declared }
            }
            FirstDimension::Fixed(why) => {
                Prepared { unchanged: unchanged(BatchDimension::One), batch: PreparedBatch::Fixed(why) }
            }
            FirstDimension::CanBeBatch(changes) => {
                let changed = source(rewritten(Some(changes)), BatchDimension::Dynamic);
                let batch = PreparedBatch::Dynamic(Box::new(changed));
                Prepared { unchanged: unchanged(BatchDimension::One), batch }
            }
        })
    }

    /// Returns a file that is loaded without a batch. Its dynamic dimensions stay: what a library
    /// derives from fixed ones may contradict a branch that is never taken.
    fn without_batch(file: OnnxFile, sized: SizedFile<'_>) -> Result<OnnxSource, LoadError> {
        let SizedFile { path, sizes, .. } = sized;
        let graph = file.model.graph.as_ref();
        Ok(OnnxSource {
            path: path.into(),
            rewritten: rewritten(&file.bytes, &file.model, None, &[]),
            declared: DeclaredTypes::of(&file.model),
            shapes: graph.map_or(Ok(InputShapes::new()), |graph| sizes::whole_shapes(graph, sizes, path))?,
            weights: file.weights,
            weights_bytes: file.weights_bytes,
            batch: BatchDimension::Absent,
        })
    }
}

/// The note about a batch that was made dynamic, and not tried.
const MADE_DYNAMIC_BY_RULES: &str =
    "the first dimension is 1 in the file and was made the batch's: each operator keeps rows apart";

fn made_dynamic(max_batch: usize) -> String {
    let rows = agreement::ROWS.min(max_batch);
    format!(
        "the first dimension is 1 in the file and was made the batch's: each operator keeps rows apart, \
         and {rows} rows in a batch have the outputs that each has alone"
    )
}

fn depends(how: &str) -> String {
    format!(
        "a row's outputs depend on the others of its batch, by what the model computes: {how}; with \
         max_batch = 1 each answer is as alone"
    )
}

fn absent(why: &str) -> String {
    format!("the model has no batch, so each run is one request, whose shapes are whole: {why}")
}

fn fixed(why: &str) -> String {
    format!("the first dimension is 1 in the file, so each batch is one request: {why}")
}

/// Returns the content that takes a file's place, `None` where nothing changes.
fn rewritten(
    bytes: &[u8],
    model: &ModelProto,
    batch: Option<rewrite::BatchChanges>,
    sizes: &[rewrite::SizeChange],
) -> Option<Vec<u8>> {
    let changes = batch::changes(model, batch, sizes);
    if changes == rewrite::Changes::default() {
        return None;
    }
    rewrite::rewrite(bytes, model.ir_version.unwrap_or(0), &changes)
}

/// Reads the bytes of a file, looks for its batch and rewrites it, as before a load. Returns the
/// content that takes the file's place, if something changes. The fuzzer runs it.
#[doc(hidden)]
pub fn rewrite_bytes(bytes: &[u8]) -> Option<Vec<u8>> {
    let model = file::parse(bytes).ok()?;
    let batch = match batch::find(&model) {
        FirstDimension::CanBeBatch(changes) => Some(changes),
        _ => None,
    };
    rewritten(bytes, &model, batch, &[])
}
