//! Models whose requests have run times of their own, each application as a model by itself: short
//! requests run with short ones, and each batch size has the time that few batches of that
//! application exceed. So a scheduler that knows one number for each batch size, and what a batch
//! of one takes at best, serves them well.

use super::interface::{Decisions, Scheduler};
use crate::run_time::{AT_BEST_PERCENT, Application, RunTimeEstimate, VaryingModel, WITHIN_PERCENT};
use crate::workload::{Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// A scheduler of applications in place of models. See the module's description.
pub(super) struct ByApplication {
    scheduler: Box<dyn Scheduler>,
    applications: Applications,
}

/// The applications of models, as models by themselves.
struct Applications {
    /// The model of each application.
    model_of: Vec<ModelId>,
    /// The first application of each model.
    first: Vec<usize>,
}

impl Applications {
    /// Returns the model of an application.
    fn model(&self, application: ModelId) -> ModelId {
        self.model_of[application.0 as usize]
    }

    /// Returns a model's request as one of its application.
    fn request(&self, request: &Request) -> Request {
        let first = self.first[request.queue.0 as usize];
        let application = ModelId((first + usize::from(request.application)) as u32);
        Request { queue: application.only_queue(), ..*request }
    }
}

impl ByApplication {
    /// Returns the scheduler that `make` makes for the applications of `workload`, in place of its
    /// models; `make`'s own where no model has requests of different run times.
    pub(super) fn around(
        workload: &Workload,
        make: impl Fn(&Workload) -> Box<dyn Scheduler>,
    ) -> Box<dyn Scheduler> {
        if workload.models.iter().all(|model| model.varying.is_none()) {
            return make(workload);
        }
        let (mut models, mut model_of, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for (index, model) in workload.models.iter().enumerate() {
            first.push(models.len());
            models.extend(applications(model));
            model_of.resize(models.len(), ModelId(index as u32));
        }
        let scheduler = make(&Workload { models, ..workload.clone() });
        Box::new(ByApplication { scheduler, applications: Applications { model_of, first } })
    }
}

/// Returns a model for each application of a model.
fn applications(model: &WorkloadModel) -> Vec<WorkloadModel> {
    let Some(varying) = &model.varying else { return vec![model.clone()] };
    let shares = varying.shares();
    let of_one = |(at, one): (usize, &Application)| {
        let alone = VaryingModel { applications: [one.clone()].into(), ..varying.clone() };
        let within = RunTimeEstimate::Quantile(WITHIN_PERCENT as f64 / 100.0);
        let profile = alone.profile(within, model.profile.max_batch());
        let at_best = alone.batch_ms(1, one.run_times.quantile(AT_BEST_PERCENT as f64 / 100.0));
        WorkloadModel {
            name: format!("{}/{at}", model.name),
            // Run times that have no profile are served as the model is.
            profile: profile
                .map(|profile| profile.with_best(Nanos::from_millis_f64(at_best)))
                .unwrap_or_else(|_| model.profile.clone()),
            share: model.share * one.share / shares,
            varying: Some(alone),
            ..model.clone()
        }
    };
    varying.applications.iter().enumerate().map(of_one).collect()
}

impl Scheduler for ByApplication {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        let applications = &self.applications;
        self.scheduler.on_request(now, applications.request(&request), &mut OfModels { applications, out });
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        self.scheduler.on_completion(
            now,
            completion,
            &mut OfModels { applications: &self.applications, out },
        );
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        self.scheduler.on_timer(now, &mut OfModels { applications: &self.applications, out });
    }

    fn next_timer(&self) -> Nanos {
        self.scheduler.next_timer()
    }
}

/// The sink of decisions about applications, which passes them on as decisions about models.
struct OfModels<'a> {
    applications: &'a Applications,
    out: &'a mut dyn Decisions,
}

impl OfModels<'_> {
    fn request(&self, request: &Request) -> Request {
        Request { queue: self.applications.model(request.queue.only_model()).only_queue(), ..*request }
    }

    fn batch(&self, batch: BatchHeader, requests: (&[Request], &[Request])) -> (BatchHeader, Vec<Request>) {
        let model = self.applications.model(batch.model);
        let requests = requests.0.iter().chain(requests.1).map(|request| self.request(request));
        (BatchHeader { model, ..batch }, requests.collect())
    }
}

impl Decisions for OfModels<'_> {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let (batch, requests) = self.batch(batch, requests);
        self.out.run(batch, (&requests, &[]));
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let (batch, requests) = self.batch(batch, requests);
        self.out.run_preemptible(batch, (&requests, &[]));
    }

    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool {
        let before = back.len();
        let stopped = self.out.preempt(gpu, back);
        back[before..].iter_mut().for_each(|request| *request = self.applications.request(request));
        stopped
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        let request = self.request(request);
        self.out.end(&request, ending, now);
    }
}
