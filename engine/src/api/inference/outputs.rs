//! What of a model's outputs a client wants and in which form, and an answer's tensors in that
//! form.

use super::classes;
use super::inputs::{Rows, position};
use crate::api::answers::Reply;
use crate::api::problem::{Problem, quoted};
use crate::api::regions::{Place, Regions, View};
use crate::api::tensors::{elements, json};
use crate::runtime::frontend::ModelInfo;
use bytes::Bytes;
use std::ops::Range;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;

/// How an output's elements travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Format {
    /// In the answer's JSON.
    Json,
    /// In the protocol's binary form.
    Binary,
}

/// What a client asks of an output.
#[derive(Debug)]
pub(in crate::api) enum How<'a> {
    /// Its elements.
    Tensor,
    /// Of each row so many of the largest, as strings.
    Classes(u64),
    /// Its elements, in shared memory.
    Region(Place<'a>),
}

/// An output as a client asks for it.
#[derive(Debug)]
pub(in crate::api) struct Asked<'a> {
    /// Its name.
    pub(in crate::api) name: &'a str,
    /// What of it.
    pub(in crate::api) how: How<'a>,
    /// In which form.
    pub(in crate::api) format: Format,
}

/// An output to send, found to be one of the model's.
#[derive(Debug)]
pub(in crate::api) struct Wanted {
    /// Its index in the signature.
    at: usize,
    format: Format,
    classes: Option<usize>,
    region: Option<View>,
}

/// Checks what a client asks for of a model's outputs, for so many rows; all of them in `otherwise`
/// if it asks for none.
///
/// Errors: 400 with what was wrong and what would be right.
pub(in crate::api) fn wanted<'a>(
    model: &ModelInfo,
    asked: impl IntoIterator<Item = Asked<'a>>,
    otherwise: Format,
    rows: usize,
    regions: &Regions,
) -> Result<Vec<Wanted>, Problem> {
    let specs = &model.signature.outputs;
    let mut chosen: Vec<Wanted> = Vec::new();
    for Asked { name, how, format } in asked {
        let at = position(specs, name, "output")?;
        if chosen.iter().any(|other| other.at == at) {
            return Err(Problem::bad(format!("output {} is asked for twice", quoted(name))));
        }
        let wrong = |what: String| Problem::bad(format!("output {}: {what}", quoted(name)));
        let (mut classes, mut region) = (None, None);
        match how {
            How::Tensor => {}
            How::Classes(most) => classes = Some(classes_of(&specs[at], most).map_err(wrong)?),
            How::Region(place) => {
                region = Some(region_of(&specs[at], place, rows, regions).map_err(wrong)?);
            }
        }
        chosen.push(Wanted { at, format, classes, region });
    }
    if chosen.is_empty() {
        let all = 0..specs.len();
        chosen = all.map(|at| Wanted { at, format: otherwise, classes: None, region: None }).collect();
    }
    Ok(chosen)
}

fn classes_of(spec: &TensorSpec, most: u64) -> Result<usize, String> {
    if matches!(spec.datatype, DataType::Bytes(_)) {
        return Err("elements of BYTES have no order to be classified by".into());
    }
    match usize::try_from(most) {
        Ok(most @ 1..) => Ok(most.min(spec.elements())),
        _ => Err("parameters.classification must be the number of classes wanted, at least 1".into()),
    }
}

fn region_of(spec: &TensorSpec, place: Place<'_>, rows: usize, regions: &Regions) -> Result<View, String> {
    let needed = rows.saturating_mul(spec.bytes()) as u64;
    if !matches!(spec.datatype, DataType::Bytes(_)) && place.bytes < needed {
        return Err(format!("shared_memory_byte_size is {}; the output takes {needed}", place.bytes));
    }
    regions.view(place)
}

/// A tensor of an answer.
#[derive(Debug)]
pub(in crate::api) struct Output<'a> {
    /// Its name.
    pub(in crate::api) name: &'a str,
    /// The type of its elements.
    pub(in crate::api) datatype: &'static str,
    /// With the batch dimension if the inputs had it.
    pub(in crate::api) shape: Vec<usize>,
    /// How its elements are to travel.
    pub(in crate::api) format: Format,
    /// The shared memory that they are in instead, and how many bytes of it they take.
    pub(in crate::api) region: Option<(&'a View, usize)>,
    elements: Elements,
}

