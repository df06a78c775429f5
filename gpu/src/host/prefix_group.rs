//! Models that share their first layers, run as one (Nexus, section 6.3): these layers over all
//! rows of a batch, then the own layers of each model over the rows that are for it. Each model is
//! a *variant*; a row's inputs end with the number of its own ([`Signature::has_variant`]).
//!
//! Rows of a variant lie one behind another, so its layers read their part of the shared ones'
//! outputs where these are: nothing is copied between the two. A library's models take part by the
//! trait [`SplitModel`].

use super::{ComputeThread, HostGraph, HostModel, LoadError, RunError};
use crate::import::{
    InputDefaults, OnnxSource, ROWS, RowAlone, SharedBatchFile, SharedPrefix, SizedFile, SplitError,
    SplitFiles, compare_mixed, rows_alone,
};
use crate::signature::{Signature, TensorSpec};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The runs of each variant's own layers by which the slowest is found.
const RANKING_RUNS: usize = 3;

/// The rows of these runs.
const RANKING_ROWS: usize = 8;

/// A model of a library that can be a part of a group: the shared layers, or a model's own ones.
pub trait SplitModel: HostModel + Sized {
    /// Makes it the shared layers of a group, whose outputs are read where they are.
    fn become_prefix(&mut self);

    /// Makes it the own layers of a model, whose inputs are the outputs of the shared ones.
    fn become_suffix(&mut self);

    /// Runs the first `rows` rows that were staged, and keeps the outputs.
    ///
    /// # Errors
    /// Those of [`HostModel::run`].
    fn run_prefix(&mut self, rows: usize) -> Result<(), RunError>;

    /// Runs the rows `rows` of the outputs that `prefix` keeps: each input is the output of the
    /// index in its place in `sources`.
    ///
    /// # Errors
    /// Those of [`HostModel::run`].
    fn run_suffix(&mut self, prefix: &Self, sources: &[usize], rows: Range<usize>) -> Result<(), RunError>;

    /// Gives up the outputs that it keeps.
    fn forget_outputs(&mut self);
}

/// An error that keeps models from being run as one.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct GroupError {
    /// The index of the model's file at which it shows.
    pub at: usize,
    /// The error.
    #[source]
    pub error: LoadError,
}

impl From<SplitError> for GroupError {
    fn from(SplitError { at, error }: SplitError) -> GroupError {
        GroupError { at, error }
    }
}

/// Models that share their first layers, run as one. See the module's description.
///
/// [`HostModel::signature`] has the outputs of the variant whose row of outputs is the largest;
/// [`PrefixGroup::variants`] has those of each.
pub struct PrefixGroup<M> {
    facts: Arc<GroupFacts>,
    prefix: M,
    suffixes: Vec<M>,
    batch: Arrangement,
}

/// What is fixed for a group.
struct GroupFacts {
    signature: Signature,
    variants: Vec<Signature>,
    /// The outputs, for each variant, of the shared layers that are its own layers' inputs.
    sources: Vec<Vec<usize>>,
    max_batch: usize,
    defaults: InputDefaults,
    shared: SharedPrefix,
    /// The variants, the one whose own layers take longest first.
    slowest_first: Vec<u32>,
}

/// The places of a batch's rows: those of a variant lie one behind another.
#[derive(Default)]
struct Arrangement {
    /// The variant of each row, and its place.
    rows: Vec<(u32, usize)>,
    /// The places of each variant's rows.
    ranges: Vec<Range<usize>>,
}

impl Arrangement {
    /// Arranges rows for these variants, of which there are `count`. One that there is not has no
    /// range.
    fn arrange(&mut self, variants: &[u32], count: usize) {
        let of = |variant: u32| variants.iter().filter(move |&&of| of == variant).count();
        let mut end = 0;
        self.ranges.clear();
        self.ranges.extend((0..count as u32).map(|variant| {
            let start = end;
            end += of(variant);
            start..end
        }));
        let mut next: Vec<usize> = self.ranges.iter().map(|range| range.start).collect();
        self.rows.clear();
        self.rows.extend(variants.iter().map(|&variant| {
            // Rows for no variant come last, so that those of the others keep their places.
            let place = next.get_mut(variant as usize).unwrap_or(&mut end);
            *place += 1;
            (variant, *place - 1)
        }));
    }

    /// Returns the rows of the last variant but this, if they are not for one that there is.
    fn wrong(&self) -> Option<u32> {
        self.rows.iter().map(|(variant, _)| *variant).find(|&variant| variant as usize >= self.ranges.len())
    }
}

