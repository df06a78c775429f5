//! The executor of a GPU on a card: what the other tests of it have from a fake driver. They are
//! ignored unless they are asked for, since few machines have a card, and run on GPU 0:
//! `cargo test --release -p symphony-gpu --test card -- --ignored`.

#[path = "harness/adding.rs"]
mod adding;
#[path = "harness/jobs.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod jobs;
#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "harness/nearness.rs"]
mod nearness;
#[path = "harness/operations.rs"]
mod operations;

use adding::{adding, gives};
use jobs::{NEGATED, ONE, Rows, job, negation};
use light::{light_models, made_folder};
use model_rows::run_rows;
use nearness::{difference, tolerance};
use operations::{OperationCase, of, operation_cases, plan_of, random_indices, random_row};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};
use symphony_gpu::cuda::{CudaDevice, CudaDevices, PageOptions};
use symphony_gpu::plan::{
    self, CompileOptions, ImageLayout, Operation, Plan, PlanModel, PlanPrecision, UnaryFunction, WindowSpec,
};
use symphony_gpu::{CudaExecutor, CudaModel, Executor, HostModel, Job};
use symphony_transport::Nanos;

/// The memory that is taken of the card.
const TAKEN_BYTES: u64 = 2 << 30;

/// The card, which all tests share: its memory is taken once.
static CARD: LazyLock<Arc<CudaDevice>> = LazyLock::new(|| {
    let pages = PageOptions { memory: Some(TAKEN_BYTES), ..PageOptions::default() };
    let device = CudaDevices::new(None).with_pages(vec![pages]).get(0);
    let device = device.unwrap_or_else(|error| panic!("{error}"));
    println!("{:?}, {:?}", device.open.calls().facts(), device.pages());
    device.libraries.iter().for_each(|library| println!("{library}"));
    device
});

/// Does this with each, on all cores, and fails with all that is wrong.
fn all_are_right<T: Sync>(of: &[T], check: impl Fn(&T) -> Result<(), String> + Sync) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(one) = of.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = check(one) {
                        wrong.lock().unwrap().push(why);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), of.len(), wrong.join("\n"));
}

/// Runs rows on the card and by the interpreter, and compares each output. Libraries round halves
/// twice and sum in other orders: outputs differ by this times what one rounding makes.
fn agrees(plan: &Plan, rows: &[Vec<u8>], times: f32) -> Result<(), String> {
    let mut ours = CudaModel::new(plan.clone(), &CARD)?;
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_rows(&mut ours, rows)));
    let found = found.map_err(|_| "it does not run".to_owned())?;
    let expected = run_rows(&mut PlanModel::new(plan.clone())?, rows);
    let signature = plan.signature();
    for (found, expected) in found.iter().zip(&expected) {
        for (at, port) in plan.outputs.iter().enumerate() {
            let (element, range) = (port.row.element, signature.output_range(at));
            let most = times * tolerance(element).max(tolerance(plan.precision.element()));
            if let Some(why) = difference(element, &found[range.clone()], &expected[range], most) {
                return Err(format!("{}: {why} ({})", port.name, ours.library_use()));
            }
        }
    }
    Ok(())
}

fn case_agrees(case: &OperationCase, seed: u64) -> Result<(), String> {
    let plan = plan_of(case.operation.clone(), case.activation, &case.inputs);
    let row = random_row(&plan, seed);
    agrees(&plan, &[row], 8.0).map_err(|why| format!("{case:?}: {why}"))
}

#[test]
#[ignore = "needs a card"]
fn each_operation_gives_on_a_card_what_the_interpreter_gives() {
    let cases: Vec<(u64, OperationCase)> = (0..).zip(operation_cases()).collect();
    all_are_right(&cases, |(seed, case)| case_agrees(case, *seed));
}

