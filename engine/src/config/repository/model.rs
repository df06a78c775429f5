//! One model of a repository, read from the files of its folder.

use super::ensemble;
use super::folder::versions_in;
use super::section::RepositoryConfig;
use super::triton::{self, TritonConfig};
use crate::config::diagnostics::{Diagnostic, Diagnostics, Location};
use crate::config::executors::{ExecutorKind, read_kind};
use crate::config::linear_profile;
use crate::config::models::{
    ClassProfile, DeclaredTensor, DeclaredTensors, FileContents, ModelConfig, ModelLocations, ModelSource,
    ProfileSource, Sizes, emulated_source, limit_batch, read_contents, read_emulated_model, read_profiles,
    read_rolling, read_sizes,
};
use crate::config::queries::QueryConfig;
use crate::config::toml_reader::{TomlTable, read};
use std::path::Path;
use symphony_gpu::import::DimensionSizes;
use symphony_gpu::{Signature, TensorSpec};
use symphony_scheduler::limits;
use symphony_transport::Nanos;

/// A model of the repository.
#[derive(Clone, Debug)]
pub struct RepositoryModel {
    /// The versions to serve, in ascending order, at least one but for an ensemble; of a version in
    /// size classes all of them, the smallest first.
    pub versions: Vec<ModelConfig>,
    /// The query that it is, if it is an ensemble.
    pub query: Option<QueryConfig>,
    /// A line for each field of its `config.pbtxt` that has no effect.
    pub notes: Vec<String>,
}

impl RepositoryConfig {
    /// Reads the model `name` from its folder, for executors of these kinds; `config`, in JSON,
    /// counts instead of its `config.pbtxt` if it is given.
    ///
    /// Errors: every diagnostic in its files. Whether the model itself can run only loading it
    /// shows.
    pub fn read_model(
        &self,
        name: &str,
        kinds: &[ExecutorKind],
        config: Option<&str>,
    ) -> Result<RepositoryModel, Diagnostics> {
        let folder = self.path.join(name);
        let location = Location { file: folder.clone(), line: 1, field: "model".into() };
        if !self.has(name) {
            let wrong = format!("the repository has no model \"{}\"", printable(name));
            return Err(Diagnostics(vec![location.diagnostic(wrong, "add a folder of that name to it")]));
        }
        let mut notes = Vec::new();
        let pbtxt = folder.join("config.pbtxt");
        let triton = match config {
            Some(json) => triton::read_json(&folder, json, name, &mut notes).map_err(Diagnostics)?,
            None if pbtxt.exists() => triton::read(&pbtxt, name, &mut notes).map_err(Diagnostics)?,
            None => TritonConfig::default(),
        };
        let found = versions_in(&folder);
        let reading = VersionReader { repository: self, name, folder: &folder, triton: &triton, kinds };
        if !triton.steps.is_empty() {
            return Ok(RepositoryModel { versions: Vec::new(), query: Some(reading.ensemble()?), notes });
        }
        let mut versions = Vec::new();
        let mut diagnostics = Vec::new();
        // An emulated model has no file, so it needs no folder for one.
        let only = if found.is_empty() { vec![1] } else { Vec::new() };
        for version in triton.versions.choose(&found).into_iter().chain(only) {
            match reading.version(version) {
                Ok(classes) => versions.extend(classes),
                Err(Diagnostics(more)) => diagnostics.extend(more),
            }
        }
        if versions.is_empty() && diagnostics.is_empty() {
            let wrong = format!("its version_policy chooses none of the versions {found:?}");
            diagnostics.push(location.diagnostic(wrong, "choose one of them, or add a version's folder"));
        }
        if diagnostics.is_empty() {
            Ok(RepositoryModel { versions, query: None, notes })
        } else {
            diagnostics.dedup();
            Err(Diagnostics(diagnostics))
        }
    }
}

/// The reader of one version of a model.
struct VersionReader<'r> {
    repository: &'r RepositoryConfig,
    name: &'r str,
    folder: &'r Path,
    triton: &'r TritonConfig,
    kinds: &'r [ExecutorKind],
}

