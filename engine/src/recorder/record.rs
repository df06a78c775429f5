//! The element of a recording: 32 bytes of plain data, one per input of a state machine, per
//! decision of it and per piece of a checkpoint. Made here from the engine's types and turned back
//! into them, by the recorders and by replay alike, so that "the same decision" means "the same 32
//! bytes". Messages to the RankThread travel as these records as well. `codec.rs` encodes them in a
//! file.

use super::description::MAX_DELAY_NS;
use bytemuck::{Pod, Zeroable};
use std::fmt;
use symphony_scheduler::limits::RATE_SAMPLES;
use symphony_scheduler::model::checkpoint::Saved;
use symphony_scheduler::model::rate::RateParts;
use symphony_scheduler::model::recent_service::RecentService;
use symphony_scheduler::model::{Dispatch, LastReservation, ModelEvent};
use symphony_scheduler::profile::{ProfileScale, ScaledProfile, TOP_LEVEL, ratio_of};
use symphony_scheduler::rank::checkpoint::{SavedGpu, SavedModel, SavedShare};
use symphony_scheduler::rank::gpu_shares::GpuShare;
use symphony_scheduler::rank::packing::Packing;
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, RankInput, Reservation};
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, Ending, GpuId, ModelId, NO_DEADLINE, QueueId, Request};

/// The number of words of a record in full.
pub(super) const FULL: usize = size_of::<Record>() / size_of::<u64>();

/// A GPU's outstanding batches are stored with this added: a completion that has overtaken a report
/// makes them -1.
const OUTSTANDING_ZERO: i32 = 64;

/// The number of bits of a request's id; its frontend and class are stored above them.
const ID_BITS: u32 = 48;

/// The bit of a grant that says whether the last batch was of the same queue; its GPU is below it.
const AGAIN_AT: u32 = 31;

/// The kind of a [`Record`]. The numbers are part of the file format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Kind {
    /// The first record of a segment: its number and the time.
    Segment = 1,
    /// The end of a segment's records.
    End = 2,
    /// The start of a duty cycle, and its time.
    Cycle = 3,
    /// An input of a ModelQueue, as the next kinds.
    Request = 16,
    Grant = 17,
    Timer = 18,
    Stop = 19,
    /// The arrival of requests for a model, with their number; they follow, and then the queue is
    /// settled.
    Came = 20,
    /// The cancellation of a request.
    Cancel = 21,
    /// The order that a queue send reservations from now on.
    StartReserving = 22,
    /// Another setting of the rule.
    Set = 23,
    /// Another profile: the scale of the one that the queue began with.
    Rescale = 24,
    /// Other delays of the network.
    Delays = 25,
    /// An input of a RankState, as the next kinds; all but `Completion`, `Presence`,
    /// `CompletionDelay` and `Match` are also decisions of a ModelQueue.
    Ready = 32,
    /// An input like `Ready`, of a candidate that is early.
    Early = 37,
    /// The reservation of a GPU for a queue's next batch.
    Reserve = 38,
    /// The bounds of the batches of a queue of a lower class.
    Bounds = 39,
    /// The notice that every queue of the highest class has sent a reservation.
    AllReserved = 40,
    /// A GPU's host comes or goes.
    Presence = 41,
    /// Another delay of completions.
    CompletionDelay = 42,
    Withdraw = 33,
    Report = 34,
    Completion = 35,
    /// A run of the matching, on its inputs or on its timer.
    Match = 36,
    /// A decision of a ModelQueue, as the next kinds.
    Dispatch = 48,
    DispatchTimes = 49,
    Ended = 50,
    /// A decision of a RankState.
    Granted = 64,
    /// A queue's state: the scalars, the rate meter's counts, the queue.
    SavedModel = 80,
    SavedCounts = 81,
    SavedRequest = 82,
    /// A sub-cluster's state: the scalars, its GPUs, its queues.
    SavedCluster = 96,
    SavedGpu = 97,
    SavedCandidate = 98,
    /// The bounds and reservations of a sub-cluster's queues.
    SavedBounds = 99,
    SavedReservation = 100,
    /// The time by which a sub-cluster's looks ahead are paid for.
    SavedLooks = 101,
    /// The delay of a sub-cluster's completions.
    SavedDelay = 102,
    /// The longest batch that a matching has seen.
    SavedLongest = 103,
    /// What a queue has had of a sub-cluster's time.
    SavedShare = 104,
}

impl Kind {
    /// Returns the kind of this number. The compiler evaluates it where the number is a constant.
    #[inline(always)]
    pub(super) const fn of(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::Segment,
            2 => Kind::End,
            3 => Kind::Cycle,
            16 => Kind::Request,
            17 => Kind::Grant,
            18 => Kind::Timer,
            19 => Kind::Stop,
            20 => Kind::Came,
            21 => Kind::Cancel,
            22 => Kind::StartReserving,
            23 => Kind::Set,
            24 => Kind::Rescale,
            25 => Kind::Delays,
            32 => Kind::Ready,
            33 => Kind::Withdraw,
            34 => Kind::Report,
            35 => Kind::Completion,
            36 => Kind::Match,
            37 => Kind::Early,
            38 => Kind::Reserve,
            39 => Kind::Bounds,
            40 => Kind::AllReserved,
            41 => Kind::Presence,
            42 => Kind::CompletionDelay,
            48 => Kind::Dispatch,
            49 => Kind::DispatchTimes,
            50 => Kind::Ended,
            64 => Kind::Granted,
            80 => Kind::SavedModel,
            81 => Kind::SavedCounts,
            82 => Kind::SavedRequest,
            96 => Kind::SavedCluster,
            97 => Kind::SavedGpu,
            98 => Kind::SavedCandidate,
            99 => Kind::SavedBounds,
            100 => Kind::SavedReservation,
            101 => Kind::SavedLooks,
            102 => Kind::SavedDelay,
            103 => Kind::SavedLongest,
            104 => Kind::SavedShare,
            _ => return None,
        })
    }
}

