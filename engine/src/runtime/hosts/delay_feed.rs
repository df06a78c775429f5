//! The delays that hosts have measured, on their way to the policy: the scheduler's host gives each
//! model's queues what they have to allow for, in place of `[network]` of CONFIG.

use crate::runtime::threads::changes::ChangeSender;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::wire::MeasuredDelays;

/// The time between two looks at what was measured.
const LOOK_EVERY: Nanos = Nanos::from_millis(500);

/// A delay is told anew if it has changed by more than this, and by a quarter: a window's
/// percentiles are right to an eighth.
const LEAST_CHANGE: Nanos = Nanos::from_micros(20);

/// A delay beyond this says that something is broken, not how far away it is.
const LONGEST: Nanos = Nanos::from_secs(10);

/// The inverse of the share of a model's time that the delays of a request may take. With longer
/// ones no batch would run, and no fetch would be measured ever again.
const LARGEST_PART: u64 = 2;

/// A model, as far as its delays go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FedModel {
    /// The ModelThread that has it.
    pub(crate) thread: usize,
    /// The bytes of a row's inputs.
    pub(crate) input_bytes: usize,
    /// What its SLO leaves a batch of one beside its run.
    pub(crate) spare: Nanos,
}

/// What the hosts of a role have measured, the slowest of them for each delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SlowestHost {
    way: Option<Nanos>,
    fetch: Option<Nanos>,
    fetch_per_kib: Option<Nanos>,
}

impl SlowestHost {
    /// Takes in what a host has measured.
    pub(super) fn add(&mut self, measured: &MeasuredDelays) {
        let slower = |known: &mut Option<Nanos>, measured: Nanos| {
            if measured < Nanos::MAX {
                *known = (*known).max(Some(measured.min(LONGEST)));
            }
        };
        slower(&mut self.way, measured.way);
        slower(&mut self.fetch, measured.fetch);
        slower(&mut self.fetch_per_kib, measured.fetch_per_kib);
    }
}

/// Gives the policy the delays that were measured. See the module's description.
pub(crate) struct DelayFeed {
    /// What CONFIG says, of that which was not measured yet.
    configured: Network,
    models: Vec<FedModel>,
    /// The delays that each model's queues have.
    told: Vec<Network>,
    /// The way to each ModelThread.
    threads: Vec<ChangeSender<Network>>,
    next_look: Nanos,
    /// The next model to look at, if not all could be told in this look.
    next_model: usize,
}

impl DelayFeed {
    /// Makes the feed of ModelThreads whose queues allow for what CONFIG says.
    pub(crate) fn new(
        configured: Network,
        models: Vec<FedModel>,
        threads: Vec<ChangeSender<Network>>,
    ) -> DelayFeed {
        let told = vec![configured; models.len()];
        DelayFeed { configured, models, told, threads, next_look: Nanos::ZERO, next_model: 0 }
    }

    /// Tells ModelThreads what has changed, if it is time to look. `measured` returns what backends
    /// and frontends have.
    pub(super) fn turn(&mut self, now: Nanos, measured: impl FnOnce() -> [SlowestHost; 2]) {
        if now < self.next_look {
            return;
        }
        for thread in &mut self.threads {
            while thread.take_old().is_some() {}
        }
        let [backends, frontends] = measured();
        while let Some(&model) = self.models.get(self.next_model) {
            let network = self.network_of(model, backends, frontends);
            let told = &mut self.told[self.next_model];
            if has_changed(told, &network) {
                // The rest in the next turn, once there is room.
                let thread = &mut self.threads[model.thread];
                if thread.send(self.next_model, network).is_err() && !thread.is_abandoned() {
                    return;
                }
                let Network { control, data_per_request, result } = network;
                tracing::info!(
                    model = self.next_model,
                    ?control,
                    ?data_per_request,
                    ?result,
                    "the policy allows for measured delays"
                );
                *told = network;
            }
            self.next_model += 1;
        }
        (self.next_model, self.next_look) = (0, now + LOOK_EVERY);
    }

    /// Returns what a model's queues have to allow for: the delay of a grant and of the fetch of no
    /// bytes; that of a row's inputs; that of an answer.
    fn network_of(&self, model: FedModel, backends: SlowestHost, frontends: SlowestHost) -> Network {
        let Network { control, data_per_request, result } = self.configured;
        let of_row = |per_kib: Nanos| Nanos((per_kib.0 * model.input_bytes as u64).div_ceil(1024));
        let fetched = backends.fetch.unwrap_or_default();
        let network = Network {
            control: backends.way.map_or(control, |way| way + fetched),
            data_per_request: backends.fetch_per_kib.map_or(data_per_request, of_row),
            result: frontends.way.unwrap_or(result),
        };
        network.within(Nanos(model.spare.0 / LARGEST_PART))
    }
}

