//! The flight recorder: each ModelThread and RankThread keeps its last inputs and decisions in a
//! bounded file of its own, and [`replay`] feeds them through the same state machines and shows
//! that the same decisions come out.
//!
//! # How history is kept replayable from its middle
//!
//! A file is a ring of segments (`journal.rs`). A state machine's input depends on all that came
//! before, and what came before is overwritten; so a segment holds, besides inputs and decisions,
//! the states that they start from:
//!
//! - **A ModelThread's queues are independent of each other**, so each is written on its own:
//!   before the first event of a model in a segment, its state (21 records of 32 bytes, and one per
//!   request in its queue). Nothing is written for models that are silent, and no cycle has to
//!   write all models at once: at most what one queue holds, 8,192 records of 32 bytes.
//! - **A RankThread's state is one piece**: matching reads all GPUs and models. It is written whole
//!   at the start of a segment: a record per GPU and per queue of a model that was ever used, and
//!   one or two more per queue where there are lower classes: 2.6 MB in one duty cycle at the limit
//!   of 65,536 GPUs and 16,384 models of one class, 7.3 MB of four. Segments are at least twice as
//!   long as that, and by default eight to a file of 64 MiB, so this comes once in 8 MiB of
//!   history.
//!
//! A duty cycle's requests are recorded as the threads act on them: all that came for a model, in
//! the order of its queue, then what followed when it was settled. A RankThread's inputs are
//! recorded as they are handled, and each run of its matching.
//!
//! Where replay reaches such a state and has followed the machine up to there, it compares instead
//! of restoring. So a recording checks itself.
//!
//! # What it costs
//!
//! A record is a store of 8 to 32 bytes into mapped memory (`codec.rs`), of a request always 32,
//! copied from the queue when its model is settled, so that nothing is done for a request as it
//! comes. No call into the system, no lock, no allocation, and the head is stored once a cycle. The
//! file's pages are all taken when it is made. The system writes them to the disk, after which the
//! next store to a page takes a page fault; on a memory file system (`/dev/shm`) there are none.
//! docs/recorder.md has figures.
//!
//! [`crate::runtime`] records; the command `symphony replay` reads.

mod batches;
mod codec;
mod description;
mod explain;
mod journal;
mod mapping;
mod model_recorder;
mod rank_recorder;
mod record;
pub mod replay;

pub use batches::{DispatchedBatch, RecordedBatches, batches};
// Public for the benchmarks and tests, which record threads of their own.
#[doc(hidden)]
pub use model_recorder::ModelRecorder;
#[doc(hidden)]
pub use rank_recorder::{ClusterConfig, RankRecorder};
pub(crate) use record::Record;

use std::io;
use std::path::{Path, PathBuf};

/// The extension of recordings' file names.
pub const EXTENSION: &str = "symrec";

/// The folder and the size of recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// The folder that gets a file per thread; made if it does not exist.
    pub folder: PathBuf,
    /// The size of each file, in MiB.
    pub mib: usize,
}

impl RecordConfig {
    /// The default size of each file: a few seconds at a million requests a second.
    pub const DEFAULT_MIB: usize = 64;

    /// Makes the folder ready for new recordings. Those of the run before get `.old` appended to
    /// their names, once: after a crash they are the ones of interest.
    ///
    /// Errors: the folder can't be used.
    pub fn prepare(&self) -> Result<(), RecordError> {
        let failed = |error| RecordError::Folder(self.folder.clone(), error);
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        for old in recordings(&self.folder).map_err(failed)? {
            std::fs::rename(&old, old.with_extension(format!("{EXTENSION}.old"))).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the file of the thread of this role.
    fn file(&self, role: &str) -> PathBuf {
        self.folder.join(format!("{role}.{EXTENSION}"))
    }
}

/// Returns the recordings in a folder, by name.
pub fn recordings(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The reason why a recording can't be made or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The folder for recordings can't be used.
    #[error("{}: can't keep recordings there: {}; give a folder that can be written", .0.display(), .1)]
    Folder(PathBuf, io::Error),
    /// The file can't be made in its full size.
    #[error("{}: can't make the recording: {}", .0.display(), .1)]
    Create(PathBuf, io::Error),
    /// The size given does not hold enough.
    #[error("a recording of {mib} MiB is too small for the thread {role}: give at least {least} MiB")]
    TooSmall {
        /// The role of the thread.
        role: String,
        /// The size given.
        mib: usize,
        /// The size needed.
        least: usize,
    },
    /// The file can't be read.
    #[error("{}: can't read the recording: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// The file is not a sound recording.
    #[error("{}: not a sound recording: {}", .0.display(), .1)]
    Corrupt(PathBuf, String),
    /// The folder holds no recording.
    #[error("{}: no file in this folder ends with .{EXTENSION}", .0.display())]
    Nothing(PathBuf),
}
