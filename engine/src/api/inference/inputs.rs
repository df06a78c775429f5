//! A request's inputs, checked against the model's signature: names, types, shapes, lengths. Bytes
//! go from the body, or from shared memory, straight into the engine's slots ([`Inputs::fill`]).

use super::bounds::{InputFault, MAX_RANK};
use super::tensors::{elements, json};
use crate::api::net::large_buffers::shared;
use crate::api::net::memory::ReadBounds;
use crate::api::net::slices::{COPIED_PER_PARSED, COPY_PIECE, Slices};
use crate::api::problem::{Problem, names, quoted};
use crate::api::services::shared_memory::{RegionPart, RegionView, Regions};
use crate::runtime::frontend::ModelInfo;
use bytes::Bytes;
use std::cell::Cell;
use symphony_gpu::{DataType, TensorSpec};

/// One input as the client gave it.
#[derive(Debug)]
pub(in crate::api) struct GivenInput<'a> {
    /// The input's name.
    pub(in crate::api) name: &'a str,
    /// The protocol's name of its type.
    pub(in crate::api) datatype: &'a str,
    /// The shape, with or without the batch dimension.
    pub(in crate::api) shape: &'a [i64],
    /// The elements.
    pub(in crate::api) data: InputData<'a>,
}

/// The elements of an input, or the place of them.
#[derive(Debug)]
pub(in crate::api) enum InputData<'a> {
    /// Elements in JSON, which need not be valid.
    Json(&'a [u8]),
    /// Elements in the protocol's binary form.
    Wire(Bytes),
    /// Elements in shared memory, in the protocol's binary form.
    Region(RegionPart<'a>),
    /// No elements.
    Missing,
}

/// The bytes of an input, checked to be as many as all rows need.
#[derive(Debug)]
enum RowSource {
    /// Elements of one size.
    Whole(Bytes),
    /// Elements of BYTES, and the end of those of the rows before.
    Elements(Bytes, Cell<usize>),
    /// Elements of one size in shared memory.
    Region(RegionView),
}

/// The number of rows of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) struct Rows {
    /// The number, at least 1.
    pub(in crate::api) count: usize,
    /// True if the inputs' shapes have the batch dimension; the answer's then have it too.
    pub(in crate::api) batched: bool,
}

/// The inputs of a request, all with the same number of rows.
#[derive(Debug)]
pub(in crate::api) struct Inputs {
    /// The number of rows.
    pub(in crate::api) rows: Rows,
    /// The bytes of each input, in the signature's order.
    sources: Vec<RowSource>,
}

impl Inputs {
    /// Checks `given` against `model`. A request has at most `most_rows` rows.
    ///
    /// Errors: 400 with what was wrong, where, and what would be right; 413 or 429 if the elements
    /// take too much memory.
    pub(in crate::api) async fn new<'a>(
        model: &ModelInfo,
        given: impl IntoIterator<Item = GivenInput<'a>>,
        regions: &Regions,
        most_rows: usize,
        bounds: &mut ReadBounds,
    ) -> Result<Inputs, Problem> {
        let specs = &model.signature.inputs;
        let mut found: Vec<Option<GivenInput<'_>>> = specs.iter().map(|_| None).collect();
        for given in given {
            if let InputData::Region(_) = given.data {
                regions.check_open()?;
            }
            let at = position(specs, given.name, "input")?;
            if let Some(twice) = found[at].replace(given) {
                return Err(Problem::bad(format!("input {} is given twice", quoted(twice.name))));
            }
        }
        let rows = Rows { count: 1, batched: false };
        let mut inputs = Inputs { rows, sources: Vec::with_capacity(specs.len()) };
        for (at, (spec, given)) in specs.iter().zip(found).enumerate() {
            let given = given.ok_or_else(|| {
                let all = names(specs.iter().map(|s| s.name.as_str()));
                Problem::bad(format!("input {:?} is missing; the model's inputs are {all}", spec.name))
            })?;
            let name = format!("{:?}", spec.name);
            let agreed = inputs.agree(at, spec, &given, most_rows);
            agreed.map_err(|what| InputFault::Invalid(what).of(&name))?;
            let source = source(spec, given, inputs.rows.count, regions, bounds).await;
            inputs.sources.push(source.map_err(|fault| fault.of(&name))?);
        }
        Ok(inputs)
    }

    /// Checks the type and the shape of the input at `at`; its rows must be those of the inputs
    /// before.
    fn agree(
        &mut self,
        at: usize,
        spec: &TensorSpec,
        given: &GivenInput<'_>,
        most_rows: usize,
    ) -> Result<(), String> {
        if given.datatype != spec.datatype.name() {
            let (is, right) = (quoted(given.datatype), spec.datatype.name());
            return Err(format!("datatype is {is}; it must be {right:?}"));
        }
        let rows = rows(given.shape, &spec.shape, most_rows)?;
        let count = rows.unwrap_or(1);
        if at > 0 && count != self.rows.count {
            return Err(format!("has {count} rows, but the inputs before have {}", self.rows.count));
        }
        self.rows = Rows { count, batched: self.rows.batched || rows.is_some() };
        Ok(())
    }

    /// Writes row `row` in the layout of the model's signature, in slices. Rows must be written in
    /// order, each once.
    pub(in crate::api) async fn fill(&self, model: &ModelInfo, row: usize, slot: &mut [u8], slices: &Slices) {
        for (at, (source, spec)) in self.sources.iter().zip(&model.signature.inputs).enumerate() {
            let to = &mut slot[model.signature.input_range(at)];
            let from = row * to.len();
            match source {
                RowSource::Whole(bytes) => slices.copy(&bytes[from..from + to.len()], to).await,
                RowSource::Region(view) => view.read_in_slices(from, to, slices).await,
                RowSource::Elements(wire, before) => {
                    let DataType::Bytes(most) = spec.datatype else { unreachable!("only BYTES come so") };
                    let rest = elements::fill(&wire[before.get()..], to, most, slices).await;
                    before.set(wire.len() - rest.len());
                }
            }
            if spec.datatype == DataType::Bool {
                // Any non-zero byte is true, and executors rely on 0 and 1.
                for piece in to.chunks_mut(COPY_PIECE) {
                    piece.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
                    slices.did(piece.len() / COPIED_PER_PARSED).await;
                }
            }
        }
    }
}

