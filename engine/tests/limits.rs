//! The largest engine that there may be: every limit of `limits.rs` reached at once, on however few
//! cores and in memory that a common machine has. A test program of its own, since it counts the
//! memory of its process.

use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony::config::{Config, read_config};
use symphony::runtime::Engine;
use symphony::runtime::frontend::Ask;
use symphony_scheduler::limits;
use symphony_transport::message::ModelId;

/// What the engine may take, in MiB. Most of it are rings: per ModelThread two of 1 MiB with each
/// frontend, and one of 128 KiB with each RankThread. A quarter is for the queues of lower classes.
const MOST_MIB: u64 = 2_048;

/// The process's resident memory, in MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024
}

fn at_every_limit() -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("symphony.toml");
    let text = "policy = \"work-conserving\"\n[[executors]]\nkind = \"emulated\"\ncount = 65536\n\
                [[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 60000\n\
                profile = { alpha_ms = 0.2, beta_ms = 1 }\n\
                [cores]\nmodel_threads = 255\n";
    std::fs::write(&file, text).unwrap();
    let mut config = read_config(&file).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
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
    let before = resident_mib();
    let (engine, mut frontends) = Engine::start(config, 1, Arc::new(|_: &str| ())).unwrap();
    let mut frontend = frontends.pop().unwrap();
    let layout = engine.layout();
    assert_eq!(layout.models.len(), limits::MAX_MODEL_THREADS);
    assert_eq!(layout.ranks.len(), limits::MAX_RANK_THREADS);
    // One request for each of so many models that every ModelThread and every RankThread has some.
    let sent = 2 * limits::MAX_MODEL_THREADS * limits::MAX_RANK_THREADS;
    for model in 0..sent {
        frontend.submit(&Ask::one(ModelId(model as u32)), |_, input| input.fill(1)).unwrap();
    }
    let (began, mut answered) = (Instant::now(), 0);
    while answered < sent {
        assert!(began.elapsed() < Duration::from_secs(120), "{answered} of {sent} answered");
        answered += frontend.poll(|_, _| ());
        std::thread::yield_now();
    }
    let taken = resident_mib() - before;
    let counters = engine.counters().clone();
    engine.stop();
    assert!(taken < MOST_MIB, "the engine takes {taken} MiB");
    let snapshot = counters.snapshot();
    assert!(snapshot.models.iter().all(|thread| thread.requests > 0));
    assert!(snapshot.ranks.iter().all(|thread| thread.grants > 0));
    assert_eq!(snapshot.models.iter().map(|thread| thread.requests).sum::<u64>(), sent as u64);
}
