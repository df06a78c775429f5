//! Nexus's Figure 4, the table of section 4.2: what three divisions of 100 ms over two models are
//! worth, for gamma items of the second for each of the first. Computed from the throughputs of
//! Figure 3 as the section does: with p and q GPUs in proportion to the work, a query takes 1 / T_X
//! + gamma / T_Y of a GPU's time.
//!
//! No simulation.

use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};

/// Figure 3: the throughput of X and of Y, requests per second, by the time that a batch may take,
/// ms; and what Figure 4 says of each plan, queries per second for each GPU, by gamma.
const PLANS: [(u32, f64, u32, f64, [f64; 3]); 3] = [
    (40, 200.0, 60, 500.0, [192.3, 142.9, 40.0]),
    (50, 250.0, 50, 400.0, [235.3, 153.8, 34.5]),
    (60, 300.0, 40, 300.0, [272.7, 150.0, 27.3]),
];
const GAMMAS: [f64; 3] = [0.1, 1.0, 10.0];

/// Figure 4.
pub(super) struct Plans;

fn name(x_ms: u32, y_ms: u32) -> String {
    format!("{x_ms} + {y_ms} ms")
}

impl Experiment for Plans {
    fn name(&self) -> &'static str {
        "nexus-figure4"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 4: throughput of two models in a row by the split of 100 ms"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["plan", "gamma", "qps_per_gpu"]
    }

    fn jobs(&self, _effort: Effort) -> Vec<Job> {
        let row = |(x_ms, x_rps, y_ms, y_rps, _): (u32, f64, u32, f64, [f64; 3])| {
            GAMMAS.map(|gamma| {
                let throughput = 1.0 / (1.0 / x_rps + gamma / y_rps);
                vec![name(x_ms, y_ms), cell(gamma, 1), cell(throughput, 1)]
            })
        };
        vec![Job::new(1.0, move || Ok(PLANS.into_iter().flat_map(row).collect()))]
    }

    fn figure(&self, table: &Table) -> Figure {
        let bars = |(at, plan): (usize, &(u32, f64, u32, f64, [f64; 3]))| {
            let plan = name(plan.0, plan.2);
            let of = |gamma: f64| table.number(&[("plan", &plan), ("gamma", &cell(gamma, 1))], "qps_per_gpu");
            Series {
                colour: COLOURS[at],
                shape: Shape::bar_beside(at, PLANS.len()),
                points: (0..).map(f64::from).zip(GAMMAS.map(of)).collect(),
                label: plan,
            }
        };
        let panel = Panel {
            title: "plans for X + Y".to_owned(),
            x: Axis::named("gamma", GAMMAS.map(|gamma| cell(gamma, 1))),
            y: Axis::up_to("queries/s for each GPU", table.highest("qps_per_gpu")),
            series: PLANS.iter().enumerate().map(bars).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 1, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let claim = |(x_ms, _, y_ms, _, paper): &(u32, f64, u32, f64, [f64; 3])| {
            let plan = name(*x_ms, *y_ms);
            [0, 1, 2].map(|at| {
                let gamma = cell(GAMMAS[at], 1);
                let here = table.number(&[("plan", &plan), ("gamma", &gamma)], "qps_per_gpu");
                Claim::new(format!("{plan}, gamma {gamma}"), Paper::Is(paper[at]), here, Unit::Rps)
            })
        };
        PLANS.iter().flat_map(claim).collect()
    }
}