/// An element of a recording. See the module's description. The meaning of the fields depends on
/// the kind: the constructors below define it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(32))]
pub(crate) struct Record {
    pub(super) small: u16,
    kind: u8,
    pub(super) flag: u8,
    pub(super) model: u32,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

/// The number of a rate meter's counts in one record.
const COUNTS_PER_RECORD: usize = 6;

/// The number of records that hold a queue's scalars.
pub(super) const SCALAR_RECORDS: usize = 6;

/// The number of records that hold a rate meter's counts.
pub(super) const COUNT_RECORDS: usize = RATE_SAMPLES.div_ceil(COUNTS_PER_RECORD);

impl From<RankInput> for Record {
    #[inline(always)]
    fn from(input: RankInput) -> Record {
        match input {
            RankInput::Ready { queue, offer } => Record::ready(queue, offer),
            RankInput::Reserve { queue, reservation } => Record::reservation(queue, reservation),
            RankInput::Bounds { queue, bounds } => Record::bounds(queue, bounds),
            RankInput::AllReserved => Record::of(Kind::AllReserved, QueueId(0)),
            RankInput::Withdraw(queue) => Record::of(Kind::Withdraw, queue),
            RankInput::Report(report) => Record::report(report),
            RankInput::Completion(completion) => Record::completion(completion),
            RankInput::Presence { gpu, is_up } => Record::presence(gpu, is_up),
            RankInput::CompletionDelay(delay) => {
                Record { a: delay.0, ..Record::of(Kind::CompletionDelay, QueueId(0)) }
            }
        }
    }
}

impl Record {
    #[inline(always)]
    fn of(kind: Kind, queue: QueueId) -> Record {
        Record { kind: kind as u8, model: queue.0, ..Record::default() }
    }

    /// Makes a record of these fields.
    pub(super) fn with(kind: Kind, flag: u64, small: u64, model: u64, [a, b, c]: [u64; 3]) -> Record {
        Record { kind: kind as u8, flag: flag as u8, small: small as u16, model: model as u32, a, b, c }
    }

    /// Returns the byte of the record's kind.
    #[inline(always)]
    pub(super) fn code(&self) -> u8 {
        self.kind
    }

    /// Returns the record's kind; `None` where the byte stands for none.
    #[inline(always)]
    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::of(self.kind)
    }

    /// Returns the queue, or for a completion the model, that the record is about, where it is
    /// about one. A request's rows after it are in the upper half.
    #[inline]
    pub(crate) fn queue(&self) -> QueueId {
        QueueId(self.model & 0xffff)
    }

    pub(super) fn segment(number: u64, now: Nanos) -> Record {
        Record { a: number, b: now.0, ..Record::of(Kind::Segment, QueueId(0)) }
    }

    pub(super) fn end() -> Record {
        Record::of(Kind::End, QueueId(0))
    }

    #[inline]
    pub(super) fn cycle(now: Nanos) -> Record {
        Record { a: now.0, ..Record::of(Kind::Cycle, QueueId(0)) }
    }

    #[inline]
    pub(super) fn request(request: &Request) -> Record {
        Record::of_request(Kind::Request, request)
    }

    /// Returns the words of a request after a [`Kind::Came`]: nothing is checked and little
    /// shifted, since every request has them. The last word has its row, the rows after it, its
    /// frontend, its class and its model, from the lowest bits.
    #[inline(always)]
    pub(super) fn raw(request: &Request) -> [u64; FULL] {
        const { assert!(symphony_scheduler::limits::MAX_QUEUES <= 1 << 16) };
        let last = u64::from(request.row)
            | u64::from(request.rows_after) << 16
            | u64::from(request.frontend) << 32
            | u64::from(request.class.number()) << 40
            | u64::from(request.queue.0) << 48;
        [request.arrival.0, request.deadline.0, request.id, last]
    }

    /// Returns the request that [`Record::raw`] made these words of.
    pub(super) fn from_raw([arrival, deadline, id, last]: [u64; FULL]) -> Record {
        let (row, rows_after, origin, model) = (last, last >> 16 & 0xffff, last >> 32 & 0xffff, last >> 48);
        let id = id | origin << ID_BITS;
        Record::with(Kind::Request, 0, row, model | rows_after << 16, [id, arrival, deadline])
    }

    pub(super) fn saved_request(request: &Request) -> Record {
        Record::of_request(Kind::SavedRequest, request)
    }

    #[inline]
    fn of_request(kind: Kind, request: &Request) -> Record {
        let origin = u64::from(request.frontend) | u64::from(request.class.number()) << 8;
        Record {
            kind: kind as u8,
            flag: 0,
            small: request.row,
            model: request.queue.0 | u32::from(request.rows_after) << 16,
            a: request.id | origin << ID_BITS,
            b: request.arrival.0,
            c: request.deadline.0,
        }
    }

    /// Returns the request, except for its slot and reserve, on which no decision depends.
    pub(super) fn as_request(&self) -> Request {
        Request {
            id: self.a & ((1 << ID_BITS) - 1),
            arrival: Nanos(self.b),
            deadline: Nanos(self.c),
            queue: self.queue(),
            row: self.small,
            rows_after: (self.model >> 16) as u16,
            frontend: (self.a >> ID_BITS) as u8,
            class: Class::new((self.a >> (ID_BITS + 8)) as u8).unwrap_or_default(),
            ..Request::default()
        }
    }

