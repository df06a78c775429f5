//! An engine spread over processes on loopback: two frontends, a scheduler, a backend with emulated
//! GPUs and one that computes an ONNX model. Under load, each is killed and stopped, alone and in
//! every order of two; docs/design/hosts.md.

mod harness;

use harness::onnx;
use harness::process::{ServerProcess, request, wait_until};
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The requests that each client sends in a second.
const RATE: f64 = 20.0;

/// The time for which a process is away.
const AWAY: Duration = Duration::from_millis(1_000);

/// The window in which answers are counted, to find out that all is well again.
const WINDOW: Duration = Duration::from_millis(500);

/// The time in which the good rate has to be back: ten times what it should take, since other
/// programs may run on the machine.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// The processes, by their names in CONFIG.
const NAMES: [&str; 5] = ["front-a", "front-b", "scheduler", "gpus", "cpu"];
const KILLED: [usize; 4] = [1, 2, 3, 4];

struct Cluster {
    folder: tempfile::TempDir,
    processes: Vec<Option<ServerProcess>>,
    /// Where the frontends serve HTTP.
    http: [u16; 2],
}

/// Returns ports that are free now, below those that the system gives to connections: a port of a
/// process that is away must not become that of a client which looks for it.
fn free_ports<const N: usize>() -> [u16; N] {
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

fn write_config(folder: &Path, [scheduler, a, b]: [u16; 3], gpus: usize) {
    std::fs::write(folder.join("increment.onnx"), increment()).unwrap();
    let host = |name, role, port: u16| {
        format!("[[hosts]]\nname = \"{name}\"\nrole = \"{role}\"\naddress = \"127.0.0.1:{port}\"\n")
    };
    let text = format!(
        "{}{}{}\
         [[hosts]]\nname = \"gpus\"\nrole = \"backend\"\n[[hosts]]\nname = \"cpu\"\nrole = \"backend\"\n\
         [[executors]]\nkind = \"emulated\"\ncount = {gpus}\nhost = \"gpus\"\n\
         [[executors]]\nkind = \"cpu\"\nhost = \"cpu\"\n\
         [[models]]\nname = \"emulated\"\nexecutor = \"emulated\"\nslo_ms = 1000\n\
         profile = {{ alpha_ms = 1, beta_ms = 5 }}\nmax_batch = 16\n\
         inputs = [{{ name = \"x\", datatype = \"FP32\", shape = [4] }}]\n\
         outputs = [{{ name = \"y\", datatype = \"FP32\", shape = [4] }}]\n\
         [[models]]\nname = \"increment\"\nfile = \"increment.onnx\"\nexecutor = \"cpu\"\nslo_ms = 1000\n\
         profile = {{ alpha_ms = 1, beta_ms = 5 }}\nmax_batch = 16\n",
        host("scheduler", "scheduler", scheduler),
        host("front-a", "frontend", a),
        host("front-b", "frontend", b),
    );
    std::fs::write(folder.join("symphony.toml"), text).unwrap();
}

impl Cluster {
    fn start() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let [scheduler, a, b, http_a, http_b] = free_ports();
        write_config(folder.path(), [scheduler, a, b], 2);
        let processes = NAMES.map(|_| None).into_iter().collect();
        let mut cluster = Cluster { folder, processes, http: [http_a, http_b] };
        (0..NAMES.len()).for_each(|at| cluster.start_one(at));
        cluster
    }

    fn start_one(&mut self, at: usize) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        let role = ["frontend", "frontend", "scheduler", "backend", "backend"][at];
        command.arg(role).arg(self.folder.path()).args(["--name", NAMES[at]]);
        if at < 2 {
            command.args(["--http", &format!("127.0.0.1:{}", self.http[at]), "--grpc", "127.0.0.1:0"]);
        }
        let log = self.folder.path().join(format!("{}.log", NAMES[at]));
        let log = File::options().create(true).append(true).open(log).unwrap();
        self.processes[at] = Some(ServerProcess::start(&mut command, Stdio::from(log)));
    }

    fn process(&mut self, at: usize) -> &mut ServerProcess {
        self.processes[at].as_mut().unwrap()
    }

    fn logs(&self) -> String {
        let log = |name: &&str| {
            let text = std::fs::read_to_string(self.folder.path().join(format!("{name}.log")));
            let text = text.unwrap_or_default();
            let last: Vec<&str> = text.lines().rev().take(12).collect();
            format!("{name}:\n  {}\n", last.into_iter().rev().collect::<Vec<_>>().join("\n  "))
        };
        NAMES.iter().map(log).collect()
    }
}

