//! The command line of `loadgen` (docs/design/specification.md, "Command lines"), and what it
//! makes: a [`Plan`], the [`Requests`] and a [`Target`].

use super::RunError;
use super::inputs::Inputs;
use super::report::{ALLOWED_LATENESS, Form};
use super::schedule::{Pace, Plan, PlanError, PlannedModel, Ramp};
use super::target::{self, Requests, ServerUrl, Settings, Target, Tensors, in_process};
use clap::{Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use symphony::config::{ArrivalFileError, ArrivalSource, parse_arrival, read_functions, read_workload};
use symphony_scheduler::workload::Arrival;
use symphony_transport::Nanos;

/// The rate at which a search for the goodput starts unless `--rate` is given.
const SEARCH_FROM_RPS: f64 = 100.0;

/// The most threads that send unless `--threads` is given; more than half of the machine's cores
/// are never taken.
const MOST_THREADS: usize = 4;

/// Sends requests to a server that speaks the KServe v2 protocol, and reports how they ended.
///
/// Latency counts from the time a request was meant to be sent. Exit codes: 0 done, 1 nothing was
/// answered, the server went away or, with --strict, the generator itself was late, 2 bad usage or
/// input, 3 something is missing on this machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "loadgen", version, max_term_width = 110)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    /// The subcommand, if the command does not send load.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// The server's address, like http://127.0.0.1:8000 (its gRPC port with --protocol grpc).
    #[arg(long, value_name = "URL", required_unless_present = "in_process", value_parser = ServerUrl::parse)]
    pub url: Option<ServerUrl>,

    /// Instead of a server, the engine in this process, without HTTP: a CONFIG as of
    /// `symphony serve`.
    #[arg(long, value_name = "CONFIG", conflicts_with = "url")]
    pub in_process: Option<PathBuf>,

    /// The model to ask.
    #[arg(long, value_name = "NAME", required_unless_present_any = ["workload", "models"])]
    pub model: Option<String>,

    /// Many models, separated by commas, or `all` that the server lists.
    #[arg(long, value_name = "LIST", conflicts_with = "model", value_delimiter = ',')]
    pub models: Vec<String>,

    /// The shares of --models: equal, or zipf:S (the k-th gets 1/k^S of what the first
    /// gets).
    #[arg(long, value_name = "P", default_value = "equal", value_parser = popularity)]
    pub popularity: f64,

    /// Many models with their rates, arrivals and SLOs: a workload file (docs/workloads.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "models", "popularity", "arrival", "slo_ms", "concurrency"])]
    pub workload: Option<PathBuf>,

    /// Requests per second on average, of all models together.
    #[arg(long, value_name = "R", required_unless_present_any = ["workload", "concurrency", "ramp", "find_goodput", "arrival"], allow_negative_numbers = true, value_parser = positive)]
    pub rate: Option<f64>,

    /// A rate that changes, of all models together: FROM:TO:SECONDS in a straight line,
    /// FROM:TO:SECONDS:N in N steps.
    #[arg(long, value_name = "RAMP", conflicts_with_all = ["rate", "concurrency"], value_parser = Ramp::parse)]
    pub ramp: Option<Ramp>,

    /// Search for the highest rate at which every model's bad rate is at most 1 %; --rate is where
    /// to start.
    #[arg(long, conflicts_with_all = ["ramp", "concurrency"])]
    pub find_goodput: bool,

    /// The search ends when the highest good and the lowest bad rate are this close, percent.
    #[arg(long, value_name = "PCT", default_value_t = 2.0, requires = "find_goodput", value_parser = percent)]
    pub resolution: f64,

    /// The time to send for, seconds; of --find-goodput, each step's. A workload file or a ramp has
    /// it too.
    #[arg(long, value_name = "S", required_unless_present_any = ["workload", "ramp"], allow_negative_numbers = true, value_parser = positive)]
    pub duration: Option<f64>,

    /// The time to send for before that without counting, seconds [default: 0, or what the workload
    /// file says].
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = not_negative)]
    pub warmup: Option<f64>,

    /// The latency asked for, milliseconds: sent as the request's time-out, and a later answer
    /// counts as late [default: the server's own SLO, and no time-out is sent].
    #[arg(long, value_name = "M", allow_negative_numbers = true, value_parser = positive)]
    pub slo_ms: Option<f64>,

    /// The time-out sent with each request, milliseconds, if it is not the SLO.
    #[arg(long, value_name = "M", allow_negative_numbers = true, value_parser = positive)]
    pub deadline_ms: Option<f64>,

    /// The priority class sent with each request: 0 is the highest.
    #[arg(long, value_name = "CLASS", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub priority: Option<u8>,

    /// Rows in each request: the protocol's batch dimension.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub rows: u32,

    /// Inputs from a file (.npy, .raw, .bin, .json) or a folder of them instead of random ones;
    /// MODEL=PATH for one model.
    #[arg(long, value_name = "PATH")]
    pub input: Vec<String>,

    /// The arrival process: poisson, uniform, gamma:K (shape K), trace:FILE (offsets in s, a
    /// line each) or minutes:FILE[#FUNCTION] (counts per minute, like the Azure Functions trace).
    #[arg(long, value_name = "A", default_value = "poisson", value_parser = arrival)]
    pub arrival: ArrivalSource,

    /// Play a trace or counts per minute X times as fast.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    pub time_scale: f64,

    /// Closed loop: N clients that each send the next request when the last is answered.
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "arrival"], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Option<u32>,

    /// The time such a client waits before its next request, milliseconds on average (exponentially
    /// distributed).
    #[arg(long, value_name = "M", default_value_t = 0.0, requires = "concurrency", value_parser = not_negative)]
    pub think_ms: f64,

    /// The protocol to speak.
    #[arg(long, value_enum, default_value_t = Protocol::Http)]
    pub protocol: Protocol,

    /// The form of tensors over HTTP [default: binary if the server supports it].
    #[arg(long, value_name = "HOW")]
    pub tensors: Option<TensorsAs>,

    /// Put inputs and outputs into shared memory; the server must be on this machine.
    #[arg(long, value_name = "KIND", conflicts_with = "tensors")]
    pub shared_memory: Option<SharedMemory>,

    /// Connections that may be open at once; when all are in use, requests wait for one [default:
    /// 512, gRPC 8].
    #[arg(long, visible_alias = "connections", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: Option<u32>,

    /// Threads that send [default: half of the cores, 4 at most].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// The generator's own lateness (p99) from which a run is warned about, and fails with
    /// --strict: percent of the tightest SLO.
    #[arg(long, value_name = "PCT", default_value_t = 100.0 * ALLOWED_LATENESS, value_parser = positive)]
    pub max_lateness: f64,

    /// Fail the run, with exit code 1, if the generator itself was late; else that is a warning.
    #[arg(long)]
    pub strict: bool,

    /// Seed of arrivals and inputs [default: 1, or what the workload file says].
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,

    /// Print one JSON object on standard output and nothing else there.
    #[arg(long)]
    pub json: bool,

    /// Write the run, second by second, for `loadgen compare`.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,

    /// Write a report as one HTML page with charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the report's charts into a folder, an SVG each.
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,

    /// Write a CSV with a line a second.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write a CSV with a line a request.
    #[arg(long, value_name = "FILE")]
    pub csv_requests: Option<PathBuf>,

    /// Write HdrHistogram's log: a histogram of latencies each second.
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,

    /// Write HdrHistogram's table of latencies by percentile.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
}