    /// Returns the record of a grant. The GPU's number leaves room for [`AGAIN_AT`]:
    /// [`symphony_scheduler::limits::MAX_GPUS`] is 65,536.
    #[inline]
    pub(super) fn grant(grant: Grant) -> Record {
        const { assert!(symphony_scheduler::limits::MAX_GPUS <= 1 << AGAIN_AT) };
        let Grant { queue, gpu, free_at, until, again } = grant;
        let a = u64::from(gpu.0) | u64::from(again) << AGAIN_AT;
        Record { a, b: free_at.0, c: until.0, ..Record::of(Kind::Grant, queue) }
    }

    /// Returns the record of a grant in the recording of the RankThread that decided it.
    #[inline]
    pub(super) fn granted(cluster: usize, grant: Grant) -> Record {
        Record { kind: Kind::Granted as u8, flag: cluster as u8, ..Record::grant(grant) }
    }

    pub(super) fn as_grant(&self) -> Grant {
        Grant {
            queue: self.queue(),
            gpu: GpuId(self.a as u32 & ((1 << AGAIN_AT) - 1)),
            free_at: Nanos(self.b),
            until: Nanos(self.c),
            again: self.a >> AGAIN_AT != 0,
        }
    }

    /// Returns the record of `count` requests that have come. A queue holds
    /// [`symphony_scheduler::limits::MAX_QUEUE_LENGTH`] requests at most, and that fits 16 bits.
    #[inline]
    pub(super) fn came(queue: QueueId, count: usize) -> Record {
        const { assert!(symphony_scheduler::limits::MAX_QUEUE_LENGTH <= u16::MAX as usize) };
        Record { small: count as u16, ..Record::of(Kind::Came, queue) }
    }

    /// Returns the record of an event of `queue`, except [`ModelEvent::Settle`], whose record is
    /// made by [`Record::came`].
    #[inline(always)]
    pub(super) fn event(queue: QueueId, event: ModelEvent<'_>) -> Record {
        match event {
            ModelEvent::Enqueue(request) => Record::request(request),
            ModelEvent::Cancel(first_row) => Record::of_request(Kind::Cancel, first_row),
            ModelEvent::Settle => Record::came(queue, 0),
            ModelEvent::Timer => Record::of(Kind::Timer, queue),
            ModelEvent::Grant(grant) => Record::grant(grant),
            ModelEvent::Set(setting) => Record::setting(Kind::Set, queue, setting),
            ModelEvent::Rescale(scaled) => Record::scale(Kind::Rescale, queue, scaled.scale),
            ModelEvent::Delays(network) => Record::delays(Kind::Delays, queue, network),
            ModelEvent::StartReserving => Record::of(Kind::StartReserving, queue),
            ModelEvent::Stop => Record::of(Kind::Stop, queue),
        }
    }

    #[inline]
    fn setting(kind: Kind, queue: QueueId, setting: RuleSetting) -> Record {
        let RuleSetting { price, patience, lead, spread, reserve, brief } = setting;
        let word = |number: f32| u64::from(number.to_bits());
        Record {
            flag: u8::from(spread) | u8::from(brief) << 1,
            a: word(price) | word(patience) << 32,
            b: word(lead),
            c: reserve.0,
            ..Record::of(kind, queue)
        }
    }

    /// Returns the setting of a [`Kind::Set`]. A number that none can have, of a damaged file,
    /// is 0.
    fn as_setting(&self) -> RuleSetting {
        let number = |word: u64| f32::from_bits(word as u32).max(0.0);
        let [price, patience, lead] = [self.a, self.a >> 32, self.b].map(number);
        let [spread, brief] = [1, 2].map(|bit| self.flag & bit != 0);
        RuleSetting { price, patience, lead, spread, reserve: Nanos(self.c), brief }
    }

    fn scale(kind: Kind, queue: QueueId, scale: ProfileScale) -> Record {
        let mut words = [0_u64; 3];
        const { assert!(size_of::<ProfileScale>() <= size_of::<[u64; 3]>()) };
        for (byte, level) in bytemuck::bytes_of_mut(&mut words).iter_mut().zip(scale.0) {
            *byte = level.cast_unsigned();
        }
        let [a, b, c] = words.map(u64::from_le);
        Record { a, b, c, ..Record::of(kind, queue) }
    }

    /// Returns the scale of a [`Kind::Rescale`]. A level that none can have, of a damaged file, is
    /// the lowest.
    pub(super) fn as_scale(&self) -> ProfileScale {
        let words = [self.a, self.b, self.c].map(u64::to_le);
        let bytes = bytemuck::bytes_of(&words);
        ProfileScale(std::array::from_fn(|at| bytes[at].cast_signed().max(-TOP_LEVEL)))
    }

    fn delays(kind: Kind, queue: QueueId, network: Network) -> Record {
        let Network { control, data_per_request, result } = network;
        Record { a: control.0, b: data_per_request.0, c: result.0, ..Record::of(kind, queue) }
    }

    /// Returns the delays of a [`Kind::Delays`]. One that none can have, of a damaged file, is the
    /// longest that is believed.
    fn as_delays(&self) -> Network {
        let [control, data_per_request, result] =
            [self.a, self.b, self.c].map(|delay| Nanos(delay.min(MAX_DELAY_NS)));
        Network { control, data_per_request, result }
    }

