//! The figures that a terminal shows, computed from the last answers: rates over five seconds.

use super::feed::{DashboardData, ModelData, PagesData, ProfileData};
use std::collections::{BTreeMap, VecDeque};

/// The span of rates in microseconds; it is longer where the last two answers are further apart.
const RECENT_US: u64 = 5_000_000;

/// The number of seconds of goodput that are kept.
pub(super) const SECONDS: u64 = 120;

/// The names of bad outcomes, as docs/api.md lists them.
const BAD: [&str; 5] = ["late", "dropped", "cancelled", "overloaded", "failed"];

/// The number of buckets of latency up to the SLO.
pub(super) const IN_TIME: usize = 40;

/// The last answers, and the figures that follow from them.
pub(super) struct Figures {
    answers: VecDeque<DashboardData>,
    past: VecDeque<Stretch>,
    profile: Option<ProfileData>,
}

/// The goodput of a stretch of time.
struct Stretch {
    from_us: u64,
    to_us: u64,
    good_rps: f64,
}

/// The figures of all models together.
pub(super) struct Totals {
    pub(super) good_rps: f64,
    pub(super) offered_rps: f64,
    /// The share of each cause of bad requests that occurred, 0 to 1.
    pub(super) bad: Vec<(&'static str, f64)>,
    pub(super) mean_batch: f64,
    pub(super) gpus_busy: f64,
}

impl Totals {
    /// Returns the share of bad requests among all that were offered, 0 to 1.
    pub(super) fn bad_rate(&self) -> f64 {
        self.bad.iter().map(|(_, share)| share).sum()
    }
}

/// The figures of one model.
pub(super) struct Row {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) platform: String,
    pub(super) max_batch: u64,
    pub(super) good_rps: f64,
    pub(super) bad_rate: f64,
    pub(super) mean_batch: f64,
    pub(super) in_flight: u64,
    pub(super) slo_ms: f64,
    /// The mean times of the stages as a share of the SLO.
    pub(super) stages: Vec<f64>,
    /// The number of requests by latency, in fortieths of the SLO.
    pub(super) of_slo: Vec<u64>,
    /// The number of batches by size, for the sizes that occurred: the bucket's name and the
    /// number.
    pub(super) sizes: Vec<(String, u64)>,
    /// The largest ratio of the rolling profile to the profile, once it is measured.
    pub(super) drift: Option<f64>,
    /// Where its weights are on GPUs, in words; empty for a model that runs on none.
    pub(super) pages: String,
}

impl Row {
    /// Returns the latency, in milliseconds, under which the fastest `share` of the requests were.
    pub(super) fn quantile_ms(&self, share: f64) -> Option<f64> {
        quantile(&self.of_slo, share).map(|of_slo| of_slo * self.slo_ms)
    }
}

impl Figures {
    /// Starts with the first answer and the past that it has.
    pub(super) fn new(first: DashboardData) -> Figures {
        let mut past = VecDeque::new();
        if let Some(history) = &first.history {
            let moments: Vec<(u64, u64)> = history
                .at_us
                .iter()
                .zip(&history.outcomes)
                .map(|(&at, outcomes)| (at, outcomes.get("good").copied().unwrap_or_default()))
                .collect();
            past.extend(moments.windows(2).map(|pair| {
                let [(from_us, before), (to_us, now)] = [pair[0], pair[1]];
                let seconds = (to_us.saturating_sub(from_us) as f64 / 1e6).max(1e-3);
                Stretch { from_us, to_us, good_rps: now.saturating_sub(before) as f64 / seconds }
            }));
        }
        Figures { profile: first.profile.clone(), answers: VecDeque::from([first]), past }
    }

    /// Adds the next answer. One that has the past, or comes from a server that was restarted,
    /// replaces those before.
    pub(super) fn take(&mut self, answer: DashboardData) {
        if answer.history.is_some() || answer.now_us <= self.last().now_us {
            *self = Figures::new(answer);
            return;
        }
        self.profile = answer.profile.clone().or(self.profile.take());
        self.answers.push_back(answer);
        let before = &self.answers[self.answers.len() - 2];
        let (from_us, to_us) = (before.now_us, self.last().now_us);
        let good_rps = self.totals_since(before).good_rps;
        self.past.push_back(Stretch { from_us, to_us, good_rps });
        while self.past.front().is_some_and(|first| first.to_us + SECONDS * 1_000_000 < to_us) {
            self.past.pop_front();
        }
        while self.answers.len() > 2 && self.answers[1].now_us + RECENT_US <= to_us {
            self.answers.pop_front();
        }
    }

