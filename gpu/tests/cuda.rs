//! The executor of a GPU on a fake driver: every kernel's launch and arguments, whole networks, the
//! order of copies and batches, and what becomes of batches when calls fail or hang.

#[path = "harness/jobs.rs"]
mod jobs;
#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "harness/operations.rs"]
mod operations;

use jobs::{NEGATED, ONE, Rows, job, negation};
use light::made_folder;
use model_rows::run_rows;
use operations::{of, operation_cases, plan_of, random_indices, random_row};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony_fake_driver::{FakeDriver, Fault, driver_error, ecc_error};
use symphony_gpu::cuda::{CudaDevice, CudaDevices, DeviceTimes};
use symphony_gpu::plan::{self, BinaryFunction, CompileOptions, Operation, PlanModel, PlanPrecision};
use symphony_gpu::{
    CudaExecutor, CudaModel, EnqueueError, Executor, FinishedJob, HostModel, Job, RowSlots, RunError,
};
use symphony_transport::Nanos;
use symphony_transport::slab::SlotClaim;

/// The time after which a test gives up what should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

const GIB: u64 = 1 << 30;

use symphony_gpu::plan::PlanElement::{F32, I64};

fn fake() -> (Arc<FakeDriver>, Arc<CudaDevice>) {
    let driver = FakeDriver::new(&[4 * GIB]);
    let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
    (driver, device)
}

#[test]
fn each_operation_gives_through_its_kernel_what_the_interpreter_gives() {
    let (driver, device) = fake();
    let mut names = std::collections::BTreeSet::new();
    for (at, case) in operation_cases().into_iter().enumerate() {
        names.insert(case.operation.name());
        let plan = plan_of(case.operation.clone(), case.activation, &case.inputs);
        let rows = [random_row(&plan, at as u64)];
        let mut ours = CudaModel::new(plan.clone(), &device).unwrap();
        let mut reference = PlanModel::new(plan).unwrap();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_rows(&mut ours, &rows)));
        let found = found.unwrap_or_else(|_| panic!("{case:?}"));
        assert_eq!(found, run_rows(&mut reference, &rows), "{case:?}");
    }
    assert_eq!(names.len(), 18, "operations without a case: there are {names:?}");
    drop(device);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

#[test]
fn a_tensor_of_too_many_dimensions_is_refused_with_its_node() {
    let (_driver, device) = fake();
    let shape = [1, 2, 1, 2, 1, 2, 1, 2, 1];
    let plan = plan_of(Operation::Binary(BinaryFunction::Add), None, &[of(F32, &shape), of(F32, &shape)]);
    let refused = CudaModel::new(plan, &device).err().unwrap();
    assert!(refused.contains("9 dimensions; kernels take at most 8, in node node"), "{refused}");
}

#[test]
fn networks_give_on_a_gpu_what_the_interpreter_gives() {
    let (light, exported) = (made_folder("light_models"), made_folder("exported_models"));
    let (driver, device) = fake();
    for path in [
        light.join("light_densenet121.onnx"),
        light.join("light_shufflenet.onnx"),
        exported.join("vision.onnx"),
        exported.join("detector.onnx"),
        exported.join("encoder.onnx"),
    ] {
        for precision in PlanPrecision::ALL {
            let compiled = plan::compile(&path, CompileOptions { max_batch: 2, precision }).unwrap();
            let mut ours = CudaModel::new(compiled.plan.clone(), &device).unwrap();
            let mut reference = PlanModel::new(compiled.plan).unwrap();
            let rows: Vec<Vec<u8>> =
                (0..ours.max_batch()).map(|row| random_indices(ours.plan(), row as u64)).collect();
            let what = format!("{} in {precision}", path.display());
            assert_eq!(run_rows(&mut ours, &rows), run_rows(&mut reference, &rows), "{what}");
        }
    }
    drop(device);
    assert!(driver.live(0).is_empty(), "{:?} are left", driver.live(0));
}

struct Rig {
    driver: Arc<FakeDriver>,
    executor: CudaExecutor,
}

const HUNG_AFTER: Nanos = Nanos::from_millis(500);

