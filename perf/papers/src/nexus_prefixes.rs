//! Nexus's Figure 15: variants of ResNet-50 that differ in their last layers, batched over their
//! prefix and each by itself. (a) the goodput of one device, (b) the memory of the weights.
//!
//! (a) twice. On the profile of Symphony's Table 5, for the paper's GPU, the last layers' time is
//! left out: that is the most that prefix batching can gain there. The other profile is measured:
//! `data/resnet50_parts.csv` has `weights_bytes` and the medians of what
//! `profile --device onnxruntime --max-batch 8 --runs 5 --seconds 1 --json` printed of the file
//! resnet50.onnx of `gpu networks` and of each of `gpu networks --parts`, by ONNX Runtime 1.32 on
//! one core of an Intel Xeon. A batch of a prefix group takes what the engine plans with
//! (docs/design/prefix-batching.md): the prefix for all rows, then each variant's last layer, for
//! one row of each variant and for all further rows of one of them. Larger batches than measured
//! take what the line through the measured ones says. The paper gives no SLO: it is 100 ms on the
//! GPU, 13.5 times a batch of one, and as many times that on the core.
//!
//! Under 30 s of one core.

use super::nexus_features::on_1080ti;
use super::setting::Setting;
use super::systems::NEXUS;
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::workload::Arrival;
use symphony_transport::Nanos;

/// What was measured: a part of ResNet-50, the bytes of its weights, rows, milliseconds.
const PARTS: &str = include_str!("../data/resnet50_parts.csv");

const VARIANTS: [usize; 5] = [2, 4, 6, 8, 10];

/// The SLO on the GPU.
const SLO_MS: f64 = 100.0;

/// The ways in which variants run: batched over their prefix, which makes them one model, and each
/// by itself.
const WAYS: [&str; 2] = ["prefix batching", "each by itself"];

/// The panels: goodput on either device, and memory.
const DEVICES: [&str; 2] = ["GTX 1080 Ti", "a CPU core"];
const MEMORY: &str = "memory";

/// The whole network, its prefix, and what stands behind that in variants of one, two and three
/// layers of their own.
const WHOLE: &str = "resnet50";
const PREFIX: &str = "resnet50_prefix";
const HEADS: [&str; 3] = ["head_1_fc", "head_2_fc", "head_3_fc"];

/// A part as it was measured.
struct MeasuredPart {
    weights_bytes: f64,
    /// The times of batches of 1, 2, 3 … rows, in milliseconds.
    ms: Vec<f64>,
}

impl MeasuredPart {
    fn read(part: &str) -> MeasuredPart {
        let rows = PARTS.lines().skip(1).filter_map(|line| line.strip_prefix(part)?.strip_prefix(','));
        let numbers = rows.map(|row| row.split(',').map(|cell| cell.parse().expect("a number")));
        let rows: Vec<Vec<f64>> = numbers.map(Iterator::collect).collect();
        MeasuredPart { weights_bytes: rows[0][0], ms: rows.iter().map(|row| row[2]).collect() }
    }

    /// Returns the time of a batch of `rows`; of more than were measured, by the line through the
    /// first and the last.
    fn of(&self, rows: usize) -> f64 {
        match rows.checked_sub(1) {
            None => 0.0,
            Some(at) => self.ms.get(at).copied().unwrap_or_else(|| {
                let (first, last, count) = (self.ms[0], self.ms[self.ms.len() - 1], self.ms.len());
                last + (rows - count) as f64 * (last - first) / (count - 1) as f64
            }),
        }
    }
}

/// Returns the profile of batches that take so many milliseconds, up to the SLO; none less than a
/// smaller one.
fn profile(ms: impl Fn(usize) -> f64, slo_ms: f64) -> Profile {
    let mut longest = 0.0f64;
    let rising = (1..).map(|rows| {
        longest = longest.max(ms(rows));
        longest
    });
    let within: Vec<Nanos> = rising.take_while(|ms| *ms <= slo_ms).map(Nanos::from_millis_f64).collect();
    Profile::measured(&within).expect("times that rise")
}

/// Returns the workload of so many variants on a device.
fn variants_on(device: &str, way: &str, variants: usize, effort: Effort) -> Setting {
    let grouped = way == WAYS[0];
    let models = if grouped { 1 } else { variants };
    let on_gpu = on_1080ti("ResNet50").with_slo(SLO_MS);
    let setting = Setting::copies(1, on_gpu, models, effort).arriving(&Arrival::Uniform);
    if device == DEVICES[0] {
        return setting.lasting(2.0, effort.choose(20.0, 60.0));
    }
    let [whole, prefix, head] = [WHOLE, PREFIX, HEADS[0]].map(MeasuredPart::read);
    let slo_ms = whole.of(1) * SLO_MS / on_gpu.latency_ms(1.0);
    let measured = if grouped {
        let others = |rows: usize| variants.min(rows) - 1;
        let ms = |rows| prefix.of(rows) + others(rows) as f64 * head.of(1) + head.of(rows - others(rows));
        profile(ms, slo_ms)
    } else {
        profile(|rows| whole.of(rows), slo_ms)
    };
    let setting = setting.each_model(|_, model| {
        model.profile = measured.clone();
        model.slo = Nanos::from_millis_f64(slo_ms);
    });
    // As many requests as on the GPU.
    let longer = slo_ms / SLO_MS;
    setting.lasting(2.0 * longer, effort.choose(20.0, 60.0) * longer)
}

