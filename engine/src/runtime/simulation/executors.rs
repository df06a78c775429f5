//! The executors of a simulation, seen from outside: batches pass here on their way to the emulated
//! GPUs, answers and completions on their way back. Here an executor hangs, fails, dies, runs late;
//! here it writes what a client can recognise as the answer to its own request; and here is checked
//! what must hold of batches.

use super::dice::Dice;
use super::mark::RowMark;
use super::passage::{MessageFaults, Passage};
use crate::runtime::frontend::ModelInfo;
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{
    BatchEntry, BatchHeader, Completion, ENTRIES_PER_FRAME, Ending, Frame, ModelId, Response,
};
use symphony_transport::ring::Producer;
use symphony_transport::slab::{SlabView, SlotId};

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
    /// The time until which it has no thread: its batches fail, and their completions come then.
    dead_until: Nanos,
}

/// The models that a batch's rows are for.
#[derive(Clone, Copy)]
enum RowsFor {
    None,
    One(ModelId),
    Several,
}

/// The executors. See the module's description.
pub(super) struct SimulatedExecutors {
    slabs: Vec<SlabView>,
    gpus: Vec<SimulatedGpu>,
    /// The models of the start, by their slots.
    models: Arc<[ModelInfo]>,
    row_bytes: usize,
    dice: Dice,
    pub(super) messages: MessageFaults,
    /// Batches that start before this time fail, in this share.
    failing: (Nanos, f64),
    /// The batch whose frames are passing: its wire, its model, the GPU if that is hung, frames to
    /// come.
    wire: usize,
    model: ModelId,
    passing: usize,
    /// The model that its rows are for so far: none yet, one, or several.
    rows_for: RowsFor,
    /// The number of batches with rows for several models.
    pub(super) mixed: u64,
    holds: Option<usize>,
    /// The number of batches that were held by hung GPUs.
    held: usize,
    /// The first thing that does not hold.
    broken: Option<String>,
}