/// What became of a client's requests.
#[derive(Default)]
struct Answers {
    sent: AtomicU64,
    good: AtomicU64,
    /// Answered otherwise: dropped, late, failed.
    bad: AtomicU64,
    /// Not answered, since the frontend was not there or died.
    unanswered: AtomicU64,
    /// Answered with what is not the answer.
    wrong: Mutex<Option<String>>,
}

/// Clients of both models at a frontend, each with one request at a time, until told to stop.
struct Clients {
    answers: Arc<Answers>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

fn ask(address: SocketAddr, model: &str, x: u64) -> std::io::Result<(u16, String)> {
    let body = format!(
        "{{\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":[{x},{x},{x},{x}]}}]}}"
    );
    let path = format!("/v2/models/{model}/infer");
    request(address, ("POST", &path), "", &body).map(|(status, _, body)| (status, body))
}

/// Returns the output that an answer has.
fn output(body: &str) -> Vec<f64> {
    let data = body.split_once("\"data\":[").map_or("", |(_, rest)| rest);
    data.split(']').next().unwrap_or("").split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

impl Clients {
    fn start(port: u16) -> Clients {
        let (answers, stop) = (Arc::new(Answers::default()), Arc::new(AtomicBool::new(false)));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
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

    fn end(self) -> Arc<Answers> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.answers
    }
}

impl Answers {
    fn take(&self, address: SocketAddr, model: &str, x: u64) {
        self.sent.fetch_add(1, Ordering::Relaxed);
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
    }

    fn counts(&self) -> [u64; 3] {
        [&self.good, &self.bad, &self.unanswered].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Waits until 95 % of the answers of a window are good, and there are some from each frontend.
/// Returns how long that took.
fn wait_until_good(cluster: &Cluster, clients: &[Clients], what: &str) -> Duration {
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
        assert!(began.elapsed() < BACK_WITHIN, "{what}: not good again: {new:?}\n{}", logs());
    }
}

#[test]
fn a_request_passes_all_hosts_and_its_tensors_are_right() {
    let mut cluster = Cluster::start();
    for frontend in 0..2 {
        let address = cluster.process(frontend).address();
        wait_until("the links are up", || {
            ask(address, "increment", 7).is_ok_and(|(status, _)| status == 200)
        });
        for x in 0..20 {
            let (status, body) = ask(address, "increment", x).unwrap();
            assert_eq!((status, output(&body)), (200, vec![x as f64 + 1.0; 4]), "{body}");
        }
        wait_until("the GPUs are there", || {
            ask(address, "emulated", 1).is_ok_and(|(status, _)| status == 200)
        });
    }
    // Ctrl-C ends each without a loss: frontends first.
    for (at, name) in NAMES.iter().enumerate() {
        assert_eq!(cluster.process(at).interrupt(), Some(0), "{name}: {}", cluster.logs());
    }
}

#[test]
fn every_request_of_a_frontend_that_lives_is_answered_whichever_host_dies_or_stops() {
    let mut cluster = Cluster::start();
    let clients = [cluster.http[0], cluster.http[1]].map(Clients::start);
    wait_until_good(&cluster, &clients, "at the start");
    let mut slowest = Duration::ZERO;
    for at in KILLED {
        cluster.process(at).signal("-KILL");
        std::thread::sleep(AWAY);
        cluster.process(at).kill();
        cluster.start_one(at);
        slowest = slowest.max(wait_until_good(&cluster, &clients, &format!("{} was killed", NAMES[at])));
        cluster.process(at).signal("-STOP");
        std::thread::sleep(AWAY);
        cluster.process(at).signal("-CONT");
        slowest = slowest.max(wait_until_good(&cluster, &clients, &format!("{} was stopped", NAMES[at])));
    }
    for first in KILLED {
        for second in KILLED.into_iter().filter(|second| *second != first) {
            let what = format!("{} was killed, and {} stopped", NAMES[first], NAMES[second]);
            cluster.process(first).signal("-KILL");
            cluster.process(second).signal("-STOP");
            std::thread::sleep(AWAY);
            cluster.process(first).kill();
            // One that stands still does not keep another from starting.
            cluster.start_one(first);
            cluster.process(second).signal("-CONT");
            slowest = slowest.max(wait_until_good(&cluster, &clients, &what));
        }
    }
    let [living, other] = clients.map(Clients::end);
    println!("the good rate was back within {slowest:?}; answers {:?} {:?}", living.counts(), other.counts());
    for answers in [&living, &other] {
        assert_eq!(*answers.wrong.lock().unwrap(), None);
    }
    let [good, bad, unanswered] = living.counts();
    assert_eq!(unanswered, 0, "of the frontend that lived");
    assert_eq!(good + bad, living.sent.load(Ordering::Relaxed));
    assert!(bad < good, "{bad} of {} requests were bad", good + bad);
}

#[test]
fn hosts_that_do_not_fit_say_so_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let ports = free_ports();
    let start = |role: &str, name: &str, gpus| {
        write_config(folder.path(), ports, gpus);
        let log = File::create(folder.path().join(format!("{role}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        command.arg(role).arg(folder.path()).args(["--name", name]);
        ServerProcess::start(&mut command, Stdio::from(log))
    };
    let _scheduler = start("scheduler", "scheduler", 2);
    let backend = start("backend", "gpus", 3);
    let says = |role: &str| {
        let log = std::fs::read_to_string(folder.path().join(format!("{role}.log"))).unwrap();
        log.contains("do not fit") && log.contains("have different configurations")
    };
    wait_until("both say why", || says("scheduler") && says("backend"));
    // One that was started anew with the same configuration is accepted.
    drop(backend);
    let _backend = start("backend", "gpus", 2);
    let log = || std::fs::read_to_string(folder.path().join("scheduler.log")).unwrap();
    wait_until("the link is up", || log().contains("the link to backend gpus is up"));
}

#[test]
fn the_example_serves_by_one_command_and_ends_at_ctrl_c() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let folder = tempfile::tempdir().unwrap();
    let [scheduler, a, b] = free_ports::<3>();
    let shapes = examples.join("quickstart/shapes.onnx");
    let text = std::fs::read_to_string(examples.join("cluster/symphony.toml")).unwrap();
    let text = text.replace("../quickstart/shapes.onnx", shapes.to_str().unwrap());
    let text = text.replace(":7400", &format!(":{scheduler}")).replace(":7401", &format!(":{a}"));
    std::fs::write(folder.path().join("symphony.toml"), text.replace(":7402", &format!(":{b}"))).unwrap();
    // It takes the next port as well, and two that are ten further.
    let http = free_ports::<12>()[0];
    let log = File::create(folder.path().join("log")).unwrap();
    let mut example = Command::new("sh");
    example.arg(examples.join("cluster/run")).arg(env!("CARGO_BIN_EXE_symphony")).arg(folder.path());
    let mut example = example.arg(http.to_string()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let sample = std::fs::read_to_string(examples.join("quickstart/samples/shapes.json")).unwrap();
    let ask = |port: u16| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        request(address, ("POST", "/v2/models/shapes/infer"), "", &sample)
            .is_ok_and(|(status, ..)| status == 200)
    };
    wait_until("both frontends answer", || ask(http) && ask(http + 10));
    let interrupted = Command::new("kill").args(["-INT", &example.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    wait_until("the example has ended", || example.try_wait().unwrap().is_some());
    wait_until("its frontends have ended", || !ask(http) && !ask(http + 10));
}
