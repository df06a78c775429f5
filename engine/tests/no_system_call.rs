//! A ModelThread and the RankThread make no system call between start and stop, with the flight
//! recorder on: a filter in the kernel (seccomp), set on these threads before their first duty
//! cycle, ends the process at the first one.
//!
//! Each check runs in a process of its own: this test's binary, with the check's name in an
//! environment variable. Since no system call at all is allowed, the threads can't end either:
//! these processes end without stopping the engine.

mod harness;

use harness::engine::{EmulatedModel, config, emulated_gpus, replay_exactly, start_with};
use harness::process::PATIENCE;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Instant;
use symphony::recorder::RecordConfig;
use symphony::runtime::clock::Clock;
use symphony::runtime::frontend::{Ask, Class, Due, Refusal};
use symphony::runtime::{Idle, Options};
use symphony_transport::message::ModelId;

/// The environment variable that names the check of a child process.
const CHECK: &str = "SYMPHONY_SYSTEM_CALL_CHECK";

/// The signal that a forbidden system call ends a process with.
const SIGSYS: i32 = 31;

/// Forbids the calling thread every system call from here on.
fn forbid_system_calls() {
    let arch = std::env::consts::ARCH.try_into().expect("seccomp supports this processor");
    let filter =
        SeccompFilter::new(BTreeMap::new(), SeccompAction::KillProcess, SeccompAction::Allow, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).expect("this kernel has seccomp filters");
}

/// Runs the named check in a process of its own.
fn run(check: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "a_check_of_a_child_process", "--nocapture", "--test-threads=1"];
    Command::new(program).args(arguments).env(CHECK, check).status().unwrap()
}

#[test]
fn a_model_thread_and_the_rank_thread_make_no_system_call_between_start_and_stop() {
    if run("clock").signal() == Some(SIGSYS) {
        // The processor's time-stamp counter can't be trusted here, so the time comes from the
        // system.
        eprintln!("not checked: reading the time is a system call on this machine");
        return;
    }
    let status = run("engine");
    assert!(status.success(), "the engine's process: {status}");
}

#[test]
fn a_system_call_is_noticed_by_the_check() {
    assert_eq!(run("call").signal(), Some(SIGSYS));
}

/// Does nothing unless it is a child process of the tests above.
#[test]
fn a_check_of_a_child_process() {
    match std::env::var(CHECK).as_deref() {
        Ok("clock") => read_the_time(),
        Ok("call") => make_a_call(),
        Ok("engine") => serve(),
        _ => {}
    }
}

fn read_the_time() {
    let clock = Clock::start();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&done);
    std::thread::spawn(move || {
        forbid_system_calls();
        for _ in 0..1_000 {
            std::hint::black_box(clock.now());
        }
        seen.store(true, std::sync::atomic::Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    });
    while !done.load(std::sync::atomic::Ordering::Acquire) {
        std::thread::yield_now();
    }
    std::process::exit(0);
}

fn make_a_call() {
    let _ = std::thread::spawn(|| {
        forbid_system_calls();
        std::thread::yield_now();
    })
    .join();
    std::process::exit(0);
}

fn serve() {
    let folder = tempfile::tempdir().unwrap();
    let model = EmulatedModel { slo_ms: 300.0, alpha_ms: 0.2, beta_ms: 1.0, more: "" };
    let config = config(folder.path(), &(emulated_gpus(8) + &model.sections(1)));
    let record = folder.path().join("record");
    let options = Options {
        record: Some(RecordConfig { folder: record.clone(), mib: 8 }),
        on_thread_start: Some(Arc::new(|role: &str| {
            // The emulated GPUs stand for machines beyond the dataplane.
            if role != "emulated" {
                forbid_system_calls();
            }
        })),
        idle: Some(Idle::Spin),
        ..Options::default()
    };
    let (engine, mut frontend) = start_with(config, options);
    let began = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    while answered < 20_000 {
        assert!(began.elapsed() < PATIENCE, "{answered} requests were answered");
        // Of every class, with and without a deadline.
        let class = Class::new((sent % 4) as u8).unwrap();
        let due = if sent % 3 == 0 { Due::Never } else { Due::Slo };
        match frontend.submit(&Ask { class, due, ..Ask::one(ModelId(0)) }, |_, input| input.fill(0)) {
            Ok(_) => sent += 1,
            Err(Refusal::Overloaded) => {}
            Err(refusal) => panic!("{refusal}"),
        }
        if sent % 64 == 0 || sent - answered > 500 {
            answered += frontend.poll(|_, _| ());
            std::thread::yield_now();
        }
    }
    let counters = engine.counters().snapshot();
    assert!(counters.models[0].batches > 0, "batches were sent: {counters:?}");
    // The same threads' recordings, read while they run.
    for name in ["model-0.symrec", "rank.symrec"] {
        replay_exactly(&record.join(name));
    }
    drop(folder);
    std::process::exit(0);
}
