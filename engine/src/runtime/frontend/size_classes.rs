//! A model that is served in size classes: each class is a model slot with fixed shapes, and a
//! request goes to the smallest class that holds its sizes.
//! What depends on a dimension's size is found by comparing the tensors of all classes: the file is
//! not asked.
//!
//! Invariant: the classes that are kept hold every size up to the largest of each dimension.

use crate::config::{Diagnostic, InputPadding, PadWith, VariableDimensions};
use std::fmt::Write;
use symphony_gpu::{Signature, TensorSpec};
use symphony_scheduler::profile::Profile;
use symphony_transport::message::ModelId;

/// One size class, as it was loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedClass<'a> {
    /// The size of each variable dimension.
    pub(crate) sizes: &'a [usize],
    /// The tensors of one row.
    pub(crate) signature: &'a Signature,
    /// How long its batches take.
    pub(crate) profile: &'a Profile,
}

/// A dimension of a tensor's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorDimension {
    /// A dimension of one size in all classes.
    Fixed(usize),
    /// The size of the variable dimension with this index, divided by a whole number and rounded
    /// up: by one, but for outputs that have an element for several of the input's.
    Follows {
        /// The index of the variable dimension.
        dimension: usize,
        /// The divisor.
        divisor: usize,
    },
    /// A dimension that differs between classes in another way: an answer has the class's own.
    OfClass,
}

/// What an input holds beyond a request's own size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InputFill {
    /// Elements with these bytes.
    Element(Vec<u8>),
    /// Zeros; where a client leaves the input out, its own part has elements with these bytes, the
    /// type's one.
    Mask(Vec<u8>),
}

/// An input whose shape depends on a request's sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizedInput {
    /// The dimensions of a row.
    pub dimensions: Vec<TensorDimension>,
    /// What it holds beyond a request's own size.
    pub fill: InputFill,
}

/// The size classes of a model. See the module's description.
#[derive(Clone, Debug)]
pub struct SizeClasses {
    dimensions: Vec<String>,
    inputs: Vec<SizedInput>,
    outputs: Vec<Vec<TensorDimension>>,
    /// The slots of the classes that are kept, and their sizes; the smallest, by the product of the
    /// sizes, come first, and of equal ones those whose batches of one take the least time.
    classes: Vec<(ModelId, Vec<usize>)>,
}

