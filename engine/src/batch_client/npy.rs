//! The header of a .npy file: the type, the shape and the place of an array's elements. Elements
//! are raw little-endian bytes, as slab slots and binary tensors have them, so nothing is
//! converted.

use std::io::{self, Read, Write};
use symphony_gpu::DataType;

/// The first bytes of a .npy file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// numpy aligns the first element to this many bytes.
const ALIGNMENT: usize = 64;

/// The longest header that is read, in bytes: far more than a type and a shape take.
const LONGEST_HEADER: usize = 64 << 10;

/// The types of numpy that are read and written, with those of tensors.
const TYPES: [(&str, DataType); 12] = [
    ("|b1", DataType::Bool),
    ("|u1", DataType::Uint8),
    ("<u2", DataType::Uint16),
    ("<u4", DataType::Uint32),
    ("<u8", DataType::Uint64),
    ("|i1", DataType::Int8),
    ("<i2", DataType::Int16),
    ("<i4", DataType::Int32),
    ("<i8", DataType::Int64),
    ("<f2", DataType::Fp16),
    ("<f4", DataType::Fp32),
    ("<f8", DataType::Fp64),
];

/// Returns numpy's name of a type, such as `<f4`; `None` where numpy has no such type.
pub(super) fn numpy_type(datatype: DataType) -> Option<&'static str> {
    TYPES.iter().find(|(_, of)| *of == datatype).map(|(name, _)| *name)
}

/// The header of a .npy file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NpyHeader {
    /// The type of the elements.
    pub(super) datatype: DataType,
    /// The shape, the rows first.
    pub(super) shape: Vec<usize>,
    /// The offset of the first element from the beginning of the file, in bytes.
    pub(super) data_at: u64,
}

impl NpyHeader {
    /// Reads the header at the beginning of `file`.
    ///
    /// Errors: what is wrong and what would be right.
    pub(super) fn read(mut file: impl Read) -> Result<NpyHeader, String> {
        let mut start = [0; 8];
        let cut_off = |error: io::Error| format!("is no whole .npy file ({error})");
        file.read_exact(&mut start).map_err(cut_off)?;
        if !start.starts_with(MAGIC) {
            return Err("is no .npy file; write it with numpy.save".to_owned());
        }
        let length_bytes = if start[6] == 1 { 2 } else { 4 };
        let mut length = [0; 4];
        file.read_exact(&mut length[..length_bytes]).map_err(cut_off)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST_HEADER {
            return Err(format!("has a header of {length} bytes; at most {LONGEST_HEADER} are read"));
        }
        let mut text = vec![0; length];
        file.read_exact(&mut text).map_err(cut_off)?;
        let (datatype, shape) = parse_description(&String::from_utf8_lossy(&text))?;
        Ok(NpyHeader { datatype, shape, data_at: (start.len() + length_bytes + length) as u64 })
    }

    /// Returns the bytes of all elements; `None` where they do not fit in 64 bits.
    pub(super) fn data_bytes(&self) -> Option<u64> {
        let sizes = self.shape.iter().map(|&size| size as u64);
        sizes.chain([self.datatype.size_bytes() as u64]).try_fold(1_u64, u64::checked_mul)
    }
}

/// Writes the header of an array of numpy's type `of_type`.
///
/// Errors: those of `file`.
pub(super) fn write_header(mut file: impl Write, of_type: &str, shape: &[usize]) -> io::Result<()> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    // Python's tuple of one has a comma, others need none.
    let sizes = if shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut text = format!("{{'descr': '{of_type}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let before = MAGIC.len() + 2 + 2;
    let padded = (before + text.len() + 1).next_multiple_of(ALIGNMENT) - before;
    text.extend(std::iter::repeat_n(' ', padded - 1 - text.len()));
    text.push('\n');
    let length = u16::try_from(text.len()).map_err(io::Error::other)?;
    file.write_all(MAGIC)?;
    file.write_all(&[1, 0])?;
    file.write_all(&length.to_le_bytes())?;
    file.write_all(text.as_bytes())
}

/// Parses the dictionary of a header: the literals of Python that numpy writes.
fn parse_description(text: &str) -> Result<(DataType, Vec<usize>), String> {
    let after = |key: &str| {
        let value = text.split_once(&format!("'{key}':")).map(|(_, value)| value.trim_start());
        value.ok_or_else(|| format!("has a header without '{key}'; write it with numpy.save"))
    };
    let descr = after("descr")?;
    let name = descr.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map(|(name, _)| name);
    let name = name.ok_or("has elements of several fields; give an array of numbers")?;
    let datatype = TYPES.iter().find(|(of, _)| *of == name).map(|(_, datatype)| *datatype);
    let datatype = datatype.ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        format!("has elements of type '{name}'; these are read: {}", names.join(", "))
    })?;
    if !after("fortran_order")?.starts_with("False") {
        return Err("is in Fortran order; save numpy.ascontiguousarray(array)".to_owned());
    }
    let sizes = after("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (sizes, _) = sizes.ok_or("has a header without a shape; write it with numpy.save")?;
    let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>();
    Ok((datatype, shape.map_err(|error| format!("has a shape that is none ({error})"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            shape in prop::collection::vec(0_usize..1 << 40, 0..6), of_type in 0..TYPES.len(),
        ) {
            let (name, datatype) = TYPES[of_type];
            let mut file = Vec::new();
            write_header(&mut file, name, &shape).unwrap();
            prop_assert_eq!(file.len() % ALIGNMENT, 0);
            let header = NpyHeader::read(&file[..]).unwrap();
            prop_assert_eq!(header, NpyHeader { datatype, shape, data_at: file.len() as u64 });
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = NpyHeader::read(&bytes[..]);
            let file = [&MAGIC[..], &[1, 0, 180, 0], &bytes].concat();
            let _ = NpyHeader::read(&file[..]);
        }
    }

    #[test]
    fn a_header_is_what_numpy_writes() {
        let mut file = Vec::new();
        write_header(&mut file, "<f4", &[3]).unwrap();
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(&file[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(String::from_utf8_lossy(&file[10..]).trim_end(), text);
        assert_eq!((file.len(), file.last()), (128, Some(&b'\n')));
    }

    #[test]
    fn what_is_not_read_is_refused_with_what_would_be_right() {
        let read = |text: &str| parse_description(text).unwrap_err();
        let order = read("{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }");
        assert!(order.contains("ascontiguousarray"), "{order}");
        let objects = read("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }");
        assert!(objects.contains("'|O'") && objects.contains("<f4"), "{objects}");
        assert!(NpyHeader::read(&b"PNG"[..]).unwrap_err().contains(".npy"));
    }
}
