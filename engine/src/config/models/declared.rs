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
    /// The shape of one request's tensor, without the batch; -1 is any size.
    pub(in crate::config) dims: Vec<i64>,
}

impl DeclaredTensor {
    /// Returns the tensor's specification.
    ///
    /// Errors: a size is not fixed.
    pub(in crate::config) fn spec(&self) -> Result<TensorSpec, Diagnostic> {
        let sizes = self.dims.iter().map(|&dim| usize::try_from(dim).ok().filter(|&size| size > 0));
        let shape: Option<Vec<usize>> = sizes.collect();
        let shape = shape.ok_or_else(|| {
            let wrong = format!("{:?} has a size that is not fixed", self.dims);
            self.location.diagnostic(wrong, "an emulated model has no file that says it: give every size")
        })?;
        Ok(TensorSpec { name: self.name.clone(), datatype: self.datatype, shape })
    }

    /// Checks that `specs`, the model's tensors, have this one.
    fn check(&self, role: &str, specs: &[TensorSpec]) -> Result<(), Diagnostic> {
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
        if self.dims.len() != spec.shape.len() || !self.dims.iter().zip(&spec.shape).all(fits) {
            let wrong = format!("{role} \"{}\" has not the dims {:?}", self.name, self.dims);
            let right = format!("the model says {:?} for one request", spec.shape);
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
    pub fn check(&self, signature: &Signature) -> Vec<Diagnostic> {
        let inputs = self.inputs.iter().map(|tensor| tensor.check("input", &signature.inputs));
        let outputs = self.outputs.iter().map(|tensor| tensor.check("output", &signature.outputs));
        inputs.chain(outputs).filter_map(Result::err).collect()
    }
}
