//! The runs of a set of rules over the population: each thread takes the next workload and runs all
//! rules on it that the file of results lacks. The classic ones are first: they say whether the
//! workload counts.

use super::generator::{HALF, Half};
use super::results::PopulationResults;
use super::rules::{CLASSIC, Rule};
use super::search::{goodputs, neighbourhood, of_seeds, requests};
use super::summary::is_left_out;
use indicatif::{ProgressBar, ProgressStyle};
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use symphony_scheduler::workload::Workload;

/// The time between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The half.
    pub half: Half,
    /// Every n-th workload of it.
    pub every: usize,
    /// The first of these.
    pub from: usize,
    /// The rules.
    pub rules: Vec<Rule>,
    /// The seeds of each workload.
    pub seeds: usize,
    /// The threads that simulate.
    pub threads: usize,
}

/// A workload and the rules that are to run on it.
struct Todo {
    workload: Workload,
    rules: Vec<Rule>,
}

impl Campaign {
    fn todo(&self, results: &PopulationResults) -> Vec<Todo> {
        let all = (self.from..HALF).step_by(self.every.max(1)).map(|number| self.half.workload(number));
        let lacks = |workload: &Workload, rule: &Rule| {
            let found = results.found(&workload.name, &rule.to_string());
            rule.applies_to(workload) && found.is_none_or(|found| found.len() < self.seeds)
        };
        let mut todo: Vec<Todo> = all
            .map(|workload| {
                let lacking = self.rules.iter().filter(|rule| lacks(&workload, rule));
                let mut rules: Vec<Rule> = lacking.cloned().collect();
                rules.sort_by_key(|rule| !is_classic(rule));
                // A classic rule that is to run may say otherwise.
                if !rules.first().is_some_and(is_classic) {
                    rules.retain(|rule| !is_of_no_use(rule, &workload, results));
                }
                Todo { workload, rules }
            })
            .filter(|todo| !todo.rules.is_empty())
            .collect();
        // The longest last, where the threads begin.
        todo.sort_by(|a, b| requests(&a.workload).total_cmp(&requests(&b.workload)));
        todo
    }

    /// Runs what `results` lacks, keeps it there and in `file`, and notes a look if it is of the
    /// half that is only reported. A progress bar is on standard error.
    ///
    /// Errors: the file can't be written; what was found until then is lost.
    pub fn run(&self, results: &mut PopulationResults, file: &Path) -> io::Result<()> {
        let todo = self.todo(results);
        if todo.is_empty() {
            return Ok(());
        }
        if self.half == Half::Report {
            results.look(self.rules.iter().map(Rule::to_string).collect());
        }
        // A file that can't be written is found out before any time is spent.
        results.write(file)?;
        let progress = ProgressBar::new(todo.iter().map(|todo| todo.rules.len() as u64).sum());
        let style = "{elapsed_precise} [{bar:30}] {pos} of {len} searches, {eta} left; {msg}";
        progress.set_style(ProgressStyle::with_template(style).expect("the template is right"));
        let shared = Mutex::new(Shared { results, written: Instant::now(), error: None });
        let next = AtomicUsize::new(todo.len());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    while let Some(at) = next.fetch_sub(1, Ordering::Relaxed).checked_sub(1)
                        && let Some(todo) = todo.get(at)
                        && self.run_one(todo, &shared, &progress, file)
                    {}
                });
            }
        });
        progress.finish_and_clear();
        let shared = shared.into_inner().expect(ENDS);
        shared.error.map_or_else(|| shared.results.write(file), Err)
    }

    /// Runs the rules of one workload. Returns false if an error has ended all.
    fn run_one(&self, todo: &Todo, shared: &Mutex<Shared<'_>>, progress: &ProgressBar, file: &Path) -> bool {
        let prepared = neighbourhood(&todo.workload)
            .and_then(|near| Ok((near, of_seeds(&todo.workload, self.seeds, near)?)));
        for rule in &todo.rules {
            progress.set_message(format!("{} on {}", rule, todo.workload.name));
            if is_of_no_use(rule, &todo.workload, shared.lock().expect(ENDS).results) {
                progress.inc(1);
                continue;
            }
            let found = match &prepared {
                Ok((near, workloads)) => goodputs(rule, workloads, *near),
                Err(error) => Err(*error),
            };
            progress.inc(1);
            let mut shared = shared.lock().expect(ENDS);
            match found {
                Ok(found) => {
                    shared.results.keep(&todo.workload, &rule.to_string(), &found);
                    shared.write(file);
                }
                Err(error) => shared.error = Some(io::Error::other(error)),
            }
            if shared.error.is_some() {
                return false;
            }
        }
        true
    }
}

