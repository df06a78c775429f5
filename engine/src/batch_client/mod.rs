//! `symphony run`: the rows of a folder or a numpy file through a model, without deadlines, into a
//! .npz file. `cli` calls it; docs/batch.md is for users.
//!
//! | file | content |
//! | --- | --- |
//! | `batch_run.rs` | one run: its threads, failures and end |
//! | `source.rs`, `pictures.rs`, `npy.rs` | rows from folders and files |
//! | `part_folder.rs` | what is kept of a run that was interrupted, and the output |
//! | `request_window.rs` | how many requests are in flight |
//! | `target.rs`, `server.rs`, `local.rs` | the model: behind a server, or in this process |

mod batch_run;
mod local;
mod npy;
mod part_folder;
mod pictures;
mod request_window;
mod server;
mod source;
mod target;

pub(crate) use self::batch_run::{BatchReport, BatchRunError, BatchRunOptions, RunProgress, run_batch};
pub(crate) use self::local::{LocalStartError, LocalTarget};
pub(crate) use self::pictures::PixelScale;
pub(crate) use self::server::ServerTarget;
pub(crate) use self::target::RowTarget;