fn rig() -> Rig {
    let (driver, device) = fake();
    let model: Box<dyn HostModel> = Box::new(CudaModel::new(negation(), &device).unwrap());
    Rig { executor: CudaExecutor::new(device, vec![Some(model), None], HUNG_AFTER), driver }
}

/// Rows in slots that the device reads and writes itself.
fn shared_rig(rows: &[[f32; 4]]) -> (Rig, Rows) {
    let (mut rig, rows) = (rig(), Rows::of(rows));
    rig.executor.share(std::slice::from_ref(&rows.view)).unwrap();
    (rig, rows)
}

impl Rig {
    /// Polls at this time until a batch is over.
    fn finished(&mut self, now: Nanos) -> FinishedJob {
        let began = Instant::now();
        loop {
            if let Some(finished) = self.executor.poll(now) {
                return finished;
            }
            assert!(began.elapsed() < PATIENCE, "no batch is over");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Polls until the driver was asked for something this many times more.
    fn poll_until(&mut self, now: Nanos, call: &str, times: usize) {
        let began = Instant::now();
        let asked = |driver: &FakeDriver| driver.calls(0).get(call).copied().unwrap_or(0);
        let before = asked(&self.driver);
        while asked(&self.driver) < before + times {
            assert!(self.executor.poll(now).is_none(), "a batch is over");
            assert!(began.elapsed() < PATIENCE, "{call} was not called {times} times");
        }
    }

    fn reason(finished: FinishedJob) -> String {
        finished.result.unwrap_err().to_string()
    }
}

#[test]
fn a_batch_runs_from_its_exec_at_on_and_its_outputs_reach_its_slots() {
    let mut rig = rig();
    let rows = Rows::of(&[ONE, NEGATED]);
    rig.executor.enqueue(job(7, 2, Nanos(1_000)), &rows, Nanos(10)).unwrap();
    assert!(rig.executor.poll(Nanos(999)).is_none());
    assert_eq!(rig.driver.calls(0).get("launch_graph"), None, "exec_at is not reached");
    assert_eq!(rig.executor.next_end(), Some(Nanos(999) + Nanos::from_micros(20)));
    let finished = rig.finished(Nanos(2_000));
    assert_eq!((finished.batch, finished.started), (7, Nanos(2_000)));
    assert!(finished.result.is_ok());
    assert!(rig.executor.write_outputs(&finished, &rows));
    assert_eq!(rows.outputs(), [NEGATED, ONE]);
    assert_eq!(rig.executor.next_end(), None);
}

#[test]
fn a_device_reads_and_writes_registered_slots_itself_and_nothing_passes_through_the_host() {
    let (mut rig, rows) = shared_rig(&[ONE, NEGATED]);
    let before = rig.driver.calls(0);
    let calls = |rig: &Rig, name| {
        let after = rig.driver.calls(0).get(name).copied().unwrap_or(0);
        after - before.get(name).copied().unwrap_or(0)
    };
    rig.executor.enqueue(job(7, 2, Nanos(1_000)), &rows, Nanos(10)).unwrap();
    assert_eq!((calls(&rig, "copy_in"), calls(&rig, "write_pinned")), (2, 0), "one for each row");
    assert!(!rows.is_free(0) && !rows.is_free(1));
    let finished = rig.finished(Nanos(2_000));
    assert!(finished.result.is_ok());
    assert!(rows.is_free(0) && rows.is_free(1), "the answer's slots are free");
    assert!(rig.executor.write_outputs(&finished, &rows));
    assert_eq!(rows.outputs(), [NEGATED, ONE]);
    // The rows, and the kernels' word.
    assert_eq!((calls(&rig, "copy_out"), calls(&rig, "read_pinned")), (3, 1));
    // Rows of a slab that is not registered, and of both kinds in one batch.
    let others = Rows::of(&[NEGATED]);
    struct Both<'a>(&'a Rows, &'a Rows);
    impl RowSlots for Both<'_> {
        fn claim(&self, row: usize) -> Option<SlotClaim> {
            if row == 0 { self.0.claim(0) } else { self.1.claim(0) }
        }
    }
    rig.executor.enqueue(job(8, 2, Nanos(3_000)), &Both(&others, &rows), Nanos(2_000)).unwrap();
    assert!(others.is_free(0) && !rows.is_free(0));
    let finished = rig.finished(Nanos(3_000));
    assert!(rig.executor.write_outputs(&finished, &Both(&others, &rows)));
    assert_eq!((others.outputs()[0], rows.outputs()[0]), (ONE, NEGATED));
    let driver = Arc::clone(&rig.driver);
    drop(rig);
    assert!(driver.live(0).is_empty(), "{:?} are left: memory is registered", driver.live(0));
}

#[test]
fn rows_pass_through_the_host_where_the_driver_registers_no_memory() {
    let (mut rig, rows) = (rig(), Rows::of(&[ONE]));
    let error = driver_error("register", 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
    rig.driver.plan_fault(0, "register", 0, Fault::Refuse(error));
    let said = rig.executor.share(std::slice::from_ref(&rows.view)).unwrap_err();
    assert!(said.contains("CUDA_ERROR_INVALID_VALUE"), "{said}");
    rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
    assert!(rows.is_free(0));
    let finished = rig.finished(Nanos(1));
    assert!(rig.executor.write_outputs(&finished, &rows));
    assert_eq!(rows.outputs(), [NEGATED]);
}

#[test]
fn a_slot_stays_claimed_while_a_copy_hangs_and_a_late_batch_ends_once_it_is_over() {
    let (mut rig, rows) = shared_rig(&[ONE]);
    rig.driver.plan_fault(0, "copy_in", 0, Fault::Hang);
    rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
    // It is too late for it, and its slot is still being read.
    rig.poll_until(Nanos::from_millis(6), "is_over", 20);
    assert!(!rows.is_free(0));
    rig.driver.resume(0);
    let finished = rig.finished(Nanos::from_millis(7));
    assert!(matches!(finished.result, Err(RunError::Late)));
    assert!(rows.is_free(0));
    assert_eq!(rig.driver.calls(0).get("launch_graph"), None);
}

#[test]
fn a_copy_that_never_ends_or_loses_the_gpu_keeps_its_slot_for_ever_and_the_batch_fails() {
    for call in ["copy_in", "copy_out"] {
        for fault in [Fault::Hang, Fault::Break(ecc_error(call))] {
            let (mut rig, rows) = shared_rig(&[ONE, ONE]);
            rig.driver.plan_fault(0, call, 0, fault.clone());
            // Both of them have copies under way.
            rig.executor.enqueue(job(1, 2, Nanos(0)), &rows, Nanos(0)).unwrap();
            let at = if fault == Fault::Hang {
                let started = if call == "copy_in" { "is_over" } else { "launch_graph" };
                rig.poll_until(Nanos(1), started, 1);
                HUNG_AFTER + Nanos(2)
            } else {
                Nanos(1)
            };
            let finished = rig.finished(at);
            assert!(finished.result.is_err(), "{call}: {fault:?}");
            assert!(rig.executor.lost().is_some());
            assert!(!rows.is_free(0) && !rows.is_free(1), "{call}: {fault:?}");
            rig.executor.die();
            drop(rig.executor);
            assert!(!rows.is_free(0) && !rows.is_free(1), "{call}: {fault:?}");
        }
    }
}

#[test]
fn a_call_that_is_refused_between_two_copies_keeps_the_slots_until_both_are_over() {
    for (call, after) in
        [("copy_in", 1), ("record", 1), ("wait", 0), ("launch_graph", 0), ("copy_out", 1), ("record", 5)]
    {
        let (mut rig, rows) = shared_rig(&[ONE, ONE]);
        let error = driver_error(call, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
        rig.driver.plan_fault(0, call, after, Fault::Refuse(error));
        rig.executor.enqueue(job(1, 2, Nanos(0)), &rows, Nanos(0)).unwrap();
        let finished = rig.finished(Nanos(1));
        let reason = Rig::reason(finished);
        assert!(reason.contains("refuses a call"), "{call}: {reason}");
        assert!(rows.is_free(0) && rows.is_free(1), "{call}");
        assert_eq!(rig.executor.lost(), None, "{call}");
        rig.executor.enqueue(job(2, 2, Nanos(0)), &rows, Nanos(0)).unwrap();
        let second = rig.finished(Nanos(1));
        assert!(second.result.is_ok() && rig.executor.write_outputs(&second, &rows));
        assert_eq!(rows.outputs(), [NEGATED, NEGATED], "after {call}");
    }
}

#[test]
fn jobs_that_are_forgotten_keep_their_slots_until_the_device_has_ended() {
    let (mut rig, rows) = shared_rig(&[ONE]);
    rig.driver.plan_fault(0, "copy_out", 0, Fault::Hang);
    rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
    rig.poll_until(Nanos(1), "launch_graph", 1);
    rig.executor.die();
    assert!(!rows.is_free(0) && rig.executor.poll(Nanos(2)).is_none());
    let driver = Arc::clone(&rig.driver);
    let resumed = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2));
        driver.resume(0);
    });
    rig.executor.revive(&symphony_gpu::ComputeThread::new());
    resumed.join().unwrap();
    assert!(rows.is_free(0));
    assert_eq!(rig.executor.lost(), None);
    rig.executor.enqueue(job(2, 1, Nanos(3)), &rows, Nanos(3)).unwrap();
    assert!(rig.finished(Nanos(3)).result.is_ok());
}

