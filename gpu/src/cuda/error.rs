//! Errors of a CUDA driver: what was called, what the driver says, and whether the device can go
//! on.

/// A result of a call to a driver.
pub type DriverResult<T> = Result<T, DriverError>;

/// A call that a driver did not carry out, in the driver's own words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedCall {
    /// What was asked for, such as `allocate`.
    pub call: &'static str,
    /// The driver's name of the error, such as `CUDA_ERROR_ECC_UNCORRECTABLE`.
    pub name: String,
    /// The driver's explanation.
    pub meaning: String,
}

impl std::fmt::Display for FailedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FailedCall { call, name, meaning } = self;
        write!(f, "{call}: {meaning} ({name})")
    }
}

/// An error of a CUDA driver, sorted by what can be done about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DriverError {
    /// The driver's library is not on the machine.
    #[error(
        "there is no CUDA driver on this machine: libcuda.so can't be opened; install NVIDIA's driver, or use \
         executors of another kind"
    )]
    NoDriver,
    /// The driver is older than the executor.
    #[error("the CUDA driver lacks {symbol}; install one for CUDA 12 or later")]
    MissingSymbol {
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// A device of this number is not there.
    #[error("there is no GPU {ordinal}: the CUDA driver has {count}, counted from 0")]
    NoDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The kernels can't be compiled.
    #[error("the kernels can't be compiled for this GPU: {reason}")]
    Kernels {
        /// Why, with the compiler's output.
        reason: String,
    },
    /// The memory can't be taken as it was asked for.
    #[error("the GPU's memory can't be taken as asked for: {wrong}")]
    Memory {
        /// What was asked for, and what there is.
        wrong: String,
    },
    /// The memory does not suffice.
    #[error("the GPU's memory does not suffice: {0}")]
    OutOfMemory(FailedCall),
    /// The device's memory has an error that could not be corrected.
    #[error("the GPU's memory is damaged: {0}")]
    Ecc(FailedCall),
    /// The device, or what the process has on it, is lost.
    #[error("the GPU is lost: {0}")]
    Lost(FailedCall),
    /// The driver refuses a call; the device can go on.
    #[error("the CUDA driver refuses a call: {0}")]
    Refused(FailedCall),
}

impl DriverError {
    /// Sorts an error of a call by the driver's number for it.
    pub fn of_call(call: FailedCall, number: u32) -> DriverError {
        // CUresult, in the order of cuda.h: a context is of no more use after these.
        const LOST: [u32; 18] =
            [4, 46, 201, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 720, 802, 911, 999];
        match number {
            2 => DriverError::OutOfMemory(call),
            214 => DriverError::Ecc(call),
            number if LOST.contains(&number) => DriverError::Lost(call),
            _ => DriverError::Refused(call),
        }
    }

    /// Returns true if nothing can run on the device any more.
    pub fn ends_device(&self) -> bool {
        matches!(self, DriverError::Ecc(_) | DriverError::Lost(_))
    }
}
