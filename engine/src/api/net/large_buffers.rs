//! Large buffers, which a thread of the process frees: to give 64 MiB back to the system takes
//! milliseconds, and whoever holds the last reference would spend them on an API core.

use bytes::Bytes;
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
}
