//! Load on an engine in this process, without HTTP: the calling thread owns a [`Frontend`], submits requests
//! at their times and polls for answers in between. What is measured is the engine alone.

use super::inputs::{self, VARIANTS};
use super::plan::{Pace, Plan, Schedule};
use super::tally::{End, Outcome as Recorded};
use super::{RunError, Target, Watch};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use symphony::clock::Nanos;
use symphony::config::read_config;
use symphony::runtime::frontend::{Answer, Ask, Due, Frontend, Outcome, Ticket};
use symphony::runtime::{Engine, Idle, StartError};
use symphony_transport::message::{Ending, ModelId};

/// How long answers are waited for after the last request.
const GRACE: Nanos = Nanos::from_secs(10);
/// The same after Ctrl-C.
const GRACE_STOPPED: Nanos = Nanos::from_secs(2);
/// The sleep of a turn that found nothing to do, where other threads need the core.
const NAP: Duration = Duration::from_micros(20);
/// Requests submitted between two looks at the answers.
const PER_TURN: usize = 64;

/// Starts the engine that `config` describes and makes a target of it, to be run by the calling thread: it is
/// moved to the core that the engine keeps for it.
///
/// Errors: mistakes in CONFIG, all of them told; an engine that can't start.
pub fn start(config: &Path) -> Result<Box<dyn Target>, RunError> {
    let config = read_config(config).map_err(|mistakes| RunError::Usage(mistakes.to_string()))?;
    let (engine, frontends) =
        Engine::start(config, 1, Arc::new(|line| eprintln!("{line}"))).map_err(cause)?;
    let first = frontends.into_iter().zip(engine.layout().frontends.iter().copied()).next();
    let (frontend, seat) = first.ok_or_else(|| RunError::Machine("the engine has no frontend".into()))?;
    seat.take("the load generator");
    Ok(Box::new(InProcess { frontend, idle: seat.idle, _engine: Some(engine) }))
}

fn cause(error: StartError) -> RunError {
    match error {
        StartError::Config(_) | StartError::Limit { .. } | StartError::Policy(..) => {
            RunError::Usage(error.to_string())
        }
        StartError::Slab(_) | StartError::Thread(_) | StartError::Record(_) | StartError::Died(_) => {
            RunError::Machine(error.to_string())
        }
    }
}

/// An engine's frontend as a [`Target`].
pub struct InProcess {
    frontend: Frontend,
    idle: Idle,
    /// Runs until it is dropped.
    _engine: Option<Engine>,
}

impl InProcess {
    /// Sends through `frontend`, whose engine the caller keeps running.
    pub fn new(frontend: Frontend) -> InProcess {
        InProcess { frontend, idle: Idle::Nap, _engine: None }
    }
}

/// A model that is ready to be asked.
struct Prepared {
    id: ModelId,
    slo: Option<Nanos>,
    rows: Vec<Vec<u8>>,
    next: usize,
}

impl Target for InProcess {
    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError> {
        let models = prepare(&self.frontend, plan)?;
        let schedule = plan.schedule().map_err(|e| RunError::Usage(e.to_string()))?;
        let in_flight = vec![(0, Nanos::ZERO); self.frontend.capacity()];
        let start = self.frontend.now();
        let idle = self.idle;
        Run { frontend: &mut self.frontend, idle, plan, models, in_flight, start, watch }.run(schedule);
        Ok(())
    }
}

fn prepare(frontend: &Frontend, plan: &Plan) -> Result<Vec<Prepared>, RunError> {
    let known = frontend.models();
    let prepare = |(index, model): (u64, &super::plan::PlannedModel)| {
        let info = known.iter().find(|info| info.name == model.name).ok_or_else(|| {
            let names: Vec<&str> = known.iter().take(20).map(|info| info.name.as_str()).collect();
            RunError::Usage(format!(
                "the engine has no model \"{}\"; it has {}",
                model.name,
                names.join(", ")
            ))
        })?;
        let row = |variant| inputs::row(&info.signature, plan.seed, index, variant);
        Ok(Prepared { id: info.id, slo: model.slo, rows: (0..VARIANTS).map(row).collect(), next: 0 })
    };
    (0..).zip(&plan.models).map(prepare).collect()
}

