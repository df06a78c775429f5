//! Bare io_uring, what `links` compares a link with: one connection, one buffer each way, one
//! operation at a time, nothing looked at.

use io_uring::{IoUring, opcode, types::Fd};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// A connection and its ring.
pub(crate) struct BareSocket {
    ring: IoUring,
    stream: TcpStream,
    buffer: Box<[u8]>,
}

impl BareSocket {
    pub(crate) fn new(stream: TcpStream, bytes: usize) -> BareSocket {
        stream.set_nodelay(true).unwrap();
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).unwrap();
        BareSocket { ring, stream, buffer: vec![0; bytes].into_boxed_slice() }
    }

    /// Waits for bytes; zero at the end.
    pub(crate) fn receive(&mut self) -> usize {
        let (address, length) = (self.buffer.as_mut_ptr(), self.buffer.len() as u32);
        self.run(opcode::Recv::new(Fd(self.stream.as_raw_fd()), address, length).build())
    }

    /// Sends the first bytes of what was received last, and returns how many went.
    pub(crate) fn send(&mut self, bytes: usize) -> usize {
        let bytes = &self.buffer[..bytes];
        let entry = opcode::Send::new(Fd(self.stream.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32);
        self.run(entry.build())
    }

    fn run(&mut self, entry: io_uring::squeue::Entry) -> usize {
        // SAFETY: the buffer and the stream are `self`'s, and the operation ends before this
        // returns.
        unsafe { self.ring.submission().push(&entry).unwrap() };
        self.ring.submit_and_wait(1).unwrap();
        let result = self.ring.completion().next().unwrap().result();
        usize::try_from(result).expect("the connection holds")
    }
}