/// A subcommand of `loadgen`, which sends no load.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Compare two runs: what changed, by how much, and how sure that is.
    Compare(CompareArgs),
    /// A server that answers every request at once: what this machine's generator can send at the
    /// most.
    Echo(EchoArgs),
}

/// The command line of `loadgen compare`.
#[derive(Clone, Debug, Parser)]
pub struct CompareArgs {
    /// A run: a file of --save, or of --json, which can't tell how sure a change is.
    #[arg(value_name = "A.json")]
    pub a: PathBuf,

    /// The run to compare with it.
    #[arg(value_name = "B.json")]
    pub b: PathBuf,

    /// Exit with 1 if a figure of B is worse by more than this: percent of A's, or percentage
    /// points of bad requests.
    #[arg(long, value_name = "PCT", allow_negative_numbers = true, value_parser = not_negative)]
    pub fail_if_worse: Option<f64>,

    /// Print one JSON object on standard output and nothing else there.
    #[arg(long)]
    pub json: bool,

    /// Write the comparison as one HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The command line of `loadgen echo`.
#[derive(Clone, Copy, Debug, Parser)]
pub struct EchoArgs {
    /// The address to listen on for HTTP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000")]
    pub http: SocketAddr,

    /// The address to listen on for gRPC.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001")]
    pub grpc: SocketAddr,
}

/// A protocol to speak with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// KServe v2 over HTTP/1.1.
    Http,
    /// KServe v2 over gRPC.
    Grpc,
}