impl VersionReader<'_> {
    /// Reads a version: its size classes, or one where it has none.
    fn version(&self, version: u64) -> Result<Vec<ModelConfig>, Diagnostics> {
        let of_version = self.folder.join(version.to_string());
        let own = of_version.join("model.toml");
        let shared = self.folder.join("model.toml");
        if own.exists() || shared.exists() {
            let toml = if own.exists() { own } else { shared };
            return read(&toml, |root| self.model(root, version));
        }
        let only = self.without_toml(version, &of_version);
        only.map(|model| vec![model]).map_err(|diagnostic| Diagnostics(vec![diagnostic]))
    }

    /// Reads an ensemble, whose `model.toml` may give the SLO.
    fn ensemble(&self) -> Result<QueryConfig, Diagnostics> {
        let toml = self.folder.join("model.toml");
        let slo = match toml.exists() {
            true => read(&toml, |root| self.slo(root).0)?,
            false => self.slo_without_toml().map_err(|diagnostic| Diagnostics(vec![diagnostic]))?.0,
        };
        let TritonConfig { steps, declared, .. } = self.triton;
        ensemble::query(self.name, steps, declared, slo).map_err(|diagnostic| Diagnostics(vec![diagnostic]))
    }

    fn in_toml(&self, field: &str) -> Location {
        Location { file: self.folder.join("model.toml"), line: 1, field: field.to_owned() }
    }

    /// Returns the SLO, and where it is given, where there is no `model.toml`.
    fn slo_without_toml(&self) -> Result<(Nanos, Location), Diagnostic> {
        let of_repository = || self.repository.slo.map(|slo| (slo, self.in_toml("slo_ms")));
        self.triton.slo.clone().or_else(of_repository).ok_or_else(|| {
            let right =
                "write the latency promised there, like `slo_ms = 50`; or for all models in [repository]";
            self.in_toml("slo_ms").diagnostic("there is no such file", right)
        })
    }

    /// Reads a model whose folder has no `model.toml`.
    fn without_toml(&self, version: u64, of_version: &Path) -> Result<ModelConfig, Diagnostic> {
        let (slo, slo_location) = self.slo_without_toml()?;
        let executor = self.default_kind();
        if !self.kinds.contains(&executor) {
            let right = "add a table [[executors]] with kind = \"cpu\" to CONFIG";
            return Err(self
                .in_toml("executor")
                .diagnostic("the model runs on \"cpu\", and there is no such executor", right));
        }
        let (profile, max_batch) = limit_batch(ProfileSource::Measure, None);
        Ok(ModelConfig {
            name: self.name.to_owned(),
            version,
            source: self.onnx(of_version, executor, FileContents::default())?,
            variable: None,
            application: None,
            prefix: None,
            slo,
            max_batch: self.triton.max_batch.unwrap_or(max_batch),
            priority: self.triton.class.unwrap_or_default().number(),
            profile,
            rolling: None,
            declared: self.triton.declared.clone(),
            warmup: self.triton.warmup.clone(),
            locations: ModelLocations {
                file: Location {
                    file: of_version.join(&self.triton.filename),
                    line: 1,
                    field: "file".into(),
                },
                slo: slo_location,
                max_batch: self.in_toml("max_batch"),
            },
        })
    }

    /// Reads a model with a `model.toml`.
    fn model(&self, root: &TomlTable<'_>, version: u64) -> Option<Vec<ModelConfig>> {
        let of_version = self.folder.join(version.to_string());
        let default = || Some(self.default_kind());
        let kind = root.optional("executor").map_or_else(default, |value| read_kind(&value));
        let (slo, slo_location) = self.slo(root);
        let max_batch = root.optional("max_batch").map(|value| value.count(1..=limits::MAX_BATCH));
        let priority = match (root.optional("priority"), self.triton.class) {
            (Some(value), class) if class.is_none() || !self.triton.of_client => value.integer(0..=3),
            (_, class) => Some(u64::from(class.unwrap_or_default().number())),
        };
        let kind = kind?;
        if !self.kinds.contains(&kind) {
            let wrong = format!("the model runs on \"{}\", and there is no such executor", kind.name());
            let right = format!("add a table [[executors]] with kind = \"{}\" to CONFIG", kind.name());
            root.report("executor", wrong, right);
        }
        let sizes = match kind {
            ExecutorKind::Emulated => Sizes::default(),
            _ => read_sizes(root)?,
        };
        let profiles = read_profiles(root, kind, slo, &sizes);
        let rolling = read_rolling(root);
        let source = match kind {
            ExecutorKind::Emulated => self.emulated(root),
            of_files => {
                for name in ["inputs", "outputs"] {
                    if root.optional(name).is_some() {
                        root.report(
                            name,
                            "is given for a model with a file",
                            "leave it out: the file says it",
                        );
                    }
                }
                self.onnx(&of_version, of_files, read_contents(root, of_files)?)
                    .map_err(|diagnostic| root.add(diagnostic))
                    .ok()
            }
        };
        // Both files may bound the batch: the smaller holds. What a load brings overrides them.
        let asked = max_batch.map_or(Some(None), |given| given.map(Some))?;
        let asked = match (asked, self.triton.max_batch) {
            (_, Some(given)) if self.triton.of_client => Some(given),
            (Some(ours), Some(tritons)) => Some(ours.min(tritons)),
            (ours, tritons) => ours.or(tritons),
        };
        let locations = ModelLocations {
            file: Location { file: of_version.join(&self.triton.filename), line: 1, field: "file".into() },
            slo: slo_location,
            max_batch: root.location("max_batch"),
        };
        let declared = match kind {
            ExecutorKind::Emulated => DeclaredTensors::default(),
            _ => self.triton.declared.clone(),
        };
        let (source, slo, priority, rolling) = (source?, slo?, priority? as u8, rolling?);
        let class = |ClassProfile { sizes, variable, application, profile }| {
            let (profile, max_batch) = limit_batch(profile, asked);
            ModelConfig {
                name: self.name.to_owned(),
                version,
                source: source.with_sizes(sizes),
                variable,
                application,
                prefix: None,
                slo,
                max_batch,
                priority,
                profile,
                rolling,
                declared: declared.clone(),
                warmup: self.triton.warmup.clone(),
                locations: locations.clone(),
            }
        };
        Some(profiles?.into_iter().map(class).collect())
    }

    /// Reads the SLO from `model.toml`, else from `config.pbtxt`, else from CONFIG: what a load
    /// brings comes first. Returns where it is given too.
    fn slo(&self, root: &TomlTable<'_>) -> (Option<Nanos>, Location) {
        let own = root.optional("slo_ms");
        if let Some((slo, location)) = &self.triton.slo
            && (own.is_none() || self.triton.of_client)
        {
            return (Some(*slo), location.clone());
        }
        let slo = match own {
            Some(value) => value.number(linear_profile::SLO).map(Nanos::from_millis_f64),
            None => self.repository.slo,
        };
        if slo.is_none() && !root.has("slo_ms") {
            let right = "add the latency promised, in ms; or for all models in [repository] of CONFIG";
            root.report("slo_ms", "is missing", right);
        }
        (slo, root.location("slo_ms"))
    }

    /// Reads an emulated model's tensors from `model.toml`, else from `config.pbtxt`.
    fn emulated(&self, root: &TomlTable<'_>) -> Option<ModelSource> {
        let DeclaredTensors { inputs, outputs } = &self.triton.declared;
        let are_declared = !inputs.is_empty() && !outputs.is_empty();
        if !are_declared || root.has("inputs") || root.has("outputs") {
            return read_emulated_model(root);
        }
        let specs = |tensors: &[DeclaredTensor]| -> Option<Vec<TensorSpec>> {
            let specs =
                tensors.iter().map(|tensor| tensor.spec().map_err(|diagnostic| root.add(diagnostic)).ok());
            specs.collect::<Vec<_>>().into_iter().collect()
        };
        let (inputs, outputs) = (specs(inputs), specs(outputs));
        emulated_source(root, Signature::of_rows(inputs?, outputs?))
    }

    /// Returns the kind of executor that runs the model if its `model.toml` does not say it:
    /// Triton's ONNX Runtime means ours where there is one.
    fn default_kind(&self) -> ExecutorKind {
        let has_it = self.kinds.contains(&ExecutorKind::OnnxRuntime);
        match self.triton.is_onnxruntime && has_it {
            true => ExecutorKind::OnnxRuntime,
            false => ExecutorKind::for_files(self.kinds),
        }
    }

    /// Returns the ONNX file in a version's folder, for executors of this kind, without sizes.
    fn onnx(
        &self,
        of_version: &Path,
        executor: ExecutorKind,
        contents: FileContents,
    ) -> Result<ModelSource, Diagnostic> {
        let file = of_version.join(&self.triton.filename);
        let location = Location { file: file.clone(), line: 1, field: "file".into() };
        let right = "put the version's ONNX model there";
        match std::fs::metadata(&file) {
            Ok(about) if about.is_file() && about.len() > 0 => {
                Ok(ModelSource::File { file, executor, sizes: DimensionSizes::new(), contents })
            }
            Ok(about) if about.is_file() => Err(location.diagnostic("the file is empty", right)),
            Ok(_) => Err(location.diagnostic("it is no file", right)),
            Err(error) => Err(location.diagnostic(format!("the file can't be read ({error})"), right)),
        }
    }
}

/// Returns a client's text, short and escaped for a message.
fn printable(name: &str) -> String {
    const LONGEST: usize = 80;
    name.chars().take(LONGEST).collect::<String>().escape_debug().to_string()
}
