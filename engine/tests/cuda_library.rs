//! The commands as on a machine with GPUs: they open a library in place of NVIDIA's driver, whose
//! devices are fake, so that the calls of the driver are made as they are on a card.

mod harness;

use harness::fake_gpus::FakeGpus;
use harness::process::{ServerProcess, request, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Writes a CONFIG with `gpus` GPUs, which run `linear.onnx`.
fn config(gpus: usize) -> TempDir {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "policy = \"work-conserving\"\n[faults]\ngrace_ms = 20\nhung_after_s = 0.5\n\
         [[executors]]\nkind = \"cuda\"\ncount = {gpus}\n\
         [[models]]\nname = \"model\"\nfile = \"{}\"\nslo_ms = 20000\nmax_batch = 4\n\
         profile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n",
        model.display()
    );
    std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
    folder
}

fn symphony(gpus: &FakeGpus) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    gpus.show_to(&mut command);
    command
}

fn check(gpus: &FakeGpus, config: &TempDir, variables: &[(&str, &str)]) -> (Output, String) {
    let mut command = symphony(gpus);
    let output = command.arg("check").arg(config.path()).envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// Starts a server on this many GPUs, one of which has these faults. Its log goes to `log`.
fn serve(gpus: &FakeGpus, config: &TempDir, (count, faults): (usize, &str), log: &Path) -> ServerProcess {
    let mut command = symphony(gpus);
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(config.path());
    command.env("SYMPHONY_FAKE_GPUS", count.to_string()).env("SYMPHONY_FAKE_GPU_FAULTS", faults);
    ServerProcess::start(&mut command, Stdio::from(std::fs::File::create(log).unwrap()))
}

/// Asks for a row and returns the status with the answer's first output.
fn ask(server: &ServerProcess, row: &[f32]) -> (u16, Vec<f64>) {
    let path = ("GET", "/v2/models/model");
    let (_, _, described) = request(server.address(), path, "", "").unwrap();
    let described: Value = serde_json::from_str(&described).unwrap();
    let input = &described["inputs"][0]["name"];
    let body = json!({ "inputs": [
        { "name": input, "shape": [1, row.len()], "datatype": "FP32", "data": row }
    ] });
    let path = ("POST", "/v2/models/model/infer");
    let (status, _, answer) = request(server.address(), path, "", &body.to_string()).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let data = answer["outputs"][0]["data"].as_array().cloned().unwrap_or_default();
    (status, data.iter().filter_map(Value::as_f64).collect())
}

#[test]
fn serve_answers_from_gpus_of_a_library_in_place_of_the_driver() {
    let (gpus, config) = (FakeGpus::new(), config(2));
    let (output, said) = check(&gpus, &config, &[("SYMPHONY_FAKE_GPUS", "2")]);
    assert!(output.status.success(), "{said}");
    let log = config.path().join("log");
    let mut server = serve(&gpus, &config, (2, ""), &log);
    let row = [0.5, -1.0, 2.0, 0.25];
    let (status, first) = ask(&server, &row);
    assert_eq!(status, 200, "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(first.len(), 3);
    // The same model on a CPU core.
    let text = std::fs::read_to_string(config.path().join("symphony.toml")).unwrap();
    let on_cpu = tempfile::tempdir().unwrap();
    std::fs::write(on_cpu.path().join("symphony.toml"), text.replace("\"cuda\"", "\"cpu\"")).unwrap();
    let reference = serve(&gpus, &on_cpu, (0, ""), &on_cpu.path().join("log"));
    let (_, expected) = ask(&reference, &row);
    assert!(first.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-5), "{first:?} for {expected:?}");
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn a_driver_with_too_few_gpus_or_too_little_memory_is_a_diagnostic() {
    let (gpus, config) = (FakeGpus::new(), config(2));
    for (variables, expected) in [
        ([("SYMPHONY_FAKE_GPUS", "1")], "there is no GPU 1: the CUDA driver has 1, counted from 0"),
        ([("SYMPHONY_FAKE_GPUS", "0")], "there is no GPU 0: the CUDA driver has 0, counted from 0"),
        ([("SYMPHONY_FAKE_GPUS", "x")], "start the driver: invalid argument (CUDA_ERROR_INVALID_VALUE)"),
    ] {
        let (output, said) = check(&gpus, &config, &variables);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let small = [("SYMPHONY_FAKE_GPUS", "2"), ("SYMPHONY_FAKE_GPU_MEMORY", "1000")];
    let (output, said) = check(&gpus, &config, &small);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("1 pages of 16.8 MB are needed and 0 of 0 are free"), "{said}");
}

#[test]
fn a_gpu_with_an_ecc_error_or_that_hangs_is_taken_out_and_the_other_one_answers() {
    for (fault, reason) in
        [("0:launch_graph:3:ecc", "CUDA_ERROR_ECC_UNCORRECTABLE"), ("0:launch_graph:3:hang", "has not ended")]
    {
        let (gpus, config) = (FakeGpus::new(), config(2));
        let log = config.path().join("log");
        let server = serve(&gpus, &config, (2, fault), &log);
        wait_until("a GPU is taken out", || {
            ask(&server, &[0.0; 4]);
            std::fs::read_to_string(&log).unwrap().contains(reason)
        });
        wait_until("the other one answers", || ask(&server, &[0.0; 4]).0 == 200);
        assert!((0..5).all(|_| ask(&server, &[0.0; 4]).0 == 200));
    }
}
