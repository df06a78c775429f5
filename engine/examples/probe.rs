//! scratch
use symphony::{clock::Nanos, model::selection::DropRule, policy, profile::Profile, sim, workload::*};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (gpus, alpha, beta, slo, copies): (usize, f64, f64, f64, usize) = (a[1].parse().unwrap(), a[2].parse().unwrap(), a[3].parse().unwrap(), a[4].parse().unwrap(), a[5].parse().unwrap());
    let net = if a.len() > 8 { Network { control: Nanos::from_micros(100), data_per_request: Nanos::from_micros(50), result: Nanos::from_micros(2000) } } else { Network::default() };
    let max = ((slo - beta) / alpha) as usize;
    let w = Workload { name: "x".into(), gpus, seed: 1, warmup: Nanos::from_secs(5), duration: Nanos::from_secs(30), rate_rps: 1000.0, network: net,
        models: (0..copies).map(|i| WorkloadModel { name: format!("m{i}"), profile: Profile::linear(Nanos::from_millis_f64(alpha), Nanos::from_millis_f64(beta), max).unwrap(), slo: Nanos::from_millis_f64(slo), share: 1.0 / copies as f64, arrival: Arrival::Poisson }).collect() };
    let p = policy::by_name(&a[6]).unwrap();
    let d = DropRule::parse(&a[7]).unwrap();
    let r = sim::goodput::search(&w, p, d, &mut |_| ()).unwrap();
    println!("{:?} batch {:.2} util {:.3} worst {:.4} ev {} wall {:.2} ev/s {:.2}M", r.goodput_rps, r.mean_batch, r.gpu_utilization, r.worst_bad_rate, r.events, r.wall_s, r.events as f64 / r.wall_s / 1e6);
}
