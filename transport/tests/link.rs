//! Two hosts' links in virtual time, over a network that delays, cuts connections with and without
//! a word, and with processes that pause and clocks that start anywhere and drift: what holds of
//! handshake, heartbeats, credits and clocks. Everything follows from the drawn faults.

use proptest::prelude::*;
use std::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting, SendRefusal};
use symphony_transport::message::Request;
use symphony_transport::wire::{
    CloseCode, Hello, HostRole, OfferedModel, Payload, TensorWay, Text, TimeAnswer, VERSION,
};

const HEARTBEAT: Nanos = Nanos::from_millis(20);
const CREDITS: u32 = 64;
const TICK: Nanos = Nanos::from_micros(250);
const BUFFER: usize = 4 << 10;

fn terms(role: HostRole, peer: HostRole, incarnation: u64) -> LinkTerms {
    let hello = Hello {
        config: [7; 32],
        incarnation,
        heartbeat_every: HEARTBEAT,
        role: role as u32,
        number: 0,
        first_gpu: 0,
        gpus: 0,
        max_batch: 8,
        credits: CREDITS,
        tensors: TensorWay::Frames as u32,
        name: Text::new(role.name()),
    };
    LinkTerms { hello, models: Vec::new(), peer: (peer, 0) }
}

fn pair() -> [LinkTerms; 2] {
    let (scheduler, backend) = (HostRole::Scheduler, HostRole::Backend);
    [terms(scheduler, backend, 100), terms(backend, scheduler, 500)]
}

/// A host's clock, by the time of the network.
#[derive(Clone, Copy, Debug)]
struct HostClock {
    offset: u64,
    drift_ppb: i128,
}

impl HostClock {
    fn read(self, time: Nanos) -> Nanos {
        let drift = i128::from(time.0) * self.drift_ppb / 1_000_000_000;
        Nanos((i128::from(self.offset) + i128::from(time.0) + drift) as u64)
    }
}

/// What goes wrong, and when, in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The connection is closed, and both sides are told.
    Close,
    /// Nothing passes any more; nobody is told.
    Cut,
    /// A host does not run.
    Pause { host: usize, ms: u64 },
    /// A host's process ends and another takes its place.
    Restart { host: usize },
}

/// A connection: the frames under way to each host, with the time at which they come.
#[derive(Default)]
struct Pipe {
    to: [VecDeque<(Nanos, Vec<u8>)>; 2],
    /// Whether each host is to be told that it is closed.
    closed: [bool; 2],
    is_cut: bool,
}

struct Host {
    link: HostLink,
    clock: HostClock,
    paused_until: Nanos,
    /// Whether it has a connection.
    has_pipe: bool,
    sent: u64,
    last_received: u64,
    received: u64,
    unconsumed: u64,
    partings: Vec<Parting>,
}

struct World {
    now: Nanos,
    hosts: [Host; 2],
    pipe: Pipe,
    /// The state of a xorshift generator, for delays.
    random: u64,
}

impl World {
    fn new(clocks: [HostClock; 2], seed: u64, terms: [LinkTerms; 2]) -> World {
        let mut made = terms.into_iter().zip(clocks).map(|(terms, clock)| Host {
            link: HostLink::new(terms, clock.read(Nanos::ZERO)),
            clock,
            paused_until: Nanos::ZERO,
            has_pipe: false,
            sent: 0,
            last_received: 0,
            received: 0,
            unconsumed: 0,
            partings: Vec::new(),
        });
        let hosts = [made.next().unwrap(), made.next().unwrap()];
        World { now: Nanos::ZERO, hosts, pipe: Pipe::default(), random: seed | 1 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Close => self.pipe.closed = [true; 2],
            Fault::Cut => self.pipe.is_cut = true,
            Fault::Pause { host, ms } => self.hosts[host].paused_until = self.now + Nanos::from_millis(ms),
            Fault::Restart { host } => {
                let at = &mut self.hosts[host];
                let mut terms = pair()[host].clone();
                terms.hello.incarnation = at.link.incarnation() + 1_000;
                at.link = HostLink::new(terms, at.clock.read(self.now));
                (at.has_pipe, at.unconsumed) = (false, 0);
                self.pipe.closed[1 - host] = true;
            }
        }
    }

