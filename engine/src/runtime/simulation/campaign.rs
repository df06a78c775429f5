//! Many runs of the simulation, one for each seed of a range, on several threads.

use super::report::{BrokenInvariant, SeedReport};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most runs that fail before no more are begun: what breaks every run is seen in a few.
const MOST_FINDINGS: usize = 20;

/// The sum of many runs.
#[derive(Clone, Debug, Default)]
pub struct Campaign<R> {
    /// The seeds that were run.
    pub seeds: Range<u64>,
    /// What the runs in which everything held did.
    pub sum: R,
    /// What did not hold, by seed.
    pub findings: Vec<BrokenInvariant>,
    /// False once it was interrupted.
    pub goes_on: bool,
}

/// Runs seed after seed on `threads` threads until that many requests were simulated, the seeds are
/// used up or `on_run`, which is called after each run with the sum so far, returns false. The
/// seeds that were run are consecutive; while threads run, the last ones of `seeds` are under way.
pub fn run_campaign<R: SeedReport>(
    seeds: Range<u64>,
    requests: u64,
    threads: usize,
    on_run: impl Fn(&Campaign<R>) -> bool + Sync,
) -> Campaign<R> {
    let begun = Campaign { seeds: seeds.start..seeds.start, goes_on: true, ..Campaign::default() };
    let so_far = Mutex::new(begun);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let next = || lock(&so_far).next_seed(seeds.end, requests);
                while let Some(seed) = next() {
                    let result = R::run(seed);
                    let mut campaign = lock(&so_far);
                    campaign.take(result);
                    campaign.goes_on &= on_run(&campaign);
                }
            });
        }
    });
    let mut campaign = so_far.into_inner().unwrap_or_else(PoisonError::into_inner);
    campaign.findings.sort_by_key(|finding| finding.seed);
    campaign
}

fn lock<R>(campaign: &Mutex<Campaign<R>>) -> MutexGuard<'_, Campaign<R>> {
    campaign.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R: SeedReport> Campaign<R> {
    fn next_seed(&mut self, end: u64, requests: u64) -> Option<u64> {
        let enough = self.sum.requests() >= requests || self.findings.len() >= MOST_FINDINGS;
        let seed = self.seeds.end;
        if enough || !self.goes_on || seed == end {
            return None;
        }
        self.seeds.end += 1;
        Some(seed)
    }

    fn take(&mut self, result: Result<R, BrokenInvariant>) {
        match result {
            Ok(report) => self.sum.add(&report),
            Err(broken) => self.findings.push(broken),
        }
    }
}
