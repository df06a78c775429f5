//! The executors of a simulation, seen from outside: batches pass here on their way to the emulated
//! GPUs, answers and completions on their way back. Here an executor hangs, fails, runs late; here
//! it writes what a client can recognise as the answer to its own request; and here is checked what
//! must hold of batches.

use super::dice::Dice;
use std::collections::VecDeque;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{
    BatchEntry, BatchHeader, Completion, ENTRIES_PER_FRAME, Ending, Frame, Response,
};
use symphony_transport::ring::Producer;
use symphony_transport::slab::SlabView;

/// Returns the first bytes of the input of a row, which no other row of the engine has.
#[inline]
pub(super) fn row_mark(frontend: u16, id: u64, row: usize) -> u64 {
    1 << 63 | (row as u64) << 56 | u64::from(frontend) << 48 | id
}

/// The bits of a mark that say which row of its request it is of.
const ROW_OF_MARK: u64 = 0x7f << 56;

/// A batch that a GPU was given and has not completed.
struct GivenBatch {
    batch: u64,
    exec_at: Nanos,
    /// The time at which its backend got it; [`Nanos::MAX`] while it is held.
    passed: Nanos,
}

/// A batch that a hung GPU has not begun.
struct HeldBatch {
    wire: usize,
    frames: Vec<Frame>,
}

/// A GPU as its executor's driver sees it.
#[derive(Default)]
struct SimulatedGpu {
    given: Vec<GivenBatch>,
    held: VecDeque<HeldBatch>,
    hung_until: Nanos,
}

/// The executors. See the module's description.
pub(super) struct SimulatedExecutors {
    slabs: Vec<SlabView>,
    gpus: Vec<SimulatedGpu>,
    row_bytes: usize,
    dice: Dice,
    /// Batches that start before this time fail, in this share.
    failing: (Nanos, f64),
    /// The batch whose frames are passing: its wire, the GPU if that is hung, frames to come.
    wire: usize,
    passing: usize,
    holds: Option<usize>,
    /// The number of batches that were held by hung GPUs.
    held: usize,
    /// The first thing that does not hold.
    broken: Option<String>,
}

impl SimulatedExecutors {
    /// Makes idle GPUs that read and write these slabs, where a row's input and its output have
    /// `row_bytes` each.
    pub(super) fn new(slabs: Vec<SlabView>, gpus: usize, row_bytes: usize, dice: Dice) -> SimulatedExecutors {
        let gpus = (0..gpus).map(|_| SimulatedGpu::default()).collect();
        let failing = (Nanos::ZERO, 0.0);
        SimulatedExecutors {
            slabs,
            gpus,
            row_bytes,
            dice,
            failing,
            wire: 0,
            passing: 0,
            holds: None,
            held: 0,
            broken: None,
        }
    }

    /// Hangs a GPU: it begins none of its batches before `until`.
    pub(super) fn hang(&mut self, gpu: usize, until: Nanos) {
        let hung_until = &mut self.gpus[gpu].hung_until;
        *hung_until = until.max(*hung_until);
    }

    /// Makes a share of the batches that start before `until` fail.
    pub(super) fn fail(&mut self, until: Nanos, share: f64) {
        self.failing = (until, share);
    }

    /// Takes the first thing that does not hold.
    pub(super) fn take_broken(&mut self) -> Option<String> {
        self.broken.take()
    }

