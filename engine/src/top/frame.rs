//! The layout of the terminal, from top to bottom: the server, all models together, goodput over
//! two minutes, the GPUs, the models, and the chosen model's latencies. It is made for 80 columns
//! and 24 rows, and uses further room. An open model has a layout of its own (`detail`).

use super::detail;
use super::figures::{Figures, Row as Figure, SECONDS};
use super::links;
use super::panel::{INK, panel};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Sparkline, Table, TableState};

/// The size of the GPUs' bars, in columns and rows.
const GPU_WIDTH: u16 = 10;
const GPU_ROWS: u16 = 2;

/// The stages of a request with their symbols and colours in the bar: shapes differ too, for
/// terminals and readers without colours.
const STAGES: [(&str, &str, Color); 4] = [
    ("queue", "▒", Color::Blue),
    ("dispatch", "░", Color::Yellow),
    ("run", "█", Color::Magenta),
    ("answer", "▓", Color::Green),
];

/// The width in columns of the bar that is as long as the SLO.
const BAR: usize = 20;

/// The keys and their effects, for the line at the bottom and for `?`.
const KEYS: [(&str, &str); 5] = [
    ("q", "quits, as Ctrl-C does"),
    ("↑ ↓", "choose a model, as k and j do"),
    ("Enter", "opens the chosen model"),
    ("Esc", "closes what is open, then quits"),
    ("?", "shows this"),
];

/// The state that is drawn.
pub(super) struct TopFrame<'a> {
    pub(super) figures: &'a Figures,
    pub(super) server: &'a str,
    /// The index of the chosen model, from the top.
    pub(super) chosen: usize,
    /// True if the chosen model is open.
    pub(super) open: bool,
    /// True if the keys are explained.
    pub(super) help: bool,
    /// The reason why there is no newer answer.
    pub(super) trouble: Option<&'a str>,
    /// True if colours are used.
    pub(super) coloured: bool,
}

