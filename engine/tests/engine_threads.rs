//! The engine on real threads, in process: every request that a frontend sends is answered exactly
//! once, whatever the load, on however few cores this machine has.

mod harness;

use harness::engine::{EmulatedModel, answer_all, config, emulated_gpus, replay_exactly, start, start_with};
use harness::process::PATIENCE;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use symphony::config::Config;
use symphony::recorder::RecordConfig;
use symphony::runtime::counters::{CountersSnapshot, ModelTally, RankTally};
use symphony::runtime::frontend::{Answer, Ask, Due, Frontend, Outcome, Refusal, Ticket};
use symphony::runtime::{Engine, Options, StartError};
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

fn emulated(folder: &Path, policy: &str, gpus: usize, models: usize, slo_ms: f64) -> Config {
    // Holding batches back brings every answer close to its deadline: no test of whether it is met
    // may depend on that.
    let model = EmulatedModel { slo_ms, alpha_ms: 0.2, beta_ms: 1.0, more: "" };
    let text = format!("policy = \"{policy}\"\n{}{}", emulated_gpus(gpus), model.sections(models));
    config(folder, &text)
}

fn within(model: ModelId, time: Nanos) -> Ask {
    Ask { due: Due::Within(time), ..Ask::one(model) }
}

/// Polls until nothing is in flight, and keeps each answer.
fn collect(frontend: &mut Frontend, answers: &mut HashMap<Ticket, Outcome>) {
    answer_all(frontend, |ticket, answer| keep(answers, ticket, &answer));
}

/// Polls once, and keeps each answer.
fn poll(frontend: &mut Frontend, answers: &mut HashMap<Ticket, Outcome>) {
    frontend.poll(|ticket, answer| keep(answers, ticket, &answer));
    std::thread::yield_now();
}

/// Checks that an answer is the first of its ticket and that its times are in order.
fn keep(answers: &mut HashMap<Ticket, Outcome>, ticket: Ticket, answer: &Answer<'_>) {
    assert!(answers.insert(ticket, answer.outcome).is_none(), "{ticket:?} was answered twice");
    if matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
        assert!(
            answer.timeline.started >= answer.timeline.arrival
                && answer.timeline.finished >= answer.timeline.started
        );
        assert!(answer.batch_size >= 1);
    }
}

#[test]
fn every_request_is_answered_once_at_ten_times_the_capacity() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "symphony", 2, 3, 50.0));
    let mut answers = HashMap::new();
    let mut accepted = 0u64;
    let mut refused = 0u64;
    for n in 0..60_000u32 {
        match frontend.submit(&Ask::one(ModelId(n % 3)), |_, input| input.fill(0xff)) {
            Ok(_) => accepted += 1,
            Err(Refusal::Overloaded) => refused += 1,
            Err(refusal) => panic!("{refusal}"),
        }
        if n % 64 == 0 {
            poll(&mut frontend, &mut answers);
        }
    }
    collect(&mut frontend, &mut answers);
    assert_eq!(answers.len() as u64, accepted);
    assert_eq!(accepted + refused, 60_000);
    assert!(answers.values().any(|outcome| matches!(outcome, Outcome::Bad(Ending::DroppedInQueue))));
    engine.stop();
}

#[test]
fn a_lone_request_runs_within_an_slo_that_any_machine_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "work-conserving", 1, 1, 5_000.0));
    let mut answers = HashMap::new();
    let ticket = frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    collect(&mut frontend, &mut answers);
    assert_eq!(answers[&ticket], Outcome::Good);
    engine.stop();
}

#[test]
fn a_request_of_many_rows_is_answered_once_with_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "work-conserving", 2, 2, 5_000.0));
    let limit = frontend.most_rows(ModelId(0));
    for rows in [0, limit + 1] {
        let ask = Ask { rows, ..Ask::one(ModelId(0)) };
        assert_eq!(frontend.submit(&ask, |_, _| ()), Err(Refusal::TooManyRows { rows, limit }));
    }
    let mut sent = HashMap::new();
    for n in 0..40 {
        let mut filled = Vec::new();
        let ask = Ask { rows: 1 + n % 30, ..Ask::one(ModelId(n as u32 % 2)) };
        let ticket = frontend.submit(&ask, |row, _| filled.push(row)).unwrap();
        assert_eq!(filled, (0..ask.rows).collect::<Vec<_>>());
        sent.insert(ticket, ask.rows);
    }
    assert_eq!(frontend.in_flight(), 40);
    let bytes = frontend.models()[0].signature.output_bytes();
    answer_all(&mut frontend, |ticket, answer| {
        assert_eq!(sent.remove(&ticket), Some(answer.rows), "{ticket:?}");
        if matches!(answer.outcome, Outcome::Good | Outcome::Late(_)) {
            assert!((0..answer.rows).all(|row| answer.row(row) == vec![0; bytes]));
            assert!(answer.batch_size as usize >= answer.rows, "it was split without need");
        }
        assert!(answer.row(answer.rows).is_empty());
    });
    assert!(sent.is_empty());
    engine.stop();
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_is_answered_as_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    // Its one GPU is busy for a minute with each batch, and no batch has more than one request.
    let model =
        EmulatedModel { slo_ms: 600_000.0, alpha_ms: 1.0, beta_ms: 60_000.0, more: "max_batch = 1\n" };
    let text = format!("policy = \"work-conserving\"\n{}{}", emulated_gpus(1), model.sections(1));
    let (engine, mut frontend) = start(config(folder.path(), &text));
    let mut answers = HashMap::new();
    let tickets: Vec<Ticket> =
        (0..9).map(|_| frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap()).collect();
    // Up to four batches are sent ahead to a GPU.
    let waits = &tickets[limits::MAX_OUTSTANDING_BATCHES..];
    for &ticket in waits.iter().chain(waits) {
        frontend.cancel(ticket);
    }
    let began = Instant::now();
    while answers.len() < waits.len() {
        assert!(began.elapsed() < PATIENCE, "{answers:?}");
        poll(&mut frontend, &mut answers);
    }
    assert!(waits.iter().all(|ticket| answers[ticket] == Outcome::Bad(Ending::Withdrawn)), "{answers:?}");
    waits.iter().for_each(|&ticket| frontend.cancel(ticket));
    engine.stop();
    collect(&mut frontend, &mut answers);
    assert_eq!(answers.len(), tickets.len());
}

