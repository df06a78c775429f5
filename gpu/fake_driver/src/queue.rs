//! The streams of a fake device, its events, and what waits in them. A thread of the device works
//! them off: the first task of each stream whose turn it is.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::Instant;
use symphony_gpu::cuda::DriverError;
use symphony_gpu::cuda::driver::CallTensors;
use symphony_gpu::cuda::library_kernels::call::LibraryCall;

/// Work in a stream.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    CopyIn { from: u64, range: Range<usize>, to: u64 },
    CopyOut { from: u64, to: u64, range: Range<usize> },
    Zero { at: u64, bytes: usize },
    Launch { kernel: &'static str, arguments: Vec<u8> },
    Call { call: Box<LibraryCall>, tensors: CallTensors, workspace_bytes: usize },
    Graph(Vec<Task>),
    Record { event: u64, turn: u64 },
    Wait { event: u64, turn: u64 },
    Break(DriverError),
    Hang,
}

/// A queue.
#[derive(Default)]
pub(crate) struct FakeStream {
    pub(crate) waiting: VecDeque<Task>,
    /// What was put into it since a capture began.
    pub(crate) captured: Option<Vec<Task>>,
}

/// An event: how often it was recorded, how often that was reached, and when that was last.
#[derive(Default)]
pub(crate) struct FakeEvent {
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) is_timed: bool,
    pub(crate) reached_at: Option<Instant>,
}

/// The streams and events of a device.
#[derive(Default)]
pub(crate) struct Queues {
    pub(crate) streams: HashMap<u64, FakeStream>,
    pub(crate) events: HashMap<u64, FakeEvent>,
}

impl Queues {
    /// Takes out a task whose turn it is. What only marks a place in a stream is done here.
    pub(crate) fn next(&mut self) -> Option<Task> {
        loop {
            let mut has_reached = false;
            for stream in self.streams.values_mut() {
                if let Some(task) = next_of(stream, &mut self.events, &mut has_reached) {
                    return Some(task);
                }
            }
            // An event that was reached may let another stream go on.
            if !has_reached {
                return None;
            }
        }
    }

    /// Lets the streams go on that hang.
    pub(crate) fn resume(&mut self) {
        for stream in self.streams.values_mut() {
            stream.waiting.retain(|task| !matches!(task, Task::Hang));
        }
    }
}

/// Takes out a stream's next task if its turn has come; notes whether an event was reached.
fn next_of(
    stream: &mut FakeStream,
    events: &mut HashMap<u64, FakeEvent>,
    has_reached: &mut bool,
) -> Option<Task> {
    while let Some(task) = stream.waiting.front() {
        match task {
            Task::Hang => return None,
            Task::Wait { event, turn } => {
                if events.get(event).is_some_and(|event| event.reached < *turn) {
                    return None;
                }
            }
            Task::Record { event, turn } => {
                if let Some(event) = events.get_mut(event) {
                    event.reached = event.reached.max(*turn);
                    event.reached_at = Some(Instant::now());
                }
                *has_reached = true;
            }
            _ => return stream.waiting.pop_front(),
        }
        stream.waiting.pop_front();
    }
    None
}
