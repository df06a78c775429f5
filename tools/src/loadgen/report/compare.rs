//! Two runs beside each other: what changed, by how much, and how sure that is. The confidence
//! comes from the runs' seconds: both are drawn again and again, with replacement, and the changes
//! seen are sorted (a bootstrap).

use super::chart::{escaped, number};
use super::html::{page, percentile_chart, tile};
use super::{Saved, SavedSecond};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::fmt::{self, Write};

/// Times that the seconds are drawn.
const DRAWS: usize = 1_000;
/// Parts of a run that are drawn whole: seconds, or several neighbours together in a longer run.
const MOST_PARTS: usize = 120;
/// The fewest seconds from which the confidence of a change can be estimated.
const FEWEST_PARTS: usize = 5;
/// The part of the draws that lies in the interval reported.
const CONFIDENCE: f64 = 0.95;

/// The judgement of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// An improvement, with confidence.
    Better,
    /// A regression, with confidence.
    Worse,
    /// A change that may be chance.
    Same,
    /// Not judged: the files do not have the seconds.
    Unknown,
}

impl Verdict {
    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Same => "same",
            Verdict::Unknown => "",
        }
    }
}

/// One figure of both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The figure's name.
    pub name: String,
    /// The first run's value.
    pub a: f64,
    /// The second run's value.
    pub b: f64,
    /// b / a, or, for a rate of bad requests, b - a.
    pub change: f64,
    /// The ends between which the change lies, 19 times of 20.
    pub between: Option<[f64; 2]>,
    /// The judgement of the change.
    pub verdict: Verdict,
    #[serde(skip)]
    kind: ChangeKind,
}

/// The way in which a figure is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeKind {
    /// The ratio; more is better.
    More,
    /// The ratio; less is better.
    Less,
    /// A part of a whole, by its difference; less is better.
    Part,
}

impl ChangeKind {
    /// The change that is none.
    fn none(self) -> f64 {
        if self == ChangeKind::Part { 0.0 } else { 1.0 }
    }

    fn change(self, a: f64, b: f64) -> f64 {
        match self {
            ChangeKind::Part => b - a,
            // Two equal figures, 0 and 0 among them, are no change.
            _ if a == b => 1.0,
            _ => b / a,
        }
    }

    fn worse_by(self, change: f64) -> f64 {
        match self {
            ChangeKind::More => 1.0 - change,
            ChangeKind::Less => change - 1.0,
            ChangeKind::Part => change,
        }
    }
}

/// Two runs compared. Displayed, it is a table.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Every figure.
    pub changes: Vec<Change>,
    /// Differences of the runs in what should be equal.
    pub unlike: Vec<String>,
}

/// A part of a run: what `n` of its seconds came to.
struct Part {
    offered: u64,
    good: u64,
    seconds: f64,
    /// ModelSlots in the list of all latencies, and requests.
    latencies: Vec<(usize, u64)>,
}

/// The figures that are compared by the seconds of the runs.
const FIGURES: [(&str, ChangeKind, ComparedFigure); 6] = [
    ("good requests/s", ChangeKind::More, ComparedFigure::GoodRate),
    ("bad requests, part", ChangeKind::Part, ComparedFigure::BadRate),
    ("latency p50, ms", ChangeKind::Less, ComparedFigure::Quantile(0.5)),
    ("latency p90, ms", ChangeKind::Less, ComparedFigure::Quantile(0.9)),
    ("latency p99, ms", ChangeKind::Less, ComparedFigure::Quantile(0.99)),
    ("latency p99.9, ms", ChangeKind::Less, ComparedFigure::Quantile(0.999)),
];

#[derive(Clone, Copy)]
enum ComparedFigure {
    GoodRate,
    BadRate,
    Quantile(f64),
}

/// Sums over parts that were drawn.
struct Sums {
    offered: u64,
    good: u64,
    seconds: f64,
    counts: Vec<u64>,
}

