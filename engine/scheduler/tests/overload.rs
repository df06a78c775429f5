//! What models lose where more is asked of the GPUs than they can do: in virtual time.

use symphony_scheduler::policy::{PolicyOptions, by_name};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::simulate;
use symphony_scheduler::workload::{Network, Workload, WorkloadModel};
use symphony_transport::Nanos;

/// Returns the requests that were good, in parts of those that came, of each model on so many GPUs:
/// models by their alpha, beta and SLO in milliseconds, and their requests per second.
fn good(gpus: usize, network: Network, models: &[([f64; 3], f64)]) -> Vec<f64> {
    let rate_rps: f64 = models.iter().map(|of| of.1).sum();
    let models = models.iter().map(|&(of, rate)| {
        let [alpha, beta, slo] = of.map(Nanos::from_millis_f64);
        let profile = Profile::linear(alpha, beta, 256).unwrap();
        WorkloadModel { share: rate / rate_rps, ..WorkloadModel::new("m", profile, slo) }
    });
    let workload = Workload {
        seed: 3,
        warmup: Nanos::from_secs(5),
        duration: Nanos::from_secs(20),
        network,
        models: models.collect(),
        ..Workload::of_models(gpus, rate_rps, Vec::new())
    };
    let report = simulate(&workload, by_name("symphony").unwrap(), &PolicyOptions::default()).unwrap();
    report.models.iter().map(|of| of.good as f64 / of.offered as f64).collect()
}

/// Batches of 5 ms, and of a third of a second.
const BRIEF: [f64; 3] = [0.2, 1.0, 25.0];
const LONG: [f64; 3] = [4.0, 100.0, 900.0];

#[test]
fn a_model_that_is_flooded_loses_what_it_is_flooded_with() {
    let others = [(BRIEF, 400.0), ([0.3, 1.5, 30.0], 300.0)];
    let flooded =
        |times: f64| good(4, Network::default(), &[&[(BRIEF, 400.0 * times)][..], &others].concat());
    assert!(flooded(1.0).iter().all(|&good| good > 0.999));
    // By deadlines alone the others would keep a tenth.
    let good = flooded(200.0);
    assert!(good[0] < 0.3 && good[1..].iter().all(|&good| good > 0.8), "{good:?}");
}

#[test]
fn long_batches_do_not_starve_brief_ones() {
    // Half of what the GPUs can do is asked by the brief ones, and nearly all of it by the long
    // ones, which have to start first where batches wait: by that alone they would lose nothing,
    // and the brief ones two thirds.
    let good = good(4, Network::default(), &[(BRIEF, 4_000.0), (LONG, 800.0)]);
    assert!(good[0] > 0.8 && good[1] > 0.3, "{good:?}");
}

#[test]
fn who_is_sent_ahead_farthest_does_not_starve_others() {
    // Data of a batch of 80 is sent a millisecond before its GPU is free, that of the brief ones a
    // quarter of that. By that alone the former lose 1 %, and the latter 30 %.
    let network = Network {
        control: Nanos::from_micros(30),
        data_per_request: Nanos::from_micros(12),
        result: Nanos::from_micros(30),
    };
    let good = good(8, network, &[([0.58, 2.9, 51.0], 10_800.0), ([0.12, 0.18, 2.9], 13_200.0)]);
    assert!(good[0] > 0.85 && good[1] > 0.9, "{good:?}");
}
