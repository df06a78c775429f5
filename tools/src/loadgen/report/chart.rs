//! Charts as SVG, made by hand: their colours are classes of a style sheet with a light and a dark
//! half, so one chart serves a page in either, and every mark has a title that a browser shows
//! under the mouse.

use std::fmt::Write;

/// The whole picture.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 280.0;
/// The plot in it.
const LEFT: f64 = 64.0;
const RIGHT: f64 = WIDTH - 28.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = HEIGHT - 44.0;

/// Colours and type of all charts: those of a page around them too. Series colours keep apart for
/// readers who do not see red from green, in both halves.
pub(super) const STYLE: &str = "
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1a1a19; --soft: #5f5e5a; --grid: #e4e3de; --card: #ffffff;
  --good: #2a78d6; --late: #eda100; --dropped: #e34948; --rejected: #4a3aa7; --failed: #1a1a19;
  --one: #86b6ef; --two: #2a78d6; --three: #104281; --limit: #e34948; --better: #1baf7a; --worse: #e34948; }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #f1f0ec; --soft: #b0aea6; --grid: #3a3936;
  --card: #232322; --good: #3987e5; --late: #c98500; --dropped: #e66767; --rejected: #9085e9; --failed: #f1f0ec;
  --one: #256abf; --two: #6da7ec; --three: #cde2fb; --limit: #e66767; --better: #199e70; --worse: #e66767; } }
svg { font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg text.head { fill: var(--ink); font-size: 14px; font-weight: 600; }
svg .grid { stroke: var(--grid); } svg .line { fill: none; stroke-width: 2; }
svg .limit { stroke: var(--limit); stroke-dasharray: 5 4; fill: none; } svg text.limit { fill: var(--limit); stroke: none; }
svg .touch { stroke: transparent; stroke-width: 12; fill: none; }
.f-good { fill: var(--good); } .f-late { fill: var(--late); } .f-dropped { fill: var(--dropped); }
.f-rejected { fill: var(--rejected); } .f-failed { fill: var(--failed); }
.f-one { fill: var(--one); } .f-two { fill: var(--two); } .f-three { fill: var(--three); }
.f-better { fill: var(--better); } .f-worse { fill: var(--worse); } .f-same { fill: var(--soft); }
.s-one { stroke: var(--one); } .s-two { stroke: var(--two); } .s-three { stroke: var(--three); }
.s-better { stroke: var(--better); } .s-worse { stroke: var(--worse); } .s-same { stroke: var(--soft); }
";

/// The scale of an axis.
#[derive(Clone, Copy)]
pub(super) enum Scale {
    /// Evenly, from 0 (or another value) up to one that is rounded up to a tick.
    Even { from: f64, to: f64 },
    /// Logarithmic, with a tick at each power of ten.
    Powers { from: f64, to: f64 },
    /// Quantiles, so that each further nine takes the same room: up to 1 - 10^-nines.
    Nines { nines: f64 },
    /// `count` bands of one unit each, without ticks.
    Bands { count: usize },
}

impl Scale {
    /// An even scale from 0 on that holds `most`.
    pub(super) fn up_to(most: f64) -> Scale {
        let step = tick_step(most);
        Scale::Even { from: 0.0, to: (most / step).ceil().max(1.0) * step }
    }

    /// The part of the axis at which a value lies, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let part = match *self {
            Scale::Even { from, to } => (value - from) / (to - from),
            Scale::Powers { from, to } => (value.max(from) / from).ln() / (to / from).ln(),
            Scale::Nines { nines } => -(1.0 - value).max(1e-12).log10() / nines,
            Scale::Bands { count } => value / count as f64,
        };
        part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match *self {
            Scale::Bands { .. } => Vec::new(),
            Scale::Even { from, to } => {
                let step = tick_step(to - from);
                let first = (from / step).ceil() as i64;
                let last = (to / step + 1e-9).floor() as i64;
                (first..=last).map(|n| (n as f64 * step, number(n as f64 * step))).collect()
            }
            Scale::Powers { from, to } => {
                let decades = (from.log10().ceil() as i32)..=(to.log10() + 1e-9).floor() as i32;
                decades.map(|power| (10f64.powi(power), number(10f64.powi(power)))).collect()
            }
            Scale::Nines { nines } => {
                let quantiles = [(0.0, "0"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];
                let more = [(0.9999, "99.99 %"), (0.99999, "99.999 %"), (0.999999, "99.9999 %")];
                let fits = |(quantile, _): &(f64, &str)| -(1.0 - quantile).log10() <= nines + 1e-9;
                quantiles.into_iter().chain(more).filter(fits).map(|(q, text)| (q, text.into())).collect()
            }
        }
    }
}