impl Sums {
    fn of<'a>(parts: impl Iterator<Item = &'a Part>, latencies: usize) -> Sums {
        let mut sums = Sums { offered: 0, good: 0, seconds: 0.0, counts: vec![0; latencies] };
        for part in parts {
            sums.offered += part.offered;
            sums.good += part.good;
            sums.seconds += part.seconds;
            part.latencies.iter().for_each(|&(place, count)| sums.counts[place] += count);
        }
        sums
    }

    fn figure(&self, figure: ComparedFigure, latencies_us: &[u64]) -> f64 {
        match figure {
            ComparedFigure::GoodRate => self.good as f64 / self.seconds.max(1e-9),
            ComparedFigure::BadRate => {
                self.offered.saturating_sub(self.good) as f64 / (self.offered as f64).max(1.0)
            }
            ComparedFigure::Quantile(quantile) => {
                let total: u64 = self.counts.iter().sum();
                let rank = (quantile * total as f64).ceil().max(1.0) as u64;
                let mut seen = 0;
                let reached = self.counts.iter().position(|count| {
                    seen += count;
                    seen >= rank
                });
                reached.map_or(0.0, |place| latencies_us[place] as f64 / 1e3)
            }
        }
    }
}

fn parts(seconds: &[SavedSecond], latencies_us: &[u64]) -> Vec<Part> {
    let each = seconds.len().div_ceil(MOST_PARTS).max(1);
    let part = |seconds: &[SavedSecond]| {
        let latencies = seconds.iter().flat_map(|second| &second.latency_us);
        let place = |(us, count): &(u64, u64)| Some((latencies_us.binary_search(us).ok()?, *count));
        Part {
            offered: seconds.iter().map(|second| second.offered).sum(),
            good: seconds.iter().map(|second| second.good).sum(),
            seconds: seconds.len() as f64,
            latencies: latencies.filter_map(place).collect(),
        }
    };
    seconds.chunks(each).map(part).collect()
}

impl Comparison {
    /// Compares `b` with `a`. The same runs give the same comparison.
    pub fn new(a: &Saved, b: &Saved) -> Comparison {
        let mut changes = if a.seconds.is_empty() || b.seconds.is_empty() {
            by_figures(a, b)
        } else {
            by_seconds(&a.seconds, &b.seconds)
        };
        let plain = |name: String, kind, a, b| {
            let change = ChangeKind::change(kind, a, b);
            Change { name, a, b, change, between: None, verdict: Verdict::Unknown, kind }
        };
        let (fa, fb) = (&a.figures, &b.figures);
        if let (Some(a), Some(b)) = (&fa.stages_ms, &fb.stages_ms) {
            for ((name, a), (_, b)) in a.named().into_iter().zip(b.named()) {
                changes.push(plain(format!("{name} p50, ms"), ChangeKind::Less, a.p50, b.p50));
            }
        }
        changes.push(plain("requests a batch".into(), ChangeKind::More, fa.mean_batch, fb.mean_batch));
        Comparison { changes, unlike: unlike(a, b) }
    }

    /// The figures that are worse by more than this part (0.05 is 5 %), surely so where the files
    /// can tell.
    pub fn worse_by_more_than(&self, part: f64) -> Vec<&Change> {
        // Stages and batches explain a change; they are not a promise to anybody.
        let judged =
            self.changes.iter().filter(|change| FIGURES.iter().any(|(name, ..)| change.name == *name));
        let worse = |change: &&Change| {
            let sure = matches!(change.verdict, Verdict::Worse | Verdict::Unknown);
            sure && change.kind.worse_by(change.change) > part
        };
        judged.filter(worse).collect()
    }

    /// The comparison as a page.
    pub fn html(&self, a: &Saved, b: &Saved) -> String {
        let mut body = String::from("<h1>Two runs compared</h1>");
        for (name, run) in [("A", a), ("B", b)] {
            let info = &run.figures.run;
            let _ = write!(
                body,
                "<p>{name}: {} by {}, {}</p>",
                escaped(&info.target),
                escaped(&info.protocol),
                escaped(&info.tensors)
            );
        }
        for unlike in &self.unlike {
            let _ = write!(body, "<div class=\"verdict\">{}</div>", escaped(unlike));
        }
        body += "<div class=\"tiles\">";
        for verdict in [Verdict::Better, Verdict::Worse, Verdict::Same] {
            let count = self.changes.iter().filter(|change| change.verdict == verdict).count();
            body += &tile(&count.to_string(), verdict.name());
        }
        body += "</div>";
        let (la, lb) = (a.latency(), b.latency());
        if !la.is_empty() && !lb.is_empty() {
            let chart = percentile_chart(&[("one", "A", &la), ("three", "B", &lb)], None);
            let _ = write!(body, "<div class=\"charts\"><div class=\"chart\">{chart}</div></div>");
        }
        body += "<h2>Every figure</h2><div class=\"scroll\"><table><tr><th>figure</th><th>A</th><th>B</th><th>change</th>\
                 <th>95 % between</th><th></th></tr>";
        for change in &self.changes {
            let verdict = change.verdict.name();
            let _ = write!(
                body,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{verdict}\">{verdict}</td></tr>",
                escaped(&change.name),
                number(change.a),
                number(change.b),
                change.text(change.change),
                change.between_text()
            );
        }
        body += "</table></div><p>A change is the ratio B / A, for bad requests the difference in percentage points.</p>";
        page("Two runs compared", &body)
    }
}

