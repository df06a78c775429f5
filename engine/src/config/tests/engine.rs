//! The engine's CONFIG, good and bad.

use super::{folder, rendered};
use crate::config::{
    Config, Cores, ExecutorGroup, ExecutorKind, FaultConfig, HttpLimits, ModelSource, ProfileSource,
    TraceConfig, TraceFlags, read_config,
};
use proptest::prelude::*;
use std::time::Duration;
use symphony_gpu::cuda::PageOptions;
use symphony_gpu::plan::PlanPrecision;
use symphony_gpu::{DataType, TensorSpec};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits;
use symphony_scheduler::policy::{deferring, served};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rule_setting::Prefer;
use symphony_transport::Nanos;

const FILE: &str = "symphony.toml";
const PROFILE: &[u8] = b"batch,p50_ms,p99_ms\n1,4.0,5.0\n2,6.0,6.5\n4,7.0,8.0\n";

fn files(text: &[u8]) -> tempfile::TempDir {
    folder(&[
        (FILE, text),
        ("m.onnx", b"x"),
        ("empty.onnx", b""),
        ("p.csv", PROFILE),
        ("bad.csv", b"batch,p50_ms,p99_ms\n1,4.0,5.0\n2,x,6.5\n"),
    ])
}

fn good(text: &str) -> Config {
    read_config(files(text.as_bytes()).path()).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

fn diagnostics(text: &str) -> Vec<String> {
    let folder = files(text.as_bytes());
    rendered(&read_config(folder.path()).unwrap_err(), folder.path())
}

const CPU: &str = "[[executors]]\nkind = \"cpu\"\n";
const MODEL: &str = "[[models]]\nname = \"m\"\nfile = \"m.onnx\"\nslo_ms = 25\n";
const GPUS: &str = "[[executors]]\nkind = \"emulated\"\ncount = 4\n";
const EMULATED: &str = "[[models]]\nname = \"e\"\nexecutor = \"emulated\"\nslo_ms = 25\nprofile = { alpha_ms = 1, beta_ms = 5 }\n";

#[test]
fn traces_go_where_a_collector_is_and_nowhere_by_default() {
    assert_eq!(good(&format!("{CPU}{MODEL}")).trace, TraceConfig::default());
    let trace = |words: &str| format!("{CPU}{MODEL}[trace]\n{words}");
    let config = good(&trace("endpoint = \"http://c\"\nsample_ratio = 1\nservice_name = \"shop\"\n")).trace;
    assert_eq!(config.endpoint.clone().unwrap().to_string(), "http://c:4318/v1/traces");
    assert_eq!((config.sample_ratio, config.service_name.as_str()), (1.0, "shop"));
    let flags = TraceFlags { endpoint: None, sample_ratio: Some(0.5) };
    let both = config.clone().with(&flags);
    assert_eq!((both.sample_ratio, both.endpoint), (0.5, config.endpoint));
    let rendered = diagnostics(&trace("endpoint = \"https://c\"\nsample_ratio = 2\n"));
    assert!(
        rendered[0].starts_with("symphony.toml:8: trace.endpoint: is \"https://c\"; it must be the address"),
        "{rendered:?}"
    );
    assert_eq!(rendered[1], "symphony.toml:9: trace.sample_ratio: is 2; it must be a number from 0 to 1");
}

#[test]
fn a_small_file_has_the_documented_defaults() {
    let config = good(&format!("{CPU}{MODEL}"));
    assert!(config.file.ends_with(FILE));
    assert_eq!(
        (config.policy, config.drop, config.tuning),
        ("symphony", DropRule::Exchange, Some(Prefer::Efficiency))
    );
    assert_eq!(config.cores, Cores { model_threads: Some(1), ..Cores::default() });
    assert_eq!(config.http, HttpLimits::default());
    assert_eq!(
        config.executors,
        [ExecutorGroup {
            kind: ExecutorKind::Cpu,
            count: 1,
            cores: vec![],
            pages: PageOptions::default(),
            host: None,
        }]
    );
    let model = &config.models[0];
    assert_eq!((model.name.as_str(), model.slo, model.max_batch), ("m", Nanos::from_millis(25), 32));
    assert_eq!((model.priority, &model.profile), (0, &ProfileSource::Measure));
    assert!(matches!(&model.source, ModelSource::File { file, .. } if file.ends_with("m.onnx")));
    let location = model.locations.file.diagnostic("is corrupt", "export it again").to_string();
    assert!(location.ends_with("symphony.toml:5: models[0].file: is corrupt; export it again"), "{location}");
}

#[test]
fn a_file_with_every_key_is_read_as_written() {
    let config = good(
        "policy = \"work-conserving\"\ndrop = \"fcfs\"\n\
         [network]\ncontrol_us = 10\nresult_us = 20\n\
         [cores]\nmodel_threads = 2\nmodel = [0, 0]\nrank_threads = 2\nrank = [0, 0]\nemulated = 0\napi = [0]\nlinks = 0\n\
         [http]\nmax_body_mb = 8\nmax_connection_mb = 50\nmax_in_flight = 100\nmax_connections = 10\nmax_in_flight_per_connection = 20\nread_timeout_s = 3\nidle_timeout_s = 4\n\
         max_admin_connections = 5\nmax_connections_per_peer = 6\nmax_peer_mb = 70\nunlimited_peers = [\"10.0.0.5\", \"fd00::/8\"]\nmax_bodies_mb = 9\nheader_timeout_s = 6\nbody_timeout_s = 7\nwrite_timeout_s = 8\nkeep_alive_s = 9\nstream_idle_timeout_s = 11\n\
         [faults]\ngrace_ms = 1.5\nhung_after_s = 0.5\nmax_hung_threads = 2\n\
         [memory]\nslab_mb = 300\n\
         [[executors]]\nkind = \"cpu\"\ncores = [0, 0]\n\
         [[executors]]\nkind = \"emulated\"\ncount = 10000\n\
         [[models]]\nname = \"m\"\nfile = \"m.onnx\"\nexecutor = \"cpu\"\nslo_ms = 7.5\nmax_batch = 8\npriority = 3\n\
         profile = \"p.csv\"\nsizes = [{ dimension = \"width\", size = 64 }]\n\
         [[models]]\nname = \"e\"\nexecutor = \"emulated\"\nslo_ms = 25\nprofile = { alpha_ms = 1, beta_ms = 5 }\n\
         inputs = [{ name = \"a\", datatype = \"UINT8\", shape = [3, 32] }]\noutputs = [{ name = \"b\", datatype = \"FP32\", shape = [] }]",
    );
    let ModelSource::File { sizes, .. } = &config.models[0].source else { panic!("it has a file") };
    assert_eq!(
        sizes.iter().map(|(name, size)| (name.as_str(), size.get())).collect::<Vec<_>>(),
        [("width", 64)]
    );
    assert_eq!((config.policy, config.drop), ("work-conserving", DropRule::Fcfs));
    assert_eq!((config.network.control, config.network.result), (Nanos(10_000), Nanos(20_000)));
    let cores = Cores {
        model_threads: Some(2),
        model: vec![0, 0],
        rank_threads: 2,
        rank: vec![0, 0],
        emulated: Some(0),
        api: vec![0],
        links: Some(0),
    };
    assert_eq!(config.cores, cores);
    let http = HttpLimits {
        max_body_bytes: 8 << 20,
        max_connection_bytes: 50 << 20,
        max_in_flight: 100,
        max_bodies_bytes: 9 << 20,
        max_connections: 10,
        max_admin_connections: 5,
        max_connections_per_peer: 6,
        max_peer_bytes: 70 << 20,
        unlimited_peers: ["10.0.0.5/32", "fd00::/8"].map(|network| network.parse().unwrap()).to_vec(),
        max_in_flight_per_connection: 20,
        header_timeout: Duration::from_secs(6),
        read_timeout: Duration::from_secs(3),
        body_timeout: Duration::from_secs(7),
        write_timeout: Duration::from_secs(8),
        idle_timeout: Duration::from_secs(4),
        keep_alive: Duration::from_secs(9),
        stream_idle_timeout: Duration::from_secs(11),
    };
    assert_eq!(config.http, http);
    assert_eq!(
        config.faults,
        FaultConfig {
            grace: Nanos::from_micros(1_500),
            hung_after: Nanos::from_millis(500),
            max_hung_threads: 2,
        }
    );
    assert_eq!(config.memory.slab, Some(300 << 20));
    assert_eq!(config.executors_of(ExecutorKind::Cpu), 2);
    assert_eq!(config.executors_of(ExecutorKind::Emulated), 10_000);
    let [m, e] = &config.models[..] else { panic!("two models") };
    // l(4) = 8 ms is over the SLO of 7.5 ms; l(3) lies between.
    let profile = Profile::measured(&[5_000, 6_500, 7_250].map(Nanos::from_micros)).unwrap();
    let profile = profile.with_typical([4_000, 6_000, 6_500].map(Nanos::from_micros).into());
    assert_eq!((&m.profile, m.max_batch, m.priority), (&ProfileSource::Given(profile), 3, 3));
    let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 20).unwrap();
    assert_eq!((&e.profile, e.max_batch), (&ProfileSource::Given(profile), 20));
    let ModelSource::Emulated { signature } = &e.source else { panic!("emulated") };
    let tensor = |name: &str, datatype, shape| TensorSpec { name: name.into(), datatype, shape };
    assert_eq!(signature.inputs, [tensor("a", DataType::Uint8, vec![3, 32])]);
    assert_eq!(signature.outputs, [tensor("b", DataType::Fp32, vec![])]);
}

