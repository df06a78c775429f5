//! The kernels for GPUs compile, for each generation of cards and to machine code, by NVIDIA's
//! compiler from PyPI; and a plan that carries such kernels is put on a GPU without a compiler.

#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;

use light::made_folder;
use model_rows::run_rows;
use std::path::Path;
use std::process::Command;
use symphony_fake_driver::FakeDriver;
use symphony_gpu::cuda::launch::kernels_of;
use symphony_gpu::cuda::{CudaDevices, KernelTarget, compile_kernels, kernel_source, prebuilt_kernels};
use symphony_gpu::import::{DimensionSizes, SizedFile};
use symphony_gpu::plan::{self, CompileOptions, Plan, PlanModel, PlanPrecision};
use symphony_gpu::{CudaModel, HostModel};

/// The environment variable that makes a test below compile, and not start itself.
const INSIDE: &str = "SYMPHONY_COMPILES_KERNELS";

/// The capabilities of A100, H100 and B200.
const CAPABILITIES: [[u32; 2]; 3] = [[8, 0], [9, 0], [10, 0]];

/// Runs `test`, which has this name, in a process that finds the compiler: the system's loader
/// reads the variable when a process starts.
fn with_compiler(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("LD_LIBRARY_PATH", made_folder("nvrtc"))
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_kernels_compile_with_the_arguments_that_the_host_lays_out() {
    with_compiler("the_kernels_compile_with_the_arguments_that_the_host_lays_out", || {
        let [oldest, ..] = CAPABILITIES;
        for (precision, capabilities) in [
            (PlanPrecision::Fp16, &CAPABILITIES[..]),
            // The other halves are other instructions of the same generations.
            (PlanPrecision::Bf16, &[oldest][..]),
        ] {
            for &capability in capabilities {
                // Instructions that a card lacks are found by what makes machine code.
                let code = compile_kernels(&kernel_source(precision), KernelTarget::Machine(capability));
                let code = code.unwrap_or_else(|error| panic!("{error}"));
                assert!(code.starts_with(b"\x7fELF"), "{capability:?}");
                let text = String::from_utf8_lossy(&code);
                for kernel in kernels_of(precision) {
                    assert!(text.contains(kernel), "{kernel} for {capability:?}");
                }
            }
        }
        let text = compile_kernels(&kernel_source(PlanPrecision::Fp32), KernelTarget::Ptx([8, 9])).unwrap();
        let text = String::from_utf8(text).unwrap();
        for kernel in kernels_of(PlanPrecision::Fp32) {
            assert!(text.contains(&format!(".entry {kernel}(")), "{kernel}");
        }
        let wrong = "static_assert(sizeof(int) == 8, \"wrong\");";
        let refused = compile_kernels(wrong, KernelTarget::Ptx([9, 0])).unwrap_err().to_string();
        assert!(refused.contains("wrong"), "{refused}");
        let refused = compile_kernels("", KernelTarget::Machine([2, 5])).unwrap_err().to_string();
        assert!(refused.contains("the kernels can't be compiled"), "{refused}");
    });
}

#[test]
fn a_plan_that_carries_its_kernels_is_served_without_a_compiler() {
    with_compiler("a_plan_that_carries_its_kernels_is_served_without_a_compiler", || {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/linear.onnx");
        let options = CompileOptions { max_batch: 3, precision: PlanPrecision::Fp16 };
        let mut plan = plan::compile(&fixture, options).unwrap().plan;
        // The fake device is of 9.0.
        for capability in [[8, 0], [9, 0]] {
            plan.kernels.push(prebuilt_kernels(&plan, capability).unwrap());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("linear.plan");
        plan.write(&path).unwrap();
        assert_eq!(Plan::read(&path).unwrap(), plan);
        let driver = FakeDriver::new(&[1 << 30]);
        let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
        let load = |precision| CudaModel::load_plan(SizedFile::from(&path), 2, precision, &device);
        let mut model = load(None).unwrap();
        assert_eq!(model.max_batch(), 2, "as it is configured, though the plan is for 3");
        let calls = driver.calls(0);
        assert_eq!((calls.get("load_image"), calls.get("load_kernels")), (Some(&1), None));
        let rows = [vec![0; model.signature().input_bytes()], vec![0; model.signature().input_bytes()]];
        assert_eq!(run_rows(&mut model, &rows), run_rows(&mut PlanModel::new(plan.clone()).unwrap(), &rows));
        let said = load(Some(PlanPrecision::Bf16)).err().unwrap().to_string();
        assert!(said.contains("linear.plan: the plan is in fp16, not in bf16"), "{said}");
        let sizes: DimensionSizes = [("width".to_owned(), 4.try_into().unwrap())].into();
        let sized = SizedFile { sizes: &sizes, ..SizedFile::from(&path) };
        let said = CudaModel::load_plan(sized, 2, None, &device).err().unwrap().to_string();
        assert!(said.contains("linear.plan: a plan has no dynamic dimension \"width\""), "{said}");
        plan.kernels[1].source ^= 1;
        let said = CudaModel::new(plan.clone(), &device).err().unwrap();
        assert!(said.contains("its kernels are another version's"), "{said}");
        // Without kernels for the card they are compiled there, as for an ONNX file.
        plan.kernels.truncate(1);
        plan.kernels[0].capability = [10, 0];
        CudaModel::new(plan, &device).unwrap();
        assert_eq!(driver.calls(0).get("load_kernels"), Some(&1));
        std::fs::write(&path, &std::fs::read(&path).unwrap()[..2_000]).unwrap();
        let said = load(None).err().unwrap().to_string();
        assert!(said.contains("linear.plan: is not a plan or is damaged"), "{said}");
        drop((model, device));
        assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
    });
}