#[test]
fn inputs_arrive_while_the_batch_before_runs_and_only_one_runs_at_a_time() {
    let mut rig = rig();
    rig.driver.plan_fault(0, "launch_graph", 0, Fault::Hang);
    let (first, second) = (Rows::of(&[ONE]), Rows::of(&[NEGATED]));
    rig.executor.enqueue(job(1, 1, Nanos(0)), &first, Nanos(0)).unwrap();
    rig.poll_until(Nanos(1), "launch_graph", 1);
    rig.executor.enqueue(job(2, 1, Nanos(5)), &second, Nanos(2)).unwrap();
    assert_eq!(rig.driver.calls(0)["copy_in"], 2, "the inputs of the second are under way");
    rig.poll_until(Nanos(6), "is_over", 50);
    assert_eq!(rig.driver.calls(0)["launch_graph"], 1, "the second waits on the host");
    rig.driver.resume(0);
    for (batch, rows, expected) in [(1, &first, NEGATED), (2, &second, ONE)] {
        let finished = rig.finished(Nanos(7));
        assert!(finished.result.is_ok());
        assert_eq!(finished.batch, batch);
        assert!(rig.executor.write_outputs(&finished, rows));
        assert_eq!(rows.outputs(), [expected]);
    }
}

#[test]
fn outputs_leave_while_the_batches_behind_them_run() {
    let mut rig = rig();
    rig.driver.plan_fault(0, "copy_out", 0, Fault::Hang);
    let rows = [Rows::of(&[ONE]), Rows::of(&[NEGATED]), Rows::of(&[ONE])];
    for (batch, rows) in (1..).zip(&rows) {
        rig.executor.enqueue(job(batch, 1, Nanos(batch)), rows, Nanos(0)).unwrap();
    }
    // The third is launched once the second has run; the outputs of the first still leave.
    rig.poll_until(Nanos(4), "launch_graph", 3);
    rig.driver.resume(0);
    for (batch, rows, expected) in [(1, &rows[0], NEGATED), (2, &rows[1], ONE), (3, &rows[2], NEGATED)] {
        let finished = rig.finished(Nanos(5));
        assert_eq!((finished.batch, finished.result.is_ok()), (batch, true));
        assert!(rig.executor.write_outputs(&finished, rows));
        assert_eq!(rows.outputs(), [expected]);
    }
}

