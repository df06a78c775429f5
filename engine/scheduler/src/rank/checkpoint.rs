//! A RankThread's state as plain data: what the flight recorder writes at the start of a stretch of
//! history, and what replay goes on from. Called by the flight recorder alone.

use super::gpu_shares::GpuShare;
use super::packing::Packing;
use super::{BatchBounds, GpuState, Offer, RankState, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{GpuId, QueueId};

/// What is known of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedGpu {
    /// The GPU.
    pub gpu: GpuId,
    /// When it finishes what it was given.
    pub free_at: Nanos,
    /// How long the batch that it was given last takes.
    pub last_duration: Nanos,
    /// When that batch starts.
    pub last_exec_at: Nanos,
    /// Batches reported and not completed; below zero where a completion has overtaken a report.
    pub outstanding: i32,
    /// Granted, and not reported yet.
    pub taken: bool,
    /// Matching does not see it: it is taken, has all it may have, is overdue or gone.
    pub hidden: bool,
    /// What it was given last is of a lower class.
    pub lower: bool,
    /// True while its host is gone.
    pub absent: bool,
}

/// What is known of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedModel {
    /// The queue.
    pub queue: QueueId,
    /// The candidate, its `latest` less its precedence; [`Nanos::MAX`] if none waits. Any
    /// precedence stands for the one that it had.
    pub offer: Offer,
    /// True while a grant is under way.
    pub granted: bool,
    /// True if the last batch was its own.
    pub last: bool,
}

/// What a model has had of the GPUs' time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedShare {
    /// The queue.
    pub queue: QueueId,
    /// The time.
    pub share: GpuShare,
    /// When it was last offered, if it is the overloaded model that has had the least:
    /// [`Nanos::MAX`] if since the last matching.
    pub neediest: Option<Nanos>,
}

impl RankState {
    /// The largest delay seen.
    pub fn horizon(&self) -> Nanos {
        self.horizon
    }

    /// The longest batch seen.
    pub fn longest(&self) -> Nanos {
        self.longest
    }

    /// What a completion takes from a backend to here.
    pub fn completion_delay(&self) -> Nanos {
        self.completion_delay
    }

    /// What was asked of its GPUs lately.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// GPUs that it matches, used or not.
    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Models that it ranks.
    pub fn models(&self) -> usize {
        self.granted.len()
    }

    /// Whether the GPU is granted and not reported yet.
    pub fn is_taken(&self, gpu: GpuId) -> bool {
        self.gpus.get(gpu.0 as usize).is_some_and(|gpu| gpu.taken)
    }

    /// Every GPU that is not as it was at the start.
    pub fn saved_gpus(&self) -> impl Iterator<Item = SavedGpu> {
        self.gpus.iter().enumerate().filter_map(|(at, gpu)| {
            let hidden = self.free.get(at) == Nanos::MAX;
            let unused = gpu.free_at == Nanos::ZERO && gpu.last_exec_at == Nanos::ZERO && !hidden;
            (!unused || gpu.outstanding != 0).then_some(SavedGpu {
                gpu: GpuId(at as u32),
                free_at: gpu.free_at,
                last_duration: gpu.last_duration,
                last_exec_at: gpu.last_exec_at,
                outstanding: gpu.outstanding,
                taken: gpu.taken,
                hidden,
                lower: gpu.lower,
                absent: gpu.absent,
            })
        })
    }

    /// True once lower classes can be served.
    pub fn are_all_reserved(&self) -> bool {
        self.all_reserved
    }

    /// Returns when the looks ahead of backfilling will be paid for; none where there is one class.
    pub fn looks_paid_by(&self) -> Option<Nanos> {
        self.backfill.as_ref().map(|backfill| backfill.budget.paid_by)
    }

    /// The bounds of each queue of a lower class that has sent them.
    pub fn saved_bounds(&self) -> impl Iterator<Item = (QueueId, BatchBounds)> {
        let backfill = self.backfill.iter();
        backfill.flat_map(|backfill| self.ids().filter_map(|id| Some((id, backfill.bounds(id.0 as usize)?))))
    }

    /// The reservation of each queue that has classes below its own.
    pub fn saved_reservations(&self) -> impl Iterator<Item = (QueueId, Reservation)> {
        let backfill = self.backfill.iter();
        backfill
            .flat_map(|backfill| self.ids().filter_map(|id| Some((id, backfill.reservation(id.0 as usize)?))))
    }

