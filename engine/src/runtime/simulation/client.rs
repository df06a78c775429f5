//! The clients of one frontend: they send requests at random times, cancel some, and check of each
//! answer that it is the first and the one to their own request.

use super::dice::Dice;
use super::executors::row_mark;
use super::scenario::Scenario;
use crate::runtime::frontend::{
    Answer, Ask, Class, Due, Frontend, ModelInfo, Outcome, Refusal, SlotState, Ticket,
};
use std::ops::Range;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

/// The most requests that clients have not sent yet when their frontend's thread comes back from a
/// stall.
const MOST_BEHIND: Nanos = Nanos::from_millis(2);

/// The largest number of rows of a request.
const MOST_ROWS: usize = 12;

/// A request that waits for its answer.
#[derive(Clone, Copy)]
struct AwaitedAnswer {
    id: u64,
    rows: usize,
    /// The window in which the request counts, if it is one that should be answered in time.
    window: Option<usize>,
}

/// What became of the requests that were sent in a window.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct WindowCount {
    /// The number of requests that should be answered in time.
    pub(super) asked: u64,
    /// The number of those that were.
    pub(super) good: u64,
}

/// The numbers of requests by what became of them.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, serde::Serialize)]
pub struct AnswerCounts {
    /// Requests that were accepted.
    pub accepted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Answers in time.
    pub good: u64,
    /// Answers that came late.
    pub late: u64,
    /// Answers of the frontend itself, as the engine had none after the grace.
    pub overdue: u64,
    /// Answers that the requests did not run: for want of time or of room, or since the engine
    /// stopped.
    pub dropped: u64,
    /// Answers that an executor failed.
    pub failed: u64,
    /// Answers that the requests were cancelled.
    pub withdrawn: u64,
}

impl AnswerCounts {
    /// Returns the number of answers.
    pub fn answered(&self) -> u64 {
        self.good + self.late + self.overdue + self.dropped + self.failed + self.withdrawn
    }

    /// Adds the numbers of others.
    pub fn add(&mut self, other: &AnswerCounts) {
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.good += other.good;
        self.late += other.late;
        self.overdue += other.overdue;
        self.dropped += other.dropped;
        self.failed += other.failed;
        self.withdrawn += other.withdrawn;
    }
}

/// The clients of one frontend. See the module's description.
pub(super) struct SimulatedClients {
    frontend: Frontend,
    number: u16,
    dice: Dice,
    /// A table that was the newest once, from which requests are still sent.
    held: Option<Arc<[ModelInfo]>>,
    /// The requests that wait for their answers, by the index of their tickets.
    awaited: Vec<Option<AwaitedAnswer>>,
    next_ask: Nanos,
    /// The mean time between two requests, in nanoseconds.
    gap: f64,
    /// The time until which requests come more often, and how much more.
    flood: (Nanos, f64),
    windows: [Range<Nanos>; 2],
    pub(super) counts: [WindowCount; 2],
    pub(super) answers: AnswerCounts,
    broken: Option<String>,
}

impl SimulatedClients {
    /// Makes the clients of `frontend`, which is numbered `number`. Requests that are sent in one
    /// of `windows` are counted.
    pub(super) fn new(
        frontend: Frontend,
        number: usize,
        scenario: &Scenario,
        windows: [Range<Nanos>; 2],
        dice: Dice,
    ) -> SimulatedClients {
        SimulatedClients {
            awaited: vec![None; frontend.capacity()],
            frontend,
            number: number as u16,
            dice,
            held: None,
            next_ask: Nanos::ZERO,
            gap: 1e9 * scenario.frontends as f64 / scenario.rate,
            flood: (Nanos::ZERO, 1.0),
            windows,
            counts: Default::default(),
            answers: AnswerCounts::default(),
            broken: None,
        }
    }

    /// Makes requests come `factor` times as often until then.
    pub(super) fn flood(&mut self, until: Nanos, factor: f64) {
        self.flood = (until, factor);
    }

    /// Returns the number of rows that wait for their answer, or for the executor to let go of
    /// them.
    pub(super) fn waiting(&self) -> usize {
        self.frontend.slots_in_use()
    }

