//! One table of `[[models]]`: a model to serve.

use super::applications::ServedApplication;
use super::declared::DeclaredTensors;
use super::prefix_member::{PrefixMember, read_prefix_group};
use super::profile::{ClassProfile, ProfileSource, limit_batch, read_profiles, read_rolling};
use super::sizes::{DimensionBuckets, PadWith, Sizes, VariableDimensions, read_sizes};
use super::source::{ModelSource, read_emulated_model, read_file_model};
use super::warmup::WarmupSample;
use crate::config::diagnostics::{Diagnostic, Location};
use crate::config::executors::{ExecutorKind, ExecutorKinds, read_kind};
use crate::config::linear_profile;
use crate::config::toml_reader::{TomlTable, TomlValue};
use std::collections::HashMap;
use std::sync::Arc;
use symphony_gpu::{ProfileTable, Signature};
use symphony_scheduler::limits;
use symphony_scheduler::profile::{Profile, ProfileError};
use symphony_transport::Nanos;

/// A model to serve, or of one in classes the class of a size and an application.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The name, which needs no escape in a URL's path.
    pub name: String,
    /// The version, counted from 1.
    pub version: u64,
    /// The source: an ONNX file, or an emulated model.
    pub source: ModelSource,
    /// The dimensions for which the model is served in size classes, of which this is one: its
    /// sizes are those of `source`. All classes of a model follow one another.
    pub variable: Option<Arc<VariableDimensions>>,
    /// The application whose requests these are, of a model that has several. Classes of equal
    /// sizes follow one another, in the order of their applications.
    pub application: Option<ServedApplication>,
    /// The group of models that it is run as one with, over the layers that they share.
    pub prefix: Option<PrefixMember>,
    /// The latency promised.
    pub slo: Nanos,
    /// The largest batch.
    pub max_batch: usize,
    /// The priority, from 0 (most urgent) to 3.
    pub priority: u8,
    /// The source of the profile.
    pub profile: ProfileSource,
    /// Whether the profile follows the batches that run; `None` where the configuration is silent.
    pub rolling: Option<bool>,
    /// The tensors that Triton's `config.pbtxt` declares.
    pub declared: DeclaredTensors,
    /// The requests that are run while it is loaded, as Triton's `config.pbtxt` gives them.
    pub warmup: Vec<WarmupSample>,
    /// The locations of fields that only loading the model can check.
    pub locations: ModelLocations,
}

impl ModelConfig {
    /// Returns the profile by which this is scheduled where the model was measured to have this
    /// one: multiplied for its application, and with the SLO taken into account.
    ///
    /// Errors: those of [`Profile::measured`].
    pub fn profile_by(&self, table: &ProfileTable) -> Result<Profile, ProfileError> {
        let scale = self.application.as_ref().map_or(1.0, |of| of.scale);
        let measured = Profile::measured(&table.latencies())?.with_typical(table.medians().into());
        Ok(measured.times(scale).within(self.slo))
    }

    /// Returns a diagnostic for each tensor that `config.pbtxt` declares otherwise than the loaded
    /// model has it, or that may be left out and that nothing fills.
    pub fn undeclared(&self, signature: &Signature) -> Vec<Diagnostic> {
        let is_filled = |input: &str| {
            let masks = self.variable.iter().flat_map(|of| &of.padding);
            let mut masks = masks.filter(|of| of.with == PadWith::Mask);
            matches!(&self.source, ModelSource::File { contents, .. } if contents.defaults.contains_key(input))
                || masks.any(|of| of.input == input)
        };
        let mut diagnostics = self.declared.check(signature);
        diagnostics.extend(self.declared.check_optional(is_filled));
        diagnostics
    }

    /// Returns the name, with what makes it a class if it is one: `encoder (sequence=128, chat)`.
    pub fn label(&self) -> String {
        let dimensions = self.variable.iter().flat_map(|variable| &variable.dimensions);
        let sizes: Vec<String> =
            dimensions.zip(self.class_sizes()).map(|(of, size)| format!("{}={size}", of.dimension)).collect();
        let application = self.application.as_ref().map(|of| of.name.to_string());
        let of_class: Vec<String> =
            (!sizes.is_empty()).then(|| sizes.join(",")).into_iter().chain(application).collect();
        if of_class.is_empty() {
            self.name.clone()
        } else {
            format!("{} ({})", self.name, of_class.join(", "))
        }
    }

    /// Returns the size of each dimension with buckets, if the model is a size class.
    pub fn class_sizes(&self) -> Vec<usize> {
        let (Some(variable), ModelSource::File { sizes, .. }) = (&self.variable, &self.source) else {
            return Vec::new();
        };
        let size = |of: &DimensionBuckets| sizes.get(&of.dimension).map_or(0, |size| size.get() as usize);
        variable.dimensions.iter().map(size).collect()
    }

    /// Returns true if the profile follows the batches that run: one that was measured does, and an
    /// application's, unless the configuration says otherwise.
    pub fn rolls(&self) -> bool {
        self.rolling.unwrap_or(self.profile == ProfileSource::Measure || self.application.is_some())
    }

    /// Returns true if `other` is a class of the same model.
    pub fn is_class_beside(&self, other: &ModelConfig) -> bool {
        let has_classes = self.variable.is_some() || self.application.is_some();
        has_classes && (&self.name, self.version) == (&other.name, other.version)
    }

