//! `symphony compile` as a user runs it: what it prints of a file that becomes a plan, the file
//! that it writes, and what it says of one that can't.

#[path = "harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use light::made_folder;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use symphony_gpu::plan::Plan;

fn compile(arguments: &[&str], model: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.arg("compile").args(arguments).arg(model).output().unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data").join(name)
}

#[test]
fn a_file_becomes_a_plan_that_is_described_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fixed.plan");
    let written = path.to_str().unwrap();
    let output =
        compile(&["--max-batch", "3", "--launches", "--output", written], &fixture("fixed_batch.onnx"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    for part in [
        "fixed_batch.onnx: ",
        " nodes become ",
        "\nbatch: the first dimension is 1 in the file and was made the batch's",
        "\ninputs\n  x: f32[4] a row, at 0\n",
        "\noutputs\n  y: f32[3] a row, at 0\n",
        "\nbatches\n  1: ",
        "\n  3: ",
        "\nlaunches of the largest batch\n",
        " of f32[3, 4] at inputs 0, ",
    ] {
        assert!(said.contains(part), "{said}\nshould contain\n{part}");
    }
    assert_eq!(Plan::read(&path).unwrap().max_batch(), 3);
}

#[test]
fn a_plan_in_half_precision_has_half_the_weights_and_the_models_types() {
    let folder = tempfile::tempdir().unwrap();
    let written = |precision: &str| {
        let path = folder.path().join(precision);
        let output =
            compile(&["--precision", precision, "--output", path.to_str().unwrap()], &fixture("linear.onnx"));
        (String::from_utf8_lossy(&output.stdout).into_owned(), Plan::read(&path).unwrap())
    };
    let (_, single) = written("fp32");
    for precision in ["fp16", "bf16"] {
        let (said, plan) = written(precision);
        assert!(said.contains(&format!(" of {}\n", precision.to_uppercase())), "{said}");
        assert_eq!(plan.precision.name(), precision);
        assert_eq!((&plan.inputs, &plan.outputs), (&single.inputs, &single.outputs));
        assert!(plan.weights.as_bytes().len() < single.weights.as_bytes().len());
    }
    let refused = compile(&["--precision", "fp8"], &fixture("linear.onnx"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("it must be fp32, fp16 or bf16"), "{said}");
}

#[test]
fn an_architecture_that_plans_are_not_for_ends_with_code_2() {
    for arch in ["sm_70", "sm_90x", "compute_90"] {
        let refused = compile(&["--arch", arch], &fixture("linear.onnx"));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("it must be an architecture from sm_80 on"), "{said}");
    }
}

#[test]
fn a_plan_carries_the_kernels_of_the_architectures_that_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linear.plan");
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.arg("compile").arg(fixture("linear.onnx")).arg("--output").arg(&path);
    let command = command.args(["--max-batch", "1", "--arch", "sm_90"]);
    let output = command.env("LD_LIBRARY_PATH", made_folder("nvrtc")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\nkernels: ") && said.contains(" for sm_90\n"), "{said}");
    assert_eq!(Plan::read(&path).unwrap().kernels[0].capability, [9, 0]);
}

#[test]
fn a_file_that_can_not_become_a_plan_ends_with_code_2_and_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loop.onnx");
    std::fs::write(&path, onnx::loop_model()).unwrap();
    let output = compile(&[], &path);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let lacking = "loop.onnx: can't become a plan (plans lack the operators Loop (node `added`))";
    assert!(said.contains(lacking), "{said}");
}
