//! The two threads together: a request's whole way through a ModelThread and a RankThread that are
//! polled alternately on one core in virtual time. `scale` times the same on two cores.

use super::{Operation, Repeat};
use crate::scale::run::stopwatch::{Interruptions, Window};
use crate::scale::run::world::World;
use crate::scale::{options::Options, plan::Plan};
use clap::Parser;
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{Agent, link};
use symphony_scheduler::deferral::Slack;
use symphony_transport::Nanos;

/// Requests per second and the options of `scale` that make batches of a size.
const CASES: [(usize, f64, &str); 3] = [
    (90, 10e6, "--slo-ms 100"),
    (4, 3e6, "--slo-ms 10"),
    (1, 2e6, "--models 1024 --gpus 4096 --max-batch 1 --alpha-ms 0.001 --beta-ms 1.9"),
];

pub(super) fn operations() -> Vec<Operation> {
    let mut operations = Vec::new();
    for (batch, rate, options) in CASES {
        for per_cycle in [1, 32] {
            let name = format!("threads_batches_of_{batch}_{per_cycle}_a_turn");
            let about =
                "a request's whole way through both threads, some requests a duty cycle, in virtual time";
            operations.push(Operation::new(&name, about, move || {
                both_threads(plan(&format!("--unwatched {options}"), rate), per_cycle)
            }));
            let about = "the same with counters and flight recorder on";
            operations.push(Operation::new(format!("{name}_recorded"), about, move || {
                let folder = tempfile::tempdir().expect("there is a folder for temporary files");
                let record = format!("--record {} {options}", folder.path().display());
                let mut repeat = both_threads(plan(&record, rate), per_cycle);
                Box::new(move |times| {
                    let _until_the_end = &folder;
                    repeat(times);
                })
            }));
        }
    }
    operations
}

fn plan(options: &str, rate: f64) -> Plan {
    let options = Options::parse_from(["scale"].into_iter().chain(options.split(' ')));
    options.plan(1, rate).expect("the options are a run's")
}

/// Repeats one request of the plan; `per_cycle` of them arrive between two duty cycles.
fn both_threads(plan: Plan, per_cycle: u64) -> Repeat {
    let start = Nanos::from_secs(1);
    let (gap, slo) = (1e9 / plan.rate, plan.slo);
    let (clock, disturbances) = (Clock::start(), Vec::new());
    let world = World { plan, slack: Slack::default(), start, window: Window::ALL, clock, disturbances };
    let (mut model_links, mut rank_links) = link(&[world.plan.models], 1);
    let recorded = "recordings can be kept among temporary files";
    let mut models = world.model_thread(0, model_links.remove(0), world.model_watch(0).expect(recorded));
    let mut rank = world.rank_thread(0, rank_links.remove(0), world.rank_watch(0).expect(recorded));
    let (mut now, mut cycles) = (start, 0.0);
    let mut repeat = move |times: u64| {
        let until = now + Nanos((times as f64 * gap) as u64);
        while now < until {
            cycles += 1.0;
            now = start + Nanos((cycles * gap * per_cycle as f64) as u64);
            models.poll(now);
            models.outbox.outlets_mut().book(Interruptions::default());
            rank.poll(now);
        }
    };
    // Warms up until the lengths of queues and the number of busy GPUs are steady.
    repeat((2.0 * slo.as_secs_f64() * 1e9 / gap) as u64);
    Box::new(repeat)
}
