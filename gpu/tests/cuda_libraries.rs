//! Products of matrices and convolutions by libraries of kernels in place of ours, on a fake
//! driver: right answers, memory that is counted, and what becomes of a model when a library fails.

#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "harness/operations.rs"]
mod operations;

use light::made_folder;
use model_rows::run_rows;
use operations::{of, operation_cases, plan_of, random_indices, random_row};
use std::sync::Arc;
use symphony_fake_driver::{FakeDriver, Fault, driver_error, ecc_error};
use symphony_gpu::cuda::library_kernels::call::{CUBLASLT, CUDNN};
use symphony_gpu::cuda::library_kernels::part::library_part;
use symphony_gpu::cuda::{CudaDevice, CudaDevices, LibraryUse};
use symphony_gpu::plan::PlanElement::F32;
use symphony_gpu::plan::{self, CompileOptions, Operation, PlanModel, PlanPrecision, UnaryFunction};
use symphony_gpu::{CudaModel, HostModel};

const GIB: u64 = 1 << 30;

/// The part of the largest element by which halves may differ: an activation that a library lacks
/// follows a result that was rounded.
const HALVES: f32 = 0.02;

fn fake() -> (Arc<FakeDriver>, Arc<CudaDevice>) {
    let driver = FakeDriver::new(&[4 * GIB]);
    [CUBLASLT, CUDNN].into_iter().for_each(|name| driver.offer_library(0, name));
    let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
    (driver, device)
}

fn floats(row: &[u8]) -> Vec<f32> {
    row.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Compares rows of floats.
fn assert_close(found: &[Vec<u8>], expected: &[Vec<u8>], tolerance: f32, what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = (floats(found), floats(expected));
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        let worst = found.iter().zip(&expected).fold(0f32, |most, (x, y)| most.max((x - y).abs()));
        assert!(worst <= tolerance * largest, "{what}: {worst} of {largest}");
    }
}

