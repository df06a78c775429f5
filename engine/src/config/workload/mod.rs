//! Workload files: TOML that describes models and their arrivals; docs/workloads.md lists every
//! key.
//!
//! | file | content |
//! | --- | --- |
//! | `file.rs` | the workload file itself |
//! | `zoo.rs` | a CSV file of models, which an entry may name |
//! | `applications.rs` | models whose requests have run times of their own |
//! | `queries.rs` | graphs of stages, each of one of the models |
//! | `arrivals.rs` | arrival processes, and the files of traces and of counts per minute |

mod applications;
mod arrivals;
mod file;
mod queries;
mod zoo;

pub use arrivals::{
    ArrivalFileError, ArrivalSource, parse_arrival, read_functions, read_minutes, read_trace,
};
pub use file::read_workload;
