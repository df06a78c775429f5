//! `symphony run`: the rows of a folder or a numpy file through a model, into a .npz file.

use super::failure::CommandFailure;
use crate::batch_client::{
    BatchReport, BatchRunError, BatchRunOptions, LocalStartError, LocalTarget, PixelScale, RowTarget,
    RunProgress, ServerTarget, run_batch,
};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The exit code of a run that a second signal ends at once.
const ENDED_AT_ONCE: i32 = 1;

/// The arguments of `run`.
#[derive(Args)]
pub(super) struct RunArguments {
    /// The model's name at --server; else an ONNX file, or the folder of a model in a repository
    model: String,
    /// A folder of pictures (PNG, JPEG) and .npy files, one for each row; a .npy file of rows; or a
    /// .npz file with an array for each input
    #[arg(long, value_name = "PATH")]
    input: PathBuf,
    /// The .npz file to write: an array for each output, and the names of a folder's files
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The server that runs the model; without it this process does
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// A file with a bearer token, for a server that requires one
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// What runs the model in this process
    #[arg(long, value_name = "KIND", value_parser = ["cpu", "onnxruntime"], default_value = "cpu", conflicts_with = "server")]
    executor: String,
    /// What a pixel's value, 0 to 255, is multiplied by [default: 1/255]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    scale: Option<f32>,
    /// What is subtracted then: one number, or one for each channel
    #[arg(long, value_name = "X,...", value_delimiter = ',', default_value = "0", allow_negative_numbers = true, value_parser = finite)]
    mean: Vec<f32>,
    /// What is divided by then: one number, or one for each channel
    #[arg(long, value_name = "X,...", value_delimiter = ',', default_value = "1", value_parser = divisor)]
    std: Vec<f32>,
    /// The rows of a request
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    rows: u16,
    /// The most requests in flight; fewer are while the server is overloaded
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,
    /// Seconds for which a server that does not answer is tried again
    #[arg(long, value_name = "S", default_value_t = 60)]
    patience: u32,
    /// Begin again: forget what an interrupted run has done, and replace the output
    #[arg(long)]
    restart: bool,
}

/// Runs the rows and writes the output; goes on where an earlier run was interrupted.
///
/// Errors: a wrong model, input or output, exit code 2; a machine that lacks something, exit code
/// 3; a run that ended before it was done, or in which rows failed, exit code 1.
pub(super) fn run(arguments: RunArguments) -> Result<(), CommandFailure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    watch_signals(&interrupted)
        .map_err(|error| CommandFailure::Machine(format!("signals can't be watched: {error}")))?;
    let target = find_target(&arguments)?;
    let RunArguments { input, output, scale, mean, std, rows, in_flight, patience, restart, .. } = arguments;
    let scale = scale.unwrap_or(PixelScale::default().scale);
    let options = BatchRunOptions {
        input,
        output,
        pixels: PixelScale { scale, mean, std },
        rows_per_request: rows.into(),
        in_flight: in_flight.into(),
        restart,
        patience: Duration::from_secs(patience.into()),
        interrupted,
    };
    let bar = progress_bar();
    let report = run_batch(target, &options, &mut |progress| show(&bar, progress));
    bar.finish_and_clear();
    let BatchReport { rows, failed } = report.map_err(|error| match error {
        BatchRunError::Input(why) => CommandFailure::Input(why),
        BatchRunError::Ended(why) => CommandFailure::Run(why),
    })?;
    let output = options.output.display();
    match failed {
        0 => eprintln!("{output}: {rows} rows"),
        failed => {
            return Err(CommandFailure::Run(format!(
                "{output}: {rows} rows, of which {failed} failed, see above: zeros stand for them, and the \
                 array `failed` says which they are"
            )));
        }
    }
    Ok(())
}

/// The first SIGINT or SIGTERM sets `interrupted`; a second one ends the process.
fn watch_signals(interrupted: &Arc<AtomicBool>) -> std::io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // Registered in this order: the first signal finds the flag not yet set.
        signal_hook::flag::register_conditional_shutdown(signal, ENDED_AT_ONCE, Arc::clone(interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(interrupted))?;
    }
    Ok(())
}

fn find_target(arguments: &RunArguments) -> Result<Arc<dyn RowTarget>, CommandFailure> {
    let RunArguments { model, server, token_file, executor, input, .. } = arguments;
    let Some(server) = server else {
        let target = LocalTarget::start(Path::new(model), executor).map_err(|error| match error {
            LocalStartError::Model(why) => CommandFailure::Input(why),
            LocalStartError::Start(error) => error.into(),
        })?;
        return Ok(Arc::new(target));
    };
    let token = token_file.as_deref().map(super::top::read_token).transpose()?;
    let token = token.as_deref().map(str::trim);
    Ok(Arc::new(ServerTarget::find(server, model, token, input).map_err(CommandFailure::Input)?))
}

/// Makes the bar on standard error, which shows nothing unless that is a terminal.
fn progress_bar() -> ProgressBar {
    let style = "{bar:30} {pos} of {len} rows, {per_sec}, {eta} left";
    ProgressBar::new(0).with_style(ProgressStyle::with_template(style).expect("the template is sound"))
}

fn show(bar: &ProgressBar, progress: RunProgress<'_>) {
    match progress {
        RunProgress::Begun { rows, done } => {
            bar.set_length(rows as u64);
            bar.set_position(done as u64);
            bar.reset_eta();
            if done > 0 {
                bar.suspend(|| eprintln!("{done} of {rows} rows are done already"));
            }
        }
        RunProgress::Done(rows) => bar.inc(rows as u64),
        RunProgress::Failed { row, why } => {
            bar.suspend(|| eprintln!("{row}: {why}"));
            bar.inc(1);
        }
    }
}

fn finite(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| "it must be a number".to_owned())
}

fn divisor(text: &str) -> Result<f32, String> {
    finite(text).ok().filter(|&number| number > 0.0).ok_or_else(|| "it must be a number above 0".to_owned())
}
