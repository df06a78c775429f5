//! A run as one HTML file that fetches nothing: charts, then tables.

use super::chart::{Chart, STYLE, Scale, escaped, number, standalone};
use super::{Figures, ModelFigures, Report};
use crate::loadgen::measure::{End, Second};
use hdrhistogram::{Counter, Histogram};
use std::fmt::Write;

/// Models in the table.
const MODELS_SHOWN: usize = 200;
/// Bars or points along a chart of the run's time; longer runs have several seconds in each.
const MOST_INTERVALS: usize = 240;

/// A page's own style, after that of the charts.
const PAGE_STYLE: &str = "
body { margin: 0 auto; max-width: 1560px; padding: 16px; background: var(--page); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 8px 0 2px; } h2 { font-size: 17px; margin: 24px 0 8px; } p { margin: 2px 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 8px; margin: 16px 0; }
.tile, .chart { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 8px 12px; }
.tile b { display: block; font-size: 20px; font-weight: 600; } .tile span { color: var(--soft); font-size: 13px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 560px), 1fr)); gap: 12px; }
.chart svg { display: block; width: 100%; height: auto; } .scroll { overflow-x: auto; }
.verdict { border-left: 4px solid var(--limit); padding: 6px 12px; margin: 12px 0; background: var(--card); color: var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } td, th { padding: 3px 12px 3px 0; text-align: right; border-bottom: 1px solid var(--grid); }
td:first-child, th:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
td.better { color: var(--better); } td.worse { color: var(--worse); font-weight: 600; }
";

/// A page of this title and this body.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{STYLE}{PAGE_STYLE}</style></head>\
         <body>{body}</body></html>\n",
        escaped(title)
    )
}

/// A number with its name under it.
pub(super) fn tile(value: &str, name: &str) -> String {
    format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escaped(value), escaped(name))
}

impl Report {
    /// The report as a page.
    pub fn html(&self) -> String {
        let figures = &self.figures;
        let run = &figures.run;
        let mut body = format!("<h1>Load on {}</h1>", escaped(&run.target));
        let load = match (run.rate_rps, run.concurrency) {
            (_, Some(clients)) => format!("{clients} clients, closed loop"),
            (Some(rate), None) => format!("{}/s asked for, open loop", number(rate)),
            (None, None) => "open loop".into(),
        };
        let _ = write!(
            body,
            "<p>{}, tensors: {}. {load}. {} row{} a request, {} thread{}, seed {}. {:.1} s counted.</p>",
            escaped(&run.protocol),
            escaped(&run.tensors),
            run.rows,
            if run.rows == 1 { "" } else { "s" },
            run.threads,
            if run.threads == 1 { "" } else { "s" },
            run.seed,
            figures.window_s
        );
        for note in self.notes() {
            let _ = write!(body, "<div class=\"verdict\">{}</div>", escaped(&note));
        }
        body += &tiles(figures);
        body += "<div class=\"charts\">";
        for (_, svg) in self.charts() {
            let _ = write!(body, "<div class=\"chart\">{svg}</div>");
        }
        body += "</div>";
        body += &model_table(&figures.models);
        page(&format!("Load on {}", run.target), &body)
    }

    /// The charts as files of their own: names without an ending, and contents.
    pub fn svgs(&self) -> Vec<(&'static str, String)> {
        self.charts().into_iter().map(|(name, svg)| (name, standalone(&svg))).collect()
    }

    fn charts(&self) -> Vec<(&'static str, String)> {
        let mut charts = Vec::new();
        if !self.figures.steps.is_empty() {
            charts.push(("goodput", self.goodput_chart()));
        }
        let intervals = self.intervals();
        charts.push(("requests", requests_chart(&intervals)));
        if !self.tally.latency.is_empty() {
            charts.push(("latency", self.latency_chart(&intervals)));
            charts.push((
                "percentiles",
                percentile_chart(&[("two", "this run", &self.tally.latency)], self.slo_ms()),
            ));
        }
        if self.figures.stages_ms.is_some() {
            charts.push(("stages", self.stage_chart()));
        }
        if !self.figures.batch_sizes.is_empty() {
            charts.push(("batches", self.batch_chart()));
        }
        charts
    }

