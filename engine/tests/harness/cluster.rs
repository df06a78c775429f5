//! An engine spread over processes: two frontends, a scheduler, a backend with emulated GPUs and
//! one that computes an ONNX model. On loopback, or wherever a [`ClusterSetup`] puts them.

use super::onnx;
use super::process::{ServerProcess, request, wait_until};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The requests that each client sends in a second.
const RATE: f64 = 20.0;

/// The window in which answers are counted, to find out that all is well again.
const WINDOW: Duration = Duration::from_millis(500);

/// The processes, by their names in CONFIG.
pub(crate) const NAMES: [&str; 5] = ["front-a", "front-b", "scheduler", "gpus", "cpu"];

/// The role of each.
pub(crate) const ROLES: [&str; 5] = ["frontend", "frontend", "scheduler", "backend", "backend"];

/// Makes what a host's CONFIG has besides, from its folder and its place in [`NAMES`].
pub(crate) type MoreConfig = Box<dyn Fn(&Path, usize) -> String>;

/// Where the hosts of a cluster are, and what they have besides.
pub(crate) struct ClusterSetup {
    /// The addresses of the hosts that others connect to: the frontends, and the scheduler.
    pub(crate) addresses: [IpAddr; 3],
    /// The ports at which these listen for other hosts; free ones if not given.
    pub(crate) ports: Option<[u16; 3]>,
    /// CONFIG says where they are. Else each is told where it is itself.
    pub(crate) in_config: bool,
    pub(crate) gpus: usize,
    /// The time that requests have.
    pub(crate) slo: Duration,
    /// The time in which the good rate has to be back: ten times what it should take, since other
    /// programs may run on the machine.
    pub(crate) back_within: Duration,
    /// What is put before the command of a host.
    pub(crate) before: Box<dyn Fn(usize) -> Vec<String>>,
    /// What a host's CONFIG has besides; the files that it names are made in the folder.
    pub(crate) more: MoreConfig,
}

impl Default for ClusterSetup {
    /// Hosts on loopback, with links in clear.
    fn default() -> ClusterSetup {
        ClusterSetup {
            addresses: [IpAddr::V4(Ipv4Addr::LOCALHOST); 3],
            ports: None,
            in_config: true,
            gpus: 2,
            slo: Duration::from_secs(1),
            back_within: Duration::from_secs(20),
            before: Box::new(|_| Vec::new()),
            more: Box::new(|_, _| String::new()),
        }
    }
}

/// The processes of a cluster.
pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    setup: ClusterSetup,
    processes: Vec<Option<ServerProcess>>,
    /// Where the hosts that others connect to listen for them, or will when they start next.
    pub(crate) addresses: [SocketAddr; 3],
    /// Where the frontends serve HTTP.
    pub(crate) http: [SocketAddr; 2],
}

