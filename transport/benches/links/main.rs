//! What a link costs over real sockets on loopback, as JSON: `cargo bench -p symphony-transport
//! --bench links -- wire` or `-- incast`; with `--features rdma` also `-- incast --rdma`. Threads
//! sleep while they wait, so that a machine with few cores measures work, and rates are by
//! processor time of the receiving thread.

use bare_uring::BareSocket;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms};
use symphony_transport::message::{Ending, Request, Response};
use symphony_transport::tcp::{SocketEvent, SocketId, SocketOptions, Sockets};
use symphony_transport::wire::{
    Hello, HostRole, Payload, ReadOutcome, TensorData, TensorRead, TensorWay, Text,
};

mod bare_uring;
#[cfg(feature = "rdma")]
mod rdma_incast;

/// Requests of a frame, and what they take on the wire.
const BATCH: usize = 32;
const FRAME_BYTES: usize = 16 + 64 * BATCH;

/// Requests of a measurement of the rate, and rounds of it.
const REQUESTS: usize = 40_000_000;
const ROUNDS: usize = 5;

/// Round trips of a measurement.
const ROUND_TRIPS: usize = 2_000;

/// Figure 12: objects of each frontend, frontends, and bytes of an object.
const OBJECTS: usize = 8;
const FRONTENDS: usize = 8;
const OBJECT_BYTES: usize = 150_000;
const FETCHES: usize = 400;

fn terms(role: HostRole, peer: HostRole) -> LinkTerms {
    let hello = Hello {
        config: [7; 32],
        incarnation: 1,
        heartbeat_every: Nanos::from_secs(10),
        role: role as u32,
        number: 0,
        first_gpu: 0,
        gpus: 0,
        max_batch: 64,
        credits: 1 << 16,
        tensors: TensorWay::Frames as u32,
        name: Text::new(role.name()),
    };
    LinkTerms { hello, models: Vec::new(), peer: (peer, 0) }
}

/// One end of a link: its sockets, and the bytes of a frame that is not whole.
struct LinkEnd {
    sockets: Sockets,
    socket: Option<SocketId>,
    link: HostLink,
    incoming: Vec<u8>,
    began: Instant,
}

