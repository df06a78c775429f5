//! Compiled kernels that are kept from one start to the next, since NVRTC takes seconds for them:
//! files in `$XDG_CACHE_HOME/symphony/kernels`, or below `$HOME/.cache`, one for each source,
//! target and version of the compiler. `SYMPHONY_KERNEL_CACHE` names another folder; empty, it has
//! nothing kept. What can't be read or written costs a compilation and nothing else.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Kernels that nobody compiled for so long go when others are kept.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Bytes in front of the code: a number that differs where codes do, little-endian.
const CHECK_BYTES: usize = 8;

/// Where compiled kernels are kept.
pub(super) struct KeptKernels {
    folder: Option<PathBuf>,
}

impl KeptKernels {
    /// Returns those of the user whom the program runs for.
    pub(super) fn of_this_user() -> Self {
        Self { folder: folder_of(|name| std::env::var_os(name)) }
    }

    /// Returns the code that is kept under a key, else makes it and keeps it.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn find_or_make<E>(
        &self,
        key: impl Hash,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let Some(folder) = &self.folder else { return make() };
        let file = folder.join(format!("{:016x}", fingerprint(key)));
        if let Some(code) = read(&file) {
            return Ok(code);
        }
        let code = make()?;
        let _ = keep(folder, &file, &code);
        Ok(code)
    }
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable("SYMPHONY_KERNEL_CACHE") {
        return (!folder.is_empty()).then(|| folder.into());
    }
    let of_base = |name| variable(name).map(PathBuf::from).filter(|base| base.is_absolute());
    let base = of_base("XDG_CACHE_HOME").or_else(|| Some(of_base("HOME")?.join(".cache")))?;
    Some(base.join("symphony/kernels"))
}

/// Returns a number that differs where what it is made of does.
pub(super) fn fingerprint(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Returns the code of a file; `None` where there is none that is whole.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(file).ok()?;
    let (check, code) = bytes.split_first_chunk::<CHECK_BYTES>()?;
    (u64::from_le_bytes(*check) == fingerprint(code)).then(|| bytes.split_off(CHECK_BYTES))
}

/// Writes a file in one step, so that a program that starts at the same time reads all of it or
/// nothing, and removes old ones.
fn keep(folder: &Path, file: &Path, code: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)?.flatten() {
        let written = entry.metadata().and_then(|data| data.modified());
        if written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT_FOR)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let part = file.with_extension(format!("{:016x}", fastrand::u64(..)));
    let mut writing = fs::File::create_new(&part)?;
    let written = writing.write_all(&fingerprint(code).to_le_bytes()).and_then(|()| writing.write_all(code));
    written.and_then(|()| fs::rename(&part, file)).inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes code of 100 times a byte; returns it, and whether it was made now.
    fn code(kept: &KeptKernels, key: &str, byte: u8) -> (Vec<u8>, bool) {
        let mut made = false;
        let code = kept.find_or_make(key, || {
            made = true;
            Ok::<_, ()>(vec![byte; 100])
        });
        (code.unwrap(), made)
    }

    #[test]
    fn code_is_made_once_for_each_key() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptKernels { folder: Some(folder.path().join("kernels")) };
        assert_eq!(code(&kept, "one", 1), (vec![1; 100], true));
        assert_eq!(code(&kept, "two", 2), (vec![2; 100], true));
        assert_eq!(code(&kept, "one", 3), (vec![1; 100], false));
        assert_eq!(fs::read_dir(folder.path().join("kernels")).unwrap().count(), 2);
        assert_eq!(kept.find_or_make("three", || Err("wrong")), Err("wrong"));
        assert_eq!(code(&kept, "three", 3), (vec![3; 100], true));
    }

    #[test]
    fn a_file_that_is_cut_or_changed_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptKernels { folder: Some(folder.path().to_owned()) };
        code(&kept, "one", 1);
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read(&file).unwrap();
        for length in [0, 7, 8, 107] {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(code(&kept, "one", 1), (vec![1; 100], true), "{length}");
            assert_eq!(fs::read(&file).unwrap(), whole);
        }
        for at in [0, 8, 107] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&file, changed).unwrap();
            assert_eq!(code(&kept, "one", 1), (vec![1; 100], true), "{at}");
        }
    }

    #[test]
    fn where_nothing_can_be_kept_code_is_made_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for folder in [None, Some(file.join("kernels"))] {
            let kept = KeptKernels { folder };
            assert_eq!(code(&kept, "one", 1), (vec![1; 100], true));
            assert_eq!(code(&kept, "one", 2), (vec![2; 100], true));
        }
    }

    #[test]
    fn old_code_goes_when_other_code_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let kept = KeptKernels { folder: Some(folder.path().to_owned()) };
        code(&kept, "one", 1);
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let old = std::time::SystemTime::now() - 2 * KEPT_FOR;
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        code(&kept, "two", 2);
        assert!(!file.exists());
        assert_eq!(code(&kept, "two", 3), (vec![2; 100], false));
    }

    #[test]
    fn the_folder_is_the_users_unless_it_is_named() {
        let of =
            |set: &[(&str, &str)]| folder_of(|name| Some(set.iter().find(|(one, _)| *one == name)?.1.into()));
        assert_eq!(of(&[("HOME", "/home/a")]), Some("/home/a/.cache/symphony/kernels".into()));
        let both = [("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")];
        assert_eq!(of(&both), Some("/c/symphony/kernels".into()));
        assert_eq!(of(&[("HOME", ""), ("XDG_CACHE_HOME", "relative")]), None);
        assert_eq!(of(&[("HOME", "/home/a"), ("SYMPHONY_KERNEL_CACHE", "k")]), Some("k".into()));
        assert_eq!(of(&[("HOME", "/home/a"), ("SYMPHONY_KERNEL_CACHE", "")]), None);
    }
}