#[test]
fn a_peer_without_a_limit_is_an_address_or_a_network() {
    let rendered = diagnostics(&format!("{CPU}{MODEL}[http]\nunlimited_peers = [\"10.0.0.1\", \"proxy\"]\n"));
    let expected =
        "symphony.toml:8: http.unlimited_peers[1]: is \"proxy\"; it must be an address or a network";
    assert!(rendered.len() == 1 && rendered[0].starts_with(expected), "{rendered:?}");
}

#[test]
fn all_bodies_together_have_room_for_one_of_the_largest() {
    let rendered = diagnostics(&format!("{CPU}{MODEL}[http]\nmax_body_mb = 100\nmax_bodies_mb = 99\n"));
    assert_eq!(
        rendered,
        [
            "symphony.toml:9: http.max_bodies_mb: is 99; it must be at least max_body_mb, or no body of that size \
          could ever be read"
        ]
    );
}

#[test]
fn a_tensor_of_bytes_says_how_long_its_elements_may_be_and_no_other_does() {
    let with = |tensor: &str| format!("{GPUS}{EMULATED}inputs = [{{ name = \"a\", {tensor} }}]");
    let config = good(&with("datatype = \"BYTES\", max_bytes = 20, shape = [2]"));
    let ModelSource::Emulated { signature } = &config.models[0].source else { panic!("emulated") };
    assert_eq!((signature.inputs[0].datatype, signature.input_bytes()), (DataType::Bytes(20), 48));
    for (tensor, word) in [
        ("datatype = \"BYTES\", shape = [2]", "max_bytes: is missing"),
        ("datatype = \"BYTES\", max_bytes = 0, shape = [2]", "max_bytes: is 0"),
        ("datatype = \"FP32\", max_bytes = 4, shape = [2]", "which have one size"),
    ] {
        let rendered = diagnostics(&with(tensor));
        assert!(rendered.len() == 1 && rendered[0].contains(word), "{rendered:?}");
    }
}

