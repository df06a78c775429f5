//! A process that takes a share of a core in bursts: another program on the machine, for trials.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time from the beginning of one burst to that of the next.
const PERIOD: Duration = Duration::from_millis(50);

/// A busy process, which ends when this is dropped.
#[derive(Debug)]
pub struct BusyProcess(Child);

impl BusyProcess {
    /// Starts a copy of this program that takes `share` of a core, on any.
    ///
    /// Errors: the system gives no process.
    pub fn start(share: f64) -> io::Result<BusyProcess> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--be-busy", &share.to_string()]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(BusyProcess)
    }
}

impl Drop for BusyProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes `share` of a core until standard input is closed, as it is when the parent ends.
pub fn be_busy(share: f64) {
    let parent = std::thread::spawn(|| io::stdin().read_to_end(&mut Vec::new()));
    while !parent.is_finished() {
        let begun = Instant::now();
        while begun.elapsed() < PERIOD.mul_f64(share) {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(begun.elapsed()));
    }
}
