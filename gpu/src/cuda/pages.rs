//! The free pages of a device's memory. A page is a number; what is at it, and where it is mapped,
//! is the caller's.

use std::collections::BTreeSet;

/// The pages of a device, of which some are free.
#[derive(Debug)]
pub(super) struct PagePool {
    free: BTreeSet<u32>,
    total: u32,
}

impl PagePool {
    /// Makes a pool of so many pages, all free.
    pub(super) fn new(total: u32) -> PagePool {
        PagePool { free: (0..total).collect(), total }
    }

    /// Returns the number of free pages.
    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of all pages.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Takes so many pages, wherever they are; `None`, and nothing is taken, if fewer are free.
    pub(super) fn take(&mut self, count: u32) -> Option<Vec<u32>> {
        let taken: Vec<u32> = self.free.iter().copied().take(count as usize).collect();
        self.take_these((taken.len() == count as usize).then_some(taken)?)
    }

    /// Takes so many pages behind each other, the first that there are; `None`, and nothing is
    /// taken, if no so many free ones follow each other.
    pub(super) fn take_run(&mut self, count: u32) -> Option<Vec<u32>> {
        let mut run: Vec<u32> = Vec::new();
        for &page in &self.free {
            if run.len() == count as usize {
                break;
            }
            if run.last().is_some_and(|last| last + 1 != page) {
                run.clear();
            }
            run.push(page);
        }
        self.take_these((run.len() == count as usize).then_some(run)?)
    }

    fn take_these(&mut self, pages: Vec<u32>) -> Option<Vec<u32>> {
        pages.iter().for_each(|page| {
            self.free.remove(page);
        });
        Some(pages)
    }

    /// Gives pages back.
    ///
    /// # Panics
    /// If one of them is free: then two owners believe that they have it.
    pub(super) fn give_back(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            assert!(page < self.total && self.free.insert(page), "page {page} is given back twice");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32),
        TakeRun(u32),
        GiveBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..12u32).prop_map(Step::Take),
            (0..12u32).prop_map(Step::TakeRun),
            any::<usize>().prop_map(Step::GiveBack),
        ]
    }

    proptest! {
        #[test]
        fn no_page_has_two_owners_none_is_lost_and_what_fits_is_given(
            steps in prop::collection::vec(step(), 1..80),
        ) {
            const TOTAL: u32 = 24;
            let mut pool = PagePool::new(TOTAL);
            let mut owners: Vec<Vec<u32>> = Vec::new();
            for step in steps {
                let free = pool.free();
                match step {
                    Step::Take(count) => {
                        let taken = pool.take(count);
                        prop_assert_eq!(taken.is_some(), count <= free);
                        owners.extend(taken);
                    }
                    Step::TakeRun(count) => {
                        let is_free = |page: &u32| owners.iter().flatten().all(|of| of != page);
                        let fits = (0..=TOTAL - count).any(|at| (at..at + count).all(|page| is_free(&page)));
                        let taken = pool.take_run(count);
                        prop_assert_eq!(taken.is_some(), fits);
                        prop_assert!(taken.iter().all(|run| run.windows(2).all(|of| of[0] + 1 == of[1])));
                        owners.extend(taken);
                    }
                    Step::GiveBack(at) if !owners.is_empty() => {
                        let at = at % owners.len();
                        pool.give_back(owners.swap_remove(at));
                    }
                    Step::GiveBack(_) => {}
                }
                let owned: BTreeSet<u32> = owners.iter().flatten().copied().collect();
                prop_assert_eq!(owned.len(), owners.iter().map(Vec::len).sum::<usize>(), "two owners");
                prop_assert_eq!(owned.len() as u32 + pool.free(), TOTAL, "a page is lost");
            }
        }
    }
}
