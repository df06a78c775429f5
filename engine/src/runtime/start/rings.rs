//! The rings of an engine. Start-up makes them all at once and hands each thread its ends.

use super::sub_clusters::{BackendSpec, SubClusters};
use crate::runtime::backends::batches::{Answers, Inbox};
use crate::runtime::backends::executors::ExecutorRings;
use crate::runtime::counters::Counters;
use crate::runtime::counters::count::Count;
use crate::runtime::frontend::FrontendPeer;
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::completions::{CheckedCompletions, NumberedCompletion};
use crate::runtime::threads::model_thread::RingOutlets;
use crate::runtime::threads::{ModelLinks, RankLinks, link};
use std::ops::Range;
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_transport::message::{BatchHeader, Frame, Request, Response};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::SlabView;

/// The number of frames in all rings of batches to one backend thread (4 MiB of them), divided
/// among the ModelThreads: enough for 250 batches of 1,024. A grant waits for room.
const FRAMES_TO_A_BACKEND: usize = 1 << 16;

/// The rings of an engine. Each thread takes its ends as it starts: the first index is its own, the
/// second that of the thread at the other end.
pub(crate) struct EngineRings {
    pub(crate) requests_out: Vec<Vec<Consumer<Request>>>,
    pub(crate) model_links: Vec<Option<ModelLinks>>,
    pub(crate) rank_links: Vec<Option<RankLinks>>,
    frames_in: Vec<Vec<Producer<Frame>>>,
    pub(crate) frames_out: Vec<Vec<Consumer<Frame>>>,
    completions_in: Vec<Vec<Producer<NumberedCompletion>>>,
    pub(crate) completions_out: Vec<Vec<CheckedCompletions>>,
    pub(crate) model_answers: Vec<Vec<Producer<Response>>>,
    pub(crate) backend_answers: Vec<Vec<Producer<Response>>>,
    /// The number of the last completion of each GPU.
    sent: Arc<[Count]>,
    pub(crate) slabs: Vec<SlabView>,
    pub(crate) counters: Counters,
    /// The ModelThread that owns each per-class queue.
    pub(crate) thread_of: Arc<[u32]>,
    /// The RankThread that ranks each per-class queue.
    pub(crate) rank_of: Arc<[u32]>,
    /// The backend thread that runs each GPU.
    pub(crate) gpu_backends: Arc<[u32]>,
}

/// The threads that the rings connect.
pub(crate) struct RingPlan<'a> {
    pub(crate) model_threads: usize,
    pub(crate) rank_threads: usize,
    pub(crate) backends: &'a [BackendSpec],
    pub(crate) sub_clusters: &'a SubClusters,
    /// The ModelThread that owns each per-class queue.
    pub(crate) thread_of: Arc<[u32]>,
    /// The number of frames of the largest batch.
    pub(crate) largest_batch: usize,
}

/// The rings of a ModelThread.
pub(crate) struct ModelThreadRings {
    /// The requests from each frontend.
    pub(crate) requests: Vec<Consumer<Request>>,
    /// The links to and from each RankThread.
    pub(crate) links: ModelLinks,
    /// The frames to each backend thread, and the answers to each frontend.
    pub(crate) outlets: RingOutlets,
}

impl EngineRings {
    /// Makes every ring but those of the `peers`, which bring theirs.
    pub(crate) fn new(plan: &RingPlan<'_>, peers: Vec<FrontendPeer>, counters: Counters) -> EngineRings {
        let &RingPlan { model_threads, rank_threads, backends, sub_clusters, .. } = plan;
        let numbered = (0..).zip(backends);
        let gpu_backends: Arc<[u32]> =
            numbered.flat_map(|(at, backend)| backend.gpus.clone().map(move |_| at)).collect();
        let mut queues_of = vec![0; model_threads];
        plan.thread_of.iter().for_each(|&thread| queues_of[thread as usize] += 1);
        let (model_links, rank_links) = link(&queues_of, rank_threads);
        let mut rings = EngineRings {
            requests_out: (0..model_threads).map(|_| Vec::new()).collect(),
            model_links: model_links.into_iter().map(Some).collect(),
            rank_links: rank_links.into_iter().map(Some).collect(),
            frames_in: (0..model_threads).map(|_| Vec::new()).collect(),
            frames_out: Vec::new(),
            completions_in: Vec::new(),
            completions_out: (0..rank_threads).map(|_| Vec::new()).collect(),
            model_answers: (0..model_threads).map(|_| Vec::new()).collect(),
            backend_answers: backends.iter().map(|_| Vec::new()).collect(),
            sent: gpu_backends.iter().map(|_| Count::new()).collect(),
            slabs: Vec::new(),
            counters,
            thread_of: Arc::clone(&plan.thread_of),
            rank_of: QueueIds::new(sub_clusters.model_slots()).each(&sub_clusters.rank_of()),
            gpu_backends,
        };
        for backend in backends {
            let mut gpus = vec![0..0; rank_threads];
            for group in &sub_clusters.groups {
                let (start, end) =
                    (group.gpus.start.max(backend.gpus.start), group.gpus.end.min(backend.gpus.end));
                let own: &mut Range<u32> = &mut gpus[group.rank];
                if start < end {
                    *own = if own.start == own.end { start..end } else { own.start..end };
                }
            }
            rings.add_backend(&gpus, sub_clusters, plan.largest_batch);
        }
        for peer in peers {
            rings.connect(peer);
        }
        rings
    }

