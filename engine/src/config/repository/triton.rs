//! Triton's `config.pbtxt`, read for what applies here: which versions are served, the largest
//! batch, the file's name, the tensors, which are checked against the model once it is loaded, and
//! the samples that warm it up; the SLO, among the parameters, and the class of requests that name
//! none, in `dynamic_batching`.
//! A field that another server would use and this one does not is noted once, with its line, and
//! passed over. `model.rs` calls this.

use super::ensemble;
use super::json_config;
use super::pbtxt::{self, PbtxtField, PbtxtValue, named};
use super::warmup_samples::WarmupContext;
use crate::config::diagnostics::{Diagnostic, Diagnostics, Location};
use crate::config::linear_profile;
use crate::config::models::{DeclaredTensor, DeclaredTensors, WarmupSample};
use crate::config::queries::StageConfig;
use std::borrow::Cow;
use std::path::Path;
use symphony_gpu::DataType;
use symphony_gpu::import::TEXT_BYTES;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::Class;

/// What does the work of `dynamic_batching`.
const BATCHES: &str = "batches form by deadlines here: set slo_ms in model.toml";

/// Fields of Triton's model configuration that mean nothing here, and what does their work where
/// something does.
pub(in crate::config) const PASSED_OVER: [(&str, &str); 17] = [
    ("dynamic_batching", BATCHES),
    ("sequence_batching", "requests are independent of each other here"),
    ("instance_group", "what runs models is [[executors]] of CONFIG"),
    ("optimization", "the executor chooses for itself"),
    ("runtime", "the executor is set in model.toml"),
    ("model_operations", "there are no libraries of operations here"),
    ("model_transaction_policy", "each request has one answer here"),
    ("model_repository_agents", "there are no repository agents here"),
    ("response_cache", "nothing is cached here"),
    ("metric_tags", "metrics are labelled by model and version here"),
    ("model_metrics", "metrics are chosen by the server here"),
    ("batch_input", "there are no ragged batches here"),
    ("batch_output", "there are no ragged batches here"),
    ("cc_model_filenames", "there are no compute capabilities here"),
    ("label_filename", "classes are told by their index here"),
    ("scheduling_choice", "batches form by deadlines here"),
    ("input_copy", "inputs are copied once here"),
];

/// The rule that chooses the versions to serve among those of a model's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) enum VersionPolicy {
    /// The given number of highest versions.
    Latest(usize),
    /// All of them.
    All,
    /// The given versions, as far as the folder has them.
    Specific(Vec<u64>),
}

impl VersionPolicy {
    /// Returns the versions to serve among `versions`, which ascend.
    pub(in crate::config) fn choose(&self, versions: &[u64]) -> Vec<u64> {
        match self {
            VersionPolicy::Latest(count) => versions[versions.len().saturating_sub(*count)..].to_vec(),
            VersionPolicy::All => versions.to_vec(),
            VersionPolicy::Specific(chosen) => {
                versions.iter().copied().filter(|version| chosen.contains(version)).collect()
            }
        }
    }
}

/// The content of a `config.pbtxt` that has an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct TritonConfig {
    /// True if it gives the model to ONNX Runtime.
    pub(in crate::config) is_onnxruntime: bool,
    /// The largest batch, if given.
    pub(in crate::config) max_batch: Option<usize>,
    /// The latency promised, if given, and where.
    pub(in crate::config) slo: Option<(Nanos, Location)>,
    /// The class of requests that name none, if given.
    pub(in crate::config) class: Option<Class>,
    pub(in crate::config) versions: VersionPolicy,
    /// The name of the file in each version's folder.
    pub(in crate::config) filename: String,
    pub(in crate::config) declared: DeclaredTensors,
    /// The requests that are run while the model is loaded.
    pub(in crate::config) warmup: Vec<WarmupSample>,
    /// The steps of an ensemble; none for a model.
    pub(in crate::config) steps: Vec<StageConfig>,
    /// True if a client brought it with a load.
    pub(in crate::config) of_client: bool,
}

impl Default for TritonConfig {
    fn default() -> TritonConfig {
        TritonConfig {
            is_onnxruntime: false,
            max_batch: None,
            slo: None,
            class: None,
            versions: VersionPolicy::Latest(1),
            filename: "model.onnx".to_owned(),
            declared: DeclaredTensors::default(),
            warmup: Vec::new(),
            steps: Vec::new(),
            of_client: false,
        }
    }
}

