//! The files that a run leaves. They are made before it, so that a path that can't be written is
//! an error at once.

use super::Report;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A form in which a run is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file for [`super::Saved`].
    Saved,
    /// HdrHistogram's interval log.
    Hlog,
    /// HdrHistogram's percentiles.
    Hgrm,
    /// A line a second.
    Seconds,
    /// A line a request.
    Requests,
    /// A page.
    Html,
}

/// The files of one run, open.
pub struct Files {
    files: Vec<(Form, PathBuf, File)>,
    /// The folder of the charts' own files.
    charts: Option<PathBuf>,
}

impl Files {
    /// Makes the files, empty, and the folder of charts.
    ///
    /// Errors: one that can't be made, named.
    pub fn create(wanted: &[(Form, PathBuf)], charts: Option<&Path>) -> Result<Files, String> {
        let failed = |path: &Path, e: io::Error| format!("{}: can't be written ({e})", path.display());
        let create = |(form, path): &(Form, PathBuf)| {
            let file = File::create(path).map_err(|e| failed(path, e))?;
            Ok((*form, path.clone(), file))
        };
        if let Some(folder) = charts {
            std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        }
        let files = wanted.iter().map(create).collect::<Result<_, String>>()?;
        Ok(Files { files, charts: charts.map(Into::into) })
    }

    /// True if every single request must be kept.
    pub fn need_records(&self) -> bool {
        self.files.iter().any(|(form, ..)| *form == Form::Requests)
    }

    /// Writes the report to all of them.
    ///
    /// Errors: one that can't be written, named.
    pub fn write(self, report: &Report) -> Result<(), String> {
        for (form, path, file) in self.files {
            let mut out = BufWriter::new(file);
            let written = match form {
                Form::Saved => out.write_all(report.saved_json().as_bytes()),
                Form::Hlog => report.write_hlog(&mut out),
                Form::Hgrm => report.write_hgrm(&mut out),
                Form::Seconds => report.write_seconds(&mut out),
                Form::Requests => report.write_requests(&mut out),
                Form::Html => out.write_all(report.html().as_bytes()),
            };
            written
                .and_then(|()| out.flush())
                .map_err(|e| format!("{}: can't be written ({e})", path.display()))?;
        }
        for (name, svg) in self.charts.iter().flat_map(|_| report.svgs()) {
            let path =
                self.charts.iter().map(|folder| folder.join(name).with_extension("svg")).collect::<PathBuf>();
            std::fs::write(&path, svg).map_err(|e| format!("{}: can't be written ({e})", path.display()))?;
        }
        Ok(())
    }
}
