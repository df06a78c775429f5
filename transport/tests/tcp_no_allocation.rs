//! Sockets in clear allocate nothing from frame to frame, with each driver: counted by an allocator
//! of this test's own, on the test's thread only.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;
use symphony_transport::tcp::{DriverChoice, SocketEvent, SocketId, SocketOptions, Sockets};

thread_local! {
    /// The allocations and releases of this thread.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count() {
        let _ = COUNTED.try_with(|counted| counted.set(counted.get() + 1));
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Echoes so many frames between two ends of one thread.
fn echo(sockets: &mut Sockets, ids: [SocketId; 2], frames: usize) {
    let began = Instant::now();
    let (mut sent, mut came) = (0, 0);
    while came < frames * 64 {
        if sent < frames && sockets.send(ids[0], &[7; 64]).is_ok() {
            sent += 1;
        }
        sockets.flush();
        while let Some(event) = sockets.next(Nanos(1)) {
            let SocketEvent::Received { socket, bytes } = event else { panic!("{event:?}") };
            assert_eq!(socket, ids[1]);
            came += bytes.len();
        }
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn frames_in_clear_take_no_memory() {
    for driver in [DriverChoice::Poll, DriverChoice::Uring] {
        let options = SocketOptions { driver, sockets: 4, ..SocketOptions::default() };
        let Ok(mut sockets) = Sockets::new(options) else {
            println!("not run: this machine has no io_uring");
            continue;
        };
        let listener = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = sockets.address(listener);
        let dialled = sockets.connect(Nanos(1), address).unwrap();
        let (mut is_up, mut other) = (false, None);
        while !is_up || other.is_none() {
            while let Some(event) = sockets.next(Nanos(1)) {
                match event {
                    SocketEvent::Connected { .. } => is_up = true,
                    SocketEvent::Accepted { socket, .. } => other = Some(socket),
                    event => panic!("{event:?}"),
                }
            }
            sockets.flush();
        }
        let ids = [dialled, other.unwrap()];
        echo(&mut sockets, ids, 100);
        let before = COUNTED.get();
        echo(&mut sockets, ids, 10_000);
        assert_eq!(COUNTED.get() - before, 0, "{driver:?}");
    }
}