    /// Returns the newest answer.
    pub(super) fn last(&self) -> &DashboardData {
        self.answers.back().expect("there is a first answer, and the newest is never taken off")
    }

    /// Returns the number of models.
    pub(super) fn models(&self) -> usize {
        self.last().models.len()
    }

    /// Returns the goodput of each of `parts` equal parts of the last [`SECONDS`], oldest first; 0
    /// where nothing is known.
    pub(super) fn goodput(&self, parts: usize) -> Vec<u64> {
        let end = self.past.back().map_or(0, |last| last.to_us) as f64;
        let part_us = SECONDS as f64 * 1e6 / parts.max(1) as f64;
        let mut stretches = self.past.iter().peekable();
        let of_part = |part: usize| {
            let middle = end - (parts - part) as f64 * part_us + part_us / 2.0;
            while stretches.next_if(|stretch| (stretch.to_us as f64) < middle).is_some() {}
            match stretches.peek() {
                Some(stretch) if stretch.from_us as f64 <= middle => stretch.good_rps.round() as u64,
                _ => 0,
            }
        };
        (0..parts).map(of_part).collect()
    }

    /// Returns l(1), l(2), … of a model in microseconds, if the server has sent them.
    pub(super) fn profile(&self, model: u32) -> Option<&[u64]> {
        self.profile
            .as_ref()
            .filter(|profile| profile.model == model)
            .map(|profile| profile.latency_us.as_slice())
    }

    /// Returns the figures of all models together in the last seconds.
    pub(super) fn totals(&self) -> Totals {
        self.totals_since(&self.answers[0])
    }

    fn totals_since(&self, before: &DashboardData) -> Totals {
        let (now, seconds) = (self.last(), self.seconds_since(before));
        // The sum of nothing is -0, which would be shown.
        let ended = |name: &str| 0.0 + now.models.iter().map(|m| outcome(before, m, name)).sum::<f64>();
        let good = ended("good");
        let bad = BAD.map(|cause| (cause, ended(cause)));
        let offered = good + bad.iter().map(|(_, count)| count).sum::<f64>();
        let sum =
            |of: fn(&ModelData) -> u64| 0.0 + now.models.iter().map(|m| since(before, m, of)).sum::<f64>();
        Totals {
            good_rps: good / seconds,
            offered_rps: offered / seconds,
            bad: bad.into_iter().filter(|&(_, n)| n > 0.0).map(|(cause, n)| (cause, n / offered)).collect(),
            mean_batch: sum(|m| m.rows) / sum(|m| m.batches).max(1.0),
            gpus_busy: now.gpus.busy_us.saturating_sub(before.gpus.busy_us) as f64 / 1e6 / seconds,
        }
    }

    /// Returns the busy share of each GPU in the last seconds, 0 to 1.
    pub(super) fn lanes(&self) -> Vec<f64> {
        let (now, before) = (self.last(), &self.answers[0]);
        let seconds = self.seconds_since(before);
        let pairs = now.lanes.iter().zip(&before.lanes);
        pairs
            .map(|(now, old)| (now.busy_us.saturating_sub(old.busy_us) as f64 / 1e6 / seconds).min(1.0))
            .collect()
    }