#[test]
fn the_pages_of_gpus_are_chosen_for_each_group_and_for_gpus_alone() {
    let model = concat!("file = \"", env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data/linear.onnx\"");
    let with = |kind: &str, keys: &str| {
        format!("[[executors]]\nkind = \"{kind}\"\n{keys}[[models]]\nname = \"m\"\n{model}\nslo_ms = 50\n")
    };
    let config = good(&with("cuda", "count = 2\npage_mb = 64\nmemory_mb = 1000\n"));
    let pages = PageOptions { page_bytes: Some(64 << 20), memory: Some(1000 << 20) };
    assert_eq!(config.gpu_pages(), [pages; 2]);
    assert_eq!(good(&with("cuda", "")).gpu_pages(), [PageOptions::default()]);
    for (kind, keys, wrong) in [
        ("cpu", "page_mb = 16\n", "page_mb: is given for executors that are no GPUs"),
        ("cuda", "page_mb = 0\n", "page_mb: is 0; it must be a whole number from 1 to 16384"),
        ("cuda", "page_mb = 64\nmemory_mb = 63\n", "memory_mb: is 63, less than a page, which is 64"),
    ] {
        let rendered = diagnostics(&with(kind, keys));
        assert!(rendered.len() == 1 && rendered[0].contains(wrong), "{rendered:?}");
    }
}

