//! The file of a plan: a header that says where everything is, then the weights as they lie in
//! memory, so that a device can be given them in one piece.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 6 | `SYMPLAN` |
//! | 7 | the version of the format, 2 |
//! | 8 to 15 | the length of the header, little endian |
//! | 16 to 23 | the length of the weights, little endian |
//! | from 24 | the header: a `Plan` as JSON |
//! | from the next multiple of 256 | the weights |
//! | from the next multiple of 256 | kernels that were compiled ahead, one architecture's behind another's |

use super::element::AlignedBytes;
use super::program::{Plan, aligned};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The first bytes of a file, the last of which is the version.
const MAGIC: [u8; 8] = *b"SYMPLAN\x02";

/// The bytes in front of the header.
const FRONT: usize = 24;

/// An error of a plan's file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say they are")]
pub enum PlanFileError {
    /// The file can't be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file is no plan, or is damaged.
    #[error("{path}: is not a plan or is damaged ({reason}); write it again by `symphony compile`",
            path = path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// Reads the kernels behind the weights and a gap.
///
/// Errors: there are more bytes, or fewer, than the header says.
fn read_kernels(plan: &mut Plan, behind: &[u8], gap: usize) -> Result<(), String> {
    let announced = plan.kernels.iter().try_fold(0usize, |sum, image| sum.checked_add(image.bytes));
    let mut code = if plan.kernels.is_empty() { behind } else { behind.get(gap..).unwrap_or_default() };
    if announced != Some(code.len()) {
        let found = code.len();
        return Err(format!("it has {found} bytes of kernels, and {} are announced", announced.unwrap_or(0)));
    }
    for image in &mut plan.kernels {
        let (own, others) = code.split_at(image.bytes);
        image.code = own.to_vec();
        code = others;
    }
    Ok(())
}

impl Plan {
    /// Returns the content of a plan's file.
    ///
    /// # Errors
    /// If the plan has a number that reads otherwise than it was written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let header = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let weights = self.weights.as_bytes();
        let start = aligned(FRONT + header.len());
        let mut bytes = Vec::with_capacity(start + weights.len());
        bytes.extend(MAGIC);
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend((weights.len() as u64).to_le_bytes());
        bytes.extend(header);
        bytes.resize(start, 0);
        bytes.extend(weights);
        if !self.kernels.is_empty() {
            bytes.resize(aligned(bytes.len()), 0);
            self.kernels.iter().for_each(|image| bytes.extend(&image.code));
        }
        let read = Plan::from_bytes(&bytes)?;
        if read == *self { Ok(bytes) } else { Err("a number of the plan can't be written".to_owned()) }
    }

    /// Reads the content of a plan's file, and checks the plan: what is returned can be run.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, String> {
        let (front, rest) = bytes.split_first_chunk::<FRONT>().ok_or("it ends in the middle")?;
        if front[..7] != MAGIC[..7] {
            return Err("it does not begin as plans do".to_owned());
        }
        if front[7] != MAGIC[7] {
            return Err(format!("its format has version {}; {} is read", front[7], MAGIC[7]));
        }
        let length = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|byte| front[at + byte]);
            usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (header_length, weights_length) = (length(8), length(16));
        let header = rest.get(..header_length).ok_or("its header ends in the middle")?;
        let rest = bytes.get(aligned(FRONT + header_length)..).ok_or("it ends behind its header")?;
        let Some((weights, behind)) = rest.split_at_checked(weights_length) else {
            let found = rest.len();
            return Err(format!("it has {found} bytes of weights, and {weights_length} are announced"));
        };
        let mut plan: Plan = serde_json::from_slice(header).map_err(|error| error.to_string())?;
        plan.weights = AlignedBytes::copied(weights);
        read_kernels(&mut plan, behind, aligned(rest.len() - behind.len()) - weights_length)?;
        plan.check()?;
        Ok(plan)
    }

    /// Writes the plan to a file. What was there is replaced when all is written.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), PlanFileError> {
        let io = |source| PlanFileError::Io { path: path.into(), source };
        let bytes = self.to_bytes().map_err(|why| io(io::Error::other(why)))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        let mut file = std::fs::File::create(&part).map_err(io)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io)?;
        std::fs::rename(&part, path).map_err(io)
    }

    /// Reads the plan of a file.
    ///
    /// # Errors
    /// If the file can't be read, or is no plan that can be run.
    pub fn read(path: &Path) -> Result<Plan, PlanFileError> {
        let bytes = std::fs::read(path).map_err(|source| PlanFileError::Io { path: path.into(), source })?;
        Plan::from_bytes(&bytes).map_err(|reason| PlanFileError::Damaged { path: path.into(), reason })
    }
}
