//! Jobs of a small model for tests of an executor, with rows in slots of a slab.

use crate::operations::{of, plan_of};
use symphony_gpu::plan::PlanElement::F32;
use symphony_gpu::plan::{BatchPlan, Operation, Plan, UnaryFunction};
use symphony_gpu::{Job, RowSlots};
use symphony_transport::Nanos;
use symphony_transport::slab::{Slab, SlabOwner, SlabView, SlotClaim, SlotClass, SlotId};

/// The rows of jobs, in slots of a slab.
pub(crate) struct Rows {
    pub(crate) view: SlabView,
    pub(crate) slots: Vec<SlotId>,
    _owner: SlabOwner,
}

impl RowSlots for Rows {
    fn claim(&self, row: usize) -> Option<SlotClaim> {
        self.view.claim_owned(*self.slots.get(row)?)
    }
}

impl Rows {
    /// Makes slots with these floats in front.
    pub(crate) fn of(rows: &[[f32; 4]]) -> Rows {
        let class = SlotClass { slot_bytes: 256, count: rows.len() };
        let (mut owner, view) = Slab::new(&[class], 0).unwrap();
        let slots: Vec<SlotId> = rows.iter().map(|_| owner.alloc(64).unwrap()).collect();
        for (slot, row) in slots.iter().zip(rows) {
            view.claim(*slot).unwrap()[..16].copy_from_slice(&row.map(f32::to_le_bytes).concat());
        }
        Rows { view, slots, _owner: owner }
    }

    /// Returns true if a row's slot is free to be claimed.
    pub(crate) fn is_free(&self, row: usize) -> bool {
        self.view.claim(self.slots[row]).is_some()
    }

    pub(crate) fn outputs(&self) -> Vec<[f32; 4]> {
        let float = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap());
        let output = |slot: &SlotId| {
            let bytes = self.view.claim(*slot).unwrap();
            std::array::from_fn(|at| float(&bytes[16..32], at))
        };
        self.slots.iter().map(output).collect()
    }
}

/// A model that negates four floats, for batches of one and two rows.
pub(crate) fn negation() -> Plan {
    let mut plan = plan_of(Operation::Unary(UnaryFunction::Neg), None, &[of(F32, &[2, 4])]);
    plan.inputs[0].row = of(F32, &[4]);
    plan.outputs[0].row = of(F32, &[4]);
    let mut single = plan.batches[0].clone();
    single.launches[0].inputs[0].of = of(F32, &[1, 4]);
    single.launches[0].output.of = of(F32, &[1, 4]);
    let double = BatchPlan { rows: 2, ..plan.batches[0].clone() };
    plan.batches = vec![single, double];
    plan
}

pub(crate) fn job(batch: u64, rows: usize, exec_at: Nanos) -> Job {
    let (duration, latest) = (Nanos::from_millis(1), exec_at + Nanos::from_millis(5));
    Job { batch, gpu: 0, model: 0, rows, duration, exec_at, latest }
}

pub(crate) const ONE: [f32; 4] = [1.0, -2.0, 0.5, 8.0];
pub(crate) const NEGATED: [f32; 4] = [-1.0, 2.0, -0.5, -8.0];