#[test]
fn the_precision_is_chosen_for_models_on_gpus_alone() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data/linear.onnx");
    let with = |kind: &str, key: &str| {
        let executors = format!("[[executors]]\nkind = \"{kind}\"\ncount = 1\n");
        format!(
            "{executors}[[models]]\nname = \"m\"\nfile = \"{file}\"\nslo_ms = 50\nexecutor = \"{kind}\"\n{key}"
        )
    };
    let precision = |key: &str| {
        let config = good(&with("cuda", key));
        let ModelSource::File { contents, .. } = &config.models[0].source else { panic!("a file") };
        contents.precision
    };
    assert_eq!(precision(""), None);
    assert_eq!(precision("precision = \"bf16\""), Some(PlanPrecision::Bf16));
    for (kind, key, word) in [
        ("cpu", "precision = \"fp16\"", "precision: is given for a model on \"cpu\""),
        ("cuda", "precision = \"fp8\"", "precision: is \"fp8\""),
    ] {
        let rendered = diagnostics(&with(kind, key));
        assert!(rendered.len() == 1 && rendered[0].contains(word), "{rendered:?}");
    }
}

#[test]
fn the_default_rule_is_tuned_unless_it_is_not_to_be() {
    for (text, expected) in [
        ("", Some(Prefer::Efficiency)),
        ("drop = \"window\"\n", Some(Prefer::Efficiency)),
        ("drop = \"fcfs\"\n", None),
        ("policy = \"symphony-published\"\n", None),
        ("tuning = \"on\"\n", Some(Prefer::Efficiency)),
        ("prefer = \"latency\"\n", Some(Prefer::Latency)),
        ("tuning = \"on\"\nprefer = \"latency\"\n", Some(Prefer::Latency)),
        ("tuning = \"off\"\n", None),
    ] {
        assert_eq!(good(&format!("{text}{CPU}{MODEL}")).tuning, expected, "{text}");
    }
}

#[test]
fn how_long_a_batch_is_held_back_can_be_chosen() {
    assert!(good(&format!("{CPU}{MODEL}")).when.is_none());
    let chosen = good(&format!("policy = \"symphony-published\"\nwhen = \"beta-lambda\"\n{CPU}{MODEL}")).when;
    assert_eq!(chosen.unwrap().name, "beta-lambda");
}

#[test]
fn an_emulated_model_has_four_floats_in_and_out_unless_said_otherwise() {
    let config = good(&format!("{GPUS}{EMULATED}max_batch = 6\n"));
    let ModelSource::Emulated { signature } = &config.models[0].source else { panic!("emulated") };
    assert_eq!((signature.inputs[0].name.as_str(), signature.outputs[0].name.as_str()), ("input", "output"));
    assert_eq!((signature.inputs[0].shape.as_slice(), signature.outputs[0].bytes()), ([4].as_slice(), 16));
    assert_eq!(config.models[0].max_batch, 6);
}

#[test]
fn the_number_of_model_threads_may_be_left_to_the_engine_or_follow_the_cores() {
    assert_eq!(good(&format!("{CPU}{MODEL}[cores]\nmodel_threads = \"auto\"")).cores.model_threads, None);
    assert_eq!(good(&format!("{CPU}{MODEL}[cores]\nmodel = [0, 0, 0]")).cores.model_threads, Some(3));
}