fn has_changed(told: &Network, network: &Network) -> bool {
    let pairs = [
        (told.control, network.control),
        (told.data_per_request, network.data_per_request),
        (told.result, network.result),
    ];
    pairs.into_iter().any(|(told, new)| {
        let distance = Nanos(told.0.abs_diff(new.0));
        distance > LEAST_CHANGE && distance.0 > told.0 / 4
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::threads::changes::{ChangeReceiver, changes};

    const US: fn(u64) -> Nanos = Nanos::from_micros;

    fn feed(models: usize) -> (DelayFeed, ChangeReceiver<Network>) {
        let (sender, receiver) = changes();
        let configured = Network { control: US(100), data_per_request: US(5), result: US(70) };
        let model = FedModel { thread: 0, input_bytes: 4096, spare: US(20_000) };
        (DelayFeed::new(configured, vec![model; models], vec![sender]), receiver)
    }

    fn slowest(measured: &[MeasuredDelays]) -> SlowestHost {
        let mut slowest = SlowestHost::default();
        measured.iter().for_each(|measured| slowest.add(measured));
        slowest
    }

    fn taken(receiver: &mut ChangeReceiver<Network>, now: Nanos) -> Vec<(usize, Network)> {
        let mut taken = Vec::new();
        receiver.take(now, |change| taken.push((change.index, change.value)));
        taken
    }

    #[test]
    fn what_was_measured_takes_the_place_of_what_was_configured() {
        let (mut feed, mut receiver) = feed(1);
        feed.turn(US(1), Default::default);
        assert_eq!(taken(&mut receiver, US(1)), [], "nothing was measured");
        let near = MeasuredDelays { way: US(200), ..MeasuredDelays::UNKNOWN };
        let far = MeasuredDelays { way: US(300), fetch: US(400), fetch_per_kib: US(10) };
        let mut look = |now, backends: &[MeasuredDelays], frontends: &[MeasuredDelays]| {
            feed.turn(now, || [slowest(backends), slowest(frontends)]);
            taken(&mut receiver, now)
        };
        let [first, second, third] = [1, 2, 3].map(|looks| US(1) + Nanos(LOOK_EVERY.0 * looks));
        let network = Network { control: US(200), data_per_request: US(5), result: US(70) };
        assert_eq!(look(first, &[near], &[]), [(0, network)]);
        assert_eq!(look(first + US(1), &[far], &[]), [], "it has just looked");
        let network = Network { control: US(700), data_per_request: US(40), result: US(900) };
        assert_eq!(look(second, &[near, far], &[MeasuredDelays { way: US(900), ..far }]), [(0, network)]);
        let noise = MeasuredDelays { way: US(340), ..far };
        assert_eq!(look(third, &[near, noise], &[MeasuredDelays { way: US(900), ..far }]), []);
    }

    #[test]
    fn delays_leave_batches_at_least_half_of_their_time() {
        let (mut feed, mut receiver) = feed(1);
        let broken =
            MeasuredDelays { way: Nanos(Nanos::MAX.0 - 1), fetch: US(3), fetch_per_kib: Nanos(1 << 62) };
        feed.turn(US(1), || [slowest(&[broken]), slowest(&[broken])]);
        let [(_, network)] = taken(&mut receiver, US(1))[..] else { panic!("one model") };
        let sum = network.delay(1) + network.result;
        assert!(US(9_999) < sum && sum <= US(10_000), "{network:?}");
    }

    #[test]
    fn more_models_than_a_ring_has_room_for_are_told_one_after_the_other() {
        let (mut feed, mut receiver) = feed(2 * ChangeReceiver::<Network>::MOST + 1);
        let measured = MeasuredDelays { way: US(300), ..MeasuredDelays::UNKNOWN };
        let mut told = Vec::new();
        for turn in 1..=5 {
            let now = Nanos::from_millis(2 * turn);
            feed.turn(now, || [slowest(&[measured]), SlowestHost::default()]);
            told.extend(taken(&mut receiver, now).into_iter().map(|(model, _)| model));
        }
        assert_eq!(told, (0..9).collect::<Vec<_>>());
    }
}
