//! The control thread of a simulation, which loads and unloads models through [`ModelSlots`]. Those
//! wait for other threads in the midst of a call; so the control thread is a real one, which runs
//! only while the simulation waits for it: whenever it would sleep, it hands over.

use super::dice::Dice;
use crate::config::ModelConfig;
use crate::runtime::frontend::SlotState;
use crate::runtime::model_slots::{LoadedModel, ModelSlotError, ModelSlots};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use symphony_transport::message::ModelId;

/// The most models that are loaded besides those of the start.
const MOST_LOADED: usize = 3;

/// An order of the simulation to the control thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Go on.
    GoOn,
    /// Unload what was loaded, and end once that is done.
    End,
}

/// The control thread, as the simulation holds it.
pub(super) struct SimulatedControl {
    turns: SyncSender<Turn>,
    pauses: Receiver<()>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl SimulatedControl {
    /// Makes the control thread of these slots, which loads copies of `models`.
    ///
    /// Errors: the system gives no thread.
    pub(super) fn start(
        model_slots: ModelSlots,
        models: Vec<ModelConfig>,
        dice: Dice,
    ) -> std::io::Result<SimulatedControl> {
        let (turns, turns_taken) = sync_channel(0);
        let (paused, pauses) = sync_channel(0);
        let relay = Relay(Arc::new(Mutex::new((paused, turns_taken))));
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            ControlScript { model_slots, models, dice, loaded: Vec::new(), number: 0 }.run(relay)
        })?;
        // From here on it waits for its turn.
        let _ = pauses.recv();
        Ok(SimulatedControl { turns, pauses, thread: Some(thread) })
    }

    /// Lets the thread run until it pauses.
    ///
    /// Errors: the thread has ended before its time, or found something lost.
    pub(super) fn go_on(&mut self) -> Result<(), String> {
        self.turn(Turn::GoOn)
    }

    /// Lets the thread run, to its end, until it pauses. Returns true once it has ended.
    ///
    /// Errors: as for [`SimulatedControl::go_on`].
    pub(super) fn end(&mut self) -> Result<bool, String> {
        self.turn(Turn::End)?;
        Ok(self.thread.is_none())
    }

    fn turn(&mut self, turn: Turn) -> Result<(), String> {
        if self.thread.is_none() || self.turns.send(turn).is_ok() && self.pauses.recv().is_ok() {
            return Ok(());
        }
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(result)) => result,
            _ => Err("the control thread panicked".to_owned()),
        }
    }
}

/// The control thread's end of the hand-over.
#[derive(Clone)]
struct Relay(Arc<Mutex<(SyncSender<()>, Receiver<Turn>)>>);

impl Relay {
    /// Hands over to the simulation until it is this thread's turn again. Ends the thread quietly
    /// if the simulation is over.
    fn hand_over(&self) -> Turn {
        let (paused, turns) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = paused.send(()).ok().and_then(|()| turns.recv().ok());
        turn.unwrap_or_else(|| resume_unwind(Box::new(())))
    }
}

/// What the control thread does.
struct ControlScript {
    model_slots: ModelSlots,
    models: Vec<ModelConfig>,
    dice: Dice,
    loaded: Vec<ModelId>,
    /// The number of models that were loaded.
    number: u64,
}

impl ControlScript {
    fn run(mut self, relay: Relay) -> Result<(), String> {
        let vacant = self.vacant();
        let pausing = relay.clone();
        self.model_slots.pause_by(Box::new(move || {
            pausing.hand_over();
        }));
        while relay.hand_over() == Turn::GoOn {
            self.act().map_err(|error| error.to_string())?;
        }
        let loaded = std::mem::take(&mut self.loaded);
        self.model_slots.switch(&[], &loaded);
        while self.model_slots.reclaim().map_err(|error| error.to_string())? > 0 {
            relay.hand_over();
        }
        match self.vacant() {
            left if left == vacant => Ok(()),
            left => Err(format!("{vacant} model slots were vacant, and {left} are after all was unloaded")),
        }
    }

    fn vacant(&self) -> usize {
        self.model_slots.models().iter().filter(|model| model.state == SlotState::Vacant).count()
    }

    /// Loads, replaces or unloads a model, or nothing of it.
    fn act(&mut self) -> Result<(), ModelSlotError> {
        match self.dice.below(8) {
            0 | 1 if self.loaded.len() < MOST_LOADED => self.load(None)?,
            2 if !self.loaded.is_empty() => {
                let old = self.pick();
                self.load(Some(old))?;
            }
            3 if !self.loaded.is_empty() => {
                let old = self.pick();
                self.model_slots.switch(&[], &[old]);
            }
            _ => {}
        }
        self.model_slots.reclaim().map(drop)
    }

    fn pick(&mut self) -> ModelId {
        let at = self.dice.below(self.loaded.len());
        self.loaded.swap_remove(at)
    }

    fn load(&mut self, instead_of: Option<ModelId>) -> Result<(), ModelSlotError> {
        self.number += 1;
        let model = self.models[self.dice.below(self.models.len())].clone();
        let name = format!("later-{}", self.number);
        match self.model_slots.prepare(LoadedModel::emulated(ModelConfig { name, ..model })) {
            Ok(id) => {
                self.model_slots.switch(&[id], instead_of.as_slice());
                self.loaded.push(id);
                Ok(())
            }
            // Models that drain still have their slots.
            Err(ModelSlotError::Full(..)) => {
                self.model_slots.switch(&[], instead_of.as_slice());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
