//! Memory that a device may reach: the slots of a slab with their states, and buffers of a
//! connection's own. A region owns what keeps its memory alive, and is withdrawn from the device
//! before that is given back.

use super::device::{OpenedDevice, RdmaDevice, RdmaError};
use crate::slab::{STATE_STRIDE, SlabView};
use crate::wire::ExportedClass;
use ibverbs_sys as sys;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a page, on which buffers start.
const PAGE: usize = 4_096;

/// What a device may do with a region, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// The device of this host reads and writes it, for this host.
    Local,
    /// Peers read it.
    PeersRead,
    /// Peers write it.
    PeersWrite,
}

impl Access {
    fn bits(self) -> i32 {
        let bits = match self {
            Access::Local => sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
            Access::PeersRead => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ,
            // The device must be able to write where peers are.
            Access::PeersWrite => {
                sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
        };
        bits.0 as i32
    }
}

/// A registration of memory, which is locked until it is dropped.
struct Registration {
    region: NonNull<sys::ibv_mr>,
    device: Arc<OpenedDevice>,
}

// SAFETY: a region may be withdrawn by any thread; the pointer is used for nothing else.
unsafe impl Send for Registration {}
// SAFETY: a shared reference only reads the keys, which never change.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory.
    ///
    /// # Safety
    ///
    /// The memory is there until the registration is dropped, and the device may read and write it
    /// as `access` says: no reference to it may be relied on meanwhile but as its owner guards.
    unsafe fn new(
        device: &RdmaDevice,
        start: *mut u8,
        bytes: usize,
        access: Access,
    ) -> Result<Registration, RdmaError> {
        let OpenedDevice { verbs, domain, .. } = &*device.opened;
        // SAFETY: the domain is there; the caller vouches for the memory.
        let region = unsafe { (verbs.ibv_reg_mr)(domain.as_ptr(), start.cast(), bytes, access.bits()) };
        let region =
            NonNull::new(region).ok_or_else(|| match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOMEM | libc::EAGAIN) => RdmaError::Memlock { bytes },
                _ => RdmaError::last("register memory"),
            })?;
        Ok(Registration { region, device: Arc::clone(&device.opened) })
    }

    /// Returns the key by which this host's own operations name the region.
    fn local_key(&self) -> u32 {
        // SAFETY: the region is there until this is dropped.
        unsafe { self.region.as_ref().lkey }
    }

    /// Returns the key by which a peer's operations name it.
    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: from `ibv_reg_mr`, and not withdrawn before.
        unsafe { (self.device.verbs.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

/// A class of slots that is registered.
struct RegisteredClass {
    exported: ExportedClass,
    slots: Registration,
    /// Where peers may read: the states.
    _states: Option<Registration>,
}

/// A slab whose slots a device may reach, until it is dropped. Clones share it.
#[derive(Clone)]
pub struct RegisteredSlab {
    classes: Arc<[RegisteredClass]>,
    /// Keeps the memory. Dropped last.
    view: SlabView,
}

impl RegisteredSlab {
    /// Registers a slab for the operations of this host: into slots that it has claimed, and out of
    /// them.
    ///
    /// # Errors
    ///
    /// [`RdmaError`]: mostly that so much memory can't be locked.
    pub fn for_own_use(device: &RdmaDevice, view: &SlabView) -> Result<RegisteredSlab, RdmaError> {
        RegisteredSlab::new(device, view, Access::Local)
    }

    /// Registers a slab for peers that read its slots, and then the states of these.
    ///
    /// # Errors
    ///
    /// As [`RegisteredSlab::for_own_use`].
    pub fn for_readers(device: &RdmaDevice, view: &SlabView) -> Result<RegisteredSlab, RdmaError> {
        RegisteredSlab::new(device, view, Access::PeersRead)
    }

    fn new(device: &RdmaDevice, view: &SlabView, access: Access) -> Result<RegisteredSlab, RdmaError> {
        let mut classes = Vec::new();
        for (of, number) in view.addresses().into_iter().zip(0..) {
            let bytes = of.slot_bytes * of.count;
            // SAFETY: the slots are there while `view` is held. This host's own operations name
            // slots that are claimed; peers only read, and check the state for what they got.
            let slots =
                unsafe { Registration::new(device, with_exposed_provenance_mut(of.slots), bytes, access)? };
            let states = (access == Access::PeersRead)
                // SAFETY: the states are there as long; they are atomics, and only read.
                .then(|| unsafe {
                    let start = with_exposed_provenance_mut(of.states);
                    Registration::new(device, start, of.count * STATE_STRIDE, access)
                })
                .transpose()?;
            let exported = ExportedClass {
                slots: of.slots as u64,
                states: of.states as u64,
                slot_bytes: of.slot_bytes as u32,
                count: of.count as u32,
                frontend: view.frontend().into(),
                number,
                slots_key: slots.remote_key(),
                states_key: states.as_ref().map_or(0, Registration::remote_key),
            };
            classes.push(RegisteredClass { exported, slots, _states: states });
        }
        Ok(RegisteredSlab { classes: classes.into(), view: view.clone() })
    }

    /// Returns the classes as a peer needs them.
    pub fn exported(&self) -> impl Iterator<Item = ExportedClass> {
        self.classes.iter().map(|class| class.exported)
    }

    /// Returns the bytes of slots that are locked.
    pub fn bytes(&self) -> usize {
        self.exported().map(|class| class.slot_bytes as usize * class.count as usize).sum()
    }

    /// Returns the slab.
    pub fn view(&self) -> &SlabView {
        &self.view
    }

    /// Returns the key for the bytes of a slot of this slab.
    pub(super) fn key_of(&self, address: u64) -> Option<u32> {
        let has = |class: &&RegisteredClass| {
            let ExportedClass { slots, slot_bytes, count, .. } = class.exported;
            (slots..slots + u64::from(slot_bytes) * u64::from(count)).contains(&address)
        };
        self.classes.iter().find(has).map(|class| class.slots.local_key())
    }
}

/// Zeroed bytes, freed when this is dropped.
struct OwnedBytes {
    start: NonNull<u8>,
    layout: Layout,
}

impl OwnedBytes {
    fn zeroed(bytes: usize) -> OwnedBytes {
        let layout = Layout::from_size_align(bytes.max(1), PAGE).expect("so few bytes have a layout");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        OwnedBytes { start, layout }
    }
}

impl Drop for OwnedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Bytes of a connection that its device reads and writes. The host's thread copies them in and out
/// and never has a reference to them.
pub(super) struct DeviceBuffer {
    // Dropped first.
    registration: Registration,
    bytes: OwnedBytes,
}

// SAFETY: it owns its bytes, as a Box<[u8]> does.
unsafe impl Send for DeviceBuffer {}

impl DeviceBuffer {
    /// Takes and registers `bytes`, all zero.
    pub(super) fn new(device: &RdmaDevice, bytes: usize, access: Access) -> Result<DeviceBuffer, RdmaError> {
        let bytes = OwnedBytes::zeroed(bytes);
        let (start, length) = (bytes.start.as_ptr(), bytes.layout.size());
        // SAFETY: the memory is freed after the registration is dropped, and is only copied from
        // and to.
        let registration = unsafe { Registration::new(device, start, length, access)? };
        Ok(DeviceBuffer { registration, bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.bytes.start.as_ptr().expose_provenance() as u64
    }

    pub(super) fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    pub(super) fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.layout.size()
    }

    /// Copies bytes out. Of those that the device writes meanwhile, any may be there.
    ///
    /// # Panics
    ///
    /// The range is not within the buffer.
    pub(super) fn read(&self, from: usize, to: &mut [u8]) {
        assert!(self.has(from, to.len()), "a read outside of a device's buffer");
        // Acquire: what the device had written when it completed the operation that told of it.
        fence(Ordering::Acquire);
        // SAFETY: within the buffer; the other memory is borrowed mutably, so it lies elsewhere.
        unsafe { self.bytes.start.as_ptr().add(from).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    ///
    /// The range is not within the buffer.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.has(at, bytes.len()), "a write outside of a device's buffer");
        // SAFETY: within the buffer, of which nobody has a reference.
        unsafe { self.bytes.start.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn has(&self, at: usize, bytes: usize) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.len())
    }
}
