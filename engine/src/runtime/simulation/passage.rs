//! What becomes of answers and completions on their way: some are lost, some come twice, at once or
//! later. Requests that lost an answer keep their slots for good, so they are noted.

use super::dice::Dice;
use super::mark::RowMark;
use std::collections::BTreeSet;
use symphony_transport::Nanos;

/// The share of a frontend's slots that lost answers may take.
const MOST_LOST: usize = 20;

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passage {
    /// Arrival.
    Once,
    /// Arrival, and a second one when this time has come.
    Twice(Nanos),
    /// Arrival when this time has come.
    Later(Nanos),
    /// No arrival: the message is lost, or held elsewhere.
    Never,
}

/// The messages that faults of messages are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageKind {
    /// Answers to frontends.
    Answers,
    /// Completions to RankThreads.
    Completions,
}

/// Messages of a kind, of which some are lost or doubled for a while.
#[derive(Default)]
struct Disturbance {
    losing: (Nanos, f64),
    doubling: (Nanos, f64),
    lost: u64,
    doubled: u64,
}

impl Disturbance {
    /// Draws what becomes of a message, which may be lost if `loss` says so.
    fn draw(&mut self, now: Nanos, dice: &mut Dice, loss: impl FnOnce() -> bool) -> Passage {
        if now < self.losing.0 && dice.chance(self.losing.1) && loss() {
            self.lost += 1;
            return Passage::Never;
        }
        if now < self.doubling.0 && dice.chance(self.doubling.1) {
            self.doubled += 1;
            return Passage::Twice(now + dice.time(Nanos(1), Nanos::from_millis(50)));
        }
        Passage::Once
    }
}

/// The requests of a frontend that lost an answer.
#[derive(Clone, Default)]
struct LostAnswers {
    ids: BTreeSet<u64>,
    rows: usize,
}

/// The faults of messages. See the module's description.
pub(super) struct MessageFaults {
    dice: Dice,
    answers: Disturbance,
    completions: Disturbance,
    lost: Vec<LostAnswers>,
    most_lost_rows: usize,
}

impl MessageFaults {
    /// Makes the faults, none so far, of the messages of an engine with these frontends, each of
    /// which has `slots` slots.
    pub(super) fn new(frontends: usize, slots: usize, dice: Dice) -> MessageFaults {
        MessageFaults {
            dice,
            answers: Disturbance::default(),
            completions: Disturbance::default(),
            lost: vec![LostAnswers::default(); frontends],
            most_lost_rows: slots / MOST_LOST,
        }
    }

    fn of(&mut self, kind: MessageKind) -> &mut Disturbance {
        match kind {
            MessageKind::Answers => &mut self.answers,
            MessageKind::Completions => &mut self.completions,
        }
    }

    /// Makes a share of these messages get lost until then.
    pub(super) fn lose(&mut self, kind: MessageKind, until: Nanos, share: f64) {
        self.of(kind).losing = (until, share);
    }

    /// Makes a share of these messages come twice until then.
    pub(super) fn double(&mut self, kind: MessageKind, until: Nanos, share: f64) {
        self.of(kind).doubling = (until, share);
    }

    /// Draws what becomes of a completion.
    #[inline]
    pub(super) fn of_completion(&mut self, now: Nanos) -> Passage {
        self.completions.draw(now, &mut self.dice, || true)
    }

    /// Draws what becomes of the answer to a row of request `id`. `mark` reads the row's mark.
    #[inline]
    pub(super) fn of_answer(
        &mut self,
        now: Nanos,
        (frontend, id): (u16, u64),
        mark: impl FnOnce() -> Option<RowMark>,
    ) -> Passage {
        let MessageFaults { answers, dice, lost, most_lost_rows, .. } = self;
        let lost = &mut lost[usize::from(frontend)];
        answers.draw(now, dice, || {
            let Some(mark) = mark().filter(|mark| mark.is_expendable() && mark.is_of(frontend, id)) else {
                return false;
            };
            if lost.ids.contains(&id) {
                return true;
            }
            let has_room = lost.rows + mark.rows() <= *most_lost_rows;
            if has_room {
                lost.ids.insert(id);
                lost.rows += mark.rows();
            }
            has_room
        })
    }

    /// Returns the number of slots that a frontend's requests keep, as they lost an answer.
    pub(super) fn lost_rows(&self, frontend: usize) -> usize {
        self.lost[frontend].rows
    }

    /// Returns the numbers of messages of a kind that were lost, and that came twice.
    pub(super) fn counts(&self, kind: MessageKind) -> (u64, u64) {
        let of = match kind {
            MessageKind::Answers => &self.answers,
            MessageKind::Completions => &self.completions,
        };
        (of.lost, of.doubled)
    }
}
