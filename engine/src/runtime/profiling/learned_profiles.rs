//! The file of learned profiles: what the rolling profiles of an engine had learnt, which the next
//! one begins with, and the run times that a policy had learnt. A JSON file of one entry for each
//! class of a model, with the latencies of some batch sizes, or with a histogram. It is replaced as
//! a whole, so that a crash leaves the old one or the new one.
//!
//! Bounds: a file of at most 16 MiB is read; an entry takes at most 21 latencies. Entries of models
//! that are not served are kept, so their number is that of the models that ever were.

use crate::runtime::frontend::ModelInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use symphony_scheduler::rolling_profile::LearnedLatencies;
use symphony_scheduler::run_time::RunTimeHistogram;
use symphony_transport::Nanos;

/// The format of the file, raised when older engines could not read it. Those before are read too.
const FORMAT: u32 = 2;

/// A file of this many bytes or more was not written here.
const MAX_BYTES: u64 = 16 << 20;

/// The reason why a file of learned profiles can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LearnedProfilesError {
    /// The file or its folder can't be read or written.
    #[error("{}: can't keep learned profiles there: {}; name a file in a folder that can be written", .0.display(), .1)]
    Io(PathBuf, io::Error),
    /// The file is something else.
    #[error("{}: no file of learned profiles: {}; name another file, or remove this one", .0.display(), .1)]
    Content(PathBuf, String),
}

/// The file as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LearnedFile {
    format: u32,
    models: Vec<LearnedEntry>,
}

/// The part of the file that says how the rest is to be read.
#[derive(Deserialize)]
struct FileFormat {
    format: u32,
}

/// What was learnt of a class of a model.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LearnedEntry {
    /// [`ModelInfo::label`]: the name, with the size class and the application.
    model: String,
    version: u64,
    /// Latencies by batch size, in nanoseconds.
    latency_ns: BTreeMap<usize, u64>,
    /// The time of a batch of one at best, where run times differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at_best_ns: Option<u64>,
    /// The run times of single requests, where a policy learns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_times: Option<HistogramEntry>,
}

/// A histogram of run times: bins of one width.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistogramEntry {
    lowest_ms: f64,
    width_ms: f64,
    parts: Vec<f64>,
}

/// What was learnt of a class of a model.
#[derive(Clone, PartialEq, Debug, Default)]
struct LearnedClass {
    latencies: LearnedLatencies,
    run_times: Option<RunTimeHistogram>,
}

/// The learned profiles of an engine's models, and the file in which they stay.
#[derive(Debug)]
pub(crate) struct LearnedProfiles {
    file: PathBuf,
    models: BTreeMap<(String, u64), LearnedClass>,
    /// True where the file does not have them as they are.
    is_changed: bool,
}