    /// Returns the figures of each model in the last seconds.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.last().models.iter().map(|model| self.row(model)).collect()
    }

    fn row(&self, model: &ModelData) -> Row {
        let before = &self.answers[0];
        let seconds = self.seconds_since(before);
        let good = outcome(before, model, "good");
        let bad: f64 = BAD.iter().map(|cause| outcome(before, model, cause)).sum();
        let ran = since(before, model, |m| m.ran).max(1.0);
        let stages = 0..model.stages_us.len();
        let stage = |at: usize| {
            let old = of(before, model).and_then(|old| old.stages_us.get(at)).copied().unwrap_or_default();
            model.stages_us[at].saturating_sub(old) as f64 / ran / model.slo_us.max(1) as f64
        };
        let old = of(before, model).map(|old| old.of_slo.as_slice()).unwrap_or_default();
        let of_slo = model.of_slo.iter().enumerate();
        let of_slo: Vec<u64> = of_slo
            .map(|(at, count)| count.saturating_sub(old.get(at).copied().unwrap_or_default()))
            .collect();
        let name = match model.version {
            1 => model.name.clone(),
            version => format!("{} v{version}", model.name),
        };
        let old_sizes = of(before, model).map(|old| old.sizes.as_slice()).unwrap_or_default();
        let sizes = model.sizes.iter().enumerate().map(|(at, count)| {
            let range = size_range(&self.last().size_bounds, at);
            (range, count.saturating_sub(old_sizes.get(at).copied().unwrap_or_default()))
        });
        Row {
            id: model.id,
            name,
            platform: model.platform.clone(),
            max_batch: model.max_batch,
            good_rps: good / seconds,
            bad_rate: bad / (good + bad).max(1.0),
            mean_batch: since(before, model, |m| m.rows) / since(before, model, |m| m.batches).max(1.0),
            in_flight: model.in_flight,
            slo_ms: model.slo_us as f64 / 1e3,
            stages: stages.map(stage).collect(),
            of_slo,
            sizes: sizes.filter(|&(_, count)| count > 0).collect(),
            drift: model.drift,
            pages: self.pages(model.id),
        }
    }

    /// Returns where a model's weights are on GPUs, as a few words; empty for one that runs on
    /// none.
    fn pages(&self, model: u32) -> String {
        let on = |of: &PagesData| {
            let own = of.models.iter().find(|own| own.id == model)?;
            Some(format!("GPU {}: {}, pages {}", of.gpu, own.state, own.held))
        };
        self.last().memory.iter().filter_map(on).collect::<Vec<_>>().join("; ")
    }

    fn seconds_since(&self, before: &DashboardData) -> f64 {
        (self.last().now_us.saturating_sub(before.now_us) as f64 / 1e6).max(1e-3)
    }
}

fn of<'a>(before: &'a DashboardData, model: &ModelData) -> Option<&'a ModelData> {
    before.models.iter().find(|old| old.id == model.id)
}

fn since(before: &DashboardData, model: &ModelData, count: fn(&ModelData) -> u64) -> f64 {
    count(model).saturating_sub(of(before, model).map(count).unwrap_or_default()) as f64
}

fn outcome(before: &DashboardData, model: &ModelData, name: &str) -> f64 {
    let count = |outcomes: &BTreeMap<String, u64>| outcomes.get(name).copied().unwrap_or_default();
    count(&model.outcomes)
        .saturating_sub(of(before, model).map(|old| count(&old.outcomes)).unwrap_or_default()) as f64
}

/// Returns the name of a bucket of sizes: `5-6`, or `4` where there is one.
fn size_range(bounds: &[u64], at: usize) -> String {
    let to = bounds.get(at).copied().unwrap_or_default();
    let from = at.checked_sub(1).and_then(|before| bounds.get(before)).map_or(1, |before| before + 1);
    if from == to { to.to_string() } else { format!("{from}-{to}") }
}

