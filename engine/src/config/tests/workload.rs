//! Workload files, good and bad.

use super::{folder, rendered};
use crate::config::{ArrivalSource, parse_arrival, read_workload};
use proptest::prelude::*;
use std::path::Path;
use symphony_scheduler::limits;
use symphony_scheduler::load_phases::{LoadPhase, LoadPhases};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::query::{ItemDraw, StageInput};
use symphony_scheduler::workload::{Arrival, Network, Workload};
use symphony_transport::Nanos;
use symphony_transport::message::NO_DEADLINE;

const FILE: &str = "w.toml";

fn good(text: &str) -> Workload {
    let folder = folder(&[(FILE, text.as_bytes()), ("zoo.csv", ZOO.as_bytes()), ("t.txt", b"0.5\n1.5\n")]);
    read_workload(&folder.path().join(FILE)).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

fn diagnostics(text: &[u8]) -> Vec<String> {
    let folder = folder(&[
        (FILE, text),
        ("zoo.csv", ZOO.as_bytes()),
        ("bad.csv", b"model,alpha_ms,beta_ms,slo_ms\nA,1,2,30\nB,-1,2,x\n\nC,9,9,5\nD,1,1\n"),
        ("t.txt", b"1\n0.5\n"),
    ]);
    rendered(&read_workload(&folder.path().join(FILE)).unwrap_err(), folder.path())
}

const ZOO: &str = "model,alpha_ms,beta_ms,slo_ms\nA,1.0,2.0,30\nB,1.0,5.0,30\nC,0.0,5.0,30\n";

const HEAD: &str = "gpus = 8\nrate_rps = 4000.0\n";

const MODEL: &str = "[[models]]\nname = \"R\"\nalpha_ms = 1.053\nbeta_ms = 5.072\nslo_ms = 25.0\n";

#[test]
fn a_model_takes_what_a_profile_in_a_file_says() {
    const PROFILED: &str = "[[models]]\nname = \"R\"\nprofile = \"p.csv\"\nslo_ms = 5\n";
    let table = "# device: a card\nbatch,p50_ms,p99_ms\n1,1,2\n3,4,4\n4,5,6\n";
    let read = |text: &str| {
        let folder = folder(&[(FILE, text.as_bytes()), ("p.csv", table.as_bytes()), ("bad.csv", b"x\n")]);
        let read = read_workload(&folder.path().join(FILE));
        read.map_err(|diagnostics| rendered(&diagnostics, folder.path()))
    };
    let workload = read(&format!("{HEAD}{PROFILED}")).unwrap();
    // A batch of four takes longer than the SLO.
    let measured = Profile::measured(&[2, 3, 4].map(Nanos::from_millis)).unwrap();
    let measured = measured.with_typical([1_000, 2_500, 4_000].map(Nanos::from_micros).into());
    assert_eq!(workload.models[0].profile, measured);
    assert_eq!(measured.worthwhile().max_batch(), 1, "by the medians, not by l(b)");
    for (text, expected) in [
        (PROFILED.replace("p.csv", "bad.csv"), "bad.csv:1: profile: `x` is not the header"),
        (PROFILED.replace("p.csv", "no.csv"), "give alpha_ms and beta_ms, or a CSV file"),
        (PROFILED.replace("slo_ms = 5", "slo_ms = 1"), "a batch of one alone takes 2 ms"),
        (format!("{PROFILED}alpha_ms = 1\n"), "alpha_ms"),
    ] {
        let found = read(&format!("{HEAD}{text}")).unwrap_err();
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?} should say {expected}");
    }
}