#[test]
fn products_and_convolutions_give_by_a_library_what_the_interpreter_gives() {
    let (driver, device) = fake();
    let mut by_library = [0; 3];
    for (at, case) in operation_cases().into_iter().enumerate() {
        if !matches!(case.operation, Operation::MatrixProduct { .. } | Operation::Convolution { .. }) {
            continue;
        }
        let plan = plan_of(case.operation.clone(), case.activation, &case.inputs);
        let part = library_part(&plan.batches[0].launches[0]);
        let rows = [random_row(&plan, at as u64)];
        let mut ours = CudaModel::new(plan.clone(), &device).unwrap();
        let LibraryUse { cublaslt, cudnn, own } = ours.library_use();
        let expected = match part.as_ref().map(|part| part.call.library()) {
            Some(CUBLASLT) => [1, 0, 0],
            Some(_) => [0, 1, 0],
            None => [0, 0, 1],
        };
        assert_eq!([cublaslt, cudnn, own], expected, "{case:?}");
        by_library.iter_mut().zip(expected).for_each(|(total, one)| *total += one);
        let found = run_rows(&mut ours, &rows);
        let expected = run_rows(&mut PlanModel::new(plan.clone()).unwrap(), &rows);
        let is_rounded_twice =
            plan.precision != PlanPrecision::Fp32 && part.is_some_and(|part| part.after.is_some());
        if !is_rounded_twice {
            assert_eq!(found, expected, "{case:?}");
        }
    }
    // Matrices that are stretched along some dimensions alone, and images with other pads behind
    // than in front, are for kernels.
    assert!(by_library.iter().all(|&count| count > 0), "{by_library:?}");
    drop(device);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

#[test]
fn an_activation_that_the_library_lacks_follows_in_place() {
    let (_driver, device) = fake();
    let operation = Operation::MatrixProduct { transposed: [false, true], alpha: 0.5 };
    let inputs = [of(F32, &[6, 5]), of(F32, &[4, 5]), of(F32, &[4])];
    for (function, follows) in [
        (UnaryFunction::Relu, false),
        (UnaryFunction::GeluTanh, false),
        (UnaryFunction::Gelu, true),
        (UnaryFunction::Clip { least: -0.5, most: 0.5 }, true),
    ] {
        let plan = plan_of(operation.clone(), Some(function), &inputs);
        let part = library_part(&plan.batches[0].launches[0]).unwrap();
        assert_eq!(part.after, follows.then_some(function));
        let rows = [random_row(&plan, 3)];
        let found = run_rows(&mut CudaModel::new(plan.clone(), &device).unwrap(), &rows);
        assert_eq!(found, run_rows(&mut PlanModel::new(plan).unwrap(), &rows), "{function:?}");
    }
}

#[test]
fn networks_give_by_libraries_what_the_interpreter_gives() {
    let (light, exported) = (made_folder("light_models"), made_folder("exported_models"));
    let (driver, device) = fake();
    let mut total = LibraryUse::default();
    for path in [
        light.join("light_squeezenet.onnx"),
        light.join("light_shufflenet.onnx"),
        exported.join("vision.onnx"),
        exported.join("detector.onnx"),
        exported.join("encoder.onnx"),
    ] {
        for precision in [PlanPrecision::Fp32, PlanPrecision::Fp16] {
            let compiled = plan::compile(&path, CompileOptions { max_batch: 2, precision }).unwrap();
            let mut ours = CudaModel::new(compiled.plan.clone(), &device).unwrap();
            let mut reference = PlanModel::new(compiled.plan).unwrap();
            let rows: Vec<Vec<u8>> =
                (0..ours.max_batch()).map(|row| random_indices(ours.plan(), row as u64)).collect();
            let tolerance = if precision == PlanPrecision::Fp32 { 0.0 } else { HALVES };
            let what = format!("{} in {precision}", path.display());
            assert_close(&run_rows(&mut ours, &rows), &run_rows(&mut reference, &rows), tolerance, &what);
            let LibraryUse { cublaslt, cudnn, own } = ours.library_use();
            (total.cublaslt, total.cudnn, total.own) =
                (total.cublaslt + cublaslt, total.cudnn + cudnn, total.own + own);
        }
    }
    assert!(total.cublaslt > 20 && total.cudnn > 50, "{total}");
    assert!(driver.calls(0)["launch_prepared"] > 0);
    drop(device);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

/// A product whose call needs workspace.
fn product() -> plan::Plan {
    let operation = Operation::MatrixProduct { transposed: [false, false], alpha: 1.0 };
    plan_of(operation, None, &[of(F32, &[3, 8]), of(F32, &[8, 8])])
}

#[test]
fn the_librarys_workspace_is_counted() {
    let (driver, device) = fake();
    let with = CudaModel::new(product(), &device).unwrap();
    let plain = FakeDriver::new(&[4 * GIB]);
    let without = CudaDevices::new(Some(plain)).get(0).unwrap();
    let without = CudaModel::new(product(), &without).unwrap();
    assert_eq!(with.device_bytes() - without.device_bytes(), 3_000);
    assert_eq!(without.library_use(), LibraryUse { own: 1, ..LibraryUse::default() });
    assert_eq!(
        device.libraries.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["cuBLASLt 1.2.3", "cuDNN 1.2.3"]
    );
    assert_eq!(driver.live(0)["prepared call"], 1);
}

#[test]
fn a_model_whose_library_fails_is_computed_by_kernels_and_says_so() {
    let refusal =
        |call| Fault::Refuse(driver_error(call, 1, "CUBLAS_STATUS_INTERNAL_ERROR", "it has failed"));
    for (call, after) in [("prepare", 0), ("launch_prepared", 0), ("launch_prepared", 2)] {
        let (driver, device) = fake();
        driver.plan_fault(0, call, after, refusal(call));
        let mut model = CudaModel::new(product(), &device).unwrap();
        let note = model.import_note().unwrap();
        assert!(
            note.starts_with("no library is used, since one has failed (the CUDA driver refuses"),
            "{note}"
        );
        assert!(note.contains("CUBLAS_STATUS_INTERNAL_ERROR"), "{note}");
        assert_eq!(model.library_use(), LibraryUse { own: 1, ..LibraryUse::default() });
        let rows = [random_row(&product(), 1)];
        let expected = run_rows(&mut PlanModel::new(product()).unwrap(), &rows);
        assert_eq!(run_rows(&mut model, &rows), expected, "{call} {after}");
        drop((model, device));
        assert!(driver.live(0).is_empty(), "{call} {after}: {:?} are left", driver.live(0));
    }
}

#[test]
fn a_device_that_is_lost_in_a_librarys_call_takes_no_model() {
    for call in ["prepare", "launch_prepared"] {
        let (driver, device) = fake();
        driver.plan_fault(0, call, 0, Fault::Refuse(ecc_error(call)));
        let refused = CudaModel::new(product(), &device).err().unwrap();
        assert!(refused.contains("CUDA_ERROR_ECC_UNCORRECTABLE"), "{refused}");
        assert!(device.open.lost().is_some());
    }
    let driver = FakeDriver::new(&[4 * GIB]);
    driver.plan_fault(0, "open_libraries", 0, Fault::Refuse(ecc_error("open_libraries")));
    assert!(CudaDevices::new(Some(driver)).get(0).is_err());
}