/// The form of tensors over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TensorsAs {
    /// Numbers in the JSON body.
    Json,
    /// Bytes after the JSON body: the protocol's binary tensor extension.
    Binary,
}

/// A kind of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SharedMemory {
    /// The system's own (POSIX).
    System,
}

impl Args {
    /// True if the server must list its models first.
    pub fn all_models(&self) -> bool {
        self.models == ["all"]
    }

    /// Returns the plan of the run; `all` are the server's models, needed only for
    /// [`Args::all_models`].
    ///
    /// Errors: the diagnostics of a file; flags that don't go together.
    pub fn plan(&self, all: &[String]) -> Result<Plan, PlanError> {
        let mut plan = match &self.workload {
            Some(file) => self.workload_plan(file)?,
            None => self.flags_plan(if self.all_models() { all } else { &self.models })?,
        };
        if let Some(ramp) = &self.ramp {
            plan = plan.at_rate(ramp.mean_rps());
        }
        plan.checked()
    }

    fn pace(&self) -> Pace {
        match self.concurrency {
            Some(clients) => {
                Pace::Closed { clients: clients as usize, think: Nanos::from_millis_f64(self.think_ms) }
            }
            None => Pace::Open { ramp: self.ramp, time_scale: self.time_scale },
        }
    }

    fn workload_plan(&self, file: &Path) -> Result<Plan, PlanError> {
        let workload = read_workload(file).map_err(|diagnostics| PlanError(diagnostics.to_string()))?;
        if !workload.queries.is_empty() {
            let file = file.display();
            return Err(PlanError(format!(
                "{file}: has [[queries]], which only `simulate` runs; leave them out"
            )));
        }
        let rate_rps = self.rate.unwrap_or(workload.rate_rps);
        let model = |model: symphony_scheduler::workload::WorkloadModel| PlannedModel {
            name: model.name,
            slo: Some(model.slo),
            rate_rps: rate_rps * model.share,
            arrival: model.arrival,
        };
        Ok(Plan {
            models: workload.models.into_iter().map(model).collect(),
            warmup: self.warmup.map_or(workload.warmup, Nanos::from_secs_f64),
            duration: self.duration.map_or(workload.duration, Nanos::from_secs_f64),
            seed: self.seed.unwrap_or(workload.seed),
            pace: self.pace(),
        })
    }

