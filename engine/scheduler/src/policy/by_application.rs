//! Models whose requests have run times of their own, each [group](super::grouped) of applications
//! as a model by itself: short requests run with short ones where that is worth more than larger
//! batches, and each batch size has the time that few batches of that group exceed. So a scheduler
//! that knows one number for each batch size, and what a batch of one takes at best, serves them
//! well.

use super::grouped::{ApplicationGroup, groups_of};
use super::interface::{Decisions, Scheduler};
use crate::workload::{Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// A scheduler of groups of applications in place of models. See the module's description.
pub(super) struct ByApplication {
    scheduler: Box<dyn Scheduler>,
    applications: Applications,
}

/// The groups of models' applications, as models by themselves.
struct Applications {
    /// The model of each group.
    model_of: Vec<ModelId>,
    /// The group of each application of each model.
    group_of: Vec<Vec<ModelId>>,
}

impl Applications {
    /// Returns the model of a group.
    fn model(&self, group: ModelId) -> ModelId {
        self.model_of[group.0 as usize]
    }

    /// Returns a model's request as one of its application's group.
    fn request(&self, request: &Request) -> Request {
        let group = self.group_of[request.queue.0 as usize][usize::from(request.application)];
        Request { queue: group.only_queue(), ..*request }
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
        let (mut models, mut model_of, mut group_of) = (Vec::new(), Vec::new(), Vec::new());
        for (index, model) in workload.models.iter().enumerate() {
            let (groups, of_model) = as_models(model, workload.gpus, models.len());
            models.extend(groups);
            model_of.resize(models.len(), ModelId(index as u32));
            group_of.push(of_model);
        }
        let scheduler = make(&Workload { models, ..workload.clone() });
        Box::new(ByApplication { scheduler, applications: Applications { model_of, group_of } })
    }
}

/// Returns a model for each group of a model's applications, and the group of each application,
/// counted from `first` on.
fn as_models(model: &WorkloadModel, gpus: usize, first: usize) -> (Vec<WorkloadModel>, Vec<ModelId>) {
    let Some(varying) = &model.varying else { return (vec![model.clone()], vec![ModelId(first as u32)]) };
    let groups = groups_of(model, varying, gpus);
    let mut group_of = vec![ModelId(0); varying.applications.len()];
    for (at, group) in groups.iter().enumerate() {
        group.members.iter().for_each(|&member| group_of[member] = ModelId((first + at) as u32));
    }
    let of_group = |(at, group): (usize, ApplicationGroup)| WorkloadModel {
        name: format!("{}/{at}", model.name),
        profile: group.profile,
        share: model.share * group.part,
        varying: Some(group.varying),
        ..model.clone()
    };
    (groups.into_iter().enumerate().map(of_group).collect(), group_of)
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
