//! An RDMA device with its protection domain, and the port that connections use. Opened once by a
//! process; whatever uses it owns a share of it, so it is closed last.

use super::library::{Verbs, verbs};
use ibverbs_sys as sys;
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// An error that keeps RDMA from being used, in words.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RdmaError {
    /// The library is not installed, or can't be used.
    #[error(
        "RDMA needs libibverbs, which can't be opened ({0}): install it (Debian: libibverbs1, ibverbs-providers)"
    )]
    Library(String),
    /// A host without a device.
    #[error(
        "this host has no RDMA device: load its driver (`rdma link` lists devices), or let the container see \
         /dev/infiniband"
    )]
    NoDevice,
    /// The device of this name is not there.
    #[error("this host has no RDMA device \"{wanted}\"; it has {there}")]
    OtherDevice {
        /// The name that was asked for.
        wanted: String,
        /// The names that there are.
        there: String,
    },
    /// A device without a port that is up.
    #[error(
        "no port of the RDMA device {0} is active: connect its cable, or give its network interface an address"
    )]
    NoPort(String),
    /// The limit on locked memory is too low for what is registered.
    #[error(
        "{bytes} bytes can't be locked for the RDMA device: raise `ulimit -l` or LimitMEMLOCK= of the service, or \
         lower [memory] slab_mb"
    )]
    Memlock {
        /// Bytes that were to be registered.
        bytes: usize,
    },
    /// A call failed.
    #[error("the RDMA device can't {what}: {why}")]
    Call {
        /// What it was to do.
        what: &'static str,
        /// The system's reason.
        why: String,
    },
}

impl RdmaError {
    /// Makes the error of a call that has left its reason in `errno`.
    pub(super) fn last(what: &'static str) -> RdmaError {
        RdmaError::Call { what, why: io::Error::last_os_error().to_string() }
    }

    /// Makes the error of a call that has returned its reason.
    pub(super) fn returned(what: &'static str, code: i32) -> RdmaError {
        RdmaError::Call { what, why: io::Error::from_raw_os_error(code).to_string() }
    }
}

/// A device that was opened. Clones share it.
#[derive(Clone)]
pub struct RdmaDevice {
    pub(super) opened: Arc<OpenedDevice>,
}

/// The device, until the last share of it is dropped.
pub(super) struct OpenedDevice {
    pub(super) verbs: &'static Verbs,
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) domain: NonNull<sys::ibv_pd>,
    name: String,
    pub(super) port: Port,
    /// The READs that a connection may have under way, and those that it answers at a time.
    pub(super) most_reads: [u8; 2],
}

/// The port that connections use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    /// The number of the global identifier, and itself in the order of its bytes.
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// The code of the most bytes of a packet.
    pub(super) mtu: sys::ibv_mtu,
}

// SAFETY: the library's calls on a context and a protection domain may be made by any thread, also
// by several at once.
unsafe impl Send for OpenedDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenedDevice {}