    /// The SLO, if all models have the same.
    fn slo_ms(&self) -> Option<f64> {
        let mut slos = self.figures.models.iter().map(|model| model.slo_ms);
        let first = slos.next()??;
        slos.all(|slo| slo == Some(first)).then_some(first)
    }

    /// The seconds of the run, several together where there are many.
    fn intervals(&self) -> Vec<Interval> {
        let seconds: Vec<&Second> = self.tally.seconds.iter().collect();
        let each = seconds.len().div_ceil(MOST_INTERVALS).max(1);
        let end = self.figures.window_s;
        let interval = |(at, seconds): (usize, &[&Second])| {
            let from = (at * each) as f64;
            let to = (from + seconds.len() as f64).min(end).max(from + 1e-3);
            let mut latency = crate::loadgen::measure::Seconds::histogram();
            let mut interval = Interval { from, to, ends: [0.0; End::COUNT], quantiles_ms: None };
            let (mut ends, mut offered) = ([0; End::COUNT], 0);
            for second in seconds {
                ends.iter_mut().zip(second.ends).for_each(|(sum, n)| *sum += n);
                offered += second.offered;
                latency.add(&second.latency).expect("a histogram that grows takes what another has");
            }
            ends[End::Failed as usize] += offered - ends.iter().sum::<u64>().min(offered);
            interval.ends = ends.map(|n| n as f64 / (to - from));
            let quantile = |q| latency.value_at_quantile(q) as f64 / 1e6;
            interval.quantiles_ms = (!latency.is_empty()).then(|| [0.5, 0.9, 0.99].map(quantile));
            interval
        };
        seconds.chunks(each).enumerate().map(interval).collect()
    }

    fn latency_chart(&self, intervals: &[Interval]) -> String {
        let end = intervals.last().map_or(1.0, |last| last.to);
        let quantiles = intervals.iter().filter_map(|i| Some(((i.from + i.to) / 2.0, i.quantiles_ms?)));
        let quantiles: Vec<(f64, [f64; 3])> = quantiles.collect();
        let slo = self.slo_ms();
        let most = quantiles.iter().map(|(_, [_, _, p99])| *p99).fold(0.0, f64::max);
        // An SLO far above the latencies would press them to the ground.
        let slo = slo.filter(|slo| *slo < 4.0 * most);
        let y = Scale::up_to(most.max(slo.unwrap_or(0.0)).max(1e-3));
        let mut chart =
            Chart::new("Latency over time", Scale::Even { from: 0.0, to: end }, y, "seconds", "ms");
        if let Some(slo) = slo {
            chart.limit(slo, &format!("SLO {} ms", number(slo)));
        }
        for (at, name, text) in [(2, "three", "p99"), (1, "two", "p90"), (0, "one", "p50")] {
            let points: Vec<(f64, f64)> = quantiles.iter().map(|(x, all)| (*x, all[at])).collect();
            chart.line(name, &points, |x, y| format!("{text} at {x:.1} s: {} ms", number(y)));
            chart.legend(name, text);
        }
        chart.finish()
    }

    fn stage_chart(&self) -> String {
        let stages = self.figures.stages_ms.unwrap_or_default().named();
        let most = stages.iter().map(|(_, stage)| stage.p99).fold(0.0, f64::max);
        let y = Scale::up_to(most.max(1e-3));
        let mut chart = Chart::bands("Where the time goes", y, "ms", &stages.map(|(name, _)| name));
        for (at, (name, stage)) in stages.iter().enumerate() {
            let bars = [("one", "p50", stage.p50), ("two", "p90", stage.p90), ("three", "p99", stage.p99)];
            for (bar, (class, quantile, ms)) in bars.into_iter().enumerate() {
                let from = at as f64 + 0.14 + 0.24 * bar as f64;
                chart.bar(
                    class,
                    (from, from + 0.24),
                    (0.0, ms),
                    &format!("{name}, {quantile}: {} ms", number(ms)),
                );
            }
        }
        for (class, text) in [("three", "p99"), ("two", "p90"), ("one", "p50")] {
            chart.legend(class, text);
        }
        chart.finish()
    }

