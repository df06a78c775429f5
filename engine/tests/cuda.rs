//! An engine with GPUs, on a fake driver: a network is served through a socket, and requests are
//! answered whatever the driver does.

mod harness;

use harness::engine::{answer_all, config};
use harness::light_models::made_folder;
use harness::process::{PATIENCE, request};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony::api::{self, ApiConfig};
use symphony::runtime::frontend::{Ask, Due, Frontend, Outcome};
use symphony::runtime::{Engine, Options, StartError};
use symphony_fake_driver::{FakeDriver, Fault, driver_error, ecc_error};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

const GIB: u64 = 1 << 30;

fn linear() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx")
}

/// A CONFIG with `gpus` GPUs and a model that they run.
fn serving(gpus: usize, file: &Path, more: &str) -> String {
    format!(
        "[faults]\ngrace_ms = 20\nhung_after_s = 0.5\n[[executors]]\nkind = \"cuda\"\ncount = {gpus}\n\
         [[models]]\nname = \"model\"\nfile = \"{}\"\n{more}\n",
        file.display()
    )
}

const LINEAR: &str = "slo_ms = 1000\nmax_batch = 4\nprofile = { alpha_ms = 0.1, beta_ms = 1 }";

/// Starts an engine on this driver.
fn start(driver: &Arc<FakeDriver>, text: &str) -> Result<(Engine, Frontend), StartError> {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { cuda: Some(driver.clone()), ..Options::default() };
    let config = config(folder.path(), text);
    let (engine, mut frontends) = Engine::start_with(config, 1, Arc::new(|_: &str| ()), options)?;
    Ok((engine, frontends.pop().unwrap()))
}

/// Starts an engine with these many GPUs, which run `linear.onnx`.
fn start_linear(gpus: usize) -> (Arc<FakeDriver>, Engine, Frontend) {
    let driver = FakeDriver::new(&vec![GIB; gpus]);
    let (engine, frontend) = start(&driver, &serving(gpus, &linear(), LINEAR)).unwrap();
    (driver, engine, frontend)
}

/// Sends this many requests at once and returns their outcomes, with the outputs of the good ones.
fn ask(frontend: &mut Frontend, count: usize) -> Vec<(Outcome, Vec<u8>)> {
    let ask = Ask { due: Due::Within(Nanos::from_secs(1)), ..Ask::one(ModelId(0)) };
    for _ in 0..count {
        frontend.submit(&ask, |_, input| input.fill(0)).unwrap();
    }
    let mut answers = Vec::new();
    answer_all(frontend, |_, answer| {
        let output = if answer.outcome == Outcome::Good { answer.to_vec() } else { Vec::new() };
        answers.push((answer.outcome, output));
    });
    assert_eq!(answers.len(), count);
    answers
}

/// Sends requests until one has ended as `holds` says.
fn ask_until(frontend: &mut Frontend, what: &str, holds: impl Fn(Outcome) -> bool) {
    let began = Instant::now();
    while ask(frontend, 4).iter().all(|(outcome, _)| !holds(*outcome)) {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

#[test]
fn densenet_on_a_gpu_is_answered_through_a_socket_as_onnx_says() {
    let driver = FakeDriver::new(&[GIB]);
    let file = made_folder("light_models").join("light_densenet121.onnx");
    let text = serving(1, &file, "slo_ms = 60000\nmax_batch = 1\nprofile = { alpha_ms = 5000, beta_ms = 1 }");
    let (engine, frontend) = start(&driver, &text).unwrap();
    assert_eq!(engine.models()[0].platform, "onnx_cuda");
    let (input, output) = {
        let signature = &engine.models()[0].signature;
        (signature.inputs[0].clone(), signature.output_bytes())
    };
    let server = api::start(frontend, ApiConfig::at("127.0.0.1:0".parse().unwrap())).unwrap();
    let references = made_folder("exported_models").join("references/light_densenet121");
    let read = |name: &str| floats(&std::fs::read(references.join(name)).unwrap());
    let row: usize = input.shape.iter().product();
    let shape: Vec<usize> = [&[1], &input.shape[..]].concat();
    let body = serde_json::json!({
        "inputs": [{ "name": input.name, "shape": shape, "datatype": "FP32", "data": read("input0.bin")[..row] }]
    });
    let path = ("POST", "/v2/models/model/infer");
    let (status, _, answer) = request(server.local_addr(), path, "", &body.to_string()).unwrap();
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let found: Vec<f64> =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let expected = &read("output0.bin")[..output / 4];
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - f64::from(*expected)).abs() <= f64::from(largest) * 1e-4, "{found} for {expected}");
    }
    assert_eq!(driver.calls(0)["launch_graph"], 1);
    server.stop().unwrap();
    engine.stop();
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