    /// Returns the number of batches that GPUs have and have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.gpus.iter().map(|gpu| gpu.given.len()).sum()
    }

    fn broke(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// Notes by which wire the next frames come.
    pub(super) fn begin_wire(&mut self, wire: usize) {
        self.wire = wire;
    }

    /// Passes on the batches of one wire whose GPUs hang no more.
    pub(super) fn deliver_held(&mut self, now: Nanos, wire: usize, to: &mut Producer<Frame>) {
        if self.held == 0 {
            return;
        }
        for gpu in &mut self.gpus {
            while gpu.hung_until <= now
                && gpu.held.front().is_some_and(|held| held.wire == wire && to.has_room(held.frames.len()))
                && let Some(held) = gpu.held.pop_front()
            {
                self.held -= 1;
                let header = BatchHeader::from(held.frames[0]);
                let given = gpu.given.iter_mut().find(|given| given.batch == header.batch);
                given.into_iter().for_each(|given| given.passed = now);
                held.frames.into_iter().for_each(|frame| {
                    // Room was checked.
                    let _ = to.write(frame);
                });
            }
        }
        to.publish();
    }

    /// Takes a frame of a batch and passes it on, unless its GPU hangs.
    #[inline]
    pub(super) fn receive(&mut self, now: Nanos, frame: &Frame, to: &mut Producer<Frame>) {
        if self.passing == 0 {
            self.begin_batch(now, BatchHeader::from(*frame));
        } else {
            self.passing -= 1;
            self.check_entries(<[BatchEntry; ENTRIES_PER_FRAME]>::from(*frame));
        }
        match self.holds {
            None => {
                // Room was checked.
                let _ = to.write(*frame);
            }
            Some(gpu) => {
                if let Some(held) = self.gpus[gpu].held.back_mut() {
                    held.frames.push(*frame);
                }
            }
        }
    }

    fn begin_batch(&mut self, now: Nanos, header: BatchHeader) {
        let BatchHeader { batch, exec_at, size, .. } = header;
        self.passing = BatchHeader::frames(size as usize) - 1;
        let at = header.gpu.0 as usize;
        let Some(gpu) = self.gpus.get_mut(at) else {
            return self.broke(format!("batch {batch} was sent to GPU {at}, which does not exist"));
        };
        let hangs = now < gpu.hung_until || !gpu.held.is_empty();
        let passed = if hangs { Nanos::MAX } else { now };
        gpu.given.push(GivenBatch { batch, exec_at, passed });
        let given = gpu.given.len();
        self.holds = hangs.then_some(at);
        if hangs {
            gpu.held.push_back(HeldBatch { wire: self.wire, frames: Vec::new() });
            self.held += 1;
        }
        if given > limits::MAX_OUTSTANDING_BATCHES {
            self.broke(format!("GPU {at} has {given} batches at once"));
        }
    }

    /// Checks that the slots that a batch names hold the inputs of its requests.
    #[inline]
    fn check_entries(&mut self, entries: [BatchEntry; ENTRIES_PER_FRAME]) {
        for BatchEntry { id, slot } in entries {
            if slot == Default::default() {
                continue;
            }
            let frontend = slot.frontend();
            let guard = self.slabs.get(usize::from(frontend)).and_then(|slab| slab.claim(slot));
            let mark = guard.map(|guard| u64::from_le_bytes(guard[..8].try_into().unwrap_or_default()));
            if mark.map(|mark| mark & !ROW_OF_MARK) != Some(row_mark(frontend, id, 0)) {
                self.broke(format!("request {id} of frontend {frontend} runs with {mark:x?} in {slot:?}"));
            }
        }
    }

    /// Takes the answer to a row from an executor, writes its output and passes it on.
    #[inline]
    pub(super) fn answer(&mut self, response: &mut Response, to: &mut Producer<Response>) {
        if response.ending == Ending::Done as u32 {
            self.write_output(response);
        }
        // Room was checked.
        let _ = to.write(*response);
    }

    #[inline]
    fn write_output(&mut self, response: &mut Response) {
        let (until, share) = self.failing;
        if response.started < until && self.dice.chance(share) {
            response.ending = Ending::Failed as u32;
            return;
        }
        let (slot, bytes) = (response.slot, self.row_bytes);
        let slab = self.slabs.get(usize::from(slot.frontend()));
        let claimed = slab.and_then(|slab| slab.claim(slot));
        let is_there = claimed.is_some();
        claimed.into_iter().for_each(|mut guard| guard.copy_within(..bytes, bytes));
        if !is_there {
            self.broke(format!("{slot:?} was taken from request {} while it ran", response.id));
        }
    }

    /// Takes a completion, checks the order of its GPU's batches and passes it on.
    pub(super) fn completed(&mut self, completion: &Completion, to: &mut Producer<Completion>) {
        let &Completion { batch, started, gpu, .. } = completion;
        let given = &mut self.gpus[gpu.0 as usize].given;
        let Some(at) = given.iter().position(|given| given.batch == batch) else {
            return self.broke(format!("batch {batch} of GPU {} has completed twice", gpu.0));
        };
        let own = given.remove(at);
        let overtaken = given.iter().find(|other| other.passed <= started && other.exec_at < own.exec_at);
        if let Some(other) = overtaken {
            let (first, second) = (other.batch, own.batch);
            self.broke(format!("batch {second} of GPU {} ran before {first}, which was due earlier", gpu.0));
        }
        // Room was checked.
        let _ = to.write(*completion);
    }
}
