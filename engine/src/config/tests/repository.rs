//! Repositories of models, good and bad.

use super::rendered;
use crate::config::{
    Config, Diagnostics, ExecutorKind, ModelSource, ProfileSource, RepositoryConfig, RepositoryControl,
    RepositoryFlags, read_config, read_config_with,
};
use proptest::prelude::*;
use std::path::Path;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;

const ONNX: &str = "1/model.onnx";
const ONNX_OF_M: &str = "m/1/model.onnx";
const SLO: &str = "slo_ms = 50\n";
const CONFIG: &str =
    "[[executors]]\nkind = \"cpu\"\n[[executors]]\nkind = \"emulated\"\n[repository]\npath = \"models\"\n";
const EMULATED: &str = "executor = \"emulated\"\nslo_ms = 50\nprofile = { alpha_ms = 1, beta_ms = 5 }\n";

/// A folder with CONFIG and, in `models`, these files.
fn repository(config: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("models")).unwrap();
    std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
    add(folder.path(), files);
    folder
}

fn add(folder: &Path, files: &[(&str, &str)]) {
    for (name, content) in files {
        let file = folder.join("models").join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }
}

fn good(config: &str, files: &[(&str, &str)]) -> Config {
    let folder = repository(config, files);
    read_config(folder.path()).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

fn diagnostics(config: &str, files: &[(&str, &str)]) -> Vec<String> {
    let folder = repository(config, files);
    rendered(&read_config(folder.path()).unwrap_err(), folder.path())
}

/// The served versions of each model.
fn versions(config: &Config) -> Vec<(&str, u64)> {
    config.models.iter().map(|model| (model.name.as_str(), model.version)).collect()
}

fn signature(inputs: Vec<TensorSpec>) -> Signature {
    Signature::of_rows(inputs, vec![])
}

fn tensor(name: &str, datatype: DataType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

#[test]
fn a_models_newest_version_is_served_unless_its_policy_says_otherwise() {
    let files = |name: &'static str| [1, 2, 10].map(|version| (format!("{name}/{version}/model.onnx"), "x"));
    let policies = [
        ("a", ""),
        ("b", "version_policy { latest { num_versions: 2 } }"),
        ("c", "version_policy: { all { } }"),
        ("d", "version_policy: { specific: { versions: [1, 7], versions: 10 } }"),
    ];
    let folder = repository(CONFIG, &[]);
    for (name, policy) in policies {
        let (toml, pbtxt) = (format!("{name}/model.toml"), format!("{name}/config.pbtxt"));
        add(folder.path(), &[(&toml, SLO), (&pbtxt, policy)]);
        for (file, content) in files(name) {
            add(folder.path(), &[(&file, content)]);
        }
    }
    // What is no version, or no model, is passed over.
    add(folder.path(), &[("a/02/model.onnx", "x"), ("a/notes/x", ""), (".git/x", ""), ("readme", "")]);
    let config = read_config(folder.path()).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let expected = [("a", 10), ("b", 2), ("b", 10), ("c", 1), ("c", 2), ("c", 10), ("d", 1), ("d", 10)];
    assert_eq!(versions(&config), expected);
    assert!(
        matches!(&config.models[2].source, ModelSource::File { file, .. } if file.ends_with("b/10/model.onnx"))
    );
}

#[test]
fn a_folder_that_can_be_no_model_does_not_hide_the_models() {
    let files = [("m/model.toml", SLO), ("m/1/model.onnx", "x"), (".hidden/x", ""), ("readme.md", "x")];
    let folder = repository(CONFIG, &files);
    std::fs::create_dir(folder.path().join("models/lost+found")).unwrap();
    let mut notes = Vec::new();
    let flags = RepositoryFlags::default();
    let config =
        read_config_with(Some(folder.path()), &flags, &mut |line| notes.push(line.to_owned())).unwrap();
    assert_eq!(versions(&config), [("m", 1)]);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("models/lost+found: is passed over"), "{note}");
}

#[test]
fn both_files_words_are_heeded() {
    let pbtxt = "name: \"m\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size: 8\n\
                 default_model_filename: \"net.onnx\"\n";
    let toml = "slo_ms = 25\nmax_batch = 16\npriority = 2\nprofile = { alpha_ms = 1, beta_ms = 5 }\n";
    let config = good(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", toml), ("m/3/net.onnx", "x")]);
    let model = &config.models[0];
    assert_eq!((model.version, model.slo, model.priority), (3, Nanos::from_millis(25), 2));
    assert_eq!(model.max_batch, 8, "the smaller of the two");
    assert!(matches!(&model.profile, ProfileSource::Given(profile) if profile.max_batch() == 8));
    assert!(matches!(&model.source, ModelSource::File { file, .. } if file.ends_with("m/3/net.onnx")));
}

#[test]
fn a_version_may_have_words_of_its_own() {
    let files = [
        ("m/config.pbtxt", "version_policy { all { } }"),
        ("m/model.toml", SLO),
        ("m/1/model.onnx", "x"),
        ("m/2/model.onnx", "x"),
        ("m/2/model.toml", "slo_ms = 80\n"),
    ];
    let config = good(CONFIG, &files);
    let slos: Vec<Nanos> = config.models.iter().map(|model| model.slo).collect();
    assert_eq!(slos, [Nanos::from_millis(50), Nanos::from_millis(80)]);
}

#[test]
fn an_emulated_model_needs_no_file_and_may_have_tritons_tensors() {
    let pbtxt = "max_batch_size: 4\ninput { name: \"x\" data_type: TYPE_INT64 dims: [ 3, 2 ] }\n\
                 output [ { name: \"y\", data_type: TYPE_FP16, dims: 5 } ]";
    let config =
        good(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", EMULATED), ("n/model.toml", EMULATED)]);
    assert_eq!(versions(&config), [("m", 1), ("n", 1)]);
    let signature = Signature::of_rows(
        vec![tensor("x", DataType::Int64, &[3, 2])],
        vec![tensor("y", DataType::Fp16, &[5])],
    );
    assert_eq!(config.models[0].source, ModelSource::Emulated { signature });
    assert_eq!(config.models[0].max_batch, 4);
}

#[test]
fn a_model_without_words_of_ours_gets_the_repositorys_slo() {
    let config = good(&format!("{CONFIG}slo_ms = 40\n"), &[("m/1/model.onnx", "x")]);
    let model = &config.models[0];
    assert_eq!((model.slo, model.max_batch), (Nanos::from_millis(40), 32));
    assert_eq!(
        diagnostics(CONFIG, &[("m/1/model.onnx", "x")]),
        ["models/m/model.toml:1: slo_ms: there is no such file; write the latency promised there, like \
          `slo_ms = 50`; or for all models in [repository]"]
    );
}

#[test]
fn what_means_nothing_here_is_noted_once_with_its_line() {
    let pbtxt = "dynamic_batching {\n  preferred_batch_size: [ 4, 8 ]\n  max_queue_delay_microseconds: 100\n}\n\
                 instance_group [ { kind: KIND_CPU count: 2 } ]\nwibble: 7\n";
    let folder =
        repository(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", SLO), ("m/1/model.onnx", "x")]);
    let mut notes = Vec::new();
    let flags = RepositoryFlags::default();
    read_config_with(Some(folder.path()), &flags, &mut |line| notes.push(line.to_owned())).unwrap();
    let file = folder.path().join("models/m/config.pbtxt");
    let expected = [
        (1, "dynamic_batching is passed over: batches form by deadlines here: set slo_ms in model.toml"),
        (
            5,
            "instance_group is passed over: what runs models is [[executors]] of CONFIG, shared by all of \
             them; 2 on the CPU are count = 2 there",
        ),
        (6, "wibble is passed over: no such field is known here"),
    ];
    assert_eq!(notes, expected.map(|(line, text)| format!("{}:{line}: {text}", file.display())));
}

#[test]
fn an_slo_and_a_class_may_stand_in_tritons_words_and_ours_come_first() {
    let pbtxt = "parameters { key: \"slo_ms\" value { string_value: \"80.5\" } }\n\
                 dynamic_batching { priority_levels: 3 default_priority_level: 2 }\n";
    let model = |files: &[(&str, &str)]| {
        let config = good(&format!("{CONFIG}slo_ms = 40\n"), files);
        (config.models[0].slo, config.models[0].priority)
    };
    let (onnx, tritons) = ((ONNX_OF_M, "x"), ("m/config.pbtxt", pbtxt));
    assert_eq!(model(&[onnx, tritons]), (Nanos::from_micros(80_500), 1));
    assert_eq!(model(&[onnx, tritons, ("m/model.toml", "")]), (Nanos::from_micros(80_500), 1));
    let ours = ("m/model.toml", "slo_ms = 50\npriority = 3\n");
    assert_eq!(model(&[onnx, tritons, ours]), (Nanos::from_millis(50), 3));
    let folder = repository(CONFIG, &[onnx, tritons, ours]);
    let config = read_config(folder.path()).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let json = r#"{"parameters":{"slo_ms":{"string_value":"60"}},
                   "dynamic_batching":{"priority_levels":"2","default_priority_level":"1"}}"#;
    let loaded = config.repository.unwrap().read_model("m", &[ExecutorKind::Cpu], Some(json)).unwrap();
    let version = &loaded.versions[0];
    assert_eq!(
        (version.slo, version.priority),
        (Nanos::from_millis(60), 0),
        "what a load brings comes first"
    );
}

#[test]
fn parameters_and_levels_that_mean_nothing_here_are_noted() {
    let pbtxt = "parameters [\n { key: \"intra_op_thread_count\" value { string_value: \"2\" } },\n\
                 { key: \"wibble\" } ]\ndynamic_batching {\n preferred_batch_size: 4\n priority_levels: 9\n\
                 default_priority_level: 7\n}\n";
    let folder = repository(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", SLO), (ONNX_OF_M, "x")]);
    let mut notes = Vec::new();
    let flags = RepositoryFlags::default();
    let config =
        read_config_with(Some(folder.path()), &flags, &mut |line| notes.push(line.to_owned())).unwrap();
    assert_eq!(config.models[0].priority, 3);
    let file = folder.path().join("models/m/config.pbtxt");
    let expected = [
        (1, "parameters \"intra_op_thread_count\" is passed over: set threads in [onnxruntime] of CONFIG"),
        (1, "parameters \"wibble\" is passed over: no such parameter is known here"),
        (5, "preferred_batch_size is passed over: batches form by deadlines here: set slo_ms in model.toml"),
        (7, "default_priority_level 7 is taken as 4, the lowest here"),
    ];
    assert_eq!(notes, expected.map(|(line, text)| format!("{}:{line}: {text}", file.display())));
}

#[test]
fn every_error_is_reported_with_its_file_and_line() {
    let rendered = |pbtxt: &str, toml: &str| {
        diagnostics(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", toml), ("m/1/model.onnx", "x")])
    };
    let cases: [(&str, &str, &str); 15] = [
        (
            "name: \"other\"",
            SLO,
            "models/m/config.pbtxt:1: name: is \"other\"; it must be \"m\", the name of",
        ),
        (
            "\nplatform: \"tensorrt_plan\"",
            SLO,
            "config.pbtxt:2: platform: is \"tensorrt_plan\"; it must be \"onnx",
        ),
        ("backend: \"python\"", SLO, "config.pbtxt:1: backend: is \"python\"; it must be \"onnxruntime\""),
        ("max_batch_size: -1", SLO, "max_batch_size: is -1; it must be a whole number from 0 to 1024"),
        (
            "version_policy { some { } }",
            SLO,
            "version_policy: is a message; it must be { latest { num_versions",
        ),
        ("version_policy { latest { num_versions: 0 } }", SLO, "version_policy: is a message; it must be"),
        (
            "version_policy { specific { versions: 3 } }",
            SLO,
            "model: its version_policy chooses none of the versions [1]",
        ),
        (
            "default_model_filename: \"../x.onnx\"",
            SLO,
            "it must be the name of a file in the version's folder",
        ),
        (
            "input { name: \"x\" data_type: TYPE_COMPLEX }",
            SLO,
            "data_type: is TYPE_COMPLEX; it must be a type of tensors",
        ),
        (
            "parameters { key: \"slo_ms\" value { string_value: \"0\" } }",
            "",
            "config.pbtxt:1: parameters.slo_ms: is \"0\"; it must be a number above 0 and up to 3600000, in a",
        ),
        (
            "parameters { value { } }",
            SLO,
            "config.pbtxt:1: parameters: is a message; it must be { key: \"slo",
        ),
        (
            "dynamic_batching {\n priority_levels: 2\n default_priority_level: 3 }",
            SLO,
            "config.pbtxt:3: default_priority_level: is 3; it must be at most 2, the number of priority_levels",
        ),
        ("input {", SLO, "config.pbtxt:1: config.pbtxt: unexpected end of input"),
        ("", "slo_ms = 50\nfile = \"x\"\n", "models/m/model.toml:2: file: is no field that is known here"),
        ("", "priority = 1\n", "models/m/model.toml:1: slo_ms: is missing"),
    ];
    for (pbtxt, toml, expected) in cases {
        let rendered = rendered(pbtxt, toml);
        assert!(rendered.len() == 1 && rendered[0].contains(expected), "{rendered:?} should say {expected}");
    }
    let missing = diagnostics(CONFIG, &[("m/model.toml", SLO), ("m/1/other.onnx", "x")]);
    assert!(missing[0].starts_with("models/m/1/model.onnx:1: file: the file can't be read"), "{missing:?}");
    let no_gpu = CONFIG.replace("[[executors]]\nkind = \"emulated\"\n", "");
    let rendered = diagnostics(&no_gpu, &[("m/model.toml", EMULATED)]);
    assert_eq!(
        rendered,
        [
            "models/m/model.toml:1: executor: the model runs on \"emulated\", and there is no such executor; add a \
          table [[executors]] with kind = \"emulated\" to CONFIG"
        ]
    );
    let same_name = format!("{CONFIG}[[models]]\nname = \"m\"\n{EMULATED}");
    assert_eq!(
        diagnostics(&same_name, &[("m/model.toml", EMULATED)]),
        ["models/m:1: name: CONFIG has a model or a query of this name; give each model a name of its own"]
    );
}

const ENSEMBLE: &str = r#"
platform: "ensemble"
max_batch_size: 8
input { name: "image" data_type: TYPE_FP32 dims: [ 2 ] }
output [ { name: "label" data_type: TYPE_FP32 dims: [ 2 ] } ]
ensemble_scheduling {
  step [
    { model_name: "m" model_version: -1
      input_map { key: "x" value: "half" } output_map { key: "y" value: "label" } },
    { model_name: "m" model_version: 1
      input_map [ { key: "x" value: "image" } ] output_map { key: "y" value: "half" } }
  ]
}
"#;

#[test]
fn an_ensembles_steps_are_the_stages_of_a_query() {
    let files = [
        ("m/model.toml", SLO),
        (ONNX_OF_M, "x"),
        ("both/config.pbtxt", ENSEMBLE),
        ("both/model.toml", "slo_ms = 80\n"),
    ];
    let config = good(CONFIG, &files);
    assert_eq!(versions(&config), [("m", 1)]);
    let [query] = &config.queries[..] else { panic!("{:?}", config.queries) };
    assert_eq!((query.name.as_str(), query.slo), ("both", Nanos::from_millis_f64(80.0)));
    assert_eq!(
        (&query.inputs[..], &query.outputs[..]),
        (&["image".to_owned()][..], &["label".to_owned()][..])
    );
    // In the order in which they run, each by a name of its own.
    let stages: Vec<_> = query.stages.iter().map(|stage| (stage.name.as_str(), stage.version)).collect();
    assert_eq!(stages, [("m-2", Some(1)), ("m", None)]);
    assert_eq!(
        (query.stages[0].inputs[0].tensor.as_str(), query.stages[0].outputs[0].tensor.as_str()),
        ("image", "half")
    );
    let row = |shape: &[usize]| {
        Signature::of_rows(
            vec![tensor("image", DataType::Fp32, &[2])],
            vec![tensor("label", DataType::Fp32, shape)],
        )
    };
    assert_eq!(query.undeclared(&row(&[2])), []);
    assert_eq!(query.undeclared(&row(&[3])).len(), 1);
}

#[test]
fn the_models_of_an_ensemble_that_is_loaded_at_the_start_are_loaded_with_it() {
    let explicit = format!("{CONFIG}control = \"explicit\"\nload = [\"both\"]\nslo_ms = 50\n");
    let files = [("m/model.toml", EMULATED), ("other/model.toml", EMULATED), ("both/config.pbtxt", ENSEMBLE)];
    let config = good(&explicit, &files);
    assert_eq!((versions(&config), config.queries.len()), (vec![("m", 1)], 1));
}

#[test]
fn errors_of_an_ensemble_have_their_file_and_line() {
    let cases = [
        (
            ENSEMBLE.replace("value: \"half\" } output_map", "value: \"none\" } output_map"),
            "config.pbtxt:7: step: stage \"m\" takes tensor \"none\"",
        ),
        (
            ENSEMBLE.replace("model_version: 1", "model_version: 0"),
            "config.pbtxt:10: model_version: is 0; it must be a version from 1",
        ),
        (
            ENSEMBLE.replace("model_name: \"m\" model_version: 1", ""),
            "config.pbtxt:7: step: has a step without a model_name",
        ),
        (ENSEMBLE.replace("key: \"x\" value: \"image\"", "key: \"x\""), "config.pbtxt:11: input_map: is a"),
        (ENSEMBLE.replace("input {", "outputs {"), "config.pbtxt:1: input: is missing; declare each input"),
        (
            "platform: \"ensemble\"".to_owned(),
            "config.pbtxt:1: platform: is \"ensemble\", and there is no ensemble_scheduling",
        ),
        ("ensemble_scheduling { }".to_owned(), "config.pbtxt:1: ensemble_scheduling: has 0 steps; give 1 to"),
        (
            format!("{ENSEMBLE}backend: \"onnxruntime\""),
            "config.pbtxt:6: ensemble_scheduling: is given for a model with a file",
        ),
    ];
    for (pbtxt, expected) in cases {
        let files =
            [("m/model.toml", SLO), (ONNX_OF_M, "x"), ("e/config.pbtxt", &pbtxt), ("e/model.toml", SLO)];
        let rendered = diagnostics(CONFIG, &files);
        assert!(rendered.len() == 1 && rendered[0].contains(expected), "{rendered:?} should say {expected}");
    }
    let slo = diagnostics(CONFIG, &[("e/config.pbtxt", ENSEMBLE)]);
    assert_eq!(
        slo,
        [
            "models/e/model.toml:1: slo_ms: there is no such file; write the latency promised there, like `slo_ms = 50`; or for all models in [repository]"
        ]
    );
}

#[test]
fn declared_tensors_are_compared_with_the_models_own() {
    let pbtxt = "max_batch_size: 8\ninput { name: \"x\" data_type: TYPE_FP32 dims: [ -1, 32 ] }";
    let config = good(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", SLO), ("m/1/model.onnx", "x")]);
    let rendered = |spec| -> Vec<String> {
        let diagnostics = config.models[0].undeclared(&signature(vec![spec]));
        diagnostics.iter().map(|diagnostic| format!("{}; {}", diagnostic.wrong, diagnostic.right)).collect()
    };
    assert_eq!(rendered(tensor("x", DataType::Fp32, &[5, 32])), [""; 0]);
    let shape = rendered(tensor("x", DataType::Fp32, &[5, 31]));
    assert_eq!(shape, ["input \"x\" has not the dims [-1, 32]; the model says [5, 31] for one request"]);
    let datatype = rendered(tensor("x", DataType::Fp16, &[5, 32]));
    assert_eq!(datatype, ["input \"x\" is not of type TYPE_FP32; the model says TYPE_FP16"]);
    let name = rendered(tensor("z", DataType::Fp32, &[5, 32]));
    assert_eq!(name, ["the model has no input \"x\"; its inputs are [\"z\"]"]);
}

#[test]
fn tensors_without_a_batch_are_declared_whole_and_optional_ones_need_a_value() {
    let pbtxt = "max_batch_size: 0\n\
                 input { name: \"state\" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] }\n\
                 input { name: \"rate\" data_type: TYPE_INT64 dims: 1 reshape: { shape: [] } optional: true }";
    let words = |more: &str| format!("{SLO}\n{more}");
    let checked = |words: &str, signature: &Signature| -> Vec<String> {
        let config =
            good(CONFIG, &[("m/config.pbtxt", pbtxt), ("m/model.toml", words), ("m/1/model.onnx", "x")]);
        let diagnostics = config.models[0].undeclared(signature);
        diagnostics.iter().map(|diagnostic| format!("{}; {}", diagnostic.wrong, diagnostic.right)).collect()
    };
    let whole = Signature {
        inputs: vec![tensor("state", DataType::Fp32, &[2, 1, 3]), tensor("rate", DataType::Int64, &[])],
        has_batch: false,
        ..Signature::default()
    };
    let defaults = words("defaults = [{ input = \"rate\", value = 16000 }]");
    assert_eq!(checked(&defaults, &whole), [""; 0]);
    assert_eq!(
        checked(&words(""), &whole),
        ["input \"rate\" is optional and has no value where it is left out; add defaults = [{ input = \
          \"rate\", value = 0 }] to model.toml"]
    );
    // The same dims of a model with a batch: the first of them is none.
    let inputs = vec![tensor("state", DataType::Fp32, &[1, 3]), tensor("rate", DataType::Int64, &[])];
    assert_eq!(
        checked(&defaults, &signature(inputs)),
        [
            "input \"state\" has not the dims [2, -1, 3]; the model says [1, 3] behind its batch, -1 or 1",
            "input \"rate\" has not the dims []; the model says [] behind its batch, -1 or 1"
        ]
    );
    let with_batch = pbtxt.replace("max_batch_size: 0", "max_batch_size: 4");
    let config = good(
        CONFIG,
        &[("m/config.pbtxt", &with_batch), ("m/model.toml", &defaults), ("m/1/model.onnx", "x")],
    );
    assert_eq!(config.models[0].undeclared(&whole).len(), 0);
    for (more, wrong) in [
        ("reshape: { shape: [ 3 ] }", "reshape: is a message; it must be { shape: [ ] } beside dims: [ 1 ]"),
        ("optional: 3", "optional: is 3; it must be true or false"),
    ] {
        let pbtxt = format!("input {{ name: \"x\" data_type: TYPE_FP32 dims: 1 {more} }}");
        let said = diagnostics(
            CONFIG,
            &[("m/config.pbtxt", &pbtxt), ("m/model.toml", SLO), ("m/1/model.onnx", "x")],
        );
        assert!(said.len() == 1 && said[0].contains(wrong), "{said:?}");
    }
}

#[test]
fn places_are_kept_for_models_that_are_loaded_later() {
    let files = [
        ("a/model.toml", EMULATED),
        ("b/model.toml", EMULATED),
        (&format!("c/{ONNX}"), "x"),
        ("c/model.toml", SLO),
    ];
    let kinds = |config: &Config| {
        let of = |kind| config.model_slots().into_iter().filter(|location| *location == kind).count();
        (config.models.len(), of(ExecutorKind::Cpu), of(ExecutorKind::Emulated))
    };
    assert_eq!(kinds(&good(CONFIG, &files)), (3, 1, 2));
    let polled = good(&format!("{CONFIG}control = \"poll\"\nmax_versions = 5\n"), &files);
    assert_eq!(kinds(&polled), (3, 5, 5));
    let explicit = format!("{CONFIG}control = \"explicit\"\nmax_versions = 5\nload = [\"b\"]\n");
    let config = good(&explicit, &files);
    assert_eq!((kinds(&config), versions(&config)), ((1, 5, 5), vec![("b", 1)]));
    let too_many = diagnostics(&format!("{CONFIG}control = \"poll\"\nmax_versions = 1\n"), &files);
    assert_eq!(
        too_many,
        [
            "symphony.toml:6: repository.path: 2 versions to load are more than max_versions, 1; set max_versions in \
          [repository] to more"
        ]
    );
    let load = diagnostics(&format!("{CONFIG}load = [\"a\"]\n"), &files);
    assert_eq!(
        load,
        [
            "symphony.toml:7: repository.load: is given, and everything is loaded anyway; set control = \"explicit\""
        ]
    );
}

#[test]
fn the_command_line_holds_over_the_file() {
    let folder = repository(CONFIG, &[("a/model.toml", EMULATED), ("b/model.toml", EMULATED)]);
    let flags =
        RepositoryFlags { path: None, control: Some(RepositoryControl::Explicit), load: vec!["a".into()] };
    let config = read_config_with(Some(folder.path()), &flags, &mut |_| ()).unwrap();
    assert_eq!(versions(&config), [("a", 1)]);
    let none = RepositoryFlags { control: Some(RepositoryControl::Poll), ..RepositoryFlags::default() };
    std::fs::write(folder.path().join("symphony.toml"), "[[executors]]\nkind = \"cpu\"\n").unwrap();
    assert!(read_config_with(Some(folder.path()), &none, &mut |_| ()).is_err(), "no model, no repository");
    let alone = RepositoryFlags { path: Some(folder.path().join("models")), ..RepositoryFlags::default() };
    let Diagnostics(rendered) = read_config_with(None, &alone, &mut |_| ()).unwrap_err();
    assert!(rendered.iter().all(|diagnostic| diagnostic.field == "executor"), "{rendered:?}");
}

#[test]
fn a_stamp_changes_with_the_files_of_a_version_or_of_all() {
    let folder =
        repository(CONFIG, &[("m/model.toml", SLO), ("m/1/model.onnx", "x"), ("m/2/model.onnx", "x")]);
    let from = RepositoryConfig::at(
        folder.path().join("models"),
        crate::config::Location { file: "f".into(), line: 1, field: "path".into() },
    );
    let first = from.stamp("m");
    assert_eq!(first, from.stamp("m"));
    add(folder.path(), &[("m/2/model.onnx", "another")]);
    let second = from.stamp("m");
    assert!(first != second && first.agrees_on(&second, 1) && !first.agrees_on(&second, 2));
    add(folder.path(), &[("m/model.toml", "slo_ms = 70.0\n")]);
    assert!(!second.agrees_on(&from.stamp("m"), 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_config_pbtxt_of_any_fields_is_read_or_refused(
        names in proptest::collection::vec("name|platform|max_batch_size|input|output|version_policy|dims|latest", 0..6),
        values in proptest::collection::vec("[-\"a-zA-Z_0-9]{0,6}|\\{ dims: [0-9]{1,3} \\}|\\[ 1, [0-9]{0,2} \\]", 6),
    ) {
        let text: String = names.iter().zip(&values).map(|(name, value)| format!("{name}: {value}\n")).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.pbtxt");
        std::fs::write(&file, text).unwrap();
        let _ = crate::config::repository::triton::read(&file, "m", &mut Vec::new());
    }
}
