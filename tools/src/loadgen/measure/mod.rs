//! The measurements of a run: how requests ended and how long they took, in all, by stage, by
//! second and by model.

mod histogram;
mod outcome;
mod records;
mod seconds;
mod stages;
mod stalls;
mod tally;

pub use outcome::{End, RequestRecord, ServerDetails};
pub use records::Records;
pub use seconds::{Second, Seconds};
pub use stages::{STAGES, StageTally, StageTimes};
pub use stalls::{StallWatch, Stalls};
pub use tally::{Live, ModelTally, Tally};
