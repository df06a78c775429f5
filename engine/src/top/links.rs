//! The links of a frontend to other hosts, a line each.

use super::feed::LinkData;
use super::panel::panel;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

/// The most links that are shown.
const MOST: usize = 6;

/// Returns the rows that the links take; none where there are no links.
pub(super) fn height(links: &[LinkData]) -> u16 {
    if links.is_empty() { 0 } else { links.len().min(MOST) as u16 + 2 }
}

/// Draws the links.
pub(super) fn draw(screen: &mut ratatui::Frame<'_>, area: Rect, links: &[LinkData]) {
    if links.is_empty() {
        return;
    }
    let title = match links.len() {
        few if few <= MOST => "Links; times in ms".to_owned(),
        many => format!("Links; times in ms: the first {MOST} of {many}"),
    };
    let inside = panel(screen, area, title.into());
    let head = ["state", "made", "trip", "p99", "fetch", "offset", "ppm", "in MB", "out MB"].map(right);
    let head = Row::new([Cell::from("host")].into_iter().chain(head)).style(Style::new().dim());
    let widths = [Constraint::Min(9)].into_iter().chain([8, 4, 6, 6, 5, 11, 6, 7, 7].map(Constraint::Length));
    screen.render_widget(Table::new(links.iter().take(MOST).map(row), widths).header(head), inside);
}

fn row(link: &LinkData) -> Row<'static> {
    let state = Line::from(link.state.clone()).right_aligned();
    let state = if link.state == "up" { state } else { state.red().bold() };
    let known = |number: Option<f64>, scale: f64, digits: usize| {
        right(number.map_or("–".to_owned(), |number| format!("{:.digits$}", number / scale)))
    };
    Row::new([
        Cell::from(link.peer.clone()),
        Cell::from(state),
        right(link.connections.to_string()),
        known(link.round_trip_us, 1e3, 2),
        known(link.delay_us, 1e3, 2),
        known(link.fetch_us, 1e3, 2),
        known(link.clock_offset_us, 1e3, 2),
        known(link.clock_drift_ppm, 1.0, 1),
        known(Some(link.received_bytes as f64), 1e6, 1),
        known(Some(link.sent_bytes as f64), 1e6, 1),
    ])
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).right_aligned())
}
