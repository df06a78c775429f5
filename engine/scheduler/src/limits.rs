//! Every bound of the engine, named and explained once. Nothing on the dataplane grows past these:
//! a full queue or ring answers `overloaded`, and start-up refuses a configuration that would
//! exceed one.

use symphony_transport::Nanos;
use symphony_transport::message::Class;

/// GPUs that one RankThread matches, and GPUs of an engine: any division among several RankThreads
/// fits too.
pub const MAX_GPUS: usize = 65_536;

/// Models of an engine.
pub const MAX_MODELS: usize = 16_384;

/// Per-class queues that one RankThread ranks, and those of an engine: one for each class of each
/// model. A queue's number fits 16 bits, in the flight recorder too.
pub const MAX_QUEUES: usize = MAX_MODELS * Class::COUNT;

/// ModelThreads of an engine, each linked with every RankThread.
pub const MAX_MODEL_THREADS: usize = 255;

/// RankThreads of an engine. Each costs a ring of messages and one of grants per ModelThread: with
/// 255 of those, 34 MiB.
pub const MAX_RANK_THREADS: usize = 16;

/// Frontends of an engine: API threads, or load generators in its process.
pub const MAX_FRONTENDS: usize = 255;

/// Requests in one batch. Executors may allow fewer.
pub const MAX_BATCH: usize = 1_024;

/// Requests waiting in one model's queue; one more is answered `overloaded`. Two full batches and
/// the arrivals of the time that a batch runs fit in it many times over: a longer queue is late
/// anyway.
pub const MAX_QUEUE_LENGTH: usize = 8_192;

/// Rows that one frontend may have in the engine: the largest capacity of its slab.
pub const MAX_IN_FLIGHT: usize = 16_384;

/// Bytes of one row, input and output together.
pub const MAX_ROW_BYTES: usize = 64 << 20;

/// Outstanding batches of a GPU: one that runs, one that waits, and those that the network still
/// carries. A GPU at this bound gets no grant until a completion comes back.
pub const MAX_OUTSTANDING_BATCHES: usize = 4;

/// Elements that a ring of requests, from one frontend to one ModelThread, holds.
pub const REQUEST_RING: usize = 16_384;

/// Requests that a ModelThread takes from one ring in one duty cycle, so that timers are served in
/// between.
pub const REQUESTS_PER_CYCLE: usize = 256;

/// The length of one sample of a model's request rate: docs/design/specification.md, "Quantities".
pub const RATE_SAMPLE: Nanos = Nanos::from_millis(50);

/// The number of samples whose mean is the rate: a window of 5 s.
pub const RATE_SAMPLES: usize = 100;

/// The length of that window.
pub const RATE_WINDOW: Nanos = Nanos(RATE_SAMPLE.0 * RATE_SAMPLES as u64);