/// The gap between ticks of an even scale of this length: 1, 2 or 5 times a power of ten, so that
/// there are 3 to 7.
fn tick_step(length: f64) -> f64 {
    let rough = (length / 5.0).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.9);
    factor.unwrap_or(10.0) * power
}

/// A number in few characters.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        1_000_000.0.. => format!("{} M", trimmed(value / 1e6, 2)),
        10_000.0.. => format!("{} k", trimmed(value / 1e3, 1)),
        100.0.. => trimmed(value, 0),
        1.0.. => trimmed(value, 2),
        _ => trimmed(value, 4),
    }
}

fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// Text as a page may hold it.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A chart in the making.
pub(super) struct Chart {
    svg: String,
    x: Scale,
    y: Scale,
    legend_at: f64,
}

impl Chart {
    /// An empty plot: a heading, grid lines across, and both axes' labels.
    pub(super) fn new(head: &str, x: Scale, y: Scale, x_label: &str, y_label: &str) -> Chart {
        let head = escaped(head);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{head}\">\
             <text class=\"head\" x=\"4\" y=\"18\">{head}</text>\
             <text x=\"4\" y=\"{}\">{}</text><text x=\"{RIGHT}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            TOP - 10.0,
            escaped(y_label),
            HEIGHT - 6.0,
            escaped(x_label),
        );
        for (value, text) in y.ticks() {
            let at = BOTTOM - y.part(value) * (BOTTOM - TOP);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        for (value, text) in x.ticks() {
            let at = LEFT + x.part(value) * (RIGHT - LEFT);
            let _ = write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                BOTTOM + 16.0
            );
        }
        Chart { svg, x, y, legend_at: RIGHT }
    }

    /// An empty plot over bands with names; the k-th lies from k to k + 1 along the x axis.
    pub(super) fn bands(head: &str, y: Scale, y_label: &str, names: &[&str]) -> Chart {
        let x = Scale::Bands { count: names.len() };
        let mut chart = Chart::new(head, x, y, "", y_label);
        for (at, name) in names.iter().enumerate() {
            let (x, y, name) = (chart.x(at as f64 + 0.5), BOTTOM + 16.0, escaped(name));
            let _ = write!(chart.svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
        }
        chart
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.part(value) * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - self.y.part(value) * (BOTTOM - TOP)
    }

    /// A line through points, in the colour of class `s-NAME`; each point's title says its value.
    pub(super) fn line(&mut self, name: &str, points: &[(f64, f64)], title: impl Fn(f64, f64) -> String) {
        let place = |&(x, y): &(f64, f64)| format!("{:.1},{:.1}", self.x(x), self.y(y));
        let path: Vec<String> = points.iter().map(place).collect();
        let mut svg = format!("<polyline class=\"line s-{name}\" points=\"{}\"/>", path.join(" "));
        for (at, &(x, y)) in path.iter().zip(points) {
            let (cx, cy) = at.split_once(',').unwrap_or_default();
            let title = escaped(&title(x, y));
            let _ = write!(
                svg,
                "<circle class=\"touch\" cx=\"{cx}\" cy=\"{cy}\" r=\"2\"><title>{title}</title></circle>"
            );
        }
        self.svg += &svg;
    }

    /// A dot that can be seen, in the colour of class `f-NAME`.
    pub(super) fn dot(&mut self, name: &str, x: f64, y: f64, title: &str) {
        let (x, y, title) = (self.x(x), self.y(y), escaped(title));
        let _ = write!(
            self.svg,
            "<circle class=\"f-{name}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{title}</title></circle>"
        );
    }

    /// A box from one value to another on both axes, in the colour of class `f-NAME`. What has no
    /// height is left out.
    pub(super) fn bar(&mut self, name: &str, x: (f64, f64), y: (f64, f64), title: &str) {
        let (left, right, top, bottom) = (self.x(x.0), self.x(x.1), self.y(y.1), self.y(y.0));
        if bottom - top < 0.05 {
            return;
        }
        let (width, height, title) = ((right - left - 1.0).max(0.6), bottom - top, escaped(title));
        let _ = write!(
            self.svg,
            "<rect class=\"f-{name}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{title}</title></rect>"
        );
    }

    /// A line across at a value that must not be passed.
    pub(super) fn limit(&mut self, value: f64, text: &str) {
        let (at, text) = (self.y(value), escaped(text));
        let _ = write!(
            self.svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"limit\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
            LEFT + 4.0,
            at - 4.0
        );
    }

    /// An entry of the legend, above the plot at the right; the last entry comes first.
    pub(super) fn legend(&mut self, name: &str, text: &str) {
        // About the width of the text: no font can be asked.
        self.legend_at -= 7.0 * text.chars().count() as f64;
        let (x, y) = (self.legend_at, TOP - 10.0);
        let _ = write!(
            self.svg,
            "<rect class=\"f-{name}\" x=\"{:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" rx=\"2\"/>\
             <text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            x - 14.0,
            y - 9.0,
            escaped(text)
        );
        self.legend_at -= 28.0;
    }

    /// The SVG, to stand in a page that has [`STYLE`].
    pub(super) fn finish(self) -> String {
        self.svg + "</svg>"
    }
}

