//! The list `sizes` of a model with a file: a size for each dynamic dimension beyond the batch.

use crate::config::toml_reader::{TomlTable, read_each};
use std::num::NonZeroU32;
use symphony_gpu::import::DimensionSizes;

/// Reads the list `sizes`; empty where there is none. Whether the model has these dimensions only
/// loading it shows.
pub(in crate::config) fn read_sizes(table: &TomlTable<'_>) -> Option<DimensionSizes> {
    const RIGHT: &str = "it must be a list, like [{ dimension = \"sequence\", size = 128 }]";
    let Some(value) = table.optional("sizes") else { return Some(DimensionSizes::new()) };
    let items = value.items(RIGHT)?;
    let mut sizes = DimensionSizes::new();
    for (dimension, size) in read_each(&items, |item| item.table(read_size))? {
        if sizes.insert(dimension.clone(), size).is_some() {
            value.report(
                format!("gives dimension \"{dimension}\" two sizes"),
                "give each dimension one: requests of another size are refused",
            );
            return None;
        }
    }
    Some(sizes)
}

fn read_size(table: &TomlTable<'_>) -> Option<(String, NonZeroU32)> {
    const DIMENSION: &str = "the dimension's name, as `symphony inspect` prints it";
    let dimension = table.required("dimension", DIMENSION).and_then(|value| value.text(DIMENSION));
    let size = table.required("size", "the size that all requests have, like 128");
    let size = size.and_then(|value| value.integer(1..=u64::from(u32::MAX)));
    Some((dimension?.into(), u32::try_from(size?).ok().and_then(NonZeroU32::new)?))
}