/// Figure 15.
pub(super) struct Variants;

impl Experiment for Variants {
    fn name(&self) -> &'static str {
        "nexus-figure15"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 15: goodput and memory of variants of ResNet-50 on one device"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["panel", "variants", "way", "goodput_rps", "memory_mb"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let devices = DEVICES.into_iter().flat_map(|device| WAYS.map(|way| (device, way)));
        let points = devices.flat_map(|pair| VARIANTS.map(|variants| (pair, variants)));
        let job = |((device, way), variants): ((&'static str, &'static str), usize)| {
            let setting = variants_on(device, way, variants, effort);
            Job::new(setting.search_weight(), move || {
                let goodput = cell(NEXUS.goodput_rps(setting.workload())?, 2);
                let texts = [device, &variants.to_string(), way].map(str::to_owned);
                Ok(vec![texts.into_iter().chain([goodput, String::new()]).collect()])
            })
        };
        let memory = || {
            let row = |way: &str, variants: usize, bytes: f64| {
                let texts = [MEMORY, &variants.to_string(), way, ""].map(str::to_owned);
                texts.into_iter().chain([cell(bytes / 1e6, 1)]).collect()
            };
            let [whole, prefix] = [WHOLE, PREFIX].map(|part| MeasuredPart::read(part).weights_bytes);
            let shared = HEADS.iter().flat_map(|head| {
                let own = MeasuredPart::read(head).weights_bytes;
                VARIANTS.map(|variants| row(head, variants, prefix + variants as f64 * own))
            });
            let apart = VARIANTS.map(|variants| row(WAYS[1], variants, variants as f64 * whole));
            Ok(shared.chain(apart).collect())
        };
        points.map(job).chain([Job::new(1.0, memory)]).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |panel: &str, (ways, column, title, y): (&[&str], &str, &str, &str)| {
            let points = |way: &str| table.points(&[("panel", panel), ("way", way)], "variants", column);
            let highest =
                ways.iter().flat_map(|way| points(way)).fold(0.0, |most: f64, point| most.max(point.1));
            let line = |(at, way): (usize, &&str)| Series {
                label: way.replace("head_", "prefix batching, ").replace("_fc", " layers each"),
                colour: COLOURS[at + if panel == MEMORY && *way != WAYS[1] { 2 } else { 0 }],
                shape: Shape::Marked,
                points: points(way),
            };
            Panel {
                title: title.to_owned(),
                x: Axis::up_to("variants", 10.0),
                y: Axis::up_to(y, highest),
                series: ways.iter().enumerate().map(line).collect(),
            }
        };
        let goodput = "goodput (requests/s)";
        let panels = vec![
            panel(DEVICES[0], (&WAYS, "goodput_rps", "(a) a GTX 1080 Ti, SLO 100 ms", goodput)),
            panel(DEVICES[1], (&WAYS, "goodput_rps", "(a) a CPU core, SLO as many batches of one", goodput)),
            panel(MEMORY, (&[HEADS[0], WAYS[1]], "memory_mb", "(b) memory of the weights", "MB")),
            panel(MEMORY, (&HEADS, "memory_mb", "(b) by the layers that are not shared", "MB")),
        ];
        Figure { title: self.about().to_owned(), columns: 2, panels }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let of = |panel: &str, variants: usize, way: &str, column: &str| {
            table.number(&[("panel", panel), ("variants", &variants.to_string()), ("way", way)], column)
        };
        let mut claims = Vec::new();
        for device in DEVICES {
            let gain = |variants| {
                let [grouped, apart] = WAYS.map(|way| of(device, variants, way, "goodput_rps"));
                grouped / apart
            };
            let most = VARIANTS.map(gain).into_iter().fold(0.0, f64::max);
            let what = format!("{device}: prefix batching over each by itself, largest gain");
            claims.push(Claim::new(what, Paper::Is(2.1), most, Unit::Times));
        }
        let most = VARIANTS[VARIANTS.len() - 1];
        for (layers, head) in (1..).zip(HEADS) {
            let part = of(MEMORY, most, head, "memory_mb") / of(MEMORY, most, WAYS[1], "memory_mb");
            let what = format!("memory of {most} variants over that without prefix batching, {layers} FC");
            claims.push(Claim::new(what, Paper::Silent, part, Unit::Times));
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_takes_its_prefix_and_the_last_layers_of_each_variant() {
        let effort = Effort { full: false, seed: 1 };
        let [prefix, head] = [PREFIX, HEADS[0]].map(MeasuredPart::read);
        let setting = variants_on(DEVICES[1], WAYS[0], 4, effort);
        let latency = setting.workload().models[0].profile.latency(6).as_millis_f64();
        assert!((latency - prefix.of(6) - 3.0 * head.of(1) - head.of(3)).abs() < 1e-3);
        let apart = variants_on(DEVICES[1], WAYS[1], 4, effort);
        assert_eq!(apart.workload().models.len(), 4);
        let whole = MeasuredPart::read(WHOLE);
        assert!(whole.of(20) > whole.of(16) && whole.weights_bytes > prefix.weights_bytes);
    }
}
