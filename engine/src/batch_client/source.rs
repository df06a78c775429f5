//! Where rows come from: a folder with a file for each row, a .npy file, or a .npz file with an
//! array for each input. Rows are read one by one at their places in the files, so that what is
//! read may be larger than the memory.

use super::npy::{NpyHeader, numpy_type};
use super::pictures::{ENDINGS, PictureReader, PixelScale};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use symphony_gpu::{Signature, TensorSpec};
use zip::{CompressionMethod, ZipArchive};

/// The bytes of one row, a vector for each input of the model.
pub(crate) type RowTensors = Vec<Vec<u8>>;

/// The rows of an input, by number.
pub(super) struct InputRows {
    rows: usize,
    kind: RowFiles,
    /// What tells this input from another: names, sizes and times of its files.
    pub(super) identity: Vec<String>,
}

enum RowFiles {
    /// A file for each row.
    Folder { folder: PathBuf, names: Vec<String>, input: TensorSpec, pictures: Option<PictureReader> },
    /// An array for each input.
    Arrays(Vec<ArrayRows>),
}

/// The rows of an array in a file.
struct ArrayRows {
    file: File,
    data_at: u64,
    row_bytes: usize,
}

impl InputRows {
    /// Opens `path` for a model of this signature. Compressed arrays are unpacked into `unpack_to`,
    /// which is made if there is something to unpack.
    ///
    /// Errors: what can't be read, or does not suit the model, and what would be right.
    pub(super) fn open(
        path: &Path,
        signature: &Signature,
        pixels: PixelScale,
        unpack_to: &Path,
    ) -> Result<InputRows, String> {
        let about =
            fs::metadata(path).map_err(|error| format!("{}: can't be read ({error})", path.display()))?;
        if about.is_dir() {
            return open_folder(path, only_input(signature, path)?, pixels);
        }
        let arrays = match ending(path).as_str() {
            "npy" => {
                let input = only_input(signature, path)?;
                vec![open_array(path, input, &path.display().to_string())?]
            }
            "npz" => open_archive(path, signature, unpack_to)?,
            _ => {
                return Err(format!(
                    "{}: is no folder, .npy or .npz file; give one of these",
                    path.display()
                ));
            }
        };
        let rows = arrays[0].1;
        if let Some(other) = arrays.iter().find(|(_, of)| *of != rows) {
            return Err(format!(
                "{}: its arrays have {rows} and {} rows; give each input as many",
                path.display(),
                other.1
            ));
        }
        let arrays = arrays.into_iter().map(|(array, _)| array).collect();
        Ok(InputRows { rows, kind: RowFiles::Arrays(arrays), identity: vec![identity(path)?] })
    }

    /// Returns the number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the names of the files, of a folder.
    pub(super) fn names(&self) -> Option<&[String]> {
        match &self.kind {
            RowFiles::Folder { names, .. } => Some(names),
            RowFiles::Arrays(_) => None,
        }
    }

    /// Returns the words for row `at` in messages.
    pub(super) fn row_name(&self, at: usize) -> String {
        self.names().map_or_else(|| format!("row {at}"), |names| names[at].clone())
    }

    /// Reads row `at`.
    ///
    /// Errors: what is wrong with this row alone.
    pub(super) fn read(&self, at: usize) -> Result<RowTensors, String> {
        match &self.kind {
            RowFiles::Folder { folder, names, input, pictures } => {
                let file = folder.join(&names[at]);
                match pictures {
                    Some(pictures) if ending(&file) != "npy" => Ok(vec![pictures.read(&file)?]),
                    _ => Ok(vec![read_row_file(&file, input)?]),
                }
            }
            RowFiles::Arrays(arrays) => {
                let row = arrays.iter().map(|array| array.read(at)).collect::<io::Result<RowTensors>>();
                row.map_err(|error| format!("can't be read ({error})"))
            }
        }
    }
}