impl LinkEnd {
    fn new(role: HostRole, peer: HostRole) -> LinkEnd {
        let options = SocketOptions { sockets: 4, outgoing_bytes: 256 << 10, ..SocketOptions::default() };
        LinkEnd {
            sockets: Sockets::new(options).unwrap(),
            socket: None,
            link: HostLink::new(terms(role, peer), Nanos::ZERO),
            incoming: Vec::new(),
            began: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// Takes what has come; hands each message to `take`, which returns how many records it had.
    fn turn(&mut self, mut take: impl FnMut(Payload<'_>) -> usize) {
        let now = self.now();
        let LinkEnd { sockets, socket, link, incoming, .. } = self;
        while let Some(event) = sockets.next(now) {
            match event {
                SocketEvent::Accepted { socket: came, .. } | SocketEvent::Connected { socket: came, .. } => {
                    *socket = Some(came);
                    link.connected(now);
                }
                SocketEvent::Received { bytes, .. } => {
                    incoming.extend_from_slice(bytes);
                    let mut read = 0;
                    while let Some((message, length)) = link.receive(now, &incoming[read..]).unwrap() {
                        read += length;
                        if let Some(message) = message {
                            let records = take(message);
                            link.consumed(records as u64);
                        }
                    }
                    incoming.drain(..read);
                }
                SocketEvent::Closed { .. } => *socket = None,
                SocketEvent::AcceptFailed { error, .. } => panic!("{error}"),
            }
        }
    }

    /// Queues a message, if the link has credits and the socket room.
    fn send(&mut self, payload: &Payload<'_>, bytes: usize) -> bool {
        let now = self.now();
        let Some(socket) = self.socket else { return false };
        let Ok(room) = self.sockets.reserve(socket, bytes) else { return false };
        let Ok(length) = self.link.send(now, payload, room) else { return false };
        self.sockets.commit(socket, length);
        true
    }

    /// Queues the link's own frames, flushes, and sleeps until something comes.
    fn flush(&mut self, sleep: Option<Duration>) {
        let now = self.now();
        while let Some(room) = self.socket.and_then(|socket| self.sockets.reserve(socket, 512).ok()) {
            let length = self.link.write(now, room);
            if length == 0 {
                break;
            }
            self.sockets.commit(self.socket.unwrap(), length);
        }
        self.sockets.flush();
        if let Some(timeout) = sleep {
            self.sockets.wait(timeout);
        }
    }
}

/// Two ends whose link is to be: the second listens.
fn ends() -> (LinkEnd, LinkEnd, SocketAddr) {
    let dials = LinkEnd::new(HostRole::Frontend, HostRole::Scheduler);
    let mut listens = LinkEnd::new(HostRole::Scheduler, HostRole::Frontend);
    let listener = listens.sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listens.sockets.address(listener);
    (dials, listens, address)
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

const NAP: Option<Duration> = Some(Duration::from_millis(1));

/// Returns the requests that a link's receiving thread takes in a second of processor time, and in
/// a second.
fn link_rate() -> (f64, f64) {
    let (mut dials, mut listens, address) = ends();
    let sender = thread::spawn(move || {
        let now = dials.now();
        dials.sockets.connect(now, address).unwrap();
        let requests = [Request { id: 1, ..Request::default() }; BATCH];
        let mut left = REQUESTS;
        let mut connected = false;
        while left > 0 || (connected && dials.socket.is_some()) {
            dials.turn(|_| 1);
            connected |= dials.socket.is_some();
            while left > 0 && dials.send(&Payload::Requests((&requests[..]).into()), FRAME_BYTES) {
                left -= BATCH;
            }
            dials.flush(NAP);
        }
    });
    let (mut taken, mut sum) = (0, 0);
    let mut since = None;
    while taken < REQUESTS {
        listens.turn(|message| {
            let Payload::Requests(requests) = message else { return 1 };
            since.get_or_insert_with(|| (cpu(), Instant::now()));
            sum += requests.iter().map(|request| request.id).sum::<u64>();
            taken += requests.len();
            requests.len()
        });
        listens.flush(NAP);
    }
    assert_eq!(sum, REQUESTS as u64);
    let (cpu_then, then) = since.unwrap();
    let rates = (REQUESTS as f64 / (cpu() - cpu_then), REQUESTS as f64 / then.elapsed().as_secs_f64());
    drop(listens);
    sender.join().unwrap();
    rates
}

/// Returns the rates of a bare receiver, which looks at nothing.
fn bare_rate() -> (f64, f64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = thread::spawn(move || {
        let mut bare = BareSocket::new(TcpStream::connect(address).unwrap(), 256 << 10);
        let mut left = REQUESTS / BATCH * FRAME_BYTES;
        while left > 0 {
            left -= bare.send(left.min(256 << 10));
        }
    });
    let mut bare = BareSocket::new(listener.accept().unwrap().0, 32 << 10);
    let mut bytes = bare.receive();
    let (cpu_then, then) = (cpu(), Instant::now());
    while bytes < REQUESTS / BATCH * FRAME_BYTES {
        let more = bare.receive();
        assert!(more > 0, "the sender has sent less than it should");
        bytes += more;
    }
    let rates = (REQUESTS as f64 / (cpu() - cpu_then), REQUESTS as f64 / then.elapsed().as_secs_f64());
    sender.join().unwrap();
    rates
}

/// Returns the times from a request to its answer that it was dropped, in microseconds.
fn link_round_trips(cores: [usize; 2]) -> Vec<f64> {
    pin(cores[0]);
    let (mut dials, mut listens, address) = ends();
    let server = thread::spawn(move || {
        pin(cores[1]);
        let mut connected = false;
        while !connected || listens.socket.is_some() {
            let mut answers = Vec::new();
            listens.turn(|message| {
                let Payload::Requests(requests) = message else { return 1 };
                answers.extend(requests.iter().map(|request| Response {
                    id: request.id,
                    slot: request.slot,
                    ending: Ending::DroppedInQueue as u32,
                    ..Response::default()
                }));
                requests.len()
            });
            connected |= listens.socket.is_some();
            if !answers.is_empty() {
                assert!(listens.send(&Payload::Responses((&answers[..]).into()), 16 + 64 * answers.len()));
            }
            listens.flush(Some(Duration::from_millis(100)));
        }
    });
    let now = dials.now();
    dials.sockets.connect(now, address).unwrap();
    let mut times = Vec::new();
    for id in 1..=ROUND_TRIPS as u64 {
        let request = [Request { id, ..Request::default() }];
        let mut began = Instant::now();
        while !dials.send(&Payload::Requests((&request[..]).into()), 80) {
            dials.turn(|_| 1);
            dials.flush(NAP);
            began = Instant::now();
        }
        let mut is_answered = false;
        while !is_answered {
            dials.flush(Some(Duration::from_millis(100)));
            dials.turn(|message| {
                let Payload::Responses(answers) = message else { return 1 };
                assert!(answers.iter().map(|answer| answer.id).eq([id]));
                is_answered = true;
                1
            });
        }
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    drop(dials);
    server.join().unwrap();
    times
}

/// Returns the times of bare echoes of as many bytes, in microseconds.
fn bare_round_trips(cores: [usize; 2]) -> Vec<f64> {
    pin(cores[0]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        pin(cores[1]);
        let mut bare = BareSocket::new(listener.accept().unwrap().0, 80);
        loop {
            match bare.receive() {
                0 => return,
                bytes => assert_eq!(bare.send(bytes), bytes),
            }
        }
    });
    let mut bare = BareSocket::new(TcpStream::connect(address).unwrap(), 80);
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        assert_eq!((bare.send(80), bare.receive()), (80, 80));
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    drop(bare);
    server.join().unwrap();
    times
}

/// Keeps the thread on a core: where two threads that wake each other run decides more than what
/// they do, since to wake an idle core takes tens of microseconds on a virtual machine.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("the machine has two cores");
}

fn percentile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() as f64 * share) as usize).min(times.len() - 1)]
}