#[test]
fn rank_threads_are_one_unless_counted_or_listed() {
    let cores = |text: &str| {
        good(&format!("{GPUS}{EMULATED}{}[cores]\n{text}", EMULATED.replace("\"e\"", "\"f\""))).cores
    };
    for (text, threads, list) in [
        ("", 1, vec![]),
        ("rank = 0", 1, vec![0]),
        ("rank_threads = 2", 2, vec![]),
        ("rank = [0, 0]", 2, vec![0, 0]),
    ] {
        assert_eq!((cores(text).rank_threads, cores(text).rank), (threads, list), "{text}");
    }
}

#[test]
fn above_a_limit_the_diagnostic_names_it() {
    let list = |count| vec!["0"; count].join(", ");
    let models: String =
        (0..=limits::MAX_MODELS).map(|at| EMULATED.replace("\"e\"", &format!("\"e{at}\""))).collect();
    for (text, expected) in [
        (
            format!("{GPUS}{GPUS}{EMULATED}").replacen("count = 4", "count = 65536", 1),
            "symphony.toml:1: executors: 65540 executors in all are too many; one scheduler matches at most 65536: \
             lower the counts",
        ),
        (
            format!("{GPUS}{EMULATED}").replacen("count = 4", "count = 65537", 1),
            "symphony.toml:3: executors[0].count: is 65537; it must be a whole number from 1 to 65536",
        ),
        (
            format!("{GPUS}{models}"),
            "symphony.toml:4: models: 16385 models are too many; one scheduler ranks at most 16384",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nmodel_threads = 256"),
            "symphony.toml:10: cores.model_threads: is 256; it must be a whole number from 1 to 255",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nmodel = [{}]", list(256)),
            "symphony.toml:10: cores.model: lists 256 cores, one for each ModelThread; there may be 255 \
             ModelThreads at most",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nrank_threads = 17"),
            "symphony.toml:10: cores.rank_threads: is 17; it must be a whole number from 1 to 16",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nrank = [{}]", list(17)),
            "symphony.toml:10: cores.rank: lists 17 cores, one for each RankThread; there may be 16 RankThreads at \
             most",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nrank = [0, 0]\nrank_threads = 3"),
            "symphony.toml:10: cores.rank: lists 2 cores, which is not `rank_threads`; list one core for each \
             RankThread, or leave `rank_threads` out",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\napi = [{}]", list(256)),
            "symphony.toml:10: cores.api: lists 256 cores, one for each API thread; there may be 255 API threads at \
             most",
        ),
        (
            format!("{GPUS}{EMULATED}[cores]\nrank = [0, 0]"),
            "symphony.toml:10: cores.rank: 2 RankThreads are more than there can be sub-clusters; each sub-cluster \
             has an executor and a model of its own: give at most 1, or more executors and models",
        ),
    ] {
        assert_eq!(diagnostics(&text), [expected], "{}", &text[text.len() - 60..]);
    }
}

