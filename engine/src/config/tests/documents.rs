//! The documents list every key that there is, and none that there is not. A key that nobody knows
//! is put into every table that a document tells of; the diagnostic that comes out lists the keys
//! that its reader does know.

use super::{folder, rendered};
use crate::config::{
    Config, Diagnostics, RepositoryFlags, parse_config, read_config, read_config_with, read_workload,
    repository::triton,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A key that is like no other.
const UNKNOWN: &str = "qqqqqqqq = 1\n";

/// Keys by table: `` is the root, `[http]` a section, `[[models]]` tables, `[[models]].profile`
/// tables in them.
type Keys = BTreeMap<String, BTreeSet<String>>;

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)).unwrap()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The keys that a document lists: the first column of each table of which it is called "key". A
/// heading of the second level names the table, `[section]` or `[[tables]]`, else it is the root;
/// one of the third the keys whose tables it describes.
fn documented(text: &str) -> Keys {
    let mut keys = Keys::from([(String::new(), BTreeSet::new())]);
    let (mut table, mut within, mut listing) = (String::new(), vec![String::new()], false);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table =
                quoted(heading).first().filter(|name| name.starts_with('[')).copied().unwrap_or("").into();
            within = vec![table.clone()];
            if !table.is_empty() {
                let name = table.trim_matches(['[', ']']).to_owned();
                keys.get_mut("").expect("the root is there").insert(name);
            }
        } else if let Some(heading) = line.strip_prefix("### ") {
            within = quoted(heading).iter().map(|name| format!("{table}.{name}")).collect();
            if table.is_empty() || heading.contains(':') || within.is_empty() {
                within = vec![table.clone()];
            }
        } else if line.starts_with("| key |") {
            listing = true;
        } else if !line.starts_with('|') {
            listing = false;
        } else if listing && !line.starts_with("| ---") {
            let names = quoted(line.split('|').nth(1).unwrap());
            for table in &within {
                keys.entry(table.clone()).or_default().extend(names.iter().map(|name| (*name).to_owned()));
            }
        }
    }
    keys
}

/// The keys that readers say they know, from diagnostics like
/// `f.toml:3: models[0].qqqqqqqq: is no field …; the fields here are …`.
fn known(diagnostics: &[String]) -> Keys {
    let mut keys = Keys::new();
    for diagnostic in diagnostics.iter().filter(|diagnostic| diagnostic.contains("qqqqqqqq: ")) {
        let field = diagnostic.split(": ").nth(1).unwrap().trim_end_matches("qqqqqqqq").trim_end_matches('.');
        let mut parts = field.split('.').map(|part| match part.split_once('[') {
            Some((name, _)) => (name, true),
            None => (part, false),
        });
        let (first, many) = parts.next().unwrap();
        let inner: Vec<&str> = parts.map(|(name, _)| name).collect();
        let table = match (first, many) {
            ("", _) => String::new(),
            (name, true) => format!("[[{name}]]"),
            (name, false) => format!("[{name}]"),
        };
        let table = [vec![table.as_str()], inner].concat().join(".");
        let names = diagnostic.split("the fields here are ").nth(1).expect("all fields are listed");
        keys.entry(table).or_default().extend(names.split(", ").map(str::to_owned));
    }
    keys
}

/// A file with an unknown key in the root and in every section and table of tables that is
/// documented; `given` has some of them.
fn with_unknown_keys(documented: &Keys, given: &str) -> String {
    let others = documented.keys().filter(|table| table.ends_with(']') && !given.contains(table.as_str()));
    let others: String = others.map(|table| format!("{table}\n{UNKNOWN}")).collect();
    format!("{UNKNOWN}{others}{given}")
}

