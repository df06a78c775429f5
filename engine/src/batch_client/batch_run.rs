//! One run: threads read rows, send requests and store outputs, until all rows are done, the run is
//! interrupted, or no request can succeed.

use super::part_folder::{PartFolder, RunIdentity};
use super::pictures::PixelScale;
use super::request_window::{RequestWindow, Sent, wait_after};
use super::source::{InputRows, RowTensors};
use super::target::{RowTarget, RunFault};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The interval at which the rows that are done are marked so: what a kill costs.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(250);

/// The longest wait for requests in flight once the run is interrupted.
const END_WITHIN: Duration = Duration::from_secs(5);

/// What a run reads, writes and sends.
pub(crate) struct BatchRunOptions {
    /// The folder, .npy or .npz file of the rows.
    pub(crate) input: PathBuf,
    /// The .npz file to write.
    pub(crate) output: PathBuf,
    /// How pictures become tensors.
    pub(crate) pixels: PixelScale,
    /// The rows of a request.
    pub(crate) rows_per_request: usize,
    /// The most requests in flight.
    pub(crate) in_flight: usize,
    /// True to begin again, whatever there is of an earlier run.
    pub(crate) restart: bool,
    /// The time for which a server that does not answer is tried again.
    pub(crate) patience: Duration,
    /// Set by a signal that interrupts the run.
    pub(crate) interrupted: Arc<AtomicBool>,
}

/// What a run reports meanwhile.
pub(crate) enum RunProgress<'a> {
    /// The run begins: of that many rows some were done before.
    Begun { rows: usize, done: usize },
    /// Further rows are done.
    Done(usize),
    /// A row failed.
    Failed { row: &'a str, why: &'a str },
}

/// The end of a run whose output is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchReport {
    /// The number of rows.
    pub(crate) rows: usize,
    /// The number of rows that failed.
    pub(crate) failed: usize,
}

/// The reason why no output was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BatchRunError {
    /// The input or the output is wrong.
    Input(String),
    /// The run ended before it was done.
    Ended(String),
}

/// What the threads of a run share.
struct SharedRun {
    target: Arc<dyn RowTarget>,
    source: InputRows,
    part: PartFolder,
    window: RequestWindow,
    patience: Duration,
    rows_per_request: usize,
    /// The rows that no thread has taken yet.
    left: Mutex<std::vec::IntoIter<usize>>,
    /// Set once no request is to be sent any more.
    stop: AtomicBool,
    interrupted: Arc<AtomicBool>,
}

/// What a thread sends to the one that reports.
enum RowEvent {
    Done(usize),
    Failed(usize, String),
    Fatal(String),
}

