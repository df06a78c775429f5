//! Orders of clients to the control thread, how they end, and the lines of the repository's index.

/// The most loads and unloads that may wait to be executed.
pub const MAX_ORDERS: usize = 64;

/// The state of a version of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Requests are served.
    Ready,
    /// The version is being loaded.
    Loading,
    /// New requests no longer find the version; its last requests are being finished.
    Unloading,
    /// The version is not loaded.
    Unavailable,
}

/// A line of the repository's index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The name of the model.
    pub name: String,
    /// The version; `None` for a model that is not loaded.
    pub version: Option<u64>,
    /// The state of the version.
    pub state: State,
    /// The reason why the version is not served; may be empty.
    pub reason: String,
}

/// The reason why a model was not loaded or unloaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// Orders are not accepted.
    #[error("{0}")]
    Off(&'static str),
    /// The model does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The order can't be executed as given, or the model is at fault.
    #[error("{0}")]
    Wrong(String),
    /// Too many orders wait.
    #[error("{MAX_ORDERS} loads and unloads wait already; try again later")]
    Busy,
}

/// A callback that gets an order's result, on the control thread.
pub type Done = Box<dyn FnOnce(Result<(), ControlError>) + Send>;

/// An order of a client.
pub(crate) enum Order {
    /// Loads this model, or what has changed of it; all of it if a configuration in JSON is given,
    /// which then counts instead of its `config.pbtxt`.
    Load(String, Option<String>, Done),
    /// Unloads all versions of this model, or this ensemble; its models as well if true.
    Unload(String, bool, Done),
}