impl SizeClasses {
    /// Returns the classes of a model, of which those of `kept` are served, each in its slot.
    ///
    /// Errors: a key of `padding` does not go with the model.
    pub(crate) fn new(
        variable: &VariableDimensions,
        classes: &[LoadedClass<'_>],
        kept: &[(usize, ModelId)],
    ) -> Result<SizeClasses, Diagnostic> {
        let signature = classes.first().map(|class| class.signature.clone()).unwrap_or_default();
        let dimensions_of = |tensors: fn(&Signature) -> &[TensorSpec], at: usize| {
            let shapes: Vec<(&[usize], &[usize])> = classes
                .iter()
                .map(|class| (class.sizes, tensors(class.signature)[at].shape.as_slice()))
                .collect();
            dimensions(&shapes)
        };
        let inputs = (0..signature.inputs.len()).map(|at| dimensions_of(|of| &of.inputs, at)).collect();
        let outputs = (0..signature.outputs.len()).map(|at| dimensions_of(|of| &of.outputs, at)).collect();
        let mut slots: Vec<(&LoadedClass<'_>, ModelId)> =
            kept.iter().map(|&(at, id)| (&classes[at], id)).collect();
        // Not by their measured times, in which noise may put a class before one that it holds.
        slots.sort_by_key(|(class, _)| (class.sizes.iter().product::<usize>(), class.profile.latency(1)));
        Ok(SizeClasses {
            dimensions: variable.dimensions.iter().map(|of| of.dimension.clone()).collect(),
            inputs: filled(variable, &signature, inputs)?,
            outputs,
            classes: slots.into_iter().map(|(class, id)| (id, class.sizes.to_vec())).collect(),
        })
    }

    /// Returns the names of the variable dimensions.
    pub fn dimensions(&self) -> &[String] {
        &self.dimensions
    }

    /// Returns the inputs, in the signature's order.
    pub fn inputs(&self) -> &[SizedInput] {
        &self.inputs
    }

    /// Returns the dimensions of each output, in the signature's order.
    pub fn outputs(&self) -> &[Vec<TensorDimension>] {
        &self.outputs
    }

    /// Returns the sizes of the classes that are kept, the smallest first, each once.
    pub fn sizes(&self) -> impl Iterator<Item = &[usize]> {
        let is_first = |at: usize| self.classes[..at].iter().all(|(_, of)| *of != self.classes[at].1);
        let firsts = (0..self.classes.len()).filter(move |&at| is_first(at));
        firsts.map(|at| self.classes[at].1.as_slice())
    }

    /// Returns the slots of the classes that hold a request of these sizes, the smallest first.
    pub fn holding(&self, sizes: &[usize]) -> impl Iterator<Item = ModelId> {
        let holds = move |class: &[usize]| class.iter().zip(sizes).all(|(class, own)| own <= class);
        self.classes.iter().filter(move |(_, class)| holds(class)).map(|(id, _)| *id)
    }

    /// Returns the largest size of a dimension that is served.
    pub fn largest(&self, dimension: usize) -> usize {
        self.sizes().map(|sizes| sizes[dimension]).max().unwrap_or_default()
    }

    /// Returns the sizes of the class in this slot.
    pub fn of(&self, slot: ModelId) -> Option<&[usize]> {
        self.classes.iter().find(|(id, _)| *id == slot).map(|(_, sizes)| sizes.as_slice())
    }

    /// Returns the sizes of the class in this slot as text, like `sequence=128`.
    pub fn text(&self, slot: ModelId) -> String {
        let mut text = String::new();
        for (at, (name, size)) in self.dimensions.iter().zip(self.of(slot).into_iter().flatten()).enumerate()
        {
            // Writing to a string can't fail.
            let _ = write!(text, "{}{name}={size}", if at > 0 { "," } else { "" });
        }
        text
    }

    /// Returns a line for each output with a dimension that follows a request's sizes in no way
    /// that is known.
    pub(crate) fn notes(&self) -> Vec<String> {
        let unknown = |(output, dimensions): (usize, &Vec<TensorDimension>)| {
            let at = dimensions.iter().position(|of| *of == TensorDimension::OfClass)?;
            Some(format!(
                "dimension {} of output {} is that of the size class in each answer: it follows no input's \
                 by a whole divisor",
                at + 1,
                output + 1
            ))
        };
        self.outputs.iter().enumerate().filter_map(unknown).collect()
    }

    /// Returns the tensors of a request of these sizes, of which `class` are those of its class.
    pub fn own_tensors(&self, class: &Signature, sizes: &[usize]) -> Signature {
        let own = |spec: &TensorSpec, dimensions: &[TensorDimension]| {
            let shape = dimensions.iter().zip(&spec.shape).map(|(dimension, &of_class)| match *dimension {
                TensorDimension::Follows { dimension, divisor } => {
                    sizes[dimension].div_ceil(divisor).min(of_class)
                }
                TensorDimension::Fixed(_) | TensorDimension::OfClass => of_class,
            });
            TensorSpec { shape: shape.collect(), ..spec.clone() }
        };
        let inputs = class.inputs.iter().zip(&self.inputs).map(|(spec, of)| own(spec, &of.dimensions));
        let outputs = class.outputs.iter().zip(&self.outputs).map(|(spec, of)| own(spec, of));
        let (inputs, outputs) = (inputs.collect(), outputs.collect());
        Signature { inputs, outputs, ..*class }
    }
}

/// Returns the indices of the classes to keep. One is left out where batches of the next class that
/// holds it take so little longer, at every size, that padding costs no more than `max_waste` of
/// their time: its requests then make larger batches there.
pub(crate) fn kept_classes(classes: &[LoadedClass<'_>], max_waste: f64) -> Vec<usize> {
    let mut largest_first: Vec<usize> = (0..classes.len()).collect();
    largest_first.sort_by_key(|&at| std::cmp::Reverse(classes[at].sizes.iter().product::<usize>()));
    let mut kept: Vec<usize> = Vec::new();
    for at in largest_first {
        let joins = |&other: &usize| {
            let (own, other) = (&classes[at], &classes[other]);
            own.sizes.iter().zip(other.sizes).all(|(own, other)| own <= other)
                && waste(own.profile, other.profile) <= max_waste
        };
        // No waste at all is asked for where classes are kept apart in any case.
        if max_waste == 0.0 || !kept.iter().any(joins) {
            kept.push(at);
        }
    }
    kept.sort_unstable();
    kept
}

/// Returns the largest share of a batch's time, over all sizes of batches, that requests of a class
/// with the profile `own` waste in one of the profile `other`.
fn waste(own: &Profile, other: &Profile) -> f64 {
    let batches = 1..=own.max_batch().min(other.max_batch());
    let of = |batch| 1.0 - own.latency(batch).0 as f64 / other.latency(batch).0.max(1) as f64;
    batches.map(of).fold(0.0, f64::max)
}

/// Returns what each dimension of a tensor depends on, from the sizes and the shape of each class.
fn dimensions(classes: &[(&[usize], &[usize])]) -> Vec<TensorDimension> {
    let Some(&(sizes, shape)) = classes.first() else { return Vec::new() };
    let of = |at: usize| {
        if classes.iter().all(|(_, other)| other[at] == shape[at]) {
            return TensorDimension::Fixed(shape[at]);
        }
        let follows = |&dimension: &usize| {
            let divisor = sizes[dimension].checked_div(shape[at]).filter(|&divisor| divisor > 0)?;
            let is_so =
                |(sizes, shape): &(&[usize], &[usize])| sizes[dimension].div_ceil(divisor) == shape[at];
            classes.iter().all(is_so).then_some(TensorDimension::Follows { dimension, divisor })
        };
        (0..sizes.len()).find_map(|dimension| follows(&dimension)).unwrap_or(TensorDimension::OfClass)
    };
    (0..shape.len()).map(of).collect()
}

/// Returns the inputs with what fills them.
///
/// Errors: `padding` names no input, or one that can't be filled so.
fn filled(
    variable: &VariableDimensions,
    signature: &Signature,
    dimensions: Vec<Vec<TensorDimension>>,
) -> Result<Vec<SizedInput>, Diagnostic> {
    let wrong = |wrong: String, right: String| variable.padding_location.diagnostic(wrong, right);
    let names: Vec<&str> = signature.inputs.iter().map(|spec| spec.name.as_str()).collect();
    let mut inputs: Vec<SizedInput> = signature
        .inputs
        .iter()
        .zip(dimensions)
        .map(|(spec, dimensions)| SizedInput {
            dimensions,
            fill: InputFill::Element(vec![0; spec.datatype.size_bytes()]),
        })
        .collect();
    for InputPadding { input, with } in &variable.padding {
        let at = names.iter().position(|name| name == input).ok_or_else(|| {
            wrong(format!("the model has no input \"{input}\""), format!("its inputs are {names:?}"))
        })?;
        let datatype = signature.inputs[at].datatype;
        if inputs[at].dimensions.iter().all(|of| matches!(of, TensorDimension::Fixed(_))) {
            let what = format!("input \"{input}\" has no dimension with buckets");
            return Err(wrong(what, "leave it out: it is not padded".into()));
        }
        let element = |value: f64| {
            let what = format!("input \"{input}\" can't be padded with {value}");
            datatype
                .element(value)
                .ok_or_else(|| wrong(what, format!("give a value that its type, {datatype}, has")))
        };
        inputs[at].fill = match *with {
            PadWith::Value(value) => InputFill::Element(element(value)?),
            PadWith::Mask => InputFill::Mask(element(1.0)?),
        };
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Location;
    use symphony_gpu::DataType;
    use symphony_transport::Nanos;

    /// A profile of batches up to 8 that take `beta` and `alpha` a row, in microseconds.
    fn profile(alpha: u64, beta: u64) -> Profile {
        let latencies: Vec<Nanos> = (1..=8).map(|b| Nanos::from_micros(alpha * b + beta)).collect();
        Profile::measured(&latencies).unwrap()
    }

    fn tensor(name: &str, datatype: DataType, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
    }

    fn variable(padding: &[(&str, PadWith)]) -> VariableDimensions {
        let padding =
            padding.iter().map(|&(input, with)| InputPadding { input: input.into(), with }).collect();
        let padding_location = Location { file: "model.toml".into(), line: 3, field: "padding".into() };
        VariableDimensions { dimensions: Vec::new(), padding, max_waste: 0.1, padding_location }
    }

    /// The tensors of a model at a number of samples and of channels.
    fn signature(samples: usize, channels: usize) -> Signature {
        let inputs = vec![
            tensor("sound", DataType::Fp32, &[channels, samples]),
            tensor("loud", DataType::Uint8, &[samples]),
            tensor("speaker", DataType::Int64, &[4]),
        ];
        let outputs = vec![
            tensor("frames", DataType::Fp32, &[samples.div_ceil(16), 29]),
            tensor("odd", DataType::Fp32, &[samples * samples]),
        ];
        Signature::of_rows(inputs, outputs)
    }

    /// The classes of [`signature`] at 32, 64 samples and 1, 2 channels.
    fn classes(padding: &[(&str, PadWith)]) -> Result<SizeClasses, Diagnostic> {
        let sizes: Vec<[usize; 2]> = [[32, 1], [32, 2], [64, 1], [64, 2]].into();
        let signatures: Vec<Signature> = sizes.iter().map(|&[samples, of]| signature(samples, of)).collect();
        let profiles: Vec<Profile> =
            sizes.iter().map(|&[samples, of]| profile((samples * of) as u64, 10)).collect();
        let classes: Vec<LoadedClass<'_>> = sizes
            .iter()
            .zip(signatures.iter().zip(&profiles))
            .map(|(sizes, (signature, profile))| LoadedClass { sizes, signature, profile })
            .collect();
        let kept: Vec<(usize, ModelId)> = (0..4).map(|at| (at, ModelId(at as u32))).collect();
        let mut variable = variable(padding);
        variable.dimensions = ["samples", "channels"]
            .map(|name| crate::config::DimensionBuckets { dimension: name.into(), buckets: Vec::new() })
            .into();
        SizeClasses::new(&variable, &classes, &kept)
    }

    #[test]
    fn what_follows_which_dimension_is_seen_by_comparing_classes() {
        use TensorDimension::{Fixed, Follows, OfClass};
        let classes = classes(&[]).unwrap();
        let follows = |dimension, divisor| Follows { dimension, divisor };
        assert_eq!(classes.inputs()[0].dimensions, [follows(1, 1), follows(0, 1)]);
        assert_eq!(classes.inputs()[1].dimensions, [follows(0, 1)]);
        assert_eq!(classes.inputs()[2].dimensions, [Fixed(4)]);
        assert_eq!(classes.outputs(), [vec![follows(0, 16), Fixed(29)], vec![OfClass]]);
        let notes = classes.notes();
        assert!(notes.len() == 1 && notes[0].contains("dimension 1 of output 2"), "{notes:?}");
        let own = classes.own_tensors(&signature(64, 2), &[33, 2]);
        assert_eq!(
            (own.inputs[0].shape.as_slice(), own.outputs[0].shape.as_slice()),
            (&[2, 33][..], &[3, 29][..])
        );
        assert_eq!(own.outputs[1].shape, [64 * 64]);
    }

    #[test]
    fn classes_that_hold_a_request_come_in_the_order_of_their_sizes() {
        let classes = classes(&[]).unwrap();
        let holding = |sizes: &[usize]| classes.holding(sizes).map(|slot| slot.0).collect::<Vec<_>>();
        assert_eq!(holding(&[1, 1]), [0, 1, 2, 3]);
        assert_eq!(holding(&[32, 2]), [1, 3]);
        assert_eq!(holding(&[33, 1]), [2, 3]);
        assert_eq!(holding(&[33, 2]), [3]);
        assert_eq!(holding(&[65, 1]), Vec::<u32>::new());
        assert_eq!((classes.largest(0), classes.largest(1)), (64, 2));
        assert_eq!(classes.text(ModelId(2)), "samples=64,channels=1");
    }

    #[test]
    fn an_input_is_filled_with_a_value_of_its_type() {
        let fill = |input: &str, with| classes(&[(input, with)]).map(|of| of.inputs()[1].fill.clone());
        assert_eq!(fill("loud", PadWith::Value(7.0)).unwrap(), InputFill::Element(vec![7]));
        assert_eq!(fill("loud", PadWith::Mask).unwrap(), InputFill::Mask(vec![1]));
        for (input, with, said) in [
            (
                "loud",
                PadWith::Value(256.0),
                "can't be padded with 256; give a value that its type, UINT8, has",
            ),
            ("loud", PadWith::Value(0.5), "can't be padded with 0.5"),
            (
                "noise",
                PadWith::Mask,
                "has no input \"noise\"; its inputs are [\"sound\", \"loud\", \"speaker\"]",
            ),
            ("speaker", PadWith::Mask, "has no dimension with buckets"),
        ] {
            let error = fill(input, with).unwrap_err().to_string();
            assert!(error.starts_with("model.toml:3: padding: ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_class_is_kept_where_padding_to_the_next_wastes_more_than_is_allowed() {
        let of = |alpha: &[u64], max_waste: f64| {
            let profiles: Vec<Profile> = alpha.iter().map(|&alpha| profile(alpha, 900)).collect();
            let sizes: Vec<[usize; 1]> = (1..=alpha.len()).map(|size| [size]).collect();
            let signature = Signature::default();
            let class = |(sizes, profile)| LoadedClass { sizes, signature: &signature, profile };
            let classes: Vec<LoadedClass<'_>> =
                sizes.iter().map(|sizes| sizes.as_slice()).zip(&profiles).map(class).collect();
            kept_classes(&classes, max_waste)
        };
        // A batch of 8 takes 980, 1060, 1220 and 1700 us.
        let alpha = [10, 20, 40, 100];
        assert_eq!(of(&alpha, 0.0), [0, 1, 2, 3]);
        assert_eq!(of(&alpha, 0.1), [1, 2, 3], "the first wastes 0.075 in the second");
        assert_eq!(of(&alpha, 0.2), [2, 3], "the first wastes 0.197 in the third");
        assert_eq!(of(&alpha, 1.0), [3], "all are padded to the largest");
    }
}
