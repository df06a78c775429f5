//! The outputs that a client requests, checked against the model, and an answer's tensors in the
//! requested form.

use super::classification;
use super::inputs::{Rows, position};
use super::target::{Runs, Target};
use super::tensors::{elements, json};
use crate::api::net::large_buffers::shared;
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, quoted};
use crate::api::services::engine_client::EngineReply;
use crate::api::services::shared_memory::{RegionPart, RegionView, Regions};
use bytes::Bytes;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;

/// The bytes of elements that are written as JSON at a time.
const PIECE: usize = 4_096;

/// The room for what these become, of most types.
const JSON_ROOM: usize = 8 * PIECE;

/// The work of writing an element of a few bytes as JSON, in bytes.
const JSON_WORK: usize = 16;

/// The form in which an output's elements are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Format {
    /// The answer's JSON.
    Json,
    /// The protocol's binary form.
    Binary,
}

/// The content that a client requests of an output.
#[derive(Debug)]
pub(in crate::api) enum OutputKind<'a> {
    /// The elements.
    Tensor,
    /// The given number of largest elements of each row, as strings.
    Classes(u64),
    /// The elements, written to shared memory.
    Region(RegionPart<'a>),
}

/// An output as the client requests it.
#[derive(Debug)]
pub(in crate::api) struct RequestedOutput<'a> {
    /// The output's name.
    pub(in crate::api) name: &'a str,
    /// The content.
    pub(in crate::api) how: OutputKind<'a>,
    /// The form.
    pub(in crate::api) format: Format,
}

/// An output to send, checked against the model.
#[derive(Debug)]
pub(in crate::api) struct ChosenOutput {
    /// The index in the signature.
    at: usize,
    format: Format,
    classes: Option<usize>,
    region: Option<RegionView>,
}

/// Checks the outputs that a client requests, for a request of `rows` rows with the tensors `own`.
/// If it requests none, all outputs are sent in the form `otherwise`.
///
/// Errors: 400 with what was wrong and what would be right.
pub(in crate::api) fn choose<'a>(
    own: &Signature,
    asked: impl IntoIterator<Item = RequestedOutput<'a>>,
    otherwise: Format,
    rows: usize,
    regions: &Regions,
) -> Result<Vec<ChosenOutput>, Problem> {
    let specs = &own.outputs;
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
                regions.check_open()?;
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
    /// The output's name.
    pub(in crate::api) name: &'a str,
    /// The type of its elements.
    pub(in crate::api) datatype: &'static str,
    /// The shape, with the batch dimension if the inputs had it.
    pub(in crate::api) shape: Vec<usize>,
    /// The form in which its elements are sent.
    pub(in crate::api) format: Format,
    /// The shared memory that holds the elements instead, and their length in bytes.
    pub(in crate::api) region: Option<(&'a RegionView, usize)>,
    elements: TensorElements,
}

#[derive(Debug)]
enum TensorElements {
    /// Elements in the layout of rows.
    Rows(DataType, Bytes),
    /// Elements of BYTES in the protocol's binary form.
    Texts(Bytes),
}

impl AnswerTensor<'_> {
    /// Returns the elements in the protocol's binary form, which is made in slices.
    pub(in crate::api) async fn wire(&self, slices: &Slices) -> Bytes {
        let mut wire = Vec::new();
        match &self.elements {
            TensorElements::Rows(DataType::Bytes(most), rows) => {
                elements::put_all(rows, *most, &mut wire, slices).await;
            }
            TensorElements::Rows(_, rows) => return rows.clone(),
            TensorElements::Texts(texts) => return texts.clone(),
        }
        shared(wire)
    }

    /// Appends the elements as a flat JSON array, in slices.
    pub(in crate::api) async fn json(&self, out: &mut Vec<u8>, slices: &Slices) {
        out.push(b'[');
        match &self.elements {
            TensorElements::Rows(DataType::Bytes(most), rows) if *most as usize > PIECE => {
                for element in elements::of(rows, *most) {
                    json::write_text(out, element, slices).await;
                }
            }
            TensorElements::Rows(datatype, rows) => {
                let size = datatype.size_bytes();
                for piece in rows.chunks((PIECE / size).max(1) * size) {
                    slices.reserve(out, JSON_ROOM).await;
                    json::write_elements(out, *datatype, piece);
                    slices.did(piece.len() * JSON_WORK / size.min(JSON_WORK)).await;
                }
            }
            TensorElements::Texts(texts) => {
                for text in elements::texts(texts) {
                    slices.reserve(out, 2 * text.len() + 3).await;
                    json::put_all(out, std::iter::once(text));
                    slices.did(JSON_WORK).await;
                }
            }
        }
        json::close(out);
    }
}

/// Returns the tensors of an answer, whose rows lie in `output` one after another, in slices. Those
/// for shared memory are written there.
///
/// Errors: 400 if the shared memory is too small or gone.
pub(super) async fn outputs<'a>(
    target: &'a Target<'_>,
    chosen: &'a [ChosenOutput],
    rows: Rows,
    output: &Bytes,
    slices: &Slices,
) -> Result<Vec<AnswerTensor<'a>>, Problem> {
    let mut tensors = Vec::with_capacity(chosen.len());
    for chosen in chosen {
        tensors.push(tensor_of(target, chosen, rows, output, slices).await?);
    }
    Ok(tensors)
}

