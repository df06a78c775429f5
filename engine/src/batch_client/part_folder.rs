//! What is kept of a run that has not ended: the folder `OUTPUT.part`, with the outputs of the rows
//! that are done and a journal of which these are. A row is marked done only once its output is on
//! the disk, so a run that is killed at any moment, or whose machine stops, loses the rows since
//! the last checkpoint and nothing else.

use super::npy::{numpy_type, write_header};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use symphony_gpu::TensorSpec;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The array of the files' names in an output, where the input is a folder.
const FILES: &str = "files";

/// The array that says which rows failed, if any did.
const FAILED: &str = "failed";

/// The mark of a row that is done.
const DONE: u8 = 1;

/// What a run computes: a run that is resumed must be the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RunIdentity {
    /// The model: its name and version at a server, or its files.
    pub(super) model: Vec<String>,
    /// The files of the input.
    pub(super) input: Vec<String>,
    /// The way in which pictures become tensors.
    pub(super) pixels: String,
    /// The number of rows.
    pub(super) rows: usize,
}

/// The folder of a run, which this process has locked.
pub(super) struct LockedFolder {
    folder: PathBuf,
    /// The file of the run's identity, locked as long as it is open.
    identity: File,
}

/// The folder of a run, with its journal.
pub(super) struct PartFolder {
    locked: LockedFolder,
    outputs: Vec<PartOutput>,
    marks: File,
    /// The rows whose outputs are written and that are not marked yet.
    unmarked: Mutex<Vec<usize>>,
}

/// The rows of one output.
struct PartOutput {
    spec: TensorSpec,
    file: File,
    path: PathBuf,
}

impl LockedFolder {
    /// Returns the folder.
    pub(super) fn path(&self) -> &Path {
        &self.folder
    }

    /// Opens the journal, or begins it. With it come the numbers of the rows that are still to do.
    ///
    /// Errors: what is there is of another run, or no .npz file can hold the outputs; the disk.
    pub(super) fn open(
        self,
        identity: &RunIdentity,
        outputs: &[TensorSpec],
    ) -> Result<(PartFolder, Vec<usize>), String> {
        if let Err(wrong) = check_outputs(outputs) {
            self.remove_if_new();
            return Err(wrong);
        }
        let begins = self.begins(identity)?;
        let marks = sized_file(&self.folder.join("rows"), identity.rows as u64, begins);
        let marks = marks.map_err(|error| self.failed(error))?;
        let open_output = |(at, spec): (usize, &TensorSpec)| {
            let path = self.folder.join(format!("output-{at}"));
            let file = sized_file(&path, (spec.bytes() as u64) * identity.rows as u64, begins)?;
            Ok(PartOutput { spec: spec.clone(), file, path })
        };
        let outputs: io::Result<_> = outputs.iter().enumerate().map(open_output).collect();
        let outputs = outputs.map_err(|error| self.failed(error))?;
        if begins {
            // Last: what is left of an earlier run is gone before the folder is of this one.
            let text = serde_json::to_string(identity).expect("it is text and numbers");
            let written = (&self.identity).write_all(text.as_bytes()).and_then(|()| self.identity.sync_all());
            written.map_err(|error| self.failed(error))?;
        }
        let mut done = vec![0; identity.rows];
        marks.read_exact_at(&mut done, 0).map_err(|error| self.failed(error))?;
        let left = (0..identity.rows).filter(|&row| done[row] != DONE).collect();
        Ok((PartFolder { locked: self, outputs, marks, unmarked: Mutex::default() }, left))
    }