#[test]
fn a_batch_behind_one_that_runs_too_long_is_cancelled_and_not_queued() {
    let mut rig = rig();
    rig.driver.plan_fault(0, "launch_graph", 0, Fault::Hang);
    let rows = Rows::of(&[ONE]);
    rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
    rig.poll_until(Nanos(1), "launch_graph", 1);
    rig.executor.enqueue(job(2, 1, Nanos(5)), &rows, Nanos(2)).unwrap();
    let late = rig.finished(Nanos::from_millis(6));
    assert_eq!(late.batch, 2);
    assert!(matches!(late.result, Err(RunError::Late)));
    rig.driver.resume(0);
    let first = rig.finished(Nanos::from_millis(6));
    assert!((first.batch, first.result.is_ok()) == (1, true));
    assert_eq!(rig.driver.calls(0)["launch_graph"], 1);
}

#[test]
fn a_gpu_takes_three_batches_and_refuses_what_it_can_not_run() {
    let mut rig = rig();
    let rows = Rows::of(&[ONE]);
    let far = Nanos::from_secs(1);
    let unknown = Job { model: 1, ..job(0, 1, far) };
    assert_eq!(rig.executor.enqueue(unknown, &rows, Nanos(0)), Err(EnqueueError::NoModel));
    assert_eq!(rig.executor.enqueue(job(0, 2, far), &rows, Nanos(0)), Err(EnqueueError::NoInputs));
    for batch in 1..=3 {
        rig.executor.enqueue(job(batch, 1, far), &rows, Nanos(0)).unwrap();
    }
    assert!(!rig.executor.has_room(0));
    assert_eq!(rig.executor.enqueue(job(4, 1, far), &rows, Nanos(0)), Err(EnqueueError::NoRoom));
}

