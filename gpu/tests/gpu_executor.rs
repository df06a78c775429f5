//! The executor of a GPU that runs plans, and by a library what plans can't be made of: the two
//! take turns. The driver is a fake one; the library's model computes on the calling thread here as
//! well.

#[path = "harness/operations.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod operations;

use operations::{of, plan_of};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony_fake_driver::{FakeDriver, Fault, ecc_error};
use symphony_gpu::cuda::CudaDevices;
use symphony_gpu::plan::{Operation, PlanElement, UnaryFunction};
use symphony_gpu::{
    CpuModel, CudaExecutor, CudaModel, EnqueueError, Executor, FinishedJob, GpuExecutor, HostModel, Job,
    RowSlots, RunError, Work,
};
use symphony_transport::Nanos;
use symphony_transport::slab::{Slab, SlabOwner, SlabView, SlotClaim, SlotClass, SlotId};

/// The time after which a test gives up what should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The slots of the models.
const PLAN: usize = 0;
const LIBRARY: usize = 1;

/// A row of zeros in a slot.
struct Row {
    view: SlabView,
    slot: SlotId,
    _owner: SlabOwner,
}

impl RowSlots for Row {
    fn claim(&self, row: usize) -> Option<SlotClaim> {
        (row == 0).then(|| self.view.claim_owned(self.slot))?
    }
}

fn row() -> Row {
    let (mut owner, view) = Slab::new(&[SlotClass { slot_bytes: 256, count: 1 }], 0).unwrap();
    let slot = owner.alloc(256).unwrap();
    Row { view, slot, _owner: owner }
}

/// An executor with a plan that negates a float, and `linear.onnx` as a model of the library.
fn rig() -> (Arc<FakeDriver>, GpuExecutor) {
    let driver = FakeDriver::new(&[1 << 30]);
    let device = CudaDevices::new(Some(driver.clone())).get(0).unwrap();
    let shape = of(PlanElement::F32, &[1, 4]);
    let plan = plan_of(Operation::Unary(UnaryFunction::Neg), None, &[shape]);
    let plans = CudaExecutor::new(device.clone(), vec![None, None], Nanos::from_millis(500));
    let mut executor = GpuExecutor::new(plans, 2);
    let linear = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/linear.onnx");
    let mut models: [Option<Box<dyn HostModel>>; 2] = [
        Some(Box::new(CudaModel::new(plan, &device).unwrap())),
        Some(Box::new(CpuModel::load(&linear, 1).unwrap())),
    ];
    for (slot, model) in models.iter_mut().enumerate() {
        executor.exchange(slot, model);
        assert!(model.is_none() && executor.has_model(slot) && executor.is_loaded(slot));
    }
    (driver, executor)
}

fn job(batch: u64, model: usize, exec_at: Nanos) -> Job {
    let latest = exec_at + Nanos::from_millis(5);
    Job { batch, gpu: 0, model, rows: 1, duration: Nanos::from_millis(1), exec_at, latest }
}

/// Runs what there is at this time until a batch is over.
fn finished(executor: &mut GpuExecutor, now: Nanos) -> FinishedJob {
    let began = Instant::now();
    loop {
        if let Some(finished) = executor.poll(now) {
            return finished;
        }
        if let Some((_, mut work)) = executor.take_work() {
            work.run();
            executor.end_work(work, now);
        }
        assert!(began.elapsed() < PATIENCE, "no batch is over");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_batch_of_the_library_starts_at_its_exec_at_and_gives_its_outputs() {
    let (_driver, mut executor) = rig();
    let row = row();
    let exec_at = Nanos::from_millis(2);
    executor.enqueue(job(1, LIBRARY, exec_at), &row, Nanos(0)).unwrap();
    assert!(!executor.has_room(0), "its turn is next");
    assert_eq!(executor.enqueue(job(2, PLAN, exec_at), &row, Nanos(0)), Err(EnqueueError::NoRoom));
    assert!(executor.poll(Nanos(1)).is_none() && executor.take_work().is_none());
    assert_eq!(executor.next_end(), Some(exec_at));
    let over = finished(&mut executor, exec_at + Nanos(7));
    assert_eq!((over.batch, over.started), (1, exec_at + Nanos(7)));
    assert!(over.result.is_ok() && executor.write_outputs(&over, &row));
    // The biases: what it gives for zeros.
    assert!(row.view.claim(row.slot).unwrap()[16..28].iter().any(|&byte| byte != 0));
    executor.enqueue(job(3, PLAN, exec_at), &row, exec_at).unwrap();
    let over = finished(&mut executor, exec_at);
    assert!(over.result.is_ok() && over.batch == 3 && executor.write_outputs(&over, &row));
}

#[test]
fn a_batch_of_the_library_waits_for_a_plans_and_is_cancelled_where_that_takes_too_long() {
    for resumes in [true, false] {
        let (driver, mut executor) = rig();
        let (first, second) = (row(), row());
        driver.plan_fault(0, "launch_graph", 0, Fault::Hang);
        executor.enqueue(job(1, PLAN, Nanos(0)), &first, Nanos(0)).unwrap();
        assert!(executor.poll(Nanos(1)).is_none());
        executor.enqueue(job(2, LIBRARY, Nanos(5)), &second, Nanos(2)).unwrap();
        for _ in 0..20 {
            assert!(executor.poll(Nanos(6)).is_none() && executor.take_work().is_none());
        }
        let late = Nanos::from_millis(6);
        if !resumes {
            let over = finished(&mut executor, late);
            assert!(over.batch == 2 && matches!(over.result, Err(RunError::Late)));
        }
        driver.resume(0);
        let expected = if resumes { vec![1, 2] } else { vec![1] };
        for batch in expected {
            let over = finished(&mut executor, Nanos(8));
            assert!(over.batch == batch && over.result.is_ok());
        }
        assert!(executor.has_room(0));
    }
}

#[test]
fn a_lost_gpu_runs_no_batch_of_the_library_either() {
    let (driver, mut executor) = rig();
    let (first, second) = (row(), row());
    driver.plan_fault(0, "launch_graph", 0, Fault::Break(ecc_error("launch a graph")));
    executor.enqueue(job(1, PLAN, Nanos(0)), &first, Nanos(0)).unwrap();
    executor.enqueue(job(2, LIBRARY, Nanos(5)), &second, Nanos(2)).unwrap();
    for batch in [1, 2] {
        let over = finished(&mut executor, Nanos(6));
        let reason = over.result.unwrap_err().to_string();
        assert!(over.batch == batch && reason.contains("damaged"), "{reason}");
    }
    assert!(!executor.has_model(PLAN) && !executor.has_model(LIBRARY));
}

#[test]
fn jobs_of_both_kinds_are_forgotten_and_models_come_and_go() {
    let (_driver, mut executor) = rig();
    let row = row();
    executor.enqueue(job(1, LIBRARY, Nanos(5)), &row, Nanos(2)).unwrap();
    executor.die();
    executor.revive(&symphony_gpu::ComputeThread::new());
    assert!(executor.has_room(0) && executor.poll(Nanos(9)).is_none() && executor.take_work().is_none());
    // The two kinds change places.
    let (mut plan, mut library) = (None, None);
    executor.exchange(PLAN, &mut plan);
    executor.exchange(LIBRARY, &mut library);
    assert!(plan.is_some() && library.is_some() && !executor.has_model(PLAN));
    executor.exchange(PLAN, &mut library);
    executor.exchange(LIBRARY, &mut plan);
    assert!(library.is_none() && plan.is_none() && executor.has_model(PLAN) && executor.has_model(LIBRARY));
}