fn by_figures(a: &Saved, b: &Saved) -> Vec<Change> {
    let of = |figure: ComparedFigure, saved: &Saved| {
        let figures = &saved.figures;
        let latency = figures.latency_ms;
        match figure {
            ComparedFigure::GoodRate => figures.good_rps,
            ComparedFigure::BadRate => figures.bad_rate,
            ComparedFigure::Quantile(0.5) => latency.p50,
            ComparedFigure::Quantile(0.9) => latency.p90,
            ComparedFigure::Quantile(0.99) => latency.p99,
            ComparedFigure::Quantile(_) => latency.p999,
        }
    };
    let change = |(name, kind, figure): (&str, ChangeKind, ComparedFigure)| {
        let (a, b) = (of(figure, a), of(figure, b));
        let change = kind.change(a, b);
        Change { name: name.into(), a, b, change, between: None, verdict: Verdict::Unknown, kind }
    };
    FIGURES.into_iter().map(change).collect()
}

fn by_seconds(a: &[SavedSecond], b: &[SavedSecond]) -> Vec<Change> {
    let all = a.iter().chain(b).flat_map(|second| &second.latency_us).map(|(us, _)| *us);
    let mut latencies_us: Vec<u64> = all.collect();
    latencies_us.sort_unstable();
    latencies_us.dedup();
    let (a, b) = (parts(a, &latencies_us), parts(b, &latencies_us));
    let count = latencies_us.len();
    let (whole_a, whole_b) = (Sums::of(a.iter(), count), Sums::of(b.iter(), count));
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut draw = |parts: &[Part]| {
        let drawn: Vec<usize> = (0..parts.len()).map(|_| rng.random_range(0..parts.len())).collect();
        Sums::of(drawn.iter().map(|&at| &parts[at]), count)
    };
    let enough = a.len().min(b.len()) >= FEWEST_PARTS;
    let draws: Vec<(Sums, Sums)> =
        (0..if enough { DRAWS } else { 0 }).map(|_| (draw(&a), draw(&b))).collect();
    let change = |(name, kind, figure): (&str, ChangeKind, ComparedFigure)| {
        let of = |sums: &Sums| sums.figure(figure, &latencies_us);
        let (a, b) = (of(&whole_a), of(&whole_b));
        let mut seen: Vec<f64> = draws.iter().map(|(a, b)| kind.change(of(a), of(b))).collect();
        seen.sort_by(f64::total_cmp);
        let end = |part: f64| seen[((seen.len() - 1) as f64 * part).round() as usize];
        let between = enough.then(|| [end((1.0 - CONFIDENCE) / 2.0), end((1.0 + CONFIDENCE) / 2.0)]);
        let verdict = between.map_or(Verdict::Unknown, |ends| verdict(kind, ends));
        Change { name: name.into(), a, b, change: kind.change(a, b), between, verdict, kind }
    };
    FIGURES.into_iter().map(change).collect()
}

fn verdict(kind: ChangeKind, [low, high]: [f64; 2]) -> Verdict {
    if low <= kind.none() && kind.none() <= high {
        return Verdict::Same;
    }
    if kind.worse_by(low) > 0.0 { Verdict::Worse } else { Verdict::Better }
}

/// Returns the differences of two runs in what should be equal.
fn unlike(a: &Saved, b: &Saved) -> Vec<String> {
    let (a, b) = (&a.figures.run, &b.figures.run);
    let rate = |rate: Option<f64>| rate.map_or("none".into(), number);
    let clients = |clients: Option<usize>| clients.map_or("none".into(), |n| n.to_string());
    let pairs = [
        ("protocol", a.protocol.clone(), b.protocol.clone()),
        ("tensors", a.tensors.clone(), b.tensors.clone()),
        ("rate", rate(a.rate_rps), rate(b.rate_rps)),
        ("concurrency", clients(a.concurrency), clients(b.concurrency)),
        ("rows a request", a.rows.to_string(), b.rows.to_string()),
    ];
    let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
    differ.map(|(name, a, b)| format!("the runs are not alike: {name} is {a} in A and {b} in B")).collect()
}

