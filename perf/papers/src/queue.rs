//! Runs jobs over threads: one experiment after the other, that with the longest job first, and in
//! each the longest jobs first, so that at the end no thread waits long for another. Called by the
//! command `experiments`.

use super::{Job, Rows};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs `jobs` (an experiment's index and a job of it) on `threads` threads. `progress` hears of
/// each job that is done and its weight. `finished` is called once for each experiment, with its
/// rows in the order in which its jobs stand in `jobs`, whatever the order in which they ran, and
/// the time that they took together.
///
/// Errors: the first of a job or of `finished`; no further job is then begun.
pub fn run(
    jobs: Vec<(usize, Job)>,
    threads: usize,
    progress: &(dyn Fn(usize, f64) + Sync),
    finished: &(dyn Fn(usize, Rows, Duration) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let board = Mutex::new(Board::new(jobs));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| work(&board, progress, finished));
        }
    });
    board.into_inner().expect("a thread that panics ends the scope").result
}

struct Board {
    /// What comes first is last.
    pending: Vec<Pending>,
    experiments: Vec<Found>,
    result: io::Result<()>,
}

/// What is known of an experiment.
#[derive(Default)]
struct Found {
    /// Its jobs' rows.
    places: Vec<Option<Rows>>,
    longest: f64,
    took: Duration,
}

struct Pending {
    experiment: usize,
    /// Its place among the experiment's jobs.
    place: usize,
    job: Job,
}

impl Board {
    fn new(jobs: Vec<(usize, Job)>) -> Board {
        let mut board = Board { pending: Vec::new(), experiments: Vec::new(), result: Ok(()) };
        for (experiment, job) in jobs {
            if board.experiments.len() <= experiment {
                board.experiments.resize_with(experiment + 1, Found::default);
            }
            let found = &mut board.experiments[experiment];
            found.longest = found.longest.max(job.weight);
            board.pending.push(Pending { experiment, place: found.places.len(), job });
            found.places.push(None);
        }
        let Board { pending, experiments, .. } = &mut board;
        let order = |of: &Pending| (experiments[of.experiment].longest, of.experiment, of.job.weight);
        pending.sort_by(|a, b| order(a).partial_cmp(&order(b)).expect("weights are numbers: a test looks"));
        board
    }

    /// Keeps what a job found; all of its experiment's rows if it was the last one.
    fn keep(
        &mut self,
        experiment: usize,
        place: usize,
        rows: Rows,
        took: Duration,
    ) -> Option<(Rows, Duration)> {
        let found = &mut self.experiments[experiment];
        found.places[place] = Some(rows);
        found.took += took;
        let done = found.places.iter().all(Option::is_some);
        done.then(|| (found.places.drain(..).flatten().flatten().collect(), found.took))
    }

    fn fail(&mut self, error: io::Error) {
        self.pending.clear();
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }
}

fn work(
    board: &Mutex<Board>,
    progress: &(dyn Fn(usize, f64) + Sync),
    finished: &(dyn Fn(usize, Rows, Duration) -> io::Result<()> + Sync),
) {
    let locked = || board.lock().expect("no thread panics with the lock held");
    loop {
        let Some(Pending { experiment, place, job }) = locked().pending.pop() else { return };
        let weight = job.weight;
        let began = Instant::now();
        let outcome = (job.run)();
        progress(experiment, weight);
        let all = match outcome {
            Ok(rows) => locked().keep(experiment, place, rows, began.elapsed()),
            Err(error) => return locked().fail(error),
        };
        if let Some((rows, took)) = all
            && let Err(error) = finished(experiment, rows, took)
        {
            return locked().fail(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(experiment: usize, weight: f64, text: &'static str) -> (usize, Job) {
        (experiment, Job::new(weight, move || Ok(vec![vec![text.to_owned()]])))
    }

    #[test]
    fn rows_come_in_the_order_of_the_jobs_whatever_the_order_of_work() {
        let jobs =
            vec![numbered(0, 1.0, "a"), numbered(1, 2.0, "x"), numbered(0, 9.0, "b"), numbered(0, 5.0, "c")];
        let results = Mutex::new(vec![String::new(); 2]);
        let finished = |experiment: usize, rows: Rows, _| {
            results.lock().unwrap()[experiment] = rows.concat().concat();
            Ok(())
        };
        run(jobs, 3, &|_, _| {}, &finished).unwrap();
        assert_eq!(*results.lock().unwrap(), ["abc", "x"]);
    }

    #[test]
    fn after_an_error_no_further_job_begins() {
        let failing = Job::new(9.0, || Err(io::Error::other("no such trace")));
        let never = Job::new(1.0, || unreachable!("the job before it failed"));
        let error = run(vec![(0, never), (0, failing)], 1, &|_, _| {}, &|_, _, _| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "no such trace");
    }
}
