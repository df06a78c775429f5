//! Objects of a device that are given back when they are dropped, unless the device is lost: a call
//! to one may not return.

use super::driver::{Device, DeviceObject, Event};
use super::error::DriverError;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The pause between two looks at an event that is waited for.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// The time after which a device that a load waits for counts as lost.
pub(crate) const LOAD_PATIENCE: Duration = Duration::from_secs(60);

/// An open device, and why it was given up if it was.
pub struct OpenDevice {
    device: Arc<dyn Device>,
    lost: OnceLock<String>,
}

impl OpenDevice {
    /// Makes a device that can be used.
    pub fn new(device: Arc<dyn Device>) -> Arc<OpenDevice> {
        Arc::new(OpenDevice { device, lost: OnceLock::new() })
    }

    /// Returns the device, to be called.
    pub fn calls(&self) -> &dyn Device {
        &*self.device
    }

    /// Gives the device up for good, for the first reason that is given. What it has is not given
    /// back: it goes with the process.
    pub fn give_up(&self, reason: String) {
        let _ = self.lost.set(reason);
    }

    /// Gives the device up if nothing can run on it after this error. Returns the error.
    pub fn note(&self, error: DriverError) -> DriverError {
        if error.ends_device() {
            self.give_up(error.to_string());
        }
        error
    }

    /// Returns why the device was given up; `None` while it can be used.
    pub fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Waits for an event, asleep: for loads and measurements, on threads that may wait.
    ///
    /// Errors: the driver's, or the device is given up, which it is here if it has not answered
    /// after `patience`.
    pub(crate) fn wait_for(&self, event: Event, patience: Duration) -> Result<(), String> {
        let began = Instant::now();
        while !self.calls().is_over(event).map_err(|error| self.note(error).to_string())? {
            if let Some(reason) = self.lost() {
                return Err(reason.to_owned());
            }
            if began.elapsed() > patience {
                let reason = format!("it has not answered for {:.1} s", patience.as_secs_f64());
                self.give_up(reason.clone());
                return Err(reason);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

/// An object of a device, given back when it is dropped.
pub struct Owned<T: Copy + Into<DeviceObject>> {
    device: Arc<OpenDevice>,
    object: T,
}

impl<T: Copy + Into<DeviceObject>> Owned<T> {
    /// Takes an object of this device.
    pub fn new(device: &Arc<OpenDevice>, object: T) -> Owned<T> {
        Owned { device: Arc::clone(device), object }
    }

    /// Returns the object.
    pub fn get(&self) -> T {
        self.object
    }
}

impl<T: Copy + Into<DeviceObject>> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.device.lost().is_none() {
            self.device.calls().release(self.object.into());
        }
    }
}