/// Returns the shape of a row of each input as the arrays in `path` have it: in a folder the first
/// .npy file.
///
/// Errors: what can't be read, or an input without an array, and what would be right.
pub(super) fn row_shapes(path: &Path, inputs: &[&str]) -> Result<Vec<Vec<usize>>, String> {
    let what = path.display();
    let failed = |error: io::Error| format!("{what}: can't be read ({error})");
    let header = |file: &Path| {
        NpyHeader::read(File::open(file).map_err(failed)?)
            .map_err(|wrong| format!("{}: {wrong}", file.display()))
    };
    // Without the rows; the file of one row may have a 1 for them.
    let of_rows = |shape: Vec<usize>| shape.get(1..).unwrap_or_default().to_vec();
    if path.is_dir() {
        let names = fs::read_dir(path).map_err(failed)?.filter_map(|entry| entry.ok().map(|of| of.path()));
        let first = names.filter(|file| ending(file) == "npy").min();
        let none = || format!("{what}: has no .npy file, which would say the sizes of the model's input");
        let shape = header(&first.ok_or_else(none)?)?.shape;
        return Ok(vec![if shape.first() == Some(&1) { of_rows(shape) } else { shape }]);
    }
    if ending(path) == "npy" {
        return Ok(vec![of_rows(header(path)?.shape)]);
    }
    let no_archive = |error| format!("{what}: is no .npz file ({error}); write it with numpy.savez");
    let mut archive = ZipArchive::new(File::open(path).map_err(failed)?).map_err(no_archive)?;
    let mut shape = |input: &&str| {
        let within = |wrong: String| format!("{what}: array {input}: {wrong}");
        let entry = archive.by_name(&format!("{input}.npy")).map_err(|error| within(error.to_string()))?;
        Ok(of_rows(NpyHeader::read(entry).map_err(within)?.shape))
    };
    inputs.iter().map(&mut shape).collect()
}

impl ArrayRows {
    fn read(&self, at: usize) -> io::Result<Vec<u8>> {
        let mut row = vec![0; self.row_bytes];
        self.file.read_exact_at(&mut row, self.data_at + (at * self.row_bytes) as u64)?;
        Ok(row)
    }
}

/// Returns the model's only input.
fn only_input<'s>(signature: &'s Signature, path: &Path) -> Result<&'s TensorSpec, String> {
    match &signature.inputs[..] {
        [input] => Ok(input),
        several => {
            let names: Vec<&str> = several.iter().map(|input| input.name.as_str()).collect();
            Err(format!(
                "{}: the model has the inputs {}; give a .npz file with an array for each",
                path.display(),
                names.join(", ")
            ))
        }
    }
}

