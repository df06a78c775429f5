//! docs/results.md, docs/scheduling.md and their charts say what the committed CSV files say, and
//! differences are explained.

use std::fs;
use std::path::{Path, PathBuf};
use symphony_papers::output::Output;
use symphony_papers::table::Table;
use symphony_papers::{EXPERIMENTS, Experiment, results};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn tables() -> Vec<(&'static dyn Experiment, Table)> {
    let output = Output::new(&docs());
    let table = |experiment: &&'static dyn Experiment| {
        let table = output.read(*experiment).unwrap();
        (*experiment, table.unwrap_or_else(|| panic!("{} has no CSV file: run it", experiment.name())))
    };
    EXPERIMENTS.iter().map(table).collect()
}

#[test]
fn the_generated_parts_of_the_documents_agree_with_the_csv_files() {
    let tables = tables();
    let documents = results::documents(&tables);
    assert_eq!(documents, ["results.md", "scheduling.md"]);
    for document in documents {
        let text = read(&docs().join(document));
        assert!(
            results::updated(document, &text, &tables) == text,
            "{document}: run `experiments --redraw` and commit what it writes"
        );
    }
}

#[test]
fn charts_agree_with_the_csv_files() {
    let output = Output::new(&docs());
    for (experiment, table) in tables() {
        let file = output.file(experiment, "svg");
        let drawn = experiment.figure(&table).svg().unwrap();
        assert!(drawn == read(&file), "{}: run `experiments --redraw`", file.display());
    }
}

#[test]
fn a_difference_of_more_than_a_tenth_is_explained() {
    let text = read(&docs().join("results.md"));
    for (experiment, table) in tables() {
        if results::differs(experiment, &table) {
            let prose = results::prose(&text, experiment.name()).unwrap_or_default();
            assert!(prose.len() > 100, "{}: say below its table why it differs", experiment.name());
        }
    }
}

#[test]
fn an_empty_folder_gets_the_whole_document() {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(folder.path());
    let (experiment, table) = tables().swap_remove(0);
    let rows = table.rows().map(|row| experiment.columns().iter().map(|c| row.text(c).to_owned()).collect());
    output.write(experiment, rows.collect()).unwrap();
    let text = read(&folder.path().join("results.md"));
    assert!(text.contains(&format!("## {}", experiment.name())));
    let mut files: Vec<_> = fs::read_dir(folder.path().join("results"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, [format!("{}.csv", experiment.name()), format!("{}.svg", experiment.name())]);
}