    /// Returns the event that [`Record::event`] made the record of; `None` if it is not of a queue.
    /// `request` is the record's [`Record::as_request`], `scaled` the profile by its
    /// [`Record::as_scale`].
    pub(super) fn as_event<'a>(
        &self,
        request: &'a Request,
        scaled: Option<&'a ScaledProfile>,
    ) -> Option<ModelEvent<'a>> {
        Some(match self.kind()? {
            Kind::Request => ModelEvent::Enqueue(request),
            Kind::Cancel => ModelEvent::Cancel(request),
            Kind::Came => ModelEvent::Settle,
            Kind::Timer => ModelEvent::Timer,
            Kind::Grant => ModelEvent::Grant(self.as_grant()),
            Kind::Set => ModelEvent::Set(self.as_setting()),
            Kind::Rescale => ModelEvent::Rescale(scaled?),
            Kind::Delays => ModelEvent::Delays(self.as_delays()),
            Kind::StartReserving => ModelEvent::StartReserving,
            Kind::Stop => ModelEvent::Stop,
            _ => return None,
        })
    }

    /// Returns the input of a matching that this record was made of; `None` if it is another
    /// record. A piece of a saved state is the input that restores it.
    #[inline(always)]
    pub(crate) fn as_rank_input(&self) -> Option<RankInput> {
        let queue = self.queue();
        Some(match self.kind()? {
            Kind::Ready | Kind::Early => RankInput::Ready { queue, offer: self.as_offer() },
            Kind::Withdraw => RankInput::Withdraw(queue),
            Kind::Report => RankInput::Report(self.as_report()),
            Kind::Reserve | Kind::SavedReservation => {
                RankInput::Reserve { queue, reservation: self.as_reservation() }
            }
            Kind::Bounds | Kind::SavedBounds => RankInput::Bounds { queue, bounds: self.as_bounds() },
            Kind::AllReserved => RankInput::AllReserved,
            Kind::Completion => RankInput::Completion(self.as_completion()),
            Kind::Presence => RankInput::Presence { gpu: GpuId(self.a as u32), is_up: self.small != 0 },
            Kind::CompletionDelay | Kind::SavedDelay => RankInput::CompletionDelay(Nanos(self.a)),
            _ => return None,
        })
    }

    #[inline]
    fn ready(queue: QueueId, offer: Offer) -> Record {
        let kind = if offer.early { Kind::Early } else { Kind::Ready };
        // Mostly a candidate may have any GPU: zero, for a short form.
        Record {
            small: u16::from(offer.shrinks) | offer.precedence << 1,
            a: offer.latest.0,
            b: offer.delay.0,
            c: !offer.leaves.0,
            ..Record::of(kind, queue)
        }
    }

    #[inline]
    fn as_offer(&self) -> Offer {
        let early = self.kind() == Some(Kind::Early);
        Offer {
            latest: Nanos(self.a),
            delay: Nanos(self.b),
            early,
            leaves: Nanos(!self.c),
            shrinks: self.small & 1 != 0,
            precedence: self.small >> 1,
        }
    }

    #[inline]
    fn reservation(queue: QueueId, reservation: Reservation) -> Record {
        let Reservation { at, silent, every } = reservation;
        Record { small: u16::from(silent), a: at.0, b: every.0, ..Record::of(Kind::Reserve, queue) }
    }

    fn as_reservation(&self) -> Reservation {
        Reservation { at: Nanos(self.a), silent: self.small != 0, every: Nanos(self.b) }
    }

    #[inline]
    fn bounds(queue: QueueId, bounds: BatchBounds) -> Record {
        let BatchBounds { shortest, longest, patience } = bounds;
        Record { a: shortest.0, b: longest.0, c: patience.0, ..Record::of(Kind::Bounds, queue) }
    }

    fn as_bounds(&self) -> BatchBounds {
        BatchBounds { shortest: Nanos(self.a), longest: Nanos(self.b), patience: Nanos(self.c) }
    }

    #[inline]
    fn report(report: GpuReport) -> Record {
        Record {
            small: u16::from(report.exec_at.is_some()),
            a: report.exec_at.unwrap_or(Nanos::ZERO).0,
            b: report.free_at.0,
            c: u64::from(report.gpu.0),
            ..Record::of(Kind::Report, report.queue)
        }
    }

    #[inline]
    fn as_report(&self) -> GpuReport {
        GpuReport {
            queue: self.queue(),
            gpu: GpuId(self.c as u32),
            exec_at: (self.small != 0).then_some(Nanos(self.a)),
            free_at: Nanos(self.b),
        }
    }

    /// Returns the record of a completion. A GPU's number within its sub-cluster fits 16 bits:
    /// [`symphony_scheduler::limits::MAX_GPUS`] is 65,536.
    #[inline]
    fn completion(completion: Completion) -> Record {
        const { assert!(symphony_scheduler::limits::MAX_GPUS <= 1 << 16) };
        Record {
            small: completion.gpu.0 as u16,
            a: completion.batch,
            b: completion.started.0,
            c: completion.finished.0,
            ..Record::of(Kind::Completion, QueueId(completion.model.0))
        }
    }

    fn presence(gpu: GpuId, is_up: bool) -> Record {
        Record { small: u16::from(is_up), a: u64::from(gpu.0), ..Record::of(Kind::Presence, QueueId(0)) }
    }

    pub(super) fn as_completion(&self) -> Completion {
        Completion {
            batch: self.a,
            started: Nanos(self.b),
            finished: Nanos(self.c),
            model: ModelId(self.queue().0),
            gpu: GpuId(u32::from(self.small)),
        }
    }

    #[inline]
    pub(super) fn matched() -> Record {
        Record::of(Kind::Match, QueueId(0))
    }

    /// Returns the record with this sub-cluster's index.
    #[inline]
    pub(super) fn in_cluster(self, cluster: usize) -> Record {
        Record { flag: cluster as u8, ..self }
    }

    /// Returns the two records of a batch.
    #[inline]
    pub(super) fn dispatch(dispatch: Dispatch, batch: u64, size: usize) -> [Record; 2] {
        let first = Record {
            small: size as u16,
            a: batch,
            b: dispatch.exec_at.0,
            c: u64::from(dispatch.gpu.0),
            ..Record::of(Kind::Dispatch, dispatch.queue)
        };
        let second = Record {
            a: dispatch.latest.0,
            b: dispatch.duration.0,
            c: dispatch.batched.0,
            ..Record::of(Kind::DispatchTimes, dispatch.queue)
        };
        [first, second]
    }

    #[inline]
    pub(super) fn ended(request: &Request, ending: Ending) -> Record {
        Record { flag: ending as u8, ..Record::of_request(Kind::Ended, request) }
    }

    /// Returns the records of a queue's scalars: [`SCALAR_RECORDS`] of them.
    pub(super) fn saved_model(queue: QueueId, saved: &Saved, queued: usize) -> [Record; SCALAR_RECORDS] {
        let Offer { latest, delay, early, leaves, precedence, .. } = saved.offer.unwrap_or_default();
        let first = Record {
            flag: u8::from(saved.offer.is_some())
                | u8::from(early) << 1
                | u8::from(saved.recent.overloaded) << 2
                | u8::from(leaves < Nanos::MAX) << 3,
            small: queued as u16,
            a: saved.last_start.0,
            b: latest.0,
            c: delay.0,
            ..Record::of(Kind::SavedModel, queue)
        };
        let RateParts { at, filled, current, sample_ends, .. } = saved.rate;
        let second = Record {
            small: filled as u16,
            flag: at as u8,
            a: u64::from(current) | u64::from(saved.recent.precedence) << 32,
            b: sample_ends.0,
            c: u64::from(saved.recent.lost),
            ..Record::of(Kind::SavedModel, queue)
        };
        let LastReservation { head, budget } =
            saved.reservation.unwrap_or(LastReservation { head: Nanos::ZERO, budget: Nanos::ZERO });
        let third = Record {
            flag: u8::from(saved.reservation.is_some())
                | u8::from(saved.bounds_sent) << 1
                | u8::from(saved.unexpected) << 2
                | u8::from(saved.runs_again) << 3,
            small: precedence,
            a: head.0,
            b: budget.0,
            c: saved.recent.gpu_time.0,
            ..Record::of(Kind::SavedModel, queue)
        };
        let fourth = Record::setting(Kind::SavedModel, queue, saved.setting);
        let fifth = Record::scale(Kind::SavedModel, queue, saved.scale);
        [first, second, third, fourth, fifth, Record::delays(Kind::SavedModel, queue, saved.network)]
    }

    pub(super) fn saved_counts(queue: QueueId, saved: &Saved) -> impl Iterator<Item = Record> {
        saved.rate.counts.chunks(COUNTS_PER_RECORD).map(move |chunk| {
            let pair = |at: usize| {
                let count = |at| u64::from(chunk.get(at).copied().unwrap_or(0));
                count(2 * at) | count(2 * at + 1) << 32
            };
            Record { a: pair(0), b: pair(1), c: pair(2), ..Record::of(Kind::SavedCounts, queue) }
        })
    }

    /// Returns the state that the records of [`Record::saved_model`] and these counts were made of.
    pub(super) fn as_saved(
        [first, second, third, fourth, fifth, sixth]: &[Record; SCALAR_RECORDS],
        counts: &[Record],
    ) -> Saved {
        let setting = fourth.as_setting();
        let mut all = [0; RATE_SAMPLES];
        for (to, record) in all.chunks_mut(COUNTS_PER_RECORD).zip(counts) {
            let words = [record.a, record.b, record.c];
            let values = words.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]);
            to.iter_mut().zip(values).for_each(|(to, value)| *to = value);
        }
        Saved {
            rate: RateParts {
                counts: all,
                at: u32::from(second.flag),
                filled: u32::from(second.small),
                current: second.a as u32,
                sample_ends: Nanos(second.b),
            },
            last_start: Nanos(first.a),
            recent: RecentService {
                lost: second.c as u32,
                gpu_time: Nanos(third.c),
                overloaded: first.flag & 4 != 0,
                precedence: (second.a >> 32) as u16,
            },
            offer: (first.flag & 1 != 0).then_some(Offer {
                latest: Nanos(first.b),
                delay: Nanos(first.c),
                early: first.flag & 2 != 0,
                // What a queue has offered is by its setting.
                leaves: if first.flag & 8 != 0 { setting.reserve } else { Nanos::MAX },
                shrinks: first.flag & 8 != 0 && setting.brief,
                precedence: third.small,
            }),
            reservation: (third.flag & 1 != 0)
                .then_some(LastReservation { head: Nanos(third.a), budget: Nanos(third.b) }),
            bounds_sent: third.flag & 2 != 0,
            unexpected: third.flag & 4 != 0,
            runs_again: third.flag & 8 != 0,
            setting,
            scale: fifth.as_scale(),
            network: sixth.as_delays(),
        }
    }

    pub(super) fn saved_cluster(
        cluster: usize,
        horizon: Nanos,
        packing: Packing,
        all_reserved: bool,
    ) -> Record {
        let Packing { average, asked, since } = packing;
        Record {
            small: u16::from(all_reserved),
            model: asked as u32,
            a: horizon.0,
            b: average.to_bits(),
            c: since.0,
            ..Record::of(Kind::SavedCluster, QueueId(0))
        }
        .in_cluster(cluster)
    }

    /// Returns the largest delay seen by a sub-cluster's matching, the recent demand for its GPUs,
    /// and true if lower classes can be served.
    pub(super) fn as_saved_cluster(&self) -> (Nanos, Packing, bool) {
        let average = f64::from_bits(self.b);
        let packing = Packing { average, asked: self.model as usize, since: Nanos(self.c) };
        (Nanos(self.a), packing, self.small != 0)
    }

    pub(super) fn saved_looks(cluster: usize, paid_by: Nanos) -> Record {
        Record { a: paid_by.0, ..Record::of(Kind::SavedLooks, QueueId(0)) }.in_cluster(cluster)
    }

    pub(super) fn as_saved_looks(&self) -> Nanos {
        Nanos(self.a)
    }

    pub(super) fn saved_longest(cluster: usize, longest: Nanos) -> Record {
        Record { a: longest.0, ..Record::of(Kind::SavedLongest, QueueId(0)) }.in_cluster(cluster)
    }

    pub(super) fn as_saved_longest(&self) -> Nanos {
        Nanos(self.a)
    }

    pub(super) fn saved_delay(cluster: usize, delay: Nanos) -> Record {
        Record { a: delay.0, ..Record::of(Kind::SavedDelay, QueueId(0)) }.in_cluster(cluster)
    }

    pub(super) fn saved_bounds(cluster: usize, queue: QueueId, bounds: BatchBounds) -> Record {
        Record { kind: Kind::SavedBounds as u8, ..Record::bounds(queue, bounds) }.in_cluster(cluster)
    }

    pub(super) fn saved_reservation(cluster: usize, queue: QueueId, reservation: Reservation) -> Record {
        let record = Record::reservation(queue, reservation);
        Record { kind: Kind::SavedReservation as u8, ..record }.in_cluster(cluster)
    }

    pub(super) fn saved_share(cluster: usize, saved: SavedShare) -> Record {
        let SavedShare { queue, share, neediest } = saved;
        Record {
            small: u16::from(neediest.is_some()),
            a: share.had.0,
            b: share.fades.into(),
            c: neediest.unwrap_or_default().0,
            ..Record::of(Kind::SavedShare, queue)
        }
        .in_cluster(cluster)
    }

    pub(super) fn as_saved_share(&self) -> SavedShare {
        SavedShare {
            queue: self.queue(),
            share: GpuShare { had: Nanos(self.a), fades: self.b as u32 },
            neediest: (self.small != 0).then_some(Nanos(self.c)),
        }
    }

    pub(super) fn saved_gpu(cluster: usize, gpu: SavedGpu) -> Record {
        Record {
            flag: cluster as u8,
            small: ((gpu.outstanding + OUTSTANDING_ZERO) as u16) << 4
                | u16::from(gpu.taken)
                | u16::from(gpu.hidden) << 1
                | u16::from(gpu.lower) << 2
                | u16::from(gpu.absent) << 3,
            model: gpu.gpu.0,
            a: gpu.free_at.0,
            b: gpu.last_duration.0,
            c: gpu.last_exec_at.0,
            kind: Kind::SavedGpu as u8,
        }
    }

    pub(super) fn as_saved_gpu(&self) -> SavedGpu {
        SavedGpu {
            gpu: GpuId(self.model),
            free_at: Nanos(self.a),
            last_duration: Nanos(self.b),
            last_exec_at: Nanos(self.c),
            outstanding: i32::from(self.small >> 4) - OUTSTANDING_ZERO,
            taken: self.small & 1 != 0,
            hidden: self.small & 2 != 0,
            lower: self.small & 4 != 0,
            absent: self.small & 8 != 0,
        }
    }

    pub(super) fn saved_candidate(cluster: usize, saved: SavedModel) -> Record {
        Record {
            small: u16::from(saved.granted)
                | u16::from(saved.offer.early) << 1
                | u16::from(saved.offer.shrinks) << 2
                | u16::from(saved.offer.precedence > 0) << 3
                | u16::from(saved.last) << 4,
            a: saved.offer.latest.0,
            b: saved.offer.delay.0,
            c: !saved.offer.leaves.0,
            ..Record::of(Kind::SavedCandidate, saved.queue)
        }
        .in_cluster(cluster)
    }

    pub(super) fn as_saved_candidate(&self) -> SavedModel {
        SavedModel {
            queue: self.queue(),
            offer: Offer {
                latest: Nanos(self.a),
                delay: Nanos(self.b),
                early: self.small & 2 != 0,
                leaves: Nanos(!self.c),
                shrinks: self.small & 4 != 0,
                precedence: self.small >> 3 & 1,
            },
            granted: self.small & 1 != 0,
            last: self.small & 16 != 0,
        }
    }
}