#[test]
fn every_key_of_config_is_in_the_documents_and_the_reverse() {
    let documented = documented(
        &(document("configuration.md") + document("repository.md").split("## `model.toml`").next().unwrap()),
    );
    let tensor = "[{ name = \"t\", datatype = \"BYTES\", shape = [1], max_bytes = 8, qqqqqqqq = 1 }]";
    let given = format!(
        "[repository]\npath = \".\"\n{UNKNOWN}[[executors]]\nkind = \"cpu\"\n{UNKNOWN}\
         [[executors]]\nkind = \"emulated\"\n{UNKNOWN}\
         [[models]]\nname = \"m\"\nfile = \"m.onnx\"\nslo_ms = 25\n{UNKNOWN}\
         sizes = [{{ dimension = \"d\", buckets = [4, 8], qqqqqqqq = 1 }}]\n\
         padding = [{{ input = \"x\", value = 1, qqqqqqqq = 1 }}]\n\
         defaults = [{{ input = \"x\", value = 1, qqqqqqqq = 1 }}]\n\
         applications = [{{ name = \"a\", qqqqqqqq = 1 }}]\n\
         [[models]]\nname = \"e\"\nexecutor = \"emulated\"\nslo_ms = 25\n{UNKNOWN}\
         profile = {{ alpha_ms = 1, beta_ms = 1, qqqqqqqq = 1 }}\ninputs = {tensor}\noutputs = {tensor}\n\
         [[queries]]\nname = \"q\"\nslo_ms = 25\ninputs = [\"x\"]\noutputs = [\"y\"]\n{UNKNOWN}\
         stages = [{{ model = \"e\", qqqqqqqq = 1, inputs = [{{ input = \"x\", tensor = \"x\", qqqqqqqq = 1 }}],\
         outputs = [{{ output = \"y\", tensor = \"y\", qqqqqqqq = 1 }}] }}]\n"
    );
    let text = with_unknown_keys(&documented, &given);
    let folder = folder(&[("symphony.toml", text.as_bytes()), ("m.onnx", b"x")]);
    let diagnostics = read_config(folder.path()).unwrap_err();
    assert_eq!(known(&rendered(&diagnostics, folder.path())), documented, "{diagnostics}");
}

/// A CONFIG that serves a model, with this added in front.
fn served(more: &str) -> Result<Config, Diagnostics> {
    parse_config(&format!(
        "{more}[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\n\
         slo_ms = 25\nprofile = {{ alpha_ms = 1, beta_ms = 1 }}\n"
    ))
}

/// The cells of the table rows in the section of a document whose heading begins with `heading`.
fn rows<'t>(text: &'t str, heading: &str) -> Vec<Vec<&'t str>> {
    let part = text.split(heading).nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = part.lines().filter(|row| row.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split(" |").map(str::trim).collect()).collect()
}

/// The number of an amount such as `4,096`, `64 MiB` or `10 s`, in the unit of its key.
fn amount(text: &str) -> u64 {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: u64 = number.replace(',', "").parse().unwrap_or_else(|_| panic!("{text} is no amount"));
    match unit {
        "GiB" => number << 10,
        "MiB" | "s" | "" => number,
        other => panic!("{text} is in {other}"),
    }
}

#[test]
fn the_limits_of_http_have_the_defaults_and_bounds_of_the_documents() {
    let text = document("configuration.md");
    let mut defaults = BTreeMap::new();
    for row in rows(&text, "\n## `[http]`") {
        let (key, meaning) = (quoted(row[0])[0], row[1]);
        // What comes after "or" depends on another key.
        let default = row[2].trim_matches('`').split(", or ").next().unwrap();
        defaults.insert(key, default.to_owned());
        let words: Vec<&str> = meaning.split([' ', '.']).collect();
        let bounds = words.windows(3).find_map(|words| match words {
            [least, "to", most] => Some((least.parse::<u64>().ok()?, most.parse::<u64>().ok()?)),
            _ => None,
        });
        let Some((least, most)) = bounds else { continue };
        for (value, is_good) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            let read = served(&format!("[http]\n{key} = {value}\n"));
            assert_eq!(read.is_ok(), is_good, "{key} = {value}: {read:?}");
        }
    }
    let all: String = defaults.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    assert_eq!(served(&format!("[http]\n{all}")).unwrap().http, served("").unwrap().http);
    let mut listed = 0;
    for row in rows(&document("api.md"), "\n## Limits").iter().filter(|row| !row[2].is_empty()) {
        let key = quoted(row[2])[0];
        assert_eq!(amount(row[1]).to_string(), defaults[key], "{key} in docs/api.md");
        listed += 1;
    }
    assert!(listed >= 5, "{listed} rows of docs/api.md have a key");
}

