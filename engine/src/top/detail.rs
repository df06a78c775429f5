//! The view of one model: its latencies as a share of the SLO, the sizes of its batches, and its
//! profile l(b) with the present mean batch.

use super::figures::{IN_TIME, Row};
use super::panel::{INK, panel};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Sparkline, SparklineBar};

/// The width of the sizes' part in columns.
const SIZES_WIDTH: u16 = 34;

/// The drift above which it is shown in red: where the server logs it.
const LARGE_DRIFT: f64 = 1.25;

/// The width of the longest bar of a size in columns.
const SIZE_BAR: f64 = 16.0;

/// Draws a model, with its profile in microseconds if it is known.
pub(super) fn draw(screen: &mut ratatui::Frame<'_>, area: Rect, row: &Row, profile: Option<&[u64]>) {
    let [head, latency, below] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(2), Constraint::Fill(3)]).areas(area);
    let what = match row.max_batch {
        // Of a query, which has no batches of its own.
        0 => format!("   {} of several models, SLO {} ms", row.platform, row.slo_ms),
        most => format!("   {}, SLO {} ms, batches up to {most}", row.platform, row.slo_ms),
    };
    let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];
    let quantiles = quantiles.map(|(name, share)| match row.quantile_ms(share) {
        Some(ms) => format!(" {name} {ms:.1} ms  "),
        None => format!(" {name} –  "),
    });
    let pages = if row.pages.is_empty() { String::new() } else { format!(", {}", row.pages) };
    let first = Line::from(vec![" ".into(), row.name.clone().bold(), what.dim(), drift(row), pages.dim()]);
    screen.render_widget(Paragraph::new(vec![first, Line::from(quantiles.concat())]), head);
    latencies(screen, latency, row, "Latencies".into());
    let [sizes, curve] =
        Layout::horizontal([Constraint::Length(SIZES_WIDTH), Constraint::Min(0)]).areas(below);
    batches(screen, sizes, row);
    self::profile(screen, curve, row, profile.unwrap_or_default());
}

/// Returns the drift of a model's profile, in red where batches take longer by more than
/// [`LARGE_DRIFT`].
fn drift(row: &Row) -> Span<'static> {
    let Some(drift) = row.drift else { return Span::default() };
    let text = format!(", drift {drift:.2}");
    if drift > LARGE_DRIFT { text.red() } else { text.dim() }
}

/// Draws the histogram of requests by latency, from 0 to 1.6 of the SLO; late ones are red.
pub(super) fn latencies(screen: &mut ratatui::Frame<'_>, area: Rect, row: &Row, title: Line<'_>) {
    let inside = panel(screen, area, title);
    let [chart, scale] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(inside);
    let wide = (usize::from(inside.width) / row.of_slo.len().max(1)).max(1);
    let bars = row.of_slo.iter().enumerate().flat_map(|(at, &count)| {
        let colour = if at < IN_TIME { INK } else { Color::Red };
        std::iter::repeat_n(SparklineBar::from(count).style(Style::new().fg(colour)), wide)
    });
    screen.render_widget(Sparkline::default().data(bars), chart);
    let slo = format!("{:<width$}│ SLO {} ms", "0", row.slo_ms, width = IN_TIME * wide);
    screen.render_widget(Line::from(slo).dim(), scale);
}

fn batches(screen: &mut ratatui::Frame<'_>, area: Rect, row: &Row) {
    let inside = panel(screen, area, "Sizes of batches".into());
    let all: u64 = row.sizes.iter().map(|(_, count)| count).sum();
    let most = row.sizes.iter().map(|&(_, count)| count).max().unwrap_or(1) as f64;
    // Where there are more sizes than rows, the rare ones are left out.
    let mut shown: Vec<usize> = (0..row.sizes.len()).collect();
    shown.sort_by_key(|&at| std::cmp::Reverse(row.sizes[at].1));
    shown.truncate(usize::from(inside.height));
    shown.sort_unstable();
    let lines = shown.into_iter().map(|at| {
        let (sizes, count) = &row.sizes[at];
        let long = ((*count as f64 / most * SIZE_BAR).round() as usize).max(1);
        let share = format!(" {:.0} %", *count as f64 / all as f64 * 100.0);
        Line::from(vec![format!("{sizes:>9} ").dim(), "█".repeat(long).fg(INK), share.into()])
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let lines = if lines.is_empty() { vec!["none in the last seconds".dim().into()] } else { lines };
    screen.render_widget(Paragraph::new(lines), inside);
}

fn profile(screen: &mut ratatui::Frame<'_>, area: Rect, row: &Row, latency_us: &[u64]) {
    let inside = panel(screen, area, "Profile, ms by batch size".into());
    let Some(&longest) = latency_us.last() else {
        screen.render_widget("not known".dim(), inside);
        return;
    };
    let [chart, text] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(inside);
    let largest = latency_us.len();
    let ms = |size: usize| latency_us[size - 1] as f64 / 1e3;
    let curve: Vec<(f64, f64)> = (1..=largest).map(|size| (size as f64, ms(size))).collect();
    let top = row.slo_ms.max(longest as f64 / 1e3);
    let right = (largest as f64).max(2.0);
    let slo = [(1.0, row.slo_ms), (right, row.slo_ms)];
    let mean = row.mean_batch.clamp(1.0, largest as f64);
    let now = [(mean, ms(mean as usize))];
    let line = |data, colour| {
        Dataset::default()
            .data(data)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(colour))
    };
    let mut lines = vec![line(&slo, Color::Red), line(&curve, INK)];
    if row.mean_batch > 0.0 {
        lines.push(Dataset::default().data(&now).marker(Marker::Custom('●')).style(Style::new().bold()));
    }
    let across = Axis::default().bounds([1.0, right]).labels(["1".to_owned(), largest.to_string()]);
    let up = Axis::default().bounds([0.0, top]).labels(["0".to_owned(), format!("{top:.0}")]);
    let dim = Style::new().dim();
    screen.render_widget(Chart::new(lines).x_axis(across.style(dim)).y_axis(up.style(dim)), chart);
    let mut marks = vec![1, largest.div_ceil(2), largest];
    marks.dedup();
    let marks: Vec<String> = marks.into_iter().map(|size| format!("l({size}) {:.1}", ms(size))).collect();
    screen.render_widget(Line::from(marks.join("   ")).dim(), text);
}
