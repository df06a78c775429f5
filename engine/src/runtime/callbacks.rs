//! The callbacks that a program may give to the engine.

use std::sync::Arc;

/// A callback that gets, in a line each, what a start-up or a load of a model is doing.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// A callback that a thread calls with the name of its role; with the names of its roles, a `+`
/// between them, where they share it.
pub type ThreadHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Returns a [`Progress`] callback that ignores what it gets.
pub fn no_progress() -> Progress {
    Arc::new(|_| ())
}