#[test]
fn each_diagnostic_is_reported_with_its_line_its_field_and_what_would_be_right() {
    let two_kinds = "it must be one of \"cpu\", \"onnxruntime\", \"cuda\", \"emulated\"";
    for (text, expected) in [
        (String::new(), "symphony.toml:1: models: is missing; add at least 1 table under a line `[[models]]`".into()),
        (
            format!("policy = \"symphonie\"\n{CPU}{MODEL}"),
            format!(
                "symphony.toml:1: policy: is \"symphonie\"; it must be one of \"{}\" (did you mean \
                 \"symphony\"?)",
                served().join("\", \"")
            ),
        ),
        (
            format!("policy = \"shepherd\"\n{CPU}{MODEL}"),
            format!(
                "symphony.toml:1: policy: \"shepherd\" runs in `simulate` only; serve with one of {}",
                served().join(", ")
            ),
        ),
        (
            format!("policy = \"orloj\"\ndrop = \"window\"\n{CPU}{MODEL}"),
            format!(
                "symphony.toml:1: policy: \"orloj\" has a drop rule of its own; take `drop` out, or serve with \
                 one of {}",
                deferring().join(", ")
            ),
        ),
        (
            format!("policy = \"clockwork\"\n[cores]\nrank_threads = 2\n{CPU}{MODEL}"),
            format!(
                "symphony.toml:1: policy: \"clockwork\" has one thread for all models; take the numbers of \
                 threads out of [cores], or serve with one of {}",
                deferring().join(", ")
            ),
        ),
        (
            format!("when = \"latest\"\n{CPU}{MODEL}"),
            "symphony.toml:1: when: policy \"symphony\" has a rule of its own; take it out, or set policy = \
             \"symphony-published\""
                .into(),
        ),
        (
            format!("tuning = \"off\"\nprefer = \"latency\"\n{CPU}{MODEL}"),
            "symphony.toml:2: prefer: it chooses among what tuning finds, and nothing is tuned here; take it \
             out, or tuning = \"off\", or another policy, or drop = \"fcfs\""
                .into(),
        ),
        (
            format!("drop = \"fcfs\"\ntuning = \"on\"\n{CPU}{MODEL}"),
            "symphony.toml:2: tuning: there is nothing to tune in this policy, or with drop = \"fcfs\"; take it \
             out, or set policy = \"symphony\" and another rule than drop = \"fcfs\""
                .into(),
        ),
        (
            format!("policy = \"symphony-published\"\nwhen = \"late\"\n{CPU}{MODEL}"),
            "symphony.toml:2: when: is \"late\"; it must be one of \"frontrun\", \"beta-lambda\", \
             \"work-conserving\", \"latest\", \"target-queueing-delay\" (did you mean \"latest\"?)"
                .into(),
        ),
        (
            format!("drop = 3\n{CPU}{MODEL}"),
            "symphony.toml:1: drop: is 3; it must be a string in quotes: one of \"window\", \"timeout\", \"fcfs\", \"exchange\""
                .to_string(),
        ),
        (
            MODEL.to_string(),
            "symphony.toml:1: models[0].executor: the model runs on \"cpu\", and there is no such executor; add a \
             table [[executors]] with kind = \"cpu\""
                .into(),
        ),
        (
            format!("[[executors]]\ncount = 2\n{MODEL}"),
            "symphony.toml:1: executors[0].kind: is missing; add \"cpu\", \"onnxruntime\", \"cuda\" or \"emulated\"".into(),
        ),
        (
            format!("[[executors]]\nkind = \"gpu\"\n{MODEL}"),
            format!("symphony.toml:2: executors[0].kind: is \"gpu\"; {two_kinds} (did you mean \"cpu\"?)"),
        ),
        (
            format!("{CPU}count = 0\n{MODEL}"),
            "symphony.toml:3: executors[0].count: is 0; it must be a whole number from 1 to 1024".into(),
        ),
        (
            format!("{CPU}count = 3\ncores = [0]\n{MODEL}"),
            "symphony.toml:4: executors[0].cores: lists 1 cores for 3 executors; list one core for each, or leave \
             `count` out"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}{GPUS}cores = [0]\n"),
            "symphony.toml:10: executors[1].cores: is given for emulated GPUs; they share one thread: set \
             `emulated` in [cores]"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}{GPUS}[[executors]]\nkind = \"emulated\"\ncount = 65533\n"),
            "symphony.toml:1: executors: 65538 executors in all are too many; one scheduler matches at most 65536: \
             lower the counts"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}[cores]\nmodel = [0]\nmodel_threads = 2"),
            "symphony.toml:8: cores.model: lists 1 cores, which is not `model_threads`; list one core for each \
             ModelThread, or leave `model_threads` out"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}[cores]\nmodel_threads = \"all\""),
            "symphony.toml:8: cores.model_threads: is \"all\"; it must be \"auto\" or a whole number from 1 to 255".into(),
        ),
        (
            format!("{CPU}{MODEL}[http]\nmax_body_mb = 1000000"),
            "symphony.toml:8: http.max_body_mb: is 1000000; it must be a whole number from 1 to 1024".into(),
        ),
        (
            format!("{CPU}{MODEL}{MODEL}"),
            "symphony.toml:8: models[1].name: \"m\" is already the name of the model at line 4; give each model a \
             name of its own"
                .into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("\"m\"", "\"a/b\"")),
            "symphony.toml:4: models[0].name: is \"a/b\"; it must be 1 to 128 letters, digits, `_`, `-` and `.`, \
             not beginning with `.`: it stands in URLs"
                .into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("m.onnx", "n.onnx")),
            "symphony.toml:5: models[0].file: n.onnx can't be read (No such file or directory (os error 2)); name \
             an ONNX file by its path from the folder of this file"
                .into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("m.onnx", "empty.onnx")),
            "symphony.toml:5: models[0].file: empty.onnx is empty; name an ONNX file by its path from the folder \
             of this file"
                .into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("file = \"m.onnx\"\n", "")),
            "symphony.toml:3: models[0].file: is missing; add the model's ONNX file".into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("slo_ms = 25\n", "")),
            "symphony.toml:3: models[0].slo_ms: is missing; add the latency promised, in ms".into(),
        ),
        (
            format!("{CPU}{}", MODEL.replace("25", "-25")),
            "symphony.toml:6: models[0].slo_ms: is -25; it must be a number above 0 and up to 3600000".into(),
        ),
        (
            format!("{CPU}{MODEL}max_batch = 4096"),
            "symphony.toml:7: models[0].max_batch: is 4096; it must be a whole number from 1 to 1024".into(),
        ),
        (
            format!("{CPU}{MODEL}priority = 4"),
            "symphony.toml:7: models[0].priority: is 4; it must be a whole number from 0 to 3".into(),
        ),
        (
            format!("{CPU}{MODEL}profile = \"bad.csv\""),
            "bad.csv:3: profile: p50_ms: `x` is not a time; give milliseconds above 0, for example 1.25".into(),
        ),
        (
            format!("{CPU}{MODEL}profile = \"mesure\""),
            "symphony.toml:7: models[0].profile: mesure can't be read (No such file or directory (os error 2)); \
             give \"measure\", or a CSV file with the columns batch,p50_ms,p99_ms"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}profile = 5"),
            "symphony.toml:7: models[0].profile: is 5; it must be \"measure\", a CSV file's name, or { alpha_ms = \
             1.0, beta_ms = 5.0 }"
                .into(),
        ),
        (
            format!("{CPU}{}profile = \"p.csv\"", MODEL.replace("25", "3")),
            "symphony.toml:6: models[0].slo_ms: is 3 ms, but a batch of one alone takes 5 ms: no request could be \
             in time; give an SLO of 5 ms at the very least, twice that to batch, or a faster model"
                .into(),
        ),
        (
            format!("{CPU}{MODEL}inputs = []"),
            "symphony.toml:7: models[0].inputs: is given for a model with a file; leave it out: the file says it"
                .into(),
        ),
        (
            format!("{GPUS}{EMULATED}file = \"m.onnx\""),
            "symphony.toml:9: models[0].file: is given for an emulated model; leave it out: nothing is computed"
                .into(),
        ),
        (
            format!("{GPUS}{}", EMULATED.replace("{ alpha_ms = 1, beta_ms = 5 }", "\"measure\"")),
            "symphony.toml:8: models[0].profile: an emulated model has nothing to measure; give { alpha_ms = 1.0, \
             beta_ms = 5.0 } or a CSV file's name"
                .into(),
        ),
        (
            format!("{GPUS}{}", EMULATED.replace(", beta_ms = 5", "")),
            "symphony.toml:8: models[0].profile.beta_ms: is missing; add what a batch costs whatever its size, in \
             ms"
            .into(),
        ),
        (
            format!("{GPUS}{EMULATED}inputs = [{{ name = \"a\", datatype = \"FP23\", shape = [4] }}]"),
            "symphony.toml:9: models[0].inputs[0].datatype: is \"FP23\"; it must be one of \"BOOL\", \"UINT8\", \
             \"UINT16\", \"UINT32\", \"UINT64\", \"INT8\", \"INT16\", \"INT32\", \"INT64\", \"FP16\", \"BF16\", \
             \"FP32\", \"FP64\", \"BYTES\""
                .into(),
        ),
        (
            format!("{GPUS}{EMULATED}inputs = [{{ name = \"a\", datatype = \"FP32\", shape = [4, 0] }}]"),
            "symphony.toml:9: models[0].inputs[0].shape[1]: is 0; it must be a whole number from 1 to 67108864"
                .into(),
        ),
        (
            format!("{GPUS}{EMULATED}inputs = [{{ name = \"a\", datatype = \"FP32\", shape = [1024, 1024, 1024] }}]"),
            "symphony.toml:9: models[0].inputs[0].shape: is of too large a tensor; at most 67108864 bytes fit".into(),
        ),
    ] {
        let expected: String = expected;
        assert_eq!(diagnostics(&text), [expected], "{text}");
    }
}

