//! The whole engine in virtual time, with faults: docs/design/chaos.md.

use std::thread::available_parallelism;
use symphony::runtime::simulation::{Campaign, EpisodeReport, run_campaign, run_episode};

#[test]
fn ten_million_requests_are_answered_once_each_whatever_fails() {
    let threads = available_parallelism().map_or(1, usize::from);
    let campaign: Campaign<EpisodeReport> = run_campaign(0..u64::MAX, 10_000_000, threads, |_| true);
    let found: Vec<String> = campaign.findings.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "of the seeds {:?}:\n{}", campaign.seeds, found.join("\n"));
    let answers = campaign.sum.answers;
    assert_eq!(answers.accepted, answers.answered());
    let all = [answers.refused, answers.late, answers.overdue, answers.dropped, answers.failed];
    let all = all.into_iter().chain([answers.withdrawn, answers.cut_off]);
    assert!(all.into_iter().all(|count| count > 0), "not every ending came about: {answers:?}");
    let faults = campaign.sum.faults;
    let lost = [faults.lost_answers, faults.doubled_answers, faults.lost_completions];
    let others = [faults.doubled_completions, faults.dead_executors, faults.dead_roles];
    assert!(lost.into_iter().chain(others).all(|count| count > 0), "not every fault: {faults:?}");
    assert!(campaign.sum.mixed_batches > 0, "no models were run as one");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in [3, 8] {
        assert_eq!(run_episode(seed).unwrap(), run_episode(seed).unwrap());
    }
}

#[test]
fn a_backlogged_model_is_not_starved_by_its_neighbours() {
    // In each of these, one model or two had all their requests dropped for seconds after the last
    // fault, since they offered batches that expired on the way to the RankThread.
    for seed in [247, 843, 1_195] {
        run_episode(seed).unwrap();
    }
}
