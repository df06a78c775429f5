//! Triton's `config.pbtxt`. An input is the file; the model's folder is called `model`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;
use symphony::config::check_pbtxt;
use symphony::config::pbtxt::{PbtxtField, parse};

fn written(fields: &[PbtxtField<'_>]) -> String {
    fields.iter().map(|field| format!("{field}\n")).collect()
}

fuzz_target!(|text: &str| {
    let path = Path::new("config.pbtxt");
    let read = check_pbtxt(path, text, "model");
    let Ok(fields) = parse(path, text) else {
        assert!(read.is_err(), "what is no text format is no configuration");
        return;
    };
    let again = written(&fields);
    let reparsed = parse(path, &again).expect("what was written can be read");
    assert_eq!(written(&reparsed), again);
    let lines = text.lines().count().max(1);
    match (read, check_pbtxt(path, &again, "model")) {
        (Ok(notes), Ok(same)) => assert_eq!(notes.len(), same.len()),
        (Err(diagnostics), Err(same)) => {
            assert_eq!(diagnostics.0.len(), same.0.len());
            assert!(
                diagnostics.0.iter().all(|diagnostic| (1..=lines).contains(&diagnostic.line)),
                "{diagnostics}"
            );
        }
        (read, other) => panic!("{read:?} became {other:?}"),
    }
});
