//! Runs jobs on threads: one experiment after the other, the one with the longest job first, and in
//! each the longest jobs first, so that at the end no thread waits long for another. The command
//! `experiments` calls it.

use super::{Job, Rows};
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Runs `jobs` (an experiment's index and a job of it) on `threads` threads. `progress` is called
/// with the experiment's index and the weight of each job that is done. `finished` is called once
/// for each experiment, with its rows in the order in which its jobs stand in `jobs`, whatever the
/// order in which they ran, and the time that they took together.
///
/// Errors: the first of a job or of `finished`; no further job is then begun.
pub fn run(
    jobs: Vec<(usize, Job)>,
    threads: usize,
    progress: &(dyn Fn(usize, f64) + Sync),
    finished: &(dyn Fn(usize, Rows, Duration) -> io::Result<()> + Sync),
) -> io::Result<()> {
    let queue = Mutex::new(JobQueue::new(jobs));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| work(&queue, progress, finished));
        }
    });
    queue.into_inner().expect("a thread that panics ends the scope").result
}

struct JobQueue {
    /// The jobs not begun, the next one last.
    pending: Vec<PendingJob>,
    experiments: Vec<ExperimentRows>,
    result: io::Result<()>,
}

/// The results of an experiment so far.
#[derive(Default)]
struct ExperimentRows {
    /// The rows of each job that is done.
    rows_of_jobs: Vec<Option<Rows>>,
    longest: f64,
    took: Duration,
}

struct PendingJob {
    experiment: usize,
    /// The index among the experiment's jobs.
    job_index: usize,
    job: Job,
}

impl JobQueue {
    fn new(jobs: Vec<(usize, Job)>) -> JobQueue {
        let mut queue = JobQueue { pending: Vec::new(), experiments: Vec::new(), result: Ok(()) };
        for (experiment, job) in jobs {
            if queue.experiments.len() <= experiment {
                queue.experiments.resize_with(experiment + 1, ExperimentRows::default);
            }
            let rows_found = &mut queue.experiments[experiment];
            rows_found.longest = rows_found.longest.max(job.weight);
            queue.pending.push(PendingJob { experiment, job_index: rows_found.rows_of_jobs.len(), job });
            rows_found.rows_of_jobs.push(None);
        }
        let JobQueue { pending, experiments, .. } = &mut queue;
        let order = |of: &PendingJob| (experiments[of.experiment].longest, of.experiment, of.job.weight);
        pending.sort_by(|a, b| order(a).partial_cmp(&order(b)).expect("weights are numbers: a test looks"));
        queue
    }

    /// Keeps the rows of a job. Returns all rows of its experiment if it was the last one.
    fn keep(
        &mut self,
        experiment: usize,
        job_index: usize,
        rows: Rows,
        took: Duration,
    ) -> Option<(Rows, Duration)> {
        let rows_found = &mut self.experiments[experiment];
        rows_found.rows_of_jobs[job_index] = Some(rows);
        rows_found.took += took;
        let done = rows_found.rows_of_jobs.iter().all(Option::is_some);
        done.then(|| (rows_found.rows_of_jobs.drain(..).flatten().flatten().collect(), rows_found.took))
    }

    fn fail(&mut self, error: io::Error) {
        self.pending.clear();
        if self.result.is_ok() {
            self.result = Err(error);
        }
    }
}

fn work(
    queue: &Mutex<JobQueue>,
    progress: &(dyn Fn(usize, f64) + Sync),
    finished: &(dyn Fn(usize, Rows, Duration) -> io::Result<()> + Sync),
) {
    let locked = || queue.lock().expect("no thread panics with the lock held");
    loop {
        let Some(PendingJob { experiment, job_index, job }) = locked().pending.pop() else { return };
        let weight = job.weight;
        let began = Instant::now();
        let outcome = (job.run)();
        progress(experiment, weight);
        let all = match outcome {
            Ok(rows) => locked().keep(experiment, job_index, rows, began.elapsed()),
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