/// Runs the rows of an input through a model, and writes the output. The run goes on where an
/// earlier one with the same output was interrupted.
///
/// Errors: a [`BatchRunError`]; what is done is kept.
pub(crate) fn run_batch(
    target: Arc<dyn RowTarget>,
    options: &BatchRunOptions,
    report: &mut dyn FnMut(RunProgress<'_>),
) -> Result<BatchReport, BatchRunError> {
    let (shared, rows) = prepare(target, options).map_err(BatchRunError::Input)?;
    let left = shared.left.lock().expect("no thread has it yet").len();
    report(RunProgress::Begun { rows, done: rows - left });
    let shared = Arc::new(shared);
    let (events, reported) = channel();
    for number in 0..options.in_flight.max(1) {
        let (shared, events) = (Arc::clone(&shared), events.clone());
        let thread = std::thread::Builder::new().name(format!("rows-{number}"));
        let failed = |error| BatchRunError::Ended(format!("the system gave no thread: {error}"));
        thread.spawn(move || shared.work(&events)).map_err(failed)?;
    }
    drop(events);
    let mut outcome = RunOutcome { done: rows - left, failed: vec![false; rows], fatal: None };
    outcome.follow(&shared, &reported, report);
    let kept = |why: &str| {
        let folder = PartFolder::beside(&options.output);
        BatchRunError::Ended(format!(
            "{why}; {} of {rows} rows are done and kept in {}: the same command goes on from there",
            outcome.done,
            folder.display()
        ))
    };
    shared.part.checkpoint().map_err(|why| kept(&why))?;
    if let Some(why) = &outcome.fatal {
        return Err(kept(why));
    }
    let failed = outcome.failed.iter().filter(|failed| **failed).count();
    if outcome.done + failed < rows {
        return Err(kept("interrupted"));
    }
    shared.part.finish(&options.output, shared.source.names(), &outcome.failed).map_err(|why| kept(&why))?;
    Ok(BatchReport { rows, failed })
}

/// Opens the input and what there is of the run. Returns the number of rows too.
fn prepare(target: Arc<dyn RowTarget>, options: &BatchRunOptions) -> Result<(SharedRun, usize), String> {
    let BatchRunOptions { output, restart, .. } = options;
    if output.exists() && !restart {
        return Err(format!(
            "{}: is there already; remove it, give --restart, or another --output",
            output.display()
        ));
    }
    let folder = PartFolder::lock(PartFolder::beside(output), *restart)?;
    let source = InputRows::open(&options.input, target.signature(), options.pixels.clone(), folder.path());
    let identity = |source: &InputRows| RunIdentity {
        model: target.identity(),
        input: source.identity.clone(),
        pixels: format!("{:?}", options.pixels),
        rows: source.rows(),
    };
    let source = match source {
        Ok(source) => source,
        Err(wrong) => {
            folder.remove_if_new();
            return Err(wrong);
        }
    };
    let (part, left) = folder.open(&identity(&source), &target.signature().outputs)?;
    let rows = source.rows();
    let shared = SharedRun {
        target,
        source,
        part,
        window: RequestWindow::new(options.in_flight),
        patience: options.patience,
        rows_per_request: options.rows_per_request.max(1),
        left: Mutex::new(left.into_iter()),
        stop: AtomicBool::new(false),
        interrupted: Arc::clone(&options.interrupted),
    };
    Ok((shared, rows))
}

/// What has become of the rows, as the reporting thread counts.
struct RunOutcome {
    done: usize,
    failed: Vec<bool>,
    fatal: Option<String>,
}

impl RunOutcome {
    /// Takes events until the threads have ended, and marks rows as done every now and then.
    fn follow(
        &mut self,
        shared: &SharedRun,
        events: &Receiver<RowEvent>,
        report: &mut dyn FnMut(RunProgress<'_>),
    ) {
        let (mut marked, mut stopped) = (Instant::now(), None::<Instant>);
        loop {
            match events.recv_timeout(CHECKPOINT_EVERY) {
                Ok(event) => self.take(event, shared, report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if marked.elapsed() >= CHECKPOINT_EVERY {
                marked = Instant::now();
                if let Err(why) = shared.part.checkpoint() {
                    self.take(RowEvent::Fatal(why), shared, report);
                }
            }
            if shared.is_stopped() && stopped.get_or_insert_with(Instant::now).elapsed() > END_WITHIN {
                return;
            }
        }
    }

    fn take(&mut self, event: RowEvent, shared: &SharedRun, report: &mut dyn FnMut(RunProgress<'_>)) {
        match event {
            RowEvent::Done(rows) => {
                self.done += rows;
                report(RunProgress::Done(rows));
            }
            RowEvent::Failed(row, why) => {
                self.failed[row] = true;
                report(RunProgress::Failed { row: &shared.source.row_name(row), why: &why });
            }
            RowEvent::Fatal(why) => {
                shared.stop.store(true, Ordering::Relaxed);
                self.fatal.get_or_insert(why);
            }
        }
    }
}

impl SharedRun {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed)
    }

    /// Takes rows, reads them and runs them, until none is left or the run is stopped.
    fn work(&self, events: &Sender<RowEvent>) {
        while !self.is_stopped() {
            let taken: Vec<usize> = {
                let mut left = self.left.lock().expect("no thread panics with it");
                left.by_ref().take(self.rows_per_request).collect()
            };
            if taken.is_empty() {
                return;
            }
            let (mut rows, mut tensors) = (Vec::new(), Vec::new());
            for row in taken {
                match self.source.read(row) {
                    Ok(read) => {
                        rows.push(row);
                        tensors.push(read);
                    }
                    Err(why) => self.tell(events, RowEvent::Failed(row, why)),
                }
            }
            if !rows.is_empty() {
                self.run_rows(&rows, &tensors, events);
            }
        }
    }

    /// Runs rows as one request, again and again while that may help. A request that the model
    /// fails on is sent again row by row, so that only the rows at fault fail.
    fn run_rows(&self, rows: &[usize], tensors: &[RowTensors], events: &Sender<RowEvent>) {
        let (mut refusals, mut unreachable) = (0, None::<Instant>);
        while !self.is_stopped() {
            let result = self.window.send(|| {
                let result = self.target.run(tensors);
                let overloaded = result == Err(RunFault::Overloaded);
                (if overloaded { Sent::Overloaded } else { Sent::Answered }, result)
            });
            refusals += 1;
            match result {
                Ok(outputs) => return self.tell(events, self.stored(rows, &outputs)),
                Err(RunFault::Overloaded) => unreachable = None,
                Err(RunFault::Unreachable(why)) => {
                    if unreachable.get_or_insert_with(Instant::now).elapsed() >= self.patience {
                        return self.tell(events, RowEvent::Fatal(why));
                    }
                }
                Err(RunFault::Rows(_)) if rows.len() > 1 => {
                    for (row, tensors) in rows.iter().zip(tensors) {
                        self.run_rows(&[*row], std::slice::from_ref(tensors), events);
                    }
                    return;
                }
                Err(RunFault::Rows(why)) => return self.tell(events, RowEvent::Failed(rows[0], why)),
                Err(RunFault::Refused(why)) => return self.tell(events, RowEvent::Fatal(why)),
            }
            std::thread::sleep(wait_after(refusals));
        }
    }

    fn stored(&self, rows: &[usize], outputs: &[Vec<u8>]) -> RowEvent {
        match self.part.store(rows, outputs) {
            Ok(()) => RowEvent::Done(rows.len()),
            Err(why) => RowEvent::Fatal(why),
        }
    }

    fn tell(&self, events: &Sender<RowEvent>, event: RowEvent) {
        // Once the reporting thread has waited long enough nobody listens.
        let _ = events.send(event);
    }
}