    /// Removes the folder if nothing was begun in it.
    pub(super) fn remove_if_new(&self) {
        if self.identity.metadata().is_ok_and(|about| about.len() == 0) {
            // What can't be removed does no harm: the next run begins in it.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    /// Returns true if no run was begun in the folder.
    ///
    /// Errors: another one than this was.
    fn begins(&self, identity: &RunIdentity) -> Result<bool, String> {
        let text = io::read_to_string(&self.identity).map_err(|error| self.failed(error))?;
        if text.is_empty() {
            return Ok(true);
        }
        let begun: Option<RunIdentity> = serde_json::from_str(&text).ok();
        let differs = match &begun {
            Some(begun) if begun == identity => return Ok(false),
            Some(begun) if begun.model != identity.model => "another model, or another version of it",
            Some(begun) if begun.input != identity.input => "other inputs, or inputs that were changed since",
            Some(begun) if begun.pixels != identity.pixels => "other values of --scale, --mean or --std",
            Some(_) => "another number of rows",
            None => "something else, or it was cut off as it began",
        };
        Err(format!(
            "{}: what is there is of {differs}; give --restart to begin again, or another --output",
            self.folder.display()
        ))
    }

    fn failed(&self, error: io::Error) -> String {
        format!("{}: can't be read or written ({error})", self.folder.display())
    }
}

impl PartFolder {
    /// Returns the folder of the run that writes `output`.
    pub(super) fn beside(output: &Path) -> PathBuf {
        let mut name = output.as_os_str().to_owned();
        name.push(".part");
        name.into()
    }

    /// Locks the folder of a run, which is made if it is not there. With `restart` it is as if it
    /// had not been there.
    ///
    /// Errors: another process has it; the disk.
    pub(super) fn lock(folder: PathBuf, restart: bool) -> Result<LockedFolder, String> {
        let failed = |error: io::Error| format!("{}: can't be written ({error})", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let identity = options.open(folder.join("run.json")).map_err(failed)?;
        match identity.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{}: another process runs into it; wait for its end", folder.display()));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if restart {
            identity.set_len(0).map_err(failed)?;
        }
        Ok(LockedFolder { folder, identity })
    }

    /// Writes the outputs of `rows`: for each output the bytes of its rows, one after another.
    ///
    /// Errors: the disk.
    pub(super) fn store(&self, rows: &[usize], outputs: &[Vec<u8>]) -> Result<(), String> {
        for (output, bytes) in self.outputs.iter().zip(outputs) {
            let row_bytes = output.spec.bytes();
            for (at, &row) in rows.iter().enumerate() {
                let bytes = &bytes[at * row_bytes..(at + 1) * row_bytes];
                output
                    .file
                    .write_all_at(bytes, row as u64 * row_bytes as u64)
                    .map_err(|error| self.locked.failed(error))?;
            }
        }
        self.unmarked.lock().expect("no thread panics with it").extend_from_slice(rows);
        Ok(())
    }

    /// Marks what was stored as done, once it is on the disk.
    ///
    /// Errors: the disk.
    pub(super) fn checkpoint(&self) -> Result<(), String> {
        let rows = std::mem::take(&mut *self.unmarked.lock().expect("no thread panics with it"));
        if rows.is_empty() {
            return Ok(());
        }
        let write = || {
            self.outputs.iter().try_for_each(|output| output.file.sync_data())?;
            rows.iter().try_for_each(|&row| self.marks.write_all_at(&[DONE], row as u64))?;
            self.marks.sync_data()
        };
        write().map_err(|error| self.locked.failed(error))
    }

    /// Writes the file of the whole run at `output`, and removes the folder. The rows that failed
    /// are zeros, and an array says which these are; `names` are those of the files of a folder.
    ///
    /// Errors: the disk.
    pub(super) fn finish(
        &self,
        output: &Path,
        names: Option<&[String]>,
        failed: &[bool],
    ) -> Result<(), String> {
        let whole = self.locked.folder.join("whole.npz");
        self.write_archive(&whole, names, failed).map_err(|error| self.locked.failed(error))?;
        let moved = fs::rename(&whole, output).and_then(|()| fs::remove_dir_all(&self.locked.folder));
        moved.map_err(|error| format!("{}: can't be written ({error})", output.display()))
    }

    fn write_archive(&self, path: &Path, names: Option<&[String]>, failed: &[bool]) -> io::Result<()> {
        let mut archive = ZipWriter::new(File::create(path)?);
        let rows = failed.len();
        for PartOutput { spec, path, .. } in &self.outputs {
            let shape: Vec<usize> = [rows].into_iter().chain(spec.shape.iter().copied()).collect();
            let of_type = numpy_type(spec.datatype).expect("checked as the folder was opened");
            begin_array(&mut archive, &spec.name, of_type, &shape, fs::metadata(path)?.len())?;
            io::copy(&mut File::open(path)?, &mut archive)?;
        }
        if let Some(names) = names {
            let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(1);
            let bytes = (rows * longest * size_of::<char>()) as u64;
            begin_array(&mut archive, FILES, &format!("<U{longest}"), &[rows], bytes)?;
            for name in names {
                let padded = name.chars().chain(std::iter::repeat('\0')).take(longest);
                padded.map(|c| u32::from(c).to_le_bytes()).try_for_each(|bytes| archive.write_all(&bytes))?;
            }
        }
        if failed.contains(&true) {
            begin_array(&mut archive, FAILED, "|b1", &[rows], rows as u64)?;
            let bytes: Vec<u8> = failed.iter().map(|&failed| failed.into()).collect();
            archive.write_all(&bytes)?;
        }
        archive.finish()?.sync_all()
    }
}

/// Begins an array of an archive. No time is in it: the same arrays are the same bytes.
fn begin_array(
    archive: &mut ZipWriter<File>,
    name: &str,
    of_type: &str,
    shape: &[usize],
    bytes: u64,
) -> io::Result<()> {
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    // The header of the array takes far less than what is left here to 4 GiB.
    let options = options.large_file(bytes > u64::from(u32::MAX / 2));
    archive.start_file(format!("{name}.npy"), options)?;
    write_header(archive, of_type, shape)
}

/// Checks that numpy has arrays for these outputs.
fn check_outputs(outputs: &[TensorSpec]) -> Result<(), String> {
    for TensorSpec { name, datatype, .. } in outputs {
        if numpy_type(*datatype).is_none() {
            return Err(format!("the output \"{name}\" is of type {datatype}, which no .npz file can hold"));
        }
        if name == FILES || name == FAILED {
            return Err(format!(
                "the output \"{name}\" has the name of an array that is added; rename it in the model"
            ));
        }
    }
    Ok(())
}

/// Opens or makes a file of that many bytes, which are zeros where nothing was written, and all
/// zeros if it `begins`.
fn sized_file(path: &Path, bytes: u64, begins: bool) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(begins).open(path)?;
    file.set_len(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::super::npy::NpyHeader;
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;
    use symphony_gpu::DataType;
    use zip::ZipArchive;

    fn outputs() -> Vec<TensorSpec> {
        let spec = |name: &str, datatype, shape: &[usize]| TensorSpec {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
        };
        vec![spec("sum", DataType::Int16, &[]), spec("pair", DataType::Uint8, &[2])]
    }

    fn open(folder: PathBuf, identity: &RunIdentity) -> Result<(PartFolder, Vec<usize>), String> {
        PartFolder::lock(folder, false)?.open(identity, &outputs())
    }

    fn identity(rows: usize) -> RunIdentity {
        RunIdentity { model: vec!["m".into()], input: vec!["in".into()], pixels: String::new(), rows }
    }

    /// Stores what row `row` would have.
    fn store(part: &PartFolder, rows: &[usize]) {
        let sums = rows.iter().flat_map(|&row| (row as i16).to_le_bytes()).collect();
        let pairs = rows.iter().flat_map(|&row| [row as u8, 7]).collect();
        part.store(rows, &[sums, pairs]).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn a_run_in_pieces_writes_the_bytes_of_one_without(
            rows in 1_usize..20,
            pieces in prop::collection::vec((prop::collection::vec(0_usize..20, 0..8), any::<bool>()), 0..5),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let failed = vec![false; rows];
            for (piece, marked) in pieces {
                let (part, left) = open(path("a.part"), &identity(rows)).unwrap();
                let piece: Vec<usize> = piece.into_iter().filter(|row| left.contains(row)).collect();
                store(&part, &piece);
                if marked {
                    part.checkpoint().unwrap();
                }
                drop(part);
                let (_, now_left) = open(path("a.part"), &identity(rows)).unwrap();
                let expected: Vec<usize> =
                    left.into_iter().filter(|row| !marked || !piece.contains(row)).collect();
                prop_assert_eq!(now_left, expected);
            }
            for name in ["a", "b"] {
                let part = path(&format!("{name}.part"));
                let (part, left) = open(part, &identity(rows)).unwrap();
                store(&part, &left);
                part.finish(&path(name), None, &failed).unwrap();
                let removed = !path(&format!("{name}.part")).exists();
                prop_assert!(removed);
            }
            prop_assert_eq!(fs::read(path("a")).unwrap(), fs::read(path("b")).unwrap());
        }
    }

    #[test]
    fn an_output_has_an_array_for_each_tensor_and_for_names_and_failures() {
        let folder = tempfile::tempdir().unwrap();
        let (part, left) = open(folder.path().join("p"), &identity(2)).unwrap();
        assert_eq!(left, [0, 1]);
        store(&part, &[1]);
        let output = folder.path().join("out.npz");
        part.finish(&output, Some(&["a.png".into(), "é".into()]), &[true, false]).unwrap();
        let mut archive = ZipArchive::new(File::open(output).unwrap()).unwrap();
        let mut array = |name: &str| {
            let mut bytes = Vec::new();
            archive.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        };
        let pairs = array("pair.npy");
        let header = NpyHeader::read(&pairs[..]).unwrap();
        assert_eq!((header.datatype, &header.shape[..]), (DataType::Uint8, &[2, 2][..]));
        assert_eq!(pairs[header.data_at as usize..], [0, 0, 1, 7]);
        assert!(array("failed.npy").ends_with(&[1, 0]));
        let files = array("files.npy");
        assert!(files.windows(5).any(|at| at == b"'<U5'"));
        assert!(files.ends_with(&[0xe9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn another_run_or_a_second_process_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = |identity: &RunIdentity| open(folder.path().join("p"), identity);
        let first = open(&identity(2)).unwrap();
        assert!(open(&identity(2)).err().unwrap().contains("another process"));
        drop(first);
        assert!(open(&identity(2)).is_ok());
        let model = RunIdentity { model: vec!["n".into()], ..identity(2) };
        let input = RunIdentity { input: vec![], ..identity(2) };
        for (other, word) in [(model, "another model"), (input, "other inputs"), (identity(3), "rows")] {
            let wrong = open(&other).err().unwrap();
            assert!(wrong.contains(word) && wrong.contains("--restart"), "{wrong}");
        }
        let again = PartFolder::lock(folder.path().join("p"), true).unwrap();
        assert_eq!(again.open(&identity(3), &outputs()).unwrap().1, [0, 1, 2]);
    }

    #[test]
    fn a_row_that_fails_is_zeros_also_where_an_earlier_run_had_an_output() {
        let folder = tempfile::tempdir().unwrap();
        let (part, _) = open(folder.path().join("p"), &identity(2)).unwrap();
        store(&part, &[0, 1]);
        part.checkpoint().unwrap();
        drop(part);
        let again = PartFolder::lock(folder.path().join("p"), true).unwrap();
        let (part, left) = again.open(&identity(2), &outputs()).unwrap();
        assert_eq!(left, [0, 1]);
        store(&part, &[0]);
        assert_eq!(fs::read(folder.path().join("p/output-1")).unwrap(), [0, 7, 0, 0]);
    }
}
