//! Messages that always have room: their ring holds all that can be under way, or room was checked
//! before. Where one has none after all, a promise between threads is broken, a request would be
//! lost in silence, and nothing that follows can be trusted: the thread panics, which is a fault of
//! the engine.

use crate::runtime::panics::BrokenPromise;
use std::panic::panic_any;

/// The result of a push that can't fail.
pub(crate) trait AlwaysRoom {
    /// Passes if the message was taken. `what` names the message and says why there is room.
    ///
    /// # Panics
    /// If there was none.
    fn always_has_room(self, what: &str);
}

impl<T> AlwaysRoom for Result<(), T> {
    #[inline]
    #[track_caller]
    fn always_has_room(self, what: &str) {
        if self.is_err() {
            lost(what);
        }
    }
}

#[cold]
#[track_caller]
fn lost(what: &str) -> ! {
    panic_any(BrokenPromise(format!("a full ring has lost {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::panics::catch_panic;
    use symphony_transport::ring::ring;

    #[test]
    fn a_message_that_finds_no_room_is_a_panic_that_names_it() {
        let (mut sender, _receiver) = ring::<u64>(1);
        while sender.push(1).is_ok() {}
        let push = || sender.push(2).always_has_room("a number: there is always room");
        let lost = catch_panic(push).unwrap_err();
        assert!(lost.text.starts_with("panicked at engine/src/runtime/full_ring.rs:"), "{}", lost.text);
        assert!(lost.text.ends_with("a full ring has lost a number: there is always room"), "{}", lost.text);
        assert!(lost.broke_promise && !catch_panic(|| panic!("another")).unwrap_err().broke_promise);
    }
}
