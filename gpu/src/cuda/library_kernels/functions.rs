//! The functions of a shared library that is opened at run time, each looked for when it is opened:
//! one that is missing is an error, and no later call can lack it. Their types are those of
//! NVIDIA's headers, with plain numbers in place of C's enumerations.

use crate::cuda::error::{DriverError, FailedCall};
use libloading::Library;
use std::error::Error;
use std::ffi::{CStr, c_char, c_void};

/// An object of a library, by its address.
pub(super) type Handle = *mut c_void;

/// A result as the libraries' functions return it; 0 is success.
pub(super) type LibraryStatus = u32;

/// Declares the functions of a library, and how they are found.
macro_rules! library_functions {
    ($(#[$attribute:meta])* $name:ident { $($symbol:ident: fn($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$attribute])*
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        struct $name {
            $($symbol: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            /// Opens the first library of these names.
            ///
            /// Errors: there is none, or it lacks a function.
            fn open(names: &[&str]) -> Result<$name, String> {
                let library = functions::open(names)?;
                let functions = $name {
                    // SAFETY: the function has this type in NVIDIA's header.
                    $($symbol: unsafe { functions::find(&library, stringify!($symbol)) }?,)*
                };
                // It stays open, as the functions are used to the process's end.
                std::mem::forget(library);
                Ok(functions)
            }
        }
    };
}

/// Opens the first library of these names.
///
/// Errors: why none can be opened.
pub(super) fn open(names: &[&str]) -> Result<Library, String> {
    for name in names {
        // SAFETY: opens NVIDIA's library of this name, whose initialisers are NVIDIA's.
        match unsafe { Library::new(*name) } {
            Ok(library) => return Ok(library),
            Err(error) => {
                let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                // A library that is there and can't be loaded says more than one that is not.
                if !text.starts_with(&format!("{name}: cannot open")) {
                    return Err(format!("{name} can't be opened: {text}"));
                }
            }
        }
    }
    Err(format!("{} can't be opened", names.join(" or ")))
}

/// Returns a function of a library.
///
/// # Safety
/// `F` is the type of the function of this name.
pub(super) unsafe fn find<F: Copy>(library: &Library, symbol: &str) -> Result<F, String> {
    // SAFETY: the caller's.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found.map(|function| *function).map_err(|_| format!("the library lacks {symbol}"))
}

/// Returns a status as an error, if it is one.
pub(super) fn checked(status: LibraryStatus) -> Result<(), LibraryStatus> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// Returns a version as NVIDIA's libraries number them: 90100 is 9.1.0.
pub(super) fn version_text(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Checks that a version is not older than this one.
///
/// Errors: it is.
pub(super) fn check_version(version: usize, least: usize) -> Result<(), String> {
    // Older versions are numbered otherwise.
    let least_text = version_text(least);
    if version < least {
        Err(format!("its version is {version}; {least_text} or later is needed"))
    } else {
        Ok(())
    }
}

/// Returns the error of a library's call.
///
/// # Safety
/// `text` is null, or a text that ends in 0 and stays.
pub(super) unsafe fn failure(call: &'static str, library: &str, text: *const c_char) -> DriverError {
    let name = if text.is_null() {
        "an error without a name".to_owned()
    } else {
        // SAFETY: the caller's.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    DriverError::Refused(FailedCall { call, name, meaning: format!("{library} has failed") })
}

/// An object of a library, which is destroyed when this is dropped.
pub(super) struct NativeObject {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> LibraryStatus,
}

// SAFETY: objects of the libraries may be used from any thread, by one at a time.
unsafe impl Send for NativeObject {}

impl NativeObject {
    /// Makes an object by a function that writes its address.
    ///
    /// Errors: the status of `make`.
    ///
    /// # Safety
    /// `make` writes the address of an object that `destroy` destroys.
    pub(super) unsafe fn new(
        make: impl FnOnce(*mut Handle) -> LibraryStatus,
        destroy: unsafe extern "C" fn(Handle) -> LibraryStatus,
    ) -> Result<NativeObject, LibraryStatus> {
        let mut handle = std::ptr::null_mut();
        match make(&mut handle) {
            0 => Ok(NativeObject { handle, destroy }),
            status => Err(status),
        }
    }

    /// Returns the object's address.
    pub(super) fn get(&self) -> Handle {
        self.handle
    }
}

impl Drop for NativeObject {
    fn drop(&mut self) {
        // SAFETY: it was made for this function, and is used no more. A fault can't be mended here.
        unsafe { (self.destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_too_old_or_not_there_says_what_would_be_right() {
        assert_eq!(version_text(91_200), "9.12.0");
        assert_eq!(check_version(90_100, 90_000), Ok(()));
        // cuDNN 8.9.7.
        assert_eq!(
            check_version(8_907, 90_000).unwrap_err(),
            "its version is 8907; 9.0.0 or later is needed"
        );
        let missing = open(&["libnone.so", "libnone.so.1"]).err().unwrap();
        assert_eq!(missing, "libnone.so or libnone.so.1 can't be opened");
    }
}