/// A run under way.
struct Run<'a> {
    frontend: &'a mut Frontend,
    idle: Idle,
    plan: &'a Plan,
    models: Vec<Prepared>,
    /// By ticket: the model and the intended time of what is in flight.
    in_flight: Vec<(usize, Nanos)>,
    /// The engine's time at which the run began.
    start: Nanos,
    watch: &'a mut Watch,
}

impl Run<'_> {
    fn now(&self) -> Nanos {
        self.frontend.now() - self.start
    }

    fn run(&mut self, schedule: Schedule) {
        let mut schedule = schedule.peekable();
        let mut give_up = self.plan.end() + GRACE;
        let mut stopped = false;
        loop {
            let answered = self.poll();
            let now = self.now();
            self.watch.progress.update(now, &self.watch.tally);
            if self.watch.stopped() && !stopped {
                self.watch.tally.stopped(now);
                (stopped, give_up) = (true, now + GRACE_STOPPED);
            }
            let more = match self.plan.pace {
                Pace::Open => schedule.peek().is_some(),
                Pace::Closed { .. } => now < self.plan.end(),
            };
            let sent = match self.plan.pace {
                _ if stopped || !more => 0,
                Pace::Open => self.send_due(&mut schedule),
                Pace::Closed { clients } => self.send_for_idle_clients(clients),
            };
            if ((stopped || !more) && self.frontend.in_flight() == 0) || now > give_up {
                return;
            }
            if answered + sent == 0 {
                match self.idle {
                    Idle::Spin => std::hint::spin_loop(),
                    Idle::Nap => std::thread::sleep(NAP),
                }
            }
        }
    }

    fn send_due(&mut self, schedule: &mut std::iter::Peekable<Schedule>) -> usize {
        let mut sent = 0;
        while sent < PER_TURN
            && let now = self.now()
            && let Some((intended, model)) = schedule.next_if(|(at, _)| *at <= now)
        {
            self.submit(model, intended);
            sent += 1;
        }
        sent
    }

    fn send_for_idle_clients(&mut self, clients: usize) -> usize {
        let idle = clients.saturating_sub(self.frontend.in_flight()).min(PER_TURN);
        for _ in 0..idle {
            self.submit(0, self.now());
        }
        idle
    }

    fn submit(&mut self, index: usize, intended: Nanos) {
        let now = self.now();
        self.watch.tally.offered(index, intended);
        self.watch.tally.sent(intended, now);
        let model = &mut self.models[index];
        let row = &model.rows[model.next];
        model.next = (model.next + 1) % model.rows.len();
        let ask = Ask { due: model.slo.map_or(Due::Slo, Due::Within), ..Ask::one(model.id) };
        match self.frontend.submit(&ask, |_, slot| slot.copy_from_slice(row)) {
            Ok(ticket) => self.in_flight[ticket.index] = (index, intended),
            Err(_) => {
                let end = End::Rejected;
                self.watch.tally.ended(Recorded { model: index, intended, ended: now, end, batch_size: 0 });
            }
        }
    }

    fn poll(&mut self) -> usize {
        let (in_flight, start, tally) = (&self.in_flight, self.start, &mut self.watch.tally);
        self.frontend.poll(|ticket: Ticket, answer: Answer<'_>| {
            let (model, intended) = in_flight[ticket.index];
            let end = end(answer.outcome);
            if end == End::Failed {
                tally.failed_since(|| "the executor failed on its batch".into());
            }
            let (ended, batch_size) = (answer.answered - start, answer.batch_size);
            tally.ended(Recorded { model, intended, ended, end, batch_size });
        })
    }
}

fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Good | Outcome::Bad(Ending::Done) => End::Good,
        Outcome::Late(_) => End::Late,
        Outcome::Bad(Ending::DroppedInQueue | Ending::DroppedAtBackend) => End::Dropped,
        Outcome::Bad(Ending::Overloaded | Ending::Stopped | Ending::Withdrawn) => End::Rejected,
        Outcome::Bad(Ending::Failed) => End::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::open;
    use super::super::progress::Progress;
    use super::super::tally::Tally;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use symphony::clock::Clock;
    use symphony::runtime::frontend::{FrontendPeer, FrontendSetup, ModelInfo, Standing};
    use symphony_gpu::{DataType, Signature, TensorSpec};
    use symphony_transport::message::{Request, Response};

    fn frontend() -> (Frontend, FrontendPeer) {
        let tensor = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: vec![4] };
        let model = ModelInfo {
            id: ModelId(0),
            name: "m".into(),
            version: 1,
            platform: "emulated".into(),
            signature: Signature { inputs: vec![tensor("in")], outputs: vec![tensor("out")] },
            slo: Nanos::from_secs(60),
            max_batch: 8,
            class: symphony::runtime::frontend::Class::HIGHEST,
            thread: 0,
            standing: Standing::Served,
        };
        let setup = FrontendSetup {
            id: 0,
            clock: Clock::start(),
            models: Arc::new([model]),
            later_row: 0,
            model_threads: 1,
            answering_threads: 1,
            capacity: 64,
            result_delay: Nanos::ZERO,
            lateness: Nanos::ZERO,
            accepting: Arc::new(AtomicBool::new(true)),
        };
        Frontend::new(setup).unwrap()
    }

    /// Answers every request at once with the ending that `end` gives its number, until `over`.
    fn answer(mut peer: FrontendPeer, over: &AtomicBool, end: impl Fn(u64) -> Ending) {
        while !over.load(Ordering::Relaxed) {
            while let Some(Request { id, slot, .. }) = peer.requests[0].pop() {
                let response =
                    Response { id, slot, ending: end(id) as u32, batch_size: 4, ..Response::default() };
                peer.responses[0].push(response).unwrap();
            }
            std::thread::yield_now();
        }
    }

    fn run(plan: &Plan, end: impl Fn(u64) -> Ending + Send) -> super::super::report::Report {
        let (frontend, peer) = frontend();
        let over = AtomicBool::new(false);
        let stop = Arc::new(AtomicBool::new(false));
        let mut watch = Watch { tally: Tally::new(plan), stop, progress: Progress::new(plan) };
        std::thread::scope(|scope| {
            scope.spawn(|| answer(peer, &over, end));
            InProcess::new(frontend).run(plan, &mut watch).unwrap();
            over.store(true, Ordering::Relaxed);
        });
        watch.tally.report(plan)
    }

    #[test]
    fn every_request_of_an_open_loop_is_sent_and_counted_by_how_it_ended() {
        let plan = open("m", 1_000.0, Nanos::from_millis(300));
        let report = run(&plan, |id| match id % 10 {
            0 => Ending::DroppedInQueue,
            1 => Ending::Overloaded,
            2 => Ending::Failed,
            _ => Ending::Done,
        });
        let f = &report.figures;
        assert_eq!((f.offered, f.sent, f.good), (300, 300, 210));
        assert_eq!((f.dropped, f.rejected, f.failed, f.late), (30, 30, 30, 0));
        assert_eq!((f.mean_batch, report.unanswered), (4.0, 0));
    }

    #[test]
    fn the_clients_of_a_closed_loop_wait_for_their_answers() {
        let mut plan = open("m", 0.0, Nanos::from_millis(200));
        plan.pace = Pace::Closed { clients: 3 };
        let report = run(&plan, |_| Ending::Done);
        assert!(report.figures.offered > 3 && report.figures.offered == report.figures.good);
    }

    #[test]
    fn a_model_that_the_engine_lacks_is_named_with_those_it_has() {
        let plan = open("n", 1.0, Nanos::from_secs(1));
        let Err(error) = prepare(&frontend().0, &plan) else { panic!("there is no such model") };
        assert_eq!(error.to_string(), "the engine has no model \"n\"; it has m");
    }
}
