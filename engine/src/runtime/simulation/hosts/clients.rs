//! The clients of a frontend: they send requests, and check each answer, byte by byte.

use super::super::dice::Dice;
use super::computing::MASK;
use super::plan::SLO;
use crate::runtime::Frontend;
use crate::runtime::frontend::{Ask, Class, Due, Outcome, Ticket};
use std::collections::HashMap;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

/// The most rows of a request.
const MOST_ROWS: usize = 3;

/// What became of the requests that were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct RequestCounts {
    /// The rows that were sent.
    pub rows: u64,
    /// The requests that were sent.
    pub sent: u64,
    /// Answered with an output in time.
    pub good: u64,
    /// Answered with an output later.
    pub late: u64,
    /// Dropped from the queue or by a backend.
    pub dropped: u64,
    /// Failed, since some rows were lost and others not, or a backend could not read them.
    pub failed: u64,
    /// Cancelled by their clients.
    pub withdrawn: u64,
    /// Ended by the frontend, since nothing had come.
    pub overdue: u64,
    /// Lost with the frontend's process.
    pub died: u64,
}

impl RequestCounts {
    /// Returns the number of requests that have ended.
    pub fn ended(&self) -> u64 {
        let RequestCounts { good, late, dropped, failed, withdrawn, overdue, died, .. } = self;
        good + late + dropped + failed + withdrawn + overdue + died
    }

    /// Adds others.
    pub(super) fn add(&mut self, other: &RequestCounts) {
        let pairs = [
            (&mut self.rows, other.rows),
            (&mut self.sent, other.sent),
            (&mut self.good, other.good),
            (&mut self.late, other.late),
            (&mut self.dropped, other.dropped),
            (&mut self.failed, other.failed),
            (&mut self.withdrawn, other.withdrawn),
            (&mut self.overdue, other.overdue),
            (&mut self.died, other.died),
        ];
        pairs.into_iter().for_each(|(to, from)| *to += from);
    }
}

/// The clients of a frontend. See the module's description.
pub(super) struct HostClients {
    frontend: Frontend,
    /// What the inputs of each open request follow from, and its rows.
    open: HashMap<Ticket, (u64, usize)>,
    /// The requests that are to be cancelled.
    to_cancel: Vec<Ticket>,
    pub(super) counts: RequestCounts,
    seeds: u64,
    models: usize,
}

/// Returns a byte of a row's input.
fn input_byte(seed: u64, row: usize, at: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * (at % 8))) as u8 ^ (row * 31 + at / 8) as u8
}

impl HostClients {
    pub(super) fn new(frontend: Frontend, models: usize) -> HostClients {
        HostClients {
            frontend,
            open: HashMap::new(),
            to_cancel: Vec::new(),
            counts: RequestCounts::default(),
            seeds: 0,
            models,
        }
    }

    /// Sends a request.
    pub(super) fn ask(&mut self, dice: &mut Dice) {
        let rows = if dice.chance(0.1) { dice.count(2, MOST_ROWS) } else { 1 };
        let model = ModelId(dice.below(self.models) as u32);
        let ask = Ask { model, rows, due: Due::Slo, class: Class::HIGHEST };
        // A process that has started anew has other inputs.
        self.seeds = (self.seeds + 1) ^ (dice.below(1 << 20) as u64) << 40;
        let seed = self.seeds;
        let fill = |row, bytes: &mut [u8]| {
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = input_byte(seed, row, at));
        };
        let Ok(ticket) = self.frontend.submit(&ask, fill) else { return };
        self.open.insert(ticket, (seed, rows));
        self.counts.sent += 1;
        self.counts.rows += rows as u64;
        if dice.chance(0.02) {
            self.to_cancel.push(ticket);
        }
    }

    /// Takes the answers that have come.
    ///
    /// Errors: an answer is not as it must be.
    pub(super) fn take_answers(&mut self) -> Result<(), String> {
        self.to_cancel.drain(..).for_each(|ticket| self.frontend.cancel(ticket));
        let HostClients { frontend, open, counts, .. } = self;
        let mut broken = None;
        frontend.poll(|ticket, answer| {
            let Some((seed, rows)) = open.remove(&ticket) else {
                broken = Some(format!("request {} was answered twice", ticket.id));
                return;
            };
            *match answer.outcome {
                Outcome::Good => &mut counts.good,
                Outcome::Late(_) => &mut counts.late,
                Outcome::Overdue(_) => &mut counts.overdue,
                Outcome::Bad(Ending::Withdrawn) => &mut counts.withdrawn,
                Outcome::Bad(Ending::Failed) | Outcome::Broken => &mut counts.failed,
                Outcome::Bad(_) => &mut counts.dropped,
            } += 1;
            if matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
                let is_right = (0..rows).all(|row| {
                    let bytes = answer.row(row).iter().enumerate();
                    !answer.row(row).is_empty()
                        && bytes.into_iter().all(|(at, byte)| *byte == input_byte(seed, row, at) ^ MASK)
                });
                if !is_right {
                    broken = Some(format!("request {} was given another's output", ticket.id));
                }
            }
        });
        broken.map_or(Ok(()), Err)
    }

    /// Returns the number of requests without an answer, and that of slots in use.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.open.len(), self.frontend.slots_in_use())
    }

    /// Returns what became of the requests of a process that has died.
    pub(super) fn die(mut self) -> RequestCounts {
        self.counts.died += self.open.len() as u64;
        self.counts
    }

    /// Returns how long an answer may take.
    pub(super) fn longest_wait(grace: Nanos) -> Nanos {
        SLO + grace + Nanos::from_millis(100)
    }
}
