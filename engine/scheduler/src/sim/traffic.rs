//! The requests of a workload in the order of their arrival: the streams of [`super::arrivals`] of
//! all its models, merged.

use super::arrivals::{ArrivalError, Arrivals, stream_seed};
use crate::rank::min_tree::MinTree;
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, NO_DEADLINE, Request};

/// The requests of all models that have not arrived yet.
pub(super) struct Traffic {
    streams: Vec<Arrivals>,
    /// The next arrival of each model.
    next: MinTree,
    end: Nanos,
    next_id: u64,
}

impl Traffic {
    /// Starts the streams of a workload.
    ///
    /// Errors: those of [`Arrivals::new`].
    pub(super) fn new(workload: &Workload) -> Result<Traffic, ArrivalError> {
        let mut traffic = Traffic {
            streams: Vec::with_capacity(workload.models.len()),
            next: MinTree::new(workload.models.len()),
            end: workload.warmup + workload.duration,
            next_id: 0,
        };
        for (index, model) in workload.models.iter().enumerate() {
            let seed = stream_seed(workload.seed, index as u64);
            traffic.streams.push(Arrivals::new(&model.arrival, workload.rate_rps * model.share, seed)?);
            traffic.advance(index);
        }
        Ok(traffic)
    }

    /// Returns the time of the next arrival; [`Nanos::MAX`] if there is none.
    pub(super) fn next_at(&self) -> Nanos {
        self.next.min_key()
    }

    fn advance(&mut self, index: usize) {
        let at = self.streams[index].next().filter(|&at| at < self.end);
        self.next.set(index, at.unwrap_or(Nanos::MAX));
    }

    /// Takes the next request out. There must be one.
    pub(super) fn take(&mut self, workload: &Workload) -> Request {
        let (arrival, index) = self.next.min().expect("only called when there is one");
        self.advance(index);
        let id = self.next_id;
        self.next_id += 1;
        Request {
            id,
            arrival,
            deadline: match workload.models[index].slo {
                NO_DEADLINE => NO_DEADLINE,
                slo => arrival + slo - workload.network.result,
            },
            queue: ModelId(index as u32).only_queue(),
            class: workload.models[index].class,
            application: match &workload.models[index].varying {
                Some(varying) => varying.draw(workload.seed, id).application,
                None => 0,
            },
            ..Request::default()
        }
    }
}
