//! The messages between ModelThreads and the RankThread: plain data of half a cache line, made from
//! and turned back into the calls of [`RankState`](symphony_scheduler::rank::RankState) and
//! [`ModelQueue`](symphony_scheduler::model::ModelQueue).

use bytemuck::{Pod, Zeroable};
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, RankInput, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{GpuId, ModelId};

/// From a ModelThread to the RankThread.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RankMessage {
    /// One of the constants of this type.
    kind: u32,
    model: ModelId,
    /// Of a standing, the lower half of `patience`.
    gpu: GpuId,
    /// Of a standing, its upper half; else zero.
    upper: u32,
    /// `latest` of a candidate, exec_at of a report, `at` of a next start, `shortest` of a
    /// standing.
    first: Nanos,
    /// delay of a candidate, free_at of a report, `every` of a next start, `longest` of a standing.
    second: Nanos,
}

impl RankMessage {
    const WITHDRAW: u32 = 0;
    const READY: u32 = 1;
    const USED: u32 = 2;
    const UNUSED: u32 = 3;
    const EARLY: u32 = 4;
    const NEXT: u32 = 5;
    const NEXT_SILENT: u32 = 6;
    const STANDING: u32 = 7;
    const FORETOLD: u32 = 8;

    pub(crate) fn ready(model: ModelId, offer: Offer) -> RankMessage {
        RankMessage {
            kind: if offer.early { RankMessage::EARLY } else { RankMessage::READY },
            model,
            first: offer.latest,
            second: offer.delay,
            ..RankMessage::default()
        }
    }

    pub(crate) fn withdraw(model: ModelId) -> RankMessage {
        RankMessage { kind: RankMessage::WITHDRAW, model, ..RankMessage::default() }
    }

    pub(crate) fn report(report: GpuReport) -> RankMessage {
        RankMessage {
            kind: if report.exec_at.is_some() { RankMessage::USED } else { RankMessage::UNUSED },
            model: report.model,
            gpu: report.gpu,
            upper: 0,
            first: report.exec_at.unwrap_or(Nanos::ZERO),
            second: report.free_at,
        }
    }

    pub(crate) fn reservation(model: ModelId, next: Reservation) -> RankMessage {
        RankMessage {
            kind: if next.silent { RankMessage::NEXT_SILENT } else { RankMessage::NEXT },
            model,
            first: next.at,
            second: next.every,
            ..RankMessage::default()
        }
    }

    pub(crate) fn standing(model: ModelId, standing: BatchBounds) -> RankMessage {
        RankMessage {
            kind: RankMessage::STANDING,
            model,
            gpu: GpuId(standing.patience.0 as u32),
            upper: (standing.patience.0 >> 32) as u32,
            first: standing.shortest,
            second: standing.longest,
        }
    }

    /// All of the thread's models of the highest class have told of their next batch: about none of
    /// them.
    pub(crate) fn foretold() -> RankMessage {
        RankMessage { kind: RankMessage::FORETOLD, ..RankMessage::default() }
    }

    /// The model that it is about.
    pub(crate) fn model(self) -> ModelId {
        self.model
    }

    /// What it tells the matching.
    pub(crate) fn input(self) -> RankInput {
        let RankMessage { model, gpu, first, second, .. } = self;
        match self.kind {
            RankMessage::READY | RankMessage::EARLY => {
                let early = self.kind == RankMessage::EARLY;
                RankInput::Ready { model, offer: Offer { latest: first, delay: second, early } }
            }
            RankMessage::USED => {
                RankInput::Report(GpuReport { model, gpu, exec_at: Some(first), free_at: second })
            }
            RankMessage::UNUSED => {
                RankInput::Report(GpuReport { model, gpu, exec_at: None, free_at: second })
            }
            RankMessage::NEXT | RankMessage::NEXT_SILENT => {
                let silent = self.kind == RankMessage::NEXT_SILENT;
                RankInput::Reserve { model, next: Reservation { at: first, silent, every: second } }
            }
            RankMessage::STANDING => {
                let patience = Nanos(u64::from(gpu.0) | u64::from(self.upper) << 32);
                let standing = BatchBounds { shortest: first, longest: second, patience };
                RankInput::Bounds { model, standing }
            }
            RankMessage::FORETOLD => RankInput::AllReserved,
            _ => RankInput::Withdraw(model),
        }
    }
}

/// From the RankThread to a ModelThread: a [`Grant`], or the wish that its models foretell their
/// batches from now on.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct GrantMessage {
    model: ModelId,
    gpu: GpuId,
    free_at: Nanos,
    until: Nanos,
}

impl GrantMessage {
    /// The model of a wish, which no model has.
    const FORETELL: ModelId = ModelId(u32::MAX);

    /// The wish that the thread's models foretell.
    pub(crate) fn foretell() -> GrantMessage {
        GrantMessage { model: GrantMessage::FORETELL, ..GrantMessage::default() }
    }

    /// Whether it is that wish, and no grant.
    #[inline]
    pub(crate) fn is_foretell(&self) -> bool {
        self.model == GrantMessage::FORETELL
    }
}

impl From<Grant> for GrantMessage {
    fn from(grant: Grant) -> GrantMessage {
        let Grant { model, gpu, free_at, until } = grant;
        GrantMessage { model, gpu, free_at, until }
    }
}

impl From<GrantMessage> for Grant {
    fn from(message: GrantMessage) -> Grant {
        let GrantMessage { model, gpu, free_at, until } = message;
        Grant { model, gpu, free_at, until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_wire() {
        let model = ModelId(7);
        let (first, second) = (Nanos(11), Nanos(13));
        let report = GpuReport { model, gpu: GpuId(3), exec_at: Some(first), free_at: second };
        assert_eq!(RankMessage::report(report).input(), RankInput::Report(report));
        let unused = GpuReport { exec_at: None, ..report };
        assert_eq!(RankMessage::report(unused).input(), RankInput::Report(unused));
        for early in [false, true] {
            let offer = Offer { latest: first, delay: second, early };
            assert_eq!(RankMessage::ready(model, offer).input(), RankInput::Ready { model, offer });
        }
        assert_eq!(RankMessage::withdraw(model).input(), RankInput::Withdraw(model));
        for silent in [false, true] {
            let next = Reservation { at: first, silent, every: second };
            assert_eq!(RankMessage::reservation(model, next).input(), RankInput::Reserve { model, next });
        }
        let standing = BatchBounds { shortest: first, longest: second, patience: Nanos(17 << 33 | 5) };
        assert_eq!(RankMessage::standing(model, standing).input(), RankInput::Bounds { model, standing });
        assert_eq!(RankMessage::foretold().input(), RankInput::AllReserved);
        let grant = Grant { model, gpu: GpuId(3), free_at: first, until: second };
        let message = GrantMessage::from(grant);
        assert!(Grant::from(message) == grant && !message.is_foretell());
        assert!(GrantMessage::foretell().is_foretell());
    }
}
