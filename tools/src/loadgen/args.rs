//! The command line of `loadgen` (DESIGN.md, section 9), and what it makes: a [`Plan`] and a [`Target`].

use super::http::{HttpTarget, ServerUrl};
use super::plan::{Pace, Plan, PlanError, PlannedModel};
use super::{RunError, Target};
use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use symphony::clock::Nanos;
use symphony::config::{parse_arrival, read_workload};
use symphony::workload::Arrival;

/// Sends requests to a server that speaks the KServe v2 protocol, and reports what came of them.
///
/// Latency counts from the time a request was meant to be sent. Exit codes: 0 done, 1 nothing was answered or
/// the server went away, 2 bad usage or input, 3 something is missing on this machine or in this version.
#[derive(Clone, Debug, Parser)]
#[command(name = "loadgen", version, max_term_width = 110)]
pub struct Args {
    /// The server's address, like http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", required_unless_present = "in_process", value_parser = ServerUrl::parse)]
    pub url: Option<ServerUrl>,

    /// Instead of a server, the engine in this process, without HTTP: a CONFIG as of `symphony serve`.
    #[arg(long, value_name = "CONFIG", conflicts_with = "url")]
    pub in_process: Option<PathBuf>,

    /// The model to ask.
    #[arg(long, value_name = "NAME", required_unless_present = "workload")]
    pub model: Option<String>,

    /// Many models with their rates, arrivals and SLOs: a workload file (docs/workloads.md).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "arrival", "slo_ms", "concurrency"])]
    pub workload: Option<PathBuf>,

    /// Requests per second on average; with --workload, of all models together.
    #[arg(long, value_name = "R", required_unless_present_any = ["workload", "concurrency"], allow_negative_numbers = true, value_parser = positive)]
    pub rate: Option<f64>,

    /// How long to send, seconds. With --workload the file says it, unless it is given here.
    #[arg(long, value_name = "S", required_unless_present = "workload", allow_negative_numbers = true, value_parser = positive)]
    pub duration: Option<f64>,

    /// How long to send before that without counting, seconds [default: 0, or what the workload file says].
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = not_negative)]
    pub warmup: Option<f64>,

    /// The latency asked for, milliseconds: sent as the request's time-out, and a later answer counts as late.
    #[arg(long, value_name = "M", allow_negative_numbers = true, value_parser = positive)]
    pub slo_ms: Option<f64>,

    /// When requests are sent: poisson, uniform, gamma:K (shape K) or trace:FILE (offsets in s, a line each).
    #[arg(long, value_name = "A", default_value = "poisson", value_parser = arrival)]
    pub arrival: Arrival,

    /// Closed loop: N clients that each send the next request when the last is answered.
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "arrival"], value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Option<u32>,

    /// The protocol to speak.
    #[arg(long, value_enum, default_value_t = Protocol::Http)]
    pub protocol: Protocol,

    /// Connections that may be open at once; when all are in use, requests wait for one.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,

    /// Seed of arrivals and inputs [default: 1, or what the workload file says].
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,

    /// Print one JSON object on standard output and nothing else there.
    #[arg(long)]
    pub json: bool,
}

/// A protocol to speak with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// KServe v2 over HTTP/1.1 with JSON bodies.
    Http,
    /// KServe v2 over gRPC: not in this version.
    Grpc,
}