/// Formats a record as a line of replay's report.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { small, a, b, c, .. } = *self;
        let model = self.queue().0;
        let Some(kind) = self.kind() else { return write!(f, "unknown record of kind {}", self.kind) };
        match kind {
            Kind::Segment => write!(f, "segment {a} at {}", Millis(b)),
            Kind::End => f.write_str("end of segment"),
            Kind::Cycle => write!(f, "duty cycle at {}", Millis(a)),
            Kind::Request | Kind::SavedRequest => {
                write!(f, "{} for model {model}, due {}", Named(&self.as_request()), Millis(c))
            }
            Kind::Cancel => write!(f, "{} for model {model} is taken back", Named(&self.as_request())),
            Kind::Grant | Kind::Granted => {
                let Grant { gpu, free_at, until, again, .. } = self.as_grant();
                write!(f, "grant of GPU {}, free at {}, to model {model}", gpu.0, Millis(free_at.0))?;
                if again {
                    f.write_str(" again")?;
                }
                if until < Nanos::MAX { write!(f, " until {}", Millis(until.0)) } else { Ok(()) }
            }
            Kind::Set => write!(f, "model {model} is scheduled by setting {}", self.as_setting()),
            Kind::Rescale => {
                let levels = self.as_scale().0;
                let [least, most] = [levels.iter().min(), levels.iter().max()];
                let ratio = |level: Option<&i8>| ratio_of(level.copied().unwrap_or_default());
                let [least, most] = [least, most].map(ratio);
                write!(
                    f,
                    "batches of model {model} take {least:.2} to {most:.2} times what they took at first"
                )
            }
            Kind::Delays => write!(
                f,
                "the network of model {model} delays by {}, {} for each request and {} back",
                Millis(a),
                Millis(b),
                Millis(c)
            ),
            Kind::StartReserving => write!(f, "model {model} sends reservations from now on"),
            Kind::AllReserved => f.write_str("every model has sent a reservation"),
            Kind::Bounds => {
                write!(f, "model {model} of a lower class takes a GPU for {} at least", Millis(a))
            }
            Kind::Timer => write!(f, "timer of model {model}"),
            Kind::Stop => write!(f, "stop of model {model}"),
            Kind::Came => write!(f, "{small} requests for model {model}, which is settled"),
            Kind::Ready | Kind::Early => {
                let how = if kind == Kind::Ready { "ready" } else { "early" };
                write!(f, "model {model} {how}: latest {}, delay {}", Millis(a), Millis(b))?;
                // Not, if it may have the last GPU.
                if c > 0 {
                    write!(f, ", if another GPU is free within {}", Millis(!c))?;
                }
                if small & 1 != 0 {
                    f.write_str(", or it is over by then")?;
                }
                let precedence = small >> 1;
                if precedence > 0 { write!(f, ", precedence {precedence}") } else { Ok(()) }
            }
            Kind::Reserve if small == 0 => write!(f, "model {model} starts its next batch at {}", Millis(a)),
            Kind::Reserve => write!(f, "model {model} needs a GPU {} after a request comes", Millis(a)),
            Kind::Withdraw => write!(f, "model {model} withdrawn"),
            Kind::Report if small == 0 => write!(f, "model {model} gives GPU {c} back unused"),
            Kind::Report => {
                write!(f, "model {model} uses GPU {c} from {} to {}", Millis(a), Millis(b))
            }
            Kind::Completion => {
                write!(f, "batch {a} of model {model} left GPU {small}: {} to {}", Millis(b), Millis(c))
            }
            Kind::Presence => {
                write!(f, "the host of GPU {a} {}", if small == 0 { "is gone" } else { "has come" })
            }
            Kind::CompletionDelay => write!(f, "completions take {} from now on", Millis(a)),
            Kind::Match => f.write_str("the matching"),
            Kind::Dispatch => {
                write!(f, "batch {a} of {small} of model {model} to GPU {c}, exec_at {}", Millis(b))
            }
            Kind::DispatchTimes => {
                write!(f, "that batch: latest {}, takes {}, made {}", Millis(a), Millis(b), Millis(c))
            }
            Kind::Ended => {
                let ending = Ending::from_code(u32::from(self.flag));
                write!(f, "{} for model {model} ends: {ending:?}", Named(&self.as_request()))
            }
            Kind::SavedModel | Kind::SavedCounts => write!(f, "checkpoint of model {model}"),
            Kind::SavedCluster
            | Kind::SavedGpu
            | Kind::SavedCandidate
            | Kind::SavedBounds
            | Kind::SavedReservation
            | Kind::SavedLooks
            | Kind::SavedDelay
            | Kind::SavedLongest
            | Kind::SavedShare => {
                write!(f, "checkpoint of sub-cluster {}", self.flag)
            }
        }
    }
}

