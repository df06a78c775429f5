//! The file format of a recording: a header, a description in JSON, then a ring of segments of
//! records, which are words of 64 bits here (`codec.rs`). [`Journal`] writes it, one per recorded
//! thread; [`Recording`] reads it, also that of a process that runs or was killed.
//! A segment starts with its number and is written from front to back. A reader takes, of the
//! segments that are written according to the head, those whose number is the expected one: the
//! writer numbers a segment anew before it writes anything else into it, so one that is being
//! overwritten is never taken for the old one. The head counts whole duty cycles: an unfinished
//! cycle of a process that died is not seen.

use super::RecordError;
use super::codec::Words;
use super::mapping::Mapping;
use super::record::FULL;
use super::record::{Kind, Record};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// The first bytes of every recording; the last is the format's version.
const MAGIC: [u8; 8] = *b"SYMREC\0\x0e";

/// The number of bytes before the description.
const HEADER_BYTES: usize = 192;

/// The offset of the head counter: a cache line of its own.
const HEAD_AT: usize = 128;

/// The alignment of the description and of the words.
const PAGE: usize = 4_096;

/// The length from which a description counts as damaged.
const MAX_DESCRIPTION: u64 = 1 << 30;

/// The most segments that a ring is split into: an eighth of the history is lost when the ring
/// wraps.
const MAX_SEGMENTS: usize = 8;

/// The division of a file's records into segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Split {
    segments: usize,
    /// The number of words in each segment.
    length: usize,
}

impl Split {
    /// Splits `mib` MiB into segments of which each holds at least `least` records. `None` if two
    /// do not fit.
    pub(super) fn new(mib: usize, least: usize) -> Option<Split> {
        let words = mib.saturating_mul(1 << 20) / size_of::<u64>();
        let segments = (words / (FULL * least).max(1)).min(MAX_SEGMENTS);
        (segments >= 2).then(|| Split { segments, length: words / segments })
    }

    /// Returns the fewest MiB that hold two segments of `least` records.
    pub(super) fn least_mib(least: usize) -> usize {
        (2 * least * size_of::<Record>()).div_ceil(1 << 20)
    }

    fn words(self) -> usize {
        self.segments * self.length
    }
}

/// The writing end of a recording.
pub(super) struct Journal {
    mapping: Mapping,
    split: Split,
    /// The most words that one event can write: as many are left when it begins.
    reserve: usize,
    /// The number of the segment that is being written; 0 before the first.
    segment: u64,
    /// The position of the next word.
    next: usize,
    /// The position at which the segment begins.
    start: usize,
    /// The position from which on no event begins in this segment.
    limit: usize,
    /// Equal to `limit` within a duty cycle and to 0 between two, so that one comparison shows
    /// whether anything is to be done first.
    cycle_limit: usize,
    /// The time of the current duty cycle or of the last one.
    now: Nanos,
}

impl Journal {
    /// Creates the file `path`, all of it on the disk, with an empty first segment. `reserve` is
    /// the most records that one event can write.
    ///
    /// Errors: the file can't be created.
    pub(super) fn create(
        path: &Path,
        description: &[u8],
        split: Split,
        reserve: usize,
    ) -> Result<Journal, RecordError> {
        let failed = |error| RecordError::Create(path.to_owned(), error);
        let first = (HEADER_BYTES + description.len()).next_multiple_of(PAGE);
        let bytes = first + split.words() * size_of::<u64>();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(failed)?;
        // A hole that the disk has no room to fill would kill the process at the store that meets
        // it.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)
            .map_err(|error| failed(error.into()))?;
        let mut header = [0; HEADER_BYTES];
        let words = [first, split.segments, split.length, description.len()];
        header[..8].copy_from_slice(&MAGIC);
        for (to, word) in header[8..].chunks_mut(8).zip(words) {
            to.copy_from_slice(&(word as u64).to_le_bytes());
        }
        file.write_all(&header).and_then(|()| file.write_all(description)).map_err(failed)?;
        let mapping = Mapping::new(&file, HEAD_AT, first, split.words()).map_err(failed)?;
        let reserve = FULL * reserve;
        Ok(Journal {
            mapping,
            split,
            reserve,
            segment: 0,
            next: 0,
            start: 0,
            limit: 0,
            cycle_limit: 0,
            now: Nanos::ZERO,
        })
    }

    /// Returns the number of the segment that is being written.
    #[inline]
    pub(super) fn segment(&self) -> u64 {
        self.segment
    }