#[test]
fn a_file_with_every_key_is_read_as_written() {
    let workload = good(
        "gpus = 8\nseed = 7\nwarmup_s = 2.5\nduration_s = 10\nrate_rps = 4_000\npopularity = \"equal\"\n\
         [network]\ncontrol_us = 100.0\ndata_us_per_request = 50\nresult_us = 2000\n\
         [[models]]\nname = \"A\"\nalpha_ms = 1.053\nbeta_ms = 5.072\nslo_ms = 25.0\nshare = 3.0\n\
         arrival = \"gamma:0.05\"\ncopies = 1\n\
         [[models]]\nname = \"B\"\nalpha_ms = 0\nbeta_ms = 5\nslo_ms = 5\nshare = 1\narrival = \"uniform\"",
    );
    assert_eq!((workload.name.as_str(), workload.gpus, workload.seed), ("w", 8, 7));
    assert_eq!((workload.warmup, workload.duration), (Nanos::from_millis(2_500), Nanos::from_secs(10)));
    assert_eq!(workload.rate_rps, 4_000.0);
    let delays = (Nanos::from_micros(100), Nanos::from_micros(50), Nanos::from_micros(2_000));
    let network = Network { control: delays.0, data_per_request: delays.1, result: delays.2 };
    assert_eq!(workload.network, network);
    let [a, b] = &workload.models[..] else { panic!("two models") };
    // 18 * 1.053 + 5.072 = 24.026; 19 would take 25.079.
    let profile = Profile::linear(Nanos(1_053_000), Nanos(5_072_000), 18).unwrap();
    assert_eq!((&a.profile, a.slo, a.share), (&profile, Nanos::from_millis(25), 0.75));
    assert_eq!(a.arrival, Arrival::Gamma(0.05));
    assert_eq!((b.profile.max_batch(), b.share), (limits::MAX_BATCH, 0.25));
    assert_eq!(b.arrival, Arrival::Uniform);
}

#[test]
fn a_model_may_have_applications_with_run_times_of_their_own() {
    let varying = |keys: &str, applications: &str| {
        format!("{HEAD}[[models]]\nname = \"m\"\nslo_ms = 400\n{keys}\napplications = [{applications}]\n")
    };
    let normals = "{ share = 3, normals = [{ mean_ms = 10, deviation_ms = 1 }, { weight = 2, mean_ms = 40, deviation_ms = 4 }] }";
    let workload = good(&varying(
        "fixed_ms = 5\nper_request = 0.5\nestimate = \"p90\"",
        &format!(
            "{normals}, {{ log_normal = {{ median_ms = 20, sigma = 0.5 }} }}, {{ samples = \"t.txt\" }}"
        ),
    ));
    let model = &workload.models[0];
    let varying_model = model.varying.as_ref().unwrap();
    assert_eq!((varying_model.fixed, varying_model.per_request), (Nanos::from_millis(5), 0.5));
    let shares: Vec<f64> = varying_model.applications.iter().map(|one| one.share).collect();
    assert_eq!(shares, [3.0, 1.0, 1.0]);
    assert!((varying_model.applications[0].run_times.mean() - 30.0).abs() < 0.5);
    // 16 requests of at most some 47 ms: 5 + 0.5 * 16 * 47.
    assert!(model.profile.max_batch() < 16 && model.profile.latency(8) > Nanos::from_millis(150));
    let histogram =
        good(&varying("", "{ histogram = { lowest_ms = 1, width_ms = 2, weights = [1, 0, 3] } }"));
    let mean = histogram.models[0].varying.as_ref().unwrap().applications[0].run_times.mean();
    let two = histogram.models[0].profile.latency(2).as_millis_f64();
    assert!(mean == 5.0 && (two - 10.0).abs() < 0.01, "{mean} {two}");
    let costs = good(&varying(
        "",
        "{ log_normal = { median_ms = 10, sigma = 0 }, cost = 3, cost_steps = [{ after_ms = 50, cost = 0.5 }] }, \
         { log_normal = { median_ms = 10, sigma = 0 } }",
    ));
    let costs = costs.models[0].varying.as_ref().unwrap();
    let cost = |application, ms| costs.cost(application, Some(Nanos::from_millis(ms)), ms <= 400);
    assert_eq!([40, 60, 500].map(|ms| cost(0, ms)), [0.0, 0.5, 3.0]);
    assert_eq!([40, 60, 500].map(|ms| cost(1, ms)), [0.0, 0.0, 1.0]);
    for (applications, says) in [
        ("", "w.toml:7: models[0].applications: has 0 applications; give 1 to 256"),
        (
            "{ share = 1 }",
            "w.toml:7: models[0].applications[0].log_normal: is missing; add `log_normal`, `normals`",
        ),
        (
            "{ samples = \"t.txt\", log_normal = { median_ms = 1, sigma = 0 } }",
            "is a second distribution; give one",
        ),
        ("{ samples = \"none.txt\" }", "models[0].applications[0].samples: the file none.txt can't be read"),
        (
            "{ histogram = { lowest_ms = 1, width_ms = 1, weights = [0] } }",
            "it has no bin with a weight above 0",
        ),
        (
            "{ log_normal = { median_ms = 10, sigma = 0 }, cost_steps = [{ after_ms = 400, cost = 0.5 }] }",
            "applications[0].cost_steps: with the step at slo_ms step 1 does not rise in time and in cost; give up to \
             15 steps that rise, below slo_ms and below `cost`",
        ),
        (
            "{ log_normal = { median_ms = 10, sigma = 0 }, cost = 2, cost_steps = [{ cost = 0.5 }] }",
            "applications[0].cost_steps[0].after_ms: is missing; add the latency",
        ),
        (
            "{ log_normal = { median_ms = 900, sigma = 0.1 } }",
            "models[0].slo_ms: is 400 ms, but a batch of one alone takes",
        ),
    ] {
        let found = diagnostics(varying("", applications).as_bytes());
        assert!(found[0].contains(says), "{found:?}");
    }
    let found = diagnostics(varying("estimate = \"p100\"", normals).as_bytes());
    assert!(
        found[0].contains("models[0].estimate: is \"p100\"; it must be \"mean\", or \"pNN\""),
        "{found:?}"
    );
}

