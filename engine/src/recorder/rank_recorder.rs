//! Records the inputs of each sub-cluster's matching in a RankThread, each timer, and each grant
//! that results. Owned by the RankThread. GPUs are numbered as the sub-cluster's matching does,
//! from 0.

use super::description::{ClusterDescription, Description, RankDescription};
use super::journal::{Journal, Split};
use super::record::Record;
use super::{RecordConfig, RecordError};
use symphony_scheduler::rank::{Grant, RankInput, RankState};
use symphony_transport::Nanos;
use symphony_transport::message::Class;

/// The number of records that an event writes besides its grants and states.
const FEW: usize = 64;

/// The number of further records of a queue in a state, where there are classes: its bounds and its
/// reservation.
const RECORDS_OF_CLASSES: usize = 2;

/// The fixed parameters of a sub-cluster's matching.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// The number of GPUs, for [`RankState::new`].
    pub gpus: usize,
    /// The argument of this name of [`RankState::new`].
    pub keep_late: bool,
    /// The argument of this name of [`RankState::new`].
    pub completion_delay: Nanos,
    /// The argument of [`RankState::sending_ahead`].
    pub ahead: Nanos,
    /// The engine's number of the first GPU.
    pub first_gpu: u32,
}

/// The recorder of one RankThread.
pub struct RankRecorder {
    journal: Journal,
}

impl RankRecorder {
    /// Creates the recording of the thread `role`, which matches these sub-clusters' GPUs to
    /// `models` queues. `classes` has the class of each queue, or is empty where there is only one
    /// class.
    ///
    /// Errors: the file can't be created, or would be too small.
    pub fn create(
        config: &RecordConfig,
        role: &str,
        models: usize,
        classes: &[Class],
        clusters: &[ClusterConfig],
    ) -> Result<RankRecorder, RecordError> {
        debug_assert!(classes.is_empty() || classes.len() == models, "each model has a class");
        let of_classes = classes.len() * RECORDS_OF_CLASSES;
        let states: usize = clusters.iter().map(|cluster| 3 + cluster.gpus + models + of_classes).sum();
        let reserve = models + FEW;
        // At least half of each segment is for events.
        let least = 2 * (states + reserve);
        let split = Split::new(config.mib, least).ok_or_else(|| RecordError::TooSmall {
            role: role.to_owned(),
            mib: config.mib,
            least: Split::least_mib(least),
        })?;
        let cluster = |config: &ClusterConfig| ClusterDescription {
            gpus: config.gpus,
            keep_late: config.keep_late,
            completion_delay_ns: config.completion_delay.0,
            ahead_ns: config.ahead.0,
            first_gpu: config.first_gpu,
        };
        let description = RankDescription {
            models,
            classes: classes.iter().map(|class| class.number()).collect(),
            clusters: clusters.iter().map(cluster).collect(),
        };
        let text =
            serde_json::to_vec(&Description::Rank(description)).expect("a description is plain numbers");
        Ok(RankRecorder { journal: Journal::create(&config.file(role), &text, split, reserve)? })
    }

    /// Records an input of a sub-cluster, before it is handled. `states` are the thread's
    /// sub-clusters, in order, which are written where a segment begins.
    #[inline]
    pub fn input<'a>(
        &mut self,
        now: Nanos,
        cluster: usize,
        input: RankInput,
        states: impl Iterator<Item = &'a RankState>,
    ) {
        self.begin(now, states);
        self.journal.write(Record::from(input).in_cluster(cluster));
    }

    /// Records that a sub-cluster's matching acts on its inputs, or on its timer, before it does.
    #[inline]
    pub fn matching<'a>(&mut self, now: Nanos, cluster: usize, states: impl Iterator<Item = &'a RankState>) {
        self.begin(now, states);
        self.journal.write(Record::matched().in_cluster(cluster));
    }

    #[inline]
    fn begin<'a>(&mut self, now: Nanos, states: impl Iterator<Item = &'a RankState>) {
        if self.journal.begin(now) {
            for (cluster, state) in states.enumerate() {
                for_each_saved(cluster, state, |record| self.journal.write(record));
            }
        }
    }

    /// Records a grant that the last matching has led to.
    #[inline]
    pub fn granted(&mut self, cluster: usize, grant: Grant) {
        self.journal.write(Record::granted(cluster, grant));
    }

    /// Publishes what was recorded. It must be called at the end of each duty cycle that found
    /// work.
    #[inline]
    pub fn publish(&mut self) {
        self.journal.publish();
    }
}

/// Calls `record` with each record of a sub-cluster's state.
pub(super) fn for_each_saved(cluster: usize, state: &RankState, mut record: impl FnMut(Record)) {
    record(Record::saved_cluster(cluster, state.horizon(), state.packing(), state.are_all_reserved()));
    state.looks_paid_by().into_iter().for_each(|paid_by| record(Record::saved_looks(cluster, paid_by)));
    record(Record::saved_longest(cluster, state.longest()));
    record(Record::saved_delay(cluster, state.completion_delay()));
    state.saved_gpus().for_each(|gpu| record(Record::saved_gpu(cluster, gpu)));
    state.saved_models().for_each(|model| record(Record::saved_candidate(cluster, model)));
    state.saved_shares().for_each(|share| record(Record::saved_share(cluster, share)));
    // A reservation replaces what follows from the bounds.
    state.saved_bounds().for_each(|(model, bounds)| record(Record::saved_bounds(cluster, model, bounds)));
    state
        .saved_reservations()
        .for_each(|(model, reservation)| record(Record::saved_reservation(cluster, model, reservation)));
}
