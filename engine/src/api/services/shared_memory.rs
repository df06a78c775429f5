//! The regions of system shared memory that clients have registered, to read inputs from and write
//! outputs to. Each token has a table of its own, and clients without one share another, so that
//! nobody sees, uses or removes the regions of others. All API cores share the tables: a client
//! registers over one connection and infers over another.
//!
//! A region is never mapped but read and written by `pread` and `pwrite`: a client may truncate or
//! remove its memory at any time, which would kill a process that has it mapped (SIGBUS), and is a
//! short read here. The bytes are copied either way.

use crate::api::net::slices::{COPIED_PER_PARSED, COPY_PIECE, Slices};
use crate::api::problem::{Problem, names, quoted};
use hyper::StatusCode;
use rustix::fs::Mode;
use rustix::shm;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most registered regions, those of all tokens together: each is an open file.
pub(in crate::api) const MAX_REGIONS: usize = 1_024;

/// The number of open regions of all tables that share it.
#[derive(Clone, Default, Debug)]
pub(in crate::api) struct RegionCount(Arc<AtomicUsize>);

/// A region's share of a [`RegionCount`], which ends with it.
#[derive(Debug)]
struct CountedRegion(RegionCount);

impl RegionCount {
    /// Counts another region, if there may be one.
    fn take(&self) -> Option<CountedRegion> {
        // No other memory is published through it, so Relaxed suffices.
        let more = |count: usize| (count < MAX_REGIONS).then_some(count + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| CountedRegion(self.clone()))
    }
}

impl Drop for CountedRegion {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A registered region: a shared memory object of a client, or a range of it.
#[derive(Debug)]
pub(in crate::api) struct SharedMemoryRegion {
    /// The name by which requests refer to it.
    pub(in crate::api) name: String,
    /// The name of the POSIX shared memory object.
    pub(in crate::api) key: String,
    /// The offset in the object, in bytes.
    pub(in crate::api) offset: u64,
    /// The length in bytes.
    pub(in crate::api) bytes: u64,
    file: File,
    _counted: CountedRegion,
}

/// A range of a region, as a request names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) struct RegionPart<'a> {
    /// The region's name.
    pub(in crate::api) region: &'a str,
    /// The offset in the region, in bytes.
    pub(in crate::api) offset: u64,
    /// The length in bytes.
    pub(in crate::api) bytes: u64,
}

/// A range of a region that a request in flight uses; it stays usable when the region is
/// unregistered.
#[derive(Clone, Debug)]
pub(in crate::api) struct RegionView {
    region: Arc<SharedMemoryRegion>,
    /// The offset in the region, in bytes.
    offset: u64,
    /// The length in bytes.
    pub(in crate::api) bytes: u64,
}

/// The regions of one owner, by name.
#[derive(Default, Debug)]
pub(in crate::api) struct Regions {
    table: Mutex<BTreeMap<String, Arc<SharedMemoryRegion>>>,
    count: RegionCount,
    /// The reason that no request may use a region of this table, which is then empty.
    closed: Option<String>,
}

impl Regions {
    /// Creates a table without regions that shares the limit on their number with others.
    pub(in crate::api) fn counted(count: &RegionCount) -> Regions {
        Regions { count: count.clone(), ..Regions::default() }
    }

    /// Creates the table of clients that may use no shared memory, for this reason.
    pub(in crate::api) fn closed(reason: String) -> Regions {
        Regions { closed: Some(reason), ..Regions::default() }
    }

    /// Checks that its owner may use shared memory at all.
    ///
    /// Errors: 403.
    pub(in crate::api) fn check_open(&self) -> Result<(), Problem> {
        let refused = |reason: &String| Err(Problem::invalid(StatusCode::FORBIDDEN, reason.clone()));
        self.closed.as_ref().map_or(Ok(()), refused)
    }