#[test]
fn ten_thousand_emulated_gpus_share_a_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "symphony", 10_000, 50, 3_000.0));
    let mut answers = HashMap::new();
    for n in 0..5_000u32 {
        frontend.submit(&within(ModelId(n % 50), Nanos::from_millis(1_500)), |_, _| ()).unwrap();
    }
    collect(&mut frontend, &mut answers);
    assert_eq!(answers.len(), 5_000);
    engine.stop();
}

#[test]
fn a_drained_engine_refuses_and_finishes_what_it_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "symphony", 1, 1, 2_000.0));
    let mut answers = HashMap::new();
    for _ in 0..5 {
        frontend.submit(&within(ModelId(0), Nanos::from_millis(500)), |_, _| ()).unwrap();
    }
    engine.drain();
    assert_eq!(frontend.submit(&Ask::one(ModelId(0)), |_, _| ()), Err(Refusal::Draining));
    collect(&mut frontend, &mut answers);
    assert_eq!(answers.len(), 5);
    engine.stop();
}

#[test]
fn an_engine_stopped_at_once_still_answers_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(emulated(folder.path(), "symphony", 1, 1, 60_000.0));
    let mut answers = HashMap::new();
    for _ in 0..500 {
        frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    }
    engine.stop();
    collect(&mut frontend, &mut answers);
    assert_eq!(answers.len(), 500);
    assert!(answers.values().any(|outcome| *outcome == Outcome::Bad(Ending::Stopped)));
}

#[test]
fn counters_add_up_and_recordings_replay_to_the_same_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let config = emulated(folder.path(), "symphony", 2, 3, 50.0);
    let options =
        Options { record: Some(RecordConfig { folder: record.clone(), mib: 8 }), ..Options::default() };
    let (engine, mut frontend) = start_with(config, options);
    let mut answers = HashMap::new();
    let mut accepted = 0u64;
    for n in 0..40_000u32 {
        accepted += u64::from(frontend.submit(&Ask::one(ModelId(n % 3)), |_, _| ()).is_ok());
        if n % 64 == 0 {
            poll(&mut frontend, &mut answers);
        }
    }
    // However late its threads get their cores, the engine is stopped only once it has begun to
    // work.
    let began = Instant::now();
    while answers.is_empty() && began.elapsed() < PATIENCE {
        poll(&mut frontend, &mut answers);
    }
    let counters = engine.counters().clone();
    engine.stop();
    collect(&mut frontend, &mut answers);
    let snapshot = counters.snapshot();
    let model = snapshot.models[0];
    let ended =
        model.batched_requests + model.dropped_in_queue + model.overloaded + model.withdrawn + model.stopped;
    assert_eq!(ended, accepted, "{model:?}");
    assert_eq!(answers.len() as u64, accepted);
    assert_eq!(model.grants, model.batches + model.grants_unused);
    assert!(model.cycles.busy > 0 && model.cycles.longest_ns > 0 && model.request_ring_high > 0);
    assert!(snapshot.ranks[0].grants >= model.grants && snapshot.ranks[0].messages > 0);
    let backend = &snapshot.backends[0].1;
    assert_eq!(backend.start.total(), backend.batches);
    assert!(backend.batches + backend.cancelled <= model.batches);
    let mut requests = 0;
    for name in ["model-0.symrec", "rank.symrec"] {
        let replayed = replay_exactly(&record.join(name));
        assert!(replayed.inputs > 0 && replayed.decisions > 0);
        requests += replayed.requests;
    }
    assert!(requests > 0 && requests <= accepted);
}

