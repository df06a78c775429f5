//! The requests and queries of a workload in the order of their arrival: the streams of
//! [`super::arrivals`] of all its models and queries, merged.

use super::arrivals::{ArrivalError, Arrivals};
use crate::rank::min_tree::MinTree;
use crate::workload::{Workload, WorkloadModel};
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, NO_DEADLINE, Request};

/// What arrives next from outside.
pub(super) enum Arriving {
    /// A request of a model.
    Request(Request),
    /// A query: its index in the workload, and the time.
    Query(usize, Nanos),
}

/// The requests of all models, and the queries, that have not arrived yet.
pub(super) struct Traffic {
    streams: Vec<Arrivals>,
    /// The next arrival of each model, then of each query.
    next: MinTree,
    end: Nanos,
    next_id: u64,
}

impl Traffic {
    /// Starts the streams of a workload.
    ///
    /// Errors: those of [`Arrivals::new`].
    pub(super) fn new(workload: &Workload) -> Result<Traffic, ArrivalError> {
        let streams = workload.models.len() + workload.queries.len();
        let mut traffic = Traffic {
            streams: Vec::with_capacity(streams),
            next: MinTree::new(streams),
            end: workload.warmup + workload.duration,
            next_id: 0,
        };
        for index in 0..streams {
            traffic.streams.push(Arrivals::of(workload, index)?);
            traffic.advance(index);
        }
        Ok(traffic)
    }

    /// Returns the time of the next arrival; [`Nanos::MAX`] if there is none.
    pub(super) fn next_at(&self) -> Nanos {
        self.next.min_key()
    }

    /// Returns the number of requests of a model that have not arrived yet.
    pub(super) fn left(&self, model: usize) -> usize {
        let first = usize::from(self.next.get(model) < Nanos::MAX);
        first + self.streams[model].clone().take_while(|&at| at < self.end).count()
    }

    fn advance(&mut self, index: usize) {
        let at = self.streams[index].next().filter(|&at| at < self.end);
        self.next.set(index, at.unwrap_or(Nanos::MAX));
    }

    /// Takes the next arrival out. There must be one. Always inlined: a request that is returned
    /// through memory by parts, and read whole at once, waits for it.
    #[inline(always)]
    pub(super) fn take(&mut self, workload: &Workload) -> Arriving {
        let (arrival, index) = self.next.min().expect("only called when there is one");
        self.advance(index);
        let Some(model) = workload.models.get(index) else {
            return Arriving::Query(index - workload.models.len(), arrival);
        };
        let deadline = match model.slo {
            NO_DEADLINE => NO_DEADLINE,
            slo => arrival + slo - workload.network.result,
        };
        Arriving::Request(self.request(workload, ModelId(index as u32), arrival, deadline))
    }

    /// Makes a request, of an id of its own. Always inlined, as [`Traffic::take`].
    #[inline(always)]
    pub(super) fn request(
        &mut self,
        workload: &Workload,
        model: ModelId,
        arrival: Nanos,
        deadline: Nanos,
    ) -> Request {
        let id = self.next_id;
        self.next_id += 1;
        let WorkloadModel { class, varying, .. } = &workload.models[model.0 as usize];
        Request {
            id,
            arrival,
            deadline,
            queue: model.only_queue(),
            class: *class,
            application: varying.as_ref().map_or(0, |one| one.draw(workload.seed, id).application),
            ..Request::default()
        }
    }
}
