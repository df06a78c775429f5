//! `model_warmup` of Triton's `config.pbtxt`: the samples that are run while the model is loaded.
//! Whether their inputs are the model's only loading it shows.

use super::pbtxt::{PbtxtField, PbtxtValue, named};
use crate::config::diagnostics::{Diagnostic, Location};
use crate::config::models::{WarmupData, WarmupInput, WarmupSample};
use std::path::{Component, Path};
use symphony_gpu::DataType;
use symphony_scheduler::limits;

/// The most times that a sample is run, and the most samples.
const MAX_RUNS: usize = 10_000;

/// The context of a model's samples.
pub(super) struct WarmupContext<'r> {
    /// The file that gives them.
    pub(super) path: &'r Path,
    /// The folder of the model, whose folder `warmup` has the files of data.
    pub(super) folder: &'r Path,
    /// True if the batch is not among the dims.
    pub(super) batched: bool,
}

impl WarmupContext<'_> {
    /// Reads the samples of one field `model_warmup`.
    ///
    /// Errors: every diagnostic in them.
    pub(super) fn samples(&self, field: &PbtxtField<'_>) -> Result<Vec<WarmupSample>, Vec<Diagnostic>> {
        let (mut samples, mut diagnostics) = (Vec::new(), Vec::new());
        for value in field.value.each() {
            match self.sample(field, value) {
                Ok(sample) => samples.push(sample),
                Err(diagnostic) => diagnostics.push(diagnostic),
            }
        }
        if samples.len() > MAX_RUNS {
            diagnostics.push(self.wrong(field, "has too many samples", format!("give {MAX_RUNS} at most")));
        }
        if diagnostics.is_empty() { Ok(samples) } else { Err(diagnostics) }
    }

    fn location(&self, field: &PbtxtField<'_>) -> Location {
        Location { field: format!("model_warmup.{}", field.name), ..field.location(self.path) }
    }

    fn wrong(&self, field: &PbtxtField<'_>, wrong: impl ToString, right: impl ToString) -> Diagnostic {
        self.location(field).diagnostic(wrong.to_string(), right.to_string())
    }

    fn is_not(&self, field: &PbtxtField<'_>, right: &str) -> Diagnostic {
        field.is_not(self.location(field), right)
    }

    fn sample(&self, field: &PbtxtField<'_>, value: &PbtxtValue<'_>) -> Result<WarmupSample, Diagnostic> {
        let location = field.location(self.path);
        let mut sample =
            WarmupSample { location, name: String::new(), rows: 1, count: 1, inputs: Vec::new() };
        let fields = value.fields().ok_or_else(|| self.is_not(field, "{ name: \"x\" inputs { … } }"))?;
        for part in fields {
            match part.name {
                "name" => {
                    let name = part.value.text().ok_or_else(|| self.is_not(part, "a text"))?;
                    sample.name = name.into_owned();
                }
                "batch_size" => sample.rows = self.count(part, limits::MAX_BATCH)?.max(1),
                // 0 is Triton's default, and runs it once.
                "count" => sample.count = self.count(part, MAX_RUNS)?.max(1),
                "inputs" => {
                    for entry in part.value.each() {
                        sample.inputs.push(self.input(part, entry)?);
                    }
                }
                _ => return Err(self.wrong(part, "is not known here", "take it out")),
            }
        }
        if sample.inputs.is_empty() {
            let wrong = format!("sample \"{}\" has no inputs", sample.name);
            return Err(sample.location.diagnostic(wrong, "give it every input of the model"));
        }
        Ok(sample)
    }

    fn count(&self, field: &PbtxtField<'_>, most: usize) -> Result<usize, Diagnostic> {
        let count = field.value.whole().and_then(|count| usize::try_from(count).ok());
        let right = || self.is_not(field, &format!("a whole number up to {most}"));
        count.filter(|count| *count <= most).ok_or_else(right)
    }

    /// Reads one entry of the map from names of inputs to their data.
    fn input(&self, field: &PbtxtField<'_>, entry: &PbtxtValue<'_>) -> Result<WarmupInput, Diagnostic> {
        let right = "{ key: \"x\" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }";
        let of = |name: &str| named(entry.fields()?, name);
        let name = of("key").and_then(|key| key.value.text());
        let parts = of("value").and_then(|value| value.value.fields());
        let (Some(name), Some(parts)) = (name, parts) else { return Err(self.is_not(field, right)) };
        let (mut datatype, mut dims, mut data) = (None, Vec::new(), Vec::new());
        for part in parts {
            match part.name {
                "data_type" => {
                    let known = part.value.word().and_then(|word| word.strip_prefix("TYPE_"));
                    let known = known.and_then(DataType::parse);
                    datatype = Some(known.ok_or_else(|| self.is_not(part, "a type such as TYPE_FP32"))?);
                }
                "dims" => dims.extend(self.dims(part)?),
                "zero_data" if part.value.word() == Some("true") => data.push(WarmupData::Zero),
                "random_data" if part.value.word() == Some("true") => data.push(WarmupData::Random),
                "zero_data" | "random_data" => return Err(self.is_not(part, "true")),
                "input_data_file" => data.push(WarmupData::File(self.file(part)?)),
                _ => return Err(self.wrong(part, "is not known here", "take it out")),
            }
        }
        let (Some(datatype), Ok([data])) = (datatype, <[WarmupData; 1]>::try_from(data)) else {
            let wrong = format!("input \"{name}\" has not one type and one kind of data");
            return Err(self.wrong(field, wrong, right));
        };
        Ok(WarmupInput { name: name.into_owned(), datatype, shape: dims, is_whole: !self.batched, data })
    }

    fn dims(&self, field: &PbtxtField<'_>) -> Result<Vec<usize>, Diagnostic> {
        let sizes = field.value.each().iter().map(|size| usize::try_from(size.whole()?).ok());
        sizes.collect::<Option<_>>().ok_or_else(|| self.is_not(field, "fixed sizes such as [ 3, 32, 32 ]"))
    }

    fn file(&self, field: &PbtxtField<'_>) -> Result<std::path::PathBuf, Diagnostic> {
        let name = field.value.text().filter(|name| {
            let mut parts = Path::new(&**name).components();
            !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        });
        let name = name.ok_or_else(|| self.is_not(field, "a file in the model's folder `warmup`"))?;
        Ok(self.folder.join("warmup").join(&*name))
    }
}
