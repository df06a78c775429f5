//! The two threads together: a request's whole way through a ModelThread and a RankThread that take turns on one core
//! in virtual time. What `scale` times on two cores, these operations count.

use super::{Operation, Repeat};
use crate::scale::measured::Window;
use crate::scale::options::Options;
use crate::scale::world::World;
use clap::Parser;
use symphony::clock::{Clock, Nanos};
use symphony::model::Slack;
use symphony::runtime::threads::{Agent, link};

pub(super) fn operations() -> Vec<Operation> {
    let about = "a request's whole way through both threads, 10 models: virtual time, some requests a turn";
    let mut operations = Vec::new();
    for (batch, rate, slo_ms) in [(90, 10e6, 100.0), (4, 3e6, 10.0)] {
        for a_turn in [1, 32] {
            let name = format!("threads_batches_of_{batch}_{a_turn}_a_turn");
            operations.push(Operation::new(name, about, move || both_threads(rate, slo_ms, a_turn)));
        }
    }
    operations
}

/// A repetition is a request of `rate` requests per second; `a_turn` of them come between two turns.
fn both_threads(rate: f64, slo_ms: f64, a_turn: u64) -> Repeat {
    let options = Options::parse_from(["scale", "--slo-ms", &slo_ms.to_string()]);
    let plan = options.plan(1, rate).expect("the numbers are a run's");
    let mut now = Nanos::from_secs(1);
    let gap = 1e9 / rate;
    let clock = Clock::start();
    let world = World { plan, slack: Slack::default(), start: now, window: Window::ALL, clock };
    let (mut model_links, mut rank_links) = link(1, 1, world.plan.models);
    let mut models = world.model_thread(0, model_links.remove(0));
    let mut rank = world.rank_thread(0, rank_links.remove(0));
    let mut turns = 0.0;
    let start = now;
    // Until queues are as long as they get, and GPUs as many as are used are in use.
    let mut repeat = move |times: u64| {
        let until = now + Nanos((times as f64 * gap) as u64);
        while now < until {
            turns += 1.0;
            now = start + Nanos((turns * gap * a_turn as f64) as u64);
            models.poll(now);
            rank.poll(now);
        }
    };
    repeat((slo_ms / 1e3 * rate) as u64);
    Box::new(repeat)
}
