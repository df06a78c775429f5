//! The clients of one frontend: they send requests at random times, cancel some, and check of each
//! answer that it is the first and the one to their own request.

use super::dice::Dice;
use super::mark::RowMark;
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

/// The time for which a frontend looks at none of its requests' deadlines: it goes over all of them
/// every 20 ms, a part each millisecond.
const SWEEP: Nanos = Nanos::from_millis(21);

/// The mean duty cycles that pass between two turns of a thread at most, unless it stalls.
const MOST_CYCLES: u64 = 40;

/// A request that waits for its answer.
#[derive(Clone, Copy)]
struct AwaitedAnswer {
    id: u64,
    rows: usize,
    mark: RowMark,
    never_due: bool,
    /// True if its client was told that the engine is broken.
    cut_off: bool,
    /// True if it counts: it was sent in the window, and should be answered in time.
    counts: bool,
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
    /// Requests that were in flight as a thread died.
    pub cut_off: u64,
}

impl AnswerCounts {
    /// Returns the number of answers.
    pub fn answered(&self) -> u64 {
        self.good + self.late + self.overdue + self.dropped + self.failed + self.withdrawn + self.cut_off
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
        self.cut_off += other.cut_off;
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
    /// The time of the last turn, and the beginning of that from which on it had its turns.
    turn: Nanos,
    runs_since: Nanos,
    /// The longest time between two turns that is no stall.
    longest_gap: Nanos,
    grace: Nanos,
    next_ask: Nanos,
    /// The mean time between two requests, in nanoseconds.
    gap: f64,
    /// The time until which requests come more often, and how much more.
    flood: (Nanos, f64),
    window: Range<Nanos>,
    pub(super) count: WindowCount,
    pub(super) answers: AnswerCounts,
    broken: Option<String>,
}

impl SimulatedClients {
    /// Makes the clients of `frontend`, which is numbered `number`. Requests that are sent in
    /// `window` are counted.
    pub(super) fn new(
        frontend: Frontend,
        number: usize,
        scenario: &Scenario,
        window: Range<Nanos>,
        dice: Dice,
    ) -> SimulatedClients {
        SimulatedClients {
            awaited: vec![None; frontend.capacity()],
            frontend,
            number: number as u16,
            dice,
            held: None,
            turn: Nanos::ZERO,
            runs_since: Nanos::ZERO,
            longest_gap: Nanos(scenario.cycle.0 * MOST_CYCLES),
            grace: scenario.grace,
            next_ask: Nanos::ZERO,
            gap: 1e9 * scenario.frontends as f64 / scenario.rate,
            flood: (Nanos::ZERO, 1.0),
            window,
            count: WindowCount::default(),
            answers: AnswerCounts::default(),
            broken: None,
        }
    }

    /// Makes requests come `factor` times as often until then.
    pub(super) fn flood(&mut self, until: Nanos, factor: f64) {
        self.flood = (until, factor);
    }

    /// Returns the number of requests that wait for their answer, and of slots in use besides those
    /// of `lost` rows, whose answers were lost.
    pub(super) fn waiting(&self, lost: usize) -> usize {
        self.frontend.in_flight() + self.frontend.slots_in_use().saturating_sub(lost)
    }

