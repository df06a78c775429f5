//! The `model.toml` that `inspect` proposes: the executor that was the fastest, an SLO, and sizes
//! or buckets for the dimensions that were given none.

use super::trial::{Trial, TrialResult};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use symphony_gpu::import::{DimensionSizes, InputDefaults};

/// The SLO that is proposed, in times of one request alone: it leaves room to wait and to batch.
const SLO_RUNS: f64 = 10.0;

/// The sizes that are tried for dimensions without one, the likeliest first: of texts, images and
/// sounds. One is for all dimensions at once.
const TRIED: [u32; 13] = [128, 256, 64, 224, 320, 512, 640, 32, 16, 8, 16_000, 4, 1];

/// The most dimensions for which buckets are proposed: each bucket of one meets each of the others.
const MOST_WITH_BUCKETS: usize = 2;

/// The sizes at which a model was tried.
pub(super) struct TriedSizes<'a> {
    /// The sizes that were asked for.
    pub(super) given: &'a DimensionSizes,
    /// The dimensions without one.
    pub(super) missing: &'a BTreeSet<String>,
    /// The size that these had.
    pub(super) size: Option<NonZeroU32>,
}

impl TriedSizes<'_> {
    /// Returns all sizes, with these for the dimensions without one, in their order.
    fn with(&self, sizes: impl IntoIterator<Item = NonZeroU32>) -> DimensionSizes {
        let missing = self.missing.iter().cloned().zip(sizes);
        self.given.iter().map(|(name, &size)| (name.clone(), size)).chain(missing).collect()
    }

    /// Returns all sizes.
    pub(super) fn all(&self) -> DimensionSizes {
        self.with(self.size.into_iter().cycle())
    }
}

/// Tries a model at one size after another for the dimensions that have none, until an executor
/// runs it or none would at another size; returns what the executors say, and the sizes. Where none
/// runs it, that is what they say of the first.
pub(super) fn tried<'a>(
    given: &'a DimensionSizes,
    missing: &'a BTreeSet<String>,
    attempt: impl Fn(&DimensionSizes) -> Vec<Trial>,
) -> (Vec<Trial>, TriedSizes<'a>) {
    let mut first = None;
    for size in TRIED.into_iter().filter_map(NonZeroU32::new) {
        let sizes = TriedSizes { given, missing, size: (!missing.is_empty()).then_some(size) };
        let trials = attempt(&sizes.all());
        let runs = trials.iter().any(|trial| trial.result.is_ok());
        let may_run = trials.iter().any(|trial| trial.result.as_ref().is_err_and(|of| of.depends_on_sizes));
        if runs || !may_run || missing.is_empty() {
            return (trials, sizes);
        }
        first.get_or_insert((trials, sizes));
    }
    first.expect("there are sizes to try")
}

/// Returns the buckets of each dimension that was given no size, ascending: a quarter, a half and
/// the whole of the size at which the model ran, as far as `runs` says that it runs at all of them.
fn buckets(sizes: &TriedSizes<'_>, runs: impl Fn(&DimensionSizes) -> bool) -> Vec<NonZeroU32> {
    let Some(largest) = sizes.size else { return Vec::new() };
    if sizes.missing.len() > MOST_WITH_BUCKETS {
        return vec![largest];
    }
    let part = |parts: u32| NonZeroU32::new(largest.get() / parts).filter(|_| largest.get() % parts == 0);
    let smaller = [4, 2].into_iter().filter_map(part);
    let mut buckets: Vec<NonZeroU32> =
        smaller.filter(|&size| runs(&sizes.with(std::iter::repeat(size)))).collect();
    buckets.push(largest);
    let pairs = buckets.iter().flat_map(|&one| buckets.iter().map(move |&other| [one, other]));
    let mut mixed = pairs.filter(|[one, other]| one != other && sizes.missing.len() > 1);
    if mixed.all(|pair| runs(&sizes.with(pair))) { buckets } else { vec![largest] }
}

/// Returns a `model.toml` for the fastest executor, on which `runs` says whether the model runs at
/// these sizes.
pub(super) fn model_toml(
    executor: &str,
    result: &TrialResult,
    sizes: &TriedSizes<'_>,
    defaults: &InputDefaults,
    runs: impl Fn(&DimensionSizes) -> bool,
) -> String {
    let slo = (result.alone.as_secs_f64() * 1e3 * SLO_RUNS).ceil().max(1.0);
    let mut text = format!(
        "  executor = \"{executor}\"\n  slo_ms = {slo}        # {SLO_RUNS} times one request alone on this \
         machine\n  max_batch = {}",
        result.max_batch
    );
    let buckets = buckets(sizes, runs);
    let of = |name: &str, sizes: &[NonZeroU32]| match sizes {
        [size] => format!("{{ dimension = {name:?}, size = {size} }}"),
        buckets => format!("{{ dimension = {name:?}, buckets = {buckets:?} }}"),
    };
    let given = sizes.given.iter().map(|(name, &size)| of(name, &[size]));
    let all: Vec<String> = given.chain(sizes.missing.iter().map(|name| of(name, &buckets))).collect();
    if !all.is_empty() {
        text += &format!("\n  sizes = [{}]", all.join(", "));
    }
    match buckets.len() {
        0 => {}
        1 => text += "   # the size of every request: the model ran at it",
        _ => text += "   # requests are padded to these: see padding in docs/models.md",
    }
    if !defaults.is_empty() {
        let of = |(input, value): (&String, &f64)| format!("{{ input = {input:?}, value = {value} }}");
        text += &format!("\n  defaults = [{}]", defaults.iter().map(of).collect::<Vec<_>>().join(", "));
    }
    text
}
