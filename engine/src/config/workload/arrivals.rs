//! Arrivals that users give as files: traces of instants, and counts per minute as the Azure
//! Functions trace has them (one CSV line a function, one column a minute). [`ArrivalSource`] is
//! what a workload file or a flag says; [`ArrivalSource::load`] makes the scheduler's [`Arrival`]
//! of it.

use crate::config::diagnostics::Diagnostic;
use crate::config::toml_reader::{Bounds, TomlTable, read_each};
use csv::StringRecord;
use std::io;
use std::path::{Path, PathBuf};
use symphony_scheduler::load_phases::{LoadPhase, LoadPhases, MAX_PHASES};
use symphony_scheduler::workload::Arrival;
use symphony_transport::Nanos;

/// A model's arrival process as a user writes it; files are named, not read yet.
#[derive(Clone, Debug, PartialEq)]
pub enum ArrivalSource {
    /// A process without a file.
    Process(Arrival),
    /// The instants that a file lists.
    Trace(PathBuf),
    /// Requests in each minute by the counts of a file.
    Minutes {
        /// A CSV of counts per minute: see [`read_minutes`].
        file: PathBuf,
        /// The function whose counts are meant; `None` for the sum over all functions of the file.
        function: Option<String>,
    },
}

impl ArrivalSource {
    /// Reads the file, if there is one, and returns the process.
    ///
    /// Errors: a [`ArrivalFileError`] that names the file and its first wrong line.
    pub fn load(&self) -> Result<Arrival, ArrivalFileError> {
        Ok(match self {
            ArrivalSource::Process(arrival) => arrival.clone(),
            ArrivalSource::Trace(path) => Arrival::Trace(read_trace(path)?.into()),
            ArrivalSource::Minutes { file, function } => {
                Arrival::Minutes(read_minutes(file, function.as_deref())?.into())
            }
        })
    }

    /// Returns the source with its file's path taken as relative to `folder`.
    pub fn beside(self, folder: &Path) -> ArrivalSource {
        match self {
            ArrivalSource::Trace(file) => ArrivalSource::Trace(folder.join(file)),
            ArrivalSource::Minutes { file, function } => {
                ArrivalSource::Minutes { file: folder.join(file), function }
            }
            process => process,
        }
    }

    /// True if the file, not a rate, determines the number of requests.
    pub fn has_own_rate(&self) -> bool {
        match self {
            ArrivalSource::Process(arrival) => arrival.has_own_rate(),
            ArrivalSource::Trace(_) | ArrivalSource::Minutes { .. } => true,
        }
    }
}

/// The texts that [`parse_arrival`] reads.
pub(super) const ARRIVAL_FORMS: &str = "\"poisson\", \"uniform\", \"gamma:K\" with a shape K above 0, like \"gamma:0.05\", \"trace:FILE\", or \"minutes:FILE\"";

/// Parses an arrival process: `poisson`, `uniform`, `gamma:K`, `trace:FILE`,
/// `minutes:FILE` or `minutes:FILE#FUNCTION`.
///
/// Errors: what would be right.
pub fn parse_arrival(text: &str) -> Result<ArrivalSource, &'static str> {
    let shapes = Bounds::above(0.0, 1e6);
    match text.split_once(':') {
        None if text == "poisson" => Ok(ArrivalSource::Process(Arrival::Poisson)),
        None if text == "uniform" => Ok(ArrivalSource::Process(Arrival::Uniform)),
        Some(("gamma", shape)) => {
            let shape = shape.trim().parse().ok().filter(|&k| shapes.contain(k));
            shape.map(|k| ArrivalSource::Process(Arrival::Gamma(k))).ok_or(ARRIVAL_FORMS)
        }
        Some(("trace", file)) if !file.is_empty() => Ok(ArrivalSource::Trace(PathBuf::from(file))),
        Some(("minutes", text)) if !text.is_empty() => {
            let (file, function) = text.split_once('#').map_or((text, None), |(file, f)| (file, Some(f)));
            Ok(ArrivalSource::Minutes { file: file.into(), function: function.map(Into::into) })
        }
        _ => Err(ARRIVAL_FORMS),
    }
}

