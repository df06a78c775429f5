//! Sizes for the dynamic dimensions of a model beyond its batch, such as the length of a sequence
//! or the width of an image: which there are, by name, and what is changed in the file for one size
//! of each.

use super::batch::listed_initializers;
use super::rewrite::SizeChange;
use crate::host::LoadError;
use rten_onnx::onnx::{Dimension, GraphProto, ModelProto, ValueInfoProto};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;

/// Sizes of dynamic dimensions by the dimensions' names. A dimension has the symbolic name that the
/// file gives it, which may stand in several inputs, else `INPUT.INDEX`, counted from 0 with the
/// batch.
pub type DimensionSizes = BTreeMap<String, NonZeroU32>;

/// An ONNX file, and the sizes that it is loaded for.
///
/// A path alone has none, which is right for files whose dimensions beyond the batch are fixed:
///
/// ```
/// use symphony_gpu::import::{DimensionSizes, SizedFile};
/// let file = SizedFile::from("encoder.onnx");
/// assert!(file.sizes.is_empty());
/// let sizes = DimensionSizes::from([("sequence".to_owned(), 128.try_into().unwrap())]);
/// let file = SizedFile { sizes: &sizes, ..file };
/// # assert_eq!(file.sizes["sequence"].get(), 128);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SizedFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// The size of each dynamic dimension beyond the batch.
    pub sizes: &'a DimensionSizes,
    /// The most bytes of an element of BYTES: rows have room for so many.
    pub text_bytes: u32,
}

/// The most bytes of an element of BYTES, unless something else is asked for.
pub const TEXT_BYTES: u32 = 256;

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for SizedFile<'a> {
    fn from(path: &'a P) -> SizedFile<'a> {
        static NONE: DimensionSizes = DimensionSizes::new();
        SizedFile { path: path.as_ref(), sizes: &NONE, text_bytes: TEXT_BYTES }
    }
}

/// Returns the name of a dynamic dimension beyond the batch; `None` if it is fixed or the batch.
pub(super) fn dynamic_name(tensor: &ValueInfoProto, index: usize, dimension: &Dimension) -> Option<String> {
    if index == 0 || dimension.dim_value.is_some() {
        return None;
    }
    let declared = dimension.dim_param.as_ref().filter(|name| !name.is_empty());
    let unnamed = || format!("{}.{index}", tensor.name.as_deref().unwrap_or_default());
    Some(declared.cloned().unwrap_or_else(unnamed))
}

/// Returns the changes that give each dynamic dimension beyond the batch its size.
///
/// Errors: a dimension has no size, or a size is given for a dimension that is none of them.
pub(super) fn changes(
    model: &ModelProto,
    sizes: &DimensionSizes,
    path: &Path,
) -> Result<Vec<SizeChange>, LoadError> {
    let Some(graph) = &model.graph else { return Ok(Vec::new()) };
    let mut known = BTreeSet::new();
    let mut changes = Vec::new();
    for (input, tensor, index, name) in dynamic_dimensions(graph) {
        let size = sizes.get(&name).ok_or_else(|| LoadError::Unsized {
            path: path.into(),
            tensor: tensor.name.clone().unwrap_or_default(),
            index,
            name: name.clone(),
        })?;
        changes.push(SizeChange { input, index, size: *size });
        known.insert(name);
    }
    match sizes.keys().find(|name| !known.contains(*name)) {
        Some(name) => Err(LoadError::NoDimension {
            path: path.into(),
            name: name.clone(),
            known: known.into_iter().collect(),
        }),
        None => Ok(changes),
    }
}

/// Iterates over the dynamic dimensions beyond the batch: the input's index and itself, the
/// dimension's index and its name.
fn dynamic_dimensions(graph: &GraphProto) -> impl Iterator<Item = (usize, &ValueInfoProto, usize, String)> {
    let listed = listed_initializers(graph);
    let inputs = graph.input.iter().enumerate().filter(move |(at, _)| !listed.contains(at));
    inputs.flat_map(|(at, input)| {
        let shape = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()?.shape.as_ref());
        let dimensions = shape.into_iter().flat_map(|shape| shape.dim.iter().enumerate());
        dimensions.filter_map(move |(index, dimension)| {
            Some((at, input, index, dynamic_name(input, index, dimension)?))
        })
    })
}
