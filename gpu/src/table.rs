//! The measured profile of a model, l(b) by batch size: a table that is read from a CSV file, which
//! a user may edit, written to one, and fitted by a line. `measure` makes it; the scheduler takes
//! its latencies from it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use symphony_transport::Nanos;

/// The largest batch size that a table may name.
pub const MAX_BATCH: usize = 65_536;

/// The columns of a table's file.
pub(crate) const HEADER: [&str; 3] = ["batch", "p50_ms", "p99_ms"];

/// The columns of the parts of a batch's time on a GPU, which a file may have behind the others.
pub(crate) const PARTS: [&str; 8] = [
    "copy_in_p50_ms",
    "copy_in_p99_ms",
    "launch_p50_ms",
    "launch_p99_ms",
    "execution_p50_ms",
    "execution_p99_ms",
    "copy_out_p50_ms",
    "copy_out_p99_ms",
];

/// The execution time of batches of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileRow {
    /// The size.
    pub batch: usize,
    /// The median of the runs.
    pub p50: Nanos,
    /// The 99th percentile of the runs.
    pub p99: Nanos,
}

/// Execution times of a model by batch size.
///
/// A file of it is CSV with the header `batch,p50_ms,p99_ms`, times in milliseconds, one line a
/// batch size, the sizes rising; empty lines and those that start with `#` are skipped. Sizes may
/// be left out. The columns of a GPU's parts may follow; they are not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProfileTable {
    rows: Vec<ProfileRow>,
}

/// The line alpha * b + beta that is fitted to a table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The time that each request adds, in nanoseconds.
    pub alpha_ns: f64,
    /// The time of a batch that does not depend on its size, in nanoseconds; never below 0.
    pub beta_ns: f64,
    /// The largest |line - l(b)| / l(b) over the table's rows, that of b = 1 included.
    pub worst_error: f64,
    /// The batch size of that error.
    pub worst_batch: usize,
}

/// An error of a table or its file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages say they are")]
pub enum TableError {
    /// The file cannot be opened or read.
    #[error("{path}: cannot be read ({source}); give a CSV file with the columns batch,p50_ms,p99_ms",
            path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file cannot be written.
    #[error("{path}: cannot be written ({source}); give a file in a folder that exists and may be written",
            path = path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// A line of the file is wrong.
    #[error("{path}:{line}: {problem}", path = path.display())]
    Line { path: PathBuf, line: usize, problem: String },
    /// Rows that are no table, wherever they came from.
    #[error("profile table: {problem}")]
    Rows { problem: String },
}

impl ProfileTable {
    /// Makes a table of these rows.
    ///
    /// # Errors
    /// If there are none, if batch sizes do not rise or are not within 1 to [`MAX_BATCH`], if a
    /// time is 0, or if a p99 is below its p50.
    pub fn from_rows(rows: Vec<ProfileRow>) -> Result<ProfileTable, TableError> {
        let mut before = 0;
        for row in &rows {
            check_row(row, before).map_err(|problem| TableError::Rows { problem })?;
            before = row.batch;
        }
        if rows.is_empty() {
            return Err(TableError::Rows { problem: no_rows() });
        }
        Ok(ProfileTable { rows })
    }

    /// Returns the rows as measured, batch sizes rising.
    pub fn rows(&self) -> &[ProfileRow] {
        &self.rows
    }

    /// Returns the largest batch size.
    pub fn max_batch(&self) -> usize {
        self.rows.last().map_or(0, |row| row.batch)
    }

    /// Returns l(b), the execution time that schedules assume; `None` outside 1 to
    /// [`ProfileTable::max_batch`].
    ///
    /// At a measured size it is the largest p99 of the sizes up to it, so that it never falls as b
    /// grows. Between two of them it lies on the line that joins them, rounded up; below the first
    /// it is the first's.
    pub fn latency(&self, batch: usize) -> Option<Nanos> {
        self.column(batch, |row| row.p99)
    }

    /// Returns what [`ProfileTable::latency`] does, of a column.
    fn column(&self, batch: usize, of: impl Fn(&ProfileRow) -> Nanos) -> Option<Nanos> {
        if batch == 0 {
            return None;
        }
        let mut below: Option<(usize, Nanos)> = None;
        for row in &self.rows {
            let at_row = below.map_or(of(row), |(_, latency)| latency.max(of(row)));
            if row.batch >= batch {
                return Some(below.map_or(at_row, |left| interpolate(left, (row.batch, at_row), batch)));
            }
            below = Some((row.batch, at_row));
        }
        None
    }