/// Serves requests for these models on two RankThreads and checks that each model answers its
/// requests, that the counters of all threads add up to all requests, and that the recordings of
/// both RankThreads replay.
fn serve_on_two_rank_threads(config: Config, folder: &Path) {
    let models = config.models.len() as u32;
    let record = folder.join("record");
    let options =
        Options { record: Some(RecordConfig { folder: record.clone(), mib: 8 }), ..Options::default() };
    let (engine, mut frontend) = start_with(config, options);
    let mut answers = HashMap::new();
    for n in 0..40 * models {
        frontend.submit(&Ask::one(ModelId(n % models)), |_, input| input.fill(0)).unwrap();
        poll(&mut frontend, &mut answers);
    }
    collect(&mut frontend, &mut answers);
    let of_ranks = |all: &CountersSnapshot, of: fn(&RankTally) -> u64| all.ranks.iter().map(of).sum::<u64>();
    let of_models =
        |all: &CountersSnapshot, of: fn(&ModelTally) -> u64| all.models.iter().map(of).sum::<u64>();
    // The last batch's completion may reach its RankThread after the client has the answers.
    let (began, counters) = (Instant::now(), engine.counters().clone());
    let all_completed = |all: &CountersSnapshot| {
        of_ranks(all, |rank| rank.completions) == of_models(all, |model| model.batches)
    };
    while !all_completed(&counters.snapshot()) && began.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    engine.stop();
    assert_eq!(answers.len() as u32, 40 * models);
    assert!(answers.values().all(|outcome| *outcome == Outcome::Good), "{answers:?}");
    let snapshot = counters.snapshot();
    assert_eq!(snapshot.ranks.len(), 2);
    assert!(all_completed(&snapshot), "{snapshot:?}");
    assert!(snapshot.ranks.iter().all(|rank| rank.grants > 0 && rank.completions > 0), "{snapshot:?}");
    assert_eq!(of_ranks(&snapshot, |rank| rank.grants), of_models(&snapshot, |model| model.grants));
    assert_eq!(of_models(&snapshot, |model| model.batched_requests), answers.len() as u64);
    let mut decisions = 0;
    for name in ["rank.symrec", "rank-1.symrec"] {
        decisions += replay_exactly(&record.join(name)).decisions;
    }
    assert_eq!(decisions, of_ranks(&snapshot, |rank| rank.grants));
}

#[test]
fn emulated_gpus_are_split_between_two_rank_threads() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = emulated(folder.path(), "work-conserving", 5, 6, 20_000.0);
    (config.cores.rank_threads, config.cores.model_threads) = (2, Some(3));
    serve_on_two_rank_threads(config, folder.path());
}

#[test]
fn two_kinds_of_executors_are_matched_by_a_rank_thread_each() {
    let folder = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/shapes.onnx");
    std::fs::copy(model, folder.path().join("shapes.onnx")).unwrap();
    let text = "policy = \"work-conserving\"\n[cores]\nrank_threads = 2\n\
                [[executors]]\nkind = \"cpu\"\n[[executors]]\nkind = \"emulated\"\ncount = 2\n\
                [[models]]\nname = \"shapes\"\nfile = \"shapes.onnx\"\nslo_ms = 60000\nmax_batch = 4\n\
                profile = { alpha_ms = 5, beta_ms = 5 }\n\
                [[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 60000\n\
                profile = { alpha_ms = 0.2, beta_ms = 1 }\n";
    serve_on_two_rank_threads(config(folder.path(), text), folder.path());
}

#[test]
fn above_each_limit_start_up_fails_with_a_sentence_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let one = emulated(folder.path(), "symphony", 1, 1, 50.0);
    let mut config = one.clone();
    config.executors[0].count = limits::MAX_GPUS + 1;
    refused(config, 1, "GPUs and other executors: 65537 asked for; the limit is 65536");
    let mut config = one.clone();
    config.models = vec![one.models[0].clone(); limits::MAX_MODELS + 1];
    refused(config.clone(), 1, "models: 16385 asked for; the limit is 16384");
    config.models.truncate(limits::MAX_MODELS);
    config.cores.model_threads = Some(limits::MAX_MODEL_THREADS + 1);
    refused(config.clone(), 1, "ModelThreads: 256 asked for; the limit is 255");
    config.cores.model_threads = Some(1);
    config.cores.rank_threads = limits::MAX_RANK_THREADS + 1;
    refused(config.clone(), 1, "RankThreads: 17 asked for; the limit is 16");
    config.cores.rank_threads = 2;
    let sentence =
        "RankThreads that each have an executor and a model of their own: 2 asked for; the limit is 1";
    refused(config, 1, sentence);
    refused(one, limits::MAX_FRONTENDS + 1, "frontends: 256 asked for; the limit is 255");
}

fn refused(config: Config, frontends: usize, sentence: &str) {
    let error = Engine::start(config, frontends, Arc::new(|_: &str| ())).map(drop).unwrap_err();
    assert!(matches!(error, StartError::Limit { .. }), "{error}");
    assert_eq!(error.to_string(), sentence);
}
