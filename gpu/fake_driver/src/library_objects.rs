//! The objects of NVIDIA's libraries of kernels in this crate's library: descriptions with their
//! attributes, by number; how often each function was called, and which are to fail.
//!
//! | variable | what it sets |
//! | --- | --- |
//! | `SYMPHONY_FAKE_LIBRARY_FAULTS` | `FUNCTION:AFTER:STATUS,…`: a function that returns this number after it has gone well so often, from then on |
//! | `SYMPHONY_FAKE_LIBRARY_REPORT` | a file that is written whenever a handle is destroyed, and with each run of ONNX Runtime's: a line `FUNCTION CALLS` for each function, and `left OBJECTS` for what was not destroyed |

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A result as the libraries' functions return it.
pub(crate) type Status = u32;

/// The statuses of objects that there are not, which the libraries have in common.
pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1;

/// An object: its kind, and its attributes by their numbers.
#[derive(Clone, Default)]
pub(crate) struct LibraryObject {
    pub(crate) kind: &'static str,
    attributes: HashMap<u32, Vec<u8>>,
}

impl LibraryObject {
    /// Sets an attribute.
    pub(crate) fn set(&mut self, attribute: u32, bytes: &[u8]) {
        self.attributes.insert(attribute, bytes.to_vec());
    }

    /// Returns an attribute that is a number of 4 or 8 bytes.
    pub(crate) fn number(&self, attribute: u32) -> Option<u64> {
        let bytes = self.attributes.get(&attribute)?;
        let four = || bytes.as_slice().try_into().ok().map(u32::from_le_bytes).map(u64::from);
        bytes.as_slice().try_into().ok().map(u64::from_le_bytes).or_else(four)
    }
}

/// All objects of the process, and its calls.
#[derive(Default)]
pub(crate) struct LibraryObjects {
    last: usize,
    by_number: HashMap<usize, LibraryObject>,
    calls: BTreeMap<&'static str, usize>,
}

static OBJECTS: OnceLock<Mutex<LibraryObjects>> = OnceLock::new();

/// Counts a call of a function.
///
/// Errors: it is to fail.
pub(crate) fn enter(function: &'static str) -> Result<MutexGuard<'static, LibraryObjects>, Status> {
    let mut objects = OBJECTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let calls = objects.calls.entry(function).or_default();
    *calls += 1;
    let faults = std::env::var("SYMPHONY_FAKE_LIBRARY_FAULTS").unwrap_or_default();
    for fault in faults.split(',') {
        if let [name, after, status] = fault.split(':').collect::<Vec<_>>()[..]
            && name == function
            && after.parse::<usize>().is_ok_and(|after| *calls > after)
        {
            return Err(status.parse().unwrap_or(NOT_INITIALIZED));
        }
    }
    Ok(objects)
}

impl LibraryObjects {
    /// Makes an object of a kind.
    pub(crate) fn make(&mut self, kind: &'static str) -> (usize, &mut LibraryObject) {
        self.last += 1;
        let object = LibraryObject { kind, ..LibraryObject::default() };
        (self.last, self.by_number.entry(self.last).insert_entry(object).into_mut())
    }

    /// Returns an object of a kind.
    pub(crate) fn find(&mut self, handle: *mut c_void, kind: &str) -> Result<&mut LibraryObject, Status> {
        let found = self.by_number.get_mut(&handle.addr());
        found.filter(|object| object.kind == kind).ok_or(NOT_INITIALIZED)
    }

    /// Destroys an object of a kind.
    pub(crate) fn destroy(&mut self, handle: *mut c_void, kind: &str) -> Result<(), Status> {
        self.find(handle, kind)?;
        self.by_number.remove(&handle.addr());
        if kind.ends_with("handle") {
            self.report();
        }
        Ok(())
    }

    /// Writes the report, if one is asked for.
    pub(crate) fn report(&self) {
        let Ok(path) = std::env::var("SYMPHONY_FAKE_LIBRARY_REPORT") else { return };
        let mut text = String::new();
        for (name, calls) in &self.calls {
            let _ = writeln!(text, "{name} {calls}");
        }
        let _ = writeln!(text, "left {}", self.by_number.len());
        // A report that can't be written is missing, which its reader notices.
        let _ = std::fs::write(path, text);
    }
}

/// Returns the status of a function.
pub(crate) fn ended(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(SUCCESS)
}

/// Makes an object where the caller has room for its address.
///
/// # Safety
/// `to` is null, or the caller's to be written.
pub(crate) unsafe fn give_object(
    to: *mut *mut c_void,
    function: &'static str,
    kind: &'static str,
    describe: impl FnOnce(&mut LibraryObject),
) -> Status {
    let made = enter(function).map(|mut objects| {
        let (number, object) = objects.make(kind);
        describe(object);
        number
    });
    match made {
        Err(status) => status,
        Ok(_) if to.is_null() => NOT_INITIALIZED,
        Ok(number) => {
            // SAFETY: it is the caller's to be written, and not null.
            unsafe { to.write(std::ptr::without_provenance_mut(number)) };
            SUCCESS
        }
    }
}

/// Destroys an object.
pub(crate) fn take_object(handle: *mut c_void, function: &'static str, kind: &str) -> Status {
    ended(enter(function).and_then(|mut objects| objects.destroy(handle, kind)))
}

/// Sets an attribute of an object.
///
/// # Safety
/// `from` is the address of this many bytes.
pub(crate) unsafe fn set_attribute(
    handle: *mut c_void,
    (function, kind): (&'static str, &str),
    attribute: u32,
    (from, bytes): (*const c_void, usize),
) -> Status {
    // SAFETY: the caller's.
    let value = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    ended(enter(function).and_then(|mut objects| {
        objects.find(handle, kind)?.set(attribute, value);
        Ok(())
    }))
}

/// Writes functions of a library that only make an object of a kind, or only destroy one.
macro_rules! object_functions {
    ($(create $create:ident: $created:expr;)* $(destroy $destroy:ident: $destroyed:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $create(to: *mut Handle) -> Status {
                // SAFETY: the caller's.
                unsafe { $crate::library_objects::give_object(to, stringify!($create), $created, |_| {}) }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $destroy(of: Handle) -> Status {
                $crate::library_objects::take_object(of, stringify!($destroy), $destroyed)
            }
        )*
    };
}

pub(crate) use object_functions;