/// Returns the share of the SLO under which the fastest `share` of these requests are, if there are
/// any.
fn quantile(buckets: &[u64], share: f64) -> Option<f64> {
    let mut left = buckets.iter().sum::<u64>() as f64 * share;
    for (at, &count) in buckets.iter().enumerate().filter(|&(_, &count)| count > 0) {
        if left <= count as f64 {
            return Some((at as f64 + left / count as f64) / IN_TIME as f64);
        }
        left -= count as f64;
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::feed::{GpusData, HistoryData, LaneData, ModelPagesData};
    use super::*;

    /// A server of two GPUs and one model, after so many seconds of 90 good and 10 dropped requests
    /// each.
    pub(in super::super) fn answer(second: u64) -> DashboardData {
        let mut of_slo = vec![0; 64];
        of_slo[20] = 90 * second;
        let outcomes = [("good", 90 * second), ("dropped", 10 * second), ("gone", second)];
        let model = ModelData {
            name: "resnet50".into(),
            version: 1,
            slo_us: 40_000,
            in_flight: 7,
            outcomes: outcomes.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            ran: 90 * second,
            stages_us: vec![90 * second * 10_000, 0, 90 * second * 8_000, 90 * second * 2_000],
            of_slo,
            batches: 30 * second,
            rows: 90 * second,
            sizes: vec![10 * second, 0, 0, 20 * second, 0],
            max_batch: 12,
            platform: "emulated".into(),
            drift: Some(1.5),
            ..ModelData::default()
        };
        let held = ModelPagesData { id: 0, held: 9, state: "loaded".into() };
        DashboardData {
            version: "0.1.0".into(),
            now_us: second * 1_000_000,
            ready: true,
            gpus: GpusData { count: 2, busy_us: second * 1_250_000, advised: Some(3) },
            lanes: vec![LaneData { busy_us: second * 1_000_000 }, LaneData { busy_us: second * 250_000 }],
            memory: vec![PagesData { gpu: 0, pages: 60, free: 3, models: vec![held] }],
            models: vec![model],
            size_bounds: vec![1, 2, 3, 4, 6],
            profile: Some(ProfileData {
                model: 0,
                latency_us: (1..=12).map(|b| 1_000 * b + 5_000).collect(),
            }),
            ..DashboardData::default()
        }
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let mut figures = Figures::new(answer(0));
        (1..20).for_each(|second| figures.take(answer(second)));
        let totals = figures.totals();
        assert_eq!((totals.good_rps, totals.offered_rps, totals.mean_batch), (90.0, 100.0, 3.0));
        assert_eq!((totals.bad.as_slice(), totals.gpus_busy), (&[("dropped", 0.1)][..], 1.25));
        assert_eq!(figures.lanes(), [1.0, 0.25]);
        let row = &figures.rows()[0];
        assert_eq!((row.good_rps, row.bad_rate, row.mean_batch, row.slo_ms), (90.0, 0.1, 3.0, 40.0));
        assert_eq!(row.stages, [0.25, 0.0, 0.2, 0.05]);
        assert_eq!(row.sizes, [("1".to_owned(), 50), ("4".to_owned(), 100)]);
        let p99 = row.quantile_ms(0.99).unwrap();
        assert!((p99 - 20.99).abs() < 1e-9, "{p99}");
        let goodput = figures.goodput(120);
        assert_eq!((goodput.len(), &goodput[..101], &goodput[101..]), (120, &[0; 101][..], &[90; 19][..]));
        assert_eq!(figures.profile(0).map(<[u64]>::len), Some(12));
        assert_eq!(figures.profile(1), None);
    }

    #[test]
    fn what_the_server_knows_of_the_past_is_shown_and_any_pace_of_asking_will_do() {
        let good = |count| BTreeMap::from([("good".to_owned(), count)]);
        let history =
            HistoryData { at_us: vec![0, 1_000_000, 3_000_000], outcomes: vec![good(0), good(10), good(50)] };
        let mut figures = Figures::new(DashboardData { history: Some(history), ..answer(3) });
        assert_eq!(figures.goodput(120)[117..], [10, 20, 20]);
        figures.take(answer(13));
        assert_eq!(figures.totals().good_rps, 90.0);
        assert_eq!(figures.goodput(120)[106..], [0, 10, 20, 20, 90, 90, 90, 90, 90, 90, 90, 90, 90, 90]);
        (14..400).for_each(|second| figures.take(answer(second)));
        assert!(figures.past.len() <= 121 && figures.answers.len() == 6);
    }

    #[test]
    fn a_bucket_of_sizes_says_which_and_a_quantile_needs_a_request() {
        let ranges: Vec<String> = (0..4).map(|at| size_range(&[1, 2, 4, 8], at)).collect();
        assert_eq!(ranges, ["1", "2", "3-4", "5-8"]);
        assert_eq!(quantile(&[0; 64], 0.5), None);
        assert_eq!(quantile(&[0, 4, 0, 4], 0.5), Some(2.0 / 40.0));
        assert_eq!(quantile(&[0, 4, 0, 4], 1.0), Some(4.0 / 40.0));
    }

    #[test]
    fn a_server_that_was_started_again_is_a_new_one() {
        let mut figures = Figures::new(answer(50));
        figures.take(answer(51));
        figures.take(answer(1));
        assert_eq!((figures.totals().good_rps, figures.goodput(2)), (0.0, vec![0, 0]));
    }
}
