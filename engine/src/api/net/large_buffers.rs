//! Large buffers, which a thread of the process frees: to give 64 MiB back to the system takes
//! milliseconds, and whoever holds the last reference would spend them on an API core. No heap
//! grows for one, they are mappings of their own ([`map_apart`]): glibc's allocator would put them
//! into a heap with small ones otherwise, and give its end back when a small one is freed, on the
//! core.

use bytes::Bytes;
#[cfg(target_env = "gnu")]
use std::sync::Once;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The bytes from which a buffer is large.
pub(in crate::api) const LARGE: usize = 1 << 20;

/// The most buffers that wait to be freed; further ones are freed where they are let go of.
const WAITING: usize = 64;

/// The way to the thread that frees; `None` if the system gave none.
static FREEING: OnceLock<Option<SyncSender<Vec<u8>>>> = OnceLock::new();

/// Bytes that are shared, and handed over to be freed.
struct LargeBuffer(Vec<u8>);

impl AsRef<[u8]> for LargeBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for LargeBuffer {
    fn drop(&mut self) {
        let_go(std::mem::take(&mut self.0));
    }
}

/// Has the allocator map a large buffer apart from all others, from now on, unless a heap has room
/// for it. By default, glibc's allocator gives up to do so for buffers as large as those that it
/// has seen freed.
pub(in crate::api) fn map_apart() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            for (parameter, bytes) in [(libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, 2 * LARGE)] {
                // SAFETY: mallopt takes its own lock, may be called at any time from any thread,
                // and these parameters change only how memory is obtained and given back.
                let accepted = unsafe { libc::mallopt(parameter, bytes as libc::c_int) };
                debug_assert_eq!(accepted, 1, "both are within the limits of glibc");
            }
        });
    }
}

/// Makes bytes shared, without a copy.
pub(in crate::api) fn shared(bytes: Vec<u8>) -> Bytes {
    if bytes.capacity() < LARGE { bytes.into() } else { Bytes::from_owner(LargeBuffer(bytes)) }
}

/// Frees bytes, elsewhere if they are many.
pub(in crate::api) fn let_go(bytes: Vec<u8>) {
    if bytes.capacity() >= LARGE
        && let Some(thread) = FREEING.get_or_init(start)
    {
        // If too many wait, what comes back is freed here.
        let _ = thread.try_send(bytes);
    }
}

#[cold]
fn start() -> Option<SyncSender<Vec<u8>>> {
    let (sender, waiting) = sync_channel(WAITING);
    let thread = std::thread::Builder::new().name("api-memory".to_owned());
    thread.spawn(move || waiting.into_iter().for_each(drop::<Vec<u8>>)).ok()?;
    Some(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_whatever_their_number() {
        for size in [0, 1, LARGE, 3 * LARGE] {
            let bytes = shared(vec![7; size]);
            let part = bytes.slice(size / 2..);
            drop(bytes);
            assert!(part.len() == size - size / 2 && part.iter().all(|&byte| byte == 7));
        }
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn large_buffers_are_mapped_apart_whatever_was_freed_before() {
        map_apart();
        // From a mapping of this size on that is freed, glibc would keep all up to it in a heap.
        drop(std::hint::black_box(vec![1u8; 31 << 20]));
        // Where other tests leave so much free in a heap, the first ones fill it.
        let [_first, _second, _third, buffer] =
            [(); 4].map(|()| std::hint::black_box(Vec::<u8>::with_capacity(30 << 20)));
        // A mapping begins at a page, with two words of the allocator in front of the bytes.
        assert_eq!(buffer.as_ptr() as usize % 4_096, 2 * size_of::<usize>());
    }
}