/// Two models, and a query of these stages from line 13 on.
fn with_query(stages: &str) -> String {
    let other = MODEL.replace("\"R\"", "\"S\"");
    format!("{HEAD}{MODEL}{other}[[queries]]\nname = \"q\"\nslo_ms = 60\nstages = [{stages}]\n")
}

#[test]
fn a_query_is_a_graph_of_models_which_have_no_requests_of_their_own() {
    let workload = good(&with_query(
        "{name = \"join\", model = \"S\", after = [\"b\", \"c\"]}, {name = \"a\", model = \"R\"}, \
         {name = \"b\", model = \"S\", after = \"a\", gamma = 2.5}, \
         {name = \"c\", model = \"S\", after = [\"a\"], gamma = 0.5}",
    ));
    let [query] = &workload.queries[..] else { panic!("{} queries", workload.queries.len()) };
    assert_eq!((query.graph.slo, query.share), (Nanos::from_millis(60), 1.0));
    assert!(workload.models.iter().all(|model| model.share == 0.0));
    let names: Vec<&str> = query.graph.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "join"]);
    let inputs: Vec<_> = query.graph.stages.iter().map(|stage| stage.input.clone()).collect();
    assert_eq!(inputs[0], StageInput::Root);
    assert_eq!(inputs[1], StageInput::each(0, 2.5));
    assert_eq!(inputs[2], StageInput::each(0, 0.5));
    assert_eq!(inputs[3], StageInput::All(vec![1, 2]));
    assert_eq!(query.graph.expected_items(), [1.0, 2.5, 0.5, 1.0]);
}

