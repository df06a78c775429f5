//! The audit of a simulation: what must hold for any policy, whatever it decides. Every request
//! with a deadline ends exactly once, batches are well formed, and no GPU runs two at a time.

use super::observer::Observer;
use crate::profile::Profile;
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, GpuId, NO_DEADLINE, Request};

/// An [`Observer`] that checks each event. Pass one to
/// [`simulate_observed`](super::simulate_observed) and call [`Audit::check`] afterwards.
#[derive(Clone, Debug)]
pub struct Audit {
    profiles: Vec<Profile>,
    /// The state of each request. Its index is the request's id, which the simulator counts from 0.
    requests: Vec<RequestState>,
    gpu_free_at: Vec<Nanos>,
    gpu_busy: Vec<Nanos>,
    decisions: Vec<Decision>,
    preemptions: usize,
    /// The first one.
    violation: Option<Violation>,
}

/// A batch that a policy sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The time of the decision.
    pub now: Nanos,
    /// The batch's number.
    pub batch: u64,
    /// The GPU that it was sent to.
    pub gpu: GpuId,
    /// The earliest start, as the header says.
    pub exec_at: Nanos,
    /// The number of requests.
    pub size: usize,
}

/// A mistake of a policy that an [`Audit`] finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A request is in a batch, or ends, before its arrival.
    #[error("request {0} is in a batch or ends before it has arrived")]
    NotArrived(u64),
    /// A request is in a batch, or ends, after it was in a batch or has ended.
    #[error("request {0} ends more than once")]
    EndedTwice(u64),
    /// A request with a deadline has not ended by the simulation's end.
    #[error("request {0} never ends")]
    NeverEnded(u64),
    /// A batch has no requests, or not as many as its header says.
    #[error("batch {batch} has {requests} requests; its header says {size}")]
    Size {
        /// The batch's number.
        batch: u64,
        /// The number of its requests.
        requests: usize,
        /// The number in its header.
        size: u32,
    },
    /// A batch holds requests of another model.
    #[error("batch {0} has requests of more than one model")]
    MixedModels(u64),
    /// A batch's duration is not l(b).
    #[error("the duration of batch {0} is not what its model's profile says")]
    Duration(u64),
    /// A batch starts while another one runs on its GPU.
    #[error("batch {batch} starts on GPU {gpu} while another one runs there", gpu = .gpu.0)]
    BusyGpu {
        /// The batch's number.
        batch: u64,
        /// The batch's GPU.
        gpu: GpuId,
    },
}

/// The state of a request in an audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    NotArrived,
    Waiting { has_deadline: bool },
    Ended { has_deadline: bool },
}

impl Audit {
    /// Begins the audit of a simulation of this workload.
    pub fn new(workload: &Workload) -> Audit {
        Audit {
            profiles: workload.models.iter().map(|model| model.profile.clone()).collect(),
            requests: Vec::new(),
            gpu_free_at: vec![Nanos::ZERO; workload.gpus],
            gpu_busy: vec![Nanos::ZERO; workload.gpus],
            decisions: Vec::new(),
            preemptions: 0,
            violation: None,
        }
    }

    /// Returns the first violation, if there was one. To be called after the simulation's end.
    pub fn check(&self) -> Result<(), Violation> {
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        let waiting = RequestState::Waiting { has_deadline: true };
        match self.requests.iter().position(|&state| state == waiting) {
            Some(id) => Err(Violation::NeverEnded(id as u64)),
            None => Ok(()),
        }
    }

    /// Returns all batches that were sent, in order: equal for two runs that decided the same.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Returns the number of batches that were preempted.
    pub fn preemptions(&self) -> usize {
        self.preemptions
    }

    /// Returns the time for which each GPU ran batches in the whole simulation.
    pub fn gpu_busy(&self) -> &[Nanos] {
        &self.gpu_busy
    }

    /// Returns the time at which the last batch of each GPU ended.
    pub fn gpu_free_at(&self) -> &[Nanos] {
        &self.gpu_free_at
    }

    fn require(&mut self, holds: bool, violation: Violation) {
        if !holds {
            self.violation.get_or_insert(violation);
        }
    }

    fn state(&mut self, request: &Request) -> &mut RequestState {
        let at = request.id as usize;
        if at >= self.requests.len() {
            self.requests.resize(at + 1, RequestState::NotArrived);
        }
        &mut self.requests[at]
    }

    fn end(&mut self, request: &Request) {
        let state = self.state(request);
        match *state {
            RequestState::Waiting { has_deadline } => *state = RequestState::Ended { has_deadline },
            RequestState::Ended { .. } => self.require(false, Violation::EndedTwice(request.id)),
            RequestState::NotArrived => self.require(false, Violation::NotArrived(request.id)),
        }
    }