    /// Returns l(1) to l([`ProfileTable::max_batch`]), in order.
    pub fn latencies(&self) -> Vec<Nanos> {
        (1..=self.max_batch()).filter_map(|batch| self.latency(batch)).collect()
    }

    /// Returns the times that batches of 1 to [`ProfileTable::max_batch`] typically take: as
    /// [`ProfileTable::latencies`], of the medians.
    pub fn medians(&self) -> Vec<Nanos> {
        (1..=self.max_batch()).filter_map(|batch| self.column(batch, |row| row.p50)).collect()
    }

    /// Fits the least-squares line through l(b) at the measured sizes from 2 on, with beta at
    /// least 0. A batch of one often runs other code than larger ones, and would tilt the line;
    /// with a single size from 2 on, it is included all the same.
    pub fn fit(&self) -> Fit {
        let points: Vec<(f64, f64)> = self.points().collect();
        let larger = points.iter().position(|&(batch, _)| batch >= 2.0).unwrap_or(points.len());
        let fitted = if points.len() - larger >= 2 { &points[larger..] } else { &points[..] };
        let (alpha_ns, beta_ns) = line(fitted);
        let error = |&(batch, latency): &(f64, f64)| {
            let off = (alpha_ns * batch + beta_ns - latency).abs() / latency;
            (off, batch as usize)
        };
        let worst = points.iter().map(error).max_by(|a, b| a.0.total_cmp(&b.0));
        let (worst_error, worst_batch) = worst.unwrap_or_default();
        Fit { alpha_ns, beta_ns, worst_error, worst_batch }
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let mut latency = Nanos::ZERO;
        self.rows.iter().map(move |row| {
            latency = latency.max(row.p99);
            (row.batch as f64, latency.0 as f64)
        })
    }

    /// Reads a table from the CSV file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, or a line of it is wrong: the error names the line.
    pub fn read(path: &Path) -> Result<ProfileTable, TableError> {
        let bytes = fs::read(path).map_err(|source| TableError::Unreadable { path: path.into(), source })?;
        parse(&bytes).map_err(|(line, problem)| TableError::Line { path: path.into(), line, problem })
    }

    /// Writes the table to the CSV file at `path`; [`ProfileTable::read`] gives the same table
    /// back.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        let mut text = HEADER.join(",") + "\n";
        for row in &self.rows {
            text += &format!("{},{},{}\n", row.batch, millis(row.p50), millis(row.p99));
        }
        fs::write(path, text).map_err(|source| TableError::Unwritable { path: path.into(), source })
    }
}

/// Reads a table from a file's bytes; an error is the line's number and what is wrong with it.
fn parse(bytes: &[u8]) -> Result<ProfileTable, (usize, String)> {
    let text = str::from_utf8(bytes).map_err(|e| {
        let line = 1 + bytes[..e.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        (line, "is not UTF-8 text".to_string())
    })?;
    // Some spreadsheets put a byte-order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let mut lines = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let (mut last, header) = lines.next().ok_or_else(|| (1, wrong_header("nothing")))?;
    let has_parts = fields(header).eq(HEADER.into_iter().chain(PARTS));
    if !has_parts && fields(header).ne(HEADER) {
        return Err((last, wrong_header(&format!("`{header}`"))));
    }
    let columns = HEADER.len() + if has_parts { PARTS.len() } else { 0 };
    let mut rows: Vec<ProfileRow> = Vec::new();
    for (line, text) in lines {
        let before = rows.last().map_or(0, |row| row.batch);
        let row = parse_row(text, columns).and_then(|row| check_row(&row, before).map(|()| row));
        rows.push(row.map_err(|problem| (line, problem))?);
        last = line;
    }
    if rows.is_empty() {
        return Err((last, no_rows()));
    }
    Ok(ProfileTable { rows })
}

fn fields(line: &str) -> impl Iterator<Item = &str> {
    line.split(',').map(str::trim)
}

/// Formats milliseconds with every nanosecond, which a float would round for long times.
pub(crate) fn millis(time: Nanos) -> String {
    format!("{}.{:06}", time.0 / 1_000_000, time.0 % 1_000_000)
}

fn interpolate(left: (usize, Nanos), right: (usize, Nanos), batch: usize) -> Nanos {
    let rise = u128::from((right.1 - left.1).0);
    let share = (rise * (batch - left.0) as u128).div_ceil((right.0 - left.0) as u128);
    left.1 + Nanos(share as u64)
}

/// Returns (alpha, beta) of the least-squares line with alpha >= 0 and beta >= 0.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / count;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / count;
    let covariance: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    let variance: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    let alpha = if variance > 0.0 { (covariance / variance).max(0.0) } else { 0.0 };
    let beta = mean_y - alpha * mean_x;
    if variance > 0.0 && beta >= 0.0 {
        return (alpha, beta);
    }
    // The best line through the origin, which a single point has too.
    let xy: f64 = points.iter().map(|p| p.0 * p.1).sum();
    let xx: f64 = points.iter().map(|p| p.0 * p.0).sum();
    (xy / xx, 0.0)
}