impl SimulatedExecutors {
    /// Makes idle GPUs that read and write these slabs, where a row's input and its output have
    /// `row_bytes` each, beside the number of a model that is run as one with others. `models` are
    /// those of the start.
    pub(super) fn new(
        slabs: Vec<SlabView>,
        gpus: usize,
        (models, row_bytes): (Arc<[ModelInfo]>, usize),
        dice: Dice,
        messages: MessageFaults,
    ) -> SimulatedExecutors {
        let gpus = (0..gpus).map(|_| SimulatedGpu::default()).collect();
        let failing = (Nanos::ZERO, 0.0);
        SimulatedExecutors {
            slabs,
            gpus,
            models,
            row_bytes,
            dice,
            messages,
            failing,
            wire: 0,
            model: ModelId(0),
            passing: 0,
            rows_for: RowsFor::None,
            mixed: 0,
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

    /// Kills the thread of a GPU's executor, which gets another one at `until`.
    pub(super) fn die(&mut self, gpu: usize, until: Nanos) {
        let dead_until = &mut self.gpus[gpu].dead_until;
        *dead_until = until.max(*dead_until);
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
    pub(super) fn receive(&mut self, now: Nanos, frame: &Frame) -> Passage {
        if self.passing == 0 {
            self.begin_batch(now, BatchHeader::from(*frame));
        } else {
            self.passing -= 1;
            self.check_entries(<[BatchEntry; ENTRIES_PER_FRAME]>::from(*frame));
        }
        match self.holds {
            None => Passage::Once,
            Some(gpu) => {
                if let Some(held) = self.gpus[gpu].held.back_mut() {
                    held.frames.push(*frame);
                }
                Passage::Never
            }
        }
    }

    fn begin_batch(&mut self, now: Nanos, header: BatchHeader) {
        let BatchHeader { batch, exec_at, size, model, .. } = header;
        (self.model, self.rows_for) = (model, RowsFor::None);
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

    /// Checks that the slots that a batch names hold the inputs of its requests, and these are for
    /// the batch's model, or for one that is run as one with it.
    #[inline]
    fn check_entries(&mut self, entries: [BatchEntry; ENTRIES_PER_FRAME]) {
        for BatchEntry { id, slot } in entries {
            if slot == Default::default() {
                continue;
            }
            let frontend = slot.frontend();
            let is_own = |(mark, _): &(RowMark, _)| mark.is_of(frontend, id);
            let Some((mark, variant)) = self.row(slot).filter(is_own) else {
                self.broke(format!("request {id} of frontend {frontend} runs with another's {slot:?}"));
                continue;
            };
            self.note(mark.model());
            let asked = self.models.get(mark.model().0 as usize);
            let (queues, number) = asked.map_or((mark.model(), None), |asked| {
                (asked.queue_slot(), asked.variant.map(|variant| variant.number))
            });
            if (queues, number) != (self.model, variant) {
                let (asked, model) = (mark.model().0, self.model.0);
                self.broke(format!(
                    "request {id} for model {asked} runs in a batch of model {model}, as its variant {variant:?}"
                ));
            }
        }
    }

    /// Notes that a row of the batch that passes is for this model.
    fn note(&mut self, model: ModelId) {
        self.rows_for = match self.rows_for {
            RowsFor::None => RowsFor::One(model),
            RowsFor::One(other) if other != model => {
                self.mixed += 1;
                RowsFor::Several
            }
            unchanged => unchanged,
        };
    }

    /// Reads the row in a slot: its mark, and the number of the model that it is for among those
    /// that are run as one; `None` if the slot has another holder.
    #[inline]
    fn row(&self, slot: SlotId) -> Option<(RowMark, Option<u32>)> {
        let row = self.slabs.get(usize::from(slot.frontend()))?.claim(slot)?;
        let mark = RowMark::read(&row);
        let asked = self.models.get(mark.model().0 as usize);
        let number = |asked: &ModelInfo| asked.variant.map(|_| asked.signature.variant(&row));
        Some((mark, asked.and_then(number)))
    }

    /// Takes the answer to a row from an executor and writes its output.
    #[inline]
    pub(super) fn answer(&mut self, now: Nanos, response: &mut Response) -> Passage {
        if response.ending == Ending::Done as u32 {
            self.write_output(now, response);
        }
        self.refusal(now, response)
    }

    /// Takes the answer to a row from a ModelThread.
    #[inline]
    pub(super) fn refusal(&mut self, now: Nanos, response: &Response) -> Passage {
        let &Response { id, slot, .. } = response;
        let SimulatedExecutors { messages, slabs, .. } = self;
        messages.of_answer(now, (slot.frontend(), id), || {
            let guard = slabs.get(usize::from(slot.frontend()))?.claim(slot)?;
            Some(RowMark::read(&guard))
        })
    }

    #[inline]
    fn write_output(&mut self, now: Nanos, response: &mut Response) {
        let (until, share) = self.failing;
        let is_dead = self.gpus.get(response.gpu.0 as usize).is_some_and(|gpu| now < gpu.dead_until);
        if is_dead || response.started < until && self.dice.chance(share) {
            response.ending = Ending::Failed as u32;
            return;
        }
        let (slot, bytes) = (response.slot, self.row_bytes);
        let slab = self.slabs.get(usize::from(slot.frontend()));
        let claimed = slab.and_then(|slab| slab.claim(slot));
        let is_there = claimed.is_some();
        claimed.into_iter().for_each(|mut row| {
            let asked = self.models.get(RowMark::read(&row).model().0 as usize);
            let outputs = asked.filter(|asked| asked.variant.is_some());
            let outputs = outputs.map_or(bytes, |asked| asked.signature.input_bytes());
            row.copy_within(..bytes, outputs);
        });
        if !is_there {
            self.broke(format!("{slot:?} was taken from request {} while it ran", response.id));
        }
    }

    /// Takes a completion and checks the order of its GPU's batches.
    pub(super) fn completed(&mut self, now: Nanos, completion: &Completion) -> Passage {
        let &Completion { batch, started, gpu, .. } = completion;
        let SimulatedGpu { given, dead_until, .. } = &mut self.gpus[gpu.0 as usize];
        let later = (now < *dead_until).then_some(Passage::Later(*dead_until));
        let Some(at) = given.iter().position(|given| given.batch == batch) else {
            self.broke(format!("batch {batch} of GPU {} has completed twice", gpu.0));
            return Passage::Never;
        };
        let own = given.remove(at);
        let overtaken = given.iter().find(|other| other.passed <= started && other.exec_at < own.exec_at);
        if let Some(other) = overtaken {
            let (first, second) = (other.batch, own.batch);
            self.broke(format!("batch {second} of GPU {} ran before {first}, which was due earlier", gpu.0));
        }
        later.unwrap_or_else(|| self.messages.of_completion(now))
    }
}
