//! `symphony replay`: replays recordings, prints a line about each, and explains one request.

use super::failure::CommandFailure;
use crate::recorder::replay::{Replayed, RequestBatch, Wanted, completed, replay as replay_file};
use crate::recorder::{RecordError, recordings};
use clap::Args;
use std::path::{Path, PathBuf};

/// The arguments of `replay`.
#[derive(Args)]
pub(super) struct ReplayArguments {
    /// A file of `serve --record`, or the folder of such files
    recording: PathBuf,
    /// Explain why the request of this id was batched, dropped or late
    #[arg(long, value_name = "ID")]
    request: Option<u64>,
    /// The frontend (API core) that accepted the request; ids are unique per frontend
    #[arg(long, value_name = "F", requires = "request")]
    frontend: Option<u32>,
}

/// Replays a recording, or all those of a folder, prints a line about each, and explains one
/// request.
///
/// Errors: a decision that differs, exit code 1; a file that is no sound recording, 2; a request
/// that is in no recording, 1.
pub(super) fn replay(arguments: ReplayArguments) -> Result<(), CommandFailure> {
    let ReplayArguments { recording, request, frontend } = arguments;
    let wanted = request.map(|id| Wanted { id, frontend });
    let mut files = Vec::new();
    for file in files_at(&recording)? {
        let replayed = replay_file(&file, wanted)?;
        println!("{}", summary(&replayed));
        files.push(replayed);
    }
    if let Some(wanted) = wanted {
        explain(&files, wanted)?;
    }
    let differing = files.iter().filter(|file| file.difference.is_some()).count();
    if differing > 0 {
        return Err(CommandFailure::Run(format!(
            "{differing} of {} recordings gave another decision",
            files.len()
        )));
    }
    Ok(())
}

fn files_at(path: &Path) -> Result<Vec<PathBuf>, RecordError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = recordings(path).map_err(|error| RecordError::Read(path.to_owned(), error))?;
    if files.is_empty() {
        return Err(RecordError::Nothing(path.to_owned()));
    }
    Ok(files)
}

fn summary(replayed: &Replayed) -> String {
    let Replayed { path, requests, inputs, decisions, states, from, to, forgotten, .. } = replayed;
    let of_them = if *requests > 0 { format!(" ({requests} requests)") } else { String::new() };
    let verdict = match &replayed.difference {
        None => "the same decisions came out".to_owned(),
        Some(difference) => format!("ANOTHER DECISION CAME OUT: {difference}"),
    };
    let before = if *forgotten > 0 { "; what came before was written over" } else { "" };
    format!(
        "{}: {inputs} inputs{of_them}, {decisions} decisions and {states} states in between replayed, from {:.3} s to \
         {:.3} s after the start{before}: {verdict}",
        path.display(),
        from.as_secs_f64(),
        to.as_secs_f64()
    )
}

/// Prints the history of the request in the recordings.
fn explain(files: &[Replayed], wanted: Wanted) -> Result<(), CommandFailure> {
    let lines: Vec<&String> = files.iter().flat_map(|file| &file.explanation).collect();
    if lines.is_empty() {
        let at = wanted.frontend.map_or(String::new(), |frontend| format!(" of frontend {frontend}"));
        let text = format!("request {}{at} is in none of these recordings' history", wanted.id);
        return Err(CommandFailure::Run(text));
    }
    lines.iter().for_each(|line| println!("{line}"));
    for of in files.iter().flat_map(|file| &file.batches) {
        println!("{}", end_of(*of, files));
    }
    Ok(())
}

fn end_of(of: RequestBatch, files: &[Replayed]) -> String {
    let completions = files.iter().flat_map(|file| &file.completions);
    match completions.into_iter().find(|completion| completion.batch == of.batch) {
        Some(completion) => completed(of, *completion),
        None => format!(
            "batch {}: when it ran is not known here; give the folder with the RankThread's recording, rank.symrec",
            of.batch
        ),
    }
}
