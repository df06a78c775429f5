//! The processes that are measured: `symphony serve` and the echo server, each a child with its own
//! threads, whose core time and memory the system counts.

use super::Spin;
use crate::MeasureError;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit for a server to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binaries in the folder of the running one.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// Finds the binaries in the folder of the running one.
    ///
    /// Errors: one is missing.
    pub fn beside_this() -> Result<Binaries, MeasureError> {
        let this = std::env::current_exe()?;
        let folder = this.parent().unwrap_or(Path::new(".")).to_path_buf();
        for name in ["symphony", "loadgen", "simulate"] {
            if !folder.join(name).is_file() {
                return Err(MeasureError::Usage(format!(
                    "there is no {name} in {}; build it first: cargo build --release --workspace --bins",
                    folder.display()
                )));
            }
        }
        Ok(Binaries { folder })
    }

    /// Returns the path of one of them.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The scheduling priority of a server's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuPriority {
    /// The priority of any program.
    Normal,
    /// The lowest, SCHED_IDLE: the server runs while no other program is ready to run.
    Idle,
}

impl CpuPriority {
    fn command(self, program: &Path) -> Command {
        match self {
            CpuPriority::Normal => Command::new(program),
            CpuPriority::Idle => {
                let mut command = Command::new("chrt");
                command.args(["--idle", "0"]).arg(program);
                command
            }
        }
    }
}

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: Child,
    /// The address of its HTTP listener.
    pub http: SocketAddr,
    /// The address of its gRPC listener.
    pub grpc: SocketAddr,
    _config: Option<TempDir>,
}

impl Server {
    /// Starts `symphony serve` with this configuration, on free ports.
    ///
    /// Errors: it does not get ready; its error message is on standard error.
    pub fn symphony(
        binaries: &Binaries,
        config: &str,
        priority: CpuPriority,
    ) -> Result<Server, MeasureError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("symphony.toml");
        fs::write(&file, config)?;
        let mut command = priority.command(&binaries.path("symphony"));
        command.arg("serve").arg(&file).args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.args(["--log-level", "warn"]);
        Server::start("symphony", command, Some(folder))
    }

    /// Starts the echo server on `core`.
    ///
    /// Errors: those of [`Server::symphony`].
    pub fn echo(core: usize, spin: Spin, priority: CpuPriority) -> Result<Server, MeasureError> {
        let mut command = priority.command(&std::env::current_exe()?);
        command.arg("echo");
        if spin == Spin::Yes {
            command.arg("--spin");
        }
        command.args(["--core", &core.to_string()]);
        Server::start("echo", command, None)
    }

    /// Starts a server by a command, and keeps the folder of its configuration until it ends.
    ///
    /// Errors: those of [`Server::symphony`].
    pub fn start(
        name: &'static str,
        command: Command,
        config: Option<TempDir>,
    ) -> Result<Server, MeasureError> {
        Server::start_with(name, command, config, ["http", "grpc"])
    }

    /// Starts a process that answers operators alone, at an address that is that of all protocols.
    ///
    /// Errors: those of [`Server::symphony`].
    pub fn of_operators(name: &'static str, command: Command) -> Result<Server, MeasureError> {
        Server::start_with(name, command, None, ["admin http"; 2])
    }

    /// Starts a server whose listeners for HTTP and gRPC have these names in what it prints.
    fn start_with(
        name: &'static str,
        mut command: Command,
        config: Option<TempDir>,
        [http, grpc]: [&str; 2],
    ) -> Result<Server, MeasureError> {
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut addresses = BTreeMap::new();
        // A server that fails closes its output, which ends the lines.
        while !(addresses.contains_key(http) && addresses.contains_key(grpc)) {
            let Some(line) = lines.next().transpose()? else { break };
            let ready = line.strip_prefix("ready ").and_then(|url| url.split_once("://"));
            if let Some((scheme, address)) = ready.and_then(|(s, a)| Some((s.to_owned(), a.parse().ok()?))) {
                addresses.insert(scheme, address);
            }
        }
        match (addresses.get(http), addresses.get(grpc)) {
            (Some(&http), Some(&grpc)) => Ok(Server { name, child, http, grpc, _config: config }),
            _ => {
                let status = child.wait()?;
                Err(MeasureError::Failed(format!(
                    "{:?} ended before it was ready: {status}",
                    command.get_program()
                )))
            }
        }
    }

    /// Returns its name in messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the core time that its threads of this name have used.
    ///
    /// Errors: it has ended.
    pub fn core_time(&self, thread: &str) -> Result<Duration, MeasureError> {
        let mut time = Duration::ZERO;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            // A thread may end between the listing and here.
            let read = |file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
            if read("comm").trim() == thread {
                let ns = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
                time += Duration::from_nanos(ns.unwrap_or(0));
            }
        }
        Ok(time)
    }

    /// Returns its resident memory in bytes.
    ///
    /// Errors: it has ended.
    pub fn memory(&self) -> Result<u64, MeasureError> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| MeasureError::Failed("the system does not count its memory".into()))
    }

    /// Returns the number of files and sockets that it has open.
    ///
    /// Errors: it has ended.
    pub fn open_files(&self) -> Result<usize, MeasureError> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// Returns the answer's body to `GET path`.
    ///
    /// Errors: no answer, or another status than 200.
    pub fn get(&self, path: &str) -> Result<String, MeasureError> {
        let mut stream = TcpStream::connect(self.http)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.http)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
            _ => Err(MeasureError::Failed(format!(
                "GET {path} got {:?}",
                answer.lines().next().unwrap_or_default()
            ))),
        }
    }

    /// Sends SIGTERM and waits until the server has ended.
    ///
    /// Errors: it does not end in time, or not with exit code 0.
    pub fn stop(mut self) -> Result<(), MeasureError> {
        terminate(&self.child)?;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(MeasureError::Failed(format!("the server ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(MeasureError::Failed(format!("the server had not ended {PATIENCE:?} after it was asked to")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn terminate(child: &Child) -> Result<(), MeasureError> {
    let id = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let id = id.ok_or_else(|| MeasureError::Failed("the server has no process id".into()))?;
    rustix::process::kill_process(id, rustix::process::Signal::TERM)
        .map_err(|e| MeasureError::Failed(e.to_string()))
}
