//! The error of a measurement, and the exit code that a command ends with.

/// An error that ends a measurement without figures.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The command line, or a file that it names, is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks something: exit code 3.
    #[error("{0}")]
    Machine(String),
    /// Something that was measured, or that measures, failed: exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl MeasureError {
    /// Returns the exit code of the command that ends with it.
    pub fn exit_code(&self) -> u8 {
        match self {
            MeasureError::Failed(_) => 1,
            MeasureError::Usage(_) => 2,
            MeasureError::Machine(_) => 3,
        }
    }
}

impl From<std::io::Error> for MeasureError {
    fn from(error: std::io::Error) -> MeasureError {
        MeasureError::Failed(error.to_string())
    }
}
