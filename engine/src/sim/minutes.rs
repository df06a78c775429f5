//! Arrivals that a file gives as counts per minute, as the Azure Functions trace does (one CSV line a function, one
//! column a minute): [`read_minutes`] finds a function's counts, `Minutes` spreads each over its minute.

use super::arrivals::TraceError;
use crate::clock::Nanos;
use csv::StringRecord;
use rand::{Rng, RngExt};
use std::path::Path;

/// The column that names a function in the Azure Functions trace.
const FUNCTION: &str = "HashFunction";

/// The counts of a file that one stream may have: of ten years.
const MAX_MINUTES: usize = 10 * 366 * 24 * 60;

/// The most arrivals of one minute.
const MAX_COUNT: u32 = 100_000_000;

const COUNT: &str = "it must be a whole number of requests from 0 to 100000000";

/// The requests of each minute that a file lists, for one function or, with `None`, for all of them together.
///
/// The file is a CSV in one of two forms. One line a function: a first line with the column `HashFunction` and
/// columns named 1, 2, 3 … for the minutes (other columns, like the trace's HashOwner, HashApp and Trigger, are not
/// used). Or one line a minute: `minute,count`, in order, where minutes that are left out have no requests; a first
/// line of names may come before.
///
/// Errors: a [`TraceError`], with the first line that is wrong; a function that the file does not have.
pub fn read_minutes(path: &Path, function: Option<&str>) -> Result<Vec<u32>, TraceError> {
    let counts = Reading { path, function }.read()?;
    if counts.iter().all(|&count| count == 0) {
        return Err(TraceError::NoCounts { path: path.into(), function: function.map(Into::into) });
    }
    Ok(counts)
}

/// The functions that a file lists, in its order; empty for a file with one line a minute.
///
/// Errors: a [`TraceError`].
pub fn read_functions(path: &Path) -> Result<Vec<String>, TraceError> {
    let reading = Reading { path, function: None };
    let mut lines = reading.lines()?;
    let mut line = StringRecord::new();
    reading.next(&mut lines, &mut line)?;
    let Some(column) = line.iter().position(|name| name == FUNCTION) else { return Ok(Vec::new()) };
    let mut functions = Vec::new();
    while reading.next(&mut lines, &mut line)? {
        functions.push(line.get(column).unwrap_or_default().to_owned());
    }
    Ok(functions)
}

type Lines = csv::Reader<std::fs::File>;

struct Reading<'a> {
    path: &'a Path,
    function: Option<&'a str>,
}

impl Reading<'_> {
    fn lines(&self) -> Result<Lines, TraceError> {
        let read = |source| TraceError::Read { path: self.path.into(), source };
        let file = std::fs::File::open(self.path).map_err(read)?;
        let mut builder = csv::ReaderBuilder::new();
        Ok(builder.has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(file))
    }

    fn next(&self, lines: &mut Lines, line: &mut StringRecord) -> Result<bool, TraceError> {
        lines.read_record(line).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => TraceError::Read { path: self.path.into(), source },
            _ => TraceError::Line {
                path: self.path.into(),
                line: line.position().map_or(1, |p| p.line() as usize),
                text: String::new(),
                wrong: "not UTF-8",
                right: "it must be a CSV file in UTF-8",
            },
        })
    }

    fn wrong(&self, line: &StringRecord, text: &str, wrong: &'static str, right: &'static str) -> TraceError {
        let number = line.position().map_or(1, |place| place.line() as usize);
        let text = text.chars().take(40).collect();
        TraceError::Line { path: self.path.into(), line: number, text, wrong, right }
    }

    fn count(&self, line: &StringRecord, text: &str) -> Result<u32, TraceError> {
        let count = text.parse().ok().filter(|&count| count <= MAX_COUNT);
        count.ok_or_else(|| self.wrong(line, text, "no count", COUNT))
    }

    fn read(&self) -> Result<Vec<u32>, TraceError> {
        let mut lines = self.lines()?;
        let mut line = StringRecord::new();
        if !self.next(&mut lines, &mut line)? {
            return Ok(Vec::new());
        }
        match line.iter().position(|name| name == FUNCTION) {
            Some(column) => {
                let minutes = line.iter().position(|name| name == "1").ok_or_else(|| {
                    self.wrong(&line, "", "without a column 1", "the minutes are columns 1, 2, 3 and so on")
                })?;
                self.by_function(&mut lines, column, minutes)
            }
            None => self.by_minute(&mut lines, line),
        }
    }

    fn by_function(&self, lines: &mut Lines, column: usize, from: usize) -> Result<Vec<u32>, TraceError> {
        let mut total: Vec<u32> = Vec::new();
        let mut found = false;
        let mut line = StringRecord::new();
        while self.next(lines, &mut line)? {
            if self.function.is_some_and(|wanted| line.get(column) != Some(wanted)) {
                continue;
            }
            found = true;
            for (minute, text) in line.iter().skip(from).take(MAX_MINUTES).enumerate() {
                let count = self.count(&line, text)?;
                if total.len() == minute {
                    total.push(0);
                }
                total[minute] = total[minute].saturating_add(count);
            }
        }
        match (found, self.function) {
            (false, Some(function)) => {
                Err(TraceError::NoFunction { path: self.path.into(), function: function.into() })
            }
            _ => Ok(total),
        }
    }

    fn by_minute(&self, lines: &mut Lines, first: StringRecord) -> Result<Vec<u32>, TraceError> {
        const RIGHT: &str = "each line must be a minute and its count, like `0,120`, with minutes in order";
        if let Some(function) = self.function {
            return Err(TraceError::NoFunction { path: self.path.into(), function: function.into() });
        }
        let mut counts: Vec<u32> = Vec::new();
        let mut line = first;
        let mut at_names = line.get(0).is_some_and(|text| text.parse::<f64>().is_err());
        loop {
            if !at_names {
                let text = line.get(0).unwrap_or_default();
                let minute = text.parse::<usize>().ok().filter(|&m| m < MAX_MINUTES && line.len() == 2);
                let minute = minute.filter(|&minute| minute >= counts.len());
                let minute = minute.ok_or_else(|| self.wrong(&line, text, "no next minute", RIGHT))?;
                counts.resize(minute, 0);
                counts.push(self.count(&line, &line[1])?);
            }
            at_names = false;
            if !self.next(lines, &mut line)? {
                return Ok(counts);
            }
        }
    }
}

