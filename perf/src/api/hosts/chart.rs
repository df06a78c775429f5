//! What the latency of links costs: as a chart in the style of the experiments', and as a table.

use super::HostsGoodput;
use crate::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use std::fmt::Write as _;

impl HostsGoodput {
    /// Returns the delay between a decision and its batch's start, in the paper's milliseconds.
    fn latency_ms(&self) -> f64 {
        self.network.control_us / 1e3 / self.setting.slower
    }

    /// Returns a rate in the paper's time.
    fn of_paper(&self, rps: f64) -> f64 {
        rps * self.setting.slower
    }
}

/// Returns the SLOs, each once, in their order.
fn slos_ms(figures: &[HostsGoodput]) -> Vec<f64> {
    let mut slos: Vec<f64> = figures.iter().map(|of| of.setting.slo_ms).collect();
    slos.dedup();
    slos
}

/// Makes the chart: goodput by latency, measured and simulated, in the paper's time.
pub fn chart(figures: &[HostsGoodput]) -> Figure {
    let mut series = Vec::new();
    for (at, slo_ms) in slos_ms(figures).into_iter().enumerate() {
        let of_slo = || figures.iter().filter(move |of| of.setting.slo_ms == slo_ms);
        let line = |label: &str, shape, rps: fn(&HostsGoodput) -> f64| Series {
            label: format!("SLO {slo_ms} ms, {label}"),
            colour: COLOURS[at % COLOURS.len()],
            shape,
            points: of_slo().map(|of| (of.latency_ms(), of.of_paper(rps(of)))).collect(),
        };
        series.push(line("three processes", Shape::Marked, |of| of.measured.goodput_rps));
        series.push(line("simulator", Shape::Dashed, |of| of.simulated_rps));
    }
    let most = |of: fn(&HostsGoodput) -> f64| figures.iter().map(of).fold(0.0, f64::max);
    let gpus = figures.first().map_or(0, |of| of.setting.gpus);
    let models = figures.first().map_or(0, |of| of.setting.models);
    let panel = Panel {
        title: "delays put into TCP connections".to_owned(),
        x: Axis::up_to("measured d_ctrl and fetch (ms)", most(HostsGoodput::latency_ms)),
        y: Axis::up_to(
            "goodput (requests/s)",
            most(|of| of.of_paper(of.simulated_rps.max(of.measured.goodput_rps))),
        ),
        series,
    };
    let title = format!("Symphony, Figure 13 on real sockets: {models} models on {gpus} emulated GPUs");
    Figure { title, columns: 1, panels: vec![panel] }
}

/// Makes the table of the figures, in Markdown.
pub fn table(figures: &[HostsGoodput]) -> String {
    let mut text = "| SLO (ms) | put in, each way (ms) | measured: d_ctrl and fetch / d_resp (ms) | \
                    goodput, three processes (1/s) | simulator (1/s) | ratio |\n\
                    | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for of in figures {
        let HostsGoodput { setting, put_in_ms, network, simulated_rps, measured, of_simulated } = of;
        writeln!(
            text,
            "| {} | {put_in_ms} | {:.1} / {:.1} | {:.0} | {simulated_rps:.0} | {of_simulated:.3} |",
            setting.slo_ms * setting.slower,
            network.control_us / 1e3,
            network.result_us / 1e3,
            measured.goodput_rps,
        )
        .expect("memory takes it");
    }
    text
}
