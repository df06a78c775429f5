//! Model zoos: CSV files with the profiles and SLOs of many models, `model,alpha_ms,beta_ms,slo_ms`, which
//! an entry of a workload file may name instead of one model.

use super::linear::{SLO, TERM};
use super::mistakes::Mistake;
use super::reader::Bounds;
use std::path::Path;

const HEADER: [&str; 4] = ["model", "alpha_ms", "beta_ms", "slo_ms"];

/// A line of a zoo.
pub(super) struct ZooModel {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) alpha_ms: f64,
    pub(super) beta_ms: f64,
    pub(super) slo_ms: f64,
}

/// The models of the zoo at `path`, or every mistake in it.
pub(super) fn read(path: &Path) -> Result<Vec<ZooModel>, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let mut mistake = |line: usize, field: &str, wrong: String, right: String| {
        mistakes.push(Mistake { file: path.into(), line, field: field.into(), wrong, right });
    };
    let mut models = Vec::new();
    let mut seen_header = false;
    let reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .has_headers(false)
        .flexible(true)
        .from_path(path);
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(e) => {
            let right = format!("name a CSV file with the columns {}", HEADER.join(","));
            mistake(1, "zoo", format!("the file can't be read ({e})"), right);
            return Err(mistakes);
        }
    };
    for record in reader.records() {
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                let line = e.position().map_or(1, |p| p.line() as usize);
                mistake(line, "zoo", format!("is no line of CSV ({e})"), "write values with commas between".into());
                break;
            }
        };
        let line = record.position().map_or(1, |p| p.line() as usize);
        if !seen_header {
            if record.iter().ne(HEADER) {
                let found = record.iter().collect::<Vec<_>>().join(",");
                mistake(line, "zoo", format!("`{found}` is not the header"), format!("begin with {}", HEADER.join(",")));
                break;
            }
            seen_header = true;
            continue;
        }
        match row(&record, line) {
            Ok(model) => models.push(model),
            Err((field, wrong, right)) => mistake(line, field, wrong, right),
        }
    }
    if mistakes.is_empty() && models.is_empty() {
        mistakes.push(Mistake {
            file: path.into(),
            line: 1,
            field: "zoo".into(),
            wrong: "names no model".into(),
            right: format!("write {} and a line for each model", HEADER.join(",")),
        });
    }
    if mistakes.is_empty() { Ok(models) } else { Err(mistakes) }
}

fn row(record: &csv::StringRecord, line: usize) -> Result<ZooModel, (&'static str, String, String)> {
    if record.len() != HEADER.len() {
        let wrong = format!("has {} values", record.len());
        return Err(("zoo", wrong, format!("give {}: {}", HEADER.len(), HEADER.join(","))));
    }
    let number = |column: usize, bounds: Bounds| {
        let parsed = record[column].parse().ok().filter(|&x| bounds.contain(x));
        parsed.ok_or_else(|| (HEADER[column], format!("is {}", &record[column]), format!("it must be {bounds}")))
    };
    if record[0].is_empty() {
        return Err((HEADER[0], "is empty".into(), "give the model a name".into()));
    }
    Ok(ZooModel {
        line,
        name: record[0].into(),
        alpha_ms: number(1, TERM)?,
        beta_ms: number(2, TERM)?,
        slo_ms: number(3, SLO)?,
    })
}
