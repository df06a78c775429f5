//! A model in this process: an engine that has no other, and a thread that owns its frontend, sends
//! the requests of other threads and hands back their answers.

use super::source::RowTensors;
use super::target::{RowTarget, RunFault};
use crate::config::parse_config;
use crate::runtime::frontend::{Answer, Ask, Due, Frontend, ModelInfo, Outcome, Refusal, Ticket};
use crate::runtime::{Engine, StartError, no_progress};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_gpu::Signature;
use symphony_transport::message::{Class, Ending, ModelId};

/// The name of a model that is a file.
const FILE_NAME: &str = "model";

/// The SLO of a model without one, in milliseconds: the longest there is. No request has a
/// deadline.
const SLO_MS: u64 = 3_600_000;

/// The cores that are left to the scheduler's threads, the frontend and the readers of the input.
const OTHER_CORES: usize = 3;

/// The interval at which answers are looked for.
const POLL_EVERY: Duration = Duration::from_micros(100);

/// The interval at which the end is looked for while there is no work.
const IDLE_EVERY: Duration = Duration::from_millis(50);

type Outputs = Result<Vec<Vec<u8>>, RunFault>;

/// A request on its way to the frontend's thread.
struct LocalJob {
    rows: usize,
    /// The rows, in the layout of the model's signature.
    input: Vec<u8>,
    reply: Sender<Outputs>,
}

/// A model that an engine in this process runs.
pub(crate) struct LocalTarget {
    /// `None` once it ends.
    jobs: Option<Sender<LocalJob>>,
    thread: Option<JoinHandle<()>>,
    signature: Signature,
    identity: Vec<String>,
}

/// The reason why no engine runs the model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalStartError {
    /// The model can't be read.
    #[error("{0}")]
    Model(String),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl LocalTarget {
    /// Starts an engine for the ONNX file or the model's folder of a repository at `path`, with
    /// executors of the kind that `executor` names.
    ///
    /// Errors: the model can't be loaded, or the machine lacks what an engine needs.
    pub(crate) fn start(path: &Path, executor: &str) -> Result<LocalTarget, LocalStartError> {
        let wrong = |why: String| LocalStartError::Model(format!("{}: {why}", path.display()));
        let unreadable = |error: std::io::Error| {
            wrong(format!("can't be read ({error}); give an ONNX file, a model's folder, or --server URL"))
        };
        let about = fs::metadata(path).map_err(unreadable)?;
        let full = path.canonicalize().map_err(unreadable)?;
        let name = match full.file_name().and_then(|name| name.to_str()) {
            _ if !about.is_dir() => FILE_NAME,
            Some(name) => name,
            None => return Err(wrong("is no folder of a model".to_owned())),
        };
        let config =
            parse_config(&config_text(&full, name, executor)).map_err(|error| wrong(error.to_string()))?;
        let stamp = match &config.repository {
            Some(repository) => format!("{:?}", repository.stamp(name)),
            None => format!("{} {}.{:09}", about.size(), about.mtime(), about.mtime_nsec()),
        };
        let (engine, mut frontends) = Engine::start(config, 1, no_progress())?;
        let mut frontend = frontends.pop().expect("one frontend was asked for");
        let model =
            frontend.find_model(name).ok_or_else(|| wrong("the folder has no version".to_owned()))?.clone();
        let identity = vec![
            full.display().to_string(),
            format!("version {} on {}", model.version, model.platform),
            stamp,
        ];
        let (jobs, queue) = channel();
        let signature = model.signature.clone();
        let serving = move || {
            LocalServer { frontend, model, waiting: HashMap::new() }.serve(&queue);
            engine.stop();
        };
        let thread = std::thread::Builder::new().name("frontend".into()).spawn(serving);
        let thread = thread.map_err(StartError::Thread)?;
        Ok(LocalTarget { jobs: Some(jobs), thread: Some(thread), signature, identity })
    }

    /// Returns rows in the layout of the signature.
    fn packed(&self, rows: &[RowTensors]) -> Vec<u8> {
        let row_bytes = self.signature.input_bytes();
        let mut input = vec![0; row_bytes * rows.len()];
        // A model without inputs has rows of no bytes.
        for (packed, row) in input.chunks_exact_mut(row_bytes.max(1)).zip(rows) {
            for (at, tensor) in row.iter().enumerate() {
                packed[self.signature.input_range(at)].copy_from_slice(tensor);
            }
        }
        input
    }
}

