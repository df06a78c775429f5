//! The delays that hosts have measured, on their way to the policy: the scheduler's host gives each
//! model's queues what they have to allow for, and RankThreads what completions take, in place of
//! `[network]` of CONFIG.

use crate::runtime::counters::allowed_delays::AllowedDelays;
use crate::runtime::threads::changes::ChangeSender;
use std::sync::Arc;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::wire::MeasuredDelays;

/// The time between two looks at what was measured.
const LOOK_EVERY: Nanos = Nanos::from_millis(250);

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

/// What was measured of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct NetworkView {
    /// What backends have measured.
    pub(super) backends: SlowestHost,
    /// What hosts with frontends have measured.
    pub(super) frontends: SlowestHost,
    /// What the slowest completion takes on its way here.
    pub(super) completions: Option<Nanos>,
}

/// The ways to the threads that allow for delays.
#[derive(Default)]
pub(crate) struct DelayWays {
    /// The way to each ModelThread, for models' delays.
    pub(crate) models: Vec<ChangeSender<Network>>,
    /// The way to each RankThread, for the delay of completions.
    pub(crate) ranks: Vec<ChangeSender<Nanos>>,
}

/// Gives the policy the delays that were measured. See the module's description.
pub(crate) struct DelayFeed {
    /// What CONFIG says, of that which was not measured yet.
    configured: Network,
    models: Vec<FedModel>,
    /// The delays that each model's queues have.
    told: Vec<Network>,
    /// The delay of completions that each RankThread has.
    told_ranks: Vec<Nanos>,
    ways: DelayWays,
    /// Where others read what the queues allow for.
    shown: Arc<AllowedDelays>,
    next_look: Nanos,
    /// The next model to look at, if not all could be told in this look.
    next_model: usize,
}

impl DelayFeed {
    /// Makes the feed of threads that allow for what CONFIG says.
    pub(crate) fn new(
        configured: Network,
        models: Vec<FedModel>,
        ways: DelayWays,
        shown: Arc<AllowedDelays>,
    ) -> DelayFeed {
        let told = vec![configured; models.len()];
        shown.set(&told);
        let told_ranks = vec![configured.control; ways.ranks.len()];
        let next_look = Nanos::ZERO;
        DelayFeed { configured, models, told, told_ranks, ways, shown, next_look, next_model: 0 }
    }

    /// Tells threads what has changed, if it is time to look. `measured` returns what was measured.
    pub(super) fn turn(&mut self, now: Nanos, measured: impl FnOnce() -> NetworkView) {
        if now < self.next_look {
            return;
        }
        for thread in &mut self.ways.models {
            while thread.take_old().is_some() {}
        }
        let NetworkView { backends, frontends, completions } = measured();
        self.tell_ranks(completions);
        let mut is_news = false;
        while let Some(&model) = self.models.get(self.next_model) {
            let network = self.network_of(model, backends, frontends);
            let told = &mut self.told[self.next_model];
            if has_changed(told, &network) {
                // The rest in the next turn, once there is room.
                let thread = &mut self.ways.models[model.thread];
                if thread.send(self.next_model, network).is_err() && !thread.is_abandoned() {
                    return self.shown.set(&self.told);
                }
                log_allowed(self.next_model, &network, *told == self.configured);
                *told = network;
                is_news = true;
            }
            self.next_model += 1;
        }
        if is_news {
            self.shown.set(&self.told);
        }
        (self.next_model, self.next_look) = (0, now + LOOK_EVERY);
    }

    /// Tells RankThreads what completions take, if that has changed.
    fn tell_ranks(&mut self, completions: Option<Nanos>) {
        let delay = completions.map_or(self.configured.control, |delay| delay.min(LONGEST));
        for (thread, told) in self.ways.ranks.iter_mut().zip(&mut self.told_ranks) {
            while thread.take_old().is_some() {}
            if differs(*told, delay) && thread.send(0, delay).is_ok() {
                tracing::debug!(?delay, "the matching allows for the measured delay of completions");
                *told = delay;
            }
        }
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

/// Logs what a model's queues allow for. It changes with every load, so the log has what is allowed
/// for first, and `symphony_allowed_delay_seconds` of /metrics the rest.
fn log_allowed(model: usize, &Network { control, data_per_request, result }: &Network, is_first: bool) {
    let says = "the policy allows for measured delays";
    if is_first {
        tracing::info!(model, ?control, ?data_per_request, ?result, "{says}");
    } else {
        tracing::debug!(model, ?control, ?data_per_request, ?result, "{says}");
    }
}

fn has_changed(told: &Network, network: &Network) -> bool {
    let pairs = [
        (told.control, network.control),
        (told.data_per_request, network.data_per_request),
        (told.result, network.result),
    ];
    pairs.into_iter().any(|(told, new)| differs(told, new))
}

/// Returns true if a delay is not what it was.
fn differs(told: Nanos, new: Nanos) -> bool {
    let distance = Nanos(told.0.abs_diff(new.0));
    distance > LEAST_CHANGE && distance.0 > told.0 / 4
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
        let ways = DelayWays { models: vec![sender], ranks: Vec::new() };
        (DelayFeed::new(configured, vec![model; models], ways, Arc::default()), receiver)
    }

    fn view(backends: &[MeasuredDelays], frontends: &[MeasuredDelays]) -> NetworkView {
        let (backends, frontends) = (slowest(backends), slowest(frontends));
        NetworkView { backends, frontends, completions: None }
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
            feed.turn(now, || view(backends, frontends));
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
    fn matching_allows_for_the_completions_of_the_slowest_backend_and_for_config_without_any() {
        let (sender, mut receiver) = changes();
        let configured = Network { control: US(100), ..Network::default() };
        let ways = DelayWays { models: Vec::new(), ranks: vec![sender] };
        let mut feed = DelayFeed::new(configured, Vec::new(), ways, Arc::default());
        let told = [None, Some(US(110)), Some(US(400)), Some(Nanos::MAX), None].map(|completions| {
            let now = feed.next_look;
            feed.turn(now, || NetworkView { completions, ..NetworkView::default() });
            let mut told = None;
            receiver.take(now, |change| told = Some(change.value));
            told
        });
        assert_eq!(told, [None, None, Some(US(400)), Some(LONGEST), Some(US(100))]);
    }

    #[test]
    fn delays_leave_batches_at_least_half_of_their_time() {
        let (mut feed, mut receiver) = feed(1);
        let broken =
            MeasuredDelays { way: Nanos(Nanos::MAX.0 - 1), fetch: US(3), fetch_per_kib: Nanos(1 << 62) };
        feed.turn(US(1), || view(&[broken], &[broken]));
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
            feed.turn(now, || view(&[measured], &[]));
            told.extend(taken(&mut receiver, now).into_iter().map(|(model, _)| model));
        }
        assert_eq!(told, (0..9).collect::<Vec<_>>());
    }
}