    fn batch_chart(&self) -> String {
        let sizes = &self.figures.batch_sizes;
        let total: u64 = sizes.iter().map(|(_, requests)| requests).sum();
        let share = |requests: u64| 100.0 * requests as f64 / total.max(1) as f64;
        let most = sizes.iter().map(|&(_, requests)| share(requests)).fold(0.0, f64::max);
        let largest = sizes.last().map_or(1, |&(size, _)| size);
        let x = Scale::Even { from: 0.5, to: f64::from(largest) + 0.5 };
        let mut chart = Chart::new(
            "Requests by the size of their batch",
            x,
            Scale::up_to(most),
            "requests in the batch",
            "% of requests",
        );
        for &(size, requests) in sizes {
            let at = f64::from(size);
            let title = format!("batches of {size}: {requests} requests, {:.1} %", share(requests));
            chart.bar("two", (at - 0.5, at + 0.5), (0.0, share(requests)), &title);
        }
        chart.finish()
    }

    fn goodput_chart(&self) -> String {
        let steps = &self.figures.steps;
        let rates = || steps.iter().map(|step| step.rate_rps);
        let (from, to) = (rates().fold(f64::MAX, f64::min) * 0.95, rates().fold(0.0, f64::max) * 1.05);
        let x = Scale::Even { from, to };
        let y = Scale::Powers { from: 1e-2, to: 100.0 };
        let mut chart = Chart::new(
            "The search for the goodput",
            x,
            y,
            "requests/s",
            "bad requests of the worst model, %",
        );
        chart.limit(1.0, "1 %");
        for step in steps {
            let percent = 100.0 * step.worst_bad_rate;
            let class = if step.passed { "better" } else { "worse" };
            let title =
                format!("{}/s: {percent:.2} % bad, p99 {} ms", number(step.rate_rps), number(step.p99_ms));
            chart.dot(class, step.rate_rps, percent, &title);
        }
        chart.legend("worse", "too many bad");
        chart.legend("better", "good");
        chart.finish()
    }
}

/// A part of a run's time.
struct Interval {
    from: f64,
    to: f64,
    /// Requests per second, by how they ended.
    ends: [f64; End::COUNT],
    /// p50, p90 and p99.
    quantiles_ms: Option<[f64; 3]>,
}

fn requests_chart(intervals: &[Interval]) -> String {
    let end = intervals.last().map_or(1.0, |last| last.to);
    let most = intervals.iter().map(|interval| interval.ends.iter().sum()).fold(1.0, f64::max);
    let (x, y) = (Scale::Even { from: 0.0, to: end }, Scale::up_to(most));
    let mut chart = Chart::new("Requests by how they ended", x, y, "seconds", "requests/s");
    for interval in intervals {
        let mut below = 0.0;
        for end in End::ALL {
            let rate = interval.ends[end as usize];
            let title = format!("{:.0} s: {} {}/s", interval.from, end.name(), number(rate));
            chart.bar(end.name(), (interval.from, interval.to), (below, below + rate), &title);
            below += rate;
        }
    }
    let seen = |end: &End| *end == End::Good || intervals.iter().any(|i| i.ends[*end as usize] > 0.0);
    End::ALL.into_iter().rev().filter(seen).for_each(|end| chart.legend(end.name(), end.name()));
    chart.finish()
}

/// Latency by percentile of some runs: each with its colour, its name and its histogram of
/// nanoseconds.
pub(super) fn percentile_chart<C: Counter>(
    runs: &[(&str, &str, &Histogram<C>)],
    slo_ms: Option<f64>,
) -> String {
    let count = runs.iter().map(|(_, _, histogram)| histogram.len()).max().unwrap_or(1).max(10);
    let nines = (count as f64).log10().floor().clamp(1.0, 6.0);
    let quantiles: Vec<f64> = (0..=60).map(|k| 1.0 - 10f64.powf(-nines * f64::from(k) / 60.0)).collect();
    let most = runs.iter().map(|(_, _, h)| h.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64 / 1e6);
    let most = most.fold(0.0, f64::max);
    let slo_ms = slo_ms.filter(|slo| *slo < 4.0 * most);
    let y = Scale::up_to(most.max(slo_ms.unwrap_or(0.0)).max(1e-3));
    let mut chart =
        Chart::new("Latency by percentile", Scale::Nines { nines }, y, "of requests are faster", "ms");
    if let Some(slo) = slo_ms {
        chart.limit(slo, &format!("SLO {} ms", number(slo)));
    }
    for (class, name, histogram) in runs {
        let ms = |&quantile: &f64| (quantile, histogram.value_at_quantile(quantile) as f64 / 1e6);
        let points: Vec<(f64, f64)> = quantiles.iter().map(ms).collect();
        chart.line(class, &points, |q, ms| {
            format!("{name}: {} % within {} ms", trimmed_percent(q), number(ms))
        });
        if runs.len() > 1 {
            chart.legend(class, name);
        }
    }
    chart.finish()
}

