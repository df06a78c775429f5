//! The documents' examples, run.

mod documented;

#[test]
fn the_examples_of_loadgen_work() {
    // They are about what loadgen does, not about what this machine can: side by side they take a
    // third of the time.
    documented::run_examples(&["docs/loadgen.md"], 3);
}

#[test]
fn the_examples_for_whoever_runs_a_server_work() {
    let documents = ["api", "configuration", "repository", "metrics", "dashboard", "tracing", "security"];
    let documents = documents.map(|name| format!("docs/{name}.md"));
    documented::run_examples(&documents.each_ref().map(String::as_str), 1);
}

#[test]
fn every_config_in_the_documents_is_one() {
    ["docs/configuration.md", "docs/repository.md", "docs/tracing.md"]
        .into_iter()
        .for_each(documented::check_configs);
}