#[derive(Debug)]
enum Elements {
    /// As rows have them.
    Rows(DataType, Bytes),
    Texts(Vec<String>),
}

impl Output<'_> {
    /// The elements in the protocol's binary form.
    pub(in crate::api) fn wire(&self) -> Bytes {
        let mut wire = Vec::new();
        match &self.elements {
            Elements::Rows(DataType::Bytes(most), rows) => {
                elements::of(rows, *most).for_each(|element| elements::put(element, &mut wire));
            }
            Elements::Rows(_, rows) => return rows.clone(),
            Elements::Texts(texts) => texts.iter().for_each(|text| elements::put(text.as_bytes(), &mut wire)),
        }
        wire.into()
    }

    /// Appends the elements as a flat JSON array.
    pub(in crate::api) fn json(&self, out: &mut Vec<u8>) {
        match &self.elements {
            Elements::Rows(datatype, rows) => json::write(out, *datatype, rows),
            Elements::Texts(texts) => json::array(out, texts.iter()),
        }
    }
}

/// The tensors of an answer: `output` holds its rows, one after another. What goes to shared memory
/// is written there.
///
/// Errors: 400 where the shared memory is too small or gone.
pub(super) fn outputs<'a>(
    model: &'a ModelInfo,
    wanted: &'a [Wanted],
    rows: Rows,
    output: &Bytes,
) -> Result<Vec<Output<'a>>, Problem> {
    wanted.iter().map(|wanted| one(model, wanted, rows, output)).collect()
}

fn one<'a>(model: &'a ModelInfo, wanted: &'a Wanted, rows: Rows, all: &Bytes) -> Result<Output<'a>, Problem> {
    let spec = &model.signature.outputs[wanted.at];
    let tensor = gathered(&model.signature, wanted.at, rows.count, all);
    let mut shape: Vec<usize> = if rows.batched { vec![rows.count] } else { Vec::new() };
    let (datatype, elements) = match wanted.classes {
        None => {
            shape.extend(&spec.shape);
            (spec.datatype.name(), Elements::Rows(spec.datatype, tensor))
        }
        Some(most) => {
            shape.push(most);
            // A row without elements has no classes either.
            let rows = tensor.chunks(spec.bytes().max(1));
            let texts = rows.flat_map(|row| classes::largest(spec.datatype, row, most)).collect();
            ("BYTES", Elements::Texts(texts))
        }
    };
    let mut output =
        Output { name: &spec.name, datatype, shape, format: wanted.format, region: None, elements };
    if let Some(view) = &wanted.region {
        let wire = output.wire();
        view.write(&wire).map_err(|what| Problem::bad(format!("output {:?}: {what}", spec.name)))?;
        output.region = Some((view, wire.len()));
    }
    Ok(output)
}

/// One output of all rows. Of a single row nothing is copied.
fn gathered(signature: &Signature, at: usize, rows: usize, all: &Bytes) -> Bytes {
    let (range, stride) = (signature.output_range(at), signature.output_bytes());
    if rows == 1 {
        return all.slice(range);
    }
    let of_row = |row: usize| -> Range<usize> { row * stride + range.start..row * stride + range.end };
    let mut tensor = Vec::with_capacity(rows * range.len());
    (0..rows).for_each(|row| tensor.extend_from_slice(&all[of_row(row)]));
    tensor.into()
}

/// When what happened to a request, and where: the parameters of its answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Times([(&'static str, u64); 7]);

impl Times {
    /// Times are microseconds since the request was queued.
    pub(in crate::api) fn of(reply: &Reply) -> Times {
        let since = |at: Nanos| (at - reply.timeline.arrival).0 / 1_000;
        Times([
            ("queued_us", 0),
            ("batched_us", since(reply.timeline.batched)),
            ("started_us", since(reply.timeline.started)),
            ("finished_us", since(reply.timeline.finished)),
            ("answered_us", since(reply.timeline.answered)),
            ("batch_size", reply.batch_size.into()),
            ("gpu", reply.gpu.0.into()),
        ])
    }

    /// Their names and values.
    pub(in crate::api) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.into_iter()
    }
}
