//! An executor that becomes slower than its profile, and later as fast as before: with a rolling
//! profile the scheduler follows it, and few requests are late. The rule is the published one,
//! which holds each batch back to the last moment.

use super::dice::Dice;
use super::passage::Passage;
use super::wire::Wire;
use crate::config::parse_config;
use crate::runtime::clock::Clock;
use crate::runtime::frontend::{Ask, Outcome};
use crate::runtime::profiling::ProfileKeeper;
use crate::runtime::start::{Assembly, assemble_in_virtual_time};
use symphony_scheduler::rolling_profile::MOVE_INTERVAL;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Frame, ModelId};

/// The length of a round of all roles' duty cycles.
const CYCLE: Nanos = Nanos::from_micros(20);

/// The mean time between two requests: a batch of ten takes 14 ms.
const GAP_NS: f64 = 2.5e6;

/// The length of each of the parts of a run.
const PART: Nanos = Nanos::from_secs(12);

/// The time at the start of a part that is not counted: an executor is followed within it.
const FOLLOWED: Nanos = Nanos::from_secs(5);

/// The wire on which batches reach an executor that takes `slower` times as long.
struct SlowWire {
    wire: Wire<Frame>,
    slower: f64,
    /// The frames of the batch that are to come.
    passing: usize,
}

impl SlowWire {
    fn carry(&mut self, now: Nanos) {
        let SlowWire { wire, slower, passing } = self;
        wire.carry_each(now, |frame| {
            if *passing == 0 {
                let mut header = BatchHeader::from(*frame);
                *passing = BatchHeader::frames(header.size as usize);
                header.duration = Nanos((at_first(header.size).0 as f64 * *slower) as u64);
                *frame = Frame::from(header);
            }
            *passing -= 1;
            Passage::Once
        });
    }
}

/// Returns the time that a batch takes by the profile of the load.
fn at_first(size: u32) -> Nanos {
    Nanos::from_millis(u64::from(size) + 4)
}

/// Returns the share of bad requests while the executor is as fast as its profile says, then
/// `slower` times slower, then as fast again.
fn bad_shares(rolling: bool, slower: f64) -> [f64; 3] {
    let text = format!(
        "policy = \"symphony-published\"\n[[executors]]\nkind = \"emulated\"\ncount = 1\n[[models]]\nname = \"m\"\n\
         executor = \"emulated\"\nslo_ms = 60\nrolling = {rolling}\nprofile = {{ alpha_ms = 1, beta_ms = 4 }}\n"
    );
    let (clock, time) = Clock::of_virtual_time();
    let mut wires = Vec::new();
    let assembly =
        assemble_in_virtual_time(parse_config(&text).unwrap(), 1, (clock.clone(), CYCLE), |rings| {
            wires = rings.frames_out.iter_mut().flatten().map(Wire::before).collect();
        });
    let Assembly { stages, mut frontends, mut profiles, .. } = assembly.map_err(|e| e.to_string()).unwrap();
    let mut members: Vec<_> = stages.into_iter().flatten().map(|(_, member)| member).collect();
    let mut wires: Vec<SlowWire> =
        wires.into_iter().map(|wire| SlowWire { wire, slower: 1.0, passing: 0 }).collect();
    let (frontend, mut dice) = (&mut frontends[0], Dice::new(7, 0));
    let (mut next_request, mut next_turn) = (Nanos::ZERO, Nanos::ZERO);
    [1.0, slower, 1.0].map(|factor| {
        wires.iter_mut().for_each(|wire| wire.slower = factor);
        let began = clock.now();
        let (mut all, mut bad) = (0, 0);
        while clock.now() < began + PART {
            time.increment(CYCLE.0);
            let now = clock.now();
            while next_request <= now {
                next_request += dice.gap(GAP_NS);
                frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
            }
            if next_turn <= now {
                next_turn = now + MOVE_INTERVAL;
                profiles.iter_mut().for_each(ProfileKeeper::turn);
            }
            wires.iter_mut().for_each(|wire| wire.carry(now));
            members.iter_mut().for_each(|member| {
                member.duty_cycle(now);
            });
            let is_counted = now > began + FOLLOWED;
            frontend.poll(|_, answer| {
                all += u32::from(is_counted);
                bad += u32::from(is_counted && answer.outcome != Outcome::Good);
            });
        }
        f64::from(bad) / f64::from(all)
    })
}

#[test]
fn an_executor_that_is_slower_than_its_profile_makes_few_requests_late_where_the_profile_rolls() {
    let [first, slow, last] = bad_shares(true, 1.5);
    assert!(first < 0.01 && slow < 0.01 && last < 0.01, "{first}, {slow}, {last}");
    let [first, slow, last] = bad_shares(false, 1.5);
    assert!(first < 0.01 && slow > 0.03 && last < 0.01, "{first}, {slow}, {last}");
}