/// A chart as a file of its own: with the style in it, and something behind it.
pub(super) fn standalone(svg: &str) -> String {
    let style =
        format!("<style>{STYLE}</style><rect width=\"100%\" height=\"100%\" style=\"fill: var(--page)\"/>");
    match svg.split_once('>') {
        Some((open, rest)) => format!("{open}>{style}{rest}\n"),
        None => svg.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_and_few() {
        for most in [0.0004, 0.7, 1.0, 3.3, 10.0, 47.0, 99.0, 640.0, 12_345.0, 7e6] {
            let scale = Scale::up_to(most);
            let ticks = scale.ticks();
            assert!((3..=8).contains(&ticks.len()), "{most}: {ticks:?}");
            let Scale::Even { to, .. } = scale else { panic!("it is even") };
            assert!(to >= most && to <= 1.5 * most, "{most}: {to}");
            assert!((scale.part(to) - 1.0).abs() < 1e-9 && scale.part(0.0) == 0.0);
        }
        let texts: Vec<String> = Scale::up_to(47.0).ticks().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(number(12_500.0), "12.5 k");
        assert_eq!(number(0.25), "0.25");
    }

    #[test]
    fn each_nine_takes_the_same_room() {
        let scale = Scale::Nines { nines: 3.0 };
        let parts = [0.9, 0.99, 0.999].map(|quantile| (scale.part(quantile) * 300.0).round());
        assert_eq!(parts, [100.0, 200.0, 300.0]);
    }

    #[test]
    fn a_chart_is_well_formed_and_names_are_escaped() {
        let mut chart =
            Chart::new("a < b & c", Scale::up_to(10.0), Scale::Powers { from: 0.1, to: 100.0 }, "s", "ms");
        chart.line("one", &[(1.0, 1.0), (2.0, 50.0)], |x, y| format!("{x} \"s\": {y}"));
        chart.bar("good", (1.0, 2.0), (0.1, 1.0), "<1>");
        chart.bar("good", (2.0, 3.0), (0.1, 0.1), "nothing");
        chart.limit(25.0, "SLO");
        chart.legend("one", "p50");
        let svg = chart.finish();
        assert!(
            svg.contains("a &lt; b &amp; c") && svg.contains("&lt;1&gt;") && !svg.contains("nothing"),
            "{svg}"
        );
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
        let alone = standalone(&svg);
        assert!(alone.starts_with("<svg") && alone.contains("prefers-color-scheme: dark"));
    }
}