impl TopFrame<'_> {
    /// Returns the number of rows that show everything: all models, and the GPUs that fit.
    pub(super) fn rows_needed(figures: &Figures) -> u16 {
        u16::try_from(figures.models())
            .unwrap_or(u16::MAX)
            .saturating_add(18 + links::height(&figures.last().links))
    }

    /// Draws the frame.
    pub(super) fn draw(&self, screen: &mut ratatui::Frame<'_>) {
        let rows = self.figures.rows();
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(screen.area());
        self.head(screen, head);
        match rows.get(self.chosen) {
            Some(row) if self.open => detail::draw(screen, body, row, self.figures.profile(row.id)),
            _ => self.overview(screen, body, &rows),
        }
        self.keys(screen, keys);
        if self.help {
            help(screen);
        }
        if !self.coloured {
            for cell in &mut screen.buffer_mut().content {
                (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
            }
        }
    }

    fn overview(&self, screen: &mut ratatui::Frame<'_>, area: Rect, rows: &[Figure]) {
        let links = &self.figures.last().links;
        let [totals, goodput, gpus, hosts, models, latency] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(4),
            Constraint::Length(GPU_ROWS + 1),
            Constraint::Length(links::height(links)),
            Constraint::Min(4),
            Constraint::Length(if area.height >= 20 { 5 } else { 0 }),
        ])
        .areas(area);
        screen.render_widget(self.totals(), totals);
        self.goodput(screen, goodput);
        self.gpus(screen, gpus);
        links::draw(screen, hosts, links);
        self.models(screen, models, rows);
        if let Some(row) = rows.get(self.chosen) {
            let title = Line::from(vec!["Latencies of ".into(), row.name.clone().bold()]);
            detail::latencies(screen, latency, row, title);
        }
    }

    fn head(&self, screen: &mut ratatui::Frame<'_>, area: Rect) {
        let last = self.figures.last();
        let up = last.now_us / 1_000_000;
        let (hours, minutes, seconds) = (up / 3_600, up / 60 % 60, up % 60);
        let text = format!(" {}   {}   up {hours}:{minutes:02}:{seconds:02}", last.version, self.server);
        let state = if self.trouble.is_some() {
            "✗ no answer ".red().bold()
        } else if last.ready {
            "● ready ".green().bold()
        } else {
            "✗ not ready ".red().bold()
        };
        screen.render_widget(Line::from(vec![" Symphony".bold(), text.dim()]), area);
        let width = u16::try_from(state.width()).unwrap_or(u16::MAX).min(area.width);
        let right = Rect { x: area.right() - width, width, ..area };
        screen.render_widget(Line::from(state).alignment(Alignment::Right), right);
    }

    /// Draws the bottom line: the error, or the keys.
    fn keys(&self, screen: &mut ratatui::Frame<'_>, area: Rect) {
        let last = self.figures.last();
        let line = match self.trouble {
            Some(trouble) => Line::from(format!(" {trouble}").red()),
            None if !last.ready => Line::from(format!(" not ready: {}", last.reasons.join("; ")).red()),
            None if self.open => Line::from(" q quits   ↑ ↓ another model   Esc closes it   ? help".dim()),
            None => Line::from(" q quits   ↑ ↓ choose a model   Enter opens it   ? help".dim()),
        };
        screen.render_widget(line, area);
    }

    fn totals(&self) -> Paragraph<'_> {
        let (totals, gpus) = (self.figures.totals(), &self.figures.last().gpus);
        let bad = totals.bad_rate();
        let causes: Vec<String> =
            totals.bad.iter().map(|(cause, share)| format!("{cause} {} %", percent(*share))).collect();
        let bad_style = if bad > 0.01 { Style::new().red().bold() } else { Style::new().bold() };
        let first = Line::from(vec![
            " goodput ".dim(),
            format!("{:.0}/s", totals.good_rps).bold(),
            format!(" of {:.0}/s   ", totals.offered_rps).dim(),
            "bad ".dim(),
            Span::styled(format!("{} %", percent(bad)), bad_style),
            if causes.is_empty() { "".into() } else { format!(": {}", causes.join(", ")).dim() },
        ]);
        let advised = gpus.advised.map_or("not known yet".to_owned(), |gpus| gpus.to_string());
        let second = Line::from(vec![
            " GPUs busy ".dim(),
            format!("{:.2}", totals.gpus_busy).bold(),
            format!(" of {}   ", gpus.count).dim(),
            "advised ".dim(),
            advised.bold(),
            "   mean batch ".dim(),
            format!("{:.1}", totals.mean_batch).bold(),
        ]);
        Paragraph::new(vec![first, second])
    }

    fn goodput(&self, screen: &mut ratatui::Frame<'_>, area: Rect) {
        let parts = self.figures.goodput(usize::from(area.width.saturating_sub(2)));
        let most = parts.iter().max().copied().unwrap_or_default();
        let title = format!("Goodput over {} minutes, up to {most}/s", SECONDS / 60);
        let chart = panel(screen, area, title.into());
        screen.render_widget(Sparkline::default().data(parts).style(Style::new().fg(INK)), chart);
    }

    fn gpus(&self, screen: &mut ratatui::Frame<'_>, area: Rect) {
        let lanes = self.figures.lanes();
        let across = usize::from((area.width.saturating_sub(2) / GPU_WIDTH).max(1));
        let shown = (across * usize::from(GPU_ROWS)).min(lanes.len());
        let of = self.figures.last().gpus.count;
        let title = if shown < of {
            format!("GPUs, how busy: the first {shown} of {of}")
        } else {
            "GPUs, how busy".to_owned()
        };
        let free =
            self.figures.last().memory.iter().map(|of| format!("{}: {}/{}", of.gpu, of.free, of.pages));
        let free: Vec<String> = free.collect();
        let title = if free.is_empty() { title } else { format!("{title}; free pages {}", free.join(", ")) };
        let inside = panel(screen, area, title.into());
        let bars = lanes[..shown].chunks(across).enumerate().map(|(row, busy)| {
            let one = |(at, busy): (usize, &f64)| {
                let filled = (busy * 5.0).round() as usize;
                [
                    format!("{:>3} ", row * across + at).dim(),
                    "█".repeat(filled).fg(INK),
                    "·".repeat(5 - filled).dim(),
                    " ".into(),
                ]
            };
            Line::from(busy.iter().enumerate().flat_map(one).collect::<Vec<_>>())
        });
        screen.render_widget(Paragraph::new(bars.collect::<Vec<_>>()), inside);
    }

    fn models(&self, screen: &mut ratatui::Frame<'_>, area: Rect, rows: &[Figure]) {
        let mut title = vec!["Models; time as a share of the SLO: ".into()];
        for (name, symbol, colour) in STAGES {
            title.extend([Span::from(symbol).fg(colour), Span::from(format!(" {name} "))]);
        }
        let inside = panel(screen, area, Line::from(title));
        if rows.is_empty() {
            screen.render_widget(Line::from("No model has been asked for yet.").dim(), inside);
            return;
        }
        let head = ["good/s", "bad %", "batch", "wait", "p99 ms", "SLO ms"].map(right_aligned);
        let name = match self.figures.last().models_left_out {
            0 => "model".to_owned(),
            more => format!("model (+{more})"),
        };
        let head = [Cell::from(name)].into_iter().chain(head).chain([Cell::from("0                SLO")]);
        let widths = [
            Constraint::Min(12),
            Constraint::Length(7),
            Constraint::Length(5),
            Constraint::Length(5),
            Constraint::Length(5),
            Constraint::Length(7),
            Constraint::Length(6),
            Constraint::Length(BAR as u16),
        ];
        let table = Table::new(rows.iter().map(of_model), widths)
            .header(Row::new(head).style(Style::new().dim()))
            .highlight_symbol("▸ ")
            .row_highlight_style(Style::new().bold());
        let mut state = TableState::default().with_selected(Some(self.chosen.min(rows.len() - 1)));
        screen.render_stateful_widget(table, inside, &mut state);
    }
}

