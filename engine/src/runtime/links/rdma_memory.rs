//! The RDMA device of a host, behind what the hosts at the ends of links see of it. Without the
//! cargo feature `rdma` there is none, and a configuration that asks for one is refused.

use crate::config::{LinkConfig, TensorTransport};
use crate::runtime::hosts::DirectMemory;
use symphony_transport::slab::SlabView;

/// What a host does with its slots.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotUse {
    /// Lets backends read them, and write outputs of at most so many bytes beside them.
    Serves {
        /// The most bytes of a row's outputs.
        #[cfg_attr(not(feature = "rdma"), expect(dead_code, reason = "only a device needs it"))]
        outputs: usize,
    },
    /// Reads into them, and writes out of them.
    Fetches,
}

/// What opens a device: [`open_memory`], or a simulation in its place.
pub(crate) type OpenMemory = Box<
    dyn Fn(&LinkConfig, SlotUse, &[SlabView], usize) -> Result<Vec<Option<Box<dyn DirectMemory>>>, String>
        + Send
        + Sync,
>;

/// Opens the device that CONFIG asks for, if any, and registers a host's slots. Returns what each
/// of `links` links gets of it.
///
/// Errors: a sentence: there is no library, device or port, memory can't be locked, or the program
/// was built without the feature.
pub(crate) fn open_memory(
    config: &LinkConfig,
    slots: SlotUse,
    slabs: &[SlabView],
    links: usize,
) -> Result<Vec<Option<Box<dyn DirectMemory>>>, String> {
    match config.tensors {
        TensorTransport::Tcp => Ok((0..links).map(|_| None).collect()),
        TensorTransport::Rdma => device::open(config, slots, slabs, links),
    }
}

/// Looks whether the device that CONFIG asks for can be used, and returns its name.
///
/// Errors: a sentence: there is no library, device or port, or the program was built without the
/// feature.
pub fn find_rdma_device(config: &LinkConfig) -> Result<String, String> {
    device::find(config)
}

#[cfg(not(feature = "rdma"))]
mod device {
    use super::*;

    const LACKING: &str = "this program was built without RDMA: build it with `--features rdma`, or set \
                           tensors = \"tcp\" in [links] on all hosts";

    pub(super) fn find(_: &LinkConfig) -> Result<String, String> {
        Err(LACKING.to_owned())
    }

    pub(super) fn open(
        _: &LinkConfig,
        _: SlotUse,
        _: &[SlabView],
        _: usize,
    ) -> Result<Vec<Option<Box<dyn DirectMemory>>>, String> {
        Err(LACKING.to_owned())
    }
}

#[cfg(feature = "rdma")]
mod device {
    use super::*;
    use crate::runtime::hosts::DirectEnd;
    use std::ops::Range;
    use symphony_transport::Nanos;
    use symphony_transport::message::Response;
    use symphony_transport::rdma::{RdmaCounters, RdmaDevice, RdmaEnd, RdmaEvent, RdmaSide, RegisteredSlab};
    use symphony_transport::slab::{SlotClaim, SlotId};
    use symphony_transport::wire::{ExportedClass, LandedAnswer, RdmaOffer};

    /// The rows whose outputs a landing has room for, and the bytes of one, within which it is.
    const LANDING_ROWS: usize = 64;
    const LANDING_BYTES: Range<usize> = 1 << 20..64 << 20;

    /// Bytes to which places in a landing are rounded up.
    const PLACE: usize = 64;

    /// The device with the slots that are registered. Links share it.
    #[derive(Clone)]
    struct RdmaMemory {
        device: RdmaDevice,
        slabs: Vec<RegisteredSlab>,
        side: RdmaSide,
    }

    fn find_device(config: &LinkConfig) -> Result<RdmaDevice, String> {
        RdmaDevice::open(config.rdma_device.as_deref()).map_err(|error| error.to_string())
    }

    pub(super) fn find(config: &LinkConfig) -> Result<String, String> {
        find_device(config).map(|device| device.name().to_owned())
    }