fn parse_row(line: &str, columns: usize) -> Result<ProfileRow, String> {
    let fields: Vec<&str> = fields(line).collect();
    let (&[batch, p50, p99, ref parts @ ..], true) = (fields.as_slice(), fields.len() == columns) else {
        let names: Vec<&str> = HEADER.into_iter().chain(PARTS).take(columns).collect();
        return Err(format!("has {} fields; give {columns}: {}", fields.len(), names.join(",")));
    };
    for (field, column) in parts.iter().zip(PARTS) {
        let is_time = field.parse().is_ok_and(|ms: f64| ms.is_finite() && ms >= 0.0);
        if !is_time {
            return Err(format!("{column}: `{field}` is not a time; give milliseconds, 0 or more"));
        }
    }
    let batch = batch.parse().map_err(|_| wrong_batch(batch))?;
    Ok(ProfileRow { batch, p50: parse_time(p50, HEADER[1])?, p99: parse_time(p99, HEADER[2])? })
}

fn parse_time(field: &str, column: &str) -> Result<Nanos, String> {
    /// The limit, a day: a longer time is a typing error.
    const LONGEST_MS: f64 = 86_400_000.0;
    let parsed: Option<f64> = field.parse().ok();
    let ms = parsed.filter(|&ms| ms > 0.0 && ms <= LONGEST_MS);
    let ms = ms.ok_or_else(|| {
        format!("{column}: `{field}` is not a time; give milliseconds above 0, for example 1.25")
    })?;
    Ok(Nanos::from_millis_f64(ms))
}

fn check_row(row: &ProfileRow, before: usize) -> Result<(), String> {
    if row.batch == 0 || row.batch > MAX_BATCH {
        return Err(wrong_batch(&row.batch.to_string()));
    }
    if row.batch <= before {
        let size = row.batch;
        return Err(format!("batch: {size} comes after {before}; give each size once, in rising order"));
    }
    if row.p50 == Nanos::ZERO {
        return Err("p50_ms: rounds to 0 ns; give a time above 0".to_string());
    }
    if row.p99 < row.p50 {
        return Err(format!("p99_ms: {:?} is below p50_ms, {:?}; give at least that", row.p99, row.p50));
    }
    Ok(())
}

fn wrong_batch(found: &str) -> String {
    format!("batch: `{found}` is not a batch size; give a whole number from 1 to {MAX_BATCH}")
}

fn wrong_header(found: &str) -> String {
    format!("{found} is not the header; the first line must be {}", HEADER.join(","))
}

