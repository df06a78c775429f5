//! The messages between ModelThreads and the RankThread: plain data of half a cache line, made from and turned
//! back into the calls of [`RankState`](crate::rank::RankState) and [`ModelQueue`](crate::model::ModelQueue).

use crate::clock::Nanos;
use crate::rank::{GpuReport, Grant, Offer, RankInput};
use bytemuck::{Pod, Zeroable};
use symphony_transport::message::{GpuId, ModelId};

/// From a ModelThread to the RankThread.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RankMessage {
    /// One of the constants of this type.
    kind: u32,
    model: ModelId,
    gpu: GpuId,
    reserved: u32,
    /// `latest` of a candidate, exec_at of a report.
    first: Nanos,
    /// delay of a candidate, free_at of a report.
    second: Nanos,
}

impl RankMessage {
    const WITHDRAW: u32 = 0;
    const READY: u32 = 1;
    const USED: u32 = 2;
    const UNUSED: u32 = 3;
    const EARLY: u32 = 4;

    pub(super) fn ready(model: ModelId, offer: Offer) -> RankMessage {
        RankMessage {
            kind: if offer.early { RankMessage::EARLY } else { RankMessage::READY },
            model,
            first: offer.latest,
            second: offer.delay,
            ..RankMessage::default()
        }
    }

    pub(super) fn withdraw(model: ModelId) -> RankMessage {
        RankMessage { kind: RankMessage::WITHDRAW, model, ..RankMessage::default() }
    }

    pub(super) fn report(report: GpuReport) -> RankMessage {
        RankMessage {
            kind: if report.exec_at.is_some() { RankMessage::USED } else { RankMessage::UNUSED },
            model: report.model,
            gpu: report.gpu,
            reserved: 0,
            first: report.exec_at.unwrap_or(Nanos::ZERO),
            second: report.free_at,
        }
    }

    /// The model that it is about.
    pub(super) fn model(self) -> ModelId {
        self.model
    }

    /// What it tells the matching.
    pub(super) fn input(self) -> RankInput {
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
            _ => RankInput::Withdraw(model),
        }
    }
}

/// From the RankThread to a ModelThread: a [`Grant`].
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct GrantMessage {
    model: ModelId,
    gpu: GpuId,
    free_at: Nanos,
}

impl From<Grant> for GrantMessage {
    fn from(grant: Grant) -> GrantMessage {
        GrantMessage { model: grant.model, gpu: grant.gpu, free_at: grant.free_at }
    }
}

impl From<GrantMessage> for Grant {
    fn from(message: GrantMessage) -> Grant {
        Grant { model: message.model, gpu: message.gpu, free_at: message.free_at, until: Nanos::MAX }
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
    }
}
