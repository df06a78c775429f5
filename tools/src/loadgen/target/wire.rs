//! What a protocol must do for [`super::network`]: requests put into its messages, and answers read.

use super::call::Call;
use super::connection::Failure;
use super::describe::Description;
use super::shared_memory::{OutputSlots, Region};
use super::url::ServerUrl;
use crate::loadgen::RunError;
use crate::loadgen::measure::{End, ServerDetails};
use bytes::Bytes;
use hyper::Uri;
use symphony_transport::Nanos;

/// A protocol, as one thread speaks it on its connections.
pub(super) trait Wire: Sized + 'static {
    /// Its name in reports.
    const NAME: &'static str;

    /// The connections that all threads together may have unless the user says otherwise.
    const CONNECTIONS: usize;

    /// Requests of one thread with this many connections that may be under way, if connections
    /// bound that.
    fn in_flight_limit(connections: usize) -> Option<usize>;

    /// Opens a first connection.
    async fn connect(server: &ServerUrl, connections: usize) -> Result<Self, RunError>;

    /// Opens more, so that the first requests need not wait for it.
    async fn open_ahead(&self);

    /// What of the protocol's extensions the server speaks.
    async fn extensions(&self) -> Result<Vec<String>, RunError>;

    /// Every model of the server.
    async fn model_names(&self) -> Result<Vec<String>, RunError>;

    /// What a model takes and gives.
    async fn describe(&self, model: &str) -> Result<Description, RunError>;

    /// Makes a shared memory region known to the server.
    async fn register(&self, region: &Region) -> Result<(), RunError>;

    /// Undoes that; a server that has gone needs no telling.
    async fn unregister(&self, region: &Region);

    /// Puts a request into the protocol's words.
    ///
    /// Errors: what it can't say.
    fn encode(server: &ServerUrl, call: &Call<'_>) -> Result<Message, String>;

    /// The message with its outputs going to a slot of a shared memory region.
    fn with_outputs(message: &Message, region: &str, slots: &OutputSlots, slot: usize) -> Message;

    /// Sends an infer request, calling `on_send` as it goes out, and reads the answer.
    async fn infer(&self, message: Message, on_send: impl FnOnce()) -> Result<Reply, Failure>;
}

/// An infer request in a protocol's words. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Where it goes.
    pub(super) uri: Uri,
    /// What is sent.
    pub(super) body: Bytes,
    /// HTTP: the length of the JSON that comes before raw tensors in the body.
    pub(super) json_length: Option<usize>,
    /// gRPC: the call's time limit.
    pub(super) limit: Option<Nanos>,
}

/// An answer to an infer request.
#[derive(Debug)]
pub(super) struct Reply {
    /// How the request ended.
    pub(super) end: End,
    /// What else the server told.
    pub(super) details: ServerDetails,
    /// What went wrong, of one that failed.
    pub(super) why: Option<String>,
}

/// Returns how a request ended: by the outcome that Symphony states, or else by `otherwise`.
pub(super) fn end_of(outcome: Option<&str>, otherwise: impl FnOnce() -> End) -> End {
    match outcome {
        Some("good") => End::Good,
        Some("late") => End::Late,
        Some("dropped" | "cancelled") => End::Dropped,
        Some("overloaded" | "draining") => End::Rejected,
        Some("failed" | "invalid") => End::Failed,
        _ => otherwise(),
    }
}