/// Returns the index of the tensor `name` in `specs`.
///
/// Errors: 400 with the names that exist; `kind` is `input` or `output`.
pub(super) fn position(specs: &[TensorSpec], name: &str, kind: &str) -> Result<usize, Problem> {
    specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known = names(specs.iter().map(|s| s.name.as_str()));
        Problem::bad(format!("{kind} {} is not one of the model's {kind}s {known}", quoted(name)))
    })
}

/// Returns the number of rows of a shape; `None` if it lacks the batch dimension, which means one
/// row.
fn rows(given: &[i64], row: &[usize], most: usize) -> Result<Option<usize>, String> {
    let is_row = |shape: &[i64]| shape.iter().copied().eq(row.iter().map(|&d| d as i64));
    if is_row(given) {
        return Ok(None);
    }
    let batched: Vec<i64> = std::iter::once(1).chain(row.iter().map(|&d| d as i64)).collect();
    match given {
        [rows, rest @ ..] if is_row(rest) => match usize::try_from(*rows) {
            Ok(rows) if (1..=most).contains(&rows) => Ok(Some(rows)),
            _ => Err(format!("shape is {given:?}, {rows} rows; a request may have 1 to {most}")),
        },
        _ if given.len() > MAX_RANK => {
            Err(format!("shape has {} dimensions; it must be {batched:?} or {row:?}", given.len()))
        }
        _ => Err(format!("shape is {given:?}; it must be {batched:?} or {row:?}")),
    }
}

async fn source(
    spec: &TensorSpec,
    given: GivenInput<'_>,
    rows: usize,
    regions: &Regions,
    bounds: &mut ReadBounds,
) -> Result<RowSource, InputFault> {
    let count = rows.saturating_mul(spec.elements());
    let needed = rows.saturating_mul(spec.bytes());
    let wire = match given.data {
        InputData::Json(text) => {
            let shape: Vec<usize> = given.shape.iter().map(|&d| d as usize).collect();
            shared(json::parse(text, spec.datatype, &shape, bounds).await?)
        }
        InputData::Wire(bytes) => bytes,
        InputData::Region(part) => {
            let fits = match spec.datatype {
                DataType::Bytes(_) => part.bytes <= needed as u64,
                _ => part.bytes == needed as u64,
            };
            if !fits {
                return Err(length(part.bytes, spec, given.shape, needed).into());
            }
            let bytes = part.bytes as usize;
            let view = regions.view(part)?;
            match spec.datatype {
                // Checked lengths must not change any more, so BYTES are copied first.
                DataType::Bytes(_) => {
                    bounds.memory.grow(bytes)?;
                    shared(view.to_vec(&bounds.slices).await)
                }
                _ => return Ok(RowSource::Region(view)),
            }
        }
        InputData::Missing => {
            let what = "has no elements: give \"data\", binary data or a shared memory region";
            return Err(InputFault::Invalid(what.to_owned()));
        }
    };
    if let DataType::Bytes(most) = spec.datatype {
        elements::check(&wire, count, most, &bounds.slices).await?;
        return Ok(RowSource::Elements(wire, Cell::new(0)));
    }
    if wire.len() != needed {
        return Err(length(wire.len() as u64, spec, given.shape, needed).into());
    }
    Ok(RowSource::Whole(wire))
}

fn length(is: u64, spec: &TensorSpec, shape: &[i64], needed: usize) -> String {
    let most = if matches!(spec.datatype, DataType::Bytes(_)) { "at most " } else { "" };
    format!("has {is} bytes of data; {} elements of shape {shape:?} take {most}{needed}", spec.datatype)
}