fn trimmed_percent(quantile: f64) -> String {
    let text = format!("{:.4}", 100.0 * quantile);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

fn tiles(figures: &Figures) -> String {
    let ms = |value: f64| format!("{} ms", number(value));
    let mut tiles = String::from("<div class=\"tiles\">");
    if let Some(goodput) = figures.goodput_rps {
        tiles += &tile(&format!("{}/s", number(goodput)), "goodput");
    }
    tiles += &tile(&format!("{}/s", number(figures.offered_rps)), "offered");
    tiles += &tile(&format!("{}/s", number(figures.good_rps)), "good");
    tiles += &tile(&format!("{:.2} %", 100.0 * figures.bad_rate), "bad");
    let Figures { late, dropped, rejected, failed, .. } = figures;
    tiles +=
        &tile(&format!("{late} · {dropped} · {rejected} · {failed}"), "late · dropped · rejected · failed");
    let latency = &figures.latency_ms;
    tiles += &tile(&ms(latency.p50), "latency p50");
    tiles += &tile(&ms(latency.p99), "latency p99");
    tiles += &tile(&ms(latency.p999), "latency p99.9");
    if figures.mean_batch > 0.0 {
        tiles += &tile(&number(figures.mean_batch), "requests a batch");
    }
    let limit = figures.lateness_limit_ms.map_or(String::new(), |limit| format!(" (may be {})", ms(limit)));
    tiles += &tile(&ms(figures.lateness_ms.p99), &format!("generator's own lateness, p99{limit}"));
    tiles + "</div>"
}

fn model_table(models: &[ModelFigures]) -> String {
    let mut worst: Vec<&ModelFigures> = models.iter().collect();
    worst.sort_by(|a, b| b.bad_rate.total_cmp(&a.bad_rate));
    let mut table = String::from(
        "<h2>Models, the worst first</h2><div class=\"scroll\"><table><tr><th>model</th><th>offered</th><th>good</th>\
         <th>bad %</th><th>late</th><th>dropped</th><th>rejected</th><th>failed</th><th>p50 ms</th><th>p99 ms</th>\
         <th>SLO ms</th></tr>",
    );
    for model in worst.iter().take(MODELS_SHOWN) {
        let ModelFigures { name, offered, good, late, dropped, rejected, failed, .. } = model;
        let slo = model.slo_ms.map_or("–".into(), number);
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{offered}</td><td>{good}</td><td>{:.2}</td><td>{late}</td><td>{dropped}</td>\
             <td>{rejected}</td><td>{failed}</td><td>{}</td><td>{}</td><td>{slo}</td></tr>",
            escaped(name),
            100.0 * model.bad_rate,
            number(model.latency_ms.p50),
            number(model.latency_ms.p99)
        );
    }
    table += "</table></div>";
    if models.len() > MODELS_SHOWN {
        let _ = write!(table, "<p>and {} more</p>", models.len() - MODELS_SHOWN);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};

    #[test]
    fn a_page_has_every_chart_and_fetches_nothing() {
        let (plan, tally) = recorded();
        let mut report = report(&plan, tally);
        report.figures.run.target = "<server>".into();
        report.figures.models[0].name = "a<b".into();
        let page = report.html();
        for part in ["Requests by how they ended", "Latency over time", "Latency by percentile"] {
            assert!(page.contains(part), "{part}");
        }
        for part in ["Where the time goes", "by the size of their batch", "Load on &lt;server&gt;", "a&lt;b"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
        let names: Vec<&str> = report.svgs().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["requests", "latency", "percentiles", "stages", "batches"]);
    }

    #[test]
    fn an_empty_run_has_a_page_too() {
        let (plan, mut tally) = recorded();
        tally.stopped(symphony_transport::Nanos::ZERO);
        let empty = crate::loadgen::measure::Tally::new(&plan, Default::default(), false);
        assert!(report(&plan, empty).html().contains("Requests by how they ended"));
    }
}
