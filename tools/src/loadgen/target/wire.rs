//! The interface of protocols for [`super::network`]: requests become messages, and answers are
//! read.

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
    /// The name in reports.
    const NAME: &'static str;

    /// The connections that all threads together may have unless the user sets another number.
    const CONNECTIONS: usize;

    /// Requests of one thread with this many connections that may be under way, if connections
    /// bound that.
    fn in_flight_limit(connections: usize) -> Option<usize>;

    /// Opens a first connection.
    async fn connect(server: &ServerUrl, connections: usize) -> Result<Self, RunError>;

    /// Opens more, so that the first requests need not wait for it.
    async fn open_ahead(&self);

    /// Returns the protocol's extensions that the server supports.
    async fn extensions(&self) -> Result<Vec<String>, RunError>;

    /// Returns the names of all models of the server.
    async fn model_names(&self) -> Result<Vec<String>, RunError>;

    /// Returns the inputs and outputs of a model.
    async fn describe(&self, model: &str) -> Result<Description, RunError>;

    /// Makes a shared memory region known to the server.
    async fn register(&self, region: &Region) -> Result<(), RunError>;

    /// Unregisters a region; a server that is gone is no error.
    async fn unregister(&self, region: &Region);

    /// Encodes a request.
    ///
    /// Errors: the protocol can't express the request.
    fn encode(server: &ServerUrl, call: &Call<'_>) -> Result<Message, String>;

    /// The message with its outputs going to a slot of a shared memory region.
    fn with_outputs(message: &Message, region: &str, slots: &OutputSlots, slot: usize) -> Message;

    /// Sends an infer request, calling `on_send` as it goes out, and reads the answer.
    async fn infer(&self, message: Message, on_send: impl FnOnce()) -> Result<Reply, Failure>;
}

/// An infer request, encoded. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The URI to send it to.
    pub(super) uri: Uri,
    /// The body.
    pub(super) body: Bytes,
    /// HTTP: the length of the JSON that comes before raw tensors in the body.
    pub(super) json_length: Option<usize>,
    /// gRPC: the call's time limit.
    pub(super) limit: Option<Nanos>,
}

/// An answer to an infer request.
#[derive(Debug)]
pub(super) struct Reply {
    /// The end of the request.
    pub(super) end: End,
    /// The server's statements about its execution.
    pub(super) details: ServerDetails,
    /// The reason of a failure.
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
