//! How orders about weights end: one answer for an order, whatever becomes of its actions and of
//! the threads that have them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use symphony_gpu::counted::counted;
use symphony_gpu::cuda::WeightsState;
use symphony_transport::Nanos;
use symphony_transport::message::GpuId;

/// What is done with weights.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WeightsChange {
    /// Copies them to a GPU.
    Load,
    /// Frees their pages there.
    Unload,
}

impl WeightsChange {
    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            WeightsChange::Load => "load",
            WeightsChange::Unload => "unload",
        }
    }

    /// Returns what weights are once it is done.
    pub fn done(self) -> &'static str {
        match self {
            WeightsChange::Load => "loaded",
            WeightsChange::Unload => "unloaded",
        }
    }

    /// Returns true for weights with which there is nothing to do.
    pub(super) fn is_done(self, state: WeightsState) -> bool {
        state
            == match self {
                WeightsChange::Load => WeightsState::Loaded,
                WeightsChange::Unload => WeightsState::Unloaded,
            }
    }
}

/// A change that was done on a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DoneChange {
    /// What was done.
    pub change: WeightsChange,
    /// The engine's number of the GPU.
    pub gpu: GpuId,
    /// The model's name.
    pub model: String,
    /// The model's version.
    pub version: u64,
    /// The pages that were taken or freed.
    pub pages: u32,
    /// How long it took.
    pub took: Nanos,
    /// How long it was expected to take; `None` if it was never done before.
    pub predicted: Option<Nanos>,
}

impl fmt::Display for DoneChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoneChange { change, gpu, model, version, pages, took, predicted } = self;
        let (done, took, pages) = (change.done(), took.as_millis_f64(), counted((*pages).into(), "page"));
        write!(f, "{done} {model}, version {version}, GPU {}: {pages} in {took:.2} ms", gpu.0)?;
        match predicted {
            Some(predicted) => write!(f, ", {:.2} ms were predicted", predicted.as_millis_f64()),
            None => Ok(()),
        }
    }
}

/// The reason why weights were not loaded or unloaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WeightsError {
    /// No such model or GPU exists.
    #[error("{0}")]
    Unknown(String),
    /// The change can't be done as things are: the pages do not suffice, or it is done already.
    #[error("{0}")]
    Wrong(String),
    /// The change could not begin in its window.
    #[error("{0}")]
    Late(String),
    /// The GPU is taken out.
    #[error("{0}")]
    Lost(String),
    /// The driver refuses, or batches do not end.
    #[error("{0}")]
    Failed(String),
    /// Too many wait for the GPU.
    #[error("{0}")]
    Busy(String),
    /// The server stops.
    #[error("the server was stopped before it was done")]
    Stopped,
}

impl WeightsError {
    /// Returns that the process has no GPU of which weights could come and go.
    pub fn no_gpu() -> WeightsError {
        let none = "this process has no GPU of kind \"cuda\", whose weights come and go";
        WeightsError::Wrong(format!("{none}; the GPUs of other hosts keep what they have loaded"))
    }
}

/// The result of an order: what was done on each GPU.
pub type WeightsEnd = Result<Vec<DoneChange>, WeightsError>;

/// A callback that gets an order's result, on a thread of its own that must not be held up.
pub type WeightsDone = Box<dyn FnOnce(WeightsEnd) + Send>;

/// What is known of an order of which some actions are over.
struct Gathered {
    left: usize,
    done: Vec<DoneChange>,
    error: Option<WeightsError>,
    callback: Option<WeightsDone>,
}

/// An order whose actions end one after another.
pub(super) struct Gathering(Arc<Mutex<Gathered>>);

impl Gathering {
    /// Makes the order of so many actions.
    pub(super) fn new(actions: usize, callback: WeightsDone) -> Gathering {
        let (done, error, callback) = (Vec::new(), None, Some(callback));
        Gathering(Arc::new(Mutex::new(Gathered { left: actions, done, error, callback })))
    }

    /// Returns the end of one of its actions.
    pub(super) fn one(&self) -> PendingChange {
        PendingChange { gathered: Arc::clone(&self.0), is_over: false }
    }
}

/// The end of an action, which it owes to its order: one that is dropped was stopped.
pub(super) struct PendingChange {
    gathered: Arc<Mutex<Gathered>>,
    is_over: bool,
}

impl PendingChange {
    /// Ends the action; calls back if it is the last of its order.
    pub(super) fn end(mut self, result: Result<DoneChange, WeightsError>) {
        self.note(result);
    }

    fn note(&mut self, result: Result<DoneChange, WeightsError>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(done) => gathered.done.push(done),
            Err(error) => drop(gathered.error.get_or_insert(error)),
        }
        gathered.left -= 1;
        if gathered.left > 0 {
            return;
        }
        let (mut done, error) = (std::mem::take(&mut gathered.done), gathered.error.take());
        // GPUs end in any order.
        done.sort_by(|a, b| (a.gpu.0, &a.model, a.version).cmp(&(b.gpu.0, &b.model, b.version)));
        let callback = gathered.callback.take();
        drop(gathered);
        if let Some(callback) = callback {
            callback(error.map_or(Ok(done), Err));
        }
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.note(Err(WeightsError::Stopped));
    }
}
