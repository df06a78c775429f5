//! The faults of a simulation: what goes wrong, when, and for how long.

use super::dice::Dice;
use super::passage::MessageKind;
use super::scenario::Scenario;
use std::ops::Range;
use symphony_transport::Nanos;

/// The longest time for which a dead executor has no thread: its completions are held back until
/// then, and count as lost if they come much later.
const MOST_DEAD: Nanos = Nanos::from_millis(100);

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug)]
pub(super) enum InjectedFault {
    /// A role does not run: the system has taken its core.
    Stall {
        /// The number of the role among all roles and frontends.
        role: usize,
    },
    /// No thread runs: the machine was paused.
    Pause,
    /// What a ring carries comes late.
    Late {
        /// The number of the role that receives from it.
        role: usize,
        /// A number that chooses one of its rings.
        wire: usize,
    },
    /// A GPU begins no batch.
    Hang {
        /// The GPU.
        gpu: usize,
    },
    /// A share of the rows fail.
    Fail {
        /// The share.
        share: f64,
    },
    /// The thread of an executor dies; it gets another one at the end.
    Die {
        /// The GPU.
        gpu: usize,
    },
    /// A share of the messages of a kind are lost.
    Lose {
        /// The kind.
        kind: MessageKind,
        /// The share.
        share: f64,
    },
    /// A share of the messages of a kind come twice.
    Double {
        /// The kind.
        kind: MessageKind,
        /// The share.
        share: f64,
    },
    /// Requests come more often.
    Flood {
        /// How much more often.
        factor: f64,
    },
}

/// A fault with its time.
#[derive(Clone, Debug)]
pub(super) struct ScheduledFault {
    pub(super) during: Range<Nanos>,
    pub(super) fault: InjectedFault,
}

/// Draws the faults of an engine with `roles` roles and frontends, which begin in `within`; in the
/// order of their beginnings.
pub(super) fn draw_faults(
    dice: &mut Dice,
    scenario: &Scenario,
    roles: usize,
    within: Range<Nanos>,
) -> Vec<ScheduledFault> {
    let short = |dice: &mut Dice| dice.time(Nanos::from_micros(50), Nanos::from_millis(100));
    let long = |dice: &mut Dice| dice.time(Nanos::from_millis(1), Nanos::from_millis(1_500));
    let kind = |dice: &mut Dice| {
        if dice.chance(0.5) { MessageKind::Answers } else { MessageKind::Completions }
    };
    let mut draw = || {
        let (fault, lasts) = match dice.below(26) {
            0..=6 => (InjectedFault::Stall { role: dice.below(roles) }, short(dice)),
            7 => (InjectedFault::Stall { role: dice.below(roles) }, long(dice)),
            8 => (InjectedFault::Pause, short(dice)),
            9..=14 => (InjectedFault::Late { role: dice.below(roles), wire: dice.below(64) }, short(dice)),
            15 | 16 => (InjectedFault::Hang { gpu: dice.below(scenario.gpus) }, long(dice)),
            17 => (InjectedFault::Fail { share: dice.number(0.01, 1.0) }, long(dice)),
            18 => (
                InjectedFault::Die { gpu: dice.below(scenario.gpus) },
                dice.time(Nanos::from_micros(50), MOST_DEAD),
            ),
            19..=21 => {
                (InjectedFault::Lose { kind: kind(dice), share: dice.number(0.001, 0.3) }, short(dice))
            }
            22 | 23 => {
                (InjectedFault::Double { kind: kind(dice), share: dice.number(0.01, 1.0) }, short(dice))
            }
            _ => (InjectedFault::Flood { factor: dice.number(2.0, 8.0) }, short(dice)),
        };
        let begin = within.start + Nanos(dice.number(0.0, (within.end - within.start).0 as f64) as u64);
        ScheduledFault { during: begin..begin + lasts, fault }
    };
    let count = 5 + (draw().during.start.0 % 60) as usize;
    let mut faults: Vec<ScheduledFault> = (0..count).map(|_| draw()).collect();
    faults.sort_by_key(|fault| fault.during.start);
    faults
}
