//! The file of results: for each workload the goodputs that were found, by rule, and how often the
//! half that is only reported was looked at. It is written whole, under another name first, so a
//! run that was interrupted goes on where it was.

use super::generator::{HALF, Half, VERSION};
use crate::provenance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;
use symphony_scheduler::workload::Workload;

/// What was found for each rule, by its name: requests per second, for each seed.
pub type ByRule = BTreeMap<String, Vec<f64>>;

/// The results of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadResult {
    /// The workload's name.
    pub name: String,
    /// The number of GPUs.
    pub gpus: usize,
    /// The number of models.
    pub models: usize,
    /// What was found.
    pub goodput_rps: ByRule,
}

/// A time at which figures of the half that is only reported were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The commit that ran.
    pub commit: Option<String>,
    /// The rules that ran.
    pub rules: Vec<String>,
}

/// The contents of the file, but for the workloads.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    command: String,
    commit: Option<String>,
    generator: u32,
    looks: Vec<Look>,
}

/// All that was found.
#[derive(Clone, Debug)]
pub struct PopulationResults {
    head: Head,
    workloads: BTreeMap<(Half, usize), WorkloadResult>,
}

impl Default for PopulationResults {
    fn default() -> PopulationResults {
        let head = Head {
            command: provenance::command_line(),
            commit: provenance::commit(),
            generator: VERSION,
            looks: Vec::new(),
        };
        PopulationResults { head, workloads: BTreeMap::new() }
    }
}

impl PopulationResults {
    /// Reads the file; nothing was found yet if there is none.
    ///
    /// Errors: a file that can't be read, that is none of ours, or that is of another version of
    /// the generator and the search.
    pub fn read(file: &Path) -> io::Result<PopulationResults> {
        match std::fs::read_to_string(file) {
            Ok(text) => PopulationResults::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PopulationResults::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> io::Result<PopulationResults> {
        #[derive(Deserialize)]
        struct Whole {
            #[serde(flatten)]
            head: Head,
            result: Vec<WorkloadResult>,
        }
        let invalid = |wrong: String| io::Error::new(io::ErrorKind::InvalidData, wrong);
        let Whole { head, result } =
            serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if head.generator != VERSION {
            let theirs = head.generator;
            return Err(invalid(format!(
                "it is of version {theirs} of the generator and the search, and this is {VERSION}; remove the file"
            )));
        }
        let mut workloads = BTreeMap::new();
        for found in result {
            let key = key(&found.name).ok_or_else(|| invalid(format!("{:?} is no workload", found.name)))?;
            workloads.insert(key, found);
        }
        Ok(PopulationResults { head, workloads })
    }

    /// Writes the file, a line for each workload.
    ///
    /// Errors: the file can't be written.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let part = file.with_extension("part");
        std::fs::write(&part, self.text())?;
        std::fs::rename(&part, file)
    }

    fn text(&self) -> String {
        let head = serde_json::to_string_pretty(&self.head).expect("plain data has a form in JSON");
        let mut text = head.trim_end_matches("\n}").to_owned();
        text += ",\n  \"result\": [";
        for (at, found) in self.workloads.values().enumerate() {
            let line = serde_json::to_string(found).expect("plain data has a form in JSON");
            write!(text, "{}\n    {line}", if at == 0 { "" } else { "," }).expect("memory takes it");
        }
        text + "\n  ]\n}\n"
    }

    /// Returns what was found for the workload.
    pub fn on(&self, workload: &str) -> Option<&WorkloadResult> {
        self.workloads.get(&key(workload)?)
    }

    /// Returns what was found for the workload under this rule.
    pub fn found(&self, workload: &str, rule: &str) -> Option<&[f64]> {
        self.on(workload)?.goodput_rps.get(rule).map(Vec::as_slice)
    }

    /// Keeps what was found for the workload under this rule.
    pub fn keep(&mut self, workload: &Workload, rule: &str, goodput_rps: &[f64]) {
        let Some(key) = key(&workload.name) else { return };
        let found = self.workloads.entry(key).or_insert_with(|| WorkloadResult {
            name: workload.name.clone(),
            gpus: workload.gpus,
            models: workload.models.len(),
            goodput_rps: ByRule::new(),
        });
        // To a hundredth of a request: the rest says nothing.
        let rounded = goodput_rps.iter().map(|rps| (rps * 100.0).round() / 100.0).collect();
        found.goodput_rps.insert(rule.to_owned(), rounded);
    }

    /// Forgets what was found for a rule on a half.
    pub fn forget(&mut self, half: Half, rule: &str) {
        for (_, found) in self.workloads.range_mut((half, 0)..(half, HALF)) {
            found.goodput_rps.remove(rule);
        }
    }

    /// Notes that the half that is only reported was run, for these rules, by this command.
    pub fn look(&mut self, rules: Vec<String>) {
        self.head.command = provenance::command_line();
        self.head.commit = provenance::commit();
        self.head.looks.push(Look { commit: self.head.commit.clone(), rules });
    }

    /// Returns how often that was.
    pub fn looks(&self) -> usize {
        self.head.looks.len()
    }

    /// Returns the results of a half, in the order of its workloads.
    pub fn of(&self, half: Half) -> impl Iterator<Item = &WorkloadResult> {
        self.workloads.range((half, 0)..(half, HALF)).map(|(_, found)| found)
    }
}

fn key(name: &str) -> Option<(Half, usize)> {
    let (half, number) = name.rsplit_once('-')?;
    Some((Half::parse(half)?, number.parse().ok().filter(|&number| number < HALF)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_was_kept() {
        let mut results = PopulationResults::default();
        for name in ["report-003", "tune-399", "tune-002"] {
            let workload = Half::by_name(name).unwrap();
            results.keep(&workload, "symphony", &[1.0, 2.004, 3.0]);
            results.keep(&workload, "clipper", &[0.0]);
        }
        results.look(vec!["symphony".to_owned()]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("population.json");
        assert_eq!(PopulationResults::read(&file).unwrap().looks(), 0);
        results.write(&file).unwrap();
        let mut read = PopulationResults::read(&file).unwrap();
        assert_eq!(read.looks(), 1);
        assert_eq!(read.workloads, results.workloads.clone());
        assert_eq!(read.found("tune-002", "symphony"), Some(&[1.0, 2.0, 3.0][..]));
        assert_eq!(read.found("tune-002", "nexus"), None);
        read.forget(Half::Tune, "symphony");
        assert_eq!(read.found("tune-002", "symphony"), None);
        assert_eq!(read.found("report-003", "symphony"), Some(&[1.0, 2.0, 3.0][..]));
        let names: Vec<&str> = read.of(Half::Tune).map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["tune-002", "tune-399"]);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("population.json");
        let text = PopulationResults::default().text();
        for (wrong, says) in [
            ("{}".to_owned(), "missing field"),
            (
                text.replace(&format!("\"generator\": {VERSION}"), "\"generator\": 0"),
                "version 0 of the generator",
            ),
        ] {
            std::fs::write(&file, wrong).unwrap();
            let error = PopulationResults::read(&file).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