    /// Returns the models of its group, in their order; itself alone where it is in none. `models`
    /// are those of CONFIG.
    pub fn group<'m>(&'m self, models: &'m [ModelConfig]) -> Vec<&'m ModelConfig> {
        let Some(own) = &self.prefix else { return vec![self] };
        let is_of = |of: &&ModelConfig| of.prefix.as_ref().is_some_and(|prefix| prefix.group == own.group);
        models.iter().filter(is_of).collect()
    }

    /// Returns true if the same file is loaded as for the class before it, which is of another
    /// application.
    pub fn shares_file(&self) -> bool {
        self.application.as_ref().is_some_and(|of| of.at > 0)
    }
}

/// Locations for the diagnostics that only loading a model shows: a corrupt file, or a measured
/// l(1) above the SLO.
#[derive(Clone, Debug)]
pub struct ModelLocations {
    /// The location of `file`.
    pub file: Location,
    /// The location of `slo_ms`.
    pub slo: Location,
    /// The location of `max_batch`.
    pub max_batch: Location,
}

/// Reads the tables `[[models]]`, at least `least` of them. Returns true beside the models if every
/// table is one.
pub(in crate::config) fn read_models(
    root: &TomlTable<'_>,
    least: usize,
    kinds: &ExecutorKinds,
) -> (Vec<ModelConfig>, bool) {
    let mut tables = 0;
    let models = root.tables("models", least, |table| {
        tables += 1;
        read_model(table, kinds)
    });
    let is_whole = models.len() == tables;
    let classes: usize = models.iter().map(|(_, classes)| classes.len()).sum();
    if classes > limits::MAX_MODELS {
        let right = format!("one scheduler ranks at most {}", limits::MAX_MODELS);
        root.report("models", format!("{classes} models are too many"), right);
    }
    report_duplicates(root, &models);
    (models.into_iter().flat_map(|(_, classes)| classes).collect(), is_whole)
}

/// Reads a model: its size classes, or one where it has none.
fn read_model(table: &TomlTable<'_>, kinds: &ExecutorKinds) -> Option<(Location, Vec<ModelConfig>)> {
    let name = table.required("name", "the name that clients ask for").and_then(|v| read_name(&v));
    let kind = table
        .optional("executor")
        .map_or_else(|| Some(ExecutorKind::for_files(&kinds.known)), |value| read_kind(&value));
    let slo =
        table.required("slo_ms", "the latency promised, in ms").and_then(|v| v.number(linear_profile::SLO));
    let slo = slo.map(Nanos::from_millis_f64);
    let max_batch = table.optional("max_batch").map(|v| v.count(1..=limits::MAX_BATCH));
    let priority = table.optional("priority").map_or(Some(0), |v| v.integer(0..=3));
    let Some(kind) = kind else {
        // What else the model needs depends on what runs it.
        for name in [
            "file",
            "profile",
            "rolling",
            "inputs",
            "outputs",
            "sizes",
            "applications",
            "prefix_group",
            "padding",
            "max_waste",
            "max_bytes",
            "defaults",
            "precision",
        ] {
            table.optional(name);
        }
        return None;
    };
    if !kinds.unclear && !kinds.known.contains(&kind) {
        let kind = kind.name();
        let wrong = format!("the model runs on \"{kind}\", and there is no such executor");
        table.report("executor", wrong, format!("add a table [[executors]] with kind = \"{kind}\""));
    }
    let sizes = match kind {
        ExecutorKind::Emulated => Some(Sizes::default()),
        _ => read_sizes(table),
    };
    let source = match kind {
        ExecutorKind::Emulated => read_emulated_model(table),
        of_files => read_file_model(table, of_files),
    };
    let profiles = read_profiles(table, kind, slo, &sizes?);
    let rolling = read_rolling(table);
    let prefix = read_prefix_group(table);
    let max_batch = max_batch.map_or(Some(None), |given| given.map(Some));
    let locations = ModelLocations {
        file: table.location("file"),
        slo: table.location("slo_ms"),
        max_batch: table.location("max_batch"),
    };
    let (name, source, slo, priority, max_batch) = (name?, source?, slo?, priority? as u8, max_batch?);
    let (rolling, prefix) = (rolling?, prefix?);
    let class = |ClassProfile { sizes, variable, application, profile }| {
        let (profile, max_batch) = limit_batch(profile, max_batch);
        ModelConfig {
            name: name.clone(),
            version: 1,
            source: source.with_sizes(sizes),
            variable,
            application,
            prefix: prefix.clone(),
            slo,
            max_batch,
            priority,
            profile,
            rolling,
            declared: DeclaredTensors::default(),
            warmup: Vec::new(),
            locations: locations.clone(),
        }
    };
    Some((table.location("name"), profiles?.into_iter().map(class).collect()))
}

/// True if a model may have this name, which stands in URLs.
pub(in crate::config) fn is_model_name(name: &str) -> bool {
    const LONGEST: usize = 128;
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= LONGEST && !name.starts_with('.') && name.chars().all(good)
}

fn read_name(value: &TomlValue<'_>) -> Option<String> {
    let name = value.text("the name that clients ask for")?;
    if !is_model_name(name) {
        let right = "1 to 128 letters, digits, `_`, `-` and `.`, not beginning with `.`: it stands in URLs";
        value.refuse_value(right);
        return None;
    }
    Some(name.into())
}

fn report_duplicates(root: &TomlTable<'_>, models: &[(Location, Vec<ModelConfig>)]) {
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for (location, model) in models.iter().filter_map(|(at, classes)| Some((at, classes.first()?))) {
        if let Some(line) = lines.insert(&model.name, location.line) {
            let wrong = format!("\"{}\" is already the name of the model at line {line}", model.name);
            root.add(location.diagnostic(wrong, "give each model a name of its own"));
        }
    }
}