/// Returns ports that are free now, below those that the system gives to connections: a port of a
/// process that is away must not become that of a client which looks for it.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = u64::from(std::process::id()) * 64;
    std::array::from_fn(|_| {
        loop {
            let port = 12_000 + ((first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000) as u16;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
    })
}

/// The model y = x + 1.
fn increment() -> Vec<u8> {
    onnx::file(&onnx::graph(
        &[onnx::node("Add", &["x", "one"], &["y"], &[])],
        &[onnx::constant("one", 1.0)],
        &[onnx::tensor("x", onnx::FLOAT, &[0, 4])],
        &[onnx::tensor("y", onnx::FLOAT, &[0, 4])],
    ))
}

/// Writes the CONFIG of a host, and what it names. `addresses` are those of the frontends and of
/// the scheduler.
pub(crate) fn write_config(folder: &Path, addresses: [SocketAddr; 3], setup: &ClusterSetup, more: &str) {
    let (gpus, slo) = (setup.gpus, setup.slo.as_millis());
    std::fs::write(folder.join("increment.onnx"), increment()).unwrap();
    let host = |at: usize| {
        let (name, role) = (NAMES[at], ROLES[at]);
        let address = match setup.in_config {
            true => format!("address = \"{}\"\n", addresses[at]),
            false => String::new(),
        };
        format!("[[hosts]]\nname = \"{name}\"\nrole = \"{role}\"\n{address}")
    };
    let text = format!(
        "{}{}{}\
         [[hosts]]\nname = \"gpus\"\nrole = \"backend\"\n[[hosts]]\nname = \"cpu\"\nrole = \"backend\"\n\
         [[executors]]\nkind = \"emulated\"\ncount = {gpus}\nhost = \"gpus\"\n\
         [[executors]]\nkind = \"cpu\"\nhost = \"cpu\"\n\
         [[models]]\nname = \"emulated\"\nexecutor = \"emulated\"\nslo_ms = {slo}\n\
         profile = {{ alpha_ms = 1, beta_ms = 5 }}\nmax_batch = 16\n\
         inputs = [{{ name = \"x\", datatype = \"FP32\", shape = [4] }}]\n\
         outputs = [{{ name = \"y\", datatype = \"FP32\", shape = [4] }}]\n\
         [[models]]\nname = \"increment\"\nfile = \"increment.onnx\"\nexecutor = \"cpu\"\nslo_ms = {slo}\n\
         profile = {{ alpha_ms = 1, beta_ms = 5 }}\nmax_batch = 16\n{more}",
        host(2),
        host(0),
        host(1),
    );
    std::fs::write(folder.join("symphony.toml"), text).unwrap();
}

impl Cluster {
    /// Starts all processes.
    pub(crate) fn start(setup: ClusterSetup) -> Cluster {
        let mut cluster = Cluster::prepare(setup);
        (0..NAMES.len()).for_each(|at| cluster.start_one(at));
        cluster
    }

    /// Makes a cluster of which no process runs yet.
    pub(crate) fn prepare(setup: ClusterSetup) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let ports: [u16; 5] = free_ports();
        let listens_at = |at: usize| setup.ports.map_or(ports[at], |given| given[at]);
        let address = |at: usize| SocketAddr::new(setup.addresses[at], listens_at(at));
        let addresses = [0, 1, 2].map(address);
        for (at, name) in NAMES.iter().enumerate() {
            let own = folder.path().join(name);
            std::fs::create_dir(&own).unwrap();
            write_config(&own, addresses, &setup, &(setup.more)(&own, at));
        }
        let http = [0, 1].map(|at| SocketAddr::new(setup.addresses[at], ports[3 + at]));
        let processes = NAMES.map(|_| None).into_iter().collect();
        Cluster { folder, setup, processes, addresses, http }
    }

    /// Starts a process that is not there.
    pub(crate) fn start_one(&mut self, at: usize) {
        let before = (self.setup.before)(at);
        let words = before.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_symphony"), ROLES[at]]);
        let words: Vec<&str> = words.collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.folder.path().join(NAMES[at])).args(["--name", NAMES[at]]);
        if at < 2 {
            command.args(["--http", &self.http[at].to_string(), "--grpc", "127.0.0.1:0"]);
        } else {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        if let Some(address) = self.addresses.get(at).filter(|_| !self.setup.in_config) {
            command.args(["--address", &address.to_string()]);
        }
        let log = self.folder.path().join(format!("{}.log", NAMES[at]));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let process = ServerProcess::try_start(&mut command, Stdio::from(log));
        let process = process.unwrap_or_else(|error| panic!("{}: {error}\n{}", NAMES[at], self.logs()));
        self.processes[at] = Some(process);
    }

    /// Returns the folder of a host's CONFIG.
    pub(crate) fn config(&self, at: usize) -> std::path::PathBuf {
        self.folder.path().join(NAMES[at])
    }

    pub(crate) fn process(&mut self, at: usize) -> &mut ServerProcess {
        self.processes[at].as_mut().unwrap()
    }

    /// Waits until each frontend serves both models, and fails unless answers have the outputs that
    /// belong to their inputs.
    pub(crate) fn check_answers(&self) {
        for address in self.http {
            for model in ["increment", "emulated"] {
                wait_until(&format!("{model} is served"), || {
                    ask(address, model, 7).is_ok_and(|(status, _)| status == 200)
                });
            }
            for x in 0..20 {
                let (status, body) = ask(address, "increment", x).unwrap();
                assert_eq!((status, output(&body)), (200, vec![x as f64 + 1.0; 4]), "{body}");
            }
        }
    }

    /// Ends all processes as Ctrl-C does, frontends first, and fails unless each says that nothing
    /// was lost.
    pub(crate) fn interrupt_all(&mut self) {
        for (at, name) in NAMES.iter().enumerate() {
            assert_eq!(self.process(at).interrupt(), Some(0), "{name}: {}", self.logs());
        }
    }

    /// Returns the last lines of all logs.
    pub(crate) fn logs(&self) -> String {
        let log = |name: &&str| {
            let text = self.log(name);
            let last: Vec<&str> = text.lines().rev().take(12).collect();
            format!("{name}:\n  {}\n", last.into_iter().rev().collect::<Vec<_>>().join("\n  "))
        };
        NAMES.iter().map(log).collect()
    }

    /// Returns the log of a host.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default()
    }
}