/// Reads the `config.pbtxt` at `path` of the model named `model`. `notes` gets a line for each
/// field that is passed over.
///
/// Errors: every diagnostic in it.
pub(in crate::config) fn read(
    path: &Path,
    model: &str,
    notes: &mut Vec<String>,
) -> Result<TritonConfig, Vec<Diagnostic>> {
    let text = pbtxt::load(path).map_err(|diagnostic| vec![diagnostic])?;
    read_text(path, &text, model, notes)
}

/// Reads `json`, which a client brought with a load of `model` in `folder`, as [`read`] reads a
/// file.
///
/// Errors: every diagnostic in it.
pub(in crate::config) fn read_json(
    folder: &Path,
    json: &str,
    model: &str,
    notes: &mut Vec<String>,
) -> Result<TritonConfig, Vec<Diagnostic>> {
    let text = json_config::as_text(json).map_err(|error| {
        let location = Location { file: "config".into(), line: 1, field: "config".into() };
        let right = "write the model's configuration as a JSON object, such as {\"max_batch_size\": 8}";
        vec![location.diagnostic(error, right)]
    })?;
    let config = read_text(&folder.join("config"), &text, model, notes);
    config.map(|config| TritonConfig { of_client: true, ..config })
}

/// Reads `text` as the `config.pbtxt` at `path` of the model named `model`: a line for each field
/// that is passed over.
///
/// Errors: every diagnostic in it.
pub fn check_pbtxt(path: &Path, text: &str, model: &str) -> Result<Vec<String>, Diagnostics> {
    let mut notes = Vec::new();
    read_text(path, text, model, &mut notes).map_err(Diagnostics)?;
    Ok(notes)
}

fn read_text(
    path: &Path,
    text: &str,
    model: &str,
    notes: &mut Vec<String>,
) -> Result<TritonConfig, Vec<Diagnostic>> {
    let fields = pbtxt::parse(path, text).map_err(|diagnostic| vec![diagnostic])?;
    let mut reader = TritonReader { path, diagnostics: Vec::new(), notes };
    let config = reader.read(&fields, model);
    if reader.diagnostics.is_empty() { Ok(config) } else { Err(reader.diagnostics) }
}

struct TritonReader<'r> {
    path: &'r Path,
    diagnostics: Vec<Diagnostic>,
    notes: &'r mut Vec<String>,
}

