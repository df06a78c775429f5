//! Model zoos: CSV files with the profiles and SLOs of many models,
//! `model,alpha_ms,beta_ms,slo_ms`, which an entry of a workload file may name instead of one
//! model.

use crate::config::diagnostics::Diagnostic;
use crate::config::linear_profile::{SLO, TERM};
use crate::config::toml_reader::Bounds;
use std::path::{Path, PathBuf};

const HEADER: [&str; 4] = ["model", "alpha_ms", "beta_ms", "slo_ms"];

/// A line of a zoo.
pub(super) struct ZooModel {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) alpha_ms: f64,
    pub(super) beta_ms: f64,
    pub(super) slo_ms: f64,
}

/// The models of the zoo at `path`, at least one.
///
/// Errors: every diagnostic in it.
pub(super) fn read(path: &Path) -> Result<Vec<ZooModel>, Vec<Diagnostic>> {
    let mut zoo = Zoo { path: path.into(), models: Vec::new(), diagnostics: Vec::new() };
    let columns = HEADER.join(",");
    let mut csv = csv::ReaderBuilder::new();
    let csv = csv.trim(csv::Trim::All).comment(Some(b'#')).has_headers(false).flexible(true);
    match csv.from_path(path) {
        Ok(reader) => zoo.read(reader.into_records(), &columns),
        Err(e) => {
            let right = format!("name a CSV file with the columns {columns}");
            zoo.diagnostic(1, "zoo", format!("the file can't be read ({e})"), right);
        }
    }
    if zoo.diagnostics.is_empty() && zoo.models.is_empty() {
        zoo.diagnostic(
            1,
            "zoo",
            "names no model".into(),
            format!("write {columns} and a line for each model"),
        );
    }
    if zoo.diagnostics.is_empty() { Ok(zoo.models) } else { Err(zoo.diagnostics) }
}

struct Zoo {
    path: PathBuf,
    models: Vec<ZooModel>,
    diagnostics: Vec<Diagnostic>,
}

impl Zoo {
    fn read(&mut self, records: impl Iterator<Item = csv::Result<csv::StringRecord>>, columns: &str) {
        for (at, record) in records.enumerate() {
            let record = match record {
                Ok(record) => record,
                Err(e) => {
                    let line = e.position().map_or(1, |p| p.line() as usize);
                    let right = format!("write {columns} as text");
                    return self.diagnostic(line, "zoo", format!("is no line of CSV ({e})"), right);
                }
            };
            let line = record.position().map_or(1, |p| p.line() as usize);
            if at > 0 {
                self.read_model(&record, line);
            } else if record.iter().ne(HEADER) {
                let found = record.iter().collect::<Vec<_>>().join(",");
                let wrong = format!("{found:?} is not the header");
                return self.diagnostic(line, "zoo", wrong, format!("begin with {columns}"));
            }
        }
    }

    fn read_model(&mut self, record: &csv::StringRecord, line: usize) {
        if record.len() != HEADER.len() {
            let right = format!("give {}: {}", HEADER.len(), HEADER.join(","));
            return self.diagnostic(line, "zoo", format!("has {} values", record.len()), right);
        }
        if record[0].is_empty() {
            self.diagnostic(line, HEADER[0], "is empty".into(), "give the model a name".into());
        }
        let alpha_ms = self.number(record, line, 1, TERM);
        let beta_ms = self.number(record, line, 2, TERM);
        let slo_ms = self.number(record, line, 3, SLO);
        if let (Some(alpha_ms), Some(beta_ms), Some(slo_ms)) = (alpha_ms, beta_ms, slo_ms) {
            self.models.push(ZooModel { line, name: record[0].into(), alpha_ms, beta_ms, slo_ms });
        }
    }

    fn number(&mut self, record: &csv::StringRecord, line: usize, at: usize, bounds: Bounds) -> Option<f64> {
        let number = record[at].parse().ok().filter(|&x| bounds.contain(x));
        if number.is_none() {
            let wrong = format!("is {}", record[at].escape_debug());
            self.diagnostic(line, HEADER[at], wrong, format!("it must be {bounds}"));
        }
        number
    }

    fn diagnostic(&mut self, line: usize, field: &str, wrong: String, right: String) {
        let (file, field) = (self.path.clone(), field.into());
        self.diagnostics.push(Diagnostic { file, line, field, wrong, right });
    }
}
