//! The requests that a frontend takes, and the reasons for which it refuses them.

use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId};
use symphony_transport::slab::SlotId;

/// A request as its client states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The model that is to run.
    pub model: ModelId,
    /// The number of rows of input, at least 1. They run in one batch where that is possible.
    pub rows: usize,
    /// The time by which the answer is due.
    pub due: Due,
    /// The priority class. A request that is never due is of the lowest class where this is the
    /// highest.
    pub class: Class,
}

impl Ask {
    /// Returns a request of one row, due within the model's SLO, of the highest class.
    pub fn one(model: ModelId) -> Ask {
        Ask { model, rows: 1, due: Due::Slo, class: Class::HIGHEST }
    }

    /// Returns the class that the request is served in.
    pub(super) fn served_in(&self) -> Class {
        match (self.due, self.class) {
            (Due::Never, Class::HIGHEST) => Class::LOWEST,
            (_, class) => class,
        }
    }
}

/// The time by which an answer is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Within the model's SLO.
    Slo,
    /// Within this time or the model's SLO, whichever is less.
    Within(Nanos),
    /// Whatever the model's SLO: the time of a stage follows from its query's.
    Carried {
        /// Within this time.
        within: Nanos,
        /// If it is dropped it is made once more, for so much more time; zero if it is not.
        more: Nanos,
        /// True if it is made once more.
        is_again: bool,
    },
    /// Never, as for a batch client: it waits until a GPU is left over.
    Never,
}

/// A request whose slab slots are taken, and which is not sent yet: see
/// [`Frontend::reserve`](super::Frontend::reserve).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotReservation {
    /// The request, with the class that it is served in.
    pub(super) ask: Ask,
    /// The index of its first slot.
    pub(super) index: usize,
    /// The slots of its rows, in order.
    pub slots: Vec<SlotId>,
}

impl SlotReservation {
    /// Returns the model that the request is for.
    pub fn model(&self) -> ModelId {
        self.ask.model
    }
}

/// The name of a request between [`Frontend::submit`](super::Frontend::submit) and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// An index for side tables: below [`Frontend::capacity`](super::Frontend::capacity), and
    /// shared by no two requests in flight.
    pub index: usize,
    /// A number that the frontend gives to no other request.
    pub id: u64,
}

/// The reason why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The slab has no free slot, or the ring to the model's thread is full.
    #[error("the engine is overloaded: every slot for requests in flight is taken; try again later")]
    Overloaded,
    /// The engine is shutting down.
    #[error("the engine is shutting down and accepts no more requests")]
    Draining,
    /// The engine can't go on: see [`Engine::fault`](crate::runtime::Engine::fault).
    #[error("the engine has broken down and accepts no more requests")]
    Broken,
    /// A request of this number of rows is never accepted.
    #[error("a request of {rows} rows is not possible: give 1 to {limit} for this model and priority")]
    TooManyRows {
        /// The rows of the request.
        rows: usize,
        /// The most rows that a request may have.
        limit: usize,
    },
    /// The model was unloaded.
    #[error("the model was unloaded")]
    Unloaded,
    /// The model's slot is [`SlotState::Draining`](super::SlotState::Draining), and the caller
    /// holds no table in which it is served.
    #[error("the model is being loaded or unloaded, and is not served now; look for its name again")]
    NotServing,
}