    /// Begins an event: makes room for all that it can write, and writes its time if it is the
    /// first since [`Journal::publish`]; up to the next publication, `now` stays the same. Returns
    /// true if a segment begins with it.
    #[inline(always)]
    pub(super) fn begin(&mut self, now: Nanos) -> bool {
        debug_assert!(self.cycle_limit == 0 || now == self.now, "a duty cycle has one time");
        self.next >= self.cycle_limit && self.begin_cycle(now)
    }

    #[inline(never)]
    fn begin_cycle(&mut self, now: Nanos) -> bool {
        self.now = now;
        let is_full = self.next >= self.limit;
        if is_full {
            self.begin_segment();
        } else {
            self.write(Record::cycle(now));
        }
        self.cycle_limit = self.limit;
        is_full
    }

    /// Adds a record to the event.
    #[inline(always)]
    pub(super) fn write(&mut self, record: Record) {
        match record.words(self.now) {
            Words::One(words) => self.store(words),
            Words::Two(words) => self.store(words),
            Words::Three(words) => self.store(words),
            Words::Four(words) => self.store(words),
        }
    }

    /// Adds requests that have come for a model: after [`Record::came`], as many as that counts.
    #[inline]
    pub(super) fn write_requests(&mut self, requests: &[Request]) {
        let mut next = self.next;
        for request in requests {
            self.mapping.store(next, Record::raw(request));
            next += FULL;
        }
        self.next = next;
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, words: [u64; N]) {
        self.mapping.store(self.next, words);
        self.next += N;
    }

    /// Publishes what was written, at the end of a duty cycle.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.cycle_limit = 0;
        self.publish_head();
    }

    #[inline]
    fn publish_head(&mut self) {
        let Some(before) = self.segment.checked_sub(1) else { return };
        self.mapping.publish(before * self.split.length as u64 + (self.next - self.start) as u64);
    }

    #[cold]
    fn begin_segment(&mut self) {
        if self.segment > 0 {
            self.write(Record::end());
            self.publish_head();
        }
        self.start = (self.segment % self.split.segments as u64) as usize * self.split.length;
        self.segment += 1;
        self.next = self.start;
        self.limit = self.start + self.split.length - self.reserve;
        self.write(Record::segment(self.segment, self.now));
        // The old content of the segment is void before any of it is overwritten.
        fence(Ordering::SeqCst);
    }
}

/// A recording that was read.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) path: PathBuf,
    /// The writer's description of itself, in JSON.
    pub(super) description: Vec<u8>,
    words: Vec<u64>,
    /// The ranges of `words` that are whole segments' contents, oldest first.
    segments: Vec<std::ops::Range<usize>>,
    /// The number of segments before those, which are overwritten.
    pub(super) forgotten: u64,
}

impl Recording {
    /// Reads a recording whole.
    ///
    /// Errors: the file can't be read, or is no recording.
    pub(super) fn read(path: &Path) -> Result<Recording, RecordError> {
        let unreadable = |error| RecordError::Read(path.to_owned(), error);
        let corrupt = |what: &str| RecordError::Corrupt(path.to_owned(), what.to_owned());
        let mut file = File::open(path).map_err(unreadable)?;
        let Header { first, split, description, head } = Header::read(&mut file, path)?;
        let expected = (first + split.words() * size_of::<u64>()) as u64;
        let found = file.metadata().map_err(unreadable)?.len();
        if found < expected {
            return Err(corrupt(&format!("it is cut short: {found} bytes of {expected}")));
        }
        let mut text = vec![0; description];
        file.read_exact(&mut text).map_err(unreadable)?;
        file.seek(SeekFrom::Start(first as u64)).map_err(unreadable)?;
        let mut words = vec![0; split.words()];
        file.read_exact(bytemuck::cast_slice_mut(&mut words)).map_err(unreadable)?;
        // A process that still runs may have overwritten what was read; its head shows that.
        file.rewind().map_err(unreadable)?;
        let later = Header::read(&mut file, path)?.head;
        if later < head {
            return Err(corrupt("its head went back"));
        }
        let (segments, forgotten) = whole_segments(&words, split, head, later);
        if segments.is_empty() && head > 0 {
            return Err(corrupt("none of its segments is whole"));
        }
        Ok(Recording { path: path.to_owned(), description: text, words, segments, forgotten })
    }