    /// Returns the table itself; other callers wait until it is given back.
    pub(in crate::api) fn table(&self) -> MutexGuard<'_, BTreeMap<String, Arc<SharedMemoryRegion>>> {
        // Each change of the table is one call, so a panic elsewhere leaves it consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the memory object `key` and registers `bytes` of it from `offset` on as region `name`.
    ///
    /// Errors: 409 if the name is taken, 429 if there are too many regions, 400 if the object does
    /// not exist or is smaller.
    pub(in crate::api) fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Problem> {
        let wrong = |what: String| Problem::bad(format!("shared memory region {}: {what}", quoted(name)));
        if name.is_empty() || bytes == 0 {
            return Err(wrong("a region needs a name and a byte_size of at least 1".into()));
        }
        let fd = shm::open(key, shm::OFlags::RDWR, Mode::empty()).map_err(|error| {
            wrong(format!("no shared memory object {} can be opened ({error})", quoted(key)))
        })?;
        let file = File::from(fd);
        let counted = self.count.take().ok_or_else(|| {
            let message = format!("{MAX_REGIONS} shared memory regions are registered; unregister one first");
            Problem::invalid(StatusCode::TOO_MANY_REQUESTS, message)
        })?;
        let (name, key) = (name.to_owned(), key.to_owned());
        let region = SharedMemoryRegion { name, key, offset, bytes, file, _counted: counted };
        let length = region.file_bytes().map_err(wrong)?;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(wrong(format!(
                "{bytes} bytes from offset {offset} on do not fit in {}, which has {length}",
                quoted(&region.key)
            )));
        }
        let mut table = self.table();
        if table.contains_key(&region.name) {
            let message = format!("shared memory region {} is registered already", quoted(&region.name));
            return Err(Problem::invalid(StatusCode::CONFLICT, message));
        }
        table.insert(region.name.clone(), Arc::new(region));
        Ok(())
    }

    /// Unregisters a region, or all if the name is empty; an unknown name has no effect. Requests
    /// in flight keep using the region.
    pub(in crate::api) fn unregister(&self, name: &str) {
        let mut table = self.table();
        if name.is_empty() {
            table.clear();
        } else {
            table.remove(name);
        }
    }

    /// Returns the region of this name, or all regions if the name is empty.
    ///
    /// Errors: 404.
    pub(in crate::api) fn list(&self, name: &str) -> Result<Vec<Arc<SharedMemoryRegion>>, Problem> {
        let table = self.table();
        if name.is_empty() {
            return Ok(table.values().cloned().collect());
        }
        let found = table.get(name).cloned().ok_or_else(|| {
            let message = format!("there is no shared memory region {}", quoted(name));
            Problem::invalid(StatusCode::NOT_FOUND, message)
        })?;
        Ok(vec![found])
    }

    /// Returns a range of a region, for one request. The memory's size is checked again: it may
    /// have shrunk since it was registered.
    ///
    /// Errors: the region does not exist, or is smaller than the range.
    pub(in crate::api) fn view(&self, part: RegionPart<'_>) -> Result<RegionView, String> {
        let RegionPart { region: name, offset, bytes } = part;
        let table = self.table();
        let region = table.get(name).cloned().ok_or_else(|| {
            let known = names(table.keys().map(String::as_str));
            format!("there is no shared memory region {}; yours are {known}", quoted(name))
        })?;
        drop(table);
        let length = region.file_bytes()?.saturating_sub(region.offset).min(region.bytes);
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(format!(
                "{bytes} bytes from offset {offset} on do not fit in shared memory region {}, which has {length}",
                quoted(name)
            ));
        }
        Ok(RegionView { region, offset, bytes })
    }
}

/// Returns the refusal to register a region of CUDA shared memory.
pub(in crate::api) fn no_cuda_memory() -> Problem {
    let message = "CUDA shared memory is not supported by this server; use system shared memory";
    Problem::invalid(StatusCode::NOT_IMPLEMENTED, message)
}

impl SharedMemoryRegion {
    fn file_bytes(&self) -> Result<u64, String> {
        let metadata = self.file.metadata().map_err(|error| format!("it can't be looked at ({error})"))?;
        if !metadata.is_file() {
            return Err(format!("{} is no memory object", quoted(&self.key)));
        }
        Ok(metadata.len())
    }
}

impl RegionView {
    /// Returns the name of its region.
    pub(in crate::api) fn region(&self) -> &str {
        &self.region.name
    }

