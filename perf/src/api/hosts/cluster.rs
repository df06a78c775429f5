//! An engine of three processes on loopback: a frontend, the scheduler, and a backend with emulated
//! GPUs; between them, if a delay is to be put in, a proxy for each listener.

use super::super::process::{Binaries, Server};
use super::HostsSetting;
use super::proxy::DelayProxy;
use crate::MeasureError;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time in which the GPUs have to be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time between two frames of a link, in milliseconds. A machine that stands still for less
/// than two of them makes nobody take a peer for dead.
const HEARTBEAT_MS: u32 = 1_000;

/// The running processes; they are killed when this is dropped.
pub(super) struct Cluster {
    pub(super) frontend: Server,
    scheduler: Server,
    _backend: Server,
    _proxies: Vec<DelayProxy>,
    _folder: TempDir,
}

/// The delays that the links have measured, in microseconds: that of requests, and those that the
/// policy allows for.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct MeasuredNetwork {
    /// The delay from the frontend to the scheduler: of a request's time, what is over when it
    /// is there.
    pub request_us: f64,
    /// d_ctrl, and the fetch of no bytes.
    pub control_us: f64,
    /// d_data.
    pub data_us_per_request: f64,
    /// d_resp.
    pub result_us: f64,
}

impl Cluster {
    /// Starts the processes, and waits until the GPUs are there. `delay` is put into each direction
    /// of each link.
    ///
    /// Errors: a process does not get ready.
    pub(super) fn start(
        binaries: &Binaries,
        setting: &HostsSetting,
        delay: Option<Duration>,
    ) -> Result<Cluster, MeasureError> {
        let folder = tempfile::tempdir()?;
        let cores = first_and_last_core();
        let [front, scheduler] = free_addresses()?;
        let mut proxies = Vec::new();
        let mut seen = |target: SocketAddr| -> Result<SocketAddr, MeasureError> {
            let Some(delay) = delay else { return Ok(target) };
            let proxy = DelayProxy::start(target, delay)?;
            let address = proxy.address;
            proxies.push(proxy);
            Ok(address)
        };
        let (front_seen, scheduler_seen) = (seen(front)?, seen(scheduler)?);
        let start = |role: &str, addresses: [SocketAddr; 2], flags: &[&str]| {
            let file = folder.path().join(format!("{role}.toml"));
            fs::write(&file, config(setting, addresses))?;
            let mut command = Command::new("taskset");
            let core = if role == "frontend" { cores[0] } else { cores[1] };
            command.args(["-c", &core.to_string()]).arg(binaries.path("symphony"));
            command.arg(role).arg(&file).args(flags).args(["--log-level", "warn"]);
            match role {
                "frontend" => Server::start("frontend", command, None),
                "scheduler" => Server::of_operators("scheduler", command),
                _ => Server::of_operators("backend", command),
            }
        };
        let admin = ["--admin", "127.0.0.1:0"];
        let scheduler = start("scheduler", [front, scheduler], &admin)?;
        let clients = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        let frontend = start("frontend", [front, scheduler_seen], &clients)?;
        let backend = start("backend", [front_seen, scheduler_seen], &admin)?;
        let cluster = Cluster { frontend, scheduler, _backend: backend, _proxies: proxies, _folder: folder };
        cluster.wait_for_links()?;
        Ok(cluster)
    }

    fn wait_for_links(&self) -> Result<(), MeasureError> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let metrics = self.scheduler.get("/metrics")?;
            if metrics
                .lines()
                .filter(|line| line.starts_with("symphony_link_up{"))
                .all(|line| line.ends_with(" 1"))
            {
                // The frontend's link to the backend is the last.
                std::thread::sleep(Duration::from_secs(1));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(MeasureError::Failed("the processes are not linked in time".into()))
    }

    /// Returns what the policy allows for now.
    ///
    /// Errors: the scheduler does not say.
    pub(super) fn measured(&self) -> Result<MeasuredNetwork, MeasureError> {
        let metrics = self.scheduler.get("/metrics")?;
        let us = |metric: &str, label: &str| {
            let label = format!("{label}}} ");
            let all = metrics.lines().filter(|line| line.starts_with(metric));
            let seconds = all.filter_map(|line| line.split_once(&label)?.1.parse::<f64>().ok());
            let most = seconds.reduce(f64::max).map(|seconds| (seconds * 1e9).round() / 1e3);
            most.ok_or_else(|| {
                MeasureError::Failed(format!("the scheduler does not say {metric} of {label}"))
            })
        };
        let allowed = |way: &str| us("symphony_allowed_delay_seconds{", &format!("way=\"{way}\""));
        Ok(MeasuredNetwork {
            request_us: us("symphony_link_delay_seconds{", "role=\"frontend\"")?,
            control_us: allowed("control")?,
            data_us_per_request: allowed("data_per_request")?,
            result_us: allowed("result")?,
        })
    }
}

/// Returns the CONFIG of a process that sees the frontend's host and the scheduler there.
fn config(setting: &HostsSetting, [front, scheduler]: [SocketAddr; 2]) -> String {
    let mut text = format!(
        "[[hosts]]\nname = \"front\"\nrole = \"frontend\"\naddress = \"{front}\"\n\
         [[hosts]]\nname = \"scheduler\"\nrole = \"scheduler\"\naddress = \"{scheduler}\"\n\
         [[hosts]]\nname = \"back\"\nrole = \"backend\"\n\
         [[executors]]\nkind = \"emulated\"\ncount = {}\nhost = \"back\"\n\
         [links]\nheartbeat_ms = {HEARTBEAT_MS}\n",
        setting.gpus
    );
    for model in setting.models() {
        let super::super::EmulatedModel { name, alpha_ms, beta_ms, slo_ms } = model;
        text += &format!(
            "[[models]]\nname = \"{name}\"\nexecutor = \"emulated\"\nslo_ms = {slo_ms}\n\
             profile = {{ alpha_ms = {alpha_ms}, beta_ms = {beta_ms} }}\n"
        );
    }
    text
}

/// Returns the cores of the frontend, and of the scheduler and the backend. A process with a core
/// for each of its threads would spin there, and the others could not run: with a single core,
/// threads sleep when they find no work.
fn first_and_last_core() -> [usize; 2] {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    [cores.first(), cores.last()].map(|core| core.map_or(0, |core| core.id))
}

/// Returns addresses of loopback that are free now.
fn free_addresses() -> Result<[SocketAddr; 2], MeasureError> {
    let listeners =
        [TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?];
    Ok([listeners[0].local_addr()?, listeners[1].local_addr()?])
}