/// Returns a file's ending in lower case.
fn ending(path: &Path) -> String {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// Returns what tells a file from another one, or from itself after a change.
fn identity(path: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{}: can't be read ({error})", path.display());
    let about = fs::metadata(path).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    Ok(format!("{} {} {}.{:09}", path.display(), about.size(), about.mtime(), about.mtime_nsec()))
}

/// Opens a folder: its pictures and .npy files, in the order of their names. Hidden files and
/// folders in it are passed over.
fn open_folder(folder: &Path, input: &TensorSpec, pixels: PixelScale) -> Result<InputRows, String> {
    let failed = |error: io::Error| format!("{}: can't be read ({error})", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().into_string().map_err(|name| {
            format!("{}: the name {name:?} is not UTF-8; rename that file", folder.display())
        })?;
        if name.starts_with('.') || entry.path().is_dir() {
            continue;
        }
        let ending = ending(&entry.path());
        if ending != "npy" && !ENDINGS.contains(&ending.as_str()) {
            return Err(format!(
                "{}/{name}: is no .npy file and no picture (.{}); move it elsewhere",
                folder.display(),
                ENDINGS.join(", .")
            ));
        }
        names.push(name);
    }
    if names.is_empty() {
        return Err(format!("{}: has no pictures and no .npy files", folder.display()));
    }
    names.sort_unstable();
    let has_pictures = names.iter().any(|name| ending(Path::new(name)) != "npy");
    let pictures = has_pictures.then(|| PictureReader::new(input, pixels)).transpose()?;
    let identities = names.iter().map(|name| identity(&folder.join(name))).collect::<Result<_, _>>()?;
    let (rows, folder) = (names.len(), folder.to_path_buf());
    let kind = RowFiles::Folder { folder, names, input: input.clone(), pictures };
    Ok(InputRows { rows, kind, identity: identities })
}

/// Reads a .npy file of one row: of the input's shape, or with a first dimension of 1 before it.
fn read_row_file(path: &Path, input: &TensorSpec) -> Result<Vec<u8>, String> {
    let file = File::open(path).map_err(|error| format!("can't be read ({error})"))?;
    let header = NpyHeader::read(&file)?;
    let row = header.shape.strip_prefix(&[1]).filter(|row| *row == input.shape).unwrap_or(&header.shape);
    check_type(&header, input)?;
    if row != input.shape {
        return Err(format!("has the shape {:?}; \"{}\" takes {:?}", header.shape, input.name, input.shape));
    }
    let rows = ArrayRows { file, data_at: header.data_at, row_bytes: input.bytes() };
    rows.read(0).map_err(|error| format!("can't be read ({error})"))
}

fn check_type(header: &NpyHeader, input: &TensorSpec) -> Result<(), String> {
    if header.datatype == input.datatype {
        return Ok(());
    }
    let right = numpy_type(input.datatype).unwrap_or("a type that numpy lacks");
    Err(format!(
        "is of type {}; \"{}\" takes {}, numpy's {right}",
        header.datatype, input.name, input.datatype
    ))
}

/// Opens a file that has an array of rows for `input` from its start on. Returns its rows too.
fn open_array(path: &Path, input: &TensorSpec, what: &str) -> Result<(ArrayRows, usize), String> {
    let file = File::open(path).map_err(|error| format!("{what}: can't be read ({error})"))?;
    let length = file.metadata().map_err(|error| format!("{what}: can't be read ({error})"))?.len();
    array_at(file, 0, length, input).map_err(|wrong| format!("{what}: {wrong}"))
}

/// Returns the array that begins at `start` of `file` and ends before `end`, and its rows.
fn array_at(mut file: File, start: u64, end: u64, input: &TensorSpec) -> Result<(ArrayRows, usize), String> {
    file.seek(SeekFrom::Start(start)).map_err(|error| format!("can't be read ({error})"))?;
    let header = NpyHeader::read(&file)?;
    check_type(&header, input)?;
    let rows = match header.shape.split_first() {
        Some((&rows, row)) if row == input.shape => rows,
        _ => {
            let sizes: String = input.shape.iter().map(|size| format!(", {size}")).collect();
            let (name, shape) = (&input.name, &header.shape);
            return Err(format!("has the shape {shape:?}; \"{name}\" takes [rows{sizes}]"));
        }
    };
    let data_at = start + header.data_at;
    if header.data_bytes().and_then(|bytes| bytes.checked_add(data_at)).is_none_or(|needed| needed > end) {
        return Err(format!("is cut off: it is shorter than {rows} rows"));
    }
    Ok((ArrayRows { file, data_at, row_bytes: input.bytes() }, rows))
}

/// Opens the arrays of a .npz file in the order of the model's inputs. Stored ones are read where
/// they are, compressed ones are unpacked into `unpack_to` first.
fn open_archive(
    path: &Path,
    signature: &Signature,
    unpack_to: &Path,
) -> Result<Vec<(ArrayRows, usize)>, String> {
    let what = path.display();
    let failed = |error: io::Error| format!("{what}: can't be read ({error})");
    let no_archive = |error| format!("{what}: is no .npz file ({error}); write it with numpy.savez");
    let file = File::open(path).map_err(failed)?;
    let mut archive = ZipArchive::new(file.try_clone().map_err(failed)?).map_err(no_archive)?;
    let mut names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    names.sort_unstable();
    let known = |name: &String| signature.inputs.iter().any(|input| format!("{}.npy", input.name) == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let inputs: Vec<&str> = signature.inputs.iter().map(|input| input.name.as_str()).collect();
        return Err(format!(
            "{what}: the array {} is no input of the model; its inputs are {}",
            unknown.trim_end_matches(".npy"),
            inputs.join(", ")
        ));
    }
    let mut arrays = Vec::new();
    for (at, input) in signature.inputs.iter().enumerate() {
        let within = format!("{what}: array {}", input.name);
        let missing = |error| format!("{within}: can't be read ({error})");
        let mut entry = archive.by_name(&format!("{}.npy", input.name)).map_err(missing)?;
        if entry.compression() == CompressionMethod::Stored {
            let start = entry.data_start().ok_or_else(|| format!("{within}: has no place in the file"))?;
            // A handle of its own: the position of a duplicate is shared.
            let file = File::open(path).map_err(failed)?;
            let array = array_at(file, start, start + entry.size(), input);
            arrays.push(array.map_err(|wrong| format!("{within}: {wrong}"))?);
        } else {
            let unpacked = unpack_to.join(format!("input-{at}.npy"));
            let copy = |entry: &mut dyn io::Read| {
                fs::create_dir_all(unpack_to)?;
                io::copy(entry, &mut File::create(&unpacked)?)
            };
            copy(&mut entry).map_err(|error| {
                format!("{within}: can't be unpacked to {} ({error})", unpacked.display())
            })?;
            arrays.push(open_array(&unpacked, input, &within)?);
        }
    }
    Ok(arrays)
}

#[cfg(test)]
mod tests {
    use super::super::npy::write_header;
    use super::*;
    use std::io::Write;
    use symphony_gpu::DataType;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn spec(name: &str, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), datatype: DataType::Int16, shape: shape.to_vec() }
    }

    fn signature(inputs: &[TensorSpec]) -> Signature {
        Signature::of_rows(inputs.to_vec(), Vec::new())
    }

    /// An array of two-byte elements that count up from 0.
    fn counting(shape: &[usize]) -> Vec<u8> {
        let mut file = Vec::new();
        write_header(&mut file, "<i2", shape).unwrap();
        file.extend((0..shape.iter().product::<usize>() as i16).flat_map(i16::to_le_bytes));
        file
    }

    fn open(path: &Path, signature: &Signature) -> Result<InputRows, String> {
        InputRows::open(path, signature, PixelScale::default(), &path.with_extension("part"))
    }

    fn elements(bytes: &[u8]) -> Vec<i16> {
        bytes.chunks_exact(2).map(|bytes| i16::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn an_array_is_read_by_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.npy");
        fs::write(&path, counting(&[3, 2])).unwrap();
        let source = open(&path, &signature(&[spec("x", &[2])])).unwrap();
        assert_eq!((source.rows(), source.names()), (3, None));
        assert_eq!(elements(&source.read(2).unwrap()[0]), [4, 5]);
    }

    #[test]
    fn an_archive_has_an_array_for_each_input_stored_or_compressed() {
        let folder = tempfile::tempdir().unwrap();
        let two = signature(&[spec("b", &[2]), spec("a", &[])]);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let path = folder.path().join(format!("{method:?}.npz"));
            let mut archive = ZipWriter::new(File::create(&path).unwrap());
            let options = SimpleFileOptions::default().compression_method(method);
            for (name, shape) in [("a.npy", &[2][..]), ("b.npy", &[2, 2])] {
                archive.start_file(name, options).unwrap();
                archive.write_all(&counting(shape)).unwrap();
            }
            archive.finish().unwrap();
            let source = open(&path, &two).unwrap();
            let row: Vec<Vec<i16>> = source.read(1).unwrap().iter().map(|bytes| elements(bytes)).collect();
            assert_eq!(row, [vec![2, 3], vec![1]], "{method:?}");
            let wrong = open(&path, &signature(&[spec("a", &[])])).err().unwrap();
            assert!(wrong.contains("array b is no input"), "{wrong}");
        }
    }

    #[test]
    fn what_does_not_suit_the_model_is_refused_with_what_would() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.npy");
        fs::write(&path, counting(&[3, 2])).unwrap();
        let refused = |inputs: &[TensorSpec]| open(&path, &signature(inputs)).err().unwrap();
        assert!(refused(&[spec("x", &[4])]).contains("has the shape [3, 2]; \"x\" takes [rows, 4]"));
        let floats = TensorSpec { datatype: DataType::Fp32, ..spec("x", &[2]) };
        assert!(refused(&[floats]).contains("is of type INT16; \"x\" takes FP32, numpy's <f4"));
        assert!(refused(&[spec("x", &[2]), spec("y", &[2])]).contains(".npz"));
        fs::write(&path, &counting(&[3, 2])[..130]).unwrap();
        assert!(refused(&[spec("x", &[2])]).contains("cut off"));
    }

    #[test]
    fn a_folder_is_read_in_the_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.npy"), counting(&[2])).unwrap();
        fs::write(folder.path().join("a.npy"), counting(&[1, 2])).unwrap();
        fs::write(folder.path().join("c.npy"), "no array").unwrap();
        let one = signature(&[spec("x", &[2])]);
        let source = open(folder.path(), &one).unwrap();
        assert_eq!(source.names().unwrap(), ["a.npy", "b.npy", "c.npy"]);
        assert_eq!(elements(&source.read(0).unwrap()[0]), [0, 1]);
        assert!(source.read(2).unwrap_err().contains(".npy"));
        fs::write(folder.path().join("notes.txt"), "").unwrap();
        assert!(open(folder.path(), &one).err().unwrap().contains("notes.txt"));
    }
}
