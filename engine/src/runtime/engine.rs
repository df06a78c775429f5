//! The running engine: its threads, and its state that can be read from outside.

use super::clock::Clock;
use super::counters::Counters;
use super::fault::{FatalFault, FaultLatch};
use super::frontend::{ModelInfo, ModelTable};
use super::gpu_memory::ServedGpus;
use super::links::{LinkBoard, RunningLinks};
use super::model_slots::ModelSlots;
use super::start::layout::Layout;
use super::threads::agent::{Member, StopSignal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// A running engine. [`Engine::start`] starts one; dropping it stops its threads.
pub struct Engine {
    pub(super) models: Arc<[ModelInfo]>,
    pub(super) model_table: Arc<ModelTable>,
    pub(super) profiles: Vec<Profile>,
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    pub(super) lateness: Nanos,
    pub(super) accepting: Arc<AtomicBool>,
    pub(super) faults: FaultLatch,
    pub(super) counters: Counters,
    pub(super) gpu_memory: Arc<ServedGpus>,
    pub(super) model_slots: Option<ModelSlots>,
    /// ModelThreads, RankThreads and the emulated GPUs, to be stopped in this order; the CPU
    /// executors come after.
    pub(super) stages: [Stage; 3],
    /// The longest time that a stop takes.
    pub(super) shutdown_timeout: Duration,
    pub(super) stop_executors: Arc<AtomicBool>,
    pub(super) threads: Vec<JoinHandle<()>>,
    /// The keeper of rolling profiles, without which the engine goes on.
    pub(super) profile_keeper: Option<JoinHandle<()>>,
    /// The links to other hosts, where the engine is spread over several. They end last.
    pub(super) links: Option<RunningLinks>,
}

/// Roles that stop together, before those of the next stage.
pub(super) struct Stage {
    stop_signals: Vec<Arc<StopSignal>>,
}

impl Stage {
    /// Makes the stage of these roles.
    pub(super) fn of<'a>(members: impl Iterator<Item = &'a Member>) -> Stage {
        Stage { stop_signals: members.map(|member| Arc::clone(&member.stop_signal)).collect() }
    }

    /// Requests the end of the stage's members and waits until they have ended, or until `limit`.
    fn end(&self, limit: Instant) {
        self.stop_signals.iter().for_each(|signal| signal.asked.store(true, Ordering::Relaxed));
        let have_ended = || self.stop_signals.iter().all(|signal| signal.done.load(Ordering::Acquire));
        wait_until(limit, have_ended);
    }
}

/// Waits until `holds`, or until `limit`, and returns whether it holds.
fn wait_until(limit: Instant, holds: impl Fn() -> bool) -> bool {
    while !holds() {
        if Instant::now() >= limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

impl Engine {
    /// Returns the counters of its threads, which can be read at any time.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the memory of its GPUs, which can be read at any time.
    pub fn gpu_memory(&self) -> &Arc<ServedGpus> {
        &self.gpu_memory
    }

    /// Returns the model slots, to load and unload models while the engine runs; `None` if they
    /// were taken already, if CONFIG has no repository from which models could be loaded later, and
    /// if a flight recorder is on. They must be dropped, or used no more, before the engine is
    /// stopped.
    pub fn take_model_slots(&mut self) -> Option<ModelSlots> {
        self.model_slots.take()
    }

    /// Returns the model table, which lists the models that are served at the moment.
    pub fn model_table(&self) -> &Arc<ModelTable> {
        &self.model_table
    }

    /// Returns every model slot, by id, as it was at start-up.
    pub fn models(&self) -> &Arc<[ModelInfo]> {
        &self.models
    }

    /// Returns the profiles of the models that the engine started with, by id.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Returns the engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the flag that is cleared when the engine accepts no more requests.
    pub fn accepting(&self) -> &Arc<AtomicBool> {
        &self.accepting
    }

    /// Returns the placements of the engine's threads.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the lateness with which this machine's threads see that a time has come, as measured
    /// at start-up.
    pub fn lateness(&self) -> Nanos {
        self.lateness
    }

    /// Returns the links to other hosts, where the engine is spread over several.
    pub fn links(&self) -> Option<&Arc<LinkBoard>> {
        self.links.as_ref().map(|links| &links.board)
    }

    /// Stops accepting requests. Those accepted go on to their ends: see
    /// [`Frontend::in_flight`](crate::runtime::Frontend::in_flight).
    pub fn drain(&self) {
        self.accepting.store(false, Ordering::Relaxed);
        self.links.iter().for_each(|links| links.board.drain());
    }

    /// Returns the fault for which the engine can't go on, if there is one: a thread that died,
    /// which only a defect makes happen. It accepts no more requests then, and is to be stopped.
    pub fn fault(&self) -> Option<&FatalFault> {
        let links = self.links.iter().map(|links| &links.thread);
        if let Some(thread) = self.threads.iter().chain(links).find(|thread| thread.is_finished()) {
            // Without effect if it has reported itself.
            self.faults.report(thread.thread().name().unwrap_or("without a name"), "ended");
        }
        self.faults.get()
    }

    /// Returns the latch by which threads report faults that the engine can't survive.
    pub fn faults(&self) -> &FaultLatch {
        &self.faults
    }

    /// Stops every thread, in the order in which requests pass through them. Requests still under
    /// way end as [`Ending::Stopped`](symphony_transport::message::Ending::Stopped). Takes at most
    /// `shutdown_timeout_s` of CONFIG: a thread that hangs is left behind then.
    pub fn stop(mut self) {
        let _ = self.end(self.shutdown_timeout);
    }

    /// Stops every thread as [`Engine::stop`] does, within `limit`.
    ///
    /// Errors: the fault for which the engine could not go on, or a thread that did not end.
    pub fn stop_within(mut self, limit: Duration) -> Result<(), FatalFault> {
        self.end(limit)
    }

    fn end(&mut self, limit: Duration) -> Result<(), FatalFault> {
        if self.threads.is_empty() && self.links.is_none() {
            return Ok(());
        }
        self.drain();
        let limit = Instant::now() + limit;
        self.stages.iter().for_each(|stage| stage.end(limit));
        self.stop_executors.store(true, Ordering::Relaxed);
        let mut left_behind = None;
        let mut threads = std::mem::take(&mut self.threads);
        if let Some(links) = self.links.take() {
            // They pass on what the others have said last.
            wait_until(limit, || threads.iter().all(JoinHandle::is_finished));
            links.begin_stop();
            threads.push(links.thread);
        }
        for thread in threads {
            // The stall watch may be between two looks.
            thread.thread().unpark();
            if !wait_until(limit, || thread.is_finished()) {
                left_behind = Some(FatalFault {
                    thread: thread.thread().name().unwrap_or("without a name").to_owned(),
                    what: "did not end in time; it is left behind".to_owned(),
                });
            }
        }
        if let Some(keeper) = self.profile_keeper.take() {
            keeper.thread().unpark();
            if !wait_until(limit, || keeper.is_finished()) {
                tracing::warn!("what the profiles learnt in the last minute is not saved: it takes too long");
            }
        }
        self.faults.get().cloned().or(left_behind).map_or(Ok(()), Err)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.end(self.shutdown_timeout);
    }
}