#[test]
fn a_core_that_the_machine_lacks_is_a_diagnostic() {
    let rendered = diagnostics(&format!("{CPU}{MODEL}[cores]\nrank = 60000"));
    assert_eq!(rendered.len(), 1);
    let expected = "symphony.toml:8: cores.rank: this process may not run on a core 60000; use one of ";
    assert!(rendered[0].starts_with(expected), "{rendered:?}");
}

#[test]
fn all_diagnostics_of_a_file_come_out_at_once_in_its_order() {
    let text = "polcy = \"symphony\"\n[[executors]]\nkind = \"cpu\"\n[[models]]\nname = \"m\"\nfile = \"none.onnx\"\n\
                slo_ms = 0\npriority = 9\n[[models]]\nname = \"n\"\nfile = \"m.onnx\"\nslo_ms = 25\nexecuter = \"cpu\"\n";
    assert_eq!(
        diagnostics(text),
        [
            "symphony.toml:1: polcy: is no field that is known here; did you mean `policy`?",
            "symphony.toml:6: models[0].file: none.onnx can't be read (No such file or directory (os error 2)); \
             name an ONNX file by its path from the folder of this file",
            "symphony.toml:7: models[0].slo_ms: is 0; it must be a number above 0 and up to 3600000",
            "symphony.toml:8: models[0].priority: is 9; it must be a whole number from 0 to 3",
            "symphony.toml:13: models[1].executer: is no field that is known here; did you mean `executor`?",
        ]
    );
}

