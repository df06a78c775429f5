//! The control plane: a thread of its own that loads and unloads the models of a repository while
//! the engine serves. No pinned thread waits for it: what it sends to them is complete. With a
//! repository or without, models' weights come and go on GPUs by [`weights`].
//!
//! # The way of a new version
//!
//! ```text
//! an order of the API, or a poll of the folder
//!   read config.pbtxt and model.toml                   config/repository/
//!   load the file per CPU executor, and measure        this thread, at the lowest priority
//!   a vacant slot of the right kind                    ModelSlots::prepare
//!     the loaded model -> each executor's table        a ring of boxes, polled every millisecond
//!     its queues       -> its ModelThread's table      a ring of boxes, as above
//!   publish a table with it and without the old one    ModelSlots::switch: requests go to the new
//! when no table with the old one is held, and no request of it is left: ModelSlots::reclaim
//!   empty queues and no model -> the tables; what was there comes back and is freed here
//! ```
//!
//! An ensemble is read as a model is. It runs nowhere itself: it goes into the table of queries, if
//! the models that it names are served and its tensors fit theirs.
//!
//! So a version is replaced without a moment in which the model is not served, and a load that
//! fails leaves everything as it was. Loads happen one after the other.
//!
//! # What serving pays
//!
//! Loading and measuring run on this thread at nice 19, so executors that have work lose a
//! hundredth of a core to it. Measuring counts the thread's own CPU time, not the wall's: a profile
//! that was measured while the machine was busy is that of a core which it had for itself, but for
//! caches. A model with a profile of its own is not measured.
//!
//! # Bounds
//!
//! Model slots: `max_versions` of `[repository]`, for each kind of executor; a replaced version
//! needs two for a moment. Orders that wait: [`MAX_ORDERS`]; one more is refused. Changes under way
//! to a thread: four. Old tables that are still held: as many as requests are being read or run.

mod control_thread;
mod order;
pub mod weights;

pub use order::{ControlError, Done, IndexEntry, MAX_ORDERS, State};

use crate::config::{Config, ExecutorKind};
use crate::runtime::{ModelSlots, Progress};
use control_thread::ControlThread;
use order::Order;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The repository of a running engine. Its calls return at once. Dropping it ends its thread; what
/// is loaded stays loaded.
pub struct Repository {
    orders: SyncSender<Order>,
    index: Arc<Mutex<Vec<IndexEntry>>>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The reason why orders are refused, if they are.
    off: Option<&'static str>,
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repository").field("off", &self.off).finish_non_exhaustive()
    }
}

impl Repository {
    /// Starts the control thread of an engine that was started with `config` and gave its
    /// `model_slots`. `progress` gets, in a line each, what it does.
    ///
    /// Errors: the system gives no thread.
    pub fn start(
        config: &Config,
        model_slots: ModelSlots,
        progress: Progress,
    ) -> std::io::Result<Repository> {
        let (orders, taken) = sync_channel(MAX_ORDERS);
        let index = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let off = match config.repository.as_ref().map(|repository| repository.control) {
            Some(crate::config::RepositoryControl::Explicit) => None,
            Some(crate::config::RepositoryControl::Poll) => Some(
                "the repository is polled, so its folder says what is loaded; start with control mode explicit",
            ),
            _ => Some("this server serves the models that it started with; start with control mode explicit"),
        };
        let kinds: Vec<ExecutorKind> = config.executors.iter().map(|executor| executor.kind).collect();
        let repository = config.repository.clone();
        let control_thread = ControlThread::new(config, model_slots, kinds, progress, Arc::clone(&index));
        let until = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            if let Some(repository) = repository {
                control_thread.run(&repository, &taken, &until);
            }
        })?;
        Ok(Repository { orders, index, stop, thread: Mutex::new(Some(thread)), off })
    }

    /// Returns every version that is or was loaded, and every model of the folder.
    pub fn index(&self) -> Vec<IndexEntry> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Loads a model as its folder has it now: new versions, those whose files have changed, and no
    /// others. With a `config`, in JSON, all of its versions are loaded anew, and it counts instead
    /// of the folder's `config.pbtxt` until the next load. The repository's models of an ensemble
    /// are loaded with it. `done` is called once requests can be sent to it, or with the reason why
    /// it was not loaded; what was loaded before is served until then.
    pub fn load(&self, name: &str, config: Option<String>, done: Done) {
        self.order(done, |done| Order::Load(name.to_owned(), config, done));
    }

    /// Unloads a model or an ensemble. With `dependents`, the repository's models of an ensemble
    /// that no other query names are unloaded too. `done` is called once new requests no longer
    /// find it; requests that were accepted are still answered.
    pub fn unload(&self, name: &str, dependents: bool, done: Done) {
        self.order(done, |done| Order::Unload(name.to_owned(), dependents, done));
    }

    fn order(&self, done: Done, order: impl FnOnce(Done) -> Order) {
        if let Some(why) = self.off {
            return done(Err(ControlError::Off(why)));
        }
        if let Err(refused) = self.orders.try_send(order(done)) {
            let (std::sync::mpsc::TrySendError::Full(order)
            | std::sync::mpsc::TrySendError::Disconnected(order)) = refused;
            let (Order::Load(_, _, done) | Order::Unload(_, _, done)) = order;
            done(Err(ControlError::Busy));
        }
    }

    /// Ends the control thread as [`Repository::stop`] does, but waits for no longer than `limit`:
    /// it may be measuring a model, or wait for a thread that hangs.
    pub fn stop_within(&self, limit: Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let end = Instant::now() + limit;
        let is_over = |thread: &Option<JoinHandle<()>>| thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !is_over(&self.thread.lock().unwrap_or_else(PoisonError::into_inner)) {
            if Instant::now() >= end {
                // Dropping the handle lets the thread go on alone.
                self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stop();
    }

    /// Ends the control thread. It must be called before the engine is stopped.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic's message is on standard error already.
            let _ = thread.join();
        }
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.stop();
    }
}
