//! The keys `sizes`, `padding` and `max_waste` of a model with a file: one size for each dynamic
//! dimension beyond the batch, or buckets of sizes, and what fills inputs up to a bucket's size.

use crate::config::diagnostics::Location;
use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use symphony_gpu::import::DimensionSizes;

/// The most size classes of a model: each is loaded, and measured, by itself.
pub(super) const MAX_SIZE_CLASSES: usize = 64;

/// The share of a batch's time that padding to the next size class may cost, unless `max_waste`
/// says otherwise.
const MAX_WASTE: f64 = 0.1;

/// The dynamic dimensions of a model that is served in size classes, and how its inputs are padded.
#[derive(Clone, Debug)]
pub struct VariableDimensions {
    /// The buckets of each dimension, at least one dimension with at least two of them, ascending.
    pub dimensions: Vec<DimensionBuckets>,
    /// The inputs that are not padded with zeros.
    pub padding: Vec<InputPadding>,
    /// The share of a batch's time that padding to the next class may cost: a class for which it
    /// costs no more is not kept.
    pub max_waste: f64,
    /// The location of `padding`.
    pub padding_location: Location,
}

/// A dynamic dimension and the sizes to which requests are padded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimensionBuckets {
    /// The dimension's name.
    pub dimension: String,
    /// The sizes, ascending.
    pub buckets: Vec<NonZeroU32>,
}

/// An input, and what fills it beyond the request's own size.
#[derive(Clone, PartialEq, Debug)]
pub struct InputPadding {
    /// The input's name.
    pub input: String,
    /// What fills it.
    pub with: PadWith,
}

/// What fills an input beyond the request's own size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PadWith {
    /// Elements of this value.
    Value(f64),
    /// Zeros; and where a client leaves the input out, its own part is ones.
    Mask,
}

/// The sizes of a model's dynamic dimensions, as its file gives them.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct Sizes {
    /// The dimensions of one size.
    fixed: DimensionSizes,
    /// The dimensions with buckets.
    pub(in crate::config) variable: Option<Arc<VariableDimensions>>,
}

impl Sizes {
    /// Returns the sizes of each size class, the smallest first; those of the only one where no
    /// dimension has buckets.
    pub(in crate::config) fn classes(&self) -> Vec<DimensionSizes> {
        let mut classes = vec![self.fixed.clone()];
        for DimensionBuckets { dimension, buckets } in self.variable.iter().flat_map(|of| &of.dimensions) {
            let with = |class: &DimensionSizes, size| {
                let mut class = class.clone();
                class.insert(dimension.clone(), size);
                class
            };
            classes =
                classes.iter().flat_map(|class| buckets.iter().map(|&size| with(class, size))).collect();
        }
        classes
    }
}

/// Reads the keys `sizes`, `padding` and `max_waste`. Whether the model has these dimensions only
/// loading it shows.
pub(in crate::config) fn read_sizes(table: &TomlTable<'_>) -> Option<Sizes> {
    const RIGHT: &str = "it must be a list, like [{ dimension = \"sequence\", buckets = [32, 64, 128] }]";
    let padding = table.optional("padding").map_or(Some(Vec::new()), |value| read_padding(&value));
    let max_waste = table.optional("max_waste").map_or(Some(MAX_WASTE), |v| v.number(Bounds::from(0.0, 1.0)));
    let mut sizes = Sizes::default();
    let mut dimensions = Vec::new();
    if let Some(value) = table.optional("sizes") {
        let read = read_each(&value.items(RIGHT)?, |item| item.table(read_size))?;
        let mut names = BTreeSet::new();
        for (dimension, buckets) in read {
            if !names.insert(dimension.clone()) {
                value.report(
                    format!("gives dimension \"{dimension}\" twice"),
                    "give each dimension one size, or one list of buckets",
                );
                return None;
            }
            match buckets[..] {
                [only] => drop(sizes.fixed.insert(dimension, only)),
                _ => dimensions.push(DimensionBuckets { dimension, buckets }),
            }
        }
        let classes =
            dimensions.iter().map(|of| of.buckets.len()).fold(1, |all: usize, more| all.saturating_mul(more));
        if classes > MAX_SIZE_CLASSES {
            let right = format!("at most {MAX_SIZE_CLASSES} are served: give fewer buckets");
            value.report(format!("makes {classes} size classes"), right);
            return None;
        }
    }
    let (padding, max_waste) = (padding?, max_waste?);
    if dimensions.is_empty() {
        for name in ["padding", "max_waste"] {
            if table.has(name) {
                let right = "leave it out, or give a dimension buckets in `sizes`";
                table.report(name, "is given for a model whose requests have one size", right);
                return None;
            }
        }
        return Some(sizes);
    }
    let padding_location = table.location("padding");
    sizes.variable = Some(Arc::new(VariableDimensions { dimensions, padding, max_waste, padding_location }));
    Some(sizes)
}

