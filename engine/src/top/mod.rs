//! `symphony top`: the dashboard's numbers in a terminal. A thread asks a server for the same JSON
//! (`feed`); this file takes its answers and the keys, keeps the numbers (`figures`) and draws them
//! (`frame`, `detail`). A server that goes away is queried again and again; the terminal is
//! restored in every case.

mod detail;
mod feed;
mod figures;
mod frame;
mod links;
mod panel;
mod server_call;

use feed::DashboardData;
pub(crate) use feed::Feed;
use feed::Question;
use figures::Figures;
use frame::TopFrame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
pub(crate) use server_call::ServerAddress;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The size of the frame that `--once` prints: that of the smallest terminals, and longer if there
/// are more models.
const PLAIN: (u16, u16) = (80, 24);

/// The longest that a key, an answer or a signal waits to be handled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The options of `top`.
#[derive(Clone, Copy, Debug)]
pub struct TopOptions {
    /// True to print one frame as plain text and end.
    pub once: bool,
    /// The interval between two queries.
    pub every: Duration,
    /// True to use colours.
    pub coloured: bool,
}

/// Shows the numbers of `feed` until `q` is pressed, or prints one frame.
///
/// Errors: the server can't be reached or is no Symphony server; the terminal can't be used.
pub(crate) fn run(feed: &Feed, options: TopOptions) -> Result<(), String> {
    if !options.once && !std::io::stdout().is_terminal() {
        return Err("standard output is not a terminal; --once prints one frame as text".to_owned());
    }
    let figures = Figures::new(feed.ask(Question { history: true, ..Question::default() })?);
    if options.once { print_once(feed, figures, options) } else { Screen::new(feed, figures, options).show() }
}

fn print_once(feed: &Feed, mut figures: Figures, options: TopOptions) -> Result<(), String> {
    std::thread::sleep(options.every);
    figures.take(feed.ask(Question::default())?);
    let (width, height) = (PLAIN.0, PLAIN.1.max(TopFrame::rows_needed(&figures)));
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let server = feed.address();
    let frame = TopFrame {
        figures: &figures,
        server,
        chosen: 0,
        open: false,
        help: false,
        trouble: None,
        coloured: false,
    };
    let Ok(drawn) = terminal.draw(|screen| frame.draw(screen));
    let mut text = String::new();
    // The last line lists keys, which can't be pressed here.
    for row in drawn.buffer.content().chunks(usize::from(width)).take(usize::from(height) - 1) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    // A reader that closes the pipe needs no more output.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The state of the screen.
struct Screen {
    server: String,
    coloured: bool,
    figures: Figures,
    chosen: usize,
    open: bool,
    help: bool,
    trouble: Option<String>,
    questions: Sender<Option<u32>>,
    answers: Receiver<Result<DashboardData, String>>,
}

impl Screen {
    fn new(feed: &Feed, figures: Figures, options: TopOptions) -> Screen {
        let (questions, asked) = channel();
        let (sender, answers) = channel();
        let asker = feed.clone();
        std::thread::spawn(move || ask(&asker, options.every, &asked, &sender));
        Screen {
            server: feed.address().to_owned(),
            coloured: options.coloured,
            figures,
            chosen: 0,
            open: false,
            help: false,
            trouble: None,
            questions,
            answers,
        }
    }

    /// Shows the screen until its end is requested.
    fn show(mut self) -> Result<(), String> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop))
                .map_err(|e| format!("signals can't be taken: {e}"))?;
        }
        // From here on a panic, too, restores the terminal: `try_init` sees to that.
        let ended = ratatui::try_init().and_then(|mut terminal| {
            let mut changed = true;
            while !stop.load(Ordering::Relaxed) {
                if changed {
                    terminal.draw(|screen| self.frame().draw(screen))?;
                }
                changed = self.take_answers();
                if event::poll(POLL_INTERVAL)? {
                    changed = true;
                    match event::read()? {
                        Event::Key(key) if !self.press(key) => break,
                        _ => {}
                    }
                }
            }
            Ok(())
        });
        ratatui::restore();
        ended.map_err(|e| format!("the terminal can't be used: {e}; --once prints one frame as text"))
    }

    fn frame(&self) -> TopFrame<'_> {
        TopFrame {
            figures: &self.figures,
            server: &self.server,
            chosen: self.chosen,
            open: self.open,
            help: self.help,
            trouble: self.trouble.as_deref(),
            coloured: self.coloured,
        }
    }

    /// Takes the answers that have come, and returns true if there were any.
    fn take_answers(&mut self) -> bool {
        let mut any = false;
        while let Ok(answer) = self.answers.try_recv() {
            any = true;
            self.trouble = answer.map(|answer| self.figures.take(answer)).err();
        }
        // A server that was restarted may have fewer.
        self.chosen = self.chosen.min(self.figures.models().saturating_sub(1));
        any
    }

    /// Handles a key. Returns false if `top` is to end.
    fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => return true,
            KeyCode::Char('q') => return false,
            KeyCode::Char('c') if control => return false,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc if self.open => self.open = false,
            KeyCode::Esc => return false,
            KeyCode::Char('?') => self.help = !self.help,
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.chosen = (self.chosen + 1).min(self.figures.models().saturating_sub(1));
            }
            KeyCode::Enter => self.open = self.figures.models() > 0,
            _ => return true,
        }
        if self.open {
            let model = self.figures.last().models.get(self.chosen).map(|model| model.id);
            // If the asking thread has ended, its last message is on the screen.
            let _ = self.questions.send(model);
        }
        true
    }
}