    pub(super) fn open(
        config: &LinkConfig,
        slots: SlotUse,
        slabs: &[SlabView],
        links: usize,
    ) -> Result<Vec<Option<Box<dyn DirectMemory>>>, String> {
        let device = find_device(config)?;
        let register = |view| match slots {
            SlotUse::Serves { .. } => RegisteredSlab::for_readers(&device, view),
            SlotUse::Fetches => RegisteredSlab::for_own_use(&device, view),
        };
        let registered: Result<Vec<RegisteredSlab>, _> = slabs.iter().map(register).collect();
        let slabs = registered.map_err(|error| error.to_string())?;
        let locked = slabs.iter().map(RegisteredSlab::bytes).sum::<usize>() >> 20;
        tracing::info!(
            "RDMA device {}: {locked} MiB of slots are registered and locked; whoever reaches the device can \
             read them, so its network has to be trusted",
            device.name()
        );
        let side = match slots {
            SlotUse::Serves { outputs } => {
                let rows = (LANDING_ROWS * outputs).clamp(LANDING_BYTES.start, LANDING_BYTES.end);
                RdmaSide::Frontend { landing: rows.max(outputs.next_multiple_of(PLACE)) as u32 }
            }
            SlotUse::Fetches => RdmaSide::Backend,
        };
        let memory = RdmaMemory { device, slabs, side };
        Ok((0..links).map(|_| Some(Box::new(memory.clone()) as Box<dyn DirectMemory>)).collect())
    }

    impl DirectMemory for RdmaMemory {
        fn open(&mut self, now: Nanos) -> Result<Box<dyn DirectEnd>, String> {
            let packet = rand::random();
            let end = RdmaEnd::new(&self.device, self.slabs.clone(), self.side, packet, now);
            end.map(|end| Box::new(end) as Box<dyn DirectEnd>).map_err(|error| error.to_string())
        }
    }

    impl DirectEnd for RdmaEnd {
        fn offer(&self) -> (RdmaOffer, Vec<ExportedClass>) {
            (RdmaEnd::offer(self), self.exported())
        }

        fn connect(&mut self, offer: &RdmaOffer, exported: &[ExportedClass]) -> Result<(), String> {
            RdmaEnd::connect(self, offer, exported.iter().copied()).map_err(|fault| fault.to_string())
        }

        fn read(&mut self, number: u64, from: SlotId, to: SlotClaim, bytes: usize) {
            RdmaEnd::read(self, number, from, to, bytes);
        }

        fn answer(&mut self, number: u64, outputs: SlotClaim, range: Range<usize>, response: Response) {
            RdmaEnd::answer(self, number, outputs, range, response);
        }

        fn poll(&mut self, now: Nanos) -> Result<(), String> {
            RdmaEnd::poll(self, now).map_err(|fault| fault.to_string())
        }

        fn take_event(&mut self) -> Option<RdmaEvent> {
            RdmaEnd::take_event(self)
        }

        fn copy_landed(&self, answer: &LandedAnswer, to: &mut [u8]) {
            RdmaEnd::copy_landed(self, answer, to);
        }

        fn give_back(&mut self) {
            RdmaEnd::give_back(self);
        }

        fn counters(&self) -> RdmaCounters {
            RdmaEnd::counters(self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_that_can_not_be_had_is_refused_with_a_sentence_and_tcp_needs_none() {
        let config = |tensors| LinkConfig {
            tensors,
            rdma_device: Some("no-such-device".to_owned()),
            ..LinkConfig::default()
        };
        let open = |tensors| open_memory(&config(tensors), SlotUse::Fetches, &[], 2);
        assert!(open(TensorTransport::Tcp).is_ok_and(|links| links.len() == 2 && links[0].is_none()));
        let sentence = open(TensorTransport::Rdma).err().unwrap();
        assert!(sentence.contains("RDMA"), "{sentence}");
    }
}
