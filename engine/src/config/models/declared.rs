//! The tensors that Triton's `config.pbtxt` declares of a model. They are checked against the model
//! once it is loaded.

use crate::config::diagnostics::{Diagnostic, Location};
use symphony_gpu::{DataType, Signature, TensorSpec};

/// A tensor that a `config.pbtxt` declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredTensor {
    pub(in crate::config) location: Location,
    pub(in crate::config) name: String,
    pub(in crate::config) datatype: DataType,
    /// The shape of one request's tensor; -1 is any size.
    pub(in crate::config) dims: Vec<i64>,
    /// True if `dims` have the batch in front where there is one: `max_batch_size` is 0.
    pub(in crate::config) is_whole: bool,
    /// True if a client may leave the tensor out.
    pub(in crate::config) is_optional: bool,
}

impl DeclaredTensor {
    /// Returns the tensor's specification.
    ///
    /// Errors: a size is not fixed, or there is no batch in front.
    pub(in crate::config) fn spec(&self) -> Result<TensorSpec, Diagnostic> {
        let row = self.row(true).ok_or_else(|| {
            let right = "with max_batch_size 0 the first of them is the batch: -1 or 1";
            self.location.diagnostic(format!("has dims {:?}", self.dims), right)
        })?;
        let sizes = row.iter().map(|&dim| usize::try_from(dim).ok().filter(|&size| size > 0));
        let shape: Option<Vec<usize>> = sizes.collect();
        let shape = shape.ok_or_else(|| {
            let wrong = format!("{:?} has a size that is not fixed", self.dims);
            self.location.diagnostic(wrong, "an emulated model has no file that says it: give every size")
        })?;
        Ok(TensorSpec { name: self.name.clone(), datatype: self.datatype, shape })
    }

    /// Returns the dims of a row of a model that has a batch or not; `None` if the first of them is
    /// not a batch.
    fn row(&self, has_batch: bool) -> Option<&[i64]> {
        match (self.is_whole && has_batch, &self.dims[..]) {
            (false, all) => Some(all),
            (true, [-1 | 1, row @ ..]) => Some(row),
            (true, _) => None,
        }
    }

    /// Checks that `specs`, the model's tensors, have this one.
    fn check(&self, role: &str, specs: &[TensorSpec], has_batch: bool) -> Result<(), Diagnostic> {
        let Some(spec) = specs.iter().find(|spec| spec.name == self.name) else {
            let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            let wrong = format!("the model has no {role} \"{}\"", self.name);
            return Err(self.location.diagnostic(wrong, format!("its {role}s are {names:?}")));
        };
        // How long its elements may be no `config.pbtxt` says.
        if spec.datatype.name() != self.datatype.name() {
            let wrong = format!("{role} \"{}\" is not of type TYPE_{}", self.name, self.datatype);
            return Err(self.location.diagnostic(wrong, format!("the model says TYPE_{}", spec.datatype)));
        }
        let fits = |(&dim, &size): (&i64, &usize)| dim == -1 || dim == size as i64;
        let is_row = |row: &[i64]| row.len() == spec.shape.len() && row.iter().zip(&spec.shape).all(fits);
        // Without a batch a single element may be said to be a list of one.
        let is_single = !has_batch && spec.shape.is_empty() && self.dims == [1];
        if !(is_single || self.row(has_batch).is_some_and(is_row)) {
            let wrong = format!("{role} \"{}\" has not the dims {:?}", self.name, self.dims);
            let right = match (has_batch, self.is_whole) {
                (true, false) => format!("the model says {:?} for one request", spec.shape),
                (true, true) => format!("the model says {:?} behind its batch, -1 or 1", spec.shape),
                (false, _) => {
                    format!("the model says {:?}, and has no batch: max_batch_size is 0", spec.shape)
                }
            };
            return Err(self.location.diagnostic(wrong, right));
        }
        Ok(())
    }
}

/// The tensors that a `config.pbtxt` declares; none where there is no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredTensors {
    pub(in crate::config) inputs: Vec<DeclaredTensor>,
    pub(in crate::config) outputs: Vec<DeclaredTensor>,
}

impl DeclaredTensors {
    /// Returns a diagnostic for each declared tensor that differs from those of the model.
    pub(in crate::config) fn check(&self, signature: &Signature) -> Vec<Diagnostic> {
        let Signature { inputs, outputs, has_batch, .. } = signature;
        let inputs = self.inputs.iter().map(|tensor| tensor.check("input", inputs, *has_batch));
        let outputs = self.outputs.iter().map(|tensor| tensor.check("output", outputs, *has_batch));
        inputs.chain(outputs).filter_map(Result::err).collect()
    }

    /// Returns a diagnostic for each input that a client may leave out and that `is_filled` says
    /// nothing would fill.
    pub(in crate::config) fn check_optional(&self, is_filled: impl Fn(&str) -> bool) -> Vec<Diagnostic> {
        let unfilled = self.inputs.iter().filter(|input| input.is_optional && !is_filled(&input.name));
        let diagnostic = |input: &DeclaredTensor| {
            let wrong = format!("input \"{}\" is optional and has no value where it is left out", input.name);
            let right = format!("add defaults = [{{ input = \"{}\", value = 0 }}] to model.toml", input.name);
            input.location.diagnostic(wrong, right)
        };
        unfilled.map(diagnostic).collect()
    }
}
