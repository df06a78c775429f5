//! A request's inputs, checked against the model's signature: names, types, shapes, lengths. Bytes
//! go from the body, or from shared memory, straight into the engine's slots ([`Inputs::fill`]).

use super::bounds::{InputFault, MAX_RANK};
use super::target::{Runs, Target};
use super::tensors::{elements, json};
use crate::api::net::large_buffers::shared;
use crate::api::net::memory::ReadBounds;
use crate::api::net::slices::{COPIED_PER_PARSED, COPY_PIECE, Slices};
use crate::api::problem::{Problem, names, quoted};
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::{RegionPart, RegionView, Regions};
use crate::runtime::frontend::InputFill;
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
    /// An input that the client leaves out: elements with these bytes.
    Repeated(Vec<u8>),
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
pub(in crate::api) struct Inputs<'m> {
    /// The model, or the size class, that they are for.
    pub(in crate::api) target: Target<'m>,
    /// The number of rows.
    pub(in crate::api) rows: Rows,
    /// The bytes of each input, in the signature's order.
    sources: Vec<RowSource>,
}

impl<'m> Inputs<'m> {
    /// Checks `given` against `found`, for a request of this application, if it names one, and of
    /// at most `most_rows` rows.
    ///
    /// Errors: 400 with what was wrong, where, and what would be right; 413 or 429 if the elements
    /// take too much memory.
    pub(in crate::api) async fn new<'a>(
        found: &'m FoundModel,
        application: Option<&str>,
        given: impl IntoIterator<Item = GivenInput<'a>>,
        regions: &Regions,
        most_rows: usize,
        bounds: &mut ReadBounds,
    ) -> Result<Inputs<'m>, Problem> {
        let specs = &found.signature.inputs;
        let mut by_input: Vec<Option<GivenInput<'_>>> = specs.iter().map(|_| None).collect();
        for given in given {
            if let InputData::Region(_) = given.data {
                regions.check_open()?;
            }
            let at = position(specs, given.name, "input")?;
            if let Some(twice) = by_input[at].replace(given) {
                return Err(Problem::bad(format!("input {} is given twice", quoted(twice.name))));
            }
        }
        let shapes = by_input.iter().map(|given| given.as_ref().map(|given| given.shape));
        let target = Target::of(found, application, shapes)?;
        let sources = Vec::with_capacity(specs.len());
        let mut inputs = Inputs { target, rows: Rows { count: 1, batched: false }, sources };
        let mut checked = 0;
        for (at, given) in by_input.into_iter().enumerate() {
            let spec = &inputs.target.own.inputs[at];
            let name = format!("{:?}", spec.name);
            let source = match (given, inputs.target.fill(at)) {
                (Some(given), _) => {
                    let shape = Shapes { spec, has_batch: found.signature.has_batch };
                    let rows = agree(inputs.rows, checked, shape, &given, most_rows);
                    inputs.rows = rows.map_err(|what| InputFault::Invalid(what).of(&name))?;
                    checked += 1;
                    let source = source(spec, given, inputs.rows.count, regions, bounds).await;
                    source.map_err(|fault| fault.of(&name))?
                }
                (None, fill) => {
                    let default = found.defaults.get(at).and_then(Option::as_ref);
                    let mask = fill.and_then(|fill| match fill {
                        InputFill::Mask(one) => Some(one),
                        InputFill::Element(_) => None,
                    });
                    if let Some(element) = default.or(mask) {
                        inputs.sources.push(RowSource::Repeated(element.clone()));
                        continue;
                    }
                    let all = names(specs.iter().map(|s| s.name.as_str()));
                    let message = format!("input {name} is missing; the model's inputs are {all}");
                    return Err(Problem::bad(message));
                }
            };
            inputs.sources.push(source);
        }
        Ok(inputs)
    }

    /// Writes row `row` in the layout of the model's signature, in slices. Rows must be written in
    /// order, each once.
    pub(in crate::api) async fn fill(&self, row: usize, slot: &mut [u8], slices: &Slices) {
        let Target { model, own } = &self.target;
        for (at, (source, spec)) in self.sources.iter().zip(&own.inputs).enumerate() {
            let to = &mut slot[model.signature.input_range(at)];
            let runs = Runs::new(&spec.shape, &model.signature.inputs[at].shape);
            if !runs.is_whole() {
                let element = match self.target.fill(at) {
                    Some(InputFill::Element(element)) => element,
                    Some(InputFill::Mask(_)) | None => &Vec::new(),
                };
                pad(to, element, slices).await;
            }
            let size = spec.datatype.size_bytes();
            let run = runs.elements() * size;
            let mut from = row * spec.bytes();
            for start in runs.starts() {
                source.copy(from, spec.datatype, &mut to[start * size..][..run], slices).await;
                from += run;
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

impl RowSource {
    /// Copies the bytes from `from` on into `to`, which a run of whole elements fills, in slices.
    async fn copy(&self, from: usize, datatype: DataType, to: &mut [u8], slices: &Slices) {
        match self {
            RowSource::Whole(bytes) => slices.copy(&bytes[from..from + to.len()], to).await,
            RowSource::Region(view) => view.read_in_slices(from, to, slices).await,
            RowSource::Repeated(element) => pad(to, element, slices).await,
            RowSource::Elements(wire, before) => {
                let DataType::Bytes(most) = datatype else { unreachable!("only BYTES come so") };
                let rest = elements::fill(&wire[before.get()..], to, most, slices).await;
                before.set(wire.len() - rest.len());
            }
        }
    }
}

/// Fills `to` with an element, with zeros where it has no bytes, in slices.
pub(super) async fn pad(to: &mut [u8], element: &[u8], slices: &Slices) {
    for piece in to.chunks_mut(COPY_PIECE) {
        match element.iter().all(|&byte| byte == 0) {
            true => piece.fill(0),
            false => piece.chunks_mut(element.len()).for_each(|to| to.copy_from_slice(&element[..to.len()])),
        }
        slices.did(piece.len() / COPIED_PER_PARSED).await;
    }
}

/// The shapes that an input may have.
#[derive(Clone, Copy)]
struct Shapes<'a> {
    spec: &'a TensorSpec,
    /// True if the model has a batch dimension.
    has_batch: bool,
}

/// Checks the type and the shape of an input, and returns the rows of the request with it: its rows
/// must be those of the `checked` inputs before.
fn agree(
    before: Rows,
    checked: usize,
    Shapes { spec, has_batch }: Shapes<'_>,
    given: &GivenInput<'_>,
    most_rows: usize,
) -> Result<Rows, String> {
    if given.datatype != spec.datatype.name() {
        let (is, right) = (quoted(given.datatype), spec.datatype.name());
        return Err(format!("datatype is {is}; it must be {right:?}"));
    }
    let rows = match has_batch {
        true => rows(given.shape, &spec.shape, most_rows)?,
        false => whole(given.shape, &spec.shape).map(|()| None)?,
    };
    let count = rows.unwrap_or(1);
    if checked > 0 && count != before.count {
        return Err(format!("has {count} rows, but the inputs before have {}", before.count));
    }
    Ok(Rows { count, batched: before.batched || rows.is_some() })
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

/// Checks the shape of a whole tensor. A single element may be a list of one.
fn whole(given: &[i64], right: &[usize]) -> Result<(), String> {
    let is_it = given.iter().copied().eq(right.iter().map(|&d| d as i64));
    match is_it || (right.is_empty() && given == [1]) {
        true => Ok(()),
        false if given.len() > MAX_RANK => {
            Err(format!("shape has {} dimensions; it must be {right:?}: the model has no batch", given.len()))
        }
        false => Err(format!("shape is {given:?}; it must be {right:?}: the model has no batch")),
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