/// Returns the median of what a thread of its own measures.
fn median(measure: impl FnOnce() -> Vec<f64> + Send + 'static) -> f64 {
    percentile(&mut thread::spawn(measure).join().unwrap(), 0.5)
}

fn wire() -> String {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        // On threads of their own, which are pinned to no core.
        let (bare_cpu, bare_wall) = thread::spawn(bare_rate).join().unwrap();
        let (link_cpu, link_wall) = thread::spawn(link_rate).join().unwrap();
        let medians = [("one_core", [0, 0]), ("two_cores", [0, 1])].map(|(name, cores)| {
            let bare = median(move || bare_round_trips(cores));
            let link = median(move || link_round_trips(cores));
            let ratio = link / bare;
            format!(
                "\"{name}\": {{\"bare_p50_us\": {bare:.2}, \"link_p50_us\": {link:.2}, \
                 \"ratio\": {ratio:.3}}}"
            )
        });
        rounds.push(format!(
            "{{\"bare_requests_per_cpu_s\": {bare_cpu:.0}, \"link_requests_per_cpu_s\": {link_cpu:.0}, \
             \"bare_requests_per_s\": {bare_wall:.0}, \"link_requests_per_s\": {link_wall:.0}, \
             \"round_trip\": {{{}}}}}",
            medians.join(", ")
        ));
    }
    format!(
        "{{\"requests\": {REQUESTS}, \"round_trips\": {ROUND_TRIPS}, \"rounds\": [{}]}}",
        rounds.join(", ")
    )
}

/// Serves objects to the backend, as all frontends.
fn serve_objects(mut sockets: Sockets) {
    let object = vec![7; OBJECT_BYTES];
    let mut gone = 0;
    let mut reads: Vec<(SocketId, TensorRead)> = Vec::new();
    while gone < FRONTENDS {
        while let Some(event) = sockets.next(Nanos(1)) {
            match event {
                SocketEvent::Received { socket, mut bytes } => {
                    // Orders are small and come whole: each frontend's are sent at once.
                    while let Some((Payload::TensorRead(read), length)) =
                        symphony_transport::wire::decode(bytes).unwrap()
                    {
                        reads.push((socket, read));
                        bytes = &bytes[length..];
                    }
                    assert!(bytes.is_empty());
                }
                SocketEvent::Closed { .. } => gone += 1,
                _ => {}
            }
        }
        reads.retain(|&(socket, TensorRead { read, .. })| {
            let Ok(room) = sockets.reserve(socket, 32 + OBJECT_BYTES) else { return true };
            let head = TensorData { read, outcome: ReadOutcome::Read as u32, bytes: OBJECT_BYTES as u32 };
            let length = Payload::TensorData(head, &object).encode(room).unwrap();
            sockets.commit(socket, length);
            false
        });
        sockets.flush();
        sockets.wait(Duration::from_millis(if reads.is_empty() { 100 } else { 1 }));
    }
}