impl Drop for LocalTarget {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so, and nobody waits for it any more.
            let _ = thread.join();
        }
    }
}

impl RowTarget for LocalTarget {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn identity(&self) -> Vec<String> {
        self.identity.clone()
    }

    fn run(&self, rows: &[RowTensors]) -> Outputs {
        let (reply, answer) = channel();
        let job = LocalJob { rows: rows.len(), input: self.packed(rows), reply };
        let ended = || RunFault::Refused("the engine has ended".to_owned());
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)?;
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }
}

/// The thread that owns the frontend.
struct LocalServer {
    frontend: Frontend,
    model: ModelInfo,
    waiting: HashMap<Ticket, Sender<Outputs>>,
}

impl LocalServer {
    /// Serves jobs until nobody can send any more and all are answered.
    fn serve(mut self, jobs: &Receiver<LocalJob>) {
        let mut open = true;
        while open || !self.waiting.is_empty() {
            open = self.take_jobs(jobs);
            let (waiting, signature) = (&mut self.waiting, &self.model.signature);
            let answered = self.frontend.poll(|ticket, answer| {
                if let Some(reply) = waiting.remove(&ticket) {
                    // A thread that was interrupted waits no more.
                    let _ = reply.send(outputs(signature, &answer));
                }
            });
            if answered == 0 && !self.waiting.is_empty() {
                std::thread::sleep(POLL_EVERY);
            }
        }
    }

    /// Takes the jobs that have come; waits for one a little while there is nothing else to do.
    /// Returns false once nobody can send any more.
    fn take_jobs(&mut self, jobs: &Receiver<LocalJob>) -> bool {
        if self.waiting.is_empty() {
            match jobs.recv_timeout(IDLE_EVERY) {
                Ok(job) => self.submit(job),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => self.submit(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn submit(&mut self, LocalJob { rows, input, reply }: LocalJob) {
        let row_bytes = self.model.signature.input_bytes();
        let ask = Ask { model: self.id(), rows, due: Due::Never, class: Class::LOWEST };
        let fill = |row: usize, slot: &mut [u8]| {
            slot.copy_from_slice(&input[row * row_bytes..(row + 1) * row_bytes])
        };
        let fault = match self.frontend.submit(&ask, fill) {
            Ok(ticket) => {
                self.waiting.insert(ticket, reply);
                return;
            }
            Err(Refusal::Overloaded) => RunFault::Overloaded,
            Err(refusal) => RunFault::Refused(refusal.to_string()),
        };
        let _ = reply.send(Err(fault));
    }

    fn id(&self) -> ModelId {
        self.model.id
    }
}

/// Returns the outputs of an answer, or why there are none.
fn outputs(signature: &Signature, answer: &Answer<'_>) -> Outputs {
    match answer.outcome {
        Outcome::Good | Outcome::Late(_) => {
            let of_output = |at: usize| {
                let range = signature.output_range(at);
                (0..answer.rows).flat_map(|row| &answer.row(row)[range.clone()]).copied().collect()
            };
            Ok((0..signature.outputs.len()).map(of_output).collect())
        }
        Outcome::Bad(Ending::Overloaded) => Err(RunFault::Overloaded),
        Outcome::Broken => Err(RunFault::Refused("the engine has broken down".to_owned())),
        Outcome::Bad(Ending::Stopped | Ending::Withdrawn) => {
            Err(RunFault::Refused("the engine was stopped".to_owned()))
        }
        Outcome::Bad(Ending::Failed) => Err(RunFault::Rows("the executor failed on it".to_owned())),
        other => Err(RunFault::Rows(format!("it did not run ({other:?})"))),
    }
}

/// Returns the CONFIG of an engine that has this model alone.
fn config_text(path: &Path, name: &str, executor: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = cores.saturating_sub(OTHER_CORES).max(1);
    // A string of JSON is one of TOML.
    let quoted = |text: &Path| serde_json::Value::from(text.to_string_lossy()).to_string();
    let model = if path.is_dir() {
        let (folder, load) = (quoted(path.parent().unwrap_or(path)), quoted(Path::new(name)));
        format!("[repository]\npath = {folder}\ncontrol = \"explicit\"\nload = [{load}]")
    } else {
        let file = quoted(path);
        format!("[[models]]\nname = \"{name}\"\nfile = {file}\nexecutor = \"{executor}\"")
    };
    format!("[[executors]]\nkind = \"{executor}\"\ncount = {count}\n{model}\nslo_ms = {SLO_MS}\n")
}