impl Drop for OpenedDevice {
    fn drop(&mut self) {
        // SAFETY: all that was made of them owns a share of this, and is gone.
        unsafe {
            (self.verbs.ibv_dealloc_pd)(self.domain.as_ptr());
            (self.verbs.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// The list of devices, until it is dropped.
struct DeviceList {
    verbs: &'static Verbs,
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new() -> Result<DeviceList, RdmaError> {
        let verbs = verbs().map_err(RdmaError::Library)?;
        let mut count = 0;
        // SAFETY: `count` is written to.
        let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
        // ENOSYS, where the kernel has no RDMA at all, and other errors mean the same to a user.
        let list = NonNull::new(list).ok_or(RdmaError::NoDevice)?;
        Ok(DeviceList { verbs, list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Returns the devices with their names.
    fn devices(&self) -> Vec<(NonNull<sys::ibv_device>, String)> {
        // SAFETY: the library's list has so many entries.
        let devices = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) };
        let named = |device: NonNull<sys::ibv_device>| {
            // SAFETY: a device of the list, which is not freed yet; its name is a string inside it.
            let name = unsafe { CStr::from_ptr((self.verbs.ibv_get_device_name)(device.as_ptr())) };
            (device, name.to_string_lossy().into_owned())
        };
        devices.iter().filter_map(|device| NonNull::new(*device)).map(named).collect()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`; devices that were opened stay.
        unsafe { (self.verbs.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

impl RdmaDevice {
    /// Opens the device of this name, or else the first that has an active port.
    ///
    /// # Errors
    ///
    /// [`RdmaError`], in words: there is no library, no device, or no port that is active.
    pub fn open(name: Option<&str>) -> Result<RdmaDevice, RdmaError> {
        let list = DeviceList::new()?;
        let devices = list.devices();
        if devices.is_empty() {
            return Err(RdmaError::NoDevice);
        }
        let wanted = devices.iter().filter(|(_, of)| name.is_none_or(|name| name == of));
        let mut failed = None;
        for (device, of) in wanted {
            match open(list.verbs, *device, of) {
                Ok(opened) => return Ok(RdmaDevice { opened: Arc::new(opened) }),
                Err(error) => failed = Some(error),
            }
        }
        let names: Vec<&str> = devices.iter().map(|(_, of)| of.as_str()).collect();
        let (wanted, there) = (name.unwrap_or_default().to_owned(), names.join(", "));
        Err(failed.unwrap_or(RdmaError::OtherDevice { wanted, there }))
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.opened.name
    }
}

fn open(
    verbs: &'static Verbs,
    device: NonNull<sys::ibv_device>,
    name: &str,
) -> Result<OpenedDevice, RdmaError> {
    // SAFETY: a device of a list that is not freed yet.
    let context = NonNull::new(unsafe { (verbs.ibv_open_device)(device.as_ptr()) });
    let context = context.ok_or_else(|| RdmaError::last("be opened"))?;
    // SAFETY: the context is open.
    let domain = NonNull::new(unsafe { (verbs.ibv_alloc_pd)(context.as_ptr()) });
    let Some(domain) = domain else {
        let error = RdmaError::last("give a protection domain");
        // SAFETY: it was opened above, and nothing was made of it.
        unsafe { (verbs.ibv_close_device)(context.as_ptr()) };
        return Err(error);
    };
    let port = Port { number: 0, lid: 0, gid_index: 0, gid: [0; 16], mtu: sys::IBV_MTU_1024 };
    let name = name.to_owned();
    // Dropped, it closes what was opened.
    let mut opened = OpenedDevice { verbs, context, domain, name, port, most_reads: [1; 2] };
    let mut facts = sys::ibv_device_attr::default();
    // SAFETY: the context is open; `facts` is written to.
    let code = unsafe { (verbs.ibv_query_device)(context.as_ptr(), &mut facts) };
    if code != 0 {
        return Err(RdmaError::returned("be asked for its limits", code));
    }
    let reads = |most: i32| most.clamp(1, 255) as u8;
    opened.most_reads = [reads(facts.max_qp_init_rd_atom), reads(facts.max_qp_rd_atom)];
    let port = (1..=facts.phys_port_cnt).find_map(|number| active_port(&opened, number));
    opened.port = port.ok_or_else(|| RdmaError::NoPort(opened.name.clone()))?;
    Ok(opened)
}

/// Returns a port, if it is active and has an identifier to be reached by.
fn active_port(device: &OpenedDevice, number: u8) -> Option<Port> {
    let OpenedDevice { verbs, context, name, .. } = device;
    let mut facts = sys::ibv_port_attr::default();
    // SAFETY: the context is open; `facts` is written to.
    let code = unsafe { (verbs.ibv_query_port)(context.as_ptr(), number, &mut facts) };
    if code != 0 || facts.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
        return None;
    }
    let gid_of = |index: u8| {
        let mut gid = sys::ibv_gid::default();
        // SAFETY: as above.
        let code = unsafe { (verbs.ibv_query_gid)(context.as_ptr(), number, index.into(), &mut gid) };
        // SAFETY: all fields of the union are its sixteen bytes.
        let raw = unsafe { gid.raw };
        (code == 0 && raw != [0; 16]).then_some((index, raw))
    };
    let gids = (0..facts.gid_tbl_len.clamp(0, 255) as u8).filter_map(gid_of);
    // On Ethernet: RoCE v2, which is routed, and of these the address of IPv4.
    let rank = |(index, gid): &(u8, [u8; 16])| {
        let path = format!("/sys/class/infiniband/{name}/ports/{number}/gid_attrs/types/{index}");
        let is_v2 = std::fs::read_to_string(Path::new(&path)).is_ok_and(|text| text.trim() == "RoCE v2");
        (is_v2, gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]), u8::MAX - index)
    };
    let (gid_index, gid) = gids.max_by_key(rank).unwrap_or_default();
    let is_reachable = gid != [0; 16] || facts.lid != 0;
    is_reachable.then_some(Port { number, lid: facts.lid, gid_index, gid, mtu: facts.active_mtu })
}
