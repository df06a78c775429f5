//! Objects of a device that are given back when they are dropped, unless the device is lost: a call
//! to one may not return.

use super::driver::{Device, DeviceObject};
use super::error::DriverError;
use std::sync::{Arc, OnceLock};

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