    fn flags_plan(&self, many: &[String]) -> Result<Plan, PlanError> {
        let names: Vec<&str> = self.model.iter().chain(many).map(String::as_str).collect();
        if names.is_empty() {
            return Err(PlanError("the server lists no model that is ready".into()));
        }
        let own_rate = self.arrival.has_own_rate();
        let rate_rps = match (self.rate, self.pace()) {
            (Some(rate), _) => rate,
            (None, _) if self.find_goodput => SEARCH_FROM_RPS,
            (None, Pace::Open { ramp: None, .. }) if !own_rate => {
                return Err(PlanError("give --rate <R>, the requests per second".into()));
            }
            // Only their proportions count.
            (None, _) => 1.0,
        };
        if own_rate && (self.find_goodput || self.ramp.is_some()) {
            let what = "--find-goodput and --ramp need an --arrival whose rate can be chosen";
            return Err(PlanError(what.into()));
        }
        let weight = |rank: usize| (rank as f64).powf(-self.popularity);
        let sum: f64 = (1..=names.len()).map(weight).sum();
        let functions = self.functions(&names)?;
        let arrivals = (0..names.len()).map(|at| self.arrival_of(functions.get(at)));
        let arrivals = arrivals.collect::<Result<Vec<_>, _>>().map_err(|e| PlanError(e.to_string()))?;
        let model = |(rank, name): (usize, &&str)| PlannedModel {
            name: (*name).into(),
            slo: self.slo_ms.map(Nanos::from_millis_f64),
            rate_rps: rate_rps * weight(rank) / sum,
            arrival: arrivals[rank - 1].clone(),
        };
        let duration = self.duration.map(Nanos::from_secs_f64).or(self.ramp.map(|ramp| ramp.over));
        Ok(Plan {
            models: (1..).zip(&names).map(model).collect(),
            warmup: Nanos::from_secs_f64(self.warmup.unwrap_or_default()),
            duration: duration.unwrap_or_default(),
            seed: self.seed.unwrap_or(1),
            pace: self.pace(),
        })
    }

    /// Loads a model's arrival process; `function`: whose counts per minute it has, where several
    /// models share a file.
    fn arrival_of(&self, function: Option<&String>) -> Result<Arrival, ArrivalFileError> {
        match (&self.arrival, function) {
            (ArrivalSource::Minutes { file, function: None }, Some(function)) => {
                let (file, function) = (file.clone(), Some(function.clone()));
                ArrivalSource::Minutes { file, function }.load()
            }
            (source, _) => source.load(),
        }
    }

    /// Returns the function whose counts per minute each of several models has: that of its name,
    /// or else that of its position.
    fn functions(&self, names: &[&str]) -> Result<Vec<String>, PlanError> {
        let ArrivalSource::Minutes { file, function: None } = &self.arrival else { return Ok(Vec::new()) };
        if names.len() < 2 {
            return Ok(Vec::new());
        }
        let functions = read_functions(file).map_err(|e| PlanError(e.to_string()))?;
        let of = |(position, name): (usize, &&str)| {
            let named = functions.iter().find(|function| function == name);
            named.or(functions.get(position)).cloned().ok_or_else(|| {
                let (all, models) = (functions.len(), names.len());
                let file = file.display();
                PlanError(format!("{file}: it has {all} functions; {models} models need one each"))
            })
        };
        names.iter().enumerate().map(of).collect()
    }

    /// Returns what every request carries.
    pub fn requests(&self) -> Requests {
        let split = |text: &String| match text.split_once('=') {
            Some((model, path)) => (Some(model.to_owned()), PathBuf::from(path)),
            None => (None, PathBuf::from(text)),
        };
        let mut inputs =
            Inputs { rows: self.rows as usize, seed: self.seed.unwrap_or(1), ..Inputs::default() };
        for (model, path) in self.input.iter().map(split) {
            match model {
                Some(model) => inputs.by_model.push((model, path)),
                None => inputs.all = Some(path),
            }
        }
        let tensors = match (self.shared_memory, self.tensors) {
            (Some(SharedMemory::System), _) => Tensors::Shared,
            (None, Some(TensorsAs::Json)) => Tensors::Json,
            (None, Some(TensorsAs::Binary)) => Tensors::Binary,
            (None, None) => Tensors::Best,
        };
        let deadline = self.deadline_ms.map(Nanos::from_millis_f64);
        Requests { inputs, deadline, class: self.priority, tensors }
    }