impl<M: SplitModel> PrefixGroup<M> {
    /// Loads the models in `files` for batches of at most `max_batch` rows, by `load`, which loads
    /// what it is given of a file for batches of at most so many rows.
    ///
    /// Random rows in mixed batches are compared with what the whole files give for each alone.
    pub(crate) fn load(
        files: &[SizedFile<'_>],
        max_batch: usize,
        load: &dyn Fn(&SizedFile<'_>, OnnxSource, usize) -> Result<M, LoadError>,
    ) -> Result<PrefixGroup<M>, GroupError> {
        let (mut sources, mut rows, mut variants) = (Vec::new(), Vec::new(), Vec::<Signature>::new());
        for (at, file) in files.iter().enumerate() {
            let at_own = |error| GroupError { at, error };
            let SharedBatchFile { batched, alone } =
                SharedBatchFile::read(*file, max_batch).map_err(at_own)?;
            let mut alone = load(file, alone, 1).map_err(at_own)?;
            let signature = Signature { has_variant: true, ..alone.signature().clone() };
            if let Some(first) = variants.first() {
                check_inputs(file, &signature, &files[0], first).map_err(at_own)?;
            }
            rows.push(rows_alone(file, &mut alone, ROWS).map_err(|why| at_own(failed(file, why)))?);
            variants.push(signature);
            sources.push(batched);
        }
        let split = SplitFiles::new(sources)?;
        let at_first = |error| GroupError { at: 0, error };
        let Some(first) = files.first() else {
            return Err(at_first(LoadError::Panicked { path: "".into() }));
        };
        let mut prefix = load(first, split.prefix()?, max_batch).map_err(at_first)?;
        let tensors = prefix.signature().outputs.clone();
        prefix.become_prefix();
        let (mut suffixes, mut sources) = (Vec::new(), Vec::new());
        for (at, file) in files.iter().enumerate() {
            let (part, own) = split.suffix(at, &tensors)?;
            // The defaults are those of the whole model's inputs.
            let defaults = InputDefaults::new();
            let file = SizedFile { defaults: &defaults, ..*file };
            let mut suffix = load(&file, part, max_batch).map_err(|error| GroupError { at, error })?;
            suffix.become_suffix();
            suffixes.push(suffix);
            sources.push(own);
        }
        let largest = variants.iter().max_by_key(|of| of.output_bytes()).cloned().unwrap_or_default();
        let facts = GroupFacts {
            signature: Signature { inputs: variants[0].inputs.clone(), ..largest },
            slowest_first: (0..variants.len() as u32).collect(),
            variants,
            sources,
            max_batch,
            defaults: first.defaults.clone(),
            shared: split.shared,
        };
        let group = PrefixGroup { facts: Arc::new(facts), prefix, suffixes, batch: Arrangement::default() };
        group.checked(files, &rows)
    }

    /// Compares the group with its models alone, and finds which of them take longest.
    fn checked(
        mut self,
        files: &[SizedFile<'_>],
        rows: &[Vec<RowAlone>],
    ) -> Result<PrefixGroup<M>, GroupError> {
        let facts = Arc::clone(&self.facts);
        compare_mixed(&mut self, &facts.variants, rows)
            .map_err(|(at, how)| GroupError { at, error: failed(&files[at], how) })?;
        drop(facts);
        let rows = self.facts.max_batch.min(RANKING_ROWS);
        let times = (0..self.facts.variants.len() as u32).map(|variant| self.time_of(variant, rows));
        let times: Vec<Duration> = times
            .enumerate()
            .map(|(at, time)| {
                time.map_err(|error| GroupError { at, error: failed(&files[at], error.to_string()) })
            })
            .collect::<Result<_, _>>()?;
        if let Some(facts) = Arc::get_mut(&mut self.facts) {
            facts.slowest_first.sort_by_key(|&variant| std::cmp::Reverse(times[variant as usize]));
        }
        Ok(self)
    }

    /// Returns the least time that a variant's own layers took for `rows` rows, of some runs.
    fn time_of(&mut self, variant: u32, rows: usize) -> Result<Duration, RunError> {
        self.arrange(&vec![variant; rows]);
        let input = vec![0; self.facts.signature.input_bytes()];
        (0..rows).for_each(|row| self.stage(row, &input));
        self.prefix.run_prefix(rows)?;
        let mut least = Duration::MAX;
        for _ in 0..RANKING_RUNS {
            let start = Instant::now();
            self.run_own(variant as usize)?;
            least = least.min(start.elapsed());
        }
        Ok(least)
    }

    /// Runs the own layers of a variant on its rows.
    fn run_own(&mut self, variant: usize) -> Result<(), RunError> {
        let rows = self.batch.ranges[variant].clone();
        self.suffixes[variant].run_suffix(&self.prefix, &self.facts.sources[variant], rows)
    }
}

impl<M> PrefixGroup<M> {
    /// Returns the inputs and outputs of each model, in the order of the files.
    pub fn variants(&self) -> &[Signature] {
        &self.facts.variants
    }

    /// Returns what the models share.
    pub fn shared(&self) -> &SharedPrefix {
        &self.facts.shared
    }
}

fn failed(file: &SizedFile<'_>, reason: String) -> LoadError {
    LoadError::NoSharedBatch { path: file.path.into(), reason }
}

/// Checks that a model has the inputs of the first.
fn check_inputs(
    file: &SizedFile<'_>,
    own: &Signature,
    with: &SizedFile<'_>,
    first: &Signature,
) -> Result<(), LoadError> {
    if own.inputs == first.inputs {
        return Ok(());
    }
    let text = |inputs: &[TensorSpec]| {
        let input = |spec: &TensorSpec| format!("`{}` {} {:?}", spec.name, spec.datatype, spec.shape);
        inputs.iter().map(input).collect::<Vec<_>>().join(", ")
    };
    Err(LoadError::OtherInputs {
        path: file.path.into(),
        with: with.path.into(),
        own: text(&own.inputs),
        others: text(&first.inputs),
    })
}

impl<M: SplitModel> HostModel for PrefixGroup<M> {
    fn signature(&self) -> &Signature {
        &self.facts.signature
    }

    fn max_batch(&self) -> usize {
        self.facts.max_batch
    }

    /// Returns the bytes of the parts: what is shared counts once.
    fn weights_bytes(&self) -> u64 {
        self.parts().map(HostModel::weights_bytes).sum()
    }

    fn memory_bytes(&self) -> u64 {
        self.parts().map(HostModel::memory_bytes).sum()
    }

    fn compute_on(&mut self, thread: &ComputeThread) {
        self.prefix.compute_on(thread);
        self.suffixes.iter_mut().for_each(|suffix| suffix.compute_on(thread));
    }

    fn arrange(&mut self, variants: &[u32]) {
        self.batch.arrange(variants, self.suffixes.len());
    }

    /// Copies a row's inputs to its place.
    ///
    /// # Panics
    /// As for any model, and if the last [`HostModel::arrange`] had no such row.
    fn stage(&mut self, row: usize, input: &[u8]) {
        self.prefix.stage(self.batch.rows[row].1, input);
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        if rows == 0 || rows > self.facts.max_batch {
            return Err(RunError::Rows { rows, max_batch: self.facts.max_batch });
        }
        if rows != self.batch.rows.len() || self.batch.wrong().is_some() {
            let (known, count) = (self.batch.rows.len(), self.suffixes.len());
            let reason = format!("the variants of {known} of {rows} rows are known, each below {count}");
            return Err(RunError::Failed { reason });
        }
        self.prefix.run_prefix(rows)?;
        for variant in 0..self.suffixes.len() {
            if !self.batch.ranges[variant].is_empty() {
                self.run_own(variant)?;
            }
        }
        self.prefix.forget_outputs();
        Ok(())
    }

    fn slowest_variant(&self, row: usize) -> u32 {
        let slowest_first = &self.facts.slowest_first;
        slowest_first.get(row).or(slowest_first.first()).copied().unwrap_or(0)
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        let (variant, place) = self.batch.rows[row];
        let start = self.batch.ranges[variant as usize].start;
        self.suffixes[variant as usize].unstage(place - start, output);
    }

    fn defaults(&self) -> &InputDefaults {
        &self.facts.defaults
    }

    fn graph(&self) -> Arc<dyn HostGraph> {
        let parts = self.parts().map(HostModel::graph).collect();
        Arc::new(GroupGraph { facts: Arc::clone(&self.facts), parts, of: PhantomData::<fn() -> M> })
    }
}

impl<M> PrefixGroup<M> {
    /// Iterates over the shared layers and each model's own.
    fn parts(&self) -> impl Iterator<Item = &M> {
        std::iter::once(&self.prefix).chain(&self.suffixes)
    }
}

/// The graphs of a group's parts.
struct GroupGraph<M> {
    facts: Arc<GroupFacts>,
    /// The shared layers, and then each variant's own.
    parts: Vec<Arc<dyn HostGraph>>,
    of: PhantomData<fn() -> M>,
}

impl<M: SplitModel> HostGraph for GroupGraph<M> {
    fn make(self: Arc<GroupGraph<M>>, thread: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        let make = |part: &Arc<dyn HostGraph>| {
            let made: Box<dyn Any> = Arc::clone(part).make(thread)?;
            made.downcast::<M>().map(|part| *part).map_err(|_| RunError::Panicked)
        };
        let mut parts = self.parts.iter().map(make).collect::<Result<Vec<M>, _>>()?.into_iter();
        let mut prefix = parts.next().ok_or(RunError::Panicked)?;
        prefix.become_prefix();
        let mut suffixes: Vec<M> = parts.collect();
        suffixes.iter_mut().for_each(SplitModel::become_suffix);
        let (facts, batch) = (Arc::clone(&self.facts), Arrangement::default());
        Ok(Box::new(PrefixGroup { facts, prefix, suffixes, batch }))
    }

    fn interrupt(&self) {
        self.parts.iter().for_each(|part| part.interrupt());
    }
}