async fn tensor_of<'a>(
    target: &'a Target<'_>,
    chosen: &'a ChosenOutput,
    rows: Rows,
    all: &Bytes,
    slices: &Slices,
) -> Result<AnswerTensor<'a>, Problem> {
    let spec = &target.own.outputs[chosen.at];
    let tensor = gathered(target, chosen.at, rows.count, all, slices).await;
    let mut shape: Vec<usize> = if rows.batched { vec![rows.count] } else { Vec::new() };
    let (datatype, elements) = match chosen.classes {
        None => {
            shape.extend(&spec.shape);
            // As its metadata says.
            if shape.is_empty() && !target.own.has_batch {
                shape.push(1);
            }
            (spec.datatype.name(), TensorElements::Rows(spec.datatype, tensor))
        }
        Some(most) => {
            shape.push(most);
            // A row without elements has no classes either.
            let mut texts = Vec::new();
            for row in tensor.chunks(spec.bytes().max(1)) {
                classification::largest(spec.datatype, row, most, &mut texts, slices).await;
            }
            ("BYTES", TensorElements::Texts(shared(texts)))
        }
    };
    let mut output =
        AnswerTensor { name: &spec.name, datatype, shape, format: chosen.format, region: None, elements };
    if let Some(view) = &chosen.region {
        let wire = output.wire(slices).await;
        view.write(&wire, slices)
            .await
            .map_err(|what| Problem::bad(format!("output {:?}: {what}", spec.name)))?;
        output.region = Some((view, wire.len()));
    }
    Ok(output)
}

/// Gathers one output from all rows, in slices: of each its part that the request's sizes have. The
/// whole output of a single row is not copied.
async fn gathered(target: &Target<'_>, at: usize, rows: usize, all: &Bytes, slices: &Slices) -> Bytes {
    let signature = &target.model.signature;
    let (range, stride) = (signature.output_range(at), signature.output_bytes());
    let (own, whole) = (&target.own.outputs[at], &signature.outputs[at]);
    let runs = Runs::new(&own.shape, &whole.shape);
    if rows == 1 && runs.is_whole() {
        return all.slice(range);
    }
    let size = own.datatype.size_bytes();
    let mut tensor = Vec::with_capacity(rows * own.bytes());
    for row in 0..rows {
        let row = &all[row * stride + range.start..row * stride + range.end];
        for start in runs.starts() {
            slices.append(&row[start * size..][..runs.elements() * size], &mut tensor).await;
        }
    }
    shared(tensor)
}

/// The times of a request's events, its batch and its GPU: the parameters of its answer.
#[derive(Clone, Debug)]
pub(in crate::api) struct AnswerTimes {
    whole: [(&'static str, u64); PARAMETERS],
    /// The times of the stages, if it was a query.
    stages: Vec<StageParameters>,
}

/// The number of parameters of an answer, or of a stage of a query.
const PARAMETERS: usize = 7;

/// The number of those that a query has itself: it has neither a batch nor a GPU.
const PARAMETERS_OF_QUERY: usize = 5;

/// The times of a stage of a query, each with its parameter's name, `STAGE.queued_us` and so on.
#[derive(Clone, Debug)]
pub(in crate::api) struct StageParameters([(String, u64); PARAMETERS]);

impl StageParameters {
    /// Returns the times of a stage of this name, in microseconds since its query `began`.
    pub(super) fn of(name: &str, began: Nanos, reply: &EngineReply) -> StageParameters {
        StageParameters(
            parameters(began, reply).map(|(parameter, value)| (format!("{name}.{parameter}"), value)),
        )
    }
}

/// Returns the parameters of a reply, times in microseconds since `began`.
fn parameters(began: Nanos, reply: &EngineReply) -> [(&'static str, u64); PARAMETERS] {
    let since = |at: Nanos| (at - began).0 / 1_000;
    [
        ("queued_us", since(reply.timeline.arrival)),
        ("batched_us", since(reply.timeline.batched)),
        ("started_us", since(reply.timeline.started)),
        ("finished_us", since(reply.timeline.finished)),
        ("answered_us", since(reply.timeline.answered)),
        ("batch_size", reply.batch_size.into()),
        ("gpu", reply.gpu.0.into()),
    ]
}

impl AnswerTimes {
    /// Returns the times of `reply`, in microseconds since the request was queued.
    pub(in crate::api) fn of(reply: &EngineReply) -> AnswerTimes {
        AnswerTimes { whole: parameters(reply.timeline.arrival, reply), stages: Vec::new() }
    }

    /// Adds the times of a query's stages.
    pub(super) fn with_stages(self, stages: Vec<StageParameters>) -> AnswerTimes {
        AnswerTimes { stages, ..self }
    }

    /// Iterates over names and values.
    pub(in crate::api) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let own = if self.stages.is_empty() { PARAMETERS } else { PARAMETERS_OF_QUERY };
        let stages = self.stages.iter().flat_map(|stage| &stage.0);
        let whole = self.whole[..own].iter().map(|&(name, value)| (name, value));
        whole.chain(stages.map(|(name, value)| (name.as_str(), *value)))
    }
}
