//! Rows from files: raw bytes, NumPy arrays, or JSON as of an infer request. A folder is a data set
//! of such files.

use super::{Element, InputSpec, Row};
use bytes::{Bytes, BytesMut};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files of one folder that are read.
const MAX_FILES: usize = 65_536;

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

const KINDS: &str = "it must be .npy (a NumPy array), .raw or .bin (the bytes of one row or more) or .json (the body of an \
                     infer request)";

/// The rows that a file holds, or all files of a folder by their names.
///
/// Errors: what is wrong with which file.
pub(super) fn read(path: &Path, specs: &[InputSpec]) -> Result<Vec<Row>, String> {
    let failed = |e: std::io::Error| format!("{}: can't be read ({e})", path.display());
    let rows = if std::fs::metadata(path).map_err(failed)?.is_dir() {
        let files = files_of(path).map_err(failed)?;
        let read = files.iter().map(|file| read_file(file, specs));
        read.collect::<Result<Vec<_>, _>>()?.concat()
    } else {
        read_file(path, specs)?
    };
    if rows.is_empty() {
        return Err(format!("{}: it holds no row; {KINDS}", path.display()));
    }
    Ok(rows)
}

fn files_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(MAX_FILES) {
        let path = entry?.path();
        if kind(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[derive(Clone, Copy)]
enum FileKind {
    Npy,
    Raw,
    Json,
}

fn kind(path: &Path) -> Option<FileKind> {
    match path.extension()?.to_str()? {
        "npy" => Some(FileKind::Npy),
        "raw" | "bin" => Some(FileKind::Raw),
        "json" => Some(FileKind::Json),
        _ => None,
    }
}

fn read_file(path: &Path, specs: &[InputSpec]) -> Result<Vec<Row>, String> {
    let failed = |what: String| format!("{}: {what}", path.display());
    let kind = kind(path).ok_or_else(|| failed(KINDS.into()))?;
    let io = |e: std::io::Error| failed(format!("can't be read ({e})"));
    if std::fs::metadata(path).map_err(io)?.len() > MAX_FILE_BYTES {
        return Err(failed(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    let bytes = Bytes::from(std::fs::read(path).map_err(io)?);
    let rows = match kind {
        FileKind::Npy => single(specs).and_then(|spec| npy(&bytes, spec)),
        FileKind::Raw => single(specs).and_then(|spec| raw(&bytes, spec)),
        FileKind::Json => json(&bytes, specs),
    };
    rows.map_err(failed)
}

/// The only input of a model.
fn single(specs: &[InputSpec]) -> Result<&InputSpec, String> {
    match specs {
        [spec] => Ok(spec),
        _ => Err(format!("the model has {} inputs, and only .json can give several", specs.len())),
    }
}

fn raw(bytes: &Bytes, spec: &InputSpec) -> Result<Vec<Row>, String> {
    let row_bytes = spec.row_bytes().ok_or("raw bytes can't be split into BYTES elements; give .json")?;
    if row_bytes == 0 || !bytes.len().is_multiple_of(row_bytes) {
        return Err(format!(
            "it has {} bytes; input \"{}\" ({} of {:?}) takes {row_bytes} a row",
            bytes.len(),
            spec.name,
            spec.element.name(),
            spec.shape
        ));
    }
    Ok((0..bytes.len() / row_bytes)
        .map(|row| vec![bytes.slice(row * row_bytes..(row + 1) * row_bytes)])
        .collect())
}

/// A NumPy array of one row, or of rows along its first dimension. The format: a magic string, a
/// version, the length of a header, which is a Python dictionary with `descr`, `fortran_order` and
/// `shape`, and the elements.
fn npy(bytes: &Bytes, spec: &InputSpec) -> Result<Vec<Row>, String> {
    let (header, data) = npy_parts(bytes).ok_or("it is no NumPy file (version 1, 2 or 3)")?;
    let value = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    if value("fortran_order").is_none_or(|order| !order.starts_with("False")) {
        return Err("its elements are in Fortran's order; save numpy.ascontiguousarray(array)".into());
    }
    let descr = value("descr").and_then(|rest| rest.split('\'').nth(1)).unwrap_or("?");
    let right = npy_type(spec.element).ok_or("a NumPy array can't hold BYTES; give .json")?;
    if descr.trim_start_matches(['<', '|', '=']) != right {
        return Err(format!(
            "its type is {descr}; input \"{}\" takes {}, which is <{right}",
            spec.name,
            spec.element.name()
        ));
    }
    let shape =
        value("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).map(|(inside, _)| inside);
    let shape = shape.ok_or("its header has no shape")?;
    let dimensions = shape.split(',').map(str::trim).filter(|text| !text.is_empty());
    let shape: Vec<usize> = dimensions
        .map(|text| text.parse().map_err(|_| "its header has no shape"))
        .collect::<Result<_, _>>()?;
    let fits = shape == spec.shape || shape.split_first().is_some_and(|(_, row)| row == spec.shape);
    if !fits {
        return Err(format!(
            "its shape is {shape:?}; input \"{}\" takes {:?}, or that with a first dimension of rows",
            spec.name, spec.shape
        ));
    }
    raw(&data, spec)
}

fn npy_parts(bytes: &Bytes) -> Option<(String, Bytes)> {
    let rest = bytes.strip_prefix(b"\x93NUMPY")?;
    let (from, length) = match rest.first()? {
        1 => (10, usize::from(u16::from_le_bytes([*bytes.get(8)?, *bytes.get(9)?]))),
        2 | 3 => (12, u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize),
        _ => return None,
    };
    let to = from + length;
    let header = std::str::from_utf8(bytes.get(from..to)?).ok()?.to_owned();
    Some((header, bytes.slice(to..)))
}

/// NumPy's name of a type, without the byte order.
fn npy_type(element: Element) -> Option<&'static str> {
    Some(match element.name() {
        "BOOL" => "b1",
        "UINT8" => "u1",
        "UINT16" => "u2",
        "UINT32" => "u4",
        "UINT64" => "u8",
        "INT8" => "i1",
        "INT16" => "i2",
        "INT32" => "i4",
        "INT64" => "i8",
        "FP16" => "f2",
        "FP32" => "f4",
        "FP64" => "f8",
        // NumPy has no such type; its two bytes are commonly kept as these.
        "BF16" => "u2",
        _ => return None,
    })
}

/// The rows of an infer request's body: `{"inputs": [{"name": …, "data": […]}]}`.
fn json(bytes: &[u8], specs: &[InputSpec]) -> Result<Vec<Row>, String> {
    let body: Value = serde_json::from_slice(bytes).map_err(|e| format!("it is not JSON ({e})"))?;
    let inputs =
        body["inputs"].as_array().ok_or("it has no list \"inputs\", as the body of an infer request has")?;
    let mut columns = Vec::new();
    for spec in specs {
        let named = inputs.iter().find(|input| input["name"] == spec.name.as_str());
        let named = named.ok_or_else(|| format!("it has no input \"{}\"", spec.name))?;
        let mut flat = Vec::new();
        flatten(&named["data"], &mut flat);
        if flat.is_empty() || !flat.len().is_multiple_of(spec.elements()) {
            return Err(format!(
                "input \"{}\" has {} elements; the model takes {} a row ({:?})",
                spec.name,
                flat.len(),
                spec.elements(),
                spec.shape
            ));
        }
        let row = |values: &[&Value]| {
            let mut data = BytesMut::new();
            values
                .iter()
                .try_for_each(|value| spec.element.push_json(&mut data, value))
                .map(|()| data.freeze())
        };
        let rows = flat.chunks(spec.elements()).map(row).collect::<Result<Vec<Bytes>, String>>();
        columns.push(rows.map_err(|what| format!("input \"{}\": {what}", spec.name))?);
    }
    let count = columns.first().map_or(0, Vec::len);
    if columns.iter().any(|column| column.len() != count) {
        return Err("its inputs have different numbers of rows".into());
    }
    Ok((0..count).map(|row| columns.iter().map(|column| column[row].clone()).collect()).collect())
}

fn flatten<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, into)),
        Value::Null => {}
        _ => into.push(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_gpu::DataType;

    fn spec(shape: &[usize]) -> InputSpec {
        InputSpec { name: "x".into(), element: Element::Fixed(DataType::Fp32), shape: shape.to_vec() }
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// A header as NumPy 2 writes it: padded with spaces to a multiple of 64 bytes.
    fn npy_file(descr: &str, shape: &str, order: &str, data: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
        while !(10 + header.len() + 1).is_multiple_of(64) {
            header.push(' ');
        }
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.into_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn a_folder_is_a_data_set_of_its_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("b.raw", &floats(&[5.0, 6.0, 7.0, 8.0]));
        write("a.npy", &npy_file("<f4", "(2,)", "False", &floats(&[1.0, 2.0])));
        write("c.npy", &npy_file("<f4", "(1, 2)", "False", &floats(&[9.0, 9.5])));
        write("d.json", br#"{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[[3, 4.5]]}]}"#);
        write("readme.txt", b"not a row");
        let rows = read(folder.path(), &[spec(&[2])]).unwrap();
        let expected = [[1.0, 2.0], [5.0, 6.0], [7.0, 8.0], [9.0, 9.5], [3.0, 4.5]];
        assert_eq!(rows, expected.map(|row| vec![Bytes::from(floats(&row))]));
    }

    #[test]
    fn a_file_that_does_not_fit_the_model_is_refused_with_what_would() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, bytes: &[u8], specs: &[InputSpec]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path, specs).unwrap_err();
            error.strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned()
        };
        let one = [spec(&[2, 3])];
        assert_eq!(of("a.raw", &[0; 7], &one), "it has 7 bytes; input \"x\" (FP32 of [2, 3]) takes 24 a row");
        let npy = npy_file("<f8", "(2, 3)", "False", &[0; 48]);
        assert_eq!(of("a.npy", &npy, &one), "its type is <f8; input \"x\" takes FP32, which is <f4");
        let npy = npy_file("<f4", "(3, 2)", "False", &[0; 24]);
        let error = of("b.npy", &npy, &one);
        assert!(error.starts_with("its shape is [3, 2]; input \"x\" takes [2, 3]"), "{error}");
        let npy = npy_file("<f4", "(2, 3)", "True", &[0; 24]);
        assert!(of("c.npy", &npy, &one).contains("Fortran's order"));
        assert!(of("d.npy", b"PK", &one).contains("no NumPy file"));
        assert!(of("a.json", b"{}", &one).contains("no list \"inputs\""));
        let few = br#"{"inputs":[{"name":"x","data":[1]}]}"#;
        assert_eq!(of("b.json", few, &one), "input \"x\" has 1 elements; the model takes 6 a row ([2, 3])");
        assert!(of("a.txt", b"", &one).starts_with("it must be .npy"));
        assert!(of("b.raw", &[0; 8], &[spec(&[1]), spec(&[1])]).contains("only .json can give several"));
        let missing = read(Path::new("/no/such/folder"), &one).unwrap_err();
        assert!(missing.starts_with("/no/such/folder: can't be read"), "{missing}");
    }
}