/// Returns percentiles of times, as JSON.
fn shares(times: &mut [f64]) -> String {
    let [p50, p90, p99, p999, p9999] = [0.5, 0.9, 0.99, 0.999, 0.9999].map(|share| percentile(times, share));
    format!(
        "{{\"p50\": {p50:.3}, \"p90\": {p90:.3}, \"p99\": {p99:.3}, \"p99.9\": {p999:.3}, \
         \"p99.99\": {p9999:.3}}}"
    )
}

/// Returns what was measured of Figure 12, of which `measured` are fields of JSON.
fn figure_12(measured: &str) -> String {
    format!(
        "{{\"frontends\": {FRONTENDS}, \"objects_each\": {OBJECTS}, \"object_bytes\": {OBJECT_BYTES}, \
         {measured}}}"
    )
}

#[cfg(feature = "rdma")]
use rdma_incast::incast as rdma_incast;

#[cfg(not(feature = "rdma"))]
fn rdma_incast() -> Result<String, String> {
    Err("--rdma: this benchmark was built without RDMA: add `--features rdma`".to_owned())
}

fn incast() -> String {
    let options = SocketOptions { sockets: 16, outgoing_bytes: 256 << 10, ..SocketOptions::default() };
    let mut frontends = Sockets::new(options).unwrap();
    let listener = frontends.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = frontends.address(listener);
    let server = thread::spawn(move || serve_objects(frontends));
    let mut backend = Sockets::new(options).unwrap();
    let ids: Vec<_> = (0..FRONTENDS).map(|_| backend.connect(Nanos(1), address).unwrap()).collect();
    let mut up = 0;
    while up < FRONTENDS {
        while let Some(event) = backend.next(Nanos(1)) {
            up += usize::from(matches!(event, SocketEvent::Connected { .. }));
        }
        backend.flush();
    }
    let mut incoming = vec![Vec::new(); FRONTENDS];
    let mut times = Vec::new();
    for _ in 0..FETCHES {
        for &socket in &ids {
            for read in 0..OBJECTS as u64 {
                let order =
                    TensorRead { read, slot: Request::default().slot, offset: 0, bytes: OBJECT_BYTES as u32 };
                let mut frame = [0; 64];
                let length = Payload::TensorRead(order).encode(&mut frame).unwrap();
                backend.send(socket, &frame[..length]).unwrap();
            }
        }
        let began = Instant::now();
        backend.flush();
        let mut came = 0;
        while came < OBJECTS * FRONTENDS {
            backend.wait(Duration::from_millis(100));
            while let Some(event) = backend.next(Nanos(1)) {
                let SocketEvent::Received { socket, bytes } = event else { panic!("{event:?}") };
                let at = ids.iter().position(|id| *id == socket).unwrap();
                let incoming: &mut Vec<u8> = &mut incoming[at];
                incoming.extend_from_slice(bytes);
                while let Some((_, length)) = symphony_transport::wire::decode(incoming).unwrap() {
                    incoming.drain(..length);
                    came += 1;
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                }
            }
            backend.flush();
        }
    }
    ids.iter().for_each(|&socket| backend.close(Nanos(1), socket));
    backend.flush();
    drop(backend);
    server.join().unwrap();
    format!("\"fetches\": {FETCHES}, \"tcp_ms\": {}", shares(&mut times))
}

fn main() {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    let result = match [has("wire"), has("incast"), has("--rdma")] {
        [true, ..] => Ok(wire()),
        [_, true, true] => rdma_incast().map(|measured| figure_12(&measured)),
        [_, true, false] => Ok(figure_12(&incast())),
        _ => Err("say which: `wire`, `incast` or `incast --rdma`".to_owned()),
    };
    let result = result.unwrap_or_else(|sentence| {
        eprintln!("{sentence}");
        std::process::exit(2);
    });
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let driver = Sockets::new(SocketOptions::default()).unwrap().driver().to_owned();
    println!(
        "{{\"machine\": {{\"cores\": {cores}, \"kernel\": \"{kernel}\", \"shared\": true}}, \
         \"driver\": \"{driver}\", \"result\": {result}}}"
    );
}