    fn is_up(&self) -> bool {
        self.hosts.iter().all(|host| host.link.is_up())
    }

    /// Passes so much time.
    fn run(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            self.dial();
            for host in 0..2 {
                if self.hosts[host].paused_until <= self.now {
                    self.turn(host);
                }
            }
        }
    }

    /// Has the scheduler dial, when its link wants to.
    fn dial(&mut self) {
        let [scheduler, backend] = &mut self.hosts;
        let (now, other) = (scheduler.clock.read(self.now), backend.clock.read(self.now));
        let is_running = scheduler.paused_until.max(backend.paused_until) <= self.now;
        if !is_running || scheduler.link.dial_at().is_none_or(|at| at > now) {
            return;
        }
        if backend.has_pipe {
            backend.unconsumed = 0;
            backend.partings.push(backend.link.disconnected(other));
        }
        scheduler.link.connected(now);
        backend.link.connected(other);
        let refused = [scheduler.link.is_refused(), backend.link.is_refused()];
        (scheduler.has_pipe, backend.has_pipe) = (!refused[0], !refused[1]);
        self.pipe = Pipe { closed: [refused[1], refused[0]], ..Pipe::default() };
    }

    /// One turn of a host, in the order that `HostLink` asks for.
    fn turn(&mut self, at: usize) {
        let now = self.hosts[at].clock.read(self.now);
        let mut parting = self.receive(at, now).err();
        let host = &mut self.hosts[at];
        if parting.is_none() && host.has_pipe && self.pipe.closed[at] {
            parting = Some(host.link.disconnected(now));
        }
        if let Some(parting) = parting.or_else(|| host.link.check_silence(now)) {
            // What has come of a connection that is over takes no credits of the next.
            (host.has_pipe, host.unconsumed) = (false, 0);
            let closing = parting.closing();
            host.partings.push(parting);
            if let Some(closing) = closing {
                let mut buffer = [0; BUFFER];
                let length = Payload::Closing(closing).encode(&mut buffer).unwrap();
                self.transmit(at, buffer[..length].to_vec());
            }
            return;
        }
        if host.has_pipe {
            self.send(at, now);
        }
    }

    /// Reads what has come, and checks it.
    fn receive(&mut self, at: usize, now: Nanos) -> Result<(), Parting> {
        while self.hosts[at].has_pipe && self.pipe.to[at].front().is_some_and(|(comes, _)| *comes <= self.now)
        {
            let (_, bytes) = self.pipe.to[at].pop_front().unwrap();
            let host = &mut self.hosts[at];
            let (message, length) = host.link.receive(now, &bytes)?.unwrap();
            assert_eq!(length, bytes.len());
            let Some(Payload::Requests(requests)) = message else { continue };
            for request in requests.iter() {
                let peer = host.link.peer().expect("messages come while the link is up");
                assert_eq!(request.arrival.0, peer.incarnation, "of an older incarnation");
                assert!(request.id > host.last_received, "repeated or reordered");
                host.last_received = request.id;
                host.received += 1;
                host.unconsumed += 1;
                assert!(host.unconsumed <= CREDITS.into(), "more than was granted");
                // `deadline` is the instant at which it was sent; `reserve`, the network's time
                // then.
                if let Some(bounds) = host.link.clock().to_ours(request.deadline, now) {
                    let truth = host.clock.read(request.reserve);
                    assert!(bounds.earliest <= truth + Nanos(3) && truth <= bounds.latest + Nanos(3));
                }
            }
        }
        Ok(())
    }

    /// Writes the link's own frames and as many messages as there are credits for, at most three.
    fn send(&mut self, at: usize, now: Nanos) {
        let (count, eats) = (self.draw(4), self.draw(3));
        let host = &mut self.hosts[at];
        let eaten = eats.min(host.unconsumed);
        host.unconsumed -= eaten;
        host.link.consumed(eaten);
        let (mut buffer, mut frames) = ([0; BUFFER], Vec::new());
        for _ in 0..count {
            let incarnation = Nanos(host.link.incarnation());
            let (id, reserve) = (host.sent + 1, self.now);
            let request =
                [Request { id, arrival: incarnation, deadline: now, reserve, ..Request::default() }];
            let Ok(length) = host.link.send(now, &Payload::Requests((&request[..]).into()), &mut buffer)
            else {
                break;
            };
            host.sent = id;
            frames.push(buffer[..length].to_vec());
        }
        loop {
            match host.link.write(now, &mut buffer) {
                0 => break,
                length => frames.push(buffer[..length].to_vec()),
            }
        }
        frames.into_iter().for_each(|frame| self.transmit(at, frame));
    }

    /// Puts a frame on its way, behind those before it: 30 us, and now and then some milliseconds.
    fn transmit(&mut self, from: usize, frame: Vec<u8>) {
        let delay = if self.draw(20) == 0 { self.draw(5_000_000) } else { 30_000 + self.draw(50_000) };
        let queue = &mut self.pipe.to[1 - from];
        let last = queue.back().map_or(Nanos::ZERO, |(comes, _)| *comes);
        if !self.pipe.is_cut {
            queue.push_back(((self.now + Nanos(delay)).max(last), frame));
        }
    }
}