#[test]
fn every_key_of_a_models_own_file_is_in_the_documents_and_the_reverse() {
    let text = document("repository.md");
    let part = text.split("## `model.toml`").nth(1).unwrap().split("\n## ").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut in_code = Keys::new();
    for kind in ["cpu", "onnxruntime", "emulated"] {
        let model = folder.path().join(kind).join("models").join("m");
        std::fs::create_dir_all(model.join("1")).unwrap();
        std::fs::write(model.join("1/model.onnx"), "x").unwrap();
        let words = format!("executor = \"{kind}\"\nslo_ms = 25\n{UNKNOWN}");
        std::fs::write(model.join("model.toml"), words).unwrap();
        let config = folder.path().join(kind).join("symphony.toml");
        std::fs::write(
            &config,
            format!("[[executors]]\nkind = \"{kind}\"\n[repository]\npath = \"models\"\n"),
        )
        .unwrap();
        let diagnostics =
            read_config_with(Some(&config), &RepositoryFlags::default(), &mut |_| ()).unwrap_err();
        for (table, keys) in known(&rendered(&diagnostics, folder.path())) {
            in_code.entry(table).or_default().extend(keys);
        }
    }
    // It is asked for only to be refused: the folders say it.
    in_code.get_mut("").expect("there is a root").remove("file");
    assert_eq!(in_code, documented(part));
}

#[test]
fn every_field_of_tritons_that_is_known_is_in_the_documents_and_the_reverse() {
    let text = document("repository.md");
    let part = text.split("## `config.pbtxt`").nth(1).unwrap().split("\n##").next().unwrap();
    let rows = part.lines().filter(|line| line.starts_with("| `"));
    let fields: BTreeSet<&str> = rows.flat_map(|row| quoted(row.split('|').nth(1).unwrap())).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.pbtxt");
    let passed_over: BTreeSet<&str> = triton::PASSED_OVER.iter().map(|(name, _)| *name).collect();
    for field in &fields {
        std::fs::write(&file, format!("{field} {{ }}\n")).unwrap();
        let mut notes = Vec::new();
        // A value of the wrong kind is a diagnostic only of a field that is read.
        let read = triton::read(&file, "m", &mut notes);
        let passed = notes.iter().any(|note| note.contains("is passed over"));
        assert_eq!(passed, passed_over.contains(field), "{field}: {notes:?}");
        assert!(passed || read.is_err() || ["input", "output"].contains(field), "{field} is not read");
    }
    assert!(passed_over.is_subset(&fields), "{passed_over:?} and {fields:?}");
    let read = [
        "backend",
        "default_model_filename",
        "ensemble_scheduling",
        "input",
        "max_batch_size",
        "model_warmup",
        "name",
        "output",
        "parameters",
        "platform",
    ];
    let others: Vec<&str> = fields.difference(&passed_over).copied().collect();
    assert_eq!(others, [&read[..], &["version_policy"]].concat());
}

#[test]
fn every_key_of_a_workload_is_in_the_documents_and_the_reverse() {
    let documented = documented(&document("workloads.md"));
    let given = format!(
        "[[models]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 25\n{UNKNOWN}[[models]]\nzoo = \"z.csv\"\n{UNKNOWN}\
         [[models]]\nname = \"v\"\nslo_ms = 25\n{UNKNOWN}applications = [\
         {{ log_normal = {{ median_ms = 1, sigma = 0 }}, qqqqqqqq = 1 }},\
         {{ normals = [{{ mean_ms = 1, deviation_ms = 0 }}], qqqqqqqq = 1 }},\
         {{ histogram = {{ lowest_ms = 1, width_ms = 1, weights = [1] }}, qqqqqqqq = 1 }},\
         {{ samples = \"z.csv\", qqqqqqqq = 1 }}]\n\
         [[queries]]\nname = \"q\"\nslo_ms = 25\n{UNKNOWN}stages = [{{ model = \"m\", qqqqqqqq = 1 }}]\n"
    );
    let text = with_unknown_keys(&documented, &given);
    let zoo = b"model,alpha_ms,beta_ms,slo_ms\nz,1,1,25\n";
    let folder = folder(&[("w.toml", text.as_bytes()), ("z.csv", zoo)]);
    let diagnostics = read_workload(&folder.path().join("w.toml")).unwrap_err();
    assert_eq!(known(&rendered(&diagnostics, folder.path())), documented, "{diagnostics}");
}
