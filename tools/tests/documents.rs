//! The documents' examples, run.

mod documented;

#[test]
fn the_examples_of_loadgen_work() {
    documented::run_examples("docs/loadgen.md");
}
