//! Ports that may be in use for a moment: of a process that was killed just now the system gives
//! sockets back a little later, where an io_uring held them.

use std::fmt::Display;
use std::io;
use std::mem;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time after which a port that is in use belongs to somebody else. On a machine whose cores
/// are all taken the system was seen to hold one for three seconds.
const IN_USE: Duration = Duration::from_secs(10);

/// The pause before the next try.
const PAUSE: Duration = Duration::from_millis(20);

/// Returns what `listen` returns, as soon as that is not that the port is in use; that too after
/// ten seconds. `address` is where it listens, for the log.
///
/// Errors: those of `listen`.
pub(crate) fn once_free<T>(address: impl Display, listen: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    within(IN_USE, &address, listen)
}

fn within<T>(
    patience: Duration,
    address: &dyn Display,
    mut listen: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let since = Instant::now();
    let mut is_told = false;
    loop {
        let listening = listen();
        let in_use = listening.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
        if !in_use || since.elapsed() > patience {
            return listening;
        }
        if !mem::replace(&mut is_told, true) {
            tracing::warn!("{address} is in use; it is tried for {} s", patience.as_secs());
        }
        sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often is tried, where all tries but the last `frees_at` end with this error.
    fn tries(kind: io::ErrorKind, frees_at: usize) -> (usize, io::Result<()>) {
        let mut tried = 0;
        let listening = within(Duration::from_millis(100), &"here", || {
            tried += 1;
            if tried < frees_at { Err(kind.into()) } else { Ok(()) }
        });
        (tried, listening)
    }

    #[test]
    fn a_port_that_is_in_use_is_tried_again_and_one_that_is_refused_is_not() {
        assert!(matches!(tries(io::ErrorKind::AddrInUse, 3), (3, Ok(()))));
        assert!(matches!(tries(io::ErrorKind::PermissionDenied, 3), (1, Err(_))));
        let (tried, listening) = tries(io::ErrorKind::AddrInUse, usize::MAX);
        assert!(tried > 1 && listening.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse));
    }
}