    /// Every model that has had GPU time lately, or needs some.
    pub fn saved_shares(&self) -> impl Iterator<Item = SavedShare> {
        self.ids().filter_map(|queue| {
            let share = self.shares.share(queue.0 as usize);
            let neediest = self.shares.neediest().filter(|neediest| neediest.model == queue.0 as usize);
            let neediest = neediest.map(|neediest| neediest.offered);
            let known = share != GpuShare::default() || neediest.is_some();
            known.then_some(SavedShare { queue, share, neediest })
        })
    }

    fn ids(&self) -> impl Iterator<Item = QueueId> {
        (0..self.granted.len() as u32).map(QueueId)
    }

    /// Every model that is not as it was at the start.
    pub fn saved_models(&self) -> impl Iterator<Item = SavedModel> {
        self.granted.iter().zip(&self.delay).enumerate().filter_map(|(at, (&granted, &delay))| {
            let lower = self.backfill.as_ref().filter(|backfill| backfill.is_lower(at));
            let (latest_long, early_long) = self.long.waiting(at);
            let early = lower.is_none() && (self.early.get(at) < Nanos::MAX || early_long);
            let latest = match lower {
                Some(backfill) => backfill.waiting(at),
                None if latest_long < Nanos::MAX => latest_long,
                None if early => self.early.get(at),
                None => self.due.get(at),
            };
            let last = self.last == Some(QueueId(at as u32));
            let known = granted || last || delay > Nanos::ZERO || latest < Nanos::MAX;
            let leaves = self.long.leaves(at).unwrap_or(Nanos::MAX);
            let precedence = u16::from(latest < Nanos::MAX && self.has_precedence[at]);
            let offer = Offer { latest, delay, early, leaves, shrinks: self.long.shrinks(at), precedence };
            known.then_some(SavedModel { queue: QueueId(at as u32), offer, granted, last })
        })
    }

    /// Puts a GPU into this state. False if there is no such GPU.
    pub fn restore_gpu(&mut self, saved: SavedGpu) -> bool {
        let at = saved.gpu.0 as usize;
        let Some(gpu) = self.gpus.get_mut(at) else { return false };
        self.busy -= usize::from(gpu.is_busy());
        let busy = saved.taken || saved.outstanding > 0;
        self.lower = self.lower + usize::from(saved.lower && busy) - usize::from(gpu.lower);
        self.absent = self.absent + usize::from(saved.absent) - usize::from(gpu.absent);
        *gpu = GpuState {
            free_at: saved.free_at,
            last_duration: saved.last_duration,
            last_exec_at: saved.last_exec_at,
            outstanding: saved.outstanding,
            taken: saved.taken,
            lower: saved.lower && busy,
            absent: saved.absent,
        };
        self.busy += usize::from(gpu.is_busy());
        self.free.set(at, if saved.hidden { Nanos::MAX } else { saved.free_at });
        true
    }

    /// Puts a model into this state. False if there is no such model.
    pub fn restore_model(&mut self, saved: SavedModel) -> bool {
        let at = saved.queue.0 as usize;
        if at >= self.granted.len() {
            return false;
        }
        self.granted[at] = saved.granted;
        if saved.last {
            self.last = Some(saved.queue);
        }
        self.delay[at] = saved.offer.delay;
        self.forget(at);
        if let Some(backfill) = self.backfill.as_mut().filter(|backfill| backfill.is_lower(at)) {
            backfill.set_waiting(at, saved.offer.latest);
        } else {
            self.set_waiting(at, saved.offer);
        }
        true
    }

    /// Sets the largest delay seen, what was asked of its GPUs lately, and whether lower classes
    /// can be served.
    pub fn restore_pool(&mut self, horizon: Nanos, packing: Packing, all_reserved: bool) {
        self.horizon = horizon;
        self.packing = packing;
        self.all_reserved = all_reserved;
    }

    /// Sets the longest batch seen.
    pub fn restore_longest(&mut self, longest: Nanos) {
        self.longest = longest;
    }

    /// Sets what a model has had of the GPUs' time. False if there is no such model.
    pub fn restore_share(&mut self, saved: SavedShare) -> bool {
        let SavedShare { queue, share, neediest } = saved;
        let there = (queue.0 as usize) < self.granted.len();
        if there {
            self.shares.restore(queue.0 as usize, share, neediest);
        }
        there
    }

    /// Sets when the looks ahead of backfilling will be paid for. False if there is one class.
    pub fn restore_looks_paid_by(&mut self, paid_by: Nanos) -> bool {
        self.backfill.iter_mut().for_each(|backfill| backfill.budget.paid_by = paid_by);
        self.backfill.is_some()
    }
}
