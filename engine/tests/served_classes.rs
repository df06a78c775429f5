//! Priority classes on real threads: whatever lower classes send, the highest is served as before,
//! and a batch client, which has no deadline, gets all its answers. Bounds are wide, since other
//! programs may have the machine's cores.

mod harness;

use harness::engine::{EmulatedModel, answer_all, config, emulated_gpus, replay_exactly, start, start_with};
use harness::process::PATIENCE;
use std::path::Path;
use std::time::{Duration, Instant};
use symphony::config::Config;
use symphony::recorder::RecordConfig;
use symphony::runtime::frontend::{Answer, Ask, Class, Due, Frontend, Outcome, Refusal, Ticket};
use symphony::runtime::{Engine, Options};
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

const MODELS: u32 = 4;

/// A model with an SLO that a machine keeps which others use too.
const MODEL: EmulatedModel =
    EmulatedModel { slo_ms: 1_000.0, alpha_ms: 1.0, beta_ms: 5.0, more: "max_batch = 32\n" };

fn four_models(folder: &Path, gpus: usize, cores: &str) -> Config {
    let models = MODEL.sections(MODELS as usize);
    config(folder, &format!("[cores]\n{cores}\n{}{models}", emulated_gpus(gpus)))
}

fn ask(model: u32, class: u8, due: Due) -> Ask {
    Ask { class: Class::new(class).unwrap(), due, ..Ask::one(ModelId(model)) }
}

/// The requests of one class, by how they ended.
#[derive(Default, Debug)]
struct Ends {
    sent: u64,
    good: u64,
    bad: u64,
}

impl Ends {
    fn note(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Good => self.good += 1,
            Outcome::Late(_) | Outcome::Overdue(_) | Outcome::Broken | Outcome::Bad(_) => self.bad += 1,
        }
    }

    fn under_way(&self) -> u64 {
        self.sent - self.good - self.bad
    }
}

/// A client that sends requests of the highest class, of class 1, and without a deadline.
#[derive(Default, Debug)]
struct Client {
    highest: Ends,
    lower: Ends,
    batch: Ends,
    /// The kind of each request in flight (0, 1 or 2, in the order above), by its ticket's index.
    kinds: Vec<u8>,
}

impl Client {
    fn of(&mut self, kind: u8) -> &mut Ends {
        match kind {
            0 => &mut self.highest,
            1 => &mut self.lower,
            _ => &mut self.batch,
        }
    }

    fn send(&mut self, frontend: &mut Frontend, kind: u8) {
        let model = (self.of(kind).sent % u64::from(MODELS)) as u32;
        let ask = match kind {
            0 => ask(model, 0, Due::Slo),
            1 => ask(model, 1, Due::Slo),
            _ => ask(model, 0, Due::Never),
        };
        let ticket = frontend.submit(&ask, |_, input| input.fill(0)).expect("the slab has room");
        self.kinds.resize(frontend.capacity(), 0);
        self.kinds[ticket.index] = kind;
        self.of(kind).sent += 1;
    }

    fn note(&mut self, ticket: Ticket, answer: &Answer<'_>) {
        let kind = self.kinds[ticket.index];
        self.of(kind).note(answer.outcome);
    }

    /// Sends a request of the highest class every 5 ms; with a flood also one of class 1 every 20
    /// ms, and requests without a deadline so that 3,000 of them are always under way.
    fn run(&mut self, frontend: &mut Frontend, duration: Duration, flood: bool) {
        let began = Instant::now();
        while began.elapsed() < duration {
            let ms = began.elapsed().as_millis() as u64;
            while self.highest.sent < ms / 5 {
                self.send(frontend, 0);
            }
            while flood && self.lower.sent < ms / 20 {
                self.send(frontend, 1);
            }
            while flood && self.batch.under_way() < 3_000 {
                self.send(frontend, 2);
            }
            frontend.poll(|ticket, answer| self.note(ticket, &answer));
            std::thread::yield_now();
        }
    }
}

/// Runs a client with the flood of lower classes and one without, each on an engine of its own,
/// and replays the named recordings of both.
fn with_and_without(gpus: usize, cores: &str, files: &[&str]) -> (Client, Client) {
    let folder = tempfile::tempdir().unwrap();
    let run = |flood| {
        let record = RecordConfig { folder: folder.path().join("record"), mib: 8 };
        let options = Options { record: Some(record.clone()), ..Options::default() };
        let (engine, mut frontend) = start_with(four_models(folder.path(), gpus, cores), options);
        let mut client = Client::default();
        client.run(&mut frontend, Duration::from_secs(3), flood);
        answer_all(&mut frontend, |ticket, answer| client.note(ticket, &answer));
        engine.stop();
        for name in files {
            assert!(replay_exactly(&record.folder.join(name)).decisions > 0, "{name}");
        }
        client
    };
    (run(true), run(false))
}

