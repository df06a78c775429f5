//! Figure 12 by RDMA: a backend reads objects out of the slots of several frontends by one-sided
//! READ, over a device of this machine. The frontends take no part in it.

use crate::{FETCHES, FRONTENDS, OBJECT_BYTES, OBJECTS, shares};
use std::path::Path;
use std::time::Instant;
use symphony_transport::Nanos;
use symphony_transport::rdma::{RdmaDevice, RdmaEnd, RdmaEvent, RdmaSide, RegisteredSlab};
use symphony_transport::slab::{Slab, SlabOwner, SlabPages, SlabView, SlotClass, SlotId};

/// Fetches over a device that the kernel emulates: they show that it works, and no more.
const EMULATED_FETCHES: usize = 2;

/// A frontend with its objects, and the backend's connection to it.
struct Frontend {
    /// Kept, since the backend's device reads them.
    _slab: SlabOwner,
    _end: RdmaEnd,
    objects: Vec<SlotId>,
    backend: RdmaEnd,
}

fn slab(number: u16, count: usize) -> (SlabOwner, SlabView) {
    let class = SlotClass { slot_bytes: OBJECT_BYTES, count };
    Slab::on_pages(&[class], number, SlabPages::HugeIfReserved, 0).expect("there is memory for some objects")
}

impl Frontend {
    fn new(device: &RdmaDevice, number: u16, local: &RegisteredSlab) -> Frontend {
        let (mut owner, view) = slab(number, OBJECTS);
        let objects: Vec<SlotId> = (0..OBJECTS).filter_map(|_| owner.alloc(OBJECT_BYTES)).collect();
        for &object in &objects {
            view.claim(object).expect("nobody else has it").fill(number as u8);
        }
        let readable = vec![RegisteredSlab::for_readers(device, &view).expect("memory can be locked")];
        let side = RdmaSide::Frontend { landing: 4_096 };
        let mut end = RdmaEnd::new(device, readable, side, 1, Nanos::ZERO).expect("the device has room");
        let mut backend = RdmaEnd::new(device, vec![local.clone()], RdmaSide::Backend, 2, Nanos::ZERO)
            .expect("it has more");
        end.connect(&backend.offer(), backend.exported()).expect("the device reaches itself");
        backend.connect(&end.offer(), end.exported()).expect("the device reaches itself");
        Frontend { _slab: owner, _end: end, objects, backend }
    }
}

/// Returns true if the kernel emulates the device by Ethernet.
fn is_emulated(device: &RdmaDevice) -> bool {
    Path::new("/sys/class/infiniband").join(device.name()).join("parent").exists()
}

/// Measures fetches, and returns fields of JSON.
///
/// # Errors
///
/// A sentence: there is no device, or an operation has failed.
pub(crate) fn incast() -> Result<String, String> {
    let device = RdmaDevice::open(None).map_err(|error| error.to_string())?;
    let (mut owner, view) = slab(0, OBJECTS * FRONTENDS);
    let local: Vec<SlotId> = (0..OBJECTS * FRONTENDS).filter_map(|_| owner.alloc(OBJECT_BYTES)).collect();
    let registered = RegisteredSlab::for_own_use(&device, &view).map_err(|error| error.to_string())?;
    let mut frontends: Vec<Frontend> =
        (1..=FRONTENDS as u16).map(|number| Frontend::new(&device, number, &registered)).collect();
    let (name, is_emulated) = (device.name(), is_emulated(&device));
    let fetches = if is_emulated { EMULATED_FETCHES } else { FETCHES };
    let opened = Instant::now();
    let mut times = Vec::new();
    for _ in 0..fetches {
        for (at, Frontend { objects, backend, .. }) in frontends.iter_mut().enumerate() {
            for (number, (object, to)) in objects.iter().zip(&local[at * OBJECTS..]).enumerate() {
                let claim = view.claim_owned(*to).ok_or("a read of the fetch before has not ended")?;
                backend.read(number as u64, *object, claim, OBJECT_BYTES);
            }
        }
        let began = Instant::now();
        let mut came = 0;
        while came < local.len() {
            for Frontend { backend, .. } in &mut frontends {
                let now = Nanos(opened.elapsed().as_nanos() as u64);
                backend.poll(now).map_err(|fault| fault.to_string())?;
                while let Some(event) = backend.take_event() {
                    if !matches!(event, RdmaEvent::Read { is_current: true, .. }) {
                        return Err(format!("an object was not read: {event:?}"));
                    }
                    came += 1;
                    times.push(began.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
    }
    for (at, slot) in local.iter().enumerate() {
        let bytes = view.claim(*slot).ok_or("a read has not ended")?;
        let right = (1 + at / OBJECTS) as u8;
        if bytes[..OBJECT_BYTES].iter().any(|byte| *byte != right) {
            return Err(format!("object {at} has other bytes than its frontend's"));
        }
    }
    if is_emulated {
        let count = times.len();
        return Ok(format!(
            "\"rdma\": \"not measured: {name} is soft-RoCE, by which all {count} objects came whole\""
        ));
    }
    let times = shares(&mut times);
    Ok(format!("\"fetches\": {FETCHES}, \"rdma_device\": \"{name}\", \"rdma_ms\": {times}"))
}
