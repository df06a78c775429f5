//! The arithmetic of the kernels for GPUs, without one: their source is compiled as C++ for the
//! host, with fibers for threads and with the instructions of tensor cores written out, and each
//! operation is compared with the interpreter. Memory ends in front of pages that are not there, so
//! that a kernel that reads or writes beyond its tensors is found.

#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/nearness.rs"]
mod nearness;
#[path = "harness/operations.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod operations;

use light::made_folder;
use nearness::{difference, tolerance};
use operations::{OperationCase, operation_cases, plan_of, random_row};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use symphony_gpu::cuda::driver::DevicePointer;
use symphony_gpu::cuda::kernel_source;
use symphony_gpu::cuda::launch::{KERNELS, KernelLaunch, TensorPlaces, kernel_launches, kernels_of};
use symphony_gpu::plan::{
    self, CompileOptions, Operand, Operation, Plan, PlanMemory, PlanPrecision, PlanRegion,
};

/// The first address of the regions, and their distance.
const FIRST: u64 = 0x2000_0000_0000;
const APART: u64 = 1 << 32;

/// The regions of a plan, and the status word's.
const REGIONS: usize = 5;

/// What all tests run.
static HOST_KERNELS: LazyLock<HostKernels> = LazyLock::new(HostKernels::compile);

/// The kernels for plans of each precision, compiled for the host as they are for a card.
struct HostKernels {
    programs: [(PlanPrecision, PathBuf); 3],
}

impl HostKernels {
    fn compile() -> HostKernels {
        std::thread::scope(|scope| {
            let each =
                PlanPrecision::ALL.map(|precision| (precision, scope.spawn(move || compile(precision))));
            HostKernels { programs: each.map(|(precision, program)| (precision, program.join().unwrap())) }
        })
    }

    fn program(&self, precision: PlanPrecision) -> &Path {
        &self.programs.iter().find(|(of, _)| *of == precision).unwrap().1
    }
}

