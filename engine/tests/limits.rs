//! The largest engine that there may be: every limit of `limits.rs` reached at once, on however few
//! cores and in memory that a common machine has. A test program of its own, since it counts the
//! memory of its process.

mod harness;

use harness::engine::{EmulatedModel, answer_all, config, emulated_gpus, resident_kib, start};
use symphony::config::Config;
use symphony::runtime::frontend::Ask;
use symphony_scheduler::limits;
use symphony_transport::message::ModelId;

/// The memory that the engine may take, in MiB. Most of it is rings: each ModelThread has two of 1
/// MiB with each frontend, and one of 128 KiB with each RankThread. A quarter is for the queues of
/// lower classes.
const MAX_MIB: u64 = 2_048;

fn at_every_limit() -> Config {
    let folder = tempfile::tempdir().unwrap();
    let model = EmulatedModel { slo_ms: 60_000.0, alpha_ms: 0.2, beta_ms: 1.0, more: "" };
    let text = format!(
        "policy = \"work-conserving\"\n[cores]\nmodel_threads = 255\n{}{}",
        emulated_gpus(65_536),
        model.sections(1)
    );
    let mut config = config(folder.path(), &text);
    let model = config.models.remove(0);
    for at in 0..limits::MAX_MODELS {
        let mut copy = model.clone();
        copy.name = format!("m{at}");
        config.models.push(copy);
    }
    config.cores.rank_threads = limits::MAX_RANK_THREADS;
    config
}

#[test]
fn an_engine_at_every_limit_starts_serves_and_stops() {
    let config = at_every_limit();
    assert_eq!(config.executors[0].count, limits::MAX_GPUS);
    let before = resident_kib();
    let (engine, mut frontend) = start(config);
    let layout = engine.layout();
    assert_eq!(layout.models.len(), limits::MAX_MODEL_THREADS);
    assert_eq!(layout.ranks.len(), limits::MAX_RANK_THREADS);
    // One request for each of the first models, so that every ModelThread and every RankThread has
    // some.
    let sent = 2 * limits::MAX_MODEL_THREADS * limits::MAX_RANK_THREADS;
    for model in 0..sent {
        frontend.submit(&Ask::one(ModelId(model as u32)), |_, input| input.fill(1)).unwrap();
    }
    answer_all(&mut frontend, |_, _| ());
    let taken = (resident_kib() - before) / 1_024;
    let counters = engine.counters().clone();
    engine.stop();
    assert!(taken < MAX_MIB, "the engine takes {taken} MiB");
    let snapshot = counters.snapshot();
    assert!(snapshot.models.iter().all(|thread| thread.requests > 0));
    assert!(snapshot.ranks.iter().all(|thread| thread.grants > 0));
    assert_eq!(snapshot.models.iter().map(|thread| thread.requests).sum::<u64>(), sent as u64);
}
