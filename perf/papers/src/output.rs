//! The files of the experiments: DIR/results/NAME.csv and NAME.svg, DIR/results.md and
//! DIR/scheduling.md. All files of an experiment are written under one lock, each under another
//! name first, and an interrupt waits for that lock: no file is ever half-written, and no chart
//! shows another file's numbers.

use super::table::Table;
use super::{EXPERIMENTS, Experiment, Rows, results};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of the results.
#[derive(Debug)]
pub struct Output {
    dir: PathBuf,
    writing: Mutex<()>,
}

impl Output {
    /// Results under `dir`.
    pub fn new(dir: &Path) -> Output {
        Output { dir: dir.to_owned(), writing: Mutex::new(()) }
    }

    /// Waits until no file is being written. No file is written while the guard is held.
    pub fn quiet(&self) -> MutexGuard<'_, ()> {
        // A thread that panicked while it wrote left whole files: each is put in place by one
        // rename.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what an experiment found: its CSV file, its chart and its part of its document.
    ///
    /// Errors: a file that can't be written, with its name.
    pub fn write(&self, experiment: &dyn Experiment, rows: Rows) -> io::Result<()> {
        let table = Table::new(experiment.columns(), rows);
        let _guard = self.quiet();
        write_whole(&self.file(experiment, "csv"), &table.csv())?;
        self.draw(experiment, &table)?;
        self.update()
    }

    /// Draws every chart and writes the documents anew from the CSV files that there are.
    ///
    /// Errors: a CSV file that is none of ours, or a file that can't be written, with its name.
    pub fn redraw(&self) -> io::Result<()> {
        let _guard = self.quiet();
        for &experiment in EXPERIMENTS {
            if let Some(table) = self.read(experiment)? {
                self.draw(experiment, &table)?;
            }
        }
        self.update()
    }

    /// Reads an experiment's CSV file; `None` if there is no such file.
    ///
    /// Errors: a file that can't be read or is none of ours.
    pub fn read(&self, experiment: &dyn Experiment) -> io::Result<Option<Table>> {
        let file = self.file(experiment, "csv");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(named(&file, error)),
        };
        let table = Table::parse(&text, experiment.columns());
        table.map(Some).map_err(|wrong| named(&file, io::Error::new(io::ErrorKind::InvalidData, wrong)))
    }

    /// The file of an experiment with this ending.
    pub fn file(&self, experiment: &dyn Experiment, ending: &str) -> PathBuf {
        self.dir.join("results").join(format!("{}.{ending}", experiment.name()))
    }

    fn draw(&self, experiment: &dyn Experiment, table: &Table) -> io::Result<()> {
        let file = self.file(experiment, "svg");
        let svg = experiment.figure(table).svg();
        write_whole(&file, &svg.map_err(|error| named(&file, io::Error::other(error.to_string())))?)
    }

    fn update(&self) -> io::Result<()> {
        let mut tables = Vec::new();
        for &experiment in EXPERIMENTS {
            tables.extend(self.read(experiment)?.map(|table| (experiment, table)));
        }
        for document in results::documents(&tables) {
            let file = self.dir.join(document);
            let before = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                Err(error) => return Err(named(&file, error)),
            };
            write_whole(&file, &results::updated(document, &before, &tables))?;
        }
        Ok(())
    }
}

fn write_whole(file: &Path, text: &str) -> io::Result<()> {
    let part = file.with_extension("part");
    let write = || {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&part, text)?;
        fs::rename(&part, file)
    };
    write().map_err(|error| named(file, error))
}

fn named(file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}