#[test]
fn a_refused_call_fails_requests_and_the_gpu_serves_on() {
    let (driver, engine, mut frontend) = start_linear(1);
    ask_until(&mut frontend, "a request is good", |outcome| outcome == Outcome::Good);
    for call in ["copy_in", "launch_graph", "copy_out", "record", "is_over"] {
        let error = driver_error(call, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
        driver.plan_fault(0, call, 0, Fault::Refuse(error));
        ask(&mut frontend, 6);
        ask_until(&mut frontend, "a request is good again", |outcome| outcome == Outcome::Good);
    }
    engine.stop();
    drop(frontend);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

#[test]
fn a_gpu_that_is_lost_or_hangs_under_load_is_taken_out_and_the_other_one_serves() {
    for fault in [Fault::Break(ecc_error("launch a graph")), Fault::Hang] {
        let (driver, engine, mut frontend) = start_linear(2);
        ask_until(&mut frontend, "a request is good", |outcome| outcome == Outcome::Good);
        driver.plan_fault(0, "launch_graph", 0, fault);
        let launches = |gpu| driver.calls(gpu).get("launch_graph").copied().unwrap_or(0);
        // Requests in flight end; what is sent while the GPU is not given up yet may fail or be
        // late.
        let (began, before) = (Instant::now(), launches(0));
        while launches(0) == before {
            assert!(began.elapsed() < PATIENCE, "the first GPU gets no batch");
            ask(&mut frontend, 8);
        }
        ask_until(&mut frontend, "a request is good on the other GPU", |outcome| outcome == Outcome::Good);
        // Longer than it takes until the hung one counts as lost.
        std::thread::sleep(Duration::from_millis(700));
        ask(&mut frontend, 8);
        let (first, second) = (launches(0), launches(1));
        let answers: Vec<_> = (0..10).flat_map(|_| ask(&mut frontend, 4)).collect();
        assert!(answers.iter().any(|(outcome, _)| *outcome == Outcome::Good));
        assert_eq!(launches(0), first, "a GPU that is lost gets no batch");
        assert!(launches(1) > second);
        assert!(engine.fault().is_none(), "the engine goes on");
        engine.stop();
        drop(frontend);
        assert!(driver.live(1).is_empty(), "{:?} are left on the sound GPU", driver.live(1));
    }
}

#[test]
fn slots_under_copies_that_hang_or_of_a_lost_gpu_are_set_aside() {
    for fault in [Fault::Break(ecc_error("copy to the GPU")), Fault::Hang] {
        let (driver, engine, mut frontend) = start_linear(2);
        ask_until(&mut frontend, "a request is good", |outcome| outcome == Outcome::Good);
        let staged = driver.calls(0)["write_pinned"];
        driver.plan_fault(0, "copy_in", 0, fault.clone());
        let copies = || driver.calls(0)["copy_in"];
        let (began, before) = (Instant::now(), copies());
        while copies() == before {
            assert!(began.elapsed() < PATIENCE, "the first GPU gets no batch");
            ask(&mut frontend, 8);
        }
        // Longer than it takes until the hung one counts as lost.
        std::thread::sleep(Duration::from_millis(700));
        ask_until(&mut frontend, "a request is good on the other GPU", |outcome| outcome == Outcome::Good);
        let held = frontend.counts().held_slots.get();
        assert!(held > 0, "{fault:?}: no slot is set aside");
        (0..10).for_each(|_| drop(ask(&mut frontend, 4)));
        assert_eq!(frontend.counts().held_slots.get(), held, "{fault:?}: a slot has come back");
        assert_eq!(driver.calls(0)["write_pinned"], staged, "rows pass through the host");
        assert_eq!(frontend.counts().lost_slots.get(), 0);
        assert!(engine.fault().is_none(), "the engine goes on");
        engine.stop();
    }
}

#[test]
fn a_gpu_whose_driver_does_not_return_from_a_call_is_taken_out_and_the_other_one_serves() {
    for (call, fault) in [("is_over", Fault::Hang), ("launch_graph", Fault::Block), ("copy_in", Fault::Block)]
    {
        let (driver, engine, mut frontend) = start_linear(2);
        ask_until(&mut frontend, "a request is good", |outcome| outcome == Outcome::Good);
        driver.plan_fault(0, call, 0, fault);
        let lost = || engine.gpu_memory().pages()[0].lost.clone();
        let began = Instant::now();
        while lost().is_none() {
            assert!(began.elapsed() < PATIENCE, "{call}: the first GPU is not taken out");
            ask(&mut frontend, 8);
        }
        assert_eq!(lost().as_deref(), Some("a call of its driver has not returned after 0.5 s"));
        ask_until(&mut frontend, "a request is good on the other GPU", |outcome| outcome == Outcome::Good);
        let launches = driver.calls(0).get("launch_graph").copied();
        (0..10).for_each(|_| drop(ask(&mut frontend, 4)));
        assert_eq!(driver.calls(0).get("launch_graph").copied(), launches, "{call}: it gets a batch");
        assert!(engine.fault().is_none(), "the engine goes on");
        // Nobody waits for its thread, which ends once the call returns.
        engine.stop();
        drop(frontend);
        driver.resume(0);
        let began = Instant::now();
        while !driver.live(1).is_empty() {
            assert!(began.elapsed() < PATIENCE, "{:?} are left on the sound GPU", driver.live(1));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_only_gpu_lost_leaves_no_request_unanswered() {
    let (driver, engine, mut frontend) = start_linear(1);
    ask_until(&mut frontend, "a request is good", |outcome| outcome == Outcome::Good);
    driver.plan_fault(0, "copy_out", 0, Fault::Break(ecc_error("copy from the GPU")));
    ask_until(&mut frontend, "a request fails", |outcome| outcome != Outcome::Good);
    let answers = ask(&mut frontend, 8);
    assert!(answers.iter().all(|(outcome, _)| *outcome != Outcome::Good), "{answers:?}");
    assert!(engine.fault().is_none(), "the engine goes on");
    engine.stop();
}

#[test]
fn a_gpu_without_enough_memory_is_a_diagnostic_and_leaves_nothing() {
    let driver = FakeDriver::new(&[1_000]);
    let error = start(&driver, &serving(1, &linear(), LINEAR)).err().unwrap().to_string();
    for part in ["linear.onnx: can't be put on the GPU", "the GPU's memory does not suffice", "are free"] {
        assert!(error.contains(part), "{error}");
    }
    let began = Instant::now();
    while !driver.live(0).is_empty() {
        assert!(began.elapsed() < PATIENCE, "{:?} are left", driver.live(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    let driver = FakeDriver::new(&[GIB]);
    let error = start(&driver, &serving(2, &linear(), LINEAR)).err().unwrap().to_string();
    assert!(error.contains("there is no GPU 1: the CUDA driver has 1, counted from 0"), "{error}");
}

#[test]
fn check_says_that_there_is_no_driver() {
    if symphony_gpu::cuda::Libcuda::open().is_ok() {
        return; // A machine with one.
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("symphony.toml");
    std::fs::write(&file, serving(1, &linear(), LINEAR)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_symphony")).arg("check").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("executors: GPU 0 can't be used (there is no CUDA driver on this machine"),
        "{said}"
    );
}