/// Returns products and convolutions of random sizes, which fill many blocks and leave parts of
/// them over.
fn large_cases() -> Vec<OperationCase> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut cases = Vec::new();
    let activations =
        [None, Some(UnaryFunction::Relu), Some(UnaryFunction::Gelu), Some(UnaryFunction::GeluTanh)];
    for at in 0..120 {
        let element = PlanPrecision::ALL[at % 3].element();
        let mut size = |most: f32| (most.ln() * rng.f32()).exp().round() as usize;
        let (rows, columns, depth, batches) = (size(300.0), size(300.0), size(500.0), size(4.0));
        let flip = [rng.bool(), rng.bool()];
        let matrix =
            |transposed, [a, b]: [usize; 2]| if transposed { [batches, b, a] } else { [batches, a, b] };
        let mut inputs = vec![
            of(element, &matrix(flip[0], [rows, depth])),
            of(element, &matrix(flip[1], [depth, columns])),
        ];
        if rng.bool() {
            inputs.push(of(element, &[columns]));
        }
        let operation = Operation::MatrixProduct { transposed: flip, alpha: 0.125 };
        cases.push(OperationCase { operation, activation: activations[rng.usize(..4)], inputs });
    }
    for at in 0..120 {
        let element = PlanPrecision::ALL[at % 3].element();
        let layout = [ImageLayout::ChannelsFirst, ImageLayout::ChannelsLast][rng.usize(..2)];
        let depthwise = rng.u32(..4) == 0;
        let (channels, kernels) = ([3, 8, 24, 40, 64][rng.usize(..5)], [8, 20, 64, 136][rng.usize(..4)]);
        let (groups, kernels) = if depthwise { (channels, channels) } else { (1, kernels) };
        let size = [1, 3, 5, 7][rng.usize(..4)];
        let pads = [rng.usize(..=size / 2), rng.usize(..=size / 2)];
        let even = rng.u32(..3) > 0;
        let behind = |pad: usize| if even { pad } else { (pad + 1).min(size / 2) };
        let stride = rng.usize(1..3);
        let window = WindowSpec {
            strides: [stride, stride],
            dilations: [1, 1],
            pads: [pads[0], pads[1], behind(pads[0]), behind(pads[1])],
            round_up: false,
        };
        let image = layout.shape([rng.usize(1..3), channels, rng.usize(7..33), rng.usize(7..33)]);
        let weights = layout.shape([kernels, channels / groups, size, size]);
        let mut inputs = vec![of(element, &image), of(element, &weights)];
        if rng.u32(..4) > 0 {
            inputs.push(of(element, &[kernels]));
        }
        let operation = Operation::Convolution { layout, window, groups };
        cases.push(OperationCase { operation, activation: activations[rng.usize(..4)], inputs });
    }
    cases
}

#[test]
#[ignore = "needs a card"]
fn large_products_and_convolutions_give_on_a_card_what_the_interpreter_gives() {
    let cases: Vec<(u64, OperationCase)> = (0..).zip(large_cases()).collect();
    all_are_right(&cases, |(seed, case)| case_agrees(case, *seed));
}

#[test]
#[ignore = "needs a card"]
fn networks_give_on_a_card_what_the_interpreter_gives() {
    let exported = made_folder("exported_models");
    let named = ["vision", "detector", "encoder", "speech", "rare"];
    let mut files = light_models();
    files.extend(named.map(|name| exported.join(name).with_extension("onnx")));
    let cases: Vec<(PathBuf, PlanPrecision)> = files
        .into_iter()
        .flat_map(|file| PlanPrecision::ALL.map(|precision| (file.clone(), precision)))
        .collect();
    all_are_right(&cases, |(file, precision)| {
        network_agrees(file, *precision).map_err(|why| format!("{} in {precision}: {why}", file.display()))
    });
}

fn network_agrees(file: &Path, precision: PlanPrecision) -> Result<(), String> {
    let options = CompileOptions { max_batch: 2, precision };
    let compiled = plan::compile(file, options).map_err(|error| error.to_string())?;
    let rows: Vec<Vec<u8>> =
        (0..compiled.plan.max_batch()).map(|row| random_indices(&compiled.plan, row as u64)).collect();
    agrees(&compiled.plan, &rows, 48.0)
}

#[test]
#[ignore = "needs a card"]
fn weights_come_and_go_on_a_card_and_answers_stay_right() {
    let mut models: Vec<CudaModel> =
        (0..4u8).map(|number| CudaModel::new(adding(number.into()), &CARD).unwrap()).collect();
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let at = rng.usize(..models.len());
        if rng.bool() {
            models[at].weights().unload().unwrap();
            continue;
        }
        models[at].weights().load().unwrap();
        assert!(gives(&mut models[at], 1.0 + at as f32), "model {at}");
    }
}

#[test]
#[ignore = "needs a card"]
fn batches_of_an_executor_reach_their_slots_on_a_card() {
    let model: Box<dyn HostModel> = Box::new(CudaModel::new(negation(), &CARD).unwrap());
    let mut executor = CudaExecutor::new(Arc::clone(&CARD), vec![Some(model)], Nanos::from_millis(500));
    let rows = Rows::of(&[ONE, NEGATED]);
    executor.share(std::slice::from_ref(&rows.view)).unwrap();
    let began = Instant::now();
    let now = || Nanos(began.elapsed().as_nanos() as u64);
    for batch in 0..2_000 {
        // Other tests keep the card and the host busy meanwhile.
        let patient = Job { latest: now() + Nanos::from_millis(10_000), ..job(batch, 2, now()) };
        executor.enqueue(patient, &rows, now()).unwrap();
        let finished = loop {
            if let Some(finished) = executor.poll(now()) {
                break finished;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "batch {batch} is not over");
        };
        assert!(finished.result.is_ok(), "batch {batch}: {:?}", finished.result);
        assert!(executor.write_outputs(&finished, &rows));
        assert_eq!(rows.outputs(), [NEGATED, ONE], "batch {batch}");
    }
}