    /// Takes in the answers that have come.
    ///
    /// Errors: something that must hold of answers does not.
    pub(super) fn take_answers(&mut self) -> Result<(), String> {
        let SimulatedClients { frontend, awaited, answers, counts, broken, number, .. } = self;
        frontend.poll(|ticket, answer| {
            if let Err(what) = check(*number, &mut awaited[ticket.index], ticket, &answer, counts) {
                broken.get_or_insert(what);
            }
            count(answers, answer.outcome);
        });
        frontend.take_replaced_models().for_each(drop);
        match broken.take() {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    /// Sends the requests whose time has come, and cancels some.
    ///
    /// Errors: a request that must be accepted or refused otherwise.
    pub(super) fn send(&mut self, now: Nanos, scenario: &Scenario) -> Result<(), String> {
        self.next_ask = self.next_ask.max(now - MOST_BEHIND);
        let (until, factor) = self.flood;
        let gap = if now < until { self.gap / factor } else { self.gap };
        while self.next_ask <= now {
            self.ask(now, scenario)?;
            self.next_ask += self.dice.gap(gap);
        }
        Ok(())
    }

    fn ask(&mut self, now: Nanos, scenario: &Scenario) -> Result<(), String> {
        let ask = self.draw(scenario);
        let id = self.answers.accepted;
        let sent = self.frontend.submit(&ask, |row, input| {
            input[..8].copy_from_slice(&row_mark(self.number, id, row).to_le_bytes());
        });
        let ordinary = ask == Ask::one(ask.model)
            && self.frontend.models()[ask.model.0 as usize].class == Class::HIGHEST;
        match sent {
            Ok(ticket) => self.accepted(now, ticket, ask, ordinary, scenario),
            Err(Refusal::Overloaded | Refusal::Unloaded | Refusal::TooManyRows { .. }) => {
                self.answers.refused += 1;
                if let Some(window) = self.window(now).filter(|_| ordinary) {
                    self.counts[window].asked += 1;
                }
                Ok(())
            }
            Err(refusal) => Err(format!("a request was refused: {refusal}")),
        }
    }

    /// Draws a request for a model that is served, or was when the held table was the newest; and
    /// one in a hundred for a slot without a model.
    fn draw(&mut self, scenario: &Scenario) -> Ask {
        let dice = &mut self.dice;
        if scenario.changes && dice.chance(0.01) {
            self.held = dice.chance(0.5).then(|| Arc::clone(self.frontend.newest_models()));
        }
        let models = self.held.as_ref().unwrap_or_else(|| self.frontend.newest_models());
        let mut model = dice.below(models.len());
        while match models[model].state {
            SlotState::Serving => false,
            SlotState::Vacant => dice.chance(0.99),
            SlotState::Draining => true,
        } {
            model = (model + 1) % models.len();
        }
        let mut ask = Ask::one(ModelId(model as u32));
        if dice.chance(scenario.of_rows) {
            ask.rows = dice.count(2, MOST_ROWS);
        }
        if dice.chance(scenario.of_classes) {
            ask.class = Class::new(dice.count(1, 3) as u8).unwrap_or(Class::LOWEST);
        }
        if dice.chance(scenario.never_due) {
            ask.due = Due::Never;
        }
        ask
    }

    /// Lets go of the table that it holds.
    pub(super) fn release_table(&mut self) {
        self.held = None;
    }

    fn accepted(
        &mut self,
        now: Nanos,
        ticket: Ticket,
        ask: Ask,
        ordinary: bool,
        scenario: &Scenario,
    ) -> Result<(), String> {
        let id = self.answers.accepted;
        self.answers.accepted += 1;
        let cancels = self.dice.chance(scenario.cancelled);
        let window = self.window(now).filter(|_| ordinary && !cancels);
        window.into_iter().for_each(|window| self.counts[window].asked += 1);
        let before = self.awaited[ticket.index].replace(AwaitedAnswer { id, rows: ask.rows, window });
        if ticket.id != id {
            return Err(format!("request {id} of frontend {} was given the id {}", self.number, ticket.id));
        }
        if let Some(before) = before {
            return Err(format!("request {id} got the slot of request {}, which has no answer", before.id));
        }
        if cancels {
            self.cancel_some(ticket);
        }
        Ok(())
    }

    /// Cancels this request, at once or in place of another one that was sent some time ago; or one
    /// that was answered.
    fn cancel_some(&mut self, ticket: Ticket) {
        let index = self.dice.below(self.awaited.len());
        match self.awaited[index] {
            Some(other) if other.window.is_none() => self.frontend.cancel(Ticket { index, id: other.id }),
            _ => self.frontend.cancel(ticket),
        }
        self.frontend.cancel(Ticket { index, id: ticket.id / 2 });
    }

    fn window(&self, now: Nanos) -> Option<usize> {
        self.windows.iter().position(|window| window.contains(&now))
    }

    /// Checks that nothing is left once every request is answered.
    ///
    /// Errors: something is.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let (number, answers) = (self.number, &self.answers);
        if let Some(awaited) = self.awaited.iter().flatten().next() {
            return Err(format!("request {} of frontend {number} has no answer", awaited.id));
        }
        if answers.accepted != answers.answered() {
            return Err(format!("frontend {number} does not balance: {answers:?}"));
        }
        match self.frontend.slots_in_use() {
            0 => Ok(()),
            lost => Err(format!("{lost} slots of frontend {number} were lost")),
        }
    }
}

/// Checks an answer against the request that waits for it.
fn check(
    frontend: u16,
    awaited: &mut Option<AwaitedAnswer>,
    ticket: Ticket,
    answer: &Answer<'_>,
    counts: &mut [WindowCount; 2],
) -> Result<(), String> {
    let Some(AwaitedAnswer { id, rows, window }) = awaited.take_if(|awaited| awaited.id == ticket.id) else {
        return Err(format!("request {} of frontend {frontend} was answered again", ticket.id));
    };
    if rows != answer.rows {
        return Err(format!("request {id} of {rows} rows was answered with {}", answer.rows));
    }
    if matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
        let own = |row: usize| answer.row(row).starts_with(&row_mark(frontend, id, row).to_le_bytes());
        if let Some(row) = (0..rows).find(|&row| !own(row)) {
            let found = answer.row(row).get(..8);
            return Err(format!(
                "row {row} of request {id}, frontend {frontend}, was answered with {found:x?}"
            ));
        }
    }
    if answer.outcome == Outcome::Good {
        window.into_iter().for_each(|window| counts[window].good += 1);
    }
    Ok(())
}

fn count(answers: &mut AnswerCounts, outcome: Outcome) {
    let number = match outcome {
        Outcome::Good => &mut answers.good,
        Outcome::Late(_) => &mut answers.late,
        Outcome::Overdue(_) => &mut answers.overdue,
        Outcome::Bad(Ending::Failed) | Outcome::Broken => &mut answers.failed,
        Outcome::Bad(Ending::Withdrawn) => &mut answers.withdrawn,
        Outcome::Bad(_) => &mut answers.dropped,
    };
    *number += 1;
}