/// Reads a dimension and its sizes, ascending: one, or at least two.
fn read_size(table: &TomlTable<'_>) -> Option<(String, Vec<NonZeroU32>)> {
    const DIMENSION: &str = "the dimension's name, as `symphony inspect` prints it";
    let dimension = table.required("dimension", DIMENSION).and_then(|value| value.text(DIMENSION));
    let buckets = match table.optional("buckets") {
        Some(buckets) => {
            if table.optional("size").is_some() {
                table.report("size", "is given beside buckets", "leave one of them out");
                return None;
            }
            read_buckets(&buckets)
        }
        None => {
            let right = "the size that all requests have, like 128; or buckets, like [32, 64, 128]";
            table.required("size", right).and_then(|value| size(&value)).map(|size| vec![size])
        }
    };
    Some((dimension?.into(), buckets?))
}

fn read_buckets(value: &TomlValue<'_>) -> Option<Vec<NonZeroU32>> {
    const RIGHT: &str = "it must be a list of two sizes or more, ascending, like [32, 64, 128]";
    let buckets = read_each(&value.items(RIGHT)?, size)?;
    if buckets.len() < 2 || !buckets.is_sorted_by(|a, b| a < b) {
        value.report(if buckets.len() < 2 { "is too short" } else { "is not ascending" }, RIGHT);
        return None;
    }
    Some(buckets)
}

fn size(value: &TomlValue<'_>) -> Option<NonZeroU32> {
    u32::try_from(value.integer(1..=u64::from(u32::MAX))?).ok().and_then(NonZeroU32::new)
}

fn read_padding(value: &TomlValue<'_>) -> Option<Vec<InputPadding>> {
    const RIGHT: &str = "it must be a list, like [{ input = \"attention_mask\", mask = true }]";
    let padding = read_each(&value.items(RIGHT)?, |item| item.table(read_input_padding))?;
    for (at, InputPadding { input, .. }) in padding.iter().enumerate() {
        if padding[..at].iter().any(|before| before.input == *input) {
            value.report(format!("names input \"{input}\" twice"), "name each input once");
            return None;
        }
    }
    Some(padding)
}

fn read_input_padding(table: &TomlTable<'_>) -> Option<InputPadding> {
    const RIGHT: &str = "the value of the elements beyond a request's own, like 0; or mask = true";
    let input = table.required("input", "the input's name").and_then(|value| value.text("the input's name"));
    let mask = table.optional("mask").map_or(Some(false), |value| value.truth());
    let with = match (mask?, table.optional("value")) {
        (true, None) => Some(PadWith::Mask),
        (true, Some(value)) => {
            value.report("is given for a mask", "leave it out: a mask is 0 there");
            None
        }
        (false, Some(value)) => value.number(Bounds::from(f64::MIN, f64::MAX)).map(PadWith::Value),
        (false, None) => {
            table.report("value", "is missing", format!("add {RIGHT}"));
            None
        }
    };
    Some(InputPadding { input: input?.into(), with: with? })
}