impl LearnedProfiles {
    /// Reads the file; where there is none, nothing was learnt yet. It is written at once, so that
    /// a path at which nothing can be kept is an error now.
    ///
    /// Errors: [`LearnedProfilesError`].
    pub(crate) fn open(file: &Path) -> Result<LearnedProfiles, LearnedProfilesError> {
        let failed = |error| LearnedProfilesError::Io(file.to_owned(), error);
        let mut bytes = Vec::new();
        match File::open(file) {
            Ok(opened) => drop(opened.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let models = match bytes.is_empty() {
            true => BTreeMap::new(),
            false => parse(&bytes).map_err(|why| LearnedProfilesError::Content(file.to_owned(), why))?,
        };
        let mut learned = LearnedProfiles { file: file.to_owned(), models, is_changed: true };
        learned.save().map_err(failed)?;
        Ok(learned)
    }

    /// Returns what was learnt of a class of a model.
    pub(super) fn of(&self, model: &ModelInfo) -> Option<&LearnedLatencies> {
        // One without latencies is of a policy that learns other things.
        let latencies = self.models.get(&key(model)).map(|of| &of.latencies);
        latencies.filter(|of| !of.by_size.is_empty() || of.at_best.is_some())
    }

    /// Returns what was learnt of the run times of requests of a class of a model.
    pub(super) fn run_times_of(&self, model: &ModelInfo) -> Option<&RunTimeHistogram> {
        self.models.get(&key(model))?.run_times.as_ref()
    }

    /// Sets what was learnt of a class of a model.
    pub(super) fn set(&mut self, model: &ModelInfo, latencies: LearnedLatencies) {
        self.change(model, |of| of.latencies = latencies);
    }

    /// Sets what was learnt of the run times of its requests.
    pub(super) fn set_run_times(&mut self, model: &ModelInfo, run_times: RunTimeHistogram) {
        self.change(model, |of| of.run_times = Some(run_times));
    }

    fn change(&mut self, model: &ModelInfo, change: impl FnOnce(&mut LearnedClass)) {
        let before = self.models.get(&key(model));
        let mut class = before.cloned().unwrap_or_default();
        change(&mut class);
        if before != Some(&class) {
            self.models.insert(key(model), class);
            self.is_changed = true;
        }
    }

    /// Writes the file, unless it has everything already.
    ///
    /// Errors: it can't be written; the old one is still there then.
    pub(super) fn save(&mut self) -> io::Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        let entry =
            |((model, version), LearnedClass { latencies, run_times }): (&(String, u64), &LearnedClass)| {
                LearnedEntry {
                    model: model.clone(),
                    version: *version,
                    latency_ns: latencies.by_size.iter().map(|(size, latency)| (*size, latency.0)).collect(),
                    at_best_ns: latencies.at_best.map(|latency| latency.0),
                    run_times: run_times.as_ref().map(|of| HistogramEntry {
                        lowest_ms: of.lowest_ms,
                        width_ms: of.width_ms,
                        parts: of.parts.clone(),
                    }),
                }
            };
        let content = LearnedFile { format: FORMAT, models: self.models.iter().map(entry).collect() };
        let mut part = self.file.clone().into_os_string();
        part.push(".part");
        let mut writer = File::create(&part)?;
        serde_json::to_writer_pretty(&mut writer, &content)?;
        writer.write_all(b"\n")?;
        writer.sync_all()?;
        std::fs::rename(&part, &self.file)?;
        self.is_changed = false;
        Ok(())
    }

    /// Returns the path of the file.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

fn key(model: &ModelInfo) -> (String, u64) {
    (model.label().into_owned(), model.version)
}

/// Reads a file's content; an error says what is wrong with it.
fn parse(bytes: &[u8]) -> Result<BTreeMap<(String, u64), LearnedClass>, String> {
    if bytes.len() as u64 == MAX_BYTES {
        return Err(format!("it has {} MiB or more", MAX_BYTES >> 20));
    }
    let FileFormat { format } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !(1..=FORMAT).contains(&format) {
        return Err(format!("its format is {format}, and this engine reads 1 to {FORMAT}"));
    }
    let content: LearnedFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let class = |entry: LearnedEntry| {
        let of = entry.latency_ns.into_iter().map(|(size, latency)| (size, Nanos(latency)));
        let latencies = LearnedLatencies { by_size: of.collect(), at_best: entry.at_best_ns.map(Nanos) };
        let histogram = |of: HistogramEntry| {
            RunTimeHistogram::of_weights(of.lowest_ms, of.width_ms, &of.parts)
                .map_err(|error| format!("run_times of {}: {error}", entry.model))
        };
        let run_times = entry.run_times.map(histogram).transpose()?;
        Ok(((entry.model, entry.version), LearnedClass { latencies, run_times }))
    };
    content.models.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::message::ModelId;

    fn model(name: &str, version: u64) -> ModelInfo {
        ModelInfo { name: name.to_owned(), version, ..ModelInfo::vacant(ModelId(0), 0) }
    }

    #[test]
    fn what_was_learnt_is_there_again_and_nothing_is_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("learned.json");
        let by_size = BTreeMap::from([(1, Nanos(5)), (4, Nanos(9))]);
        let latencies = LearnedLatencies { by_size, at_best: Some(Nanos(3)) };
        let mut learned = LearnedProfiles::open(&file).unwrap();
        learned.set(&model("writer", 2), latencies.clone());
        learned.save().unwrap();
        std::fs::remove_file(&file).unwrap();
        learned.set(&model("writer", 2), latencies.clone());
        learned.save().unwrap();
        assert!(!file.exists(), "it had not changed");
        let run_times = RunTimeHistogram::of_weights(0.0, 2.0, &[1.0, 3.0]).unwrap();
        learned.set_run_times(&model("reader", 1), run_times.clone());
        learned.save().unwrap();
        let again = LearnedProfiles::open(&file).unwrap();
        assert_eq!(again.of(&model("writer", 2)), Some(&latencies));
        assert_eq!((again.of(&model("writer", 1)), again.models.len()), (None, 2));
        let reader = model("reader", 1);
        assert_eq!((again.of(&reader), again.run_times_of(&reader)), (None, Some(&run_times)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
    }

    #[test]
    fn another_file_is_named_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("learned.json");
        for (content, said) in [
            ("[[models]]\n", "line 1"),
            ("{\"format\": 1, \"models\": [{\"model\": \"m\"", "EOF while parsing"),
            ("{\"format\": 7, \"classes\": {}}", "its format is 7, and this engine reads 1 to 2"),
            ("{\"format\": 1, \"models\": [], \"more\": 1}", "unknown field `more`"),
            (
                "{\"format\": 2, \"models\": [{\"model\": \"m\", \"version\": 1, \"latency_ns\": {}, \"run_times\": \
                 {\"lowest_ms\": 0, \"width_ms\": 0, \"parts\": [1]}}]}",
                "run_times of m: the width of a bin is 0",
            ),
            (
                "{\"format\": 1, \"models\": [{\"model\": \"m\", \"version\": 1}]}",
                "missing field `latency_ns`",
            ),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = LearnedProfiles::open(&file).unwrap_err().to_string();
            assert!(
                error.contains("learned.json: no file of learned profiles") && error.contains(said),
                "{error}"
            );
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
        }
        let nowhere = folder.path().join("missing/learned.json");
        let error = LearnedProfiles::open(&nowhere).unwrap_err().to_string();
        assert!(error.contains("name a file in a folder that can be written"), "{error}");
    }
}