#[test]
fn a_folder_without_its_file_is_a_diagnostic() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = rendered(&read_config(folder.path()).unwrap_err(), folder.path());
    assert!(rendered[0].starts_with("symphony.toml:1: TOML: the file can't be read"), "{rendered:?}");
}

#[test]
fn a_file_too_large_to_be_a_configuration_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let rendered = rendered(&read_config(&path).unwrap_err(), folder.path());
    assert_eq!(
        rendered,
        ["model.onnx:1: TOML: the file has 16 MiB or more; name a TOML file (they are far smaller)"]
    );
}

/// Lines that nearly make a CONFIG.
fn nearly_a_config() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("[[models]]".to_string()),
        Just("[[executors]]".to_string()),
        "\\[(cores|http|network|models|x)\\]",
        "kind = \"(cpu|emulated|cuda)\"",
        "name = \"[a-c]\"",
        Just("file = \"m.onnx\"".to_string()),
        (
            "slo_ms|max_batch|priority|profile|inputs|outputs|count|cores|model|rank|rank_threads|api|max_body_mb|executor|models",
            "-?[0-9]{1,9}|nan|1e300|\\[\\]|\\{\\}|\\[[0-9]\\]|true|\"p.csv\"|\"emulated\"|\\{ alpha_ms = [0-9], beta_ms = [0-9] \\}"
        )
            .prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    proptest::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>()) {
        let _ = read_config(files(text.as_bytes()).path());
    }

    #[test]
    fn what_is_nearly_a_config_is_read_or_its_diagnostics_are_reported(text in nearly_a_config()) {
        match read_config(files(text.as_bytes()).path()) {
            Ok(config) => {
                prop_assert!(!config.models.is_empty());
                for model in &config.models {
                    prop_assert!((1..=limits::MAX_BATCH).contains(&model.max_batch));
                    prop_assert!(config.executors_of(model.source.kind()) >= 1);
                }
            }
            Err(diagnostics) => prop_assert_eq!(diagnostics.to_string().lines().count(), diagnostics.0.len()),
        }
    }
}
