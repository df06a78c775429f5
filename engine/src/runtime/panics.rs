//! Panics as values: [`catch`] runs a closure and returns the message and the place of its panic,
//! so that a thread's end can be said in one line. The process's panic hook notes them; the hook
//! that was there before is called for panics of everything else, and for a back trace.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// The number of calls of [`catch`] that the thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The description of the thread's last panic within [`catch`].
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The payload of a panic because a promise between threads was broken: what has happened.
pub(crate) struct BrokenPromise(pub(crate) String);

/// A panic that was caught.
pub(crate) struct CaughtPanic {
    /// The place and the message, in one line.
    pub(crate) text: String,
    /// True if it was because of a [`BrokenPromise`].
    pub(crate) broke_promise: bool,
}

/// Calls `work` as [`catch_panic`] does.
///
/// Errors: it panicked; the text says where and why, in one line.
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_panic(work).map_err(|panic| panic.text)
}

/// Calls `work`. What it has changed when it panics is for the caller to judge.
///
/// Errors: it panicked. Standard error gets nothing of it, unless back traces are asked for
/// (`RUST_BACKTRACE`).
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|payload| {
        let noted = LAST.with_borrow_mut(Option::take);
        let text = noted.unwrap_or_else(|| format!("panicked: {}", message(payload.as_ref())));
        let broke_promise = payload.is::<BrokenPromise>();
        // The payload's destructor may panic too, and nothing needs it.
        std::mem::forget(payload);
        CaughtPanic { text, broke_promise }
    })
}

/// Puts the hook that notes panics before the process's own, the first time that it is called.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                return others(info);
            }
            LAST.set(Some(describe(info)));
            if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                others(info);
            }
        }));
    });
}

/// Returns the place and the message of a panic, in one line.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = message(info.payload());
    match info.location() {
        Some(place) => format!("panicked at {place}: {message}"),
        None => format!("panicked: {message}"),
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.or_else(|| payload.downcast_ref::<BrokenPromise>().map(|of| &*of.0));
    text.unwrap_or("without a message").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_one_line_with_its_place_and_a_value_passes_through() {
        assert_eq!(catch(|| 7), Ok(7));
        let text = catch(|| panic!("no\n  room for {}", 3)).unwrap_err();
        assert!(text.starts_with("panicked at ") && text.contains("panics.rs:"), "{text}");
        assert!(text.ends_with(": no room for 3"), "{text}");
        let inner = catch(|| catch(|| std::panic::panic_any(5)).unwrap_err()).unwrap();
        assert!(inner.ends_with(": without a message"), "{inner}");
    }
}