    /// The files that the run is to leave.
    pub fn files(&self) -> Vec<(Form, PathBuf)> {
        let files = [
            (Form::Saved, &self.save),
            (Form::Html, &self.html),
            (Form::Seconds, &self.csv),
            (Form::Requests, &self.csv_requests),
            (Form::Hlog, &self.hlog),
            (Form::Hgrm, &self.hgrm),
        ];
        files.into_iter().filter_map(|(form, path)| Some((form, path.clone()?))).collect()
    }

    /// The part of an SLO by which the generator may be late.
    pub fn allowed_lateness(&self) -> f64 {
        self.max_lateness / 100.0
    }

    /// The resolution of a search for the goodput, if one is wanted: 0.02 is 2 %.
    pub fn goodput_search(&self) -> Option<f64> {
        self.find_goodput.then_some(self.resolution / 100.0)
    }

    /// Makes the target of the load.
    ///
    /// Errors: an engine that can't start; flags that don't go together.
    pub fn target(&self) -> Result<Box<dyn Target>, RunError> {
        match (&self.url, &self.in_process) {
            (Some(url), _) => {
                let settings = Settings {
                    server: url.clone(),
                    connections: self.max_connections.map(|n| n as usize),
                    threads: self.threads.map_or_else(default_threads, usize::from),
                };
                match (self.protocol, self.tensors) {
                    (Protocol::Grpc, Some(TensorsAs::Json)) => {
                        Err(RunError::Usage("gRPC has no JSON: leave --tensors json out".into()))
                    }
                    (Protocol::Grpc, _) => Ok(target::over_grpc(settings)),
                    (Protocol::Http, _) => Ok(target::over_http(settings)),
                }
            }
            (None, Some(config)) => in_process::start(config),
            (None, None) => Err(RunError::Usage("give --url or --in-process".into())),
        }
    }
}

fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, MOST_THREADS)
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&x: &f64| x > 0.0 && x <= 1e9);
    number.ok_or_else(|| "it must be a number above 0 and up to 1e9".into())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&x: &f64| (0.0..=1e9).contains(&x));
    number.ok_or_else(|| "it must be a number from 0 to 1e9".into())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| (0.1..=50.0).contains(x));
    number.ok_or_else(|| "it must be a number of percent from 0.1 to 50".into())
}

/// The exponent of Zipf's law; 0 is equal shares.
fn popularity(text: &str) -> Result<f64, String> {
    let exponent = match text {
        "equal" => Some(0.0),
        _ => {
            text.strip_prefix("zipf:").and_then(|s| s.parse().ok()).filter(|s: &f64| (0.0..=10.0).contains(s))
        }
    };
    exponent.ok_or_else(|| "it must be equal, or zipf:S with S from 0 to 10, like zipf:0.9".into())
}

