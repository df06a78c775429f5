//! The bar that a waiting user sees: on standard error, and only if that is a terminal.

use super::measure::Live;
use super::schedule::Plan;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::Arc;
use symphony_transport::Nanos;

/// The time between changes of the bar.
const EVERY: Nanos = Nanos::from_millis(200);

/// The number of changes over which the rate shown is measured.
const WINDOW: u64 = 5;

/// A progress bar over a run's time.
pub struct Progress {
    bar: ProgressBar,
    live: Arc<Live>,
    label: String,
    next: Nanos,
    /// The time at which the rate was last measured, and the requests sent by then.
    measured: (Nanos, u64),
    rate_rps: f64,
}

impl Progress {
    /// The bar of a run that has not begun; `label` precedes its text.
    pub fn new(plan: &Plan, live: Arc<Live>, label: &str) -> Progress {
        let length = plan.end().0 / EVERY.0;
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{elapsed_precise} [{wide_bar}] {percent:>3} %  {msg}");
        bar.set_style(style.expect("the template is a valid one"));
        let (next, measured) = (Nanos::ZERO, (Nanos::ZERO, 0));
        Progress { bar, live, label: label.into(), next, measured, rate_rps: 0.0 }
    }

    /// Shows the run's state at `now`.
    pub fn update(&mut self, now: Nanos) {
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        let (sent, good, bad) = self.live.so_far();
        let (since, before) = self.measured;
        if now - since >= Nanos(EVERY.0 * WINDOW) {
            self.rate_rps = (sent - before) as f64 / (now - since).as_secs_f64();
            self.measured = (now, sent);
        }
        self.bar.set_message(format!("{}{:.0}/s, good {good}, bad {bad}", self.label, self.rate_rps));
        self.bar.set_position(now.0 / EVERY.0);
    }

    /// Removes the bar, since the run is over.
    pub fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}
