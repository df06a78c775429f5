//! What a request is for: the model, or of a model in classes the one that its application and its
//! sizes need, and the tensors that it then has. The rows of a class are as large as the class
//! says; those of the request lie in their corners, in [runs](Runs) of elements.

use crate::api::problem::{Problem, quoted};
use crate::api::services::models::FoundModel;
use crate::runtime::frontend::{InputFill, ModelInfo, SizeClasses, TensorDimension};
use std::borrow::Cow;
use symphony_gpu::{DataType, Signature, TensorSpec};

/// The model, or size class, that a request is for, and the request's tensors.
#[derive(Clone, Debug)]
pub(in crate::api) struct Target<'m> {
    /// The model, or the size class that holds the request.
    pub(in crate::api) model: &'m ModelInfo,
    /// The tensors of a row of the request: the model's, unless its sizes are below the class's.
    pub(in crate::api) own: Cow<'m, Signature>,
}

impl<'m> Target<'m> {
    /// Returns the target of a request for `found`, of this application if it names one, whose
    /// inputs, in the signature's order, have these shapes, with the batch dimension or without;
    /// `None` for an input that is not given.
    ///
    /// Errors: 400 if the model has no such application, the shape of an input does not fit the
    /// model, two disagree on a size, or a size is larger than any that is served.
    pub(super) fn of<'a>(
        found: &'m FoundModel,
        application: Option<&str>,
        given: impl Iterator<Item = Option<&'a [i64]>>,
    ) -> Result<Target<'m>, Problem> {
        let model: &ModelInfo = found;
        let application = found.application(application)?;
        let Some(classes) = &model.sizes else {
            // The application is one that is served.
            let model = model.class_for(found.table(), &[], application).unwrap_or(model);
            return Ok(Target { model, own: Cow::Borrowed(&model.signature) });
        };
        let sizes = sizes(classes, &model.signature, given)?;
        let class = model.class_for(found.table(), &sizes, application);
        let class = class.ok_or_else(|| too_large(classes, &sizes))?;
        let own = match classes.of(class.id) {
            Some(of_class) if of_class == sizes => Cow::Borrowed(&class.signature),
            _ => Cow::Owned(classes.own_tensors(&class.signature, &sizes)),
        };
        Ok(Target { model: class, own })
    }

    /// Returns what the input at `at` holds beyond the request's own size, if that may be smaller
    /// than the class's.
    pub(super) fn fill(&self, at: usize) -> Option<&InputFill> {
        self.model.sizes.as_ref().map(|classes| &classes.inputs()[at].fill)
    }
}

/// Returns the shape of a body that is, without JSON, one row of a model's only input of `bytes`
/// bytes: a size that is not given follows from these.
///
/// Errors: 400 if more than one size is not given, or no size makes so many bytes.
pub(in crate::api) fn shape_of_body(
    found: &FoundModel,
    spec: &TensorSpec,
    bytes: usize,
) -> Result<Vec<i64>, Problem> {
    let has_batch = found.signature.has_batch;
    let batch = || has_batch.then_some(1).into_iter();
    let of_model = || batch().chain(spec.shape.iter().map(|&size| size as i64)).collect();
    let Some(classes) = &found.sizes else { return Ok(of_model()) };
    let is_fixed = |of: &TensorDimension| matches!(of, TensorDimension::Fixed(_));
    let dimensions = &classes.inputs()[0].dimensions;
    let fixed = dimensions.iter().zip(&spec.shape).filter(|(of, _)| is_fixed(of));
    let row: usize = fixed.map(|(_, &size)| size).product::<usize>() * spec.datatype.size_bytes();
    let open = dimensions.iter().filter(|of| !is_fixed(of)).count();
    let is_text = matches!(spec.datatype, DataType::Bytes(_));
    if open != 1 || is_text || row == 0 || bytes == 0 || !bytes.is_multiple_of(row) {
        return Err(Problem::bad(format!(
            "the body's {bytes} bytes do not say the sizes of the model's only input, {}; send JSON with its shape",
            described(classes, 0)
        )));
    }
    let size = |(of, &size): (&TensorDimension, &usize)| if is_fixed(of) { size } else { bytes / row } as i64;
    Ok(batch().chain(dimensions.iter().zip(&spec.shape).map(size)).collect())
}