/// Asks again and again, at once when another model's profile is wanted. After a failure it asks
/// for the past, too, so that there is no gap. Ends when the answers are no longer received.
fn ask(
    feed: &Feed,
    every: Duration,
    questions: &Receiver<Option<u32>>,
    answers: &Sender<Result<DashboardData, String>>,
) {
    let mut question = Question::default();
    loop {
        match questions.recv_timeout(every) {
            Ok(model) => question.profile_of = model,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(model) = questions.try_recv() {
            question.profile_of = model;
        }
        let answer = feed.ask(question);
        question.history = answer.is_err();
        if answers.send(answer).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(models: usize) -> Screen {
        let mut answer = figures::tests::answer(1);
        let model = answer.models[0].clone();
        answer.models = (0..models as u32).map(|id| feed::ModelData { id, ..model.clone() }).collect();
        let feed = Feed::of(ServerAddress::new("http://127.0.0.1:1", "").unwrap());
        let options = TopOptions { once: false, every: Duration::from_secs(3_600), coloured: true };
        Screen::new(&feed, Figures::new(answer), options)
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.press(KeyEvent::from(code))
    }

    #[test]
    fn keys_choose_open_close_and_quit() {
        let mut screen = screen(3);
        for (key, chosen) in [(KeyCode::Up, 0), (KeyCode::Down, 1), (KeyCode::Down, 2), (KeyCode::Down, 2)] {
            assert!(press(&mut screen, key));
            assert_eq!(screen.chosen, chosen);
        }
        assert!(press(&mut screen, KeyCode::Char('k')) && press(&mut screen, KeyCode::Enter));
        assert_eq!((screen.chosen, screen.open), (1, true));
        assert!(press(&mut screen, KeyCode::Char('?')) && screen.help);
        assert!(press(&mut screen, KeyCode::Esc) && !screen.help && screen.open);
        assert!(press(&mut screen, KeyCode::Esc) && !screen.open);
        assert!(!press(&mut screen, KeyCode::Esc));
        assert!(!press(&mut screen, KeyCode::Char('q')));
        assert!(!screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(press(&mut screen, KeyCode::Char('c')));
    }

    #[test]
    fn a_server_that_is_away_is_told_of_and_one_with_fewer_models_moves_the_choice() {
        let mut screen = screen(3);
        press(&mut screen, KeyCode::Down);
        // No server listens there: opening a model asks at once.
        press(&mut screen, KeyCode::Enter);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !screen.take_answers() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(screen.trouble.as_ref().unwrap().contains("no answer from http://127.0.0.1:1"));
        let (sender, answers) = channel();
        screen.answers = answers;
        sender.send(Ok(figures::tests::answer(9))).unwrap();
        assert!(screen.take_answers() && screen.trouble.is_none());
        assert_eq!(screen.chosen, 0);
    }

    #[test]
    fn no_model_no_choice() {
        let mut screen = screen(0);
        for key in [KeyCode::Down, KeyCode::Enter, KeyCode::Up] {
            assert!(press(&mut screen, key));
        }
        assert_eq!((screen.chosen, screen.open), (0, false));
    }
}