/// The reason why a file of arrivals can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ArrivalFileError {
    /// The file could not be read.
    #[error("{}: the trace can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is not an offset.
    #[error("{}:{line}: `{text}` is {wrong}; {right}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The text of the line.
        text: String,
        /// The problem.
        wrong: &'static str,
        /// The remedy.
        right: &'static str,
    },
    /// The file lists no arrival.
    #[error("{}: the trace is empty; it needs one offset in seconds on each line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The counts per minute of a file come to nothing.
    #[error("{}: it lists no request{}", path.display(), function.as_ref().map_or(String::new(), |f| format!(" of function `{f}`")))]
    NoCounts {
        /// The file.
        path: PathBuf,
        /// The function asked for.
        function: Option<String>,
    },
    /// The file has no counts for this function.
    #[error("{}: it has no function `{function}`; its column HashFunction names them", path.display())]
    NoFunction {
        /// The file.
        path: PathBuf,
        /// The function asked for.
        function: String,
    },
}

impl From<ArrivalFileError> for io::Error {
    fn from(error: ArrivalFileError) -> io::Error {
        match error {
            ArrivalFileError::Read { ref source, .. } => io::Error::new(source.kind(), error),
            _ => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// Reads the arrivals of a trace file: offsets from the start in seconds, one on each line, in
/// order. Empty lines and those that start with `#` are skipped.
///
/// Errors: a [`ArrivalFileError`], with the first line that is wrong.
pub fn read_trace(path: &Path) -> Result<Vec<Nanos>, ArrivalFileError> {
    let bytes = std::fs::read(path).map_err(|source| ArrivalFileError::Read { path: path.into(), source })?;
    let mut offsets: Vec<Nanos> = Vec::new();
    for (at, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let offset = parse_offset(text, offsets.last().copied()).map_err(|(wrong, right)| {
            let text = text.chars().take(40).collect();
            ArrivalFileError::Line { path: path.into(), line: at + 1, text, wrong, right }
        })?;
        offsets.push(offset);
    }
    if offsets.is_empty() {
        return Err(ArrivalFileError::Empty { path: path.into() });
    }
    Ok(offsets)
}

/// Parses an offset; an error is what is wrong and what would be right.
fn parse_offset(text: &str, before: Option<Nanos>) -> Result<Nanos, (&'static str, &'static str)> {
    let seconds: f64 =
        text.parse().map_err(|_| ("no number", "it must be an offset in seconds, like `1.25`"))?;
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(("no offset", "it must be a finite number of seconds, 0 or more"));
    }
    let offset = Nanos::from_secs_f64(seconds);
    if before.is_some_and(|before| offset < before) {
        return Err(("before the line above", "offsets must not go back"));
    }
    Ok(offset)
}

/// The column that names a function in the Azure Functions trace.
const FUNCTION: &str = "HashFunction";

/// The counts of a file that one stream may have: of ten years.
const MAX_MINUTES: usize = 10 * 366 * 24 * 60;

/// The most arrivals of one minute.
const MAX_COUNT: u32 = 100_000_000;

const COUNT: &str = "it must be a whole number of requests from 0 to 100000000";

/// Reads the requests of each minute in a file, for one function or, with `None`, for all of them
/// together.
///
/// The file is a CSV in one of two forms. One line a function: a first line with the column
/// `HashFunction` and columns named 1, 2, 3 … for the minutes (other columns, like the trace's
/// HashOwner, HashApp and Trigger, are not used). Or one line a minute: `minute,count`, in order,
/// where minutes that are left out have no requests; a first line of names may come before.
///
/// Errors: a [`ArrivalFileError`], with the first line that is wrong; a function that the file does
/// not have.
pub fn read_minutes(path: &Path, function: Option<&str>) -> Result<Vec<u32>, ArrivalFileError> {
    let counts = MinutesFile { path, function }.read()?;
    if counts.iter().all(|&count| count == 0) {
        return Err(ArrivalFileError::NoCounts { path: path.into(), function: function.map(Into::into) });
    }
    Ok(counts)
}

/// Reads the functions of a file, in its order; empty for a file with one line a minute.
///
/// Errors: a [`ArrivalFileError`].
pub fn read_functions(path: &Path) -> Result<Vec<String>, ArrivalFileError> {
    let reading = MinutesFile { path, function: None };
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

struct MinutesFile<'a> {
    path: &'a Path,
    function: Option<&'a str>,
}

impl MinutesFile<'_> {
    fn lines(&self) -> Result<Lines, ArrivalFileError> {
        let read = |source| ArrivalFileError::Read { path: self.path.into(), source };
        let file = std::fs::File::open(self.path).map_err(read)?;
        let mut builder = csv::ReaderBuilder::new();
        Ok(builder.has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(file))
    }

    fn next(&self, lines: &mut Lines, line: &mut StringRecord) -> Result<bool, ArrivalFileError> {
        lines.read_record(line).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(source) => ArrivalFileError::Read { path: self.path.into(), source },
            _ => ArrivalFileError::Line {
                path: self.path.into(),
                line: line.position().map_or(1, |p| p.line() as usize),
                text: String::new(),
                wrong: "not UTF-8",
                right: "it must be a CSV file in UTF-8",
            },
        })
    }

    fn wrong(
        &self,
        line: &StringRecord,
        text: &str,
        wrong: &'static str,
        right: &'static str,
    ) -> ArrivalFileError {
        let number = line.position().map_or(1, |location| location.line() as usize);
        let text = text.chars().take(40).collect();
        ArrivalFileError::Line { path: self.path.into(), line: number, text, wrong, right }
    }

    fn count(&self, line: &StringRecord, text: &str) -> Result<u32, ArrivalFileError> {
        let count = text.parse().ok().filter(|&count| count <= MAX_COUNT);
        count.ok_or_else(|| self.wrong(line, text, "no count", COUNT))
    }

    fn read(&self) -> Result<Vec<u32>, ArrivalFileError> {
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

    fn by_function(
        &self,
        lines: &mut Lines,
        column: usize,
        from: usize,
    ) -> Result<Vec<u32>, ArrivalFileError> {
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
                Err(ArrivalFileError::NoFunction { path: self.path.into(), function: function.into() })
            }
            _ => Ok(total),
        }
    }

    fn by_minute(&self, lines: &mut Lines, first: StringRecord) -> Result<Vec<u32>, ArrivalFileError> {
        const RIGHT: &str = "each line must be a minute and its count, like `0,120`, with minutes in order";
        if let Some(function) = self.function {
            return Err(ArrivalFileError::NoFunction { path: self.path.into(), function: function.into() });
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

/// Reads the `arrival` of a table, Poisson where there is none, and the `phases` of its rate.
pub(super) fn read_arrival(table: &TomlTable<'_>) -> Option<Arrival> {
    let (process, phases) = (read_process(table), read_phases(table));
    let (process, phases) = (process?, phases?);
    if phases.is_steady() {
        return Some(process);
    }
    if process.has_own_rate() {
        let wrong = "are of an arrival whose file determines the rate";
        table.report("phases", wrong, "leave them out, or give a process such as \"poisson\"");
        return None;
    }
    Some(Arrival::Phased(process.into(), phases))
}

/// Reads the `phases` of a load: steady where there are none.
pub(super) fn read_phases(table: &TomlTable<'_>) -> Option<LoadPhases> {
    let Some(value) = table.optional("phases") else { return Some(LoadPhases::default()) };
    let items = value.items("give a list of tables, each with `for_s` and `factor`")?;
    if items.is_empty() || items.len() > MAX_PHASES {
        value.report(format!("has {} phases", items.len()), format!("give 1 to {MAX_PHASES}"));
        return None;
    }
    let phases = read_each(&items, |item| item.table(read_phase))?;
    let load = LoadPhases::new(&phases);
    if load.is_err() {
        value.report("has a factor of 0 in every phase", "give at least one phase a factor above 0");
    }
    load.ok()
}

fn read_phase(table: &TomlTable<'_>) -> Option<LoadPhase> {
    let lasts = table.required("for_s", "the length of the phase, in seconds");
    let lasts = lasts.and_then(|value| value.number(Bounds::from(0.001, 86_400.0)));
    let factor = table.required("factor", "the load in the phase, compared with the other phases'");
    let factor = factor.and_then(|value| value.number(Bounds::from(0.0, 1e6)));
    Some(LoadPhase { lasts: Nanos::from_secs_f64(lasts?), factor: factor? })
}

/// Reads the `arrival` of a table without its phases.
fn read_process(table: &TomlTable<'_>) -> Option<Arrival> {
    let Some(value) = table.optional("arrival") else { return Some(Arrival::Poisson) };
    let text = value.text(ARRIVAL_FORMS)?;
    let source = match parse_arrival(text) {
        Ok(source) => source.beside(table.folder()),
        Err(right) => {
            value.refuse_value(right);
            return None;
        }
    };
    let field = if matches!(source, ArrivalSource::Trace(_)) { "offset" } else { "count" };
    let diagnostic = match source.load() {
        Ok(arrival) => return Some(arrival),
        Err(error) => trace_diagnostic(error, field),
    };
    match diagnostic {
        Ok(diagnostic) => table.add(diagnostic),
        Err((wrong, right)) => value.report(wrong, right),
    }
    None
}

/// The diagnostic in a trace, or what to say of the field that names it.
fn trace_diagnostic(error: ArrivalFileError, field: &str) -> Result<Diagnostic, (String, &'static str)> {
    match error {
        ArrivalFileError::Line { path, line, text, wrong, right } => Ok(Diagnostic {
            file: path,
            line,
            field: field.into(),
            wrong: format!("`{text}` is {wrong}"),
            right: right.into(),
        }),
        ArrivalFileError::Read { path, source } => Err((
            format!("the trace {} can't be read ({source})", path.display()),
            "name a file beside this one with an offset in seconds on each line",
        )),
        ArrivalFileError::Empty { path } => {
            Err((format!("the trace {} is empty", path.display()), "write an offset in seconds on each line"))
        }
        error @ (ArrivalFileError::NoCounts { .. } | ArrivalFileError::NoFunction { .. }) => {
            Err((error.to_string(), "name a CSV of counts per minute, or a function that it has after a #"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_trace_is_played_as_written_and_ends() {
        let file = file("# seconds\n0\n0.5\n\n0.5\r\n1e0\n");
        let arrivals = read_trace(file.path()).unwrap();
        let expected = [0, 500, 500, 1_000].map(Nanos::from_millis);
        assert_eq!(arrivals.as_slice(), expected);
    }

    #[test]
    fn a_bad_trace_names_its_first_bad_line() {
        for (text, expected) in [
            ("0.1\nsoon\n", ":2: `soon` is no number; it must be an offset in seconds, like `1.25`"),
            ("0.1\n-1\n", ":2: `-1` is no offset; it must be a finite number of seconds, 0 or more"),
            ("nan", ":1: `nan` is no offset; it must be a finite number of seconds, 0 or more"),
            ("0.2\n0.1\n", ":2: `0.1` is before the line above; offsets must not go back"),
            ("# nothing\n", ": the trace is empty; it needs one offset in seconds on each line"),
        ] {
            let file = file(text);
            let error = read_trace(file.path()).unwrap_err();
            assert_eq!(error.to_string(), format!("{}{expected}", file.path().display()));
        }
        let missing = io::Error::from(read_trace(Path::new("/no/such/file")).unwrap_err());
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
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