#[test]
fn rates_and_numbers_of_items_may_go_up_and_down_by_phases() {
    let stages = "{name = \"a\", model = \"R\"}, {model = \"S\", after = \"a\", gamma = 2, \
                  phases = [{ for_s = 3, factor = 1 }, { for_s = 1, factor = 5 }]}";
    let rate = "phases = [{ for_s = 0.5, factor = 0 }, { for_s = 0.5, factor = 2 }]\nstages";
    let workload = good(&with_query(stages).replace("stages", rate));
    let phase = |ms, factor| LoadPhase { lasts: Nanos::from_millis(ms), factor };
    let of = |phases: [LoadPhase; 2]| LoadPhases::new(&phases).unwrap();
    let (gamma, draw) = (2.0, ItemDraw::Poisson);
    let phases = of([phase(3_000, 0.5), phase(1_000, 2.5)]);
    let [query] = &workload.queries[..] else { panic!() };
    assert_eq!(query.graph.stages[1].input, StageInput::Each { stage: 0, gamma, draw, phases });
    let phases = of([phase(500, 0.0), phase(500, 2.0)]);
    assert_eq!(query.arrival, Arrival::Phased(Arrival::Poisson.into(), phases));
    for (phases, expected) in [
        ("[]", "has 0 phases; give 1 to 64"),
        ("[{ for_s = 1 }]", "[0].factor: is missing; add the load in the phase"),
        ("[{ for_s = 0, factor = 1 }]", "[0].for_s: is 0; it must be a number from 0.001"),
        ("[{ for_s = 1, factor = 0 }]", "has a factor of 0 in every phase; give at least one"),
    ] {
        let text = with_query(stages).replace("stages", &format!("phases = {phases}\nstages"));
        let found = diagnostics(text.as_bytes());
        assert!(found[0].contains("queries[0].phases") && found[0].contains(expected), "{found:?}");
    }
    for (draw, expected) in [
        (
            "constant",
            "gamma: is 2, and up to 5 by its `phases`, which draw \"constant\" can't give; leave out",
        ),
        ("bernoulli", "gamma: is 2, and up to 5 by its `phases`, which draw \"bernoulli\" can't give"),
    ] {
        let stages = stages.replace("gamma = 2", &format!("gamma = 2, draw = \"{draw}\""));
        let found = diagnostics(with_query(&stages).as_bytes());
        assert!(found[0].contains(expected), "{found:?}");
    }
    let counted = "arrival = \"minutes:m.csv\"\nphases = [{ for_s = 1, factor = 1 }]\nstages";
    let folder =
        folder(&[(FILE, with_query(stages).replace("stages", counted).as_bytes()), ("m.csv", b"0,3\n")]);
    let found = rendered(&read_workload(&folder.path().join(FILE)).unwrap_err(), folder.path());
    assert!(found[0].contains("phases: are of an arrival whose file determines the rate"), "{found:?}");
}

#[test]
fn a_query_that_is_no_graph_or_has_no_time_is_reported_with_its_line() {
    let a = "{name = \"a\", model = \"R\"}";
    for (stages, expected) in [
        ("", "w.toml:16: queries[0].stages: has 0 stages; give 1 to 32"),
        (
            "{model = \"T\"}",
            "w.toml:16: queries[0].stages[0].model: \"T\" is no model of this file; name one of `[[models]]`",
        ),
        (
            &format!("{a}, {{name = \"b\", model = \"S\"}}"),
            "w.toml:16: queries[0].stages[1].model: stages \"a\" and \"b\" are both without `after`; a query \
             has one root: say what the other is after",
        ),
        (
            &format!(
                "{a}, {{model = \"R\", name = \"b\", after = \"c\"}}, {{name = \"c\", model = \"S\", after = \"b\"}}"
            ),
            "w.toml:16: queries[0].stages[1].model: stage \"b\" is in a cycle, or after one; a query's graph has \
             no cycle: change `after`",
        ),
        (
            &format!("{a}, {{model = \"S\", after = \"z\"}}"),
            "w.toml:16: queries[0].stages[1].model: stage \"S\" is after \"z\", which is no stage of this query; \
             name a stage of the same query",
        ),
        (
            &format!("{a}, {{name = \"a\", model = \"S\", after = \"a\"}}"),
            "w.toml:16: queries[0].stages[1].model: \"a\" is already the name of a stage of this query; give each \
             stage a `name` of its own",
        ),
        (
            &format!("{a}, {{model = \"S\", after = \"a\", gamma = 0}}"),
            "w.toml:16: queries[0].stages[1].gamma: is 0; it must be a number above 0 and up to 1000",
        ),
        (
            &format!("{a}, {{model = \"S\", after = \"a\", gamma = 1.5, draw = \"bernoulli\"}}"),
            "w.toml:16: queries[0].stages[1].gamma: is 1.5, which draw \"bernoulli\" can't give; give a number up to \
             1, or draw = \"poisson\"",
        ),
        (
            "{model = \"R\", gamma = 2}",
            "w.toml:16: queries[0].stages[0].gamma: is of a stage without exactly one stage in `after`; leave it \
             out: it has one item",
        ),
    ] {
        assert_eq!(diagnostics(with_query(stages).as_bytes()), [expected], "{stages}");
    }
    let brief = with_query(a).replace("slo_ms = 60", "slo_ms = 6");
    assert_eq!(
        diagnostics(brief.as_bytes()),
        [
            "w.toml:15: queries[0].slo_ms: is 6 ms, but the longest path takes 6.125 ms in batches of one; give an SLO \
          of 6.125 ms at the very least, twice that to batch"
        ]
    );
    let without = with_query(a).replace("slo_ms = 60\n", "");
    assert_eq!(
        diagnostics(without.as_bytes()),
        ["w.toml:13: queries[0].slo_ms: is missing; add the latency promised for the whole query, in ms"]
    );
}