/// Returns the sizes of a request; 1 where no input says one.
fn sizes<'a>(
    classes: &SizeClasses,
    signature: &Signature,
    given: impl Iterator<Item = Option<&'a [i64]>>,
) -> Result<Vec<usize>, Problem> {
    let mut found: Vec<Option<(usize, &str)>> = vec![None; classes.dimensions().len()];
    for (at, (spec, given)) in signature.inputs.iter().zip(given).enumerate() {
        let Some(shape) = given else { continue };
        let dimensions = &classes.inputs()[at].dimensions;
        let wrong = |what: String| Problem::bad(format!("input {:?}: {what}", spec.name));
        let row = match shape.len().checked_sub(dimensions.len()) {
            Some(batch @ 0..=1) => &shape[batch..],
            _ => {
                return Err(wrong(format!(
                    "shape has {} dimensions; it must be {}, with the batch in front or without",
                    shape.len(),
                    described(classes, at)
                )));
            }
        };
        for (of, &size) in dimensions.iter().zip(row) {
            let own = usize::try_from(size).ok().filter(|&size| size > 0);
            match (*of, own) {
                (TensorDimension::Fixed(fixed), Some(own)) if own == fixed => {}
                (TensorDimension::Follows { dimension, .. }, Some(own)) => match found[dimension] {
                    Some((before, input)) if before != own => {
                        return Err(wrong(format!(
                            "its {} is {own}, but that of input {input:?} is {before}",
                            quoted(&classes.dimensions()[dimension])
                        )));
                    }
                    _ => found[dimension] = Some((own, &spec.name)),
                },
                _ => {
                    return Err(wrong(format!(
                        "shape is {:?}; it must be {}, with the batch in front or without",
                        shape,
                        described(classes, at)
                    )));
                }
            }
        }
    }
    Ok(found.into_iter().map(|size| size.map_or(1, |(size, _)| size)).collect())
}

/// Returns the shape of a row of an input as text, like `[sequence, 64]`.
fn described(classes: &SizeClasses, at: usize) -> String {
    let dimension = |of: &TensorDimension| match *of {
        TensorDimension::Fixed(size) => size.to_string(),
        TensorDimension::Follows { dimension, .. } => classes.dimensions()[dimension].clone(),
        TensorDimension::OfClass => "?".to_owned(),
    };
    let dimensions: Vec<String> = classes.inputs()[at].dimensions.iter().map(dimension).collect();
    format!("[{}]", dimensions.join(", "))
}

fn too_large(classes: &SizeClasses, sizes: &[usize]) -> Problem {
    let name = |at: usize| quoted(&classes.dimensions()[at]);
    let beyond = (0..sizes.len()).find(|&at| sizes[at] > classes.largest(at));
    Problem::bad(match beyond {
        Some(at) => {
            format!("{} is {}; the largest that is served is {}", name(at), sizes[at], classes.largest(at))
        }
        None => "no size class that is served at present holds the request's sizes".to_owned(),
    })
}

/// The runs of elements that a tensor has in common with a larger one of the same rank, in whose
/// corner it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs<'a> {
    own: &'a [usize],
    whole: &'a [usize],
    /// The number of dimensions that make up a run.
    inner: usize,
    /// The elements of a run.
    elements: usize,
}

impl<'a> Runs<'a> {
    /// Returns the runs of a tensor of the shape `own` in one of the shape `whole`.
    pub(super) fn new(own: &'a [usize], whole: &'a [usize]) -> Runs<'a> {
        let last_cut = own.iter().zip(whole).rposition(|(own, whole)| own != whole).unwrap_or(0);
        let elements = own[last_cut.min(own.len())..].iter().product();
        Runs { own, whole, inner: own.len() - last_cut.min(own.len()), elements }
    }

    /// Returns true if the tensor is as large as the other.
    pub(super) fn is_whole(&self) -> bool {
        self.own == self.whole
    }

    /// Returns the elements of a run.
    pub(super) fn elements(&self) -> usize {
        self.elements
    }

    /// Iterates over the places in the larger tensor, in elements, at which the runs begin. They
    /// follow one another in the smaller one.
    pub(super) fn starts(self) -> impl Iterator<Item = usize> {
        let outer = self.own.len() - self.inner;
        let count = self.own[..outer].iter().product::<usize>();
        (0..count).map(move |run| {
            let inner: usize = self.whole[outer..].iter().product();
            let (mut rest, mut stride, mut start) = (run, inner, 0);
            for at in (0..outer).rev() {
                start += rest % self.own[at] * stride;
                rest /= self.own[at];
                stride *= self.whole[at];
            }
            start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the place in the larger tensor of each element of the smaller one, by their indices.
    fn places(own: &[usize], whole: &[usize]) -> Vec<usize> {
        let mut places = vec![0];
        for (&own, &whole) in own.iter().zip(whole) {
            places = places.iter().flat_map(|&place| (0..own).map(move |at| place * whole + at)).collect();
        }
        places
    }

    #[test]
    fn a_tensor_as_large_as_the_other_is_one_run() {
        let runs = Runs::new(&[2, 3, 4], &[2, 3, 4]);
        assert!(runs.is_whole());
        assert_eq!((runs.elements(), runs.starts().collect::<Vec<_>>()), (24, vec![0]));
        let single = Runs::new(&[], &[]);
        assert_eq!((single.elements(), single.starts().collect::<Vec<_>>()), (1, vec![0]));
    }

    proptest! {
        #[test]
        fn runs_are_the_places_of_all_elements_in_order(
            shapes in proptest::collection::vec((1_usize..5, 0_usize..4), 0..5),
        ) {
            let own: Vec<usize> = shapes.iter().map(|(own, _)| *own).collect();
            let whole: Vec<usize> = shapes.iter().map(|(own, more)| own + more).collect();
            let runs = Runs::new(&own, &whole);
            let elements = runs.elements();
            let of_runs: Vec<usize> = runs.starts().flat_map(|start| start..start + elements).collect();
            prop_assert_eq!(of_runs, places(&own, &whole));
        }
    }
}