#[test]
fn a_flood_of_lower_classes_costs_the_highest_nothing_and_a_batch_client_gets_all_its_answers() {
    let (with, without) = with_and_without(2, "", &["model-0.symrec", "rank.symrec"]);
    println!("with {:?} {:?} {:?}, without {:?}", with.highest, with.lower, with.batch, without.highest);
    // The flood is more than the GPUs can run within the SLO: without classes, most requests of
    // every kind would be bad.
    let allowed = without.highest.bad + with.highest.sent / 20;
    assert!(with.highest.bad <= allowed, "{with:?}, without {without:?}");
    assert_eq!((with.batch.good, with.batch.bad), (with.batch.sent, 0), "{with:?}");
    assert!(with.lower.good > 0 && with.batch.sent > 3_300, "they got what was left: {with:?}");
}

#[test]
fn each_rank_thread_serves_the_classes_of_its_own_models() {
    let cores = "rank_threads = 2\nmodel_threads = 3";
    let files = ["model-0.symrec", "model-1.symrec", "model-2.symrec", "rank.symrec", "rank-1.symrec"];
    let (with, without) = with_and_without(4, cores, &files);
    let allowed = without.highest.bad + with.highest.sent / 20;
    assert!(with.highest.bad <= allowed, "{with:?}, without {without:?}");
    assert_eq!((with.batch.good, with.batch.bad), (with.batch.sent, 0), "{with:?}");
}

/// Starts an engine whose only GPU is busy for five minutes: later requests wait.
fn with_a_busy_gpu(folder: &Path) -> (Engine, Frontend) {
    let slow =
        EmulatedModel { slo_ms: 600_000.0, alpha_ms: 1.0, beta_ms: 300_000.0, more: "max_batch = 1\n" };
    let text = format!("policy = \"work-conserving\"\n{}{}", emulated_gpus(1), slow.sections(1));
    let (engine, mut frontend) = start(config(folder, &text));
    frontend.submit(&ask(0, 0, Due::Slo), |_, _| ()).unwrap();
    (engine, frontend)
}

#[test]
fn a_request_without_a_deadline_that_waits_can_be_cancelled_and_ends_when_the_engine_does() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = with_a_busy_gpu(folder.path());
    let tickets: Vec<Ticket> =
        (0..100).map(|n| frontend.submit(&ask(0, n % 4, Due::Never), |_, _| ()).unwrap()).collect();
    let mut ends = std::collections::HashMap::new();
    let (began, cancelled) = (Instant::now(), 40);
    tickets[..cancelled].iter().for_each(|&ticket| frontend.cancel(ticket));
    while ends.len() < cancelled {
        assert!(began.elapsed() < PATIENCE, "{ends:?}");
        frontend.poll(|ticket, answer| assert_eq!(ends.insert(ticket, answer.outcome), None));
        std::thread::yield_now();
    }
    let withdrawn = Outcome::Bad(Ending::Withdrawn);
    assert!(tickets[..cancelled].iter().all(|ticket| ends[ticket] == withdrawn), "{ends:?}");
    engine.stop();
    answer_all(&mut frontend, |ticket, answer| assert_eq!(ends.insert(ticket, answer.outcome), None));
    assert!(
        tickets[cancelled..].iter().all(|ticket| ends[ticket] == Outcome::Bad(Ending::Stopped)),
        "{ends:?}"
    );
}

#[test]
fn lower_classes_leave_room_for_requests_of_those_above() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = with_a_busy_gpu(folder.path());
    let slots = frontend.capacity();
    let mut taken = 0;
    for (class, most) in [(3, slots / 4), (2, slots / 2), (1, slots / 4 * 3)] {
        let due = if class == 3 { Due::Never } else { Due::Within(Nanos::from_secs(600)) };
        loop {
            match frontend.submit(&ask(0, class, due), |_, _| ()) {
                Ok(_) => taken += 1,
                Err(refusal) => break assert_eq!(refusal, Refusal::Overloaded),
            }
            // Answers come too: a queue holds fewer requests than the slab has slots.
            frontend.poll(|_, _| ());
        }
        assert!(frontend.in_flight() <= most && taken > limits::MAX_QUEUE_LENGTH / 4, "{class}: {taken}");
    }
    frontend.submit(&ask(0, 0, Due::Slo), |_, _| ()).expect("the rest is for the highest class");
    let rows = slots / 2;
    let refused = frontend.submit(&Ask { rows, ..ask(0, 3, Due::Never) }, |_, _| ()).unwrap_err();
    assert!(matches!(refused, Refusal::TooManyRows { limit, .. } if limit <= slots / 4), "{refused}");
    engine.stop();
}

#[test]
fn models_of_a_lower_class_reserve_no_gpus_for_requests_that_do_not_come() {
    let folder = tempfile::tempdir().unwrap();
    // A batch takes longer than a request could wait: in class 0, each model's queue would reserve
    // the GPU.
    let model =
        EmulatedModel { slo_ms: 300.0, alpha_ms: 1.0, beta_ms: 200.0, more: "max_batch = 8\npriority = 3\n" };
    let text = format!("{}{}", emulated_gpus(1), model.sections(3));
    let (engine, mut frontend) = start(config(folder.path(), &text));
    for n in 0..30 {
        frontend.submit(&ask(n % 3, 3, Due::Never), |_, _| ()).unwrap();
    }
    answer_all(&mut frontend, |_, answer| assert_eq!(answer.outcome, Outcome::Good));
    engine.stop();
}