fn clock() -> impl Strategy<Value = HostClock> {
    (0u64..1 << 60, -100_000i128..=100_000).prop_map(|(offset, drift_ppb)| HostClock { offset, drift_ppb })
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Close),
        Just(Fault::Cut),
        (0usize..2, 1u64..200).prop_map(|(host, ms)| Fault::Pause { host, ms }),
        (0usize..2).prop_map(|host| Fault::Restart { host }),
    ]
}

fn no_drift() -> [HostClock; 2] {
    [HostClock { offset: 1 << 40, drift_ppb: 0 }, HostClock { offset: 1 << 50, drift_ppb: 0 }]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// What holds of each message is asserted in `World::receive`.
    #[test]
    fn under_faults_messages_come_once_in_order_and_of_the_present_incarnation(
        clocks in [clock(), clock()],
        seed in any::<u64>(),
        faults in proptest::collection::vec((1u64..300, fault()), 1..12),
    ) {
        let mut world = World::new(clocks, seed, pair());
        for (after, fault) in faults {
            world.run(Nanos::from_millis(after));
            world.inject(fault);
        }
        // The longest pause, two heartbeats to find a cut out on each side, and a long back-off.
        world.run(Nanos::from_millis(200) + Nanos(4 * HEARTBEAT.0) + Nanos::from_millis(2_600));
        prop_assert!(world.is_up(), "{:?}", world.hosts.each_ref().map(|host| &host.partings));
        let before = world.hosts.each_ref().map(|host| host.received);
        world.run(Nanos::from_millis(100));
        let after = world.hosts.each_ref().map(|host| host.received);
        prop_assert!(after[0] > before[0] && after[1] > before[1], "credits ran out: {before:?}, {after:?}");
        for host in &world.hosts {
            prop_assert_eq!(host.link.clock().contradictions(), 0);
            let error = host.link.clock().error(host.clock.read(world.now));
            prop_assert!(error.is_some_and(|error| error < Nanos::from_millis(3)), "{error:?}");
        }
    }

    #[test]
    fn a_peer_that_falls_silent_is_lost_within_two_heartbeats(
        seed in any::<u64>(),
        cut_at in 100u64..400,
    ) {
        let mut world = World::new(no_drift(), seed, pair());
        world.run(Nanos::from_millis(cut_at));
        prop_assert!(world.is_up());
        let incarnations = [1, 0].map(|peer: usize| world.hosts[peer].link.incarnation());
        world.inject(Fault::Cut);
        // What was under way, at most 5 ms, and a turn.
        world.run(Nanos(2 * HEARTBEAT.0) + Nanos::from_millis(6));
        for (host, incarnation) in world.hosts.iter().zip(incarnations) {
            prop_assert_eq!(host.partings.len(), 1);
            prop_assert_eq!(host.partings[0].lost, Some(incarnation));
        }
    }
}