    /// Takes in the answers that have come.
    ///
    /// Errors: something that must hold of answers does not.
    pub(super) fn take_answers(&mut self, now: Nanos) -> Result<(), String> {
        if now > self.turn + self.longest_gap {
            self.runs_since = now;
        }
        self.turn = now;
        let latest = AnswerBound {
            now,
            grace: self.grace,
            runs_since: self.runs_since,
            allowance: SWEEP + self.longest_gap,
        };
        let SimulatedClients { frontend, awaited, answers, count: window, broken, number, .. } = self;
        frontend.poll(|ticket, answer| {
            let checked = check(*number, &mut awaited[ticket.index], ticket, &answer, window);
            match checked.and_then(|cut_off| latest.check(ticket, &answer).map(|()| cut_off)) {
                // Its client was answered before.
                Ok(true) => {}
                Ok(false) => count(answers, answer.outcome),
                Err(what) => {
                    broken.get_or_insert(what);
                }
            }
        });
        frontend.take_replaced_models().for_each(drop);
        if self.frontend.faults().get().is_some() {
            self.cut_off();
        }
        match self.broken.take() {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    /// Ends the frontend as its thread dies: the connections of all clients close.
    pub(super) fn die(&mut self, thread: &str) -> AnswerCounts {
        self.frontend.faults().report(thread, "died: panicked");
        self.cut_off();
        self.answers
    }

    /// Tells the clients of all requests in flight that the engine is broken, as an API core does.
    #[cold]
    fn cut_off(&mut self) {
        for awaited in self.awaited.iter_mut().flatten().filter(|awaited| !awaited.cut_off) {
            awaited.cut_off = true;
            self.answers.cut_off += 1;
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
        let expendable = ask.due != Due::Never && scenario.is_of_the_start(ask.model);
        let mark = RowMark::new((self.number, id), ask.model, ask.rows, expendable);
        let sent = self.frontend.submit(&ask, |row, input| {
            input[..8].copy_from_slice(&mark.of_row(row).to_bytes());
        });
        let ordinary = ask == Ask::one(ask.model)
            && self.frontend.models()[ask.model.0 as usize].class == Class::HIGHEST;
        match sent {
            Ok(ticket) => self.accepted(now, ticket, (ask, mark), ordinary, scenario),
            Err(Refusal::Broken) if self.frontend.faults().get().is_some() => {
                self.answers.refused += 1;
                Ok(())
            }
            Err(
                Refusal::Overloaded | Refusal::Unloaded | Refusal::NotServing | Refusal::TooManyRows { .. },
            ) => {
                self.answers.refused += 1;
                self.count.asked += u64::from(ordinary && self.window.contains(&now));
                Ok(())
            }
            Err(refusal) => Err(format!("a request was refused: {refusal}")),
        }
    }

    /// Draws a request for one of the models that are served, or were when the held table was the
    /// newest, each as often as the others; and a few for slots without a model.
    fn draw(&mut self, scenario: &Scenario) -> Ask {
        let dice = &mut self.dice;
        if scenario.changes && dice.chance(0.01) {
            self.held = dice.chance(0.5).then(|| Arc::clone(self.frontend.newest_models()));
        }
        let models = self.held.as_ref().unwrap_or_else(|| self.frontend.newest_models());
        // Models of the start are always served.
        let model = loop {
            let model = dice.below(models.len());
            match models[model].state {
                SlotState::Serving => break model,
                SlotState::Vacant if dice.chance(0.01) => break model,
                SlotState::Vacant | SlotState::Draining => {}
            }
        };
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
        (ask, mark): (Ask, RowMark),
        ordinary: bool,
        scenario: &Scenario,
    ) -> Result<(), String> {
        let id = self.answers.accepted;
        self.answers.accepted += 1;
        let cancels = self.dice.chance(scenario.cancelled);
        let counts = ordinary && !cancels && self.window.contains(&now);
        self.count.asked += u64::from(counts);
        let never_due = ask.due == Due::Never;
        let awaited = AwaitedAnswer { id, rows: ask.rows, mark, never_due, cut_off: false, counts };
        let before = self.awaited[ticket.index].replace(awaited);
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
            Some(other) if !other.counts => self.frontend.cancel(Ticket { index, id: other.id }),
            _ => self.frontend.cancel(ticket),
        }
        self.frontend.cancel(Ticket { index, id: ticket.id / 2 });
    }

    /// Checks that nothing is left once every request is answered but for the slots of `lost` rows,
    /// whose answers were lost, and that the frontend has noted each of `doubled` answers that came
    /// twice.
    ///
    /// Errors: something is.
    pub(super) fn check_end(&self, lost: usize, doubled: u64) -> Result<(), String> {
        let number = self.number;
        self.check_answered(|_| true)?;
        let (held, stale) = (self.frontend.slots_in_use(), self.frontend.counts().stale.get());
        if held != lost {
            return Err(format!(
                "{held} slots of frontend {number} are taken, and {lost} lost their answers"
            ));
        }
        if stale != doubled {
            return Err(format!("frontend {number} noted {stale} stale answers of {doubled} doubled ones"));
        }
        Ok(())
    }

    /// Checks that after a thread's death each client was answered, and that the frontend has ended
    /// every request with a deadline.
    ///
    /// Errors: one was not.
    pub(super) fn check_dead_end(&self) -> Result<(), String> {
        self.check_answered(|awaited| !awaited.never_due || !awaited.cut_off)
    }

    fn check_answered(&self, must_have: impl Fn(&AwaitedAnswer) -> bool) -> Result<(), String> {
        let (number, answers) = (self.number, &self.answers);
        if let Some(awaited) = self.awaited.iter().flatten().find(|&awaited| must_have(awaited)) {
            return Err(format!("request {} of frontend {number} has no answer", awaited.id));
        }
        if answers.accepted != answers.answered() {
            return Err(format!("frontend {number} does not balance: {answers:?}"));
        }
        Ok(())
    }
}

/// The time by which an answer must have come.
struct AnswerBound {
    now: Nanos,
    grace: Nanos,
    /// The time since which the frontend has had its turns.
    runs_since: Nanos,
    /// The time between two looks of the frontend at a request.
    allowance: Nanos,
}

impl AnswerBound {
    /// Checks that the answer comes by its deadline plus the grace.
    ///
    /// Errors: it does not.
    fn check(&self, ticket: Ticket, answer: &Answer<'_>) -> Result<(), String> {
        let due = answer.timeline.due;
        if due == Nanos::MAX || self.now <= (due + self.grace).max(self.runs_since) + self.allowance {
            return Ok(());
        }
        let late = (self.now - due).as_millis_f64();
        let grace = self.grace.as_millis_f64();
        Err(format!(
            "request {} was answered {late:.3} ms after its deadline, the grace is {grace} ms",
            ticket.id
        ))
    }
}

/// Checks an answer against the request that waits for it. Returns true if its client was answered
/// before, as the engine is broken.
fn check(
    frontend: u16,
    awaited: &mut Option<AwaitedAnswer>,
    ticket: Ticket,
    answer: &Answer<'_>,
    count: &mut WindowCount,
) -> Result<bool, String> {
    let awaited = awaited.take_if(|awaited| awaited.id == ticket.id);
    let Some(AwaitedAnswer { id, rows, mark, counts, cut_off, .. }) = awaited else {
        return Err(format!("request {} of frontend {frontend} was answered again", ticket.id));
    };
    if rows != answer.rows {
        return Err(format!("request {id} of {rows} rows was answered with {}", answer.rows));
    }
    if matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
        let own = |row: usize| answer.row(row).starts_with(&mark.of_row(row).to_bytes());
        if let Some(row) = (0..rows).find(|&row| !own(row)) {
            let found = answer.row(row).get(..8);
            return Err(format!(
                "row {row} of request {id}, frontend {frontend}, was answered with {found:x?}"
            ));
        }
    }
    count.good += u64::from(counts && answer.outcome == Outcome::Good);
    Ok(cut_off)
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