impl Args {
    /// What to send when.
    ///
    /// Errors: a workload file with mistakes, all of them told.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        let plan = match &self.workload {
            Some(file) => self.workload_plan(file)?,
            None => self.single_plan(),
        };
        plan.checked()
    }

    fn workload_plan(&self, file: &Path) -> Result<Plan, PlanError> {
        let workload = read_workload(file).map_err(|mistakes| PlanError(mistakes.to_string()))?;
        let rate_rps = self.rate.unwrap_or(workload.rate_rps);
        let model = |model: symphony::workload::WorkloadModel| PlannedModel {
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
            pace: Pace::Open,
        })
    }

    fn single_plan(&self) -> Plan {
        let model = PlannedModel {
            name: self.model.clone().unwrap_or_default(),
            slo: self.slo_ms.map(Nanos::from_millis_f64),
            rate_rps: self.rate.unwrap_or_default(),
            arrival: self.arrival.clone(),
        };
        Plan {
            models: vec![model],
            warmup: Nanos::from_secs_f64(self.warmup.unwrap_or_default()),
            duration: Nanos::from_secs_f64(self.duration.unwrap_or_default()),
            seed: self.seed.unwrap_or(1),
            pace: self.concurrency.map_or(Pace::Open, |clients| Pace::Closed { clients: clients as usize }),
        }
    }

    /// What to send it to.
    ///
    /// Errors: an engine that can't start.
    pub fn target(&self) -> Result<Box<dyn Target>, RunError> {
        match (&self.url, &self.in_process) {
            (Some(url), _) => Ok(Box::new(HttpTarget::new(url.clone(), self.max_connections as usize))),
            (None, Some(config)) => super::in_process::start(config),
            (None, None) => Err(RunError::Usage("give --url or --in-process".into())),
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&x: &f64| x > 0.0 && x <= 1e9);
    number.ok_or_else(|| "it must be a number above 0 and up to 1e9".into())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|&x: &f64| (0.0..=1e9).contains(&x));
    number.ok_or_else(|| "it must be a number from 0 to 1e9".into())
}

fn arrival(text: &str) -> Result<Arrival, String> {
    parse_arrival(text).map_err(|right| format!("it must be {right}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        let words = std::iter::once("loadgen").chain(line.split_whitespace());
        Args::try_parse_from(words).map_err(|e| {
            assert_eq!(e.exit_code(), 2);
            e.to_string()
        })
    }

    const GOOD: &str = "--url http://127.0.0.1:8000 --model m --rate 100 --duration 5";

    #[test]
    fn a_single_model_is_a_plan_of_one_stream() {
        let line = format!("{GOOD} --slo-ms 25 --arrival gamma:0.5 --warmup 1 --seed 9");
        let plan = parse(&line).unwrap().plan().unwrap();
        let model = PlannedModel {
            name: "m".into(),
            slo: Some(Nanos::from_millis(25)),
            rate_rps: 100.0,
            arrival: Arrival::Gamma(0.5),
        };
        assert_eq!(plan.models, [model]);
        assert_eq!((plan.warmup, plan.duration), (Nanos::from_secs(1), Nanos::from_secs(5)));
        assert_eq!((plan.seed, plan.pace), (9, Pace::Open));
    }

    #[test]
    fn clients_that_wait_for_answers_need_no_rate() {
        let plan = parse("--url http://h --model m --concurrency 8 --duration 5").unwrap().plan().unwrap();
        assert_eq!(plan.pace, Pace::Closed { clients: 8 });
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
        let plan = parse(&line).unwrap().plan().unwrap();
        let rates: Vec<f64> = plan.models.iter().map(|m| m.rate_rps).collect();
        assert_eq!(rates, [75.0, 25.0]);
        assert_eq!(plan.models[0].slo, Some(Nanos::from_millis(20)));
        assert_eq!((plan.warmup, plan.duration), (Nanos::from_secs(2), Nanos::from_secs(30)));
        let plan = parse(&format!("{line} --rate 8 --duration 1 --warmup 0")).unwrap().plan().unwrap();
        assert_eq!((plan.models[1].rate_rps, plan.duration), (2.0, Nanos::from_secs(1)));
        std::fs::write(&file, "gpus = 0").unwrap();
        let error = parse(&line).unwrap().plan().unwrap_err().to_string();
        assert!(error.contains("w.toml:1: gpus: is 0; it must be") && error.lines().count() == 3, "{error}");
    }

    #[test]
    fn bad_command_lines_are_refused_with_what_would_be_right() {
        for (line, part) in [
            ("", "--url <URL>"),
            ("--url http://h --rate 1 --duration 1", "--model <NAME>"),
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
            let told = parse(line).err().unwrap_or_else(|| panic!("`{line}` was taken"));
            assert!(told.contains(part), "`{line}` gave: {told}");
        }
    }

    #[test]
    fn a_trace_that_can_not_be_read_is_told_before_anything_is_sent() {
        let error = parse(&format!("{GOOD} --arrival trace:/no/such/file")).unwrap().plan().unwrap_err();
        assert!(error.to_string().contains("/no/such/file: the trace can't be read"), "{error}");
    }
}