/// Returns a model's line of the table.
fn of_model(figure: &Figure) -> Row<'static> {
    let bad = percent(figure.bad_rate);
    let bad = if figure.bad_rate > 0.01 { bad.red().bold() } else { bad.into() };
    Row::new([
        Cell::from(figure.name.clone()),
        right_aligned(format!("{:.0}", figure.good_rps)),
        right_aligned(bad),
        right_aligned(format!("{:.1}", figure.mean_batch)),
        right_aligned(figure.in_flight.to_string()),
        right_aligned(figure.quantile_ms(0.99).map_or("–".to_owned(), |p99| format!("{p99:.1}"))),
        right_aligned(format!("{:.0}", figure.slo_ms)),
        Cell::from(bar(figure)),
    ])
}

fn right_aligned<'a>(text: impl Into<Span<'a>>) -> Cell<'a> {
    Cell::from(Line::from(text.into()).right_aligned())
}

fn percent(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{:.2}", share * 100.0) }
}

/// Returns a model's stages as parts of its SLO.
fn bar(figure: &Figure) -> Line<'static> {
    let (mut spans, mut to, mut drawn) = (Vec::new(), 0.0, 0);
    for ((_, symbol, colour), share) in STAGES.iter().zip(&figure.stages) {
        to += share;
        let end = ((to * BAR as f64).round() as usize).min(BAR);
        spans.push(Span::from(symbol.repeat(end - drawn)).fg(*colour));
        drawn = end;
    }
    spans.push("·".repeat(BAR - drawn).dim());
    Line::from(spans)
}

fn help(screen: &mut ratatui::Frame<'_>) {
    let lines =
        KEYS.map(|(key, does)| Line::from(vec![format!(" {key:<7}").bold(), format!("{does} ").into()]));
    let width = lines.iter().map(Line::width).max().unwrap_or_default();
    let (width, height) = (u16::try_from(width).unwrap_or(u16::MAX).saturating_add(2), KEYS.len() as u16 + 2);
    let area = screen.area().centered(Constraint::Length(width), Constraint::Length(height));
    screen.render_widget(Clear, area);
    screen.render_widget(Paragraph::new(lines.to_vec()).block(Block::bordered().title(" Keys ")), area);
}

#[cfg(test)]
mod tests {
    use super::super::feed::{DashboardData, LinkData};
    use super::super::figures::tests::answer;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    fn figures() -> Figures {
        let mut figures = Figures::new(answer(0));
        (1..20).for_each(|second| figures.take(answer(second)));
        figures
    }

