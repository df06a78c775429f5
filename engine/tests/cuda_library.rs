//! The commands as on a machine with GPUs: they open a library in place of NVIDIA's driver, whose
//! devices are fake, so that the calls of the driver are made as they are on a card.

mod harness;

use harness::fake_gpus::FakeGpus;
use harness::onnx;
use harness::onnx_library::onnx_library;
use harness::process::{ServerProcess, request, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn linear() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx")
}

/// Writes a CONFIG with `gpus` GPUs, which run `linear.onnx`.
fn config(gpus: usize) -> TempDir {
    let model = linear();
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

/// Asks for a row of the model of a CONFIG on a CPU core.
fn on_a_core(gpus: &FakeGpus, config: &TempDir, row: &[f32]) -> Vec<f64> {
    let text = std::fs::read_to_string(config.path().join("symphony.toml")).unwrap();
    let on_cpu = tempfile::tempdir().unwrap();
    std::fs::write(on_cpu.path().join("symphony.toml"), text.replace("\"cuda\"", "\"cpu\"")).unwrap();
    let reference = serve(gpus, &on_cpu, (0, ""), &on_cpu.path().join("log"));
    ask(&reference, row).1
}

#[test]
fn a_plans_file_is_served_in_half_precision_without_a_compiler_and_its_onnx_file() {
    let (gpus, config) = (FakeGpus::new(), config(1));
    let plan = config.path().join("linear.plan");
    let mut compile = symphony(&gpus);
    compile.arg("compile").arg(linear()).args(["--max-batch", "4", "--precision", "fp16"]);
    let compiled = compile.args(["--arch", "sm_90", "--output"]).arg(&plan).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let row = [0.1, -1.3, 2.0, 0.25];
    let expected = on_a_core(&gpus, &config, &row);
    let file = config.path().join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(linear().to_str().unwrap(), "linear.plan")).unwrap();
    // Without NVRTC.
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(config.path());
    command.env("LD_LIBRARY_PATH", gpus.driver());
    let log = config.path().join("log");
    let log_file = std::fs::File::create(&log).unwrap();
    let mut server = ServerProcess::start(&mut command, Stdio::from(log_file));
    let (status, found) = ask(&server, &row);
    assert_eq!(status, 200, "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
    let is_near = |(x, y): (&f64, &f64)| (x - y).abs() <= 0.01 * largest;
    assert!(found.iter().zip(&expected).all(is_near), "{found:?} for {expected:?}");
    assert_ne!(found, expected, "it is in half precision");
    assert_eq!(server.interrupt(), Some(0));
    let without = check(&FakeGpus::new(), &config, &[("SYMPHONY_FAKE_GPUS", "2")]).0;
    let said = String::from_utf8_lossy(&without.stdout).into_owned();
    assert!(said.contains("GPU 0: kernels of Symphony's in place of cuDNN (libcudnn.so or "), "{said}");
}

#[test]
fn serve_answers_from_gpus_of_a_library_in_place_of_the_driver() {
    let (gpus, config) = (FakeGpus::with_libraries(), config(2));
    let (output, said) = check(&gpus, &config, &[("SYMPHONY_FAKE_GPUS", "2")]);
    assert!(output.status.success(), "{said}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("GPU 1: cuBLASLt 13.0.2\nGPU 1: cuDNN 9.12.0\n"), "{said}");
    let log = config.path().join("log");
    let mut server = serve(&gpus, &config, (2, ""), &log);
    let row = [0.5, -1.0, 2.0, 0.25];
    let (status, first) = ask(&server, &row);
    let logged = std::fs::read_to_string(&log).unwrap();
    assert_eq!(status, 200, "{logged}");
    assert!(logged.contains("GPU 1: cuBLASLt 13.0.2"), "{logged}");
    assert_eq!(first.len(), 3);
    let expected = on_a_core(&gpus, &config, &row);
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
    assert!(said.contains("1 page of 16.8 MB is needed and 0 of 0 are free"), "{said}");
}

/// Runs `symphony ctl` against a server; returns its exit code, what it printed and its error.
fn ctl(server: &ServerProcess, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    let output = command.arg("ctl").args(arguments).args(["--server", &server.urls()[0]]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn ctl_lists_loads_and_unloads_models_of_a_server_without_a_repository() {
    let (gpus, config) = (FakeGpus::new(), config(1));
    let file = config.path().join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("count = 1\n", "count = 1\npage_mb = 2\nmemory_mb = 64\n")).unwrap();
    let server = serve(&gpus, &config, (1, ""), &config.path().join("log"));
    let (code, list, said) = ctl(&server, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(list.starts_with("GPU 0: fake GPU 0: 32 pages of 2.1 MB, "), "{list}");
    assert!(list.contains("  model  version 1     1 page   loaded\n"), "{list}");
    let (code, done, said) = ctl(&server, &["unload", "model"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(done.starts_with("unloaded model, version 1, GPU 0: 1 page in "), "{done}");
    assert!(ctl(&server, &["list"]).1.contains("unloaded\n"));
    assert_eq!(ask(&server, &[0.0; 4]).0, 503);
    let ready = |path| request(server.address(), ("GET", path), "", "").unwrap().0;
    assert_eq!((ready("/v2/models/model/ready"), ready("/v2/health/ready")), (400, 200));
    let (_, _, metrics) = request(server.address(), ("GET", "/metrics"), "", "").unwrap();
    for line in [
        "symphony_gpu_pages{gpu=\"0\"} 32",
        "symphony_model_pages{model=\"model\",version=\"1\",gpu=\"0\"} 0",
        "symphony_model_loaded{model=\"model\",version=\"1\",gpu=\"0\"} 0",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    for (arguments, expected) in [
        (&["unload", "model"][..], "model \"model\" is unloaded on GPU 0 already"),
        (&["load", "other"], "no model \"other\" is served; there are \"model\""),
        (&["load", "model", "--gpu", "3"], "there is no GPU 3 of kind \"cuda\" here; there are 0"),
    ] {
        let (code, _, said) = ctl(&server, arguments);
        assert_eq!((code, said.trim_end()), (Some(1), expected));
    }
    let (code, done, said) = ctl(&server, &["load", "model", "--gpu", "0", "--within", "5"]);
    assert!(code == Some(0) && done.contains("were predicted"), "{done}{said}");
    assert_eq!(ask(&server, &[0.0; 4]).0, 200);
}

#[test]
fn pages_that_the_driver_does_not_have_are_a_diagnostic() {
    let (gpus, config) = (FakeGpus::new(), config(1));
    let file = config.path().join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("count = 1\n", "count = 1\nmemory_mb = 100000\n")).unwrap();
    let (output, said) = check(&gpus, &config, &[("SYMPHONY_FAKE_GPUS", "1")]);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let expected = "GPU 0 can't be used (the GPU's memory can't be taken as asked for: memory of 104857.6 MB is asked \
                    for and 8589.9 MB are free); change `page_mb` or `memory_mb`";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_model_that_no_plan_can_be_made_of_names_the_operator_and_what_the_library_lacks() {
    let (gpus, config) = (FakeGpus::new(), config(1));
    std::fs::write(config.path().join("loop.onnx"), onnx::loop_model()).unwrap();
    let file = config.path().join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(linear().to_str().unwrap(), "loop.onnx")).unwrap();
    let library = onnx_library();
    for (library, reason) in [
        (library.to_str().unwrap(), "ONNX Runtime's CUDA provider can't be used on GPU 0"),
        ("/nowhere/libonnxruntime.so", "ONNX Runtime's library was not found"),
    ] {
        let (output, said) = check(&gpus, &config, &[("ORT_DYLIB_PATH", library)]);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let lacking = "loop.onnx: can't become a plan (plans lack the operators Loop (node `added`)), and ONNX \
                       Runtime can't run it on the GPU either";
        assert!(said.contains(lacking) && said.contains(reason), "{said}");
    }
}

/// A model of matrices `x` whose determinants `y` no plan can have.
fn determinants() -> Vec<u8> {
    onnx::file(&onnx::graph(
        &[onnx::node("Det", &["x"], &["d"], &[]), onnx::node("Unsqueeze", &["d", "axes"], &["y"], &[])],
        &[onnx::whole_numbers("axes", &[1])],
        &[onnx::tensor("x", onnx::FLOAT, &[0, 2, 2])],
        &[onnx::tensor("y", onnx::FLOAT, &[0, 1])],
    ))
}

/// Serves a model on a fake GPU by the provider, whose parts have these faults, asks it `inputs`
/// thrice, and returns the last answer's numbers, the log and the count of what was called.
fn by_the_provider(model: &[u8], faults: &str, inputs: &Value) -> (Vec<f64>, String, String) {
    let (gpus, config) = (FakeGpus::new(), config(1));
    std::fs::write(config.path().join("model.onnx"), model).unwrap();
    let file = config.path().join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(linear().to_str().unwrap(), "model.onnx")).unwrap();
    let (log, report) = (config.path().join("log"), config.path().join("report"));
    let mut command = symphony(&gpus);
    gpus.show_provider_to(&mut command, &onnx_library());
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(config.path());
    command.env("SYMPHONY_FAKE_LIBRARY_FAULTS", faults).env("SYMPHONY_FAKE_LIBRARY_REPORT", &report);
    let log_file = std::fs::File::create(&log).unwrap();
    let mut server = ServerProcess::start(&mut command, Stdio::from(log_file));
    let path = ("POST", "/v2/models/model/infer");
    let asked = || request(server.address(), path, "", &json!({ "inputs": inputs }).to_string()).unwrap();
    let [_, _, (status, _, answer)] = [(); 3].map(|()| asked());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let numbers = answer["outputs"][0]["data"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(server.interrupt(), Some(0));
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    (numbers, read(&log), read(&report))
}

fn near(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-5)
}

#[test]
fn a_model_that_no_plan_can_be_made_of_runs_on_our_stream_by_a_graph_for_each_batch_size() {
    let matrices =
        json!([{ "name": "x", "shape": [2, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4, 2, 1, 1, 3] }]);
    let (found, log, report) = by_the_provider(&determinants(), "", &matrices);
    assert!(near(&found, &[-2.0, 5.0]), "{found:?}");
    let runs =
        "runs on GPU 0 by ONNX Runtime's CUDA provider: it can't become a plan (plans lack the operators Det";
    assert!(log.contains(runs) && !log.contains("without CUDA graphs"), "{log}");
    let count =
        |what: &str| report.lines().find_map(|line| line.strip_prefix(what)?.trim().parse::<u32>().ok());
    // Batches of 1 to 4 rows; two of them were run once more before, and two rows thrice since.
    assert_eq!(count("graph captured"), Some(4), "{report}");
    assert!(count("graph launched") >= Some(5) && count("user_compute_stream") >= Some(1), "{report}");
    assert_eq!(count("left"), Some(0), "{report}");
}

#[test]
fn what_the_provider_does_not_take_of_ours_is_left_out_and_said() {
    let added = json!([
        { "name": "n", "shape": [2, 1], "datatype": "INT64", "data": [3, 1] },
        { "name": "x", "shape": [2, 1], "datatype": "FP32", "data": [0.5, 2] }
    ]);
    let (found, log, report) = by_the_provider(&onnx::loop_model(), "", &added);
    assert_eq!(found, [3.5, 5.0]);
    let why = "no graph can be captured: the model has the control flow node Loop";
    assert!(log.contains("without CUDA graphs (") && log.contains(why), "{log}");
    assert!(report.contains("RunWithBinding") && !report.contains("graph captured"), "{report}");
    let matrices = json!([{ "name": "x", "shape": [1, 2, 2], "datatype": "FP32", "data": [1, 2, 3, 4] }]);
    let (found, log, report) = by_the_provider(&determinants(), "user_compute_stream:0:1", &matrices);
    assert!(near(&found, &[-2.0]), "{found:?}");
    let why = "user_compute_stream fails with 1";
    assert!(log.contains("on the provider's own stream and memory (") && log.contains(why), "{log}");
    assert!(!report.contains("RunWithBinding"), "{report}");
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