    /// Returns every record of every whole segment, with its first word's position in the file.
    /// Where words are no record, the segment ends with [`Record::default`], which is of no kind.
    pub(super) fn records(&self) -> impl Iterator<Item = (usize, Record)> {
        self.segments.iter().flat_map(|range| Segment {
            words: &self.words[..range.end],
            at: range.start,
            now: Nanos::ZERO,
            requests: 0,
        })
    }
}

/// Reads a segment's records one by one.
struct Segment<'a> {
    /// The file's words up to the segment's end.
    words: &'a [u64],
    /// The position of the next record.
    at: usize,
    /// The time of the duty cycle that was read last.
    now: Nanos,
    /// The number of requests that come next, as plain words.
    requests: u16,
}

impl Iterator for Segment<'_> {
    type Item = (usize, Record);

    fn next(&mut self) -> Option<(usize, Record)> {
        let at = self.at;
        if at >= self.words.len() {
            return None;
        }
        let words = &self.words[at..];
        let read = match self.requests.checked_sub(1) {
            None => Record::read(words, self.now),
            Some(left) => {
                self.requests = left;
                words.first_chunk().map(|&raw| (Record::from_raw(raw), raw.len()))
            }
        };
        let Some((record, count)) = read else {
            self.at = self.words.len();
            return Some((at, Record::default()));
        };
        self.at += count;
        match record.kind() {
            Some(Kind::End) => {
                self.at = self.words.len();
                return None;
            }
            Some(Kind::Segment) => self.now = Nanos(record.b),
            Some(Kind::Cycle) => self.now = Nanos(record.a),
            Some(Kind::Came) => self.requests = record.small,
            _ => {}
        }
        Some((at, record))
    }
}

/// Returns the contents of the segments that are whole, oldest first, and the number of segments
/// before them. The head was at `head` before the words were read and at `later` after.
fn whole_segments(words: &[u64], split: Split, head: u64, later: u64) -> (Vec<std::ops::Range<usize>>, u64) {
    let length = split.length as u64;
    if head == 0 {
        return (Vec::new(), 0);
    }
    let last = (head - 1) / length;
    // While the writer runs it may be about to overwrite the oldest segment.
    let slack = u64::from(later > head);
    let oldest = ((later - 1) / length + 1 + slack).saturating_sub(split.segments as u64);
    let mut whole = Vec::new();
    for segment in oldest..=last {
        let start = (segment % split.segments as u64) as usize * split.length;
        let written = if segment == last { (head - segment * length) as usize } else { split.length };
        let content = start..start + written;
        let marker = Record::read(&words[content.clone()], Nanos::ZERO);
        if marker.is_none_or(|(marker, _)| marker.kind() != Some(Kind::Segment) || marker.a != segment + 1) {
            // The segment is being overwritten: history begins after it.
            whole.clear();
            continue;
        }
        whole.push(content);
    }
    let forgotten = last + 1 - whole.len() as u64;
    (whole, forgotten)
}

/// The fields of a recording's header.
struct Header {
    first: usize,
    split: Split,
    description: usize,
    head: u64,
}

impl Header {
    fn read(file: &mut File, path: &Path) -> Result<Header, RecordError> {
        let corrupt = |what: &str| RecordError::Corrupt(path.to_owned(), what.to_owned());
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes).map_err(|_| corrupt("it is too short for a recording's header"))?;
        if bytes[..7] != MAGIC[..7] {
            return Err(corrupt("it does not begin as a recording does"));
        }
        if bytes[7] != MAGIC[7] {
            let (found, known) = (bytes[7], MAGIC[7]);
            return Err(corrupt(&format!("its format has version {found}; this program reads {known}")));
        }
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (first, segments, length, description) = (word(8), word(16), word(24), word(32));
        let words = segments.checked_mul(length).filter(|&words| words <= 1 << 40);
        let sound = words.is_some_and(|words| words > 0)
            && (2..=MAX_SEGMENTS as u64).contains(&segments)
            && description <= MAX_DESCRIPTION
            && first >= HEADER_BYTES as u64 + description
            && first <= MAX_DESCRIPTION + PAGE as u64 + HEADER_BYTES as u64;
        if !sound {
            return Err(corrupt("its header is damaged"));
        }
        let split = Split { segments: segments as usize, length: length as usize };
        let head = word(HEAD_AT);
        if head > 1 << 62 {
            return Err(corrupt("its head is damaged"));
        }
        Ok(Header { first: first as usize, split, description: description as usize, head })
    }
}
