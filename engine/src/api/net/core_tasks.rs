//! The tasks of an API core: what hyper spawns, connections, the engine's pump. A core runs one at
//! a time, so nobody else on it is served during a task's turn, which is from the time at which it
//! is run to the time at which it waits or pauses. The longest turn, and how many were long, are
//! metrics.

use super::handler_panics::{HandlerPanics, contained};
use super::turn;
use crate::runtime::clock::{Clock, thread_cpu_time};
use crate::telemetry::Metrics;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use symphony_transport::Nanos;

/// The clock by which the turns of an API core's tasks are measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TurnClock {
    /// The time that passes, also while other threads have the processor.
    #[default]
    Elapsed,
    /// The processor time of the core's thread, which takes a system call to read: for measurements
    /// on a machine that others use too.
    Processor,
}

/// The runner of an API core's tasks.
pub(in crate::api) struct CoreTasks {
    /// The account of panics of the core's connections.
    pub(in crate::api) panics: HandlerPanics,
    metrics: Rc<Metrics>,
    clock: Clock,
    by: TurnClock,
}

impl CoreTasks {
    /// Creates the runner of the core that counts with `metrics`.
    pub(in crate::api) fn new(
        panics: HandlerPanics,
        metrics: Rc<Metrics>,
        clock: Clock,
        by: TurnClock,
    ) -> CoreTasks {
        CoreTasks { panics, metrics, clock, by }
    }

    /// Runs a task of a connection beside the others; a panic ends it alone.
    pub(in crate::api) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let tasks = self.clone();
        let task = async move {
            if let Err(panic) = contained(task).await {
                tasks.panics.note(&panic);
            }
        };
        glommio::spawn_local(self.clone().measured(task)).detach();
    }

    /// Runs a future to its end, and measures each of its turns.
    pub(in crate::api) async fn measured<T>(self: Rc<Self>, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        poll_fn(|cx| {
            turn::begin();
            let began = self.now();
            let progress = task.as_mut().poll(cx);
            self.metrics.turn_took(self.now() - began);
            progress
        })
        .await
    }

    #[inline]
    fn now(&self) -> Nanos {
        match self.by {
            TurnClock::Elapsed => self.clock.now(),
            TurnClock::Processor => thread_cpu_time(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::slices::ready_now;
    use crate::runtime::frontend::{Frontend, FrontendSetup};
    use crate::telemetry::{CoreTurns, Telemetry};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_task_that_keeps_the_core_is_seen_by_either_clock() {
        for by in [TurnClock::Elapsed, TurnClock::Processor] {
            let setup = FrontendSetup { later_row: 64, ..FrontendSetup::of_models(Arc::new([])) };
            let (frontend, _peer) = Frontend::new(setup).unwrap();
            let telemetry = Telemetry::through(&frontend);
            let metrics = Rc::new(telemetry.add_core("api-7"));
            let faults = frontend.faults().clone();
            let panics = HandlerPanics::new("api-7", faults, metrics.clone(), Rc::default());
            let tasks = Rc::new(CoreTasks::new(panics, metrics, frontend.clock().clone(), by));
            ready_now(tasks.clone().measured(async {}));
            let busy = Duration::from_millis(30);
            ready_now(tasks.measured(async {
                let began = thread_cpu_time();
                while thread_cpu_time() - began < Nanos(busy.as_nanos() as u64) {}
            }));
            let after = telemetry.turns().pop().unwrap();
            let CoreTurns { thread, long, longest } = &after;
            assert!(thread == "api-7" && *long >= 1 && *longest > Nanos::from_millis(25), "{after:?}");
        }
    }
}
