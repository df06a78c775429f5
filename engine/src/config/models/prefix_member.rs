//! The key `prefix_group` of a model: the group of models that share their first layers, and are
//! run as one over these (Nexus, section 6.3).

use crate::config::diagnostics::Location;
use crate::config::toml_reader::TomlTable;
use std::sync::Arc;

/// The most bytes of a group's name.
const MAX_NAME: usize = 64;

/// A model's place in a group of models that are run as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixMember {
    /// The group's name, by which CONFIG says which models it has.
    pub group: Arc<str>,
    /// The model's number in the group, in CONFIG's order. The first model's slot has the group's
    /// queues and its executors' models.
    pub number: usize,
    /// The location of the key.
    pub location: Location,
}

/// Reads the key `prefix_group`; the inner `None` is for a model that is in no group. Its number is
/// given by [`check_prefix_groups`](super::prefix_groups::check_prefix_groups).
pub(super) fn read_prefix_group(table: &TomlTable<'_>) -> Option<Option<PrefixMember>> {
    const RIGHT: &str = "the name of a group of models that share their first layers";
    let Some(value) = table.optional("prefix_group") else { return Some(None) };
    let name = value.text(RIGHT)?;
    if name.is_empty() || name.len() > MAX_NAME {
        value.refuse_value(format!("a name of 1 to {MAX_NAME} bytes"));
        return None;
    }
    let location = table.location("prefix_group");
    Some(Some(PrefixMember { group: name.into(), number: 0, location }))
}