    fn check_batch(&mut self, batch: &BatchHeader, requests: (&[Request], &[Request])) {
        let BatchHeader { batch: number, size, .. } = *batch;
        let all = || requests.0.iter().chain(requests.1);
        let count = all().count();
        self.require(
            count > 0 && count == size as usize,
            Violation::Size { batch: number, requests: count, size },
        );
        self.require(
            all().all(|request| request.queue == batch.model.only_queue()),
            Violation::MixedModels(number),
        );
        let latency = self.profiles[batch.model.0 as usize].latency(count);
        self.require(batch.duration == latency, Violation::Duration(number));
        all().for_each(|request| self.end(request));
    }
}

impl Observer for Audit {
    fn arrived(&mut self, request: &Request) {
        *self.state(request) = RequestState::Waiting { has_deadline: request.deadline != NO_DEADLINE };
    }

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        self.check_batch(batch, requests);
        let BatchHeader { batch: number, gpu, exec_at, size, .. } = *batch;
        self.decisions.push(Decision { now, batch: number, gpu, exec_at, size: size as usize });
        if let Some(started) = started {
            let at = gpu.0 as usize;
            self.require(started >= self.gpu_free_at[at], Violation::BusyGpu { batch: number, gpu });
            self.gpu_free_at[at] = finished;
            self.gpu_busy[at] += finished - started;
        }
    }

    fn preempted(&mut self, batch: &BatchHeader, requests: &[Request], stopped: Nanos) {
        self.preemptions += 1;
        // The preempted batch is the last one that its GPU was given.
        let at = batch.gpu.0 as usize;
        self.gpu_busy[at] = self.gpu_busy[at] - (self.gpu_free_at[at] - stopped);
        self.gpu_free_at[at] = stopped;
        for request in requests {
            let state = self.state(request);
            if let RequestState::Ended { has_deadline } = *state {
                *state = RequestState::Waiting { has_deadline };
            }
        }
    }

    fn ended(&mut self, request: &Request, _ending: Ending, _now: Nanos) {
        self.end(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WorkloadModel;

    const DONE: Nanos = Nanos(10);

    fn audit(requests: usize) -> (Audit, Vec<Request>) {
        let profile = Profile::linear(Nanos(1), Nanos(9), 4).unwrap();
        let workload = Workload::of_models(1, 1.0, vec![WorkloadModel::new("model", profile, Nanos(100))]);
        let mut audit = Audit::new(&workload);
        let requests: Vec<_> = (0..requests as u64)
            .map(|id| Request { id, deadline: Nanos(100), ..Request::default() })
            .collect();
        requests.iter().for_each(|request| audit.arrived(request));
        (audit, requests)
    }

    fn send(audit: &mut Audit, batch: u64, requests: &[Request], started: Nanos) {
        let header =
            BatchHeader { batch, duration: DONE, size: requests.len() as u32, ..BatchHeader::default() };
        audit.ran(started, &header, (requests, &[]), Some(started), started + DONE);
    }

    #[test]
    fn requests_that_end_once_on_one_gpu_pass() {
        let (mut audit, requests) = audit(3);
        send(&mut audit, 0, &requests[..1], Nanos::ZERO);
        send(&mut audit, 1, &requests[1..2], DONE);
        audit.ended(&requests[2], Ending::DroppedInQueue, DONE);
        assert_eq!(audit.check(), Ok(()));
        assert_eq!(audit.gpu_busy(), [DONE + DONE]);
    }

    #[test]
    fn a_request_that_ends_twice_never_or_too_early_is_found() {
        let (mut twice, requests) = audit(1);
        send(&mut twice, 0, &requests, Nanos::ZERO);
        twice.ended(&requests[0], Ending::DroppedInQueue, DONE);
        assert_eq!(twice.check(), Err(Violation::EndedTwice(0)));
        assert_eq!(audit(1).0.check(), Err(Violation::NeverEnded(0)));
        let (mut early, _) = audit(0);
        early.ended(&requests[0], Ending::DroppedInQueue, DONE);
        assert_eq!(early.check(), Err(Violation::NotArrived(0)));
    }

    #[test]
    fn two_batches_at_a_time_are_found_unless_the_first_is_preempted() {
        let (mut both, requests) = audit(2);
        send(&mut both, 0, &requests[..1], Nanos::ZERO);
        let mut preempted = both.clone();
        send(&mut both, 1, &requests[1..], Nanos(5));
        assert_eq!(both.check(), Err(Violation::BusyGpu { batch: 1, gpu: GpuId(0) }));
        preempted.preempted(&BatchHeader::default(), &requests[..1], Nanos(5));
        send(&mut preempted, 1, &requests[..1], Nanos(5));
        send(&mut preempted, 2, &requests[1..], Nanos(15));
        assert_eq!((preempted.check(), preempted.preemptions()), (Ok(()), 1));
        assert_eq!(preempted.gpu_busy(), [Nanos(25)]);
    }

    #[test]
    fn a_batch_whose_header_is_wrong_is_found() {
        let (mut audit, requests) = audit(2);
        let header = BatchHeader { size: 1, duration: DONE, ..BatchHeader::default() };
        audit.ran(Nanos::ZERO, &header, (&requests, &[]), None, Nanos::ZERO);
        assert_eq!(audit.check(), Err(Violation::Size { batch: 0, requests: 2, size: 1 }));
    }
}
