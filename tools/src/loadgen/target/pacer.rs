//! The pacer of a run over the network: it hands each request to a client thread at its time.

use super::interface::Watch;
use crate::loadgen::RunError;
use crate::loadgen::measure::Tally;
use crate::loadgen::schedule::{Plan, Schedule};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;
use tokio::sync::mpsc::UnboundedSender;

/// The longest wait without a look at Ctrl-C and the progress bar.
pub(super) const NAP: Nanos = Nanos::from_millis(50);

/// A message from the pacer to a client thread.
pub(super) enum Job {
    /// Send a request now.
    Send { model: usize, intended: Nanos },
    /// The run ends early; no more will come.
    Stopped { at: Nanos },
}

/// The pacer's handle of a client thread.
pub(super) struct ClientHandle<'scope> {
    pub(super) jobs: UnboundedSender<Job>,
    pub(super) go: mpsc::Sender<Clock>,
    pub(super) is_ready: mpsc::Receiver<()>,
    pub(super) handle: thread::ScopedJoinHandle<'scope, Result<Tally, RunError>>,
}

/// The thread that started the run.
pub(super) struct Pacer<'a> {
    pub(super) plan: &'a Plan,
    pub(super) watch: &'a mut Watch,
    pub(super) lost: &'a AtomicBool,
}

impl Pacer<'_> {
    /// Starts the clock when all threads are ready, paces them, and gathers what they counted.
    pub(super) fn run(
        mut self,
        schedule: Schedule,
        workers: Vec<ClientHandle<'_>>,
    ) -> Result<Vec<Tally>, RunError> {
        // A thread that ends before it is ready returns its error when it is joined.
        if workers.iter().all(|worker| worker.is_ready.recv().is_ok()) {
            let clock = Clock::start();
            workers.iter().for_each(|worker| drop(worker.go.send(clock.clone())));
            let _stalls = self.watch.stalls(clock.clone());
            let jobs: Vec<&UnboundedSender<Job>> = workers.iter().map(|worker| &worker.jobs).collect();
            self.pace(schedule, &clock, &jobs);
            self.wait(&clock, &workers);
        }
        let join = |worker: ClientHandle<'_>| {
            drop((worker.go, worker.jobs));
            worker.handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    }

    fn over(&self) -> bool {
        self.watch.stopped() || self.lost.load(Ordering::Relaxed)
    }

    /// Hands each request over at its time, to the threads in turn, up to the end of the run.
    fn pace(&mut self, schedule: Schedule, clock: &Clock, jobs: &[&UnboundedSender<Job>]) {
        let end = [(self.plan.end(), None)];
        for (nth, (at, model)) in schedule.map(|(at, model)| (at, Some(model))).chain(end).enumerate() {
            loop {
                let now = clock.now();
                self.watch.progress.update(now);
                if self.over() {
                    // A thread that has ended needs no message.
                    jobs.iter().for_each(|jobs| drop(jobs.send(Job::Stopped { at: now })));
                    return;
                }
                if now >= at {
                    break;
                }
                thread::sleep((at - now).min(NAP).into());
            }
            if let Some(model) = model
                && jobs[nth % jobs.len()].send(Job::Send { model, intended: at }).is_err()
            {
                return;
            }
        }
    }

    /// Shows the progress until all threads are through.
    fn wait(&mut self, clock: &Clock, workers: &[ClientHandle<'_>]) {
        workers.iter().for_each(|worker| drop(worker.jobs.send(Job::Stopped { at: Nanos::MAX })));
        while !workers.iter().all(|worker| worker.handle.is_finished()) {
            self.watch.progress.update(clock.now());
            thread::sleep(Duration::from_millis(2));
        }
    }
}
