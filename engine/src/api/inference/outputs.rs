//! What of a model's outputs a client wants and in which form, and an answer's tensors in that
//! form.

use super::classification;
use super::inputs::{Rows, position};
use super::tensors::{elements, json};
use crate::api::problem::{Problem, quoted};
use crate::api::services::engine_client::EngineReply;
use crate::api::services::shared_memory::{RegionPart, RegionView, Regions};
use crate::runtime::frontend::ModelInfo;
use bytes::Bytes;
use std::ops::Range;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;

/// OutputKind an output's elements travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Format {
    /// In the answer's JSON.
    Json,
    /// In the protocol's binary form.
    Binary,
}

/// What a client asks of an output.
#[derive(Debug)]
pub(in crate::api) enum OutputKind<'a> {
    /// Its elements.
    Tensor,
    /// Of each row so many of the largest, as strings.
    Classes(u64),
    /// Its elements, in shared memory.
    Region(RegionPart<'a>),
}

/// An output as a client asks for it.
#[derive(Debug)]
pub(in crate::api) struct RequestedOutput<'a> {
    /// Its name.
    pub(in crate::api) name: &'a str,
    /// What of it.
    pub(in crate::api) how: OutputKind<'a>,
    /// In which form.
    pub(in crate::api) format: Format,
}

/// An output to send, found to be one of the model's.
#[derive(Debug)]
pub(in crate::api) struct ChosenOutput {
    /// Its index in the signature.
    at: usize,
    format: Format,
    classes: Option<usize>,
    region: Option<RegionView>,
}

/// Checks what a client asks for of a model's outputs, for so many rows; all of them in `otherwise`
/// if it asks for none.
///
/// Errors: 400 with what was wrong and what would be right.
pub(in crate::api) fn choose<'a>(
    model: &ModelInfo,
    asked: impl IntoIterator<Item = RequestedOutput<'a>>,
    otherwise: Format,
    rows: usize,
    regions: &Regions,
) -> Result<Vec<ChosenOutput>, Problem> {
    let specs = &model.signature.outputs;
    let mut chosen: Vec<ChosenOutput> = Vec::new();
    for RequestedOutput { name, how, format } in asked {
        let at = position(specs, name, "output")?;
        if chosen.iter().any(|other| other.at == at) {
            return Err(Problem::bad(format!("output {} is asked for twice", quoted(name))));
        }
        let wrong = |what: String| Problem::bad(format!("output {}: {what}", quoted(name)));
        let (mut classes, mut region) = (None, None);
        match how {
            OutputKind::Tensor => {}
            OutputKind::Classes(most) => classes = Some(classes_of(&specs[at], most).map_err(wrong)?),
            OutputKind::Region(part) => {
                region = Some(region_of(&specs[at], part, rows, regions).map_err(wrong)?);
            }
        }
        chosen.push(ChosenOutput { at, format, classes, region });
    }
    if chosen.is_empty() {
        let all = 0..specs.len();
        chosen = all.map(|at| ChosenOutput { at, format: otherwise, classes: None, region: None }).collect();
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

fn region_of(
    spec: &TensorSpec,
    part: RegionPart<'_>,
    rows: usize,
    regions: &Regions,
) -> Result<RegionView, String> {
    let needed = rows.saturating_mul(spec.bytes()) as u64;
    if !matches!(spec.datatype, DataType::Bytes(_)) && part.bytes < needed {
        return Err(format!("shared_memory_byte_size is {}; the output takes {needed}", part.bytes));
    }
    regions.view(part)
}

/// A tensor of an answer.
#[derive(Debug)]
pub(in crate::api) struct AnswerTensor<'a> {
    /// Its name.
    pub(in crate::api) name: &'a str,
    /// The type of its elements.
    pub(in crate::api) datatype: &'static str,
    /// With the batch dimension if the inputs had it.
    pub(in crate::api) shape: Vec<usize>,
    /// OutputKind its elements are to travel.
    pub(in crate::api) format: Format,
    /// The shared memory that they are in instead, and how many bytes of it they take.
    pub(in crate::api) region: Option<(&'a RegionView, usize)>,
    elements: TensorElements,
}

#[derive(Debug)]
enum TensorElements {
    /// As rows have them.
    Rows(DataType, Bytes),
    Texts(Vec<String>),
}

impl AnswerTensor<'_> {
    /// The elements in the protocol's binary form.
    pub(in crate::api) fn wire(&self) -> Bytes {
        let mut wire = Vec::new();
        match &self.elements {
            TensorElements::Rows(DataType::Bytes(most), rows) => {
                elements::of(rows, *most).for_each(|element| elements::put(element, &mut wire));
            }
            TensorElements::Rows(_, rows) => return rows.clone(),
            TensorElements::Texts(texts) => {
                texts.iter().for_each(|text| elements::put(text.as_bytes(), &mut wire))
            }
        }
        wire.into()
    }

    /// Appends the elements as a flat JSON array.
    pub(in crate::api) fn json(&self, out: &mut Vec<u8>) {
        match &self.elements {
            TensorElements::Rows(datatype, rows) => json::write(out, *datatype, rows),
            TensorElements::Texts(texts) => json::array(out, texts.iter()),
        }
    }
}

/// The tensors of an answer: `output` holds its rows, one after another. What goes to shared memory
/// is written there.
///
/// Errors: 400 where the shared memory is too small or gone.
pub(super) fn outputs<'a>(
    model: &'a ModelInfo,
    chosen: &'a [ChosenOutput],
    rows: Rows,
    output: &Bytes,
) -> Result<Vec<AnswerTensor<'a>>, Problem> {
    chosen.iter().map(|chosen| tensor_of(model, chosen, rows, output)).collect()
}

fn tensor_of<'a>(
    model: &'a ModelInfo,
    chosen: &'a ChosenOutput,
    rows: Rows,
    all: &Bytes,
) -> Result<AnswerTensor<'a>, Problem> {
    let spec = &model.signature.outputs[chosen.at];
    let tensor = gathered(&model.signature, chosen.at, rows.count, all);
    let mut shape: Vec<usize> = if rows.batched { vec![rows.count] } else { Vec::new() };
    let (datatype, elements) = match chosen.classes {
        None => {
            shape.extend(&spec.shape);
            (spec.datatype.name(), TensorElements::Rows(spec.datatype, tensor))
        }
        Some(most) => {
            shape.push(most);
            // A row without elements has no classes either.
            let rows = tensor.chunks(spec.bytes().max(1));
            let texts = rows.flat_map(|row| classification::largest(spec.datatype, row, most)).collect();
            ("BYTES", TensorElements::Texts(texts))
        }
    };
    let mut output =
        AnswerTensor { name: &spec.name, datatype, shape, format: chosen.format, region: None, elements };
    if let Some(view) = &chosen.region {
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
pub(in crate::api) struct AnswerTimes([(&'static str, u64); 7]);

impl AnswerTimes {
    /// AnswerTimes are microseconds since the request was queued.
    pub(in crate::api) fn of(reply: &EngineReply) -> AnswerTimes {
        let since = |at: Nanos| (at - reply.arrival).0 / 1_000;
        AnswerTimes([
            ("queued_us", 0),
            ("batched_us", since(reply.batched)),
            ("started_us", since(reply.started)),
            ("finished_us", since(reply.finished)),
            ("answered_us", since(reply.answered)),
            ("batch_size", reply.batch_size.into()),
            ("gpu", reply.gpu.0.into()),
        ])
    }

    /// Their names and values.
    pub(in crate::api) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.into_iter()
    }
}
