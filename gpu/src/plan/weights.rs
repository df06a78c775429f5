//! Constants of an ONNX file as tensors, with data in the file or beside it; and the blob in which
//! those that a plan reads lie.

use super::element::{AlignedBytes, ConstantTensor, PlanElement, PlanType};
use super::program::aligned;
use rten_onnx::onnx::{DataLocation, TensorProto};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// Reads a tensor whose data is in the file itself.
///
/// Errors: it is elsewhere, its elements are of a type that plans lack, or they are not as many as
/// its shape says.
pub(super) fn read_within(tensor: &TensorProto) -> Result<ConstantTensor, String> {
    if tensor.data_location == Some(DataLocation::EXTERNAL) {
        return Err(format!("{}: its data is in another file", describe(tensor)));
    }
    let of = type_of(tensor)?;
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    let copied = |bytes: &[u8]| AlignedBytes::copied(bytes);
    let data = match (&raw, of.element) {
        (Some(raw), _) => copied(raw),
        (None, PlanElement::F32) => copied(bytemuck::cast_slice(&tensor.float_data)),
        (None, PlanElement::I64) => copied(bytemuck::cast_slice(&tensor.int64_data)),
        (None, PlanElement::I32) => copied(bytemuck::cast_slice(&tensor.int32_data)),
        // `of_onnx` gives no halves.
        (None, PlanElement::F16 | PlanElement::Bf16) => {
            return Err(format!("{} has halves", describe(tensor)));
        }
        (None, PlanElement::Bool) => {
            copied(&tensor.int32_data.iter().map(|&x| u8::from(x != 0)).collect::<Vec<u8>>())
        }
    };
    checked(tensor, of, data)
}

/// Reads a tensor whose data may be in another file of `folder`, which was checked to lie there.
///
/// Errors: those of [`read_within`]; the file can't be read or is too short.
pub(super) fn read(tensor: &TensorProto, folder: &Path) -> Result<ConstantTensor, String> {
    if tensor.data_location != Some(DataLocation::EXTERNAL) {
        return read_within(tensor);
    }
    let of = type_of(tensor)?;
    let entry = |key: &str| {
        let mut entries = tensor.external_data.iter().filter(|entry| entry.key.as_deref() == Some(key));
        entries.next().and_then(|entry| entry.value.as_deref())
    };
    let location = entry("location").ok_or_else(|| format!("{}: its data has no file", describe(tensor)))?;
    let offset: u64 = entry("offset").and_then(|offset| offset.parse().ok()).unwrap_or(0);
    let bytes = of.bytes().ok_or_else(|| format!("{} is too large", describe(tensor)))?;
    let mut data = AlignedBytes::zeroed(bytes);
    read_exactly(&folder.join(location), offset, data.as_bytes_mut())
        .map_err(|error| format!("{}: {location}: {error}", describe(tensor)))?;
    checked(tensor, of, data)
}

fn read_exactly(path: &Path, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

fn describe(tensor: &TensorProto) -> String {
    format!("the constant `{}`", tensor.name.as_deref().unwrap_or_default())
}

fn type_of(tensor: &TensorProto) -> Result<PlanType, String> {
    let datatype = tensor.data_type.unwrap_or(rten_onnx::onnx::DataType(0));
    let element = PlanElement::of_onnx(datatype)
        .ok_or_else(|| format!("{} has elements of type {datatype}", describe(tensor)))?;
    let shape = tensor.dims.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| format!("{} has the shape {:?}", describe(tensor), tensor.dims))?;
    Ok(PlanType::new(element, shape))
}

fn checked(tensor: &TensorProto, of: PlanType, data: AlignedBytes) -> Result<ConstantTensor, String> {
    let found = data.as_bytes().len();
    if of.bytes() != Some(found) {
        return Err(format!("{} is {of} and has {found} bytes", describe(tensor)));
    }
    Ok(ConstantTensor { of, data: Arc::new(data) })
}

/// The blob of a plan's weights as it grows: each constant lies in it once.
#[derive(Default)]
pub(super) struct WeightsBlob {
    bytes: Vec<u8>,
    /// The places of constants by their address. They are kept, so that no other has it.
    by_address: HashMap<usize, (Arc<AlignedBytes>, usize)>,
    /// The ranges in the blob by a hash of what they hold.
    by_content: HashMap<u64, Vec<std::ops::Range<usize>>>,
}

impl WeightsBlob {
    /// Returns the place of a constant, and takes it in if it is new.
    pub(super) fn place(&mut self, data: &Arc<AlignedBytes>) -> usize {
        let address = Arc::as_ptr(data).addr();
        if let Some((_, place)) = self.by_address.get(&address) {
            return *place;
        }
        let content = data.as_bytes();
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let alike = self.by_content.entry(hasher.finish()).or_default();
        let found = alike.iter().find(|range| self.bytes[(*range).clone()] == *content);
        let place = found.map(|range| range.start).unwrap_or_else(|| {
            let place = aligned(self.bytes.len());
            self.bytes.resize(place, 0);
            self.bytes.extend_from_slice(content);
            alike.push(place..self.bytes.len());
            place
        });
        self.by_address.insert(address, (Arc::clone(data), place));
        place
    }

    /// Returns the blob.
    pub(super) fn finish(self) -> AlignedBytes {
        AlignedBytes::copied(&self.bytes)
    }
}