#[test]
fn a_call_that_is_refused_fails_its_batch_and_the_gpu_goes_on() {
    for call in ["launch_graph", "copy_out", "wait", "record", "is_over", "read_pinned"] {
        let mut rig = rig();
        let rows = Rows::of(&[ONE]);
        rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
        let error = driver_error(call, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument");
        rig.driver.plan_fault(0, call, 0, Fault::Refuse(error));
        let finished = rig.finished(Nanos(1));
        let reason = Rig::reason(finished);
        assert!(reason.contains("refuses a call") && reason.contains("CUDA_ERROR_INVALID_VALUE"), "{reason}");
        assert_eq!(rig.executor.lost(), None);
        rig.executor.enqueue(job(2, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
        let second = rig.finished(Nanos(1));
        assert!(second.result.is_ok(), "after {call}");
        assert!(rig.executor.write_outputs(&second, &rows));
        assert_eq!(rows.outputs(), [NEGATED], "after {call}");
    }
}

#[test]
fn a_lost_device_ends_all_its_batches_with_the_reason() {
    for (call, fault) in [
        ("launch_graph", Fault::Break(ecc_error("launch a graph"))),
        ("copy_out", Fault::Break(ecc_error("copy from the GPU"))),
        ("launch_graph", Fault::Refuse(ecc_error("launch a graph"))),
        ("is_over", Fault::Refuse(ecc_error("ask for an event"))),
    ] {
        let mut rig = rig();
        let rows = Rows::of(&[ONE]);
        rig.driver.plan_fault(0, call, 0, fault);
        rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
        rig.executor.enqueue(job(2, 1, Nanos::from_secs(9)), &rows, Nanos(0)).unwrap();
        for batch in [1, 2] {
            let finished = rig.finished(Nanos(1));
            assert_eq!(finished.batch, batch);
            let reason = Rig::reason(finished);
            assert!(reason.contains("the GPU's memory is damaged"), "{call}: {reason}");
        }
        assert!(rig.executor.lost().is_some_and(|why| why.contains("CUDA_ERROR_ECC_UNCORRECTABLE")));
        assert!(!rig.executor.has_model(0));
        assert_eq!(rig.executor.enqueue(job(3, 1, Nanos(0)), &rows, Nanos(0)), Err(EnqueueError::NoModel));
    }
}

#[test]
fn a_batch_that_never_ends_makes_the_gpu_lost_and_nothing_waits_for_it() {
    let mut rig = rig();
    let rows = Rows::of(&[ONE]);
    rig.driver.plan_fault(0, "launch_graph", 0, Fault::Hang);
    rig.executor.enqueue(job(1, 1, Nanos(0)), &rows, Nanos(0)).unwrap();
    rig.poll_until(Nanos(1), "is_over", 20);
    assert!(rig.executor.poll(HUNG_AFTER).is_none());
    let finished = rig.finished(HUNG_AFTER + Nanos(2));
    assert!(Rig::reason(finished).contains("a batch of 1 rows has not ended after 0.5 s"));
    // A device that does not answer is asked for nothing: the drop would not return.
    let asked = rig.driver.calls(0).get("release").copied();
    drop(rig.executor);
    assert_eq!(rig.driver.calls(0).get("release").copied(), asked);
}

#[test]
fn a_fault_that_a_kernel_finds_is_the_batchs_alone() {
    let (_driver, device) = fake();
    let divide = Operation::Binary(BinaryFunction::Div);
    let plan = plan_of(divide, None, &[of(I64, &[1]), of(I64, &[1])]);
    let mut model = CudaModel::new(plan, &device).unwrap();
    let signature = model.signature().clone();
    let row = |by: i64| {
        let mut row = vec![0; signature.input_bytes()];
        for (at, number) in [12, by].into_iter().enumerate() {
            row[signature.input_range(at)].copy_from_slice(&number.to_le_bytes());
        }
        row
    };
    model.stage(0, &row(0));
    assert!(model.run(1).unwrap_err().to_string().contains("a whole number is divided by 0"));
    assert_eq!(run_rows(&mut model, &[row(4)])[0][..8], 3i64.to_le_bytes());
    assert_eq!(device.open.lost(), None);
}

#[test]
fn a_device_says_how_long_each_part_of_a_run_took_once_one_is_over() {
    let (_driver, device) = fake();
    let mut model = CudaModel::new(negation(), &device).unwrap();
    assert!(model.device_times().is_err(), "nothing was run");
    let began = Instant::now();
    run_rows(&mut model, &[vec![0; 16]]);
    let whole = Nanos::from(began.elapsed());
    let DeviceTimes { copy_in, execution, copy_out } = model.device_times().unwrap();
    assert!([copy_in, execution, copy_out].iter().all(|part| *part > Nanos::ZERO));
    assert!(copy_in + execution + copy_out <= whole);
    let events = [device.open.calls().create_event().unwrap(), device.open.calls().create_event().unwrap()];
    assert!(device.open.calls().elapsed(events[0], events[1]).is_err(), "they note no time");
}

#[test]
fn a_load_that_fails_leaves_nothing_on_the_device() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/linear.onnx");
    let (driver, device) = fake();
    // The kernels stay: the next model needs them.
    CudaModel::load(&fixture, 1, &device).unwrap();
    let before = driver.live(0);
    let calls = [
        "create_stream",
        "reserve",
        "map",
        "allow",
        "allocate_pinned",
        "write_pinned",
        "copy_in",
        "create_timed_event",
        "record",
        "is_over",
        "begin_capture",
        "zero",
        "launch",
        "end_capture",
    ];
    for call in calls {
        for after in 0..3 {
            let error = driver_error(call, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
            driver.plan_fault(0, call, after, Fault::Refuse(error));
            if let Err(error) = CudaModel::load(&fixture, 2, &device) {
                let said = error.to_string();
                assert!(said.contains("linear.onnx: can't be put on the GPU"), "{said}");
                assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{said}");
            } else {
                assert!(after > 0, "{call} is not called in a load");
                // What was planned and not reached.
                while CudaModel::load(&fixture, 2, &device).is_ok() {}
            }
            assert_eq!(driver.live(0), before, "after {call} has failed");
        }
    }
    let (small, device) = {
        let driver = FakeDriver::new(&[1_000]);
        let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
        (driver, device)
    };
    let light = made_folder("light_models").join("light_squeezenet.onnx");
    let said = CudaModel::load(&light, 1, &device).err().unwrap().to_string();
    assert!(said.contains("the GPU's memory does not suffice") && said.contains("0 of 0 are free"), "{said}");
    drop(device);
    assert!(small.live(0).is_empty());
}
