//! The values of inputs that a client may leave out, and the rows on which a model is tried and
//! measured when it is loaded.

use crate::host::LoadError;
use crate::signature::Signature;
use std::collections::BTreeMap;
use std::path::Path;

/// The value of all elements of an input that a client may leave out, by the input's name. Runs at
/// the load use it too, where inputs without one are zeros or random.
pub type InputDefaults = BTreeMap<String, f64>;

/// Returns a row of inputs in which those with a default have it, and others are zero.
///
/// Errors: there is no such input, or its type has no such value.
pub(crate) fn trial_row(
    defaults: &InputDefaults,
    signature: &Signature,
    path: &Path,
) -> Result<Vec<u8>, LoadError> {
    for (input, &value) in defaults {
        let spec = signature.inputs.iter().find(|spec| spec.name == *input);
        let spec = spec.ok_or_else(|| LoadError::NoInput {
            path: path.into(),
            input: input.clone(),
            known: signature.inputs.iter().map(|spec| spec.name.clone()).collect(),
        })?;
        let datatype = spec.datatype;
        if datatype.element(value).is_none() {
            return Err(LoadError::Default { path: path.into(), input: input.clone(), value, datatype });
        }
    }
    let mut row = vec![0; signature.input_bytes()];
    put_defaults(defaults, signature, &mut row);
    Ok(row)
}

/// Writes the defaults into a row of inputs.
pub fn put_defaults(defaults: &InputDefaults, signature: &Signature, row: &mut [u8]) {
    for (at, spec) in signature.inputs.iter().enumerate() {
        let value = defaults.get(&spec.name);
        if let Some(element) = value.and_then(|&value| spec.datatype.element(value)) {
            let elements = row[signature.input_range(at)].chunks_exact_mut(element.len());
            elements.for_each(|to| to.copy_from_slice(&element));
        }
    }
}