impl Change {
    fn text(&self, change: f64) -> String {
        match self.kind {
            ChangeKind::Part => format!("{:+.3} points", 100.0 * change),
            _ => format!("× {change:.3}"),
        }
    }

    fn between_text(&self) -> String {
        self.between.map_or(String::new(), |[low, high]| format!("{} to {}", self.text(low), self.text(high)))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<26} {:>10} {:>10}   {:<16} 95 % between", "", "A", "B", "change")?;
        for change in &self.changes {
            let Change { name, a, b, verdict, .. } = change;
            let line = format!(
                "{name:<26} {:>10} {:>10}   {:<16} {:<36} {}",
                number(*a),
                number(*b),
                change.text(change.change),
                change.between_text(),
                verdict.name()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};
    use super::*;

    /// A run of 30 s at 100 requests a second whose latencies are these (ms) in turn, of which
    /// every `bad`th is bad.
    fn run(latencies_ms: &[u64], bad: u64) -> Saved {
        let (plan, tally) = recorded();
        let second = |at: u64| {
            let mut counts = std::collections::BTreeMap::<u64, u64>::new();
            for k in 0..100 {
                let ms = latencies_ms[((at * 7 + k) % latencies_ms.len() as u64) as usize];
                *counts.entry(ms * 1_000).or_default() += 1;
            }
            let lost = if at.is_multiple_of(2) { bad } else { 0 };
            SavedSecond { offered: 100, good: 100 - lost, latency_us: counts.into_iter().collect() }
        };
        Saved { figures: report(&plan, tally).figures, seconds: (0..30).map(second).collect() }
    }

    fn named<'a>(comparison: &'a Comparison, name: &str) -> &'a Change {
        comparison.changes.iter().find(|change| change.name == name).unwrap()
    }

    #[test]
    fn a_run_is_the_same_as_itself() {
        let run = run(&[5, 6, 7, 20], 2);
        let comparison = Comparison::new(&run, &run);
        assert!(comparison.changes.iter().all(|c| c.change == c.kind.none()), "{comparison}");
        assert!(comparison.changes[..6].iter().all(|c| c.verdict == Verdict::Same), "{comparison}");
        assert!(comparison.worse_by_more_than(0.0).is_empty() && comparison.unlike.is_empty());
    }

    #[test]
    fn a_regression_is_reported_with_its_confidence() {
        let (a, b) = (run(&[5, 6, 7, 20], 2), run(&[10, 12, 14, 20], 8));
        let comparison = Comparison::new(&a, &b);
        let p50 = named(&comparison, "latency p50, ms");
        assert_eq!((p50.a, p50.b, p50.change, p50.verdict), (6.0, 12.0, 2.0, Verdict::Worse));
        let bad = named(&comparison, "bad requests, part");
        assert_eq!((bad.a, bad.b, bad.verdict), (0.01, 0.04, Verdict::Worse));
        let [low, high] = bad.between.unwrap();
        assert!(low > 0.0 && low < 0.03 && high > 0.03, "{low} {high}");
        assert_eq!(named(&comparison, "latency p99, ms").verdict, Verdict::Same);
        let worse: Vec<&str> = comparison.worse_by_more_than(0.05).iter().map(|c| c.name.as_str()).collect();
        assert_eq!(worse, ["latency p50, ms"], "3 % less good and 3 points more bad are within 5 %");
        assert_eq!(named(&Comparison::new(&b, &a), "latency p50, ms").verdict, Verdict::Better);
        assert!(comparison.html(&a, &b).contains("Latency by percentile"));
    }

    #[test]
    fn without_seconds_a_change_has_no_confidence() {
        let mut a = run(&[5], 0);
        a.seconds.clear();
        let mut b = a.clone();
        b.figures.latency_ms.p99 *= 1.2;
        b.figures.run.rate_rps = Some(9.0);
        let comparison = Comparison::new(&a, &b);
        let p99 = named(&comparison, "latency p99, ms");
        assert_eq!((p99.verdict, p99.between), (Verdict::Unknown, None));
        assert_eq!(comparison.worse_by_more_than(0.1).len(), 1);
        assert_eq!(comparison.unlike, ["the runs are not alike: rate is none in A and 9 in B"]);
    }
}