/// A stream of the arrivals that counts per minute stand for. A minute's arrivals are at independent, evenly
/// distributed times in it, which is what a Poisson process of that count looks like.
#[derive(Clone, Debug)]
pub(super) struct Minutes {
    counts: std::vec::IntoIter<u32>,
    /// The current minute's start, ns.
    start: u64,
    /// What is left of the current minute, the latest first.
    left: Vec<Nanos>,
}

impl Minutes {
    pub(super) fn new(counts: Vec<u32>) -> Minutes {
        Minutes { counts: counts.into_iter(), start: 0, left: Vec::new() }
    }

    pub(super) fn next(&mut self, rng: &mut impl Rng) -> Option<Nanos> {
        const MINUTE: u64 = Nanos::from_secs(60).0;
        while self.left.is_empty() {
            let count = self.counts.next()?;
            self.left.extend((0..count).map(|_| Nanos(self.start + rng.random_range(0..MINUTE))));
            self.left.sort_unstable_by(|a, b| b.cmp(a));
            self.start += MINUTE;
        }
        self.left.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Arrivals;
    use super::*;
    use crate::workload::Arrival;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    const AZURE: &str = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,5,0,2\no,a,g,timer,1,1,1\n";

    #[test]
    fn a_function_has_its_own_counts_and_without_one_all_are_summed() {
        let file = file(AZURE);
        assert_eq!(read_minutes(file.path(), Some("f")).unwrap(), [5, 0, 2]);
        assert_eq!(read_minutes(file.path(), None).unwrap(), [6, 1, 3]);
        assert_eq!(read_functions(file.path()).unwrap(), ["f", "g"]);
    }

    #[test]
    fn two_columns_are_minutes_and_counts_and_minutes_left_out_have_none() {
        for names in ["", "minute,count\n"] {
            let file = file(&format!("{names}0,3\n2, 1\n"));
            assert_eq!(read_minutes(file.path(), None).unwrap(), [3, 0, 1]);
            assert_eq!(read_functions(file.path()).unwrap(), [""; 0]);
        }
    }

    #[test]
    fn each_minute_has_exactly_its_count_spread_over_it() {
        let file = file("0,600\n1,0\n2,60\n");
        let arrival = Arrival::Minutes { file: file.path().into(), function: None };
        let all: Vec<Nanos> = Arrivals::new(&arrival, 1.0, 7).unwrap().collect();
        assert!(all.is_sorted() && all.len() == 660);
        let within = |from, to| all.iter().filter(|t| (from..to).contains(&(t.0 / 1_000_000_000))).count();
        assert_eq!((within(0, 60), within(60, 120), within(120, 180)), (600, 0, 60));
        // 300 are expected in the half; six standard deviations off is a wrong distribution, not bad luck.
        assert!((within(0, 30) as f64 - 300.0).abs() < 6.0 * 150.0_f64.sqrt());
        assert_eq!(Arrivals::new(&arrival, 1.0, 7).unwrap().collect::<Vec<_>>(), all);
    }

    #[test]
    fn bad_counts_are_named_with_their_lines() {
        for (text, function, expected) in [
            ("0,3\n1,-2\n", None, ":2: `-2` is no count; it must be a whole number"),
            ("0,3\n0,3\n", None, ":2: `0` is no next minute; each line must be a minute and its count"),
            ("0,3,4\n", None, ":1: `0` is no next minute"),
            ("0,0\n", None, ": it lists no request"),
            ("0,1\n", Some("f"), ": it has no function `f`"),
            (AZURE, Some("h"), ": it has no function `h`"),
            ("HashFunction,a\nf,1\n", None, ":1: `` is without a column 1"),
            ("HashFunction,1\nf,x\n", Some("f"), ":2: `x` is no count"),
        ] {
            let file = file(text);
            let error = read_minutes(file.path(), function).unwrap_err().to_string();
            let error = error.strip_prefix(&file.path().display().to_string()).unwrap();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
