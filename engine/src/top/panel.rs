//! The look that all parts of the terminal's picture share: the colour of bars and lines, and a
//! panel under a rule with a title.

use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders};

/// The colour of bars and lines.
pub(super) const INK: Color = Color::Magenta;

/// Draws a rule with a title and returns the area below it.
pub(super) fn panel(screen: &mut ratatui::Frame<'_>, area: Rect, title: Line<'_>) -> Rect {
    let mut words = vec![Span::from(" ")];
    words.extend(title.spans);
    words.push(" ".into());
    let block = Block::new().borders(Borders::TOP).border_style(Style::new().dim()).title(Line::from(words));
    let inside = block.inner(area);
    screen.render_widget(block, area);
    Rect { x: inside.x + 1, width: inside.width.saturating_sub(2), ..inside }.intersection(area)
}
