//! The batches of a recording: when each was to run and for how long, and when it did. Nothing is
//! replayed. Called by measurements of how predictable executions are.

use super::RecordError;
use super::description::Description;
use super::journal::Recording;
use super::record::{Kind, Record};
use std::collections::HashMap;
use std::path::Path;
use symphony_transport::Nanos;
use symphony_transport::message::Completion;

/// A batch as a ModelThread has sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DispatchedBatch {
    /// The number of the batch, unique in the engine's life.
    pub batch: u64,
    /// The name of its model.
    pub model: String,
    /// The number of its requests.
    pub size: usize,
    /// The time at which it was to start.
    pub exec_at: Nanos,
    /// The time that it was to take, l(b).
    pub duration: Nanos,
}

/// The batches of a recording, as far back as its history goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedBatches {
    /// The batches that the thread has sent, if it is a ModelThread.
    pub sent: Vec<DispatchedBatch>,
    /// The batches that have left a GPU, if it is a RankThread: by the numbers that ModelThreads
    /// gave them. A GPU's number is that in its sub-cluster.
    pub completions: Vec<Completion>,
}

/// Reads the batches of the recording at `path`.
///
/// # Errors
/// The file can't be read or is no sound recording.
pub fn batches(path: &Path) -> Result<RecordedBatches, RecordError> {
    let recording = Recording::read(path)?;
    let damaged = |what: String| RecordError::Corrupt(path.to_owned(), what);
    let description: Description = serde_json::from_slice(&recording.description)
        .map_err(|error| damaged(format!("its description is damaged: {error}")))?;
    let names: HashMap<u32, String> = match description {
        Description::Models(models) => {
            models.models.into_iter().map(|model| (model.id, model.name)).collect()
        }
        Description::Rank(_) => HashMap::new(),
    };
    let mut found = RecordedBatches::default();
    let mut first: Option<Record> = None;
    for (_, record) in recording.records() {
        match (record.kind(), first.take()) {
            (Some(Kind::Dispatch), _) => first = Some(record),
            (Some(Kind::DispatchTimes), Some(first)) => {
                let model = names.get(&first.queue().0).cloned();
                let model =
                    model.ok_or_else(|| damaged("a batch of a model that it does not list".into()))?;
                let (batch, size, exec_at) = (first.a, usize::from(first.small), Nanos(first.b));
                found.sent.push(DispatchedBatch { batch, model, size, exec_at, duration: Nanos(record.b) });
            }
            (Some(Kind::Completion), _) => found.completions.push(record.as_completion()),
            _ => {}
        }
    }
    Ok(found)
}
