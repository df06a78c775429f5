//! The documents' examples, run.

#[path = "../../engine/tests/harness/binaries.rs"]
mod binaries;
mod documented;
#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../engine/tests/harness/process.rs"]
mod process;

#[test]
fn the_examples_of_loadgen_work() {
    // Their subject is what loadgen does, not how fast this machine is: three at a time they take a
    // third of the time.
    documented::run_examples(&["docs/loadgen.md"], 3);
}

#[test]
fn the_examples_for_operators_of_a_server_work() {
    let documents = ["api", "configuration", "repository", "metrics", "dashboard", "tracing", "security"];
    let documents = documents.map(|name| format!("docs/{name}.md"));
    documented::run_examples(&documents.each_ref().map(String::as_str), 1);
}

#[test]
fn the_example_of_a_query_is_valid() {
    documented::run_examples(&["examples/queries/README.md"], 1);
}

#[test]
fn every_config_in_the_documents_is_valid() {
    ["docs/configuration.md", "docs/repository.md", "docs/tracing.md"]
        .into_iter()
        .for_each(documented::check_configs);
}