fn arrival(text: &str) -> Result<ArrivalSource, String> {
    parse_arrival(text).map_err(|right| format!("it must be {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let arguments = std::iter::once("loadgen").chain(line.split_whitespace());
        Args::try_parse_from(arguments).map_err(|e| {
            assert_eq!(e.exit_code(), 2);
            e.to_string()
        })
    }

    const GOOD: &str = "--url http://127.0.0.1:8000 --model m --rate 100 --duration 5";

    #[test]
    fn a_single_model_is_a_plan_of_one_stream() {
        let line = format!("{GOOD} --slo-ms 25 --arrival gamma:0.5 --warmup 1 --seed 9");
        let plan = parse(&line).unwrap().plan(&[]).unwrap();
        let model = PlannedModel {
            name: "m".into(),
            slo: Some(Nanos::from_millis(25)),
            rate_rps: 100.0,
            arrival: Arrival::Gamma(0.5),
        };
        assert_eq!(plan.models, [model]);
        assert_eq!((plan.warmup, plan.duration), (Nanos::from_secs(1), Nanos::from_secs(5)));
        assert_eq!((plan.seed, plan.pace), (9, Pace::OPEN));
    }

    #[test]
    fn clients_that_wait_for_answers_need_no_rate() {
        let plan = parse("--url http://h --model m --concurrency 8 --duration 5").unwrap().plan(&[]).unwrap();
        assert_eq!(plan.pace, Pace::Closed { clients: 8, think: Nanos::ZERO });
    }

    #[test]
    fn a_workload_brings_models_rates_and_times_and_the_command_line_may_override_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.toml");
        let model = "[[models]]\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 20\n";
        let text = format!(
            "gpus = 1\nrate_rps = 100\nwarmup_s = 2\n{model}name = \"a\"\nshare = 3\n{model}name = \"b\"\n"
        );
        std::fs::write(&file, text).unwrap();
        let line = format!("--workload {} --url http://h", file.display());
        let plan = parse(&line).unwrap().plan(&[]).unwrap();
        let rates: Vec<f64> = plan.models.iter().map(|m| m.rate_rps).collect();
        assert_eq!(rates, [75.0, 25.0]);
        assert_eq!(plan.models[0].slo, Some(Nanos::from_millis(20)));
        assert_eq!((plan.warmup, plan.duration), (Nanos::from_secs(2), Nanos::from_secs(30)));
        let plan = parse(&format!("{line} --rate 8 --duration 1 --warmup 0")).unwrap().plan(&[]).unwrap();
        assert_eq!((plan.models[1].rate_rps, plan.duration), (2.0, Nanos::from_secs(1)));
        std::fs::write(&file, "gpus = 0").unwrap();
        let error = parse(&line).unwrap().plan(&[]).unwrap_err().to_string();
        assert!(error.contains("w.toml:1: gpus: is 0; it must be") && error.lines().count() == 3, "{error}");
    }

    #[test]
    fn bad_command_lines_are_refused_with_what_would_be_right() {
        for (line, part) in [
            ("", "--url <URL>"),
            ("--url http://h --rate 1 --duration 1", "--model <NAME>"),
            ("--url http://h --models a,b --model c --rate 1 --duration 1", "cannot be used with"),
            ("--url http://h --model m --rate 1 --duration 1 --popularity zipf:x", "like zipf:0.9"),
            ("--url http://h --model m --ramp 1:2", "FROM:TO:SECONDS"),
            ("--url http://h --model m --ramp 1:2:3 --rate 5", "cannot be used with"),
            ("--url http://h --model m --duration 1 --find-goodput --concurrency 2", "cannot be used with"),
            ("--url http://h --model m --rate 1 --duration 1 --resolution 1", "--find-goodput"),
            ("--url http://h --model m --rate 1 --duration 1 --priority 4", "0..=3"),
            ("--url http://h --model m --rate 1 --duration 1 --rows 0", "1..=65536"),
            ("--url http://h --model m --duration 1", "--rate <R>"),
            ("--url http://h --model m --rate 1", "--duration <S>"),
            ("--url https://h --model m --rate 1 --duration 1", "https is not in this version"),
            ("--url 127.0.0.1:8000 --model m --rate 1 --duration 1", "http://127.0.0.1:8000"),
            ("--url http://h --model m --rate -1 --duration 1", "above 0"),
            ("--url http://h --model m --rate nan --duration 1", "above 0"),
            ("--url http://h --model m --rate 1 --duration 1 --arrival often", "\"poisson\", \"uniform\""),
            ("--url http://h --model m --rate 1 --duration 1 --slo-ms 0", "above 0"),
            ("--url http://h --model m --rate 1 --duration 1 --concurrency 2", "cannot be used with"),
            ("--url http://h --model m --concurrency 0 --duration 1", "1..=65536"),
            ("--url http://h --model m --rate 1 --duration 1 --protocol smtp", "http, grpc"),
            ("--url http://h --workload f --model m", "cannot be used with"),
            ("--url http://h --in-process c --model m --rate 1 --duration 1", "cannot be used with"),
        ] {
            let error = parse(line).err().unwrap_or_else(|| panic!("`{line}` was taken"));
            assert!(error.contains(part), "`{line}` gave: {error}");
        }
    }

    #[test]
    fn a_trace_that_can_not_be_read_is_an_error_before_anything_is_sent() {
        let error = parse(&format!("{GOOD} --arrival trace:/no/such/file")).unwrap().plan(&[]).unwrap_err();
        assert!(error.to_string().contains("/no/such/file: the trace can't be read"), "{error}");
    }

    #[test]
    fn many_models_share_the_rate_by_their_popularity() {
        let rates = |flags: &str| -> Vec<f64> {
            let line = format!("--url http://h --models a,b,c --duration 1 {flags}");
            let plan = parse(&line).unwrap().plan(&[]).unwrap();
            plan.models.iter().map(|m| m.rate_rps.round()).collect()
        };
        assert_eq!(rates("--rate 300"), [100.0; 3]);
        assert_eq!(rates("--rate 1100 --popularity zipf:1"), [600.0, 300.0, 200.0]);
        assert_eq!(rates("--ramp 200:400:9"), [100.0; 3]);
        let all = parse("--url http://h --models all --rate 8 --duration 1").unwrap();
        let names = ["x".to_owned(), "y".to_owned()];
        assert!(all.all_models() && all.plan(&names).unwrap().models[1].name == "y");
        let none = all.plan(&[]).unwrap_err().to_string();
        assert_eq!(none, "the server lists no model that is ready");
    }

    #[test]
    fn each_model_has_the_counts_of_its_name_or_of_its_position() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counts.csv");
        std::fs::write(&file, "HashFunction,1\nf,3\nb,4\n").unwrap();
        let plan = |models: &str| {
            let line = format!("--url http://h {models} --duration 60 --arrival minutes:{}", file.display());
            parse(&line).unwrap().plan(&[])
        };
        let functions: Vec<_> = plan("--models a,b").unwrap().models.into_iter().map(|m| m.arrival).collect();
        assert_eq!(functions, [Arrival::Minutes([3].into()), Arrival::Minutes([4].into())]);
        assert_eq!(plan("--model a").unwrap().schedule().unwrap().count(), 7);
        let error = plan("--models a,c,d").unwrap_err().to_string();
        assert!(error.ends_with("it has 2 functions; 3 models need one each"), "{error}");
    }

    #[test]
    fn requests_carry_what_the_flags_say() {
        let line =
            format!("{GOOD} --input in.npy --input n=dir --rows 4 --deadline-ms 5 --shared-memory system");
        let requests = parse(&line).unwrap().requests();
        assert_eq!(requests.inputs.all, Some("in.npy".into()));
        assert_eq!(requests.inputs.by_model, [("n".to_owned(), "dir".into())]);
        assert_eq!((requests.inputs.rows, requests.tensors), (4, Tensors::Shared));
        assert_eq!(requests.deadline, Some(Nanos::from_millis(5)));
    }

    #[test]
    fn a_rate_must_be_given_unless_the_arrivals_have_one() {
        let error =
            parse("--url http://h --model m --duration 1 --arrival uniform").unwrap().plan(&[]).unwrap_err();
        assert_eq!(error.to_string(), "give --rate <R>, the requests per second");
        let search =
            parse("--url http://h --model m --duration 1 --find-goodput").unwrap().plan(&[]).unwrap();
        assert_eq!(search.total_rps(), SEARCH_FROM_RPS);
    }
}