/// What became of a client's requests.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) sent: AtomicU64,
    good: AtomicU64,
    /// Answered otherwise: dropped, late, failed.
    bad: AtomicU64,
    /// Not answered, since the frontend was not there or died.
    unanswered: AtomicU64,
    /// Answered with what is not the answer.
    pub(crate) wrong: Mutex<Option<String>>,
    /// When each request was sent, and whether its answer was good.
    each: Mutex<Vec<(Instant, bool)>>,
}

/// Clients of both models at a frontend, each with one request at a time, until told to stop.
pub(crate) struct Clients {
    answers: Arc<Answers>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Sends a request, and returns the status and the body of the answer.
pub(crate) fn ask(address: SocketAddr, model: &str, x: u64) -> std::io::Result<(u16, String)> {
    let body = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":[{x},{x},{x},{x}]}}]}}"
    );
    let path = format!("/v2/models/{model}/infer");
    request(address, ("POST", &path), "", &body).map(|(status, _, body)| (status, body))
}

/// Returns the output that an answer has.
pub(crate) fn output(body: &str) -> Vec<f64> {
    let data = body.split_once("\"data\":[").map_or("", |(_, rest)| rest);
    data.split(']').next().unwrap_or("").split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

impl Clients {
    pub(crate) fn start(address: SocketAddr) -> Clients {
        let (answers, stop) = (Arc::new(Answers::default()), Arc::new(AtomicBool::new(false)));
        let threads = ["emulated", "increment"].map(|model| {
            let (answers, stop) = (Arc::clone(&answers), Arc::clone(&stop));
            std::thread::spawn(move || {
                for x in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    answers.take(address, model, x % 1_000_000);
                    std::thread::sleep(Duration::from_secs_f64(1.0 / RATE));
                }
            })
        });
        Clients { answers, stop, threads: threads.into() }
    }

    /// Returns the good, the bad and the unanswered so far.
    pub(crate) fn counts(&self) -> [u64; 3] {
        self.answers.counts()
    }

    /// Returns how long after `since` requests were sent from which on 95 % were answered well,
    /// over [`WINDOW`]. They must have been for so long by now.
    pub(crate) fn good_again(&self, since: Instant) -> Duration {
        let mut each = self.answers.each.lock().unwrap().clone();
        each.retain(|(sent, _)| *sent >= since);
        each.sort_unstable();
        let is_good_from = |&from: &Instant| {
            let window = each.iter().filter(|(sent, _)| (from..from + WINDOW).contains(sent));
            let [good, all] =
                window.fold([0, 0], |[good, all], (_, is_good)| [good + u64::from(*is_good), all + 1]);
            good as f64 >= 0.95 * all as f64
        };
        let back = each.iter().map(|(sent, _)| *sent).find(is_good_from);
        back.map_or_else(|| since.elapsed(), |back| back - since)
    }

    pub(crate) fn end(self) -> Arc<Answers> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.answers
    }
}

impl Answers {
    fn take(&self, address: SocketAddr, model: &str, x: u64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let sent = Instant::now();
        let count = match ask(address, model, x) {
            Err(_) => &self.unanswered,
            Ok((200, body)) => {
                let right = if model == "increment" { x as f64 + 1.0 } else { 0.0 };
                if output(&body) != [right; 4] {
                    *self.wrong.lock().unwrap() = Some(format!("{model} of {x} was answered {body}"));
                }
                &self.good
            }
            Ok(_) => &self.bad,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let is_good = std::ptr::eq(count, &self.good);
        self.each.lock().unwrap().push((sent, is_good));
    }

    /// Returns the number of requests that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the good, the bad and the unanswered.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.good, &self.bad, &self.unanswered].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Waits until 95 % of the answers of a window are good, and there are some from each frontend.
/// Returns how long that took.
pub(crate) fn wait_until_good(cluster: &Cluster, clients: &[Clients], what: &str) -> Duration {
    let began = Instant::now();
    loop {
        let before: Vec<_> = clients.iter().map(|clients| clients.answers.counts()).collect();
        std::thread::sleep(WINDOW);
        let after = clients.iter().map(|clients| clients.answers.counts());
        let new: Vec<[u64; 3]> =
            after.zip(&before).map(|(after, before)| [0, 1, 2].map(|at| after[at] - before[at])).collect();
        let is_good = |[good, bad, unanswered]: &[u64; 3]| {
            *good > 0 && *good as f64 >= 0.95 * (good + bad + unanswered) as f64
        };
        if new.iter().all(is_good) {
            return began.elapsed() - WINDOW.min(began.elapsed());
        }
        let logs = || cluster.logs();
        assert!(began.elapsed() < cluster.setup.back_within, "{what}: not good again: {new:?}\n{}", logs());
    }
}