    fn frame(figures: &Figures) -> TopFrame<'_> {
        let server = "127.0.0.1:8000";
        TopFrame { figures, server, chosen: 0, open: false, help: false, trouble: None, coloured: true }
    }

    fn drawn(width: u16, height: u16, frame: &TopFrame<'_>) -> (String, Buffer) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|screen| frame.draw(screen)).unwrap();
        (terminal.backend().to_string(), terminal.backend().buffer().clone())
    }

    fn assert_shows(text: &str, all: &[&str]) {
        for expected in all {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
    }

    #[test]
    fn everything_is_there_in_80_columns_and_24_rows() {
        let (text, _) = drawn(80, 24, &frame(&figures()));
        assert_shows(
            &text,
            &[
                " Symphony 0.1.0   127.0.0.1:8000   up 0:00:19",
                "● ready",
                " goodput 90/s of 100/s   bad 10.00 %: dropped 10.00 %",
                " GPUs busy 1.25 of 2   advised 3   mean batch 3.0",
                " Goodput over 2 minutes, up to 90/s ",
                "GPUs, how busy; free pages 0: 3/60",
                "  0 █████   1 █····",
                "▒▒▒▒▒████▓··········",
                " Latencies of resnet50 ",
                "SLO 40 ms",
                " q quits",
            ],
        );
        let row = text.lines().find(|line| line.contains("▸ resnet50")).unwrap();
        let numbers: Vec<&str> = row.split_whitespace().skip(3).take(6).collect();
        assert_eq!(numbers, ["90", "10.00", "3.0", "7", "21.0", "40"], "{text}");
    }

    #[test]
    fn a_frontend_shows_its_links() {
        let link = LinkData {
            peer: "scheduler".into(),
            state: "up".into(),
            connections: 3,
            received_bytes: 1_500_000,
            round_trip_us: Some(250.0),
            delay_us: Some(1_400.0),
            fetch_us: Some(890.0),
            clock_offset_us: Some(-7_000.0),
            ..LinkData::default()
        };
        let figures = Figures::new(DashboardData {
            links: vec![link, LinkData { peer: "back".into(), state: "down".into(), ..LinkData::default() }],
            ..answer(1)
        });
        let (text, _) = drawn(80, 24, &frame(&figures));
        assert_shows(&text, &["Links; times in ms", "resnet50", "SLO 40 ms"]);
        let row = |peer: &str| {
            let mut lines = text.lines().map(|line| line.trim_matches('"').trim_start());
            let line = lines.find(|line| line.starts_with(&format!("{peer} "))).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            row("scheduler"),
            ["scheduler", "up", "3", "0.25", "1.40", "0.89", "-7.00", "–", "1.5", "0.0"],
            "{text}"
        );
        assert_eq!(row("back")[..4], ["back", "down", "0", "–"], "{text}");
    }

    #[test]
    fn an_open_model_shows_its_latencies_batches_and_profile() {
        let figures = figures();
        let (text, _) = drawn(80, 24, &TopFrame { open: true, ..frame(&figures) });
        assert_shows(
            &text,
            &[
                "resnet50   emulated, SLO 40 ms, batches up to 12, drift 1.50",
                ", GPU 0: loaded",
                "p50 20.5 ms   p90 20.9 ms   p99 21.0 ms",
                " Sizes of batches ",
                "    4 ",
                " 67 %",
                " Profile, ms by batch size ",
                "l(1) 6.0   l(6) 11.0   l(12) 17.0",
                "Esc closes it",
            ],
        );
        let (text, _) = drawn(80, 24, &TopFrame { open: true, chosen: 3, ..frame(&figures) });
        assert_shows(&text, &["GPUs, how busy"]);
    }

    #[test]
    fn a_late_server_a_server_in_trouble_and_the_keys_are_explained() {
        let mut unready =
            Figures::new(DashboardData { ready: false, reasons: vec!["it drains".into()], ..answer(1) });
        assert_shows(&drawn(80, 24, &frame(&unready)).0, &["✗ not ready", " not ready: it drains"]);
        let trouble = TopFrame { trouble: Some("no answer from there"), ..frame(&unready) };
        assert_shows(&drawn(80, 24, &trouble).0, &["✗ no answer", " no answer from there"]);
        assert_shows(
            &drawn(80, 24, &TopFrame { help: true, ..frame(&unready) }).0,
            &[" Keys ", "Enter  opens"],
        );
        unready = Figures::new(DashboardData { models: Vec::new(), ..answer(1) });
        assert_shows(
            &drawn(80, 24, &frame(&unready)).0,
            &["No model has been asked for yet.", " goodput 0/s of 0/s   bad 0 %", "batch 0.0"],
        );
    }

    #[test]
    fn without_colours_the_same_is_said_and_no_size_of_a_terminal_is_too_small() {
        let figures = figures();
        let (coloured, buffer) = drawn(80, 24, &frame(&figures));
        assert!(buffer.content.iter().any(|cell| cell.fg == Color::Red));
        let (plain, buffer) = drawn(80, 24, &TopFrame { coloured: false, ..frame(&figures) });
        assert_eq!(plain, coloured);
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        for (width, height) in [(1, 1), (2, 2), (10, 3), (40, 10), (79, 23), (300, 100)] {
            for (open, help) in [(false, false), (true, false), (false, true)] {
                drawn(width, height, &TopFrame { open, help, chosen: 0, ..frame(&figures) });
            }
        }
    }
}