/// Why what the threads share is whole.
const ENDS: &str = "a thread that panics ends the scope";

fn is_classic(rule: &Rule) -> bool {
    CLASSIC.contains(&rule.to_string().as_str())
}

/// Returns true if the rule's goodput on the workload says nothing: the workload is left out of the
/// distributions, and nobody knows what is possible there.
fn is_of_no_use(rule: &Rule, workload: &Workload, results: &PopulationResults) -> bool {
    !is_classic(rule)
        && !Rule::Clairvoyant.applies_to(workload)
        && results.on(&workload.name).is_some_and(is_left_out)
}

/// What the threads share.
struct Shared<'a> {
    results: &'a mut PopulationResults,
    written: Instant,
    error: Option<io::Error>,
}

impl Shared<'_> {
    fn write(&mut self, file: &Path) {
        if self.written.elapsed() > WRITE_EVERY {
            self.error = self.results.write(file).err();
            self.written = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(rules: &[&str], threads: usize) -> Campaign {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        Campaign { half: Half::Tune, every: 130, from: 0, rules, seeds: 1, threads }
    }

    #[test]
    fn only_what_is_lacking_runs_and_threads_make_no_difference() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("population.json");
        let mut one = PopulationResults::default();
        campaign(&["work-conserving:window"], 1).run(&mut one, &file).unwrap();
        let todo = campaign(&["work-conserving:window", "symphony:window"], 1).todo(&one);
        assert_eq!(todo.len(), 4);
        assert!(
            todo.iter().all(|todo| todo.rules.len() == 1 && todo.rules[0].to_string() == "symphony:window")
        );
        let mut two = PopulationResults::default();
        campaign(&["work-conserving:window"], 2).run(&mut two, &file).unwrap();
        assert!(one.of(Half::Tune).eq(two.of(Half::Tune)));
        assert!(PopulationResults::read(&file).unwrap().of(Half::Tune).eq(one.of(Half::Tune)));
        assert_eq!((one.looks(), one.of(Half::Report).count()), (0, 0));
    }

    #[test]
    fn only_classic_rules_run_on_workloads_that_are_left_out() {
        let rules = [&["symphony", "bound"][..], &CLASSIC].concat();
        let todo = |results: &PopulationResults| campaign(&rules, 1).todo(results);
        let mut results = PopulationResults::default();
        let all = todo(&results);
        assert!(all.iter().all(|todo| todo.rules.len() == 6 && todo.rules[..4].iter().all(is_classic)));
        for (rps, Todo { workload, .. }) in [50.0, 51.0].into_iter().zip(&all) {
            CLASSIC.iter().for_each(|rule| results.keep(workload, rule, &[rps]));
        }
        let left = todo(&results);
        let found = |at: usize| left.iter().find(|todo| todo.workload.name == all[at].workload.name);
        let counts = [0, 1, 2, 3].map(|at| found(at).map_or(0, |todo| todo.rules.len()));
        assert_eq!(counts, [0, 2, 6, 6]);
        // With more seeds the classic rules may say otherwise.
        let more = Campaign { seeds: 2, ..campaign(&rules, 1) }.todo(&results);
        assert!(more.len() == 4 && more.iter().all(|todo| todo.rules.len() == 6));
    }
}
