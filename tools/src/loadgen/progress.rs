//! The bar that a waiting user sees: on standard error, and only if that is a terminal.

use super::plan::Plan;
use super::tally::Tally;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use symphony::clock::Nanos;

/// How often it changes.
const EVERY: Nanos = Nanos::from_millis(200);

/// A progress bar over a run's time.
pub struct Progress {
    bar: ProgressBar,
    next: Nanos,
}

impl Progress {
    /// The bar of a run that has not begun.
    pub fn new(plan: &Plan) -> Progress {
        let length = plan.end().0 / EVERY.0;
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed_precise} [{wide_bar}] {percent:>3} %  {msg}");
        bar.set_style(style.expect("the template is a valid one"));
        Progress { bar, next: Nanos::ZERO }
    }

    /// The run has come as far as `now`.
    pub fn update(&mut self, now: Nanos, tally: &Tally) {
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        let (good, bad) = tally.so_far();
        self.bar.set_message(format!("good {good}, bad {bad}"));
        self.bar.set_position(now.0 / EVERY.0);
    }

    /// The run is over: the bar goes away.
    pub fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}
