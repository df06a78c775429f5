//! Symphony's Table 2: how much uncoordinated frontends amplify the fluctuations of what a backend
//! gets. No scheduler runs here: requests with exponential gaps reach frontends, each of which
//! distributes them to the backends in cyclic order.
//!
//! Under 2 s of one core.

use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Rows, Unit, cell};
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::sim::arrivals::stream_seed;

const BACKENDS: usize = 100;
const FRONTENDS: [usize; 2] = [1, 25];

/// A row of the table: the window, the rate, and what the paper says of 1 and of 25 frontends.
struct WindowSetup {
    window_ms: f64,
    rate_rps: f64,
    mean: f64,
    deviations: [f64; 2],
}

const SETUPS: [WindowSetup; 2] = [
    WindowSetup { window_ms: 400.0, rate_rps: 10_000.0, mean: 40.0, deviations: [0.753, 2.463] },
    WindowSetup { window_ms: 200.0, rate_rps: 2_000.0, mean: 4.0, deviations: [0.396, 1.860] },
];

/// Table 2.
pub(super) struct Fluctuations;

impl Experiment for Fluctuations {
    fn name(&self) -> &'static str {
        "symphony-table2"
    }

    fn about(&self) -> &'static str {
        "Symphony, Table 2: requests per window (RPW) at each of 100 backends behind round-robin frontends"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["window_ms", "rate_rps", "frontends", "mean_rpw", "std_rpw"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let windows = effort.choose(4_000, 40_000);
        let pairs = SETUPS.iter().flat_map(|setup| FRONTENDS.map(|frontends| (setup, frontends)));
        let job = |(setup, frontends): (&'static WindowSetup, usize)| {
            let requests = setup.rate_rps * setup.window_ms / 1e3 * f64::from(windows);
            Job::new(requests, move || Ok(counted(setup, frontends, windows, effort.seed)))
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let names = SETUPS.map(|setup| format!("{} ms at {} requests/s", setup.window_ms, setup.rate_rps));
        let bars = |(at, frontends): (usize, usize)| Series {
            label: if frontends == 1 { "1 frontend".to_owned() } else { format!("{frontends} frontends") },
            colour: COLOURS[at],
            shape: Shape::bar_beside(at, FRONTENDS.len()),
            points: (0..)
                .map(f64::from)
                .zip(SETUPS.iter().map(|setup| deviation(table, setup, frontends)))
                .collect(),
        };
        let panel = Panel {
            title: "one backend of 100".to_owned(),
            x: Axis::named("window and rate of all requests", names),
            y: Axis::up_to("standard deviation of RPW", table.highest("std_rpw")),
            series: FRONTENDS.into_iter().enumerate().map(bars).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for setup in &SETUPS {
            let WindowSetup { window_ms, rate_rps, mean, deviations } = setup;
            let of = format!("{window_ms} ms at {rate_rps} requests/s");
            let found = table.number(&[("window_ms", &window_ms.to_string())], "mean_rpw");
            claims.push(Claim::new(format!("{of}: mean RPW"), Paper::Is(*mean), found, Unit::Count));
            for (frontends, paper) in FRONTENDS.into_iter().zip(deviations) {
                let what = format!("{of}: standard deviation, {frontends} frontends");
                claims.push(Claim::new(
                    what,
                    Paper::Is(*paper),
                    deviation(table, setup, frontends),
                    Unit::Count,
                ));
            }
        }
        claims
    }
}

fn deviation(table: &Table, setup: &WindowSetup, frontends: usize) -> f64 {
    let keys = [("window_ms", &*setup.window_ms.to_string()), ("frontends", &*frontends.to_string())];
    table.number(&keys, "std_rpw")
}

/// Counts what each backend gets in each window.
fn counted(setup: &WindowSetup, frontends: usize, windows: u32, seed: u64) -> Rows {
    let mut random = Pcg64Mcg::seed_from_u64(stream_seed(seed, frontends as u64));
    let mut next: Vec<usize> = (0..frontends).map(|_| random.random_range(0..BACKENDS)).collect();
    let window_s = setup.window_ms / 1e3;
    let (mut at, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for window in 1..=windows {
        let mut counts = [0u32; BACKENDS];
        while at < f64::from(window) * window_s {
            let backend = &mut next[random.random_range(0..frontends)];
            counts[*backend] += 1;
            *backend = (*backend + 1) % BACKENDS;
            let gap: f64 = Exp1.sample(&mut random);
            at += gap / setup.rate_rps;
        }
        for count in counts.map(f64::from) {
            sum += count;
            squares += count * count;
        }
    }
    let samples = f64::from(windows) * BACKENDS as f64;
    let mean = sum / samples;
    let deviation = (squares / samples - mean * mean).sqrt();
    let WindowSetup { window_ms, rate_rps, .. } = setup;
    vec![vec![
        window_ms.to_string(),
        rate_rps.to_string(),
        frontends.to_string(),
        cell(mean, 3),
        cell(deviation, 4),
    ]]
}
