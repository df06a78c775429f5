//! The lists `inputs` and `outputs` of an emulated model.

use crate::config::toml_reader::{TomlTable, TomlValue, read_each};
use symphony_gpu::{DataType, TensorSpec};
use symphony_scheduler::limits;

/// The most inputs, and the most outputs, of an emulated model.
const MAX_TENSORS: usize = 64;

/// The most bytes of one element of BYTES.
pub(super) const MAX_ELEMENT_BYTES: usize = 1 << 20;

/// The most bytes of an emulated model's inputs and outputs per request: a frontend's slab has room
/// for 16 such rows.
pub(super) const MAX_ROW_BYTES: usize = limits::MAX_ROW_BYTES;

/// Reads the tensors of an emulated model; the default is one of four FP32 values.
pub(super) fn read_tensors(
    table: &TomlTable<'_>,
    field: &'static str,
    default: &str,
) -> Option<Vec<TensorSpec>> {
    let Some(value) = table.optional(field) else {
        return Some(vec![TensorSpec { name: default.into(), datatype: DataType::Fp32, shape: vec![4] }]);
    };
    const RIGHT: &str = "it must be a list, like [{ name = \"x\", datatype = \"FP32\", shape = [4] }]";
    let items = value.items(RIGHT)?;
    if items.is_empty() || items.len() > MAX_TENSORS {
        value.report(format!("has {} tensors", items.len()), format!("give 1 to {MAX_TENSORS}"));
        return None;
    }
    let tensors = read_each(&items, |item| item.table(read_tensor))?;
    for (at, tensor) in tensors.iter().enumerate() {
        if tensors[..at].iter().any(|before| before.name == tensor.name) {
            value.report(format!("has two tensors named \"{}\"", tensor.name), "give each a name of its own");
            return None;
        }
    }
    Some(tensors)
}

fn read_tensor(table: &TomlTable<'_>) -> Option<TensorSpec> {
    let name = table.required("name", "the tensor's name").and_then(|v| v.text("the tensor's name"));
    let datatype = read_datatype(table);
    let shape = table.required("shape", "the shape of one request's tensor, like [3, 32, 32]");
    let shape = shape.and_then(|v| read_shape(&v, datatype?));
    Some(TensorSpec { name: name?.into(), datatype: datatype?, shape: shape? })
}

/// Reads the type of a tensor's elements; BYTES needs the largest size of an element, since memory
/// is reserved for it.
fn read_datatype(table: &TomlTable<'_>) -> Option<DataType> {
    const RIGHT: &str = "the most bytes that an element of BYTES may have, like 256";
    let names: Vec<&str> = DataType::ALL.iter().map(|t| t.name()).chain(["BYTES"]).collect();
    let name = table.required("datatype", "the type of its elements, like \"FP32\"");
    let name = name.and_then(|v| v.word(&names));
    let most = table.optional("max_bytes");
    match (name?, most) {
        ("BYTES", Some(most)) => most.count(1..=MAX_ELEMENT_BYTES).map(|most| DataType::Bytes(most as u32)),
        ("BYTES", None) => {
            table.report("max_bytes", "is missing", format!("add {RIGHT}"));
            None
        }
        (name, None) => DataType::parse(name),
        (name, Some(_)) => {
            let wrong = format!("is given for elements of {name}, which have one size");
            table.report("max_bytes", wrong, format!("leave it out: it is {RIGHT}"));
            None
        }
    }
}

fn read_shape(value: &TomlValue<'_>, datatype: DataType) -> Option<Vec<usize>> {
    let items = value.items("it must be a list of sizes without the batch's, like [3, 32, 32]")?;
    let shape = read_each(&items, |item| item.count(1..=MAX_ROW_BYTES))?;
    let tensor = TensorSpec { name: String::new(), datatype, shape };
    if tensor.bytes() > MAX_ROW_BYTES {
        value.report("is of too large a tensor", format!("at most {MAX_ROW_BYTES} bytes fit"));
        return None;
    }
    Some(tensor.shape)
}
