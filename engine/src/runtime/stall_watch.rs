//! The stall watch: a thread that looks at the heartbeats of the pinned ones several times a
//! second, and reports one that hangs as a fault that the engine can't survive.

use crate::runtime::fault::FaultLatch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The most time that is counted between two looks: if the whole process was stopped, no thread is
/// at fault.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// Starts the stall watch, for which a thread hangs after `timeout`. It ends at the next look after
/// `stop` was set, at once when it is unparked.
///
/// Errors: the system gives no thread.
pub(crate) fn start(
    faults: FaultLatch,
    timeout: Duration,
    stop: Arc<AtomicBool>,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("stall-watch".into()).spawn(move || {
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(LOOK_EVERY);
            let now = Instant::now();
            faults.look(now.duration_since(last).min(LONGEST_GAP), timeout);
            last = now;
        }
    })
}
