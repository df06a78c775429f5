//! The RankThread: pumps a [`RankState`] per sub-cluster, the matching of its GPUs to its models' candidates
//! (Symphony, section 4.5). Candidates and reports come from ModelThreads, completions from backends; grants go out.

use super::agent::Agent;
use super::wire::{GrantMessage, RankMessage, RankWord};
use crate::clock::Nanos;
use crate::rank::{GpuReport, Grant, RankState};
use std::sync::Arc;
use symphony_transport::message::{Completion, GpuId};
use symphony_transport::ring::{Consumer, Producer};

/// Messages taken from one ring in one turn, so that every ring and the timer are seen to in between.
const MESSAGES_PER_TURN: usize = 256;

/// Where completions come from: a backend's ring, or GPUs that are played on the RankThread's own core.
pub trait Completions {
    /// The next completion that has come.
    fn next(&mut self) -> Option<Completion>;
    /// The RankThread hears that a batch was sent to a GPU.
    fn sent(&mut self, _report: &GpuReport) {}
}

impl Completions for Consumer<Completion> {
    #[inline]
    fn next(&mut self) -> Option<Completion> {
        self.pop()
    }
}

/// See the module's description.
pub struct RankThread<C> {
    /// The sub-clusters.
    pub clusters: Vec<SubCluster>,
    /// For each model of the engine, its sub-cluster's place in `clusters`.
    pub cluster_of: Arc<[u32]>,
    /// One ring per ModelThread.
    pub words: Vec<Consumer<RankMessage>>,
    /// One per backend thread of the sub-clusters.
    pub completions: Vec<C>,
    /// To the ModelThreads.
    pub grants: Grants,
}

/// GPUs that can each run the same models.
pub struct SubCluster {
    /// The matching, of GPUs numbered from 0.
    pub state: RankState,
    /// The engine's number of the first of them.
    pub first_gpu: u32,
}

/// The sending ends of a RankThread's rings.
pub struct Grants {
    /// For each model of the engine, which ModelThread owns it.
    pub thread_of: Arc<[u32]>,
    /// To each ModelThread. Each holds a grant for every model, and a model has at most one, so it is never full.
    pub threads: Vec<Producer<GrantMessage>>,
}

impl Grants {
    fn send(&mut self, grant: Grant, first_gpu: u32) {
        let thread = self.thread_of[grant.model.0 as usize];
        let message = GrantMessage::from(Grant { gpu: GpuId(grant.gpu.0 + first_gpu), ..grant });
        let sent = self.threads[thread as usize].push(message);
        debug_assert!(sent.is_ok(), "a ModelThread's ring holds a grant for every model");
    }
}

impl<C: Completions> RankThread<C> {
    fn hear(&mut self, now: Nanos, message: RankMessage) {
        let word = message.word();
        let RankThread { clusters, cluster_of, grants, completions, .. } = self;
        let SubCluster { state, first_gpu } = &mut clusters[cluster_of[word.model().0 as usize] as usize];
        let mut grant = |grant: Grant| grants.send(grant, *first_gpu);
        match word {
            RankWord::Ready { model, latest, delay } => state.on_ready(now, model, latest, delay, &mut grant),
            RankWord::Withdraw { model } => state.on_withdraw(now, model, &mut grant),
            RankWord::Report(report) => {
                completions.iter_mut().for_each(|gpus| gpus.sent(&report));
                let gpu = GpuId(report.gpu.0 - *first_gpu);
                state.on_gpu_report(now, GpuReport { gpu, ..report }, &mut grant);
            }
        }
    }

    fn complete(&mut self, now: Nanos, mut completion: Completion) {
        let RankThread { clusters, cluster_of, grants, .. } = self;
        let SubCluster { state, first_gpu } = &mut clusters[cluster_of[completion.model.0 as usize] as usize];
        completion.gpu.0 -= *first_gpu;
        state.on_completion(now, completion, &mut |grant| grants.send(grant, *first_gpu));
    }
}

impl<C: Completions> Agent for RankThread<C> {
    fn poll(&mut self, now: Nanos) -> usize {
        let mut work = 0;
        for at in 0..self.completions.len() {
            for _ in 0..MESSAGES_PER_TURN {
                let Some(completion) = self.completions[at].next() else { break };
                self.complete(now, completion);
                work += 1;
            }
        }
        for at in 0..self.words.len() {
            for _ in 0..MESSAGES_PER_TURN {
                let Some(message) = self.words[at].pop() else { break };
                self.hear(now, message);
                work += 1;
            }
        }
        for SubCluster { state, first_gpu } in &mut self.clusters {
            if state.next_timer() <= now {
                state.on_timer(now, &mut |grant| self.grants.send(grant, *first_gpu));
                work += 1;
            }
        }
        work
    }

    fn stop(&mut self, _now: Nanos) {}
}
