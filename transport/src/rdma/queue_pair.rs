//! A reliable connection: a pair of queues, and the queue in which what was posted to it completes.
//! It moves what it is told to; which memory that may be, its owner vouches for.

use super::device::{OpenedDevice, RdmaDevice, RdmaError};
use crate::wire::RdmaOffer;
use ibverbs_sys as sys;
use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The completions that one poll takes.
pub(super) const COMPLETIONS: usize = 32;

/// The time for which the device waits for an acknowledgement, as a power of two of 4.096 us: 67
/// ms. It sends again so many times.
const ACKNOWLEDGED_WITHIN: u8 = 14;
const SENT_AGAIN: u8 = 7;

/// The code of the time after which a peer without a receive is tried again: 0.64 ms; and how
/// often: 7 is for ever, which the owner's time-out ends.
const NOT_READY: u8 = 12;
const TRIED_AGAIN: u8 = 7;

/// The hops of a packet, at most.
const HOPS: u8 = 64;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    /// Reads from the peer's memory, once all reads before have ended if `fenced`.
    Read { from: RemoteBytes, fenced: bool },
    /// Writes to the peer's memory.
    Write { to: RemoteBytes },
    /// Sends to the peer's next receive.
    Send,
}

/// An address of the peer, and the key that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RemoteBytes {
    pub(super) address: u64,
    pub(super) key: u32,
}

/// Memory of this host that is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LocalBytes {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) key: u32,
}

/// An operation to post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Posting {
    pub(super) verb: Verb,
    pub(super) local: LocalBytes,
    /// The number by which its completion is told of, if it is.
    pub(super) told_as: Option<u64>,
}

/// What has completed: its number, and the bytes that came where it was a receive, or the device's
/// words if it has failed.
pub(super) struct CompletedPosting {
    pub(super) number: u64,
    pub(super) outcome: Result<usize, String>,
}

/// The queue of completions of a connection.
struct CompletionQueue {
    queue: NonNull<sys::ibv_cq>,
    device: Arc<OpenedDevice>,
}

impl CompletionQueue {
    fn new(device: &Arc<OpenedDevice>, entries: usize) -> Result<CompletionQueue, RdmaError> {
        let OpenedDevice { verbs, context, .. } = &**device;
        // SAFETY: the context is open, and there is no channel of completions.
        let queue =
            unsafe { (verbs.ibv_create_cq)(context.as_ptr(), entries as i32, null_mut(), null_mut(), 0) };
        let queue = NonNull::new(queue).ok_or_else(|| RdmaError::last("give a completion queue"))?;
        Ok(CompletionQueue { queue, device: Arc::clone(device) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the pair of queues that used it is dropped before.
        unsafe { (self.device.verbs.ibv_destroy_cq)(self.queue.as_ptr()) };
    }
}

/// A pair of queues. Once it is dropped, the device touches no memory in its name any more.
pub(super) struct QueuePair {
    pair: NonNull<sys::ibv_qp>,
    completions: CompletionQueue,
    /// The lists that are handed to the device, kept for the next.
    requests: Vec<sys::ibv_send_wr>,
    pieces: Vec<sys::ibv_sge>,
}

// SAFETY: it is used by the thread that owns it; the library lets any thread be that.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Makes a pair that can be posted `receives` and `sends` at a time, and whose receives can be
    /// posted at once. `is_reached` says if the peer reads and writes this host's memory.
    pub(super) fn new(
        device: &RdmaDevice,
        [sends, receives]: [usize; 2],
        is_reached: bool,
    ) -> Result<QueuePair, RdmaError> {
        let OpenedDevice { verbs, domain, .. } = &*device.opened;
        let completions = CompletionQueue::new(&device.opened, sends + receives)?;
        let (send_cq, recv_cq) = (completions.queue.as_ptr(), completions.queue.as_ptr());
        let mut attributes = sys::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq,
            recv_cq,
            srq: null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: sends as u32,
                max_recv_wr: receives as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue of completions are there.
        let pair = unsafe { (verbs.ibv_create_qp)(domain.as_ptr(), &mut attributes) };
        let pair = NonNull::new(pair).ok_or_else(|| RdmaError::last("give a pair of queues"))?;
        let pair = QueuePair { pair, completions, requests: Vec::new(), pieces: Vec::new() };
        let flags =
            sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
            port_num: device.opened.port.number,
            qp_access_flags: if is_reached { flags.0 } else { 0 },
            ..Default::default()
        };
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | sys::ibv_qp_attr_mask::IBV_QP_PORT
            | sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        pair.modify("initialise a pair of queues", &mut attributes, mask)?;
        Ok(pair)
    }

