//! Sizes for the dynamic dimensions of a model beyond its batch, such as the length of a sequence
//! or the width of an image: which there are, by name, and what is changed in the file for one size
//! of each.

use super::defaults::InputDefaults;
use super::facts::listed_initializers;
use super::rewrite::SizeChange;
use super::source::InputShapes;
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
    /// The inputs that a client may leave out.
    pub defaults: &'a InputDefaults,
    /// The most bytes of an element of BYTES: rows have room for so many.
    pub text_bytes: u32,
}

/// The most bytes of an element of BYTES, unless something else is asked for.
pub const TEXT_BYTES: u32 = 256;

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for SizedFile<'a> {
    fn from(path: &'a P) -> SizedFile<'a> {
        static SIZES: DimensionSizes = DimensionSizes::new();
        static DEFAULTS: InputDefaults = InputDefaults::new();
        SizedFile { path: path.as_ref(), sizes: &SIZES, defaults: &DEFAULTS, text_bytes: TEXT_BYTES }
    }
}

/// Returns the name of a dynamic dimension beyond the batch; `None` if it is fixed or the batch.
pub(super) fn dynamic_name(tensor: &ValueInfoProto, index: usize, dimension: &Dimension) -> Option<String> {
    if index == 0 || fixed_size(dimension).is_some() { None } else { Some(name_of(tensor, index, dimension)) }
}

/// Returns the name of a dimension.
fn name_of(tensor: &ValueInfoProto, index: usize, dimension: &Dimension) -> String {
    let declared = dimension.dim_param.as_ref().filter(|name| !name.is_empty());
    let unnamed = || format!("{}.{index}", tensor.name.as_deref().unwrap_or_default());
    declared.cloned().unwrap_or_else(unnamed)
}

/// Returns the size of a dimension; `None` if it is dynamic, for which some exporters write -1.
pub(super) fn fixed_size(dimension: &Dimension) -> Option<i64> {
    dimension.dim_value.filter(|&size| size >= 0)
}

/// Returns the whole shapes of a model's inputs. A dynamic first dimension is 1 unless it is given
/// a size, and so are others of its name.
///
/// Errors: an input has no shape or a size of 0, a dimension has no size, or a size is given for a
/// dimension that is none of them.
pub(super) fn whole_shapes(
    graph: &GraphProto,
    sizes: &DimensionSizes,
    path: &Path,
) -> Result<InputShapes, LoadError> {
    let firsts = first_names(graph).into_iter().map(|name| (name, NonZeroU32::MIN));
    let mut all: DimensionSizes = firsts.collect();
    all.extend(sizes.iter().map(|(name, &size)| (name.clone(), size)));
    let mut known = BTreeSet::new();
    let mut shapes = InputShapes::new();
    for (_, input) in inputs(graph) {
        let tensor = input.name.clone().unwrap_or_default();
        let dimensions = dimensions(input).ok_or_else(|| {
            let tensor = tensor.clone();
            LoadError::NoShape { path: path.into(), tensor }
        })?;
        let mut shape = Vec::with_capacity(dimensions.len());
        for (index, dimension) in dimensions.iter().enumerate() {
            let (path, tensor) = (path.to_path_buf(), tensor.clone());
            let size = match fixed_size(dimension) {
                Some(0) => return Err(LoadError::Dimension { path, tensor, index, found: "0".to_owned() }),
                Some(size) => size as usize,
                None => {
                    let name = name_of(input, index, dimension);
                    let size = all.get(&name).copied();
                    known.insert(name.clone());
                    size.ok_or(LoadError::Unsized { path, tensor, index, name })?.get() as usize
                }
            };
            shape.push(size);
        }
        shapes.insert(tensor, shape);
    }
    check_known(sizes, known, path)?;
    Ok(shapes)
}

/// Checks that each size is for one of the `known` dimensions.
fn check_known(sizes: &DimensionSizes, known: BTreeSet<String>, path: &Path) -> Result<(), LoadError> {
    match sizes.keys().find(|name| !known.contains(*name)) {
        Some(name) => Err(LoadError::NoDimension {
            path: path.into(),
            name: name.clone(),
            known: known.into_iter().collect(),
        }),
        None => Ok(()),
    }
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
    check_known(sizes, known, path)?;
    Ok(changes)
}

/// Iterates over the dynamic dimensions beyond the batch: the input's index and itself, the
/// dimension's index and its name.
fn dynamic_dimensions(graph: &GraphProto) -> impl Iterator<Item = (usize, &ValueInfoProto, usize, String)> {
    inputs(graph).flat_map(|(at, input)| {
        let dimensions = dimensions(input).into_iter().flatten().enumerate();
        dimensions.filter_map(move |(index, dimension)| {
            Some((at, input, index, dynamic_name(input, index, dimension)?))
        })
    })
}

/// Returns the names of the dynamic dimensions of inputs beyond the first.
pub(super) fn dynamic_names(graph: &GraphProto) -> BTreeSet<String> {
    dynamic_dimensions(graph).map(|(.., name)| name).collect()
}

/// Returns the names of the dynamic first dimensions of inputs.
pub(super) fn first_names(graph: &GraphProto) -> BTreeSet<String> {
    let first = |(_, input): (usize, &ValueInfoProto)| {
        let first = dimensions(input)?.first().filter(|of| fixed_size(of).is_none())?;
        Some(name_of(input, 0, first))
    };
    inputs(graph).filter_map(first).collect()
}

/// Iterates over the inputs that are no initializers, with their indices.
fn inputs(graph: &GraphProto) -> impl Iterator<Item = (usize, &ValueInfoProto)> {
    let listed = listed_initializers(graph);
    graph.input.iter().enumerate().filter(move |(at, _)| !listed.contains(at))
}

/// Returns the declared dimensions of an input.
pub(super) fn dimensions(input: &ValueInfoProto) -> Option<&[Dimension]> {
    Some(&input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?.dim)
}