/// A request, or the row of one that has several, by its frontend's id.
pub(super) struct Named<'a>(pub(super) &'a Request);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { id, frontend, row, rows_after, .. } = self.0;
        write!(f, "request {id} of frontend {frontend}")?;
        match (row, rows_after) {
            (0, 0) => Ok(()),
            // A damaged file may hold any numbers.
            _ => {
                let at = u32::from(*row) + 1;
                write!(f, " (row {at} of {})", at + u32::from(*rows_after))
            }
        }
    }
}

/// An instant in nanoseconds, shown in milliseconds with six decimals.
pub(super) struct Millis(pub(super) u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // Deadlines that never come, and such deadlines less a delay.
            ns if ns > NO_DEADLINE.0 / 2 => f.write_str("never"),
            ns => write!(f, "{}.{:06} ms", ns / 1_000_000, ns % 1_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::model::recent_service::WHOLE_PRECEDENCE;
    use symphony_scheduler::profile::Profile;

    const SETTING: RuleSetting = RuleSetting {
        price: f32::INFINITY,
        patience: 0.25,
        lead: 0.0,
        spread: true,
        reserve: Nanos(17 << 33 | 5),
        brief: true,
    };

    const NETWORK: Network = Network {
        control: Nanos::from_micros(300),
        data_per_request: Nanos::from_micros(20),
        result: Nanos(MAX_DELAY_NS),
    };

    const SCALE: ProfileScale = ProfileScale([
        0, 1, -1, TOP_LEVEL, -TOP_LEVEL, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, -19, -20,
    ]);

    #[test]
    fn a_damaged_row_number_is_shown_and_does_not_overflow() {
        let request = Request { row: u16::MAX, rows_after: u16::MAX, ..Request::default() };
        assert!(Named(&request).to_string().ends_with("(row 65536 of 131071)"));
    }

    #[test]
    fn a_kind_survives_its_number() {
        let known = (0..=255).filter_map(|code| Some((code, Kind::of(code)?)));
        assert!(known.clone().all(|(code, kind)| kind as u8 == code && code < 0x80));
        assert_eq!(known.count(), 40);
    }

    #[test]
    fn a_record_is_half_a_cache_line() {
        assert_eq!(size_of::<Record>(), 32);
    }

    #[test]
    fn records_turn_back_into_what_they_were_made_of() {
        let queue = QueueId(5);
        let request = Request {
            id: (1 << 48) - 1,
            arrival: Nanos(3),
            deadline: Nanos(9),
            queue,
            row: 65_535,
            rows_after: 65_534,
            frontend: 255,
            class: Class::LOWEST,
            ..Request::default()
        };
        assert_eq!(Record::request(&request).as_request(), request);
        assert_eq!(Record::from_raw(Record::raw(&request)).as_request(), request);
        for until in [Nanos(8), Nanos::MAX] {
            let again = until == Nanos::MAX;
            let grant = Grant { queue, gpu: GpuId(65_535), free_at: Nanos(7), until, again };
            assert_eq!(Record::granted(2, grant).as_grant(), grant);
        }
        let bounds = BatchBounds { shortest: Nanos(1), longest: Nanos(2), patience: Nanos(17 << 33 | 5) };
        let report = GpuReport { queue, gpu: GpuId(4), exec_at: Some(Nanos(0)), free_at: Nanos(8) };
        let completion = Completion {
            batch: 3,
            started: Nanos(1),
            finished: Nanos(2),
            model: ModelId(5),
            gpu: GpuId(65_535),
        };
        let mut inputs = vec![
            RankInput::Bounds { queue, bounds },
            RankInput::AllReserved,
            RankInput::Withdraw(queue),
            RankInput::Report(report),
            RankInput::Report(GpuReport { exec_at: None, ..report }),
            RankInput::Completion(completion),
            RankInput::Presence { gpu: GpuId(65_535), is_up: true },
            RankInput::Presence { gpu: GpuId(3), is_up: false },
            RankInput::CompletionDelay(Nanos(1 << 40)),
        ];
        for flag in [false, true] {
            for leaves in [Nanos::MAX, Nanos(17), Nanos::ZERO] {
                let shrinks = leaves == Nanos(17);
                let precedence = u16::from(flag != shrinks);
                let offer =
                    Offer { latest: Nanos(11), delay: Nanos(13), early: flag, leaves, shrinks, precedence };
                inputs.push(RankInput::Ready {
                    queue,
                    offer: Offer { precedence: precedence * WHOLE_PRECEDENCE, ..offer },
                });
                let saved = SavedModel { queue, offer, granted: !flag, last: flag };
                assert_eq!(Record::saved_candidate(1, saved).as_saved_candidate(), saved);
            }
            let reservation = Reservation { at: Nanos(1), silent: flag, every: Nanos(2) };
            inputs.push(RankInput::Reserve { queue, reservation });
            let saved = Record::saved_reservation(1, queue, reservation);
            assert_eq!(saved.as_rank_input(), Some(RankInput::Reserve { queue, reservation }));
        }
        let saved = Record::saved_bounds(1, queue, bounds);
        assert_eq!(saved.as_rank_input(), Some(RankInput::Bounds { queue, bounds }));
        assert_eq!(Record::saved_longest(1, Nanos(5)).as_saved_longest(), Nanos(5));
        for neediest in [None, Some(Nanos(5)), Some(Nanos::MAX)] {
            let share = GpuShare { had: Nanos(1 << 40), fades: u32::MAX };
            let saved = SavedShare { queue, share, neediest };
            assert_eq!(Record::saved_share(1, saved).as_saved_share(), saved);
        }
        let saved = Record::saved_delay(1, Nanos(3));
        assert_eq!(saved.as_rank_input(), Some(RankInput::CompletionDelay(Nanos(3))));
        for input in inputs {
            assert_eq!(Record::from(input).in_cluster(1).as_rank_input(), Some(input));
        }
        let grant = Grant { queue, gpu: GpuId(3), free_at: Nanos(7), until: Nanos(8), again: true };
        let base = Profile::linear(Nanos(10), Nanos(20), 30).unwrap();
        let scaled = ScaledProfile::new(&base, SCALE);
        let events = [
            ModelEvent::Enqueue(&request),
            ModelEvent::Cancel(&request),
            ModelEvent::Settle,
            ModelEvent::Timer,
            ModelEvent::Grant(grant),
            ModelEvent::Set(SETTING),
            ModelEvent::Rescale(&scaled),
            ModelEvent::Delays(NETWORK),
            ModelEvent::StartReserving,
            ModelEvent::Stop,
        ];
        for event in events {
            let record = Record::event(queue, event);
            assert_eq!(record.as_event(&request, Some(&scaled)), Some(event));
            if let ModelEvent::Rescale(scaled) = event {
                assert_eq!(record.as_scale(), scaled.scale);
            }
        }
        let gpu = SavedGpu {
            gpu: GpuId(65_535),
            free_at: Nanos(1),
            last_duration: Nanos(2),
            last_exec_at: Nanos(3),
            outstanding: 4,
            taken: true,
            hidden: false,
            lower: true,
            absent: true,
        };
        assert_eq!(Record::saved_gpu(1, gpu).as_saved_gpu(), gpu);
    }

    #[test]
    fn a_models_state_survives() {
        let saved = Saved {
            rate: RateParts {
                counts: std::array::from_fn(|at| at as u32 * 1_000_000),
                at: 99,
                filled: 100,
                current: 77,
                sample_ends: Nanos(123),
            },
            last_start: Nanos(456),
            recent: RecentService { lost: 789, gpu_time: Nanos(987), overloaded: true, precedence: 12_345 },
            offer: Some(Offer {
                latest: Nanos(0),
                delay: Nanos(1),
                early: true,
                leaves: SETTING.reserve,
                shrinks: SETTING.brief,
                precedence: WHOLE_PRECEDENCE,
            }),
            reservation: Some(LastReservation { head: Nanos(2), budget: Nanos(3) }),
            bounds_sent: true,
            unexpected: true,
            runs_again: true,
            setting: SETTING,
            scale: SCALE,
            network: NETWORK,
        };
        let scalars = Record::saved_model(QueueId(1), &saved, 8_192);
        let counts: Vec<Record> = Record::saved_counts(QueueId(1), &saved).collect();
        assert_eq!(counts.len(), COUNT_RECORDS);
        assert_eq!(Record::as_saved(&scalars, &counts), saved);
    }
}