#[test]
fn what_is_optional_has_its_documented_default() {
    let workload = good(&format!("{HEAD}{MODEL}"));
    assert_eq!(workload.seed, 1);
    assert_eq!((workload.warmup, workload.duration), (Nanos::from_secs(5), Nanos::from_secs(30)));
    assert_eq!(workload.network, Network::default());
    assert_eq!((workload.models[0].share, &workload.models[0].arrival), (1.0, &Arrival::Poisson));
}

#[test]
fn copies_are_models_of_their_own_with_the_share_each() {
    let workload = good(&format!("{HEAD}{MODEL}copies = 3\nshare = 2\n{}", MODEL.replace("\"R\"", "\"S\"")));
    let names: Vec<&str> = workload.models.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["R", "R-2", "R-3", "S"]);
    let shares: Vec<f64> = workload.models.iter().map(|m| m.share).collect();
    assert_eq!(shares, [2.0 / 7.0, 2.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]);
}

#[test]
fn zipf_ranks_the_models_as_the_file_lists_them_and_overrides_shares() {
    let workload = good(&format!("{HEAD}popularity = \"zipf:1\"\n{MODEL}copies = 3\nshare = 5\n"));
    for (model, weight) in workload.models.iter().zip([1.0, 0.5, 1.0 / 3.0]) {
        assert!((model.share - weight / (1.0 + 0.5 + 1.0 / 3.0)).abs() < 1e-12);
    }
}

#[test]
fn a_zoo_is_many_models_and_its_filters_choose_among_them() {
    let names = |filters: &str| {
        let workload = good(&format!("{HEAD}[[models]]\nzoo = \"zoo.csv\"\n{filters}"));
        workload.models.iter().map(|m| m.name.clone()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(""), "A B C");
    assert_eq!(names("min_beta_over_alpha = 2.0"), "B C");
    assert_eq!(names("max_beta_over_alpha = 5.0"), "A B");
    assert_eq!(names("copies = 2"), "A A-2 B B-2 C C-2");
}

#[test]
fn a_trace_is_found_beside_the_file() {
    let workload = good(&format!("{HEAD}{MODEL}arrival = \"trace:t.txt\""));
    let offsets = [500, 1_500].map(symphony_transport::Nanos::from_millis);
    assert_eq!(workload.models[0].arrival, Arrival::Trace(offsets.into()));
}

#[test]
fn the_shipped_workloads_can_be_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/workloads");
    let read =
        |name: &str| read_workload(&folder.join(name)).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    for (name, gpus, models) in [
        ("table4-resnet50.toml", 8, 1),
        ("table4-inceptionresnetv2.toml", 8, 1),
        ("table4-resnet50-network.toml", 8, 1),
        ("autoscale-24gpu.toml", 24, 10),
        ("zoo-1080ti-64.toml", 64, 35),
        ("zoo-a100-gt2-64.toml", 64, 29),
    ] {
        let workload = read(name);
        assert_eq!((workload.gpus, workload.models.len()), (gpus, models), "{name}");
    }
}

