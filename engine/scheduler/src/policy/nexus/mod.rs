//! `nexus`: a static schedule for each epoch, as in Nexus (section 6) and as the Symphony paper
//! runs it as a baseline (sections 2.3, 3.3 and 5). Squishy bin packing assigns sessions to GPUs,
//! with a batch size each ([`packing`]); frontends that share no state send each request straight
//! to such a GPU ([`routing`]); a GPU runs its duty cycle without ever waiting for a batch to grow
//! ([`node`]). Only the simulator drives it.

mod node;
mod packing;
mod routing;

use super::epoch::{Epoch, expected_rates};
use super::interface::{Decisions, Policy, Scheduler};
use super::options::{NexusPacking, PolicyOptions};
use crate::drop_rule::DropRule;
use crate::profile::Profile;
use crate::workload::{Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use node::NexusNode;
use packing::Session;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use routing::RoutingTable;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// The policy.
#[derive(Debug)]
pub(super) struct Nexus;

impl Policy for Nexus {
    fn name(&self) -> &'static str {
        "nexus"
    }

    fn about(&self) -> &'static str {
        "a static schedule by squishy bin packing, frontends that route on their own (Nexus, section 6)"
    }

    fn options(&self) -> &'static [&'static str] {
        &["drop", "frontends", "nexus-packing"]
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        Box::new(Cluster::new(workload, options))
    }
}

/// The frontends, the GPUs and the requests on the way between them.
struct Cluster {
    models: Vec<NexusModel>,
    drop: DropRule,
    packing: NexusPacking,
    nodes: Vec<NexusNode>,
    /// The routing table of each frontend.
    frontends: Vec<RoutingTable>,
    /// Chooses each request's frontend, and where round-robins begin.
    random: Pcg64Mcg,
    /// d_ctrl + d_data: from a frontend to a GPU, the input included.
    transfer: Nanos,
    /// The requests on that way, with the time of arrival at the GPU.
    in_transfer: VecDeque<(Nanos, Request)>,
    epoch: Epoch,
    batches: u64,
}

/// A model of the cluster.
struct NexusModel {
    profile: Profile,
    /// The part of the SLO for waiting and execution together.
    budget: Nanos,
}

impl Cluster {
    fn new(workload: &Workload, options: &PolicyOptions) -> Cluster {
        let transfer = workload.network.delay(1);
        let model = |model: &WorkloadModel| NexusModel {
            profile: model.profile.clone(),
            budget: model.slo - workload.network.result - transfer,
        };
        let mut cluster = Cluster {
            models: workload.models.iter().map(model).collect(),
            drop: options.drop.unwrap_or(DropRule::Window),
            packing: options.nexus_packing,
            nodes: core::iter::repeat_with(NexusNode::default).take(workload.gpus).collect(),
            frontends: core::iter::repeat_with(RoutingTable::default)
                .take(options.frontends.max(1))
                .collect(),
            random: Pcg64Mcg::seed_from_u64(workload.seed),
            transfer,
            in_transfer: VecDeque::new(),
            epoch: Epoch::new(workload.models.len()),
            batches: 0,
        };
        cluster.plan(&expected_rates(workload));
        cluster
    }

    /// Makes a new schedule, for these rates. Returns the requests queued under the last one.
    fn plan(&mut self, rates: &[f64]) -> Vec<Request> {
        let both = self.models.iter().zip(rates);
        let sessions: Vec<_> = both
            .map(|(model, &rate)| Session { profile: &model.profile, budget: model.budget, rate })
            .collect();
        let schedule = match self.packing {
            NexusPacking::Squishy => packing::fit(&sessions, self.nodes.len()),
            NexusPacking::Oblivious => packing::oblivious(&sessions, self.nodes.len()),
        };
        let mut queued = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let shares = schedule.get(at).map_or(&[][..], |node| &node.shares);
            for mut session in node.reschedule(shares) {
                queued.extend(core::iter::from_fn(|| session.queue.pop()));
            }
        }
        queued.sort_unstable_by_key(|request| (request.arrival, request.id));
        for frontend in &mut self.frontends {
            *frontend = RoutingTable::new(self.models.len(), &schedule, &mut self.random);
        }
        queued
    }

    /// Queues a request at the GPU that a frontend chooses for it.
    fn deliver(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        let frontend = match self.frontends.len() {
            1 => 0,
            several => self.random.random_range(0..several),
        };
        let Some(route) = self.frontends[frontend].route(request.queue.0 as usize) else {
            return out.end(&request, Ending::DroppedInQueue, now);
        };
        let node = &mut self.nodes[route.node as usize];
        if let Err(refused) = node.sessions[route.session as usize].queue.push(request) {
            return out.end(&refused, Ending::Overloaded, now);
        }
        if !node.busy {
            self.serve(now, route.node, out);
        }
    }

    /// Gives an idle GPU its next batch.
    fn serve(&mut self, now: Nanos, gpu: u32, out: &mut dyn Decisions) {
        let models = &self.models;
        let node = &mut self.nodes[gpu as usize];
        let drop = |request: Request| out.end(&request, Ending::DroppedInQueue, now);
        let Some((at, size)) = node.next_batch(now, self.drop, |model| &models[model].profile, drop) else {
            return;
        };
        node.busy = true;
        let session = &mut node.sessions[at];
        let duration = models[session.model].profile.latency(size);
        let latest = match (self.drop, session.queue.deadline(0)) {
            (DropRule::Window | DropRule::Timeout, Some(deadline)) => deadline - duration,
            _ => Nanos::MAX,
        };
        let header = BatchHeader {
            batch: self.batches,
            exec_at: now,
            latest,
            duration,
            model: ModelId(session.model as u32),
            gpu: GpuId(gpu),
            size: size as u32,
            ..BatchHeader::default()
        };
        self.batches += 1;
        out.run(header, session.queue.front(size));
        session.queue.remove(size);
    }
}

impl Scheduler for Cluster {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        if let Some(rates) = self.epoch.count(now, request.queue.only_model()) {
            for request in self.plan(&rates) {
                self.deliver(now, request, out);
            }
        }
        match self.transfer {
            Nanos::ZERO => self.deliver(now, request, out),
            transfer => self.in_transfer.push_back((now + transfer, request)),
        }
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        self.nodes[completion.gpu.0 as usize].busy = false;
        self.serve(now, completion.gpu.0, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while let Some((_, request)) = self.in_transfer.pop_front_if(|&mut (at, _)| at <= now) {
            self.deliver(now, request, out);
        }
    }

    fn next_timer(&self) -> Nanos {
        self.in_transfer.front().map_or(Nanos::MAX, |&(at, _)| at)
    }
}

#[cfg(test)]
mod tests;