#[test]
fn hosts_at_rest_stay_up() {
    let mut world = World::new(no_drift(), 1, pair());
    world.run(Nanos::from_secs(20));
    assert!(world.is_up() && world.hosts.iter().all(|host| host.partings.is_empty()));
}

/// The sentences with which two hosts part for good.
fn mismatch(change: impl FnOnce(&mut LinkTerms)) -> [String; 2] {
    let mut terms = pair();
    change(&mut terms[1]);
    let mut world = World::new(no_drift(), 1, terms);
    world.run(Nanos::from_secs(5));
    assert!(world.hosts.iter().all(|host| host.link.is_refused() && host.partings.len() == 1));
    world.hosts.map(|mut host| host.partings.remove(0).sentence)
}

#[test]
fn a_mismatch_is_refused_with_a_sentence_on_both_sides_and_not_tried_again() {
    let said = |sentences: [String; 2], what: &str| {
        assert!(sentences.iter().any(|sentence| sentence == what), "{sentences:?}");
    };
    said(
        mismatch(|terms| terms.hello.config = [8; 32]),
        "backend and scheduler have different configurations",
    );
    said(
        mismatch(|terms| terms.hello.heartbeat_every = Nanos::from_millis(50)),
        "heartbeats: backend has one every 50ms, scheduler every 20ms",
    );
    said(
        mismatch(|terms| terms.hello.max_batch = 9),
        "batches: at most 9 requests at backend, 8 at scheduler",
    );
    said(
        mismatch(|terms| terms.hello.tensors = TensorWay::Rdma as u32),
        "backend moves tensors by RDMA, scheduler by TCP: give `tensors` of [links] the same value on both",
    );
    said(
        mismatch(|terms| terms.hello.credits = 15),
        "backend takes 15 records at a time, which is less than twice a batch of 8",
    );
    said(mismatch(|terms| terms.hello.number = 3), "backend is backend 3, expected is backend 0");
    let model =
        OfferedModel { digest: 1, model: Default::default(), max_batch: 8, input_bytes: 4, output_bytes: 4 };
    said(mismatch(|terms| terms.models.push(model)), "backend has 1 models, scheduler has 0");
}

/// Two links that are up, by hand: what one writes, the other reads at once.
fn links_that_are_up() -> [HostLink; 2] {
    let mut links = pair().map(|terms| HostLink::new(terms, Nanos::ZERO));
    links.iter_mut().for_each(|link| link.connected(Nanos::ZERO));
    let mut buffer = [0; BUFFER];
    for _ in 0..4 {
        for from in 0..2 {
            while let length @ 1.. = links[from].write(Nanos(1), &mut buffer) {
                links[1 - from].receive(Nanos(1), &buffer[..length]).unwrap().unwrap();
            }
        }
    }
    assert!(links.iter().all(HostLink::is_up));
    links
}

#[test]
fn a_message_without_credit_is_not_written() {
    let [mut link, _] = links_that_are_up();
    let requests = [Request::default(); CREDITS as usize];
    let mut buffer = [0; 2 * BUFFER];
    let all = Payload::Requests((&requests[..]).into());
    assert!(link.send(Nanos(2), &all, &mut buffer).is_ok());
    let one = Payload::Requests((&requests[..1]).into());
    let refusal = link.send(Nanos(2), &one, &mut buffer);
    assert_eq!(refusal, Err(SendRefusal::NoCredit { needed: 1, left: 0 }));
}