    /// Returns its offset in the region, in bytes.
    pub(in crate::api) fn offset(&self) -> u64 {
        self.offset
    }

    /// Copies the bytes from offset `from` on to `to`, in slices. Memory that its owner has cut off
    /// meanwhile reads as zeros.
    pub(in crate::api) async fn read_in_slices(&self, from: usize, to: &mut [u8], slices: &Slices) {
        for (at, piece) in to.chunks_mut(COPY_PIECE).enumerate() {
            self.read(from + at * COPY_PIECE, piece);
            slices.did(piece.len() / COPIED_PER_PARSED).await;
        }
    }

    fn read(&self, from: usize, to: &mut [u8]) {
        let mut at = self.region.offset + self.offset + from as u64;
        let mut rest = to;
        while !rest.is_empty() {
            match self.region.file.read_at(rest, at) {
                Ok(0) | Err(_) => return rest.fill(0),
                Ok(read) => {
                    at += read as u64;
                    rest = &mut rest[read..];
                }
            }
        }
    }

    /// Copies all bytes in slices.
    pub(in crate::api) async fn to_vec(&self, slices: &Slices) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        self.read_in_slices(0, &mut bytes, slices).await;
        bytes
    }

    /// Writes `bytes` at its beginning, in slices.
    ///
    /// Errors: they do not fit, or the memory is gone.
    pub(in crate::api) async fn write(&self, bytes: &[u8], slices: &Slices) -> Result<(), String> {
        if bytes.len() as u64 > self.bytes {
            return Err(format!(
                "{} bytes do not fit in the {} given in shared memory region {}",
                bytes.len(),
                self.bytes,
                quoted(self.region())
            ));
        }
        let at = self.region.offset + self.offset;
        let mut written = 0;
        loop {
            // Writing behind the end would enlarge the client's memory.
            if self.region.file_bytes()? < at + bytes.len() as u64 {
                return Err(format!("shared memory region {} has shrunk meanwhile", quoted(self.region())));
            }
            let piece = &bytes[written..bytes.len().min(written + COPY_PIECE)];
            self.region.file.write_all_at(piece, at + written as u64).map_err(|error| {
                format!("shared memory region {} can't be written ({error})", quoted(self.region()))
            })?;
            written += piece.len();
            if written == bytes.len() {
                return Ok(());
            }
            slices.did(piece.len() / COPIED_PER_PARSED).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::slices::{SLICE_BYTES, ready_now};

    /// A memory object that is removed when the test ends.
    struct Memory(String);

    impl Memory {
        fn new(name: &str, content: &[u8]) -> (Memory, File) {
            let key = format!("/symphony-test-{name}-{}", std::process::id());
            let flags = shm::OFlags::CREATE | shm::OFlags::RDWR;
            let file = File::from(shm::open(&*key, flags, Mode::RUSR | Mode::WUSR).unwrap());
            file.write_all_at(content, 0).unwrap();
            (Memory(key), file)
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            let _ = shm::unlink(&*self.0);
        }
    }

    fn part(region: &str, offset: u64, bytes: u64) -> RegionPart<'_> {
        RegionPart { region, offset, bytes }
    }

    #[test]
    fn a_view_reads_and_writes_its_part_of_the_memory() {
        let (memory, file) = Memory::new("view", b"0123456789");
        let regions = Regions::default();
        regions.register("r", &memory.0, 2, 6).unwrap();
        let view = regions.view(part("r", 1, 4)).unwrap();
        assert_eq!(ready_now(view.to_vec(&Slices::alone())), b"3456");
        let mut two = [0; 2];
        view.read(2, &mut two);
        assert_eq!(&two, b"56");
        ready_now(view.write(b"ab", &Slices::alone())).unwrap();
        assert!(
            ready_now(view.write(b"abcde", &Slices::alone()))
                .unwrap_err()
                .contains("5 bytes do not fit in the 4")
        );
        let mut all = [0; 10];
        file.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"012ab56789");
    }

    #[test]
    fn large_memory_is_read_and_written_in_slices() {
        let content = vec![3; 5 << 20];
        let (memory, _file) = Memory::new("slices", &content);
        let regions = Regions::default();
        regions.register("r", &memory.0, 0, content.len() as u64).unwrap();
        let view = regions.view(part("r", 0, content.len() as u64)).unwrap();
        let (reading, writing) = (Slices::alone(), Slices::alone());
        assert!(ready_now(view.to_vec(&reading)) == content);
        ready_now(view.write(&content, &writing)).unwrap();
        for slices in [reading, writing] {
            assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
        }
    }

    #[test]
    fn what_is_not_there_or_too_small_is_refused() {
        let (memory, _file) = Memory::new("bounds", &[0; 8]);
        let regions = Regions::default();
        for (key, offset, bytes, part) in [
            ("/symphony-no-such-memory", 0, 1, "can be opened"),
            ("/a/b", 0, 1, "can be opened"),
            ("", 0, 1, "can be opened"),
            (memory.0.as_str(), 0, 9, "which has 8"),
            (memory.0.as_str(), 8, 1, "which has 8"),
            (memory.0.as_str(), u64::MAX, 2, "which has 8"),
            (memory.0.as_str(), 0, 0, "at least 1"),
        ] {
            let problem = regions.register("r", key, offset, bytes).unwrap_err();
            assert!(problem.message.contains(part), "{}", problem.message);
        }
        regions.register("r", &memory.0, 0, 8).unwrap();
        assert_eq!(regions.register("r", &memory.0, 0, 8).unwrap_err().status, StatusCode::CONFLICT);
        for (offset, bytes) in [(0, 9), (8, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(regions.view(part("r", offset, bytes)).unwrap_err().contains("which has 8"));
        }
        assert!(regions.view(part("s", 0, 1)).unwrap_err().contains(r#"yours are ["r"]"#));
        assert_eq!(regions.list("s").unwrap_err().status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn tables_share_the_number_of_regions_and_nothing_else() {
        let (memory, _file) = Memory::new("count", &[0; 8]);
        let count = RegionCount(Arc::new(AtomicUsize::new(MAX_REGIONS - 2)));
        let (mine, yours) = (Regions::counted(&count), Regions::counted(&count));
        mine.register("0", &memory.0, 0, 8).unwrap();
        yours.register("0", &memory.0, 0, 4).unwrap();
        for full in [&mine, &yours] {
            let problem = full.register("r", &memory.0, 0, 8).unwrap_err();
            assert_eq!(problem.status, StatusCode::TOO_MANY_REQUESTS);
        }
        mine.unregister("");
        assert_eq!(yours.list("").unwrap()[0].bytes, 4);
        assert!(mine.view(part("0", 0, 1)).is_err());
        yours.register("r", &memory.0, 0, 8).unwrap();
        assert_eq!(yours.list("").unwrap().len(), 2);
    }

    #[test]
    fn memory_that_is_cut_off_while_it_is_used_reads_as_zeros_and_does_not_grow_again() {
        let (memory, file) = Memory::new("cut", b"01234567");
        let regions = Regions::default();
        regions.register("r", &memory.0, 0, 8).unwrap();
        let view = regions.view(part("r", 0, 8)).unwrap();
        file.set_len(3).unwrap();
        assert_eq!(ready_now(view.to_vec(&Slices::alone())), b"012\0\0\0\0\0");
        assert!(ready_now(view.write(b"abcdefgh", &Slices::alone())).unwrap_err().contains("shrunk"));
        assert_eq!(file.metadata().unwrap().len(), 3);
        assert!(regions.view(part("r", 0, 8)).unwrap_err().contains("which has 3"));
    }

    #[test]
    fn a_view_outlives_its_regions_name() {
        let (memory, _file) = Memory::new("outlive", b"01");
        let regions = Regions::default();
        regions.register("r", &memory.0, 0, 2).unwrap();
        let view = regions.view(part("r", 0, 2)).unwrap();
        regions.unregister("r");
        regions.unregister("r");
        assert!(regions.view(part("r", 0, 2)).is_err());
        drop(memory);
        assert_eq!(ready_now(view.to_vec(&Slices::alone())), b"01");
    }
}