    /// Makes the rings to and from the next backend thread, except those of frontends. `gpus` are
    /// those of its GPUs that each RankThread grants.
    fn add_backend(&mut self, gpus: &[Range<u32>], sub_clusters: &SubClusters, largest_batch: usize) {
        let mut completions_in = Vec::new();
        for (own, gpus) in self.completions_out.iter_mut().zip(gpus) {
            let (to_rank, from_backend) = ring(gpus.len() * limits::MAX_OUTSTANDING_BATCHES);
            completions_in.push(to_rank);
            // A RankThread polls only rings that completions can come from.
            if !gpus.is_empty() {
                let (sent, model) = (Arc::clone(&self.sent), sub_clusters.model_of(gpus.start));
                own.push(CheckedCompletions::new(from_backend, sent, gpus.clone(), model));
            }
        }
        let batches = gpus.iter().map(|gpus| gpus.len() * limits::MAX_OUTSTANDING_BATCHES).sum::<usize>();
        self.completions_in.push(completions_in);
        let share = FRAMES_TO_A_BACKEND / self.frames_in.len();
        let room = (batches * largest_batch).min(share).max(2 * largest_batch);
        let mut outs = Vec::new();
        for own in &mut self.frames_in {
            let (to_backend, from_thread) = ring(room);
            own.push(to_backend);
            outs.push(from_thread);
        }
        self.frames_out.push(outs);
    }

    /// Adds the engine's ends of a frontend's rings.
    fn connect(&mut self, peer: FrontendPeer) {
        self.slabs.push(peer.slab);
        for (own, end) in self.requests_out.iter_mut().zip(peer.requests) {
            own.push(end);
        }
        let answering = self.model_answers.iter_mut().chain(&mut self.backend_answers);
        for (own, end) in answering.zip(peer.responses) {
            own.push(end);
        }
    }

    /// Returns the rings of a ModelThread, whose batches have at most `largest_batch` requests.
    pub(crate) fn model_thread(&mut self, at: usize, largest_batch: usize) -> ModelThreadRings {
        ModelThreadRings {
            requests: std::mem::take(&mut self.requests_out[at]),
            links: self.model_links[at].take().expect("each ModelThread is wired once"),
            outlets: RingOutlets {
                backends: std::mem::take(&mut self.frames_in[at]),
                gpu_backends: Arc::clone(&self.gpu_backends),
                frontends: std::mem::take(&mut self.model_answers[at]),
                largest_batch_frames: BatchHeader::frames(largest_batch),
            },
        }
    }

    /// Returns the rings of a RankThread: to and from ModelThreads, and completions.
    pub(crate) fn rank_thread(&mut self, at: usize) -> (RankLinks, Vec<CheckedCompletions>) {
        let links = self.rank_links[at].take().expect("each RankThread is wired once");
        (links, std::mem::take(&mut self.completions_out[at]))
    }

    /// Returns the rings of a backend thread.
    pub(crate) fn backend(&mut self, at: usize) -> ExecutorRings {
        ExecutorRings {
            inbox: Inbox::new(std::mem::take(&mut self.frames_out[at])),
            answers: Answers {
                slabs: self.slabs.clone(),
                frontends: std::mem::take(&mut self.backend_answers[at]),
                completions: std::mem::take(&mut self.completions_in[at]),
                sent: Arc::clone(&self.sent),
                rank_of: Arc::clone(&self.rank_of),
                counting: self.counters.of_backend(at),
                executing: self.counters.executions().of_backend(at),
            },
        }
    }
}