#[test]
fn each_diagnostic_is_reported_with_its_line_its_field_and_what_would_be_right() {
    for (text, expected) in [
        (format!("rate_rps = 1\n{MODEL}"), "w.toml:1: gpus: is missing; add the number of GPUs"),
        (
            format!("gpus = 8\n{MODEL}"),
            "w.toml:1: rate_rps: is missing; add the requests per second of all models together",
        ),
        (
            format!("gpus = 0\nrate_rps = 1\n{MODEL}"),
            "w.toml:1: gpus: is 0; it must be a whole number from 1 to 65536",
        ),
        (
            format!("gpus = 1.5\nrate_rps = 1\n{MODEL}"),
            "w.toml:1: gpus: is 1.5; it must be a whole number from 1 to 65536",
        ),
        (
            format!("gpus = 99999999999999999999\nrate_rps = 1\n{MODEL}"),
            "w.toml:1: gpus: is 99999999999999999999; it must be a whole number from 1 to 65536",
        ),
        (
            format!("gpus = 8\nrate_rps = \"fast\"\n{MODEL}"),
            "w.toml:2: rate_rps: \"fast\" is a string; it must be a number above 0 and up to 1000000000",
        ),
        (
            format!("gpus = 8\nrate_rps = nan\n{MODEL}"),
            "w.toml:2: rate_rps: is nan; it must be a number above 0 and up to 1000000000",
        ),
        (
            format!("gpus = 8\nrate_rps = inf\n{MODEL}"),
            "w.toml:2: rate_rps: is inf; it must be a number above 0 and up to 1000000000",
        ),
        (
            format!("{HEAD}seed = -1\n{MODEL}"),
            "w.toml:3: seed: is -1; it must be a whole number from 0 to 9223372036854775807",
        ),
        (
            format!("{HEAD}duration = 3\n{MODEL}"),
            "w.toml:3: duration: is no field that is known here; did you mean `duration_s`?",
        ),
        (
            format!("{HEAD}colour = 3\n{MODEL}"),
            "w.toml:3: colour: is no field that is known here; the fields here are gpus, seed, warmup_s, \
             duration_s, rate_rps, network, popularity, models, queries, split",
        ),
        (
            format!("{HEAD}popularity = \"zipf\"\n{MODEL}"),
            "w.toml:3: popularity: is \"zipf\"; it must be \"equal\", or \"zipf:S\" with S from 0 to 10, like \
             \"zipf:0.9\"",
        ),
        (
            format!("{HEAD}[network]\ncontrol_us = -3\n{MODEL}"),
            "w.toml:4: network.control_us: is -3; it must be a number from 0 to 1000000000",
        ),
        (
            format!("{HEAD}[network]\ncontrol_ms = 3\n{MODEL}"),
            "w.toml:4: network.control_ms: is no field that is known here; did you mean `control_us`?",
        ),
        (format!("{HEAD}network = 3\n{MODEL}"), "w.toml:3: network: is 3; it must be a table"),
        (HEAD.into(), "w.toml:1: models: is missing; add at least 1 table under a line `[[models]]`"),
        (
            format!("{HEAD}models = []"),
            "w.toml:3: models: is missing; add at least 1 table under a line `[[models]]`",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("[[models]]", "[models]")),
            "w.toml:3: models: is no list; write each as a table under a line `[[models]]`",
        ),
        (format!("{HEAD}models = [1]"), "w.toml:3: models[0]: is 1; it must be a table"),
        (
            format!("{HEAD}{}", MODEL.replace("25.0", "-25")),
            "w.toml:7: models[0].slo_ms: is -25; it must be a number above 0 and up to 3600000",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("25.0", "6")),
            "w.toml:7: models[0].slo_ms: is 6 ms, but a batch of one alone takes 6.125 ms: no request could be \
             in time; give an SLO of 6.125 ms at the very least, twice that to batch, or a faster model",
        ),
        (
            format!("{HEAD}{}", MODEL.replace("1.053", "0").replace("5.072", "0")),
            "w.toml:7: models[0].slo_ms: is that of a model that takes no time: alpha_ms + beta_ms is 0; give at \
             least one of them a value above 0",
        ),
        (
            format!("{HEAD}{MODEL}{}", MODEL.replace("name = \"R\"\n", "")),
            "w.toml:8: models[1].name: is missing; add the model's name, or `zoo`, a CSV file of models",
        ),
        (
            format!("{HEAD}{MODEL}{MODEL}"),
            "w.toml:9: models[1].name: \"R\" is already the name of the model at line 4; give each model a name \
             of its own",
        ),
        (
            format!("{HEAD}{MODEL}arrival = \"poison\""),
            "w.toml:8: models[0].arrival: is \"poison\"; it must be \"poisson\", \"uniform\", \"gamma:K\" with a \
             shape K above 0, like \"gamma:0.05\", \"trace:FILE\", or \
             \"minutes:FILE\"",
        ),
        (
            format!("{HEAD}{MODEL}arrival = \"trace:none.txt\""),
            "w.toml:8: models[0].arrival: the trace none.txt can't be read (No such file or directory (os error \
             2)); name a file beside this one with an offset in seconds on each line",
        ),
        (
            format!("{HEAD}{MODEL}arrival = \"trace:t.txt\""),
            "t.txt:2: offset: `0.5` is before the line above; offsets must not go back",
        ),
        (
            format!("{HEAD}{MODEL}copies = 20000"),
            "w.toml:8: models[0].copies: is 20000; it must be a whole number from 1 to 16384",
        ),
        (
            format!("{HEAD}{MODEL}copies = 10000\n{}copies = 10000", MODEL.replace("\"R\"", "\"S\"")),
            "w.toml:3: models: 20000 models in all are too many; one scheduler ranks at most 16384: give fewer \
             entries or copies",
        ),
        (
            format!("{HEAD}[[models]]\nzoo = \"zoo.csv\"\nmin_beta_over_alpha = 9\nmax_beta_over_alpha = 10"),
            "w.toml:4: models[0].zoo: none of its 3 models passes the filters; widen the filters",
        ),
        (
            format!("{HEAD}gpus = 9\n{MODEL}"),
            "w.toml:3: TOML: duplicate key; see https://toml.io for how TOML is written",
        ),
    ] {
        assert_eq!(diagnostics(text.as_bytes()), [expected], "{text}");
    }
}

