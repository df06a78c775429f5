//! The memory that an activity takes, as the operating system counts it. `profile` measures it
//! around the loading and measuring of a model; the dataplane does not use it.

use std::fs;
use std::io;

/// The process's resident memory at one moment, to compare a later peak with.
///
/// It counts the whole process: what other threads take in between counts too, and memory that was
/// freed before and is used again does not. So measure one model at a time, in a fresh process for
/// exact figures.
#[derive(Clone, Copy, Debug)]
pub struct Watermark {
    resident: u64,
}

impl Watermark {
    /// Records the resident memory and resets the peak.
    ///
    /// # Errors
    /// If `/proc/self` has no such field, or its peak cannot be reset: another system than Linux,
    /// or a sandbox.
    pub fn start() -> io::Result<Watermark> {
        // 5 resets the peak of the resident size: proc(5), clear_refs.
        fs::write("/proc/self/clear_refs", "5")?;
        Ok(Watermark { resident: status("VmRSS")? })
    }

    /// Returns the peak of the resident memory since the start, less that at the start, in bytes.
    ///
    /// # Errors
    /// If `/proc/self/status` has no such field.
    pub fn peak_growth(&self) -> io::Result<u64> {
        Ok(status("VmHWM")?.saturating_sub(self.resident))
    }
}

/// Returns a field of `/proc/self/status` that counts KiB, in bytes.
fn status(field: &str) -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    parse(&status, field).ok_or_else(|| io::Error::other(format!("/proc/self/status has no {field}")))
}

fn parse(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_in_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse(status, "VmRSS"), Some(1 << 20));
        assert_eq!(parse(status, "VmHWM"), Some(2 << 20));
        assert_eq!(parse(status, "VmSwap"), None);
        assert_eq!(parse("VmRSS: many kB\n", "VmRSS"), None);
    }

    #[test]
    fn a_peak_is_seen_after_its_memory_was_freed() {
        let Ok(watermark) = Watermark::start() else {
            return; // A sandbox without a writable /proc: there is nothing to see.
        };
        let block = vec![1u8; 64 << 20];
        assert_eq!(block.iter().step_by(4096).map(|&byte| u64::from(byte)).sum::<u64>(), 16 << 10);
        drop(block);
        assert!(watermark.peak_growth().unwrap() >= 32 << 20);
    }
}