impl TritonReader<'_> {
    /// Reports that the value is not what `right` describes.
    fn refuse(&mut self, field: &PbtxtField<'_>, right: impl std::fmt::Display) {
        self.diagnostics.push(field.is_not(field.location(self.path), right));
    }

    /// Notes that the field has no effect.
    fn pass_over(&mut self, field: &PbtxtField<'_>, why: &str) {
        self.note(field, format_args!("{} is passed over: {why}", field.name));
    }

    /// Adds a line about the field.
    fn note(&mut self, field: &PbtxtField<'_>, what: std::fmt::Arguments<'_>) {
        self.notes.push(format!("{}:{}: {what}", self.path.display(), field.line));
    }

    fn read(&mut self, fields: &[PbtxtField<'_>], model: &str) -> TritonConfig {
        let mut config = TritonConfig::default();
        for field in fields {
            match field.name {
                "name" => self.name(field, model),
                "platform" => self.platform(field, &mut config),
                "backend" => self.backend(field, &mut config),
                "max_batch_size" => config.max_batch = self.max_batch(field),
                "default_model_filename" => self.filename(field, &mut config),
                "version_policy" => self.versions(field, &mut config),
                "parameters" => self.parameters(field, &mut config),
                "dynamic_batching" => config.class = self.class(field),
                "instance_group" => self.instances(field),
                "ensemble_scheduling" => self.steps(field, &mut config),
                "input" | "output" | "model_warmup" => {}
                other => {
                    let known = PASSED_OVER.iter().find(|(name, _)| *name == other);
                    self.pass_over(field, known.map_or("no such field is known here", |(_, why)| why));
                }
            }
        }
        // With max_batch_size 0 the dims have the batch in front where there is one, else they
        // leave it out.
        let batched = config.max_batch.is_none_or(|size| size > 0);
        for field in fields {
            match field.name {
                "input" => config.declared.inputs.extend(self.tensors(field, batched)),
                "output" => config.declared.outputs.extend(self.tensors(field, batched)),
                "model_warmup" => config.warmup.extend(self.samples(field, batched)),
                _ => {}
            }
        }
        config.max_batch = config.max_batch.map(|size| size.max(1));
        self.check_kind(fields, &config);
        config
    }

    fn name(&mut self, field: &PbtxtField<'_>, model: &str) {
        if field.value.text().is_none_or(|name| name != model) {
            self.refuse(field, format_args!("\"{model}\", the name of the model's folder"));
        }
    }

    fn platform(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        match field.value.text().as_deref() {
            Some("") => {}
            Some("onnxruntime_onnx") => config.is_onnxruntime = true,
            Some("ensemble") => {}
            _ => {
                self.refuse(field, "\"onnxruntime_onnx\" or \"ensemble\": this version runs ONNX models only")
            }
        }
    }

    fn backend(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        match field.value.text().as_deref() {
            Some("") => {}
            Some("onnxruntime") => config.is_onnxruntime = true,
            _ => self.refuse(field, "\"onnxruntime\": this version runs ONNX models only"),
        }
    }

    /// Checks that what is called an ensemble has steps, and nothing else has any.
    fn check_kind(&mut self, fields: &[PbtxtField<'_>], config: &TritonConfig) {
        let is_ensemble = |field: &PbtxtField<'_>| field.value.text().as_deref() == Some("ensemble");
        let has_steps = named(fields, "ensemble_scheduling").is_some();
        if let Some(platform) =
            named(fields, "platform").filter(|platform| is_ensemble(platform) && !has_steps)
        {
            let diagnostic = platform.location(self.path).diagnostic(
                "is \"ensemble\", and there is no ensemble_scheduling",
                "add the steps of the ensemble, or take it out",
            );
            self.diagnostics.push(diagnostic);
        }
        if let Some(steps) = named(fields, "ensemble_scheduling").filter(|_| config.is_onnxruntime) {
            let diagnostic = steps.location(self.path).diagnostic(
                "is given for a model with a file",
                "take it out, or say platform: \"ensemble\" and no backend",
            );
            self.diagnostics.push(diagnostic);
        }
    }

    fn steps(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        match ensemble::read_steps(self.path, field, self.notes) {
            Ok(steps) => config.steps = steps,
            Err(diagnostic) => self.diagnostics.push(diagnostic),
        }
    }

    fn max_batch(&mut self, field: &PbtxtField<'_>) -> Option<usize> {
        let size = field.value.whole().and_then(|size| usize::try_from(size).ok());
        let good = size.filter(|&size| size <= limits::MAX_BATCH);
        if good.is_none() {
            self.refuse(field, format_args!("a whole number from 0 to {}", limits::MAX_BATCH));
        }
        good
    }

    fn filename(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        match field.value.text().filter(|name| is_file_name(name)) {
            Some(name) => config.filename = name.into_owned(),
            None => self.refuse(field, "the name of a file in the version's folder, like \"model.onnx\""),
        }
    }

    fn versions(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        const RIGHT: &str = "{ latest { num_versions: 1 } }, { all { } } or { specific { versions: [1] } }";
        let policy = field.value.fields().and_then(version_policy);
        match policy {
            Some(policy) => config.versions = policy,
            None => self.refuse(field, RIGHT),
        }
    }

    /// Reads parameters, of which `slo_ms` means something here.
    fn parameters(&mut self, field: &PbtxtField<'_>, config: &mut TritonConfig) {
        for entry in field.value.each() {
            let Some((key, value)) = parameter(entry) else {
                self.refuse(field, "{ key: \"slo_ms\" value: { string_value: \"50\" } }");
                continue;
            };
            match &*key {
                "slo_ms" => {
                    let location =
                        Location { field: "parameters.slo_ms".to_owned(), ..field.location(self.path) };
                    match value.parse().ok().filter(|&ms| linear_profile::SLO.contain(ms)) {
                        Some(ms) => config.slo = Some((Nanos::from_millis_f64(ms), location)),
                        None => {
                            let wrong = format!("is {:?}", shortened(&value));
                            let right = format!("it must be {}, in a string", linear_profile::SLO);
                            self.diagnostics.push(location.diagnostic(wrong, right));
                        }
                    }
                }
                key => {
                    let why = match key {
                        "intra_op_thread_count" => "set threads in [onnxruntime] of CONFIG",
                        _ => "no such parameter is known here",
                    };
                    let key = shortened(key);
                    self.note(field, format_args!("parameters {key:?} is passed over: {why}"));
                }
            }
        }
    }

    /// Reads the class of requests that name none from `dynamic_batching`. Levels count from 1, and
    /// those that there are no classes for are the lowest.
    fn class(&mut self, field: &PbtxtField<'_>) -> Option<Class> {
        const LEVELS: &str = "priority_levels";
        const DEFAULT: &str = "default_priority_level";
        let parts = field.value.fields().unwrap_or_default();
        if !parts.iter().any(|part| [LEVELS, DEFAULT].contains(&part.name)) {
            self.pass_over(field, BATCHES);
            return None;
        }
        let (mut levels, mut default) = (None, None);
        for part in parts {
            match part.name {
                LEVELS => levels = self.count(part),
                DEFAULT => default = self.count(part).map(|level| (part, level)),
                _ => self.pass_over(part, BATCHES),
            }
        }
        let (part, level) = default.filter(|&(_, level)| level > 0)?;
        let Some(levels) = levels.filter(|&levels| levels > 0) else {
            self.pass_over(part, "there are no priority_levels");
            return None;
        };
        if level > levels {
            self.refuse(part, format_args!("at most {levels}, the number of {LEVELS}"));
            return None;
        }
        let classes = Class::COUNT as u64;
        if level > classes {
            self.note(part, format_args!("{DEFAULT} {level} is taken as {classes}, the lowest here"));
        }
        Class::new((level.min(classes) - 1) as u8)
    }

    /// Reads a whole number from 0 on.
    fn count(&mut self, field: &PbtxtField<'_>) -> Option<u64> {
        let count = field.value.whole().and_then(|count| u64::try_from(count).ok());
        if count.is_none() {
            self.refuse(field, "a whole number from 0");
        }
        count
    }

    /// Notes what does the work of `instance_group`: every executor here runs every model.
    fn instances(&mut self, field: &PbtxtField<'_>) {
        let why = "what runs models is [[executors]] of CONFIG";
        match field.value.each().iter().map(cpu_instances).fold(0, u64::saturating_add) {
            0 => self.pass_over(field, why),
            count => {
                let there =
                    format!("{why}, shared by all of them; {count} on the CPU are count = {count} there");
                self.pass_over(field, &there);
            }
        }
    }

    fn samples(&mut self, field: &PbtxtField<'_>, batched: bool) -> Vec<WarmupSample> {
        let folder = self.path.parent().unwrap_or(self.path);
        let samples = WarmupContext { path: self.path, folder, batched }.samples(field);
        samples.unwrap_or_else(|more| {
            self.diagnostics.extend(more);
            Vec::new()
        })
    }

    fn tensors(&mut self, field: &PbtxtField<'_>, batched: bool) -> Vec<DeclaredTensor> {
        field.value.each().iter().filter_map(|value| self.tensor(field, value, batched)).collect()
    }

    fn tensor(
        &mut self,
        field: &PbtxtField<'_>,
        value: &PbtxtValue<'_>,
        batched: bool,
    ) -> Option<DeclaredTensor> {
        let Some(fields) = value.fields() else {
            self.refuse(field, "{ name: \"x\" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] }");
            return None;
        };
        let (mut name, mut datatype, mut dims, mut good) = (None, None, Vec::new(), true);
        let (mut is_optional, mut reshape) = (false, None);
        for part in fields {
            match part.name {
                "name" => {
                    name = part.value.text();
                    good &= name.is_some();
                }
                "data_type" => {
                    datatype = datatype_of(&part.value);
                    if datatype.is_none() {
                        self.refuse(part, "a type of tensors, like TYPE_FP32 or TYPE_STRING");
                        good = false;
                    }
                }
                "dims" => {
                    let sizes = part.value.each().iter().map(|size| size.whole().filter(|&size| size >= -1));
                    match sizes.collect::<Option<Vec<i64>>>() {
                        Some(sizes) => dims.extend(sizes),
                        None => {
                            self.refuse(part, "sizes like [ 3, 32, 32 ], where -1 is any");
                            good = false;
                        }
                    }
                }
                "optional" => match part.value.word() {
                    Some("true") => is_optional = true,
                    Some("false") => is_optional = false,
                    _ => {
                        self.refuse(part, "true or false");
                        good = false;
                    }
                },
                "reshape" => reshape = Some(part),
                "is_shape_tensor" | "allow_ragged_batch" | "is_non_linear_format_io" => {
                    let wrong = "is not supported in this version";
                    self.diagnostics.push(part.location(self.path).diagnostic(wrong, "take it out"));
                    good = false;
                }
                "label_filename" => self.pass_over(part, "classes are told by their index here"),
                _ => self.pass_over(part, "the model's file says it"),
            }
        }
        if let Some(part) = reshape {
            // What Triton needs for a single element, which is a list of one for its clients.
            if dims != [1] || !is_single_element(part) {
                self.refuse(part, "{ shape: [ ] } beside dims: [ 1 ]: a model's other shapes are its own");
                return None;
            }
            dims.clear();
        }
        if name.is_none() || datatype.is_none() {
            let right = "give each a name and a data_type, like TYPE_FP32";
            if good {
                self.diagnostics.push(
                    field.location(self.path).diagnostic("has a tensor without a name or a type", right),
                );
            }
            return None;
        }
        let (name, datatype) = (name?.into_owned(), datatype?);
        let location = field.location(self.path);
        good.then_some(DeclaredTensor { location, name, datatype, dims, is_whole: !batched, is_optional })
    }
}

/// Returns true if a field `reshape` makes a tensor a single element.
fn is_single_element(field: &PbtxtField<'_>) -> bool {
    let parts = field.value.fields().unwrap_or_default();
    parts.iter().all(|part| part.name == "shape" && part.value.each().is_empty())
}

fn datatype_of(value: &PbtxtValue<'_>) -> Option<DataType> {
    match value.word()?.strip_prefix("TYPE_")? {
        "STRING" => Some(DataType::Bytes(TEXT_BYTES)),
        name => DataType::parse(name),
    }
}

fn version_policy(fields: &[PbtxtField<'_>]) -> Option<VersionPolicy> {
    let [choice] = fields else { return None };
    let parts = choice.value.fields()?;
    match choice.name {
        "all" => Some(VersionPolicy::All),
        "latest" => match parts {
            [] => Some(VersionPolicy::Latest(1)),
            [count] if count.name == "num_versions" => {
                let count = usize::try_from(count.value.whole()?).ok().filter(|&count| count > 0)?;
                Some(VersionPolicy::Latest(count))
            }
            _ => None,
        },
        "specific" => {
            let lists = parts.iter().map(|part| (part.name == "versions").then(|| part.value.each()));
            let lists: Vec<&[PbtxtValue<'_>]> = lists.collect::<Option<_>>()?;
            let versions = lists.into_iter().flatten().map(|version| u64::try_from(version.whole()?).ok());
            versions.collect::<Option<Vec<u64>>>().map(VersionPolicy::Specific)
        }
        _ => None,
    }
}

/// Returns the key and the text of an entry of `parameters`; `None` if it has no key.
fn parameter<'v>(entry: &'v PbtxtValue<'_>) -> Option<(Cow<'v, str>, Cow<'v, str>)> {
    let fields = entry.fields()?;
    let key = named(fields, "key")?.value.text()?;
    let value = named(fields, "value").and_then(|value| named(value.value.fields()?, "string_value"));
    Some((key, value.and_then(|value| value.value.text()).unwrap_or_default()))
}

/// Returns the start of a text, for a message.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 40;
    text.chars().take(LONGEST).collect()
}

/// Returns the number of instances on the CPU that an entry of `instance_group` asks for, which is
/// 1 if it gives none.
fn cpu_instances(group: &PbtxtValue<'_>) -> u64 {
    let fields = group.fields().unwrap_or_default();
    let kind = named(fields, "kind").and_then(|kind| kind.value.word());
    if kind != Some("KIND_CPU") {
        return 0;
    }
    let count = named(fields, "count").and_then(|count| u64::try_from(count.value.whole()?).ok());
    count.unwrap_or(1)
}

/// True if `name` names a file in a folder, and none outside of it.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && Path::new(name).file_name().is_some_and(|last| last == name)
}