    fn device(&self) -> &OpenedDevice {
        &self.completions.device
    }

    fn modify(
        &self,
        what: &'static str,
        attributes: &mut sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<(), RdmaError> {
        // SAFETY: the pair is there, and the attributes of the mask are set.
        let code =
            unsafe { (self.device().verbs.ibv_modify_qp)(self.pair.as_ptr(), attributes, mask.0 as i32) };
        if code == 0 { Ok(()) } else { Err(RdmaError::returned(what, code)) }
    }

    /// Returns the pair's number.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: the pair is there until this is dropped.
        unsafe { self.pair.as_ref().qp_num }
    }

    /// Connects to the peer's pair: from here on this one receives, and sends, its first packet
    /// with this number.
    pub(super) fn connect(&self, peer: &RdmaOffer, packet: u32) -> Result<(), RdmaError> {
        let OpenedDevice { port, most_reads: [reads, answers], .. } = self.device();
        let their_mtu = peer.mtu.ilog2() - 7;
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_RTR,
            // The codes are in the order of the bytes.
            path_mtu: port.mtu.min(their_mtu),
            dest_qp_num: peer.queue_pair,
            rq_psn: peer.packet,
            max_dest_rd_atomic: *answers,
            min_rnr_timer: NOT_READY,
            ..Default::default()
        };
        let address = &mut attributes.ah_attr;
        (address.dlid, address.port_num) = (peer.lid as u16, port.number);
        if peer.gid != [0; 16] {
            address.is_global = 1;
            address.grh.dgid = sys::ibv_gid { raw: peer.gid };
            (address.grh.sgid_index, address.grh.hop_limit) = (port.gid_index, HOPS);
        }
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_AV
            | sys::ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | sys::ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | sys::ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | sys::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("reach the peer's pair of queues", &mut attributes, mask)?;
        let mut attributes = sys::ibv_qp_attr {
            qp_state: sys::ibv_qp_state::IBV_QPS_RTS,
            timeout: ACKNOWLEDGED_WITHIN,
            retry_cnt: SENT_AGAIN,
            rnr_retry: TRIED_AGAIN,
            sq_psn: packet,
            max_rd_atomic: (*reads).min(peer.reads as u8),
            ..Default::default()
        };
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | sys::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | sys::ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("start to send", &mut attributes, mask)
    }

    /// Posts operations as one list, so that the device is told of them once. Each completes after
    /// all before it.
    ///
    /// # Safety
    ///
    /// Until the last of them has completed, or this pair is dropped, the local memory is there and
    /// nobody else has a reference to it, but to what is only sent or written to the peer.
    pub(super) unsafe fn post(&mut self, postings: &[Posting]) -> Result<(), RdmaError> {
        let QueuePair { requests, pieces, pair, .. } = self;
        requests.clear();
        pieces.clear();
        for Posting { local, .. } in postings {
            pieces.push(sys::ibv_sge { addr: local.address, length: local.bytes, lkey: local.key });
        }
        for (posting, piece) in postings.iter().zip(&mut *pieces) {
            let mut request = sys::ibv_send_wr { sg_list: piece, num_sge: 1, ..Default::default() };
            let mut flags = sys::ibv_send_flags(0);
            if let Some(number) = posting.told_as {
                request.wr_id = number;
                flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED;
            }
            let remote = match posting.verb {
                Verb::Read { from, fenced } => {
                    request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ;
                    if fenced {
                        flags |= sys::ibv_send_flags::IBV_SEND_FENCE;
                    }
                    Some(from)
                }
                Verb::Write { to } => {
                    request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                    Some(to)
                }
                Verb::Send => {
                    request.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
                    None
                }
            };
            if let Some(RemoteBytes { address, key }) = remote {
                request.wr.rdma.remote_addr = address;
                request.wr.rdma.rkey = key;
            }
            request.send_flags = flags.0;
            requests.push(request);
        }
        // Linked only now, that the list does not move any more.
        let first = requests.as_mut_ptr();
        for at in 1..requests.len() {
            // SAFETY: within the list, whose elements' addresses are taken from one pointer.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        if requests.is_empty() {
            return Ok(());
        }
        let mut refused = null_mut();
        // SAFETY: the pair and its context are there; the list is linked, and copied by the device;
        // the caller vouches for the memory that it names.
        let code = unsafe {
            let context = pair.as_ref().context;
            match (*context).ops.post_send {
                Some(post) => post(pair.as_ptr(), first, &mut refused),
                None => libc::ENOSYS,
            }
        };
        if code == 0 { Ok(()) } else { Err(RdmaError::returned("take an operation", code)) }
    }

    /// Posts a receive, whose completion is told of by this number.
    ///
    /// # Safety
    ///
    /// As [`QueuePair::post`].
    pub(super) unsafe fn post_receive(&mut self, number: u64, into: LocalBytes) -> Result<(), RdmaError> {
        let mut piece = sys::ibv_sge { addr: into.address, length: into.bytes, lkey: into.key };
        let mut request =
            sys::ibv_recv_wr { wr_id: number, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: as in `post`.
        let code = unsafe {
            let context = self.pair.as_ref().context;
            match (*context).ops.post_recv {
                Some(post) => post(self.pair.as_ptr(), &mut request, &mut refused),
                None => libc::ENOSYS,
            }
        };
        if code == 0 { Ok(()) } else { Err(RdmaError::returned("take a receive", code)) }
    }

    /// Adds what has completed to `completed`, in order: at most [`COMPLETIONS`].
    pub(super) fn poll(&mut self, completed: &mut Vec<CompletedPosting>) -> Result<(), RdmaError> {
        let OpenedDevice { verbs, context, .. } = self.device();
        let mut entries = [sys::ibv_wc::default(); COMPLETIONS];
        // SAFETY: the queue and its context are there; so many entries are written to at most.
        let count = unsafe {
            match context.as_ref().ops.poll_cq {
                Some(poll) => poll(self.completions.queue.as_ptr(), COMPLETIONS as i32, entries.as_mut_ptr()),
                None => -libc::ENOSYS,
            }
        };
        let count = usize::try_from(count).map_err(|_| RdmaError::returned("be polled", -count))?;
        for entry in &entries[..count] {
            let outcome = match entry.error() {
                None => Ok(entry.len()),
                Some((status, _)) => {
                    // SAFETY: the library has a string for each code, which is never freed.
                    let words = unsafe { CStr::from_ptr((verbs.ibv_wc_status_str)(status)) };
                    Err(words.to_string_lossy().into_owned())
                }
            };
            completed.push(CompletedPosting { number: entry.wr_id(), outcome });
        }
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let OpenedDevice { verbs, .. } = self.device();
        // SAFETY: the pair is there, and nothing uses it after this.
        let code = unsafe { (verbs.ibv_destroy_qp)(self.pair.as_ptr()) };
        if code != 0 {
            // The device may go on to write to memory that is about to be used again.
            eprintln!("RDMA: a pair of queues can't be destroyed (error {code}); the process ends");
            std::process::abort();
        }
    }
}