/// Compiles the kernels for plans of a precision for the host; returns the program.
fn compile(precision: PlanPrecision) -> PathBuf {
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness");
    let read = |name: &str| std::fs::read_to_string(harness.join(name)).unwrap();
    let mut source = read("cuda_on_host.h") + &kernel_source(precision);
    let names: Vec<String> = kernels_of(precision).map(|name| format!("KERNEL({name})")).collect();
    let _ = writeln!(source, "#define HOST_KERNEL_LIST {}", names.join(", "));
    source += &read("kernels_on_host.cpp");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
    let (from, to) = (folder.join("kernels.cpp"), folder.join("kernels"));
    std::fs::write(&from, source).unwrap();
    let output = Command::new("c++")
        .args(["-std=c++17", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-o"])
        .args([&to, &from])
        .output()
        .expect("c++, a compiler for C++, is needed (g++)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// The memory of a plan's batch in the program: each region ends where a page does.
struct Places {
    starts: [u64; REGIONS],
    sizes: [usize; REGIONS],
}

impl Places {
    fn of(plan: &Plan) -> Places {
        let (weights, workspace) = (plan.weights.as_bytes().len(), plan.workspace_bytes());
        let sizes = [weights, plan.input_bytes, plan.output_bytes, workspace, 4];
        let starts = std::array::from_fn(|at| {
            let end = FIRST + (at as u64 + 1) * APART;
            // As near to the end as the alignment allows that kernels rely on.
            (end - sizes[at] as u64) / 16 * 16
        });
        Places { starts, sizes }
    }
}

impl TensorPlaces for Places {
    fn address(&self, operand: &Operand) -> DevicePointer {
        let region = match operand.region {
            PlanRegion::Weights => 0,
            PlanRegion::Inputs => 1,
            PlanRegion::Outputs => 2,
            PlanRegion::Workspace => 3,
        };
        DevicePointer(self.starts[region] + operand.offset as u64)
    }

    fn status(&self) -> DevicePointer {
        DevicePointer(self.starts[4])
    }
}

/// Returns the launches of a plan's largest batch.
fn launches_of(plan: &Plan) -> Vec<KernelLaunch> {
    let (places, batch) = (Places::of(plan), plan.batches.last().unwrap());
    batch.launches.iter().flat_map(|launch| kernel_launches(launch, &places).unwrap()).collect()
}

/// Runs launches of a plan in the program; returns its outputs.
fn run_on_host(plan: &Plan, launches: &[KernelLaunch], inputs: &[u8]) -> Result<Vec<u8>, String> {
    let places = Places::of(plan);
    let mut job: Vec<u8> = Vec::new();
    let number = |job: &mut Vec<u8>, number: u64| job.extend(number.to_le_bytes());
    number(&mut job, REGIONS as u64);
    for (at, (&start, &size)) in places.starts.iter().zip(&places.sizes).enumerate() {
        number(&mut job, start);
        number(&mut job, size as u64);
        match at {
            0 => job.extend(plan.weights.as_bytes()),
            1 => job.extend(inputs),
            // What is not written stays NaN.
            _ => job.extend(std::iter::repeat_n(0xff, size)),
        }
    }
    number(&mut job, launches.len() as u64);
    for launch in launches {
        number(&mut job, kernels_of(plan.precision).position(|name| name == launch.kernel).unwrap() as u64);
        launch.shape.grid.iter().for_each(|&blocks| number(&mut job, blocks.into()));
        number(&mut job, launch.arguments.len() as u64);
        job.extend(&launch.arguments);
    }
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("job"), folder.path().join("result"));
    std::fs::write(&from, job).unwrap();
    let output = Command::new(HOST_KERNELS.program(plan.precision)).args([&from, &to]).output().unwrap();
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let result = std::fs::read(&to).unwrap();
    let before: usize = places.sizes[..2].iter().sum();
    Ok(result[before..before + plan.output_bytes].to_vec())
}

/// Returns what the interpreter computes of a plan's largest batch.
fn interpreted(plan: &Plan, inputs: &[u8]) -> Vec<u8> {
    let mut memory = PlanMemory::new(plan);
    memory.inputs_mut().copy_from_slice(inputs);
    memory.run(plan, plan.max_batch()).unwrap();
    memory.outputs().to_vec()
}

/// Lays a row out as the region of the inputs has it.
fn region_of_inputs(plan: &Plan, row: &[u8]) -> Vec<u8> {
    let (signature, mut region) = (plan.signature(), vec![0; plan.input_bytes]);
    for (at, port) in plan.inputs.iter().enumerate() {
        let bytes = &row[signature.input_range(at)];
        region[port.offset..][..bytes.len()].copy_from_slice(bytes);
    }
    region
}

/// Returns a launch with the kernel of the larger squares, which a plan has for more results than a
/// test computes on the host.
fn by_large_squares(launch: &KernelLaunch) -> Option<KernelLaunch> {
    let large = format!("{}_128", launch.kernel.strip_suffix("_64")?);
    let kernel = KERNELS.iter().find(|name| **name == large)?;
    Some(KernelLaunch { kernel, ..launch.clone() })
}

#[test]
fn each_kernel_computes_what_the_interpreter_computes() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (at, case) in operation_cases().into_iter().enumerate() {
        let OperationCase { operation, activation, inputs } = &case;
        let plan = plan_of(operation.clone(), *activation, inputs);
        let mut row = random_row(&plan, at as u64);
        if let Operation::Gather { .. } = operation {
            // Indices of any table.
            row[plan.signature().input_range(1)].fill(0);
        }
        let inputs = region_of_inputs(&plan, &row);
        let (element, expected) = (plan.outputs[0].row.element, interpreted(&plan, &inputs));
        let launches = launches_of(&plan);
        let large: Vec<KernelLaunch> = launches.iter().filter_map(by_large_squares).collect();
        // The weights of an attention are rounded before they mix rows.
        let times = if matches!(case.operation, Operation::Attention { .. }) { 4.0 } else { 1.0 };
        for launches in [launches, large].iter().filter(|launches| !launches.is_empty()) {
            used.extend(launches.iter().map(|launch| launch.kernel));
            let found = run_on_host(&plan, launches, &inputs).and_then(|found| {
                difference(element, &found, &expected, times * tolerance(element)).map_or(Ok(()), Err)
            });
            if let Err(why) = found {
                wrong.push(format!("{} of {case:?}: {why}", launches[0].kernel));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(used.len(), KERNELS.len(), "some have no case; there are {used:?}");
}

#[test]
fn networks_give_by_the_kernels_what_the_interpreter_gives() {
    // The weights of an attention are rounded before they mix rows, in BF16 to three digits.
    for (name, precision, times) in [
        ("vision", PlanPrecision::Fp16, 4.0),
        ("detector", PlanPrecision::Fp16, 4.0),
        ("encoder", PlanPrecision::Bf16, 16.0),
        ("speech", PlanPrecision::Fp16, 4.0),
        ("speech", PlanPrecision::Fp32, 4.0),
    ] {
        let path = made_folder("exported_models").join(name).with_extension("onnx");
        let plan = plan::compile(&path, CompileOptions { max_batch: 1, precision }).unwrap().plan;
        let mut row = random_row(&plan, 1);
        for (at, port) in plan.inputs.iter().enumerate().filter(|(_, port)| !port.row.element.is_float()) {
            // Indices of any table, and masks that leave nothing out.
            row[plan.signature().input_range(at)].chunks_exact_mut(port.row.element.bytes()).for_each(|to| {
                to.fill(0);
                to[0] = 1;
            });
        }
        let inputs = region_of_inputs(&plan, &row);
        let found = run_on_host(&plan, &launches_of(&plan), &inputs).unwrap();
        let expected = interpreted(&plan, &inputs);
        for port in &plan.outputs {
            let range = port.range(1).unwrap();
            let tolerance = times * tolerance(precision.element());
            let wrong = difference(port.row.element, &found[range.clone()], &expected[range], tolerance);
            assert_eq!(wrong, None, "{name} in {precision}, {}", port.name);
        }
    }
}