#[test]
fn all_diagnostics_of_a_file_come_out_at_once_in_its_order() {
    let text = "gpus = -1\nrate_rps = true\nsed = 4\n[[models]]\nname = \"A\"\nalpha_ms = 1\nbeta_ms = 1\n\
                slo_ms = \"x\"\n[[models]]\nname = \"\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\nshare = 0\n";
    assert_eq!(
        diagnostics(text.as_bytes()),
        [
            "w.toml:1: gpus: is -1; it must be a whole number from 1 to 65536",
            "w.toml:2: rate_rps: is true; it must be a number above 0 and up to 1000000000",
            "w.toml:3: sed: is no field that is known here; did you mean `seed`?",
            "w.toml:8: models[0].slo_ms: \"x\" is a string; it must be a number above 0 and up to 3600000, or \"none\"",
            "w.toml:10: models[1].name: is \"\"; it must be a name",
            "w.toml:14: models[1].share: is 0; it must be a number above 0 and up to 1000000000",
        ]
    );
}

#[test]
fn diagnostics_of_a_zoo_are_reported_with_the_lines_of_the_zoo() {
    assert_eq!(
        diagnostics(format!("{HEAD}[[models]]\nzoo = \"bad.csv\"").as_bytes()),
        [
            "bad.csv:3: alpha_ms: is -1; it must be a number from 0 to 3600000",
            "bad.csv:3: slo_ms: is x; it must be a number above 0 and up to 3600000",
            "bad.csv:6: zoo: has 3 values; give 4: model,alpha_ms,beta_ms,slo_ms",
        ]
    );
    let missing = diagnostics(format!("{HEAD}[[models]]\nzoo = \"none.csv\"").as_bytes());
    assert_eq!(missing.len(), 1);
    assert!(
        missing[0].starts_with("w.toml:4: models[0].zoo: none.csv: the file can't be read"),
        "{missing:?}"
    );
}

#[test]
fn text_that_is_no_toml_is_reported_by_line() {
    let lines = diagnostics(b"gpus = 8\nrate_rps = \n[[models]\n");
    assert!(lines.len() == 2, "{lines:?}");
    assert!(lines[0].starts_with("w.toml:2: TOML: "), "{lines:?}");
    assert!(lines[1].starts_with("w.toml:3: TOML: "), "{lines:?}");
    assert_eq!(
        diagnostics(b"gpus = 8\n# \xff\n"),
        ["w.toml:2: TOML: this is no UTF-8 text; name a TOML file (they are UTF-8)"]
    );
}

#[test]
fn what_a_file_says_can_neither_break_the_line_nor_reach_the_terminal() {
    let text = format!("{HEAD}{MODEL}arrival = \"trace:a\\nb\\u001b[31m\"\n\"x\\ny\" = 1");
    let lines = diagnostics(text.as_bytes());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains(char::is_control)), "{lines:?}");
}

#[test]
fn a_file_that_is_not_there_is_a_diagnostic_too() {
    let error = read_workload(Path::new("/no/such/w.toml")).unwrap_err().to_string();
    assert_eq!(
        error,
        "/no/such/w.toml:1: TOML: the file can't be read (No such file or directory (os error 2)); name a TOML \
         file that can be"
    );
}