#[test]
fn a_peer_that_breaks_the_rules_is_parted_from() {
    let frame = |payload: Payload<'_>| {
        let mut buffer = vec![0; 2 * BUFFER];
        let length = payload.encode(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    };
    let requests = [Request::default(); CREDITS as usize + 1];
    let answer = TimeAnswer { sent: Nanos(9), received: Nanos(9), answered: Nanos(9) };
    for (bytes, sentence) in [
        (frame(Payload::Requests((&requests[..]).into())), "Requests: 65 records, more than were granted"),
        (frame(Payload::TimeAnswer(answer)), "TimeAnswer: an answer to no probe, or one that no clock gives"),
        (frame(Payload::Hello(pair()[1].hello, (&[][..]).into())), "Hello after the handshake"),
        (
            b"GET / HTTP/1.1\r\n".to_vec(),
            "a frame begins with the bytes `SYMF`, not GET : the peer speaks another protocol",
        ),
    ] {
        let [mut link, _] = links_that_are_up();
        let parting = link.receive(Nanos(2), &bytes).unwrap_err();
        assert_eq!((parting.sentence.as_str(), parting.lost), (sentence, Some(501)));
        assert_eq!(parting.code, Some(CloseCode::Protocol));
        assert!(!link.is_up() && link.dial_at() > Some(Nanos(2)));
    }
}

#[test]
fn hosts_of_two_versions_refuse_each_other_with_a_sentence_on_both_sides() {
    let [mut older, mut newer] = pair().map(|terms| HostLink::new(terms, Nanos::ZERO));
    [&mut older, &mut newer].into_iter().for_each(|link| link.connected(Nanos::ZERO));
    let mut buffer = [0; BUFFER];
    older.write(Nanos(1), &mut buffer);
    buffer[4..6].copy_from_slice(&(VERSION - 1).to_le_bytes());
    let refusal = newer.receive(Nanos(1), &buffer).unwrap_err();
    let sentence = format!(
        "the peer speaks version {} of the protocol, this host version {VERSION}: run the same release on both",
        VERSION - 1
    );
    assert_eq!((refusal.code, &refusal.sentence), (Some(CloseCode::Mismatch), &sentence));
    let closing = Payload::Closing(refusal.closing().expect("it says why"));
    closing.encode(&mut buffer).unwrap();
    // The one to whom it is of another version reads it all the same.
    buffer[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let told = older.receive(Nanos(1), &buffer).unwrap_err();
    assert!(told.sentence.contains(&sentence), "{}", told.sentence);
    assert!(older.is_refused() && newer.is_refused());
    assert_eq!((older.dial_at(), newer.dial_at()), (None, None));
}

#[test]
fn an_incarnation_is_accepted_once() {
    let [mut link, peer] = links_that_are_up();
    link.disconnected(Nanos(2));
    link.connected(Nanos(3));
    let mut buffer = [0; BUFFER];
    let again = LinkTerms { ..pair()[1].clone() };
    let hello = Hello { incarnation: peer.incarnation(), ..again.hello };
    let length = Payload::Hello(hello, (&again.models[..]).into()).encode(&mut buffer).unwrap();
    let parting = link.receive(Nanos(3), &buffer[..length]).unwrap_err();
    assert_eq!(parting.code, Some(CloseCode::Superseded));
    assert!(parting.sentence.starts_with("backend: incarnation 501 comes after incarnation 501"));
}

#[test]
fn the_delays_of_a_peers_frames_are_measured() {
    let mut world = World::new(no_drift(), 3, pair());
    world.run(Nanos::from_secs(5));
    for host in &world.hosts {
        let delays = host.link.one_way();
        // Four probes a heartbeat, of the last half second to second.
        assert!((64..200).contains(&delays.count()), "{}", delays.count());
        // 30 us and more; read in a turn of 250 us; now and then some milliseconds.
        let [p10, p50, longest] = [0.1, 0.5, 1.0].map(|share| delays.percentile(share).unwrap());
        assert!(Nanos::ZERO < p10 && p10 <= p50 && p50 < Nanos::from_millis(2), "{p10:?} {p50:?}");
        assert!(p50 < longest && longest < Nanos::from_millis(8), "{longest:?}");
    }
}
