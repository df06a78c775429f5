//! `perf/gpu.sh`, whole, on a driver without a GPU: every step runs, and the summary has every
//! part.

#[path = "../../engine/tests/harness/binaries.rs"]
mod binaries;
#[path = "../../engine/tests/harness/fake_gpus.rs"]
mod fake_gpus;
#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light_models;
#[path = "../../engine/tests/harness/onnx_library.rs"]
mod onnx_library;

use binaries::build_beside;
use fake_gpus::FakeGpus;
use onnx_library::onnx_library;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// The programs that the script needs.
const BINARIES: [&str; 7] = ["symphony", "loadgen", "simulate", "profile", "predictability", "gpu", "scale"];

fn run(folder: &Path, out: &Path, gpus: Option<&FakeGpus>) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu.sh");
    let mut command = Command::new(script);
    command.arg("quick").arg(folder).arg(out);
    gpus.into_iter().for_each(|gpus| {
        gpus.show_provider_to(gpus.show_to(&mut command), &onnx_library());
    });
    command.output().unwrap()
}

#[test]
fn the_measurement_of_a_card_runs_whole_on_a_fake_one() {
    let folder = build_beside(env!("CARGO_BIN_EXE_gpu"), &["serve", "simulate"]);
    let out = tempfile::tempdir().unwrap();
    let output = run(&folder, out.path(), Some(&FakeGpus::with_libraries()));
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let summary = std::fs::read(out.path().join("summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["device"], "fake GPU 0");
    assert_eq!(summary["mode"]["mode"], "quick");
    assert_eq!(summary["agreement"].as_array().unwrap().len(), 5);
    for one in summary["agreement"].as_array().unwrap() {
        let by = |library: &str| one["launches"][library].as_u64().unwrap();
        assert!(by("cublaslt") > 0 && by("own") < by("cublaslt") + by("cudnn"), "{one}");
        assert_eq!(one["libraries"][0], "cuBLASLt 13.0.2");
    }
    for model in ["resnet50", "densenet121", "mobilenet_v2", "vgg16", "bert_base"] {
        let profile = &summary["profiles"][model];
        assert_eq!(profile["table"].as_array().unwrap().len(), 4, "{model}: {profile}");
        assert!(profile["gpu"]["launches"]["cublaslt"].as_u64() > Some(0), "{profile}");
        assert!(profile["alpha_ms"].is_number() && profile["fit_worst_error"].is_number(), "{profile}");
    }
    assert_eq!(summary["isolation"]["execution"]["count"], 100);
    assert!(summary["load_bandwidth"]["load_over_plain"].as_f64().unwrap() > 0.0);
    let pytorch = &summary["pytorch"];
    assert!(pytorch["models"].is_object() || pytorch["skipped"].as_str().is_some_and(|why| !why.is_empty()));
    for model in ["resnet50", "bert_base"] {
        let by_batch = &summary["provider_over_ours"][model];
        assert!(by_batch["2"].as_f64() > Some(0.0), "{}", summary["nothing"]);
    }
    let config = std::fs::read_to_string(out.path().join("symphony.toml")).unwrap();
    assert_eq!(config.matches("precision = \"fp16\"").count(), 3, "{config}");
    assert!(summary["served"]["batches"].as_u64().unwrap() > 0, "{}", summary["served"]);
    assert!(summary["capacity"]["goodput_rps"].as_f64().unwrap() > 0.0, "{}", summary["capacity"]);
    assert!(out.path().join("served.svg").is_file() && out.path().join("isolation.svg").is_file());
}

#[test]
fn the_binaries_are_packed_with_the_script_and_nothing_is_left_beside() {
    let folder = tempfile::tempdir().unwrap();
    let (release, aside) = (folder.path().join("release"), folder.path().join("aside"));
    for of in [&release, &aside] {
        std::fs::create_dir(of).unwrap();
    }
    for name in BINARIES {
        std::fs::copy("/bin/true", release.join(name)).unwrap();
    }
    let (script, packed) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu.sh"), folder.path().join("a.tar.xz"));
    let mut command = Command::new(script);
    command.arg("pack").arg(&packed).env("CARGO_TARGET_DIR", folder.path()).env("TMPDIR", &aside);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with(&format!("{}: ", packed.display())) && said.ends_with(" bytes\n"), "{said}");
    assert_eq!(std::fs::read_dir(&aside).unwrap().count(), 0, "its own folder is removed");
    let listed = Command::new("tar").arg("-tJf").arg(&packed).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    for name in BINARIES.iter().chain(&["gpu.sh", "gpu_summary.py", "gpu_pytorch.py"]) {
        assert!(listed.lines().any(|line| line == format!("./{name}")), "{name} is not in {listed}");
    }
}

#[test]
fn a_step_that_does_not_end_is_killed_and_those_without_time_are_noted_and_not_run() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A call to a driver that hangs hears no signal either.
    let hangs = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n";
    for name in BINARIES {
        let path = folder.path().join(name);
        std::fs::write(&path, hangs).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu.sh");
    let mut command = Command::new(script);
    command.arg("run").arg(folder.path()).arg(out.path()).env("SYMPHONY_GPU_TIME_LIMIT", "3");
    assert_eq!(command.output().unwrap().status.code(), Some(1), "steps have failed");
    let steps = std::fs::read_to_string(out.path().join("steps.tsv")).unwrap();
    let of = |name: &str| -> Vec<&str> {
        let line = steps.lines().find(|line| line.split('\t').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is not in {steps}")).split('\t').skip(1).collect()
    };
    assert_eq!(of("networks")[0], "137", "{steps}");
    for name in
        ["agreement-vgg16", "profile-bert_base", "isolation", "pytorch", "capacity", "served", "scale"]
    {
        assert_eq!(of(name)[0], "124", "{steps}");
    }
    let summary = std::fs::read(out.path().join("summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!(summary["nothing"]["isolation"], "no time was left for it");
    assert_eq!(summary["criteria"]["no step failed"], false);
}

#[test]
fn a_machine_without_a_driver_ends_the_measurement_with_3() {
    if symphony_gpu::cuda::Libcuda::open().is_ok() {
        return; // A machine with one.
    }
    let folder = build_beside(env!("CARGO_BIN_EXE_gpu"), &["serve", "simulate"]);
    let out = tempfile::tempdir().unwrap();
    let output = run(&folder, out.path(), None);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("there is no CUDA driver on this machine"), "{said}");
}