#[test]
fn a_model_has_a_priority_and_without_an_slo_it_is_the_lowest_unless_given() {
    let model = |name: &str, rest: &str| {
        format!("[[models]]\nname = \"{name}\"\nalpha_ms = 1\nbeta_ms = 5\n{rest}\n")
    };
    let head = "gpus = 1\nrate_rps = 10\n".to_owned();
    let text = head.clone()
        + &model("a", "slo_ms = 25")
        + &model("b", "slo_ms = 25\npriority = 2")
        + &model("c", "slo_ms = \"none\"")
        + &model("d", "slo_ms = \"none\"\npriority = 1");
    let files = folder(&[(FILE, text.as_bytes())]);
    let workload = read_workload(&files.path().join(FILE)).unwrap();
    let classes: Vec<u8> = workload.models.iter().map(|model| model.class.number()).collect();
    assert_eq!(classes, [0, 2, 3, 1]);
    assert!(workload.has_classes() && workload.models[2].slo == NO_DEADLINE);
    assert_eq!(workload.models[2].profile.max_batch(), 1_024);
    for wrong in ["slo_ms = \"never\"", "slo_ms = \"none\"\npriority = 0", "slo_ms = 25\npriority = 4"] {
        let text = head.clone() + &model("a", wrong);
        let files = folder(&[(FILE, text.as_bytes())]);
        let diagnostics = read_workload(&files.path().join(FILE)).unwrap_err();
        assert_eq!(diagnostics.0.len(), 1, "{diagnostics}");
    }
}

#[test]
fn arrivals_have_the_names_of_the_workload_format() {
    assert_eq!(parse_arrival("poisson"), Ok(ArrivalSource::Process(Arrival::Poisson)));
    assert_eq!(parse_arrival("gamma:2"), Ok(ArrivalSource::Process(Arrival::Gamma(2.0))));
    assert_eq!(parse_arrival("trace:a:b"), Ok(ArrivalSource::Trace("a:b".into())));
    let minutes = |function: Option<&str>| ArrivalSource::Minutes {
        file: "a".into(),
        function: function.map(Into::into),
    };
    assert_eq!(parse_arrival("minutes:a"), Ok(minutes(None)));
    assert_eq!(parse_arrival("minutes:a#f"), Ok(minutes(Some("f"))));
    for bad in ["", "Poisson", "gamma", "gamma:", "gamma:0", "gamma:nan", "trace:", "uniform:1"] {
        assert!(parse_arrival(bad).is_err(), "{bad}");
    }
}

/// Lines that nearly make a workload.
fn nearly_a_workload() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("[[models]]".to_string()),
        Just("[network]".to_string()),
        Just("name = \"A\"".to_string()),
        Just("zoo = \"zoo.csv\"".to_string()),
        (
            "gpus|seed|rate_rps|alpha_ms|beta_ms|slo_ms|copies|share|control_us|popularity|arrival|models",
            "-?[0-9]{1,9}|nan|1e300|\"zipf:[0-9]\"|\"gamma:.\"|\\[\\]|\\{\\}|0x[0-9a-f]{1,40}|true|\"[a-z:]{0,8}\""
        )
            .prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    proptest::collection::vec(line, 0..20).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_makes_the_reader_panic(text in any::<Vec<u8>>()) {
        let folder = folder(&[(FILE, &text)]);
        let _ = read_workload(&folder.path().join(FILE));
    }

    #[test]
    fn what_is_nearly_a_workload_is_read_or_its_diagnostics_are_reported(text in nearly_a_workload()) {
        let folder = folder(&[(FILE, text.as_bytes()), ("zoo.csv", ZOO.as_bytes())]);
        match read_workload(&folder.path().join(FILE)) {
            Ok(workload) => prop_assert!((workload.models.iter().map(|m| m.share).sum::<f64>() - 1.0).abs() < 1e-9),
            Err(diagnostics) => {
                prop_assert!(!diagnostics.0.is_empty());
                let lines = text.lines().count().max(1);
                prop_assert!(diagnostics.0.iter().all(|m| (1..=lines + 1).contains(&m.line) && !m.right.is_empty()));
                prop_assert_eq!(diagnostics.to_string().lines().count(), diagnostics.0.len());
            }
        }
    }
}