fn no_rows() -> String {
    "no batch size is named; give a line for at least one".to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(points: &[(usize, u64)]) -> ProfileTable {
        let row = |&(batch, ns): &(usize, u64)| ProfileRow { batch, p50: Nanos(ns / 2 + 1), p99: Nanos(ns) };
        ProfileTable::from_rows(points.iter().map(row).collect()).unwrap()
    }

    fn read(text: &[u8]) -> Result<ProfileTable, TableError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        ProfileTable::read(file.path())
    }

    #[test]
    fn a_line_is_recovered_exactly() {
        let points: Vec<_> = (1..=32).map(|b| (b, 1_053_000 * b as u64 + 5_072_000)).collect();
        let fit = table(&points).fit();
        assert!((fit.alpha_ns - 1_053_000.0).abs() < 1e-3, "{fit:?}");
        assert!((fit.beta_ns - 5_072_000.0).abs() < 1e-3, "{fit:?}");
        assert!(fit.worst_error < 1e-9);
    }

    #[test]
    fn a_batch_of_one_does_not_tilt_the_line_and_its_error_is_told() {
        let fit = table(&[(1, 500), (2, 1200), (3, 1300), (4, 1400)]).fit();
        assert!((fit.alpha_ns - 100.0).abs() < 1e-6 && (fit.beta_ns - 1000.0).abs() < 1e-6);
        assert_eq!(fit.worst_batch, 1);
        assert!((fit.worst_error - 1.2).abs() < 1e-9);
    }

    #[test]
    fn beta_is_never_below_zero() {
        let fit = table(&[(2, 100), (3, 200), (4, 300)]).fit();
        assert_eq!(fit.beta_ns, 0.0);
        assert!((fit.alpha_ns - 2000.0 / 29.0).abs() < 1e-9, "the best line through the origin: {fit:?}");
    }

    #[test]
    fn few_sizes_still_give_a_line() {
        let one = table(&[(1, 700)]).fit();
        assert_eq!((one.alpha_ns, one.beta_ns, one.worst_error), (700.0, 0.0, 0.0));
        let two = table(&[(1, 700), (2, 800)]).fit();
        assert!((two.alpha_ns - 100.0).abs() < 1e-9 && (two.beta_ns - 600.0).abs() < 1e-9);
    }

    #[test]
    fn sizes_between_two_measured_ones_lie_on_the_line_between_them() {
        let table = table(&[(2, 100), (4, 201), (8, 150)]);
        assert_eq!(table.latency(0), None);
        let expected = [100, 100, 151, 201, 201, 201, 201, 201].map(Nanos);
        assert_eq!(table.latencies(), expected);
        assert_eq!(table.latency(9), None);
        let row = |(batch, p50)| ProfileRow { batch, p50: Nanos(p50), p99: Nanos(999) };
        let table = ProfileTable::from_rows([(2, 100), (4, 201), (8, 150)].map(row).into()).unwrap();
        assert_eq!((table.medians(), table.latencies()), (expected.into(), [Nanos(999); 8].into()));
    }

    #[test]
    fn a_file_says_which_line_is_wrong_and_what_would_be_right() {
        let cases: [(&[u8], &str); 12] = [
            (b"", ":1: nothing is not the header"),
            (b"batch,ms\n1,2\n", ":1: `batch,ms` is not the header; the first line must be batch,p50_ms"),
            (b"batch,p50_ms,p99_ms\n", ":1: no batch size is named"),
            (b"batch,p50_ms,p99_ms\n1,1,1\n2,x,1\n", ":3: p50_ms: `x` is not a time"),
            (b"batch,p50_ms,p99_ms\r\n# note\r\n\r\n1,1,-1\r\n", ":4: p99_ms: `-1` is not a time"),
            (b"batch,p50_ms,p99_ms\n1,1,NaN\n", ":2: p99_ms: `NaN` is not a time"),
            (b"batch,p50_ms,p99_ms\n1,1e-9,1\n", ":2: p50_ms: rounds to 0 ns"),
            (b"batch,p50_ms,p99_ms\n0,1,1\n", ":2: batch: `0` is not a batch size"),
            (b"batch,p50_ms,p99_ms\n2,1,1\n2,1,1\n", ":3: batch: 2 comes after 2"),
            (b"batch,p50_ms,p99_ms\n2,3,1\n", ":2: p99_ms: 1ms is below p50_ms, 3ms"),
            (b"batch,p50_ms,p99_ms\n2,3\n", ":2: has 2 fields; give 3: batch,p50_ms,p99_ms"),
            (b"batch,p50_ms,p99_ms\n2,\xff,1\n", ":2: is not UTF-8"),
        ];
        for (text, expected) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} should contain {expected}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = ProfileTable::read(Path::new("no/such/profile.csv")).unwrap_err().to_string();
        assert!(error.starts_with("no/such/profile.csv: cannot be read"), "{error}");
    }

    fn any_table() -> impl Strategy<Value = ProfileTable> {
        let row = (1usize..20, 1u64..100_000_000_000, 0u64..100_000_000);
        proptest::collection::vec(row, 1..30).prop_map(|steps| {
            let mut batch = 0;
            let rows = steps.into_iter().map(|(step, p50, above)| {
                batch += step;
                ProfileRow { batch, p50: Nanos(p50), p99: Nanos(p50 + above) }
            });
            ProfileTable::from_rows(rows.collect()).unwrap()
        })
    }

    proptest! {
        #[test]
        fn latency_never_falls_and_is_never_below_a_measured_p99(table in any_table()) {
            let latencies = table.latencies();
            prop_assert_eq!(latencies.len(), table.max_batch());
            prop_assert!(latencies.is_sorted());
            for row in table.rows() {
                prop_assert!(latencies[row.batch - 1] >= row.p99);
            }
        }

        #[test]
        fn a_written_table_reads_back_the_same(table in any_table()) {
            let file = tempfile::NamedTempFile::new().unwrap();
            table.write(file.path()).unwrap();
            prop_assert_eq!(ProfileTable::read(file.path()).unwrap(), table);
        }

        #[test]
        fn a_file_of_any_bytes_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"batch,p50_ms,p99_ms\n".to_vec();
            text.extend(bytes);
            let _ = read(&text);
        }
    }
}
