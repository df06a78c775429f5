//! The interface of a policy. A [`Policy`] is what is chosen by name; it makes a [`Scheduler`],
//! which takes requests, completions and the time, and puts batches and drops into [`Decisions`].
//! Implemented by the files of this folder, or outside the crate; called by the simulator.

use super::options::PolicyOptions;
use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::run_time::RunTimeHistogram;
use crate::workload::Workload;
use alloc::boxed::Box;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// A scheduler of all models and GPUs of a workload, as the simulator drives it, and the engine's
/// thread of a policy. It reads no clock: each call carries the time.
pub trait Scheduler: Send {
    /// Takes a request that has arrived.
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions);
    /// Takes the completion of a batch, which has left its GPU.
    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions);
    /// Acts on the timer that [`Scheduler::next_timer`] returned.
    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions);
    /// Returns the time of the next call of [`Scheduler::on_timer`], at once if it has passed;
    /// [`Nanos::MAX`] for none.
    fn next_timer(&self) -> Nanos;
    /// Returns what was learnt of the run times of each application of a model; nothing where the
    /// policy learns none, or all requests of the model take the same time.
    fn learned_run_times(&self, _model: ModelId) -> Vec<RunTimeHistogram> {
        Vec::new()
    }
}

/// The sink for what a [`Scheduler`] decides.
pub trait Decisions {
    /// Runs `requests`, `batch.size` in all, as the header says. They are in two slices, as a ring
    /// buffer has them.
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request]));
    /// Runs a batch that [`Decisions::preempt`] may stop. Its GPU can be given the next one only
    /// when this one has completed or was stopped.
    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request]));
    /// Stops the preemptible batch of `gpu` and adds its requests to `back`: they are the
    /// scheduler's again. The message takes d_ctrl, the GPU's time until then is wasted, and no
    /// completion comes. Returns false, and changes nothing, where no such batch runs or it will
    /// have ended before the message arrives.
    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool;
    /// Ends a request that has not run.
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos);
}

/// A policy that can be chosen by name.
pub trait Policy: Sync + core::fmt::Debug {
    /// Returns the policy's name on the command line.
    fn name(&self) -> &'static str;
    /// Returns a line on what the policy does and where it is from.
    fn about(&self) -> &'static str;
    /// Returns the policy's own drop rule, where option `drop` applies and chooses no other.
    fn drop(&self) -> DropRule {
        DropRule::Window
    }
    /// Returns the flags of the [`PolicyOptions`] that apply to the policy.
    fn options(&self) -> &'static [&'static str];
    /// Returns true if the policy's rule has settings that are tuned while it runs, with this drop
    /// rule or its own. Whoever runs a policy as it is meant to be tunes such a one.
    fn is_tuned(&self, drop: Option<DropRule>) -> bool {
        self.options().contains(&"tuning") && drop != Some(DropRule::Fcfs)
    }
    /// Returns a scheduler of this policy for the models and GPUs of a workload.
    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler>;
    /// Returns true if the policy stops batches that run, which only the simulator does.
    fn preempts(&self) -> bool {
        false
    }
    /// Returns the policy's deferral, where that is all that sets it apart. Such a policy runs on
    /// ModelThreads and RankThreads; one without has a thread of its own.
    fn deferral(&self) -> Option<&'static dyn Deferral> {
        None
    }
}
